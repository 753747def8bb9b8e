//! Running seeds: one here, or many in processes that this one starts. A violation is a panic, which ends the process that met it: it says which seed that was, and another
//! process goes on after it.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cluster::counts::{Breaks, Counts};
use crate::cluster::plan::Plan;
use crate::cluster::world::World;

/// Seeds that one process runs.
const CHUNK: u64 = 50;
/// Real time for one seed.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time between two words about how far it has come.
const PROGRESS: Duration = Duration::from_secs(5);

/// Seeds, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub from: u64,
    /// The last.
    pub to: u64,
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once("..").map(|(from, to)| (from.parse(), to.trim_start_matches('=').parse()));
        match parsed {
            Some((Ok(from), Ok(to))) if from <= to => Ok(Range { from, to }),
            _ => Err("two numbers are wanted, as 1..10000, the lower first".to_owned()),
        }
    }
}

/// A seed that failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Failure {
    /// Which.
    pub seed: u64,
    /// What was violated: the beginning of `what`, if it names a guarantee.
    pub rule: String,
    /// What was seen.
    pub what: String,
    /// What shows it once more.
    pub replay: String,
}

impl Failure {
    fn new(seed: u64, what: &str) -> Failure {
        let replay = format!("cargo run --release -p radic-sim -- --seed {seed} --trace");
        Failure { seed, rule: rule_of(what).to_owned(), what: what.lines().next().unwrap_or("").to_owned(), replay }
    }
}

/// What a panic says.
pub fn text_of(payload: &dyn std::any::Any) -> &str {
    payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

/// The rule that a message names: its first part, or the one after what `assert_eq` puts before it.
pub fn rule_of(what: &str) -> &str {
    const RULES: [&str; 11] = ["G1", "G2", "G3", "G4", "G5", "G6", "G7", "views", "restart", "end", "hang"];
    let mut parts = what.splitn(3, ':').map(str::trim);
    let named = parts.find(|part| !part.starts_with("assertion"));
    named.filter(|rule| RULES.contains(rule)).unwrap_or("assertion")
}

/// All of it.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    /// Seeds that were run.
    pub seeds: u64,
    /// Those that passed.
    pub passed: u64,
    /// The others.
    pub failures: Vec<Failure>,
    /// What has happened.
    pub counts: Counts,
    /// Real time, in milliseconds.
    pub elapsed_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Passed(u64, Counts),
    Failed(Failure),
}

/// Both clusters of one seed. A violation is a panic.
pub fn run(seed: u64, trace: bool) -> Counts {
    let mut counts = Counts::default();
    for plan in [Plan::new(seed), Plan::dense(seed)] {
        if trace {
            print!("{plan}");
        }
        let mut world = World::new(plan, Breaks::default(), trace);
        world.run();
        counts.add(&world.counts);
    }
    counts
}

/// Has panics say which seed they are of, and end the process in order: there is nothing to dump.
fn report_panics(seed: &'static Mutex<u64>, tell: fn(&Failure, &str)) {
    std::panic::set_hook(Box::new(move |panic| {
        let seed = seed.lock().map_or(0, |seed| *seed);
        let what = text_of(panic.payload()).to_owned();
        let at = panic.location().map_or(String::new(), |at| format!("{}:{}", at.file(), at.line()));
        tell(&Failure::new(seed, &what), &format!("{what}\n{at}"));
        std::process::exit(1);
    }));
}

static SEED: Mutex<u64> = Mutex::new(0);

fn begin(seed: u64) {
    *SEED.lock().expect("no thread panics while it holds this") = seed;
}

/// One seed, in this process. True: it passed.
pub fn run_one(seed: u64, trace: bool, json: bool) -> bool {
    begin(seed);
    report_panics(&SEED, |failure, what| {
        println!("seed {} violates {}: {what}", failure.seed, failure.rule);
        println!("sim: 0 of 1 seeds passed");
    });
    let counts = run(seed, trace);
    if json {
        println!("{}", serde_json::to_string(&counts).expect("numbers"));
    } else {
        println!("sim: 1 of 1 seeds passed");
    }
    true
}

/// These seeds, for the process that has started this one.
pub fn work(range: Range) {
    report_panics(&SEED, |failure, _| say(&Line::Failed(failure.clone())));
    for seed in range.from..=range.to {
        begin(seed);
        let counts = run(seed, false);
        say(&Line::Passed(seed, counts));
    }
}

fn say(line: &Line) {
    let text = serde_json::to_string(line).expect("numbers and text");
    // If nothing reads it, the process that has started this one is gone.
    _ = writeln!(io::stdout(), "{text}");
}

/// All these seeds. True: all passed.
pub fn run_all(range: Range, threads: usize, json: bool) -> io::Result<bool> {
    let (begun, next) = (Instant::now(), Mutex::new(Some(range.from)));
    let (sender, lines) = mpsc::channel();
    let mut summary = Summary::default();
    thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some(chunk) = take_chunk(next, range) {
                    if let Err(error) = run_chunk(chunk, &sender) {
                        _ = sender.send(Err(error));
                        return;
                    }
                }
            });
        }
        drop(sender);
        gather(&lines, &mut summary, range, begun, json)
    })?;
    summary.elapsed_ms = begun.elapsed().as_millis() as u64;
    summary.failures.sort_by_key(|failure| failure.seed);
    show(&summary, json);
    Ok(summary.failures.is_empty())
}

