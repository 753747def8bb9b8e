//! Configuration: flags, then `RADIC_*` variables, then a TOML file, then defaults.

use std::fs;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use radic_wire::ids::NodeName;
use radic_wire::membership::Role;
use radic_wire::record::Cover;
use serde::{Deserialize, Serialize};

use crate::address::{DEFAULT_PORT, HostPort, Network};
use crate::folder::{Folder, FolderError};
use crate::membership::Timing;

/// Longest configuration file, in bytes.
const FILE_LIMIT: u64 = 64 << 10;
/// Where the page is, if --http names no port.
pub const HTTP_PORT: u16 = 7118;
/// In the cluster's directory, where each node has its own.
const NODES: &str = "nodes";

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What is encrypted on the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Encrypt {
    /// All that RADIC itself says: between nodes, and logs and images.
    All,
    /// What nodes say to each other. Logs and images can be read on the way to this node's log service and from there, but not
    /// changed.
    Control,
}

impl Encrypt {
    /// How what passes to and from the log service is protected.
    pub fn cover(self) -> Cover {
        match self {
            Encrypt::All => Cover::Encrypted,
            Encrypt::Control => Cover::Authenticated,
        }
    }
}

/// What the flags, the environment and the file can say; each of them may be silent on anything.
#[derive(Debug, Default, Parser, Serialize, Deserialize)]
#[command(
    name = "radicd",
    version,
    about = "RADIC's protector: runs on every node, launches ranks there, and watches its neighbour in the ring",
    after_help = "Examples:\n  radic key /etc/radic.key\n  radicd --key /etc/radic.key --listen 192.0.2.1:7117                          # the first one\n  radicd --key /etc/radic.key --listen 192.0.2.2:7117 --join 192.0.2.1:7117    # every other one\n  radicd --key /etc/radic.key --listen $(hostname) --join node1,node2,node3           # the same on every node\n\nEvery flag can stand in the file of --config under its long name, with _ for -.\n\nExit codes: 0 if the daemon has left the cluster as it was asked to, 1 if it could not start or was declared dead, 2 for wrong usage."
)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Read further settings from this TOML file; flags and variables win over it
    #[arg(long, env = "RADIC_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Print the settings in force and exit: code 0 if they are usable
    #[arg(long)]
    #[serde(skip)]
    pub check_config: bool,
    /// This node's name, unique in the cluster [default: the host name]
    #[arg(long, env = "RADIC_NAME")]
    pub name: Option<NodeName>,
    /// Address on the data network, or a name that stands for one of this machine's, and port to listen on; port 0: any [default: 0.0.0.0:7117]
    #[arg(long, env = "RADIC_LISTEN", value_name = "HOST:PORT")]
    pub listen: Option<HostPort>,
    /// Address by which other nodes reach this one, if it is not the one to listen on
    #[arg(long, env = "RADIC_ADVERTISE", value_name = "ADDR")]
    pub advertise: Option<IpAddr>,
    /// The network of the processes: what ranks send each other, logs and images go over this node's address in it [default: that of the daemon]
    #[arg(long, env = "RADIC_DATA_NETWORK", value_name = "CIDR")]
    pub data_network: Option<Network>,
    /// The network of the daemons: this node listens on its address in it, and others reach it there [default: as --listen and --advertise say]
    #[arg(long, env = "RADIC_CONTROL_NETWORK", value_name = "CIDR")]
    pub control_network: Option<Network>,
    /// Members to join through, any of which will do; none: found a new cluster. All nodes may have the same list, with themselves in it: then
    /// the first of it founds the cluster, when a majority of the list is there and in no cluster, and joins at any later start
    #[arg(long, env = "RADIC_JOIN", value_name = "HOST:PORT", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub join: Vec<HostPort>,
    /// How many nodes of the list of --join must be there before the first of them founds the cluster: more than half [default: the majority]
    #[arg(long, env = "RADIC_BOOTSTRAP_EXPECT", value_name = "N")]
    pub bootstrap_expect: Option<u32>,
    /// The cluster's key, made by `radic key` [default: DIR/key]
    #[arg(long, env = "RADIC_KEY", value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// The cluster's directory on this machine: control socket, log, store [default: ~/.radic/cluster]
    #[arg(long, env = "RADIC_CLUSTER", value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Where the logs and checkpoints of the processes that this node protects go; it may be large, and need not be shared
    /// [default: DIR/nodes/NAME/store]
    #[arg(long, env = "RADIC_STORE", value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Acknowledge what is logged only when it is on the disk: survives the power failure of a node and its protector together
    #[arg(long, env = "RADIC_DURABLE", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub durable: Option<bool>,
    /// Memory for the log and the images under way of each process that this node protects, in MiB, before they go to files; less
    /// if there are many of them [default: 32]
    #[arg(long, env = "RADIC_LOG_MEMORY", value_name = "MIB")]
    pub log_memory: Option<usize>,
    /// What is encrypted on the network: all, or what nodes say to each other alone. Logs and images that come to this node are
    /// protected against changes in any case; a site that trusts its network saves time with control. The same for all nodes,
    /// else each holds what it is given as its own setting says [default: all]
    #[arg(long, env = "RADIC_ENCRYPT", value_enum)]
    pub encrypt: Option<Encrypt>,
    /// Host nothing until a node has died
    #[arg(long, env = "RADIC_SPARE", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub spare: Option<bool>,
    /// Host ranks; but if a node of this name has died, join as a spare: for machines and pods that are started again by themselves
    #[arg(long, env = "RADIC_REJOIN_AS_SPARE", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub rejoin_as_spare: Option<bool>,
    /// Vote, and never host anything: a third machine by which two can tell a death from a broken network
    #[arg(long, env = "RADIC_WITNESS", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub witness: Option<bool>,
    /// Ranks that `radic run --map-by slot` places here before it goes to the next node [default: the number of cores]
    #[arg(long, env = "RADIC_SLOTS", value_name = "N")]
    pub slots: Option<u32>,
    /// Time between two heartbeats, in milliseconds [default: 100]
    #[arg(long, env = "RADIC_HEARTBEAT_MS", value_name = "MS")]
    pub heartbeat_ms: Option<u64>,
    /// Heartbeats in a row that may be missing before a node is suspected [default: 5]
    #[arg(long, env = "RADIC_MISSED", value_name = "N")]
    pub missed: Option<u32>,
    /// Time that a process which is brought back may wait for something that is not in its log before it is given up, in seconds;
    /// one that computes has ten times as long [default: three times the time between two checkpoints, at least 60]
    #[arg(long, env = "RADIC_REPLAY_LIMIT", value_name = "SECONDS")]
    pub replay_limit: Option<u64>,
    /// Time, in seconds, for the jobs with ranks on this node to make a checkpoint when the daemon is told to end (SIGTERM, SIGINT), before it leaves the cluster
    /// and its ranks go on at other nodes; a second signal ends the wait. Without it they go on from their last checkpoint [default: 0]
    #[arg(long, env = "RADIC_GRACE", value_name = "SECONDS")]
    pub grace: Option<u64>,
    /// Serve a page and OpenMetrics (/metrics) over HTTP on this address, which may lack its port (7118): to look at only, and only with a token of
    /// `radic web`. What is sent is not encrypted: beyond this machine use ssh -L or a proxy with TLS [default: no page]
    #[arg(long, env = "RADIC_HTTP", value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:7118", value_parser = parse_http)]
    pub http: Option<SocketAddr>,
    /// How log lines look, on stderr [default: text]
    #[arg(long, env = "RADIC_LOG_FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,
    /// Which lines are logged: error, warn, info, debug or trace [default: info]
    #[arg(long, env = "RADIC_LOG", value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Become the leader of a session of its own: the terminal's signals do not reach it
    #[arg(long)]
    #[serde(skip)]
    pub own_session: bool,
}

