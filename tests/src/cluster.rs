//! A cluster for one test.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use radic_wire::local::{ClusterStatus, NodeInfo, NodeState};
use rustix::process::Signal;

use crate::client::{Client, Events};
use crate::command::{Finished, Invocation, Running, tail};
use crate::frames::Switch;
use crate::leftovers::{ClusterDir, SharedMemory};
use crate::namespace;
use crate::netns::{self, Network};
use crate::process::{self, MARK, Process};
use crate::sockets;

/// Time that a protector has to become a member.
const READY: Duration = Duration::from_secs(20);
/// Time in which everything must be gone after the end.
const GONE: Duration = Duration::from_secs(5);

/// What the nodes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Protectors that share this machine's loopback address, started by `radic cluster start`.
    Logical,
    /// Protectors with addresses of their own, each in a network namespace.
    Namespaces,
}

impl Kind {
    /// The kinds that are possible here. Why one is not is printed.
    pub fn all() -> Vec<Kind> {
        match namespace::available() {
            Ok(()) => vec![Kind::Logical, Kind::Namespaces],
            Err(why) => {
                println!("SKIPPED: no nodes in network namespaces: {why}");
                vec![Kind::Logical]
            }
        }
    }
}

/// What a cluster is to be like.
#[derive(Debug, Clone)]
pub struct Setup {
    /// What the nodes are.
    pub kind: Kind,
    /// How many, named n1, n2, ...
    pub nodes: usize,
    /// Spares, named s1, s2, ...
    pub spares: usize,
    /// Whether there is a witness, named w1.
    pub witness: bool,
    /// Slots of each, if not the default.
    pub slots: Option<u32>,
    /// Seconds for checkpoints before a node leaves, if not none. Of logical nodes only.
    pub grace: Option<u32>,
    /// Whether the switch between nodes in namespaces is the test's own, which can be a bad one.
    pub frames: bool,
}

impl Setup {
    /// Nodes of a kind.
    pub fn new(kind: Kind, nodes: usize) -> Self {
        Setup { kind, nodes, spares: 0, witness: false, slots: None, grace: None, frames: false }
    }

    /// With so many spares.
    pub fn spares(self, spares: usize) -> Self {
        Setup { spares, ..self }
    }

    /// With a witness.
    pub fn witness(self) -> Self {
        Setup { witness: true, ..self }
    }

    /// On a switch of the test's own.
    pub fn frames(self) -> Self {
        Setup { frames: true, ..self }
    }

    /// With so many seconds of grace.
    pub fn grace(self, seconds: u32) -> Self {
        Setup { grace: Some(seconds), ..self }
    }

    /// With so many slots each.
    pub fn slots(self, slots: u32) -> Self {
        Setup { slots: Some(slots), ..self }
    }

    /// Starts the cluster.
    pub fn start(self) -> Cluster {
        let mut cluster = match (self.kind, self.frames) {
            (Kind::Namespaces, true) => Cluster::with(ClusterDir::new(), Some(Network::of_frames())),
            (kind, _) => Cluster::empty(kind),
        };
        match self.kind {
            Kind::Logical => cluster.start_logical(&self),
            Kind::Namespaces => cluster.start_namespaces(&self),
        }
        cluster
    }
}

/// A running cluster. When it is dropped everything of it is ended and removed; if that is because the test fails, the nodes' logs
/// are shown first.
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order: the daemons, whatever else is marked, the network.
    daemons: Vec<(String, Running)>,
    shared_memory: SharedMemory,
    dir: ClusterDir,
    network: Option<(Network, Vec<String>)>,
}

/// The path of one of the workspace's programs, as a release build has put it beside the folder of the tests.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a running program has a path");
    let path = test.ancestors().nth(3).expect("tests are in deps/ of a profile's folder").join("release").join(name);
    assert!(path.is_file(), "{} is missing: run `cargo build --release --workspace` (or `make test`)", path.display());
    path
}

impl Cluster {
    /// A cluster of this kind, ready for use.
    pub fn start(kind: Kind, nodes: usize) -> Self {
        Setup::new(kind, nodes).start()
    }

    /// No node yet.
    pub fn empty(kind: Kind) -> Self {
        let dir = ClusterDir::new();
        let network = (kind == Kind::Namespaces).then(|| Network::new(dir.path()));
        Cluster::with(dir, network)
    }

    fn with(dir: ClusterDir, network: Option<Network>) -> Self {
        let network = network.map(|network| (network, Vec::new()));
        Cluster { daemons: Vec::new(), shared_memory: SharedMemory::now(), dir, network }
    }

