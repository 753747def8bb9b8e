//! The causes that a store holds for a process: what of other processes its journal here depends on, as the process itself keeps it ([`radic_wire::causes`]).
//!
//! They are in memory only, and few: the process says from where on it keeps them, and what is before that is stable where it belongs.

use std::collections::{BTreeMap, HashSet, VecDeque};

use radic_wire::causes::{self, Cause};
use radic_wire::ids::{Epoch, Incarnation, JobId, ProcessId, Rank};
use radic_wire::limits;
use radic_wire::log::{NewCauses, ToProtector};

use super::process::Process;
use super::types::StoreError;
use super::{Store, encoded};

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
    fn append(&mut self, new: &NewCauses<'_>) -> Result<(), &'static str> {
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

impl Store {
    /// The journal goes on, and what it depends on from here on: both or none of it is held.
    pub(super) fn handle_journal_after(
        &mut self,
        id: ProcessId,
        position: u64,
        causes: &NewCauses<'_>,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        self.handle_journal(id, position, bytes)?;
        let process = self.process(id)?;
        process.causes.append(causes).map_err(|what| StoreError::Contradiction { process: id, what })
    }

    /// All causes that are held for processes of this epoch of a job, a set for each.
    pub fn causes_of(&self, job: JobId, epoch: Epoch) -> Vec<Vec<u8>> {
        let is_of = |id: &ProcessId, process: &Process| id.job == job && process.payload.counted.epoch == epoch;
        let sets = self.processes.iter().filter(|(id, process)| is_of(id, process)).map(|(_, process)| process.causes.set());
        sets.filter(|set| !set.is_empty()).collect()
    }

    /// A process is lost, and others kept these sets. What of its journal is in them belongs to its log, as far as nothing lacks
    /// between; the rest is what that depends on. Whatever depends on an outcome of the process keeps all that were before it: so
    /// no process that lives needs what comes after a gap.
    pub fn learn(&mut self, id: ProcessId, incarnation: Incarnation, sets: &[Vec<u8>]) {
        self.fence(id, incarnation);
        let Some(process) = self.processes.get(&id).filter(|process| process.is_current()) else { return };
        let (mut own, mut others) = (BTreeMap::new(), BTreeMap::new());
        // A set was checked when it came; what is left of a bad one is not used.
        for cause in sets.iter().flat_map(|set| causes::read(set)).map_while(Result::ok) {
            let Cause::Part { origin, from, bytes } = cause else { continue };
            let parts: &mut BTreeMap<(Rank, u64), &[u8]> = if origin == id.rank { &mut own } else { &mut others };
            let known = parts.entry((origin, from)).or_default();
            *known = if bytes.len() > known.len() { bytes } else { known };
        }
        let (position, mut journal) = (process.journal.end(), Vec::new());
        for ((_, from), bytes) in own {
            let end = position + journal.len() as u64;
            let known = end.checked_sub(from).and_then(|known| usize::try_from(known).ok());
            journal.extend(known.and_then(|known| bytes.get(known..)).unwrap_or(&[]));
        }
        let kept = process.causes.set();
        let known: HashSet<Cause<'_>> = causes::read(&kept).map_while(Result::ok).collect();
        let mut set = Vec::new();
        for ((origin, from), bytes) in others {
            let cause = Cause::Part { origin, from, bytes };
            if !known.contains(&cause) {
                set.extend(encoded(|out| cause.write(out)));
            }
        }
        if journal.is_empty() && set.is_empty() {
            return;
        }
        let new = NewCauses { start: process.causes.start(), position: process.causes.end(), bytes: &set };
        if self.handle_journal_after(id, position, &new, &journal).is_ok() {
            self.forward(id, &ToProtector::JournalAfter { position, causes: new, bytes: &journal });
            self.settle(id);
        }
    }
}
