//! Programs without MPI under protection: every call on sockets, servers of other people, very many connections.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use radic_tests::cluster::{Cluster, Kind};
use radic_tests::command::Invocation;
use radic_tests::library::{compiled, script};
use radic_tests::netns;
use radic_tests::protection::{ON, Protected};
use radic_tests::recovery::{events_of, is_long};
use radic_tests::redis::{self, free_port};
use radic_tests::{Finished, Running};
use radic_wire::event::{Event, EventName};
use serde::Deserialize;

/// Time for one program.
const LIMIT: Duration = Duration::from_secs(150);
/// Programs that go through cases, see their sources.
const CALLS: [&str; 5] = ["net_connect", "net_data", "net_poll", "net_process", "net_backlog"];
/// Names that the C library has for calls that are checked at run time: programs of distributions use them.
const FORTIFIED: [&str; 5] = ["__read_chk", "__recv_chk", "__recvfrom_chk", "__poll_chk", "__ppoll_chk"];
/// Connections that are opened and closed, so many that it takes several checkpoints: what is kept of a connection goes with them.
const CONNECTIONS: u64 = 6000;
/// Of them, in a sample.
const SAMPLE: u64 = 2000;
/// Growth of memory over the last four fifths of them that begins to look like a leak, in KiB: 2 KiB each.
const LEAK_KIB: i64 = 9600;
/// How much longer a call may take when there are many connections.
const SLOWDOWN: f64 = 1.2;
/// Measurements of which one must be good: other work on the machine makes them only worse.
const ATTEMPTS: usize = 3;

/// A new directory in that of the cluster.
fn folder(cluster: &Cluster, name: &str) -> PathBuf {
    let dir = cluster.dir().join(name);
    fs::create_dir(&dir).expect("a new directory");
    dir
}

fn text(path: &Path) -> String {
    path.to_str().expect("the path of a temporary directory is text").to_owned()
}

/// Runs a program of two sides as two ranks.
fn run_pair(cluster: &Cluster, flags: &str, name: &str, args: &[&str]) -> Finished {
    let (program, dir) = (compiled("net", name), folder(cluster, "pair"));
    let place = text(&dir);
    let command = [&[program.as_str(), "rank", &place], args].concat();
    let finished = cluster.job(2, flags, &command).limit(LIMIT).run().expect(0);
    let out = finished.stdout();
    for side in ["server", "client"] {
        assert!(out.contains(&format!("OK {name} {side} ")), "no OK of the {side}: {finished}");
    }
    cluster.assert_idle();
    fs::remove_dir_all(&dir).expect("ours");
    finished
}

/// The fortified names are what the program is compiled to: else this file tests less than it says.
#[test]
fn the_program_of_calls_uses_the_fortified_names() {
    let output = Command::new("nm").args(["-D", &compiled("net", "net_data")]).output().expect("nm comes with the compiler");
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    for name in FORTIFIED {
        assert!(names.contains(name), "{name} is not used:\n{names}");
    }
}

fn every_call(flags: &str) {
    let cluster = Cluster::start(Kind::Logical, 2);
    for name in CALLS {
        let finished = run_pair(&cluster, flags, name, &[]);
        println!("{name} with `{flags}`: {:.2} s", finished.elapsed.as_secs_f64());
    }
    cluster.stop();
}

#[test]
fn every_call_without_protection() {
    every_call("--protect none");
}

#[test]
fn every_call_when_protection_is_off() {
    every_call("--protect off");
}

#[test]
fn every_call_under_protection() {
    every_call(ON);
}

#[test]
fn every_call_under_protection_that_waits() {
    every_call(&format!("{ON} --log waiting"));
}

/// Wrong descriptors, pointers, lengths and flags: each call fails as it does without the library, and nothing else happens.
#[test]
fn wrong_calls_fail_as_they_do_without_protection() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let run = |flags: &str| {
        let finished = run_pair(&cluster, flags, "net_wrong", &[]);
        let of =
            |side: &str| finished.stdout().lines().filter(|line| line.starts_with(side)).map(str::to_owned).collect::<Vec<_>>();
        ["server", "client"].map(of)
    };
    let (bare, protected) = (run("--protect none"), run(ON));
    assert!(bare.iter().all(|lines| lines.len() > 1000), "it makes calls");
    let pairs = bare.iter().flatten().zip(protected.iter().flatten());
    let different: Vec<_> = pairs.filter(|(bare, protected)| bare != protected).map(|(a, b)| format!("{a}\n  but {b}")).collect();
    assert!(different.is_empty(), "{} calls differ:\n{}", different.len(), different.join("\n"));
    assert_eq!(bare.map(|lines| lines.len()), protected.map(|lines| lines.len()));
    cluster.stop();
}

