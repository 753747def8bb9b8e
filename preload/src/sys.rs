//! System calls of the layer itself, by rustix: raw, so that our own hooks never see them.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::{AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType};

use crate::fds;

/// The layer's descriptors come after this number if there is room: those that the program expects to get next stay free.
const HIGH: i32 = 1_000;

/// Most parts that one call sends.
pub const PARTS: usize = 64;

/// Clocks are read by system calls, and not by the kernel's page, which computes them from a counter that may trap.
static ASKS_KERNEL: AtomicBool = AtomicBool::new(false);

/// From now on clocks are read by system calls, or not.
pub fn ask_kernel(asks: bool) {
    ASKS_KERNEL.store(asks, Relaxed);
}

/// Whether clocks are read by system calls.
pub fn asks_kernel() -> bool {
    ASKS_KERNEL.load(Relaxed)
}

/// Nanoseconds of a clock, by a system call. None: there is no such clock.
#[allow(unsafe_code)]
pub fn clock(clock: libc::clockid_t) -> Option<i64> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    let result = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut now) };
    (result == 0).then(|| now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec))
}

/// Nanoseconds of the monotonic clock.
pub fn now() -> u64 {
    if asks_kernel() {
        return clock(libc::CLOCK_MONOTONIC).unwrap_or(0) as u64;
    }
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The same as of the last tick of the kernel, 1 to 10 ms ago: a quarter of what [`now`] takes. For what is looked after now and then.
pub fn tick() -> u64 {
    if asks_kernel() {
        return clock(libc::CLOCK_MONOTONIC_COARSE).unwrap_or(0) as u64;
    }
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The time of a processor that the calling thread has used, in nanoseconds.
pub fn time_of_thread() -> u64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0) as u64
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

/// A descriptor of the program, for the time of a call. Any number will do: of one that is none the kernel says so (EBADF).
#[allow(unsafe_code)]
pub fn borrow<'a>(fd: i32) -> BorrowedFd<'a> {
    /// As open as any negative number, which this type cannot hold: descriptors end below (the kernel's highest possible `fs.nr_open` is 64
    /// less).
    const NEVER_OPEN: i32 = i32::MAX;
    let fd = if fd < 0 { NEVER_OPEN } else { fd };
    // SAFETY: it is not -1, and only handed to system calls, which check it; the program may close it at any time, as it may in its own
    // calls.
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

/// Puts what is behind `from` behind the number `to`, whatever was there; whether it closes at an exec stays as it is.
#[allow(unsafe_code)]
pub fn replace(from: BorrowedFd<'_>, to: i32) -> Result<(), Errno> {
    let closes = rustix::io::fcntl_getfd(borrow(to)).is_ok_and(|flags| flags.contains(rustix::io::FdFlags::CLOEXEC));
    let flags = if closes { rustix::io::DupFlags::CLOEXEC } else { rustix::io::DupFlags::empty() };
    // SAFETY: the number is the program's, which knows nothing of the file behind it; it is not dropped here.
    let mut target = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(to) });
    rustix::io::dup3(from, &mut target, flags)
}

/// A descriptor with this very number, for a connection that replay accepts again: the program must find it taken.
#[allow(unsafe_code)]
pub fn place(fd: i32) -> Result<(), Errno> {
    // A socket of the same kind: the program sets its options.
    let new = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::empty(), None)?;
    if new.as_raw_fd() == fd {
        _ = give(new);
        return Ok(());
    }
    // SAFETY: the number is not open, or the program counts on what we put there; it is given to the program, not dropped.
    let mut target = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
    rustix::io::dup2(&new, &mut target)
}

/// An option as the kernel has it. None: it does not have it.
#[allow(unsafe_code)]
fn option(fd: BorrowedFd<'_>, level: i32, name: i32, room: &mut [u8; 16]) -> Option<usize> {
    let mut length = room.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes.
    let result = unsafe { libc::syscall(libc::SYS_getsockopt, fd.as_raw_fd(), level, name, room.as_mut_ptr(), &raw mut length) };
    (result == 0).then_some((length as usize).min(room.len()))
}

#[allow(unsafe_code)]
fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) {
    // SAFETY: the kernel reads this many bytes. What it refuses stays as it is.
    _ = unsafe { libc::syscall(libc::SYS_setsockopt, fd.as_raw_fd(), level, name, value.as_ptr(), value.len()) };
}

