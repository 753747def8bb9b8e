//! What remains to be done when the node of a batch script is lost: the job goes on, but nothing ends its allocation after it.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use nix::poll::{PollFd, PollFlags};
use radic_protector::folder::Folder;
use radic_wire::ids::NodeName;
use radic_wire::job::JobInfo;
use radic_wire::local::{ClusterStatus, NodeState, Reply, Request};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::client::{self, Cluster};
use crate::format::report;
use crate::local_node;
use crate::outcome;

use super::complete;
use super::protocol::Watch;

/// Time between two looks, once the node is lost: an event may come before what it tells can be seen.
const LOOK: Duration = Duration::from_millis(500);
/// Time for which it must be over without a break, if it is known how the jobs have ended.
const ENDED: Duration = Duration::from_secs(1);
/// The same, if no job is known. While the home of a job is lost, too, and another node takes its place, it may be that no node knows of the job; to end the
/// allocation then would end the job.
const UNKNOWN: Duration = Duration::from_secs(10);
/// Time that each node leaves to the one before it to run the command, and to itself between two attempts.
const TURN: Duration = Duration::from_secs(10);

/// Time for the command: more than `radic cluster complete-slurm` takes for the library of Slurm and for scancel after it.
const COMMAND: Duration = Duration::from_secs(30);

/// Flags of `radic cluster watch`.
#[derive(Args)]
pub(crate) struct WatchArgs {
    /// The node that looks
    #[arg(long, value_name = "NAME")]
    name: NodeName,
    /// The node that is to be lost
    #[arg(long, value_name = "NAME")]
    lost: NodeName,
    /// The cluster's folder
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// What is run then
    command: String,
}

/// Looks, as a process of its own, for a node whose agent does not outlive the node of the script, and ends the cluster in the end.
///
/// # Errors
/// If there is no such cluster.
pub(crate) fn run_alone(args: WatchArgs) -> Result<u8> {
    // Its terminal is the connection of a remote shell, and ends.
    nix::unistd::setsid().context("this process leads a group already")?;
    let cluster = Cluster::new(Some(args.dir))?;
    watch(&cluster, &args.name, &Watch { node: args.lost, command: args.command }, true);
    Ok(0)
}

/// Starts such a process.
///
/// # Errors
/// If it cannot be started.
pub(crate) fn start_alone(cluster: &Cluster, me: &NodeName, watch: &Watch) -> Result<()> {
    let log = log(cluster, me)?;
    let mut command = Command::new(std::env::current_exe().context("cannot find radic's own path")?);
    command.args(["cluster", "watch", "--name", me.as_str(), "--lost", watch.node.as_str(), "--dir"]).arg(cluster.dir());
    command.arg("--").arg(&watch.command).current_dir("/");
    // What reads this agent's output is to see its end.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().context("cannot start radic")?;
    Ok(())
}

/// The log of the node. Where a batch system has started the agent, its own standard error may have gone with the node of the script.
fn log(cluster: &Cluster, me: &NodeName) -> Result<File> {
    Ok(Folder::open(cluster.dir())?.subfolder("nodes")?.subfolder(me.as_str())?.append("log")?)
}

/// A line in the log of the node.
fn tell(cluster: &Cluster, me: &NodeName, text: &str) {
    match log(cluster, me) {
        Ok(mut log) => _ = writeln!(log, "{text}"),
        Err(error) => report(&format!("{text}\nradic: nor can that be written to the node's log: {error:#}")),
    }
}

