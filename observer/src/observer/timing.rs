//! Readings of clocks.

use radic_wire::determinant::Determinant;

use super::{Observer, Reading, Wait};
use crate::error::Error;
use crate::replay::Served;

impl Observer {
    /// The program reads a clock: its place in [`CLOCK_NAMES`](radic_wire::determinant::CLOCK_NAMES).
    pub fn clock(&mut self, thread: u32, clock: u32) -> Result<Reading, Error> {
        self.check_voice()?;
        let skipped = self.clocks.skipped(thread, clock)?;
        loop {
            let Some(replay) = &mut self.replay else {
                let room = self.journal.has_room();
                return Ok(if room { Reading::Live } else { Reading::Wait(Wait::Stable(self.journal.end())) });
            };
            let wait = match replay.offer_time(&self.journal, thread, clock, skipped)? {
                Served::Outcome => match replay.outcome() {
                    Some(Determinant::Time { difference, .. }) => {
                        let told = self.clocks.by_record(thread, clock, difference)?;
                        self.handle_served();
                        return Ok(Reading::Again(told));
                    }
                    // It belongs to no call, or to one that is over.
                    _ => {
                        self.handle_served();
                        continue;
                    }
                },
                Served::Over if self.settle() => return Ok(Reading::Live),
                // Peers have bytes that this process has not sent again, and before those left a record would have been stable: there was none.
                Served::Nothing | Served::Over => return self.clocks.by_rule(thread, clock).map(Reading::Again),
                Served::Fetch => Wait::Log,
                Served::Turn => Wait::Turn,
            };
            return Ok(Reading::Wait(wait));
        }
    }

    /// What came of [`Reading::Live`]: the clock says so many nanoseconds. What the program is told.
    pub fn handle_clock(&mut self, thread: u32, clock: u32, real: i64) -> Result<i64, Error> {
        let (told, record) = self.clocks.read(thread, clock, real)?;
        record.map_or(Ok(()), |record| self.journal.append(thread, &record))?;
        Ok(told)
    }
}
