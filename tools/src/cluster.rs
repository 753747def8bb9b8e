//! `radic cluster start` and `radic cluster stop`: a whole cluster of logical nodes on this machine, and the end of one on other machines.

use std::fmt;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdout, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::poll::{PollFd, PollFlags};
use radic_protector::folder::Folder;
use radic_wire::local::{NodeState, Reply, Request};
use radic_wire::membership::Role;
use rustix::process::Signal;
use serde::Serialize;

use crate::client::{self, ClientError, Cluster};
use crate::format::{print, print_json, report};
use crate::launch::{self, Launched};
use crate::local_node::{
    Daemon, READY_LINE, StartOptions, StartedNode, Stopped, find_radicd, lock, log_path, log_tail, names_of, open_if_there,
    prepared, processes, quoted, ready_address, remove_nodes, signal, wait_or_kill,
};
use crate::record::Record;
use crate::terminal::Signals;

/// Time in which every node must be a member.
const READY: Duration = Duration::from_secs(30);
/// How often waiting says that it is waiting.
const PROGRESS: Duration = Duration::from_secs(3);
/// Where the nodes of this machine listen.
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A node that is not yet a member.
struct Starting {
    name: String,
    role: Role,
    child: Child,
    stdout: ChildStdout,
    line: Vec<u8>,
    address: Option<SocketAddr>,
}

/// Starts a cluster. If anything fails, nothing of it is left running.
pub(crate) fn start(cluster: &Cluster, options: &StartOptions<'_>) -> Result<Launched> {
    // What cannot be is refused before there is a folder for it.
    options.http_on(0)?;
    let started = prepared(cluster, || start_here(cluster, options))?;
    Ok(Launched { started, failed: Vec::new() })
}

fn start_here(cluster: &Cluster, options: &StartOptions<'_>) -> Result<Vec<StartedNode>> {
    let radicd = find_radicd()?;
    // From here on an interrupt must not leave half a cluster behind.
    let mut signals = Signals::block(None).context("cannot wait for signals")?;
    let mut started = Vec::new();
    let result = start_all(cluster, &radicd, options, &mut signals, &mut started);
    if let Err(e) = result {
        for node in &mut started {
            // A child that has ended already is fine, too.
            let _ = node.child.kill();
            let _ = node.child.wait();
        }
        return Err(e);
    }
    let finished = |node: Starting| {
        let address = node.address.ok_or_else(|| anyhow!("{} is not ready", node.name))?;
        Ok(StartedNode { name: node.name, address, role: node.role, pid: node.child.id() })
    };
    started.into_iter().map(finished).collect()
}

/// What `radic cluster start` says.
pub(crate) fn show_started(cluster: &Cluster, launched: &Launched, json: bool) -> Result<()> {
    let nodes = &launched.started;
    if nodes.len() <= 2 {
        report(&format!(
            "radic: warning: of {} nodes no majority is left when one is gone, so a death cannot be told from a broken network: \
             jobs freeze then; take 3 or more, or add --witness",
            nodes.len()
        ));
    }
    let dir = cluster.dir().display().to_string();
    if json {
        return print_json(&serde_json::json!({ "dir": dir, "nodes": nodes, "failed": launched.failed }));
    }
    let number = |role| nodes.iter().filter(|n| n.role == role).count();
    let count = |n, what: &str| if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") };
    let others = [(Role::Spare, "spare"), (Role::Witness, "witness")].into_iter().filter(|(role, _)| number(*role) > 0);
    let and_others: String = others.map(|(role, what)| format!(" and {}", count(number(role), what))).collect();
    let failed = match launched.failed.len() {
        0 => String::new(),
        n => format!(" (not started on {})", count(n, "host")),
    };
    let regular = number(Role::Node);
    // Only a node of this machine can be asked for anything.
    let there = if cluster.nodes().is_empty() { "on one of these hosts:\n\n" } else { "" };
    let text = format!(
        "cluster of {}{and_others} in {dir}{failed}\n\n{there}  export RADIC_CLUSTER={}\n  radic run -n {regular} -- PROGRAM\n  radic cluster stop\n",
        count(regular, "node"),
        quoted(&dir)
    );
    Ok(print(&text)?)
}

