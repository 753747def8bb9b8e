//! Being called: `listen` and `accept`.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use radic_observer::caller::{Caller, Heard, Refusal, Refuse, Step};
use radic_observer::listener::{self, Addresses, Close, Closing, Listen};
use radic_observer::{Accept, Error, Wait};
use radic_wire::address::canonical;
use radic_wire::determinant::{Call, ConnectionId};
use radic_wire::ids::Incarnation;
use radic_wire::log::Greeting;
use radic_wire::process::{FromNode, ToNode};
use rustix::event::PollFlags;
use rustix::io::{Errno, FdFlags};
use rustix::net::{RecvFlags, SocketFlags, sockopt};

use super::address;
use super::connect::{begin, flags_say_blocking, look_at_room};
use super::waiting::{take_turns, takes_turns, wait};
use crate::counters::{self, Counter};
use crate::ending::{self, sure};
use crate::fds::{self, Kind};
use crate::greeting::{Incoming, To};
use crate::layer::{self, Arrived, Held, Layer, Names};
use crate::{sockets, sys, watches};

/// `listen`, as [`Listen`] says. None: it passes through.
pub fn listen(fd: i32, backlog: i32) -> Option<Result<(), Errno>> {
    if !address::is_tcp(fd) || !(0..fds::DESCRIPTORS as i32).contains(&fd) || fds::kind(fd) == Kind::Listener {
        return None;
    }
    let mut layer = layer::enter()?;
    let bound = layer.bound.get(&fd).copied().or_else(|| sockets::local(fd));
    let mut listen = Listen::new(fd as u32, bound.map(|told| addresses_of(fd, told)), layer.is_replayed());
    let mut result = Ok(());
    loop {
        match listen.next(&layer.listeners) {
            listener::Step::Announce(address) => {
                announce(&mut layer, address);
                listen.handle_announced();
            }
            listener::Step::Listen => {
                result = rustix::net::listen(sys::borrow(fd), backlog);
                match result {
                    Ok(()) => match listening(layer, fd, &mut listen) {
                        Ok(held) => layer = held,
                        Err(_) => return Some(result),
                    },
                    Err(_) => listen.handle_failed(),
                }
            }
            listener::Step::Tell(address, message) => tell(&mut layer, address, &message),
            listener::Step::Over => return Some(result),
        }
    }
}

/// The addresses of a listener: it is looked whether one for all addresses of IPv6 takes those of IPv4 too.
pub fn addresses_of(fd: i32, told: SocketAddr) -> Addresses {
    Addresses::of(told, || sockopt::ipv6_v6only(sys::borrow(fd)) == Ok(false))
}

fn announce(layer: &mut Layer, address: SocketAddr) {
    layer.inquire(
        |ask| ToNode::WillListen { ask, address },
        |answer| if let FromNode::Announced { ask } = *answer { Some((ask, ())) } else { None },
        || format!("that it knows of a listener at {address}"),
    );
}

fn tell(layer: &mut Layer, address: SocketAddr, message: &ToNode) {
    if let Err(error) = layer.node.send(message) {
        ending::fail(&format!("its node does not learn whether it listens at {address}: {error}"));
    }
}

/// After a successful `listen`. An error: the descriptor is no listener of ours.
fn listening(layer: Held, fd: i32, listen: &mut Listen) -> Result<Held, Errno> {
    let (mut layer, told) = address::of_listener(layer, fd)?;
    if !fds::set(fd, Kind::Listener, flags_say_blocking(fd)) {
        return Err(Errno::INVAL);
    }
    let (real, here) = (sockets::local(fd), layer.door_ip());
    listen.handle_listening(&mut layer.listeners, addresses_of(fd, told), real, here);
    for other in duplicates(&layer, fd) {
        fds::set_like(other, Kind::Listener, fd);
        layer.listeners.handle_duplicated(fd as u32, other as u32);
    }
    Ok(layer)
}

