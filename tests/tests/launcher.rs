//! What ranks ask their launcher for while they run: names, ports, groups; and what becomes of that when nodes die, and when a rank is replayed.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use radic_tests::cluster::{Cluster, Kind};
use radic_tests::library::{Library, MPICH, OPENMPI5};
use radic_tests::random::Random;
use radic_tests::recovery::{
    FLAGS, HOSTS, LIMIT, RANKS, SOON, cluster, command_of, due, expect_same, is_long, sample, start, strike,
};
use radic_wire::event::EventName;
use serde::Deserialize;

/// Questions, and how many rounds of them take about a second.
const ASKED: [(&str, &str); 4] = [("names", "12"), ("connect", "12"), ("groups", "12"), ("windows", "60")];
/// Those that take as long as a node needs to die in their midst.
const LONG: [(&str, &str); 3] = [("names", "40"), ("connect", "30"), ("windows", "80")];

fn command(library: &Library, what: &str, rounds: &str) -> Vec<String> {
    command_of(library, ("launcher.py", &[what, rounds]))
}

#[test]
fn open_mpi_5_is_answered() {
    let cluster = Cluster::start(Kind::Logical, RANKS);
    for (what, rounds) in ASKED {
        let words = command(&OPENMPI5, what, rounds);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        for flags in ["--protect none", "--protect on --ckpt-interval 0.3"] {
            let finished = OPENMPI5.job(&cluster, RANKS, flags, &words).limit(LIMIT).run().expect(0);
            assert_eq!(finished.stdout(), format!("OK launcher {what} {rounds} rounds\n"), "{finished}");
            println!("{what} {flags}: {:.2} s", finished.elapsed.as_secs_f64());
        }
    }
    cluster.assert_idle();
    cluster.stop();
}

/// More processes are refused, and standard error says why.
#[test]
fn a_spawn_is_refused() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let words = command(&OPENMPI5, "spawn", "1");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let finished = OPENMPI5.job(&cluster, 2, "", &words).limit(LIMIT).run().expect(0);
    finished.expect_stderr(&["RADIC starts no further processes", "MPI_Comm_spawn"]);
    cluster.assert_idle();
    cluster.stop();
}

/// The program does not notice, whatever it asks for, and with whichever library.
fn survives(library: &Library, (what, rounds): (&str, &str), random: &mut Random) {
    let command = command(library, what, rounds);
    let plain = cluster(Kind::Logical, 0);
    let due = due(library, &plain, &command);
    let time = start(library, &plain, FLAGS, &command).wait().expect(0).elapsed;
    plain.stop();
    for _ in 0..5 {
        let cluster = cluster(Kind::Logical, random.below(2));
        let mut events = cluster.events_at("n1");
        let job = start(library, &cluster, FLAGS, &command);
        events.expect("the job to start", SOON, |e| e.event == EventName::JobStart);
        let (node, after) = (HOSTS[random.below(RANKS)], time.mul_f64(random.below(800) as f64 / 1000.0));
        let story = format!("{} {what}, {node} dies after {after:.2?}", library.name);
        let in_time = strike(&cluster, &job, node, after);
        let finished = expect_same(&cluster, job, &due, &story);
        println!("{story}: {:.2} s{}", finished.elapsed.as_secs_f64(), if in_time { "" } else { "; too late" });
        cluster.assert_idle();
        cluster.stop();
        if in_time {
            return;
        }
    }
    panic!("no node died before the end of {what}");
}

#[test]
fn a_node_dies_while_its_ranks_ask() {
    let mut random = Random::from_environment();
    let all: Vec<_> = LONG.into_iter().map(|asked| (&OPENMPI5, asked)).chain([(&MPICH, LONG[0])]).collect();
    let times = if is_long() { 20 } else { 1 };
    for (library, asked) in sample(&all, 2, &mut random) {
        (0..times).for_each(|_| survives(library, asked, &mut random));
    }
}

/// What `radic replay --json` prints.
#[derive(Deserialize)]
struct Report {
    complete: bool,
    different: u64,
}

/// The answers are in the log: also the last one, of the fence in `MPI_Finalize`.
#[test]
fn a_replay_reaches_the_end_of_the_log() {
    let cluster = Cluster::start(Kind::Logical, RANKS);
    let mut events = cluster.events_at("n1");
    let words = command(&OPENMPI5, "names", "10");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let flags = "--protect on --ckpt-interval never --keep-logs";
    OPENMPI5.job(&cluster, RANKS, flags, &words).limit(LIMIT).run().expect(0);
    let started = events.expect("the job's start", SOON, |e| e.event == EventName::JobStart);
    let id = started.job.expect("it is of a job").to_string();
    let mut complete = BTreeSet::new();
    for rank in 0..RANKS {
        let then = Instant::now();
        let finished = cluster.radic(["replay", &id, &rank.to_string(), "--json"]).limit(LIMIT).run().expect(0);
        let report: Report = serde_json::from_slice(finished.bytes()).unwrap_or_else(|error| panic!("{error} in {finished}"));
        println!("rank {rank}: complete {}, {} bytes different, {:.1?}", report.complete, report.different, then.elapsed());
        assert!(then.elapsed() < LIMIT.min(Duration::from_secs(60)), "{finished}");
        if report.complete {
            complete.insert(rank);
        }
    }
    assert_eq!(complete.len(), RANKS, "only these reached the end of their logs: {complete:?}");
    cluster.assert_idle();
    cluster.stop();
}
