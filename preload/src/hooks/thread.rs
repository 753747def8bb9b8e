//! Threads get names when they are created (`crate::threads`).

use std::ffi::{c_int, c_void};

use libc::{pthread_attr_t, pthread_t};

use crate::layer;
use crate::threads::{self, Routine};

hooks! {
    unsafe fn pthread_create(
        thread: *mut pthread_t, attributes: *const pthread_attr_t, routine: Routine, argument: *mut c_void
    ) -> c_int => on_pthread_create {
        let next = |routine, argument| unsafe { real!(pthread_create)(thread, attributes, routine, argument) };
        if layer::is_active() { threads::create(routine, argument, next) } else { next(routine, argument) }
    }
}
