//! Clusters of real [`Node`]s with a virtual network, virtual time and pretended processes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::ids::{BootId, Incarnation, NodeName};
use radic_wire::job::{EndReason, JobSpec, MapBy, OnLoss, Outcome, Placement, RestartOn};
use radic_wire::limits;
use radic_wire::log::ImageRange;
use radic_wire::mac::JobKey;
use radic_wire::membership::{MembershipBody, Role};
use radic_wire::peer::{
    Adoption, FromHost, HostReport, MpiPhase, RestartOrder, SessionId, ToHome, ToHost, ToSession, ToStore, Ward,
};
use radic_wire::process::{Interval, Place, Point, Protect, Protection, StreamEnd};

use super::*;

mod launching;
mod lost;

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
    /// Rank 0 does not read.
    hold_stdin: bool,
    /// What observers were told.
    told: BTreeMap<ObserverId, Vec<FromNode>>,
    closed: BTreeSet<ObserverId>,
    nudged: Vec<ProcessId>,
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
}

fn replayed() -> Option<u64> {
    REPLAYED.get()
}

/// Time that one may wait there.
const REPLAY_LIMIT: Duration = Duration::from_secs(10);

const LATENCY: Duration = Duration::from_micros(100);

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
            library: "/lib/libradic.so".into(),
            process_socket: "/process.sock".into(),
            node: id.name.to_string(),
        };
        let config = NodeConfig {
            me: Member { id, address: address(index), log_port: 100 + index as u16, role: Role::Node, slots: 2 },
            environment,
            wall_us: 1_000_000,
            seed: index as u64,
            join: if index == 1 { vec![] } else { vec![address(1)] },
            timing: membership::Timing::default(),
            memory: || 0,
            addresses: Vec::new,
            counters: |_| replayed().map(|replayed| Counters { replayed, ..Counters::default() }),
            activity: |_| replayed().map(|_| replays::Activity { cpu: Duration::ZERO, stopped: false }),
            replay_limit: Some(REPLAY_LIMIT),
            refuse_fault: |fault, _| if matches!(fault, Fault::Cut { .. }) { Err("no cable".into()) } else { Ok(()) },
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
                        u64::from(id.rank.0) == observer.0 % LIFE && node == from && !rank.ended
                    };
                    if let Some(id) = self.ranks.iter().find(is_it).map(|(id, _)| *id) {
                        self.exit(id, ExitStatus::Code(radic_wire::job::exit_code::RADIC));
                    }
                }
                self.told.entry(observer).or_default().push(message);
            }
            Output::CloseObserver(observer) => _ = self.closed.insert(observer),
            Output::Nudge(process) => self.nudged.push(process),
            Output::Store(order) => {
                let answer = match &order {
                    StoreOrder::ForgetProcess(node, number, _) => Some((node, *number, Answer::Forgotten)),
                    StoreOrder::Sizes(node, number, _) => Some((node, *number, Answer::Sizes(Vec::new()))),
                    StoreOrder::StableOf(node, number, ..) => Some((node, *number, Answer::Stable(77))),
                    _ => None,
                };
                if let StoreOrder::Fence(process, life) = order {
                    let held = self.images.contains_key(&(from.clone(), process));
                    let restart =
                        Restart { images: vec![(1, 1)], range: ImageRange::default(), cut: 0, log_end: 100, held: Vec::new() };
                    let result = if held { Ok(restart) } else { Err(NoRestart::NoImage) };
                    self.post(from, Input::Fenced(process, life, result));
                }
                answer.into_iter().for_each(|(node, number, a)| self.post(from, Input::StoreAnswer(node.clone(), number, a)));
                self.orders.push((from.clone(), order));
            }
            Output::CloseClient(_) | Output::Forget(_) | Output::Log(_) | Output::Ready(_) | Output::Stop(_) => {}
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
                    // It logs anew.
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
                if fatal && !state.ended {
                    self.exit(id(rank), ExitStatus::Signal(signal));
                }
            }
            HostOutput::Restore(_, order) => self.restore(node, &order),
            HostOutput::Lost(..)
            | HostOutput::Unrestorable(..)
            | HostOutput::Left(_)
            | HostOutput::Fenced
            | HostOutput::Frozen => unreachable!(),
            HostOutput::ToHome(_) | HostOutput::Name(..) | HostOutput::Warning(..) => unreachable!(),
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
        let (process, life) = (order.process, order.incarnation);
        let holder = name((order.log.port() - 100).into());
        let Some(fences) = self.images.get(&(holder, process)).copied() else {
            return self.post(node, Input::Fetched(process, Err("no node has them any more".into())));
        };
        let pretended = Pretended { program: lost::Program::restored(fences), ..Pretended::default() };
        self.ranks.insert(process, (node.clone(), pretended));
        self.restored.push((process, life, node.clone()));
        let point = Point { incarnation: life, cut: 0, output: [0; 2], fences, pmi: (!self.early.contains(&process), false) };
        let message = ToNode::Restored { version: radic_wire::PROTOCOL_VERSION, process, point };
        let pid = 1000 + process.rank.0;
        self.post(node, Input::Fetched(process, Ok(())));
        self.post(node, Input::Spawned(process, Ok(pid)));
        self.post(node, Input::Observer(observer_of(process.rank.0, life), pid, message));
    }

    /// It was told what it needs.
    fn catch_up(&mut self, node: &NodeName, observer: ObserverId, life: Incarnation) {
        let rank = (observer.0 % LIFE) as u32;
        let mut say = |message| self.post(node, Input::Observer(observer, 1000 + rank, message));
        say(ToNode::Door(([10, 0, 0, 99], 9000 + life.0 as u16).into()));
        if !self.silent {
            self.live(node, rank, life);
            self.read_log(node, rank, life);
        }
    }

    /// It needs nothing more of its log.
    fn read_log(&mut self, node: &NodeName, rank: u32, life: Incarnation) {
        self.post(node, Input::Observer(observer_of(rank, life), 1000 + rank, ToNode::LogRead));
    }

    /// It has caught up.
    fn live(&mut self, node: &NodeName, rank: u32, life: Incarnation) {
        let live = ToNode::Live { events: 0, different: 0, input: Some(0) };
        self.post(node, Input::Observer(observer_of(rank, life), 1000 + rank, live));
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

fn spec(ranks: u32) -> JobSpec {
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
    }
}

fn at(job: JobId, rank: u32) -> ProcessId {
    ProcessId { job, rank: Rank(rank) }
}

#[test]
fn a_job_starts_prints_and_ends_on_several_nodes() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start(2, 1, 6);
    let nodes: Vec<_> = cluster.ranks.values().map(|(node, _)| node.to_string()).collect();
    let expected: BTreeSet<_> = nodes.iter().collect();
    assert_eq!((nodes.len(), expected.len()), (6, 4), "six ranks on all four nodes: {nodes:?}");
    cluster.print(at(job, 3), b"hello");
    cluster.exit_all(job);
    cluster.run_until(|c| c.outcome(1).is_some());
    assert_eq!(cluster.outcome(1).unwrap(), Outcome { code: 0, reason: EndReason::Finished });
    assert_eq!(cluster.printed(1), b"hello");
    assert!(cluster.nothing_left());
}

#[test]
fn the_first_failure_decides_and_ends_the_others() {
    let mut cluster = Cluster::new(3);
    cluster.ignore_sigterm = true;
    let job = cluster.start(1, 1, 3);
    cluster.exit(at(job, 1), ExitStatus::Code(9));
    let failed_at = cluster.now;
    cluster.run_until(|c| c.outcome(1).is_some());
    let expected =
        EndReason::RankFailed { rank: Rank(1), node: cluster.ranks[&at(job, 1)].0.clone(), status: ExitStatus::Code(9) };
    assert_eq!(cluster.outcome(1).unwrap(), Outcome { code: 9, reason: expected });
    assert!(cluster.now - failed_at >= Duration::from_secs(2), "SIGKILL came before the time of grace");
    assert!(cluster.ranks[&at(job, 0)].1.signals.starts_with(&[libc::SIGTERM, libc::SIGCONT, libc::SIGKILL]));
    assert!(cluster.nothing_left());
}

#[test]
fn what_cannot_start_says_so() {
    let mut cluster = Cluster::new(2);
    cluster.broken = true;
    cluster.start(1, 1, 2);
    let outcome = cluster.outcome(1).unwrap();
    assert!(matches!(outcome, Outcome { code: 127, reason: EndReason::LaunchFailed { .. } }), "{outcome:?}");
    assert!(cluster.nothing_left());
    cluster.hello(1, 2, Request::Run { spec: Box::new(JobSpec { nodes: vec![name(9)], ..spec(1) }), attach: true });
    cluster.hello(1, 3, Request::Run { spec: Box::new(JobSpec { dir: ByteBuf::from("x"), ..spec(1) }), attach: true });
    cluster.run_until(|c| c.replies(2).len() == 2 && c.replies(3).len() == 2);
    for client in [2, 3] {
        assert!(matches!(&cluster.replies(client)[1], Reply::Error(_)));
    }
}

