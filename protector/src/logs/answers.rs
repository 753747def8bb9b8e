//! What the protector asks, and the answers.

use std::time::Instant;

use radic_wire::bytes::Writer;
use radic_wire::ids::{Incarnation, JobId, ProcessId};
use radic_wire::limits;
use radic_wire::log::{FromProtector, LogPart};

use super::connection::Role;
use super::disk::Order;
use super::service::Service;
use super::{Answer, Request, Status};
use crate::store::Place;

/// Jobs that have ended and are remembered: their processes are not listened to.
const ENDED: usize = 1_024;
/// Of them, jobs whose logs are kept; those of the oldest are removed.
const KEPT: usize = limits::FINISHED_JOBS;

impl Service {
    /// Answers. A receiver that is gone has lost interest.
    pub fn answer(&mut self, request: Request) {
        match request {
            Request::Join => self.is_member = true,
            Request::Configure(job, protection) => {
                for process in self.store.of_job(job) {
                    self.store.configure(process, protection.log, protection.keep_logs);
                }
                self.jobs.insert(job, protection);
            }
            Request::SetReplica(process, address) => {
                self.set_replica(process, address);
                self.listen_to(process);
            }
            // It leads until the process has left it, which may need its log for a while, and what it says then acknowledged.
            Request::LetGo(process) => self.store.let_go(process),
            Request::TakeOver(process) => {
                self.store.take_over(process);
                self.listen_to(process);
            }
            Request::RemoveJob(job) => self.remove_job(job),
            Request::ReviveJob(job, protection) => {
                self.silence(|of| of.job == job);
                self.remove_files(job);
                self.ended.retain(|(ended, _)| *ended != job);
                self.jobs.insert(job, protection);
                self.revived.insert(job);
            }
            Request::RemoveProcess(process) => {
                self.silence(|of| of == process);
                self.remove_process(process);
            }
            Request::StableOf(receiver, life, stream, answer) => _ = answer.send(self.store.stable_in(receiver, life, stream)),
            Request::List(process, answer) => _ = answer.send(self.store.list(process)),
            Request::Read(process, part, position, most, answer) => self.read_part(process, part, position, most, answer),
            Request::Status(job, answer) => _ = answer.send(self.status(job)),
            Request::Fence(process, incarnation, answer) => {
                let restart = self.store.restart(process, incarnation);
                self.listen_to(process);
                self.close_fenced(process, incarnation);
                _ = answer.send(restart);
            }
            // The round ends with it.
            Request::End => {}
        }
    }

    /// Whoever waits to be heard goes on.
    fn listen_to(&mut self, process: ProcessId) {
        self.freed |= self.told.insert(process);
    }

    /// Whether the node has told enough of this process.
    pub fn listens_to(&self, process: ProcessId) -> bool {
        self.told.contains(&process) || self.revived.contains(&process.job)
    }

