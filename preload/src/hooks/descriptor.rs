//! What happens to descriptors.

use std::ffi::{c_int, c_uint, c_ulong};

use super::finish_int;
use crate::fds::{self, Kind};
use crate::layer;
use crate::ops::descriptor;
use crate::real;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if layer::is_active()
        && let Err(error) = descriptor::closing(fd)
    {
        return finish_int(Err(error), |()| 0);
    }
    unsafe { real::close(fd) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // With CLOSE_RANGE_CLOEXEC nothing is closed now, nor with what the kernel does not know.
    if !layer::is_active() || flags & !(libc::CLOSE_RANGE_UNSHARE as c_int) != 0 {
        return unsafe { real::close_range(first, last, flags) };
    }
    if first > last {
        return finish_int(Err(rustix::io::Errno::INVAL), |()| 0);
    }
    let mut from = first;
    for fd in (0..fds::DESCRIPTORS as c_uint).filter(|fd| (first..=last).contains(fd)) {
        if descriptor::closing(fd as c_int).is_err() {
            // One of ours: the ranges before and behind it.
            if from < fd {
                unsafe { real::close_range(from, fd - 1, flags) };
            }
            from = fd + 1;
        }
    }
    if from > last { 0 } else { unsafe { real::close_range(from, last, flags) } }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    let new = unsafe { real::dup(fd) };
    if new >= 0 {
        descriptor::duplicated(fd, new);
    }
    new
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    unsafe { replace(from, to, || real::dup2(from, to)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if flags & !libc::O_CLOEXEC != 0 {
        // The kernel refuses it, and closes nothing.
        return unsafe { real::dup3(from, to, flags) };
    }
    unsafe { replace(from, to, || real::dup3(from, to, flags)) }
}

/// `dup2` closes its target first, if the source is open.
unsafe fn replace(from: c_int, to: c_int, how: impl FnOnce() -> c_int) -> c_int {
    if !layer::is_active() || from == to || fds::kind(from) == Kind::Own {
        return how();
    }
    let open = rustix::io::fcntl_getfd(crate::sys::borrow(from)).is_ok();
    if open && fds::kind(to) == Kind::Own {
        // The layer's descriptor goes elsewhere, once; the program must get the number that it wants.
        layer::make_room(to);
    } else if open {
        _ = descriptor::closing(to);
    }
    let new = how();
    if new >= 0 {
        descriptor::duplicated(from, new);
    }
    new
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    after_fcntl(fd, command, argument, unsafe { real::fcntl(fd, command, argument) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    after_fcntl(fd, command, argument, unsafe { real::fcntl64(fd, command, argument) })
}

fn after_fcntl(fd: c_int, command: c_int, argument: c_ulong, result: c_int) -> c_int {
    if result >= 0 && layer::is_active() {
        match command {
            libc::F_SETFL => descriptor::set_blocking(fd, argument as c_int & libc::O_NONBLOCK == 0),
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => descriptor::duplicated(fd, result),
            _ => {}
        }
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int {
    let result = unsafe { real::ioctl(fd, request, argument) };
    if result >= 0 && request == libc::FIONBIO && fds::kind(fd) != Kind::Other {
        descriptor::set_blocking(fd, unsafe { (argument as *const c_int).read_unaligned() } == 0);
    }
    result
}
