//! Links of a process: what is done when one breaks, after `preload/src/links.rs`. A socket that ends is a question for the sender's node; a broken link is
//! dialed anew at the peer's door by whoever opened the connection, or its opener is called.
//!
//! One thing is simpler than it is there: a connection is made at the door from the beginning, not at a listener of the program's.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use radic_observer::connection::{Connection, Forgettable, Link, Slot, Welcome};
use radic_wire::determinant::StreamId;
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::log::Greeting;
use radic_wire::process::{FromNode, Place, StreamEnd, ToNode};

use super::net::{ConnId, Owner, Packet, Word};
use super::world::{World, code};

/// As in the library.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(1);
const VISIT: Duration = Duration::from_secs(5);
const CLOSED_ATTEMPTS: u32 = 100;

/// A connection's socket, and what lies in it.
#[derive(Debug, Default)]
struct Socket {
    side: usize,
    bytes: VecDeque<u8>,
    ended: Option<Ending>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    End,
    Reset,
}

#[derive(Debug)]
enum Stage {
    Asked { ask: u64 },
    Down { due: Duration },
    Placing { ask: u64, since: Duration },
    Connecting { conn: ConnId, ready: bool, door: SocketAddr, deadline: Duration },
    Greeted { conn: ConnId, door: SocketAddr, answer: Option<Greeting>, deadline: Duration, ask: Option<u64> },
    Parting { ask: u64 },
    Over,
}

#[derive(Debug)]
struct Repair {
    end: StreamId,
    peer: ProcessId,
    why: Ending,
    stage: Stage,
    attempts: u32,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Links {
    by_slot: BTreeMap<Slot, ConnId>,
    sockets: BTreeMap<ConnId, Socket>,
    repairs: Vec<Repair>,
    visitors: BTreeMap<ConnId, (Option<Greeting>, Duration)>,
    catching_up: bool,
}

impl Links {
    /// The connection that is the link of `slot`, and our side of it.
    pub fn conn(&self, slot: Slot) -> Option<(ConnId, usize)> {
        let conn = *self.by_slot.get(&slot)?;
        Some((conn, self.sockets.get(&conn)?.side))
    }

    fn socket(&mut self, slot: Slot) -> Option<&mut Socket> {
        self.sockets.get_mut(self.by_slot.get(&slot)?)
    }

    /// Whether bytes lie in the socket of `slot`.
    pub fn has_bytes(&self, slot: Slot) -> bool {
        self.by_slot.get(&slot).and_then(|conn| self.sockets.get(conn)).is_some_and(|socket| !socket.bytes.is_empty())
    }

    /// At most so many of them.
    pub fn take_bytes(&mut self, slot: Slot, most: usize) -> Vec<u8> {
        let Some(socket) = self.socket(slot) else { return Vec::new() };
        let count = most.min(socket.bytes.len());
        socket.bytes.drain(..count).collect()
    }

    fn find(&self, end: StreamId) -> Option<usize> {
        self.repairs.iter().position(|repair| repair.end == end)
    }
}

/// What of a connection the decisions here need.
#[derive(Clone, Copy)]
struct End {
    name: StreamId,
    incoming: StreamId,
    peer: ProcessId,
    opened_here: bool,
    closed: bool,
    wanted: u64,
    finish: Option<u64>,
}

fn read_greeting(packet: Packet) -> Greeting {
    let Packet::Word(Word::Greeting(bytes)) = packet else { unreachable!("{packet:?} instead of a greeting") };
    Greeting::read(&bytes).expect("a greeting")
}

impl World {
    fn end(&mut self, pid: u32, slot: Slot) -> Option<End> {
        let connection: &Connection = self.lib(pid).observer.table().get(slot)?;
        Some(End {
            name: connection.stream_out(),
            incoming: connection.stream_in(),
            peer: connection.peer,
            opened_here: connection.opened_here,
            closed: connection.is_closed(),
            wanted: connection.incoming().wanted(),
            finish: connection.incoming().finish(),
        })
    }

    fn slot_of_end(&mut self, pid: u32, end: StreamId) -> Option<Slot> {
        self.lib(pid).observer.table().find_end(end.connection, end.from_opener)
    }

