//! What protectors say to each other.
//!
//! A protector opens a connection of its own to every protector it has something to tell; answers to what it says travel on the
//! other's own connection back. Each such [`Purpose::Link`] is made reliable across broken connections by sequence numbers: see
//! the protector's `link` module.

mod questions;
mod standing;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::determinant::{ConnectionId, StreamId};
use crate::event::Event;
use crate::fault::Fault;
use crate::ids::{Epoch, Incarnation, JobId, NodeId, NodeName, ProcessId, Rank};
use crate::job::{ExitStatus, JobSpec, Outcome, OutputStream, Placement, Ward};
use crate::log::ImageRange;
use crate::membership::{Member, MembershipMessage};
use crate::process::{Room, StreamEnd};
use crate::suspension::{Resumption, Suspension};

pub use questions::{Answer, Deaths, Flow, Gift, HeldCauses, JobEnd, LineAnswer, LineStep, Query, Revival};
pub use standing::{Crashed, Left, MpiPhase, Standing, Stood};

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
    /// The node that connects, and the address where it listens.
    pub from: Member,
    /// The node that it means to reach; `None` while it joins and knows only an address.
    pub to: Option<NodeId>,
    /// What for.
    pub purpose: Purpose,
}

/// The accepting side's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The node that accepts.
    pub id: NodeId,
    /// The last sequence number that was received on earlier links from this sender; 0: none.
    pub received: u64,
    /// Why not, if refused.
    pub refused: Option<String>,
}

/// What travels on a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkFrame {
    /// From the connecting side: a message with its number, from 1.
    Data {
        /// The message's number.
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
    /// The node's number for the conversation.
    pub number: u64,
}

/// A message between nodes.
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
    /// The other end of this connection is closed, and a committed image covers that: your process will never need it again.
    Forget {
        /// The connection.
        connection: ConnectionId,
        /// The process.
        process: ProcessId,
        /// No image of the other end's process has it any more.
        for_good: bool,
        /// The epoch of the job: the next one gives the same numbers to other connections.
        epoch: Epoch,
    },
    /// The caller that [`Query::Listener`] announced does not come, or has reached a process that is not protected.
    Withdraw {
        /// The caller's connection.
        connection: ConnectionId,
        /// The caller's end of it.
        from: SocketAddr,
        /// The number of the caller's last question that this withdraws. The caller may have asked again since.
        until: u64,
    },
    /// From the protector of a lost process to the node where it goes on: bring it back.
    Restart(Box<RestartOrder>),
    /// From the node where a process goes on, to all members: it is there.
    Restarted {
        /// The process.
        process: ProcessId,
        /// The process's incarnation.
        incarnation: Incarnation,
        /// Where the journal ended with which the process goes on.
        log_end: u64,
        /// Where the process is dialed.
        door: SocketAddr,
    },
    /// From each node that has something of a job that has lost its home, to the new home, until `NewHome` has come from there.
    Adopt(Box<Adoption>),
    /// From a job's new home, to all members, and once more to each node that sends `Adopt` again: hosts of the job report, nodes
    /// of its terminals attach again.
    NewHome(JobId),
    /// Kill this rank with SIGKILL (`radic inject kill-rank`).
    KillRank(ProcessId),
    /// Have this fault (`radic inject`).
    Fault(Fault),
    /// Kill all ranks and yourself with SIGKILL, at once (`radic inject kill-node`).
    Die,
    /// The whole cluster ends (`radic cluster stop`).
    Shutdown,
    /// About a job that was resumed: in which of its lives ([`JobSpec::life`]), and the code of the message. A message within
    /// would be within a message without end.
    OfLife(u64, ByteBuf),
}

