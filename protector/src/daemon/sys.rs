//! The unsafe code of the protector: what a child does between fork and exec.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

use tokio::process::Command;

/// The soft and hard limit on open descriptors that the daemon was started with: ranks get them back.
pub type DescriptorLimit = (u64, u64);

/// Makes `command` start in a session of its own, die with the daemon (DESIGN: a protector's death is its node's), keep `pmi_fd`
/// open, and have the descriptor limit that the daemon was started with.
pub fn prepare_rank(command: &mut Command, pmi_fd: RawFd, limit: DescriptorLimit) {
    let daemon = std::process::id();
    let in_child = move || -> io::Result<()> {
        // SAFETY: setsid, prctl, getppid, fcntl and setrlimit are async-signal-safe and take no pointers but to a local.
        check(unsafe { libc::setsid() })?;
        // SAFETY: as above. The parent-death signal is the kernel's; it is tied to the daemon's main thread, which forks.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
        // SAFETY: as above.
        if unsafe { libc::getppid() } as u32 != daemon {
            // The daemon died before the death signal was set.
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        // SAFETY: as above; the descriptor is ours and open.
        check(unsafe { libc::fcntl(pmi_fd, libc::F_SETFD, 0) })?;
        let limit = libc::rlimit { rlim_cur: limit.0, rlim_max: limit.1 };
        // SAFETY: as above; `limit` is a local that the call only reads.
        check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })
    };
    // SAFETY: the closure allocates nothing, locks nothing and calls only async-signal-safe functions.
    unsafe { command.pre_exec(in_child) };
}

/// Closes at exec every descriptor that we have inherited: ranks must not get what the daemon's starter had open. Best effort:
/// before kernel 5.11 they do.
pub fn close_inherited_at_exec() {
    // SAFETY: the call takes no pointers; it only marks descriptors, and closes none.
    _ = unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