/// Settings that are complete and usable.
#[derive(Debug, Clone)]
pub struct Config {
    /// The node's name.
    pub name: NodeName,
    /// Where to listen.
    pub listen: SocketAddr,
    /// The address by which other nodes reach it.
    pub advertise: IpAddr,
    /// The address of its processes.
    pub data: IpAddr,
    /// Where to take logs and images.
    pub log_listen: IpAddr,
    /// Members to join through, this node among them perhaps.
    pub join: Vec<HostPort>,
    /// How many of them must be there before the first one founds a cluster, if not the majority.
    pub bootstrap_expect: Option<u32>,
    /// The cluster's key file.
    pub key: PathBuf,
    /// The cluster's directory on this machine.
    pub dir: PathBuf,
    /// Where logs and checkpoints go.
    pub store: PathBuf,
    /// Whether they are acknowledged only when they are on the disk.
    pub durable: bool,
    /// Bytes of log and images of one process in memory.
    pub log_memory: usize,
    /// What is encrypted on the network.
    pub encrypt: Encrypt,
    /// What the node is for.
    pub role: Role,
    /// Slots.
    pub slots: u32,
    /// The membership's times.
    pub timing: Timing,
    /// Time that a process which is catching up may wait without progress. If None, the node computes it.
    pub replay_limit: Option<Duration>,
    /// Time for checkpoints before the node leaves.
    pub grace: Duration,
    /// Where the page and the metrics are, if anywhere.
    pub http: Option<SocketAddr>,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Which lines are logged.
    pub log_level: String,
    /// Whether to become a session leader.
    pub own_session: bool,
}

