//! What the page is told: rows of nodes, jobs and ranks, of which only those travel that have changed, events, and how much each rank has sent to each.
//! No connection, no clock.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt::{Display, Write as _};
use std::time::Duration;

use bytes::Bytes;
use radic_wire::event::{Event, EventName};
use radic_wire::ids::{JobId, NodeName, Rank};
use radic_wire::job::{EndReason, JobInfo};
use radic_wire::local::{ClusterStatus, Traffic};
use radic_wire::partners::Peers;
use radic_wire::process::Protect;
use radic_wire::since::{Does, Growth, Sample, Since};
use serde::Serialize;
use serde_json::{Value, json};

use crate::rows::{NodeRow, RankRow, per_mille, rate};
use crate::table::Table;

/// Events that are kept, for pages that connect late.
const EVENTS: usize = 1024;
/// Longest text of an event, and command of a job, that is shown, in characters.
const TEXT: usize = 300;

/// Rows by their names, each as the JSON that was sent.
type Rows<K> = BTreeMap<K, String>;

/// See the module.
#[derive(Debug, Default)]
pub struct Picture {
    number: u64,
    before: Option<Sample>,
    head: String,
    nodes: Table<NodeName, NodeRow>,
    jobs: Rows<JobId>,
    ranks: Table<(JobId, Rank), RankRow>,
    traffic: Rows<JobId>,
    /// What follows from that.
    peers: BTreeMap<JobId, Known>,
    events: VecDeque<String>,
    changed: Changed,
    /// Bytes of the last update.
    length: usize,
    full: Option<Bytes>,
}

/// How much each rank of a job has sent to each, and had in the answer before.
#[derive(Debug)]
struct Known {
    before: Option<Traffic>,
    now: Traffic,
    /// Once some rank does what others have to do with.
    peers: OnceCell<Peers>,
}

/// A process, as it is looked at once.
struct Seen<'a> {
    growth: Growth<'a>,
    does: Does,
}

/// What the running ranks of a job come to.
#[derive(Default)]
struct OfJob {
    received: Option<f64>,
    sent: Option<f64>,
    /// The oldest of the last checkpoints of those that are protected.
    committed: Option<u64>,
    /// One of them has none.
    lacks: bool,
    /// The sum of the shares that are known, and of how many.
    share: f64,
    known: u32,
}

/// The ranks that each rank has to do with.
type Partners = BTreeMap<JobId, BTreeMap<Rank, Vec<Rank>>>;

/// What has changed since the last update, nodes and ranks apart.
#[derive(Debug, Default)]
struct Changed {
    head: bool,
    /// Events are another node's list from its beginning on: what was shown before is to go.
    anew: bool,
    events: usize,
    jobs: Vec<JobId>,
    traffic: Vec<JobId>,
}

/// What has changed, and its number: one more than that of the update before.
#[derive(Debug, Clone, Default)]
pub struct Update {
    /// The number.
    pub number: u64,
    /// A message to pages that have the previous update.
    pub message: Bytes,
}

impl Picture {
    /// The cluster is so, at this time of some clock that never goes back, and of the wall clock in milliseconds since 1970.
    pub fn handle_status(&mut self, at: Duration, wall_ms: u64, status: ClusterStatus) {
        let now = Sample { at, status };
        let before = self.before.take();
        let since = Since::new(before.as_ref(), &now);
        let status = &now.status;
        let head = json!({"by": status.answered_by, "view": status.view, "frozen": status.frozen, "trouble": null});
        self.set_head(head.to_string());
        self.renew_nodes(status);
        // The page drops the ranks of a job that it is not told of.
        let told: BTreeSet<JobId> = status.jobs.iter().map(|job| job.job).collect();
        let grown = since.of_all(&status.processes).filter(|growth| told.contains(&growth.process().job));
        let all: Vec<Seen<'_>> = grown.map(|growth| Seen { does: growth.does(), growth }).collect();
        let of_jobs = self.renew_ranks(at, wall_ms, &all);
        let nothing = OfJob::default();
        let row = |job: &JobInfo| (job.job, job_row(job, of_jobs.get(&job.job).unwrap_or(&nothing)));
        let jobs = status.jobs.iter().map(row).collect();
        self.changed.jobs.extend(renew(&mut self.jobs, jobs));
        let traffic_over = self.traffic.keys().filter(|job| !self.jobs.contains_key(*job)).copied().collect::<Vec<_>>();
        traffic_over.iter().for_each(|job| _ = (self.traffic.remove(job), self.peers.remove(job)));
        self.before = Some(now);
    }

