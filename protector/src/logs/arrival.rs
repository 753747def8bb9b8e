//! An image on its way from the thread that receives it to the one that restores a process from it. Neither waits for the whole of it, and no copy of it is made.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Bytes of a piece.
const PIECE: usize = 1 << 20;
/// Pieces that have come and were not read, at most.
const PIECES: usize = 16;
/// Time in which the reader may take nothing although there is something. Less than what the receiver gives the sender, so the error names the right one.
const STUCK: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<Vec<u8>>,
    /// All has come and is sound: true. It ends without that: false.
    end: Option<bool>,
    is_unread: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The end that receives. If it is dropped before [`Arrival::finish`], the reader gets an error instead of the end.
#[derive(Debug)]
pub struct Arrival {
    shared: Arc<Shared>,
    piece: Vec<u8>,
    /// Since when there is no room.
    full_since: Option<Instant>,
}

/// Ends an [`Arrival`] that another thread has: its reader gets an error.
#[derive(Debug)]
pub struct Breaker(Arc<Shared>);

impl Breaker {
    /// Nothing more comes, whatever the thread that has it is at.
    pub fn break_off(&self) {
        self.0.end(false);
    }
}

impl Shared {
    fn end(&self, is_sound: bool) {
        self.state.lock().end.get_or_insert(is_sound);
        self.changed.notify_all();
    }
}

/// The end that is read.
#[derive(Debug)]
pub struct Arriving {
    shared: Arc<Shared>,
    piece: Vec<u8>,
    at: usize,
}

/// Both ends.
pub fn arrival() -> (Arrival, Arriving) {
    let shared = Arc::new(Shared::default());
    let arriving = Arriving { shared: shared.clone(), piece: Vec::new(), at: 0 };
    (Arrival { shared, piece: Vec::with_capacity(PIECE), full_since: None }, arriving)
}

impl Arrival {
    /// Whether there is room for [`Arrival::push`], or will be within this time. An error if there has been none for too long.
    pub fn has_room(&mut self, within: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + within;
        let mut state = self.shared.state.lock();
        while state.pieces.len() >= PIECES && !state.is_unread {
            if self.shared.changed.wait_until(&mut state, deadline).timed_out() {
                let since = *self.full_since.get_or_insert(deadline);
                let is_stuck = deadline.duration_since(since) >= STUCK;
                return if is_stuck {
                    Err(io::Error::new(ErrorKind::TimedOut, "what is restored takes nothing"))
                } else {
                    Ok(false)
                };
            }
        }
        self.full_since = None;
        Ok(true)
    }

    /// For the thread that waits for this end.
    pub fn breaker(&self) -> Breaker {
        Breaker(self.shared.clone())
    }

    /// These bytes have come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.pass_on();
        }
    }

    /// All bytes have come. What they are is not known yet.
    pub fn pass_on(&mut self) {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        let mut state = self.shared.state.lock();
        // Nobody reads it, perhaps because what it says makes no process. What it is worth is learnt all the same.
        if !state.is_unread && !piece.is_empty() {
            state.pieces.push_back(piece);
            self.shared.changed.notify_all();
        }
    }

    /// All has come, and is sound: its reader comes to the end.
    pub fn finish(mut self) {
        self.pass_on();
        self.shared.end(true);
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.shared.end(false);
    }
}

impl Arriving {
    /// The next piece; none at the end.
    fn next(&self) -> io::Result<Option<Vec<u8>>> {
        let mut state = self.shared.state.lock();
        loop {
            if let Some(piece) = state.pieces.pop_front() {
                self.shared.changed.notify_all();
                return Ok(Some(piece));
            }
            match state.end {
                Some(true) => return Ok(None),
                Some(false) => return Err(io::Error::new(ErrorKind::ConnectionAborted, "it has not come as a whole")),
                // Bounded by the receiver, which waits with limits for its sender, and for the thread that reads a file of this node
                // (`Driver::read`), and ends this in any case.
                None => self.shared.changed.wait(&mut state),
            }
        }
    }
}

impl Read for Arriving {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.piece.len() {
            let Some(piece) = self.next()? else { return Ok(0) };
            (self.piece, self.at) = (piece, 0);
        }
        let count = buffer.len().min(self.piece.len() - self.at);
        buffer[..count].copy_from_slice(&self.piece[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        (state.is_unread, state.pieces) = (true, VecDeque::new());
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Far more than anything takes.
    const LONG: Duration = Duration::from_secs(20);

    fn read_all(mut arriving: Arriving) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        arriving.read_to_end(&mut bytes).map(|_| bytes)
    }

    #[test]
    fn more_than_there_is_room_for_arrives_and_ends_when_it_is_said_to_be_sound() {
        let (mut arrival, arriving) = arrival();
        let image: Vec<u8> = (0..2 * PIECES * PIECE + 5).map(|at| (at / 1000) as u8).collect();
        let reader = thread::spawn(move || read_all(arriving));
        for part in image.chunks(300_000) {
            assert!(arrival.has_room(LONG).unwrap());
            arrival.push(part);
        }
        arrival.finish();
        assert!(reader.join().unwrap().unwrap() == image);
    }

    #[test]
    fn what_is_not_said_to_be_sound_has_no_end() {
        let (mut arrival, arriving) = arrival();
        arrival.push(b"all of it");
        arrival.pass_on();
        drop(arrival);
        assert_eq!(read_all(arriving).unwrap_err().kind(), ErrorKind::ConnectionAborted);
    }

    #[test]
    fn it_waits_for_a_reader_and_for_none_that_is_gone() {
        let (mut arrival, arriving) = arrival();
        let fill = |arrival: &mut Arrival| (0..=PIECES).for_each(|_| arrival.push(&[0; PIECE]));
        fill(&mut arrival);
        assert!(!arrival.has_room(Duration::ZERO).unwrap());
        arrival.full_since = Instant::now().checked_sub(STUCK);
        assert_eq!(arrival.has_room(Duration::ZERO).unwrap_err().kind(), ErrorKind::TimedOut);
        drop(arriving);
        assert!(arrival.has_room(Duration::ZERO).unwrap());
        fill(&mut arrival);
        assert!(arrival.has_room(Duration::ZERO).unwrap());
        arrival.finish();
    }
}
