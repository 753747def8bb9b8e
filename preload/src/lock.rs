//! The lock of the layer: a futex, no thread-local, nothing of the program's threads library. A signal handler may ask whether it is held.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

use crate::nudge;

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and another thread may wait.
const AWAITED: u32 = 2;

/// A value that one thread at a time may touch.
#[derive(Debug)]
pub struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: a `Guard` is the only way to the value, and there is one at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Lock { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait();
        }
        Guard(self)
    }

    #[cold]
    fn wait(&self) {
        while self.state.swap(AWAITED, Ordering::Acquire) != FREE {
            // An error means that the value had changed already, or a signal: look again.
            _ = futex::wait(&self.state, futex::Flags::PRIVATE, AWAITED, None);
        }
    }

    #[cold]
    fn wake_one(&self) {
        _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
    }

    /// The lock, unless a thread holds it: for a signal's handler, which may have interrupted that very thread.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let free = self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Not before it is known: a guard that is dropped frees the lock, whichever thread holds it.
        free.then(|| Guard(self))
    }

    /// Whether a thread holds the lock at this moment, perhaps the calling one.
    pub fn is_held(&self) -> bool {
        self.state.load(Ordering::Relaxed) != FREE
    }

    /// Where a thread waits for the lock: its futex.
    pub fn address(&self) -> usize {
        self.state.as_ptr().addr()
    }

    /// Frees the lock of a guard that was forgotten.
    pub fn unlock_forgotten(&self) {
        drop(Guard(self));
    }

    /// The value behind a guard that was forgotten, to go on where that left off.
    pub fn adopt_forgotten(&self) -> Guard<'_, T> {
        Guard(self)
    }
}

/// The way to the value.
#[derive(Debug)]
pub struct Guard<'a, T>(&'a Lock<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held as long as the guard exists.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let before = self.0.state.swap(FREE, Ordering::SeqCst);
        assert_ne!(before, FREE, "lock released while not held: two threads may have been in the critical section");
        if before == AWAITED {
            self.0.wake_one();
        }
        nudge::make_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 200_000);
        std::mem::forget(lock.lock());
        lock.unlock_forgotten();
        assert!(lock.try_lock().is_some());
    }

    /// A nudge's handler looks whether another thread is in the layer, and must not let a third one in by that.
    #[test]
    fn a_thread_that_finds_it_held_leaves_it_held() {
        let lock = Lock::new(());
        let guard = lock.lock();
        for _ in 0..2 {
            assert!(lock.try_lock().is_none());
            assert!(lock.is_held());
        }
        drop(guard);
        assert!(lock.try_lock().is_some());
    }

    /// The same while threads that wait and threads that only try contend: no increment is lost.
    #[test]
    fn one_thread_at_a_time_whether_it_waits_or_tries() {
        let lock = Lock::new(0u64);
        let tried = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..50_000).for_each(|_| *lock.lock() += 1));
                scope.spawn(|| {
                    for mut value in (0..50_000).filter_map(|_| lock.try_lock()) {
                        *value += 1;
                        tried.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 100_000 + tried.into_inner());
    }

    #[test]
    #[should_panic(expected = "lock released while not held")]
    fn a_free_lock_is_not_freed() {
        Lock::new(()).unlock_forgotten();
    }
}
