//! The end of a process that cannot go on.

use std::io::IoSlice;

use radic_observer::Failure;

use crate::phase::switch_off;
use crate::{node, sys};

/// Ends the process at once.
pub(crate) fn end_process(code: i32) -> ! {
    switch_off();
    #[allow(unsafe_code)]
    // SAFETY: takes a number, and does not return.
    unsafe {
        libc::syscall(libc::SYS_exit_group, code)
    };
    std::process::abort()
}

/// Ends the process: it cannot go on without breaking a guarantee. A wrong answer is worse than a crash.
#[cold]
pub(crate) fn fail(what: &str) -> ! {
    // Without an allocation: this may be a signal's handler in the middle of one.
    let parts = ["radic: this process cannot go on: ", what, "\n"].map(|part| IoSlice::new(part.as_bytes()));
    _ = rustix::io::writev(sys::borrow(2), &parts);
    radic_ckpt::death::note(&[what]);
    end_process(125)
}

/// Ends a process that catches up, because it diverges from its log. Its node is told why: the node decides what becomes of the process, and ends it.
pub(crate) fn diverged(why: &str) -> ! {
    node::say_diverged(why);
    fail(why)
}

/// Ends the process for an error of the observer. If another incarnation speaks for it, its end must not look like an exit: a
/// home that does not know yet that this node was taken for lost would end the job. A crash is judged by the protector, which
/// knows. The process prints nothing then: that would stand in the place of what the other incarnation prints.
#[cold]
fn fail_with(failure: &Failure) -> ! {
    if failure.is_fenced() {
        switch_off();
        // The kernel's word for it: the program may have another one.
        _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
    if failure.is_divergence() {
        diverged(&failure.to_string());
    }
    fail(&failure.to_string())
}

/// The value, or the end of the process.
pub(crate) fn sure<T>(result: Result<T, impl Into<Failure>>) -> T {
    match result {
        Ok(value) => value,
        Err(failure) => fail_with(&failure.into()),
    }
}
