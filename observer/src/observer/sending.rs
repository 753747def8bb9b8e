//! Calls that send, the gates that whatever leaves has to pass, and what a link is to carry.

use radic_wire::determinant::{Call, Determinant};

use super::answers::{Send, Transmit, Wait};
use super::{Observer, Verdict};
use crate::causes::Causes;
use crate::connection::{Connection, Link, Phase, Refusal, Slot};
use crate::error::Error;
use crate::frames::Leaving;
use crate::gate::Gate;
use crate::outbox::Place;
use crate::replay::Ask;

/// The system's numbers for "interrupted", "try again" and "no reader": the same on every Linux.
const EINTR: u32 = 4;
const EAGAIN: u32 = 11;
const EPIPE: u32 = 32;

impl Observer {
    /// Whether a `send` on `slot` that does not wait would be taken, at least in part, as far as the outbox goes. A program that
    /// polls is told so when half of what may wait for the socket is free, as the kernel does: not for each piece.
    pub fn has_room(&self, slot: Slot) -> bool {
        let is_behind = |connection: &Connection| connection.outgoing.unsent() > self.most_unsent / 2;
        let has_room = |connection: &Connection| self.outbox.room(&connection.outgoing.queue) > 0 && !is_behind(connection);
        self.table.get(slot).is_none_or(has_room)
    }

    /// Bytes that a send which does not wait is taken of: a part, or none, while much waits for the socket of this connection.
    /// Otherwise a long message would be kept as a whole before its receiver has any of it, and no image of the receiver would
    /// make room for the rest.
    fn most_taken(&self, connection: &Connection) -> usize {
        usize::try_from(self.most_unsent.saturating_sub(connection.outgoing.unsent())).unwrap_or(usize::MAX)
    }

    /// `send` of these bytes (at least one) on `fd`, after `done` bytes of the same call were taken. They are taken only when
    /// everything that happened is stable (G1).
    pub fn send(&mut self, thread: u32, fd: u32, bytes: &[u8], done: usize, blocking: bool) -> Result<Send, Error> {
        let slot = self.table.slot_of(fd)?;
        if done == 0
            && let Some(refused) = self.send_refused(thread, fd, slot)?
        {
            return Ok(refused);
        }
        let then = match self.consult(thread, Ask::Send { fd }, blocking)? {
            Verdict::Wait(Wait::Turn) => return self.send_before_turn(thread, fd, bytes, done),
            Verdict::Wait(wait) => return Ok(Send::Wait(wait)),
            Verdict::Outcome => Some(self.outcome()?),
            Verdict::Live | Verdict::Nothing => None,
        };
        match then {
            Some(Determinant::Errno { errno, .. }) => {
                self.handle_served();
                if errno != EAGAIN && errno != EINTR {
                    // In the recorded run the program was told so. An earlier image does not know it yet.
                    self.table.on(fd)?.outgoing.refusal = Refusal::Told;
                }
                Ok(Send::Failed(errno))
            }
            Some(Determinant::SendPart { len, .. }) => {
                // What is offered may be one of the call's buffers: the part ends in the first that was not taken whole.
                let left = (len as usize).checked_sub(done).ok_or(self.diverged("send offers other pieces than then"))?;
                // That this part is taken is in the log.
                let sent = self.send_again(thread, fd, &bytes[..left.min(bytes.len())], true)?;
                if left < bytes.len() && matches!(sent, Send::Taken { whole: true, .. }) {
                    self.handle_served();
                }
                Ok(sent)
            }
            _ if self.replay.is_some() => self.send_again(thread, fd, bytes, blocking),
            _ => self.send_live(thread, fd, bytes, done, blocking),
        }
    }

    /// As [`Observer::send`] of this many bytes in one call, if they are taken at once, all of them. The caller lets them leave
    /// from where they are, and has [`Observer::fill`] put them where they are kept: their receiver takes them meanwhile. All of
    /// them are there before anything else happens. None: [`Observer::send`] is to be asked.
    pub fn send_whole(&mut self, thread: u32, fd: u32, bytes: usize, blocking: bool) -> Result<Option<Place>, Error> {
        let connection = self.connection(self.table.slot_of(fd)?)?;
        let outgoing = &connection.outgoing;
        let is_up = connection.link == Link::Up;
        let is_open = outgoing.finish.is_none() && !outgoing.is_refused() && !connection.is_over_there();
        let is_kept = outgoing.stable <= outgoing.queue.end() && self.outbox.room(&outgoing.queue) >= bytes;
        let is_kept = is_kept && (blocking || bytes <= self.most_taken(connection));
        if self.replay.is_some() || !is_up || !is_open || !is_kept || self.gate_of_send(fd)? != Gate::Open {
            return Ok(None);
        }
        if !matches!(self.consult(thread, Ask::Send { fd }, blocking)?, Verdict::Live) {
            return Ok(None);
        }
        let place = self.outbox.reserve(&mut self.table.on(fd)?.outgoing.queue, bytes);
        self.journal.handle_sent(thread, bytes as u64);
        if !blocking {
            self.journal.handle_taken(thread);
        }
        Ok(Some(place))
    }

