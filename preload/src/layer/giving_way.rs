//! Giving way to the work that this process waits for. MPI libraries poll and yield while they wait, and take most of a processor
//! from whatever else is to run there. While an image of this process is on its way, its outbox is full, or a peer is lost, that
//! is what the job waits for: log services, the copy that writes the image, the peer that comes back. A process that polls in
//! vain then, many times in a row and without computing in between, sleeps for a moment in the poll; what it polls for ends the
//! sleep.

use super::Layer;
use crate::sys;

/// Polls in vain, in a row, before the first sleep. A message that comes at once is not slept for.
const IN_A_ROW: u32 = 64;
/// More time of the processor than that between two polls is spent on something else, in nanoseconds.
const COMPUTES_NS: u64 = 30_000;

/// The polls in vain of a process.
#[derive(Debug, Default)]
pub struct Vain {
    in_a_row: u32,
    /// The time that the thread had used at the last one, in nanoseconds.
    used: u64,
}

impl Vain {
    /// A poll has found something, or something was sent.
    pub fn handle_something(&mut self) {
        self.in_a_row = 0;
    }

    /// A poll has found nothing, in a thread that has used so much time of a processor. Whether it is to sleep.
    fn handle_nothing(&mut self, used: u64) -> bool {
        let between = used.abs_diff(self.used);
        self.used = used;
        self.in_a_row = if between > COMPUTES_NS { 0 } else { self.in_a_row.saturating_add(1) };
        self.in_a_row >= IN_A_ROW
    }
}

impl Layer {
    /// A poll that does not wait has found nothing. Whether it is to wait for a moment all the same.
    #[inline]
    pub fn gives_way(&mut self) -> bool {
        let is_awaited = self.full.is_some() || self.images.machine.under_way().is_some() || self.links.is_any_down();
        is_awaited && !self.observer.is_replaying() && self.vain.handle_nothing(sys::time_of_thread())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_thread_that_does_nothing_else_sleeps() {
        let mut vain = Vain::default();
        let mut used = 1_000_000;
        let mut poll = |vain: &mut Vain, computed: u64| {
            used += computed;
            vain.handle_nothing(used)
        };
        assert!(!(0..1_000).any(|_| poll(&mut vain, COMPUTES_NS + 1)));
        assert_eq!((0..1_000).filter(|_| poll(&mut vain, 1_000)).count(), 1_001 - IN_A_ROW as usize);
        vain.handle_something();
        assert!(!(1..IN_A_ROW).any(|_| poll(&mut vain, 1_000)));
        assert!(poll(&mut vain, 1_000));
    }
}