    fn renew_nodes(&mut self, status: &ClusterStatus) {
        let mut held: HashMap<&NodeName, u64> = HashMap::with_capacity(status.nodes.len());
        for log in status.processes.iter().flat_map(|process| &process.logs) {
            *held.entry(&log.node).or_default() += log.journal + log.payload + log.images;
        }
        self.nodes.begin();
        for (at, node) in status.nodes.iter().enumerate() {
            let held = held.get(&node.name).copied().unwrap_or(0);
            let come = self.nodes.come(&node.name, || NodeRow::new(at, node, held));
            // Members come first: a node that is back stands for what was there before.
            if !come.again {
                *come.changed |= come.row.renew(at, node, held);
            }
        }
        self.nodes.end();
    }

    /// Returns what they come to, for the rows of their jobs.
    fn renew_ranks(&mut self, at: Duration, wall_ms: u64, all: &[Seen<'_>]) -> BTreeMap<JobId, OfJob> {
        let partners = self.partners(all);
        let mut of_jobs: BTreeMap<JobId, OfJob> = BTreeMap::new();
        self.ranks.begin();
        for seen in all {
            let process = seen.growth.process();
            let with = partners.get(&process.job).and_then(|of_job| of_job.get(&process.rank));
            let does = seen.does.with(with.map_or(&[][..], Vec::as_slice));
            let come = self.ranks.come(&(process.job, process.rank), RankRow::default);
            *come.changed |= come.row.renew(at, wall_ms, &seen.growth, does, seen.does.health());
            if process.running {
                of_jobs.entry(process.job).or_default().add(&seen.growth, come.row);
            }
        }
        self.ranks.end();
        of_jobs
    }

    /// The ranks that each rank has to do with, of jobs of which the traffic is known, and of which a rank does not simply communicate.
    fn partners(&self, all: &[Seen<'_>]) -> Partners {
        let of_job = |(job, known): (&JobId, &Known)| {
            let processes = || all.iter().filter(|seen| seen.growth.process().job == *job);
            processes().find(|seen| matches!(seen.does, Does::Sends | Does::Receives | Does::Waits))?;
            let does = processes().map(|seen| (seen.growth.process().rank, seen.does)).collect();
            let peers = known.peers.get_or_init(|| Peers::new(known.before.as_ref(), &known.now));
            Some((*job, peers.partners(&does)))
        };
        self.peers.iter().filter_map(of_job).collect()
    }

    /// The cluster could not be asked.
    pub fn handle_trouble(&mut self, why: &str) {
        self.set_head(json!({"trouble": shortened(why)}).to_string());
    }

    /// Nobody looks any more. What comes later has nothing to be compared with.
    pub fn handle_nobody(&mut self) {
        *self = Picture { number: self.number, ..Picture::default() };
    }

    /// Events come from the oldest on.
    pub fn handle_first_events(&mut self) {
        self.events.clear();
        (self.changed.anew, self.changed.events) = (true, 0);
    }

    /// Things have happened.
    pub fn handle_events(&mut self, events: &[Event]) {
        for event in events {
            if self.events.len() == EVENTS {
                self.events.pop_front();
            }
            self.events.push_back(event_row(event));
            self.changed.events = (self.changed.events + 1).min(self.events.len());
        }
    }

    /// How much each rank has sent to each.
    pub fn handle_traffic(&mut self, job: JobId, traffic: Traffic) {
        let row = traffic_row(&traffic);
        let before = self.peers.remove(&job).map(|known| known.now);
        self.peers.insert(job, Known { before, now: traffic, peers: OnceCell::new() });
        if self.traffic.get(&job) != Some(&row) {
            self.traffic.insert(job, row);
            self.changed.traffic.push(job);
        }
    }

    /// Jobs that run, newest first: their traffic may be asked for.
    pub fn running(&self) -> Vec<JobId> {
        let jobs = self.before.iter().flat_map(|before| &before.status.jobs).filter(|job| job.outcome.is_none());
        let mut jobs: Vec<_> = jobs.map(|job| (std::cmp::Reverse(job.started_ms), job.job)).collect();
        jobs.sort_unstable();
        jobs.into_iter().map(|(_, job)| job).collect()
    }

    /// What has changed since the last update, if anything has.
    pub fn take_update(&mut self) -> Option<Update> {
        let Changed { head, anew, events, jobs, traffic } = std::mem::take(&mut self.changed);
        let rows_have = self.nodes.has_changed() || self.ranks.has_changed();
        if !head && !anew && events == 0 && jobs.is_empty() && traffic.is_empty() && !rows_have {
            return None;
        }
        self.number += 1;
        self.full = None;
        // As long as the one before, and a little more.
        let mut out = String::with_capacity(self.length + self.length / 8);
        _ = write!(out, "data: {{\"n\":{},\"anew\":{anew}", self.number);
        if head {
            _ = write!(out, ",\"head\":{}", self.head);
        }
        put_nodes(&mut out, self.nodes.take_changes());
        self.nodes.forget_gone();
        object(&mut out, "jobs", jobs.iter().map(|job| (job, self.jobs.get(job))), put_row);
        put_ranks(&mut out, self.ranks.take_changes());
        self.ranks.forget_gone();
        object(&mut out, "traffic", traffic.iter().map(|job| (job, self.traffic.get(job))), put_row);
        self.put_events(&mut out, events);
        out += "}\n\n";
        self.length = out.len();
        Some(Update { number: self.number, message: out.into() })
    }

    /// Everything, for pages that do not have the previous update; and the number of the last update.
    pub fn full(&mut self) -> Update {
        let message = self.full.take().unwrap_or_else(|| self.write_full());
        self.full = Some(message.clone());
        Update { number: self.number, message }
    }

    fn write_full(&self) -> Bytes {
        let head = if self.head.is_empty() { "null" } else { &self.head };
        let mut out = format!("data: {{\"n\":{},\"full\":true,\"anew\":true,\"head\":{head}", self.number);
        put_nodes(&mut out, self.nodes.all());
        object(&mut out, "jobs", self.jobs.iter().map(|(job, row)| (job, Some(row))), put_row);
        put_ranks(&mut out, self.ranks.all());
        object(&mut out, "traffic", self.traffic.iter().map(|(job, row)| (job, Some(row))), put_row);
        self.put_events(&mut out, self.events.len());
        out += "}\n\n";
        out.into()
    }

    fn put_events(&self, out: &mut String, newest: usize) {
        if newest > 0 {
            let rows = self.events.iter().skip(self.events.len().saturating_sub(newest));
            *out += ",\"events\":[";
            put_list(out, rows, |out, row| *out += row);
            out.push(']');
        }
    }

    fn set_head(&mut self, head: String) {
        self.changed.head |= self.head != head;
        self.head = head;
    }
}

impl OfJob {
    /// This rank runs.
    fn add(&mut self, growth: &Growth<'_>, row: &RankRow) {
        let sum = |all: Option<f64>, one: Option<f64>| one.map_or(all, |one| Some(all.unwrap_or(0.0) + one));
        self.received = sum(self.received, growth.rate(|counters| counters.bytes_in));
        self.sent = sum(self.sent, growth.rate(|counters| counters.bytes_out));
        if growth.process().protect == Protect::On {
            self.lacks |= row.committed().is_none();
            self.committed = self.committed.into_iter().chain(row.committed()).min();
        }
        if let Some(part) = row.part() {
            (self.share, self.known) = (self.share + part, self.known + 1);
        }
    }
}

fn job_row(job: &JobInfo, ranks: &OfJob) -> String {
    // A job's checkpoint is as old as that of its worst rank.
    let oldest = ranks.committed.filter(|_| !ranks.lacks);
    let share = (ranks.known > 0).then(|| ranks.share / f64::from(ranks.known));
    let state = match &job.outcome {
        None if job.degraded.is_empty() => "running".to_owned(),
        None => "degraded".to_owned(),
        Some(outcome) if outcome.code == 0 => "finished".to_owned(),
        Some(outcome) if outcome.reason == EndReason::Suspended => "suspended".to_owned(),
        Some(outcome) => format!("ended, code {}", outcome.code),
    };
    text(&json!({
        "command": shortened(&job.command),
        "state": state,
        "over": job.outcome.as_ref().map(|_| job.elapsed_ms),
        "degraded": job.degraded.len(),
        "ranks": job.ranks,
        "running": job.running,
        "started": job.started_ms,
        "home": job.home,
        "in": rate(ranks.received),
        "out": rate(ranks.sent),
        "committed": oldest,
        "overhead": share.map(|share| per_mille(share) as f64 / 10.0),
    }))
}

/// Replaces rows; returns the names of those that have come, gone or changed.
fn renew<K: Ord + Clone>(rows: &mut Rows<K>, new: Rows<K>) -> Vec<K> {
    let changed = new.iter().filter(|(key, row)| rows.get(*key) != Some(*row)).map(|(key, _)| key.clone());
    let gone = rows.keys().filter(|key| !new.contains_key(*key)).cloned();
    let changed = changed.chain(gone).collect();
    *rows = new;
    changed
}

fn traffic_row(traffic: &Traffic) -> String {
    #[derive(Serialize)]
    struct Row<'a> {
        pairs: &'a [(Rank, Rank, u64)],
        others: u64,
        partial: bool,
    }
    text(&Row { pairs: &traffic.pairs, others: traffic.others, partial: traffic.partial })
}

fn event_row(event: &Event) -> String {
    let Event { at_ms, node, event: name, subject, job, rank, text: said, .. } = event;
    let name: &EventName = name;
    text(&(at_ms, node, name.as_str(), subject, job, rank, shortened(said)))
}

fn shortened(text: &str) -> String {
    text.chars().take(TEXT).collect()
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| Value::Null.to_string())
}

