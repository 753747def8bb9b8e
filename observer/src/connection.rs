//! Connections that outlive their sockets, and the table of them.
//!
//! A connection has two streams. What was appended to the outgoing one is in the outbox; the link (the socket of now) takes it
//! from `sent` on. What the program took of the incoming one is `consumed`. When a link breaks, the process that opened the
//! connection dials again, whichever end noticed first: so two ends never dial each other. Of several dials the newest (by
//! incarnation, then attempt) wins. Both ends say how far they have received, and each goes on there.
//!
//! A stream's end is one unit after its last byte, so "received", "stable" and "consumed" cover it like any other.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};

use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::ids::{Epoch, Incarnation, JobId, ProcessId};
use radic_wire::log::Greeting;

use crate::error::Error;
use crate::outbox::{Outbox, Queue};
use crate::payload::PayloadLog;

/// A connection's place in the table, until it is forgotten.
pub type Slot = usize;

/// The process that speaks, and its incarnation.
pub type Me = (ProcessId, Incarnation);

/// How far this process has come with its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Its log still has outcomes to serve.
    Replaying,
    /// Its log is over; it waits at Gate B.
    Settled,
    /// It has caught up: its outcomes are new ones.
    Live,
}

/// As a stable offset: the peer has closed and wants nothing more, whatever comes. How much it received still counts (Gate B).
const NO_MORE: u64 = u64::MAX;

/// The socket that a connection has at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// There is none. Its opener dials.
    Down,
    /// The greeting was written, the answer has not come.
    Dialing,
    /// Bytes flow.
    Up,
}

/// The direction in which this process sends.
#[derive(Debug, Clone, Default)]
pub struct Outgoing {
    pub(crate) queue: Queue,
    /// The next unit for the link of now.
    pub(crate) sent: u64,
    /// The offset after the last byte, once the program has ended this direction.
    pub(crate) finish: Option<u64>,
    /// What the peer has received, as its last greeting said.
    pub(crate) peer_has: u64,
    /// Whether `peer_has` was said by a peer that has replayed its log.
    pub(crate) peer_settled: bool,
    /// What the peer's protector holds.
    pub(crate) stable: u64,
}

impl Outgoing {
    /// Units that were sent since the beginning, the end included.
    pub fn end(&self) -> u64 {
        self.queue.end() + u64::from(self.finish.is_some())
    }

    /// Offset of the oldest byte that is kept.
    pub fn start(&self) -> u64 {
        self.queue.start()
    }

    /// What is not kept is wanted by no receiver, so no link has to take it. Else a `send` to a peer that has closed the connection would wait for ever for a
    /// link to take bytes that were passed over.
    pub(crate) fn handle_trimmed(&mut self) {
        self.sent = self.sent.max(self.queue.start());
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
}

/// The direction in which this process receives.
#[derive(Debug, Clone, Default)]
pub struct Incoming {
    /// Units that have their outcome in the journal.
    pub(crate) consumed: u64,
    /// Bytes given to the program, beyond `consumed` only while a replayed `recv` is put together.
    pub(crate) taken: u64,
    /// Units that the protector held when this incarnation began: they come from there, not from the link.
    pub(crate) held: u64,
    /// The offset after the last byte, once it is known.
    pub(crate) finish: Option<u64>,
    /// The sender has nothing before this any more: an earlier incarnation of this process had closed the connection and would never want it.
    pub(crate) gone: u64,
    /// The program has shut down reading: a `recv` that finds no byte returns 0. That is no end of the stream, and none is consumed from here on.
    pub(crate) shut: bool,
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
    fn handle_lives_over(&mut self) {
        let wanted = self.wanted();
        self.finish.take_if(|finish| *finish >= wanted);
    }

    /// Whether the program was told of the stream's end. The end is an outcome once; each later `recv` finds it again without one.
    pub(crate) fn has_told_end(&self) -> bool {
        self.finish.is_some_and(|finish| finish < self.consumed)
    }

