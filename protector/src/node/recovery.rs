//! What is lost comes back (docs/recovery.md, step by step). Every node knows what it protects ([`Wards`]). When a view says that
//! a node is gone, the protector of its processes fences them and orders the nodes where they go on to bring them back. Every
//! node computes the same new placement ([`placement::replace`](super::placement::replace)). If the job's home is lost too, the
//! new node of rank 0 becomes the home, and the hosts report to it.
//!
//! A process has one protector at a time, and only that one may bring it back. When another node is to become its protector
//! ([`Node::reprotect`]), the present one is asked first to let the process go. So no process is ever restarted from a log that
//! lacks some of what it did (G1).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use radic_wire::event::EventName;
use radic_wire::ids::{Incarnation, JobId, NodeId, ProcessId};
use radic_wire::mac::key_space;
use radic_wire::peer::{Crashed, PeerMessage, Query, RestartOrder, ToHome};
use radic_wire::process::{FromNode, PayloadMode, Point, Restart};

use super::endings::Endings;
use super::events::About;
use super::here::Here;
use super::host::Host;
use super::majority::Majority;
use super::next_home::NextHomes;
use super::numbers::ObserverId;
use super::phase::Phase;
use super::purpose::Purpose;
use super::wards::{Protected, Wards};
use super::{Node, Output};
use crate::membership::Loss;
use crate::store;

/// Lost members that are remembered, to place the ranks of a message that does not know of the loss.
const LOSSES: usize = 64;

/// Time that a protector has to let a process go.
const RELEASE: Duration = Duration::from_secs(5);

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    pub(super) wards: BTreeMap<JobId, Wards>,
    /// Processes of this node.
    pub(super) here: BTreeMap<ProcessId, Here>,
    /// The newest incarnations of processes that were brought back anywhere.
    pub(super) restarted: BTreeMap<ProcessId, Incarnation>,
    pub(super) next_homes: NextHomes,
    pub(super) endings: Endings,
    /// The latest members that were lost.
    pub(super) losses: VecDeque<Loss>,
    pub(super) majority: Majority,
    /// How often stand-ins were told of processes.
    pub(super) stood: u64,
}

impl Node {
    /// Whether this side of the cluster has no majority: it decides nothing, not even that a job may be forgotten.
    pub fn is_frozen(&self) -> bool {
        self.membership.is_frozen()
    }

    /// Members are gone. Every node that knows of their ranks computes the new placement, and the protectors bring the protected
    /// ones back. Messages about it are sent only when all lost members are out of the placement, so that none speaks of a lost
    /// node.
    pub(super) fn handle_losses(&mut self, now: Duration, losses: &[Loss]) {
        if losses.is_empty() {
            return;
        }
        losses.iter().for_each(|loss| self.place_ranks_of(now, loss));
        self.recovery.losses.extend(losses.iter().cloned());
        let surplus = self.recovery.losses.len().saturating_sub(LOSSES);
        self.recovery.losses.drain(..surplus);
        self.seek_next_homes(now);
        let jobs: Vec<JobId> = self.homes.keys().copied().collect();
        jobs.into_iter().for_each(|job| self.seek_lost(now, job));
        self.lose_givers(now);
        let is_lost = |node: &NodeId| losses.iter().any(|loss| loss.member.id == *node);
        let mine = |p: &Protected| is_lost(&p.host) && p.left.is_none() && p.protector.is_none();
        let lost_here: Vec<ProcessId> = (self.recovery.wards.iter())
            .flat_map(|(job, wards)| {
                wards.ranks.iter().filter(|(_, p)| mine(p)).map(|(rank, _)| ProcessId { job: *job, rank: *rank })
            })
            .collect();
        lost_here.into_iter().for_each(|process| self.recover(now, process));
        let jobs: Vec<JobId> = self.recovery.wards.keys().copied().collect();
        jobs.into_iter().for_each(|job| self.tell_home_of_ends(job));
        let jobs: Vec<JobId> = self.hosts.keys().copied().collect();
        jobs.into_iter().for_each(|job| self.tell_home_of_lost_logs(job));
    }

