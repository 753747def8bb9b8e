//! The stand-in: with `--replicas 2`, the node that has the copy of a log and brings processes back when their host and their
//! protector are both lost.
//!
//! A protector's stand-in is the next node of the ring, and its log service follows the protector's. The protector tells it all
//! that it would need: the processes, their hosts and incarnations, the keys ([`Standing`]). The stand-in acts on that only if
//! - it was the protector's stand-in in the last view that had the protector in it, and has seen all views since: otherwise
//!   another node may have more of the log;
//! - no other node has become the protector of the host since, as far as the ring says;
//! - the protector has not ordered a restart that the stand-in does not know of: an order waits until the stand-in has heard of
//!   it, or is no member any more;
//! - the protector has not let the process go: a request for that waits in the same way.
//!
//! The stand-in knows of an order before the node that is to carry it out. If the protector is lost between the two, all wait for
//! each other: the home for the stand-in, the stand-in for a process that never comes. So when a protector is lost, its stand-in
//! asks the surviving hosts whether they have the processes that they should have ([`Query::Hosts`]). A host that answers no
//! refuses any older order that arrives later.
//!
//! When the stand-in may not act on something any more, it lets it go, in its log service as well: a copy that has missed
//! something restarts nothing ([`crate::store::Store::let_go`]).

use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::event::EventName;
use radic_wire::ids::{Incarnation, JobId, NodeId, ProcessId, Rank};
use radic_wire::membership::View;
use radic_wire::peer::{Answer, PeerMessage, Query, RestartOrder, Standing, Stood, ToHome, ToStore};

use super::events::About;
use super::purpose::Purpose;
use super::stores::StoreOrder;
use super::wards::{Protected, Wards};
use super::{Node, Output};
use crate::membership::ring::watcher_of;

/// Time that a node has to answer the stand-in's questions, or its protector's. Then it is asked again.
const ANSWER: Duration = Duration::from_secs(5);

/// What becomes of a process with a protector that this node stands in for, when there is a new view.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// Nothing changes.
    Stays,
    /// Another node has more of the process's log, or may have.
    Ends,
    /// The process's host and its protector are lost: this node is its protector.
    Falls,
    /// The process's protector is lost, but its host is not. The host may have the process, or was about to be ordered to bring
    /// it back.
    Asks,
}

/// Decides what becomes of a process on `host` if `me` stands in for its protector. Pure: `old` and `new` are views that `me` has
/// had one after the other.
fn fate(me: &NodeId, old: &View, new: &View, protector: &NodeId, host: &NodeId) -> Fate {
    let is_next_of = |view: &View, node: &NodeId| watcher_of(view, node).is_some_and(|next| next.id == *me);
    if new.number != old.number + 1 {
        // Another node may have stood in between the two.
        return Fate::Ends;
    }
    if new.get(protector).is_some() {
        return if is_next_of(new, protector) { Fate::Stays } else { Fate::Ends };
    }
    let lost_now = old.get(protector).is_some();
    if lost_now && !is_next_of(old, protector) {
        return Fate::Ends;
    }
    match new.get(host) {
        Some(_) if lost_now => Fate::Asks,
        // The host has another protector from now on: this node, or a node that has nothing of the process yet.
        Some(_) if is_next_of(new, host) => Fate::Stays,
        Some(_) => Fate::Ends,
        None if lost_now || is_next_of(old, host) => Fate::Falls,
        None => Fate::Ends,
    }
}

impl Node {
    /// The node that stands in for this one.
    fn stand_in(&self) -> Option<NodeId> {
        self.view().and_then(|view| watcher_of(view, self.me())).map(|next| next.id.clone())
    }

    /// The log service that has copies of what this node protects of a job, if there is one.
    pub(super) fn replica_of(&self, job: JobId) -> Option<SocketAddr> {
        let wards = self.recovery.wards.get(&job).filter(|wards| wards.ward.spec.protection.replicas == 2);
        let stand_in = self.stand_in().filter(|stand_in| stand_in != self.me())?;
        let member = wards.and_then(|_| self.member(&stand_in))?;
        Some(member.log_address())
    }

