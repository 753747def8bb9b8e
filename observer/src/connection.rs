//! Connections that outlive their sockets, and the table of them.
//!
//! A connection has two streams. What was appended to the outgoing one is in the outbox; the link (the current socket) takes it
//! from `sent` on. What the program took of the incoming one is `consumed`. When a link breaks, the process that opened the
//! connection dials again, whichever end noticed first: so two ends never dial each other. Of several dials the newest (by
//! incarnation, then attempt) wins. Both ends say how far they have received, and each goes on there.
//!
//! A stream's end is one unit after its last byte, so "received", "stable" and "consumed" cover it like any other.

mod forgetting;
mod greetings;
mod table;

use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::ids::{Incarnation, JobId, ProcessId};
use radic_wire::log::Greeting;

use crate::causes::{Causes, Passed};
use crate::error::Error;
use crate::frames::{Deframer, Framer, Said};
use crate::journal::Journal;
use crate::outbox::{Outbox, Queue};
use crate::payload::PayloadLog;

pub use forgetting::Forgettable;
pub use greetings::Welcome;
pub use table::Table;

/// A connection's place in the table, until it is forgotten.
pub type Slot = usize;

/// The process that speaks, and its incarnation.
pub type Me = (ProcessId, Incarnation);

/// How far this process has come with its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The process's log still has outcomes to serve.
    Replaying,
    /// The process's log is over; it waits at Gate B.
    Settled,
    /// The process has caught up: its outcomes are new ones.
    Live,
}

/// Which peers a process waits for whose log is over (Gate B).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// None: it has not sent again itself what they have.
    Not,
    /// Some that it has no link to.
    OutOfReach,
    /// One at least that catches up itself.
    CatchesUp,
}

/// After this many received units a frame says again what the peer need not keep: this part of the payload log (64 KiB of 8 MiB).
const NEWS: usize = 128;
/// As a stable offset: the peer has closed and wants nothing more, whatever comes. How much it received still counts (Gate B).
const NO_MORE: u64 = u64::MAX;

/// The socket that a connection has at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// There is none. Its opener dials.
    Down,
    /// It was given up here, and its socket is still to be closed. The opener dials another one.
    GivenUp,
    /// The greeting was written, the answer has not come.
    Dialing,
    /// Bytes flow.
    Up,
}

impl Link {
    /// Whether the opener has to dial.
    #[must_use]
    pub fn is_down(self) -> bool {
        matches!(self, Link::Down | Link::GivenUp)
    }
}

/// What the program has of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Nothing: it is being made, or what the log has of it has not been replayed yet.
    Nothing,
    /// The connection waits for the program's `accept`.
    Offered,
    Descriptor(u32),
    /// The program has closed it.
    Closed,
}

/// The direction in which this process sends.
#[derive(Debug, Clone, Default)]
pub struct Outgoing {
    pub(crate) queue: Queue,
    /// The next unit for the current link.
    pub(crate) sent: u64,
    /// The offset after the last byte, once the program has ended this direction.
    pub(crate) finish: Option<u64>,
    /// What the peer has received, as its last greeting said.
    pub(crate) peer_has: u64,
    /// Whether `peer_has` was said by a peer that has replayed its log.
    pub(crate) peer_settled: bool,
    /// What the peer's protector holds.
    pub(crate) stable: u64,
    /// The frame that leaves on the current link.
    pub(crate) framer: Framer,
    /// The causes that the current link has carried.
    passed: Passed,
    pub(crate) refusal: Refusal,
}

/// Whether what the program sends is refused, because its peer is gone for good.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Refusal {
    #[default]
    None,
    /// The program's bytes are refused, and it has not been told yet, by this `errno`.
    Untold(i32),
    /// The program was told: from then on a socket says EPIPE.
    Told,
}

