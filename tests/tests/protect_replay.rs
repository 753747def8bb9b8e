//! Replay without any failure: each rank of a job that has ended is executed again, alone, from a checkpoint in the middle of its run, and must send
//! what it sent then (G5).
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use radic_tests::cluster::{Cluster, Kind};
use radic_tests::leftovers::ClusterDir;
use radic_tests::library::{INTEL, Library, MPICH, OPENMPI, OPENMPI5, script};
use radic_tests::protection::Protected;
use radic_tests::random::Random;
use radic_tests::redis::free_port;
use radic_wire::codec;
use radic_wire::event::{Event, EventName};
use radic_wire::frame;
use radic_wire::ids::JobId;
use radic_wire::replay::{FRAME, ToReplayer};
use serde::Deserialize;

/// Time for one program, and for one replay.
const LIMIT: Duration = Duration::from_secs(120);
const RANKS: usize = 4;

/// Programs, and arguments that make them last long enough for a checkpoint in the middle: some seconds each, replay
/// is faster.
const PROGRAMS: [(&str, &[&str]); 5] = [
    ("ring", &["--laps", "5000"]),
    ("pingpong", &["--size", "32768", "--count", "6000"]),
    ("jacobi", &["--iterations", "6000"]),
    ("master_worker", &["--tasks", "9000"]),
    ("collectives", &["--rounds", "400"]),
];

/// What `radic replay --json` says, as far as it is looked at here.
#[derive(Debug, Deserialize)]
struct Report {
    events: u64,
    complete: bool,
    compared: u64,
    different: u64,
    first_difference: Option<String>,
    streams: Vec<Stream>,
}

#[derive(Debug, Deserialize)]
struct Stream {
    stream: String,
    from: Option<u64>,
    to: Option<u64>,
    held: u64,
}

/// Runs a program, which keeps its logs, with checkpoints in its middle: on request, when every rank has made its first.
fn run(library: &Library, cluster: &Cluster, name: &str, args: &[&str]) -> JobId {
    let program = library.program(name);
    let before: BTreeSet<JobId> = cluster.status().jobs.iter().map(|job| job.job).collect();
    let mut events = cluster.events_at("n1");
    let flags = "--protect on --ckpt-interval never --keep-logs";
    let job = library.job(cluster, RANKS, flags, &[&[program.as_str()], args].concat()).limit(LIMIT).start();
    let started = |event: &Event| event.event == EventName::JobStart && event.job.is_some_and(|job| !before.contains(&job));
    let id = events.expect("the job's start", LIMIT, started).job.expect("it was looked for");
    let mut first = BTreeSet::new();
    while first.len() < RANKS {
        let of_job = |event: &Event| event.event == EventName::Checkpoint && event.job == Some(id);
        first.extend(events.expect("a first checkpoint of each rank", LIMIT, of_job).rank);
    }
    cluster.radic(["checkpoint", &id.to_string()]).limit(LIMIT).run().expect(0);
    assert!(!job.ends_within(Duration::ZERO), "{name} is too short for a checkpoint in its middle");
    let finished = job.wait().expect(0);
    assert!(finished.stdout().contains(&format!("OK {name} ")), "{finished}");
    Protected::of(cluster, id, RANKS).check_ranks(2);
    id
}

/// Replays each rank of every program. With libraries that send bytes without meaning only the lengths must be equal; of these only the ring
/// is replayed unless RADIC_LONG is set, of MPICH only what is sent to many, or what is waited for by any.
fn replay_all(library: &Library, to_the_byte: bool) {
    let cluster = Cluster::start(Kind::Logical, RANKS);
    let long = radic_tests::recovery::is_long();
    let sample = if to_the_byte { ["master_worker", "collectives"][Random::from_environment().below(2)] } else { "ring" };
    for (name, args) in PROGRAMS.iter().filter(|(name, _)| long || *name == sample) {
        let id = run(library, &cluster, name, args);
        let mut compared = 0;
        for rank in 0..RANKS {
            let words = ["replay", &id.to_string(), &rank.to_string(), "--json"].map(str::to_owned);
            let finished = cluster.radic(words).limit(LIMIT).run().expect(0);
            let report: Report = serde_json::from_slice(finished.bytes()).unwrap_or_else(|error| panic!("{error} in {finished}"));
            assert!(report.complete && report.events > 0, "rank {rank}: {finished}");
            for Stream { stream, from, to, held } in &report.streams {
                assert!(from.is_none() || to >= &Some(*held), "rank {rank}: {stream} ends at {to:?} instead of {held}");
            }
            let same = report.different == 0 && report.first_difference.is_none();
            assert!(same || !to_the_byte, "rank {rank} sends other bytes: {finished}");
            println!(
                "{:8} {name} rank {rank}: {} events, {} of {} bytes differ",
                library.name, report.events, report.different, report.compared
            );
            compared += report.compared;
        }
        assert!(compared > 0, "nothing was compared");
        cluster.assert_idle();
    }
    cluster.stop();
}

