//! One process's observer: the machines composed, one method for each kind of call of the program.
//!
//! A call of the program asks first ([`Observer::receive`], [`Observer::send`] ...), does what the answer says, and reports what came
//! of it ([`Observer::handle_received`] ...). Answers are the same in replay: the caller does not know which it is. Where the answer
//! is a [`Wait`], the caller ships, reads from its protector and its sockets until something changed, and asks again.

use radic_wire::determinant::{Call, ConnectionId, Determinant, ReadyFd, ReadySet, StreamId};
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::limits;
use radic_wire::log::{CutStreams, FromProtector, Greeting, ImageRange, Span, ToProtector};

use crate::checkpoint::{Checkpoints, Mark};
use crate::connection::{Connection, Forgettable, Incoming, Link, Phase, Slot, Table, Welcome};
use crate::error::Error;
use crate::gate::Gate;
use crate::journal::{Journal, Ship};
use crate::outbox::Outbox;
use crate::payload::{PayloadLog, Piece};
use crate::replay::{Ask, Overdue, Replay, Served};

/// The system's number for "try again": the same on every Linux.
const EAGAIN: u32 = 11;

/// How much of everything; all of it is allocated at once.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Blocks of the outbox.
    pub outbox_blocks: usize,
    /// Bytes of a block.
    pub outbox_block: usize,
    /// Bytes of journal that may be unstable.
    pub journal: usize,
    /// Longest code of one outcome, in bytes.
    pub determinant: usize,
    /// Bytes of received payload that the protector does not hold yet.
    pub payload: usize,
    /// Pieces of it.
    pub payload_pieces: usize,
    /// Connections at once.
    pub connections: usize,
    /// Descriptors are below this.
    pub descriptors: usize,
    /// Threads that may use protected sockets, ever.
    pub threads: usize,
}

impl Default for Config {
    /// docs/design.md's 64 MiB of outbox; 8 MiB of payload.
    fn default() -> Self {
        Config {
            outbox_blocks: 16 << 10,
            outbox_block: 4 << 10,
            journal: limits::LOG_CHUNK,
            determinant: limits::DETERMINANT,
            payload: 8 << 20,
            payload_pieces: 16 << 10,
            connections: 16 << 10,
            descriptors: 64 << 10,
            threads: 64,
        }
    }
}

/// What must be awaited before the same call is made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The gate: the journal must be stable up to this position (G1).
    Stable(u64),
    /// The payload log is full: ship it, and wait until the protector holds it.
    Payload,
    /// The outbox is full: ask what is stable.
    Outbox,
    /// Bytes of the stream, an event on the descriptors, a new link: what the program itself waits for.
    Event,
    /// More of the log: [`Observer::wanted_log`].
    Log,
    /// The log is over, but not every connection has sent again what its peer has: dial, and let peers dial.
    Peers,
}

/// Where bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The protector's payload log.
    Log,
    /// The connection's link.
    Link,
}

/// The answer to a `recv`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receive {
    /// Take bytes and tell [`Observer::handle_received`].
    Take {
        /// From where.
        source: Source,
        /// Of which stream.
        stream: StreamId,
        /// The offset of the first.
        offset: u64,
        /// At most how many.
        len: usize,
        /// The program is owed these bytes: the caller waits for them even if the call would not. Nothing else may come of it.
        owed: bool,
    },
    /// The stream has ended.
    End,
    /// The call failed with this error.
    Failed(u32),
    /// There is nothing now (`EAGAIN`).
    Nothing,
    /// Not yet.
    Wait(Wait),
}

/// The answer to a `send`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Send {
    /// So many bytes are in the outbox: let them leave ([`Observer::poll_transmit`]).
    Taken {
        /// Bytes.
        len: usize,
        /// The program is told of all that the call has had taken; else the caller waits for room and offers the rest.
        whole: bool,
    },
    /// The call failed with this error.
    Failed(u32),
    /// Not yet.
    Wait(Wait),
}

/// The answer to an `accept`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accept {
    /// This connection waits: tell [`Observer::handle_accepted`] on which descriptor the program gets it.
    Offered(ConnectionId),
    /// The program gets this descriptor, with this address of the peer, as it did then.
    Again {
        /// The descriptor.
        fd: u32,
        /// The connection.
        connection: ConnectionId,
        /// The address that `accept` tells.
        peer: std::net::SocketAddr,
    },
    /// The call failed with this error.
    Failed(u32),
    /// There is nothing now (`EAGAIN`).
    Nothing,
    /// Not yet.
    Wait(Wait),
}

/// The answer to `poll` and its kin, and to the calls that have an outcome but no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// Ask the system and tell what came of it.
    Live,
    /// So many entries of the caller's array are ready.
    Set(usize),
    /// The outcome of then: this error, or 0.
    Outcome(u32),
    /// There is nothing now.
    Nothing,
    /// Not yet.
    Wait(Wait),
}

/// The answer to the calls that give a socket an address, or look for the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// Find out, and tell what came of it ([`Observer::handle_outcome`], [`Observer::handle_failed`]).
    Live,
    /// As it was then: the socket's own address; the process that listens at the target, if that is a protected one.
    Again(std::net::SocketAddr, Option<ProcessId>),
    /// The call failed with this error.
    Failed(u32),
    /// Not yet.
    Wait(Wait),
}

/// The answer to a `read` of standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Read from the system, at most [`limits::INPUT`] bytes, and tell [`Observer::handle_input`]; while the gate is shut the caller waits first.
    Live,
    /// So many bytes of then are in the caller's room; 0: the end.
    Again(usize),
    /// There is nothing now.
    Nothing,
    /// Not yet.
    Wait(Wait),
}

/// What may leave on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transmit {
    /// Bytes from this offset: [`Observer::outgoing`].
    Bytes(u64),
    /// The end of the stream, after the last byte.
    End,
}

/// Where the logs stood at an image, and the message that begins it.
#[derive(Debug, Clone, Copy)]
pub struct Cut<'a> {
    /// The positions.
    pub mark: Mark,
    /// Where each stream stood.
    pub streams: CutStreams<'a>,
    /// The streams of which the end was received, and where that is.
    pub ended: CutStreams<'a>,
}

impl<'a> Cut<'a> {
    /// The message that begins the image.
    pub fn message(&self, parent: Option<u64>) -> ToProtector<'a> {
        let Mark { image, journal: cut, payload } = self.mark;
        ToProtector::ImageBegin { image, parent, cut, payload, streams: self.streams, ended: self.ended }
    }
}

/// What the log says to a question.
enum Verdict {
    Live,
    Outcome,
    Nothing,
    Wait(Wait),
}

/// What the protector held of `stream` when this incarnation began, and where it has ended. It is taken once, by its connection.
fn take_held(held: &mut [(StreamId, u64, Option<u64>)], stream: StreamId) -> (u64, Option<u64>) {
    match held.binary_search_by_key(&stream, |held| held.0) {
        Ok(index) => (std::mem::take(&mut held[index].1), held[index].2.take()),
        Err(_) => (0, None),
    }
}

/// One process's observer.
#[derive(Debug, Clone)]
pub struct Observer {
    me: ProcessId,
    incarnation: Incarnation,
    journal: Journal,
    payload: PayloadLog,
    outbox: Outbox,
    table: Table,
    checkpoints: Checkpoints,
    /// While this incarnation catches up.
    replay: Option<Replay>,
    /// It has printed something after its log was over and before it was live: from there on its journal is its own.
    resumed: bool,
    /// Outcomes that this incarnation was served from its log.
    replayed: u64,
    /// What the protector held of each stream when this incarnation began, and where it has ended; sorted.
    held: Vec<(StreamId, u64, Option<u64>)>,
    fenced: Option<Incarnation>,
    /// Bytes of standard input that the program has read.
    input: u64,
    /// From this connection on, a protector that has just answered is to be told where its incoming stream goes on.
    untold: Option<Slot>,
}

impl Observer {
    /// The observer of the first incarnation of `me`.
    pub fn new(me: ProcessId, config: &Config) -> Self {
        Observer::in_life(me, Incarnation::FIRST, config)
    }

