//! Jobs that are suspended, and go on.

use radic_wire::codec;
use radic_wire::peer::{Adoption, Gift, Revival};
use radic_wire::suspension::{Resumption, Suspension};

use super::*;
use crate::commands::suspend::SILENCE;

/// Many messages and heartbeats take less.
const SOON: Duration = Duration::from_secs(2);

impl Cluster {
    /// `client` at `node` has the job's ranks stopped.
    fn suspend(&mut self, node: usize, client: u64, job: JobId) -> Box<Suspension> {
        self.hello(node, client, Request::Suspend { job: job.to_string() });
        let suspending = |c: &Cluster| c.replies(client).iter().any(|reply| matches!(reply, Reply::Suspending(_)));
        self.run_until(suspending);
        let said = self.replies(client).iter().find_map(|reply| match reply {
            Reply::Suspending(suspension) => Some(suspension.clone()),
            _ => None,
        });
        said.expect("it was waited for")
    }

    /// The same, and it ends.
    fn suspend_and_end(&mut self, node: usize, client: u64, job: JobId) -> Box<Suspension> {
        let suspension = self.suspend(node, client, job);
        self.ask(node, client, Request::EndSuspended);
        self.run_until(|c| c.outcome(1).is_some() && c.nothing_left());
        suspension
    }

    /// `client` at `node` has a job go on. Returns whether it may give to the protectors what they are to have.
    fn begin_to_resume(&mut self, node: usize, client: u64, suspension: &Suspension) -> bool {
        let incarnations = vec![Incarnation::restarted(1); suspension.ward.spec.ranks as usize];
        self.hello(node, client, Request::Resume(Box::new(suspension.clone()), Box::new(Resumption { incarnations })));
        self.run_until(|c| matches!(c.replies(client).last(), Some(Reply::Resuming(_) | Reply::Error(_))));
        matches!(self.replies(client).last(), Some(Reply::Resuming(_)))
    }

    /// A job is suspended, and ends; `again` at `node` has it go on.
    fn suspend_and_resume(&mut self, node: usize, (client, again): (u64, u64), job: JobId) {
        let suspension = self.suspend_and_end(node, client, job);
        assert!(self.begin_to_resume(node, again, &suspension));
        self.ask(node, again, Request::BeginResumed);
        self.run_until(|c| c.replies(again).iter().any(|reply| matches!(reply, Reply::Attached { .. })));
    }

    /// Steps until a message to a node is under way, which is lost.
    fn lose_next(&mut self, node: usize, is_it: impl Fn(&PeerMessage) -> bool) {
        let is_lost = |input: &Input| match input {
            Input::Message(_, PeerMessage::OfLife(_, code)) => {
                codec::decode(code, limits::PEER_FRAME).is_ok_and(|message| is_it(&message))
            }
            Input::Message(_, message) => is_it(message),
            _ => false,
        };
        let limit = self.now + Duration::from_secs(5);
        while let (before, ()) = (self.wire.len(), self.wire.retain(|(_, to, input)| *to != name(node) || !is_lost(input)))
            && self.wire.len() == before
        {
            assert!(self.now < limit, "nothing like that is said");
            self.step();
        }
    }

    /// So many nodes, and a job that was suspended and that node 5 has resumed. It goes on, and of what is said of that the next word of this kind to
    /// `node` is lost.
    fn resumed_without(nodes: usize, node: usize, is_it: impl Fn(&PeerMessage) -> bool) -> (Cluster, JobId, Box<Suspension>) {
        let mut cluster = Cluster::new(nodes);
        let job = cluster.start_recoverable(5, 3);
        let suspension = cluster.suspend_and_end(5, 7, job);
        assert!(cluster.begin_to_resume(5, 8, &suspension));
        cluster.ask(5, 8, Request::BeginResumed);
        cluster.lose_next(node, is_it);
        cluster.run_for(LATENCY * 2);
        (cluster, job, suspension)
    }