/// A process that ends with this value.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// The socket where `radic replay` waits for the process has a name that every user may see. Another caller there hears nothing, and stops nothing.
#[test]
fn a_rank_s_log_is_for_the_process_alone() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let cluster = Cluster::start(Kind::Logical, RANKS);
    let id = run(&MPICH, &cluster, "ring", &["--laps", "5000"]);
    let place = ClusterDir::new();
    fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).expect("a folder for all users");
    let (program, says) = (place.path().join("intruder"), place.path().join("says"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../ckpt/tests/programs/intruder.c");
    cluster.invocation("gcc").args(["-O1".as_ref(), "-o".as_ref(), program.as_os_str(), source.as_ref()]).run().expect(0);
    let mut question = Vec::new();
    let body = codec::encode(&ToReplayer::FetchJournal { position: 0, room: 1 << 16 }, FRAME).expect("a short message");
    frame::encode_into(&mut question, &body, FRAME);
    fs::write(&says, question).expect("a new file");

    let mut intruder = Command::new(&program);
    intruder.args(["call".as_ref(), "radic-replay-".as_ref(), says.as_os_str()]).uid(64_002).gid(64_002).stdout(Stdio::piped());
    let mut intruder = Ended(intruder.spawn().expect("the other user's program"));
    // It looks all the time, and the process takes its time to come back. On a busy machine it may miss that moment many times.
    let until = Instant::now() + LIMIT;
    let called = (0..RANKS).cycle().take_while(|_| Instant::now() < until).any(|rank| {
        let words = ["replay", &id.to_string(), &rank.to_string(), "--strict", "--json"].map(str::to_owned);
        cluster.radic(words).limit(LIMIT).run().expect(0);
        intruder.0.try_wait().expect("a child").is_some()
    });
    _ = intruder.0.kill();
    let mut heard = String::new();
    intruder.0.stdout.take().expect("a pipe").read_to_string(&mut heard).expect("what it says");
    assert!(called && heard.starts_with("first\n") && heard.ends_with(" 0 bytes \n"), "{heard}");
    cluster.assert_idle();
    cluster.stop();
}

#[test]
fn mpich_sends_the_same_bytes() {
    replay_all(&MPICH, true);
}

#[test]
fn intel_mpi_sends_as_much() {
    replay_all(&INTEL, false);
}

#[test]
fn open_mpi_sends_as_much() {
    replay_all(&OPENMPI, false);
}

#[test]
fn open_mpi_5_sends_as_much() {
    replay_all(&OPENMPI5, false);
}

/// Replays of which one at least takes long enough to be killed.
const TRIES: u32 = 20;

/// A rank of a job that runs is replayed as far as its log goes: what it has received last may not be shipped yet. Nothing of the replay stays when its command is killed.
#[test]
fn a_rank_of_a_job_that_runs_is_replayed_as_far_as_its_log_goes() {
    let cluster = Cluster::start(Kind::Logical, RANKS);
    let mut events = cluster.events_at("n1");
    let program = MPICH.program("jacobi");
    let command = [program.as_str(), "--size", "300", "--iterations", "3000000", "--alone", "0"];
    let job = MPICH.job(&cluster, RANKS, "--protect on --ckpt-interval 1 --keep-logs", &command).limit(LIMIT).start();
    let of_rank_1 = |event: &Event| event.event == EventName::Checkpoint && event.rank.is_some_and(|rank| rank.0 == 1);
    let id = events.expect("a checkpoint of rank 1", LIMIT, of_rank_1).job.expect("it is of a job");
    events.expect("another one", LIMIT, of_rank_1);
    let replay = cluster.radic(["replay", &id.to_string(), "1"]).limit(LIMIT).run();
    assert!(replay.stdout().contains("\nended "), "{replay}");
    // Just after a checkpoint there is little to replay.
    let mut replays = (0..TRIES).map(|_| cluster.radic(["replay", &id.to_string(), "2"]).limit(LIMIT).start());
    drop(replays.find(|replay| !replay.ends_within(Duration::from_millis(500))).expect("one that can be killed"));
    cluster.radic(["kill", &id.to_string()]).run().expect(0);
    job.wait();
    // That nothing of its folder runs any more is seen when the cluster is dropped.
    cluster.assert_idle();
    cluster.stop();
}

/// Offline, too, a reading of the clock is passed over that no thread makes any more: the file for which one made it is gone.
#[test]
fn a_log_with_readings_that_are_not_made_any_more_is_replayed() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let lock = cluster.dir().join("lock");
    fs::write(&lock, "").expect("a file");
    let program = ["python3", &script("wakes.py"), &free_port(), "200", &lock.display().to_string()];
    let mut events = cluster.events_at("n1");
    cluster.job(2, "--protect on --ckpt-interval never --keep-logs", &program).limit(LIMIT).run().expect(0);
    let id = events.expect("the job's start", LIMIT, |event| event.event == EventName::JobStart).job.expect("it is of a job");
    fs::remove_file(&lock).expect("it was there");
    let finished = cluster.radic(["replay", &id.to_string(), "1", "--json"]).limit(LIMIT).run().expect(0);
    let report: Report = serde_json::from_slice(finished.bytes()).unwrap_or_else(|error| panic!("{error} in {finished}"));
    assert!(report.complete && report.compared > 0 && report.different == 0, "{finished}");
    cluster.assert_idle();
    cluster.stop();
}
