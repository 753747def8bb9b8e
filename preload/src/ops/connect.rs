//! Making connections: connect, listen, accept.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use radic_observer::connection::{Slot, Welcome};
use radic_observer::replay::Ask;
use radic_observer::{Accept, Ready, Wait};
use radic_wire::determinant::{Call, ConnectionId, Determinant, StreamId};
use radic_wire::ids::ProcessId;
use radic_wire::log::Greeting;
use radic_wire::mac::JobKey;
use radic_wire::process::{FromNode, ToNode};
use rustix::event::PollFlags;
use rustix::io::{Errno, FdFlags};
use rustix::net::{SocketFlags, sockopt};

use super::{address, wait, wait_awhile};
use crate::counters::{self, Counter};
use crate::fds::{self, Kind, Mark};
use crate::greeting;
use crate::layer::{self, Arrived, Held, Layer, Names, sure};
use crate::links::Ending;
use crate::sys;

/// Time that a connection may take to be made, in nanoseconds: a peer's machine answers for a program that does not run. Then it is asked again where the peer is.
const LINK_NS: u64 = 1_000_000_000;
/// Time that a process may take to be brought back before it is taken for one that nobody protects, in nanoseconds.
const RETURN_NS: u64 = 60_000_000_000;
/// Time between two questions whether it is back, in nanoseconds.
const AGAIN_NS: u64 = 20_000_000;
/// How often a process is called that listens and does not answer: the node learns in milliseconds that one has died, in a second or two that a machine has.
const CALLS: u32 = 100;

fn flags_say_blocking(fd: i32) -> bool {
    rustix::fs::fcntl_getfl(sys::borrow(fd)).is_ok_and(|flags| !flags.contains(rustix::fs::OFlags::NONBLOCK))
}

/// `connect`. None: none of ours; it passes through.
pub fn connect(fd: i32, to: Option<SocketAddr>) -> Option<Result<(), Errno>> {
    let to = to?;
    if !address::is_tcp(fd) || fd as usize >= fds::DESCRIPTORS {
        return None;
    }
    let layer = layer::enter()?;
    match fds::kind(fd) {
        // A second call asks how the first one fares: the kernel knows.
        Kind::Connection | Kind::Alias => return None,
        _ => {}
    }
    let (mut layer, target) = match find_target(layer, fd, to) {
        Ok(found) => found,
        Err(error) => return Some(Err(error)),
    };
    if target.peer.is_some() {
        let (thread, blocking) = (layer::thread(), flags_say_blocking(fd));
        return Some(Connecting { fd, to, target, thread, blocking }.run(layer));
    }
    if fds::kind(fd) == Kind::Bound {
        layer.bound.remove(&fd);
        fds::clear(fd);
    }
    // Unlogged, but what is sent there leaves the process, too.
    layer.pass_gate();
    layer.note_unprotected(&to);
    None
}

/// Between whom a connection is to be.
struct Target {
    /// The socket's own address, as the program is told it.
    local: SocketAddr,
    /// Who listens; none: nobody who is protected.
    peer: Option<Peer>,
    /// This is what the log says.
    again: bool,
}

/// A protected process that is about to be called.
struct Peer {
    process: ProcessId,
    /// For the greeting, if it is of another job.
    key: Option<JobKey>,
    /// Where it is now, if it has moved.
    at: Option<SocketAddr>,
}

/// With whom this is, as it was then, or as the nodes say now.
fn find_target(layer: Held, fd: i32, to: SocketAddr) -> Result<(Held, Target), Errno> {
    let (mut layer, then) = address::consult(layer, Ask::Target { fd: fd as u32 })?;
    if let Some(address::Then { address: local, peer }) = then {
        let peer = peer.map(|process| Peer { process, key: key_again(&mut layer, process), at: None });
        return Ok((layer, Target { local, peer, again: true }));
    }
    if let Some(error) = refused(&mut layer, fd, Call::Connect) {
        return Err(error);
    }
    let (mut layer, found) = call_up(layer, fd, to)?;
    let known = found.as_ref().map(|(local, peer)| (*local, peer.as_ref().map(|peer| peer.process))).map_err(|error| *error);
    let outcome = |(local, peer)| Determinant::Target { fd: fd as u32, local, peer };
    if let Err(error) = address::record(&mut layer, fd, Call::Connect, known, outcome) {
        layer.ship();
        return Err(error);
    }
    let (local, peer) = found?;
    Ok((layer, Target { local, peer, again: false }))
}

