//! What scenarios in which nodes die have in common: the job, the moment, and that it ends as if nothing had happened.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use radic_wire::event::{Event, EventName};
use radic_wire::ids::JobId;

use crate::client::Events;
use crate::cluster::{Cluster, Kind, Setup};
use crate::command::{Finished, Running};
use crate::library::{LIBRARIES, Library, script};
use crate::random::Random;

/// Time for one job, with all that happens to it.
pub const LIMIT: Duration = Duration::from_secs(120);
/// Time for something that takes far less.
pub const SOON: Duration = Duration::from_secs(30);
/// Ranks of a job.
pub const RANKS: usize = 4;
/// The terminal is connected to n1, which hosts nothing: rank 0 is on n2.
pub const HOSTS: [&str; RANKS] = ["n2", "n3", "n4", "n5"];
/// A checkpoint of each rank about three times a second.
pub const FLAGS: &str = "--nodes n2,n3,n4,n5 --protect on --ckpt-interval 0.3";
/// The same nodes, without protection.
pub const PLAIN: &str = "--nodes n2,n3,n4,n5 --protect none";

/// What runs: compiled programs by name, the others by their script.
pub const PROGRAMS: [(&str, &[&str]); 6] = [
    ("ring", &["--laps", "600"]),
    ("pingpong", &[]),
    ("jacobi", &["--size", "800", "--iterations", "600", "--progress", "20", "--alone", "0"]),
    ("master_worker", &["--tasks", "4000"]),
    ("collectives", &["--rounds", "100"]),
    ("objects.py", &["50"]),
];

/// The command line of one of them.
pub fn command_of(library: &Library, (name, args): (&str, &[&str])) -> Vec<String> {
    let program = if name.ends_with(".py") { vec![library.python(), script(name)] } else { vec![library.program(name)] };
    program.into_iter().chain(args.iter().map(|arg| (*arg).to_owned())).collect()
}

/// Whether everything is to be tried, and not a sample of it.
pub fn is_long() -> bool {
    std::env::var_os("RADIC_LONG").is_some()
}

/// What is tried: all of it, or a few that are drawn.
pub fn sample<T: Clone>(all: &[T], few: usize, random: &mut Random) -> Vec<T> {
    if is_long() { all.to_vec() } else { (0..few).map(|_| all[random.below(all.len())].clone()).collect() }
}

/// One of the libraries.
pub fn any_library(random: &mut Random) -> &'static Library {
    &LIBRARIES[random.below(LIBRARIES.len())]
}

/// A cluster with a first node that hosts nothing.
pub fn cluster(kind: Kind, spares: usize) -> Cluster {
    Setup::new(kind, HOSTS.len() + 1).spares(spares).start()
}

/// The command line of `rounds`, compiled for a library.
pub fn rounds(library: &Library, args: &str) -> Vec<String> {
    [library.program("rounds")].into_iter().chain(args.split_whitespace().map(str::to_owned)).collect()
}

/// Starts a job of four ranks.
pub fn start(library: &Library, cluster: &Cluster, flags: &str, command: &[String]) -> Running {
    start_in(cluster.dir(), library, cluster, flags, command)
}

/// Starts a job of four ranks that work in a given directory.
pub fn start_in(dir: &Path, library: &Library, cluster: &Cluster, flags: &str, command: &[String]) -> Running {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    library.job(cluster, RANKS, flags, &words).dir(dir).limit(LIMIT).start()
}

/// What must be the same: each line in its place, but for the times that the ping-pong prints.
pub fn result(finished: &Finished) -> Vec<String> {
    let without_times = |line: &str| match line.ends_with("MiB/s") {
        false => line.to_owned(),
        true => line.split_whitespace().filter(|word| word.parse::<f64>().is_err() || !word.contains('.')).collect(),
    };
    finished.stdout().lines().map(without_times).collect()
}

/// What a command prints when nothing happens to it, without protection. It is run once in each process of tests, and without the pauses between its rounds: they
/// change nothing of what it prints.
pub fn due(library: &Library, cluster: &Cluster, command: &[String]) -> Vec<String> {
    static KNOWN: Mutex<BTreeMap<Vec<String>, Vec<String>>> = Mutex::new(BTreeMap::new());
    let mut command = command.to_vec();
    if let Some(at) = command.iter().position(|word| word == "--pause") {
        command.drain(at..at + 2);
    }
    let key = [&[library.name.to_owned()], &command[..]].concat();
    let run = || result(&start(library, cluster, "--protect none", &command).wait().expect(0));
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert_with(run).clone()
}

/// What happened to a job, for an engineer who has to find out why it failed.
pub fn story(cluster: &Cluster) -> String {
    let finished = cluster.radic(["events"]).run();
    let dull = [" start ", " rank-start ", " checkpoint "];
    finished.stdout().lines().filter(|line| !dull.iter().any(|word| line.contains(word))).fold(String::new(), |s, l| s + l + "\n")
}

/// The job ends by itself, with exit code 0.
///
/// # Panics
/// If not, with what happened.
pub fn end_well(cluster: &Cluster, mut job: Running, what: &str) -> Finished {
    if !job.ends_by_itself() {
        let story = story(cluster);
        job.fail(&format!("{what}: it did not end in time\n--- events\n{story}"));
    }
    let finished = job.wait();
    assert!(finished.code() == Some(0), "{what}: {finished}\n--- events\n{}", story(cluster));
    finished
}

/// The job's end is that of the undisturbed run.
///
/// # Panics
/// If not, with what happened.
pub fn expect_same(cluster: &Cluster, job: Running, due: &[String], what: &str) -> Finished {
    let finished = end_well(cluster, job, what);
    let same = result(&finished) == due;
    assert!(same, "{what}: {finished}\n--- due\n{}\n--- events\n{}", due.join("\n"), story(cluster));
    finished
}

/// Waits until a checkpoint of each of so many ranks of the next job is committed. Its number.
///
/// # Panics
/// If that does not come to pass in time.
pub fn first_checkpoints(events: &mut Events, ranks: usize) -> JobId {
    let (mut begun, mut job) = (BTreeSet::new(), None);
    while begun.len() < ranks {
        let event = events.expect("a first checkpoint of each rank", SOON, |e| e.event == EventName::Checkpoint);
        assert!(job.is_none() || job == event.job, "two jobs at the same time");
        job = event.job;
        begun.extend(event.rank);
    }
    job.expect("a checkpoint is of a job")
}

/// All events of a job until its end, as a node that still runs has heard of them.
///
/// # Panics
/// If its end is not heard of.
pub fn events_of(cluster: &Cluster, job: JobId) -> Vec<Event> {
    let mut events = cluster.events_at(cluster.status().answered_by.as_str());
    events.expect("the end of the job", SOON, |e| e.event == EventName::JobEnd && e.job == Some(job));
    events.seen().iter().filter(|e| e.job.is_none_or(|of| of == job)).cloned().collect()
}

/// Kills one node after so long. Whether the job had not ended before.
pub fn strike(cluster: &Cluster, job: &Running, node: &str, after: Duration) -> bool {
    if job.ends_within(after) {
        return false;
    }
    cluster.kill_all_of(node);
    true
}

/// Time between two moments of a run, in milliseconds, by the clock of events.
pub fn between(from: &Event, to: &Event) -> u64 {
    to.at_ms.saturating_sub(from.at_ms)
}