/// `"key":row`. A key is a number or a name, in which nothing is to be escaped; a row that is gone is null.
fn put_row<K: Display>(out: &mut String, (key, row): (K, Option<&String>)) {
    _ = write!(out, "\"{key}\":{}", row.map_or("null", String::as_str));
}

/// `,"nodes":{"name":row,...}`; a row that is gone is null, as everywhere.
fn put_nodes(out: &mut String, rows: Vec<(&NodeName, Option<&NodeRow>)>) {
    object(out, "nodes", rows.into_iter(), |out, (name, row)| {
        out.push('"');
        *out += name.as_str();
        *out += "\":";
        *out += &text(&row);
    });
}

/// `,"ranks":{"job":{"rank":row,...},...}`
fn put_ranks(out: &mut String, mut rows: Vec<(&(JobId, Rank), Option<&RankRow>)>) {
    // Jobs stand one after the other, each with all of its ranks. Nearly always they do so already.
    rows.sort_by_key(|(name, _)| **name);
    object(out, "ranks", rows.chunk_by(|((a, _), _), ((b, _), _)| a == b), |out, of_job| {
        let job = of_job.iter().map(|((job, _), _)| job).next();
        job.into_iter().for_each(|job| _ = write!(out, "\"{job}\":{{"));
        put_list(out, of_job.iter(), |out, ((_, rank), row)| {
            out.push('"');
            *out += &format!("{rank}\":{}", text(row));
        });
        out.push('}');
    });
}

