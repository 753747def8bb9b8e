//! The jobs of a node: what connects its homes, its hosts, and the messages about them.

use std::time::Duration;

use radic_wire::event::EventName;
use radic_wire::ids::{Epoch, JobId, NodeId, ProcessId, Rank};
use radic_wire::job::{EndReason, Outcome, OutputStream};
use radic_wire::limits;
use radic_wire::mac::key_space;
use radic_wire::peer::{FromHost, PeerMessage, ToHome, ToHost, ToSession, ToStore};
use radic_wire::process::{Protect, Protection};
use radic_wire::report::{RankInfo, Report};

use super::events::About;
use super::home::{Home, HomeOutput};
use super::host::{Crash, Host, HostOutput};
use super::phase::Phase;
use super::{Node, Output};

/// Bytes of output of all ended jobs that are kept for a later `radic attach`.
const OVER_BACKLOG: usize = 4 * limits::OUTPUT_BACKLOG;

impl Node {
    pub(super) fn with_home(&mut self, now: Duration, job: JobId, act: impl FnOnce(&mut Home)) {
        let Some(home) = self.homes.get_mut(&job) else { return };
        act(home);
        home.check_invariants();
        while let Some(output) = self.homes.get_mut(&job).and_then(Home::poll_output) {
            match output {
                HomeOutput::ToHost(node, message) => self.send(&node, PeerMessage::ToHost(job, message)),
                HomeOutput::ToSession(session, message) => {
                    let node = session.node.clone();
                    self.send(&node, PeerMessage::ToSession(session, message));
                }
                HomeOutput::Ended => self.handle_job_over(now, job),
                HomeOutput::Epoch(epoch) => self.tell_all(&PeerMessage::ToStore(job, ToStore::Anew(epoch))),
                HomeOutput::Frozen(session, suspension) => self.tell_frozen(now, session, suspension),
                HomeOutput::Anew(why) => {
                    self.record(now, EventName::Restart, About::job(job), format!("it restarts from its beginning: {why}"));
                }
            }
        }
    }

    pub(super) fn with_host(&mut self, now: Duration, job: JobId, act: impl FnOnce(&mut Host)) {
        let Some(host) = self.hosts.get_mut(&job) else { return };
        act(host);
        host.check_invariants();
        while let Some(output) = self.hosts.get_mut(&job).and_then(Host::poll_output) {
            match output {
                HostOutput::ToHome(_) if self.hosts.get(&job).is_some_and(Host::is_superseded) => {}
                HostOutput::ToHome(said) => {
                    let Some((home, epoch)) = self.hosts.get(&job).map(|h| (h.home().clone(), h.epoch())) else { return };
                    self.send(&home, PeerMessage::ToHome(job, ToHome::Host { epoch, said }));
                }
                HostOutput::Name(rank, request) => self.handle_name(now, job, rank, request),
                HostOutput::Warning(rank, text) => self.record(now, EventName::Refused, About::rank(job, rank), text),
                HostOutput::Note(rank, text) => {
                    self.record(now, EventName::Note, About::rank(job, rank), format!("rank {rank}: {text}"));
                }
                HostOutput::Lost(rank, Crash { signal, live }) => {
                    let text = format!("rank {rank} was ended by signal {signal}: it is brought back here");
                    self.record(now, EventName::Suspect, About::rank(job, rank), text);
                    let holder = self.holder_of(ProcessId { job, rank });
                    self.need_log(ProcessId { job, rank }, holder.clone());
                    if !self.is_member(&holder) {
                        self.tell_home_of_lost_log(ProcessId { job, rank });
                        continue;
                    }
                    self.send(&holder, PeerMessage::ToStore(job, ToStore::Restart { rank, signal: live.then_some(signal) }));
                }
                HostOutput::Unrestorable(rank, why, own) => self.handle_unrestorable(now, ProcessId { job, rank }, why, own),
                HostOutput::Left(rank) => self.handle_rank_left(now, ProcessId { job, rank }),
                HostOutput::Fenced => {
                    let Some(ward) = self.hosts.get(&job).filter(|h| h.protection().protect == Protect::On).map(Host::ward)
                    else {
                        continue;
                    };
                    let protector = self.protector().id.clone();
                    let keys = ToStore::Keys { fence: ward.fence, entries: ward.keys };
                    self.send(&protector, PeerMessage::ToStore(job, keys));
                }
                HostOutput::Frozen => self.tell_home_frozen(job),
                HostOutput::Over => {
                    self.forget_processes(job);
                    self.forget_incarnations(job);
                    let host = self.hosts.remove(&job).expect("it has just spoken");
                    if host.protection().protect == Protect::On && self.is_member(host.home()) {
                        self.keep_ends(job, host.epoch(), host.ends());
                    }
                    if host.protection().protect == Protect::On && host.restarts() {
                        self.keep_restart(job, host.epoch());
                    }
                    // Otherwise the home says so when all hosts are done. A host of an epoch that the job has left behind says
                    // nothing.
                    let nobody_else = !self.is_member(host.home()) && !host.is_superseded();
                    if host.protection().protect == Protect::On && nobody_else {
                        self.tell_all_removed(job);
                    }
                    self.names.retain(|_, (owner, _)| *owner != job);
                    self.outputs.push_back(Output::Process(job, HostOutput::Over));
                    return self.handle_postponed(now, job, host.home());
                }
                process => self.outputs.push_back(Output::Process(job, process)),
            }
        }
    }

