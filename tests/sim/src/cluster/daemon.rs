//! The daemon of one machine: the real [`Node`], with links, heartbeats and probes as `protector/src/daemon` drives them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use radic_protector::link::{LinkReceiver, LinkSender};
use radic_protector::membership::Peer;
use radic_protector::node::host::HostOutput;
use radic_protector::node::{Input, Node, Output};
use radic_wire::codec;
use radic_wire::ids::{JobId, NodeId, ProcessId};
use radic_wire::job::OutputStream;
use radic_wire::limits;
use radic_wire::membership::{Member, MembershipMessage};
use radic_wire::peer::{Hello, LinkFrame, PeerMessage, Purpose, Welcome};

use super::images::Fetch;
use super::net::{ConnId, Owner, Packet, Word};
use super::world::{Event, World};

/// As in `daemon/peers.rs`.
const HANDSHAKE: Duration = Duration::from_millis(limits::HANDSHAKE_MS);
const PROBE_AGAIN: Duration = Duration::from_millis(20);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
const PATIENCE: Duration = Duration::from_secs(90);
const LAST_WORD: Duration = Duration::from_secs(2);

/// What a connection of a daemon is for.
#[derive(Debug, Clone)]
pub enum Role {
    /// Our link to another daemon; whether it was welcomed.
    Link(NodeId, bool),
    /// Our heartbeats.
    Beat(NodeId, bool),
    /// Does it answer? Until when; whether the kernel has taken it.
    Probe(Peer, Duration, bool),
    /// One message.
    Once(Option<NodeId>, Box<MembershipMessage>),
    /// Theirs.
    In(Option<(Member, Purpose)>),
}

/// Our end of a link.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    sender: LinkSender,
    conn: Option<ConnId>,
    waits: bool,
    backoff: Duration,
    reached: Duration,
    departed: bool,
}

/// Timers.
#[derive(Debug, Clone)]
pub enum Timer {
    /// A connection that should have been welcomed.
    Handshake(ConnId),
    /// A link is tried again.
    Link(NodeId),
    /// A probe is tried again.
    Probe(Peer, Duration),
    /// An image should be here.
    Fetch(ConnId),
}

/// What a daemon has besides its node.
#[derive(Debug, Default)]
pub struct Peers {
    roles: BTreeMap<ConnId, Role>,
    links: BTreeMap<NodeId, Link>,
    received: BTreeMap<NodeId, (LinkReceiver, SocketAddr)>,
    departed: BTreeSet<NodeId>,
    beat: Option<(Peer, u64, Option<ConnId>)>,
    /// Images under way, by process.
    pub fetches: BTreeMap<ProcessId, Fetch>,
}

impl World {
    fn node(&mut self, at: usize) -> &mut Node {
        self.machines[at].node.as_mut().expect("a daemon that is up has a node")
    }

    /// Something happened to the node.
    pub fn input(&mut self, at: usize, input: Input) {
        if !self.is_up(at) {
            return;
        }
        let now = self.now;
        self.node(at).handle(now, input);
        self.after_node(at);
    }

    /// What follows each thing that a daemon does, as in its loop: outputs, then timers.
    pub fn after_node(&mut self, at: usize) {
        let now = self.now;
        let due = loop {
            while self.is_up(at)
                && let Some(output) = self.node(at).poll_output()
            {
                self.carry_out(at, output);
            }
            if !self.is_up(at) {
                return;
            }
            match self.node(at).poll_timeout() {
                Some(due) if due <= now => self.node(at).handle_timeout(now),
                due => break due,
            }
        };
        let boot = self.machines[at].boot;
        if let Some(due) = due.filter(|due| self.machines[at].tick.is_none_or(|tick| *due < tick || tick <= now)) {
            self.machines[at].tick = Some(due);
            self.schedule(due, Event::Tick(at, boot));
        }
        self.check_view(at);
    }

