//! Links: the driver of [`radic_observer::links`], which decides what is done when a connection's socket is no more. The sockets are
//! [`crate::links`]', and the program's (`layer::swapping`).
//!
//! Each input (`drive`) is followed by the actions that it caused. Whatever call of the program comes by looks after the links ([`Layer::tend_links`]).
//! Everything is bounded, and nothing waits but for an answer of the own node, which is nearly always there at once ([`Layer::link_ended`]).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use radic_observer::connection::{Connection, Forgettable, Slot};
use radic_observer::links::{Action, Ending, Install, Links, SocketId};
use radic_observer::listener::{Reopen, Reopening};
use radic_observer::{Context, Error, Failure};
use radic_wire::address::canonical;
use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::ids::{Incarnation, ProcessId, Rank};
use radic_wire::log::{Ends, Greeting};
use radic_wire::process::{FromNode, ProgramEnd, ToNode};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, sockopt};

use super::{Arrived, Layer, Lingering, context};
use crate::ending::{fail, sure};
use crate::fds::{self, Kind};
use crate::greeting::{self, Incoming, To};
use crate::links::{Dialed, Greeter, reset};
use crate::sockets::{Aside, ask_when_silent, dial, discard, is_given_up, listen};
use crate::{ends, sys};

/// Connections that are taken at the door at once.
const AT_ONCE: usize = 16;
/// Time between two looks of a waiting call while a link is not up, in nanoseconds: another thread may wait for a socket that was replaced.
const AGAIN_NS: u64 = 100_000_000;
/// Time that a call waits, in milliseconds, for its node to say whether a stream has ended; afterwards the answer finds the program doing something else.
const AT_ONCE_MS: u64 = 5;
/// Questions that may be open at once; the next one waits this long for its answer, in nanoseconds.
const OPEN: (usize, u64) = (1_000, 1_000_000_000);
/// Time between two looks by a program that never waits, in nanoseconds: a peer that comes back is not live before it is answered.
const LOOK_NS: u64 = 2_000_000;

impl Layer {
    /// Tells the links something, and does what they say.
    pub(crate) fn drive<T>(&mut self, input: impl FnOnce(&mut Links, &mut Context<'_>) -> Result<T, Failure>) -> T {
        let mut cx = context(&mut self.observer);
        let value = sure(input(&mut self.links, &mut cx));
        while let Some(action) = self.links.poll_action() {
            self.carry_out(action);
        }
        value
    }

    /// Ranks are lost: break their links, and return what this process keeps of their journals.
    pub(crate) fn collect(&mut self, lost: &[(Rank, Incarnation)]) -> Vec<u8> {
        self.drive(|links, cx| Ok(links.handle_collect(cx, lost)))
    }

    /// The observer may have given links up.
    pub(crate) fn break_dropped(&mut self) {
        self.drive(|links, cx| {
            links.break_dropped(cx);
            Ok(())
        });
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Tell(message) => self.tell_node(&message),
            Action::Dial(socket, door) => self.dial(socket, &door),
            Action::Greet { socket, peer, greeting } => self.greet_door(socket, peer, *greeting),
            Action::Close(socket) => self.sockets.take(socket).into_iter().for_each(sys::close_own),
            Action::Install(install) => self.install(&install),
            Action::Unplug(end) => self.unplug(end),
            Action::Restore(end) => self.restore(end),
            Action::Discard(end) => {
                self.sockets.take_aside(end).and_then(|aside| aside.socket).into_iter().for_each(discard);
            }
            Action::RefuseSends(end) => self.slot_of_end(end).into_iter().for_each(|slot| self.drop_unsent(slot)),
            Action::Finish(end) => self.slot_of_end(end).into_iter().for_each(|slot| {
                self.transmit(slot);
                self.end_lingering(slot);
            }),
            Action::Hail(end, greeting) => self.hail(end, *greeting),
            Action::Refused(error) => self.note(&format!("a connection was refused: {error}")),
        }
    }