    /// It can be dialed from now on.
    pub fn open_door(&mut self, pid: u32) {
        let at = self.processes[pid as usize].machine;
        let door: SocketAddr = ([10, 0, 0, at as u8 + 1], 10_000 + pid as u16).into();
        self.net.listeners.insert(door, Owner::Process(pid));
        self.tell_node(pid, ToNode::Door(door));
    }

    /// In a process that has come back: no link is one any more.
    pub fn break_all(&mut self, pid: u32) {
        self.lib(pid).links.catching_up = true;
        self.open_door(pid);
        let slots: Vec<_> = self.lib(pid).observer.table().iter().map(|(slot, c)| (slot, c.is_closed())).collect();
        for (slot, closed) in slots {
            self.tell_finished(pid, slot, closed);
            self.break_link(pid, slot, Ending::Reset);
        }
    }

    /// A connection that the program has just opened.
    pub fn begin_link(&mut self, pid: u32, slot: Slot) {
        self.break_link(pid, slot, Ending::Reset);
    }

    /// Tells the node where an outgoing stream ends, before its end can leave.
    pub fn tell_finished(&mut self, pid: u32, slot: Slot, closed: bool) {
        let Some(connection) = self.lib(pid).observer.table().get(slot) else { return };
        let (stream, Some(offset)) = (connection.stream_out(), connection.outgoing().finish()) else { return };
        let end = StreamEnd { offset, closed, received: connection.incoming().wanted() };
        self.tell_node(pid, ToNode::Finished { stream, end });
    }

    /// Sockets of connections that are forgotten.
    pub fn close_forgotten(&mut self, pid: u32) {
        let lib = self.lib(pid);
        let gone: Vec<Slot> =
            lib.links.by_slot.keys().copied().filter(|slot| lib.observer.table().get(*slot).is_none()).collect();
        gone.into_iter().for_each(|slot| self.drop_socket(pid, slot));
    }

    fn drop_socket(&mut self, pid: u32, slot: Slot) {
        let links = &mut self.lib(pid).links;
        let Some(conn) = links.by_slot.remove(&slot) else { return };
        let side = links.sockets.remove(&conn).map_or(0, |socket| socket.side);
        self.close(conn, side);
    }

    // ---- what comes

    /// Something came on a connection that is no log's.
    pub fn link_arrive(&mut self, pid: u32, conn: ConnId, side: usize, packet: Packet) {
        let deadline = self.now + VISIT;
        let links = &mut self.lib(pid).links;
        if let Packet::Syn = packet {
            links.visitors.insert(conn, (None, deadline));
        } else if let Some(socket) = links.sockets.get_mut(&conn) {
            match packet {
                Packet::Bytes(bytes) => socket.bytes.extend(bytes),
                Packet::End => _ = socket.ended.get_or_insert(Ending::End),
                Packet::Reset => socket.ended = Some(Ending::Reset),
                packet => unreachable!("{packet:?} on a link"),
            }
        } else if let Some((greeting, _)) = links.visitors.get_mut(&conn) {
            match packet {
                Packet::Word(_) => *greeting = Some(read_greeting(packet)),
                // What follows the greeting of a first link lies in the socket until it is one.
                Packet::Bytes(_) => self.keep_early(pid, conn, side, packet),
                Packet::End | Packet::Reset if greeting.is_some() && matches!(packet, Packet::End) => {
                    self.keep_early(pid, conn, side, packet);
                }
                _ => {
                    links.visitors.remove(&conn);
                    self.lib(pid).links.sockets.remove(&conn);
                    self.close(conn, side);
                }
            }
        } else {
            self.dialed_arrive(pid, conn, packet);
        }
    }

    fn keep_early(&mut self, pid: u32, conn: ConnId, side: usize, packet: Packet) {
        let socket = self.lib(pid).links.sockets.entry(conn).or_insert(Socket { side, ..Socket::default() });
        match packet {
            Packet::Bytes(bytes) => socket.bytes.extend(bytes),
            _ => socket.ended = Some(Ending::End),
        }
    }

