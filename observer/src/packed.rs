//! What an image has of the outbox: the outbox lies in memory that no image has, because it is large, and most of it no restart needs.

use crate::connection::{Connection, Slot, Table};
use crate::outbox::Outbox;

/// Bytes of streams that go out, one stream after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Packed {
    bytes: Vec<u8>,
    /// Of which connection, and from which offset to which.
    streams: Vec<(Slot, u64, u64)>,
}

impl Packed {
    /// What is kept for the peers; with `line` what a peer may want that comes back by its own image of that recovery line.
    pub(crate) fn new(outbox: &Outbox, table: &Table, line: Option<u64>) -> Packed {
        let range =
            |(slot, connection): (Slot, &Connection)| (slot, connection.kept_from(line), connection.outgoing().queue().end());
        let streams: Vec<_> = table.iter().map(range).collect();
        // All at once: a vector that grows is copied each time, and this may be hundreds of MiB, while the program stands still.
        let mut bytes = Vec::with_capacity(streams.iter().map(|(_, from, to)| (to - from) as usize).sum());
        for ((_, connection), (_, from, _)) in table.iter().zip(&streams) {
            outbox.pieces(connection.outgoing().queue(), *from).for_each(|piece| bytes.extend_from_slice(piece));
        }
        Packed { bytes, streams }
    }

    /// Makes the outbox that.
    ///
    /// # Panics
    /// If it does not fit: the same connections are there, and the outbox is as large, as when it was packed.
    pub(crate) fn unpack(self, outbox: &mut Outbox, table: &mut Table) {
        outbox.clear();
        let mut rest = &self.bytes[..];
        for (slot, from, to) in self.streams {
            let (bytes, more) = rest.split_at((to - from) as usize);
            let outgoing = table.get_mut(slot).expect("it was there when the outbox was packed").outgoing_mut();
            outbox.refill(outgoing.queue_mut(), from, bytes);
            outgoing.handle_trimmed();
            rest = more;
        }
    }
}