    /// Fences a process. The answer is [`Node::handle_fenced`].
    pub(super) fn recover(&mut self, now: Duration, process: ProcessId) {
        if self.count_as_ended(now, process) {
            return;
        }
        let wards = self.recovery.wards.get_mut(&process.job);
        let Some(protected) = wards.and_then(|wards| wards.ranks.get_mut(&process.rank)) else { return };
        protected.incarnation = protected.incarnation.next();
        (protected.recovering, protected.hopeless) = (true, None);
        let incarnation = protected.incarnation;
        let text = format!("rank {}: incarnations before {incarnation} are refused from now on", process.rank);
        self.record(now, EventName::Fence, About::rank(process.job, process.rank), text);
        self.collect(now, process, incarnation);
    }

    /// The log service refuses older incarnations of a process from now on, and says what it holds of it.
    pub(super) fn handle_fenced(
        &mut self,
        now: Duration,
        process: ProcessId,
        incarnation: Incarnation,
        result: Result<store::Restart, store::NoRestart>,
    ) {
        let (job, epoch) = (process.job, incarnation.epoch);
        let Some(wards) = self.recovery.wards.get_mut(&job) else { return };
        let protected = wards.ranks.get_mut(&process.rank);
        let Some(protected) = protected.filter(|p| p.recovering && p.incarnation == incarnation) else { return };
        protected.recovering = false;
        let crash = protected.crashed.take();
        let home = wards.ward.placement.home().clone();
        if wards.ward.spec.protection.payload == PayloadMode::Sender {
            self.send(&home, PeerMessage::ToHome(job, ToHome::LineFailed { epoch, line: 0 }));
        }
        match result {
            Ok(restart) => self.restart_from(now, process, incarnation, restart),
            Err(error) => self.handle_no_restart(now, &home, (process, incarnation), error, crash),
        }
    }

    /// The log says that a process of this node's wards cannot be brought back. Its home decides what becomes of the job.
    fn handle_no_restart(
        &mut self,
        now: Duration,
        home: &NodeId,
        (process, incarnation): (ProcessId, Incarnation),
        error: store::NoRestart,
        crash: Option<Crashed>,
    ) {
        let (job, rank) = (process.job, process.rank);
        let hopeless = match error {
            store::NoRestart::NoImage => {
                let why = "it was lost before a checkpoint of it was committed".to_owned();
                ToHome::NoImage { rank, incarnation, why, crash }
            }
            store::NoRestart::NotRestored => ToHome::NoImage { rank, incarnation, why: error.to_string(), crash: None },
            error => ToHome::Lost { rank, incarnation, why: format!("it cannot be brought back: {error}") },
        };
        let protected = self.recovery.wards.get_mut(&job).and_then(|wards| wards.ranks.get_mut(&rank));
        if let Some(protected) = protected {
            protected.hopeless = Some(hopeless.clone());
        }
        if let ToHome::Lost { why, .. } = &hopeless {
            self.record(now, EventName::Lost, About::rank(job, rank), format!("rank {rank}: {why}"));
        }
        self.send(home, PeerMessage::ToHome(job, hopeless));
    }

    /// Has a node bring a process of this node's wards back, from the images and the log that are here.
    fn restart_from(&mut self, now: Duration, process: ProcessId, incarnation: Incarnation, restart: store::Restart) {
        let (job, rank) = (process.job, process.rank);
        let (log, replica) = (self.config.me.log_address(), self.replica_of(job));
        let Some(wards) = self.recovery.wards.get(&job) else { return };
        let (ward, target) = (wards.ward.clone(), wards.ward.placement.node_of(rank).cloned());
        let (Some(target), Some(protected)) = (target, wards.ranks.get(&rank)) else { return };
        let origin = protected.origin.unwrap_or_else(|| self.address_of(&protected.host));
        let protected = self.recovery.wards.get_mut(&job).and_then(|wards| wards.ranks.get_mut(&rank));
        if let Some(protected) = protected {
            (protected.host, protected.origin) = (target.clone(), Some(origin));
        }
        let order = RestartOrder {
            process,
            incarnation,
            ward,
            origin,
            log,
            replica,
            images: restart.images,
            range: restart.range,
            cut: restart.cut,
            log_end: restart.log_end,
            held: restart.held,
            causes: (restart.causes.0, restart.causes.1.into()),
        };
        let bytes: u64 = order.images.iter().map(|(_, bytes)| bytes).sum();
        let text = format!("rank {rank} goes on at {}, from images of {:.1} MiB", target.name, bytes as f64 / f64::from(1 << 20));
        self.record(now, EventName::Place, About::rank(job, rank), text);
        self.order_restart(now, &target, Box::new(order));
    }

