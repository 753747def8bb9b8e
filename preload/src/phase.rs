//! How far the process is, as its calls see it: whether they are watched at all.

use std::sync::atomic::{AtomicU8, Ordering};

/// How far the process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Every call passes through: this process is not protected, or is a child of one that is.
    Off,
    /// Calls are watched.
    Active,
    /// The process is at its end, and all of it is safe. The kernel ends its threads in a moment.
    Left,
}

static PHASE: AtomicU8 = AtomicU8::new(Phase::Off as u8);

/// Whether calls are watched at all.
pub(crate) fn is_active() -> bool {
    PHASE.load(Ordering::Relaxed) == Phase::Active as u8
}

/// Whether the process is at its end.
pub(crate) fn has_left() -> bool {
    PHASE.load(Ordering::Acquire) == Phase::Left as u8
}

/// The process is so far from now on.
pub(crate) fn set(phase: Phase) {
    PHASE.store(phase as u8, Ordering::Release);
}

/// Lets every call pass through from now on: this is a child, or the process ends at once.
pub(crate) fn switch_off() {
    set(Phase::Off);
}
