//! Protected processes: joining, connecting, checkpoints, and what their nodes ask for them.

use radic_wire::process::{LogMode, PayloadMode, Room};

use super::*;

#[test]
fn a_rank_joins_and_its_children_do_not() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(2, never());
    let key = JobKey::derive(&ClusterKey::from_bytes([1; 32]), job);
    let FromNode::Joined { incarnation, key: told, protector, protection, inherited, .. } = cluster.told(0)[0].clone() else {
        panic!("no")
    };
    let due = Protection { outbox: Some(64 << 20), ..never() };
    assert_eq!((incarnation, told, protection, inherited), (Incarnation::FIRST, key, due, false));
    assert_eq!(protector, "10.0.0.2:102".parse().unwrap(), "the log service of the next node");
    let n1 = name(1);
    for (number, pid, message) in [
        (10, 4444, join(job, 0)),
        (11, 4445, join(job, 0)),
        (12, 1000, join(JobId::from_bits(9), 0)),
        (13, 1000, ToNode::Join { version: 99, process: at(job, 0) }),
    ] {
        cluster.post(&n1, Input::Observer(ObserverId(number), pid, message));
    }
    cluster.post(&n1, Input::Observer(ObserverId(14), 1000, ToNode::Initialized));
    cluster.run_until(|c| c.closed.len() == 5);
    for number in 10..14 {
        assert!(matches!(cluster.told[&ObserverId(number)][..], [FromNode::Refused(_)]), "{number}");
    }
    assert!(!cluster.told.contains_key(&ObserverId(14)), "an observer that has not joined is told nothing");
    assert_eq!(cluster.recorded(EventName::Unprotected), 1, "two children, one line");
    let configured = (name(2), StoreOrder::Configure(job, never()));
    assert!(cluster.orders.contains(&configured), "{:?}", cluster.orders);
    cluster.exit_all(job);
    cluster.run_until(|c| c.orders.iter().filter(|(_, order)| *order == StoreOrder::RemoveJob(job)).count() == 3);
}

#[test]
fn a_caller_is_known_to_whom_it_calls_before_it_is_accepted() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(3, never());
    cluster.say(job, 1, ToNode::Listening("0.0.0.0:80".parse().unwrap()));
    cluster.say(job, 0, calling(job, 0, "10.0.0.2:80"));
    cluster.run_until(|c| c.told(0).len() == 2);
    assert_eq!(
        *cluster.last_told(0),
        FromNode::Peer { ask: 3, peer: Some(at(job, 1)), key: None, at: None, later: false, machine: Machine::Member }
    );
    let known = ConnectionId { opener: at(job, 0), number: 7 };
    // Until it is greeted: the first connection may be one that it has given up.
    for expected in [Some(known), Some(known), None] {
        assert_eq!(cluster.caller_of(job, 1), expected);
        if cluster.told(1).len() == 3 {
            cluster.say(job, 1, ToNode::Greeted(caller(0)));
        }
    }
    assert_eq!(cluster.recorded(EventName::Unprotected), 1, "the last caller was not protected");
    // Its own node's loopback, another node's wildcard, and a port without a listener.
    cluster.say(job, 0, calling(job, 0, "127.0.0.1:80"));
    cluster.say(job, 2, calling(job, 2, "192.168.0.1:80"));
    cluster.run_until(|c| c.told(0).len() == 3 && c.told(2).len() == 2);
    assert_eq!(
        *cluster.last_told(0),
        FromNode::Peer { ask: 3, peer: None, key: None, at: None, later: false, machine: Machine::Member }
    );
    assert_eq!(
        *cluster.last_told(2),
        FromNode::Peer { ask: 3, peer: None, key: None, at: None, later: false, machine: Machine::Foreign }
    );
    // Listeners go with their process.
    cluster.exit(at(job, 1), ExitStatus::Code(0));
    cluster.say(job, 0, calling(job, 0, "10.0.0.2:80"));
    cluster.run_until(|c| c.told(0).len() == 4);
    assert_eq!(
        *cluster.last_told(0),
        FromNode::Peer { ask: 3, peer: None, key: None, at: None, later: false, machine: Machine::Member }
    );
}