/// What [`call_up`] finds: the socket's own address, as the program is told it, and who listens.
type Called = Result<(SocketAddr, Option<Peer>), Errno>;

/// Binds the socket, and finds out who listens at `to`; its node then knows that we are going to call. While that cannot be said, because a process that may
/// have listened there is lost, and on its way back, this waits: nobody would be there, and the program would be told so.
fn call_up(mut layer: Held, fd: i32, to: SocketAddr) -> Result<(Held, Called), Errno> {
    let from = match address::bind_source(fd, &to) {
        Ok(from) => from,
        Err(error) => return Ok((layer, Err(error))),
    };
    let told = layer.bound.get(&fd).filter(|told| !told.ip().is_unspecified());
    let local = told.map_or(from, |told| SocketAddr::new(told.ip(), from.port()));
    let until = sys::now() + RETURN_NS;
    loop {
        let (peer, later) = ask_peer(&mut layer, from, to);
        if !later || sys::now() >= until {
            return Ok((layer, Ok((local, peer))));
        }
        layer = pause(layer)?;
    }
}

/// Looks after everything for a moment: those who come back may need what this process has sent them.
fn pause(layer: Held) -> Result<Held, Errno> {
    wait_awhile(layer, &[], sys::now() + AGAIN_NS)
}

/// Whether the table is so full that `call` fails. Closed connections leave it only when images of both ends cover that: one is asked for in time.
fn refused(layer: &mut Layer, fd: i32, call: Call) -> Option<Errno> {
    /// Connections after which another image is asked for, while the table is fuller than three quarters.
    const AGAIN: usize = 256;
    static SAID: AtomicBool = AtomicBool::new(false);
    let (room, size) = layer.observer.table().room();
    if room < size / 4 && room.is_multiple_of(AGAIN) {
        layer::want_checkpoint();
    }
    if room > 0 || layer.observer.is_replaying() {
        return None;
    }
    if !SAID.swap(true, Ordering::Relaxed) {
        layer.note(&format!(
            "it has {size} connections, counting closed ones that no checkpoint covers yet: more of them fail with ENFILE"
        ));
    }
    sure(layer.observer.handle_failed(layer::thread(), fd as u32, call, Errno::NFILE.raw_os_error() as u32));
    layer.ship();
    Some(Errno::NFILE)
}

/// Who listens at `to`, if that is a protected process; and whether, if nobody was found, it must be asked again.
fn ask_peer(layer: &mut Layer, from: SocketAddr, to: SocketAddr) -> (Option<Peer>, bool) {
    let ask = layer.node.number();
    let question = ToNode::Connecting { ask, connection: layer.observer.next_connection(), from: plain(from), to: plain(to) };
    let answer = layer.node.ask(&question, |message| matches!(message, FromNode::Peer { ask: number, .. } if *number == ask));
    match answer {
        Ok(FromNode::Peer { peer, key, at, later, .. }) => {
            (peer.map(|process| Peer { process, key: key.map(JobKey::from_bytes), at }), later)
        }
        Ok(_) => (None, false),
        Err(error) => layer::fail(&format!("its node does not say who listens at {to}: {error}")),
    }
}

/// The key for the greeting on a connection that is made again. Keys are in no log.
fn key_again(layer: &mut Layer, peer: ProcessId) -> Option<JobKey> {
    if peer.job == layer.observer.process().job || layer.replayer.is_some() {
        return None;
    }
    let (ask, connection) = (layer.node.number(), layer.observer.next_connection());
    let question = ToNode::GreetingKey { ask, connection, job: peer.job };
    match layer.node.ask(&question, |message| matches!(message, FromNode::GreetingKey { ask: number, .. } if *number == ask)) {
        Ok(FromNode::GreetingKey { key, .. }) => Some(JobKey::from_bytes(key)),
        Ok(_) => None,
        Err(error) => layer::fail(&format!("its node does not say the key for {peer}: {error}")),
    }
}

/// Without IPv6's zones and its way to write IPv4: the same address always looks the same.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

struct Connecting {
    fd: i32,
    to: SocketAddr,
    target: Target,
    thread: u32,
    blocking: bool,
}

