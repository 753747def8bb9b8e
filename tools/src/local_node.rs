//! One node on this host: its daemon, the processes and files that belong to it, and its end. What a whole cluster on this machine
//! ([`crate::cluster`]) and a launch on other ones ([`crate::launch`]) have in common.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags};
use radic_protector::address::Network;
use radic_protector::daemon::keeper;
use radic_protector::folder::Folder;
use radic_wire::key::ClusterKey;
use radic_wire::local::Request;
use radic_wire::membership::Role;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;

use crate::client::{self, Cluster};
use crate::record::Record;
use crate::remove;

/// Time for a clean end, before SIGTERM and then SIGKILL.
const CLEAN: Duration = Duration::from_secs(3);
/// Time for an end by SIGTERM.
const TERMINATE: Duration = Duration::from_secs(2);
/// Time that the kernel gets to end killed processes.
const KILLED: Duration = Duration::from_secs(10);
/// Longest line that `radicd` prints when it is ready, in bytes.
pub(crate) const READY_LINE: usize = 512;
/// How much of a log is shown, in bytes.
const TAIL: u64 = 2000;

/// What `radic cluster start` is asked for.
#[derive(Debug, Clone)]
pub(crate) struct StartOptions<'a> {
    /// Where the nodes run, one in each; none: all on the loopback network.
    pub(crate) namespaces: &'a [Namespace],
    pub(crate) nodes: u32,
    pub(crate) spares: u32,
    pub(crate) witness: bool,
    pub(crate) slots: Option<u32>,
    pub(crate) heartbeat_ms: Option<u64>,
    pub(crate) grace: Option<u64>,
    /// That every node serves its page, and where, if that is said.
    pub(crate) http: Option<Option<SocketAddr>>,
}

impl StartOptions<'_> {
    /// Where each node serves its page, on this port unless another one is said.
    pub(crate) fn http_on(&self, port: u16) -> Result<Option<SocketAddr>> {
        let address = self.http.map(|said| said.unwrap_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)));
        let on_this_machine = self.nodes + self.spares + u32::from(self.witness);
        if let Some(taken) = address.filter(|address| address.port() != 0 && self.nodes > 0 && on_this_machine > 1) {
            bail!(
                "--http {taken}: {on_this_machine} nodes of one machine cannot share a port: leave the address out, or give port 0, and each has a port of its own \
                 (`radic web` tells which)"
            );
        }
        Ok(address)
    }
}

/// A network namespace of this machine, and the address that a node has there.
#[derive(Debug, Clone)]
pub(crate) struct Namespace {
    pub(crate) name: String,
    pub(crate) address: IpAddr,
}

/// A node that was started.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct StartedNode {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    pub(crate) role: Role,
    pub(crate) pid: u32,
}

/// Does `start` in the cluster's folder, with a key in it, and nothing of an old cluster, and no other command at work there.
pub(crate) fn prepared<T>(cluster: &Cluster, start: impl FnOnce() -> Result<T>) -> Result<T> {
    cluster.check_text()?;
    let folder = Folder::make_all(cluster.dir())?;
    let _lock = lock(&folder)?;
    clear_leftovers(cluster, &folder)?;
    if !cluster.key().exists() {
        ClusterKey::generate()?.create(&cluster.key())?;
    }
    start()
}

/// A word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// A daemon that is to be started.
pub(crate) struct Daemon<'a> {
    /// The network namespace that it runs in, if that is another one.
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: &'a str,
    pub(crate) role: Role,
    /// Where it listens. Port 0: any.
    pub(crate) listen: SocketAddr,
    /// The network of its processes.
    pub(crate) data: Option<Network>,
    /// A member to join through; none: it founds the cluster.
    pub(crate) join: Option<SocketAddr>,
    pub(crate) slots: Option<u32>,
    pub(crate) heartbeat_ms: Option<u64>,
    pub(crate) grace: Option<u64>,
    /// Where it serves its page.
    pub(crate) http: Option<SocketAddr>,
}

