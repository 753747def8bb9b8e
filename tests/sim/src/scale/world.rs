//! Many real nodes, a network that only delays, and processes that do nothing but be started, lost and brought back.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use radic_protector::membership::{Peer, Views};
use radic_protector::node::{ClientId, Input, Node, NodeConfig, Output};
use radic_wire::codec;
use radic_wire::ids::{BootId, NodeId, NodeName};
use radic_wire::limits;
use radic_wire::membership::{Member, MembershipMessage, Role, View};
use radic_wire::peer::{Heartbeat, Hello, LinkFrame, PeerMessage, Purpose};

use super::watch::Watch;
use crate::dice::Dice;
use crate::node::node_config;

/// Time of a message from one machine to another: the least, and what may be added, in microseconds.
const LATENCY_US: (u64, usize) = (50, 100);
/// Time between a daemon and its own log service, or a process of its machine.
pub(super) const LOCAL: Duration = Duration::from_micros(50);
/// Round trips until a new connection carries its first message: TCP, the channel's handshake, hello and welcome.
const ROUND_TRIPS: u32 = 3;

/// What the work of a daemon costs in virtual time. Nothing, unless told.
#[derive(Debug, Clone, Copy, Default)]
pub struct Costs {
    /// Sending a message, or handling one.
    pub message: Duration,
    /// One end of the handshake of a new connection.
    pub handshake: Duration,
    /// Every node has a link with the first, and that one with every node, before anything happens.
    pub warm: bool,
}

/// How a machine ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// It is switched off, or cut off: nothing comes from it any more.
    Silent,
    /// Its daemon is killed: the kernel resets its connections, and refuses new ones.
    Reset,
}

/// What one machine has said and heard. Heartbeats are no messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Messages sent.
    pub sent: u64,
    /// Their bytes, as encoded.
    pub sent_bytes: u64,
    /// Messages that have arrived.
    pub heard: u64,
    /// Their bytes, as encoded.
    pub heard_bytes: u64,
    /// Heartbeats sent and heard.
    pub beats: u64,
    /// Connections that it opened.
    pub dialed: u64,
}

/// A link to another machine.
#[derive(Debug, Clone, Copy)]
struct Link {
    /// When it carries the first message.
    ready: Duration,
    /// When what was sent last on it arrives: links keep order.
    last: Duration,
}

/// One machine.
pub(super) struct Machine {
    pub(super) node: Box<Node>,
    pub(super) member: Member,
    dead: Option<Death>,
    tick: Option<Duration>,
    /// When its daemon has done all that it has to do.
    free: Duration,
    links: BTreeMap<usize, Link>,
    /// The machine that its heartbeats go to.
    beat: Option<usize>,
    pub(super) counts: Counts,
    /// Machines that have a link to it.
    pub(super) callers: usize,
    /// When each handshake of a caller ends that has not, and the most at once.
    greeting: VecDeque<Duration>,
    pub(super) most_greeting: usize,
}

impl Machine {
    pub(super) fn is_up(&self) -> bool {
        self.dead.is_none()
    }
}

/// What happens to a machine.
enum Event {
    /// A message or a heartbeat has come; its handling takes so long.
    Arrive(Box<Input>, Duration),
    /// Its daemon handles this now.
    Handle(Box<Input>),
    /// Time to look at the node's timers.
    Tick,
}

struct Entry {
    at: (Duration, u64),
    to: usize,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.at == other.at
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        self.at.cmp(&other.at)
    }
}

/// See the module's text.
pub struct World {
    pub(super) now: Duration,
    seed: u64,
    dice: Dice,
    costs: Costs,
    queue: BinaryHeap<Reverse<Entry>>,
    scheduled: u64,
    pub(super) machines: Vec<Machine>,
    views: Views,
    /// What has happened that the scenario waits for.
    pub(super) watch: Watch,
    /// Messages sent, by kind.
    pub(super) kinds: BTreeMap<&'static str, u64>,
}

