//! Unmodified MPI programs under protection: the same results as without it, while every rank makes five checkpoints a second.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use radic_tests::Finished;
use radic_tests::cluster::{Cluster, Kind};
use radic_tests::library::{INTEL, LIBRARIES, Library, MPICH, OPENMPI, OPENMPI5, script};
use radic_tests::protection::{ON, Protected, newest_job};
use radic_wire::event::EventName;
use radic_wire::report::RankCheckpoint;

/// Time for one program.
const LIMIT: Duration = Duration::from_secs(90);
/// A job that ran for so long must have made checkpoints, whatever the time for its launch and its end.
const LONG_ENOUGH: Duration = Duration::from_millis(1500);
/// Memory that protection may cost beside the outbox, in KiB.
const OVERHEAD_KIB: u64 = 16 << 10;

/// Programs, and arguments that make them last for about a second.
const PROGRAMS: [(&str, &[&str]); 6] = [
    ("ring", &["--laps", "400"]),
    ("pingpong", &[]),
    ("jacobi", &["--iterations", "600"]),
    ("master_worker", &[]),
    ("collectives", &["--rounds", "60"]),
    ("one_exits_early", &["--rounds", "400"]),
];

/// How often each program is run under protection.
fn times() -> usize {
    if radic_tests::recovery::is_long() { 20 } else { 1 }
}

/// What must be the same with and without protection: everything but the times that the ping-pong and mpi4py's benchmarks print.
fn result(finished: &Finished) -> Vec<String> {
    let out = finished.stdout();
    let mut lines: Vec<_> = out.lines().map(without_times).collect();
    // Ranks print in any order.
    lines.sort();
    lines
}

fn without_times(line: &str) -> String {
    if !line.ends_with("MiB/s") && !line.contains(" seconds") {
        return line.to_owned();
    }
    let words = line.split_whitespace();
    words.map(|word| if word.contains('.') && word.parse::<f64>().is_ok() { "..." } else { word }).collect::<Vec<_>>().join(" ")
}

/// Runs a program without protection, then with it, as often as is asked for.
fn compare(library: &Library, cluster: &Cluster, command: &[&str]) {
    let name = command.iter().map(|word| word.rsplit('/').next().unwrap_or(word)).collect::<Vec<_>>().join(" ");
    let run = |flags| library.job(cluster, 4, flags, command).limit(LIMIT).run().expect(0);
    let plain = run("--protect none");
    let due = result(&plain);
    assert!(!due.is_empty(), "{plain}");
    for _ in 0..times() {
        let finished = run(ON);
        assert_eq!(result(&finished), due, "{finished}");
        let protected = Protected::newest(cluster, 4);
        protected.check_ranks(u64::from(finished.elapsed > LONG_ENOUGH));
        cluster.assert_idle();
        let (plain, seconds) = (plain.elapsed.as_secs_f64(), finished.elapsed.as_secs_f64());
        println!("{:8} {name}: {plain:.2} s without, {seconds:.2} s with; {}", library.name, protected.in_words());
    }
}

fn compare_all(library: &Library) {
    let then = Instant::now();
    let cluster = Cluster::start(Kind::Logical, 4);
    for (name, args) in PROGRAMS {
        let program = library.program(name);
        compare(library, &cluster, &[&[program.as_str()], args].concat());
    }
    let python = library.python();
    compare(library, &cluster, &[&python, &script("objects.py"), "40"]);
    compare(library, &cluster, &[&python, "-m", "mpi4py.bench", "ringtest", "--loop", "300", "--size", "1000"]);
    abort(library, &cluster);
    cluster.stop();
    println!("{}: {:.1?}", library.name, then.elapsed());
}

/// MPI_Abort is no failure that protection is about.
fn abort(library: &Library, cluster: &Cluster) {
    let program = library.program("abort");
    let finished = library.job(cluster, 4, ON, &[&program]).run().expect(7);
    finished.expect_stderr(&["rank 3", "MPI_Abort"]);
    cluster.assert_idle();
}

#[test]
fn mpich_gives_the_same_results() {
    compare_all(&MPICH);
}

#[test]
fn intel_mpi_gives_the_same_results() {
    compare_all(&INTEL);
}

#[test]
fn open_mpi_gives_the_same_results() {
    compare_all(&OPENMPI);
}

#[test]
fn open_mpi_5_gives_the_same_results() {
    compare_all(&OPENMPI5);
}

/// Nodes with addresses of their own, and each log at two protectors.
#[test]
fn two_replicas_in_namespaces() {
    for kind in Kind::all() {
        let cluster = Cluster::start(kind, 4);
        let flags = format!("{ON} --replicas 2");
        for (name, args) in [PROGRAMS[0], PROGRAMS[4]] {
            let program = MPICH.program(name);
            let finished = MPICH.job(&cluster, 4, &flags, &[&[program.as_str()], args].concat()).limit(LIMIT).run().expect(0);
            assert!(finished.stdout().contains(&format!("OK {name} ")), "{finished}");
            let protected = Protected::newest(&cluster, 4);
            protected.check_ranks(u64::from(finished.elapsed > LONG_ENOUGH));
            println!("{kind:?}, 2 replicas, {name}: {:.2} s; {}", finished.elapsed.as_secs_f64(), protected.in_words());
        }
        cluster.assert_idle();
        cluster.stop();
    }
}