/// Descriptors that the program has made of a socket after it was bound.
fn duplicates(layer: &Layer, fd: i32) -> Vec<i32> {
    let socket = |fd: i32| rustix::fs::fstat(sys::borrow(fd)).ok().map(|of| (of.st_dev, of.st_ino));
    let (all, this) = (layer.bound.keys().copied(), socket(fd));
    all.filter(|other| *other != fd && fds::kind(*other) == Kind::Bound && socket(*other) == this).collect()
}

/// A descriptor that was accepted, and the address of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// The program's new descriptor.
    pub fd: i32,
    /// The other end, as the program sees it.
    pub peer: SocketAddr,
}

/// `accept4` with these flags. None: it passes through.
pub fn accept(listener: i32, flags: SocketFlags) -> Option<Result<Accepted, Errno>> {
    let mut layer = layer::enter()?;
    let blocking = fds::is_blocking(listener);
    Some(Accepting { listener, flags, blocking, thread: layer.thread() }.run(layer))
}

struct Accepting {
    listener: i32,
    flags: SocketFlags,
    blocking: bool,
    thread: u32,
}

impl Accepting {
    fn run(self, mut layer: Held) -> Result<Accepted, Errno> {
        loop {
            if Caller::is_wanted(&layer.observer, layer.has_arrived(self.listener))
                && let Some(result) = self.take(&mut layer)
            {
                return result;
            }
            match sure(self.ask(&mut layer)) {
                Accept::Offered(connection) => return self.give(&mut layer, connection),
                Accept::Again { fd, connection, peer } => {
                    watches::number_closed(fd as i32);
                    layer.place(connection, fd as i32)?;
                    self.make_accepted(fd as i32);
                    let local = layer.listeners.address_of(self.listener as u32);
                    layer.names.insert(fd as i32, Names { local, peer });
                    begin(fd as i32, !self.flags.contains(SocketFlags::NONBLOCK));
                    return Ok(Accepted { fd: fd as i32, peer });
                }
                Accept::Failed(errno) => return Err(Errno::from_raw_os_error(errno as i32)),
                Accept::Nothing => {
                    layer.note_nothing();
                    return Err(Errno::AGAIN);
                }
                Accept::Wait(Wait::Event) if !takes_turns(&layer) => layer = self.wait(layer)?,
                Accept::Wait(other) => layer = take_turns(layer, other)?,
            }
        }
    }

    fn ask(&self, layer: &mut Layer) -> Result<Accept, Error> {
        let Layer { observer, arrived, listeners, .. } = layer;
        let is_here = |of: &Arrived, connection| of.connection == connection && listeners.takes(self.listener as u32, of.to);
        observer.accept(self.thread, self.listener as u32, self.blocking, |connection| {
            arrived.iter().any(|arrived| is_here(arrived, connection))
        })
    }

    fn wait(&self, layer: Held) -> Result<Held, Errno> {
        match wait(layer, &[(self.listener, PollFlags::IN)], None) {
            Err(Errno::INTR) => {
                let mut layer = layer::enter_again()?;
                Err(self.failed(&mut layer, Errno::INTR))
            }
            other => other,
        }
    }

    /// Takes a connection from the system, if there is one, and finds out which process calls: it is offered to the observer then. A connection with
    /// a peer that is not protected is the program's at once.
    fn take(&self, layer: &mut Layer) -> Option<Result<Accepted, Errno>> {
        look_at_room(layer);
        if let Some(errno) = sure(layer.observer.refuse_connection(self.thread, self.listener as u32, Call::Accept)) {
            layer.ship();
            return Some(Err(Errno::from_raw_os_error(errno as i32)));
        }
        loop {
            let listener = sys::borrow(self.listener);
            // Another thread may have been faster, and then a listener that waits would keep us.
            if self.blocking && sys::wait_for(listener, PollFlags::IN, 0).is_err() {
                return None;
            }
            let (fd, peer) = match rustix::net::acceptfrom_with(listener, self.flags) {
                Ok((fd, Some(peer))) => (fd, peer),
                Ok((_, None)) => continue,
                Err(Errno::AGAIN) => return None,
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(error) => return Some(Err(self.failed(layer, error))),
            };
            let Ok(peer) = SocketAddr::try_from(peer) else { continue };
            match meet(layer, fd, peer) {
                Met::Nobody => {}
                Met::Stranger(fd) => {
                    layer.note_unprotected(&peer);
                    return Some(Ok(Accepted { fd: sys::give(fd), peer }));
                }
                Met::Process(fd, hello) => {
                    self.arrive(layer, fd, peer, &hello);
                    return None;
                }
            }
        }
    }

