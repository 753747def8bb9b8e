//! What an observer and the daemon of its own node say to each other, over a unix stream socket in the node's directory: frames of
//! bincode. (The log has connections of its own, to the protector of the *next* node: [`crate::login`].)
//!
//! The daemon believes no process: it asks the kernel for the process id at the other end, and only the process that it has
//! launched itself may join. Children of a rank are told that they are not protected.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::determinant::{ConnectionId, StreamId};
use crate::ids::{Incarnation, JobId, ProcessId, Rank};
use crate::log::ImageRange;
use crate::mac::JobKey;

/// Name of the unix socket in the directory of a node.
pub const SOCKET_NAME: &str = "process.sock";

/// Name of the abstract socket, without the zero byte before it, where a daemon serves the processes that it brings back: their environment is that of
/// another incarnation, so the engine hands them the number of the daemon that has launched them.
pub fn restored_socket(launcher: u64) -> String {
    format!("radic-node-{launcher:016x}")
}

/// Longest frame, in bytes.
pub const FRAME: usize = 4 << 20;
/// Longest text in a message, in bytes.
pub const TEXT: usize = 1 << 10;

/// Variables in the environment of a rank.
pub mod variable {
    /// Path of the unix socket. Without it the library does nothing.
    pub const SOCKET: &str = "RADIC_PROCESS_SOCKET";
    /// The job, 12 hexadecimal digits.
    pub const JOB: &str = "RADIC_JOB";
    /// The rank.
    pub const RANK: &str = "RADIC_RANK";
}

/// How much of the library is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protect {
    /// The library is not loaded.
    None,
    /// The library is loaded, and every call passes through: what interposition alone costs.
    Off,
    /// Everything is logged, checkpoints are made.
    #[default]
    On,
}

/// When a process makes checkpoints by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interval {
    /// From the measured cost and the configured mean time between failures (Young/Daly).
    #[default]
    Auto,
    /// The interval, in milliseconds.
    Every(u64),
    /// On request only.
    Never,
}

/// How a job is protected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protection {
    /// Whether.
    pub protect: Protect,
    /// Checkpoints.
    pub interval: Interval,
    /// Protectors that hold each log and image: 1 or 2.
    pub replicas: u8,
    /// Bytes of outbox of each process; none: as many as its node finds right.
    pub outbox: Option<u64>,
    /// Bytes of log of each process at its protector, above which it is asked for a checkpoint.
    pub log: u64,
    /// Keep the logs that no restart needs any more until the store is cleared, for `radic replay`.
    pub keep_logs: bool,
    /// What the program reads of clocks is recorded, and told again in replay.
    pub record_time: bool,
    /// What the program reads of the processor's time stamp counter by an instruction is recorded, too.
    pub record_tsc: bool,
    /// What a process does before it sends to a protected process of its job.
    pub log_mode: LogMode,
    /// Where bytes that were received are kept until an image of the receiver covers them.
    pub payload: PayloadMode,
}

/// Where bytes are kept that a process has received from another one of its job, until an image of the receiver covers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PayloadMode {
    /// In the receiver's log: it ships them to its protector.
    #[default]
    Log,
    /// With their sender. Images of the ranks are made in recovery lines.
    Sender,
}

/// What a process does before it sends to a protected process of its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogMode {
    /// The process waits until its protector has all that the bytes depend on.
    #[default]
    Waiting,
    /// The process waits for nothing: what the bytes depend on, and is not known to be stable, goes with them.
    Causal,
}

impl Default for Protection {
    fn default() -> Self {
        Protection {
            protect: Protect::On,
            interval: Interval::Auto,
            replicas: 1,
            outbox: None,
            log: 1 << 30,
            keep_logs: false,
            record_time: true,
            record_tsc: false,
            log_mode: LogMode::Waiting,
            payload: PayloadMode::Log,
        }
    }
}