    /// Whether what a command has given to the log service of a node was forgotten.
    fn has_forgotten_given(&self, node: usize, job: JobId) -> bool {
        self.orders.contains(&(name(node), StoreOrder::ForgetGiven(job)))
    }

    /// How often a rank was brought back.
    fn restores(&self, process: ProcessId) -> usize {
        self.restored.iter().filter(|(of, ..)| *of == process).count()
    }

    /// Whether the home tells a protector that its job goes on.
    fn is_resume(message: &PeerMessage) -> bool {
        matches!(message, PeerMessage::ToStore(_, ToStore::Resume { .. }))
    }

    /// The node that protects a rank and knows how it has ended.
    fn knows_that_it_left(&self, node: usize, process: ProcessId) -> bool {
        self.nodes[&name(node)].recovery.wards[&process.job].ranks[&process.rank].left.is_some()
    }
}

/// The command's side has no majority, and cannot reach the home. The home's ranks do not stay stopped for a command that has given up.
#[test]
fn a_home_that_is_out_of_reach_of_a_command_that_suspends_lets_the_ranks_go_on() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(4, 3);
    cluster.suspend(4, 7, job);
    let last = |c: &Cluster, rank: u32| c.ranks[&ProcessId { job, rank: Rank(rank) }].1.signals.last().copied();
    assert_eq!([0, 1, 2].map(|rank| last(&cluster, rank)), [Some(libc::SIGSTOP); 3]);
    let others = [1, 2, 3].map(name);
    cluster.dead.extend(others.clone());
    while !matches!(cluster.replies(7).last(), Some(Reply::Error(_))) {
        cluster.step();
        assert!(cluster.now < Duration::from_secs(60), "the command is not told");
    }
    assert_eq!(last(&cluster, 0), Some(libc::SIGSTOP), "the home has heard nothing");
    cluster.dead.clear();
    cluster.run_until(|c| [0, 1, 2].iter().all(|rank| last(c, *rank) == Some(libc::SIGCONT)));
}

/// A command that has had the ranks stopped hangs. One that says that it gets on may take its time; one that has written the job down need say nothing more.
#[test]
fn a_command_that_hangs_while_ranks_are_stopped_is_given_up() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(4, 3);
    let last = |c: &Cluster, rank: u32| c.ranks[&ProcessId { job, rank: Rank(rank) }].1.signals.last().copied();
    let all = |c: &Cluster, signal| [0, 1, 2].iter().all(|rank| last(c, *rank) == Some(signal));
    cluster.suspend(2, 7, job);
    for _ in 0..3 {
        cluster.run_for(SILENCE - SOON);
        cluster.ask(2, 7, Request::Ping);
    }
    cluster.run_for(SILENCE - SOON);
    assert!(all(&cluster, libc::SIGSTOP), "it is given up though it is heard");
    cluster.run_for(SOON * 2);
    assert!(all(&cluster, libc::SIGCONT), "the ranks stay stopped");
    let Some(Reply::Error(why)) = cluster.replies(7).last() else { panic!("{:?}", cluster.replies(7)) };
    assert!(why.contains("n2 heard nothing") && why.contains("suspend the job again"), "{why}");
    let is_told =
        |reply: &Reply| matches!(reply, Reply::Notice(text) if text.contains("n2 heard nothing") && text.contains("go on"));
    assert_eq!(cluster.replies(1).iter().filter(|reply| is_told(reply)).count(), 1, "{:?}", cluster.replies(1));
    let given_up = |text: &&String| text.contains("said nothing for 60 s");
    assert_eq!(texts(&cluster, 2, EventName::Note).iter().filter(given_up).count(), 1);
    // It wakes up, and says what it was about to say.
    cluster.ask(2, 7, Request::EndSuspended);
    cluster.run_for(SOON);
    assert!(cluster.outcome(1).is_none() && all(&cluster, libc::SIGCONT));

    cluster.suspend(2, 8, job);
    cluster.ask(2, 8, Request::EndSuspended);
    cluster.run_until(|c| c.outcome(1).is_some());
    cluster.run_for(SILENCE - SOON);
    cluster.run_for(SOON * 2);
    assert_eq!(cluster.replies(8).last(), Some(&Reply::Done));
}

