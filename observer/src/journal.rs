//! The journal: the receiver-side ordered log of determinants, and how much of it is stable.
//!
//! It knows three positions: `end` (what happened), `shipped` (what the protector was sent) and `stable` (what it holds, all
//! its replicas included). Beside the log it counts what makes the next outcome's place: empty outcomes of each thread, and
//! bytes sent. These counters go on counting during replay, so a checkpoint between two outcomes needs nothing special.
//! Empty outcomes that no other follows, and that sends were taken whole that do not wait, are in the log only once something
//! leaves that no peer asks for again (`record_choices`).
//!
//! A ship is everything that is not shipped, hence whole determinants: a protector never holds half of one, and a log ends
//! between two.

use radic_wire::bytes::Writer;
use radic_wire::determinant::Determinant;
use radic_wire::limits;
use radic_wire::log::Span;

use crate::error::Error;
use crate::ring::Ring;

/// What is to be shipped: the bytes from a position on, in two pieces where the ring wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ship<'a> {
    /// Position of the first byte.
    pub position: u64,
    /// The bytes.
    pub head: &'a [u8],
    /// And these after them.
    pub tail: &'a [u8],
}

/// Empty outcomes of a thread.
#[derive(Debug, Clone, Copy, Default)]
struct Empties {
    count: u64,
    /// What [`Journal::all_sent`] was at the last one.
    at: u64,
}

/// The log of determinants of one process.
#[derive(Debug, Clone)]
pub struct Journal {
    ring: Ring,
    stable: u64,
    shipped: u64,
    /// Of each thread, since its last outcome.
    empties: Box<[Empties]>,
    /// Bytes sent since the last outcome, on all streams.
    sent: u64,
    /// Bytes sent ever.
    all_sent: u64,
    /// What `all_sent` was when a send that does not wait was last taken whole.
    taken: u64,
    /// The thread of the last outcome.
    thread: u32,
    /// Where an outcome is coded before it enters the ring whole.
    scratch: Box<[u8]>,
}

impl Journal {
    /// An empty journal that keeps `capacity` bytes, for threads 0 to `threads - 1`. No outcome's code may be longer than
    /// `longest` bytes ([`limits::DETERMINANT`] unless readiness sets are kept smaller).
    ///
    /// # Panics
    /// If the ring could not hold two of the longest codes, or more than one message carries.
    pub fn new(capacity: usize, threads: usize, longest: usize) -> Self {
        let scratch = longest + 48;
        assert!(capacity >= 2 * scratch && capacity <= limits::LOG_CHUNK && threads > 0, "a journal of {capacity} bytes");
        let scratch = vec![0; scratch].into_boxed_slice();
        let empties = vec![Empties::default(); threads].into_boxed_slice();
        Journal { ring: Ring::new(capacity), stable: 0, shipped: 0, empties, sent: 0, all_sent: 0, taken: 0, thread: 0, scratch }
    }

    /// The position after the last outcome.
    pub fn end(&self) -> u64 {
        self.ring.end()
    }

    /// What the protector holds, all replicas included.
    pub fn stable(&self) -> u64 {
        self.stable
    }

    /// What is still here, for a hello.
    pub fn span(&self) -> Span {
        Span { start: self.ring.start(), end: self.ring.end() }
    }

    /// Whether the next outcome can be recorded, whatever it will be. Asked before the system call that has it.
    pub fn has_room(&self) -> bool {
        self.ring.capacity() - (self.end() - self.stable) as usize >= self.scratch.len()
    }

    /// Records an outcome of `thread`, after the empty ones and the bytes sent since the last.
    pub fn append(&mut self, thread: u32, outcome: &Determinant<'_>) -> Result<(), Error> {
        self.append_before(thread, outcome, 0)
    }

    /// Records an outcome that stands before the last `bytes` sent: a `send` that took a part is told with its part.
    pub(crate) fn append_before(&mut self, thread: u32, outcome: &Determinant<'_>, bytes: u64) -> Result<(), Error> {
        let empties = self.empties.get(thread as usize).ok_or(Error::Thread(thread))?.count;
        if !self.has_room() {
            return Err(Error::Full("journal"));
        }
        let sent = self.sent.saturating_sub(bytes);
        let mut out = Writer::new(&mut self.scratch);
        if thread != self.thread {
            Determinant::Thread { index: thread }.write(&mut out);
        }
        if empties > 0 {
            Determinant::Empty { count: empties }.write(&mut out);
        }
        if sent > 0 {
            Determinant::Sent { bytes: sent }.write(&mut out);
        }
        outcome.write(&mut out);
        let length = out.finish().ok_or(Error::Full("code of one outcome"))?;
        let needed = (self.ring.end() + length as u64).saturating_sub(self.ring.capacity() as u64);
        self.ring.trim(needed.max(self.ring.start()));
        self.ring.push(&self.scratch[..length]);
        self.handle_outcome(thread, sent);
        Ok(())
    }