/// Declares the counters, and how they lie in memory: one word each, in this order.
macro_rules! declare_counters {
    ($($(#[$what:meta])* $name:ident,)*) => {
        /// What a process has counted since it began. It also lies in the process's memory, where its node reads it: [`counters`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
        #[repr(C)]
        pub struct Counters {
            $($(#[$what])* pub $name: u64,)*
        }

        impl Counters {
            /// The counters as they lie in the process's memory.
            pub fn from_words(words: &[u64; counters::WORDS]) -> Self {
                let [$($name),*] = *words;
                Counters { $($name),* }
            }
        }
    };
}

declare_counters! {
    /// Bytes received on protected connections.
    bytes_in,
    /// Calls that received some.
    messages_in,
    /// Bytes sent on protected connections.
    bytes_out,
    /// Calls that sent some.
    messages_out,
    /// Outcomes recorded.
    events,
    /// Outcomes of "nothing", counted only.
    empty,
    /// Times that the gate was shut.
    gate_waits,
    /// Time at the gate, in nanoseconds.
    gate_ns,
    /// Bytes in the outbox.
    outbox,
    /// Bytes of journal written.
    journal,
    /// Bytes of payload written.
    payload,
    /// Checkpoints made.
    checkpoints,
    /// Checkpoints committed.
    committed,
    /// Pauses for checkpoints, together, in nanoseconds.
    pause_ns,
    /// The longest of them.
    longest_pause_ns,
    /// Protected connections that are open.
    connections,
    /// Connections with peers that are not protected, since it began.
    unprotected,
    /// Where a process that was brought back stands in the journal that it catches up with, or ended to; 0: it was not.
    replayed,
    /// Bytes that it has sent again, and received, towards the next outcome of that journal, or towards what its peers have. It has no more than that to do.
    again,
    /// While it catches up: 1: it waits for peers that it does not reach; 2: it waits for a peer that is catching up itself; 0: for neither.
    waits,
    /// While it catches up: 256 times the thread of the next outcome, and 1 more than the call that had it ([`crate::determinant::CALLS`]); 0: none is known.
    awaited,
    /// While it catches up: how often a call that waits has looked whether its outcome is the next one.
    looks,
    /// Times that the outbox had no room for what was sent.
    full_waits,
    /// Time until it had, in nanoseconds.
    full_ns,
    /// The longest of them.
    longest_full_ns,
}

/// Where a process's counters lie in its own memory, for the daemon of its node to read: a magic number, then [`Counters`] as 64-bit words in the
/// order of their declaration.
pub mod counters {
    /// The address.
    pub const ADDRESS: u64 = 0x3b00_0000_0000;
    /// The first word.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"RADICCT1");
    /// Words after the magic number.
    pub const WORDS: usize = size_of::<super::Counters>() / 8;
}

/// Where a process has ended a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamEnd {
    /// The offset after the stream's last byte.
    pub offset: u64,
    /// The process has closed the connection, too: it reads nothing more on it.
    pub closed: bool,
    /// How many units of the other direction the process had received by then. A peer that is brought back sends that much again
    /// before it is live (Gate B).
    pub received: u64,
}

/// From the observer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToNode {
    /// The first message. The answer is `Joined` or `Refused`.
    Join {
        /// [`crate::PROTOCOL_VERSION`] of the library.
        version: u16,
        /// The process that the sender is, by its environment.
        process: ProcessId,
    },
    /// The first message of a process that has come back from an image, instead of `Join`. The answer is `Restart` or `Refused`.
    Restored {
        /// [`crate::PROTOCOL_VERSION`] of the library.
        version: u16,
        /// The process that the sender is.
        process: ProcessId,
        /// Where the image stands.
        point: Point,
    },
    /// The first and last message on a second connection of a process that has come back: what follows, in both directions, is its conversation with the
    /// process manager, as it is.
    Pmi {
        /// The process that the sender is.
        process: ProcessId,
    },
    /// A child of a rank, which speaks of one thing on a connection, is about to take connections at this listener. If that is one of the rank's, which
    /// the child has inherited, no caller finds the rank there from now on. The answer is `Inherited`.
    ChildListens {
        /// [`crate::PROTOCOL_VERSION`] of the library.
        version: u16,
        /// The rank's process.
        process: ProcessId,
        /// The listener's address.
        address: SocketAddr,
    },
    /// A child of a rank has accepted a connection at an inherited listener: which process is calling? The answer is `Caller`.
    /// One that is protected was told to call the rank's process, before it was known that the child takes connections.
    ChildAccepted {
        /// [`crate::PROTOCOL_VERSION`] of the library.
        version: u16,
        /// The rank's process.
        process: ProcessId,
        /// The caller's end of the connection.
        from: SocketAddr,
    },
    /// A child of a rank sends away the protected caller from there, which has greeted: it is told that its connection is over. The answer is `Caller`.
    ChildRefuses {
        /// [`crate::PROTOCOL_VERSION`] of the library.
        version: u16,
        /// The rank's process.
        process: ProcessId,
        /// The caller's end of the connection.
        from: SocketAddr,
    },
    /// The address where peers dial this process when a link has broken. Sent once, after the welcome.
    Door(SocketAddr),
    /// The process is about to listen here. The answer is `Announced`; `Listening`, `ListeningAt` or `NotListening` says what has come of it.
    WillListen {
        /// Repeated in the answer.
        ask: u64,
        /// The address, as its program sees it.
        address: SocketAddr,
    },
    /// The process listens here.
    Listening(SocketAddr),
    /// A restored process listens, as its program sees it, at `address`; connections come to `at`.
    ListeningAt {
        /// Where the process listened in its first incarnation.
        address: SocketAddr,
        /// The socket of this incarnation.
        at: SocketAddr,
    },
    /// The process no longer listens there.
    NotListening(SocketAddr),
    /// A socket of the process has got this address: does another process listen there, as its program sees it, that has moved or
    /// is lost? The answer is `Claimed`.
    Claim {
        /// Repeated in the answer.
        ask: u64,
        /// The address, as the program sees it.
        address: SocketAddr,
    },
    /// The process is about to connect: which process is there? The answer is `Peer`. When that names a process, the node of that
    /// process knows which one is going to call. When it names none, the nodes with processes that may begin to listen there know
    /// it, until `CallsNobody`.
    Connecting {
        /// Repeated in the answer.
        ask: u64,
        /// The connection.
        connection: ConnectionId,
        /// The connection's own end, already bound.
        from: SocketAddr,
        /// Where to.
        to: SocketAddr,
    },
    /// What came of a call, after `Connecting`: no protected process is there.
    CallsNobody {
        /// As in `Connecting`.
        connection: ConnectionId,
        /// As in `Connecting`.
        from: SocketAddr,
        /// As in `Connecting`.
        to: SocketAddr,
        /// There is a connection, or may be one: what passes on it is not logged.
        made: bool,
    },
    /// The process makes a connection again, with a process of another job: the key for its greeting? The answer is
    /// `GreetingKey`.
    GreetingKey {
        /// Repeated in the answer.
        ask: u64,
        /// The connection.
        connection: ConnectionId,
        /// The other job.
        job: JobId,
    },
    /// A connection was accepted: which process is calling? The answer is `Caller`.
    Accepted {
        /// Repeated in the answer.
        ask: u64,
        /// The caller's end of the connection.
        from: SocketAddr,
    },
    /// The protected caller from there has been greeted, or sent away: its node need not know of it any more.
    Greeted(SocketAddr),
    /// The outbox fills. An image of one process makes room in it; none: a recovery line does.
    Pressed(Option<Room>),
    /// The next recovery line is to be made soon.
    LineWanted,
    /// Up to which offset does the receiver's protector hold what is sent on this stream? The answer is `Stable`, when it is known.
    AskStable {
        /// The stream.
        stream: StreamId,
        /// The process that receives it.
        receiver: ProcessId,
    },
    /// This process has closed the connection, and a committed image covers that: tell the peer.
    Forget {
        /// The connection.
        connection: ConnectionId,
        /// The peer.
        peer: ProcessId,
        /// No image of this process has it any more.
        for_good: bool,
    },
    /// The program has come to its end, and all that it has printed before is stable. The process waits: others may need again
    /// what it has sent. [`FromNode::MayEnd`] says that none will.
    AtEnd(ProgramEnd),
    /// Where is this process now? The answer is `Place`.
    Where {
        /// Repeated in the answer.
        ask: u64,
        /// The process that is looked for.
        process: ProcessId,
    },
    /// This process has ended the outgoing direction of a connection. It is said before the end leaves on the socket, so a process that asks
    /// afterwards is answered right. It is said again when the process closes the connection.
    Finished {
        /// The stream.
        stream: StreamId,
        /// Where.
        end: StreamEnd,
    },
    /// Neither side of this connection will ask anything of it any more: where its streams end need not be known.
    Over {
        /// The connection.
        connection: ConnectionId,
    },
    /// This process is at its end: it reads nothing more, and its protector has all that it has read. It waits until what it has
    /// sent is stable. `Leaving` follows.
    Closing,
    /// The link on which this stream came has ended: has its sender ended the stream, or has the link broken? The answer is `Final`.
    Ended {
        /// Repeated in the answer.
        ask: u64,
        /// The stream.
        stream: StreamId,
        /// The process that sends it.
        sender: ProcessId,
    },
    /// A restarted process has caught up with its log and with every peer.
    Live {
        /// Outcomes that were replayed.
        events: u64,
        /// Bytes of standard input that the program has read in all its incarnations. None: not known, for another program ran in this process before.
        input: Option<u64>,
    },
    /// After `Live`: its program has taken all bytes that only the log of its restart holds. Another protector may have its log from now on.
    LogRead,
    /// `MPI_Init` has returned: a good moment for the first checkpoint.
    Initialized,
    /// A checkpoint that [`FromNode::Checkpoint`] asked for has come to its end: the protector has committed the image with this number, or
    /// why there is none.
    Checkpointed {
        /// The last request that this answers: its image began after that had come.
        request: u64,
        /// What became of it.
        result: Result<u64, String>,
    },
    /// Something the log should know, once.
    Note(String),
    /// A process that catches up diverges from its log: why. It waits until its node ends it.
    Diverged(String),
    /// The process ends; its last counters.
    Leaving(Box<Counters>),
    /// To [`FromNode::Collect`]: the causes that this process holds, and what of its own journal is not stable.
    Holds {
        /// The question's number.
        ask: u64,
        /// The set.
        causes: ByteBuf,
    },
    /// A process that catches up is of a kind that seldom comes back by its log.
    Doubts {
        /// Why.
        why: String,
        /// How long it may stand still, for whatever reason, before its job restarts from its beginning. Zero: the job does so at once.
        patience: Duration,
    },
    /// A call of its program has waited for long: for what, for the terminal and the event log.
    Kept(String),
}

/// Whose image makes room in an outbox: it has most of what is kept there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// The process.
    pub receiver: ProcessId,
    /// The connection on which it was sent.
    pub connection: ConnectionId,
    /// Units of the stream before this one are not kept.
    pub from: u64,
}

/// To the observer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromNode {
    /// Welcome.
    Joined {
        /// The process's incarnation.
        incarnation: Incarnation,
        /// The job's key.
        key: JobKey,
        /// Where the log service of the process's protector listens.
        protector: SocketAddr,
        /// How the process is protected.
        protection: Protection,
        /// Where the process's journal begins: what others may keep of the journal of another program in this process was before.
        journal: u64,
        /// Another program ran in this process before, and may have read of what this one has inherited.
        inherited: bool,
    },
    /// This process is not protected, and why.
    Refused(String),
    /// Another protector, because the one before is gone.
    Protector(SocketAddr),
    /// All ranks of the job have come to their ends, and every node knows: none is brought back, so this process may end.
    MayEnd,
    /// The outbox of the peer on this connection fills with what this process has received from this unit on: an image makes room there.
    MakeRoom {
        /// The connection.
        connection: ConnectionId,
        /// The unit.
        from: u64,
    },
    /// To `Connecting`: the process that listens there, if it is protected.
    Peer {
        /// The question's number.
        ask: u64,
        /// The process.
        peer: Option<ProcessId>,
        /// If the process is of another job: the key for greetings about this connection ([`crate::mac::JobKey::greeting_key`]).
        key: Option<JobKey>,
        /// Where to connect instead, if the process has moved.
        at: Option<SocketAddr>,
        /// No protected process is there now, but one that may have listened there is lost and about to be back. To be asked again.
        later: bool,
        /// The machine of the address.
        machine: Machine,
    },
    /// To `WillListen`: a process that asks from now on is told that one may listen there in a moment.
    Announced {
        /// The question's number.
        ask: u64,
    },
    /// To `ChildListens`: whether it is a listener of the rank's.
    Inherited(bool),
    /// To `Claim`.
    Claimed {
        /// The question's number.
        ask: u64,
        /// The process that has the address already.
        holder: Option<ProcessId>,
        /// No process has it now, but one that may have had it is lost and about to be back. To be asked again.
        later: bool,
    },
    /// To `GreetingKey`: [`crate::mac::JobKey::greeting_key`].
    GreetingKey {
        /// The question's number.
        ask: u64,
        /// The key.
        key: JobKey,
    },
    /// To `Restored`: welcome back.
    Restart(Box<Restart>),
    /// To `Where`.
    Place {
        /// The question's number.
        ask: u64,
        /// The answer.
        place: Place,
    },
    /// To `Ended`.
    Final {
        /// The question's number.
        ask: u64,
        /// Where the stream ends. None: its sender has not ended it; the link is to be made again.
        end: Option<StreamEnd>,
    },
    /// This process has come back: a process that has opened a connection with it dials it there.
    Restarted {
        /// The process.
        process: ProcessId,
        /// The process's incarnation: older ones are refused.
        incarnation: Incarnation,
        /// Where the journal ended with which the process goes on.
        log_end: u64,
        /// Where the process is dialed.
        door: SocketAddr,
    },
    /// To `Accepted`: the connection and the process that opened it, if that is protected.
    Caller {
        /// The question's number.
        ask: u64,
        /// Which connection; its opener is the caller.
        caller: Option<ConnectionId>,
    },
    /// To `AskStable`.
    Stable {
        /// The stream.
        stream: StreamId,
        /// The offset; 0 if it is not known.
        offset: u64,
    },
    /// The peer of this connection will never need it again.
    Forget {
        /// The connection.
        connection: ConnectionId,
        /// The peer will not even ask for it.
        for_good: bool,
    },
    /// These ranks of the job are lost: listen to no incarnation before these, then say all causes that you hold ([`ToNode::Holds`]).
    Collect {
        /// Repeated in the answer.
        ask: u64,
        /// The ranks, and their next incarnations.
        lost: Vec<(Rank, Incarnation)>,
    },
    /// Make a checkpoint as soon as you can.
    Checkpoint {
        /// Repeated in the answer; it grows.
        request: u64,
        /// The recovery line of which this is the process's image, if it is one of a line.
        line: Option<u64>,
    },
}