/// One that says that all is written before the ranks are stopped would not be watched over.
#[test]
fn a_job_is_not_written_before_its_ranks_are_stopped() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(4, 3);
    cluster.hello(4, 7, Request::Suspend { job: job.to_string() });
    let is_begun = |input: &Input| matches!(input, Input::Message(_, PeerMessage::ToHome(_, ToHome::Suspend(_))));
    while !cluster.wire.iter().any(|(.., input)| is_begun(input)) {
        cluster.step();
    }
    cluster.ask(4, 7, Request::EndSuspended);
    cluster.run_until(|c| matches!(c.replies(7).last(), Some(Reply::Error(why)) if why.contains("before the ranks are stopped")));
    cluster.run_for(SOON);
    let last = |rank: u32| cluster.ranks[&ProcessId { job, rank: Rank(rank) }].1.signals.last().copied();
    assert!([0, 1, 2].iter().all(|rank| last(*rank) != Some(libc::SIGSTOP)));
}

/// A link between two nodes is broken for so long that a job was suspended and goes on meanwhile. What one of them had said of a
/// rank that has ended holds of the life before.
#[test]
fn what_was_said_of_a_life_before_is_not_heard() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(4, 3);
    cluster.suspend_and_resume(4, (7, 8), job);
    let process = ProcessId { job, rank: Rank(0) };
    let host = |node: usize| Some(cluster.nodes[&name(node)].recovery.wards.get(&job)?.ranks.get(&Rank(0))?.host.clone());
    let (protector, host) = (1..=4).find_map(|node| Some((node, host(node)?))).expect("a node protects it");
    let left = ToStore::Left { rank: Rank(0), status: ExitStatus::Signal(9), phase: MpiPhase::Within, finals: Vec::new() };
    let of_before = PeerMessage::ToStore(job, left);
    let of_now = cluster.nodes[&host.name].with_life(of_before.clone());
    assert_ne!(of_now, of_before);
    for (message, is_heard) in [(of_before, false), (of_now, true)] {
        cluster.post(&name(protector), Input::Message(host.clone(), message));
        cluster.run_for(LATENCY * 2);
        assert_eq!(cluster.knows_that_it_left(protector, process), is_heard);
    }
}

/// A protector has not heard how the job has ended. The others remember that while it has something of the job, and tell it.
#[test]
fn while_a_node_has_something_of_a_suspended_job_no_other_forgets_how_that_has_ended() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(4, 3);
    let ward = cluster.nodes[&name(1)].hosts[&job].ward();
    let suspension = cluster.suspend_and_end(4, 7, job);
    let node = cluster.nodes.get_mut(&name(2)).expect("it is there");
    node.forget_end(job);
    node.guard(job, &[], ward.clone());
    assert!(!cluster.begin_to_resume(4, 8, &suspension));
    assert!(cluster.nodes[&name(3)].has_ended(job));
    let adoption = Adoption { job, ward, started_ms: 0, view: 1 };
    cluster.post(&name(3), Input::Message(id(2), PeerMessage::Adopt(Box::new(adoption))));
    cluster.run_for(LATENCY * 3);
    assert!(!cluster.nodes[&name(2)].knows(job));
    assert!(cluster.begin_to_resume(4, 9, &suspension));
}

