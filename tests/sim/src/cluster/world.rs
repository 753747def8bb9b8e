//! The events of a simulated cluster, in their order; machines, faults and the terminal.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use radic_protector::membership::Timing;
use radic_protector::node::host::HostEnvironment;
use radic_protector::node::{ClientId, Input, Node, NodeConfig};
use radic_protector::store::{self, Speaker};
use radic_wire::bytes::Writer;
use radic_wire::event::EventName;
use radic_wire::ids::{BootId, Epoch, JobId, NodeId, NodeName, ProcessId, Rank};
use radic_wire::job::{EndReason, ExitStatus, JobSpec, MapBy, OnLoss, Outcome, OutputStream};
use radic_wire::key::ClusterKey;
use radic_wire::limits;
use radic_wire::local::{Reply, Request};
use radic_wire::membership::{Member, Role};
use radic_wire::process::{FromNode, Interval, Protect, Protection};
use serde_bytes::ByteBuf;

use super::check::{Checks, covers};
use super::daemon::{Peers, Timer};
use super::images::Saved;
use super::logs::{Done, Logs};
use super::net::{ConnId, Net, Owner, Packet, machine_of};
use super::plan::{Fault, Plan, Told, When};
use super::process::Process;
use crate::dice::Dice;

/// Virtual time that a job may take, from its start: the longest waits of the protocol are of 60 s, and some follow each other.
const HANG: Duration = Duration::from_secs(400);
/// Events of one seed; one that has more goes round in circles.
const EVENTS: u64 = 4_000_000;
/// Time until the terminal tries another node, and for how long it does: longer than a side without a majority keeps a job.
const ATTACH: Duration = Duration::from_millis(300);
const SEARCH: Duration = Duration::from_secs(150);
/// Time until nothing is left of a job, when every node can be reached.
const SETTLED: Duration = Duration::from_secs(8);
/// The same, if it was given up somewhere: a side without a majority keeps what it has for a minute.
const GIVEN_UP: Duration = Duration::from_secs(105);

/// So often within so long a rank may crash where it is and be brought back, as in `node/host.rs`.
const CRASHES: usize = 3;
const CRASH_TIME: Duration = Duration::from_secs(60);

const DAEMON_PORT: u16 = 1;
const LOG_PORT: u16 = 2;

/// Something that is going to happen.
pub enum Event {
    /// A packet arrives at this side.
    Arrive(ConnId, usize),
    /// For the node of a machine.
    Input(usize, u32, Box<Input>),
    /// The same, of this process: nothing, if another has its place.
    OfProcess(usize, u32, u32, Box<Input>),
    /// The node wanted to be called.
    Tick(usize, u32),
    /// A timer of the daemon.
    Daemon(usize, u32, Timer),
    /// Of the log service.
    Logs(usize, u32, Done),
    /// The node tells a process; none: it closes the connection.
    ToProcess(u32, Option<Box<FromNode>>),
    /// A process begins.
    Begin(u32),
    /// A process goes on.
    Step(u32),
    /// The terminal hears something.
    Reply(usize, u64, Box<Reply>),
    /// The terminal connects again, for its machine's protector is gone.
    Attach,
    /// Something goes wrong.
    Fault(Fault),
}

/// When an event comes, in nanoseconds, its number, and where it is in [`Queue::events`], in one number, from the top: one comparison orders them.
type Key = u128;

const NUMBER: u32 = 40;
const PLACE: u32 = 24;

/// Events by time; those of one time in the order in which they were pushed.
#[derive(Default)]
pub struct Queue {
    /// This little is moved about, not the events.
    order: BinaryHeap<Reverse<Key>>,
    events: Vec<Option<Event>>,
    free: Vec<usize>,
    number: u64,
}

impl Queue {
    /// One more.
    pub fn push(&mut self, at: Duration, event: Event) {
        self.number += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[place] = Some(event);
        assert!(self.number < 1 << NUMBER && place < 1 << PLACE, "so many events fit into a key");
        let (at, number) = (u64::try_from(at.as_nanos()).expect("some years"), self.number);
        self.order.push(Reverse(Key::from(at) << (NUMBER + PLACE) | Key::from(number << PLACE | place as u64)));
    }

    fn pop(&mut self) -> Option<(Duration, Event)> {
        let Reverse(key) = self.order.pop()?;
        let place = place_of(key);
        self.free.push(place);
        let at = Duration::from_nanos((key >> (NUMBER + PLACE)) as u64);
        Some((at, self.events[place].take().expect("what is in order is there")))
    }

    /// What is to come is kept only if it is wanted.
    fn retain(&mut self, wanted: impl Fn(&Event) -> bool) {
        let Queue { order, events, free, .. } = self;
        order.retain(|Reverse(key)| {
            let place = place_of(*key);
            let keep = events[place].as_ref().is_some_and(&wanted);
            if !keep {
                events[place] = None;
                free.push(place);
            }
            keep
        });
    }
}

fn place_of(key: Key) -> usize {
    key as usize & ((1 << PLACE) - 1)
}

