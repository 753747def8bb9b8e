//! Bytes: recv, send and their kin.

use std::ffi::{c_int, c_uint, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::slice;
use std::sync::atomic::AtomicBool;

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, sockaddr_storage, socklen_t, ssize_t, timespec};
use rustix::io::Errno;

use super::result::finish;
use crate::buffers::BUFFERS;
use crate::fds::{self, Kind, is_connection};
use crate::ops::descriptor::note_once;
use crate::ops::socket::{self, How};
use crate::ops::{self, kernel};
use crate::pointers::{self, MOST};
use crate::{layer, phase, sys};

hooks! {
    unsafe fn recv(fd: c_int, bytes: *mut c_void, length: size_t, flags: c_int) -> ssize_t => on_recv {
        unsafe { receive_one(fd, bytes, length.min(MOST), flags).unwrap_or_else(|| real!(recv)(fd, bytes, length, flags)) }
    }

    unsafe fn __recv_chk(fd: c_int, bytes: *mut c_void, length: size_t, room: size_t, flags: c_int) -> ssize_t => on_recv_chk {
        // Too little room: the next one ends the program, as it does without us. So in all functions of this kind.
        unsafe { if length > room { real!(__recv_chk)(fd, bytes, length, room, flags) } else { on_recv(fd, bytes, length, flags) } }
    }

    unsafe fn recvfrom(
        fd: c_int, bytes: *mut c_void, length: size_t, flags: c_int, from: *mut sockaddr, from_length: *mut socklen_t
    ) -> ssize_t => on_recvfrom {
        let ours = unsafe { receive_one(fd, bytes, length.min(MOST), flags) };
        let ours = ours.map(|result| unsafe { without_sender(result, from, from_length) });
        ours.unwrap_or_else(|| unsafe { real!(recvfrom)(fd, bytes, length, flags, from, from_length) })
    }

    unsafe fn __recvfrom_chk(
        fd: c_int, bytes: *mut c_void, length: size_t, room: size_t, flags: c_int, from: *mut sockaddr, from_length: *mut socklen_t
    ) -> ssize_t => on_recvfrom_chk {
        if length > room {
            return unsafe { real!(__recvfrom_chk)(fd, bytes, length, room, flags, from, from_length) };
        }
        unsafe { on_recvfrom(fd, bytes, length, flags, from, from_length) }
    }

    unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t => on_recvmsg {
        unsafe { receive_message(fd, message, flags).unwrap_or_else(|| real!(recvmsg)(fd, message, flags)) }
    }

    unsafe fn recvmmsg(
        fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec
    ) -> c_int => on_recvmmsg {
        if !is_connection(fd) || count == 0 {
            return unsafe { real!(recvmmsg)(fd, messages, count, flags, timeout) };
        }
        unsafe { receive_messages(fd, messages, count, flags, timeout) }
    }

    unsafe fn read(fd: c_int, bytes: *mut c_void, length: size_t) -> ssize_t => on_read {
        unsafe { read_one(fd, bytes, length).unwrap_or_else(|| real!(read)(fd, bytes, length)) }
    }

    unsafe fn __read_chk(fd: c_int, bytes: *mut c_void, length: size_t, room: size_t) -> ssize_t => on_read_chk {
        unsafe { if length > room { real!(__read_chk)(fd, bytes, length, room) } else { on_read(fd, bytes, length) } }
    }

    unsafe fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t => on_readv {
        unsafe { read_parts(fd, parts, count).unwrap_or_else(|| real!(readv)(fd, parts, count)) }
    }

    unsafe fn send(fd: c_int, bytes: *const c_void, length: size_t, flags: c_int) -> ssize_t => on_send {
        unsafe { send_one(fd, bytes, length.min(MOST), flags).unwrap_or_else(|| real!(send)(fd, bytes, length, flags)) }
    }

    unsafe fn sendto(
        fd: c_int, bytes: *const c_void, length: size_t, flags: c_int, to: *const sockaddr, to_length: socklen_t
    ) -> ssize_t => on_sendto {
        if is_connection(fd)
            && let Err(error) = check_address(to, to_length)
        {
            return finish(Err(error));
        }
        let ours = unsafe { send_one(fd, bytes, length.min(MOST), flags) };
        ours.unwrap_or_else(|| unsafe { real!(sendto)(fd, bytes, length, flags, to, to_length) })
    }

    unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t => on_sendmsg {
        unsafe { send_message(fd, message, flags).unwrap_or_else(|| real!(sendmsg)(fd, message, flags)) }
    }

    unsafe fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int => on_sendmmsg {
        if !is_connection(fd) {
            return unsafe { real!(sendmmsg)(fd, messages, count, flags) };
        }
        unsafe { send_messages(fd, messages, count, flags) }
    }

    unsafe fn write(fd: c_int, bytes: *const c_void, length: size_t) -> ssize_t => on_write {
        unsafe { write_one(fd, bytes, length).unwrap_or_else(|| real!(write)(fd, bytes, length)) }
    }

    unsafe fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t => on_writev {
        unsafe { write_parts(fd, parts, count).unwrap_or_else(|| real!(writev)(fd, parts, count)) }
    }

    unsafe fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t => on_sendfile {
        unsafe { send_file(to, from, offset, count).unwrap_or_else(|| real!(sendfile)(to, from, offset, count)) }
    }

    unsafe fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t => on_sendfile64 {
        unsafe { send_file(to, from, offset, count).unwrap_or_else(|| real!(sendfile64)(to, from, offset, count)) }
    }

    unsafe fn splice(
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, length: size_t, flags: c_uint
    ) -> ssize_t => on_splice {
        if must_pass_through_memory(from, to) {
            return finish(Err(Errno::INVAL));
        }
        unsafe { real!(splice)(from, from_offset, to, to_offset, length, flags) }
    }
}

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

