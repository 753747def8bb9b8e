//! What a report says, out of what the cluster remembers of a job. No connection, no clock, no file.

use std::collections::BTreeSet;
use std::time::Duration;

use radic_wire::event::{Event, EventName};
use radic_wire::ids::{JobId, NodeName, Rank};
use radic_wire::job::JobInfo;
use radic_wire::limits;
use radic_wire::process::{Counters, Protect};
use radic_wire::report::ProcessInfo;
use serde::Serialize;

use crate::outcome;

use super::recoveries::{self, Death, End, History, KnownBy, Recovery, Step, number_before};

/// Events that a report lists. Of more the first ones and the last ones are.
const MOMENTS: usize = 1_000;

/// What a report is made of.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) job: JobInfo,
    /// Of all nodes, oldest first.
    pub(super) events: Vec<Event>,
    pub(super) processes: Vec<ProcessInfo>,
    /// Mean time between two failures of one node.
    pub(super) mtbf: Duration,
}

/// The report. Times are seconds since the job began.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Report {
    pub(super) job: JobId,
    pub(super) command: String,
    pub(super) ranks: u32,
    pub(super) nodes: Vec<NodeName>,
    pub(super) state: String,
    /// Its exit code, if it has ended.
    pub(super) code: Option<i32>,
    pub(super) started_ms: u64,
    pub(super) seconds: f64,
    pub(super) deaths: Vec<Loss>,
    pub(super) recoveries: Vec<Return>,
    pub(super) restarts: Vec<f64>,
    pub(super) checkpoints: Checkpoints,
    pub(super) overhead: Option<Overhead>,
    pub(super) advice: Vec<Advice>,
    /// What a reader could expect here, and why it is missing.
    pub(super) unknown: Vec<String>,
    pub(super) events: Vec<Moment>,
    pub(super) events_left_out: usize,
}

/// The end of a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Loss {
    pub(super) node: NodeName,
    pub(super) at_s: f64,
    pub(super) known_by: KnownBy,
    pub(super) detected_after_s: f64,
    pub(super) ranks: Vec<Rank>,
    /// Other ranks that lost their protector with it, and how long the slowest of them was without a checkpoint at its next one.
    pub(super) moved: Vec<Rank>,
    pub(super) moved_after_s: Option<f64>,
}

/// What was done about one rank that was lost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Return {
    #[serde(flatten)]
    pub(super) recovery: Recovery,
    pub(super) at_s: f64,
    /// Until it lived.
    pub(super) to_life_s: Option<f64>,
    /// Until it was as safe as before.
    pub(super) exposed_s: Option<f64>,
}

impl Return {
    /// Seconds of one step.
    pub(super) fn took(&self, step: Step) -> Option<f64> {
        self.recovery.took(step).map(|ms| ms as f64 / 1e3)
    }
}

/// An event.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Moment {
    pub(super) at_s: f64,
    pub(super) node: NodeName,
    pub(super) event: EventName,
    pub(super) rank: Option<Rank>,
    pub(super) text: String,
}

/// What is known of checkpoints.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Checkpoints {
    /// What ranks have counted, in their last lives.
    pub(super) committed: Option<u64>,
    /// Those that events tell of.
    pub(super) told: Vec<Told>,
    /// Those that events only count.
    pub(super) only_counted: u64,
    pub(super) failed: usize,
    /// Of all pauses of all ranks.
    pub(super) mean_pause_ms: Option<f64>,
    pub(super) longest_pause_ms: Option<f64>,
    /// From one to the next of a rank: the median over the ranks.
    pub(super) interval_s: Option<f64>,
}

/// A checkpoint that an event tells of.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Told {
    pub(super) at_s: f64,
    pub(super) rank: Rank,
    pub(super) bytes: u64,
    pub(super) full: bool,
}

impl Checkpoints {
    /// Least, middle and most bytes of those of one kind.
    pub(super) fn sizes(&self, full: bool) -> Option<[u64; 3]> {
        let mut sizes: Vec<u64> = self.told.iter().filter(|told| told.full == full).map(|told| told.bytes).collect();
        sizes.sort_unstable();
        Some([*sizes.first()?, sizes[sizes.len() / 2], *sizes.last()?])
    }
}

