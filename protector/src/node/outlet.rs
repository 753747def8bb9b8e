//! Standard output or standard error of one rank at its host. Every byte has an offset that counts over all incarnations of the
//! rank, and stays here until it was printed or the job's home keeps it. So neither the loss of the home nor the death of the
//! rank loses or repeats a byte (G3).

use std::collections::VecDeque;

use radic_wire::limits;
use serde_bytes::ByteBuf;

/// The output of a restored rank begins after the bytes that are known: some are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its output goes on at byte {from}, and only {known} bytes of it are known: {} are lost", .from - .known)]
pub struct OutputLost {
    /// Where the rank's output goes on.
    pub from: u64,
    /// The end of what is known.
    pub known: u64,
}

/// One stream. See the module's text.
#[derive(Debug, Default)]
pub struct Outlet {
    /// Offset of the next byte that the pipe brings.
    at: u64,
    /// Offset of the first byte that was never seen here.
    next: u64,
    /// What was not printed: pieces, each with the offset of its first byte.
    pieces: VecDeque<(u64, ByteBuf)>,
    unprinted: usize,
    /// The next piece was asked for.
    reading: bool,
    /// There is a pipe.
    open: bool,
    /// There was a pipe before.
    known: bool,
    /// The home was told where the stream ends.
    end_told: bool,
    /// Nothing is kept any more: [`Outlet::give_up`].
    given_up: bool,
}

impl Outlet {
    /// The outlet of a rank that is started.
    pub fn begin() -> Self {
        Outlet { open: true, known: true, ..Outlet::default() }
    }

    /// Whether there ever was a pipe.
    pub fn is_known(&self) -> bool {
        self.known
    }
    /// There is a pipe, which goes on at this offset. If it is the first pipe that this host knows of the rank, no earlier byte
    /// can be missing.
    pub fn open(&mut self, at: u64, first: bool) -> Result<(), OutputLost> {
        if first {
            self.next = self.next.max(at);
        }
        if at > self.next {
            return Err(OutputLost { from: at, known: self.next });
        }
        (self.at, self.open, self.reading, self.known) = (at, true, false, true);
        self.end_told = false;
        Ok(())
    }

    /// The pipe is given up, or has ended.
    pub fn close(&mut self) {
        (self.open, self.reading) = (false, false);
    }

    /// Whether there is a pipe.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Whether the pipe is open and brings nothing.
    pub fn is_idle(&self) -> bool {
        self.open && self.reading
    }

    /// Whether everything before this offset has come, and was printed or is kept elsewhere.
    pub fn is_printed_to(&self, offset: u64) -> bool {
        self.has_come_to(offset) && self.pieces.front().is_none_or(|(start, _)| *start >= offset)
    }

    fn has_come_to(&self, offset: u64) -> bool {
        self.at >= offset || !self.open
    }

    /// The program wrote up to `offset`. Returns the stream's end if the home must be told now: all of it has arrived, not all is
    /// printed, and the home was not told.
    pub fn take_end_to_tell(&mut self, offset: u64) -> Option<u64> {
        let is_due = self.has_come_to(offset) && !self.is_printed_to(offset);
        (is_due && !std::mem::replace(&mut self.end_told, is_due)).then_some(self.next)
    }

    /// There is another home.
    pub fn forget_end_told(&mut self) {
        self.end_told = false;
    }

    /// Whether the stream has ended, and everything was printed.
    pub fn is_done(&self) -> bool {
        !self.open && self.pieces.is_empty()
    }

    /// Whether the next piece is to be read. If so, it counts as asked for.
    pub fn ask(&mut self) -> bool {
        let ask = self.open && !self.reading && self.unprinted < limits::OUTPUT_UNPRINTED;
        self.reading |= ask;
        ask
    }

    /// A piece came; empty at the end. Returns the part of it that was never seen before, and the offset of that part.
    pub fn handle_read(&mut self, mut data: ByteBuf) -> Option<(u64, ByteBuf)> {
        self.reading = false;
        if data.is_empty() {
            self.close();
            return None;
        }
        let end = self.at + data.len() as u64;
        let known = (self.next.min(end) - self.at) as usize;
        let offset = self.at + known as u64;
        self.at = end;
        data.drain(..known);
        if data.is_empty() {
            return None;
        }
        self.next = end;
        if self.given_up {
            return None;
        }
        self.unprinted += data.len();
        self.pieces.push_back((offset, data.clone()));
        Some((offset, data))
    }

