//! What drives a [`Node`]: sockets, processes, signals and the clock, on one thread.
//!
//! One thread, because the node is one state machine: everything that happens becomes an [`Input`] on one queue (signs of life of
//! others on one of their own, which is read first), everything it wants becomes a call here. What may take long is done by other
//! threads: starting processes (`launcher`), sending heartbeats (`beats`), images (`restores`), logs, and looking at folders.
//! What is done here is done in slices (`rounds`).

pub mod asking;
mod beats;
mod commands;
pub mod counters;
mod deaths;
mod early;
pub mod faults;
mod folders;
mod grace;
mod group;
pub mod keeper;
mod launcher;
mod local;
mod observers;
mod orphans;
mod peers;
mod processes;
mod refusals;
mod restores;
mod rounds;
mod sockets;
mod starts;
mod stores;
mod sys;
mod wire;

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use radic_wire::event::EventName;
use radic_wire::ids::{BootId, NodeId, NodeName};
use radic_wire::key::ClusterKey;
use radic_wire::local::Request;
use radic_wire::membership::Member;
use radic_wire::peer::{PeerMessage, ToHome, ToHost};
use radic_wire::process::{ToNode, restored_socket};
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{LocalSet, spawn_local};

use self::commands::ForCommands;
use self::launcher::{Done, Launcher};
use self::local::{Clients, Connected, Handover, Reception};
use self::observers::ForObservers;
use self::peers::PeerSockets;
pub use self::processes::NOT_PERMITTED;
use self::processes::Processes;
use self::refusals::Refusals;
use self::restores::{Prepared, Restores};
use self::rounds::{Away, Cause, Rounds, SLICE};
use self::stores::Stores;
use crate::address::{self, Seeds};
use crate::config::Config;
use crate::folder::Folder;
use crate::memory;
use crate::node::host::HostEnvironment;
use crate::node::{Input, Node, NodeConfig, Output, Stop};

/// Inputs that were not handled yet. A sender of more waits.
const INPUTS: usize = 1024;
/// Signs of life that were not handled yet: one of each member that this one watches or probes.
const URGENT: usize = 256;
/// Connections that may wait to be accepted; the kernel cuts it to net.core.somaxconn.
const BACKLOG: u32 = 4096;
/// The file in the node's folder that names the protector's process.
const PID: &str = "pid";
/// Time for the names of `--join` that this node needs to be known, and between two questions.
const NAMES: Duration = Duration::from_secs(20);
const NAMES_AGAIN: Duration = Duration::from_millis(500);
/// Time that files have at the daemon's end that are read or removed just then.
const END: Duration = Duration::from_secs(5);
/// Time to hand over the last messages before the daemon ends.
const LAST_WORDS: Duration = Duration::from_millis(1000);

/// Runs a protector until it is told to end, or must.
pub fn run(config: Config) -> Result<()> {
    memory::keep();
    sys::close_inherited_at_exec();
    sys::restore_signals().context("cannot restore the signals")?;
    if let Err(error) = orphans::adopt() {
        tracing::warn!(%error, "what leaves the process group of a rank may outlive its job");
    }
    let key = ClusterKey::load(&config.key, nix::unistd::geteuid().as_raw())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    let local = LocalSet::new();
    let result = runtime.block_on(local.run_until(async {
        let mut daemon = Daemon::start(config, key).await?;
        daemon.run().await
    }));
    drop(local);
    end_runtime(runtime);
    result
}

/// Ends the runtime. What its threads wait for are reports of deaths, in the store: a disk that does not answer does not keep the daemon.
fn end_runtime(runtime: Runtime) {
    let begun = Instant::now();
    runtime.shutdown_timeout(END);
    if begun.elapsed() >= END {
        tracing::warn!("a report of a rank's death: no answer of the store's disk at this protector's end: it is not waited for");
    }
}

