//! Jobs without protection: starting, printing, fences, signals, and what ends them; and messages that come early or late.

use radic_wire::membership::Change;

use super::*;

#[test]
fn a_job_starts_prints_and_ends_on_several_nodes() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start(2, 1, 6);
    let nodes: Vec<_> = cluster.ranks.values().map(|(node, _)| node.to_string()).collect();
    let expected: BTreeSet<_> = nodes.iter().collect();
    assert_eq!((nodes.len(), expected.len()), (6, 4), "six ranks on all four nodes: {nodes:?}");
    cluster.print(at(job, 3), b"hello");
    cluster.exit_all(job);
    cluster.run_until(|c| c.outcome(1).is_some());
    assert_eq!(cluster.outcome(1).unwrap(), Outcome { code: 0, reason: EndReason::Finished });
    assert_eq!(cluster.printed(1), b"hello");
    assert!(cluster.nothing_left());
}

#[test]
fn the_first_failure_decides_and_ends_the_others() {
    let mut cluster = Cluster::new(3);
    cluster.ignore_sigterm = true;
    let job = cluster.start(1, 1, 3);
    cluster.exit(at(job, 1), ExitStatus::Code(9));
    let failed_at = cluster.now;
    cluster.run_until(|c| c.outcome(1).is_some());
    let expected =
        EndReason::RankFailed { rank: Rank(1), node: cluster.ranks[&at(job, 1)].0.clone(), status: ExitStatus::Code(9) };
    assert_eq!(cluster.outcome(1).unwrap(), Outcome { code: 9, reason: expected });
    assert!(cluster.now - failed_at >= Duration::from_secs(2), "SIGKILL came before the time of grace");
    assert!(cluster.ranks[&at(job, 0)].1.signals.starts_with(&[libc::SIGTERM, libc::SIGCONT, libc::SIGKILL]));
    assert!(cluster.nothing_left());
}

/// Rank 0 fails, and the process of rank 1 does not end, although it is killed: the terminal hears so, and then how the job has ended.
#[test]
fn a_process_that_the_kernel_keeps_does_not_keep_its_job() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start(1, 1, 3);
    cluster.unkillable = Some(at(job, 1));
    cluster.exit(at(job, 0), ExitStatus::Code(9));
    cluster.run_for(Duration::from_secs(20));
    let notices =
        |c: &Cluster| c.replies(1).iter().filter(|r| matches!(r, Reply::Notice(text) if text.contains("has not ended"))).count();
    assert_eq!((notices(&cluster), cluster.outcome(1)), (1, None));
    cluster.run_for(Duration::from_secs(60));
    assert!(matches!(cluster.outcome(1), Some(Outcome { code: 9, reason: EndReason::RankFailed { rank: Rank(0), .. } })));
    assert!(cluster.nothing_left());
    // It ends at last.
    cluster.exit(at(job, 1), ExitStatus::Signal(libc::SIGKILL));
    cluster.run_for(Duration::from_secs(1));
}

#[test]
fn what_cannot_start_says_so() {
    let mut cluster = Cluster::new(2);
    cluster.broken = true;
    cluster.start(1, 1, 2);
    let outcome = cluster.outcome(1).unwrap();
    assert!(matches!(outcome, Outcome { code: 127, reason: EndReason::LaunchFailed { .. } }), "{outcome:?}");
    assert!(cluster.nothing_left());
    cluster.hello(1, 2, Request::Run { spec: Box::new(JobSpec { nodes: vec![name(9)], ..spec(1) }), attach: true });
    cluster.hello(1, 3, Request::Run { spec: Box::new(JobSpec { dir: ByteBuf::from("x"), ..spec(1) }), attach: true });
    cluster.run_until(|c| c.replies(2).len() == 2 && c.replies(3).len() == 2);
    for client in [2, 3] {
        assert!(matches!(&cluster.replies(client)[1], Reply::Error(_)));
    }
}

