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

fn now_ms() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().expect("the clock is past 1970").as_millis()
}

/// The nodes that a view event says are gone.
fn gone(event: &Event) -> BTreeSet<String> {
    let list = event.text.split_once("gone: ").map_or("", |(_, list)| list);
    list.split(", ").filter(|name| event.event == EventName::View && !name.is_empty()).map(str::to_owned).collect()
}

/// View and members as a node itself sees them.
fn membership_at(cluster: &Cluster, node: &str) -> (u64, Vec<String>) {
    let status = cluster.status_at(node);
    assert_eq!(status.answered_by.as_str(), node);
    let members = status.nodes.iter().filter(|n| !matches!(n.state, NodeState::Dead | NodeState::Left));
    (status.view, members.map(|n| n.name.to_string()).collect())
}

/// All these nodes see the same view, with just them as members.
fn expect_one_membership(cluster: &Cluster, nodes: &BTreeSet<String>) {
    let then = Instant::now();
    let expected = membership_at(cluster, nodes.first().expect("there are nodes"));
    assert_eq!(&expected.1.iter().cloned().collect::<BTreeSet<_>>(), nodes);
    for node in nodes {
        assert_eq!(membership_at(cluster, node), expected, "{node} sees another membership");
    }
    println!("{} nodes agree on view {} (asked one by one in {:.1?})", nodes.len(), expected.0, then.elapsed());
}

/// Waits until every survivor has reported views that lack all the killed; when each of them had the last one of these.
fn wait_for_deaths(events: &mut Events, killed: &BTreeSet<String>, survivors: &BTreeSet<String>) -> BTreeMap<String, u64> {
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
    assert!(missing.is_empty(), "these have not seen all deaths within 10 s: {missing:?}");
    seen
}

/// Signals some nodes at random, at once; checks when the others have seen it, and that they agree. Returns these others.
fn signal_and_measure(cluster: &Cluster, all: &BTreeSet<String>, signal: Signal, random: &mut Random) -> BTreeSet<String> {
    let names: Vec<String> = all.iter().cloned().collect();
    let killed: BTreeSet<_> = random.choose(KILLED, &names).into_iter().collect();
    let survivors: BTreeSet<_> = all.difference(&killed).cloned().collect();
    println!(
        "{} {}",
        if signal == Signal::STOP { "stopping" } else { "killing" },
        killed.iter().cloned().collect::<Vec<_>>().join(", ")
    );
    let mut events = cluster.events_at(survivors.first().expect("some survive"));
    // Held beforehand: the signals come within microseconds.
    let victims: Vec<_> = killed.iter().map(|node| cluster.protector(node)).collect();
    let then = now_ms() as u64;
    victims.iter().for_each(|victim| victim.signal(signal));
    let seen = wait_for_deaths(&mut events, &killed, &survivors);
    let mut times: Vec<u64> = seen.values().map(|at| at.saturating_sub(then)).collect();
    times.sort_unstable();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!("{KILLED} of {} dead: seen by the others after {median} ms (median), {worst} ms (last)", all.len());
    assert!(u128::from(worst) < SEEN.as_millis(), "seen by all only after {worst} ms");
    expect_one_membership(cluster, &survivors);
    if signal == Signal::STOP {
        // Awake again, they learn that they are dead.
        victims.iter().for_each(|victim| victim.signal(Signal::CONT));
        assert!(victims.iter().all(|victim| victim.wait(Duration::from_secs(5))), "a zombie lives on");
    }
    survivors
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

/// Nobody is declared dead, though every core is busy.
fn expect_no_false_death(cluster: &Cluster, nodes: &BTreeSet<String>) {
    let long = std::env::var_os("RADIC_LONG").is_some();
    let time = Duration::from_secs(if long { 300 } else { 20 });
    let observer = nodes.first().expect("there are nodes");
    let mut events = cluster.events_at(observer);
    let start = now_ms() as u64;
    let load = Load::start();
    let bad = events.wait(time, |event| {
        let death = matches!(event.event, EventName::Confirm | EventName::Frozen) || !gone(event).is_empty();
        event.at_ms >= start && death
    });
    drop(load);
    let count = |name| events.seen().iter().filter(|event| event.event == name && event.at_ms >= start).count();
    let (suspected, withdrawn, late) = (count(EventName::Suspect), count(EventName::Withdrawn), count(EventName::Descheduled));
    println!("{time:?} under load: {suspected} suspicions, {withdrawn} withdrawn, {late} times not scheduled");
    assert!(bad.is_none(), "a false death: {}", describe(&bad.expect("checked")));
    expect_one_membership(cluster, nodes);
}

#[test]
fn sixty_four_protectors_agree_in_death_and_under_load() {
    let then = Instant::now();
    let cluster = Cluster::start(Kind::Logical, NODES);
    println!("{NODES} protectors started in {:.1?}", then.elapsed());
    let all: BTreeSet<String> = cluster.node_names().into_iter().collect();
    assert_eq!(all.len(), NODES);
    expect_one_membership(&cluster, &all);
    expect_no_false_death(&cluster, &all);
    // A killed process closes its connections; one that hangs does not, and is found by its silence.
    let mut random = Random::from_environment();
    let survivors = signal_and_measure(&cluster, &all, Signal::KILL, &mut random);
    signal_and_measure(&cluster, &survivors, Signal::STOP, &mut random);
    let then = Instant::now();
    cluster.stop();
    println!("stopped in {:.1?}", then.elapsed());
}
