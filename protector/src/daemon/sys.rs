//! The unsafe code of the protector: what a child does between fork and exec.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The soft and hard limit on open descriptors that the daemon was started with: ranks get them back.
pub type DescriptorLimit = (u64, u64);

/// What is particular to one rank between fork and exec.
#[derive(Debug, Clone, Copy)]
pub struct Preparation {
    /// A descriptor that stays open, if any.
    pub pmi_fd: Option<RawFd>,
    /// Its limit on descriptors.
    pub limit: DescriptorLimit,
    /// Its file mode creation mask.
    pub umask: u32,
    /// Its addresses are not randomised.
    pub fixed_addresses: bool,
    /// It waits for log services again and again, and is to go on as soon as they have answered.
    pub is_prompt: bool,
}

/// The slice of a prompt rank. Linux (from 6.12 on) lets a process that wakes up go before one with a longer slice; its share of the processor is the same. With the default,
/// 3 ms, it waits for whatever else computes there to have had its own: a message that takes 50 us takes 2 ms then (docs/performance.md).
pub const SLICE: Duration = Duration::from_micros(500);

/// The flag PIDFD_SIGNAL_PROCESS_GROUP.
const GROUP: libc::c_uint = 1 << 2;

/// Makes `command` start in a session of its own, die with the daemon (docs/design.md: a protector's death is its node's), be as
/// `preparation` says, and ignore no signal.
///
/// The last, because exec resets only signals with a handler: one that is ignored stays so, and a shell cannot even trap it. A
/// cluster that is started in the background of a script (`radic cluster start &`, where a shell ignores SIGINT and SIGQUIT)
/// would have ranks that no SIGQUIT reaches.
pub fn prepare_rank(command: &mut Command, preparation: Preparation) {
    let Preparation { pmi_fd, limit, umask, fixed_addresses, is_prompt } = preparation;
    let daemon = std::process::id();
    let last = libc::SIGRTMAX();
    let in_child = move || -> io::Result<()> {
        for signal in 1..=last {
            // SAFETY: async-signal-safe, and it takes no pointer. It fails for those that cannot be ignored anyway.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        // SAFETY: setsid, prctl, getppid, fcntl and setrlimit are async-signal-safe and take no pointers but to a local.
        check(unsafe { libc::setsid() })?;
        // SAFETY: as above. The parent-death signal is the kernel's; it is tied to the thread that forks, which lives as long as the daemon.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
        // SAFETY: as above.
        if unsafe { libc::getppid() } as u32 != daemon {
            // The daemon died before the death signal was set.
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        // SAFETY: as above; the descriptor is ours and open.
        pmi_fd.map_or(Ok(0), |fd| check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }))?;
        // SAFETY: as above; it cannot fail.
        unsafe { libc::umask(umask) };
        if fixed_addresses {
            // SAFETY: as above. This value asks what is set. Where a container's filter refuses the change, an image is put back
            // to its addresses all the same.
            unsafe {
                libc::personality(libc::personality(0xffff_ffff) as libc::c_ulong | libc::ADDR_NO_RANDOMIZE as libc::c_ulong)
            };
        }
        if is_prompt {
            shorten_slice();
        }
        let limit = libc::rlimit { rlim_cur: limit.0, rlim_max: limit.1 };
        // SAFETY: as above; `limit` is a local that the call only reads.
        check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }).map(drop)
    };
    // SAFETY: the closure allocates nothing, locks nothing and calls only async-signal-safe functions.
    unsafe { command.pre_exec(in_child) };
}

/// Gives the calling thread, and all that it starts, a short slice, if it has the scheduler's usual policy. Where that cannot be, it runs as ever.
fn shorten_slice() {
    if let Some(now) = scheduling(0).filter(|now| now.sched_policy == libc::SCHED_OTHER as u32) {
        let shorter = libc::sched_attr { sched_runtime: SLICE.as_nanos() as u64, ..now };
        // SAFETY: a system call without a wrapper, so async-signal-safe. It only reads the local.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const shorter, 0) };
    }
}

/// How the kernel schedules this thread; 0: the calling one.
fn scheduling(thread: i32) -> Option<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: all zeroes are a value of this type.
    let mut now: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: a system call without a wrapper, so async-signal-safe. It writes at most `size` bytes to the local.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut now, size, 0) };
    (got == 0).then_some(now)
}

/// The slice of a thread. None: this kernel has none for each thread.
#[cfg(test)]
pub fn slice_of(thread: i32) -> Option<Duration> {
    let slice = Duration::from_nanos(scheduling(thread)?.sched_runtime);
    (!slice.is_zero()).then_some(slice)
}

/// Makes what `command` becomes the leader of a session and group of its own, where the engine has put a keeper between it and
/// us. Where it has not, it is that already.
pub fn lead_session(command: &mut Command) {
    let in_child = || -> io::Result<()> {
        // SAFETY: async-signal-safe, and it takes no pointer.
        match check(unsafe { libc::setsid() }) {
            Err(error) if error.raw_os_error() != Some(libc::EPERM) => Err(error),
            _ => Ok(()),
        }
    };
    // SAFETY: the closure does no more than that.
    unsafe { command.pre_exec(in_child) };
}

/// Signals the process group whose number is that of the process of this descriptor, also when that process is gone. `EINVAL` before kernel 6.9.
pub fn signal_group(leader: &OwnedFd, signal: Signal) -> Result<(), Errno> {
    let (leader, signal) = (leader.as_raw_fd(), signal as libc::c_int);
    // SAFETY: the descriptor is open while it is borrowed, and the null pointer is allowed: the kernel makes the signal's information itself.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, leader, signal, std::ptr::null::<libc::siginfo_t>(), GROUP) };
    Errno::result(sent).map(drop)
}

/// Has the daemon's runtime watch for a descriptor to become readable: the end of a process, if it is that of one.
pub fn watch_readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned, and is that one file until it is dropped with what watches it.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}

/// Undoes what our starter has done to signals that we depend on: were SIGCHLD ignored, the kernel would not keep how a rank
/// ended; and what is blocked would be blocked in the ranks. (SIGHUP may stay ignored: nohup.)
pub fn restore_signals() -> io::Result<()> {
    SigSet::empty().thread_set_mask()?;
    // SAFETY: no handler is given, and none that other code counts on is replaced: no other thread runs yet, no runtime has
    // begun.
    if unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Closes at exec every descriptor that we have inherited: ranks must not get what the daemon's starter had open. Best effort:
/// before kernel 5.11 they do.
pub fn close_inherited_at_exec() {
    // SAFETY: the call takes no pointers; it only marks descriptors, and closes none.
    _ = unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The command F_SETSIG of fcntl.
#[cfg(test)]
const SET_SIGNAL: libc::c_int = 10;

/// A file that another process opens only when this ends.
#[cfg(test)]
pub struct Lease(std::fs::File);

#[cfg(test)]
impl Lease {
    /// Takes it; nobody may have the file open.
    pub fn take(path: &std::path::Path) -> Lease {
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        // SAFETY: these take no pointers. SIGURG, which tells that somebody waits, is ignored.
        check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) }).unwrap();
        // SAFETY: as above.
        check(unsafe { libc::fcntl(file.as_raw_fd(), SET_SIGNAL, libc::SIGURG) }).unwrap();
        Lease(file)
    }

    pub fn end(&mut self) {
        // SAFETY: it takes no pointer.
        check(unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) }).unwrap();
    }
}