    /// Something leaves `thread` that no peer asks for again (output, an answer to the launcher). It may depend on what is not in the log: how often nothing was found, and that
    /// sends were taken that would have failed with less room. So these are recorded now, and repeated after a death whether or not a peer waits for what this process sends.
    /// What there is no room for is left for the next call: the gate is shut until there is.
    pub(crate) fn record_choices(&mut self, thread: u32) -> Result<(), Error> {
        self.record_empties(thread)?;
        if self.is_taken() && self.has_room() {
            self.append_before(thread, &Determinant::Taken, self.all_sent - self.taken)?;
        }
        Ok(())
    }

    /// Whether something has happened to `thread` that is not in the log.
    pub(crate) fn has_choices(&self, thread: u32) -> bool {
        self.empties(thread) > 0 || self.is_taken()
    }

    /// Whether a send that does not wait was taken whole after the last outcome.
    fn is_taken(&self) -> bool {
        self.taken > self.all_sent - self.sent
    }

    /// The last empty outcome becomes one of the log, at its place.
    fn record_empties(&mut self, thread: u32) -> Result<(), Error> {
        let of_thread = self.empties.get_mut(thread as usize).ok_or(Error::Thread(thread))?;
        let Some(before) = of_thread.count.checked_sub(1) else { return Ok(()) };
        of_thread.count = before;
        let since = self.all_sent - of_thread.at;
        self.append_before(thread, &Determinant::Nothing, since)
    }

    /// Whether there can be such a thread.
    pub(crate) fn check_thread(&self, thread: u32) -> Result<(), Error> {
        if (thread as usize) < self.empties.len() { Ok(()) } else { Err(Error::Thread(thread)) }
    }

    /// An outcome of `thread` was recorded, or served from the log, that stood after `sent` bytes.
    pub(crate) fn handle_outcome(&mut self, thread: u32, sent: u64) {
        self.empties[thread as usize].count = 0;
        self.sent = self.sent.saturating_sub(sent);
        self.thread = thread;
    }

    /// A call of `thread` had an empty outcome.
    pub fn handle_empty(&mut self, thread: u32) -> Result<(), Error> {
        let empties = self.empties.get_mut(thread as usize).ok_or(Error::Thread(thread))?;
        *empties = Empties { count: empties.count + 1, at: self.all_sent };
        Ok(())
    }

    /// The program has sent so many bytes.
    pub fn handle_sent(&mut self, bytes: u64) {
        self.sent += bytes;
        self.all_sent += bytes;
    }

    /// All that was sent until now was taken, and need not have been.
    pub(crate) fn handle_taken(&mut self) {
        self.taken = self.all_sent;
    }

    /// Empty outcomes of `thread` since its last outcome.
    pub fn empties(&self, thread: u32) -> u64 {
        self.empties.get(thread as usize).map_or(0, |empties| empties.count)
    }

