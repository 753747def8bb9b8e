//! `radic bench recover`: how long it takes from the death of a node until its rank lives again, step by step.
//!
//! Four ranks on four nodes, and a spare. One node is killed when every rank has a checkpoint and some time has passed. The steps are the events of
//! `radic events`, which have the time of one clock here, in milliseconds. The job goes on to its end, where each rank checks its memory. Nodes
//! that are killed are noticed by their closed port; how long a silent machine takes (one that has lost its power) is not measured here.
//!
//! Then the whole time of a job that has a death every so often, against the same job undisturbed, restarted as a whole from its last images
//! (`radic suspend` at every interval, `radic kill` and `radic resume` at each death), and started over.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use radic_wire::event::{Event, EventName};
use radic_wire::ids::{JobId, Rank};
use radic_wire::local::{ClusterStatus, NodeInfo, Reply, Request};
use radic_wire::report::ProcessInfo;
use serde::Serialize;

use super::figures::{Spread, Times, busy};
use super::plot::{Panel, PlotArgs, Row as Plotted};
use super::runs::{Library, Runs, Started, Temporary, figure, find_program};
use crate::client::{Cluster, Connection, ask_status};
use crate::counters::make_checkpoints;
use crate::progress::{Progress, Unit};

const RANKS: u32 = 4;
/// The node and the rank that die: neither the terminal's node nor that of rank 0, where the job is at home.
const VICTIM: (&str, Rank) = ("n3", Rank(2));
/// Most seconds from the death to its confirmation.
const DETECTED: f64 = 0.8;
/// Most seconds from the death to the beginning of replay, for [`TARGET_MIB`] and less.
const RESTARTED: f64 = 2.5;
const TARGET_MIB: u64 = 100;
/// Time for anything to happen.
const LIMIT: Duration = Duration::from_secs(120);
/// Time between two looks whether a job has ended.
const LOOK: Duration = Duration::from_millis(20);
/// Time until a job, or a rank, is saved after it could not be.
const AGAIN: Duration = Duration::from_millis(300);
/// Most spares, hence most deaths of one job.
const SPARES: u32 = 8;
/// Steps of the first run that tells how long one takes.
const TRIAL: u64 = 300;
/// Times the length that a job is to have, as long it may take: what the disk needs for images is not known before.
const SLACK: f64 = 10.0;
/// Deaths that a job lasts for, at least, when it has one every so often.
const DEATHS: f64 = 2.5;
/// Steps of the whole job: how long it takes, undisturbed, and with deaths in two ways.
const WHOLE_STEPS: u64 = 4;
/// Runs in which the length of such a job is found.
const LENGTHS: u32 = 3;

/// Flags of `radic bench recover`.
#[derive(Args)]
pub(crate) struct RecoverArgs {
    /// The library
    #[arg(long, value_enum, default_value_t = Library::Mpich)]
    mpi: Library,
    /// The program [default: `memory`, of `make deps`]
    #[arg(long)]
    program: Option<PathBuf>,
    /// Memory of each of the 4 ranks, in MiB
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1000], value_parser = clap::value_parser!(u64).range(1..=1 << 16))]
    mib: Vec<u64>,
    /// Deaths for each size
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds between two checkpoints of a rank
    #[arg(long, default_value_t = 10.0, value_parser = super::figures::parse_seconds, value_name = "S")]
    ckpt_interval: f64,
    /// Seconds from the last rank's first checkpoint to the death
    #[arg(long, default_value_t = 3.0, value_parser = super::figures::parse_seconds, value_name = "S")]
    after: f64,
    /// Then, with the first size: seconds between two deaths during one job, against other ways to survive them; 0: not
    #[arg(long, default_value_t = 15.0, value_parser = parse_every, value_name = "S")]
    every: f64,
    /// Seconds that a job with one death takes when nothing happens to it; it must not end before the death
    #[arg(long, default_value_t = 25.0, value_parser = super::figures::parse_seconds, value_name = "S")]
    seconds: f64,
    #[command(flatten)]
    plot: PlotArgs,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