struct Daemon {
    node: Node,
    started: Instant,
    rounds: Rounds,
    /// A round that takes longer than this is an event.
    long: Duration,
    inputs: mpsc::Receiver<Input>,
    urgent: mpsc::Receiver<Input>,
    connected: mpsc::Receiver<Connected<ForCommands>>,
    joined: mpsc::Receiver<Connected<ForObservers>>,
    handovers: mpsc::Receiver<Handover>,
    prepared: mpsc::Receiver<Prepared>,
    done: mpsc::UnboundedReceiver<Done>,
    refusals: Rc<Refusals>,
    peers: PeerSockets,
    commands: Clients<ForCommands>,
    observers: Clients<ForObservers>,
    processes: Processes,
    stores: Stores,
    child_ended: unix::Signal,
    ready_line: String,
    folder: Arc<Folder>,
    gone: mpsc::Receiver<PathBuf>,
    /// What it needs of the system and has lost: the reason to leave the cluster.
    lost: Option<String>,
}

/// The sockets on which the daemon listens.
struct Sockets {
    /// For commands.
    control: local::Listener<ForCommands>,
    /// For processes that were started here, and for those that were brought back.
    process: local::Listener<ForObservers>,
    restored: local::Listener<ForObservers>,
    /// For other protectors.
    listener: TcpListener,
}

impl Sockets {
    fn bind(config: &Config, folder: &Folder, number: u64) -> Result<Sockets> {
        let cannot_listen = || format!("cannot listen in {}", folder.path().display());
        let control = local::bind::<ForCommands>(folder).with_context(cannot_listen)?;
        let process = local::bind::<ForObservers>(folder).with_context(cannot_listen)?;
        let listener = listen(config.listen).map_err(|error| {
            anyhow!("cannot listen on {}: {error}; give --listen an address of this machine and a free port", config.listen)
        })?;
        let restored = local::bind_abstract::<ForObservers>(&restored_socket(number));
        let restored = restored.context("cannot listen for processes that are brought back")?;
        Ok(Sockets { control, process, restored, listener })
    }
}

/// What the node knows of itself at its start.
fn node_config(
    config: &Config,
    seeds: Seeds,
    me: Member,
    environment: HostEnvironment,
    seed: u64,
    key: ClusterKey,
) -> NodeConfig {
    NodeConfig {
        me,
        environment,
        wall_us: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_micros() as u64),
        seed,
        join: seeds.join,
        found: seeds.found,
        timing: config.timing.clone(),
        memory: resident_memory,
        machine_memory: crate::machine::memory(),
        addresses,
        counters: counters::read,
        activity: counters::activity,
        replay_limit: config.replay_limit,
        refuse_fault: faults::refuse,
        http: config.http,
        key,
    }
}