    /// A process has called: the observer offers the connection.
    fn arrive(&self, layer: &mut Layer, fd: OwnedFd, peer: SocketAddr, hello: &Greeting) {
        let moved = |moved: bool| hello.ends.filter(|_| moved);
        let from = moved(hello.incarnation > Incarnation::FIRST).map_or(peer, |ends| like(ends.from, &peer));
        let local = moved(layer.observer.incarnation() > Incarnation::FIRST).map(|ends| like(ends.to, &peer));
        let to = hello.ends.map(|ends| ends.to);
        layer.arrived.push(Arrived { connection: hello.connection, fd: sys::give(fd), peer: from, local, to });
    }

    /// The call fails: an outcome.
    fn failed(&self, layer: &mut Layer, error: Errno) -> Errno {
        sure(layer.observer.handle_failed(self.thread, self.listener as u32, Call::Accept, error.raw_os_error() as u32));
        layer.ship();
        error
    }

    /// A connection that has come to the door looks as if it had come to the listener.
    fn make_accepted(&self, fd: i32) {
        let socket = sys::borrow(fd);
        let closes = if self.flags.contains(SocketFlags::CLOEXEC) { FdFlags::CLOEXEC } else { FdFlags::empty() };
        // Neither can fail on a socket that is open.
        _ = rustix::io::ioctl_fionbio(socket, self.flags.contains(SocketFlags::NONBLOCK));
        _ = rustix::io::fcntl_setfd(socket, closes);
    }

    /// Gives the program what was offered.
    fn give(&self, layer: &mut Layer, connection: ConnectionId) -> Result<Accepted, Errno> {
        let Some(at) = layer.arrived.iter().position(|arrived| arrived.connection == connection) else {
            ending::fail("a connection is offered that never arrived")
        };
        let is_own = fds::kind(layer.arrived[at].fd) == Kind::Own;
        let fd = number_for(layer.arrived[at].fd).map_err(|error| self.failed(layer, error))?;
        let Arrived { peer, local: told, .. } = layer.arrived.swap_remove(at);
        sure(layer.observer.handle_accepted(self.thread, self.listener as u32, fd as u32, connection, peer));
        let local = sockets::local(fd);
        if is_own || local.map(|local| local.port()) == layer.door_port() {
            self.make_accepted(fd);
        }
        layer.names.insert(fd, Names { local: told.or(local), peer });
        watches::number_closed(fd);
        begin(fd, !self.flags.contains(SocketFlags::NONBLOCK));
        counters::add(Counter::Events, 1);
        counters::add(Counter::Connections, 1);
        layer.ship();
        Ok(Accepted { fd, peer })
    }
}

fn is_reset(fd: &OwnedFd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    rustix::net::recv(fd, &mut [0; 1], flags).is_err_and(|error| !matches!(error, Errno::AGAIN | Errno::INTR))
}

/// The program closes a listener: what [`Closing`] says.
pub(super) fn stop_listening(layer: &mut Layer, fd: i32) {
    let mut closing = Closing::new(fd as u32, layer.is_replayed());
    loop {
        match closing.next(&mut layer.listeners) {
            Close::Refuse => refuse_waiting(layer, fd),
            Close::Tell(message) => _ = layer.node.send(&message),
            // Some have come to the door.
            Close::Over => return layer.refuse_callers(),
        }
    }
}

/// Refuses all callers that wait at a listener.
fn refuse_waiting(layer: &mut Layer, listener: i32) {
    let socket = sys::borrow(listener);
    while sys::wait_for(socket, PollFlags::IN, 0).is_ok() {
        let Ok((fd, peer)) = rustix::net::acceptfrom_with(socket, SocketFlags::CLOEXEC) else { return };
        if let Some(from) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) {
            refuse(layer, &fd, from);
        }
    }
}

