//! What happens to descriptors: close, dup, flags, options.

use std::sync::atomic::{AtomicBool, Ordering};

use radic_observer::Ready;
use radic_observer::connection::{Connection, Slot};
use radic_observer::replay::Ask;
use radic_wire::determinant::Determinant;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt;

use super::accept;
use super::waiting::take_turns;
use crate::counters::{self, Counter};
use crate::ending::sure;
use crate::fds::{self, Kind, Mark};
use crate::layer::{self, Layer, Names};
use crate::links::reset;
use crate::{calls, children, sys, watches};

/// Before the program closes `fd`: afterwards the real close passes through. An error: the program must not close it.
pub fn closing(fd: i32) -> Result<(), Errno> {
    match fds::kind(fd) {
        Kind::Other => {
            watches::number_closed(fd);
            if calls::may_be_lost(fd)
                && let Some(mut layer) = layer::enter()
            {
                // The number may be another socket's next.
                layer.calls.take_lost(fd);
            }
            return Ok(());
        }
        Kind::Epoll => {
            watches::number_closed(fd);
            watches::closed(fd);
            return Ok(());
        }
        Kind::Own => return Err(Errno::BADF),
        // Nothing of it has left the process: its close need not wait.
        Kind::Bound => {
            watches::number_closed(fd);
            fds::clear(fd);
            if let Some(mut layer) = layer::enter() {
                layer.bound.remove(&fd);
            }
            return Ok(());
        }
        Kind::Random => {
            fds::clear(fd);
            return Ok(());
        }
        Kind::Connection | Kind::Listener | Kind::Alias | Kind::Output | Kind::Input | Kind::Pmi => {}
    }
    let Some(mut layer) = layer::enter_for_connection() else { return Ok(()) };
    layer.bound.remove(&fd);
    match fds::kind(fd) {
        Kind::Listener => accept::stop_listening(&mut layer, fd),
        Kind::Alias => layer.aliases.retain(|(alias, _)| *alias != fd),
        Kind::Output | Kind::Input => {}
        Kind::Pmi => {
            layer.finish_pmi();
            layer.pmi.handle_closed();
        }
        _ => close_connection(&mut layer, fd),
    }
    watches::number_closed(fd);
    fds::clear(fd);
    Ok(())
}

fn close_connection(layer: &mut Layer, fd: i32) {
    let Ok(slot) = layer.observer.table().slot_of(fd as u32) else { return };
    if let Some(at) = layer.aliases.iter().position(|(_, primary)| *primary == fd) {
        // The connection stays open under another number.
        let (alias, _) = layer.aliases.swap_remove(at);
        sure(layer.observer.handle_moved(fd as u32, alias as u32));
        layer.aliases.iter_mut().filter(|(_, primary)| *primary == fd).for_each(|(_, primary)| *primary = alias);
        fds::set_like(alias, Kind::Connection, fd);
        if let Some(names) = layer.names.remove(&fd) {
            layer.names.insert(alias, names);
        }
        return;
    }
    note_left_to_child(layer, slot);
    layer.finish(fd, slot, true);
    if fds::has(fd, Mark::Linger) {
        linger(layer, fd, slot);
    }
    end_connection(layer, fd, slot);
}

/// A server that forks for each connection closes its own copy of it unused. The connection ends with that, also for the child,
/// because the end of a protected stream is the rank's: that is told, once (G7).
fn note_left_to_child(layer: &mut Layer, slot: Slot) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let is_unused = |connection: &Connection| {
        !connection.opened_here && connection.incoming().wanted() == 0 && connection.outgoing().end() == 0
    };
    let is_left = || layer.observer.table().get(slot).is_some_and(is_unused) && children::are_there();
    if is_left() && !SAID.swap(true, Ordering::Relaxed) {
        layer.note(
            "it leaves to a child a connection that it has accepted: that is cut off, for no child is protected; a server that does so runs in the job without protection \
             of its own (unset LD_PRELOAD before it)",
        );
    }
}

/// `close` of a socket with SO_LINGER. With a time it waits until the kernel has everything, and then in the kernel. With 0 the kernel would throw
/// away what the peer has not got, and reset: a protected connection ends in order, since what was sent must arrive whatever dies (G2).
fn linger(layer: &mut Layer, fd: i32, slot: Slot) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let socket = sys::borrow(fd);
    let Ok(Some(limit)) = sockopt::socket_linger(socket) else { return };
    if limit.is_zero() {
        _ = sockopt::set_socket_linger(socket, None);
        if !SAID.swap(true, Ordering::Relaxed) {
            layer.note(
                "it closes connections by a reset (SO_LINGER with 0): the peers of protected ones see them end in order instead",
            );
        }
    }
    let deadline = sys::now() + limit.as_nanos() as u64;
    while layer.is_unsent(slot) && sys::now() < deadline {
        _ = sys::wait_for(socket, PollFlags::OUT, 10);
        layer.tend();
    }
}