    /// Says something to the node. If the node does not hear what it must know before the program goes on, the process ends. For
    /// all else it is enough that the next message finds that the node is gone.
    pub(crate) fn tell_node(&mut self, message: &ToNode) {
        if let Err(error) = self.node.send(message)
            && matches!(message, ToNode::Finished { .. } | ToNode::Ended { .. } | ToNode::Where { .. })
        {
            fail(&format!("its node does not hear what it says of a connection: {error}"));
        }
    }

    pub(crate) fn slot_of_end(&self, end: StreamId) -> Option<Slot> {
        self.observer.table().find_end(end.connection, end.from_opener)
    }

    pub(crate) fn end_of(&self, slot: Slot) -> Option<StreamId> {
        self.observer.table().get(slot).map(Connection::stream_out)
    }

    /// The program's descriptor of a connection, also before its accept.
    pub(crate) fn descriptor(&self, slot: Slot) -> Option<i32> {
        let connection = self.observer.table().get(slot)?;
        let arrived = || self.arrived.iter().find(|arrived| arrived.connection == connection.id && !connection.opened_here);
        connection.fd().map(|fd| fd as i32).or_else(|| connection.is_offered().then(arrived).flatten().map(|a| a.fd))
    }

    // ---- the door

    /// Opens the door, on this process's node's address, and tells the node. The one of an earlier incarnation is dead.
    pub fn open_door(&mut self) -> Result<(), Errno> {
        let ip = SocketAddr::try_from(rustix::net::getsockname(self.journal_fd())?).map_err(|_| Errno::AFNOSUPPORT)?.ip();
        let (fd, at) = listen(ip)?;
        if let Some((old, _)) = self.sockets.door.replace((fd, at)) {
            sys::close_own(old);
        }
        self.node.send(&ToNode::Door(at))
    }

    /// The address of this process's node, where its door is.
    pub fn door_ip(&self) -> Option<IpAddr> {
        self.sockets.door.as_ref().map(|(_, at)| at.ip())
    }

    /// Its port.
    pub fn door_port(&self) -> Option<u16> {
        self.sockets.door.as_ref().map(|(_, at)| at.port())
    }

    /// Fresh sockets for the program's listeners, as [`Reopening`] says: those of an earlier incarnation are dead.
    pub fn relisten(&mut self) -> Result<(), Errno> {
        let Some(ip) = self.door_ip() else { return Ok(()) };
        let mut reopening = Reopening::new();
        loop {
            match reopening.next(&self.listeners) {
                Reopen::Open(fd) => {
                    let (socket, at) = listen(ip)?;
                    self.put(fd as i32, socket.as_fd())?.into_iter().for_each(sys::close_own);
                    sys::close_own(socket);
                    reopening.handle_opened(&mut self.listeners, at);
                }
                Reopen::Share { of, fd } => {
                    self.put(fd as i32, sys::borrow(of as i32))?.into_iter().for_each(sys::close_own);
                }
                Reopen::Tell(message) => self.node.send(&message)?,
                Reopen::Over => return Ok(()),
            }
        }
    }

    fn take_visitors(&mut self) {
        for _ in 0..AT_ONCE {
            let Some((door, _)) = &self.sockets.door else { return };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(fd) = rustix::net::accept_with(door, flags).and_then(sys::high) else { return };
            let socket = self.drive(|links, cx| Ok(links.handle_visitor(cx.now)));
            self.sockets.visitors.insert(socket, Greeter { fd, incoming: Incoming::default(), called: false });
        }
    }

    /// The greeting of a caller that the program's listener has let in does not come at once: meanwhile it is one among those at the door.
    pub fn expect_greeting(&mut self, fd: OwnedFd, incoming: Incoming) {
        // Without a number for it the caller comes once more.
        if let Ok(fd) = sys::high(fd) {
            let socket = self.drive(|links, cx| Ok(links.handle_visitor(cx.now)));
            self.sockets.visitors.insert(socket, Greeter { fd, incoming, called: true });
        }
    }

    /// The address of a greeting to this incarnation of this process.
    fn to_me(&self) -> To {
        To { process: self.observer.process(), incarnation: Some(self.observer.incarnation()) }
    }

