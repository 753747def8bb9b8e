//! Raw system calls: no libc, no errno, no thread-local state, no allocation. Usable while the program is stopped, in the forked
//! child, and before the program's memory is whole. Numbers and constants come from the `libc` crate.

#![allow(clippy::missing_safety_doc, reason = "the one rule is given at syscall")]

use core::arch::asm;
use core::ffi::CStr;

use crate::page::PAGE_BYTES;

/// A negative answer of the kernel, as a positive errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// What a system call gives.
pub type Answer = Result<usize, Errno>;

/// Does a system call.
///
/// # Safety
/// Whatever the call does to memory must be allowed: pointers valid for what the kernel reads and writes there.
pub unsafe fn syscall(number: i64, args: [usize; 6]) -> Answer {
    let mut result = number as isize;
    // SAFETY: the kernel's calling convention; the caller answers for the arguments.
    unsafe {
        asm!("syscall", inlateout("rax") result, in("rdi") args[0], in("rsi") args[1], in("rdx") args[2], in("r10") args[3],
            in("r8") args[4], in("r9") args[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    if (-4095..0).contains(&result) { Err(Errno(-result as i32)) } else { Ok(result as usize) }
}

/// `syscall` with fewer arguments: `call!(number, a, b, ...)`, each converted by `as usize`.
macro_rules! call {
    ($number:expr $(, $arg:expr)* $(,)?) => {{
        let given: &[usize] = &[$($arg as usize),*];
        let mut args = [0usize; 6];
        args[..given.len()].copy_from_slice(given);
        $crate::sys::syscall($number, args)
    }};
}
pub(crate) use call;

/// System calls that neither read nor write memory of the process nor take any away, whatever numbers they are given.
const PLAIN: [i64; 26] = [
    libc::SYS_kill,
    libc::SYS_tgkill,
    libc::SYS_umask,
    libc::SYS_listen,
    libc::SYS_epoll_create1,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timer_delete,
    libc::SYS_ftruncate,
    libc::SYS_socket,
    libc::SYS_kcmp,
    libc::SYS_personality,
    libc::SYS_pidfd_open,
    libc::SYS_geteuid,
    libc::SYS_getegid,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_unshare,
    libc::SYS_flock,
    libc::SYS_shmget,
    libc::SYS_userfaultfd,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_lseek,
    libc::SYS_dup3,
    libc::SYS_tee,
];

/// Does a system call that has nothing to do with memory.
///
/// # Panics
/// If it is not one of these: an error of the caller.
pub fn plain_call(number: i64, args: [usize; 6]) -> Answer {
    assert!(PLAIN.contains(&number), "only system calls that are known to leave memory alone");
    // SAFETY: it leaves memory alone.
    unsafe { syscall(number, args) }
}

/// `plain_call` with fewer arguments: `plain!(number, a, b, ...)`, each converted by `as usize`.
macro_rules! plain {
    ($number:expr $(, $arg:expr)* $(,)?) => {{
        let given: &[usize] = &[$($arg as usize),*];
        let mut args = [0usize; 6];
        args[..given.len()].copy_from_slice(given);
        $crate::sys::plain_call($number, args)
    }};
}
pub(crate) use plain;

/// Gives the file that `path` leads to, links followed, this name in an open folder, too.
pub fn link(path: &CStr, folder: i32, name: &CStr) -> Answer {
    // SAFETY: both end with a zero byte, and the kernel only reads them.
    unsafe { call!(libc::SYS_linkat, libc::AT_FDCWD, path.as_ptr(), folder, name.as_ptr(), libc::AT_SYMLINK_FOLLOW) }
}

/// Reads into `buffer`, once.
pub fn read(fd: i32, buffer: &mut [u8]) -> Answer {
    // SAFETY: the kernel writes within the buffer.
    unsafe { call!(libc::SYS_read, fd, buffer.as_mut_ptr(), buffer.len()) }
}

/// Reads at an offset, once.
pub fn pread(fd: i32, buffer: &mut [u8], at: u64) -> Answer {
    // SAFETY: the kernel writes within the buffer.
    unsafe { call!(libc::SYS_pread64, fd, buffer.as_mut_ptr(), buffer.len(), at) }
}

/// Writes all of `bytes`.
pub fn write_all(fd: i32, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        // SAFETY: the kernel reads within the slice.
        match unsafe { call!(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()) } {
            Ok(0) => return Err(Errno(libc::EIO)),
            Ok(done) => bytes = &bytes[done..],
            Err(Errno(libc::EINTR)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `bytes` at an offset.
pub fn pwrite_all(fd: i32, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        // SAFETY: the kernel reads within the slice.
        match unsafe { call!(libc::SYS_pwrite64, fd, bytes.as_ptr(), bytes.len(), at) } {
            Ok(0) => return Err(Errno(libc::EIO)),
            Ok(done) => (bytes, at) = (&bytes[done..], at + done as u64),
            Err(Errno(libc::EINTR)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of both parts with as few calls as possible.
pub fn write_both(fd: i32, mut head: &[u8], mut tail: &[u8]) -> Result<(), Errno> {
    while !head.is_empty() {
        let parts = [
            libc::iovec { iov_base: head.as_ptr() as *mut _, iov_len: head.len() },
            libc::iovec { iov_base: tail.as_ptr() as *mut _, iov_len: tail.len() },
        ];
        // SAFETY: the kernel reads two valid slices.
        match unsafe { call!(libc::SYS_writev, fd, parts.as_ptr(), 2) } {
            Ok(done) if done < head.len() => head = &head[done..],
            Ok(done) => {
                tail = &tail[done - head.len()..];
                head = &[];
            }
            Err(Errno(libc::EINTR)) => {}
            Err(error) => return Err(error),
        }
    }
    write_all(fd, tail)
}

/// Opens the file named by `path`, which ends with a zero byte. O_CLOEXEC is added.
pub fn open(path: &[u8], flags: i32, mode: u32) -> Result<i32, Errno> {
    assert_eq!(path.last(), Some(&0), "a path for the kernel ends with a zero byte");
    // SAFETY: the kernel reads up to the zero byte.
    unsafe { call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_CLOEXEC, mode) }.map(|fd| fd as i32)
}

/// Closes a descriptor; nothing can be done about an error.
pub fn close(fd: i32) {
    let _ = plain!(libc::SYS_close, fd);
}

/// Reads a whole file from its beginning, as much as `buffer` holds; how much that was.
pub fn slurp(path: &[u8], buffer: &mut [u8]) -> Answer {
    let fd = open(path, libc::O_RDONLY, 0)?;
    let mut have = 0;
    let result = loop {
        match read(fd, &mut buffer[have..]) {
            Ok(0) => break Ok(have),
            Ok(more) => have += more,
            Err(Errno(libc::EINTR)) => {}
            Err(error) => break Err(error),
        }
    };
    close(fd);
    result
}

/// Reads a symbolic link.
pub fn readlink<'a>(path: &[u8], buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    assert_eq!(path.last(), Some(&0), "a path for the kernel ends with a zero byte");
    // SAFETY: the kernel reads up to the zero byte and writes within the buffer.
    let len = unsafe { call!(libc::SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), buffer.as_mut_ptr(), buffer.len()) }?;
    Ok(&buffer[..len])
}

/// Properties of a file by its path, which ends with a zero byte.
pub fn stat(path: &[u8]) -> Result<libc::stat, Errno> {
    assert_eq!(path.last(), Some(&0), "a path for the kernel ends with a zero byte");
    let mut out = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel reads up to the zero byte and writes one stat, for which all zeroes is valid, too.
    unsafe { call!(libc::SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), out.as_mut_ptr(), 0).map(|_| out.assume_init()) }
}

/// Properties of an open file.
pub fn fstat(fd: i32) -> Result<libc::stat, Errno> {
    let mut out = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel writes one stat, for which all zeroes is valid, too.
    unsafe { call!(libc::SYS_fstat, fd, out.as_mut_ptr()).map(|_| out.assume_init()) }
}

/// fcntl with a number as argument.
pub fn fcntl(fd: i32, command: i32, arg: usize) -> Answer {
    // SAFETY: used with commands whose argument is a number.
    unsafe { call!(libc::SYS_fcntl, fd, command, arg) }
}

/// lseek.
pub fn lseek(fd: i32, offset: i64, whence: i32) -> Answer {
    plain!(libc::SYS_lseek, fd, offset, whence)
}

/// Makes `to` a duplicate of `from`.
pub fn dup3(from: i32, to: i32, flags: i32) -> Result<(), Errno> {
    plain!(libc::SYS_dup3, from, to, flags).map(drop)
}

/// Calls `each` for every number in a directory of numbers (`/proc/self/fd`, `/proc/self/task`).
pub fn numbers(path: &[u8], mut each: impl FnMut(i32)) -> Result<(), Errno> {
    let fd = open(path, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let mut buffer = [0u8; 2048];
    let result = loop {
        // SAFETY: the kernel writes within the buffer.
        let have = match unsafe { call!(libc::SYS_getdents64, fd, buffer.as_mut_ptr(), buffer.len()) } {
            Ok(0) => break Ok(()),
            Ok(have) => have,
            Err(error) => break Err(error),
        };
        let mut entries = &buffer[..have];
        // struct linux_dirent64: inode 8, offset 8, length 2, type 1, name.
        while entries.len() > 19 {
            let len = usize::from(u16::from_le_bytes([entries[16], entries[17]]));
            let name = &entries[19..len];
            let digits = name.iter().take_while(|b| b.is_ascii_digit()).count();
            if digits > 0 {
                let number = name[..digits].iter().fold(0i64, |n, b| n * 10 + i64::from(b - b'0'));
                if number != i64::from(fd) || !path.starts_with(b"/proc/self/fd") {
                    each(number as i32);
                }
            }
            entries = &entries[len..];
        }
    };
    close(fd);
    result
}

/// The calling thread's id.
#[must_use]
pub fn gettid() -> i32 {
    plain!(libc::SYS_gettid).unwrap_or(0) as i32
}

/// The process's id.
#[must_use]
pub fn getpid() -> i32 {
    plain!(libc::SYS_getpid).unwrap_or(0) as i32
}

/// A clock's time in nanoseconds.
#[must_use]
pub fn clock(id: i32) -> u64 {
    let mut time = [0i64; 2];
    // SAFETY: the kernel writes one timespec.
    let _ = unsafe { call!(libc::SYS_clock_gettime, id, time.as_mut_ptr()) };
    time[0] as u64 * 1_000_000_000 + time[1] as u64
}

/// Waits while `*word == value`, at most `nanoseconds` (none: for ever). Returns for any reason.
pub fn futex_wait(word: &core::sync::atomic::AtomicU32, value: u32, nanoseconds: Option<u64>) {
    let time = nanoseconds.map(|n| [(n / 1_000_000_000) as i64, (n % 1_000_000_000) as i64]);
    let pointer = time.as_ref().map_or(core::ptr::null(), |t| t.as_ptr());
    // SAFETY: the word outlives the call; the timespec, too.
    let _ = unsafe { call!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, pointer) };
}

/// Wakes all that wait for `word`.
pub fn futex_wake(word: &core::sync::atomic::AtomicU32) {
    // SAFETY: the kernel only uses the address.
    let _ = unsafe { call!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Ends the process at once.
pub fn exit_group(code: i32) -> ! {
    loop {
        // SAFETY: does not return.
        let _ = unsafe { call!(libc::SYS_exit_group, code) };
    }
}

/// Maps memory. `flags` must not contain MAP_FIXED over anything that is in use.
///
/// # Safety
/// With MAP_FIXED, nothing may use what is at `addr`.
pub unsafe fn mmap(addr: u64, len: u64, prot: i32, flags: i32, fd: i32, offset: u64) -> Result<u64, Errno> {
    // SAFETY: the caller's.
    unsafe { call!(libc::SYS_mmap, addr, len, prot, flags, fd, offset) }.map(|addr| addr as u64)
}

/// Unmaps memory.
///
/// # Safety
/// Nothing may use it any more.
pub unsafe fn munmap(addr: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: the caller's.
    unsafe { call!(libc::SYS_munmap, addr, len) }.map(drop)
}

/// A new pipe: its reading and its writing end.
pub fn pipe() -> Result<[i32; 2], Errno> {
    let mut ends = [0i32; 2];
    // SAFETY: the kernel writes two ints.
    unsafe { call!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) }.map(|_| ends)
}

/// Two sockets that are connected to each other.
pub fn socket_pair() -> Result<[i32; 2], Errno> {
    socket_pair_of(libc::SOCK_STREAM)
}

/// The same, of a kind.
pub fn socket_pair_of(kind: i32) -> Result<[i32; 2], Errno> {
    let mut ends = [0i32; 2];
    // SAFETY: the kernel writes two ints.
    unsafe { call!(libc::SYS_socketpair, libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) }.map(|_| ends)
}

/// A new file in memory.
pub fn memory_file() -> Result<i32, Errno> {
    // SAFETY: the kernel reads the name.
    unsafe { call!(libc::SYS_memfd_create, c"radic".as_ptr(), libc::MFD_CLOEXEC) }.map(|fd| fd as i32)
}

/// A socket's option that is a number.
pub fn socket_option(fd: i32, option: i32) -> Result<i32, Errno> {
    let (mut number, mut len) = (0i32, 4u32);
    // SAFETY: the kernel writes one int, and its length.
    unsafe { call!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, option, &raw mut number, &raw mut len) }.map(|_| number)
}

/// The process and the user at the other end of a unix socket, as they were when it was connected (or began to listen) and as this process sees them: process 0
/// is one of a pid namespace around this one's; of users that have no number in this process's user namespace all are the same one.
pub fn peer(fd: i32) -> Result<(i32, u32), Errno> {
    let (mut peer, mut len) = ([0u32; 3], 12u32);
    // SAFETY: the kernel writes one ucred, and its length.
    unsafe { call!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_PEERCRED, peer.as_mut_ptr(), &raw mut len) }?;
    Ok((peer[0] as i32, peer[1]))
}

/// Sets a socket's option.
pub fn set_socket_option(fd: i32, option: i32, value: &[u8]) -> Result<(), Errno> {
    // SAFETY: the kernel reads the value.
    unsafe { call!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, option, value.as_ptr(), value.len()) }.map(drop)
}

/// Longest address of a socket, in bytes.
pub const ADDRESS_BYTES: usize = size_of::<libc::sockaddr_storage>();

/// An address of a socket, by getsockname or getpeername; how many bytes of `address` it takes.
pub fn socket_address(number: i64, fd: i32, address: &mut [u8; ADDRESS_BYTES]) -> Answer {
    assert!([libc::SYS_getsockname, libc::SYS_getpeername].contains(&number), "one of the two");
    let mut len = address.len() as u32;
    // SAFETY: the kernel writes an address, and its length.
    unsafe { call!(number, fd, address.as_mut_ptr(), &raw mut len) }.map(|_| (len as usize).min(address.len()))
}

/// Binds or connects a socket.
pub fn to_address(number: i64, fd: i32, address: &[u8]) -> Result<(), Errno> {
    assert!([libc::SYS_bind, libc::SYS_connect].contains(&number), "one of the two");
    // SAFETY: the kernel reads the address.
    unsafe { call!(number, fd, address.as_ptr(), address.len()) }.map(drop)
}

/// A limit of the process: soft and hard.
pub fn limit(number: usize) -> Result<[u64; 2], Errno> {
    let mut limit = [0u64; 2];
    // SAFETY: the kernel writes one limit.
    unsafe { call!(libc::SYS_prlimit64, 0, number, 0, limit.as_mut_ptr()) }.map(|_| limit)
}

/// Sets a limit of the process.
pub fn set_limit(number: usize, limit: &[u64; 2]) -> Result<(), Errno> {
    // SAFETY: the kernel reads one limit.
    unsafe { call!(libc::SYS_prlimit64, 0, number, limit.as_ptr(), 0) }.map(drop)
}

/// Looks whether a child has ended, without waiting: none if it has not, else its id and how it ended. `options` as for wait4.
pub fn ended(child: i32, options: u32) -> Result<Option<(i32, i32)>, Errno> {
    let mut status = 0i32;
    // SAFETY: the kernel writes one int.
    let pid = unsafe { call!(libc::SYS_wait4, child, &raw mut status, options | libc::WNOHANG as u32, 0) }?;
    Ok((pid != 0).then_some((pid as i32, status)))
}

/// Blocks or unblocks signals for the calling thread, or sets the mask.
pub fn mask_signals(how: i32, mask: u64) {
    // SAFETY: the kernel reads one mask.
    let _ = unsafe { call!(libc::SYS_rt_sigprocmask, how, &raw const mask, 0, 8) };
}

/// Takes one of the blocked signals in `mask` as soon as it is pending: its number and siginfo. `now`: only if it is already.
pub fn take_signal(mask: u64, now: bool) -> Option<(i32, [u64; 16])> {
    let (mut info, zero) = ([0u64; 16], [0i64; 2]);
    let time = if now { zero.as_ptr() } else { core::ptr::null() };
    // SAFETY: the kernel reads a mask and perhaps a time, and writes one siginfo.
    let signal = unsafe { call!(libc::SYS_rt_sigtimedwait, &raw const mask, info.as_mut_ptr(), time, 8) };
    signal.ok().map(|signal| (signal as i32, info))
}

/// Copies memory of the process that may not be there or not be readable; how many bytes.
pub fn peek(at: u64, buffer: &mut [u8]) -> Answer {
    let to = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let from = libc::iovec { iov_base: at as *mut _, iov_len: buffer.len() };
    // SAFETY: the kernel writes within the buffer, and checks what it reads.
    unsafe { call!(libc::SYS_process_vm_readv, getpid(), &raw const to, 1, &raw const from, 1, 0) }
}

/// Which pages from `start` on are present, one byte each, its lowest bit: true of mappings of no file. ENOMEM: not all of it is mapped.
pub fn present(start: u64, pages: &mut [u8]) -> Result<(), Errno> {
    // SAFETY: the kernel writes one byte a page.
    unsafe { call!(libc::SYS_mincore, start, pages.len() * PAGE_BYTES, pages.as_mut_ptr()) }.map(drop)
}

/// Gives the content of pages back to the kernel.
///
/// # Safety
/// Nothing may rely on what is there.
pub unsafe fn forget(start: u64, len: u64) {
    // SAFETY: the caller's.
    let _ = unsafe { call!(libc::SYS_madvise, start, len, libc::MADV_DONTNEED) };
}
