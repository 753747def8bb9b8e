//! Waking the service's thread.

use std::io;
use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Wakes the service's thread.
#[derive(Debug, Clone)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    pub fn new() -> io::Result<Self> {
        Ok(Waker(Arc::new(EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?)))
    }

    /// Wakes it, now or as soon as it is about to sleep.
    pub fn wake(&self) {
        // It fails only at the largest count there is, and then the thread is awake.
        _ = self.0.write(1);
    }

    /// It is awake.
    pub fn reset(&self) {
        _ = self.0.read();
    }

    pub fn fd(&self) -> &EventFd {
        &self.0
    }
}