    fn start_logical(&mut self, setup: &Setup) {
        let (nodes, spares) = (setup.nodes.to_string(), setup.spares.to_string());
        let slots = setup.slots.map(|slots| format!("--slots={slots}"));
        let args = ["cluster", "start", "--nodes", &nodes, "--spares", &spares];
        let witness = setup.witness.then_some("--witness");
        let grace = setup.grace.map(|seconds| format!("--grace={seconds}"));
        let flags = [slots.as_deref(), grace.as_deref(), witness].into_iter().flatten();
        self.radic(args.into_iter().chain(flags)).limit(Duration::from_secs(40)).run().expect(0);
    }

    fn start_namespaces(&mut self, setup: &Setup) {
        self.make_key();
        let names = (1..=setup.nodes).map(|i| (format!("n{i}"), None));
        let names = names.chain((1..=setup.spares).map(|i| (format!("s{i}"), Some("--spare"))));
        let names = names.chain(setup.witness.then(|| ("w1".to_owned(), Some("--witness"))));
        let slots = setup.slots.map(|slots| format!("--slots={slots}"));
        for (name, role) in names {
            let extra: Vec<&str> = role.into_iter().chain(slots.as_deref()).collect();
            self.start_node(&name, &extra);
        }
    }

    /// Makes the cluster's key, if there is none.
    pub fn make_key(&self) {
        let key = self.dir().join("key");
        if !key.exists() {
            self.radic(["key".as_ref(), key.as_os_str()]).run().expect(0);
        }
    }

    /// Starts one more protector, or one that was there before, and waits until it is a member. It joins through any member; the
    /// first one founds the cluster.
    pub fn start_node(&mut self, name: &str, extra: &[&str]) {
        self.start_node_under(&[], name, extra);
    }

    /// The same, under a command that executes what follows it.
    pub fn start_node_under(&mut self, wrapper: &[&str], name: &str, extra: &[&str]) {
        self.daemons.retain(|(known, _)| known != name);
        let mut daemon = self.spawn_node_under(wrapper, name, extra);
        let ready = format!("ready {name} ");
        daemon.until(&format!("{name} to be a member"), |out, _| out.starts_with(&ready).then_some(()));
        self.daemons.push((name.to_owned(), daemon));
    }

    /// Starts a protector and returns at once; its log is the node's own, as that of all others.
    pub fn spawn_node(&mut self, name: &str, extra: &[&str]) -> Running {
        self.spawn_node_under(&[], name, extra)
    }

    fn spawn_node_under(&mut self, wrapper: &[&str], name: &str, extra: &[&str]) -> Running {
        let join = self.address_of_a_member();
        let (prefix, address) = self.place(name);
        let log = self.open_log(name).unwrap_or_else(|error| panic!("the log of {name}: {error}"));
        let prefix = prefix.into_iter().chain(wrapper.iter().map(Into::into));
        let words: Vec<_> = prefix.chain([program("radicd").into_os_string()]).collect();
        let daemon = self.invocation(&words[0]).args(&words[1..]).args(["--dir".as_ref(), self.dir().as_os_str()]);
        let listen = (!extra.iter().any(|flag| flag.starts_with("--listen="))).then(|| format!("--listen={address}:0"));
        let daemon = daemon.args(["--name", name]).args(listen).args(join.map(|at| format!("--join={at}"))).args(extra);
        daemon.limit(READY).start_with_stderr(Stdio::from(log))
    }

    fn address_of_a_member(&self) -> Option<String> {
        let asked = self.node_names().into_iter().find_map(|node| self.client(&node).ok()?.status().ok());
        let member = |node: &&NodeInfo| node.state == NodeState::Alive;
        asked?.nodes.iter().find(member).map(|node| node.address.to_string())
    }

    /// Where a node runs: what to put before its command, and the address it has there.
    fn place(&mut self, name: &str) -> (Vec<std::ffi::OsString>, String) {
        let Some((network, names)) = &mut self.network else { return (Vec::new(), "127.0.0.1".into()) };
        let number = names.iter().position(|known| known == name).unwrap_or_else(|| {
            names.push(name.to_owned());
            network.add(self.dir.path())
        });
        (network.enter(number), netns::address(number).to_string())
    }

    /// The namespace in which a node runs or will run, and its address there.
    ///
    /// # Panics
    /// If nodes are logical.
    pub fn namespace(&mut self, name: &str) -> (PathBuf, std::net::Ipv4Addr) {
        self.place(name);
        let (network, names) = self.network.as_ref().expect("only nodes in namespaces have one");
        let number = names.iter().position(|known| known == name).expect("it has its place");
        (format!("/proc/{}/ns/net", network.holders()[number]).into(), netns::address(number))
    }

