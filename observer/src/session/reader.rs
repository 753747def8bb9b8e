//! The log that a restarted process reads: the journal, and received bytes, asked for ahead of the program.

use std::io::IoSliceMut;

use radic_wire::determinant::StreamId;

/// Streams of which bytes are here ahead of the program.
const STREAMS_AHEAD: usize = 16;

/// Received bytes from the protector's log, ahead of the program.
#[derive(Debug, Clone)]
struct Ahead {
    stream: StreamId,
    /// Offset of the first byte that was not served.
    offset: u64,
    bytes: Vec<u8>,
    served: usize,
    /// The log has no more of it.
    is_over: bool,
}

impl Ahead {
    fn new(stream: StreamId, offset: u64, bytes: &[u8]) -> Self {
        Ahead { stream, offset, bytes: bytes.to_vec(), served: 0, is_over: bytes.is_empty() }
    }

    fn left(&self) -> &[u8] {
        &self.bytes[self.served..]
    }

    fn end(&self) -> u64 {
        self.offset + self.left().len() as u64
    }
}

/// What a process still wants of the log that it was restarted with.
#[derive(Debug, Clone, Default)]
pub struct LogReader {
    /// The position from which journal was asked for and has not come.
    journal: Option<u64>,
    /// The stream and offset from which received bytes were asked for and have not come.
    payload: Option<(StreamId, u64)>,
    /// The most recently used last.
    ahead: Vec<Ahead>,
    /// Where the journal ends with which the process has to catch up.
    log_end: u64,
    /// The node knows that the process is live.
    told: bool,
}

impl LogReader {
    /// Of a log that ends there.
    pub fn new(log_end: u64) -> LogReader {
        LogReader { log_end, ..LogReader::default() }
    }

    pub(super) fn log_end(&self) -> Option<u64> {
        (!self.told).then_some(self.log_end)
    }

    pub(super) fn has_told(&self) -> bool {
        self.told
    }

    pub(super) fn handle_told(&mut self) {
        self.told = true;
    }

    /// Whether the journal from `position` is to be asked for now.
    pub(super) fn ask_journal(&mut self, position: u64) -> Option<u64> {
        if self.journal.is_some() {
            return None;
        }
        self.journal = Some(position);
        self.journal
    }

    /// Whether received bytes from `offset` are to be asked for now.
    pub(super) fn ask_payload(&mut self, stream: StreamId, offset: u64) -> Option<u64> {
        let wanted = Some((stream, offset));
        (std::mem::replace(&mut self.payload, wanted) != wanted).then_some(offset)
    }

    /// A piece of journal came.
    pub(super) fn handle_journal(&mut self) {
        self.journal = None;
    }

    /// Bytes of the log came.
    pub(super) fn handle_payload(&mut self, stream: StreamId, offset: u64, bytes: &[u8]) {
        if self.payload == Some((stream, offset)) {
            self.payload = None;
        }
        match self.ahead.iter_mut().find(|ahead| ahead.stream == stream) {
            Some(ahead) if ahead.end() == offset => {
                ahead.bytes.drain(..ahead.served);
                ahead.served = 0;
                ahead.bytes.extend_from_slice(bytes);
                ahead.is_over = bytes.is_empty();
            }
            Some(ahead) if ahead.left().is_empty() => *ahead = Ahead::new(stream, offset, bytes),
            Some(_) => {} // Twice the same, after a connection was lost.
            None => {
                if self.ahead.len() == STREAMS_AHEAD {
                    self.ahead.remove(0);
                }
                self.ahead.push(Ahead::new(stream, offset, bytes));
            }
        }
    }

    /// Serves bytes of `stream` from `offset` on. Returns how many, and from where on more are to be asked for.
    pub(super) fn serve(&mut self, stream: StreamId, offset: u64, room: &mut [IoSliceMut<'_>]) -> (usize, Option<u64>) {
        let Some(at) = self.ahead.iter().position(|ahead| ahead.stream == stream) else { return (0, Some(offset)) };
        let mut ahead = self.ahead.remove(at);
        if ahead.offset != offset {
            return (0, Some(offset)); // A peek went before, or another place: what is here is of no use.
        }
        let mut rest = ahead.left();
        let all = rest.len();
        for part in room {
            let (now, later) = rest.split_at(rest.len().min(part.len()));
            part[..now.len()].copy_from_slice(now);
            rest = later;
        }
        let count = all - rest.len();
        ahead.served += count;
        ahead.offset += count as u64;
        let low = ahead.left().len() < ahead.bytes.len() / 2 && !ahead.is_over || count == 0;
        let more = (low && self.payload.is_none()).then(|| ahead.end());
        self.ahead.push(ahead);
        (count, more)
    }

    /// The connection to the protector is another one: what was asked on the old one does not come.
    pub(super) fn handle_reconnected(&mut self) {
        (self.journal, self.payload) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use radic_wire::determinant::ConnectionId;
    use radic_wire::ids::{JobId, ProcessId, Rank};

    use super::*;

    fn stream(number: u64) -> StreamId {
        let opener = ProcessId { job: JobId::from_bits(1), rank: Rank(0) };
        StreamId { connection: ConnectionId { opener, number }, from_opener: true }
    }

    fn take(reader: &mut LogReader, stream: StreamId, offset: u64, most: usize) -> (Vec<u8>, Option<u64>) {
        let mut room = vec![0; most];
        let (count, more) = reader.serve(stream, offset, &mut [IoSliceMut::new(&mut room)]);
        room.truncate(count);
        (room, more)
    }

    #[test]
    fn bytes_are_asked_for_ahead_and_served_once() {
        let mut reader = LogReader::default();
        let one = stream(1);
        assert_eq!(take(&mut reader, one, 10, 4), (vec![], Some(10)));
        reader.payload = Some((one, 10));
        reader.handle_payload(one, 10, b"abcdefgh");
        assert_eq!(take(&mut reader, one, 10, 3), (b"abc".to_vec(), None));
        // Less than half is left.
        assert_eq!(take(&mut reader, one, 13, 2), (b"de".to_vec(), Some(18)));
        reader.payload = Some((one, 18));
        assert_eq!(take(&mut reader, one, 15, 1), (b"f".to_vec(), None), "it is asked for already");
        reader.handle_payload(one, 18, b"ij");
        assert_eq!(take(&mut reader, one, 16, 9).0, b"ghij");
        assert_eq!(take(&mut reader, one, 20, 9), (vec![], Some(20)));
    }

    #[test]
    fn what_comes_twice_or_for_another_place_is_not_served() {
        let mut reader = LogReader::default();
        let one = stream(1);
        reader.handle_payload(one, 0, b"abcd");
        reader.handle_payload(one, 0, b"abcd");
        assert_eq!(take(&mut reader, one, 0, 9).0, b"abcd");
        reader.handle_payload(one, 4, b"efgh");
        assert_eq!(take(&mut reader, one, 6, 9), (vec![], Some(6)));
    }

    #[test]
    fn memory_is_bounded() {
        let mut reader = LogReader::default();
        for number in 0..100 {
            reader.handle_payload(stream(number), 0, b"x");
        }
        assert_eq!(reader.ahead.len(), STREAMS_AHEAD);
        assert_eq!(take(&mut reader, stream(99), 0, 9).0, b"x");
    }
}
