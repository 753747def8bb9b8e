//! How ranks and jobs have ended, and where ended ranks have ended their streams: what a job's home, perhaps the next one, has to
//! hear.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::ids::{Epoch, JobId, NodeId, ProcessId, Rank};
use radic_wire::job::{ExitStatus, Outcome};
use radic_wire::limits;
use radic_wire::peer::{Answer, Crashed, FromHost, HostReport, MpiPhase, PeerMessage, StdinWanted, ToHome, ToStore};
use radic_wire::process::StreamEnd;

use super::Node;
use super::finals;
use super::wards::Protected;

/// Ended jobs that are remembered, so that messages about them can be answered.
const ENDED: usize = 256;

/// How ranks have ended, and how far they had come with MPI.
pub(super) type Ends = Vec<(Rank, ExitStatus, MpiPhase)>;

/// What is known of jobs and ranks that have ended.
#[derive(Debug, Default)]
pub(super) struct Endings {
    /// Jobs that are over, and how they have ended, if their homes have said so.
    pub(super) ended: VecDeque<(JobId, Option<Outcome>)>,
    /// How ranks of a job have ended here, after the host of the job is gone and until its home says that the job is over: that
    /// home may be lost before.
    pub(super) ends: BTreeMap<JobId, (Epoch, Ends)>,
    /// Jobs whose host here was ended for a restart, with the epoch that ended, until the next epoch is launched here: the home
    /// may be lost before.
    pub(super) restarts: BTreeMap<JobId, Epoch>,
}

impl Endings {
    /// The job is over, and has ended in this way, if that is known.
    pub(super) fn remember(&mut self, job: JobId, outcome: Option<Outcome>) {
        self.ends.remove(&job);
        self.restarts.remove(&job);
        match self.ended.iter_mut().find(|(of, _)| *of == job) {
            Some((_, known)) => *known = known.take().or(outcome),
            None => self.ended.push_back((job, outcome)),
        }
        if self.ended.len() > ENDED {
            self.ended.pop_front();
        }
    }
}

impl Node {
    /// The host of a job is gone, and its home may not know how the ranks ended.
    pub(super) fn keep_ends(&mut self, job: JobId, epoch: Epoch, ends: Ends) {
        if !ends.is_empty() && !self.has_ended(job) && self.recovery.endings.ends.len() < limits::JOBS {
            self.recovery.endings.ends.insert(job, (epoch, ends));
        }
    }

    /// The job restarts from the beginning.
    pub(super) fn forget_ends(&mut self, job: JobId) {
        self.recovery.endings.ends.remove(&job);
    }

    /// All of a job has ended here for a restart.
    pub(super) fn keep_restart(&mut self, job: JobId, epoch: Epoch) {
        if self.recovery.endings.restarts.len() < limits::JOBS {
            self.recovery.endings.restarts.insert(job, epoch);
        }
    }

    /// The job's next epoch is launched here.
    pub(super) fn forget_restart(&mut self, job: JobId) {
        self.recovery.endings.restarts.remove(&job);
    }

    /// Tells the next home of a job that the home before had ended all ranks here for a restart. There is no host that would say
    /// so, and the next home would otherwise wait for the ranks that were here.
    pub(super) fn tell_home_of_restart(&mut self, home: &NodeId, job: JobId) {
        let Some(epoch) = self.recovery.endings.restarts.get(&job).copied() else { return };
        let (running, ended, keys, waiting) = Default::default();
        let said =
            FromHost::Report(HostReport { running, ended, fence: 0, keys, waiting, stdin: StdinWanted::Nothing, restarts: true });
        self.send(home, PeerMessage::ToHome(job, ToHome::Host { epoch, said }));
    }

    /// Tells the next home of a job what its host had told the home before.
    pub(super) fn tell_home_of_ends_here(&mut self, home: &NodeId, job: JobId) {
        let (epoch, ends) = self.recovery.endings.ends.get(&job).cloned().unwrap_or_default();
        for (rank, status, phase) in ends {
            let node = self.me().name.clone();
            self.send(home, PeerMessage::ToHome(job, ToHome::Left { rank, node, epoch, status, phase }));
        }
    }