/// Rank 1 of 3 ends without MPI, before or after the others wait in their first fence; with another one on its node, or alone.
#[test]
fn a_rank_that_ends_without_mpi_leaves_no_other_waiting_for_it() {
    for (nodes, is_first) in [(2, true), (2, false), (3, true), (3, false)] {
        let mut cluster = Cluster::new(nodes);
        let job = cluster.start(1, 1, 3);
        if is_first {
            cluster.exit(at(job, 1), ExitStatus::Code(0));
        }
        for rank in [0, 2] {
            cluster.pmi(at(job, rank), "cmd=init pmi_version=1 pmi_subversion=1");
            cluster.pmi(at(job, rank), "cmd=barrier_in");
            cluster.run_for(Duration::from_millis(5));
        }
        if !is_first {
            assert_eq!(cluster.outcome(1), None);
            cluster.exit(at(job, 1), ExitStatus::Code(0));
        }
        cluster.run_until(|c| c.outcome(1).is_some());
        let Outcome { code: 1, reason: EndReason::FenceMissed { rank: Rank(1), waiting, .. } } = cluster.outcome(1).unwrap()
        else {
            panic!("{:?}", cluster.outcome(1));
        };
        assert!(waiting.contains(&Rank(0)) || waiting.contains(&Rank(2)), "{waiting:?}");
        assert!(cluster.nothing_left());
    }
}

#[test]
fn ranks_meet_in_fences_and_see_each_other_s_keys() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start(1, 1, 3);
    let kvs = cluster.nodes[&name(1)].hosts[&job].kvsname();
    for rank in 0..3 {
        cluster.pmi(at(job, rank), "cmd=init pmi_version=1 pmi_subversion=1");
        cluster.run_for(Duration::from_millis(5));
        cluster.pmi(at(job, rank), &format!("cmd=put kvsname={kvs} key=k{rank} value=v{rank}"));
        cluster.run_for(Duration::from_millis(5));
        assert!(!cluster.ranks[&at(job, 0)].1.answers.contains("barrier_out"));
        cluster.pmi(at(job, rank), "cmd=barrier_in");
        cluster.run_for(Duration::from_millis(5));
    }
    for rank in 0..3 {
        cluster.pmi(at(job, rank), &format!("cmd=get kvsname={kvs} key=k{}", (rank + 1) % 3));
        cluster.run_for(Duration::from_millis(5));
        let answers = &cluster.ranks[&at(job, rank)].1.answers;
        assert!(answers.contains("cmd=barrier_out"), "{answers}");
        assert!(answers.contains(&format!("value=v{}", (rank + 1) % 3)), "{answers}");
    }
    // A rank that ends within MPI would leave the others waiting forever.
    cluster.exit(at(job, 2), ExitStatus::Code(0));
    cluster.run_until(|c| c.outcome(1).is_some());
    assert!(matches!(cluster.outcome(1).unwrap(), Outcome { code: 1, reason: EndReason::NotFinalized { rank: Rank(2), .. } }));
}

#[test]
fn an_abort_passes_its_code_on_and_never_looks_like_success() {
    for (given, shown) in [(7, 7), (0, 1), (256, 1)] {
        let mut cluster = Cluster::new(2);
        let job = cluster.start(1, 1, 2);
        cluster.pmi(at(job, 1), "cmd=init pmi_version=1 pmi_subversion=1");
        cluster.run_for(Duration::from_millis(5));
        cluster.pmi(at(job, 1), &format!("cmd=abort exitcode={given}"));
        cluster.run_until(|c| c.outcome(1).is_some());
        let outcome = cluster.outcome(1).unwrap();
        assert_eq!(outcome.code, shown);
        assert!(matches!(outcome.reason, EndReason::Aborted { rank: Rank(1), code, .. } if code == given));
    }
}