fn parse_every(text: &str) -> Result<f64, String> {
    if text == "0" { Ok(0.0) } else { super::figures::parse_seconds(text) }
}

/// One job with a death every so often, in seconds.
#[derive(Debug, Serialize)]
struct Whole {
    mib: u64,
    every_s: f64,
    undisturbed_s: f64,
    /// Only the lost ranks go back.
    radic_s: f64,
    radic_deaths: u32,
    /// All ranks go back to the last time that the whole job was saved.
    together_s: f64,
    together_deaths: u32,
    together_saved: u32,
    /// From the beginning, after each death; none: it would never end.
    over_s: Option<f64>,
}

/// One death, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Death {
    /// From the death to its confirmation.
    detect: f64,
    /// From there until it was decided where the rank goes on: fencing, what the log has.
    place: f64,
    /// From there until its images were there and verified.
    image: f64,
    /// From there until it ran again.
    restore: f64,
    /// From there until it had caught up.
    replay: f64,
    /// From there until its first checkpoint at its new protector.
    protect: f64,
    /// What was to be done again: the time that as many outcomes took before the death.
    behind: f64,
    /// How many that were.
    outcomes: f64,
    /// The longest step of rank 0, which lost nothing.
    pause: f64,
    /// The images that it was restored from.
    image_mib: f64,
}

impl Death {
    fn restarted(&self) -> f64 {
        self.detect + self.place + self.image + self.restore
    }
}

/// All deaths with one size.
#[derive(Debug, Serialize)]
struct Row {
    mib: u64,
    detect_s: Times,
    place_s: Times,
    image_s: Times,
    restore_s: Times,
    /// From the death to the beginning of replay.
    restarted_s: Times,
    replay_s: Times,
    /// From the death to life.
    live_s: Times,
    /// From there to the first checkpoint.
    protect_s: Times,
    behind_s: Times,
    /// The time that was done again, by the time that this took.
    replay_speed: Times,
    survivor_pause_s: Times,
    image_mib: Times,
}

