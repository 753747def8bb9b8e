//! A log that a store holds: a window of an endless sequence, its newest part in memory, older parts perhaps in a file.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use radic_wire::limits;

/// Bytes of the smallest piece of memory. Thousands of streams that hold little have small ones; each next piece of a log is twice as long, up to a chunk.
const LEAST: usize = 256;

/// What to do with bytes that are offered at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("bytes from {got} would leave a gap after {end}, or end beyond 64 bits")]
pub struct Gap {
    /// Where the log ends.
    pub end: u64,
    /// Where the bytes begin.
    pub got: u64,
}

/// Bytes in pieces that do not move: what is to be written is handed out without a copy.
#[derive(Debug, Clone, Default)]
struct Memory {
    /// Full pieces, none of them empty.
    pieces: VecDeque<Bytes>,
    /// The newest one, and how long the next one is to be.
    last: BytesMut,
    next: usize,
    length: usize,
}

impl Memory {
    fn extend(&mut self, mut bytes: &[u8]) {
        self.length += bytes.len();
        while !bytes.is_empty() {
            let mut room = self.last.capacity() - self.last.len();
            if room == 0 {
                let next = self.next.max(bytes.len()).clamp(LEAST, limits::LOG_CHUNK);
                let full = std::mem::replace(&mut self.last, BytesMut::with_capacity(next));
                self.push(full.freeze());
                (room, self.next) = (self.last.capacity(), 2 * next);
            }
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.last.extend_from_slice(now);
            bytes = later;
        }
    }

    fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.pieces.push_back(piece);
        }
    }

    /// Forgets the oldest bytes.
    fn advance(&mut self, mut count: usize) {
        self.length -= count;
        while let Some(front) = self.pieces.front_mut().filter(|_| count > 0) {
            if count < front.len() {
                return front.advance(count);
            }
            count -= front.len();
            self.pieces.pop_front();
        }
        self.last.advance(count);
        if self.last.is_empty() {
            // Thousands of streams that were busy once must not keep their memory.
            (self.last, self.next) = Default::default();
        }
    }

    /// The bytes from `skip` on that lie in one piece, at most `most`.
    fn piece(&mut self, skip: usize, most: usize) -> Bytes {
        let mut at = 0;
        for piece in &self.pieces {
            if skip < at + piece.len() {
                return piece.slice(skip - at..piece.len().min((skip - at).saturating_add(most)));
            }
            at += piece.len();
        }
        // What follows goes to the rest of its memory.
        let last = self.last.split().freeze();
        self.push(last.clone());
        last.slice(skip - at..last.len().min((skip - at).saturating_add(most)))
    }

    fn copy(&self, mut skip: usize, most: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(most.min(self.length.saturating_sub(skip)));
        for piece in self.pieces.iter().map(|piece| &piece[..]).chain([&self.last[..]]) {
            let from = skip.min(piece.len());
            let rest = &piece[from..piece.len().min(from + (most - bytes.len()))];
            bytes.extend_from_slice(rest);
            skip -= from;
        }
        bytes
    }
}

/// The bytes of a sequence from `start` to `end`.
#[derive(Debug, Clone, Default)]
pub struct Log {
    start: u64,
    end: u64,
    /// The file has the log up to here.
    written: u64,
    /// What is before this was handed out to be written: `written <= handed <= end`.
    handed: u64,
    /// The newest bytes: those before `end`.
    memory: Memory,
}

impl Log {
    /// An empty log at `position`.
    pub fn at(position: u64) -> Self {
        Log { start: position, end: position, written: position, handed: position, memory: Memory::default() }
    }

    /// Position of the oldest byte.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Position after the newest byte.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The position up to which the file has the log.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Bytes held.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Bytes held in memory.
    pub fn in_memory(&self) -> usize {
        self.memory.length
    }

    /// Appends what is new of `bytes` at `position`, and passes over what is held already. Returns how many bytes were new.
    pub fn append(&mut self, position: u64, bytes: &[u8]) -> Result<usize, Gap> {
        let known = self.end.checked_sub(position).ok_or(Gap { end: self.end, got: position })?;
        let new = bytes.get(usize::try_from(known).unwrap_or(usize::MAX)..).unwrap_or(&[]);
        self.end = self.end.checked_add(new.len() as u64).ok_or(Gap { end: self.end, got: position })?;
        self.memory.extend(new);
        Ok(new.len())
    }

