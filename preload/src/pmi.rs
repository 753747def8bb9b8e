//! The connection to the process manager (PMI-1: lines of text, a question and its answer at a time). It is no protected stream: the node where the process goes
//! on knows the key space, and [`radic_wire::process::Point`] tells it where the process stands. What is kept here is the question that has no answer
//! yet: a restored process asks it once more, on its new connection, and skips as much of the answer as it has had.

use std::io::{IoSlice, IoSliceMut};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::fds::{self, Kind};
use crate::layer::{self, Held};
use crate::ops::wait;
use crate::sys;

/// Longest question that is kept: a line of PMI-1 is shorter, spawning included.
const QUESTION: usize = 64 << 10;

/// Where the conversation stands.
#[derive(Debug)]
pub struct Pmi {
    /// The program's descriptor.
    fd: Option<i32>,
    conversation: Conversation,
}

/// What was said.
#[derive(Debug, Default)]
struct Conversation {
    /// What was written since the last answer.
    question: Vec<u8>,
    /// What came of its answer.
    answer: Vec<u8>,
    /// Bytes that come once more and are not for the program.
    skip: usize,
    /// Fences that the process was let out of.
    fences: u64,
    initialized: bool,
    finalized: bool,
    /// When the program was started, or its library had said `init`, if `MPI_Init` has not returned since.
    starting: Option<u64>,
}

/// Time until `MPI_Init` begins, and that it may take. A program may never call it, and a library that was started otherwise never tells that it is through.
const STARTING_NS: u64 = 30_000_000_000;

/// Whether a line is this command.
fn says(line: &[u8], command: &str) -> bool {
    let rest = line.strip_prefix(b"cmd=").and_then(|line| line.strip_prefix(command.as_bytes()));
    rest.is_some_and(|rest| rest.first().is_none_or(|next| next.is_ascii_whitespace()))
}

impl Conversation {
    fn handle_written(&mut self, bytes: &[u8]) {
        let from = self.question.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.question.extend_from_slice(bytes);
        for line in self.question[from..].split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            if says(line, "init") && !self.initialized {
                (self.initialized, self.starting) = (true, Some(sys::now()));
            }
            self.finalized |= says(line, "finalize");
        }
    }

    /// These bytes came. How many of the first are not for the program.
    fn handle_read(&mut self, bytes: &[u8]) -> usize {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        for byte in &bytes[skipped..] {
            self.answer.push(*byte);
            if *byte == b'\n' {
                self.fences += u64::from(says(&self.answer, "barrier_out"));
                self.answer.clear();
                self.question.clear();
            }
        }
        skipped
    }

    /// In `radic replay`: the answer that the program waits for, if it is one that says nothing (others are in no log). Its length; 0: the end.
    fn play(&mut self, part: &mut [u8]) -> usize {
        const ANSWER: &[u8] = b"cmd=finalize_ack rc=0\n";
        let asked = self.question.split(|byte| *byte == b'\n').any(|line| says(line, "finalize"));
        let rest = if asked { &ANSWER[self.answer.len().min(ANSWER.len())..] } else { &[][..] };
        let count = rest.len().min(part.len());
        part[..count].copy_from_slice(&rest[..count]);
        self.handle_read(&rest[..count]);
        count
    }

    /// The connection is a new one. What is to be written to it first.
    fn handle_restored(&mut self) -> &[u8] {
        self.skip = self.answer.len();
        &self.question
    }
}

impl Pmi {
    /// The connection on the descriptor that the environment names, if there is one. The program may be linked with an MPI library: then it is about to begin `MPI_Init`.
    pub fn find(is_linked: bool) -> Self {
        let named = std::env::var("PMI_FD").ok().and_then(|text| text.parse().ok());
        let fd = named.filter(|fd| *fd >= 0 && fds::kind(*fd) == Kind::Other && fds::set(*fd, Kind::Pmi, true));
        Pmi { fd, conversation: Conversation { starting: is_linked.then(sys::now), ..Conversation::default() } }
    }

    /// The program's descriptor.
    pub fn fd(&self) -> Option<i32> {
        self.fd
    }

    /// The program closes it.
    pub fn handle_closed(&mut self) {
        self.fd = None;
    }

    /// Fences that the process was let out of, and whether it has said `init`, and `finalize`.
    pub fn point(&self) -> (u64, (bool, bool)) {
        let Conversation { fences, initialized, finalized, .. } = self.conversation;
        (fences, (initialized, finalized))
    }

    /// `MPI_Init` has returned.
    pub fn handle_initialized(&mut self) {
        self.conversation.starting = None;
    }

