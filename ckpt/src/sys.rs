//! Raw system calls: no libc, no errno, no thread-local state, no allocation. Usable while the program is stopped, in the forked
//! child, and before the program's memory is whole. Numbers and constants come from the `libc` crate.

#![allow(clippy::missing_safety_doc, reason = "the one rule is given at syscall")]

use core::arch::asm;

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

/// Closes a descriptor; nobody can do anything about an error.
pub fn close(fd: i32) {
    // SAFETY: no memory is involved.
    let _ = unsafe { call!(libc::SYS_close, fd) };
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
    // SAFETY: no memory is involved.
    unsafe { call!(libc::SYS_lseek, fd, offset, whence) }
}

/// Makes `to` a duplicate of `from`.
pub fn dup3(from: i32, to: i32, flags: i32) -> Result<(), Errno> {
    // SAFETY: no memory is involved.
    unsafe { call!(libc::SYS_dup3, from, to, flags) }.map(drop)
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
    // SAFETY: no memory is involved; it cannot fail.
    unsafe { call!(libc::SYS_gettid) }.unwrap_or(0) as i32
}

/// The process's id.
#[must_use]
pub fn getpid() -> i32 {
    // SAFETY: no memory is involved; it cannot fail.
    unsafe { call!(libc::SYS_getpid) }.unwrap_or(0) as i32
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
