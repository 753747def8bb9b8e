//! What precedes bytes on the link between two protected processes: how many follow, what they depend on, and how far the other direction is safe.
//!
//! From the first byte after the greeting to its end a link carries frames: a header of [`LINK_FRAME`] bytes, then a set of
//! causes ([`crate::causes`]) unless a process waits at the gate before it sends, then the bytes of the program.

use crate::bytes::{Reader, Writer};
use crate::limits;

/// Length of a header.
pub const LINK_FRAME: usize = 32;
/// What makes a check of a header that bytes of a program do not have by chance. It is no protection against a program that
/// forges it.
const MARK: u32 = 0x9f1d_c06b;

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkFrame {
    /// Bytes of the program that follow, never 0: a frame without them would make a socket readable that has nothing for the program.
    pub payload: u32,
    /// Bytes of the causes before them, at most [`limits::CAUSES`].
    pub causes: u32,
    /// Units of the stream in the other direction that the sender of this frame need not be sent again: its protector holds them,
    /// or a committed image covers them.
    pub stable: u64,
    /// Units of that stream that the sender of this frame has received, or fewer.
    pub received: u64,
    /// The newest recovery line for which it had made its image by then.
    pub line: u32,
}

impl LinkFrame {
    /// As it is on the link.
    pub fn bytes(&self) -> [u8; LINK_FRAME] {
        let mut out = [0; LINK_FRAME];
        let mut writer = Writer::new(&mut out);
        writer.u32(self.payload);
        writer.u32(self.causes);
        writer.u64(self.stable);
        writer.u64(self.received);
        writer.u32(self.line);
        writer.u32(self.check());
        assert_eq!(writer.finish(), Some(LINK_FRAME), "a header has one length");
        out
    }

    /// None: no frame begins so. Another process may write on a socket that it shares with one of ours.
    pub fn read(bytes: &[u8; LINK_FRAME]) -> Option<LinkFrame> {
        let mut from = Reader::new(bytes);
        let (payload, causes) = (from.u32().ok()?, from.u32().ok()?);
        let (stable, received, line) = (from.u64().ok()?, from.u64().ok()?, from.u32().ok()?);
        let frame = LinkFrame { payload, causes, stable, received, line };
        (frame.payload > 0 && frame.causes as usize <= limits::CAUSES && from.u32() == Ok(frame.check())).then_some(frame)
    }

    fn check(&self) -> u32 {
        let numbers = self.stable ^ self.received.rotate_left(21) ^ u64::from(self.line).rotate_left(43);
        MARK ^ self.payload ^ self.causes.rotate_left(7) ^ numbers as u32 ^ (numbers >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written_and_none_is_of_nothing() {
        let frame = LinkFrame { payload: 0x0102_0304, causes: 77, stable: u64::MAX - 5, received: 1 << 33, line: 9 };
        assert_eq!(LinkFrame::read(&frame.bytes()), Some(frame));
        assert_eq!(LinkFrame::read(&LinkFrame { payload: 0, ..frame }.bytes()), None);
        assert_eq!(LinkFrame::read(&LinkFrame { causes: limits::CAUSES as u32 + 1, ..frame }.bytes()), None);
        assert_eq!(LinkFrame::read(b"HTTP/1.1 400 Bad Request\r\nServer"), None);
    }
}
