//! Places for the times of calls that were interrupted (`interrupted`).

use core::sync::atomic::AtomicI32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sys;

/// Where the time of a call is that was interrupted before. Its address in a register says so at the next interruption.
#[repr(C)]
pub struct Wait {
    /// The thread; 0: none.
    tid: AtomicI32,
    /// CLOCK_MONOTONIC in nanoseconds.
    pub deadline: core::cell::UnsafeCell<u64>,
    /// What is left, as the kernel wants it: seconds and nanoseconds.
    pub left: core::cell::UnsafeCell<[i64; 2]>,
}

/// How many calls with a timeout may be interrupted at once.
pub const WAITS: usize = 1024;
/// Where the time is in a place.
pub const LEFT: u64 = core::mem::offset_of!(Wait, left) as u64;

// SAFETY: a wait is used by the thread that has taken it only, and taken over when its time is up.
unsafe impl Sync for Wait {}

impl Wait {
    /// Takes a place that no thread needs any more.
    pub fn take(&self, me: i32, now: u64) -> bool {
        let owner = self.tid.load(Acquire);
        // SAFETY: a torn or old value only makes us look elsewhere, or take a place whose time is up.
        let over = owner == 0 || owner == me || unsafe { self.deadline.get().read_volatile() } < now;
        over && self.tid.compare_exchange(owner, me, Acquire, Relaxed).is_ok()
    }

    /// Computes what is left: a little, if the time is up, so that the call looks once more.
    pub fn count_down(&self) {
        let now = sys::clock(libc::CLOCK_MONOTONIC);
        // SAFETY: this thread has taken the place.
        unsafe {
            let left = (*self.deadline.get()).saturating_sub(now).max(1);
            *self.left.get() = [(left / 1_000_000_000) as i64, (left % 1_000_000_000) as i64];
        }
        self.tid.store(sys::gettid(), Release);
    }
}