    /// What this node protects of a job on a host, for its stand-in. None if there is no copy.
    fn standing(&self, job: JobId, host: &NodeId) -> Option<Standing> {
        let wards = self.recovery.wards.get(&job).filter(|wards| wards.ward.spec.protection.replicas == 2)?;
        let of_host = wards.ranks.iter().filter(|(_, protected)| protected.protector.is_none() && protected.host == *host);
        let stood = |(rank, protected): (&Rank, &Protected)| Stood {
            rank: *rank,
            incarnation: protected.incarnation,
            origin: protected.origin,
            left: protected.left.clone(),
        };
        let ranks: Vec<Stood> = of_host.map(stood).collect();
        (!ranks.is_empty()).then(|| Standing { host: host.clone(), ranks, ward: wards.ward.clone() })
    }

    /// Tells this node's stand-in what it would need to bring back these processes.
    pub(super) fn tell_stand_in(&mut self, job: JobId, host: &NodeId) {
        if let (Some(stand_in), Some(standing)) = (self.stand_in(), self.standing(job, host)) {
            self.recovery.stood += 1;
            self.send(&stand_in, PeerMessage::ToStore(job, ToStore::Stand(Box::new(standing))));
        }
    }

    /// Sends an order to bring a process back as soon as this node's stand-in knows of it.
    pub(super) fn order_restart(&mut self, now: Duration, target: &NodeId, order: Box<RestartOrder>) {
        let process = order.process;
        match (self.stand_in(), self.standing(process.job, target)) {
            (Some(stand_in), Some(standing)) if stand_in != *self.me() => {
                self.recovery.stood += 1;
                let purpose = Purpose::Stand { target: target.clone(), order, stand_in: stand_in.clone() };
                self.gather_from(now, purpose, &Query::Stand(process.job, Box::new(standing)), vec![stand_in], ANSWER);
            }
            _ => self.send(target, PeerMessage::Restart(order)),
        }
    }

    /// The stand-in knows of an order, or is gone.
    pub(super) fn finish_stand(&mut self, now: Duration, target: &NodeId, order: Box<RestartOrder>, known: bool) {
        let ProcessId { job, rank } = order.process;
        let protected = self.recovery.wards.get(&job).and_then(|wards| wards.ranks.get(&rank));
        // Otherwise the target was lost meanwhile, and another order is under way.
        if protected.is_some_and(|p| p.incarnation == order.incarnation && p.host == *target && p.protector.is_none()) {
            if known { self.send(target, PeerMessage::Restart(order)) } else { self.order_restart(now, target, order) }
        }
    }

    /// A protector asks this node to stand in for it.
    pub(super) fn handle_stand(&mut self, now: Duration, from: &NodeId, job: JobId, standing: Standing) {
        let Standing { host, ranks, mut ward } = standing;
        let is_old = self.recovery.wards.get(&job).is_some_and(|wards| wards.ward.epoch > ward.epoch);
        if is_old || self.has_ended(job) || !self.is_member(from) || ranks.iter().any(|stood| stood.rank.0 >= ward.spec.ranks) {
            return;
        }
        self.update(&mut ward);
        let now_ms = self.config.wall_us / 1000 + now.as_millis() as u64;
        let wards = Wards::of(&mut self.recovery.wards, job, &ward, now_ms);
        let forgotten = wards.forget_before(ward.epoch);
        if ward.fence >= wards.ward.fence || ward.epoch > wards.ward.epoch {
            wards.ward = ward;
        }
        for Stood { rank, incarnation, origin, left } in ranks {
            // The process is protected by this node already, and the sender does not know that yet.
            if wards.ranks.get(&rank).is_some_and(|known| known.protector.is_none()) {
                continue;
            }
            let mut protected = Protected::new(host.clone(), incarnation);
            (protected.protector, protected.origin, protected.left) = (Some(from.clone()), origin, left);
            wards.ranks.insert(rank, protected);
        }
        self.end_replication(job, forgotten);
    }