#[test]
fn a_published_name_is_found_from_every_node_and_taken_back_only_by_its_job() {
    let mut cluster = Cluster::new(3);
    let (one, two) = (cluster.start(1, 1, 3), cluster.start(2, 2, 3));
    for (job, rank) in [(one, 1), (two, 2), (two, 0)] {
        cluster.pmi(at(job, rank), "cmd=init pmi_version=1 pmi_subversion=1");
    }
    let mut ask = |job, rank, line: &str| {
        cluster.run_for(Duration::from_millis(5));
        cluster.ranks.get_mut(&at(job, rank)).unwrap().1.answers.clear();
        cluster.pmi(at(job, rank), line);
        cluster.run_for(Duration::from_millis(5));
        cluster.ranks[&at(job, rank)].1.answers.clone()
    };
    assert!(ask(one, 1, "cmd=publish_name service=s port=p1").contains("rc=0"));
    assert!(ask(two, 2, "cmd=lookup_name service=s").contains("port=p1"));
    assert!(!ask(two, 2, "cmd=publish_name service=s port=p2").contains("rc=0"), "a name was published twice");
    assert!(!ask(two, 0, "cmd=unpublish_name service=s").contains("rc=0"), "another job took the name back");
    assert!(ask(one, 1, "cmd=unpublish_name service=s").contains("rc=0"));
    assert!(!ask(two, 0, "cmd=lookup_name service=s").contains("rc=0"));
}

#[test]
fn a_node_s_death_ends_its_jobs_within_the_detection_time_and_no_other() {
    let mut cluster = Cluster::new(5);
    let job = cluster.start(1, 1, 4);
    cluster.hello(5, 2, Request::Run { spec: Box::new(JobSpec { nodes: vec![name(5)], ..spec(1) }), attach: true });
    cluster.run_until(|c| c.ranks.len() == 5);
    let victim = cluster.ranks[&at(job, 2)].0.clone();
    let died_at = cluster.now;
    cluster.dead.insert(victim.clone()); // Silently: no connection breaks.
    cluster.run_until(|c| c.outcome(1).is_some());
    assert!(cluster.now - died_at < Duration::from_millis(1500), "{:?}", cluster.now - died_at);
    match cluster.outcome(1).unwrap() {
        Outcome { code: 113, reason: EndReason::NodeLost { node, ranks, .. } } => {
            assert_eq!((node, ranks), (victim, vec![Rank(2)]))
        }
        other => panic!("{other:?}"),
    }
    cluster.run_for(Duration::from_secs(5));
    assert!(cluster.outcome(2).is_none(), "a job without a rank on the dead node ended");
    assert_eq!(cluster.nodes[&name(5)].hosts.len(), 1);
}

#[test]
fn the_death_of_the_home_ends_the_job_everywhere() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start(2, 1, 4);
    let home = cluster.ranks[&at(job, 0)].0.clone();
    assert_ne!(home, name(2));
    cluster.print(at(job, 1), b"x");
    cluster.kill(&home);
    cluster.run_until(|c| c.outcome(1).is_some() && c.nothing_left());
    assert!(matches!(cluster.outcome(1).unwrap().reason, EndReason::NodeLost { node, .. } if node == home));
}

