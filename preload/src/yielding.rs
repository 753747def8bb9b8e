//! `sched_yield` of a process that catches up. It makes few of its program's yields: MPI yields to let peers run, but here the peers wait for this
//! process. Those that are made are for threads of the process that wait for each other; one that is alone needs none.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// One of this many yields is made by a process with several threads.
const OF_SEVERAL: u32 = 16;
/// The same, where one thread alone has made calls: others may be there that have made none yet.
const OF_ONE: u32 = 4096;

/// One of so many is made.
static ONE_OF: AtomicU32 = AtomicU32::new(1);
static ASKED: AtomicU32 = AtomicU32::new(0);

/// From now on the process catches up with its log, by so many threads; or it does not, or not any more.
pub fn set_catching_up(threads: Option<usize>) {
    let one_of = match threads {
        None => 1,
        Some(0 | 1) => OF_ONE,
        Some(_) => OF_SEVERAL,
    };
    ONE_OF.store(one_of, Relaxed);
}

/// Whether the kernel is to be asked.
pub fn is_due() -> bool {
    let one_of = ONE_OF.load(Relaxed);
    one_of == 1 || ASKED.fetch_add(1, Relaxed).is_multiple_of(one_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_catches_up_yields_seldom() {
        let made = |count: u32| (0..count).filter(|_| is_due()).count();
        assert_eq!(made(50), 50, "each is due otherwise");
        set_catching_up(Some(2));
        assert_eq!(made(10 * OF_SEVERAL), 10);
        set_catching_up(Some(1));
        assert_eq!(made(2 * OF_ONE), 2);
        set_catching_up(None);
        assert_eq!(made(50), 50);
    }
}
