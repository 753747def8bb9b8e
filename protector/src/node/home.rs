//! A job at its home, the node of rank 0: which ranks run and which wait in a fence, what was printed, how the job ends.

mod fence;
mod losses;
mod relay;
mod suspending;
mod terminal;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use radic_wire::determinant::StreamId;
use radic_wire::ids::{Epoch, Incarnation, JobId, NodeId, Rank, Seat};
use radic_wire::job::{EndReason, ExitStatus, JobInfo, JobSpec, OnLoss, Outcome, OutputStream, Placement, Ward, exit_code};
use radic_wire::peer::{Adoption, Crashed, FromHost, HostReport, SessionId, StdinWanted, ToHome, ToHost, ToSession, Unprotected};
use radic_wire::process::{PayloadMode, Protect, Protection, StreamEnd};
use radic_wire::suspension::Suspension;

use self::relay::{Piece, Relay};
use self::suspending::{Stage, Suspending};
use super::fences::Fences;
use super::finals::Finals;
use super::stdin::Stdin;

/// A job may have this many epochs. One that goes on losing ranks before their first checkpoint will not get further. A home that
/// was adopted skips one number.
const RESTARTS: u32 = 16;

/// Why an adopted home restarts a job from the beginning: the home before had done so, or was about to.
const BEGUN: &str = "its home was lost while the job restarted from its beginning";

/// A rank may crash this often before its first checkpoint without being taken for faulty; the job restarts from the beginning
/// each time.
const EARLY_CRASHES: u32 = 1;

/// What a home wants done.
#[derive(Debug)]
pub enum HomeOutput {
    /// Tell a host.
    ToHost(NodeId, ToHost),
    /// Tell the node of a terminal.
    ToSession(SessionId, ToSession),
    /// The job has ended and no host has anything of it left.
    Ended,
    /// The job restarts from the beginning, and why.
    Anew(String),
    /// Nothing is left of the job's epochs before this one.
    Epoch(Epoch),
    /// Tell the node of a terminal that all ranks are stopped. The key space is missing: the host on this node has it.
    Frozen(SessionId, Box<Suspension>),
}

#[derive(Debug, Default)]
struct HostState {
    /// Nothing of the job is left there.
    gone: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RankState {
    Starting,
    Running,
    Ended,
}

/// What a home does with its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The job runs.
    Running,
    /// The job restarts from the beginning as soon as every host has ended what it had of it.
    Restarting,
    /// The job ends: its hosts were told to end what they have.
    Ending,
    /// The job has ended, and no host has anything of it left.
    Over {
        /// When that was.
        at: Duration,
    },
}

/// Whether the home's side of the cluster may decide anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Deciding,
    /// It has no majority: another side may have one, and may have begun the job anew.
    Frozen,
}

/// A job at its home.
#[derive(Debug)]
pub struct Home {
    job: JobId,
    spec: JobSpec,
    placement: Placement,
    /// The job's present epoch.
    epoch: Epoch,
    /// What makes this home's epochs unique.
    seat: Seat,
    phase: Phase,
    side: Side,
    /// Another home had the job before, and may have restarted it.
    adopted: bool,
    /// What the terminal was told of that is not protected.
    unprotected_told: BTreeSet<Unprotected>,
    /// For a job that was suspended: the addresses of the nodes where its ranks were first launched. These may still be members
    /// while the ranks are elsewhere.
    origins: Vec<IpAddr>,
    /// How often each rank has crashed before its first checkpoint.
    early_crashes: BTreeMap<Rank, u32>,
    /// Ranks that have no process anywhere, as far as this home knows: their node is lost, and they are not back.
    lost: BTreeSet<Rank>,
    /// Where the streams of ended ranks end. A peer that goes back needs it when the nodes and protectors of those ranks are
    /// lost.
    finals: Finals,
    /// Hosts that have not yet reported their ranks to this new home.
    unreported: BTreeSet<NodeId>,
    /// What nodes say of ranks that this home does not place there. Such a node knows of a loss that this home has not heard of,
    /// and has brought the ranks back. Bounded by what a host keeps of output that is not taken.
    early: Vec<(NodeId, Epoch, FromHost)>,
    started: Duration,
    started_ms: u64,
    ranks: Vec<RankState>,
    hosts: BTreeMap<NodeId, HostState>,
    fences: Fences,
    relay: Relay,
    stdin: Stdin,
    /// Sessions that only wait for the end (`radic kill`).
    waiters: BTreeSet<SessionId>,
    /// Set once, by the first reason to end.
    outcome: Option<Outcome>,
    suspending: Option<Suspending>,
    /// For each rank of a resumed job that is not back yet: the protector that is to bring it back.
    protectors: BTreeMap<Rank, NodeId>,
    outputs: VecDeque<HomeOutput>,
}

