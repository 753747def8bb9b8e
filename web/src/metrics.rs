//! OpenMetrics of this node: itself, the ranks that it hosts, the logs that it holds, the jobs that it is the home of. Each figure is told by
//! one node only, so those of all nodes can be added up, and a scrape asks no other node.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use radic_wire::ids::JobId;
use radic_wire::local::NodeStatus;
use radic_wire::membership::Role;
use radic_wire::process::Counters;
use radic_wire::report::{LogSizes, ProcessInfo};

/// What the answer is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The file system with logs and images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSpace {
    /// What this user may still write, in bytes.
    pub free: u64,
    /// All of it.
    pub size: u64,
}

/// The metrics as text; none if they cannot be written.
pub fn encode(status: NodeStatus, space: Option<StoreSpace>) -> Option<String> {
    let mut registry = Registry::with_prefix("radic");
    registry.register_collector(Box::new(Snapshot { status, space }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).ok()?;
    Some(text)
}

/// One moment.
#[derive(Debug)]
struct Snapshot {
    status: NodeStatus,
    space: Option<StoreSpace>,
}

type Labels = Vec<(&'static str, String)>;

fn of_rank(process: &ProcessInfo) -> Labels {
    vec![("radic_job", process.job.to_string()), ("rank", process.rank.to_string())]
}

fn of_job(job: JobId) -> Labels {
    vec![("radic_job", job.to_string())]
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Node | Role::Newcomer => "node",
        Role::Spare => "spare",
        Role::Witness => "witness",
    }
}

/// A figure of a process that only grows: name, explanation, unit, value.
type Counted = (&'static str, &'static str, Option<Unit>, fn(&Counters) -> f64);

const COUNTED: [Counted; 11] = [
    ("rank_received", "Bytes received on protected connections", Some(Unit::Bytes), |c| c.bytes_in as f64),
    ("rank_sent", "Bytes sent on protected connections", Some(Unit::Bytes), |c| c.bytes_out as f64),
    ("rank_outcomes", "Outcomes recorded in the log", None, |c| c.events as f64),
    ("rank_gate_waits", "Times that a send has waited for the log", None, |c| c.gate_waits as f64),
    ("rank_gate", "Time that sends have waited for the log", Some(Unit::Seconds), |c| c.gate_ns as f64 / 1e9),
    ("rank_outbox_full_waits", "Times that the outbox had no room for what was sent", None, |c| c.full_waits as f64),
    ("rank_outbox_full", "Time until it had", Some(Unit::Seconds), |c| c.full_ns as f64 / 1e9),
    ("rank_log_written", "Bytes of log written, determinants and payload", Some(Unit::Bytes), |c| (c.journal + c.payload) as f64),
    ("rank_checkpoints", "Checkpoints made", None, |c| c.checkpoints as f64),
    ("rank_checkpoints_committed", "Checkpoints committed", None, |c| c.committed as f64),
    ("rank_checkpoint_pause", "Time that checkpoints have stopped the rank", Some(Unit::Seconds), |c| c.pause_ns as f64 / 1e9),
];

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.of_node(&mut encoder)?;
        self.of_ranks(&mut encoder)?;
        self.of_logs(&mut encoder)?;
        self.of_homes(&mut encoder)
    }
}