impl Row {
    fn of(mib: u64, deaths: &[Death]) -> Self {
        let times = |of: fn(&Death) -> f64| Times::of(deaths.iter().map(of).collect());
        Row {
            mib,
            detect_s: times(|death| death.detect),
            place_s: times(|death| death.place),
            image_s: times(|death| death.image),
            restore_s: times(|death| death.restore),
            restarted_s: times(Death::restarted),
            replay_s: times(|death| death.replay),
            live_s: times(|death| death.restarted() + death.replay),
            protect_s: times(|death| death.protect),
            behind_s: times(|death| death.behind),
            replay_speed: times(|death| death.behind / death.replay.max(0.001)),
            survivor_pause_s: times(|death| death.pause),
            image_mib: times(|death| death.image_mib),
        }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    library: Library,
    program: PathBuf,
    rounds: u32,
    ckpt_interval_s: f64,
    rows: Vec<Row>,
    whole: Option<Whole>,
    notes: Vec<String>,
}

/// `radic bench recover`.
pub(super) fn measure(args: &RecoverArgs) -> Result<()> {
    let file = args.plot.begin()?;
    let program = args.program.clone().map_or_else(|| find_program(args.mpi, "memory"), Ok)?;
    let program = std::fs::canonicalize(&program)
        .with_context(|| format!("--program {}: name the program that `make deps` has built, or none", program.display()))?;
    let notes = busy().into_iter().collect();
    let longest = Duration::from_secs_f64(SLACK * args.seconds.max(DEATHS * args.every));
    let runs = Runs::protected(args.mpi, &program, Progress::new(args.json))?.lasting(longest);
    let steps = args.mib.len() as u64 * (1 + u64::from(args.rounds)) + if args.every > 0.0 { WHOLE_STEPS } else { 0 };
    runs.progress.begin("deaths", Unit::Steps, Some(steps));
    let mut bench = Bench { runs, program, args };
    let rows = args.mib.iter().map(|mib| bench.deaths(*mib)).collect::<Result<_>>()?;
    let first = args.mib.first().filter(|_| args.every > 0.0);
    let whole = first.map(|mib| bench.whole(*mib)).transpose()?;
    bench.runs.progress.end();
    let Bench { program, .. } = bench;
    let (library, rounds, ckpt_interval_s) = (args.mpi, args.rounds, args.ckpt_interval);
    let figures = Report { library, program, rounds, ckpt_interval_s, rows, whole, notes };
    args.plot.tell(&figures, args.json, in_words, file, panels)
}

fn panels(report: &Report) -> [Panel; 2] {
    let part = |mib: u64, what: &str, times: &Times, target: f64| Plotted {
        what: format!("{mib} MiB: {what} ({target} s)"),
        spread: Spread::parts_of(times, target),
        target: Some(1.0),
    };
    let of_row = |row: &Row| {
        let replay = Plotted {
            what: format!("{} MiB: replay, by what it does again", row.mib),
            spread: inverse(&row.replay_speed),
            target: Some(1.0),
        };
        let detected = part(row.mib, "detected", &row.detect_s, DETECTED);
        let restarted = (row.mib <= TARGET_MIB).then(|| part(row.mib, "replay begins", &row.restarted_s, RESTARTED));
        [Some(detected), restarted, Some(replay)].into_iter().flatten().collect::<Vec<_>>()
    };
    let whole = report.whole.iter().flat_map(|whole| {
        let row = |what: &str, seconds: f64| {
            let ratio = seconds / whole.undisturbed_s;
            Plotted { what: what.into(), spread: Spread { min: ratio, median: ratio, max: ratio }, target: None }
        };
        let over = whole.over_s.map(|seconds| row("all restart from the beginning", seconds));
        [
            Some(row("only the lost rank goes back", whole.radic_s)),
            Some(row("all go back to the last save", whole.together_s)),
            over,
        ]
    });
    let title = format!("From a death to life, {} deaths of each size", report.rounds);
    [
        Panel { title, axis: "parts of the target, which is in brackets", rows: report.rows.iter().flat_map(of_row).collect() },
        Panel { title: "One job with many deaths".into(), axis: "times the undisturbed one", rows: whole.flatten().collect() },
    ]
}

/// The time by the time that is done again: less is better.
fn inverse(speed: &Times) -> Spread {
    let part = |speed: f64| 1.0 / speed.max(1e-3);
    Spread { min: part(speed.max), median: part(speed.median), max: part(speed.min) }
}

fn in_words(report: &Report) -> String {
    let Report { rounds, ckpt_interval_s, .. } = report;
    let mut text = format!(
        "{RANKS} ranks on {RANKS} nodes, one of which dies; a checkpoint every {ckpt_interval_s} s; seconds, medians of {rounds}\n\n"
    );
    let headings = ["detect", "place", "image", "restore", "replay", "behind", "live", "protect", "pause"];
    text += &format!("{:>9}", "MiB/rank");
    headings.iter().for_each(|heading| text += &format!(" {heading:>8}"));
    text.push('\n');
    for row in &report.rows {
        let Row { mib, detect_s, place_s, image_s, restore_s, replay_s, behind_s, live_s, protect_s, survivor_pause_s, .. } = row;
        text += &format!("{mib:>9}");
        for times in [detect_s, place_s, image_s, restore_s, replay_s, behind_s, live_s, protect_s, survivor_pause_s] {
            text += &format!(" {:>8.3}", times.median);
        }
        text.push('\n');
    }
    text.push('\n');
    for Row { mib, detect_s, restarted_s, replay_speed, .. } in &report.rows {
        let (detected, restarted, speed) = (detect_s.median, restarted_s.median, replay_speed.median);
        text += &format!("{mib:>5} MiB: detected after {detected:.3} s (target {DETECTED}); ");
        let target = if *mib <= TARGET_MIB { format!(" (target {RESTARTED})") } else { String::new() };
        text += &format!("replay begins after {restarted:.3} s{target}, {speed:.1} times as fast as it was (target 1)\n");
    }
    text += "\ndetect: from the death to its confirmation; place: fencing, and where the rank goes on; image: fetched and verified; replay: until it\n\
        lives; behind: the time that what was to be done again had taken; live: from the death to life; protect: from there to its first checkpoint; pause: the\n\
        longest step of a rank that lost nothing\n";
    text += &report.whole.as_ref().map(whole_in_words).unwrap_or_default();
    for note in &report.notes {
        text += &format!("\n{note}\n");
    }
    text
}

fn whole_in_words(whole: &Whole) -> String {
    let row = |what: &str, seconds: f64, more: &str| {
        format!("  {what:<40} {seconds:>7.1} s {:>6.2}  {more}\n", seconds / whole.undisturbed_s)
    };
    let mut text = format!("\na death every {} s, {} MiB, until the end of the job:\n", whole.every_s, whole.mib);
    text += &row("undisturbed", whole.undisturbed_s, "");
    text += &row("only the lost rank goes back", whole.radic_s, &format!("{} deaths", whole.radic_deaths));
    let more = format!("{} deaths, saved {} times", whole.together_deaths, whole.together_saved);
    text += &row("all go back to the last `radic suspend`", whole.together_s, &more);
    text += &match whole.over_s {
        Some(seconds) => row("all restart from the beginning", seconds, ""),
        None => format!("  {:<40} never: it takes longer than the time between two deaths\n", "all restart from the beginning"),
    };
    text
}

/// Which rank dies: each but the one at home, in turn.
fn next_victim(deaths: u32) -> Rank {
    Rank(1 + deaths % (RANKS - 1))
}

struct Bench<'a> {
    runs: Runs,
    program: PathBuf,
    args: &'a RecoverArgs,
}