/// Why settings are not usable.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("configuration file {path}: {error}{remedy}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A value is out of its range.
    #[error("{what} is {value}; it must be {range}")]
    Range {
        /// Which setting.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is possible.
        range: &'static str,
    },
    /// A name that does not stand for an address of this machine.
    #[error("listen is {name}: {error}; name this machine, or give an address of its network interfaces")]
    Name {
        /// The name.
        name: HostPort,
        /// What the resolver says.
        error: String,
    },
    /// Two settings that exclude each other.
    #[error(
        "{0} and {1} exclude each other: a spare takes the ranks of a node that dies, a witness never hosts any, and what rejoins as a spare is a node before"
    )]
    Both(&'static str, &'static str),
    /// A folder that the environment of ranks could not name.
    #[error(
        "the cluster's directory, {0}, is no text (UTF-8), which the variables of ranks must be: give another with --dir or RADIC_CLUSTER"
    )]
    NoText(PathBuf),
    /// A value is needed that cannot be guessed.
    #[error("{what}: {remedy}")]
    Missing {
        /// Which setting.
        what: &'static str,
        /// How to give it.
        remedy: String,
    },
}

impl Settings {
    /// Adds what the file says to what flags and environment left open.
    pub fn with_file(self) -> Result<Settings, ConfigError> {
        let Some(path) = self.config.clone() else { return Ok(self) };
        let file = read_file(&path)?;
        Ok(Settings {
            name: self.name.or(file.name),
            listen: self.listen.or(file.listen),
            advertise: self.advertise.or(file.advertise),
            data_network: self.data_network.or(file.data_network),
            control_network: self.control_network.or(file.control_network),
            join: if self.join.is_empty() { file.join } else { self.join },
            bootstrap_expect: self.bootstrap_expect.or(file.bootstrap_expect),
            key: self.key.or(file.key),
            dir: self.dir.or(file.dir),
            store: self.store.or(file.store),
            durable: self.durable.or(file.durable),
            log_memory: self.log_memory.or(file.log_memory),
            encrypt: self.encrypt.or(file.encrypt),
            spare: self.spare.or(file.spare),
            rejoin_as_spare: self.rejoin_as_spare.or(file.rejoin_as_spare),
            witness: self.witness.or(file.witness),
            slots: self.slots.or(file.slots),
            heartbeat_ms: self.heartbeat_ms.or(file.heartbeat_ms),
            missed: self.missed.or(file.missed),
            replay_limit: self.replay_limit.or(file.replay_limit),
            grace: self.grace.or(file.grace),
            http: self.http.or(file.http),
            log_format: self.log_format.or(file.log_format),
            log_level: self.log_level.or(file.log_level),
            ..self
        })
    }

