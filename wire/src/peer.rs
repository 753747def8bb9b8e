//! What protectors say to each other.
//!
//! A protector opens a connection of its own to every protector it has something to tell; answers to what it says travel on the
//! other's own connection back. Each such [`Purpose::Link`] is made reliable across broken connections by sequence numbers: see
//! the protector's `link` module.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::determinant::{ConnectionId, StreamId};
use crate::event::Event;
use crate::ids::{Incarnation, JobId, NodeId, ProcessId, Rank};
use crate::job::{ExitStatus, JobInfo, JobSpec, Outcome, OutputStream, Placement};
use crate::local::{LogSizes, ProcessInfo, RankCheckpoint, RankInfo};
use crate::log::{HeldLog, LogPart};
use crate::membership::{Member, MembershipMessage};
use crate::process::Protection;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// A reliable, ordered stream of [`LinkFrame`]s.
    Link,
    /// Heartbeats, each worth nothing once the next is there.
    Heartbeat,
    /// One [`MembershipMessage`] from a node that is no member yet and knows only an address, or to one that is no member any more.
    Join,
    /// Does this very protector answer? The [`Welcome`] is the answer.
    Probe,
}

/// The first message of the connecting side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::PROTOCOL_VERSION`] of the sender.
    pub version: u16,
    /// Who connects, and where it listens.
    pub from: Member,
    /// Whom it means to reach; `None` while it joins and knows only an address.
    pub to: Option<NodeId>,
    /// What for.
    pub purpose: Purpose,
}

/// The accepting side's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Who accepts.
    pub id: NodeId,
    /// The last sequence number received on earlier links from this sender; 0: none.
    pub received: u64,
    /// Why not, if refused.
    pub refused: Option<String>,
}

/// What travels on a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkFrame {
    /// From the connecting side: a message with its number, from 1.
    Data {
        /// Its number.
        seq: u64,
        /// The message.
        message: PeerMessage,
    },
    /// From the accepting side: every message up to this number was handled.
    Ack {
        /// The number.
        received: u64,
    },
}

/// What travels on a heartbeat connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The sender's newest view.
    pub view: u64,
}

/// A terminal's conversation about one job: the node that the terminal is connected to, and that node's number for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId {
    /// The node that the terminal is connected to.
    pub node: NodeId,
    /// Its number there.
    pub number: u64,
}

/// How far a process has come with MPI, as its PMI connection shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MpiPhase {
    /// It has not called `MPI_Init`: perhaps no MPI program.
    Before,
    /// Between `MPI_Init` and `MPI_Finalize`: others may wait for it.
    Within,
    /// It has called `MPI_Finalize`: nobody waits for it any more.
    After,
}

/// A message between protectors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerMessage {
    /// Agreement on views.
    Membership(MembershipMessage),
    /// About a job, to its home.
    ToHome(JobId, ToHome),
    /// About a job, from its home to a node that hosts its ranks.
    ToHost(JobId, ToHost),
    /// About a job, from its home to the node of a terminal.
    ToSession(SessionId, ToSession),
    /// A question, answered by `Answer` with the same number.
    Query(u64, Query),
    /// The answer to a question.
    Answer(u64, Answer),
    /// Send me every event from now on.
    Subscribe,
    /// No more events, please.
    Unsubscribe,
    /// Events that were subscribed to.
    Events(Vec<Event>),
    /// To a protector: about what it holds of a job.
    ToStore(JobId, ToStore),
    /// A committed image covers that the other end of this connection was closed: your process will never need it again.
    Forget {
        /// The connection.
        connection: ConnectionId,
        /// The process.
        process: ProcessId,
    },
    /// The caller that [`Query::Listener`] has announced does not come.
    Withdraw {
        /// Its connection.
        connection: ConnectionId,
        /// Its end.
        from: SocketAddr,
        /// Whom it wanted to call.
        process: ProcessId,
    },
    /// Kill all ranks and yourself with SIGKILL, at once (`radic inject kill-node`).
    Die,
    /// The whole cluster ends (`radic cluster stop`).
    Shutdown,
}

/// To a protector, about what it holds of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToStore {
    /// From a host: you are the protector of these ranks, in this manner.
    Protect {
        /// How.
        protection: Protection,
        /// Which.
        ranks: Vec<Rank>,
    },
    /// The job is over: nobody will ask for its logs and images.
    Remove,
}

/// To a job's home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHome {
    /// Start this job.
    Start {
        /// What to run.
        spec: Box<JobSpec>,
        /// Where.
        placement: Placement,
        /// The terminal that wants its output, if any.
        session: Option<SessionId>,
    },
    /// A terminal wants the output.
    Attach(SessionId),
    /// A terminal is gone.
    Detach(SessionId),
    /// The terminal has printed this many bytes.
    Printed {
        /// The terminal.
        session: SessionId,
        /// Bytes.
        bytes: u64,
    },
    /// A piece of standard input for rank 0; empty: the end.
    Stdin {
        /// From which terminal.
        session: SessionId,
        /// The bytes.
        data: ByteBuf,
    },
    /// A signal for every rank.
    Signal(i32),
    /// End the job.
    Kill {
        /// Who waits for its end, and is told `Ended`; not the job's own terminal, which is told anyway.
        session: Option<SessionId>,
    },
    /// From a host: this rank runs.
    Launched {
        /// The rank.
        rank: Rank,
        /// Its process id on its node.
        pid: u32,
    },
    /// From a host: this rank could not be started.
    LaunchFailed {
        /// The rank.
        rank: Rank,
        /// What the system said.
        error: String,
        /// The exit code that says so.
        code: i32,
    },
    /// From a host: output of a rank. No more of this stream comes before it is taken.
    Output {
        /// The rank.
        rank: Rank,
        /// Which stream.
        stream: OutputStream,
        /// The bytes.
        data: ByteBuf,
    },
    /// From a host: rank 0 took the last piece of standard input.
    StdinTaken,
    /// From a host: a rank and every process of its group have ended, and its output is complete.
    Exited {
        /// The rank.
        rank: Rank,
        /// How.
        status: ExitStatus,
        /// How far it had come with MPI.
        phase: MpiPhase,
    },
    /// From a host: a rank called `MPI_Abort`.
    Aborted {
        /// The rank.
        rank: Rank,
        /// The code.
        code: i32,
        /// The library's message.
        message: String,
    },
    /// From a host: all its ranks have entered the fence with this number.
    Fence {
        /// Counted from 1.
        number: u64,
        /// What they have put since the last one.
        entries: Vec<(String, String)>,
    },
    /// From a host: it has nothing left of the job.
    Gone,
}