impl Bench<'_> {
    fn deaths(&mut self, mib: u64) -> Result<Row> {
        let steps = self.steps(mib)?;
        let mut deaths = Vec::new();
        for round in 1..=self.args.rounds {
            self.runs.progress.say(&format!("{mib} MiB, death {round} of {}", self.args.rounds));
            deaths.push(self.death(mib, steps)?);
            self.runs.progress.advance(1);
        }
        Ok(Row::of(mib, &deaths))
    }

    /// How many steps take the time that a job is to take, checkpoints among them: with much memory they take most of it.
    fn steps(&mut self, mib: u64) -> Result<u64> {
        self.runs.progress.say(&format!("{mib} MiB, undisturbed"));
        let mut steps = TRIAL;
        for trial in [self.args.ckpt_interval.min(self.args.seconds), self.args.seconds] {
            let temporary = Temporary::start(RANKS)?;
            let command = self.command(&temporary.cluster, mib, steps)?;
            let seconds = figure(&self.runs.run(command)?, "seconds")?;
            steps = (steps as f64 * trial / seconds.max(1e-3)) as u64 + 1;
        }
        self.runs.progress.advance(1);
        Ok(steps)
    }

    fn command(&self, cluster: &Cluster, mib: u64, steps: u64) -> Result<Command> {
        let options = ["--json", "--mib", &mib.to_string(), "--steps", &steps.to_string()].map(str::to_owned);
        let interval = self.args.ckpt_interval.to_string();
        self.runs.radic(cluster, RANKS, &["--protect", "on", "--ckpt-interval", &interval], &self.program, &options)
    }

    /// The time of one job with deaths, in each way.
    fn whole(&mut self, mib: u64) -> Result<Whole> {
        let every_s = self.args.every;
        let (steps, undisturbed_s) = self.lasting(mib, DEATHS * every_s)?;
        self.runs.progress.advance(1);
        self.runs.progress.say(&format!("{mib} MiB, the whole job, a node dies every {every_s} s"));
        let (radic_s, radic_deaths) = self.with_deaths(mib, steps, undisturbed_s)?;
        self.runs.progress.advance(1);
        self.runs.progress.say(&format!("{mib} MiB, the whole job, all ranks go back every {every_s} s"));
        let (together_s, together_deaths, together_saved) = self.together(mib, steps)?;
        self.runs.progress.advance(1);
        // It ends before the first death, or never.
        let over_s = (undisturbed_s < every_s).then_some(undisturbed_s);
        Ok(Whole { mib, every_s, undisturbed_s, radic_s, radic_deaths, together_s, together_deaths, together_saved, over_s })
    }

    /// The steps of a job that lasts at least so long undisturbed, and how long it lasts: the machine may be faster than when it was tried.
    fn lasting(&mut self, mib: u64, due: f64) -> Result<(u64, f64)> {
        let mut steps = (self.steps(mib)? as f64 * due / self.args.seconds) as u64 + 1;
        for _ in 0..LENGTHS {
            self.runs.progress.say(&format!("{mib} MiB, the whole job undisturbed"));
            let undisturbed = self.undisturbed(mib, steps)?;
            if undisturbed >= due {
                return Ok((steps, undisturbed));
            }
            steps = (steps as f64 * due / undisturbed * 1.1) as u64 + 1;
        }
        bail!("a job that should have lasted {due:.1} s has ended before it {LENGTHS} times: what else runs on this machine?")
    }

    fn undisturbed(&mut self, mib: u64, steps: u64) -> Result<f64> {
        let temporary = Temporary::start(RANKS)?;
        let begin = Instant::now();
        let command = self.command(&temporary.cluster, mib, steps)?;
        self.runs.run(command)?;
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Waits, but not longer than the job runs. Whether it still does.
    fn wait(&mut self, job: &mut Started, until: Instant) -> Result<bool> {
        while !job.has_ended()? {
            self.runs.not_interrupted()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(true);
            }
            self.runs.progress.tick();
            std::thread::sleep(left.min(LOOK));
        }
        Ok(false)
    }

    /// The job that runs; while it is being resumed that takes some time. None: it has ended.
    fn running(&mut self, command: &mut Started, cluster: &Cluster) -> Result<Option<String>> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let status = ask_status(cluster)?;
            // All ranks are there: else there is nothing that could be saved.
            if let Some(job) = status.jobs.iter().find(|job| job.outcome.is_none() && is_up(&status, job.job)) {
                return Ok(Some(job.job.to_string()));
            }
            ensure!(Instant::now() < deadline, "the job is not there again within {} s", LIMIT.as_secs());
            if !self.wait(command, Instant::now() + LOOK)? {
                return Ok(None);
            }
        }
    }

    fn with_deaths(&mut self, mib: u64, steps: u64, undisturbed: f64) -> Result<(f64, u32)> {
        let every = Duration::from_secs_f64(self.args.every);
        let spares = SPARES.min((undisturbed * 2.0 / self.args.every) as u32 + 1);
        let temporary = Temporary::with_spares(RANKS, spares)?;
        let cluster = &temporary.cluster;
        let (begin, mut deaths) = (Instant::now(), 0);
        let mut job = self.runs.start(self.command(cluster, mib, steps)?)?;
        while deaths < spares && self.wait(&mut job, begin + every * (deaths + 1))? {
            let status = ask_status(cluster)?;
            let hosts = |node: &&NodeInfo| node.ranks.iter().any(|rank| rank.rank == next_victim(deaths));
            // One that is on its way back has no node.
            if let Some(node) = status.nodes.iter().find(hosts) {
                let name = node.name.clone();
                let done = cluster.connect(Some(name.as_str()))?.ask(&Request::KillNode { name }, crate::client::ANSWER)?;
                ensure!(done == Reply::Done, "{done:?} to the order to kill a node");
            }
            deaths += 1;
        }
        finished(&self.runs.finish(job)?)?;
        Ok((begin.elapsed().as_secs_f64(), deaths))
    }

    /// As a job is restarted that only checkpoints as a whole: saved at every interval, and at each death all of it goes back to that.
    fn together(&mut self, mib: u64, steps: u64) -> Result<(f64, u32, u32)> {
        let [every, interval] = [self.args.every, self.args.ckpt_interval].map(Duration::from_secs_f64);
        let temporary = Temporary::start(RANKS)?;
        let cluster = &temporary.cluster;
        let folder = |number: u32| cluster.dir().join(format!("suspended-{number}"));
        let (begin, mut deaths, mut saved) = (Instant::now(), 0, 0);
        let mut job = self.runs.start(self.command(cluster, mib, steps)?)?;
        let mut save_at = Instant::now() + interval;
        loop {
            let die_at = begin + every * (deaths + 1);
            if !self.wait(&mut job, die_at.min(save_at))? {
                break;
            }
            let Some(id) = self.running(&mut job, cluster)? else { break };
            if Instant::now() >= die_at {
                // It may have ended by itself just now: then nothing is resumed.
                let killing = self.runs.start(radic(cluster, &["kill".into(), id.into()])?)?;
                self.runs.end(killing)?;
                deaths += 1;
            } else {
                let saving = radic(cluster, &["suspend".into(), id.into(), folder(saved + 1).into()])?;
                let saving = self.runs.start(saving)?;
                if self.runs.end(saving)?.0 != Some(0) {
                    // A rank was catching up, or the job has ended: soon again.
                    save_at = Instant::now() + AGAIN;
                    continue;
                }
                if saved > 0 {
                    std::fs::remove_dir_all(folder(saved))?;
                }
                saved += 1;
            }
            if let (Some(0), output) = self.runs.end(job)? {
                return finished(&output).map(|()| (begin.elapsed().as_secs_f64(), deaths, saved));
            }
            let again = match saved {
                0 => self.command(cluster, mib, steps)?,
                _ => radic(cluster, &["resume".into(), folder(saved).into()])?,
            };
            job = self.runs.start(again)?;
            save_at = Instant::now() + interval;
        }
        finished(&self.runs.finish(job)?)?;
        Ok((begin.elapsed().as_secs_f64(), deaths, saved))
    }

    /// Waits until every rank has a checkpoint with its memory: the first one is made in `MPI_Init`, when there is none yet.
    fn save_all(&mut self, cluster: &Cluster, mib: u64, job: &mut Started) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while saved(cluster)? < mib << 20 {
            ensure!(Instant::now() < deadline, "there is no checkpoint of {mib} MiB within {} s", LIMIT.as_secs());
            let Some(id) = self.running(job, cluster)? else { bail!("the job ended before it was saved: give more --seconds") };
            // A rank that begins or catches up makes none: asked again soon.
            if make_checkpoints(cluster, id, &Progress::hidden())?.iter().any(|rank| rank.result.is_err()) {
                self.wait(job, Instant::now() + AGAIN)?;
            }
        }
        Ok(())
    }

    fn death(&mut self, mib: u64, steps: u64) -> Result<Death> {
        let temporary = Temporary::with_spares(RANKS, 1)?;
        let cluster = &temporary.cluster;
        let mut events = Followed::new(cluster)?;
        let mut job = self.runs.start(self.command(cluster, mib, steps)?)?;
        events.until(&mut self.runs, &mut job, "the job to start", |e| e.event == EventName::JobStart)?;
        self.save_all(cluster, mib, &mut job)?;
        let (first, began) = outcomes(cluster)?;
        std::thread::sleep(Duration::from_secs_f64(self.args.after));
        let (last, ended) = outcomes(cluster)?;
        let rate = last.saturating_sub(first) as f64 / (ended - began).as_secs_f64();
        let name = VICTIM.0.parse().map_err(|error| anyhow::anyhow!("{error}"))?;
        match cluster.ask(&Request::KillNode { name }, crate::client::ANSWER)? {
            Reply::Done => {}
            other => bail!("{other:?} to the order to kill {}", VICTIM.0),
        }
        let protected = |e: &Event| e.event == EventName::Reprotected && e.rank == Some(VICTIM.1);
        events.until(&mut self.runs, &mut job, "the rank to be protected again", protected)?;
        let seen = events.seen;
        let output = self.runs.finish(job)?;
        let mut death = steps_of(&seen)?;
        ensure!(death.image_mib >= mib as f64, "it was restarted from images of {} MiB only", death.image_mib);
        (death.behind, death.pause) = (death.outcomes / rate.max(1.0), figure(&output, "longest_ms")? / 1e3);
        Ok(death)
    }
}

