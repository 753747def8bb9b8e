//! The ranks of one job on this node: their processes, their PMI connections, their output.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use radic_wire::ids::{Epoch, Incarnation, JobId, NodeId, ProcessId, Rank};
use radic_wire::job::{ExitStatus, JobSpec, OutputStream, Placement, exit_code, placeholder};
use radic_wire::peer::{FromHost, HostReport, MpiPhase, RestartOrder, StdinWanted, ToHost, Ward};
use radic_wire::process::{Point, Protect, Protection, variable};
use serde_bytes::ByteBuf;

use super::launches::Launches;
use super::outlet::{Outlet, OutputLost};
use crate::pmi::{KeySpace, Reply, Request, Session};

/// Time between SIGTERM and SIGKILL for a rank that is to end.
const GRACE: Duration = Duration::from_secs(2);
/// Time that an ended rank's pipes may stay open (a process that left its group holds them) before they are closed.
const DRAIN: Duration = Duration::from_secs(2);
/// A rank may crash and be brought back this often within [`CRASH_TIME`]. One that goes on crashing has a bug, which comes back
/// with it.
const CRASHES: usize = 3;
const CRASH_TIME: Duration = Duration::from_secs(60);
/// A rank that dies before it is live again is brought back this often. After half of the attempts its log goes back to the image
/// before the newest ([`crate::store::RESTORES`]); after all of them no image is left to try.
const RESTORES: u32 = 2 * crate::store::RESTORES;
/// Time that the ranks of a lost home wait for the next home.
const ORPHANED: Duration = Duration::from_secs(30);
const STREAMS: [OutputStream; 2] = [OutputStream::Stdout, OutputStream::Stderr];
/// The loader's list of libraries that go before all others.
const PRELOAD: &str = "LD_PRELOAD";

/// What is particular to this node in the environment of a rank.
#[derive(Debug, Clone)]
pub struct HostEnvironment {
    /// The address that other nodes know.
    pub address: IpAddr,
    /// The interface that carries the address. Empty if no interface of this machine does, for example behind address
    /// translation.
    pub iface: String,
    /// Its network, as `a.b.c.d/len`.
    pub prefix: String,
    /// Path of `libradic_pmi.so`.
    pub radic_pmi: String,
    /// Path of `libradic.so`.
    pub library: String,
    /// Path of the socket for observers.
    pub process_socket: String,
    /// The node's name.
    pub node: String,
}

/// A process to be started.
#[derive(Debug)]
pub struct SpawnOrder {
    /// The program.
    pub program: ByteBuf,
    /// Its arguments, the first being its name.
    pub args: Vec<ByteBuf>,
    /// Its whole environment except `PMI_FD`.
    pub env: Vec<(ByteBuf, ByteBuf)>,
    /// Its working directory.
    pub dir: ByteBuf,
    /// The name of its key space.
    pub kvsname: String,
    /// Whether its standard input is a pipe from the daemon. Otherwise it is empty.
    pub stdin: bool,
    /// Its file mode creation mask.
    pub umask: u32,
    /// The library that it runs under, if any. The library must be there, and addresses are not randomised, because a restart
    /// puts everything back where it was.
    pub library: Option<String>,
}

/// A process to be brought back from its images, as a new incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreOrder {
    /// The process.
    pub process: ProcessId,
    /// Its new incarnation.
    pub incarnation: Incarnation,
    /// The log service that has its images.
    pub log: SocketAddr,
    /// Whether that log service is this node's own.
    pub local: bool,
    /// Another log service that has copies of the images, if there is one: for an image that is damaged.
    pub replica: Option<SocketAddr>,
    /// Its images, a full one first, then its increments: numbers and sizes.
    pub images: Vec<(u64, u64)>,
    /// The name of its key space.
    pub kvsname: String,
    /// Whether its standard input is a pipe from the daemon. Otherwise it is empty.
    pub stdin: bool,
    /// The library that it runs under.
    pub library: String,
}

/// A process that could not be started.
#[derive(Debug)]
pub struct SpawnError {
    /// What the system said, and of what.
    pub error: String,
    /// The exit code for this error.
    pub code: i32,
}

/// A request about names that ports are published under: any node of the cluster may know the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameRequest {
    /// Remember `port` under `name`.
    Publish {
        /// The name.
        name: String,
        /// The port.
        port: String,
    },
    /// Which port is published under this name?
    Lookup(String),
    /// Forget this name.
    Unpublish(String),
}