#[test]
fn a_terminal_may_die_and_another_take_over() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start(1, 1, 2);
    cluster.print(at(job, 0), b"one ");
    cluster.run_for(Duration::from_millis(10));
    cluster.ask(1, 1, Request::Printed(2));
    cluster.post(&name(1), Input::ClientGone(ClientId(1)));
    cluster.print(at(job, 1), b"two ");
    cluster.run_for(Duration::from_millis(10));
    // What the dead terminal had not printed comes again, then what came since.
    cluster.hello(3, 2, Request::Attach { job: job.to_string()[..4].to_owned() });
    cluster.run_for(Duration::from_millis(10));
    assert_eq!(cluster.printed(2), b"e two ");
    let attached = cluster.replies(2).iter().find(|r| matches!(r, Reply::Attached { consumed: 2, dropped: 0, .. }));
    assert!(attached.is_some(), "a terminal must learn what was printed before");
    cluster.hello(2, 3, Request::Attach { job: job.to_string() });
    cluster.run_for(Duration::from_millis(10));
    assert_eq!(cluster.replies(2).last(), Some(&Reply::TakenOver));
    cluster.exit_all(job);
    cluster.run_until(|c| c.outcome(3).is_some());
    // Long after the end, another one still sees how it ended.
    cluster.hello(1, 4, Request::Attach { job: job.to_string() });
    cluster.run_until(|c| c.outcome(4).is_some());
    cluster.hello(1, 5, Request::Attach { job: "ffffffffffff".into() });
    cluster.run_until(|c| matches!(c.replies(5).last(), Some(Reply::Error(_))));
}

/// The terminal would show nothing, and take input and output for itself.
#[test]
fn a_terminal_that_is_gone_before_its_job_is_found_takes_nothing_over() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start(1, 1, 2);
    cluster.hello(3, 2, Request::Attach { job: job.to_string() });
    cluster.post(&name(3), Input::ClientGone(ClientId(2)));
    cluster.run_for(Duration::from_secs(2));
    cluster.print(at(job, 0), b"one");
    cluster.run_for(Duration::from_millis(10));
    assert_eq!(cluster.printed(1), b"one");
    assert!(!cluster.replies(1).contains(&Reply::TakenOver));
}

#[test]
fn the_death_of_the_terminal_s_node_leaves_the_job_alone() {
    let mut cluster = Cluster::new(3);
    let spec = JobSpec { nodes: vec![name(1), name(2)], ..spec(2) };
    cluster.hello(3, 1, Request::Run { spec: Box::new(spec), attach: true });
    cluster.run_until(|c| c.ranks.len() == 2);
    let job = cluster.ranks.keys().next().unwrap().job;
    cluster.kill(&name(3));
    for _ in 0..30 {
        cluster.print(at(job, 1), &vec![7; limits::CHUNK]);
    }
    cluster.run_for(Duration::from_secs(2));
    assert!(cluster.ranks[&at(job, 1)].1.output[&OutputStream::Stdout].is_empty(), "the rank is held back for a dead terminal");
    cluster.hello(2, 2, Request::Attach { job: job.to_string() });
    cluster.run_for(Duration::from_millis(10));
    cluster.exit_all(job);
    cluster.ask(2, 2, Request::Printed(limits::OUTPUT_WINDOW as u64 * 2));
    cluster.run_for(Duration::from_millis(10));
    cluster.ask(2, 2, Request::Printed(limits::OUTPUT_WINDOW as u64 * 2));
    cluster.run_until(|c| c.outcome(2).is_some());
    assert_eq!((cluster.outcome(2).unwrap().code, cluster.printed(2).len()), (0, 30 * limits::CHUNK));
}

#[test]
fn output_without_a_terminal_is_kept_up_to_a_limit_and_the_loss_is_told() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start(1, 1, 2);
    cluster.post(&name(1), Input::ClientGone(ClientId(1)));
    let pieces = limits::OUTPUT_BACKLOG / limits::CHUNK + 10;
    for piece in 0..pieces {
        cluster.print(at(job, 0), &vec![(piece % 251) as u8; limits::CHUNK]);
    }
    cluster.run_for(Duration::from_millis(200));
    cluster.hello(1, 2, Request::Attach { job: job.to_string() });
    cluster.run_for(Duration::from_millis(50));
    let dropped =
        cluster.replies(2).iter().find_map(|r| if let Reply::Attached { dropped, .. } = r { Some(*dropped) } else { None });
    let dropped = dropped.unwrap() as usize;
    assert!((10 * limits::CHUNK..=12 * limits::CHUNK).contains(&dropped), "{dropped}");
    assert_eq!(cluster.printed(2)[0], (dropped / limits::CHUNK % 251) as u8, "the oldest goes first");
}

