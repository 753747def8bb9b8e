//! Making connections.

use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t, timeval};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::result::finish_int;
use crate::fds::{self, Kind, Mark, is_connection};
use crate::ops::accept::Accepted;
use crate::ops::{self, address, descriptor, socket};
use crate::{calls, phase, pointers, real};

hooks! {
    unsafe fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int => on_connect {
        let ours = if phase::is_active() { ops::connect::connect(fd, unsafe { address_from(address, length) }) } else { None };
        ours.map_or_else(|| unsafe { real!(connect)(fd, address, length) }, done)
    }

    unsafe fn bind(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int => on_bind {
        let ours = if phase::is_active() { address::bind(fd, unsafe { address_from(to, length) }) } else { None };
        ours.map_or_else(|| unsafe { real!(bind)(fd, to, length) }, done)
    }

    unsafe fn listen(fd: c_int, backlog: c_int) -> c_int => on_listen {
        let ours = if phase::is_active() { ops::accept::listen(fd, backlog) } else { None };
        ours.map_or_else(|| unsafe { real!(listen)(fd, backlog) }, done)
    }

    unsafe fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int => on_accept4 {
        unsafe { accepted(fd, address, length, flags).unwrap_or_else(|| real!(accept4)(fd, address, length, flags)) }
    }

    unsafe fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int => on_accept {
        unsafe { accepted(fd, address, length, 0).unwrap_or_else(|| real!(accept)(fd, address, length)) }
    }

    unsafe fn shutdown(fd: c_int, how: c_int) -> c_int => on_shutdown {
        let ours = if is_connection(fd) { socket::shutdown(fd, how) } else { None };
        ours.map_or_else(|| unsafe { real!(shutdown)(fd, how) }, done)
    }

    unsafe fn getsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t
    ) -> c_int => on_getsockopt {
        let ours = unsafe { told_error(fd, level, name, value, length) };
        ours.unwrap_or_else(|| unsafe { real!(getsockopt)(with_options(fd), level, name, value, length) })
    }

    unsafe fn setsockopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t
    ) -> c_int => on_setsockopt {
        let set = |fd| unsafe { real!(setsockopt)(fd, level, name, value, length) };
        unsafe { after_setsockopt(fd, level, name, value, set_options(fd, set)) }
    }

    unsafe fn getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int => on_getpeername {
        match if is_connection(fd) { descriptor::names(fd) } else { None } {
            Some(names) => unsafe { tell_address(fd, &names.peer, address, length) },
            None => unsafe { real!(getpeername)(fd, address, length) },
        }
    }

    unsafe fn getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int => on_getsockname {
        match own_name(fd) {
            Some(local) => unsafe { tell_address(fd, &local, address, length) },
            None => unsafe { real!(getsockname)(fd, address, length) },
        }
    }
}

/// What a call returns that returns nothing but success.
fn done(result: Result<(), Errno>) -> c_int {
    finish_int(result, |()| 0)
}