    /// Fills in the defaults and checks the ranges.
    pub fn complete(self) -> Result<Config, ConfigError> {
        let Addresses { listen, advertise, data, log_listen } = self.addresses(&addresses())?;
        let role = self.role()?;
        let dir = self.dir.or_else(default_dir).ok_or_else(|| ConfigError::Missing {
            what: "the cluster's directory",
            remedy: "HOME is not set: give --dir or RADIC_CLUSTER".to_owned(),
        })?;
        let dir = absolute("the cluster's directory", &dir)?;
        if dir.to_str().is_none() {
            return Err(ConfigError::NoText(dir));
        }
        let (heartbeat, missed) = (self.heartbeat_ms.unwrap_or(100), self.missed.unwrap_or(5));
        in_range("heartbeat-ms", heartbeat, 10..=60_000, "10 to 60000 milliseconds")?;
        in_range("missed", missed, 2..=1_000, "2 to 1000 heartbeats")?;
        if let Some(seconds) = self.replay_limit {
            in_range("replay-limit", seconds, 1..=604_800, "1 to 604800 seconds")?;
        }
        let grace = self.grace.unwrap_or(0);
        in_range("grace", grace, 0..=86_400, "0 to 86400 seconds")?;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let slots = self.slots.unwrap_or(cores);
        in_range("slots", slots, 1..=65_536, "1 to 65536")?;
        let log_level = self.log_level.unwrap_or_else(|| "info".to_owned());
        if !["error", "warn", "info", "debug", "trace"].contains(&log_level.as_str()) {
            let range = "error, warn, info, debug or trace";
            return Err(ConfigError::Range { what: "log-level", value: log_level, range });
        }
        let log_memory = self.log_memory.unwrap_or(32);
        in_range("log-memory", log_memory, 1..=1024, "1 to 1024 MiB")?;
        let name = self.name.map_or_else(host_name, Ok)?;
        let store = self.store.unwrap_or_else(|| node_dir(&dir, &name).join("store"));
        Ok(Config {
            name,
            listen,
            advertise,
            data,
            log_listen,
            join: self.join,
            bootstrap_expect: self.bootstrap_expect,
            key: self.key.unwrap_or_else(|| dir.join("key")),
            dir,
            store: absolute("the store", &store)?,
            durable: self.durable.unwrap_or(false),
            log_memory: log_memory << 20,
            encrypt: self.encrypt.unwrap_or(Encrypt::All),
            role,
            slots,
            timing: Timing { heartbeat: Duration::from_millis(heartbeat), missed, ..Timing::default() },
            replay_limit: self.replay_limit.map(Duration::from_secs),
            grace: Duration::from_secs(grace),
            http: self.http,
            log_format: self.log_format.unwrap_or(LogFormat::Text),
            log_level,
            own_session: self.own_session,
        })
    }