impl Connecting {
    fn run(mut self, mut layer: Held) -> Result<(), Errno> {
        loop {
            match sure(layer.observer.ask(self.thread, Ask::Connect { fd: self.fd as u32 }, self.blocking)) {
                Ready::Live => break,
                // Replay: as it was then. A connect that did not wait, and did not fail, has no outcome of its own.
                Ready::Nothing => return self.again(&mut layer).and(Err(Errno::INPROGRESS)),
                Ready::Outcome(0) => return self.again(&mut layer),
                Ready::Outcome(errno) => return Err(Errno::from_raw_os_error(errno as i32)),
                Ready::Wait(other) => layer.wait_for(other),
                Ready::Set(_) => return Err(Errno::INVAL),
            }
        }
        let (mut layer, dialed) = self.dial(layer)?;
        match dialed {
            Ok(()) => {
                layer.pass_gate(); // Another thread may have learnt something meanwhile.
                self.greet(&mut layer)
            }
            Err(error) => {
                let errno = error.raw_os_error() as u32;
                sure(layer.observer.handle_failed(self.thread, self.fd as u32, Call::Connect, errno));
                layer.ship();
                Err(error)
            }
        }
    }

    /// Makes the link. If the log knew with whom, but not what came of it, the peer may have left since: then nobody answers. If it is lost just now, it
    /// is called again where it is brought back.
    fn dial(&mut self, mut layer: Held) -> Result<(Held, Result<(), Errno>), Errno> {
        let mut again = self.target.again;
        for _ in 0..CALLS {
            if again {
                let (held, called) = call_up(layer, self.fd, self.to)?;
                layer = held;
                let same = |peer: &Peer| self.target.peer.as_ref().is_some_and(|then| then.process == peer.process);
                match called {
                    Ok((_, peer)) if peer.as_ref().is_some_and(same) => self.target.peer = peer,
                    Ok(_) => return Ok((layer, Err(Errno::CONNREFUSED))),
                    Err(error) => return Ok((layer, Err(error))),
                }
            }
            layer.pass_gate();
            let (held, linked) = self.link(layer)?;
            layer = held;
            match linked {
                Err(Errno::CONNREFUSED | Errno::CONNRESET | Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH) => {
                    // What it still has under way goes nowhere.
                    _ = rustix::net::connect_unspec(sys::borrow(self.fd));
                    layer = pause(layer)?;
                    again = true;
                }
                other => return Ok((layer, other)),
            }
        }
        Ok((layer, Err(Errno::CONNREFUSED)))
    }

    /// Connects the socket to where the peer is, before the call returns, though the program may not wait: the greeting is to be the first on it. It never waits
    /// for as long as the kernel would for a machine that says nothing: that one may be dead, and the peer elsewhere.
    fn link(&self, mut layer: Held) -> Result<(Held, Result<(), Errno>), Errno> {
        let (socket, at) = (sys::borrow(self.fd), self.target.peer.as_ref().and_then(|peer| peer.at));
        let set_waiting = |waits: bool| if self.blocking { rustix::io::ioctl_fionbio(socket, !waits) } else { Ok(()) };
        if let Err(error) = set_waiting(false) {
            return Ok((layer, Err(error)));
        }
        let mut result = rustix::net::connect(socket, &at.unwrap_or(self.to));
        let until = sys::now() + LINK_NS;
        while result == Err(Errno::INPROGRESS) {
            layer = wait_awhile(layer, &[(self.fd, PollFlags::OUT)], until)?;
            result = match sys::wait_for(socket, PollFlags::OUT, 0) {
                Ok(()) => sockopt::socket_error(socket).and_then(|error| error),
                Err(Errno::TIMEDOUT) if sys::now() < until => Err(Errno::INPROGRESS),
                Err(error) => Err(error),
            };
        }
        Ok((layer, set_waiting(true).and(result)))
    }

    fn greet(&self, layer: &mut Layer) -> Result<(), Errno> {
        let Ok(slot) = self.open(layer) else { layer::fail("the gate has shut again during connect") };
        let Some(hello) = layer.hello(slot) else { layer::fail("a new connection has no greeting") };
        if let Err(error) = greeting::write(sys::borrow(self.fd), &layer.greeting_key(&hello.connection), &hello) {
            layer.link_ended(slot, Ending::Reset(error));
        }
        begin(self.fd, self.blocking);
        counters::add(Counter::Connections, 1);
        if self.blocking {
            sure(layer.observer.handle_outcome(self.thread, &Determinant::Connected { fd: self.fd as u32 }));
            layer.ship();
            return Ok(());
        }
        // To the program it looks as it always does: the socket will be writable at once.
        sure(layer.observer.handle_nothing(self.thread));
        Err(Errno::INPROGRESS)
    }

    /// The connection of then.
    fn again(&self, layer: &mut Layer) -> Result<(), Errno> {
        _ = self.open(layer);
        begin(self.fd, self.blocking);
        Ok(())
    }