    fn carry_out(&mut self, at: usize, output: Output) {
        match output {
            Output::Send(to, message) => {
                self.check_launch(at, &message);
                self.send_to_peer(at, &to, message);
            }
            Output::SendToSeed(seed, message) => self.send_once(at, seed, None, message),
            Output::Heartbeat(to, view) => self.heartbeat(at, to, view),
            Output::Probe(member) => self.probe(at, member, self.now + HANDSHAKE),
            Output::Reply(client, reply) => {
                self.schedule(self.now + super::LOCAL, Event::Reply(at, client.0, Box::new(reply)));
            }
            Output::CloseClient(_) => {}
            Output::Process(job, output) => self.process_output(at, job, output),
            Output::Observer(observer, message) => {
                self.schedule(self.now + super::LOCAL, Event::ToProcess(observer.0 as u32, Some(Box::new(message))));
            }
            Output::CloseObserver(observer) => {
                self.schedule(self.now + super::LOCAL, Event::ToProcess(observer.0 as u32, None));
            }
            Output::Nudge(process) => {
                if let Some(pid) = self.machines[at].ranks.get(&process).copied() {
                    self.step_at(pid, self.now + super::LOCAL);
                }
            }
            Output::Store(order) => self.order_store(at, order),
            Output::Forget(node) => self.forget_peer(at, node),
            Output::Log(event) => self.handle_event(at, &event),
            Output::Ready(view) => {
                self.machines[at].logs.server.handle_member();
                self.trace(|| format!("n{} is a member in view {view}", at + 1));
            }
            Output::Stop(why) => {
                self.trace(|| format!("n{} ends: {why:?}", at + 1));
                self.kill_daemon(at);
            }
            Output::Die => self.kill_daemon(at),
            Output::Fault(_) => unreachable!("faults are the plan's"),
        }
    }

    // ---- links

    fn owner(&self, at: usize) -> Owner {
        Owner::Daemon(at, self.machines[at].boot)
    }

    /// What the daemon of a machine has.
    pub fn peers(&mut self, at: usize) -> &mut Peers {
        &mut self.machines[at].peers
    }

    fn dial_peer(&mut self, at: usize, address: SocketAddr, role: Role) -> ConnId {
        let conn = self.connect(self.owner(at), at, address);
        self.peers(at).roles.insert(conn, role);
        self.daemon_later(at, HANDSHAKE, Timer::Handshake(conn));
        conn
    }

    /// Something is due later, unless the machine has been switched off by then.
    pub fn daemon_later(&mut self, at: usize, after: Duration, timer: Timer) {
        let boot = self.machines[at].boot;
        self.schedule(self.now + after, Event::Daemon(at, boot, timer));
    }

    fn send_to_peer(&mut self, at: usize, to: &Peer, message: PeerMessage) {
        let now = self.now;
        let peers = self.peers(at);
        let Some(address) = to.address.or_else(|| peers.received.get(&to.id).map(|(_, address)| *address)) else { return };
        if peers.departed.contains(&to.id) {
            if let PeerMessage::Membership(message) = message {
                self.send_once(at, address, Some(to.id.clone()), message);
            }
            return;
        }
        let fresh = || Link {
            address,
            sender: LinkSender::default(),
            conn: None,
            waits: false,
            backoff: BACKOFF.0,
            reached: now,
            departed: false,
        };
        let link = peers.links.entry(to.id.clone()).or_insert_with(fresh);
        link.sender.push(message).expect("this little never fills a link");
        self.run_link(at, &to.id);
    }

    /// Writes what waits, or begins a connection for it.
    fn run_link(&mut self, at: usize, to: &NodeId) {
        let Some(link) = self.peers(at).links.get_mut(to) else { return };
        match link.conn {
            Some(conn) => {
                let is_up = matches!(self.peers(at).roles.get(&conn), Some(Role::Link(_, true)));
                while is_up
                    && let Some(frame) = self.peers(at).links.get_mut(to).and_then(|l| l.sender.poll_frame().map(<[u8]>::to_vec))
                {
                    self.send(conn, 0, Packet::Word(Word::Frame(frame)));
                }
            }
            None if !link.waits && !link.sender.is_empty() => {
                let address = link.address;
                let conn = self.dial_peer(at, address, Role::Link(to.clone(), false));
                self.peers(at).links.get_mut(to).expect("it was there").conn = Some(conn);
            }
            None => {}
        }
    }