/// The state outside of a process that belongs to an image of it, beside its logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Point {
    /// The process's incarnation when it was saved.
    pub incarnation: Incarnation,
    /// The position in its journal.
    pub cut: u64,
    /// Bytes that it had written to standard output and to standard error, less those that it is going to write once more: what comes on the new
    /// pipes begins at these offsets.
    pub output: [u64; 2],
    /// PMI fences that the process had been let out of.
    pub fences: u64,
    /// Whether the process had said `init` to its PMI server, and `finalize`.
    pub pmi: (bool, bool),
}

/// How the program of a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramEnd {
    /// The code with which the process is about to exit.
    pub code: i32,
    /// Bytes that it has written to standard output and to standard error, in all its incarnations.
    pub output: [u64; 2],
}

/// What a restored process is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// The incarnation of the restored process.
    pub incarnation: Incarnation,
    /// The job's key.
    pub key: JobKey,
    /// Where the log service listens that has its log.
    pub protector: SocketAddr,
    /// How the process is protected.
    pub protection: Protection,
    /// Where the process's journal ends.
    pub log_end: u64,
    /// The numbers of the process's images.
    pub images: ImageRange,
    /// What is held of each stream that the process receives: units, and where the stream has ended.
    pub held: Vec<(StreamId, u64, Option<u64>)>,
    /// The causes that the process had at its protector, or that others had of it: a set, and the position of its first byte.
    pub causes: (u64, ByteBuf),
    /// The newest incarnations of other processes that were restarted, as far as its node knows.
    pub restarted: Vec<(ProcessId, Incarnation)>,
}

