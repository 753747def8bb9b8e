//! What protectors ask each other, and what they answer.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::standing::Standing;
use crate::determinant::{ConnectionId, StreamId};
use crate::event::Event;
use crate::fault::Fault;
use crate::ids::{Epoch, Incarnation, JobId, NodeId, NodeName, ProcessId, Rank};
use crate::job::{Outcome, Ward};
use crate::log::{HeldLog, LogPart};
use crate::process::{Place, Protection, StreamEnd};
use crate::report::{LogSizes, RankCheckpoint, Report};

/// What a node knows of deaths that concern a job. As long as it is the same, the node knows of no other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deaths {
    /// The node's view: the nodes that are dead.
    pub view: u64,
    /// How many processes of the job have ended there, in whatever way.
    pub processes: u64,
    /// Ranks that are lost, whose logs there refuse all incarnations before this one.
    pub lost: Vec<(Rank, Incarnation)>,
    /// Ranks that keep nothing, and of which nothing more can come: those that have ended, or have not begun.
    pub over: Vec<Rank>,
}

/// The causes that are held at a node for the processes of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldCauses {
    /// The deaths that the node knows of.
    pub deaths: Deaths,
    /// Ranks that have said here what they keep.
    pub said: Vec<Rank>,
    /// What they keep, what the logs here have for processes of the job, and what is being collected here for others.
    pub sets: Vec<ByteBuf>,
    /// The newest recovery line that the node remembers to be complete; 0: none.
    pub line: u64,
    /// The node remembers that all ranks have come to their ends: none is brought back.
    pub end: Option<JobEnd>,
}

/// All ranks of a job have come to their ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnd {
    /// The first rank with a code that is not 0, the node where it came to its end, and the code.
    pub failed: Option<(Rank, NodeName, i32)>,
}

impl JobEnd {
    /// If this rank is the one that fails: the node where it came to its end, and its code.
    #[must_use]
    pub fn failure_of(&self, rank: Rank) -> Option<(&NodeName, i32)> {
        self.failed.as_ref().filter(|(failed, ..)| *failed == rank).map(|(_, node, code)| (node, *code))
    }

    /// The code with which this rank was about to exit, as far as that matters to the job.
    #[must_use]
    pub fn code_of(&self, rank: Rank) -> i32 {
        self.failure_of(rank).map_or(0, |(_, code)| code)
    }
}

/// A suspended job that is about to go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revival {
    /// The job.
    pub job: JobId,
    /// How it is protected.
    pub protection: Protection,
    /// Which of its lives begins ([`JobSpec::life`](crate::job::JobSpec::life)).
    pub life: u64,
    /// Of each rank, the first incarnation in that life.
    pub incarnations: Vec<Incarnation>,
}

/// What log services were given of a suspended job that is about to go on, and what brings its ranks back with that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gift {
    /// The job.
    pub job: JobId,
    /// What runs, where, and the key space.
    pub ward: Ward,
    /// Of each node of the placement, the node that was given the logs of its ranks.
    pub protectors: Vec<NodeId>,
    /// Of each rank, the incarnation as which the command has spoken, and the address of the node where the rank was first launched.
    pub ranks: Vec<(Incarnation, IpAddr)>,
}