    /// Another node wants to protect a process. This node's stand-in is asked first, because it must not bring the process back,
    /// either.
    pub(super) fn handle_release_query(&mut self, now: Duration, from: &NodeId, number: u64, process: ProcessId) {
        let protected = self.recovery.wards.get(&process.job).and_then(|wards| wards.ranks.get(&process.rank));
        let leads = protected.is_some_and(|protected| protected.protector.is_none());
        let copies = self.recovery.wards.get(&process.job).is_some_and(|wards| wards.ward.spec.protection.replicas == 2);
        match self.stand_in().filter(|_| leads && copies) {
            Some(stand_in) => {
                let stood = self.recovery.stood;
                let purpose = Purpose::Unstand { asker: from.clone(), number, process, stand_in: stand_in.clone(), stood };
                self.gather_from(now, purpose, &Query::Release(process), vec![stand_in], ANSWER);
            }
            None => self.release(from, number, process),
        }
    }

    fn release(&mut self, asker: &NodeId, number: u64, process: ProcessId) {
        self.handle_release(process);
        self.send(asker, PeerMessage::Answer(number, Answer::Released));
    }

    /// The stand-in has let a process go, or is gone; none: it has not answered. Before it was asked stand-ins had been told so often.
    pub(super) fn finish_unstand(&mut self, now: Duration, asker: &NodeId, number: u64, process: ProcessId, stood: Option<u64>) {
        match stood {
            None => {} // The node that wants it asks again.
            // It, or another stand-in, may have been told of the process since it was asked.
            Some(stood) if stood != self.recovery.stood => self.handle_release_query(now, asker, number, process),
            Some(_) => self.release(asker, number, process),
        }
    }

    /// The cluster has another view: reviews each process with a protector that this node stands in for.
    pub(super) fn review_standing(&mut self, now: Duration, old: &View, new: &View) {
        let me = self.me().clone();
        let stands = |(job, rank, p): (&JobId, &Rank, &Protected)| {
            let protector = p.protector.as_ref()?;
            Some((ProcessId { job: *job, rank: *rank }, fate(&me, old, new, protector, &p.host)))
        };
        let all = self.recovery.wards.iter().flat_map(|(job, wards)| wards.ranks.iter().map(move |(rank, p)| (job, rank, p)));
        for (process, fate) in all.filter_map(stands).collect::<Vec<_>>() {
            match fate {
                Fate::Stays => {}
                Fate::Ends => self.stand_down(now, process, new),
                Fate::Falls => self.take_over(now, process),
                Fate::Asks => self.ask_host(now, process),
            }
        }
    }

    /// Another node may have more of a process's log, so this node does not stand in any more.
    fn stand_down(&mut self, now: Duration, process: ProcessId, view: &View) {
        let Some(protected) = self.let_copy_go(process) else { return };
        let is_member = |node: &NodeId| view.get(node).is_some();
        if protected.protector.as_ref().is_some_and(is_member) {
            return;
        }
        match is_member(&protected.host) {
            false => self.give_up_copy(process, protected),
            // An order may be lost with the protector, and the home may count on this node, which has said that it knows of the
            // process.
            true if protected.left.is_none() => self.ask(now, process, protected.incarnation, protected.host),
            true => {}
        }
    }

    /// The copy of its log restarts nothing any more, and this node does not stand in for its protector.
    fn let_copy_go(&mut self, process: ProcessId) -> Option<Protected> {
        self.outputs.push_back(Output::Store(StoreOrder::LetGo(process)));
        self.recovery.wards.get_mut(&process.job)?.ranks.remove(&process.rank)
    }

    /// Tells the home that a process is not brought back from the copy of its log here. The home may count on this node, which
    /// has said that it knows of the process.
    fn give_up_copy(&mut self, process: ProcessId, mut protected: Protected) {
        let Some(wards) = self.recovery.wards.get_mut(&process.job) else { return };
        let why = "its node is lost, and so is its protector, and the copy of its log may lack something".to_owned();
        let (rank, incarnation) = (process.rank, protected.incarnation);
        let home = wards.ward.placement.home().clone();
        let hopeless = ToHome::NoImage { rank, incarnation, why, crash: None };
        (protected.protector, protected.hopeless) = (None, Some(hopeless.clone()));
        wards.ranks.insert(rank, protected);
        self.send(&home, PeerMessage::ToHome(process.job, hopeless));
    }