/// To a protector, about what it holds of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToStore {
    /// From a host: you are the protector of these ranks.
    Protect {
        /// Which, and the incarnation of each.
        ranks: Vec<(Rank, Incarnation)>,
        /// Of the processes that were first launched elsewhere: the address there.
        origins: BTreeMap<Rank, IpAddr>,
        /// The job of these ranks.
        ward: Box<Ward>,
    },
    /// From a protector: your log service has a copy of the logs and images of these. If their host is lost and so is their protector, bring them back.
    Stand(Box<Standing>),
    /// From a host, after a fence: the key space of its ranks.
    Keys {
        /// Fences that were released.
        fence: u64,
        /// All keys.
        entries: Vec<(String, String)>,
    },
    /// From a host: this process has ended by a signal that was not sent to end it. Bring it back.
    Restart {
        /// The process.
        rank: Rank,
        /// The signal, if the process was live: without an image, a second one of them is taken for a program that fails at its start.
        signal: Option<i32>,
    },
    /// From a host: this rank has ended by itself, and all that it has printed is printed, or with its home: it is not to be brought back.
    Left {
        /// Which.
        rank: Rank,
        /// How it has ended.
        status: ExitStatus,
        /// How far it had come with MPI.
        phase: MpiPhase,
        /// The ends of what it has sent.
        finals: Vec<(StreamId, StreamEnd)>,
    },
    /// From a home: the job restarts from its beginning, and no process of an epoch before this one is to be brought back.
    Anew(Epoch),
    /// From the home of a job that was suspended: you have the logs and images of these ranks; bring them back.
    Resume {
        /// Each process, its first incarnation in this life, and the address of the node where it was first launched.
        ranks: Vec<(Rank, Incarnation, IpAddr)>,
        /// The job of these ranks.
        ward: Box<Ward>,
    },
    /// From a job's home: the job's images of this recovery line count from now on, and those of earlier lines.
    LineComplete {
        /// The epoch of the job.
        epoch: Epoch,
        /// The line's number.
        line: u64,
    },
    /// From a job's home: images of these recovery lines never count.
    LinesGivenUp {
        /// The epoch of the job.
        epoch: Epoch,
        /// The lines after this one.
        after: u64,
        /// Up to this one.
        to: u64,
    },
    /// The job is over: its logs and images will not be asked for. How it has ended, from a home, if all that was written is printed: a terminal that has not
    /// heard so when the home is lost ends with this.
    Remove(Option<Outcome>),
}

/// All that a node needs to bring a process back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartOrder {
    /// The process.
    pub process: ProcessId,
    /// The incarnation as which the process comes back.
    pub incarnation: Incarnation,
    /// The process's job.
    pub ward: Ward,
    /// The address of the node where the process was first launched: by it others know where it listens.
    pub origin: IpAddr,
    /// The log service that has its log and images.
    pub log: SocketAddr,
    /// The log service that has copies of the images, if there are any.
    pub replica: Option<SocketAddr>,
    /// The process's images, a full one first, then its increments: numbers and sizes.
    pub images: Vec<(u64, u64)>,
    /// The range of the images' numbers.
    pub range: ImageRange,
    /// The journal position of the last image.
    pub cut: u64,
    /// Where the process's journal ends.
    pub log_end: u64,
    /// Of each stream that the process receives: units held, and where the stream has ended.
    pub held: Vec<(StreamId, u64, Option<u64>)>,
    /// The causes that are kept for the process: a set, and the position of its first byte.
    pub causes: (u64, ByteBuf),
}

/// A job that has lost its home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adoption {
    /// Which.
    pub job: JobId,
    /// What is known of it, but for its fences and keys: hosts report those.
    pub ward: Ward,
    /// When it was started, in milliseconds since 1970.
    pub started_ms: u64,
    /// The sender's view, in which the home before is lost.
    pub view: u64,
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
    /// Go on with this suspended job.
    Resume {
        /// What is known of it, with the new placement.
        suspension: Box<Suspension>,
        /// The first incarnations of its ranks in this life.
        resumption: Box<Resumption>,
        /// The protector of the ranks of each node of the placement.
        protectors: Vec<NodeId>,
        /// The terminal that wants its output.
        session: SessionId,
    },
    /// Stop all ranks where they are; a `Detach` of this session lets them go on.
    Suspend(SessionId),
    /// The command of this session, which suspends the job, was given up by its node because it said nothing for too long: the ranks go on.
    SuspenderHangs(SessionId),
    /// What was stopped is written down: the job ends.
    EndSuspended(SessionId),
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
        /// Offset of the first byte.
        offset: u64,
        /// The bytes.
        data: ByteBuf,
    },
    /// A signal for every rank.
    Signal(i32),
    /// End the job.
    Kill {
        /// The session that waits for its end and is told `Ended`; not the job's own terminal, which is told anyway.
        session: Option<SessionId>,
    },
    /// From a protector: it has this rank's image of a recovery line, whole and verified.
    LineReady {
        /// The epoch of the job.
        epoch: Epoch,
        /// The rank.
        rank: Rank,
        /// The line's number.
        line: u64,
    },
    /// From a host: the outbox of a rank fills, and the next recovery line would free some of it.
    LineWanted(Epoch),
    /// From a host: a rank makes no image of this recovery line.
    LineFailed {
        /// The epoch of the job.
        epoch: Epoch,
        /// The line's number.
        line: u64,
    },
    /// From a host, of its ranks.
    Host {
        /// The epoch of the job in which they are: what is said of an earlier one says nothing of this one.
        epoch: Epoch,
        /// What it says.
        said: FromHost,
    },
    /// From the protector of a rank that has lost its host: the rank had ended before, and all that it has printed is known.
    Left {
        /// The rank.
        rank: Rank,
        /// The node where the rank has ended.
        node: NodeName,
        /// The epoch of the job: in the next one the rank has not ended.
        epoch: Epoch,
        /// How it has ended.
        status: ExitStatus,
        /// How far it had come with MPI.
        phase: MpiPhase,
    },
    /// Where the streams of a rank end that has ended by itself; from its host, and from its protector when the host is lost. A process that is brought
    /// back asks how much of what it had sent had come, and host and protector may both be gone by then.
    Finals {
        /// The rank.
        rank: Rank,
        /// The epoch of the job.
        epoch: Epoch,
        /// The ends of what it has sent.
        finals: Vec<(StreamId, StreamEnd)>,
    },
    /// From a protector: this rank was lost before a checkpoint of it was committed. The job restarts from the beginning.
    NoImage {
        /// The rank.
        rank: Rank,
        /// The incarnation that was lost, or was to be: a job that has begun its next epoch since does not do so again.
        incarnation: Incarnation,
        /// Why not, for people.
        why: String,
        /// How the rank has crashed, if that is why it was lost.
        crash: Option<Crashed>,
    },
    /// From a protector: this rank is lost, and cannot be brought back.
    Lost {
        /// The rank.
        rank: Rank,
        /// The incarnation that was to be.
        incarnation: Incarnation,
        /// Why, for people.
        why: String,
    },
}