fn copy_options_of(from: BorrowedFd<'_>, to: BorrowedFd<'_>, options: &[(i32, i32)]) {
    for (level, name) in options {
        let mut value = [0; 16];
        if let Some(length) = option(from, *level, *name, &mut value) {
            set_option(to, *level, *name, &value[..length]);
        }
    }
}

/// Copies the times that a socket's calls may take.
pub fn copy_times(from: BorrowedFd<'_>, to: BorrowedFd<'_>) {
    let times = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO, libc::SO_LINGER];
    copy_options_of(from, to, &times.map(|name| (libc::SOL_SOCKET, name)));
}

/// Copies what a program may have set on a TCP socket to another one.
pub fn copy_options(from: BorrowedFd<'_>, to: BorrowedFd<'_>) {
    /// SO_BUF_LOCK: which buffers have a size of the program's, and what they are called. Others are the kernel's to size.
    const BUFFER_LOCK: i32 = 72;
    const BUFFERS: [(u8, i32); 2] = [(1, libc::SO_SNDBUF), (2, libc::SO_RCVBUF)];
    let of_socket = [libc::SO_KEEPALIVE, libc::SO_OOBINLINE, libc::SO_PRIORITY, libc::SO_RCVLOWAT];
    let of_tcp =
        [libc::TCP_NODELAY, libc::TCP_CORK, libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT, libc::TCP_USER_TIMEOUT];
    copy_times(from, to);
    copy_options_of(from, to, &of_socket.map(|name| (libc::SOL_SOCKET, name)));
    copy_options_of(from, to, &of_tcp.map(|name| (libc::IPPROTO_TCP, name)));
    copy_options_of(from, to, &[(libc::IPPROTO_IP, libc::IP_TOS)]);
    let (mut locks, mut size) = ([0; 16], [0; 16]);
    option(from, libc::SOL_SOCKET, BUFFER_LOCK, &mut locks);
    for (_, name) in BUFFERS.iter().filter(|(bit, _)| locks[0] & bit != 0) {
        if option(from, libc::SOL_SOCKET, *name, &mut size) == Some(4) {
            // The kernel tells twice of what it was told.
            let told = i32::from_ne_bytes([size[0], size[1], size[2], size[3]]) / 2;
            set_option(to, libc::SOL_SOCKET, *name, &told.to_ne_bytes());
        }
    }
}

/// Gives a descriptor to the program.
pub fn give(fd: OwnedFd) -> i32 {
    fd.into_raw_fd()
}

/// Waits until one of `fds` has what it waits for; no time: forever. EINTR is told: a signal of the program may want it.
pub fn poll(fds: &mut [PollFd<'_>], limit: Option<Timespec>) -> Result<usize, Errno> {
    rustix::event::poll(fds, limit.as_ref())
}

/// A span of time for [`poll`].
pub fn span(nanoseconds: u64) -> Timespec {
    Timespec { tv_sec: (nanoseconds / 1_000_000_000) as i64, tv_nsec: (nanoseconds % 1_000_000_000) as i64 }
}

/// Where a pipe is read and written: it has no offsets.
const NO_OFFSET: u64 = u64::MAX;

/// Writes what a pipe takes now, perhaps nothing. Never waits, although the descriptor may be set to wait and another process may
/// fill the pipe at this moment; but before Linux 6.5 it does wait then.
pub fn write_now(pipe: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    match rustix::io::pwritev2(pipe, &[IoSlice::new(bytes)], NO_OFFSET, ReadWriteFlags::NOWAIT) {
        Err(Errno::AGAIN) => Ok(0),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
            if poll(&mut [PollFd::from_borrowed_fd(pipe, PollFlags::OUT)], Some(span(0)))? == 0 {
                return Ok(0);
            }
            rustix::io::write(pipe, bytes).or_else(|error| if error == Errno::AGAIN { Ok(0) } else { Err(error) })
        }
        other => other,
    }
}

/// Reads what lies in a pipe; none: nothing lies there, which is not its end. Never waits, as [`write_now`] does not.
pub fn read_now(pipe: BorrowedFd<'_>, room: &mut [u8]) -> Result<Option<usize>, Errno> {
    let read = match rustix::io::preadv2(pipe, &mut [IoSliceMut::new(room)], NO_OFFSET, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
            if poll(&mut [PollFd::from_borrowed_fd(pipe, PollFlags::IN)], Some(span(0)))? == 0 {
                return Ok(None);
            }
            rustix::io::read(pipe, room)
        }
        other => other,
    };
    match read {
        Ok(count) => Ok(Some(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error),
    }
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

/// Runs this with a copy that leaves the caches to the program: what it writes goes to memory. Elsewhere than on x86 it is any other copy.
pub fn copy_past_caches(run: impl FnOnce(fn(&mut [u8], &[u8]))) {
    run(stream);
    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code)]
    // SAFETY: the processor has it. Such stores are in no order with others before it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
