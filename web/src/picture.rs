//! What the page is told: rows of nodes, jobs and ranks, of which only those travel that have changed, events, and how much each rank has sent to each.
//! No connection, no clock.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::{Display, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use radic_wire::event::{Event, EventName};
use radic_wire::ids::{JobId, NodeName, Rank};
use radic_wire::job::{EndReason, JobInfo};
use radic_wire::local::{ClusterStatus, NodeInfo, NodeState, Traffic};
use radic_wire::membership::Role;
use radic_wire::partners::{Overhead, Peers, mean};
use radic_wire::process::Protect;
use radic_wire::since::{Does, Growth, Health, Sample, Since, sum};
use serde::Serialize;
use serde_json::{Value, json};

/// Events that are kept, for those who begin to look.
const EVENTS: usize = 1024;
/// Longest text of an event, and command of a job, that is shown, in characters.
const TEXT: usize = 300;
/// A checkpoint's time follows from its age, which the nodes tell at slightly different times: less than this is no other checkpoint.
const SAME: u64 = 1_500;

/// Rows by their names, each as the JSON that was sent.
type Rows<K> = BTreeMap<K, String>;

/// See the module.
#[derive(Debug, Default)]
pub struct Picture {
    number: u64,
    before: Option<Sample>,
    head: String,
    nodes: BTreeMap<NodeName, NodeRow>,
    jobs: Rows<JobId>,
    ranks: BTreeMap<JobId, BTreeMap<Rank, RankRow>>,
    traffic: Rows<JobId>,
    /// What follows from that.
    peers: BTreeMap<JobId, (Traffic, Peers)>,
    events: VecDeque<String>,
    /// Which look at the cluster was the last one.
    look: u64,
    changed: Changed,
    /// Bytes of the last update.
    length: usize,
    full: Option<Bytes>,
}

#[derive(Debug, Default)]
struct NodeRow {
    json: String,
    /// The last look at the cluster in which the node was there.
    look: u64,
}

#[derive(Debug, Default)]
struct RankRow {
    json: String,
    /// When its last checkpoint was committed, in milliseconds since 1970.
    committed: Option<u64>,
    /// The last look at the cluster in which the rank was there.
    look: u64,
    overhead: Overhead,
    /// Its part of the last seconds.
    part: Option<f64>,
}

/// A process, as it is looked at once.
struct Seen<'a> {
    growth: Growth<'a>,
    does: Does,
    /// What its row then says, for the row of its job.
    committed: Cell<Option<u64>>,
    part: Cell<Option<f64>>,
}

