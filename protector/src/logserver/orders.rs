//! What the node orders of its log server, and what that replies.

use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::determinant::StreamId;
use radic_wire::ids::{Epoch, Incarnation, JobId, NodeId, ProcessId};
use radic_wire::limits;
use radic_wire::log::LogPart;
use radic_wire::peer::{Answer, Flow, Revival};
use radic_wire::process::Protection;

use super::LogServer;
#[cfg(doc)]
use super::types::Action;
use super::types::Status;
use crate::store::LineHeld;

/// What this node's log service is to do. A question has the node that asks, and the question's number there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreOrder {
    /// Processes of this job are protected here, with these settings.
    Configure(JobId, Protection),
    /// The log service at this address is to hold this process's log and images too, or none is.
    SetReplica(ProcessId, Option<SocketAddr>),
    /// Another node protects this process from now on. What is held of it restarts nothing, unless the process speaks here once
    /// more.
    LetGo(ProcessId),
    /// The protector that has forwarded what this process says is lost, and this node brings the process back.
    TakeOver(ProcessId),
    /// The job is over.
    RemoveJob(JobId),
    /// A job that was suspended goes on. Whatever is held of it is removed, and its processes are let in again.
    Revive(Box<Revival>),
    /// The command that gave logs for this job, to go on with, is lost before the job did: what it gave here is forgotten, and it is not heard any more.
    ForgetGiven(JobId),
    /// Forget the log and images of this process, then answer where its journal ended: [`Answer::Forgotten`].
    ForgetProcess(NodeId, u64, ProcessId),
    /// Refuse all older incarnations of this process than this one (G4), then answer with what it needs: [`Action::Fenced`]. That
    /// takes time while its log becomes stable. If it cannot become stable, the answer is
    /// [`NoRestart::Unstable`](crate::store::NoRestart::Unstable).
    Fence(ProcessId, Incarnation, Vec<Vec<u8>>, u64),
    /// Images of this recovery line count from now on.
    LineComplete(JobId, Epoch, u64),
    /// Images of the recovery lines after the first, up to the second, never count.
    LinesGivenUp(JobId, Epoch, u64, u64),
    /// Say what is held of the images of this recovery line: [`Reply::LineHeld`].
    HeldOfLine(NodeId, u64, (JobId, Epoch), u64),
    /// The process was live, says its host: its newest image restores. The process says so itself, but may have crashed before that came.
    Live(ProcessId),
    /// Refuse all older incarnations of this process than this one, already now: [`StoreOrder::Fence`] follows.
    Silence(ProcessId, Incarnation),
    /// Say which causes are held for processes of this epoch of the job: [`Reply::Causes`] with this number.
    Causes(u64, JobId, Epoch),
    /// Answer up to where the stream is stable in this incarnation of its receiver, or a later one: [`Answer::Stable`].
    StableOf(NodeId, u64, ProcessId, Epoch, StreamId),
    /// Answer how much is held of the processes of these jobs: [`Reply::Sizes`].
    Sizes(NodeId, u64, Vec<JobId>),
    /// Answer how much the processes of this job have received on which stream: [`Answer::Flows`].
    Flows(NodeId, u64, JobId),
    /// Answer what is held of this process: [`Answer::Log`].
    List(NodeId, u64, ProcessId),
    /// Answer with bytes of that from a position on, at most this many: [`Answer::LogBytes`]. They may lie in a file, so the driver reads them.
    Read(NodeId, u64, ProcessId, LogPart, u64, usize),
}

/// The reply to an order that asks for something.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The answer to a question that another node has asked, with its number there.
    Answer(NodeId, u64, Answer),
    /// How much is held of which process: the answer to such a question, but for the name of this node.
    Sizes(NodeId, u64, Vec<(ProcessId, Status)>),
    /// What is held of the images of a recovery line of this job, for another node's question.
    LineHeld(NodeId, u64, (JobId, Epoch), LineHeld),
    /// The sets of causes that are held for processes of the job, for the question with this number.
    Causes(u64, Vec<Vec<u8>>),
}

impl LogServer {
    /// Does what the node orders. [`StoreOrder::Fence`] is answered by [`Action::Fenced`], and [`StoreOrder::Read`] by the driver.
    pub fn handle_order(&mut self, now: Duration, order: StoreOrder) -> Option<Reply> {
        match order {
            StoreOrder::Configure(job, protection) => self.configure(job, protection),
            StoreOrder::SetReplica(process, replica) => self.set_replica(now, process, replica),
            StoreOrder::LetGo(process) => self.let_go(process),
            StoreOrder::TakeOver(process) => self.take_over(process),
            StoreOrder::RemoveJob(job) => self.remove_job(now, job),
            StoreOrder::Revive(revival) => self.revive_job(now, *revival),
            StoreOrder::ForgetGiven(job) => self.forget_given(now, job),
            StoreOrder::Fence(process, incarnation, sets, line) => self.fence(now, process, incarnation, &sets, line),
            StoreOrder::Live(process) => self.store.handle_live(process),
            StoreOrder::Silence(process, incarnation) => self.silence(now, process, incarnation),
            StoreOrder::LineComplete(job, epoch, line) => self.handle_line_complete(now, (job, epoch), line),
            StoreOrder::LinesGivenUp(job, epoch, after, to) => self.handle_lines_given_up(now, (job, epoch), (after, to)),
            StoreOrder::Read(..) => {}
            StoreOrder::ForgetProcess(node, number, process) => {
                let end = self.store().journal_end(process);
                self.remove_process(now, process);
                return Some(Reply::Answer(node, number, Answer::Forgotten(end)));
            }
            StoreOrder::HeldOfLine(node, number, of, line) => {
                return Some(Reply::LineHeld(node, number, of, self.held_of_line(of.0, of.1, line)));
            }
            StoreOrder::Causes(ask, job, epoch) => return Some(Reply::Causes(ask, self.store().causes_of(job, epoch))),
            StoreOrder::StableOf(node, number, process, epoch, stream) => {
                let end = self.store().stable_in(process, epoch, stream);
                return Some(Reply::Answer(node, number, Answer::Stable(end)));
            }
            StoreOrder::List(node, number, process) => {
                return Some(Reply::Answer(node, number, Answer::Log(self.store().list(process))));
            }
            StoreOrder::Sizes(node, number, jobs) => {
                let sizes = jobs.into_iter().flat_map(|job| self.status(now, job)).take(limits::PROCESSES_SHOWN);
                return Some(Reply::Sizes(node, number, sizes.collect()));
            }
            StoreOrder::Flows(node, number, job) => {
                return Some(Reply::Answer(node, number, Answer::Flows(self.flows(job))));
            }
        }
        None
    }

    /// How much the processes of a job have received. If there are as many as can be shown, some may be missing.
    fn flows(&self, job: JobId) -> Vec<Flow> {
        let mut receivers = self.store().of_job(job);
        receivers.sort_unstable();
        let of =
            |receiver| self.store().list(receiver).into_iter().flat_map(|held| held.streams).map(move |held| (receiver, held));
        let flows = receivers.into_iter().flat_map(of);
        flows
            .map(|(receiver, held)| Flow { receiver, stream: held.stream, bytes: held.bytes.end })
            .take(limits::FLOWS_SHOWN)
            .collect()
    }
}
