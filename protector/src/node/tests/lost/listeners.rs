//! Addresses of processes that are lost, or were: callers wait, and no other process gets them.

use super::*;

/// A caller of a process that is lost is never told that there is no listener. It asks again until the process listens where it
/// is brought back.
#[test]
fn a_listener_that_is_lost_is_waited_for() {
    for jitter in [None, Some(1), Some(2), Some(3)] {
        let mut cluster = Cluster::new(5);
        let job = cluster.start_recoverable(5, 3);
        let address: SocketAddr = "10.0.0.2:80".parse().unwrap();
        cluster.say(job, 1, ToNode::Listening(address));
        cluster.run_for(SOON);
        cluster.jitter = jitter.map(Random::new);
        cluster.silent = true;
        cluster.kill_all(&[2]);
        let mut later = 0;
        let call = |cluster: &mut Cluster, rank: u32, to: &str| {
            let answers = |c: &Cluster| {
                c.told(rank).iter().filter(|told| matches!(told, FromNode::Peer { .. })).cloned().collect::<Vec<_>>()
            };
            let before = answers(cluster).len();
            cluster.say(job, rank, calling(job, rank, to));
            cluster.run_until(|c| answers(c).len() > before);
            answers(cluster).pop().expect("there is a new one")
        };
        let restored = |c: &Cluster| c.restored.first().map(|(_, incarnation, node)| (*incarnation, node.clone()));
        while restored(&cluster).is_none() || later < 20 {
            for rank in [0, 2] {
                match call(&mut cluster, rank, "10.0.0.2:80") {
                    FromNode::Peer { peer: None, later: true, .. } => later += 1,
                    told => panic!("{jitter:?}, after {later} questions: {told:?}"),
                }
            }
            cluster.run_for(Duration::from_millis(1));
        }
        let (incarnation, node) = restored(&cluster).expect("it is");
        let at_last: SocketAddr = "10.0.0.9:1234".parse().unwrap();
        cluster.post(&node, Input::Observer(observer_of(1, incarnation), 1001, ToNode::ListeningAt { address, at: at_last }));
        cluster.run_for(SOON);
        let found = call(&mut cluster, 2, "10.0.0.2:80");
        assert!(
            matches!(found, FromNode::Peer { peer: Some(peer), at: Some(to), .. } if peer == at(job, 1) && to == at_last),
            "{found:?}"
        );
        // Where there really is no listener, callers are told so again when all ranks are back.
        cluster.live(&node, 1, incarnation);
        cluster.run_for(SOON);
        let no_listener = call(&mut cluster, 0, "10.0.0.77:80");
        assert!(matches!(no_listener, FromNode::Peer { peer: None, later: false, .. }), "{no_listener:?}");
    }
}

impl Cluster {
    /// What rank 0 is told of the process that it calls there.
    fn first_rank_calls(&mut self, job: JobId, to: &str) -> FromNode {
        self.say(job, 0, calling(job, 0, to));
        self.run_for(SOON);
        let told = self.told(0).iter().rfind(|told| matches!(told, FromNode::Peer { .. }));
        told.cloned().expect("it was told of a peer")
    }

    /// A protected job of one rank on `node`, which has joined with [`STRANGER`] for its observer.
    fn start_stranger(&mut self, node: usize) -> JobId {
        let known: BTreeSet<JobId> = self.ranks.keys().map(|process| process.job).collect();
        let spec = JobSpec { protection: never(), nodes: vec![name(node)], ..spec(1) };
        self.hello(5, 2, Request::Run { spec: Box::new(spec), attach: true });
        let new = |c: &Cluster| c.ranks.keys().map(|process| process.job).find(|job| !known.contains(job));
        self.run_until(|c| new(c).is_some());
        let job = new(self).expect("it has started");
        self.post(&name(node), Input::Observer(STRANGER, 1000, join(job, 0)));
        self.run_until(|c| c.told.contains_key(&STRANGER));
        job
    }

