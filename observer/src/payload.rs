//! The payload log on its way to the protector: received bytes, in the order of their reception, until the protector holds them.
//!
//! Nothing waits for it but its own bound: until the payload is stable the sender's outbox holds it (G2). So it is shipped in
//! bulk, when the process idles or when [`PayloadLog::is_due`] says so. Its positions count the units received by one
//! incarnation; the end of a stream is one unit, kept as one byte.

use std::collections::VecDeque;

use radic_wire::determinant::StreamId;
use radic_wire::limits;
use radic_wire::span::Span;

use crate::error::Error;
use crate::ring::Ring;

#[derive(Debug, Clone, Copy)]
struct Segment {
    position: u64,
    stream: StreamId,
    offset: u64,
    length: u64,
    is_end: bool,
}

/// Units of one stream to be shipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Position in the payload log.
    pub position: u64,
    /// The stream.
    pub stream: StreamId,
    /// Offset of the first unit.
    pub offset: u64,
    /// Whether this is the end of the stream, one unit, instead of bytes.
    pub is_end: bool,
    /// The bytes; one without meaning for an end.
    pub head: &'a [u8],
    /// And these after them.
    pub tail: &'a [u8],
}

/// Received units that the protector does not hold yet.
#[derive(Debug, Clone)]
pub struct PayloadLog {
    ring: Ring,
    segments: VecDeque<Segment>,
    most_segments: usize,
    shipped: u64,
    /// Where the bytes depend on causes: what may be shipped.
    closed: Option<Closed>,
    /// Where what was received from processes of the job stays with its senders: the newest recovery line for which this process has made its image.
    line: Option<u32>,
}

/// What was received depends on its causes, and on the journal up to its outcome. A protector that had the bytes without these
/// would give them to the next incarnation, which may have to go another way. So they are shipped when the journal is stable that
/// far.
#[derive(Debug, Clone, Copy, Default)]
struct Closed {
    /// Units before this may be shipped.
    to: u64,
    /// Units before the first may be shipped when the journal is stable up to the second.
    next: Option<(u64, u64)>,
    /// All units that came after these.
    last: (u64, u64),
    /// The journal is stable up to here.
    stable: u64,
}

impl Closed {
    fn handle_received(&mut self, to: u64, journal: u64) {
        self.last = (to, journal);
        self.next.get_or_insert(self.last);
        // In replay it was stable before, and no message says so again.
        self.handle_stable(self.stable);
    }

    fn handle_stable(&mut self, journal: u64) {
        self.stable = self.stable.max(journal);
        while let Some((to, _)) = self.next.filter(|next| next.1 <= journal) {
            self.to = to;
            self.next = (self.last.0 > to).then_some(self.last);
        }
    }
}

impl PayloadLog {
    /// An empty log for `capacity` bytes in at most `segments` pieces.
    pub fn new(capacity: usize, segments: usize) -> Self {
        let most_segments = segments.max(1);
        PayloadLog {
            ring: Ring::new(capacity),
            segments: VecDeque::with_capacity(most_segments),
            most_segments,
            shipped: 0,
            closed: None,
            line: None,
        }
    }

    /// What is received depends on causes.
    pub(crate) fn has_causes(&mut self) {
        self.closed = Some(Closed::default());
    }

    /// What is received from processes of the job stays with its senders, and is not pushed here.
    pub(crate) fn stays_with_senders(&mut self) {
        self.line = Some(0);
    }

    /// Where what was received from processes of the job stays with its senders: the newest recovery line for which this process has made its image.
    pub fn line(&self) -> Option<u32> {
        self.line
    }

    /// The process makes its image of this line.
    pub(crate) fn handle_line(&mut self, line: u32) {
        self.line = self.line.map(|newest| newest.max(line));
    }

    /// What was pushed last has its outcome before this position of the journal.
    pub(crate) fn handle_recorded(&mut self, journal: u64) {
        let end = self.ring.end();
        self.closed.iter_mut().for_each(|closed| closed.handle_received(end, journal));
    }

    /// The journal is stable up to this position.
    pub(crate) fn handle_journal_stable(&mut self, journal: u64) {
        self.closed.iter_mut().for_each(|closed| closed.handle_stable(journal));
    }

