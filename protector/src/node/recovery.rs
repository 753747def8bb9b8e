//! What is lost comes back (docs/recovery.md, step by step). Every node knows what it protects ([`Wards`]); when a view says that a node is gone, whoever
//! protected its processes fences them, and orders the node where they go on to bring them back. Where that is, everybody works out alike
//! ([`placement::replace`]). The job's home may be among what is lost: its new node becomes the home, and hosts report to it.
//!
//! A process is protected by one node at a time, and only that one may bring it back: when it is to be another ([`Node::reprotect`]), the one before is
//! asked to let go first, so that nobody ever restarts a process from a log that has not all of what it did (G1).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::event::EventName;
use radic_wire::ids::{Epoch, Incarnation, JobId, NodeId, ProcessId, Rank};
use radic_wire::job::{ExitStatus, JobSpec, Outcome, Placement};
use radic_wire::limits;
use radic_wire::membership::{Member, View};
use radic_wire::peer::{
    Adoption, FromHost, HostReport, Left, MpiPhase, PeerMessage, Query, RestartOrder, ToHome, ToHost, ToStore, Ward,
};
use radic_wire::process::{FromNode, Place, Point, Protect, Restart, StreamEnd};

use super::clients::Purpose;
use super::events::About;
use super::finals;
use super::home::Home;
use super::host::Host;
use super::observers::ObserverId;
use super::placement;
use super::stores::StoreOrder;
use super::{Node, Output};
use crate::membership::ring::watcher_of;
use crate::store;

/// Ended jobs of which it is remembered that nobody of them wants anything any more.
const ENDED: usize = 256;
/// Lost members of which it is remembered what came of their ranks.
const LOSSES: usize = 64;
/// Time that a protector has to let go of a process.
const RELEASE: Duration = Duration::from_secs(5);
/// Time that a side without a majority keeps protected jobs waiting for one: nothing can be decided there, and an error is better than a hang.
const FROZEN: Duration = Duration::from_secs(60);
/// Time that hosts have after that to hear of it from the home of a job, which says why it ends. A process that finds no protector waits longer than both.
const HOMELESS: Duration = Duration::from_secs(5);

/// A process that this node protects, or for whose protector it stands in.
#[derive(Debug)]
pub(super) struct Protected {
    pub(super) host: NodeId,
    pub(super) incarnation: Incarnation,
    /// Who protects it, if this node only stands in.
    pub(super) protector: Option<NodeId>,
    /// It has ended by itself.
    pub(super) left: Option<Left>,
    /// It was fenced, and not sent anywhere yet.
    recovering: bool,
    /// Why it is not brought back, as its home was told; perhaps one that is lost.
    pub(super) hopeless: Option<ToHome>,
    /// The signal that ended it, if it is brought back for that.
    crashed: Option<i32>,
    /// The address of the node where it was first launched, if that is not its host.
    pub(super) origin: Option<IpAddr>,
}

impl Protected {
    pub(super) fn new(host: NodeId, incarnation: Incarnation) -> Protected {
        let (protector, left, recovering, hopeless, crashed, origin) = (None, None, false, None, None, None);
        Protected { host, incarnation, protector, left, recovering, hopeless, crashed, origin }
    }
}

/// Of one job, what this node protects, and what it stands in for.
#[derive(Debug)]
pub(super) struct Wards {
    pub(super) ward: Ward,
    pub(super) started_ms: u64,
    pub(super) ranks: BTreeMap<Rank, Protected>,
}

impl Wards {
    /// Those of a job; it is known from `now_ms` on, in milliseconds since 1970, if it is not known yet.
    pub(super) fn of<'a>(all: &'a mut BTreeMap<JobId, Wards>, job: JobId, ward: &Ward, now_ms: u64) -> &'a mut Wards {
        all.entry(job).or_insert_with(|| Wards { ward: ward.clone(), started_ms: now_ms, ranks: BTreeMap::new() })
    }

    /// The job has begun anew with this life: what is known of ranks in an older one is not so any more. Hosts say so by what they have protected, and the home in words,
    /// in either order. Who is forgotten.
    pub(super) fn forget_before(&mut self, epoch: Epoch) -> Vec<Rank> {
        let is_old = |(_, protected): &(&Rank, &Protected)| protected.incarnation.epoch < epoch;
        let forgotten: Vec<Rank> = self.ranks.iter().filter(is_old).map(|(rank, _)| *rank).collect();
        self.ranks.retain(|rank, _| !forgotten.contains(rank));
        forgotten
    }
}

/// How ranks have ended, and how far they had come with MPI.
type Ends = Vec<(Rank, ExitStatus, MpiPhase)>;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    pub(super) wards: BTreeMap<JobId, Wards>,
    /// Where processes of this node are dialed.
    doors: BTreeMap<ProcessId, (Incarnation, SocketAddr)>,
    /// Newest lives of processes that were restarted anywhere.
    restarted: BTreeMap<ProcessId, Incarnation>,
    /// What processes are brought back here with, until they are there.
    orders: BTreeMap<ProcessId, RestartOrder>,
    /// The node that has the log of a process of this node: from a crash, or an order to bring it back, until it has caught up and its log is with this
    /// node's protector, whoever that is then.
    holders: BTreeMap<ProcessId, NodeId>,
    /// In which life a process of this node is that was brought back here.
    lives: BTreeMap<ProcessId, Incarnation>,
    /// Outgoing streams that processes of this node have ended: where, and whether they have closed the connection.
    finals: BTreeMap<ProcessId, BTreeMap<StreamId, StreamEnd>>,
    /// Of processes of this node that were first launched elsewhere: the address there.
    origins: BTreeMap<ProcessId, IpAddr>,
    /// Processes that wait for their first checkpoint at a new protector, each with the number of the request that asked for it. An answer to an earlier request
    /// is about an image at the protector before.
    degraded: BTreeMap<ProcessId, u64>,
    /// What was said of the life of a job that is to begin here as soon as a process of the life before has ended, and by whom.
    postponed: BTreeMap<JobId, Vec<(NodeId, PeerMessage)>>,
    /// Jobs whose home is lost, until the next one has said that it is there.
    homeless: BTreeSet<JobId>,
    /// Who has said that it is the home of a job now, before this node has heard that the one before is lost.
    announced: BTreeMap<JobId, NodeId>,
    /// Jobs that are over, and how they have ended, if their homes have said so.
    ended: VecDeque<(JobId, Option<Outcome>)>,
    /// How ranks have ended here of jobs of which nothing is here any more, until their home says that they are over: it may die before.
    ends: BTreeMap<JobId, (Epoch, Ends)>,
    /// Jobs of which all that was here has ended because they begin anew, and in which life that was, until the next one is launched here: their home may be lost before.
    anew: BTreeMap<JobId, Epoch>,
    /// The latest members that were lost: the view with each, and the one without it.
    losses: VecDeque<(Arc<View>, Arc<View>, Member)>,
    /// Since when this side has no majority.
    pub(super) frozen: Option<Duration>,
    /// Who did not answer then.
    pub(super) unreachable: BTreeSet<NodeId>,
    /// When the processes of this node end, whose home has not ended them.
    pub(super) abandoned: Option<Duration>,
}