#[test]
fn a_slow_terminal_holds_the_ranks_back() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start(1, 1, 2);
    for _ in 0..100 {
        cluster.print(at(job, 1), &vec![7; limits::CHUNK]);
    }
    cluster.run_for(Duration::from_millis(100));
    let printed = cluster.printed(1).len();
    assert!((limits::OUTPUT_WINDOW..limits::OUTPUT_WINDOW + limits::CHUNK).contains(&printed), "{printed}");
    assert!(cluster.ranks[&at(job, 1)].1.output[&OutputStream::Stdout].len() > 80, "pieces left the rank without being taken");
    // An end is told only after everything was printed.
    cluster.exit_all(job);
    cluster.run_for(Duration::from_secs(10));
    assert!(cluster.outcome(1).is_none());
    let mut acknowledged = 0;
    while cluster.outcome(1).is_none() {
        let printed = cluster.printed(1).len();
        assert!(printed > acknowledged, "neither output nor an end");
        cluster.ask(1, 1, Request::Printed((printed - acknowledged) as u64));
        acknowledged = printed;
        cluster.run_for(Duration::from_millis(10));
    }
    assert_eq!(cluster.printed(1).len(), 100 * limits::CHUNK);
}

#[test]
fn standard_input_reaches_rank_zero_piece_by_piece() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start(2, 1, 2);
    let mut offset = 0;
    for piece in [&b"ab"[..], b"cd", b""] {
        let taken = offset + piece.len() as u64;
        cluster.ask(2, 1, Request::Stdin { offset, data: ByteBuf::from(piece) });
        cluster.run_until(|c| piece.is_empty() || c.replies(1).contains(&Reply::StdinFrom(Some(taken))));
        offset = taken;
    }
    cluster.run_for(Duration::from_millis(5));
    assert_eq!(cluster.ranks[&at(job, 0)].1.stdin, b"abcd");
}

#[test]
fn standard_input_goes_on_from_another_terminal() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start(2, 1, 2);
    cluster.hold_stdin = true;
    cluster.ask(2, 1, Request::Stdin { offset: 0, data: ByteBuf::from("ab") });
    cluster.run_for(Duration::from_millis(5));
    cluster.hello(1, 2, Request::Attach { job: job.to_string() });
    cluster.run_for(Duration::from_millis(5));
    cluster.ask(1, 2, Request::Stdin { offset: 2, data: ByteBuf::from("cd") });
    cluster.run_for(Duration::from_millis(5));
    assert_eq!(cluster.ranks[&at(job, 0)].1.stdin, b"ab", "a second piece was sent before the first was taken");
    cluster.hold_stdin = false;
    let node = cluster.ranks[&at(job, 0)].0.clone();
    cluster.post(&node, Input::StdinTaken(job, 1));
    cluster.run_until(|c| c.replies(2).contains(&Reply::StdinFrom(Some(4))));
    assert_eq!(cluster.ranks[&at(job, 0)].1.stdin, b"abcd");
}

#[test]
fn signals_and_kills_reach_every_rank() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start(1, 1, 3);
    cluster.ask(1, 1, Request::Ping);
    cluster.run_until(|c| c.replies(1).last() == Some(&Reply::Pong));
    cluster.ask(1, 1, Request::Signal(libc::SIGUSR1));
    cluster.run_until(|c| c.ranks.values().all(|(_, r)| r.signals == [libc::SIGUSR1]));
    cluster.hello(3, 2, Request::Kill { job: job.to_string() });
    cluster.run_until(|c| c.replies(2).last() == Some(&Reply::Done) && c.outcome(1).is_some());
    assert_eq!(cluster.outcome(1).unwrap(), Outcome { code: 137, reason: EndReason::Killed });
    assert!(cluster.nothing_left());
}