/// Does what [`Refusal`] says about one of them.
fn refuse(layer: &mut Layer, fd: &OwnedFd, from: SocketAddr) {
    let mut refusal = Refusal::new(is_reset(fd));
    loop {
        match refusal.next_step() {
            Refuse::Ask => refusal.handle_named(ask_caller(layer, canonical(from))),
            Refuse::SendOff => send_off(layer, from),
            Refuse::Reset => {
                _ = sockopt::set_socket_linger(fd, Some(Duration::ZERO));
                return;
            }
        }
    }
}

/// The caller from there is dealt with.
fn send_off(layer: &mut Layer, from: SocketAddr) {
    if let Err(error) = layer.node.send(&ToNode::Greeted(canonical(from))) {
        ending::fail(&format!("its node does not learn that {from} was greeted: {error}"));
    }
}

/// Which connection this is, if its other end is protected.
fn ask_caller(layer: &mut Layer, from: SocketAddr) -> Option<ConnectionId> {
    layer.inquire(
        |ask| ToNode::Accepted { ask, from },
        |answer| if let FromNode::Caller { ask, caller } = *answer { Some((ask, caller)) } else { None },
        || format!("which process calls from {from}"),
    )
}

/// The program's number for what has arrived as `fd`: the lowest, if that is one of the layer's own.
fn number_for(fd: i32) -> Result<i32, Errno> {
    if fds::kind(fd) != Kind::Own {
        return Ok(fd);
    }
    let low = rustix::io::fcntl_dupfd_cloexec(sys::borrow(fd), 0)?;
    sys::close_own(sys::own(fd));
    Ok(sys::give(low))
}

/// An address in the way in which a socket of this family tells it.
fn like(address: SocketAddr, family: &SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if family.is_ipv6() => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        ip if family.is_ipv4() => SocketAddr::new(ip.to_canonical(), address.port()),
        _ => address,
    }
}

/// What a socket is that the system has let in.
enum Met {
    /// The link of a connection with a process, which has greeted.
    Process(OwnedFd, Greeting),
    /// A connection that is not protected.
    Stranger(OwnedFd),
    /// None for the program: it is closed, or its greeting is still to come.
    Nobody,
}

/// Does what [`Caller`] says about a socket that the system has let in.
fn meet(layer: &mut Layer, fd: OwnedFd, peer: SocketAddr) -> Met {
    let (mut caller, mut incoming, mut heard) = (Caller::new(), Incoming::default(), Ok(None));
    loop {
        match caller.next() {
            Step::Ask => caller.handle_named(ask_caller(layer, canonical(peer)), || is_reset(&fd)),
            Step::Hear(_, within) => {
                heard = hear(layer, &fd, &mut incoming, within);
                let of = match &heard {
                    Ok(Some(greeting)) => Heard::Greeting(greeting),
                    Ok(None) => Heard::Nothing,
                    Err(Errno::CONNRESET) => Heard::Reset,
                    Err(_) => Heard::Noise,
                };
                sure(caller.handle_heard(&mut layer.observer, of));
            }
            Step::GiveAway => return Met::Stranger(fd),
            Step::Offer => {
                send_off(layer, peer);
                return heard.ok().flatten().map_or(Met::Nobody, |hello| Met::Process(fd, hello));
            }
            Step::Expect => {
                layer.expect_greeting(fd, incoming);
                return Met::Nobody;
            }
            Step::Close(cause) => {
                if cause.is_strange() {
                    let error = heard.err().map(|error| format!(": {error}")).unwrap_or_default();
                    layer.note(&format!("a connection was closed: {cause}{error}"));
                }
                return Met::Nobody;
            }
        }
    }
}

/// Reads the greeting of a new connection, which its node has named. None: it has not come.
fn hear(layer: &Layer, fd: &OwnedFd, incoming: &mut Incoming, within: Duration) -> Result<Option<Greeting>, Errno> {
    let me = To { process: layer.observer.process(), incarnation: None };
    let key_of = |connection: &ConnectionId| layer.key.greeting_key(connection);
    incoming.read_within(within.as_millis() as u64, sys::borrow(fd.as_raw_fd()), me, key_of)
}