/// One machine.
pub struct Machine {
    /// How its protector is known.
    pub member: Member,
    /// How often its protector was started before.
    pub boot: u32,
    /// It is switched on.
    pub power: bool,
    /// Its protector; none: it is dead.
    pub node: Option<Box<Node>>,
    /// What its driver has.
    pub peers: Peers,
    /// Its log service.
    pub logs: Logs,
    /// Its processes.
    pub ranks: BTreeMap<ProcessId, u32>,
    /// When it goes on, if it stands still.
    paused: Duration,
    /// The same of its protector.
    hung: Duration,
    /// When the node is called next.
    pub tick: Option<Duration>,
    /// Time that its disk takes, at most.
    pub disk: Duration,
    /// The last view that was looked at.
    pub view: u64,
}

/// The terminal that has started the job.
#[derive(Debug, Default)]
pub struct Terminal {
    /// Of each rank.
    pub printed: BTreeMap<Rank, Vec<u8>>,
    /// How it ended.
    pub outcome: Option<Outcome>,
    job: Option<JobId>,
    /// The machine that it is connected to, and how often it has connected.
    at: usize,
    calls: u64,
    /// Since when it looks for a node that knows the job, and whether it has given up.
    since: Option<Duration>,
    gave_up: bool,
    /// Of each rank, what it was never shown though it went on after it.
    holes: BTreeMap<Rank, Vec<Range<usize>>>,
}

impl Terminal {
    /// The machine that it is connected to.
    pub fn at(&self) -> usize {
        self.at
    }

    /// What it shows.
    pub fn job(&self) -> Option<JobId> {
        self.job
    }

    /// Whether it was never shown what a rank has printed here.
    pub fn is_hole(&self, rank: Rank, at: usize) -> bool {
        self.holes.get(&rank).is_some_and(|holes| holes.iter().any(|hole| hole.contains(&at)))
    }
}

/// What is done wrong on purpose, so that a checker shows that it bites.
#[derive(Debug, Default, Clone, Copy)]
pub struct Breaks {
    /// Processes do not wait at their gate (G1).
    pub gate: bool,
    /// The log server that is asked says that more is stable than is (G2).
    pub stable: bool,
    /// Bytes arrive twice (G3).
    pub twice: bool,
    /// A fence is none (G4).
    pub fence: bool,
    /// A program draws lots (G5).
    pub lots: bool,
    /// Epochs are numbers that a home counts on from what it knows, and nothing more (G4).
    pub epochs: bool,
    /// Damaged images pass for whole (G6).
    pub image: bool,
    /// One node has views of its own.
    pub views: bool,
    /// Output gets lost (G3).
    pub output: bool,
    /// No process hears that another is back, nor where: the job hangs.
    pub deaf: bool,
}

/// What has happened, in numbers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// Events.
    pub events: u64,
    /// Images that were begun.
    pub images: u64,
    /// Images that were committed.
    pub commits: u64,
    /// Increments that processes were brought back from, beside the whole image below them.
    pub increments: u64,
    /// Processes that were brought back.
    pub restarts: u64,
    /// Images that did not restore: in the place of each the one before was taken.
    pub went_back: u64,
    /// Jobs that restarted from their beginning.
    pub anew: u64,
    /// Links that were made.
    pub links: u64,
    /// Bytes that programs received.
    pub delivered: u64,
    /// Bytes that were sent once more.
    pub again: u64,
    /// Faults.
    pub faults: u64,
    /// Jobs that ended with an error, as they may without a majority.
    pub failed: u64,
    /// Times that output, or how the job has ended, was lost with a home, without a terminal, as it may be.
    pub limits: u64,
    /// Virtual time, in milliseconds.
    pub virtual_ms: u64,
}

impl Counts {
    /// Those of another seed, too.
    pub fn add(&mut self, other: &Counts) {
        let Counts {
            events,
            images,
            commits,
            increments,
            restarts,
            went_back,
            anew,
            links,
            delivered,
            again,
            faults,
            failed,
            ..
        } = *other;
        self.events += events;
        self.images += images;
        self.increments += increments;
        self.commits += commits;
        self.restarts += restarts;
        self.went_back += went_back;
        self.anew += anew;
        self.links += links;
        self.delivered += delivered;
        self.again += again;
        self.faults += faults;
        self.failed += failed;
        self.limits += other.limits;
        self.virtual_ms += other.virtual_ms;
    }
}

/// See the module's text.
#[expect(missing_docs, reason = "the names say it; what each is, its type does")]
pub struct World {
    pub plan: Plan,
    pub dice: Dice,
    pub now: Duration,
    pub queue: Queue,
    pub machines: Vec<Machine>,
    pub processes: Vec<Process>,
    pub net: Net,
    pub saved: Vec<Saved>,
    pub terminal: Terminal,
    pub checks: Checks,
    /// From which machine's log each incarnation was begun, and how often that machine had been switched on.
    pub brought_back: BTreeMap<Speaker, (usize, u32)>,
    pub counts: Counts,
    /// Of each rank, what homes that are lost have kept for the next terminal.
    pub kept: BTreeMap<Rank, Vec<Range<usize>>>,
    /// The home where the job has ended well, and whether it is lost: no other node knows how.
    pub over: Option<(usize, bool)>,
    /// How often each rank crashed that no node could have brought back.
    early_crashes: BTreeMap<Rank, u32>,
    /// When each rank has crashed, where, and in which epoch of the job.
    crashes: BTreeMap<(Rank, usize, Epoch), Vec<Duration>>,
    pub breaks: Breaks,
    tracing: bool,
    /// When the job was started.
    pub started: Option<Duration>,
    /// Events that were recorded since.
    seen: BTreeMap<EventName, u32>,
    /// Faults that have not come.
    pending: Vec<(When, Fault)>,
    /// A digest of the trace.
    digest: u64,
}

