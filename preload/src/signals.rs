//! Which of the program's signals end a call that waits.
#![allow(unsafe_code)]

/// The process is at its end and merely waits. From now on the signals that end a program by default end it at once, whatever the program had them do.
pub fn end_at_once() {
    /// Signals by which a program is told to end.
    const TO_END: [i32; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];
    let mut mask = 0u64;
    for signal in TO_END {
        mask |= 1 << (signal - 1);
        if is_handled(signal) {
            // SAFETY: the kernel reads one action, of which the size is given: all of it zero is the default.
            unsafe {
                let action = Action::default();
                libc::syscall(libc::SYS_rt_sigaction, signal, &raw const action, core::ptr::null::<Action>(), size_of::<u64>());
            }
        }
    }
    // SAFETY: the kernel reads one mask, of which the size is given.
    unsafe {
        let none = core::ptr::null::<u64>();
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const mask, none, size_of::<u64>());
    }
}

/// Tells the process that a child of its has ended.
pub fn tell_of_children() {
    // SAFETY: it sends a signal to this process.
    unsafe { libc::syscall(libc::SYS_kill, libc::getpid(), libc::SIGCHLD) };
}

/// Keeps the program's signals waiting while a call waits by turns in the kernel and in the layer. A signal that the thread took
/// in the layer would not end the call, though the program expects that of it (a timer that ends a `recv`). So signals come in
/// the kernel's wait, which is given [`Hold::mask`], or when this ends.
#[derive(Debug)]
pub struct Hold {
    before: u64,
}

impl Hold {
    /// From now on, for the calling thread.
    pub fn begin() -> Self {
        /// Signals of faults of the thread itself: they cannot wait.
        const AT_ONCE: [i32; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
        /// Signals of the threads library; the second is the checkpoint engine's, too.
        const INTERNAL: [i32; 2] = [32, 33];
        let free = AT_ONCE.iter().chain(&INTERNAL).fold(0u64, |mask, signal| mask | 1 << (signal - 1));
        Hold { before: set_mask(libc::SIG_BLOCK, !free) }
    }

    /// What the program has blocked: for a wait in the kernel.
    pub fn mask(&self) -> libc::sigset_t {
        // SAFETY: a set of signals is words of bits, and the kernel reads the first only.
        unsafe {
            let mut set: libc::sigset_t = core::mem::zeroed();
            (&raw mut set).cast::<u64>().write(self.before);
            set
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        set_mask(libc::SIG_SETMASK, self.before);
    }
}

/// Changes the calling thread's mask. What it was.
fn set_mask(how: i32, mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: the kernel reads one mask and writes one, of which the size is given.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const mask, &raw mut before, size_of::<u64>()) };
    assert_eq!(result, 0, "a mask of signals");
    before
}

fn action_of(signal: i32) -> Option<Action> {
    let mut action = Action::default();
    // SAFETY: the kernel writes one action, of which the size is given.
    let result =
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, core::ptr::null::<Action>(), &raw mut action, size_of::<u64>()) };
    (result == 0).then_some(action)
}

fn is_handled(signal: i32) -> bool {
    action_of(signal).is_some_and(|action| action.handler > libc::SIG_IGN as u64)
}

/// The kernel's sigaction.
#[repr(C)]
#[derive(Default)]
struct Action {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

/// Whether every handler that the program has installed restarts calls (SA_RESTART). The kernel would look at the flag of the very signal that
/// came; outside of the kernel it cannot be known which that was. Where they differ the call ends, which a program with such handlers is prepared for.
pub fn all_restart() -> bool {
    (1..=64).all(|signal| {
        let restarts = |action: Action| action.flags & libc::SA_RESTART as u64 != 0;
        !is_handled(signal) || action_of(signal).is_some_and(restarts)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_wait_but_for_the_engine_s() {
        let before = set_mask(libc::SIG_BLOCK, 0);
        let hold = Hold::begin();
        let held = set_mask(libc::SIG_BLOCK, 0);
        for (signal, waits) in [(libc::SIGUSR1, true), (libc::SIGALRM, true), (64, true), (33, false), (libc::SIGSEGV, false)] {
            assert_eq!(held >> (signal - 1) & 1 == 1, waits, "signal {signal}");
        }
        let mask = hold.mask();
        // SAFETY: the first word of a set.
        assert_eq!(unsafe { (&raw const mask).cast::<u64>().read() }, before);
        drop(hold);
        assert_eq!(set_mask(libc::SIG_BLOCK, 0), before);
    }
}
