//! A job at its home, the node of rank 0: which ranks run and which wait in a fence, what was printed, how the job ends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use radic_wire::determinant::StreamId;
use radic_wire::ids::{Epoch, Incarnation, JobId, NodeId, NodeName, Rank, Seat};
use radic_wire::job::{EndReason, ExitStatus, JobInfo, JobSpec, OnLoss, Outcome, OutputStream, Placement, exit_code};
use radic_wire::limits;
use radic_wire::peer::{Adoption, FromHost, HostReport, MpiPhase, SessionId, StdinWanted, ToHome, ToHost, ToSession, Ward};
use radic_wire::process::{Protect, Protection, StreamEnd};
use radic_wire::suspension::Suspension;
use serde_bytes::ByteBuf;

use super::fences::{Behind, Entered, Fences};
use super::finals::Finals;
use super::stdin::{Next, Stdin};

/// A job may have this many epochs. One that goes on losing ranks before their first checkpoint will not get further. A home that
/// was adopted skips one number.
const ANEW: u32 = 16;

/// Why an adopted home restarts a job from the beginning: the home before had done so, or was about to.
const BEGUN: &str = "its home was lost while the job began anew";

/// A rank may crash this often before its first checkpoint without being taken for faulty; the job restarts from the beginning
/// each time.
const EARLY_CRASHES: u32 = 1;

/// Bytes of a stream that its host keeps for the next terminal. The host goes on reading while it has up to twice as much.
const KEPT_BY_HOST: u64 = limits::OUTPUT_UNPRINTED as u64 / 2;

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

/// A piece of a rank's output on its way to a terminal.
#[derive(Debug)]
struct Piece {
    rank: Rank,
    stream: OutputStream,
    /// The offset of the first byte.
    offset: u64,
    data: ByteBuf,
    /// The host was told that it need not keep the piece.
    taken: bool,
}

impl Piece {
    /// What it costs to keep: small pieces are dominated by their bookkeeping.
    fn cost(&self) -> usize {
        self.data.len() + size_of::<Piece>()
    }
}

/// How far one stream of a rank has come.
#[derive(Debug, Default, Clone, Copy)]
struct Progress {
    /// Offset of the next byte. A new home does not know it before the host has spoken.
    next: Option<u64>,
    /// The host was told that it need not keep what is before this offset.
    taken: u64,
}

impl Progress {
    /// Bytes that the host keeps.
    fn held(&self) -> u64 {
        self.next.map_or(0, |next| next.saturating_sub(self.taken))
    }
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

/// The output of a job: what waits for a terminal, and what a terminal has not printed yet.
#[derive(Debug, Default)]
struct Printing {
    terminal: Option<SessionId>,
    /// Pieces that were not sent to any terminal.
    waiting: VecDeque<Piece>,
    waiting_bytes: usize,
    /// Pieces that the terminal was sent and has not printed.
    under_way: VecDeque<Piece>,
    under_way_bytes: usize,
    /// Bytes of the front of `under_way` that were printed.
    printed: usize,
    /// Bytes that a terminal has printed, or that were given up, since the job began.
    consumed: u64,
    /// Bytes given up since the last attach.
    dropped: u64,
    /// Of each stream of each rank.
    progress: BTreeMap<(Rank, OutputStream), Progress>,
    /// Streams of which hosts keep much: [`Home::relieve`] looks at these.
    pressed: BTreeSet<(Rank, OutputStream)>,
    /// Pieces that are taken may stand behind pieces that are not.
    mixed: bool,
}

impl Printing {
    /// Puts a piece behind all that waits.
    fn add(&mut self, piece: Piece) {
        self.waiting_bytes += piece.cost();
        self.waiting.push_back(piece);
    }
}

/// A job that is to be suspended. Its ranks are stopped until it is written down, and then end. If it is not written down they go
/// on where they were.
#[derive(Debug)]
struct Suspending {
    /// The command that writes the job down.
    session: SessionId,
    /// Hosts that have not said that their ranks are stopped.
    waiting: BTreeSet<NodeId>,
    origins: BTreeMap<Rank, IpAddr>,
    /// Set once the session knows how far the output has come. Output that comes later waits here; when the job ends, the resumed
    /// job writes it once more.
    held: Option<VecDeque<(NodeName, Piece)>>,
    /// The job is written down.
    done: bool,
}

/// A job at its home.
#[derive(Debug)]
pub struct Home {
    job: JobId,
    spec: JobSpec,
    placement: Placement,
    /// The first incarnation of the job's present epoch.
    epoch: Epoch,
    /// Where it sits: what makes the epochs that it begins its own.
    seat: Seat,
    /// The job restarts from the beginning as soon as every host has ended what it had of it.
    anew: bool,
    /// Another home had the job before, and may have restarted it.
    adopted: bool,
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
    ended: Option<Duration>,
    ranks: Vec<RankState>,
    hosts: BTreeMap<NodeId, HostState>,
    fences: Fences,
    printing: Printing,
    stdin: Stdin,
    /// Sessions that only wait for the end (`radic kill`).
    waiters: BTreeSet<SessionId>,
    /// Set once, by the first reason to end.
    outcome: Option<Outcome>,
    /// The hosts were told to end.
    ending: bool,
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
        (self.anew, self.ending) = (false, true);
        self.unreported.clear();
        self.ranks.fill(RankState::Ended);
        self.tell_hosts(&ToHost::End { epoch: self.epoch, kill: true, anew: false });
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

