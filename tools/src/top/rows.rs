//! What is known of nodes, jobs and ranks, as rows of cells that can be sorted.

use std::collections::BTreeMap;

use radic_wire::ids::{JobId, NodeName, Rank};
use radic_wire::job::JobInfo;
use radic_wire::local::{ClusterStatus, LogSizes, NodeInfo, NodeState, ProcessInfo};
use radic_wire::membership::Role;
use radic_wire::partners::{Peers, mean};
use radic_wire::process::Protect;
use radic_wire::since::{Does, Health, Since};

use crate::outcome;
use crate::show::clean;

/// Which part of its time a process is kept from its work.
pub(super) type Part<'a> = dyn Fn(&ProcessInfo) -> Option<f64> + 'a;

/// What a row stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    Node(NodeName),
    Job(JobId),
    Rank(JobId, Rank),
}

/// A text, and the number by which it is sorted if it has one.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) number: Option<f64>,
}

impl Cell {
    fn text(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), number: None }
    }

    fn number(text: String, number: f64) -> Cell {
        Cell { text, number: Some(number) }
    }

    fn size(bytes: u64) -> Cell {
        Cell::number(size(bytes as f64), bytes as f64)
    }

    fn rate(rate: Option<f64>) -> Cell {
        rate.map_or_else(|| Cell { text: "-".into(), number: Some(-1.0) }, |rate| Cell::number(size(rate), rate))
    }

    fn share(part: Option<f64>) -> Cell {
        part.map_or_else(|| Cell { text: "-".into(), number: Some(-1.0) }, |part| Cell::number(share(part), part))
    }

    fn age(ms: Option<u64>) -> Cell {
        ms.map_or_else(|| Cell { text: "-".into(), number: Some(f64::MAX) }, |ms| Cell::number(age(ms), ms as f64))
    }
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

/// What the node's protector holds for processes, in bytes.
fn store(status: &ClusterStatus, node: &NodeName) -> u64 {
    let logs = status.processes.iter().flat_map(|process| &process.logs).filter(|log| log.node == *node);
    logs.map(|log| log.journal + log.payload + log.images).sum()
}

pub(super) fn nodes(status: &ClusterStatus) -> Vec<Row> {
    status.nodes.iter().map(|node| node_row(status, node)).collect()
}

fn node_row(status: &ClusterStatus, node: &NodeInfo) -> Row {
    let (state, health) = match (node.state, node.role) {
        (NodeState::Dead, _) => ("dead", Health::Gone),
        (NodeState::Left, _) => ("left", Health::Gone),
        (NodeState::Silent, _) => ("silent", Health::Troubled),
        (NodeState::Alive, Role::Spare) if node.ranks.is_empty() => ("spare", Health::Good),
        (NodeState::Alive, Role::Spare) => ("spare in use", Health::Good),
        (NodeState::Alive, Role::Witness) => ("witness", Health::Good),
        (NodeState::Alive, Role::Node | Role::Newcomer) => ("alive", Health::Good),
    };
    let load = node.ranks.len() as f64 / f64::from(node.slots.max(1));
    let cells = vec![
        Cell::text(node.name.as_str()),
        Cell::text(state),
        Cell::number(node.ranks.len().to_string(), node.ranks.len() as f64),
        Cell::number(node.slots.to_string(), f64::from(node.slots)),
        Cell::number(format!("{:.0}%", 100.0 * load), load),
        Cell::size(node.memory),
        Cell::size(store(status, &node.name)),
        Cell::text(node.protector.as_ref().map_or("-", |name| name.as_str())),
        Cell::text(node.address.to_string()),
    ];
    Row { subject: Subject::Node(node.name.clone()), health, cells }
}

