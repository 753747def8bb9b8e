//! With which code the program ends.

use std::sync::atomic::{AtomicI32, Ordering};

/// No code that a process can end with.
const UNKNOWN: i32 = -1;
/// The code, as the system tells it.
static CODE: AtomicI32 = AtomicI32::new(UNKNOWN);

/// The code, once the program ends.
pub fn code() -> Option<i32> {
    Some(CODE.load(Ordering::Relaxed)).filter(|code| *code != UNKNOWN)
}

/// The program ends with this code.
pub fn keep(code: i32) {
    CODE.store(code & 0xff, Ordering::Relaxed);
}

/// It is not known any more how the program ends.
pub fn forget() {
    CODE.store(UNKNOWN, Ordering::Relaxed);
}