    fn link_broken(&mut self, at: usize, to: &NodeId, was_up: bool) {
        let now = self.now;
        let Some(link) = self.peers(at).links.get_mut(to) else { return };
        link.conn = None;
        if was_up {
            (link.backoff, link.reached) = (BACKOFF.0, now);
        }
        let patience = if link.departed { LAST_WORD } else { PATIENCE };
        let backoff = link.backoff;
        if now - link.reached > patience || link.departed && link.sender.is_empty() {
            self.peers(at).links.remove(to);
        } else {
            (link.waits, link.backoff) = (true, (backoff * 2).min(BACKOFF.1));
            self.daemon_later(at, backoff, Timer::Link(to.clone()));
        }
        self.input(at, Input::LinkBroken(to.clone()));
    }

    fn forget_peer(&mut self, at: usize, node: NodeId) {
        if let Some(link) = self.peers(at).links.get_mut(&node) {
            link.departed = true;
        }
        self.peers(at).departed.insert(node);
    }

    fn send_once(&mut self, at: usize, address: SocketAddr, to: Option<NodeId>, message: MembershipMessage) {
        self.dial_peer(at, address, Role::Once(to, Box::new(message)));
    }

    fn heartbeat(&mut self, at: usize, to: Peer, view: u64) {
        let Some(address) = to.address else { return };
        if let Some((peer, _, conn)) = self.peers(at).beat.take() {
            if peer.id == to.id {
                let up = conn.filter(|conn| matches!(self.peers(at).roles.get(conn), Some(Role::Beat(_, true))));
                up.into_iter().for_each(|conn| self.send(conn, 0, Packet::Word(Word::Beat(view))));
                let conn = conn.unwrap_or_else(|| self.dial_peer(at, address, Role::Beat(to.id.clone(), false)));
                self.peers(at).beat = Some((to, view, Some(conn)));
                return;
            }
            conn.into_iter().for_each(|conn| self.drop_conn(at, conn, 0));
        }
        let conn = self.dial_peer(at, address, Role::Beat(to.id.clone(), false));
        self.peers(at).beat = Some((to, view, Some(conn)));
    }

    fn probe(&mut self, at: usize, member: Peer, until: Duration) {
        if let Some(address) = member.address {
            self.dial_peer(at, address, Role::Probe(member, until, false));
        }
    }

    fn drop_conn(&mut self, at: usize, conn: ConnId, side: usize) {
        self.peers(at).roles.remove(&conn);
        self.close(conn, side);
    }

    fn hello(&self, at: usize, to: Option<NodeId>, purpose: Purpose) -> Packet {
        let from = self.machines[at].member.clone();
        Packet::Word(Word::Hello(Box::new(Hello { version: radic_wire::PROTOCOL_VERSION, from, to, purpose })))
    }

    /// Something came for the daemon.
    pub fn daemon_arrive(&mut self, at: usize, conn: ConnId, packet: Packet) {
        if let Packet::Syn = packet {
            self.peers(at).roles.insert(conn, Role::In(None));
            return;
        }
        let Some(role) = self.peers(at).roles.get(&conn).cloned() else { return };
        match (role, packet) {
            (role, Packet::End | Packet::Reset) => self.conn_ended(at, conn, role),
            (Role::Link(to, _), Packet::Ack) => self.send(conn, 0, self.hello(at, Some(to), Purpose::Link)),
            (Role::Beat(to, _), Packet::Ack) => self.send(conn, 0, self.hello(at, Some(to), Purpose::Heartbeat)),
            (Role::Once(to, _), Packet::Ack) => self.send(conn, 0, self.hello(at, to, Purpose::Join)),
            (Role::Probe(member, until, _), Packet::Ack) => {
                self.send(conn, 0, self.hello(at, Some(member.id.clone()), Purpose::Probe));
                self.peers(at).roles.insert(conn, Role::Probe(member.clone(), until, true));
                self.input(at, Input::ProbeReached(member.id));
            }
            (role, Packet::Word(Word::Welcome(welcome))) => self.welcomed(at, conn, role, &welcome),
            (Role::Link(to, true), Packet::Word(Word::Received(number))) => {
                if let Some(link) = self.peers(at).links.get_mut(&to) {
                    link.sender.handle_ack(number).expect("a peer acknowledges what it got");
                    if link.departed && link.sender.is_empty() {
                        self.peers(at).links.remove(&to);
                        self.drop_conn(at, conn, 0);
                    }
                }
            }
            (Role::In(None), Packet::Word(Word::Hello(hello))) => self.greeted(at, conn, *hello),
            (Role::In(Some((from, purpose))), Packet::Word(word)) => self.heard(at, conn, from, purpose, word),
            (role, packet) => unreachable!("{packet:?} to {role:?}"),
        }
    }

