//! Which bytes of a job's output this terminal has printed.
//!
//! The protector counts in the order in which it sent them, and gives what was not reported as printed to the next terminal. But
//! lines are printed in another order than they came. So only a prefix of which every byte is printed is reported, with one
//! exception: an unfinished line must not use up the protector's window while others print, so what stands before more than
//! [`SLACK`] bytes is reported though it is still held back. (It is lost to the next terminal if this one dies just then.)

use std::collections::BTreeMap;

/// See the module; half the window of the protector.
pub(crate) const SLACK: u64 = (radic_wire::limits::OUTPUT_WINDOW / 2) as u64;

/// A part of the output: its first byte in the order of arrival, and its length.
pub(crate) type Range = (u64, u64);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// What the job counts before this terminal's first byte.
    origin: u64,
    received: u64,
    /// Everything below is reported as printed.
    reported: u64,
    /// The part of it that was not asked for yet.
    credit: u64,
    /// What is printed above `reported`: first byte, and the byte behind the last. No two touch.
    printed: BTreeMap<u64, u64>,
    /// Bytes that come a second time.
    repeated: u64,
}

impl Ledger {
    /// Output has come: the part of it that is new, and where that begins.
    pub(crate) fn receive<'a>(&mut self, data: &'a [u8]) -> (u64, &'a [u8]) {
        let again = self.repeated.min(data.len() as u64);
        self.repeated -= again;
        let new = &data[again as usize..];
        let start = self.received;
        self.received += new.len() as u64;
        (start, new)
    }

    /// The job counts `consumed` bytes of its output as printed (or lost) before this terminal's first byte.
    pub(crate) fn handle_attached(&mut self, consumed: u64) {
        self.origin = consumed;
    }

    /// Attached again, through another protector: the job counts `consumed` bytes and sends again what comes after them. What this
    /// terminal has reported and the job never heard of is reported again. The result: bytes lost for want of a terminal.
    pub(crate) fn handle_reattached(&mut self, consumed: u64) -> u64 {
        let position = consumed.saturating_sub(self.origin);
        let lost = position.saturating_sub(self.received);
        self.received += lost;
        self.repeated = self.received - position;
        self.credit = self.reported.saturating_sub(position);
        if position > self.reported {
            // The job gave up some of what this terminal still holds.
            self.reported = position;
            self.printed.retain(|_, end| *end > position);
            if let Some(first) = self.printed.first_entry().filter(|first| *first.key() < position) {
                let end = first.remove();
                self.printed.insert(position, end);
            }
        }
        lost
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
                lengths.iter().map(|n| (ledger.receive(&vec![0; *n as usize]).0, *n)).collect();
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
        let held = ledger.receive(b"prompt").0;
        for _ in 0..SLACK / 1000 {
            let start = ledger.receive(&[0; 1000]).0;
            ledger.handle_printed((start, 1000));
        }
        assert_eq!(ledger.poll_credit(), 0);
        let start = ledger.receive(&[0; 1000]).0;
        ledger.handle_printed((start, 1000));
        assert_eq!(ledger.poll_credit(), start + 1000);
        ledger.handle_printed((held, 6));
        assert_eq!(ledger.poll_credit(), 0, "reported already");
    }

    #[test]
    fn what_comes_again_is_not_printed_again() {
        let mut ledger = Ledger::default();
        ledger.receive(b"abcdef");
        ledger.handle_printed((0, 2));
        assert_eq!(ledger.poll_credit(), 2);
        assert_eq!(ledger.handle_reattached(2), 0);
        assert_eq!(ledger.receive(b"cd"), (6, &b""[..]));
        assert_eq!(ledger.receive(b"efgh"), (6, &b"gh"[..]));
    }

    #[test]
    fn a_report_that_was_lost_with_its_protector_is_made_again() {
        let mut ledger = Ledger::default();
        ledger.handle_attached(100);
        ledger.receive(b"abcdef");
        ledger.handle_printed((0, 4));
        assert_eq!(ledger.poll_credit(), 4);
        // The job has heard of one byte.
        assert_eq!(ledger.handle_reattached(101), 0);
        assert_eq!(ledger.poll_credit(), 3);
        assert_eq!(ledger.receive(b"bcdefgh"), (6, &b"gh"[..]));
        ledger.handle_printed((4, 4));
        assert_eq!(ledger.poll_credit(), 4);
    }

    #[test]
    fn what_was_lost_without_a_terminal_is_counted() {
        let mut ledger = Ledger::default();
        ledger.receive(b"abcdef");
        ledger.handle_printed((3, 3));
        assert_eq!(ledger.handle_reattached(10), 4);
        assert_eq!(ledger.poll_credit(), 0);
        assert_eq!(ledger.receive(b"xy"), (10, &b"xy"[..]));
        ledger.handle_printed((10, 2));
        assert_eq!(ledger.poll_credit(), 2);
    }
}