    /// The node need not know any more which process this caller is.
    fn send_off(&mut self, fd: &OwnedFd) {
        if let Some(from) = rustix::net::getpeername(fd).ok().flatten().and_then(|from| SocketAddr::try_from(from).ok()) {
            self.tell_node(&ToNode::Greeted(canonical(from)));
        }
    }

    /// Greetings of visitors. A visitor that gives its socket up while its greeting waits for the gate is no longer one.
    fn hear_visitors(&mut self) {
        let sockets: Vec<SocketId> = self.sockets.visitors.keys().copied().collect();
        for socket in sockets {
            let Some(mut visitor) = self.sockets.visitors.remove(&socket) else { continue };
            let me = To { incarnation: self.to_me().incarnation.filter(|_| !visitor.called), ..self.to_me() };
            let greeting = match self.links.has_greeted(socket) {
                true => Ok(None),
                false => visitor.incoming.read(visitor.fd.as_fd(), me, |connection| self.greeting_key(connection)),
            };
            if visitor.called && matches!(greeting, Ok(Some(_))) {
                self.send_off(&visitor.fd);
            }
            let is_dead = is_given_up(&visitor.fd);
            self.sockets.visitors.insert(socket, visitor);
            match greeting {
                Ok(Some(greeting)) => self.drive(|links, cx| links.handle_greeting(cx, socket, &greeting, is_dead)),
                Ok(None) if !is_dead => {}
                Ok(None) | Err(_) => self.drive(|links, cx| {
                    links.handle_socket_gone(cx, socket);
                    Ok(())
                }),
            }
        }
    }

    // ---- dialing

    fn dial(&mut self, socket: SocketId, door: &SocketAddr) {
        match dial(door) {
            Ok(fd) => {
                let greeter = Greeter { fd, incoming: Incoming::default(), called: false };
                self.sockets.dialed.insert(socket, Dialed { greeter, is_connected: false });
            }
            Err(_) => self.drive(|links, cx| {
                links.handle_connected(cx, socket, false);
                Ok(())
            }),
        }
    }

    /// What has become of the sockets that were dialed.
    fn look_at_dialed(&mut self) {
        let sockets: Vec<SocketId> = self.sockets.dialed.keys().copied().collect();
        for socket in sockets {
            let Some(dialed) = self.sockets.dialed.get_mut(&socket) else { continue };
            if !dialed.is_connected {
                if sys::wait_for(dialed.greeter.fd.as_fd(), PollFlags::OUT, 0).is_ok() {
                    dialed.is_connected = true;
                    let is_good = sockopt::socket_error(&dialed.greeter.fd).is_ok_and(|error| error.is_ok());
                    self.drive(|links, cx| {
                        links.handle_connected(cx, socket, is_good);
                        Ok(())
                    });
                }
            } else if self.links.awaits_answer(socket) {
                self.hear_answer(socket);
            }
        }
    }

    fn hear_answer(&mut self, socket: SocketId) {
        let Some(mut dialed) = self.sockets.dialed.remove(&socket) else { return };
        let Greeter { fd, incoming, .. } = &mut dialed.greeter;
        let answer = incoming.read(fd.as_fd(), self.to_me(), |connection| self.greeting_key(connection));
        self.sockets.dialed.insert(socket, dialed);
        match answer {
            Ok(None) => {}
            Ok(Some(answer)) => self.drive(|links, cx| links.handle_answer(cx, socket, &answer)),
            Err(_) => self.drive(|links, cx| {
                links.handle_socket_gone(cx, socket);
                Ok(())
            }),
        }
    }

    fn greet_door(&mut self, socket: SocketId, (process, incarnation): (ProcessId, Incarnation), greeting: Greeting) {
        let Some(dialed) = self.sockets.dialed.get(&socket) else { return };
        let greeting = match self.observer.table().find_end(greeting.connection, true) {
            Some(slot) if greeting.process == greeting.connection.opener => Greeting { ends: self.ends(slot), ..greeting },
            _ => greeting,
        };
        let key = self.greeting_key(&greeting.connection);
        let to = To { process, incarnation: Some(incarnation) };
        if greeting::write(dialed.greeter.fd.as_fd(), &key, to, &greeting).is_err() {
            self.drive(|links, cx| {
                links.handle_socket_gone(cx, socket);
                Ok(())
            });
        }
    }

