//! Homes that are lost, and what commands and other nodes hear of their jobs.

use super::*;

/// A job has ended, and its home is lost before the terminal hears so: a node that has heard tells it how.
#[test]
fn how_a_job_has_ended_is_known_when_its_home_is_gone() {
    let is_end = |input: &Input| matches!(input, Input::Message(_, PeerMessage::ToStore(_, ToStore::Remove(_))));
    let is_told = |input: &Input| matches!(input, Input::Message(_, PeerMessage::ToSession(_, ToSession::Ended(_))));
    for its_node_hears in [false, true] {
        let mut cluster = Cluster::new(5);
        let job = cluster.start_recoverable(5, 3);
        (0..3).for_each(|rank| cluster.pmi(at(job, rank), "cmd=finalize"));
        cluster.run_for(SOON);
        cluster.exit_all(job);
        let ends = (0..1000).any(|_| !cluster.step() && cluster.wire.iter().any(|(.., input)| is_end(input)));
        assert!(ends, "its home says so");
        let was_under_way = cluster.wire.len();
        let lost = |input: &Input| is_told(input) || !its_node_hears && is_end(input);
        cluster.wire.retain(|(_, to, input)| *to != name(5) || !lost(input));
        assert!(cluster.wire.len() < was_under_way, "it is told, too");
        cluster.kill_all(&[1]);
        cluster.run_until(|c| c.outcome(1).is_some());
        assert_eq!(
            cluster.outcome(1),
            Some(Outcome { code: 0, reason: EndReason::Finished }),
            "{its_node_hears}, {}",
            cluster.story(job, 3)
        );
    }
}

/// A side has no majority, and the word of a home that is out of reach comes late. Its terminal does not wait for that home for
/// ever.
#[test]
fn a_late_word_of_a_home_that_is_out_of_reach_ends_no_waiting() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(4, 3);
    let session = SessionId { node: id(4), number: 1 };
    let placement = cluster.nodes[&name(1)].homes[&job].placement().clone();
    cluster.kill_all(&[1, 2, 3]);
    cluster.run_until(|c| c.recorded(EventName::Frozen) > 0);
    let attached = ToSession::Attached { job, placement, consumed: 0, dropped: 0, protected: true };
    cluster.post(&name(4), Input::Message(id(1), PeerMessage::ToSession(session, attached)));
    cluster.run_until(|c| c.outcome(1).is_some());
    assert_eq!(cluster.outcome(1).map(|outcome| outcome.code), Some(radic_wire::job::exit_code::NODE_LOST));
}

/// A job's home answers, and is lost before others have answered: a command that looks for the job turns to the next home.
#[test]
fn a_command_does_not_turn_to_a_home_that_was_lost_since() {
    let mut cluster = Cluster::new(5);
    let job = cluster.start_recoverable(5, 3);
    cluster.hello(4, 9, Request::Attach { job: job.to_string() });
    let is_answer = |(_, to, input): &(Duration, NodeName, Input)| {
        *to == name(4) && matches!(input, Input::Message(from, PeerMessage::Answer(..)) if *from == id(5))
    };
    let mut held = None;
    while held.is_none() {
        cluster.step();
        let at = cluster.wire.iter().position(is_answer);
        held = at.and_then(|at| cluster.wire.remove(at));
    }
    cluster.kill_all(&[1]);
    cluster.run_until(|c| !c.nodes[&name(4)].is_member(&id(1)));
    let (_, to, answer) = held.expect("it was found");
    cluster.post(&to, answer);
    cluster.run_until(|c| c.replies(9).iter().any(|reply| matches!(reply, Reply::Attached { job: told, .. } if *told == job)));
}