    /// The protector of a process is lost. Asks the host whether it has the process: if not, the order to bring it back is lost
    /// with the protector.
    fn ask_host(&mut self, now: Duration, process: ProcessId) {
        let wards = self.recovery.wards.get(&process.job);
        let Some(protected) = wards.and_then(|wards| wards.ranks.get(&process.rank)) else { return };
        let (host, incarnation) = (protected.host.clone(), protected.incarnation);
        if protected.left.is_some() {
            // The host had it. What the process has sent is told to the host's protector.
            if !self.is_next_of(&host) {
                self.let_copy_go(process);
            }
            return;
        }
        self.ask(now, process, incarnation, host);
    }

    fn ask(&mut self, now: Duration, process: ProcessId, incarnation: Incarnation, host: NodeId) {
        let purpose = Purpose::Hosts { process, incarnation, host: host.clone() };
        self.gather_from(now, purpose, &Query::Hosts(process, incarnation), vec![host], ANSWER);
    }

    /// The answer of the host of a process without its protector: it has the process and this protector, or it does not have
    /// it. None if it has not answered.
    pub(super) fn finish_hosts(
        &mut self,
        now: Duration,
        process: ProcessId,
        incarnation: Incarnation,
        host: &NodeId,
        answer: Option<Option<NodeId>>,
    ) {
        let Some(wards) = self.recovery.wards.get(&process.job).filter(|wards| wards.ward.epoch <= incarnation.epoch) else {
            return;
        };
        let protected = wards.ranks.get(&process.rank);
        let waits = |p: &Protected| {
            p.incarnation == incarnation && p.host == *host && p.protector.as_ref().is_some_and(|lost| !self.is_member(lost))
        };
        let stands = protected.map(waits);
        if stands == Some(false) {
            return; // Another message already settled this process.
        }
        let is_mine = |protector: &NodeId| protector == self.me() || !self.is_member(protector) && self.is_next_of(host);
        match answer {
            // The host will answer, or be declared dead.
            None if self.is_member(host) => self.ask(now, process, incarnation, host.clone()),
            None => {}
            Some(None) if stands == Some(true) => self.take_over(now, process),
            // This node has stood down since, and no other node could bring the process back.
            Some(None) => self.give_up_copy(process, Protected::new(host.clone(), incarnation)),
            // This node is the protector from now on.
            Some(Some(protector)) if is_mine(&protector) => {}
            // What becomes of the process is told to its host's protector. That need not be the next one in the ring, because a
            // host keeps the protector that it has.
            Some(Some(_)) => _ = stands.and_then(|_| self.let_copy_go(process)),
        }
    }

    /// Whether this node follows that one in the ring.
    fn is_next_of(&self, node: &NodeId) -> bool {
        self.view().and_then(|view| watcher_of(view, node)).is_some_and(|next| next.id == *self.me())
    }

    /// A process runs nowhere, and its protector is lost. This node has a copy of the log, and protects the process from now on.
    fn take_over(&mut self, now: Duration, process: ProcessId) {
        let wards = self.recovery.wards.get_mut(&process.job);
        let Some(protected) = wards.and_then(|wards| wards.ranks.get_mut(&process.rank)) else { return };
        let Some(lost) = protected.protector.take() else { return };
        if protected.left.is_some() {
            return; // The process has ended; this node answers for it.
        }
        let text = format!(
            "rank {}: its protector, {}, is lost, and it is nowhere; there is a copy of its log here",
            process.rank, lost.name
        );
        self.record(now, EventName::Store, About::rank(process.job, process.rank), text);
        self.outputs.push_back(Output::Store(StoreOrder::TakeOver(process)));
        self.recover(now, process);
    }
}
