//! Nodes with two networks: one for the daemons, one for the processes.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::time::Duration;

use radic_tests::cluster::{Cluster, Kind};
use radic_tests::library::{LIBRARIES, MPICH};
use radic_tests::netns::{Which, address, second_address};
use radic_tests::process::{self, eventually};
use radic_tests::recovery::{FLAGS, HOSTS, RANKS, SOON, due, expect_same, first_checkpoints, rounds, start};
use radic_tests::sockets::{self, CONNECTED};
use radic_wire::event::EventName;
use radic_wire::local::NodeState;

/// Rounds with a pause in them: three seconds and more.
const ROUNDS: &str = "--rounds 2000 --mib 4 --pause 1";
/// A cut that no node takes for a death.
const MOMENT: Duration = Duration::from_millis(200);
/// A cut after which a node without a network of daemons is given up.
const LONG: Duration = Duration::from_secs(3);

/// Five nodes whose daemons are on the first network and whose processes are on the second; none if this machine cannot have them.
fn cluster() -> Option<Cluster> {
    if !Kind::all().contains(&Kind::Namespaces) {
        return None;
    }
    let mut cluster = Cluster::empty(Kind::Namespaces);
    cluster.make_key();
    for name in ["n1"].iter().chain(&HOSTS) {
        cluster.add_second_network(name);
        let networks = ["--listen=0.0.0.0:0", "--control-network=10.77.0.0/16", "--data-network=10.78.0.0/16"];
        cluster.start_node(name, &networks);
    }
    Some(cluster)
}

fn state(cluster: &Cluster, node: &str) -> NodeState {
    let nodes = cluster.status_at("n1").nodes;
    nodes.iter().find(|n| n.name.as_str() == node).map_or(NodeState::Left, |n| n.state)
}

/// The remote addresses of the connections of all ranks.
fn remotes(cluster: &Cluster) -> Vec<String> {
    let ranks = process::marked(cluster.dir()).into_iter().filter(|p| process::variable(p.pid(), "RADIC_RANK").is_some());
    ranks.flat_map(|rank| sockets::of(rank.pid(), CONNECTED).into_keys().map(|(_, remote)| remote)).collect()
}

fn is_of(remote: &str, network: std::net::Ipv4Addr) -> bool {
    sockets::address(remote).is_some_and(|at: SocketAddr| match at.ip() {
        std::net::IpAddr::V4(ip) => ip.octets()[..2] == network.octets()[..2],
        std::net::IpAddr::V6(_) => false,
    })
}

#[test]
fn ranks_use_the_network_of_data_and_daemons_that_of_control() {
    // Each library has a cluster of its own: what one hears of events begins with those of earlier jobs.
    for library in &LIBRARIES {
        let Some(cluster) = cluster() else { return };
        for node in cluster.status().nodes {
            assert!(is_of_first(&node.address), "{node:?}");
        }
        let command = rounds(library, ROUNDS);
        let due = due(library, &cluster, &command);
        let mut events = cluster.events_at("n1");
        let job = start(library, &cluster, FLAGS, &command);
        first_checkpoints(&mut events, RANKS);
        let remotes = remotes(&cluster);
        let (data, control): (Vec<_>, Vec<_>) = (
            remotes.iter().filter(|r| is_of(r, second_address(0))).collect(),
            remotes.iter().filter(|r| is_of(r, address(0))).collect(),
        );
        assert!(data.len() >= RANKS && control.is_empty(), "{}: {data:?} {control:?}", library.name);
        expect_same(&cluster, job, &due, library.name);
        cluster.assert_idle();
        cluster.stop();
    }
}

fn is_of_first(at: &SocketAddr) -> bool {
    matches!(at.ip(), std::net::IpAddr::V4(ip) if ip.octets()[..2] == address(0).octets()[..2])
}

#[test]
fn a_node_dies_and_its_rank_is_found_on_the_network_of_data() {
    let Some(cluster) = cluster() else { return };
    let command = rounds(&MPICH, ROUNDS);
    let due = due(&MPICH, &cluster, &command);
    let mut events = cluster.events_at("n1");
    let job = start(&MPICH, &cluster, FLAGS, &command);
    first_checkpoints(&mut events, RANKS);
    cluster.kill("n3");
    events.expect("its rank to live", SOON, |e| e.event == EventName::Live);
    assert!(!remotes(&cluster).iter().any(|remote| is_of(remote, address(0))), "a rank uses the daemons' network");
    expect_same(&cluster, job, &due, "n3 killed");
    cluster.assert_idle();
    cluster.stop();
}

/// Of the network of the daemons for a moment: nothing happens. For long: the node is given up as if it were cut off as a whole, though its ranks reach the others.
/// Of the network of the processes: no node is given up, and the job waits.
#[test]
fn one_of_the_networks_is_cut() {
    for (which, cut, given_up) in [(Which::First, MOMENT, false), (Which::First, LONG, true), (Which::Second, LONG, false)] {
        let Some(mut cluster) = cluster() else { return };
        let what = format!("{which:?} for {cut:?}");
        let command = rounds(&MPICH, ROUNDS);
        let due = due(&MPICH, &cluster, &command);
        let mut events = cluster.events_at("n1");
        let job = start(&MPICH, &cluster, FLAGS, &command);
        first_checkpoints(&mut events, RANKS);
        cluster.set_cable_of(which, "n3", false);
        assert!(!job.ends_within(cut), "{what}: the job is too short");
        cluster.set_cable_of(which, "n3", true);
        expect_same(&cluster, job, &due, &what);
        eventually(SOON, "it is clear what has become of the node", || state(&cluster, "n3") != NodeState::Silent);
        assert_eq!(state(&cluster, "n3") != NodeState::Alive, given_up, "{what}");
        if given_up {
            cluster.wait_for_end_of("n3", SOON).expect(1);
            assert!(cluster.log("n3").contains("the others take it for dead"), "{what}");
        }
        println!("{what}: given up: {given_up}");
        cluster.assert_idle();
        cluster.stop();
    }
}
