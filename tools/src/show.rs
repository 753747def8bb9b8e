//! What `radic nodes`, `jobs`, `status` and `events` print.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Instant;

use anyhow::Result;
use nix::poll::{PollFd, PollFlags};
use radic_wire::event::Event;
use radic_wire::job::JobInfo;
use radic_wire::local::{ClusterStatus, NodeInfo, NodeState, Reply, Request};
use radic_wire::membership::Role;
use serde::Serialize;

use crate::client::{self, ClientError, Cluster, Connection};
use crate::{counters, outcome};

/// Longest cell of a table but for the last column, in characters.
const CELL: usize = 32;

/// A line on stderr. If it cannot be written there is nothing to be done.
pub(crate) fn report(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Lines on stdout. If stdout is closed at the other end that is an error, which ends the command as SIGPIPE would.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The same as JSON, for programs.
pub(crate) fn print_json<T: Serialize>(value: &T) -> Result<()> {
    Ok(print(&format!("{}\n", serde_json::to_string_pretty(value)?))?)
}

pub(crate) fn ask_status(cluster: &Cluster) -> Result<ClusterStatus, ClientError> {
    let mut connection = cluster.connect(None)?;
    match connection.ask(&Request::Status, client::ANSWER)? {
        Reply::Status(status) => Ok(status),
        other => Err(connection.unexpected(&other)),
    }
}

/// `radic nodes`.
pub(crate) fn nodes(cluster: &Cluster, json: bool) -> Result<()> {
    let status = ask_status(cluster)?;
    if json { print_json(&status.nodes) } else { Ok(print(&nodes_table(&status.nodes))?) }
}

/// `radic jobs`.
pub(crate) fn jobs(cluster: &Cluster, all: bool, json: bool) -> Result<()> {
    let mut status = ask_status(cluster)?;
    status.jobs.retain(|job| all || job.outcome.is_none());
    match (json, status.jobs.is_empty()) {
        (true, _) => print_json(&status.jobs),
        (false, true) if all => Ok(print("no jobs\n")?),
        (false, true) => Ok(print("no job is running; `radic jobs --all` shows those that have ended\n")?),
        (false, false) => Ok(print(&jobs_table(&status.jobs))?),
    }
}

/// `radic status`.
pub(crate) fn status(cluster: &Cluster, json: bool) -> Result<()> {
    let status = ask_status(cluster)?;
    if json { print_json(&status) } else { Ok(print(&status_text(&status))?) }
}

/// `radic events`.
pub(crate) fn events(cluster: &Cluster, follow: bool, json: bool) -> Result<()> {
    let mut connection = cluster.connect(None)?;
    connection.send(&Request::Events { follow })?;
    let mut limit = Some(Instant::now() + client::ANSWER);
    loop {
        match next_reply(&mut connection, limit)? {
            Some(Reply::Events(events)) => print(&events_text(&events, json)?)?,
            Some(Reply::Done) => return Ok(()),
            Some(Reply::Error(text)) => return Err(ClientError::Refused(text).into()),
            Some(other) => return Err(connection.unexpected(&other).into()),
            None => return Err(ClientError::Late { node: connection.node().to_owned(), limit: client::ANSWER }.into()),
        }
        // Only a quiet cluster may let us wait, and only if that is what was asked for.
        limit = if follow { None } else { Some(Instant::now() + client::ANSWER) };
    }
}

/// The next reply; nothing after the deadline, if there is one. If stdout is closed at the other end that is an error, even if
/// there is nothing to be printed for a long time.
fn next_reply(connection: &mut Connection, deadline: Option<Instant>) -> Result<Option<Reply>> {
    let out = io::stdout();
    loop {
        if let Some(reply) = connection.next_reply()? {
            return Ok(Some(reply));
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
        let interest = connection.interest();
        // Asked for nothing, poll tells of errors only: the other end of a pipe or of a terminal is closed.
        let mut fds = [PollFd::new(connection.as_fd(), interest), PollFd::new(out.as_fd(), PollFlags::empty())];
        client::poll_fds(&mut fds, left).map_err(ClientError::Poll)?;
        if fds[1].any().unwrap_or(false) {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        }
        connection.flush()?;
        connection.read()?;
    }
}

fn events_text(events: &[Event], json: bool) -> Result<String> {
    let mut text = String::new();
    for event in events {
        if json {
            text.push_str(&serde_json::to_string(event)?);
        } else {
            let name = name_of(&event.event);
            text.push_str(&format!("{} {:<8} {name:<11} {}", utc(event.at_ms), event.node, clean(&event.text)));
        }
        text.push('\n');
    }
    Ok(text)
}

/// The name that an enumeration without fields has in JSON.
fn name_of<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => "?".into(),
    }
}