/// What protection has cost the ranks, as they have counted it in their last lives.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Overhead {
    /// Ranks of which counters are known.
    pub(super) known: usize,
    /// Their time, added up.
    pub(super) rank_seconds: f64,
    pub(super) gate_waits: u64,
    pub(super) gate_s: f64,
    /// Times that an outbox had no room, and until it had.
    pub(super) full_waits: u64,
    pub(super) full_s: f64,
    pub(super) pause_s: f64,
    /// Written to logs: determinants and received bytes.
    pub(super) log_bytes: u64,
    /// Calls whose outcome was recorded, and calls that found nothing and were only counted.
    pub(super) outcomes: u64,
    pub(super) empty: u64,
    pub(super) of_ranks: Vec<RankCost>,
}

impl Overhead {
    /// A part of the ranks' time.
    pub(super) fn share(&self, seconds: f64) -> f64 {
        seconds / self.rank_seconds.max(1e-3)
    }
}

/// The same of one rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RankCost {
    pub(super) rank: Rank,
    pub(super) node: NodeName,
    /// How long it has counted.
    pub(super) seconds: f64,
    pub(super) gate_waits: u64,
    pub(super) gate_s: f64,
    pub(super) checkpoints: u64,
    pub(super) committed: u64,
    pub(super) pause_s: f64,
    pub(super) longest_pause_s: f64,
    pub(super) log_bytes: u64,
    /// Log that its protector holds now.
    pub(super) held_bytes: Option<u64>,
    pub(super) image_bytes: Option<u64>,
}

/// A piece of advice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Advice {
    pub(crate) about: &'static str,
    /// What to do, in one sentence.
    pub(crate) say: String,
    /// Why, with the figures in words.
    pub(crate) why: String,
    /// The same figures for programs.
    pub(crate) figures: Vec<Figure>,
}

/// A number, and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
}

impl Report {
    /// Everything from what is known.
    pub(super) fn of(facts: &Facts) -> Report {
        let job = &facts.job;
        let began = job.started_ms;
        let end = end_ms(facts);
        let mut history = recoveries::history(job.job, began, &facts.events);
        // Nodes died before the job, and a cluster that is taken down after it loses nodes, too.
        history.deaths.retain(|death| death.confirmed_ms >= began && death.at_ms <= end);
        let costs = costs(facts, &history);
        let checkpoints = checkpoints(facts, &costs);
        let overhead = overhead(&facts.processes, job, costs);
        let (events, events_left_out) = moments(facts, end);
        let mut report = Report {
            job: job.job,
            command: job.command.clone(),
            ranks: job.ranks,
            nodes: job.nodes.clone(),
            state: state(job),
            code: job.outcome.as_ref().map(|outcome| outcome.code),
            started_ms: began,
            seconds: since(end, began),
            deaths: history.deaths.iter().map(|death| loss(death, &history, began)).collect(),
            recoveries: history.recoveries.iter().map(|recovery| returned(recovery, began)).collect(),
            restarts: history.restarts.iter().map(|ms| since(*ms, began)).collect(),
            checkpoints,
            overhead,
            advice: Vec::new(),
            unknown: Vec::new(),
            events,
            events_left_out,
        };
        report.unknown = unknown(facts, &report);
        report
    }
}

/// When the job was started, and resumed, as events tell.
fn starts(facts: &Facts) -> impl Iterator<Item = u64> {
    let of_job = facts.events.iter().filter(|event| event.job == Some(facts.job.job));
    of_job.filter(|event| event.event == EventName::JobStart).map(|event| event.at_ms)
}

/// When the job ended, or the cluster was asked. A job that was resumed has run for as long as it says since then.
fn end_ms(facts: &Facts) -> u64 {
    let job = &facts.job;
    let last = facts.events.iter().filter(|event| event.job == Some(job.job)).map(|event| event.at_ms).max();
    let begun = starts(facts).max().unwrap_or(job.started_ms).max(job.started_ms);
    (begun + job.elapsed_ms).max(last.unwrap_or(0))
}

/// Seconds since the job began.
fn since(ms: u64, began: u64) -> f64 {
    (ms as f64 - began as f64) / 1e3
}

fn state(job: &JobInfo) -> String {
    match &job.outcome {
        Some(outcome) => outcome::in_short(outcome),
        None if job.degraded.is_empty() => "running".to_owned(),
        None => format!("running; degraded: {}", outcome::rank_list(&job.degraded)),
    }
}

