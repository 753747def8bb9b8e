//! How room is made in the outbox, where received bytes stay with their senders: an image of their receiver covers them, and so
//! does its image of a recovery line.
//!
//! An image by itself is cheaper than a line, which is an image of each rank: the sender's own memory need not be saved because
//! it has sent much. But it has all that its process keeps for others. So it is made where one receiver has most of a full
//! outbox, and keeps little itself. Where all keep much, as in an exchange, a line leaves out of each image what the others
//! cover.

use radic_wire::determinant::ConnectionId;
use radic_wire::process::Room;

use super::Observer;
use crate::connection::{Connection, Slot};
use crate::pressure::Level;

/// The part of the outbox that an image must make room for, at least.
const ENOUGH: usize = 64;
/// The part of its own outbox that a process may use whose image by itself is made for another one.
const LITTLE: usize = 16;

/// What makes room in the outbox of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoomBy {
    /// An image of this process by itself.
    Image,
    /// A recovery line.
    Line,
    /// An image is committed that the peer has not heard of.
    Committed,
}

impl Observer {
    /// Where received bytes stay with their senders: how full the outbox is, for the stream of `slot`.
    pub fn level_for(&self, slot: Slot) -> Option<Level> {
        self.payload.line()?;
        let (queue, outbox) = (&self.table.get(slot)?.outgoing.queue, &self.outbox);
        Some(Level { used: outbox.used(), left: outbox.left(queue), capacity: outbox.capacity() })
    }

    /// Whether the outbox takes nothing more of the stream of `slot`.
    pub fn is_full(&self, slot: Slot) -> bool {
        self.table.get(slot).is_some_and(|connection| self.outbox.room(&connection.outgoing.queue) == 0)
    }

    /// Whose image makes room in the outbox: the receiver of at least half of what is kept. None: there is none such.
    pub fn most_kept(&self) -> Option<Room> {
        let of_job = self.table.iter().map(|(_, connection)| connection).filter(|connection| connection.is_within(self.me.job));
        let most = of_job.max_by_key(|connection| connection.outgoing.kept())?;
        let is_most = most.outgoing.kept() >= self.outbox.used() as u64 / 2;
        is_most.then(|| Room { receiver: most.peer, connection: most.id, from: most.outgoing.start() })
    }

    /// What makes room for the peer on this connection, whose outbox has what this process has received from unit `from` on.
    pub fn room_for(&self, connection: ConnectionId, from: u64) -> RoomBy {
        let slot = self.table.find(connection);
        let Some(Connection { incoming, .. }) = slot.and_then(|slot| self.table.get(slot)) else { return RoomBy::Line };
        if incoming.cuts.covered() > from {
            return RoomBy::Committed;
        }
        let (used, capacity) = (self.outbox.used(), self.outbox.capacity());
        let received = incoming.consumed.saturating_sub(from);
        let is_enough = received > 0 && received >= (capacity / ENOUGH) as u64;
        if is_enough && used <= capacity / LITTLE { RoomBy::Image } else { RoomBy::Line }
    }
}