    /// Whether the program has shut down reading.
    pub fn is_shut(&self) -> bool {
        self.shut
    }

    /// Bytes that the protector holds and the program has not taken.
    pub(crate) fn in_log(&self) -> u64 {
        self.held.min(self.finish.unwrap_or(u64::MAX)).saturating_sub(self.taken)
    }
}

/// One connection.
#[derive(Debug, Clone)]
pub struct Connection {
    /// Its identifier.
    pub id: ConnectionId,
    /// The other end.
    pub peer: ProcessId,
    /// Whether this process opened it.
    pub opened_here: bool,
    pub(crate) fd: Option<u32>,
    pub(crate) link: Link,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    /// Of the opener: the last attempt to dial, by its incarnation.
    attempt: Option<(Incarnation, u32)>,
    peer_incarnation: Incarnation,
    /// Waits to be accepted by the program.
    offered: bool,
    /// The peer of the link of now was told how far this process is, while it was replaying.
    unsettled: bool,
    /// The link was given up here: its socket is to be closed.
    dropped: bool,
    pub(crate) closed: bool,
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
            fd: None,
            link: Link::Down,
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            attempt: None,
            peer_incarnation: Incarnation::FIRST,
            offered: false,
            unsettled: false,
            dropped: false,
            closed: false,
            covered_by: None,
            forgettable: (false, false),
            to_tell: false,
            gone_there: false,
        }
    }

    /// The peer has closed it, and will not be brought back to before that: it never wants a byte more.
    pub fn is_over_there(&self) -> bool {
        self.forgettable.1
    }

    /// The stream that comes in.
    pub fn stream_in(&self) -> StreamId {
        StreamId { connection: self.id, from_opener: !self.opened_here }
    }

    /// The stream that goes out.
    pub fn stream_out(&self) -> StreamId {
        StreamId { connection: self.id, from_opener: self.opened_here }
    }

    /// The socket of now.
    pub fn link(&self) -> Link {
        self.link
    }

    /// The program's descriptor, while it has one.
    pub fn fd(&self) -> Option<u32> {
        self.fd
    }

    /// Whether the program has closed it.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether it waits for the program's `accept`.
    pub fn is_offered(&self) -> bool {
        self.offered
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

    /// The incoming direction.
    pub fn incoming(&self) -> &Incoming {
        &self.incoming
    }

    /// Whether a `recv` finds nothing and never will: the stream ends here, or the program has shut down reading and no link is left that could bring bytes.
    pub(crate) fn has_no_more(&self) -> bool {
        let incoming = &self.incoming;
        incoming.in_log() == 0 && (incoming.finish == Some(incoming.taken) || incoming.shut && self.link != Link::Up)
    }

    /// Fails if the link would resume beyond the next byte needed: the sender discarded the gap because an earlier incarnation had closed the connection, so going on would deliver
    /// wrong bytes.
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
        let wants_nothing = self.closed && payload.first_of(self.stream_in()).is_none();
        let Connection { id: connection, outgoing, incoming, .. } = self;
        // What this incarnation found at its protector is stable; of what came since, only the protector itself knows. Until it has all that was read of a
        // connection that is closed, the next incarnation may read that again.
        let stable = if wants_nothing { NO_MORE } else { incoming.held };
        let (received, kept, finish) = (incoming.wanted(), outgoing.queue.start(), outgoing.finish);
        Greeting { process, incarnation, connection: *connection, attempt, received, stable, kept, finish, settled, ends: None }
    }

    /// The other end has said where it stands: the link goes on there.
    fn adopt(&mut self, outbox: &mut Outbox, greeting: &Greeting, phase: Phase) -> Result<(), Error> {
        let (received, end, kept) = (greeting.received, self.outgoing.end(), self.outgoing.queue.start());
        // A peer that has said once that it wants nothing more does not want it in a later incarnation. If it does, it gets an error ([`Connection::expect_link`]).
        let wants_it = greeting.stable != NO_MORE && self.outgoing.stable != NO_MORE;
        if received < kept && wants_it {
            return Err(Error::Lost { connection: self.id, wanted: received, kept });
        }
        if received > end && phase == Phase::Live {
            return Err(Error::Orphan { connection: self.id, received, sent: end });
        }
        if greeting.incarnation > self.peer_incarnation {
            self.incoming.handle_lives_over();
        }
        greeting.finish.map_or(Ok(()), |offset| self.handle_finish(offset))?;
        // A protector may hold more than its process wants again only by a mistake, which must not cost bytes.
        let stable = if greeting.stable == NO_MORE { NO_MORE } else { greeting.stable.min(received) };
        self.handle_stable(outbox, stable);
        self.outgoing.sent = received.max(self.outgoing.queue.start());
        self.incoming.gone = greeting.kept;
        (self.outgoing.peer_has, self.outgoing.peer_settled) = (received, greeting.settled);
        self.dropped = false;
        self.peer_incarnation = greeting.incarnation;
        self.link = Link::Up;
        Ok(())
    }

    /// The peer's protector holds units up to `offset`, or the peer will never want them.
    pub(crate) fn handle_stable(&mut self, outbox: &mut Outbox, offset: u64) {
        self.outgoing.stable = self.outgoing.stable.max(offset);
        outbox.trim(&mut self.outgoing.queue, offset);
        self.outgoing.handle_trimmed();
    }
}

