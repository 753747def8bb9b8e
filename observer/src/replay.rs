//! Replay: the log's outcomes, served again to a program that re-executes.
//!
//! Outcomes are served in the order of the log, each at its place: on its thread, after as many empty outcomes as in the recorded
//! run (docs/design.md: a strict index of calls is brittle, a queue for each descriptor loses the batches of readiness). What the
//! program asks in between gets an empty outcome, so the pattern of calls around an outcome may differ.
//!
//! Several threads: the outcomes of all of them are served in the order in which they were recorded. A thread that reaches its
//! next outcome before the earlier outcomes are served waits for its turn ([`Served::Turn`]), even in a call that does not wait.
//! Otherwise it would find nothing more often than in the recorded run. The log is read ahead for the place of that outcome, as
//! far as it is here.
//!
//! Gate A: an outcome is served only after the bytes that the recorded run had sent before it were sent again. Gate B (after the
//! log ends, until every connection has sent again what its peer has) needs the connections, so it is in [`crate::Observer`].

#[cfg(test)]
mod tests;

use radic_wire::bytes::{Malformed, Reader};
use radic_wire::determinant::{CALLS, CLOCKS, Call, ConnectionId, Determinant, KernelCall};

use crate::error::Error;
use crate::journal::{Journal, Left, Stood};

/// How often a call that does not wait is made to wait for its turn while the log does not go on. After that it finds nothing: in
/// a program that goes by the clock another thread may wait for what this one does next. The caller waits about half a
/// millisecond each time.
const TURNS: u32 = 20_000;
/// How often a reading of a clock that is in the log further on is made to wait; then it is told what the log has. Its thread may
/// hold a lock that another thread needs to come to the outcome that is next, and what it is told depends on no other outcome.
const READING_TURNS: u32 = 20;

/// What the program asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Bytes of a stream.
    Recv {
        /// The descriptor.
        fd: u32,
    },
    /// Bytes of a stream, without taking them.
    Peek {
        /// The descriptor.
        fd: u32,
    },
    /// How many bytes of a stream can be received.
    Unread {
        /// The descriptor.
        fd: u32,
    },
    /// A connection.
    Accept {
        /// The listening descriptor.
        fd: u32,
    },
    /// The address of a socket.
    Bind {
        /// The descriptor.
        fd: u32,
    },
    /// Which process listens where a connection is to be made.
    Target {
        /// The descriptor.
        fd: u32,
    },
    /// Whether a connection is made.
    Connect {
        /// The descriptor.
        fd: u32,
    },
    /// `SO_ERROR`.
    SoError {
        /// The descriptor.
        fd: u32,
    },
    /// Bytes of standard input.
    Input,
    /// What is ready.
    Ready {
        /// The epoll's descriptor; `None` for `poll` and `select`.
        epoll: Option<u32>,
    },
    /// The kernel's answer to a call.
    Kernel {
        /// Which call.
        call: KernelCall,
    },
    /// Whether bytes are taken.
    Send {
        /// The descriptor.
        fd: u32,
    },
}