impl Daemon {
    async fn start(config: Config, key: ClusterKey) -> Result<Daemon> {
        let limit = raise_descriptor_limit();
        let child_ended = signal(SignalKind::child()).context("cannot handle SIGCHLD")?;
        let (folder, store) = config.make_folders()?;
        let random = [random()?, random()?, random()?];
        let Sockets { control, process, restored, listener } = Sockets::bind(&config, &folder, random[2])?;
        let port = listener.local_addr().context("no local address")?.port();
        let address = SocketAddr::new(config.advertise, port);
        let id = NodeId { name: config.name.clone(), boot: BootId(random[0]) };
        let (input_sender, inputs) = mpsc::channel(INPUTS);
        let (urgent_sender, urgent) = mpsc::channel(URGENT);
        let stores = Stores::start(&config, key.clone(), input_sender.clone())?;
        let me = Member { id, address, data: config.data, log_port: stores.port(), role: config.role, slots: config.slots };
        let environment = host_environment(&me, folder.path())?;
        let written = folder.replace(PID)?.write_all(format!("{}\n", std::process::id()).as_bytes());
        written.with_context(|| format!("cannot write {}", folder.path().join(PID).display()))?;
        let folder = Arc::new(folder);
        let store = Arc::new(store);
        let gone = folders::watch(vec![folder.clone(), store.clone()], input_sender.clone())
            .context("cannot watch the node's folder")?;
        let seeds = seeds(&config, address).await?;
        let (timing, heartbeat) = (config.timing.clone(), config.timing.heartbeat);
        let node_config = node_config(&config, seeds, me.clone(), environment, random[1], key.clone());
        let (connected_sender, connected) = mpsc::channel(1);
        let (joined_sender, joined) = mpsc::channel(1);
        let refusals = Rc::new(Refusals::new(input_sender.clone()));
        let (handover_sender, handovers) = mpsc::channel(1);
        let started = Launcher::start(config.name.clone(), limit, random[2]);
        let (launcher, done) = started.context("the launcher gets no thread")?;
        let (gate, handover) = (Some(launcher.gate()), handover_sender.clone());
        let commands = Reception::new(input_sender.clone(), connected_sender, handover, refusals.clone(), None);
        let observers = Reception::new(input_sender.clone(), joined_sender, handover_sender, refusals.clone(), gate);
        spawn_local(local::accept(control, commands));
        spawn_local(local::accept(process, observers.clone()));
        spawn_local(local::accept(restored, observers));
        let (restores, prepared) = Restores::new(key.clone(), store);
        let leaving = Leaving { folder: folder.clone(), name: config.name.clone(), grace: config.grace };
        spawn_local(leaving.on_signal(input_sender.clone())?);
        let senders = (input_sender.clone(), urgent_sender);
        let peers = PeerSockets::start(me, key, listener, &timing, senders, refusals.clone());
        let peers = peers.context("the sender of heartbeats gets no thread")?;
        Ok(Daemon {
            rounds: Rounds::new(heartbeat),
            long: heartbeat * 2,
            started: Instant::now(),
            node: Node::new(Duration::ZERO, node_config),
            inputs,
            urgent,
            connected,
            joined,
            handovers,
            prepared,
            done,
            refusals,
            ready_line: format!("ready {} {address}", config.name),
            processes: Processes::new(input_sender, config.name, restores, launcher),
            stores,
            child_ended,
            peers,
            commands: Clients::default(),
            observers: Clients::default(),
            folder,
            gone,
            lost: None,
        })
    }

    async fn run(&mut self) -> Result<()> {
        loop {
            let mut carried = self.carry_out().await;
            if let Carried::Until(stop) = carried {
                return self.end(stop).await;
            }
            let away = self.rounds.end();
            if self.tell(away) {
                carried = Carried::Part;
            }
            // Without this the loop would go on for as long as there are inputs, and connections would wait.
            if self.rounds.is_to_yield() {
                tokio::task::yield_now().await;
            }
            let node = self.node.poll_timeout().map(|at| self.started + at);
            let deadline = node.into_iter().chain(self.processes.poll_timeout()).min();
            let timer = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let happened = tokio::select! {
                biased;
                happened = Happened::next(self, carried) => happened,
                () = timer => Happened::Nothing,
            };
            let away = self.rounds.begin(deadline);
            self.tell(away);
            self.handle_happened(happened);
            let begun = Instant::now();
            self.processes.handle_timeout(begun);
            let now = self.started.elapsed();
            if self.node.poll_timeout().is_some_and(|at| at <= now) {
                self.node.handle_timeout(now);
            }
            self.rounds.note("what was due", begun);
        }
    }

    fn handle_happened(&mut self, happened: Happened) {
        match happened {
            Happened::Connected(connected) => self.commands.add(connected),
            Happened::Joined(joined) => self.observers.add(joined),
            Happened::Handover(handover) => self.hand_over(handover),
            Happened::Done(done) => {
                let answers = self.processes.handle_done(done);
                answers.into_iter().for_each(|answer| self.handle(answer));
            }
            Happened::Prepared(prepared) => {
                let answers = self.processes.handle_prepared(prepared);
                answers.into_iter().for_each(|answer| self.handle(answer));
            }
            Happened::ChildEnded => self.processes.tend_orphans(),
            Happened::Gone(path) => self.lose_folder(&path),
            Happened::Input(input) => self.handle(input),
            Happened::Nothing => {}
        }
    }

