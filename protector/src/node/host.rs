//! The ranks of one job on this node: their processes, their PMI connections, their output.

mod ending;
mod environment;
mod fence;
mod last_word;
mod orders;
mod phase;
mod rank;
mod returning;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use radic_wire::ids::{Epoch, JobId, NodeId, Rank};
use radic_wire::job::{ExitStatus, JobSpec, OutputStream, Placement, Ward, exit_code};
use radic_wire::peer::{FromHost, HostReport, JobEnd, MpiPhase, RestartOrder, StdinWanted, ToHost, Unprotected};
use radic_wire::process::{Point, ProgramEnd, Protect, Protection};
use serde_bytes::ByteBuf;

pub use self::environment::HostEnvironment;
use self::environment::environment_of;
use self::last_word::LastWord;
pub use self::orders::{Crash, HostOutput, NameRequest, RestoreOrder, SpawnError, SpawnOrder};
use self::phase::{Cause, HostPhase};
use self::rank::{Exit, LocalRank, Phase, RESTORES, Reported, STREAMS, Verdict};
use super::launches::Launches;
use super::outlet::{Outlet, OutputLost};
use crate::pmi::{KeySpace, Session};

/// Time that an ended rank's pipes may stay open (a process that left its group holds them) before they are closed.
const DRAIN: Duration = Duration::from_secs(2);

/// Time that the ranks of a lost home wait for the next home.
const ORPHANED: Duration = Duration::from_secs(30);

/// The ranks of one job on this node.
#[derive(Debug)]
pub struct Host {
    job: JobId,
    home: NodeId,
    spec: JobSpec,
    placement: Placement,
    epoch: Epoch,
    /// What none but the nodes knows of the name of its key space: [`radic_wire::mac::key_space`].
    space: u64,
    ranks: BTreeMap<Rank, LocalRank>,
    /// The ranks that are still to be started here.
    launches: Launches,
    keys: KeySpace,
    fence: u64,
    /// Ranks that wait in the fence after the last one that each was let out of.
    waiting: BTreeSet<Rank>,
    phase: HostPhase,
    /// If the home is lost: until when the next one may come.
    orphaned: Option<Duration>,
    /// What rank 0 is to get of standard input, as it said when it was last brought back here.
    stdin: StdinWanted,
    /// Signals that the ranks were sent on purpose: a rank that ends by one of them is not brought back.
    sent: BTreeSet<i32>,
    /// The ranks are stopped, to be suspended.
    frozen: bool,
    /// All ranks of the job have come to their ends: none is brought back.
    end: Option<JobEnd>,
    outputs: VecDeque<HostOutput>,
}

impl Host {
    /// Starts the ranks that `placement` puts on `me`, of a job in its epoch with this [`radic_wire::mac::key_space`].
    ///
    /// # Panics
    /// If the placement does not fit the job: its sender and the caller have both checked it.
    pub fn launch(
        me: &NodeId,
        environment: &HostEnvironment,
        (job, epoch, space): (JobId, Epoch, u64),
        spec: &JobSpec,
        placement: Placement,
    ) -> Self {
        assert!(placement.is_valid(spec.ranks), "the caller has validated the placement");
        let keys = KeySpace::new(spec.ranks);
        let ward = Ward { epoch, spec: spec.clone(), placement: placement.clone(), fence: 0, keys: Vec::new() };
        let mut host = Host::empty(job, ward, space, keys);
        host.launch_ranks(me, environment, &placement);
        host
    }

    /// Starts the ranks that `placement` puts on `me`, except those that are here already: an order to bring a rank back may have
    /// come before the word to launch.
    pub fn launch_ranks(&mut self, me: &NodeId, environment: &HostEnvironment, placement: &Placement) {
        if self.phase.is_ending() {
            return;
        }
        let kvsname = self.kvsname();
        for rank in placement.ranks_on(me).filter(|rank| !self.ranks.contains_key(rank)).collect::<Vec<_>>() {
            self.ranks.insert(rank, LocalRank::starting(Session::new(rank, self.spec.ranks, kvsname.clone())));
            self.launches.add(rank);
        }
        self.launch_some(environment);
    }