impl Ask {
    /// Text for a divergence: a call of this kind waits for something that did not happen in the recorded run.
    fn waits_in_vain(self) -> &'static str {
        match self {
            Ask::Recv { .. } => "now it is in a recv that waits",
            Ask::Peek { .. } => "now it is in a recv with MSG_PEEK that waits",
            Ask::Unread { .. } => "now it is in an ioctl of FIONREAD",
            Ask::Accept { .. } => "now it is in an accept that waits",
            Ask::Bind { .. } => "now it is in a bind",
            Ask::Target { .. } | Ask::Connect { .. } => "now it is in a connect",
            Ask::SoError { .. } => "now it is in a getsockopt of SO_ERROR",
            Ask::Input => "now it is in a read of standard input that waits",
            Ask::Ready { .. } => "now it is in a poll, select or epoll_wait that waits",
            Ask::Kernel { call: KernelCall::Random } => "now it asks for random bytes",
            Ask::Kernel { call: KernelCall::Usage } => "now it is in a getrusage",
            Ask::Kernel { call: KernelCall::Times } => "now it is in a times",
            Ask::Kernel { call: KernelCall::Launcher } => "now it is in a read of the process manager's answer that waits",
            Ask::Send { .. } => "now it is in a send that waits",
        }
    }

    /// Whether `outcome` answers this.
    pub(crate) fn fits(self, outcome: &Determinant<'_>) -> bool {
        match (self, *outcome) {
            (Ask::Recv { fd }, Determinant::Recv { fd: got, .. } | Determinant::Eof { fd: got }) => fd == got,
            (Ask::Peek { fd }, Determinant::Peek { fd: got, .. }) => fd == got,
            (Ask::Unread { fd }, Determinant::Unread { fd: got, .. }) => fd == got,
            (Ask::Accept { fd }, Determinant::Accept { listener, .. }) => fd == listener,
            (Ask::Bind { fd }, Determinant::Bound { fd: got, .. }) => fd == got,
            (Ask::Target { fd }, Determinant::Target { fd: got, .. }) => fd == got,
            (Ask::Connect { fd }, Determinant::Connected { fd: got }) => fd == got,
            (Ask::SoError { fd }, Determinant::SoError { fd: got, .. }) => fd == got,
            (Ask::Input, Determinant::Input { .. }) => true,
            (Ask::Kernel { call }, Determinant::Kernel { call: of, .. }) => call == of,
            (Ask::Ready { epoll }, Determinant::Ready { epoll: got, .. }) => epoll == got,
            (Ask::Send { fd }, Determinant::SendPart { fd: got, .. }) => fd == got,
            (_, Determinant::Nothing) => true,
            (ask, Determinant::Errno { fd, call, .. }) => match (ask, call) {
                (Ask::Recv { fd: asked } | Ask::Peek { fd: asked }, Call::Recv) => asked == fd,
                (Ask::Accept { fd: asked }, Call::Accept) => asked == fd,
                (Ask::Connect { fd: asked } | Ask::Target { fd: asked }, Call::Connect) => asked == fd,
                (Ask::Bind { fd: asked }, Call::Bind) => asked == fd,
                (Ask::Send { fd: asked }, Call::Send) => asked == fd,
                (Ask::Ready { epoll }, Call::Ready) => epoll.unwrap_or(0) == fd,
                _ => false,
            },
            _ => false,
        }
    }
}

/// What the log has for a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// The outcome that [`Replay::outcome`] returns. It counts as served only after [`Replay::handle_served`].
    Outcome,
    /// Nothing yet: the program is told that there is nothing, or waits if it waits.
    Nothing,
    /// A reading of a clock is next, and its thread waits for something else: it is not made any more.
    Missed,
    /// The outcomes of other threads come first: even a call that does not wait waits for its turn.
    Turn,
    /// The log must be fetched further: [`Replay::wanted`].
    Fetch,
    /// Of a reading of a clock: it is in the log, after outcomes of other threads that do not come. So much later than the last
    /// one, and that is recorded after this many readings.
    Early(i64, u64),
    /// The log is over.
    Over,
}

#[derive(Debug, Clone, Copy)]
struct Head {
    /// The number of its thread.
    thread: u32,
    /// The name of its thread, if this is its first outcome.
    begins: Option<u64>,
    empties: u64,
    sent: u64,
    /// Bytes that its own thread had sent, if the log says so.
    own: Option<u64>,
    /// Its thread gets it by a call that is to come: it is no reading of a clock, and was not recorded only for what left after it.
    is_of_call: bool,
    /// Where the outcome's own code begins and ends, from `at` on.
    code: (usize, usize),
}

impl Head {
    /// Gate A: what the recorded run had sent before the outcome has been sent again.
    fn is_open(&self, journal: &Journal) -> bool {
        journal.sent() >= self.sent
    }

    /// Whether a call of this thread that does not wait is at the outcome's place, as far as the thread alone decides that: it
    /// has found nothing as often as in the recorded run, and has sent as much.
    fn is_reached(&self, journal: &Journal, thread: u32, sends: bool) -> bool {
        let has_sent = self.own.is_none_or(|own| journal.sent_by(thread) >= own);
        if sends { has_sent } else { journal.empties(thread) >= self.empties }
    }