#[test]
fn a_caller_without_a_listener_is_known_later_and_told_to_wait_while_a_listener_is_announced() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(3, never());
    let address = "10.0.0.2:80".parse().unwrap();
    let call = |cluster: &mut Cluster| {
        let before = cluster.told(0).len();
        cluster.say(job, 0, calling(job, 0, "10.0.0.2:80"));
        cluster.run_until(|c| c.told(0).len() > before);
        let FromNode::Peer { peer, later, .. } = *cluster.last_told(0) else { panic!("{:?}", cluster.last_told(0)) };
        (peer, later)
    };
    assert_eq!(call(&mut cluster), (None, false), "no listener");
    cluster.say(job, 1, ToNode::WillListen { ask: 5, address });
    cluster.run_until(|c| *c.last_told(1) == FromNode::Announced { ask: 5 });
    assert_eq!(call(&mut cluster), (None, true), "it is about to listen");
    cluster.say(job, 1, ToNode::NotListening(address));
    assert_eq!(call(&mut cluster), (None, false), "it could not");
    cluster.say(job, 1, ToNode::WillListen { ask: 6, address });
    cluster.say(job, 1, ToNode::Listening(address));
    let known = Some(ConnectionId { opener: at(job, 0), number: 7 });
    assert_eq!(cluster.caller_of(job, 1), known, "the caller that found no listener a moment ago");
    assert_eq!(call(&mut cluster), (Some(at(job, 1)), false));
    assert_eq!(cluster.recorded(EventName::Unprotected), 0);
    // A call that no protected process answers is no longer expected.
    let connection = ConnectionId { opener: at(job, 0), number: 7 };
    cluster.say(job, 0, ToNode::CallsNobody { connection, from: caller(0), to: address, made: false });
    cluster.run_for(Duration::from_millis(10));
    assert_eq!(cluster.caller_of(job, 1), None);
    assert_eq!(cluster.recorded(EventName::Unprotected), 1, "of the process that was called; the call itself was not made");
    cluster.say(job, 0, ToNode::CallsNobody { connection, from: caller(0), to: address, made: true });
    cluster.run_until(|c| c.recorded(EventName::Unprotected) == 2);
}

#[test]
fn a_node_that_does_not_answer_is_asked_again_and_its_late_answer_takes_nothing_back() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(3, never());
    cluster.say(job, 1, ToNode::Listening("10.0.0.2:80".parse().unwrap()));
    cluster.run_for(Duration::from_millis(10));
    cluster.deaf = Some(name(2));
    cluster.say(job, 0, calling(job, 0, "10.0.0.2:80"));
    cluster.run_for(Duration::from_secs(4));
    assert_eq!(cluster.told(0).len(), 1, "it may still say that a process listens");
    cluster.run_for(Duration::from_secs(2));
    assert_eq!(
        *cluster.last_told(0),
        FromNode::Peer { ask: 3, peer: None, key: None, at: None, later: true, machine: Machine::Member }
    );
    assert_eq!(cluster.recorded(EventName::Limit), 1);
    cluster.deaf = None;
    cluster.say(job, 0, calling(job, 0, "10.0.0.2:80"));
    cluster.run_for(Duration::from_millis(10));
    let peer = Some(at(job, 1));
    assert_eq!(
        *cluster.last_told(0),
        FromNode::Peer { ask: 3, peer, key: None, at: None, later: false, machine: Machine::Member }
    );
    let connection = cluster.caller_of(job, 1);
    assert!(connection.is_some());
    for query in std::mem::take(&mut cluster.unheard) {
        cluster.post(&name(2), query);
    }
    cluster.run_for(Duration::from_millis(10));
    assert_eq!(cluster.caller_of(job, 1), connection, "the answer to the first question came late");
}