#[test]
fn ranks_meet_in_fences_and_see_each_other_s_keys() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start(1, 1, 3);
    for rank in 0..3 {
        cluster.pmi(at(job, rank), "cmd=init pmi_version=1 pmi_subversion=1");
        cluster.run_for(Duration::from_millis(5));
        cluster.pmi(at(job, rank), &format!("cmd=put kvsname=radic_{job}_0 key=k{rank} value=v{rank}"));
        cluster.run_for(Duration::from_millis(5));
        assert!(!cluster.ranks[&at(job, 0)].1.answers.contains("barrier_out"));
        cluster.pmi(at(job, rank), "cmd=barrier_in");
        cluster.run_for(Duration::from_millis(5));
    }
    for rank in 0..3 {
        cluster.pmi(at(job, rank), &format!("cmd=get kvsname=radic_{job}_0 key=k{}", (rank + 1) % 3));
        cluster.run_for(Duration::from_millis(5));
        let answers = &cluster.ranks[&at(job, rank)].1.answers;
        assert!(answers.contains("cmd=barrier_out"), "{answers}");
        assert!(answers.contains(&format!("value=v{}", (rank + 1) % 3)), "{answers}");
    }
    // A rank that ends within MPI would leave the others waiting for ever.
    cluster.exit(at(job, 2), ExitStatus::Code(0));
    cluster.run_until(|c| c.outcome(1).is_some());
    assert!(matches!(cluster.outcome(1).unwrap(), Outcome { code: 1, reason: EndReason::NotFinalized { rank: Rank(2), .. } }));
}

#[test]
fn an_abort_passes_its_code_on_and_never_looks_like_success() {
    for (given, shown) in [(7, 7), (0, 1), (256, 1)] {
        let mut cluster = Cluster::new(2);
        let job = cluster.start(1, 1, 2);
        cluster.pmi(at(job, 1), "cmd=init pmi_version=1 pmi_subversion=1");
        cluster.run_for(Duration::from_millis(5));
        cluster.pmi(at(job, 1), &format!("cmd=abort exitcode={given}"));
        cluster.run_until(|c| c.outcome(1).is_some());
        let outcome = cluster.outcome(1).unwrap();
        assert_eq!(outcome.code, shown);
        assert!(matches!(outcome.reason, EndReason::Aborted { rank: Rank(1), code, .. } if code == given));
    }
}

#[test]
fn a_published_name_is_found_from_every_node_and_taken_back_only_by_its_job() {
    let mut cluster = Cluster::new(3);
    let (one, two) = (cluster.start(1, 1, 3), cluster.start(2, 2, 3));
    for (job, rank) in [(one, 1), (two, 2), (two, 0)] {
        cluster.pmi(at(job, rank), "cmd=init pmi_version=1 pmi_subversion=1");
    }
    let mut ask = |job, rank, line: &str| {
        cluster.run_for(Duration::from_millis(5));
        cluster.ranks.get_mut(&at(job, rank)).unwrap().1.answers.clear();
        cluster.pmi(at(job, rank), line);
        cluster.run_for(Duration::from_millis(5));
        cluster.ranks[&at(job, rank)].1.answers.clone()
    };
    assert!(ask(one, 1, "cmd=publish_name service=s port=p1").contains("rc=0"));
    assert!(ask(two, 2, "cmd=lookup_name service=s").contains("port=p1"));
    assert!(!ask(two, 2, "cmd=publish_name service=s port=p2").contains("rc=0"), "a name was published twice");
    assert!(!ask(two, 0, "cmd=unpublish_name service=s").contains("rc=0"), "another job took the name back");
    assert!(ask(one, 1, "cmd=unpublish_name service=s").contains("rc=0"));
    assert!(!ask(two, 0, "cmd=lookup_name service=s").contains("rc=0"));
}

#[test]
fn a_node_s_death_ends_its_jobs_within_the_detection_time_and_no_other() {
    let mut cluster = Cluster::new(5);
    let job = cluster.start(1, 1, 4);
    cluster.hello(5, 2, Request::Run { spec: Box::new(JobSpec { nodes: vec![name(5)], ..spec(1) }), attach: true });
    cluster.run_until(|c| c.ranks.len() == 5);
    let victim = cluster.ranks[&at(job, 2)].0.clone();
    let died_at = cluster.now;
    cluster.dead.insert(victim.clone()); // Silently: no connection breaks.
    cluster.run_until(|c| c.outcome(1).is_some());
    assert!(cluster.now - died_at < Duration::from_millis(1500), "{:?}", cluster.now - died_at);
    match cluster.outcome(1).unwrap() {
        Outcome { code: 113, reason: EndReason::NodeLost { node, ranks, .. } } => {
            assert_eq!((node, ranks), (victim, vec![Rank(2)]))
        }
        other => panic!("{other:?}"),
    }
    cluster.run_for(Duration::from_secs(5));
    assert!(cluster.outcome(2).is_none(), "a job without a rank on the dead node ended");
    assert_eq!(cluster.nodes[&name(5)].hosts.len(), 1);
}

#[test]
fn the_death_of_the_home_ends_the_job_everywhere() {
    let mut cluster = Cluster::new(4);
    let job = cluster.start(2, 1, 4);
    let home = cluster.ranks[&at(job, 0)].0.clone();
    assert_ne!(home, name(2));
    cluster.print(at(job, 1), b"x");
    cluster.kill(&home);
    cluster.run_until(|c| c.outcome(1).is_some() && c.nothing_left());
    assert!(matches!(cluster.outcome(1).unwrap().reason, EndReason::NodeLost { node, .. } if node == home));
}

#[test]
fn a_terminal_may_die_and_another_take_over() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start(1, 1, 2);
    cluster.print(at(job, 0), b"one ");
    cluster.run_for(Duration::from_millis(10));
    cluster.ask(1, 1, Request::Printed(2));
    cluster.post(&name(1), Input::ClientGone(ClientId(1)));
    cluster.print(at(job, 1), b"two ");
    cluster.run_for(Duration::from_millis(10));
    // What the dead terminal had not printed comes again, then what came since.
    cluster.hello(3, 2, Request::Attach { job: job.to_string()[..4].to_owned() });
    cluster.run_for(Duration::from_millis(10));
    assert_eq!(cluster.printed(2), b"e two ");
    let attached = cluster.replies(2).iter().find(|r| matches!(r, Reply::Attached { consumed: 2, dropped: 0, .. }));
    assert!(attached.is_some(), "a terminal must learn what was printed before");
    cluster.hello(2, 3, Request::Attach { job: job.to_string() });
    cluster.run_for(Duration::from_millis(10));
    assert_eq!(cluster.replies(2).last(), Some(&Reply::TakenOver));
    cluster.exit_all(job);
    cluster.run_until(|c| c.outcome(3).is_some());
    // Long after the end, another one still sees how it ended.
    cluster.hello(1, 4, Request::Attach { job: job.to_string() });
    cluster.run_until(|c| c.outcome(4).is_some());
    cluster.hello(1, 5, Request::Attach { job: "ffffffffffff".into() });
    cluster.run_until(|c| matches!(c.replies(5).last(), Some(Reply::Error(_))));
}

#[test]
fn the_death_of_the_terminal_s_node_leaves_the_job_alone() {
    let mut cluster = Cluster::new(3);
    let spec = JobSpec { nodes: vec![name(1), name(2)], ..spec(2) };
    cluster.hello(3, 1, Request::Run { spec: Box::new(spec), attach: true });
    cluster.run_until(|c| c.ranks.len() == 2);
    let job = cluster.ranks.keys().next().unwrap().job;
    cluster.kill(&name(3));
    for _ in 0..30 {
        cluster.print(at(job, 1), &vec![7; limits::CHUNK]);
    }
    cluster.run_for(Duration::from_secs(2));
    assert!(cluster.ranks[&at(job, 1)].1.output[&OutputStream::Stdout].is_empty(), "the rank is held back for a dead terminal");
    cluster.hello(2, 2, Request::Attach { job: job.to_string() });
    cluster.run_for(Duration::from_millis(10));
    cluster.exit_all(job);
    cluster.ask(2, 2, Request::Printed(limits::OUTPUT_WINDOW as u64 * 2));
    cluster.run_for(Duration::from_millis(10));
    cluster.ask(2, 2, Request::Printed(limits::OUTPUT_WINDOW as u64 * 2));
    cluster.run_until(|c| c.outcome(2).is_some());
    assert_eq!((cluster.outcome(2).unwrap().code, cluster.printed(2).len()), (0, 30 * limits::CHUNK));
}

#[test]
fn output_without_a_terminal_is_kept_up_to_a_limit_and_the_loss_is_told() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start(1, 1, 2);
    cluster.post(&name(1), Input::ClientGone(ClientId(1)));
    let pieces = limits::OUTPUT_BACKLOG / limits::CHUNK + 10;
    for piece in 0..pieces {
        cluster.print(at(job, 0), &vec![(piece % 251) as u8; limits::CHUNK]);
    }
    cluster.run_for(Duration::from_millis(200));
    cluster.hello(1, 2, Request::Attach { job: job.to_string() });
    cluster.run_for(Duration::from_millis(50));
    let dropped =
        cluster.replies(2).iter().find_map(|r| if let Reply::Attached { dropped, .. } = r { Some(*dropped) } else { None });
    let dropped = dropped.unwrap() as usize;
    assert!((10 * limits::CHUNK..=12 * limits::CHUNK).contains(&dropped), "{dropped}");
    assert_eq!(cluster.printed(2)[0], (dropped / limits::CHUNK % 251) as u8, "the oldest goes first");
}

#[test]
fn a_slow_terminal_holds_the_ranks_back() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start(1, 1, 2);
    for _ in 0..100 {
        cluster.print(at(job, 1), &vec![7; limits::CHUNK]);
    }
    cluster.run_for(Duration::from_millis(100));
    let printed = cluster.printed(1).len();
    assert!((limits::OUTPUT_WINDOW..limits::OUTPUT_WINDOW + limits::CHUNK).contains(&printed), "{printed}");
    assert!(cluster.ranks[&at(job, 1)].1.output[&OutputStream::Stdout].len() > 80, "pieces left the rank without being taken");
    // An end is told only after everything was printed.
    cluster.exit_all(job);
    cluster.run_for(Duration::from_secs(10));
    assert!(cluster.outcome(1).is_none());
    let mut acknowledged = 0;
    while cluster.outcome(1).is_none() {
        let printed = cluster.printed(1).len();
        assert!(printed > acknowledged, "neither output nor an end");
        cluster.ask(1, 1, Request::Printed((printed - acknowledged) as u64));
        acknowledged = printed;
        cluster.run_for(Duration::from_millis(10));
    }
    assert_eq!(cluster.printed(1).len(), 100 * limits::CHUNK);
}