    fn welcomed(&mut self, at: usize, conn: ConnId, role: Role, welcome: &Welcome) {
        if let Role::Probe(member, ..) = role {
            self.drop_conn(at, conn, 0);
            let alive = welcome.refused.is_none() && welcome.id == member.id;
            return self.input(at, Input::ProbeResult(member.id, alive));
        }
        if welcome.refused.is_some() {
            self.conn_ended(at, conn, role);
            return self.close(conn, 0);
        }
        match role {
            Role::Link(to, _) => {
                self.peers(at).roles.insert(conn, Role::Link(to.clone(), true));
                if let Some(link) = self.peers(at).links.get_mut(&to) {
                    link.sender.handle_connected(welcome.received).expect("a peer has no more than it was sent");
                }
                self.run_link(at, &to);
            }
            Role::Beat(to, _) => {
                self.peers(at).roles.insert(conn, Role::Beat(to, true));
                let view = self.peers(at).beat.as_ref().map(|(_, view, _)| *view);
                view.into_iter().for_each(|view| self.send(conn, 0, Packet::Word(Word::Beat(view))));
            }
            Role::Once(_, message) => self.send(conn, 0, Packet::Word(Word::Membership(message))),
            Role::Probe(..) | Role::In(_) => unreachable!("handled above, or never welcomed"),
        }
    }

    fn greeted(&mut self, at: usize, conn: ConnId, hello: Hello) {
        let me = self.machines[at].member.id.clone();
        let wrong = hello.to.as_ref().is_some_and(|to| *to != me) || hello.from.id == me;
        let received = self.peers(at).received.get(&hello.from.id).map_or(0, |(receiver, _)| receiver.received());
        let welcome = Welcome { id: me, received, refused: wrong.then(|| "meant for another".to_owned()) };
        self.send(conn, 1, Packet::Word(Word::Welcome(Box::new(welcome))));
        if wrong || hello.purpose == Purpose::Probe {
            return self.drop_conn(at, conn, 1);
        }
        self.peers(at).roles.insert(conn, Role::In(Some((hello.from, hello.purpose))));
    }

    fn heard(&mut self, at: usize, conn: ConnId, from: Member, purpose: Purpose, word: Word) {
        let id = from.id;
        let fresh = (LinkReceiver::default(), from.address);
        match (purpose, word) {
            (Purpose::Link, Word::Frame(bytes)) => {
                let frame = codec::decode::<LinkFrame>(&bytes, limits::PEER_FRAME).expect("a frame");
                let LinkFrame::Data { seq, message } = frame else { unreachable!("a sender writes no acknowledgements") };
                let (receiver, _) = self.peers(at).received.entry(id.clone()).or_insert(fresh);
                let new = receiver.handle_seq(seq).expect("a link has no gaps");
                let received = receiver.received();
                if !self.net.is_on_the_way(conn, 1) {
                    self.send(conn, 1, Packet::Word(Word::Received(received)));
                }
                if new {
                    self.input(at, Input::Message(id, message));
                }
            }
            (Purpose::Heartbeat, Word::Beat(view)) => self.input(at, Input::Heartbeat(id, view)),
            (Purpose::Join, Word::Membership(message)) => {
                self.peers(at).received.entry(id.clone()).or_insert(fresh);
                self.drop_conn(at, conn, 1);
                self.input(at, Input::Message(id, PeerMessage::Membership(*message)));
            }
            (purpose, word) => unreachable!("{word:?} on a connection for {purpose:?}"),
        }
    }

