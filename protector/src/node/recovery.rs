//! What is lost comes back (docs/recovery.md, step by step). Every node knows what it protects ([`Wards`]). When a view says that
//! a node is gone, the protector of its processes fences them and orders the nodes where they go on to bring them back. Every
//! node computes the same new placement ([`placement::replace`]). If the job's home is lost too, the new node of rank 0 becomes
//! the home, and the hosts report to it.
//!
//! A process has one protector at a time, and only that one may bring it back. When another node is to become its protector
//! ([`Node::reprotect`]), the present one is asked first to let the process go. So no process is ever restarted from a log that
//! lacks some of what it did (G1).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::event::EventName;
use radic_wire::ids::{Incarnation, JobId, NodeId, ProcessId, Rank};
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

/// Ended jobs that are remembered, so that messages about them can be answered.
const ENDED: usize = 256;
/// Lost members that are remembered, to place the ranks of a message that does not know of the loss.
const LOSSES: usize = 64;
/// Time that a protector has to let a process go.
const RELEASE: Duration = Duration::from_secs(5);
/// Time that a side without a majority keeps protected jobs waiting for one. Nothing can be decided there, and an error is better
/// than a hang.
const FROZEN: Duration = Duration::from_secs(60);
/// Time that hosts have after that to hear from a job's home why the job ends. A process that finds no protector waits longer
/// than both.
const HOMELESS: Duration = Duration::from_secs(5);

/// A process that this node protects, or for whose protector it stands in.
#[derive(Debug)]
pub(super) struct Protected {
    pub(super) host: NodeId,
    pub(super) incarnation: Incarnation,
    /// The protector of the process, if this node only stands in.
    pub(super) protector: Option<NodeId>,
    /// How the process has ended by itself, if it has.
    pub(super) left: Option<Left>,
    /// The process is being fenced, and was not sent anywhere yet.
    recovering: bool,
    /// Why the process is not brought back, as its home was told. That home may have been lost since.
    pub(super) hopeless: Option<ToHome>,
    /// The signal that ended the process, if it is brought back because of a crash.
    crashed: Option<i32>,
    /// The address of the node where the process was first launched, if that is not its host.
    pub(super) origin: Option<IpAddr>,
}

impl Protected {
    pub(super) fn new(host: NodeId, incarnation: Incarnation) -> Protected {
        let (protector, left, recovering, hopeless, crashed, origin) = (None, None, false, None, None, None);
        Protected { host, incarnation, protector, left, recovering, hopeless, crashed, origin }
    }
}

/// What this node protects of one job, and what it stands in for.
#[derive(Debug)]
pub(super) struct Wards {
    pub(super) ward: Ward,
    pub(super) started_ms: u64,
    pub(super) ranks: BTreeMap<Rank, Protected>,
}

