//! Making connections: `connect`. What is done is decided by [`radic_observer::connect`]; here is what it means for a socket.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use radic_observer::connect::{Connect, Dialed, Outcome, Own, Step};
use radic_observer::connection::Slot;
use radic_observer::found::{Found, Peer};
use radic_observer::links::Links;
use radic_observer::replay::Ask;
use radic_observer::{Context, Error, Ready};
use radic_wire::determinant::{Call, ConnectionId, Determinant};
use radic_wire::log::Greeting;
use radic_wire::mac::JobKey;
use radic_wire::process::{FromNode, ToNode};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt;

use super::address;
use super::waiting::{pause, take_turns, wait};
use crate::counters::{self, Counter};
use crate::ending::{self, sure};
use crate::fds::{self, Kind, Mark};
use crate::greeting::{self, To};
use crate::layer::{self, Held, Layer, Names, context};
use crate::links::reset;
use crate::memory::discreetly;
use crate::sockets::{self, ask_when_silent};
use crate::sys;

pub(super) fn flags_say_blocking(fd: i32) -> bool {
    rustix::fs::fcntl_getfl(sys::borrow(fd)).is_ok_and(|flags| !flags.contains(rustix::fs::OFlags::NONBLOCK))
}

/// `connect`. None: none of ours; it passes through.
pub fn connect(fd: i32, to: Option<SocketAddr>) -> Option<Result<(), Errno>> {
    let to = to?;
    if !address::is_tcp(fd) || fd as usize >= fds::DESCRIPTORS {
        return None;
    }
    let mut layer = layer::enter()?;
    match fds::kind(fd) {
        Kind::Connection | Kind::Alias => return connect_again(layer, fd, &to),
        _ => {}
    }
    look_at_room(&mut layer);
    let blocking = flags_say_blocking(fd);
    let limit = sockopt::socket_timeout(sys::borrow(fd), sockopt::Timeout::Send).ok().flatten().filter(|_| blocking);
    let until = limit.map(|limit| Duration::from_nanos(sys::now()) + limit);
    let call = Connect::new(layer.thread(), fd as u32, to, blocking).until(until);
    Connecting { fd, to, blocking, call, key: None }.run(layer).unwrap_or_else(|error| Some(Err(error)))
}

/// A call under way.
struct Connecting {
    fd: i32,
    to: SocketAddr,
    blocking: bool,
    call: Connect,
    /// For the greeting, if the process that is called is of another job.
    key: Option<JobKey>,
}

impl Connecting {
    fn run(mut self, mut layer: Held) -> Result<Option<Result<(), Errno>>, Errno> {
        loop {
            let step = self.tell(&mut layer, |call, cx, links| call.next(cx, links));
            layer = match step {
                Step::Wait(what) => take_turns(layer, what)?,
                Step::Pause => pause(layer)?,
                Step::Dial { at, until } => self.dial(layer, at, until)?,
                Step::Call { to, until } => self.call(layer, to, until)?,
                Step::Over(outcome) => return Ok(self.end(&mut layer, outcome)),
                at_once => {
                    self.do_at_once(&mut layer, at_once);
                    layer
                }
            };
        }
    }

