//! Where the streams of ended ranks end, as the home of their job keeps it. The nodes and protectors of those ranks may be lost
//! when a process that goes back asks.

use std::collections::BTreeMap;

use radic_wire::determinant::StreamId;
use radic_wire::ids::Rank;
use radic_wire::limits;
use radic_wire::process::StreamEnd;

/// The ends of streams by rank, at most [`limits::FINALS`]. For a rank that ends when there is no room nothing is known, and Gate
/// B opens where the log ends.
#[derive(Debug, Default)]
pub struct Finals {
    by_rank: BTreeMap<Rank, Vec<(StreamId, StreamEnd)>>,
    count: usize,
}

impl Finals {
    /// A rank has ended, and these are its streams' ends. They replace what was known of it before.
    pub fn keep(&mut self, rank: Rank, finals: Vec<(StreamId, StreamEnd)>) {
        let before = self.by_rank.get(&rank).map_or(0, Vec::len);
        let count = self.count - before + finals.len();
        if count <= limits::FINALS {
            self.count = count;
            self.by_rank.insert(rank, finals);
        }
    }

    /// Where `sender` has ended `stream`.
    pub fn get(&self, stream: StreamId, sender: Rank) -> Option<StreamEnd> {
        end_of(self.by_rank.get(&sender)?, stream)
    }
}

/// Where a process that has ended with these `finals` has ended `stream`. It reads nothing more.
pub fn end_of(finals: &[(StreamId, StreamEnd)], stream: StreamId) -> Option<StreamEnd> {
    finals.iter().find(|(s, _)| *s == stream).map(|(_, end)| StreamEnd { closed: true, ..*end })
}

#[cfg(test)]
mod tests {
    use radic_wire::determinant::ConnectionId;
    use radic_wire::ids::{JobId, ProcessId};

    use super::*;

    fn stream(number: u64) -> StreamId {
        let opener = ProcessId { job: JobId::from_bits(1), rank: Rank(0) };
        StreamId { connection: ConnectionId { opener, number }, from_opener: true }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let end = StreamEnd { offset: 1, closed: false, received: 2 };
        let many = |count: usize| vec![(stream(1), end); count];
        let mut finals = Finals::default();
        finals.keep(Rank(0), many(limits::FINALS));
        finals.keep(Rank(1), many(1));
        assert_eq!(finals.get(stream(1), Rank(1)), None, "there is no room");
        finals.keep(Rank(0), many(limits::FINALS - 1));
        finals.keep(Rank(1), many(1));
        assert_eq!(finals.get(stream(1), Rank(1)), Some(StreamEnd { closed: true, ..end }));
        assert_eq!((finals.get(stream(2), Rank(1)), finals.get(stream(1), Rank(2))), (None, None));
    }
}
