//! Bytes with absolute positions, the newest of them kept in a ring of fixed size.

/// The bytes from `start` to `end` of an endless sequence.
///
/// A ring that is empty begins again where its memory begins: one that is emptied often stays in few pages, and in the processor's cache.
#[derive(Debug, Clone)]
pub struct Ring {
    bytes: Box<[u8]>,
    /// The position of the byte that lies first, in some turn of the ring.
    base: u64,
    start: u64,
    end: u64,
}

impl Ring {
    /// An empty ring for `capacity` bytes at position 0.
    ///
    /// # Panics
    /// If the capacity is 0.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity > 0, "a ring holds something");
        Ring { bytes: vec![0; capacity].into_boxed_slice(), base: 0, start: 0, end: 0 }
    }

    /// Position of the oldest byte that is kept.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Position after the newest byte.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Bytes that it can hold.
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes that fit now.
    #[inline]
    pub fn room(&self) -> usize {
        self.bytes.len() - (self.end - self.start) as usize
    }

    /// Where the byte at `position` lies.
    fn index(&self, position: u64) -> usize {
        ((position - self.base) % self.bytes.len() as u64) as usize
    }

    /// Appends all of `bytes`.
    ///
    /// # Panics
    /// If they do not fit: the caller asked for [`Ring::room`] before it took them from anywhere.
    pub fn push(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.room(), "{} bytes for a room of {}", bytes.len(), self.room());
        let at = self.index(self.end);
        let first = bytes.len().min(self.bytes.len() - at);
        self.bytes[at..at + first].copy_from_slice(&bytes[..first]);
        self.bytes[..bytes.len() - first].copy_from_slice(&bytes[first..]);
        self.end += bytes.len() as u64;
    }

    /// The bytes from `from` to `to`, in two pieces where they wrap.
    ///
    /// # Panics
    /// If they are not all kept.
    pub fn slices(&self, from: u64, to: u64) -> (&[u8], &[u8]) {
        assert!(self.start <= from && from <= to && to <= self.end, "{from}..{to} of {}..{}", self.start, self.end);
        let (at, length) = (self.index(from), (to - from) as usize);
        let first = length.min(self.bytes.len() - at);
        (&self.bytes[at..at + first], &self.bytes[..length - first])
    }

    /// Forgets the bytes before `position`.
    pub fn trim(&mut self, position: u64) {
        assert!(position <= self.end, "trimmed at {position}, after the end at {}", self.end);
        self.start = self.start.max(position);
        if self.start == self.end {
            self.base = self.end;
        }
    }

    /// Forgets everything and goes on at `position`.
    pub fn restart(&mut self, position: u64) {
        (self.base, self.start, self.end) = (position, position, position);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_window_of_the_sequence(capacity in 1usize..40, steps in prop::collection::vec((0usize..20, 0usize..20), 0..50)) {
            let (mut ring, mut all) = (Ring::new(capacity), Vec::new());
            for (push, trim) in steps {
                let bytes: Vec<u8> = (0..push.min(ring.room())).map(|i| (all.len() + i) as u8).collect();
                ring.push(&bytes);
                all.extend(bytes);
                ring.trim((ring.start() + trim as u64).min(ring.end()));
                prop_assert_eq!(ring.end() as usize, all.len());
                for from in ring.start()..=ring.end() {
                    let (head, tail) = ring.slices(from, ring.end());
                    prop_assert_eq!([head, tail].concat(), &all[from as usize..]);
                }
            }
        }
    }
}
