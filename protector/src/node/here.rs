//! Processes of this node: their incarnations, where they are dialed, which node has their logs, and whether they have an image
//! at their protector.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use radic_wire::determinant::StreamId;
use radic_wire::event::EventName;
use radic_wire::ids::{Incarnation, JobId, NodeId, ProcessId};
use radic_wire::peer::{PeerMessage, RestartOrder};
use radic_wire::process::{FromNode, StreamEnd};

use super::events::About;
use super::{Node, Output};

/// What is known of one process of this node.
#[derive(Debug, Default)]
pub(super) struct Here {
    /// Where the process is dialed, and its incarnation.
    pub(super) door: Option<(Incarnation, SocketAddr)>,
    /// The order to bring the process back here, until the process is there.
    pub(super) order: Option<Box<RestartOrder>>,
    /// The node that has its log. Set by a crash or an order to bring the process back, until the process has caught up and its
    /// log is with this node's protector.
    pub(super) holder: Option<NodeId>,
    /// The node that had its log before this node's protector, until an image is committed there: what it holds may go further.
    pub(super) before: Option<NodeId>,
    /// The process's incarnation, if it was brought back here.
    pub(super) incarnation: Option<Incarnation>,
    /// Where the journal ended with which the process was brought back.
    pub(super) log_end: u64,
    /// Where the journal of the process's program begins, if it has executed one here.
    pub(super) begins: u64,
    /// Outgoing streams that the process has ended: where they end, and whether it has closed the connection.
    pub(super) finals: BTreeMap<StreamId, StreamEnd>,
    /// The address of the node where it was first launched, if that is another one.
    pub(super) origin: Option<IpAddr>,
    /// Set while the process waits for its first checkpoint at a new protector: the number of the request that asked for it. An
    /// answer to an earlier request is about an image at the protector before.
    pub(super) degraded: Option<u64>,
}

impl Node {
    /// What is known of a process of this node.
    pub(super) fn here(&self, process: ProcessId) -> Option<&Here> {
        self.recovery.here.get(&process)
    }

    /// The newest incarnation of a process that was announced to the nodes.
    pub(super) fn incarnation_of(&self, process: ProcessId) -> Incarnation {
        self.recovery.restarted.get(&process).copied().unwrap_or_default()
    }

    /// A process of this node says where it is dialed.
    pub(super) fn handle_door(&mut self, process: ProcessId, door: SocketAddr) {
        let incarnation = self.incarnation_here(process);
        let here = self.recovery.here.entry(process).or_default();
        here.door = Some((incarnation, door));
        if here.incarnation.is_some() {
            let log_end = here.log_end;
            self.tell_all(&PeerMessage::Restarted { process, incarnation, log_end, door });
        }
    }

    /// A process is back somewhere. All processes here are told, because each of them may know it.
    pub(super) fn handle_returned(&mut self, process: ProcessId, incarnation: Incarnation, log_end: u64, door: SocketAddr) {
        let known = self.recovery.restarted.entry(process).or_default();
        if incarnation < *known {
            return;
        }
        *known = incarnation;
        let told = self.observers.processes.iter().filter(|(other, _)| **other != process).filter_map(|(_, p)| p.observer());
        for observer in told.collect::<Vec<_>>() {
            self.outputs.push_back(Output::Observer(observer, FromNode::Restarted { process, incarnation, log_end, door }));
            // It may be computing, and is to look at it now.
            self.outputs.push_back(Output::Nudge(observer));
        }
    }

    /// The log of a process that was brought back is with this node's protector from now on.
    pub(super) fn leave_holder(&mut self, process: ProcessId) {
        let here = self.recovery.here.entry(process).or_default();
        here.before = here.holder.take().or(here.before.take());
    }

    /// Nodes other than this node's protector and its replica that may hold something of the log of a process of this node.
    pub(super) fn former_holders(&self, process: ProcessId) -> Vec<NodeId> {
        let here = self.here(process);
        here.map_or_else(Vec::new, |here| here.holder.iter().chain(&here.before).cloned().collect())
    }

