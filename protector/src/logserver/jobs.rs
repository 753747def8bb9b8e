//! Jobs and their processes: which are known, which are refused, and what is forgotten.

use std::time::Duration;

use radic_wire::bytes::Writer;
use radic_wire::ids::{Epoch, Incarnation, JobId, ProcessId, Rank};
use radic_wire::limits;
use radic_wire::log::FromProtector;
use radic_wire::peer::Revival;
use radic_wire::process::Protection;

use super::LogServer;
use super::types::{Action, Reason, Role, Status};
use crate::store::{LineHeld, NoRestart, Restart, Speaker};

/// Ended jobs that are remembered: their processes are refused.
const ENDED: usize = 1_024;
/// Of them, jobs whose logs are kept; those of the oldest are removed.
const KEPT: usize = limits::FINISHED_JOBS;
/// Time that the log of a lost process has to become stable. A replica that only this node cannot reach is a member all the same,
/// and is waited for as long as a process waits for its protector.
pub(super) const STABLE: Duration = Duration::from_secs(90);

/// The command that gives logs of a job that is to go on.
#[derive(Debug, Clone)]
pub(super) struct Given {
    /// As which incarnation it speaks of each rank. The ranks themselves go on as later ones.
    incarnations: Vec<Incarnation>,
    /// The command is lost, and the job does not go on with what it gave here.
    is_lost: bool,
}

impl LogServer {
    /// The node is a member: accept forwarded messages from now on. Earlier, log servers that take this daemon for its
    /// predecessor could leave copies here forever, because it may not hear that their job ends.
    pub fn handle_member(&mut self) {
        self.is_member = true;
    }

    /// How the processes of this job are protected, from now on. Without it: as [`Protection::default`] says.
    pub fn configure(&mut self, job: JobId, protection: Protection) {
        for process in self.store.of_job(job) {
            self.store.configure(process, protection.log, protection.keep_logs, protection.payload);
        }
        self.jobs.insert(job, protection);
    }

    /// Another log server has this process from now on. This one leads until the process has left it. The process may need its
    /// log for a while, and what it says is acknowledged until then: see [`Store::let_go`](crate::store::Store::let_go).
    pub fn let_go(&mut self, process: ProcessId) {
        self.store.let_go(process);
    }

    /// The log server that has forwarded what this process says is lost: see
    /// [`Store::take_over`](crate::store::Store::take_over).
    pub fn take_over(&mut self, process: ProcessId) {
        self.store.take_over(process);
        self.listen_to(process);
    }

    /// The node has said all that is needed of a process: its hello is heard now, if it waits.
    pub(super) fn listen_to(&mut self, process: ProcessId) {
        self.freed |= self.told.insert(process);
    }

    /// Whether the node has said enough of this process.
    pub(super) fn listens_to(&self, process: ProcessId) -> bool {
        self.told.contains(&process) || self.revived.contains_key(&process.job)
    }

    /// Fences the older incarnations of this process (G4). What a restart as `incarnation` needs is said by [`Action::Fenced`],
    /// when the log is stable: when the file and the replica have what came before. [`NoRestart::Unstable`] is the answer if that
    /// takes longer than `STABLE`. `sets`: causes that others have kept. `line`: the newest recovery line that some node remembers to be complete.
    pub fn fence(&mut self, now: Duration, process: ProcessId, incarnation: Incarnation, sets: &[Vec<u8>], line: u64) {
        self.now = now;
        self.store.learn(process, incarnation, sets);
        if line > 0 {
            self.store.complete(process.job, incarnation.epoch, line);
        }
        let restart = self.store.restart(process, incarnation);
        self.listen_to(process);
        self.close_older(process, incarnation);
        match restart {
            Err(NoRestart::Unstable) => _ = self.fences.entry((process, incarnation)).or_insert(now + STABLE),
            answer => self.answer_fence(process, incarnation, answer),
        }
    }

    /// Refuses the older incarnations of this process already now: [`LogServer::fence`] follows when what others know of it was collected.
    pub fn silence(&mut self, now: Duration, process: ProcessId, incarnation: Incarnation) {
        self.now = now;
        self.store.fence(process, incarnation);
        self.close_older(process, incarnation);
    }

    /// Images of this recovery line of the job count from now on.
    pub fn handle_line_complete(&mut self, now: Duration, (job, epoch): (JobId, Epoch), line: u64) {
        self.now = now;
        self.store.complete(job, epoch, line);
    }