/// The rank that is going to die, if it runs.
fn victim(cluster: &Cluster) -> Result<Option<ProcessInfo>> {
    let processes = ask_status(cluster)?.processes;
    Ok(processes.into_iter().find(|process| process.rank == VICTIM.1 && process.running))
}

/// The bytes of committed images of the rank that is going to die.
fn saved(cluster: &Cluster) -> Result<u64> {
    let process = victim(cluster)?;
    let log = process.iter().flat_map(|process| process.logs.first()).find(|log| log.committed.is_some());
    Ok(log.map_or(0, |log| log.images))
}

/// Every rank has checked its memory.
fn finished(output: &str) -> Result<()> {
    ensure!(output.contains("OK "), "it ended otherwise than it should:\n{output}");
    Ok(())
}

/// Another command on this cluster.
fn radic(cluster: &Cluster, args: &[OsString]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("where this command is")?);
    command.arg("--cluster").arg(cluster.dir()).args(args).stderr(Stdio::null());
    Ok(command)
}

/// Whether all ranks of a job have reported to their protectors.
fn is_up(status: &ClusterStatus, job: JobId) -> bool {
    status.processes.iter().filter(|process| process.job == job && process.running && process.joined).count() == RANKS as usize
}

/// Outcomes that the rank that is going to die has recorded, and when it was asked.
fn outcomes(cluster: &Cluster) -> Result<(u64, Instant)> {
    let counters = victim(cluster)?.and_then(|process| process.counters).context("the rank is not protected")?;
    Ok((counters.events, Instant::now()))
}