/// Jobs, those that run first.
pub(super) fn jobs(status: &ClusterStatus, since: &Since<'_>, overhead: &Part<'_>) -> Vec<Row> {
    let row = |job: &JobInfo| (job.outcome.is_some(), job_row(status, job, since, overhead));
    let mut rows: Vec<(bool, Row)> = status.jobs.iter().map(row).collect();
    rows.sort_by_key(|(over, _)| *over);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn job_row(status: &ClusterStatus, job: &JobInfo, since: &Since<'_>, overhead: &Part<'_>) -> Row {
    let of_job = || status.processes.iter().filter(|process| process.job == job.job && process.running);
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
        Cell::text(job.job.to_string()),
        Cell::text(state),
        Cell::number(ranks, f64::from(job.ranks)),
        Cell::number(age(job.elapsed_ms), job.elapsed_ms as f64),
        Cell::rate(since.sum(of_job(), |counters| counters.bytes_in)),
        Cell::rate(since.sum(of_job(), |counters| counters.bytes_out)),
        Cell::size(of_job().filter_map(|process| process.counters).map(|counters| counters.outbox).sum()),
        Cell::size(of_job().filter_map(log_of).map(|log| log.journal + log.payload).sum()),
        Cell::age(oldest),
        Cell::share(mean(of_job().map(overhead))),
        Cell::text(clean(&job.command)),
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
    let mut of_job: Vec<&ProcessInfo> = status.processes.iter().filter(|process| process.job == job).collect();
    of_job.sort_by_key(|process| process.rank);
    let all: BTreeMap<Rank, Does> = of_job.iter().map(|process| (process.rank, since.of(process).does())).collect();
    let partners = peers.map(|peers| peers.partners(&all)).unwrap_or_default();
    let row = |process: &ProcessInfo| {
        let partners = partners.get(&process.rank).map_or(&[][..], Vec::as_slice);
        rank_row(process, partners, since, overhead)
    };
    let mut rows: Vec<Row> = of_job.into_iter().map(row).collect();
    if rows.is_empty() {
        // It is not protected: where its ranks are is all that is known.
        let placed = status.nodes.iter().flat_map(|node| node.ranks.iter().map(move |rank| (node, rank)));
        rows = placed
            .filter(|(_, rank)| rank.job == job)
            .map(|(node, rank)| unprotected_row(job, node, rank.rank, rank.pid))
            .collect();
        rows.sort_by(|a, b| a.cells[0].number.unwrap_or(0.0).total_cmp(&b.cells[0].number.unwrap_or(0.0)));
    }
    rows
}

fn rank_row(process: &ProcessInfo, partners: &[Rank], since: &Since<'_>, overhead: &Part<'_>) -> Row {
    let counters = process.counters.unwrap_or_default();
    let log = log_of(process);
    let does = since.of(process).does();
    let cells = vec![
        Cell::number(process.rank.to_string(), f64::from(process.rank.0)),
        Cell::text(process.node.as_str()),
        Cell::text(does.with(partners)),
        Cell::rate(since.of(process).rate(|counters| counters.bytes_in)),
        Cell::rate(since.of(process).rate(|counters| counters.bytes_out)),
        Cell::size(counters.outbox),
        Cell::size(log.map_or(0, |log| log.journal + log.payload)),
        Cell::size(log.map_or(0, |log| log.images)),
        Cell::age(log.and_then(|log| log.committed_ms)),
        Cell::share(overhead(process)),
        Cell::number(process.pid.to_string(), f64::from(process.pid)),
    ];
    Row { subject: Subject::Rank(process.job, process.rank), health: does.health(), cells }
}

fn unprotected_row(job: JobId, node: &NodeInfo, rank: Rank, pid: u32) -> Row {
    let known = [
        Cell::number(rank.to_string(), f64::from(rank.0)),
        Cell::text(node.name.as_str()),
        Cell::text(Does::NotProtected.in_words()),
    ];
    let unknown = (known.len() + 1..RANKS.len()).map(|_| Cell { text: "-".into(), number: Some(-1.0) });
    let cells = known.into_iter().chain(unknown).chain([Cell::number(pid.to_string(), f64::from(pid))]).collect();
    Row { subject: Subject::Rank(job, rank), health: Health::Good, cells }
}

/// A size in at most five characters.
pub(super) fn size(bytes: f64) -> String {
    let (mut value, mut units) = (bytes, ["", "K", "M", "G", "T", "P"].into_iter());
    let mut unit = units.next().unwrap_or_default();
    for next in units {
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if value < 9.95 && !unit.is_empty() { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}

/// A part of a whole in at most four characters.
pub(super) fn share(part: f64) -> String {
    let percent = part * 100.0;
    if percent > 0.0 && percent < 9.95 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
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
