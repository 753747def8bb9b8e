//! A network that is bad below TCP, also between processes: frames are delayed, overtaken, doubled and lost, and connections between processes are reset at one
//! end or at both, by segments that are not their peer's. Jobs end as if nothing had happened, and no node is taken for dead that is not.
//! `proxy` and `recover_links` break connections from above.
#![forbid(unsafe_code)]

use std::time::Duration;

use radic_tests::cluster::{Cluster, Kind, Setup};
use radic_tests::frames::{Done, Faults, is_possible};
use radic_tests::library::{LIBRARIES, Library};
use radic_tests::protection::Protected;
use radic_tests::random::Random;
use radic_tests::recovery::{HOSTS, RANKS, SOON, command_of, due, events_of, expect_same, first_checkpoints, is_long, start};
use radic_wire::event::{Event, EventName};
use radic_wire::ids::JobId;

type Program = (&'static str, &'static [&'static str]);

/// What is run in a sample: many messages one after the other, all to all, and longer ones.
const SAMPLE: [Program; 3] = [
    ("ring", &["--laps", "100"]),
    ("collectives", &["--rounds", "30"]),
    ("jacobi", &["--size", "400", "--iterations", "150", "--progress", "20", "--alone", "0"]),
];
/// What is run beside these.
const MORE: [Program; 3] =
    [("pingpong", &["--size", "1048576"]), ("master_worker", &["--tasks", "1000"]), ("objects.py", &["20"])];
/// Rounds with a pause in them: half a second and more, whatever else the machine does.
const ROUNDS: Program = ("rounds", &["--rounds", "600", "--mib", "4", "--pause", "1"]);
/// The first checkpoints are those of MPI_Init: where that takes longer than the interval one may come before.
const FLAGS: &str = "--nodes n2,n3,n4,n5 --protect on --ckpt-interval 20";
/// Delays are far shorter than a heartbeat (100 ms, five of which may be missed). What is lost costs TCP 200 ms and more.
const BAD: Faults =
    Faults { delayed: 10, delay: Duration::from_millis(4), doubled: 15, late: Duration::from_millis(300), lost: 300, reset: 150 };
/// What must have happened between processes before a cluster's runs say something: each to so many frames.
const ENOUGH: Done = Done { frames: 2_000, delayed: 200, overtook: 100, doubled: 100, lost: 5, resets: 10, broken: 10 };
/// How often all programs run until so much has happened for certain.
const ROUNDS_AT_MOST: usize = 5;

fn is_enough(done: &Done) -> bool {
    let each = |Done { frames, delayed, overtook, doubled, lost, resets, broken }: &Done| {
        [*frames, *delayed, *overtook, *doubled, *lost, *resets, *broken]
    };
    each(done).iter().zip(each(&ENOUGH)).all(|(have, due)| *have >= due)
}

/// What happened to a job: no node was lost but the one that died, if one did, and every connection was protected.
fn expect_no_more(cluster: &Cluster, id: JobId, victim: Option<&str>) {
    let seen = events_of(cluster, id);
    let count = |name| seen.iter().filter(|event| event.event == name).count();
    let is_false = |event: &&Event| {
        event.event == EventName::Confirm && (victim.is_none() || event.subject.as_ref().map(|node| node.as_str()) != victim)
    };
    let taken: Vec<_> = seen.iter().filter(is_false).collect();
    assert!(taken.is_empty(), "taken for dead; the switch was late by {:?} at most: {taken:#?}", cluster.switch().late());
    assert_eq!((count(EventName::Live), count(EventName::Restart)), (usize::from(victim.is_some()), 0), "{seen:#?}");
    if victim.is_none() {
        assert_eq!(Protected::of(cluster, id, RANKS).sum(|counters| counters.unprotected), 0);
    }
}

/// A node dies: its processes only, and then its kernel ends their connections; or all of it, as a machine without power, and then no peer hears a word from it.
fn kill(cluster: &Cluster, victim: &str, random: &mut Random) {
    if random.below(2) == 0 {
        cluster.set_cable(victim, false);
    }
    cluster.kill_all_of(victim);
}

/// One run of a program on a bad network. With a victim, which dies after the first checkpoints.
fn survives(cluster: &Cluster, library: &Library, program: Program, due: &[String], random: &mut Random, victim: Option<&str>) {
    let dies = victim.map_or(String::new(), |node| format!(", and {node} dies"));
    let what = format!("{:8} {} on bad cables{dies}", library.name, program.0);
    cluster.switch().begin(BAD, random.number(), cluster.ports_of_daemons());
    let mut events = cluster.events_at("n1");
    let job = start(library, cluster, FLAGS, &command_of(library, program));
    let id = first_checkpoints(&mut events, RANKS);
    if let Some(victim) = victim {
        // A rank that has lost its connection to its log in MPI_Init has made its image then, and a job that has no other one restarts from its beginning, as documented. So once
        // all are through, each makes another.
        cluster.radic(["checkpoint", &id.to_string()]).limit(SOON).run().expect(0);
        assert!(!job.ends_within(Duration::from_millis(random.below(300) as u64)), "the job is too short");
        kill(cluster, victim, random);
    }
    let finished = expect_same(cluster, job, due, &what);
    cluster.switch().end();
    let [processes, others] = cluster.switch().done();
    println!("{what}: {:.2} s; so far {processes:?}", finished.elapsed.as_secs_f64());
    println!("  all others {others:?}; the switch was late by {:?} at most", cluster.switch().late());
    expect_no_more(cluster, id, victim);
}

/// What a program says if nothing happens to it.
fn undisturbed(cluster: &Cluster, library: &Library, program: Program) -> Vec<String> {
    due(library, cluster, &command_of(library, program))
}

/// Programs run, each once, and then again until enough has happened.
fn are_not_noticed(runs: &[(&Library, Program)], random: &mut Random) {
    let cluster = start_cluster();
    let runs: Vec<_> =
        runs.iter().map(|(library, program)| (library, program, undisturbed(&cluster, library, *program))).collect();
    let (mut rounds, enough) = (0, |cluster: &Cluster| is_enough(&cluster.switch().done()[0]));
    while rounds == 0 || !enough(&cluster) {
        assert!(rounds < ROUNDS_AT_MOST, "too little has happened: {:?}", cluster.switch().done());
        runs.iter().for_each(|(library, program, due)| survives(&cluster, library, **program, due, random, None));
        rounds += 1;
    }
    end(cluster);
}

fn start_cluster() -> Cluster {
    Setup::new(Kind::Namespaces, HOSTS.len() + 1).frames().start()
}

fn end(cluster: Cluster) {
    cluster.assert_idle();
    cluster.stop();
}

#[test]
fn bad_cables_are_not_noticed() {
    if !is_possible() {
        return;
    }
    let mut random = Random::from_environment();
    let first = random.below(LIBRARIES.len());
    let runs: Vec<_> = (first..).zip(SAMPLE).map(|(of, program)| (&LIBRARIES[of % LIBRARIES.len()], program)).collect();
    are_not_noticed(&runs, &mut random);
    if is_long() {
        for library in &LIBRARIES {
            let all: Vec<_> = SAMPLE.into_iter().chain(MORE).map(|program| (library, program)).collect();
            are_not_noticed(&all, &mut random);
        }
    }
}

#[test]
fn a_node_dies_behind_bad_cables() {
    if !is_possible() {
        return;
    }
    let mut random = Random::from_environment();
    let all = LIBRARIES.iter().flat_map(|library| HOSTS.map(|victim| (library, victim)));
    let sample = [(&LIBRARIES[random.below(LIBRARIES.len())], HOSTS[random.below(HOSTS.len())])];
    let runs: Vec<_> = if is_long() { all.collect() } else { sample.into() };
    for (library, victim) in runs {
        let cluster = start_cluster();
        let due = undisturbed(&cluster, library, ROUNDS);
        survives(&cluster, library, ROUNDS, &due, &mut random, Some(victim));
        end(cluster);
    }
}