/// What happened, in steps.
fn steps_of(events: &[Event]) -> Result<Death> {
    let victim = |e: &&Event| e.subject.as_ref().is_some_and(|name| name.as_str() == VICTIM.0);
    let rank = |e: &&Event| e.rank == Some(VICTIM.1);
    let missing = |name: EventName| format!("there was no event {}", name.as_str());
    let inject = EventName::Inject;
    let died = events.iter().find(|e| e.event == inject && victim(e)).with_context(|| missing(inject))?.at_ms;
    let after = |name: EventName, about: &dyn Fn(&&Event) -> bool| {
        let found = events.iter().filter(|e| e.event == name && e.at_ms >= died).find(|e| about(e));
        found.map(|e| (e.at_ms, &e.text)).with_context(|| missing(name))
    };
    let confirm = after(EventName::Confirm, &victim)?.0;
    let place = after(EventName::Place, &rank)?;
    let [image, replay, live, protected] =
        [EventName::Image, EventName::Replay, EventName::Live, EventName::Reprotected].map(|name| after(name, &rank));
    let (image, replay, live, protected) = (image?.0, replay?.0, live?, protected?.0);
    let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e3;
    Ok(Death {
        detect: seconds(died, confirm),
        place: seconds(confirm, place.0),
        image: seconds(place.0, image),
        restore: seconds(image, replay),
        replay: seconds(replay, live.0),
        protect: seconds(live.0, protected),
        behind: 0.0,
        outcomes: number_before(live.1, "outcomes"),
        pause: 0.0,
        image_mib: number_before(place.1, "MiB"),
    })
}

