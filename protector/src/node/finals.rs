//! Where the streams of ranks that have ended do, as their job's home keeps it: their nodes and protectors may be lost when somebody who goes back asks.

use std::collections::BTreeMap;

use radic_wire::determinant::StreamId;
use radic_wire::ids::Rank;
use radic_wire::limits;
use radic_wire::process::StreamEnd;

/// The ends, by rank: at most [`limits::FINALS`]. Of who ends when there is no room nothing is known then, and Gate B opens where the log ends.
#[derive(Debug, Default)]
pub struct Finals {
    by_rank: BTreeMap<Rank, Vec<(StreamId, StreamEnd)>>,
    count: usize,
}

impl Finals {
    /// A rank has ended, and these streams there; what was known of it before is not so any more.
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

/// Where whoever has ended with these `finals` has ended `stream`: it reads nothing more.
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
