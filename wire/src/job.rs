//! Jobs: what to run, where, and how it ended.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::ids::{Epoch, JobId, NodeId, NodeName, Rank};
use crate::limits;
use crate::process::{Interval, LogMode, PayloadMode, Protect, Protection};

/// What a template of the environment may hold, each replaced on the node where the rank starts.
pub mod placeholder {
    /// The network interface that carries the node's address.
    pub const IFACE: &str = "{iface}";
    /// The node's address.
    pub const ADDRESS: &str = "{address}";
    /// The network of the node's address, as `a.b.c.d/len`.
    pub const PREFIX: &str = "{prefix}";
    /// The path of `libradic_pmi.so` on the node.
    pub const RADIC_PMI: &str = "{radic_pmi}";
    /// The path of `libradic_pmix.so` on the node.
    pub const RADIC_PMIX: &str = "{radic_pmix}";
    /// The rank.
    pub const RANK: &str = "{rank}";
    /// A number for the job, of 31 bits with bit 15 clear, as Open MPI 4 wants it.
    pub const JOBNUM: &str = "{jobnum}";
}

/// In which order ranks go to nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum MapBy {
    /// Round robin: neighbours in rank order on different nodes, as few ranks as possible lost with one node.
    #[default]
    Node,
    /// Fill the slots of one node before the next.
    Slot,
}

/// What to run. Paths, arguments and the environment are bytes, as the kernel has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The program, an absolute path.
    pub program: ByteBuf,
    /// The program's arguments, the first being its name.
    pub args: Vec<ByteBuf>,
    /// The whole environment, name and value.
    pub env: Vec<(ByteBuf, ByteBuf)>,
    /// Further variables whose values hold placeholders ([`placeholder`]).
    pub templates: Vec<(String, String)>,
    /// The working directory, an absolute path.
    pub dir: ByteBuf,
    /// How many ranks.
    pub ranks: u32,
    /// On which nodes; empty: on all that are not spares.
    pub nodes: Vec<NodeName>,
    /// In which order.
    pub map_by: MapBy,
    /// The file mode creation mask of its processes: that of the command, not of the protectors.
    pub umask: u32,
    /// How its processes are protected.
    pub protection: Protection,
    /// Mean time between two failures of one node, in seconds: what [`Interval::Auto`] counts with.
    pub mtbf_s: u64,
    /// Where lost processes go on.
    pub restart_on: RestartOn,
    /// What becomes of the job when a process is lost with all that it could go on from.
    pub on_loss: OnLoss,
    /// Which of the job's lives this is: 0 from its start, and a greater number each time it is resumed. Nodes tell by it what was said of the life before.
    pub life: u64,
}

