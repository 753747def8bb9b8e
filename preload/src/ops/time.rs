//! Readings of clocks: what a program is told of the time is an outcome, for it may choose by that what it does next.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use radic_observer::Reading;

use super::waiting::take_turns;
use crate::ending::sure;
use crate::layer;

/// Whether readings are recorded: off until the process has joined a job that wants it.
static RECORDS: AtomicBool = AtomicBool::new(false);

/// From now on readings are recorded, or not.
pub fn record(records: bool) {
    RECORDS.store(records, Relaxed);
}

/// Whether readings are recorded.
pub fn is_recorded() -> bool {
    RECORDS.load(Relaxed)
}

/// What the program is told of a clock that says `real`, in nanoseconds. None: nothing of ours, or the clock cannot be read; the call passes through.
pub fn read(clock: u32, real: impl Fn() -> Option<i64>) -> Option<i64> {
    let mut layer = layer::enter()?;
    let thread = layer.thread();
    loop {
        match sure(layer.observer.clock(thread, clock)) {
            Reading::Live => {
                let real = real()?;
                return Some(sure(layer.observer.handle_clock(thread, clock, real)));
            }
            Reading::Again(told) => return Some(told),
            Reading::Wait(other) => layer = take_turns(layer, other).ok()?,
        }
    }
}
