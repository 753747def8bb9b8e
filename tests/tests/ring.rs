//! A ring of 64 protectors on one machine: one membership, deaths seen by all in time, no false death under load.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use radic_tests::client::{Events, describe};
use radic_tests::cluster::{Cluster, Kind};
use radic_tests::random::Random;
use radic_wire::event::{Event, EventName};
use radic_wire::local::NodeState;
use rustix::process::Signal;

const NODES: usize = 64;
const KILLED: usize = 5;
/// Time for all survivors to have a view without the dead.
const SEEN: Duration = Duration::from_secs(2);
/// Daemons that are paused at a time, at most, and for how long. One that hangs for 1.4 s is dead.
const PAUSED: usize = 8;
const PAUSE: (Duration, Duration) = (Duration::from_millis(300), Duration::from_millis(700));
/// Lines of the story of a failure, and how long before a false death it begins, in milliseconds.
const STORY: usize = 60;
const BEFORE: u64 = 3000;

fn now_ms() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().expect("the clock is past 1970").as_millis()
}

/// The nodes that a view event says are gone.
fn gone(event: &Event) -> BTreeSet<String> {
    let list = event.text.split_once("gone: ").map_or("", |(_, list)| list);
    list.split(", ").filter(|name| event.event == EventName::View && !name.is_empty()).map(str::to_owned).collect()
}

/// What the nodes said of each other since then, in as many lines as a machine that keeps only the last ones will show.
fn story(events: &Events, since: u64) -> String {
    let about_members = [
        EventName::View,
        EventName::Suspect,
        EventName::Withdrawn,
        EventName::Confirm,
        EventName::Descheduled,
        EventName::Frozen,
        EventName::Limit,
    ];
    let mut told: Vec<&Event> =
        events.seen().iter().filter(|event| event.at_ms >= since && about_members.contains(&event.event)).collect();
    told.sort_by_key(|event| (event.at_ms, event.node.clone(), event.seq));
    // Of a view every node tells: the first one will do.
    let mut views = BTreeSet::new();
    told.retain(|event| event.event != EventName::View || views.insert(event.text.clone()));
    let left_out = told.len().saturating_sub(STORY);
    let lines: Vec<String> = told[..told.len() - left_out].iter().map(|event| describe(event)).collect();
    format!("what was said since {since}:\n{}\n  and {left_out} events more", lines.join("\n"))
}

/// View and members as a node itself sees them.
fn membership_at(cluster: &Cluster, node: &str) -> (u64, Vec<String>) {
    let status = cluster.status_at(node);
    assert_eq!(status.answered_by.as_str(), node);
    let members = status.nodes.iter().filter(|n| !matches!(n.state, NodeState::Dead | NodeState::Left));
    (status.view, members.map(|n| n.name.to_string()).collect())
}

/// All these nodes see the same view, with just them as members.
fn expect_one_membership(cluster: &Cluster, nodes: &BTreeSet<String>) -> Result<(), String> {
    let then = Instant::now();
    let first = nodes.first().expect("there are nodes");
    let expected = membership_at(cluster, first);
    if expected.1.iter().cloned().collect::<BTreeSet<_>>() != *nodes {
        return Err(format!("{first} sees in view {} the members {:?}, not {nodes:?}", expected.0, expected.1));
    }
    for node in nodes {
        let other = membership_at(cluster, node);
        if other != expected {
            return Err(format!("{node} sees in view {} the members {:?}, not {expected:?}", other.0, other.1));
        }
    }
    println!("{} nodes agree on view {} (asked one by one in {:.1?})", nodes.len(), expected.0, then.elapsed());
    Ok(())
}

/// Waits until every survivor has reported views that lack all the killed; when each of them had the last one of these.
fn wait_for_deaths(
    events: &mut Events,
    killed: &BTreeSet<String>,
    survivors: &BTreeSet<String>,
) -> Result<BTreeMap<String, u64>, String> {
    let mut missing: BTreeMap<String, BTreeSet<String>> = survivors.iter().map(|s| (s.clone(), killed.clone())).collect();
    let mut seen = BTreeMap::new();
    events.wait(Duration::from_secs(10), |event| {
        if let Some(missing) = missing.get_mut(event.node.as_str()) {
            let gone = gone(event);
            missing.retain(|name| !gone.contains(name));
            if !gone.is_empty() && missing.is_empty() {
                seen.entry(event.node.to_string()).or_insert(event.at_ms);
            }
        }
        seen.len() == survivors.len()
    });
    missing.retain(|_, missing| !missing.is_empty());
    if missing.is_empty() { Ok(seen) } else { Err(format!("these have not seen all deaths within 10 s: {missing:?}")) }
}

