//! What happens to descriptors.

use std::ffi::{c_int, c_uint, c_ulong};

use super::result::finish_int;
use crate::fds::{self, Kind, is_connection};
use crate::ops::{descriptor, socket};
use crate::{layer, phase, pointers, real};

/// Bytes that were not sent yet, of `linux/sockios.h`; SIOCINQ and SIOCOUTQ there are FIONREAD and TIOCOUTQ.
const SIOCOUTQNSD: c_ulong = 0x894B;

hooks! {
    unsafe fn close(fd: c_int) -> c_int => on_close {
        match if phase::is_active() { descriptor::closing(fd) } else { Ok(()) } {
            Ok(()) => unsafe { real!(close)(fd) },
            error => finish_int(error, |()| 0),
        }
    }

    unsafe fn dup(fd: c_int) -> c_int => on_dup {
        after_dup(fd, unsafe { real!(dup)(fd) })
    }

    unsafe fn dup2(from: c_int, to: c_int) -> c_int => on_dup2 {
        unsafe { replace(from, to, || real!(dup2)(from, to)) }
    }

    unsafe fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int => on_dup3 {
        let next = || unsafe { real!(dup3)(from, to, flags) };
        // Other flags: the kernel refuses the call, and closes nothing.
        if flags & !libc::O_CLOEXEC == 0 { unsafe { replace(from, to, next) } } else { next() }
    }

    // Variadic in C. The one argument that it may have is passed in the same register.
    unsafe fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int => on_fcntl {
        after_fcntl(fd, command, argument, unsafe { real!(fcntl)(fd, command, argument) })
    }

    // As fcntl.
    unsafe fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int => on_ioctl {
        let told = unsafe { told_count(fd, request, argument as *mut c_int) };
        told.unwrap_or_else(|| after_ioctl(fd, request, argument, unsafe { real!(ioctl)(fd, request, argument) }))
    }
}

// Not every C library has these, so redhook declares them, and `real` finds what is behind them.

redhook::hook! {
    unsafe fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int => on_fcntl64 {
        after_fcntl(fd, command, argument, unsafe { real::fcntl64(fd, command, argument) })
    }
}

redhook::hook! {
    unsafe fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int => on_close_range {
        // With CLOSE_RANGE_CLOEXEC nothing is closed now, nor with a flag that the kernel does not know.
        let closes = flags & !(libc::CLOSE_RANGE_UNSHARE as c_int) == 0;
        if phase::is_active() && closes { close_all(first, last, flags) } else { unsafe { real::close_range(first, last, flags) } }
    }
}

redhook::hook! {
    unsafe fn closefrom(first: c_int) => on_closefrom {
        unsafe { on_close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
    }
}

/// Closes the descriptors of a range, without the layer's own.
fn close_all(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if first > last {
        return finish_int(Err(rustix::io::Errno::INVAL), |()| 0);
    }
    let mut from = first;
    for fd in (0..fds::DESCRIPTORS as c_uint).filter(|fd| (first..=last).contains(fd)) {
        if descriptor::closing(fd as c_int).is_err() {
            // The layer's: the range before it is closed now, what is behind it later.
            if from < fd {
                unsafe { real::close_range(from, fd - 1, flags) };
            }
            from = fd + 1;
        }
    }
    if from > last { 0 } else { unsafe { real::close_range(from, last, flags) } }
}

fn after_dup(fd: c_int, new: c_int) -> c_int {
    if new >= 0 {
        descriptor::duplicated(fd, new);
    }
    new
}

/// `dup2` closes its target first, if the source is open.
unsafe fn replace(from: c_int, to: c_int, how: impl FnOnce() -> c_int) -> c_int {
    if !phase::is_active() || from == to || fds::kind(from) == Kind::Own {
        return how();
    }
    let open = rustix::io::fcntl_getfd(crate::sys::borrow(from)).is_ok();
    if open && fds::kind(to) == Kind::Own {
        // The layer's descriptor goes elsewhere, once; the program must get the number that it wants.
        layer::make_room(to);
    } else if open {
        _ = descriptor::closing(to);
    }
    after_dup(from, how())
}

fn after_fcntl(fd: c_int, command: c_int, argument: c_ulong, result: c_int) -> c_int {
    if result >= 0 && phase::is_active() {
        match command {
            libc::F_SETFL => descriptor::set_blocking(fd, argument as c_int & libc::O_NONBLOCK == 0),
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => descriptor::duplicated(fd, result),
            _ => {}
        }
    }
    result
}

fn after_ioctl(fd: c_int, request: c_ulong, argument: c_ulong, result: c_int) -> c_int {
    if result >= 0 && request == libc::FIONBIO && fds::kind(fd) != Kind::Other {
        // The kernel has read it there.
        descriptor::set_blocking(fd, unsafe { (argument as *const c_int).read_unaligned() } == 0);
    }
    result
}

/// Tells how much a protected connection holds, if that is what is asked. The kernel is not asked: it counts headers, too, and its answer is in no log.
unsafe fn told_count(fd: c_int, request: c_ulong, place: *mut c_int) -> Option<c_int> {
    let count = match request {
        libc::FIONREAD => socket::unread,
        libc::TIOCOUTQ | SIOCOUTQNSD => socket::unsent,
        _ => return None,
    };
    if !is_connection(fd) || !pointers::is_writable(place, size_of::<c_int>()) {
        return None;
    }
    unsafe { place.write_unaligned(count(fd)?) };
    Some(0)
}
