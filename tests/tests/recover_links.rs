//! Links between living processes break, again and again; the programs notice nothing, and every byte is right.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::Duration;

use radic_tests::Running;
use radic_tests::cluster::{Cluster, Kind};
use radic_tests::library::{INTEL, Library, MPICH, OPENMPI, OPENMPI5};
use radic_tests::protection::{ON, Protected};
use radic_tests::random::Random;
use radic_tests::sockets::{self, CONNECTED, Ends};
use rustix::net::Shutdown;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Time for one program.
const LIMIT: Duration = Duration::from_secs(120);
/// Time between two breaks.
const PAUSE: Duration = Duration::from_millis(20);
/// Nodes, with a rank each.
const NODES: usize = 4;
/// Breaks that a program must have survived, over all of its runs.
const FEW: usize = 5;
/// Runs in which there must have been so many: each does twice the work of the one before.
const MOST_RUNS: u32 = 8;
/// The program's descriptors are below, the library's own above.
const HIGH: i32 = 1_000;

/// How a link is broken, from outside of the process.
#[derive(Debug, Clone, Copy)]
enum Break {
    /// Both sides see an end that neither has meant.
    End,
    /// One side has no connection any more, the other one gets a reset.
    Reset,
    /// One side is shut down for sending: the other one sees an end, this one an error when it sends.
    HalfEnd,
}

/// The program's connected sockets of a process, each with one of its descriptors.
fn sockets(pid: u32) -> BTreeMap<Ends, i32> {
    sockets::of(pid, CONNECTED).into_iter().filter(|(_, fd)| *fd < HIGH).collect()
}

/// The ends of the connections between these processes.
fn links(pids: &BTreeSet<u32>) -> Vec<(u32, i32)> {
    let all: Vec<_> = pids.iter().flat_map(|pid| sockets(*pid).into_iter().map(|(ends, fd)| (*pid, ends, fd))).collect();
    let known: BTreeSet<_> = all.iter().map(|(_, ends, _)| ends.clone()).collect();
    let is_between = |ends: &Ends| known.contains(&(ends.1.clone(), ends.0.clone()));
    all.iter().filter(|(_, ends, _)| is_between(ends)).map(|(pid, _, fd)| (*pid, *fd)).collect()
}

/// Another descriptor of a process's socket. None: the process, or the socket, is gone.
fn borrow(pid: u32, fd: i32) -> Option<OwnedFd> {
    let process = pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()?;
    match pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()) {
        Err(rustix::io::Errno::PERM) => panic!("the test may not touch the sockets of its own ranks (kernel.yama.ptrace_scope)"),
        other => other.ok(),
    }
}

fn break_link(pid: u32, fd: i32, how: Break) -> bool {
    let Some(socket) = borrow(pid, fd) else { return false };
    let result = match how {
        Break::End => rustix::net::shutdown(&socket, Shutdown::Both),
        Break::Reset => rustix::net::connect_unspec(&socket),
        Break::HalfEnd => rustix::net::shutdown(&socket, Shutdown::Write),
    };
    result.is_ok()
}

fn ranks(cluster: &Cluster) -> BTreeSet<u32> {
    cluster.status_at("n1").nodes.into_iter().flat_map(|node| node.ranks).map(|rank| rank.pid).collect()
}

/// Breaks one link after the other until the job ends. Returns how many.
fn torment(cluster: &Cluster, job: &Running, size: usize, kinds: &[Break], random: &mut Random) -> usize {
    let (mut pids, mut broken) = (BTreeSet::new(), 0);
    while !job.ends_within(PAUSE) {
        // No rank is restarted: once they are all there it stays so.
        if pids.len() < size {
            pids = ranks(cluster);
        }
        let links = if pids.len() == size { links(&pids) } else { Vec::new() };
        if !links.is_empty() {
            let (pid, fd) = links[random.below(links.len())];
            broken += usize::from(break_link(pid, fd, kinds[random.below(kinds.len())]));
        }
    }
    broken
}

/// Runs a program under broken links. How many are broken while it runs depends on how fast the machine is: a run with too few is followed by a longer one, and each is right.
fn run(cluster: &Cluster, library: &Library, program: &str, work: (&str, u32), kinds: &[Break]) {
    let (mut random, mut all) = (Random::from_environment(), 0);
    for run in 0..MOST_RUNS {
        let (flag, count) = (work.0, (work.1 << run).to_string());
        all += run_once(cluster, library, program, &[flag, &count], kinds, &mut random);
        if all >= FEW {
            return;
        }
    }
    panic!("only {all} links were broken in {MOST_RUNS} runs of {program} with {}", library.name);
}

fn run_once(cluster: &Cluster, library: &Library, program: &str, args: &[&str], kinds: &[Break], random: &mut Random) -> usize {
    let path = library.program(program);
    let job = library.job(cluster, 4, ON, &[&[path.as_str()], args].concat()).limit(LIMIT).start();
    let broken = torment(cluster, &job, 4, kinds, random);
    let finished = job.wait().expect(0);
    assert!(finished.stdout().contains(&format!("OK {program}")), "{finished}");
    println!("{:8} {program} {kinds:?}: {broken} breaks in {:.2} s", library.name, finished.elapsed.as_secs_f64());
    let protected = Protected::newest(cluster, 4);
    assert_eq!(protected.sum(|c| c.unprotected), 0, "{protected:#?}");
    cluster.assert_idle();
    broken
}

/// Each way by itself is tried with one library only, unless RADIC_LONG is set: they differ below the libraries.
fn every_way(library: &Library) {
    let cluster = Cluster::start(Kind::Logical, NODES);
    let alone = library.name == MPICH.name || radic_tests::recovery::is_long();
    let ways = [&[Break::End, Break::Reset, Break::HalfEnd][..], &[Break::End], &[Break::Reset], &[Break::HalfEnd]];
    for kinds in &ways[..if alone { ways.len() } else { 1 }] {
        run(&cluster, library, "ring", ("--laps", 600), kinds);
    }
    let all = [Break::End, Break::Reset, Break::HalfEnd];
    run(&cluster, library, "collectives", ("--rounds", 150), &all);
    run(&cluster, library, "jacobi", ("--iterations", 900), &all);
    cluster.stop();
}

#[test]
fn mpich_does_not_notice() {
    every_way(&MPICH);
}

#[test]
fn intel_mpi_does_not_notice() {
    every_way(&INTEL);
}

#[test]
fn open_mpi_does_not_notice() {
    every_way(&OPENMPI);
}

#[test]
fn open_mpi_5_does_not_notice() {
    every_way(&OPENMPI5);
}