#[test]
fn standard_input_reaches_rank_zero_piece_by_piece() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start(2, 1, 2);
    let mut offset = 0;
    for piece in [&b"ab"[..], b"cd", b""] {
        let taken = offset + piece.len() as u64;
        cluster.ask(2, 1, Request::Stdin { offset, data: ByteBuf::from(piece) });
        cluster.run_until(|c| piece.is_empty() || c.replies(1).contains(&Reply::StdinFrom(Some(taken))));
        offset = taken;
    }
    cluster.run_for(Duration::from_millis(5));
    assert_eq!(cluster.ranks[&at(job, 0)].1.stdin, b"abcd");
}

#[test]
fn standard_input_goes_on_from_another_terminal() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start(2, 1, 2);
    cluster.hold_stdin = true;
    cluster.ask(2, 1, Request::Stdin { offset: 0, data: ByteBuf::from("ab") });
    cluster.run_for(Duration::from_millis(5));
    cluster.hello(1, 2, Request::Attach { job: job.to_string() });
    cluster.run_for(Duration::from_millis(5));
    cluster.ask(1, 2, Request::Stdin { offset: 2, data: ByteBuf::from("cd") });
    cluster.run_for(Duration::from_millis(5));
    assert_eq!(cluster.ranks[&at(job, 0)].1.stdin, b"ab", "a second piece was sent before the first was taken");
    cluster.hold_stdin = false;
    let node = cluster.ranks[&at(job, 0)].0.clone();
    cluster.post(&node, Input::StdinTaken(job, 1));
    cluster.run_until(|c| c.replies(2).contains(&Reply::StdinFrom(Some(4))));
    assert_eq!(cluster.ranks[&at(job, 0)].1.stdin, b"abcd");
}

#[test]
fn signals_and_kills_reach_every_rank() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start(1, 1, 3);
    cluster.ask(1, 1, Request::Ping);
    cluster.run_until(|c| c.replies(1).last() == Some(&Reply::Pong));
    cluster.ask(1, 1, Request::Signal(libc::SIGUSR1));
    cluster.run_until(|c| c.ranks.values().all(|(_, r)| r.signals == [libc::SIGUSR1]));
    cluster.hello(3, 2, Request::Kill { job: job.to_string() });
    cluster.run_until(|c| c.replies(2).last() == Some(&Reply::Done) && c.outcome(1).is_some());
    assert_eq!(cluster.outcome(1).unwrap(), Outcome { code: 137, reason: EndReason::Killed });
    assert!(cluster.nothing_left());
}

#[test]
fn status_and_events_come_from_every_node() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start(1, 1, 3);
    cluster.hello(2, 2, Request::Status);
    cluster.hello(2, 3, Request::Events { follow: true });
    cluster.run_for(Duration::from_millis(10));
    let Some(Reply::Status(status)) = cluster.replies(2).last() else { panic!("{:?}", cluster.replies(2)) };
    assert_eq!(status.nodes.iter().map(|n| n.ranks.len()).collect::<Vec<_>>(), [1, 1, 1]);
    assert!(status.nodes.iter().all(|n| n.state == NodeState::Alive && n.protector.is_some()));
    assert_eq!((status.jobs.len(), status.jobs[0].job, status.jobs[0].running), (1, job, 3));
    cluster.kill(&name(3));
    cluster.run_for(Duration::from_secs(2));
    let of = |r: &Reply| if let Reply::Events(events) = r { events.clone() } else { vec![] };
    let events: Vec<_> = cluster.replies(3).iter().flat_map(of).collect();
    for wanted in [EventName::Start, EventName::View, EventName::RankStart, EventName::Suspect, EventName::Confirm] {
        assert!(events.iter().any(|e| e.event == wanted), "no {wanted:?}");
    }
    let mut seen = BTreeSet::new();
    assert!(events.iter().all(|e| seen.insert((e.node.clone(), e.seq))), "an event came twice");
    cluster.hello(1, 4, Request::Status);
    cluster.run_for(Duration::from_millis(10));
    let Some(Reply::Status(status)) = cluster.replies(4).last() else { panic!("{:?}", cluster.replies(4)) };
    assert_eq!(status.nodes.iter().map(|n| n.state).collect::<Vec<_>>(), [NodeState::Alive, NodeState::Alive, NodeState::Dead]);
}

/// The texts of a node's events of one kind.
fn texts(cluster: &Cluster, node: usize, event: EventName) -> Vec<String> {
    let events = cluster.nodes[&name(node)].events.all();
    events.into_iter().filter(|e| e.event == event).map(|e| e.text).collect()
}

/// What the home of a job says to node 2 to start rank 1 there.
fn launch(home: usize, job: JobId) -> PeerMessage {
    let placement = Placement { nodes: vec![id(home), id(2)], rank_nodes: vec![0, 1] };
    PeerMessage::ToHost(job, ToHost::Launch { incarnation: Incarnation(0), spec: Box::new(spec(2)), placement })
}

#[test]
fn what_a_new_member_says_before_its_view_has_come_is_heard_when_it_has() {
    let mut cluster = Cluster::new(3);
    let job = JobId::from_bits(7);
    for message in [launch(4, job), PeerMessage::Unsubscribe, PeerMessage::Subscribe] {
        cluster.post(&name(2), Input::Message(id(4), message));
    }
    cluster.run_for(Duration::from_secs(1));
    assert!(cluster.ranks.is_empty(), "a job was started for a node that is no member");
    cluster.add(4);
    cluster.run_until(|c| c.ranks.get(&at(job, 1)).is_some_and(|(node, _)| *node == name(2)));
    assert!(cluster.nodes[&name(2)].subscribers.contains(&id(4)), "not in the order in which it was said");
}

#[test]
fn what_a_departed_member_says_is_dropped() {
    let mut cluster = Cluster::new(4);
    cluster.kill(&name(4));
    cluster.run_until(|c| c.nodes[&name(2)].view().is_some_and(|view| view.members.len() == 3));
    cluster.post(&name(2), Input::Message(id(4), launch(4, JobId::from_bits(7))));
    cluster.run_for(Duration::from_millis(10));
    // This node has not heard of the job while it was a member: its view came and went.
    cluster.post(&name(2), Input::Message(id(5), launch(5, JobId::from_bits(8))));
    cluster.run_for(Duration::from_millis(10));
    let node = cluster.nodes.get_mut(&name(2)).unwrap();
    let view = node.view().unwrap().clone();
    let joiner = Member { id: id(5), address: ([127, 0, 0, 1], 5).into(), log_port: 1, role: Role::Node, slots: 2 };
    let later = view.next(&[Change::Join(joiner)]).unwrap().next(&[Change::Dead(id(5))]).unwrap();
    let body = MembershipBody::Newest(later);
    let message = MembershipMessage { cluster: Some(view.cluster), view: view.number + 2, body };
    node.handle(cluster.now, Input::Message(id(1), PeerMessage::Membership(message)));
    assert_eq!(node.early.take(), []);
    let refused = texts(&cluster, 2, EventName::Refused);
    assert!(refused.len() == 1 && refused[0].starts_with("1 messages"), "{refused:?}");
    assert!(cluster.ranks.is_empty());
}