impl Node {
    /// From a host: this node protects these ranks. Those of which it has had a copy so far, whose protector is lost: that has acknowledged nothing that is not here.
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
        for (rank, life) in ranks {
            let told = self.recovery.restarted.get(&ProcessId { job, rank: *rank }).copied().unwrap_or_default();
            let known = told.max(*life).max(Incarnation::launched_in(ward.epoch));
            let protected = wards.ranks.entry(*rank).or_insert_with(|| Protected::new(from.clone(), known));
            // Else what this node stands in for is reviewed with the view that lacks the protector.
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

    /// Of these ranks this node has protected lives of before the job began anew: there is nothing to replicate.
    pub(super) fn end_replication(&mut self, job: JobId, ranks: Vec<Rank>) {
        let orders = ranks.into_iter().map(|rank| Output::Store(StoreOrder::SetReplica(ProcessId { job, rank }, None)));
        self.outputs.extend(orders);
    }

    /// From a host: the key space of its ranks has grown.
    pub(super) fn handle_keys(&mut self, from: &NodeId, job: JobId, fence: u64, keys: Vec<(String, String)>) {
        if let Some(wards) = self.recovery.wards.get_mut(&job) {
            (wards.ward.fence, wards.ward.keys) = (fence, keys);
            self.tell_stand_in(job, from);
        }
    }

    /// From a host: a rank has ended by itself.
    pub(super) fn handle_left(&mut self, from: &NodeId, job: JobId, rank: Rank, left: Left) {
        if let Some(protected) = self.recovery.wards.get_mut(&job).and_then(|wards| wards.ranks.get_mut(&rank))
            && protected.host == *from
        {
            protected.left = Some(left);
            self.tell_stand_in(job, from);
        }
    }

    /// From a host: a process of it has crashed.
    pub(super) fn handle_crashed(&mut self, now: Duration, from: &NodeId, job: JobId, rank: Rank, signal: i32) {
        let wards = self.recovery.wards.get_mut(&job);
        let Some(protected) = wards.and_then(|wards| wards.ranks.get_mut(&rank)).filter(|p| p.host == *from) else { return };
        protected.crashed = Some(signal);
        self.recover(now, ProcessId { job, rank });
    }

    /// The job is over everywhere.
    pub(super) fn forget_wards(&mut self, job: JobId, outcome: Option<Outcome>) {
        self.forget_lives(job);
        let Recovery { wards, restarted, postponed, homeless, announced, ended, ends, anew, .. } = &mut self.recovery;
        let next = announced.remove(&job);
        ends.remove(&job);
        anew.remove(&job);
        postponed.remove(&job);
        homeless.remove(&job);
        wards.remove(&job);
        restarted.retain(|process, _| process.job != job);
        match ended.iter_mut().find(|(of, _)| *of == job) {
            Some((_, known)) => *known = known.take().or(outcome),
            None => ended.push_back((job, outcome)),
        }
        if ended.len() > ENDED {
            ended.pop_front();
        }
        if let Some(home) = next {
            self.tell_removed(&home, job);
        }
    }

    /// Whether this side of the cluster has no majority: it decides nothing, not even that a job may be forgotten.
    pub fn is_frozen(&self) -> bool {
        self.membership.is_frozen()
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

    /// Whether what this node protects of a job is of a later life of it than this.
    pub(super) fn protects_later_epoch(&self, job: JobId, epoch: Epoch) -> bool {
        self.recovery.wards.get(&job).is_some_and(|wards| wards.ward.epoch > epoch)
    }

    /// The host of a job is done, and its home does not know yet.
    pub(super) fn keep_ends(&mut self, job: JobId, epoch: Epoch, ends: Ends) {
        if !ends.is_empty() && self.recovery.ends.len() < limits::JOBS {
            self.recovery.ends.insert(job, (epoch, ends));
        }
    }

    /// The job begins anew.
    pub(super) fn forget_ends(&mut self, job: JobId) {
        self.recovery.ends.remove(&job);
    }

    /// All of a job has ended here because it begins anew.
    pub(super) fn keep_anew(&mut self, job: JobId, epoch: Epoch) {
        if self.recovery.anew.len() < limits::JOBS {
            self.recovery.anew.insert(job, epoch);
        }
    }

    /// Says `message` of `from` again when the host of the job, which is of a life before, is gone.
    pub(super) fn postpone(&mut self, job: JobId, from: &NodeId, message: PeerMessage) {
        let postponed = self.recovery.postponed.entry(job).or_default();
        if postponed.len() < limits::RANKS as usize {
            postponed.push((from.clone(), message));
        }
    }

    /// The host of a job is gone, and what was said of the next life is heard now. If the home that has launched it is lost, the next one has to hear that nothing of it is here: that host said
    /// nothing. (`make sim`, seed 958219: it waited for it for ever.)
    pub(super) fn handle_postponed(&mut self, now: Duration, job: JobId, home: &NodeId) {
        let Some(postponed) = self.recovery.postponed.remove(&job) else { return };
        let launched = postponed.iter().filter(|(_, message)| matches!(message, PeerMessage::ToHost(..)));
        let epoch = launched.filter_map(|(_, message)| epoch_in(message)).max();
        for (from, message) in postponed {
            self.handle_message(now, &from, message);
        }
        if let Some(epoch) = epoch.filter(|_| !self.hosts.contains_key(&job) && !self.has_ended(job)) {
            self.keep_anew(job, epoch);
            self.tell_home_of_anew(home, job);
        }
    }

    /// The newest life of a job that this node has heard of.
    fn epoch_of(&self, job: JobId) -> Option<Epoch> {
        let host = self.hosts.get(&job).map(Host::epoch);
        let ward = self.recovery.wards.get(&job).map(|wards| wards.ward.epoch);
        let postponed =
            self.recovery.postponed.get(&job).into_iter().flatten().filter_map(|(_, message)| epoch_in(message)).max();
        host.max(ward).max(postponed)
    }

    /// Its next life is launched here.
    pub(super) fn forget_anew(&mut self, job: JobId) {
        self.recovery.anew.remove(&job);
    }

    /// Tells the next home of a job that the one before had all ended here, to begin anew: there is no host that would. (`make sim`, seed 258613: a stand-in still knew of the rank that was
    /// here, so the next home went on with the others, and waited for it for ever.)
    fn tell_home_of_anew(&mut self, home: &NodeId, job: JobId) {
        let Some(epoch) = self.recovery.anew.get(&job).copied() else { return };
        let (running, ended, keys, waiting) = Default::default();
        let said = FromHost::Report(HostReport { running, ended, fence: 0, keys, waiting, anew: true });
        self.send(home, PeerMessage::ToHome(job, ToHome::Host { epoch, said }));
    }

    /// Tells the next home of a job what its host has told the home before.
    fn tell_home_of_ends_here(&mut self, home: &NodeId, job: JobId) {
        let (epoch, ends) = self.recovery.ends.get(&job).cloned().unwrap_or_default();
        for (rank, status, phase) in ends {
            self.send(home, PeerMessage::ToHome(job, ToHome::Left { rank, epoch, status, phase }));
        }
    }

    /// Whether a job is known to be over.
    pub(super) fn has_ended(&self, job: JobId) -> bool {
        self.recovery.ended.iter().any(|(ended, _)| *ended == job)
    }

    /// The jobs that are known to be over, and how they have ended.
    pub(super) fn known_ends(&self) -> Vec<(JobId, Outcome)> {
        let known = |(job, outcome): &(JobId, Option<Outcome>)| outcome.clone().map(|outcome| (*job, outcome));
        self.recovery.ended.iter().filter_map(known).collect()
    }

    /// Whoever does not know that the job is over is told, and how it has ended.
    fn tell_removed(&mut self, to: &NodeId, job: JobId) {
        let outcome = self.recovery.ended.iter().find(|(ended, _)| *ended == job).and_then(|(_, outcome)| outcome.clone());
        self.send(to, PeerMessage::ToStore(job, ToStore::Remove(outcome)));
    }

    /// A job that was over goes on.
    pub(super) fn forget_end(&mut self, job: JobId) {
        self.recovery.ended.retain(|(ended, _)| *ended != job);
    }

    /// This node protects these ranks of a job that goes on, the life that each of them had, and where each was first launched.
    pub(super) fn guard(&mut self, job: JobId, ranks: &[(Rank, Incarnation, IpAddr)], ward: Ward) {
        let started_ms = self.config.wall_us / 1000;
        let host = |rank| ward.placement.node_of(rank).unwrap_or(self.me()).clone();
        let protected =
            |&(rank, incarnation, origin)| (rank, Protected { origin: Some(origin), ..Protected::new(host(rank), incarnation) });
        let ranks = ranks.iter().map(protected).collect();
        self.recovery.wards.insert(job, Wards { ward, started_ms, ranks });
    }

    /// Members are gone: their ranks of protected jobs are placed anew by everybody who knows of them, and brought back by who protects them. What is told of
    /// that is told when all of them are out of the placement: nobody speaks of one that is lost.
    pub(super) fn handle_losses(&mut self, now: Duration, old: &Arc<View>, new: &Arc<View>, lost: &[Member]) {
        if lost.is_empty() {
            return;
        }
        lost.iter().for_each(|member| self.place_ranks_of(now, old, new, member));
        self.recovery.losses.extend(lost.iter().map(|member| (old.clone(), new.clone(), member.clone())));
        let surplus = self.recovery.losses.len().saturating_sub(LOSSES);
        self.recovery.losses.drain(..surplus);
        self.seek_next_homes(now);
        let jobs: Vec<JobId> = self.homes.keys().copied().collect();
        jobs.into_iter().for_each(|job| self.seek_lost(now, job));
        let is_lost = |node: &NodeId| lost.iter().any(|member| member.id == *node);
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

    /// Places the ranks of one node that is lost.
    fn place_ranks_of(&mut self, now: Duration, old: &View, new: &View, lost: &Member) {
        let protector = self.next_watcher(old, new, lost);
        let homes: Vec<JobId> = self.homes.keys().copied().collect();
        for job in homes {
            self.with_home(now, job, |home| {
                home.handle_protector_lost(&lost.id);
                home.handle_terminal_lost(&lost.id);
            });
        }
        let known: BTreeSet<JobId> =
            self.homes.keys().chain(self.hosts.keys()).chain(self.recovery.wards.keys()).copied().collect();
        for job in known {
            let Some((before, spec)) = self.placement_with(job, &lost.id) else { continue };
            if spec.protection.protect != Protect::On {
                continue;
            }
            match placement::replace(new, &before, &lost.id, &protector, spec.restart_on) {
                Some(placement) => self.place_anew(now, job, &lost.id, &before, &placement),
                None => self.jobs_lose_node(now, &lost.id, "and no node is left to go on"),
            }
        }
    }

    /// Somebody who does not know yet that a member is lost speaks of a job. Everybody places what was there in the same way.
    pub(super) fn update(&self, ward: &mut Ward) {
        for (old, new, lost) in self.recovery.losses.iter() {
            if ward.placement.nodes.contains(&lost.id) {
                let protector = self.next_watcher(old, new, lost);
                if let Some(placement) = placement::replace(new, &ward.placement, &lost.id, &protector, ward.spec.restart_on) {
                    ward.placement = placement;
                }
            }
        }
    }

    /// Tells the home of a job, perhaps the next one, which of its processes were to come back here with a log that is lost now, or could not.
    fn tell_home_of_lost_logs(&mut self, job: JobId) {
        let Some(host) = self.hosts.get(&job) else { return };
        let held = |rank: &Rank| self.is_member(&self.holder_of(ProcessId { job, rank: *rank }));
        let without: Vec<Rank> =
            host.ranks().filter(|rank| host.is_hopeless(*rank) || host.needs_log(*rank) && !held(rank)).collect();
        without.into_iter().for_each(|rank| self.tell_home_of_lost_log(ProcessId { job, rank }));
    }

    pub(super) fn tell_home_of_lost_log(&mut self, process: ProcessId) {
        self.tell_home_of_no_image(process, "its log was lost while it was brought back".to_owned(), None);
    }

    /// Tells the home that a process of this node is not brought back.
    pub(super) fn tell_home_of_no_image(&mut self, process: ProcessId, why: String, signal: Option<i32>) {
        let Some(home) = self.hosts.get(&process.job).map(|host| host.home().clone()) else { return };
        let (rank, incarnation) = (process.rank, self.life_here(process));
        self.send(&home, PeerMessage::ToHome(process.job, ToHome::NoImage { rank, incarnation, why, signal }));
    }

    /// Tells the home of a job how those have ended whose node is lost, and who is not brought back: nobody else can, and it may have died before it was told.
    fn tell_home_of_ends(&mut self, job: JobId) {
        let Some(wards) = self.recovery.wards.get(&job) else { return };
        let home = wards.ward.placement.home().clone();
        let ended = |(rank, p): (&Rank, &Protected)| {
            let Some(left) = p.left.as_ref().filter(|_| !self.is_member(&p.host)) else {
                return p.hopeless.clone().into_iter().collect();
            };
            let (rank, epoch) = (*rank, p.incarnation.epoch);
            let finals = ToHome::Finals { rank, epoch, finals: left.finals.clone() };
            vec![finals, ToHome::Left { rank, epoch, status: left.status, phase: left.phase }]
        };
        let ended: Vec<ToHome> = wards.ranks.iter().flat_map(ended).collect();
        ended.into_iter().for_each(|message| self.send(&home, PeerMessage::ToHome(job, message)));
    }

    /// The job has begun anew: of its lives before `life` nobody comes back.
    pub(super) fn forget_epochs_before(&mut self, job: JobId, epoch: Epoch) {
        let Some(wards) = self.recovery.wards.get_mut(&job) else { return };
        let forgotten = wards.forget_before(epoch);
        if wards.ward.epoch < epoch {
            (wards.ward.epoch, wards.ward.fence) = (epoch, 0);
            wards.ward.keys.clear();
        }
        self.end_replication(job, forgotten);
    }

    /// The home of a job asks everybody who knows of its lost ranks: who protects one, or brings it back, does.
    fn seek_lost(&mut self, now: Duration, job: JobId) {
        let lost: Vec<Rank> = self.homes.get(&job).map_or_else(Vec::new, |home| home.away().collect());
        for rank in lost {
            let process = ProcessId { job, rank };
            self.gather(now, Purpose::Lost(process), &Query::Where(process));
        }
    }

    /// Whether anybody knows of a lost rank. If nobody does, its protector was lost with it: only a new beginning is left (docs/guarantees.md: who survives what).
    pub(super) fn finish_lost(&mut self, now: Duration, process: ProcessId, known: bool, silent: bool) {
        let ProcessId { job, rank } = process;
        if known || !self.homes.get(&job).is_some_and(|home| home.away().any(|away| away == rank)) {
            return;
        }
        if silent {
            // It will answer, or be declared dead.
            return self.gather(now, Purpose::Lost(process), &Query::Where(process));
        }
        if self.homes.get(&job).is_some_and(|home| home.has_ended(rank)) {
            return self.with_home(now, job, |home| home.handle_left_for_good(rank));
        }
        let why = "its node is lost, and so is whoever had its log".to_owned();
        self.record(now, EventName::Lost, About::rank(job, rank), format!("rank {rank}: {why}"));
        let me = self.me().clone();
        self.with_home(now, job, |home| {
            let incarnation = Incarnation::launched_in(home.epoch());
            home.handle_message(now, &me, ToHome::NoImage { rank, incarnation, why, signal: None });
        });
    }

    /// Who watched `lost`, or the next after that who is still there.
    fn next_watcher(&self, old: &View, new: &View, lost: &Member) -> NodeId {
        let mut at = lost.id.clone();
        for _ in 0..old.members.len() {
            match watcher_of(old, &at) {
                Some(next) if new.get(&next.id).is_some() => return next.id.clone(),
                Some(next) => at = next.id.clone(),
                None => break,
            }
        }
        self.me().clone()
    }

    /// What this node knows of a job that has something on `lost`. A home that has just been adopted may know already that it is gone.
    fn placement_with(&self, job: JobId, lost: &NodeId) -> Option<(Placement, JobSpec)> {
        let home = self.homes.get(&job).filter(|home| !home.is_over()).map(|home| (home.placement(), home.spec()));
        let host = self.hosts.get(&job).map(|host| (host.placement(), host.spec()));
        let ward = self.recovery.wards.get(&job).map(|wards| (&wards.ward.placement, &wards.ward.spec));
        let mut known = home.into_iter().chain(host).chain(ward);
        let (placement, spec) = known.find(|(placement, _)| placement.nodes.contains(lost))?;
        Some((placement.clone(), spec.clone()))
    }

    fn place_anew(&mut self, now: Duration, job: JobId, lost: &NodeId, before: &Placement, placement: &Placement) {
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
            self.recovery.homeless.insert(job);
        }
    }

    /// Wants the next home of each job that has none to be. Everybody does who has anything of it: whoever protected rank 0 may be lost with the home.
    fn seek_next_homes(&mut self, now: Duration) {
        for job in self.recovery.homeless.clone() {
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

    /// This node is to be the home of a job, says somebody who has something of it.
    pub(super) fn handle_adopt(&mut self, now: Duration, from: &NodeId, adoption: Adoption) {
        let (job, placement) = (adoption.job, &adoption.ward.placement);
        if self.has_ended(job) {
            // The home that is lost had not told everybody.
            return self.tell_removed(from, job);
        }
        if let Some(home) = self.homes.get_mut(&job) {
            home.handle_adoption(&adoption);
            // The sender may have been told before it knew that the home before is lost.
            return self.send(from, PeerMessage::NewHome(job));
        }
        // Else the sender does not know yet that one more is lost. When it does, it says so once more.
        if placement.home() == self.me() && !placement.nodes.iter().any(|node| self.has_departed(node)) {
            self.record(now, EventName::Place, About::job(job), "its home goes on here".into());
            self.homes.insert(job, Home::adopt(now, self.seat(), adoption));
            self.tell_all(&PeerMessage::NewHome(job));
            self.seek_lost(now, job);
        }
    }

    /// A job has a new home: what is here of it reports, and terminals attach again.
    pub(super) fn handle_new_home(&mut self, now: Duration, from: &NodeId, job: JobId) {
        if self.has_ended(job) {
            return self.tell_removed(from, job);
        }
        let of_host = self.hosts.get(&job).map(|host| host.placement().home() == from);
        let of_wards = || self.recovery.wards.get(&job).map(|wards| wards.ward.placement.home() == from);
        match of_host.or_else(of_wards) {
            Some(true) => {
                self.recovery.homeless.remove(&job);
                self.recovery.announced.retain(|of, next| (*of, &*next) != (job, from));
            }
            // If the home before says now that the job is over, this one has to hear so. (`make sim`, seed 262459: it waited for ever for a report of what was forgotten.)
            Some(false) if self.recovery.announced.len() < limits::JOBS => {
                _ = self.recovery.announced.insert(job, from.clone());
            }
            _ => {}
        }
        self.tell_home_of_anew(from, job);
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

    /// Fences a process; the answer is [`Node::handle_fenced`].
    pub(super) fn recover(&mut self, now: Duration, process: ProcessId) {
        let wards = self.recovery.wards.get_mut(&process.job);
        let Some(protected) = wards.and_then(|wards| wards.ranks.get_mut(&process.rank)) else { return };
        protected.incarnation = protected.incarnation.next();
        (protected.recovering, protected.hopeless) = (true, None);
        let incarnation = protected.incarnation;
        let text = format!("rank {}: incarnations before {incarnation} are not listened to any more", process.rank);
        self.record(now, EventName::Fence, About::rank(process.job, process.rank), text);
        self.outputs.push_back(Output::Store(StoreOrder::Fence(process, incarnation)));
    }

    /// The log service listens to older lives of a process no more, and says what it has of it.
    pub(super) fn handle_fenced(
        &mut self,
        now: Duration,
        process: ProcessId,
        incarnation: Incarnation,
        result: Result<store::Restart, store::NoRestart>,
    ) {
        let (job, rank) = (process.job, process.rank);
        let log = SocketAddr::new(self.config.me.address.ip(), self.config.me.log_port);
        let replica = self.replica_of(job);
        let Some(wards) = self.recovery.wards.get_mut(&job) else { return };
        let Some(protected) = wards.ranks.get_mut(&rank).filter(|p| p.recovering && p.incarnation == incarnation) else { return };
        protected.recovering = false;
        let signal = protected.crashed.take();
        let home = wards.ward.placement.home().clone();
        let restart = match result {
            Ok(restart) => restart,
            Err(error) => {
                let hopeless = match error {
                    store::NoRestart::NoImage => {
                        let why = "it was lost before a checkpoint of it was committed".to_owned();
                        ToHome::NoImage { rank, incarnation, why, signal }
                    }
                    error => ToHome::Lost { rank, incarnation, why: format!("it cannot be brought back: {error}") },
                };
                protected.hopeless = Some(hopeless.clone());
                if let ToHome::Lost { why, .. } = &hopeless {
                    self.record(now, EventName::Lost, About::rank(job, rank), format!("rank {rank}: {why}"));
                }
                return self.send(&home, PeerMessage::ToHome(job, hopeless));
            }
        };
        let Some(target) = wards.ward.placement.node_of(rank).cloned() else { return };
        let (host, origin) = (std::mem::replace(&mut protected.host, target.clone()), protected.origin);
        let origin = origin.unwrap_or_else(|| self.address_of(&host));
        let Some(wards) = self.recovery.wards.get_mut(&job) else { return };
        wards.ranks.entry(rank).and_modify(|protected| protected.origin = Some(origin));
        let order = RestartOrder {
            process,
            incarnation,
            ward: wards.ward.clone(),
            origin,
            log,
            replica,
            images: restart.images,
            range: restart.range,
            cut: restart.cut,
            log_end: restart.log_end,
            held: restart.held,
        };
        let bytes: u64 = order.images.iter().map(|(_, bytes)| bytes).sum();
        let text = format!("rank {rank} goes on at {}, from images of {:.1} MiB", target.name, bytes as f64 / f64::from(1 << 20));
        self.record(now, EventName::Place, About::rank(job, rank), text);
        self.order_restart(now, &target, Box::new(order));
    }

    /// The log of a process that is on its way back cannot be read: nobody can bring it back.
    pub(super) fn handle_unreadable(&mut self, now: Duration, process: ProcessId, why: String) {
        let ProcessId { job, rank } = process;
        let wards = self.recovery.wards.get_mut(&job);
        let Some((home, protected)) = wards.and_then(|w| Some((w.ward.placement.home().clone(), w.ranks.get_mut(&rank)?))) else {
            return;
        };
        if protected.hopeless.is_none() {
            let hopeless = ToHome::NoImage { rank, incarnation: protected.incarnation, why: why.clone(), signal: None };
            protected.hopeless = Some(hopeless.clone());
            self.record(now, EventName::Lost, About::rank(job, rank), format!("rank {rank}: {why}"));
            self.send(&home, PeerMessage::ToHome(job, hopeless));
        }
    }

    pub(super) fn address_of(&self, node: &NodeId) -> IpAddr {
        let gone = || self.gone.iter().find(|(member, _)| member.id == *node).map(|(member, _)| member.address.ip());
        self.member(node).map(|member| member.address.ip()).or_else(gone).unwrap_or(self.config.me.address.ip())
    }

    /// Whether this life of a process is one that others have gone on from: there is a later one of it or of its job, or its job has ended it here to begin anew.
    fn has_left_behind(&self, process: ProcessId, life: Incarnation) -> bool {
        let is_ended_by = |host: &Host| host.epoch() > life.epoch || host.is_superseded() && host.epoch() == life.epoch;
        life < self.life_of(process)
            || self.hosts.get(&process.job).is_some_and(is_ended_by)
            || self.recovery.anew.get(&process.job).is_some_and(|ended| *ended >= life.epoch)
    }

    /// A protector orders that a process goes on here.
    pub(super) fn handle_restart(&mut self, now: Duration, from: &NodeId, mut order: RestartOrder) {
        let (process, job) = (order.process, order.process.job);
        self.update(&mut order.ward);
        if self.has_left_behind(process, order.incarnation)
            || self.stopped
            || self.has_ended(job)
            || order.ward.placement.node_of(process.rank) != Some(self.me())
        {
            return;
        }
        if self.hosts.get(&job).is_some_and(|host| host.epoch() < order.ward.epoch) {
            return self.supersede(now, job, from, PeerMessage::Restart(Box::new(order)));
        }
        let fresh = !self.hosts.contains_key(&job);
        self.hosts.entry(job).or_insert_with(|| Host::adopt(job, &order.ward));
        if fresh {
            self.seek_protection(now, Some(job));
        }
        let host = self.hosts.get_mut(&job).expect("it was there, or has come");
        if fresh {
            // A new home may have asked already; one that comes later asks again.
            host.handle_new_home(order.ward.placement.home().clone());
        }
        let local = from == &self.config.me.id;
        host.restore(&order, local, self.config.environment.library.clone());
        self.forget_anew(job);
        self.observers.processes.remove(&process);
        self.registry.come_back(process);
        self.recovery.doors.remove(&process);
        self.recovery.origins.insert(process, order.origin);
        self.recovery.holders.insert(process, from.clone());
        self.recovery.lives.insert(process, order.incarnation);
        self.recovery.degraded.insert(process, u64::MAX);
        self.recovery.orders.insert(process, order);
        self.with_host(now, job, |_| ());
    }

    /// Whether a process is here, or comes back here; if not, no order for this life of it is listened to any more: somebody else is about to begin the next one.
    pub(super) fn has_or_refuses(&mut self, process: ProcessId, life: Incarnation) -> bool {
        let ProcessId { job, rank } = process;
        let has_ended_here = self.recovery.ends.get(&job).is_some_and(|(_, ends)| ends.iter().any(|(ended, ..)| *ended == rank));
        // Not one of before the job began anew, which is about to end; what waits for that may bring it back.
        let host = self.hosts.get(&job).filter(|host| host.epoch() == life.epoch);
        let is_here = host.is_some_and(|host| host.ranks().any(|here| here == rank));
        let comes =
            |(_, message): &(NodeId, PeerMessage)| matches!(message, PeerMessage::Restart(order) if order.process == process);
        let is_here = is_here || self.recovery.postponed.get(&job).is_some_and(|postponed| postponed.iter().any(comes));
        if is_here || has_ended_here || self.has_ended(job) {
            return true;
        }
        let known = self.recovery.restarted.entry(process).or_default();
        *known = (*known).max(life.next());
        false
    }

    /// The images of a process are here, or not.
    pub(super) fn handle_fetched(&mut self, now: Duration, process: ProcessId, result: Result<(), String>) {
        match result {
            Ok(()) => self.record(
                now,
                EventName::Image,
                About::rank(process.job, process.rank),
                format!("rank {}: its images are here", process.rank),
            ),
            Err(why) => self.handle_unrestorable(now, process, format!("its images cannot be had: {why}"), None),
        }
    }

    /// No image brings a process of this node back: its job begins anew. `own`: it had crashed by this signal before; if it does so once more in the job's
    /// next life, the program has failed.
    pub(super) fn handle_unrestorable(&mut self, now: Duration, process: ProcessId, why: String, own: Option<i32>) {
        let about = About::rank(process.job, process.rank);
        self.record(now, EventName::Lost, about, format!("rank {}: {why}", process.rank));
        self.tell_home_of_no_image(process, why.clone(), own);
        // Which the home need not hear: the job begins anew.
        self.with_host(now, process.job, |host| host.handle_not_restored(now, process.rank, why));
    }

    /// A restored process is there.
    pub(super) fn handle_restored(&mut self, now: Duration, observer: ObserverId, process: ProcessId, point: Point) {
        // Fulfilled, or refused: another one would be for another life.
        let Some(order) = self.recovery.orders.remove(&process) else {
            return self.refuse(observer, format!("nobody has ordered that rank {} comes back here", process.rank));
        };
        if point.cut != order.cut {
            let text = format!("its image stands at {} of the journal, not at {}", point.cut, order.cut);
            return self.refuse(observer, text);
        }
        if order.ward.fence > 0 && !point.pmi.0 {
            // Whoever was there when it started has gone on: it cannot go through MPI_Init once more by itself.
            return self.give_up_image(now, observer, process);
        }
        // Where its life before had ended streams is not so any more: this one says it itself.
        self.recovery.finals.remove(&process);
        let Some(host) = self.hosts.get(&process.job) else { return };
        let restart = Restart {
            incarnation: order.incarnation,
            key: radic_wire::mac::JobKey::derive(&self.config.key, process.job),
            protector: order.log,
            protection: host.protection().clone(),
            log_end: order.log_end,
            images: order.range,
            held: order.held,
            restarted: self.recovery.restarted.iter().map(|(process, life)| (*process, *life)).collect(),
        };
        let text = format!("rank {}: catches up from {} to {} of its journal", process.rank, order.cut, order.log_end);
        self.record(now, EventName::Replay, About::rank(process.job, process.rank), text);
        self.outputs.push_back(Output::Observer(observer, FromNode::Restart(Box::new(restart))));
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

    /// The image of a process is of before MPI_Init: it is of no use.
    fn give_up_image(&mut self, now: Duration, observer: ObserverId, process: ProcessId) {
        let (job, rank) = (process.job, process.rank);
        let why = "it was lost before a checkpoint of it after MPI_Init was committed".to_owned();
        self.record(now, EventName::Lost, About::rank(job, rank), format!("rank {rank}: {why}"));
        self.tell_home_of_no_image(process, why.clone(), None);
        self.refuse(observer, why.clone());
        // The home may be lost before it has heard so: the next one is told, too. (A run of `make chaos`: this node tried again three times, and the next home ended the job for that.)
        self.with_host(now, job, |host| host.handle_not_restored(now, rank, why));
    }

    /// Which life of a process the nodes have heard of last.
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

    /// A process is back somewhere: everybody here may know it.
    pub(super) fn handle_returned(&mut self, process: ProcessId, incarnation: Incarnation, door: SocketAddr) {
        let known = self.recovery.restarted.entry(process).or_default();
        if incarnation < *known {
            return;
        }
        *known = incarnation;
        let told = self.observers.processes.iter().filter(|(other, _)| **other != process).filter_map(|(_, p)| p.observer());
        let told = told.map(|observer| Output::Observer(observer, FromNode::Restarted { process, incarnation, door }));
        self.outputs.extend(told.collect::<Vec<_>>());
        // Whoever computes looks at it now.
        let computing: Vec<_> = self.observers.processes.keys().filter(|other| **other != process).copied().collect();
        self.outputs.extend(computing.into_iter().map(Output::Nudge));
    }

    /// A process that was brought back has caught up.
    pub(super) fn handle_live(&mut self, now: Duration, process: ProcessId, events: u64, different: u64) {
        let text = format!(
            "rank {}: lives again, after {events} outcomes; {different} bytes differ from what was sent then",
            process.rank
        );
        self.record(now, EventName::Live, About::rank(process.job, process.rank), text);
        self.replays.remove(&process);
        self.with_host(now, process.job, |host| host.handle_live(process.rank));
    }

    /// A process that was brought back needs its log no more. Not as soon as it lives: what it had received, and its program has not taken, its peers need not keep. (`make sim`, seed
    /// 66997: whoever had its log was lost then, and it waited for that one for 90 s.)
    pub(super) fn handle_log_read(&mut self, now: Duration, process: ProcessId) {
        self.with_host(now, process.job, |host| host.handle_log_read(process.rank));
        self.reprotect(now, process);
    }

    /// Gives a process to the protector of its node, if its log is elsewhere; asks for a checkpoint there.
    fn reprotect(&mut self, now: Duration, process: ProcessId) {
        let Some(holder) = self.recovery.holders.get(&process).cloned() else { return };
        self.recovery.degraded.insert(process, u64::MAX);
        if holder == self.protector().id {
            self.leave_holder(process);
            return self.degrade(now, process);
        }
        let purpose = Purpose::Release { process, holder: holder.clone() };
        self.gather_from(now, purpose, &Query::Release(process), vec![holder], RELEASE);
    }

    /// The one that had its log lets go of a process, or is gone.
    pub(super) fn finish_release(&mut self, now: Duration, process: ProcessId, holder: &NodeId, released: bool) {
        let ProcessId { job, rank } = process;
        if self.recovery.holders.get(&process) != Some(holder) {
            return;
        }
        if !released && self.is_member(holder) {
            // It has not said so: it may still bring the process back.
            let text = format!("rank {rank}: {} does not let go of it yet; its log stays there", holder.name);
            self.record(now, EventName::Store, About::rank(job, rank), text);
            let purpose = Purpose::Release { process, holder: holder.clone() };
            return self.gather_from(now, purpose, &Query::Release(process), vec![holder.clone()], RELEASE);
        }
        if self.hosts.get(&job).is_some_and(|host| host.needs_log(rank)) {
            // It has crashed meanwhile, and nobody brings it back.
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

    /// The log of a process that was brought back is with this node's protector from now on, whoever that is.
    fn leave_holder(&mut self, process: ProcessId) {
        self.recovery.holders.remove(&process);
    }

    /// A process of this node has crashed: `holder` has its log, and is to bring it back with it.
    pub(super) fn need_log(&mut self, process: ProcessId, holder: NodeId) {
        self.recovery.holders.insert(process, holder);
    }

    /// In which life a process of this node is.
    pub(super) fn life_here(&self, process: ProcessId) -> Incarnation {
        let first = || self.hosts.get(&process.job).map_or(Incarnation::FIRST, |host| Incarnation::launched_in(host.epoch()));
        self.recovery.lives.get(&process).copied().unwrap_or_else(first)
    }

    /// Another node wants to protect a process from now on.
    pub(super) fn handle_release(&mut self, process: ProcessId) {
        if let Some(wards) = self.recovery.wards.get_mut(&process.job) {
            wards.ranks.remove(&process.rank);
        }
        self.outputs.push_back(Output::Store(StoreOrder::LetGo(process)));
    }

    /// The processes of this node have another protector: their logs and images there begin anew.
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

    /// A process of this node has no image at its protector. It is asked for one; if it cannot be asked now, the next one it makes is the first there.
    fn degrade(&mut self, now: Duration, process: ProcessId) {
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

    /// A process of this node has ended an outgoing stream.
    pub(super) fn handle_finished(&mut self, process: ProcessId, stream: StreamId, end: StreamEnd) {
        let finals = self.recovery.finals.entry(process).or_default();
        let known = finals.entry(stream).or_insert(end);
        *known = StreamEnd { closed: end.closed || known.closed, received: end.received.max(known.received), ..end };
        // No library comes near: it knows fewer connections at once.
        if finals.len() > limits::ENDED_STREAMS {
            finals.pop_first();
        }
    }

    /// Nobody asks any more where the streams of a connection of this process end.
    pub(super) fn handle_over(&mut self, process: ProcessId, connection: ConnectionId) {
        if let Some(finals) = self.recovery.finals.get_mut(&process) {
            [true, false].iter().for_each(|from| _ = finals.remove(&StreamId { connection, from_opener: *from }));
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

    /// Whether the loss of a process would cost more than it should: it is being brought back, or has no checkpoint at its protector yet.
    pub(super) fn is_degraded(&self, process: ProcessId) -> bool {
        self.recovery.degraded.contains_key(&process)
    }

    /// Nothing of the job is left on this node. If it begins anew, it is another life, of which all this would be wrong.
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

    /// Who has the log of a process of this node.
    pub(super) fn holder_of(&self, process: ProcessId) -> NodeId {
        self.recovery.holders.get(&process).unwrap_or(&self.protector().id).clone()
    }

    /// Kills a rank, as asked: it is to be brought back.
    pub(super) fn kill_rank(&mut self, now: Duration, process: ProcessId) {
        if self.hosts.get(&process.job).is_some_and(|host| host.pid(process.rank).is_some()) {
            let text = format!("rank {} is killed, as asked", process.rank);
            self.record(now, EventName::Inject, About::rank(process.job, process.rank), text);
            self.with_host(now, process.job, |host| host.kill(process.rank));
        }
    }

    /// A rank of this node has ended by itself: its protector answers for it from now on.
    pub(super) fn handle_rank_left(&mut self, now: Duration, process: ProcessId) {
        self.recovery.doors.remove(&process);
        let holder = self.holder_of(process);
        self.tell_end(&holder, process);
        self.tell_home_of_finals(process);
        // It may have ended without having taken all of its log.
        self.reprotect(now, process);
        self.recovery.degraded.remove(&process);
    }

    /// Tells the home where the streams of a process of this node do that has ended.
    fn tell_home_of_finals(&mut self, process: ProcessId) {
        let ProcessId { job, rank } = process;
        let Some(host) = self.hosts.get(&job).filter(|host| host.end_of(rank).is_some()) else { return };
        let (home, epoch, finals) = (host.home().clone(), host.epoch(), self.finals_here(process));
        self.send(&home, PeerMessage::ToHome(job, ToHome::Finals { rank, epoch, finals }));
    }

    /// Where a process of this node has ended its streams.
    fn finals_here(&self, process: ProcessId) -> Vec<(StreamId, StreamEnd)> {
        let finals = self.recovery.finals.get(&process).into_iter().flatten();
        finals.map(|(stream, end)| (*stream, *end)).collect()
    }

    /// Tells a protector of a process that has ended how, if it has.
    pub(super) fn tell_end(&mut self, protector: &NodeId, process: ProcessId) {
        let ProcessId { job, rank } = process;
        let Some((status, phase)) = self.hosts.get(&job).and_then(|host| host.end_of(rank)) else { return };
        let finals = self.finals_here(process);
        self.send(protector, PeerMessage::ToStore(job, ToStore::Left { rank, status, phase, finals }));
    }

    /// Where a process is, as far as this node knows. A host knows best; a protector knows what has left, and what will be back.
    pub(super) fn place_of(&self, process: ProcessId) -> Option<Place> {
        if self.has_ended(process.job) {
            return Some(Place::Left);
        }
        let here = self.hosts.get(&process.job).filter(|host| host.placement().node_of(process.rank) == Some(self.me()));
        // Of who has left, and whose host is there, this node may say nothing that its protector has not said: a new home would wait for that.
        let counts = |p: &&Protected| p.protector.is_none() || p.left.is_none() || !self.is_member(&p.host);
        let ward = || self.recovery.wards.get(&process.job)?.ranks.get(&process.rank).filter(counts);
        match (self.recovery.doors.get(&process), here) {
            (Some((incarnation, door)), Some(_)) => Some(Place::Here { incarnation: *incarnation, door: *door }),
            (None, Some(host)) if host.ranks().any(|rank| rank == process.rank) => {
                Some(if host.has_left(process.rank) { Place::Left } else { Place::Away })
            }
            _ => ward().map(|protected| if protected.left.is_some() { Place::Left } else { Place::Away }),
        }
    }

    /// Where `sender` has ended `stream`, as far as this node knows.
    pub(super) fn final_of(&self, stream: StreamId, sender: ProcessId) -> Option<StreamEnd> {
        let told = self.recovery.finals.get(&sender).and_then(|finals| finals.get(&stream)).copied();
        let left = || self.recovery.wards.get(&sender.job)?.ranks.get(&sender.rank)?.left.as_ref();
        let left = left().and_then(|left| finals::end_of(&left.finals, stream));
        let at_home = || self.homes.get(&sender.job)?.final_of(stream, sender.rank);
        told.or(left).or_else(at_home)
    }

    /// Whether what this node has of a job is of an older life of it than this: the job has begun anew, and this node has not heard so. What has left, or where streams
    /// have ended, is not so any more.
    pub(super) fn is_behind(&self, job: JobId, epoch: Epoch) -> bool {
        let host = self.hosts.get(&job).is_some_and(|host| host.epoch() < epoch);
        let home = self.homes.get(&job).is_some_and(|home| home.epoch() < epoch);
        host || home || self.recovery.wards.get(&job).is_some_and(|wards| wards.ward.epoch < epoch)
    }

    /// Whether nobody will read what is sent to this process any more.
    pub(super) fn wants_nothing(&self, process: ProcessId) -> bool {
        let closing = self.observers.processes.get(&process).is_some_and(|observed| observed.closing);
        let at_home = || self.homes.get(&process.job).is_some_and(|home| home.has_left(process.rank));
        closing || self.place_of(process) == Some(Place::Left) || at_home()
    }

    /// Whether this side has no majority, and that node is not on it.
    pub(super) fn is_out_of_reach(&self, node: &NodeId) -> bool {
        self.membership.is_frozen() && self.recovery.unreachable.contains(node)
    }

    /// When protected jobs that wait for a majority are given up.
    pub(super) fn next_frozen(&self) -> Option<Duration> {
        self.recovery.frozen.map(|since| since + FROZEN).into_iter().chain(self.recovery.abandoned).min()
    }

    /// Protected jobs that wait for a majority.
    pub(super) fn end_frozen(&mut self, now: Duration) {
        let why = format!("this side of the cluster has had no majority for {} s", FROZEN.as_secs());
        if self.recovery.abandoned.take_if(|due| *due <= now).is_some() {
            let hosts: Vec<_> = self.hosts.keys().copied().collect();
            hosts.into_iter().for_each(|job| self.with_host(now, job, |host| host.give_up(now, &why)));
            // Whoever was within reach has had its time to say that nothing is left there.
            self.end_homes(now, &why, |_, _| true);
        }
        if self.recovery.frozen.take_if(|since| *since + FROZEN <= now).is_some() {
            self.recovery.abandoned = Some(now + HOMELESS);
            self.end_homes(now, &why, |node, unreachable| unreachable.contains(node));
        }
    }

    /// Ends all jobs of which this node is the home; nothing is expected of those hosts that are lost.
    fn end_homes(&mut self, now: Duration, why: &str, is_lost: impl Fn(&NodeId, &BTreeSet<NodeId>) -> bool) {
        let (me, unreachable) = (self.me().clone(), self.recovery.unreachable.clone());
        let homes: Vec<(JobId, Vec<NodeId>)> =
            self.homes.iter().map(|(job, home)| (*job, home.placement().nodes.clone())).collect();
        for (job, nodes) in homes {
            for node in nodes.into_iter().filter(|node| *node != me && is_lost(node, &unreachable)) {
                self.with_home(now, job, |home| home.handle_node_lost(now, &node, why));
            }
            self.with_home(now, job, |home| home.give_up(now, why));
        }
    }
}

/// The life of a job that `message` is about to begin, or to bring somebody of back, at a host.
fn epoch_in(message: &PeerMessage) -> Option<Epoch> {
    match message {
        PeerMessage::ToHost(_, ToHost::Launch { epoch, .. }) => Some(*epoch),
        PeerMessage::Restart(order) => Some(order.ward.epoch),
        _ => None,
    }
}