    /// The loop was away. What kept it is logged, and becomes an event if other nodes may have noticed and it was not merely without
    /// a processor. Returns whether it becomes one.
    fn tell(&mut self, away: Option<Away>) -> bool {
        let Some(away) = away else { return false };
        tracing::debug!("the loop was {away}");
        let what = match away.cause() {
            Cause::Work => "this protector's own work kept it",
            Cause::Blocked => "a call to the kernel, or a machine that stood still, kept this protector",
            Cause::Processor => return false,
        };
        let is_event = away.took > self.long;
        if is_event {
            self.handle(Input::Note(EventName::Descheduled, format!("{what}: {away}")));
        }
        is_event
    }

    fn handle(&mut self, input: Input) {
        let (what, begun) = (rounds::of_input(&input), Instant::now());
        log_signal(&input);
        match &input {
            Input::Exited(process, status) => self.processes.handle_exited(*process, *status),
            Input::Observer(_, pid, ToNode::Live { .. }) => self.processes.handle_live(*pid),
            Input::Observer(_, pid, ToNode::Restored { process, .. }) => self.processes.handle_restored(*process, *pid),
            Input::ClientGone(client) => self.commands.handle_gone(client.0),
            Input::ObserverGone(observer) => self.observers.handle_gone(observer.0),
            _ => {}
        }
        self.node.handle(self.started.elapsed(), input);
        self.rounds.note(what, begun);
    }

    /// No command finds this protector any more, no rank that is started joins it, and nothing that is logged could be read
    /// again: as its node's death it is survived.
    fn lose_folder(&mut self, path: &Path) {
        let why = format!(
            "{} was removed, renamed or replaced while this protector ran: this node leaves the cluster; start it again with `radicd` \
             or `radic cluster start`, and end clusters with `radic cluster stop` before their folder is removed",
            path.display()
        );
        self.handle(Input::Note(EventName::Limit, why.clone()));
        self.lost = Some(why);
        self.handle(Input::Leave);
    }

    fn hand_over(&mut self, handover: Handover) {
        if let Err(refusal) = self.processes.handle_handover(handover) {
            // This is not waited for, because it becomes an input and this thread is the one that takes inputs.
            let refusals = self.refusals.clone();
            spawn_local(async move { refusals.note(refusal).await });
        }
    }

    /// Does what the node wants done, for a slice of time.
    async fn carry_out(&mut self) -> Carried {
        let slice = Instant::now();
        while let Some(output) = self.node.poll_output() {
            let (what, begun) = (rounds::of_output(&output), Instant::now());
            match output {
                Output::Send(to, message) => self.peers.send(&to, message),
                Output::SendToSeed(seed, message) => self.peers.send_to_seed(seed, &message),
                Output::Heartbeat(to, view) => self.peers.heartbeat(&to, view),
                Output::Probe(member) => self.peers.probe(member),
                Output::Reply(client, reply) => self.commands.send(client.0, reply),
                Output::CloseClient(client) => self.commands.close(client.0),
                Output::Observer(observer, message) => self.observers.send(observer.0, message),
                Output::CloseObserver(observer) => self.observers.close(observer.0),
                Output::Nudge(observer) => self.observers.nudge(observer.0),
                Output::Store(order) => self.stores.handle(order),
                Output::Process(job, output) => {
                    if let Some(answer) = self.processes.handle(job, output) {
                        self.handle(answer);
                    }
                }
                Output::Members(count) => self.peers.set_members(count),
                Output::Forget(node) => self.peers.forget(&node),
                Output::Log(event) => log(&event),
                Output::Ready(_) => {
                    self.stores.join();
                    // The command that started this daemon reads this line. It does not matter here whether it still does.
                    _ = io::stdout().write_all(format!("{}\n", self.ready_line).as_bytes());
                }
                Output::Stop(stop) => return Carried::Until(stop),
                Output::Die => self.die().await,
                Output::Fault(fault) => self.processes.cause(fault),
            }
            self.rounds.note(what, begun);
            if slice.elapsed() >= SLICE {
                return Carried::Part;
            }
        }
        Carried::All
    }

