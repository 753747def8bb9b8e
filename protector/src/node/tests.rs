//! Clusters of real [`Node`]s with a virtual network, virtual time and pretended processes.

mod ends;
mod epochs;
mod homes;
mod jobs;
mod launching;
mod lost;
mod observed;
mod suspended;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::ids::{BootId, Epoch, Incarnation, NodeName, Seat};
use radic_wire::job::{EndReason, JobSpec, MapBy, OnLoss, Outcome, Placement, RestartOn, Ward};
use radic_wire::key::ClusterKey;
use radic_wire::limits;
use radic_wire::log::ImageRange;
use radic_wire::mac::JobKey;
use radic_wire::membership::{MembershipBody, Role};
use radic_wire::peer::{
    Adoption, Crashed, FromHost, HostReport, MpiPhase, RestartOrder, SessionId, StdinWanted, ToHome, ToHost, ToSession, ToStore,
};
use radic_wire::process::{Counters, Interval, Machine, Place, Point, Protect, Protection, StreamEnd};

use super::host::HostEnvironment;
use super::*;

/// A job's rank as far as the node can see: what it reads and writes.
#[derive(Default)]
struct Pretended {
    /// Output to come, per stream; the node reads a piece when it wants one.
    output: BTreeMap<OutputStream, VecDeque<Vec<u8>>>,
    permits: BTreeSet<OutputStream>,
    stdin: Vec<u8>,
    answers: String,
    signals: Vec<i32>,
    ended: bool,
    /// What it is at, if it goes through fences ([`lost`]).
    program: lost::Program,
}

struct Cluster {
    now: Duration,
    nodes: BTreeMap<NodeName, Node>,
    /// What is under way, by arrival.
    wire: VecDeque<(Duration, NodeName, Input)>,
    ranks: BTreeMap<ProcessId, (NodeName, Pretended)>,
    replies: BTreeMap<ClientId, Vec<Reply>>,
    dead: BTreeSet<NodeName>,
    /// Programs that cannot be started.
    broken: bool,
    ignore_sigterm: bool,
    /// Its process waits in the kernel, and does not end when it is killed.
    unkillable: Option<ProcessId>,
    /// This many more processes that are brought back do not say where they stand.
    mute: u32,
    /// Rank 0 does not read.
    hold_stdin: bool,
    /// What observers were told.
    told: BTreeMap<ObserverId, Vec<FromNode>>,
    closed: BTreeSet<ObserverId>,
    nudged: Vec<ObserverId>,
    /// What the log services were ordered, and where.
    orders: Vec<(NodeName, StoreOrder)>,
    /// Questions to this node stay under way until the test names another one.
    deaf: Option<NodeName>,
    unheard: Vec<Input>,
    /// The ranks that were started: environment and library.
    launched: Vec<Launched>,
    /// Those that are to be caused.
    faults: Vec<(NodeName, Fault)>,
    /// Images that are committed: the node, the process, and how many fences it had left then.
    images: BTreeMap<(NodeName, ProcessId), u64>,
    /// Processes that were brought back: the incarnation, and the node.
    restored: Vec<(ProcessId, Incarnation, NodeName)>,
    /// The images of these were made before `MPI_Init`.
    early: BTreeSet<ProcessId>,
    /// These do not say that they have caught up.
    silent: bool,
    restart_on: RestartOn,
    on_loss: OnLoss,
    replicas: u8,
    /// What nodes say to each other takes different times; what one says to another stays in its order.
    jitter: Option<Random>,
    arrivals: BTreeMap<(NodeId, NodeName), Duration>,
}

type Launched = (Vec<(ByteBuf, ByteBuf)>, Option<String>);