/// What a host wants done.
#[derive(Debug)]
pub enum HostOutput {
    /// Tell the job's home.
    ToHome(FromHost),
    /// Start a process; the answer is [`Host::handle_spawned`]. Signals and standard input that come before the process is there
    /// are to reach it then.
    Spawn(Rank, SpawnOrder),
    /// Bring a process back. The first answer is [`Input::Fetched`](super::Input::Fetched): the images are here and verified, or
    /// why not, and then nothing follows. The second answer is the same as to a start. A later order for the same process
    /// replaces one that is under way, and the replaced one is not answered any more. SIGKILL, SIGTERM or `Over` give an order
    /// up.
    Restore(Rank, RestoreOrder),
    /// Write to rank 0's standard input (empty: close it); the answer is [`Host::handle_stdin_taken`].
    Stdin {
        /// Repeated in the answer.
        number: u64,
        /// The bytes.
        data: ByteBuf,
    },
    /// Read the next piece of a rank's output; the answer is [`Host::handle_output`].
    Read(Rank, OutputStream),
    /// Give up a stream of a rank that has ended.
    Close(Rank, OutputStream),
    /// Write to a rank's PMI connection.
    Pmi(Rank, Vec<u8>),
    /// Send a signal to a rank's process group.
    Signal(Rank, i32),
    /// Answer a request about names by [`Host::handle_name`].
    Name(Rank, NameRequest),
    /// Something to record in the event log.
    Warning(Rank, String),
    /// A protected rank has crashed and all that it had written was read: it is to be brought back.
    Lost(Rank, i32),
    /// A rank died at every attempt to bring it back, before it was live. The signal is set if the same signal had ended the rank
    /// while it was live. The answer is [`Host::handle_not_restored`].
    Unrestorable(Rank, String, Option<i32>),
    /// A rank has ended by itself, and its home has all that it printed: its protector is to know.
    Left(Rank),
    /// A fence was released: the protector of the ranks is to know the keys.
    Fenced,
    /// Tell the job's home that the ranks are stopped, and where each was first launched.
    Frozen,
    /// Nothing of the job is left here.
    Over,
}

#[derive(Debug)]
struct LocalRank {
    pid: Option<u32>,
    session: Session,
    exited: Option<(ExitStatus, Duration)>,
    outlets: [Outlet; 2],
    reported: bool,
    /// How the rank has ended by itself, once its home was told.
    ended: Option<(ExitStatus, MpiPhase)>,
    /// Its protector was told, too.
    left: bool,
    /// Number of fences that the rank was let out of.
    fences: u64,
    /// The signal that ended the rank, which is to be brought back once its output was read.
    crashed: Option<i32>,
    /// Its recent crashes: when, and by which signal.
    crashes: Vec<(Duration, i32)>,
    /// How often in a row the rank has died between its restore and the event `live`.
    failed_restores: u32,
    /// The rank is being brought back here, and has not said yet where it stands.
    returning: bool,
    /// The rank was brought back and is not live yet.
    catching_up: bool,
    /// The rank was brought back and still needs its old log, which alone has what its program has not taken. It may do so after
    /// it is live.
    reads_log: bool,
    /// The signal that ended the rank, whose protector is to bring it back. There is no process.
    lost: Option<i32>,
    /// The rank cannot be brought back.
    hopeless: bool,
    /// Why this node has killed the rank, if it has.
    killed: Option<Killed>,
    /// Signals that came before the process did: each once, in the order in which they last came.
    missed: Vec<i32>,
}

/// Why a node kills a rank on its own initiative. Neither is a crash of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Killed {
    /// Its library has broken the protocol, or it cannot be brought back: it stays dead.
    ForGood,
    /// `radic inject kill-rank`: the rank is brought back, however often.
    AsAsked,
}

impl LocalRank {
    fn new(session: Session, fences: u64) -> Self {
        LocalRank {
            pid: None,
            session,
            exited: None,
            outlets: Default::default(),
            reported: false,
            ended: None,
            left: false,
            fences,
            crashed: None,
            crashes: Vec::new(),
            failed_restores: 0,
            returning: false,
            catching_up: false,
            reads_log: false,
            lost: None,
            hopeless: false,
            killed: None,
            missed: Vec::new(),
        }
    }

    fn outlet(&mut self, stream: OutputStream) -> &mut Outlet {
        &mut self.outlets[stream as usize]
    }

    fn phase(&self) -> MpiPhase {
        match (self.session.is_initialized(), self.session.is_finalized()) {
            (_, true) => MpiPhase::After,
            (true, false) => MpiPhase::Within,
            (false, false) => MpiPhase::Before,
        }
    }

    /// The rank crashed while it was live. It is brought back, unless it has crashed too often lately.
    fn handle_crashed(&mut self, now: Duration, signal: i32) {
        self.crashes.retain(|(at, _)| *at + CRASH_TIME > now);
        self.crashed = (self.crashes.len() < CRASHES).then_some(signal);
        self.crashes.push((now, signal));
    }

    /// The rank died between its restore and the event `live`. That is a failure of the restore, not of the program, so it is
    /// brought back a few more times. Returns false when it was brought back often enough.
    fn handle_restore_failed(&mut self, signal: i32) -> bool {
        self.failed_restores += 1;
        self.crashed = (self.failed_restores < RESTORES).then_some(signal);
        self.crashed.is_some()
    }

    /// Remembers a signal that comes before its process does.
    fn miss(&mut self, signal: i32) {
        self.missed.retain(|missed| *missed != signal);
        self.missed.push(signal);
    }

    /// Orders reads of the streams that may be read.
    fn read(&mut self, rank: Rank, outputs: &mut VecDeque<HostOutput>) {
        for (outlet, stream) in self.outlets.iter_mut().zip(STREAMS) {
            if outlet.ask() {
                outputs.push_back(HostOutput::Read(rank, stream));
            }
        }
    }
}

