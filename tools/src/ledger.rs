//! Which bytes of a job's output this terminal has printed.
//!
//! The daemon counts in the order in which it sent them, and gives what was not reported as printed to the next terminal. But
//! lines are printed in another order than they came. So only a prefix of which every byte is printed is reported, with one
//! exception: an unfinished line must not use up the daemon's window while others print, so what stands before more than
//! [`SLACK`] bytes is reported though it is still held back. (It is lost to the next terminal if this one dies just then.)

use std::collections::BTreeMap;

/// See the module; half the window of the daemon.
pub(crate) const SLACK: u64 = (radic_wire::limits::OUTPUT_WINDOW / 2) as u64;

/// A part of the output: its first byte in the order of arrival, and its length.
pub(crate) type Range = (u64, u64);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Bytes that came, from whichever daemon.
    received: u64,
    /// Everything below is reported as printed.
    reported: u64,
    /// The part of it that was not asked for yet.
    credit: u64,
    /// What is printed above `reported`: first byte, and the byte behind the last. No two touch.
    printed: BTreeMap<u64, u64>,
}

impl Ledger {
    /// Output has come: `known` bytes that came before, through another daemon, and `new` ones. Where the new ones begin.
    pub(crate) fn receive(&mut self, known: u64, new: u64) -> u64 {
        let start = self.received;
        self.received += known + new;
        if known > 0 {
            self.handle_printed((start, known));
        }
        start + known
    }

    /// Attached again, through another daemon: the job sends again what it never heard to be printed, and the count begins behind what came. What this
    /// terminal has and has not printed yet counts as printed when it comes again.
    pub(crate) fn handle_reattached(&mut self) {
        (self.reported, self.credit) = (self.received, 0);
        self.printed.clear();
    }

    /// A part was printed.
    pub(crate) fn handle_printed(&mut self, (start, length): Range) {
        let end = start + length;
        assert!(end <= self.received, "bytes up to {end} were printed, of {} received", self.received);
        // What was reported ahead of its printing is of no interest any more.
        if end > self.reported {
            self.insert(start.max(self.reported), end);
            self.advance();
        }
    }

    /// How many bytes to report as printed, once.
    pub(crate) fn poll_credit(&mut self) -> u64 {
        std::mem::take(&mut self.credit)
    }

    fn insert(&mut self, mut start: u64, mut end: u64) {
        if let Some((&before, _)) = self.printed.range(..start).next_back().filter(|(_, e)| **e == start) {
            self.printed.remove(&before);
            start = before;
        }
        if let Some(after) = self.printed.remove(&end) {
            end = after;
        }
        self.printed.insert(start, end);
    }

    fn advance(&mut self) {
        while let Some(first) = self.printed.first_entry() {
            if *first.key() != self.reported && self.received - self.reported <= SLACK {
                break;
            }
            let end = first.remove();
            self.credit += end - self.reported;
            self.reported = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_prefix_that_is_printed_is_reported(
            lengths in prop::collection::vec(1u64..50, 1..50),
            order in prop::collection::vec(any::<prop::sample::Index>(), 50),
        ) {
            let mut ledger = Ledger::default();
            let mut parts: Vec<Range> =
                lengths.iter().map(|n| (ledger.receive(0, *n), *n)).collect();
            let mut printed = vec![false; lengths.iter().sum::<u64>() as usize];
            let mut reported = 0;
            for index in order {
                if parts.is_empty() {
                    break;
                }
                let part = parts.swap_remove(index.index(parts.len()));
                ledger.handle_printed(part);
                printed[part.0 as usize..(part.0 + part.1) as usize].fill(true);
                reported += ledger.poll_credit();
                prop_assert_eq!(reported as usize, printed.iter().take_while(|p| **p).count());
            }
        }
    }

    #[test]
    fn a_line_that_is_held_back_does_not_use_up_the_window() {
        let mut ledger = Ledger::default();
        let held = ledger.receive(0, 6);
        for _ in 0..SLACK / 1000 {
            let start = ledger.receive(0, 1000);
            ledger.handle_printed((start, 1000));
        }
        assert_eq!(ledger.poll_credit(), 0);
        let start = ledger.receive(0, 1000);
        ledger.handle_printed((start, 1000));
        assert_eq!(ledger.poll_credit(), start + 1000);
        ledger.handle_printed((held, 6));
        assert_eq!(ledger.poll_credit(), 0, "reported already");
    }

    #[test]
    fn what_comes_again_is_reported_again() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.receive(0, 6), 0);
        ledger.handle_printed((0, 2));
        assert_eq!(ledger.poll_credit(), 2);
        ledger.handle_reattached();
        // The job did not hear of the second of them, and sends five bytes, of which the last is new.
        assert_eq!(ledger.receive(4, 1), 10);
        assert_eq!(ledger.poll_credit(), 4);
        ledger.handle_printed((2, 4));
        assert_eq!(ledger.poll_credit(), 0, "printed now, reported already");
        ledger.handle_printed((10, 1));
        assert_eq!(ledger.poll_credit(), 1);
    }
}