impl Cluster {
    /// The nodes whose log services were to forget a process, in this order.
    pub(super) fn forgotten_at(&self, process: ProcessId) -> Vec<String> {
        let forgets = |order: &StoreOrder| matches!(order, StoreOrder::ForgetProcess(_, _, of) if *of == process);
        self.orders.iter().filter(|(_, order)| forgets(order)).map(|(node, _)| node.to_string()).collect()
    }
}

#[test]
fn a_process_that_executes_another_program_restarts() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(1, Protection { replicas: 2, ..never() });
    cluster.say(job, 0, ToNode::Listening("10.0.0.1:80".parse().unwrap()));
    cluster.post(&name(1), Input::Observer(ObserverId(50), 1000, join(job, 0)));
    cluster.run_until(|c| c.told.contains_key(&ObserverId(50)));
    assert!(matches!(cluster.told[&ObserverId(50)][..], [FromNode::Joined { .. }]));
    assert_eq!(cluster.forgotten_at(at(job, 0)), ["n2", "n3"], "the protector, then its replica");
    cluster.post(&name(1), Input::Observer(ObserverId(50), 1000, ToNode::Listening("10.0.0.1:81".parse().unwrap())));
    // A question on the old connection is not left to wait for an answer that never comes.
    let told = cluster.told(0).len();
    cluster.say(job, 0, ToNode::Accepted { ask: 4, from: caller(2) });
    cluster.run_until(|c| c.closed.contains(&observer(0)));
    assert_eq!(cluster.told(0).len(), told);
    // The end of the old connection, which may be seen late, takes nothing from the new one.
    cluster.post(&name(1), Input::ObserverGone(observer(0)));
    for (to, peer) in [("10.0.0.1:80", None), ("10.0.0.1:81", Some(at(job, 0)))] {
        let before = cluster.told[&ObserverId(50)].len();
        cluster.post(&name(1), Input::Observer(ObserverId(50), 1000, calling(job, 0, to)));
        cluster.run_until(|c| c.told[&ObserverId(50)].len() > before);
        assert_eq!(
            cluster.told[&ObserverId(50)].last(),
            Some(&FromNode::Peer { ask: 3, peer, key: None, at: None, later: false, machine: Machine::Member }),
            "{to}"
        );
    }
}

/// A program that was asked for its image of a recovery line is replaced by another one, which was not asked. The line is given
/// up at once, and the next one is asked of the new program: the reminder for those that were not there comes after two seconds,
/// and until then the process would go back to before its new program.
#[test]
fn a_line_that_was_asked_of_a_replaced_program_is_given_up_at_once() {
    for is_gone_first in [false, true] {
        let mut cluster = Cluster::new(3);
        let job = cluster.start_protected(2, never());
        let (now, node) = (cluster.now, cluster.nodes.get_mut(&name(2)).expect("it is up"));
        let make = ToHost::MakeLine { epoch: Epoch::FIRST, line: 7, ranks: vec![Rank(1)] };
        node.handle_message(now, &id(1), PeerMessage::ToHost(job, make));
        if is_gone_first {
            node.handle(now, Input::ObserverGone(observer(1)));
        }
        node.handle(now, Input::Observer(ObserverId(50), 1001, join(job, 1)));
        let is_asked = |output: &Output| matches!(output, Output::Observer(_, FromNode::Checkpoint { line: Some(7), .. }));
        let failed = PeerMessage::ToHome(job, ToHome::LineFailed { epoch: Epoch::FIRST, line: 7 });
        let outputs: Vec<Output> = std::iter::from_fn(|| node.poll_output()).collect();
        let told = outputs.iter().filter(|output| matches!(output, Output::Send(_, message) if *message == failed)).count();
        assert!(outputs.iter().any(is_asked) && told == 1, "{outputs:?}");
    }
}