/// What the nodes know of the machine of an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Machine {
    /// The machine belongs to the cluster.
    Member,
    /// The machine belonged to the cluster and was declared dead. It may run all the same, and with it earlier incarnations of processes.
    Dead,
    /// The nodes know no such machine.
    #[default]
    Foreign,
}

/// Where a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// The process runs.
    Here {
        /// The process's incarnation.
        incarnation: Incarnation,
        /// Where the process is dialed.
        door: SocketAddr,
    },
    /// The process is on its way back: [`FromNode::Restarted`] will be said.
    Away,
    /// The process has ended, or is not known: it wants nothing more, and says nothing more.
    Left,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;

    #[test]
    fn a_message_is_far_below_its_limit() {
        let leaving = ToNode::Leaving(Box::new(Counters { bytes_in: u64::MAX, ..Counters::default() }));
        let bytes = codec::encode(&leaving, FRAME).unwrap();
        assert_eq!(codec::decode::<ToNode>(&bytes, FRAME).unwrap(), leaving);
        let note = ToNode::Note("x".repeat(TEXT));
        assert!(codec::encode(&note, FRAME).unwrap().len() < FRAME / 2);
        let words = std::array::from_fn(|i| i as u64);
        let counters = Counters::from_words(&words);
        assert_eq!((counters.bytes_in, counters.checkpoints, counters.unprotected), (0, 11, 16));
    }
}