fn nodes_table(nodes: &[NodeInfo]) -> String {
    let mut table = Table::new(&["NODE", "STATE", "ADDRESS", ">SLOTS", ">RANKS", "PROTECTOR", ">MEMORY", ">PID"]);
    for node in nodes {
        let gone = matches!(node.state, NodeState::Dead | NodeState::Left);
        let known = |text: String| if node.pid == 0 { "-".to_owned() } else { text };
        let state = name_of(&node.state);
        table.row(vec![
            node.name.to_string(),
            match (node.role, node.ranks.is_empty()) {
                _ if gone => state,
                (Role::Node | Role::Newcomer, _) => state,
                (Role::Witness, _) => format!("{state}, witness"),
                (Role::Spare, true) => format!("{state}, spare"),
                // It answers, or its ranks would not be known.
                (Role::Spare, false) => "spare in use".to_owned(),
            },
            node.address.to_string(),
            node.slots.to_string(),
            known(node.ranks.len().to_string()),
            node.protector.as_ref().map_or("-".to_owned(), ToString::to_string),
            known(bytes(node.memory)),
            known(node.pid.to_string()),
        ]);
    }
    table.text()
}

fn jobs_table(jobs: &[JobInfo]) -> String {
    let mut table = Table::new(&["JOB", "STATE", ">RANKS", "NODES", ">TIME", "COMMAND"]);
    for job in jobs {
        let incarnations = if job.degraded.is_empty() { "running" } else { "degraded" };
        let state = job.outcome.as_ref().map_or_else(|| incarnations.to_owned(), outcome::in_short);
        let ranks = if job.running < job.ranks && job.outcome.is_none() {
            format!("{}/{}", job.running, job.ranks)
        } else {
            job.ranks.to_string()
        };
        let nodes: Vec<&str> = job.nodes.iter().map(|n| n.as_str()).collect();
        table.row(vec![job.job.to_string(), state, ranks, list(&nodes), duration(job.elapsed_ms), clean(&job.command)]);
    }
    table.text()
}

fn status_text(status: &ClusterStatus) -> String {
    let count = |state| status.nodes.iter().filter(|n| n.state == state).count();
    let alive = |role| status.nodes.iter().filter(|n| n.role == role && n.state == NodeState::Alive).count();
    let mut text = format!("cluster   view {}, as {} sees it", status.view, status.answered_by);
    text.push_str(if status.frozen { "; FROZEN: this side has no majority, nothing is decided here\n" } else { "\n" });
    text.push_str(&format!("nodes     {} alive", count(NodeState::Alive)));
    for (number, what) in [
        (alive(Role::Spare), "of them spares"),
        (alive(Role::Witness), "a witness"),
        (count(NodeState::Silent), "silent"),
        (count(NodeState::Dead), "dead"),
        (count(NodeState::Left), "left"),
    ] {
        if number > 0 {
            text.push_str(&format!(", {number} {what}"));
        }
    }
    let running = status.jobs.iter().filter(|j| j.outcome.is_none()).count();
    text.push_str(&format!("\njobs      {running} running, {} ended\n\n", status.jobs.len() - running));
    text.push_str(&nodes_table(&status.nodes));
    if running > 0 {
        let running: Vec<JobInfo> = status.jobs.iter().filter(|j| j.outcome.is_none()).cloned().collect();
        text.push('\n');
        text.push_str(&jobs_table(&running));
    }
    match counters::table(&status.processes) {
        table if table.is_empty() => text,
        table => format!("{text}\n{table}"),
    }
}