    /// What the stranger is told of the process that it calls there, and whether it is to ask again.
    fn stranger_calls(&mut self, job: JobId, to: &str) -> (Option<ProcessId>, bool) {
        let before = self.told[&STRANGER].len();
        let node = self.ranks[&at(job, 0)].0.clone();
        self.post(&node, Input::Observer(STRANGER, 1000, calling(job, 0, to)));
        self.run_until(|c| c.told[&STRANGER].len() > before);
        let FromNode::Peer { peer, later, .. } = self.told[&STRANGER][before] else { panic!("{:?}", self.told[&STRANGER]) };
        (peer, later)
    }

    /// The same for an address that it wants.
    fn stranger_claims(&mut self, job: JobId, address: &str) -> bool {
        let before = self.told[&STRANGER].len();
        let node = self.ranks[&at(job, 0)].0.clone();
        self.post(&node, Input::Observer(STRANGER, 1000, ToNode::Claim { ask: 9, address: address.parse().unwrap() }));
        self.run_until(|c| c.told[&STRANGER].len() > before);
        let FromNode::Claimed { later, .. } = self.told[&STRANGER][before] else { panic!("{:?}", self.told[&STRANGER]) };
        later
    }
}

const STRANGER: ObserverId = ObserverId(500);

/// A rank that has crashed never catches up. Its node knows where it listened: a process that wants that address waits, and no
/// other one does.
#[test]
fn a_rank_that_does_not_catch_up_holds_up_only_processes_that_want_its_address() {
    let mut cluster = Cluster::new(5);
    let stuck = cluster.start_recoverable(5, 3);
    cluster.say(stuck, 1, ToNode::Listening("10.0.0.2:80".parse().unwrap()));
    cluster.say(stuck, 1, ToNode::WillListen { ask: 5, address: "10.0.0.2:90".parse().unwrap() });
    let stranger = cluster.start_stranger(2);
    cluster.silent = true;
    // Twice: since it came back it has not listened again where it did before.
    for incarnations in [vec![1], vec![1, 2]] {
        cluster.crash(stuck, 1);
        assert_eq!(cluster.stranger_calls(stranger, "10.0.0.2:80"), (None, true), "it has just crashed");
        cluster.run_until(|c| c.incarnations(stuck, 1) == incarnations);
        cluster.run_for(SOON);
        for nobodys in ["10.0.0.2:81", "127.0.0.1:81", "10.0.0.3:80", "10.0.0.77:80"] {
            assert_eq!(cluster.stranger_calls(stranger, nobodys), (None, false), "{nobodys}");
            assert!(!cluster.stranger_claims(stranger, nobodys), "{nobodys}");
        }
        for its_own in ["10.0.0.2:80", "10.0.0.2:90"] {
            assert_eq!(cluster.stranger_calls(stranger, its_own), (None, true), "{its_own}");
        }
    }
    let listening = ToNode::Listening("10.0.0.2:80".parse().unwrap());
    cluster.post(&name(2), Input::Observer(observer_of(1, Incarnation::restarted(2)), 1001, listening));
    cluster.run_for(SOON);
    assert_eq!(cluster.stranger_calls(stranger, "10.0.0.2:80"), (Some(at(stuck, 1)), false), "it is back");
}

/// The same for a rank whose node is lost. Where it listened there is not known, but it was there.
#[test]
fn a_rank_of_a_lost_node_that_does_not_catch_up_holds_up_only_processes_that_want_an_address_of_that_node() {
    let mut cluster = Cluster::new(5);
    let stuck = cluster.start_recoverable(5, 3);
    let stranger = cluster.start_stranger(3);
    cluster.silent = true;
    cluster.kill_all(&[2]);
    cluster.run_until(|c| c.incarnations(stuck, 1) == [1]);
    assert_eq!(cluster.restored[0].2, name(3), "where the stranger is");
    cluster.run_for(SOON);
    for nobodys in ["10.0.0.3:80", "127.0.0.1:80", "10.0.0.1:80", "10.0.0.5:80"] {
        assert_eq!(cluster.stranger_calls(stranger, nobodys), (None, false), "{nobodys}");
        assert!(!cluster.stranger_claims(stranger, nobodys), "{nobodys}");
    }
    // The second address belongs to no known node: it may have been another one of the lost node.
    for perhaps_its_own in ["10.0.0.2:80", "192.168.0.2:80"] {
        assert_eq!(cluster.stranger_calls(stranger, perhaps_its_own), (None, true), "{perhaps_its_own}");
    }
}

