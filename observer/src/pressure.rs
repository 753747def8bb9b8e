//! When the next recovery line is asked for, because the outbox fills and the line frees some of it.
//!
//! Too early costs images that would not have been needed yet, too late makes sends wait. How much is sent while a line is made shows at each line: the next one is asked for when the
//! room that is left is some more than that, and a small part of the outbox at most. Where processors are few a line costs more than the wait for it: asking at a half of the outbox made
//! windows of 16 messages of 4 MiB take twice as long as asking at the last sixteenth (docs/performance.md).

use std::time::Duration;

/// The most that is left when a line is asked for: a part of the outbox.
const MOST: usize = 16;
/// Time until the node is told again.
const AGAIN: Duration = Duration::from_millis(50);

/// See the module's text.
#[derive(Debug, Clone, Default)]
pub struct Pressure {
    /// What was left when a line was asked for, and the least that was left since; none: no line that was asked for is awaited.
    asked: Option<(usize, usize)>,
    /// What was sent while the last line was made; none: none was.
    taken: Option<usize>,
    again: Duration,
}

impl Pressure {
    /// Bytes were sent; of `capacity` the stream that they belong to could take `left` more. True: a recovery line is to be asked for, now.
    pub fn handle_sent(&mut self, now: impl FnOnce() -> Duration, left: usize, capacity: usize) -> bool {
        if let Some((at, least)) = &mut self.asked {
            *least = left.min(*least);
            if left > *at {
                self.taken = Some(*at - *least);
                self.asked = None;
            }
        }
        let most = capacity / MOST;
        let reserve = self.taken.map_or(most, |taken| (taken + taken / 4).min(most));
        if left > reserve {
            return false;
        }
        self.asked.get_or_insert((left, left));
        let now = now();
        let is_due = now >= self.again;
        if is_due {
            self.again = now + AGAIN;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends until a line is asked for, and on until so much more was sent; then the line frees all but that. Returns what was left when it was asked for.
    fn cycle(pressure: &mut Pressure, left: &mut usize, now: &mut Duration, meanwhile: usize) -> usize {
        while !pressure.handle_sent(|| *now, *left, 1_000) {
            *left -= 10;
            *now += AGAIN;
        }
        let asked = *left;
        for _ in 0..meanwhile / 10 {
            *left = left.saturating_sub(10);
            pressure.handle_sent(|| *now, *left, 1_000);
        }
        *left = 1_000 - meanwhile;
        asked
    }

    #[test]
    fn the_next_line_is_asked_for_in_time_for_what_the_last_one_took() {
        let (mut pressure, mut left, mut now) = (Pressure::default(), 1_000, Duration::ZERO);
        let asked = [60, 30, 30].map(|meanwhile| cycle(&mut pressure, &mut left, &mut now, meanwhile));
        assert_eq!(asked, [60, 60, 30], "a sixteenth at most, and else a quarter more than the last line took");
    }

    #[test]
    fn the_node_is_told_again_after_a_while() {
        let mut pressure = Pressure::default();
        let told = [0, 10, 49, 50, 60].map(|ms| pressure.handle_sent(|| Duration::from_millis(1_000 + ms), 50, 1_000));
        assert_eq!(told, [true, false, false, true, false]);
    }
}
