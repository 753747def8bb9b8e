//! What remains to be done when the node of a batch script is lost: the job goes on, but nothing ends its allocation after it.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use radic_wire::ids::NodeName;
use radic_wire::local::{ClusterStatus, NodeState, Reply, Request};

use crate::client::{self, Cluster};
use crate::show::report;

use super::protocol::Watch;

/// Time between two looks, once the node is lost: an event may come before what it tells can be seen.
const LOOK: Duration = Duration::from_millis(500);
/// Time for which it must be over without a break, if it is known how the jobs have ended.
const ENDED: Duration = Duration::from_secs(1);
/// The same, if no job is known. While the home of a job is lost, too, and another node takes its place, it may be that no node knows of the job; to end the
/// allocation then would end the job.
const UNKNOWN: Duration = Duration::from_secs(10);
/// Time that each node leaves to the one before it to run the command.
const TURN: Duration = Duration::from_secs(10);

/// Runs the command when it is time, as long as the protector of this node runs.
pub(crate) fn watch(cluster: &Cluster, me: &NodeName, watch: &Watch) {
    while let Some(events) = follow(cluster, me) {
        if wait_for_loss(cluster, me, watch, events) {
            return run_when_over(cluster, me, watch);
        }
    }
}

fn follow(cluster: &Cluster, me: &NodeName) -> Option<client::Connection> {
    let mut events = cluster.connect_to(me.as_str()).ok()?;
    events.send(&Request::Events { follow: true }).ok()?;
    Some(events)
}

/// Whether the node is lost; else the connection is.
fn wait_for_loss(cluster: &Cluster, me: &NodeName, watch: &Watch, mut events: client::Connection) -> bool {
    loop {
        match events.wait(None) {
            Ok(Some(_)) if status(cluster, me).is_some_and(|status| is_lost(&status, &watch.node)) => return true,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return false,
        }
    }
}

fn run_when_over(cluster: &Cluster, me: &NodeName, watch: &Watch) {
    let mut over_since = None;
    while let Some(status) = status(cluster, me) {
        match turn(&status, me, &watch.node) {
            Some(before) => {
                let since = *over_since.get_or_insert_with(Instant::now);
                let calm = if status.jobs.is_empty() { UNKNOWN } else { ENDED };
                if since.elapsed() >= calm + TURN * before && run(watch) {
                    return;
                }
            }
            None => over_since = None,
        }
        // No event tells that a node before this one does not do its part.
        std::thread::sleep(LOOK);
    }
}

fn status(cluster: &Cluster, me: &NodeName) -> Option<ClusterStatus> {
    match cluster.connect_to(me.as_str()).ok()?.ask(&Request::Status, client::ANSWER).ok()? {
        Reply::Status(status) => Some(status),
        _ => None,
    }
}

fn is_lost(status: &ClusterStatus, node: &NodeName) -> bool {
    !status.nodes.iter().any(|known| known.name == *node && matches!(known.state, NodeState::Alive | NodeState::Silent))
}

/// If it is time for the command: how many nodes are to run it before this one. A side without majority does not know.
fn turn(status: &ClusterStatus, me: &NodeName, node: &NodeName) -> Option<u32> {
    let idle = status.jobs.iter().all(|job| job.outcome.is_some()) && status.nodes.iter().all(|known| known.ranks.is_empty());
    let over = !status.frozen && is_lost(status, node) && idle;
    let mut alive = status.nodes.iter().filter(|known| known.state == NodeState::Alive);
    let before = alive.position(|known| known.name == *me)?;
    over.then_some(before as u32)
}

/// Whether that has succeeded.
fn run(watch: &Watch) -> bool {
    report(&format!("radic: {} is lost and no job runs any more: {}", watch.node, watch.command));
    let status = Command::new("sh").args(["-c", &watch.command]).stdin(Stdio::null()).stdout(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => return true,
        Ok(status) => report(&format!("radic: {}: {status}; tried again", watch.command)),
        Err(error) => report(&format!("radic: cannot run {}: {error}; tried again", watch.command)),
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_over_when_the_node_is_lost_and_nothing_runs() {
        let node = |name: &str, state: &str, ranks: serde_json::Value| {
            serde_json::json!({
                "name": name, "state": state, "role": "node", "address": "127.0.0.1:1", "slots": 1, "ranks": ranks, "protector": null,
                "memory": 0, "pid": 1
            })
        };
        let turn_of = |me: &str, first: &str, frozen: bool, ranks: serde_json::Value| {
            let nodes =
                [node("a", first, serde_json::json!([])), node("b", "alive", ranks), node("c", "alive", serde_json::json!([]))];
            let status = serde_json::json!({
                "answered_by": "b", "view": 3, "frozen": frozen, "nodes": nodes, "jobs": [], "processes": []
            });
            turn(&serde_json::from_value(status).unwrap(), &me.parse().unwrap(), &"a".parse().unwrap())
        };
        let none = || serde_json::json!([]);
        assert_eq!(turn_of("b", "dead", false, none()), Some(0));
        assert_eq!(turn_of("c", "dead", false, none()), Some(1));
        assert_eq!(turn_of("b", "alive", false, none()), None);
        assert_eq!(turn_of("b", "silent", false, none()), None, "a member that is slow to answer");
        assert_eq!(turn_of("b", "dead", true, none()), None, "it is not known");
        let rank = serde_json::json!([{ "job": "0123456789ab", "rank": 0, "pid": 9 }]);
        assert_eq!(turn_of("b", "dead", false, rank), None, "a rank runs of a job that no node knows just now");
    }
}