    fn dialed_arrive(&mut self, pid: u32, conn: ConnId, packet: Packet) {
        let is_this = |repair: &Repair| match repair.stage {
            Stage::Connecting { conn: of, .. } | Stage::Greeted { conn: of, .. } => of == conn,
            _ => false,
        };
        let Some(at) = self.lib(pid).links.repairs.iter().position(is_this) else { return self.close(conn, 0) };
        match (packet, &mut self.lib(pid).links.repairs[at].stage) {
            (Packet::Ack, Stage::Connecting { ready, .. }) => *ready = true,
            (packet @ Packet::Word(_), Stage::Greeted { answer, .. }) => {
                *answer = Some(read_greeting(packet));
                // What follows belongs to the link.
                self.hear_answer(pid, at);
            }
            _ => self.try_again(pid, at, AGAIN),
        }
    }

    // ---- the door

    fn is_gate_open(&mut self, pid: u32) -> bool {
        let position = self.lib(pid).observer.journal().end();
        let open = self.lib(pid).observer.gate().is_none() || self.breaks.gate;
        if open && !self.lib(pid).observer.is_replaying() {
            self.check_departure(pid, position);
        }
        open
    }

    fn answer_door(&mut self, pid: u32) {
        let now = self.now;
        let waiting: Vec<_> = self.lib(pid).links.visitors.iter().map(|(conn, (hello, until))| (*conn, *hello, *until)).collect();
        for (conn, hello, until) in waiting {
            match hello {
                Some(hello) if self.is_gate_open(pid) => {
                    self.lib(pid).links.visitors.remove(&conn);
                    self.welcome(pid, conn, &hello);
                }
                None if until < now => {
                    self.lib(pid).links.visitors.remove(&conn);
                    self.close(conn, 1);
                }
                _ => {}
            }
        }
    }

    fn refuse(&mut self, pid: u32, conn: ConnId) {
        self.lib(pid).links.sockets.remove(&conn);
        self.close(conn, 1);
    }

    fn welcome(&mut self, pid: u32, conn: ConnId, hello: &Greeting) {
        if hello.process != hello.connection.opener {
            self.refuse(pid, conn);
            return self.handle_call(pid, hello);
        }
        let me = self.processes[pid as usize].id;
        let known = self.lib(pid).observer.table().find_end(hello.connection, false).is_some();
        match self.lib(pid).observer.handle_greeting(hello) {
            Ok(Welcome::Refuse) => self.refuse(pid, conn),
            Ok(Welcome::Forgotten) => {
                self.refuse(pid, conn);
                self.say_forgettable(pid, Forgettable { connection: hello.connection, peer: hello.process, for_good: false });
            }
            Ok(Welcome::Link(slot, answer)) => {
                if let Some(answer) = answer {
                    self.send(conn, 1, Packet::Word(Word::Greeting(code(|out| answer.write(out)))));
                }
                self.adopt(pid, slot, conn, 1);
            }
            Err(error) => {
                // The word of one who does not speak for its process may contradict, and one that comes late may be about a connection that is forgotten.
                let trusted = known && self.checks.is_voice(hello.process, hello.incarnation) && self.is_voice(pid);
                assert!(!trusted, "observer of {me} refuses {hello:?}: {error}");
                self.refuse(pid, conn);
            }
        }
    }

    fn handle_call(&mut self, pid: u32, hello: &Greeting) {
        let Some(slot) = self.lib(pid).observer.table().find_end(hello.connection, true) else {
            if let Some(word) = self.lib(pid).observer.forgotten(hello.connection, hello.process) {
                self.say_forgettable(pid, word);
            }
            return;
        };
        let me = self.lib(pid).observer.incarnation();
        let connection = self.lib(pid).observer.table().get(slot).filter(|c| c.peer == hello.process);
        let Some(connection) = connection.filter(|c| hello.incarnation >= c.peer_incarnation()) else { return };
        let is_of_now = connection.attempt().is_none_or(|(life, attempt)| life != me || attempt == hello.attempt);
        let (link, end) = (connection.link(), connection.stream_out());
        let links = &mut self.lib(pid).links;
        match links.find(end) {
            Some(at) if matches!(links.repairs[at].stage, Stage::Down { .. }) => {
                links.repairs[at].stage = Stage::Down { due: Duration::ZERO };
            }
            Some(at) if !matches!(links.repairs[at].stage, Stage::Asked { .. }) => {}
            _ if link == Link::Up && is_of_now => self.break_link(pid, slot, Ending::Reset),
            _ => {}
        }
    }