/// An outbox that is full again and again: what a call has had taken leaves while the call still waits for room, and must not leave a second time.
#[test]
fn every_byte_once_with_a_small_outbox() {
    let cluster = Cluster::start(Kind::Logical, 2);
    run_pair(&cluster, &format!("{ON} --outbox 1M"), "net_data", &["slow_reader"]);
    cluster.stop();
}

/// The program's timer ends its calls, also when it expires while the layer is busy with what came for it: here with a checkpoint every 20 ms.
#[test]
fn a_signal_that_ends_a_call_is_not_missed() {
    let cluster = Cluster::start(Kind::Logical, 2);
    for _ in 0..8 {
        run_pair(&cluster, "--protect on --ckpt-interval 0.02", "net_data", &["interrupted"]);
    }
    cluster.stop();
}

/// A line of figures of net_many.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Figure {
    Call { call: String, live: u64, ns: f64 },
    Churn { side: String, connections: u64, grown_kib: i64, grown_fds: i64, first_ns: f64, last_ns: f64 },
    Live { side: String, live: u64, grown_kib: i64, seconds: f64 },
}

fn figures(finished: &Finished) -> Vec<Figure> {
    let out = finished.stdout();
    let lines = out.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"))).collect()
}

/// Measures until it is good, as often as that is worth it.
fn attempt(what: &str, mut measure: impl FnMut() -> Result<(), String>) {
    let mut complaints = Vec::new();
    for _ in 0..ATTEMPTS {
        match measure() {
            Ok(()) => return,
            Err(complaint) => complaints.push(complaint),
        }
    }
    panic!("{what}, {ATTEMPTS} times:\n{}", complaints.join("\n"));
}

#[test]
fn thousands_of_connections_leave_nothing() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let opened = if is_long() { CONNECTIONS } else { SAMPLE };
    attempt("connections become slower", || {
        let figures = figures(&run_pair(&cluster, ON, "net_many", &["churn", &opened.to_string()]));
        println!("{figures:#?}");
        assert_eq!(figures.len(), 2, "a figure of each side");
        for figure in figures {
            let Figure::Churn { side, connections, grown_kib, grown_fds, first_ns, last_ns } = figure else {
                panic!("a figure of another kind: {figure:?}")
            };
            assert_eq!((connections, grown_fds), (opened, 0), "descriptors are left at the {side}");
            assert!(grown_kib < LEAK_KIB, "the {side} has grown by {grown_kib} KiB");
            if last_ns > first_ns * SLOWDOWN {
                return Err(format!("{side}: {first_ns} ns for the first connections, {last_ns} ns for the last"));
            }
        }
        Ok(())
    });
    let protected = Protected::newest(&cluster, 2);
    protected.check();
    // Each side ends with one open connection, the one for control.
    assert_eq!(protected.sum(|c| c.connections), 2, "connections are left: {protected:#?}");
    cluster.stop();
}

/// Without checkpoints: each takes longer with more descriptors, and whether one falls into a measurement is chance.
#[test]
fn ten_thousand_connections_slow_nothing_down() {
    const ON: &str = "--protect on --ckpt-interval never";
    let cluster = Cluster::start(Kind::Logical, 2);
    attempt("calls become slower", || {
        let mut times = BTreeMap::<String, Vec<(u64, f64)>>::new();
        for figure in figures(&run_pair(&cluster, ON, "net_many", &["live"])) {
            match figure {
                Figure::Call { call, live, ns } => times.entry(call).or_default().push((live, ns)),
                Figure::Live { side, live, grown_kib, seconds } => {
                    println!("{side}: {live} connections in {seconds:.1} s, {grown_kib} KiB");
                    assert!(grown_kib < (64 + 16) << 10, "the {side} has grown by {grown_kib} KiB");
                }
                Figure::Churn { .. } => panic!("a figure of another kind: {figure:?}"),
            }
        }
        assert_eq!(times.len(), 5, "{times:?}");
        for (call, times) in &times {
            let [(10, few), (10_000, many)] = times[..] else { panic!("{call}: {times:?}") };
            println!("{call}: {few} ns with 10 connections, {many} ns with 10,000");
        }
        let slow: Vec<_> = times.iter().filter(|(_, times)| times[1].1 > times[0].1 * SLOWDOWN).collect();
        if slow.is_empty() { Ok(()) } else { Err(format!("{slow:?}")) }
    });
    cluster.stop();
}

