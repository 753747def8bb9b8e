//! `radic cluster start` on other machines: by ssh, or by a batch system.
//!
//! On every host an [`agent`] (`radic cluster agent`) is started, by one remote shell for each ([`ssh`], also in a job of a batch system: [`scheduler`])
//! or by one `srun` for all ([`slurm`]). It is told over its standard input what to do, line by line ([`protocol`]), and answers on its standard output. So nothing
//! but RADIC itself is needed there, and no host needs to know another's name before. The key goes only where it is not seen ([`key`]).
//!
//! [`plan::Plan`] decides which node founds the cluster and through which one each other joins it, without doing anything itself.

pub(crate) mod agent;
mod bearer;
pub(crate) mod complete;
pub(crate) mod hosts;
pub(crate) mod key;
pub(crate) mod plan;
pub(crate) mod protocol;
pub(crate) mod scheduler;
pub(crate) mod slurm;
pub(crate) mod ssh;
pub(crate) mod stop;
pub(crate) mod watch;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use radic_protector::address::Network;
use radic_protector::config::HTTP_PORT;
use radic_wire::ids::NodeName;
use radic_wire::membership::Role;

use crate::client::Cluster;
use crate::format::report;
use crate::local_node::{self, StartOptions, StartedNode};
use crate::record::{Record, Remote};

use self::bearer::Delivery;
use self::hosts::Host;
use self::key::KeyText;
use self::plan::Planned;
use self::protocol::{Order, Watch};
use self::scheduler::Scheduler;

/// Flags of `radic cluster start` that concern other machines.
#[derive(Debug, Clone, Args)]
pub(crate) struct LaunchArgs {
    /// Start one node on each of these hosts, by ssh: names with commas, or a file with one a line; NAME, NAME:SLOTS or NAME slots=N
    #[arg(long, value_name = "FILE|NAME,...", conflicts_with = "nodes")]
    pub(crate) hosts: Option<String>,
    /// Start one node on each node of this allocation of Slurm, by srun
    #[arg(long, conflicts_with_all = ["nodes", "hosts"])]
    pub(crate) slurm: bool,
    /// Start one node on each node of this job of a batch system
    #[arg(long, value_name = "SYSTEM", conflicts_with_all = ["nodes", "hosts", "slurm"])]
    pub(crate) scheduler: Option<Scheduler>,
    /// What one of the nodes left does when the node of this command is lost and no job runs any more, with the exit code of the last program in
    /// RADIC_EXIT_CODE, within 30 s, or it is killed and tried again; empty: nothing [default: the job of Slurm ends with that code; qdel or bkill of the job]
    #[arg(long, value_name = "CMD", conflicts_with_all = ["nodes", "hosts"])]
    pub(crate) when_over: Option<String>,
    /// The remote shell: a command that is given a host and what to run there. To one called ssh, options are added after its own:
    /// never ask for a password, and ConnectTimeout [default: ssh; in Grid Engine `qrsh -inherit`, in LSF blaunch]
    #[arg(long, value_name = "CMD", conflicts_with_all = ["nodes", "slurm"])]
    pub(crate) rsh: Option<String>,
    /// Send the cluster's key to hosts that have none though what starts their nodes does not encrypt (srun, qrsh, blaunch, rsh): the network is trusted
    #[arg(long, conflicts_with = "nodes")]
    pub(crate) send_key: bool,
    /// Where RADIC is on the hosts [default: where this radic is]
    #[arg(long, value_name = "DIR")]
    pub(crate) prefix: Option<PathBuf>,
    /// Time that each host has to answer, in seconds
    #[arg(long, value_name = "S", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) host_timeout: u64,
    /// The network of the processes, as 192.0.2.0/24: what ranks send each other, logs and images go over each host's address in it [default: that
    /// of the daemons]
    #[arg(long, value_name = "CIDR", conflicts_with = "nodes")]
    pub(crate) data_network: Option<Network>,
    /// The network of the daemons: each host's address in it is its node's [default: the network by which the host was reached]
    #[arg(long, value_name = "CIDR", conflicts_with = "nodes")]
    pub(crate) control_network: Option<Network>,
    /// The port of the nodes, the same on every host [default: any that is free]
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
}

impl LaunchArgs {
    /// How hosts get the key that have none.
    fn delivery(&self, is_encrypted: bool) -> Delivery {
        if is_encrypted || self.send_key { Delivery::Session } else { Delivery::Home }
    }

    /// The folder of a cluster that is started in a job of a batch system, if no other is named.
    pub(crate) fn default_dir(&self) -> Option<PathBuf> {
        match self.scheduler {
            Some(scheduler) => scheduler.default_dir(variable),
            None if self.slurm => slurm::default_dir(),
            None => None,
        }
    }
}

