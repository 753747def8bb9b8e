//! `radic bench recover`: how long it takes from the death of a node until its rank lives again, step by step.
//!
//! Four ranks on four nodes, and a spare. One node is killed when every rank has a checkpoint and some time has passed. The steps are the events of
//! `radic events`, which have the time of one clock here, in milliseconds. The job goes on to its end, where each rank checks its memory. Nodes
//! that are killed are noticed by their closed port; how long a silent machine takes (one that has lost its power) is not measured here.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use radic_wire::event::{Event, EventName};
use radic_wire::ids::Rank;
use radic_wire::local::{Reply, Request};
use serde::Serialize;

use super::Times;
use super::runs::{Library, Runs, Started, Temporary, figure, find_program};
use crate::client::{Cluster, Connection};
use crate::show::{ask_status, print, print_json, report};

const RANKS: u32 = 4;
/// Who dies: neither the terminal's node nor that of rank 0, where the job is at home.
const VICTIM: (&str, Rank) = ("n3", Rank(2));
/// Most seconds from the death to its confirmation.
const DETECTED: f64 = 0.8;
/// Most seconds from the death to the beginning of replay, for [`TARGET_MIB`] and less.
const RESTARTED: f64 = 2.5;
const TARGET_MIB: u64 = 100;
/// Time for anything to happen.
const LIMIT: Duration = Duration::from_secs(120);
/// Steps of the run that tells how long one takes.
const TRIAL: u64 = 300;

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
    #[arg(long, default_value_t = 10.0, value_parser = super::parse_seconds, value_name = "S")]
    ckpt_interval: f64,
    /// Seconds from the last rank's first checkpoint to the death
    #[arg(long, default_value_t = 3.0, value_parser = super::parse_seconds, value_name = "S")]
    after: f64,
    /// Seconds that a job takes when nothing happens to it; it must not end before the death
    #[arg(long, default_value_t = 25.0, value_parser = super::parse_seconds, value_name = "S")]
    seconds: f64,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
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
    /// What was to be done again: the time since its last checkpoint was committed.
    behind: f64,
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
    notes: Vec<String>,
}

/// `radic bench recover`.
pub(super) fn measure(args: &RecoverArgs) -> Result<()> {
    let program = args.program.clone().map_or_else(|| find_program(args.mpi, "memory"), Ok)?;
    let program = std::fs::canonicalize(&program).with_context(|| program.display().to_string())?;
    let notes = super::busy().into_iter().collect();
    let mut bench = Bench { runs: Runs::protected(args.mpi, &program)?, program, args };
    let rows = args.mib.iter().map(|mib| bench.deaths(*mib)).collect::<Result<_>>()?;
    let Bench { program, .. } = bench;
    let figures = Report { library: args.mpi, program, rounds: args.rounds, ckpt_interval_s: args.ckpt_interval, rows, notes };
    if args.json { print_json(&figures) } else { Ok(print(&in_words(&figures))?) }
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
        lives; behind: since its last checkpoint was committed; live: from the death to life; protect: from there to its first checkpoint; pause: the\n\
        longest step of a rank that lost nothing\n";
    for note in &report.notes {
        text += &format!("\n{note}\n");
    }
    text
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
            report(&format!("radic: {mib} MiB, death {round} of {}", self.args.rounds));
            deaths.push(self.death(mib, steps)?);
        }
        Ok(Row::of(mib, &deaths))
    }

    /// How many steps take the time that a job is to take.
    fn steps(&mut self, mib: u64) -> Result<u64> {
        report(&format!("radic: {mib} MiB, undisturbed"));
        let temporary = Temporary::start(RANKS)?;
        let command = self.command(&temporary.cluster, mib, TRIAL)?;
        let seconds = figure(&self.runs.run(command)?, "seconds")?;
        Ok((TRIAL as f64 * self.args.seconds / seconds.max(1e-3)) as u64)
    }

    fn command(&self, cluster: &Cluster, mib: u64, steps: u64) -> Result<std::process::Command> {
        let options = ["--json", "--mib", &mib.to_string(), "--steps", &steps.to_string()].map(str::to_owned);
        let interval = self.args.ckpt_interval.to_string();
        self.runs.radic(cluster, RANKS, &["--protect", "on", "--ckpt-interval", &interval], &self.program, &options)
    }

    fn death(&mut self, mib: u64, steps: u64) -> Result<Death> {
        let temporary = Temporary::with_spares(RANKS, 1)?;
        let cluster = &temporary.cluster;
        let mut events = Followed::new(cluster)?;
        let mut job = self.runs.start(self.command(cluster, mib, steps)?)?;
        for _ in 0..RANKS {
            // Of each rank the first is told, whatever the interval; others are not told for some time.
            events.until(&mut self.runs, &mut job, "a first checkpoint of each rank", |e| e.event == EventName::Checkpoint)?;
        }
        std::thread::sleep(Duration::from_secs_f64(self.args.after));
        let behind = behind(cluster)?;
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
        (death.behind, death.pause) = (behind, figure(&output, "longest_ms")? / 1e3);
        Ok(death)
    }
}

/// The time since the last checkpoint of the rank that is going to die was committed.
fn behind(cluster: &Cluster) -> Result<f64> {
    let status = ask_status(cluster)?;
    let process = status.processes.iter().find(|process| process.rank == VICTIM.1 && process.running);
    let logs = process.and_then(|process| process.logs.first()).context("nobody has a log of the rank")?;
    Ok(logs.committed_ms.context("no checkpoint of the rank is committed")? as f64 / 1e3)
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
    let (image, replay, live, protected) = (image?.0, replay?.0, live?.0, protected?.0);
    let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e3;
    Ok(Death {
        detect: seconds(died, confirm),
        place: seconds(confirm, place.0),
        image: seconds(place.0, image),
        restore: seconds(image, replay),
        replay: seconds(replay, live),
        protect: seconds(live, protected),
        behind: 0.0,
        pause: 0.0,
        image_mib: mib_in(place.1),
    })
}

/// The number before "MiB" in what an event says.
fn mib_in(text: &str) -> f64 {
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = words.windows(2).find(|pair| pair[1].starts_with("MiB")).and_then(|pair| pair[0].parse().ok());
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
            event(EventName::Live, 3230, Some(2), ""),
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
            notes: vec!["the machine was busy".into()],
        };
        let text = in_words(&report);
        for part in ["detected after 0.010 s (target 0.8)", "begins after 0.230 s (target 2.5), 2.5 times", "   2.230", "busy"] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }
}