    /// The addresses of a connection that was opened here, as the program sees them.
    pub fn ends(&self, slot: Slot) -> Option<Ends> {
        let names = self.names.get(&self.descriptor(slot)?)?;
        Some(Ends { from: names.local?, to: names.peer })
    }

    // ---- sockets behind the program's descriptors

    fn install(&mut self, install: &Install) {
        let Some(socket) = self.sockets.take(install.socket) else { return };
        let Some(slot) = self.slot_of_end(install.end) else { return sys::close_own(socket) };
        let written = install.answer.map_or(Ok(()), |answer| {
            let key = self.greeting_key(&answer.connection);
            let process = self.observer.table().get(slot).map_or(answer.process, |connection| connection.peer);
            greeting::write(socket.as_fd(), &key, To { process, incarnation: Some(install.peer) }, &answer)
        });
        self.plug(slot, socket, install);
        if let Err(error) = written {
            self.drive(|links, cx| {
                links.break_link(cx, slot, reset(error));
                Ok(())
            });
        }
    }

    /// The socket is the link of `slot` from now on.
    fn plug(&mut self, slot: Slot, socket: OwnedFd, install: &Install) {
        _ = sockopt::set_tcp_nodelay(&socket, true);
        let aside = self.sockets.take_aside(install.end).and_then(|aside| aside.socket);
        match self.descriptor(slot) {
            Some(fd) => {
                sys::copy_options(aside.as_ref().map_or(sys::borrow(fd), AsFd::as_fd), socket.as_fd());
                ask_when_silent(socket.as_fd());
                match self.put(fd, socket.as_fd()) {
                    Ok(old) => old.into_iter().for_each(discard),
                    Err(error) => fail(&format!("descriptor {fd} does not get its new link: {error}")),
                }
                sys::close_own(socket);
            }
            None if self.observer.table().get(slot).is_some_and(Connection::is_offered) => {
                self.arrive(install.end.connection, socket, install.ends);
            }
            // Closed by the program: what its peer wants once more leaves, and then the end.
            None => self.keep_lingering(slot, socket),
        }
        aside.into_iter().for_each(discard);
        self.transmit(slot);
        self.end_lingering(slot);
    }

