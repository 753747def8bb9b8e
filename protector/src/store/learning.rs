//! What a store learns of the causes of its processes: with their journals, and of a process that is lost from what others have kept of it.

use std::collections::{BTreeMap, HashSet};

use radic_wire::causes::{self, Cause};
use radic_wire::ids::{Epoch, Incarnation, JobId, ProcessId, Rank};
use radic_wire::log::{NewCauses, ToProtector};

use super::process::Process;
use super::types::StoreError;
use super::{Store, encoded};

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
