//! Making connections: `connect`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use radic_observer::connection::Slot;
use radic_observer::replay::Ask;
use radic_observer::{Ready, Wait};
use radic_wire::determinant::{Call, Determinant};
use radic_wire::ids::ProcessId;
use radic_wire::mac::JobKey;
use radic_wire::process::{FromNode, ToNode};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::address::{self, Outcome, plain};
use super::{ask_until_back, pause, take_turns, wait};
use crate::counters::{self, Counter};
use crate::fds::{self, Kind, Mark};
use crate::greeting::{self, To};
use crate::layer::{self, Held, Layer, Names, sure};
use crate::links::reset;
use crate::memory::discreetly;
use crate::sys;

/// Time that a connection may take to be made while the program does not expect to wait, in nanoseconds: a peer's machine answers for a program that does not run. Then it
/// is asked again where the peer is.
const LINK_NS: u64 = 1_000_000_000;
/// How often a process is called that listens and does not answer: the node learns in milliseconds that one has died, in a second or two that a machine has.
const CALLS: u32 = 100;

pub(super) fn flags_say_blocking(fd: i32) -> bool {
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
    let (mut layer, Target { local, with, again }) = match find_target(layer, fd, to) {
        Ok(found) => found,
        Err(error) => return Some(Err(error)),
    };
    let (thread, blocking) = (layer.thread(), flags_say_blocking(fd));
    match with {
        With::Peer(peer) => Some(Connecting { fd, to, local, peer, again, thread, blocking }.run(layer)),
        With::Nobody(result) => {
            if fds::kind(fd) == Kind::Bound {
                layer.bound.remove(&fd);
                fds::clear(fd);
            }
            if result.is_none() {
                // Unlogged, but what is sent there leaves the process, too.
                layer.pass_gate();
                layer.note_unprotected(&to);
            }
            result
        }
    }
}

/// The two ends that a connection is to have.
struct Target {
    /// The socket's own address, as the program is told it.
    local: SocketAddr,
    with: With,
    /// This is what the log says.
    again: bool,
}

/// What is called.
enum With {
    Peer(Peer),
    /// No protected process. What the program's own call has come to; none, in replay: it is made again.
    Nobody(Option<Result<(), Errno>>),
}

/// A protected process that is about to be called.
struct Peer {
    process: ProcessId,
    /// For the greeting, if it is of another job.
    key: Option<JobKey>,
    /// Where it is now, if it has moved.
    at: Option<SocketAddr>,
}

/// Which process this leads to, as it was then, or as the nodes say now.
fn find_target(mut layer: Held, fd: i32, to: SocketAddr) -> Result<(Held, Target), Errno> {
    let found = loop {
        let (held, then) = match address::consult(layer, Ask::Target { fd: fd as u32 }) {
            Err(Errno::CONNREFUSED) if !flags_say_blocking(fd) => return Err(refuse_again(fd, &to)),
            consulted => consulted?,
        };
        layer = held;
        if let Some(address::Then { address: local, peer }) = then {
            let peer = peer.map(|process| Peer { process, key: key_again(&mut layer, process), at: None });
            return Ok((layer, Target { local, with: peer.map_or(With::Nobody(None), With::Peer), again: true }));
        }
        if let Some(error) = refused(&mut layer, fd, Call::Connect) {
            return Err(error);
        }
        let (held, found) = find_now(layer, fd, to)?;
        layer = held;
        if let Some(found) = found {
            break found;
        }
    };
    let process = |with: &With| if let With::Peer(peer) = with { Some(peer.process) } else { None };
    let known = found.as_ref().map(|(local, with)| (*local, process(with))).map_err(|error| *error);
    let outcome = |(local, peer)| Determinant::Target { fd: fd as u32, local, peer };
    if let Err(error) = address::record(&mut layer, fd, Call::Connect, known, outcome) {
        layer.ship();
        // The socket says it.
        let is_pending = error == Errno::CONNREFUSED && !flags_say_blocking(fd);
        return Err(if is_pending { Errno::INPROGRESS } else { error });
    }
    let (local, with) = found?;
    Ok((layer, Target { local, with, again: false }))
}

/// Which process is there now. None: that must be asked again.
fn find_now(layer: Held, fd: i32, to: SocketAddr) -> Result<(Held, Outcome<(SocketAddr, With)>), Errno> {
    let (layer, called) = call_up(layer, fd, to)?;
    match called {
        None => Ok((layer, None)),
        Some(Err(error)) => Ok((layer, Some(Err(error)))),
        Some(Ok(Called { local, peer: Some(peer), .. })) => Ok((layer, Some(Ok((local, With::Peer(peer)))))),
        Some(Ok(Called { local, from, peer: None })) => {
            let (layer, result) = call_nobody(layer, fd, from, to)?;
            Ok((layer, result.map(|result| result.map(|result| (local, With::Nobody(Some(result)))))))
        }
    }
}

