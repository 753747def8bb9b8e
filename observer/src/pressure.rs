//! When the next recovery line is asked for, because the outbox fills and the line frees some of it.
//!
//! Too early costs images that would not have been needed yet, too late makes sends wait. The first line is asked for when an
//! eighth is in use: it takes longest, for files and memory are new. What was sent while a line was made, and what could not be
//! because sends waited for it, shows how much room the next one needs: half as much again, for no two lines take the same time,
//! and not much less than the line before.
//!
//! Where the outbox fills within a second or two the processors are what the job waits for. Then a line that is made beside the
//! sends costs more than the wait for it: with lines asked for at a half, windows of 16 messages of 4 MiB took twice as long as
//! with the last sixteenth (docs/performance.md). So the room is at most the part of the outbox that the time to fill it is of
//! ten seconds.

use std::time::Duration;

/// The least that the room of a line may be limited to, as a part of the outbox.
const LEAST: usize = 32;
/// A smaller part of the outbox does not show how fast it fills.
const TELLS: usize = 16;
/// A smaller part of it is no sign that a line has freed some. A line that is made quickly frees little more than was sent before it.
const FREED: usize = 2048;
/// Of an outbox that takes so long to fill, all but a quarter may be left when a line is asked for.
const SLOW: Duration = Duration::from_secs(10);
/// A wait for a line that is no reason to ask for the next one earlier.
const TOLERATED: Duration = Duration::from_millis(40);
/// Time until the node is told again.
const AGAIN: Duration = Duration::from_millis(50);

/// The outbox, after bytes were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// Bytes that are in use.
    pub used: usize,
    /// Bytes that the stream of the connection could take more.
    pub left: usize,
    /// Bytes of the whole outbox.
    pub capacity: usize,
}

/// From one line that freed room to the next one.
#[derive(Debug, Clone, Copy)]
struct Cycle {
    since: Duration,
    /// What was in use at its beginning.
    used: usize,
    asked: Option<Asked>,
}

/// A line was asked for.
#[derive(Debug, Clone, Copy)]
struct Asked {
    /// What was left then.
    at: usize,
    /// The least that was left since.
    least: usize,
}

/// See the module's text.
#[derive(Debug, Clone, Default)]
pub struct Pressure {
    cycle: Option<Cycle>,
    /// What was in use at the last look.
    used: usize,
    /// What is to be left when the next line is asked for; none: no line has shown it.
    reserve: Option<usize>,
    /// Bytes that were sent in a second, in the last cycle that was long enough to tell; none: none was.
    rate: Option<f64>,
    /// The longest wait for room in this cycle.
    waited: Duration,
    again: Duration,
}

impl Pressure {
    /// A send has waited for room.
    pub fn handle_waited(&mut self, waited: Duration) {
        self.waited = self.waited.max(waited);
    }

    /// Bytes were sent. True: a recovery line is to be asked for, now.
    pub fn handle_sent(&mut self, now: impl Fn() -> Duration, level: Level) -> bool {
        let has_freed = level.used + level.capacity / FREED < self.used;
        if has_freed {
            self.end_cycle(level.capacity);
        }
        self.used = level.used;
        let cycle = self.cycle.get_or_insert_with(|| Cycle { since: now(), used: level.used, asked: None });
        if let Some(asked) = &mut cycle.asked {
            asked.least = asked.least.min(level.left);
        }
        if level.left > self.reserve.unwrap_or(level.capacity / 4 * 3) {
            return false;
        }
        let now = now();
        if cycle.asked.is_none() {
            cycle.asked = Some(Asked { at: level.left, least: level.left });
            let (sent, time) = (level.used.saturating_sub(cycle.used), now.saturating_sub(cycle.since));
            if sent >= level.capacity / TELLS && !time.is_zero() {
                self.rate = Some(sent as f64 / time.as_secs_f64());
            }
        }
        let is_due = now >= self.again;
        if is_due {
            self.again = now + AGAIN;
        }
        is_due
    }