#[test]
fn what_waits_for_a_view_is_bounded() {
    let small = || PeerMessage::Subscribe;
    let large =
        || PeerMessage::ToHost(JobId::from_bits(7), ToHost::Stdin { number: 1, data: ByteBuf::from(vec![7; limits::CHUNK]) });
    for (message, most) in [(small as fn() -> PeerMessage, 1024), (large, limits::PEER_FRAME / limits::CHUNK)] {
        let mut cluster = Cluster::new(2);
        for _ in 0..most + 5 {
            cluster.post(&name(1), Input::Message(id(3), message()));
        }
        cluster.run_for(Duration::from_millis(10));
        let dropped = texts(&cluster, 1, EventName::Limit);
        assert_eq!(dropped.len(), 1, "said once: {dropped:?}");
        let kept = cluster.nodes.get_mut(&name(1)).unwrap().early.take().len();
        assert!((most - 1..=most).contains(&kept), "{kept} of at most {most} messages");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever the terminal does, in whatever order ranks print and end: every byte is shown once, in order, and the job ends.
    #[test]
    fn output_is_shown_once_in_order(steps in prop::collection::vec((0u8..5, 0u32..3, 1usize..20_000), 1..60)) {
        let mut cluster = Cluster::new(3);
        let job = cluster.start(1, 1, 3);
        let (mut terminal, mut acknowledged) = (1, 0);
        let (mut expected, mut shown) = (BTreeMap::<u32, Vec<u8>>::new(), BTreeMap::<u32, Vec<u8>>::new());
        let mut counter = 0u32;
        let show = |cluster: &Cluster, terminal: u64, upto: usize, shown: &mut BTreeMap<u32, Vec<u8>>| {
            let mut left = upto;
            for reply in cluster.replies(terminal) {
                // An empty piece says that no more comes.
                if let Reply::Output { rank, data, .. } = reply
                    && !data.is_empty()
                {
                    let take = left.min(data.len());
                    shown.entry(rank.0).or_default().extend_from_slice(&data[..take]);
                    left -= take;
                }
            }
        };
        for (what, rank, size) in steps {
            match what {
                0..=2 => {
                    let size = size.min(limits::CHUNK);
                    let bytes: Vec<u8> = (0..size).map(|_| { counter += 1; (counter % 251) as u8 }).collect();
                    expected.entry(rank).or_default().extend_from_slice(&bytes);
                    cluster.print(at(job, rank), &bytes);
                }
                3 => {
                    let printed = cluster.printed(terminal).len();
                    let more = size.min(printed - acknowledged);
                    acknowledged += more;
                    cluster.ask(1, terminal, Request::Printed(more as u64));
                }
                _ => {
                    // The terminal dies having printed what it said; a new one attaches.
                    cluster.run_for(Duration::from_millis(2));
                    show(&cluster, terminal, acknowledged, &mut shown);
                    cluster.post(&name(1), Input::ClientGone(ClientId(terminal)));
                    terminal += 1;
                    acknowledged = 0;
                    cluster.hello(1, terminal, Request::Attach { job: job.to_string() });
                }
            }
            cluster.run_for(Duration::from_millis(2));
        }
        cluster.exit_all(job);
        for _ in 0..400 {
            if cluster.outcome(terminal).is_some() {
                break;
            }
            let printed = cluster.printed(terminal).len();
            cluster.ask(1, terminal, Request::Printed((printed - acknowledged) as u64));
            acknowledged = printed;
            cluster.run_for(Duration::from_millis(2));
        }
        prop_assert!(cluster.outcome(terminal).is_some());
        show(&cluster, terminal, usize::MAX, &mut shown);
        prop_assert!(shown == expected, "shown and printed differ");
    }
}

/// Numbers of the observers of one incarnation.
const LIFE: u64 = 1000;

/// The observer of a process in a later incarnation.
fn observer_of(rank: u32, life: Incarnation) -> ObserverId {
    ObserverId(u64::from(life.0) * LIFE + u64::from(rank))
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

    /// A protected job of so many ranks, each of which has joined.
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

#[test]
fn a_rank_joins_and_its_children_do_not() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(2, never());
    let key = JobKey::derive(&ClusterKey::from_bytes([1; 32]), job);
    let FromNode::Joined { incarnation, key: told, protector, protection, inherited } = cluster.told(0)[0].clone() else {
        panic!("no")
    };
    assert_eq!((incarnation, told, protection, inherited), (Incarnation(0), key, never(), false));
    assert_eq!(protector, "10.0.0.2:102".parse().unwrap(), "the log service of the next node");
    let n1 = name(1);
    for (number, pid, message) in [
        (10, 4444, join(job, 0)),
        (11, 4445, join(job, 0)),
        (12, 1000, join(JobId::from_bits(9), 0)),
        (13, 1000, ToNode::Join { version: 99, process: at(job, 0) }),
    ] {
        cluster.post(&n1, Input::Observer(ObserverId(number), pid, message));
    }
    cluster.post(&n1, Input::Observer(ObserverId(14), 1000, ToNode::Initialized));
    cluster.run_until(|c| c.closed.len() == 5);
    for number in 10..14 {
        assert!(matches!(cluster.told[&ObserverId(number)][..], [FromNode::Refused(_)]), "{number}");
    }
    assert!(!cluster.told.contains_key(&ObserverId(14)), "an observer that has not joined is told nothing");
    assert_eq!(cluster.recorded(EventName::Unprotected), 1, "two children, one line");
    let configured = (name(2), StoreOrder::Configure(job, never()));
    assert!(cluster.orders.contains(&configured), "{:?}", cluster.orders);
    cluster.exit_all(job);
    cluster.run_until(|c| c.orders.iter().filter(|(_, order)| *order == StoreOrder::RemoveJob(job)).count() == 3);
}

#[test]
fn a_caller_is_known_to_whom_it_calls_before_it_is_accepted() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(3, never());
    cluster.say(job, 1, ToNode::Listening("0.0.0.0:80".parse().unwrap()));
    cluster.say(job, 0, calling(job, 0, "10.0.0.2:80"));
    cluster.run_until(|c| c.told(0).len() == 2);
    assert_eq!(*cluster.last_told(0), FromNode::Peer { ask: 3, peer: Some(at(job, 1)), key: None, at: None, later: false });
    let known = ConnectionId { opener: at(job, 0), number: 7 };
    // Until it is greeted: the first connection may be one that it has given up.
    for expected in [Some(known), Some(known), None] {
        assert_eq!(cluster.caller_of(job, 1), expected);
        if cluster.told(1).len() == 3 {
            cluster.say(job, 1, ToNode::Greeted(caller(0)));
        }
    }
    assert_eq!(cluster.recorded(EventName::Unprotected), 1, "the last caller was not protected");
    // Its own node's loopback, another node's wildcard, and a port without a listener.
    cluster.say(job, 0, calling(job, 0, "127.0.0.1:80"));
    cluster.say(job, 2, calling(job, 2, "192.168.0.1:80"));
    cluster.run_until(|c| c.told(0).len() == 3 && c.told(2).len() == 2);
    assert_eq!(*cluster.last_told(0), FromNode::Peer { ask: 3, peer: None, key: None, at: None, later: false });
    assert_eq!(*cluster.last_told(2), FromNode::Peer { ask: 3, peer: None, key: None, at: None, later: false });
    // Listeners go with their process.
    cluster.exit(at(job, 1), ExitStatus::Code(0));
    cluster.say(job, 0, calling(job, 0, "10.0.0.2:80"));
    cluster.run_until(|c| c.told(0).len() == 4);
    assert_eq!(*cluster.last_told(0), FromNode::Peer { ask: 3, peer: None, key: None, at: None, later: false });
}

#[test]
fn a_caller_without_a_listener_is_known_later_and_told_to_wait_while_a_listener_is_announced() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(3, never());
    let address = "10.0.0.2:80".parse().unwrap();
    let call = |cluster: &mut Cluster| {
        let before = cluster.told(0).len();
        cluster.say(job, 0, calling(job, 0, "10.0.0.2:80"));
        cluster.run_until(|c| c.told(0).len() > before);
        let FromNode::Peer { peer, later, .. } = *cluster.last_told(0) else { panic!("{:?}", cluster.last_told(0)) };
        (peer, later)
    };
    assert_eq!(call(&mut cluster), (None, false), "no listener");
    cluster.say(job, 1, ToNode::WillListen { ask: 5, address });
    cluster.run_until(|c| *c.last_told(1) == FromNode::Announced { ask: 5 });
    assert_eq!(call(&mut cluster), (None, true), "it is about to listen");
    cluster.say(job, 1, ToNode::NotListening(address));
    assert_eq!(call(&mut cluster), (None, false), "it could not");
    cluster.say(job, 1, ToNode::WillListen { ask: 6, address });
    cluster.say(job, 1, ToNode::Listening(address));
    let known = Some(ConnectionId { opener: at(job, 0), number: 7 });
    assert_eq!(cluster.caller_of(job, 1), known, "the caller that found no listener a moment ago");
    assert_eq!(call(&mut cluster), (Some(at(job, 1)), false));
    assert_eq!(cluster.recorded(EventName::Unprotected), 0);
    // A call that no protected process answers is no longer expected.
    let connection = ConnectionId { opener: at(job, 0), number: 7 };
    cluster.say(job, 0, ToNode::CallsNobody { connection, from: caller(0), to: address, made: false });
    cluster.run_for(Duration::from_millis(10));
    assert_eq!(cluster.caller_of(job, 1), None);
    assert_eq!(cluster.recorded(EventName::Unprotected), 1, "of the process that was called; the call itself was not made");
    cluster.say(job, 0, ToNode::CallsNobody { connection, from: caller(0), to: address, made: true });
    cluster.run_until(|c| c.recorded(EventName::Unprotected) == 2);
}

#[test]
fn a_node_that_does_not_answer_is_not_waited_for_and_expects_no_caller_in_the_end() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(3, never());
    cluster.say(job, 1, ToNode::Listening("10.0.0.2:80".parse().unwrap()));
    cluster.run_for(Duration::from_millis(10));
    cluster.deaf = Some(name(2));
    cluster.say(job, 0, calling(job, 0, "10.0.0.2:80"));
    cluster.run_for(Duration::from_secs(4));
    assert_eq!(cluster.told(0).len(), 1, "it may still say that a process listens");
    cluster.run_for(Duration::from_secs(2));
    assert_eq!(*cluster.last_told(0), FromNode::Peer { ask: 3, peer: None, key: None, at: None, later: false });
    assert_eq!(cluster.recorded(EventName::Limit), 1);
    cluster.deaf = None;
    for query in std::mem::take(&mut cluster.unheard) {
        cluster.post(&name(2), query);
    }
    cluster.run_for(Duration::from_millis(10));
    assert_eq!(cluster.caller_of(job, 1), None);
}

#[test]
fn a_process_that_executes_another_program_begins_anew() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(1, Protection { replicas: 2, ..never() });
    cluster.say(job, 0, ToNode::Listening("10.0.0.1:80".parse().unwrap()));
    cluster.post(&name(1), Input::Observer(ObserverId(50), 1000, join(job, 0)));
    cluster.run_until(|c| c.told.contains_key(&ObserverId(50)));
    assert!(matches!(cluster.told[&ObserverId(50)][..], [FromNode::Joined { .. }]));
    let forgets = |order: &StoreOrder| matches!(order, StoreOrder::ForgetProcess(_, _, p) if *p == at(job, 0));
    let forgotten: Vec<_> = cluster.orders.iter().filter(|(_, order)| forgets(order)).map(|(node, _)| node.to_string()).collect();
    assert_eq!(forgotten, ["n2", "n3"], "the protector, then its replica");
    cluster.post(&name(1), Input::Observer(ObserverId(50), 1000, ToNode::Listening("10.0.0.1:81".parse().unwrap())));
    // A question on the old connection is not left to wait for an answer that never comes.
    let told = cluster.told(0).len();
    cluster.say(job, 0, ToNode::Accepted { ask: 4, from: caller(2) });
    cluster.run_until(|c| c.closed.contains(&observer(0)));
    assert_eq!(cluster.told(0).len(), told);
    // The end of the old connection, which may be seen late, takes nothing from the new one.
    cluster.post(&name(1), Input::ObserverGone(observer(0)));
    for (to, peer) in [("10.0.0.1:80", None), ("10.0.0.1:81", Some(at(job, 0)))] {
        let before = cluster.told[&ObserverId(50)].len();
        cluster.post(&name(1), Input::Observer(ObserverId(50), 1000, calling(job, 0, to)));
        cluster.run_until(|c| c.told[&ObserverId(50)].len() > before);
        assert_eq!(
            cluster.told[&ObserverId(50)].last(),
            Some(&FromNode::Peer { ask: 3, peer, key: None, at: None, later: false }),
            "{to}"
        );
    }
}

