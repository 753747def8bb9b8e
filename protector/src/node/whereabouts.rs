//! Where the ranks of jobs are, and go when a node is lost, as far as this node knows.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use radic_wire::event::EventName;
use radic_wire::ids::{Epoch, JobId, NodeId, ProcessId};
use radic_wire::job::{JobSpec, Placement, RestartOn, Ward};
use radic_wire::process::{Place, Protect};

use super::Node;
use super::events::About;
use super::placement;
use super::wards::Protected;
use crate::membership::Loss;
use crate::membership::ring::watcher_of;

impl Node {
    /// Places the ranks of one node that is lost.
    pub(super) fn place_ranks_of(&mut self, now: Duration, loss: &Loss) {
        let lost = &loss.member.id;
        let homes: Vec<JobId> = self.homes.keys().copied().collect();
        for job in homes {
            self.with_home(now, job, |home| {
                home.handle_protector_lost(lost);
                home.handle_terminal_lost(lost);
            });
        }
        let known: BTreeSet<JobId> =
            self.homes.keys().chain(self.hosts.keys()).chain(self.recovery.wards.keys()).copied().collect();
        for job in known {
            let Some((before, spec)) = self.placement_with(job, lost) else { continue };
            if spec.protection.protect != Protect::On {
                continue;
            }
            match self.replaced(&before, loss, spec.restart_on) {
                Some(placement) => self.place_again(now, job, lost, &before, &placement),
                None => self.jobs_lose_node(now, lost, "and no node is left to go on"),
            }
        }
    }

    /// A sender that does not know yet that a member is lost speaks of a job. Places the ranks as every node does.
    pub(super) fn update(&self, ward: &mut Ward) {
        for loss in &self.recovery.losses {
            if ward.placement.nodes.contains(&loss.member.id)
                && let Some(placement) = self.replaced(&ward.placement, loss, ward.spec.restart_on)
            {
                ward.placement = placement;
            }
        }
    }

    fn replaced(&self, before: &Placement, loss: &Loss, how: RestartOn) -> Option<Placement> {
        let protector = self.next_watcher(loss);
        placement::replace(&loss.after, before, &loss.member.id, &protector, how)
    }

    /// The node that watched the lost one, or the next one after it that is still there.
    fn next_watcher(&self, Loss { before, after, member, .. }: &Loss) -> NodeId {
        let mut at = member.id.clone();
        for _ in 0..before.members.len() {
            match watcher_of(before, &at) {
                Some(next) if after.get(&next.id).is_some() => return next.id.clone(),
                Some(next) => at = next.id.clone(),
                None => break,
            }
        }
        self.me().clone()
    }

    /// What this node knows of a job that has something on `lost`. A home that has just been adopted may have dropped `lost`
    /// already.
    fn placement_with(&self, job: JobId, lost: &NodeId) -> Option<(Placement, JobSpec)> {
        let home = self.homes.get(&job).filter(|home| !home.is_over()).map(|home| (home.placement(), home.spec()));
        let host = self.hosts.get(&job).map(|host| (host.placement(), host.spec()));
        let ward = self.recovery.wards.get(&job).map(|wards| (&wards.ward.placement, &wards.ward.spec));
        let mut known = home.into_iter().chain(host).chain(ward);
        let (placement, spec) = known.find(|(placement, _)| placement.nodes.contains(lost))?;
        Some((placement.clone(), spec.clone()))
    }

    fn place_again(&mut self, now: Duration, job: JobId, lost: &NodeId, before: &Placement, placement: &Placement) {
        let was_home = before.home() == lost;
        if let Some(host) = self.hosts.get_mut(&job).filter(|host| host.involves(lost)) {
            host.handle_placement(placement.clone());
            if was_home {
                host.handle_home_lost(now);
            }
        }
        if self.homes.get(&job).is_some_and(|home| home.placement().nodes.contains(lost)) {
            self.with_home(now, job, |home| home.handle_moved(now, lost, placement.clone()));
        }
        if let Some(wards) = self.recovery.wards.get_mut(&job).filter(|wards| wards.ward.placement.nodes.contains(lost)) {
            wards.ward.placement = placement.clone();
        }
        if was_home {
            let text = format!("its home, {}, is lost; {} is the next", lost.name, placement.home().name);
            self.record(now, EventName::Place, About::job(job), text);
            self.recovery.next_homes.homeless.insert(job);
        }
    }

    pub(super) fn address_of(&self, node: &NodeId) -> IpAddr {
        let departed = || self.view()?.departed(node).map(|departed| departed.data);
        self.member(node).map(|member| member.data).or_else(departed).unwrap_or(self.config.me.data)
    }

    /// Where a process is, as far as this node knows. A host knows best. A protector knows which processes have left, and which
    /// will be back.
    pub(super) fn place_of(&self, process: ProcessId) -> Option<Place> {
        if self.has_ended(process.job) {
            return Some(Place::Left);
        }
        let here = self.hosts.get(&process.job).filter(|host| host.placement().node_of(process.rank) == Some(self.me()));
        // While the host of a process that has left is a member, a stand-in may say nothing that the protector has not said: a
        // new home would wait for that.
        let counts = |p: &&Protected| p.protector.is_none() || p.left.is_none() || !self.is_member(&p.host);
        let ward = || self.recovery.wards.get(&process.job)?.ranks.get(&process.rank).filter(counts);
        match (self.here(process).and_then(|here| here.door), here) {
            (Some((incarnation, door)), Some(_)) => Some(Place::Here { incarnation, door }),
            (None, Some(host)) if host.ranks().any(|rank| rank == process.rank) => {
                Some(if host.has_left(process.rank) { Place::Left } else { Place::Away })
            }
            _ => ward().map(|protected| if protected.left.is_some() { Place::Left } else { Place::Away }),
        }
    }

    /// Whether what this node knows of a job is of an epoch before `epoch`: the job has restarted, and this node has not heard so.
    /// Which processes have left, and where their streams have ended, holds no more then.
    pub(super) fn is_behind(&self, job: JobId, epoch: Epoch) -> bool {
        let host = self.hosts.get(&job).is_some_and(|host| host.epoch() < epoch);
        let home = self.homes.get(&job).is_some_and(|home| home.epoch() < epoch);
        host || home || self.recovery.wards.get(&job).is_some_and(|wards| wards.ward.epoch < epoch)
    }

    /// Whether nothing that is sent to this process will be read any more.
    pub(super) fn wants_nothing(&self, process: ProcessId) -> bool {
        let closing = self.observers.processes.get(&process).is_some_and(|observed| observed.closing);
        let at_home = || self.homes.get(&process.job).is_some_and(|home| home.has_left(process.rank));
        closing || self.place_of(process) == Some(Place::Left) || at_home()
    }
}