fn take_chunk(next: &Mutex<Option<u64>>, range: Range) -> Option<Range> {
    let mut next = next.lock().ok()?;
    let from = (*next)?;
    let to = range.to.min(from.saturating_add(CHUNK - 1));
    *next = (to < range.to).then(|| to + 1);
    Some(Range { from, to })
}

type Lines = mpsc::Sender<io::Result<Line>>;

/// Runs a chunk in as many processes as it takes.
fn run_chunk(chunk: Range, lines: &Lines) -> io::Result<()> {
    let mut from = chunk.from;
    while from <= chunk.to {
        from = run_process(Range { from, to: chunk.to }, lines)? + 1;
    }
    Ok(())
}

/// Runs seeds in one process, until it ends. The last one that it has said something about, or should have.
fn run_process(range: Range, lines: &Lines) -> io::Result<u64> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--worker", &format!("{}..{}", range.from, range.to)])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let said = read_lines(&mut child);
    let mut seed = range.from;
    let end = loop {
        match said.recv_timeout(PATIENCE) {
            Ok(Line::Passed(passed, counts)) => {
                _ = lines.send(Ok(Line::Passed(passed, counts)));
                seed = passed + 1;
                if passed == range.to {
                    break passed;
                }
            }
            Ok(Line::Failed(failure)) => {
                _ = lines.send(Ok(Line::Failed(failure)));
                break seed;
            }
            Err(error) => {
                let text = match error {
                    RecvTimeoutError::Timeout => format!("hang: it takes longer than {} s", PATIENCE.as_secs()),
                    RecvTimeoutError::Disconnected => "its process ended without a word".to_owned(),
                };
                _ = lines.send(Ok(Line::Failed(Failure::new(seed, &text))));
                break seed;
            }
        }
    };
    // It may have ended already.
    _ = child.kill();
    child.wait()?;
    Ok(end)
}

fn read_lines(child: &mut Child) -> mpsc::Receiver<Line> {
    let (sender, receiver) = mpsc::channel();
    let stdout = child.stdout.take();
    thread::spawn(move || {
        let lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines().map_while(Result::ok));
        for line in lines {
            let Ok(line) = serde_json::from_str(&line) else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn gather(
    lines: &mpsc::Receiver<io::Result<Line>>,
    summary: &mut Summary,
    range: Range,
    begun: Instant,
    quiet: bool,
) -> io::Result<()> {
    let all = range.to - range.from + 1;
    let mut told = begun;
    for line in lines {
        summary.seeds += 1;
        match line? {
            Line::Passed(_, counts) => {
                summary.passed += 1;
                summary.counts.add(&counts);
            }
            Line::Failed(failure) => {
                if !quiet {
                    println!("seed {} violates {}: {}\n  {}", failure.seed, failure.rule, failure.what, failure.replay);
                }
                summary.failures.push(failure);
            }
        }
        if !quiet && told.elapsed() > PROGRESS {
            told = Instant::now();
            let (seeds, failed) = (summary.seeds, summary.failures.len());
            println!("{seeds} of {all} seeds in {:.0} s, {failed} failed", begun.elapsed().as_secs_f64());
        }
    }
    Ok(())
}

fn show(summary: &Summary, json: bool) {
    if json {
        return println!("{}", serde_json::to_string(summary).expect("numbers and text"));
    }
    let Summary { seeds, passed, failures, counts, elapsed_ms } = summary;
    println!(
        "{} faults, {} restarts of processes, {} images that did not restore, {} jobs restarted from their beginning, {} suspended, \
         {} ended without a majority, {} met a documented limit, {} readings of a clock that no thread made any more, \
         {} images, {} increments restored, {} links, {} calls left under way, {} callers refused, \
         {} processes killed when they had been let go, at most {} bytes for a socket of a log server, {} bytes \
         ({} sent once more), {:.0} h of virtual time, {:.1} million events in {:.1} s",
        counts.faults,
        counts.restarts,
        counts.went_back,
        counts.job_restarts,
        counts.suspensions,
        counts.failed,
        counts.limits,
        counts.missed_readings,
        counts.commits,
        counts.increments,
        counts.links,
        counts.under_way,
        counts.refused,
        counts.killed_late,
        counts.most_waiting,
        counts.delivered,
        counts.again,
        counts.virtual_ms as f64 / 3.6e6,
        counts.events as f64 / 1e6,
        *elapsed_ms as f64 / 1e3
    );
    if !failures.is_empty() {
        let list: Vec<String> = failures.iter().map(|failure| failure.seed.to_string()).collect();
        println!("failed: {}", list.join(" "));
    }
    println!("sim: {passed} of {seeds} seeds passed");
}