    pub(super) fn handle_to_home(&mut self, now: Duration, from: &NodeId, job: JobId, message: ToHome) {
        match message {
            ToHome::Start { spec, placement, session } if !self.homes.contains_key(&job) => {
                let refusal = match spec.validate() {
                    Err(error) => Some(error.to_string()),
                    Ok(()) if !placement.is_valid(spec.ranks) || placement.home() != self.me() => Some("bad placement".into()),
                    Ok(()) if self.homes.len() - self.over.len() >= limits::JOBS => Some("too many jobs run already".into()),
                    Ok(()) => None,
                };
                match (refusal, session) {
                    (None, session) => self.start_job(now, job, *spec, placement, session),
                    (Some(_), Some(session)) => {
                        let node = session.node.clone();
                        self.send(&node, PeerMessage::ToSession(session, ToSession::NoSuchJob));
                    }
                    (Some(_), None) => {}
                }
            }
            ToHome::Resume { suspension, resumption, protectors, session } if !self.homes.contains_key(&job) => {
                self.resume_job(now, &suspension, &resumption, &protectors, session);
            }
            ToHome::Attach(session) | ToHome::Suspend(session) | ToHome::Kill { session: Some(session) }
                if !self.homes.contains_key(&job) =>
            {
                let node = session.node.clone();
                self.send(&node, PeerMessage::ToSession(session, ToSession::NoSuchJob));
            }
            message if self.handle_line_news(now, job, &message) => {}
            message => {
                let message = self.unless_at_end(job, message);
                let at_end = match message {
                    ToHome::Host { epoch, said: FromHost::AtEnd { rank, code, .. } } => Some((epoch, rank, code)),
                    _ => None,
                };
                self.with_home(now, job, |home| home.handle_message(now, from, message));
                if let Some((epoch, rank, code)) = at_end {
                    self.handle_rank_at_end(now, from, job, epoch, (rank, code));
                }
                self.freeze_at_rest(now, job);
            }
        }
    }

    fn start_job(
        &mut self,
        now: Duration,
        job: JobId,
        spec: radic_wire::job::JobSpec,
        placement: radic_wire::job::Placement,
        session: Option<radic_wire::peer::SessionId>,
    ) {
        let nodes: Vec<_> = placement.nodes.iter().map(|n| n.name.as_str()).collect();
        let text = format!("{} ranks of {} on {}", spec.ranks, spec.command_line(), nodes.join(", "));
        self.record(now, EventName::JobStart, About::job(job), text);
        let absent: Vec<_> = placement.nodes.iter().filter(|n| !self.is_member(n)).cloned().collect();
        let started_ms = self.config.wall_us / 1000 + now.as_millis() as u64;
        self.add_home(job, Home::start(now, started_ms, job, self.seat(), spec, placement, session));
        self.with_home(now, job, |_| ());
        for node in absent {
            self.with_home(now, job, |home| home.handle_node_lost(now, &node, "it was gone before the job started"));
        }
    }