impl Outgoing {
    /// What is kept of the outgoing stream.
    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// What is kept of the outgoing stream, to be changed.
    pub(crate) fn queue_mut(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// Units that were sent since the beginning, the end included.
    pub fn end(&self) -> u64 {
        self.queue.end() + u64::from(self.finish.is_some())
    }

    /// Offset of the oldest byte that is kept.
    pub fn start(&self) -> u64 {
        self.queue.start()
    }

    /// No receiver wants what is no longer kept, so no link has to take it. Otherwise a `send` to a peer that has closed the
    /// connection would wait forever for a link to take bytes that were passed over. Returns true if the current link was to
    /// carry some of them. Then nothing more leaves on it, because its receiver would take the next bytes for those.
    pub(crate) fn handle_trimmed(&mut self) -> bool {
        let is_cut = self.sent < self.queue.start();
        if is_cut {
            self.sent = self.queue.start();
            self.framer.abandon();
        }
        is_cut
    }

    /// Whether no frame is under way on the link.
    pub fn is_between_frames(&self) -> bool {
        self.framer.is_idle()
    }

    /// Bytes that no link has taken yet.
    pub fn unsent(&self) -> u64 {
        self.queue.end().saturating_sub(self.sent)
    }

    /// Bytes that are kept for the receiver.
    pub fn kept(&self) -> u64 {
        self.queue.end() - self.queue.start()
    }

    /// The offset after the last byte, once the program has ended this direction.
    pub fn finish(&self) -> Option<u64> {
        self.finish
    }

    /// Whether what the program sends is refused: its peer is gone for good.
    pub fn is_refused(&self) -> bool {
        self.refusal != Refusal::None
    }

    /// What the program sends is refused from now on, first with this `errno`.
    pub(crate) fn refuse(&mut self, errno: i32) {
        if !self.is_refused() {
            self.refusal = Refusal::Untold(errno);
        }
    }
}

/// The direction in which this process receives.
#[derive(Debug, Clone, Default)]
pub struct Incoming {
    /// Units that have their outcome in the journal.
    pub(crate) consumed: u64,
    /// Bytes given to the program, beyond `consumed` only while a replayed `recv` is put together.
    pub(crate) taken: u64,
    /// The offset up to which the program was told that there are bytes, which it may not have taken (MSG_PEEK, FIONREAD).
    pub(crate) shown: u64,
    /// Units that the protector held when this incarnation began: they come from there, not from the link.
    pub(crate) held: u64,
    /// The offset after the last byte, once it is known.
    pub(crate) finish: Option<u64>,
    /// The sender has nothing before this any more: an earlier incarnation of this process had closed the connection and would never want it.
    pub(crate) gone: u64,
    /// The program has shut down reading: a `recv` that finds no byte returns 0. That is no end of the stream, and none is consumed from here on.
    pub(crate) shut: bool,
    /// What arrives on the current link.
    pub(crate) deframer: Deframer,
    /// What the peer was last told that it need not keep, and how much has to be received until it is told again.
    pub(crate) told: u64,
    news_at: u64,
    /// Where it stood at the images that there are, where received bytes stay with their senders.
    pub(crate) cuts: Cuts,
}

/// How much of a stream images cover: of the oldest that counts, the newest, and the one under way.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cuts {
    /// Images, and units. The newest comes last.
    images: [Option<(u64, u64)>; 3],
    /// What the oldest image covers from which this process may be brought back.
    covered: u64,
}

impl Cuts {
    pub(crate) fn handle_checkpoint(&mut self, image: u64, units: u64) {
        self.images.rotate_left(1);
        self.images[2] = Some((image, units));
    }

    /// No restart begins before `oldest`.
    pub(crate) fn handle_committed(&mut self, oldest: u64) {
        let covered = self.images.iter().flatten().find(|(image, _)| *image == oldest);
        self.covered = covered.map_or(self.covered, |(_, units)| self.covered.max(*units));
    }

    /// Units that no restart needs again.
    pub(crate) fn covered(&self) -> u64 {
        self.covered
    }

    /// The image under way will not be.
    pub(crate) fn handle_abandoned(&mut self, image: u64) {
        if self.images[2].is_some_and(|(last, _)| last == image) {
            self.images[2] = None;
            self.images.rotate_right(1);
        }
    }
}

impl Incoming {
    /// The unit that the link must bring next.
    pub fn wanted(&self) -> u64 {
        self.consumed.max(self.taken).max(self.held)
    }

    /// The offset after the last byte, once it is known.
    pub fn finish(&self) -> Option<u64> {
        self.finish
    }

    /// An incarnation is over, the sender's or this process's own: where the stream was said to end counts only if that end was received. Until then
    /// nothing depends on it, and the sender's next incarnation may end the stream elsewhere.
    fn handle_incarnations_over(&mut self) {
        let wanted = self.wanted();
        self.finish.take_if(|finish| *finish >= wanted);
    }