    /// Forgets everything before `position`. A log that ends before it begins again there.
    pub fn truncate(&mut self, position: u64) {
        if position >= self.end {
            *self = Log::at(position);
        } else if position > self.start {
            self.start = position;
            let keep = self.memory.length.min((self.end - position) as usize);
            self.memory.advance(self.memory.length - keep);
            self.written = self.written.max(position);
            self.handed = self.handed.max(position);
        }
    }

    /// Whether there is something that was not handed out to be written.
    pub fn is_unwritten(&self) -> bool {
        self.handed < self.end
    }

    /// The next bytes to be written, at most `most`, and their position. Each is handed out once.
    pub fn unwritten(&mut self, most: usize) -> Option<(u64, Bytes)> {
        let (position, left) = (self.handed, usize::try_from(self.end - self.handed).unwrap_or(usize::MAX));
        let bytes = match left.min(most) {
            0 => return None,
            length => self.memory.piece(self.memory.length - left, length),
        };
        self.handed += bytes.len() as u64;
        Some((position, bytes))
    }

    /// What is to be written next, but nothing from `end` on.
    pub fn unwritten_before(&mut self, end: u64, most: usize) -> Option<(u64, Bytes)> {
        let before = end.min(self.end).saturating_sub(self.handed);
        self.unwritten(most.min(usize::try_from(before).unwrap_or(usize::MAX)))
    }

    /// The file has everything up to `position`.
    pub fn handle_written(&mut self, position: u64) {
        self.written = self.written.max(position.min(self.end));
        self.handed = self.handed.max(self.written);
    }

    /// Frees memory of what the file has, before `position`. Returns how many bytes.
    pub fn release(&mut self, position: u64) -> usize {
        let keep = (self.end - position.min(self.written).min(self.end)) as usize;
        let freed = self.memory.length.saturating_sub(keep);
        self.memory.advance(freed);
        freed
    }

    /// Bytes from `position`, at most `most`: from memory, or `Err(length)` if the file has them.
    pub fn read(&self, position: u64, most: usize) -> Result<Vec<u8>, usize> {
        let first = self.end - self.memory.length as u64;
        if position < first {
            return Err(most.min((first - position) as usize));
        }
        Ok(self.memory.copy((position.min(self.end) - first) as usize, most))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Memory and file together always have the window, whatever is spilled, released, truncated or sent twice.
        #[test]
        fn nothing_of_the_window_is_lost(steps in prop::collection::vec((0u8..7, 0usize..30), 0..100)) {
            let (mut log, mut all, mut file, mut writes) = (Log::at(5), vec![0u8; 5], vec![0u8; 5], VecDeque::new());
            for (step, number) in steps {
                match step {
                    0 | 1 => {
                        let position = all.len().saturating_sub(number % 7).max(log.start() as usize);
                        let old = all.len() - position;
                        let new: Vec<u8> = (0..number).map(|i| if i < old { all[position + i] } else { (position + i) as u8 }).collect();
                        log.append(position as u64, &new).unwrap();
                        all.truncate(all.len());
                        if position + new.len() > all.len() {
                            let known = all.len() - position;
                            all.extend(&new[known..]);
                        }
                    }
                    2 => writes.extend(log.unwritten(number)),
                    6 => if let Some((position, bytes)) = writes.pop_front() {
                        file.resize(file.len().max(position as usize + bytes.len()), 0);
                        file[position as usize..position as usize + bytes.len()].copy_from_slice(&bytes);
                        log.handle_written(position + bytes.len() as u64);
                    },
                    3 => { log.release(number as u64 * 4); }
                    4 => log.truncate((log.start() + number as u64 / 3).min(log.end())),
                    _ => prop_assert!(log.append(log.end() + 1, &[1]).is_err()),
                }
                prop_assert_eq!(log.end() as usize, all.len());
                prop_assert!(log.start <= log.written && log.written <= log.handed && log.handed <= log.end);
                let mut at = log.start();
                while at < log.end() {
                    let piece = match log.read(at, 9) {
                        Ok(bytes) => bytes,
                        Err(length) => file[at as usize..at as usize + length].to_vec(),
                    };
                    prop_assert_eq!(&piece[..], &all[at as usize..at as usize + piece.len()]);
                    prop_assert!(!piece.is_empty());
                    at += piece.len() as u64;
                }
            }
        }
    }
}
