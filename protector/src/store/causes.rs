//! The causes that a store holds for a process: what of other processes its journal here depends on, as the process itself keeps it ([`radic_wire::causes`]).
//!
//! They are in memory only, and few: the process says from where on it keeps them, and what is before that is stable where it belongs.

use std::collections::{BTreeMap, VecDeque};

use radic_wire::causes;
use radic_wire::ids::Rank;
use radic_wire::limits;
use radic_wire::log::NewCauses;

/// Bytes that a process may have here: far more than it keeps itself.
const MOST: usize = 4 << 20;

/// A part of a sequence of causes.
#[derive(Debug, Clone, Default)]
pub(super) struct Causes {
    start: u64,
    bytes: VecDeque<u8>,
    /// Up to where the journal depends on those of others by what is before the start.
    forgotten: BTreeMap<Rank, u64>,
}

impl Causes {
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    pub(super) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    pub(super) fn set(&self) -> Vec<u8> {
        self.bytes.iter().copied().collect()
    }

    /// See [`HeldLog::forgotten`](radic_wire::log::HeldLog::forgotten).
    pub(super) fn forgotten(&self) -> Vec<(Rank, u64)> {
        self.forgotten.iter().map(|(rank, to)| (*rank, *to)).collect()
    }

    /// Bytes from a position on, at most this many; none, if they are not held.
    pub(super) fn read(&self, position: u64, most: usize) -> Option<Vec<u8>> {
        let from = usize::try_from(position.checked_sub(self.start)?).ok().filter(|from| *from <= self.bytes.len())?;
        Some(self.bytes.range(from..).take(most).copied().collect())
    }

    /// Takes what is new, and forgets what the process keeps no more.
    pub(super) fn append(&mut self, new: &NewCauses<'_>) -> Result<(), &'static str> {
        if new.start >= self.end() {
            self.forget(self.bytes.len())?;
            self.start = new.position;
        }
        let known = self.end().checked_sub(new.position).ok_or("its causes have a gap")?;
        let (before, bytes) = new.bytes.split_at(new.bytes.len().min(usize::try_from(known).unwrap_or(usize::MAX)));
        if !are_whole(before) {
            return Err(SPLIT);
        }
        self.bytes.extend(bytes);
        self.forget(new.start.saturating_sub(self.start) as usize)?;
        if self.bytes.len() > MOST { Err("it keeps too many causes") } else { Ok(()) }
    }

    /// Forgets the first bytes, which must be whole causes: a replica gets what is left, and must be able to read it.
    fn forget(&mut self, count: usize) -> Result<(), &'static str> {
        let gone = &self.bytes.make_contiguous()[..count];
        if !are_whole(gone) {
            return Err(SPLIT);
        }
        for cause in causes::read(gone).map_while(Result::ok).filter(|cause| cause.origin().0 < limits::RANKS) {
            let known = self.forgotten.entry(cause.origin()).or_default();
            *known = cause.to().max(*known);
        }
        self.bytes.drain(..count);
        self.start += count as u64;
        Ok(())
    }
}

/// Why causes are refused that do not begin where one of those before ends.
const SPLIT: &str = "its causes begin in the midst of one";

/// Whether these bytes are causes to their end.
fn are_whole(bytes: &[u8]) -> bool {
    causes::read(bytes).all(|cause| cause.is_ok())
}