    /// A process of this node has crashed: `holder` has its log, and is to bring it back with it.
    pub(super) fn need_log(&mut self, process: ProcessId, holder: NodeId) {
        self.recovery.here.entry(process).or_default().holder = Some(holder);
    }

    /// The incarnation of a process of this node.
    pub(super) fn incarnation_here(&self, process: ProcessId) -> Incarnation {
        let first = || self.hosts.get(&process.job).map_or(Incarnation::FIRST, |host| Incarnation::launched_in(host.epoch()));
        self.here(process).and_then(|here| here.incarnation).unwrap_or_else(first)
    }

    /// The processes of this node have another protector than this one. Their logs and images there start from nothing.
    pub(super) fn degrade_all(&mut self, now: Duration, before: &NodeId) {
        let running: Vec<_> =
            self.observers.processes.iter().filter(|(_, p)| p.observer().is_some()).map(|(id, _)| *id).collect();
        for process in running {
            if self.is_elsewhere(process) {
                continue;
            }
            self.recovery.here.entry(process).or_default().before = Some(before.clone());
            self.degrade(now, process);
        }
    }

    /// A process of this node has no image at its protector. It is asked for one. If it cannot be asked now, the next image that
    /// it makes counts.
    pub(super) fn degrade(&mut self, now: Duration, process: ProcessId) {
        let since = self.ask_checkpoint_again(now, process).unwrap_or(0);
        self.recovery.here.entry(process).or_default().degraded = Some(since);
    }

    /// A checkpoint of a process of this node was committed, as the answer to `request`.
    pub(super) fn handle_protected(&mut self, now: Duration, process: ProcessId, request: u64) {
        let counts = self.here(process).and_then(|here| here.degraded).is_some_and(|since| request >= since);
        if !self.is_elsewhere(process) && counts {
            let here = self.recovery.here.entry(process).or_default();
            (here.degraded, here.before) = (None, None);
            let text = format!("rank {}: a checkpoint is committed at {}", process.rank, self.protector().id.name);
            self.record(now, EventName::Reprotected, About::rank(process.job, process.rank), text);
        }
    }

    /// A process does not run here any more, or runs another program.
    pub(super) fn forget_door(&mut self, process: ProcessId) {
        if let Some(here) = self.recovery.here.get_mut(&process) {
            here.door = None;
        }
    }

    /// The address of the node where a process that was brought back here was first launched.
    pub(super) fn origin_of(&self, process: ProcessId) -> Option<IpAddr> {
        self.here(process)?.origin
    }

    /// Whether the log of a process of this node is not with this node's protector.
    pub(super) fn is_elsewhere(&self, process: ProcessId) -> bool {
        self.here(process).is_some_and(|here| here.holder.is_some())
    }

    /// Nothing of the job is left on this node. If the job restarts, none of this holds in the next epoch.
    pub(super) fn forget_incarnations(&mut self, job: JobId) {
        self.recovery.here.retain(|process, _| process.job != job);
        self.collections.forget(job);
        self.lines.forget(job);
    }

    /// The node that has the log of a process of this node.
    pub(super) fn holder_of(&self, process: ProcessId) -> NodeId {
        self.here(process).and_then(|here| here.holder.as_ref()).unwrap_or(&self.protector().id).clone()
    }

    /// Kills a rank on request. It is brought back.
    pub(super) fn kill_rank(&mut self, now: Duration, process: ProcessId) {
        if self.hosts.get(&process.job).is_some_and(|host| host.pid(process.rank).is_some()) {
            let text = format!("rank {} is killed, as asked", process.rank);
            self.record(now, EventName::Inject, About::rank(process.job, process.rank), text);
            self.with_host(now, process.job, |host| host.kill(process.rank));
        }
    }
}