impl<'a> Seen<'a> {
    fn new(growth: Growth<'a>) -> Seen<'a> {
        Seen { growth, does: growth.does(), committed: Cell::default(), part: Cell::default() }
    }
}

type OfJobs<'a> = BTreeMap<JobId, Vec<&'a Seen<'a>>>;

/// What has changed since the last update.
#[derive(Debug, Default)]
struct Changed {
    head: bool,
    /// Events are another node's list from its beginning on: what was shown before is to go.
    anew: bool,
    events: usize,
    nodes: Vec<NodeName>,
    jobs: Vec<JobId>,
    ranks: Vec<(JobId, Rank)>,
    traffic: Vec<JobId>,
}

/// What has changed, and its number: one more than that of the update before.
#[derive(Debug, Clone, Default)]
pub struct Update {
    /// The number.
    pub number: u64,
    /// A message to those who have the update before.
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
        self.look += 1;
        self.renew_nodes(status);
        let all: Vec<Seen<'_>> = since.of_all(&status.processes).map(Seen::new).collect();
        let mut of_jobs: OfJobs<'_> = BTreeMap::new();
        for seen in &all {
            of_jobs.entry(seen.growth.process().job).or_default().push(seen);
        }
        let partners = self.partners(&of_jobs);
        let mut new = Vec::new();
        for (job, of_job) in &of_jobs {
            let with = partners.get(job);
            let rows = self.ranks.entry(*job).or_default();
            for seen in of_job {
                let rank = seen.growth.process().rank;
                let row = rows.entry(rank).or_default();
                row.look = self.look;
                row.part = row.overhead.handle(at, seen.growth.process());
                let with = with.and_then(|of_job| of_job.get(&rank)).map_or(&[][..], Vec::as_slice);
                write_rank(&mut new, row, seen, &seen.does.with(with), wall_ms);
                if replace(&mut row.json, &new) {
                    self.changed.ranks.push((*job, rank));
                }
                seen.committed.set(row.committed);
                seen.part.set(row.part);
            }
        }
        for (job, rows) in &mut self.ranks {
            if of_jobs.get(job).is_some_and(|of_job| of_job.len() == rows.len()) && rows.values().all(|row| row.look == self.look)
            {
                continue;
            }
            rows.retain(|rank, row| {
                let is_there = row.look == self.look;
                if !is_there {
                    self.changed.ranks.push((*job, *rank));
                }
                is_there
            });
        }
        let of_job = |job: &JobInfo| of_jobs.get(&job.job).map_or(&[][..], Vec::as_slice);
        let jobs = status.jobs.iter().map(|job| (job.job, job_row(job, of_job(job)))).collect();
        self.changed.jobs.extend(renew(&mut self.jobs, jobs));
        self.ranks.retain(|job, _| self.jobs.contains_key(job));
        let traffic_over = self.traffic.keys().filter(|job| !self.jobs.contains_key(*job)).copied().collect::<Vec<_>>();
        traffic_over.iter().for_each(|job| _ = (self.traffic.remove(job), self.peers.remove(job)));
        self.before = Some(now);
    }

    fn renew_nodes(&mut self, status: &ClusterStatus) {
        let mut held: HashMap<&NodeName, u64> = HashMap::with_capacity(status.nodes.len());
        for log in status.processes.iter().flat_map(|process| &process.logs) {
            *held.entry(&log.node).or_default() += log.journal + log.payload + log.images;
        }
        let mut new = Vec::new();
        for (at, node) in status.nodes.iter().enumerate() {
            let row = self.nodes.entry(node.name.clone()).or_default();
            // Members come first: a node that is back stands for what was there before.
            if row.look == self.look {
                continue;
            }
            row.look = self.look;
            write_node(&mut new, at, node, held.get(&node.name).copied().unwrap_or(0));
            if replace(&mut row.json, &new) {
                self.changed.nodes.push(node.name.clone());
            }
        }
        self.nodes.retain(|name, row| {
            let is_there = row.look == self.look;
            if !is_there {
                self.changed.nodes.push(name.clone());
            }
            is_there
        });
    }