    /// Keeps bytes of [`Observer::send_whole`]; the next ones come after them.
    pub fn fill(&mut self, place: &mut Place, bytes: &[u8], copy: impl Fn(&mut [u8], &[u8])) {
        self.outbox.fill(place, bytes, copy);
    }

    /// What a `send` finds on a connection on which nothing can be sent any more. None: it can, or the log says what the call has found.
    fn send_refused(&mut self, thread: u32, fd: u32, slot: Slot) -> Result<Option<Send>, Error> {
        let outgoing = &self.connection(slot)?.outgoing;
        if outgoing.finish.is_some() {
            return Ok(Some(Send::Failed(EPIPE)));
        }
        let refusal = outgoing.refusal;
        let errno = match refusal {
            Refusal::None => return Ok(None),
            // In the recorded run the send was taken, and peers may have what was sent afterwards: it is taken again (Gate B).
            _ if !self.settle() => return Ok(None),
            Refusal::Untold(errno) => errno as u32,
            Refusal::Told => EPIPE,
        };
        self.table.on(fd)?.outgoing.refusal = Refusal::Told;
        self.handle_failed(thread, fd, Call::Send, errno)?;
        Ok(Some(Send::Failed(errno)))
    }

    /// The peer of `slot` is gone for good: what is sent is refused from now on, first with this `errno`. What was sent is kept for it all the same.
    pub fn refuse_sends(&mut self, slot: Slot, errno: i32) {
        if let Some(connection) = self.table.get_mut(slot) {
            connection.outgoing.refuse(errno);
        }
    }

    /// The `errno` that the program has not been told yet, as SO_ERROR tells it; 0: none. It is told by that.
    pub fn take_refusal(&mut self, slot: Slot) -> i32 {
        let Some(connection) = self.table.get_mut(slot) else { return 0 };
        match connection.outgoing.refusal {
            Refusal::Untold(errno) => {
                connection.outgoing.refusal = Refusal::Told;
                if errno as u32 == EPIPE { 0 } else { errno }
            }
            Refusal::None | Refusal::Told => 0,
        }
    }

    /// The outcome of this send comes after those of other threads, which may depend on what the recorded run took of it.
    fn send_before_turn(&mut self, thread: u32, fd: u32, bytes: &[u8], done: usize) -> Result<Send, Error> {
        let taken = self.replay.as_ref().map_or(0, |replay| replay.part_ahead(thread));
        let part = &bytes[..taken.saturating_sub(done).min(bytes.len())];
        if part.is_empty() {
            return Ok(Send::Wait(Wait::Turn));
        }
        Ok(match self.send_again(thread, fd, part, true)? {
            Send::Taken { len, whole } => Send::Taken { len, whole: whole && len == bytes.len() },
            other => other,
        })
    }

    /// Then all of this was taken, so it will be now, though perhaps in pieces: the outbox may be trimmed later than it was.
    fn send_again(&mut self, thread: u32, fd: u32, bytes: &[u8], blocking: bool) -> Result<Send, Error> {
        Ok(match self.append(thread, fd, bytes, blocking)? {
            len if len == bytes.len() => Send::Taken { len, whole: true },
            0 => Send::Wait(Wait::Outbox),
            len => Send::Taken { len, whole: false },
        })
    }

    fn send_live(&mut self, thread: u32, fd: u32, bytes: &[u8], done: usize, blocking: bool) -> Result<Send, Error> {
        if let Gate::Shut(position) = self.gate_of_send(fd)? {
            return Ok(Send::Wait(Wait::Stable(position)));
        }
        let most = if blocking { bytes.len() } else { self.most_taken(self.connection(self.table.slot_of(fd)?)?) };
        let len = match most.min(bytes.len()) {
            0 => 0,
            most => self.append(thread, fd, &bytes[..most], blocking || most < bytes.len())?,
        };
        let connection = self.table.on(fd)?;
        if len > 0 && connection.is_over_there() {
            // The kernel would take something once more, hear that the peer is gone, and refuse what follows. These bytes do not even leave.
            connection.outgoing.refuse(EPIPE as i32);
        }
        if len == bytes.len() || blocking && len > 0 {
            return Ok(Send::Taken { len, whole: len == bytes.len() });
        }
        if blocking {
            return Ok(Send::Wait(Wait::Outbox));
        }
        // A part that was taken, or nothing: the program may act on it, so it is an outcome. It stands before these bytes.
        let part = done + len;
        let outcome = match u32::try_from(part).map_err(|_| Error::Full("length of a send"))? {
            0 => Determinant::Errno { fd, call: Call::Send, errno: EAGAIN },
            len => Determinant::SendPart { fd, len },
        };
        self.journal.append_before(thread, &outcome, part as u64)?;
        Ok(if part == 0 { Send::Failed(EAGAIN) } else { Send::Taken { len, whole: true } })
    }

