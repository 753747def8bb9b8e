//! Deaths at moments that are worth a look of their own, what the living notice of them, and how long it takes.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use radic_tests::cluster::{Cluster, Kind};
use radic_tests::library::{LIBRARIES, Library, MPICH};
use radic_tests::process::eventually;
use radic_tests::random::Random;
use radic_tests::recovery::{
    FLAGS, HOSTS, RANKS, SOON, between, cluster, due, end_well, events_of, expect_same, first_checkpoints, is_long, result,
    rounds, start, start_in, strike,
};
use radic_tests::{Finished, Running};
use radic_wire::event::{Event, EventName};
use radic_wire::ids::{JobId, Rank};
use radic_wire::report::RankCheckpoint;

/// Checkpoints come only when they are asked for.
const ASKED: &str = "--nodes n2,n3,n4,n5 --protect on --ckpt-interval never";
/// What rank 0 prints when all have the memory that they were asked to have.
const BEGIN: &str = "rounds begin";
/// From a death to the beginning of replay, with 100 MiB per rank: 2.5 s on a quiet machine, and as much again on one that is not.
const RESTARTED_MS: u64 = 5000;

fn times(long: usize, short: usize) -> usize {
    if is_long() { long } else { short }
}

/// The ranks of which a command `radic checkpoint` says that their checkpoints were committed.
fn committed(finished: &Finished) -> BTreeSet<Rank> {
    let ranks: Vec<RankCheckpoint> = serde_json::from_slice(finished.bytes()).unwrap_or_default();
    ranks.into_iter().filter(|checkpoint| checkpoint.result.is_ok()).map(|checkpoint| checkpoint.rank).collect()
}

fn checkpoint(cluster: &Cluster, job: JobId) -> Running {
    cluster.radic(["checkpoint", &job.to_string(), "--json"]).limit(SOON).start()
}

fn checkpoint_all(cluster: &Cluster, job: JobId) -> Duration {
    let finished = checkpoint(cluster, job).wait().expect(0);
    assert_eq!(committed(&finished).len(), RANKS, "{finished}");
    finished.elapsed
}

/// Half an image is none: the rank goes on from the one before.
#[test]
fn a_node_dies_while_checkpoints_stream() {
    let mut random = Random::from_environment();
    let command = rounds(&MPICH, "--rounds 1500 --mib 48 --pause 1");
    let (deaths, mut in_time) = (times(50, 2), 0);
    let mut runs = 0;
    // How long a checkpoint takes differs from one to the next: a death that came too late for it is one more that is survived, but not what this is about.
    while runs < deaths || in_time * 2 < deaths {
        assert!(runs < 4 * deaths, "only {in_time} of {runs} deaths came before the dead rank's checkpoint was committed");
        runs += 1;
        let cluster = cluster(Kind::Logical, random.below(2));
        let due = due(&MPICH, &cluster, &command);
        let mut events = cluster.events_at("n1");
        let mut job = start(&MPICH, &cluster, ASKED, &command);
        let id = first_checkpoints(&mut events, RANKS);
        job.until_line(BEGIN);
        let time = checkpoint_all(&cluster, id);
        let (rank, part) = (random.below(RANKS), random.below(500) as f64 / 1000.0);
        let (asked, after) = (checkpoint(&cluster, id), time.mul_f64(part));
        let what = format!("{} dies {after:.2?} after the begin of checkpoints that take {time:.2?}", HOSTS[rank]);
        assert!(strike(&cluster, &job, HOSTS[rank], after), "{what}: the job is too short");
        let done = committed(&asked.wait());
        let finished = expect_same(&cluster, job, &due, &what);
        println!("{what}: {:.2} s; committed: {done:?}", finished.elapsed.as_secs_f64());
        in_time += usize::from(!done.contains(&Rank(rank as u32)));
        cluster.assert_idle();
        cluster.stop();
    }
}

/// Ranks print in any order.
fn sorted(finished: &Finished) -> Vec<String> {
    let mut lines = result(finished);
    lines.sort();
    lines
}