    /// Whether a rank has ended for good: nothing brings it back.
    pub fn has_left(&self, rank: Rank) -> bool {
        self.has_ended(rank) && !self.anew && !self.lost.contains(&rank)
    }

    /// Where a stream ends whose sender has ended.
    pub fn final_of(&self, stream: StreamId, sender: Rank) -> Option<StreamEnd> {
        self.finals.get(stream, sender)
    }

    /// How the job has ended, if it has ended and no written byte waits for a terminal.
    pub fn last_word(&self) -> Option<&Outcome> {
        // An empty piece says that a rank writes no more. A terminal learns as much from the end of the job, so such a piece need
        // not be printed: waiting for it would withhold the end from a terminal that has not turned to this home yet.
        let printed = self.printing.waiting.iter().all(|piece| piece.data.is_empty()) && self.printing.under_way_bytes == 0;
        self.outcome.as_ref().filter(|_| self.is_over() && printed)
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
                home.printing.progress.insert((rank, stream), Progress { next: Some(*offset), taken: *offset });
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
            anew: false,
            adopted: false,
            origins: Vec::new(),
            early_crashes: BTreeMap::new(),
            finals: Finals::default(),
            lost: BTreeSet::new(),
            unreported: BTreeSet::new(),
            early: Vec::new(),
            started: now,
            started_ms,
            ended: None,
            ranks: vec![RankState::Starting; spec.ranks as usize],
            hosts: placement.nodes.iter().map(|n| (n.clone(), HostState::default())).collect(),
            fences: Fences::new(fence, keys),
            printing: Printing::default(),
            stdin: Stdin::new(StdinWanted::From(0)),
            waiters: BTreeSet::new(),
            outcome: None,
            ending: false,
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
        self.ended.is_some()
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
        self.printing.waiting_bytes
    }

