//! Links: the socket that a connection has now, and what is done when that is no more. The program's descriptor stays; what is behind it is replaced.
//!
//! - *The door*: a listening socket of the layer's own, where peers dial this process anew. Whatever call comes by looks after it ([`Layer::tend`]).
//! - *A socket ends*: is it the end of the stream, or has the link broken? The node of the sender knows: a process tells its own node where it ends a
//!   stream before the end leaves. Until the answer comes the program sees a connection on which nothing happens.
//! - *A link is broken*: behind the descriptor is a placeholder, never readable, always writable. The opener of the connection dials the door of its
//!   peer; if its peer noticed first, that one calls at the opener's door to say so (a greeting of somebody who is not the opener).
//! - Greetings and offsets are the observer's business; here are only sockets, questions and times. Everything is bounded and nothing waits, but for
//!   an answer of the own node that is nearly always there at once.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use radic_observer::connection::{Connection, Forgettable, Link, Slot, Welcome};
use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::log::{Ends, Greeting, ToProtector};
use radic_wire::process::{FromNode, Place, StreamEnd, ToNode};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, sockopt};

use crate::fds;
use crate::greeting::{self, Incoming, To};
use crate::layer::{Arrived, Layer, Lingering, fail, fail_with, sure};
use crate::ops::ready;
use crate::sys;

/// Connections at the door that have not said their greeting: one more, and the oldest goes.
const VISITORS: usize = 64;
/// Time for a visitor's greeting, in nanoseconds: it is written as soon as the connection is there.
const VISIT_NS: u64 = 5_000_000_000;
/// Links that are dialed at once; others wait.
const DIALS: usize = 64;
/// Time for a door to take a connection, in nanoseconds.
const CONNECT_NS: u64 = 5_000_000_000;
/// Time after which it is asked whether a peer that has not answered is still where it was dialed. It may compute for an hour.
const ANSWER_NS: u64 = 5_000_000_000;
/// Time between two attempts, in nanoseconds.
const AGAIN_NS: u64 = 100_000_000;
/// Time between two looks whether it is a link's turn to be dialed, in nanoseconds.
const TURN_NS: u64 = 10_000_000;
/// Time between two looks at something that others are to bring about.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Time that a call waits, in milliseconds, for its node to say whether a stream has ended; afterwards the answer finds the program doing something else.
const AT_ONCE_MS: u64 = 5;
/// Attempts to reach the peer of a connection that the program has closed. A peer that has forgotten it, too, does not answer.
const CLOSED_ATTEMPTS: u32 = 100;
/// Time between two looks by a program that never waits, in nanoseconds: a peer that comes back does not live before it is answered.
const LOOK_NS: u64 = 2_000_000;

/// How a socket has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// In order: the other side has shut it down.
    End,
    /// By an error.
    Reset(Errno),
}

/// What is done about a socket that has ended.
#[derive(Debug)]
enum Stage {
    /// Has the stream ended, or is the link broken? The node was asked. Is the program's socket put aside?
    Asked { ask: u64, parked: bool },
    /// The link is broken; the next step is due then.
    Down { due: u64 },
    /// The node was asked where the peer is.
    Placing { ask: u64, since: u64 },
    /// A socket connects to the peer's door, in that life of it.
    Connecting { socket: OwnedFd, door: SocketAddr, life: Incarnation, deadline: u64 },
    /// The greeting was written, the answer has not come.
    Greeted { socket: OwnedFd, door: SocketAddr, answer: Box<Incoming>, deadline: u64, ask: Option<u64> },
    /// The peer has left: the node was asked whether it had ended the stream.
    Parting { ask: u64 },
    /// The peer has left, and nothing more will come.
    Over,
}

/// One link that is not up, or in question.
#[derive(Debug)]
struct Repair {
    /// Names this end of the connection: the stream that goes out.
    end: StreamId,
    peer: ProcessId,
    why: Ending,
    stage: Stage,
    /// The socket that has ended. It is dead, or put aside; its options are those of the next one.
    socket: Option<OwnedFd>,
    attempts: u32,
}

impl Repair {
    fn is_dialing(&self) -> bool {
        matches!(self.stage, Stage::Connecting { .. } | Stage::Greeted { .. })
    }

    /// Whether the program's descriptor is a placeholder.
    fn is_away(&self) -> bool {
        !matches!(self.stage, Stage::Asked { parked: false, .. })
    }

    fn due(&self) -> u64 {
        match self.stage {
            Stage::Down { due } => due,
            Stage::Placing { since, .. } => since + PATIENCE_NS,
            Stage::Connecting { deadline, .. } | Stage::Greeted { deadline, .. } => deadline,
            Stage::Asked { .. } | Stage::Parting { .. } | Stage::Over => u64::MAX,
        }
    }

    fn close(self) {
        match self.stage {
            Stage::Connecting { socket, .. } | Stage::Greeted { socket, .. } => sys::close_own(socket),
            _ => {}
        }
        if let Some(socket) = self.socket {
            discard(socket);
        }
    }
}

/// Somebody at the door.
#[derive(Debug)]
struct Visitor {
    fd: OwnedFd,
    deadline: u64,
    incoming: Incoming,
    greeting: Option<Greeting>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Links {
    door: Option<(OwnedFd, SocketAddr)>,
    visitors: VecDeque<Visitor>,
    repairs: Vec<Repair>,
    /// Something is as the waiting call does not know yet.
    changed: bool,
    /// This life began with a restart: connections that replay makes, and those that it gives up, have no link.
    catching_up: bool,
    looked: u64,
    /// Words that a process has come back.
    returned: u64,
    /// When everything was looked after last.
    tended: u64,
    /// Since the process is at its end.
    leaving: Option<Leaving>,
}

/// The end of the process.
#[derive(Debug)]
struct Leaving {
    pause: u64,
    next: u64,
    /// The node knows that nothing more is wanted ([`ToNode::Closing`]).
    told: bool,
}

impl Links {
    /// Whether the program has ended.
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    fn find(&self, end: StreamId) -> Option<usize> {
        self.repairs.iter().position(|repair| repair.end == end)
    }

