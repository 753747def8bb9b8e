//! The sockets of a process's links: [`radic_observer::links`] decides, here they are the simulated network's. Those of new connections come from [`super::calls`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use radic_observer::connection::{Connection, Forgettable, Slot};
use radic_observer::found::Found;
use radic_observer::links::{Action, Ending, Links, SocketId};
use radic_observer::{Context, Failure};
use radic_wire::determinant::StreamId;
use radic_wire::ids::{Incarnation, Rank};
use radic_wire::log::Greeting;
use radic_wire::process::{FromNode, ToNode};

use super::machine::address;
use super::net::{ConnId, Owner, Packet, Word, code};
use super::world::World;

/// By ECONNRESET.
pub const BROKEN: Ending = Ending::Reset(104);

/// A connection's socket, and what lies in it.
#[derive(Debug, Default)]
struct Socket {
    side: usize,
    bytes: VecDeque<u8>,
    ended: Option<Ending>,
}

impl Socket {
    fn take(&mut self, packet: Packet) {
        match packet {
            Packet::Bytes(bytes) => self.bytes.extend(bytes),
            Packet::End => _ = self.ended.get_or_insert(Ending::End),
            Packet::Reset => self.ended = Some(BROKEN),
            packet => unreachable!("{packet:?} on a link"),
        }
    }
}

/// The sockets of a process's links, and of those that are to be some.
#[derive(Debug, Default)]
pub struct Sockets {
    by_end: BTreeMap<StreamId, ConnId>,
    links: BTreeMap<ConnId, Socket>,
    visitors: BTreeMap<SocketId, ConnId>,
    dialed: BTreeMap<SocketId, ConnId>,
    /// Ends whose peer wants nothing more: what waits for the socket leaves no more.
    silent: BTreeSet<StreamId>,
}

impl Sockets {
    /// Whether what waits for the socket of this end leaves no more.
    pub fn is_silent(&self, end: StreamId) -> bool {
        self.silent.contains(&end)
    }

    /// The program ends the stream of this end: that leaves, and what is before it.
    pub fn speak(&mut self, end: StreamId) {
        self.silent.remove(&end);
    }

    /// The connection that is the link of this end, and our side of it.
    pub fn conn(&self, end: StreamId) -> Option<(ConnId, usize)> {
        let conn = *self.by_end.get(&end)?;
        Some((conn, self.links.get(&conn)?.side))
    }

    fn link(&mut self, end: StreamId) -> Option<&mut Socket> {
        self.links.get_mut(self.by_end.get(&end)?)
    }

    /// Whether bytes lie in the socket of this end.
    pub fn has_bytes(&self, end: StreamId) -> bool {
        self.by_end.get(&end).and_then(|conn| self.links.get(conn)).is_some_and(|socket| !socket.bytes.is_empty())
    }

    /// A copy of them.
    pub fn unread(&self, end: StreamId) -> Vec<u8> {
        let socket = self.by_end.get(&end).and_then(|conn| self.links.get(conn));
        socket.map_or_else(Vec::new, |socket| socket.bytes.iter().copied().collect())
    }

    /// At most so many of them.
    pub fn take_bytes(&mut self, end: StreamId, most: usize) -> Vec<u8> {
        let Some(socket) = self.link(end) else { return Vec::new() };
        let count = most.min(socket.bytes.len());
        socket.bytes.drain(..count).collect()
    }

    fn named(of: &BTreeMap<SocketId, ConnId>, conn: ConnId) -> Option<SocketId> {
        of.iter().find(|(_, known)| **known == conn).map(|(socket, _)| *socket)
    }
}

/// The greeting in a packet.
pub fn read_greeting(packet: Packet) -> Greeting {
    let Packet::Word(Word::Greeting(bytes)) = packet else { unreachable!("{packet:?} instead of a greeting") };
    Greeting::read(&bytes).expect("a greeting")
}