    /// Whether it was recorded only for what left after it, and what it says has happened once more: it belongs to no call that is still to come.
    fn is_loose(&self, outcome: &Determinant<'_>, journal: &Journal) -> bool {
        let has_happened = match outcome {
            // Another thread may have sent more than in the recorded run.
            Determinant::Taken => self.has_sent_own(journal),
            // In the recorded run, too, the outcome's thread may have found nothing before its turn.
            Determinant::Nothing => self.empties(journal) > self.empties,
            // What the program sees of it follows.
            Determinant::Refused { .. } => true,
            _ => false,
        };
        has_happened && self.is_open(journal)
    }

    /// Whether the outcome's own thread has sent as much as in the recorded run, if the log says how much that was.
    fn has_sent_own(&self, journal: &Journal) -> bool {
        self.own.is_none_or(|own| journal.sent_of(self.thread, self.begins) >= own)
    }

    /// Empty outcomes of its thread until now.
    fn empties(&self, journal: &Journal) -> u64 {
        journal.empties_of(self.thread, self.begins)
    }
}

/// A reading of a clock that is next in the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NextReading {
    /// The number of its thread.
    pub number: u32,
    /// The name of its thread, if this is its first outcome.
    pub begins: Option<u64>,
    /// Empty outcomes of its thread before it.
    pub empties: u64,
    /// The clock.
    pub clock: u32,
    /// Readings of it before that were not recorded.
    pub skipped: u64,
    /// So much later than the last one.
    pub difference: i64,
}

/// Of what kind an outcome is, if that matters before its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Of a send: the descriptor, and how many bytes were taken.
    Send(u32, u32),
    /// Of a reading of this clock.
    Time {
        clock: u32,
        /// After this many readings of it by the rule.
        before: u64,
        difference: i64,
        /// After this many since the record before.
        own: u64,
    },
    Other,
}

impl Kind {
    /// `passed`: readings by the rule that were recorded for what left later, before this outcome and after they were made.
    fn of(outcome: &Determinant<'_>, passed: &[u64; CLOCKS]) -> Kind {
        match (outcome.sends_on(), *outcome) {
            (Some((fd, taken)), _) => Kind::Send(fd, taken),
            (None, Determinant::Time { clock, skipped, difference }) => {
                let passed = passed.get(clock as usize).copied().unwrap_or(0);
                Kind::Time { clock, before: skipped.saturating_add(passed), difference, own: skipped }
            }
            (None, _) => Kind::Other,
        }
    }
}

/// The next outcome of one thread, as far as the log is here.
#[derive(Debug, Clone, Copy)]
enum Ahead {
    /// The outcome is here.
    Here(Head, Kind),
    /// The log has only that the thread finds nothing, once it has found nothing so often already.
    Nothing(u64),
    /// The outcome may be in what has not come yet.
    Coming,
    /// The log has no more outcome of the thread, or it is too far ahead to be read.
    Unknown,
}

/// The log of a process that re-executes, from its cut to its end.
#[derive(Debug, Clone)]
pub struct Replay {
    buffer: Box<[u8]>,
    at: usize,
    filled: usize,
    /// Position in the journal of `buffer[at]`.
    position: u64,
    end: u64,
    head: Option<Head>,
    /// The next outcome is not here whole: more log is wanted however little room there is.
    starved: bool,
    /// The thread of the outcome before, as the log's own order has it.
    thread: u32,
    /// What was found out last about a thread whose turn it is not, by its place. It holds until the log goes on.
    ahead: Option<(u32, Ahead)>,
    /// How often a call was made to wait for its turn since the log went on last.
    turns: u32,
}

/// An outcome that is not asked for: re-execution goes another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overdue {
    /// The outcome's position in the journal.
    pub position: u64,
    /// The number of the outcome's thread.
    pub thread: u32,
    /// The call that had the outcome in the recorded run, in [`CALLS`].
    pub call: usize,
    /// Empty outcomes of that thread since the last outcome: now, and in the recorded run.
    pub empties: (u64, u64),
    /// Bytes sent since the last outcome: now, and in the recorded run (Gate A).
    pub sent: (u64, u64),
}