/// The ranks of one job on this node.
#[derive(Debug)]
pub struct Host {
    job: JobId,
    home: NodeId,
    spec: JobSpec,
    placement: Placement,
    epoch: Epoch,
    ranks: BTreeMap<Rank, LocalRank>,
    /// The ranks that are still to be started here.
    launches: Launches,
    keys: KeySpace,
    fence: u64,
    /// Ranks that wait in the fence after the last one that each was let out of.
    waiting: BTreeSet<Rank>,
    ending: bool,
    kill_at: Option<Duration>,
    /// If the home is lost: until when the next one may come.
    orphaned: Option<Duration>,
    /// Signals that the ranks were sent on purpose: a rank that ends by one of them is not brought back.
    sent: BTreeSet<i32>,
    over: bool,
    /// The host was ended because the job restarts from the beginning, or is ended by force.
    killed: bool,
    /// The host was ended because the job restarts from the beginning.
    anew: bool,
    /// The job has restarted, and this host is of an earlier epoch.
    superseded: bool,
    outputs: VecDeque<HostOutput>,
}

impl Host {
    /// Starts the ranks that `placement` puts on `me`.
    ///
    /// # Panics
    /// If the placement does not fit the job: its sender and the caller have both checked it.
    pub fn launch(
        me: &NodeId,
        environment: &HostEnvironment,
        job: JobId,
        epoch: Epoch,
        spec: &JobSpec,
        placement: Placement,
    ) -> Self {
        assert!(placement.is_valid(spec.ranks), "the caller has validated the placement");
        let keys = KeySpace::new(spec.ranks);
        let ward = Ward { epoch, spec: spec.clone(), placement: placement.clone(), fence: 0, keys: Vec::new() };
        let mut host = Host::empty(job, ward, keys);
        host.launch_ranks(me, environment, &placement);
        host
    }