/// Nodes at random, two of them neighbours in the ring: if both hang, no node is left that watches the first.
fn choose(cluster: &Cluster, all: &BTreeSet<String>, random: &mut Random) -> BTreeSet<String> {
    let names: Vec<String> = all.iter().cloned().collect();
    let mut chosen: BTreeSet<_> = random.choose(KILLED - 1, &names).into_iter().collect();
    let (_, ring) = membership_at(cluster, &names[0]);
    let places = (0..ring.len()).filter(|place| chosen.contains(&ring[*place])).map(|place| (place + 1) % ring.len());
    let next = places.map(|place| ring[place].clone()).find(|next| !chosen.contains(next)).expect("not all are chosen");
    chosen.insert(next);
    chosen
}

/// Signals some nodes at random, at once; checks when the others have seen it, and that they agree. Returns these others.
fn signal_and_measure(
    cluster: &Cluster,
    all: &BTreeSet<String>,
    signal: Signal,
    random: &mut Random,
) -> Result<BTreeSet<String>, String> {
    let killed = choose(cluster, all, random);
    let survivors: BTreeSet<_> = all.difference(&killed).cloned().collect();
    let what = format!("{} of {killed:?}", if signal == Signal::STOP { "SIGSTOP" } else { "SIGKILL" });
    println!("{what}");
    let mut events = cluster.events_at(survivors.first().expect("some survive"));
    // Held beforehand: the signals come within microseconds.
    let victims: Vec<_> = killed.iter().map(|node| cluster.protector(node)).collect();
    let then = now_ms() as u64;
    victims.iter().for_each(|victim| victim.signal(signal));
    let seen = wait_for_deaths(&mut events, &killed, &survivors);
    let seen = seen.map_err(|error| format!("{what} at {then}: {error}; {}", story(&events, then)))?;
    let mut times: Vec<u64> = seen.values().map(|at| at.saturating_sub(then)).collect();
    times.sort_unstable();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!("{KILLED} of {} dead: seen by the others after {median} ms (median), {worst} ms (last)", all.len());
    if u128::from(worst) >= SEEN.as_millis() {
        return Err(format!("{what} at {then} was seen by all only after {worst} ms; {}", story(&events, then)));
    }
    expect_one_membership(cluster, &survivors).map_err(|error| format!("{what}: {error}; {}", story(&events, then)))?;
    if signal == Signal::STOP {
        // Awake again, they learn that they are dead.
        victims.iter().for_each(|victim| victim.signal(Signal::CONT));
        for (victim, node) in victims.iter().zip(&killed) {
            if !victim.wait(Duration::from_secs(5)) {
                let log = cluster.log(node);
                let last: Vec<_> = log.lines().rev().take(10).collect();
                let last: String = last.into_iter().rev().map(|line| format!("\n  {line}")).collect();
                let story = story(&events, then);
                return Err(format!("{what}: 5 s after SIGCONT {node} still runs; its log ends so:{last}\n{story}"));
            }
        }
    }
    Ok(survivors)
}

/// Keeps every core busy until it is dropped.
struct Load {
    stop: std::sync::Arc<AtomicBool>,
}