    async fn end(&mut self, stop: Stop) -> Result<()> {
        tracing::debug!(?stop, "ending");
        self.processes.kill_all();
        self.commands.close_all();
        let last_replies = async {
            while !self.commands.is_empty() {
                if let Some(Input::ClientGone(client)) = self.inputs.recv().await {
                    self.commands.handle_gone(client.0);
                }
            }
        };
        _ = tokio::time::timeout(LAST_WORDS, async { tokio::join!(last_replies, self.peers.drain()) }).await;
        tracing::debug!("last words spoken");
        // There is no one left to tell that it could not be removed.
        _ = self.folder.remove(PID);
        match stop {
            Stop::Clean => self.lost.take().map_or(Ok(()), |why| bail!(why)),
            Stop::Excluded(reason) | Stop::Refused(reason) => bail!(reason),
        }
    }

    /// The node is to die as if its power had failed: it says farewell to no node, but the command that asked gets its answer.
    async fn die(&mut self) {
        self.processes.kill_all();
        tokio::task::yield_now().await;
        _ = nix::sys::signal::raise(Signal::SIGKILL);
        // The kernel spares the first process of a container what comes from within.
        std::process::exit(128 + Signal::SIGKILL as i32);
    }
}

/// How far what the node wants was carried out.
enum Carried {
    All,
    /// The slice is over, and there is more.
    Part,
    /// It wants to end, for this reason.
    Until(Stop),
}

/// What the loop wakes up for.
enum Happened {
    Connected(Connected<ForCommands>),
    Joined(Connected<ForObservers>),
    Handover(Handover),
    Done(Done),
    Prepared(Prepared),
    ChildEnded,
    Gone(PathBuf),
    Input(Input),
    /// Only time has passed.
    Nothing,
}

impl Happened {
    /// Waits for what comes first, in this order. Cancelling it loses nothing. As long as more of what the node wants waits to be
    /// carried out, no input is taken that would add to it, and other tasks have their turn.
    async fn next(daemon: &mut Daemon, carried: Carried) -> Happened {
        let all = matches!(carried, Carried::All);
        tokio::select! {
            biased;
            Some(input) = daemon.urgent.recv() => Happened::Input(input),
            // A connection is known before what it says, and so is a process that was started.
            Some(connected) = daemon.connected.recv() => Happened::Connected(connected),
            Some(joined) = daemon.joined.recv() => Happened::Joined(joined),
            Some(done) = daemon.done.recv() => Happened::Done(done),
            Some(handover) = daemon.handovers.recv() => Happened::Handover(handover),
            Some(prepared) = daemon.prepared.recv() => Happened::Prepared(prepared),
            Some(()) = daemon.child_ended.recv() => Happened::ChildEnded,
            Some(path) = daemon.gone.recv() => Happened::Gone(path),
            () = tokio::task::yield_now(), if !all => Happened::Nothing,
            Some(input) = daemon.inputs.recv(), if all => Happened::Input(input),
        }
    }
}

/// The queue of connections that are not accepted yet is as long as the kernel allows: in a full one, a member's probe waits for
/// a second, and a flood of silent connections could pass for our death.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Time after which accepting is tried again that failed for want of descriptors or memory. These may be freed meanwhile.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The next connection.
async fn accept<T, F: Future<Output = io::Result<T>>>(what: &str, mut next: impl FnMut() -> F) -> T {
    loop {
        match next().await {
            Ok(accepted) => return accepted,
            Err(error) => tracing::warn!(%error, "cannot accept {what}"),
        }
        tokio::time::sleep(ACCEPT_AGAIN).await;
    }
}