impl Wards {
    /// The entry of a job. `now_ms`, in milliseconds since 1970, is taken for the job's start if the job is not known yet.
    pub(super) fn of<'a>(all: &'a mut BTreeMap<JobId, Wards>, job: JobId, ward: &Ward, now_ms: u64) -> &'a mut Wards {
        all.entry(job).or_insert_with(|| Wards { ward: ward.clone(), started_ms: now_ms, ranks: BTreeMap::new() })
    }

    /// The job has restarted with this epoch, so what is known of ranks in an earlier one does not hold any more. Hosts say so by
    /// what they ask to have protected, and the home says it outright, in either order. Returns the ranks that were forgotten.
    pub(super) fn forget_before(&mut self, life: Incarnation) -> Vec<Rank> {
        let is_old = |(_, protected): &(&Rank, &Protected)| protected.incarnation < life;
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
    /// The newest incarnations of processes that were brought back anywhere.
    restarted: BTreeMap<ProcessId, Incarnation>,
    /// The orders to bring processes back here, until the processes are there.
    orders: BTreeMap<ProcessId, RestartOrder>,
    /// For a process of this node: the node that has its log. Set by a crash or an order to bring the process back, until the
    /// process has caught up and its log is with this node's protector.
    holders: BTreeMap<ProcessId, NodeId>,
    /// The incarnations of processes that were brought back here.
    lives: BTreeMap<ProcessId, Incarnation>,
    /// Outgoing streams that processes of this node have ended: where they end, and whether the process has closed the
    /// connection.
    finals: BTreeMap<ProcessId, BTreeMap<StreamId, StreamEnd>>,
    /// For processes of this node that were first launched elsewhere: the address there.
    origins: BTreeMap<ProcessId, IpAddr>,
    /// Processes that wait for their first checkpoint at a new protector, each with the number of the request that asked for it.
    /// An answer to an earlier request is about an image at the protector before.
    degraded: BTreeMap<ProcessId, u64>,
    /// Messages about the next epoch of a job, with their senders. They are handled as soon as the processes of the epoch before
    /// have ended here.
    postponed: BTreeMap<JobId, Vec<(NodeId, PeerMessage)>>,
    /// Jobs whose home is lost, until the next one has said that it is there.
    homeless: BTreeSet<JobId>,
    /// The nodes that have announced themselves as the home of a job before this node has heard that the home before is lost.
    announced: BTreeMap<JobId, NodeId>,
    /// Jobs that are over, and how they have ended, if their homes have said so.
    ended: VecDeque<(JobId, Option<Outcome>)>,
    /// How ranks of a job have ended here, after the host of the job is gone and until its home says that the job is over: that
    /// home may be lost before.
    ends: BTreeMap<JobId, (Incarnation, Ends)>,
    /// Jobs whose host here was ended for a restart, with the epoch that ended, until the next epoch is launched here: the home
    /// may be lost before.
    anew: BTreeMap<JobId, Incarnation>,
    /// The latest members that were lost: the view with each of them, and the one without it.
    losses: VecDeque<(Arc<View>, Arc<View>, Member)>,
    /// Since when this side has no majority.
    pub(super) frozen: Option<Duration>,
    /// The members that did not answer when the majority was lost.
    pub(super) unreachable: BTreeSet<NodeId>,
    /// When the hosts of this node give up waiting for their homes to end them, on a side without a majority.
    pub(super) abandoned: Option<Duration>,
}