/// Machine number `at`.
fn member(at: usize) -> Member {
    let name: NodeName = format!("node{at:05}").parse().expect("a node's name");
    let address = ([10, (at >> 16) as u8, (at >> 8) as u8, at as u8], 7000).into();
    Member { id: NodeId { name, boot: BootId(1) }, address, data: address.ip(), log_port: 7001, role: Role::Node, slots: 1 }
}

/// Which machine has this name.
pub(super) fn place_of(name: &NodeName) -> usize {
    name.as_str().trim_start_matches("node").parse().expect("a name of this simulation")
}

fn machine_at(address: SocketAddr) -> usize {
    let SocketAddr::V4(address) = address else { unreachable!("the network is one of IPv4") };
    let [_, high, middle, low] = address.ip().octets();
    usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low)
}

fn length<T: serde::Serialize>(message: &T) -> u64 {
    codec::encode(message, usize::MAX).expect("it can be encoded").len() as u64
}

impl World {
    /// An empty network.
    pub fn new(seed: u64, costs: Costs) -> World {
        World {
            now: Duration::from_secs(1),
            seed,
            dice: Dice::new(seed),
            costs,
            queue: BinaryHeap::new(),
            scheduled: 0,
            machines: Vec::new(),
            views: Views::default(),
            watch: Watch::default(),
            kinds: BTreeMap::new(),
        }
    }

    /// So many machines that have been one cluster for some time.
    pub fn formed(seed: u64, costs: Costs, count: usize) -> World {
        let mut world = World::new(seed, costs);
        let members: Vec<Member> = (0..count).map(member).collect();
        let view = View { cluster: members[0].id.boot, number: count as u64, members, departed: Vec::new() };
        view.check().expect("no larger than a view may be");
        let view = Arc::new(view);
        for at in 0..count {
            let node = Node::member_of(world.now, world.config(at, Vec::new()), &view, &world.views);
            world.switch_on(at, node);
        }
        world
    }

    /// One more machine, which founds a cluster if there is no other, and joins through the first ones else.
    pub fn join(&mut self) -> usize {
        let at = self.machines.len();
        let seeds = (0..at.min(3)).map(|other| member(other).address).collect();
        let mut node = Node::new(self.now, self.config(at, seeds));
        node.share(&self.views);
        self.switch_on(at, node);
        at
    }

    fn switch_on(&mut self, at: usize, node: Node) {
        let machine = Machine {
            node: Box::new(node),
            member: member(at),
            dead: None,
            tick: None,
            free: Duration::ZERO,
            links: BTreeMap::new(),
            beat: None,
            counts: Counts::default(),
            callers: 0,
            greeting: VecDeque::new(),
            most_greeting: 0,
        };
        self.machines.push(machine);
        self.after(at);
    }

    fn config(&self, at: usize, join: Vec<SocketAddr>) -> NodeConfig {
        node_config(member(at), crate::app::mix(self.seed, at as u64), join)
    }

    /// Runs until nothing is waited for any more, for at most this time. Whether that came to pass.
    pub(super) fn run_until(&mut self, limit: Duration, done: impl Fn(&Watch) -> bool) -> bool {
        let end = self.now + limit;
        while !done(&self.watch) {
            match self.queue.peek() {
                Some(Reverse(entry)) if entry.at.0 <= end => self.step(),
                _ => {
                    self.now = end;
                    return false;
                }
            }
        }
        true
    }

    /// Runs for this time.
    pub(super) fn run(&mut self, time: Duration) {
        self.run_until(time, |_| false);
    }

