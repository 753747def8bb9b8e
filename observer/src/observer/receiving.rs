//! Calls that receive: `recv` and its kin, a look with `MSG_PEEK`, the question how much there is, the shutdown of reading, and standard input.

use radic_wire::determinant::Determinant;

use super::answers::{Front, Input, Receive, Source, Unread, Wait};
use super::{Observer, Verdict};
use crate::causes::Causes;
use crate::connection::{Incoming, Link, Slot};
use crate::error::Error;
use crate::frames::Deframer;
use crate::replay::{Ask, Replay};

/// Of the bytes that are promised to the program on the way back, so many lie in a socket before it is told. Every socket has room for them.
const LIES_THERE: u64 = 32 << 10;

impl Observer {
    /// `recv` of at most `max` bytes (above 0) on `fd`.
    pub fn receive(&mut self, thread: u32, fd: u32, max: usize, blocking: bool) -> Result<Receive, Error> {
        let slot = self.table.slot_of(fd)?;
        if self.connection(slot)?.incoming.has_told_end() {
            self.check_voice()?;
            return Ok(Receive::End);
        }
        let blocking = blocking || self.connection(slot)?.incoming.owed() > 0;
        match self.consult(thread, Ask::Recv { fd }, blocking)? {
            Verdict::Live => self.receive_live(thread, slot, fd, max, blocking),
            Verdict::Nothing => Ok(Receive::Nothing),
            Verdict::Wait(wait) => Ok(Receive::Wait(wait)),
            Verdict::Outcome => self.receive_again(slot, max),
        }
    }

    /// Whether [`Observer::receive`] says nothing but that bytes are taken from the link, and of none owed: at most how many. As a rule.
    #[inline]
    pub fn takes_from_link(&self, fd: u32, max: usize) -> Option<usize> {
        let connection = self.table.get(self.table.slot_of(fd).ok()?)?;
        let (incoming, room) = (&connection.incoming, self.payload.room());
        let is_live = self.replay.is_none() && self.fenced.is_none() && self.journal.has_room();
        // No end is known: it was not told, and is not next.
        let goes_on = incoming.finish.is_none() && incoming.in_log() == 0 && incoming.owed() == 0 && connection.link == Link::Up;
        let is_within = room > 0 && !self.causes.as_ref().is_some_and(Causes::is_full);
        (is_live && goes_on && is_within && connection.expect_link().is_ok()).then_some(max.min(room))
    }

    fn receive_live(&mut self, thread: u32, slot: Slot, fd: u32, max: usize, blocking: bool) -> Result<Receive, Error> {
        let room = self.payload.room();
        let connection = self.connection(slot)?;
        let (stream, incoming, link) = (connection.stream_in(), &connection.incoming, connection.link);
        let (offset, from_log, owed) = (incoming.taken, incoming.in_log(), incoming.owed() > 0);
        if from_log > 0 {
            let len = max.min(usize::try_from(from_log).unwrap_or(usize::MAX));
            return Ok(Receive::Take { source: Source::Log, stream, offset, len, owed: true });
        }
        if room == 0 {
            return Ok(Receive::Wait(Wait::Payload));
        }
        if self.causes.as_ref().is_some_and(Causes::is_full) {
            return Ok(Receive::Wait(Wait::Stable(self.journal.end())));
        }
        if connection.has_no_more() {
            return self.receive_end(thread, slot, fd);
        }
        match link {
            Link::Up => {
                connection.expect_link()?;
                Ok(Receive::Take { source: Source::Link, stream, offset, len: max.min(room), owed })
            }
            _ if blocking || owed => Ok(Receive::Wait(Wait::Event)),
            _ => self.handle_nothing(thread).map(|()| Receive::Nothing),
        }
    }

    #[cold]
    fn receive_end(&mut self, thread: u32, slot: Slot, fd: u32) -> Result<Receive, Error> {
        self.journal.append(thread, &Determinant::Eof { fd })?;
        self.end_received(slot);
        Ok(Receive::End)
    }