    /// The log of a process that is catching up cannot be read. No other node can bring it back.
    pub(super) fn handle_unreadable(&mut self, now: Duration, process: ProcessId, why: String) {
        let ProcessId { job, rank } = process;
        let wards = self.recovery.wards.get_mut(&job);
        let Some((home, protected)) = wards.and_then(|w| Some((w.ward.placement.home().clone(), w.ranks.get_mut(&rank)?))) else {
            return;
        };
        if protected.hopeless.is_none() {
            let hopeless = ToHome::NoImage { rank, incarnation: protected.incarnation, why: why.clone(), crash: None };
            protected.hopeless = Some(hopeless.clone());
            self.record(now, EventName::Lost, About::rank(job, rank), format!("rank {rank}: {why}"));
            self.send(&home, PeerMessage::ToHome(job, hopeless));
        }
    }

    /// Whether the others have gone on from this incarnation of a process: there is a later one of the process or a later epoch
    /// of its job, or its epoch was ended here for a restart.
    fn has_left_behind(&self, process: ProcessId, incarnation: Incarnation) -> bool {
        let is_ended_by =
            |host: &Host| host.epoch() > incarnation.epoch || host.is_superseded() && host.epoch() == incarnation.epoch;
        incarnation < self.incarnation_of(process)
            || self.hosts.get(&process.job).is_some_and(is_ended_by)
            || self.recovery.endings.restarts.get(&process.job).is_some_and(|ended| *ended >= incarnation.epoch)
    }

    /// A protector orders this node to bring a process back.
    pub(super) fn handle_restart(&mut self, now: Duration, from: &NodeId, mut order: RestartOrder) {
        let (process, job) = (order.process, order.process.job);
        self.update(&mut order.ward);
        if self.has_left_behind(process, order.incarnation)
            || self.phase == Phase::Stopped
            || self.has_ended(job)
            || order.ward.placement.node_of(process.rank) != Some(self.me())
        {
            return;
        }
        if self.hosts.get(&job).is_some_and(|host| host.epoch() < order.ward.epoch) {
            return self.supersede(now, job, from, PeerMessage::Restart(Box::new(order)));
        }
        let fresh = !self.hosts.contains_key(&job);
        let space = key_space(&self.config.key, job, order.ward.epoch);
        self.hosts.entry(job).or_insert_with(|| Host::adopt(job, &order.ward, space));
        if fresh {
            self.seek_protection(now, Some(job));
        }
        let host = self.hosts.get_mut(&job).expect("it was there, or has come");
        if fresh {
            // A new home may have asked already. One that comes later asks again.
            host.handle_new_home(order.ward.placement.home().clone());
        }
        let local = from == &self.config.me.id;
        host.restore(&order, local, self.config.environment.library.clone());
        self.forget_restart(job);
        self.observers.processes.remove(&process);
        self.registry.come_back(process);
        let here = self.recovery.here.entry(process).or_default();
        (here.door, here.origin, here.holder) = (None, Some(order.origin), Some(from.clone()));
        (here.incarnation, here.degraded, here.log_end) = (Some(order.incarnation), Some(u64::MAX), order.log_end);
        here.order = Some(Box::new(order));
        self.with_host(now, job, |_| ());
    }