#[test]
fn offsets_and_closed_connections_find_their_way() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(3, never());
    let connection = ConnectionId { opener: at(job, 0), number: 1 };
    let stream = StreamId { connection, from_opener: true };
    cluster.say(job, 0, ToNode::AskStable { stream, receiver: at(job, 2) });
    cluster.say(job, 0, ToNode::Forget { connection, peer: at(job, 1), for_good: true });
    cluster.run_until(|c| c.told(0).len() == 2 && c.told(1).len() == 2);
    assert_eq!(*cluster.last_told(0), FromNode::Stable { stream, offset: 77 });
    let asked: Vec<_> = cluster.orders.iter().filter(|(_, o)| matches!(o, StoreOrder::StableOf(..))).collect();
    assert_eq!(asked.len(), 3, "every node that may have its log: {asked:?}");
    assert_eq!(*cluster.last_told(1), FromNode::Forget { connection, for_good: true });
}

/// A late message of an earlier epoch of the job is about a connection that the present epoch does not have. If it counted, bytes
/// would be forgotten that a rank of the present epoch is still to receive.
#[test]
fn what_was_closed_in_a_life_before_is_not_closed_in_this_one() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start_protected(2, never());
    let (connection, process) = (ConnectionId { opener: at(job, 0), number: 1 }, at(job, 1));
    for (life, is_told) in [(Incarnation(Incarnation::LIVES), false), (Incarnation(0), true)] {
        let node = cluster.nodes.get_mut(&name(2)).expect("it is up");
        node.handle_message(cluster.now, &id(1), PeerMessage::Forget { connection, process, for_good: true, life });
        let outputs: Vec<Output> = std::iter::from_fn(|| node.poll_output()).collect();
        let told = outputs.iter().any(|o| matches!(o, Output::Observer(_, FromNode::Forget { .. })));
        assert_eq!(told, is_told, "{life:?}: {outputs:?}");
    }
}

/// A job may run for months, and make a thousand connections in each second.
#[test]
fn of_connections_that_are_over_nothing_is_kept() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(3, never());
    let streams = [true, false].map(|from_opener| {
        let connection = ConnectionId { opener: at(job, 1), number: 1 };
        StreamId { connection, from_opener }
    });
    let end = StreamEnd { offset: 9, closed: true, received: 4 };
    let ask = |cluster: &mut Cluster, ask, stream| {
        cluster.say(job, 0, ToNode::Ended { ask, stream, sender: at(job, 1) });
        cluster.run_until(|c| matches!(c.told(0).last(), Some(FromNode::Final { ask: of, .. }) if *of == ask));
        let FromNode::Final { end, .. } = *cluster.last_told(0) else { panic!("{:?}", cluster.last_told(0)) };
        end
    };
    let other = StreamId { connection: ConnectionId { opener: at(job, 1), number: 2 }, from_opener: true };
    for stream in [streams[0], streams[1], other] {
        cluster.say(job, 1, ToNode::Finished { stream, end });
    }
    assert_eq!(streams.map(|stream| ask(&mut cluster, 1, stream)), [Some(end); 2]);
    cluster.say(job, 1, ToNode::Over { connection: streams[0].connection });
    assert_eq!(streams.map(|stream| ask(&mut cluster, 2, stream)), [None; 2]);
    assert_eq!(ask(&mut cluster, 3, other), Some(end));
}

#[test]
fn checkpoints_come_after_init_then_staggered_then_at_every_interval() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start_protected(2, Protection { interval: Interval::Every(10_000), ..Protection::default() });
    let count = |c: &Cluster, rank| c.told(rank).iter().filter(|m| matches!(m, FromNode::Checkpoint { .. })).count();
    cluster.run_for(Duration::from_secs(5));
    assert_eq!(count(&cluster, 0), 0);
    cluster.say(job, 0, ToNode::Initialized);
    cluster.run_for(Duration::from_millis(10));
    assert_eq!((count(&cluster, 0), count(&cluster, 1), cluster.nudged.len()), (1, 0, 1));
    // Half the interval later by its stagger, but the first is not done: it is only reminded.
    cluster.run_for(Duration::from_millis(5_500));
    assert_eq!((count(&cluster, 0), count(&cluster, 1)), (1, 1), "rank 1 never said that it is initialized");
    assert_eq!(cluster.nudged.iter().filter(|p| **p == at(job, 0)).count(), 2);
    cluster.say(job, 0, ToNode::Checkpointed { request: 1, result: Ok(1) });
    cluster.say(job, 1, ToNode::Checkpointed { request: 1, result: Err("a mapping of /dev/x cannot be saved".into()) });
    cluster.run_for(Duration::from_millis(1_500));
    assert_eq!((count(&cluster, 0), count(&cluster, 1)), (1, 1));
    cluster.run_for(Duration::from_millis(7_500));
    assert_eq!((count(&cluster, 0), count(&cluster, 1)), (1, 2), "a process without any image need not wait for the interval");
    cluster.run_for(Duration::from_millis(1_500));
    assert_eq!((count(&cluster, 0), count(&cluster, 1)), (2, 2));
    assert_eq!(cluster.recorded(EventName::CheckpointFailed), 1);
}

#[test]
fn a_checkpoint_on_request_tells_of_every_rank() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(3, never());
    cluster.exit(at(job, 2), ExitStatus::Code(0));
    // The first one of rank 0 is made already; its end is told when the next is wanted.
    cluster.say(job, 0, ToNode::Initialized);
    cluster.run_for(Duration::from_millis(10));
    let asked = |request| FromNode::Checkpoint { request };
    cluster.hello(2, 9, Request::Checkpoint { job: job.to_string()[..6].to_owned() });
    cluster.run_until(|c| c.told(0).contains(&asked(2)) && c.told(1).contains(&asked(1)));
    cluster.say(job, 0, ToNode::Checkpointed { request: 1, result: Ok(4) });
    cluster.say(job, 0, ToNode::Checkpointed { request: 2, result: Ok(5) });
    cluster.run_for(Duration::from_secs(30));
    assert_eq!(cluster.replies(9).len(), 1, "rank 1 is not done");
    cluster.say(job, 1, ToNode::Checkpointed { request: 1, result: Err("no".into()) });
    cluster.run_until(|c| c.replies(9).len() == 3);
    let Reply::Checkpoints(done) = &cluster.replies(9)[1] else { panic!("{:?}", cluster.replies(9)) };
    let results: Vec<_> = done.iter().map(|d| (d.rank.0, d.node.to_string(), d.result.clone())).collect();
    assert_eq!(results[0], (0, "n1".to_owned(), Ok(5)));
    assert_eq!(results[1], (1, "n2".to_owned(), Err("no".to_owned())));
    assert!(results[2].2.is_err() && cluster.replies(9)[2] == Reply::Done);
}

#[test]
fn the_library_comes_before_the_user_s_own_and_no_rank_inherits_another_s_socket() {
    let mut cluster = Cluster::new(2);
    let variable = |name: &str, value: &str| (ByteBuf::from(name), ByteBuf::from(value));
    let env = vec![variable("LD_PRELOAD", "/mine.so"), variable("RADIC_PROCESS_SOCKET", "/other")];
    for (client, protect) in [(1, Protect::On), (2, Protect::Off), (3, Protect::None)] {
        let protection = Protection { protect, ..Protection::default() };
        let spec = JobSpec { protection, env: env.clone(), ..spec(1) };
        cluster.hello(1, client, Request::Run { spec: Box::new(spec), attach: true });
        cluster.run_until(|c| c.ranks.len() == client as usize);
    }
    for (environment, library) in &cluster.launched {
        let value = |name: &str| {
            environment.iter().find(|(n, _)| n.as_ref() == name.as_bytes()).map(|(_, v)| String::from_utf8_lossy(v).into_owned())
        };
        let loaded = library.is_some();
        let preload = if loaded { "/lib/libradic.so:/mine.so" } else { "/mine.so" };
        assert_eq!(value("LD_PRELOAD").as_deref(), Some(preload));
        assert_eq!(value("RADIC_PROCESS_SOCKET").as_deref(), loaded.then_some("/process.sock"));
    }
    assert_eq!(cluster.launched.iter().filter(|(_, library)| library.is_some()).count(), 2);
}