    /// Whether the program was told of the stream's end. The end is an outcome once; each later `recv` finds it again without one.
    pub(crate) fn has_told_end(&self) -> bool {
        self.finish.is_some_and(|finish| finish < self.consumed)
    }

    /// Bytes of which the program knows that they are there: no call finds nothing before it has taken them.
    #[inline]
    pub(crate) fn owed(&self) -> u64 {
        self.shown.min(self.finish.unwrap_or(u64::MAX)).saturating_sub(self.taken)
    }

    /// Whether so many bytes are here that have no outcome in the journal, or the stream ends before; `in_link` of them lie in the link's socket.
    pub(crate) fn has(&self, bytes: u64, in_link: u64) -> bool {
        let until = self.consumed.saturating_add(bytes).min(self.finish.unwrap_or(u64::MAX));
        self.taken.saturating_add(self.in_log()).saturating_add(in_link) >= until
    }

    /// What takes the bytes of the program out of what arrives on the link.
    pub fn deframer(&self) -> &Deframer {
        &self.deframer
    }

    /// Whether the program has shut down reading.
    pub fn is_shut(&self) -> bool {
        self.shut
    }

    /// Bytes that the protector holds and the program has not taken.
    #[inline]
    pub(crate) fn in_log(&self) -> u64 {
        self.held.min(self.finish.unwrap_or(u64::MAX)).saturating_sub(self.taken)
    }
}

/// One connection.
#[derive(Debug, Clone)]
pub struct Connection {
    /// The connection's identifier.
    pub id: ConnectionId,
    /// The other end.
    pub peer: ProcessId,
    /// Whether this process opened the connection.
    pub opened_here: bool,
    pub(crate) hold: Hold,
    pub(crate) link: Link,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    /// Of the opener: the last attempt to dial, by its incarnation.
    attempt: Option<(Incarnation, u32)>,
    peer_incarnation: Incarnation,
    /// The peer of the current link was told how far this process is, while it was replaying.
    unsettled: bool,
    /// The image that is the first to cover the closing.
    pub(crate) covered_by: Option<u64>,
    /// A committed image covers the closing, here and there.
    forgettable: (bool, bool),
    to_tell: bool,
    /// No image of the peer has the connection, or the peer has left: it cannot ask for it after a restart.
    gone_there: bool,
}

impl Connection {
    fn new(id: ConnectionId, peer: ProcessId, opened_here: bool) -> Self {
        Connection {
            id,
            peer,
            opened_here,
            hold: Hold::Nothing,
            link: Link::Down,
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            attempt: None,
            peer_incarnation: Incarnation::FIRST,
            unsettled: false,
            covered_by: None,
            forgettable: (false, false),
            to_tell: false,
            gone_there: false,
        }
    }

    /// Gives up the current link. The driver closes its socket, and the opener dials a new one.
    pub(crate) fn drop_link(&mut self) {
        if self.link != Link::Down {
            self.link = Link::GivenUp;
        }
    }

    /// The peer has closed it, and will not be brought back to before that: it never wants a byte more.
    pub fn is_over_there(&self) -> bool {
        self.forgettable.1
    }

    /// The peer has never heard of this connection, and never will: it was closed or refused while its `connect` was under way.
    pub(crate) fn is_unheard_of(&self) -> bool {
        self.gone_there && self.attempt.is_none()
    }

    /// The stream that comes in.
    pub fn stream_in(&self) -> StreamId {
        StreamId { connection: self.id, from_opener: !self.opened_here }
    }

    /// The stream that goes out.
    pub fn stream_out(&self) -> StreamId {
        StreamId { connection: self.id, from_opener: self.opened_here }
    }

    /// The current socket.
    pub fn link(&self) -> Link {
        self.link
    }

    /// The program's descriptor, while it has one.
    pub fn fd(&self) -> Option<u32> {
        match self.hold {
            Hold::Descriptor(fd) => Some(fd),
            Hold::Nothing | Hold::Offered | Hold::Closed => None,
        }
    }

    /// Whether the program has closed it.
    pub fn is_closed(&self) -> bool {
        self.hold == Hold::Closed
    }

    /// Whether it waits for the program's `accept`.
    pub fn is_offered(&self) -> bool {
        self.hold == Hold::Offered
    }

    /// The last attempt to dial, by the incarnation of its opener.
    pub fn attempt(&self) -> Option<(Incarnation, u32)> {
        self.attempt
    }

