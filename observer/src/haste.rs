//! When the outcomes of receiving calls are shipped: at once, or with what leaves next.
//!
//! A process that computes between receive and send ships its journal at once, so that it travels meanwhile. A process that
//! answers at once waits at the gate either way; shipping early costs it a system call, a wake-up and an acknowledgement more.
//! Which of them a process is shows at the gate, and changes with what it does.

use std::time::Duration;

/// Gates in a row that speak for the other way before it is taken.
const IN_VAIN: u32 = 4;
/// Time between an outcome and the gate that shipping at once would have used, for one that was not shipped.
const LONG: Duration = Duration::from_micros(100);
/// Time until the journal is shipped where nothing waits for it, if there is enough of it ([`WORTH`]): what others keep of it meanwhile goes with each message.
const LAZY: Duration = Duration::from_millis(1);
/// The same if there is less.
const LAZIEST: Duration = Duration::from_millis(20);
/// Bytes of journal that are shipped at once in any case: a process that only receives comes to no gate.
const MUCH: usize = 1 << 10;

/// The same where nothing waits for it: each time the log service takes a processor from a rank, for about as long as a short message takes there and back.
const MUCH_LAZILY: usize = 8 << 10;
/// Bytes for which it is worth that.
const WORTH: usize = 1 << 10;

/// How outcomes are shipped now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// At once. This many were since the last gate.
    AtOnce(u32),
    /// With what leaves next. When the first one since the last gate was recorded.
    Later(Option<Duration>),
    /// Nothing waits for it: some time after the first that was not shipped was recorded.
    Lazily(Option<Duration>),
}

/// See the module's text.
#[derive(Debug, Clone)]
pub struct Haste {
    way: Way,
    in_vain: u32,
}

impl Default for Haste {
    fn default() -> Haste {
        Haste { way: Way::AtOnce(0), in_vain: 0 }
    }
}

impl Haste {
    /// Of a process that waits for nothing before it sends.
    pub fn lazy() -> Haste {
        Haste { way: Way::Lazily(None), in_vain: 0 }
    }

    /// The journal was shipped.
    pub fn handle_shipped(&mut self) {
        if let Way::Lazily(since) = &mut self.way {
            *since = None;
        }
    }

    /// The process waits, and this many bytes of journal are not shipped. True: they are to be, now.
    pub fn handle_nothing(&mut self, now: impl FnOnce() -> Duration, unshipped: usize) -> bool {
        unshipped > 0 && (!matches!(self.way, Way::Lazily(_)) || self.handle_outcome(now, unshipped))
    }

    /// A receiving call has had an outcome; this many bytes of journal are not shipped. True: they are to be, now.
    pub fn handle_outcome(&mut self, now: impl FnOnce() -> Duration, unshipped: usize) -> bool {
        match &mut self.way {
            Way::AtOnce(count) => {
                *count += 1;
                true
            }
            Way::Later(since) => {
                since.get_or_insert_with(now);
                unshipped >= MUCH
            }
            Way::Lazily(since) => {
                let now = now();
                let limit = if unshipped < WORTH { LAZIEST } else { LAZY };
                unshipped >= MUCH_LAZILY || now >= *since.get_or_insert(now) + limit
            }
        }
    }