    /// The connection is the link of `slot` from now on.
    fn adopt(&mut self, pid: u32, slot: Slot, conn: ConnId, side: usize) {
        let Some(end) = self.end(pid, slot) else { return self.close(conn, side) };
        self.drop_socket(pid, slot);
        let links = &mut self.lib(pid).links;
        links.repairs.retain(|repair| repair.end != end.name);
        links.by_slot.insert(slot, conn);
        links.sockets.entry(conn).or_insert(Socket { side, ..Socket::default() });
        self.counts.links += 1;
    }

    // ---- ends

    /// Sockets that have ended, of which all bytes were taken.
    fn look_for_ends(&mut self, pid: u32) {
        let links = &self.lib(pid).links;
        let ended = |conn: &ConnId| links.sockets.get(conn).and_then(|s| s.ended.map(|why| (why, s.bytes.len() as u64)));
        let ended: Vec<_> = links.by_slot.iter().filter_map(|(slot, conn)| Some((*slot, ended(conn)?))).collect();
        for (slot, (why, unread)) in ended {
            self.link_ended(pid, slot, why, unread);
        }
    }

    fn link_ended(&mut self, pid: u32, slot: Slot, why: Ending, unread: u64) {
        let Some(end) = self.end(pid, slot) else { return };
        if self.lib(pid).links.find(end.name).is_some() {
            return;
        }
        if end.finish.is_some_and(|finish| finish <= end.wanted + unread) && why == Ending::End {
            return;
        }
        let ask = self.lib(pid).number();
        self.tell_node(pid, ToNode::Ended { ask, stream: end.incoming, sender: end.peer });
        let repair = Repair { end: end.name, peer: end.peer, why, stage: Stage::Asked { ask }, attempts: 0 };
        self.lib(pid).links.repairs.push(repair);
    }

    /// `Place`, `Final`, `Restarted`.
    pub fn handle_link_message(&mut self, pid: u32, message: FromNode) {
        match message {
            FromNode::Final { ask, end } => self.handle_final(pid, ask, end),
            FromNode::Place { ask, place } => self.handle_place(pid, ask, place),
            FromNode::Restarted { process, incarnation, door } => self.handle_restarted(pid, process, incarnation, door),
            message => unreachable!("nobody has asked for {message:?}"),
        }
    }

    fn handle_final(&mut self, pid: u32, ask: u64, last: Option<StreamEnd>) {
        let is_this = |r: &Repair| matches!(r.stage, Stage::Asked { ask: of } | Stage::Parting { ask: of } if of == ask);
        let Some(at) = self.lib(pid).links.repairs.iter().position(is_this) else { return };
        let Repair { end: name, why, ref stage, .. } = self.lib(pid).links.repairs[at];
        let parting = matches!(stage, Stage::Parting { .. });
        if parting {
            self.lib(pid).observer.handle_left(name.connection, last.map_or(0, |last| last.received));
            self.close_forgotten(pid);
        }
        let slot = self.slot_of_end(pid, name);
        let Some((slot, end)) = slot.and_then(|slot| Some((slot, self.end(pid, slot)?))) else {
            self.lib(pid).links.repairs.swap_remove(at);
            return;
        };
        let unread = if parting { 0 } else { self.lib(pid).links.socket(slot).map_or(0, |s| s.bytes.len() as u64) };
        let there = end.wanted + unread;
        let Some(StreamEnd { offset, closed, .. }) = last else {
            if !parting {
                return self.break_link(pid, slot, why);
            }
            let result = self.lib(pid).observer.handle_finish(slot, end.finish.unwrap_or(end.wanted));
            self.sure(pid, result);
            return self.lib(pid).links.repairs[at].stage = Stage::Over;
        };
        let result = self.lib(pid).observer.handle_finish(slot, offset);
        if self.sure(pid, result).is_none() {
            return;
        }
        if offset > there && parting {
            let me = self.lib(pid).observer.process();
            let counts = self.is_voice(pid) && self.checks.counts();
            assert!(!counts, "G2: the peer of {name:?} has left, and bytes from {there} to {offset} are lost to {me}");
            return self.fail(pid, "bytes are lost");
        }
        match why {
            _ if offset > there => self.break_link(pid, slot, why),
            _ if parting => self.lib(pid).links.repairs[at].stage = Stage::Over,
            Ending::End => self.restore_link(pid, slot, at),
            // It is read to its end; nothing is sent on it any more. The peer may still call, to say how far it has come.
            Ending::Reset if closed => self.restore_link(pid, slot, at),
            Ending::Reset => self.break_link(pid, slot, why),
        }
    }

