//! The lock: how a call of the program, or a signal's handler, gets the layer, and what is done when it lets go.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::{DUE, LAYER, LEAVES, Layer, restart};
use crate::ending::fail;
use crate::here::{is_inside, set_inside};
use crate::lock::Guard;
use crate::phase::{self, Phase, is_active};
use crate::signals::{self, Hold};
use crate::{children, image, nudge, sys};

/// The layer, held.
pub struct Held {
    guard: Option<Guard<'static, Option<Layer>>>,
    /// Of a call that waits: let go after the layer.
    pub(super) signals: Option<Hold>,
}

impl Deref for Held {
    type Target = Layer;

    #[inline]
    fn deref(&self) -> &Layer {
        self.guard.as_deref().and_then(Option::as_ref).expect("a layer that is held is there")
    }
}

impl DerefMut for Held {
    #[inline]
    fn deref_mut(&mut self) -> &mut Layer {
        self.guard.as_deref_mut().and_then(Option::as_mut).expect("a layer that is held is there")
    }
}

impl Drop for Held {
    #[inline(always)]
    fn drop(&mut self) {
        if self.guard.take().is_some() {
            set_inside(false);
            if children::take_to_tell() {
                signals::tell_of_children();
            }
            if DUE.load(Ordering::Relaxed) {
                // The handler of the nudge finds the lock free, unless another thread is in: then that one comes by here.
                // Where the signal cannot be queued, the next call tries again.
                _ = radic_ckpt::nudge_self();
            } else {
                nudge::make_up();
            }
        }
    }
}

/// The layer is there from now on. What its node has asked already it answers at once: until here a nudge has found no layer to
/// look with, and the program may be about to compute for an hour. No image is begun by that: it would be of a program that has
/// done nothing yet.
pub(super) fn begin(layer: Layer) {
    set_inside(true);
    let mut guard = LAYER.lock();
    let layer = guard.insert(layer);
    phase::set(Phase::Active);
    layer.hear_node();
    drop(guard);
    set_inside(false);
    nudge::make_up();
}

/// The layer, for one call of the program. None: it is not active, or this is a signal's handler that has interrupted the layer in its own thread.
#[inline]
pub fn enter() -> Option<Held> {
    if !is_active() || is_inside() {
        return None;
    }
    enter_active()
}

#[inline]
fn enter_active() -> Option<Held> {
    // Before the lock: a signal's handler that comes between the two would wait for its own thread.
    set_inside(true);
    let mut guard = LAYER.lock();
    // Another thread may have ended the process while this one waited for the lock.
    if guard.is_none() || !is_active() {
        set_inside(false);
        return None;
    }
    if image::is_restored() {
        come_back(&mut guard);
    }
    Some(Held { guard: Some(guard), signals: None })
}

/// The layer again, for a call that has waited without it.
pub fn enter_again() -> Result<Held, Errno> {
    enter().ok_or_else(|| {
        rest();
        Errno::INTR
    })
}

/// If the process is at its end: the calling thread does nothing more. It waits for the kernel, which ends all threads as soon as
/// the one that ends the process has run the last destructors. Its connections have ended already, so what it found out now it
/// would not find out without RADIC. A destructor that waits for this thread gets it after `REST_NS`, once.
#[inline]
pub fn rest() -> bool {
    let left = phase::has_left();
    if left {
        wait_for_end();
    }
    left
}

#[cold]
fn wait_for_end() {
    const REST_NS: u64 = 1_000_000_000;
    if !LEAVES.get() && !is_inside() {
        LEAVES.set(true);
        let until = sys::now() + REST_NS;
        while let Some(left) = until.checked_sub(sys::now()).filter(|left| *left > 0) {
            _ = sys::poll(&mut [], Some(sys::span(left)));
        }
    }
}

/// The process is at its end, by this thread. Nothing of the layer is touched any more.
pub(super) fn end(layer: Held) {
    LEAVES.set(true);
    phase::set(Phase::Left);
    drop(layer);
}

/// The layer, for a call on a protected connection. A signal's handler that has interrupted the layer in its own thread can
/// neither wait for it nor go by it: what it sent would be in no outbox, what it received in no log.
#[inline]
pub fn enter_for_connection() -> Option<Held> {
    if !is_active() {
        rest();
        return None;
    }
    if is_inside() {
        fail("a signal's handler uses a protected connection while the program is in the middle of a call about one");
    }
    enter_active()
}

/// The first to get the layer after a restore finds out what there is to do.
#[cold]
fn come_back(guard: &mut Guard<'static, Option<Layer>>) {
    if image::take_restored()
        && let Some(layer) = guard.as_mut()
    {
        restart::come_back(layer);
    }
}

/// The layer if no thread holds it, in a process that has come back: for the handler of a signal.
pub fn enter_if_free() -> Option<Held> {
    if !is_active() || is_inside() {
        return None;
    }
    let mut guard = LAYER.try_lock().filter(|guard| guard.is_some())?;
    set_inside(true);
    come_back(&mut guard);
    Some(Held { guard: Some(guard), signals: None })
}

/// The layer if no thread holds it: for the handler of the checkpoint's signal.
pub fn try_enter() -> Option<Held> {
    if !is_active() || is_inside() || image::is_restored() {
        return None;
    }
    let guard = LAYER.try_lock().filter(|guard| guard.is_some())?;
    set_inside(true);
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
        set_inside(false);
        std::mem::forget(self.guard.take());
    }
}

/// The layer that [`Held::keep_locked`] has left locked.
pub fn adopt() -> Held {
    Held { guard: Some(LAYER.adopt_forgotten()), signals: None }
}
