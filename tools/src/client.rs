//! The connection to a daemon: finding one, frames, and one request with its answer.
//!
//! Everything waits in `poll`, with a deadline: a daemon that hangs gives an error, not another thing that hangs.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, sockopt};
use radic_wire::frame::{self, FrameReader};
use radic_wire::key::{ClusterKey, KeyError};
use radic_wire::local::{ClusterStatus, Reply, Request};
use radic_wire::{PROTOCOL_VERSION, codec, limits};

use crate::record::Record;

/// Time that a daemon has for its `Welcome`.
const HELLO: Duration = Duration::from_secs(5);
/// Time that a daemon has for an answer that needs no work.
pub(crate) const ANSWER: Duration = Duration::from_secs(30);
/// Bytes that are read at once.
const READ: usize = 128 << 10;

/// The folder in a cluster's that has one for each node.
pub(crate) const NODES: &str = "nodes";
/// Nodes of which it is said why they do not answer.
const REASONS: usize = 4;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error(
        "no cluster in {dir}: start one with `radic cluster start --dir {dir}`, or name another with --cluster DIR or RADIC_CLUSTER"
    )]
    NoCluster { dir: String },
    #[error(
        "no daemon of the cluster in {dir} answers ({why}); `radic cluster stop --dir {dir}` clears up what is left of it, \
         and DIR/nodes/NAME/log tells why it ended"
    )]
    NoAnswer { dir: String, why: String },
    #[error(
        "the cluster that was started from {dir} has no node on this host, but on {hosts}: run this there, with RADIC_CLUSTER={dir}"
    )]
    Elsewhere { dir: String, hosts: String },
    #[error("the daemon on {node} went away: {why}")]
    Lost { node: String, why: String },
    #[error("the daemon on {node} did not answer within {} s", limit.as_secs())]
    Late { node: String, limit: Duration },
    #[error(
        "RADIC_KEY names the key {named}, and {own} is another one: unset RADIC_KEY if the cluster was started \
         by `radic cluster start`, else move {own} away"
    )]
    TwoKeys { named: PathBuf, own: PathBuf },
    #[error(
        "the cluster's folder, {0}, is no text (UTF-8), which the variables of ranks must be: \
         choose another with --cluster DIR or RADIC_CLUSTER"
    )]
    NoText(PathBuf),
    #[error(
        "the cluster's key is not at {0}: set RADIC_KEY to the file that its radicd was given as --key, or put that file there"
    )]
    KeyElsewhere(PathBuf),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("{0}")]
    Refused(String),
    #[error("the daemon on {node} answered {got}, which is no answer to the request; are `radic` and `radicd` of one version?")]
    Unexpected { node: String, got: String },
    #[error("the request is too long: {0}")]
    TooLong(String),
    #[error("waiting: {0}")]
    Poll(Errno),
}

/// A cluster's folder, as the command sees it.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    dir: PathBuf,
}

