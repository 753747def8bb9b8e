//! System calls of the layer itself, by rustix: raw, so that our own hooks never see them.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use crate::fds;

/// The layer's descriptors come after this number if there is room: those that the program expects to get next stay free.
const HIGH: i32 = 1_000;

/// Most parts that one call sends.
pub const PARTS: usize = 64;

/// Nanoseconds of the monotonic clock.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Moves a new descriptor out of the way of the program's, and marks it as the layer's own.
pub fn high(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    let moved = match rustix::io::fcntl_dupfd_cloexec(&fd, HIGH) {
        Ok(moved) => moved,
        Err(Errno::INVAL | Errno::MFILE) => fd, // The limit is lower: it stays where it is.
        Err(error) => return Err(error),
    };
    _ = fds::set(moved.as_raw_fd(), fds::Kind::Own, true);
    Ok(moved)
}

/// Closes a descriptor of the layer's own.
pub fn close_own(fd: OwnedFd) {
    fds::clear(fd.as_raw_fd());
    drop(fd);
}

/// A descriptor of the program, for the time of a call.
#[allow(unsafe_code)]
pub fn borrow<'a>(fd: i32) -> BorrowedFd<'a> {
    assert!(fd >= 0, "no descriptor");
    // SAFETY: it is only handed to system calls, which check it; the program may close it at any time, as it may in its own calls.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// A descriptor that the layer owns from now on.
#[allow(unsafe_code)]
pub fn own(fd: i32) -> OwnedFd {
    // SAFETY: the caller has just made it and keeps no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Has the kernel choose a port at `bind`, whatever the program prefers (IP_BIND_ADDRESS_NO_PORT).
#[allow(unsafe_code)]
pub fn choose_port_at_bind(fd: i32) {
    let off = 0i32;
    // SAFETY: the kernel reads one int.
    _ = unsafe {
        libc::syscall(libc::SYS_setsockopt, fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &raw const off, size_of::<i32>())
    };
}

/// Gives a descriptor to the program.
pub fn give(fd: OwnedFd) -> i32 {
    fd.into_raw_fd()
}

/// Waits until one of `fds` has what it waits for; no time: for ever. EINTR is told: a signal of the program may want it.
pub fn poll(fds: &mut [PollFd<'_>], limit: Option<Timespec>) -> Result<usize, Errno> {
    rustix::event::poll(fds, limit.as_ref())
}

/// A span of time for [`poll`].
pub fn span(nanoseconds: u64) -> Timespec {
    Timespec { tv_sec: (nanoseconds / 1_000_000_000) as i64, tv_nsec: (nanoseconds % 1_000_000_000) as i64 }
}

/// Waits for one descriptor of the layer; signals do not count.
pub fn wait_for(fd: BorrowedFd<'_>, events: PollFlags, milliseconds: u64) -> Result<(), Errno> {
    let deadline = now() + milliseconds * 1_000_000;
    loop {
        let left = deadline.saturating_sub(now());
        match poll(&mut [PollFd::from_borrowed_fd(fd, events)], Some(span(left))) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Sends all of it.
pub fn send_all(fd: BorrowedFd<'_>, bytes: &[u8], milliseconds: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::net::send(fd, &bytes[done..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(count) => done += count,
            Err(Errno::AGAIN) => wait_for(fd, PollFlags::OUT, milliseconds)?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Receives just as much. An end before that is a reset.
pub fn receive_all(fd: BorrowedFd<'_>, bytes: &mut [u8], milliseconds: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::net::recv(fd, &mut bytes[done..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(Errno::CONNRESET),
            Ok((_, count)) => done += count,
            Err(Errno::AGAIN) => wait_for(fd, PollFlags::IN, milliseconds)?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends what the socket takes of these parts, without waiting.
pub fn send_parts(fd: BorrowedFd<'_>, parts: &[&[u8]]) -> Result<usize, Errno> {
    let mut slices: [IoSlice<'_>; PARTS] = std::array::from_fn(|_| IoSlice::new(&[]));
    let count = parts.len().min(slices.len());
    slices.iter_mut().zip(parts).for_each(|(slice, part)| *slice = IoSlice::new(part));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match rustix::net::sendmsg(fd, &slices[..count], &mut SendAncillaryBuffer::default(), flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(0),
            other => return other,
        }
    }
}

/// `as_fd` of what is behind a number, for the layer's own.
pub fn number(fd: &impl AsFd) -> i32 {
    fd.as_fd().as_raw_fd()
}
