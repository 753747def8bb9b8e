//! What ranks print, and what terminals show of it: order, whole lines, labels, terminals that come and go.
#![forbid(unsafe_code)]

use std::fs;
use std::time::{Duration, Instant};

use radic_tests::cluster::{Cluster, Kind};
use radic_tests::{Running, process};
use radic_wire::job::JobInfo;
use rustix::process::Signal;

const LINES: usize = 20_000;

fn sh(script: &str) -> [&str; 3] {
    ["sh", "-c", script]
}

/// The running jobs, by `radic jobs --json`.
fn jobs(cluster: &Cluster) -> Vec<JobInfo> {
    let finished = cluster.radic(["jobs", "--json"]).run().expect(0);
    serde_json::from_slice(finished.bytes()).unwrap_or_else(|error| panic!("{error} in {finished}"))
}

/// The one running job.
fn only_job(cluster: &Cluster) -> String {
    let jobs = jobs(cluster);
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    jobs[0].job.to_string()
}

/// Lines `RANK NUMBER filler`, each rank's from 1 to `LINES` in order, and nothing else.
fn expect_lines(out: &str, prefix: impl Fn(usize) -> String, filler: &str, what: &str) {
    let mut next = [1; 8];
    for line in out.lines() {
        let rank = (0..8).find(|rank| line.starts_with(&prefix(*rank)));
        let rank = rank.unwrap_or_else(|| panic!("{what}: a torn line: {line:?}"));
        let expected = format!("{}{} {filler}", prefix(rank), next[rank]);
        assert_eq!(line, expected, "{what}: rank {rank}'s line is torn, lost or out of order");
        next[rank] += 1;
    }
    assert_eq!(next, [LINES + 1; 8], "{what}: the next numbers of the ranks");
}

#[test]
fn lines_are_whole_and_in_order() {
    for kind in Kind::all() {
        let cluster = Cluster::start(kind, 4);
        let filler = "x".repeat(60);
        // Both streams at once, without and with labels.
        let script =
            format!("seq -f \"$RADIC_RANK %.0f {filler}\" {LINES} & seq -f \"$RADIC_RANK %.0f {filler}e\" {LINES} >&2; wait");
        let finished = cluster.job(8, "", &sh(&script)).run().expect(0);
        let bytes = finished.bytes().len() + finished.stderr().len();
        println!(
            "{kind:?}: 2 x 8 x {LINES} lines in {:.2?}, {:.0} MB/s",
            finished.elapsed,
            bytes as f64 / finished.elapsed.as_secs_f64() / 1e6
        );
        expect_lines(&finished.stdout(), |rank| format!("{rank} "), &filler, "stdout");
        // Somewhere among the ranks' own lines: that a shell's children are not protected, of the program once and of a child once.
        let err = finished.stderr();
        let (notices, lines): (Vec<&str>, Vec<&str>) = err.lines().partition(|line| line.starts_with("radic: warning: "));
        assert!(notices.len() <= 2, "{notices:?}");
        expect_lines(&lines.join("\n"), |rank| format!("{rank} "), &format!("{filler}e"), "stderr");
        let script = format!("exec seq -f \"%.0f {filler}\" {LINES}");
        let finished = cluster.job(8, "--label", &sh(&script)).run().expect(0);
        expect_lines(&finished.stdout(), |rank| format!("[{rank}] "), &filler, "--label");
        cluster.stop();
    }
}

#[test]
fn output_without_line_ends_comes_whole() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let finished = cluster.job(1, "", &sh("head -c 3000000 /dev/zero | tr '\\0' a; printf end")).run().expect(0);
    let out = finished.bytes();
    assert_eq!((out.len(), &out[out.len() - 4..]), (3_000_003, b"aend".as_slice()));
    // What is no line yet is shown before the job ends: a prompt.
    let mut job = cluster.job(2, "", &sh("[ $RADIC_RANK = 0 ] && printf 'name? '; read name; echo; echo hello $name"));
    job = job.stdin_open();
    let mut job = job.start();
    job.until("the prompt", |out, _| out.ends_with("name? ").then_some(()));
    job.type_in(b"you\n");
    assert!(job.wait().expect(0).stdout().contains("hello you\n"));
    cluster.stop();
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_job() {
    let cluster = Cluster::start(Kind::Logical, 3);
    let radic = radic_tests::cluster::program("radic").display().to_string();
    let pipe = |script: &str| cluster.invocation("bash").args(["-c", &format!("{radic} {script}")]).run();
    let finished = pipe("run -n 3 -- yes | head -1").expect(0);
    println!("| head -1 ended after {:.0?}", finished.elapsed);
    assert_eq!((finished.stdout().as_str(), finished.stderr().as_str()), ("y\n", ""));
    assert_eq!(jobs(&cluster), []);
    cluster.assert_idle();
    // The code of the command is that of a program that SIGPIPE has ended.
    let finished = pipe("run -n 3 -- yes | head -1 >/dev/null; exit ${PIPESTATUS[0]}");
    finished.expect(141);
    // What is followed ends with the next event after its reader has gone.
    let follow = format!("{radic} events --follow | head -1");
    let mut follow = cluster.invocation("bash").args(["-c", &follow]).start();
    follow.until("an event", |out, _| (out.lines().count() == 1).then_some(()));
    cluster.job(1, "", &["true"]).run().expect(0);
    follow.wait().expect(0);
    cluster.stop();
}