/// A node knows how a suspended job has ended, and has something of it all the same. It says that it has: a terminal may hear of
/// the end alone, a command that resumes the job may not.
#[test]
fn a_job_of_which_something_is_left_does_not_go_on_though_its_end_is_known() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(4, 3);
    let ward = cluster.nodes[&name(1)].hosts[&job].ward();
    let suspension = cluster.suspend_and_end(4, 7, job);
    let node = cluster.nodes.get_mut(&name(2)).expect("it is there");
    node.guard(job, &[], ward);
    assert!(node.has_ended(job) && node.knows(job));
    assert_eq!(node.answer_knows(job), Answer::Knows(true));
    assert!(!cluster.begin_to_resume(4, 8, &suspension));
}

/// The home of a suspended job is lost when it has told all others to kill their ranks, and before its own rank has ended. They
/// keep that their ranks were ended, and the next home does not wait for the word of hosts that are over.
#[test]
fn a_home_is_lost_when_all_ranks_of_its_suspended_job_were_killed() {
    let mut cluster = Cluster::new(5);
    let job = cluster.start_recoverable(5, 3);
    cluster.suspend(4, 7, job);
    cluster.ask(4, 7, Request::EndSuspended);
    let is_end = |input: &Input| matches!(input, Input::Message(_, PeerMessage::ToHost(_, ToHost::End { .. })));
    while cluster.wire.iter().filter(|(.., input)| is_end(input)).count() < 2 {
        cluster.step();
    }
    cluster.kill_all(&[1]);
    cluster.run_for(LATENCY * 4);
    assert!([2, 3].iter().all(|node| !cluster.nodes[&name(*node)].hosts.contains_key(&job)));
    cluster.run_until(|c| c.outcome(1).is_some());
    let Some(Outcome { reason: EndReason::RankLost { why, .. }, .. }) = cluster.outcome(1) else {
        panic!("{:?}", cluster.outcome(1))
    };
    assert!(why.contains("by a home that was lost before it had said why"), "{why}");
    cluster.run_until(|c| (2..=5).all(|node| !c.nodes[&name(node)].knows(job)));
    assert!((2..=5).all(|node| cluster.nodes[&name(node)].recovery.endings.ends.is_empty()));
}

/// The others get out of reach while a command asks them whether they have something of a suspended job. It is not taken for
/// their answer that they say nothing: the job's end is not forgotten, and no life begins.
#[test]
fn no_life_begins_while_a_member_that_was_asked_is_out_of_reach() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(4, 3);
    let suspension = cluster.suspend_and_end(4, 7, job);
    cluster.run_for(LATENCY * 3);
    cluster.dead.extend([1, 2, 3].map(name));
    cluster.run_until(|c| c.recorded(EventName::Confirm) > 0);
    assert_eq!(cluster.recorded(EventName::Frozen), 0);
    assert!(!cluster.begin_to_resume(4, 8, &suspension));
    assert!(cluster.recorded(EventName::Frozen) > 0, "{:?}", cluster.replies(8));
    let node = &cluster.nodes[&name(4)];
    assert!(node.has_ended(job) && node.is_newest_life(job, 0), "{:?}", cluster.replies(8));
}

/// A command has given what log services are to have, and its node is lost before the home has said that the job goes on.
#[test]
fn what_a_command_has_given_is_forgotten_when_its_node_is_lost() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(4, 3);
    let suspension = cluster.suspend_and_end(4, 7, job);
    assert!(cluster.begin_to_resume(4, 8, &suspension));
    cluster.kill_all(&[4]);
    cluster.run_until(|c| [1, 2, 3].iter().all(|node| c.nodes[&name(*node)].view().is_some_and(|v| v.members.len() == 3)));
    cluster.run_for(LATENCY * 2);
    assert!([1, 2, 3].iter().all(|node| cluster.has_forgotten_given(*node, job)), "{:?}", cluster.orders);
    // The home has heard that the job goes on, and its word comes only now.
    let ranks = vec![(Rank(0), Incarnation::restarted(1), [10, 0, 0, 1].into())];
    let resume = PeerMessage::ToStore(job, ToStore::Resume { ranks, ward: Box::new(suspension.ward.clone()) });
    let resume = cluster.nodes[&name(1)].with_life(resume);
    cluster.post(&name(2), Input::Message(id(1), resume));
    cluster.run_for(LATENCY * 2);
    assert!(texts(&cluster, 2, EventName::Lost)[0].contains("it can be resumed again"));
    assert!(!cluster.nodes[&name(2)].knows(job));
}