impl Home {
    /// Starts a job. `started_ms` is the wall clock, in milliseconds since 1970.
    ///
    /// # Panics
    /// If the placement does not fit the job: its sender and the caller have both checked it.
    pub fn start(
        now: Duration,
        started_ms: u64,
        job: JobId,
        seat: Seat,
        spec: JobSpec,
        placement: Placement,
        terminal: Option<SessionId>,
    ) -> Self {
        assert!(placement.is_valid(spec.ranks), "the caller has validated the placement");
        let ward = Ward { epoch: Epoch::FIRST, spec, placement, fence: 0, keys: Vec::new() };
        let mut home = Home::new(now, started_ms, job, seat, ward);
        if let Some(session) = terminal {
            home.attach(session);
        }
        home.launch();
        home
    }

    /// The new home of a job whose home is lost. Its hosts are going to report.
    pub fn adopt(now: Duration, seat: Seat, adoption: Adoption) -> Self {
        let Adoption { job, ward, started_ms, view } = adoption;
        let seat = Seat { view: seat.view.max(view), ..seat };
        let mut home = Home::new(now, started_ms, job, seat, ward);
        // The hosts report which fences were released, with their keys.
        home.fences = Fences::default();
        home.ranks.fill(RankState::Running);
        home.stdin.wanted = StdinWanted::Nothing; // Rank 0 was on the lost node.
        home.lost = (0..home.spec.ranks).map(Rank).collect();
        home.unreported = home.hosts.keys().cloned().collect();
        home.adopted = true;
        home
    }

    /// Another node also asks this node to be the home of the job.
    pub fn handle_adoption(&mut self, adoption: &Adoption) {
        self.started_ms = self.started_ms.min(adoption.started_ms);
        self.seat.view = self.seat.view.max(adoption.view);
        self.learn_epoch(adoption.ward.epoch, None);
    }

    /// A node that heard the home before says that the job is over: this home was adopted for nothing.
    pub fn handle_removed(&mut self, now: Duration, outcome: Option<Outcome>) {
        if self.is_over() {
            return;
        }
        let unknown = || {
            let why = "the job had ended when its home was lost, and how is not known".to_owned();
            let node = self.placement.home().name.clone();
            Outcome { code: exit_code::NODE_LOST, reason: EndReason::NodeLost { node, ranks: Vec::new(), why } }
        };
        self.outcome = Some(outcome.unwrap_or_else(unknown));
        self.phase = Phase::Ending;
        self.unreported.clear();
        self.ranks.fill(RankState::Ended);
        self.tell_hosts(&ToHost::End { epoch: self.epoch, kill: true, restarts: false, written: false });
        // No host will report its end: the hosts were gone when the job ended. A process that has come back since belongs to an
        // earlier epoch and is ended by its node (`Host::supersede`).
        self.hosts.values_mut().for_each(|host| host.gone = true);
        self.pump();
        self.check_end(now);
    }

    /// Whether a rank has ended and was not ended by a loss.
    pub fn has_ended(&self, rank: Rank) -> bool {
        self.is_over() || self.ranks.get(rank.0 as usize) == Some(&RankState::Ended)
    }