thread_local! {
    /// Where every process that is catching up stands in its journal. None: the processes cannot be looked at.
    static REPLAYED: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
    /// Processes that catch up are stopped.
    static STOPPED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

fn replayed() -> Option<u64> {
    REPLAYED.get()
}

/// Time that one may wait there.
const REPLAY_LIMIT: Duration = Duration::from_secs(10);

const LATENCY: Duration = Duration::from_micros(100);

/// Where a home sits that is looked at alone.
const SEAT: Seat = Seat { view: 1, home: BootId(1) };

/// The epoch that this home gives after this many others.
fn epoch(count: u32) -> Epoch {
    Epoch { view: SEAT.view, count, home: SEAT.home }
}

fn name(index: usize) -> NodeName {
    format!("n{index}").parse().unwrap()
}

fn id(index: usize) -> NodeId {
    NodeId { name: name(index), boot: BootId(index as u64) }
}

/// Its port names it, too.
fn address(index: usize) -> SocketAddr {
    ([10, 0, 0, index as u8], index as u16).into()
}

impl Cluster {
    fn new(count: usize) -> Self {
        let mut cluster = Cluster {
            now: Duration::ZERO,
            nodes: BTreeMap::new(),
            wire: VecDeque::new(),
            ranks: BTreeMap::new(),
            replies: BTreeMap::new(),
            dead: BTreeSet::new(),
            broken: false,
            ignore_sigterm: false,
            unkillable: None,
            mute: 0,
            hold_stdin: false,
            told: BTreeMap::new(),
            closed: BTreeSet::new(),
            nudged: Vec::new(),
            orders: Vec::new(),
            deaf: None,
            unheard: Vec::new(),
            launched: Vec::new(),
            faults: Vec::new(),
            images: BTreeMap::new(),
            restored: Vec::new(),
            early: BTreeSet::new(),
            silent: false,
            restart_on: RestartOn::default(),
            on_loss: OnLoss::default(),
            replicas: 1,
            jitter: None,
            arrivals: BTreeMap::new(),
        };
        (1..=count).for_each(|index| cluster.add(index));
        cluster.run_until(|c| c.nodes.values().all(|n| n.view().is_some_and(|v| v.members.len() == count)));
        cluster
    }

    /// A node that founds the cluster, or joins it through the first one.
    fn add(&mut self, index: usize) {
        let id = id(index);
        let environment = HostEnvironment {
            address: [127, 0, 0, 1].into(),
            iface: "lo".into(),
            prefix: "127.0.0.0/8".into(),
            radic_pmi: "/lib/libradic_pmi.so".into(),
            radic_pmix: "/lib/libradic_pmix.so".into(),
            library: "/lib/libradic.so".into(),
            process_socket: "/process.sock".into(),
            node: id.name.to_string(),
        };
        let config = NodeConfig {
            me: Member {
                id,
                address: address(index),
                data: address(index).ip(),
                log_port: 100 + index as u16,
                role: Role::Node,
                slots: 2,
            },
            environment,
            wall_us: 1_000_000,
            seed: index as u64,
            join: if index == 1 { vec![] } else { vec![address(1)] },
            found: None,
            timing: membership::Timing::default(),
            memory: || 0,
            machine_memory: 16 << 30,
            addresses: Vec::new,
            counters: |_| replayed().map(|replayed| Counters { replayed, ..Counters::default() }),
            activity: |_| replayed().map(|_| replays::Activity { cpu: Duration::ZERO, stopped: STOPPED.get() }),
            replay_limit: Some(REPLAY_LIMIT),
            refuse_fault: |fault, _| if matches!(fault, Fault::Cut { .. }) { Err("no cable".into()) } else { Ok(()) },
            http: None,
            key: ClusterKey::from_bytes([1; 32]),
        };
        self.nodes.insert(name(index), Node::new(self.now, config));
    }

    /// Runs until `done`, at most a virtual minute.
    fn run_until(&mut self, done: impl Fn(&Cluster) -> bool) {
        let limit = self.now + Duration::from_secs(60);
        while !self.step() || !done(self) {
            assert!(self.now < limit, "nothing came of it in a minute");
        }
    }

    fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        self.run_until(|c| c.now >= until);
    }

    /// Carries out what nodes want; then, if there was nothing, lets time pass to the next thing. True if all was quiet.
    fn step(&mut self) -> bool {
        let names: Vec<_> = self.nodes.keys().filter(|n| !self.dead.contains(*n)).cloned().collect();
        let mut quiet = true;
        for node in &names {
            while let Some(output) = self.nodes.get_mut(node).unwrap().poll_output() {
                quiet = false;
                self.carry_out(node, output);
            }
        }
        if !quiet {
            return false;
        }
        let timers = names.iter().filter_map(|n| self.nodes[n].poll_timeout());
        let next = timers.chain(self.wire.front().map(|(at, ..)| *at)).min().expect("heartbeats never end");
        self.now = self.now.max(next);
        while self.wire.front().is_some_and(|(at, ..)| *at <= self.now) {
            let (_, to, input) = self.wire.pop_front().unwrap();
            if !self.dead.contains(&to) {
                self.nodes.get_mut(&to).unwrap().handle(self.now, input);
            }
        }
        for node in names {
            let node = self.nodes.get_mut(&node).unwrap();
            if node.poll_timeout().is_some_and(|at| at <= self.now) {
                node.handle_timeout(self.now);
            }
        }
        true
    }

    fn post(&mut self, to: &NodeName, input: Input) {
        if self.deaf.as_ref() == Some(to) && matches!(input, Input::Message(_, PeerMessage::Query(..))) {
            return self.unheard.push(input);
        }
        let mut arrives = self.now + LATENCY;
        if let (Some(random), Input::Message(from, _)) = (&mut self.jitter, &input)
            && from.name != *to
        {
            let last = self.arrivals.entry((from.clone(), to.clone())).or_default();
            arrives = (arrives + Duration::from_micros(random.next() % lost::JITTER_US)).max(*last);
            *last = arrives;
        }
        let place = self.wire.partition_point(|(at, ..)| *at <= arrives);
        self.wire.insert(place, (arrives, to.clone(), input));
    }

    fn carry_out(&mut self, from: &NodeName, output: Output) {
        let id = self.nodes[from].me().clone();
        match output {
            Output::Send(to, message) => self.post(&to.id.name.clone(), Input::Message(id, message)),
            Output::SendToSeed(seed, message) => {
                self.post(&name(seed.port().into()), Input::Message(id, PeerMessage::Membership(message)));
            }
            Output::Heartbeat(to, view) => self.post(&to.id.name.clone(), Input::Heartbeat(id, view)),
            Output::Probe(member) => {
                let alive = !self.dead.contains(&member.id.name);
                self.post(from, Input::ProbeResult(member.id, alive));
            }
            Output::Reply(client, reply) => self.replies.entry(client).or_default().push(reply),
            Output::Process(job, output) => self.process(from, job, output),
            Output::Die => self.kill(from),
            Output::Fault(fault) => self.faults.push((from.clone(), fault)),
            Output::Observer(observer, message) => {
                if let FromNode::Restart(restart) = &message {
                    self.catch_up(from, observer, restart.incarnation);
                }
                if let FromNode::Refused(_) = &message {
                    let is_it = |(id, (node, rank)): &(&ProcessId, &(NodeName, Pretended))| {
                        u64::from(id.rank.0) == observer.0 % INCARNATION && node == from && !rank.ended
                    };
                    if let Some(id) = self.ranks.iter().find(is_it).map(|(id, _)| *id) {
                        self.exit(id, ExitStatus::Code(radic_wire::job::exit_code::RADIC));
                    }
                }
                self.told.entry(observer).or_default().push(message);
            }
            Output::CloseObserver(observer) => _ = self.closed.insert(observer),
            Output::Nudge(observer) => self.nudged.push(observer),
            Output::Store(order) => {
                let answer = match &order {
                    StoreOrder::ForgetProcess(node, number, _) => Some((node, *number, Answer::Forgotten(0))),
                    StoreOrder::Sizes(node, number, _) => Some((node, *number, Answer::Sizes(Vec::new()))),
                    StoreOrder::StableOf(node, number, ..) => Some((node, *number, Answer::Stable(77))),
                    _ => None,
                };
                if let StoreOrder::Fence(process, incarnation, ..) = order {
                    let held = self.images.contains_key(&(from.clone(), process));
                    let (images, range) = (vec![(1, 1)], ImageRange::default());
                    let restart = Restart { images, range, cut: 0, log_end: 100, held: Vec::new(), causes: (0, Vec::new()) };
                    let result = if held { Ok(restart) } else { Err(NoRestart::NoImage) };
                    self.post(from, Input::Fenced(process, incarnation, result));
                }
                if let StoreOrder::HeldOfLine(node, number, job, _) = &order {
                    self.post(from, Input::LineHeld(node.clone(), *number, *job, LineHeld::default()));
                }
                answer.into_iter().for_each(|(node, number, a)| self.post(from, Input::StoreAnswer(node.clone(), number, a)));
                self.orders.push((from.clone(), order));
            }
            Output::CloseClient(_) | Output::Members(_) | Output::Forget(_) => {}
            Output::Log(_) | Output::Ready(_) | Output::Stop(_) => {}
        }
    }

    fn process(&mut self, node: &NodeName, job: JobId, output: HostOutput) {
        let id = |rank| ProcessId { job, rank };
        match output {
            HostOutput::Spawn(rank, order) => {
                assert_eq!(order.stdin, rank == Rank(0));
                self.launched.push((order.env, order.library));
                let result = if self.broken {
                    Err(SpawnError { error: "no such file".into(), code: 127 })
                } else {
                    // It logs from the beginning.
                    self.images.retain(|(_, process), _| *process != id(rank));
                    self.ranks.insert(id(rank), (node.clone(), Pretended::default()));
                    Ok(1000 + rank.0)
                };
                self.post(node, Input::Spawned(id(rank), result));
            }
            HostOutput::Stdin { number, data } => {
                self.ranks.get_mut(&id(Rank(0))).unwrap().1.stdin.extend_from_slice(&data);
                if !self.hold_stdin {
                    self.post(node, Input::StdinTaken(job, number));
                }
            }
            HostOutput::Read(rank, stream) => {
                let (_, rank_state) = self.ranks.get_mut(&id(rank)).unwrap();
                assert!(rank_state.permits.insert(stream), "a piece was asked for twice");
                self.pump(id(rank));
            }
            HostOutput::Close(..) | HostOutput::Over => {}
            HostOutput::Pmi(rank, bytes) => {
                self.ranks.get_mut(&id(rank)).unwrap().1.answers += std::str::from_utf8(&bytes).unwrap();
            }
            HostOutput::Signal(rank, signal) => {
                let (_, state) = self.ranks.get_mut(&id(rank)).unwrap();
                state.signals.push(signal);
                let fatal = signal == libc::SIGKILL || signal == libc::SIGTERM && !self.ignore_sigterm;
                if fatal && !state.ended && self.unkillable != Some(id(rank)) {
                    self.exit(id(rank), ExitStatus::Signal(signal));
                }
            }
            HostOutput::Restore(_, order) => self.restore(node, &order),
            HostOutput::Lost(..)
            | HostOutput::Unrestorable(..)
            | HostOutput::Left(_)
            | HostOutput::Fenced
            | HostOutput::Frozen => unreachable!(),
            HostOutput::ToHome(_) | HostOutput::Name(..) | HostOutput::Warning(..) | HostOutput::Note(..) => unreachable!(),
        }
    }

    /// Hands over pieces of output that are wanted and there.
    fn pump(&mut self, id: ProcessId) {
        let (node, state) = self.ranks.get_mut(&id).unwrap();
        let node = node.clone();
        let mut ready = Vec::new();
        state.permits.retain(|stream| {
            let piece = state.output.entry(*stream).or_default().pop_front();
            let piece = if state.ended { Some(piece.unwrap_or_default()) } else { piece };
            piece.map(|piece| ready.push((*stream, piece))).is_none()
        });
        for (stream, piece) in ready {
            self.post(&node, Input::ProcessOutput(id, stream, ByteBuf::from(piece)));
        }
    }

    fn print(&mut self, id: ProcessId, bytes: &[u8]) {
        self.ranks.get_mut(&id).unwrap().1.output.entry(OutputStream::Stdout).or_default().push_back(bytes.to_vec());
        self.pump(id);
    }

    /// A process comes back from its image, as another one with the same number.
    fn restore(&mut self, node: &NodeName, order: &host::RestoreOrder) {
        let (process, incarnation) = (order.process, order.incarnation);
        let holder = name((order.log.port() - 100).into());
        let Some(fences) = self.images.get(&(holder, process)).copied() else {
            return self.post(node, Input::Fetched(process, Err("no node has them any more".into())));
        };
        let pretended = Pretended { program: lost::Program::restored(fences), ..Pretended::default() };
        self.ranks.insert(process, (node.clone(), pretended));
        self.restored.push((process, incarnation, node.clone()));
        let point = Point { incarnation, cut: 0, output: [0; 2], fences, pmi: (!self.early.contains(&process), false) };
        let message = ToNode::Restored { version: radic_wire::PROTOCOL_VERSION, process, point };
        let pid = 1000 + process.rank.0;
        self.post(node, Input::Fetched(process, Ok(())));
        self.post(node, Input::Spawned(process, Ok(pid)));
        if self.mute > 0 {
            self.mute -= 1;
            return;
        }
        self.post(node, Input::Observer(observer_of(process.rank.0, incarnation), pid, message));
    }

    /// It was told what it needs.
    fn catch_up(&mut self, node: &NodeName, observer: ObserverId, incarnation: Incarnation) {
        let rank = (observer.0 % INCARNATION) as u32;
        let mut say = |message| self.post(node, Input::Observer(observer, 1000 + rank, message));
        say(ToNode::Door(([10, 0, 0, 99], 9000 + incarnation.restart as u16).into()));
        if !self.silent {
            self.live(node, rank, incarnation);
            self.read_log(node, rank, incarnation);
        }
    }

    /// It needs nothing more of its log.
    fn read_log(&mut self, node: &NodeName, rank: u32, incarnation: Incarnation) {
        self.post(node, Input::Observer(observer_of(rank, incarnation), 1000 + rank, ToNode::LogRead));
    }

    /// It has caught up.
    fn live(&mut self, node: &NodeName, rank: u32, incarnation: Incarnation) {
        let live = ToNode::Live { events: 0, input: Some(0) };
        self.post(node, Input::Observer(observer_of(rank, incarnation), 1000 + rank, live));
    }

    fn exit(&mut self, id: ProcessId, status: ExitStatus) {
        let (node, state) = self.ranks.get_mut(&id).unwrap();
        state.ended = true;
        let node = node.clone();
        self.post(&node, Input::Exited(id, status));
        self.pump(id);
    }

    fn pmi(&mut self, id: ProcessId, line: &str) {
        let node = self.ranks[&id].0.clone();
        self.post(&node, Input::Pmi(id, format!("{line}\n").into_bytes()));
    }

    fn kill(&mut self, node: &NodeName) {
        self.dead.insert(node.clone());
        let id = self.nodes[node].me().clone();
        for other in self.nodes.keys().cloned().collect::<Vec<_>>() {
            self.post(&other, Input::LinkBroken(id.clone()));
        }
    }

    fn ask(&mut self, node: usize, client: u64, request: Request) {
        self.post(&name(node), Input::Client(ClientId(client), request));
    }

    fn hello(&mut self, node: usize, client: u64, request: Request) {
        self.ask(node, client, Request::Hello { version: radic_wire::PROTOCOL_VERSION });
        self.ask(node, client, request);
    }

    fn replies(&self, client: u64) -> &[Reply] {
        self.replies.get(&ClientId(client)).map_or(&[], |r| r)
    }

    fn outcome(&self, client: u64) -> Option<Outcome> {
        self.replies(client).iter().find_map(|r| if let Reply::Ended(outcome) = r { Some(outcome.clone()) } else { None })
    }

    fn printed(&self, client: u64) -> Vec<u8> {
        let of = |r: &Reply| if let Reply::Output { data, .. } = r { data.to_vec() } else { vec![] };
        self.replies(client).iter().flat_map(of).collect()
    }

    /// Starts a job from `node` and waits until its ranks run.
    fn start(&mut self, node: usize, client: u64, ranks: u32) -> JobId {
        self.hello(node, client, Request::Run { spec: Box::new(spec(ranks)), attach: true });
        let before: BTreeSet<_> = self.ranks.keys().map(|p| p.job).collect();
        let new = |c: &Cluster| c.ranks.keys().filter(|p| !before.contains(&p.job)).count() == ranks as usize;
        self.run_until(|c| new(c) || c.broken && c.outcome(client).is_some());
        self.ranks.keys().map(|p| p.job).find(|job| !before.contains(job)).unwrap_or(JobId::from_bits(0))
    }

    fn exit_all(&mut self, job: JobId) {
        let all: Vec<_> = self.ranks.iter().filter(|(id, (_, r))| id.job == job && !r.ended).map(|(id, _)| *id).collect();
        all.into_iter().for_each(|id| self.exit(id, ExitStatus::Code(0)));
    }

    fn nothing_left(&self) -> bool {
        self.nodes.iter().filter(|(n, _)| !self.dead.contains(*n)).all(|(_, n)| n.hosts.is_empty())
    }
}