    /// Orders the starts whose turn has come.
    fn launch_some(&mut self, environment: &HostEnvironment) {
        while let Some(rank) = self.launches.begin() {
            let order = SpawnOrder {
                program: self.spec.program.clone(),
                args: self.spec.args.clone(),
                env: environment_of(rank, self.job, &self.spec, environment),
                dir: self.spec.dir.clone(),
                kvsname: self.kvsname(),
                stdin: rank == Rank(0),
                umask: self.spec.umask,
                library: (self.spec.protection.protect != Protect::None).then(|| environment.library.clone()),
                is_protected: self.spec.protection.protect == Protect::On,
            };
            self.outputs.push_back(HostOutput::Spawn(rank, order));
        }
    }

    /// A host without ranks, on a node that is going to bring some back.
    pub fn adopt(job: JobId, ward: &Ward, space: u64) -> Self {
        let mut keys = KeySpace::new(ward.spec.ranks);
        // The keys come from a key space, so there are no more than one holds.
        _ = keys.merge(ward.keys.iter().cloned());
        Host::empty(job, ward.clone(), space, keys)
    }

    fn empty(job: JobId, ward: Ward, space: u64, keys: KeySpace) -> Self {
        let Ward { epoch, spec, placement, fence, .. } = ward;
        let (ranks, launches, waiting, sent, frozen, outputs) = Default::default();
        Host {
            job,
            home: placement.home().clone(),
            placement,
            spec,
            epoch,
            space,
            ranks,
            launches,
            keys,
            fence,
            waiting,
            phase: HostPhase::Open,
            orphaned: None,
            stdin: StdinWanted::Nothing,
            sent,
            frozen,
            end: None,
            outputs,
        }
    }

    /// The name of the job's key space in this epoch.
    pub fn kvsname(&self) -> String {
        format!("radic_{}_{:016x}", self.job, self.space)
    }

    /// Brings a rank back. It may have been here before.
    pub fn restore(&mut self, order: &RestartOrder, local: bool, library: String) {
        if self.phase.is_ending() {
            return;
        }
        let RestartOrder { process, incarnation, log, replica, ref images, .. } = *order;
        let (rank, kvsname) = (process.rank, self.kvsname());
        let session = Session::new(rank, self.spec.ranks, kvsname.clone());
        let before = self.ranks.remove(&rank);
        let takes = returning::limit(images.iter().map(|(_, bytes)| bytes).sum());
        self.ranks.insert(rank, LocalRank::returning(session, self.fence, takes, before));
        self.launches.forget(rank);
        self.waiting.remove(&rank);
        let stdin = rank == Rank(0);
        if stdin {
            // Its new pipe must stay empty until the rank says what it has read.
            self.want_stdin(StdinWanted::Nothing);
        }
        let images = images.clone();
        let order = RestoreOrder { process, incarnation, log, local, replica, images, kvsname, stdin, library };
        self.outputs.push_back(HostOutput::Restore(rank, order));
    }

    /// A rank that was brought back says where it stands.
    pub fn handle_restored(&mut self, rank: Rank, point: &Point) -> Result<(), OutputLost> {
        let Some(state) = self.ranks.get_mut(&rank) else { return Ok(()) };
        state.session.resume(point.pmi.0, point.pmi.1);
        state.fences = point.fences;
        state.handle_returned();
        self.look_at_fence();
        let Some(state) = self.ranks.get_mut(&rank) else { return Ok(()) };
        for (outlet, at) in state.outlets.iter_mut().zip(point.output) {
            let first = !outlet.is_known();
            outlet.open(at, first)?;
        }
        state.read(rank, &mut self.outputs);
        Ok(())
    }