/// Why a job cannot be started as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No rank, or too many.
    #[error("a job has 1 to {limit} ranks, not {0}", limit = limits::RANKS)]
    Ranks(u32),
    /// The kernel would refuse it.
    #[error("arguments and environment take {0} bytes; the limit is {limit}", limit = limits::EXEC_BYTES)]
    TooLong(usize),
    /// exec cannot pass it.
    #[error("{0} holds a NUL byte")]
    Nul(&'static str),
    /// Nodes do not share a working directory.
    #[error("{0} is not an absolute path")]
    Relative(&'static str),
    /// exec wants a name.
    #[error("the argument list is empty")]
    NoArgs,
    /// A number that no command sends.
    #[error("{what} is {value}; it must be {range}")]
    Range {
        /// Which one.
        what: &'static str,
        /// The number's value.
        value: u64,
        /// What is possible.
        range: &'static str,
    },
    /// A recovery line is no use where a replica commits images before their protector does, and where no causes are collected.
    #[error("what is received stays with its senders only with --log causal and --replicas 1")]
    Sender,
}

impl JobSpec {
    /// Checks what a protector relies on. The command checks it before sending, the protector after receiving.
    pub fn validate(&self) -> Result<(), SpecError> {
        if !(1..=limits::RANKS).contains(&self.ranks) {
            return Err(SpecError::Ranks(self.ranks));
        }
        if self.args.is_empty() {
            return Err(SpecError::NoArgs);
        }
        let variables = self.env.iter().map(|(k, v)| k.len() + v.len() + 2);
        let templates = self.templates.iter().map(|(k, v)| k.len() + v.len() + 2);
        let bytes = self.args.iter().map(|a| a.len() + 1).chain(variables).chain(templates).sum();
        if bytes > limits::EXEC_BYTES {
            return Err(SpecError::TooLong(bytes));
        }
        let nul = |bytes: &[u8]| bytes.contains(&0);
        let path = |what, bytes: &ByteBuf| match () {
            () if nul(bytes) => Err(SpecError::Nul(what)),
            () if bytes.first() != Some(&b'/') => Err(SpecError::Relative(what)),
            () => Ok(()),
        };
        path("the program", &self.program)?;
        path("the working directory", &self.dir)?;
        if self.args.iter().any(|a| nul(a)) {
            return Err(SpecError::Nul("an argument"));
        }
        let bad_variable = self.env.iter().any(|(k, v)| nul(k) || nul(v) || k.is_empty() || k.contains(&b'='));
        let bad_template =
            self.templates.iter().any(|(k, v)| nul(k.as_bytes()) || nul(v.as_bytes()) || k.is_empty() || k.contains('='));
        if bad_variable || bad_template {
            return Err(SpecError::Nul("the environment, or a name in it,"));
        }
        self.validate_protection()
    }

    fn validate_protection(&self) -> Result<(), SpecError> {
        let in_range = |what, value, allowed: std::ops::RangeInclusive<u64>, range| {
            if allowed.contains(&value) { Ok(()) } else { Err(SpecError::Range { what, value, range }) }
        };
        let Protection { protect, interval, replicas, outbox, log, log_mode, payload, .. } = self.protection;
        in_range("the umask", self.umask.into(), 0..=0o777, "0 to 0777")?;
        if protect == Protect::None {
            return Ok(());
        }
        if let Interval::Every(ms) = interval {
            in_range("the checkpoint interval", ms, 10..=30 * 24 * 3_600_000, "10 ms to 30 days")?;
        }
        in_range("the mean time between failures", self.mtbf_s, 1..=1 << 40, "1 s or more")?;
        in_range("the number of replicas", replicas.into(), 1..=2, "1 or 2")?;
        if payload == PayloadMode::Sender && (log_mode == LogMode::Waiting || replicas != 1) {
            return Err(SpecError::Sender);
        }
        if let Some(outbox) = outbox {
            in_range("the outbox", outbox, 1 << 20..=limits::MOST_OUTBOX, "1 MiB to 16 GiB")?;
        }
        in_range("the log limit", log, 1 << 20..=1 << 50, "1 MiB or more")
    }

    /// The command as the user typed it, for people; cut at 200 characters.
    pub fn command_line(&self) -> String {
        let words: Vec<_> = self.args.iter().map(|a| String::from_utf8_lossy(a)).collect();
        words.join(" ").chars().map(|c| if c.is_control() { '?' } else { c }).take(200).collect()
    }
}

/// Where the ranks of a job are: `nodes[rank_nodes[rank]]`. The node of rank 0 is the job's home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The nodes that host a rank.
    pub nodes: Vec<NodeId>,
    /// For each rank the index of its node.
    pub rank_nodes: Vec<u32>,
}

/// Where a lost process goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum RestartOn {
    /// On a spare, if there is one; else on its protector's node, which has its log.
    #[default]
    Spare,
    /// On its protector's node.
    Protector,
    /// On the node that has the fewest ranks of its job.
    Any,
}

/// What becomes of a job of which a process is lost that cannot be brought back: nothing that it could go on from is left, or was there yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum OnLoss {
    /// The job restarts from the beginning.
    #[default]
    Restart,
    /// The job ends with an error: what it does outside itself must not be done twice.
    Fail,
}

impl Placement {
    /// The node of a rank.
    pub fn node_of(&self, rank: Rank) -> Option<&NodeId> {
        self.nodes.get(*self.rank_nodes.get(rank.0 as usize)? as usize)
    }

    /// The node that keeps the job together: that of rank 0.
    ///
    /// # Panics
    /// If the placement was not validated.
    pub fn home(&self) -> &NodeId {
        self.node_of(Rank(0)).expect("a validated placement has rank 0")
    }

    /// The ranks on a node, in order.
    pub fn ranks_on<'a>(&'a self, node: &'a NodeId) -> impl Iterator<Item = Rank> + 'a {
        let here = self.nodes.iter().position(|n| n == node).map(|i| i as u32);
        (0..).zip(&self.rank_nodes).filter(move |(_, node)| Some(**node) == here).map(|(rank, _)| Rank(rank))
    }

    /// Whether it places each of `ranks` ranks on a listed node, and lists no node without a rank or twice.
    pub fn is_valid(&self, ranks: u32) -> bool {
        let mut used = vec![false; self.nodes.len()];
        let placed = self.rank_nodes.iter().all(|&n| used.get_mut(n as usize).map(|u| *u = true).is_some());
        let mut unique = self.nodes.clone();
        unique.sort();
        unique.dedup();
        ranks > 0
            && self.rank_nodes.len() == ranks as usize
            && placed
            && used.iter().all(|u| *u)
            && unique.len() == self.nodes.len()
    }
}

/// Standard output or standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutputStream {
    /// File descriptor 1.
    Stdout,
    /// File descriptor 2.
    Stderr,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExitStatus {
    /// The process exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// Ended by this signal because the job was ending; not a failure. The home knows why the job ended.
    Ended(i32),
}

impl ExitStatus {
    /// The code a shell would report: 128 + n for signal n.
    pub fn shell_code(self) -> i32 {
        match self {
            ExitStatus::Code(code) => code,
            ExitStatus::Signal(signal) | ExitStatus::Ended(signal) => 128 + signal,
        }
    }