    /// The observer of a process that begins as this incarnation: in a later epoch of its job that is not the first one.
    pub fn in_life(me: ProcessId, incarnation: Incarnation, config: &Config) -> Self {
        let mut table = Table::new(config.connections, config.descriptors);
        table.begin(me.job, incarnation.epoch);
        Observer {
            me,
            incarnation,
            journal: Journal::new(config.journal, config.threads, config.determinant),
            payload: PayloadLog::new(config.payload, config.payload_pieces),
            outbox: Outbox::new(config.outbox_blocks, config.outbox_block),
            table,
            checkpoints: Checkpoints::default(),
            replay: None,
            resumed: false,
            replayed: 0,
            held: Vec::new(),
            fenced: None,
            input: 0,
            untold: None,
        }
    }

    /// The process that is observed.
    pub fn process(&self) -> ProcessId {
        self.me
    }

    /// The incarnation of the process.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The journal, to be looked at.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The payload log, to be looked at.
    pub fn payload(&self) -> &PayloadLog {
        &self.payload
    }

    /// The outbox, to be looked at.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// The connections, to be looked at.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The images, to be looked at.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Whether this incarnation still catches up.
    pub fn is_replaying(&self) -> bool {
        self.replay.is_some()
    }

    /// Outcomes that this incarnation was served from its log.
    pub fn replayed(&self) -> u64 {
        self.replayed
    }

    /// Whether re-execution goes another way, without a call that shows it: [`Replay::overdue`].
    pub fn overdue(&self, patience: u64) -> Option<Overdue> {
        self.replay.as_ref()?.overdue(&self.journal, patience)
    }

    /// Bytes of the journal of then that were not served yet.
    pub fn left_of_log(&self) -> u64 {
        self.replay.as_ref().map_or(0, |replay| replay.end() - replay.position())
    }

    /// How far this incarnation has come.
    pub fn phase(&self) -> Phase {
        match &self.replay {
            None => Phase::Live,
            Some(replay) if replay.position() == replay.end() => Phase::Settled,
            Some(_) => Phase::Replaying,
        }
    }

    /// Whether this incarnation still needs the log that it was restarted with: while it replays, and until the program has taken the
    /// bytes that only the protector has (their senders need not keep them). If the protector dies before, these bytes are lost.
    pub fn needs_log(&self) -> bool {
        let untouched = self.held.iter().any(|held| held.1 > 0);
        self.replay.is_some()
            || untouched
            || self.table.iter().any(|(_, connection)| !connection.closed && connection.incoming.in_log() > 0)
    }

    fn check_voice(&self) -> Result<(), Error> {
        self.fenced.map_or(Ok(()), |newest| Err(Error::Fenced(newest)))
    }

    /// What the log says to `ask`; live, that there is room to record what comes of it.
    fn consult(&mut self, thread: u32, ask: Ask, blocking: bool) -> Result<Verdict, Error> {
        self.check_voice()?;
        let sends = matches!(ask, Ask::Send { .. });
        let served = loop {
            let Some(replay) = &mut self.replay else {
                return Ok(if self.journal.has_room() { Verdict::Live } else { Verdict::Wait(Wait::Stable(self.journal.end())) });
            };
            let served = replay.offer(&self.journal, thread, ask, blocking)?;
            match replay.outcome().filter(|_| served == Served::Outcome) {
                Some(Determinant::Taken) => {
                    self.handle_served();
                    continue;
                }
                Some(Determinant::Nothing) => {}
                _ => break served,
            }
            let is_before_image = replay.is_before_image(&self.journal);
            self.handle_served();
            // A call that cannot find nothing comes after it: this time nothing was found less often.
            if !blocking && !sends && !is_before_image {
                return Ok(Verdict::Nothing);
            }
        };
        let wait = match served {
            Served::Outcome => return Ok(Verdict::Outcome),
            Served::Over if self.settle() => return Ok(Verdict::Live),
            // Sends do not wait at Gate B: they are what it waits for.
            Served::Nothing | Served::Over if sends => return Ok(Verdict::Live),
            Served::Fetch => return Ok(Verdict::Wait(Wait::Log)),
            Served::Nothing => Wait::Event,
            Served::Over => Wait::Peers,
        };
        if blocking {
            return Ok(Verdict::Wait(wait));
        }
        self.journal.handle_empty(thread)?;
        Ok(Verdict::Nothing)
    }

    /// A process that asks nothing goes live, too, as soon as its log is over and every connection has sent again what its peer has. True: it is live.
    pub fn settle(&mut self) -> bool {
        if self.phase() == Phase::Settled && self.table.all_sent_again() {
            self.resume_journal();
            self.replay = None;
        }
        self.replay.is_none()
    }

    /// The log is over: what follows in the journal is this incarnation's own.
    fn resume_journal(&mut self) {
        if let Some(replay) = self.replay.as_ref().filter(|_| !self.resumed) {
            self.journal.handle_replayed(replay.end());
            self.resumed = true;
        }
    }

    /// Whether what is in the journal is this incarnation's own.
    fn writes_journal(&self) -> bool {
        self.replay.is_none() || self.resumed
    }

    /// The program ends, and asks nothing any more. If it goes by the clock, it may have been told more often then than now that there is nothing. The log is
    /// over all the same.
    pub fn handle_leaving(&mut self) -> Result<(), Error> {
        while let Some(replay) = &mut self.replay
            && replay.is_choice_next()?
        {
            self.handle_served();
        }
        Ok(())
    }