    /// Connects a node that is yet to be started to a second network.
    ///
    /// # Panics
    /// If nodes are logical.
    pub fn add_second_network(&mut self, name: &str) {
        self.place(name);
        let (network, names) = self.network.as_ref().expect("only nodes in namespaces have one");
        network.add_second(names.iter().position(|known| known == name).expect("it has its place"));
    }

    /// Pulls a node's cable of one of two networks, or puts it back.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn set_cable_of(&self, which: netns::Which, node: &str, plugged: bool) {
        let (network, names) = self.network.as_ref().expect("only nodes in namespaces have cables");
        network.set_cable_of(which, names.iter().position(|known| known == node).expect("a node's name"), plugged);
    }

    fn open_log(&self, name: &str) -> io::Result<File> {
        let dir = self.node_dir(name);
        fs::create_dir_all(&dir)?;
        // As radicd itself would make it: no other user may enter.
        fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        OpenOptions::new().append(true).create(true).open(dir.join("log"))
    }

    /// The cluster's directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A node's own directory.
    pub fn node_dir(&self, name: &str) -> PathBuf {
        self.dir().join("nodes").join(name)
    }

    /// The store of a node that runs, as its protector sees it: it may have mounted something there.
    pub fn store(&self, name: &str) -> PathBuf {
        let dir = self.node_dir(name).join("store");
        Path::new("/proc").join(self.protector(name).pid().to_string()).join("root").join(dir.strip_prefix("/").unwrap_or(&dir))
    }

    /// The names of all nodes that were ever started.
    pub fn node_names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir().join("nodes")).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_by_key(|name| (name.len(), name.clone()));
        names
    }

    /// A node's log.
    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.node_dir(name).join("log")).unwrap_or_default()
    }

    /// A program that belongs to the cluster: marked, and with RADIC_CLUSTER set.
    pub fn invocation(&self, program: impl AsRef<std::ffi::OsStr>) -> Invocation {
        let mut invocation = Invocation::new(program);
        for variable in [
            "NAME",
            "LISTEN",
            "ADVERTISE",
            "JOIN",
            "KEY",
            "SPARE",
            "SLOTS",
            "HEARTBEAT_MS",
            "MISSED",
            "LOG_MEMORY",
            "LOG",
            "CONFIG",
            "HTTP",
        ] {
            invocation = invocation.env_remove(format!("RADIC_{variable}"));
        }
        invocation.env(MARK, self.dir()).env("RADIC_CLUSTER", self.dir())
    }

    /// A `radic` command on this cluster.
    pub fn radic<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Invocation {
        self.invocation(program("radic")).args(args)
    }

    /// A `radic` command that runs on this node, and can reach the network of the nodes.
    pub fn radic_on<S: AsRef<std::ffi::OsStr>>(&mut self, node: &str, args: impl IntoIterator<Item = S>) -> Invocation {
        let words: Vec<_> = self.place(node).0.into_iter().chain([program("radic").into_os_string()]).collect();
        self.invocation(&words[0]).args(&words[1..]).args(args)
    }

    /// `radic run -n RANKS FLAGS -- COMMAND`. The flags are words separated by blanks.
    pub fn job(&self, ranks: usize, flags: &str, command: &[&str]) -> Invocation {
        let ranks = ranks.to_string();
        self.radic(["run", "-n", &ranks]).args(flags.split_whitespace()).args(["--"]).args(command)
    }

    /// A connection to the protector of one given node.
    pub fn client(&self, node: &str) -> io::Result<Client> {
        Client::connect(&self.node_dir(node))
    }

    /// The state of the cluster as a node sees it.
    pub fn status_at(&self, node: &str) -> ClusterStatus {
        self.client(node).and_then(Client::status).unwrap_or_else(|error| panic!("status at {node}: {error}"))
    }

    /// The state of the cluster, by `radic status --json`.
    pub fn status(&self) -> ClusterStatus {
        let finished = self.radic(["status", "--json"]).run().expect(0);
        serde_json::from_slice(finished.bytes()).unwrap_or_else(|error| panic!("{error} in {finished}"))
    }

    /// Follows events at a node.
    pub fn events_at(&self, node: &str) -> Events {
        self.client(node).and_then(Events::follow).unwrap_or_else(|error| panic!("events at {node}: {error}"))
    }

    /// The protector of a node.
    pub fn protector(&self, node: &str) -> Process {
        let pid = fs::read_to_string(self.node_dir(node).join("pid")).ok().and_then(|pid| pid.trim().parse().ok());
        let process = pid.and_then(Process::open).unwrap_or_else(|| panic!("{node} does not run"));
        let value = process::variable(process.pid(), MARK);
        assert!(
            value.is_some_and(|v| Path::new(&*String::from_utf8_lossy(&v)) == self.dir()),
            "the pid of {node} is a stranger's"
        );
        process
    }

    /// Kills a node's protector, and with it the node.
    pub fn kill(&self, node: &str) {
        self.protector(node).signal(Signal::KILL);
    }

    /// Kills all that runs on a node, as the end of its machine does. Logical nodes are killed by their protector; of one in a namespace every process is
    /// killed, in the order in which they are found, but for the one that then removes what is left in shared memory: it stands for the machine's memory.
    pub fn kill_all_of(&self, node: &str) {
        if self.network.is_none() {
            return drop(self.radic(["inject", "kill-node", node]).run().expect(0));
        }
        let processes = self.processes_of(node);
        processes.iter().filter(|process| !is_keeper(process.pid())).for_each(|process| process.signal(Signal::KILL));
    }

    /// What runs in the namespace of a node, beside the process that holds it.
    pub fn processes_of(&self, node: &str) -> Vec<Process> {
        let (network, names) = self.network.as_ref().expect("only nodes in namespaces have processes of their own");
        let number = names.iter().position(|known| known == node).expect("a node's name");
        let holder = network.holders()[number];
        let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let there = namespace(holder).expect("the holder runs as long as the network is there");
        // Not by their mark: what is just being brought back has none yet.
        process::all().filter(|process| process.pid() != holder && namespace(process.pid()).as_ref() == Some(&there)).collect()
    }

    /// Pulls the cable of a node in a namespace, or puts it back.
    pub fn set_cable(&self, node: &str, plugged: bool) {
        let (network, names) = self.network.as_ref().expect("only nodes in namespaces have a cable");
        network.set_cable(names.iter().position(|known| known == node).expect("a node's name"), plugged);
    }

    /// The switch, if it is the test's own ([`Setup::frames`]).
    ///
    /// # Panics
    /// If it is not.
    pub fn switch(&self) -> &Switch {
        self.network.as_ref().and_then(|(network, _)| network.frames()).expect("nodes on a switch of the test")
    }

    /// Where the protectors that run listen.
    pub fn ports_of_daemons(&self) -> BTreeSet<SocketAddrV4> {
        let ports = |node: &String| sockets::listeners(self.protector(node).pid()).into_keys();
        let v4 = |address| if let SocketAddr::V4(v4) = address { Some(v4) } else { None };
        self.node_names().iter().flat_map(ports).filter_map(v4).collect()
    }

    /// Waits for the end of a protector that [`Cluster::start_node`] has started.
    pub fn wait_for_end_of(&mut self, node: &str, limit: Duration) -> Finished {
        let place = self.daemons.iter().position(|(known, _)| known == node).expect("started by start_node");
        self.daemons.remove(place).1.give(limit).wait()
    }

    /// Ranks and commands are gone, and they have left nothing; the protectors and their keepers run on.
    pub fn assert_idle(&self) {
        let stay: Vec<u32> = process::marked(self.dir()).iter().map(Process::pid).filter(|pid| !is_of_a_job(*pid)).collect();
        let left = process::wait_none(self.dir(), &stay, GONE);
        left.unwrap_or_else(|left| panic!("processes of an ended job are left:\n{left}"));
        self.shared_memory.assert_nothing_left();
    }

    /// Stops the cluster by `radic cluster stop`, and checks that nothing of it is left.
    pub fn stop(mut self) {
        self.radic(["cluster", "stop"]).run().expect(0);
        self.daemons.clear();
        self.expect_gone();
        assert!(!self.dir().join("nodes").exists(), "the nodes' directories are left");
    }

    /// Waits until no process of the cluster is left, and checks that there is nothing of it in shared memory.
    ///
    /// # Panics
    /// If something is left.
    pub fn expect_gone(&self) {
        let holders = self.network.as_ref().map(|(network, _)| network.holders()).unwrap_or_default();
        let left = process::wait_none(self.dir(), &holders, GONE);
        left.unwrap_or_else(|left| panic!("processes are left of a cluster that was stopped:\n{left}"));
        self.shared_memory.assert_nothing_left();
    }
}

/// Whether a process belongs to a rank.
fn is_of_a_job(pid: u32) -> bool {
    process::variable(pid, "RADIC_RANK").is_some()
}

/// Whether a process is a keeper, which cleans up after the ranks of a node when its protector is killed.
fn is_keeper(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.split(|byte| *byte == 0).nth(1) == Some(b"keeper"))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in self.node_names() {
                eprintln!("--- log of {node}\n{}", tail(&self.log(&node)));
            }
        }
    }
}