    fn open(&self, layer: &mut Layer) -> Result<Slot, Wait> {
        let connection = layer.observer.next_connection();
        let Some(peer) = &self.target.peer else { layer::fail("a connection is made with nobody") };
        if let Some(key) = &peer.key {
            layer.set_greeting_key(connection, key.clone());
        }
        layer.bound.remove(&self.fd);
        layer.names.insert(self.fd, Names { local: Some(self.target.local), peer: self.to });
        sure(layer.observer.connect(self.fd as u32, peer.process))
    }
}

/// `fd` is a protected connection from now on. What the program has set on the socket, or on the listener that it comes from, holds.
fn begin(fd: i32, blocking: bool) {
    if !fds::set(fd, Kind::Connection, blocking) {
        layer::fail(&format!("descriptor {fd} is over the bound on protected descriptors"));
    }
    let socket = sys::borrow(fd);
    let limit = |which| sockopt::socket_timeout(socket, which).is_ok_and(|limit| limit.is_some());
    fds::set_mark(fd, Mark::ReceiveLimit, limit(sockopt::Timeout::Recv));
    fds::set_mark(fd, Mark::SendLimit, limit(sockopt::Timeout::Send));
    fds::set_mark(fd, Mark::Linger, sockopt::socket_linger(socket).is_ok_and(|limit| limit.is_some()));
}

/// After a successful `listen`.
pub fn listening(fd: i32) {
    if !address::is_tcp(fd) || fds::kind(fd) == Kind::Listener {
        return;
    }
    let Some(layer) = layer::enter() else { return };
    let Ok((mut layer, told)) = address::of_listener(layer, fd) else { return };
    if !fds::set(fd, Kind::Listener, flags_say_blocking(fd)) {
        return;
    }
    // A socket for all addresses of IPv6 takes those of IPv4 too, unless it was told not to.
    let both = told.is_ipv6() && told.ip().is_unspecified() && sockopt::ipv6_v6only(sys::borrow(fd)) == Ok(false);
    let v4 = both.then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), told.port()));
    let really = elsewhere(&layer, fd, told);
    for address in std::iter::once(plain(told)).chain(v4) {
        layer.listeners.push((fd, address));
        let said = match really {
            Some(at) => ToNode::ListeningAt { address, at },
            None => ToNode::Listening(address),
        };
        if let Err(error) = layer.node.send(&said) {
            layer::fail(&format!("its node does not learn that it listens at {address}: {error}"));
        }
    }
}

/// Where the listener really is, if it is not where the program was told.
fn elsewhere(layer: &Layer, fd: i32, told: SocketAddr) -> Option<SocketAddr> {
    let real = address::local(fd).filter(|real| *real != told)?;
    let ip = if real.ip().is_unspecified() { layer.door_ip()? } else { real.ip() };
    Some(SocketAddr::new(ip.to_canonical(), real.port()))
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
    let layer = layer::enter()?;
    let blocking = fds::is_blocking(listener);
    Some(Accepting { listener, flags, blocking, thread: layer::thread() }.run(layer))
}

struct Accepting {
    listener: i32,
    flags: SocketFlags,
    blocking: bool,
    thread: u32,
}

impl Accepting {
    fn run(self, mut layer: Held) -> Result<Accepted, Errno> {
        let listener = self.listener as u32;
        loop {
            if !layer.observer.is_replaying()
                && layer.arrived.is_empty()
                && let Some(result) = self.take(&mut layer)
            {
                return result;
            }
            match sure(layer.observer.accept(self.thread, listener, self.blocking)) {
                Accept::Offered(connection) => return self.give(&mut layer, connection),
                Accept::Again { fd, connection, peer } => {
                    layer.place(connection, fd as i32)?;
                    self.make_accepted(fd as i32);
                    let local =
                        layer.listeners.iter().find(|(listening, _)| *listening == self.listener).map(|(_, address)| *address);
                    layer.names.insert(fd as i32, Names { local, peer });
                    begin(fd as i32, !self.flags.contains(SocketFlags::NONBLOCK));
                    return Ok(Accepted { fd: fd as i32, peer });
                }
                Accept::Failed(errno) => return Err(Errno::from_raw_os_error(errno as i32)),
                Accept::Nothing => {
                    layer.note_nothing();
                    return Err(Errno::AGAIN);
                }
                Accept::Wait(Wait::Event) => layer = self.wait(layer)?,
                Accept::Wait(other) => layer.wait_for(other),
            }
        }
    }