/// A process in a call of the kernel that is none of the layer hears only when it is nudged that its image is committed.
#[test]
fn a_process_that_was_asked_for_a_checkpoint_is_nudged_until_it_says_what_became_of_it() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(2, never());
    let process = ProcessId { job, rank: Rank(1) };
    let (mut now, node) = (cluster.now, cluster.nodes.get_mut(&name(2)).expect("it is up"));
    while node.poll_output().is_some() {}
    let asked = node.ask_checkpoint_again(now, process).expect("it is connected");
    let nudges = |node: &mut Node, now| {
        node.handle_schedules(now);
        let is_nudge = |output: &Output| matches!(output, Output::Nudge(of) if *of == observer(1));
        std::iter::from_fn(|| node.poll_output()).filter(is_nudge).count()
    };
    assert_eq!(nudges(node, now), 1, "it was asked");
    for ms in [50, 100, 200, 400, 800, 1000, 1000] {
        let due = now + Duration::from_millis(ms);
        assert_eq!(nudges(node, due - Duration::from_nanos(1)), 0, "{ms}");
        assert_eq!(nudges(node, due), 1, "{ms}");
        now = due;
    }
    node.handle_checkpointed(now, process, asked, Ok(1));
    assert_eq!(nudges(node, now + Duration::from_secs(10)), 0);
}

/// What makes room in an outbox: an image of the receiver that has most of it, or a line. Where a process names one of another job a line does.
#[test]
fn the_receiver_of_most_of_a_full_outbox_is_asked_for_an_image() {
    let mut cluster = Cluster::new(3);
    let sender = Protection { log_mode: LogMode::Causal, payload: PayloadMode::Sender, ..never() };
    let job = cluster.start_protected(3, sender);
    let connection = ConnectionId { opener: at(job, 0), number: 1 };
    let room = |job| Some(Room { receiver: at(job, 1), connection, from: 7 });
    cluster.say(job, 0, ToNode::Pressed(room(job)));
    let asked = FromNode::MakeRoom { connection, from: 7 };
    cluster.run_until(|c| c.told(1).contains(&asked));
    let (now, node) = (cluster.now, cluster.nodes.get_mut(&name(2)).expect("it is up"));
    node.handle(now, Input::Observer(observer(1), 1001, ToNode::Pressed(room(JobId::from_bits(77)))));
    let outputs: Vec<Output> = std::iter::from_fn(|| node.poll_output()).collect();
    let wanted = PeerMessage::ToHome(job, ToHome::LineWanted(Epoch::FIRST));
    assert!(outputs.iter().any(|output| matches!(output, Output::Send(_, message) if *message == wanted)), "{outputs:?}");
}

#[test]
fn offsets_and_closed_connections_find_their_way() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(3, never());
    let connection = ConnectionId { opener: at(job, 0), number: 1 };
    let stream = StreamId { connection, from_opener: true };
    cluster.say(job, 0, ToNode::AskStable { stream, receiver: at(job, 2) });
    cluster.say(job, 0, ToNode::Forget { connection, peer: at(job, 1), for_good: true });
    cluster.run_until(|c| c.told(0).len() == 2 && c.told(1).len() == 2);
    assert_eq!(*cluster.last_told(0), FromNode::Stable { stream, offset: 77 });
    let asked: Vec<_> = cluster.orders.iter().filter(|(_, o)| matches!(o, StoreOrder::StableOf(..))).collect();
    assert_eq!(asked.len(), 3, "every node that may have its log: {asked:?}");
    assert_eq!(*cluster.last_told(1), FromNode::Forget { connection, for_good: true });
}

/// A late message of an earlier epoch of the job is about a connection that the present epoch does not have. If it counted, bytes
/// would be forgotten that a rank of the present epoch is still to receive.
#[test]
fn what_was_closed_in_an_incarnation_before_is_not_closed_in_this_one() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start_protected(2, never());
    let (connection, process) = (ConnectionId { opener: at(job, 0), number: 1 }, at(job, 1));
    for (epoch, is_told) in [(epoch(1), false), (Epoch::FIRST, true)] {
        let node = cluster.nodes.get_mut(&name(2)).expect("it is up");
        node.handle_message(cluster.now, &id(1), PeerMessage::Forget { connection, process, for_good: true, epoch });
        let outputs: Vec<Output> = std::iter::from_fn(|| node.poll_output()).collect();
        let told = outputs.iter().any(|o| matches!(o, Output::Observer(_, FromNode::Forget { .. })));
        assert_eq!(told, is_told, "{epoch}: {outputs:?}");
    }
}