/// Some ranks are in it, some not yet, some have exited.
fn dies_in_finalize(library: &Library, deaths: usize, random: &mut Random) {
    let command = rounds(library, "--rounds 200 --mib 2 --pause 2 --linger 80");
    let mut in_time = 0;
    for _ in 0..deaths {
        let cluster = cluster(Kind::Logical, random.below(2));
        let mut due = due(library, &cluster, &command);
        due.sort();
        let mut job = start(library, &cluster, FLAGS, &command);
        job.until("a rank in MPI_Finalize", |out, _| out.contains("MPI_Finalize").then_some(()));
        let (node, after) = (HOSTS[random.below(RANKS)], Duration::from_millis(random.below(500) as u64));
        let what = format!("{}: {node} dies {after:.1?} after the begin of MPI_Finalize", library.name);
        in_time += usize::from(strike(&cluster, &job, node, after));
        let finished = end_well(&cluster, job, &what);
        assert_eq!(sorted(&finished), due, "{what}: {finished}");
        println!("{what}: {:.2} s", finished.elapsed.as_secs_f64());
        cluster.assert_idle();
        cluster.stop();
    }
    assert!(in_time * 2 >= deaths, "only {in_time} of {deaths} nodes died before the end of the job");
}

#[test]
fn a_node_dies_in_mpi_finalize() {
    let mut random = Random::from_environment();
    LIBRARIES.iter().for_each(|library| dies_in_finalize(library, times(50, 1), &mut random));
}

/// What a rank has noted: the numbers of its rounds, in the order in which it has done them.
fn noted(dir: &Path, rank: usize) -> Vec<usize> {
    let text = fs::read_to_string(dir.join(format!("rounds.{rank}"))).expect("each rank has noted its rounds");
    text.lines().map(|line| line.parse().expect("a number")).collect()
}

/// Each round once, in order; or, of a rank that has gone back, with some done twice: those since its checkpoint. How many these are.
fn done_again(noted: &[usize], rounds: usize) -> usize {
    let back = noted.windows(2).position(|pair| pair[1] <= pair[0]);
    let (before, after) = noted.split_at(back.map_or(noted.len(), |at| at + 1));
    assert!(before.iter().copied().eq(0..before.len()), "rounds are missing");
    let from = after.first().copied().unwrap_or(before.len());
    assert!(
        after.iter().copied().eq(from..rounds.max(from)) && from + after.len() == rounds,
        "{from}, {} of {rounds}",
        after.len()
    );
    before.len() - from
}

/// The process of each rank.
fn pids(cluster: &Cluster) -> BTreeSet<(u32, u32)> {
    let nodes = cluster.status_at("n1").nodes;
    nodes.iter().flat_map(|node| node.ranks.iter().map(|rank| (rank.rank.0, rank.pid))).collect()
}

/// What a survivor has done it does not do again, not an instruction of it.
#[test]
fn only_lost_ranks_go_back() {
    const ROUNDS: usize = 1500;
    let mut random = Random::from_environment();
    let (deaths, mut again) = (times(20, 2), 0);
    for _ in 0..deaths {
        let cluster = cluster(Kind::Logical, 1);
        let dir = cluster.dir().join("notes");
        fs::create_dir(&dir).expect("a new directory");
        let command = rounds(&MPICH, &format!("--rounds {ROUNDS} --pause 1 --note"));
        let mut events = cluster.events_at("n1");
        let job = start_in(&dir, &MPICH, &cluster, FLAGS, &command);
        let id = first_checkpoints(&mut events, RANKS);
        let (lost, after) = (random.below(RANKS), Duration::from_millis(random.below(1500) as u64));
        let before = pids(&cluster);
        assert!(strike(&cluster, &job, HOSTS[lost], after), "the job is too short");
        events.expect("the lost rank to be live again", SOON, |e| e.event == EventName::Live);
        let stayed: BTreeSet<u32> = pids(&cluster).intersection(&before).map(|(rank, _)| *rank).collect();
        assert!((0..RANKS as u32).all(|rank| stayed.contains(&rank) || rank == lost as u32), "{before:?}, {stayed:?}");
        end_well(&cluster, job, "a job that notes its rounds");
        for rank in 0..RANKS {
            let twice = done_again(&noted(&dir, rank), ROUNDS);
            assert!(twice == 0 || rank == lost, "rank {rank} did {twice} rounds twice, and rank {lost} was lost");
            again += twice;
        }
        let live = |e: &&Event| e.event == EventName::Live;
        assert_eq!(events_of(&cluster, id).iter().filter(live).count(), 1);
        println!("rank {lost} lost {after:.1?} after the first checkpoints: {again} rounds done again until now");
        cluster.assert_idle();
        cluster.stop();
    }
    // Else the notes would show nothing.
    assert!(again > 0, "no lost rank has done anything again");
}