    /// Whether a job is known to be over.
    pub(super) fn has_ended(&self, job: JobId) -> bool {
        self.recovery.endings.ended.iter().any(|(ended, _)| *ended == job)
    }

    /// The jobs that are known to be over, and how they have ended.
    pub(super) fn known_ends(&self) -> Vec<(JobId, Outcome)> {
        let known = |(job, outcome): &(JobId, Option<Outcome>)| outcome.clone().map(|outcome| (*job, outcome));
        self.recovery.endings.ended.iter().filter_map(known).collect()
    }

    /// What is known here of a job. Its end alone is told only where nothing of it is left: a command that resumes it must hear of what is.
    pub(super) fn answer_knows(&self, job: JobId) -> Answer {
        match self.outcome_of(job) {
            Some(outcome) if !self.knows(job) => Answer::Ended(outcome),
            _ => Answer::Knows(self.knows(job)),
        }
    }

    fn outcome_of(&self, job: JobId) -> Option<Outcome> {
        self.recovery.endings.ended.iter().find(|(ended, _)| *ended == job).and_then(|(_, outcome)| outcome.clone())
    }

    /// Tells a node that a job is over, and how it has ended.
    pub(super) fn tell_removed(&mut self, to: &NodeId, job: JobId) {
        self.send(to, PeerMessage::ToStore(job, ToStore::Remove(self.outcome_of(job))));
    }

    /// Tells all nodes that a job is over of which nothing was told.
    pub(super) fn tell_all_removed(&mut self, job: JobId) {
        self.tell_all(&PeerMessage::ToStore(job, ToStore::Remove(None)));
    }

    /// A job that was over goes on. Its ranks have ended in the life before.
    pub(super) fn forget_end(&mut self, job: JobId) {
        self.recovery.endings.ended.retain(|(ended, _)| *ended != job);
        self.forget_ends(job);
    }

    /// Tells the home of a job, perhaps a new one, which of its processes on this node lack their log, or could not be brought
    /// back.
    pub(super) fn tell_home_of_lost_logs(&mut self, job: JobId) {
        let Some(host) = self.hosts.get(&job) else { return };
        let held = |rank: &Rank| self.is_member(&self.holder_of(ProcessId { job, rank: *rank }));
        let without: Vec<Rank> =
            host.ranks().filter(|rank| host.is_hopeless(*rank) || host.needs_log(*rank) && !held(rank)).collect();
        without.into_iter().for_each(|rank| self.tell_home_of_lost_log(ProcessId { job, rank }));
    }

    pub(super) fn tell_home_of_lost_log(&mut self, process: ProcessId) {
        self.tell_home_of_no_image(process, "its log was lost while it was brought back".to_owned(), None);
    }

    /// Tells the home that a process of this node is not brought back. `signal`: the one by which it has crashed here, if it has.
    pub(super) fn tell_home_of_no_image(&mut self, process: ProcessId, why: String, signal: Option<i32>) {
        let Some(home) = self.hosts.get(&process.job).map(|host| host.home().clone()) else { return };
        let (rank, incarnation) = (process.rank, self.incarnation_here(process));
        let crash = signal.map(|signal| Crashed { node: self.me().name.clone(), signal });
        self.send(&home, PeerMessage::ToHome(process.job, ToHome::NoImage { rank, incarnation, why, crash }));
    }