#[test]
fn output_that_nobody_reads_waits_in_the_ranks() {
    let cluster = Cluster::start(Kind::Logical, 2);
    let radic = radic_tests::cluster::program("radic").display().to_string();
    // The reader reads one line, then waits for a word through a pipe of its own.
    let go = cluster.dir().join("go");
    nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).expect("a new name");
    let script = format!("{radic} run -n 2 -- yes | (read line; echo started; read line <{})", go.display());
    let mut pipeline = cluster.invocation("bash").args(["-c", &script]).start();
    pipeline.until_line("started");
    let ranks: Vec<u32> = cluster.status().nodes.iter().flat_map(|node| node.ranks.iter().map(|rank| rank.pid)).collect();
    assert_eq!(ranks.len(), 2);
    let written = || ranks.iter().map(|pid| written(*pid)).collect::<Vec<_>>();
    let mut last = Vec::new();
    process::eventually(Duration::from_secs(10), "the ranks to stop writing", || {
        std::thread::sleep(Duration::from_millis(200));
        let now = written();
        std::mem::replace(&mut last, now.clone()) == now
    });
    let memory: Vec<_> = ["n1", "n2"].iter().map(|node| process::resident_kib(cluster.protector(node).pid())).collect();
    println!("no reader: the ranks stand after {last:?} bytes; memory of the protectors: {memory:?} KiB");
    assert!(memory.iter().all(|kib| *kib < 32 << 10));
    fs::write(&go, "\n").expect("the reader waits for it");
    pipeline.wait().expect(0);
    cluster.assert_idle();
    cluster.stop();
}

/// Bytes that a process has written so far.
fn written(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).expect("it runs");
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|number| number.parse().ok()).expect("the kernel tells")
}

/// Two ranks that print what the test hands them, each through a pipe of its own.
struct Stepper<'a> {
    cluster: &'a Cluster,
}

impl<'a> Stepper<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let stepper = Stepper { cluster };
        for rank in 0..2 {
            nix::unistd::mkfifo(&stepper.pipe(rank), nix::sys::stat::Mode::S_IRWXU).expect("a new name");
        }
        stepper
    }

    fn pipe(&self, rank: u32) -> std::path::PathBuf {
        self.cluster.dir().join(format!("go{rank}"))
    }

    /// The ranks print what comes through the pipes, and exit with code 6 at its end.
    fn start(&self, flags: &str) -> Running {
        let script = format!("echo ready; exec 9<{}/go$RADIC_RANK; cat <&9; exit 6", self.cluster.dir().display());
        self.cluster.job(2, flags, &sh(&script)).start()
    }

    fn open(&self) -> Vec<fs::File> {
        // Opening waits for the reader.
        (0..2).map(|rank| fs::OpenOptions::new().write(true).open(self.pipe(rank)).expect("a rank reads it")).collect()
    }
}

