//! This end's files: signals, standard input, standard output and standard error. Each can be polled, and none of them blocks
//! once it polled ready.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{SFlag, fstat};
use nix::unistd;
use radic_wire::job::OutputStream;
use radic_wire::limits;

use crate::ledger::Range;
use crate::printer::{Piece, Style};

/// Signals that are passed on to the ranks, and SIGHUP, which means that the terminal died.
const SIGNALS: [Signal; 6] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGHUP];
/// Bytes that a pipe or terminal that polls writable takes without blocking (PIPE_BUF).
const PIPE_STEP: usize = 4096;
/// Bytes written to a regular file at once.
const FILE_STEP: usize = 256 << 10;

/// The signals as a file; as long as it lives they do nothing else. One that was ignored at the start stays ignored (nohup; SIGINT
/// and SIGQUIT in the background of a script).
pub(crate) struct Signals {
    fd: SignalFd,
    set: SigSet,
    before: SigSet,
}

impl Signals {
    /// One that is wanted in any case is not left ignored.
    pub(crate) fn block(wanted: Option<Signal>) -> nix::Result<Self> {
        // Not those that are ignored: while it is blocked, such a signal would be queued all the same.
        let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
        let is_heard = |signal: &Signal| ignored & (1 << (*signal as u32 - 1)) == 0 || Some(*signal) == wanted;
        let set = SigSet::from_iter(SIGNALS.into_iter().filter(is_heard));
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), Some(&mut before))?;
        Ok(Signals { fd, set, before })
    }

    /// Does something with the signals as deadly as ever: a child would inherit that they are blocked.
    pub(crate) fn unblocked<T>(&self, action: impl FnOnce() -> T) -> nix::Result<T> {
        let mut blocked = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&self.set), Some(&mut blocked))?;
        let result = action();
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&blocked), None)?;
        Ok(result)
    }

    /// The next signal that has come.
    pub(crate) fn next(&mut self) -> nix::Result<Option<Signal>> {
        let info = self.fd.read_signal()?;
        Ok(info.and_then(|info| Signal::try_from(info.ssi_signo as i32).ok()))
    }
}

/// Bit n - 1 stands for signal n. There is no safe call that tells.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // It cannot fail with these arguments, and nothing could be done about it.
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.before), None);
    }
}

/// Output on its way to one place.
#[derive(Default)]
struct Outlet {
    queue: VecDeque<Piece>,
    /// Bytes of the first piece that are written.
    written: usize,
}

/// Standard output and standard error: two outlets, or one if both end up in the same file, so that they keep their order.
pub(crate) struct Output {
    shared: bool,
    terminal: [bool; 2],
    /// Bytes that a write may have without blocking.
    steps: [usize; 2],
    outlets: [Outlet; 2],
}

/// How a write ended that did not succeed.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// The other end is closed.
    Closed,
    /// The terminal is gone.
    Terminal,
    /// Anything else, a full disk for example.
    Failed(io::Error),
}

impl Output {
    pub(crate) fn new() -> Self {
        let file = |fd: BorrowedFd| fstat(fd).ok().map(|s| (s.st_dev, s.st_ino, SFlag::from_bits_truncate(s.st_mode)));
        let (out, err) = (file(io::stdout().as_fd()), file(io::stderr().as_fd()));
        let step = |file: Option<(_, _, SFlag)>| {
            let regular = file.is_some_and(|(_, _, mode)| mode & SFlag::S_IFMT == SFlag::S_IFREG);
            if regular { FILE_STEP } else { PIPE_STEP }
        };
        Output {
            shared: out.is_some() && out == err,
            terminal: [io::stdout().is_terminal(), io::stderr().is_terminal()],
            steps: [step(out), step(err)],
            outlets: Default::default(),
        }
    }

    /// What the printer has to know.
    pub(crate) fn style(&self, label: bool) -> Style {
        Style { label, shared: self.shared, terminal: self.terminal }
    }

    /// Queues a piece. The window of the daemon bounds what can be here.
    pub(crate) fn push(&mut self, piece: Piece) {
        let outlet = usize::from(piece.stream == OutputStream::Stderr && !self.shared);
        self.outlets[outlet].queue.push_back(piece);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.outlets.iter().all(|outlet| outlet.queue.is_empty())
    }

    /// The stream that an outlet waits to write to.
    pub(crate) fn wanted(&self, outlet: usize) -> Option<OutputStream> {
        self.outlets[outlet].queue.front().map(|piece| piece.stream)
    }

    /// Writes once to an outlet that polled writable. The result is what of the ranks' output stood in
    /// the piece that this completed.
    pub(crate) fn write(&mut self, outlet: usize) -> Result<Vec<Range>, WriteError> {
        let Outlet { queue, written } = &mut self.outlets[outlet];
        let Some(piece) = queue.front() else { return Ok(Vec::new()) };
        let index = usize::from(piece.stream == OutputStream::Stderr);
        let rest = &piece.bytes[*written..];
        let step = &rest[..rest.len().min(self.steps[index])];
        let result = match piece.stream {
            OutputStream::Stdout => unistd::write(io::stdout(), step),
            OutputStream::Stderr => unistd::write(io::stderr(), step),
        };
        match result {
            Ok(n) => *written += n,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Vec::new()),
            Err(Errno::EPIPE) => return Err(WriteError::Closed),
            Err(Errno::EIO) if self.terminal[index] => return Err(WriteError::Terminal),
            Err(e) => return Err(WriteError::Failed(e.into())),
        }
        if *written < piece.bytes.len() {
            return Ok(Vec::new());
        }
        *written = 0;
        Ok(queue.pop_front().map_or_else(Vec::new, |piece| piece.ranges))
    }
}

/// Standard input.
pub(crate) struct Input {
    terminal: bool,
    open: bool,
}

/// What one read of standard input gave.
pub(crate) enum Typed {
    /// These bytes; none: the end.
    Bytes(Vec<u8>),
    /// Nothing yet.
    Nothing,
    /// The terminal is gone. That is no end of the input: the job is not to learn of it.
    Gone,
}

impl Input {
    pub(crate) fn new() -> Self {
        Input { terminal: io::stdin().is_terminal(), open: true }
    }

    /// Whether there may be more to come.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Whether this process is in the background of its terminal, where a read would stop it.
    pub(crate) fn in_background(&self) -> bool {
        self.terminal && unistd::tcgetpgrp(io::stdin()).is_ok_and(|foreground| foreground != unistd::getpgrp())
    }

    /// Reads once, after standard input polled `events`.
    pub(crate) fn read(&mut self, events: PollFlags) -> Typed {
        if self.terminal && events.contains(PollFlags::POLLHUP) {
            self.open = false;
            return Typed::Gone;
        }
        let mut bytes = vec![0; limits::CHUNK];
        match unistd::read(io::stdin(), &mut bytes) {
            Ok(n) => bytes.truncate(n),
            Err(Errno::EAGAIN | Errno::EINTR) => return Typed::Nothing,
            // Not readable at all (opened for writing, a directory): as good as empty.
            Err(_) if !self.terminal => bytes.clear(),
            Err(_) => {
                self.open = false;
                return Typed::Gone;
            }
        }
        self.open = !bytes.is_empty();
        Typed::Bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        assert_eq!(ignored("SigBlk:\t0000000000000001\nSigIgn:\t0000000000001006\nSigCgt:\t0000000000000440\n"), 0x1006);
        assert_eq!(ignored(""), 0);
    }
}
