//! What a process says at its end, and what becomes of that when it dies before it exits.
//!
//! *From the agreement on the end of a job on, its result is what its ranks have said.* No rank is brought back any more, so one
//! that is killed then, whether its process still waits, has left, or is about to exit, counts with the code that it has said. The
//! same is true of a process whose exit ends the job, once it was let go.
//!
//! A process that has left runs only what is left of its program: destructors, and what the C library does at last. What that
//! does by itself is the program's end, as without RADIC: another code with which it exits, or a fault.

use radic_wire::job::ExitStatus;
use radic_wire::process::ProgramEnd;

/// Signals that end a program for what it does itself.
const FAULTS: [i32; 7] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGTRAP, libc::SIGSYS];

/// How far a process has come with its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastWord {
    /// Its program runs, or how it ends is not known.
    Unsaid,
    /// Its program has come to its end, and its process waits.
    Said(ProgramEnd),
    /// The same, and the home was told.
    Told(ProgramEnd),
    /// It was let go although others go on: its exit with this code ends the job.
    Alone(i32),
    /// It waits for nothing any more, and is about to exit with this code.
    Left(i32),
}

impl LastWord {
    /// The process says its last counters.
    pub(super) fn leave(self) -> LastWord {
        match self {
            LastWord::Said(end) | LastWord::Told(end) => LastWord::Left(end.code),
            LastWord::Unsaid | LastWord::Alone(_) | LastWord::Left(_) => self,
        }
    }

    /// There is a home that was not told.
    pub(super) fn untell(self) -> LastWord {
        if let LastWord::Told(end) = self { LastWord::Said(end) } else { self }
    }

    /// The end of which the home is to be told, or was.
    pub(super) fn end(self) -> Option<ProgramEnd> {
        if let LastWord::Said(end) | LastWord::Told(end) = self { Some(end) } else { None }
    }

    /// How a process counts that has ended so. `agreed`: its code, if all nodes have agreed that all ranks have come to their ends.
    pub(super) fn settle(self, status: ExitStatus, agreed: Option<i32>) -> ExitStatus {
        let is_killed = matches!(status, ExitStatus::Signal(signal) if !FAULTS.contains(&signal));
        let code = match self {
            // All that it was there for is done.
            LastWord::Said(end) | LastWord::Told(end) => agreed.and(Some(end.code)),
            LastWord::Left(code) => agreed.and(Some(code)).filter(|_| is_killed),
            LastWord::Alone(code) => Some(code).filter(|_| is_killed),
            LastWord::Unsaid => agreed.filter(|_| is_killed),
        };
        code.map_or(status, ExitStatus::Code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: ExitStatus = ExitStatus::Signal(libc::SIGKILL);
    const FAULT: ExitStatus = ExitStatus::Signal(libc::SIGSEGV);

    fn said(code: i32) -> LastWord {
        LastWord::Said(ProgramEnd { code, output: [0, 0] })
    }

    #[test]
    fn a_process_that_is_killed_after_the_agreement_counts_with_what_it_said() {
        let told = LastWord::Told(ProgramEnd { code: 3, output: [0, 0] });
        for word in [said(3), told, said(3).leave(), told.leave(), told.untell()] {
            assert_eq!(word.settle(KILLED, Some(0)), ExitStatus::Code(3), "{word:?}");
            assert_eq!(word.settle(KILLED, None), KILLED, "{word:?}: it is brought back");
        }
        assert_eq!(LastWord::Unsaid.settle(KILLED, Some(4)), ExitStatus::Code(4));
        assert_eq!(LastWord::Unsaid.leave().settle(KILLED, None), KILLED);
    }

    #[test]
    fn a_process_whose_exit_ends_the_job_counts_with_what_it_said_once_it_was_let_go() {
        for agreed in [None, Some(0)] {
            assert_eq!(LastWord::Alone(3).leave().settle(KILLED, agreed), ExitStatus::Code(3));
        }
    }

    #[test]
    fn what_a_process_does_itself_after_it_has_left_is_its_end() {
        for status in [FAULT, ExitStatus::Code(5)] {
            assert_eq!(said(3).leave().settle(status, Some(3)), status);
            assert_eq!(said(3).settle(status, Some(3)), ExitStatus::Code(3), "it only waits");
        }
    }
}