impl World {
    /// Tells the links something, and does what they say. None: the process cannot go on.
    fn drive<T>(&mut self, pid: u32, input: impl FnOnce(&mut Links, &mut Context<'_>) -> Result<T, Failure>) -> Option<T> {
        let now = self.now;
        let lib = self.lib(pid);
        let result = input(&mut lib.links, &mut Context { observer: &mut lib.observer, now });
        let value = match result {
            Ok(value) => Some(value),
            Err(failure) => {
                self.cannot_go_on(pid, &failure);
                None
            }
        };
        while self.is_running(pid)
            && let Some(action) = self.lib(pid).links.poll_action()
        {
            self.carry_out_of_links(pid, action);
        }
        value
    }

    /// The process cannot go on. If it speaks for itself, and so does the process by whose word it stops, that is a violation.
    pub fn cannot_go_on(&mut self, pid: u32, failure: &Failure) {
        let (me, is_voice) = (self.processes[pid as usize].id, self.is_voice(pid));
        match *failure {
            Failure::Observer(error) => _ = self.sure::<()>(pid, Err(error)),
            Failure::Greeting { process, incarnation, error } => {
                let trusted = is_voice && self.checks.is_voice(process, incarnation);
                assert!(!trusted, "observer of {me} refuses a greeting: {failure}");
                self.end_by(pid, &error);
            }
            Failure::OutOfReach { .. } => self.fail(pid, &failure.to_string()),
            Failure::Lost { .. } => {
                assert!(self.is_ended_by_its_home() || !(is_voice && self.checks.counts()), "G2: {failure}, to {me}");
                self.fail(pid, &failure.to_string());
            }
        }
    }

    fn carry_out_of_links(&mut self, pid: u32, action: Action) {
        self.trace(|| format!("process {pid}, of its links: {action:?}"));
        match action {
            Action::Tell(message) => self.tell_node(pid, message),
            Action::Dial(socket, door) => {
                let machine = self.processes[pid as usize].machine;
                let conn = self.connect(Owner::Process(pid), machine, door);
                self.lib(pid).sockets.dialed.insert(socket, conn);
            }
            Action::Finish(end) => {
                self.counts.refused += 1;
                self.lib(pid).sockets.speak(end);
            }
            Action::Hail(end, greeting) => {
                let Some((conn, rest)) = self.lib(pid).calls.take_under_way(end) else { return };
                let slot = self.lib(pid).observer.table().find_end(end.connection, true).expect("it is greeted");
                self.greet(pid, Some((conn, 0)), &greeting);
                self.plug(pid, slot, (conn, 0), rest);
            }
            Action::Greet { socket, greeting, .. } => self.greet(pid, self.conn_of(pid, socket), &greeting),
            Action::Close(socket) => {
                if let Some((conn, side)) = self.take_socket(pid, socket) {
                    self.lib(pid).sockets.links.remove(&conn);
                    self.close(conn, side);
                }
            }
            Action::Install(install) => {
                let Some((conn, side)) = self.take_socket(pid, install.socket) else { return };
                if let Some(answer) = install.answer {
                    self.greet(pid, Some((conn, side)), &answer);
                }
                self.install(pid, install.end, (conn, side));
            }
            Action::Unplug(end) => self.drop_link(pid, end),
            // Its end is known now.
            Action::Restore(end) => self.lib(pid).sockets.link(end).into_iter().for_each(|socket| socket.ended = None),
            // A socket that is in question lies aside.
            Action::Discard(end) => {
                if self.lib(pid).sockets.link(end).is_some_and(|socket| socket.ended.is_some()) {
                    self.drop_link(pid, end);
                }
            }
            Action::RefuseSends(end) => _ = self.lib(pid).sockets.silent.insert(end),
            Action::Refused(error) => self.trace(|| format!("process {pid} refuses a connection: {error}")),
        }
    }

    fn conn_of(&self, pid: u32, socket: SocketId) -> Option<(ConnId, usize)> {
        let sockets = &self.processes[pid as usize].lib.as_ref()?.sockets;
        let dialed = sockets.dialed.get(&socket).map(|conn| (*conn, 0));
        dialed.or_else(|| sockets.visitors.get(&socket).map(|conn| (*conn, 1)))
    }

    fn take_socket(&mut self, pid: u32, socket: SocketId) -> Option<(ConnId, usize)> {
        let known = self.conn_of(pid, socket);
        let sockets = &mut self.lib(pid).sockets;
        sockets.dialed.remove(&socket);
        sockets.visitors.remove(&socket);
        known
    }

    /// A greeting leaves: what it says of this process must be stable (G1).
    pub fn greet(&mut self, pid: u32, to: Option<(ConnId, usize)>, greeting: &Greeting) {
        let Some((conn, side)) = to else { return };
        let position = self.lib(pid).observer.journal().end();
        if !self.lib(pid).observer.is_replaying() {
            self.check_departure(pid, position);
        }
        self.send(conn, side, Packet::Word(Word::Greeting(code(|out| greeting.write(out)))));
    }

    fn drop_link(&mut self, pid: u32, end: StreamId) {
        if let Some((conn, _)) = self.lib(pid).calls.take_under_way(end) {
            self.close(conn, 0);
        }
        let sockets = &mut self.lib(pid).sockets;
        let Some(conn) = sockets.by_end.remove(&end) else { return };
        let side = sockets.links.remove(&conn).map_or(0, |socket| socket.side);
        self.close(conn, side);
    }

    /// It can be dialed from now on.
    pub fn open_door(&mut self, pid: u32) {
        let at = self.processes[pid as usize].machine;
        let door = address(at, 10_000 + pid as u16);
        self.net.listeners.insert(door, Owner::Process(pid));
        self.tell_node(pid, ToNode::Door(door));
        self.listen_again(pid);
    }

    /// In a process that has come back: no link is one any more.
    pub fn break_all(&mut self, pid: u32) {
        self.drive(pid, |links, cx| {
            links.handle_restart(cx);
            Ok(())
        });
    }

    fn install(&mut self, pid: u32, end: StreamId, (conn, side): (ConnId, usize)) {
        self.drop_link(pid, end);
        let sockets = &mut self.lib(pid).sockets;
        sockets.speak(end);
        sockets.by_end.insert(end, conn);
        sockets.links.entry(conn).or_insert(Socket { side, ..Socket::default() });
        self.counts.links += 1;
    }

    /// The first link of a connection: `rest` has come on it already.
    pub fn plug(&mut self, pid: u32, slot: Slot, (conn, side): (ConnId, usize), rest: VecDeque<Packet>) {
        let Some(end) = self.end_of(pid, slot) else { return self.close(conn, side) };
        self.install(pid, end, (conn, side));
        if let Some(socket) = self.lib(pid).sockets.links.get_mut(&conn) {
            rest.into_iter().for_each(|packet| socket.take(packet));
        }
    }

    /// The socket of `slot` is under way.
    pub fn handle_under_way(&mut self, pid: u32, slot: Slot) {
        self.drive(pid, |links, cx| {
            links.handle_under_way(cx, slot);
            Ok(())
        });
    }

    /// The program has got a connection that has no link yet.
    pub fn handle_taken(&mut self, pid: u32, slot: Slot) {
        self.drive(pid, |links, cx| {
            links.handle_taken(cx, slot);
            Ok(())
        });
    }

    /// What the kernel says of sockets that are under way.
    fn look_at_under_way(&mut self, pid: u32) {
        for (end, made) in self.lib(pid).calls.fares() {
            if !self.is_running(pid) || self.is_in_question(pid) {
                return;
            }
            // One whose first link was refused is with the program until it closes it.
            if !self.lib(pid).links.is_under_way(end) {
                continue;
            }
            if made {
                self.drive(pid, |links, cx| {
                    links.handle_made(cx, end);
                    Ok(())
                });
            } else if self.lib(pid).observer.records_refusals() {
                self.ask_who_refused(pid, end);
            }
        }
    }

    /// The node has said which process is called where a socket under way was refused.
    pub fn handle_refused(&mut self, pid: u32, end: StreamId, found: &Found) {
        /// ECONNREFUSED.
        const REFUSED: i32 = 111;
        self.drive(pid, |links, cx| links.handle_refused(cx, end, REFUSED, found));
    }

    /// The program is about to close a connection.
    pub fn handle_closing(&mut self, pid: u32, slot: Slot) {
        self.drive(pid, |links, cx| {
            links.handle_closing(cx, slot);
            Ok(())
        });
        let Some(end) = self.end_of(pid, slot).filter(|end| !self.lib(pid).links.is_under_way(*end)) else { return };
        if let Some((conn, _)) = self.lib(pid).calls.take_under_way(end) {
            self.close(conn, 0);
        }
    }

    /// A caller that does not greet at once is one among those at the door.
    pub fn expect_greeting(&mut self, pid: u32, conn: ConnId) {
        let socket = self.drive(pid, |links, cx| Ok(links.handle_visitor(cx.now)));
        self.lib(pid).sockets.visitors.extend(socket.map(|socket| (socket, conn)));
    }

    /// Tells the node where an outgoing stream ends, before its end can leave.
    pub fn tell_finished(&mut self, pid: u32, slot: Slot, closed: bool) {
        self.drive(pid, |links, cx| {
            links.tell_finished(cx, slot, closed);
            Ok(())
        });
    }

    /// Tells a peer, by the nodes, that it may forget a connection.
    pub fn say_forgettable(&mut self, pid: u32, word: Forgettable) {
        self.drive(pid, |links, _| {
            links.say_forgettable(word);
            Ok(())
        });
    }

    /// Sockets of connections that are forgotten.
    pub fn close_forgotten(&mut self, pid: u32) {
        let lib = self.lib(pid);
        let is_known = |end: &StreamId| lib.observer.table().find_end(end.connection, end.from_opener).is_some();
        let gone: Vec<StreamId> = lib.sockets.by_end.keys().copied().filter(|end| !is_known(end)).collect();
        gone.into_iter().for_each(|end| self.drop_link(pid, end));
    }

    /// Something came on a connection that is no log's.
    pub fn link_arrive(&mut self, pid: u32, conn: ConnId, side: usize, packet: Packet) {
        let to = self.net.conns[conn].to;
        let Some(packet) = self.lib(pid).calls.take(conn, to, packet) else { return };
        let sockets = &mut self.lib(pid).sockets;
        let visitor = Sockets::named(&sockets.visitors, conn);
        let dialed = Sockets::named(&sockets.dialed, conn);
        match (packet, visitor, dialed) {
            (Packet::Syn, ..) => {
                let socket = self.drive(pid, |links, cx| Ok(links.handle_visitor(cx.now)));
                self.lib(pid).sockets.visitors.extend(socket.map(|socket| (socket, conn)));
            }
            (packet @ Packet::Word(_), Some(socket), _) => {
                let greeting = read_greeting(packet);
                self.drive(pid, |links, cx| links.handle_greeting(cx, socket, &greeting, false));
            }
            // What follows the greeting of a first link lies in the socket until it is one.
            (packet @ (Packet::Bytes(_) | Packet::End), Some(socket), _) if self.lib(pid).links.has_greeted(socket) => {
                let link = self.lib(pid).sockets.links.entry(conn).or_insert(Socket { side, ..Socket::default() });
                link.take(packet);
            }
            (Packet::Ack, _, Some(socket)) => self.connected(pid, socket),
            (packet @ Packet::Word(_), _, Some(socket)) if self.lib(pid).links.awaits_answer(socket) => {
                let answer = read_greeting(packet);
                self.drive(pid, |links, cx| links.handle_answer(cx, socket, &answer));
            }
            (_, Some(socket), _) | (_, _, Some(socket)) => {
                self.drive(pid, |links, cx| {
                    links.handle_socket_gone(cx, socket);
                    Ok(())
                });
            }
            (packet, None, None) => match self.lib(pid).sockets.links.get_mut(&conn) {
                Some(socket) => socket.take(packet),
                None => self.close(conn, side),
            },
        }
    }

    fn connected(&mut self, pid: u32, socket: SocketId) {
        self.drive(pid, |links, cx| {
            links.handle_connected(cx, socket, true);
            Ok(())
        });
    }

    /// Sockets that have ended.
    fn look_for_ends(&mut self, pid: u32) {
        let sockets = &self.lib(pid).sockets;
        let of = |conn: &ConnId| sockets.links.get(conn).and_then(|socket| socket.ended);
        let ended: Vec<_> = sockets.by_end.iter().filter_map(|(end, conn)| Some((*end, of(conn)?))).collect();
        for (end, why) in ended {
            let unread = self.lib(pid).unread(end);
            self.drive(pid, |links, cx| {
                let slot = cx.observer.table().find_end(end.connection, end.from_opener);
                Ok(slot.is_some_and(|slot| links.handle_ended(cx, slot, why, unread)))
            });
        }
    }

    /// Ranks are lost: what it knows of them, and no link to them is one any more.
    pub fn collect(&mut self, pid: u32, lost: &[(Rank, Incarnation)]) -> Option<Vec<u8>> {
        self.drive(pid, |links, cx| Ok(links.handle_collect(cx, lost)))
    }

    /// The observer may have given links up.
    pub fn break_dropped(&mut self, pid: u32) {
        self.drive(pid, |links, cx| {
            links.break_dropped(cx);
            Ok(())
        });
    }

    /// `Place`, `Final`, `Restarted`.
    pub fn handle_link_message(&mut self, pid: u32, message: &FromNode) {
        let lib = self.lib(pid);
        let asked = if let FromNode::Final { ask, .. } = message { lib.links.asks_about(*ask) } else { None };
        let unread = asked.map_or(0, |end| lib.unread(end));
        if self.drive(pid, |links, cx| links.handle_node(cx, message, unread)).is_some() {
            self.close_forgotten(pid);
        }
    }

    /// Looks after what is not up.
    pub fn tend_links(&mut self, pid: u32) {
        self.look_for_ends(pid);
        if !self.is_running(pid) {
            return;
        }
        self.look_at_under_way(pid);
        if !self.is_running(pid) || self.is_in_question(pid) {
            return;
        }
        self.refuse_callers(pid);
        if self.is_running(pid) {
            self.drive(pid, |links, cx| links.handle_timeout(cx));
        }
    }

    /// The end of the connection in `slot`: the stream that goes out.
    pub fn end_of(&mut self, pid: u32, slot: Slot) -> Option<StreamId> {
        self.lib(pid).observer.table().get(slot).map(Connection::stream_out)
    }
}
