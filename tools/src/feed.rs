//! Standard input on its way to the job: one piece for each time that the job asks for one.
//!
//! What was sent is kept for a while: rank 0 may be brought back after a failure, and what lay unread in its pipe is then asked for again. That is a pipe and a message; a job that
//! begins anew asks for everything.

use std::collections::VecDeque;

use radic_wire::limits;

/// Bytes that are kept after they were sent.
const KEPT: usize = 1 << 20;

/// See the module. Offsets count the bytes of all terminals of the job.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    /// The last bytes of what was typed.
    kept: VecDeque<u8>,
    /// Offset of the first of them.
    start: u64,
    /// Offset of the next byte to be sent.
    next: u64,
    /// The job has said from which offset on this terminal speaks.
    begun: bool,
    /// The job has asked for a piece.
    asked: bool,
    /// What was typed is over.
    ended: bool,
}

/// The job asks for what is not kept.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Lost {
    /// It was typed too long ago, or at another terminal.
    #[error(
        "rank 0 was brought back and has read its standard input up to byte {0}, and only what follows byte {1} is still here"
    )]
    Dropped(u64, u64),
    /// It executed a program.
    #[error(
        "rank 0 was brought back, and how much of its standard input it had read before it executed its program is not known"
    )]
    Unknown,
}

impl Feed {
    fn end(&self) -> u64 {
        self.start + self.kept.len() as u64
    }

    /// The job asks for a piece from this offset on; none: it does not know from where on.
    pub(crate) fn handle_asked(&mut self, from: Option<u64>) -> Result<(), Lost> {
        match from {
            Some(from) if !self.begun => (self.start, self.next) = (from, from),
            Some(from) if (self.start..=self.end()).contains(&from) => self.next = from,
            Some(from) => return Err(Lost::Dropped(from, self.start)),
            // Nothing has been typed yet, so the offset is 0.
            None if self.end() == 0 => {}
            None => return Err(Lost::Unknown),
        }
        (self.begun, self.asked) = (true, true);
        Ok(())
    }

    /// Whether something typed could be sent now.
    pub(crate) fn is_hungry(&self) -> bool {
        self.asked && self.next == self.end() && !self.ended
    }

    /// This was typed.
    pub(crate) fn handle_typed(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes);
        let surplus = self.kept.len().saturating_sub(KEPT).min((self.next - self.start) as usize);
        self.kept.drain(..surplus);
        self.start += surplus as u64;
    }

    /// Nothing more is typed.
    pub(crate) fn handle_end(&mut self) {
        self.ended = true;
    }

    /// The piece to be sent, and the offset of its first byte; an empty one is the end.
    pub(crate) fn poll_piece(&mut self) -> Option<(u64, Vec<u8>)> {
        let left = self.end() - self.next;
        if !self.asked || left == 0 && !self.ended {
            return None;
        }
        let (from, length) = ((self.next - self.start) as usize, left.min(limits::CHUNK as u64) as usize);
        let piece = (self.next, self.kept.range(from..from + length).copied().collect());
        self.next += length as u64;
        self.asked = false;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_for_each_question_and_the_end_last() {
        let mut feed = Feed::default();
        assert!(!feed.is_hungry());
        feed.handle_asked(Some(0)).unwrap();
        assert!(feed.is_hungry());
        feed.handle_typed(b"abc");
        assert_eq!(feed.poll_piece(), Some((0, b"abc".to_vec())));
        assert!(!feed.is_hungry() && feed.poll_piece().is_none());
        feed.handle_asked(Some(3)).unwrap();
        feed.handle_end();
        assert_eq!(feed.poll_piece(), Some((3, vec![])));
        assert_eq!(feed.poll_piece(), None);
    }

    #[test]
    fn what_was_lost_is_said_again_and_the_end_after_it() {
        let mut feed = Feed::default();
        feed.handle_asked(Some(7)).unwrap();
        feed.handle_typed(b"abcdef");
        feed.handle_end();
        assert_eq!(feed.poll_piece(), Some((7, b"abcdef".to_vec())));
        feed.handle_asked(Some(13)).unwrap();
        assert_eq!(feed.poll_piece(), Some((13, vec![])));
        feed.handle_asked(Some(9)).unwrap();
        assert_eq!(feed.poll_piece(), Some((9, b"cdef".to_vec())));
        feed.handle_asked(Some(13)).unwrap();
        assert_eq!(feed.poll_piece(), Some((13, vec![])));
    }

    #[test]
    fn what_is_not_kept_is_refused_by_name() {
        let mut feed = Feed::default();
        feed.handle_asked(Some(0)).unwrap();
        feed.handle_asked(None).unwrap();
        let piece = vec![b'x'; limits::CHUNK];
        let mut sent = 0;
        while sent <= 2 * KEPT {
            feed.handle_typed(&piece);
            assert_eq!(feed.poll_piece().unwrap().0, sent as u64);
            sent += piece.len();
            feed.handle_asked(Some(sent as u64)).unwrap();
        }
        assert!(feed.kept.len() <= KEPT + limits::CHUNK);
        assert_eq!(feed.handle_asked(Some(1)), Err(Lost::Dropped(1, feed.start)));
        assert_eq!(feed.handle_asked(Some(sent as u64 + 1)), Err(Lost::Dropped(sent as u64 + 1, feed.start)));
        assert_eq!(feed.handle_asked(None), Err(Lost::Unknown));
    }
}
