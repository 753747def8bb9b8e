//! How RADIC behaves with many nodes: 64 to 10,000 real [`Node`](radic_protector::node::Node)s under one virtual clock. How long a death takes to be detected, until
//! every node has the view without the dead, and until every node knows where the lost processes are; how many messages that takes of each node.
//!
//! ```text
//! cargo run --release -p radic-sim -- scale --nodes 64,256,1000,4000,10000 --svg docs/scale
//! ```
//!
//! - [`world`]: the machines and the network; `processes`: what a node sees of processes and of its log service; [`watch`]: what a run waits for;
//! - [`report`]: the table; [`plot`]: the pictures.
//!
//! The network only delays: it loses nothing, and has room for everything. The time that a processor takes is not part of the virtual time, unless
//! [`Costs`] say so. What a view is worked out to be is shared by all nodes of a run ([`Views`](radic_protector::membership::Views)), or ten thousand of them would
//! hold ten thousand views of ten thousand members; each still decides for itself which of them it has.

pub mod plot;
mod processes;
pub mod report;
pub mod watch;
pub mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use radic_wire::limits;
use serde::Serialize;

use self::watch::Watch;
use self::world::World;
pub use self::world::{Costs, Counts, Death};

/// Time over which the messages of a cluster to which nothing happens are counted.
const STEADY: Duration = Duration::from_secs(5);
/// A run that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most nodes of which it is tried to have them all join at once: each is sent the whole view.
pub const AT_ONCE: usize = 1_000;

/// Which nodes die, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scenario {
    /// What it is called.
    pub name: &'static str,
    /// How many die at once, none of them the protector of another; none: it is the first, which leads and is the job's home.
    pub victims: usize,
    /// How.
    pub death: Death,
    /// Most ranks of the job, one on each of the first nodes. Each host knows the place of all; and a new home asks every node for each rank.
    pub ranks: usize,
}

/// All that are run.
pub const SCENARIOS: [Scenario; 5] = [
    Scenario { name: "one silent", victims: 1, death: Death::Silent, ranks: 1_000 },
    Scenario { name: "one reset", victims: 1, death: Death::Reset, ranks: 1_000 },
    Scenario { name: "three silent", victims: 3, death: Death::Silent, ranks: 1_000 },
    Scenario { name: "three reset", victims: 3, death: Death::Reset, ranks: 1_000 },
    Scenario { name: "the first silent", victims: 0, death: Death::Silent, ranks: 100 },
];

/// Messages of one node: that of the average one, and that of the busiest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Load {
    /// Messages sent and heard; heartbeats, too, where it is a rate.
    pub mean: f64,
    /// Those of the node that has most.
    pub most: f64,
    /// Bytes sent and heard.
    pub mean_bytes: f64,
    /// Those of the node that has most.
    pub most_bytes: f64,
}

/// What came of one run. Times are from the death on, in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Nodes.
    pub nodes: usize,
    /// The scenario's name.
    pub scenario: &'static str,
    /// Ranks of its job.
    pub ranks: usize,
    /// Its seed.
    pub seed: u64,
    /// Until the last of the dead was confirmed dead by its watcher.
    pub detected_ms: f64,
    /// Until the first node had a view without them, and until the last had it.
    pub decided_ms: f64,
    /// See above.
    pub agreed_ms: f64,
    /// Until every node knew where every lost process is; bringing one back takes no time here.
    pub known_ms: f64,
    /// Of that, from when the first lost process was back.
    pub spread_ms: f64,
    /// Of each node in each second before the death.
    pub steady: Load,
    /// Of each node from the death until half a second after all knew, without heartbeats.
    pub failure: Load,
    /// Most connections that others had opened to one node.
    pub callers: usize,
    /// Most of those with a handshake under way at once since the death.
    pub greeting: usize,
    /// Nodes with more callers than a daemon serves ([`limits::CONNECTIONS`]).
    pub overcrowded: usize,
    /// Nodes that are alive and were suspected, and those of them that were confirmed dead: false alarms.
    pub suspected_alive: usize,
    /// See above.
    pub confirmed_alive: usize,
    /// Nodes that said that they had no majority.
    pub frozen: usize,
    /// Messages since the death, by kind.
    pub kinds: BTreeMap<&'static str, u64>,
}

/// What came of joining.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Joining {
    /// Nodes before, or in the end if all join at once.
    pub nodes: usize,
    /// All at once, to one that is there.
    pub at_once: bool,
    /// Until every node has the view with the last of them, in milliseconds.
    pub agreed_ms: f64,
    /// Messages of each node.
    pub load: Load,
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn load(world: &World, beats: bool, seconds: f64) -> Load {
    let machines = || world.machines.iter().filter(|machine| machine.is_up()).map(|machine| machine.counts);
    let messages = |c: Counts| (c.sent + c.heard + if beats { c.beats } else { 0 }) as f64 / seconds;
    let bytes = |c: Counts| (c.sent_bytes + c.heard_bytes) as f64 / seconds;
    let count = machines().count() as f64;
    let most = |of: &dyn Fn(Counts) -> f64| machines().map(of).fold(0.0, f64::max);
    let mean = |of: &dyn Fn(Counts) -> f64| machines().map(of).sum::<f64>() / count;
    Load { mean: mean(&messages), most: most(&messages), mean_bytes: mean(&bytes), most_bytes: most(&bytes) }
}

/// The machines that are to die: those of ranks of the job, far apart.
fn victims(scenario: Scenario, ranks: usize) -> Vec<usize> {
    match scenario.victims {
        0 => vec![0],
        count => (0..count).map(|victim| ranks * (2 * victim + 1) / (2 * count)).collect(),
    }
}

