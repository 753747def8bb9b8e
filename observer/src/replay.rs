//! Replay: the log's outcomes, served again to a program that re-executes.
//!
//! Outcomes are served in the order of the log, each at its place: on its thread, after as many empty outcomes as then
//! (docs/design.md: a strict index of calls is brittle, a queue for each descriptor loses the batches of readiness). What the
//! program asks in between gets an empty outcome, so the pattern of calls around an outcome may differ.
//!
//! Gate A: an outcome is served only after the bytes sent before it then have been sent again. Gate B (after the log ends, until
//! every connection has sent again what its peer has) needs the connections, so it is in [`crate::Observer`].

use radic_wire::bytes::Reader;
use radic_wire::determinant::{Call, Determinant, StreamId};

use crate::error::Error;
use crate::journal::Journal;

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
    /// That bytes are taken.
    Send {
        /// The descriptor.
        fd: u32,
    },
}

impl Ask {
    /// Whether `outcome` answers this.
    fn fits(self, outcome: &Determinant<'_>) -> bool {
        match (self, *outcome) {
            (Ask::Recv { fd }, Determinant::Recv { fd: got, .. } | Determinant::Eof { fd: got }) => fd == got,
            (Ask::Peek { fd }, Determinant::Peek { fd: got, .. }) => fd == got,
            (Ask::Accept { fd }, Determinant::Accept { listener, .. }) => fd == listener,
            (Ask::Bind { fd }, Determinant::Bound { fd: got, .. }) => fd == got,
            (Ask::Target { fd }, Determinant::Target { fd: got, .. }) => fd == got,
            (Ask::Connect { fd }, Determinant::Connected { fd: got }) => fd == got,
            (Ask::SoError { fd }, Determinant::SoError { fd: got, .. }) => fd == got,
            (Ask::Input, Determinant::Input { .. }) => true,
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
    /// The log must be fetched further: [`Replay::wanted`].
    Fetch,
    /// The log is over.
    Over,
}

#[derive(Debug, Clone, Copy)]
struct Head {
    thread: u32,
    empties: u64,
    sent: u64,
    /// Where the outcome's own code begins and ends, from `at` on.
    code: (usize, usize),
}

impl Head {
    /// Gate A: what was sent before it then has been sent again.
    fn is_open(&self, journal: &Journal) -> bool {
        journal.sent() >= self.sent
    }
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
}

/// An outcome that is not asked for: re-execution goes another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overdue {
    /// Its position in the journal.
    pub position: u64,
    /// Its thread.
    pub thread: u32,
    /// Empty outcomes of that thread since the last outcome, now and then.
    pub empties: (u64, u64),
    /// Bytes sent since the last outcome, now and then (Gate A).
    pub sent: (u64, u64),
}

impl Replay {
    /// The log from `position` to `end`, of which `buffer` bytes are here at once; `thread` is the thread of the outcome before.
    ///
    /// # Panics
    /// If the log ends before it begins: the caller has compared.
    pub fn new(position: u64, end: u64, thread: u32, buffer: usize) -> Self {
        assert!(position <= end, "a log from {position} to {end}");
        let buffer = vec![0; buffer].into_boxed_slice();
        Replay { buffer, at: 0, filled: 0, position, end, head: None, starved: false, thread }
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
        self.starved = false;
        Ok(())
    }

    /// Reads the next outcome, if it is here whole and was not read.
    fn read_head(&mut self) -> Result<(), Error> {
        if self.head.is_some() || self.at == self.filled {
            return Ok(());
        }
        let mut head = Head { thread: self.thread, empties: 0, sent: 0, code: (0, 0) };
        let mut from = Reader::new(&self.buffer[self.at..self.filled]);
        let read = loop {
            let start = from.at();
            match Determinant::read(&mut from) {
                Ok(Determinant::Thread { index }) => head.thread = index,
                Ok(Determinant::Empty { count }) => head.empties = count,
                Ok(Determinant::Sent { bytes }) => head.sent = bytes,
                Ok(_) => break Ok((start, from.at())),
                Err(malformed) => break Err(malformed),
            }
        };
        match read {
            Ok(code) => self.head = Some(Head { code, ..head }),
            // Perhaps only its rest is not here yet.
            Err(_) if self.next_position() < self.end && self.filled - self.at < self.buffer.len() => self.starved = true,
            Err(source) => return Err(Error::Journal { position: self.position, source }),
        }
        Ok(())
    }