    /// The rank is live.
    pub fn handle_live(&mut self, rank: Rank) {
        if let Some(state) = self.ranks.get_mut(&rank) {
            state.handle_live();
        }
    }

    /// The rank diverges from its log, or makes no progress in it. True: it is ended, to be brought back once more. False: that has been tried.
    pub fn handle_diverged(&mut self, rank: Rank) -> bool {
        let again = self.ranks.get_mut(&rank).is_some_and(LocalRank::handle_diverged);
        if again {
            self.outputs.push_back(HostOutput::Signal(rank, libc::SIGKILL));
        }
        again
    }

    /// The rank needs nothing more of the log that it was brought back with.
    pub fn handle_log_read(&mut self, rank: Rank) {
        if let Some(state) = self.ranks.get_mut(&rank) {
            state.handle_log_read();
        }
    }

    /// Whether the rank cannot be brought back here.
    pub fn is_hopeless(&self, rank: Rank) -> bool {
        self.ranks.get(&rank).is_some_and(LocalRank::is_hopeless)
    }

    /// Something of a rank is not protected: the terminal is to say so.
    pub fn tell_unprotected(&mut self, kind: Unprotected, text: String) {
        self.outputs.push_back(HostOutput::ToHome(FromHost::Unprotected { kind, text }));
    }

    /// Whether the rank cannot go on without its old log: it is being brought back here, or is to be, or has not read all of it.
    pub fn needs_log(&self, rank: Rank) -> bool {
        self.ranks.get(&rank).is_some_and(LocalRank::needs_log)
    }

    /// The rank cannot be brought back. A process that is there all the same is killed, which is no crash: the next attempt would
    /// start from the same.
    pub fn handle_not_restored(&mut self, now: Duration, rank: Rank, why: String) {
        if self.ranks.get_mut(&rank).is_some_and(|state| state.handle_not_restored(now)) {
            self.outputs.push_back(HostOutput::Signal(rank, libc::SIGKILL));
        }
        self.outputs.push_back(HostOutput::ToHome(FromHost::Lost { rank, why }));
        self.report_ended();
    }

    /// The ranks of the job have a new placement. That alone neither starts nor ends a rank here.
    pub fn handle_placement(&mut self, placement: Placement) {
        self.home = placement.home().clone();
        self.placement = placement;
    }

    /// The home of a protected job is lost: another home will come.
    pub fn handle_home_lost(&mut self, now: Duration) {
        self.orphaned = Some(now + ORPHANED);
        // No other home knows that it was to be suspended.
        self.thaw();
        if self.ranks.values().all(LocalRank::is_reported) {
            // All ranks here had ended by themselves when the home said that the job ends. Those of the lost node may have to
            // come back here to print.
            self.phase.reopen();
        }
    }

    /// There is a new home. It is told what has become of the ranks here, and gets the output that was not printed.
    pub fn handle_new_home(&mut self, home: NodeId) {
        self.home = home;
        self.orphaned = None;
        let (mut running, mut ended) = (Vec::new(), Vec::new());
        // The node itself tells the home of ranks that cannot be brought back.
        for (rank, state) in self.ranks.iter().filter(|(_, state)| !state.is_hopeless()) {
            match state.exit().filter(|exit| exit.reported != Reported::No) {
                Some(exit) => ended.push((*rank, exit.status, state.mpi_phase())),
                None => running.push(*rank),
            }
        }
        let waiting = self.ranks_in_fence().unwrap_or_default();
        let (fence, keys) = (self.fence, self.keys.all());
        let report = HostReport { running, ended, fence, keys, waiting, stdin: self.stdin, restarts: self.phase.restarts() };
        self.outputs.push_back(HostOutput::ToHome(FromHost::Report(report)));
        for (rank, state) in &self.ranks {
            for (outlet, stream) in state.outlets.iter().zip(STREAMS) {
                let pieces = outlet.unprinted().cloned();
                let again = pieces.map(|(offset, data)| FromHost::Output { rank: *rank, stream, offset, data });
                self.outputs.extend(again.map(HostOutput::ToHome));
            }
        }
        self.ranks.values_mut().for_each(LocalRank::forget_end_told);
        self.report_at_end();
    }