    /// The program was told that the stream has ended: one unit, consumed and logged like a byte. Where it has shut down reading
    /// it is told so whether that is so or not, and nothing is consumed: the peer may not have ended yet.
    fn end_received(&mut self, slot: Slot) {
        let Some(connection) = self.table.get_mut(slot).filter(|connection| !connection.incoming.shut) else { return };
        let stays = connection.stays_with_senders(&self.payload, self.me.job);
        let (stream, incoming) = (connection.stream_in(), &mut connection.incoming);
        let offset = incoming.consumed;
        if incoming.held <= offset && !stays {
            self.payload.push_end(stream, offset);
            self.payload.handle_recorded(if self.replay.is_some() { 0 } else { self.journal.end() });
        }
        incoming.finish = Some(offset);
        (incoming.consumed, incoming.taken) = (offset + 1, offset + 1);
    }

    #[cold]
    fn receive_again(&mut self, slot: Slot, max: usize) -> Result<Receive, Error> {
        let room = self.payload.room();
        let connection = self.connection(slot)?;
        let (stream, incoming, link) = (connection.stream_in(), &connection.incoming, connection.link);
        match self.outcome()? {
            Determinant::Recv { len, .. } if len as usize > max => Err(self.diverged("recv asks for less than it got then")),
            Determinant::Recv { len, .. } => {
                let (offset, left) = (incoming.taken, len as usize - (incoming.taken - incoming.consumed) as usize);
                let from_log = usize::try_from(incoming.in_log()).unwrap_or(usize::MAX);
                Ok(match from_log {
                    1.. => Receive::Take { source: Source::Log, stream, offset, len: left.min(from_log), owed: true },
                    0 if room == 0 => Receive::Wait(Wait::Payload),
                    0 if link == Link::Up => {
                        connection.expect_link()?;
                        Receive::Take { source: Source::Link, stream, offset, len: left.min(room), owed: true }
                    }
                    0 => Receive::Wait(Wait::Event),
                })
            }
            Determinant::Eof { .. } if !incoming.shut && incoming.held <= incoming.consumed && room == 0 => {
                Ok(Receive::Wait(Wait::Payload))
            }
            Determinant::Eof { .. } => {
                self.end_received(slot);
                self.handle_served();
                Ok(Receive::End)
            }
            Determinant::Errno { errno, .. } => {
                self.handle_served();
                Ok(Receive::Failed(errno))
            }
            _ => Err(self.diverged("recv had another kind of outcome then")),
        }
    }

    /// `shutdown` of the incoming direction. Nothing leaves.
    pub fn shut_reading(&mut self, fd: u32) -> Result<(), Error> {
        self.check_voice()?;
        self.table.on(fd)?.incoming.shut = true;
        Ok(())
    }

    /// The link had no byte for [`Receive::Take`], and never waits for one: the program has shut down reading.
    pub fn handle_shut(&mut self, thread: u32, fd: u32) -> Result<Receive, Error> {
        let slot = self.table.slot_of(fd)?;
        assert!(self.connection(slot)?.incoming.shut, "only the program's own shutdown makes an end that no peer has said");
        self.receive_end(thread, slot, fd)
    }

    /// What takes the bytes of the program out of what arrives on the link of `slot`.
    #[inline]
    pub fn deframer(&mut self, slot: Slot) -> Option<&mut Deframer> {
        self.table.get_mut(slot).map(|connection| &mut connection.incoming.deframer)
    }

    /// Bytes were taken as [`Receive::Take`] said. Returns what the program is told, once all of it is there.
    pub fn handle_received(&mut self, thread: u32, fd: u32, source: Source, bytes: &[u8]) -> Result<Option<usize>, Error> {
        self.handle_received_parts(thread, fd, source, std::iter::once(bytes))
    }