    /// Whether a process is here, or comes back here. If not, this node refuses all orders for this incarnation from now on,
    /// because another node is about to begin the next one.
    pub(super) fn has_or_refuses(&mut self, process: ProcessId, incarnation: Incarnation) -> bool {
        let ProcessId { job, rank } = process;
        let has_ended_here =
            self.recovery.endings.ends.get(&job).is_some_and(|(_, ends)| ends.iter().any(|(ended, ..)| *ended == rank));
        // A host of an earlier epoch does not count, because it is about to end. A message that waits for that end may bring the
        // process back.
        let host = self.hosts.get(&job).filter(|host| host.epoch() == incarnation.epoch);
        let is_here = host.is_some_and(|host| host.ranks().any(|here| here == rank));
        let comes =
            |(_, message): &(NodeId, PeerMessage)| matches!(message, PeerMessage::Restart(order) if order.process == process);
        let is_here =
            is_here || self.recovery.next_homes.postponed.get(&job).is_some_and(|postponed| postponed.iter().any(comes));
        if is_here || has_ended_here || self.has_ended(job) {
            return true;
        }
        let known = self.recovery.restarted.entry(process).or_default();
        *known = (*known).max(incarnation.next());
        false
    }

    /// The images of a process are here, or cannot be had.
    pub(super) fn handle_fetched(&mut self, now: Duration, process: ProcessId, result: Result<(), String>) {
        match result {
            Ok(()) => self.record(
                now,
                EventName::Image,
                About::rank(process.job, process.rank),
                format!("rank {}: its images are here", process.rank),
            ),
            Err(why) => {
                let mut is_wanted = true;
                self.with_host(now, process.job, |host| is_wanted = host.handle_no_images(now, process.rank));
                if is_wanted {
                    self.handle_unrestorable(now, process, format!("its images cannot be had: {why}"), None);
                }
            }
        }
    }

    /// No image brings a process of this node back: its job restarts from the beginning. `own` is the signal by which the process
    /// had crashed while it was live; if it crashes by it again in the job's next epoch, the program has failed.
    pub(super) fn handle_unrestorable(&mut self, now: Duration, process: ProcessId, why: String, own: Option<i32>) {
        let about = About::rank(process.job, process.rank);
        self.record(now, EventName::Lost, about, format!("rank {}: {why}", process.rank));
        self.tell_home_of_no_image(process, why.clone(), own);
        // The home ignores what this says: it restarts the job.
        self.with_host(now, process.job, |host| host.handle_not_restored(now, process.rank, why));
    }

    /// A restored process is there.
    pub(super) fn handle_restored(&mut self, now: Duration, observer: ObserverId, process: ProcessId, point: Point) {
        // Fulfilled or refused, the order is used up: another one would be for another incarnation.
        let Some(order) = self.recovery.here.get_mut(&process).and_then(|here| here.order.take()) else {
            return self.refuse(observer, format!("no protector has ordered rank {} to come back here", process.rank));
        };
        if point.cut != order.cut {
            let text = format!("its image stands at {} of the journal, not at {}", point.cut, order.cut);
            return self.refuse(observer, text);
        }
        if order.ward.fence > 0 && !point.pmi.0 {
            // The image is from before `MPI_Init` returned and the other ranks have passed the barrier: it cannot be used.
            return self.give_up_image(now, observer, process);
        }
        // Where its incarnation before had ended streams does not hold any more: this one says it itself.
        self.recovery.here.entry(process).or_default().finals.clear();
        let Some(host) = self.hosts.get(&process.job) else { return };
        let restart = Restart {
            incarnation: order.incarnation,
            key: radic_wire::mac::JobKey::derive(&self.config.key, process.job),
            protector: order.log,
            protection: host.protection().clone(),
            log_end: order.log_end,
            images: order.range,
            held: order.held,
            causes: order.causes,
            restarted: self.recovery.restarted.iter().map(|(process, incarnation)| (*process, *incarnation)).collect(),
        };
        let text = format!("rank {}: catches up from {} to {} of its journal", process.rank, order.cut, order.log_end);
        self.record(now, EventName::Replay, About::rank(process.job, process.rank), text);
        self.outputs.push_back(Output::Observer(observer, FromNode::Restart(Box::new(restart))));
        self.observers.processes.entry(process).or_default().handle_welcome(observer);
        self.watch_replay(now, process, (order.cut, order.log_end));
        let mut lost = None;
        self.with_host(now, process.job, |host| lost = host.handle_restored(process.rank, &point).err());
        if let Some(error) = lost {
            let why = error.to_string();
            self.record(now, EventName::Lost, About::rank(process.job, process.rank), format!("rank {}: {why}", process.rank));
            self.with_host(now, process.job, |host| host.handle_not_restored(now, process.rank, why));
        }
        self.start_schedule(now, process);
    }