/// Two programs as two ranks: rank 0 becomes the first, and rank 1 the second as soon as the test says so.
struct Pair {
    job: Running,
    go: File,
    dir: PathBuf,
}

impl Pair {
    fn start(cluster: &Cluster, first: &str, second: &str) -> Pair {
        let dir = folder(cluster, "pair");
        let fifo = dir.join("go");
        let made = Command::new("mkfifo").arg(&fifo).status().expect("mkfifo is there");
        assert!(made.success(), "{}", fifo.display());
        // For both ways: so opening it does not wait.
        let go = File::options().read(true).write(true).open(&fifo).expect("it was made");
        let wait = format!("read -r line <{}", fifo.display());
        let script = format!("cd {}; [ $RADIC_RANK = 0 ] && exec {first}; {wait}; exec {second}", dir.display());
        // The two print at the same time, and each is to be understood alone.
        let job = cluster.job(2, &format!("{ON} --label"), &["sh", "-c", &script]).limit(LIMIT).start();
        Pair { job, go, dir }
    }

    fn go(&mut self) {
        self.go.write_all(b"go\n").expect("a pipe has room");
    }

    /// Waits for the end of both, and removes their folder, which the second may have to enter yet.
    fn end(self) -> Finished {
        let finished = self.job.wait();
        fs::remove_dir_all(&self.dir).expect("ours");
        finished
    }
}

/// What one rank has printed.
fn printed_by(finished: &Finished, rank: usize) -> String {
    let label = format!("[{rank}] ");
    finished.stdout().lines().filter_map(|line| line.strip_prefix(&label)).map(|line| format!("{line}\n")).collect()
}

/// Waits for the end of a rank that must have ended well.
fn wait_for_rank(cluster: &Cluster, job: &mut Running, rank: u32) {
    let of_rank = |event: &Event| event.event == EventName::RankExit && event.rank.is_some_and(|r| r.0 == rank);
    let event = cluster.events_at("n1").wait(LIMIT, of_rank);
    let Some(event) = event else { job.fail(&format!("rank {rank} has not ended")) };
    assert!(event.text.contains("code 0"), "rank {rank} has failed: {}\n{}", event.text, job.stderr());
}

/// `select` uses the library's heap outside of the layer. A nudge that comes in the middle of that finds the heap held by the thread below its own handler,
/// and must not wait for it: that checkpoint would never end. The nudge is made up for: else there would be far fewer checkpoints.
#[test]
fn checkpoints_in_the_middle_of_select() {
    const SECONDS: u64 = 8;
    let cluster = Cluster::start(Kind::Logical, 2);
    let program = compiled("net", "selects");
    let job = cluster.job(1, "--protect on --ckpt-interval 0.01", &[&program, &SECONDS.to_string()]);
    job.limit(LIMIT).run().expect(0);
    let protected = Protected::newest(&cluster, 1);
    protected.check_ranks(SECONDS * 10);
    println!("selects: {}", protected.in_words());
    cluster.assert_idle();
    cluster.stop();
}