fn loss(death: &Death, history: &History, began: u64) -> Loss {
    let next = history.deaths.iter().map(|other| other.confirmed_ms).filter(|at| *at > death.confirmed_ms).min();
    let is_of_it = |at: u64| at >= death.confirmed_ms && next.is_none_or(|next| at < next);
    let moved: Vec<_> = history.moved.iter().filter(|(_, at)| is_of_it(*at)).collect();
    let slowest = moved.iter().map(|(_, at)| *at).max();
    let mut ranks: Vec<Rank> = moved.iter().map(|(rank, _)| *rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    Loss {
        node: death.node.clone(),
        at_s: since(death.at_ms, began),
        known_by: death.known_by,
        detected_after_s: since(death.confirmed_ms, death.at_ms).max(0.0),
        ranks: death.ranks.clone(),
        moved: ranks,
        moved_after_s: slowest.map(|at| since(at, death.at_ms)),
    }
}

fn returned(recovery: &Recovery, began: u64) -> Return {
    let seconds = |ms: Option<u64>| ms.map(|ms| ms as f64 / 1e3);
    Return {
        at_s: since(recovery.lost_ms, began),
        to_life_s: seconds(recovery.to_life()),
        exposed_s: seconds(recovery.exposed()),
        recovery: recovery.clone(),
    }
}

/// What is told of one rank: of where it is, or was last.
fn process_of(facts: &Facts, rank: Rank) -> Option<&ProcessInfo> {
    let of_rank = facts.processes.iter().filter(|process| process.job == facts.job.job && process.rank == rank);
    of_rank.max_by_key(|process| (process.running, process.counters.map(|counters| counters.events)))
}

/// What each rank has counted, and for how long: since the job began, or since the rank came back.
fn costs(facts: &Facts, history: &History) -> Vec<RankCost> {
    let end = end_ms(facts);
    let starts: Vec<u64> = starts(facts).collect();
    let began = |rank: Rank| {
        let back = history.recoveries.iter().filter(|recovery| recovery.rank == rank && recovery.end != End::DiedAgain);
        let restored = back.filter_map(|recovery| recovery.steps.iter().find(|taken| taken.step == Step::Restore)?.to_ms);
        let anew = history.restarts.iter().chain(&starts).copied();
        restored.chain(anew).max().unwrap_or(facts.job.started_ms)
    };
    let cost = |process: &ProcessInfo, counters: Counters| RankCost {
        rank: process.rank,
        node: process.node.clone(),
        seconds: end.saturating_sub(began(process.rank)) as f64 / 1e3,
        gate_waits: counters.gate_waits,
        gate_s: counters.gate_ns as f64 / 1e9,
        checkpoints: counters.checkpoints,
        committed: counters.committed,
        pause_s: counters.pause_ns as f64 / 1e9,
        longest_pause_s: counters.longest_pause_ns as f64 / 1e9,
        log_bytes: counters.journal.saturating_add(counters.payload),
        held_bytes: process.logs.first().map(|log| log.journal.saturating_add(log.payload)),
        image_bytes: process.logs.first().map(|log| log.images),
    };
    let ranks = (0..facts.job.ranks).map(Rank);
    let protected = ranks.filter_map(|rank| process_of(facts, rank)).filter(|process| process.protect == Protect::On);
    protected.filter_map(|process| Some(cost(process, process.counters?))).collect()
}

fn checkpoints(facts: &Facts, costs: &[RankCost]) -> Checkpoints {
    let of_job = || facts.events.iter().filter(|event| event.job == Some(facts.job.job));
    let told = of_job().filter(|event| event.event == EventName::Checkpoint).filter_map(|event| {
        Some(Told {
            at_s: since(event.at_ms, facts.job.started_ms),
            rank: event.rank?,
            bytes: number_before(&event.text, "bytes")? as u64,
            full: event.text.contains(", full,"),
        })
    });
    let left_out = of_job().filter(|event| event.event == EventName::Checkpoint);
    let made: u64 = costs.iter().map(|cost| cost.checkpoints).sum();
    let pauses: f64 = costs.iter().map(|cost| cost.pause_s).sum();
    let longest = costs.iter().map(|cost| cost.longest_pause_s).max_by(f64::total_cmp);
    let mut intervals: Vec<f64> =
        costs.iter().filter(|cost| cost.committed > 1).map(|cost| cost.seconds / cost.committed as f64).collect();
    intervals.sort_by(f64::total_cmp);
    Checkpoints {
        committed: (!costs.is_empty()).then(|| costs.iter().map(|cost| cost.committed).sum()),
        told: told.collect(),
        only_counted: left_out.filter_map(|event| number_before(&event.text, "more")).map(|number| number as u64).sum(),
        failed: of_job().filter(|event| event.event == EventName::CheckpointFailed).count(),
        mean_pause_ms: (made > 0).then(|| pauses * 1e3 / made as f64),
        longest_pause_ms: longest.filter(|_| made > 0).map(|seconds| seconds * 1e3),
        interval_s: intervals.get(intervals.len() / 2).copied(),
    }
}

fn overhead(processes: &[ProcessInfo], job: &JobInfo, costs: Vec<RankCost>) -> Option<Overhead> {
    if costs.is_empty() {
        return None;
    }
    let counters = |of: fn(&Counters) -> u64| {
        let of_ranks = costs.iter().filter_map(|cost| {
            processes.iter().find(|process| process.job == job.job && process.rank == cost.rank && process.node == cost.node)
        });
        of_ranks.filter_map(|process| process.counters.as_ref()).map(of).fold(0, u64::saturating_add)
    };
    Some(Overhead {
        known: costs.len(),
        rank_seconds: costs.iter().map(|cost| cost.seconds).sum(),
        gate_waits: costs.iter().map(|cost| cost.gate_waits).sum(),
        gate_s: costs.iter().map(|cost| cost.gate_s).sum(),
        full_waits: counters(|counters| counters.full_waits),
        full_s: counters(|counters| counters.full_ns) as f64 / 1e9,
        pause_s: costs.iter().map(|cost| cost.pause_s).sum(),
        log_bytes: costs.iter().map(|cost| cost.log_bytes).fold(0, u64::saturating_add),
        outcomes: counters(|counters| counters.events),
        empty: counters(|counters| counters.empty),
        of_ranks: costs,
    })
}

/// What happened while the job ran, without what happens all the time.
fn moments(facts: &Facts, end: u64) -> (Vec<Moment>, usize) {
    let job = &facts.job;
    let is_rare = |event: &&Event| !matches!(event.event, EventName::Checkpoint | EventName::RankStart);
    let is_in = |event: &&Event| match event.job {
        Some(of) => of == job.job,
        None => (job.started_ms..=end).contains(&event.at_ms),
    };
    let moment = |event: &Event| Moment {
        at_s: since(event.at_ms, job.started_ms),
        node: event.node.clone(),
        event: event.event,
        rank: event.rank,
        text: event.text.clone(),
    };
    // Every node tells that it has the next view: the first one is enough.
    let mut views = BTreeSet::new();
    let mut is_news = |event: &&Event| event.event != EventName::View || views.insert(event.text.clone());
    let mut moments: Vec<Moment> =
        facts.events.iter().filter(is_rare).filter(is_in).filter(|event| is_news(event)).map(moment).collect();
    let left_out = moments.len().saturating_sub(MOMENTS);
    if left_out > 0 {
        moments.drain(MOMENTS / 2..MOMENTS / 2 + left_out);
    }
    (moments, left_out)
}

fn unknown(facts: &Facts, report: &Report) -> Vec<String> {
    let job = &facts.job;
    let mut unknown = Vec::new();
    let of_job = || facts.events.iter().filter(|event| event.job == Some(job.job));
    if !of_job().any(|event| event.event == EventName::JobStart) {
        unknown.push(format!(
            "How it began: each node remembers its last {} events, and the one by which this job began is not among them, or its node is gone.",
            limits::EVENTS
        ));
    }
    let nodes: BTreeSet<&NodeName> = job.nodes.iter().chain(report.deaths.iter().map(|death| &death.node)).collect();
    let has_told = |node: &NodeName| facts.events.iter().any(|event| event.node == *node);
    let silent: Vec<&str> = nodes.into_iter().filter(|node| !has_told(node)).map(NodeName::as_str).collect();
    if !silent.is_empty() {
        unknown.push(format!("What {} had on record itself: a node's events are gone with it.", silent.join(", ")));
    }
    let known = report.overhead.as_ref().map_or(0, |overhead| overhead.known);
    if known < job.ranks as usize {
        unknown.push(format!(
            "What {} of {} ranks have counted: of ranks that are not protected nothing is counted, and what a rank has counted is gone with its node, or with a process that a \
             signal has ended.",
            job.ranks as usize - known,
            job.ranks
        ));
    }
    if !report.recoveries.is_empty() && known > 0 {
        unknown.push("What ranks that came back had counted before: a process that comes back counts from 0.".to_owned());
    }
    if job.outcome.is_some() {
        unknown.push(
            "How much log and how many images there were: when a job is over its nodes keep none (but for --keep-logs)."
                .to_owned(),
        );
    }
    if job.nodes.len() > 1 {
        unknown
            .push("The exact order of what happened on different machines: each has told the time by its own clock.".to_owned());
    }
    unknown.push(
        "How long shipping the log and the hooks themselves took: they are not timed in a job, because a clock would cost more than they do. `radic bench net` \
         measures both together."
            .to_owned(),
    );
    unknown
}