/// In replay: a call that does not wait was refused. It is refused again, though a process may listen there by now: by a socket that does not listen. What the program is told of
/// the call; the rest is in its socket.
fn refuse_again(fd: i32, to: &SocketAddr) -> Errno {
    let loopback: IpAddr = if to.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let nobody = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let nobody = nobody.and_then(|socket| rustix::net::bind(&socket, &SocketAddr::new(loopback, 0)).map(|()| socket));
    let at = nobody.as_ref().ok().and_then(|socket| address::local(socket.as_raw_fd()));
    match at.map(|at| rustix::net::connect(sys::borrow(fd), &at)) {
        Some(Err(error)) => error,
        _ => Errno::CONNREFUSED,
    }
}

/// Makes the program's own connection with a listener of which no node knows. A protected process may have begun to listen since the nodes were asked, so they are asked
/// again when there is a connection: the node of that listener has not forgotten the first question, and does not take this caller for an unprotected one. None: a protected
/// process listens there, or may listen; this connection is over, and all is to be asked again. (Not covered: a connection that is made later than the call returns.)
///
/// What the call has come to, inside of what it is for the log: a connection that is made, or may yet be, or that there is none.
fn call_nobody(mut layer: Held, fd: i32, from: SocketAddr, to: SocketAddr) -> Result<(Held, Outcome<Result<(), Errno>>), Errno> {
    layer.pass_gate();
    let (blocking, socket) = (flags_say_blocking(fd), sys::borrow(fd));
    let (incarnation, returned) = (layer.observer.incarnation(), layer.links.returned());
    let until = sys::now() + if blocking { send_limit(fd) } else { LINK_NS };
    let (mut layer, link) = link(layer, fd, to, blocking, until, blocking)?;
    if layer.observer.incarnation() != incarnation {
        return Ok((layer, None));
    }
    let (made, result) = match link {
        Link::Refused(error) => (false, Err(error)),
        // A second call is told what the first one has come to; the socket can be used again then.
        Link::Settled if blocking => {
            rustix::net::connect(socket, &to).map_or_else(|error| (false, Err(error)), |()| (true, Ok(())))
        }
        // What it has come to is in the socket, as the program expects.
        Link::Settled => (rustix::net::getpeername(socket).is_ok(), Err(Errno::INPROGRESS)),
        Link::Open(error) => (true, Err(error.unwrap_or(Errno::INPROGRESS))),
    };
    if made && matches!(link, Link::Settled) {
        let (peer, later) = ask_peer(&mut layer, from, to);
        if peer.is_some() || later || layer.links.returned() != returned {
            give_up(fd);
            return Ok((layer, None));
        }
    }
    let said = ToNode::CallsNobody { connection: layer.observer.next_connection(), from: plain(from), to: plain(to), made };
    if let Err(error) = layer.node.send(&said) {
        layer::fail(&format!("its node does not learn what has come of a call to {to}: {error}"));
    }
    if made {
        layer.note_unprotected(&to);
        return Ok((layer, Some(Ok(result))));
    }
    // The socket knows the error, and would not know it any more when it is asked.
    Ok((layer, Some(Err(result.err().filter(|error| *error != Errno::INPROGRESS).unwrap_or(Errno::CONNREFUSED)))))
}

/// How long a `connect` of the program may wait, in nanoseconds.
fn send_limit(fd: i32) -> u64 {
    /// Longer than the kernel tries.
    const KERNEL_NS: u64 = 3_600_000_000_000;
    let limit = sockopt::socket_timeout(sys::borrow(fd), sockopt::Timeout::Send).ok().flatten();
    limit.map_or(KERNEL_NS, |limit| u64::try_from(limit.as_nanos()).unwrap_or(KERNEL_NS).min(KERNEL_NS))
}

/// What a socket has under way, or has got, goes nowhere.
fn give_up(fd: i32) {
    // One that has neither is as good.
    _ = rustix::net::connect_unspec(sys::borrow(fd));
}

/// What the kernel says of a connection that is under way no more.
fn settled(fd: i32) -> Result<(), Errno> {
    sockopt::socket_error(sys::borrow(fd)).and_then(|error| error)
}

/// How far a connection has got.
#[derive(Clone, Copy)]
enum Link {
    /// Not so far.
    Refused(Errno),
    /// It is made, or has failed: the socket knows.
    Settled,
    /// The time is over, and it is under way still; or a signal came, or this process replays.
    Open(Option<Errno>),
}