pub(crate) fn spec(ranks: u32) -> JobSpec {
    let (program, args, dir) = (ByteBuf::from("/bin/x"), vec![ByteBuf::from("x")], ByteBuf::from("/"));
    let templates = vec![("IFACE".to_owned(), "{iface}:{rank}".to_owned())];
    JobSpec {
        program,
        args,
        env: vec![],
        templates,
        dir,
        ranks,
        nodes: vec![],
        map_by: MapBy::Node,
        umask: 0o022,
        protection: Protection { protect: Protect::None, ..Protection::default() },
        mtbf_s: 86_400,
        restart_on: RestartOn::default(),
        on_loss: OnLoss::default(),
        life: 0,
    }
}

fn at(job: JobId, rank: u32) -> ProcessId {
    ProcessId { job, rank: Rank(rank) }
}

/// The texts of a node's events of one kind.
fn texts(cluster: &Cluster, node: usize, event: EventName) -> Vec<String> {
    let events = cluster.nodes[&name(node)].events.all();
    events.into_iter().filter(|e| e.event == event).map(|e| e.text).collect()
}

/// What the home of a job says to node 2 to start rank 1 there.
fn launch(home: usize, job: JobId) -> PeerMessage {
    let placement = Placement { nodes: vec![id(home), id(2)], rank_nodes: vec![0, 1] };
    PeerMessage::ToHost(job, ToHost::Launch { epoch: Epoch::FIRST, spec: Box::new(spec(2)), placement })
}

