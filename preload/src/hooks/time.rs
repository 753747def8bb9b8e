//! Clocks. The kernel's page answers these without a system call, in 20 ns: they are the cheapest calls that there are, and are made most often.
//!
//! Whose readings are recorded depends on the code that makes the call (`preload/src/callers.rs`), and only assembler knows where that is. So these are not declared by redhook;
//! but `MPI_Wtime` is, whose caller is the program.

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{clockid_t, time_t, timespec, timeval};
use radic_wire::determinant::{CLOCKS, MPI_CLOCK};

use super::mpi;
use crate::callers;
use crate::ops::time;
use crate::real;

const SECOND_NS: i64 = 1_000_000_000;

/// A function of the C library with at most two arguments, of which the hook gets the return address as a third one.
macro_rules! with_caller {
    ($name:ident => $hook:path) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> c_int {
            naked_asm!("mov rdx, [rsp]", "jmp {hook}", hook = sym $hook)
        }
    };
}

with_caller!(clock_gettime => on_clock_gettime);
with_caller!(gettimeofday => on_gettimeofday);
with_caller!(time => on_time);

/// Whether a reading by the code at this address is recorded.
fn is_recorded(caller: usize) -> bool {
    time::is_recorded() && callers::is_program(caller)
}

/// The clock itself, in nanoseconds.
fn nanoseconds(clock: clockid_t) -> Option<i64> {
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes into `now`.
    let result = unsafe { real::clock_gettime(clock, &raw mut now) };
    (result == 0).then(|| now.tv_sec.saturating_mul(SECOND_NS).saturating_add(now.tv_nsec))
}

/// What the program is told of a clock. None: the call passes through.
fn told(clock: clockid_t) -> Option<i64> {
    let place = u32::try_from(clock).ok().filter(|place| (*place as usize) < CLOCKS && *place != MPI_CLOCK)?;
    time::read(place, || nanoseconds(clock))
}

unsafe extern "C" fn on_clock_gettime(clock: clockid_t, to: *mut timespec, caller: usize) -> c_int {
    match if is_recorded(caller) { told(clock) } else { None } {
        Some(ns) => {
            unsafe { *to = timespec { tv_sec: ns.div_euclid(SECOND_NS), tv_nsec: ns.rem_euclid(SECOND_NS) } };
            0
        }
        None => unsafe { real::clock_gettime(clock, to) },
    }
}

unsafe extern "C" fn on_gettimeofday(to: *mut timeval, zone: *mut c_void, caller: usize) -> c_int {
    match if zone.is_null() && !to.is_null() && is_recorded(caller) { told(libc::CLOCK_REALTIME) } else { None } {
        Some(ns) => {
            unsafe { *to = timeval { tv_sec: ns.div_euclid(SECOND_NS), tv_usec: ns.rem_euclid(SECOND_NS) / 1_000 } };
            0
        }
        None => unsafe { real::gettimeofday(to, zone) },
    }
}

/// The C library's own reads the same clock.
unsafe extern "C" fn on_time(to: *mut time_t, _: usize, caller: usize) -> time_t {
    let clock = libc::CLOCK_REALTIME_COARSE;
    let ns = if is_recorded(caller) { told(clock) } else { None }.or_else(|| nanoseconds(clock));
    let seconds = ns.map_or(-1, |ns| ns.div_euclid(SECOND_NS));
    if !to.is_null() {
        unsafe { *to = seconds };
    }
    seconds
}

type Wtime = unsafe extern "C" fn() -> f64;

redhook::hook! {
    unsafe fn MPI_Wtime() -> f64 => on_mpi_wtime {
        static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        wall_time(&NEXT, c"MPI_Wtime")
    }
}

redhook::hook! {
    unsafe fn mpi_wtime_() -> f64 => on_mpi_wtime_fortran {
        static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        wall_time(&NEXT, c"mpi_wtime_")
    }
}

/// The MPI library's time, by its function of this name.
fn wall_time(next: &AtomicPtr<c_void>, name: &std::ffi::CStr) -> f64 {
    if next.load(Relaxed).is_null() {
        next.store(mpi::next(name), Relaxed);
    }
    let next = next.load(Relaxed);
    if next.is_null() {
        return -1.0;
    }
    let seconds = || unsafe { std::mem::transmute::<*mut c_void, Wtime>(next)() };
    if !time::is_recorded() {
        return seconds();
    }
    // To the nanosecond: a double has less for times since 1970, and more for times since a boot.
    let told = time::read(MPI_CLOCK, || Some((seconds() * SECOND_NS as f64) as i64));
    told.map_or_else(seconds, |ns| ns as f64 / SECOND_NS as f64)
}
