//! The process group of a rank, and the rank's process.
//!
//! Its number may be given to other processes as soon as the rank was waited for and nothing of its group is left. So the daemon
//! signals the group for the last time before it waits for the rank ([`ended`]); and by a descriptor, which stays that of
//! the rank, where it is not the daemon that waits for it (the engine's keeper is between them).

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open};

use super::sys;

/// A group, which has the process id of the rank's process as its number.
#[derive(Debug)]
pub struct Group {
    pid: i32,
    /// None: the process was gone already, or this kernel has none.
    descriptor: Option<OwnedFd>,
}

impl Group {
    /// That of this process, which was not waited for yet.
    pub fn of(pid: i32) -> Group {
        Group { pid, descriptor: descriptor(pid) }
    }

    /// That of a process that may have been waited for.
    pub fn by_number(pid: i32) -> Group {
        Group { pid, descriptor: None }
    }

    /// The process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Signals all of it. Kernels before 6.9 know a group by its number only.
    pub fn signal(&self, signal: Signal) -> Result<(), Errno> {
        match self.descriptor.as_ref().map(|group| sys::signal_group(group, signal)) {
            None | Some(Err(Errno::EINVAL | Errno::ENOSYS)) => killpg(Pid::from_raw(self.pid), signal),
            Some(result) => result,
        }
    }
}

fn descriptor(pid: i32) -> Option<OwnedFd> {
    pidfd_open(rustix::process::Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Waits until a child has ended, but not for it: its number stays its own. False: this kernel does not tell that.
pub async fn ended(child: i32) -> bool {
    match descriptor(child).map(sys::watch_readable) {
        Some(Ok(child)) => child.readable().await.is_ok(),
        Some(Err(_)) | None => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    /// A group whose first process was waited for is signalled, and not what has its number.
    #[test]
    fn a_group_is_known_by_its_descriptor() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & read x"]).stdin(std::process::Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap();
        let group = Group::of(child.id() as i32);
        drop(child.stdin.take());
        assert!(child.wait().unwrap().code().is_some());
        // The shell is gone, and its child is not.
        let is_there = || killpg(Pid::from_raw(group.pid()), None) == Ok(());
        assert!(is_there());
        group.signal(Signal::SIGKILL).unwrap();
        while is_there() {
            std::thread::yield_now();
        }
        assert_eq!(group.signal(Signal::SIGKILL), Err(Errno::ESRCH));
        // Another group with the same number, as far as this can be had.
        let other = Group { pid: nix::unistd::getpgrp().as_raw(), ..group };
        assert_eq!(other.signal(Signal::SIGKILL), Err(Errno::ESRCH), "it is not signalled by its number");
    }
}