/// Numbers of the observers of one incarnation.
const INCARNATION: u64 = 1000;

/// The observer of a process in a later incarnation.
fn observer_of(rank: u32, incarnation: Incarnation) -> ObserverId {
    ObserverId(u64::from(incarnation.epoch.count << 8 | incarnation.restart) * INCARNATION + u64::from(rank))
}

/// A rank of [`protected`] jobs: its observer has the number of its rank, its process id is 1000 and its rank.
fn observer(rank: u32) -> ObserverId {
    ObserverId(rank.into())
}

impl Cluster {
    fn say(&mut self, job: JobId, rank: u32, message: ToNode) {
        let node = self.ranks[&at(job, rank)].0.clone();
        self.post(&node, Input::Observer(observer(rank), 1000 + rank, message));
    }

    fn told(&self, rank: u32) -> &[FromNode] {
        self.told.get(&observer(rank)).map_or(&[], |told| told)
    }

    fn last_told(&self, rank: u32) -> &FromNode {
        self.told(rank).last().expect("it was told something")
    }

    /// The caller of `rank` from rank 0's address, as its node says.
    fn caller_of(&mut self, job: JobId, rank: u32) -> Option<ConnectionId> {
        let before = self.told(rank).len();
        self.say(job, rank, ToNode::Accepted { ask: 4, from: caller(0) });
        self.run_until(|c| c.told(rank).len() > before);
        let FromNode::Caller { ask: 4, caller } = *self.last_told(rank) else { panic!("{:?}", self.last_told(rank)) };
        caller
    }