/// How the daemon leaves when it is told to end.
struct Leaving {
    folder: Arc<Folder>,
    name: NodeName,
    grace: Duration,
}

impl Leaving {
    /// Waits for SIGTERM or SIGINT. A second one ends the grace.
    fn on_signal(self, inputs: mpsc::Sender<Input>) -> Result<impl Future<Output = ()>> {
        let mut terminate = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle SIGINT")?;
        let mut next = async move || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        Ok(async move {
            next().await;
            if !self.grace.is_zero() {
                let note = |text: String| inputs.send(Input::Note(EventName::Note, text));
                let grace = self.grace.as_secs();
                _ = note(format!("{} leaves within {grace} s: the jobs here make a checkpoint before that", self.name)).await;
                tokio::select! {
                    said = grace::checkpoint(self.folder.clone(), self.name.clone(), self.grace) => {
                        _ = note(format!("{} leaves: {said}", self.name)).await;
                    }
                    () = next() => {}
                }
            }
            loop {
                _ = inputs.send(Input::Leave).await;
                next().await;
            }
        })
    }
}

/// Logs a signal for the ranks of a job where it comes by: at the terminal's node, at the job's home, at its hosts (the last two
/// only if it comes from another node).
fn log_signal(input: &Input) {
    match input {
        Input::Client(_, Request::Signal(signal)) => tracing::debug!(signal, "a terminal passes a signal on to its job"),
        Input::Message(from, PeerMessage::ToHome(job, ToHome::Signal(signal)))
        | Input::Message(from, PeerMessage::ToHost(job, ToHost::Signal(signal))) => {
            tracing::debug!(signal, %job, %from, "a signal for the ranks of a job");
        }
        _ => {}
    }
}

fn log(event: &radic_wire::event::Event) {
    let subject = event.subject.as_ref().map(|n| n.as_str());
    let (job, rank) = (event.job.map(|j| j.to_string()), event.rank.map(|r| r.0));
    let name = event.event.as_str();
    match event.event {
        EventName::Suspect
        | EventName::Confirm
        | EventName::Descheduled
        | EventName::Frozen
        | EventName::Refused
        | EventName::Limit
        | EventName::CheckpointFailed
        | EventName::Unprotected
        | EventName::Death
        | EventName::Store => {
            tracing::warn!(event = name, subject, job, rank, "{}", event.text);
        }
        _ => tracing::info!(event = name, subject, job, rank, "{}", event.text),
    }
}

/// What the list of `--join` stands for now. A name that no server knows yet may be that of a node which is about to come.
async fn seeds(config: &Config, own: SocketAddr) -> Result<Seeds> {
    let deadline = Instant::now() + NAMES;
    loop {
        let resolved: Vec<_> = config.join.iter().map(|name| (name, name.resolve())).collect();
        let unknown = resolved.iter().filter_map(|(name, result)| Some((name, result.as_ref().err()?)));
        let list: Vec<_> = resolved.iter().map(|(_, result)| result.as_deref().unwrap_or_default().to_vec()).collect();
        let is_enough = address::is_enough(&list, own, config.bootstrap_expect);
        if unknown.clone().next().is_none() || is_enough || Instant::now() >= deadline {
            unknown.for_each(|(name, error)| tracing::warn!(%name, %error, "cannot find the address of a node to join through"));
            let seeds = address::seeds(&list, own, config.bootstrap_expect).map_err(anyhow::Error::msg)?;
            // To found a cluster because no other name is known would be wrong.
            if seeds.join.is_empty() && config.join.len() > 1 {
                bail!("none of the names given with --join has an address: correct them, or ask who runs the name service");
            }
            return Ok(seeds);
        }
        tokio::time::sleep(NAMES_AGAIN).await;
    }
}