/// A home is lost before it has told the terminal which job it has started: the next home does.
#[test]
fn a_terminal_hears_of_its_job_from_the_next_home() {
    let mut cluster = Cluster::new(5);
    let spec = JobSpec { nodes: vec![name(1), name(2)], protection: never(), ..spec(2) };
    cluster.hello(5, 1, Request::Run { spec: Box::new(spec), attach: true });
    while cluster.ranks.len() < 2 {
        cluster.step();
        cluster.wire.retain(|(_, _, input)| !matches!(input, Input::Message(_, PeerMessage::ToSession(..))));
    }
    let job = cluster.ranks.keys().next().unwrap().job;
    let attached = |cluster: &Cluster| {
        let replies = cluster.replies(1).iter();
        replies.filter(|reply| matches!(reply, Reply::Attached { job: told, .. } if *told == job)).count()
    };
    assert_eq!(attached(&cluster), 0);
    cluster.kill_all(&[1]);
    cluster.run_until(|c| attached(c) > 0);
    cluster.run_for(SOON);
    assert_eq!(attached(&cluster), 1);
}

/// A home is lost after one node has ended what it had for a restart, and before the next epoch has begun. The next home hears so
/// from that node, which has nothing of the job any more, while others know of the rank that was there.
#[test]
fn a_home_is_lost_when_its_job_has_ended_somewhere_to_restart() {
    // The next home is the node that has ended it, or another one.
    for (restart_on, home) in [(RestartOn::Protector, 2), (RestartOn::Any, 4)] {
        let mut cluster = Cluster::new(6);
        cluster.restart_on = restart_on;
        let job = cluster.start_recoverable(6, 3);
        let end = ToHost::End { epoch: Epoch::FIRST, kill: true, restarts: true, written: false };
        cluster.post(&name(2), Input::Message(id(1), PeerMessage::ToHost(job, end)));
        cluster.kill_all(&[1]);
        let until = cluster.now + Duration::from_secs(5);
        while !(cluster.has_restarted(job) && cluster.launched.len() == 6) {
            assert!(cluster.now < until, "it does not restart\n{}", cluster.story(job, 3));
            cluster.run_for(LATENCY);
        }
        assert!(cluster.nodes[&name(home)].homes.contains_key(&job), "{}", cluster.story(job, 3));
        cluster.run_for(SOON);
        cluster.end_well(job, 1);
    }
}

/// A process of an earlier epoch is still here when its home launches the next one, and that home is lost before the process has
/// ended. The next home hears that nothing is here, and does not use the number of an epoch again, because processes of that
/// epoch may run behind a cut.
#[test]
fn a_home_is_lost_when_its_next_incarnation_waits_for_a_process_of_the_one_before() {
    let next = epoch(1);
    for restart_on in [RestartOn::Protector, RestartOn::Any] {
        let mut cluster = Cluster::new(6);
        cluster.restart_on = restart_on;
        let job = cluster.start_recoverable(6, 3);
        let host = &cluster.nodes[&name(2)].hosts[&job];
        let (spec, placement) = (Box::new(host.spec().clone()), host.placement().clone());
        // It takes long to end.
        cluster.ranks.get_mut(&at(job, 1)).unwrap().1.ended = true;
        let launch = ToHost::Launch { epoch: next, spec, placement };
        cluster.post(&name(2), Input::Message(id(1), PeerMessage::ToHost(job, launch)));
        cluster.run_for(LATENCY);
        cluster.kill_all(&[1]);
        cluster.run_for(Duration::from_secs(3));
        assert!(cluster.nodes[&name(2)].hosts[&job].is_superseded(), "{}", cluster.story(job, 3));
        cluster.exit(at(job, 1), ExitStatus::Signal(9));
        cluster.run_for(SOON);
        let incarnations = cluster.nodes.values().filter_map(|node| node.hosts.get(&job)).map(|host| host.epoch());
        let incarnations: BTreeSet<_> = incarnations.filter(|incarnation| *incarnation >= next).collect();
        assert_eq!(incarnations.len(), 1, "{}", cluster.story(job, 3));
        assert!(incarnations.iter().all(|epoch| *epoch > next && epoch.home != next.home), "{incarnations:?}");
        assert_eq!(cluster.launched.len(), 6, "{}", cluster.story(job, 3));
    }
}