/// What of a protected rank is not protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Unprotected {
    /// A child of it.
    Child,
    /// A child of it that takes connections at a listener of the rank's.
    ServingChild,
    /// A connection with a process that is not protected.
    Peer,
    /// What it has done since its last checkpoint: none can be made of it.
    Work,
}

/// What a host says of its ranks to the job's home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromHost {
    /// This rank runs.
    Launched {
        /// The rank.
        rank: Rank,
        /// The process id of the rank on its node.
        pid: u32,
    },
    /// This rank could not be started.
    LaunchFailed {
        /// The rank.
        rank: Rank,
        /// What the system said.
        error: String,
        /// The exit code that says so.
        code: i32,
    },
    /// output of a rank. Only so much comes before some of it was printed ([`limits::OUTPUT_UNPRINTED`](crate::limits::OUTPUT_UNPRINTED)).
    Output {
        /// The rank.
        rank: Rank,
        /// Which stream.
        stream: OutputStream,
        /// Offset of the first byte in what the rank writes to the stream, in all its incarnations.
        offset: u64,
        /// The bytes. None: the rank has come to its end, and so has the stream. Its host waits until all before that is printed or kept.
        data: ByteBuf,
    },
    /// rank 0 took the piece of standard input with this number.
    StdinTaken(u64),
    /// rank 0 has another pipe, or none.
    StdinWanted(StdinWanted),
    /// a rank and every process of its group have ended, and its output is complete.
    Exited {
        /// The rank.
        rank: Rank,
        /// How.
        status: ExitStatus,
        /// How far it had come with MPI.
        phase: MpiPhase,
    },
    /// a rank has come to its end, and all that it has printed is printed or kept. Its process waits for [`ToHost::LetGo`].
    AtEnd {
        /// The rank.
        rank: Rank,
        /// The code with which it is about to exit. The job does not end for it.
        code: i32,
    },
    /// something of a rank is not protected: the terminal is told of the first of each kind.
    Unprotected {
        /// Of what kind.
        kind: Unprotected,
        /// What, for people.
        text: String,
    },
    /// its ranks are stopped, and where each was first launched; or why they are not.
    Frozen(Result<Vec<(Rank, IpAddr)>, String>),
    /// a rank called `MPI_Abort`.
    Aborted {
        /// The rank.
        rank: Rank,
        /// The code.
        code: i32,
        /// The library's message.
        message: String,
    },
    /// All ranks of the host are in the fence with this number, or were let out of it in an earlier incarnation. It may be said
    /// again: a home that has released the fence says so again.
    Fence {
        /// Counted from 1.
        number: u64,
        /// The ranks of the host: one that is brought back there later has not entered the fence.
        ranks: Vec<Rank>,
        /// What they have put since the last one.
        entries: Vec<(String, String)>,
    },
    /// The host has nothing left of the job.
    Gone,
    /// To a new home: what became of the host's ranks.
    Report(HostReport),
    /// This rank is lost, and cannot be brought back here.
    Lost {
        /// The rank.
        rank: Rank,
        /// Why, for people.
        why: String,
    },
    /// This rank was killed with the job, and has not ended. It counts as ended all the same, but the job cannot restart: its
    /// next epoch might meet the process.
    NotEnded {
        /// The rank.
        rank: Rank,
        /// What is known of it, for people.
        why: String,
    },
    /// What keeps a rank, and the job with it, for the terminal.
    Kept {
        /// The rank.
        rank: Rank,
        /// What, for people.
        what: String,
    },
}

