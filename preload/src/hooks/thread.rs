//! Threads get names when they are created (`crate::threads`), and yield less often while the process catches up.

use std::ffi::{c_int, c_void};

use libc::{pthread_attr_t, pthread_t};

use crate::threads::{self, Routine};
use crate::{callers, layer, phase, yielding};

hooks! {
    unsafe fn pthread_create(
        thread: *mut pthread_t, attributes: *const pthread_attr_t, routine: Routine, argument: *mut c_void
    ) -> c_int => on_pthread_create {
        let next = |routine, argument| unsafe { real!(pthread_create)(thread, attributes, routine, argument) };
        if phase::is_active() {
            note_library(routine);
            threads::create(routine, argument, next)
        } else {
            next(routine, argument)
        }
    }

    unsafe fn sched_yield() -> c_int => on_sched_yield {
        if yielding::is_due() { unsafe { real!(sched_yield)() } } else { 0 }
    }
}

/// Says at once, not after a death, that a process with such threads may not come back (G7).
fn note_library(routine: Routine) {
    if !layer::doubts::are_there()
        && let Some(library) = callers::hands_over_by_memory(routine as usize)
    {
        layer::doubts::begin(library);
    }
}
