//! What is known of nodes, jobs and ranks, as rows of cells that can be sorted.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use radic_wire::ids::{JobId, NodeName, Rank};
use radic_wire::job::JobInfo;
use radic_wire::local::{ClusterStatus, NodeInfo, NodeState};
use radic_wire::membership::Role;
use radic_wire::partners::{Peers, mean};
use radic_wire::process::Protect;
use radic_wire::report::{LogSizes, ProcessInfo};
use radic_wire::since::{Does, Growth, Health, Since, sum};

use crate::format::clean;
use crate::outcome;

/// Which part of its time a process is kept from its work.
pub(super) type Part<'a> = dyn Fn(&ProcessInfo) -> Option<f64> + 'a;

/// What a row stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    Node(NodeName),
    Job(JobId),
    Rank(JobId, Rank),
}

/// What stands in a cell. It becomes text only where it is shown: of thousands of rows a screen has a few.
#[derive(Debug, Clone)]
pub(super) enum Cell {
    Text(Cow<'static, str>),
    Node(NodeName),
    /// A text, and the number by which it is sorted.
    Sorted(String, f64),
    Count(u64),
    Size(f64),
    Rate(Option<f64>),
    Share(Option<f64>),
    Age(Option<u64>),
    /// What would be a number is not known.
    Unknown,
}

impl Cell {
    fn text_of(text: impl Into<Cow<'static, str>>) -> Cell {
        Cell::Text(text.into())
    }

    fn size(bytes: u64) -> Cell {
        Cell::Size(bytes as f64)
    }

    pub(super) fn text(&self) -> Cow<'_, str> {
        match self {
            Cell::Text(text) => text.as_ref().into(),
            Cell::Node(name) => name.as_str().into(),
            Cell::Sorted(text, _) => text.into(),
            Cell::Count(count) => count.to_string().into(),
            Cell::Size(bytes) | Cell::Rate(Some(bytes)) => size(*bytes).into(),
            Cell::Share(Some(part)) => share(*part).into(),
            Cell::Age(Some(ms)) => age(*ms).into(),
            Cell::Rate(None) | Cell::Share(None) | Cell::Age(None) | Cell::Unknown => "-".into(),
        }
    }

    /// Characters of the text, without making it.
    pub(super) fn width(&self) -> usize {
        match self {
            Cell::Text(text) => text.chars().count(),
            Cell::Node(name) => name.as_str().len(),
            Cell::Sorted(text, _) => text.chars().count(),
            Cell::Count(count) => digits(*count),
            Cell::Size(bytes) | Cell::Rate(Some(bytes)) => {
                let (value, unit) = in_units(*bytes);
                if has_tenths(value, unit) { 3 + unit.len() } else { digits(value.round_ties_even() as u64) + unit.len() }
            }
            Cell::Share(Some(part)) if share_has_tenths(100.0 * part) => 4,
            Cell::Share(Some(part)) => digits((100.0 * part).round_ties_even() as u64) + 1,
            Cell::Age(Some(ms)) => match ms / 1000 {
                0..10 => 4,
                10..100 => 3,
                s @ 100..6_000 => digits(s / 60) + 4,
                s @ 6_000..360_000 => digits(s / 3600) + 4,
                s => digits(s / 86_400) + 4,
            },
            Cell::Rate(None) | Cell::Share(None) | Cell::Age(None) | Cell::Unknown => 1,
        }
    }

    /// By which it is sorted, if it is a number.
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Cell::Text(_) | Cell::Node(_) => None,
            Cell::Sorted(_, number) => Some(*number),
            Cell::Count(count) => Some(*count as f64),
            Cell::Size(bytes) => Some(*bytes),
            Cell::Rate(part) | Cell::Share(part) => Some(part.unwrap_or(-1.0)),
            Cell::Age(ms) => Some(ms.map_or(f64::MAX, |ms| ms as f64)),
            Cell::Unknown => Some(-1.0),
        }
    }
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) subject: Subject,
    pub(super) health: Health,
    pub(super) cells: Vec<Cell>,
}

/// Headings; one that begins with `>` stands for numbers, to the right.
pub(super) const NODES: &[&str] = &["NODE", "STATE", ">RANKS", ">SLOTS", ">LOAD", ">MEMORY", ">STORE", "PROTECTOR", "ADDRESS"];
pub(super) const JOBS: &[&str] =
    &["JOB", "STATE", ">RANKS", ">TIME", ">IN/s", ">OUT/s", ">OUTBOX", ">LOG", ">CKPT", ">OVHD", "COMMAND"];
pub(super) const RANKS: &[&str] =
    &[">RANK", "NODE", "DOES", ">IN/s", ">OUT/s", ">OUTBOX", ">LOG", ">IMAGES", ">CKPT", ">OVHD", ">PID"];

