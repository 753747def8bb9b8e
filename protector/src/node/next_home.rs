//! The next home of a job whose home is lost, and messages about a job's next epoch that come before it can begin here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use radic_wire::event::EventName;
use radic_wire::ids::{Epoch, Incarnation, JobId, NodeId, ProcessId, Rank};
use radic_wire::job::Ward;
use radic_wire::limits;
use radic_wire::peer::{Adoption, Answer, PeerMessage, Query, ToHome, ToHost};

use super::Node;
use super::events::About;
use super::home::Home;
use super::host::Host;
use super::purpose::Purpose;

/// What is known of next homes, and of next epochs.
#[derive(Debug, Default)]
pub(super) struct NextHomes {
    /// Messages about the next epoch of a job, with their senders. They are handled as soon as the processes of the epoch before
    /// have ended here.
    pub(super) postponed: BTreeMap<JobId, Vec<(NodeId, PeerMessage)>>,
    /// Jobs whose home is lost, until the next one has said that it is there.
    pub(super) homeless: BTreeSet<JobId>,
    /// The nodes that have announced themselves as the home of a job before this node has heard that the home before is lost.
    pub(super) announced: BTreeMap<JobId, NodeId>,
}

impl NextHomes {
    /// The job is over. Returns the node that has announced itself as its next home, if one has.
    pub(super) fn forget(&mut self, job: JobId) -> Option<NodeId> {
        self.postponed.remove(&job);
        self.homeless.remove(&job);
        self.announced.remove(&job)
    }
}

impl Node {
    /// Keeps a message for later: it is handled when the host of the job, which is of an earlier epoch, is gone.
    pub(super) fn postpone(&mut self, job: JobId, from: &NodeId, message: PeerMessage) {
        let postponed = self.recovery.next_homes.postponed.entry(job).or_default();
        if postponed.len() < limits::RANKS as usize {
            postponed.push((from.clone(), message));
        }
    }

    /// The host is gone: handle the postponed messages of the next epoch. If the home of that epoch is lost, tell the next home
    /// that nothing of it is here; no host would.
    pub(super) fn handle_postponed(&mut self, now: Duration, job: JobId, home: &NodeId) {
        let Some(postponed) = self.recovery.next_homes.postponed.remove(&job) else { return };
        let launched = postponed.iter().filter(|(_, message)| matches!(message, PeerMessage::ToHost(..)));
        let epoch = launched.filter_map(|(_, message)| epoch_in(message)).max();
        for (from, message) in postponed {
            self.handle_message(now, &from, message);
        }
        if let Some(epoch) = epoch.filter(|_| !self.hosts.contains_key(&job) && !self.has_ended(job)) {
            self.keep_restart(job, epoch);
            self.tell_home_of_restart(home, job);
        }
    }

    /// The newest epoch of a job that this node has heard of.
    fn epoch_of(&self, job: JobId) -> Option<Epoch> {
        let host = self.hosts.get(&job).map(Host::epoch);
        let ward = self.recovery.wards.get(&job).map(|wards| wards.ward.epoch);
        let postponed =
            self.recovery.next_homes.postponed.get(&job).into_iter().flatten().filter_map(|(_, message)| epoch_in(message)).max();
        host.max(ward).max(postponed)
    }

    /// The home of a job asks every node about the job's lost ranks. The protector of a rank, the node that brings it back, and a
    /// node that was given its log when the job was resumed know of it. What was asked before the newest view is void: a node
    /// that had nothing of a rank then may have its log since, and the node that would have said so is gone.
    pub(super) fn seek_lost(&mut self, now: Duration, job: JobId) {
        self.gathers.retain(|_, gather| !gather.is_for_lost(job));
        let lost: Vec<Rank> = self.homes.get(&job).map_or_else(Vec::new, |home| home.away().collect());
        self.ask_for_lost(now, job, lost);
    }

    fn ask_for_lost(&mut self, now: Duration, job: JobId, ranks: Vec<Rank>) {
        let Some(epoch) = self.homes.get(&job).map(Home::epoch).filter(|_| !ranks.is_empty()) else { return };
        let query = Query::Lost { job, epoch, ranks: ranks.clone(), view: self.view_number() };
        self.gather(now, Purpose::Lost(job, ranks), &query);
    }

    /// Which of these ranks, which the home of their job misses, this node knows of.
    pub(super) fn answer_lost(&mut self, now: Duration, home: &NodeId, job: JobId, epoch: Epoch, ranks: &[Rank]) -> Answer {
        self.go_on_with_gift(now, home, job, epoch, ranks);
        let is_known = |rank: &Rank| self.place_of(ProcessId { job, rank: *rank }).is_some();
        Answer::Lost(ranks.iter().copied().filter(is_known).collect())
    }

    /// No node that was asked and has answered knows of these ranks. `silent`: not all have.
    pub(super) fn finish_lost(&mut self, now: Duration, job: JobId, mut ranks: Vec<Rank>, silent: bool) {
        let Some(home) = self.homes.get(&job) else { return };
        ranks.retain(|rank| home.away().any(|away| away == *rank));
        if silent || self.seeks_lines(job) {
            // The node will answer, or be declared dead.
            return self.ask_for_lost(now, job, ranks);
        }
        ranks.into_iter().for_each(|rank| self.lose_for_good(now, ProcessId { job, rank }));
    }

