//! The kernel's readiness calls, by the next library's functions: the checkpoint engine knows their system calls and makes them again, with what is
//! left of their time, when a checkpoint interrupts them (`ckpt/src/interrupted.rs`). So EINTR is always a signal of the program.
//!
//! Calls that do not wait are made while the layer is held: not by the C library's functions, in which another thread may cancel this one.

use std::arch::asm;
use std::ffi::c_long;
use std::ptr;

use libc::{c_int, epoll_event, nfds_t, pollfd, sigset_t, timespec};
use rustix::io::Errno;

use crate::epolls::Operation;
use crate::real;

/// What the C library's result says.
fn result(value: c_int) -> Result<usize, Errno> {
    usize::try_from(value).map_err(|_| Errno::from_raw_os_error(real::errno()))
}

fn pointer(mask: Option<&sigset_t>) -> *const sigset_t {
    mask.map_or(ptr::null(), ptr::from_ref)
}

/// A span of time; none: forever.
fn span(nanoseconds: Option<u64>) -> Option<timespec> {
    let split = |ns: u64| timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    nanoseconds.map(split)
}

/// Bytes of a mask of signals, as the kernel has it.
const MASK: usize = size_of::<u64>();

/// What is ready now.
#[inline]
pub(crate) fn epoll_now(epoll: i32, events: &mut [epoll_event], mask: Option<&sigset_t>) -> Result<usize, Errno> {
    let room = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
    let Some(mask) = mask else {
        // SAFETY: the kernel writes at most `room` events.
        return unsafe { call::<{ libc::SYS_epoll_wait }>(epoll as u32 as usize, events.as_mut_ptr() as usize, room as usize) };
    };
    // SAFETY: the kernel writes at most `room` events, and reads one mask.
    result(
        unsafe { libc::syscall(libc::SYS_epoll_pwait, epoll, events.as_mut_ptr(), room, 0, ptr::from_ref(mask), MASK) } as c_int
    )
}

/// A system call whose fourth argument, if it has one, is 0. It is in the caller's code, because the processor predicts no return after a system
/// call; with its number just before it, where the checkpoint engine finds that.
///
/// # Safety
/// As for the system call.
#[inline(always)]
unsafe fn call<const NUMBER: c_long>(first: usize, second: usize, third: usize) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the kernel changes these registers, and what the caller has named.
    unsafe {
        asm!(
            // The byte before the number is no prefix.
            "nop",
            "mov eax, {number}",
            "syscall",
            number = const NUMBER,
            lateout("rax") result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") 0,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result as i32))
}

/// Waits for events; in nanoseconds, none: forever.
pub(crate) fn epoll_within(
    epoll: i32,
    events: &mut [epoll_event],
    time: Option<u64>,
    mask: Option<&sigset_t>,
) -> Result<usize, Errno> {
    let room = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
    let whole = time.map(|ns| (ns / 1_000_000, ns % 1_000_000));
    // SAFETY: the kernel writes at most `room` events, and reads one time and one mask.
    result(unsafe {
        match whole {
            None => real::epoll_pwait(epoll, events.as_mut_ptr(), room, -1, pointer(mask)),
            Some((ms @ 0..0x7fff_ffff, 0)) => real::epoll_pwait(epoll, events.as_mut_ptr(), room, ms as c_int, pointer(mask)),
            // Only a kernel that has this call has programs that make it.
            Some(_) => {
                let time = span(time);
                let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
                real::epoll_pwait2(epoll, events.as_mut_ptr(), room, time, pointer(mask))
            }
        }
    })
}

/// What of `fds` is ready now.
pub(crate) fn poll_now(fds: &mut [pollfd], mask: Option<&sigset_t>) -> Result<usize, Errno> {
    let Some(mask) = mask else {
        // SAFETY: the kernel reads and writes the descriptors.
        return unsafe { call::<{ libc::SYS_poll }>(fds.as_mut_ptr() as usize, fds.len(), 0) };
    };
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel reads and writes the descriptors and the time, and reads one mask.
    result(unsafe {
        libc::syscall(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len() as nfds_t, &raw mut time, ptr::from_ref(mask), MASK)
    } as c_int)
}

/// Waits until one of `fds` is ready; in nanoseconds, none: forever.
pub(crate) fn poll_within(fds: &mut [pollfd], time: Option<u64>, mask: Option<&sigset_t>) -> Result<usize, Errno> {
    let time = span(time);
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the kernel reads and writes the descriptors, and reads one time and one mask.
    result(unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, time, pointer(mask)) })
}

/// `epoll_ctl`, with events and key; without for `Delete`.
pub(crate) fn control(epoll: i32, operation: Operation, fd: i32, events: u32, key: u64) -> Result<(), Errno> {
    let operation = match operation {
        Operation::Add => libc::EPOLL_CTL_ADD,
        Operation::Modify => libc::EPOLL_CTL_MOD,
        Operation::Delete => libc::EPOLL_CTL_DEL,
    };
    let (mut event, errno) = (epoll_event { events, u64: key }, real::errno());
    // SAFETY: the kernel reads one event.
    let result = result(unsafe { real::epoll_ctl(epoll, operation, fd, &raw mut event) });
    // Not every failure is one of the program's call.
    real::set_errno(errno);
    result.map(drop)
}