    fn restore_link(&mut self, pid: u32, slot: Slot, at: usize) {
        let links = &mut self.lib(pid).links;
        links.repairs.swap_remove(at);
        // Its end is known now.
        if let Some(socket) = links.socket(slot) {
            socket.ended = None;
        }
    }

    fn handle_place(&mut self, pid: u32, ask: u64, place: Place) {
        let is_this = |repair: &Repair| match repair.stage {
            Stage::Placing { ask: of, .. } | Stage::Greeted { ask: Some(of), .. } => of == ask,
            _ => false,
        };
        let Some(at) = self.lib(pid).links.repairs.iter().position(is_this) else { return };
        let Repair { end: name, peer, .. } = self.lib(pid).links.repairs[at];
        match place {
            Place::Here { incarnation, door } => {
                self.hear_of(pid, peer, incarnation);
                let now = self.now;
                let Some(at) = self.lib(pid).links.find(name) else { return };
                match &mut self.lib(pid).links.repairs[at].stage {
                    Stage::Greeted { door: dialed, deadline, ask, .. } if *dialed == door => {
                        (*deadline, *ask) = (now + ANSWER, None);
                    }
                    _ => self.begin_dial(pid, at, door),
                }
            }
            Place::Away => self.try_again(pid, at, PATIENCE),
            Place::Left => self.handle_left(pid, at),
        }
    }

    fn handle_left(&mut self, pid: u32, at: usize) {
        let Repair { end: name, peer, .. } = self.lib(pid).links.repairs[at];
        let slot = self.slot_of_end(pid, name);
        let Some(end) = slot.and_then(|slot| self.end(pid, slot)).filter(|end| !end.closed) else {
            self.lib(pid).observer.handle_left(name.connection, 0);
            self.close_forgotten(pid);
            return self.drop_repair(pid, at);
        };
        let ask = self.lib(pid).number();
        self.set_stage(pid, at, Stage::Parting { ask });
        self.tell_node(pid, ToNode::Ended { ask, stream: end.incoming, sender: peer });
    }

    fn hear_of(&mut self, pid: u32, process: ProcessId, incarnation: Incarnation) {
        if incarnation.0 > 0 {
            self.lib(pid).observer.handle_restarted(process, incarnation);
            self.break_dropped(pid);
        }
    }

    fn handle_restarted(&mut self, pid: u32, process: ProcessId, incarnation: Incarnation, door: SocketAddr) {
        self.hear_of(pid, process, incarnation);
        let lib = self.lib(pid);
        let is_asked =
            |end: StreamId| lib.links.find(end).is_some_and(|at| matches!(lib.links.repairs[at].stage, Stage::Asked { .. }));
        let table = lib.observer.table().iter();
        let wanted = table.filter(|(_, c)| c.peer == process && (c.link() == Link::Down || is_asked(c.stream_out())));
        let slots: Vec<Slot> = wanted.map(|(slot, _)| slot).collect();
        for slot in slots {
            let Some(end) = self.end(pid, slot) else { continue };
            let links = &self.lib(pid).links;
            let known = links.find(end.name).is_some_and(|at| !matches!(links.repairs[at].stage, Stage::Asked { .. }));
            if !known {
                self.break_link(pid, slot, Ending::Reset);
            }
            let Some(at) = self.lib(pid).links.find(end.name) else { continue };
            if end.opened_here {
                self.begin_dial(pid, at, door);
            } else {
                self.try_again(pid, at, PATIENCE);
            }
        }
    }

    // ---- broken links