impl std::fmt::Display for Overdue {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Overdue { position, thread, call, empties, sent } = *self;
        write!(
            to,
            "replay diverged at journal position {position}, where thread {thread} had the outcome of a {}: it has found nothing {} times since, and then {} times; {} bytes were sent since, and then {}",
            CALLS[call], empties.0, empties.1, sent.0, sent.1
        )
    }
}

impl Replay {
    /// The log from `position` to `end`, of which `buffer` bytes are here at once; `thread` is the thread of the outcome before.
    ///
    /// # Panics
    /// If the log ends before it begins: the caller has compared.
    pub fn new(position: u64, end: u64, thread: u32, buffer: usize) -> Self {
        assert!(position <= end, "a log from {position} to {end}");
        let buffer = vec![0; buffer].into_boxed_slice();
        Replay { buffer, at: 0, filled: 0, position, end, head: None, starved: false, thread, ahead: None, turns: 0 }
    }

    /// Where the log ends.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Position of the next outcome.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// From which position log is wanted now, and how many bytes at most.
    pub fn wanted(&self) -> Option<(u64, usize)> {
        let (next, room) = (self.next_position(), self.buffer.len() - (self.filled - self.at));
        let length = room.min((self.end - next) as usize);
        (length > 0 && (self.starved || room * 2 >= self.buffer.len())).then_some((next, length))
    }

    fn next_position(&self) -> u64 {
        self.position + (self.filled - self.at) as u64
    }

    /// Takes log from the protector. What was taken before is passed over; what does not fit is left, to be wanted later.
    pub fn handle_log(&mut self, position: u64, bytes: &[u8]) -> Result<(), Error> {
        let next = self.next_position();
        if position > next || position.checked_add(bytes.len() as u64).is_none_or(|end| end > self.end) {
            return Err(Error::Protector("it sent other journal than was asked for"));
        }
        let bytes = bytes.get((next - position) as usize..).unwrap_or(&[]);
        self.buffer.copy_within(self.at..self.filled, 0);
        self.filled -= self.at;
        self.at = 0;
        let length = bytes.len().min(self.buffer.len() - self.filled);
        self.buffer[self.filled..self.filled + length].copy_from_slice(&bytes[..length]);
        self.filled += length;
        (self.starved, self.ahead) = (false, None);
        Ok(())
    }

    /// Reads the next outcome, if it is here whole and was not read.
    fn read_head(&mut self) -> Result<(), Error> {
        if self.head.is_some() || self.at == self.filled {
            return Ok(());
        }
        match self.head_at(self.at, self.thread) {
            Ok(head) => self.head = Some(head),
            // Perhaps only its rest is not here yet.
            Err(_) if self.next_position() < self.end && self.filled - self.at < self.buffer.len() => self.starved = true,
            Err(source) => return Err(Error::Journal { position: self.position, source }),
        }
        Ok(())
    }

    /// The outcome whose code begins there, after one of this thread.
    fn head_at(&self, at: usize, thread: u32) -> Result<Head, Malformed> {
        let mut head = Head { thread, begins: None, empties: 0, sent: 0, own: None, is_of_call: true, code: (0, 0) };
        let mut from = Reader::new(&self.buffer[at..self.filled]);
        loop {
            let start = from.at();
            match Determinant::read(&mut from)? {
                Determinant::Thread { index } => (head.thread, head.begins) = (index, None),
                Determinant::Begins { index, name } => (head.thread, head.begins) = (index, Some(name)),
                Determinant::Empty { count } => head.empties = count,
                Determinant::Sent { bytes } => head.sent = bytes,
                Determinant::Own { bytes } => head.own = Some(bytes),
                outcome => {
                    let is_of_call = !matches!(
                        outcome,
                        Determinant::Taken | Determinant::Nothing | Determinant::Refused { .. } | Determinant::Time { .. }
                    );
                    return Ok(Head { is_of_call, code: (start, from.at()), ..head });
                }
            }
        }
    }