    /// Where the node listens, and by which addresses the others reach it and its processes. `own`: those of this machine.
    fn addresses(&self, own: &[IpAddr]) -> Result<Addresses, ConfigError> {
        let mut listen = match &self.listen {
            None => SocketAddr::from((Ipv4Addr::UNSPECIFIED, DEFAULT_PORT)),
            Some(listen) => {
                listen.resolve_here(own).map_err(|error| ConfigError::Name { name: listen.clone(), error: error.to_string() })?
            }
        };
        let control = self.control_network.map(|network| address_in("control-network", network, own)).transpose()?;
        match (control, self.control_network) {
            (Some(ip), _) if listen.ip().is_unspecified() => listen.set_ip(ip),
            (Some(_), Some(network)) if !network.contains(listen.ip()) => {
                let remedy = format!("listen is {listen}, which is not in {network}: leave one of them out");
                return Err(ConfigError::Missing { what: "the node's address in control-network", remedy });
            }
            _ => {}
        }
        let advertise = self.advertise.unwrap_or(listen.ip());
        if advertise.is_unspecified() {
            let remedy = format!(
                "{listen} is every address of this machine: say which one the others reach, with --advertise or --control-network"
            );
            return Err(ConfigError::Missing { what: "the node's address", remedy });
        }
        let data = self.data_network.map(|network| address_in("data-network", network, own)).transpose()?;
        Ok(Addresses { listen, advertise, data: data.unwrap_or(advertise), log_listen: data.unwrap_or(listen.ip()) })
    }

    fn role(&self) -> Result<Role, ConfigError> {
        let of = |asked: Option<bool>, role, name| asked.unwrap_or(false).then_some((role, name));
        let roles = [
            of(self.spare, Role::Spare, "spare"),
            of(self.witness, Role::Witness, "witness"),
            of(self.rejoin_as_spare, Role::Newcomer, "rejoin-as-spare"),
        ];
        let mut asked = roles.into_iter().flatten();
        match (asked.next(), asked.next()) {
            (Some((_, one)), Some((_, other))) => Err(ConfigError::Both(one, other)),
            (Some((role, _)), None) => Ok(role),
            (None, _) => Ok(Role::Node),
        }
    }
}

impl Config {
    /// The node's own directory.
    pub fn node_dir(&self) -> PathBuf {
        node_dir(&self.dir, &self.name)
    }

    /// The node's own folder and that of its store, made if need be. Neither they nor the folders above the node's own, up to the
    /// cluster's, may be another user's, or open to others.
    pub fn make_folders(&self) -> Result<(Folder, Folder), FolderError> {
        let node = Folder::make_all(&self.dir)?.subfolder(NODES)?.subfolder(self.name.as_str())?;
        Ok((node, Folder::make_all(&self.store)?))
    }

    /// The settings in force, as a file that would give them again.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        let (listen, log_format) = (Some(self.listen.into()), Some(self.log_format));
        let is = |role| Some(self.role == role);
        toml::to_string(&Settings {
            name: Some(self.name.clone()),
            listen,
            advertise: Some(self.advertise),
            data_network: (self.data != self.advertise).then(|| self.data.into()),
            join: self.join.clone(),
            bootstrap_expect: self.bootstrap_expect,
            key: Some(self.key.clone()),
            dir: Some(self.dir.clone()),
            store: Some(self.store.clone()),
            durable: Some(self.durable),
            log_memory: Some(self.log_memory >> 20),
            encrypt: Some(self.encrypt),
            spare: is(Role::Spare),
            rejoin_as_spare: is(Role::Newcomer),
            witness: is(Role::Witness),
            slots: Some(self.slots),
            heartbeat_ms: Some(self.timing.heartbeat.as_millis() as u64),
            missed: Some(self.timing.missed),
            replay_limit: self.replay_limit.map(|limit| limit.as_secs()),
            grace: Some(self.grace.as_secs()),
            http: self.http,
            log_format,
            log_level: Some(self.log_level.clone()),
            ..Settings::default()
        })
    }
}

/// The addresses of a node.
struct Addresses {
    listen: SocketAddr,
    advertise: IpAddr,
    data: IpAddr,
    log_listen: IpAddr,
}