impl Load {
    fn start() -> Self {
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        for _ in 0..cores {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        println!("{cores} busy loops");
        Load { stop }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Time that a phase lasts in which no node may be declared dead.
fn phase() -> Duration {
    let long = radic_tests::recovery::is_long();
    Duration::from_secs(if long { 300 } else { 5 })
}

/// The events of a phase in which no node may be declared dead.
struct Calm {
    events: Events,
    start: u64,
}

impl Calm {
    fn at(cluster: &Cluster, nodes: &BTreeSet<String>) -> Self {
        let events = cluster.events_at(nodes.first().expect("there are nodes"));
        Calm { events, start: now_ms() as u64 }
    }

    /// Waits, and fails if a node is declared dead meanwhile.
    fn pass(&mut self, time: Duration) -> Result<(), String> {
        let bad = self.events.wait(time, |event| {
            let death = matches!(event.event, EventName::Confirm | EventName::Frozen) || !gone(event).is_empty();
            event.at_ms >= self.start && death
        });
        let Some(bad) = bad else { return Ok(()) };
        // What others have to say of it may still be on its way.
        self.events.wait(Duration::from_millis(500), |_| false);
        let since = self.start.max(bad.at_ms.saturating_sub(BEFORE));
        Err(format!("a false death:\n{}\n{}", describe(&bad), story(&self.events, since)))
    }

    fn report(&self, what: &str) {
        let here = |event: &&Event| event.at_ms >= self.start;
        let count = |name| self.events.seen().iter().filter(here).filter(|event| event.event == name).count();
        let (suspected, withdrawn, late) =
            (count(EventName::Suspect), count(EventName::Withdrawn), count(EventName::Descheduled));
        println!("{:?} {what}: {suspected} suspicions, {withdrawn} withdrawn, {late} times not scheduled", phase());
    }
}

/// No node is declared dead, though every core is busy.
fn expect_no_death_under_load(cluster: &Cluster, nodes: &BTreeSet<String>) -> Result<(), String> {
    let mut calm = Calm::at(cluster, nodes);
    let load = Load::start();
    calm.pass(phase())?;
    drop(load);
    calm.report("under load");
    expect_one_membership(cluster, nodes).map_err(|error| format!("{error}; {}", story(&calm.events, calm.start)))
}

/// No node is declared dead, though daemons do not run for a while, as under a hypervisor that gives the processor to others: one or several
/// at a time, for [`PAUSE`] each.
fn expect_no_death_by_pauses(cluster: &Cluster, nodes: &BTreeSet<String>, random: &mut Random) -> Result<(), String> {
    let mut calm = Calm::at(cluster, nodes);
    // The first one tells us the events.
    let names: Vec<String> = nodes.iter().skip(1).cloned().collect();
    let protectors: BTreeMap<&String, _> = names.iter().map(|node| (node, cluster.protector(node))).collect();
    let (mut rounds, mut longest) = (0, Duration::ZERO);
    let end = Instant::now() + phase();
    while Instant::now() < end {
        let count = 1 + random.below(PAUSED);
        let mut chosen = random.choose(count, &names);
        let mut wakes: Vec<(Duration, String)> =
            chosen.drain(..).map(|node| (PAUSE.0 + (PAUSE.1 - PAUSE.0) * random.below(1000) as u32 / 1000, node)).collect();
        wakes.sort();
        let then = Instant::now();
        wakes.iter().for_each(|(_, node)| protectors[node].signal(Signal::STOP));
        for (at, node) in &wakes {
            let passed = calm.pass(at.saturating_sub(then.elapsed()));
            let paused = then.elapsed();
            protectors[node].signal(Signal::CONT);
            longest = longest.max(if passed.is_ok() { paused } else { *at });
            passed.map_err(|bad| format!("{bad}\npaused for (at most {longest:?} in truth): {wakes:?}"))?;
        }
        rounds += 1;
        calm.pass(Duration::from_millis(random.below(300) as u64))?;
    }
    calm.report(&format!("with {rounds} times up to {PAUSED} daemons paused for {PAUSE:?} (in truth at most {longest:.1?})"));
    calm.pass(Duration::from_secs(2))?;
    expect_one_membership(cluster, nodes).map_err(|error| format!("{error}; {}", story(&calm.events, calm.start)))
}

fn die_and_be_starved(cluster: &Cluster) -> Result<(), String> {
    let all: BTreeSet<String> = cluster.node_names().into_iter().collect();
    assert_eq!(all.len(), NODES);
    let mut random = Random::from_environment();
    expect_one_membership(cluster, &all)?;
    expect_no_death_under_load(cluster, &all)?;
    expect_no_death_by_pauses(cluster, &all, &mut random)?;
    // A killed process closes its connections; one that hangs does not, and is found by its silence.
    let survivors = signal_and_measure(cluster, &all, Signal::KILL, &mut random)?;
    signal_and_measure(cluster, &survivors, Signal::STOP, &mut random)?;
    Ok(())
}

#[test]
fn sixty_four_protectors_agree_in_death_and_under_load() {
    let then = Instant::now();
    let cluster = Cluster::start(Kind::Logical, NODES);
    println!("{NODES} protectors started in {:.1?}", then.elapsed());
    if let Err(why) = die_and_be_starved(&cluster) {
        // Ended before we panic: what went wrong is to be the last word, not 64 logs.
        drop(cluster);
        panic!("{why}");
    }
    let then = Instant::now();
    cluster.stop();
    println!("stopped in {:.1?}", then.elapsed());
}