/// `,"name":{...}`, unless there is nothing.
fn object<T>(out: &mut String, name: &str, rows: impl Iterator<Item = T>, put: impl FnMut(&mut String, T)) {
    let mut rows = rows.peekable();
    if rows.peek().is_some() {
        _ = write!(out, ",\"{name}\":{{");
        put_list(out, rows, put);
        out.push('}');
    }
}

/// With commas between.
fn put_list<T>(out: &mut String, rows: impl Iterator<Item = T>, mut put: impl FnMut(&mut String, T)) {
    for (at, row) in rows.enumerate() {
        if at > 0 {
            out.push(',');
        }
        put(out, row);
    }
}

#[cfg(test)]
mod tests {
    use radic_wire::local::ClusterStatus;

    use super::*;
    use crate::simulated::Cluster;

    /// What a page makes of what it is told.
    #[derive(Default, PartialEq, Debug)]
    struct Page {
        number: u64,
        rows: BTreeMap<String, Value>,
        events: Vec<Value>,
    }

    impl Page {
        fn take(&mut self, update: &Update) {
            let text = std::str::from_utf8(&update.message).unwrap();
            let told: Value = serde_json::from_str(text.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap()).unwrap();
            self.number = told["n"].as_u64().unwrap();
            if told.get("full").is_some() {
                self.rows.clear();
            }
            if told["anew"] == true {
                self.events.clear();
            }
            for part in ["nodes", "jobs", "traffic"] {
                self.merge(part, &told[part]);
            }
            for (job, rows) in told["ranks"].as_object().into_iter().flatten() {
                self.merge(job, rows);
            }
            self.events.extend(told["events"].as_array().into_iter().flatten().cloned());
        }