impl Snapshot {
    fn of_node(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let status = &self.status;
        let info: Labels = vec![
            ("node", status.node.to_string()),
            ("role", role(status.role).to_owned()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        let info = Info::new(info);
        let out = encoder.encode_descriptor("node", "Which node this is", None, info.metric_type())?;
        info.encode(out)?;
        let frozen = u8::from(status.frozen);
        gauge(encoder, "view", "Number of the agreed list of members", None, [(vec![], status.view as f64)])?;
        gauge(encoder, "frozen", "1 if this side of the cluster has no majority", None, [(vec![], f64::from(frozen))])?;
        let members = status.members.iter().map(|(of, count)| (vec![("role", role(*of).to_owned())], f64::from(*count)));
        gauge(encoder, "members", "Members in this node's view", None, members)?;
        gauge(encoder, "slots", "Ranks for which the node has room", None, [(vec![], f64::from(status.slots))])?;
        let ranks = status.report.ranks.len() as f64;
        gauge(encoder, "ranks", "Ranks that run on the node", None, [(vec![], ranks)])?;
        let spare = (status.role == Role::Spare).then(|| (vec![], f64::from(u8::from(status.report.ranks.is_empty()))));
        gauge(encoder, "spare_free", "1 if this spare hosts no rank", None, spare)?;
        let memory = status.report.memory as f64;
        gauge(encoder, "daemon_memory", "Resident memory of radicd", Some(Unit::Bytes), [(vec![], memory)])?;
        let space = |of: fn(StoreSpace) -> u64| self.space.map(|space| (vec![], of(space) as f64));
        let free = space(|space| space.free);
        gauge(encoder, "store_free", "What can be written to the store's file system", Some(Unit::Bytes), free)?;
        gauge(encoder, "store_size", "Size of the store's file system", Some(Unit::Bytes), space(|space| space.size))
    }

    /// The protected ranks that run here.
    fn of_ranks(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let running = || self.status.report.processes.iter().filter(|process| process.running);
        let counted = || running().filter_map(|process| Some((process, process.counters?)));
        for (name, help, unit, value) in COUNTED {
            counter(encoder, name, help, unit, counted().map(|(process, counters)| (of_rank(process), value(&counters))))?;
        }
        let outbox = counted().map(|(process, counters)| (of_rank(process), counters.outbox as f64));
        gauge(encoder, "rank_outbox", "Bytes sent that no receiver's protector has", Some(Unit::Bytes), outbox)?;
        let connections = counted().map(|(process, counters)| (of_rank(process), counters.connections as f64));
        gauge(encoder, "rank_connections", "Protected connections that are open", None, connections)?;
        let mut degraded: BTreeMap<JobId, f64> = BTreeMap::new();
        running().for_each(|process| *degraded.entry(process.job).or_default() += f64::from(u8::from(process.degraded)));
        let degraded = degraded.into_iter().map(|(job, count)| (of_job(job), count));
        gauge(encoder, "job_degraded_ranks", "Ranks on this node whose loss would now restart the job", None, degraded)?;
        let intervals = self.status.intervals.iter().map(|(job, ms)| (of_job(*job), *ms as f64 / 1e3));
        gauge(encoder, "job_checkpoint_interval", "Longest time between checkpoints", Some(Unit::Seconds), intervals)
    }

    /// The logs and images that this node holds for ranks elsewhere.
    fn of_logs(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut jobs: BTreeMap<JobId, Vec<&LogSizes>> = BTreeMap::new();
        self.status.held.iter().for_each(|(process, log)| jobs.entry(process.job).or_default().push(log));
        let part = |name: &'static str, of: fn(&LogSizes) -> u64| {
            let sum = move |logs: &Vec<&LogSizes>| logs.iter().map(|log| of(log)).sum::<u64>() as f64;
            jobs.iter().map(move |(job, logs)| ([of_job(*job), vec![("part", name.to_owned())]].concat(), sum(logs)))
        };
        let parts = part("journal", |log| log.journal);
        let parts = parts.chain(part("payload", |log| log.payload)).chain(part("images", |log| log.images));
        gauge(encoder, "job_held", "Logs and images that this node holds", Some(Unit::Bytes), parts)?;
        let oldest = |logs: &Vec<&LogSizes>| logs.iter().filter_map(|log| log.committed_ms).max();
        let ages = jobs.iter().filter_map(|(job, logs)| Some((of_job(*job), oldest(logs)? as f64 / 1e3)));
        gauge(encoder, "job_checkpoint_age", "Age of the oldest rank's newest checkpoint held here", Some(Unit::Seconds), ages)?;
        let waits = |logs: &Vec<&LogSizes>| logs.iter().filter(|log| log.waits.is_some()).count() as f64;
        let waits = jobs.iter().map(|(job, logs)| (of_job(*job), waits(logs)));
        gauge(encoder, "job_stalled_logs", "Logs held here that are not taken or not acknowledged for now", None, waits)
    }

    /// The jobs of which this node is the home, and that have not ended.
    fn of_homes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let jobs = || self.status.report.jobs.iter().filter(|job| job.outcome.is_none());
        let size = jobs().map(|job| (of_job(job.job), f64::from(job.ranks)));
        gauge(encoder, "job_ranks", "Ranks of a job, told by its home", None, size)?;
        let running = jobs().map(|job| (of_job(job.job), f64::from(job.running)));
        gauge(encoder, "job_running_ranks", "Ranks that have not ended, told by the job's home", None, running)?;
        let lost = jobs().map(|job| (of_job(job.job), job.degraded.len() as f64));
        gauge(encoder, "job_lost_ranks", "Ranks that are lost and not back, told by the job's home", None, lost)?;
        let elapsed = jobs().map(|job| (of_job(job.job), job.elapsed_ms as f64 / 1e3));
        gauge(encoder, "job_elapsed", "Time since the job began, told by its home", Some(Unit::Seconds), elapsed)
    }
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    values: impl IntoIterator<Item = (Labels, f64)>,
) -> fmt::Result {
    family(encoder, (name, help, unit), values.into_iter().map(|(labels, value)| (labels, ConstGauge::new(value))))
}

fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    values: impl IntoIterator<Item = (Labels, f64)>,
) -> fmt::Result {
    family(encoder, (name, help, unit), values.into_iter().map(|(labels, value)| (labels, ConstCounter::new(value))))
}