/// An address that no interface carries: what names one is left out, and the rest stays.
#[test]
fn a_variable_for_which_the_node_has_no_value_stays_unset() {
    for (iface, due) in
        [("eth7", [Some("eth7"), Some("10.1.0.0/16"), Some("x eth7"), Some("0")]), ("", [None, None, None, Some("0")])]
    {
        let environment = HostEnvironment {
            address: [10, 1, 2, 3].into(),
            iface: iface.into(),
            prefix: "10.1.0.0/16".into(),
            radic_pmi: "/lib/libradic_pmi.so".into(),
            library: "/lib/libradic.so".into(),
            process_socket: "/process.sock".into(),
            node: "n1".into(),
        };
        let names = ["FI_TCP_IFACE", "OMPI_MCA_btl_tcp_if_include", "BOTH", "FI_TCP_IO_URING"];
        let templates = ["{iface}", "{prefix}", "x {iface}", "0"];
        let templates = names.iter().zip(templates).map(|(name, template)| ((*name).to_owned(), template.to_owned())).collect();
        let spec = JobSpec { templates, ..spec(1) };
        let placement = Placement { nodes: vec![id(1)], rank_nodes: vec![0] };
        let mut host = Host::launch(&id(1), &environment, JobId::from_bits(7), Incarnation(0), &spec, placement);
        let Some(HostOutput::Spawn(_, order)) = host.poll_output() else { panic!("nothing is started") };
        let value = |wanted: &&str| {
            let (_, value) = order.env.iter().find(|(name, _)| name.as_ref() == wanted.as_bytes())?;
            Some(String::from_utf8(value.to_vec()).expect("it is text"))
        };
        assert_eq!(names.each_ref().map(value), due.map(|due| due.map(str::to_owned)), "{iface:?}");
    }
}

#[test]
fn two_replicas_need_a_third_node() {
    let protection = Protection { replicas: 2, ..never() };
    for (nodes, replica) in [(3, Some("10.0.0.3:103".parse().unwrap())), (2, None)] {
        let mut cluster = Cluster::new(nodes);
        let job = cluster.start_protected(1, protection.clone());
        assert!(cluster.orders.contains(&(name(2), StoreOrder::SetReplica(at(job, 0), replica))), "{:?}", cluster.orders);
        assert_eq!(cluster.recorded(EventName::Limit), usize::from(replica.is_none()));
    }
}

#[test]
fn a_rank_is_killed_where_it_is_and_a_node_is_asked_before_it_has_a_fault() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start(1, 1, 3);
    let failed =
        |c: &Cluster, client, part: &str| matches!(c.replies(client).last(), Some(Reply::Error(text)) if text.contains(part));
    cluster.hello(3, 2, Request::KillRank { job: job.to_string()[..6].to_owned(), rank: Rank(1) });
    cluster.hello(3, 3, Request::KillRank { job: job.to_string(), rank: Rank(3) });
    cluster.hello(3, 4, Request::Fault { name: name(2), fault: Fault::Pause { ms: 7 } });
    cluster.hello(3, 5, Request::Fault { name: name(2), fault: Fault::Cut { ms: 7 } });
    cluster.hello(3, 6, Request::Fault { name: name(9), fault: Fault::Pause { ms: 7 } });
    cluster.run_for(Duration::from_millis(100));
    assert_eq!(cluster.replies(2).last(), Some(&Reply::Done));
    assert!(cluster.ranks[&at(job, 1)].1.signals.contains(&libc::SIGKILL));
    assert!(failed(&cluster, 3, "has ranks 0 to 2"), "{:?}", cluster.replies(3));
    assert_eq!((cluster.replies(4).last(), &cluster.faults[..]), (Some(&Reply::Done), &[(name(2), Fault::Pause { ms: 7 })][..]));
    assert!(failed(&cluster, 5, "n2: no cable") && failed(&cluster, 6, "there is no node n9"));
    assert_eq!(cluster.recorded(EventName::Inject), 2);
    cluster.hello(3, 7, Request::KillRank { job: job.to_string(), rank: Rank(1) });
    cluster.run_for(Duration::from_millis(100));
    assert!(failed(&cluster, 7, "does not run") || failed(&cluster, 7, "there is no job"), "{:?}", cluster.replies(7));
}

#[test]
fn an_event_names_only_some_of_many_nodes() {
    let ids: Vec<NodeId> = (0..100).map(id).collect();
    assert_eq!(listed("gone", ids[..0].iter()), "");
    assert_eq!(listed("gone", ids[..2].iter()), "; gone: n0, n1");
    let text = listed("joined", ids.iter());
    assert!(text.starts_with("; joined: n0, n1, ") && text.ends_with(", n63 and 36 more"), "{text}");
}

/// A sender asks often. All nodes are asked where the receiver's log is, then only the node that had it and the receiver's host.
/// After a while all are asked once more, because the log may have moved.
#[test]
fn only_who_holds_a_log_is_asked_what_is_stable_and_now_and_then_all() {
    let mut cluster = Cluster::new(6);
    let job = cluster.start_protected(2, never());
    let stream = StreamId { connection: ConnectionId { opener: at(job, 0), number: 0 }, from_opener: true };
    let mut asked = Vec::new();
    for _ in 0..40 {
        let before = (cluster.orders.len(), cluster.told(0).len());
        cluster.say(job, 0, ToNode::AskStable { stream, receiver: at(job, 1) });
        cluster.run_until(|c| c.told(0).len() > before.1);
        assert_eq!(cluster.last_told(0), &FromNode::Stable { stream, offset: 77 });
        asked.push(cluster.orders[before.0..].iter().filter(|(_, order)| matches!(order, StoreOrder::StableOf(..))).count());
    }
    assert_eq!(asked.iter().filter(|nodes| **nodes == 6).count(), 3, "{asked:?}");
    assert!(asked.iter().all(|nodes| matches!(nodes, 1 | 2 | 6)), "{asked:?}");
}

/// The node of the terminal is lost; it hosts no rank. No terminal prints any more, and no rank may wait for that: what was under
/// way to it, and what comes, is kept for the next terminal.
#[test]
fn a_protected_job_goes_on_when_the_node_of_its_terminal_is_lost() {
    let mut cluster = Cluster::new(5);
    let spec = JobSpec { protection: never(), nodes: (1..=2).map(name).collect(), ..spec(2) };
    cluster.hello(5, 1, Request::Run { spec: Box::new(spec), attach: true });
    cluster.run_until(|c| c.ranks.len() == 2);
    let job = cluster.ranks.keys().next().unwrap().job;
    cluster.kill(&name(5));
    cluster.run_for(Duration::from_secs(3));
    let pieces = 2 * limits::OUTPUT_WINDOW / limits::CHUNK;
    (0..pieces).for_each(|_| cluster.print(at(job, 1), &vec![7; limits::CHUNK]));
    cluster.run_for(Duration::from_millis(200));
    assert!(cluster.ranks[&at(job, 1)].1.output.values().all(VecDeque::is_empty), "the rank waits");
    let kept = cluster.nodes[&name(1)].kept_output(job).iter().map(|(.., range)| range.end - range.start).sum::<u64>() as usize;
    let all = pieces * limits::CHUNK;
    assert!(kept < all && kept + limits::OUTPUT_UNPRINTED > all, "{kept} of {all}: the host keeps what is newest, too");
    cluster.exit_all(job);
    cluster.run_for(Duration::from_secs(1));
    assert!(cluster.nothing_left());
    cluster.hello(1, 2, Request::Attach { job: job.to_string() });
    cluster.run_until(|c| c.printed(2).len() == limits::OUTPUT_WINDOW);
    cluster.ask(1, 2, Request::Printed(limits::OUTPUT_WINDOW as u64));
    cluster.run_until(|c| c.printed(2).len() == all);
    cluster.ask(1, 2, Request::Printed(limits::OUTPUT_WINDOW as u64));
    cluster.run_until(|c| c.outcome(2).is_some());
}

/// A home without a terminal, of two ranks that are protected: the first there, the second on this node.
fn home_of(second: usize) -> Home {
    let placement = Placement { nodes: vec![id(1), id(second)], rank_nodes: vec![0, 1] };
    let spec = JobSpec { protection: never(), ..spec(2) };
    Home::start(Duration::ZERO, 0, JobId::from_bits(1), spec, placement, None)
}

/// What a host says of its ranks in the job's first epoch.
fn of_host(said: FromHost) -> ToHome {
    ToHome::Host { life: Incarnation(0), said }
}

fn prints(offset: u64, text: &str) -> ToHome {
    let data = ByteBuf::from(text.as_bytes());
    of_host(FromHost::Output { rank: Rank(1), stream: OutputStream::Stdout, offset, data })
}

/// What a terminal that attaches now gets of a job's output.
fn shown_by(home: &mut Home) -> Vec<u8> {
    home.handle_message(Duration::ZERO, &id(1), ToHome::Attach(SessionId { node: id(1), number: 1 }));
    let shown = std::iter::from_fn(|| home.poll_output()).filter_map(|output| match output {
        home::HomeOutput::ToSession(_, ToSession::Output { data, .. }) => Some(data.to_vec()),
        _ => None,
    });
    shown.flatten().collect()
}

/// The node where a rank goes on knows of a loss that the home hears of later. What it says meanwhile is kept: without it the
/// output would have a gap.
#[test]
fn a_home_misses_nothing_of_a_rank_that_is_back_before_it_knows_that_it_was_lost() {
    let mut home = home_of(2);
    home.handle_message(Duration::ZERO, &id(3), of_host(FromHost::Launched { rank: Rank(1), pid: 7 }));
    home.handle_message(Duration::ZERO, &id(3), prints(0, "early"));
    let placement = Placement { nodes: vec![id(1), id(3)], rank_nodes: vec![0, 1] };
    home.handle_moved(Duration::ZERO, &id(2), placement);
    home.handle_message(Duration::ZERO, &id(3), prints(5, " and late"));
    assert_eq!(home.outcome(), None);
    assert_eq!(shown_by(&mut home), b"early and late");
}

/// A gap in its output ends the job with an error, although its host waits until the rest is printed.
#[test]
fn a_gap_in_the_output_ends_the_job() {
    let mut home = home_of(2);
    home.handle_message(Duration::ZERO, &id(2), prints(0, "a"));
    home.handle_message(Duration::ZERO, &id(2), prints(9, "z"));
    assert!(home.outcome().is_some_and(|outcome| outcome.code == 113));
    let taken = |output: home::HomeOutput| match output {
        home::HomeOutput::ToHost(node, ToHost::OutputTaken { offset, .. }) if node == id(2) => Some(offset),
        _ => None,
    };
    assert_eq!(std::iter::from_fn(|| home.poll_output()).filter_map(taken).max(), Some(10));
}