/// What a host says of its ranks to a new home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReport {
    /// Ranks that run, or are being brought back.
    pub running: Vec<Rank>,
    /// Ranks that have ended, and how.
    pub ended: Vec<(Rank, ExitStatus, MpiPhase)>,
    /// Fences that the host was released from.
    pub fence: u64,
    /// All keys that the host knows.
    pub keys: Vec<(String, String)>,
    /// The host's ranks, if all of them are in the next fence.
    pub waiting: Vec<Rank>,
    /// What rank 0 is to get of standard input, if it was brought back there and has caught up with its log.
    pub stdin: StdinWanted,
    /// The host was told to end all of this, because the job restarts from the beginning.
    pub restarts: bool,
}

/// From a job's home to a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHost {
    /// Start the ranks that are placed on you.
    Launch {
        /// The epoch of the job.
        epoch: Epoch,
        /// What to run.
        spec: Box<JobSpec>,
        /// Where.
        placement: Placement,
    },
    /// Standard input for rank 0.
    Stdin {
        /// Repeated in the answer, `StdinTaken`.
        number: u64,
        /// The bytes; none: the end.
        data: ByteBuf,
    },
    /// A signal for every rank here.
    Signal(i32),
    /// Stop every rank here, or none if one of them has ended or is not here yet: `Frozen` is the answer.
    Freeze,
    /// The ranks that were stopped go on.
    Thaw,
    /// These ranks of yours are to make their images of a recovery line.
    MakeLine {
        /// The epoch of the job.
        epoch: Epoch,
        /// The line's number.
        line: u64,
        /// The ranks.
        ranks: Vec<Rank>,
    },
    /// From the host of another rank, whose outbox fills: an image of a rank of yours makes room there.
    MakeRoom {
        /// The epoch of the job.
        epoch: Epoch,
        /// Of which rank.
        room: Room,
    },
    /// All ranks of the job have come to their ends, and every node remembers that: their processes may end.
    LetGo(Epoch),
    /// Output has been printed, or is kept: it will not be asked for again.
    OutputTaken {
        /// The rank.
        rank: Rank,
        /// Which stream.
        stream: OutputStream,
        /// Up to this offset.
        offset: u64,
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
        /// The epoch of the job; `Gone` says so, too.
        epoch: Epoch,
        /// SIGKILL at once.
        kill: bool,
        /// The job restarts from the beginning: a home that takes over before all ranks are ended is to go on with that.
        restarts: bool,
        /// The job was suspended: what its ranks have printed, and no terminal has, is written down with it. It is kept nowhere else.
        written: bool,
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
        /// Bytes of these that were dropped since the last terminal, because of the limit on output that is kept without one.
        dropped: u64,
        /// The job survives its home.
        protected: bool,
    },
    /// There is no such job here.
    NoSuchJob,
    /// Output of a rank.
    Output {
        /// The rank.
        rank: Rank,
        /// Which stream.
        stream: OutputStream,
        /// Offset of the first byte.
        offset: u64,
        /// The bytes.
        data: ByteBuf,
    },
    /// Send the next piece of standard input, from this offset on; none: the offset is not known.
    StdinFrom(Option<u64>),
    /// Something for the user to know while the job runs.
    Notice(String),
    /// To `Suspend`, after the output that no terminal has printed: all ranks are stopped; or why they are not.
    Frozen(Result<Box<Suspension>, String>),
    /// Another terminal has attached; this one gets no more.
    TakenOver,
    /// The job has ended and nothing of it is left.
    Ended(Outcome),
}

/// Which byte of standard input rank 0 is to get next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StdinWanted {
    /// None for now: the rank is brought back, and has not caught up with its log.
    Nothing,
    /// The byte at this offset.
    From(u64),
    /// Not known: a program that ran in this process before has read of it, too.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;
    use crate::determinant::ConnectionId;
    use crate::ids::ProcessId;
    use crate::limits;

    #[test]
    fn all_that_a_node_keeps_of_the_streams_of_a_process_fits_into_one_message() {
        let opener = ProcessId { job: JobId::from_bits(u64::MAX), rank: Rank(u32::MAX) };
        let stream = StreamId { connection: ConnectionId { opener, number: u64::MAX }, from_opener: true };
        let end = StreamEnd { offset: u64::MAX, closed: true, received: u64::MAX };
        let finals = vec![(stream, end); limits::ENDED_STREAMS];
        let left = ToStore::Left { rank: Rank(u32::MAX), status: ExitStatus::Code(0), phase: MpiPhase::After, finals };
        let message = PeerMessage::ToStore(opener.job, left);
        assert!(codec::encode(&LinkFrame::Data { seq: u64::MAX, message }, limits::PEER_FRAME).is_ok());
    }
}