/// One metric with all its values; nothing of one that has none.
fn family<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, unit): (&str, &str, Option<Unit>),
    values: impl Iterator<Item = (Labels, M)>,
) -> fmt::Result {
    let mut values = values.peekable();
    let Some((_, first)) = values.peek() else { return Ok(()) };
    let mut out = encoder.encode_descriptor(name, help, unit.as_ref(), first.metric_type())?;
    for (labels, metric) in values {
        if labels.is_empty() {
            // There is but one of these.
            return metric.encode(out);
        }
        metric.encode(out.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::*;
    use crate::simulated::Cluster;

    fn simulated() -> String {
        let status = Cluster { nodes: 3, ranks: 9 }.node_status(100);
        encode(status, Some(StoreSpace { free: 5, size: 10 })).unwrap()
    }

    /// What OpenMetrics asks of a text, and what promtool finds fault with.
    fn lint(text: &str) -> Result<usize, String> {
        let body = text.strip_suffix("# EOF\n").ok_or("no EOF")?;
        let (mut types, mut helped, mut series): (HashMap<&str, &str>, BTreeSet<&str>, BTreeSet<&str>) = Default::default();
        let mut units: HashMap<&str, &str> = HashMap::new();
        let mut current = "";
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.splitn(3, ' ');
                let (kind, name, said) = (words.next().unwrap(), words.next().ok_or(line)?, words.next().unwrap_or_default());
                if name != current && types.contains_key(name) {
                    return Err(format!("{name} is interrupted"));
                }
                current = name;
                match kind {
                    "HELP" if said.is_empty() || !helped.insert(name) => return Err(format!("{line}: no help, or twice")),
                    "TYPE" if types.insert(name, said).is_some() => return Err(format!("{line}: twice")),
                    "UNIT" if !name.ends_with(said) => return Err(format!("{line}: the name ends otherwise")),
                    "UNIT" => _ = units.insert(name, said),
                    "HELP" | "TYPE" => {}
                    _ => return Err(format!("{line}: what is that")),
                }
                continue;
            }
            let (name_and_labels, value) = line.rsplit_once(' ').ok_or(line)?;
            value.parse::<f64>().map_err(|_| format!("{line}: no number"))?;
            if !series.insert(name_and_labels) {
                return Err(format!("{line}: twice"));
            }
            let name = name_and_labels.split('{').next().unwrap();
            let end = match *types.get(current).ok_or(format!("{line}: no type"))? {
                "counter" => "_total",
                "info" => "_info",
                "gauge" if !name.ends_with("_total") && !name.ends_with("_count") => "",
                other => return Err(format!("{line}: {other}")),
            };
            if name.strip_suffix(end) != Some(current) || !helped.contains(current) || !name.starts_with("radic_") {
                return Err(format!("{line}: its name does not go with {current}, or has no help"));
            }
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if !name.chars().all(is_plain) || name.contains("_ms") || name.contains("milli") || name.contains("_ns") {
                return Err(format!("{line}: not a name in base units"));
            }
        }
        Ok(series.len())
    }

    #[test]
    fn what_is_told_is_openmetrics() {
        let count = lint(&simulated()).unwrap();
        assert!(count > 40, "{count}");
    }

    #[test]
    fn the_linter_sees_what_is_wrong() {
        let good = simulated();
        let bad = [
            good.replace("# EOF\n", ""),
            good.replace("radic_view 7.0", "radic_view seven"),
            good.replace("radic_view 7.0", "radic_view 7.0\nradic_view 7.0"),
            good.replace("# TYPE radic_view gauge\n", ""),
            good.replace("# HELP radic_view Number of the agreed list of members\n", ""),
            good.replace("radic_rank_sent_bytes_total", "radic_rank_sent_bytes"),
            good.replace("# UNIT radic_rank_sent_bytes bytes", "# UNIT radic_rank_sent_bytes seconds"),
        ];
        for text in bad {
            assert_ne!(text, good);
            assert!(lint(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn figures_are_those_of_the_node() {
        let text = simulated();
        let has = |line: &str| assert!(text.lines().any(|other| other == line), "{line} in {text}");
        has("radic_node_info{node=\"node0\",role=\"node\",version=\"0.1.0\"} 1");
        has("radic_store_free_bytes 5.0");
        has("radic_ranks 3.0");
        has("radic_rank_sent_bytes_total{radic_job=\"000000004f3c\",rank=\"3\"} 200600.0");
        has("radic_job_checkpoint_interval_seconds{radic_job=\"000000004f3c\"} 30.0");
        has("radic_job_checkpoint_age_seconds{radic_job=\"000000004f3c\"} 12.0");
        has("radic_job_held_bytes{radic_job=\"000000004f3c\",part=\"journal\"} 3000.0");
        has("radic_job_lost_ranks{radic_job=\"000000004f3c\"} 1.0");
        assert!(!text.contains("rank=\"1\""), "a rank of another node");
        assert!(!text.contains("radic_spare_free"), "it is no spare");
    }
}
