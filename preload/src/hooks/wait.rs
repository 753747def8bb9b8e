//! `wait` and its kin: the ends of children, also of those that were lost when the process was brought back (`children.rs`).

use std::ffi::c_int;

use libc::{P_ALL, P_PID, id_t, idtype_t, pid_t, rusage, siginfo_t};

use crate::children::{self, Lost, Which};
use crate::real;

hooks! {
    unsafe fn wait(status: *mut c_int) -> pid_t => on_wait {
        unsafe { waited((-1, 0), (status, std::ptr::null_mut()), || real!(wait)(status)) }
    }

    unsafe fn waitpid(pid: pid_t, status: *mut c_int, options: c_int) -> pid_t => on_waitpid {
        unsafe { waited((pid, options), (status, std::ptr::null_mut()), || real!(waitpid)(pid, status, options)) }
    }

    unsafe fn wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t => on_wait3 {
        unsafe { waited((-1, options), (status, usage), || real!(wait3)(status, options, usage)) }
    }

    unsafe fn wait4(pid: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t => on_wait4 {
        unsafe { waited((pid, options), (status, usage), || real!(wait4)(pid, status, options, usage)) }
    }

    unsafe fn waitid(kind: idtype_t, id: id_t, info: *mut siginfo_t, options: c_int) -> c_int => on_waitid {
        unsafe { waited_for_info((kind, id), info, options, || real!(waitid)(kind, id, info, options)) }
    }
}

/// Whether the kernel knows this child, ended or not.
pub fn is_there(pid: pid_t) -> bool {
    let mut info = std::mem::MaybeUninit::<siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    unsafe { real!(waitid)(P_PID, pid as id_t, info.as_mut_ptr(), options) == 0 }
}

/// How a child has ended that SIGKILL has ended.
const KILLED: c_int = libc::SIGKILL;

/// A wait: for a child that was lost, if `look` finds one, else `real`. `tell` tells the program of the lost child with this pid,
/// or that nothing has happened yet; `heard` looks at what the kernel has told.
fn lost_or(
    look: impl Fn() -> Lost,
    tell: impl Fn(Option<pid_t>) -> c_int,
    real: impl FnOnce() -> c_int,
    heard: impl FnOnce(c_int),
) -> c_int {
    if let Lost::Ended(pid) = look() {
        return tell(Some(pid));
    }
    let result = real();
    if result != -1 {
        heard(result);
    } else if real::errno() == libc::ECHILD {
        // The process may have been brought back in the midst of the call.
        match look() {
            Lost::Ended(pid) => return tell(Some(pid)),
            Lost::Later => return tell(None),
            Lost::None => {}
        }
    }
    result
}

unsafe fn waited(
    (pid, options): (pid_t, c_int),
    (status, usage): (*mut c_int, *mut rusage),
    real: impl FnOnce() -> pid_t,
) -> pid_t {
    let (which, waits) = (Which::of(pid), options & libc::WNOHANG == 0);
    let look = || which.map_or(Lost::None, |which| children::look(which, waits, true));
    let tell = |lost: Option<pid_t>| unsafe {
        let Some(pid) = lost else { return 0 };
        if !status.is_null() {
            *status = KILLED;
        }
        if !usage.is_null() {
            usage.write_bytes(0, 1);
        }
        pid
    };
    let heard = |pid| {
        let has_ended = |status: c_int| libc::WIFEXITED(status) || libc::WIFSIGNALED(status);
        if pid > 0 && (status.is_null() || has_ended(unsafe { *status })) {
            children::ended(pid);
        }
    };
    lost_or(look, tell, real, heard)
}

unsafe fn waited_for_info(
    (kind, id): (idtype_t, id_t),
    info: *mut siginfo_t,
    options: c_int,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let which = match kind {
        P_PID => Some(Which::One(id as pid_t)),
        P_ALL => Some(Which::Any),
        _ => None,
    };
    let which = which.filter(|_| options & libc::WEXITED != 0);
    let (waits, takes) = (options & libc::WNOHANG == 0, options & libc::WNOWAIT == 0);
    let look = || which.map_or(Lost::None, |which| children::look(which, waits, takes));
    let tell = |lost: Option<pid_t>| {
        if !info.is_null() {
            let (pid, code, status) = lost.map_or((0, 0, 0), |pid| (pid, libc::CLD_KILLED, KILLED));
            unsafe { write_info(info, pid, code, status) };
        }
        0
    };
    let heard = |_| {
        if takes && !info.is_null() {
            let (pid, code) = unsafe { ((*info).si_pid(), (*info).si_code) };
            if pid > 0 && [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED].contains(&code) {
                children::ended(pid);
            }
        }
    };
    lost_or(look, tell, real, heard)
}

/// As the kernel writes it of a child. No pid: nothing has happened.
unsafe fn write_info(info: *mut siginfo_t, pid: pid_t, code: c_int, status: c_int) {
    /// Places of pid and status, in words; the child's user is between them.
    const PID: usize = 4;
    const STATUS: usize = 6;
    unsafe {
        info.write_bytes(0, 1);
        if pid != 0 {
            (*info).si_signo = libc::SIGCHLD;
            (*info).si_code = code;
        }
        info.cast::<c_int>().add(PID).write(pid);
        info.cast::<c_int>().add(STATUS).write(status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_child_is_told_as_the_kernel_tells_of_one() {
        let mut info = std::mem::MaybeUninit::<siginfo_t>::zeroed();
        // SAFETY: zeroes are a value of it, and it is written.
        let info = unsafe {
            write_info(info.as_mut_ptr(), 4711, libc::CLD_KILLED, KILLED);
            info.assume_init()
        };
        // SAFETY: it is about a child.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        assert_eq!((info.si_signo, info.si_code, pid, status), (libc::SIGCHLD, libc::CLD_KILLED, 4711, libc::SIGKILL));
    }
}