impl Gift {
    /// Whether it says of each rank what there is to say.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let Ward { spec, placement, .. } = &self.ward;
        let counts = [self.ranks.len(), self.protectors.len()] == [spec.ranks as usize, placement.nodes.len()];
        counts && spec.validate().is_ok() && placement.is_valid(spec.ranks)
    }

    /// The ranks, by the node that was given their logs. Of a gift that is whole.
    #[must_use]
    pub fn by_protector(&self) -> BTreeMap<NodeId, Vec<(Rank, Incarnation, IpAddr)>> {
        let mut all: BTreeMap<NodeId, Vec<(Rank, Incarnation, IpAddr)>> = BTreeMap::new();
        for ((at, (incarnation, origin)), rank) in self.ward.placement.rank_nodes.iter().zip(&self.ranks).zip((0..).map(Rank)) {
            all.entry(self.protectors[*at as usize].clone()).or_default().push((rank, *incarnation, *origin));
        }
        all
    }
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
        /// The caller's end of the connection.
        from: SocketAddr,
        /// Where the caller calls.
        to: SocketAddr,
    },
    /// Which of your processes (not the asking one) still counts as the listener at this address, though it moved?
    Claim {
        /// The process that has got this address from the kernel.
        process: ProcessId,
        /// The address.
        address: SocketAddr,
    },
    /// Up to which offset do you hold the bytes that this process receives on this stream?
    Stable {
        /// The stream.
        stream: StreamId,
        /// The process that receives it.
        receiver: ProcessId,
        /// The epoch of the job: what is held of an earlier one is of another stream, whatever its name.
        epoch: Epoch,
    },
    /// The process has executed another program (exec): forget its log and images.
    ForgetProcess(ProcessId),
    /// How much do you hold of each process that you protect?
    Sizes,
    /// How much have the processes of this job received that you protect, on which stream?
    Flows(JobId),
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
    /// Where is this process?
    Where(ProcessId),
    /// Have you anything of this job, as a part of which you would want another home for it?
    Knows {
        /// The job.
        job: JobId,
        /// The asker's view: it is answered in this one, or a later one.
        view: u64,
    },
    /// From a job's home: of which of these ranks, which are lost, do you know more than I do? What would bring one back, how it has ended.
    Lost {
        /// The job.
        job: JobId,
        /// The job's epoch: nothing of an earlier one brings a rank back.
        epoch: Epoch,
        /// The ranks.
        ranks: Vec<Rank>,
        /// The home's view: it is answered in this one, or a later one. An answer that was given without a death does not count with it.
        view: u64,
    },
    /// You have the log of this process, which is now to be protected elsewhere: do not bring it back from now on.
    Release(ProcessId),
    /// You are my stand-in: this is where processes go on, as soon as you have answered.
    Stand(JobId, Box<Standing>),
    /// A suspended job is about to go on: have you anything of it? If not, forget that it has ended.
    Revive(Box<Revival>),
    /// A suspended job is about to go on, and you were given logs of its ranks. Its home is told after your answer.
    Given(Box<Gift>),
    /// Where has this process ended that stream?
    Final {
        /// The stream.
        stream: StreamId,
        /// The process that sends it.
        sender: ProcessId,
    },
    /// Make checkpoints of your ranks of this job. The answer comes when they are committed.
    Checkpoint(JobId),
    /// Could you have this fault?
    Fault(Fault),
    /// From a job's home: what do you know of its recovery lines, and do you agree to this step?
    Line {
        /// The job.
        job: JobId,
        /// The job's epoch.
        epoch: Epoch,
        /// The step.
        step: LineStep,
    },
    /// These ranks of the job are lost, and are about to begin as these incarnations: listen to none before, and say all causes
    /// that your processes and your log service hold.
    Causes {
        /// The job.
        job: JobId,
        /// The job's epoch: what is of another one counts for nothing.
        epoch: Epoch,
        /// The ranks.
        lost: Vec<(Rank, Incarnation)>,
    },
    /// Which deaths do you know of that concern this epoch of the job?
    Deaths(JobId, Epoch),
    /// Do you run this process, or bring it back? Its protector is lost. If not, reject restart orders for this incarnation and
    /// earlier ones that may still be under way.
    Hosts(ProcessId, Incarnation),
}

impl Query {
    /// The view without which the question is not to be answered.
    #[must_use]
    pub fn view(&self) -> Option<u64> {
        if let Query::Knows { view, .. } | Query::Lost { view, .. } = self { Some(*view) } else { None }
    }
}