    /// Images of the recovery lines after the first, up to the second, never count.
    pub fn handle_lines_given_up(&mut self, now: Duration, (job, epoch): (JobId, Epoch), lines: (u64, u64)) {
        self.now = now;
        self.store.give_up(job, epoch, lines);
    }

    /// What is held of the images of this recovery line.
    pub fn held_of_line(&mut self, job: JobId, epoch: Epoch, line: u64) -> LineHeld {
        self.store.held_of_line(job, epoch, line)
    }

    /// Tells older incarnations of this process that they are refused, and closes their connections.
    fn close_older(&mut self, process: ProcessId, incarnation: Incarnation) {
        self.close_for(process, incarnation, |role| role.speaker().is_some_and(|of| of.incarnation < incarnation));
    }

    /// Closes these connections of a process, of which `incarnation` is the first that is heard.
    fn close_for(&mut self, process: ProcessId, incarnation: Incarnation, is_refused: impl Fn(Role) -> bool) {
        for connection in self.connections_with(|_, role| role.process() == Some(process) && is_refused(role)) {
            if let Some(Role::Journal(speaker, _)) = self.role(connection) {
                let mut body = [0; 16];
                let mut writer = Writer::new(&mut body);
                FromProtector::Fenced { newest: incarnation }.write(&mut writer);
                let length = writer.finish().expect("a tag and a number of 32 bits fit");
                self.actions.push_back(Action::Answer(connection, speaker, body[..length].to_vec()));
            }
            self.close(connection, Reason::Fenced);
        }
    }

    /// Answers for logs that have become stable since they were fenced, and for those that have not for too long.
    pub(super) fn look_at_fences(&mut self) {
        for ((process, incarnation), until) in std::mem::take(&mut self.fences) {
            match self.store.restart(process, incarnation) {
                Err(NoRestart::Unstable) if self.now < until => _ = self.fences.insert((process, incarnation), until),
                answer => self.answer_fence(process, incarnation, answer),
            }
        }
    }

    /// What the store has done on the way to the answer is told before it: an image that is committed by the fence counts as
    /// committed where the answer is heard.
    fn answer_fence(&mut self, process: ProcessId, incarnation: Incarnation, answer: Result<Restart, NoRestart>) {
        self.settle();
        self.actions.push_back(Action::Fenced(process, incarnation, answer));
    }

    /// The job has ended. Its processes are refused from now on, and their files are removed unless the job keeps its logs.
    pub fn remove_job(&mut self, now: Duration, job: JobId) {
        self.now = now;
        self.told.retain(|process| process.job != job);
        if self.revived.remove(&job).is_some() {
            self.store.refuse_none(job);
        }
        let keeps = self.jobs.remove(&job).is_some_and(|protection| protection.keep_logs);
        self.replicated(job).into_iter().for_each(|process| self.forget_replica(process));
        self.close_job(job);
        self.followed.retain(|process| process.job != job);
        if keeps {
            self.store.of_job(job).into_iter().for_each(|process| self.store.end(process));
        } else {
            self.remove_files(job);
        }
        self.remember_ended(job, keeps);
    }

    fn remember_ended(&mut self, job: JobId, keeps: bool) {
        if !self.has_ended(job) {
            self.ended.push_back((job, keeps));
        }
        let kept = self.ended.iter().filter(|(_, keeps)| *keeps).count();
        if kept > KEPT
            && let Some(oldest) = self.ended.iter_mut().find(|(_, keeps)| *keeps)
        {
            oldest.1 = false;
            let oldest = oldest.0;
            self.remove_files(oldest);
        }
        if self.ended.len() > ENDED
            && let Some((oldest, true)) = self.ended.pop_front()
        {
            self.remove_files(oldest);
        }
    }

    /// Whether the job has ended, as the node has said.
    pub fn has_ended(&self, job: JobId) -> bool {
        self.ended.iter().any(|(ended, _)| *ended == job)
    }

    /// A job that was suspended goes on. What is held of it is removed, and its processes may log in again, but none of an
    /// earlier life (G4).
    pub fn revive_job(&mut self, now: Duration, revival: Revival) {
        let Revival { job, protection, incarnations, .. } = revival;
        self.now = now;
        self.replicated(job).into_iter().for_each(|process| self.hang_up(process));
        self.close_job(job);
        self.remove_files(job);
        self.ended.retain(|(ended, _)| *ended != job);
        self.jobs.insert(job, protection);
        for (rank, first) in (0..).map(Rank).zip(&incarnations) {
            self.store.refuse_before(ProcessId { job, rank }, *first);
        }
        self.revived.insert(job, Given { incarnations, is_lost: false });
    }