    /// The newest incarnation of the peer that has greeted.
    pub fn peer_incarnation(&self) -> Incarnation {
        self.peer_incarnation
    }

    /// The outgoing direction.
    pub fn outgoing(&self) -> &Outgoing {
        &self.outgoing
    }

    /// The outgoing direction, to be changed.
    pub(crate) fn outgoing_mut(&mut self) -> &mut Outgoing {
        &mut self.outgoing
    }

    /// The incoming direction.
    pub fn incoming(&self) -> &Incoming {
        &self.incoming
    }

    /// Whether no later incarnation wants anything again that was received: images cover the closing, or all of it.
    pub(crate) fn is_covered(&self) -> bool {
        self.forgettable.0 || !self.is_closed() && self.incoming.cuts.covered >= self.incoming.consumed
    }

    /// Whether a `recv` finds nothing and never will: the stream ends here, or the program has shut down reading and no link is left that could bring bytes.
    pub(crate) fn has_no_more(&self) -> bool {
        let incoming = &self.incoming;
        incoming.in_log() == 0 && (incoming.finish == Some(incoming.taken) || incoming.shut && self.link != Link::Up)
    }

    /// Fails if the link would resume beyond the next byte needed: the sender discarded the gap because an earlier incarnation
    /// had closed the connection, so going on would deliver wrong bytes.
    #[inline]
    pub(crate) fn expect_link(&self) -> Result<(), Error> {
        let (wanted, kept) = (self.incoming.wanted(), self.incoming.gone);
        if wanted < kept { Err(Error::Lost { connection: self.id, wanted, kept }) } else { Ok(()) }
    }

    /// The peer says where the stream that comes in ends.
    fn handle_finish(&mut self, offset: u64) -> Result<(), Error> {
        let (known, received) = (self.incoming.finish, self.incoming.wanted());
        if known.is_some_and(|known| known != offset) || offset.saturating_add(1) < received {
            return Err(Error::End { connection: self.id, known, says: offset, received });
        }
        self.incoming.finish = Some(offset);
        Ok(())
    }

    fn peer_error(&self, what: &'static str) -> Error {
        Error::Peer { connection: self.id, what }
    }

    fn greeting(&mut self, (process, incarnation): Me, attempt: u32, settled: bool, payload: &PayloadLog) -> Greeting {
        self.unsettled = !settled;
        // Where the sender keeps what was received, the image counts that covers the closing.
        let stays = self.stays_with_senders(payload, process.job);
        let is_needed = if stays { !self.forgettable.0 } else { payload.first_of(self.stream_in()).is_some() };
        let wants_nothing = self.is_closed() && !is_needed;
        let Connection { id: connection, outgoing, incoming, .. } = self;
        // What this incarnation found at its protector is stable; of what came since, only the protector itself knows. Until it has all that was read of a
        // connection that is closed, the next incarnation may read that again.
        let stable = if wants_nothing { NO_MORE } else { incoming.held.max(incoming.cuts.covered) };
        let (received, kept, finish) = (incoming.wanted(), outgoing.queue.start(), outgoing.finish);
        Greeting { process, incarnation, connection: *connection, attempt, received, stable, kept, finish, settled, ends: None }
    }

    /// The other end has said where it stands: the link goes on there.
    fn adopt(&mut self, outbox: &mut Outbox, greeting: &Greeting, phase: Phase) -> Result<(), Error> {
        let (received, end, kept) = (greeting.received, self.outgoing.end(), self.outgoing.queue.start());
        // A peer that has said once that it wants nothing more does not want it in a later incarnation. If it does, it gets an
        // error ([`Connection::expect_link`]).
        let wants_it = greeting.stable != NO_MORE && self.outgoing.stable != NO_MORE;
        if received < kept && wants_it {
            return Err(Error::Lost { connection: self.id, wanted: received, kept });
        }
        if received > end && phase == Phase::Live {
            return Err(Error::Orphan { connection: self.id, received, sent: end });
        }
        if greeting.incarnation > self.peer_incarnation {
            self.incoming.handle_incarnations_over();
        }
        greeting.finish.map_or(Ok(()), |offset| self.handle_finish(offset))?;
        // A protector may hold more than its process wants again only by a mistake, which must not cost bytes.
        let stable = if greeting.stable == NO_MORE { NO_MORE } else { greeting.stable.min(received) };
        self.handle_stable(outbox, stable);
        self.outgoing.sent = received.max(self.outgoing.queue.start());
        self.incoming.gone = greeting.kept;
        (self.outgoing.peer_has, self.outgoing.peer_settled) = (received, greeting.settled);
        self.handle_new_link();
        self.peer_incarnation = greeting.incarnation;
        self.link = Link::Up;
        Ok(())
    }