impl Node {
    /// A host asks this node to protect these ranks. Returns those of which this node has held a copy so far and whose protector
    /// is lost: that protector has acknowledged nothing that is not here.
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
        let forgotten = wards.forget_before(ward.incarnation);
        for (rank, life) in ranks {
            let told = self.recovery.restarted.get(&ProcessId { job, rank: *rank }).copied().unwrap_or_default();
            let known = told.max(*life).max(ward.incarnation);
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

    /// A host says that one of its processes has crashed.
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

    /// Whether what this node protects of a job is of a later epoch.
    pub(super) fn protects_later_life(&self, job: JobId, life: Incarnation) -> bool {
        self.recovery.wards.get(&job).is_some_and(|wards| wards.ward.incarnation > life)
    }

    /// The host of a job is gone, and its home may not know how the ranks ended.
    pub(super) fn keep_ends(&mut self, job: JobId, life: Incarnation, ends: Ends) {
        if !ends.is_empty() && self.recovery.ends.len() < limits::JOBS {
            self.recovery.ends.insert(job, (life, ends));
        }
    }

    /// The job restarts from the beginning.
    pub(super) fn forget_ends(&mut self, job: JobId) {
        self.recovery.ends.remove(&job);
    }

    /// All of a job has ended here for a restart.
    pub(super) fn keep_anew(&mut self, job: JobId, life: Incarnation) {
        if self.recovery.anew.len() < limits::JOBS {
            self.recovery.anew.insert(job, life);
        }
    }

    /// Keeps a message for later: it is handled when the host of the job, which is of an earlier epoch, is gone.
    pub(super) fn postpone(&mut self, job: JobId, from: &NodeId, message: PeerMessage) {
        let postponed = self.recovery.postponed.entry(job).or_default();
        if postponed.len() < limits::RANKS as usize {
            postponed.push((from.clone(), message));
        }
    }

    /// The host of a job is gone, and what was said of the next epoch is handled now. If the home that launched that epoch is
    /// lost, the next home has to hear that nothing of it is here, because there is no host that would say so.
    pub(super) fn handle_postponed(&mut self, now: Duration, job: JobId, home: &NodeId) {
        let Some(postponed) = self.recovery.postponed.remove(&job) else { return };
        let launched = postponed.iter().filter(|(_, message)| matches!(message, PeerMessage::ToHost(..)));
        let life = launched.filter_map(|(_, message)| life_in(message)).max();
        for (from, message) in postponed {
            self.handle_message(now, &from, message);
        }
        if let Some(life) = life.filter(|_| !self.hosts.contains_key(&job) && !self.has_ended(job)) {
            self.keep_anew(job, life);
            self.tell_home_of_anew(home, job);
        }
    }

    /// The newest epoch of a job that this node has heard of.
    fn life_of_job(&self, job: JobId) -> Option<Incarnation> {
        let host = self.hosts.get(&job).map(Host::incarnation);
        let ward = self.recovery.wards.get(&job).map(|wards| wards.ward.incarnation);
        let postponed = self.recovery.postponed.get(&job).into_iter().flatten().filter_map(|(_, message)| life_in(message)).max();
        host.max(ward).max(postponed)
    }

    /// The job's next epoch is launched here.
    pub(super) fn forget_anew(&mut self, job: JobId) {
        self.recovery.anew.remove(&job);
    }

    /// Tells the next home of a job that the home before had ended all ranks here for a restart. There is no host that would say
    /// so, and the next home would otherwise wait for the ranks that were here.
    fn tell_home_of_anew(&mut self, home: &NodeId, job: JobId) {
        let Some(life) = self.recovery.anew.get(&job).copied() else { return };
        let (running, ended, keys, waiting) = Default::default();
        let said = FromHost::Report(HostReport { running, ended, fence: 0, keys, waiting, anew: true });
        self.send(home, PeerMessage::ToHome(job, ToHome::Host { life, said }));
    }

    /// Tells the next home of a job what its host had told the home before.
    fn tell_home_of_ends_here(&mut self, home: &NodeId, job: JobId) {
        let (life, ends) = self.recovery.ends.get(&job).cloned().unwrap_or_default();
        for (rank, status, phase) in ends {
            self.send(home, PeerMessage::ToHome(job, ToHome::Left { rank, life, status, phase }));
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

    /// Tells a node that a job is over, and how it has ended.
    fn tell_removed(&mut self, to: &NodeId, job: JobId) {
        let outcome = self.recovery.ended.iter().find(|(ended, _)| *ended == job).and_then(|(_, outcome)| outcome.clone());
        self.send(to, PeerMessage::ToStore(job, ToStore::Remove(outcome)));
    }

    /// A job that was over goes on.
    pub(super) fn forget_end(&mut self, job: JobId) {
        self.recovery.ended.retain(|(ended, _)| *ended != job);
    }

    /// This node protects these ranks of a job that is resumed. Each has the incarnation that it had, and the address where it
    /// was first launched.
    pub(super) fn guard(&mut self, job: JobId, ranks: &[(Rank, Incarnation, IpAddr)], ward: Ward) {
        let started_ms = self.config.wall_us / 1000;
        let host = |rank| ward.placement.node_of(rank).unwrap_or(self.me()).clone();
        let protected =
            |&(rank, incarnation, origin)| (rank, Protected { origin: Some(origin), ..Protected::new(host(rank), incarnation) });
        let ranks = ranks.iter().map(protected).collect();
        self.recovery.wards.insert(job, Wards { ward, started_ms, ranks });
    }

    /// Members are gone. Every node that knows of their ranks computes the new placement, and the protectors bring the protected
    /// ones back. Messages about it are sent only when all lost members are out of the placement, so that none speaks of a lost
    /// node.
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

    /// A sender that does not know yet that a member is lost speaks of a job. Places the ranks as every node does.
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

    /// Tells the home of a job, perhaps a new one, which of its processes on this node lack their log, or could not be brought
    /// back.
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
        let (rank, life) = (process.rank, self.life_here(process));
        self.send(&home, PeerMessage::ToHome(process.job, ToHome::NoImage { rank, life, why, signal }));
    }

    /// Tells the home of a job how the ranks of lost nodes have ended, and which ranks are not brought back. Only this node can,
    /// and the home before may have been lost before it was told.
    fn tell_home_of_ends(&mut self, job: JobId) {
        let Some(wards) = self.recovery.wards.get(&job) else { return };
        let home = wards.ward.placement.home().clone();
        let ended = |(rank, p): (&Rank, &Protected)| {
            let Some(left) = p.left.as_ref().filter(|_| !self.is_member(&p.host)) else {
                return p.hopeless.clone().into_iter().collect();
            };
            let (rank, life) = (*rank, p.incarnation.first_of_job());
            let finals = ToHome::Finals { rank, life, finals: left.finals.clone() };
            vec![finals, ToHome::Left { rank, life, status: left.status, phase: left.phase }]
        };
        let ended: Vec<ToHome> = wards.ranks.iter().flat_map(ended).collect();
        ended.into_iter().for_each(|message| self.send(&home, PeerMessage::ToHome(job, message)));
    }

    /// The job has restarted: nothing of its epochs before `life` is brought back.
    pub(super) fn forget_lives_before(&mut self, job: JobId, life: Incarnation) {
        let Some(wards) = self.recovery.wards.get_mut(&job) else { return };
        let forgotten = wards.forget_before(life);
        if wards.ward.incarnation < life {
            (wards.ward.incarnation, wards.ward.fence) = (life, 0);
            wards.ward.keys.clear();
        }
        self.end_replication(job, forgotten);
    }

    /// The home of a job asks every node about the job's lost ranks. The protector of a rank and the node that brings it back
    /// know of it.
    fn seek_lost(&mut self, now: Duration, job: JobId) {
        let lost: Vec<Rank> = self.homes.get(&job).map_or_else(Vec::new, |home| home.away().collect());
        for rank in lost {
            let process = ProcessId { job, rank };
            self.gather(now, Purpose::Lost(process), &Query::Where(process));
        }
    }

    /// The answers about a lost rank. If no node knows of it, its protector was lost with it, and only a restart from the
    /// beginning is left (docs/guarantees.md says what survives what).
    pub(super) fn finish_lost(&mut self, now: Duration, process: ProcessId, known: bool, silent: bool) {
        let ProcessId { job, rank } = process;
        if known || !self.homes.get(&job).is_some_and(|home| home.away().any(|away| away == rank)) {
            return;
        }
        if silent {
            // The node will answer, or be declared dead.
            return self.gather(now, Purpose::Lost(process), &Query::Where(process));
        }
        if self.homes.get(&job).is_some_and(|home| home.has_ended(rank)) {
            return self.with_home(now, job, |home| home.handle_left_for_good(rank));
        }
        let why = "its node is lost, and every node that had its log with it".to_owned();
        self.record(now, EventName::Lost, About::rank(job, rank), format!("rank {rank}: {why}"));
        let me = self.me().clone();
        self.with_home(now, job, |home| {
            let life = home.incarnation();
            home.handle_message(now, &me, ToHome::NoImage { rank, life, why, signal: None });
        });
    }

    /// The node that watched `lost`, or the next one after it that is still there.
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

    /// Asks the next home of each job without one to take the job. Every node that has anything of the job asks, because the
    /// protector of rank 0 may be lost with the home.
    fn seek_next_homes(&mut self, now: Duration) {
        for job in self.recovery.homeless.clone() {
            let wards = self.recovery.wards.get(&job);
            let host = || self.hosts.get(&job).map(|host| (host.spec(), host.placement()));
            let ward = wards.map(|wards| (&wards.ward.spec, &wards.ward.placement));
            let Some(((spec, placement), incarnation)) = host().or(ward).zip(self.life_of_job(job)) else { continue };
            let ward = Ward { incarnation, spec: spec.clone(), placement: placement.clone(), fence: 0, keys: Vec::new() };
            let started_ms = wards.map_or(self.config.wall_us / 1000 + now.as_millis() as u64, |wards| wards.started_ms);
            let (home, adoption) = (placement.home().clone(), Adoption { job, ward, started_ms });
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
            self.homes.insert(job, Home::adopt(now, adoption));
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
                self.recovery.homeless.remove(&job);
                self.recovery.announced.retain(|of, next| (*of, &*next) != (job, from));
            }
            // If the home before says now that the job is over, the new one has to hear so: it would wait for reports of what was
            // forgotten.
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

    /// Fences a process. The answer is [`Node::handle_fenced`].
    pub(super) fn recover(&mut self, now: Duration, process: ProcessId) {
        let wards = self.recovery.wards.get_mut(&process.job);
        let Some(protected) = wards.and_then(|wards| wards.ranks.get_mut(&process.rank)) else { return };
        protected.incarnation.0 += 1;
        (protected.recovering, protected.hopeless) = (true, None);
        let incarnation = protected.incarnation;
        let text = format!("rank {}: incarnations before {} are refused from now on", process.rank, incarnation.0);
        self.record(now, EventName::Fence, About::rank(process.job, process.rank), text);
        self.outputs.push_back(Output::Store(StoreOrder::Fence(process, incarnation)));
    }

    /// The log service refuses older incarnations of a process from now on, and says what it holds of it.
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
                        ToHome::NoImage { rank, life: incarnation, why, signal }
                    }
                    error => ToHome::Lost { rank, life: incarnation, why: format!("it cannot be brought back: {error}") },
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

    /// The log of a process that is catching up cannot be read. No other node can bring it back.
    pub(super) fn handle_unreadable(&mut self, now: Duration, process: ProcessId, why: String) {
        let ProcessId { job, rank } = process;
        let wards = self.recovery.wards.get_mut(&job);
        let Some((home, protected)) = wards.and_then(|w| Some((w.ward.placement.home().clone(), w.ranks.get_mut(&rank)?))) else {
            return;
        };
        if protected.hopeless.is_none() {
            let hopeless = ToHome::NoImage { rank, life: protected.incarnation, why: why.clone(), signal: None };
            protected.hopeless = Some(hopeless.clone());
            self.record(now, EventName::Lost, About::rank(job, rank), format!("rank {rank}: {why}"));
            self.send(&home, PeerMessage::ToHome(job, hopeless));
        }
    }

    pub(super) fn address_of(&self, node: &NodeId) -> IpAddr {
        let gone = || self.gone.iter().find(|(member, _)| member.id == *node).map(|(member, _)| member.address.ip());
        self.member(node).map(|member| member.address.ip()).or_else(gone).unwrap_or(self.config.me.address.ip())
    }

    /// Whether the others have gone on from this incarnation of a process: there is a later one of the process or a later epoch
    /// of its job, or its epoch was ended here for a restart.
    fn has_left_behind(&self, process: ProcessId, life: Incarnation) -> bool {
        let of_job = life.first_of_job();
        let is_ended_by = |host: &Host| host.incarnation() > life || host.is_superseded() && host.incarnation() == of_job;
        life < self.life_of(process)
            || self.hosts.get(&process.job).is_some_and(is_ended_by)
            || self.recovery.anew.get(&process.job).is_some_and(|ended| *ended >= of_job)
    }

    /// A protector orders this node to bring a process back.
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
        if self.hosts.get(&job).is_some_and(|host| host.incarnation() < order.ward.incarnation) {
            return self.supersede(now, job, from, PeerMessage::Restart(Box::new(order)));
        }
        let fresh = !self.hosts.contains_key(&job);
        self.hosts.entry(job).or_insert_with(|| Host::adopt(job, &order.ward));
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

    /// Whether a process is here, or comes back here. If not, this node refuses all orders for this incarnation from now on,
    /// because another node is about to begin the next one.
    pub(super) fn has_or_refuses(&mut self, process: ProcessId, life: Incarnation) -> bool {
        let ProcessId { job, rank } = process;
        let has_ended_here = self.recovery.ends.get(&job).is_some_and(|(_, ends)| ends.iter().any(|(ended, ..)| *ended == rank));
        // A host of an earlier epoch does not count, because it is about to end. A message that waits for that end may bring the
        // process back.
        let host = self.hosts.get(&job).filter(|host| host.incarnation() == life.first_of_job());
        let is_here = host.is_some_and(|host| host.ranks().any(|here| here == rank));
        let comes =
            |(_, message): &(NodeId, PeerMessage)| matches!(message, PeerMessage::Restart(order) if order.process == process);
        let is_here = is_here || self.recovery.postponed.get(&job).is_some_and(|postponed| postponed.iter().any(comes));
        if is_here || has_ended_here || self.has_ended(job) {
            return true;
        }
        let known = self.recovery.restarted.entry(process).or_default();
        *known = (*known).max(Incarnation(life.0 + 1));
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
            Err(why) => self.handle_unrestorable(now, process, format!("its images cannot be had: {why}"), None),
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
        let Some(order) = self.recovery.orders.remove(&process) else {
            return self.refuse(observer, format!("no protector has ordered rank {} to come back here", process.rank));
        };
        if point.cut != order.cut {
            let text = format!("its image stands at {} of the journal, not at {}", point.cut, order.cut);
            return self.refuse(observer, text);
        }
        if order.ward.fence > 0 && !point.pmi.0 {
            // The other ranks that were there when it started have gone on: it cannot pass MPI_Init alone.
            return self.give_up_image(now, observer, process);
        }
        // Where its incarnation before had ended streams does not hold any more: this one says it itself.
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

    /// A process that was brought back is live.
    pub(super) fn handle_live(&mut self, now: Duration, process: ProcessId, events: u64, different: u64) {
        let text = format!(
            "rank {}: lives again, after {events} outcomes; {different} bytes differ from what was sent then",
            process.rank
        );
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

    /// The node that had the log of a process has let it go, or is gone, or did not answer.
    pub(super) fn finish_release(&mut self, now: Duration, process: ProcessId, holder: &NodeId, released: bool) {
        let ProcessId { job, rank } = process;
        if self.recovery.holders.get(&process) != Some(holder) {
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

    /// The log of a process that was brought back is with this node's protector from now on.
    fn leave_holder(&mut self, process: ProcessId) {
        self.recovery.holders.remove(&process);
    }

    /// A process of this node has crashed: `holder` has its log, and is to bring it back with it.
    pub(super) fn need_log(&mut self, process: ProcessId, holder: NodeId) {
        self.recovery.holders.insert(process, holder);
    }

    /// The incarnation of a process of this node.
    pub(super) fn life_here(&self, process: ProcessId) -> Incarnation {
        let first = || self.hosts.get(&process.job).map_or(Incarnation(0), Host::incarnation);
        self.recovery.lives.get(&process).copied().unwrap_or_else(first)
    }

    /// Another node is to protect a process from now on.
    pub(super) fn handle_release(&mut self, process: ProcessId) {
        if let Some(wards) = self.recovery.wards.get_mut(&process.job) {
            wards.ranks.remove(&process.rank);
        }
        self.outputs.push_back(Output::Store(StoreOrder::LetGo(process)));
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
        // No library reaches this number: it knows fewer connections at once.
        if finals.len() > limits::ENDED_STREAMS {
            finals.pop_first();
        }
    }

    /// The end of a connection of this process will not be asked for any more.
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

    /// Whether the loss of a process would cost more than it should: it is being brought back, or has no checkpoint at its
    /// protector yet.
    pub(super) fn is_degraded(&self, process: ProcessId) -> bool {
        self.recovery.degraded.contains_key(&process)
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

    /// A rank of this node has ended by itself. Its protector answers for it from now on.
    pub(super) fn handle_rank_left(&mut self, now: Duration, process: ProcessId) {
        self.recovery.doors.remove(&process);
        let holder = self.holder_of(process);
        self.tell_end(&holder, process);
        self.tell_home_of_finals(process);
        // The rank may have ended before it had taken all of its log.
        self.reprotect(now, process);
        self.recovery.degraded.remove(&process);
    }

    /// Tells the home where a process of this node, if it has ended, ended its streams.
    fn tell_home_of_finals(&mut self, process: ProcessId) {
        let ProcessId { job, rank } = process;
        let Some(host) = self.hosts.get(&job).filter(|host| host.end_of(rank).is_some()) else { return };
        let (home, life, finals) = (host.home().clone(), host.incarnation(), self.finals_here(process));
        self.send(&home, PeerMessage::ToHome(job, ToHome::Finals { rank, life, finals }));
    }

    /// Where a process of this node has ended its streams.
    fn finals_here(&self, process: ProcessId) -> Vec<(StreamId, StreamEnd)> {
        let finals = self.recovery.finals.get(&process).into_iter().flatten();
        finals.map(|(stream, end)| (*stream, *end)).collect()
    }

    /// Tells a protector how a process has ended, if it has.
    pub(super) fn tell_end(&mut self, protector: &NodeId, process: ProcessId) {
        let ProcessId { job, rank } = process;
        let Some((status, phase)) = self.hosts.get(&job).and_then(|host| host.end_of(rank)) else { return };
        let finals = self.finals_here(process);
        self.send(protector, PeerMessage::ToStore(job, ToStore::Left { rank, status, phase, finals }));
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

    /// Whether what this node has of a job is of an earlier epoch than `life`: the job has restarted, and this node has not heard
    /// so. What has left, or where streams have ended, does not hold any more.
    pub(super) fn is_behind(&self, job: JobId, life: Incarnation) -> bool {
        let host = self.hosts.get(&job).is_some_and(|host| host.incarnation() < life);
        let home = self.homes.get(&job).is_some_and(|home| home.incarnation() < life);
        host || home || self.recovery.wards.get(&job).is_some_and(|wards| wards.ward.incarnation < life)
    }

    /// Whether nothing that is sent to this process will be read any more.
    pub(super) fn wants_nothing(&self, process: ProcessId) -> bool {
        let closing = self.observers.processes.get(&process).is_some_and(|observed| observed.closing);
        let at_home = || self.homes.get(&process.job).is_some_and(|home| home.has_left(process.rank));
        closing || self.place_of(process) == Some(Place::Left) || at_home()
    }

    /// Whether this side has no majority, and that node is not on it.
    pub(super) fn is_out_of_reach(&self, node: &NodeId) -> bool {
        self.membership.is_frozen() && self.recovery.unreachable.contains(node)
    }

    /// When this node gives up protected jobs that wait for a majority.
    pub(super) fn next_frozen(&self) -> Option<Duration> {
        self.recovery.frozen.map(|since| since + FROZEN).into_iter().chain(self.recovery.abandoned).min()
    }

    /// Ends protected jobs that have waited too long for a majority.
    pub(super) fn end_frozen(&mut self, now: Duration) {
        let why = format!("this side of the cluster has had no majority for {} s", FROZEN.as_secs());
        if self.recovery.abandoned.take_if(|due| *due <= now).is_some() {
            let hosts: Vec<_> = self.hosts.keys().copied().collect();
            hosts.into_iter().for_each(|job| self.with_host(now, job, |host| host.give_up(now, &why)));
            // Every host within reach has had its time to say that nothing is left there.
            self.end_homes(now, &why, |_, _| true);
        }
        if self.recovery.frozen.take_if(|since| *since + FROZEN <= now).is_some() {
            self.recovery.abandoned = Some(now + HOMELESS);
            self.end_homes(now, &why, |node, unreachable| unreachable.contains(node));
        }
    }

    /// Ends all jobs of which this node is the home. Nothing is expected of hosts that are lost.
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

/// The epoch that `message` is about to begin at a host, or in which it brings a process back there.
fn life_in(message: &PeerMessage) -> Option<Incarnation> {
    match message {
        PeerMessage::ToHost(_, ToHost::Launch { incarnation, .. }) => Some(*incarnation),
        PeerMessage::Restart(order) => Some(order.ward.incarnation),
        _ => None,
    }
}