/// The code of a message.
pub fn code(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    thread_local!(static ROOM: RefCell<Vec<u8>> = RefCell::new(vec![0; limits::LOG_FRAME]));
    ROOM.with_borrow_mut(|room| {
        let mut writer = Writer::new(room);
        write(&mut writer);
        let length = writer.finish().expect("a message is no longer than a frame");
        room[..length].to_vec()
    })
}

/// A message with its bytes in two pieces.
pub fn framed(head: &[u8], tail: &[u8], write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    code(|out| {
        write(out);
        out.raw(head);
        out.raw(tail);
    })
}

fn address(at: usize, port: u16) -> SocketAddr {
    ([10, 0, 0, at as u8 + 1], port).into()
}

fn name(at: usize) -> NodeName {
    format!("n{}", at + 1).parse().expect("a name")
}

impl World {
    /// The cluster of a plan; no job runs.
    pub fn new(plan: Plan, breaks: Breaks, tracing: bool) -> World {
        let (queue, machines, processes, net, saved) = Default::default();
        let (terminal, checks, counts, kept, over, early_crashes, crashes, started, seen) = Default::default();
        let (dice, pending) = (Dice::new(plan.seed), plan.faults.clone());
        let now = Duration::ZERO;
        let mut world = World {
            plan,
            dice,
            now,
            queue,
            machines,
            processes,
            net,
            saved,
            terminal,
            checks,
            brought_back: BTreeMap::new(),
            counts,
            kept,
            over,
            early_crashes,
            crashes,
            breaks,
            tracing,
            started,
            seen,
            pending,
            digest: 0,
        };
        for at in 0..world.plan.machines {
            let machine = world.machine(at, 0);
            world.machines.push(machine);
            world.switch_on(at);
        }
        world
    }

    fn machine(&self, at: usize, boot: u32) -> Machine {
        let id = NodeId { name: name(at), boot: BootId(u64::from(boot) * 100 + at as u64 + 1) };
        let role = if at >= self.plan.machines - self.plan.spares { Role::Spare } else { Role::Node };
        let durable = self.plan.durable;
        let memory = if durable { 40 } else { 400 };
        let config = store::Config { memory, log: 1 << 20, image: 4_096, durable };
        Machine {
            member: Member { id, address: address(at, DAEMON_PORT), log_port: LOG_PORT, role, slots: 2 },
            boot,
            power: true,
            node: None,
            peers: Peers::default(),
            logs: Logs::new(config),
            ranks: BTreeMap::new(),
            paused: Duration::ZERO,
            hung: Duration::ZERO,
            tick: None,
            disk: Duration::from_micros(400),
            view: 0,
        }
    }

    /// The kernel of a machine that was switched on knows nothing of connections of before, and says so to a peer that sends on one; here at once.
    fn reset_connections(&mut self, at: usize) {
        for conn in 0..self.net.conns.len() {
            let ends = &self.net.conns[conn].ends;
            let there = (0..2).find(|side| ends[*side].machine == at && ends[1 - side].machine != at && !ends[1 - side].closed);
            if let Some(side) = there.filter(|_| !self.net.conns[conn].broken) {
                self.net.lose_rest(&mut self.dice, conn, side);
                // Its own end may be closed by now.
                if let Some(arrives) = self.net.send(&mut self.dice, self.now, conn, side, Packet::Reset) {
                    self.schedule(arrives, Event::Arrive(conn, 1 - side));
                }
                self.net.conns[conn].broken = true;
            }
        }
    }

    fn switch_on(&mut self, at: usize) {
        self.reset_connections(at);
        let boot = self.machines[at].boot;
        let environment = HostEnvironment {
            address: address(at, 0).ip(),
            iface: "eth0".into(),
            prefix: "10.0.0.0/8".into(),
            radic_pmi: "/lib/libradic_pmi.so".into(),
            library: "/lib/libradic.so".into(),
            process_socket: "/process.sock".into(),
            node: name(at).to_string(),
        };
        let others = (0..self.plan.machines).filter(|other| *other != at && (boot > 0 || *other == 0));
        let config = NodeConfig {
            me: self.machines[at].member.clone(),
            environment,
            wall_us: 1_000_000,
            seed: self.plan.seed.wrapping_mul(64) + at as u64 + u64::from(boot) * 1_000,
            join: others.map(|other| address(other, DAEMON_PORT)).collect(),
            found: None,
            timing: Timing::default(),
            memory: || 0,
            addresses: Vec::new,
            counters: |_| None,
            activity: |_| None,
            replay_limit: None,
            refuse_fault: |_, _| Ok(()),
            key: ClusterKey::from_bytes([1; 32]),
        };
        self.machines[at].node = Some(Box::new(Node::new(self.now, config)));
        self.net.listeners.insert(address(at, DAEMON_PORT), Owner::Daemon(at, boot));
        self.net.listeners.insert(address(at, LOG_PORT), Owner::Logs(at, boot));
        self.after_node(at);
    }