    /// What nodes' memories hold of one kind of event.
    fn recorded(&self, event: EventName) -> usize {
        self.nodes.values().flat_map(|n| n.events.all()).filter(|e| e.event == event).count()
    }

    /// A protected job of this many ranks, each of which has joined.
    fn start_protected(&mut self, ranks: u32, protection: Protection) -> JobId {
        self.hello(1, 1, Request::Run { spec: Box::new(JobSpec { protection, ..spec(ranks) }), attach: true });
        self.run_until(|c| c.ranks.len() == ranks as usize);
        let job = self.ranks.keys().next().expect("it has started").job;
        for rank in 0..ranks {
            self.say(job, rank, join(job, rank));
        }
        self.run_until(|c| (0..ranks).all(|rank| matches!(c.told(rank), [FromNode::Joined { .. }])));
        job
    }
}

fn join(job: JobId, rank: u32) -> ToNode {
    ToNode::Join { version: radic_wire::PROTOCOL_VERSION, process: at(job, rank) }
}

fn never() -> Protection {
    Protection { interval: Interval::Never, ..Protection::default() }
}

fn calling(job: JobId, rank: u32, to: &str) -> ToNode {
    let connection = ConnectionId { opener: at(job, rank), number: 7 };
    ToNode::Connecting { ask: 3, connection, from: caller(rank), to: to.parse().unwrap() }
}

fn caller(rank: u32) -> SocketAddr {
    ([10, 0, 0, rank as u8 + 1], 5000).into()
}
