//! How RADIC behaves with many nodes: 64 to 10,000 real [`Node`](radic_protector::node::Node)s under one virtual clock. How long a death takes to be detected, until
//! every node has the view without the dead, and until every node knows where the lost processes are; how many messages that takes of each node.
//!
//! ```text
//! cargo run --release -p radic-sim -- scale --nodes 64,256,1000,4000,10000 --svg docs/scale
//! ```
//!
//! - [`mod@watch`]: what a run waits for, and what it counts;
//! - [`report`]: the table; [`plot`]: the pictures.
//!
//! The cluster is the one that seeds run on ([`World`]), with the plan of [`Plan::quiet`]: its network only delays, it loses nothing, and has room for
//! everything; ranks do nothing but wait. The time that a processor takes is not part of the virtual time, unless [`Costs`] say so.

pub mod plot;
pub mod report;
pub mod watch;

use std::collections::BTreeMap;
use std::time::Duration;

use radic_wire::limits;
use serde::Serialize;

use self::watch::{Counts, Watch};
use crate::cluster::counts::Breaks;
use crate::cluster::plan::{Costs, Fault, Plan};
use crate::cluster::world::World;

/// Time over which the messages of a cluster to which nothing happens are counted.
const STEADY: Duration = Duration::from_secs(5);
/// A run that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most nodes of which it is tried to have them all join at once: each is sent the whole view.
pub const AT_ONCE: usize = 1_000;

/// How a machine ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// It is switched off, or cut off: nothing comes from it any more.
    Silent,
    /// Its daemon is killed: the kernel resets its connections, and refuses new ones.
    Reset,
}

impl Death {
    fn of(self, machine: usize) -> Fault {
        match self {
            Death::Silent => Fault::PowerOff(machine),
            Death::Reset => Fault::Kill(machine),
        }
    }
}

/// What a run is done under.
#[derive(Debug, Clone, Copy, Default)]
pub struct Conditions {
    /// What the work of a daemon costs.
    pub costs: Costs,
    /// Another node has died before: the last one. So the node that leads has a link with every node, and every node has one with it.
    pub warm: bool,
}

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
    /// Until every node knew where every lost process is, which is brought back meanwhile.
    pub known_ms: f64,
    /// Of that, from when the first lost process was back.
    pub spread_ms: f64,
    /// Of each node in each second before the death.
    pub steady: Load,
    /// Of each node from the death until half a second after all knew, without heartbeats.
    pub failure: Load,
    /// Most connections that others have to one node.
    pub callers: usize,
    /// Callers that were turned away since the death: too many had not said hello at that daemon, or it served
    /// [`limits::CONNECTIONS`]. They come again.
    pub turned_away: u64,
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

fn watch(world: &mut World) -> &mut Watch {
    world.watch.as_mut().expect("a run is measured")
}

fn seen(world: &World) -> &Watch {
    world.watch.as_ref().expect("a run is measured")
}

/// A cluster of so many machines, which is measured.
fn cluster(seed: u64, nodes: usize, ranks: usize, costs: Costs) -> World {
    let mut world = World::new(Plan::quiet(seed, nodes, ranks as u32, costs), Breaks::default(), false);
    world.watch = Some(Box::default());
    world
}

/// Runs until nothing is waited for any more, for at most this time. Whether that came to pass.
fn run_until(world: &mut World, limit: Duration, done: impl Fn(&World) -> bool) -> bool {
    let end = world.now + limit;
    while !done(world) {
        if world.queue.next_at().is_none_or(|at| at > end) {
            world.now = end;
            return false;
        }
        world.next();
    }
    true
}

/// Runs for this time.
fn run_for(world: &mut World, time: Duration) {
    run_until(world, time, |_| false);
}

