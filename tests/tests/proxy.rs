//! A bad network between nodes, and between processes and their logs: delays, messages in pieces, resets at any byte, and what was said is said once more by
//! another caller. Jobs end as if nothing had happened, no node is taken for dead, and what is said again is refused.
//! Links between processes break in `recover_links`, and below TCP in `frames`.
#![forbid(unsafe_code)]

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use radic_tests::cluster::{Cluster, Kind};
use radic_tests::library::MPICH;
use radic_tests::namespace::inside;
use radic_tests::protection::Protected;
use radic_tests::proxy::{Done, Faults, Proxy, say_again};
use radic_tests::random::Random;
use radic_tests::recovery::{
    FLAGS, HOSTS, PROGRAMS, RANKS, command_of, due, events_of, expect_same, first_checkpoints, is_long, start,
};
use radic_tests::sockets;
use radic_wire::event::EventName;
use radic_wire::limits;

type Program = (&'static str, &'static [&'static str]);

/// Rounds with a pause in them: two seconds and more, whatever else the machine does.
const ROUNDS: Program = ("rounds", &["--rounds", "2500", "--mib", "4", "--pause", "1"]);
/// What the network does to what nodes say to each other, and to what log services are told: 100,000 pieces in 4 s, and each connection of a process that breaks costs the image that is
/// under way. Images of 16 MiB, for which a busy machine needs a second and which are 7,000 pieces, are to pass four times in five: each rank needs one before the job is over.
const BAD: [Faults; 2] = [
    Faults { delay: Duration::from_millis(8), piece: 500, reset: 400 },
    Faults { delay: Duration::from_millis(8), piece: 16_000, reset: 30_000 },
];
/// A node's own port, on its machine's loopback address.
const OWN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7117);
/// Time in which a connection must be closed that says what was said before.
const CLOSED: Duration = Duration::from_millis(limits::HANDSHAKE_MS + 1_500);
/// What a caller that says all that was recorded may get: the answer to the first message of a handshake.
const ANSWER: usize = 4 + 48;

/// What stands before a port of a node.
struct Stand {
    /// 0: the node's own port; 1: its log service's.
    kind: usize,
    /// Where the node is, and the port there.
    namespace: PathBuf,
    port: SocketAddr,
    proxy: Proxy,
}

/// A cluster of nodes that reach each other through proxies only.
struct Net {
    cluster: Cluster,
    stands: Vec<Stand>,
}

impl Net {
    /// Each node listens on its machine's loopback address, and is known by its address on the network, where its proxies are.
    fn start(random: &mut Random) -> Net {
        let mut cluster = Cluster::empty(Kind::Namespaces);
        cluster.make_key();
        let mut stands = Vec::new();
        for number in 1..=RANKS + 1 {
            let name = format!("n{number}");
            let (namespace, known) = cluster.namespace(&name);
            let mut stand = |kind, port: SocketAddr| {
                let at = (known, port.port()).into();
                let proxy = Proxy::start(at, port, BAD[kind], random.number(), Some(namespace.clone()));
                stands.push(Stand { kind, namespace: namespace.clone(), port, proxy });
            };
            stand(0, OWN);
            cluster.start_node(&name, &[&format!("--listen={OWN}"), &format!("--advertise={known}")]);
            let mut listeners = sockets::listeners(cluster.protector(&name).pid());
            assert!(listeners.remove(&OWN).is_some() && listeners.len() == 1, "its log service, beside its own: {listeners:?}");
            listeners.into_keys().for_each(|port| stand(1, port));
        }
        Net { cluster, stands }
    }

    /// What was done by all proxies of a kind: of nodes, of log services.
    fn done(&self) -> [Done; 2] {
        let mut done = [Done::default(); 2];
        for Stand { kind, proxy, .. } in &self.stands {
            let (of, more) = (&mut done[*kind], proxy.done());
            of.connections += more.connections;
            of.pieces += more.pieces;
            of.resets += more.resets;
        }
        done
    }

    /// Says what was said on any connection once more, to the same port and to that of another node: no listener takes more than the beginning.
    fn say_all_again(&self, random: &mut Random, most: usize) -> usize {
        let mut recordings: Vec<_> =
            self.stands.iter().flat_map(|stand| stand.proxy.recordings().into_iter().map(move |said| (stand, said))).collect();
        recordings.retain(|(_, said)| said.len() > 100);
        assert!(!recordings.is_empty(), "nothing was recorded");
        for _ in 0..most {
            let (stand, said) = &recordings[random.below(recordings.len())];
            let other = &self.stands[random.below(self.stands.len())];
            for to in [*stand, other] {
                let answer = inside(&to.namespace, || say_again(said, to.port, CLOSED));
                assert!(
                    answer.len() <= ANSWER,
                    "{} bytes are the answer to what was said before to {}",
                    answer.len(),
                    stand.port
                );
            }
        }
        2 * most
    }
}

/// One program on a bad network; with a death, or with everything said again.
fn survives(program: Program, dies: bool, random: &mut Random) {
    let net = Net::start(random);
    let command = command_of(&MPICH, program);
    let due = due(&MPICH, &net.cluster, &command);
    let mut events = net.cluster.events_at("n1");
    let job = start(&MPICH, &net.cluster, FLAGS, &command);
    let id = first_checkpoints(&mut events, RANKS);
    let victim = HOSTS[random.below(RANKS)];
    let mut again = 0;
    if dies {
        assert!(!job.ends_within(Duration::ZERO), "the job is too short");
        net.cluster.kill(victim);
    } else {
        again = net.say_all_again(random, 30);
    }
    // Of what log services are told one piece in so many is the last: perhaps none was.
    if net.done()[1].resets == 0 {
        let mut logs = net.stands.iter().filter(|stand| stand.kind == 1);
        assert!(logs.any(|stand| stand.proxy.reset_oldest()), "no log is connected");
    }
    let what = format!("{} on a bad network{}", program.0, if dies { ", and a death" } else { "" });
    let finished = expect_same(&net.cluster, job, &due, &what);
    let seen = events_of(&net.cluster, id);
    let [nodes, logs] = net.done();
    println!("{what}: {:.2} s; to nodes: {nodes:?}, to logs: {logs:?}; {again} times said again", finished.elapsed.as_secs_f64());
    assert!(nodes.resets > 0 && logs.resets > 0, "the network was not bad enough: {nodes:?} {logs:?}");
    let count = |name| seen.iter().filter(|event| event.event == name).count();
    let is_false = |e: &&radic_wire::event::Event| {
        e.event == EventName::Confirm && !(dies && e.subject.as_ref().is_some_and(|node| node.as_str() == victim))
    };
    assert_eq!(seen.iter().filter(is_false).count(), 0, "a node was taken for dead: {seen:#?}");
    assert_eq!((count(EventName::Live), count(EventName::Restart)), (usize::from(dies), 0), "{seen:#?}");
    assert!(dies || count(EventName::Refused) > 0, "no node has told that it refused what was said again");
    if !dies {
        assert_eq!(Protected::of(&net.cluster, id, RANKS).sum(|counters| counters.unprotected), 0);
    }
    net.cluster.assert_idle();
    net.cluster.stop();
}

#[test]
fn a_bad_network_is_not_noticed() {
    if !Kind::all().contains(&Kind::Namespaces) {
        return;
    }
    let mut random = Random::from_environment();
    if !is_long() {
        return survives(ROUNDS, random.below(2) == 0, &mut random);
    }
    for _ in 0..20 {
        survives(ROUNDS, true, &mut random);
        survives(ROUNDS, false, &mut random);
        PROGRAMS.into_iter().for_each(|program| survives(program, random.below(2) == 0, &mut random));
    }
}