    /// The ranks that each rank has to do with, of jobs of which the traffic is known, and of which a rank does not simply communicate.
    fn partners(&self, of_jobs: &OfJobs<'_>) -> BTreeMap<JobId, BTreeMap<Rank, Vec<Rank>>> {
        let of_job = |(job, (_, peers)): (&JobId, &(Traffic, Peers))| {
            let processes = of_jobs.get(job)?;
            processes.iter().find(|seen| matches!(seen.does, Does::Sends | Does::Receives | Does::Waits))?;
            let all = processes.iter().map(|seen| (seen.growth.process().rank, seen.does)).collect();
            Some((*job, peers.partners(&all)))
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
    pub fn handle_traffic(&mut self, job: JobId, traffic: &Traffic) {
        let pairs: Vec<_> = traffic.pairs.iter().map(|(from, to, bytes)| (from.0, to.0, bytes)).collect();
        let row = text(&json!({"pairs": pairs, "others": traffic.others, "partial": traffic.partial}));
        let before = self.peers.remove(&job).map(|(before, _)| before);
        self.peers.insert(job, (traffic.clone(), Peers::new(before.as_ref(), traffic)));
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
        let Changed { head, anew, events, nodes, jobs, ranks, traffic } = std::mem::take(&mut self.changed);
        if !head && !anew && events == 0 && nodes.is_empty() && jobs.is_empty() && ranks.is_empty() && traffic.is_empty() {
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
        object(&mut out, "nodes", nodes.iter().map(|name| (name, self.nodes.get(name).map(|row| &row.json))), put_row);
        object(&mut out, "jobs", jobs.iter().map(|job| (job, self.jobs.get(job))), put_row);
        let mut of_jobs: BTreeMap<JobId, Vec<Rank>> = BTreeMap::new();
        ranks.into_iter().for_each(|(job, rank)| of_jobs.entry(job).or_default().push(rank));
        object(&mut out, "ranks", of_jobs.into_iter(), |out, (job, ranks)| {
            let rows = self.ranks.get(&job);
            let of_job = ranks.into_iter().map(|rank| (rank, rows.and_then(|rows| rows.get(&rank)).map(|row| &row.json)));
            put_rows(out, &job, of_job);
        });
        object(&mut out, "traffic", traffic.iter().map(|job| (job, self.traffic.get(job))), put_row);
        self.put_events(&mut out, events);
        out += "}\n\n";
        self.length = out.len();
        Some(Update { number: self.number, message: out.into() })
    }

    /// Everything, for those who have nothing, or not the last update; and the number of the last update.
    pub fn full(&mut self) -> Update {
        let message = self.full.take().unwrap_or_else(|| self.write_full());
        self.full = Some(message.clone());
        Update { number: self.number, message }
    }

    fn write_full(&self) -> Bytes {
        let head = if self.head.is_empty() { "null" } else { &self.head };
        let mut out = format!("data: {{\"n\":{},\"full\":true,\"anew\":true,\"head\":{head}", self.number);
        object(&mut out, "nodes", self.nodes.iter().map(|(name, row)| (name, Some(&row.json))), put_row);
        object(&mut out, "jobs", self.jobs.iter().map(|(job, row)| (job, Some(row))), put_row);
        object(&mut out, "ranks", self.ranks.iter(), |out, (job, rows)| {
            put_rows(out, job, rows.iter().map(|(rank, row)| (rank, Some(&row.json))));
        });
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

fn job_row(job: &JobInfo, processes: &[&Seen<'_>]) -> String {
    let of_job = || processes.iter().filter(|seen| seen.growth.process().running);
    let protected = of_job().filter(|seen| seen.growth.process().protect == Protect::On);
    // A job's checkpoint is as old as that of its worst rank.
    let oldest = protected.map(|seen| seen.committed.get());
    let oldest = oldest.collect::<Option<Vec<u64>>>().and_then(|times| times.into_iter().min());
    let share = mean(of_job().map(|seen| seen.part.get()));
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
        "in": rate(sum(of_job().filter_map(|seen| seen.growth.rate(|counters| counters.bytes_in)))),
        "out": rate(sum(of_job().filter_map(|seen| seen.growth.rate(|counters| counters.bytes_out)))),
        "committed": oldest,
        "overhead": share.map(percent),
    }))
}

/// Writes a rank's row. In the order that the page knows: node, what it does, health, bytes in and out a
/// second, outbox, log, images, last checkpoint, overhead in per cent, checkpoints, pid. `does`: what it does.
fn write_rank(out: &mut Vec<u8>, row: &mut RankRow, seen: &Seen<'_>, does: &str, wall_ms: u64) {
    let growth = &seen.growth;
    let process = growth.process();
    let log = process.logs.first();
    let at = log.and_then(|log| log.committed_ms).map(|age| wall_ms.saturating_sub(age));
    let is_same = |known: u64| at.is_some_and(|at| known.abs_diff(at) < SAME);
    row.committed = row.committed.filter(|known| is_same(*known)).or(at);
    let counters = process.counters.unwrap_or_default();
    let new = (
        &process.node,
        does,
        health_code(seen.does.health()),
        rate(growth.rate(|counters| counters.bytes_in)),
        rate(growth.rate(|counters| counters.bytes_out)),
        rounded(counters.outbox),
        rounded(log.map_or(0, |log| log.journal + log.payload)),
        rounded(log.map_or(0, |log| log.images)),
        row.committed,
        row.part.map(percent),
        counters.committed,
        process.pid,
    );
    write(out, &new);
}

/// With one digit behind the point: a row changes only if that does.
fn percent(part: f64) -> f64 {
    (part * 1e3).round() / 10.0
}

fn health_code(health: Health) -> u8 {
    match health {
        Health::Good => 0,
        Health::Troubled => 1,
        Health::Gone => 2,
    }
}

/// Replaces rows; returns the names of those that have come, gone or changed.
fn renew<K: Ord + Clone>(rows: &mut Rows<K>, new: Rows<K>) -> Vec<K> {
    let changed = new.iter().filter(|(key, row)| rows.get(*key) != Some(*row)).map(|(key, _)| key.clone());
    let gone = rows.keys().filter(|key| !new.contains_key(*key)).cloned();
    let changed = changed.chain(gone).collect();
    *rows = new;
    changed
}

fn write_node(out: &mut Vec<u8>, at: usize, node: &NodeInfo, held: u64) {
    let state = match node.state {
        NodeState::Alive => "alive",
        NodeState::Silent => "silent",
        NodeState::Dead => "dead",
        NodeState::Left => "left",
    };
    let role = match node.role {
        Role::Node | Role::Newcomer => "node",
        Role::Spare => "spare",
        Role::Witness => "witness",
    };
    #[derive(Serialize)]
    struct Row<'a> {
        at: usize,
        state: &'a str,
        role: &'a str,
        ranks: usize,
        slots: u32,
        memory: u64,
        store: u64,
        protector: &'a Option<NodeName>,
        address: SocketAddr,
    }
    let row = Row {
        at,
        state,
        role,
        ranks: node.ranks.len(),
        slots: node.slots,
        memory: rounded(node.memory),
        store: rounded(held),
        protector: &node.protector,
        address: node.address,
    };
    write(out, &row);
}

fn event_row(event: &Event) -> String {
    let Event { at_ms, node, event: name, subject, job, rank, text: said, .. } = event;
    let name: &EventName = name;
    text(&(at_ms, node, name.as_str(), subject, job, rank, shortened(said)))
}

fn shortened(text: &str) -> String {
    text.chars().take(TEXT).collect()
}

fn rate(rate: Option<f64>) -> Option<u64> {
    rate.map(|rate| rounded(rate as u64))
}

/// Three digits: what is not seen need not travel.
fn rounded(value: u64) -> u64 {
    let mut unit = 1;
    while value / unit >= 1_000 {
        unit *= 10;
    }
    value / unit * unit
}

/// The same as JSON, in place of what is there.
fn write(out: &mut Vec<u8>, value: &impl Serialize) {
    out.clear();
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.clear();
        out.extend_from_slice(b"null");
    }
}

/// Takes a row, in the memory of the one before; returns whether they differ.
fn replace(row: &mut String, new: &[u8]) -> bool {
    let differs = row.as_bytes() != new;
    if differs {
        row.clear();
        row.push_str(std::str::from_utf8(new).unwrap_or("null"));
    }
    differs
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| Value::Null.to_string())
}

/// `"key":row`. A key is a number or a name, in which nothing is to be escaped; a row that is gone is null.
fn put_row<K: Display>(out: &mut String, (key, row): (K, Option<&String>)) {
    _ = write!(out, "\"{key}\":{}", row.map_or("null", String::as_str));
}

/// `"key":{"rank":row,...}`
fn put_rows<'a, K: Display>(out: &mut String, key: &JobId, rows: impl Iterator<Item = (K, Option<&'a String>)>) {
    _ = write!(out, "\"{key}\":{{");
    put_list(out, rows, put_row);
    out.push('}');
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