fn load(world: &World, beats: bool, seconds: f64) -> Load {
    let machines = || (0..world.machines.len()).filter(|at| world.is_up(*at)).map(|at| seen(world).load(at));
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

/// These machines die now. Whether every node knows then what it should.
fn kill(world: &mut World, dead: &[usize], death: Death) -> Result<(), String> {
    let names = dead.iter().map(|at| world.machines[*at].member.id.name.clone()).collect();
    let survivors = (0..world.machines.len()).filter(|at| world.is_up(*at)).count() - dead.len();
    watch(world).begin(names, dead, survivors, survivors);
    dead.iter().for_each(|at| world.cause(death.of(*at)));
    let is_over = |world: &World| seen(world).all_know() || !seen(world).is_well();
    if !run_until(world, PATIENCE, is_over) {
        return Err(format!("not every node knows after {} s: {}", PATIENCE.as_secs(), seen(world).describe()));
    }
    run_for(world, Duration::from_millis(500));
    if seen(world).is_well() { Ok(()) } else { Err(seen(world).describe()) }
}

/// Starts the job, and waits until each rank has an image.
fn start(world: &mut World, ranks: usize) -> Result<(), String> {
    run_for(world, Duration::from_secs(1));
    world.start_job();
    let is_there = |world: &World| seen(world).joined == ranks as u64 && seen(world).images.len() == ranks;
    if !run_until(world, PATIENCE, is_there) {
        let (joined, images) = (seen(world).joined, seen(world).images.len());
        return Err(format!("only {joined} of {ranks} ranks have started, and {images} have images"));
    }
    run_for(world, Duration::from_secs(1));
    Ok(())
}

/// Runs one scenario with so many nodes.
pub fn run(nodes: usize, scenario: Scenario, seed: u64, conditions: Conditions) -> Result<Outcome, String> {
    let ranks = nodes.min(scenario.ranks);
    let mut world = cluster(seed, nodes, ranks, conditions.costs);
    start(&mut world, ranks)?;
    if conditions.warm {
        kill(&mut world, &[nodes - 1], Death::Silent)?;
    }
    watch(&mut world).reset_counts();
    run_for(&mut world, STEADY);
    let steady = load(&world, true, STEADY.as_secs_f64());
    // Deaths do not wait for a heartbeat.
    let moment = Duration::from_micros(world.dice.below(100_000) as u64);
    run_for(&mut world, moment);
    let death = world.now;
    kill(&mut world, &victims(scenario, ranks), scenario.death)?;
    Ok(outcome(&world, nodes, scenario, seed, death, steady))
}

fn outcome(world: &World, nodes: usize, scenario: Scenario, seed: u64, death: Duration, steady: Load) -> Outcome {
    let watch = seen(world);
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
        callers: world.callers().into_iter().max().unwrap_or(0),
        turned_away: watch.turned_away,
        suspected_alive: watch.slandered.len(),
        confirmed_alive: watch.wronged.len(),
        frozen: watch.frozen.len(),
        kinds: watch.kinds.clone(),
    }
}

/// One node joins so many, or so many join the first all at once.
pub fn join(nodes: usize, at_once: bool, seed: u64, costs: Costs) -> Result<Joining, String> {
    let (before, joiners) = if at_once { (1, nodes - 1) } else { (nodes, 1) };
    let all = before + joiners;
    if all > limits::MEMBERS {
        return Err(format!("a view has at most {} members", limits::MEMBERS));
    }
    let mut world = cluster(seed, before, 0, costs);
    run_for(&mut world, Duration::from_secs(3));
    watch(&mut world).begin(Default::default(), &[], all, all);
    let begin = world.now;
    (0..joiners).for_each(|_| world.add_machine());
    if !run_until(&mut world, PATIENCE, |world| seen(world).all_agree()) {
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
            let outcome = run(200, scenario, 1, Conditions::default()).unwrap();
            let bound = if scenario.death == Death::Silent { 800.0 } else { 50.0 };
            assert!(outcome.detected_ms < bound, "{outcome:?}");
            assert!(outcome.agreed_ms < bound + 50.0 && outcome.known_ms < bound + 100.0, "{outcome:?}");
            assert_eq!((outcome.confirmed_alive, outcome.frozen), (0, 0), "{outcome:?}");
            // Ten heartbeats a second are sent, and as many heard.
            assert!((20.0..30.0).contains(&outcome.steady.mean), "{outcome:?}");
            assert!(outcome.failure.mean < 60.0, "{outcome:?}");
        }
    }

    #[test]
    fn one_seed_is_one_run() {
        let twice = [(); 2].map(|()| run(64, SCENARIOS[2], 7, Conditions::default()).unwrap());
        assert_eq!(twice[0], twice[1]);
        assert_ne!(twice[0].detected_ms, run(64, SCENARIOS[2], 8, Conditions::default()).unwrap().detected_ms);
    }

    #[test]
    fn a_daemon_that_is_busy_answers_later() {
        let us = Duration::from_micros;
        let costs = Costs { message: us(15), handshake: us(150) };
        let [idle, busy] = [Costs::default(), costs].map(|costs| {
            let conditions = Conditions { costs, warm: true };
            run(48, SCENARIOS[1], 1, conditions).unwrap().agreed_ms
        });
        assert!(busy > idle + 2.0, "{busy} ms, and {idle} ms where work takes no time");
    }

    /// All nodes answer the one that leads in one moment, and each has a place there.
    #[test]
    fn no_member_is_turned_away_where_there_are_more_than_strangers_may_be() {
        let outcome = run(2 * limits::HANDSHAKES + 88, SCENARIOS[4], 1, Conditions::default()).unwrap();
        assert!(outcome.callers > 2 * limits::HANDSHAKES, "{outcome:?}");
        assert_eq!(outcome.turned_away, 0, "{outcome:?}");
    }

    #[test]
    fn nodes_join_one_by_one_and_all_at_once() {
        let one = join(100, false, 1, Costs::default()).unwrap();
        assert!(one.agreed_ms < 50.0, "{one:?}");
        let all = join(100, true, 1, Costs::default()).unwrap();
        assert!(all.agreed_ms < 2_000.0, "{all:?}");
    }
}
