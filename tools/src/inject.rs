//! `radic inject`: failures on purpose, for tests.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Subcommand;
use radic_wire::event::{Event, EventName};
use radic_wire::fault::Fault;
use radic_wire::ids::{NodeName, Rank};
use radic_wire::local::{ClusterStatus, Reply, Request};

use crate::client::{self, ClientError, Cluster, Connection, ask_status};

/// Time that the event of `--at-event` has to come.
const EVENT: Duration = Duration::from_secs(600);

#[derive(Subcommand)]
pub(crate) enum InjectCommand {
    /// Kill one rank of a job with SIGKILL: it goes on from its last checkpoint, on its own node
    #[command(after_help = "Example:\n  radic inject kill-rank 4f3c 2\n  radic events --follow\n\n\
        A rank may be killed so as often as you like. One that dies by itself four times within a minute is not brought back: it has a bug.")]
    KillRank {
        /// The job, or its first digits
        job: String,
        /// The rank
        rank: u32,
    },
    /// Kill a node: its daemon and every process it hosts, at once
    #[command(after_help = "Examples:\n  radic inject kill-node n3\n  radic inject kill-node n3 --after 2.5\n  \
        radic inject kill-node n3 --at-event checkpoint\n\n\
        The command returns when the node has been told. The events of --at-event are those of `radic events`; only one that \
        happens after the command was given counts, on any node, for any job: checkpoint, image, replay, live, ...")]
    KillNode {
        /// The node
        name: NodeName,
        /// Wait this many seconds first
        #[arg(long, value_name = "S", value_parser = parse_seconds, conflicts_with = "at_event")]
        after: Option<Duration>,
        /// As soon as the next event of this name happens; if none does within ten minutes, not at all
        #[arg(long, value_name = "EVENT", value_parser = parse_event)]
        at_event: Option<EventName>,
    },
    /// Stop a node for a while: its daemon and every process it hosts say and do nothing
    #[command(after_help = "Example:\n  radic inject pause-node n3 5\n\n\
        A node that is stopped for longer than its watcher waits is declared dead, and its ranks go on elsewhere. When it wakes up it finds \
        that out, ends its old ranks, which are fenced, and itself.")]
    PauseNode {
        /// The node
        name: NodeName,
        /// Duration in seconds
        #[arg(value_name = "S", value_parser = parse_seconds)]
        seconds: Duration,
    },
    /// Cut a node off from the network for a while: all its links are down
    #[command(after_help = "Example:\n  radic inject cut-node n3 5\n\n\
        No connection gets a reset, and the node lives on: it freezes, and ends when it hears from the others that it was declared dead. Only for \
        a node in a network namespace of its own with a daemon that runs as root; its routes to other networks do not come back with the links.")]
    CutNode {
        /// The node
        name: NodeName,
        /// Duration in seconds
        #[arg(value_name = "S", value_parser = parse_seconds)]
        seconds: Duration,
    },
}

/// `radic inject`.
pub(crate) fn inject(cluster: &Cluster, command: InjectCommand) -> Result<()> {
    match command {
        InjectCommand::KillRank { job, rank } => Ok(client::done(cluster, None, &Request::KillRank { job, rank: Rank(rank) })?),
        InjectCommand::KillNode { name, after, at_event } => kill_node(cluster, &name, after, at_event),
        InjectCommand::PauseNode { name, seconds } => cause(cluster, &name, Fault::Pause { ms: seconds.as_millis() as u64 }),
        InjectCommand::CutNode { name, seconds } => cause(cluster, &name, Fault::Cut { ms: seconds.as_millis() as u64 }),
    }
}

/// Another node is asked, if there is one: this one might not be able to answer any more.
fn cause(cluster: &Cluster, name: &NodeName, fault: Fault) -> Result<()> {
    Ok(client::done(cluster, Some(name.as_str()), &Request::Fault { name: name.clone(), fault })?)
}