    /// A connection that is new here has come to the door: the program gets it by its next `accept`. Until then it is out of the
    /// way of the program's descriptors: when it came is no outcome, and which numbers the program gets must not depend on it.
    fn arrive(&mut self, connection: ConnectionId, socket: OwnedFd, ends: Option<Ends>) {
        let peer = rustix::net::getpeername(&socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
        let peer = ends.map(|ends| ends.from).or(peer);
        let Some(peer) = peer else {
            // It comes again: its opener finds the link broken.
            sys::close_own(socket);
            return self.note("a connection that came again could not be taken");
        };
        let to = ends.map(|ends| ends.to);
        self.arrived.push(Arrived { connection, fd: sys::give(socket), peer, local: to, to });
    }

    /// Connections that have come and that the program can accept no more are refused. Their sockets are the library's own from
    /// then on: they end once their end may leave.
    pub(crate) fn refuse_callers(&mut self) {
        let Layer { observer, arrived, listeners, .. } = self;
        let is_refused = |of: &Arrived, connection| of.connection == connection && listeners.is_closed(of.to);
        sure(observer.refuse_callers(|connection| arrived.iter().any(|of| is_refused(of, connection))));
        while let Some(at) = self.arrived.iter().position(|of| self.is_over(of.connection)) {
            let of = self.arrived.swap_remove(at);
            self.take_back(of);
        }
    }

    /// Whether a connection that was accepted here, or was to be, is closed or forgotten.
    fn is_over(&self, connection: ConnectionId) -> bool {
        let table = self.observer.table();
        let slot = table.find_end(connection, false);
        slot.and_then(|slot| table.get(slot)).is_none_or(Connection::is_closed)
    }

    /// The program gets it no more. Its number may be one of those that the program's descriptors have.
    fn take_back(&mut self, of: Arrived) {
        let (socket, is_own) = (sys::own(of.fd), fds::kind(of.fd) == Kind::Own);
        let Some(slot) = self.observer.table().find_end(of.connection, false) else { return sys::close_own(socket) };
        match if is_own { Ok(socket) } else { sys::high(socket) } {
            Ok(socket) => self.keep_lingering(slot, socket),
            Err(error) => self.drive(|links, cx| {
                links.break_link(cx, slot, reset(error));
                Ok(())
            }),
        }
    }

    /// The socket of a link that is broken goes behind a placeholder, dead: other threads that wait for it wake up.
    fn unplug(&mut self, end: StreamId) {
        let Some(slot) = self.slot_of_end(end) else { return };
        self.unsent.retain(|waiting| *waiting != slot);
        self.drop_lingering(slot);
        self.set_aside(slot, end);
        let aside = self.sockets.aside.iter().find(|aside| aside.end == end);
        if let Some(socket) = aside.and_then(|aside| aside.socket.as_ref()) {
            _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }

    fn set_aside(&mut self, slot: Slot, end: StreamId) {
        if self.sockets.aside.iter().all(|aside| aside.end != end)
            && let Some(fd) = self.descriptor(slot)
        {
            let socket = self.put_aside(fd);
            self.sockets.aside.push(Aside { end, socket });
        }
    }

    /// The program's socket was the right one: it has it back.
    fn restore(&mut self, end: StreamId) {
        let socket = self.sockets.take_aside(end).and_then(|aside| aside.socket);
        let Some(slot) = self.slot_of_end(end) else { return socket.into_iter().for_each(discard) };
        match (socket, self.descriptor(slot)) {
            (Some(socket), Some(fd)) => {
                match self.put(fd, socket.as_fd()) {
                    Ok(old) => old.into_iter().for_each(sys::close_own),
                    Err(error) => fail(&format!("descriptor {fd} does not get its socket back: {error}")),
                }
                sys::close_own(socket);
            }
            // Closed by the program meanwhile.
            (Some(socket), None) => self.keep_lingering(slot, socket),
            (None, _) => {}
        }
        // What was sent meanwhile.
        if !self.is_refused(slot) {
            self.transmit(slot);
        }
        self.end_lingering(slot);
    }

    fn keep_lingering(&mut self, slot: Slot, socket: OwnedFd) {
        self.drop_lingering(slot);
        self.lingering.push(Lingering { slot, fd: socket });
    }

    fn drop_lingering(&mut self, slot: Slot) {
        while let Some(at) = self.lingering.iter().position(|lingering| lingering.slot == slot) {
            discard(self.lingering.swap_remove(at).fd);
        }
    }

    // ---- ends

    /// The link's socket ended. The program sees nothing of it before it is known what that means. If the node does not say so at
    /// once, a placeholder stands in for the socket until it does.
    pub fn link_ended(&mut self, slot: Slot, why: Ending) {
        if self.replayer.is_some() {
            return self.handle_broken(slot, Errno::CONNRESET);
        }
        self.unsent.retain(|waiting| *waiting != slot);
        let Some(end) = self.end_of(slot) else { return };
        let unread = self.descriptor(slot).map_or(0, |fd| self.unread(slot, sys::borrow(fd)));
        if self.drive(|links, cx| Ok(links.handle_ended(cx, slot, why, unread))) {
            self.await_answer(end);
            if self.links.is_in_question(end)
                && let Some(slot) = self.slot_of_end(end)
            {
                self.set_aside(slot, end);
            }
        }
    }

    fn await_answer(&mut self, end: StreamId) {
        let limit = if self.links.questions() > OPEN.0 { OPEN.1 } else { AT_ONCE_MS * 1_000_000 };
        let deadline = sys::now() + limit;
        while self.links.is_in_question(end) && sys::now() < deadline {
            _ = sys::wait_for(self.node.fd(), PollFlags::IN, 1);
            self.hear_node();
        }
    }

    /// Before the program is told that a descriptor has a hang-up, an end or an error: what is it? `is_error`: by what the kernel says.
    pub fn examine(&mut self, fd: i32, is_error: bool) {
        let fd = self.primary(fd);
        let Ok(slot) = self.observer.table().slot_of(fd as u32) else { return };
        let Some(end) = self.end_of(slot) else { return };
        if self.links.is_down(end) || self.is_shut(slot) {
            return;
        }
        if !is_error {
            return self.link_ended(slot, Ending::End);
        }
        if !self.is_refused(slot) {
            let error = sockopt::socket_error(sys::borrow(fd)).ok().and_then(Result::err);
            self.link_ended(slot, reset(error.unwrap_or(Errno::CONNRESET)));
        }
    }

    /// The program asks again and again how much it could receive (FIONREAD), and makes no call that would find that the link's socket has ended.
    pub fn look_for_end(&mut self, fd: i32) {
        let looked = rustix::net::recv(sys::borrow(fd), &mut [0; 1][..], RecvFlags::DONTWAIT | RecvFlags::PEEK);
        match looked {
            _ if self.replayer.is_some() => {}
            Ok((_, 0)) => self.examine(fd, false),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.examine(fd, true),
        }
    }

    /// Whether the program has been told that the stream on `fd` has ended: it stays readable.
    pub fn is_at_end(&self, slot: Slot) -> bool {
        let incoming = self.observer.table().get(slot).map(Connection::incoming);
        incoming.is_some_and(|incoming| incoming.finish().is_some_and(|finish| finish < incoming.wanted()))
    }

    /// Whether the program has shut down reading on this connection: what the socket says of an end is its own doing, no end of the stream.
    pub fn is_shut(&self, slot: Slot) -> bool {
        self.observer.table().get(slot).is_some_and(|connection| connection.incoming().is_shut())
    }

    /// Tells the node where an outgoing stream ends, before its end can leave.
    pub fn tell_finished(&mut self, slot: Slot, closed: bool) {
        self.drive(|links, cx| {
            links.tell_finished(cx, slot, closed);
            Ok(())
        });
    }

    /// The program has got a connection that has no link yet.
    pub(crate) fn handle_taken(&mut self, slot: Slot) {
        if self.replayer.is_none() {
            self.drive(|links, cx| {
                links.handle_taken(cx, slot);
                Ok(())
            });
        }
    }

    /// Tells a peer, by the nodes, that it may forget a connection.
    pub fn say_forgettable(&mut self, word: Forgettable) {
        self.drive(|links, _| {
            links.say_forgettable(word);
            Ok(())
        });
    }

    /// What is sent is refused from now on: what waits for the socket leaves no more.
    pub fn drop_unsent(&mut self, slot: Slot) {
        self.unsent.retain(|waiting| *waiting != slot);
        self.drop_lingering(slot);
    }

    /// Whether what is sent on `slot` is refused.
    pub fn is_refused(&self, slot: Slot) -> bool {
        self.observer.table().get(slot).is_some_and(|connection| connection.outgoing().is_refused())
    }

    /// `Place`, `Final`, `Restarted`.
    pub fn handle_link_message(&mut self, message: &FromNode) {
        let unread = match message {
            FromNode::Final { ask, .. } => self.links.asks_about(*ask).map_or(0, |end| self.unread_of(end)),
            _ => 0,
        };
        self.drive(|links, cx| links.handle_node(cx, message, unread));
        self.close_forgotten();
    }

    /// Bytes that the socket of a connection has received, wherever it is, and nothing has taken.
    fn unread_of(&self, end: StreamId) -> u64 {
        let Some(slot) = self.slot_of_end(end) else { return 0 };
        let aside = self.sockets.aside.iter().find(|aside| aside.end == end).and_then(|aside| aside.socket.as_ref());
        let fd = aside.map(AsRawFd::as_raw_fd).or_else(|| self.descriptor(slot));
        fd.map_or(0, |fd| self.unread(slot, sys::borrow(fd)))
    }

    // ---- looking after them

    /// In a process that has come back: no socket of its image is one any more. Tells the node again what it must know; all links will be made again.
    pub fn break_all(&mut self) {
        self.sockets.close_all();
        self.drive(|links, cx| {
            links.handle_restart(cx);
            Ok(())
        });
    }

    /// Looks after what is not up.
    pub fn tend_links(&mut self) {
        self.sockets.tended = sys::tick();
        if self.replayer.is_some() {
            return;
        }
        self.take_visitors();
        self.hear_visitors();
        self.look_at_dialed();
        self.look_at_under_way(false);
        self.refuse_callers();
        self.drive(|links, cx| links.handle_timeout(cx));
        // G1: a greeting says what was received. What precedes it is shipped now, and its time comes with the acknowledgement.
        if (self.links.waits_at_gate() || self.observer.table().has_refused()) && self.observer.gate().is_some() {
            self.ship();
            self.hear_protector(false);
            self.drive(|links, cx| links.handle_timeout(cx));
        }
    }

    /// Something was received or sent: a program that never waits looks now and then.
    pub fn tend_links_in_passing(&mut self) {
        if self.is_time_to_tend() {
            self.hear_node();
            self.tend_links();
        }
    }

    /// Whether links were not looked after for a while.
    #[inline]
    pub fn is_time_to_tend(&self) -> bool {
        self.is_time_to_tend_at(sys::tick())
    }

    /// The same, of what [`sys::tick`] says.
    #[inline]
    pub fn is_time_to_tend_at(&self, tick: u64) -> bool {
        tick - self.sockets.tended >= LOOK_NS
    }

    /// What waiting calls listen to.
    pub fn awaited_of_links(&self) -> impl Iterator<Item = (i32, PollFlags)> {
        let door = self.sockets.door.iter().map(|(fd, _)| (fd.as_raw_fd(), PollFlags::IN));
        let silent = self.sockets.visitors.iter().filter(|(socket, _)| !self.links.has_greeted(**socket));
        let visitors = silent.map(|(_, visitor)| (visitor.fd.as_raw_fd(), PollFlags::IN));
        let dialed = self.sockets.dialed.iter().filter_map(|(socket, dialed)| {
            let events = match dialed.is_connected {
                false => PollFlags::OUT,
                true if self.links.awaits_answer(*socket) => PollFlags::IN,
                true => return None, // The gate is shut, and the protector is listened to.
            };
            Some((dialed.greeter.fd.as_raw_fd(), events))
        });
        door.chain(visitors).chain(dialed).chain(self.awaited_of_under_way())
    }

    /// When something of the links or the session is due, in the time of [`sys::now`]; none: only events matter.
    pub fn due(&self) -> Option<u64> {
        let machines = self.links.poll_timeout().into_iter().chain(self.session.poll_timeout());
        // Another thread may wait for a socket that was replaced.
        let soon = self.links.is_any_down().then(|| sys::now() + AGAIN_NS);
        machines.map(|due| due.as_nanos() as u64).chain(soon).min()
    }

    // ---- the end of the process

    /// All of the program's connections end, as if it had closed them.
    pub fn finish_all(&mut self) {
        let open: Vec<(i32, Slot)> =
            self.observer.table().iter().filter_map(|(slot, connection)| Some((connection.fd()? as i32, slot))).collect();
        for (fd, slot) in open {
            self.finish(fd, slot, true);
        }
        let output = self.outputs.ends();
        let end = ends::code().map(|code| ProgramEnd { code, output });
        self.drive_session(|session, cx| {
            session.handle_leaving(cx.now, end);
            Ok(())
        });
    }

    /// Ends the outgoing direction, and, if `closed`, the other one. The node knows before the peer can.
    pub(crate) fn finish(&mut self, fd: i32, slot: Slot, closed: bool) {
        if closed {
            self.handle_closing(slot);
        }
        let end = |layer: &mut Layer| -> Result<bool, Error> { Ok(layer.observer.finish(fd as u32)?.is_none()) };
        while !sure(end(self)) {
            self.pass_gate();
        }
        self.tell_finished(slot, closed);
        self.transmit(slot);
    }
}