    /// No node knows of a lost rank: its protector was lost with it, and only a restart from the beginning is left
    /// (docs/guarantees.md says what survives what).
    fn lose_for_good(&mut self, now: Duration, process: ProcessId) {
        let ProcessId { job, rank } = process;
        // Another rank may have restarted the job, or ended it.
        if !self.homes.get(&job).is_some_and(|home| home.away().any(|away| away == rank)) {
            return;
        }
        if self.homes.get(&job).is_some_and(|home| home.has_ended(rank)) {
            return self.with_home(now, job, |home| home.handle_left_for_good(rank));
        }
        let epoch = self.homes.get(&job).map(Home::epoch).unwrap_or_default();
        let me = self.me().clone();
        if let Some(left) = self.left_at_end(process, epoch) {
            return self.with_home(now, job, |home| home.handle_message(now, &me, left));
        }
        let why = "its node is lost, and every node that had its log with it".to_owned();
        self.record(now, EventName::Lost, About::rank(job, rank), format!("rank {rank}: {why}"));
        self.with_home(now, job, |home| {
            let incarnation = Incarnation::launched_in(home.epoch());
            home.handle_message(now, &me, ToHome::NoImage { rank, incarnation, why, crash: None });
        });
    }

    /// Asks the next home of each job without one to take the job. Every node that has anything of the job asks, because the
    /// protector of rank 0 may be lost with the home.
    pub(super) fn seek_next_homes(&mut self, now: Duration) {
        for job in self.recovery.next_homes.homeless.clone() {
            let wards = self.recovery.wards.get(&job);
            let host = || self.hosts.get(&job).map(|host| (host.spec(), host.placement()));
            let ward = wards.map(|wards| (&wards.ward.spec, &wards.ward.placement));
            let Some(((spec, placement), epoch)) = host().or(ward).zip(self.epoch_of(job)) else { continue };
            let ward = Ward { epoch, spec: spec.clone(), placement: placement.clone(), fence: 0, keys: Vec::new() };
            let started_ms = wards.map_or(self.config.wall_us / 1000 + now.as_millis() as u64, |wards| wards.started_ms);
            let (home, adoption) = (placement.home().clone(), Adoption { job, ward, started_ms, view: self.seat().view });
            self.send(&home, PeerMessage::Adopt(Box::new(adoption)));
        }
    }

    /// A node that has something of a job asks this node to be its home.
    pub(super) fn handle_adopt(&mut self, now: Duration, from: &NodeId, adoption: Adoption) {
        let (job, placement) = (adoption.job, &adoption.ward.placement);
        if self.has_ended(job) {
            // The lost home had not told every node.
            return self.tell_removed(from, job);
        }
        if let Some(home) = self.homes.get_mut(&job) {
            home.handle_adoption(&adoption);
            // The sender may have been told before it knew that the home before is lost.
            return self.send(from, PeerMessage::NewHome(job));
        }
        // Otherwise the sender does not know yet that another node is lost. It asks again when it does.
        if placement.home() == self.me() && !placement.nodes.iter().any(|node| self.has_departed(node)) {
            self.record(now, EventName::Place, About::job(job), "its home goes on here".into());
            self.add_home(job, Home::adopt(now, self.seat(), adoption));
            self.tell_all(&PeerMessage::NewHome(job));
            self.seek_lost(now, job);
        }
    }

    /// A job has a new home. What is here of the job reports to it, and terminals attach again.
    pub(super) fn handle_new_home(&mut self, now: Duration, from: &NodeId, job: JobId) {
        if self.has_ended(job) {
            return self.tell_removed(from, job);
        }
        let of_host = self.hosts.get(&job).map(|host| host.placement().home() == from);
        let of_wards = || self.recovery.wards.get(&job).map(|wards| wards.ward.placement.home() == from);
        match of_host.or_else(of_wards) {
            Some(true) => {
                self.recovery.next_homes.homeless.remove(&job);
                self.recovery.next_homes.announced.retain(|of, next| (*of, &*next) != (job, from));
            }
            // If the home before says now that the job is over, the new one has to hear so: it would wait for reports of what was
            // forgotten.
            Some(false) if self.recovery.next_homes.announced.len() < limits::JOBS => {
                _ = self.recovery.next_homes.announced.insert(job, from.clone());
            }
            _ => {}
        }
        self.tell_home_of_restart(from, job);
        if of_host == Some(true) {
            self.with_host(now, job, |host| host.handle_new_home(from.clone()));
            let ranks: Vec<Rank> = self.hosts.get(&job).map_or_else(Vec::new, |host| host.ranks().collect());
            ranks.into_iter().for_each(|rank| self.tell_home_of_finals(ProcessId { job, rank }));
        }
        self.attach_again(job, from);
        self.tell_home_of_ends_here(from, job);
        self.tell_home_of_ends(job);
        self.tell_home_of_lost_logs(job);
    }
}

/// The epoch that `message` is about to begin at a host, or in which it brings a process back there.
fn epoch_in(message: &PeerMessage) -> Option<Epoch> {
    match message {
        PeerMessage::ToHost(_, ToHost::Launch { epoch, .. }) => Some(*epoch),
        PeerMessage::Restart(order) => Some(order.ward.epoch),
        _ => None,
    }
}
