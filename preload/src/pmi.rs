//! The connection to the process manager (PMI-1: lines of text, a question and its answer at a time). What it answers is in the
//! log, like all that a process finds out: a process that catches up is answered from there, at the same places. A question that
//! has no answer yet is asked again on the new connection, where the log is over.
//!
//! The node where a process goes on knows the key space, and [`radic_wire::process::Point`] tells it where the process stands.
//! What has changed that since (a fence that was passed, a key that was put) the process tells it again, and keeps the answer to
//! itself. Names that it has published were known to its node, which may be gone: it publishes them again when its log is over.

use std::collections::VecDeque;

use radic_wire::limits;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::fds::{self, Kind};
use crate::sys;

/// Time for the node to take a line, in milliseconds.
pub(crate) const TAKEN_MS: u64 = 10_000;

/// Where the conversation stands.
#[derive(Debug)]
pub(crate) struct Pmi {
    /// The program's descriptor.
    fd: Option<i32>,
    pub(crate) conversation: Conversation,
}

/// How far the program's library has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Fresh,
    /// It has said `init`.
    Initialized,
    /// It has said `finalize`.
    Finalized,
}

/// What was said.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    /// What was written since the last answer.
    pub(crate) question: Vec<u8>,
    /// It has not left yet: its answer may be in the log.
    pub(crate) held: bool,
    /// What came of its answer.
    answer: Vec<u8>,
    /// Bytes that come once more and are not for the program.
    skip: usize,
    /// Lines that the node is told again, and whether it was told the first one and has not answered.
    pub(crate) again: VecDeque<Vec<u8>>,
    pub(crate) telling: bool,
    /// Questions by which the names that it has published now were published.
    published: Vec<Vec<u8>>,
    /// The process has come back, and its log was not over yet.
    returns: bool,
    /// Fences that the process was let out of.
    fences: u64,
    stage: Stage,
    /// When the program was started, or its library had said `init`, if `MPI_Init` has not returned since.
    starting: Option<u64>,
}

/// Time until `MPI_Init` begins, and that it may take. A program may never call it, and a library that was started otherwise never tells that it is through.
const STARTING_NS: u64 = 30_000_000_000;

/// Whether a line is this command.
pub(crate) fn says(line: &[u8], command: &str) -> bool {
    let rest = line.strip_prefix(b"cmd=").and_then(|line| line.strip_prefix(command.as_bytes()));
    rest.is_some_and(|rest| rest.first().is_none_or(|next| next.is_ascii_whitespace()))
}

impl Conversation {
    pub(crate) fn handle_written(&mut self, bytes: &[u8]) {
        let from = self.question.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.question.extend_from_slice(bytes);
        for line in self.question[from..].split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            if says(line, "init") && self.stage == Stage::Fresh {
                (self.stage, self.starting) = (Stage::Initialized, Some(sys::now()));
            } else if says(line, "finalize") {
                self.stage = Stage::Finalized;
            }
        }
    }

    /// These bytes of an answer came. How many of the first are not for the program.
    pub(crate) fn handle_read(&mut self, bytes: &[u8]) -> usize {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        self.handle_answer(&bytes[skipped..], false);
        skipped
    }

    /// The program gets these bytes of an answer. Of what the log has answered, the node hears what is to be known there.
    pub(crate) fn handle_answer(&mut self, bytes: &[u8], from_log: bool) {
        for byte in bytes {
            self.answer.push(*byte);
            if *byte != b'\n' {
                continue;
            }
            self.fences += u64::from(says(&self.answer, "barrier_out"));
            let is_done = field(&self.answer, "rc").is_none_or(|code| code == b"0");
            if says(&self.question, "publish_name") && is_done && self.published.len() < limits::PMI_NAMES {
                self.published.push(self.question.clone());
            } else if says(&self.question, "unpublish_name") && is_done {
                let name = field(&self.question, "service");
                self.published.retain(|known| field(known, "service") != name);
            }
            let question = std::mem::take(&mut self.question);
            if from_log && ["init", "put", "barrier_in", "finalize"].iter().any(|command| says(&question, command)) {
                self.again.push_back(question);
            }
            self.answer.clear();
            self.held = false;
        }
    }

    /// Bytes of the answer to what was told again: the end of the line is the end of it.
    fn handle_told(&mut self, bytes: &[u8]) {
        if bytes.contains(&b'\n') {
            self.again.pop_front();
            self.telling = false;
        }
    }

    /// What is to leave next, if the node is not still to answer. `is_over`: the log is.
    fn poll_line(&mut self, is_over: bool) -> Option<&[u8]> {
        let asks = !self.question.is_empty() && !self.held;
        if asks || self.telling {
            None
        } else if let Some(line) = self.again.front() {
            self.telling = true;
            Some(line)
        } else if self.held && is_over {
            self.held = false;
            Some(&self.question)
        } else {
            None
        }
    }

    /// The connection is a new one. What the image says of fences the node knows; keys may have been put since the last one.
    fn handle_restored(&mut self) {
        self.skip = self.answer.len();
        self.held = !self.question.is_empty();
        self.again.retain(|line| says(line, "put"));
        self.telling = false;
        self.returns = true;
    }

    /// Nobody listens any more.
    pub(crate) fn handle_broken(&mut self) {
        self.again.clear();
        self.telling = false;
    }

    /// The log is over. Before anything else is asked the names are there again: the next question may be to take one back.
    pub(crate) fn handle_log_over(&mut self) {
        if std::mem::take(&mut self.returns) {
            self.again.extend(self.published.iter().cloned());
        }
    }

    /// Whether something comes before what the program asks next.
    pub(crate) fn is_behind(&self) -> bool {
        self.held || self.returns || !self.again.is_empty()
    }
}