/// The number before this word in what an event says.
fn number_before(text: &str, word: &str) -> f64 {
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = words.windows(2).find(|pair| pair[1].starts_with(word)).and_then(|pair| pair[0].parse().ok());
    number.unwrap_or_default()
}

/// The events of a cluster, as they happen.
struct Followed {
    connection: Connection,
    seen: Vec<Event>,
    /// Those that were looked at.
    looked: usize,
}

impl Followed {
    fn new(cluster: &Cluster) -> Result<Self> {
        let mut connection = cluster.connect(None)?;
        connection.send(&Request::Events { follow: true })?;
        Ok(Followed { connection, seen: Vec::new(), looked: 0 })
    }

    /// Waits for an event of a job that runs.
    fn until(&mut self, runs: &mut Runs, job: &mut Started, what: &str, is_it: impl Fn(&Event) -> bool) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            while let Some(event) = self.seen.get(self.looked) {
                self.looked += 1;
                if is_it(event) {
                    return Ok(());
                }
            }
            ensure!(Instant::now() < deadline, "waiting for {what}: not within {} s", LIMIT.as_secs());
            ensure!(!job.has_ended()?, "the job ended before {what}: give more --seconds, or a shorter --after");
            runs.not_interrupted()?;
            match self.connection.wait(Some(Instant::now() + Duration::from_millis(200)))? {
                Some(Reply::Events(events)) => self.seen.extend(events),
                Some(Reply::Error(text)) => bail!("{text}"),
                Some(other) => return Err(self.connection.unexpected(&other).into()),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(event: EventName, at_ms: u64, rank: Option<u32>, text: &str) -> Event {
        let subject = rank.is_none().then(|| VICTIM.0.parse().unwrap());
        Event {
            at_ms,
            node: "n1".parse().unwrap(),
            seq: at_ms,
            event,
            subject,
            job: None,
            rank: rank.map(Rank),
            text: text.into(),
        }
    }

    fn death() -> Vec<Event> {
        vec![
            event(EventName::Place, 900, Some(2), "of another death"),
            event(EventName::Inject, 1000, None, ""),
            event(EventName::Confirm, 1010, None, ""),
            event(EventName::Place, 1030, Some(2), "rank 2 goes on at s1, from images of 103.5 MiB"),
            event(EventName::Live, 1035, Some(1), "another rank"),
            event(EventName::Image, 1130, Some(2), ""),
            event(EventName::Replay, 1230, Some(2), ""),
            event(EventName::Live, 3230, Some(2), "rank 2: lives again, after 500 outcomes; 0 bytes differ"),
            event(EventName::Reprotected, 4230, Some(2), ""),
        ]
    }

    #[test]
    fn the_steps_are_those_of_the_rank_that_was_lost() {
        let due = Death {
            detect: 0.01,
            place: 0.02,
            image: 0.1,
            restore: 0.1,
            replay: 2.0,
            protect: 1.0,
            behind: 0.0,
            outcomes: 500.0,
            pause: 0.0,
            image_mib: 103.5,
        };
        assert_eq!(steps_of(&death()).unwrap(), due);
        for missing in 1..death().len() {
            let mut events = death();
            let name = events.remove(missing).event;
            assert!(name == EventName::Live && missing == 4 || steps_of(&events).is_err(), "{name:?} is missing");
        }
    }

    #[test]
    fn figures_stand_beside_their_targets() {
        let death = Death { behind: 5.0, pause: 2.5, ..steps_of(&death()).unwrap() };
        let row = Row::of(100, &[death]);
        let report = Report {
            library: Library::Mpich,
            program: PathBuf::from("memory"),
            rounds: 1,
            ckpt_interval_s: 10.0,
            rows: vec![row],
            whole: Some(Whole {
                mib: 100,
                every_s: 15.0,
                undisturbed_s: 40.0,
                radic_s: 50.0,
                radic_deaths: 3,
                together_s: 80.0,
                together_deaths: 5,
                together_saved: 4,
                over_s: None,
            }),
            notes: vec!["the machine was busy".into()],
        };
        let text = in_words(&report);
        for part in [
            "detected after 0.010 s (target 0.8)",
            "begins after 0.230 s (target 2.5), 2.5 times",
            "   2.230",
            "50.0 s   1.25  3 deaths",
            "never",
            "busy",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }
}