/// A job may run for months, and make a thousand connections in each second.
#[test]
fn of_connections_that_are_over_nothing_is_kept() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(3, never());
    let streams = [true, false].map(|from_opener| {
        let connection = ConnectionId { opener: at(job, 1), number: 1 };
        StreamId { connection, from_opener }
    });
    let end = StreamEnd { offset: 9, closed: true, received: 4 };
    let ask = |cluster: &mut Cluster, ask, stream| {
        cluster.say(job, 0, ToNode::Ended { ask, stream, sender: at(job, 1) });
        cluster.run_until(|c| matches!(c.told(0).last(), Some(FromNode::Final { ask: of, .. }) if *of == ask));
        let FromNode::Final { end, .. } = *cluster.last_told(0) else { panic!("{:?}", cluster.last_told(0)) };
        end
    };
    let other = StreamId { connection: ConnectionId { opener: at(job, 1), number: 2 }, from_opener: true };
    for stream in [streams[0], streams[1], other] {
        cluster.say(job, 1, ToNode::Finished { stream, end });
    }
    assert_eq!(streams.map(|stream| ask(&mut cluster, 1, stream)), [Some(end); 2]);
    cluster.say(job, 1, ToNode::Over { connection: streams[0].connection });
    assert_eq!(streams.map(|stream| ask(&mut cluster, 2, stream)), [None; 2]);
    assert_eq!(ask(&mut cluster, 3, other), Some(end));
}

#[test]
fn what_a_node_chooses_is_told_once() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start_protected(1, Protection { interval: Interval::Auto, ..Protection::default() });
    cluster.say(job, 0, ToNode::Initialized);
    (0..8).for_each(|_| cluster.run_for(Duration::from_secs(50)));
    assert_eq!(cluster.recorded(EventName::Interval), 1);
    let mut cluster = Cluster::new(2);
    let job = cluster.start_protected(1, Protection { interval: Interval::Every(10_000), ..Protection::default() });
    cluster.say(job, 0, ToNode::Initialized);
    (0..8).for_each(|_| cluster.run_for(Duration::from_secs(50)));
    assert_eq!(cluster.recorded(EventName::Interval), 0, "what the user says is no choice");
}

#[test]
fn checkpoints_come_after_init_then_staggered_then_at_every_interval() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start_protected(2, Protection { interval: Interval::Every(10_000), ..Protection::default() });
    let count = |c: &Cluster, rank| c.told(rank).iter().filter(|m| matches!(m, FromNode::Checkpoint { .. })).count();
    cluster.run_for(Duration::from_secs(5));
    assert_eq!(count(&cluster, 0), 0);
    cluster.say(job, 0, ToNode::Initialized);
    cluster.run_for(Duration::from_millis(10));
    assert_eq!((count(&cluster, 0), count(&cluster, 1), cluster.nudged.len()), (1, 0, 1));
    // Half the interval later by its stagger, but the first is not done: it is only reminded, as it was eight times since it was asked.
    cluster.run_for(Duration::from_millis(5_500));
    assert_eq!((count(&cluster, 0), count(&cluster, 1)), (1, 1), "rank 1 never said that it is initialized");
    assert_eq!(cluster.nudged.iter().filter(|nudged| **nudged == observer(0)).count(), 2 + 8);
    cluster.say(job, 0, ToNode::Checkpointed { request: 1, result: Ok(1) });
    cluster.say(job, 1, ToNode::Checkpointed { request: 1, result: Err("a mapping of /dev/x cannot be saved".into()) });
    cluster.run_for(Duration::from_millis(1_500));
    assert_eq!((count(&cluster, 0), count(&cluster, 1)), (1, 1));
    cluster.run_for(Duration::from_millis(7_500));
    assert_eq!((count(&cluster, 0), count(&cluster, 1)), (1, 2), "a process without any image need not wait for the interval");
    cluster.run_for(Duration::from_millis(1_500));
    assert_eq!((count(&cluster, 0), count(&cluster, 1)), (2, 2));
    assert_eq!(cluster.recorded(EventName::CheckpointFailed), 1);
}