/// A field of a line.
fn field<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut fields = line.trim_ascii_end().split(|byte| *byte == b' ');
    fields.find_map(|field| field.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

impl Pmi {
    /// The connection on the descriptor that the environment names, if there is one. The program may be linked with an MPI
    /// library: then it is about to begin `MPI_Init`.
    pub(crate) fn find(is_linked: bool) -> Self {
        let named = std::env::var("PMI_FD").ok().and_then(|text| text.parse().ok());
        let fd = named.filter(|fd| *fd >= 0 && fds::kind(*fd) == Kind::Other && fds::set(*fd, Kind::Pmi, true));
        Pmi { fd, conversation: Conversation { starting: is_linked.then(sys::now), ..Conversation::default() } }
    }

    /// The program's descriptor.
    pub(crate) fn fd(&self) -> Option<i32> {
        self.fd
    }

    /// The program closes it.
    pub(crate) fn handle_closed(&mut self) {
        self.fd = None;
    }

    /// Fences that the process was let out of, and whether it has said `init`, and `finalize`.
    pub(crate) fn point(&self) -> (u64, (bool, bool)) {
        let Conversation { fences, stage, .. } = self.conversation;
        (fences, (stage >= Stage::Initialized, stage == Stage::Finalized))
    }

    /// `MPI_Init` has returned.
    pub(crate) fn handle_initialized(&mut self) {
        self.conversation.starting = None;
    }

    /// Whether the program is in the middle of `MPI_Init`, or before it: what happens there cannot be done again by one process
    /// alone (docs/design.md). So an image that is made now would be of no use as soon as other ranks have passed it.
    pub(crate) fn is_starting(&self) -> bool {
        self.conversation.starting.is_some_and(|since| sys::now() < since + STARTING_NS)
    }

    /// There is a new connection on the old number.
    pub(crate) fn handle_restored(&mut self) {
        self.conversation.handle_restored();
    }

    /// What a waiting call listens to here.
    pub(crate) fn awaited(&self) -> Option<(i32, PollFlags)> {
        self.fd.filter(|_| self.conversation.telling).map(|fd| (fd, PollFlags::IN))
    }

    /// Lets leave what is next, and hears the answers to what was told again. An error: the connection is gone, as whatever needs it next finds out.
    pub(crate) fn drive(&mut self, is_over: bool) -> Result<(), Errno> {
        let Some(fd) = self.fd else { return Ok(()) };
        let mut room = [0; 256];
        loop {
            if let Some(line) = self.conversation.poll_line(is_over) {
                sys::send_all(sys::borrow(fd), line, TAKEN_MS)?;
            }
            if !self.conversation.telling {
                return Ok(());
            }
            match rustix::net::recv(sys::borrow(fd), &mut room[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(Errno::CONNRESET),
                Ok((_, count)) => self.conversation.handle_told(&room[..count]),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_kept_until_its_answer_is_whole() {
        let mut talk = Conversation::default();
        talk.handle_written(b"cmd=init pmi_version=1 pmi_subversion=1\n");
        assert_eq!(talk.stage, Stage::Initialized);
        assert_eq!(talk.handle_read(b"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"), 0);
        assert!(talk.question.is_empty());
        talk.handle_written(b"cmd=barr");
        talk.handle_written(b"ier_in\n");
        assert_eq!((talk.handle_read(b"cmd=barrier"), talk.fences), (0, 0));
        // Here it is saved and restored: where the log is over, the question is asked again, and what the program has had of the answer is skipped.
        talk.handle_restored();
        assert_eq!(talk.poll_line(false), None);
        assert_eq!(talk.poll_line(true), Some(&b"cmd=barrier_in\n"[..]));
        assert_eq!(talk.poll_line(true), None, "it is asked once");
        assert_eq!(talk.handle_read(b"cmd=bar"), 7);
        assert_eq!((talk.handle_read(b"rier_out\n"), talk.fences), (4, 1));
        talk.handle_restored();
        assert_eq!(talk.poll_line(true), None);
        talk.handle_written(b"cmd=finalize\n");
        assert_eq!(talk.stage, Stage::Finalized);
    }

    #[test]
    fn what_the_log_has_answered_is_told_if_the_node_is_to_know() {
        let mut talk = Conversation::default();
        let mut by_log = |question: &[u8], answer: &[u8]| {
            talk.handle_written(question);
            talk.held = true;
            talk.handle_answer(answer, true);
        };
        by_log(b"cmd=lookup_name service=a\n", b"cmd=lookup_result rc=0 port=b\n");
        by_log(b"cmd=barrier_in\n", b"cmd=barrier_out rc=0\n");
        by_log(b"cmd=put kvsname=k key=a value=b\n", b"cmd=put_result rc=0\n");
        assert_eq!(talk.fences, 1);
        assert_eq!(talk.poll_line(false), Some(&b"cmd=barrier_in\n"[..]));
        assert_eq!(talk.poll_line(false), None, "one at a time");
        talk.handle_told(b"cmd=barrier_out");
        assert!(talk.telling);
        talk.handle_told(b" rc=0\n");
        // The next question waits for what is told before it, and for the end of the log.
        talk.handle_written(b"cmd=barrier_in\n");
        talk.held = true;
        assert_eq!(talk.poll_line(true), Some(&b"cmd=put kvsname=k key=a value=b\n"[..]));
        talk.handle_told(b"cmd=put_result rc=0\n");
        assert_eq!(talk.poll_line(false), None);
        assert_eq!(talk.poll_line(true), Some(&b"cmd=barrier_in\n"[..]));
        assert_eq!(talk.handle_read(b"cmd=barrier_out rc=0\n"), 0);
        assert!(talk.again.is_empty() && talk.fences == 2);
    }

    #[test]
    fn an_image_in_the_midst_of_telling_counts_no_fence_twice() {
        let mut talk = Conversation::default();
        for line in [&b"cmd=put key=a value=b\n"[..], b"cmd=barrier_in\n"] {
            talk.handle_written(line);
            talk.handle_answer(b"cmd=result rc=0\n", true);
        }
        assert!(talk.poll_line(false).is_some());
        talk.handle_restored();
        assert_eq!(talk.again, [b"cmd=put key=a value=b\n"]);
        assert!(talk.poll_line(false).is_some());
    }

    #[test]
    fn names_are_published_again_unless_they_were_taken_back() {
        let mut talk = Conversation::default();
        let ask = |talk: &mut Conversation, question: &str, answer: &str| {
            talk.handle_written(format!("cmd={question}\n").as_bytes());
            talk.handle_read(format!("cmd={answer}\n").as_bytes());
        };
        ask(&mut talk, "publish_name service=a port=1", "publish_result info=ok rc=0");
        ask(&mut talk, "publish_name service=b port=2", "publish_result rc=0");
        ask(&mut talk, "publish_name service=c port=3", "publish_result rc=-1 msg=it_is_there");
        ask(&mut talk, "unpublish_name service=a", "unpublish_result rc=0");
        ask(&mut talk, "unpublish_name service=b", "unpublish_result rc=-1 msg=not_now");
        assert_eq!(talk.published, [b"cmd=publish_name service=b port=2\n"]);
        talk.handle_log_over();
        assert_eq!(talk.poll_line(true), None, "it has not come back");
        // Its node dies, and with it the names; the process was about to take the last one back.
        ask(&mut talk, "publish_name service=d port=4", "publish_result rc=0");
        talk.handle_written(b"cmd=unpublish_name service=d\n");
        talk.handle_restored();
        talk.handle_log_over();
        for line in ["publish_name service=b port=2", "publish_name service=d port=4"] {
            assert_eq!(talk.poll_line(true), Some(format!("cmd={line}\n").as_bytes()));
            talk.handle_told(b"cmd=publish_result rc=0\n");
        }
        assert_eq!(talk.poll_line(true), Some(&b"cmd=unpublish_name service=d\n"[..]));
        talk.handle_log_over();
        assert!(talk.again.is_empty(), "once");
    }

    #[test]
    fn commands_are_whole_words() {
        assert!(says(b"cmd=init pmi_version=1\n", "init") && says(b"cmd=finalize\n", "finalize"));
        assert!(!says(b"cmd=initack pmiid=0\n", "init") && !says(b"init\n", "init"));
    }
}