/// A caller is told that no protected process is there, because the listener is only about to listen, and gets a connection a moment later: this is protected like any other.
#[test]
fn a_caller_that_calls_until_a_process_listens_is_protected() {
    let calls = if is_long() { 5000 } else { 500 };
    for kind in Kind::all() {
        let cluster = Cluster::start(kind, 2);
        let (address, port) = match kind {
            Kind::Logical => ("127.0.0.1".to_owned(), free_port()),
            // The second node has rank 1.
            Kind::Namespaces => (netns::address(1).to_string(), "7000".to_owned()),
        };
        let program = ["python3", &script("knocks.py"), &address, &port, &calls.to_string()];
        let finished = cluster.job(2, ON, &program).limit(LIMIT).run().expect(0);
        assert_eq!(finished.stdout(), format!("OK knocks {calls}, refused True\n"), "the calls must come early: {finished}");
        let protected = Protected::newest(&cluster, 2);
        protected.check();
        let sums = (protected.sum(|c| c.unprotected), protected.sum(|c| c.bytes_in));
        assert_eq!(sums, (0, (4 + 5) * calls), "unprotected connections, bytes on the others: {protected:#?}");
        println!("knocks on {kind:?}: {:.2} s", finished.elapsed.as_secs_f64());
        cluster.assert_idle();
        cluster.stop();
    }
}

/// The rank that listens never accepts: its children do. What callers say first to a protected process is nothing for these.
#[test]
fn children_take_connections_as_without_protection() {
    const CALLS: &str = "40";
    let cluster = Cluster::start(Kind::Logical, 2);
    for how in ["accept", "epoll", "poll", "select", "exec"] {
        let port = free_port();
        let program = ["python3", &script("prefork.py"), &port, how, CALLS];
        let finished = cluster.job(2, ON, &program).limit(LIMIT).run().expect(0);
        let said = finished.stdout();
        assert!(said.contains("server [0, 0]\n") && said.contains(&format!("client {CALLS} answers")), "{how}: {finished}");
        let words = finished.stderr();
        assert_eq!(words.matches("takes connections at").count(), 1, "the terminal is told once: {finished}");
        let job = cluster.status().jobs.last().expect("it has run").job;
        let is_told = |event: &Event| event.event == EventName::Unprotected && event.text.contains("takes connections at");
        let told = events_of(&cluster, job).into_iter().filter(is_told).count();
        assert_eq!(told, 1, "once for each rank");
        println!("children that wait by {how}: {}", said.replace('\n', ", "));
    }
    cluster.assert_idle();
    cluster.stop();
}

/// A connection of the rank is none of its children's: they see its end, and nobody sees a byte of theirs.
#[test]
fn children_have_none_of_the_connections() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let finished = cluster.job(2, ON, &["python3", &script("inherits.py"), &free_port()]).limit(LIMIT).run().expect(0);
    assert!(finished.stdout().contains("OK inherits"), "{finished}");
    cluster.assert_idle();
    cluster.stop();
}

const REDIS_TESTS: &str = "-t ping,set,get,incr,lpush,lpop,mset,lrange_100 -n 2000 -c 20 -d 300 --csv";

/// Asks the server as an unprotected client.
fn ask_redis(cluster: &Cluster, port: &str, words: &[&str]) -> String {
    let finished = cluster.invocation("redis-cli").args(["-p", port]).args(words).run().expect(0);
    finished.stdout().trim().to_owned()
}

/// What redis-benchmark has told the server to do must have been done exactly once each.
fn check_redis(cluster: &Cluster, port: &str) {
    assert_eq!(ask_redis(cluster, port, &["get", "counter:__rand_int__"]), "2000");
    // Pushed 2000, popped 2000, and then pushed again for lrange.
    assert_eq!(ask_redis(cluster, port, &["llen", "mylist"]), "2000");
    assert_eq!(ask_redis(cluster, port, &["get", "key:__rand_int__"]).len(), 300);
}

fn check_redis_benchmark(csv: &str) {
    let lines = csv.lines().filter(|line| line.starts_with('"') && !line.contains("rps"));
    // PING has two forms, and each command a line.
    assert!(lines.count() >= 8, "{csv}");
}

