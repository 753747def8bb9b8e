//! Bytes on protected connections.

use std::io::{IoSlice, IoSliceMut};

use radic_observer::connection::{Connection, Link, Slot};
use radic_observer::links::Ending;
use radic_observer::{Observer, Receive, Send, Source, Transmit, Unread, Wait};
use radic_wire::determinant::Call;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt;

use super::waiting::{for_turn, take_turns, takes_turns, wait, wait_awhile};
use crate::buffers::{clip_mut, pieces};
use crate::counters::{self, Counter};
use crate::ending::sure;
use crate::fds::{self, Mark};
use crate::layer::{self, Held, Layer};
use crate::links::reset;
use crate::{starved, sys};

/// Bytes of a message that leaves before it is kept.
const LARGE: usize = 4 << 10;
/// Bytes that are offered to the socket, and then kept, in turn: they are still in the processor's cache, and the receiver takes
/// one piece while the next one is on its way.
const PIECE: usize = 512 << 10;
/// Bytes of a message which the outbox does not take as a whole, that are kept before they are offered to the socket.
const PART: usize = 8 << 20;

/// What a receiving call wants besides bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct How {
    /// MSG_DONTWAIT.
    pub dont_wait: bool,
    /// MSG_PEEK.
    pub peek: bool,
    /// MSG_WAITALL.
    pub all: bool,
}

