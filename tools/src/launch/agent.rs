//! `radic cluster agent`: starts the daemon on one host for a launcher on another one, which speaks to it over standard input and output.
//!
//! If standard input ends before the launcher has said that the node is to stay, nothing is left: a launcher that is interrupted, or loses
//! its connection, leaves no half of a cluster behind.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::process::{Child, ChildStdout, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use radic_protector::folder::Folder;
use radic_wire::ids::NodeName;

use crate::client::Cluster;
use crate::local_node::{self, Daemon};

use super::key::KeyText;
use super::protocol::{self, Assignment, Go, LINE, Order, Said, Watch, What};
use super::{READY, version, watch};

/// Time that the launcher has for its next word: longer than it may wait for a host.
const PATIENCE: Duration = Duration::from_secs(660);
/// Lines that wait to be handled.
const QUEUE: usize = 16;

/// Flags of `radic cluster agent`.
#[derive(Args)]
pub(crate) struct AgentArgs {
    /// The node to start
    #[arg(long, value_name = "NAME", required_unless_present = "slurm")]
    name: Option<NodeName>,
    /// Start the node with the name that Slurm says, and stay as long as it does
    #[arg(long, conflicts_with = "name")]
    slurm: bool,
    /// Stay as long as the node does
    #[arg(long)]
    stay: bool,
}

/// What happens to an agent.
enum Event {
    /// The launcher has said something.
    Line(String),
    /// It has gone.
    End,
    /// The daemon has said this; nothing: it has ended.
    Daemon(String),
    /// The daemon has ended, after it was to stay.
    Over(io::Result<ExitStatus>),
}

/// Runs an agent. The result is the exit code.
///
/// # Errors
/// Only if the launcher cannot be told what is wrong.
pub(crate) fn run(args: &AgentArgs) -> Result<u8> {
    let name = match &args.name {
        Some(name) => name.clone(),
        None => std::env::var("SLURMD_NODENAME").context("SLURMD_NODENAME is not set: this is no task of Slurm")?.parse()?,
    };
    let (sender, events) = sync_channel(QUEUE);
    let agent = Agent { name, is_of_slurm: args.slurm, stays: args.slurm || args.stay, events };
    listen(io::stdin(), sender.clone());
    match agent.start(sender) {
        Ok(code) => Ok(code),
        Err(error) => {
            agent.say(What::Failed(format!("{error:#}")))?;
            Ok(1)
        }
    }
}

struct Agent {
    name: NodeName,
    is_of_slurm: bool,
    /// Whether it ends with its daemon only.
    stays: bool,
    events: Receiver<Event>,
}