/// A rank that dies once more on its way back leaves its registers, and an event names them. The incarnation after that one goes well.
#[test]
fn a_death_on_the_way_back_is_explained() {
    let cluster = cluster(Kind::Logical, 0);
    let dir = cluster.dir().join("notes");
    fs::create_dir(&dir).expect("a new directory");
    let command = rounds(&MPICH, "--rounds 3000 --pause 1 --note --die");
    let due = due(&MPICH, &cluster, &rounds(&MPICH, "--rounds 3000"));
    let mut events = cluster.events_at("n1");
    let job = start_in(&dir, &MPICH, &cluster, ASKED, &command);
    let id = first_checkpoints(&mut events, RANKS);
    // There is a log to catch up with, and the second death comes in its midst.
    let rounds_done = || fs::read(dir.join("rounds.1")).map_or(0, |notes| notes.iter().filter(|byte| **byte == b'\n').count());
    let checkpointed = rounds_done();
    eventually(SOON, "rank 1 has done 100 rounds since its checkpoint", || rounds_done() > checkpointed + 100);
    let deaths = dir.join("deaths");
    fs::create_dir(&deaths).expect("a new directory");
    ["a", "b"].iter().for_each(|name| fs::write(deaths.join(name), "").expect("a new file"));
    fs::rename(&deaths, dir.join("die")).expect("both at once");
    let told = events.expect("the death before it is live", SOON, |e| e.event == EventName::Death);
    assert_eq!((told.job, told.rank), (Some(id), Some(Rank(1))), "{told:?}");
    let known = ["rank 1, incarnation 1: died of SIGSEGV ", ", before it lived: SIGSEGV at address 0x10, in /", "/rounds+0x"];
    assert!(known.iter().all(|part| told.text.contains(part)), "{}", told.text);
    let (_, path) = told.text.split_once("; report: ").expect("the report has a name");
    let report = fs::read_to_string(path).expect("the report is there");
    for part in ["\nphase: catching-up\n", "\nrip: 0x", "\nmaps:\n", "libradic.so"] {
        assert!(report.contains(part), "{part}: {report}");
    }
    expect_same(&cluster, job, &due, "two deaths of one rank");
    let of = |name: EventName| events_of(&cluster, id).iter().filter(|e| e.event == name).count();
    assert_eq!((of(EventName::Death), of(EventName::Live), of(EventName::Restart)), (1, 1, 0));
    let shown = cluster.radic(["events", "--json"]).run().expect(0);
    assert!(shown.stdout().contains("\"event\":\"death\""), "{shown}");
    // The incarnation that went well has left nothing.
    let reports = fs::read_dir(Path::new(path).parent().expect("a folder")).expect("it is there").count();
    assert_eq!(reports, 1, "beside {path}");
    cluster.assert_idle();
    cluster.stop();
}

/// Between the death and the last new checkpoint the job is said to be degraded: the rank that was lost, and the one that was protected there.
#[test]
fn a_job_is_degraded_until_it_is_protected_again() {
    let cluster = cluster(Kind::Logical, 1);
    let command = rounds(&MPICH, "--rounds 1500 --mib 32 --pause 1");
    let mut events = cluster.events_at("n1");
    let job = start(&MPICH, &cluster, FLAGS, &command);
    let id = first_checkpoints(&mut events, RANKS);
    let degraded = || {
        let jobs = cluster.status_at("n1").jobs;
        jobs.into_iter().find(|job| job.job == id).map(|job| job.degraded.into_iter().collect::<BTreeSet<_>>())
    };
    assert_eq!(degraded(), Some(BTreeSet::new()));
    cluster.kill_all_of("n3");
    let mut seen = BTreeSet::new();
    let until = Instant::now() + SOON;
    // Rank 1 was there, and rank 0 is on the node before it: that one may be protected again before the test has looked.
    let concerned = BTreeSet::from([Rank(0), Rank(1)]);
    loop {
        let now = degraded().expect("the job is known");
        seen.extend(now.iter().copied());
        assert!(seen.is_subset(&concerned), "degraded since: {seen:?}");
        if now.is_empty() && seen.contains(&Rank(1)) {
            break;
        }
        assert!(Instant::now() < until, "degraded since: {seen:?}, now: {now:?}");
    }
    let mut protected = BTreeSet::new();
    while protected != concerned {
        protected.extend(events.expect("both are protected again", SOON, |e| e.event == EventName::Reprotected).rank);
    }
    eventually(SOON, "nothing is degraded", || degraded() == Some(BTreeSet::new()));
    assert!(!job.ends_within(Duration::ZERO), "the job is too short");
    end_well(&cluster, job, "a job that was degraded");
    cluster.assert_idle();
    cluster.stop();
}

