//! Frames: a length of four bytes, little endian, and that many bytes.
//!
//! The length is compared with the reader's limit before a byte of the body is buffered, so a peer costs at most one frame
//! plus what the reader hands in at once.

use zeroize::Zeroize;

/// Bytes before the body of a frame.
pub const HEADER: usize = 4;

/// A frame that claims to be longer than the reader accepts. The connection cannot be used any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {claimed} bytes is over the limit of {limit}")]
pub struct FrameTooLarge {
    /// What its header says.
    pub claimed: usize,
    /// What the reader accepts.
    pub limit: usize,
}

/// Appends the frame of `body` to `out`.
///
/// # Panics
/// If `body` is longer than `limit`: the sender checks what it sends (the pair of the reader's check).
pub fn encode_into(out: &mut Vec<u8>, body: &[u8], limit: usize) {
    assert!(body.len() <= limit && limit <= u32::MAX as usize, "a frame of {} bytes over the limit of {limit}", body.len());
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(body);
}

/// Cuts a byte stream into frames.
#[derive(Debug)]
pub struct FrameReader {
    limit: usize,
    /// Nothing that was handed out stays in memory.
    forgets: bool,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were handed out already.
    taken: usize,
}

impl FrameReader {
    /// A reader of frames of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        FrameReader { limit, forgets: false, buffer: Vec::new(), taken: 0 }
    }

    /// A reader of frames in which there may be secrets: nothing of one that was handed out stays in memory when the next is asked for, or bytes come.
    pub fn forgetting(limit: usize) -> Self {
        FrameReader { forgets: true, ..FrameReader::new(limit) }
    }

    /// Raises or lowers the limit for the frames not yet begun.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Takes bytes as they came from the peer.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.forgets {
            return self.push_and_forget(bytes);
        }
        if self.taken > 0 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The same, with a buffer of which nothing is moved or left behind that is not overwritten.
    fn push_and_forget(&mut self, bytes: &[u8]) {
        let rest = &self.buffer[self.taken..];
        let mut buffer = Vec::with_capacity(rest.len() + bytes.len());
        buffer.extend_from_slice(rest);
        buffer.extend_from_slice(bytes);
        // All of its memory, not only what is in use.
        self.buffer.zeroize();
        (self.buffer, self.taken) = (buffer, 0);
    }

    /// The next whole frame's body, if there is one.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameTooLarge> {
        if self.forgets {
            self.buffer[..self.taken].zeroize();
        }
        let Some(frame) = self.frame_in(&self.buffer[self.taken..])? else { return Ok(None) };
        let (start, length) = (self.taken + HEADER, frame.len());
        self.taken = start + length;
        Ok(Some(&self.buffer[start..start + length]))
    }

    /// The body of the frame with which `bytes` begin, if it is whole.
    pub fn frame_in<'a>(&self, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, FrameTooLarge> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
        let claimed = u32::from_le_bytes(*header) as usize;
        if claimed > self.limit {
            return Err(FrameTooLarge { claimed, limit: self.limit });
        }
        Ok(rest.get(..claimed))
    }

    /// What is buffered and not handed out: whatever follows the last frame is none.
    pub fn into_rest(mut self) -> Vec<u8> {
        self.buffer.drain(..self.taken);
        self.buffer
    }

    /// Bytes that are buffered and not handed out.
    pub fn buffered(&self) -> usize {
        self.buffer.len() - self.taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_split_gives_the_same_frames(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20),
            cuts in prop::collection::vec(1usize..50, 1..50),
        ) {
            let mut bytes = Vec::new();
            for body in &bodies {
                encode_into(&mut bytes, body, 300);
            }
            let mut reader = FrameReader::new(300);
            let mut seen = Vec::new();
            let mut cuts = cuts.iter().cycle();
            while !bytes.is_empty() {
                let n = (*cuts.next().unwrap()).min(bytes.len());
                reader.push(&bytes.drain(..n).collect::<Vec<_>>());
                while let Some(frame) = reader.next_frame().unwrap() {
                    seen.push(frame.to_vec());
                }
            }
            prop_assert_eq!(seen, bodies);
            prop_assert_eq!(reader.buffered(), 0);
        }
    }

    #[test]
    fn what_was_handed_out_is_forgotten_when_that_is_wanted() {
        let mut reader = FrameReader::forgetting(300);
        let mut bytes = Vec::new();
        [b"a secret", b"the next"].iter().for_each(|body| encode_into(&mut bytes, *body, 300));
        reader.push(&bytes);
        assert_eq!(reader.next_frame(), Ok(Some(&b"a secret"[..])));
        assert_eq!(reader.next_frame(), Ok(Some(&b"the next"[..])));
        assert_eq!(reader.buffer[..12], [0; 12]);
        assert_eq!(reader.next_frame(), Ok(None));
        assert_eq!(reader.buffer, [0; 24]);
    }

    #[test]
    fn the_length_is_checked_before_the_body_comes() {
        let mut reader = FrameReader::new(10);
        reader.push(&11u32.to_le_bytes());
        assert_eq!(reader.next_frame(), Err(FrameTooLarge { claimed: 11, limit: 10 }));
    }
}