    fn step(&mut self) {
        let Some(Reverse(Entry { at, to, event })) = self.queue.pop() else { return };
        self.now = at.0;
        if !self.machines[to].is_up() {
            return;
        }
        match event {
            Event::Arrive(input, work) => {
                let done = self.works(to, work);
                if done > self.now {
                    return self.schedule(done, to, Event::Handle(input));
                }
                self.handle(to, *input);
            }
            Event::Handle(input) => self.handle(to, *input),
            Event::Tick => {
                let machine = &mut self.machines[to];
                machine.tick = None;
                let due = machine.node.poll_timeout().is_some_and(|due| due <= at.0);
                if due && machine.free > at.0 {
                    // The daemon is busy.
                    machine.tick = Some(machine.free);
                    let free = machine.free;
                    return self.schedule(free, to, Event::Tick);
                }
                if due {
                    machine.node.handle_timeout(at.0);
                }
                self.after(to);
            }
        }
    }

    fn handle(&mut self, at: usize, input: Input) {
        let now = self.now;
        let returned = if let Input::Message(_, PeerMessage::Restarted { process, .. }) = &input { Some(*process) } else { None };
        self.machines[at].node.handle(now, input);
        if let Some(process) = returned {
            self.watch.hears(now, at, process);
        }
        self.after(at);
    }

    /// What follows each thing that a daemon does.
    fn after(&mut self, at: usize) {
        let now = self.now;
        loop {
            while let Some(output) = self.machines[at].node.poll_output() {
                self.carry_out(at, output);
            }
            if !self.machines[at].is_up() {
                return;
            }
            let due = self.machines[at].node.poll_timeout().is_some_and(|due| due <= now);
            if !due || self.machines[at].free > now {
                break;
            }
            self.machines[at].node.handle_timeout(now);
        }
        let machine = &mut self.machines[at];
        let due = machine.node.poll_timeout().map(|due| due.max(now));
        if let Some(due) = due.filter(|due| machine.tick.is_none_or(|tick| *due < tick)) {
            machine.tick = Some(due);
            self.schedule(due, at, Event::Tick);
        }
        if let Some(view) = self.machines[at].node.view() {
            self.watch.has_view(now, at, view.number, view.members.len());
        }
    }

    fn carry_out(&mut self, at: usize, output: Output) {
        match output {
            Output::Send(to, message) => self.send(at, &to, message),
            Output::SendToSeed(seed, message) => self.send_to_seed(at, seed, message),
            Output::Heartbeat(to, view) => self.heartbeat(at, &to, view),
            Output::Probe(member) => self.probe(at, member),
            Output::Process(job, output) => self.process(at, job, output),
            Output::Observer(observer, message) => self.tell_process(at, observer, message),
            Output::Store(order) => self.order_store(at, order),
            Output::Log(event) => self.watch.event(self.now, at, &event),
            Output::Stop(_) => {
                self.watch.excluded.insert(at);
                self.machines[at].dead = Some(Death::Reset);
            }
            Output::Die | Output::Fault(_) => unreachable!("no command has asked for that"),
            Output::Forget(node) => _ = self.machines[at].links.remove(&place_of(&node.name)),
            Output::Reply(..) | Output::CloseClient(_) | Output::CloseObserver(_) => {}
            Output::Nudge(_) | Output::Ready(_) => {}
        }
    }

    /// A command asks a node.
    pub(super) fn ask(&mut self, at: usize, request: radic_wire::local::Request) {
        self.soon(at, Input::Client(ClientId(1), request));
    }

    /// Something happens on this very machine.
    pub(super) fn soon(&mut self, at: usize, input: Input) {
        self.schedule(self.now + LOCAL, at, Event::Handle(Box::new(input)));
    }