    /// How the ranks here have ended, for a home that comes after this host is over. Empty for an epoch from which the job does
    /// not go on. Ranks that were killed with their job have ended as well as those that were left to end: nobody else says so.
    pub fn ends(&self) -> Vec<(Rank, ExitStatus, MpiPhase)> {
        if self.phase.is_left_behind() {
            return Vec::new();
        }
        self.ranks.iter().filter_map(|(rank, state)| state.end().map(|(status, phase)| (*rank, status, phase))).collect()
    }

    /// Whether this host was ended for a restart of the job, and the next epoch has not come here yet.
    pub fn restarts(&self) -> bool {
        self.phase.restarts() && !self.phase.is_superseded()
    }

    /// How a rank has ended of which nothing is needed any more.
    pub fn end_of(&self, rank: Rank) -> Option<(ExitStatus, MpiPhase)> {
        match self.ranks.get(&rank)?.exit()?.reported {
            Reported::Protector(status, phase) => Some((status, phase)),
            Reported::No | Reported::Otherwise | Reported::Home(..) => None,
        }
    }

    /// Whether the rank has ended by itself, or never was here.
    pub fn has_left(&self, rank: Rank) -> bool {
        self.ranks.get(&rank).is_none_or(|state| state.exit().is_some_and(|exit| exit.crashed.is_none()) && !state.is_hopeless())
    }

    /// Whether the rank has no process that could have received anything, and nothing more can come of one: it is to begin, or has ended by itself.
    pub fn keeps_nothing(&self, rank: Rank) -> bool {
        self.ranks.get(&rank).is_some_and(|state| match state.phase {
            Phase::Starting | Phase::Returning { .. } => true,
            Phase::Exited(exit) => exit.crashed.is_none(),
            Phase::Running { .. } | Phase::Lost(_) => state.is_hopeless(),
        })
    }

    /// Whether the rank was brought back here, has said where it stands, and is not live yet.
    pub fn catches_up(&self, rank: Rank) -> bool {
        let catches_up =
            |state: &LocalRank| state.is_catching_up() && !state.is_returning() && !state.is_hopeless() && !state.has_exited();
        !self.phase.is_ending() && self.ranks.get(&rank).is_some_and(catches_up)
    }

    /// Whether the rank was here, is not now, and will be here again.
    pub fn is_away(&self, rank: Rank) -> bool {
        !self.phase.is_ending() && self.ranks.get(&rank).is_some_and(|state| state.is_away(self.fence))
    }

    /// The job.
    pub fn job(&self) -> JobId {
        self.job
    }

    /// The node that keeps the job together.
    pub fn home(&self) -> &NodeId {
        &self.home
    }

    /// Where the job's ranks are.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The first incarnation of the job's present epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What runs.
    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// How its processes are protected.
    pub fn protection(&self) -> &Protection {
        &self.spec.protection
    }

    /// The mean time between two failures of one node, as given by the user.
    pub fn mtbf(&self) -> Duration {
        Duration::from_secs(self.spec.mtbf_s)
    }

    /// What the protector of the ranks has to know of the job.
    pub fn ward(&self) -> Ward {
        let (spec, placement) = (self.spec.clone(), self.placement.clone());
        Ward { epoch: self.epoch, spec, placement, fence: self.fence, keys: self.keys.all() }
    }