/// A process is back, and has not come to its `listen` once more. Its machine was declared dead, and may run with the incarnation
/// before: a caller is told that the machine is dead, until the process listens, or a node comes back there.
#[test]
fn a_caller_is_told_that_a_machine_was_declared_dead() {
    let mut cluster = Cluster::new(5);
    let job = cluster.start_recoverable(5, 3);
    cluster.kill_all(&[2]);
    cluster.run_until(|c| c.incarnations(job, 1) == [1]);
    let (_, incarnation, node) = cluster.restored[0].clone();
    cluster.live(&node, 1, incarnation);
    cluster.run_for(SOON);
    let call = |cluster: &mut Cluster, to: &str| match cluster.first_rank_calls(job, to) {
        FromNode::Peer { peer, later, machine, .. } => (peer, later, machine),
        other => panic!("{other:?}"),
    };
    for _ in 0..2 {
        assert_eq!(call(&mut cluster, "10.0.0.2:80"), (None, false, Machine::Dead));
    }
    let said = texts(&cluster, 1, EventName::Limit);
    assert_eq!(said.iter().filter(|text| text.contains("on a machine that was declared dead")).count(), 1, "{said:?}");
    assert_eq!(call(&mut cluster, "10.0.0.3:80"), (None, false, Machine::Member));
    assert_eq!(call(&mut cluster, "10.0.0.77:80"), (None, false, Machine::Foreign));
    let address: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let there = "10.0.0.9:1234".parse().unwrap();
    cluster.post(&node, Input::Observer(observer_of(1, incarnation), 1001, ToNode::ListeningAt { address, at: there }));
    cluster.run_for(SOON);
    assert_eq!(call(&mut cluster, "10.0.0.2:80"), (Some(at(job, 1)), false, Machine::Dead));
}

/// A loopback address means the caller's machine, also to the home of its job on another one.
#[test]
fn a_call_to_its_own_machine_reaches_no_process_on_that_of_its_home() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(4, 2);
    cluster.say(job, 0, ToNode::Listening("0.0.0.0:80".parse().unwrap()));
    cluster.say(job, 1, calling(job, 1, "127.0.0.1:80"));
    cluster.run_for(SOON);
    assert_eq!(
        *cluster.last_told(1),
        FromNode::Peer { ask: 3, peer: None, key: None, at: None, later: false, machine: Machine::Member }
    );
}

/// A process was lost between `bind` and `listen`, by its log, but what it had put had gone through a fence: others call it while
/// it comes to its `listen` once more. It listens on all addresses, at the port that it had, which is free on its new machine as
/// well.
#[test]
fn a_process_that_has_not_listened_again_is_waited_for_and_found() {
    let mut cluster = Cluster::new(5);
    let job = cluster.start_recoverable(5, 3);
    cluster.say(job, 1, ToNode::Listening("0.0.0.0:80".parse().unwrap()));
    (0..3).for_each(|rank| cluster.pmi(at(job, rank), "cmd=barrier_in"));
    cluster.run_for(SOON);
    cluster.kill_all(&[2]);
    cluster.run_until(|c| c.incarnations(job, 1) == [1]);
    let (_, incarnation, node) = cluster.restored[0].clone();
    cluster.live(&node, 1, incarnation);
    cluster.run_for(SOON);
    let answer = cluster.first_rank_calls(job, "10.0.0.2:80");
    assert!(matches!(answer, FromNode::Peer { peer: None, later: true, .. }), "{answer:?}");
    let listening = ToNode::Listening("0.0.0.0:80".parse().unwrap());
    cluster.post(&node, Input::Observer(observer_of(1, incarnation), 1001, listening));
    cluster.pmi(at(job, 1), "cmd=barrier_in");
    let answer = cluster.first_rank_calls(job, "10.0.0.2:80");
    let at_last = SocketAddr::new(cluster.nodes[&node].config.me.address.ip(), 80);
    let is_there = |told: &FromNode| matches!(told, FromNode::Peer { peer: Some(peer), at: Some(to), .. } if *peer == at(job, 1) && *to == at_last);
    assert!(is_there(&answer), "{answer:?}");
    let answer = cluster.first_rank_calls(job, "10.0.0.77:80");
    assert!(matches!(answer, FromNode::Peer { peer: None, later: false, .. }), "{answer:?}");
    cluster.end_well(job, 1);
}

