//! Deaths in a row: each as soon as the one before is made up for, until no node is left that could be spared.
#![forbid(unsafe_code)]

use radic_tests::cluster::{Kind, Setup};
use radic_tests::library::{LIBRARIES, Library};
use radic_tests::process::eventually;
use radic_tests::random::Random;
use radic_tests::recovery::{SOON, due, expect_same, first_checkpoints, is_long, rounds, sample, start};
use radic_wire::event::{Event, EventName};
use radic_wire::local::{ClusterStatus, NodeState};
use radic_wire::membership::Role;

/// Every node that is no spare hosts ranks, the terminal's, too.
const FLAGS: &str = "--protect on --ckpt-interval 0.3";
/// Rounds with a pause in them: four seconds and more, whatever else the machine does.
const ROUNDS: &str = "--rounds 3000 --mib 2 --pause 1";

/// Those that host ranks now, but for the terminal's node.
fn hosts(status: &ClusterStatus) -> Vec<String> {
    let hosts = status.nodes.iter().filter(|node| !node.ranks.is_empty() && node.name.as_str() != "n1");
    hosts.map(|node| node.name.to_string()).collect()
}

/// So many deaths in a row, and the end of the undisturbed run.
fn survives(library: &Library, setup: Setup, deaths: usize, random: &mut Random) {
    let command = rounds(library, ROUNDS);
    let what = format!("{} on {setup:?}, {deaths} deaths", library.name);
    let cluster = setup.start();
    let due = due(library, &cluster, &command);
    let mut events = cluster.events_at("n1");
    let job = start(library, &cluster, FLAGS, &command);
    let id = first_checkpoints(&mut events, 4);
    for death in 1..=deaths {
        let hosts = hosts(&cluster.status_at("n1"));
        let node = &hosts[random.below(hosts.len())];
        println!("{what}: {node} dies");
        cluster.kill_all_of(node);
        let gone = format!("gone: {node}");
        // By the node that is asked next: another one may know before, and then every rank looks protected still.
        let is_missed = |e: &Event| e.event == EventName::View && e.node.as_str() == "n1" && e.text.contains(&gone);
        events.expect(&format!("{node} to be missed"), SOON, is_missed);
        eventually(SOON, &format!("every rank to be protected again after death {death}"), || {
            let status = cluster.status_at("n1");
            let known = status.jobs.iter().find(|known| known.job == id).expect("the job is known");
            assert!(known.outcome.is_none(), "{what}: it ended before death {}: {}", death + 1, job.stderr());
            known.degraded.is_empty() && known.running == known.ranks
        });
    }
    let left = cluster.status_at("n1").nodes.into_iter().filter(|node| node.state == NodeState::Alive && node.role == Role::Node);
    println!("{what}: {} nodes are left that are no spares", left.count());
    let finished = expect_same(&cluster, job, &due, &what);
    println!("{what}: {:.2} s", finished.elapsed.as_secs_f64());
    cluster.assert_idle();
    cluster.stop();
}

fn libraries(random: &mut Random) -> Vec<&'static Library> {
    sample(&LIBRARIES.each_ref(), 1, random)
}

#[test]
fn five_in_a_row_with_five_spares() {
    let mut random = Random::from_environment();
    for library in libraries(&mut random) {
        survives(library, Setup::new(Kind::Logical, 4).spares(5), 5, &mut random);
    }
}

/// The witness votes, and it keeps the log of the last node. Without one the last two have no majority of one another, and neither may die any more.
#[test]
fn four_nodes_go_down_to_one_with_a_witness_and_to_two_without() {
    let mut random = Random::from_environment();
    let both = [(Setup::new(Kind::Logical, 4).witness(), 3), (Setup::new(Kind::Logical, 4), 2)];
    let chosen = if is_long() { &both[..] } else { &both[random.below(2)..][..1] };
    for (setup, deaths) in chosen {
        for library in libraries(&mut random) {
            survives(library, setup.clone(), *deaths, &mut random);
        }
    }
}