/// That is told once, and only if it lasts.
#[test]
fn a_rank_of_which_no_checkpoint_can_be_made_is_told() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start_protected(1, never());
    let told = |c: &Cluster| c.recorded(EventName::Unprotected);
    let say = |cluster: &mut Cluster, seconds, result: Result<u64, &str>| {
        cluster.run_for(Duration::from_secs(seconds));
        cluster.say(job, 0, ToNode::Checkpointed { request: 1, result: result.map_err(str::to_owned) });
        cluster.run_for(Duration::from_millis(10));
        told(cluster)
    };
    let no = Err("a mapping of /dev/x cannot be saved");
    assert_eq!([say(&mut cluster, 0, no), say(&mut cluster, 20, no)], [0, 0]);
    assert_eq!([say(&mut cluster, 20, Ok(1)), say(&mut cluster, 20, no)], [0, 0], "one was made meanwhile");
    assert_eq!([say(&mut cluster, 20, no), say(&mut cluster, 20, no), say(&mut cluster, 50, no)], [0, 1, 1]);
}

#[test]
fn a_checkpoint_on_request_tells_of_every_rank() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(3, never());
    cluster.exit(at(job, 2), ExitStatus::Code(0));
    // The first one of rank 0 is made already; its end is told when the next is wanted.
    cluster.say(job, 0, ToNode::Initialized);
    cluster.run_for(Duration::from_millis(10));
    let asked = |request| FromNode::Checkpoint { request, line: None };
    cluster.hello(2, 9, Request::Checkpoint { job: job.to_string()[..6].to_owned() });
    cluster.run_until(|c| c.told(0).contains(&asked(2)) && c.told(1).contains(&asked(1)));
    cluster.say(job, 0, ToNode::Checkpointed { request: 1, result: Ok(4) });
    cluster.say(job, 0, ToNode::Checkpointed { request: 2, result: Ok(5) });
    cluster.run_for(Duration::from_secs(30));
    assert_eq!(cluster.replies(9).len(), 1, "rank 1 is not done");
    cluster.say(job, 1, ToNode::Checkpointed { request: 1, result: Err("no".into()) });
    cluster.run_until(|c| c.replies(9).len() == 3);
    let Reply::Checkpoints(done) = &cluster.replies(9)[1] else { panic!("{:?}", cluster.replies(9)) };
    let results: Vec<_> = done.iter().map(|d| (d.rank.0, d.node.to_string(), d.result.clone())).collect();
    assert_eq!(results[0], (0, "n1".to_owned(), Ok(5)));
    assert_eq!(results[1], (1, "n2".to_owned(), Err("no".to_owned())));
    assert!(results[2].2.is_err() && cluster.replies(9)[2] == Reply::Done);
}