/// Starts a cluster on the hosts that `--hosts` names.
///
/// # Errors
/// If no node could be started, or nothing can be started from here. Hosts that fail are told on standard error and in the result.
pub(crate) fn start_hosts(cluster: &Cluster, text: &str, args: &LaunchArgs, options: &StartOptions) -> Result<Launched> {
    let planned = assign_roles(hosts::read(text)?, options)?;
    let way = Way { shell: words(args.rsh.as_deref().unwrap_or("ssh")), here: None, stays: false, watch: None };
    start_on(cluster, &planned, &way, false, args, options)
}

/// Starts a cluster on the nodes of the job around this process, of a batch system.
///
/// # Errors
/// The same, and if there is no such job.
pub(crate) fn start_batch(
    cluster: &Cluster,
    scheduler: Scheduler,
    args: &LaunchArgs,
    options: &StartOptions,
) -> Result<Launched> {
    let job = scheduler.allocation(variable)?;
    let mut planned = assign_roles(job.hosts, options)?;
    planned.iter_mut().for_each(|planned| planned.address = Some(planned.host.target.clone()));
    let own = nix::unistd::gethostname().context("cannot read the host's name")?;
    let is_here = |planned: &&Planned| scheduler::is_host(&planned.host.target, &own.to_string_lossy());
    let here = planned.iter().find(is_here).map(|planned| planned.host.name.clone());
    let watch = watch_for(here.clone(), &job.cancel, args)?;
    let way = Way { shell: words(args.rsh.as_deref().unwrap_or(job.shell)), here, stays: job.stays, watch };
    start_on(cluster, &planned, &way, true, args, options)
}

/// How hosts are reached.
pub(crate) struct Way {
    /// The words of the remote shell.
    shell: Vec<String>,
    /// The node of this host, if it needs no remote shell.
    here: Option<NodeName>,
    /// Whether remote shells are to stay as long as the nodes.
    stays: bool,
    /// What the nodes are to look for.
    watch: Option<Watch>,
}

/// What the nodes are to do when that of the script, `here`, is lost and its programs have ended.
///
/// # Errors
/// If a command is given, and this is no node of the job.
fn watch_for(here: Option<NodeName>, default: &str, args: &LaunchArgs) -> Result<Option<Watch>> {
    let Some(node) = here else {
        ensure!(
            args.when_over.is_none(),
            "--when-over: this host is no node of the job: its nodes could not see when the script is gone"
        );
        return Ok(None);
    };
    let command = args.when_over.clone().unwrap_or_else(|| default.to_owned());
    Ok((!command.trim().is_empty()).then_some(Watch { node, command }))
}

fn start_on(
    cluster: &Cluster,
    planned: &[Planned],
    way: &Way,
    batch: bool,
    args: &LaunchArgs,
    options: &StartOptions,
) -> Result<Launched> {
    let prefix = prefix(args)?;
    local_node::prepared(cluster, || {
        let (order, key) = order(cluster, args, options, planned)?;
        let order = Order { watch: way.watch.clone(), ..order };
        let launcher = ssh::Launcher::new(args, cluster, way, &prefix, (&order, key))?;
        launcher.run(planned.to_vec(), |launched| {
            record(way.shell.clone(), batch, prefix.clone(), planned, launched).write(cluster.dir())
        })
    })
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// A variable that says something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The folder of a cluster in the job of a batch system around this process, if no other is named.
pub(crate) fn default_dir() -> Option<PathBuf> {
    slurm::default_dir().or_else(Scheduler::any_default_dir)
}

/// How many ranks the job of a batch system around this process was asked to have, and the variable that says so.
pub(crate) fn tasks() -> Option<(&'static str, Result<String>)> {
    let slurm = variable(slurm::TASKS).map(|tasks| (slurm::TASKS, Ok(tasks)));
    slurm.or_else(Scheduler::any_tasks)
}

/// How much of what a command complains about is looked at, in bytes.
const COMPLAINTS: u64 = 4096;

/// The last line of a file of complaints.
fn last_complaint(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(COMPLAINTS))).ok()?;
    let mut bytes = Vec::new();
    file.take(COMPLAINTS).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) started: Vec<StartedNode>,
    pub(crate) failed: Vec<Failed>,
}