    /// The outcome that the log has; only after [`Verdict::Outcome`].
    fn outcome(&self) -> Result<Determinant<'_>, Error> {
        self.replay.as_ref().and_then(Replay::outcome).ok_or(Error::Protector("the log changed under replay"))
    }

    fn diverged(&self, what: &'static str) -> Error {
        Error::Diverged { position: self.replay.as_ref().map_or(0, Replay::position), what }
    }

    fn handle_served(&mut self) {
        if let Some(replay) = &mut self.replay {
            replay.handle_served(&mut self.journal);
            self.replayed += 1;
        }
        if self.phase() == Phase::Settled {
            self.table.handle_settled();
        }
    }

    /// `recv` of at most `max` bytes (above 0) on `fd`.
    pub fn receive(&mut self, thread: u32, fd: u32, max: usize, blocking: bool) -> Result<Receive, Error> {
        let slot = self.table.slot_of(fd)?;
        if self.connection(slot)?.incoming.has_told_end() {
            self.check_voice()?;
            return Ok(Receive::End);
        }
        match self.consult(thread, Ask::Recv { fd }, blocking)? {
            Verdict::Live => self.receive_live(thread, slot, fd, max, blocking),
            Verdict::Nothing => Ok(Receive::Nothing),
            Verdict::Wait(wait) => Ok(Receive::Wait(wait)),
            Verdict::Outcome => self.receive_again(slot, max),
        }
    }

    fn connection(&self, slot: Slot) -> Result<&Connection, Error> {
        self.table.get(slot).ok_or(Error::Full("table of connections"))
    }

    fn receive_live(&mut self, thread: u32, slot: Slot, fd: u32, max: usize, blocking: bool) -> Result<Receive, Error> {
        let room = self.payload.room();
        let connection = self.connection(slot)?;
        let (stream, incoming, link) = (connection.stream_in(), &connection.incoming, connection.link);
        let (offset, from_log) = (incoming.taken, incoming.in_log());
        if from_log > 0 {
            let len = max.min(usize::try_from(from_log).unwrap_or(usize::MAX));
            return Ok(Receive::Take { source: Source::Log, stream, offset, len, owed: true });
        }
        if room == 0 {
            return Ok(Receive::Wait(Wait::Payload));
        }
        if connection.has_no_more() {
            return self.receive_end(thread, slot, fd);
        }
        match link {
            Link::Up => {
                connection.expect_link()?;
                Ok(Receive::Take { source: Source::Link, stream, offset, len: max.min(room), owed: false })
            }
            _ if blocking => Ok(Receive::Wait(Wait::Event)),
            _ => self.handle_nothing(thread).map(|()| Receive::Nothing),
        }
    }

    fn receive_end(&mut self, thread: u32, slot: Slot, fd: u32) -> Result<Receive, Error> {
        self.journal.append(thread, &Determinant::Eof { fd })?;
        self.end_received(slot);
        Ok(Receive::End)
    }

    /// The program was told that the stream has ended: one unit, consumed and logged like a byte. Where it has shut down reading it is told so whether that is so or not, and
    /// nothing is consumed: the peer may not have ended yet.
    fn end_received(&mut self, slot: Slot) {
        let Some(connection) = self.table.get_mut(slot).filter(|connection| !connection.incoming.shut) else { return };
        let (stream, incoming) = (connection.stream_in(), &mut connection.incoming);
        let offset = incoming.consumed;
        if incoming.held <= offset {
            self.payload.push_end(stream, offset);
        }
        incoming.finish = Some(offset);
        (incoming.consumed, incoming.taken) = (offset + 1, offset + 1);
    }

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

    /// Bytes were taken as [`Receive::Take`] said. Returns what the program is told, once all of it is there.
    pub fn handle_received(&mut self, thread: u32, fd: u32, source: Source, bytes: &[u8]) -> Result<Option<usize>, Error> {
        self.handle_received_parts(thread, fd, source, std::iter::once(bytes))
    }

    /// The same for bytes that lie in several buffers of the program: one outcome.
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
        let connection = self.table.on(fd)?;
        let (stream, incoming) = (connection.stream_in(), &mut connection.incoming);
        let offset = incoming.taken;
        let total = offset + u64::from(len) - incoming.consumed;
        if then.is_some_and(|then| total > then) || then.is_none() && self.replay.is_some() {
            return Err(self.diverged("more bytes were taken than then"));
        }
        if then.is_none() {
            self.journal.append(thread, &Determinant::Recv { fd, len })?;
        }
        if source == Source::Link {
            let mut at = offset;
            for part in parts.filter(|part| !part.is_empty()) {
                self.payload.push(stream, at, part);
                at += part.len() as u64;
            }
        }
        incoming.taken += u64::from(len);
        if then.is_some_and(|then| total < then) {
            return Ok(None);
        }
        incoming.consumed = incoming.taken;
        if then.is_some() {
            self.handle_served();
        }
        Ok(Some(total as usize))
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
        let Determinant::Input { bytes } = self.outcome()? else {
            return Err(self.diverged("a read of standard input had another kind of outcome then"));
        };
        let count = bytes.len();
        let Some(room) = room.get_mut(..count) else {
            return Err(self.diverged("standard input is asked for less than it gave then"));
        };
        room.copy_from_slice(bytes);
        self.input += count as u64;
        self.handle_served();
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
        let verdict = self.consult(thread, Ask::Peek { fd }, blocking)?;
        let connection = self.connection(slot)?;
        let (stream, incoming, link) = (connection.stream_in(), &connection.incoming, connection.link);
        let (offset, in_log) = (incoming.taken, usize::try_from(incoming.in_log()).unwrap_or(usize::MAX));
        let (most, owed) = match verdict {
            Verdict::Wait(wait) => return Ok(Receive::Wait(wait)),
            Verdict::Nothing => return Ok(Receive::Nothing),
            Verdict::Live if connection.has_no_more() => {
                return self.handle_peeked_end(thread, fd);
            }
            Verdict::Live => (max, in_log > 0),
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

    /// A look has found the end: the stream's, or that the program has shut down reading and there is nothing.
    pub fn handle_peeked_end(&mut self, thread: u32, fd: u32) -> Result<Receive, Error> {
        self.journal.append(thread, &Determinant::Peek { fd, len: 0 })?;
        Ok(Receive::End)
    }

    /// So many bytes were looked at as [`Observer::peek`] said. Returns how many the program is told: all of them, or, in replay, as many
    /// as then; none: they are not all there yet.
    pub fn handle_peeked(&mut self, thread: u32, fd: u32, len: usize) -> Result<Option<usize>, Error> {
        let len = u32::try_from(len).map_err(|_| Error::Full("length of a peek"))?;
        match self.replay.as_ref().and_then(Replay::outcome) {
            Some(Determinant::Peek { len: then, .. }) if then > len => return Ok(None),
            Some(Determinant::Peek { len: then, .. }) => {
                self.handle_served();
                return Ok(Some(then as usize));
            }
            _ => self.journal.append(thread, &Determinant::Peek { fd, len })?,
        }
        Ok(Some(len as usize))
    }

    /// The program knows the connection on `from` by the descriptor `to` from now on (`dup`, then `close` of the first).
    pub fn handle_moved(&mut self, from: u32, to: u32) -> Result<(), Error> {
        self.table.rebind(from, to)
    }

    /// Whether `recv` on `slot` has something that no system call knows of: bytes of the protector's log, the stream's end, or that the program reads no more.
    pub fn is_readable(&self, slot: Slot) -> bool {
        let has = |i: &Incoming| i.in_log() > 0 || i.finish == Some(i.taken) || i.shut;
        self.table.get(slot).is_some_and(|connection| has(&connection.incoming))
    }

    /// A call found nothing (`EAGAIN`, a `poll` that returned 0).
    pub fn handle_nothing(&mut self, thread: u32) -> Result<(), Error> {
        self.journal.handle_empty(thread)
    }

    /// A call failed, with another error than that there is nothing yet.
    pub fn handle_failed(&mut self, thread: u32, fd: u32, call: Call, errno: u32) -> Result<(), Error> {
        self.journal.append(thread, &Determinant::Errno { fd, call, errno })
    }

    /// Whether a `send` on `slot` would be taken, at least in part, as far as the outbox goes.
    pub fn has_room(&self, slot: Slot) -> bool {
        self.table.get(slot).is_none_or(|connection| self.outbox.room(&connection.outgoing.queue) > 0)
    }

    /// `send` of these bytes (at least one) on `fd`, after `done` bytes of the same call were taken. They are taken only when
    /// everything that happened is stable (G1).
    pub fn send(&mut self, thread: u32, fd: u32, bytes: &[u8], done: usize, blocking: bool) -> Result<Send, Error> {
        self.table.slot_of(fd)?;
        let then = match self.consult(thread, Ask::Send { fd }, blocking)? {
            Verdict::Wait(wait) => return Ok(Send::Wait(wait)),
            Verdict::Outcome => Some(self.outcome()?),
            Verdict::Live | Verdict::Nothing => None,
        };
        match then {
            Some(Determinant::Errno { errno, .. }) => {
                self.handle_served();
                Ok(Send::Failed(errno))
            }
            Some(Determinant::SendPart { len, .. }) => {
                // What is offered may be one of the call's buffers: the part ends in the first that was not taken whole.
                let left = (len as usize).checked_sub(done).ok_or(self.diverged("send offers other pieces than then"))?;
                // That this part is taken is in the log.
                let sent = self.send_again(fd, &bytes[..left.min(bytes.len())], true)?;
                if left < bytes.len() && matches!(sent, Send::Taken { whole: true, .. }) {
                    self.handle_served();
                }
                Ok(sent)
            }
            _ if self.replay.is_some() => self.send_again(fd, bytes, blocking),
            _ => self.send_live(thread, fd, bytes, done, blocking),
        }
    }

    /// Then all of this was taken, so it will be now, though perhaps in pieces: the outbox may be trimmed later than it was.
    fn send_again(&mut self, fd: u32, bytes: &[u8], blocking: bool) -> Result<Send, Error> {
        Ok(match self.append(fd, bytes, blocking)? {
            len if len == bytes.len() => Send::Taken { len, whole: true },
            0 => Send::Wait(Wait::Outbox),
            len => Send::Taken { len, whole: false },
        })
    }

    fn send_live(&mut self, thread: u32, fd: u32, bytes: &[u8], done: usize, blocking: bool) -> Result<Send, Error> {
        if let Gate::Shut(position) = Gate::of(&self.journal) {
            return Ok(Send::Wait(Wait::Stable(position)));
        }
        let len = self.append(fd, bytes, blocking)?;
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

    /// Appends to the outbox what fits, or passes over what the peer's protector holds already.
    fn append(&mut self, fd: u32, bytes: &[u8], blocking: bool) -> Result<usize, Error> {
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
        let (queue, rest) = (&mut outgoing.queue, &bytes[skipped..]);
        let again = self.replay.is_some();
        let len = skipped + if again { self.outbox.append_again(queue, rest) } else { self.outbox.append(queue, rest) };
        self.journal.handle_sent(len as u64);
        if len == bytes.len() && !blocking {
            self.journal.handle_taken();
        }
        Ok(len)
    }

    /// `shutdown` of the outgoing direction. It leaves like a byte, so it waits at the gate.
    pub fn finish(&mut self, fd: u32) -> Result<Option<Wait>, Error> {
        self.check_voice()?;
        if self.replay.is_none()
            && let Gate::Shut(position) = Gate::of(&self.journal)
        {
            return Ok(Some(Wait::Stable(position)));
        }
        let outgoing = &mut self.table.on(fd)?.outgoing;
        outgoing.finish.get_or_insert(outgoing.queue.end());
        Ok(None)
    }

    /// `close`: ends the outgoing direction if that was not done, and frees the descriptor.
    pub fn close(&mut self, fd: u32) -> Result<Option<Wait>, Error> {
        if let Some(wait) = self.finish(fd)? {
            return Ok(Some(wait));
        }
        self.table.close(fd, &mut self.outbox)?;
        Ok(None)
    }

    /// `connect` of `fd` to the process `peer`. It leaves (the greeting does), so it waits at the gate.
    pub fn connect(&mut self, fd: u32, peer: ProcessId) -> Result<Result<Slot, Wait>, Error> {
        self.check_voice()?;
        if self.replay.is_none()
            && let Gate::Shut(position) = Gate::of(&self.journal)
        {
            return Ok(Err(Wait::Stable(position)));
        }
        let slot = self.table.open(self.me, fd, peer)?;
        self.find_held(slot);
        Ok(Ok(slot))
    }

    /// A connection that this incarnation makes may have been there in an earlier one: then the protector holds some of it.
    fn find_held(&mut self, slot: Slot) {
        let Some(connection) = self.table.get_mut(slot) else { return };
        let (held, finish) = take_held(&mut self.held, connection.stream_in());
        connection.incoming.held = connection.incoming.held.max(held);
        connection.incoming.finish = connection.incoming.finish.or(finish);
    }

    /// What the next connection that this process opens will be.
    pub fn next_connection(&self) -> ConnectionId {
        self.table.next_connection(self.me)
    }

    /// The gate: the position that must be stable before anything leaves, if it is shut. Not asked in replay.
    pub fn gate(&self) -> Option<u64> {
        match Gate::of(&self.journal) {
            Gate::Shut(position) if self.writes_journal() => Some(position),
            _ => None,
        }
    }

    /// The gate of what leaves `thread` and is never asked for again: output, and what the launcher is told. Peers ask for the rest of what this process has sent, and until they
    /// have it re-execution finds nothing and has all that it sends taken (Gate B). Output has no such peer. So it is recorded first how often nothing was found, and that sends
    /// were taken. The same holds at Gate B: what is printed there after such a choice was not printed before, else the choice would be in the log.
    pub fn gate_of_output(&mut self, thread: u32) -> Result<Option<u64>, Error> {
        if let Some(replay) = &mut self.replay
            && replay.is_taken_here(&self.journal)?
        {
            self.handle_served();
        }
        if self.phase() == Phase::Settled && self.journal.has_choices(thread) {
            self.resume_journal();
        }
        if self.writes_journal() && self.journal.has_room() {
            self.journal.record_choices(thread)?;
        }
        let gate = self.gate();
        assert!(
            gate.is_some() || !self.writes_journal() || !self.journal.has_choices(thread),
            "all that has happened is in the log"
        );
        Ok(gate)
    }

    /// Is there an outcome of then for a question that has no bytes: `Connect` or `SoError`?
    pub fn ask(&mut self, thread: u32, ask: Ask, blocking: bool) -> Result<Ready, Error> {
        Ok(match self.consult(thread, ask, blocking)? {
            Verdict::Live => Ready::Live,
            Verdict::Nothing => Ready::Nothing,
            Verdict::Wait(wait) => Ready::Wait(wait),
            Verdict::Outcome => {
                let errno = match self.outcome()? {
                    Determinant::Errno { errno, .. } | Determinant::SoError { errno, .. } => errno,
                    _ => 0,
                };
                self.handle_served();
                Ready::Outcome(errno)
            }
        })
    }

    /// Is there an outcome of then for `Bind` or `Target`? Addresses belong to machines, and the process that listened may have left: a
    /// restarted process is told what it was told.
    pub fn address(&mut self, thread: u32, ask: Ask) -> Result<Address, Error> {
        let address = match self.consult(thread, ask, true)? {
            Verdict::Live => return Ok(Address::Live),
            Verdict::Nothing => return Err(self.diverged("an address is nothing that can be asked for in vain")),
            Verdict::Wait(wait) => return Ok(Address::Wait(wait)),
            Verdict::Outcome => match self.outcome()? {
                Determinant::Bound { address, .. } => Address::Again(address, None),
                Determinant::Target { local, peer, .. } => Address::Again(local, peer),
                Determinant::Errno { errno, .. } => Address::Failed(errno),
                _ => return Err(self.diverged("a call for an address had another kind of outcome then")),
            },
        };
        self.handle_served();
        Ok(address)
    }

    /// What came of [`Ready::Live`] for `Connect` (complete) or `SoError`, or of [`Address::Live`].
    pub fn handle_outcome(&mut self, thread: u32, outcome: &Determinant<'_>) -> Result<(), Error> {
        self.journal.append(thread, outcome)
    }

    /// `accept` on `listener`.
    pub fn accept(&mut self, thread: u32, listener: u32, blocking: bool) -> Result<Accept, Error> {
        match self.consult(thread, Ask::Accept { fd: listener }, blocking)? {
            Verdict::Nothing => Ok(Accept::Nothing),
            Verdict::Wait(wait) => Ok(Accept::Wait(wait)),
            Verdict::Live => match self.table.poll_offer() {
                Some(connection) => Ok(Accept::Offered(connection)),
                None if blocking => Ok(Accept::Wait(Wait::Event)),
                None => self.handle_nothing(thread).map(|()| Accept::Nothing),
            },
            Verdict::Outcome => match self.outcome()? {
                Determinant::Accept { fd, connection, peer, .. } => {
                    let slot = self.table.accept(connection, fd)?;
                    self.find_held(slot);
                    self.handle_served();
                    Ok(Accept::Again { fd, connection, peer })
                }
                Determinant::Errno { errno, .. } => {
                    self.handle_served();
                    Ok(Accept::Failed(errno))
                }
                _ => Err(self.diverged("accept had another kind of outcome then")),
            },
        }
    }

    /// The program gets `connection` on `fd`, and is told `peer` as its address.
    pub fn handle_accepted(
        &mut self,
        thread: u32,
        listener: u32,
        fd: u32,
        connection: ConnectionId,
        peer: std::net::SocketAddr,
    ) -> Result<(), Error> {
        self.table.accept(connection, fd)?;
        self.journal.append(thread, &Determinant::Accept { listener, fd, connection, peer })
    }

    /// `poll`, `select` or `epoll_wait` into `ready`.
    pub fn ready(&mut self, thread: u32, epoll: Option<u32>, blocking: bool, ready: &mut [ReadyFd]) -> Result<Ready, Error> {
        match self.consult(thread, Ask::Ready { epoll }, blocking)? {
            Verdict::Live => Ok(Ready::Live),
            Verdict::Nothing => Ok(Ready::Nothing),
            Verdict::Wait(wait) => Ok(Ready::Wait(wait)),
            Verdict::Outcome => {
                let answer = match self.outcome()? {
                    Determinant::Ready { set, .. } => {
                        let count = set.iter().count();
                        let room =
                            ready.get_mut(..count).ok_or(self.diverged("fewer descriptors are asked for than were ready"))?;
                        room.iter_mut().zip(set.iter()).for_each(|(to, from)| *to = from);
                        Ready::Set(count)
                    }
                    Determinant::Errno { errno, .. } => Ready::Outcome(errno),
                    _ => return Err(self.diverged("poll had another kind of outcome then")),
                };
                self.handle_served();
                Ok(answer)
            }
        }
    }

    /// What the system said to [`Ready::Live`]; at most [`limits::READY_FDS`] are told to the program at once.
    pub fn handle_ready(&mut self, thread: u32, epoll: Option<u32>, ready: &[ReadyFd]) -> Result<(), Error> {
        if ready.is_empty() {
            return self.handle_nothing(thread);
        }
        let set = ReadySet::new(ready).ok_or(Error::Full("readiness set"))?;
        self.journal.append(thread, &Determinant::Ready { epoll, set })
    }

    /// What may leave on the link of `slot` now.
    pub fn poll_transmit(&self, slot: Slot) -> Option<Transmit> {
        if self.fenced.is_some() {
            return None;
        }
        let connection = self.table.get(slot)?;
        let Connection { link: Link::Up, outgoing, .. } = connection else { return None };
        match outgoing.sent {
            sent if sent < outgoing.queue.end() => {
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

    /// The outgoing bytes from `offset`, as [`Transmit::Bytes`] named it, in pieces.
    pub fn outgoing(&self, slot: Slot, offset: u64) -> impl Iterator<Item = &[u8]> {
        let queue = self.table.get(slot).map(|connection| &connection.outgoing.queue);
        queue.into_iter().flat_map(move |queue| self.outbox.pieces(queue, offset.max(queue.start())))
    }

    /// So many units left on the link of `slot` (the end is one).
    pub fn handle_transmitted(&mut self, slot: Slot, units: u64) {
        if let Some(connection) = self.table.get_mut(slot) {
            let outgoing = &mut connection.outgoing;
            outgoing.sent += units;
            assert!(outgoing.sent <= outgoing.end(), "more left than there is");
            self.outbox.handle_left(&mut outgoing.queue, outgoing.sent);
        }
    }

    /// The next greeting to dial the peer of `slot` with, if this process opened the connection. It waits at the gate.
    pub fn dial(&mut self, slot: Slot) -> Option<Greeting> {
        self.table.dial(slot, (self.me, self.incarnation), self.phase(), &self.payload)
    }

    /// A greeting came on a socket that was dialed to this process.
    pub fn handle_greeting(&mut self, greeting: &Greeting) -> Result<Welcome, Error> {
        self.check_voice()?;
        let (me, phase) = ((self.me, self.incarnation), self.phase());
        let held = |stream| take_held(&mut self.held, stream);
        self.table.handle_greeting((&mut self.outbox, &self.payload), me, greeting, phase, held)
    }

    /// The answer came on a socket that this process has dialed. False: close that socket.
    pub fn handle_answer(&mut self, slot: Slot, answer: &Greeting) -> Result<bool, Error> {
        self.check_voice()?;
        let phase = self.phase();
        self.table.handle_answer(&mut self.outbox, slot, answer, phase)
    }

    /// A link that was given up here: its socket is to be closed, and the opener of the connection dials again.
    pub fn poll_dropped(&mut self) -> Option<Slot> {
        self.table.poll_dropped()
    }

    /// `process` speaks as `incarnation` now, the protector says. A restarted process is told this of all processes before it hears any of them.
    pub fn handle_restarted(&mut self, process: ProcessId, incarnation: Incarnation) {
        self.table.handle_restarted(process, incarnation);
    }

    /// The link of `slot` broke, or its socket ended without [`Observer::handle_finish`] having said that the stream ends there.
    pub fn handle_broken(&mut self, slot: Slot) {
        self.table.handle_broken(slot);
    }

    /// The sender of the incoming stream of `slot` says that it ends at `offset`.
    pub fn handle_finish(&mut self, slot: Slot, offset: u64) -> Result<(), Error> {
        self.table.handle_finish(slot, offset)
    }

    /// The hello for a connection to the protector.
    pub fn hello(&self) -> ToProtector<'static> {
        let payload = self.payload.span();
        // What is replayed counts as written: the protector holds it.
        let journal = match &self.replay {
            Some(replay) if !self.resumed => Span { start: self.journal.end(), end: replay.end() },
            _ => self.journal.span(),
        };
        ToProtector::Hello { process: self.me, incarnation: self.incarnation, journal, payload }
    }

    /// Journal to be shipped, at once.
    pub fn poll_journal(&mut self) -> Option<Ship<'_>> {
        if self.writes_journal() { self.journal.poll_ship() } else { None }
    }

    /// Whether there is nothing to be shipped ([`Observer::poll_payload`]).
    pub fn is_payload_shipped(&self) -> bool {
        self.untold.is_none() && self.payload.is_shipped()
    }

    /// Payload to be shipped: when the process idles, or when [`PayloadLog::is_due`].
    pub fn poll_payload(&mut self) -> Option<Piece<'_>> {
        if let Some(beginning) = self.poll_beginning() {
            return Some(beginning);
        }
        self.payload.poll_ship()
    }

    /// From where a stream goes on, as a piece without bytes. The protector that answered may be a new one, and the sender of the stream is to learn that it
    /// need not keep what is before that: no image that this protector commits lacks it, and without an image it brings no process back. Else a peer that
    /// catches up could wait with a full outbox until that image, which may find no room: no log server would know what the lost protector had held.
    fn poll_beginning(&mut self) -> Option<Piece<'static>> {
        let position = self.payload.span().start;
        while let Some((slot, connection)) = self.table.first_from(self.untold?) {
            self.untold = Some(slot + 1);
            let (stream, incoming) = (connection.stream_in(), &connection.incoming);
            let received = incoming.finish.map_or(incoming.wanted(), |finish| finish.min(incoming.wanted()));
            let offset = self.payload.first_of(stream).unwrap_or(received);
            if offset > 0 && !connection.closed {
                return Some(Piece { position, stream, offset, is_end: false, head: &[], tail: &[] });
            }
        }
        self.untold = None;
        None
    }

    /// Where the log is wanted from, during replay.
    pub fn wanted_log(&self) -> Option<(u64, usize)> {
        self.replay.as_ref()?.wanted()
    }

    /// A message of the protector; payload fetched for a restart goes to [`Observer::handle_received`] instead.
    pub fn handle_protector(&mut self, message: &FromProtector<'_>) -> Result<(), Error> {
        match *message {
            // During replay its hello was not about the journal that is being replayed.
            FromProtector::Welcome { journal, payload } => {
                if self.writes_journal() {
                    self.journal.handle_welcome(journal)?;
                }
                self.untold = self.replay.is_none().then_some(0);
                self.payload.handle_welcome(payload)
            }
            FromProtector::Fenced { newest } if newest > self.incarnation => {
                self.fenced = Some(newest);
                Err(Error::Fenced(newest))
            }
            FromProtector::Fenced { .. } => Err(Error::Protector("it fences the newest incarnation")),
            FromProtector::JournalStable { .. } if !self.writes_journal() => Ok(()),
            FromProtector::JournalStable { position } => self.journal.handle_stable(position),
            FromProtector::PayloadStable { position } => self.payload.handle_stable(position),
            FromProtector::Committed { image, oldest } => self.handle_committed(image, oldest),
            FromProtector::ImageRefused { image } => {
                if self.checkpoints.under_way().is_some_and(|mark| mark.image == image) {
                    self.handle_abandoned();
                }
                Ok(())
            }
            FromProtector::StreamStable { stream, offset } => {
                self.handle_stream_stable(stream, offset);
                Ok(())
            }
            FromProtector::Journal { position, bytes } => match &mut self.replay {
                Some(replay) => replay.handle_log(position, bytes),
                None => Ok(()),
            },
            FromProtector::Forget { connection, for_good } => {
                self.table.handle_forget(connection, for_good, &mut self.outbox);
                Ok(())
            }
            FromProtector::ImageWanted
            | FromProtector::WholeWanted
            | FromProtector::Held { .. }
            | FromProtector::Payload { .. } => Ok(()),
        }
    }

    /// The peer of this connection has ended: it wants nothing more, and had received so many units.
    pub fn handle_left(&mut self, connection: ConnectionId, received: u64) {
        self.table.handle_left(connection, received, &mut self.outbox);
    }

    fn handle_stream_stable(&mut self, stream: StreamId, offset: u64) {
        let Some(slot) = self.table.find_end(stream.connection, stream.from_opener) else { return };
        if let Some(connection) = self.table.get_mut(slot).filter(|connection| connection.stream_out() == stream) {
            connection.handle_stable(&mut self.outbox, offset);
        }
    }

    /// An image begins here; `streams` is filled with where each stream stands, and `ended` with where those end that did. `None`
    /// while this incarnation catches up: its journal would not be its own. The process is copied after this.
    pub fn checkpoint<'a>(
        &mut self,
        streams: &'a mut Vec<(StreamId, u64)>,
        ended: &'a mut Vec<(StreamId, u64)>,
    ) -> Result<Option<Cut<'a>>, Error> {
        self.check_voice()?;
        if self.replay.is_some() {
            return Ok(None);
        }
        let mark = self.checkpoints.begin(self.journal.end(), self.payload.span().end)?;
        streams.clear();
        ended.clear();
        for (_, connection) in self.table.iter() {
            let (stream, incoming) = (connection.stream_in(), &connection.incoming);
            // A closed one is never read again: all of it may go.
            streams.push((stream, if connection.closed { u64::MAX } else { incoming.consumed }));
            ended.extend(incoming.finish.filter(|_| incoming.has_told_end()).map(|finish| (stream, finish)));
        }
        self.table.handle_checkpoint(mark.image);
        let full = Error::Full("cut");
        let (streams, ended) = (CutStreams::new(streams).ok_or(full)?, CutStreams::new(ended).ok_or(full)?);
        Ok(Some(Cut { mark, streams, ended }))
    }

    /// What `image` covers need not be shipped. Only what `oldest` covers as closed is closed for ever: a restart may begin there.
    fn handle_committed(&mut self, image: u64, oldest: u64) -> Result<(), Error> {
        if let Some(mark) = self.checkpoints.handle_committed(image) {
            self.journal.handle_stable(mark.journal)?;
            self.payload.handle_stable(mark.payload)?;
        }
        self.table.handle_committed(oldest, &mut self.outbox);
        Ok(())
    }

    /// What a peer is to be told by [`ToProtector::Forget`].
    pub fn poll_forget(&mut self) -> Option<Forgettable> {
        self.table.poll_forget(&mut self.outbox)
    }

    /// A connection of which neither side will ask anything any more: the node is to be told.
    pub fn poll_over(&mut self) -> Option<ConnectionId> {
        self.table.poll_over()
    }

    /// `peer`, which has accepted this connection, says that its link is broken, and it is not known here: what `peer` is to be told, if it was forgotten.
    pub fn forgotten(&self, connection: ConnectionId, peer: ProcessId) -> Option<Forgettable> {
        self.table.forgotten(connection, peer, self.phase())
    }

    /// The image under way will not be.
    pub fn handle_abandoned(&mut self) {
        self.checkpoints.handle_abandoned();
    }

    /// This process was restored from an image as `incarnation`. Its protector holds the journal up to `log_end`, and of its
    /// incoming streams what `held` says (stream, units, where it has ended), and the images that `images` says. `buffer` bytes of
    /// log are here at once.
    pub fn restart(
        &mut self,
        incarnation: Incarnation,
        log_end: u64,
        held: Vec<(StreamId, u64, Option<u64>)>,
        images: ImageRange,
        buffer: usize,
    ) -> Result<(), Error> {
        if incarnation <= self.incarnation {
            return Err(Error::Protector("a restart needs a newer incarnation"));
        }
        let cut = self.journal.end();
        if log_end < cut {
            return Err(Error::Protector("the log ends before the cut"));
        }
        self.held = held;
        self.held.sort_unstable_by_key(|held| held.0);
        self.table.handle_restart(|stream| take_held(&mut self.held, stream));
        self.payload.handle_restart();
        self.untold = None;
        self.checkpoints.handle_restart(images.next);
        self.table.handle_committed(images.oldest, &mut self.outbox);
        self.replay = Some(Replay::new(cut, log_end, self.journal.thread(), buffer));
        (self.incarnation, self.replayed, self.resumed) = (incarnation, 0, false);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use radic_wire::ids::{BootId, Epoch, JobId, Rank};

    use super::*;

    /// What `process` says first on its first connection.
    fn first_greeting(process: ProcessId, incarnation: Incarnation) -> Greeting {
        let connection = ConnectionId { opener: process, number: 0 };
        let (attempt, received, stable) = (0, 0, 0);
        Greeting { process, incarnation, connection, attempt, received, stable, kept: 0, finish: None, settled: true, ends: None }
    }

    /// A peer that has closed its end wants nothing more. What is still sent to it is passed over and waits for no link: else a blocking `send`, which returns
    /// when the link has everything, would wait for ever.
    #[test]
    fn what_nobody_wants_waits_for_no_link() {
        let process = |rank| ProcessId { job: JobId::from_bits(1), rank: Rank(rank) };
        let (me, opener) = (process(0), process(1));
        let mut observer = Observer::new(me, &Config { outbox_blocks: 8, connections: 4, descriptors: 16, ..Config::default() });
        let connection = ConnectionId { opener, number: 0 };
        let greeting =
            |attempt, received, stable| Greeting { attempt, received, stable, ..first_greeting(opener, Incarnation::FIRST) };
        let Ok(Welcome::Link(slot, _)) = observer.handle_greeting(&greeting(0, 0, 0)) else { panic!("no link") };
        observer.handle_accepted(0, 3, 4, connection, ([10, 0, 0, 1], 1).into()).unwrap();
        let position = observer.journal().end();
        observer.poll_journal();
        observer.handle_protector(&FromProtector::JournalStable { position }).unwrap();
        assert_eq!(observer.send(0, 4, b"wanted", 0, true), Ok(Send::Taken { len: 6, whole: true }));
        assert_eq!(observer.poll_transmit(slot), Some(Transmit::Bytes(0)));
        observer.handle_transmitted(slot, 6);
        // The peer greets again: it has closed its end.
        let again = observer.handle_greeting(&greeting(1, 6, u64::MAX));
        assert!(matches!(again, Ok(Welcome::Link(same, _)) if same == slot), "{again:?}");
        assert_eq!(observer.send(0, 4, b"too late", 0, true), Ok(Send::Taken { len: 8, whole: true }));
        assert_eq!(observer.poll_transmit(slot), None);
        assert_eq!(observer.table().get(slot).unwrap().outgoing().unsent(), 0);
        // The peer's next incarnation has not closed it yet. It will not want that, either, and is told that it is gone.
        let next = Greeting { received: 2, attempt: 1, ..first_greeting(opener, Incarnation::restarted(1)) };
        let Ok(Welcome::Link(_, Some(answer))) = observer.handle_greeting(&next) else { panic!("no link") };
        assert_eq!(answer.kept, 14);
    }

    /// A process that has accepted a connection of `opener` and read six bytes, which its protector does not hold.
    fn reader(opener: ProcessId) -> Observer {
        let me = ProcessId { job: JobId::from_bits(1), rank: Rank(0) };
        let mut observer = Observer::new(me, &Config { outbox_blocks: 8, connections: 4, descriptors: 16, ..Config::default() });
        let hello = first_greeting(opener, Incarnation::FIRST);
        assert!(matches!(observer.handle_greeting(&hello), Ok(Welcome::Link(..))));
        observer.handle_accepted(0, 3, 4, hello.connection, ([10, 0, 0, 1], 1).into()).unwrap();
        assert!(matches!(observer.receive(0, 4, 100, false), Ok(Receive::Take { source: Source::Link, .. })));
        assert_eq!(observer.handle_received(0, 4, Source::Link, b"wanted"), Ok(Some(6)));
        let position = observer.journal().end();
        observer.poll_journal();
        observer.handle_protector(&FromProtector::JournalStable { position }).unwrap();
        observer
    }

    /// Until the protector has what was read of a connection, the next incarnation may want it again, though the program has closed it.
    #[test]
    fn who_has_closed_wants_what_is_not_safe() {
        let opener = ProcessId { job: JobId::from_bits(1), rank: Rank(1) };
        let mut observer = reader(opener);
        assert_eq!(observer.close(4), Ok(None));
        let stable = |observer: &mut Observer, attempt| {
            let again = Greeting { attempt, ..first_greeting(opener, Incarnation::FIRST) };
            let Ok(Welcome::Link(_, Some(answer))) = observer.handle_greeting(&again) else { panic!("no link") };
            answer.stable
        };
        assert_eq!(stable(&mut observer, 1), 0);
        observer.handle_protector(&FromProtector::PayloadStable { position: 6 }).unwrap();
        assert_eq!(stable(&mut observer, 2), u64::MAX);
    }

    /// The program has shut down reading, and is told that nothing comes. Its peer goes on, and closes later, somewhere else.
    #[test]
    fn a_shutdown_of_reading_is_no_end_of_the_stream() {
        let opener = ProcessId { job: JobId::from_bits(1), rank: Rank(1) };
        let mut observer = reader(opener);
        let image = observer.clone();
        let begin = observer.journal().end();
        observer.shut_reading(4).unwrap();
        assert!(matches!(observer.receive(0, 4, 100, true), Ok(Receive::Take { source: Source::Link, offset: 6, .. })));
        assert_eq!(observer.handle_shut(0, 4), Ok(Receive::End));
        assert_eq!(observer.handle_peeked_end(0, 4), Ok(Receive::End));
        observer.handle_broken(0);
        assert_eq!(observer.receive(0, 4, 100, true), Ok(Receive::End), "there is no link");
        assert_eq!(observer.peek(0, 4, 100, true), Ok(Receive::End), "there is no link");
        assert_eq!(observer.table().get(0).unwrap().incoming().finish(), None);
        let again = Greeting { attempt: 1, received: 0, finish: Some(50), ..first_greeting(opener, Incarnation::restarted(1)) };
        assert!(matches!(observer.handle_greeting(&again), Ok(Welcome::Link(_, Some(Greeting { received: 6, .. })))));
        assert!(matches!(observer.receive(0, 4, 100, true), Ok(Receive::Take { source: Source::Link, offset: 6, .. })));
        assert_eq!(observer.handle_received(0, 4, Source::Link, b"later"), Ok(Some(5)));
        // The next incarnation is told the same.
        let log = observer.poll_journal().unwrap().head.to_vec();
        let mut next = image;
        next.restart(Incarnation::restarted(1), begin + log.len() as u64, Vec::new(), ImageRange::default(), 64).unwrap();
        next.handle_protector(&FromProtector::Journal { position: begin, bytes: &log }).unwrap();
        next.shut_reading(4).unwrap();
        assert_eq!(next.receive(0, 4, 100, true), Ok(Receive::End));
        assert_eq!(next.peek(0, 4, 100, true), Ok(Receive::End));
        assert_eq!(next.receive(0, 4, 100, true), Ok(Receive::End));
        assert_eq!(next.peek(0, 4, 100, true), Ok(Receive::End));
        assert_eq!(next.receive(0, 4, 100, true), Ok(Receive::Wait(Wait::Event)), "bytes that have to come again");
        assert_eq!(next.table().get(0).unwrap().incoming().finish(), None);
    }

    /// An earlier incarnation wanted nothing more, and this one does all the same. It gets an error, and no other bytes in the place of those that are gone.
    #[test]
    fn what_is_gone_is_not_passed_over() {
        let opener = ProcessId { job: JobId::from_bits(1), rank: Rank(1) };
        let mut observer = reader(opener);
        let again = |attempt, kept| Greeting { attempt, kept, ..first_greeting(opener, Incarnation::FIRST) };
        assert!(matches!(observer.handle_greeting(&again(1, 6)), Ok(Welcome::Link(..))));
        assert!(matches!(observer.receive(0, 4, 100, false), Ok(Receive::Take { source: Source::Link, offset: 6, .. })));
        assert!(matches!(observer.handle_greeting(&again(2, 7)), Ok(Welcome::Link(..))));
        assert!(matches!(observer.receive(0, 4, 100, false), Err(Error::Lost { wanted: 6, kept: 7, .. })));
        assert!(matches!(observer.peek(0, 4, 100, false), Err(Error::Lost { wanted: 6, kept: 7, .. })));
    }

    /// A process that found nothing three times, printed, and died; its image is of after so many of these calls.
    fn printed_after_nothing(image_after: usize) -> (Observer, u64) {
        let me = ProcessId { job: JobId::from_bits(1), rank: Rank(0) };
        let mut observer = Observer::new(me, &Config { outbox_blocks: 8, connections: 4, descriptors: 16, ..Config::default() });
        let mut again = observer.clone();
        for call in 0..3 {
            assert_eq!(observer.ready(0, None, false, &mut []), Ok(Ready::Live));
            observer.handle_ready(0, None, &[]).unwrap();
            if call + 1 == image_after {
                again = observer.clone();
            }
        }
        assert_eq!(observer.gate(), None, "peers need no record");
        let end = observer.gate_of_output(0).unwrap().expect("the output waits");
        let log = observer.poll_journal().unwrap().head.to_vec();
        observer.handle_protector(&FromProtector::JournalStable { position: end }).unwrap();
        assert_eq!(observer.gate_of_output(0), Ok(None));
        again.restart(Incarnation::restarted(1), end, Vec::new(), ImageRange::default(), 64).unwrap();
        again.handle_protector(&FromProtector::Journal { position: 0, bytes: &log }).unwrap();
        (again, end)
    }

    #[test]
    fn what_is_printed_after_nothing_was_found_is_printed_after_as_much() {
        for image_after in 0..=3 {
            let (mut again, end) = printed_after_nothing(image_after);
            for _ in image_after..3 {
                assert!(!again.settle());
                assert_eq!(again.ready(0, None, false, &mut []), Ok(Ready::Nothing));
            }
            assert_eq!(again.gate_of_output(0), Ok(None));
            assert_eq!(again.ready(0, None, false, &mut []), Ok(Ready::Live), "an image after {image_after} calls");
            assert_eq!(again.journal().end(), end);
        }
    }

    /// A process with one connection to a peer that takes nothing.
    fn sender() -> Observer {
        let process = |rank| ProcessId { job: JobId::from_bits(1), rank: Rank(rank) };
        let config = Config { outbox_blocks: 8, connections: 4, descriptors: 16, ..Config::default() };
        let mut observer = Observer::new(process(0), &config);
        observer.connect(3, process(1)).unwrap().unwrap();
        observer
    }

    /// A send that does not wait was taken, something was printed, and the process died before its peer had what was sent. The next incarnation has the send taken, too, and is
    /// not live before that, however much its peer lacks: if the send failed, the program would print something else.
    #[test]
    fn what_is_printed_after_a_send_was_taken_is_printed_after_one() {
        let image = sender();
        let mut first = image.clone();
        assert_eq!(first.send(0, 3, b"taken", 0, false), Ok(Send::Taken { len: 5, whole: true }));
        assert_eq!((first.gate(), first.journal().end()), (None, 0), "peers need no record");
        let end = first.gate_of_output(0).unwrap().expect("the output waits");
        let log = first.poll_journal().unwrap().head.to_vec();
        first.handle_protector(&FromProtector::JournalStable { position: end }).unwrap();
        assert_eq!(first.gate_of_output(0), Ok(None), "it is recorded once");
        assert_eq!(first.send(0, 3, b"then", 0, true), Ok(Send::Taken { len: 4, whole: true }));
        assert_eq!(first.gate_of_output(0), Ok(None), "a send that waits is always taken");
        let mut again = image;
        again.restart(Incarnation::restarted(1), end, Vec::new(), ImageRange::default(), 64).unwrap();
        again.handle_protector(&FromProtector::Journal { position: 0, bytes: &log }).unwrap();
        assert_eq!(again.gate_of_output(0), Ok(None));
        assert_eq!(again.phase(), Phase::Replaying, "before it has sent that");
        assert_eq!(again.send(0, 3, b"taken", 0, false), Ok(Send::Taken { len: 5, whole: true }));
        assert_eq!(again.gate_of_output(0), Ok(None));
        assert_eq!((again.phase(), again.left_of_log()), (Phase::Settled, 0));
    }

    /// The log is over, and the peer has not said how much it has. What is sent is taken whatever room there is, and that is recorded before anything is printed.
    #[test]
    fn what_is_printed_after_a_send_of_replay_is_recorded_too() {
        let mut first = sender();
        first.restart(Incarnation::restarted(1), 0, Vec::new(), ImageRange::default(), 64).unwrap();
        assert_eq!(first.send(0, 3, b"taken", 0, false), Ok(Send::Taken { len: 5, whole: true }));
        assert_eq!(first.phase(), Phase::Settled);
        assert!(first.gate_of_output(0).unwrap().is_some());
    }

    /// The log of a process is over, but it is not live yet. What it prints now depends on choices that are in no log: they are recorded, and the next incarnation prints the same.
    #[test]
    fn what_is_printed_before_a_process_lives_again_is_recorded_too() {
        let image = sender();
        let mut first = image.clone();
        first.restart(Incarnation::restarted(1), 0, Vec::new(), ImageRange::default(), 64).unwrap();
        assert_eq!(first.gate_of_output(0), Ok(None), "it may be what it has printed before");
        assert_eq!(first.ready(0, None, false, &mut []), Ok(Ready::Nothing), "its peer has not been reached");
        let end = first.gate_of_output(0).unwrap().expect("the output waits");
        let log = first.poll_journal().unwrap().head.to_vec();
        first.handle_protector(&FromProtector::JournalStable { position: end }).unwrap();
        assert_eq!((first.gate_of_output(0), first.settle()), (Ok(None), false));
        let mut second = image;
        second.restart(Incarnation::restarted(2), end, Vec::new(), ImageRange::default(), 64).unwrap();
        second.handle_protector(&FromProtector::Journal { position: 0, bytes: &log }).unwrap();
        assert_eq!(second.phase(), Phase::Replaying);
        assert_eq!(second.ready(0, None, false, &mut []), Ok(Ready::Nothing));
        assert_eq!(second.phase(), Phase::Settled);
    }

    /// A program that goes by the clock finds nothing less often this time: it waits, or ends, all the same.
    #[test]
    fn who_finds_nothing_less_often_goes_on() {
        let (mut again, _) = printed_after_nothing(0);
        assert_eq!(again.ready(0, None, true, &mut []), Ok(Ready::Live));
        let (mut again, _) = printed_after_nothing(0);
        again.handle_leaving().unwrap();
        assert!(again.settle());
    }

    /// A protector that has just answered learns first where each stream goes on: what was acknowledged before, or received and not shipped yet.
    #[test]
    fn a_new_protector_is_told_where_streams_go_on() {
        let mut observer = sender();
        let told = |observer: &mut Observer| {
            let piece = observer.poll_payload()?;
            Some((piece.position, piece.offset, piece.head.len() + piece.tail.len()))
        };
        observer.handle_received(0, 3, Source::Link, b"shipped").unwrap();
        assert_eq!(told(&mut observer), Some((0, 0, 7)));
        observer.handle_protector(&FromProtector::PayloadStable { position: 7 }).unwrap();
        assert_eq!(told(&mut observer), None);
        observer.handle_protector(&FromProtector::Welcome { journal: observer.journal().end(), payload: 7 }).unwrap();
        assert_eq!(told(&mut observer), Some((7, 7, 0)));
        assert_eq!(told(&mut observer), None, "once");
    }

    /// A peer has ended while this process was lost. What the peer had received may have gone on to others, so that much is sent again before this process is live: else it
    /// could go another way.
    #[test]
    fn what_a_peer_had_received_that_has_left_is_sent_again_first() {
        let mut observer = sender();
        observer.restart(Incarnation::restarted(1), 0, Vec::new(), ImageRange::default(), 64).unwrap();
        assert!(!observer.table().all_sent_again(), "the peer has not said how much it has");
        let stream = observer.table().get(0).unwrap().stream_out();
        observer.handle_left(stream.connection, 5);
        assert!(!observer.table().all_sent_again());
        assert_eq!(observer.send(0, 3, b"four", 0, false), Ok(Send::Taken { len: 4, whole: true }));
        assert!(!observer.table().all_sent_again());
        assert_eq!(observer.send(0, 3, b"five", 0, false), Ok(Send::Taken { len: 4, whole: true }));
        assert!(observer.table().all_sent_again());
    }

    /// The opener has dialed a connection just before it learned that this is over on both sides. The greeting comes after the word that it is over, and makes no
    /// new connection.
    #[test]
    fn a_call_that_comes_too_late_makes_no_connection() {
        let process = |rank| ProcessId { job: JobId::from_bits(1), rank: Rank(rank) };
        let opener = process(1);
        let config = Config { outbox_blocks: 8, connections: 4, descriptors: 16, ..Config::default() };
        for is_told_twice in [false, true] {
            let mut observer = Observer::new(process(0), &config);
            let call = first_greeting(opener, Incarnation::FIRST);
            let Ok(Welcome::Link(slot, _)) = observer.handle_greeting(&call) else { panic!("no link") };
            observer.handle_accepted(0, 3, 4, call.connection, ([10, 0, 0, 1], 1).into()).unwrap();
            let position = observer.journal().end();
            observer.poll_journal();
            observer.handle_protector(&FromProtector::JournalStable { position }).unwrap();
            assert_eq!(observer.close(4), Ok(None));
            let (mut streams, mut ended) = (Vec::new(), Vec::new());
            let image = observer.checkpoint(&mut streams, &mut ended).unwrap().unwrap().mark.image;
            observer.handle_protector(&FromProtector::Committed { image, oldest: image }).unwrap();
            assert!(observer.poll_forget().is_some());
            if is_told_twice {
                let word = FromProtector::Forget { connection: call.connection, for_good: false };
                observer.handle_protector(&word).unwrap();
                assert_eq!(observer.handle_greeting(&call), Ok(Welcome::Forgotten));
            }
            assert_eq!(observer.poll_over(), None);
            observer.handle_protector(&FromProtector::Forget { connection: call.connection, for_good: true }).unwrap();
            assert!(observer.table().get(slot).is_none());
            assert_eq!((observer.poll_over(), observer.poll_over()), (Some(call.connection), None));
            assert_eq!(observer.handle_greeting(&call), Ok(Welcome::Refuse));
        }
    }

    /// Processes of an earlier epoch are not dead everywhere at once, and know connections by the same names.
    #[test]
    fn a_process_of_an_earlier_epoch_is_refused() {
        let process = |rank| ProcessId { job: JobId::from_bits(1), rank: Rank(rank) };
        let (me, peer) = (process(0), process(1));
        let config = Config { outbox_blocks: 8, connections: 4, descriptors: 16, ..Config::default() };
        let launched = Incarnation::launched_in(Epoch { view: 4, count: 1, home: BootId(7) });
        let mut observer = Observer::in_life(me, launched, &config);
        let stranger = ProcessId { job: JobId::from_bits(99), ..peer };
        observer.handle_restarted(peer, Incarnation::restarted(3));
        assert_eq!(observer.handle_greeting(&first_greeting(peer, Incarnation::restarted(3))).unwrap(), Welcome::Refuse);
        assert!(matches!(observer.handle_greeting(&first_greeting(peer, launched)), Ok(Welcome::Link(..))));
        assert!(
            matches!(observer.handle_greeting(&first_greeting(stranger, Incarnation::FIRST)), Ok(Welcome::Link(..))),
            "epochs of another job are its own"
        );
    }
}