    /// What the log has for this question of `thread`. A `blocking` call cannot be told that there is nothing, so it gets its
    /// outcome whatever the count of empty ones.
    pub fn offer(&mut self, journal: &Journal, thread: u32, ask: Ask, blocking: bool) -> Result<Served, Error> {
        if self.position == self.end {
            return Ok(Served::Over);
        }
        self.read_head()?;
        let Some(head) = self.head else { return Ok(Served::Fetch) };
        let outcome = self.outcome().ok_or(Error::Protector("the log changed under replay"))?;
        let gate_a = head.is_open(journal);
        if outcome == Determinant::Taken {
            // It belongs to no call, so its thread has not been checked yet.
            journal.check_thread(head.thread)?;
            return Ok(if gate_a { Served::Outcome } else { Served::Nothing });
        }
        let at_its_place = head.thread == thread
            && gate_a
            && (blocking || matches!(ask, Ask::Send { .. }) || journal.empties(thread) >= head.empties);
        if at_its_place && ask.fits(&outcome) {
            return Ok(Served::Outcome);
        }
        if at_its_place && blocking && !matches!(ask, Ask::Send { .. }) {
            // This thread's next outcome answers another question, which it cannot ask before this one is answered.
            return Err(Error::Diverged { position: self.position, what: "a blocking call waits for what did not happen then" });
        }
        Ok(Served::Nothing)
    }

    /// Whether the next outcome should have been asked for long ago: so many more calls of its thread found nothing than then. What it waits for.
    pub fn overdue(&self, journal: &Journal, patience: u64) -> Option<Overdue> {
        let head = self.head?;
        let (empties, sent) = (journal.empties(head.thread), journal.sent());
        (empties > head.empties.saturating_add(patience)).then_some(Overdue {
            position: self.position,
            thread: head.thread,
            empties: (empties, head.empties),
            sent: (sent, head.sent),
        })
    }

    /// Whether the image has that call already: it stands between the call and what was printed then.
    pub fn is_before_image(&self, journal: &Journal) -> bool {
        self.head.is_some_and(|head| journal.empties(head.thread) > head.empties)
    }

    /// Whether the next outcome was recorded only for what left after it; not if it is not here.
    pub fn is_choice_next(&mut self) -> Result<bool, Error> {
        self.read_head()?;
        Ok(matches!(self.outcome(), Some(Determinant::Nothing | Determinant::Taken)))
    }

    /// Whether the next outcome says that sends were taken, and its place is reached.
    pub fn is_taken_here(&mut self, journal: &Journal) -> Result<bool, Error> {
        self.read_head()?;
        Ok(self.outcome() == Some(Determinant::Taken) && self.head.is_some_and(|head| head.is_open(journal)))
    }

    /// The outcome that was offered.
    pub fn outcome(&self) -> Option<Determinant<'_>> {
        let (start, end) = self.head?.code;
        Determinant::read(&mut Reader::new(&self.buffer[self.at + start..self.at + end])).ok()
    }

    /// The outcome was given to the program, whole.
    pub fn handle_served(&mut self, journal: &mut Journal) {
        let Some(head) = self.head.take() else { return };
        journal.handle_outcome(head.thread, head.sent);
        self.thread = head.thread;
        self.at += head.code.1;
        self.position += head.code.1 as u64;
    }
}

/// G5: compares what re-execution sends with what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Comparison {
    /// Bytes compared.
    pub compared: u64,
    /// Bytes that differ.
    pub different: u64,
    /// The first that differs.
    pub first: Option<(StreamId, u64)>,
}