    /// The image of a process was made before MPI_Init: it cannot be used.
    fn give_up_image(&mut self, now: Duration, observer: ObserverId, process: ProcessId) {
        let (job, rank) = (process.job, process.rank);
        let why = "it was lost before a checkpoint of it after MPI_Init was committed".to_owned();
        self.record(now, EventName::Lost, About::rank(job, rank), format!("rank {rank}: {why}"));
        self.tell_home_of_no_image(process, why.clone(), None);
        self.refuse(observer, why.clone());
        // The home may be lost before it has heard so. The host remembers it, so the next home is told as well.
        self.with_host(now, job, |host| host.handle_not_restored(now, rank, why));
    }

    /// A process that was brought back is live.
    pub(super) fn handle_live(&mut self, now: Duration, process: ProcessId, events: u64) {
        let text = format!("rank {}: lives again, after {events} outcomes", process.rank);
        self.record(now, EventName::Live, About::rank(process.job, process.rank), text);
        self.replays.remove(&process);
        self.with_host(now, process.job, |host| host.handle_live(process.rank));
    }

    /// A process that was brought back needs its old log no more. That may come later than `live`: peers need not keep what the
    /// process had received, even if its program has not taken it yet.
    pub(super) fn handle_log_read(&mut self, now: Duration, process: ProcessId) {
        self.with_host(now, process.job, |host| host.handle_log_read(process.rank));
        self.reprotect(now, process);
    }

    /// Gives a process to the protector of its node, if its log is elsewhere, and asks for a checkpoint there.
    pub(super) fn reprotect(&mut self, now: Duration, process: ProcessId) {
        let Some(here) = self.recovery.here.get_mut(&process) else { return };
        let Some(holder) = here.holder.clone() else { return };
        here.degraded = Some(u64::MAX);
        if holder == self.protector().id {
            self.leave_holder(process);
            return self.degrade(now, process);
        }
        let purpose = Purpose::Release { process, holder: holder.clone() };
        self.gather_from(now, purpose, &Query::Release(process), vec![holder], RELEASE);
    }

    /// The node that had the log of a process has let it go, or is gone, or did not answer.
    pub(super) fn finish_release(&mut self, now: Duration, process: ProcessId, holder: &NodeId, released: bool) {
        let ProcessId { job, rank } = process;
        if self.here(process).and_then(|here| here.holder.as_ref()) != Some(holder) {
            return;
        }
        if !released && self.is_member(holder) {
            // Without its word the holder may still bring the process back.
            let text = format!("rank {rank}: {} does not let go of it yet; its log stays there", holder.name);
            self.record(now, EventName::Store, About::rank(job, rank), text);
            let purpose = Purpose::Release { process, holder: holder.clone() };
            return self.gather_from(now, purpose, &Query::Release(process), vec![holder.clone()], RELEASE);
        }
        if self.hosts.get(&job).is_some_and(|host| host.needs_log(rank)) {
            // The process has crashed meanwhile, and no node brings it back.
            return self.tell_home_of_lost_log(process);
        }
        self.leave_holder(process);
        self.protect_ranks(process.job, vec![process.rank]);
        let address = self.log_address();
        if let Some(observer) = self.observers.processes.get(&process).and_then(|p| p.observer()) {
            self.outputs.push_back(Output::Observer(observer, FromNode::Protector(address)));
        }
        self.degrade(now, process);
    }

    /// Whether the loss of a process would cost more than it should: it is being brought back, or has no checkpoint at its
    /// protector yet.
    pub(super) fn is_degraded(&self, process: ProcessId) -> bool {
        self.here(process).is_some_and(|here| here.degraded.is_some())
    }
}
