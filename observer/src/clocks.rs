//! What the program is told of the time.
//!
//! A program that chooses by the clock how often it does something must be told the same times when it is executed again, so a
//! reading is an outcome. Most readings come in dense rows, and a row needs few records: a thread is told the time that a rule
//! gives, its last reading and the step before it once more, as long as that is within [`TOLERANCE_NS`] of the truth. Else it is
//! told the truth, and that is recorded: after how many readings by the rule, and the difference to the last one.
//!
//! After a restart a clock may be behind what the program was told, because machines do not boot together. A clock that only goes
//! forward then goes on from where it was.

use radic_wire::determinant::{CLOCKS, Determinant};

use crate::error::Error;

/// How far a program may be told a wrong time, in nanoseconds: less than two readings in a row differ.
pub const TOLERANCE_NS: i64 = 32;
/// The longest step that the rule repeats, in nanoseconds: pauses between readings that are longer differ by more than the tolerance.
const ROW_NS: i64 = 1_000;
/// The places of the clock that people set: it may go back.
const REALTIME: [u32; 2] = [0, 5];
/// The clock of a thread, which each thread has for itself.
const THREAD: u32 = 3;

/// What a thread was told of one clock.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    /// The last reading, in nanoseconds.
    last: i64,
    /// What the rule adds to it.
    step: i64,
    /// Readings by the rule since the last one that was recorded.
    skipped: u64,
}

impl Told {
    fn by_rule(&mut self) -> i64 {
        self.skipped += 1;
        self.last = self.last.saturating_add(self.step);
        self.last
    }

    fn by_record(&mut self, difference: i64) -> i64 {
        // The error of the rule has come in this many readings.
        let readings = i64::try_from(self.skipped).unwrap_or(i64::MAX).saturating_add(1);
        let step = self.step.saturating_add(difference.saturating_sub(self.step) / readings);
        self.step = if (0..=ROW_NS).contains(&step) { step } else { 0 };
        self.skipped = 0;
        self.last = self.last.saturating_add(difference);
        self.last
    }
}

/// What all threads were told of all clocks.
#[derive(Debug, Clone)]
pub(crate) struct Clocks {
    /// By the place of the thread.
    threads: Vec<[Told; CLOCKS]>,
    /// How far each clock is behind what the program was told before the last restart, in nanoseconds.
    behind: [i64; CLOCKS],
}

impl Clocks {
    /// For this many threads at once, of which the first one has begun. Not all of the memory is touched before there are this many.
    pub fn new(threads: usize) -> Self {
        let mut table = Vec::with_capacity(threads);
        table.push(Default::default());
        Clocks { threads: table, behind: [0; CLOCKS] }
    }

    /// Another thread has this place from now on.
    pub fn begin_thread(&mut self, place: u32) {
        let place = place as usize;
        if place >= self.threads.len() {
            self.threads.resize(place + 1, Default::default());
        }
        self.threads[place] = Default::default();
    }

    fn told(&mut self, thread: u32, clock: u32) -> Result<&mut Told, Error> {
        let told = self.threads.get_mut(thread as usize).ok_or(Error::Thread(thread))?;
        told.get_mut(clock as usize).ok_or(Error::Full("table of clocks"))
    }

    /// How many readings by the rule this thread has had of this clock since the last one that was recorded, and what the rule adds.
    pub fn rule(&mut self, thread: u32, clock: u32) -> Result<(u64, i64), Error> {
        self.told(thread, clock).map(|told| (told.skipped, told.step))
    }

    /// How many readings by the rule this thread has had of each clock since the last one that was recorded.
    pub fn skipped(&self, thread: u32) -> [u64; CLOCKS] {
        self.threads.get(thread as usize).map_or([0; CLOCKS], |told| told.map(|told| told.skipped))
    }

    /// In replay: no record is due.
    pub fn by_rule(&mut self, thread: u32, clock: u32) -> Result<i64, Error> {
        self.told(thread, clock).map(Told::by_rule)
    }

    /// As what the last reading by the rule would be recorded: readings by the rule before it, and the difference.
    pub fn as_record(&mut self, thread: u32, clock: u32) -> Result<(u64, i64), Error> {
        self.told(thread, clock).map(|told| (told.skipped.saturating_sub(1), told.step))
    }

    /// A reading by the rule, before which there were this many, is recorded. False: it is still to be made.
    pub fn handle_recorded(&mut self, thread: u32, clock: u32, skipped: u64) -> Result<bool, Error> {
        let told = self.told(thread, clock)?;
        let left = told.skipped.checked_sub(skipped.saturating_add(1));
        told.skipped = left.unwrap_or(told.skipped);
        Ok(left.is_some())
    }

    /// In replay: this one.
    pub fn by_record(&mut self, thread: u32, clock: u32, difference: i64) -> Result<i64, Error> {
        self.told(thread, clock).map(|told| told.by_record(difference))
    }

    /// In replay: this one is not made any more, nor are those before it by the rule that are still to come. What follows goes on from it.
    pub fn by_missed_record(&mut self, thread: u32, clock: u32, skipped: u64, difference: i64) -> Result<(), Error> {
        let told = self.told(thread, clock)?;
        let by_rule = i64::try_from(skipped.saturating_sub(told.skipped)).unwrap_or(i64::MAX);
        told.last = told.last.saturating_add(told.step.saturating_mul(by_rule));
        told.skipped = skipped;
        told.by_record(difference);
        Ok(())
    }