    fn break_dropped(&mut self, pid: u32) {
        while let Some(slot) = self.lib(pid).observer.poll_dropped() {
            self.break_link(pid, slot, Ending::Reset);
        }
    }

    fn break_link(&mut self, pid: u32, slot: Slot, why: Ending) {
        self.lib(pid).observer.handle_broken(slot);
        self.drop_socket(pid, slot);
        let Some(end) = self.end(pid, slot) else { return };
        let known = self.lib(pid).links.find(end.name);
        let attempts = known.map_or(0, |at| self.lib(pid).links.repairs[at].attempts);
        if let Some(at) = known {
            self.drop_repair(pid, at);
        }
        let stage = Stage::Down { due: Duration::ZERO };
        self.lib(pid).links.repairs.push(Repair { end: end.name, peer: end.peer, why, stage, attempts });
    }

    fn drop_repair(&mut self, pid: u32, at: usize) {
        self.set_stage(pid, at, Stage::Over);
        self.lib(pid).links.repairs.swap_remove(at);
    }

    fn set_stage(&mut self, pid: u32, at: usize, stage: Stage) {
        match std::mem::replace(&mut self.lib(pid).links.repairs[at].stage, stage) {
            Stage::Connecting { conn, .. } | Stage::Greeted { conn, .. } => self.close(conn, 0),
            _ => {}
        }
    }

    fn try_again(&mut self, pid: u32, at: usize, pause: Duration) {
        let was_greeted = matches!(self.lib(pid).links.repairs[at].stage, Stage::Greeted { .. });
        let due = self.now + pause;
        self.set_stage(pid, at, Stage::Down { due });
        let end = self.lib(pid).links.repairs[at].end;
        if let Some(slot) = self.slot_of_end(pid, end).filter(|_| was_greeted) {
            self.lib(pid).observer.handle_broken(slot);
        }
    }

    fn begin_dial(&mut self, pid: u32, at: usize, door: SocketAddr) {
        let machine = self.processes[pid as usize].machine;
        let conn = self.connect(Owner::Process(pid), machine, door);
        let deadline = self.now + CONNECT;
        self.set_stage(pid, at, Stage::Connecting { conn, ready: false, door, deadline });
        self.lib(pid).links.repairs[at].attempts += 1;
    }

    /// Looks after what is not up.
    pub fn tend_links(&mut self, pid: u32) {
        self.look_for_ends(pid);
        self.look_for_broken(pid);
        self.answer_door(pid);
        for at in (0..self.lib(pid).links.repairs.len()).rev() {
            let Some(end) = self.lib(pid).links.repairs.get(at).map(|repair| repair.end) else { continue };
            let slot = self.slot_of_end(pid, end);
            match slot.filter(|slot| !self.is_done_with(pid, at, *slot)) {
                Some(slot) => self.tend_link(pid, at, slot),
                None => self.drop_repair(pid, at),
            }
        }
    }

    fn look_for_broken(&mut self, pid: u32) {
        if !self.lib(pid).links.catching_up {
            return;
        }
        self.lib(pid).links.catching_up = self.lib(pid).observer.is_replaying();
        self.break_dropped(pid);
        let lib = self.lib(pid);
        let down = lib.observer.table().iter().filter(|(_, c)| c.link() == Link::Down && !c.is_offered());
        let slots: Vec<Slot> = down.filter(|(_, c)| lib.links.find(c.stream_out()).is_none()).map(|(slot, _)| slot).collect();
        slots.into_iter().for_each(|slot| self.break_link(pid, slot, Ending::Reset));
    }

    fn is_done_with(&mut self, pid: u32, at: usize, slot: Slot) -> bool {
        let closed = self.lib(pid).observer.table().get(slot).is_some_and(Connection::is_closed);
        closed && matches!(self.lib(pid).links.repairs[at].stage, Stage::Over | Stage::Parting { .. })
    }