impl Cluster {
    /// The cluster in `dir`; else in ~/.radic/cluster.
    pub(crate) fn new(dir: Option<PathBuf>) -> Result<Self, ClientError> {
        let default = || std::env::home_dir().map(|home| home.join(".radic/cluster"));
        // An empty variable is as good as none.
        let dir = dir
            .filter(|dir| !dir.as_os_str().is_empty())
            .or_else(default)
            .ok_or_else(|| ClientError::NoCluster { dir: "~ (HOME is not set)".into() })?;
        let dir = std::path::absolute(&dir).map_err(|e| ClientError::NoCluster { dir: format!("{} ({e})", dir.display()) })?;
        Ok(Cluster { dir })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The environment of ranks names this folder: what is no text could only be named as another one.
    pub(crate) fn check_text(&self) -> Result<(), ClientError> {
        if self.dir.to_str().is_some() { Ok(()) } else { Err(ClientError::NoText(self.dir.clone())) }
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.dir.join("key")
    }

    /// The key that the cluster's daemons have: that of `RADIC_KEY`, as for `radicd`, else the one in this folder. If there are two,
    /// and they differ, this command cannot know which of them it is, and what is signed with the wrong one can never be used.
    pub(crate) fn key_in_force(&self) -> Result<PathBuf, ClientError> {
        self.choose_key(std::env::var_os("RADIC_KEY").filter(|path| !path.is_empty()).map(PathBuf::from))
    }

    fn choose_key(&self, named: Option<PathBuf>) -> Result<PathBuf, ClientError> {
        let Some(named) = named else { return Ok(self.key()) };
        // The code that loads the key says what cannot be read.
        match (fs::read(&named), fs::read(self.key())) {
            (Ok(one), Ok(other)) if one != other => Err(ClientError::TwoKeys { named, own: self.key() }),
            _ => Ok(named),
        }
    }

    /// The key that the cluster's daemons have. Where there is no cluster, that is the error, not the key that is not there either.
    pub(crate) fn load_key(&self) -> Result<ClusterKey, ClientError> {
        let path = self.key_in_force()?;
        match ClusterKey::load(&path, nix::unistd::geteuid().as_raw()) {
            Err(KeyError::Io { said, .. }) if said.kind() == io::ErrorKind::NotFound && path == self.key() => {
                Err(if self.nodes().is_empty() { self.absent() } else { ClientError::KeyElsewhere(path) })
            }
            loaded => Ok(loaded?),
        }
    }

    /// The folder that holds one folder for each node.
    pub(crate) fn nodes_dir(&self) -> PathBuf {
        self.dir.join(NODES)
    }

    pub(crate) fn node_dir(&self, name: &str) -> PathBuf {
        self.nodes_dir().join(name)
    }

    /// The names of the nodes that were started from this folder, n2 before n10; empty if there is no cluster.
    pub(crate) fn nodes(&self) -> Vec<String> {
        let entries = fs::read_dir(self.nodes_dir()).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort_by_key(|name| natural(name));
        names
    }

    /// Why there is no node of the cluster here.
    fn absent(&self) -> ClientError {
        let dir = self.dir.display().to_string();
        match Record::read(&self.dir) {
            Ok(Some(record)) => ClientError::Elsewhere { dir, hosts: record.names() },
            _ => ClientError::NoCluster { dir },
        }
    }

    /// A connection to any daemon, if possible not that of `avoid`.
    pub(crate) fn connect(&self, avoid: Option<&str>) -> Result<Connection, ClientError> {
        self.check_text()?;
        let mut names = self.nodes();
        if names.is_empty() {
            return Err(self.absent());
        }
        names.sort_by_key(|name| Some(name.as_str()) == avoid);
        let mut why = Vec::new();
        let mut late = None;
        for name in names {
            match Connection::open(&self.node_dir(&name), &name) {
                Ok(connection) => return Ok(connection),
                // It is there, and may answer the next time.
                Err(error @ ClientError::Late { .. }) => late = Some(error),
                Err(error) if why.len() < REASONS => why.push(format!("{name}: {error}")),
                Err(_) => {}
            }
        }
        let why = if why.is_empty() { "their sockets are gone".to_owned() } else { why.join("; ") };
        Err(late.unwrap_or(ClientError::NoAnswer { dir: self.dir.display().to_string(), why }))
    }

    /// A connection to the daemon on one node.
    pub(crate) fn connect_to(&self, name: &str) -> Result<Connection, ClientError> {
        self.check_text()?;
        Connection::open(&self.node_dir(name), name)
    }

    /// One request, one answer; an `Error` from the daemon is an error here.
    pub(crate) fn ask(&self, request: &Request, limit: Duration) -> Result<Reply, ClientError> {
        self.connect(None)?.ask(request, limit)
    }
}

/// The state of the cluster, as the node that answers sees it.
pub(crate) fn ask_status(cluster: &Cluster) -> Result<ClusterStatus, ClientError> {
    let mut connection = cluster.connect(None)?;
    match connection.ask(&Request::Status, ANSWER)? {
        Reply::Status(status) => Ok(status),
        other => Err(connection.unexpected(&other)),
    }
}

/// Sorts "n2" before "n10": text and numbers in turn.
pub(crate) fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let text = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let digits = rest[text..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |n| text + n);
        parts.push((rest[..text].to_owned(), rest[text..digits].parse().unwrap_or(u64::MAX)));
        rest = &rest[digits..];
    }
    parts
}

/// A connection to a daemon that has said `Welcome`.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    node: String,
    reader: FrameReader,
    /// Frames that the socket had no room for. Bounded by the callers: one piece of input at a time, and small messages.
    unsent: Vec<u8>,
}

