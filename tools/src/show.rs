//! What `radic nodes`, `jobs`, `status` and `events` print.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use anyhow::Result;
use nix::poll::{PollFd, PollFlags};
use radic_wire::event::Event;
use radic_wire::job::JobInfo;
use radic_wire::local::{ClusterStatus, NodeInfo, NodeState, Reply, Request};
use radic_wire::membership::Role;
use serde::Serialize;

use crate::client::{self, ClientError, Cluster, Connection, ask_status};
use crate::format::{Table, bytes, clean, duration, print, print_json, utc};
use crate::{counters, outcome};

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

#[cfg(test)]
pub(crate) mod tests {
    use radic_wire::ids::{JobId, Rank};
    use radic_wire::job::{EndReason, Outcome};
    use radic_wire::report::RankInfo;

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