/// What is particular to this node in the environment of its ranks.
fn host_environment(me: &Member, dir: &Path) -> Result<HostEnvironment> {
    let address = me.data;
    let carries = |a: &nix::ifaddrs::InterfaceAddress| a.address.as_ref().and_then(ip_of) == Some(address);
    let mut interfaces = nix::ifaddrs::getifaddrs().context("cannot list the network interfaces")?;
    let interface = interfaces.find(carries);
    // An address that no interface carries (behind a translation, say) leaves the libraries to their own choice of interface.
    let (iface, length) = match &interface {
        Some(found) => (found.interface_name.clone(), found.netmask.as_ref().and_then(ip_of).map(prefix_length)),
        None => (String::new(), None),
    };
    // Open MPI takes the name of an interface, or a network, which it reads as IPv4.
    let prefix = match address {
        IpAddr::V4(address) => {
            let length = length.unwrap_or(32);
            format!("{}/{length}", network(address, length))
        }
        IpAddr::V6(_) => iface.clone(),
    };
    let radicd = std::env::current_exe().context("cannot find radicd's own path")?;
    // What is no text could only be named as something else.
    let text = |path: PathBuf| {
        path.into_os_string().into_string().map_err(|path| anyhow::anyhow!("{} is no text (UTF-8)", path.display()))
    };
    let beside = |name: &str| text(radicd.with_file_name(name)).context("radicd's own folder: install it elsewhere");
    Ok(HostEnvironment {
        address,
        iface,
        prefix,
        radic_pmi: beside("libradic_pmi.so")?,
        radic_pmix: beside("libradic_pmix.so")?,
        library: beside("libradic.so")?,
        process_socket: text(dir.join(radic_wire::process::SOCKET_NAME))?,
        node: me.id.name.to_string(),
    })
}

fn ip_of(address: &nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
}

fn prefix_length(mask: IpAddr) -> u32 {
    match mask {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    }
}

/// The first address of the network that `address` is in.
fn network(address: Ipv4Addr, length: u32) -> Ipv4Addr {
    (address.to_bits() & u32::MAX.checked_shl(32 - length).unwrap_or(0)).into()
}

/// Raises our soft limit on descriptors to the hard one; returns what it was, which is what ranks get.
fn raise_descriptor_limit() -> (u64, u64) {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    (soft, hard)
}

/// Resident memory of this process, in bytes; 0 if the kernel does not tell.
fn resident_memory() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096);
    pages * page as u64
}

/// The addresses of this machine.
fn addresses() -> Vec<IpAddr> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    interfaces.filter_map(|interface| interface.address.as_ref().and_then(ip_of)).collect()
}

fn random() -> Result<u64> {
    getrandom::u64().map_err(|e| anyhow::anyhow!("no random bytes from the system: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that waits for a disk for ever.
    #[test]
    fn the_end_waits_for_no_disk_that_does_not_answer() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (goes_on, waits) = std::sync::mpsc::channel::<()>();
        let (begins, begun) = std::sync::mpsc::channel();
        runtime.spawn_blocking(move || {
            begins.send(()).unwrap();
            _ = waits.recv();
        });
        begun.recv().unwrap();
        let (ends, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            end_runtime(runtime);
            _ = ends.send(());
        });
        assert!(ended.recv_timeout(END * 4).is_ok(), "it waits for the disk");
        drop(goes_on);
    }

    #[test]
    fn networks_are_cut_at_their_length() {
        let cut = |address: &str, length| network(address.parse().unwrap(), length).to_string();
        assert_eq!(cut("127.3.2.1", 8), "127.0.0.0");
        assert_eq!((cut("10.1.2.3", 32), cut("10.1.2.3", 0)), ("10.1.2.3".into(), "0.0.0.0".into()));
        assert_eq!(prefix_length("255.255.240.0".parse().unwrap()), 20);
    }
}