    /// Whether it is decided how the job ends.
    pub fn has_decided_end(&self) -> bool {
        self.outcome.is_some()
    }

    /// Whether a rank has ended for good: nothing brings it back. A job that was resumed may end before its ranks are back. They
    /// count as ended then, and a protector's order may be under way.
    pub fn has_left(&self, rank: Rank) -> bool {
        let is_away = self.lost.contains(&rank) || self.protectors.contains_key(&rank);
        self.has_ended(rank) && !self.is_restarting() && !is_away
    }

    /// Where a stream ends whose sender has ended.
    pub fn final_of(&self, stream: StreamId, sender: Rank) -> Option<StreamEnd> {
        self.finals.get(stream, sender)
    }

    /// How the job has ended, if it has ended and no written byte waits for a terminal.
    pub fn last_word(&self) -> Option<&Outcome> {
        self.outcome.as_ref().filter(|_| self.is_over() && self.relay.is_printed())
    }

    /// A job that was suspended goes on, with a new placement. The protectors bring its ranks back.
    pub fn resume(
        now: Duration,
        seat: Seat,
        suspension: &Suspension,
        protectors: BTreeMap<Rank, NodeId>,
        session: SessionId,
    ) -> Self {
        let Suspension { job, ref ward, started_ms, ref output, .. } = *suspension;
        let mut home = Home::new(now, started_ms, job, seat, ward.clone());
        for (offsets, rank) in output.iter().zip((0..).map(Rank)) {
            for (offset, stream) in offsets.iter().zip([OutputStream::Stdout, OutputStream::Stderr]) {
                home.relay.resume(rank, stream, *offset);
            }
        }
        home.protectors = protectors;
        home.origins = suspension.origins.clone();
        home.stdin.wanted = StdinWanted::Nothing; // Rank 0 says how much it has read when it is back.
        home.attach(session);
        home
    }

    fn new(now: Duration, started_ms: u64, job: JobId, seat: Seat, ward: Ward) -> Self {
        let Ward { epoch, spec, placement, fence, keys } = ward;
        Home {
            job,
            epoch,
            seat,
            phase: Phase::Running,
            side: Side::Deciding,
            adopted: false,
            unprotected_told: BTreeSet::new(),
            origins: Vec::new(),
            early_crashes: BTreeMap::new(),
            finals: Finals::default(),
            lost: BTreeSet::new(),
            unreported: BTreeSet::new(),
            early: Vec::new(),
            started: now,
            started_ms,
            ranks: vec![RankState::Starting; spec.ranks as usize],
            hosts: placement.nodes.iter().map(|n| (n.clone(), HostState::default())).collect(),
            fences: Fences::new(fence, keys),
            relay: Relay::default(),
            stdin: Stdin::new(StdinWanted::From(0)),
            waiters: BTreeSet::new(),
            outcome: None,
            suspending: None,
            protectors: BTreeMap::new(),
            outputs: VecDeque::new(),
            spec,
            placement,
        }
    }

    fn launch(&mut self) {
        for node in self.placement.nodes.clone() {
            let (spec, placement) = (Box::new(self.spec.clone()), self.placement.clone());
            self.tell_host(node, ToHost::Launch { epoch: self.epoch, spec, placement });
        }
    }