/// The first few of many names.
fn list(names: &[&str]) -> String {
    match names {
        [a, b, c, _, _, ..] => format!("{a},{b},{c},+{}", names.len() - 3),
        few => few.join(","),
    }
}

/// Rows of cells in columns as wide as they need to be. A heading that begins with `>` stands for numbers, to the right.
pub(crate) struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Self {
        let right = headings.iter().map(|h| h.starts_with('>')).collect();
        Table { right, rows: vec![headings.iter().map(|h| h.trim_start_matches('>').to_owned()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.right.len(), "a row has as many cells as there are headings");
        self.rows.push(cells);
    }

    pub(crate) fn text(&self) -> String {
        let last = self.right.len() - 1;
        let cut = |cell: &str, column| if column == last { cell.to_owned() } else { cell.chars().take(CELL).collect() };
        let rows: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().enumerate().map(|(i, c)| cut(c, i)).collect()).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..=last).map(width).collect();
        let mut text = String::new();
        for row in &rows {
            let cells = row.iter().zip(&widths).zip(&self.right);
            let cells = cells.map(|((cell, w), right)| if *right { format!("{cell:>w$}") } else { format!("{cell:<w$}") });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// Text from elsewhere, without what could play tricks on a terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A duration with its unit.
pub(crate) fn duration(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..10 => format!("{}.{} s", s, ms % 1000 / 100),
        10..60 => format!("{s} s"),
        60..3600 => format!("{} min {:02} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {:02} min", s / 3600, s / 60 % 60),
        _ => format!("{} d {:02} h", s / 86_400, s / 3600 % 24),
    }
}

/// A size with its unit.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 10.0 && unit > 0 { format!("{value:.1} {}", UNITS[unit]) } else { format!("{value:.0} {}", UNITS[unit]) }
}

/// Milliseconds since 1970 as ISO 8601 in UTC.
pub(crate) fn utc(ms: u64) -> String {
    let (s, ms) = (ms / 1000, ms % 1000);
    let (days, s) = (s / 86_400, s % 86_400);
    // Days are counted in eras of 400 years that begin on a 1st of March, so that the leap day is the last of its year.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + carry;
    format!("{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}.{ms:03}Z", s / 3600, s / 60 % 60, s % 60)
}

#[cfg(test)]
pub(crate) mod tests {
    use radic_wire::ids::{JobId, Rank};
    use radic_wire::job::{EndReason, Outcome};
    use radic_wire::local::RankInfo;

    use super::*;

    /// A node with the usual figures.
    pub(crate) fn node(name: &str, state: NodeState, role: Role) -> NodeInfo {
        let alive = state == NodeState::Alive;
        NodeInfo {
            name: name.parse().unwrap(),
            address: "127.0.0.1:40001".parse().unwrap(),
            state,
            role,
            slots: 2,
            ranks: vec![RankInfo { job: JobId::from_bits(7), rank: Rank(0), pid: 77 }; usize::from(alive && name != "s1")],
            protector: alive.then(|| "n2".parse().unwrap()),
            memory: if alive { 12 << 20 } else { 0 },
            pid: if alive { 4711 } else { 0 },
        }
    }

    fn job(outcome: Option<Outcome>) -> JobInfo {
        JobInfo {
            job: JobId::from_bits(0xabcdef),
            command: "./ring -n\t4".into(),
            ranks: 64,
            running: if outcome.is_none() { 64 } else { 0 },
            degraded: vec![],
            nodes: ["n1", "n2", "n3", "n4", "n5"].map(|n| n.parse().unwrap()).to_vec(),
            home: "n1".parse().unwrap(),
            started_ms: 0,
            elapsed_ms: 61_000,
            payload: radic_wire::process::PayloadMode::Log,
            outcome,
        }
    }