    /// Tells the home of a job how the ranks of lost nodes have ended, and which ranks are not brought back. Only this node can,
    /// and the home before may have been lost before it was told.
    pub(super) fn tell_home_of_ends(&mut self, job: JobId) {
        let Some(wards) = self.recovery.wards.get(&job) else { return };
        let home = wards.ward.placement.home().clone();
        let ended = |(rank, p): (&Rank, &Protected)| {
            let Some(left) = p.left.as_ref().filter(|_| !self.is_member(&p.host)) else {
                return p.hopeless.clone().into_iter().collect();
            };
            let (rank, epoch) = (*rank, p.incarnation.epoch);
            let finals = ToHome::Finals { rank, epoch, finals: left.finals.clone() };
            vec![finals, ToHome::Left { rank, node: p.host.name.clone(), epoch, status: left.status, phase: left.phase }]
        };
        let ended: Vec<ToHome> = wards.ranks.iter().flat_map(ended).collect();
        ended.into_iter().for_each(|message| self.send(&home, PeerMessage::ToHome(job, message)));
    }

    /// Tells the home where a process of this node, if it has ended, ended its streams.
    pub(super) fn tell_home_of_finals(&mut self, process: ProcessId) {
        let ProcessId { job, rank } = process;
        let Some(host) = self.hosts.get(&job).filter(|host| host.end_of(rank).is_some()) else { return };
        let (home, epoch, finals) = (host.home().clone(), host.epoch(), self.finals_here(process));
        self.send(&home, PeerMessage::ToHome(job, ToHome::Finals { rank, epoch, finals }));
    }

    /// Where a process of this node has ended its streams.
    fn finals_here(&self, process: ProcessId) -> Vec<(StreamId, StreamEnd)> {
        let finals = self.here(process).into_iter().flat_map(|here| &here.finals);
        finals.map(|(stream, end)| (*stream, *end)).collect()
    }

    /// Tells a protector how a process has ended, if it has.
    pub(super) fn tell_end(&mut self, protector: &NodeId, process: ProcessId) {
        let ProcessId { job, rank } = process;
        let Some((status, phase)) = self.hosts.get(&job).and_then(|host| host.end_of(rank)) else { return };
        let finals = self.finals_here(process);
        self.send(protector, PeerMessage::ToStore(job, ToStore::Left { rank, status, phase, finals }));
    }

    /// A process of this node has ended an outgoing stream.
    pub(super) fn handle_finished(&mut self, process: ProcessId, stream: StreamId, end: StreamEnd) {
        let finals = &mut self.recovery.here.entry(process).or_default().finals;
        let known = finals.entry(stream).or_insert(end);
        *known = StreamEnd { closed: end.closed || known.closed, received: end.received.max(known.received), ..end };
        // No library reaches this number: it knows fewer connections at once.
        if finals.len() > limits::ENDED_STREAMS {
            finals.pop_first();
        }
    }

    /// The end of a connection of this process will not be asked for any more.
    pub(super) fn handle_over(&mut self, process: ProcessId, connection: ConnectionId) {
        if let Some(here) = self.recovery.here.get_mut(&process) {
            [true, false].iter().for_each(|from| _ = here.finals.remove(&StreamId { connection, from_opener: *from }));
        }
    }

    /// Where `sender` has ended `stream`, as far as this node knows.
    pub(super) fn final_of(&self, stream: StreamId, sender: ProcessId) -> Option<StreamEnd> {
        let told = self.here(sender).and_then(|here| here.finals.get(&stream)).copied();
        let left = || self.recovery.wards.get(&sender.job)?.ranks.get(&sender.rank)?.left.as_ref();
        let left = left().and_then(|left| finals::end_of(&left.finals, stream));
        let at_home = || self.homes.get(&sender.job)?.final_of(stream, sender.rank);
        told.or(left).or_else(at_home)
    }

    /// A rank of this node has ended by itself. Its protector answers for it from now on.
    pub(super) fn handle_rank_left(&mut self, now: Duration, process: ProcessId) {
        self.forget_door(process);
        let holder = self.holder_of(process);
        self.tell_end(&holder, process);
        self.tell_home_of_finals(process);
        // The rank may have ended before it had taken all of its log.
        self.reprotect(now, process);
        self.recovery.here.entry(process).or_default().degraded = None;
    }
}
