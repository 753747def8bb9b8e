//! Standard input of rank 0: every byte once, whatever dies.
#![forbid(unsafe_code)]

use std::time::Duration;

use radic_tests::Running;
use radic_tests::cluster::{Cluster, Kind};
use radic_tests::library::compiled;
use radic_tests::process::{Process, eventually};
use radic_tests::protection::ON;
use radic_tests::random::Random;
use radic_wire::event::{Event, EventName};
use rustix::process::Signal;

/// Time for one job, its restarts included.
const LIMIT: Duration = Duration::from_secs(120);
/// Time for something that takes far less.
const SOON: Duration = Duration::from_secs(60);
/// Lines that are typed, and what the program does with each.
const LINES: usize = 2500;
const MICROSECONDS: &str = "1000";
/// The terminal is connected to n1, which hosts nothing: rank 0 is on n2.
const ELSEWHERE: &str = "--nodes n2,n3,n4 --protect on --ckpt-interval 0.2";

fn typed(lines: usize) -> String {
    (0..lines).map(|at| format!("this is line {at} of {lines}\n")).collect()
}

fn printed(lines: usize) -> Vec<String> {
    (0..lines).map(|at| format!("{at} this is line {at} of {lines}")).chain([format!("done, {lines} lines")]).collect()
}

fn start(cluster: &Cluster, flags: &str, how: &str) -> Running {
    let program = compiled("net", "asks");
    cluster.job(1, flags, &[&program, how, MICROSECONDS]).stdin(typed(LINES)).limit(LIMIT).start()
}

fn finish(cluster: &Cluster, running: Running) {
    let finished = running.give(LIMIT).wait().expect(0);
    let stdout = finished.stdout();
    let lines: Vec<&str> = stdout.lines().collect();
    let due = printed(LINES);
    assert_eq!(lines.iter().zip(&due).position(|(line, due)| line != due), None, "{finished}");
    assert_eq!(lines.len(), due.len(), "{finished}");
    cluster.assert_idle();
}

/// Waits for so many more committed checkpoints of rank 0. Its process id.
fn checkpoints(cluster: &Cluster, more: u64) -> u32 {
    let look = || {
        let processes = cluster.status().processes;
        let process = processes.iter().find(|process| process.running)?;
        Some((process.pid, process.counters.as_ref()?.committed))
    };
    let before = look().map_or(0, |(_, committed)| committed);
    let mut found = None;
    eventually(SOON, "checkpoints are committed", || {
        found = look().filter(|(_, committed)| *committed >= before + more);
        found.is_some()
    });
    found.expect("it was waited for").0
}

fn lives(event: &Event) -> bool {
    event.event == EventName::Live
}

/// The process is killed while input lies unread in its pipe, and while some of what it has read is not covered by its image.
#[test]
fn what_is_typed_is_read_once_though_rank_0_dies() {
    let cluster = Cluster::start(Kind::Logical, 2);
    for how in ["stdio", "read", "poll"] {
        let running = start(&cluster, ON, how);
        for _ in 0..2 {
            let mut events = cluster.events_at("n1");
            let pid = checkpoints(&cluster, 1);
            Process::open(pid).expect("rank 0").signal(Signal::KILL);
            events.expect("rank 0 to be live again", SOON, lives);
        }
        finish(&cluster, running);
    }
    cluster.stop();
}

/// The node of rank 0, which is the job's home, too.
#[test]
fn what_is_typed_is_read_once_though_its_node_dies() {
    let mut random = Random::from_environment();
    let cluster = Cluster::start(Kind::Logical, 4);
    let running = start(&cluster, ELSEWHERE, "stdio");
    checkpoints(&cluster, 1 + random.below(3) as u64);
    let mut events = cluster.events_at("n1");
    cluster.radic(["inject", "kill-node", "n2"]).run().expect(0);
    events.expect("rank 0 to be live again", SOON, lives);
    finish(&cluster, running);
    cluster.stop();
}

/// A terminal that has nothing to say yet, and says it to the process that was brought back.
#[test]
fn what_is_typed_after_a_restart_is_read() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let program = compiled("net", "asks");
    let mut running = cluster.job(1, ON, &[&program, "read", "0"]).stdin_open().limit(LIMIT).start();
    running.type_in(b"one\ntw");
    running.until_line("0 one");
    let mut events = cluster.events_at("n1");
    let pid = checkpoints(&cluster, 1);
    Process::open(pid).expect("rank 0").signal(Signal::KILL);
    events.expect("rank 0 to be live again", SOON, lives);
    running.type_in(b"o\nthree\n");
    running.until_line("2 three");
    running.close_stdin();
    let finished = running.wait().expect(0);
    assert_eq!(finished.stdout(), "0 one\n1 two\n2 three\ndone, 3 lines\n");
    cluster.assert_idle();
    cluster.stop();
}