/// An answer to a [`Query`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To `Fault`: if not, why.
    Fault(Result<(), String>),
    /// To `Report`.
    Report(Report),
    /// To `Events`, oldest first.
    Events(Vec<Event>),
    /// To `LookupName` (the port) and `UnpublishName` (what it was).
    Name(Option<String>),
    /// To `Listener`.
    Listener {
        /// The process that listens, if one does.
        process: Option<ProcessId>,
        /// Where to connect instead, if the process has moved.
        at: Option<SocketAddr>,
        /// A process that may have listened there is about to be back.
        away: bool,
        /// The view of the node that answers: the deaths that it knows of.
        view: u64,
    },
    /// To `Claim`.
    Claim {
        /// The process that listens, if one does.
        holder: Option<ProcessId>,
        /// A process that may have listened there is about to be back.
        away: bool,
        /// The view of the node that answers: the deaths that it knows of.
        view: u64,
    },
    /// To `Line`.
    Line(LineAnswer),
    /// To `Causes`.
    Causes(Box<HeldCauses>),
    /// To `Deaths`.
    Deaths(Box<Deaths>),
    /// To `Stable`; 0 if nothing is known of it.
    Stable(u64),
    /// To `ForgetProcess`: where its journal ended.
    Forgotten(u64),
    /// To `Sizes`: at most [`crate::limits::PROCESSES_SHOWN`].
    Sizes(Vec<(ProcessId, LogSizes)>),
    /// To `Flows`: at most [`crate::limits::FLOWS_SHOWN`].
    Flows(Vec<Flow>),
    /// To `Log`.
    Log(Option<HeldLog>),
    /// To `ReadLog`: at most [`crate::limits::LOG_CHUNK`] bytes, none at the end of what is held; or why there are none.
    LogBytes(Result<ByteBuf, String>),
    /// To `Checkpoint`.
    Checkpoints(Vec<RankCheckpoint>),
    /// To `Release`.
    Released,
    /// To `Stand`.
    Stood,
    /// To `Revive`: if it cannot, why.
    Revived(Result<(), String>),
    /// To `Where`.
    Where {
        /// None: it is not here.
        place: Option<Place>,
        /// This is its job's home, and was told that it has ended. Of one that is brought back, to print what it has printed, others know more.
        ended: bool,
    },
    /// To `Knows`, of a job that is not known to be over.
    Knows(bool),
    /// To `Lost`: the ranks of which more is known.
    Lost(Vec<Rank>),
    /// To `Given`: if these logs are not kept for the job, why.
    Given(Result<(), String>),
    /// To `Knows`: how the job has ended.
    Ended(Outcome),
    /// To `Final`: none, if it has not, or is not known here.
    Final(Option<StreamEnd>),
    /// To `Hosts`: if so, the protector of that node.
    Hosts(Option<NodeId>),
}

/// A step on the way of a recovery line to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LineStep {
    /// A new home asks which lines there are.
    Seek,
    /// Have the ranks that you protect their images of this line? Promise to remember it when you are told in this round. A node that answers
    /// [`Query::Causes`] meanwhile takes its promise back.
    Promise {
        /// The line's number.
        line: u64,
        /// Which of the home's rounds.
        round: u64,
    },
    /// All ranks have: remember it.
    Record {
        /// The line's number.
        line: u64,
        /// The round in which that was promised.
        round: u64,
    },
    /// Have the ranks that you host come to their ends? Promise to remember it, as with `Promise`.
    PromiseEnd {
        /// Which of the home's rounds.
        round: u64,
    },
    /// All ranks have come to their ends: remember it.
    RecordEnd {
        /// The round in which that was promised.
        round: u64,
        /// How they end.
        end: JobEnd,
    },
}

/// What a node says of a job's recovery lines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineAnswer {
    /// The newest line that the node remembers to be complete; 0: none.
    pub recorded: u64,
    /// The newest line of which there is anything.
    pub newest: u64,
    /// The node brings a process back, or has not kept its promise: ask again.
    pub is_busy: bool,
    /// Ranks that the node protects which have an image of the line, or a later one. To `PromiseEnd`: ranks that the node hosts
    /// which have come to their ends. With the incarnation of which that is true.
    pub has: Vec<(Rank, Incarnation)>,
    /// Ranks that the node protects which have images, but none of the line, and are not going to.
    pub lacks: Vec<Rank>,
    /// Ranks that were brought back, as far as the node knows. What is said of an earlier incarnation of one does not count.
    pub restarted: Vec<(Rank, Incarnation)>,
    /// How the job ends, if the node remembers that all ranks have come to their ends.
    pub end: Option<JobEnd>,
}

/// How much a process has received on a stream, as its protector or a replica holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// The process.
    pub receiver: ProcessId,
    /// The stream.
    pub stream: StreamId,
    /// Units received, the end of the stream being one.
    pub bytes: u64,
}