/// What a host still says of an earlier epoch of the job is not taken for the present one's.
#[test]
fn what_is_said_of_a_life_before_says_nothing_of_the_next_one() {
    let mut home = home_of(2);
    let now = Duration::ZERO;
    let lost = ToHome::NoImage { rank: Rank(1), life: Incarnation(0), why: "lost".to_owned(), signal: None };
    home.handle_message(now, &id(1), lost);
    home.handle_message(now, &id(1), of_host(FromHost::Gone));
    home.handle_message(now, &id(2), of_host(FromHost::Gone));
    let next = Incarnation(Incarnation::LIVES);
    assert_eq!(home.incarnation(), next);
    let status = ExitStatus::Signal(9);
    home.handle_message(now, &id(2), prints(116, "of before"));
    home.handle_message(now, &id(2), of_host(FromHost::Exited { rank: Rank(1), status, phase: MpiPhase::Before }));
    home.handle_message(now, &id(2), of_host(FromHost::Gone));
    let data = ByteBuf::from(b"of now".as_slice());
    let said = FromHost::Output { rank: Rank(1), stream: OutputStream::Stdout, offset: 0, data };
    home.handle_message(now, &id(2), ToHome::Host { life: next, said });
    assert_eq!(home.outcome(), None);
    assert_eq!(shown_by(&mut home), b"of now");
}

/// What is needed to adopt a job in `incarnation` with a rank on each of two nodes, of which the first is the home.
fn adoption(incarnation: Incarnation) -> Adoption {
    let placement = Placement { nodes: vec![id(3), id(4)], rank_nodes: vec![0, 1] };
    let spec = JobSpec { protection: never(), ..spec(2) };
    Adoption { job: JobId::from_bits(1), ward: Ward { incarnation, spec, placement, fence: 0, keys: Vec::new() }, started_ms: 0 }
}

fn adopted() -> Home {
    Home::adopt(Duration::ZERO, adoption(Incarnation(0)))
}

/// The home before had restarted the job, and the next one hears so from a host. It begins no epoch with the same number again,
/// because processes of that epoch may run behind a cut (G4).
#[test]
fn no_number_of_a_life_is_given_twice() {
    let begun = Incarnation(Incarnation::LIVES);
    let no_image = ToHome::NoImage { rank: Rank(0), life: Incarnation(begun.0 + 1), why: "lost".to_owned(), signal: None };
    for knows in [None, Some(no_image)] {
        let (now, mut home) = (Duration::ZERO, adopted());
        match knows {
            Some(message) => home.handle_message(now, &id(3), message),
            None => home.handle_adoption(&adoption(begun)),
        }
        for node in [id(3), id(4)] {
            home.handle_message(now, &node, of_host(FromHost::Gone));
        }
        // Nor with the number of an epoch that was launched unheard.
        assert_eq!(home.incarnation(), Incarnation(3 * Incarnation::LIVES));
        assert_eq!(home.outcome(), None);
    }
}

/// A host that had not heard of its new home when that ended everything is told again when it reports, and says `Gone` only when
/// it is.
#[test]
fn a_host_that_comes_late_to_its_new_home_is_ended_all_the_same() {
    let mut home = adopted();
    let lost = ToHome::NoImage { rank: Rank(0), life: Incarnation(1), why: "lost".to_owned(), signal: None };
    home.handle_message(Duration::ZERO, &id(3), lost);
    let ends = |home: &mut Home| {
        let outputs = std::iter::from_fn(|| home.poll_output());
        let is_end = |output: &home::HomeOutput| matches!(output, home::HomeOutput::ToHost(node, ToHost::End { anew: true, .. }) if *node == id(4));
        outputs.filter(is_end).count()
    };
    assert_eq!(ends(&mut home), 1);
    let (ended, running, keys, waiting) = (Vec::new(), vec![Rank(1)], Vec::new(), Vec::new());
    let report = HostReport { running, ended, fence: 0, keys, waiting, anew: false };
    home.handle_message(Duration::ZERO, &id(4), of_host(FromHost::Report(report)));
    assert_eq!(ends(&mut home), 1);
}

/// An order to bring a rank of three back on the second node.
fn order_of(process: ProcessId, incarnation: Incarnation) -> RestartOrder {
    let placement = Placement { nodes: vec![id(1), id(2)], rank_nodes: vec![0, 1, 1] };
    let spec = JobSpec { protection: never(), ..spec(3) };
    RestartOrder {
        process,
        incarnation,
        ward: Ward { incarnation: incarnation.first_of_job(), spec, placement, fence: 0, keys: Vec::new() },
        origin: address(1).ip(),
        log: address(1),
        replica: None,
        range: ImageRange::default(),
        images: vec![(0, 10)],
        cut: 0,
        log_end: 0,
        held: Vec::new(),
    }
}

/// The word to launch the next epoch of a job may come after an order to bring one of its ranks back here, and both while a
/// process of the epoch before is here. That process ends first, and then every rank is here, once.
#[test]
fn an_order_that_comes_before_the_word_to_launch_takes_nothing_from_it() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start_protected(2, never());
    let (now, next) = (Duration::from_secs(1), Incarnation(Incarnation::LIVES));
    let placement = Placement { nodes: vec![id(1), id(2)], rank_nodes: vec![0, 1, 1] };
    let spec = JobSpec { protection: never(), ..spec(3) };
    let ward = Ward { incarnation: next, spec: spec.clone(), placement: placement.clone(), fence: 0, keys: Vec::new() };
    let order = RestartOrder { ward, ..order_of(at(job, 2), Incarnation(next.0 + 1)) };
    let launch = ToHost::Launch { incarnation: next, spec: Box::new(spec), placement };
    let node = cluster.nodes.get_mut(&name(2)).expect("it is there");
    let mut says = |input: Input| {
        node.handle(now, input);
        let outputs = std::iter::from_fn(|| node.poll_output());
        let of_processes = outputs.filter_map(|output| match output {
            Output::Process(_, HostOutput::Spawn(rank, _)) => Some(format!("spawn {rank}")),
            Output::Process(_, HostOutput::Restore(rank, _)) => Some(format!("restore {rank}")),
            Output::Process(_, HostOutput::Signal(rank, signal)) => Some(format!("signal {rank} {signal}")),
            _ => None,
        });
        of_processes.collect::<Vec<_>>()
    };
    assert_eq!(says(Input::Message(id(1), PeerMessage::Restart(Box::new(order)))), ["signal 1 9"]);
    assert_eq!(says(Input::Exited(at(job, 1), ExitStatus::Signal(9)))[1..], ["restore 2"]);
    assert_eq!(says(Input::Message(id(1), PeerMessage::ToHost(job, launch.clone()))), ["spawn 1"]);
    assert_eq!(says(Input::Message(id(1), PeerMessage::ToHost(job, launch))), [""; 0]);
}

/// A node has nothing of a job that is ended for a restart. An order of that epoch comes after it has said so: it is refused, and
/// the next epoch may begin here.
#[test]
fn an_order_of_an_epoch_that_was_ended_is_refused() {
    let mut cluster = Cluster::new(2);
    let (job, now) = (JobId::from_bits(9), Duration::from_secs(1));
    let end = ToHost::End { life: Incarnation(0), kill: true, anew: true };
    let node = cluster.nodes.get_mut(&name(2)).expect("it is there");
    node.handle(now, Input::Message(id(1), PeerMessage::ToHost(job, end)));
    for (life, comes) in [(1, false), (Incarnation::LIVES + 1, true)] {
        let order = order_of(at(job, 1), Incarnation(life));
        node.handle(now, Input::Message(id(1), PeerMessage::Restart(Box::new(order))));
        let restores = |output| matches!(output, Output::Process(_, HostOutput::Restore(Rank(1), _)));
        assert_eq!(std::iter::from_fn(|| node.poll_output()).any(restores), comes, "life {life}");
    }
}

/// What the home says of an epoch whose beginning waits for a process of the one before is handled after that beginning.
#[test]
fn the_end_of_a_life_that_has_not_begun_here_is_heard_after_its_beginning() {
    let mut cluster = Cluster::new(2);
    let job = cluster.start_protected(2, never());
    let (now, incarnation) = (Duration::from_secs(1), Incarnation(Incarnation::LIVES));
    let placement = Placement { nodes: vec![id(1), id(2)], rank_nodes: vec![0, 1] };
    let launch = ToHost::Launch { incarnation, spec: Box::new(JobSpec { protection: never(), ..spec(2) }), placement };
    let end = ToHost::End { life: incarnation, kill: true, anew: true };
    let node = cluster.nodes.get_mut(&name(2)).expect("it is there");
    let mut said = |input: Input| {
        node.handle(now, input);
        let outputs = std::iter::from_fn(|| node.poll_output());
        let of_host = outputs.filter_map(|output| match output {
            Output::Send(_, PeerMessage::ToHome(_, ToHome::Host { life, said: FromHost::Gone })) => {
                Some(format!("gone {}", life.0))
            }
            Output::Process(_, HostOutput::Spawn(rank, _)) => Some(format!("spawn {rank}")),
            Output::Process(_, HostOutput::Signal(rank, signal)) => Some(format!("signal {rank} {signal}")),
            _ => None,
        });
        of_host.collect::<Vec<_>>()
    };
    assert_eq!(said(Input::Message(id(1), PeerMessage::ToHost(job, launch))), ["signal 1 9"]);
    assert_eq!(said(Input::Message(id(1), PeerMessage::ToHost(job, end))), [""; 0]);
    assert_eq!(said(Input::Exited(at(job, 1), ExitStatus::Signal(9)))[1..], ["spawn 1"]);
    assert_eq!(said(Input::Spawned(at(job, 1), Ok(7))), ["signal 1 9"]);
    assert_eq!(said(Input::Exited(at(job, 1), ExitStatus::Signal(9))), ["signal 1 9"]);
    for (stream, gone) in [(OutputStream::Stdout, [].as_slice()), (OutputStream::Stderr, &["gone 65536"])] {
        assert_eq!(said(Input::ProcessOutput(at(job, 1), stream, ByteBuf::new())), gone);
    }
}