fn stream(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    assert!(to.len() == from.len(), "as many bytes as there is room for");
    let head = to.as_ptr().align_offset(size_of::<__m128i>()).min(to.len());
    let vectors = (to.len() - head) / size_of::<__m128i>();
    let tail = to.len() - (to.len() - head) % size_of::<__m128i>();
    to[..head].copy_from_slice(&from[..head]);
    to[tail..].copy_from_slice(&from[tail..]);
    let (to, from) = (to[head..tail].as_mut_ptr().cast::<__m128i>(), from[head..tail].as_ptr().cast::<__m128i>());
    for at in 0..vectors {
        // SAFETY: both slices have this many vectors from there, and `to` is aligned. What follows the last store is the fence of `copy_past_caches`.
        unsafe { _mm_stream_si128(to.add(at), _mm_loadu_si128(from.add(at))) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

/// `as_fd` of what is behind a number, for the layer's own.
pub fn number(fd: &impl AsFd) -> i32 {
    fd.as_fd().as_raw_fd()
}

/// The user at the other end of a unix socket.
pub fn peer_user(fd: BorrowedFd<'_>) -> Result<u32, Errno> {
    peer(fd).map(|(_, user)| user)
}

/// The process and the user at the other end of a unix socket. (Not by rustix: the process is 0 if it is in another pid
/// namespace, which rustix does not allow for.)
pub fn peer(fd: BorrowedFd<'_>) -> Result<(i32, u32), Errno> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    #[allow(unsafe_code)]
    // SAFETY: the kernel writes at most `length` bytes to `peer`.
    let result = unsafe {
        libc::syscall(libc::SYS_getsockopt, fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, &raw mut peer, &raw mut length)
    };
    if result == 0 { Ok((peer.pid, peer.uid)) } else { Err(Errno::NOTCONN) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_past_the_caches_is_there() {
        let from: Vec<u8> = (0..300).map(|at| at as u8).collect();
        for (begin, end) in [(0, 300), (1, 299), (15, 31), (16, 16), (3, 10), (17, 290)] {
            let mut to = vec![0xff; 300];
            copy_past_caches(|copy| copy(&mut to[begin..end], &from[begin..end]));
            let is_right = |(at, byte): (usize, &u8)| *byte == if (begin..end).contains(&at) { at as u8 } else { 0xff };
            assert!(to.iter().enumerate().all(is_right), "{begin} to {end}: {to:?}");
        }
    }

    #[test]
    fn of_a_number_that_is_no_descriptor_the_kernel_says_so() {
        for fd in [-1, i32::MIN, i32::MAX, 1 << 30] {
            assert_eq!(rustix::io::fcntl_getfd(borrow(fd)), Err(Errno::BADF), "{fd}");
            assert_eq!(rustix::net::listen(borrow(fd), 1), Err(Errno::BADF), "{fd}");
        }
    }

    /// Threads that write to one pipe, and others that read from it, all at once: none of them waits for another one.
    #[test]
    fn a_pipe_that_is_set_to_wait_is_not_waited_for() {
        let (reading, writing) = rustix::pipe::pipe().expect("a pipe");
        assert_eq!(read_now(reading.as_fd(), &mut [0; 8]), Ok(None), "nothing lies there");
        let written: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..1_000).map(|_| write_now(writing.as_fd(), &[1; 4096]).expect("it takes some")).sum::<usize>()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
        });
        assert_eq!(write_now(writing.as_fd(), &[1; 4096]), Ok(0), "it is full");
        let read: usize = std::thread::scope(|scope| {
            let take = || {
                let mut piece = [0; 1024];
                std::iter::from_fn(|| read_now(reading.as_fd(), &mut piece).expect("it can be read")).sum::<usize>()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
        });
        assert_eq!(read, written);
        drop(writing);
        assert_eq!(read_now(reading.as_fd(), &mut [0; 8]), Ok(Some(0)), "its end");
    }
}