impl Agent {
    /// The result is the exit code.
    fn start(&self, sender: SyncSender<Event>) -> Result<u8> {
        let order = self.hear_order()?;
        let own = order.nodes.iter().find(|node| node.name == self.name);
        let own = own.with_context(|| format!("the order has no node {}", self.name))?;
        let cluster = Cluster::new(Some(order.dir.clone()))?;
        let folder = prepare(&cluster, own)?;
        self.have_key(&cluster, &folder, &order)?;
        let address = own_address(own, &order)?;
        self.say(What::Here(address))?;
        let join = self.hear_start()?;
        let wanted = Daemon {
            namespace: None,
            name: own.name.as_str(),
            role: own.role,
            listen: SocketAddr::new(address, order.port),
            data: order.data,
            join,
            slots: own.slots.or_else(|| if self.is_of_slurm { slots_of_slurm() } else { None }),
            heartbeat_ms: order.heartbeat_ms,
            grace: order.grace,
            http: order.http,
        };
        let mut command = wanted.command(&cluster, &local_node::find_radicd()?)?;
        let mut child = command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?;
        if let Err(error) = self.see_to(&cluster, &mut child, sender.clone()) {
            // One that has ended already is fine, too.
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        let mut watch = order.watch;
        // Other batch systems end an agent when the node of the script is lost.
        if let Some(watch) = watch.take_if(|_| !self.is_of_slurm) {
            watch::start_alone(&cluster, &self.name, &watch)?;
        }
        if self.stays { self.stay(cluster, child, watch, sender) } else { Ok(0) }
    }

    /// Waits for the end of the daemon. The result is its exit code.
    fn stay(&self, cluster: Cluster, mut child: Child, watch: Option<Watch>, sender: SyncSender<Event>) -> Result<u8> {
        thread::spawn(move || sender.send(Event::Over(child.wait())));
        if let Some(watch) = watch {
            let name = self.name.clone();
            thread::spawn(move || watch::watch(&cluster, &name, &watch, false));
        }
        loop {
            // The launcher has gone, and its standard output with it.
            if let Event::Over(status) = self.events.recv().context("nothing can be heard any more")? {
                return Ok(status?.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
            }
        }
    }

    /// Waits until the daemon is a member, and is to stay.
    fn see_to(&self, cluster: &Cluster, child: &mut Child, sender: SyncSender<Event>) -> Result<()> {
        let stdout = child.stdout.take().context("the pipe that was asked for")?;
        thread::spawn(move || watch(stdout, sender));
        let name = self.name.as_str();
        let deadline = Instant::now() + READY;
        let line = loop {
            match self.event(deadline.saturating_duration_since(Instant::now()))? {
                Some(Event::Daemon(line)) => break line,
                // One launcher may speak to all its agents at once.
                Some(Event::Line(_)) => {}
                Some(Event::End | Event::Over(_)) => bail!("the launcher has gone"),
                None => {
                    bail!(
                        "not a member within {} s; its log ends with:\n{}",
                        READY.as_secs(),
                        local_node::log_tail(cluster, name)
                    )
                }
            }
        };
        ensure!(
            !line.is_empty(),
            "its radicd ended; its log, {}, ends with:\n{}",
            local_node::log_path(cluster, name).display(),
            local_node::log_tail(cluster, name)
        );
        self.say(What::Ready { address: local_node::ready_address(name, &line)?, pid: child.id() })?;
        while self.hear::<Go>("that the node is to stay")? != Go::Keep {}
        self.say(What::Kept)
    }

    /// An order of another release may have another form: which one it is of is looked at first.
    fn hear_order(&self) -> Result<Order> {
        let order: serde_json::Value = self.hear("its order")?;
        let not_understood = "an order that is not understood: are both sides of one release?";
        let given = order["version"].as_str().context(not_understood)?;
        ensure!(given == version(), "RADIC {} is installed there, and {given} gives the order: install one release", version(),);
        serde_json::from_value(order).context(not_understood)
    }

    /// Sees that the key with which the order was given is in the cluster's folder.
    fn have_key(&self, cluster: &Cluster, folder: &Folder, order: &Order) -> Result<()> {
        let path = cluster.key();
        let fits = |key: &KeyText| key.fits(&order.proof, &order.version);
        if !path.exists() {
            self.say(What::NeedsKey)?;
            let key = self.hear_key(&path, order)?;
            ensure!(fits(&key), "the launcher has given another key than that of its order");
            put_key(cluster, folder, &key)?;
        }
        ensure!(
            fits(&KeyText::read(&path)?),
            "there is another key in {} already: move it away if no cluster and no suspended job needs it, or take another --dir",
            path.display()
        );
        Ok(())
    }

    fn hear_key(&self, missing: &Path, order: &Order) -> Result<KeyText> {
        loop {
            match self.hear("the key")? {
                Go::Key(key) => return Ok(key),
                Go::KeyAtHome => return order.proof.key_at_home(missing),
                // One launcher may speak to all its agents at once.
                Go::Found(_) | Go::Join(..) => {}
                Go::Keep => bail!("the launcher spoke out of turn"),
            }
        }
    }

    fn hear_start(&self) -> Result<Option<SocketAddr>> {
        loop {
            match self.hear("how to start")? {
                Go::Found(name) if name == self.name => return Ok(None),
                Go::Join(names, address) if names.contains(&self.name) => return Ok(Some(address)),
                // One launcher may speak to all its agents at once.
                Go::Found(_) | Go::Join(..) | Go::Key(_) | Go::KeyAtHome => {}
                Go::Keep => bail!("the launcher spoke out of turn"),
            }
        }
    }

    /// The launcher's next word.
    fn hear<T: serde::de::DeserializeOwned>(&self, what: &str) -> Result<T> {
        loop {
            match self.event(PATIENCE)? {
                Some(Event::Line(line)) => {
                    if let Some(message) = protocol::parse(&line)? {
                        return Ok(message);
                    }
                }
                Some(Event::Daemon(_) | Event::Over(_)) => bail!("radicd ended while the launcher was to say {what}"),
                Some(Event::End) => bail!("the launcher has gone before it said {what}"),
                None => bail!("the launcher did not say {what} within {} s", PATIENCE.as_secs()),
            }
        }
    }

    fn event(&self, limit: Duration) -> Result<Option<Event>> {
        match self.events.recv_timeout(limit) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(anyhow!("nothing can be heard any more")),
        }
    }

    fn say(&self, what: What) -> Result<()> {
        let line = protocol::line(&Said { name: self.name.clone(), what })?;
        let mut stdout = io::stdout().lock();
        stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush()).context("the launcher does not listen")
    }
}