/// Connects the socket to `at` before the call returns, though the program may not wait; a signal ends this if it `may_end` the program's call.
fn link(layer: Held, fd: i32, at: SocketAddr, blocking: bool, until: u64, may_end: bool) -> Result<(Held, Link), Errno> {
    let socket = sys::borrow(fd);
    let set_waiting = |waits: bool| if blocking { rustix::io::ioctl_fionbio(socket, !waits) } else { Ok(()) };
    if let Err(error) = set_waiting(false) {
        return Ok((layer, Link::Refused(error)));
    }
    let (layer, link) = match rustix::net::connect(socket, &at) {
        Ok(()) => (layer, Link::Settled),
        Err(Errno::INPROGRESS) => await_link(layer, fd, until, may_end)?,
        Err(error) => (layer, Link::Refused(error)),
    };
    Ok((layer, set_waiting(true).map_or_else(Link::Refused, |()| link)))
}

fn await_link(mut layer: Held, fd: i32, until: u64, may_end: bool) -> Result<(Held, Link), Errno> {
    while !layer.observer.is_replaying() {
        match sys::wait_for(sys::borrow(fd), PollFlags::OUT, 0) {
            Err(Errno::TIMEDOUT) if sys::now() < until => {}
            Err(Errno::TIMEDOUT) => break,
            Err(error) => return Ok((layer, Link::Refused(error))),
            Ok(()) => return Ok((layer, Link::Settled)),
        }
        let error = match wait(layer, &[(fd, PollFlags::OUT)], Some(until)) {
            Ok(held) => {
                layer = held;
                continue;
            }
            Err(error) => error,
        };
        layer = layer::enter_again()?;
        if error == Errno::INTR && may_end {
            return Ok((layer, Link::Open(Some(error))));
        }
    }
    Ok((layer, Link::Open(None)))
}

/// What [`call_up`] finds.
struct Called {
    /// The socket's own address, as the program is told it.
    local: SocketAddr,
    /// The same, as others see it.
    from: SocketAddr,
    /// The process that listens.
    peer: Option<Peer>,
}

/// Binds the socket, and finds out which process listens at `to`; that process's node then knows that this one is going to call. While that cannot be said, because a process
/// that may have listened there is lost and on its way back, this waits: else the connection would be refused, and the program would be told so.
fn call_up(layer: Held, fd: i32, to: SocketAddr) -> Result<(Held, Outcome<Called>), Errno> {
    let from = match address::bind_source(fd, &to) {
        Ok(from) => from,
        Err(error) => return Ok((layer, Some(Err(error)))),
    };
    let told = layer.bound.get(&fd).filter(|told| !told.ip().is_unspecified());
    let local = told.map_or(from, |told| SocketAddr::new(told.ip(), from.port()));
    let (layer, peer) = ask_until_back(layer, |layer| ask_peer(layer, from, to))?;
    Ok((layer, peer.map(|peer| Ok(Called { local, from, peer }))))
}

/// Whether the table is so full that `call` fails. Closed connections leave it only when images of both ends cover that: one is asked for in time.
pub(super) fn refused(layer: &mut Layer, fd: i32, call: Call) -> Option<Errno> {
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
    let thread = layer.thread();
    sure(layer.observer.handle_failed(thread, fd as u32, call, Errno::NFILE.raw_os_error() as u32));
    layer.ship();
    Some(Errno::NFILE)
}

/// Which protected process listens at `to`, if one does; and whether, if none was found, it must be asked again.
fn ask_peer(layer: &mut Layer, from: SocketAddr, to: SocketAddr) -> (Option<Peer>, bool) {
    let connection = layer.observer.next_connection();
    let (peer, key, at, later) = layer.inquire(
        |ask| ToNode::Connecting { ask, connection, from: plain(from), to: plain(to) },
        |answer| {
            let FromNode::Peer { ask, peer, ref key, at, later } = *answer else { return None };
            Some((ask, (peer, discreetly(|| key.clone()), at, later)))
        },
        || format!("which process listens at {to}"),
    );
    (peer.map(|process| Peer { process, key, at }), later)
}

/// The key for the greeting on a connection that is made again. Keys are in no log.
fn key_again(layer: &mut Layer, peer: ProcessId) -> Option<JobKey> {
    if peer.job == layer.observer.process().job || layer.replayer.is_some() {
        return None;
    }
    let connection = layer.observer.next_connection();
    Some(layer.ask_greeting_key(connection, peer))
}

struct Connecting {
    fd: i32,
    to: SocketAddr,
    local: SocketAddr,
    peer: Peer,
    /// The log knew the peer.
    again: bool,
    thread: u32,
    blocking: bool,
}

