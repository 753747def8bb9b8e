//! What the kernel says of the threads of a process that catches up: whether all of them wait without a limit of time, or in
//! the layer for their turn. What follows from that is decided by [`radic_observer::standstill`].

use std::ffi::CStr;
use std::mem::MaybeUninit;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::sys;

/// Whether the calling thread is the process's only one, also if others have made no call yet.
pub(crate) fn is_alone() -> bool {
    /// Links of a folder without folders in it: each thread has one in it.
    const OWN: u64 = 2;
    rustix::fs::stat("/proc/self/task").is_ok_and(|folder| folder.st_nlink <= OWN + 1)
}

/// Whether all of the process's threads but this many, which wait in the layer, wait in the kernel without a limit of time. A
/// thread that waits for the `lock` of the layer at this address does not.
pub(crate) fn all_but(waiting: usize, lock: usize) -> Result<bool, Errno> {
    let tasks = open(rustix::fs::CWD, c"/proc/self/task", OFlags::DIRECTORY)?;
    let mut room = [MaybeUninit::uninit(); 2048];
    let (mut entries, mut others) = (RawDir::new(&tasks, &mut room), 0);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if entry.file_name().to_bytes().first().is_some_and(u8::is_ascii_digit) && !waits(&tasks, entry.file_name(), lock)? {
            others += 1;
            if others > waiting {
                return Ok(false);
            }
        }
    }
    Ok(others == waiting)
}

fn open(at: impl AsFd, path: impl Arg, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(at, path, flags | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Whether the thread of this number waits without a limit of time, outside the layer. One that has ended meanwhile does nothing either.
fn waits(tasks: &OwnedFd, thread: &CStr, lock: usize) -> Result<bool, Errno> {
    let path = [thread.to_bytes(), b"/syscall"].concat();
    let mut text = [0; 256];
    let count = match open(tasks, path, OFlags::empty()).and_then(|file| rustix::io::read(file, &mut text)) {
        Err(Errno::NOENT | Errno::SRCH) => return Ok(true),
        other => other?,
    };
    Ok(str::from_utf8(&text[..count]).is_ok_and(|text| Call::of(text).is_some_and(|call| call.waits(lock))))
}

/// The system call in which a thread is: its number, and its first arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Call(i64, [u64; 5]);

impl Call {
    /// As the kernel writes it (proc(5), /proc/pid/syscall): `running`, or the number, six arguments, and two addresses, in hexadecimal but the first.
    fn of(text: &str) -> Option<Call> {
        let mut words = text.split_ascii_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut arguments = [0; 5];
        for argument in &mut arguments {
            *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        }
        Some(Call(number, arguments))
    }

    /// Whether it waits until another thread, or another process, does something, and not for the lock at this address.
    fn waits(self, lock: usize) -> bool {
        let Call(number, [first, second, third, fourth, fifth]) = self;
        let for_ever = |time: u64| (time as i32) < 0;
        match number {
            libc::SYS_futex => is_wait(second) && fourth == 0 && first != lock as u64,
            libc::SYS_read | libc::SYS_readv => can_wait(first as i32),
            libc::SYS_poll => for_ever(third),
            libc::SYS_epoll_wait | libc::SYS_epoll_pwait => for_ever(fourth),
            libc::SYS_ppoll | libc::SYS_rt_sigtimedwait => third == 0,
            libc::SYS_select | libc::SYS_pselect6 => fifth == 0,
            libc::SYS_pause | libc::SYS_rt_sigsuspend => true,
            _ => false,
        }
    }
}

/// Whether this is an operation of futex(2) that waits.
fn is_wait(operation: u64) -> bool {
    const WAITS: [i32; 4] = [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET, libc::FUTEX_LOCK_PI, libc::FUTEX_WAIT_REQUEUE_PI];
    WAITS.contains(&(operation as i32 & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME)))
}

/// Whether a read of this descriptor waits for a thread or a process, and not for a disk.
fn can_wait(fd: i32) -> bool {
    // An eventfd, like all that has no inode of its own, is of no type.
    const NONE: u32 = 0;
    let of = |stat: rustix::fs::Stat| [NONE, libc::S_IFIFO, libc::S_IFSOCK].contains(&(stat.st_mode & libc::S_IFMT));
    rustix::fs::fstat(sys::borrow(fd)).is_ok_and(of)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::*;

    /// Where the layer's lock is.
    const LOCK: usize = 0x7f00;

    #[test]
    fn calls_that_wait_without_a_limit_of_time() {
        let call = |text: &str| Call::of(text).is_some_and(|call| call.waits(LOCK));
        assert!(!call("running") && !call("") && !call("-1 0x7ffd0 0x7f5a") && !call("0 0x3"));
        assert!(call("202 0x7f5a 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd0 0x7f5a"), "a wait for a condition");
        assert!(!call("202 0x7f5a 0x189 0x0 0x7ffd8 0x0 0xffffffff 0x7ffd0 0x7f5a"), "one with a limit");
        assert!(!call("202 0x7f5a 0x81 0x1 0x0 0x0 0x0 0x7ffd0 0x7f5a"), "a wake");
        let lock = format!("202 {:#x} 0x80 0x2 0x0 0x0 0x0 0x7ffd0 0x7f5a", LOCK);
        assert!(!call(&lock), "it waits for the layer");
        assert!(
            call("7 0x7f5a 0x1 0xffffffff 0x0 0x0 0x0 0x7ffd0 0x7f5a") && !call("7 0x7f5a 0x1 0x5 0x0 0x0 0x0 0x7ffd0 0x7f5a")
        );
        assert!(
            call("271 0x7f5a 0x1 0x0 0x0 0x8 0x0 0x7ffd0 0x7f5a") && !call("271 0x7f5a 0x1 0x7ffd8 0x0 0x8 0x0 0x7ffd0 0x7f5a")
        );
        assert!(!call("35 0x7ffd8 0x0 0x0 0x0 0x0 0x0 0x7ffd0 0x7f5a"), "a sleep");
    }

    /// Other tests run beside this one: only threads of its own are looked at.
    #[test]
    fn what_the_kernel_says_of_threads() {
        let tasks = open(rustix::fs::CWD, c"/proc/self/task", OFlags::DIRECTORY).unwrap();
        let looks = |number: i32| {
            let name = std::ffi::CString::new(number.to_string()).unwrap();
            waits(&tasks, &name, LOCK).unwrap()
        };
        let becomes = |number: i32, still: bool| {
            let until = Instant::now() + Duration::from_secs(10);
            while looks(number) != still && Instant::now() < until {
                std::thread::yield_now();
            }
            assert_eq!(looks(number), still, "thread {number}");
        };
        let (tell, told) = channel();
        let (go, goes) = channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            goes.recv().unwrap();
            while goes.try_recv().is_err() {}
        });
        let number = told.recv().unwrap();
        becomes(number, true);
        go.send(()).unwrap();
        becomes(number, false);
        go.send(()).unwrap();
        thread.join().unwrap();
        becomes(number, true);
    }
}