/// Where a rank was brought back its protector has its log all the time; when that is lost, too, the rank needs another one.
#[test]
fn a_rank_crashes_and_then_its_protector_dies() {
    let cluster = cluster(Kind::Logical, 0);
    let command = rounds(&MPICH, "--rounds 2000 --mib 4 --pause 1");
    let due = due(&MPICH, &cluster, &command);
    let mut events = cluster.events_at("n1");
    let job = start(&MPICH, &cluster, FLAGS, &command);
    let id = first_checkpoints(&mut events, RANKS);
    let protected = |e: &Event| e.event == EventName::Reprotected && e.rank == Some(Rank(1));
    cluster.radic(["inject", "kill-rank", &id.to_string(), "1"]).run().expect(0);
    events.expect("rank 1 is back and has a checkpoint", SOON, protected);
    // Rank 1 is on n3, and rank 2 is lost with its protector.
    assert!(strike(&cluster, &job, "n4", Duration::ZERO), "the job is too short");
    events.expect("rank 1 has a checkpoint elsewhere", SOON, protected);
    // And now n3, which is protected by n5.
    assert!(strike(&cluster, &job, "n3", Duration::ZERO), "the job is too short");
    expect_same(&cluster, job, &due, "a crash, the death of the protector, that of the node");
    assert!(events_of(&cluster, id).iter().all(|e| e.event != EventName::Restart), "it restarted from its beginning");
    cluster.assert_idle();
    cluster.stop();
}

/// A node, and the one that has the logs of its processes, at the same time or while these are brought back: there is nothing to go on from. The job restarts
/// from its beginning, by itself, also if the node is its home.
#[test]
fn a_node_and_its_protector_die() {
    let mut random = Random::from_environment();
    let command = rounds(&MPICH, "--rounds 1000 --mib 16 --pause 1");
    for at in 0..times(20, 3) {
        let (node, protector) = if at % 2 == 0 { ("n2", "n3") } else { ("n3", "n4") };
        let cluster = cluster(Kind::Logical, 1);
        let due = due(&MPICH, &cluster, &command);
        let mut events = cluster.events_at("n1");
        let job = start(&MPICH, &cluster, FLAGS, &command);
        let id = first_checkpoints(&mut events, RANKS);
        let after = Duration::from_millis(if at < 2 { 0 } else { random.below(500) as u64 });
        let what = format!("{node} dies, and {protector}, its protector, {after:.1?} later");
        cluster.kill(node);
        assert!(!job.ends_within(after), "{what}: the job is too short");
        cluster.kill(protector);
        let finished = expect_same(&cluster, job, &due, &what);
        let restarts = events_of(&cluster, id).iter().filter(|e| e.event == EventName::Restart).count();
        println!("{what}: {:.2} s; it restarted from its beginning {restarts} times", finished.elapsed.as_secs_f64());
        assert!(restarts == 1 || !after.is_zero(), "{what}: it has not restarted from its beginning, and nothing was lost");
        cluster.assert_idle();
        cluster.stop();
    }
}

/// Four ranks of 100 MiB.
#[test]
fn a_restart_takes_seconds() {
    let cluster = cluster(Kind::Logical, 1);
    let command = rounds(&MPICH, "--rounds 1500 --mib 100 --pause 1");
    let mut events = cluster.events_at("n1");
    let mut job = start(&MPICH, &cluster, ASKED, &command);
    let id = first_checkpoints(&mut events, RANKS);
    job.until_line(BEGIN);
    let time = checkpoint_all(&cluster, id);
    cluster.kill_all_of("n3");
    end_well(&cluster, job, "four ranks of 100 MiB");
    let events = events_of(&cluster, id);
    let of = |name| events.iter().find(|e| e.event == name).unwrap_or_else(|| panic!("no {name:?} in {events:#?}"));
    let at = |name| between(of(EventName::Inject), of(name));
    let images: f64 =
        of(EventName::Place).text.split_whitespace().rev().nth(1).and_then(|mib| mib.parse().ok()).expect("their size");
    assert!(images > 100.0, "images of {images} MiB");
    let (replay, live) = (at(EventName::Replay), at(EventName::Live));
    println!(
        "after the death: place {} ms, image {} ms, replay {replay} ms, live {live} ms; checkpoints took {time:.2?}",
        at(EventName::Place),
        at(EventName::Image)
    );
    assert!(replay <= RESTARTED_MS, "{replay} ms until it could begin to catch up");
    cluster.assert_idle();
    cluster.stop();
}