/// The library is loaded, and everything passes.
#[test]
fn loaded_but_off() {
    let cluster = Cluster::start(Kind::Logical, 2);
    for library in &LIBRARIES {
        let program = library.program("collectives");
        let finished = library.job(&cluster, 4, "--protect off", &[&program]).limit(LIMIT).run().expect(0);
        assert!(finished.stdout().contains("OK collectives 4 ranks"), "{finished}");
        let (job, processes) = (newest_job(&cluster), cluster.status().processes);
        let of_job: Vec<_> = processes.iter().filter(|process| process.job == job).collect();
        assert!(of_job.len() == 4 && of_job.iter().all(|process| process.joined), "{of_job:#?}");
        let idle = of_job.iter().all(|process| process.counters.is_none_or(|c| c.events == 0 && c.checkpoints == 0));
        assert!(idle, "{of_job:#?}");
    }
    cluster.stop();
}

/// Checkpoints on request: each rank's is committed, and the job goes on.
#[test]
fn checkpoints_on_request() {
    let cluster = Cluster::start(Kind::Logical, 3);
    let program = MPICH.program("jacobi");
    let command = [program.as_str(), "--iterations", "30000", "--alone", "0"];
    let job = MPICH.job(&cluster, 3, "--protect on --ckpt-interval never", &command).limit(LIMIT).start();
    // The first ones come by themselves, when MPI_Init has returned.
    let (mut events, mut begun) = (cluster.events_at("n1"), BTreeSet::new());
    while begun.len() < 3 {
        let event = events.expect("a first checkpoint of each rank", LIMIT, |event| event.event == EventName::Checkpoint);
        begun.extend(event.rank);
    }
    let id = newest_job(&cluster);
    let mut images = Vec::new();
    for _ in 0..3 {
        let finished = cluster.radic(["checkpoint", &id.to_string(), "--json"]).run().expect(0);
        let mut ranks: Vec<RankCheckpoint> =
            serde_json::from_slice(finished.bytes()).unwrap_or_else(|e| panic!("{e} in {finished}"));
        ranks.sort_by_key(|checkpoint| checkpoint.rank);
        let numbers: Vec<u64> =
            ranks.iter().map(|c| *c.result.as_ref().unwrap_or_else(|why| panic!("rank {}: {why}", c.rank))).collect();
        assert_eq!(numbers.len(), 3, "{finished}");
        images.push(numbers);
    }
    assert!(images.is_sorted() && images[0] != images[2], "each is a new one: {images:?}");
    assert!(!job.ends_within(Duration::ZERO), "the job is too short for this test");
    let finished = job.wait().expect(0);
    assert!(finished.stdout().contains("OK jacobi"), "{finished}");
    let protected = Protected::of(&cluster, id, 3);
    protected.check_ranks(4);
    cluster.assert_idle();
    cluster.stop();
}

/// Resident memory that is the library's, of a process with this `/proc/PID/smaps`, in KiB: what lies at its far addresses, and its file. What the program itself has differs from
/// run to run by more than the bound is to tell.
fn library_kib(smaps: &str) -> u64 {
    const FAR: Range<u64> = 0x3b00_0000_0000..0x3f00_0000_0000;
    let (mut is_ours, mut sum) = (false, 0);
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix("Rss:").filter(|_| is_ours) {
            sum += kib.trim().trim_end_matches(" kB").parse::<u64>().expect("a size");
        } else if let Some((start, _)) = line.split_once('-').filter(|(start, _)| !start.contains(':')) {
            let start = u64::from_str_radix(start, 16);
            is_ours = start.is_ok_and(|start| FAR.contains(&start)) || line.ends_with("/libradic.so");
        }
    }
    sum
}

/// The most memory that the library had in a rank of the only job when it was looked at, in KiB.
fn most_library_kib(cluster: &Cluster, job: &radic_tests::Running) -> u64 {
    let mut most = 0;
    while !job.ends_within(Duration::from_millis(30)) {
        let ranks = cluster.status_at("n1").nodes.into_iter().flat_map(|node| node.ranks);
        let maps = ranks.filter_map(|rank| std::fs::read_to_string(format!("/proc/{}/smaps", rank.pid)).ok());
        most = most.max(maps.map(|maps| library_kib(&maps)).max().unwrap_or_default());
    }
    most
}

/// What a process under protection needs beside its outbox has a bound. An image by itself has a copy of an outbox with payload that no log has.
#[test]
fn memory_is_bounded() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let program = MPICH.program("pingpong");
    for (outbox, flags) in [(64 << 10, "--payload log"), (8 << 10, "--outbox 8M"), (2 * (64 << 10), "--outbox 64M")] {
        let command = [program.as_str(), "--size", "4194304", "--count", "300"];
        let job = MPICH.job(&cluster, 2, &format!("{ON} {flags}"), &command).limit(LIMIT).start();
        let most = most_library_kib(&cluster, &job);
        job.wait().expect(0);
        let bound = outbox + OVERHEAD_KIB;
        println!("{flags}: the library had {most} KiB, at most {bound}");
        // An outbox of 8 MiB is used as a whole by messages of 4 MiB.
        assert!((8 << 10..=bound).contains(&most), "{flags}: {most} KiB");
    }
    cluster.stop();
}
