//! `sched_yield` of a process that catches up. It makes one in `REAL` of its program's yields: MPI yields to let peers run, but
//! here the peers wait for this process. The one is made because a thread may wait for another one.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// One of this many yields is made.
const REAL: u32 = 16;

/// Its log has outcomes that it has not come to.
static CATCHES_UP: AtomicBool = AtomicBool::new(false);
static MADE: AtomicU32 = AtomicU32::new(0);

/// Whether the process catches up with its log, from now on.
pub fn set_catching_up(whether: bool) {
    CATCHES_UP.store(whether, Relaxed);
}

/// Whether the kernel is to be asked.
pub fn is_due() -> bool {
    !CATCHES_UP.load(Relaxed) || MADE.fetch_add(1, Relaxed).is_multiple_of(REAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_catches_up_yields_seldom() {
        assert!((0..REAL).all(|_| is_due()), "each is due otherwise");
        set_catching_up(true);
        assert_eq!((0..10 * REAL).filter(|_| is_due()).count(), 10);
        set_catching_up(false);
        assert!(is_due());
    }
}