    /// Bytes sent since the last outcome.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// The thread of the last outcome.
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// What is to be shipped now, if anything; it counts as shipped.
    pub fn poll_ship(&mut self) -> Option<Ship<'_>> {
        let (position, end) = (self.shipped, self.end());
        self.shipped = end;
        let (head, tail) = self.ring.slices(position, end);
        (position < end).then_some(Ship { position, head, tail })
    }

    /// The protector holds everything up to `position`, all its replicas too, or a committed image covers it.
    pub fn handle_stable(&mut self, position: u64) -> Result<(), Error> {
        if position > self.end() {
            return Err(Error::Protector("it holds journal that was not written"));
        }
        self.stable = self.stable.max(position);
        // A committed image covers what was not shipped before its cut: that need not be shipped any more.
        self.shipped = self.shipped.max(position);
        Ok(())
    }

    /// A protector, this one or another, answered the hello: it holds everything up to `held`. What it lacks is shipped again;
    /// where that is gone, its log begins with what is left, and an image is needed: then this is true.
    pub fn handle_welcome(&mut self, held: u64) -> Result<bool, Error> {
        if held > self.end() {
            return Err(Error::Protector("it holds journal that was not written"));
        }
        let anew = held < self.ring.start();
        self.shipped = held.max(self.ring.start());
        // Not the maximum: what only a dead protector held is not stable any more, and the gate shuts (G1).
        self.stable = self.shipped;
        Ok(anew)
    }

    /// Replay is over: the log ends here, and everything before is stable.
    pub(crate) fn handle_replayed(&mut self, end: u64) {
        self.ring.restart(end);
        (self.shipped, self.stable) = (end, end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use radic_wire::bytes::Reader;

    use super::*;

    fn journal() -> Journal {
        Journal::new(256, 2, 32)
    }

    proptest! {
        /// Appends, ships, acknowledgements, and protectors that die: what the protector holds is always a prefix of the log.
        #[test]
        fn the_protector_holds_a_prefix(steps in prop::collection::vec((0u8..6, 0u32..40), 0..200)) {
            let (mut journal, mut all, mut held, mut base) = (journal(), Vec::new(), Vec::new(), 0u64);
            for (step, number) in steps {
                match step {
                    0 | 1 => {
                        let before = journal.end();
                        if journal.append(number % 2, &Determinant::Recv { fd: 3, len: number }).is_ok() {
                            let (head, tail) = journal.ring.slices(before, journal.end());
                            all.extend([head, tail].concat());
                        }
                    }
                    2 => journal.handle_empty(number % 2).unwrap(),
                    3 => if let Some(ship) = journal.poll_ship() {
                        prop_assert_eq!(ship.position, base + held.len() as u64);
                        held.extend([ship.head, ship.tail].concat());
                    },
                    4 => if journal.shipped == base + held.len() as u64 {
                        journal.handle_stable(base + held.len() as u64).unwrap();
                    },
                    _ => {
                        // Another protector, which holds nothing or what the old one held at some time.
                        held.truncate(number as usize);
                        if journal.handle_welcome(base + held.len() as u64).unwrap() {
                            base = journal.span().start;
                            held.clear();
                        }
                        prop_assert_eq!(journal.stable(), base + held.len() as u64);
                    }
                }
                prop_assert_eq!(&all[base as usize..base as usize + held.len()], &held[..]);
                prop_assert!(journal.stable() <= base + held.len() as u64);
            }
            let mut reader = Reader::new(&all);
            while reader.at() < all.len() {
                Determinant::read(&mut reader).unwrap();
            }
        }
    }

    #[test]
    fn places_stand_before_outcomes() {
        let mut journal = journal();
        journal.handle_empty(1).unwrap();
        journal.handle_sent(7);
        journal.append(1, &Determinant::Eof { fd: 4 }).unwrap();
        journal.append(1, &Determinant::Eof { fd: 5 }).unwrap();
        let ship = journal.poll_ship().unwrap();
        let mut from = Reader::new(ship.head);
        for expected in [
            Determinant::Thread { index: 1 },
            Determinant::Empty { count: 1 },
            Determinant::Sent { bytes: 7 },
            Determinant::Eof { fd: 4 },
            Determinant::Eof { fd: 5 },
        ] {
            assert_eq!(Determinant::read(&mut from), Ok(expected));
        }
        assert!(from.finish().is_ok());
    }

    /// The empty outcomes before something is printed: the last of them stands after the bytes that were sent before it, not after those of later.
    #[test]
    fn empty_outcomes_are_recorded_at_their_place() {
        let mut journal = journal();
        journal.record_empties(0).unwrap();
        assert_eq!(journal.end(), 0, "there are none");
        (0..2).for_each(|_| journal.handle_empty(0).unwrap());
        journal.handle_sent(5);
        journal.handle_empty(0).unwrap();
        journal.handle_sent(7);
        journal.record_empties(0).unwrap();
        journal.record_empties(0).unwrap();
        assert_eq!((journal.empties(0), journal.sent()), (0, 7));
        let ship = journal.poll_ship().unwrap();
        let mut from = Reader::new(ship.head);
        for expected in [Determinant::Empty { count: 2 }, Determinant::Sent { bytes: 5 }, Determinant::Nothing] {
            assert_eq!(Determinant::read(&mut from), Ok(expected));
        }
        assert!(from.finish().is_ok());
    }

    /// Sends that do not wait stand after what was not found before them, and before the bytes of sends that wait.
    #[test]
    fn taken_sends_are_recorded_at_their_place() {
        let mut journal = journal();
        journal.handle_empty(0).unwrap();
        journal.handle_sent(5);
        journal.handle_taken();
        journal.handle_sent(7);
        assert!(journal.has_choices(0));
        (0..2).for_each(|_| journal.record_choices(0).unwrap());
        assert!(!journal.has_choices(0));
        assert_eq!((journal.empties(0), journal.sent()), (0, 7));
        let ship = journal.poll_ship().unwrap();
        let mut from = Reader::new(ship.head);
        for expected in [Determinant::Nothing, Determinant::Sent { bytes: 5 }, Determinant::Taken] {
            assert_eq!(Determinant::read(&mut from), Ok(expected));
        }
        assert!(from.finish().is_ok());
    }

    #[test]
    fn a_lying_protector_and_a_strange_thread_are_errors() {
        let mut journal = journal();
        assert!(journal.handle_stable(1).is_err());
        assert!(journal.handle_welcome(1).is_err());
        assert!(journal.append(2, &Determinant::Eof { fd: 1 }).is_err());
        assert!(journal.handle_empty(2).is_err());
    }
}