    fn tend_link(&mut self, pid: u32, at: usize, slot: Slot) {
        let now = self.now;
        match self.lib(pid).links.repairs[at].stage {
            Stage::Down { due } if due <= now => self.begin_step(pid, at, slot),
            Stage::Placing { since, .. } if now - since > CONNECT => self.try_again(pid, at, Duration::ZERO),
            Stage::Connecting { ready: true, .. } => self.greet_door(pid, at, slot),
            Stage::Connecting { deadline, .. } if deadline <= now => self.try_again(pid, at, AGAIN),
            Stage::Greeted { deadline, ask: None, .. } if deadline <= now => {
                let (number, process) = (self.lib(pid).number(), self.lib(pid).links.repairs[at].peer);
                if let Stage::Greeted { ask, .. } = &mut self.lib(pid).links.repairs[at].stage {
                    *ask = Some(number);
                }
                self.tell_node(pid, ToNode::Where { ask: number, process });
            }
            _ => {}
        }
    }

    fn begin_step(&mut self, pid: u32, at: usize, slot: Slot) {
        let closed = self.end(pid, slot).is_some_and(|end| end.closed);
        if closed && self.lib(pid).links.repairs[at].attempts > CLOSED_ATTEMPTS {
            return self.drop_repair(pid, at);
        }
        let (ask, process) = (self.lib(pid).number(), self.lib(pid).links.repairs[at].peer);
        let since = self.now;
        self.set_stage(pid, at, Stage::Placing { ask, since });
        self.tell_node(pid, ToNode::Where { ask, process });
    }

    /// The connection to the peer's door is there.
    fn greet_door(&mut self, pid: u32, at: usize, slot: Slot) {
        if !self.is_gate_open(pid) {
            return;
        }
        let Some(connection) = self.lib(pid).observer.table().get(slot) else { return };
        if !connection.opened_here {
            return self.call_opener(pid, at, slot);
        }
        let Some(hello) = self.lib(pid).observer.dial(slot) else { return self.try_again(pid, at, AGAIN) };
        let Stage::Connecting { conn, door, .. } = self.lib(pid).links.repairs[at].stage else { return };
        self.send(conn, 0, Packet::Word(Word::Greeting(code(|out| hello.write(out)))));
        if self.lib(pid).observer.table().get(slot).is_some_and(|c| c.link() == Link::Up) {
            // The first greeting of all is not answered.
            self.lib(pid).links.repairs[at].stage = Stage::Over;
            return self.adopt(pid, slot, conn, 0);
        }
        let deadline = self.now + ANSWER;
        self.lib(pid).links.repairs[at].stage = Stage::Greeted { conn, door, answer: None, deadline, ask: None };
    }

    fn call_opener(&mut self, pid: u32, at: usize, slot: Slot) {
        let lib = self.lib(pid);
        let Some(connection) = lib.observer.table().get(slot) else { return };
        let hello = Greeting {
            process: lib.observer.process(),
            incarnation: lib.observer.incarnation(),
            connection: connection.id,
            attempt: connection.attempt().map_or(0, |(_, attempt)| attempt),
            received: 0,
            stable: 0,
            kept: 0,
            finish: None,
            settled: false,
            ends: None,
        };
        if let Stage::Connecting { conn, .. } = self.lib(pid).links.repairs[at].stage {
            self.send(conn, 0, Packet::Word(Word::Greeting(code(|out| hello.write(out)))));
        }
        self.try_again(pid, at, PATIENCE);
    }

    fn hear_answer(&mut self, pid: u32, at: usize) {
        let due = self.now + AGAIN;
        let end = self.lib(pid).links.repairs[at].end;
        let Stage::Greeted { conn, answer: Some(hello), .. } =
            std::mem::replace(&mut self.lib(pid).links.repairs[at].stage, Stage::Down { due })
        else {
            return;
        };
        let Some(slot) = self.slot_of_end(pid, end) else { return self.close(conn, 0) };
        let me = self.processes[pid as usize].id;
        let result = self.lib(pid).observer.handle_answer(slot, &hello);
        let trusted = self.checks.is_voice(hello.process, hello.incarnation);
        match result {
            Ok(true) => self.adopt(pid, slot, conn, 0),
            Ok(false) => {
                self.close(conn, 0);
                self.lib(pid).observer.handle_broken(slot);
            }
            Err(error) => {
                assert!(!(self.is_voice(pid) && trusted), "observer of {me} refuses {hello:?}: {error}");
                self.fail(pid, &error.to_string());
            }
        }
    }
}
