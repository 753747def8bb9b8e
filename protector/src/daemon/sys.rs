//! The unsafe code of the protector: what a child does between fork and exec.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::SigSet;

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
}

/// Makes `command` start in a session of its own, die with the daemon (docs/design.md: a protector's death is its node's), be as
/// `preparation` says, and ignore no signal.
///
/// The last, because exec resets only signals with a handler: one that is ignored stays so, and a shell cannot even trap it. A
/// cluster that is started in the background of a script (`radic cluster start &`, where a shell ignores SIGINT and SIGQUIT)
/// would have ranks that no SIGQUIT reaches.
pub fn prepare_rank(command: &mut Command, preparation: Preparation) {
    let Preparation { pmi_fd, limit, umask, fixed_addresses } = preparation;
    let daemon = std::process::id();
    let last = libc::SIGRTMAX();
    let in_child = move || -> io::Result<()> {
        for signal in 1..=last {
            // SAFETY: async-signal-safe, and it takes no pointer. It fails for those that cannot be ignored anyway.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
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
        let limit = libc::rlimit { rlim_cur: limit.0, rlim_max: limit.1 };
        // SAFETY: as above; `limit` is a local that the call only reads.
        check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }).map(drop)
    };
    // SAFETY: the closure allocates nothing, locks nothing and calls only async-signal-safe functions.
    unsafe { command.pre_exec(in_child) };
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