/// What `radic cluster stop` says.
pub(crate) fn show_stopped(stopped: &(impl Serialize + fmt::Display), json: bool) -> Result<()> {
    if json {
        return print_json(stopped);
    }
    Ok(print(&format!("{stopped}\n"))?)
}

fn start_all(
    cluster: &Cluster,
    radicd: &Path,
    options: &StartOptions<'_>,
    signals: &mut Signals,
    started: &mut Vec<Starting>,
) -> Result<()> {
    let deadline = Instant::now() + READY;
    let http = options.http_on(0)?;
    let names = (1..=options.nodes).map(|i| (format!("n{i}"), Role::Node));
    let names = names.chain((1..=options.spares).map(|i| (format!("s{i}"), Role::Spare)));
    let mut names = names.chain(options.witness.then(|| ("w1".to_owned(), Role::Witness)));
    let spawn = |number: usize, (name, role): (&str, Role), join, signals: &mut Signals| {
        let namespace = options.namespaces.get(number);
        let wanted = Daemon {
            namespace: namespace.map(|namespace| namespace.name.as_str()),
            listen: namespace.map_or(LOOPBACK, |namespace| SocketAddr::new(namespace.address, 0)),
            data: None,
            name,
            role,
            join,
            slots: options.slots,
            heartbeat_ms: options.heartbeat_ms,
            grace: options.grace,
            http,
        };
        let command = wanted.command(cluster, radicd)?;
        check_interrupt(signals)?;
        let child = signals.unblocked(|| spawn(command, name, role)).context("signals")??;
        Ok::<_, anyhow::Error>(child)
    };
    let (first, role) = names.next().context("a cluster has at least one node")?;
    started.push(spawn(0, (&first, role), None, signals)?);
    wait_ready(cluster, started, signals, deadline)?;
    let founder = started[0].address;
    // One after the other, so that the order of the ring is that of the names; each takes some milliseconds.
    for (name, role) in names {
        started.push(spawn(started.len(), (&name, role), founder, signals)?);
        wait_ready(cluster, started, signals, deadline)?;
    }
    Ok(())
}

fn spawn(mut command: Command, name: &str, role: Role) -> Result<Starting> {
    let mut child = command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let stdout = child.stdout.take().context("the pipe that was asked for")?;
    Ok(Starting { name: name.to_owned(), role, child, stdout, line: Vec::new(), address: None })
}

/// Waits until every started node has said that it is ready.
fn wait_ready(cluster: &Cluster, nodes: &mut [Starting], signals: &mut Signals, deadline: Instant) -> Result<()> {
    let mut report_at = Instant::now() + PROGRESS;
    loop {
        let waiting: Vec<usize> = (0..nodes.len()).filter(|i| nodes[*i].address.is_none()).collect();
        if waiting.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        if now >= deadline {
            let names = waiting.iter().map(|i| nodes[*i].name.as_str()).collect::<Vec<_>>().join(", ");
            let tail = log_tail(cluster, &nodes[waiting[0]].name);
            bail!("not ready within {} s: {names}\n{tail}", READY.as_secs());
        }
        if now >= report_at {
            report(&format!("radic: {} of {} nodes are ready", nodes.len() - waiting.len(), nodes.len()));
            report_at = now + PROGRESS;
        }
        let ready = {
            let mut fds = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
            fds.extend(waiting.iter().map(|i| PollFd::new(nodes[*i].stdout.as_fd(), PollFlags::POLLIN)));
            client::poll_fds(&mut fds, Some(deadline.min(report_at) - now)).context("waiting for the nodes")?;
            fds[1..].iter().map(|fd| fd.any().unwrap_or(false)).collect::<Vec<_>>()
        };
        check_interrupt(signals)?;
        for (i, _) in waiting.iter().zip(&ready).filter(|(_, ready)| **ready) {
            read_ready(cluster, &mut nodes[*i])?;
        }
    }
}