/// From a job's home to a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHost {
    /// Start the ranks that are placed on you.
    Launch {
        /// Which life of the job.
        incarnation: Incarnation,
        /// What to run.
        spec: Box<JobSpec>,
        /// Where.
        placement: Placement,
    },
    /// Standard input for rank 0; empty: the end.
    Stdin(ByteBuf),
    /// A signal for every rank here.
    Signal(i32),
    /// The piece of output has been taken: read on.
    OutputTaken {
        /// The rank.
        rank: Rank,
        /// Which stream.
        stream: OutputStream,
    },
    /// Every host is in the fence: go on.
    Release {
        /// Counted from 1.
        number: u64,
        /// What the ranks of all hosts have put since the last fence.
        entries: Vec<(String, String)>,
    },
    /// The job ends: what still runs is ended (SIGTERM, then SIGKILL), then `Gone` is the answer.
    End {
        /// SIGKILL at once.
        kill: bool,
    },
}

/// From a job's home to the node of a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSession {
    /// The job has started, or was found.
    Attached {
        /// The job.
        job: JobId,
        /// Where its ranks are.
        placement: Placement,
        /// Bytes of output, since the job began, that came before what comes now: printed by a terminal, or dropped.
        consumed: u64,
        /// Those of them that were dropped since the last terminal: lost to the limit on output kept without one.
        dropped: u64,
    },
    /// There is no such job here.
    NoSuchJob,
    /// Output of a rank.
    Output {
        /// The rank.
        rank: Rank,
        /// Which stream.
        stream: OutputStream,
        /// The bytes.
        data: ByteBuf,
    },
    /// Rank 0 took the last piece of standard input: send the next.
    StdinTaken,
    /// Another terminal has attached; this one gets no more.
    TakenOver,
    /// The job has ended and nothing of it is left.
    Ended(Outcome),
}

/// A question to a protector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Query {
    /// What do you host, and which jobs are you the home of?
    Report,
    /// Which events do you remember?
    Events,
    /// Which port was published under this name?
    LookupName(String),
    /// Forget this published name.
    UnpublishName {
        /// The job that published it: no other may.
        job: JobId,
        /// The name.
        name: String,
    },
    /// Which process of yours listens there? It is going to be called.
    Listener {
        /// The caller's connection.
        connection: ConnectionId,
        /// Its end.
        from: SocketAddr,
        /// Where it calls.
        to: SocketAddr,
    },
    /// Up to which offset do you hold what this process receives on this stream?
    Stable {
        /// The stream.
        stream: StreamId,
        /// Who receives it.
        receiver: ProcessId,
    },
    /// The process begins anew (exec): forget its log and images.
    ForgetProcess(ProcessId),
    /// How much do you hold of each process that you protect?
    Sizes,
    /// What do you hold of this process?
    Log(ProcessId),
    /// Some bytes of that, from this position on.
    ReadLog {
        /// The process.
        process: ProcessId,
        /// Of which part.
        part: LogPart,
        /// From where.
        position: u64,
    },
    /// Make checkpoints of your ranks of this job. The answer comes when they are committed.
    Checkpoint(JobId),
}

/// An answer to a [`Query`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To `Report`.
    Report(Report),
    /// To `Events`, oldest first.
    Events(Vec<Event>),
    /// To `LookupName` (the port) and `UnpublishName` (what it was).
    Name(Option<String>),
    /// To `Listener`; who asked may have given up, and withdraws then what it has announced.
    Listener {
        /// The caller's connection.
        connection: ConnectionId,
        /// Its end.
        from: SocketAddr,
        /// Who listens, if anybody does.
        process: Option<ProcessId>,
    },
    /// To `Stable`; 0 if nothing is known of it.
    Stable(u64),
    /// To `ForgetProcess`.
    Forgotten,
    /// To `Sizes`: at most [`crate::limits::PROCESSES_SHOWN`].
    Sizes(Vec<(ProcessId, LogSizes)>),
    /// To `Log`.
    Log(Option<HeldLog>),
    /// To `ReadLog`: at most [`crate::limits::LOG_CHUNK`] bytes, none at the end of what is held; or why there are none.
    LogBytes(Result<ByteBuf, String>),
    /// To `Checkpoint`.
    Checkpoints(Vec<RankCheckpoint>),
}

/// What a protector says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The ranks it hosts.
    pub ranks: Vec<RankInfo>,
    /// Its protected processes, running ones and some that have ended.
    pub processes: Vec<ProcessInfo>,
    /// The jobs it is the home of, ended ones too.
    pub jobs: Vec<JobInfo>,
    /// Its resident memory, in bytes.
    pub memory: u64,
    /// Its process id.
    pub pid: u32,
}