    /// Tells that bytes were received that lie in several buffers of the program: one outcome.
    pub fn handle_received_parts<'a>(
        &mut self,
        thread: u32,
        fd: u32,
        source: Source,
        parts: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Result<Option<usize>, Error> {
        let len = parts.clone().map(<[u8]>::len).sum::<usize>();
        if len == 0 {
            return Err(Error::Full("empty piece of bytes"));
        }
        let then = match self.replay.as_ref().and_then(Replay::outcome) {
            Some(Determinant::Recv { fd: on, len }) if on == fd => Some(u64::from(len)),
            _ => None,
        };
        let len = u32::try_from(len).map_err(|_| Error::Full("length of a recv"))?;
        // What the outcome depends on is kept before it is recorded.
        self.keep_causes(self.table.slot_of(fd)?)?;
        let connection = self.table.on(fd)?;
        let stays = connection.stays_with_senders(&self.payload, self.me.job);
        let (stream, incoming) = (connection.stream_in(), &mut connection.incoming);
        let offset = incoming.taken;
        let total = offset + u64::from(len) - incoming.consumed;
        if then.is_some_and(|then| total > then) || then.is_none() && self.replay.is_some() {
            return Err(self.diverged("more bytes were taken than then"));
        }
        if then.is_none() {
            self.journal.append(thread, &Determinant::Recv { fd, len })?;
        }
        if source == Source::Link && !stays {
            let mut at = offset;
            for part in parts.filter(|part| !part.is_empty()) {
                self.payload.push(stream, at, part);
                at += part.len() as u64;
            }
        }
        self.payload.handle_recorded(if self.replay.is_some() { 0 } else { self.journal.end() });
        incoming.taken += u64::from(len);
        let is_whole = then.is_none_or(|then| total >= then);
        if is_whole {
            incoming.consumed = incoming.taken;
        }
        connection.handle_headers(&mut self.outbox)?;
        if !is_whole {
            return Ok(None);
        }
        if then.is_some() {
            self.handle_served();
        }
        Ok(Some(total as usize))
    }

    /// The socket of the link of `slot`, which is up, is readable. Before the program is told so, the header in front of its
    /// bytes is taken, and what they depend on is kept. `along`: bytes that follow are taken along. `read` takes bytes without
    /// waiting and says how many, none at an end or error, or that there are none yet.
    #[inline]
    pub fn look_past_header(
        &mut self,
        slot: Slot,
        along: bool,
        mut read: impl FnMut(&mut [u8]) -> Option<usize>,
    ) -> Result<Front, Error> {
        let mut taken = 0;
        while let Some(deframer) = self.deframer(slot) {
            let room = if along { deframer.ahead_room() } else { deframer.header_room() };
            if room.is_empty() {
                break;
            }
            let Some(count) = read(room) else { return Ok(Front::Header) };
            let handle = if along { Deframer::handle_ahead } else { Deframer::handle_header };
            if count == 0 || handle(deframer, count).is_err() {
                return Ok(Front::Socket);
            }
            taken += count;
        }
        self.handle_header(slot)?;
        Ok(match self.has_ahead(slot) {
            true => Front::Bytes,
            // All there was has come with the header: the kernel tells of what follows.
            false if along && taken > 0 => Front::Header,
            false => Front::Socket,
        })
    }

    /// A header has come on the link of `slot`, and perhaps nothing after it: before the program is told that there is something,
    /// what that depends on is kept.
    fn handle_header(&mut self, slot: Slot) -> Result<(), Error> {
        if let Some(connection) = self.table.get_mut(slot) {
            connection.handle_headers(&mut self.outbox)?;
        }
        self.keep_causes(slot)
    }

    /// What the bytes that have come on the link of `slot` depend on is kept, before an outcome is recorded that depends on them.
    fn keep_causes(&mut self, slot: Slot) -> Result<(), Error> {
        let Some(connection) = self.table.get_mut(slot) else { return Ok(()) };
        let deframer = &mut connection.incoming.deframer;
        if let Some(causes) = self.causes.as_mut().filter(|_| !deframer.causes().is_empty()) {
            let kept = causes.handle_set(self.journal.end(), deframer.causes());
            kept.map_err(|_| Error::Peer { connection: connection.id, what: "causes that are none" })?;
        }
        deframer.handle_kept();
        Ok(())
    }

    /// The program looks at bytes that stay on the link of `slot`, and depends on these causes from now on.
    pub fn keep_peeked(&mut self, slot: Slot, set: &[u8]) -> Result<(), Error> {
        let Some(connection) = self.table.get(slot) else { return Ok(()) };
        let kept = self.causes.as_mut().map_or(Ok(()), |causes| causes.handle_set(self.journal.end(), set));
        kept.map_err(|_| Error::Peer { connection: connection.id, what: "causes that are none" })
    }