#[test]
fn the_library_comes_before_the_user_s_own_and_no_rank_inherits_another_s_socket() {
    let mut cluster = Cluster::new(2);
    let variable = |name: &str, value: &str| (ByteBuf::from(name), ByteBuf::from(value));
    let env = vec![variable("LD_PRELOAD", "/mine.so"), variable("RADIC_PROCESS_SOCKET", "/other")];
    for (client, protect) in [(1, Protect::On), (2, Protect::Off), (3, Protect::None)] {
        let protection = Protection { protect, ..Protection::default() };
        // What answers the rank's MPI library is between the two.
        let templates = vec![("LD_PRELOAD".to_owned(), "{radic_pmix}".to_owned())];
        let spec = JobSpec { protection, env: env.clone(), templates, ..spec(1) };
        cluster.hello(1, client, Request::Run { spec: Box::new(spec), attach: true });
        cluster.run_until(|c| c.ranks.len() == client as usize);
    }
    for (environment, library) in &cluster.launched {
        let value = |name: &str| {
            environment.iter().find(|(n, _)| n.as_ref() == name.as_bytes()).map(|(_, v)| String::from_utf8_lossy(v).into_owned())
        };
        let loaded = library.is_some();
        let preload = if loaded { "/lib/libradic.so:/lib/libradic_pmix.so:/mine.so" } else { "/lib/libradic_pmix.so:/mine.so" };
        assert_eq!(value("LD_PRELOAD").as_deref(), Some(preload));
        assert_eq!(value("RADIC_PROCESS_SOCKET").as_deref(), loaded.then_some("/process.sock"));
    }
    assert_eq!(cluster.launched.iter().filter(|(_, library)| library.is_some()).count(), 2);
}

/// An address that no interface carries: what names one is left out, and the rest stays.
#[test]
fn a_variable_for_which_the_node_has_no_value_stays_unset() {
    for (iface, due) in
        [("eth7", [Some("eth7"), Some("10.1.0.0/16"), Some("x eth7"), Some("0")]), ("", [None, None, None, Some("0")])]
    {
        let environment = HostEnvironment {
            address: [10, 1, 2, 3].into(),
            iface: iface.into(),
            prefix: "10.1.0.0/16".into(),
            radic_pmi: "/lib/libradic_pmi.so".into(),
            radic_pmix: "/lib/libradic_pmix.so".into(),
            library: "/lib/libradic.so".into(),
            process_socket: "/process.sock".into(),
            node: "n1".into(),
        };
        let names = ["FI_TCP_IFACE", "OMPI_MCA_btl_tcp_if_include", "BOTH", "FI_TCP_IO_URING"];
        let templates = ["{iface}", "{prefix}", "x {iface}", "0"];
        let templates = names.iter().zip(templates).map(|(name, template)| ((*name).to_owned(), template.to_owned())).collect();
        let spec = JobSpec { templates, ..spec(1) };
        let placement = Placement { nodes: vec![id(1)], rank_nodes: vec![0] };
        let mut host = Host::launch(&id(1), &environment, (JobId::from_bits(7), Epoch::FIRST, 0), &spec, placement);
        let Some(HostOutput::Spawn(_, order)) = host.poll_output() else { panic!("nothing is started") };
        let value = |wanted: &&str| {
            let (_, value) = order.env.iter().find(|(name, _)| name.as_ref() == wanted.as_bytes())?;
            Some(String::from_utf8(value.to_vec()).expect("it is text"))
        };
        assert_eq!(names.each_ref().map(value), due.map(|due| due.map(str::to_owned)), "{iface:?}");
    }
}

#[test]
fn two_replicas_need_a_third_node() {
    let protection = Protection { replicas: 2, ..never() };
    for (nodes, replica) in [(3, Some("10.0.0.3:103".parse().unwrap())), (2, None)] {
        let mut cluster = Cluster::new(nodes);
        let job = cluster.start_protected(1, protection.clone());
        assert!(cluster.orders.contains(&(name(2), StoreOrder::SetReplica(at(job, 0), replica))), "{:?}", cluster.orders);
        assert_eq!(cluster.recorded(EventName::Limit), usize::from(replica.is_none()));
    }
}