    /// Whether something has changed since this was asked last.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// How often it was said that a process has come back.
    pub fn returned(&self) -> u64 {
        self.returned
    }

    /// Whether any link is not up, or in question.
    pub fn is_any_down(&self) -> bool {
        !self.repairs.is_empty()
    }

    /// The layer's sockets here, to be moved to other numbers.
    pub fn own(&mut self) -> impl Iterator<Item = &mut OwnedFd> {
        let door = self.door.iter_mut().map(|(fd, _)| fd);
        let visitors = self.visitors.iter_mut().map(|visitor| &mut visitor.fd);
        let repairs = self.repairs.iter_mut().flat_map(|repair| {
            let dialed = match &mut repair.stage {
                Stage::Connecting { socket, .. } | Stage::Greeted { socket, .. } => Some(socket),
                _ => None,
            };
            dialed.into_iter().chain(&mut repair.socket)
        });
        door.chain(visitors).chain(repairs)
    }

    /// What waiting calls listen to.
    pub fn awaited(&self) -> impl Iterator<Item = (i32, PollFlags)> {
        let door = self.door.iter().map(|(fd, _)| (fd.as_raw_fd(), PollFlags::IN));
        let silent = self.visitors.iter().filter(|visitor| visitor.greeting.is_none());
        let visitors = silent.map(|visitor| (visitor.fd.as_raw_fd(), PollFlags::IN));
        let dialed = self.repairs.iter().filter_map(|repair| match &repair.stage {
            Stage::Connecting { socket, .. } => Some((socket.as_raw_fd(), PollFlags::OUT)),
            Stage::Greeted { socket, .. } => Some((socket.as_raw_fd(), PollFlags::IN)),
            _ => None,
        });
        door.chain(visitors).chain(dialed)
    }
}

/// Throws away a socket that nobody may send on any more: what its kernel still has is in the outbox.
fn discard(socket: OwnedFd) {
    _ = rustix::net::shutdown(&socket, Shutdown::Both);
    sys::close_own(socket);
}

/// Bytes that a socket has received and nobody has taken.
fn unread(fd: i32) -> u64 {
    rustix::io::ioctl_fionread(sys::borrow(fd)).unwrap_or(0)
}

/// Whether the other side of a new socket has given it up already.
fn is_given_up(fd: &OwnedFd) -> bool {
    !matches!(rustix::net::recv(fd, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT), Ok((_, 1..)) | Err(Errno::AGAIN))
}

fn socket_for(address: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    sys::high(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

/// A socket to dial with. Whoever dials waits for an answer and says nothing more: if the other side has given the connection up, and the word of that (a reset is
/// never said twice) was lost, or if it was the only one to be reset, nobody would ever tell. So its kernel is asked. One whose program computes for an hour answers all the same.
fn dialer(door: &SocketAddr) -> Result<OwnedFd, Errno> {
    const IDLE: Duration = Duration::from_secs(1);
    const PROBES: u32 = 5;
    let socket = socket_for(door)?;
    let asks = sockopt::set_socket_keepalive(&socket, true)
        .and_then(|()| sockopt::set_tcp_keepidle(&socket, IDLE))
        .and_then(|()| sockopt::set_tcp_keepintvl(&socket, IDLE))
        .and_then(|()| sockopt::set_tcp_keepcnt(&socket, PROBES));
    match asks {
        Ok(()) => Ok(socket),
        Err(error) => {
            sys::close_own(socket);
            Err(error)
        }
    }
}

/// What stands for a socket that is gone: nobody can send to it, and it always takes.
fn placeholder() -> Result<OwnedFd, Errno> {
    sys::high(rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

/// The peer of whom a listener of this process may hear first.
fn listen(ip: IpAddr) -> Result<(OwnedFd, SocketAddr), Errno> {
    let fd = socket_for(&SocketAddr::new(ip, 0))?;
    rustix::net::bind(&fd, &SocketAddr::new(ip, 0))?;
    rustix::net::listen(&fd, 1024)?;
    let at = SocketAddr::try_from(rustix::net::getsockname(&fd)?).map_err(|_| Errno::AFNOSUPPORT)?;
    Ok((fd, at))
}

/// What of a connection the decisions here need.
#[derive(Clone, Copy)]
struct End {
    name: StreamId,
    incoming: StreamId,
    peer: ProcessId,
    /// The program's descriptor, also before its accept.
    fd: Option<i32>,
    opened_here: bool,
    closed: bool,
    wanted: u64,
    finish: Option<u64>,
}

impl Layer {
    fn end(&self, slot: Slot) -> Option<End> {
        let connection: &Connection = self.observer.table().get(slot)?;
        let arrived = || self.arrived.iter().find(|arrived| arrived.connection == connection.id && !connection.opened_here);
        let fd = connection.fd().map(|fd| fd as i32).or_else(|| connection.is_offered().then(arrived).flatten().map(|a| a.fd));
        Some(End {
            name: connection.stream_out(),
            incoming: connection.stream_in(),
            peer: connection.peer,
            fd,
            opened_here: connection.opened_here,
            closed: connection.is_closed(),
            wanted: connection.incoming().wanted(),
            finish: connection.incoming().finish(),
        })
    }

    fn slot_of_end(&self, end: StreamId) -> Option<Slot> {
        self.observer.table().find_end(end.connection, end.from_opener)
    }

    // ---- the door

    /// Opens the door, on this process's node's address, and tells the node. The one of an earlier life is dead.
    pub fn open_door(&mut self) -> Result<(), Errno> {
        let ip = SocketAddr::try_from(rustix::net::getsockname(self.journal_fd())?).map_err(|_| Errno::AFNOSUPPORT)?.ip();
        let (fd, at) = listen(ip)?;
        if let Some((old, _)) = self.links.door.replace((fd, at)) {
            sys::close_own(old);
        }
        self.node.send(&ToNode::Door(at))
    }

    /// The address of this process's node, where its door is.
    pub fn door_ip(&self) -> Option<IpAddr> {
        self.links.door.as_ref().map(|(_, at)| at.ip())
    }

    /// Its port.
    pub fn door_port(&self) -> Option<u16> {
        self.links.door.as_ref().map(|(_, at)| at.port())
    }

    /// Fresh sockets for the program's listeners: those of an earlier life are dead. The node is told where each listens now.
    pub fn relisten(&mut self) -> Result<(), Errno> {
        let Some(ip) = self.door_ip() else { return Ok(()) };
        let listeners = self.listeners.clone();
        let mut done: Vec<(i32, SocketAddr)> = Vec::new();
        for (fd, address) in listeners {
            let at = match done.iter().find(|(known, _)| *known == fd) {
                Some((_, at)) => *at,
                None => {
                    let (socket, at) = listen(ip)?;
                    self.put(fd, socket.as_fd())?.into_iter().for_each(sys::close_own);
                    sys::close_own(socket);
                    done.push((fd, at));
                    at
                }
            };
            self.node.send(&ToNode::ListeningAt { address, at })?;
        }
        Ok(())
    }

    fn answer_door(&mut self) {
        const AT_ONCE: usize = 16;
        let Some((door, _)) = &self.links.door else { return };
        let (now, me) = (sys::now(), self.to_me());
        for _ in 0..AT_ONCE {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(fd) = rustix::net::accept_with(door, flags).and_then(sys::high) else { break };
            let visitor = Visitor { fd, deadline: now + VISIT_NS, incoming: Incoming::default(), greeting: None };
            self.links.visitors.push_back(visitor);
        }
        while self.links.visitors.len() > VISITORS {
            self.links.visitors.pop_front().into_iter().for_each(|visitor| sys::close_own(visitor.fd));
        }
        for _ in 0..self.links.visitors.len() {
            let Some(mut visitor) = self.links.visitors.pop_front() else { break };
            if visitor.greeting.is_none() {
                match visitor.incoming.read(visitor.fd.as_fd(), me, |connection| self.greeting_key(connection)) {
                    Ok(greeting) => visitor.greeting = greeting,
                    Err(_) => {
                        sys::close_own(visitor.fd);
                        continue;
                    }
                }
            }
            match visitor.greeting {
                // G1: the answer says what was received.
                Some(greeting) if self.is_gate_open() => self.welcome(visitor.fd, &greeting),
                _ if now > visitor.deadline && visitor.greeting.is_none() => sys::close_own(visitor.fd),
                _ => self.links.visitors.push_back(visitor),
            }
        }
    }

    /// What is said to this process in this life.
    fn to_me(&self) -> To {
        To { process: self.observer.process(), life: Some(self.observer.incarnation()) }
    }

    /// Whether something may leave; if not, what precedes is on its way, and the answer wakes up whoever waits.
    fn is_gate_open(&mut self) -> bool {
        if self.observer.gate().is_some() {
            self.ship();
            self.hear_protector(false);
        }
        self.observer.gate().is_none()
    }

    /// A visitor has said who it is.
    fn welcome(&mut self, socket: OwnedFd, hello: &Greeting) {
        if hello.process != hello.connection.opener {
            sys::close_own(socket);
            return self.handle_call(hello);
        }
        if is_given_up(&socket) {
            return sys::close_own(socket);
        }
        let known = self.observer.table().find_end(hello.connection, false).is_some();
        match self.observer.handle_greeting(hello) {
            Ok(Welcome::Refuse) => sys::close_own(socket),
            Ok(Welcome::Forgotten) => {
                sys::close_own(socket);
                self.say_forgettable(Forgettable { connection: hello.connection, peer: hello.process, for_good: false });
            }
            Ok(Welcome::Link(slot, answer)) => {
                let key = self.greeting_key(&hello.connection);
                let to = To { process: hello.process, life: Some(hello.incarnation) };
                let written = answer.map_or(Ok(()), |answer| greeting::write(socket.as_fd(), &key, to, &answer));
                self.adopt(slot, socket, hello.ends);
                if let Err(error) = written {
                    self.break_link(slot, Ending::Reset(error));
                }
            }
            Err(error) if known => fail_with(&error),
            // Of a program that this process ran before (exec), or more than there is room for.
            Err(error) => {
                self.note(&format!("a connection was refused: {error}"));
                sys::close_own(socket);
            }
        }
    }

    /// The peer of a connection that was opened here says that its link is broken.
    fn handle_call(&mut self, hello: &Greeting) {
        let Some(slot) = self.observer.table().find_end(hello.connection, true) else {
            if let Some(word) = self.observer.forgotten(hello.connection, hello.process) {
                self.say_forgettable(word);
            }
            return;
        };
        let connection = self.observer.table().get(slot).filter(|connection| connection.peer == hello.process);
        let Some(connection) = connection.filter(|connection| hello.incarnation >= connection.peer_incarnation()) else { return };
        // It may speak of a link that was replaced since.
        let is_of_now =
            connection.attempt().is_none_or(|(life, attempt)| life != self.observer.incarnation() || attempt == hello.attempt);
        let (link, end) = (connection.link(), connection.stream_out());
        match self.links.find(end) {
            Some(at) if matches!(self.links.repairs[at].stage, Stage::Down { .. }) => {
                self.links.repairs[at].stage = Stage::Down { due: 0 }
            }
            Some(at) if !matches!(self.links.repairs[at].stage, Stage::Asked { .. }) => {}
            _ if link == Link::Up && is_of_now => self.break_link(slot, Ending::Reset(Errno::CONNRESET)),
            _ => {}
        }
    }

    // ---- sockets behind descriptors

    /// Another socket for the descriptors of what is on `primary`. The one before, if it was open.
    pub(crate) fn put(&mut self, primary: i32, new: rustix::fd::BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
        let old = match rustix::io::fcntl_dupfd_cloexec(sys::borrow(primary), 3) {
            Ok(old) => Some(sys::high(old)?),
            Err(Errno::BADF) => None,
            Err(error) => return Err(error),
        };
        let flags = old.as_ref().and_then(|old| rustix::fs::fcntl_getfl(old).ok());
        let blocking = flags.map_or(fds::is_blocking(primary), |flags| !flags.contains(rustix::fs::OFlags::NONBLOCK));
        rustix::io::ioctl_fionbio(new, !blocking)?;
        if self.observer.table().slot_of(primary as u32).is_ok_and(|slot| self.is_shut(slot)) {
            // ENOTCONN: its peer is gone already, and nothing comes from there in any case.
            _ = rustix::net::shutdown(new, Shutdown::Read);
        }
        let aliases: Vec<i32> = self.aliases.iter().filter(|(_, of)| *of == primary).map(|(alias, _)| *alias).collect();
        for fd in std::iter::once(primary).chain(aliases) {
            ready::leaving(fd);
            sys::replace(new, fd)?;
            ready::replaced(fd);
        }
        Ok(old)
    }

    /// Puts a placeholder behind the descriptor of a connection. What was there.
    fn put_away(&mut self, fd: i32) -> Option<OwnedFd> {
        let put = placeholder().and_then(|new| {
            // Times that the program has set for its calls are asked of the descriptor.
            sys::copy_times(sys::borrow(fd), new.as_fd());
            let old = self.put(fd, new.as_fd());
            sys::close_own(new);
            old
        });
        match put {
            Ok(old) => old,
            Err(error) => fail(&format!("there is no placeholder for descriptor {fd}, whose link is broken: {error}")),
        }
    }

    /// The socket is the link of `slot` from now on.
    fn adopt(&mut self, slot: Slot, socket: OwnedFd, ends: Option<Ends>) {
        let Some(end) = self.end(slot) else { return sys::close_own(socket) };
        _ = sockopt::set_tcp_nodelay(&socket, true);
        let repair = self.links.find(end.name).map(|at| self.links.repairs.swap_remove(at));
        let offered = self.observer.table().get(slot).is_some_and(Connection::is_offered);
        match end.fd {
            Some(fd) => {
                let model = repair.as_ref().and_then(|repair| repair.socket.as_ref());
                sys::copy_options(model.map_or(sys::borrow(fd), AsFd::as_fd), socket.as_fd());
                match self.put(fd, socket.as_fd()) {
                    Ok(old) => old.into_iter().for_each(discard),
                    Err(error) => fail(&format!("descriptor {fd} does not get its new link: {error}")),
                }
                sys::close_own(socket);
            }
            None if offered => self.arrive(end.name.connection, socket, ends),
            // Closed by the program: what its peer wants once more leaves, and then the end.
            None => self.keep_lingering(slot, socket),
        }
        repair.into_iter().for_each(Repair::close);
        self.links.changed = true;
        self.transmit(slot);
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

    /// A connection that is new here has come to the door: the program gets it by its next `accept`. Until then it is out of the way of the program's descriptors:
    /// when it came is no outcome, and which numbers the program gets must not depend on it.
    fn arrive(&mut self, connection: ConnectionId, socket: OwnedFd, ends: Option<Ends>) {
        let peer = rustix::net::getpeername(&socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
        let peer = ends.map(|ends| ends.from).or(peer);
        let Some(peer) = peer else {
            // It comes again: its opener finds the link broken.
            sys::close_own(socket);
            return self.note("a connection that came again could not be taken");
        };
        self.arrived.push(Arrived { connection, fd: sys::give(socket), peer, local: ends.map(|ends| ends.to) });
    }

    // ---- ends

    /// The socket of `slot` has ended, in one way or the other. The program sees nothing of it before it is known what that means.
    pub fn link_ended(&mut self, slot: Slot, why: Ending) {
        if self.replayer.is_some() {
            return self.handle_broken(slot, Errno::CONNRESET);
        }
        self.unsent.retain(|waiting| *waiting != slot);
        let Some(end) = self.end(slot) else { return };
        if self.links.find(end.name).is_some() {
            return;
        }
        let there = end.wanted + end.fd.map_or(0, unread);
        if end.finish.is_some_and(|finish| finish <= there) && (why == Ending::End || self.broken(slot).is_some()) {
            return;
        }
        let ask = self.node.number();
        let question = ToNode::Ended { ask, stream: end.incoming, sender: end.peer };
        if let Err(error) = self.node.send(&question) {
            fail(&format!("its node does not learn that a socket has ended: {error}"));
        }
        let stage = Stage::Asked { ask, parked: false };
        self.links.repairs.push(Repair { end: end.name, peer: end.peer, why, stage, socket: None, attempts: 0 });
        self.await_answer(end.name);
        let asked = |repair: &&mut Repair| repair.end == end.name && matches!(repair.stage, Stage::Asked { .. });
        if self.links.repairs.iter_mut().find(asked).is_some() {
            let old = end.fd.and_then(|fd| self.put_away(fd));
            if let Some(repair) = self.links.repairs.iter_mut().find(asked) {
                repair.socket = old;
                repair.stage = Stage::Asked { ask, parked: true };
            }
        }
    }

    fn await_answer(&mut self, end: StreamId) {
        /// Questions that may be open at once; the next one waits for its answer in any case.
        const OPEN: usize = 1_000;
        let many = self.links.repairs.iter().filter(|repair| matches!(repair.stage, Stage::Asked { .. })).count() > OPEN;
        let deadline = sys::now() + if many { PATIENCE_NS } else { AT_ONCE_MS * 1_000_000 };
        let asked = |layer: &Layer| {
            layer.links.repairs.iter().any(|repair| repair.end == end && matches!(repair.stage, Stage::Asked { .. }))
        };
        while asked(self) && sys::now() < deadline {
            _ = sys::wait_for(self.node.fd(), PollFlags::IN, 1);
            self.hear_node();
        }
    }

    /// Before the program is told that a descriptor has a hang-up, an end or an error: what is it? `why`: by what the kernel says.
    pub fn examine(&mut self, fd: i32, is_error: bool) {
        let fd = self.primary(fd);
        let Ok(slot) = self.observer.table().slot_of(fd as u32) else { return };
        let Some(end) = self.end(slot) else { return };
        if self.links.find(end.name).is_some() || self.is_shut(slot) {
            return;
        }
        if !is_error {
            return self.link_ended(slot, Ending::End);
        }
        if self.broken(slot).is_none() {
            let error = sockopt::socket_error(sys::borrow(fd)).ok().and_then(Result::err);
            self.link_ended(slot, Ending::Reset(error.unwrap_or(Errno::CONNRESET)));
        }
    }

    /// Whether a placeholder is behind `fd`.
    pub fn is_away(&self, fd: i32) -> bool {
        if self.links.repairs.is_empty() {
            return false;
        }
        let slot = self.observer.table().slot_of(self.primary(fd) as u32);
        let end = slot.ok().and_then(|slot| self.observer.table().get(slot)).map(Connection::stream_out);
        self.links.repairs.iter().any(|repair| Some(repair.end) == end && repair.is_away())
    }

    /// Whether the program has been told that the stream on `fd` has ended: it stays readable.
    pub fn is_at_end(&self, slot: Slot) -> bool {
        self.end(slot).is_some_and(|end| end.finish.is_some_and(|finish| finish < end.wanted))
    }

    /// The descriptor that has the options of the connection on `fd`.
    pub fn options_of(&self, fd: i32) -> i32 {
        if self.links.repairs.is_empty() {
            return fd;
        }
        let slot = self.observer.table().slot_of(self.primary(fd) as u32);
        let end = slot.ok().and_then(|slot| self.observer.table().get(slot)).map(Connection::stream_out);
        let repair = self.links.repairs.iter().find(|repair| Some(repair.end) == end && repair.is_away());
        repair.and_then(|repair| repair.socket.as_ref()).map_or(fd, AsRawFd::as_raw_fd)
    }

    /// Whether the program has shut down reading on this connection: what the socket says of an end is its own doing, no end of the stream.
    pub fn is_shut(&self, slot: Slot) -> bool {
        self.observer.table().get(slot).is_some_and(|connection| connection.incoming().is_shut())
    }

    /// Tells the node where an outgoing stream ends, before its end can leave.
    pub fn tell_finished(&mut self, slot: Slot, closed: bool) {
        let Some(connection) = self.observer.table().get(slot) else { return };
        let (stream, Some(offset)) = (connection.stream_out(), connection.outgoing().finish()) else { return };
        let end = StreamEnd { offset, closed, received: connection.incoming().wanted() };
        if let Err(error) = self.node.send(&ToNode::Finished { stream, end }) {
            fail(&format!("its node does not learn where it ends a stream: {error}"));
        }
    }

    // ---- what the node says

    /// `Place`, `Final`, `Restarted`.
    pub fn handle_link_message(&mut self, message: FromNode) {
        match message {
            FromNode::Final { ask, end } => self.handle_final(ask, end),
            FromNode::Place { ask, place } => self.handle_place(ask, place),
            FromNode::Restarted { process, incarnation, door } => self.handle_restarted(process, incarnation, door),
            _ => {}
        }
    }

    fn handle_final(&mut self, ask: u64, last: Option<StreamEnd>) {
        let is_this =
            |repair: &Repair| matches!(repair.stage, Stage::Asked { ask: of, .. } | Stage::Parting { ask: of } if of == ask);
        let Some(at) = self.links.repairs.iter().position(is_this) else { return };
        let (name, why) = (self.links.repairs[at].end, self.links.repairs[at].why);
        let parting = matches!(self.links.repairs[at].stage, Stage::Parting { .. });
        if parting {
            self.observer.handle_left(name.connection, last.map_or(0, |last| last.received));
            self.close_forgotten();
        }
        let Some((slot, end)) = self.slot_of_end(name).and_then(|slot| Some((slot, self.end(slot)?))) else {
            return self.links.repairs.swap_remove(at).close();
        };
        let aside = self.links.repairs[at].socket.as_ref().map(AsRawFd::as_raw_fd);
        let live = !parting;
        let there = end.wanted + if live { aside.or(end.fd).map_or(0, unread) } else { 0 };
        self.links.changed = true;
        match last {
            Some(StreamEnd { offset, closed, .. }) => {
                sure(self.observer.handle_finish(slot, offset));
                if offset > there && parting {
                    fail(&format!("the peer of {name:?} has left, and bytes from {there} to {offset} are lost"));
                }
                match why {
                    _ if offset > there => self.break_link(slot, why),
                    _ if parting => self.links.repairs[at].stage = Stage::Over,
                    Ending::End => self.restore(slot, at),
                    Ending::Reset(error) if closed => {
                        // Before anything is sent on it again.
                        self.refuse_sends(slot, error);
                        self.restore(slot, at);
                    }
                    Ending::Reset(_) => self.break_link(slot, why),
                }
            }
            None if live => self.break_link(slot, why),
            None => {
                // Nobody will ever say more: as it looks to everybody else on a network.
                sure(self.observer.handle_finish(slot, end.finish.unwrap_or(end.wanted)));
                self.links.repairs[at].stage = Stage::Over;
                self.refuse_sends(slot, Errno::CONNRESET);
            }
        }
    }

    /// The program's socket was the right one: it has it back.
    fn restore(&mut self, slot: Slot, at: usize) {
        let mut repair = self.links.repairs.swap_remove(at);
        let fd = self.end(slot).and_then(|end| end.fd);
        match (repair.socket.take(), fd) {
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
        repair.close();
        // What was sent meanwhile.
        if self.broken(slot).is_none() {
            self.transmit(slot);
        }
        self.end_lingering(slot);
    }

    /// The peer has closed the connection: what is sent is refused from now on, as the kernel says it. What was sent is kept for it all the same.
    pub fn refuse_sends(&mut self, slot: Slot, error: Errno) {
        self.unsent.retain(|waiting| *waiting != slot);
        self.drop_lingering(slot);
        if self.broken(slot).is_none() {
            self.broken.push((slot, error));
        }
    }

    fn handle_place(&mut self, ask: u64, place: Place) {
        let is_this = |repair: &Repair| match repair.stage {
            Stage::Placing { ask: of, .. } | Stage::Greeted { ask: Some(of), .. } => of == ask,
            _ => false,
        };
        let Some(at) = self.links.repairs.iter().position(is_this) else { return };
        let (name, peer) = (self.links.repairs[at].end, self.links.repairs[at].peer);
        match place {
            Place::Here { incarnation, door } => {
                self.hear_of(peer, incarnation);
                let Some(at) = self.links.find(name) else { return };
                match &mut self.links.repairs[at].stage {
                    // It merely computes.
                    Stage::Greeted { door: dialed, deadline, ask, .. } if *dialed == door => {
                        (*deadline, *ask) = (sys::now() + ANSWER_NS, None);
                    }
                    _ => self.begin_dial(at, door, incarnation),
                }
            }
            Place::Away => self.try_again(at, PATIENCE_NS),
            Place::Left => self.handle_left(at),
        }
    }

    /// The peer has ended. It wants nothing more; what it had sent, and how much it had received, its node knows.
    fn handle_left(&mut self, at: usize) {
        let (name, peer) = (self.links.repairs[at].end, self.links.repairs[at].peer);
        let Some(end) = self.slot_of_end(name).and_then(|slot| self.end(slot)).filter(|end| !end.closed) else {
            self.observer.handle_left(name.connection, 0);
            self.close_forgotten();
            return self.links.repairs.swap_remove(at).close();
        };
        let ask = self.node.number();
        self.set_stage(at, Stage::Parting { ask });
        if let Err(error) = self.node.send(&ToNode::Ended { ask, stream: end.incoming, sender: peer }) {
            fail(&format!("its node does not learn that a process has left: {error}"));
        }
    }

    fn hear_of(&mut self, process: ProcessId, incarnation: Incarnation) {
        if incarnation.0 > 0 {
            self.observer.handle_restarted(process, incarnation);
            self.break_dropped();
        }
    }

    /// A process has come back: the sockets of its earlier life are dead, whatever they look like.
    fn handle_restarted(&mut self, process: ProcessId, incarnation: Incarnation, door: SocketAddr) {
        self.links.returned += 1;
        self.hear_of(process, incarnation);
        // In question, and now there is no question; or closed by the program long ago, and now wanted again.
        let is_down = |connection: &Connection| connection.peer == process && connection.link() == Link::Down;
        let table = self.observer.table();
        let asked = |c: &Connection| {
            let asked = |repair: &Repair| repair.end == c.stream_out() && matches!(repair.stage, Stage::Asked { .. });
            c.peer == process && self.links.repairs.iter().any(asked)
        };
        let slots: Vec<Slot> = table.iter().filter(|(_, c)| is_down(c) || asked(c)).map(|(slot, _)| slot).collect();
        for slot in slots {
            let Some(end) = self.end(slot) else { continue };
            let is_known =
                self.links.find(end.name).is_some_and(|at| !matches!(self.links.repairs[at].stage, Stage::Asked { .. }));
            if !is_known {
                self.break_link(slot, Ending::Reset(Errno::CONNRESET));
            }
            let Some(at) = self.links.find(end.name) else { continue };
            if end.opened_here {
                self.begin_dial(at, door, incarnation);
            } else {
                self.try_again(at, PATIENCE_NS);
            }
        }
    }

    // ---- broken links

    fn break_dropped(&mut self) {
        while let Some(slot) = self.observer.poll_dropped() {
            self.break_link(slot, Ending::Reset(Errno::CONNRESET));
        }
    }

    /// The link of `slot` is no more: its opener is to make another one.
    pub fn break_link(&mut self, slot: Slot, why: Ending) {
        self.observer.handle_broken(slot);
        self.unsent.retain(|waiting| *waiting != slot);
        self.drop_lingering(slot);
        let Some(end) = self.end(slot) else { return };
        let known = self.links.find(end.name).map(|at| self.links.repairs.swap_remove(at));
        let away = known.as_ref().is_some_and(Repair::is_away);
        let (mut socket, attempts) = (None, known.as_ref().map_or(0, |repair| repair.attempts));
        if let Some(mut known) = known {
            socket = known.socket.take();
            known.close();
        }
        if let Some(fd) = end.fd.filter(|_| !away) {
            socket = self.put_away(fd);
        }
        // Whatever its kernel still has is in the outbox; other threads that wait for it wake up.
        if let Some(socket) = &socket {
            _ = rustix::net::shutdown(socket, Shutdown::Both);
        }
        let stage = Stage::Down { due: 0 };
        self.links.repairs.push(Repair { end: end.name, peer: end.peer, why, stage, socket, attempts });
        self.links.changed = true;
    }

    /// In a process that has come back: no socket of its image is one any more. Opens the door, tells the node again what it must know, and begins to
    /// make all links anew.
    pub fn break_all(&mut self) {
        for old in std::mem::take(&mut self.links.repairs) {
            old.close();
        }
        self.links.visitors.drain(..).for_each(|visitor| sys::close_own(visitor.fd));
        self.links.catching_up = true;
        if let Err(error) = self.open_door() {
            fail(&format!("it has no door for its peers: {error}"));
        }
        let slots: Vec<(Slot, bool)> =
            self.observer.table().iter().map(|(slot, connection)| (slot, connection.is_closed())).collect();
        for (slot, closed) in slots {
            self.tell_finished(slot, closed);
            self.break_link(slot, Ending::Reset(Errno::CONNRESET));
        }
    }

    /// Links that are down and of which nobody has told: those of connections that replay has made, and those that the observer has given up.
    fn look_for_broken(&mut self) {
        const LOOK_NS: u64 = 10_000_000;
        let now = sys::now();
        if !self.links.catching_up || now - self.links.looked < LOOK_NS {
            return;
        }
        self.links.looked = now;
        self.links.catching_up = self.observer.is_replaying();
        self.break_dropped();
        let down = |connection: &&Connection| connection.link() == Link::Down && !connection.is_offered();
        let table = self.observer.table();
        let slots: Vec<Slot> = table
            .iter()
            .filter(|(_, connection)| down(connection) && self.links.find(connection.stream_out()).is_none())
            .map(|(slot, _)| slot)
            .collect();
        slots.into_iter().for_each(|slot| self.break_link(slot, Ending::Reset(Errno::CONNRESET)));
    }

    fn set_stage(&mut self, at: usize, stage: Stage) {
        match std::mem::replace(&mut self.links.repairs[at].stage, stage) {
            Stage::Connecting { socket, .. } | Stage::Greeted { socket, .. } => sys::close_own(socket),
            _ => {}
        }
    }

    fn try_again(&mut self, at: usize, pause: u64) {
        let was_greeted = matches!(self.links.repairs[at].stage, Stage::Greeted { .. });
        self.set_stage(at, Stage::Down { due: sys::now() + pause });
        if was_greeted && let Some(slot) = self.slot_of_end(self.links.repairs[at].end) {
            self.observer.handle_broken(slot);
        }
    }

    fn begin_dial(&mut self, at: usize, door: SocketAddr, life: Incarnation) {
        self.links.repairs[at].attempts += 1;
        let dialed = dialer(&door).and_then(|socket| match rustix::net::connect(&socket, &door) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
            Err(error) => {
                sys::close_own(socket);
                Err(error)
            }
        });
        match dialed {
            Ok(socket) => self.set_stage(at, Stage::Connecting { socket, door, life, deadline: sys::now() + CONNECT_NS }),
            Err(_) => self.try_again(at, AGAIN_NS),
        }
    }

    /// Looks after what is not up.
    pub fn tend_links(&mut self) {
        self.links.tended = sys::now();
        if self.replayer.is_some() {
            return;
        }
        self.look_for_broken();
        self.answer_door();
        // Backwards: what takes the place of one that goes was looked after already.
        for at in (0..self.links.repairs.len()).rev() {
            let Some(end) = self.links.repairs.get(at).map(|repair| repair.end) else { continue };
            match self.slot_of_end(end) {
                Some(slot) if !self.is_done_with(at, slot) => self.tend_link(at, slot),
                _ => self.links.repairs.swap_remove(at).close(),
            }
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
    pub fn is_time_to_tend(&self) -> bool {
        sys::now() - self.links.tended >= LOOK_NS
    }

    /// The peer has left, and now the program has closed its end.
    fn is_done_with(&self, at: usize, slot: Slot) -> bool {
        let closed = || self.observer.table().get(slot).is_some_and(Connection::is_closed);
        matches!(self.links.repairs[at].stage, Stage::Over | Stage::Parting { .. }) && closed()
    }

    fn tend_link(&mut self, at: usize, slot: Slot) {
        let now = sys::now();
        let repair = &self.links.repairs[at];
        match &repair.stage {
            Stage::Down { due } if *due <= now => self.begin_step(at, slot),
            Stage::Placing { since, .. } if now - since > CONNECT_NS => self.try_again(at, 0),
            Stage::Connecting { socket, deadline, .. } => match sys::wait_for(socket.as_fd(), PollFlags::OUT, 0) {
                Ok(()) => self.greet_door(at, slot),
                Err(_) if *deadline <= now => self.try_again(at, AGAIN_NS),
                Err(_) => {}
            },
            Stage::Greeted { .. } => self.hear_answer(at, slot, now),
            _ => {}
        }
    }

    /// A link is broken, and it is time to do something about it.
    fn begin_step(&mut self, at: usize, slot: Slot) {
        let closed = self.end(slot).is_some_and(|end| end.closed);
        if closed && self.links.repairs[at].attempts > CLOSED_ATTEMPTS {
            return self.links.repairs.swap_remove(at).close();
        }
        let busy = |repair: &&Repair| repair.is_dialing() || matches!(repair.stage, Stage::Placing { .. });
        if self.links.repairs.iter().filter(busy).count() >= DIALS {
            return self.try_again(at, TURN_NS);
        }
        let (ask, process) = (self.node.number(), self.links.repairs[at].peer);
        self.set_stage(at, Stage::Placing { ask, since: sys::now() });
        if let Err(error) = self.node.send(&ToNode::Where { ask, process }) {
            fail(&format!("its node does not say where {process} is: {error}"));
        }
    }

    /// The connection to the peer's door is there, or is refused.
    fn greet_door(&mut self, at: usize, slot: Slot) {
        let Stage::Connecting { socket, .. } = &self.links.repairs[at].stage else { return };
        if sockopt::socket_error(socket).is_ok_and(|error| error.is_err()) {
            return self.try_again(at, AGAIN_NS);
        }
        // G1: a greeting says what was received. Its time comes with the acknowledgement.
        let name = self.links.repairs[at].end;
        if !self.is_gate_open() {
            return;
        }
        let Some(at) = self.links.find(name).filter(|at| self.links.repairs[*at].is_dialing()) else { return };
        let Some(connection) = self.observer.table().get(slot) else { return };
        if !connection.opened_here {
            return self.call_opener(at, slot);
        }
        let Some(hello) = self.hello(slot) else { return self.try_again(at, AGAIN_NS) };
        let key = self.greeting_key(&hello.connection);
        let now = sys::now();
        let process = self.links.repairs[at].peer;
        let Stage::Connecting { socket, door, life, .. } =
            std::mem::replace(&mut self.links.repairs[at].stage, Stage::Down { due: now })
        else {
            return;
        };
        let written = greeting::write(socket.as_fd(), &key, To { process, life: Some(life) }, &hello);
        let (answer, deadline) = (Box::default(), now + ANSWER_NS);
        self.links.repairs[at].stage = Stage::Greeted { socket, door, answer, deadline, ask: None };
        if written.is_err() {
            self.try_again(at, AGAIN_NS);
        }
    }

    /// What this process says first on a link of a connection that it has opened.
    pub fn hello(&mut self, slot: Slot) -> Option<Greeting> {
        let fd = self.end(slot)?.fd;
        let names = fd.and_then(|fd| self.names.get(&fd));
        let ends = names.and_then(|names| Some(Ends { from: names.local?, to: names.peer }));
        self.observer.dial(slot).map(|hello| Greeting { ends, ..hello })
    }

    /// This process has not opened the connection: it says to whoever has that the link is broken.
    fn call_opener(&mut self, at: usize, slot: Slot) {
        let Some(connection) = self.observer.table().get(slot) else { return };
        let hello = Greeting {
            process: self.observer.process(),
            incarnation: self.observer.incarnation(),
            connection: connection.id,
            attempt: connection.attempt().map_or(0, |(_, attempt)| attempt),
            received: 0,
            stable: 0,
            kept: 0,
            finish: None,
            settled: false,
            ends: None,
        };
        let key = self.greeting_key(&hello.connection);
        let process = self.links.repairs[at].peer;
        if let Stage::Connecting { socket, life, .. } = &self.links.repairs[at].stage {
            _ = greeting::write(socket.as_fd(), &key, To { process, life: Some(*life) }, &hello);
        }
        self.try_again(at, PATIENCE_NS);
    }

    fn hear_answer(&mut self, at: usize, slot: Slot, now: u64) {
        let name = self.links.repairs[at].end;
        let key = self.greeting_key(&name.connection);
        let (peer, me) = (self.links.repairs[at].peer, self.to_me());
        let Stage::Greeted { socket, answer, deadline, ask, .. } = &mut self.links.repairs[at].stage else { return };
        match answer.read(socket.as_fd(), me, |_| key) {
            Ok(None) if *deadline <= now && ask.is_none() => {
                let number = self.node.number();
                *ask = Some(number);
                if let Err(error) = self.node.send(&ToNode::Where { ask: number, process: peer }) {
                    fail(&format!("its node does not say where {peer} is: {error}"));
                }
            }
            Ok(None) => {}
            Err(_) => self.try_again(at, AGAIN_NS),
            Ok(Some(hello)) => {
                let stage = std::mem::replace(&mut self.links.repairs[at].stage, Stage::Down { due: now + AGAIN_NS });
                let Stage::Greeted { socket, .. } = stage else { return };
                match sure(self.observer.handle_answer(slot, &hello)) {
                    true => self.adopt(slot, socket, None),
                    false => {
                        sys::close_own(socket);
                        self.observer.handle_broken(slot);
                    }
                }
            }
        }
    }

    /// When something of the links is due, in the time of [`sys::now`]; none: only events matter.
    pub fn due(&self) -> Option<u64> {
        let visitors = self.links.visitors.iter().map(|visitor| visitor.deadline);
        let repairs = self.links.repairs.iter().map(Repair::due);
        // Another thread may wait for a socket that was replaced: nobody waits for long while something is being repaired.
        let soon = (!self.links.repairs.is_empty() || self.links.catching_up).then(|| sys::now() + AGAIN_NS);
        visitors.chain(repairs).chain(soon).chain(self.links.leaving.as_ref().map(|leaving| leaving.next)).min()
    }

    // ---- the end of the process

    /// All of the program's connections end, as if it had closed them.
    pub fn finish_all(&mut self) {
        /// The first pause before it is asked again what is safe, in nanoseconds.
        const PAUSE_NS: u64 = 500_000;
        let open: Vec<(i32, Slot)> =
            self.observer.table().iter().filter_map(|(slot, connection)| Some((connection.fd()? as i32, slot))).collect();
        for (fd, slot) in open {
            crate::ops::socket::finish(self, fd, slot, true);
        }
        self.links.leaving = Some(Leaving { pause: PAUSE_NS, next: 0, told: false });
        self.tell_protector(&ToProtector::Closing);
    }

    /// Whether peers need not keep anything for this process any more, and know it: its protector has all that it has received. Until then it may crash, and the next life reads it again.
    /// (`make sim`, seed 156133: it was told before, its peer left, and the next life missed what it had read.)
    pub fn is_all_held(&mut self) -> bool {
        let received = self.observer.payload().span();
        let Some(leaving) = self.links.leaving.as_mut().filter(|_| received.start == received.end) else { return false };
        if !std::mem::replace(&mut leaving.told, true) {
            _ = self.node.send(&ToNode::Closing);
        }
        true
    }

    /// Whether everything that was sent is safe: its receivers' protectors have it, or want nothing more. Asks, if it is time to.
    pub fn is_all_safe(&mut self) -> bool {
        /// The longest pause between two questions.
        const PAUSE_NS: u64 = 50_000_000;
        let safe = self.observer.table().iter().all(|(_, connection)| connection.outgoing().kept() == 0);
        let now = sys::now();
        let Some(leaving) = self.links.leaving.as_mut() else { return true };
        if leaving.next <= now {
            leaving.pause = (leaving.pause * 2).min(PAUSE_NS);
            leaving.next = now + leaving.pause;
            if !safe {
                self.ask_stable_of_all();
            }
        }
        safe
    }
}

#[cfg(test)]
mod tests;