    fn outcome_at(&self, at: usize, head: &Head) -> Option<Determinant<'_>> {
        Determinant::read(&mut Reader::new(&self.buffer[at + head.code.0..at + head.code.1])).ok()
    }

    /// The next outcome of a thread, as far as the log is here.
    fn look_ahead(&mut self, journal: &Journal, thread: u32) -> Ahead {
        let skipped = journal.clocks.skipped(thread);
        // A reading that was made since is not ahead any more, nor is a call that has found nothing since.
        let is_made = |ahead: &Ahead| match *ahead {
            Ahead::Nothing(before) => journal.empties(thread) > before,
            Ahead::Here(_, Kind::Time { clock, before, .. }) => {
                skipped.get(clock as usize).is_some_and(|skipped| *skipped > before)
            }
            _ => false,
        };
        if let Some((_, known)) = self.ahead.filter(|(of, known)| *of == thread && !is_made(known)) {
            return known;
        }
        let ahead = self.find_ahead(journal, thread);
        self.ahead = Some((thread, ahead));
        ahead
    }

    fn find_ahead(&self, journal: &Journal, thread: u32) -> Ahead {
        let (mut at, mut before) = (self.at, self.thread);
        // That nothing was found is recorded late, for what leaves after it. Other outcomes may depend on what the thread has
        // sent since: so it does not wait there.
        let (mut empties, mut own, mut nothing) = (0u64, 0, None);
        let (skipped, mut passed) = (journal.clocks.skipped(thread), [0u64; CLOCKS]);
        while at < self.filled
            && let Ok(head) = self.head_at(at, before)
            && let Some(outcome) = self.outcome_at(at, &head)
        {
            // What belongs to no call is no place for a thread.
            if !matches!(outcome, Determinant::Taken | Determinant::Refused { .. }) {
                match (journal.is_thread(thread, head.thread, head.begins), outcome) {
                    // The log may be anything, also too much for a sum.
                    (true, Determinant::Nothing) => {
                        let before = head.empties.saturating_add(empties);
                        nothing = nothing.or(Some(before).filter(|before| journal.empties(thread) <= *before));
                        empties = before.saturating_add(1);
                        own = head.own.unwrap_or(0).saturating_add(own);
                    }
                    (true, Determinant::Time { clock, skipped: before, .. })
                        if skipped[clock as usize] > passed[clock as usize].saturating_add(before) =>
                    {
                        passed[clock as usize] = passed[clock as usize].saturating_add(before).saturating_add(1);
                        empties = head.empties.saturating_add(empties);
                        own = head.own.unwrap_or(0).saturating_add(own);
                    }
                    (true, _) => {
                        let (empties, own) = (head.empties.saturating_add(empties), head.own.map(|of| of.saturating_add(own)));
                        return Ahead::Here(Head { empties, own, ..head }, Kind::of(&outcome, &passed));
                    }
                    // Another thread has its number from here on: it has ended.
                    (false, _) if head.begins.is_some() && journal.is_thread(thread, head.thread, None) => return Ahead::Unknown,
                    (false, _) => {}
                }
            }
            (at, before) = (at + head.code.1, head.thread);
        }
        let is_coming = self.next_position() < self.end && self.filled - self.at < self.buffer.len();
        match nothing {
            _ if is_coming => Ahead::Coming,
            Some(before) if self.next_position() == self.end => Ahead::Nothing(before),
            _ => Ahead::Unknown,
        }
    }

    /// Whether a call that does not wait has come to the place of its thread's next outcome, and others come first.
    fn must_wait(&mut self, journal: &Journal, thread: u32, ask: Ask) -> bool {
        let is_reached = match (self.look_ahead(journal, thread), ask) {
            (Ahead::Here(head, kind), Ask::Send { fd }) => {
                let is_this = head.own.is_some() && matches!(kind, Kind::Send(on, _) if on == fd);
                is_this && head.is_reached(journal, thread, true)
            }
            (Ahead::Here(head, _), _) => head.is_reached(journal, thread, false),
            (Ahead::Coming, _) => true,
            (Ahead::Nothing(_) | Ahead::Unknown, _) => false,
        };
        is_reached && self.has_turns()
    }

    /// Whether a call may wait for its turn once more.
    pub(crate) fn has_turns(&mut self) -> bool {
        let has_turns = self.turns < TURNS;
        self.turns += u32::from(has_turns);
        has_turns
    }

    /// How many bytes were taken of the send that waits for its turn, if that was found out last ([`Served::Turn`]): other
    /// threads may have had outcomes in the midst of that call, after some of its bytes.
    pub(crate) fn part_ahead(&self, thread: u32) -> usize {
        match self.ahead {
            Some((of, Ahead::Here(_, Kind::Send(_, taken)))) if of == thread => taken as usize,
            _ => 0,
        }
    }

    /// The next outcome, if it is for a question. Else what is said to any: the log is over, it is not here, or what is next belongs to no call.
    fn next_head(&mut self, journal: &Journal) -> Result<Result<Head, Served>, Error> {
        if self.position == self.end {
            return Ok(Err(Served::Over));
        }
        self.read_head()?;
        let Some(head) = self.head else { return Ok(Err(Served::Fetch)) };
        let is_loose = head.is_loose(&self.awaited_outcome()?, journal);
        // The log may be anything.
        journal.check_thread(head.thread)?;
        Ok(if is_loose { Err(Served::Outcome) } else { Ok(head) })
    }

    fn awaited_outcome(&self) -> Result<Determinant<'_>, Error> {
        self.outcome().ok_or(Error::Protector("the log changed under replay"))
    }

    /// Whether a call of this thread that does not wait, and sends nothing, is sure to find nothing, as in the recorded run: the next outcome is
    /// that of a later call of the thread. [`Replay::offer`] would say so, too. But it reads the outcome, and between two outcomes a program may
    /// have polled a million times.
    pub(crate) fn is_in_vain(&self, journal: &Journal, thread: u32) -> bool {
        self.head.is_some_and(|head| {
            head.is_of_call
                && journal.empties(thread) < head.empties
                && journal.is_thread(thread, head.thread, head.begins)
                && (journal.threads() == 1 || head.is_open(journal))
        })
    }

    /// What the log has for this question of `thread`. A `blocking` call cannot be told that there is nothing, so it gets its
    /// outcome whatever the count of empty ones.
    pub fn offer(&mut self, journal: &Journal, thread: u32, ask: Ask, blocking: bool) -> Result<Served, Error> {
        let head = match self.next_head(journal)? {
            Ok(head) => head,
            Err(served) => return Ok(served),
        };
        let (outcome, gate_a) = (self.awaited_outcome()?, head.is_open(journal));
        let sends = matches!(ask, Ask::Send { .. });
        // No thread's turn ends with what belongs to no call; but if its own thread is to send first, others let it.
        let is_loose = outcome == Determinant::Taken && head.own.is_none();
        let is_turn = is_loose || journal.is_thread(thread, head.thread, head.begins);
        let is_reached = blocking && !sends || head.is_reached(journal, thread, sends);
        let at_its_place = is_turn && gate_a && is_reached;
        if at_its_place && ask.fits(&outcome) {
            assert!(blocking || sends || !self.is_in_vain(journal, thread), "a call that is sure to find nothing has no outcome");
            return Ok(Served::Outcome);
        }
        if at_its_place && blocking && !sends {
            // Where a lock is free that was taken in the recorded run, a thread does not look for how long it is to wait for it.
            if matches!(outcome, Determinant::Time { .. }) && journal.threads() > 1 {
                return Ok(Served::Missed);
            }
            // This thread's next outcome answers another question, which it cannot ask before this one is answered.
            return Err(self.diverged(ask.waits_in_vain()));
        }
        // At its turn a thread waits only for what another one sends.
        let others = !is_turn || !gate_a && journal.threads() > 1;
        assert!(!others || !self.is_in_vain(journal, thread), "a call that is sure to find nothing waits for no other thread");
        if others && (sends || !blocking) && self.must_wait(journal, thread, ask) {
            return Ok(Served::Turn);
        }
        Ok(Served::Nothing)
    }

    /// The connection that was refused, and whether it was opened here, if the log says so next.
    pub(crate) fn refused_next(&mut self, journal: &Journal) -> Result<Option<(ConnectionId, bool)>, Error> {
        let is_loose = matches!(self.next_head(journal)?, Err(Served::Outcome));
        Ok(match self.outcome() {
            Some(Determinant::Refused { connection, opened_here }) if is_loose => Some((connection, opened_here)),
            _ => None,
        })
    }

    /// The reading of a clock that is next in the log, if its turn has come.
    pub(crate) fn reading_next(&mut self, journal: &Journal) -> Result<Option<NextReading>, Error> {
        self.read_head()?;
        let Some(Head { thread, begins, empties, .. }) = self.head.filter(|head| head.is_open(journal)) else { return Ok(None) };
        let Some(Determinant::Time { clock, skipped, difference }) = self.outcome() else { return Ok(None) };
        Ok(Some(NextReading { number: thread, begins, empties, clock, skipped, difference }))
    }

    /// Returns the log's answer to a clock reading, the one of `thread` after `skipped` readings by the rule since the last
    /// record. [`Served::Nothing`]: this one is by the rule, too, `step` after the last one. If the record explains sends that
    /// came later (its difference is `step`), the thread does not wait here, because outcomes of other threads may depend on
    /// those sends.
    pub fn offer_time(
        &mut self,
        journal: &Journal,
        thread: u32,
        (clock, skipped, step): (u32, u64, i64),
    ) -> Result<Served, Error> {
        let head = match self.next_head(journal)? {
            Ok(head) => head,
            Err(served) => return Ok(served),
        };
        let (outcome, gate_a) = (self.awaited_outcome()?, head.is_open(journal));
        let is_head = journal.is_thread(thread, head.thread, head.begins) && outcome != Determinant::Taken;
        let is_record = |kind| matches!(kind, Kind::Time { clock: of, before, difference, .. } if (of, before) == (clock, skipped) && difference != step);
        if is_head && gate_a && is_record(Kind::of(&outcome, &[0; CLOCKS])) {
            return Ok(Served::Outcome);
        }
        let is_due = match self.look_ahead(journal, thread) {
            Ahead::Here(Head { begins: None, .. }, kind @ Kind::Time { difference, own, .. })
                if is_record(kind) && self.turns >= READING_TURNS =>
            {
                return Ok(Served::Early(difference, own));
            }
            Ahead::Here(_, kind) => is_record(kind),
            Ahead::Coming => true,
            // The reading was made before a call that has an outcome in the log, and is not there itself.
            Ahead::Nothing(_) => false,
            // The record may be further than what is here at once. Or there is none, and this reading may be a new one: that is
            // known when the others have had their outcomes, as far as they do not need what this thread sends next, or a lock
            // that it holds.
            Ahead::Unknown if self.next_position() == self.end => gate_a && self.turns < READING_TURNS,
            Ahead::Unknown => true,
        };
        Ok(if is_due && self.has_turns() { Served::Turn } else { Served::Nothing })
    }

    /// Error: re-execution diverges at the next outcome.
    pub(crate) fn diverged(&self, what: &'static str) -> Error {
        let (thread, call) = self.awaited().unwrap_or((self.thread, 0));
        Error::Diverged { position: self.position, thread, call, what }
    }

    /// The next outcome, if it is here: the number of its thread, and the call that had it, in [`CALLS`].
    pub fn awaited(&self) -> Option<(u32, usize)> {
        Some((self.head?.thread, self.outcome()?.call()))
    }

    /// How many bytes `thread` is known to have sent before the next outcome, which is another thread's. None: that is its own, or not known.
    /// What is sent beyond that was sent later then, or never. Even this much may have been sent by a third thread, or by the one whose turn it is.
    pub(crate) fn had_sent(&self, journal: &Journal, thread: u32) -> Option<u64> {
        let head = self.head.filter(|head| !journal.is_thread(thread, head.thread, head.begins))?;
        let left = head.sent.saturating_sub(journal.sent());
        let own = head.own.unwrap_or(0).saturating_sub(journal.sent_of(head.thread, head.begins));
        Some(left.saturating_sub(own))
    }

    /// Whether the next outcome is another thread's that may be had now, and `thread` has sent as much as in the recorded run before that:
    /// the other thread can wait for nothing that `thread` sends or does next.
    pub(crate) fn is_ahead(&self, journal: &Journal, thread: u32) -> bool {
        self.head.is_some_and(|head| {
            let is_own = journal.is_thread(thread, head.thread, head.begins);
            !is_own && head.is_open(journal) && journal.has_sent_as_much(thread, head.sent)
        })
    }

    /// Bytes sent again towards Gate A, counted only up to what the gate needs: a diverging process may send without end.
    pub fn sent_again(&self, journal: &Journal) -> u64 {
        self.head.map_or(0, |head| journal.sent().min(head.sent))
    }

    /// What the next outcome waits for, if it should have been asked for long ago: its thread has found nothing more often than
    /// in the recorded run, by more than `patience` calls.
    pub fn overdue(&self, journal: &Journal, patience: u64) -> Option<Overdue> {
        let head = self.head?;
        let (empties, sent) = (head.empties(journal), journal.sent());
        (empties > head.empties.saturating_add(patience)).then_some(Overdue {
            position: self.position,
            thread: head.thread,
            call: self.outcome()?.call(),
            empties: (empties, head.empties),
            sent: (sent, head.sent),
        })
    }

    /// Whether the image has that call already: it stands between the call and what the recorded run printed.
    pub fn is_before_image(&self, journal: &Journal) -> bool {
        self.head.is_some_and(|head| head.empties(journal) > head.empties)
    }

    /// Whether the next outcome was recorded only for what left after it; not if it is not here.
    pub fn is_choice_next(&mut self) -> Result<bool, Error> {
        self.read_head()?;
        Ok(matches!(self.outcome(), Some(Determinant::Nothing | Determinant::Taken)))
    }

    /// Whether the next outcome was recorded only for what left after it, and what it says has happened once more.
    pub fn is_loose_next(&mut self, journal: &Journal) -> Result<bool, Error> {
        self.read_head()?;
        Ok(self.outcome().zip(self.head).is_some_and(|(outcome, head)| head.is_loose(&outcome, journal)))
    }

    /// Whether the log has nothing of this thread that is still to come, as far as it is here.
    pub(crate) fn is_beyond(&mut self, journal: &Journal, thread: u32) -> bool {
        matches!(self.look_ahead(journal, thread), Ahead::Unknown | Ahead::Coming)
    }

    /// The outcome that was offered.
    pub fn outcome(&self) -> Option<Determinant<'_>> {
        self.outcome_at(self.at, &self.head?)
    }

    /// The outcome was given to the program, whole.
    pub fn handle_served(&mut self, journal: &mut Journal) {
        let Some(head) = self.head else { return };
        let left = match self.outcome() {
            Some(Determinant::Nothing) => Left::Empties { passed: head.empties.saturating_add(1) },
            Some(Determinant::Taken) if head.begins.is_none() => Left::All,
            Some(Determinant::Refused { .. }) => Left::All,
            _ => Left::Nothing,
        };
        self.go_on(journal, head, left);
    }

    /// The reading that is next was made already ([`Replay::reading_next`]): by the rule, or before its turn. Its thread may have gone on since.
    pub(crate) fn pass_reading(&mut self, journal: &mut Journal) {
        let Some(head) = self.head else { return };
        let Some(Determinant::Time { clock, skipped, .. }) = self.outcome() else { return };
        self.go_on(journal, head, Left::Reading { passed: head.empties, clock, skipped });
    }

    /// The reading that is next is not made any more.
    pub(crate) fn pass_missed(&mut self, journal: &mut Journal) {
        let Some(head) = self.head else { return };
        self.go_on(journal, head, Left::Empties { passed: head.empties });
    }

    fn go_on(&mut self, journal: &mut Journal, head: Head, left: Left) {
        self.head = None;
        journal.handle_served(Stood { number: head.thread, begins: head.begins, sent: head.sent, own: head.own }, left);
        (self.ahead, self.turns) = (None, 0);
        self.thread = head.thread;
        self.at += head.code.1;
        self.position += head.code.1 as u64;
    }
}
