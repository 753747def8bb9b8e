//! How a call of the program waits: for its own descriptors and the layer's, for what the observer has said, for its turn among the threads of a process
//! that catches up. The layer is not held meanwhile.

use libc::{pollfd, sigset_t};
use radic_observer::Wait;
use radic_observer::connect::PAUSE;
use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::counters::{self, Counter};
use crate::layer::{self, Held, Layer};
use crate::{polling, sys};

/// Waits, without the layer, until one of `fds` has what it waits for, or something came that the layer must look at; a deadline in the time
/// of [`sys::now`]. `TIMEDOUT`: it is over. `INTR`: a signal, for which the call is to end.
pub(super) fn wait(mut layer: Held, fds: &[(i32, PollFlags)], deadline: Option<u64>) -> Result<Held, Errno> {
    if layer.replayer.is_some() {
        return wait_in_replay(layer, deadline);
    }
    // Before the layer looks after everything: from here on the program's signals wait for the kernel's wait, where they end the
    // call. One that came in the layer would not.
    let signals = layer.take_signals();
    layer.tend();
    if layer.links.take_changed() {
        layer.give_signals(signals);
        return Ok(layer);
    }
    let mut polled = [(0, PollFlags::empty()); layer::AWAITED + 4];
    let all = fds.iter().copied().chain(layer.awaited());
    let count = polled.iter_mut().zip(all).map(|(to, from)| *to = from).count();
    let turn = turn(&layer).map(|turn| sys::now() + turn);
    let until = deadline.into_iter().chain(layer.due()).chain(turn).min();
    let (mut layer, polled) = without(layer, || {
        let left = until.map(|until| until.saturating_sub(sys::now()));
        wait_for(&polled[..count], left, &signals.mask())
    })?;
    layer.give_signals(signals);
    match polled {
        Ok(0) if deadline.is_some_and(|deadline| deadline <= sys::now()) => Err(Errno::TIMEDOUT),
        // In replay the log has the signals that ended calls.
        Err(Errno::INTR) if layer.observer.is_replaying() || crate::signals::all_restart() => Ok(layer),
        Err(error) => Err(error),
        Ok(_) => Ok(layer),
    }
}

/// Has the calling thread wait for what other threads do first, on the way back. It may be the last one that could go on.
pub(super) fn for_turn(layer: Held, wait: impl FnOnce(Held) -> Result<Held, Errno>) -> Result<Held, Errno> {
    // Offline each wait is one for other threads.
    if layer.replayer.is_some() { wait(layer) } else { as_last(layer, wait) }
}

fn as_last(mut layer: Held, wait: impl FnOnce(Held) -> Result<Held, Errno>) -> Result<Held, Errno> {
    let asked = layer.look_at_standstill();
    let mut layer = wait(layer)?;
    layer.standstill.handle_wait_over(asked);
    Ok(layer)
}

/// Has the calling thread sleep in the kernel without the layer.
pub(super) fn without<T>(mut layer: Held, sleep: impl FnOnce() -> T) -> Result<(Held, T), Errno> {
    layer.sleepers += 1;
    drop(layer);
    let come = sleep();
    let mut layer = layer::enter_again()?;
    layer.sleepers -= 1;
    Ok((layer, come))
}

/// The same in a process that is replayed offline. None of its descriptors leads anywhere: it waits for its other threads, a
/// moment, and ends with the command that replays it.
fn wait_in_replay(mut layer: Held, deadline: Option<u64>) -> Result<Held, Errno> {
    let turn = sys::now() + TURN_NS;
    layer.handle_wait_in_replay();
    let until = deadline.map_or(turn, |deadline| deadline.min(turn));
    let sleep = || sys::poll(&mut [], Some(sys::span(until.saturating_sub(sys::now()))));
    let layer = as_last(layer, |layer| without(layer, sleep).map(|(layer, _)| layer))?;
    if deadline.is_some_and(|deadline| deadline <= sys::now()) { Err(Errno::TIMEDOUT) } else { Ok(layer) }
}