/// The first of a machine's own addresses that is in a network.
fn address_in(what: &'static str, network: Network, own: &[IpAddr]) -> Result<IpAddr, ConfigError> {
    own.iter().copied().find(|ip| network.contains(*ip)).ok_or_else(|| {
        let shown = own.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        ConfigError::Missing {
            what,
            remedy: format!("no interface of this machine has an address in {network}; there are {shown}"),
        }
    })
}

/// An address of `--http`, with its port or with the usual one.
pub fn parse_http(text: &str) -> Result<SocketAddr, String> {
    let with_port = || text.parse::<IpAddr>().map(|address| SocketAddr::new(address, HTTP_PORT));
    let why = format!(
        "it is an address and a port, like 127.0.0.1:{HTTP_PORT} or [::1]:{HTTP_PORT}; 0.0.0.0 is every address of this machine"
    );
    text.parse().or_else(|_| with_port()).map_err(|_| why)
}

fn node_dir(dir: &Path, name: &NodeName) -> PathBuf {
    dir.join(NODES).join(name.as_str())
}

fn in_range<T: PartialOrd + ToString>(
    what: &'static str,
    value: T,
    allowed: std::ops::RangeInclusive<T>,
    range: &'static str,
) -> Result<(), ConfigError> {
    if allowed.contains(&value) { Ok(()) } else { Err(ConfigError::Range { what, value: value.to_string(), range }) }
}

fn read_file(path: &Path) -> Result<Settings, ConfigError> {
    let failed = |error: String, remedy| ConfigError::File { path: path.to_owned(), error, remedy };
    let unread = |error: io::Error| failed(error.to_string(), "; name a file of settings with --config or RADIC_CONFIG, or none");
    let file = fs::File::open(path).map_err(unread)?;
    let mut text = String::new();
    let length = file.take(FILE_LIMIT + 1).read_to_string(&mut text).map_err(unread)?;
    if length as u64 > FILE_LIMIT {
        return Err(failed(
            format!("longer than {FILE_LIMIT} bytes"),
            "; settings are lines of `name = value`: see `man radicd`",
        ));
    }
    // What the parser says is several lines, which show the place.
    toml::from_str(&text).map_err(|e| failed(e.to_string(), "settings are lines of `name = value`: see `man radicd`"))
}

/// A folder by its whole path.
fn absolute(what: &'static str, dir: &Path) -> Result<PathBuf, ConfigError> {
    let unusable = |error| ConfigError::Missing { what, remedy: format!("{dir:?}: {error}; give a folder's path") };
    std::path::absolute(dir).map_err(unusable)
}

/// The addresses of this machine's interfaces; none if the system does not tell.
fn addresses() -> Vec<IpAddr> {
    let ip = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    };
    nix::ifaddrs::getifaddrs().into_iter().flatten().filter_map(|interface| ip(interface.address?)).collect()
}

fn host_name() -> Result<NodeName, ConfigError> {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    host.parse().map_err(|e| ConfigError::Missing { what: "the node's name", remedy: format!("{e}: give --name") })
}