    /// Another socket is the link from now on: in both directions the next byte begins a frame.
    fn handle_new_link(&mut self) {
        (self.outgoing.framer, self.outgoing.passed, self.incoming.deframer) = Default::default();
        (self.incoming.told, self.incoming.news_at) = (0, 0);
    }

    /// Whether what is received on it is kept by its sender until images cover it, and goes to no log. `job`: that of this process.
    pub(crate) fn stays_with_senders(&self, payload: &PayloadLog, job: JobId) -> bool {
        payload.line().is_some() && self.is_within(job)
    }

    /// Whether the peer is a process of this job. Only these say to each other what bytes depend on.
    pub(crate) fn is_within(&self, job: JobId) -> bool {
        self.peer.job == job
    }

    /// How much of what is kept for the peer an image has: what the peer may want if it is brought back by its own image of this line; none: all.
    pub(crate) fn kept_from(&self, line: Option<u64>) -> u64 {
        let queue = &self.outgoing.queue;
        let floor = line.map_or(0, |line| self.incoming.deframer.heard().received_by(line));
        if self.link == Link::Up { floor.clamp(queue.start(), queue.end()) } else { queue.start() }
    }

    /// Begins a frame for all that has not left, if none is under way. Its header says what of the stream that comes in the peer
    /// need not keep, if that is news enough, and `causes` what the bytes depend on: none, while that is more than a frame takes.
    pub(crate) fn begin_frame(&mut self, job: JobId, payload: &PayloadLog, causes: Option<(&Causes, &Journal)>) {
        let unsent = self.outgoing.unsent();
        if unsent == 0 || !self.outgoing.framer.is_idle() {
            return;
        }
        if causes.is_some_and(|(causes, journal)| causes.is_too_much(&self.outgoing.passed, journal)) {
            return;
        }
        let (wanted, mut said) = (self.incoming.wanted(), Said::default());
        if let Some(line) = payload.line().filter(|_| self.is_within(job)) {
            self.incoming.told = self.incoming.held.max(self.incoming.cuts.covered);
            said = Said { received: self.incoming.consumed, line, ..said };
        } else if wanted >= self.incoming.news_at {
            self.incoming.told = payload.first_of(self.stream_in()).unwrap_or(wanted);
            self.incoming.news_at = wanted + (payload.capacity() / NEWS).max(1) as u64;
        }
        said.stable = self.incoming.told;
        let (passed, to) = (&mut self.outgoing.passed, self.peer.rank);
        self.outgoing.framer.begin(unsent, said, |out| {
            if let Some((causes, journal)) = causes {
                causes.pass_on(passed, to, journal, out);
            }
        });
    }

    /// Whether the current link would have to carry more causes than one frame takes.
    pub(crate) fn passes_too_much(&self, causes: &Causes, journal: &Journal) -> bool {
        causes.is_too_much(&self.outgoing.passed, journal)
    }

    /// What the last header on the link has said of the stream that goes out. In replay the peer may have more of it than was sent again.
    pub(crate) fn handle_headers(&mut self, outbox: &mut Outbox) -> Result<(), Error> {
        let stable = self.incoming.deframer.heard().stable();
        if stable > self.outgoing.end().max(self.outgoing.peer_has) {
            return Err(self.peer_error("it has bytes that were never sent"));
        }
        if stable > self.outgoing.stable && self.handle_stable(outbox, stable) {
            return Err(self.peer_error("it has bytes that its link has not brought"));
        }
        Ok(())
    }

    /// The peer's protector holds units up to `offset`, or the peer will never want them. Returns true if the current link was to
    /// carry some of them.
    pub(crate) fn handle_stable(&mut self, outbox: &mut Outbox, offset: u64) -> bool {
        self.outgoing.stable = self.outgoing.stable.max(offset);
        outbox.trim(&mut self.outgoing.queue, offset);
        self.outgoing.handle_trimmed()
    }
}