    /// Output that waits for a terminal and that hosts need not keep any more.
    pub fn kept(&self) -> impl Iterator<Item = (Rank, OutputStream, std::ops::Range<u64>)> + '_ {
        let pieces = self.printing.under_way.iter().chain(&self.printing.waiting).filter(|piece| piece.taken);
        pieces.map(|piece| (piece.rank, piece.stream, piece.offset..piece.offset + piece.data.len() as u64))
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
            elapsed_ms: (self.ended.unwrap_or(now) - self.started).as_millis() as u64,
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
            ToHome::Printed { session, bytes } => self.handle_printed(&session, bytes),
            ToHome::Stdin { session, offset, data } => self.handle_stdin(session, offset, data),
            ToHome::Signal(signal) => self.tell_hosts(&ToHost::Signal(signal)),
            ToHome::Kill { session } => self.kill(session),
            ToHome::Host { epoch, said } => self.handle_host(now, from, epoch, said),
            ToHome::NoImage { rank, incarnation: Incarnation { epoch, .. }, why, signal }
                if self.knows(rank) && epoch >= self.epoch =>
            {
                self.learn_epoch(epoch, Some(rank));
                self.begin_anew(rank, &why, signal);
            }
            ToHome::Lost { rank, incarnation, why } if self.knows(rank) && incarnation.epoch >= self.epoch => {
                self.lose(rank, from, why)
            }
            // A rank that ended before the restart has not ended in the new epoch: peers would take what they send to its next
            // incarnation for unwanted.
            ToHome::Left { rank, epoch, status, phase } if self.knows(rank) && !self.anew && epoch == self.epoch => {
                self.handle_left(rank, status, phase);
            }
            ToHome::Finals { rank, epoch, finals } if self.knows(rank) && !self.anew && epoch == self.epoch => {
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
        match said {
            FromHost::Report(report) => self.handle_report(from, epoch, report),
            // The host ends its ranks, in whatever epoch: nothing is left there.
            FromHost::Gone if epoch >= self.epoch || self.anew || self.ending => self.handle_gone(now, from, epoch),
            // This host knows the new home but has not reported to it yet. Its report brings all unprinted output once more, from
            // the first byte on. Output taken before the report would make that beginning look printed.
            FromHost::Output { .. } if self.unreported.contains(from) => {}
            // The host waits until its output is taken. The next epoch writes it once more.
            FromHost::Output { rank, stream, offset, data } if self.anew && self.placement.node_of(rank) == Some(from) => {
                self.tell_taken(rank, stream, offset + data.len() as u64);
            }
            _ if epoch != self.epoch => {}
            FromHost::Frozen(result) => self.handle_frozen(from, result),
            FromHost::StdinTaken(number) if from == self.placement.home() => self.handle_stdin_taken(number),
            FromHost::StdinWanted(wanted) if from == self.placement.home() => self.restart_stdin(wanted),
            FromHost::Fence { number, ranks, entries } => self.handle_fence(from, number, ranks, entries),
            FromHost::Lost { rank, why } if self.knows(rank) => self.lose(rank, from, why),
            FromHost::Launched { rank, .. }
            | FromHost::LaunchFailed { rank, .. }
            | FromHost::Output { rank, .. }
            | FromHost::Exited { rank, .. }
            | FromHost::Aborted { rank, .. }
                if self.knows(rank) && !self.anew =>
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

    /// A node is lost that was to bring back ranks of a resumed job. Only that node had their logs.
    pub fn handle_protector_lost(&mut self, node: &NodeId) {
        let Some(rank) = self.protectors.iter().find(|(_, protector)| *protector == node).map(|(rank, _)| *rank) else { return };
        let why = "it was to bring back ranks of a job that was suspended; it can be resumed again".to_owned();
        self.lose_with(rank, node.name.clone(), why);
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
            FromHost::Output { stream, offset, data, .. } => self.handle_output(node, rank, stream, offset, data),
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

    fn handle_exit(&mut self, rank: Rank, node: NodeName, status: ExitStatus, phase: MpiPhase) {
        let failed = || EndReason::RankFailed { rank, node: node.clone(), status };
        match (status, phase) {
            (ExitStatus::Code(0), MpiPhase::Before | MpiPhase::After) => {}
            (ExitStatus::Code(0), MpiPhase::Within) => {
                self.end(Outcome { code: 1, reason: EndReason::NotFinalized { rank, node } });
            }
            // After MPI_Finalize no other rank waits for this one: the others finish, and the job fails with this code.
            (ExitStatus::Code(code), MpiPhase::After) => {
                self.outcome.get_or_insert(Outcome { code, reason: failed() });
            }
            _ => self.end(Outcome { code: status.shell_code(), reason: failed() }),
        }
    }

    fn knows(&self, rank: Rank) -> bool {
        rank.0 < self.spec.ranks
    }

    fn is_protected(&self) -> bool {
        self.spec.protection.protect == Protect::On
    }

    /// A piece of output. Bytes that came before are not printed again. A gap ends the job, because it would go unnoticed.
    fn handle_output(&mut self, node: NodeName, rank: Rank, stream: OutputStream, offset: u64, mut data: ByteBuf) {
        if let Some(Suspending { held: Some(held), done, .. }) = &mut self.suspending {
            if *done {
                // The resumed job writes it once more, so the host need not wait until it is printed.
                let end = offset + data.len() as u64;
                return self.tell_taken(rank, stream, end);
            }
            return held.push_back((node, Piece { rank, stream, offset, data, taken: false }));
        }
        let progress = self.printing.progress.entry((rank, stream)).or_default();
        let next = progress.next.unwrap_or(offset);
        if offset > next {
            let why = format!("{} bytes of what rank {rank} wrote are lost", offset - next);
            // No terminal prints this piece, but the host waits for it before it lets the job go.
            self.tell_taken(rank, stream, offset + data.len() as u64);
            return self
                .end(Outcome { code: exit_code::NODE_LOST, reason: EndReason::NodeLost { node, ranks: vec![rank], why } });
        }
        let known = ((next - offset) as usize).min(data.len());
        progress.next = Some(next.max(offset + data.len() as u64));
        let taken = progress.taken;
        if progress.held() > KEPT_BY_HOST {
            self.printing.pressed.insert((rank, stream));
        }
        data.drain(..known);
        if data.is_empty() {
            return self.tell_taken(rank, stream, taken);
        }
        self.printing.add(Piece { rank, stream, offset: offset + known as u64, data, taken: false });
        self.pump();
    }

    /// Nothing more comes from this rank. An empty piece of each stream tells the terminal so, after the output before it.
    fn end_output(&mut self, rank: Rank) {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let offset = self.printing.progress.get(&(rank, stream)).and_then(|progress| progress.next).unwrap_or(0);
            self.printing.add(Piece { rank, stream, offset, data: ByteBuf::new(), taken: false });
        }
        self.pump();
    }

    /// A rank had ended before its node was lost, and this home may not have heard of it.
    fn handle_left(&mut self, rank: Rank, status: ExitStatus, phase: MpiPhase) {
        if std::mem::replace(&mut self.ranks[rank.0 as usize], RankState::Ended) != RankState::Ended {
            let node = self.placement.node_of(rank).expect("it knows the rank").clone();
            if self.placement.ranks_on(&node).all(|rank| self.ranks[rank.0 as usize] == RankState::Ended) {
                // No rank comes back to that node, so it has nothing to report.
                self.unreported.remove(&node);
            }
            self.end_output(rank);
            self.handle_exit(rank, node.name, status, phase);
        }
    }

    /// A host tells a new home of its ranks.
    fn handle_report(&mut self, from: &NodeId, epoch: Epoch, report: HostReport) {
        let (is_first, ends) = (self.unreported.remove(from), self.ending || self.anew);
        let rank = self.placement.ranks_on(from).next();
        self.learn_epoch(epoch, rank);
        if is_first && epoch != self.epoch || report.anew && epoch >= self.epoch {
            // The hosts were about to end the job for a restart: ranks that ended for that have not failed. A node without any
            // rank of the job reports as well, because it refuses all orders of that epoch from now on.
            self.begin_anew(rank.unwrap_or(Rank(0)), BEGUN, None);
        }
        if ends {
            // The host may not have known this home when it was told to end.
            self.tell_host(from.clone(), self.end_message());
        }
        if epoch != self.epoch || self.anew {
            return;
        }
        self.learn_fence(report.fence, report.keys);
        if !report.waiting.is_empty() {
            self.handle_fence(from, report.fence + 1, report.waiting, Vec::new());
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
        if epoch > self.epoch && !self.ending {
            self.epoch = epoch;
            self.begin_anew(rank.unwrap_or(Rank(0)), BEGUN, None);
        }
    }

    /// A host was let out of this fence. Hosts that wait in a fence which the home before had released are told again.
    fn learn_fence(&mut self, fence: u64, keys: Vec<(String, String)>) {
        let Some(Behind { number, nodes, entries }) = self.fences.learn(fence, keys) else { return };
        for node in nodes {
            self.tell_host(node, ToHost::Release { number, entries: entries.clone() });
        }
    }

    /// A rank has no checkpoint to come back from: the job restarts from the beginning.
    fn begin_anew(&mut self, rank: Rank, why: &str, signal: Option<i32>) {
        if self.ending || self.anew {
            return;
        }
        if let Some(signal) = signal {
            let crashes = self.early_crashes.entry(rank).or_default();
            *crashes += 1;
            if *crashes > EARLY_CRASHES {
                let node = self.placement.node_of(rank).expect("it knows the rank").name.clone();
                let status = ExitStatus::Signal(signal);
                self.ranks[rank.0 as usize] = RankState::Ended;
                return self.end(Outcome { code: status.shell_code(), reason: EndReason::RankFailed { rank, node, status } });
            }
        }
        let stays = match self.spec.on_loss {
            OnLoss::Fail => Some("it was asked not to begin anew (--on-loss fail)".to_owned()),
            OnLoss::Restart if self.epoch.count >= ANEW => Some("the job has begun anew too often already".to_owned()),
            OnLoss::Restart => None,
        };
        if let Some(stays) = stays {
            let node = self.placement.node_of(rank).expect("it knows the rank").name.clone();
            return self.lose_with(rank, node, format!("{why}; {stays}"));
        }
        self.thaw("it begins anew");
        self.anew = true;
        self.early.clear();
        self.finals = Finals::default();
        self.outputs.push_back(HomeOutput::Anew(format!("rank {rank}: {why}")));
        self.tell_hosts(&self.end_message());
        self.pump();
        self.launch_anew();
    }

    /// Launches the next epoch when nothing of the last one is left.
    fn launch_anew(&mut self) {
        if !self.anew || self.hosts.values().any(|host| !host.gone) {
            return;
        }
        self.anew = false;
        // The home before may have launched an epoch that no node on this side of a cut has heard of. If its processes had the
        // same incarnations as the new ones, they would be taken for them when the cut heals, until their protectors hear of the
        // fence (G4).
        self.adopted = false;
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

    fn lose(&mut self, rank: Rank, from: &NodeId, why: String) {
        if !self.anew {
            self.lose_with(rank, from.name.clone(), why);
        }
    }

    fn lose_with(&mut self, rank: Rank, node: NodeName, why: String) {
        self.ranks[rank.0 as usize] = RankState::Ended;
        let reason = EndReason::NodeLost { node, ranks: vec![rank], why };
        self.end(Outcome { code: exit_code::NODE_LOST, reason });
    }

    /// A node is lost, and its ranks go on elsewhere: `placement`.
    pub fn handle_moved(&mut self, now: Duration, node: &NodeId, placement: Placement) {
        if self.is_over() {
            return;
        }
        self.thaw(&format!("{node} was lost meanwhile"));
        let ending = self.ending;
        let running: Vec<Rank> = self.placement.ranks_on(node).filter(|r| self.ranks[r.0 as usize] != RankState::Ended).collect();
        self.lost.extend(self.placement.ranks_on(node));
        for rank in self.placement.ranks_on(node).filter(|_| ending) {
            self.ranks[rank.0 as usize] = RankState::Ended; // Nothing brings back what is being ended.
        }
        self.hosts.remove(node);
        self.unreported.remove(node);
        self.placement = placement;
        if self.anew || !ending {
            let gone = self.anew;
            for node in running.iter().filter_map(|rank| self.placement.node_of(*rank)) {
                self.hosts.entry(node.clone()).or_insert(HostState { gone });
            }
        }
        self.fences.lose(node);
        self.lose_terminal(node);
        self.launch_anew();
        for (from, epoch, said) in std::mem::take(&mut self.early) {
            self.handle_host(now, &from, epoch, said);
        }
        self.check_end(now);
    }

    /// Stops all ranks, so that a command can write the job down.
    fn suspend(&mut self, session: SessionId) {
        let running = self.ranks.iter().all(|rank| *rank == RankState::Running);
        let why = match () {
            () if self.suspending.is_some() => "it is being suspended already",
            () if !self.is_protected() => "it is not protected: there is no log of it",
            () if self.ending || self.anew || !self.unreported.is_empty() || !running => {
                "it is starting or ending, a rank has ended, or a node was just lost"
            }
            () => {
                let waiting = self.placement.nodes.iter().cloned().collect();
                let origins = BTreeMap::new();
                self.suspending = Some(Suspending { session, waiting, origins, held: None, done: false });
                return self.tell_hosts(&ToHost::Freeze);
            }
        };
        self.tell_session(session, ToSession::Frozen(Err(why.to_owned())));
    }

    fn handle_frozen(&mut self, from: &NodeId, result: Result<Vec<(Rank, IpAddr)>, String>) {
        let Some(suspending) = &mut self.suspending else { return };
        match result {
            Ok(origins) => {
                suspending.waiting.remove(from);
                let theirs = origins.into_iter().filter(|(rank, _)| self.placement.node_of(*rank) == Some(from));
                suspending.origins.extend(theirs);
                self.check_frozen();
            }
            Err(why) => self.thaw(&format!("{from}: {why}")),
        }
    }

    /// When the ranks are stopped and the terminal has printed what it was sent, tells the command that writes the job down how
    /// far the job has come.
    fn check_frozen(&mut self) {
        let Some(suspending) = &mut self.suspending else { return };
        if !suspending.waiting.is_empty() || suspending.held.is_some() || !self.printing.under_way.is_empty() {
            return;
        }
        let origins: Vec<IpAddr> = suspending.origins.values().copied().collect();
        if origins.len() != self.ranks.len() {
            return self.thaw("a host has not told of all its ranks");
        }
        suspending.held = Some(VecDeque::new());
        let (session, progress) = (suspending.session.clone(), &self.printing.progress);
        let next = |rank, stream| progress.get(&(rank, stream)).and_then(|progress| progress.next).unwrap_or(0);
        let output = |rank| [OutputStream::Stdout, OutputStream::Stderr].map(|stream| next(rank, stream));
        let (spec, placement) = (self.spec.clone(), self.placement.clone());
        let ward = Ward { epoch: self.epoch, spec, placement, fence: self.fences.released(), keys: Vec::new() };
        let output = (0..self.spec.ranks).map(|rank| output(Rank(rank))).collect();
        let suspension = Suspension { job: self.job, ward, started_ms: self.started_ms, origins, output };
        let unprinted = self.printing.waiting.iter();
        let unprinted = unprinted.map(|Piece { rank, stream, offset, data, .. }| {
            let output = ToSession::Output { rank: *rank, stream: *stream, offset: *offset, data: data.clone() };
            HomeOutput::ToSession(session.clone(), output)
        });
        self.outputs.extend(unprinted);
        self.outputs.push_back(HomeOutput::Frozen(session, Box::new(suspension)));
    }

    /// The job is not suspended: it goes on where it was.
    fn thaw(&mut self, why: &str) {
        let Some(suspending) = self.suspending.take_if(|suspending| !suspending.done) else { return };
        self.tell_session(suspending.session, ToSession::Frozen(Err(why.to_owned())));
        self.tell_hosts(&ToHost::Thaw);
        for (node, Piece { rank, stream, offset, data, .. }) in suspending.held.into_iter().flatten() {
            self.handle_output(node, rank, stream, offset, data);
        }
        self.pump();
    }

    /// The command has written the job down.
    fn end_suspended(&mut self, session: &SessionId) {
        let Some(suspending) = self.suspending.as_mut().filter(|s| s.session == *session && s.held.is_some()) else { return };
        suspending.done = true;
        let held = suspending.held.replace(VecDeque::new());
        for (_, Piece { rank, stream, offset, data, .. }) in held.into_iter().flatten() {
            self.tell_taken(rank, stream, offset + data.len() as u64);
        }
        self.waiters.insert(session.clone());
        // The command has the waiting output now.
        self.take_all();
        (self.printing.waiting, self.printing.waiting_bytes) = (VecDeque::new(), 0);
        self.ending = true;
        self.outcome = Some(Outcome { code: exit_code::SUSPENDED, reason: EndReason::Suspended });
        self.tell_hosts(&ToHost::End { epoch: self.epoch, kill: true, anew: false });
    }

    /// A node is lost, and the terminals on it with it. Without this, the output would wait for ever for such a terminal to
    /// print.
    pub fn handle_terminal_lost(&mut self, node: &NodeId) {
        self.lose_terminal(node);
    }

    fn lose_terminal(&mut self, node: &NodeId) {
        if self.suspending.as_ref().is_some_and(|suspending| suspending.session.node == *node) {
            self.thaw("the node of the command is lost");
        }
        if self.printing.terminal.as_ref().is_some_and(|t| t.node == *node) {
            self.drop_terminal();
        }
        self.waiters.retain(|w| w.node != *node);
    }

    /// A node is lost, and the terminals on it with it. A job without protection ends if it had ranks there.
    pub fn handle_node_lost(&mut self, now: Duration, node: &NodeId, why: &str) {
        if self.hosts.contains_key(node) {
            self.lose_host(node, why);
        }
        self.lose_terminal(node);
        self.check_end(now);
    }

    /// This side cannot decide anything about the job any more, wherever its ranks are.
    pub fn give_up(&mut self, now: Duration, why: &str) {
        if !self.is_over() {
            let reason = EndReason::NodeLost { node: self.placement.home().name.clone(), ranks: Vec::new(), why: why.to_owned() };
            self.end(Outcome { code: exit_code::NODE_LOST, reason });
            self.check_end(now);
        }
    }

    fn lose_host(&mut self, node: &NodeId, why: &str) {
        if let Some(host) = self.hosts.get_mut(node) {
            host.gone = true;
        }
        self.unreported.remove(node);
        let ranks: Vec<_> = self.placement.ranks_on(node).collect();
        let running = ranks.iter().any(|r| self.ranks[r.0 as usize] != RankState::Ended);
        for rank in &ranks {
            self.ranks[rank.0 as usize] = RankState::Ended;
        }
        // A job that is being restarted has no running rank, but cannot begin without that node.
        if running || self.anew {
            let reason = EndReason::NodeLost { node: node.name.clone(), ranks, why: why.to_owned() };
            self.end(Outcome { code: exit_code::NODE_LOST, reason });
        }
    }

    /// The first reason to end decides; every rank that still runs is ended.
    fn end(&mut self, outcome: Outcome) {
        self.thaw("it has ended");
        self.outcome.get_or_insert(outcome);
        if std::mem::take(&mut self.anew) {
            // Hosts that have already ended what they had of the last epoch do not say so again, nor do they report to a home
            // that was adopted: waiting for them would never end.
            for (node, _) in self.hosts.iter().filter(|(_, host)| host.gone) {
                self.unreported.remove(node);
                self.placement.ranks_on(node).for_each(|rank| self.ranks[rank.0 as usize] = RankState::Ended);
            }
        }
        if !std::mem::replace(&mut self.ending, true) {
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
        let waits = self.anew || !self.unreported.is_empty();
        if self.is_over() || waits || self.ranks.iter().any(|r| *r != RankState::Ended) {
            return;
        }
        self.end(Outcome { code: 0, reason: EndReason::Finished });
        if self.hosts.values().all(|h| h.gone) {
            self.ended = Some(now);
            for session in std::mem::take(&mut self.waiters) {
                let outcome = self.outcome.clone().expect("set above");
                self.tell_session(session, ToSession::Ended(outcome));
            }
            self.pump();
            // A node that hears `Ended` forgets the job, so the terminals are told first.
            self.outputs.push_back(HomeOutput::Ended);
        }
    }

    /// What hosts are told when the job ends, or restarts from the beginning.
    fn end_message(&self) -> ToHost {
        ToHost::End { epoch: self.epoch, kill: self.anew, anew: self.anew }
    }

    fn handle_gone(&mut self, now: Duration, from: &NodeId, epoch: Epoch) {
        let Some(host) = self.hosts.get_mut(from) else { return };
        // A host that was ended by the home before does not know of ranks that are to come back to its node.
        let comes = |rank: &Rank| !self.ending && !self.anew && self.lost.contains(rank);
        let (coming, ended): (Vec<Rank>, Vec<Rank>) = self.placement.ranks_on(from).partition(comes);
        host.gone = coming.is_empty();
        if self.anew {
            // A home that was adopted may not have known this epoch.
            self.learn_epoch(epoch, None);
            return self.launch_anew();
        }
        // A host is gone only when all of its ranks are. So a rank whose end was never reported has ended as well.
        ended.into_iter().for_each(|rank| self.ranks[rank.0 as usize] = RankState::Ended);
        if coming.is_empty() {
            self.unreported.remove(from);
        }
        self.check_end(now);
    }

    fn handle_fence(&mut self, from: &NodeId, number: u64, ranks: Vec<Rank>, entries: Vec<(String, String)>) {
        match self.fences.enter(from, number, ranks, entries, self.spec.ranks) {
            Entered::Waits => {}
            Entered::Released(entries) => self.tell_hosts(&ToHost::Release { number, entries }),
            Entered::Before(entries) => {
                self.outputs.push_back(HomeOutput::ToHost(from.clone(), ToHost::Release { number, entries }));
            }
        }
    }

    fn handle_stdin(&mut self, session: SessionId, offset: u64, data: ByteBuf) {
        if self.printing.terminal.as_ref() != Some(&session) || self.is_over() {
            return;
        }
        match self.stdin.handle_piece(session, offset, data) {
            Next::Pass { number, data } => self.tell_host(self.placement.home().clone(), ToHost::Stdin { number, data }),
            Next::Ask => self.ask_for_stdin(),
            Next::Wait => {}
        }
    }

    fn handle_stdin_taken(&mut self, number: u64) {
        if self.stdin.handle_taken(number) {
            self.go_on_with_stdin();
        }
    }

    /// Rank 0 has another pipe, or will have one. What was in the old one and was not read is needed again.
    fn restart_stdin(&mut self, wanted: StdinWanted) {
        self.stdin.restart(wanted);
        self.go_on_with_stdin();
    }

    fn go_on_with_stdin(&mut self) {
        self.ask_for_stdin();
        if let Some((session, offset, data)) = self.stdin.poll_waiting() {
            self.handle_stdin(session, offset, data);
        }
    }

    /// Tells the terminal, if there is one, which piece may come.
    fn ask_for_stdin(&mut self) {
        if let (Some(terminal), Some(from)) = (self.printing.terminal.clone(), self.stdin.asks_from()) {
            self.tell_session(terminal, ToSession::StdinFrom(from));
        }
    }

    fn attach(&mut self, session: SessionId) {
        if let Some(old) = self.printing.terminal.take().filter(|old| *old != session) {
            self.tell_session(old, ToSession::TakenOver);
        }
        self.put_back();
        let dropped = std::mem::take(&mut self.printing.dropped);
        let (placement, consumed) = (self.placement.clone(), self.printing.consumed);
        let attached = ToSession::Attached { job: self.job, placement, consumed, dropped, protected: self.is_protected() };
        self.tell_session(session.clone(), attached);
        self.printing.terminal = Some(session);
        self.ask_for_stdin();
        self.pump();
    }

    fn detach(&mut self, session: &SessionId) {
        self.waiters.remove(session);
        if self.suspending.as_ref().is_some_and(|suspending| suspending.session == *session) {
            self.thaw("the command is gone");
        }
        if self.printing.terminal.as_ref() == Some(session) {
            self.drop_terminal();
        }
    }

    fn drop_terminal(&mut self) {
        self.printing.terminal = None;
        self.put_back();
        self.pump();
        self.check_frozen();
    }

    /// What a terminal has not printed waits for the next one.
    fn put_back(&mut self) {
        let printing = &mut self.printing;
        let mut printed = std::mem::take(&mut printing.printed);
        while let Some(mut piece) = printing.under_way.pop_back() {
            if printing.under_way.is_empty() {
                piece.offset += printed as u64;
                piece.data.drain(..std::mem::take(&mut printed));
            }
            printing.waiting_bytes += piece.cost();
            printing.waiting.push_front(piece);
        }
        printing.under_way_bytes = 0;
    }

    fn handle_printed(&mut self, session: &SessionId, bytes: u64) {
        let printing = &mut self.printing;
        if printing.terminal.as_ref() != Some(session) {
            return;
        }
        // A terminal that claims more than it was sent counts as having printed all of it.
        let bytes = (bytes as usize).min(printing.under_way_bytes);
        printing.under_way_bytes -= bytes;
        printing.printed += bytes;
        printing.consumed += bytes as u64;
        let mut done = Vec::new();
        while let Some(front) = printing.under_way.front().filter(|f| f.data.len() <= printing.printed) {
            printing.printed -= front.data.len();
            done.extend(printing.under_way.pop_front());
        }
        done.iter_mut().for_each(|piece| self.take(piece));
        self.pump();
        self.check_frozen();
    }

    /// Moves output towards the terminal, and lets hosts read on for what has moved.
    fn pump(&mut self) {
        if self.suspending.as_ref().is_some_and(|suspending| suspending.held.is_some() && !suspending.done) {
            return; // The command that writes the job down has the output.
        }
        match self.printing.terminal.clone() {
            Some(terminal) => self.pump_to(&terminal),
            None => self.keep_without_terminal(),
        }
    }

    fn pump_to(&mut self, terminal: &SessionId) {
        while self.printing.under_way_bytes < limits::OUTPUT_WINDOW {
            let Some(mut piece) = self.printing.waiting.pop_front() else { break };
            self.printing.waiting_bytes -= piece.cost();
            self.printing.under_way_bytes += piece.data.len();
            if !self.is_protected() {
                // A job without protection dies with its home, so a host need not keep more than the home does.
                self.take(&mut piece);
            }
            let Piece { rank, stream, offset, ref data, .. } = piece;
            let output = ToSession::Output { rank, stream, offset, data: data.clone() };
            self.printing.under_way.push_back(piece);
            self.tell_session(terminal.clone(), output);
        }
        if self.is_over() && self.printing.waiting.is_empty() {
            let outcome = self.outcome.clone().expect("a job that is over has an outcome");
            self.printing.terminal = None;
            self.tell_session(terminal.clone(), ToSession::Ended(outcome));
        }
    }

    /// The hosts of a protected job keep its output as well, for the next terminal: this node may be lost before one attaches.
    /// But they keep no more than lets every rank go on writing, and nothing once the job ends.
    fn keep_without_terminal(&mut self) {
        if !self.is_protected() || self.ending || self.anew {
            self.take_all();
        } else if !self.printing.pressed.is_empty() {
            self.relieve();
        }
        while self.printing.waiting_bytes > limits::OUTPUT_BACKLOG {
            let mut oldest = self.printing.waiting.pop_front().expect("bytes wait, hence a piece");
            self.take(&mut oldest);
            self.printing.waiting_bytes -= oldest.cost();
            self.printing.dropped += oldest.data.len() as u64;
            self.printing.consumed += oldest.data.len() as u64;
        }
    }

    fn take_all(&mut self) {
        // Pieces that are not taken stand behind the others, except after `relieve`.
        let last = self.printing.waiting.iter().rposition(|piece| piece.taken).filter(|_| !self.printing.mixed);
        self.printing.mixed = false;
        let from = last.map_or(0, |last| last + 1);
        let mut new = self.printing.waiting.split_off(from);
        new.iter_mut().for_each(|piece| self.take(piece));
        self.printing.waiting.append(&mut new);
    }

    /// Lets hosts drop part of each stream of which they keep much, until about half of the allowance is left. Only streams in
    /// `pressed` are looked at.
    fn relieve(&mut self) {
        let pressed = std::mem::take(&mut self.printing.pressed);
        let mut waiting = std::mem::take(&mut self.printing.waiting);
        for piece in waiting.iter_mut().filter(|piece| !piece.taken && pressed.contains(&(piece.rank, piece.stream))) {
            let held = self.printing.progress.get(&(piece.rank, piece.stream)).map_or(0, Progress::held);
            if held > KEPT_BY_HOST / 2 + piece.data.len() as u64 {
                self.take(piece);
            }
        }
        (self.printing.waiting, self.printing.mixed) = (waiting, true);
    }

    fn take(&mut self, piece: &mut Piece) {
        if !std::mem::replace(&mut piece.taken, true) {
            let end = piece.offset + piece.data.len() as u64;
            let progress = self.printing.progress.entry((piece.rank, piece.stream)).or_default();
            progress.taken = progress.taken.max(end);
            self.tell_taken(piece.rank, piece.stream, end);
        }
    }

    fn tell_taken(&mut self, rank: Rank, stream: OutputStream, offset: u64) {
        let node = self.placement.node_of(rank).expect("checked when the piece came").clone();
        self.tell_host(node, ToHost::OutputTaken { rank, stream, offset });
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
