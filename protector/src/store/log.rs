//! A log that a store holds: a window of an endless sequence, its newest part in memory, older parts perhaps in a file.

use std::collections::VecDeque;

/// What to do with bytes that are offered at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("bytes from {got} would leave a gap after {end}, or end beyond 64 bits")]
pub struct Gap {
    /// Where the log ends.
    pub end: u64,
    /// Where the bytes begin.
    pub got: u64,
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
    memory: VecDeque<u8>,
}

impl Log {
    /// An empty log at `position`.
    pub fn at(position: u64) -> Self {
        Log { start: position, end: position, written: position, handed: position, memory: VecDeque::new() }
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
        self.memory.len()
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
            let keep = self.memory.len().min((self.end - position) as usize);
            self.memory.drain(..self.memory.len() - keep);
            self.written = self.written.max(position);
            self.handed = self.handed.max(position);
        }
    }

    /// Whether there is something that was not handed out to be written.
    pub fn is_unwritten(&self) -> bool {
        self.handed < self.end
    }

    /// The next bytes to be written, at most `most`, and their position. Each is handed out once.
    pub fn unwritten(&mut self, most: usize) -> Option<(u64, Vec<u8>)> {
        let (position, length) = (self.handed, (self.end - self.handed).min(most as u64));
        self.handed += length;
        (length > 0).then(|| (position, self.copy(position, length as usize)))
    }

    /// The same, but nothing from `end` on.
    pub fn unwritten_before(&mut self, end: u64, most: usize) -> Option<(u64, Vec<u8>)> {
        let before = end.min(self.end).saturating_sub(self.handed);
        self.unwritten(most.min(usize::try_from(before).unwrap_or(usize::MAX)))
    }

    /// The file has everything up to `position`.
    pub fn handle_written(&mut self, position: u64) {
        self.written = self.written.max(position.min(self.end));
        self.handed = self.handed.max(self.written);
    }

    /// Bytes from `position`, which are in memory.
    fn copy(&self, position: u64, most: usize) -> Vec<u8> {
        let skip = self.memory.len() - (self.end - position) as usize;
        let length = most.min(self.memory.len() - skip);
        let (first, second) = self.memory.as_slices();
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(&first[skip.min(first.len())..(skip + length).min(first.len())]);
        bytes.extend_from_slice(&second[skip.saturating_sub(first.len())..(skip + length).saturating_sub(first.len())]);
        bytes
    }

    /// Frees memory of what the file has, before `position`. Returns how many bytes.
    pub fn release(&mut self, position: u64) -> usize {
        let keep = (self.end - position.min(self.written).min(self.end)) as usize;
        let freed = self.memory.len().saturating_sub(keep);
        self.memory.drain(..freed);
        if self.memory.is_empty() {
            // Thousands of streams that were busy once must not keep their buffers.
            self.memory.shrink_to(0);
        }
        freed
    }

    /// Bytes from `position`, at most `most`: from memory, or `Err(length)` if the file has them.
    pub fn read(&self, position: u64, most: usize) -> Result<Vec<u8>, usize> {
        let first = self.end - self.memory.len() as u64;
        if position < first {
            return Err(most.min((first - position) as usize));
        }
        Ok(self.copy(position.min(self.end), most))
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