    /// In replay: a record whose turn has not come, after this many readings since the one before. It counts as a reading by the rule until then.
    pub fn by_early_record(&mut self, thread: u32, clock: u32, difference: i64, readings: u64) -> Result<i64, Error> {
        let told = self.told(thread, clock)?;
        let skipped = std::mem::replace(&mut told.skipped, readings);
        let last = told.by_record(difference);
        told.skipped = skipped.saturating_add(1);
        Ok(last)
    }

    /// The clock says `real`: what the program is told, and what is to be recorded, if the rule does not give it.
    pub fn read(&mut self, thread: u32, clock: u32, real: i64) -> Result<(i64, Option<Determinant<'static>>), Error> {
        let behind = self.behind.get(clock as usize).copied().unwrap_or(0);
        let last = self.told(thread, clock)?.last;
        let mut now = real.saturating_add(behind);
        if now < last.saturating_sub(TOLERANCE_NS) && !REALTIME.contains(&clock) {
            now = last;
            if clock != THREAD {
                self.behind[clock as usize] = now.saturating_sub(real);
            }
        }
        let told = self.told(thread, clock)?;
        if now.abs_diff(told.last.saturating_add(told.step)) <= TOLERANCE_NS as u64 {
            return Ok((told.by_rule(), None));
        }
        let (skipped, difference) = (told.skipped, now.saturating_sub(told.last));
        Ok((told.by_record(difference), Some(Determinant::Time { clock, skipped, difference })))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MONOTONIC: u32 = 1;

    proptest! {
        /// What a thread is told is near the truth, and comes again from the records alone.
        #[test]
        fn records_give_the_readings_again(steps in prop::collection::vec(prop_oneof![20i64..30, 0i64..2_000, Just(1 << 40)], 1..200)) {
            let (mut then, mut again) = (Clocks::new(1), Clocks::new(1));
            let mut real = 5_000_000_000_000;
            let mut records = 0;
            for step in &steps {
                real += step;
                let (told, record) = then.read(0, MONOTONIC, real).unwrap();
                prop_assert!((told - real).abs() <= TOLERANCE_NS, "{told} for {real}");
                let repeated = match record {
                    Some(Determinant::Time { clock: MONOTONIC, skipped, difference }) => {
                        records += 1;
                        prop_assert_eq!(again.rule(0, MONOTONIC).unwrap().0, skipped);
                        again.by_record(0, MONOTONIC, difference)
                    }
                    None => again.by_rule(0, MONOTONIC),
                    Some(other) => panic!("{other:?}"),
                };
                prop_assert_eq!(repeated, Ok(told));
            }
            prop_assert!(records <= steps.len());
        }
    }

    #[test]
    fn a_dense_row_needs_few_records() {
        let mut clocks = Clocks::new(1);
        let records = (0..1_000).filter(|at| clocks.read(0, MONOTONIC, 1_000_000 + at * 25).unwrap().1.is_some()).count();
        assert_eq!(records, 2, "the first reading, and one that shows the step");
    }

    /// The readings after it are told as in the recorded run.
    #[test]
    fn a_reading_that_is_not_made_any_more_leaves_the_others_as_they_were() {
        let (mut then, mut again) = (Clocks::new(1), Clocks::new(1));
        let readings: Vec<_> =
            [5_000, 5_025, 5_050, 5_075, 9_000, 70_000].map(|real| then.read(0, MONOTONIC, real).unwrap()).into();
        let (mut told, mut by_rule) = (Vec::new(), 0);
        for (at, (_, record)) in readings.iter().enumerate() {
            match record {
                // The fourth, which was by the rule, and the fifth are not made.
                _ if at == 3 => by_rule += 1,
                Some(Determinant::Time { skipped, difference, .. }) if at == 4 => {
                    assert_eq!(*skipped, again.rule(0, MONOTONIC).unwrap().0 + by_rule);
                    again.by_missed_record(0, MONOTONIC, *skipped, *difference).unwrap();
                }
                Some(Determinant::Time { difference, .. }) => told.push(again.by_record(0, MONOTONIC, *difference).unwrap()),
                _ => told.push(again.by_rule(0, MONOTONIC).unwrap()),
            }
        }
        let made: Vec<i64> = [0, 1, 2, 5].map(|at: usize| readings[at].0).into();
        assert_eq!(told, made);
    }

    #[test]
    fn after_a_restart_a_clock_goes_on_where_it_was() {
        let mut clocks = Clocks::new(2);
        clocks.begin_thread(1);
        assert_eq!(clocks.read(0, MONOTONIC, 1_000_000).unwrap().0, 1_000_000);
        assert_eq!(clocks.read(0, MONOTONIC, 5_000).unwrap().0, 1_000_000, "it never goes back");
        assert_eq!(clocks.read(0, MONOTONIC, 15_000).unwrap().0, 1_010_000, "and goes on at its speed");
        assert_eq!(clocks.read(1, MONOTONIC, 16_000).unwrap().0, 1_011_000, "for all threads");
        assert_eq!(clocks.read(0, REALTIME[0], 1_000_000).unwrap().0, 1_000_000);
        assert_eq!(clocks.read(0, REALTIME[0], 5_000).unwrap().0, 5_000, "but people may set this one");
        assert_eq!(clocks.read(0, CLOCKS as u32, 1), Err(Error::Full("table of clocks")));
    }
}