/// What to do with a socket on which a greeting came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Welcome {
    /// The socket is this connection's link now. Close the one before, and write this answer first if there is one.
    Link(Slot, Option<Greeting>),
    /// The greeting is older than the link of now, or from a dead incarnation: close the socket.
    Refuse,
    /// Both ends had closed the connection and this one has forgotten it; the image of its opener is older than the word that it may do so, too. Close the
    /// socket, and say that word again ([`Forgettable`]).
    Forgotten,
}

/// A word to a peer: its end of a connection may be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgettable {
    /// The connection.
    pub connection: ConnectionId,
    /// The process to tell.
    pub peer: ProcessId,
    /// False: a committed image covers that it was closed here. True: no image of this process has it any more, so it will never dial again.
    pub for_good: bool,
}

/// A connection that was opened here and is forgotten. If this process is restarted from an image that has it still, it asks for it again: therefore its peer
/// remembers the identifier until a committed image is without it.
#[derive(Debug, Clone, Copy)]
struct Gone {
    id: ConnectionId,
    peer: ProcessId,
    /// The first image without it.
    absent_from: Option<u64>,
}

/// The process that numbers connections is trusted (its greeting carried a MAC), so no random keys are needed, and none are asked of
/// the system inside the user's program.
type Index = HashMap<(ConnectionId, bool), u32, BuildHasherDefault<DefaultHasher>>;

const NO_SLOT: u32 = u32::MAX;

/// All connections of a process.
#[derive(Debug, Clone)]
pub struct Table {
    slots: Vec<Option<Connection>>,
    free: Vec<u32>,
    by_fd: Box<[u32]>,
    by_id: Index,
    /// Processes that were restarted, and as what; as few as there were deaths.
    restarted: HashMap<ProcessId, Incarnation, BuildHasherDefault<DefaultHasher>>,
    /// This process's job and its epoch. A process of an older epoch may not be dead everywhere yet, and knows connections by the same identifiers.
    job: Option<(JobId, Epoch)>,
    /// Number of the next connection that this process opens.
    next_number: u64,
    /// Connections that wait to be accepted, in the order in which they came.
    offered: VecDeque<u32>,
    /// Connections that the peer is to be told that it may forget.
    to_tell: Vec<u32>,
    /// Opened here and forgotten, in this order; images may have them. At most as many as connections.
    gone: VecDeque<Gone>,
    /// Accepted here and forgotten; images of their openers may have them. At most as many as connections.
    forgotten: HashSet<ConnectionId, BuildHasherDefault<DefaultHasher>>,
    /// The last ones of them that were forgotten for good, on both sides; at most as many as connections.
    buried: VecDeque<ConnectionId>,
    /// Connections of which neither side will ask anything any more, and the node does not know that yet; at most as many as connections.
    over: VecDeque<ConnectionId>,
    /// The newest image that was committed.
    committed: Option<u64>,
}