    fn wait(&self, layer: Held) -> Result<Held, Errno> {
        match wait(layer, &[(self.listener, PollFlags::IN)], None) {
            Err(Errno::INTR) => {
                let mut layer = layer::enter().ok_or(Errno::INTR)?;
                Err(self.failed(&mut layer, Errno::INTR))
            }
            other => other,
        }
    }

    /// Takes a connection from the system, if there is one, and finds out who it is: it is offered to the observer then. A connection with
    /// a peer that is not protected is the program's at once.
    fn take(&self, layer: &mut Layer) -> Option<Result<Accepted, Errno>> {
        if let Some(error) = refused(layer, self.listener, Call::Accept) {
            return Some(Err(error));
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
            match ask_caller(layer, plain(peer)) {
                None => {
                    layer.note_unprotected(&peer);
                    return Some(Ok(Accepted { fd: sys::give(fd), peer }));
                }
                Some(connection) => {
                    // It is gone already, or no friend.
                    let Some(hello) = identify(layer, &fd, connection) else { continue };
                    let moved = |moved: bool| hello.ends.filter(|_| moved);
                    let from = moved(hello.incarnation.0 > 0).map_or(peer, |ends| like(ends.from, &peer));
                    let local = moved(layer.observer.incarnation().0 > 0).map(|ends| like(ends.to, &peer));
                    layer.arrived.push(Arrived { connection, fd: sys::give(fd), peer: from, local });
                    return None;
                }
            }
        }
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
            layer::fail("a connection is offered that never arrived")
        };
        let fd = number_for(layer.arrived[at].fd).map_err(|error| self.failed(layer, error))?;
        let Arrived { peer, local: told, .. } = layer.arrived.swap_remove(at);
        sure(layer.observer.handle_accepted(self.thread, self.listener as u32, fd as u32, connection, peer));
        let local = address::local(fd);
        if local.map(|local| local.port()) == layer.door_port() {
            self.make_accepted(fd);
        }
        layer.names.insert(fd, Names { local: told.or(local), peer });
        begin(fd, !self.flags.contains(SocketFlags::NONBLOCK));
        counters::add(Counter::Events, 1);
        counters::add(Counter::Connections, 1);
        layer.ship();
        Ok(Accepted { fd, peer })
    }
}

/// The program closes a listener: those that wait there are told that their connection is over, which a reset alone does not say.
pub(super) fn refuse_waiting(layer: &mut Layer, listener: i32) {
    let socket = sys::borrow(listener);
    while !layer.is_replayed() && sys::wait_for(socket, PollFlags::IN, 0).is_ok() {
        let Ok((fd, peer)) = rustix::net::acceptfrom_with(socket, SocketFlags::CLOEXEC) else { return };
        let caller = peer.and_then(|peer| SocketAddr::try_from(peer).ok()).and_then(|peer| ask_caller(layer, plain(peer)));
        if let Some(connection) = caller {
            let stream = StreamId { connection, from_opener: false };
            _ = layer.node.send(&ToNode::Finished { stream, offset: 0, closed: true });
        }
        // By a reset, as the kernel does it.
        _ = sockopt::set_socket_linger(&fd, Some(std::time::Duration::ZERO));
    }
}

/// Which connection this is, if its other end is protected.
fn ask_caller(layer: &mut Layer, from: SocketAddr) -> Option<ConnectionId> {
    let ask = layer.node.number();
    let answer = layer.node.ask(
        &ToNode::Accepted { ask, from },
        |message| matches!(message, FromNode::Caller { ask: number, .. } if *number == ask),
    );
    match answer {
        Ok(FromNode::Caller { caller, .. }) => caller,
        Ok(_) => None,
        Err(error) => layer::fail(&format!("its node does not say who calls from {from}: {error}")),
    }
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

/// Reads the greeting of a new connection. None: the other end is gone, or says something else than its node did.
fn identify(layer: &mut Layer, fd: &OwnedFd, connection: ConnectionId) -> Option<Greeting> {
    let hello = match greeting::read(sys::borrow(fd.as_raw_fd()), |connection| layer.key.greeting_key(connection)) {
        Ok(hello) if hello.connection == connection => hello,
        Ok(_) => {
            layer.note("a connection was closed: its greeting is for another one");
            return None;
        }
        Err(error) => {
            layer.note(&format!("a connection was closed: no greeting on it: {error}"));
            return None;
        }
    };
    match sure(layer.observer.handle_greeting(&hello)) {
        Welcome::Link(_, None) => Some(hello),
        // An answer is wanted by reconnections only, which do not come to the program's listener.
        Welcome::Link(..) | Welcome::Refuse | Welcome::Forgotten => None,
    }
}