    /// Starts the ranks that `placement` puts on `me`, except those that are here already: an order to bring a rank back may have
    /// come before the word to launch.
    pub fn launch_ranks(&mut self, me: &NodeId, environment: &HostEnvironment, placement: &Placement) {
        if self.ending {
            return;
        }
        let kvsname = self.kvsname();
        for rank in placement.ranks_on(me).filter(|rank| !self.ranks.contains_key(rank)).collect::<Vec<_>>() {
            self.ranks.insert(rank, LocalRank::new(Session::new(rank, self.spec.ranks, kvsname.clone()), 0));
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
            };
            self.outputs.push_back(HostOutput::Spawn(rank, order));
        }
    }

    /// A host without ranks, on a node that is going to bring some back.
    pub fn adopt(job: JobId, ward: &Ward) -> Self {
        let mut keys = KeySpace::new(ward.spec.ranks);
        // The keys come from a key space, so there are no more than one holds.
        _ = keys.merge(ward.keys.iter().cloned());
        Host::empty(job, ward.clone(), keys)
    }

    fn empty(job: JobId, ward: Ward, keys: KeySpace) -> Self {
        let Ward { epoch, spec, placement, fence, .. } = ward;
        let (ranks, launches, waiting, sent, outputs) = Default::default();
        Host {
            job,
            home: placement.home().clone(),
            placement,
            spec,
            epoch,
            ranks,
            launches,
            keys,
            fence,
            waiting,
            ending: false,
            kill_at: None,
            orphaned: None,
            sent,
            over: false,
            killed: false,
            anew: false,
            superseded: false,
            outputs,
        }
    }

    /// The name of the job's key space in this epoch.
    fn kvsname(&self) -> String {
        format!("radic_{}_{}", self.job, self.epoch)
    }

    /// Brings a rank back. It may have been here before.
    pub fn restore(&mut self, order: &RestartOrder, local: bool, library: String) {
        if self.ending {
            return;
        }
        let RestartOrder { process, incarnation, log, replica, ref images, .. } = *order;
        let (rank, kvsname) = (process.rank, self.kvsname());
        let session = Session::new(rank, self.spec.ranks, kvsname.clone());
        let mut state = LocalRank::new(session, self.fence);
        if let Some(before) = self.ranks.remove(&rank) {
            (state.outlets, state.crashes, state.failed_restores) = (before.outlets, before.crashes, before.failed_restores);
        }
        (state.returning, state.catching_up, state.reads_log) = (true, true, true);
        self.ranks.insert(rank, state);
        self.launches.forget(rank);
        self.waiting.remove(&rank);
        let stdin = rank == Rank(0);
        if stdin {
            // Its new pipe must stay empty until the rank says what it has read.
            self.outputs.push_back(HostOutput::ToHome(FromHost::StdinWanted(StdinWanted::Nothing)));
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
        state.returning = false;
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
            (state.catching_up, state.failed_restores) = (false, 0);
        }
    }

    /// The rank needs nothing more of the log that it was brought back with.
    pub fn handle_log_read(&mut self, rank: Rank) {
        if let Some(state) = self.ranks.get_mut(&rank) {
            state.reads_log = false;
        }
    }

    /// Whether the rank cannot be brought back here.
    pub fn is_hopeless(&self, rank: Rank) -> bool {
        self.ranks.get(&rank).is_some_and(|state| state.hopeless)
    }

    /// Whether the rank cannot go on without its old log: it is being brought back here, or is to be, or has not read all of it.
    pub fn needs_log(&self, rank: Rank) -> bool {
        let reads = |state: &LocalRank| state.reads_log && state.exited.is_none();
        let needs = |state: &LocalRank| state.lost.is_some() || state.crashed.is_some() || reads(state);
        self.ranks.get(&rank).is_some_and(needs)
    }

    /// The rank cannot be brought back. A process that is there all the same is killed, which is no crash: the next attempt would
    /// start from the same.
    pub fn handle_not_restored(&mut self, now: Duration, rank: Rank, why: String) {
        if let Some(state) = self.ranks.get_mut(&rank) {
            (state.returning, state.hopeless) = (false, true);
            state.outlets.iter_mut().for_each(Outlet::close);
            if state.pid.is_some() && state.exited.is_none() {
                state.killed = Some(Killed::ForGood);
                self.outputs.push_back(HostOutput::Signal(rank, libc::SIGKILL));
            } else {
                state.exited = Some((ExitStatus::Signal(libc::SIGKILL), now));
            }
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
        if self.ending && self.ranks.values().all(|state| state.reported) {
            // All ranks here had ended by themselves when the home said that the job ends. Those of the lost node may have to
            // come back here to print. The next home says when the job is over.
            (self.ending, self.kill_at) = (false, None);
        }
    }

    /// There is a new home. It is told what has become of the ranks here, and gets the output that was not printed.
    pub fn handle_new_home(&mut self, home: NodeId) {
        self.home = home;
        self.orphaned = None;
        let (mut running, mut ended) = (Vec::new(), Vec::new());
        // The node itself tells the home of ranks that cannot be brought back.
        for (rank, state) in self.ranks.iter().filter(|(_, state)| !state.hopeless) {
            match state.exited.filter(|_| state.reported) {
                Some((status, _)) => ended.push((*rank, status, state.phase())),
                None => running.push(*rank),
            }
        }
        let waiting = if self.is_in_fence() { self.ranks().collect() } else { Vec::new() };
        let (fence, keys) = (self.fence, self.keys.all());
        let report = HostReport { running, ended, fence, keys, waiting, anew: self.anew };
        self.outputs.push_back(HostOutput::ToHome(FromHost::Report(report)));
        for (rank, state) in &self.ranks {
            for (outlet, stream) in state.outlets.iter().zip(STREAMS) {
                let pieces = outlet.unprinted().cloned();
                let again = pieces.map(|(offset, data)| FromHost::Output { rank: *rank, stream, offset, data });
                self.outputs.extend(again.map(HostOutput::ToHome));
            }
        }
    }

    /// How the ranks here have ended, for a home that comes after this host is over. Empty for an epoch from which the job does
    /// not go on.
    pub fn ends(&self) -> Vec<(Rank, ExitStatus, MpiPhase)> {
        if self.killed || self.superseded {
            return Vec::new();
        }
        self.ranks.iter().filter_map(|(rank, state)| state.ended.map(|(status, phase)| (*rank, status, phase))).collect()
    }

    /// Whether this host was ended for a restart of the job, and the next epoch has not come here yet.
    pub fn begins_anew(&self) -> bool {
        self.anew && !self.superseded
    }

    /// How a rank has ended of which nothing is needed any more.
    pub fn end_of(&self, rank: Rank) -> Option<(ExitStatus, MpiPhase)> {
        self.ranks.get(&rank).filter(|state| state.left)?.ended
    }

    /// Whether the rank has ended by itself, or never was here.
    pub fn has_left(&self, rank: Rank) -> bool {
        self.ranks.get(&rank).is_none_or(|state| state.exited.is_some() && state.crashed.is_none() && !state.hopeless)
    }

    /// Whether the rank was brought back here, has said where it stands, and is not live yet.
    pub fn catches_up(&self, rank: Rank) -> bool {
        let catches_up = |state: &LocalRank| state.catching_up && !state.returning && !state.hopeless && state.exited.is_none();
        !self.ending && self.ranks.get(&rank).is_some_and(catches_up)
    }

    /// Whether the rank was here, is not now, and will be here again.
    pub fn is_away(&self, rank: Rank) -> bool {
        // A rank behind the last fence repeats what it did before it. Its peers have the keys that it had published, and may dial
        // it before it listens again.
        let is_behind = |state: &LocalRank| state.fences < self.fence && state.exited.is_none() && state.ended.is_none();
        let is_gone = |state: &LocalRank| state.crashed.is_some() || state.lost.is_some();
        let is_away = |state: &LocalRank| !state.hopeless && (state.catching_up || is_behind(state) || is_gone(state));
        !self.ending && self.ranks.get(&rank).is_some_and(is_away)
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
        self.ranks.get(&rank).filter(|r| r.exited.is_none())?.pid
    }

    /// The process id that a rank has, or had; 0 if it was not started.
    pub fn last_pid(&self, rank: Rank) -> u32 {
        self.ranks.get(&rank).and_then(|r| r.pid).unwrap_or(0)
    }

    /// Whether the job has ranks on that node.
    pub fn involves(&self, node: &NodeId) -> bool {
        self.placement.nodes.contains(node)
    }

    /// The ranks that run here, with their process ids.
    pub fn running(&self) -> impl Iterator<Item = (Rank, u32)> + '_ {
        self.ranks.iter().filter(|(_, r)| r.exited.is_none()).filter_map(|(rank, r)| Some((*rank, r.pid?)))
    }

    /// What the host wants done next.
    pub fn poll_output(&mut self) -> Option<HostOutput> {
        self.outputs.pop_front()
    }

    /// When [`Host::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let drains = self.ranks.values().filter(|r| !r.reported).filter_map(|r| Some(r.exited?.1 + DRAIN)).min();
        [drains, self.kill_at, self.orphaned].into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill_at = None;
            self.signal(libc::SIGKILL);
        }
        if self.orphaned.take_if(|at| *at <= now).is_some() {
            self.abandon(now);
        }
        let mut closed = Vec::new();
        for (rank, state) in &mut self.ranks {
            if let Some((status, at)) = state.exited.filter(|(_, at)| !state.reported && *at + DRAIN <= now) {
                // Output that waits for a slow terminal is not lost. Only streams that bring nothing are given up.
                for (outlet, stream) in state.outlets.iter_mut().zip(STREAMS).filter(|(outlet, _)| outlet.is_idle()) {
                    outlet.close();
                    closed.push(HostOutput::Close(*rank, stream));
                }
                let closed = !state.outlets.iter().any(Outlet::is_open);
                state.exited = Some((status, if closed { at } else { now }));
            }
        }
        self.outputs.extend(closed);
        self.report_ended();
    }

    /// The home speaks.
    pub fn handle_message(&mut self, now: Duration, message: ToHost) {
        match message {
            ToHost::Launch { .. } => {} // The node handles it.
            ToHost::Stdin { number, data } => self.outputs.push_back(HostOutput::Stdin { number, data }),
            ToHost::Signal(signal) => {
                self.sent.insert(signal);
                self.signal(signal);
                self.signal_later(signal);
            }
            ToHost::OutputTaken { rank, stream, offset } => self.handle_output_taken(rank, stream, offset),
            ToHost::Release { number, entries } => self.handle_release(number, entries),
            ToHost::Freeze => self.freeze(),
            ToHost::Thaw => self.signal(libc::SIGCONT),
            ToHost::End { kill, anew, .. } => {
                self.anew |= anew;
                self.end(now, kill);
            }
        }
    }

    /// Stops every rank, if all of them run.
    fn freeze(&mut self) {
        let runs = |state: &LocalRank| state.pid.is_some() && state.exited.is_none() && !state.returning && state.lost.is_none();
        match self.ranks.iter().find(|(_, state)| self.ending || !runs(state)).map(|(rank, _)| *rank) {
            Some(rank) => {
                let why = format!("rank {rank} does not run");
                self.outputs.push_back(HostOutput::ToHome(FromHost::Frozen(Err(why))));
            }
            None => {
                self.signal(libc::SIGSTOP);
                self.outputs.push_back(HostOutput::Frozen);
            }
        }
    }

    /// The job ends here: everything that still runs is ended.
    pub fn end(&mut self, now: Duration, kill: bool) {
        self.ending = true;
        // A rank whose start is given up counts as killed, as a rank does that has just been started.
        for rank in self.launches.give_up() {
            self.ranks.entry(rank).and_modify(|state| state.exited = Some((ExitStatus::Signal(libc::SIGKILL), now)));
        }
        // A rank that is lost will not come back: the job ends.
        for state in self.ranks.values_mut() {
            if let Some(signal) = state.lost.take() {
                state.exited = Some((ExitStatus::Signal(signal), now));
            }
        }
        self.killed |= kill;
        if kill {
            self.kill_at = None;
            self.signal(libc::SIGKILL);
        } else if self.kill_at.is_none() {
            self.kill_at = Some(now + GRACE);
            self.signal(libc::SIGTERM);
            // A stopped process takes SIGTERM only when it goes on.
            self.signal(libc::SIGCONT);
        }
        self.report_ended();
    }

    /// The job has restarted elsewhere. The ranks that came back here since are ended, and the home, which takes this host for
    /// gone, hears nothing of it.
    pub fn supersede(&mut self, now: Duration) {
        self.superseded = true;
        self.abandon(now);
    }

    /// Whether this host is of an epoch that the job has left behind.
    pub fn is_superseded(&self) -> bool {
        self.superseded
    }

    /// This side of the cluster could not decide anything for too long, which is treated like the loss of the home. If the home
    /// is within reach after all, it hears the reason first, so that it does not take the killed ranks for failed ones.
    pub fn give_up(&mut self, now: Duration, why: &str) {
        let first = self.running().next().map(|(rank, _)| rank).or(self.launches.any());
        let first = first.map(|rank| FromHost::Lost { rank, why: why.to_owned() });
        self.outputs.extend(first.map(HostOutput::ToHome));
        self.abandon(now);
    }

    /// The home is lost: the output is not taken any more, and every running rank is killed.
    pub fn abandon(&mut self, now: Duration) {
        for (rank, state) in &mut self.ranks {
            for (outlet, stream) in state.outlets.iter_mut().zip(STREAMS) {
                if outlet.is_open() {
                    self.outputs.push_back(HostOutput::Close(*rank, stream));
                }
                *outlet = Outlet::default();
            }
        }
        self.end(now, true);
    }

    fn signal(&mut self, signal: i32) {
        let running: Vec<_> = self.running().collect();
        self.outputs.extend(running.into_iter().map(|(rank, _)| HostOutput::Signal(rank, signal)));
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
                state.pid = Some(pid);
                if !state.returning {
                    state.outlets = [(); 2].map(|()| Outlet::begin());
                    state.read(rank, &mut self.outputs);
                }
                self.outputs.push_back(HostOutput::ToHome(FromHost::Launched { rank, pid }));
                let missed = std::mem::take(&mut state.missed);
                if self.ending {
                    // The process was not there when the others were ended.
                    self.outputs.push_back(HostOutput::Signal(rank, libc::SIGKILL));
                } else {
                    self.outputs.extend(missed.into_iter().map(|signal| HostOutput::Signal(rank, signal)));
                }
            }
            Err(SpawnError { error, .. }) if state.returning => self.handle_not_restored(now, rank, error),
            Err(SpawnError { error, code }) => {
                state.exited = Some((ExitStatus::Code(code), now));
                state.reported = true;
                self.outputs.push_back(HostOutput::ToHome(FromHost::LaunchFailed { rank, error, code }));
            }
        }
    }

    /// A piece of output came; empty: the stream has ended.
    pub fn handle_output(&mut self, rank: Rank, stream: OutputStream, data: ByteBuf) {
        let Some(state) = self.ranks.get_mut(&rank) else { return };
        if state.returning || !state.outlet(stream).is_open() {
            return; // The pipe was given up.
        }
        if let Some((offset, data)) = state.outlet(stream).handle_read(data) {
            self.outputs.push_back(HostOutput::ToHome(FromHost::Output { rank, stream, offset, data }));
        }
        state.read(rank, &mut self.outputs);
        self.report_ended();
    }

    fn handle_output_taken(&mut self, rank: Rank, stream: OutputStream, offset: u64) {
        let Some(state) = self.ranks.get_mut(&rank) else { return };
        state.outlet(stream).handle_taken(offset);
        state.read(rank, &mut self.outputs);
        self.report_ended();
    }

    /// Kills a rank on request. It is brought back.
    pub fn kill(&mut self, rank: Rank) {
        if let Some(state) = self.ranks.get_mut(&rank).filter(|state| state.exited.is_none()) {
            state.killed.get_or_insert(Killed::AsAsked);
            if self.launches.includes(rank) {
                state.miss(libc::SIGKILL);
            } else {
                self.outputs.push_back(HostOutput::Signal(rank, libc::SIGKILL));
            }
        }
    }

    /// Rank 0 has taken this piece of standard input, or will never read it.
    pub fn handle_stdin_taken(&mut self, number: u64) {
        self.outputs.push_back(HostOutput::ToHome(FromHost::StdinTaken(number)));
    }

    /// Rank 0 was brought back and is live. `read`: how much of standard input it has read, if that is known.
    pub fn handle_input_read(&mut self, read: Option<u64>) {
        let wanted = read.map_or(StdinWanted::Unknown, StdinWanted::From);
        self.outputs.push_back(HostOutput::ToHome(FromHost::StdinWanted(wanted)));
    }

    /// A process has ended.
    pub fn handle_exited(&mut self, now: Duration, rank: Rank, status: ExitStatus) {
        let Some(state) = self.ranks.get_mut(&rank) else { return };
        let ended_by = match status {
            ExitStatus::Signal(signal) => Some(signal),
            // The library of a process that cannot catch up ends it with this code. The protector tries again if it is there.
            ExitStatus::Code(exit_code::RADIC) if state.catching_up => Some(libc::SIGABRT),
            ExitStatus::Code(_) => None,
        };
        if let (Some(signal), Protect::On, false) = (ended_by, self.spec.protection.protect, self.ending)
            && !self.sent.contains(&signal)
            && state.killed != Some(Killed::ForGood)
        {
            if state.killed == Some(Killed::AsAsked) {
                state.crashed = Some(signal);
            } else if !state.catching_up {
                state.handle_crashed(now, signal);
            } else if !state.handle_restore_failed(signal) {
                state.hopeless = true;
                let own = state.crashes.last().map(|(_, own)| *own).filter(|own| *own == signal);
                let why = format!("it died {RESTORES} times between its restore and living again; the last time it {status}");
                self.outputs.push_back(HostOutput::Unrestorable(rank, why, own));
            }
        }
        if std::mem::take(&mut state.returning) {
            // The new pipe was never read, so the offset of its first byte is not known.
            state.outlets.iter_mut().for_each(Outlet::close);
        }
        state.exited = Some((status, now));
        // Processes that the rank left behind in its group are killed as well.
        self.outputs.push_back(HostOutput::Signal(rank, libc::SIGKILL));
        self.report_ended();
    }

    /// Reports ranks whose process has ended and whose output was read. When all output is printed, reports the end of the host.
    fn report_ended(&mut self) {
        for (rank, state) in &mut self.ranks {
            let Some((status, _)) = state.exited.filter(|_| !state.reported) else { continue };
            if let Some(signal) = state.crashed
                && !self.ending
            {
                if state.outlets.iter().all(|outlet| !outlet.is_open()) {
                    (state.crashed, state.exited, state.pid, state.lost) = (None, None, None, Some(signal));
                    self.outputs.push_back(HostOutput::Lost(*rank, signal));
                }
                continue;
            }
            // Unprinted output waits here for the home. A last line without its end is printed when the home knows that no more
            // comes.
            if state.outlets.iter().any(Outlet::is_open) {
                continue;
            }
            state.reported = true;
            if state.hopeless {
                // The node itself tells the home of these.
                continue;
            }
            let phase = state.phase();
            state.ended = Some((status, phase));
            self.outputs.push_back(HostOutput::ToHome(FromHost::Exited { rank: *rank, status, phase }));
        }
        // Until its output is printed, bringing the rank back is the only way to that output if this node is lost. A rank that
        // was ended for a restart has not ended by itself.
        let left = self.ranks.iter_mut().filter(|(_, state)| !self.anew && state.ended.is_some() && !state.left);
        for (rank, state) in left {
            state.left = state.outlets.iter().all(Outlet::is_done);
            self.outputs.extend(state.left.then_some(HostOutput::Left(*rank)));
        }
        if self.ending && !self.over && self.ranks.values().all(|r| r.reported && r.outlets.iter().all(Outlet::is_done)) {
            self.over = true;
            self.outputs.push_back(HostOutput::ToHome(FromHost::Gone));
            self.outputs.push_back(HostOutput::Over);
        }
    }

    /// Bytes came on a rank's PMI connection.
    pub fn handle_pmi(&mut self, rank: Rank, bytes: &[u8]) {
        let Some(state) = self.ranks.get_mut(&rank).filter(|state| state.killed != Some(Killed::ForGood)) else { return };
        if let Err(error) = state.session.handle_input(bytes) {
            // The library and this node do not understand each other any more: going on could only hang.
            state.killed = Some(Killed::ForGood);
            self.outputs.push_back(HostOutput::Warning(rank, format!("its PMI connection is broken ({error}): killed")));
            self.outputs.push_back(HostOutput::Signal(rank, libc::SIGKILL));
            return;
        }
        while let Some(request) = self.ranks.get_mut(&rank).and_then(|r| r.session.poll_request()) {
            self.handle_request(rank, request);
        }
        self.flush(rank);
    }

    fn handle_request(&mut self, rank: Rank, request: Request) {
        let reply = match request {
            Request::Put { key, value } => match self.keys.put(key, value) {
                Ok(()) => Reply::Done,
                Err(error) => Reply::Failed(error.to_string()),
            },
            Request::Get { key } => match self.keys.get(&key) {
                Some(value) => Reply::Value(value.to_owned()),
                None => Reply::Failed(format!("no key {key:?} before this fence")),
            },
            Request::GetByIdx { index } => match self.keys.get_by_index(index) {
                Some((key, value)) => Reply::Entry { key: key.to_owned(), value: value.to_owned() },
                None => Reply::Failed("no more keys".to_owned()),
            },
            Request::BarrierIn => return self.enter_fence(rank),
            Request::Finalize => Reply::Done,
            Request::Abort { code, message } => {
                // Open MPI sends this when it has no message.
                let message = message.filter(|m| m != "N/A").unwrap_or_default();
                return self.outputs.push_back(HostOutput::ToHome(FromHost::Aborted { rank, code, message }));
            }
            Request::PublishName { service: name, port } => {
                return self.outputs.push_back(HostOutput::Name(rank, NameRequest::Publish { name, port }));
            }
            Request::LookupName { service: name } => {
                return self.outputs.push_back(HostOutput::Name(rank, NameRequest::Lookup(name)));
            }
            Request::UnpublishName { service: name } => {
                return self.outputs.push_back(HostOutput::Name(rank, NameRequest::Unpublish(name)));
            }
        };
        self.reply(rank, reply);
    }

    fn reply(&mut self, rank: Rank, reply: Reply) {
        if let Some(state) = self.ranks.get_mut(&rank) {
            state.session.reply(reply);
        }
    }

    fn flush(&mut self, rank: Rank) {
        let Some(state) = self.ranks.get_mut(&rank) else { return };
        while let Some(bytes) = state.session.poll_output() {
            self.outputs.push_back(HostOutput::Pmi(rank, bytes));
        }
    }

    /// Whether all ranks here are in the next fence. A rank that had been let out of it before it was lost does not enter it
    /// again.
    fn is_in_fence(&self) -> bool {
        let is_in = |(rank, state): (&Rank, &LocalRank)| state.fences > self.fence || self.waiting.contains(rank);
        !self.ranks.is_empty() && self.ranks.iter().all(is_in)
    }

    /// Tells the home if all ranks here are in the next fence. To say so twice changes nothing.
    fn look_at_fence(&mut self) {
        if self.is_in_fence() {
            // What only the lost home was told, the next home does not know before this host has reported.
            let entries = if self.orphaned.is_some() { self.keys.all() } else { self.keys.take_fresh() };
            let (number, ranks) = (self.fence + 1, self.ranks().collect());
            self.outputs.push_back(HostOutput::ToHome(FromHost::Fence { number, ranks, entries }));
        }
    }

    fn enter_fence(&mut self, rank: Rank) {
        if let Some(state) = self.ranks.get_mut(&rank).filter(|state| state.fences < self.fence) {
            // The rank had been let out of this fence before it was lost.
            state.fences += 1;
            return self.reply(rank, Reply::Done);
        }
        self.waiting.insert(rank);
        self.look_at_fence();
    }

    /// A fence is over. A rank that is catching up here may not have come to it yet: it passes when it does.
    fn handle_release(&mut self, number: u64, entries: Vec<(String, String)>) {
        if number != self.fence + 1 {
            return;
        }
        self.fence = number;
        let merged = self.keys.merge(entries);
        for rank in std::mem::take(&mut self.waiting) {
            let Some(state) = self.ranks.get_mut(&rank) else { continue };
            if state.fences >= number {
                // The rank waits in a later one.
                self.waiting.insert(rank);
                continue;
            }
            state.fences = number;
            self.reply(rank, merged.as_ref().map_or_else(|error| Reply::Failed(error.to_string()), |()| Reply::Done));
            self.flush(rank);
        }
        self.outputs.push_back(HostOutput::Fenced);
        self.look_at_fence();
    }

    /// The answer to [`HostOutput::Name`]: the port, or why not.
    pub fn handle_name(&mut self, rank: Rank, request: &NameRequest, answer: Result<String, String>) {
        let reply = match (request, answer) {
            (NameRequest::Publish { .. } | NameRequest::Unpublish(_), Ok(_)) => Reply::Done,
            (NameRequest::Lookup(_), Ok(port)) => Reply::Value(port),
            (_, Err(error)) => Reply::Failed(error),
        };
        self.reply(rank, reply);
        self.flush(rank);
    }
}