impl Table {
    /// A table for `connections` at once, on descriptors below `descriptors`.
    pub fn new(connections: usize, descriptors: usize) -> Self {
        assert!(connections < NO_SLOT as usize, "{connections} connections");
        Table {
            slots: (0..connections).map(|_| None).collect(),
            free: (0..connections as u32).rev().collect(),
            by_fd: vec![NO_SLOT; descriptors].into_boxed_slice(),
            // Twice the room: hashbrown then cleans up in place instead of growing.
            by_id: Index::with_capacity_and_hasher(connections * 2, Default::default()),
            restarted: HashMap::default(),
            job: None,
            next_number: 0,
            offered: VecDeque::with_capacity(connections),
            to_tell: Vec::with_capacity(connections),
            gone: VecDeque::new(),
            forgotten: HashSet::default(),
            buried: VecDeque::new(),
            over: VecDeque::new(),
            committed: None,
        }
    }

    /// The connection on this descriptor.
    pub fn slot_of(&self, fd: u32) -> Result<Slot, Error> {
        let slot = self.by_fd.get(fd as usize).copied().unwrap_or(NO_SLOT);
        if slot == NO_SLOT { Err(Error::Descriptor(fd)) } else { Ok(slot as usize) }
    }

    /// The connection with this identifier.
    pub fn find(&self, id: ConnectionId) -> Option<Slot> {
        self.find_end(id, true).or_else(|| self.find_end(id, false))
    }

    /// The end of it that this process opened, or the one that it accepted: it may have connected to itself.
    pub fn find_end(&self, id: ConnectionId, opened_here: bool) -> Option<Slot> {
        self.by_id.get(&(id, opened_here)).map(|slot| *slot as usize)
    }

    /// How many more connections there is room for, and for how many there was. Closed ones take theirs until images of both ends cover that.
    pub fn room(&self) -> (usize, usize) {
        (self.free.len(), self.slots.len())
    }

