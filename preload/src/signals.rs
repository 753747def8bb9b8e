//! Which of the program's signals end a call that waits.
#![allow(unsafe_code)]

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
        let mut action = Action::default();
        // SAFETY: the kernel writes one action, of which the size is given.
        let result = unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, core::ptr::null::<Action>(), &raw mut action, size_of::<u64>())
        };
        let handled = result == 0 && action.handler > libc::SIG_IGN as u64;
        !handled || action.flags & libc::SA_RESTART as u64 != 0
    })
}
