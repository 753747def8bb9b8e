//! Processes of this node: their incarnations, where they are dialed, which node has their logs, and whether they have an image
//! at their protector.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use radic_wire::event::EventName;
use radic_wire::ids::{Incarnation, JobId, NodeId, ProcessId};
use radic_wire::peer::PeerMessage;
use radic_wire::process::FromNode;

use super::events::About;
use super::recovery::Recovery;
use super::{Node, Output};

impl Node {
    /// The newest incarnation of a process that was announced to the nodes.
    pub(super) fn life_of(&self, process: ProcessId) -> Incarnation {
        self.recovery.restarted.get(&process).copied().unwrap_or_default()
    }

    /// A process of this node says where it is dialed.
    pub(super) fn handle_door(&mut self, process: ProcessId, door: SocketAddr) {
        let incarnation = self.life_here(process);
        self.recovery.doors.insert(process, (incarnation, door));
        if self.recovery.lives.contains_key(&process) {
            self.tell_all(&PeerMessage::Restarted { process, incarnation, door });
        }
    }

    /// A process is back somewhere. All processes here are told, because each of them may know it.
    pub(super) fn handle_returned(&mut self, process: ProcessId, incarnation: Incarnation, door: SocketAddr) {
        let known = self.recovery.restarted.entry(process).or_default();
        if incarnation < *known {
            return;
        }
        *known = incarnation;
        let told = self.observers.processes.iter().filter(|(other, _)| **other != process).filter_map(|(_, p)| p.observer());
        let told = told.map(|observer| Output::Observer(observer, FromNode::Restarted { process, incarnation, door }));
        self.outputs.extend(told.collect::<Vec<_>>());
        // Computing processes are nudged, so that they look at it now.
        let computing: Vec<_> = self.observers.processes.keys().filter(|other| **other != process).copied().collect();
        self.outputs.extend(computing.into_iter().map(Output::Nudge));
    }

    /// The log of a process that was brought back is with this node's protector from now on.
    pub(super) fn leave_holder(&mut self, process: ProcessId) {
        self.recovery.holders.remove(&process);
    }

    /// A process of this node has crashed: `holder` has its log, and is to bring it back with it.
    pub(super) fn need_log(&mut self, process: ProcessId, holder: NodeId) {
        self.recovery.holders.insert(process, holder);
    }

    /// The incarnation of a process of this node.
    pub(super) fn life_here(&self, process: ProcessId) -> Incarnation {
        let first = || self.hosts.get(&process.job).map_or(Incarnation::FIRST, |host| Incarnation::launched_in(host.epoch()));
        self.recovery.lives.get(&process).copied().unwrap_or_else(first)
    }

    /// The processes of this node have another protector. Their logs and images there start from nothing.
    pub(super) fn degrade_all(&mut self, now: Duration) {
        let running: Vec<_> =
            self.observers.processes.iter().filter(|(_, p)| p.observer().is_some()).map(|(id, _)| *id).collect();
        for process in running {
            if self.is_elsewhere(process) {
                continue;
            }
            self.degrade(now, process);
        }
    }

    /// A process of this node has no image at its protector. It is asked for one. If it cannot be asked now, the next image that
    /// it makes counts.
    pub(super) fn degrade(&mut self, now: Duration, process: ProcessId) {
        let since = self.ask_checkpoint_anew(now, process).unwrap_or(0);
        self.recovery.degraded.insert(process, since);
    }

    /// A checkpoint of a process of this node was committed, as the answer to `request`.
    pub(super) fn handle_protected(&mut self, now: Duration, process: ProcessId, request: u64) {
        let counts = self.recovery.degraded.get(&process).is_some_and(|since| request >= *since);
        if !self.is_elsewhere(process) && counts {
            self.recovery.degraded.remove(&process);
            let text = format!("rank {}: a checkpoint is committed at {}", process.rank, self.protector().id.name);
            self.record(now, EventName::Reprotected, About::rank(process.job, process.rank), text);
        }
    }

    /// A process does not run here any more, or runs another program.
    pub(super) fn forget_door(&mut self, process: ProcessId) {
        self.recovery.doors.remove(&process);
    }

    /// The address of the node where a process that was brought back here was first launched.
    pub(super) fn origin_of(&self, process: ProcessId) -> Option<IpAddr> {
        self.recovery.origins.get(&process).copied()
    }

    /// Whether the log of a process of this node is not with this node's protector.
    pub(super) fn is_elsewhere(&self, process: ProcessId) -> bool {
        self.recovery.holders.contains_key(&process)
    }

    /// Nothing of the job is left on this node. If the job restarts, none of this holds in the next epoch.
    pub(super) fn forget_lives(&mut self, job: JobId) {
        let Recovery { doors, orders, holders, lives, finals, origins, degraded, .. } = &mut self.recovery;
        holders.retain(|process, _| process.job != job);
        lives.retain(|process, _| process.job != job);
        doors.retain(|process, _| process.job != job);
        orders.retain(|process, _| process.job != job);
        finals.retain(|process, _| process.job != job);
        origins.retain(|process, _| process.job != job);
        degraded.retain(|process, _| process.job != job);
    }

    /// The node that has the log of a process of this node.
    pub(super) fn holder_of(&self, process: ProcessId) -> NodeId {
        self.recovery.holders.get(&process).unwrap_or(&self.protector().id).clone()
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