        fn merge(&mut self, part: &str, rows: &Value) {
            for (key, row) in rows.as_object().into_iter().flatten() {
                let key = format!("{part}/{key}");
                if row.is_null() { _ = self.rows.remove(&key) } else { _ = self.rows.insert(key, row.clone()) }
            }
        }
    }

    fn whole(picture: &mut Picture) -> Page {
        let mut page = Page::default();
        page.take(&picture.full());
        page
    }

    fn at(tick: u64, change: impl Fn(&mut ClusterStatus)) -> (Duration, u64, ClusterStatus) {
        let mut status = Cluster { nodes: 10, ranks: 6 }.status(tick);
        change(&mut status);
        (Duration::from_secs(tick), 1_000_000 + 1_000 * tick, status)
    }

    #[test]
    fn changes_one_after_the_other_are_the_whole() {
        let (mut picture, mut page) = (Picture::default(), Page::default());
        page.take(&picture.full());
        let statuses = [
            at(1, |_| {}),
            at(2, |_| {}),
            at(3, |status| _ = status.processes.remove(2)),
            at(4, |status| {
                status.nodes.truncate(7);
                status.processes.clear();
            }),
            at(5, |status| {
                status.jobs.clear();
                status.processes.clear();
            }),
        ];
        for (tick, (time, wall, status)) in statuses.into_iter().enumerate() {
            picture.handle_status(time, wall, status);
            let update = picture.take_update().unwrap();
            assert_eq!(update.number, page.number + 1);
            page.take(&update);
            assert_eq!(page, whole(&mut picture), "at {tick}");
        }
        assert!(page.rows.keys().all(|key| key.starts_with("nodes/")), "{page:?}");
        assert!(picture.take_update().is_none(), "nothing has changed");
    }

    #[test]
    fn rates_are_of_two_looks_and_a_checkpoint_that_grows_older_is_no_change() {
        let mut picture = Picture::default();
        for tick in 1..=3 {
            let (time, wall, status) = at(tick, |status| {
                status.processes.iter_mut().for_each(|process| process.logs[0].committed_ms = Some(12_000 + 1_000 * tick));
            });
            picture.handle_status(time, wall, status);
        }
        let page = whole(&mut picture);
        let row = &page.rows["000000004f3c/2"];
        assert_eq!((&row[1], &row[3], &row[8]), (&json!("communicates"), &json!(1_000), &json!(988_000)), "{row}");
    }

    #[test]
    fn events_are_told_once_and_bounded() {
        let (mut picture, mut page) = (Picture::default(), Page::default());
        let event = |seq: u64| Event {
            at_ms: seq,
            node: "n1".parse().unwrap(),
            seq,
            event: EventName::Checkpoint,
            subject: None,
            job: None,
            rank: None,
            text: "x".repeat(5_000),
        };
        picture.handle_first_events();
        picture.handle_events(&[event(1), event(2)]);
        page.take(&picture.take_update().unwrap());
        picture.handle_events(&[event(3)]);
        page.take(&picture.take_update().unwrap());
        assert_eq!(page.events.iter().map(|event| event[0].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(page.events[0][6].as_str().unwrap().len(), TEXT);
        picture.handle_events(&(4..3_000).map(event).collect::<Vec<_>>());
        page.take(&picture.take_update().unwrap());
        assert_eq!(whole(&mut picture).events.len(), EVENTS);
        assert_eq!(page.events.last().unwrap()[0], 2_999);
    }
}
