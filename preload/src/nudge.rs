//! Nudges of the checkpoint engine that found something held. The thread that lets go of it nudges again, unless it is inside the layer: there the
//! nudge waits until the thread leaves. So each lock comes by here when it is freed ([`make_up`]).

use std::sync::atomic::{AtomicBool, Ordering, fence};

use crate::here;

/// A nudge has found something held that it needs: the thread that lets go of it nudges again.
static MISSED: AtomicBool = AtomicBool::new(false);

/// A nudge's handler is about to look whether anything is held that it needs. Either it sees a lock free, or the thread that
/// releases the lock sees the flag.
pub(crate) fn begin_to_look() {
    MISSED.store(true, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

/// The handler has found all free.
pub(crate) fn has_found_all_free() {
    MISSED.store(false, Ordering::SeqCst);
}

/// Called when a thread releases a lock. Repeats the nudge that found the lock held; inside the layer, the nudge waits until the
/// thread leaves it.
#[inline]
pub(crate) fn make_up() {
    if MISSED.load(Ordering::SeqCst) {
        make_up_for_missed();
    }
}

#[cold]
fn make_up_for_missed() {
    let missed = !here::is_inside() && MISSED.swap(false, Ordering::SeqCst);
    if missed && radic_ckpt::nudge_self().is_err() {
        MISSED.store(true, Ordering::SeqCst);
    }
}

/// Whether a nudge is still to be made up for.
#[cfg(test)]
pub(crate) fn is_missed() -> bool {
    MISSED.load(Ordering::SeqCst)
}