#[inline(always)]
unsafe fn receive_one(fd: c_int, bytes: *mut c_void, length: size_t, flags: c_int) -> Option<ssize_t> {
    if !is_connection(fd) {
        if fds::kind(fd) == Kind::Pmi && length > 0 && flags & !libc::MSG_DONTWAIT == 0 && pointers::can_take(bytes, length) {
            let room = unsafe { slice::from_raw_parts_mut(bytes.cast::<u8>(), length) };
            return ops::pmi::receive(fd, &mut [IoSliceMut::new(room)], flags != 0).map(finish);
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

#[inline]
fn how(flags: c_int) -> Result<How, Errno> {
    if flags & libc::MSG_TRUNC != 0 {
        note_dropped();
    }
    How::of(flags)
}

#[cold]
fn note_dropped() {
    static SAID: AtomicBool = AtomicBool::new(false);
    note_once(&SAID, "it wants to drop received bytes (MSG_TRUNC), which protected connections refuse (EOPNOTSUPP)");
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

#[inline(always)]
unsafe fn send_one(fd: c_int, bytes: *const c_void, length: size_t, flags: c_int) -> Option<ssize_t> {
    if !is_connection(fd) {
        if fds::kind(fd) == Kind::Pmi && length > 0 && pointers::is_readable(bytes, length) {
            return ops::pmi::send(fd, &[IoSlice::new(unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length) })]).map(finish);
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

/// What `recvfrom` returns: TCP says nothing about the sender. As in the kernel, what was received is lost if there is no place to say that.
unsafe fn without_sender(result: ssize_t, from: *mut sockaddr, from_length: *mut socklen_t) -> ssize_t {
    if result < 0 || from.is_null() {
        return result;
    }
    match pointers::read(from_length) {
        Some(long) if long > c_int::MAX as socklen_t => finish(Err(Errno::INVAL)),
        Some(_) if pointers::is_writable(from_length, size_of::<socklen_t>()) => {
            unsafe { from_length.write_unaligned(0) };
            result
        }
        _ => finish(Err(Errno::FAULT)),
    }
}

unsafe fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int) -> Option<ssize_t> {
    if !is_connection(fd) {
        layer::tend_in_passing();
        return None;
    }
    if !pointers::is_writable(message, size_of::<msghdr>()) {
        return Some(finish(Err(Errno::FAULT)));
    }
    let ours = unsafe { receive_many(fd, (*message).msg_iov, (*message).msg_iovlen, flags, Errno::MSGSIZE) };
    if ours.is_some_and(|count| count >= 0) {
        unsafe { ((*message).msg_namelen, (*message).msg_controllen, (*message).msg_flags) = (0, 0, 0) };
    }
    ours
}

/// The time of a call in nanoseconds, if there is a limit.
fn limit_of(timeout: *const timespec) -> Result<Option<u64>, Errno> {
    if timeout.is_null() {
        return Ok(None);
    }
    let time = pointers::read(timeout).ok_or(Errno::FAULT)?;
    super::poll::nanoseconds(time.tv_sec, time.tv_nsec).map(Some).ok_or(Errno::INVAL)
}

unsafe fn receive_messages(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
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
        let received = unsafe { on_recvmsg(fd, &raw mut (*message).msg_hdr, flags) };
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
        return ops::input::read(fd, &mut [IoSliceMut::new(room)]).map(finish);
    }
    if fds::kind(fd) == Kind::Random && length > 0 && pointers::is_writable(bytes, length) {
        return unsafe { read_random(fd, slice::from_raw_parts_mut(bytes.cast::<u8>(), length)) };
    }
    unsafe { receive_one(fd, bytes, length, 0) }
}

/// Reads the kernel's source of random bytes.
pub(super) unsafe fn read_random(fd: c_int, room: &mut [u8]) -> Option<ssize_t> {
    kernel::random(room, |room| rustix::io::read(sys::borrow(fd), room)).map(finish)
}

unsafe fn read_parts(fd: c_int, parts: *const iovec, count: c_int) -> Option<ssize_t> {
    usize::try_from(count).ok().and_then(|count| match fds::kind(fd) {
        Kind::Input if count > 0 && unsafe { check_parts(parts, count, Errno::INVAL, pointers::can_take) }.is_ok() => {
            // An IoSliceMut is an iovec in memory.
            ops::input::read(fd, unsafe { slice::from_raw_parts_mut(parts.cast_mut().cast::<IoSliceMut<'_>>(), count) })
                .map(finish)
        }
        // It may give fewer bytes than it is asked for.
        Kind::Random if count > 0 => pointers::read(parts).and_then(|part| unsafe { read_one(fd, part.iov_base, part.iov_len) }),
        _ => unsafe { receive_many(fd, parts, count, 0, Errno::INVAL) },
    })
}

unsafe fn send_message(fd: c_int, message: *const msghdr, flags: c_int) -> Option<ssize_t> {
    if !is_connection(fd) {
        layer::tend_in_passing();
        return None;
    }
    let Some(header) = pointers::read(message) else { return Some(finish(Err(Errno::FAULT))) };
    if let Err(error) = check_address(header.msg_name.cast(), header.msg_namelen) {
        return Some(finish(Err(error)));
    }
    unsafe { send_many(fd, header.msg_iov, header.msg_iovlen, flags, Errno::MSGSIZE) }
}

unsafe fn send_messages(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    for index in 0..count.min(BUFFERS as c_uint) {
        let message = messages.wrapping_add(index as usize);
        if !pointers::is_writable(message, size_of::<mmsghdr>()) {
            return if index == 0 { finish(Err(Errno::FAULT)) as c_int } else { index as c_int };
        }
        let sent = unsafe { on_sendmsg(fd, &raw const (*message).msg_hdr, flags) };
        if sent < 0 {
            return if index == 0 { -1 } else { index as c_int };
        }
        unsafe { (*message).msg_len = sent as c_uint };
    }
    count as c_int
}

/// `write` and its kin: they are for pipes, too.
unsafe fn write_one(fd: c_int, bytes: *const c_void, length: size_t) -> Option<ssize_t> {
    match fds::kind(fd) {
        Kind::Output if length > 0 && pointers::is_readable(bytes, length) => {
            ops::output::write(fd, &[IoSlice::new(unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length) })]).map(finish)
        }
        _ => unsafe { send_one(fd, bytes, length, 0) },
    }
}

unsafe fn write_parts(fd: c_int, parts: *const iovec, count: c_int) -> Option<ssize_t> {
    usize::try_from(count).ok().and_then(|count| match fds::kind(fd) {
        Kind::Output if count > 0 && unsafe { check_parts(parts, count, Errno::INVAL, pointers::is_readable) }.is_ok() => {
            ops::output::write(fd, unsafe { slice::from_raw_parts(parts.cast::<IoSlice<'_>>(), count) }).map(finish)
        }
        _ => unsafe { send_many(fd, parts, count, 0, Errno::INVAL) },
    })
}

/// Copies from a file through memory to where the layer must see the bytes: the kernel's way would pass the outbox.
unsafe fn copy_file(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let mut buffer = [0u8; 16 << 10];
    let mut done = 0;
    while done < count {
        let want = buffer.len().min(count - done);
        let got = unsafe {
            if offset.is_null() {
                on_read(from, buffer.as_mut_ptr().cast(), want)
            } else {
                libc::pread(from, buffer.as_mut_ptr().cast(), want, *offset)
            }
        };
        if got <= 0 {
            return if done > 0 { done as ssize_t } else { got };
        }
        let sent = unsafe { on_write(to, buffer.as_ptr().cast(), got as size_t) };
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

/// Sends a file to where the layer must see the bytes; none: the kernel sends it, or says what is wrong.
unsafe fn send_file(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> Option<ssize_t> {
    if !is_connection(to) && fds::kind(to) != Kind::Output {
        return None;
    }
    // Standard input is a pipe: that cannot be sent so, here as elsewhere.
    if fds::kind(from) == Kind::Input {
        return Some(finish(Err(Errno::INVAL)));
    }
    if !offset.is_null() && !pointers::is_writable(offset, size_of::<off_t>()) {
        return Some(finish(Err(Errno::FAULT)));
    }
    if count > 0 { Some(unsafe { copy_file(to, from, offset, count) }) } else { None }
}

/// Whether `splice` is refused, as for a descriptor that cannot be spliced: callers copy then, or report it.
fn must_pass_through_memory(from: c_int, to: c_int) -> bool {
    let is_pipe = fds::kind(to) == Kind::Output || fds::kind(from) == Kind::Input;
    let are_open = || [from, to].iter().all(|fd| rustix::io::fcntl_getfd(sys::borrow(*fd)).is_ok());
    let ours = (is_connection(from) || is_connection(to) || is_pipe && phase::is_active()) && are_open();
    if ours {
        static SAID: AtomicBool = AtomicBool::new(false);
        note_once(
            &SAID,
            "it splices a protected connection, its standard input or its standard output, and their bytes must pass through memory: that fails with EINVAL",
        );
    }
    ours
}

const _: () = assert!(size_of::<IoSlice<'_>>() == size_of::<iovec>());