/// A node joins when a job is over, and a protector that is cut off from its home has not heard of that. The home tells nodes
/// that join as well, so that they keep no copies of the job's logs.
#[test]
fn a_node_that_joins_when_a_job_is_over_hears_so() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_recoverable(3, 3);
    let standing = {
        let host = &cluster.nodes[&name(2)].hosts[&job];
        let (spec, placement) = (host.spec().clone(), host.placement().clone());
        let ranks = vec![Stood { rank: Rank(1), incarnation: Incarnation::FIRST, origin: None, left: None }];
        Standing { host: id(2), ranks, ward: Ward { epoch: Epoch::FIRST, spec, placement, fence: 0, keys: Vec::new() } }
    };
    cluster.end_well(job, 1);
    cluster.add(4);
    cluster.run_until(|c| c.nodes.values().all(|n| n.view().is_some_and(|v| v.members.len() == 4)));
    cluster.run_for(SOON);
    assert!(cluster.orders.contains(&(name(4), StoreOrder::RemoveJob(job))), "{:?}", cluster.orders);
    cluster.post(&name(4), Input::Message(id(3), PeerMessage::ToStore(job, ToStore::Stand(Box::new(standing)))));
    cluster.run_for(SOON);
    assert!(!cluster.nodes[&name(4)].knows(job));
}

/// A node that joins does not hear of a suspended job: that may be about to be resumed, and would be taken for over.
#[test]
fn a_node_that_joins_does_not_hear_of_a_suspended_job() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_recoverable(3, 3);
    cluster.hello(2, 7, Request::Suspend { job: job.to_string() });
    cluster.run_until(|c| c.replies(7).iter().any(|reply| matches!(reply, Reply::Suspending(_))));
    cluster.ask(2, 7, Request::EndSuspended);
    cluster.run_until(|c| c.outcome(1).is_some() && c.nothing_left());
    cluster.add(4);
    cluster.run_until(|c| c.nodes.values().all(|n| n.view().is_some_and(|v| v.members.len() == 4)));
    cluster.run_for(SOON);
    let told = |node| cluster.orders.contains(&(name(node), StoreOrder::RemoveJob(job)));
    assert_eq!([told(3), told(4)], [true, false], "{:?}", cluster.orders);
}

/// What a rank has printed comes to the home while the job restarts. It is taken, because its host waits for that before it lets
/// the job go.
#[test]
fn output_that_comes_while_the_job_restarts_does_not_hold_it_up() {
    let mut cluster = Cluster::new(5);
    let job = cluster.start_recoverable(5, 3);
    cluster.images.clear();
    cluster.kill_all(&[2]);
    let until = cluster.now + Duration::from_secs(5);
    while !cluster.has_restarted(job) {
        assert!(cluster.now < until, "it does not restart\n{}", cluster.story(job, 3));
        if cluster.runs(job, 2) {
            cluster.print(at(job, 2), b"x");
        }
        cluster.run_for(LATENCY / 2);
    }
    cluster.run_for(SOON);
    cluster.end_well(job, 1);
}

/// The home is lost before another node has heard of the job. The node of the command that has started it knows enough to restart
/// it.
#[test]
fn a_job_of_which_only_its_terminal_s_node_knows_restarts() {
    for on_loss in [OnLoss::Restart, OnLoss::Fail] {
        let mut cluster = Cluster::new(4);
        let spec = JobSpec { protection: never(), nodes: (1..=3).map(name).collect(), on_loss, ..spec(3) };
        cluster.hello(4, 1, Request::Run { spec: Box::new(spec), attach: true });
        cluster.run_until(|c| !c.nodes[&name(1)].homes.is_empty());
        cluster.kill_all(&[1]);
        if on_loss == OnLoss::Fail {
            cluster.run_until(|c| c.outcome(1).is_some());
            assert_eq!(cluster.outcome(1).map(|outcome| outcome.code), Some(113));
            assert!(cluster.ranks.is_empty());
            continue;
        }
        cluster.run_until(|c| c.ranks.len() == 3);
        let job = cluster.ranks.keys().next().expect("it has begun").job;
        cluster.run_for(SOON);
        assert!(cluster.has_restarted(job), "{}", cluster.story(job, 3));
        cluster.end_well(job, 1);
    }
}

