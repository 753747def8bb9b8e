//! The table of a process's connections, by descriptor and by identifier.

use std::collections::{HashMap, HashSet, VecDeque};

use foldhash::fast::FixedState;
use radic_wire::determinant::ConnectionId;
use radic_wire::ids::{Epoch, Incarnation, JobId, ProcessId};

use super::{Connection, Hold, Slot};
use crate::error::Error;

/// A connection that was opened here and is forgotten. If this process is restarted from an image that has it still, it asks for it again: therefore its peer
/// remembers the identifier until a committed image is without it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gone {
    pub(super) id: ConnectionId,
    pub(super) peer: ProcessId,
    /// The first image without it.
    pub(super) absent_from: Option<u64>,
}

/// The process that numbers connections is trusted (its greeting carried a MAC), so no random keys are needed, and none are asked of
/// the system inside the user's program.
type Index = HashMap<(ConnectionId, bool), u32, FixedState>;

pub(super) const NO_SLOT: u32 = u32::MAX;

/// All connections of a process.
#[derive(Debug, Clone)]
pub struct Table {
    /// As many as there were at once, at most [`Table::most`]: what looks at all of them does not look at memory that was never used.
    pub(super) slots: Vec<Option<Connection>>,
    pub(super) free: Vec<u32>,
    /// Connections that there may be at once.
    pub(super) most: usize,
    pub(super) by_fd: Box<[u32]>,
    pub(super) by_id: Index,
    /// Processes that were restarted, and as what; as few as there were deaths.
    pub(super) restarted: HashMap<ProcessId, Incarnation, FixedState>,
    /// This process's job and its epoch. A process of an older epoch may not be dead everywhere yet, and knows connections by the same identifiers.
    pub(super) job: Option<(JobId, Epoch)>,
    /// Number of the next connection that this process opens.
    pub(super) next_number: u64,
    /// Connections that wait to be accepted, in the order in which they came.
    pub(super) offered: VecDeque<u32>,
    /// Connections that were refused, and whose peer is still to be told that they have ended.
    pub(super) refused: Vec<u32>,
    /// Connections that the peer is to be told that it may forget.
    pub(super) to_tell: Vec<u32>,
    /// Opened here and forgotten, in this order; images may have them. At most as many as connections.
    pub(super) gone: VecDeque<Gone>,
    /// Accepted here and forgotten; images of their openers may have them. At most as many as connections.
    pub(super) forgotten: HashSet<ConnectionId, FixedState>,
    /// The last ones of them that were forgotten for good, on both sides; at most as many as connections.
    pub(super) buried: VecDeque<ConnectionId>,
    /// Connections of which neither side will ask anything any more, and the node does not know that yet; at most as many as connections.
    pub(super) over: VecDeque<ConnectionId>,
    /// The newest image that was committed.
    pub(super) committed: Option<u64>,
}

impl Table {
    /// A table for `connections` at once, on descriptors below `descriptors`.
    pub fn new(connections: usize, descriptors: usize) -> Self {
        assert!(connections < NO_SLOT as usize, "{connections} connections");
        Table {
            slots: Vec::with_capacity(connections),
            free: Vec::with_capacity(connections),
            most: connections,
            by_fd: vec![NO_SLOT; descriptors].into_boxed_slice(),
            // Twice the room: hashbrown then cleans up in place instead of growing.
            by_id: Index::with_capacity_and_hasher(connections * 2, Default::default()),
            restarted: HashMap::default(),
            job: None,
            next_number: 0,
            offered: VecDeque::with_capacity(connections),
            refused: Vec::with_capacity(connections),
            to_tell: Vec::with_capacity(connections),
            gone: VecDeque::new(),
            forgotten: HashSet::default(),
            buried: VecDeque::new(),
            over: VecDeque::new(),
            committed: None,
        }
    }

    /// The connection on this descriptor.
    #[inline]
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
        (self.free.len() + self.most - self.slots.len(), self.most)
    }

    /// The connection at this place.
    #[inline]
    pub fn get(&self, slot: Slot) -> Option<&Connection> {
        self.slots.get(slot)?.as_ref()
    }

    #[inline]
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

    pub(super) fn insert(&mut self, connection: Connection) -> Result<Slot, Error> {
        let slot = match self.free.pop() {
            Some(slot) => slot as usize,
            None if self.slots.len() < self.most => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            None => return Err(Error::Full("table of connections")),
        };
        self.by_id.insert((connection.id, connection.opened_here), slot as u32);
        self.slots[slot] = Some(connection);
        Ok(slot)
    }

    fn bind(&mut self, slot: Slot, fd: u32) -> Result<(), Error> {
        let place = self.by_fd.get_mut(fd as usize).ok_or(Error::Full("table of descriptors"))?;
        if *place != NO_SLOT {
            return Err(Error::DescriptorTaken(fd));
        }
        *place = slot as u32;
        if let Some(connection) = self.get_mut(slot) {
            connection.hold = Hold::Descriptor(fd);
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
        let slot = self.take_offer(id)?;
        self.bind(slot, fd)?;
        Ok(slot)
    }

    /// The connection waits for no `accept` any more; in replay it may not have been offered again yet.
    fn take_offer(&mut self, id: ConnectionId) -> Result<Slot, Error> {
        let slot = match self.find_end(id, false) {
            Some(slot) => slot,
            None => self.insert(Connection::new(id, id.opener, false))?,
        };
        match self.get(slot).map(|connection| connection.hold) {
            Some(Hold::Descriptor(_) | Hold::Closed) => Err(Error::Peer { connection: id, what: "it was accepted before" }),
            _ => {
                self.offered.retain(|offered| *offered != slot as u32);
                Ok(slot)
            }
        }
    }

    /// The connection is closed without having been accepted. Its end is still to be said: [`Table::poll_refused`].
    pub(crate) fn refuse(&mut self, id: ConnectionId) -> Result<Slot, Error> {
        let slot = self.take_offer(id)?;
        if let Some(connection) = self.get_mut(slot) {
            connection.hold = Hold::Closed;
            self.refused.push(slot as u32);
        }
        Ok(slot)
    }

    /// Whether a connection was refused, and its peer is still to be told.
    pub fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// The first connection that waits to be accepted and has called there.
    pub fn poll_offer(&self, has_called: impl Fn(ConnectionId) -> bool) -> Option<ConnectionId> {
        let all = self.offered.iter().filter_map(|slot| self.get(*slot as usize));
        all.map(|connection| connection.id).find(|connection| has_called(*connection))
    }
}