#[test]
fn redis_with_a_protected_client() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let port = free_port();
    let benchmark = format!("redis-benchmark -p {port} {REDIS_TESTS}");
    let mut pair = Pair::start(&cluster, &redis::server(&cluster, "127.0.0.1", &port), &benchmark);
    pair.job.until("redis to be ready", |out, _| out.contains("Ready to accept connections").then_some(()));
    pair.go();
    wait_for_rank(&cluster, &mut pair.job, 1);
    check_redis(&cluster, &port);
    let protected = Protected::newest(&cluster, 2);
    protected.check();
    assert!(protected.sum(|c| c.messages_in) > 5000, "{protected:#?}");
    pair.job.signal(rustix::process::Signal::TERM);
    let finished = pair.end().expect(0);
    check_redis_benchmark(&printed_by(&finished, 1));
    println!("redis, protected client: {:.2} s; {}", finished.elapsed.as_secs_f64(), protected.in_words());
    cluster.assert_idle();
    cluster.stop();
}

#[test]
fn redis_with_an_unprotected_client() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let port = free_port();
    let server = format!("exec {}", redis::server(&cluster, "127.0.0.1", &port));
    let mut job = cluster.job(1, ON, &["sh", "-c", &server]).limit(LIMIT).start();
    job.until("redis to be ready", |out, _| out.contains("Ready to accept connections").then_some(()));
    let words = REDIS_TESTS.split_whitespace();
    let finished = cluster.invocation("redis-benchmark").args(["-p", &port]).args(words).limit(LIMIT).run().expect(0);
    check_redis_benchmark(&finished.stdout());
    check_redis(&cluster, &port);
    let protected = Protected::newest(&cluster, 1);
    protected.check();
    assert!(protected.sum(|c| c.unprotected) >= 20, "{protected:#?}");
    println!("redis, unprotected client: {:.2} s; {}", finished.elapsed.as_secs_f64(), protected.in_words());
    job.signal(rustix::process::Signal::TERM);
    job.wait().expect(0);
    cluster.assert_idle();
    cluster.stop();
}

/// 512 MiB one way, then the other.
#[test]
fn iperf_both_ways() {
    let cluster = Cluster::start(Kind::Logical, 2);
    for reverse in ["", " --reverse"] {
        let port = free_port();
        let client = format!("iperf3 --client 127.0.0.1 --port {port} --bytes 512M --json{reverse}");
        let server = format!("iperf3 --server --one-off --port {port} --forceflush");
        let mut pair = Pair::start(&cluster, &server, &client);
        pair.job.until("iperf3 to listen", |out, _| out.contains("Server listening").then_some(()));
        pair.go();
        let finished = pair.end().expect(0);
        let json = printed_by(&finished, 1);
        let report: serde_json::Value = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error} in {finished}"));
        let end = &report["end"];
        let bytes = |sum: &str| end[sum]["bytes"].as_u64().unwrap_or_else(|| panic!("no {sum} in {finished}"));
        // What is under way when the sender has done its part is counted by it alone.
        let (sent, received) = (bytes("sum_sent"), bytes("sum_received"));
        assert!(received <= sent && received > (512 << 20) / 10 * 9, "{received} bytes of {sent}: {finished}");
        let protected = Protected::newest(&cluster, 2);
        protected.check_ranks(0);
        let rate = end["sum_received"]["bits_per_second"].as_f64().unwrap_or_default() / 8e6;
        println!("iperf3{reverse}: {rate:.0} MB/s; {}", protected.in_words());
        cluster.assert_idle();
    }
    cluster.stop();
}

/// The same digest on both sides, and the same as without protection.
#[test]
fn asyncio_echo() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let script = script("echo.py");
    let run = |flags: &str| {
        let dir = folder(&cluster, "pair");
        let job: Invocation = cluster.job(2, flags, &["python3", &script, "rank", &text(&dir), "1000"]);
        let finished = job.limit(LIMIT).run().expect(0);
        fs::remove_dir_all(&dir).expect("ours");
        finished
    };
    let plain = run("--protect none");
    let due = plain.stdout();
    let lines: Vec<&str> = due.lines().collect();
    assert!(lines.len() == 2 && lines[0] == lines[1] && lines[0].starts_with("OK echo "), "{plain}");
    let finished = run(ON);
    assert_eq!(finished.stdout(), due, "{finished}");
    let protected = Protected::newest(&cluster, 2);
    protected.check_ranks(0);
    println!(
        "asyncio: {:.2} s, {:.2} s without; {}",
        finished.elapsed.as_secs_f64(),
        plain.elapsed.as_secs_f64(),
        protected.in_words()
    );
    cluster.assert_idle();
    cluster.stop();
}