/// The number of the job for Open MPI 4, which keeps 32 bits. It clears bit 15 in some places and not in others, so ranks of a
/// job with that bit set would take each other for strangers. The number need not be unique: it only names keys in the job's own
/// key space.
fn job_number(job: JobId) -> u64 {
    job.bits() & 0x7fff_7fff
}

/// The environment of a rank: the user's, then what is particular to the node, then what RADIC tells every rank.
fn environment_of(rank: Rank, job: JobId, spec: &JobSpec, host: &HostEnvironment) -> Vec<(ByteBuf, ByteBuf)> {
    let values = [
        (placeholder::IFACE, host.iface.clone()),
        (placeholder::ADDRESS, host.address.to_string()),
        (placeholder::PREFIX, host.prefix.clone()),
        (placeholder::RADIC_PMI, host.radic_pmi.clone()),
        (placeholder::RANK, rank.to_string()),
        (placeholder::JOBNUM, job_number(job).to_string()),
    ];
    let expand = |template: &str| values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(name, value));
    // If no interface carries the address, variables about it are left out, and the library chooses. With an empty value it would
    // find no network at all.
    let of_interface = |template: &str| [placeholder::IFACE, placeholder::PREFIX].iter().any(|name| template.contains(name));
    let has_value = |template: &str| !host.iface.is_empty() || !of_interface(template);
    let templates = spec.templates.iter().filter(|(_, template)| has_value(template));
    let templates = templates.map(|(name, template)| (name.clone(), expand(template)));
    let ours = [
        ("PMI_RANK", rank.to_string()),
        ("PMI_SIZE", spec.ranks.to_string()),
        (variable::JOB, job.to_string()),
        (variable::RANK, rank.to_string()),
        ("RADIC_SIZE", spec.ranks.to_string()),
        ("RADIC_NODE", host.node.clone()),
    ];
    let ours = ours.into_iter().map(|(name, value)| (name.to_owned(), value));
    let mut env = spec.env.clone();
    for (name, value) in templates.chain(ours) {
        set(&mut env, &name, value.into_bytes());
    }
    // A command that is itself a rank must not pass its own socket on.
    env.retain(|(name, _)| name.as_ref() != variable::SOCKET.as_bytes());
    if spec.protection.protect != Protect::None {
        set(&mut env, variable::SOCKET, host.process_socket.clone().into_bytes());
        // Before the user's own libraries: the loader asks the first one first.
        let user = env.iter().find(|(name, _)| name.as_ref() == PRELOAD.as_bytes()).map(|(_, value)| value.to_vec());
        let others = user.filter(|user| !user.is_empty()).map_or(Vec::new(), |user| [b":", user.as_slice()].concat());
        set(&mut env, PRELOAD, [host.library.as_bytes(), &others].concat());
    }
    env
}

fn set(env: &mut Vec<(ByteBuf, ByteBuf)>, name: &str, value: Vec<u8>) {
    env.retain(|(existing, _)| existing.as_ref() != name.as_bytes());
    env.push((ByteBuf::from(name), ByteBuf::from(value)));
}