    fn schedule(&mut self, at: Duration, to: usize, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse(Entry { at: (at, self.scheduled), to, event }));
    }

    /// The daemon has so much to do, after everything else: when it has done it.
    fn works(&mut self, at: usize, work: Duration) -> Duration {
        let machine = &mut self.machines[at];
        machine.free = machine.free.max(self.now) + work;
        machine.free
    }

    fn latency(&mut self) -> Duration {
        Duration::from_micros(LATENCY_US.0 + self.dice.below(LATENCY_US.1) as u64)
    }

    // ---- what nodes say to each other

    fn send(&mut self, at: usize, to: &Peer, message: PeerMessage) {
        let place = place_of(&to.id.name);
        let frame = LinkFrame::Data { seq: self.machines[at].counts.sent, message };
        let bytes = length(&frame);
        let LinkFrame::Data { message, .. } = frame else { unreachable!("it was made as one") };
        self.count(at, place, &message, bytes);
        if let PeerMessage::Restarted { process, .. } = message {
            // A node that says so to the others knows it itself.
            self.watch.hears(self.now, at, process);
        }
        let (sent, fresh) = self.connected(at, place);
        let latency = self.latency();
        if !self.machines[place].is_up() {
            return self.undelivered(at, place);
        }
        let link = self.machines[at].links.get_mut(&place).expect("connected");
        link.last = (sent.max(link.ready) + latency).max(link.last);
        let arrives = link.last;
        let work = self.costs.message + if fresh { self.costs.handshake } else { Duration::ZERO };
        let input = Input::Message(self.machines[at].member.id.clone(), message);
        self.schedule(arrives, place, Event::Arrive(Box::new(input), work));
    }

    /// The daemon writes one message to a machine: when it has done so, and whether it opens a link for it.
    fn connected(&mut self, at: usize, to: usize) -> (Duration, bool) {
        let fresh = !self.machines[at].links.contains_key(&to);
        let work = self.costs.message + if fresh { self.costs.handshake } else { Duration::ZERO };
        let sent = self.works(at, work);
        if fresh {
            let ready = sent + self.latency() * 2 * ROUND_TRIPS;
            self.machines[at].links.insert(to, Link { ready, last: ready });
            self.machines[at].counts.dialed += 1;
            let now = self.now;
            let callee = &mut self.machines[to];
            callee.callers += 1;
            callee.greeting.retain(|end| *end > now);
            callee.greeting.push_back(ready);
            callee.most_greeting = callee.most_greeting.max(callee.greeting.len());
        }
        (sent, fresh)
    }

    /// A machine that is not there takes nothing; its kernel may say so.
    fn undelivered(&mut self, at: usize, to: usize) {
        self.machines[at].links.remove(&to);
        if self.machines[to].dead == Some(Death::Reset) {
            let round_trip = self.latency() * 2;
            let id = self.machines[to].member.id.clone();
            self.schedule(self.now + round_trip, at, Event::Arrive(Box::new(Input::LinkBroken(id)), Duration::ZERO));
        }
    }

    fn count(&mut self, at: usize, to: usize, message: &PeerMessage, bytes: u64) {
        *self.kinds.entry(super::watch::kind(message)).or_default() += 1;
        let counts = &mut self.machines[at].counts;
        (counts.sent, counts.sent_bytes) = (counts.sent + 1, counts.sent_bytes + bytes);
        let counts = &mut self.machines[to].counts;
        (counts.heard, counts.heard_bytes) = (counts.heard + 1, counts.heard_bytes + bytes);
    }

    fn send_to_seed(&mut self, at: usize, seed: SocketAddr, message: MembershipMessage) {
        let to = machine_at(seed);
        let message = PeerMessage::Membership(message);
        self.count(at, to, &message, length(&message));
        if self.machines[to].is_up() {
            let arrives = self.now + self.latency() * (2 * ROUND_TRIPS + 1);
            let input = Input::Message(self.machines[at].member.id.clone(), message);
            self.schedule(arrives, to, Event::Arrive(Box::new(input), self.costs.message + self.costs.handshake));
        }
    }

    fn heartbeat(&mut self, at: usize, to: &Peer, view: u64) {
        let place = place_of(&to.id.name);
        let bytes = length(&Heartbeat { view });
        for (machine, sent, heard) in [(at, bytes, 0), (place, 0, bytes)] {
            let counts = &mut self.machines[machine].counts;
            counts.beats += 1;
            (counts.sent_bytes, counts.heard_bytes) = (counts.sent_bytes + sent, counts.heard_bytes + heard);
        }
        let fresh = self.machines[at].beat.replace(place) != Some(place);
        let sent = self.works(at, self.costs.message);
        if self.machines[place].is_up() {
            let trips = if fresh { 2 * ROUND_TRIPS + 1 } else { 1 };
            let arrives = sent + self.latency() * trips;
            let input = Input::Heartbeat(self.machines[at].member.id.clone(), view);
            self.schedule(arrives, place, Event::Arrive(Box::new(input), self.costs.message));
        }
    }

    /// The connection of a probe: the kernel takes it at once, or refuses it; the daemon answers when it comes to it.
    fn probe(&mut self, at: usize, peer: Peer) {
        let to = place_of(&peer.id.name);
        let hello = Hello {
            version: radic_wire::PROTOCOL_VERSION,
            from: self.machines[at].member.clone(),
            to: Some(peer.id.clone()),
            purpose: Purpose::Probe,
        };
        let bytes = length(&hello);
        *self.kinds.entry("probe").or_default() += 1;
        self.machines[at].counts.sent += 1;
        self.machines[at].counts.sent_bytes += bytes;
        let round_trip = self.latency() * 2;
        let answer = |input| Event::Arrive(Box::new(input), Duration::ZERO);
        match self.machines[to].dead {
            Some(Death::Silent) => {}
            Some(Death::Reset) => self.schedule(self.now + round_trip, at, answer(Input::ProbeResult(peer.id, false))),
            None => {
                self.machines[to].counts.heard += 1;
                self.machines[to].counts.heard_bytes += bytes;
                let answered = self.works(to, self.costs.handshake) + round_trip * ROUND_TRIPS;
                self.schedule(self.now + round_trip, at, answer(Input::ProbeReached(peer.id.clone())));
                self.schedule(answered, at, answer(Input::ProbeResult(peer.id, true)));
            }
        }
    }

    // ---- deaths and measuring

    /// Every machine has a link with the first, and that one with every other, as after a first death.
    pub fn warm(&mut self) {
        let now = self.now;
        let link = Link { ready: now, last: now };
        for at in 1..self.machines.len() {
            for (from, to) in [(0, at), (at, 0)] {
                if self.machines[from].links.insert(to, link).is_none() {
                    self.machines[to].callers += 1;
                }
            }
        }
    }

    /// A machine, or its daemon, ends now.
    pub fn kill(&mut self, victim: usize, death: Death) {
        self.machines[victim].dead = Some(death);
        if death == Death::Silent {
            return;
        }
        let id = self.machines[victim].member.id.clone();
        for at in 0..self.machines.len() {
            let ours = self.machines[at].links.remove(&victim).is_some() || self.machines[at].beat == Some(victim);
            let theirs = self.machines[victim].links.contains_key(&at) || self.machines[victim].beat == Some(at);
            if ours || theirs {
                let at_once = self.now + self.latency();
                let broken = Box::new(Input::LinkBroken(id.clone()));
                self.schedule(at_once, at, Event::Arrive(broken, Duration::ZERO));
            }
        }
    }

    /// What is counted is counted from now on.
    pub fn reset_counts(&mut self) {
        self.kinds.clear();
        for machine in &mut self.machines {
            (machine.counts, machine.most_greeting) = (Counts::default(), 0);
        }
    }

    /// Machines that have more connections from others than a daemon serves.
    pub fn overcrowded(&self) -> usize {
        self.machines.iter().filter(|machine| machine.callers > limits::CONNECTIONS).count()
    }

    /// A number below `bound` that the seed says.
    pub fn draw(&mut self, bound: usize) -> usize {
        self.dice.below(bound)
    }
}
