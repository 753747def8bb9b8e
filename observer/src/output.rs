//! One stream that a process prints: standard output or standard error, exactly once as far as the process goes (G3).
//!
//! What the process has written is counted, and its last bytes are kept, because the pipe's other end may be lost with the node
//! before it has passed them on. The copy travels in the image. A process that is restored from it first writes that copy once
//! more into its new pipe. [`Output::offset`] says where the copy begins in the stream, so the host drops what it knows.
//!
//! A value without a pipe: the caller says what the pipe has taken, and writes what it is told.

use crate::ring::Ring;

/// See the module's text.
#[derive(Debug, Clone)]
pub struct Output {
    /// The last bytes, by offset.
    ring: Ring,
    /// From where on they are to be written once more. None: they were.
    again: Option<u64>,
}

impl Output {
    /// A stream into which nothing was written. Its last `kept` bytes are kept: as many as can be between the process and the job's home.
    pub fn new(kept: usize) -> Output {
        Output { ring: Ring::new(kept), again: None }
    }

    /// The pipe has taken these bytes, at most as many as are kept.
    pub fn handle_written(&mut self, bytes: &[u8]) {
        assert!(self.again.is_none(), "what is new is written after what is written once more");
        let surplus = bytes.len().saturating_sub(self.ring.room()) as u64;
        self.ring.trim(self.ring.start() + surplus);
        self.ring.push(bytes);
    }

    /// The process is restored, and has a new pipe for this stream, or none.
    pub fn handle_restored(&mut self, has_pipe: bool) {
        let is_empty = self.ring.start() == self.ring.end();
        self.again = Some(self.ring.start()).filter(|_| has_pipe && !is_empty);
    }

    /// Offset of the first byte that a process writes which is restored from an image made now.
    pub fn offset(&self) -> u64 {
        self.ring.start()
    }

    /// Offset after the last byte that was written.
    pub fn end(&self) -> u64 {
        self.ring.end()
    }

    /// Whether anything is to be written once more. Until it was, nothing new may be written.
    pub fn is_owing(&self) -> bool {
        self.again.is_some()
    }

    /// The next bytes to be written once more, at most `most`. None: there are none.
    pub fn owed(&self, most: usize) -> Option<&[u8]> {
        let (head, tail) = self.ring.slices(self.again?, self.ring.end());
        let next = if head.is_empty() { tail } else { head };
        Some(&next[..next.len().min(most)]).filter(|owed| !owed.is_empty())
    }

    /// The pipe has taken this many of the bytes of [`Output::owed`].
    pub fn handle_written_again(&mut self, count: usize) {
        let next = self.again.map(|from| from + count as u64);
        self.again = next.filter(|from| *from < self.ring.end());
    }

    /// The pipe has no reader: no node needs the bytes that are owed.
    pub fn handle_no_reader(&mut self) {
        self.again = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEPT: usize = 100;
    const PIECE: usize = 16;

    proptest! {
        /// Whatever was written before the image, and however little the new pipe takes at once: what comes out of it is what was written, from the
        /// offset that is told on, to the last byte.
        #[test]
        fn what_is_written_again_continues_what_was_written(pieces in prop::collection::vec(1usize..=PIECE, 0..40), taken in 1usize..PIECE) {
            let mut output = Output::new(KEPT);
            let mut all = Vec::new();
            for (mark, length) in (0u8..=u8::MAX).cycle().zip(pieces) {
                let piece: Vec<u8> = (0..length).map(|at| mark.wrapping_mul(31).wrapping_add(at as u8)).collect();
                output.handle_written(&piece);
                all.extend(piece);
            }
            prop_assert_eq!(output.end(), all.len() as u64);
            let from = output.offset();
            prop_assert_eq!(from, all.len().saturating_sub(KEPT) as u64);
            output.handle_restored(true);
            let mut again = Vec::new();
            while let Some(owed) = output.owed(PIECE) {
                let count = owed.len().min(taken);
                again.extend_from_slice(&owed[..count]);
                output.handle_written_again(count);
            }
            prop_assert!(!output.is_owing());
            prop_assert_eq!(&again[..], &all[from as usize..]);
        }
    }

    #[test]
    fn without_a_pipe_or_a_reader_nothing_is_owed() {
        let mut output = Output::new(KEPT);
        output.handle_restored(true);
        assert!(!output.is_owing(), "nothing was written");
        output.handle_written(b"abc");
        output.handle_restored(false);
        assert!(!output.is_owing());
        output.handle_restored(true);
        assert_eq!(output.owed(2), Some(&b"ab"[..]));
        output.handle_no_reader();
        assert_eq!(output.owed(2), None);
    }
}