/// Time between two looks of a call of a process that catches up, in nanoseconds.
const TURN_NS: u64 = 500_000;

/// How long a call of a process that catches up waits at most before it looks again, in nanoseconds; none: for events only. Its
/// outcome may be the next one of the log as soon as another thread has got its own, or has sent again what Gate B waits for; of
/// neither the kernel tells.
pub(super) fn turn(layer: &Layer) -> Option<u64> {
    layer.observer.is_replaying().then(|| {
        counters::add(Counter::Looks, 1);
        TURN_NS
    })
}

/// Whether this process catches up, and what its calls come to is in its log: what the kernel has for them is for later. A call
/// that looked at its own descriptor would find it ready, ask again, and keep the layer from the thread that comes first.
pub(super) fn takes_turns(layer: &Layer) -> bool {
    layer.observer.is_replaying() && layer.replayer.is_none()
}

/// Waits for what the observer has said, for a call that goes on then. Where other threads may have to make their calls first the layer is not held meanwhile.
pub(super) fn take_turns(mut layer: Held, what: Wait) -> Result<Held, Errno> {
    let waits_without = what == Wait::Turn || what.is_for_turn() && takes_turns(&layer);
    match turn(&layer).filter(|_| waits_without) {
        Some(turn) => for_turn(layer, |layer| wait_awhile(layer, &[], sys::now() + turn)),
        None => {
            layer.wait_for(what);
            Ok(layer)
        }
    }
}

/// Waits until what leaves this thread, and is never asked for again, may leave as far as the log goes.
pub(super) fn await_turn_of_output(mut layer: Held) -> Result<Held, Errno> {
    while layer.output_awaits_log() {
        layer = take_turns(layer, Wait::Turn)?;
    }
    Ok(layer)
}

/// The same for a call that goes on when the time is over, or a signal came: neither is an outcome of it.
pub(super) fn wait_awhile(layer: Held, fds: &[(i32, PollFlags)], until: u64) -> Result<Held, Errno> {
    match wait(layer, fds, Some(until)) {
        Err(Errno::TIMEDOUT | Errno::INTR) => layer::enter_again(),
        other => other,
    }
}

/// Looks after everything for a moment: processes that come back may need what this one has sent them.
pub(super) fn pause(layer: Held) -> Result<Held, Errno> {
    wait_awhile(layer, &[], sys::now() + PAUSE.as_nanos() as u64)
}

/// Most descriptors of [`wait_for`].
const AT_ONCE: usize = 2 * layer::AWAITED;

/// Waits for at most [`AT_ONCE`] descriptors, whatever they are, with this mask of signals; in nanoseconds, none: forever. Other
/// than with `rustix`, EINTR is always a signal of the program: the checkpoint engine knows this system call, and makes it again.
fn wait_for(fds: &[(i32, PollFlags)], time: Option<u64>, mask: &sigset_t) -> Result<usize, Errno> {
    // Not on the heap: the layer is not held here, and a signal's handler might find the heap held by its own thread.
    let mut set = [pollfd { fd: -1, events: 0, revents: 0 }; AT_ONCE];
    let entries = fds.iter().map(|(fd, events)| pollfd { fd: *fd, events: events.bits() as i16, revents: 0 });
    let count = set.iter_mut().zip(entries).map(|(to, from)| *to = from).count();
    assert!(count == fds.len(), "at most {AT_ONCE} descriptors are waited for at once");
    polling::poll_within(&mut set[..count], time, Some(mask))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_has_its_time_and_tells_what_came() {
        let (reading, writing) = rustix::pipe::pipe().unwrap();
        let fds = [(sys::number(&reading), PollFlags::IN)];
        let mask = crate::signals::Hold::begin().mask();
        let began = sys::now();
        assert_eq!(wait_for(&fds, Some(5_000_000), &mask), Ok(0));
        assert!(sys::now() - began >= 5_000_000);
        rustix::io::write(&writing, b"x").unwrap();
        assert_eq!(wait_for(&fds, None, &mask), Ok(1));
    }
}