impl Launched {
    /// What came of each host, in the order of the list.
    ///
    /// # Errors
    /// If no node was started that could run programs.
    fn of(finished: impl IntoIterator<Item = (Planned, Result<plan::Ready, String>)>) -> Result<Launched> {
        let (mut started, mut failed) = (Vec::new(), Vec::new());
        for (host, result) in finished {
            let name = host.host.name.to_string();
            match result {
                Ok(ready) => started.push(StartedNode { name, address: ready.address, role: host.role, pid: ready.pid }),
                Err(why) => failed.push(Failed { host: name, why }),
            }
        }
        ensure!(started.iter().any(|node| node.role == Role::Node), "no node was started that could run programs");
        Ok(Launched { started, failed })
    }

    fn has(&self, host: &Planned) -> bool {
        self.started.iter().any(|node| node.name == host.host.name.as_str())
    }

    /// A node that was started does not stay.
    fn lose(&mut self, host: &Planned, why: String) {
        tell(host, &Err(why.clone()));
        self.started.retain(|node| node.name != host.host.name.as_str());
        self.failed.push(Failed { host: host.host.name.to_string(), why });
    }
}

/// A host on which no node runs.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Failed {
    pub(crate) host: String,
    pub(crate) why: String,
}

/// What each host is to be: the last one the witness, those before it the spares.
fn assign_roles(hosts: Vec<Host>, options: &StartOptions) -> Result<Vec<Planned>> {
    let aside = options.spares as usize + usize::from(options.witness);
    ensure!(
        hosts.len() > aside,
        "of {} hosts {aside} are to be spares or the witness: at least one more must be there to run programs",
        hosts.len()
    );
    let nodes = hosts.len() - aside;
    let role = |at: usize| match at {
        at if at < nodes => Role::Node,
        at if at < nodes + options.spares as usize => Role::Spare,
        _ => Role::Witness,
    };
    let planned =
        |(at, host): (usize, Host)| Planned { role: role(at), slots: host.slots.or(options.slots), host, address: None };
    Ok(hosts.into_iter().enumerate().map(planned).collect())
}

/// What has been started, for the end of the cluster.
fn record(shell: Vec<String>, batch: bool, prefix: PathBuf, planned: &[Planned], launched: &Launched) -> Record {
    Record { shell, batch, prefix, nodes: remotes(planned, launched) }
}

/// Those of the hosts on which a node was started.
fn remotes(planned: &[Planned], launched: &Launched) -> Vec<Remote> {
    let started = planned.iter().filter(|host| launched.started.iter().any(|node| node.name == host.host.name.as_str()));
    started.map(|host| Remote { target: host.host.target.clone(), name: host.host.name.clone() }).collect()
}

/// What every agent is told first, and the key, which it is not told.
fn order(cluster: &Cluster, args: &LaunchArgs, options: &StartOptions, planned: &[Planned]) -> Result<(Order, KeyText)> {
    // Whether it may be used is checked here, once, and not on every host.
    let key = KeyText::read(&cluster.key())?;
    let order = Order {
        version: version(),
        dir: cluster.dir().to_owned(),
        proof: key.prove(&version())?,
        port: args.port.unwrap_or(0),
        control: args.control_network,
        data: args.data_network,
        heartbeat_ms: options.heartbeat_ms,
        grace: options.grace,
        http: options.http_on(HTTP_PORT)?,
        nodes: planned.iter().map(Planned::assignment).collect(),
        watch: None,
    };
    Ok((order, key))
}

/// The folder in which RADIC is on the hosts.
fn prefix(args: &LaunchArgs) -> Result<PathBuf> {
    if let Some(prefix) = &args.prefix {
        ensure!(
            prefix.is_absolute(),
            "--prefix {}: name a folder from the root on, it is one on other machines",
            prefix.display()
        );
        return Ok(prefix.clone());
    }
    let exe = std::env::current_exe().context("cannot find radic's own path")?;
    exe.parent().map(PathBuf::from).context("radic's own path has no folder")
}

/// What both sides of a launch must have in common.
fn version() -> String {
    format!("{} (protocol {}, order {})", env!("CARGO_PKG_VERSION"), radic_wire::PROTOCOL_VERSION, protocol::FORM)
}

/// One line for each host as it is done.
fn tell(planned: &Planned, done: &Result<plan::Ready, String>) {
    let name = &planned.host.name;
    let role = match planned.role {
        Role::Node | Role::Newcomer => "",
        Role::Spare => ", a spare",
        Role::Witness => ", the witness",
    };
    match done {
        Ok(ready) => report(&format!("radic: {name}: started at {}{role}", ready.address)),
        Err(why) => report(&format!("radic: {name}: not started: {why}")),
    }
}

/// Time that a node has to be a member, after its host has answered.
const READY: Duration = Duration::from_secs(30);