fn kill_node(cluster: &Cluster, name: &NodeName, after: Option<Duration>, at_event: Option<EventName>) -> Result<()> {
    if after.is_some() || at_event.is_some() {
        // Now, not when it is too late to mend a misspelt name.
        check_alive(&ask_status(cluster)?, name)?;
    }
    if let Some(time) = after {
        std::thread::sleep(time);
    }
    let mut ready = cluster.connect(Some(name.as_str()))?;
    if let Some(event) = at_event {
        wait_for(cluster, name, event)?;
    }
    // A daemon that kills itself could not answer; where it is the only one, its silence is the answer.
    match ready.ask(&Request::KillNode { name: name.clone() }, client::ANSWER)? {
        Reply::Done => Ok(()),
        other => Err(ready.unexpected(&other).into()),
    }
}

fn check_alive(status: &ClusterStatus, name: &NodeName) -> Result<()> {
    let gone = |state| matches!(state, radic_wire::local::NodeState::Dead | radic_wire::local::NodeState::Left);
    match status.nodes.iter().find(|node| node.name == *name) {
        Some(node) if !gone(node.state) => Ok(()),
        Some(_) => bail!("{name} is gone already; `radic nodes` shows those that are alive"),
        None => bail!("there is no node {name}; `radic nodes` lists them"),
    }
}

/// What tells one event from all others: a node that comes back begins to count anew.
type Identity = (NodeName, u64, u64);

fn identity(event: &Event) -> Identity {
    (event.node.clone(), event.seq, event.at_ms)
}

/// Waits for the next event of this name.
fn wait_for(cluster: &Cluster, name: &NodeName, event: EventName) -> Result<()> {
    let deadline = Instant::now() + EVENT;
    let mut connection = cluster.connect(Some(name.as_str()))?;
    let past: HashSet<Identity> = past_events(cluster, name)?.iter().map(identity).collect();
    // Those that are followed begin with the past ones.
    connection.send(&Request::Events { follow: true })?;
    loop {
        match connection.wait(Some(deadline))? {
            Some(Reply::Events(events)) => {
                if events.iter().any(|e| e.event == event && !past.contains(&identity(e))) {
                    return Ok(());
                }
            }
            Some(Reply::Error(text)) => return Err(ClientError::Refused(text).into()),
            Some(other) => return Err(connection.unexpected(&other).into()),
            None => bail!("no event `{}` within {} s: {name} is left alone", event.as_str(), EVENT.as_secs()),
        }
    }
}

fn past_events(cluster: &Cluster, avoid: &NodeName) -> Result<Vec<Event>> {
    let mut connection: Connection = cluster.connect(Some(avoid.as_str()))?;
    connection.send(&Request::Events { follow: false })?;
    let (deadline, mut past) = (Instant::now() + client::ANSWER, Vec::new());
    loop {
        match connection.wait(Some(deadline))? {
            Some(Reply::Events(events)) => past.extend(events),
            Some(Reply::Done) => return Ok(past),
            Some(Reply::Error(text)) => return Err(ClientError::Refused(text).into()),
            Some(other) => return Err(connection.unexpected(&other).into()),
            None => return Err(ClientError::Late { node: connection.node().to_owned(), limit: client::ANSWER }.into()),
        }
    }
}

/// A time in seconds, perhaps with a fraction; an hour is enough for any test.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    seconds
        .filter(|s| (0.001..=3600.0).contains(s))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "it is a number of seconds, 0.001 to 3600".to_owned())
}

fn parse_event(text: &str) -> Result<EventName, String> {
    let known = EventName::ALL.iter().find(|event| event.as_str() == text).copied();
    known.ok_or_else(|| format!("no event has that name{}; `radic explain` lists all", crate::explain::hint(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_events_are_checked() {
        assert_eq!(parse_seconds("2.5"), Ok(Duration::from_millis(2500)));
        for bad in ["", "0", "-1", "inf", "NaN", "3601", "2s"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
        for event in [EventName::Checkpoint, EventName::Reprotected, EventName::JobEnd] {
            assert_eq!(parse_event(event.as_str()), Ok(event));
        }
        assert!(parse_event("check-point").is_err());
    }
}