/// Runs the command when it is time, as long as the daemon of this node runs. `ends`: the cluster is ended, too, for the command ends no node.
pub(crate) fn watch(cluster: &Cluster, me: &NodeName, watch: &Watch, ends: bool) {
    while let Some(events) = follow(cluster, me) {
        if wait_for_loss(cluster, me, watch, events) {
            return run_when_over(cluster, me, watch, ends);
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

fn run_when_over(cluster: &Cluster, me: &NodeName, watch: &Watch, ends: bool) {
    let mut over_since = None;
    let mut pause = LOOK;
    while let Some(status) = status(cluster, me) {
        match turn(&status, me, &watch.node) {
            Some(before) => {
                let since = *over_since.get_or_insert_with(Instant::now);
                let calm = if status.jobs.is_empty() { UNKNOWN } else { ENDED };
                if since.elapsed() >= calm + TURN * before {
                    let is_done = run(cluster, me, watch, code(&status));
                    if ends {
                        return end(cluster, me);
                    }
                    if is_done {
                        return;
                    }
                    pause = TURN;
                }
            }
            None => over_since = None,
        }
        // No event tells that a node before this one does not do its part.
        std::thread::sleep(pause);
    }
}

fn end(cluster: &Cluster, me: &NodeName) {
    if let Err(error) = local_node::stop_only(cluster, me.as_str()) {
        tell(cluster, me, &format!("radic: the cluster does not end: {error:#}"));
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

/// The exit code that the script would have seen last: that of the job that has ended last, or else the first that is not 0 of those that ran beside it. None if no
/// node knows of a job.
fn code(status: &ClusterStatus) -> Option<u8> {
    let over = |job: &JobInfo| job.started_ms.saturating_add(job.elapsed_ms);
    let ended = || status.jobs.iter().filter_map(|job| Some((job, outcome::exit_code(job.outcome.as_ref()?.code))));
    let (last, code) = ended().max_by_key(|(job, _)| over(job))?;
    let beside = ended().filter(|(job, code)| *code != 0 && over(job) > last.started_ms).min_by_key(|(job, _)| over(job));
    Some(if code == 0 { beside.map_or(0, |(_, code)| code) } else { code })
}

/// Whether that has succeeded.
fn run(cluster: &Cluster, me: &NodeName, watch: &Watch, code: Option<u8>) -> bool {
    let tell = |text: &str| tell(cluster, me, text);
    tell(&format!("radic: {} is lost and no job runs any more: {}", watch.node, watch.command));
    let mut command = Command::new("sh");
    // In a group of its own: what it has started is killed with it.
    command.args(["-c", &watch.command]).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    command.stderr(log(cluster, me).map_or_else(|_| Stdio::inherit(), Stdio::from));
    match code {
        Some(code) => command.env(complete::CODE, code.to_string()),
        None => command.env_remove(complete::CODE),
    };
    match bounded(command, COMMAND) {
        Ok(Some(status)) if status.success() => return true,
        Ok(Some(status)) => tell(&format!("radic: {}: {status}; tried again", watch.command)),
        Ok(None) => {
            let seconds = COMMAND.as_secs();
            tell(&format!("radic: {}: no answer within {seconds} s, so it was killed; tried again", watch.command));
        }
        Err(error) => tell(&format!("radic: cannot run {}: {error:#}; tried again", watch.command)),
    }
    false
}

/// How a command ends that leads a group of its own. None: it has not ended within `limit`, and was killed with its group.
fn bounded(mut command: Command, limit: Duration) -> Result<Option<ExitStatus>> {
    let mut child = command.spawn()?;
    let group = Pid::from_raw(i32::try_from(child.id())?).context("a process has a number")?;
    let end = pidfd_open(group, PidfdFlags::empty())?;
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            // It has not been waited for, so the number is still its own.
            kill_process_group(group, Signal::KILL)?;
            child.wait()?;
            return Ok(None);
        }
        client::poll_fds(&mut [PollFd::new(end.as_fd(), PollFlags::POLLIN)], Some(left))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What it has started goes with it: the pipe that both hold ends.
    #[test]
    fn a_command_that_hangs_is_killed_and_what_it_has_started() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & wait"]).stdout(writer).process_group(0);
        let begun = Instant::now();
        assert!(bounded(command, Duration::from_millis(200)).unwrap().is_none());
        std::io::Read::read_to_end(&mut reader, &mut Vec::new()).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(20), "it took {:?}", begun.elapsed());
        let mut command = Command::new("sh");
        command.args(["-c", "exit 3"]).process_group(0);
        assert_eq!(bounded(command, Duration::from_secs(20)).unwrap().unwrap().code(), Some(3));
    }

    #[test]
    fn the_code_is_that_of_the_last_job_and_of_those_beside_it() {
        let code_of = |jobs: &[(u64, u64, Option<i32>)]| {
            let job = |(started, elapsed, code): &(u64, u64, Option<i32>)| {
                let outcome = code.map(|code| serde_json::json!({ "code": code, "reason": "finished" }));
                serde_json::json!({
                    "job": "0123456789ab", "command": "p", "ranks": 1, "running": 0, "degraded": [], "nodes": ["b"], "home": "b",
                    "started_ms": started, "elapsed_ms": elapsed, "payload": "log", "outcome": outcome
                })
            };
            let status = serde_json::json!({
                "answered_by": "b", "view": 3, "frozen": false, "nodes": [], "jobs": jobs.iter().map(job).collect::<Vec<_>>(), "processes": []
            });
            code(&serde_json::from_value(status).unwrap())
        };
        assert_eq!(code_of(&[]), None);
        assert_eq!(code_of(&[(0, 10, None)]), None);
        assert_eq!(code_of(&[(0, 10, Some(0))]), Some(0));
        assert_eq!(code_of(&[(20, 10, Some(256)), (0, 10, Some(0))]), Some(1), "a failure never becomes a 0");
        assert_eq!(code_of(&[(0, 10, Some(3)), (20, 10, Some(0))]), Some(0), "the script went on after the first");
        assert_eq!(code_of(&[(0, 10, Some(3)), (5, 10, Some(0)), (6, 8, Some(4))]), Some(3), "they ran at once");
        assert_eq!(code_of(&[(0, 10, Some(3)), (5, 10, Some(7))]), Some(7));
    }

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