/// What each node's protector holds for processes, in bytes.
fn held(status: &ClusterStatus) -> HashMap<&NodeName, u64> {
    let mut held = HashMap::with_capacity(status.nodes.len());
    for log in status.processes.iter().flat_map(|process| &process.logs) {
        *held.entry(&log.node).or_default() += log.journal + log.payload + log.images;
    }
    held
}

pub(super) fn nodes(status: &ClusterStatus) -> Vec<Row> {
    let held = held(status);
    status.nodes.iter().map(|node| node_row(node, &held)).collect()
}

/// So many nodes, those first that need attention.
pub(super) fn troubled_nodes(status: &ClusterStatus, count: usize) -> Vec<Row> {
    let mut nodes: Vec<&NodeInfo> = status.nodes.iter().collect();
    nodes.sort_by_key(|node| state_of(node).1 == Health::Good);
    let held = held(status);
    nodes.into_iter().take(count).map(|node| node_row(node, &held)).collect()
}

fn state_of(node: &NodeInfo) -> (&'static str, Health) {
    match (node.state, node.role) {
        (NodeState::Dead, _) => ("dead", Health::Gone),
        (NodeState::Left, _) => ("left", Health::Gone),
        (NodeState::Silent, _) => ("silent", Health::Troubled),
        (NodeState::Alive, Role::Spare) if node.ranks.is_empty() => ("spare", Health::Good),
        (NodeState::Alive, Role::Spare) => ("spare in use", Health::Good),
        (NodeState::Alive, Role::Witness) => ("witness", Health::Good),
        (NodeState::Alive, Role::Node | Role::Newcomer) => ("alive", Health::Good),
    }
}

fn node_row(node: &NodeInfo, held: &HashMap<&NodeName, u64>) -> Row {
    let (state, health) = state_of(node);
    let load = node.ranks.len() as f64 / f64::from(node.slots.max(1));
    let cells = vec![
        Cell::Node(node.name.clone()),
        Cell::text_of(state),
        Cell::Count(node.ranks.len() as u64),
        Cell::Count(node.slots.into()),
        Cell::Sorted(format!("{:.0}%", 100.0 * load), load),
        Cell::size(node.memory),
        Cell::size(held.get(&node.name).copied().unwrap_or(0)),
        node.protector.clone().map_or(Cell::text_of("-"), Cell::Node),
        Cell::text_of(node.address.to_string()),
    ];
    Row { subject: Subject::Node(node.name.clone()), health, cells }
}