    /// The ranks that are, or were, here.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + '_ {
        self.ranks.keys().copied()
    }

    /// The process id of a rank that runs here.
    pub fn pid(&self, rank: Rank) -> Option<u32> {
        self.ranks.get(&rank)?.pid()
    }

    /// The process id that a rank has, or had; 0 if it was not started.
    pub fn last_pid(&self, rank: Rank) -> u32 {
        self.ranks.get(&rank).and_then(LocalRank::last_pid).unwrap_or(0)
    }

    /// Whether the job has ranks on that node.
    pub fn involves(&self, node: &NodeId) -> bool {
        self.placement.nodes.contains(node)
    }

    /// The ranks that run here, with their process ids.
    pub fn running(&self) -> impl Iterator<Item = (Rank, u32)> + '_ {
        self.ranks.iter().filter_map(|(rank, state)| Some((*rank, state.pid()?)))
    }

    /// Panics if the parts of the host contradict each other. For its driver, after each input.
    pub fn check_invariants(&self) {
        self.ranks.values().for_each(LocalRank::check_invariants);
        let is_over = matches!(self.phase, HostPhase::Over(_));
        assert!(!is_over || self.ranks.values().all(LocalRank::is_reported), "it is over, and a rank is not reported");
        assert!(!self.phase.is_ending() || !self.launches.has_waiting(), "it is ended, and starts ranks");
        let comes_back = self.end.as_ref().and(self.ranks.iter().find(|(_, state)| state.is_to_be_brought_back()));
        assert!(comes_back.is_none(), "all ranks have come to their ends, and one is to be brought back: {comes_back:?}");
        let strangers = self.waiting.iter().find(|rank| !self.ranks.contains_key(rank));
        assert!(strangers.is_none(), "rank {strangers:?} waits in a fence, and is not here");
    }

    /// What the host wants done next.
    pub fn poll_output(&mut self) -> Option<HostOutput> {
        self.outputs.pop_front()
    }

    /// When [`Host::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let unreported = self.ranks.values().filter_map(LocalRank::exit).filter(|exit| exit.reported == Reported::No);
        let drains = unreported.map(|exit| exit.at + DRAIN).min();
        let limits = self.ranks.values().filter_map(LocalRank::limit_at).min();
        [drains, limits, self.phase.next_at(), self.orphaned].into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.look_at_ending(now);
        self.look_at_returning(now);
        if self.orphaned.take_if(|at| *at <= now).is_some() {
            self.abandon(now);
        }
        let mut closed = Vec::new();
        for (rank, state) in &mut self.ranks {
            if let Phase::Exited(exit) = &mut state.phase
                && exit.reported == Reported::No
                && exit.at + DRAIN <= now
            {
                // Output that waits for a slow terminal is not lost. Only streams that bring nothing are given up.
                for (outlet, stream) in state.outlets.iter_mut().zip(STREAMS).filter(|(outlet, _)| outlet.is_idle()) {
                    outlet.close();
                    closed.push(HostOutput::Close(*rank, stream));
                }
                if state.outlets.iter().any(Outlet::is_open) {
                    exit.at = now;
                }
            }
        }
        self.outputs.extend(closed);
        self.report_ended();
    }

    /// The home speaks.
    pub fn handle_message(&mut self, now: Duration, message: ToHost) {
        match message {
            ToHost::Launch { .. } | ToHost::MakeLine { .. } | ToHost::MakeRoom { .. } | ToHost::LetGo(_) => {} // The node handles it.
            ToHost::Stdin { number, data } => self.outputs.push_back(HostOutput::Stdin { number, data }),
            ToHost::Signal(signal) => {
                self.sent.insert(signal);
                self.signal(signal);
                self.signal_later(signal);
            }
            ToHost::OutputTaken { rank, stream, offset } => self.handle_output_taken(rank, stream, offset),
            ToHost::Release { number, entries } => self.handle_release(number, entries),
            ToHost::Freeze => self.freeze(),
            ToHost::Thaw => self.thaw(),
            ToHost::End { restarts: true, .. } => self.end(now, Cause::Restart),
            ToHost::End { kill: true, written, .. } => {
                if written {
                    self.give_up_output();
                }
                self.end(now, Cause::Force);
            }
            ToHost::End { .. } => self.end(now, Cause::JobEnds),
        }
    }

    /// Stops every rank, if all of them run.
    fn freeze(&mut self) {
        let runs = |state: &LocalRank| matches!(state.phase, Phase::Running { .. });
        match self.ranks.iter().find(|(_, state)| self.phase.is_ending() || !runs(state)).map(|(rank, _)| *rank) {
            Some(rank) => {
                let why = format!("rank {rank} does not run");
                self.outputs.push_back(HostOutput::ToHome(FromHost::Frozen(Err(why))));
            }
            None => {
                self.frozen = true;
                self.signal(libc::SIGSTOP);
                self.outputs.push_back(HostOutput::Frozen);
            }
        }
    }

    /// The ranks go on: the job is not suspended.
    fn thaw(&mut self) {
        if std::mem::take(&mut self.frozen) {
            self.signal(libc::SIGCONT);
        }
    }

    /// Remembers a signal for ranks that are still to be started.
    fn signal_later(&mut self, signal: i32) {
        for (_, state) in self.ranks.iter_mut().filter(|(rank, _)| self.launches.includes(**rank)) {
            state.miss(signal);
        }
    }

    /// A process was started, or could not be. Then the next one may be started.
    pub fn handle_spawned(&mut self, now: Duration, environment: &HostEnvironment, rank: Rank, result: Result<u32, SpawnError>) {
        self.launches.end(rank);
        self.handle_start(now, rank, result);
        self.launch_some(environment);
    }

    fn handle_start(&mut self, now: Duration, rank: Rank, result: Result<u32, SpawnError>) {
        let Some(state) = self.ranks.get_mut(&rank) else { return };
        match result {
            Ok(pid) => {
                state.handle_pid(pid, now);
                if !state.is_returning() {
                    state.outlets = [(); 2].map(|()| Outlet::begin());
                    state.read(rank, &mut self.outputs);
                }
                self.outputs.push_back(HostOutput::ToHome(FromHost::Launched { rank, pid }));
                let missed = state.take_missed();
                if self.phase.is_ending() {
                    // The process was not there when the others were ended.
                    self.outputs.push_back(HostOutput::Signal(rank, libc::SIGKILL));
                } else {
                    self.outputs.extend(missed.into_iter().map(|signal| HostOutput::Signal(rank, signal)));
                }
            }
            Err(SpawnError { error, .. }) if state.is_returning() => self.handle_not_restored(now, rank, error),
            Err(SpawnError { error, code }) => {
                state.exit_with(ExitStatus::Code(code), now);
                state.handle_reported(Reported::Otherwise);
                self.outputs.push_back(HostOutput::ToHome(FromHost::LaunchFailed { rank, error, code }));
            }
        }
    }

    /// A piece of output came; empty: the stream has ended.
    pub fn handle_output(&mut self, rank: Rank, stream: OutputStream, data: ByteBuf) {
        let Some(state) = self.ranks.get_mut(&rank) else { return };
        if state.is_returning() || !state.outlet(stream).is_open() {
            return; // The pipe was given up.
        }
        if let Some((offset, data)) = state.outlet(stream).handle_read(data) {
            self.outputs.push_back(HostOutput::ToHome(FromHost::Output { rank, stream, offset, data }));
        }
        state.read(rank, &mut self.outputs);
        self.report_at_end();
        self.report_ended();
    }

    fn handle_output_taken(&mut self, rank: Rank, stream: OutputStream, offset: u64) {
        let Some(state) = self.ranks.get_mut(&rank) else { return };
        state.outlet(stream).handle_taken(offset);
        state.read(rank, &mut self.outputs);
        self.report_at_end();
        self.report_ended();
    }

    /// Kills a rank on request. It is brought back.
    pub fn kill(&mut self, rank: Rank) {
        if let Some(state) = self.ranks.get_mut(&rank).filter(|state| !state.has_exited()) {
            if state.verdict == Verdict::None {
                state.verdict = Verdict::KilledAsAsked;
            }
            if self.launches.includes(rank) {
                state.miss(libc::SIGKILL);
            } else {
                self.outputs.push_back(HostOutput::Signal(rank, libc::SIGKILL));
            }
        }
    }

    /// The program of a rank has come to its end.
    pub fn handle_at_end(&mut self, rank: Rank, end: ProgramEnd) {
        if let Some(state) = self.ranks.get_mut(&rank) {
            state.last_word = LastWord::Said(end);
        }
        self.report_at_end();
    }

    /// Whether the job ends with this code when the rank exits with it.
    pub fn fails_with(&self, rank: Rank, code: i32) -> bool {
        code != 0 && self.ranks.get(&rank).is_some_and(|state| state.mpi_phase() != MpiPhase::After)
    }

    /// The program of a rank has come to its end with this code, which ends the job: its process was let go.
    pub fn handle_let_go_alone(&mut self, rank: Rank, code: i32) {
        if let Some(state) = self.ranks.get_mut(&rank) {
            state.last_word = LastWord::Alone(code);
        }
    }

    /// A rank exits: it was let go, or nobody needs it any more.
    pub fn handle_leaving(&mut self, rank: Rank) {
        if let Some(state) = self.ranks.get_mut(&rank) {
            state.last_word = state.last_word.leave();
        }
    }

    /// All ranks of the job have come to their ends: one that is lost here since has ended.
    pub fn handle_all_at_end(&mut self, now: Duration, end: JobEnd) {
        for (rank, state) in &mut self.ranks {
            if state.is_to_be_brought_back() {
                state.exit_at_end(ExitStatus::Code(end.code_of(*rank)), now);
            }
        }
        self.end = Some(end);
        self.report_ended();
    }

    /// The ranks that have come to their ends, as the home was told.
    pub fn ranks_at_end(&self) -> impl Iterator<Item = Rank> + '_ {
        self.ranks.iter().filter(|(_, state)| state.is_at_end()).map(|(rank, _)| *rank)
    }

    /// Tells the home which ranks have come to their ends. Until its output is printed or kept there, bringing a rank back is the
    /// only way to that output if this node is lost.
    fn report_at_end(&mut self) {
        for (rank, state) in &mut self.ranks {
            for (stream, offset) in state.take_stream_ends() {
                let end = FromHost::Output { rank: *rank, stream, offset, data: ByteBuf::new() };
                self.outputs.push_back(HostOutput::ToHome(end));
            }
            if let Some(code) = state.take_end_to_tell() {
                self.outputs.push_back(HostOutput::ToHome(FromHost::AtEnd { rank: *rank, code }));
            }
        }
    }

    /// Rank 0 has taken this piece of standard input, or will never read it.
    pub fn handle_stdin_taken(&mut self, number: u64) {
        self.outputs.push_back(HostOutput::ToHome(FromHost::StdinTaken(number)));
    }

    /// Rank 0 was brought back and is live. `read`: how much of standard input it has read, if that is known.
    pub fn handle_input_read(&mut self, read: Option<u64>) {
        self.want_stdin(read.map_or(StdinWanted::Unknown, StdinWanted::From));
    }

    /// The home is told, and so is one that comes only now: an order may bring rank 0 back before this node knows that it is the home.
    fn want_stdin(&mut self, wanted: StdinWanted) {
        self.stdin = wanted;
        self.outputs.push_back(HostOutput::ToHome(FromHost::StdinWanted(wanted)));
    }

    /// How a rank counts whose process has ended so: what it has said holds, but for a signal that it was to get.
    fn settle(&mut self, rank: Rank, died: ExitStatus) -> ExitStatus {
        let is_wanted = matches!(died, ExitStatus::Signal(signal) if self.sent.contains(&signal));
        let Some(state) = self.ranks.get(&rank).filter(|_| !is_wanted) else { return died };
        let status = state.last_word.settle(died, self.end.as_ref().map(|end| end.code_of(rank)));
        if status != died {
            let note = format!("its process {died} at its end; the rank counts as it has said, that it {status}");
            self.outputs.push_back(HostOutput::Note(rank, note));
        }
        status
    }

    /// A process has ended.
    pub fn handle_exited(&mut self, now: Duration, rank: Rank, status: ExitStatus) {
        let status = self.settle(rank, status);
        let Some(state) = self.ranks.get_mut(&rank) else { return };
        let ended_by = match status {
            ExitStatus::Signal(signal) | ExitStatus::Ended(signal) => Some(signal),
            // The library of a process that cannot catch up ends it with this code. The protector tries again if it is there.
            ExitStatus::Code(exit_code::RADIC) if state.is_catching_up() => Some(libc::SIGABRT),
            ExitStatus::Code(_) => None,
        };
        let (was_returning, was_killed) = (state.is_returning(), state.is_killed_for_good());
        state.exit_with(if self.phase.is_ending() { status.with_job() } else { status }, now);
        if was_returning {
            // The new pipe was never read, so the offset of its first byte is not known.
            state.outlets.iter_mut().for_each(Outlet::close);
        }
        if let (Some(signal), Protect::On, false) = (ended_by, self.spec.protection.protect, self.phase.is_ending())
            && !self.sent.contains(&signal)
            && !was_killed
            && self.end.is_none()
            && !state.handle_ended_by(now, signal)
        {
            let why = format!("it died {RESTORES} times between its restore and living again; the last time it {status}");
            self.outputs.push_back(HostOutput::Unrestorable(rank, why, state.last_crash(signal)));
        }
        // Processes that the rank left behind in its group are killed as well.
        self.outputs.push_back(HostOutput::Signal(rank, libc::SIGKILL));
        self.report_ended();
        if !self.waiting.is_empty() {
            self.look_at_fence();
        }
    }

    /// Reports ranks whose process has ended and whose output was read. When all output is printed, reports the end of the host.
    fn report_ended(&mut self) {
        for (rank, state) in &mut self.ranks {
            let Some(exit) = state.exit().filter(|exit| exit.reported == Reported::No) else { continue };
            // Unprinted output waits here for the home. A last line without its end is printed when the home knows that no more
            // comes.
            if state.outlets.iter().any(Outlet::is_open) {
                continue;
            }
            match exit.crashed.filter(|_| !self.phase.is_ending()) {
                Some(crash) => {
                    state.phase = Phase::Lost(crash);
                    self.outputs.push_back(HostOutput::Lost(*rank, crash));
                }
                // The node itself tells the home of these.
                None if state.is_hopeless() => state.handle_reported(Reported::Otherwise),
                None => {
                    let (status, phase) = (exit.status, state.mpi_phase());
                    state.handle_reported(Reported::Home(status, phase));
                    self.outputs.push_back(HostOutput::ToHome(FromHost::Exited { rank: *rank, status, phase }));
                }
            }
        }
        // Until its output is printed, bringing the rank back is the only way to that output if this node is lost. A rank that
        // was ended for a restart has not ended by itself.
        for (rank, state) in self.ranks.iter_mut().filter(|_| !self.phase.restarts()) {
            if let Some(Exit { reported: Reported::Home(status, phase), .. }) = state.exit()
                && state.outlets.iter().all(Outlet::is_done)
            {
                state.handle_reported(Reported::Protector(status, phase));
                self.outputs.push_back(HostOutput::Left(*rank));
            }
        }
        if matches!(self.phase, HostPhase::Ending { .. })
            && self.ranks.values().all(|state| state.is_reported() && state.outlets.iter().all(Outlet::is_done))
        {
            self.phase.finish();
            self.outputs.push_back(HostOutput::ToHome(FromHost::Gone));
            self.outputs.push_back(HostOutput::Over);
        }
    }
}
