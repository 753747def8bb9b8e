//! Nodes that are cut off: no peer gets a reset, and what runs there goes on running. The job ends as if nothing had happened; the node is fenced when it is back.
#![forbid(unsafe_code)]

use std::time::Duration;

use radic_tests::cluster::{Cluster, Kind};
use radic_tests::library::{LIBRARIES, Library, MPICH};
use radic_tests::process::{self, eventually};
use radic_tests::random::Random;
use radic_tests::recovery::{
    FLAGS, HOSTS, RANKS, SOON, between, cluster, due, events_of, expect_same, first_checkpoints, is_long, rounds, start,
};
use radic_wire::event::{Event, EventName};
use radic_wire::local::NodeState;
use radic_wire::membership::Role;

/// Time in which a silent node must be known to be dead: 0.8 s on a quiet machine, and as much again on one that is not.
const DETECTED_MS: u64 = 1600;
/// Time that a node which is back has to find out what has become of it.
const FENCED: Duration = Duration::from_secs(10);
/// Rounds with a pause in them: three seconds and more, whatever else the machine does.
const ROUNDS: &str = "--rounds 2000 --mib 4 --pause 1";

/// One cut.
#[derive(Debug)]
struct Cut {
    node: &'static str,
    spares: usize,
    /// After the first checkpoints.
    after: Duration,
    seconds: f64,
}

/// Whether the cluster has given up the node.
fn is_given_up(cluster: &Cluster, node: &str) -> bool {
    let mut state = NodeState::Silent;
    eventually(SOON, "it is clear what has become of the node", || {
        // The one that was cut off knows nothing.
        let nodes = cluster.status_at("n1").nodes;
        state = nodes.iter().find(|n| n.name.as_str() == node).map_or(NodeState::Left, |n| n.state);
        state != NodeState::Silent
    });
    state != NodeState::Alive
}

/// The node that was given up ends, with everything in it, and says why. It may come back as a spare.
fn expect_fenced(cluster: &mut Cluster, node: &str, what: &str) {
    cluster.wait_for_end_of(node, FENCED).expect(1);
    let log = cluster.log(node);
    assert!(log.contains("was agreed without this node: the others take it for dead"), "{what}: {log}");
    let left = || cluster.processes_of(node).iter().map(|p| process::command_line(p.pid())).collect::<Vec<_>>();
    eventually(FENCED, "nothing is left on the node", || left().is_empty());
    cluster.start_node(node, &["--spare"]);
    let nodes = cluster.status_at("n1").nodes;
    let back = nodes.iter().find(|n| n.name.as_str() == node).expect("it is a member again");
    assert!(back.role == Role::Spare && back.state == NodeState::Alive && back.ranks.is_empty(), "{what}: {back:?}");
}

/// What a cut has shown: whether the node was given up, and the events until the job's end.
fn survives(library: &Library, cut: &Cut) -> (bool, Vec<Event>) {
    let what = format!("{}: {cut:?}", library.name);
    let command = rounds(library, ROUNDS);
    let mut cluster = cluster(Kind::Namespaces, cut.spares);
    let due = due(library, &cluster, &command);
    let mut events = cluster.events_at("n1");
    let job = start(library, &cluster, FLAGS, &command);
    let id = first_checkpoints(&mut events, RANKS);
    assert!(!job.ends_within(cut.after), "{what}: the job is too short");
    let there = cluster.processes_of(cut.node).iter().filter(|p| process::variable(p.pid(), "RADIC_RANK").is_some()).count();
    assert!(there > 0, "{what}: no rank is there");
    cluster.radic(["inject", "cut-node", cut.node, &cut.seconds.to_string()]).run().expect(0);
    let finished = expect_same(&cluster, job, &due, &what);
    let events = events_of(&cluster, id);
    let given_up = is_given_up(&cluster, cut.node);
    if given_up {
        expect_fenced(&mut cluster, cut.node, &what);
    }
    println!("{what}: {:.2} s, {}", finished.elapsed.as_secs_f64(), if given_up { "given up" } else { "kept" });
    cluster.assert_idle();
    cluster.stop();
    (given_up, events)
}

fn of(events: &[Event], name: EventName) -> &Event {
    events.iter().find(|e| e.event == name).unwrap_or_else(|| panic!("no {name:?} in {events:#?}"))
}

/// It is back while the job still runs, and what was on its way then arrives at last.
#[test]
fn a_node_that_is_cut_off_is_replaced_and_fenced() {
    if !Kind::all().contains(&Kind::Namespaces) {
        return;
    }
    for (node, spares) in [("n3", 1), ("n2", 0)] {
        let cut = Cut { node, spares, after: Duration::from_millis(500), seconds: 2.0 };
        let (given_up, events) = survives(&MPICH, &cut);
        assert!(given_up, "no node has noticed that {node} was cut off");
        let detected = between(of(&events, EventName::Inject), of(&events, EventName::Confirm));
        println!("{node}: known to be dead {detected} ms after its last word");
        assert!(detected <= DETECTED_MS, "{detected} ms");
        // No other rank went back.
        assert_eq!(events.iter().filter(|e| e.event == EventName::Live).count(), 1, "{events:#?}");
    }
}

/// From cuts that no node takes for a death, through those that end while it is being decided, to those that outlast the job.
#[test]
fn cuts_of_any_length() {
    if !is_long() || !Kind::all().contains(&Kind::Namespaces) {
        return;
    }
    let mut random = Random::from_environment();
    for library in &LIBRARIES {
        let mut given_up = 0;
        for _ in 0..20 {
            let seconds = [0.1 + random.below(1400) as f64 / 1000.0, 1.0 + random.below(8000) as f64 / 1000.0][random.below(2)];
            let (node, spares) = (HOSTS[random.below(HOSTS.len())], random.below(2));
            let cut = Cut { node, spares, after: Duration::from_millis(random.below(2500) as u64), seconds };
            given_up += usize::from(survives(library, &cut).0);
        }
        println!("{}: {given_up} of 20 cuts were deaths", library.name);
        assert!((1..20).contains(&given_up), "{given_up} of 20 cuts were deaths: they try less than they are meant to");
    }
}