    /// Whether the program is in the middle of `MPI_Init`, or before it: what happens there cannot be done again by one process alone (docs/design.md). So an image that is
    /// made now would be of no use as soon as other ranks have passed it.
    pub fn is_starting(&self) -> bool {
        self.conversation.starting.is_some_and(|since| sys::now() < since + STARTING_NS)
    }

    /// This is the new connection, on the old number.
    pub fn handle_restored(&mut self) -> Result<(), Errno> {
        let Some(fd) = self.fd else { return Ok(()) };
        sys::send_all(sys::borrow(fd), self.conversation.handle_restored(), 10_000)
    }
}

/// `read` and its kin on the connection. None: it is not there.
pub fn receive(fd: i32, parts: &mut [IoSliceMut<'_>], dont_wait: bool) -> Option<Result<usize, Errno>> {
    let layer = layer::enter()?;
    layer.pmi.fd.filter(|known| *known == fd)?;
    Some(read(layer, fd, parts, dont_wait || !fds::is_blocking(fd)))
}

fn read(mut layer: Held, fd: i32, parts: &mut [IoSliceMut<'_>], dont_wait: bool) -> Result<usize, Errno> {
    let Some(part) = parts.iter_mut().find(|part| !part.is_empty()) else { return Ok(0) };
    if layer.replayer.is_some() {
        return Ok(layer.pmi.conversation.play(part));
    }
    loop {
        match rustix::net::recv(sys::borrow(fd), &mut part[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Ok(0),
            Ok((_, count)) => {
                let skipped = layer.pmi.conversation.handle_read(&part[..count]);
                part.copy_within(skipped..count, 0);
                if count > skipped {
                    return Ok(count - skipped);
                }
            }
            Err(Errno::AGAIN) if !dont_wait => layer = wait(layer, &[(fd, PollFlags::IN)], None)?,
            Err(error) => return Err(error),
        }
    }
}

/// `write` and its kin on the connection. None: it is not there.
pub fn send(fd: i32, parts: &[IoSlice<'_>]) -> Option<Result<usize, Errno>> {
    let mut layer = layer::enter()?;
    layer.pmi.fd.filter(|known| *known == fd)?;
    // It leaves the process, too (G1).
    layer.pass_gate_of_output();
    let Some(part) = parts.iter().find(|part| !part.is_empty()) else { return Some(Ok(0)) };
    if layer.pmi.conversation.question.len() + part.len() > QUESTION {
        layer.note("it asks its process manager something very long: that may be lost in a restart");
        layer.pmi.conversation.question.clear();
    }
    // In `radic replay` there is no process manager, and nothing leaves.
    let sent =
        if layer.replayer.is_some() { Ok(part.len()) } else { rustix::net::send(sys::borrow(fd), part, SendFlags::NOSIGNAL) };
    if let Ok(count) = sent {
        layer.pmi.conversation.handle_written(&part[..count]);
    }
    Some(sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_kept_until_its_answer_is_whole() {
        let mut talk = Conversation::default();
        talk.handle_written(b"cmd=init pmi_version=1 pmi_subversion=1\n");
        assert!(talk.initialized && !talk.finalized);
        assert_eq!(talk.handle_read(b"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"), 0);
        assert!(talk.question.is_empty());
        talk.handle_written(b"cmd=barr");
        talk.handle_written(b"ier_in\n");
        assert_eq!((talk.handle_read(b"cmd=barrier"), talk.fences), (0, 0));
        // Here it is saved and restored: the question is asked again, and what the program has had of the answer is skipped.
        assert_eq!(talk.handle_restored(), b"cmd=barrier_in\n");
        assert_eq!(talk.handle_read(b"cmd=bar"), 7);
        assert_eq!((talk.handle_read(b"rier_out\n"), talk.fences), (4, 1));
        assert_eq!(talk.handle_restored(), b"");
        talk.handle_written(b"cmd=finalize\n");
        assert!(talk.finalized);
    }

    #[test]
    fn a_replayed_process_is_let_go() {
        let (mut talk, mut part) = (Conversation::default(), [0; 10]);
        assert_eq!(talk.play(&mut part), 0);
        talk.handle_written(b"cmd=finalize\n");
        assert_eq!((talk.play(&mut part), &part), (10, b"cmd=finali"));
        assert_eq!((talk.play(&mut part), &part), (10, b"ze_ack rc="));
        assert_eq!((talk.play(&mut part), &part[..2]), (2, &b"0\n"[..]));
        assert_eq!(talk.play(&mut part), 0);
    }

    #[test]
    fn commands_are_whole_words() {
        assert!(says(b"cmd=init pmi_version=1\n", "init") && says(b"cmd=finalize\n", "finalize"));
        assert!(!says(b"cmd=initack pmiid=0\n", "init") && !says(b"init\n", "init"));
    }
}
