//! Clocks, and what was used of the processor. The kernel's page answers the former without a system call, in 20 ns: they are the
//! cheapest calls that there are, and are made most often.
//!
//! Whose readings are recorded depends on the code that makes the call (`preload/src/callers.rs`), and only assembler knows where
//! that is. So these are not declared by redhook; but `MPI_Wtime` is, whose caller is the program.

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{clock_t, clockid_t, rusage, time_t, timespec, timeval, tms};
use radic_wire::determinant::{CLOCKS, MPI_CLOCK};
use rustix::io::Errno;

use super::mpi;
use crate::ops::{kernel, time};
use crate::used::USAGE;
use crate::{callers, pointers, real, sys};

const SECOND_NS: i64 = 1_000_000_000;

with_caller!(clock_gettime => on_clock_gettime, "rdx");
with_caller!(gettimeofday => on_gettimeofday, "rdx");
with_caller!(time => on_time, "rsi");
with_caller!(clock => on_clock, "rdi");
with_caller!(times => on_times, "rsi");
with_caller!(getrusage => on_getrusage, "rdx");

/// Whether a reading by the code at this address is recorded.
fn is_recorded(caller: usize) -> bool {
    time::is_recorded() && callers::is_program(caller)
}

/// The clock itself, in nanoseconds.
fn nanoseconds(clock: clockid_t) -> Option<i64> {
    if sys::asks_kernel() {
        return sys::clock(clock);
    }
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
        None if sys::asks_kernel() => unsafe { libc::syscall(libc::SYS_clock_gettime, clock, to) as c_int },
        None => unsafe { real::clock_gettime(clock, to) },
    }
}

unsafe extern "C" fn on_gettimeofday(to: *mut timeval, zone: *mut c_void, caller: usize) -> c_int {
    match if zone.is_null() && !to.is_null() && is_recorded(caller) { told(libc::CLOCK_REALTIME) } else { None } {
        Some(ns) => {
            unsafe { *to = timeval { tv_sec: ns.div_euclid(SECOND_NS), tv_usec: ns.rem_euclid(SECOND_NS) / 1_000 } };
            0
        }
        None if sys::asks_kernel() => unsafe { libc::syscall(libc::SYS_gettimeofday, to, zone) as c_int },
        None => unsafe { real::gettimeofday(to, zone) },
    }
}

/// The C library's own reads the same clock.
unsafe extern "C" fn on_time(to: *mut time_t, caller: usize) -> time_t {
    let clock = libc::CLOCK_REALTIME_COARSE;
    let ns = if is_recorded(caller) { told(clock) } else { None }.or_else(|| nanoseconds(clock));
    let seconds = ns.map_or(-1, |ns| ns.div_euclid(SECOND_NS));
    if !to.is_null() {
        unsafe { *to = seconds };
    }
    seconds
}

/// In microseconds. The C library's own reads the same clock.
unsafe extern "C" fn on_clock(caller: usize) -> clock_t {
    let ns = if is_recorded(caller) { told(libc::CLOCK_PROCESS_CPUTIME_ID) } else { None };
    ns.or_else(|| nanoseconds(libc::CLOCK_PROCESS_CPUTIME_ID)).map_or(-1, |ns| ns / 1_000)
}

unsafe extern "C" fn on_times(to: *mut tms, caller: usize) -> clock_t {
    let ask = || {
        let mut used = tms { tms_utime: 0, tms_stime: 0, tms_cutime: 0, tms_cstime: 0 };
        let now = unsafe { real::times(&raw mut used) };
        Ok([used.tms_utime, used.tms_stime, used.tms_cutime, used.tms_cstime, now])
    };
    let can_take = || to.is_null() || pointers::is_writable(to, size_of::<tms>());
    match if is_recorded(caller) && can_take() { kernel::times(ask) } else { None } {
        Some(Ok([tms_utime, tms_stime, tms_cutime, tms_cstime, now])) => {
            if !to.is_null() {
                unsafe { *to = tms { tms_utime, tms_stime, tms_cutime, tms_cstime } };
            }
            now
        }
        _ => unsafe { real::times(to) },
    }
}

unsafe extern "C" fn on_getrusage(whose: c_int, to: *mut rusage, caller: usize) -> c_int {
    const _: () = assert!(size_of::<rusage>() == size_of::<[i64; USAGE]>(), "it consists of numbers");
    let ask = || {
        let mut numbers = [0; USAGE];
        let result = unsafe { real::getrusage(whose, (&raw mut numbers).cast()) };
        if result == 0 { Ok(numbers) } else { Err(Errno::from_raw_os_error(real::errno())) }
    };
    let is_ours = is_recorded(caller) && pointers::is_writable(to, size_of::<rusage>());
    match if is_ours { kernel::usage(whose, ask) } else { None } {
        Some(Ok(numbers)) => {
            unsafe { to.cast::<[i64; USAGE]>().write_unaligned(numbers) };
            0
        }
        _ => unsafe { real::getrusage(whose, to) },
    }
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