/// A job goes on, and its home is lost when it has told some protectors so. The next home misses the rank whose protector has not
/// heard: that one was told before what the command had given it, and brings the rank back.
#[test]
fn a_home_is_lost_before_all_protectors_have_heard_that_a_job_goes_on() {
    let (mut cluster, job, _) = Cluster::resumed_without(6, 3, Cluster::is_resume);
    assert!(!cluster.nodes[&name(3)].knows(job));
    cluster.kill_all(&[1]);
    cluster.run_until(|c| [0, 1, 2].iter().all(|rank| c.restores(at(job, *rank)) > 0));
    cluster.run_for(LATENCY * 4);
    assert_eq!(cluster.restored.iter().find(|(process, ..)| *process == at(job, 1)).unwrap().1, Incarnation::restarted(2));
    assert_eq!(cluster.recorded(EventName::Restart), 0);
}

/// The same, and the command's node is lost with the home. The protector that has not heard that the job goes on does not forget
/// what the command had given: others have heard.
#[test]
fn a_home_and_the_command_s_node_are_lost_before_all_protectors_have_heard_that_a_job_goes_on() {
    let (mut cluster, job, _) = Cluster::resumed_without(7, 3, Cluster::is_resume);
    assert!(cluster.nodes[&name(2)].knows(job) && !cluster.nodes[&name(3)].knows(job));
    cluster.kill_all(&[1, 5]);
    cluster.run_until(|c| [0, 1, 2].iter().all(|rank| c.restores(at(job, *rank)) > 0));
    cluster.run_for(LATENCY * 4);
    assert_eq!(cluster.recorded(EventName::Restart), 0);
    assert!(!cluster.has_forgotten_given(3, job));
}

/// The command's node is lost before the word of the home has come to a protector. It waits for that word, for others know that the job goes on.
#[test]
fn a_protector_hears_late_that_a_job_goes_on_whose_command_s_node_is_lost() {
    let (mut cluster, job, _) = Cluster::resumed_without(6, 3, Cluster::is_resume);
    let ward = Box::new(cluster.nodes[&name(2)].recovery.wards[&job].ward.clone());
    let ranks = vec![(Rank(1), Incarnation::restarted(1), [10, 0, 0, 2].into())];
    let resume = cluster.nodes[&name(1)].with_life(PeerMessage::ToStore(job, ToStore::Resume { ranks, ward }));
    cluster.kill_all(&[5]);
    cluster.run_until(|c| c.nodes[&name(3)].view().is_some_and(|view| view.members.len() == 5));
    cluster.run_for(Duration::from_secs(3));
    assert!(!cluster.has_forgotten_given(3, job) && cluster.restores(at(job, 1)) == 0);
    cluster.post(&name(3), Input::Message(id(1), resume));
    cluster.run_until(|c| c.restores(at(job, 1)) > 0);
    assert_eq!(cluster.recorded(EventName::Restart), 0);
}

/// The command's node is lost when all protectors know what they were given, and the home does not know that the job goes on. They
/// forget that, and say so; the job can be resumed again.
#[test]
fn a_job_of_which_no_node_knows_that_it_goes_on_can_be_resumed_again() {
    let is_resume = |message: &PeerMessage| matches!(message, PeerMessage::ToHome(_, ToHome::Resume { .. }));
    let (mut cluster, job, suspension) = Cluster::resumed_without(6, 1, is_resume);
    cluster.kill_all(&[5]);
    cluster.run_until(|c| [2, 3, 4].iter().all(|node| c.has_forgotten_given(*node, job)));
    assert!(texts(&cluster, 2, EventName::Note).iter().any(|text| text.contains("it can be resumed again")));
    assert!((1..=4).all(|node| !cluster.nodes[&name(node)].knows(job)));
    assert!(cluster.begin_to_resume(4, 9, &suspension));
}