    /// `read` of standard input into `room` (not empty). What is read stays in doubt until it is stable, and the terminal can repeat only what it has sent
    /// last. So the gate comes before the system call ([`Observer::gate`]), and no more than one outcome is ever in doubt.
    pub fn input(&mut self, thread: u32, room: &mut [u8], blocking: bool) -> Result<Input, Error> {
        match self.consult(thread, Ask::Input, blocking)? {
            Verdict::Live => return Ok(Input::Live),
            Verdict::Nothing => return Ok(Input::Nothing),
            Verdict::Wait(wait) => return Ok(Input::Wait(wait)),
            Verdict::Outcome => {}
        }
        let another = "a read of standard input had another kind of outcome then";
        let count = self.serve_bytes(Ask::Input, room, another, "standard input is asked for less than it gave then")?;
        self.input += count as u64;
        Ok(Input::Again(count))
    }

    /// These bytes of standard input were read; none: it has ended.
    pub fn handle_input(&mut self, thread: u32, bytes: &[u8]) -> Result<(), Error> {
        self.journal.append(thread, &Determinant::Input { bytes })?;
        self.input += bytes.len() as u64;
        Ok(())
    }

    /// Bytes of standard input that the program has read, in all its incarnations.
    pub fn input_read(&self) -> u64 {
        self.input
    }

    /// `recv` with `MSG_PEEK` of at most `max` bytes (above 0) on `fd`: as [`Observer::receive`], but nothing is consumed, and
    /// [`Observer::handle_peeked`] is told. The stream's end is an outcome until the program was told of it by a `recv`.
    pub fn peek(&mut self, thread: u32, fd: u32, max: usize, blocking: bool) -> Result<Receive, Error> {
        let slot = self.table.slot_of(fd)?;
        if self.connection(slot)?.incoming.has_told_end() {
            self.check_voice()?;
            return Ok(Receive::End);
        }
        let is_owed = self.connection(slot)?.incoming.owed() > 0;
        let verdict = self.consult(thread, Ask::Peek { fd }, blocking || is_owed)?;
        let connection = self.connection(slot)?;
        let (stream, incoming, link) = (connection.stream_in(), &connection.incoming, connection.link);
        let (offset, in_log) = (incoming.taken, usize::try_from(incoming.in_log()).unwrap_or(usize::MAX));
        let (most, owed) = match verdict {
            Verdict::Wait(wait) => return Ok(Receive::Wait(wait)),
            Verdict::Nothing => return Ok(Receive::Nothing),
            Verdict::Live if connection.has_no_more() => {
                return self.handle_peeked_end(thread, fd);
            }
            Verdict::Live => (max, in_log > 0 || is_owed),
            Verdict::Outcome => match self.outcome()? {
                Determinant::Peek { len: 0, .. } => {
                    self.handle_served();
                    return Ok(Receive::End);
                }
                Determinant::Peek { len, .. } if len as usize > max => {
                    return Err(self.diverged("a peek asks for less than it got then"));
                }
                Determinant::Peek { len, .. } => (len as usize, true),
                _ => return Err(self.diverged("a peek had another kind of outcome then")),
            },
        };
        Ok(match (in_log, link) {
            (1.., _) => Receive::Take { source: Source::Log, stream, offset, len: most.min(in_log), owed },
            (0, Link::Up) => {
                connection.expect_link()?;
                Receive::Take { source: Source::Link, stream, offset, len: most, owed }
            }
            (0, _) if blocking || owed => Receive::Wait(Wait::Event),
            (0, _) => return self.handle_nothing(thread).map(|()| Receive::Nothing),
        })
    }