impl Daemon<'_> {
    /// The command that is this daemon, and its folder with a log in it. Its standard output is a pipe.
    pub(crate) fn command(&self, cluster: &Cluster, radicd: &Path) -> Result<Command> {
        let log = Folder::open(cluster.dir())?.subfolder("nodes")?.subfolder(self.name)?.append("log")?;
        let mut command = Command::new(if self.namespace.is_some() { Path::new("ip") } else { radicd });
        if let Some(namespace) = self.namespace {
            command.args(["netns", "exec", namespace]).arg(radicd);
        }
        command.arg("--dir").arg(cluster.dir()).args(["--name", self.name, "--own-session"]);
        command.arg(format!("--listen={}", self.listen));
        command.args(self.data.map(|network| format!("--data-network={network}")));
        command.args(self.join.map(|address| format!("--join={address}")));
        command.args(match self.role {
            Role::Node | Role::Newcomer => None,
            Role::Spare => Some("--spare"),
            Role::Witness => Some("--witness"),
        });
        command.args(self.slots.map(|slots| format!("--slots={slots}")));
        command.args(self.heartbeat_ms.map(|ms| format!("--heartbeat-ms={ms}")));
        command.args(self.grace.map(|seconds| format!("--grace={seconds}")));
        command.args(self.http.map(|address| format!("--http={address}")));
        // What the environment says about one daemon is not meant for all of these.
        for variable in
            ["RADIC_JOIN", "RADIC_SPARE", "RADIC_WITNESS", "RADIC_ADVERTISE", "RADIC_CONTROL_NETWORK", "RADIC_KEY", "RADIC_STORE"]
        {
            command.env_remove(variable);
        }
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        Ok(command)
    }
}

/// The address in what a daemon says when it is ready: `ready NAME ADDRESS`.
pub(crate) fn ready_address(name: &str, line: &str) -> Result<SocketAddr> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let address = match words[..] {
        ["ready", said, address] if said == name => address.parse().ok(),
        _ => None,
    };
    address.with_context(|| format!("{name} said {line:?}; are radic and radicd of one build?"))
}

pub(crate) fn log_path(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.node_dir(name).join("log")
}

/// The end of a node's log, indented.
pub(crate) fn log_tail(cluster: &Cluster, name: &str) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = Folder::open(&cluster.node_dir(name)).and_then(|folder| folder.read("log")).map_err(io::Error::other)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut bytes = Vec::new();
        file.take(TAIL).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<String> = text.lines().rev().take(10).map(|line| format!("  {line}")).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

/// One start or stop at a time. The lock goes with this process.
pub(crate) fn lock(folder: &Folder) -> Result<Flock<File>> {
    let file = folder.append("lock")?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|(_, e)| anyhow!("another `radic cluster start` or `stop` is at work in {} ({e})", folder.path().display()))
}

/// Removes what a dead cluster left; a live one stays.
fn clear_leftovers(cluster: &Cluster, folder: &Folder) -> Result<()> {
    let dir = cluster.dir().display();
    if let Ok(connection) = cluster.connect(None) {
        bail!(
            "a cluster runs in {dir} already ({} answers): use it, or end it with `radic cluster stop --dir {dir}`",
            connection.node()
        );
    }
    // A batch system ends what it has started with its job.
    if let Some(record) = Record::read(cluster.dir())?.filter(|record| !record.batch) {
        bail!(
            "a cluster was started from {dir} on other hosts ({}): use it there, or end it with `radic cluster stop --dir {dir}`",
            record.names()
        );
    }
    let alive = processes(cluster);
    ensure!(
        alive.is_empty(),
        "{} of a cluster in {dir} runs but does not answer: end it with `radic cluster stop --dir {dir}`",
        alive.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ")
    );
    remove_nodes(folder)
}

pub(crate) fn remove_nodes(folder: &Folder) -> Result<()> {
    remove::below(folder, &[client::NODES])
}

/// Removes the folder of one node in that of its cluster.
pub(crate) fn remove_node(folder: &Folder, name: &str) -> Result<()> {
    remove::below(folder, &[client::NODES, name])
}