    fn remove_job(&mut self, job: JobId) {
        self.told.retain(|process| process.job != job);
        self.revived.remove(&job);
        let keep = self.jobs.remove(&job).is_some_and(|protection| protection.keep_logs);
        self.silence(|of| of.job == job);
        let replicated: Vec<ProcessId> = self.replicas.keys().copied().filter(|process| process.job == job).collect();
        replicated.into_iter().for_each(|process| self.forget_replica(process));
        self.followed.retain(|process| process.job != job);
        if keep {
            self.store.of_job(job).into_iter().for_each(|process| self.store.end(process));
        } else {
            self.remove_files(job);
        }
        if !self.ended.iter().any(|(ended, _)| *ended == job) {
            self.ended.push_back((job, keep));
        }
        let kept = self.ended.iter().filter(|(_, keep)| *keep).count();
        if kept > KEPT
            && let Some(oldest) = self.ended.iter_mut().find(|(_, keep)| *keep)
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

    /// Forgets what is held of a process, in memory and on the disk.
    pub fn remove_process(&mut self, process: ProcessId) {
        self.store.remove(process);
        self.forget_files(|of| of == process);
        self.ask_disk(Order::RemoveProcess(process));
    }

    fn remove_files(&mut self, job: JobId) {
        self.store.of_job(job).into_iter().for_each(|process| self.store.remove(process));
        self.forget_files(|of| of.job == job);
        self.ask_disk(Order::RemoveJob(job));
    }

    fn forget_files(&mut self, is_gone: impl Fn(ProcessId) -> bool) {
        self.cancel_writes(|file| is_gone(file.process()));
        self.verifying.retain(|(process, _), _| !is_gone(*process));
        self.commits.retain(|process, _| !is_gone(*process));
        self.unwell.retain(|process, _| !is_gone(*process));
        self.freed = true;
    }

    /// Closes the connections of these processes, those to their replicas too: they are made anew when the process is.
    fn silence(&mut self, of: impl Fn(ProcessId) -> bool) {
        let theirs = self.connections.iter().filter(|(_, connection)| connection.role.process().is_some_and(&of));
        let tokens: Vec<u64> = theirs.map(|(token, _)| *token).collect();
        tokens.into_iter().for_each(|token| self.close(token));
    }

    /// Tells older incarnations that they are fenced, and closes their connections.
    fn close_fenced(&mut self, process: ProcessId, newest: Incarnation) {
        let older =
            |role: &Role| role.speaker().is_some_and(|speaker| speaker.process == process && speaker.incarnation < newest);
        let theirs = self.connections.iter().filter(|(_, connection)| older(&connection.role));
        let tokens: Vec<u64> = theirs.map(|(token, _)| *token).collect();
        for token in tokens {
            if let Some(connection) = self.connections.get_mut(&token)
                && matches!(connection.role, Role::Journal(..))
            {
                let mut body = [0; 16];
                let mut writer = Writer::new(&mut body);
                FromProtector::Fenced { newest }.write(&mut writer);
                let length = writer.finish().expect("a tag and a number of 32 bits fit");
                connection.queue(&body[..length]);
                self.flush(token);
            }
            self.close(token);
        }
    }

    fn read_part(
        &mut self,
        process: ProcessId,
        part: LogPart,
        position: u64,
        most: usize,
        answer: Answer<Result<Vec<u8>, String>>,
    ) {
        match self.store.find(process, part, position, most.min(limits::LOG_CHUNK)) {
            Some(Place::Memory(bytes)) => _ = answer.send(Ok(bytes)),
            Some(Place::File(file, length)) => self.ask_disk(Order::Read(file, position, length, answer)),
            None => _ = answer.send(Err(format!("{part:?} of {process} is not held from {position}"))),
        }
    }

    /// Why what a process logs is not taken, or not acknowledged, for now.
    fn why_waits(&self, process: ProcessId) -> Option<String> {
        let replica = self.replicas.get(&process).filter(|replica| !replica.connected);
        let bound = || self.store.is_over_bound(process).then(|| "its log is at its bound: it waits for a checkpoint".to_owned());
        let replica = || replica.map(|replica| format!("the replica of its log at {} is out of reach", replica.address));
        self.unwell.get(&process).cloned().or_else(bound).or_else(replica)
    }

    fn status(&self, job: JobId) -> Vec<(ProcessId, Status)> {
        let now = Instant::now();
        let mut processes = self.store.of_job(job);
        processes.sort_unstable();
        let status = |process: ProcessId| {
            let usage = self.store.usage(process)?;
            let committed_ms = self.commits.get(&process).map(|at| now.duration_since(*at).as_millis() as u64);
            let connected = self.store.incarnation(process).is_some_and(|incarnation| {
                let token = self.voices.get(&crate::store::Speaker { process, incarnation });
                let connection = token.and_then(|token| self.connections.get(token));
                connection.is_some_and(|connection| matches!(connection.role, Role::Journal(_, true)))
            });
            let replica = self.replicas.get(&process).map(|replica| replica.connected);
            let waits = self.why_waits(process);
            Some((process, Status { usage, committed_ms, connected, replica, waits }))
        };
        processes.into_iter().filter_map(status).collect()
    }
}
