//! Which of the program's signals end a call that waits.
#![allow(unsafe_code)]

/// The process is at its end and merely waits: what ends a program by default ends it at once, whatever it had its signals do.
pub fn end_at_once() {
    /// Those by which a program is told to end.
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
/// came; nobody else can know which that was. Where they differ the call ends, which a program with such handlers is prepared for.
pub fn all_restart() -> bool {
    (1..=64).all(|signal| {
        let restarts = |action: Action| action.flags & libc::SA_RESTART as u64 != 0;
        !is_handled(signal) || action_of(signal).is_some_and(restarts)
    })
}
