//! When a reading of a clock that is next in the log is given up as missed, in a process that catches up.
//!
//! A thread that waits for a lock reads the clock, to wait for a limited time; one that finds the lock free does not. Which
//! threads meet at a lock is in no log, so a process that catches up may not make a reading that its log has next. Its thread
//! may wait for another thread then, and that one for an outcome that comes later in the log. Nothing inside the process ends
//! that. A reading is given up
//!
//! - when the log has stood at it for [`STANDS`], and no thread could go on in all that time: each has asked for its turn since
//!   and waits for it, or waits for another thread or process without a limit of time ([`Standstill`]; what threads do the
//!   driver finds out);
//! - when its thread has found nothing [`PATIENCE`] times more often than then ([`Observer::check_way`]): it goes another way,
//!   and with several threads that may be why.

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

/// How far the process has come: where its log stands, and how much was sent.
type Progress = (u64, u64);

/// That a thread waits for its turn, and how far the process had come when the thread asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the thread's wait ends, too"]
pub struct Asked(Progress);

/// What is known of the process's threads since the process came as far as it is.
#[derive(Debug, Clone, Default)]
pub struct Standstill {
    progress: Progress,
    /// Threads that wait for their turn, and have asked for it since. The turn of another one that waits may have come, and the
    /// kernel is still to let it go on.
    asked: usize,
    /// Since when no thread could go on.
    since: Option<Duration>,
    /// When it is looked next.
    next: Duration,
    /// Time from one look to the next.
    pause: Duration,
}

impl Standstill {
    /// A thread has asked for its turn, and begins to wait for it.
    pub fn handle_wait(&mut self, observer: &Observer, now: Duration) -> Asked {
        self.note(now, (observer.log_position(), observer.journal().sent()));
        self.asked += 1;
        Asked(self.progress)
    }

    /// That thread waits no more.
    ///
    /// # Panics
    /// If it did not wait.
    pub fn handle_wait_over(&mut self, asked: Asked) {
        if asked.0 == self.progress {
            self.asked = self.asked.checked_sub(1).expect("a thread that goes on has waited");
        }
    }

    /// A thread waits for its turn. `is_still`: whether all of the process's threads but so many wait for another thread or
    /// process without a limit of time. Those have asked for their turn in vain. Not asked more often than it must be. Returns
    /// whether the reading that is next in the log was given up.
    pub fn handle_look(
        &mut self,
        observer: &mut Observer,
        now: Duration,
        is_still: impl FnOnce(usize) -> bool,
    ) -> Result<bool, Error> {
        if !observer.is_replaying() || !observer.awaits_reading()? {
            return Ok(false);
        }
        self.note(now, (observer.log_position(), observer.journal().sent()));
        if !self.look(now, is_still) {
            return Ok(false);
        }
        observer.handle_missed_reading()
    }

    /// The process has come so far.
    fn note(&mut self, now: Duration, progress: Progress) {
        if progress != self.progress {
            *self = Standstill { progress, asked: 0, since: None, next: now + LOOK, pause: LOOK };
        }
    }

    /// Whether the process has come no further for long, and no thread can go on, as far as `is_still` says.
    fn look(&mut self, now: Duration, is_still: impl FnOnce(usize) -> bool) -> bool {
        if now < self.next {
            return false;
        }
        let is_still = is_still(self.asked);
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
    use radic_wire::ids::{JobId, ProcessId, Rank};

    use super::*;
    use crate::Config;

    fn observer() -> Observer {
        let process = ProcessId { job: JobId::from_bits(7), rank: Rank(0) };
        Observer::new(process, &Config { connections: 2, descriptors: 16, ..Config::default() })
    }

    #[test]
    fn only_where_nothing_goes_on_for_a_while() {
        let mut standstill = Standstill::default();
        let (mut now, mut looks) = (Duration::from_secs(1), 0);
        let mut run = |progress, still: bool, span: Duration| {
            let until = now + span;
            let mut is_at_one = false;
            while now < until && !is_at_one {
                now += Duration::from_micros(500);
                standstill.note(now, progress);
                is_at_one = standstill.look(now, |_| {
                    looks += 1;
                    still
                });
            }
            (is_at_one, std::mem::take(&mut looks))
        };
        assert_eq!(run((7, 0), true, STANDS), (false, 3));
        assert_eq!(run((8, 0), true, STANDS), (false, 3), "the log has gone on");
        assert_eq!(run((8, 1), true, STANDS), (false, 3), "something was sent");
        let (is_at_one, looks) = run((8, 1), false, Duration::from_secs(60));
        assert!(!is_at_one && looks < 80, "{looks} looks in a minute at threads that run");
        assert_eq!(run((9, 1), true, Duration::from_secs(1)), (true, 5));
    }

    #[test]
    fn one_thread_that_runs_begins_the_time_anew() {
        let (mut standstill, mut now) = (Standstill::default(), Duration::from_secs(1));
        let mut run = |still: bool| {
            now += LATEST;
            standstill.look(now, |_| still)
        };
        assert!(!run(true), "its time begins");
        assert!(!run(false) && !run(true));
        assert!(run(true));
    }

    /// The kernel may let it go on late.
    #[test]
    fn a_thread_that_has_not_asked_since_the_process_went_on_may_go_on() {
        let (observer, mut standstill) = (observer(), Standstill::default());
        let now = Duration::from_secs(1);
        let (first, second) = (standstill.handle_wait(&observer, now), standstill.handle_wait(&observer, now));
        assert_eq!(standstill.asked, 2);
        standstill.handle_wait_over(first);
        assert_eq!(standstill.asked, 1);
        standstill.note(now, (1, 0));
        assert_eq!(standstill.asked, 0, "the turn of the second may have come");
        let third = Asked(standstill.progress);
        standstill.asked += 1;
        standstill.handle_wait_over(second);
        assert_eq!(standstill.asked, 1, "its wait was over when the process went on");
        standstill.handle_wait_over(third);
        assert_eq!(standstill.asked, 0);
    }

    #[test]
    fn a_process_that_lives_gives_up_nothing() {
        let (mut observer, mut standstill) = (observer(), Standstill::default());
        _ = standstill.handle_wait(&observer, Duration::ZERO);
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
        let asked = standstill.handle_wait(&observer(), Duration::ZERO);
        standstill.handle_wait_over(asked);
        standstill.handle_wait_over(asked);
    }
}
