//! What a question to other nodes is for.

use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::determinant::StreamId;
use radic_wire::fault::Fault;
use radic_wire::ids::{Epoch, Incarnation, JobId, NodeId, ProcessId, Rank};
use radic_wire::local::ClusterStatus;
use radic_wire::peer::{LineStep, RestartOrder};
use radic_wire::suspension::{Resumption, Suspension};

use super::call::Call;
use super::client::Wanted;
use super::host::NameRequest;
use super::numbers::{ClientId, ObserverId};

/// What a question to other nodes is for.
#[derive(Debug)]
pub(super) enum Purpose {
    Status(ClientId),
    /// To find the job whose number begins with these digits.
    Find(ClientId, String, Wanted),
    Events(ClientId),
    Name {
        job: JobId,
        rank: Rank,
        request: NameRequest,
    },
    /// A process executes another program: the node that is to forget it, and those that are asked after that.
    Anew {
        observer: ObserverId,
        process: ProcessId,
        node: NodeId,
        then: Vec<NodeId>,
        until: Duration,
        /// Where the journal of the program before ended, as far as that is known.
        journal: u64,
    },
    /// A process is about to connect.
    Listener {
        observer: ObserverId,
        process: ProcessId,
        ask: u64,
        call: Call,
    },
    /// A socket of a process has got an address.
    Claim {
        observer: ObserverId,
        process: ProcessId,
        ask: u64,
        address: SocketAddr,
    },
    /// A sender asks what it need not keep.
    Stable {
        observer: ObserverId,
        process: ProcessId,
        stream: StreamId,
        receiver: ProcessId,
        all: bool,
    },
    /// An observer looks for a process.
    Where {
        observer: ObserverId,
        process: ProcessId,
        ask: u64,
        other: ProcessId,
    },
    /// An observer asks where a stream ends.
    Final {
        observer: ObserverId,
        process: ProcessId,
        ask: u64,
    },
    /// A process is to have another protector.
    Release {
        process: ProcessId,
        holder: NodeId,
    },
    /// The stand-in of this node is to let a process go that another node wants to protect.
    Unstand {
        asker: NodeId,
        number: u64,
        process: ProcessId,
        stand_in: NodeId,
        /// How often stand-ins had been told of processes.
        stood: u64,
    },
    /// The stand-in of this node is to know of an order.
    Stand {
        target: NodeId,
        order: Box<RestartOrder>,
        stand_in: NodeId,
    },
    /// The protector of a process is lost, for which this node stands in: asks the host whether it has the process in this
    /// incarnation.
    Hosts {
        process: ProcessId,
        incarnation: Incarnation,
        host: NodeId,
    },
    /// The checkpoints of a job with this many ranks.
    Checkpoint(ClientId, u32),
    /// How much is held of the processes of this status.
    Sizes(ClientId, Box<ClusterStatus>),
    /// The state of this node alone: how much its own log service holds.
    Node(ClientId),
    /// How much each rank of a job has sent to each.
    Traffic(ClientId),
    /// A suspended job is to go on: whether any node still has something of it.
    Away(ClientId, Box<Suspension>, Box<Resumption>),
    /// A suspended job is about to go on.
    Revive(ClientId, Box<Suspension>, Box<Resumption>),
    /// The protectors of a job that is about to go on are to know which logs the command has given them.
    Given(ClientId),
    /// What is held of a process.
    Log(ClientId, ProcessId),
    /// Bytes of a log.
    ReadLog(ClientId),
    /// Whether a node can have this fault.
    Fault(ClientId, NodeId, Fault),
    /// What others know of a lost process, which is to begin as this incarnation.
    Causes(ProcessId, Incarnation),
    /// A step on the way of a recovery line.
    Line(JobId, Epoch, LineStep),
    /// Whether a process or a node has died since they have said that.
    Deaths(ProcessId, Incarnation),
    /// A job's home misses these ranks: which of them any node knows of.
    Lost(JobId, Vec<Rank>),
    /// Whether any node is left that knows of the job of this terminal.
    Knows(ClientId, JobId),
    /// Whether any node knows of a job of which a command has given logs here, and the command's node is lost.
    GoesOn(JobId),
}