/// The node of a protector does not say that it knows what it was given: the job does not go on, and the others forget it.
#[test]
fn a_job_does_not_go_on_before_all_protectors_know_what_they_were_given() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(4, 3);
    let suspension = cluster.suspend_and_end(4, 7, job);
    assert!(cluster.begin_to_resume(4, 8, &suspension));
    cluster.ask(4, 8, Request::BeginResumed);
    cluster.lose_next(3, |message| matches!(message, PeerMessage::Query(_, Query::Given(_))));
    cluster.orders.clear();
    cluster.run_until(|c| !matches!(c.replies(8).last(), Some(Reply::Resuming(_))));
    let told = cluster.replies(8).last();
    assert!(matches!(told, Some(Reply::Error(why)) if why.contains("does not answer; it can be resumed again")), "{told:?}");
    cluster.run_for(LATENCY * 2);
    assert!(cluster.nodes.values().all(|node| !node.knows(job) && node.homes.get(&job).is_none_or(Home::is_over)));
    assert!((1..=4).all(|node| cluster.orders.contains(&(name(node), StoreOrder::RemoveJob(job)))), "{:?}", cluster.orders);
}

/// What was given for a job brings its ranks back in the epoch in which the job was suspended only, for a home that misses one of
/// them.
#[test]
fn what_was_given_for_an_epoch_that_is_over_brings_nothing_back() {
    let mut cluster = Cluster::new(3);
    let (job, now) = (JobId::from_bits(7), cluster.now);
    let placement = Placement { nodes: vec![id(1), id(3)], rank_nodes: vec![0, 1, 0] };
    let ward = Ward { epoch: Epoch::FIRST, spec: spec(3), placement, fence: 2, keys: Vec::new() };
    let incarnations = vec![Incarnation::restarted(1); 3];
    let ranks = incarnations.iter().map(|incarnation| (*incarnation, [10, 0, 0, 9].into())).collect();
    let gift = Gift { job, ward, protectors: vec![id(2), id(1)], ranks };
    let node = cluster.nodes.get_mut(&name(2)).expect("it is there");
    assert!(node.handle_given(&id(1), &gift).is_err(), "no command has said that it would give anything");
    assert_eq!(node.revive(&id(1), &Revival { job, protection: never(), life: 1, incarnations }), Ok(()));
    assert!(node.handle_given(&id(3), &gift).is_err(), "that is another node's command");
    assert_eq!(node.handle_given(&id(1), &gift), Ok(()));
    assert!(!node.knows(job));
    let missed = [Rank(0), Rank(1)];
    assert_eq!(node.answer_lost(now, &id(1), job, epoch(1), &missed), Answer::Lost(Vec::new()));
    let anew = node.with_life(PeerMessage::ToStore(job, ToStore::Anew(epoch(1))));
    node.hear(now, &id(1), anew);
    assert_eq!(node.answer_lost(now, &id(1), job, Epoch::FIRST, &missed), Answer::Lost(Vec::new()));
    assert_eq!(node.handle_given(&id(1), &gift), Ok(()), "the same again, as if the job had not restarted");
    assert_eq!(node.answer_lost(now, &id(1), job, Epoch::FIRST, &missed[1..]), Answer::Lost(Vec::new()));
    assert!(!node.knows(job));
    assert_eq!(node.answer_lost(now, &id(1), job, Epoch::FIRST, &missed), Answer::Lost(vec![Rank(0)]));
    let wards = &node.recovery.wards[&job];
    assert_eq!((wards.ward.fence, wards.ranks.keys().copied().collect::<Vec<_>>()), (2, vec![Rank(0), Rank(2)]));
    assert!(wards.ranks.values().all(|protected| protected.incarnation == Incarnation::restarted(2)));
    assert_eq!(node.answer_lost(now, &id(1), job, Epoch::FIRST, &missed), Answer::Lost(vec![Rank(0)]));
    assert!(node.recovery.wards[&job].ranks.values().all(|protected| protected.incarnation == Incarnation::restarted(2)));
}

