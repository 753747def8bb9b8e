//! What the `radic` command and its protector say to each other over the unix socket: frames of bincode, no encryption; the
//! kernel tells the protector which process and user are at the other end.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::event::Event;
use crate::fault::Fault;
use crate::ids::{JobId, NodeName, ProcessId, Rank};
use crate::job::{JobInfo, JobSpec, Outcome, OutputStream, Placement};
use crate::log::{HeldLog, LogPart};
use crate::membership::Role;
use crate::report::{LogSizes, ProcessInfo, RankCheckpoint, RankInfo, Report};
use crate::suspension::{Resumption, Suspension};

/// Name of the unix socket in the directory of a node.
pub const SOCKET_NAME: &str = "control.sock";

/// From the command. The first one is `Hello`; then one request; after `Run` and `Attach` the conversation goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// [`crate::PROTOCOL_VERSION`] of the command.
    Hello {
        /// The version.
        version: u16,
    },
    /// Start a job.
    Run {
        /// What to run.
        spec: Box<JobSpec>,
        /// Whether this terminal wants its output; else the answer is `Attached` and the end.
        attach: bool,
    },
    /// Show this job here: a job, or the first digits of one.
    Attach {
        /// Hexadecimal digits.
        job: String,
    },
    /// Standard input for rank 0, one piece for each `StdinFrom`.
    Stdin {
        /// Offset of the first byte, over all terminals of the job.
        offset: u64,
        /// The bytes; none: the end.
        data: ByteBuf,
    },
    /// A signal for every rank of the attached job.
    Signal(i32),
    /// This many bytes of output were printed.
    Printed(u64),
    /// Are you there? At any time after `Hello`; the answer is `Pong`.
    Ping,
    /// End a job: a job, or the first digits of one. The answer is `Done` when nothing of it is left.
    Kill {
        /// Hexadecimal digits.
        job: String,
    },
    /// Make checkpoints of all ranks of a job: a job, or the first digits of one. `Checkpoints`, perhaps several times, are the answer
    /// when all are committed or have failed, then `Done`.
    Checkpoint {
        /// Hexadecimal digits.
        job: String,
    },
    /// What is held of a rank of a job, running or ended: a job, or the first digits of one. `Log` is the answer; then `ReadLog` may
    /// follow, any number of times.
    Log {
        /// Hexadecimal digits.
        job: String,
        /// The rank.
        rank: Rank,
    },
    /// Some bytes of what `Log` told of. `LogBytes` is the answer.
    ReadLog {
        /// Of which part.
        part: LogPart,
        /// From this position on.
        position: u64,
    },
    /// Stop all ranks of a job where they are, so that it can be written down: a job, or the first digits of one. The answer is its output that
    /// no terminal has printed, as `Output`, then `Suspending`. If this connection ends, the job goes on. So it does, and the
    /// answer is `Error`, if nothing is said here for a minute: the command says `Ping` when it has got on.
    Suspend {
        /// Hexadecimal digits.
        job: String,
    },
    /// After `Suspending`: everything is written down, the job is to end. The answer is `Done` when nothing of it is left. From here on the command
    /// may be silent.
    EndSuspended,
    /// A suspended job is to go on: where would that be? The answer is `Resuming`.
    Resume(Box<Suspension>, Box<Resumption>),
    /// After `Resuming`: the logs and images of all ranks are where it said. The job goes on, as if this terminal had started it.
    BeginResumed,
    /// The state of the cluster.
    Status,
    /// The state of the answering node alone: no other node is asked. The answer is `Node`.
    Node,
    /// How much has each rank of a job sent to each? The answer is `Traffic`.
    Traffic(JobId),
    /// Events, oldest first; then `Done`, unless they are followed.
    Events {
        /// Go on as they happen.
        follow: bool,
    },
    /// Kill a node: its protector and every process it hosts.
    KillNode {
        /// The node.
        name: NodeName,
    },
    /// Kill a rank of a job, as if it had crashed: a job, or the first digits of one.
    KillRank {
        /// Hexadecimal digits.
        job: String,
        /// The rank.
        rank: Rank,
    },
    /// Cause a fault of a node.
    Fault {
        /// The node.
        name: NodeName,
        /// Which.
        fault: Fault,
    },
    /// End every protector of the cluster, and every job.
    Shutdown,
}