/// The TCP address that the program means; none: another kind.
unsafe fn address_from(address: *const sockaddr, length: socklen_t) -> Option<SocketAddr> {
    let long = length as usize;
    // What the kernel does not take it refuses.
    if !(size_of::<libc::sa_family_t>()..=size_of::<libc::sockaddr_storage>()).contains(&long)
        || !pointers::is_readable(address.cast::<u8>(), long)
    {
        return None;
    }
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET if long >= size_of::<sockaddr_in>() => {
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 if long >= size_of::<sockaddr_in6>() => {
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Tells the program an address, where and as it wants it: cut to its room, with the length that it has. `fd` is any socket; of that the
/// kernel is asked the same, for it says what is wrong with the pointers.
unsafe fn tell_address(fd: c_int, from: &SocketAddr, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let room = pointers::read(length);
    let result = unsafe { real!(getsockname)(fd, address, length) };
    if let (0, Some(room)) = (result, room) {
        let room = (room as usize).min(size_of::<sockaddr_in6>());
        if pointers::is_writable(address.cast::<u8>(), room) {
            unsafe { write_address(from, address, length, room) };
        }
    }
    result
}

/// Writes an address where there is so much room for it, and can be.
unsafe fn write_address(from: &SocketAddr, address: *mut sockaddr, length: *mut socklen_t, room: usize) {
    let put = |bytes: *const u8, size: usize| unsafe {
        std::ptr::copy_nonoverlapping(bytes, address.cast::<u8>(), size.min(room));
        length.write_unaligned(size as socklen_t);
    };
    match from {
        SocketAddr::V4(v4) => {
            let mut raw: sockaddr_in = unsafe { std::mem::zeroed() };
            raw.sin_family = libc::AF_INET as u16;
            raw.sin_port = v4.port().to_be();
            raw.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            put((&raw const raw).cast(), size_of::<sockaddr_in>());
        }
        SocketAddr::V6(v6) => {
            let mut raw: sockaddr_in6 = unsafe { std::mem::zeroed() };
            raw.sin6_family = libc::AF_INET6 as u16;
            raw.sin6_port = v6.port().to_be();
            raw.sin6_flowinfo = v6.flowinfo();
            raw.sin6_addr.s6_addr = v6.ip().octets();
            raw.sin6_scope_id = v6.scope_id();
            put((&raw const raw).cast(), size_of::<sockaddr_in6>());
        }
    }
}

/// Accepts a connection, if `fd` is a protected listener.
unsafe fn accepted(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> Option<c_int> {
    let known = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    if flags & !known != 0 {
        return None;
    }
    let flags = SocketFlags::from_bits_retain(flags as u32);
    let result = if ops::child::is_child() {
        ops::child::accept(fd, flags)?
    } else if fds::kind(fd) == Kind::Listener {
        ops::accept::accept(fd, flags)?
    } else {
        return None;
    };
    Some(finish_int(result, |Accepted { fd, peer }| {
        if !address.is_null() && unsafe { tell_address(fd, &peer, address, length) } != 0 {
            // As in the kernel: the connection is lost.
            let errno = real::errno();
            unsafe { super::descriptor::on_close(fd) };
            real::set_errno(errno);
            return -1;
        }
        fd
    }))
}

/// Tells a connection's error, if that is what is asked for, and the program can be told.
unsafe fn told_error(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> Option<c_int> {
    let wanted = level == libc::SOL_SOCKET && name == libc::SO_ERROR && (is_connection(fd) || calls::may_be_lost(fd));
    let room = wanted
        && pointers::read(length).is_some_and(|length| (size_of::<c_int>()..=c_int::MAX as usize).contains(&(length as usize)))
        && pointers::is_writable(value, size_of::<c_int>());
    let result = if room { descriptor::socket_error(fd)? } else { return None };
    Some(finish_int(result, |errno| {
        unsafe { value.cast::<c_int>().write_unaligned(errno) };
        unsafe { length.write_unaligned(size_of::<c_int>() as socklen_t) };
        0
    }))
}

/// The socket that has the options of `fd`.
fn with_options(fd: c_int) -> c_int {
    if is_connection(fd) { descriptor::options_of(fd).unwrap_or(fd) } else { fd }
}

/// Sets an option of the socket that has those of `fd`.
fn set_options(fd: c_int, set: impl Fn(c_int) -> c_int) -> c_int {
    let other = with_options(fd);
    let result = set(other);
    if other != fd {
        // What stands for it meanwhile has some of them, too.
        set(fd);
    }
    result
}

/// What `setsockopt` returns, when the option is set or refused.
unsafe fn after_setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, result: c_int) -> c_int {
    if result != 0 && is_connection(fd) && descriptor::is_another(fd) {
        return 0; // In replay: the recorded run's socket took this option.
    }
    if result != 0 || level != libc::SOL_SOCKET || !is_connection(fd) {
        return result;
    }
    // Of SO_LINGER's two numbers the first says whether, of a time both do.
    let (mark, size) = match name {
        libc::SO_RCVTIMEO => (Mark::ReceiveLimit, size_of::<timeval>()),
        libc::SO_SNDTIMEO => (Mark::SendLimit, size_of::<timeval>()),
        libc::SO_LINGER => (Mark::Linger, size_of::<c_int>()),
        _ => return result,
    };
    // The kernel has read as much.
    let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), size) };
    descriptor::set_mark(fd, mark, bytes.iter().any(|byte| *byte != 0));
    result
}

/// The address that the program's socket has.
fn own_name(fd: c_int) -> Option<SocketAddr> {
    match fds::kind(fd) {
        Kind::Connection | Kind::Alias => descriptor::names(fd).and_then(|names| names.local),
        Kind::Bound | Kind::Listener => address::told(fd),
        _ => None,
    }
}