/// A node where ranks are to go on is lost while the command gives to log services what they are to have. The command is told, and they forget that.
#[test]
fn a_job_whose_next_node_is_lost_already_does_not_go_on() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(4, 3);
    let suspension = cluster.suspend_and_end(4, 7, job);
    assert!(cluster.begin_to_resume(4, 8, &suspension));
    let Some(Client::Resuming { suspension, .. }) = cluster.nodes[&name(4)].clients.get(&ClientId(8)) else { panic!("it waits") };
    let nodes = suspension.ward.placement.nodes.clone();
    let lost = (1..4).find(|node| nodes.contains(&id(*node))).expect("three ranks are not all on one node");
    cluster.kill_all(&[lost]);
    cluster.run_until(|c| c.nodes[&name(4)].view().is_some_and(|view| view.members.len() == 3));
    cluster.orders.clear();
    cluster.ask(4, 8, Request::BeginResumed);
    cluster.run_until(|c| !matches!(c.replies(8).last(), Some(Reply::Resuming(_))));
    cluster.run_for(LATENCY * 2);
    let told = cluster.replies(8).last();
    assert!(matches!(told, Some(Reply::Error(why)) if why.contains("was lost meanwhile; it can be resumed again")), "{told:?}");
    let forget = (1..=4).filter(|node| *node != lost);
    assert!(
        forget.into_iter().all(|node| cluster.orders.contains(&(name(node), StoreOrder::RemoveJob(job)))),
        "{:?}",
        cluster.orders
    );
}

/// The word of a command that has given up comes when another one resumes the job: it would take what the other one has given to the protectors.
#[test]
fn a_late_word_of_another_resumption_takes_nothing() {
    let mut cluster = Cluster::new(3);
    let (job, incarnations) = (JobId::from_bits(7), vec![Incarnation::restarted(1); 2]);
    let node = cluster.nodes.get_mut(&name(2)).expect("it is there");
    let lives = [node.next_life(job, 0), node.next_life(job, 0)];
    assert_eq!(lives.map(|life| life >> 32), [1, 1], "neither command knows of the other");
    let (earlier, later) = (lives[0].min(lives[1]), lives[0].max(lives[1]));
    let revival = |life| Revival { job, protection: never(), life, incarnations: incarnations.clone() };
    assert_eq!(node.revive(&id(1), &revival(later)), Ok(()));
    assert!(node.revive(&id(1), &revival(earlier)).is_err());
    assert!(node.next_life(job, 0) > later);
}

/// The command has what the ranks have printed and no terminal has. Hosts keep it until they hear that the job ends: were the home and the command lost between
/// the two, the job would go on without it.
#[test]
fn what_a_suspended_job_has_printed_is_kept_until_its_ranks_end() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(4, 3);
    cluster.post(&name(4), Input::ClientGone(ClientId(1)));
    cluster.run_for(LATENCY * 4);
    cluster.print(at(job, 1), b"one");
    cluster.run_for(LATENCY * 4);
    cluster.suspend(1, 7, job);
    let now = cluster.now;
    let home = cluster.nodes.get_mut(&name(1)).expect("it is there");
    home.handle(now, Input::Client(ClientId(7), Request::EndSuspended));
    let told: Vec<_> = std::iter::from_fn(|| home.poll_output())
        .filter_map(|output| match output {
            Output::Send(to, PeerMessage::ToHost(_, message)) if to.id == id(2) => Some(message),
            _ => None,
        })
        .collect();
    assert!(matches!(told[..], [ToHost::End { kill: true, written: true, .. }]), "{told:?}");
    let end = PeerMessage::ToHost(job, told[0].clone());
    let end = cluster.nodes[&name(1)].with_life(end);
    cluster.post(&name(2), Input::Message(id(1), end));
    // It waits for no word that its output was taken.
    cluster.run_until(|c| !c.nodes[&name(2)].hosts.contains_key(&job));
}

