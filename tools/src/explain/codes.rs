//! What each exit code of `radic run` means, and what its reader can do. `radic attach` and `radic resume` end with the same ones.

use nix::sys::signal::Signal;
use radic_wire::job::exit_code::{CANNOT_EXECUTE, NODE_LOST, NOT_FOUND, RADIC, SUSPENDED};

/// An exit code in words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CodeText {
    pub(crate) code: i32,
    /// What has happened, in one sentence.
    pub(crate) means: &'static str,
    /// What is so now, and what may be done.
    pub(crate) next: &'static str,
}

const fn text(code: i32, means: &'static str, next: &'static str) -> CodeText {
    CodeText { code, means, next }
}

/// The code of wrong usage, as the parser of the command line has it.
pub(crate) const USAGE: i32 = 2;
const HANGUP: i32 = 128 + Signal::SIGHUP as i32;
const INTERRUPT: i32 = 128 + Signal::SIGINT as i32;
const KILLED: i32 = 128 + Signal::SIGKILL as i32;
const NOBODY_READS: i32 = 128 + Signal::SIGPIPE as i32;

/// The codes that mean more than "the program said so", in their order.
pub(crate) const CODES: &[CodeText] = &[
    text(0, "Every rank has exited with 0.", "Nothing is to be done."),
    text(
        1,
        "A rank has exited with 1, or without MPI_Finalize, or has called MPI_Abort with a code whose low eight bits are 0.",
        "The last line on standard error says which it was, and which rank. Without MPI_Finalize the others would have waited for the rank for ever, so \
         the job was ended: look for an exit() on an error path.",
    ),
    text(
        USAGE,
        "The command line is wrong and nothing was started; or the program has exited with 2.",
        "The error above names the argument. `radic run --help` has examples.",
    ),
    text(
        NODE_LOST,
        "A node died on which the job had ranks, and they were not protected or cannot be brought back.",
        "Run the job again: `radic nodes` shows what is left. `radic events` shows why they could not be brought back. Jobs are protected unless --protect none is \
         given or `radic doctor -- PROGRAM` finds an obstacle; --replicas 2 survives a node and its protector at once; --on-loss restart has the job restart from the beginning by itself.",
    ),
    text(
        SUSPENDED,
        "The job was suspended, by `radic suspend` or by the signal of `radic run --suspend-on`.",
        "`radic resume DIR` goes on with it, on whatever nodes there are; so does `radic run --resume-from DIR` with the same program.",
    ),
    text(
        RADIC,
        "RADIC itself failed: there is no cluster, no such node, or the daemon went away; the program would use UCX; or the job is shown at another terminal now.",
        "The line on standard error says which. `radic status` shows whether the cluster answers, `radic jobs` whether the job runs, `radic attach JOB` shows it \
         here again; DIR/nodes/NAME/log has what each daemon said.",
    ),
    text(
        CANNOT_EXECUTE,
        "The program was found and cannot be executed.",
        "Look at its permissions (chmod +x), at whether it is for this processor, and at whether its file system is mounted noexec.",
    ),
    text(
        NOT_FOUND,
        "The program, or the interpreter that its first line names, was not found.",
        "Give a path (./program), or look at PATH. The program must be there under the same path on every node.",
    ),
    text(
        HANGUP,
        "The terminal is gone; or SIGHUP ended a rank.",
        "The job goes on without the terminal: `radic attach JOB` shows it again.",
    ),
    text(
        INTERRUPT,
        "An interrupt ended the waiting for a job that was being ended; or SIGINT ended a rank.",
        "`radic jobs` shows whether the job is still there, and `radic kill JOB` ends it.",
    ),
    text(
        KILLED,
        "The job was ended by `radic kill` or by the third interrupt at the terminal; or SIGKILL ended a rank that was not protected.",
        "If no user killed it, the kernel may have, for want of memory: see the kernel's log of the rank's node (`journalctl -k`).",
    ),
    text(
        NOBODY_READS,
        "The output is not read any more, so the job was ended; or SIGPIPE ended a rank.",
        "A command like `head` ends so. To keep the job, write its output to a file.",
    ),
];

/// The signal that a code of 129 to 192 stands for.
pub(super) fn signal(code: u8) -> Option<Signal> {
    Signal::try_from(i32::from(code) - 128).ok()
}

/// Whether the signal says that the program made an error by itself.
pub(super) fn is_fault(signal: Signal) -> bool {
    matches!(
        signal,
        Signal::SIGSEGV | Signal::SIGBUS | Signal::SIGILL | Signal::SIGFPE | Signal::SIGABRT | Signal::SIGTRAP | Signal::SIGSYS
    )
}