/// A node with a rank of a job does not say that it has nothing, even if the home that asks is not the one that it knows.
#[test]
fn who_has_a_rank_of_a_job_does_not_say_that_nothing_is_left() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(2, never());
    let end = ToHost::End { life: Incarnation(0), kill: true, anew: true };
    let node = cluster.nodes.get_mut(&name(2)).expect("it is there");
    let says_gone =
        |output: Output| matches!(output, Output::Send(_, PeerMessage::ToHome(_, ToHome::Host { said: FromHost::Gone, .. })));
    node.handle(Duration::from_secs(1), Input::Message(id(3), PeerMessage::ToHost(job, end.clone())));
    assert!(!std::iter::from_fn(|| node.poll_output()).any(says_gone));
    node.handle(Duration::from_secs(1), Input::Message(id(3), PeerMessage::ToHost(JobId::from_bits(77), end)));
    assert!(std::iter::from_fn(|| node.poll_output()).any(says_gone));
}

/// A home was adopted for nothing: the job had ended. Its hosts are superseded, and say nothing.
#[test]
fn a_home_of_a_job_that_had_ended_ends() {
    let mut home = adopted();
    home.handle_removed(Duration::ZERO, None);
    assert!(std::iter::from_fn(|| home.poll_output()).any(|output| matches!(output, home::HomeOutput::Ended)));
    assert_eq!(home.outcome().map(|outcome| outcome.code), Some(radic_wire::job::exit_code::NODE_LOST));
}

/// All ranks had ended and printed everything when their home was lost. The next home ends the job at once, and tells the nodes
/// how it has ended, because it may be lost before a terminal has turned to it.
#[test]
fn a_home_that_has_nothing_to_print_says_how_its_job_has_ended() {
    let (now, mut home) = (Duration::ZERO, adopted());
    for (rank, node) in [(Rank(0), id(3)), (Rank(1), id(4))] {
        let (status, phase) = (ExitStatus::Code(0), MpiPhase::After);
        home.handle_message(now, &node, ToHome::Left { rank, life: Incarnation(0), status, phase });
    }
    home.handle_message(now, &id(3), of_host(FromHost::Gone));
    home.handle_message(now, &id(4), of_host(FromHost::Gone));
    assert!(std::iter::from_fn(|| home.poll_output()).any(|output| matches!(output, home::HomeOutput::Ended)));
    assert_eq!(home.last_word(), Some(&Outcome { code: 0, reason: EndReason::Finished }));
}

/// A node hears of a job's next home before it hears that the home before is lost, and that one says meanwhile that the job is
/// over. The next home hears so, because the node has forgotten what it would report.
#[test]
fn the_next_home_hears_of_an_end_that_was_told_by_the_one_before() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(2, never());
    let node = cluster.nodes.get_mut(&name(2)).expect("it is there");
    let outcome = Outcome { code: 0, reason: EndReason::Finished };
    node.handle(Duration::from_secs(1), Input::Message(id(3), PeerMessage::NewHome(job)));
    let remove = ToStore::Remove(Some(outcome.clone()));
    node.handle(Duration::from_secs(1), Input::Message(id(1), PeerMessage::ToStore(job, remove)));
    let tells = |output: Output| match output {
        Output::Send(to, PeerMessage::ToStore(of, ToStore::Remove(told))) => {
            to.id == id(3) && of == job && told == Some(outcome.clone())
        }
        _ => false,
    };
    assert!(std::iter::from_fn(|| node.poll_output()).any(tells));
}

/// A home is lost just after it has ended everything for a restart: the ranks that were ended for that have not failed.
#[test]
fn a_job_that_was_about_to_begin_anew_does_so_under_its_next_home() {
    let mut home = adopted();
    let ended = vec![(Rank(0), ExitStatus::Signal(9), MpiPhase::Before)];
    let (running, keys, waiting) = (Vec::new(), Vec::new(), Vec::new());
    let report = HostReport { running, ended, fence: 0, keys, waiting, anew: true };
    home.handle_message(Duration::ZERO, &id(3), of_host(FromHost::Report(report)));
    assert_eq!(home.outcome(), None);
    assert!(std::iter::from_fn(|| home.poll_output()).any(|output| matches!(output, home::HomeOutput::Anew(_))));
}

/// A home that was adopted restarts the job, and is cut off before it can launch it. It gives the job up, and expects no report
/// of hosts that have ended what they had.
#[test]
fn a_home_that_was_adopted_is_given_up_while_its_job_begins_anew() {
    let mut home = adopted();
    let lost = ToHome::NoImage { rank: Rank(0), life: Incarnation(1), why: "lost".to_owned(), signal: None };
    home.handle_message(Duration::ZERO, &id(3), lost);
    home.handle_message(Duration::ZERO, &id(3), of_host(FromHost::Gone));
    home.handle_node_lost(Duration::ZERO, &id(4), "no majority");
    home.give_up(Duration::ZERO, "no majority");
    assert!(home.is_over(), "{home:?}");
    assert_eq!(home.outcome().map(|outcome| outcome.code), Some(radic_wire::job::exit_code::NODE_LOST));
}

/// A host that the home before has ended tells an adopted home that it has nothing. The ranks that are to come back on its node
/// still do.
#[test]
fn a_rank_that_comes_back_on_the_node_of_a_host_that_has_ended_is_waited_for() {
    let placement = Placement { nodes: vec![id(3), id(4)], rank_nodes: vec![0, 1, 1] };
    let ward = Ward {
        incarnation: Incarnation(0),
        spec: JobSpec { protection: never(), ..spec(3) },
        placement,
        fence: 0,
        keys: Vec::new(),
    };
    let mut home = Home::adopt(Duration::ZERO, Adoption { job: JobId::from_bits(1), ward, started_ms: 0 });
    let report = |ended: &[u32], running: &[u32]| HostReport {
        running: running.iter().map(|rank| Rank(*rank)).collect(),
        ended: ended.iter().map(|rank| (Rank(*rank), ExitStatus::Code(0), MpiPhase::Before)).collect(),
        fence: 0,
        keys: Vec::new(),
        waiting: Vec::new(),
        anew: false,
    };
    home.handle_message(Duration::ZERO, &id(3), of_host(FromHost::Report(report(&[0], &[]))));
    home.handle_message(Duration::ZERO, &id(4), of_host(FromHost::Report(report(&[1], &[]))));
    home.handle_message(Duration::ZERO, &id(4), of_host(FromHost::Gone));
    assert_eq!((home.outcome(), home.lost().collect::<Vec<_>>()), (None, vec![Rank(2)]));
    home.handle_message(
        Duration::ZERO,
        &id(4),
        of_host(FromHost::Exited { rank: Rank(2), status: ExitStatus::Code(0), phase: MpiPhase::Before }),
    );
    home.handle_message(Duration::ZERO, &id(3), of_host(FromHost::Gone));
    home.handle_message(Duration::ZERO, &id(4), of_host(FromHost::Gone));
    assert!(home.is_over());
}

/// A host asks for protection, and the job is over before that is heard: nothing is kept of the job.
#[test]
fn a_job_that_is_over_is_not_protected() {
    let mut cluster = Cluster::new(3);
    let job = cluster.start_protected(1, never());
    cluster.exit_all(job);
    cluster.run_until(|c| c.outcome(1).is_some() && !c.nodes[&name(2)].knows(job));
    let placement = Placement { nodes: vec![id(1)], rank_nodes: vec![0] };
    let spec = JobSpec { protection: never(), ..spec(1) };
    let ward = Box::new(Ward { incarnation: Incarnation(0), spec, placement, fence: 0, keys: Vec::new() });
    let protect = ToStore::Protect { ranks: vec![(Rank(0), Incarnation(1))], origins: BTreeMap::new(), ward };
    cluster.post(&name(2), Input::Message(id(1), PeerMessage::ToStore(job, protect)));
    cluster.run_for(Duration::from_millis(10));
    assert!(!cluster.nodes[&name(2)].knows(job));
}

/// A host asks for protection, and its job restarts before that is heard: what is protected of the next epoch stays as it is.
#[test]
fn what_is_protected_in_the_next_epoch_of_a_job_stays_so() {
    let mut cluster = Cluster::new(3);
    let (job, first) = (JobId::from_bits(1), Incarnation(Incarnation::LIVES));
    let placement = Placement { nodes: vec![id(1), id(3)], rank_nodes: vec![0, 1] };
    let ward = |incarnation| {
        let spec = JobSpec { protection: never(), ..spec(2) };
        Box::new(Ward { incarnation, spec, placement: placement.clone(), fence: 0, keys: Vec::new() })
    };
    let protect = |rank, life| ToStore::Protect { ranks: vec![(Rank(rank), life)], origins: BTreeMap::new(), ward: ward(life) };
    let said = [(1, ToStore::Anew(first)), (1, protect(0, first)), (3, protect(1, Incarnation(0)))];
    for (from, message) in said {
        cluster.post(&name(2), Input::Message(id(from), PeerMessage::ToStore(job, message)));
    }
    cluster.run_for(Duration::from_millis(10));
    let wards = &cluster.nodes[&name(2)].recovery.wards[&job];
    assert_eq!(wards.ward.incarnation, first);
    assert_eq!(wards.ranks.iter().map(|(rank, p)| (*rank, p.incarnation)).collect::<Vec<_>>(), [(Rank(0), first)]);
}