    /// Something is to leave. `is_shut`: it has to wait. `is_behind`: for journal that is not shipped yet.
    pub fn handle_gate(&mut self, now: impl FnOnce() -> Duration, is_shut: bool, is_behind: bool) {
        let speaks_against = match self.way {
            Way::AtOnce(0) | Way::Later(None) | Way::Lazily(_) => return,
            Way::AtOnce(count) => is_shut && (is_behind || count > 1),
            Way::Later(Some(since)) => now() >= since + LONG,
        };
        self.in_vain = if speaks_against { self.in_vain + 1 } else { 0 };
        let changes = self.in_vain == IN_VAIN;
        self.in_vain %= IN_VAIN;
        let is_at_once = matches!(self.way, Way::AtOnce(_));
        self.way = if is_at_once != changes { Way::AtOnce(0) } else { Way::Later(None) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An outcome, `pause` later the gate. Whether it was shipped at once.
    fn round(haste: &mut Haste, outcomes: u32, pause: Duration, is_shut: bool, is_behind: bool) -> bool {
        let begin = Duration::from_secs(1);
        let shipped = (0..outcomes).filter(|_| haste.handle_outcome(|| begin, 20)).count();
        haste.handle_gate(|| begin + pause, is_shut, is_behind);
        shipped == outcomes as usize
    }

    #[test]
    fn a_process_that_answers_at_once_ships_with_the_answer() {
        let mut haste = Haste::default();
        let behind: Vec<bool> = (0..6).map(|_| round(&mut haste, 1, Duration::ZERO, true, true)).collect();
        assert_eq!(behind, [true, true, true, true, false, false], "it records something else before it answers");
        let mut haste = Haste::default();
        let several: Vec<bool> = (0..6).map(|_| round(&mut haste, 6, Duration::ZERO, true, false)).collect();
        assert_eq!(several, [true, true, true, true, false, false], "it receives several messages first");
        let mut haste = Haste::default();
        assert!((0..20).all(|_| round(&mut haste, 1, Duration::ZERO, true, false)), "nothing is saved: one ship is needed");
    }

    #[test]
    fn a_process_that_computes_ships_at_once() {
        let mut haste = Haste::default();
        assert!((0..20).all(|_| round(&mut haste, 6, LONG, false, false)));
        (0..4).for_each(|_| _ = round(&mut haste, 6, Duration::ZERO, true, true));
        let again: Vec<bool> = (0..6).map(|_| round(&mut haste, 6, LONG, true, true)).collect();
        assert_eq!(again, [false, false, false, false, true, true]);
        // Gates without an outcome before say nothing.
        (0..9).for_each(|_| haste.handle_gate(|| LONG, true, true));
        assert!(round(&mut haste, 1, LONG, false, false));
    }

    #[test]
    fn a_process_that_only_receives_ships_when_it_is_much() {
        let mut haste = Haste::default();
        (0..4).for_each(|_| _ = round(&mut haste, 2, Duration::ZERO, true, true));
        assert!(!haste.handle_outcome(|| LONG, MUCH - 1) && haste.handle_outcome(|| LONG, MUCH));
    }

    /// Where nothing waits for it the journal is shipped a while after the first outcome that was not, or when there is much.
    #[test]
    fn what_nothing_waits_for_is_shipped_after_a_while() {
        let mut haste = Haste::lazy();
        let begin = Duration::from_secs(1);
        assert!(!haste.handle_nothing(|| begin, 0), "there is nothing");
        assert!(!haste.handle_outcome(|| begin, 20) && !haste.handle_outcome(|| begin + LAZY / 2, WORTH));
        assert!(haste.handle_outcome(|| begin + LAZY, WORTH) && haste.handle_nothing(|| begin + LAZY, WORTH));
        assert!(!haste.handle_outcome(|| begin + LAZY, WORTH - 1) && haste.handle_outcome(|| begin + LAZIEST, 20));
        haste.handle_shipped();
        assert!(!haste.handle_outcome(|| begin + LAZIEST, WORTH), "it begins again");
        assert!(haste.handle_outcome(|| begin + LAZIEST, MUCH_LAZILY));
    }

    #[test]
    fn a_process_that_waits_ships_what_is_left() {
        let begin = Duration::from_secs(1);
        let mut haste = Haste::lazy();
        assert!(!haste.handle_nothing(|| begin, 20) && haste.handle_nothing(|| begin + LAZIEST, 20));
        let mut haste = Haste::default();
        assert!(haste.handle_nothing(|| begin, 20) && !haste.handle_nothing(|| begin, 0));
    }
}