    /// Units that can be taken from a stream now.
    #[inline]
    pub fn room(&self) -> usize {
        if self.segments.len() < self.most_segments { self.ring.room() } else { 0 }
    }

    /// Units that it has room for.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Whether half of the room is taken by what was not shipped: time to ship, even if the process does not idle.
    pub fn is_due(&self) -> bool {
        let unshipped = (self.ring.end() - self.shipped) as usize;
        unshipped > 0 && (unshipped >= self.ring.capacity() / 2 || self.segments.len() >= self.most_segments / 2)
    }

    /// Bytes that could be shipped now.
    #[inline]
    pub fn shippable(&self) -> u64 {
        self.closed.map_or(u64::MAX, |closed| closed.to).min(self.ring.end()).saturating_sub(self.shipped)
    }

    /// Whether everything was shipped.
    pub fn is_shipped(&self) -> bool {
        self.shipped >= self.ring.end()
    }

    /// What is still here, for a hello.
    pub fn span(&self) -> Span {
        Span { start: self.ring.start(), end: self.ring.end() }
    }

    /// Offset of the first unit of this stream that is still here.
    pub fn first_of(&self, stream: StreamId) -> Option<u64> {
        let first = self.segments.iter().find(|segment| segment.stream == stream)?;
        Some(first.offset + self.ring.start().saturating_sub(first.position))
    }

    /// Takes bytes that were received.
    ///
    /// # Panics
    /// If they do not fit: [`PayloadLog::room`] is asked before they are received.
    pub fn push(&mut self, stream: StreamId, offset: u64, bytes: &[u8]) {
        assert!(bytes.len() <= self.room(), "the caller received more than there is room for");
        let position = self.ring.end();
        self.ring.push(bytes);
        match self.segments.back_mut() {
            Some(last) if last.stream == stream && !last.is_end && last.offset + last.length == offset => {
                last.length += bytes.len() as u64;
            }
            _ => self.segments.push_back(Segment { position, stream, offset, length: bytes.len() as u64, is_end: false }),
        }
    }

    /// Takes the end of a stream.
    ///
    /// # Panics
    /// If there is no room for one unit.
    pub fn push_end(&mut self, stream: StreamId, offset: u64) {
        assert!(self.room() > 0, "the caller received an end that there is no room for");
        self.segments.push_back(Segment { position: self.ring.end(), stream, offset, length: 1, is_end: true });
        self.ring.push(&[0]);
    }

