//! Connections that wait for room in the outbox: their sends were refused, or taken in part. The kernel knows nothing of that.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::lock::Lock;

/// Connections on which a send had to be refused, or taken in part, because the outbox was full.
pub(crate) static FULL: Lock<Full> = Lock::new(Full { connections: Vec::new(), asked: 0 });
/// Whether there are any.
static STARVED: AtomicBool = AtomicBool::new(false);

/// See [`FULL`].
pub(crate) struct Full {
    connections: Vec<i32>,
    /// When it was last asked what is stable.
    pub(crate) asked: u64,
}

impl Full {
    /// Those that are not `starved` any more are none of these from now on.
    pub(crate) fn retain(&mut self, starved: impl FnMut(&i32) -> bool) {
        self.connections.retain(starved);
        STARVED.store(!self.connections.is_empty(), Ordering::Relaxed);
    }
}

/// A send on `fd` was refused, or taken in part, because the outbox was full. The kernel knows nothing of that: to a program that waits until it may
/// send again it would say at once that it may, or, if the program waits for the edge (EPOLLET), never.
pub(crate) fn refused(fd: i32) {
    let mut full = FULL.lock();
    if !full.connections.contains(&fd) {
        full.connections.push(fd);
    }
    STARVED.store(true, Ordering::Relaxed);
}

/// Whether the kernel's word that `fd` can be written is not for the program: a send would be refused again.
pub(crate) fn is_full(fd: i32) -> bool {
    STARVED.load(Ordering::Relaxed) && FULL.lock().connections.contains(&fd)
}

/// Whether there are any.
pub(crate) fn are_there() -> bool {
    STARVED.load(Ordering::Relaxed)
}

/// Whether no thread, the calling one included, is in the middle of a look at them.
pub(crate) fn is_free() -> bool {
    !FULL.is_held()
}