impl Connection {
    fn open(node_dir: &Path, name: &str) -> Result<Self, ClientError> {
        let lost = |why: String| ClientError::Lost { node: name.to_owned(), why };
        let stream = connect_socket(node_dir).map_err(|e| lost(e.to_string()))?;
        let mut connection =
            Connection { stream, node: name.to_owned(), reader: FrameReader::new(limits::LOCAL_FRAME), unsent: Vec::new() };
        connection.send(&Request::Hello { version: PROTOCOL_VERSION })?;
        match connection.wait(Some(Instant::now() + HELLO))? {
            Some(Reply::Welcome { version, .. }) if version == PROTOCOL_VERSION => Ok(connection),
            Some(Reply::Welcome { version, .. }) => Err(ClientError::Refused(format!(
                "the daemon on {name} speaks version {version}, this command version {PROTOCOL_VERSION}: install one release"
            ))),
            Some(Reply::Error(text)) => Err(ClientError::Refused(text)),
            Some(other) => Err(connection.unexpected(&other)),
            None => Err(ClientError::Late { node: name.to_owned(), limit: HELLO }),
        }
    }

    /// The node of this daemon.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    pub(crate) fn unexpected(&self, reply: &Reply) -> ClientError {
        let got: String = format!("{reply:?}").chars().take(80).collect();
        ClientError::Unexpected { node: self.node.clone(), got }
    }

    fn lost(&self, why: impl ToString) -> ClientError {
        ClientError::Lost { node: self.node.clone(), why: why.to_string() }
    }

    /// Sends a request, or queues what the socket has no room for; [`Connection::interest`] and [`Connection::flush`] see to that.
    pub(crate) fn send(&mut self, request: &Request) -> Result<(), ClientError> {
        let body = codec::encode(request, limits::LOCAL_FRAME).map_err(|e| ClientError::TooLong(e.to_string()))?;
        frame::encode_into(&mut self.unsent, &body, limits::LOCAL_FRAME);
        self.flush()
    }

    /// What to poll the socket for.
    pub(crate) fn interest(&self) -> PollFlags {
        if self.unsent.is_empty() { PollFlags::POLLIN } else { PollFlags::POLLIN | PollFlags::POLLOUT }
    }

    /// Sends what the socket has room for.
    pub(crate) fn flush(&mut self) -> Result<(), ClientError> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // What it said before it went (a reason, perhaps) may still be read; if not, the reader reports the loss.
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => self.unsent.clear(),
                Err(e) => return Err(self.lost(e)),
            }
        }
        Ok(())
    }

    /// The next reply that has arrived whole.
    pub(crate) fn next_reply(&mut self) -> Result<Option<Reply>, ClientError> {
        let reply = match self.reader.next_frame() {
            Ok(None) => return Ok(None),
            Ok(Some(body)) => codec::decode(body, limits::LOCAL_FRAME).map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        };
        reply.map(Some).map_err(|why| self.lost(why))
    }

    /// Reads once, what has arrived; nothing if nothing has.
    pub(crate) fn read(&mut self) -> Result<(), ClientError> {
        let mut buffer = vec![0; READ];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err(self.lost("it closed the connection")),
            Ok(n) => {
                self.reader.push(&buffer[..n]);
                Ok(())
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(()),
            Err(e) => Err(self.lost(e)),
        }
    }

    /// The next reply; nothing after the deadline, if there is one.
    pub(crate) fn wait(&mut self, deadline: Option<Instant>) -> Result<Option<Reply>, ClientError> {
        loop {
            if let Some(reply) = self.next_reply()? {
                return Ok(Some(reply));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            let interest = self.interest();
            poll_fds(&mut [PollFd::new(self.as_fd(), interest)], left).map_err(ClientError::Poll)?;
            self.flush()?;
            self.read()?;
        }
    }

    /// One request, one answer within `limit`; an `Error` from the daemon is an error here.
    pub(crate) fn ask(&mut self, request: &Request, limit: Duration) -> Result<Reply, ClientError> {
        self.send(request)?;
        match self.wait(Some(Instant::now() + limit))? {
            Some(Reply::Error(text)) => Err(ClientError::Refused(text)),
            Some(reply) => Ok(reply),
            None => Err(ClientError::Late { node: self.node.clone(), limit }),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Waits for one of `fds`, at most for `limit`; an interruption counts as nothing having happened.
pub(crate) fn poll_fds(fds: &mut [PollFd], limit: Option<Duration>) -> Result<(), Errno> {
    // Rounded up: a wait that ends before its time would only begin again.
    let timeout = limit.map_or(PollTimeout::NONE, |limit| {
        PollTimeout::try_from(limit.saturating_add(Duration::from_micros(999))).unwrap_or(PollTimeout::MAX)
    });
    match poll(fds, timeout) {
        Ok(_) => Ok(()),
        Err(Errno::EINTR) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Connects to `control.sock` in a folder whose path may be longer than the 108 bytes of a socket address.
fn connect_socket(node_dir: &Path) -> io::Result<UnixStream> {
    let dir = OpenOptions::new().read(true).custom_flags((OFlag::O_PATH | OFlag::O_DIRECTORY).bits()).open(node_dir)?;
    let path = format!("/proc/self/fd/{}/control.sock", dir.as_raw_fd());
    // Non-blocking already for connect(): a stopped daemon with a full backlog then refuses, and does not hold us up.
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    socket::connect(socket.as_raw_fd(), &UnixAddr::new(path.as_str())?)?;
    let peer = socket::getsockopt(&socket, sockopt::PeerCredentials)?.uid();
    let uid = nix::unistd::geteuid().as_raw();
    // A job's whole environment goes through here.
    if peer != uid && peer != 0 {
        return Err(io::Error::other(format!("its daemon runs as uid {peer}, this command as uid {uid}")));
    }
    Ok(UnixStream::from(socket))
}

/// A request that is answered by nothing but its having been carried out.
pub(crate) fn done(cluster: &Cluster, avoid: Option<&str>, request: &Request) -> Result<(), ClientError> {
    let mut connection = cluster.connect(avoid)?;
    match connection.ask(request, ANSWER)? {
        Reply::Done => Ok(()),
        other => Err(connection.unexpected(&other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_the_one_that_is_named_unless_there_is_another_in_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::new(Some(dir.path().join("cluster"))).unwrap();
        let named = dir.path().join("named");
        fs::create_dir(cluster.dir()).unwrap();
        fs::write(&named, "one").unwrap();
        assert_eq!(cluster.choose_key(None).unwrap(), cluster.key());
        assert_eq!(cluster.choose_key(Some(named.clone())).unwrap(), named);
        fs::write(cluster.key(), "one").unwrap();
        assert_eq!(cluster.choose_key(Some(named.clone())).unwrap(), named);
        fs::write(cluster.key(), "two").unwrap();
        let error = cluster.choose_key(Some(named)).unwrap_err().to_string();
        assert!(error.contains("named") && error.contains("cluster/key") && error.contains("unset RADIC_KEY"), "{error}");
    }

    #[test]
    fn a_cluster_that_is_on_other_hosts_alone_says_where() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::new(Some(dir.path().join("cluster"))).unwrap();
        fs::create_dir(cluster.dir()).unwrap();
        assert!(matches!(cluster.connect(None), Err(ClientError::NoCluster { .. })));
        let record = r#"{"shell":["ssh"],"batch":false,"prefix":"/opt","nodes":[{"target":"ann@h7","name":"h7"}]}"#;
        fs::write(cluster.dir().join("hosts.json"), record).unwrap();
        let error = cluster.connect(None).unwrap_err().to_string();
        assert!(error.contains("on h7: run this there"), "{error}");
    }

    #[test]
    fn a_folder_that_is_no_text_is_refused_by_name() {
        use std::os::unix::ffi::OsStringExt;
        let odd = PathBuf::from(std::ffi::OsString::from_vec(b"/tmp/caf\xe9".to_vec()));
        let error = Cluster::new(Some(odd)).unwrap().connect(None).unwrap_err();
        assert!(matches!(&error, ClientError::NoText(_)) && error.to_string().contains("UTF-8"), "{error}");
    }

    #[test]
    fn nodes_are_sorted_as_people_count() {
        let mut names = ["n10", "n2", "s1", "n1", "n1-3", "x"];
        names.sort_by_key(|n| natural(n));
        assert_eq!(names, ["n1", "n1-3", "n2", "n10", "s1", "x"]);
    }
}
