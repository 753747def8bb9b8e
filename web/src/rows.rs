//! The rows of nodes and ranks, as the page knows them: compared as they are, and written as JSON only when they travel.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::ids::NodeName;
use radic_wire::local::{NodeInfo, NodeState};
use radic_wire::membership::Role;
use radic_wire::partners::Overhead;
use radic_wire::process::Counters;
use radic_wire::since::{Growth, Health};
use serde::{Serialize, Serializer};

/// A checkpoint's time follows from its age, which the nodes tell at slightly different times: less than this is no other checkpoint.
const SAME: u64 = 1_500;
/// A node.
#[derive(Debug, PartialEq, Serialize)]
pub struct NodeRow {
    at: usize,
    state: &'static str,
    role: &'static str,
    ranks: usize,
    slots: u32,
    memory: u64,
    store: u64,
    protector: Option<NodeName>,
    address: SocketAddr,
}

impl NodeRow {
    /// The row of `node`, at index `at` in the list of nodes, holding `held` bytes of logs and images.
    pub fn new(at: usize, node: &NodeInfo, held: u64) -> NodeRow {
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
        NodeRow {
            at,
            state,
            role,
            ranks: node.ranks.len(),
            slots: node.slots,
            memory: rounded(node.memory),
            store: rounded(held),
            protector: node.protector.clone(),
            address: node.address,
        }
    }

    /// The same of a node that is there already; returns whether something is to be told.
    pub fn renew(&mut self, at: usize, node: &NodeInfo, held: u64) -> bool {
        let new = NodeRow::new(at, node, held);
        let differs = *self != new;
        *self = new;
        differs
    }
}

/// A rank.
#[derive(Debug, Default)]
pub struct RankRow {
    shown: Option<ShownRank>,
    /// When its last checkpoint was committed, in milliseconds since 1970.
    committed: Option<u64>,
    overhead: Overhead,
    /// Its part of the last seconds.
    part: Option<f64>,
}

#[derive(Debug, PartialEq)]
struct ShownRank {
    node: NodeName,
    does: Cow<'static, str>,
    health: u8,
    received: Option<u64>,
    sent: Option<u64>,
    outbox: u64,
    log: u64,
    images: u64,
    committed: Option<u64>,
    overhead: Option<u64>,
    checkpoints: u64,
    pid: u32,
}

impl RankRow {
    /// When its last checkpoint was committed, in milliseconds since 1970.
    pub fn committed(&self) -> Option<u64> {
        self.committed
    }

    /// Its part of the last seconds.
    pub fn part(&self) -> Option<f64> {
        self.part
    }

    /// The rank's process is so at this time of some clock and of the wall clock, and does this; returns whether something is to be told.
    pub fn renew(&mut self, at: Duration, wall_ms: u64, growth: &Growth<'_>, does: Cow<'static, str>, health: Health) -> bool {
        let process = growth.process();
        self.part = self.overhead.handle(at, process);
        let log = process.logs.first();
        let committed = log.and_then(|log| log.committed_ms).map(|age| wall_ms.saturating_sub(age));
        let is_same = |known: u64| committed.is_some_and(|at| known.abs_diff(at) < SAME);
        self.committed = self.committed.filter(|known| is_same(*known)).or(committed);
        let Counters { outbox, committed: checkpoints, .. } = process.counters.unwrap_or_default();
        let new = ShownRank {
            node: process.node.clone(),
            does,
            health: health_code(health),
            received: rate(growth.rate(|counters| counters.bytes_in)),
            sent: rate(growth.rate(|counters| counters.bytes_out)),
            outbox: rounded(outbox),
            log: rounded(log.map_or(0, |log| log.journal + log.payload)),
            images: rounded(log.map_or(0, |log| log.images)),
            committed: self.committed,
            overhead: self.part.map(per_mille),
            checkpoints,
            pid: process.pid,
        };
        let differs = self.shown.as_ref() != Some(&new);
        self.shown = Some(new);
        differs
    }
}

/// In the order that the page knows: node, what it does, health, bytes in and out a second, outbox, log, images, last checkpoint,
/// overhead in per cent, checkpoints, pid.
impl Serialize for RankRow {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let shown = self.shown.as_ref().map(|shown| {
            let ShownRank { node, does, health, received, sent, outbox, log, images, committed, overhead, checkpoints, pid } =
                shown;
            let overhead = overhead.map(|share| share as f64 / 10.0);
            (node, does, health, received, sent, outbox, log, images, committed, overhead, checkpoints, pid)
        });
        shown.serialize(to)
    }
}

fn health_code(health: Health) -> u8 {
    match health {
        Health::Good => 0,
        Health::Troubled => 1,
        Health::Gone => 2,
    }
}

/// A part as it is shown, in per cent with one digit after the point: a row changes only if that does.
pub fn per_mille(part: f64) -> u64 {
    (part * 1e3).round() as u64
}

/// A rate as it is shown.
pub fn rate(rate: Option<f64>) -> Option<u64> {
    rate.map(|rate| rounded(rate as u64))
}

/// Three digits: what is not seen need not travel.
fn rounded(value: u64) -> u64 {
    let unit = 10u64.pow(value.checked_ilog10().unwrap_or(0).saturating_sub(2));
    value / unit * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_kept() {
        let all = [0, 7, 999, 1_000, 1_234, 99_999, u64::MAX].map(rounded);
        assert_eq!(all, [0, 7, 999, 1_000, 1_230, 99_900, 18_400_000_000_000_000_000]);
        assert_eq!([0.0, 0.1234, 1.0].map(per_mille), [0, 123, 1_000]);
    }
}