#[test]
fn status_and_events_come_from_every_node() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start(1, 1, 3);
    cluster.hello(2, 2, Request::Status);
    cluster.hello(2, 3, Request::Events { follow: true });
    cluster.run_for(Duration::from_millis(10));
    let Some(Reply::Status(status)) = cluster.replies(2).last() else { panic!("{:?}", cluster.replies(2)) };
    assert_eq!(status.nodes.iter().map(|n| n.ranks.len()).collect::<Vec<_>>(), [1, 1, 1]);
    assert!(status.nodes.iter().all(|n| n.state == NodeState::Alive && n.protector.is_some()));
    assert_eq!((status.jobs.len(), status.jobs[0].job, status.jobs[0].running), (1, job, 3));
    cluster.kill(&name(3));
    cluster.run_for(Duration::from_secs(2));
    let of = |r: &Reply| if let Reply::Events(events) = r { events.clone() } else { vec![] };
    let events: Vec<_> = cluster.replies(3).iter().flat_map(of).collect();
    for wanted in [EventName::Start, EventName::View, EventName::RankStart, EventName::Suspect, EventName::Confirm] {
        assert!(events.iter().any(|e| e.event == wanted), "no {wanted:?}");
    }
    let mut seen = BTreeSet::new();
    assert!(events.iter().all(|e| seen.insert((e.node.clone(), e.seq))), "an event came twice");
    cluster.hello(1, 4, Request::Status);
    cluster.run_for(Duration::from_millis(10));
    let Some(Reply::Status(status)) = cluster.replies(4).last() else { panic!("{:?}", cluster.replies(4)) };
    assert_eq!(status.nodes.iter().map(|n| n.state).collect::<Vec<_>>(), [NodeState::Alive, NodeState::Alive, NodeState::Dead]);
}

#[test]
fn what_a_new_member_says_before_its_view_has_come_is_heard_when_it_has() {
    let mut cluster = Cluster::new(3);
    let job = JobId::from_bits(7);
    for message in [launch(4, job), PeerMessage::Unsubscribe, PeerMessage::Subscribe] {
        cluster.post(&name(2), Input::Message(id(4), message));
    }
    cluster.run_for(Duration::from_secs(1));
    assert!(cluster.ranks.is_empty(), "a job was started for a node that is no member");
    cluster.add(4);
    cluster.run_until(|c| c.ranks.get(&at(job, 1)).is_some_and(|(node, _)| *node == name(2)));
    assert!(cluster.nodes[&name(2)].subscribers.contains(&id(4)), "not in the order in which it was said");
}

#[test]
fn what_a_departed_member_says_is_dropped() {
    let mut cluster = Cluster::new(4);
    cluster.kill(&name(4));
    cluster.run_until(|c| c.nodes[&name(2)].view().is_some_and(|view| view.members.len() == 3));
    cluster.post(&name(2), Input::Message(id(4), launch(4, JobId::from_bits(7))));
    cluster.run_for(Duration::from_millis(10));
    // This node has not heard of the job while it was a member: its view came and went.
    cluster.post(&name(2), Input::Message(id(5), launch(5, JobId::from_bits(8))));
    cluster.run_for(Duration::from_millis(10));
    let node = cluster.nodes.get_mut(&name(2)).unwrap();
    let view = node.view().unwrap().clone();
    let joiner = Member {
        id: id(5),
        address: ([127, 0, 0, 1], 5).into(),
        data: [127, 0, 0, 1].into(),
        log_port: 1,
        role: Role::Node,
        slots: 2,
    };
    let body = MembershipBody::Steps(vec![vec![Change::Join(joiner)], vec![Change::Dead(id(5))]]);
    let message = MembershipMessage { cluster: Some(view.cluster), view: view.number + 2, body };
    node.handle(cluster.now, Input::Message(id(1), PeerMessage::Membership(message)));
    assert_eq!(node.early.take(), []);
    let refused = texts(&cluster, 2, EventName::Refused);
    assert!(refused.len() == 1 && refused[0].starts_with("1 messages"), "{refused:?}");
    assert!(cluster.ranks.is_empty());
}

