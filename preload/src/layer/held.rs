//! The lock: how a call of the program, or a signal's handler, gets the layer, and what is done when it lets go.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

use super::ending::fail;
use super::{DUE, INSIDE, LAYER, Layer, is_active};
use crate::lock::Guard;
use crate::signals::Hold;
use crate::{image, restart};

/// The layer, held.
pub struct Held {
    guard: Option<Guard<'static, Option<Layer>>>,
    /// Of a call that waits: let go after the layer.
    pub(super) signals: Option<Hold>,
}

impl Deref for Held {
    type Target = Layer;

    fn deref(&self) -> &Layer {
        self.guard.as_deref().and_then(Option::as_ref).expect("a layer that is held is there")
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Layer {
        self.guard.as_deref_mut().and_then(Option::as_mut).expect("a layer that is held is there")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.guard.take().is_some() {
            INSIDE.set(false);
            if DUE.load(Ordering::Relaxed) {
                // The handler of the nudge finds the lock free, unless another thread is in: then that one comes by here.
                // Where the signal cannot be queued, the next call tries again.
                _ = radic_ckpt::nudge_self();
            } else {
                image::make_up();
            }
        }
    }
}

/// The layer, for one call of the program. None: it is not active, or this is a signal's handler that has interrupted the layer in its own thread.
pub fn enter() -> Option<Held> {
    if !is_active() || INSIDE.get() {
        return None;
    }
    // Before the lock: a signal's handler that comes between the two would wait for its own thread.
    INSIDE.set(true);
    let mut guard = LAYER.lock();
    if guard.is_none() {
        INSIDE.set(false);
        return None;
    }
    come_back(&mut guard);
    Some(Held { guard: Some(guard), signals: None })
}

/// The layer, for a call on a protected connection. A signal's handler that has interrupted the layer in its own thread can neither wait for it nor go by it: what it
/// sent would be in no outbox, what it received in no log.
pub fn enter_for_connection() -> Option<Held> {
    if is_active() && INSIDE.get() {
        fail("a signal's handler uses a protected connection while the program is in the middle of a call about one");
    }
    enter()
}

/// The first to get the layer after a restore finds out what there is to do.
fn come_back(guard: &mut Guard<'static, Option<Layer>>) {
    if image::take_restored()
        && let Some(layer) = guard.as_mut()
    {
        restart::come_back(layer);
    }
}

/// The layer if no thread holds it, in a process that has come back: for the handler of a signal.
pub fn enter_if_free() -> Option<Held> {
    if !is_active() || INSIDE.get() {
        return None;
    }
    let mut guard = LAYER.try_lock().filter(|guard| guard.is_some())?;
    INSIDE.set(true);
    come_back(&mut guard);
    Some(Held { guard: Some(guard), signals: None })
}

/// The layer if no thread holds it: for the handler of the checkpoint's signal.
pub fn try_enter() -> Option<Held> {
    if !is_active() || INSIDE.get() || image::is_restored() {
        return None;
    }
    let guard = LAYER.try_lock().filter(|guard| guard.is_some())?;
    INSIDE.set(true);
    Some(Held { guard: Some(guard), signals: None })
}

impl Held {
    /// The program's signals wait for this call's waits in the kernel, from now on.
    pub fn take_signals(&mut self) -> Hold {
        self.signals.take().unwrap_or_else(Hold::begin)
    }

    /// The call goes on.
    pub fn give_signals(&mut self, signals: Hold) {
        self.signals = Some(signals);
    }

    /// Keeps the layer locked after this value is gone; [`adopt`] goes on.
    pub fn keep_locked(mut self) {
        // Another thread may adopt it.
        INSIDE.set(false);
        std::mem::forget(self.guard.take());
    }
}

/// The layer that [`Held::keep_locked`] has left locked.
pub fn adopt() -> Held {
    Held { guard: Some(LAYER.adopt_forgotten()), signals: None }
}