impl How {
    /// From the flags of a call. There is no urgent byte and no queue of errors on a protected connection, and bytes cannot be dropped unseen.
    pub fn of(flags: i32) -> Result<How, Errno> {
        let has = |flag| flags & flag != 0;
        if has(libc::MSG_OOB) {
            return Err(Errno::INVAL);
        }
        if has(libc::MSG_ERRQUEUE) {
            return Err(Errno::AGAIN);
        }
        if has(libc::MSG_TRUNC) {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(How { dont_wait: has(libc::MSG_DONTWAIT), peek: has(libc::MSG_PEEK), all: has(libc::MSG_WAITALL) })
    }
}

/// `recv` and its kin. None: the layer does not watch; the call passes through. Inlined, and what it calls down to the system call, for
/// the processor predicts none of the returns that come after that.
#[inline(always)]
pub fn receive(fd: i32, buffers: &mut [IoSliceMut<'_>], how: How) -> Option<Result<usize, Errno>> {
    let mut layer = layer::enter_for_connection()?;
    let fd = layer.primary(fd);
    if layer.observer.table().slot_of(fd as u32).is_err() {
        return None; // Closed by another thread meanwhile.
    }
    let total = buffers.iter().map(|buffer| buffer.len()).sum();
    Some(Receiving { fd, how, thread: layer.thread(), total, filled: 0, told: 0, deadline: None }.run(layer, buffers))
}

/// Bytes that can be received on the protected connection `fd` without waiting (FIONREAD). None: the layer does not watch; the call passes through.
pub fn unread(fd: i32) -> Option<i32> {
    let mut layer = layer::enter_for_connection()?;
    let (fd, thread) = (layer.primary(fd), layer.thread());
    loop {
        let slot = layer.observer.table().slot_of(fd as u32).ok()?;
        let (in_link, causes) = layer.unread_by_program(slot, sys::borrow(fd));
        match sure(layer.observer.unread(thread, fd as u32, (in_link, &causes))) {
            Unread::Told(0) => {
                if layer.is_time_to_tend() {
                    layer.look_for_end(fd);
                }
                layer.note_nothing();
                return Some(0);
            }
            Unread::Told(count) => {
                counters::add(Counter::Events, 1);
                // It may wait for more of them.
                layer.note_waiting();
                return Some(i32::try_from(count).unwrap_or(i32::MAX));
            }
            Unread::Wait(other) => layer = take_turns(layer, other).ok()?,
        }
    }
}

/// Bytes that wait on the protected connection `fd` to be sent (SIOCOUTQNSD) or acknowledged (SIOCOUTQ): always none, for the outbox has them, and
/// they arrive whatever dies. None: the layer does not watch; the call passes through.
pub fn unsent(fd: i32) -> Option<i32> {
    let mut layer = layer::enter_for_connection()?;
    layer.note_waiting();
    Some(0).filter(|_| layer.observer.table().slot_of(layer.primary(fd) as u32).is_ok())
}

struct Receiving {
    fd: i32,
    how: How,
    thread: u32,
    total: usize,
    filled: usize,
    /// Bytes of outcomes that are over: in replay one may come in pieces.
    told: usize,
    deadline: Option<u64>,
}

impl Receiving {
    #[inline(always)]
    fn run(mut self, mut layer: Held, buffers: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        if self.total == 0 {
            return Ok(0);
        }
        let waits = fds::is_blocking(self.fd) && !self.how.dont_wait;
        // A call with a time limit may find nothing.
        let blocking = waits && !fds::has(self.fd, Mark::ReceiveLimit);
        loop {
            let left = self.total - self.told;
            let live = if self.how.peek { None } else { layer.observer.takes_from_link(self.fd as u32, left) };
            let (len, owed) = match live {
                Some(len) => (len, false),
                None => match self.ask(layer, buffers, waits, blocking)? {
                    (held, Next::Take { len, owed }) => {
                        layer = held;
                        (len, owed)
                    }
                    (held, Next::Again) => {
                        layer = held;
                        continue;
                    }
                    (_, Next::Over) => return Ok(self.filled),
                },
            };
            match self.take(&mut layer, buffers, len)? {
                Taken::All => return Ok(self.filled),
                Taken::Some => {}
                Taken::Nothing if !waits && !owed => return self.nothing(&mut layer),
                Taken::Nothing => {
                    // Of a process that is replayed alone no peer sends what its log does not hold.
                    layer.end_replay_that_waits();
                    layer = self.wait(layer)?;
                }
            }
        }
    }

    /// Asks the observer, and does what it says unless bytes are to be taken from the socket.
    #[cold]
    fn ask(
        &mut self,
        mut layer: Held,
        buffers: &mut [IoSliceMut<'_>],
        waits: bool,
        blocking: bool,
    ) -> Result<(Held, Next), Errno> {
        let (fd, left) = (self.fd as u32, self.total - self.told);
        let answer = if self.how.peek {
            layer.observer.peek(self.thread, fd, left, blocking)
        } else {
            layer.observer.receive(self.thread, fd, left, blocking)
        };
        match sure(answer) {
            Receive::Take { source: Source::Link, len, owed, .. } => return Ok((layer, Next::Take { len, owed })),
            Receive::Take { source: Source::Log, stream, offset, len, .. } => {
                let room = &mut clip_mut(buffers, self.filled, len);
                let got = layer.fetch_payload(stream, offset, room);
                let more = if self.how.peek && got == len { self.peek_past_log(&mut layer, buffers, got) } else { 0 };
                if self.report(&mut layer, buffers, Source::Log, got + more).is_some() {
                    return Ok((layer, Next::Over));
                }
                if self.how.peek {
                    // In the recorded run more was there.
                    layer = take_turns(layer, Wait::Event)?;
                }
            }
            Receive::End => {
                layer.ship();
                return Ok((layer, Next::Over));
            }
            Receive::Failed(errno) => return Err(Errno::from_raw_os_error(errno as i32)),
            Receive::Nothing if waits => layer = self.wait(layer)?,
            Receive::Nothing => return self.after_nothing(&mut layer).map(|_| (layer, Next::Over)),
            Receive::Wait(Wait::Payload) => layer.wait_for_payload(),
            Receive::Wait(Wait::Event) if !takes_turns(&layer) => layer = self.wait(layer)?,
            Receive::Wait(other) => layer = take_turns(layer, other)?,
        }
        Ok((layer, Next::Again))
    }

    /// Looks at what follows the first `seen` bytes, which are all that the protector's log has. On the way back a call was told
    /// of more than that, if the program had taken only a part of it before the end. Returns how many bytes follow.
    fn peek_past_log(&self, layer: &mut Layer, buffers: &mut [IoSliceMut<'_>], seen: usize) -> usize {
        let slot = sure(layer.observer.table().slot_of(self.fd as u32));
        let is_up = layer.observer.table().get(slot).is_some_and(|connection| connection.link() == Link::Up);
        if !is_up || !layer.observer.is_replaying() || seen == self.total {
            return 0;
        }
        let room = &mut clip_mut(buffers, seen, self.total - seen);
        layer.peek_link(slot, sys::borrow(self.fd), room, self.total - seen).unwrap_or(0)
    }

    /// Takes bytes from the socket, if there are any.
    #[inline(always)]
    fn take(&mut self, layer: &mut Layer, buffers: &mut [IoSliceMut<'_>], len: usize) -> Result<Taken, Errno> {
        let (socket, slot) = (sys::borrow(self.fd), sure(layer.observer.table().slot_of(self.fd as u32)));
        let received = if self.how.peek {
            layer.peek_link(slot, socket, buffers, len)
        } else {
            layer.read_link(slot, socket, buffers, (self.filled, len))
        };
        match received {
            Ok(0) => self.end(layer),
            Ok(count) => Ok(match self.report(layer, buffers, Source::Link, count) {
                Some(_) => Taken::All,
                None => Taken::Some,
            }),
            Err(Errno::AGAIN) => Ok(Taken::Nothing),
            Err(Errno::INTR) => Ok(Taken::Some),
            // The memory between the first page and the last: the program learns it, and so it does again.
            Err(Errno::FAULT) if self.filled == 0 => {
                sure(layer.observer.handle_failed(self.thread, self.fd as u32, Call::Recv, libc::EFAULT as u32));
                layer.ship();
                Err(Errno::FAULT)
            }
            Err(error) if self.filled > 0 => {
                _ = error;
                Ok(Taken::All) // The next call finds it.
            }
            Err(error) => {
                self.ended(layer, reset(error));
                Ok(Taken::Some)
            }
        }
    }

    /// The socket says that nothing more comes: the program has wanted that, or the socket has ended.
    #[cold]
    fn end(&self, layer: &mut Layer) -> Result<Taken, Errno> {
        let slot = sure(layer.observer.table().slot_of(self.fd as u32));
        if !layer.is_shut(slot) {
            self.ended(layer, Ending::End);
            return Ok(Taken::Some);
        }
        if self.filled == 0 {
            let (thread, fd) = (self.thread, self.fd as u32);
            let end = if self.how.peek { Observer::handle_peeked_end } else { Observer::handle_shut };
            sure(end(&mut layer.observer, thread, fd));
            layer.ship();
        }
        Ok(Taken::All)
    }

    /// The socket has ended; whether the stream has, the sender's node knows.
    #[cold]
    fn ended(&self, layer: &mut Layer, how: Ending) {
        let slot = sure(layer.observer.table().slot_of(self.fd as u32));
        layer.link_ended(slot, how);
    }

    /// Bytes are in the buffers. What the call returns, if it is over.
    #[inline(never)]
    fn report(&mut self, layer: &mut Layer, buffers: &[IoSliceMut<'_>], source: Source, count: usize) -> Option<usize> {
        if self.how.peek {
            let told = sure(layer.observer.handle_peeked(self.thread, self.fd as u32, count));
            counters::add(Counter::Events, 1);
            layer.ship();
            self.filled += told?;
            return Some(self.filled);
        }
        let parts = pieces(buffers, self.filled, count);
        let told = sure(layer.observer.handle_received_parts(self.thread, self.fd as u32, source, parts));
        self.filled += count;
        counters::add(Counter::BytesIn, count as u64);
        told?;
        self.told = self.filled;
        counters::add(Counter::Events, 1);
        counters::add(Counter::MessagesIn, 1);
        layer.ship_received();
        layer.note_received();
        (!self.how.all || self.filled == self.total).then_some(self.filled)
    }

    #[inline]
    fn nothing(&self, layer: &mut Layer) -> Result<usize, Errno> {
        if self.filled > 0 {
            return Ok(self.filled);
        }
        sure(layer.observer.handle_nothing(self.thread));
        self.after_nothing(layer)
    }

    #[inline]
    fn after_nothing(&self, layer: &mut Layer) -> Result<usize, Errno> {
        layer.note_nothing();
        if self.filled > 0 { Ok(self.filled) } else { Err(Errno::AGAIN) }
    }

    #[cold]
    fn wait(&mut self, layer: Held) -> Result<Held, Errno> {
        if fds::has(self.fd, Mark::ReceiveLimit) && self.deadline.is_none() {
            self.deadline = deadline(self.fd, sockopt::Timeout::Recv);
        }
        match wait(layer, &[(self.fd, PollFlags::IN)], self.deadline) {
            Err(error @ (Errno::TIMEDOUT | Errno::INTR)) => {
                let mut layer = layer::enter_again()?;
                let told = match error {
                    Errno::INTR => Errno::INTR,
                    // Bytes that the program knows of are on their way once more. No call finds nothing there: it fails.
                    _ if self.filled == 0 && layer.observer.is_owed(self.fd as u32) => Errno::AGAIN,
                    _ => return self.nothing(&mut layer).map(|_| layer),
                };
                sure(layer.observer.handle_failed(self.thread, self.fd as u32, Call::Recv, told.raw_os_error() as u32));
                layer.ship();
                Err(told)
            }
            other => other,
        }
    }
}

/// When a call that begins now is to end, by the socket's limit.
fn deadline(fd: i32, which: sockopt::Timeout) -> Option<u64> {
    let limit = sockopt::socket_timeout(sys::borrow(fd), which).ok().flatten();
    limit.map(|limit| sys::now() + limit.as_nanos() as u64)
}

/// What a receiving call does when the observer was asked.
enum Next {
    /// It takes at most `len` bytes from the socket; they are `owed`: it waits for them.
    Take {
        len: usize,
        owed: bool,
    },
    Again,
    /// It returns what it has.
    Over,
}

enum Taken {
    All,
    Some,
    Nothing,
}

/// `send` and its kin. None: the layer does not watch. Inlined as [`receive`] is.
#[inline(always)]
pub fn send(fd: i32, buffers: &[IoSlice<'_>], flags: i32) -> Option<Result<usize, Errno>> {
    if layer::rest() {
        // The connection has ended, and what this would send no peer gets: as if the kernel had ended the process just after the call.
        return Some(Ok(buffers.iter().map(|buffer| buffer.len()).sum()));
    }
    let mut layer = layer::enter_for_connection()?;
    let fd = layer.primary(fd);
    let slot = layer.observer.table().slot_of(fd as u32).ok()?;
    let waits = fds::is_blocking(fd) && flags & libc::MSG_DONTWAIT == 0;
    let limited = waits && fds::has(fd, Mark::SendLimit);
    let deadline = if limited { deadline(fd, sockopt::Timeout::Send) } else { None };
    let sending = Sending { fd, slot, thread: layer.thread(), waits, deadline, done: 0 };
    let result = sending.run(layer, buffers);
    if result == Err(Errno::PIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::PIPE);
    }
    Some(result)
}

struct Sending {
    fd: i32,
    slot: Slot,
    thread: u32,
    waits: bool,
    /// SO_SNDTIMEO.
    deadline: Option<u64>,
    done: usize,
}

impl Sending {
    #[inline(always)]
    fn run(mut self, mut layer: Held, buffers: &[IoSlice<'_>]) -> Result<usize, Errno> {
        if buffers.iter().all(|buffer| buffer.is_empty()) {
            return Ok(0);
        }
        if (self.deadline.is_some() && layer.is_unsent(self.slot) || layer.is_under_way(self.slot))
            && !layer.observer.is_replaying()
        {
            layer = self.wait_for_turn(layer)?;
        }
        if !self.send_large(&mut layer, buffers) {
            let mut whole = true;
            for buffer in buffers.iter().filter(|buffer| !buffer.is_empty()) {
                (layer, whole) = self.offer(layer, buffer)?;
                if !whole {
                    self.refused(&mut layer);
                    break;
                }
            }
            if whole
                && self.may_write(&layer)
                && let Some(Transmit::Bytes(begin)) = layer.observer.poll_transmit(self.slot)
            {
                let written = self.write(&mut layer, buffers, begin, begin + self.done as u64);
                self.handle_written(&mut layer, written);
            }
        }
        if !self.has_left(&layer) {
            layer.transmit(self.slot);
        }
        if layer.is_refused(self.slot) {
            layer.drop_unsent(self.slot);
        }
        counters::add(Counter::BytesOut, self.done as u64);
        counters::add(Counter::MessagesOut, 1);
        layer.ship_sent();
        layer.note_sent(self.slot);
        while self.waits && layer.is_unsent(self.slot) {
            // As the kernel would: the call returns when the socket has taken everything.
            layer = match wait(layer, &[(self.fd, PollFlags::OUT)], self.deadline) {
                Err(Errno::INTR | Errno::TIMEDOUT) => break,
                other => other?,
            };
            layer.transmit(self.slot);
        }
        Ok(self.done)
    }

    /// Whether what may leave next on the link is just what this call has had taken, all of it. Asked after the last wait: while
    /// the outbox was full, or the gate was shut, some of it may have left, and the link may have become another one.
    fn may_write(&self, layer: &Layer) -> bool {
        let is_next = |c: &Connection| {
            c.link() == Link::Up && c.outgoing().is_between_frames() && c.outgoing().unsent() == self.done as u64
        };
        // In replay the peer may have these bytes already.
        !layer.observer.is_replaying() && layer.observer.table().get(self.slot).is_some_and(is_next)
    }

    /// Whether nothing waits for a socket, and nothing of this connection does.
    fn has_left(&self, layer: &Layer) -> bool {
        let outgoing = layer.observer.table().get(self.slot).map(Connection::outgoing);
        let is_all = outgoing.is_some_and(|outgoing| outgoing.unsent() == 0 && outgoing.is_between_frames());
        is_all && layer.unsent.is_empty() && layer.replayer.is_none()
    }

    /// The connection is to be there, and what earlier calls have left unsent when their time was over goes first. Until then this call takes nothing.
    #[cold]
    fn wait_for_turn(&self, mut layer: Held) -> Result<Held, Errno> {
        let deadline = if self.waits { self.deadline } else { Some(0) };
        while layer.is_unsent(self.slot) || layer.is_under_way(self.slot) {
            match wait(layer, &[(self.fd, PollFlags::OUT)], deadline) {
                Ok(held) => layer = held,
                Err(error @ (Errno::TIMEDOUT | Errno::INTR)) => {
                    let told = if error == Errno::TIMEDOUT { Errno::AGAIN } else { Errno::INTR };
                    let mut layer = layer::enter_again()?;
                    sure(layer.observer.handle_failed(self.thread, self.fd as u32, Call::Send, told.raw_os_error() as u32));
                    layer.ship();
                    return Err(told);
                }
                Err(error) => return Err(error),
            }
            layer.transmit(self.slot);
        }
        Ok(layer)
    }

    /// The outbox has not taken all that the program sends, which does not wait: it is full, or much waits for the socket.
    #[cold]
    fn refused(&self, layer: &mut Layer) {
        if layer.observer.is_full(self.slot) {
            layer.note_full(self.slot);
        }
        starved::refused(self.fd);
    }

    /// Whether this call still waits for room.
    fn still_waits(&self) -> bool {
        self.waits && self.deadline.is_none_or(|deadline| sys::now() < deadline)
    }

    /// Has one buffer taken into the outbox. False: only a part of it, which is all that the program gets for this call.
    fn offer(&mut self, mut layer: Held, buffer: &[u8]) -> Result<(Held, bool), Errno> {
        let mut offered = 0;
        while offered < buffer.len() {
            let waits = self.still_waits();
            // Of a long message that is sent as a whole the receiver has the first part while the next one is kept.
            let most = if waits { buffer.len().min(offered + PART) } else { buffer.len() };
            match sure(layer.observer.send(self.thread, self.fd as u32, &buffer[offered..most], self.done, waits)) {
                Send::Taken { len, whole } => {
                    offered += len;
                    self.done += len;
                    layer.note_room(self.slot);
                    if !waits && whole && offered < buffer.len() {
                        return Ok((layer, false));
                    }
                    if waits && offered < buffer.len() {
                        layer.transmit(self.slot);
                    }
                }
                Send::Failed(errno) => {
                    layer.note_sent(self.slot);
                    match errno as i32 {
                        libc::EAGAIN => self.refused(&mut layer),
                        libc::EINTR => {}
                        _ => layer.ship(),
                    }
                    return Err(Errno::from_raw_os_error(errno as i32));
                }
                Send::Wait(Wait::Stable(_)) => layer.pass_gate(),
                Send::Wait(Wait::Outbox) => {
                    layer.transmit(self.slot);
                    layer.note_full(self.slot);
                    layer = wait_for_room(layer, self.thread, self.slot)?;
                }
                Send::Wait(other) => layer = take_turns(layer, other)?,
            }
        }
        Ok((layer, true))
    }

    /// Keeps a large message piece by piece, and offers it to the socket before each of them: meanwhile its receiver takes what
    /// has left. False: nothing was done.
    fn send_large(&mut self, layer: &mut Layer, buffers: &[IoSlice<'_>]) -> bool {
        let total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        if total < LARGE {
            return false;
        }
        let place = sure(layer.observer.send_whole(self.thread, self.fd as u32, total, self.waits));
        let Some(mut place) = place else { return false };
        self.done = total;
        layer.note_room(self.slot);
        let begin = place.at();
        let (mut until, mut written) = (begin, Ok(()));
        sys::copy_past_caches(|copy| {
            for piece in buffers.iter().flat_map(|buffer| buffer.chunks(PIECE)) {
                if place.at() >= until && written.is_ok() {
                    written = self.write(layer, buffers, begin, place.at());
                    until = place.at() + PIECE as u64;
                }
                layer.observer.fill(&mut place, piece, copy);
            }
        });
        // Only now: what is kept may change by that.
        self.handle_written(layer, written);
        true
    }

    /// Offers to the socket what waits for it. This call's bytes begin at `begin` of the stream, and lie in the program's
    /// buffers: there they need not be read again. Bytes of earlier calls come from the outbox, which has the stream up to
    /// `kept`; one piece more than that is offered.
    #[inline(always)]
    fn write(&self, layer: &mut Layer, buffers: &[IoSlice<'_>], begin: u64, kept: u64) -> Result<(), Errno> {
        let (socket, until) = (sys::borrow(self.fd), kept + PIECE as u64);
        while let Some(Transmit::Bytes(offset)) = layer.observer.poll_transmit(self.slot)
            && offset < until
        {
            let written = match offset.checked_sub(begin) {
                Some(skip) => layer.write_link(self.slot, socket, buffers, (skip as usize, (until - offset) as usize)),
                None => layer.transmit_frame(self.slot, socket, offset, kept),
            };
            match written {
                Ok(true) => {}
                Ok(false) | Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn handle_written(&self, layer: &mut Layer, written: Result<(), Errno>) {
        if let Err(error) = written {
            layer.link_ended(self.slot, reset(error));
        }
    }
}

/// The outbox is full: waits until a receiver's protector has some of it.
fn wait_for_room(mut layer: Held, thread: u32, slot: Slot) -> Result<Held, Errno> {
    /// Time after which it is asked again, in nanoseconds.
    const AGAIN: u64 = 2_000_000;
    layer.hear_node();
    layer.ask_stable();
    layer.tell_pressed(slot);
    let sleep = |layer| wait_awhile(layer, &[], sys::now() + AGAIN);
    if layer.observer.waits_for_turn(thread, Wait::Outbox) { for_turn(layer, sleep) } else { sleep(layer) }
}

/// `shutdown`.
pub fn shutdown(fd: i32, how: i32) -> Option<Result<(), Errno>> {
    let mut layer = layer::enter_for_connection()?;
    let fd = layer.primary(fd);
    let slot = layer.observer.table().slot_of(fd as u32).ok()?;
    if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
        return Some(Err(Errno::INVAL));
    }
    if how != libc::SHUT_WR {
        // ENOTCONN: it has ended already. That is no outcome, so the program must not see whether it has.
        _ = rustix::net::shutdown(sys::borrow(fd), rustix::net::Shutdown::Read);
        sure(layer.observer.shut_reading(fd as u32));
    }
    if how != libc::SHUT_RD {
        layer.finish(fd, slot, false);
    }
    Some(Ok(()))
}