#[test]
fn a_job_outlives_its_terminal_and_can_be_attached_again() {
    use std::io::Write;
    for kind in Kind::all() {
        let cluster = Cluster::start(kind, 3);
        let stepper = Stepper::new(&cluster);
        let mut terminal = stepper.start("--nodes n2,n3");
        let mut pipes = stepper.open();
        let say = |pipes: &mut Vec<fs::File>, from: usize, to: usize| {
            for (rank, pipe) in pipes.iter_mut().enumerate() {
                let lines: String = (from..to).map(|i| format!("{rank} {i}\n")).collect();
                pipe.write_all(lines.as_bytes()).expect("the rank reads");
            }
        };
        say(&mut pipes, 0, 100);
        terminal.until("the first lines", |out, _| (out.matches(" 99\n").count() == 2).then_some(()));
        let job = only_job(&cluster);
        let mut events = cluster.events_at("n1");
        terminal.signal(Signal::KILL);
        assert_eq!(terminal.wait().code(), None);
        // There is no terminal: what is printed now is kept.
        say(&mut pipes, 100, 5_000);
        assert_eq!(only_job(&cluster), job, "the job has died with its terminal");
        let mut second = cluster.radic(["attach", &job[..6]]).start();
        second.until("what was kept", |out, _| (out.matches(" 4999\n").count() == 2).then_some(()));
        // A third one takes it over; the second one says so.
        let mut third = cluster.radic(["attach", &job, "--label"]).start();
        let seen = second.wait().expect(125).expect_stderr(&["another terminal"]).stdout();
        for rank in 0..2 {
            let prefix = format!("{rank} ");
            let numbers = seen.lines().filter_map(|line| line.strip_prefix(&prefix)?.parse::<usize>().ok());
            let numbers: Vec<_> = numbers.collect();
            let first = *numbers.first().expect("something was kept");
            assert!(first <= 100, "lines were lost: the first one is {first}");
            assert_eq!(numbers, (first..5_000).collect::<Vec<_>>(), "rank {rank}");
        }
        say(&mut pipes, 5_000, 5_001);
        third.until("a labelled line", |out, _| out.contains("[1] 1 5000\n").then_some(()));
        // SIGHUP is the end of a terminal, not of the job.
        third.signal(Signal::HUP);
        third.wait().expect(129);
        assert_eq!(only_job(&cluster), job);
        let last = cluster.radic(["attach", &job]).start();
        drop(pipes);
        let finished = last.wait().expect(6);
        println!("{kind:?}: {}", finished.stderr().lines().last().unwrap_or_default());
        events.expect("the job's end", Duration::from_secs(2), |e| e.event.as_str() == "job-end");
        // It can still be asked for.
        cluster.radic(["attach", &job]).run().expect(6);
        cluster.assert_idle();
        cluster.stop();
    }
}

/// G3 for what a terminal shows: the protector it is connected to dies in the middle of the output, and the next one goes on there.
#[test]
fn each_line_comes_once_though_the_terminal_s_node_dies() {
    const COUNT: usize = 200_000;
    for kind in Kind::all() {
        let cluster = Cluster::start(kind, 4);
        let script = format!("exec seq -f \"$RADIC_RANK %.0f\" {COUNT}");
        // n1 protects no rank here: only the terminal is to lose its protector.
        let mut job = cluster.job(2, "--nodes n3,n4", &sh(&script)).start();
        let victim = cluster.protector("n1");
        job.until("a good part of the output", |out, _| (out.len() > 200_000).then_some(()));
        victim.signal(Signal::KILL);
        let finished = job.wait().expect(0).expect_stderr(&["n1"]);
        let mut next = [1; 2];
        for line in finished.stdout().lines() {
            let (rank, number) = line.split_once(' ').expect("a whole line");
            let next = &mut next[rank.parse::<usize>().expect("a rank")];
            assert_eq!(number.parse(), Ok(*next), "a line of rank {rank} is lost, torn or repeated");
            *next += 1;
        }
        assert_eq!(next, [COUNT + 1; 2]);
        println!("{kind:?}: 2 x {COUNT} lines across the death of the terminal's node in {:.0?}", finished.elapsed);
        cluster.assert_idle();
        cluster.stop();
    }
}

#[test]
fn a_detached_job_is_killed_by_name() {
    let cluster = Cluster::start(Kind::Logical, 3);
    let script = "echo hello from $RADIC_RANK; sleep 1000 & wait";
    let detached = cluster.radic(["run", "-n", "3", "--detach", "--", "sh", "-c", script]).run().expect(0);
    let job = detached.stdout().trim().to_owned();
    assert_eq!(only_job(&cluster), job);
    let table = cluster.radic(["jobs"]).run().expect(0).stdout();
    assert!(table.lines().any(|line| line.starts_with(&job) && line.contains("running")), "{table}");
    let mut shown = cluster.radic(["attach", &job]).start();
    shown.until("three lines", |out, _| (out.matches("hello from").count() == 3).then_some(()));
    let then = Instant::now();
    cluster.radic(["kill", &job[..5]]).run().expect(0);
    // Its end is the answer: nothing is left now.
    println!("killed within {:.0?}", then.elapsed());
    assert_eq!(jobs(&cluster), []);
    shown.wait().expect(137).expect_stderr(&["killed"]);
    cluster.assert_idle();
    cluster.radic(["kill", "0123456789ab"]).run().expect(125).expect_stderr(&["0123456789ab", "radic jobs"]);
    cluster.radic(["attach", "0123456789ab"]).run().expect(125).expect_stderr(&["0123456789ab"]);
    let all = cluster.radic(["jobs", "--all"]).run().expect(0).stdout();
    assert!(all.contains("killed"), "{all}");
    cluster.stop();
}