/// A command that looks for a job where there is no majority is told that others may know it, not that there is none.
#[test]
fn a_command_is_not_told_that_there_is_no_job_where_no_node_can_know() {
    let mut cluster = Cluster::new(3);
    let ask = |cluster: &mut Cluster, client| {
        cluster.hello(1, client, Request::Attach { job: "0123".into() });
        cluster.run_until(|c| matches!(c.replies(client).last(), Some(Reply::Error(_))));
        format!("{:?}", cluster.replies(client).last())
    };
    let (known, killed) = (ask(&mut cluster, 1), [2, 3]);
    assert!(known.contains("there is no job 0123"), "{known}");
    cluster.kill_all(&killed);
    cluster.run_for(Duration::from_secs(5));
    let unknown = ask(&mut cluster, 2);
    assert!(unknown.contains("know of no job 0123, and have no majority"), "{unknown}");
}

/// A home is lost that protects a rank of another node. Nothing of that rank is at the next home yet when it asks all nodes, and
/// the rank's own node does not answer. The next home becomes the rank's protector, and then that node is lost, too. What nodes
/// have said before does not count any more: the rank comes back.
#[test]
fn what_was_said_of_a_lost_rank_before_its_node_was_lost_does_not_count() {
    let mut cluster = Cluster::new(5);
    let job = cluster.start_recoverable_on(4, &[1, 5, 3]);
    cluster.deaf = Some(name(5));
    cluster.kill_all(&[1]);
    let is_protected = |c: &Cluster| c.nodes[&name(2)].recovery.wards.get(&job).is_some_and(|of| of.ranks.contains_key(&Rank(1)));
    let until = cluster.now + Duration::from_secs(5);
    while !is_protected(&cluster) {
        assert!(cluster.now < until, "{}", cluster.story(job, 3));
        cluster.step();
        // The node does not report to its new home, either.
        let is_home = |input: &Input| matches!(input, Input::Message(_, PeerMessage::NewHome(_)));
        cluster.wire.retain(|(_, to, input)| *to != name(5) || !is_home(input));
    }
    assert!(cluster.nodes[&name(2)].homes.contains_key(&job) && !cluster.unheard.is_empty(), "{}", cluster.story(job, 3));
    cluster.commit(job, 1, 0);
    cluster.kill_all(&[5]);
    cluster.run_until(|c| c.restored.len() == 2);
    cluster.run_for(SOON);
    assert!(!cluster.has_restarted(job), "{}", cluster.story(job, 3));
    cluster.end_well(job, 1);
}

/// A question about lost ranks comes before the view in which it was asked. It is answered in that view: what would be said
/// before, without the death, would be taken for what is known with it.
#[test]
fn a_question_about_lost_ranks_is_answered_in_the_view_of_the_home() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(4, 3);
    let number = cluster.nodes[&name(2)].view_number();
    for (view, asked) in [(number, 71), (number + 1, 72)] {
        let query = Query::Lost { job, epoch: Epoch::FIRST, ranks: vec![Rank(0), Rank(1), Rank(2)], view };
        cluster.post(&name(2), Input::Message(id(1), PeerMessage::Query(asked, query)));
    }
    let mut said = BTreeMap::new();
    let mut hear = |cluster: &Cluster| {
        for (.., input) in &cluster.wire {
            if let Input::Message(_, PeerMessage::Answer(asked @ (71 | 72), Answer::Lost(known))) = input {
                said.insert(*asked, known.clone());
            }
        }
        said.clone()
    };
    let until = cluster.now + SOON;
    while cluster.now < until {
        cluster.step();
        // Rank 0 is protected here, and rank 1 is here.
        assert!(hear(&cluster).iter().all(|said| said == (&71, &vec![Rank(0), Rank(1)])));
    }
    assert_eq!(hear(&cluster).len(), 1);
    cluster.kill_all(&[4]);
    let until = cluster.now + Duration::from_secs(5);
    while hear(&cluster).len() < 2 {
        assert!(cluster.now < until, "it is not answered");
        cluster.step();
    }
    assert_eq!(cluster.nodes[&name(2)].view_number(), number + 1);
}