impl Connecting {
    fn run(mut self, mut layer: Held) -> Result<(), Errno> {
        loop {
            match sure(layer.observer.ask(self.thread, Ask::Connect { fd: self.fd as u32 }, self.blocking)) {
                Ready::Live => {}
                // Replay: as it was then. A connect that did not wait, and did not fail, has no outcome of its own.
                Ready::Nothing => return self.again(&mut layer).and(Err(Errno::INPROGRESS)),
                Ready::Outcome(0) => return self.again(&mut layer),
                Ready::Outcome(errno) => return Err(Errno::from_raw_os_error(errno as i32)),
                Ready::Wait(other) => {
                    layer = take_turns(layer, other)?;
                    continue;
                }
                Ready::Set(_) => return Err(Errno::INVAL),
            }
            let (held, dialed) = self.dial(layer)?;
            layer = held;
            match dialed {
                None => {}
                Some(Ok(())) => return self.greet(&mut layer),
                Some(Err(error)) => {
                    let errno = error.raw_os_error() as u32;
                    sure(layer.observer.handle_failed(self.thread, self.fd as u32, Call::Connect, errno));
                    layer.ship();
                    return Err(error);
                }
            }
        }
    }

    /// Makes the link. If the log knew the peer, but not what came of the call, the peer may have left since: then nothing answers. A peer that is lost just now
    /// is called again where it is brought back. So it is if a process has come back just while the link was made: the link may lead to an incarnation that is
    /// over, and what says so has been heard already.
    fn dial(&mut self, mut layer: Held) -> Result<(Held, Outcome<()>), Errno> {
        let mut again = self.again;
        let incarnation = layer.observer.incarnation();
        for _ in 0..CALLS {
            if again {
                let (held, called) = call_up(layer, self.fd, self.to)?;
                layer = held;
                if layer.observer.incarnation() != incarnation {
                    return Ok((layer, None));
                }
                match called {
                    None => return Ok((layer, None)),
                    Some(Ok(Called { peer: Some(peer), .. })) if peer.process == self.peer.process => self.peer = peer,
                    Some(Ok(_)) => return Ok((layer, Some(Err(Errno::CONNREFUSED)))),
                    Some(Err(error)) => return Ok((layer, Some(Err(error)))),
                }
            }
            layer.pass_gate();
            let returned = layer.links.returned();
            // It never waits for as long as the kernel would for a machine that says nothing: that one may be dead, and the peer elsewhere.
            let (at, until) = (self.peer.at.unwrap_or(self.to), sys::now() + LINK_NS);
            let (mut held, linked) = link(layer, self.fd, at, self.blocking, until, false)?;
            held.pass_gate(); // Another thread may have learnt something meanwhile.
            layer = held;
            if layer.observer.incarnation() != incarnation {
                return Ok((layer, None));
            }
            let linked = match linked {
                Link::Settled => settled(self.fd),
                Link::Refused(error) => Err(error),
                Link::Open(_) => Err(Errno::TIMEDOUT),
            };
            match linked {
                Ok(()) if layer.links.returned() == returned => return Ok((layer, Some(linked))),
                Ok(()) => give_up(self.fd),
                Err(Errno::CONNREFUSED | Errno::CONNRESET | Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH) => {
                    give_up(self.fd);
                    layer = pause(layer)?;
                    if layer.observer.incarnation() != incarnation {
                        return Ok((layer, None));
                    }
                }
                Err(_) => return Ok((layer, Some(linked))),
            }
            again = true;
        }
        Ok((layer, Some(Err(Errno::CONNREFUSED))))
    }

    fn greet(&self, layer: &mut Layer) -> Result<(), Errno> {
        let Ok(slot) = self.open(layer) else { layer::fail("the gate has shut again during connect") };
        let Some(hello) = layer.hello(slot) else { layer::fail("a new connection has no greeting") };
        let to = To { process: self.peer.process, incarnation: None };
        if let Err(error) = greeting::write(sys::borrow(self.fd), &layer.greeting_key(&hello.connection), to, &hello) {
            layer.link_ended(slot, reset(error));
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
        if let Some(key) = &self.peer.key {
            layer.set_greeting_key(connection, discreetly(|| key.clone()));
        }
        layer.bound.remove(&self.fd);
        layer.names.insert(self.fd, Names { local: Some(self.local), peer: self.to });
        sure(layer.observer.connect(self.fd as u32, self.peer.process))
    }
}

/// `fd` is a protected connection from now on. What the program has set on the socket, or on the listener that it comes from, holds.
pub(super) fn begin(fd: i32, blocking: bool) {
    if !fds::set(fd, Kind::Connection, blocking) {
        layer::fail(&format!("descriptor {fd} is over the bound on protected descriptors"));
    }
    let socket = sys::borrow(fd);
    let limit = |which| sockopt::socket_timeout(socket, which).is_ok_and(|limit| limit.is_some());
    fds::set_mark(fd, Mark::ReceiveLimit, limit(sockopt::Timeout::Recv));
    fds::set_mark(fd, Mark::SendLimit, limit(sockopt::Timeout::Send));
    fds::set_mark(fd, Mark::Linger, sockopt::socket_linger(socket).is_ok_and(|limit| limit.is_some()));
}