#[test]
fn what_waits_for_a_view_is_bounded() {
    let small = || PeerMessage::Subscribe;
    let large =
        || PeerMessage::ToHost(JobId::from_bits(7), ToHost::Stdin { number: 1, data: ByteBuf::from(vec![7; limits::CHUNK]) });
    for (message, most) in [(small as fn() -> PeerMessage, 1024), (large, limits::PEER_FRAME / limits::CHUNK)] {
        let mut cluster = Cluster::new(2);
        for _ in 0..most + 5 {
            cluster.post(&name(1), Input::Message(id(3), message()));
        }
        cluster.run_for(Duration::from_millis(10));
        let dropped = texts(&cluster, 1, EventName::Limit);
        assert_eq!(dropped.len(), 1, "said once: {dropped:?}");
        let kept = cluster.nodes.get_mut(&name(1)).unwrap().early.take().len();
        assert!((most - 1..=most).contains(&kept), "{kept} of at most {most} messages");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever the terminal does, in whatever order ranks print and end: every byte is shown once, in order, and the job ends.
    #[test]
    fn output_is_shown_once_in_order(steps in prop::collection::vec((0u8..5, 0u32..3, 1usize..20_000), 1..60)) {
        let mut cluster = Cluster::new(3);
        let job = cluster.start(1, 1, 3);
        let (mut terminal, mut acknowledged) = (1, 0);
        let (mut expected, mut shown) = (BTreeMap::<u32, Vec<u8>>::new(), BTreeMap::<u32, Vec<u8>>::new());
        let mut counter = 0u32;
        let show = |cluster: &Cluster, terminal: u64, upto: usize, shown: &mut BTreeMap<u32, Vec<u8>>| {
            let mut left = upto;
            for reply in cluster.replies(terminal) {
                // An empty piece says that no more comes.
                if let Reply::Output { rank, data, .. } = reply
                    && !data.is_empty()
                {
                    let take = left.min(data.len());
                    shown.entry(rank.0).or_default().extend_from_slice(&data[..take]);
                    left -= take;
                }
            }
        };
        for (what, rank, size) in steps {
            match what {
                0..=2 => {
                    let size = size.min(limits::CHUNK);
                    let bytes: Vec<u8> = (0..size).map(|_| { counter += 1; (counter % 251) as u8 }).collect();
                    expected.entry(rank).or_default().extend_from_slice(&bytes);
                    cluster.print(at(job, rank), &bytes);
                }
                3 => {
                    let printed = cluster.printed(terminal).len();
                    let more = size.min(printed - acknowledged);
                    acknowledged += more;
                    cluster.ask(1, terminal, Request::Printed(more as u64));
                }
                _ => {
                    // The terminal dies having printed what it said; a new one attaches.
                    cluster.run_for(Duration::from_millis(2));
                    show(&cluster, terminal, acknowledged, &mut shown);
                    cluster.post(&name(1), Input::ClientGone(ClientId(terminal)));
                    terminal += 1;
                    acknowledged = 0;
                    cluster.hello(1, terminal, Request::Attach { job: job.to_string() });
                }
            }
            cluster.run_for(Duration::from_millis(2));
        }
        cluster.exit_all(job);
        for _ in 0..400 {
            if cluster.outcome(terminal).is_some() {
                break;
            }
            let printed = cluster.printed(terminal).len();
            cluster.ask(1, terminal, Request::Printed((printed - acknowledged) as u64));
            acknowledged = printed;
            cluster.run_for(Duration::from_millis(2));
        }
        prop_assert!(cluster.outcome(terminal).is_some());
        show(&cluster, terminal, usize::MAX, &mut shown);
        prop_assert!(shown == expected, "shown and printed differ");
    }
}