/// Runs one scenario with so many nodes.
pub fn run(nodes: usize, scenario: Scenario, seed: u64, costs: Costs) -> Result<Outcome, String> {
    let ranks = nodes.min(scenario.ranks);
    let mut world = World::formed(seed, costs, nodes);
    world.run(Duration::from_secs(1));
    world.start_job(ranks as u32);
    if !world.run_until(PATIENCE, |watch| watch.joined == ranks as u64) {
        return Err(format!("only {} of {ranks} ranks have started", world.watch.joined));
    }
    world.run(Duration::from_secs(1));
    if costs.warm {
        world.warm();
    }
    world.reset_counts();
    world.run(STEADY);
    let steady = load(&world, true, STEADY.as_secs_f64());
    // Deaths do not wait for a heartbeat.
    let moment = Duration::from_micros(world.draw(100_000) as u64);
    world.run(moment);

    let dead = victims(scenario, ranks);
    let names = dead.iter().map(|at| world.machines[*at].member.id.name.clone()).collect();
    world.watch.begin(names, &dead, nodes - dead.len(), nodes - dead.len());
    world.reset_counts();
    let death = world.now;
    dead.iter().for_each(|at| world.kill(*at, scenario.death));
    if !world.run_until(PATIENCE, |watch| watch.all_know() || !watch.is_well()) {
        return Err(format!("not every node knows after {} s: {}", PATIENCE.as_secs(), world.watch.describe()));
    }
    world.run(Duration::from_millis(500));
    if !world.watch.is_well() {
        return Err(world.watch.describe());
    }
    Ok(outcome(&world, nodes, scenario, seed, death, steady))
}

fn outcome(world: &World, nodes: usize, scenario: Scenario, seed: u64, death: Duration, steady: Load) -> Outcome {
    let watch = &world.watch;
    let since = |time: Option<Duration>| ms(time.expect("every node knows") - death);
    let back = watch.told.values().copied().min();
    Outcome {
        nodes,
        scenario: scenario.name,
        ranks: nodes.min(scenario.ranks),
        seed,
        detected_ms: watch.all_confirmed().map_or(f64::NAN, |time| ms(time - death)),
        decided_ms: since(watch.first_view),
        agreed_ms: since(watch.last_view),
        known_ms: since(watch.last_heard),
        spread_ms: watch.last_heard.zip(back).map_or(f64::NAN, |(last, first)| ms(last - first)),
        steady,
        failure: load(world, false, 1.0),
        callers: world.machines.iter().map(|machine| machine.callers).max().unwrap_or(0),
        greeting: world.machines.iter().map(|machine| machine.most_greeting).max().unwrap_or(0),
        overcrowded: world.overcrowded(),
        suspected_alive: watch.slandered.len(),
        confirmed_alive: watch.wronged.len(),
        frozen: watch.frozen.len(),
        kinds: world.kinds.clone(),
    }
}

/// One node joins so many, or so many join the first all at once.
pub fn join(nodes: usize, at_once: bool, seed: u64, costs: Costs) -> Result<Joining, String> {
    let mut world = if at_once { World::new(seed, costs) } else { World::formed(seed, costs, nodes) };
    if at_once {
        world.join();
    }
    world.run(Duration::from_secs(3));
    world.reset_counts();
    let joiners = if at_once { nodes - 1 } else { 1 };
    let all = world.machines.len() + joiners;
    if all > limits::MEMBERS {
        return Err(format!("a view has at most {} members", limits::MEMBERS));
    }
    world.watch.begin(Default::default(), &[], all, all);
    let begin = world.now;
    (0..joiners).for_each(|_| _ = world.join());
    if !world.run_until(PATIENCE, Watch::all_agree) {
        return Err(format!("not every node is a member after {} s", PATIENCE.as_secs()));
    }
    let agreed_ms = ms(world.now - begin);
    Ok(Joining { nodes, at_once, agreed_ms, load: load(&world, false, 1.0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The defaults promise: a silent machine is found within heartbeat * missed and one probe.
    #[test]
    fn two_hundred_nodes_find_the_dead_in_time() {
        for scenario in SCENARIOS {
            let outcome = run(200, scenario, 1, Costs::default()).unwrap();
            let bound = if scenario.death == Death::Silent { 800.0 } else { 50.0 };
            assert!(outcome.detected_ms < bound, "{outcome:?}");
            assert!(outcome.agreed_ms < bound + 50.0 && outcome.known_ms < bound + 100.0, "{outcome:?}");
            assert_eq!((outcome.confirmed_alive, outcome.frozen), (0, 0), "{outcome:?}");
            // Ten heartbeats a second are sent, and as many heard.
            assert!((20.0..30.0).contains(&outcome.steady.mean), "{outcome:?}");
            // The next home asks every node for each rank.
            let asked = if scenario.victims == 0 { 4.0 * outcome.ranks as f64 } else { 0.0 };
            assert!(outcome.failure.mean < 60.0 + asked, "{outcome:?}");
        }
    }

    #[test]
    fn one_seed_is_one_run() {
        let twice = [(); 2].map(|()| run(64, SCENARIOS[2], 7, Costs::default()).unwrap());
        assert_eq!(twice[0], twice[1]);
        assert_ne!(twice[0].detected_ms, run(64, SCENARIOS[2], 8, Costs::default()).unwrap().detected_ms);
    }

    #[test]
    fn nodes_join_one_by_one_and_all_at_once() {
        let one = join(100, false, 1, Costs::default()).unwrap();
        assert!(one.agreed_ms < 50.0, "{one:?}");
        let all = join(100, true, 1, Costs::default()).unwrap();
        assert!(all.agreed_ms < 2_000.0, "{all:?}");
    }
}