    /// Runs everything to its end.
    pub fn run(&mut self) {
        let all = self.plan.machines;
        self.run_until(Duration::from_secs(60), |world| {
            let complete = |m: &Machine| m.node.as_ref().and_then(|n| n.view()).is_some_and(|view| view.members.len() == all);
            world.machines.iter().all(complete)
        });
        self.start_job();
        self.run_until(HANG, |world| world.terminal.outcome.is_some());
        self.check_outcome();
        self.settle();
        self.counts.virtual_ms = self.now.as_millis() as u64;
        self.counts.anew = self.checks.epoch.count.into();
    }

    /// A digest of all that has happened.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    fn run_until(&mut self, limit: Duration, done: impl Fn(&World) -> bool) {
        let until = self.now + limit;
        while !done(self) {
            assert!(self.now < until, "hang: nothing came of it in {limit:?} of virtual time\n{}", self.standing());
            assert!(self.counts.events < EVENTS, "hang: {EVENTS} events, and no end\n{}", self.standing());
            self.next();
        }
    }

    fn next(&mut self) {
        let Some((at, event)) = self.queue.pop() else { panic!("hang: nothing is going to happen") };
        self.now = at;
        self.counts.events += 1;
        self.happen(event);
    }

    /// Tells what happens, if the run is traced.
    pub fn trace(&mut self, what: impl FnOnce() -> String) {
        if self.tracing {
            let text = what();
            let at = self.now.saturating_sub(self.started.unwrap_or_default());
            println!("{:>12.6} {text}", at.as_secs_f64());
        }
    }

    /// Something is going to happen.
    pub fn schedule(&mut self, at: Duration, event: Event) {
        self.queue.push(at, event);
    }

    /// For the node of a machine, in a moment.
    pub fn input_soon(&mut self, at: usize, input: Input) {
        let boot = self.machines[at].boot;
        self.schedule(self.now + super::LOCAL, Event::Input(at, boot, Box::new(input)));
    }

    /// Whether its protector is there.
    pub fn is_up(&self, at: usize) -> bool {
        let machine = &self.machines[at];
        machine.power && machine.node.is_some()
    }

    /// Until when the machine, or its protector if `boot` names one, stands still and cannot do this; none: it is gone.
    fn ready(&self, at: usize, boot: Option<u32>) -> Option<Duration> {
        let machine = &self.machines[at];
        match boot {
            Some(boot) => (self.is_up(at) && machine.boot == boot).then_some(machine.paused.max(machine.hung)),
            None => machine.power.then_some(machine.paused),
        }
    }

    fn happen(&mut self, event: Event) {
        let (at, boot) = match &event {
            Event::Input(at, boot, _) | Event::Tick(at, boot) | Event::Daemon(at, boot, _) | Event::Logs(at, boot, _) => {
                (*at, Some(*boot))
            }
            Event::OfProcess(at, boot, ..) => (*at, Some(*boot)),
            Event::ToProcess(pid, _) | Event::Begin(pid) | Event::Step(pid) => (self.processes[*pid as usize].machine, None),
            Event::Arrive(conn, side) => return self.arrive(*conn, *side),
            Event::Reply(..) | Event::Fault(_) | Event::Attach => (usize::MAX, None),
        };
        if at != usize::MAX {
            match self.ready(at, boot) {
                None => return,
                Some(ready) if ready > self.now => return self.schedule(ready, event),
                Some(_) => {}
            }
        }
        self.note(&event);
        match event {
            Event::Arrive(..) => unreachable!("handled above"),
            Event::Input(at, _, input) => self.input(at, *input),
            Event::OfProcess(at, _, pid, input) => {
                let id = self.processes[pid as usize].id;
                if self.machines[at].ranks.get(&id) == Some(&pid) {
                    self.input(at, *input);
                }
            }
            Event::Tick(at, _) => self.tick(at),
            Event::Daemon(at, _, timer) => self.daemon_timer(at, timer),
            Event::Logs(at, _, done) => self.logs_done(at, done),
            Event::ToProcess(pid, message) => self.hear(pid, message.map(|message| *message)),
            Event::Begin(pid) => self.begin(pid),
            Event::Step(pid) => self.step(pid),
            Event::Reply(at, client, reply) if (at, client) == (self.terminal.at, self.terminal.calls) => self.hear_reply(*reply),
            Event::Reply(..) => {}
            Event::Attach => self.attach(),
            Event::Fault(fault) => self.cause(fault),
        }
    }

    /// The same seed has the same digest.
    fn note(&mut self, event: &Event) {
        let kind = match event {
            Event::Arrive(conn, side) => 1 + 16 * (*conn as u64 * 2 + *side as u64),
            Event::Input(at, ..) => 2 + 16 * *at as u64,
            Event::OfProcess(_, _, pid, _) => 3 + 16 * u64::from(*pid),
            Event::Tick(at, _) => 4 + 16 * *at as u64,
            Event::Daemon(at, ..) => 5 + 16 * *at as u64,
            Event::Logs(at, ..) => 6 + 16 * *at as u64,
            Event::ToProcess(pid, _) => 7 + 16 * u64::from(*pid),
            Event::Begin(pid) => 8 + 16 * u64::from(*pid),
            Event::Step(pid) => 9 + 16 * u64::from(*pid),
            Event::Reply(..) => 10,
            Event::Fault(_) => 11,
            Event::Attach => 12,
        };
        self.digest = crate::app::mix(self.digest ^ self.now.as_nanos() as u64, kind);
    }

    fn tick(&mut self, at: usize) {
        let now = self.now;
        if self.machines[at].tick.is_some_and(|tick| tick > now) {
            return;
        }
        self.machines[at].tick = None;
        if let Some(node) = self.machines[at].node.as_mut().filter(|node| node.poll_timeout().is_some_and(|due| due <= now)) {
            node.handle_timeout(now);
        }
        self.after_node(at);
    }

    // ---- the network

    /// Opens a connection.
    pub fn connect(&mut self, owner: Owner, from: usize, to: SocketAddr) -> ConnId {
        let conn = self.net.open(owner, from, to);
        self.send(conn, 0, Packet::Syn);
        conn
    }

    /// Sends on a connection.
    pub fn send(&mut self, conn: ConnId, from: usize, packet: Packet) {
        if self.net.conns[conn].ends[from].closed {
            return;
        }
        let twice = self.breaks.twice && matches!(packet, Packet::Bytes(_)) && self.dice.one_in(20);
        for packet in std::iter::repeat_n(packet, if twice { 2 } else { 1 }) {
            if let Some(at) = self.net.send(&mut self.dice, self.now, conn, from, packet) {
                self.schedule(at, Event::Arrive(conn, 1 - from));
            }
        }
    }

    /// Closes one end.
    pub fn close(&mut self, conn: ConnId, side: usize) {
        self.send(conn, side, Packet::End);
        self.net.conns[conn].ends[side].closed = true;
    }

    /// All ends of an owner that has ended: some say so in order, some by a reset.
    pub fn abort_all(&mut self, owner: Owner) {
        for conn in 0..self.net.conns.len() {
            for side in 0..2 {
                let end = &self.net.conns[conn].ends[side];
                if end.owner == owner && !end.closed && !(side == 1 && self.net.conns[conn].target.is_some()) {
                    let packet = if self.dice.one_in(2) { Packet::End } else { Packet::Reset };
                    self.send(conn, side, packet);
                    self.net.conns[conn].ends[side].closed = true;
                }
            }
        }
    }

    fn arrive(&mut self, conn: ConnId, side: usize) {
        let [a, b] = [0, 1].map(|side: usize| self.net.conns[conn].ends[side].machine);
        if let Some(until) = self.net.cut_until(a, b, self.now) {
            let after = Duration::from_micros(100 + self.dice.below(200_000) as u64);
            return self.schedule(until + after, Event::Arrive(conn, side));
        }
        let at = self.net.conns[conn].ends[side].machine;
        if !self.machines[at].power {
            return;
        }
        if self.machines[at].paused > self.now {
            // Its kernel does not run either.
            return self.schedule(self.machines[at].paused, Event::Arrive(conn, side));
        }
        if let Some(to) = self.net.conns[conn].target.filter(|_| side == 1) {
            return self.arrive_at_listener(conn, to);
        }
        let end = &self.net.conns[conn].ends[side];
        let boot = match end.owner {
            Owner::Daemon(_, boot) | Owner::Logs(_, boot) | Owner::Fetcher(_, boot, _) => Some(boot),
            Owner::Process(_) => None,
        };
        match self.ready(at, boot) {
            Some(ready) if ready > self.now => return self.schedule(ready, Event::Arrive(conn, side)),
            _ => {}
        }
        let Some(packet) = self.net.take(conn, side) else { return };
        self.note(&Event::Arrive(conn, side));
        self.hand_over(conn, side, packet);
    }

    /// A connection comes to a listener: the kernel takes it, or refuses.
    fn arrive_at_listener(&mut self, conn: ConnId, to: SocketAddr) {
        let Some(packet) = self.net.take(conn, 1) else { return };
        self.net.conns[conn].target = None;
        if matches!(packet, Packet::Reset | Packet::End) {
            return self.net.conns[conn].ends[1].closed = true;
        }
        let Some(owner) = self.net.listeners.get(&to).copied() else {
            self.send(conn, 1, Packet::Reset);
            return self.net.conns[conn].ends[1].closed = true;
        };
        self.net.conns[conn].ends[1].owner = owner;
        self.send(conn, 1, Packet::Ack);
        self.hand_over(conn, 1, packet);
    }

    fn hand_over(&mut self, conn: ConnId, side: usize, packet: Packet) {
        let end = self.net.conns[conn].ends[side].clone();
        let over = matches!(packet, Packet::End | Packet::Reset);
        if end.closed {
            if !over {
                // The sender hears that there is no receiver.
                self.net.conns[conn].ends[side].closed = false;
                self.send(conn, side, Packet::Reset);
                self.net.conns[conn].ends[side].closed = true;
            }
            return;
        }
        if let Packet::Reset = packet {
            self.net.conns[conn].ends[side].closed = true;
        }
        match end.owner {
            Owner::Daemon(at, boot) if self.ready(at, Some(boot)).is_some() => self.daemon_arrive(at, conn, packet),
            Owner::Logs(at, boot) if self.ready(at, Some(boot)).is_some() => self.logs_arrive(at, conn, packet),
            Owner::Fetcher(at, boot, process) if self.ready(at, Some(boot)).is_some() => {
                self.fetch_arrive(at, conn, process, packet);
            }
            Owner::Process(pid) => self.process_arrive(pid, conn, side, packet),
            _ => {}
        }
    }

    // ---- the job

    fn ask(&mut self, request: Request) {
        let Terminal { at, calls, .. } = self.terminal;
        self.input_soon(at, Input::Client(ClientId(calls), request));
    }

    fn start_job(&mut self) {
        self.started = Some(self.now);
        let hosts = (1..self.plan.machines - self.plan.spares).map(name).collect();
        let protection = Protection {
            protect: Protect::On,
            interval: Interval::Every(self.plan.interval.as_millis() as u64),
            replicas: self.plan.replicas,
            outbox: 1 << 20,
            log: 1 << 20,
            keep_logs: false,
        };
        let spec = JobSpec {
            program: ByteBuf::from("/bin/program"),
            args: vec![ByteBuf::from("program")],
            env: vec![],
            templates: vec![],
            dir: ByteBuf::from("/"),
            ranks: self.plan.ranks,
            nodes: hosts,
            map_by: MapBy::Node,
            umask: 0o022,
            protection,
            mtbf_s: 86_400,
            restart_on: self.plan.restart_on,
            on_loss: OnLoss::Restart,
        };
        self.ask(Request::Hello { version: radic_wire::PROTOCOL_VERSION });
        self.ask(Request::Run { spec: Box::new(spec), attach: true });
        for (when, fault) in std::mem::take(&mut self.pending) {
            match when {
                When::At(at) => self.schedule(self.now + at, Event::Fault(fault)),
                When::After(..) => self.pending.push((when, fault)),
            }
        }
    }

    fn hear_reply(&mut self, reply: Reply) {
        match reply {
            Reply::Attached { job, .. } => (self.terminal.job, self.terminal.since) = (Some(job), None),
            Reply::Output { rank, stream: OutputStream::Stdout, offset, data, .. } => {
                self.show(rank, offset, &data);
                self.ask(Request::Printed(data.len() as u64));
            }
            Reply::Ended(outcome) => {
                self.trace(|| format!("the job has ended: {outcome:?}"));
                self.terminal.outcome = Some(outcome);
            }
            Reply::Error(text) => {
                assert!(self.terminal.calls > 0, "end: the job was refused: {text}");
                self.schedule(self.now + ATTACH, Event::Attach);
            }
            _ => {}
        }
    }

    /// Prints what was not printed before, and only what was not.
    fn show(&mut self, rank: Rank, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return; // The end of a stream.
        }
        let again = self.terminal.calls > 0;
        let printed = self.terminal.printed.entry(rank).or_default();
        let offset = offset as usize;
        let missing = printed.len()..offset;
        if again && !missing.is_empty() && self.lost_with_homes(rank).any(|lost| covers(&lost, &missing)) {
            self.counts.limits += 1;
            self.terminal.holes.entry(rank).or_default().push(missing);
            self.terminal.printed.entry(rank).or_default().resize(offset, 0);
        }
        let printed = self.terminal.printed.entry(rank).or_default();
        // Another terminal may be told what the one before had printed, if that one was lost before it said so.
        assert!(offset == printed.len() || again && offset < printed.len(), "G3: output of {rank} goes on at {offset}");
        let known = (printed.len() - offset).min(data.len());
        let anew = self.checks.epoch > Epoch::FIRST;
        let is_hole = |at: usize| self.terminal.holes.get(&rank).is_some_and(|holes| holes.iter().any(|hole| hole.contains(&at)));
        let same = (offset..offset + known).all(|at| printed[at] == data[at - offset] || is_hole(at));
        assert!(anew || same, "G3: other output of {rank} at {offset}");
        let lost = usize::from(self.breaks.output && known < data.len());
        printed.extend(&data[known + lost..]);
    }

    fn attach(&mut self) {
        let since = *self.terminal.since.get_or_insert(self.now);
        let Some(job) = self.terminal.job.filter(|_| self.now < since + SEARCH) else {
            self.terminal.gave_up = true;
            let (node, ranks, why) = (name(0), Vec::new(), "its terminal finds it nowhere".to_owned());
            return self.terminal.outcome = Some(Outcome { code: 113, reason: EndReason::NodeLost { node, ranks, why } });
        };
        self.terminal.calls += 1;
        let up: Vec<usize> = (0..self.machines.len()).filter(|at| self.is_up(*at)).collect();
        let Some(at) = up.get(self.dice.below(up.len())).copied() else { return self.schedule(self.now + ATTACH, Event::Attach) };
        self.trace(|| format!("the terminal connects to n{}", at + 1));
        self.terminal.at = at;
        self.ask(Request::Hello { version: radic_wire::PROTOCOL_VERSION });
        self.ask(Request::Attach { job: job.to_string() });
    }

    /// How the job may end: well; without a majority also with an error that says so.
    fn check_outcome(&mut self) {
        let outcome = self.terminal.outcome.clone().expect("it has ended");
        if outcome == (Outcome { code: 0, reason: EndReason::Finished }) {
            return self.check_end();
        }
        if self.terminal.gave_up && (matches!(self.over, Some((_, true))) || self.terminal.job.is_none()) {
            // Documented: the job has ended without a terminal, and its home was lost before the next one came; or the terminal never heard which job it is, for its node was lost
            // before that: `radic run` says so then. The job runs, or nothing was begun.
            return self.counts.limits += 1;
        }
        if let EndReason::RankFailed { rank, node, status: ExitStatus::Signal(libc::SIGSEGV) } = &outcome.reason
            && self.goes_on_crashing(*rank, node)
        {
            return self.counts.limits += 1;
        }
        self.counts.failed += 1;
        assert!(!self.plan.is_gentle(), "end: the job was to survive this: {outcome:?}\n{}", self.standing());
        let told = matches!(outcome.reason, EndReason::NodeLost { .. });
        assert!(told, "end: a job that cannot go on says so: {outcome:?}\n{}", self.standing());
    }

    /// Documented: a rank that crashes twice without a checkpoint that any node has, or once more there than [`CRASHES`] times within a minute, will do so again.
    fn goes_on_crashing(&self, rank: Rank, node: &NodeName) -> bool {
        let last =
            self.crashes.iter().find(|((of, at, epoch), _)| *of == rank && name(*at) == *node && *epoch == self.checks.epoch);
        let last = last.map_or(&[][..], |(_, times)| times);
        let often = last.len() > CRASHES && last[last.len() - 1] - last[last.len() - 1 - CRASHES] < CRASH_TIME;
        often || self.early_crashes.get(&rank).is_some_and(|crashes| *crashes > 1)
    }

    /// Nothing is left of the job on any node that can be reached.
    fn settle(&mut self) {
        self.pending.clear();
        self.queue.retain(|event| !matches!(event, Event::Fault(_)));
        let machines = self.machines.iter().map(|machine| machine.paused.max(machine.hung));
        let until = machines.chain(self.net.cuts.values().copied()).max().unwrap_or_default().max(self.now);
        let until = until + if self.counts.failed > 0 { GIVEN_UP } else { SETTLED };
        // If every machine is lost nothing happens any more, and nothing needs to: no fault is left that would switch one on.
        while self.now < until && (0..self.machines.len()).any(|at| self.is_up(at)) {
            self.next();
        }
        let Some(job) = self.terminal.job else { return };
        for at in (0..self.machines.len()).filter(|at| self.is_up(*at)).collect::<Vec<_>>() {
            let (node, logs) = (self.machines[at].node.as_ref().expect("it is up"), &self.machines[at].logs);
            // A side that never has a majority again decides nothing, not even that it may forget: of two members the home may be lost before it has told the other that all is over.
            if self.counts.failed > 0 || node.is_frozen() {
                continue;
            }
            assert!(!node.knows(job), "end: n{} still has something of the job", at + 1);
            assert!(logs.server.store().of_job(job).is_empty(), "end: n{} still has logs of the job", at + 1);
        }
        let alive: Vec<_> = self.processes.iter().filter(|p| p.ended.is_none() && self.is_up(p.machine)).map(|p| p.id).collect();
        assert!(alive.is_empty(), "end: {alive:?} still run");
    }

    /// Where each machine and process stands, for an engineer who looks for a mistake.
    pub fn standing(&self) -> String {
        let mut text = self.plan.to_string();
        for (at, machine) in self.machines.iter().enumerate() {
            let view = machine.node.as_ref().and_then(|node| node.view()).map(|view| (view.number, view.members.len()));
            text += &format!("n{}: on: {}, view and members: {view:?}\n", at + 1, machine.power);
        }
        for (pid, process) in self.processes.iter().enumerate() {
            let lib = process.lib.as_ref().map(|lib| lib.standing());
            text += &format!("process {pid}: {} at n{}, ended: {:?}, {lib:?}\n", process.id, process.machine + 1, process.ended);
        }
        text
    }

    // ---- faults

    /// An event was recorded.
    pub fn handle_event(&mut self, at: usize, event: &radic_wire::event::Event) {
        self.trace(|| format!("n{}: {}: {}", at + 1, event.event.as_str(), event.text));
        if self.started.is_none() {
            return;
        }
        if event.event == EventName::JobEnd && event.text.starts_with("code 0") {
            self.over = Some((at, false));
        }
        if event.event == EventName::Restart {
            self.checks.handle_begins_anew();
        }
        let seen = self.seen.entry(event.event).or_default();
        *seen += 1;
        let nth = *seen;
        let now = self.now;
        for (when, fault) in std::mem::take(&mut self.pending) {
            match when {
                When::After(name, of, after) if name == event.event && of == nth => {
                    self.schedule(now + after, Event::Fault(fault))
                }
                _ => self.pending.push((when, fault)),
            }
        }
    }

    fn cause(&mut self, fault: Fault) {
        self.trace(|| format!("FAULT: {}", Told(fault)));
        self.counts.faults += 1;
        let now = self.now;
        let all: BTreeSet<usize> = (0..self.machines.len()).collect();
        match fault {
            Fault::PowerOff(at) => self.power_off(at),
            Fault::Kill(at) => self.kill_daemon(at),
            Fault::Pause(at, time) => self.machines[at].paused = self.machines[at].paused.max(now + time),
            Fault::Hang(at, time) => self.machines[at].hung = self.machines[at].hung.max(now + time),
            Fault::Cut(at, time) => self.cut(&BTreeSet::from([at]), &all, now + time),
            Fault::Split(at, time) => self.cut(&(0..at).collect(), &(at..self.machines.len()).collect(), now + time),
            Fault::Part(a, b, time) => self.cut(&BTreeSet::from([a]), &BTreeSet::from([b]), now + time),
            Fault::Break(count) => (0..count).for_each(|_| self.break_any()),
            Fault::Crash(rank) => {
                let is_this = |p: &Process| p.id.rank.0 == rank && p.ended.is_none();
                if let Some(pid) = self.processes.iter().rposition(is_this) {
                    let Process { id, machine, .. } = self.processes[pid];
                    self.crashes.entry((id.rank, machine, self.checks.epoch)).or_default().push(now);
                    let can_restart = |at: usize| self.is_up(at) && self.machines[at].logs.server.store().can_restart(id);
                    if !(0..self.machines.len()).any(can_restart) {
                        *self.early_crashes.entry(id.rank).or_default() += 1;
                    }
                    self.end_process(pid as u32, ExitStatus::Signal(libc::SIGSEGV));
                }
            }
            Fault::SlowLinks(at, more, _) => _ = self.net.slow.insert(at, more),
            Fault::SlowDisk(at, more, _) => self.machines[at].disk = more,
            Fault::Return(at) => self.come_back_on(at),
        }
        match fault {
            Fault::SlowLinks(at, more, time) if !more.is_zero() => {
                self.schedule(now + time, Event::Fault(Fault::SlowLinks(at, Duration::ZERO, Duration::ZERO)));
            }
            Fault::SlowDisk(at, more, time) if more > Duration::from_millis(1) => {
                self.schedule(now + time, Event::Fault(Fault::SlowDisk(at, Duration::from_micros(400), Duration::ZERO)));
            }
            _ => {}
        }
    }

    fn cut(&mut self, one: &BTreeSet<usize>, other: &BTreeSet<usize>, until: Duration) {
        for a in one {
            for b in other.iter().filter(|b| *b != a) {
                let cut = self.net.cuts.entry((*a.min(b), *a.max(b))).or_default();
                *cut = until.max(*cut);
            }
        }
    }

    fn lose_terminal(&mut self, at: usize) {
        if self.terminal.at == at && self.terminal.outcome.is_none() && self.started.is_some() {
            self.terminal.at = usize::MAX;
            self.schedule(self.now + ATTACH, Event::Attach);
        }
    }

    fn power_off(&mut self, at: usize) {
        if !std::mem::replace(&mut self.machines[at].power, false) {
            return;
        }
        self.lose_terminal(at);
        self.note_kept(at);
        // What it has sent last arrives up to some point.
        for conn in 0..self.net.conns.len() {
            for side in 0..2 {
                if self.net.conns[conn].ends[1 - side].machine == at {
                    self.net.lose_rest(&mut self.dice, conn, side);
                }
            }
        }
        for pid in 0..self.processes.len() {
            let process = &mut self.processes[pid];
            if process.machine == at && process.ended.is_none() {
                process.ended = Some(ExitStatus::Signal(libc::SIGKILL));
            }
        }
        self.net.listeners.retain(|address, _| machine_of(*address) != at);
    }

    /// Its protector ends, and what hangs on that.
    pub fn kill_daemon(&mut self, at: usize) {
        if !self.is_up(at) {
            return;
        }
        self.note_kept(at);
        self.machines[at].node = None;
        self.lose_terminal(at);
        let boot = self.machines[at].boot;
        for pid in 0..self.processes.len() {
            if self.processes[pid].machine == at {
                self.end_process(pid as u32, ExitStatus::Signal(libc::SIGKILL));
            }
        }
        self.abort_all(Owner::Daemon(at, boot));
        self.abort_all(Owner::Logs(at, boot));
        self.net.listeners.retain(|address, _| machine_of(*address) != at);
    }

    fn come_back_on(&mut self, at: usize) {
        if self.is_up(at) {
            return;
        }
        let mut machine = self.machine(at, self.machines[at].boot + 1);
        machine.disk = self.machines[at].disk;
        // Of its connections of before nothing is known there.
        for conn in &mut self.net.conns {
            conn.ends.iter_mut().filter(|end| end.machine == at).for_each(|end| end.closed = true);
        }
        self.machines[at] = machine;
        self.switch_on(at);
    }

    fn break_any(&mut self) {
        let live = |conn: &super::net::Conn| {
            !conn.broken && conn.ends.iter().all(|end| !end.closed) && conn.ends[0].machine != conn.ends[1].machine
        };
        let live: Vec<ConnId> = (0..self.net.conns.len()).filter(|conn| live(&self.net.conns[*conn])).collect();
        if live.is_empty() {
            return;
        }
        let conn = live[self.dice.below(live.len())];
        for side in 0..2 {
            self.net.lose_rest(&mut self.dice, conn, side);
            self.send(conn, 1 - side, Packet::Reset);
        }
        self.net.conns[conn].broken = true;
    }
}