    fn tell<T>(
        &mut self,
        layer: &mut Layer,
        input: impl FnOnce(&mut Connect, &mut Context<'_>, &mut Links) -> Result<T, Error>,
    ) -> T {
        let Layer { observer, links, .. } = layer;
        sure(input(&mut self.call, &mut context(observer), links))
    }

    fn do_at_once(&mut self, layer: &mut Layer, step: Step) {
        match step {
            Step::Bind => {
                let bound = self.bind(layer).map_err(|error| error.raw_os_error() as u32);
                self.tell(layer, |call, cx, _| call.handle_bound(cx, bound));
            }
            Step::Ask { from, to } => self.ask(layer, from, to),
            // A socket that has nothing under way is as good.
            Step::GiveUp => _ = rustix::net::connect_unspec(sys::borrow(self.fd)),
            Step::Report { from, to, made } => self.report(layer, from, to, made),
            Step::Take(slot, greeting) => self.take(layer, slot, greeting),
            Step::Leave(slot) => {
                self.become_connection(layer, slot);
                counters::add(Counter::Connections, 1);
                self.tell(layer, |_, cx, links| {
                    links.handle_under_way(cx, slot);
                    Ok(())
                });
            }
            Step::Wait(_) | Step::Pause | Step::Dial { .. } | Step::Call { .. } | Step::Over(_) => {}
        }
    }

    fn bind(&self, layer: &Layer) -> Result<Own, Errno> {
        let from = address::bind_source(self.fd, &self.to)?;
        let told = layer.bound.get(&self.fd).filter(|told| !told.ip().is_unspecified());
        Ok(Own { local: told.map_or(from, |told| SocketAddr::new(told.ip(), from.port())), from })
    }

    fn ask(&mut self, layer: &mut Layer, from: SocketAddr, to: SocketAddr) {
        let connection = layer.observer.next_connection();
        let (key, found) = layer.inquire(
            |ask| ToNode::Connecting { ask, connection, from, to },
            |answer| {
                let FromNode::Peer { ask, peer, ref key, at, later, machine } = *answer else { return None };
                let peer = peer.map(|process| Peer { process, at });
                Some((ask, (discreetly(|| key.clone()), Found { peer, later, machine })))
            },
            || format!("which process listens at {to}"),
        );
        self.key = key;
        self.tell(layer, |call, cx, links| call.handle_found(cx, links, found));
    }

    fn report(&self, layer: &mut Layer, from: SocketAddr, to: SocketAddr, made: bool) {
        let said = ToNode::CallsNobody { connection: layer.observer.next_connection(), from, to, made };
        if let Err(error) = layer.node.send(&said) {
            ending::fail(&format!("its node does not learn what has come of a call to {to}: {error}"));
        }
        if made {
            layer.note_unprotected(&self.to);
        }
    }

    /// A connection with a protected process.
    fn dial(&mut self, layer: Held, at: SocketAddr, until: Duration) -> Result<Held, Errno> {
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        let (mut layer, link) = link(layer, self.fd, at, self.blocking, until, false)?;
        let dialed = match link {
            Link::Settled => match sockets::settled(self.fd) {
                Ok(()) => Dialed::Made,
                Err(error) => Dialed::Failed(error.raw_os_error() as u32),
            },
            Link::Refused(error) => Dialed::Failed(error.raw_os_error() as u32),
            Link::Open(error) => Dialed::Open(error.map(|error| error.raw_os_error() as u32)),
        };
        self.tell(&mut layer, |call, cx, links| call.handle_dialed(cx, links, dialed));
        Ok(layer)
    }

    /// Connects the program's own socket. The result of a non-blocking connect stays in the socket; a second `connect` returns
    /// it, and the socket can be used again then.
    fn call(&mut self, layer: Held, to: SocketAddr, until: Option<Duration>) -> Result<Held, Errno> {
        let until =
            until.map_or_else(|| sys::now() + send_limit(self.fd), |until| u64::try_from(until.as_nanos()).unwrap_or(u64::MAX));
        let (mut layer, link) = link(layer, self.fd, to, self.blocking, until, self.blocking)?;
        let socket = sys::borrow(self.fd);
        let number = |error: Errno| error.raw_os_error() as u32;
        let dialed = match link {
            Link::Settled if self.blocking => {
                rustix::net::connect(socket, &to).map_or_else(|error| Dialed::Failed(number(error)), |()| Dialed::Made)
            }
            Link::Settled if rustix::net::getpeername(socket).is_ok() => Dialed::Made,
            Link::Settled => Dialed::Failed(number(Errno::CONNREFUSED)),
            Link::Refused(error) => Dialed::Failed(number(error)),
            Link::Open(error) => Dialed::Open(error.map(number)),
        };
        self.tell(&mut layer, |call, cx, links| call.handle_dialed(cx, links, dialed));
        Ok(layer)
    }

    /// The descriptor is this connection from now on, and is greeted, except in replay.
    fn take(&mut self, layer: &mut Layer, slot: Slot, greeting: Option<Greeting>) {
        let connection = self.become_connection(layer, slot);
        let Some((_, process)) = self.call.target() else { ending::fail("a connection is made with no process") };
        if let Some(greeting) = greeting {
            let hello = Greeting { ends: layer.ends(slot), ..greeting };
            let (to, key) = (To { process, incarnation: None }, layer.greeting_key(&connection));
            if let Err(error) = greeting::write(sys::borrow(self.fd), &key, to, &hello) {
                layer.link_ended(slot, reset(error));
            }
            counters::add(Counter::Connections, 1);
        } else {
            layer.handle_taken(slot);
        }
    }

    fn become_connection(&mut self, layer: &mut Layer, slot: Slot) -> ConnectionId {
        let Some((local, process)) = self.call.target() else { ending::fail("a connection is made with no process") };
        let Some(connection) = layer.observer.table().get(slot).map(|connection| connection.id) else {
            ending::fail("a connection that was made is not there")
        };
        // Keys are in no log.
        if self.key.is_none() && process.job != layer.observer.process().job && layer.replayer.is_none() {
            self.key = Some(layer.ask_greeting_key(connection, process));
        }
        if let Some(key) = self.key.take() {
            layer.set_greeting_key(connection, key);
        }
        layer.bound.remove(&self.fd);
        layer.names.insert(self.fd, Names { local: Some(local), peer: self.to });
        begin(self.fd, self.blocking);
        connection
    }

    /// What the program is told. None: its call is made again, as it is.
    fn end(&self, layer: &mut Layer, outcome: Outcome) -> Option<Result<(), Errno>> {
        layer.ship();
        let failed = |errno: u32| Err(Errno::from_raw_os_error(errno as i32));
        const UNDER_WAY: u32 = Errno::INPROGRESS.raw_os_error() as u32;
        let is_told = outcome == Outcome::Failed(UNDER_WAY);
        let is_open = is_told || matches!(outcome, Outcome::Refused | Outcome::Unprotected(Some(UNDER_WAY)));
        layer.calls.handle_called(self.fd, is_open, is_told && layer.observer.is_replaying());
        let errno = match outcome {
            Outcome::Connected if self.blocking => return Some(Ok(())),
            Outcome::Connected | Outcome::UnderWay => return Some(Err(Errno::INPROGRESS)),
            Outcome::Failed(errno) => return Some(failed(errno)),
            Outcome::Refused => return Some(Err(sockets::refuse_again(self.fd, &self.to))),
            Outcome::Unprotected(errno) => errno,
        };
        if fds::kind(self.fd) == Kind::Bound {
            layer.bound.remove(&self.fd);
            fds::clear(self.fd);
        }
        if errno.is_none() {
            // Unlogged, but what is sent there leaves the process, too.
            layer.pass_gate();
            layer.note_unprotected(&self.to);
        }
        errno.map(|errno| if errno == 0 { Ok(()) } else { failed(errno) })
    }
}

/// A further call asks how the first one fares: an outcome.
fn connect_again(mut layer: Held, fd: i32, to: &SocketAddr) -> Option<Result<(), Errno>> {
    let fd = layer.primary(fd);
    let slot = layer.observer.table().slot_of(fd as u32).ok()?;
    let thread = layer.thread();
    loop {
        layer = match sure(layer.observer.ask(thread, Ask::Connect { fd: fd as u32 }, true)) {
            Ready::Live => break,
            Ready::Outcome(0) => return Some(Ok(())),
            Ready::Outcome(errno) => return Some(Err(Errno::from_raw_os_error(errno as i32))),
            Ready::Wait(what) => match take_turns(layer, what) {
                Ok(held) => held,
                Err(error) => return Some(Err(error)),
            },
            Ready::Nothing | Ready::Set(_) => return Some(Err(Errno::INVAL)),
        };
    }
    let (mut layer, result) = match fare(layer, fd, slot, to) {
        Ok(known) => known,
        Err(error) => return Some(Err(error)),
    };
    sure(match result {
        Ok(()) => layer.observer.handle_outcome(thread, &Determinant::Connected { fd: fd as u32 }),
        Err(error) => layer.observer.handle_failed(thread, fd as u32, Call::Connect, error.raw_os_error() as u32),
    });
    layer.ship();
    Some(result)
}

/// What has come of a `connect` that was under way. A call that waits waits for that, as long as the program wants.
fn fare(mut layer: Held, fd: i32, slot: Slot, to: &SocketAddr) -> Result<(Held, Result<(), Errno>), Errno> {
    let until = if flags_say_blocking(fd) { sys::now() + send_limit(fd) } else { 0 };
    layer.look_at_under_way(true);
    while layer.is_under_way(slot) {
        layer = match wait(layer, &[(fd, PollFlags::OUT)], Some(until)) {
            Ok(held) => held,
            Err(error) => {
                let errno = if error == Errno::TIMEDOUT { Errno::ALREADY } else { error };
                return Ok((layer::enter_again()?, Err(errno)));
            }
        };
        layer.look_at_under_way(true);
    }
    let result = match layer.observer.take_refusal(slot) {
        0 if layer.is_away(fd) => Err(Errno::ISCONN),
        // The call does not wait, and there is a connection. The kernel reports success once, then EISCONN.
        0 => rustix::net::connect(sys::borrow(fd), to),
        errno => {
            _ = sockets::settled(fd);
            Err(Errno::from_raw_os_error(errno))
        }
    };
    Ok((layer, result))
}

/// How long a `connect` of the program may wait, in nanoseconds.
fn send_limit(fd: i32) -> u64 {
    /// Longer than the kernel tries.
    const KERNEL_NS: u64 = 3_600_000_000_000;
    let limit = sockopt::socket_timeout(sys::borrow(fd), sockopt::Timeout::Send).ok().flatten();
    limit.map_or(KERNEL_NS, |limit| u64::try_from(limit.as_nanos()).unwrap_or(KERNEL_NS).min(KERNEL_NS))
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

/// Closed connections leave the table only when images of both ends cover that: one is asked for in time. The program is told once of a table that is full.
pub(super) fn look_at_room(layer: &mut Layer) {
    /// Connections after which another image is asked for, while the table is fuller than three quarters.
    const AGAIN: usize = 256;
    static SAID: AtomicBool = AtomicBool::new(false);
    let (room, size) = layer.observer.table().room();
    if room < size / 4 && room.is_multiple_of(AGAIN) {
        layer::want_checkpoint();
    }
    if room == 0 && !layer.observer.is_replaying() && !SAID.swap(true, Ordering::Relaxed) {
        layer.note(&format!(
            "it has {size} connections, counting closed ones that no checkpoint covers yet: more of them fail with ENFILE"
        ));
    }
}

/// `fd` is a protected connection from now on. What the program has set on the socket, or on the listener that it comes from, holds.
pub(super) fn begin(fd: i32, blocking: bool) {
    if !fds::set(fd, Kind::Connection, blocking) {
        ending::fail(&format!("descriptor {fd} is over the bound on protected descriptors"));
    }
    let socket = sys::borrow(fd);
    let limit = |which| sockopt::socket_timeout(socket, which).is_ok_and(|limit| limit.is_some());
    fds::set_mark(fd, Mark::ReceiveLimit, limit(sockopt::Timeout::Recv));
    fds::set_mark(fd, Mark::SendLimit, limit(sockopt::Timeout::Send));
    ask_when_silent(socket);
    fds::set_mark(fd, Mark::Linger, sockopt::socket_linger(socket).is_ok_and(|limit| limit.is_some()));
}