/// Hands on what the launcher says, in a thread of its own, which ends with this process.
fn listen(input: impl Read + Send + 'static, sender: SyncSender<Event>) {
    thread::spawn(move || {
        let mut input = BufReader::new(input);
        loop {
            let mut line = String::new();
            let read = input.by_ref().take(LINE as u64).read_line(&mut line);
            let end = !matches!(read, Ok(1..)) || !line.ends_with('\n');
            let sent = sender.send(if end { Event::End } else { Event::Line(line) });
            if end || sent.is_err() {
                return;
            }
        }
    });
}

/// Hands on the one line that a daemon says. Nothing reads what it might say later.
fn watch(stdout: ChildStdout, sender: SyncSender<Event>) {
    let mut line = String::new();
    // What cannot be read is as good as not said.
    let _ = BufReader::new(stdout.take(LINE as u64)).read_line(&mut line);
    let _ = sender.send(Event::Daemon(line));
}

/// The cluster's folder, with nothing of an old node of this name in it.
fn prepare(cluster: &Cluster, own: &Assignment) -> Result<Folder> {
    cluster.check_text()?;
    let folder = Folder::make_all(cluster.dir())?;
    let runs = local_node::processes(cluster).into_iter().find(|process| process.name == own.name.as_str());
    ensure!(
        runs.is_none(),
        "a daemon runs there already as node {}, in {dir}: end it with `radic cluster stop --dir {dir}` there, or take another --dir",
        own.name,
        dir = cluster.dir().display()
    );
    local_node::remove_node(&folder, own.name.as_str()).context("an old node has left something")?;
    Ok(folder)
}

/// Writes the key, whole or not at all: other agents may do the same in a folder that they share.
fn put_key(cluster: &Cluster, folder: &Folder, key: &KeyText) -> Result<()> {
    let path = cluster.key();
    let host = nix::unistd::gethostname().unwrap_or_default();
    // Hosts that share the folder may have processes of the same number.
    let new = format!("key.{}.{}", host.to_string_lossy(), std::process::id());
    folder.replace(&new)?.write_all(key.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    let linked = fs::hard_link(cluster.dir().join(&new), &path);
    folder.remove(&new)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("cannot write {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// The address by which others reach this host: the one that the launcher knows, the one by which it has come here, or that of the host's own
/// name.
fn own_address(own: &Assignment, order: &Order) -> Result<IpAddr> {
    if let Some(network) = order.control {
        let found = own_addresses().into_iter().find(|ip| network.contains(*ip));
        return found
            .with_context(|| format!("no interface of this host has an address in {network}, the network of --control-network"));
    }
    if let Some(name) = &own.address {
        return match resolve(name)? {
            // As Debian has it in /etc/hosts for a host's own name.
            loopback if loopback.is_loopback() && name.parse::<IpAddr>().is_err() => {
                Ok(towards_others(own, order).unwrap_or(loopback))
            }
            address => Ok(address),
        };
    }
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    if let Some(address) = connection.split(' ').nth(2).and_then(|text| text.parse().ok()) {
        return Ok(address);
    }
    let host = nix::unistd::gethostname().context("cannot read the host's name")?;
    resolve(&host.to_string_lossy())
}

/// The address from which this host reaches another one of the cluster.
fn towards_others(own: &Assignment, order: &Order) -> Option<IpAddr> {
    let other = order.nodes.iter().filter(|node| node.name != own.name).find_map(|node| resolve(node.address.as_ref()?).ok())?;
    let any: IpAddr = if other.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Nothing is sent: the kernel looks for the way there.
    socket.connect((other, 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|address| !address.is_loopback())
}

/// The processors of this step on this node, for tasks of as many as the user has asked for.
fn slots_of_slurm() -> Option<u32> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok().filter(|number| *number > 0);
    number("SLURM_CPUS_ON_NODE").map(|cpus| (cpus / number("SLURM_CPUS_PER_TASK").unwrap_or(1)).max(1))
}

/// An address of this host that has this name.
fn resolve(name: &str) -> Result<IpAddr> {
    if let Ok(address) = name.parse() {
        return Ok(address);
    }
    let found = (name, 0).to_socket_addrs().with_context(|| format!("cannot find the address of {name}"))?;
    let found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    let own = own_addresses();
    let fits = |address: &&IpAddr| own.contains(address) && !address.is_loopback();
    let fitting = found.iter().find(fits).or_else(|| found.first());
    fitting.copied().with_context(|| format!("{name} has no address"))
}

/// The addresses of this host's interfaces.
fn own_addresses() -> Vec<IpAddr> {
    getifaddrs().into_iter().flatten().filter_map(|interface| ip_of(interface.address.as_ref()?)).collect()
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
}