    fn handle_job_over(&mut self, now: Duration, job: JobId) {
        let Some(Outcome { code, reason }) = self.homes.get(&job).and_then(|h| h.outcome()).cloned() else { return };
        self.record(now, EventName::JobEnd, About::job(job), format!("code {code}: {}", describe(&reason)));
        self.over.push_back(job);
        if let Some(remove) = self.word_of_end(job) {
            self.tell_all(&remove);
        }
        let backlog = |node: &Node| node.over.iter().filter_map(|job| node.homes.get(job)).map(Home::backlog).sum::<usize>();
        while self.over.len() > limits::FINISHED_JOBS || (self.over.len() > 1 && backlog(self) > OVER_BACKLOG) {
            let oldest = self.over.pop_front().expect("more than one");
            self.homes.remove(&oldest);
        }
    }

    /// What a home tells all members when its job is over: nothing is to be kept of it. None if the job is not protected.
    fn word_of_end(&self, job: JobId) -> Option<PeerMessage> {
        let home = self.homes.get(&job).filter(|home| home.protection().protect == Protect::On)?;
        Some(PeerMessage::ToStore(job, ToStore::Remove(home.last_word().cloned())))
    }

    /// These nodes were no members when homes here told all members that jobs are over. A protector that is cut off from here,
    /// and has not heard it, may give them copies, which would stay there. Suspended jobs are left out: such a job may be about
    /// to be resumed, and would be taken for over by a node that hears this later.
    pub(super) fn tell_ends(&mut self, joined: &[NodeId]) {
        let is_suspended = |home: &Home| home.outcome().is_some_and(|outcome| outcome.reason == EndReason::Suspended);
        let over = self.over.iter().filter(|job| !self.homes.get(job).is_some_and(is_suspended));
        let words: Vec<_> = over.filter_map(|job| self.word_of_end(*job)).collect();
        for node in joined {
            words.iter().for_each(|word| self.send(node, word.clone()));
        }
    }

    pub(super) fn handle_to_host(&mut self, now: Duration, from: &NodeId, job: JobId, message: ToHost) {
        match message {
            ToHost::MakeLine { epoch, line, ranks } => self.handle_make_line(now, from, job, (epoch, line), &ranks),
            ToHost::MakeRoom { epoch, room } => self.handle_make_room(job, epoch, room),
            ToHost::LetGo(epoch) => self.handle_let_go(now, job, epoch),
            ToHost::Launch { epoch, spec, placement } => {
                if self.hosts.get(&job).is_some_and(|host| host.epoch() < epoch) {
                    let launch = ToHost::Launch { epoch, spec, placement };
                    return self.supersede(now, job, from, PeerMessage::ToHost(job, launch));
                }
                let good = spec.validate().is_ok() && placement.is_valid(spec.ranks) && placement.home() == from;
                if !good || self.phase == Phase::Stopped {
                    return;
                }
                self.forget_restart(job);
                let (me, environment) = (self.me().clone(), &self.config.environment);
                if let Some(host) = self.hosts.get_mut(&job).filter(|host| host.epoch() == epoch) {
                    host.launch_ranks(&me, environment, &placement);
                } else if !self.hosts.contains_key(&job) {
                    let space = key_space(&self.config.key, job, epoch);
                    let host = Host::launch(&me, environment, (job, epoch, space), &spec, placement);
                    self.forget_ends(job);
                    self.hosts.insert(job, host);
                }
                self.seek_protection(now, Some(job));
                self.with_host(now, job, |_| ());
            }
            // The message is for the next epoch, which begins here when the host of the epoch before is gone. That host would
            // take it for its own.
            message if self.hosts.get(&job).is_some_and(Host::is_superseded) => {
                self.postpone(job, from, PeerMessage::ToHost(job, message));
            }
            message if self.hosts.get(&job).is_some_and(|h| h.home() == from) => {
                self.with_host(now, job, |host| host.handle_message(now, message));
            }
            // The home wants the job ended, and nothing of it is here.
            ToHost::End { epoch, restarts, .. } if !self.hosts.contains_key(&job) => {
                if restarts {
                    // An order to bring a rank of that epoch back may be under way. It must be refused, because it would be in
                    // the way of the next epoch.
                    self.keep_restart(job, epoch);
                }
                self.send(from, PeerMessage::ToHome(job, ToHome::Host { epoch, said: FromHost::Gone }));
            }
            // This node has not heard yet that the sender is the home. The home repeats what matters when it has the report of
            // what is here. To answer now that nothing is here would let it restart the job beside what is.
            _ => {}
        }
    }

