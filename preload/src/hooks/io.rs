//! Bytes: recv, send and their kin.

use std::ffi::{c_int, c_uint, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::slice;
use std::sync::atomic::AtomicBool;

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, sockaddr_storage, socklen_t, ssize_t, timespec};
use rustix::io::Errno;

use super::{finish, is_connection};
use crate::fds::{self, Kind};
use crate::layer;
use crate::ops::BUFFERS;
use crate::ops::descriptor::note_once;
use crate::ops::socket::{self, How};
use crate::pointers::{self, MOST};
use crate::{input, output, pmi, real, sys};

/// What can be done with some bytes of the program: read, or written.
type Check = fn(*const c_void, usize) -> bool;

/// What is wrong with the parts of a vectored call, in the order in which the kernel looks.
unsafe fn check_parts(parts: *const iovec, count: usize, too_many: Errno, can: Check) -> Result<(), Errno> {
    if count > BUFFERS {
        return Err(too_many);
    }
    if !pointers::is_readable(parts, count * size_of::<iovec>()) {
        return Err(Errno::FAULT);
    }
    let parts = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(parts, count) } };
    if parts.iter().any(|part| part.iov_len > isize::MAX as usize) {
        return Err(Errno::INVAL);
    }
    if parts.iter().all(|part| can(part.iov_base, part.iov_len)) { Ok(()) } else { Err(Errno::FAULT) }
}

/// What is wrong with the address that a call names, which a connection has no use for.
fn check_address(address: *const sockaddr, length: socklen_t) -> Result<(), Errno> {
    match length as usize {
        _ if address.is_null() => Ok(()),
        long if long > size_of::<sockaddr_storage>() => Err(Errno::INVAL),
        long if !pointers::is_readable(address.cast::<u8>(), long) => Err(Errno::FAULT),
        _ => Ok(()),
    }
}

unsafe fn receive_one(fd: c_int, bytes: *mut c_void, length: size_t, flags: c_int) -> Option<ssize_t> {
    if !is_connection(fd) {
        if fds::kind(fd) == Kind::Pmi && length > 0 && flags & !libc::MSG_DONTWAIT == 0 && pointers::can_take(bytes, length) {
            let room = unsafe { slice::from_raw_parts_mut(bytes.cast::<u8>(), length) };
            return pmi::receive(fd, &mut [IoSliceMut::new(room)], flags != 0).map(finish);
        }
        layer::tend_in_passing();
        return None;
    }
    let how = match how(flags) {
        _ if !pointers::can_take(bytes, length) => return Some(finish(Err(Errno::FAULT))),
        Ok(how) => how,
        Err(error) => return Some(finish(Err(error))),
    };
    let room = if length == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(bytes.cast::<u8>(), length) } };
    socket::receive(fd, &mut [IoSliceMut::new(room)], how).map(finish)
}

fn how(flags: c_int) -> Result<How, Errno> {
    static SAID: AtomicBool = AtomicBool::new(false);
    if flags & libc::MSG_TRUNC != 0 {
        note_once(&SAID, "it wants to drop received bytes (MSG_TRUNC), which protected connections refuse (EOPNOTSUPP)");
    }
    How::of(flags)
}

unsafe fn receive_many(fd: c_int, parts: *const iovec, count: usize, flags: c_int, too_many: Errno) -> Option<ssize_t> {
    if !is_connection(fd) {
        layer::tend_in_passing();
        return None;
    }
    let how = match unsafe { check_parts(parts, count, too_many, pointers::can_take) }.and_then(|()| how(flags)) {
        Ok(how) => how,
        Err(error) => return Some(finish(Err(error))),
    };
    // An IoSliceMut is an iovec in memory; a null base is allowed there for an empty part only, as in the kernel.
    let parts =
        if count == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(parts.cast_mut().cast::<IoSliceMut<'_>>(), count) } };
    socket::receive(fd, parts, how).map(finish)
}

unsafe fn send_one(fd: c_int, bytes: *const c_void, length: size_t, flags: c_int) -> Option<ssize_t> {
    if !is_connection(fd) {
        if fds::kind(fd) == Kind::Pmi && length > 0 && pointers::is_readable(bytes, length) {
            return pmi::send(fd, &[IoSlice::new(unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length) })]).map(finish);
        }
        layer::tend_in_passing();
        return None;
    }
    if flags & libc::MSG_OOB != 0 && length > 0 {
        return Some(finish(Err(Errno::OPNOTSUPP)));
    }
    if !pointers::is_readable(bytes, length) {
        return Some(finish(Err(Errno::FAULT)));
    }
    let bytes = if length == 0 { &[] } else { unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length) } };
    socket::send(fd, &[IoSlice::new(bytes)], flags).map(finish)
}

