//! A signal of the program on its way to a thread (`signals`).

use core::cell::UnsafeCell;
use core::sync::atomic::AtomicI32;

/// A signal on its way to a thread.
#[repr(C)]
pub struct Handed {
    /// The thread; 0: free.
    pub tid: AtomicI32,
    /// Its siginfo.
    pub info: UnsafeCell<[u64; 16]>,
}

// SAFETY: filled in by the coordinator while all other threads wait, emptied by the thread it names.
unsafe impl Sync for Handed {}

/// Signals that can be handed out at one stop; others stay where they are.
pub const MAX_HANDED: usize = 128;