    /// A connection has ended, or never came to be.
    fn conn_ended(&mut self, at: usize, conn: ConnId, role: Role) {
        self.peers(at).roles.remove(&conn);
        match role {
            Role::Link(to, was_up) => self.link_broken(at, &to, was_up),
            Role::Beat(to, was_up) => {
                if let Some((_, _, of)) = self.peers(at).beat.as_mut().filter(|(_, _, of)| *of == Some(conn)) {
                    *of = None;
                }
                if was_up {
                    self.input(at, Input::LinkBroken(to));
                }
            }
            Role::Probe(member, until, reached) => match reached {
                true => self.daemon_later(at, PROBE_AGAIN, Timer::Probe(member, until)),
                false => self.input(at, Input::ProbeResult(member.id, false)),
            },
            Role::Once(..) => {}
            Role::In(from) => {
                self.close(conn, 1);
                if let Some((from, Purpose::Link | Purpose::Heartbeat)) = from {
                    self.input(at, Input::LinkBroken(from.id));
                }
            }
        }
    }

    /// A timer of the daemon.
    pub fn daemon_timer(&mut self, at: usize, timer: Timer) {
        match timer {
            Timer::Handshake(conn) => {
                let role = self.peers(at).roles.get(&conn).cloned();
                match role {
                    None | Some(Role::In(_) | Role::Link(_, true) | Role::Beat(_, true)) => {}
                    // Silence is not told.
                    Some(Role::Probe(..) | Role::Once(..)) => self.drop_conn(at, conn, 0),
                    Some(role) => {
                        self.close(conn, 0);
                        self.conn_ended(at, conn, role);
                    }
                }
            }
            Timer::Link(to) => {
                let now = self.now;
                if let Some(link) = self.peers(at).links.get_mut(&to) {
                    link.waits = false;
                    if link.sender.is_empty() {
                        link.reached = now;
                    }
                }
                self.run_link(at, &to);
            }
            Timer::Probe(member, until) if self.now < until => self.probe(at, member, until),
            Timer::Probe(..) => {}
            Timer::Fetch(conn) => self.fetched(at, conn, Err("it does not come".to_owned())),
        }
    }

    // ---- processes

    fn process_output(&mut self, at: usize, job: JobId, output: HostOutput) {
        let id = |rank| ProcessId { job, rank };
        match output {
            HostOutput::Spawn(rank, _) => self.spawn(at, id(rank)),
            HostOutput::Restore(_, order) => self.begin_fetch(at, job, order),
            HostOutput::Stdin { number, .. } => self.input_soon(at, Input::StdinTaken(job, number)),
            HostOutput::Read(rank, stream) => {
                if let Some(pid) = self.machines[at].ranks.get(&id(rank)).copied() {
                    self.want_output(pid, stream);
                }
            }
            HostOutput::Signal(rank, signal) => self.signal(at, id(rank), signal),
            HostOutput::Over => self.peers(at).fetches.retain(|_, fetch| fetch.job != job),
            HostOutput::Close(..) | HostOutput::Pmi(..) => {}
            HostOutput::ToHome(_) | HostOutput::Name(..) | HostOutput::Warning(..) | HostOutput::Lost(..) => unreachable!(),
            HostOutput::Unrestorable(..) | HostOutput::Left(_) | HostOutput::Fenced | HostOutput::Frozen => unreachable!(),
        }
    }

    fn signal(&mut self, at: usize, process: ProcessId, signal: i32) {
        if signal != libc::SIGKILL && signal != libc::SIGTERM {
            return;
        }
        if let Some(conn) = self.peers(at).fetches.get_mut(&process).map(|fetch| {
            fetch.given_up = true;
            fetch.conn
        }) {
            return self.fetched(at, conn, Err("given up".to_owned()));
        }
        if let Some(pid) = self.machines[at].ranks.get(&process).copied() {
            self.end_process(pid, radic_wire::job::ExitStatus::Signal(signal));
        }
    }

    /// The output of a rank that its host wants.
    pub fn want_output(&mut self, pid: u32, stream: OutputStream) {
        self.processes[pid as usize].wanted[stream as usize] = true;
        self.pump_output(pid);
    }
}