    /// The connection at this place.
    pub fn get(&self, slot: Slot) -> Option<&Connection> {
        self.slots.get(slot)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut Connection> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// The connection on this descriptor, to be changed.
    pub(crate) fn on(&mut self, fd: u32) -> Result<&mut Connection, Error> {
        let slot = self.slot_of(fd)?;
        self.get_mut(slot).ok_or(Error::Descriptor(fd))
    }

    /// The first connection at this place or after it.
    pub(crate) fn first_from(&self, slot: Slot) -> Option<(Slot, &Connection)> {
        let slots = self.slots.get(slot..)?;
        slots.iter().zip(slot..).find_map(|(connection, slot)| Some((slot, connection.as_ref()?)))
    }

    /// Every connection.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &Connection)> {
        self.slots.iter().enumerate().filter_map(|(slot, connection)| Some((slot, connection.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.slots.iter_mut().flatten()
    }

    fn insert(&mut self, connection: Connection) -> Result<Slot, Error> {
        let slot = self.free.pop().ok_or(Error::Full("table of connections"))?;
        self.by_id.insert((connection.id, connection.opened_here), slot);
        self.slots[slot as usize] = Some(connection);
        Ok(slot as usize)
    }

    fn bind(&mut self, slot: Slot, fd: u32) -> Result<(), Error> {
        let place = self.by_fd.get_mut(fd as usize).ok_or(Error::Full("table of descriptors"))?;
        if *place != NO_SLOT {
            return Err(Error::DescriptorTaken(fd));
        }
        *place = slot as u32;
        if let Some(connection) = self.get_mut(slot) {
            connection.fd = Some(fd);
        }
        Ok(())
    }

    /// The program knows the connection on `from` by `to` from now on.
    pub(crate) fn rebind(&mut self, from: u32, to: u32) -> Result<(), Error> {
        let slot = self.slot_of(from)?;
        self.bind(slot, to)?;
        self.by_fd[from as usize] = NO_SLOT;
        Ok(())
    }

    /// What the next connection that `me` opens will be.
    pub fn next_connection(&self, me: ProcessId) -> ConnectionId {
        ConnectionId { opener: me, number: self.next_number }
    }

    /// The program connects `fd` to `peer`. The number of the connection is the same when this is re-executed.
    pub fn open(&mut self, me: ProcessId, fd: u32, peer: ProcessId) -> Result<Slot, Error> {
        if self.slot_of(fd).is_ok() {
            return Err(Error::DescriptorTaken(fd));
        }
        let id = self.next_connection(me);
        let slot = self.insert(Connection::new(id, peer, true))?;
        self.next_number += 1;
        self.bind(slot, fd)?;
        Ok(slot)
    }

    /// The program was given connection `id` on `fd` by `accept`; in replay it may not have been offered again yet.
    pub(crate) fn accept(&mut self, id: ConnectionId, fd: u32) -> Result<Slot, Error> {
        let slot = match self.find_end(id, false) {
            Some(slot) => slot,
            None => self.insert(Connection::new(id, id.opener, false))?,
        };
        let connection = self.get_mut(slot).ok_or(Error::Descriptor(fd))?;
        if connection.fd.is_some() || connection.closed {
            return Err(Error::Peer { connection: id, what: "it was accepted before" });
        }
        if std::mem::replace(&mut connection.offered, false) {
            self.offered.retain(|offered| *offered != slot as u32);
        }
        self.bind(slot, fd)?;
        Ok(slot)
    }

    /// A connection that waits to be accepted.
    pub fn poll_offer(&self) -> Option<ConnectionId> {
        let slot = *self.offered.front()?;
        self.get(slot as usize).map(|connection| connection.id)
    }

    /// The program has closed the descriptor. The connection stays until its peer needs it no more.
    pub(crate) fn close(&mut self, fd: u32, outbox: &mut Outbox) -> Result<(), Error> {
        let slot = self.slot_of(fd)?;
        self.by_fd[fd as usize] = NO_SLOT;
        let connection = self.get_mut(slot).ok_or(Error::Descriptor(fd))?;
        (connection.fd, connection.closed) = (None, true);
        let end = connection.outgoing.queue.end();
        connection.outgoing.finish.get_or_insert(end);
        self.forget_if_done(slot, outbox);
        Ok(())
    }

    fn forget_if_done(&mut self, slot: Slot, outbox: &mut Outbox) {
        let has_room = self.gone.len().max(self.forgotten.len()) < self.slots.len();
        let Some(connection) = self.get_mut(slot) else { return };
        // A peer that was told too little while this process was replaying is told again, on a new link, before the connection is forgotten.
        let to_renew = connection.unsettled || connection.dropped;
        if connection.forgettable != (true, true) || connection.to_tell || to_renew || !has_room {
            return;
        }
        let (id, peer, opened_here, gone_there) = (connection.id, connection.peer, connection.opened_here, connection.gone_there);
        outbox.trim(&mut connection.outgoing.queue, u64::MAX);
        self.slots[slot] = None;
        self.by_id.remove(&(id, opened_here));
        self.free.push(slot as u32);
        match (opened_here, gone_there) {
            // Of a connection of the process with itself both ends are in the same images.
            (true, _) if peer == id.opener => self.end(id),
            (true, _) => self.gone.push_back(Gone { id, peer, absent_from: None }),
            (false, true) => self.bury(id),
            (false, false) => _ = self.forgotten.insert(id),
        }
    }

    /// Its opener never asks for this connection again. But it may have done so just before, on a socket that this process has not looked at yet.
    fn bury(&mut self, id: ConnectionId) {
        push_newest(&mut self.buried, self.slots.len(), id);
        self.end(id);
    }

    /// Committed images of both processes cover that they have closed this connection, and its opener does not dial it any more.
    fn end(&mut self, id: ConnectionId) {
        push_newest(&mut self.over, self.slots.len(), id);
    }

    /// A connection of which the node need know nothing any more.
    pub(crate) fn poll_over(&mut self) -> Option<ConnectionId> {
        self.over.pop_front()
    }

    /// An image begins: what it covers as closed, and what it is without.
    pub(crate) fn handle_checkpoint(&mut self, image: u64) {
        for connection in self.iter_mut().filter(|connection| connection.closed) {
            connection.covered_by.get_or_insert(image);
        }
        for gone in &mut self.gone {
            gone.absent_from.get_or_insert(image);
        }
    }

    /// An image was committed: what it covers as closed is closed for ever, here.
    pub(crate) fn handle_committed(&mut self, image: u64, outbox: &mut Outbox) {
        self.committed = Some(image);
        for slot in 0..self.slots.len() {
            let Some(connection) = self.get_mut(slot) else { continue };
            if connection.covered_by.is_some_and(|covering| covering <= image) && !connection.forgettable.0 {
                connection.forgettable.0 = true;
                connection.to_tell = true;
                self.to_tell.push(slot as u32);
            }
            // There may be room now.
            self.forget_if_done(slot, outbox);
        }
    }

    /// What a peer is to be told.
    pub(crate) fn poll_forget(&mut self, outbox: &mut Outbox) -> Option<Forgettable> {
        while let Some(slot) = self.to_tell.pop() {
            let slot = slot as usize;
            let connection = self.get_mut(slot)?;
            connection.to_tell = false;
            let (id, peer, opened_here) = (connection.id, connection.peer, connection.opened_here);
            let other = self.find_end(id, !opened_here);
            self.forget_if_done(slot, outbox);
            match other {
                // A connection of the process with itself: its other end is told here.
                Some(other) => self.forget_end(other, true, outbox),
                None => return Some(Forgettable { connection: id, peer, for_good: false }),
            }
        }
        let is_in_no_image =
            |gone: &Gone| gone.absent_from.is_some_and(|image| self.committed.is_some_and(|newest| image <= newest));
        let gone = *self.gone.front().filter(|gone| is_in_no_image(gone))?;
        self.gone.pop_front();
        self.end(gone.id);
        Some(Forgettable { connection: gone.id, peer: gone.peer, for_good: true })
    }

    /// The acceptor of a connection says that its link is broken: if this process has opened and forgotten it, what the peer is to be told once more.
    pub(crate) fn forgotten(&self, id: ConnectionId, peer: ProcessId, phase: Phase) -> Option<Forgettable> {
        let is_forgotten = phase == Phase::Live && id.number < self.next_number && self.find_end(id, true).is_none();
        let for_good = !self.gone.iter().any(|gone| gone.id == id);
        is_forgotten.then_some(Forgettable { connection: id, peer, for_good })
    }

    /// The peer will never need this connection again; if it is for good, it will not even ask for it.
    pub(crate) fn handle_forget(&mut self, id: ConnectionId, for_good: bool, outbox: &mut Outbox) {
        if for_good && self.forgotten.remove(&id) {
            self.bury(id);
        }
        if let Some(slot) = self.find(id) {
            self.forget_end(slot, for_good, outbox);
        }
    }

    /// The peer has ended, after it had received so much.
    pub(crate) fn handle_left(&mut self, id: ConnectionId, received: u64, outbox: &mut Outbox) {
        if let Some(connection) = self.find(id).and_then(|slot| self.get_mut(slot)) {
            connection.outgoing.peer_has = connection.outgoing.peer_has.max(received);
        }
        self.handle_forget(id, true, outbox);
    }

    fn forget_end(&mut self, slot: Slot, for_good: bool, outbox: &mut Outbox) {
        if let Some(connection) = self.get_mut(slot) {
            connection.gone_there |= for_good;
            connection.forgettable.1 = true;
            connection.handle_stable(outbox, NO_MORE);
        }
        self.forget_if_done(slot, outbox);
    }

    /// The next greeting for a new socket to the peer of `slot`. The first of all goes without an answer, as the peer's backlog
    /// answers for a program that does not run; every other waits for one.
    pub fn dial(&mut self, slot: Slot, me: Me, phase: Phase, payload: &PayloadLog) -> Option<Greeting> {
        let connection = self.get_mut(slot)?;
        if !connection.opened_here {
            return None;
        }
        let first = connection.attempt.is_none() && phase == Phase::Live;
        let attempt = match connection.attempt {
            Some((of, attempt)) if of == me.1 => attempt.saturating_add(1),
            _ => u32::from(!first),
        };
        connection.attempt = Some((me.1, attempt));
        connection.dropped = false;
        connection.link = if first { Link::Up } else { Link::Dialing };
        // The peer of a new connection has received nothing that would have to be sent again.
        connection.outgoing.peer_settled |= first;
        Some(connection.greeting(me, attempt, phase != Phase::Replaying, payload))
    }

    /// A greeting came on a socket that was dialed to `me`. If the connection is not known it is offered to the program, perhaps
    /// again: `held` is what the protector had of it when this incarnation began, units and where it ends.
    pub fn handle_greeting(
        &mut self,
        (outbox, payload): (&mut Outbox, &PayloadLog),
        me: Me,
        greeting: &Greeting,
        phase: Phase,
        held: impl FnOnce(StreamId) -> (u64, Option<u64>),
    ) -> Result<Welcome, Error> {
        let id = greeting.connection;
        if greeting.process != id.opener {
            return Err(Error::Peer { connection: id, what: "only its opener dials" });
        }
        let oldest = self.incarnation_of(greeting.process);
        if greeting.incarnation < oldest {
            return Ok(Welcome::Refuse);
        }
        let slot = match self.find_end(id, false) {
            Some(slot) => slot,
            None if self.forgotten.contains(&id) => return Ok(Welcome::Forgotten),
            // The greeting was sent before its connection was over, and is read after that. To offer it would give the program a connection that it never had.
            None if self.buried.contains(&id) => return Ok(Welcome::Refuse),
            None if greeting.received > 0 && phase == Phase::Live => {
                return Err(Error::Orphan { connection: id, received: greeting.received, sent: 0 });
            }
            None => {
                let mut connection = Connection { offered: true, ..Connection::new(id, id.opener, false) };
                (connection.incoming.held, connection.incoming.finish) = held(connection.stream_in());
                let slot = self.insert(connection)?;
                self.offered.push_back(slot as u32);
                slot
            }
        };
        let Some(connection) = self.get_mut(slot) else { return Ok(Welcome::Refuse) };
        let attempt = (greeting.incarnation, greeting.attempt);
        if connection.opened_here || connection.attempt.is_some_and(|newest| attempt <= newest) {
            return Ok(Welcome::Refuse);
        }
        connection.adopt(outbox, greeting, phase)?;
        connection.attempt = Some(attempt);
        let answer =
            (greeting.attempt > 0).then(|| connection.greeting(me, greeting.attempt, phase != Phase::Replaying, payload));
        Ok(Welcome::Link(slot, answer))
    }

    /// The answer came on a socket that this process has dialed. False: it belongs to an older attempt; close that socket.
    pub fn handle_answer(&mut self, outbox: &mut Outbox, slot: Slot, answer: &Greeting, phase: Phase) -> Result<bool, Error> {
        let oldest = self.incarnation_of(answer.process);
        let Some(connection) = self.get_mut(slot) else { return Ok(false) };
        if answer.process != connection.peer || answer.connection != connection.id {
            return Err(connection.peer_error("another process or connection answers"));
        }
        let attempt = connection.attempt.map(|(_, attempt)| attempt);
        if connection.link != Link::Dialing
            || attempt != Some(answer.attempt)
            || answer.incarnation < oldest.max(connection.peer_incarnation)
        {
            return Ok(false);
        }
        connection.adopt(outbox, answer, phase)?;
        Ok(true)
    }

    /// The link of `slot` broke, or could not be made.
    pub fn handle_broken(&mut self, slot: Slot) {
        if let Some(connection) = self.get_mut(slot) {
            (connection.link, connection.dropped) = (Link::Down, false);
        }
    }

    /// Where the end of a stream is that comes in, as its sender says (a socket that ends may mean that its process died).
    pub fn handle_finish(&mut self, slot: Slot, offset: u64) -> Result<(), Error> {
        let Some(connection) = self.get_mut(slot) else { return Ok(()) };
        connection.handle_finish(offset)
    }

    /// Gate B: whether every connection has been reached and was sent again at least what its peer has.
    pub fn all_sent_again(&self) -> bool {
        let sent_again = |o: &Outgoing| o.peer_settled && o.end() >= o.peer_has;
        // A peer that has forgotten the connection, or has left, says nothing. It forgets only a connection that was closed here in an image, after the last byte.
        // What a peer that has left had received is sent again all the same: other processes may have heard from it what it did with that.
        let is_forgotten =
            |c: &Connection| c.forgettable.1 && (c.forgettable.0 || c.gone_there && c.outgoing.end() >= c.outgoing.peer_has);
        self.iter().all(|(_, c)| c.offered || is_forgotten(c) || c.link == Link::Up && sent_again(&c.outgoing))
    }

    /// The log is over: peers that were told too little before are told again, on new links.
    pub(crate) fn handle_settled(&mut self) {
        for connection in self.iter_mut().filter(|connection| connection.unsettled) {
            connection.unsettled = false;
            connection.dropped = connection.link != Link::Down;
            connection.link = Link::Down;
        }
    }

    /// A link that was given up here: its socket is to be closed.
    pub fn poll_dropped(&mut self) -> Option<Slot> {
        let slot = self.iter().find(|(_, connection)| connection.dropped)?.0;
        self.get_mut(slot)?.dropped = false;
        Some(slot)
    }

    /// No process of this job speaks in an epoch before this one.
    pub(crate) fn begin(&mut self, job: JobId, epoch: Epoch) {
        self.job = Some((job, epoch));
    }

    fn incarnation_of(&self, process: ProcessId) -> Incarnation {
        let least = self.job.filter(|(job, _)| *job == process.job).map(|(_, epoch)| Incarnation::launched_in(epoch));
        self.restarted.get(&process).copied().max(least).unwrap_or_default()
    }

    /// `process` speaks as `incarnation` now: older ones are not listened to, and links to them are given up.
    pub(crate) fn handle_restarted(&mut self, process: ProcessId, incarnation: Incarnation) {
        if incarnation <= self.incarnation_of(process) {
            return;
        }
        self.restarted.insert(process, incarnation);
        for connection in self.iter_mut().filter(|c| c.peer == process && c.peer_incarnation < incarnation) {
            connection.incoming.handle_lives_over();
            connection.dropped = connection.link != Link::Down;
            connection.link = Link::Down;
        }
    }

    /// A restarted process has none of the sockets of its image, and the peers that dialed it then will dial again.
    pub(crate) fn handle_restart(&mut self, mut held: impl FnMut(StreamId) -> (u64, Option<u64>)) {
        for connection in self.slots.iter_mut().flatten() {
            connection.link = Link::Down;
            let (held, finish) = held(connection.stream_in());
            let incoming = &mut connection.incoming;
            incoming.handle_lives_over();
            incoming.held = incoming.held.max(held);
            incoming.finish = incoming.finish.or(finish);
        }
    }
}
/// Keeps the newest `most`.
fn push_newest(ids: &mut VecDeque<ConnectionId>, most: usize, id: ConnectionId) {
    if ids.len() >= most {
        ids.pop_front();
    }
    ids.push_back(id);
}