    /// This status, for a process whose job is to end. Only what a signal does can have come of that.
    pub fn with_job(self) -> ExitStatus {
        match self {
            ExitStatus::Signal(signal) => ExitStatus::Ended(signal),
            other => other,
        }
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExitStatus::Code(code) => write!(f, "exited with code {code}"),
            ExitStatus::Signal(signal) => write!(f, "was ended by signal {signal}"),
            ExitStatus::Ended(signal) => write!(f, "was ended with its job, by signal {signal}"),
        }
    }
}

/// Exit codes of `radic run` that do not come from the program.
pub mod exit_code {
    /// A node died that hosted ranks of a job that was not protected.
    pub const NODE_LOST: i32 = 113;
    /// The job was suspended: `radic resume` goes on with it.
    pub const SUSPENDED: i32 = 114;
    /// RADIC itself failed: no cluster, bad flags for the cluster, a protector that went away.
    pub const RADIC: i32 = 125;
    /// The program was found and could not be executed.
    pub const CANNOT_EXECUTE: i32 = 126;
    /// The program was not found.
    pub const NOT_FOUND: i32 = 127;
    /// All of RADIC's own: `radic explain` has a text for each.
    pub const ALL: [i32; 5] = [NODE_LOST, SUSPENDED, RADIC, CANNOT_EXECUTE, NOT_FOUND];
}

/// Why a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndReason {
    /// Every rank exited with code 0.
    Finished,
    /// A rank failed first; the others were ended.
    RankFailed {
        /// The rank.
        rank: Rank,
        /// The node where it has ended, which may be lost since.
        node: NodeName,
        /// How it ended.
        status: ExitStatus,
    },
    /// A rank called `MPI_Abort`.
    Aborted {
        /// The rank.
        rank: Rank,
        /// The code it gave.
        code: i32,
        /// The library's message, if any.
        message: String,
    },
    /// A rank exited with code 0 between `MPI_Init` and `MPI_Finalize`; the others would have waited forever.
    NotFinalized {
        /// The rank.
        rank: Rank,
        /// The node where it has ended, which may be lost since.
        node: NodeName,
    },
    /// A node died, and the job was not protected.
    NodeLost {
        /// The node.
        node: NodeName,
        /// The ranks that were there.
        ranks: Vec<Rank>,
        /// What was seen.
        why: String,
    },
    /// A rank cannot be brought back, and the job does not restart from its beginning; or what it has written is lost. Its node need not be.
    RankLost {
        /// The rank.
        rank: Rank,
        /// Where it was, or was to be.
        node: NodeName,
        /// What was seen.
        why: String,
    },
    /// A rank could not be started.
    LaunchFailed {
        /// The rank.
        rank: Rank,
        /// Where.
        node: NodeName,
        /// What the system said.
        error: String,
        /// [`exit_code::NOT_FOUND`], [`exit_code::CANNOT_EXECUTE`] or [`exit_code::RADIC`].
        code: i32,
    },
    /// `radic kill`, or an interrupt repeated at the terminal.
    Killed,
    /// `radic suspend`: `radic resume` goes on with it.
    Suspended,
    /// A rank exited with code 0 without `MPI_Init`, for which others wait in `MPI_Init`.
    FenceMissed {
        /// The rank.
        rank: Rank,
        /// The node where it has ended, which may be lost since.
        node: NodeName,
        /// The ranks that wait for it.
        waiting: Vec<Rank>,
    },
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The exit code of `radic run`.
    pub code: i32,
    /// Why.
    pub reason: EndReason,
}

/// What a protector knows of a job with processes that it may have to bring back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ward {
    /// The job's epoch.
    pub epoch: Epoch,
    /// What runs.
    pub spec: JobSpec,
    /// Where its ranks are.
    pub placement: Placement,
    /// Fences that were released.
    pub fence: u64,
    /// All keys of its key space.
    pub keys: Vec<(String, String)>,
}

/// A job as `radic jobs` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInfo {
    /// The job.
    pub job: JobId,
    /// The job's command line.
    pub command: String,
    /// How many ranks it has.
    pub ranks: u32,
    /// Ranks that have not ended.
    pub running: u32,
    /// Ranks that were lost and are not back, or that wait for their first checkpoint at another protector than before. If they are lost now, the job may
    /// have to restart from its beginning.
    pub degraded: Vec<Rank>,
    /// The nodes it was placed on.
    pub nodes: Vec<NodeName>,
    /// The node that keeps it together.
    pub home: NodeName,
    /// When it was started, in milliseconds since 1970.
    pub started_ms: u64,
    /// How long it has run, or ran, in milliseconds.
    pub elapsed_ms: u64,
    /// Where the bytes are kept that its ranks have received from each other.
    pub payload: PayloadMode,
    /// How it ended, if it has.
    pub outcome: Option<Outcome>,
}