    /// The gate of bytes on a link. What they depend on goes with them to a process of this job, unless it is too much: then this
    /// process's own log is waited for, and answers for it.
    fn gate_of_send(&self, fd: u32) -> Result<Gate, Error> {
        let connection = self.connection(self.table.slot_of(fd)?)?;
        Ok(match &self.causes {
            Some(causes) if connection.is_within(self.me.job) && !connection.passes_too_much(causes, &self.journal) => Gate::Open,
            _ => Gate::of(&self.journal, self.causes.as_ref()),
        })
    }

    /// Appends to the outbox what fits, or passes over what the peer's protector holds already. `blocking`: that all of it was taken is no choice.
    pub(super) fn append(&mut self, thread: u32, fd: u32, bytes: &[u8], blocking: bool) -> Result<usize, Error> {
        let is_settled = self.phase() == Phase::Settled;
        let connection = self.table.on(fd)?;
        let outgoing = &mut connection.outgoing;
        if outgoing.finish.is_some() {
            return Err(Error::Peer { connection: connection.id, what: "bytes after the end of the stream" });
        }
        let held = outgoing.stable.saturating_sub(outgoing.queue.end());
        let skipped = bytes.len().min(usize::try_from(held).unwrap_or(usize::MAX));
        if skipped > 0 {
            self.outbox.skip(&mut outgoing.queue, skipped as u64);
            outgoing.handle_trimmed();
        }
        let had = usize::try_from(outgoing.peer_has.saturating_sub(outgoing.queue.end())).unwrap_or(usize::MAX);
        // One thread sends in the order of every life before. With the shares of a live process it is blocked where it was then, or later.
        // More for receivers that catch up would take it further, as far as they happen to, and a later life would owe what it sent there.
        let is_owed = !outgoing.peer_settled && self.journal.threads() > 1;
        let (queue, rest) = (&mut outgoing.queue, &bytes[skipped..]);
        let len = skipped
            + match self.replay.as_ref().map(|replay| replay.had_sent(&self.journal, thread)) {
                None => self.outbox.append(queue, rest),
                // The log is over: this may be more than the recorded run sent, and another thread may need the room for what it
                // sent.
                Some(_) if is_settled => self.outbox.append_settled(queue, rest, had, is_owed),
                Some(None) => self.outbox.append_again(queue, rest),
                Some(Some(then)) => {
                    let then = usize::try_from(then).unwrap_or(usize::MAX).saturating_sub(skipped);
                    self.outbox.append_early(queue, rest, then)
                }
            };
        self.journal.handle_sent(thread, len as u64);
        if len == bytes.len() && !blocking {
            self.journal.handle_taken(thread);
        }
        Ok(len)
    }

    /// `shutdown` of the outgoing direction. It leaves like a byte, so it waits at the gate.
    pub fn finish(&mut self, fd: u32) -> Result<Option<Wait>, Error> {
        self.check_voice()?;
        if self.replay.is_none()
            && let Gate::Shut(position) = Gate::of(&self.journal, self.causes.as_ref())
        {
            return Ok(Some(Wait::Stable(position)));
        }
        let outgoing = &mut self.table.on(fd)?.outgoing;
        outgoing.finish.get_or_insert(outgoing.queue.end());
        Ok(None)
    }

    /// The gate: the position that must be stable before anything leaves, if it is shut. Not asked in replay.
    pub fn gate(&self) -> Option<u64> {
        match Gate::of(&self.journal, self.causes.as_ref()) {
            Gate::Shut(position) if self.writes_journal() => Some(position),
            _ => None,
        }
    }