/// Jobs, those that run first.
pub(super) fn jobs(status: &ClusterStatus, since: &Since<'_>, overhead: &Part<'_>) -> Vec<Row> {
    let all: Vec<Growth<'_>> = since.of_all(&status.processes).collect();
    let row = |job: &JobInfo| (job.outcome.is_some(), job_row(job, &all, overhead));
    let mut rows: Vec<(bool, Row)> = status.jobs.iter().map(row).collect();
    rows.sort_by_key(|(over, _)| *over);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn job_row(job: &JobInfo, all: &[Growth<'_>], overhead: &Part<'_>) -> Row {
    let grown = || all.iter().filter(|growth| growth.process().job == job.job && growth.process().running);
    let of_job = || grown().map(Growth::process);
    let (state, health) = match &job.outcome {
        Some(outcome) => (outcome::in_short(outcome), Health::Gone),
        None if job.degraded.is_empty() => ("running".to_owned(), Health::Good),
        None => (format!("degraded: {}", job.degraded.len()), Health::Troubled),
    };
    let ranks = if job.running < job.ranks && job.outcome.is_none() {
        format!("{}/{}", job.running, job.ranks)
    } else {
        job.ranks.to_string()
    };
    // A job's checkpoint is as old as that of its worst rank.
    let oldest = of_job().filter(|process| process.protect == Protect::On).map(|process| log_of(process)?.committed_ms);
    let oldest = oldest.collect::<Option<Vec<u64>>>().and_then(|ages| ages.into_iter().max());
    let cells = vec![
        Cell::text_of(job.job.to_string()),
        Cell::text_of(state),
        Cell::Sorted(ranks, f64::from(job.ranks)),
        Cell::Age(Some(job.elapsed_ms)),
        Cell::Rate(sum(grown().filter_map(|growth| growth.rate(|counters| counters.bytes_in)))),
        Cell::Rate(sum(grown().filter_map(|growth| growth.rate(|counters| counters.bytes_out)))),
        Cell::size(of_job().filter_map(|process| process.counters).map(|counters| counters.outbox).sum()),
        Cell::size(of_job().filter_map(log_of).map(|log| log.journal + log.payload).sum()),
        Cell::Age(oldest),
        Cell::Share(mean(of_job().map(overhead))),
        Cell::text_of(clean(&job.command)),
    ];
    Row { subject: Subject::Job(job.job), health, cells }
}

/// What the protector holds of a process; a replica's is the same once more.
pub(super) fn log_of(process: &ProcessInfo) -> Option<&LogSizes> {
    process.logs.first()
}

pub(super) fn ranks(
    status: &ClusterStatus,
    job: JobId,
    since: &Since<'_>,
    peers: Option<&Peers>,
    overhead: &Part<'_>,
) -> Vec<Row> {
    let mut of_job: Vec<(Growth<'_>, Does)> = since
        .of_all(&status.processes)
        .filter(|growth| growth.process().job == job)
        .map(|growth| (growth, growth.does()))
        .collect();
    of_job.sort_by_key(|(growth, _)| growth.process().rank);
    let partners = peers.map(|peers| partners(peers, &of_job)).unwrap_or_default();
    let row = |(growth, does): &(Growth<'_>, Does)| {
        let partners = partners.get(&growth.process().rank).map_or(&[][..], Vec::as_slice);
        rank_row(growth, *does, partners, overhead)
    };
    let mut rows: Vec<Row> = of_job.iter().map(row).collect();
    if rows.is_empty() {
        // It is not protected: where its ranks are is all that is known.
        let placed = status.nodes.iter().flat_map(|node| node.ranks.iter().map(move |rank| (node, rank)));
        rows = placed
            .filter(|(_, rank)| rank.job == job)
            .map(|(node, rank)| unprotected_row(job, node, rank.rank, rank.pid))
            .collect();
        rows.sort_by(|a, b| a.cells[0].number().unwrap_or(0.0).total_cmp(&b.cells[0].number().unwrap_or(0.0)));
    }
    rows
}

/// Those that a rank has to do with, if there is a rank of which that is said.
fn partners(peers: &Peers, of_job: &[(Growth<'_>, Does)]) -> BTreeMap<Rank, Vec<Rank>> {
    if !of_job.iter().any(|(_, does)| matches!(does, Does::Sends | Does::Receives | Does::Waits)) {
        return BTreeMap::new();
    }
    peers.partners(&of_job.iter().map(|(growth, does)| (growth.process().rank, *does)).collect())
}

fn rank_row(growth: &Growth<'_>, does: Does, partners: &[Rank], overhead: &Part<'_>) -> Row {
    let process = growth.process();
    let counters = process.counters.unwrap_or_default();
    let log = log_of(process);
    let cells = vec![
        Cell::Count(process.rank.0.into()),
        Cell::Node(process.node.clone()),
        Cell::text_of(does.with(partners)),
        Cell::Rate(growth.rate(|counters| counters.bytes_in)),
        Cell::Rate(growth.rate(|counters| counters.bytes_out)),
        Cell::size(counters.outbox),
        Cell::size(log.map_or(0, |log| log.journal + log.payload)),
        Cell::size(log.map_or(0, |log| log.images)),
        Cell::Age(log.and_then(|log| log.committed_ms)),
        Cell::Share(overhead(process)),
        Cell::Count(process.pid.into()),
    ];
    Row { subject: Subject::Rank(process.job, process.rank), health: does.health(), cells }
}

fn unprotected_row(job: JobId, node: &NodeInfo, rank: Rank, pid: u32) -> Row {
    let known = [Cell::Count(rank.0.into()), Cell::Node(node.name.clone()), Cell::text_of(Does::NotProtected.in_words())];
    let unknown = (known.len() + 1..RANKS.len()).map(|_| Cell::Unknown);
    let cells = known.into_iter().chain(unknown).chain([Cell::Count(pid.into())]).collect();
    Row { subject: Subject::Rank(job, rank), health: Health::Good, cells }
}

/// A size in at most five characters.
pub(super) fn size(bytes: f64) -> String {
    let (value, unit) = in_units(bytes);
    if has_tenths(value, unit) { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}

fn in_units(bytes: f64) -> (f64, &'static str) {
    let (mut value, mut units) = (bytes, ["", "K", "M", "G", "T", "P"].into_iter());
    let mut unit = units.next().unwrap_or_default();
    for next in units {
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    (value, unit)
}

fn has_tenths(value: f64, unit: &str) -> bool {
    value < 9.95 && !unit.is_empty()
}

/// A part of a whole in at most four characters.
pub(super) fn share(part: f64) -> String {
    let percent = part * 100.0;
    if share_has_tenths(percent) { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
}

fn share_has_tenths(percent: f64) -> bool {
    percent > 0.0 && percent < 9.95
}

/// A time in at most six characters.
pub(super) fn age(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..10 => format!("{s}.{}s", ms % 1000 / 100),
        10..100 => format!("{s}s"),
        100..6_000 => format!("{}m{:02}s", s / 60, s % 60),
        6_000..360_000 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86_400, s / 3600 % 24),
    }
}
