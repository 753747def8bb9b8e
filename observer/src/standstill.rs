//! When a reading of a clock that is next in the log is given up as missed, in a process that catches up.
//!
//! A thread that waits for a lock reads the clock, to wait for a limited time; one that finds the lock free does not. Which threads meet at a lock is in no log, so a process that
//! catches up may not make a reading that its log has next. Its thread may wait for another thread then, and that one for an outcome that comes later in the log. Nothing inside the
//! process ends that. A reading is given up
//!
//! - when the log has stood at it for [`STANDS`], and no thread could go on in all that time: each waits for its turn, or for another thread or process without a limit of time
//!   ([`Standstill`]; what threads do the driver finds out);
//! - when its thread has found nothing [`PATIENCE`] times more often than then ([`Observer::check_way`]): it goes another way, and with several threads that may be why.

use std::time::Duration;

use crate::replay::Overdue;
use crate::{Error, Observer};

/// So long nothing has gone on.
pub const STANDS: Duration = Duration::from_millis(20);
/// Time until the next look: at first, and after threads were often found to run.
const LOOK: Duration = Duration::from_millis(5);
const LATEST: Duration = Duration::from_secs(1);
/// Calls that find nothing, beyond those of the recorded run, before a program goes another way.
pub const PATIENCE: u64 = 1_000_000;

/// What is known of the process's threads since its log went on last.
#[derive(Debug, Clone, Default)]
pub struct Standstill {
    /// Threads that wait for their turn.
    waiting: usize,
    /// Where the log stood.
    position: u64,
    /// Since when no thread could go on.
    since: Option<Duration>,
    /// When it is looked next.
    next: Duration,
    /// Time from one look to the next.
    pause: Duration,
}

impl Standstill {
    /// A thread begins to wait for its turn.
    pub fn handle_wait(&mut self) {
        self.waiting += 1;
    }

    /// It waits no more.
    ///
    /// # Panics
    /// If no thread waits.
    pub fn handle_wait_over(&mut self) {
        self.waiting = self.waiting.checked_sub(1).expect("a thread that goes on has waited");
    }

    /// A thread waits for its turn. `is_still`: whether all of the process's threads but so many, which wait for their turn, wait for another thread or process without a limit of
    /// time. Not asked more often than it must be. Returns whether the reading that is next in the log was given up.
    pub fn handle_look(
        &mut self,
        observer: &mut Observer,
        now: Duration,
        is_still: impl FnOnce(usize) -> bool,
    ) -> Result<bool, Error> {
        if !observer.is_replaying() || !observer.awaits_reading()? {
            return Ok(false);
        }
        let waiting = self.waiting;
        if !self.look(now, observer.log_position(), || is_still(waiting)) {
            return Ok(false);
        }
        observer.handle_missed_reading()
    }

    /// The log stands at `position`. Whether it has stood there for long, and no thread can go on, as far as `is_still` says.
    fn look(&mut self, now: Duration, position: u64, is_still: impl FnOnce() -> bool) -> bool {
        if position != self.position {
            *self = Standstill { position, since: None, next: now + LOOK, pause: LOOK, ..*self };
        }
        if now < self.next {
            return false;
        }
        let is_still = is_still();
        self.pause = if is_still { LOOK } else { (self.pause * 2).clamp(LOOK, LATEST) };
        self.next = now + self.pause;
        self.since = is_still.then(|| self.since.unwrap_or(now));
        self.since.is_some_and(|since| now - since >= STANDS)
    }
}

impl Observer {
    /// The program has found nothing. In replay: what the next outcome waits for, if the program goes another way.
    pub fn check_way(&mut self) -> Result<Option<Overdue>, Error> {
        let Some(overdue) = self.overdue(PATIENCE) else { return Ok(None) };
        let is_passed = self.journal().threads() > 1 && self.handle_missed_reading()?;
        Ok((!is_passed).then_some(overdue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_nothing_goes_on_for_a_while() {
        let mut standstill = Standstill::default();
        let (mut now, mut looks) = (Duration::from_secs(1), 0);
        let mut run = |position, still: bool, span: Duration| {
            let until = now + span;
            let mut is_at_one = false;
            while now < until && !is_at_one {
                now += Duration::from_micros(500);
                is_at_one = standstill.look(now, position, || {
                    looks += 1;
                    still
                });
            }
            (is_at_one, std::mem::take(&mut looks))
        };
        assert_eq!(run(7, true, STANDS), (false, 3));
        assert_eq!(run(8, true, STANDS), (false, 3), "the log has gone on");
        let (is_at_one, looks) = run(8, false, Duration::from_secs(60));
        assert!(!is_at_one && looks < 80, "{looks} looks in a minute at threads that run");
        assert_eq!(run(9, true, Duration::from_secs(1)), (true, 5));
    }

    #[test]
    fn one_thread_that_runs_begins_the_time_anew() {
        let (mut standstill, mut now) = (Standstill::default(), Duration::from_secs(1));
        let mut run = |still: bool| {
            now += LATEST;
            standstill.look(now, 7, || still)
        };
        assert!(!run(true) && !run(true), "the first finds another position, the second begins the time");
        assert!(!run(false) && !run(true));
        assert!(run(true));
    }

    #[test]
    fn a_process_that_lives_gives_up_nothing() {
        let mut observer = Observer::new(
            radic_wire::ids::ProcessId { job: radic_wire::ids::JobId::from_bits(7), rank: radic_wire::ids::Rank(0) },
            &crate::Config { connections: 2, descriptors: 16, ..crate::Config::default() },
        );
        let mut standstill = Standstill::default();
        standstill.handle_wait();
        for second in 0..9 {
            let looked = standstill.handle_look(&mut observer, Duration::from_secs(second), |_| panic!("nobody is looked at"));
            assert_eq!(looked, Ok(false));
        }
        assert_eq!(observer.check_way(), Ok(None));
    }

    #[test]
    #[should_panic(expected = "a thread that goes on has waited")]
    fn no_more_threads_go_on_than_have_waited() {
        let mut standstill = Standstill::default();
        standstill.handle_wait();
        standstill.handle_wait_over();
        standstill.handle_wait_over();
    }
}
