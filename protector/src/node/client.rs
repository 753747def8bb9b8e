//! What a connected command is doing.

use std::collections::BTreeMap;
use std::time::Duration;

use radic_wire::event::Event;
use radic_wire::ids::{JobId, NodeId, NodeName, ProcessId, Rank};
use radic_wire::job::{OutputStream, Placement, Ward};
use radic_wire::suspension::{Resumption, Suspension};

/// What a connected command is doing.
#[derive(Debug)]
pub(super) enum Client {
    /// The command has said nothing yet.
    New,
    /// The command may make its request.
    Idle,
    /// The command's request waits for the answers of all nodes.
    Gathering,
    /// The command shows a job, as a terminal.
    Session { job: JobId, home: NodeId, placement: Option<Placement>, shown: Shown },
    /// The command writes down a job whose ranks are stopped, and is to be heard again until then; or it has written the job down (none), and waits
    /// for its end.
    Suspending { job: JobId, home: NodeId, until: Option<Duration> },
    /// The command gives the logs and images of a suspended job to the protectors, one for each node of the placement.
    Resuming { suspension: Box<Suspension>, resumption: Box<Resumption>, protectors: Vec<NodeId> },
    /// The command has given all of them, and the protectors are told which they have.
    Beginning { suspension: Box<Suspension>, resumption: Box<Resumption>, protectors: Vec<NodeId> },
    /// The command waits for the end of a job that it has asked to be killed.
    Killing { job: JobId, home: NodeId },
    /// The command follows events: how far it has those of each node, and the new ones that came before the past ones were
    /// gathered.
    Following { sent: BTreeMap<NodeName, Passed>, early: Option<Vec<Event>> },
    /// The command reads what that node holds of a process. `busy` while a read is under way.
    Reading { holder: NodeId, process: ProcessId, busy: bool },
    /// The command has its answer.
    Finished,
}

/// What a command wants to do with the job that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Attach,
    Kill,
    Checkpoint,
    Suspend,
    Log(Rank),
    KillRank(Rank),
}

/// What a terminal was shown, and what it does if the job's home is lost.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// Of each stream: the offset of the next byte. What a new home sends once more is left out.
    pub(super) next: BTreeMap<(Rank, OutputStream), u64>,
    /// The command knows which job it is.
    pub(super) attached: bool,
    /// The job goes on without its home.
    pub(super) protected: bool,
    /// Until when another home may come, while the terminal waits for one.
    pub(super) waits: Option<Duration>,
    /// What was started here, if it is protected. If no other node knows of the job any more, this is enough to restart it from
    /// the beginning.
    pub(super) ward: Option<Box<Ward>>,
}

/// How far a command has the events of one node: the number of the daemon's last `start` that it has, if any, and of its last
/// event.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passed {
    pub(super) start: Option<u64>,
    pub(super) last: u64,
}
