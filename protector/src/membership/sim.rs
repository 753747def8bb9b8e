//! A simulated cluster for the tests: virtual time, a network that loses, delays, doubles and reorders, nodes that crash and
//! pause, and a checker that looks at every message and every view. Everything follows from one seed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use radic_wire::ids::{BootId, NodeId};
use radic_wire::membership::{Ballot, Change, Member, MembershipBody, MembershipMessage, Refusal, Role, View};

use super::{Loss, Membership, MembershipEvent, Output, Peer, Timing};
use crate::random::Random;

pub(super) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Node `n{i}` with boot number `boot`.
pub(super) fn member(i: usize, boot: u64) -> Member {
    let id = NodeId { name: format!("n{i}").parse().unwrap(), boot: BootId(boot) };
    Member {
        id,
        address: ([10, 0, (i >> 8) as u8, i as u8], 7000).into(),
        data: [10, 0, (i >> 8) as u8, i as u8].into(),
        log_port: 1,
        role: Role::Node,
        slots: 1,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Up,
    /// Not scheduled: events wait in the backlog.
    Paused,
    /// Its machine lives: connections are refused and broken.
    Killed,
    /// Nothing comes from it any more.
    Silent,
    /// It was told to end, or has left.
    Ended,
}

#[derive(Debug, Clone)]
enum Event {
    Message {
        from: NodeId,
        message: Arc<MembershipMessage>,
    },
    Heartbeat {
        from: NodeId,
        view: u64,
    },
    /// What was sent to that node will not all arrive.
    Lost {
        id: NodeId,
    },
    Broken {
        id: NodeId,
    },
    /// A connection that the machine has taken, for the daemon to answer.
    Probe {
        by: usize,
    },
    Reached {
        id: NodeId,
    },
    Probed {
        id: NodeId,
        alive: bool,
    },
    Timer,
}

pub(super) struct Node {
    pub(super) member: Member,
    pub(super) machine: Membership,
    pub(super) state: State,
    /// When its timer will be called.
    armed: Option<Duration>,
    backlog: Vec<Event>,
    /// Messages that it may send before it is killed.
    allowance: Option<u64>,
    pub(super) excluded: bool,
    pub(super) left: bool,
    pub(super) frozen: Option<Vec<NodeId>>,
    pub(super) refusals: Vec<Refusal>,
    pub(super) events: Vec<(Duration, MembershipEvent)>,
    /// When it adopted which view.
    pub(super) adopted: Vec<(Duration, u64)>,
}

/// What the network does to messages.
#[derive(Debug, Clone)]
pub(super) struct Network {
    pub(super) delay: (Duration, Duration),
    /// In a thousand.
    pub(super) doubled: u64,
    /// In a thousand: overtakes those before it.
    pub(super) reordered: u64,
    /// In a thousand.
    pub(super) lost: u64,
}

pub(super) const CALM: Network = Network { delay: (Duration::from_micros(100), ms(1)), doubled: 0, reordered: 0, lost: 0 };

/// What must be true of every run.
#[derive(Default)]
struct Checker {
    views: BTreeMap<u64, Arc<View>>,
    /// For each view number and ballot: what was proposed for the next view.
    proposed: BTreeMap<(u64, Ballot), Vec<Change>>,
    /// For each view number and ballot: the members that have said that they accepted that.
    accepted: BTreeMap<(u64, Ballot), BTreeSet<NodeId>>,
    gone: BTreeSet<NodeId>,
}

impl Checker {
    /// `id` sends `message`: its own words say what it has accepted.
    fn sent(&mut self, id: &NodeId, message: &MembershipMessage) {
        let (ballot, changes) = match &message.body {
            MembershipBody::Accept(proposal) => (&proposal.ballot, Some(&proposal.changes)),
            MembershipBody::Accepted(ballot) => (ballot, None),
            _ => return,
        };
        let key = (message.view, ballot.clone());
        self.accepted.entry(key.clone()).or_default().insert(id.clone());
        if let Some(changes) = changes {
            let before = self.proposed.insert(key, changes.clone());
            assert!(before.is_none_or(|before| before == *changes), "two proposals under {ballot:?} in view {}", message.view);
        }
    }

    /// `id` has adopted `view`.
    fn adopted(&mut self, id: &NodeId, view: &Arc<View>) {
        if let Some(known) = self.views.get(&view.number) {
            return assert_eq!(known, view, "two views have one number");
        }
        view.check().unwrap();
        if view.number > 1 {
            let before = self.views[&(view.number - 1)].clone();
            self.check_majority(id, &before, view);
            let removed = before.members.iter().filter(|old| view.get(&old.id).is_none());
            self.gone.extend(removed.map(|member| member.id.clone()));
        }
        let back = view.members.iter().find(|member| self.gone.contains(&member.id));
        assert!(back.is_none(), "a departed member is back: {back:?}");
        self.views.insert(view.number, view.clone());
    }

    /// A member that comes from one view to the other is told of each loss between, with the views of that loss.
    fn check_losses(&self, old: &View, new: &View, losses: &[Loss]) {
        let steps = (old.number..new.number).map(|number| (&self.views[&number], &self.views[&(number + 1)]));
        let lost = steps.flat_map(|(before, after)| {
            let gone = before.members.iter().filter(|member| after.get(&member.id).is_none());
            gone.map(|member| (before.number, after.number, &member.id))
        });
        let told = losses.iter().map(|loss| (loss.before.number, loss.after.number, &loss.member.id));
        assert!(lost.clone().eq(told), "{:?}, but {losses:?}", lost.collect::<Vec<_>>());
    }

    fn check_majority(&self, id: &NodeId, before: &View, view: &View) {
        if let [only] = &before.members[..] {
            return assert_eq!(*id, only.id, "the first to adopt a view decided by one member alone");
        }
        let leading_here = self
            .proposed
            .iter()
            .filter(|((number, _), changes)| *number == before.number && before.next(changes).as_ref() == Ok(view));
        let mut acceptors = leading_here.map(|(key, _)| self.accepted[key].iter().filter(|id| before.get(id).is_some()).count());
        let decided = acceptors.any(|count| 2 * count > before.members.len());
        assert!(decided, "no majority of view {} has accepted {view:?}", before.number);
    }
}

pub(super) struct Sim {
    pub(super) now: Duration,
    pub(super) random: Random,
    pub(super) timing: Timing,
    pub(super) network: Network,
    pub(super) nodes: Vec<Node>,
    by_id: BTreeMap<NodeId, usize>,
    queue: BTreeMap<(Duration, u64), (usize, Event)>,
    scheduled: u64,
    /// When the last message on a link arrives: links keep order.
    last: BTreeMap<(usize, usize), Duration>,
    /// The side of the cut that each node is on, and what was sent across, unless that is lost.
    side: Vec<usize>,
    held: Option<Vec<(usize, Event)>>,
    checker: Checker,
    /// Consensus and other messages sent, by kind; heartbeats are not messages.
    pub(super) sent: BTreeMap<&'static str, u64>,
    pub(super) heartbeats: u64,
    steps_now: u64,
}

impl Sim {
    pub(super) fn new(seed: u64) -> Sim {
        Sim {
            now: ms(1_000),
            random: Random::new(seed),
            timing: Timing::default(),
            network: CALM,
            nodes: Vec::new(),
            by_id: BTreeMap::new(),
            queue: BTreeMap::new(),
            scheduled: 0,
            last: BTreeMap::new(),
            side: Vec::new(),
            held: None,
            checker: Checker::default(),
            sent: BTreeMap::new(),
            heartbeats: 0,
            steps_now: 0,
        }
    }

    /// `count` nodes that have joined each other.
    pub(super) fn formed(seed: u64, count: usize) -> Sim {
        let mut sim = Sim::new(seed);
        sim.found(member(0, 1));
        for i in 1..count {
            sim.join(member(i, 1));
        }
        sim.run(ms(3_000));
        sim.assert_converged();
        assert_eq!(sim.newest().members.len(), count);
        sim
    }

    pub(super) fn found(&mut self, member: Member) -> usize {
        let machine = Membership::bootstrap(self.now, member.clone(), self.timing.clone(), self.random.next());
        self.start(member, machine)
    }

    /// A node that joins through any other, also one that comes later.
    pub(super) fn join(&mut self, joiner: Member) -> usize {
        let names = self.nodes.len().max(12);
        let mut seeds: Vec<SocketAddr> = (0..names).map(|i| member(i, 1).address).collect();
        seeds.retain(|seed| *seed != joiner.address);
        let turn = self.random.below(seeds.len() as u64) as usize;
        seeds.rotate_left(turn);
        self.join_through(joiner, seeds)
    }

    pub(super) fn join_through(&mut self, member: Member, seeds: Vec<SocketAddr>) -> usize {
        let machine = Membership::joining(self.now, member.clone(), seeds, self.timing.clone(), self.random.next());
        self.start(member, machine)
    }

    /// The first of a list: it founds when this many others are there.
    pub(super) fn join_or_found(&mut self, member: Member, seeds: Vec<SocketAddr>, others: usize) -> usize {
        let machine = Membership::joining(self.now, member.clone(), seeds, self.timing.clone(), self.random.next());
        self.start(member, machine.may_found(others))
    }

    fn start(&mut self, member: Member, machine: Membership) -> usize {
        let place = self.nodes.len();
        self.by_id.insert(member.id.clone(), place);
        self.side.push(0);
        self.nodes.push(Node {
            member,
            machine,
            state: State::Up,
            armed: None,
            backlog: Vec::new(),
            allowance: None,
            excluded: false,
            left: false,
            frozen: None,
            refusals: Vec::new(),
            events: Vec::new(),
            adopted: Vec::new(),
        });
        self.after(place);
        place
    }

    pub(super) fn id(&self, place: usize) -> NodeId {
        self.nodes[place].member.id.clone()
    }

    pub(super) fn leave(&mut self, place: usize) {
        self.nodes[place].machine.leave(self.now);
        self.after(place);
    }

    /// Kills the process; its machine resets its connections.
    pub(super) fn kill(&mut self, place: usize) {
        self.nodes[place].state = State::Killed;
        let id = self.id(place);
        for event in std::mem::take(&mut self.nodes[place].backlog) {
            if let Event::Probe { by } = event {
                self.answer_probe(place, by, false);
            }
        }
        for other in 0..self.nodes.len() {
            if other != place && self.reachable(place, other) {
                self.send_event(place, other, Event::Broken { id: id.clone() });
            }
        }
    }

    /// Switches the machine off.
    pub(super) fn silence(&mut self, place: usize) {
        self.nodes[place].state = State::Silent;
        self.nodes[place].backlog.clear();
    }

    /// Kills `place` once it has sent `count` more messages.
    pub(super) fn kill_after(&mut self, place: usize, count: u64) {
        self.nodes[place].allowance = Some(count);
    }

    pub(super) fn pause(&mut self, place: usize) {
        if self.nodes[place].state == State::Up {
            self.nodes[place].state = State::Paused;
        }
    }

    pub(super) fn resume(&mut self, place: usize) {
        if self.nodes[place].state != State::Paused {
            return;
        }
        self.nodes[place].state = State::Up;
        for event in std::mem::take(&mut self.nodes[place].backlog) {
            self.schedule(Duration::ZERO, place, event);
        }
    }

    /// Breaks the connections between two nodes: what is under way is lost, and both notice.
    pub(super) fn break_link(&mut self, a: usize, b: usize) {
        let (ida, idb) = (self.id(a), self.id(b));
        let between = |to: &usize, event: &Event| match event {
            Event::Message { from, .. } | Event::Heartbeat { from, .. } => {
                (*to == a && *from == idb) || (*to == b && *from == ida)
            }
            _ => false,
        };
        self.queue.retain(|_, (to, event)| !between(to, event));
        self.schedule(ms(1), a, Event::Broken { id: idb.clone() });
        self.schedule(ms(1), b, Event::Broken { id: ida.clone() });
    }

    /// Link `a` to `b` is full: `a` can have nothing delivered to `b` any more.
    pub(super) fn lose_link(&mut self, a: usize, b: usize) {
        let id = self.id(b);
        self.schedule(ms(1), a, Event::Lost { id });
    }

    /// Cuts the network: the nodes in `apart` are on the other side. What is sent across is lost, or held until the cut heals.
    pub(super) fn cut(&mut self, apart: &[usize], hold: bool) {
        for place in 0..self.nodes.len() {
            self.side[place] = usize::from(apart.contains(&place));
        }
        self.held.get_or_insert_default();
        if !hold {
            self.held = None;
        }
    }

    pub(super) fn heal(&mut self) {
        self.side.fill(0);
        for (to, event) in self.held.take().unwrap_or_default() {
            self.schedule(ms(1), to, event);
        }
    }

    /// From now on nothing breaks; what is broken for good stays so.
    pub(super) fn end_faults(&mut self) {
        self.network = CALM;
        self.heal();
        for place in 0..self.nodes.len() {
            self.nodes[place].allowance = None;
            self.resume(place);
        }
    }

    fn reachable(&self, a: usize, b: usize) -> bool {
        self.side[a] == self.side[b] && self.nodes[a].state != State::Silent && self.nodes[b].state != State::Silent
    }

    pub(super) fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(entry) = self.queue.first_entry() {
            let at = entry.key().0;
            if at > end {
                break;
            }
            let (place, event) = entry.remove();
            self.steps_now = if at == self.now { self.steps_now + 1 } else { 0 };
            assert!(self.steps_now < 100_000, "time stands still at {:?}", self.now);
            self.now = at;
            self.step(place, event);
        }
        self.now = end;
    }

    /// Runs until `done`, and says how long that took.
    pub(super) fn run_until(&mut self, limit: Duration, what: &str, done: impl Fn(&Sim) -> bool) -> Duration {
        let start = self.now;
        while !done(self) {
            assert!(self.now < start + limit, "not within {limit:?}: {what}\n{}", self.describe());
            self.run(ms(5));
        }
        self.now - start
    }

    fn step(&mut self, place: usize, event: Event) {
        let now = self.now;
        let node = &mut self.nodes[place];
        match node.state {
            State::Up => {}
            State::Paused => return node.backlog.push(event),
            State::Killed | State::Silent | State::Ended => {
                if let Event::Probe { by } = event {
                    self.answer_probe(place, by, false);
                }
                return;
            }
        }
        match event {
            Event::Message { from, message } => node.machine.handle_message(now, from, MembershipMessage::clone(&message)),
            Event::Heartbeat { from, view } => node.machine.handle_heartbeat(now, from, view),
            Event::Broken { id } => node.machine.handle_link_broken(now, id),
            Event::Lost { id } => node.machine.handle_link_lost(now, id),
            Event::Probe { by } => self.answer_probe(place, by, true),
            Event::Reached { id } => node.machine.handle_probe_reached(now, id),
            Event::Probed { id, alive } => node.machine.handle_probe_result(now, id, alive),
            Event::Timer => {
                node.armed = None;
                if node.machine.poll_timeout().is_some_and(|due| due <= now) {
                    node.machine.handle_timeout(now);
                    let due = node.machine.poll_timeout();
                    let progress = due.is_none_or(|due| {
                        due > now || node.machine.outputs.iter().any(|o| matches!(o, Output::ViewChanged { .. }))
                    });
                    assert!(progress, "the timer changes nothing at {now:?}: {:?}", node.machine);
                }
            }
        }
        self.after(place);
    }

    /// Carries out what the machine of `place` wants.
    fn after(&mut self, place: usize) {
        while let Some(output) = self.nodes[place].machine.poll_output() {
            if matches!(self.nodes[place].state, State::Up) {
                self.carry_out(place, output);
            }
        }
        let node = &self.nodes[place];
        let due = node.machine.poll_timeout().filter(|_| node.state == State::Up);
        if let Some(due) = due.filter(|due| node.armed.is_none_or(|armed| *due < armed)) {
            let late = self.random.duration(ms(1));
            let at = due.max(self.now);
            self.nodes[place].armed = Some(at);
            self.schedule(at - self.now + late, place, Event::Timer);
        }
    }

    fn carry_out(&mut self, place: usize, output: Output) {
        let id = self.id(place);
        let now = self.now;
        match output {
            Output::Send { to, message } => {
                self.checker.sent(&id, &message);
                let message = Arc::new(message);
                for peer in to {
                    self.send(place, &peer, &message);
                }
            }
            Output::SendTo { seeds, message } => {
                let message = Arc::new(message);
                for seed in seeds {
                    let live = |node: &Node| node.member.address == seed && matches!(node.state, State::Up | State::Paused);
                    if let Some(to) = self.nodes.iter().position(live).filter(|to| *to != place) {
                        self.send(place, &Peer { id: self.id(to), address: Some(seed) }, &message);
                    }
                }
            }
            Output::Heartbeat { to, view } => {
                self.heartbeats += 1;
                let to = self.by_id[&to.id];
                self.transmit(place, to, Event::Heartbeat { from: id, view });
            }
            Output::Probe { member } => self.probe(place, &member),
            Output::ViewChanged { old, new, losses, .. } => {
                self.checker.adopted(&id, &new);
                self.checker.check_losses(old.as_ref().unwrap_or(&new), &new, &losses);
                assert!(new.get(&id).is_some(), "{id:?} is not in its own view");
                self.nodes[place].adopted.push((now, new.number));
            }
            Output::Excluded { view } => {
                self.checker.adopted(&id, &view);
                self.nodes[place].excluded = true;
                self.nodes[place].state = State::Ended;
            }
            Output::Outrun { number } => panic!("{id:?} has missed more views than are remembered, up to {number}"),
            Output::Left => {
                self.nodes[place].left = true;
                self.nodes[place].state = State::Ended;
            }
            Output::Frozen { unreachable, reachable, needed } => {
                assert!(reachable < needed && !unreachable.contains(&id), "{id:?}: {reachable} of {needed} is no cut");
                self.nodes[place].frozen = Some(unreachable);
            }
            Output::Thawed => assert!(self.nodes[place].frozen.take().is_some(), "{id:?} thaws what was not frozen"),
            Output::Refused(refusal) => self.nodes[place].refusals.push(refusal),
            Output::Event(event) => {
                assert!(!matches!(event, MembershipEvent::BadMessage { .. }), "{id:?}: {event:?}");
                self.nodes[place].events.push((now, event));
            }
        }
    }

    fn send(&mut self, from: usize, to: &Peer, message: &Arc<MembershipMessage>) {
        if let Some(left) = &mut self.nodes[from].allowance {
            if *left == 0 {
                if self.nodes[from].state == State::Up {
                    self.kill(from);
                }
                return;
            }
            *left -= 1;
        }
        *self.sent.entry(kind(&message.body)).or_default() += 1;
        let Some(&place) = self.by_id.get(&to.id) else { panic!("a message to a stranger: {to:?}") };
        assert_ne!(from, place, "a message to itself: {message:?}");
        let event = Event::Message { from: self.id(from), message: message.clone() };
        self.transmit(from, place, event);
    }

    fn transmit(&mut self, from: usize, to: usize, event: Event) {
        if self.side[from] != self.side[to] {
            if let Some(held) = &mut self.held {
                held.push((to, event));
            }
            return;
        }
        if self.random.below(1_000) < self.network.lost {
            return;
        }
        if self.random.below(1_000) < self.network.doubled {
            self.send_event(from, to, event.clone());
        }
        self.send_event(from, to, event);
    }

    fn send_event(&mut self, from: usize, to: usize, event: Event) {
        let (least, most) = self.network.delay;
        let mut at = self.now + least + self.random.duration(most - least);
        if self.random.below(1_000) >= self.network.reordered {
            let last = self.last.entry((from, to)).or_default();
            at = at.max(*last);
            *last = at;
        }
        self.schedule(at - self.now, to, event);
    }

    fn probe(&mut self, place: usize, member: &Peer) {
        assert!(member.address.is_some(), "a probe needs an address: {member:?}");
        let target = self.by_id[&member.id];
        let round_trip = self.network.delay.1 * 2;
        match self.nodes[target].state {
            _ if !self.reachable(place, target) => {}
            State::Up | State::Paused => {
                self.schedule(round_trip, place, Event::Reached { id: member.id.clone() });
                self.schedule(round_trip, target, Event::Probe { by: place });
            }
            State::Killed | State::Ended => self.answer_probe(target, place, false),
            State::Silent => unreachable!("out of reach"),
        }
    }

    /// The daemon answers a probe, or its machine refuses the connection in its stead.
    fn answer_probe(&mut self, place: usize, by: usize, alive: bool) {
        if self.reachable(place, by) {
            let id = self.id(place);
            self.schedule(self.network.delay.1 * 2, by, Event::Probed { id, alive });
        }
    }

    fn schedule(&mut self, delay: Duration, place: usize, event: Event) {
        self.scheduled += 1;
        self.queue.insert((self.now + delay, self.scheduled), (place, event));
    }

    /// The newest view that any machine has adopted.
    pub(super) fn newest(&self) -> Arc<View> {
        self.checker.views.values().next_back().unwrap().clone()
    }

    pub(super) fn is_up(&self, place: usize) -> bool {
        self.nodes[place].state == State::Up
    }

    /// Whether all nodes that are up have the newest view, and that view holds just them.
    pub(super) fn converged(&self) -> bool {
        let newest = self.newest();
        // A node that was cut off for so long that no member it knows is left can be told nothing: it stays frozen.
        let has = |node: &Node| node.state == State::Up && node.machine.view() == Some(&newest);
        let found = |id: &NodeId| has(&self.nodes[self.by_id[id]]);
        let lost = |node: &Node| {
            let view = node.machine.view();
            node.frozen.is_some() && view.is_some_and(|view| !view.members.iter().any(|member| found(&member.id)))
        };
        let up = self.nodes.iter().filter(|node| node.state == State::Up && !lost(node));
        let agree = up.clone().all(|node| has(node) && node.frozen.is_none() && !node.machine.is_frozen());
        agree && up.count() == newest.members.len()
    }

    pub(super) fn assert_converged(&self) {
        assert!(self.converged(), "not all nodes agree:\n{}", self.describe());
    }

    pub(super) fn total_sent(&self) -> u64 {
        self.sent.values().sum()
    }

    pub(super) fn describe(&self) -> String {
        let newest = self.newest();
        let members: Vec<_> = newest.members.iter().map(|member| &member.id).collect();
        let mut text = format!("at {:?}; view {}: {members:?}\n", self.now, newest.number);
        for node in &self.nodes {
            let number = node.machine.view().map(|view| view.number);
            text += &format!("{:?} {:?} view {number:?} frozen {:?}", node.member.id, node.state, node.frozen);
            text += &format!(" pending {:?} proposer {:?}\n", node.machine.pending, node.machine.proposer);
        }
        text
    }
}

fn kind(body: &MembershipBody) -> &'static str {
    match body {
        MembershipBody::Request(_) => "request",
        MembershipBody::Refused(_) => "refused",
        MembershipBody::Prepare(_) => "prepare",
        MembershipBody::Promise { .. } => "promise",
        MembershipBody::Accept(_) => "accept",
        MembershipBody::Accepted(_) => "accepted",
        MembershipBody::Rejected { .. } => "rejected",
        MembershipBody::Decided { .. } => "decided",
        MembershipBody::Newest(_) | MembershipBody::Steps(_) | MembershipBody::Forgotten => "newest",
        MembershipBody::Ask => "ask",
        MembershipBody::ProbeRequest(_) => "probe request",
        MembershipBody::ProbeResult { .. } => "probe result",
        MembershipBody::Frozen(_) => "frozen",
        MembershipBody::Thawed => "thawed",
    }
}