/// A process without its connection may have crashed. A caller is told so late that the node has seen which. If the process
/// still runs, it executes another program.
#[test]
fn a_process_that_has_left_its_node_s_protection_is_not_waited_for_long() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start_recoverable(4, 3);
    cluster.say(job, 1, ToNode::Listening("10.0.0.2:80".parse().unwrap()));
    cluster.run_for(SOON);
    cluster.post(&name(2), Input::ObserverGone(observer(1)));
    for (after, expected) in [(Duration::ZERO, true), (Duration::from_secs(1), false)] {
        cluster.run_for(after);
        let answer = cluster.first_rank_calls(job, "10.0.0.2:80");
        assert!(matches!(answer, FromNode::Peer { peer: None, later, .. } if later == expected), "{answer:?}");
    }
}

/// An address by which a process is called that has moved, or is lost, is given to no other process: the kernel of the machine
/// where it is free now does not know that.
#[test]
fn the_address_of_a_lost_listener_is_not_given_to_another() {
    let mut cluster = Cluster::new(5);
    let job = cluster.start_recoverable(5, 3);
    let address: SocketAddr = "10.0.0.2:80".parse().unwrap();
    cluster.say(job, 1, ToNode::Listening("0.0.0.0:80".parse().unwrap()));
    cluster.run_for(SOON);
    let claim = |cluster: &mut Cluster, rank: u32, address: SocketAddr| {
        let answers = |c: &Cluster| {
            let told = c.told(rank).iter().rev();
            let claimed =
                told.filter_map(
                    |told| if let FromNode::Claimed { holder, later, .. } = told { Some((*holder, *later)) } else { None },
                );
            claimed.collect::<Vec<_>>()
        };
        let before = answers(cluster).len();
        cluster.say(job, rank, ToNode::Claim { ask: 9, address });
        cluster.run_until(|c| answers(c).len() > before);
        answers(cluster)[0]
    };
    assert_eq!(claim(&mut cluster, 0, address), (None, false), "its kernel knows");
    cluster.kill_all(&[2]);
    let restored = |c: &Cluster| c.restored.first().map(|(_, incarnation, node)| (*incarnation, node.clone()));
    while restored(&cluster).is_none() {
        assert_eq!(claim(&mut cluster, 0, address), (None, true), "it is on its way back");
        cluster.run_for(Duration::from_millis(1));
    }
    let (incarnation, node) = restored(&cluster).expect("it is");
    let there = "10.0.0.9:1234".parse().unwrap();
    cluster.post(
        &node,
        Input::Observer(
            observer_of(1, incarnation),
            1001,
            ToNode::ListeningAt { address: "0.0.0.0:80".parse().unwrap(), at: there },
        ),
    );
    cluster.live(&node, 1, incarnation);
    cluster.run_for(SOON);
    assert_eq!(claim(&mut cluster, 0, address), (Some(at(job, 1)), false));
    assert_eq!(claim(&mut cluster, 0, "0.0.0.0:80".parse().unwrap()), (None, false), "of another machine");
    assert_eq!(claim(&mut cluster, 0, "10.0.0.2:81".parse().unwrap()), (None, false));
    // Another process may have the same port of the other family.
    let six = ToNode::ListeningAt { address: "[::]:81".parse().unwrap(), at: there };
    cluster.post(&node, Input::Observer(observer_of(1, incarnation), 1002, six));
    cluster.run_for(SOON);
    assert_eq!(claim(&mut cluster, 0, "10.0.0.2:81".parse().unwrap()), (None, false), "a listener for IPv6 alone");
}