fn check_interrupt(signals: &mut Signals) -> Result<()> {
    match signals.next().context("reading signals")? {
        Some(_) => bail!("interrupted; nothing of the cluster is left running"),
        None => Ok(()),
    }
}

/// Reads what a node has to say: `ready NAME ADDRESS`, or, having failed, nothing.
fn read_ready(cluster: &Cluster, node: &mut Starting) -> Result<()> {
    let mut buffer = [0; READY_LINE];
    let read = node.stdout.read(&mut buffer).with_context(|| format!("reading from {}", node.name))?;
    node.line.extend_from_slice(&buffer[..read]);
    let whole = node.line.last() == Some(&b'\n');
    if read > 0 && !whole && node.line.len() < READY_LINE {
        return Ok(());
    }
    if !whole {
        let status = if read == 0 { node.child.wait().ok() } else { None };
        let how = status.map_or("does not say that it is ready".to_owned(), |s| format!("ended ({s})"));
        bail!(
            "{} {how}; its log, {}, ends with:\n{}",
            node.name,
            log_path(cluster, &node.name).display(),
            log_tail(cluster, &node.name)
        );
    }
    node.address = Some(ready_address(&node.name, &String::from_utf8_lossy(&node.line))?);
    Ok(())
}

/// Ends a cluster with nodes on the hosts of `record`, and every job on it.
pub(crate) fn stop_hosts(cluster: &Cluster, record: &Record) -> Result<launch::stop::StoppedHosts> {
    let folder = Folder::open(cluster.dir())?;
    let _lock = lock(&folder)?;
    let stopped = launch::stop::stop(cluster, record)?;
    // Of hosts that share this folder nothing is left in it but what could not be reached.
    remove_nodes(&folder)?;
    Record::remove(cluster.dir())?;
    Ok(stopped)
}

/// Ends every daemon of the cluster, and with them every job.
pub(crate) fn stop(cluster: &Cluster) -> Result<Stopped> {
    let is_there = cluster.nodes_dir().is_dir() || !processes(cluster).is_empty();
    ensure!(
        is_there,
        "no cluster in {}: there is nothing to stop; name another with --dir DIR or RADIC_CLUSTER",
        cluster.dir().display()
    );
    // Of a folder that was removed there is nothing to lock, and no command starts anything in it while its daemons run.
    let folder = open_if_there(cluster)?;
    let _lock = folder.as_ref().map(lock).transpose()?;
    let alive = processes(cluster);
    let names = names_of(&alive);
    let unseen: Vec<String> = names.iter().filter(|name| !cluster.node_dir(name).join("pid").exists()).cloned().collect();
    let elsewhere = match end_by_request(cluster, &names) {
        Ok(elsewhere) => elsewhere,
        // A dead cluster does not answer.
        Err(_) if alive.is_empty() => Vec::new(),
        Err(error) => {
            report(&format!("radic: {error}; ending the daemons by signal"));
            signal(&alive, Signal::TERM);
            Vec::new()
        }
    };
    let killed = wait_or_kill(alive)?;
    if let Some(folder) = &folder {
        remove_nodes(folder)?;
        if folder.is_there() {
            Record::remove(cluster.dir())?;
        }
    }
    Ok(Stopped { nodes: names.len() + elsewhere.len(), killed, elsewhere, unseen })
}

/// Asks a member to tell all to end. Those of them that are not `here`.
fn end_by_request(cluster: &Cluster, here: &[String]) -> Result<Vec<String>, ClientError> {
    let mut connection = cluster.connect(None)?;
    let status = match connection.ask(&Request::Status, client::ANSWER)? {
        Reply::Status(status) => status,
        other => return Err(connection.unexpected(&other)),
    };
    let members = status.nodes.into_iter().filter(|node| node.state == NodeState::Alive).map(|node| node.name.to_string());
    let elsewhere = members.filter(|name| !here.contains(name)).collect();
    // A connection is for one request.
    cluster.ask(&Request::Shutdown, client::ANSWER)?;
    Ok(elsewhere)
}