    /// The command that gave logs of a job is lost, and the job does not go on with what it gave here: that is forgotten, and the command is not heard
    /// any more (G4). What another log server forwards stays. The node of that one knows that the job goes on, and what the command
    /// gave there is forwarded in the command's incarnation.
    pub fn forget_given(&mut self, now: Duration, job: JobId) {
        self.now = now;
        let Some(given) = self.revived.get_mut(&job) else { return };
        given.is_lost = true;
        for (rank, incarnation) in (0..).map(Rank).zip(given.incarnations.clone()) {
            let process = ProcessId { job, rank };
            let is_command = |role: Role| {
                !matches!(role, Role::Forwarder(..)) && role.speaker().is_some_and(|of| of.incarnation <= incarnation)
            };
            self.close_for(process, incarnation.next(), is_command);
            if self.store.incarnation(process) == Some(incarnation) && !self.is_followed(process) {
                self.remove_process(now, process);
            }
        }
    }

    /// Whether this is the command that was lost before its job went on with what it gave here.
    pub(super) fn is_lost_command(&self, Speaker { process, incarnation }: Speaker) -> bool {
        let given = self.revived.get(&process.job).filter(|given| given.is_lost);
        given.and_then(|given| given.incarnations.get(process.rank.0 as usize)).is_some_and(|given| incarnation <= *given)
    }

    /// This process begins again with nothing, after an exec or a restart of its job from the beginning. If it has a replica,
    /// both log servers are told.
    pub fn remove_process(&mut self, now: Duration, process: ProcessId) {
        self.now = now;
        // It is made again when the process says hello ([`LogServer::lead`]).
        self.hang_up(process);
        self.close_all(&Reason::Forgotten, |_, role| role.process() == Some(process));
        self.forget_process(process);
    }

    fn close_job(&mut self, job: JobId) {
        self.close_all(&Reason::Forgotten, |_, role| role.process().is_some_and(|process| process.job == job));
    }

    fn replicated(&self, job: JobId) -> Vec<ProcessId> {
        let mut theirs: Vec<ProcessId> = self.replicas.keys().copied().filter(|process| process.job == job).collect();
        theirs.sort_unstable();
        theirs
    }

    /// Forgets what is held of a process, in memory and on the disk.
    pub(super) fn forget_process(&mut self, process: ProcessId) {
        self.store.remove(process);
        self.forget_files(|of| of == process);
        self.actions.push_back(Action::RemoveProcess(process));
    }

    fn remove_files(&mut self, job: JobId) {
        self.store.remove_job(job);
        self.forget_files(|of| of.job == job);
        self.actions.push_back(Action::RemoveJob(job));
    }

    fn forget_files(&mut self, is_gone: impl Fn(ProcessId) -> bool) {
        self.cancel_writes(|file| is_gone(file.process()));
        self.verifying.retain(|(process, _), _| !is_gone(*process));
        self.commits.retain(|process, _| !is_gone(*process));
        self.unwell.retain(|process, _| !is_gone(*process));
        self.freed = true;
    }

    /// Why what a process logs is not taken, or not acknowledged, for now.
    fn why_waits(&self, process: ProcessId) -> Option<String> {
        let replica = self.replicas.get(&process).filter(|replica| !replica.is_up());
        let bound = || self.store.is_over_bound(process).then(|| "its log is at its bound: it waits for a checkpoint".to_owned());
        let replica = || replica.map(|replica| format!("the replica of its log at {} is out of reach", replica.address));
        self.unwell.get(&process).cloned().or_else(bound).or_else(replica)
    }

    /// The state of each log that is held here of the job's processes, by rank.
    pub fn status(&self, now: Duration, job: JobId) -> Vec<(ProcessId, Status)> {
        let mut processes = self.store.of_job(job);
        processes.sort_unstable();
        let status = |process: ProcessId| {
            let usage = self.store.usage(process)?;
            let committed_ms = self.commits.get(&process).map(|at| now.saturating_sub(*at).as_millis() as u64);
            let connected = self.store.incarnation(process).is_some_and(|incarnation| {
                let connection = self.voices.get(&Speaker { process, incarnation });
                let role = connection.and_then(|connection| self.role(*connection));
                matches!(role, Some(Role::Journal(_, true)))
            });
            let replica = self.replicas.get(&process).map(super::chain::Replica::is_up);
            let waits = self.why_waits(process);
            Some((process, Status { usage, committed_ms, connected, replica, waits }))
        };
        processes.into_iter().filter_map(status).collect()
    }
}