#[test]
fn a_rank_is_killed_where_it_is_and_a_node_is_asked_before_it_has_a_fault() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start(1, 1, 3);
    let failed =
        |c: &Cluster, client, part: &str| matches!(c.replies(client).last(), Some(Reply::Error(text)) if text.contains(part));
    cluster.hello(3, 2, Request::KillRank { job: job.to_string()[..6].to_owned(), rank: Rank(1) });
    cluster.hello(3, 3, Request::KillRank { job: job.to_string(), rank: Rank(3) });
    cluster.hello(3, 4, Request::Fault { name: name(2), fault: Fault::Pause { ms: 7 } });
    cluster.hello(3, 5, Request::Fault { name: name(2), fault: Fault::Cut { ms: 7 } });
    cluster.hello(3, 6, Request::Fault { name: name(9), fault: Fault::Pause { ms: 7 } });
    cluster.run_for(Duration::from_millis(100));
    assert_eq!(cluster.replies(2).last(), Some(&Reply::Done));
    assert!(cluster.ranks[&at(job, 1)].1.signals.contains(&libc::SIGKILL));
    assert!(failed(&cluster, 3, "has ranks 0 to 2"), "{:?}", cluster.replies(3));
    assert_eq!((cluster.replies(4).last(), &cluster.faults[..]), (Some(&Reply::Done), &[(name(2), Fault::Pause { ms: 7 })][..]));
    assert!(failed(&cluster, 5, "n2: no cable") && failed(&cluster, 6, "there is no node n9"));
    assert_eq!(cluster.recorded(EventName::Inject), 2);
    cluster.hello(3, 7, Request::KillRank { job: job.to_string(), rank: Rank(1) });
    cluster.run_for(Duration::from_millis(100));
    assert!(failed(&cluster, 7, "does not run") || failed(&cluster, 7, "there is no job"), "{:?}", cluster.replies(7));
}

#[test]
fn an_event_names_only_some_of_many_nodes() {
    let ids: Vec<NodeId> = (0..100).map(id).collect();
    assert_eq!(listed("gone", ids[..0].iter()), "");
    assert_eq!(listed("gone", ids[..2].iter()), "; gone: n0, n1");
    let text = listed("joined", ids.iter());
    assert!(text.starts_with("; joined: n0, n1, ") && text.ends_with(", n63 and 36 more"), "{text}");
}

/// A sender asks often. All nodes are asked where the receiver's log is, then only the node that had it and the receiver's host.
/// After a while all are asked once more, because the log may have moved.
#[test]
fn only_the_holder_of_a_log_is_asked_what_is_stable_and_now_and_then_all() {
    let mut cluster = Cluster::new(6);
    let job = cluster.start_protected(2, never());
    let stream = StreamId { connection: ConnectionId { opener: at(job, 0), number: 0 }, from_opener: true };
    let mut asked = Vec::new();
    for _ in 0..40 {
        let before = (cluster.orders.len(), cluster.told(0).len());
        cluster.say(job, 0, ToNode::AskStable { stream, receiver: at(job, 1) });
        cluster.run_until(|c| c.told(0).len() > before.1);
        assert_eq!(cluster.last_told(0), &FromNode::Stable { stream, offset: 77 });
        asked.push(cluster.orders[before.0..].iter().filter(|(_, order)| matches!(order, StoreOrder::StableOf(..))).count());
    }
    assert_eq!(asked.iter().filter(|nodes| **nodes == 6).count(), 3, "{asked:?}");
    assert!(asked.iter().all(|nodes| matches!(nodes, 1 | 2 | 6)), "{asked:?}");
}

/// Where received bytes stay with their senders, and the user does not say how much, the ranks of a node share an eighth of its memory: 16 GiB in these tests.
#[test]
fn outboxes_share_an_eighth_of_the_memory() {
    let sender = Protection { log_mode: LogMode::Causal, payload: PayloadMode::Sender, ..never() };
    for (outbox, ranks, due) in [(None, 2, 2 << 30), (None, 8, 512 << 20), (Some(1 << 20), 8, 1 << 20)] {
        let mut cluster = Cluster::new(2);
        cluster.start_protected(ranks, Protection { outbox, ..sender.clone() });
        let FromNode::Joined { protection, .. } = cluster.told(0)[0].clone() else { panic!("{:?}", cluster.told(0)) };
        assert_eq!(protection.outbox, Some(due), "{ranks} ranks on two nodes");
    }
}