    /// A line has freed room: how much the next one needs.
    fn end_cycle(&mut self, capacity: usize) {
        let waited = std::mem::take(&mut self.waited).saturating_sub(TOLERATED);
        let Some(Asked { at, least }) = self.cycle.take().and_then(|cycle| cycle.asked) else { return };
        let capacity = capacity as f64;
        let lacking = self.rate.map_or(0.0, |rate| rate * waited.as_secs_f64());
        let part = self.rate.map_or(f64::INFINITY, |rate| capacity / rate / SLOW.as_secs_f64());
        let most = capacity * part.clamp(1.0 / LEAST as f64, 0.75);
        let needed = ((at - least) as f64 + lacking) * 1.5;
        let before = self.reserve.map_or(0, |reserve| reserve - reserve / 8);
        self.reserve = Some((needed as usize).max(before).min(most as usize));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: usize = 1 << 30;
    const STEP: Duration = Duration::from_millis(2);

    /// A job with one stream, of this many bytes in a second, whose lines take so long.
    struct Job {
        pressure: Pressure,
        now: Duration,
        used: usize,
        rate: usize,
        line: Duration,
    }

    impl Job {
        fn new(rate: usize, line: Duration) -> Self {
            Job { pressure: Pressure::default(), now: Duration::ZERO, used: 0, rate, line }
        }

        fn send(&mut self) -> bool {
            let left = CAPACITY - self.used;
            let now = self.now;
            self.pressure.handle_sent(|| now, Level { used: self.used, left, capacity: CAPACITY })
        }

        /// Sends until a line is asked for, and on while it is made. Returns what was in use when it was asked for, and the longest wait.
        fn cycle(&mut self) -> (usize, Duration) {
            let step = (self.rate as f64 * STEP.as_secs_f64()) as usize;
            while !self.send() {
                (self.used, self.now) = (self.used + step, self.now + STEP);
            }
            let (asked, until, mut sent, mut full) = (self.used, self.now + self.line, 0, None);
            while self.now < until {
                if self.used + step <= CAPACITY {
                    (self.used, sent) = (self.used + step, sent + step);
                    self.send();
                } else {
                    full.get_or_insert(self.now);
                }
                self.now += STEP;
            }
            let waited = full.map_or(Duration::ZERO, |full| self.now - full);
            self.pressure.handle_waited(waited);
            self.used = sent;
            (asked, waited)
        }
    }

    #[test]
    fn a_slow_sender_does_not_wait_for_lines() {
        let mut job = Job::new(200_000_000, Duration::from_millis(1_500));
        for cycle in 0..10 {
            assert_eq!(job.cycle().1, Duration::ZERO, "{cycle}");
        }
        // Longer lines make it wait once, and then a little.
        job.line = Duration::from_millis(2_200);
        let waits: Vec<Duration> = (0..6).map(|_| job.cycle().1).collect();
        assert!(waits[1..].iter().all(|waited| *waited <= TOLERATED + STEP), "{waits:?}");
    }

    /// The outbox is looked at from an eighth on, and the first line is asked for there: what is in use at the next look is as much.
    #[test]
    fn a_line_that_frees_little_more_than_is_sent_meanwhile_is_noticed() {
        let mut pressure = Pressure::default();
        let (first, sent) = (CAPACITY / 4, CAPACITY / 40);
        let look = |pressure: &mut Pressure, ms: u64, used: usize| {
            pressure.handle_sent(|| Duration::from_millis(ms), Level { used, left: CAPACITY - used, capacity: CAPACITY })
        };
        assert!(look(&mut pressure, 1_000, first) && look(&mut pressure, 1_500, first + sent));
        assert!(!look(&mut pressure, 3_000, first), "the line has come, and there is room for the next one");
    }

    #[test]
    fn a_line_that_is_made_in_no_time_is_asked_for_late() {
        let mut job = Job::new(200_000_000, Duration::from_millis(10));
        let asked: Vec<usize> = (0..40).map(|_| job.cycle().0).collect();
        assert_eq!(asked[0] / (CAPACITY / 100), 25);
        assert!(asked[30..].iter().all(|asked| *asked > CAPACITY * 98 / 100), "{asked:?}");
    }

    #[test]
    fn a_job_that_fills_the_outbox_at_once_waits_for_a_part_of_each_line() {
        let mut job = Job::new(5_000_000_000, Duration::from_millis(160));
        let cycles: Vec<_> = (0..6).map(|_| job.cycle()).collect();
        for (asked, waited) in &cycles[1..] {
            assert!(*asked >= CAPACITY * 30 / 32 && *waited > TOLERATED, "{cycles:?}");
        }
    }

    #[test]
    fn the_node_is_told_again_after_a_while() {
        let mut pressure = Pressure::default();
        let level = Level { used: 950, left: 50, capacity: 1_000 };
        let told = [0, 10, 49, 50, 60].map(|ms| pressure.handle_sent(|| Duration::from_millis(1_000 + ms), level));
        assert_eq!(told, [true, false, false, true, false]);
    }
}