    /// How many bytes can be received on `fd` without waiting (FIONREAD). In the socket of its link there are `in_link` now, which depend on
    /// these causes. 0 is an empty outcome: also at the end of the stream, which only a `recv` tells.
    pub fn unread(&mut self, thread: u32, fd: u32, (in_link, causes): (u64, &[u8])) -> Result<Unread, Error> {
        let slot = self.table.slot_of(fd)?;
        if self.connection(slot)?.incoming.has_told_end() {
            self.check_voice()?;
            return Ok(Unread::Told(0));
        }
        let is_owed = self.connection(slot)?.incoming.owed() > 0;
        let verdict = self.consult(thread, Ask::Unread { fd }, is_owed)?;
        let connection = self.connection(slot)?;
        let (incoming, in_log, is_up) = (&connection.incoming, connection.incoming.in_log(), connection.link == Link::Up);
        if is_up && in_log == 0 {
            connection.expect_link()?;
        }
        let in_link = if is_up { in_link } else { 0 };
        let told = match verdict {
            Verdict::Wait(wait) => return Ok(Unread::Wait(wait)),
            Verdict::Nothing => return Ok(Unread::Told(0)),
            Verdict::Live if self.causes.as_ref().is_some_and(Causes::is_full) => {
                return Ok(Unread::Wait(Wait::Stable(self.journal.end())));
            }
            Verdict::Live if connection.has_no_more() && !is_owed => 0,
            // A `recv` gets no more at once.
            Verdict::Live if in_log > 0 => in_log,
            Verdict::Live => in_link.max(incoming.owed()),
            Verdict::Outcome => match self.outcome()? {
                Determinant::Unread { len, .. } if !incoming.has(u64::from(len).min(LIES_THERE), in_link) => {
                    return Ok(Unread::Wait(Wait::Event));
                }
                Determinant::Unread { len, .. } => u64::from(len),
                _ => return Err(self.diverged("an ioctl of FIONREAD had another kind of outcome then")),
            },
        };
        self.tell_unread(thread, (slot, fd), u32::try_from(told).unwrap_or(u32::MAX), causes)
    }

    /// The program is told of so many bytes, and depends on what they depend on.
    fn tell_unread(&mut self, thread: u32, (slot, fd): (Slot, u32), len: u32, causes: &[u8]) -> Result<Unread, Error> {
        if len == 0 {
            return self.handle_nothing(thread).map(|()| Unread::Told(0));
        }
        self.keep_peeked(slot, causes)?;
        self.note_shown(fd, u64::from(len))?;
        match self.replay {
            Some(_) => self.handle_served(),
            None => self.journal.append(thread, &Determinant::Unread { fd, len })?,
        }
        Ok(Unread::Told(len as usize))
    }

    /// The program knows of this many bytes that it has not taken.
    fn note_shown(&mut self, fd: u32, len: u64) -> Result<(), Error> {
        let incoming = &mut self.table.on(fd)?.incoming;
        incoming.shown = incoming.shown.max(incoming.consumed + len);
        Ok(())
    }

    /// Whether the program was told that there are bytes on `fd` which it has not taken: no call finds nothing there.
    pub fn is_owed(&self, fd: u32) -> bool {
        let slot = self.table.slot_of(fd).ok();
        slot.and_then(|slot| self.table.get(slot)).is_some_and(|connection| connection.incoming.owed() > 0)
    }

    /// A look has found the end: the stream's, or that the program has shut down reading and there is nothing.
    pub fn handle_peeked_end(&mut self, thread: u32, fd: u32) -> Result<Receive, Error> {
        self.journal.append(thread, &Determinant::Peek { fd, len: 0 })?;
        Ok(Receive::End)
    }

    /// This many bytes were looked at as [`Observer::peek`] said. Returns how many the program is told: all of them, or, in replay, as many
    /// as then; none: they are not all there yet.
    pub fn handle_peeked(&mut self, thread: u32, fd: u32, len: usize) -> Result<Option<usize>, Error> {
        let len = u32::try_from(len).map_err(|_| Error::Full("length of a peek"))?;
        match self.replay.as_ref().and_then(Replay::outcome) {
            Some(Determinant::Peek { len: then, .. }) if then > len => return Ok(None),
            Some(Determinant::Peek { len: then, .. }) => {
                self.note_shown(fd, u64::from(then))?;
                self.handle_served();
                return Ok(Some(then as usize));
            }
            _ => self.journal.append(thread, &Determinant::Peek { fd, len })?,
        }
        self.note_shown(fd, u64::from(len))?;
        Ok(Some(len as usize))
    }

    /// Whether `recv` on `slot` has something that no system call knows of: bytes of the protector's log or some that were read
    /// ahead, the stream's end, or that the program reads no more.
    pub fn is_readable(&self, slot: Slot) -> bool {
        let has = |i: &Incoming| i.in_log() > 0 || i.finish == Some(i.taken) || i.shut;
        self.table.get(slot).is_some_and(|connection| has(&connection.incoming)) || self.has_ahead(slot)
    }

    /// Whether bytes were read ahead from the link of `slot`, and the program may have them.
    pub fn has_ahead(&self, slot: Slot) -> bool {
        self.table.get(slot).is_some_and(|connection| connection.link == Link::Up && connection.incoming.deframer.has_ahead())
    }
}
