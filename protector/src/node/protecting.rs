//! What hosts tell the node that protects their ranks, and what it does with that.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use radic_wire::ids::{Epoch, Incarnation, JobId, NodeId, ProcessId, Rank};
use radic_wire::job::{Outcome, Ward};
use radic_wire::peer::{Crashed, Left};

use super::recovery::Recovery;
use super::stores::StoreOrder;
use super::wards::{Protected, Wards};
use super::{Node, Output};

impl Node {
    /// A host asks this node to protect these ranks. Returns those of which this node has held a copy so far and that have lost
    /// their protector: that protector has acknowledged nothing that is not here.
    pub(super) fn handle_protect(
        &mut self,
        now: Duration,
        from: &NodeId,
        job: JobId,
        ranks: &[(Rank, Incarnation)],
        origins: &BTreeMap<Rank, IpAddr>,
        mut ward: Ward,
    ) -> Vec<ProcessId> {
        self.update(&mut ward);
        let now_ms = self.config.wall_us / 1000 + now.as_millis() as u64;
        let (membership, mut copies) = (&self.membership, Vec::new());
        let wards = Wards::of(&mut self.recovery.wards, job, &ward, now_ms);
        let forgotten = wards.forget_before(ward.epoch);
        for (rank, incarnation) in ranks {
            let told = self.recovery.restarted.get(&ProcessId { job, rank: *rank }).copied().unwrap_or_default();
            let known = told.max(*incarnation).max(Incarnation::launched_in(ward.epoch));
            let protected = wards.ranks.entry(*rank).or_insert_with(|| Protected::new(from.clone(), known));
            // If the protector is still a member, this is reviewed with the view that lacks it.
            let had_copy = protected.protector.as_ref().is_some_and(|before| membership.member(before).is_none());
            copies.extend(had_copy.then_some(ProcessId { job, rank: *rank }));
            (protected.host, protected.protector) = (from.clone(), None);
            protected.origin = origins.get(rank).copied();
            protected.incarnation = protected.incarnation.max(known);
        }
        wards.ward = ward;
        self.end_replication(job, forgotten);
        copies
    }

    /// The logs of these ranks are of earlier epochs: nothing of them is to be replicated any more.
    pub(super) fn end_replication(&mut self, job: JobId, ranks: Vec<Rank>) {
        let orders = ranks.into_iter().map(|rank| Output::Store(StoreOrder::SetReplica(ProcessId { job, rank }, None)));
        self.outputs.extend(orders);
    }

    /// A host says that the key space of its ranks has grown.
    pub(super) fn handle_keys(&mut self, from: &NodeId, job: JobId, fence: u64, keys: Vec<(String, String)>) {
        if let Some(wards) = self.recovery.wards.get_mut(&job) {
            (wards.ward.fence, wards.ward.keys) = (fence, keys);
            self.tell_stand_in(job, from);
        }
    }

    /// A host says that a rank has ended by itself.
    pub(super) fn handle_left(&mut self, from: &NodeId, job: JobId, rank: Rank, left: Left) {
        if let Some(protected) = self.recovery.wards.get_mut(&job).and_then(|wards| wards.ranks.get_mut(&rank))
            && protected.host == *from
        {
            protected.left = Some(left);
            self.tell_stand_in(job, from);
        }
    }

    /// A host says that one of its processes has crashed, by this signal if it was live.
    pub(super) fn handle_crashed(&mut self, now: Duration, from: &NodeId, job: JobId, rank: Rank, signal: Option<i32>) {
        let wards = self.recovery.wards.get_mut(&job);
        let Some(protected) = wards.and_then(|wards| wards.ranks.get_mut(&rank)).filter(|p| p.host == *from) else { return };
        protected.crashed = signal.map(|signal| Crashed { node: from.name.clone(), signal });
        if signal.is_some() {
            self.outputs.push_back(Output::Store(StoreOrder::Live(ProcessId { job, rank })));
        }
        self.recover(now, ProcessId { job, rank });
    }

    /// The job is over everywhere.
    pub(super) fn forget_wards(&mut self, job: JobId, outcome: Option<Outcome>) {
        self.forget_incarnations(job);
        self.forget_giver(job);
        let Recovery { wards, restarted, next_homes, endings, .. } = &mut self.recovery;
        let next = next_homes.forget(job);
        endings.remember(job, outcome);
        wards.remove(&job);
        restarted.retain(|process, _| process.job != job);
        if let Some(home) = next {
            self.tell_removed(&home, job);
        }
    }

    /// Whether this node has anything of a job that goes on.
    pub fn knows(&self, job: JobId) -> bool {
        self.homes.get(&job).is_some_and(|home| !home.is_over()) || self.hosts.contains_key(&job) || self.protects(job)
    }

    /// What this node protects of jobs with two replicas, by job and host.
    pub(super) fn replicated_wards(&self) -> Vec<(JobId, NodeId, Vec<Rank>)> {
        let mut all: BTreeMap<(JobId, &NodeId), Vec<Rank>> = BTreeMap::new();
        for (job, wards) in self.recovery.wards.iter().filter(|(_, wards)| wards.ward.spec.protection.replicas == 2) {
            let mine = |protected: &Protected| protected.left.is_none() && protected.protector.is_none();
            for (rank, protected) in wards.ranks.iter().filter(|(_, protected)| mine(protected)) {
                all.entry((*job, &protected.host)).or_default().push(*rank);
            }
        }
        all.into_iter().map(|((job, host), ranks)| (job, host.clone(), ranks)).collect()
    }

    /// Whether this node protects anything of a job.
    pub(super) fn protects(&self, job: JobId) -> bool {
        self.recovery.wards.contains_key(&job)
    }

    /// Whether what this node protects of a job is of a later epoch.
    pub(super) fn protects_later_epoch(&self, job: JobId, epoch: Epoch) -> bool {
        self.recovery.wards.get(&job).is_some_and(|wards| wards.ward.epoch > epoch)
    }

    /// This node protects these ranks of a job that is resumed. Each has the incarnation that it had, and the address where it
    /// was first launched. Other ranks of the job may be protected here already: they were faster.
    pub(super) fn guard(&mut self, job: JobId, ranks: &[(Rank, Incarnation, IpAddr)], ward: Ward) {
        let (started_ms, me) = (self.config.wall_us / 1000, self.me().clone());
        let wards = Wards::of(&mut self.recovery.wards, job, &ward, started_ms);
        for (rank, incarnation, origin) in ranks {
            let host = ward.placement.node_of(*rank).unwrap_or(&me).clone();
            wards.ranks.insert(*rank, Protected { origin: Some(*origin), ..Protected::new(host, *incarnation) });
        }
        if ward.fence >= wards.ward.fence {
            wards.ward = ward;
        }
    }

    /// The job has restarted: no process of an epoch before `epoch` is brought back.
    pub(super) fn forget_epochs_before(&mut self, job: JobId, epoch: Epoch) {
        let Some(wards) = self.recovery.wards.get_mut(&job) else { return };
        let forgotten = wards.forget_before(epoch);
        if wards.ward.epoch < epoch {
            (wards.ward.epoch, wards.ward.fence) = (epoch, 0);
            wards.ward.keys.clear();
        }
        self.end_replication(job, forgotten);
    }

    /// Another node is to protect a process from now on.
    pub(super) fn handle_release(&mut self, process: ProcessId) {
        if let Some(wards) = self.recovery.wards.get_mut(&process.job) {
            wards.ranks.remove(&process.rank);
        }
        self.outputs.push_back(Output::Store(StoreOrder::LetGo(process)));
    }
}