    /// The job has restarted, and a process of an earlier epoch came to this node when its home took the node for empty.
    /// `message` is handled when that process has ended.
    pub(super) fn supersede(&mut self, now: Duration, job: JobId, from: &NodeId, message: PeerMessage) {
        self.postpone(job, from, message);
        self.with_host(now, job, |host| host.supersede(now));
    }

    /// A node is gone, or out of reach: jobs that have ranks there and are not protected end. Protected ones have a new placement
    /// already.
    pub(super) fn jobs_lose_node(&mut self, now: Duration, node: &NodeId, why: &str) {
        let protected = |protection: &Protection| protection.protect == Protect::On;
        let homes = self.homes.iter().filter(|(_, home)| !protected(home.protection()));
        let homes: Vec<_> = homes.map(|(job, _)| *job).collect();
        homes.into_iter().for_each(|job| self.with_home(now, job, |home| home.handle_node_lost(now, node, why)));
        // A job without protection cannot go on without its home. If its home is there, the home decides.
        let orphans = self.hosts.iter().filter(|(_, host)| host.home() == node && !protected(host.protection()));
        let orphans: Vec<_> = orphans.map(|(job, _)| *job).collect();
        orphans.into_iter().for_each(|job| self.with_host(now, job, |host| host.abandon(now)));
    }

    pub(super) fn report(&self, now: Duration) -> Report {
        let ranks = self.hosts.values().flat_map(|h| h.running().map(|(rank, pid)| RankInfo { job: h.job(), rank, pid }));
        let jobs = self.homes.values().map(|h| h.info(now)).collect();
        let (processes, memory) = (self.process_infos(), (self.config.memory)());
        Report { ranks: ranks.collect(), processes, jobs, memory, pid: std::process::id() }
    }

    /// Whether the home of a job is here, and has decided how the job ends.
    pub fn has_decided_end(&self, job: JobId) -> bool {
        self.homes.get(&job).is_some_and(Home::has_decided_end)
    }

    /// The epoch of a job that has begun on this node, if the node hosts ranks of it.
    pub fn epoch_here(&self, job: JobId) -> Option<Epoch> {
        self.hosts.get(&job).map(Host::epoch)
    }

    /// The epoch of a job whose home is here and has not ended it.
    pub fn epoch_at_home(&self, job: JobId) -> Option<Epoch> {
        self.homes.get(&job).filter(|home| !home.is_over()).map(Home::epoch)
    }

    /// Output that the home of a job, if it is here, keeps and no host keeps any more: the ranks, streams and bytes.
    pub fn kept_output(&self, job: JobId) -> Vec<(Rank, OutputStream, std::ops::Range<u64>)> {
        self.homes.get(&job).map_or_else(Vec::new, |home| home.kept().collect())
    }

    /// The processes that run on this node, for the driver's last action.
    pub fn processes(&self) -> Vec<ProcessId> {
        let of = |h: &Host| h.running().map(|(rank, _)| ProcessId { job: h.job(), rank }).collect::<Vec<_>>();
        self.hosts.values().flat_map(of).collect()
    }
}

/// The reason in a few words, for the event log.
fn describe(reason: &EndReason) -> String {
    match reason {
        EndReason::Finished => "every rank finished".into(),
        EndReason::RankFailed { rank, node, status } => format!("rank {rank} on {node} {status}"),
        EndReason::Aborted { rank, code, .. } => format!("rank {rank} called MPI_Abort({code})"),
        EndReason::NotFinalized { rank, node } => format!("rank {rank} on {node} exited without MPI_Finalize"),
        EndReason::NodeLost { node, ranks, why } => format!("{node} with {} ranks: {why}", ranks.len()),
        EndReason::RankLost { rank, node, why } => format!("rank {rank} on {node} cannot go on: {why}"),
        EndReason::LaunchFailed { rank, node, error, .. } => format!("rank {rank} could not be started on {node}: {error}"),
        EndReason::Killed => "killed".into(),
        EndReason::Suspended => "suspended".into(),
        EndReason::FenceMissed { rank, node, waiting } => {
            format!("rank {rank} on {node} exited without MPI_Init, for which {} ranks wait there", waiting.len())
        }
    }
}