impl Comparison {
    /// Compares the bytes sent again at `offset` of `stream` with those sent then, as far as both are there.
    pub fn compare(&mut self, stream: StreamId, offset: u64, again: &[u8], then: &[u8]) {
        self.compared += again.len().min(then.len()) as u64;
        if again == then {
            return;
        }
        for (offset, _) in (offset..).zip(again.iter().zip(then)).filter(|(_, (again, then))| again != then) {
            self.different += 1;
            self.first.get_or_insert((stream, offset));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use radic_wire::determinant::{ConnectionId, ReadyFd, ReadySet};
    use radic_wire::ids::{JobId, ProcessId, Rank};

    use super::*;

    const THREADS: u32 = 3;

    /// What a thread did: outcomes with their places.
    #[derive(Debug, Clone, Copy)]
    struct Step {
        thread: u32,
        empties: u64,
        sent: u64,
        fd: u32,
    }

    fn step() -> impl Strategy<Value = Step> {
        (0..THREADS, 0u64..4, prop_oneof![Just(0u64), 0u64..300], 0u32..3).prop_map(|(thread, empties, sent, fd)| Step {
            thread,
            empties,
            sent,
            fd,
        })
    }

    fn journal() -> Journal {
        Journal::new(8192, THREADS as usize, 32)
    }

    fn record(steps: &[Step]) -> Vec<u8> {
        let mut journal = journal();
        for step in steps {
            (0..step.empties).for_each(|_| journal.handle_empty(step.thread).unwrap());
            journal.handle_sent(step.sent);
            journal.append(step.thread, &Determinant::Recv { fd: step.fd, len: 1 }).unwrap();
        }
        let ship = journal.poll_ship().map(|ship| [ship.head, ship.tail].concat());
        ship.unwrap_or_default()
    }

    fn fetch(replay: &mut Replay, log: &[u8], most: usize) {
        if let Some((from, room)) = replay.wanted() {
            let to = (from as usize + room.min(most)).min(log.len());
            replay.handle_log(from, &log[from as usize..to]).unwrap();
        }
    }

    proptest! {
        /// Whatever calls the program makes between them, and however the log arrives: each outcome once, in order, at its place.
        #[test]
        fn every_outcome_at_its_place(
            steps in prop::collection::vec(step(), 0..40), calls in prop::collection::vec((0..THREADS, 0u32..3, 1usize..9), 1..40),
        ) {
            let log = record(&steps);
            let (mut journal, mut next) = (journal(), 0);
            let mut replay = Replay::new(0, log.len() as u64, 0, 64);
            let mut calls = calls.iter().cycle();
            for round in 0..20_000 {
                let (thread, fd, most) = *calls.next().unwrap();
                // Every third call is the one that the original made, so that it ends.
                let (thread, fd) = match steps.get(next) {
                    Some(step) if round % 3 == 0 => (step.thread, step.fd),
                    _ => (thread, fd),
                };
                match replay.offer(&journal, thread, Ask::Recv { fd }, false).unwrap() {
                    Served::Over => break,
                    Served::Fetch => fetch(&mut replay, &log, most),
                    Served::Nothing => {
                        journal.handle_empty(thread).unwrap();
                        let step = &steps[next];
                        if journal.sent() < step.sent {
                            journal.handle_sent((step.sent - journal.sent()).min(100));
                        }
                    }
                    Served::Outcome => {
                        let step = &steps[next];
                        prop_assert_eq!((thread, fd), (step.thread, step.fd));
                        prop_assert!(journal.empties(thread) >= step.empties);
                        prop_assert_eq!(journal.sent(), step.sent, "Gate A");
                        prop_assert_eq!(replay.outcome(), Some(Determinant::Recv { fd, len: 1 }));
                        replay.handle_served(&mut journal);
                        next += 1;
                    }
                }
            }
            prop_assert_eq!(next, steps.len());
        }

        #[test]
        fn a_broken_log_is_an_error(log in prop::collection::vec(any::<u8>(), 1..200)) {
            let (mut replay, journal) = (Replay::new(0, log.len() as u64, 0, 64), journal());
            for _ in 0..400 {
                match replay.offer(&journal, 0, Ask::Recv { fd: 1 }, false) {
                    Ok(Served::Fetch) => fetch(&mut replay, &log, 64),
                    Ok(Served::Outcome) => replay.handle_served(&mut self::journal()),
                    Ok(Served::Nothing | Served::Over) | Err(_) => break,
                }
            }
        }
    }

    #[test]
    fn a_thread_that_cannot_be_is_an_error_for_sends_that_were_taken_too() {
        let log = [235, 31];
        let mut replay = Replay::new(0, log.len() as u64, 0, 64);
        replay.handle_log(0, &log).unwrap();
        assert_eq!(replay.offer(&journal(), 0, Ask::Recv { fd: 1 }, false), Err(Error::Thread(14)));
    }

    #[test]
    fn readiness_is_served_as_it_was() {
        let mut journal = journal();
        let members = [ReadyFd { fd: 7, events: 1 }, ReadyFd { fd: 3, events: 5 }];
        journal.append(0, &Determinant::Ready { epoll: Some(4), set: ReadySet::new(&members).unwrap() }).unwrap();
        let log = journal.poll_ship().unwrap().head.to_vec();
        let mut replay = Replay::new(0, log.len() as u64, 0, 64);
        replay.handle_log(0, &log).unwrap();
        let journal = Journal::new(256, 1, 32);
        assert_eq!(replay.offer(&journal, 0, Ask::Ready { epoll: None }, false), Ok(Served::Nothing));
        assert!(matches!(replay.offer(&journal, 0, Ask::Recv { fd: 7 }, true), Err(Error::Diverged { .. })));
        assert_eq!(replay.offer(&journal, 0, Ask::Ready { epoll: Some(4) }, true), Ok(Served::Outcome));
        let Some(Determinant::Ready { set, .. }) = replay.outcome() else { panic!("no set") };
        assert!(set.iter().eq(members));
    }

    /// A process that has moved is told the address that it had then, and the process that it connected to, whatever listens there now. What failed fails again.
    #[test]
    fn addresses_are_served_as_they_were() {
        let mut journal = journal();
        let (address, peer) = ("10.0.0.5:7000".parse().unwrap(), ProcessId { job: JobId::from_bits(1), rank: Rank(2) });
        let outcomes = [
            Determinant::Bound { fd: 7, address },
            Determinant::Target { fd: 7, local: address, peer: Some(peer) },
            Determinant::Errno { fd: 7, call: Call::Connect, errno: 111 },
            Determinant::Errno { fd: 8, call: Call::Bind, errno: 98 },
        ];
        outcomes.iter().for_each(|outcome| journal.append(0, outcome).unwrap());
        let log = journal.poll_ship().unwrap().head.to_vec();
        let mut replay = Replay::new(0, log.len() as u64, 0, 64);
        replay.handle_log(0, &log).unwrap();
        let mut journal = Journal::new(256, 1, 32);
        // What was asked for then, and what would be another way.
        let asked = [
            (Ask::Bind { fd: 7 }, Ask::Bind { fd: 8 }),
            (Ask::Target { fd: 7 }, Ask::Connect { fd: 7 }),
            (Ask::Connect { fd: 7 }, Ask::Bind { fd: 7 }),
            (Ask::Bind { fd: 8 }, Ask::Target { fd: 8 }),
        ];
        for ((ask, other), outcome) in asked.into_iter().zip(outcomes) {
            assert!(matches!(replay.offer(&journal, 0, other, true), Err(Error::Diverged { .. })), "{other:?}");
            assert_eq!(replay.offer(&journal, 0, ask, true), Ok(Served::Outcome), "{ask:?}");
            assert_eq!(replay.outcome(), Some(outcome));
            replay.handle_served(&mut journal);
        }
        assert_eq!(replay.offer(&journal, 0, Ask::Bind { fd: 7 }, true), Ok(Served::Over));
    }

    #[test]
    fn differences_are_counted_and_the_first_is_named() {
        let connection = ConnectionId { opener: ProcessId { job: JobId::from_bits(1), rank: Rank(0) }, number: 0 };
        let stream = StreamId { connection, from_opener: true };
        let mut comparison = Comparison::default();
        comparison.compare(stream, 0, b"abcd", b"abcd");
        comparison.compare(stream, 4, b"efgh", b"eFgH");
        comparison.compare(stream, 8, b"ijkl", b"i");
        assert_eq!(comparison, Comparison { compared: 9, different: 2, first: Some((stream, 5)) });
    }
}