/// Says something in the node's log, once.
pub fn note_once(said: &AtomicBool, text: &str) {
    if !said.swap(true, Ordering::Relaxed)
        && let Some(mut layer) = layer::enter()
    {
        layer.note(text);
    }
}

fn end_connection(layer: &mut Layer, fd: i32, slot: Slot) {
    if layer.is_unsent(slot) {
        layer.linger(slot, fd);
    }
    while sure(layer.observer.close(fd as u32)).is_some() {
        layer.pass_gate();
    }
    counters::add(Counter::Connections, 1u64.wrapping_neg());
}

/// After `dup` and its kin have made `new` from `old`.
pub fn duplicated(old: i32, new: i32) {
    let kind = fds::kind(old);
    if old == new || matches!(kind, Kind::Other | Kind::Own) {
        return;
    }
    if kind == Kind::Epoll {
        return watches::duplicated(old, new);
    }
    if matches!(kind, Kind::Output | Kind::Input | Kind::Random) {
        return fds::set_like(new, kind, old);
    }
    let Some(mut layer) = layer::enter() else { return };
    if let Some(address) = layer.bound.get(&old).copied() {
        layer.bound.insert(new, address);
    }
    match kind {
        Kind::Bound => fds::set_like(new, kind, old),
        Kind::Connection | Kind::Alias => {
            let primary = layer.primary(old);
            [primary, new].into_iter().for_each(watches::note_intricate);
            layer.aliases.push((new, primary));
            fds::set_like(new, Kind::Alias, primary);
        }
        Kind::Listener => {
            layer.listeners.handle_duplicated(old as u32, new as u32);
            fds::set_like(new, Kind::Listener, old);
        }
        _ => {}
    }
}

/// The program has set the flags of `fd`: all its descriptors share them.
pub fn set_blocking(fd: i32, blocking: bool) {
    for_all(fd, |fd| fds::set_blocking(fd, blocking));
}

/// The program has set or cleared an option of the socket behind `fd`.
pub fn set_mark(fd: i32, mark: Mark, on: bool) {
    for_all(fd, |fd| fds::set_mark(fd, mark, on));
}

/// For all descriptors of what is behind `fd`.
fn for_all(fd: i32, set: impl Fn(i32)) {
    set(fd);
    let kind = fds::kind(fd);
    let Some(layer) = matches!(kind, Kind::Connection | Kind::Alias | Kind::Listener).then(layer::enter).flatten() else {
        return;
    };
    if kind == Kind::Listener {
        return layer.listeners.others(fd as u32).for_each(|fd| set(fd as i32));
    }
    let primary = layer.primary(fd);
    set(primary);
    layer.aliases.iter().filter(|(_, of)| *of == primary).for_each(|(alias, _)| set(*alias));
}

/// `getsockopt(SO_ERROR)`. None: it passes through.
pub fn socket_error(fd: i32) -> Option<Result<i32, Errno>> {
    let mut layer = layer::enter()?;
    let fd = layer.primary(fd);
    if calls::may_be_lost(fd) && layer.calls.take_lost(fd) {
        return Some(Ok(libc::ECONNREFUSED));
    }
    let slot = layer.observer.table().slot_of(fd as u32).ok()?;
    let thread = layer.thread();
    loop {
        match sure(layer.observer.ask(thread, Ask::SoError { fd: fd as u32 }, true)) {
            Ready::Live => break,
            Ready::Outcome(errno) => return Some(Ok(errno as i32)),
            Ready::Wait(other) => match take_turns(layer, other) {
                Ok(held) => layer = held,
                Err(error) => return Some(Err(error)),
            },
            Ready::Nothing | Ready::Set(_) => return Some(Err(Errno::INVAL)),
        }
    }
    layer.look_at_under_way(true);
    let errno = match sockopt::socket_error(sys::borrow(fd)) {
        Ok(Ok(())) => layer.observer.take_refusal(slot),
        Ok(Err(error)) => {
            layer.link_ended(slot, reset(error));
            layer.observer.take_refusal(slot)
        }
        Err(error) => return Some(Err(error)),
    };
    sure(layer.observer.handle_outcome(thread, &Determinant::SoError { fd: fd as u32, errno: errno as u32 }));
    layer.ship();
    Some(Ok(errno))
}

/// The addresses of the connection on `fd`, as the program saw them first: its sockets come and go. None: it is none.
pub fn names(fd: i32) -> Option<Names> {
    let layer = layer::enter()?;
    layer.names.get(&layer.primary(fd)).copied()
}

/// Whether a call on the socket behind `fd` may fail for the reason alone that it is another one than the program had.
pub fn is_another(fd: i32) -> bool {
    layer::enter().is_some_and(|layer| layer.is_replayed() && layer.names.contains_key(&layer.primary(fd)))
}

/// The descriptor that has the options of the connection on `fd`, when its link is broken. None: it is the same.
pub fn options_of(fd: i32) -> Option<i32> {
    let layer = layer::enter()?;
    Some(layer.options_of(fd)).filter(|other| *other != fd)
}
