//! What an image has of the outbox: the outbox lies in memory that no image has, because it is large, and most of it no restart needs.

use crate::connection::{Slot, Table};
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
        let mut packed = Packed::default();
        for (slot, connection) in table.iter() {
            let (queue, from) = (connection.outgoing().queue(), connection.kept_from(line));
            packed.streams.push((slot, from, queue.end()));
            outbox.pieces(queue, from).for_each(|piece| packed.bytes.extend_from_slice(piece));
        }
        packed
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