    /// How the job ended or is about to end.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Whether nothing of the job is left on any host.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over { .. })
    }

    fn ended(&self) -> Option<Duration> {
        if let Phase::Over { at } = self.phase { Some(at) } else { None }
    }

    /// Whether the hosts were told to end.
    fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending | Phase::Over { .. })
    }

    /// Whether the job restarts from the beginning, and its hosts have not all ended what they had of it.
    fn is_restarting(&self) -> bool {
        self.phase == Phase::Restarting
    }

    /// Panics if the parts of the home contradict each other. For its driver, after each input.
    pub fn check_invariants(&self) {
        let is_written = self.suspending.as_ref().is_some_and(|suspending| matches!(suspending.stage, Stage::Written));
        match self.phase {
            Phase::Running => assert!(!is_written, "it is written down, and runs"),
            Phase::Restarting => {
                assert!(self.suspending.is_none() && self.early.is_empty(), "it restarts, and keeps what is of the last epoch");
            }
            Phase::Ending => assert!(self.outcome.is_some(), "it ends without an outcome"),
            Phase::Over { .. } => {
                let has_ended = self.ranks.iter().all(|rank| *rank == RankState::Ended);
                assert!(self.outcome.is_some() && has_ended, "it is over, and a rank has not ended, or it has no outcome");
            }
        }
        let stranger = self.unreported.iter().find(|node| !self.hosts.contains_key(*node));
        assert!(stranger.is_none(), "{stranger:?} is to report, and hosts nothing of it");
        self.relay.check_invariants();
    }

    /// The job's command line.
    pub fn command(&self) -> String {
        self.spec.command_line()
    }

    /// What runs.
    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// How its processes are protected.
    pub fn protection(&self) -> &Protection {
        &self.spec.protection
    }

    /// What the waiting output costs to keep, in bytes.
    pub fn backlog(&self) -> usize {
        self.relay.backlog()
    }

    /// Output that waits for a terminal and that hosts need not keep any more.
    pub fn kept(&self) -> impl Iterator<Item = (Rank, OutputStream, std::ops::Range<u64>)> + '_ {
        self.relay.kept()
    }

    /// The first incarnation of the job's present epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Where its ranks are.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Ranks whose node is lost and that are not back, as far as this home knows. Some may have ended before the loss.
    pub fn away(&self) -> impl Iterator<Item = Rank> + '_ {
        self.lost.iter().copied().filter(|_| !self.is_over())
    }

    /// The job.
    pub fn job(&self) -> JobId {
        self.job
    }

    /// Whether images of its ranks are made in recovery lines.
    pub fn has_lines(&self) -> bool {
        let protection = &self.spec.protection;
        protection.protect == Protect::On && protection.payload == PayloadMode::Sender
    }

    /// The ranks whose images make a recovery line; none while the job ends, or its ranks are stopped.
    pub fn ranks_of_lines(&self) -> BTreeSet<Rank> {
        let is_stopped = self.suspending.is_some() && !self.waits_for_line();
        if self.phase != Phase::Running || is_stopped {
            return BTreeSet::new();
        }
        (0..self.spec.ranks).map(Rank).filter(|rank| !self.has_ended(*rank)).collect()
    }

    /// Whether another home had the job before.
    pub fn is_adopted(&self) -> bool {
        self.adopted
    }

    /// The address of the node where a rank was first launched, if the job was resumed.
    pub fn origin_of(&self, rank: Rank) -> Option<IpAddr> {
        self.origins.get(rank.0 as usize).copied()
    }

    /// A rank had ended before its node was lost, and no node is left that could bring it back.
    pub fn handle_left_for_good(&mut self, rank: Rank) {
        self.lost.remove(&rank);
    }

    /// Ranks that ran, are lost and are not back, as far as this home knows.
    pub fn lost(&self) -> impl Iterator<Item = Rank> + '_ {
        self.away().filter(|rank| self.ranks[rank.0 as usize] != RankState::Ended)
    }

    /// The job as `radic jobs` shows it.
    pub fn info(&self, now: Duration) -> JobInfo {
        JobInfo {
            job: self.job,
            command: self.command(),
            ranks: self.spec.ranks,
            running: self.ranks.iter().filter(|r| **r != RankState::Ended).count() as u32,
            degraded: self.lost().collect(),
            nodes: self.placement.nodes.iter().map(|n| n.name.clone()).collect(),
            home: self.placement.home().name.clone(),
            started_ms: self.started_ms,
            elapsed_ms: (self.ended().unwrap_or(now) - self.started).as_millis() as u64,
            payload: self.spec.protection.payload,
            outcome: if self.is_over() { self.outcome.clone() } else { None },
        }
    }

    /// What the home wants done next.
    pub fn poll_output(&mut self) -> Option<HomeOutput> {
        self.outputs.pop_front()
    }

    /// A message about the job. `from` has been authenticated as a member; what it says is checked against the placement.
    pub fn handle_message(&mut self, now: Duration, from: &NodeId, message: ToHome) {
        match message {
            ToHome::Start { .. } | ToHome::Resume { .. } => {} // A repetition: the job is here.
            ToHome::Suspend(session) => self.suspend(session),
            ToHome::EndSuspended(session) => self.end_suspended(&session),
            ToHome::Attach(session) => self.attach(session),
            ToHome::Detach(session) => self.detach(&session),
            ToHome::SuspenderHangs(session) => self.handle_suspender_hangs(&session),
            ToHome::Printed { session, bytes } => self.handle_printed(&session, bytes),
            ToHome::Stdin { session, offset, data } => self.handle_stdin(session, offset, data),
            ToHome::Signal(signal) => self.tell_hosts(&ToHost::Signal(signal)),
            ToHome::Kill { session } => self.kill(session),
            ToHome::Host { epoch, said } => self.handle_host(now, from, epoch, said),
            ToHome::NoImage { rank, incarnation: Incarnation { epoch, .. }, why, crash }
                if self.knows(rank) && epoch >= self.epoch =>
            {
                self.learn_epoch(epoch, Some(rank));
                self.restart_job(rank, &why, crash);
            }
            ToHome::Lost { rank, incarnation, why } if self.knows(rank) && incarnation.epoch >= self.epoch => {
                self.lose(rank, from, why)
            }
            // A rank that ended before the restart has not ended in the new epoch: peers would take what they send to its next
            // incarnation for unwanted.
            ToHome::Left { rank, node, epoch, status, phase }
                if self.knows(rank) && !self.is_restarting() && epoch == self.epoch =>
            {
                self.handle_left(rank, node, status, phase);
            }
            ToHome::Finals { rank, epoch, finals } if self.knows(rank) && !self.is_restarting() && epoch == self.epoch => {
                self.finals.keep(rank, finals);
            }
            // What is said of a rank outside the job, or of another epoch, is ignored.
            _ => {}
        }
        self.check_end(now);
    }

    /// A host speaks of its ranks in this epoch. A message of an earlier epoch may still be under way when the next one has
    /// begun: from a node that was to bring a rank back while this home took that node for empty.
    fn handle_host(&mut self, now: Duration, from: &NodeId, epoch: Epoch, said: FromHost) {
        if said != FromHost::Gone && epoch == self.epoch {
            self.learn_host(from);
        }
        match said {
            FromHost::Report(report) => self.handle_report(from, epoch, report),
            // The host ends its ranks, in whatever epoch: nothing is left there.
            FromHost::Gone if epoch >= self.epoch || self.phase != Phase::Running => self.handle_gone(now, from, epoch),
            // This host knows the new home but has not reported to it yet. Its report brings all unprinted output once more, from
            // the first byte on. Output taken before the report would make that beginning look printed.
            FromHost::Output { .. } if self.unreported.contains(from) => {}
            // The host waits until its output is taken. The next epoch writes it once more.
            FromHost::Output { rank, stream, offset, data }
                if self.is_restarting() && self.placement.node_of(rank) == Some(from) =>
            {
                self.tell_taken(rank, stream, offset + data.len() as u64);
            }
            _ if epoch != self.epoch => {}
            FromHost::Frozen(result) => self.handle_frozen(from, result),
            FromHost::StdinTaken(number) if from == self.placement.home() => self.handle_stdin_taken(number),
            FromHost::StdinWanted(wanted) if from == self.placement.home() => self.restart_stdin(wanted),
            FromHost::Fence { number, ranks, entries } => self.handle_fence(from, number, ranks, entries),
            FromHost::Unprotected { kind, text } => self.handle_unprotected(kind, text),
            FromHost::Lost { rank, why } if self.knows(rank) => self.lose(rank, from, why),
            FromHost::NotEnded { rank, why } if self.knows(rank) => self.handle_not_ended(rank, from, why),
            FromHost::Kept { rank, what } if self.knows(rank) => self.tell_terminal(format!("rank {rank} on {from}: {what}")),
            FromHost::Launched { rank, .. }
            | FromHost::LaunchFailed { rank, .. }
            | FromHost::Output { rank, .. }
            | FromHost::Exited { rank, .. }
            | FromHost::AtEnd { rank, .. }
            | FromHost::Aborted { rank, .. }
                if self.knows(rank) && !self.is_restarting() =>
            {
                if self.placement.node_of(rank) == Some(from) {
                    self.handle_rank(from, rank, said);
                } else if self.is_protected() && !self.is_over() {
                    self.early.push((from.clone(), epoch, said));
                }
            }
            // A host that speaks for ranks it does not have is ignored.
            _ => {}
        }
    }

    /// A node has processes of the job, and the home did not know it as a host. If no rank was to come back there, it is printing
    /// again the output of a rank that had ended and whose node is lost. It must hear what is taken, and when the job ends or
    /// restarts.
    fn learn_host(&mut self, node: &NodeId) {
        if self.is_over() || self.hosts.contains_key(node) || self.placement.ranks_on(node).next().is_none() {
            return;
        }
        self.hosts.insert(node.clone(), HostState::default());
        if self.phase != Phase::Running {
            self.tell_host(node.clone(), self.end_message());
        }
    }

    fn handle_rank(&mut self, from: &NodeId, rank: Rank, said: FromHost) {
        self.lost.remove(&rank); // The host speaks of the rank, so the rank is there.
        let state = &mut self.ranks[rank.0 as usize];
        let node = from.name.clone();
        match said {
            FromHost::Launched { .. } if *state == RankState::Starting => {
                *state = RankState::Running;
                self.protectors.remove(&rank);
            }
            FromHost::LaunchFailed { error, code, .. } => {
                *state = RankState::Ended;
                self.end(Outcome { code, reason: EndReason::LaunchFailed { rank, node, error, code } });
            }
            FromHost::Output { stream, offset, data, .. } => {
                self.handle_output(node, Piece::new(rank, stream, offset, data));
            }
            FromHost::Exited { status, phase, .. } => {
                *state = RankState::Ended;
                self.end_output(rank);
                self.handle_exit(rank, node, status, phase);
            }
            FromHost::Aborted { code, message, .. } => {
                // A shell sees the low eight bits. An abort whose low bits are 0 must not look like success.
                let shown = if code & 0xff == 0 { 1 } else { code };
                self.end(Outcome { code: shown, reason: EndReason::Aborted { rank, code, message } });
            }
            _ => {}
        }
    }

    fn knows(&self, rank: Rank) -> bool {
        rank.0 < self.spec.ranks
    }

    fn is_protected(&self) -> bool {
        self.spec.protection.protect == Protect::On
    }

    /// A host tells a new home of its ranks.
    fn handle_report(&mut self, from: &NodeId, epoch: Epoch, report: HostReport) {
        let (is_first, ends) = (self.unreported.remove(from), self.phase != Phase::Running);
        let rank = self.placement.ranks_on(from).next();
        self.learn_epoch(epoch, rank);
        if is_first && epoch != self.epoch || report.restarts && epoch >= self.epoch {
            // The hosts were about to end the job for a restart: ranks that ended for that have not failed. A node without any
            // rank of the job reports as well, because it refuses all orders of that epoch from now on.
            self.restart_job(rank.unwrap_or(Rank(0)), BEGUN, None);
        }
        if ends {
            // The host may not have known this home when it was told to end. Or a rank has come back there since it was gone.
            if self.phase == Phase::Ending && self.placement.nodes.contains(from) {
                self.hosts.entry(from.clone()).or_default().gone = false;
            }
            self.tell_host(from.clone(), self.end_message());
        }
        if epoch != self.epoch || self.is_restarting() {
            return;
        }
        self.learn_fence(report.fence, report.keys);
        if !report.waiting.is_empty() {
            self.handle_fence(from, report.fence + 1, report.waiting, Vec::new());
        }
        if self.stdin.wanted == StdinWanted::Nothing && from == self.placement.home() {
            self.restart_stdin(report.stdin);
        }
        if !is_first {
            return;
        }
        report.running.iter().for_each(|rank| _ = self.lost.remove(rank));
        for (rank, status, phase) in report.ended {
            if self.placement.node_of(rank) == Some(from) {
                self.ranks[rank.0 as usize] = RankState::Ended;
                self.end_output(rank);
                self.handle_exit(rank, from.name.clone(), status, phase);
            }
        }
    }

    /// The home before had restarted the job, and was lost. No process may have an incarnation of that epoch again: some may
    /// still run behind a cut (G4).
    fn learn_epoch(&mut self, epoch: Epoch, rank: Option<Rank>) {
        if epoch > self.epoch && !self.is_ending() {
            self.epoch = epoch;
            self.restart_job(rank.unwrap_or(Rank(0)), BEGUN, None);
        }
    }

    /// A rank has no checkpoint to come back from: the job restarts from the beginning.
    fn restart_job(&mut self, rank: Rank, why: &str, crash: Option<Crashed>) {
        if self.phase != Phase::Running {
            return;
        }
        if let Some(Crashed { node, signal }) = crash {
            let crashes = self.early_crashes.entry(rank).or_default();
            *crashes += 1;
            if *crashes > EARLY_CRASHES {
                let status = ExitStatus::Signal(signal);
                self.ranks[rank.0 as usize] = RankState::Ended;
                return self.end(Outcome { code: status.shell_code(), reason: EndReason::RankFailed { rank, node, status } });
            }
        }
        let stays = match self.spec.on_loss {
            OnLoss::Fail => Some("it was asked not to restart from its beginning (--on-loss fail)".to_owned()),
            OnLoss::Restart if self.epoch.count >= RESTARTS => {
                Some("the job has restarted from its beginning too often already".to_owned())
            }
            OnLoss::Restart => None,
        };
        if let Some(stays) = stays {
            let node = self.placement.node_of(rank).expect("it knows the rank").name.clone();
            let again = if self.was_resumed() { "; its folder can be resumed again" } else { "" };
            return self.lose_with(rank, node, format!("{why}; {stays}{again}"));
        }
        self.thaw("it restarts from its beginning");
        self.phase = Phase::Restarting;
        self.early.clear();
        self.finals = Finals::default();
        self.tell_of_restart(format!("rank {rank}: {why}"));
        self.tell_hosts(&self.end_message());
        self.pump();
        self.launch_next_epoch();
    }

    /// Launches the next epoch when nothing of the last one is left.
    fn launch_next_epoch(&mut self) {
        if !self.is_restarting() || self.hosts.values().any(|host| !host.gone) {
            return;
        }
        self.phase = Phase::Running;
        self.adopted = false;
        // The home before may have launched an epoch that no node on this side of a cut has heard of. The seat makes this one
        // different, so its processes are never taken for those of the other when the cut heals (G4).
        self.epoch = self.epoch.next(self.seat);
        self.fences = Fences::default();
        self.unreported.clear();
        self.lost.clear();
        self.origins.clear();
        self.ranks.fill(RankState::Starting);
        self.restart_stdin(StdinWanted::From(0));
        self.hosts = self.placement.nodes.iter().map(|n| (n.clone(), HostState::default())).collect();
        self.outputs.push_back(HomeOutput::Epoch(self.epoch));
        self.launch();
    }

    /// The first reason to end decides; every rank that still runs is ended.
    fn end(&mut self, outcome: Outcome) {
        self.thaw("it has ended");
        self.outcome.get_or_insert(outcome);
        if self.is_restarting() {
            self.phase = Phase::Running;
            // Hosts that have already ended what they had of the last epoch do not say so again, nor do they report to a home
            // that was adopted: waiting for them would never end.
            for (node, _) in self.hosts.iter().filter(|(_, host)| host.gone) {
                self.unreported.remove(node);
                self.placement.ranks_on(node).for_each(|rank| self.ranks[rank.0 as usize] = RankState::Ended);
            }
        }
        if self.phase == Phase::Running {
            self.phase = Phase::Ending;
            self.tell_hosts(&self.end_message());
            self.pump();
        }
    }

    fn kill(&mut self, session: Option<SessionId>) {
        match (self.outcome.clone().filter(|_| self.is_over()), session) {
            (Some(outcome), Some(session)) => return self.tell_session(session, ToSession::Ended(outcome)),
            (Some(_), None) => return,
            (None, session) => self.waiters.extend(session),
        }
        self.end(Outcome { code: 128 + 9, reason: EndReason::Killed });
    }

    fn check_end(&mut self, now: Duration) {
        let waits = self.is_restarting() || !self.unreported.is_empty() || self.waits_for_majority();
        if self.is_over() || waits || self.ranks.iter().any(|r| *r != RankState::Ended) {
            return;
        }
        self.end(Outcome { code: 0, reason: EndReason::Finished });
        if self.hosts.values().all(|h| h.gone) {
            self.phase = Phase::Over { at: now };
            for session in std::mem::take(&mut self.waiters) {
                let outcome = self.outcome.clone().expect("set above");
                self.tell_session(session, ToSession::Ended(outcome));
            }
            self.pump();
            // A node that hears `Ended` forgets the job, so the terminals are told first.
            self.outputs.push_back(HomeOutput::Ended);
        }
    }

    /// Whether ranks that end do not end the job: where the nodes have not agreed on its end, as they do with recovery lines, a side
    /// with a majority may have begun it anew.
    fn waits_for_majority(&self) -> bool {
        self.side == Side::Frozen && self.phase == Phase::Running && self.is_protected() && !self.has_lines()
    }

    /// This side of the cluster has no majority.
    pub fn handle_majority_lost(&mut self) {
        self.side = Side::Frozen;
    }

    /// This side of the cluster has a majority again.
    pub fn handle_majority_back(&mut self, now: Duration) {
        self.side = Side::Deciding;
        self.check_end(now);
    }

    /// What hosts are told when the job ends, or restarts from the beginning.
    fn end_message(&self) -> ToHost {
        ToHost::End { epoch: self.epoch, kill: self.is_restarting(), restarts: self.is_restarting(), written: false }
    }

    fn handle_gone(&mut self, now: Duration, from: &NodeId, epoch: Epoch) {
        let Some(host) = self.hosts.get_mut(from) else { return };
        // A host that was ended by the home before does not know of ranks that are to come back to its node.
        let comes = |rank: &Rank| self.phase == Phase::Running && self.lost.contains(rank);
        let (coming, ended): (Vec<Rank>, Vec<Rank>) = self.placement.ranks_on(from).partition(comes);
        host.gone = coming.is_empty();
        if self.is_restarting() {
            // A home that was adopted may not have known this epoch.
            self.learn_epoch(epoch, None);
            return self.launch_next_epoch();
        }
        // A host is gone only when all of its ranks are. So a rank whose end was never reported has ended as well.
        ended.into_iter().for_each(|rank| self.ranks[rank.0 as usize] = RankState::Ended);
        if coming.is_empty() {
            self.unreported.remove(from);
        }
        self.check_end(now);
    }

    fn tell_host(&mut self, node: NodeId, message: ToHost) {
        if self.hosts.get(&node).is_some_and(|h| !h.gone) {
            self.outputs.push_back(HomeOutput::ToHost(node, message));
        }
    }

    fn tell_hosts(&mut self, message: &ToHost) {
        for node in self.placement.nodes.clone() {
            self.tell_host(node, message.clone());
        }
    }

    fn tell_session(&mut self, session: SessionId, message: ToSession) {
        self.outputs.push_back(HomeOutput::ToSession(session, message));
    }
}