/// From the protector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// To `Hello`.
    Welcome {
        /// [`crate::PROTOCOL_VERSION`] of the protector.
        version: u16,
        /// The daemon's node.
        node: NodeName,
    },
    /// The request failed: what, where, what to do.
    Error(String),
    /// The job has started, or was found.
    Attached {
        /// The job.
        job: JobId,
        /// Where its ranks are.
        placement: Placement,
        /// Bytes of output, since the job began, that came before what comes now: printed by a terminal, or dropped.
        consumed: u64,
        /// Bytes of these that were dropped since the last terminal: lost to the limit on output kept without one.
        dropped: u64,
    },
    /// Output of a rank.
    Output {
        /// The rank.
        rank: Rank,
        /// Which stream.
        stream: OutputStream,
        /// Offset of the first byte in all that the rank has written to the stream, in all its incarnations.
        offset: u64,
        /// The bytes; none: the stream has ended.
        data: ByteBuf,
    },
    /// The next piece of standard input is wanted, from this offset on: further back than what was sent if rank 0 was brought back, and what it had not
    /// read is gone. None: it is not known how much it has read.
    StdinFrom(Option<u64>),
    /// To `Ping`.
    Pong,
    /// To `Suspend`: all ranks are stopped.
    Suspending(Box<Suspension>),
    /// To `Resume`: where the log service of each rank's protector-to-be listens.
    Resuming(Vec<SocketAddr>),
    /// Something for the user to know while the job runs.
    Notice(String),
    /// Another terminal has attached to the job; this one gets no more.
    TakenOver,
    /// The job has ended, and nothing of it is left.
    Ended(Outcome),
    /// To `Status`.
    Status(ClusterStatus),
    /// To `Node`.
    Node(Box<NodeStatus>),
    /// To `Traffic`.
    Traffic(Traffic),
    /// To `Log`: by which node it is held, and what.
    Log(NodeName, HeldLog),
    /// To `ReadLog`: at most [`crate::limits::LOG_CHUNK`] bytes; none at the end of what is held.
    LogBytes(ByteBuf),
    /// To `Checkpoint`: some of the ranks.
    Checkpoints(Vec<RankCheckpoint>),
    /// To `Events`.
    Events(Vec<Event>),
    /// The request was carried out.
    Done,
}

/// What a member of the cluster is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// The node is a member and answers.
    Alive,
    /// The node is a member and has not answered in time.
    Silent,
    /// The node was declared dead.
    Dead,
    /// The node left.
    Left,
}

/// A node as `radic nodes` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// The node's name.
    pub name: NodeName,
    /// Where the node's daemon listens.
    pub address: SocketAddr,
    /// How it is.
    pub state: NodeState,
    /// What it is for.
    pub role: Role,
    /// Ranks that `--map-by slot` places there before it goes to the next node.
    pub slots: u32,
    /// The ranks it hosts.
    pub ranks: Vec<RankInfo>,
    /// The node that protects its processes, and watches it.
    pub protector: Option<NodeName>,
    /// Resident memory of its protector, in bytes; 0 if it does not answer.
    pub memory: u64,
    /// Process id of its protector; 0 if it does not answer.
    pub pid: u32,
}

/// The state of the cluster, as the answering protector sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The node that answers.
    pub answered_by: NodeName,
    /// The number of the node's view; 0 while it has none.
    pub view: u64,
    /// Whether its side has no majority.
    pub frozen: bool,
    /// Members, in ring order, then the spares, then those that are gone.
    pub nodes: Vec<NodeInfo>,
    /// Jobs, ended ones too.
    pub jobs: Vec<JobInfo>,
    /// Protected processes, running ones and some that have ended.
    pub processes: Vec<ProcessInfo>,
}

/// The state of one node, as its own protector knows it: what its metrics are made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The node.
    pub node: NodeName,
    /// What it is for.
    pub role: Role,
    /// Ranks that `--map-by slot` places there before it goes to the next node.
    pub slots: u32,
    /// Where its daemon serves its page and metrics, if it does.
    pub http: Option<SocketAddr>,
    /// The number of the node's view; 0 while it has none.
    pub view: u64,
    /// Whether its side has no majority.
    pub frozen: bool,
    /// How many members its view has of each role.
    pub members: Vec<(Role, u32)>,
    /// The ranks it hosts, and the resident memory of its protector.
    pub report: Report,
    /// What its log service holds of processes, at most [`crate::limits::PROCESSES_SHOWN`].
    pub held: Vec<(ProcessId, LogSizes)>,
    /// The longest time between two checkpoints of a rank that it hosts, for each job that makes them by itself, in milliseconds.
    pub intervals: Vec<(JobId, u64)>,
}

/// The bytes that the ranks of a job have received from each other on connections that are held: those that are open, and those that
/// were closed since their receiver's last checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Sender, receiver, bytes; at most [`crate::limits::PAIRS_SHOWN`].
    pub pairs: Vec<(Rank, Rank, u64)>,
    /// Bytes from processes that are no ranks of the job, or of which the sender is not known.
    pub others: u64,
    /// Whether something is missing: there was more than one answer holds, or a node did not answer.
    pub partial: bool,
}