/// A job that was resumed ends because a protector is lost that was to bring a rank back, and another rank's order is under way.
/// What is kept for that rank is not let go of: its program would be given other bytes.
#[test]
fn a_rank_that_an_order_may_still_bring_back_has_not_left() {
    let placement = Placement { nodes: vec![id(1), id(2)], rank_nodes: vec![0, 1] };
    let spec = JobSpec { protection: never(), ..spec(2) };
    let ward = Ward { epoch: Epoch::FIRST, spec, placement, fence: 0, keys: Vec::new() };
    let (job, origins) = (JobId::from_bits(1), vec![[10, 0, 0, 1].into(); 2]);
    let suspension = Suspension { job, ward, started_ms: 0, origins, output: vec![[0, 0]; 2], line: 0 };
    let protectors = BTreeMap::from([(Rank(0), id(3)), (Rank(1), id(1))]);
    let session = SessionId { node: id(1), number: 1 };
    let mut home = Home::resume(Duration::ZERO, SEAT, &suspension, protectors, session);
    home.handle_protector_lost(&id(3));
    assert!(home.outcome().is_some_and(|outcome| outcome.code == 113));
    let of_host = |said| ToHome::Host { epoch: Epoch::FIRST, said };
    // The host had nothing of the job yet when it was told to end.
    home.handle_message(Duration::ZERO, &id(2), of_host(FromHost::Gone));
    assert!(home.has_ended(Rank(1)) && !home.has_left(Rank(1)));
    home.handle_message(Duration::ZERO, &id(2), of_host(FromHost::Launched { rank: Rank(1), pid: 7 }));
    assert!(!home.has_left(Rank(1)));
}

/// All that a resumed job has done since may be lost, and it restarts from its beginning. Its folder is still there: the event and the terminal say so.
#[test]
fn a_resumed_job_that_restarts_says_that_its_folder_can_be_resumed_again() {
    for life in [0, 1] {
        let spec = JobSpec { protection: never(), life, ..spec(1) };
        let placement = Placement { nodes: vec![id(1)], rank_nodes: vec![0] };
        let ward = Ward { epoch: Epoch::FIRST, spec, placement, fence: 0, keys: Vec::new() };
        let (job, origins) = (JobId::from_bits(1), vec![[10, 0, 0, 1].into()]);
        let suspension = Suspension { job, ward, started_ms: 0, origins, output: vec![[0, 0]], line: 0 };
        let session = SessionId { node: id(2), number: 1 };
        let mut home = Home::resume(Duration::ZERO, SEAT, &suspension, BTreeMap::new(), session);
        let no_image =
            ToHome::NoImage { rank: Rank(0), incarnation: Incarnation::FIRST, why: "it is lost".to_owned(), crash: None };
        home.handle_message(Duration::ZERO, &id(1), no_image);
        let said: Vec<_> = std::iter::from_fn(|| home.poll_output()).collect();
        let is_told = |text: &str| text.contains("its folder can be resumed again");
        let in_event = said.iter().any(|said| matches!(said, home::HomeOutput::Anew(why) if is_told(why)));
        let at_terminal =
            said.iter().any(|said| matches!(said, home::HomeOutput::ToSession(_, ToSession::Notice(text)) if is_told(text)));
        assert_eq!([in_event, at_terminal], [life > 0; 2], "life {life}");
    }
}