    /// Everything up to this offset was printed, or is kept elsewhere.
    pub fn handle_taken(&mut self, offset: u64) {
        while let Some((_, piece)) = self.pieces.front().filter(|(start, piece)| start + piece.len() as u64 <= offset) {
            self.unprinted -= piece.len();
            self.pieces.pop_front();
        }
    }

    /// Everything is kept elsewhere, also what may still come.
    pub fn give_up(&mut self) {
        self.pieces.clear();
        (self.unprinted, self.given_up) = (0, true);
    }

    /// What was not printed, for a new home.
    pub fn unprinted(&self) -> impl Iterator<Item = &(u64, ByteBuf)> {
        self.pieces.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(text: &str) -> ByteBuf {
        ByteBuf::from(text.as_bytes())
    }

    #[test]
    fn a_second_incarnation_repeats_nothing() {
        let mut outlet = Outlet::default();
        outlet.open(0, true).unwrap();
        assert!(outlet.ask() && !outlet.ask());
        assert_eq!(outlet.handle_read(piece("hello ")), Some((0, piece("hello "))));
        outlet.handle_taken(6);
        assert_eq!(outlet.handle_read(piece("")), None);
        assert!(outlet.is_done());
        outlet.open(2, false).unwrap();
        assert_eq!(outlet.handle_read(piece("llo")), None, "seen before");
        assert_eq!(outlet.handle_read(piece(" world")), Some((6, piece("world"))));
        assert!(!outlet.is_done());
        assert_eq!(outlet.unprinted().count(), 1);
        outlet.handle_taken(10);
        assert_eq!(outlet.unprinted().count(), 1, "a part is not all");
        outlet.handle_taken(11);
        outlet.handle_read(piece(""));
        assert!(outlet.is_done());
        assert_eq!(outlet.open(12, false), Err(OutputLost { from: 12, known: 11 }));
        assert_eq!(outlet.open(12, true), Ok(()));
    }

    #[test]
    fn what_is_given_up_is_kept_no_more_nor_is_what_comes_after_it() {
        let mut outlet = Outlet::begin();
        outlet.ask();
        outlet.handle_read(piece("hello "));
        outlet.give_up();
        assert!(outlet.ask() && outlet.unprinted().next().is_none());
        assert_eq!(outlet.handle_read(piece("world")), None);
        assert_eq!(outlet.handle_read(piece("")), None);
        assert!(outlet.is_done() && outlet.is_printed_to(11));
    }

    #[test]
    fn the_end_of_a_stream_is_told_once_while_something_is_not_printed() {
        let mut outlet = Outlet::default();
        outlet.open(0, true).unwrap();
        outlet.handle_read(piece("hello "));
        assert_eq!(outlet.take_end_to_tell(11), None, "not all has come");
        outlet.handle_read(piece("world"));
        assert_eq!((outlet.take_end_to_tell(11), outlet.take_end_to_tell(11)), (Some(11), None));
        assert!(!outlet.is_printed_to(11));
        outlet.forget_end_told();
        assert_eq!(outlet.take_end_to_tell(11), Some(11), "another home does not know it");
        outlet.handle_taken(11);
        outlet.forget_end_told();
        assert_eq!(outlet.take_end_to_tell(11), None);
        assert!(outlet.is_printed_to(11));
    }

    #[test]
    fn what_is_not_printed_is_bounded() {
        let mut outlet = Outlet::default();
        outlet.open(0, true).unwrap();
        let mut bytes = 0;
        while outlet.ask() {
            outlet.handle_read(ByteBuf::from(vec![1; limits::CHUNK]));
            bytes += limits::CHUNK;
        }
        assert_eq!(bytes, limits::OUTPUT_UNPRINTED);
        outlet.handle_taken(limits::CHUNK as u64);
        assert!(outlet.ask());
    }
}