    /// The gate of what leaves `thread` and is never asked for again: output, and what the launcher is told. Peers ask for the
    /// rest of what this process has sent, and until they have it re-execution finds nothing and has all that it sends taken
    /// (Gate B). Output has no such peer. So it is recorded first how often nothing was found, and that sends were taken. The
    /// same holds at Gate B: what is printed there after such a choice was not printed before, else the choice would be in the
    /// log.
    pub fn gate_of_output(&mut self, thread: u32) -> Result<Option<u64>, Error> {
        self.pass_loose()?;
        if self.phase() == Phase::Settled && self.journal.has_choices(thread) {
            self.resume_journal();
        }
        if self.writes_journal()
            && self.journal.has_room()
            && let Some((clock, skipped)) = self.journal.record_choices(thread)?
        {
            self.journal.clocks.handle_recorded(thread, clock, skipped)?;
        }
        let gate = self.gate();
        assert!(
            gate.is_some() || !self.writes_journal() || !self.journal.has_choices(thread),
            "all that has happened is in the log"
        );
        Ok(gate)
    }

    /// Whether output of `thread` must wait for the end of the log. If the log has nothing more for this thread but outcomes of
    /// others follow, the recorded run did not print this. Its dependencies cannot be recorded yet, and the next incarnation
    /// might print otherwise.
    pub fn output_awaits_log(&mut self, thread: u32) -> Result<bool, Error> {
        self.pass_loose()?;
        let is_new = self.phase() == Phase::Replaying && self.journal.has_choices(thread);
        Ok(is_new && self.replay.as_mut().is_some_and(|replay| replay.is_beyond(&self.journal, thread)))
    }

    /// Takes from the log what belongs to no call that is still to come.
    fn pass_loose(&mut self) -> Result<(), Error> {
        self.pass_readings()?;
        while let Some(replay) = &mut self.replay
            && replay.is_loose_next(&self.journal)?
        {
            self.handle_served();
            self.pass_readings()?;
        }
        Ok(())
    }

    /// What may leave on the link of `slot` now.
    pub fn poll_transmit(&mut self, slot: Slot) -> Option<Transmit> {
        if self.fenced.is_some() {
            return None;
        }
        let writes_journal = self.writes_journal();
        let connection = self.table.get_mut(slot).filter(|connection| connection.link == Link::Up)?;
        // What is sent again depends on nothing but the log.
        let causes = self.causes.as_ref().filter(|_| writes_journal && connection.is_within(self.me.job));
        connection.begin_frame(self.me.job, &self.payload, causes.map(|causes| (causes, &self.journal)));
        let Connection { outgoing, .. } = connection;
        match outgoing.sent {
            sent if !outgoing.framer.is_idle() => {
                assert!(
                    sent >= outgoing.queue.start(),
                    "{sent} is to leave on the link, and kept is what follows {}",
                    outgoing.queue.start()
                );
                Some(Transmit::Bytes(sent))
            }
            sent if Some(sent) == outgoing.finish => Some(Transmit::End),
            _ => None,
        }
    }

    /// Whether bytes would leave on the link of `slot` if they depended on less: this process's own log has to have some of it first.
    pub fn is_held_back(&self, slot: Slot) -> bool {
        let is_held = |connection: &Connection, causes: &Causes| {
            connection.link == Link::Up
                && connection.outgoing.unsent() > 0
                && connection.outgoing.framer.is_idle()
                && connection.is_within(self.me.job)
                && connection.passes_too_much(causes, &self.journal)
        };
        let causes = self.causes.as_ref().filter(|_| self.writes_journal());
        causes.is_some_and(|causes| self.table.get(slot).is_some_and(|connection| is_held(connection, causes)))
    }

    /// The outgoing bytes from `offset`, as [`Transmit::Bytes`] named it, in pieces.
    pub fn outgoing(&self, slot: Slot, offset: u64) -> impl Iterator<Item = &[u8]> {
        let queue = self.table.get(slot).map(|connection| &connection.outgoing.queue);
        queue.into_iter().flat_map(move |queue| self.outbox.pieces(queue, offset.max(queue.start())))
    }

    /// What of the frame under way is to leave on the link of `slot`: its payload is the first this many of [`Observer::outgoing`].
    pub fn leaving(&self, slot: Slot) -> Option<Leaving<'_>> {
        self.table.get(slot).map(|connection| connection.outgoing.framer.leaving())
    }

    /// This many bytes of the frame under way left on the link of `slot`.
    pub fn handle_transmitted(&mut self, slot: Slot, bytes: u64) {
        let framer = self.table.get_mut(slot).map(|connection| &mut connection.outgoing.framer);
        let units = framer.map_or(0, |framer| framer.handle_sent(bytes));
        self.handle_passed(slot, units);
    }

    /// This many units of the stream need not leave on the link of `slot` any more (the end is one).
    pub fn handle_passed(&mut self, slot: Slot, units: u64) {
        if let Some(connection) = self.table.get_mut(slot) {
            let outgoing = &mut connection.outgoing;
            outgoing.sent += units;
            assert!(outgoing.sent <= outgoing.end(), "more left than there is");
            self.outbox.handle_left(&mut outgoing.queue, outgoing.sent);
        }
    }
}