pub(crate) fn find_radicd() -> Result<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("radicd")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = beside.into_iter().chain(std::env::split_paths(&path).map(|dir| dir.join("radicd")));
    let mut found = candidates.filter(|p| p.is_file());
    found.next().context("radicd is neither beside radic nor in PATH: install it, or run `cargo build`")
}

/// A daemon of this cluster that runs. The descriptor is bound to the process: its number may be given to another one, and
/// no signal goes astray.
pub(crate) struct Process {
    pub(crate) name: String,
    fd: OwnedFd,
}

/// The daemons of the cluster in this folder that run, whatever has become of the folder. They are looked for among all processes of
/// this user: the files that name them may be gone.
pub(crate) fn processes(cluster: &Cluster) -> Vec<Process> {
    let me = nix::unistd::geteuid().as_raw();
    let named: Vec<(i32, String)> =
        cluster.nodes().into_iter().filter_map(|name| Some((noted_pid(cluster, &name)?, name))).collect();
    let find = |number: i32| {
        let of = PathBuf::from(format!("/proc/{number}"));
        if fs::metadata(&of).ok()?.uid() != me {
            return None;
        }
        let fd = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
        // Asked after the process is held, so it is about this process.
        let command = fs::read(of.join("cmdline")).ok()?;
        let noted = named.iter().find(|(pid, _)| *pid == number).map(|(_, name)| name.as_str());
        let name = daemon_of(cluster.dir(), noted, &command)?;
        Some(Process { name, fd })
    };
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found: Vec<Process> = numbers.filter_map(|entry| find(entry.file_name().to_str()?.parse().ok()?)).collect();
    found.sort_by_key(|process| client::natural(&process.name));
    found
}

/// The process that a node's folder names as its daemon.
fn noted_pid(cluster: &Cluster, name: &str) -> Option<i32> {
    let mut text = String::new();
    let file = Folder::open(&cluster.node_dir(name)).ok()?.read("pid").ok()?;
    file.take(READY_LINE as u64).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Which daemon of the cluster in `dir` has this command line (NUL after each word), if it is one. `noted` is the name of the node
/// that has the process named in its folder, for daemons that were given the cluster's folder in another way than by `--dir`. A dead process
/// that its parent has not waited for has no words.
fn daemon_of(dir: &Path, noted: Option<&str>, command: &[u8]) -> Option<String> {
    let words: Vec<&OsStr> = command.split(|byte| *byte == 0).map(OsStr::from_bytes).collect();
    let is_keeper = words.get(1).is_some_and(|word| *word == keeper::ARGUMENT);
    if Path::new(words.first()?).file_name()? != "radicd" || is_keeper {
        return None;
    }
    let value = |flag: &str| {
        let joined = |word: &OsStr| {
            word.as_bytes().strip_prefix(flag.as_bytes())?.strip_prefix(b"=").map(|v| OsStr::from_bytes(v).to_owned())
        };
        let separate = || words.windows(2).find(|pair| pair[0] == flag).map(|pair| pair[1].to_owned());
        words.iter().find_map(|word| joined(word)).or_else(separate)
    };
    match value("--dir") {
        Some(other) if Path::new(&other).is_absolute() && Path::new(&other) != dir => None,
        Some(same) if Path::new(&same) == dir => {
            value("--name").and_then(|name| name.into_string().ok()).or_else(|| noted.map(str::to_owned))
        }
        // By its environment, its settings or its working directory: the folder's own word counts.
        _ => noted.map(str::to_owned),
    }
}

/// How a cluster was stopped.
#[derive(Debug, Serialize)]
pub(crate) struct Stopped {
    /// Daemons of the cluster that ran, wherever they are.
    pub(crate) nodes: usize,
    /// Those of them that had to be killed.
    pub(crate) killed: Vec<String>,
    /// Those of them that were told to end and that this command cannot see end: they were started from other folders, on other machines
    /// perhaps.
    pub(crate) elsewhere: Vec<String>,
    /// Those of them that had lost their folder while they ran: it was removed.
    pub(crate) unseen: Vec<String>,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nodes - self.elsewhere.len() {
            0 if self.elsewhere.is_empty() => {
                return f.write_str("the cluster was dead already; what was left of it is removed");
            }
            0 => f.write_str("no daemon was started from this folder")?,
            1 => f.write_str("1 daemon has ended")?,
            n => write!(f, "{n} daemons have ended")?,
        }
        if !self.unseen.is_empty() {
            write!(f, ", of which the folders of {} had been removed while they ran", self.unseen.join(", "))?;
        }
        if !self.killed.is_empty() {
            write!(f, "; {} had to be killed", self.killed.join(", "))?;
        }
        match &self.elsewhere[..] {
            [] => Ok(()),
            others => write!(f, "; {} more of the cluster, elsewhere, were told to end: {}", others.len(), others.join(", ")),
        }
    }
}