    /// The next piece to be shipped, at most this many bytes and [`limits::LOG_CHUNK`]; it counts as shipped.
    pub fn poll_ship(&mut self, most: usize) -> Option<Piece<'_>> {
        let until = self.closed.map_or(u64::MAX, |closed| closed.to);
        if until <= self.shipped {
            return None;
        }
        let index = self.segments.partition_point(|segment| segment.position + segment.length <= self.shipped);
        let segment = *self.segments.get(index)?;
        let from = self.shipped.max(segment.position);
        let to = (segment.position + segment.length).min(from + most.min(limits::LOG_CHUNK) as u64).min(until);
        self.shipped = to;
        let (head, tail) = self.ring.slices(from, to);
        let offset = segment.offset + (from - segment.position);
        Some(Piece { position: from, stream: segment.stream, offset, is_end: segment.is_end, head, tail })
    }

    /// The protector holds everything up to `position`, or a committed image covers it.
    pub fn handle_stable(&mut self, position: u64) -> Result<(), Error> {
        if position > self.ring.end() {
            return Err(Error::Protector("it holds payload that it was not sent"));
        }
        self.ring.trim(position);
        self.shipped = self.shipped.max(position);
        while self.segments.front().is_some_and(|front| front.position + front.length <= position) {
            self.segments.pop_front();
        }
        Ok(())
    }

    /// A protector, this one or another, answered the hello: it holds everything up to `held`. What it lacks is shipped again.
    pub fn handle_welcome(&mut self, held: u64) -> Result<(), Error> {
        self.handle_stable(held)?;
        self.shipped = held.max(self.ring.start());
        Ok(())
    }

    /// A restarted process begins with an empty log: what its image had under way is covered by that image.
    pub(crate) fn handle_restart(&mut self) {
        self.ring.restart(0);
        self.segments.clear();
        self.shipped = 0;
        self.closed = self.closed.map(|_| Closed::default());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use radic_wire::determinant::ConnectionId;
    use radic_wire::ids::{JobId, ProcessId, Rank};

    use super::*;

    fn stream(number: u64) -> StreamId {
        let opener = ProcessId { job: JobId::from_bits(1), rank: Rank(0) };
        StreamId { connection: ConnectionId { opener, number }, from_opener: true }
    }

    proptest! {
        /// Whatever is lost on the way and shipped again, the protector gets each stream whole, in order, and its end last.
        #[test]
        fn every_stream_arrives_whole(steps in prop::collection::vec((0u8..8, 0u64..3, 1usize..12), 0..150)) {
            let mut log = PayloadLog::new(48, 6);
            let mut received: HashMap<u64, Vec<u8>> = HashMap::new();
            let mut ended = [false; 3];
            let (mut held, mut streams): (u64, HashMap<StreamId, Vec<u8>>) = (0, HashMap::new());
            for (step, number, length) in steps.into_iter().chain([(7, 0, 1)]).chain(std::iter::repeat_n((4, 0, 1), 60)) {
                match step {
                    0..=2 if !ended[number as usize] => {
                        let bytes = received.entry(number).or_default();
                        let length = length.min(log.room());
                        let new: Vec<u8> = (0..length).map(|i| (bytes.len() + i) as u8 ^ number as u8).collect();
                        if length > 0 {
                            log.push(stream(number), bytes.len() as u64, &new);
                            bytes.extend(new);
                        }
                    }
                    3 if !ended[number as usize] && log.room() > 0 && length == 1 => {
                        let bytes = received.entry(number).or_default();
                        log.push_end(stream(number), bytes.len() as u64);
                        bytes.push(0);
                        ended[number as usize] = true;
                    }
                    4 | 5 => if let Some(piece) = log.poll_ship(usize::MAX) {
                        prop_assert_eq!(piece.position, held);
                        let at = streams.entry(piece.stream).or_default();
                        prop_assert_eq!(piece.offset, at.len() as u64);
                        at.extend([piece.head, piece.tail].concat());
                        held += (piece.head.len() + piece.tail.len()) as u64;
                    },
                    6 => log.handle_stable(held).unwrap(),
                    7 => log.handle_welcome(held).unwrap(),
                    _ => {}
                }
            }
            for (number, bytes) in received {
                prop_assert_eq!(streams.get(&stream(number)).map_or(&[][..], |b| &b[..]), &bytes[..]);
            }
        }
    }

    #[test]
    fn it_says_when_it_is_time() {
        let mut log = PayloadLog::new(10, 100);
        log.push(stream(0), 0, &[1; 4]);
        assert!(!log.is_due());
        log.push(stream(0), 4, &[1; 1]);
        assert!(log.is_due() && !log.is_shipped());
        assert_eq!(
            log.poll_ship(usize::MAX).map(|piece| piece.head.len() + piece.tail.len()),
            Some(5),
            "neighbours are one piece"
        );
        assert!(!log.is_due() && log.is_shipped() && log.room() == 5);
        assert!(log.handle_stable(6).is_err());
        log.handle_stable(5).unwrap();
        assert_eq!(log.room(), 10);
        // An end is to be shipped like a byte.
        log.push_end(stream(0), 5);
        assert!(!log.is_shipped());
        assert_eq!(log.poll_ship(usize::MAX).map(|piece| piece.is_end), Some(true));
        assert!(log.is_shipped());
    }

    /// What is received again has its outcome in the log already, and no message says so while the process is replayed.
    #[test]
    fn what_is_replayed_is_shipped_at_once_and_what_is_new_when_its_outcome_is_stable() {
        let mut log = PayloadLog::new(64, 8);
        log.has_causes();
        log.push(stream(1), 0, b"again");
        log.handle_recorded(0);
        assert_eq!(log.poll_ship(64).map(|piece| piece.head.to_vec()), Some(b"again".to_vec()));
        log.handle_journal_stable(7);
        log.push(stream(1), 5, b"new");
        log.handle_recorded(9);
        assert!(log.poll_ship(64).is_none());
        log.handle_journal_stable(9);
        assert_eq!(log.poll_ship(64).map(|piece| piece.head.to_vec()), Some(b"new".to_vec()));
    }
}