unsafe fn send_many(fd: c_int, parts: *const iovec, count: usize, flags: c_int, too_many: Errno) -> Option<ssize_t> {
    if !is_connection(fd) {
        layer::tend_in_passing();
        return None;
    }
    let checked = unsafe { check_parts(parts, count, too_many, pointers::is_readable) };
    if let Err(error) = if flags & libc::MSG_OOB != 0 { Err(Errno::OPNOTSUPP) } else { checked } {
        return Some(finish(Err(error)));
    }
    let parts = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(parts.cast::<IoSlice<'_>>(), count) } };
    socket::send(fd, parts, flags).map(finish)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, bytes: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    unsafe { receive_one(fd, bytes, length.min(MOST), flags).unwrap_or_else(|| real::recv(fd, bytes, length, flags)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(fd: c_int, bytes: *mut c_void, length: size_t, room: size_t, flags: c_int) -> ssize_t {
    // Too little room: the next one ends the program, as it does without us.
    let ours = if length <= room { unsafe { receive_one(fd, bytes, length.min(MOST), flags) } } else { None };
    unsafe { ours.unwrap_or_else(|| real::__recv_chk(fd, bytes, length, room, flags)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    bytes: *mut c_void,
    length: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    match unsafe { receive_one(fd, bytes, length.min(MOST), flags) } {
        // TCP says nothing about the sender. As in the kernel, what was received is lost if there is no place to say that.
        Some(result) if result >= 0 && !from.is_null() => match pointers::read(from_length) {
            Some(long) if long > c_int::MAX as socklen_t => finish(Err(Errno::INVAL)),
            Some(_) if pointers::is_writable(from_length, size_of::<socklen_t>()) => {
                unsafe { from_length.write_unaligned(0) };
                result
            }
            _ => finish(Err(Errno::FAULT)),
        },
        Some(result) => result,
        None => unsafe { real::recvfrom(fd, bytes, length, flags, from, from_length) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    bytes: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    if length > room {
        return unsafe { real::__recvfrom_chk(fd, bytes, length, room, flags, from, from_length) };
    }
    unsafe { recvfrom(fd, bytes, length, flags, from, from_length) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if !is_connection(fd) {
        layer::tend_in_passing();
        return unsafe { real::recvmsg(fd, message, flags) };
    }
    if !pointers::is_writable(message, size_of::<msghdr>()) {
        return finish(Err(Errno::FAULT));
    }
    let ours = unsafe { receive_many(fd, (*message).msg_iov, (*message).msg_iovlen, flags, Errno::MSGSIZE) };
    if ours.is_some_and(|count| count >= 0) {
        unsafe { ((*message).msg_namelen, (*message).msg_controllen, (*message).msg_flags) = (0, 0, 0) };
    }
    unsafe { ours.unwrap_or_else(|| real::recvmsg(fd, message, flags)) }
}

/// The time of a call in nanoseconds, if there is a limit.
fn limit_of(timeout: *const timespec) -> Result<Option<u64>, Errno> {
    if timeout.is_null() {
        return Ok(None);
    }
    let time = pointers::read(timeout).ok_or(Errno::FAULT)?;
    super::poll::nanoseconds(time.tv_sec, time.tv_nsec).map(Some).ok_or(Errno::INVAL)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if !is_connection(fd) || count == 0 {
        return unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    }
    let limit = match limit_of(timeout) {
        Ok(limit) => limit,
        Err(error) => return finish(Err(error)) as c_int,
    };
    let deadline = limit.map(|limit| sys::now().saturating_add(limit));
    let only_one = flags & libc::MSG_WAITFORONE != 0;
    let mut flags = flags & !libc::MSG_WAITFORONE;
    for index in 0..count {
        let message = messages.wrapping_add(index as usize);
        if !pointers::is_writable(message, size_of::<mmsghdr>()) {
            return if index == 0 { finish(Err(Errno::FAULT)) as c_int } else { index as c_int };
        }
        let received = unsafe { recvmsg(fd, &raw mut (*message).msg_hdr, flags) };
        if received < 0 {
            return if index == 0 { -1 } else { index as c_int };
        }
        unsafe { (*message).msg_len = received as c_uint };
        flags |= if only_one { libc::MSG_DONTWAIT } else { 0 };
        // As in the kernel: the limit is looked at between messages only.
        if deadline.is_some_and(|deadline| sys::now() >= deadline) {
            return index as c_int + 1;
        }
    }
    count as c_int
}

/// `read` and its kin: they are for pipes, too.
unsafe fn read_one(fd: c_int, bytes: *mut c_void, length: size_t) -> Option<ssize_t> {
    if fds::kind(fd) == Kind::Input && length > 0 && pointers::can_take(bytes, length) {
        let room = unsafe { slice::from_raw_parts_mut(bytes.cast::<u8>(), length) };
        return input::read(fd, &mut [IoSliceMut::new(room)]).map(finish);
    }
    unsafe { receive_one(fd, bytes, length, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, bytes: *mut c_void, length: size_t) -> ssize_t {
    unsafe { read_one(fd, bytes, length).unwrap_or_else(|| real::read(fd, bytes, length)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(fd: c_int, bytes: *mut c_void, length: size_t, room: size_t) -> ssize_t {
    let ours = if length <= room { unsafe { read_one(fd, bytes, length) } } else { None };
    unsafe { ours.unwrap_or_else(|| real::__read_chk(fd, bytes, length, room)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let ours = usize::try_from(count).ok().and_then(|count| match fds::kind(fd) {
        Kind::Input if count > 0 && unsafe { check_parts(parts, count, Errno::INVAL, pointers::can_take) }.is_ok() => {
            // An IoSliceMut is an iovec in memory.
            input::read(fd, unsafe { slice::from_raw_parts_mut(parts.cast_mut().cast::<IoSliceMut<'_>>(), count) }).map(finish)
        }
        _ => unsafe { receive_many(fd, parts, count, 0, Errno::INVAL) },
    });
    unsafe { ours.unwrap_or_else(|| real::readv(fd, parts, count)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, bytes: *const c_void, length: size_t, flags: c_int) -> ssize_t {
    unsafe { send_one(fd, bytes, length.min(MOST), flags).unwrap_or_else(|| real::send(fd, bytes, length, flags)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    length: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    if is_connection(fd)
        && let Err(error) = check_address(to, to_length)
    {
        return finish(Err(error));
    }
    let ours = unsafe { send_one(fd, bytes, length.min(MOST), flags) };
    ours.unwrap_or_else(|| unsafe { real::sendto(fd, bytes, length, flags, to, to_length) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if !is_connection(fd) {
        layer::tend_in_passing();
        return unsafe { real::sendmsg(fd, message, flags) };
    }
    let Some(header) = pointers::read(message) else { return finish(Err(Errno::FAULT)) };
    if let Err(error) = check_address(header.msg_name.cast(), header.msg_namelen) {
        return finish(Err(error));
    }
    let ours = unsafe { send_many(fd, header.msg_iov, header.msg_iovlen, flags, Errno::MSGSIZE) };
    unsafe { ours.unwrap_or_else(|| real::sendmsg(fd, message, flags)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if !is_connection(fd) {
        return unsafe { real::sendmmsg(fd, messages, count, flags) };
    }
    for index in 0..count.min(BUFFERS as c_uint) {
        let message = messages.wrapping_add(index as usize);
        if !pointers::is_writable(message, size_of::<mmsghdr>()) {
            return if index == 0 { finish(Err(Errno::FAULT)) as c_int } else { index as c_int };
        }
        let sent = unsafe { sendmsg(fd, &raw const (*message).msg_hdr, flags) };
        if sent < 0 {
            return if index == 0 { -1 } else { index as c_int };
        }
        unsafe { (*message).msg_len = sent as c_uint };
    }
    count as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, length: size_t) -> ssize_t {
    let ours = match fds::kind(fd) {
        Kind::Output if length > 0 && pointers::is_readable(bytes, length) => {
            output::write(fd, &[IoSlice::new(unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length) })]).map(finish)
        }
        _ => unsafe { send_one(fd, bytes, length, 0) },
    };
    unsafe { ours.unwrap_or_else(|| real::write(fd, bytes, length)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let ours = usize::try_from(count).ok().and_then(|count| match fds::kind(fd) {
        Kind::Output if count > 0 && unsafe { check_parts(parts, count, Errno::INVAL, pointers::is_readable) }.is_ok() => {
            output::write(fd, unsafe { slice::from_raw_parts(parts.cast::<IoSlice<'_>>(), count) }).map(finish)
        }
        _ => unsafe { send_many(fd, parts, count, 0, Errno::INVAL) },
    });
    unsafe { ours.unwrap_or_else(|| real::writev(fd, parts, count)) }
}

/// Copies from a file through memory to where the layer must see the bytes: the kernel's way would pass the outbox.
unsafe fn copy_file(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let mut buffer = [0u8; 16 << 10];
    let mut done = 0;
    while done < count {
        let want = buffer.len().min(count - done);
        let got = unsafe {
            if offset.is_null() {
                read(from, buffer.as_mut_ptr().cast(), want)
            } else {
                libc::pread(from, buffer.as_mut_ptr().cast(), want, *offset)
            }
        };
        if got <= 0 {
            return if done > 0 { done as ssize_t } else { got };
        }
        let sent = unsafe { write(to, buffer.as_ptr().cast(), got as size_t) };
        let taken = sent.max(0);
        if offset.is_null() {
            // What was read and not taken is given back.
            unsafe { libc::lseek(from, (taken - got) as off_t, libc::SEEK_CUR) };
        } else {
            unsafe { *offset += taken as off_t };
        }
        done += taken as usize;
        if sent < got {
            return if done > 0 { done as ssize_t } else { -1 };
        }
    }
    done as ssize_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    if is_connection(to) || fds::kind(to) == Kind::Output {
        // Standard input is a pipe: that cannot be sent so, here as elsewhere.
        if fds::kind(from) == Kind::Input {
            return finish(Err(Errno::INVAL));
        }
        if !offset.is_null() && !pointers::is_writable(offset, size_of::<off_t>()) {
            return finish(Err(Errno::FAULT));
        }
        if count > 0 {
            return unsafe { copy_file(to, from, offset, count) };
        }
    }
    unsafe { real::sendfile(to, from, offset, count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    unsafe { sendfile(to, from, offset, count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    let is_pipe = fds::kind(to) == Kind::Output || fds::kind(from) == Kind::Input;
    let are_open = || [from, to].iter().all(|fd| rustix::io::fcntl_getfd(sys::borrow(*fd)).is_ok());
    if (is_connection(from) || is_connection(to) || is_pipe && layer::is_active()) && are_open() {
        // As for a descriptor that cannot be spliced: callers copy then, or report it.
        static SAID: AtomicBool = AtomicBool::new(false);
        note_once(
            &SAID,
            "it splices a protected connection, its standard input or its standard output, whose bytes must pass through memory: that fails with EINVAL",
        );
        return finish(Err(Errno::INVAL));
    }
    unsafe { real::splice(from, from_offset, to, to_offset, length, flags) }
}

const _: () = assert!(size_of::<IoSlice<'_>>() == size_of::<iovec>());