/// Ends one daemon on this host, and tells the others to end: what `radic cluster stop` does on each host of a cluster that it has
/// started on several.
pub(crate) fn stop_only(cluster: &Cluster, name: &str) -> Result<Stopped> {
    // In a folder that another user may write to nothing is looked for, and nothing is removed.
    let folder = open_if_there(cluster)?;
    let mut alive = processes(cluster);
    alive.retain(|process| process.name == name);
    if !alive.is_empty() && cluster.connect_to(name).and_then(|mut node| node.ask(&Request::Shutdown, client::ANSWER)).is_err() {
        // It ends already, as another one has told it, or it does not answer.
        signal(&alive, Signal::TERM);
    }
    let nodes = names_of(&alive).len();
    let killed = wait_or_kill(alive)?;
    if let Some(folder) = &folder {
        remove_node(folder, name)?;
    }
    Ok(Stopped { nodes, killed, elsewhere: Vec::new(), unseen: Vec::new() })
}

/// The cluster's folder; none if it was removed.
pub(crate) fn open_if_there(cluster: &Cluster) -> Result<Option<Folder>> {
    match Folder::open(cluster.dir()) {
        Ok(folder) => Ok(Some(folder)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The nodes of these processes, each once. A process that a daemon has just forked looks like the daemon until it executes its own program.
pub(crate) fn names_of(processes: &[Process]) -> Vec<String> {
    let names: BTreeSet<&String> = processes.iter().map(|process| &process.name).collect();
    names.into_iter().cloned().collect()
}

/// Waits for the end of daemons that were asked to end. The names of those that had to be killed.
pub(crate) fn wait_or_kill(mut alive: Vec<Process>) -> Result<Vec<String>> {
    // Those that the others cannot reach get a signal.
    wait_gone(&mut alive, CLEAN)?;
    signal(&alive, Signal::TERM);
    wait_gone(&mut alive, TERMINATE)?;
    let killed = names_of(&alive);
    signal(&alive, Signal::KILL);
    wait_gone(&mut alive, KILLED)?;
    ensure!(alive.is_empty(), "{} daemons did not end even by SIGKILL: they hang in the kernel", alive.len());
    Ok(killed)
}

pub(crate) fn signal(processes: &[Process], signal: Signal) {
    for process in processes {
        // One that ended meanwhile needs none.
        let _ = pidfd_send_signal(&process.fd, signal);
    }
}

/// Waits until all have ended, or the time is over; keeps those that have not.
fn wait_gone(processes: &mut Vec<Process>, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !processes.is_empty() {
        let mut fds: Vec<_> = processes.iter().map(|p| PollFd::new(p.fd.as_fd(), PollFlags::POLLIN)).collect();
        let left = deadline.saturating_duration_since(Instant::now());
        client::poll_fds(&mut fds, Some(left)).context("waiting for the daemons")?;
        let mut gone = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect::<Vec<_>>().into_iter();
        processes.retain(|_| !gone.next().unwrap_or(false));
        if left.is_zero() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_one_machine_have_ports_of_their_own() {
        let options = |nodes, http: Option<Option<&str>>| {
            let http = http.map(|said| said.map(|text| text.parse().unwrap()));
            StartOptions { namespaces: &[], nodes, spares: 0, witness: false, slots: None, heartbeat_ms: None, grace: None, http }
        };
        let on = |nodes, http, port| options(nodes, http).http_on(port).map(|address| address.map(|address| address.to_string()));
        assert_eq!(on(4, None, 0).unwrap(), None);
        assert_eq!(on(4, Some(None), 0).unwrap().as_deref(), Some("127.0.0.1:0"));
        assert_eq!(on(4, Some(Some("0.0.0.0:0")), 0).unwrap().as_deref(), Some("0.0.0.0:0"));
        assert_eq!(on(1, Some(Some("127.0.0.1:80")), 0).unwrap().as_deref(), Some("127.0.0.1:80"));
        let error = on(4, Some(Some("127.0.0.1:80")), 0).unwrap_err().to_string();
        assert!(error.contains("4 nodes of one machine") && error.contains("port 0"), "{error}");
        // On other machines, where no node is counted, each has the same port.
        assert_eq!(on(0, Some(None), 7118).unwrap().as_deref(), Some("127.0.0.1:7118"));
        assert_eq!(on(0, Some(Some("0.0.0.0:80")), 7118).unwrap().as_deref(), Some("0.0.0.0:80"));
    }

    #[test]
    fn a_daemon_that_forks_is_counted_once() {
        let process = |name: &str| Process { name: name.to_owned(), fd: std::fs::File::open("/dev/null").unwrap().into() };
        assert_eq!(names_of(&["n2", "n1", "n2"].map(process)), ["n1", "n2"]);
    }

    #[test]
    fn only_the_cluster_s_own_daemons_are_recognised() {
        let of = |dir: &str, noted, command: &[u8]| daemon_of(Path::new(dir), noted, command);
        let ours = b"/bin/radicd\0--dir\0/tmp/c\0--name\0n1\0--listen\x00127.0.0.1:0\0";
        assert_eq!(of("/tmp/c", None, ours).as_deref(), Some("n1"));
        assert_eq!(of("/tmp/c", Some("n1"), ours).as_deref(), Some("n1"));
        assert_eq!(of("/tmp/c", None, b"radicd\0--name=n2\0--dir=/tmp/c\0").as_deref(), Some("n2"));
        assert_eq!(of("/tmp", Some("n1"), ours), None, "of another cluster");
        assert_eq!(of("/tmp/c", Some("n1"), b"radicd\0--spare\0").as_deref(), Some("n1"), "its folder names it");
        assert_eq!(of("/tmp/c", None, b"radicd\0--spare\0"), None);
        assert_eq!(of("/tmp/c", None, b"radicd\0--dir\0/tmp/c\0"), None, "of which node?");
        assert_eq!(of("/tmp/c", Some("n1"), b"vi\0--dir\0/tmp/c\0--name\0n1\0"), None);
        assert_eq!(of("/tmp/c", Some("n1"), b"radicd\0keeper\0n1\0"), None);
        assert_eq!(of("/tmp/c", Some("n1"), b""), None);
    }

    #[test]
    fn what_has_ended_is_counted() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let said = |nodes, killed: &[&str], elsewhere: &[&str], unseen: &[&str]| {
            let (killed, elsewhere, unseen) = (names(killed), names(elsewhere), names(unseen));
            Stopped { nodes, killed, elsewhere, unseen }.to_string()
        };
        assert!(said(0, &[], &[], &[]).contains("dead already"));
        assert_eq!(said(1, &[], &[], &[]), "1 daemon has ended");
        assert_eq!(said(3, &["n2"], &[], &[]), "3 daemons have ended; n2 had to be killed");
        assert_eq!(
            said(3, &[], &["n2", "n3"], &[]),
            "1 daemon has ended; 2 more of the cluster, elsewhere, were told to end: n2, n3"
        );
        assert!(said(2, &[], &["n2", "n3"], &[]).starts_with("no daemon was started from this folder; 2 more"));
        assert!(said(2, &[], &[], &["n1", "n2"]).contains("the folders of n1, n2 had been removed while they ran"));
    }

    #[test]
    fn two_starts_do_not_meet() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        let first = lock(&folder).unwrap();
        assert!(lock(&folder).is_err());
        drop(first);
        lock(&folder).unwrap();
    }
}