    #[test]
    fn tables_are_aligned_and_fit_a_terminal() {
        let nodes = [
            node("n1", NodeState::Alive, Role::Node),
            node("s1", NodeState::Alive, Role::Spare),
            node("s2", NodeState::Alive, Role::Spare),
            node("n10", NodeState::Dead, Role::Node),
        ];
        let text = nodes_table(&nodes);
        assert_eq!(
            text,
            "NODE  STATE         ADDRESS          SLOTS  RANKS  PROTECTOR  MEMORY   PID\n\
             n1    alive         127.0.0.1:40001      2      1  n2         12 MiB  4711\n\
             s1    alive, spare  127.0.0.1:40001      2      0  n2         12 MiB  4711\n\
             s2    spare in use  127.0.0.1:40001      2      1  n2         12 MiB  4711\n\
             n10   dead          127.0.0.1:40001      2      -  -               -     -\n"
        );
        assert!(text.lines().all(|l| l.len() <= 80));
        let lost = EndReason::NodeLost { node: "n5".parse().unwrap(), ranks: vec![], why: String::new() };
        let degraded = JobInfo { degraded: vec![Rank(3)], ..job(None) };
        let text = jobs_table(&[job(None), degraded, job(Some(Outcome { code: 113, reason: lost }))]);
        assert_eq!(
            text,
            "JOB           STATE     RANKS  NODES              TIME  COMMAND\n\
             000000abcdef  running      64  n1,n2,n3,+2  1 min 01 s  ./ring -n?4\n\
             000000abcdef  degraded     64  n1,n2,n3,+2  1 min 01 s  ./ring -n?4\n\
             000000abcdef  lost n5      64  n1,n2,n3,+2  1 min 01 s  ./ring -n?4\n"
        );
    }

    #[test]
    fn status_is_a_summary() {
        let status = ClusterStatus {
            answered_by: "n1".parse().unwrap(),
            view: 5,
            frozen: true,
            nodes: vec![node("n1", NodeState::Alive, Role::Node), node("n2", NodeState::Silent, Role::Node)],
            jobs: vec![job(None)],
            processes: vec![],
        };
        let text = status_text(&status);
        assert!(text.starts_with("cluster   view 5, as n1 sees it; FROZEN"), "{text}");
        assert!(text.contains("nodes     1 alive, 1 silent\njobs      1 running, 0 ended\n"), "{text}");
    }

    #[test]
    fn units() {
        assert_eq!([0, 999, 1 << 10, 2 << 20, 99 << 30].map(bytes), ["0 B", "999 B", "1.0 KiB", "2.0 MiB", "99 GiB"]);
        let durations = [0, 1_250, 59_999, 61_000, 3_660_000, 90_000_000].map(duration);
        assert_eq!(durations, ["0.0 s", "1.2 s", "59 s", "1 min 01 s", "1 h 01 min", "1 d 01 h"]);
    }

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc(951_827_696_789), "2000-02-29T12:34:56.789Z");
        assert_eq!(utc(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
        assert_eq!(utc(1_767_225_599_999), "2025-12-31T23:59:59.999Z");
        assert_eq!(utc(1_795_226_280_001), "2026-11-21T01:58:00.001Z");
    }

    #[test]
    fn events_are_lines() {
        let event = Event {
            at_ms: 0,
            node: "n1".parse().unwrap(),
            seq: 1,
            event: radic_wire::event::EventName::RankExit,
            subject: None,
            job: None,
            rank: Some(Rank(3)),
            text: "rank 3 \x1b[31m ended".into(),
        };
        let text = events_text(std::slice::from_ref(&event), false).unwrap();
        assert_eq!(text, "1970-01-01T00:00:00.000Z n1       rank-exit   rank 3 ?[31m ended\n");
        let line = events_text(std::slice::from_ref(&event), true).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
    }
}