/// `~/.radic/cluster`, where `radic` looks too.
fn default_dir() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty())?;
    Some(PathBuf::from(home).join(".radic").join("cluster"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn settings(args: &[&str]) -> Settings {
        Settings::try_parse_from([&["radicd"], args].concat()).unwrap()
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("radic.toml");
        fs::write(&file, "name = \"filed\"\nmissed = 7\nspare = true\njoin = [\"127.0.0.1:1\"]\n").unwrap();
        let file = file.to_str().unwrap();
        let args = ["--config", file, "--name", "flagged", "--listen", "127.0.0.1:0", "--dir", "/d"];
        let config = settings(&args).with_file().unwrap().complete().unwrap();
        assert_eq!((config.name.as_str(), config.timing.missed, config.role), ("flagged", 7, Role::Spare));
        assert_eq!((config.timing.heartbeat.as_millis(), config.join.len()), (100, 1));
        assert_eq!((config.key, config.durable), ("/d/key".into(), false));
        assert_eq!(config.store, Path::new("/d/nodes/flagged/store"));
    }

    #[test]
    fn all_is_encrypted_unless_something_else_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("radic.toml");
        fs::write(&file, "encrypt = \"control\"\n").unwrap();
        let args = ["--name", "a", "--listen", "127.0.0.1:5", "--dir", "/d"];
        let of = |more: &[&str]| settings(&[&args[..], more].concat()).with_file().unwrap().complete().unwrap();
        let file = file.to_str().unwrap();
        for (more, encrypt, cover) in [
            (&[][..], Encrypt::All, Cover::Encrypted),
            (&["--encrypt", "all"], Encrypt::All, Cover::Encrypted),
            (&["--encrypt", "control"], Encrypt::Control, Cover::Authenticated),
            (&["--config", file], Encrypt::Control, Cover::Authenticated),
            (&["--config", file, "--encrypt", "all"], Encrypt::All, Cover::Encrypted),
        ] {
            let config = of(more);
            assert_eq!((config.encrypt, config.encrypt.cover()), (encrypt, cover), "{more:?}");
            let again: Settings = toml::from_str(&config.to_toml().unwrap()).unwrap();
            assert_eq!(again.complete().unwrap().encrypt, encrypt);
        }
        assert!(Settings::try_parse_from([&["radicd"][..], &args, &["--encrypt", "nothing"]].concat()).is_err());
    }

    #[test]
    fn a_witness_is_no_spare() {
        let args = ["--name", "a", "--listen", "127.0.0.1:5", "--dir", "/d", "--witness"];
        let config = settings(&args).complete().unwrap();
        assert_eq!(config.role, Role::Witness);
        let again: Settings = toml::from_str(&config.to_toml().unwrap()).unwrap();
        assert_eq!(again.complete().unwrap().role, Role::Witness);
        for (flag, says) in [
            ("--spare", "spare and witness exclude each other"),
            ("--rejoin-as-spare", "witness and rejoin-as-spare exclude each other"),
        ] {
            let both = settings(&[&args[..], &[flag]].concat()).complete().unwrap_err();
            assert!(both.to_string().starts_with(says), "{both}");
        }
        let newcomer = settings(&[&args[..5], &["/d", "--rejoin-as-spare"]].concat()).complete().unwrap();
        assert_eq!(newcomer.role, Role::Newcomer);
        let again: Settings = toml::from_str(&newcomer.to_toml().unwrap()).unwrap();
        assert_eq!(again.complete().unwrap().role, Role::Newcomer);
    }

    #[test]
    fn what_is_in_force_can_be_read_again() {
        let config = settings(&["--name", "a", "--listen", "127.0.0.1:5", "--dir", "/d"]).complete().unwrap();
        let again: Settings = toml::from_str(&config.to_toml().unwrap()).unwrap();
        assert_eq!(again.complete().unwrap().to_toml().unwrap(), config.to_toml().unwrap());
    }

    proptest! {
        /// A file with anything in it: an error that names it, or settings that are in their ranges and can be written.
        #[test]
        fn any_file_is_settings_or_an_error(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), cut in any::<prop::sample::Index>(),
        ) {
            let good = "name = \"filed\"\nmissed = 7\nheartbeat_ms = 100\nslots = 4\njoin = [\"127.0.0.1:1\"]\nlisten = \"127.0.0.1:5\"\nlog_level = \"info\"\n";
            let mut bytes = good.as_bytes().to_vec();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes.truncate(bytes.len() - cut.index(20));
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("radic.toml");
            fs::write(&file, bytes).unwrap();
            match settings(&["--config", file.to_str().unwrap(), "--dir", "/d"]).with_file() {
                Err(error) => prop_assert!(error.to_string().contains("radic.toml")),
                Ok(settings) => _ = settings.complete().map(|config| config.to_toml().unwrap()),
            }
        }
    }

    /// What packages install as /etc/radic/radicd.toml.
    const EXAMPLE: &str = include_str!("../../packaging/radicd.toml");

    #[test]
    fn the_example_says_nothing_and_shows_every_setting() {
        use clap::CommandFactory as _;
        let as_it_is: Settings = toml::from_str(EXAMPLE).unwrap();
        assert_eq!(toml::to_string(&as_it_is).unwrap(), "", "a package would change a default");
        let set = |line: &str| {
            line.strip_prefix('#').filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase())).map(str::to_owned)
        };
        let shown: Vec<String> = EXAMPLE.lines().filter_map(set).collect();
        // With networks that this machine has.
        let here = shown.join("\n").replace("192.0.2.", "127.0.0.").replace("198.51.100.", "127.0.0.");
        let settings: Settings = toml::from_str(&here).unwrap();
        settings.complete().unwrap();
        let not_for_files = ["config", "check-config", "own-session"];
        for argument in
            Settings::command().get_arguments().filter_map(clap::Arg::get_long).filter(|name| !not_for_files.contains(name))
        {
            let line = format!("{} = ", argument.replace('-', "_"));
            assert!(shown.iter().any(|shown| shown.starts_with(&line)), "{line:?} is missing in packaging/radicd.toml");
        }
    }

    #[test]
    fn networks_choose_among_the_addresses_of_this_machine() {
        let own: Vec<IpAddr> = ["127.0.0.1", "10.77.0.3", "10.78.0.3"].map(|ip| ip.parse().unwrap()).into();
        let of = |args: &[&str]| settings(args).addresses(&own).map_err(|error| error.to_string());
        let shown = |args: &[&str]| {
            let Addresses { listen, advertise, data, log_listen } = of(args).unwrap();
            format!("{listen} {advertise} {data} {log_listen}")
        };
        let (control, data) = ("--control-network=10.77.0.0/16", "--data-network=10.78.0.0/16");
        assert_eq!(shown(&[control, data]), "10.77.0.3:7117 10.77.0.3 10.78.0.3 10.78.0.3");
        assert_eq!(shown(&[control, "--listen=0.0.0.0:0"]), "10.77.0.3:0 10.77.0.3 10.77.0.3 10.77.0.3");
        assert_eq!(shown(&[data, "--listen=10.77.0.3:9"]), "10.77.0.3:9 10.77.0.3 10.78.0.3 10.78.0.3");
        assert_eq!(shown(&["--listen=0.0.0.0:9", "--advertise=10.77.0.3"]), "0.0.0.0:9 10.77.0.3 10.77.0.3 0.0.0.0");
        let error = of(&["--control-network=10.79.0.0/16"]).err().unwrap();
        assert!(error.contains("10.79.0.0/16") && error.contains("10.78.0.3"), "{error}");
        let error = of(&[control, "--listen=10.78.0.3:1"]).err().unwrap();
        assert!(error.contains("not in 10.77.0.0/16"), "{error}");
    }

    #[test]
    fn bad_settings_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("radic.toml");
        for text in ["colour = 1", "missed = \"x\"", "name = \"a b\"", "= ", "missed = -1"] {
            fs::write(&file, text).unwrap();
            let error = settings(&["--config", file.to_str().unwrap()]).with_file().unwrap_err().to_string();
            assert!(error.contains("radic.toml"), "{error}");
        }
        let local = ["--listen", "127.0.0.1:0", "--dir", "/d"];
        for bad in [["--missed", "1"], ["--heartbeat-ms", "0"], ["--slots", "0"], ["--log-level", "loud"]] {
            let error = settings(&[&local[..], &bad].concat()).complete().unwrap_err();
            assert!(matches!(error, ConfigError::Range { .. }), "{error}");
        }
        assert!(matches!(settings(&["--dir", "/d"]).complete(), Err(ConfigError::Missing { .. })), "0.0.0.0 was advertised");
    }
}
