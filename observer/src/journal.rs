//! The journal: the receiver-side ordered log of determinants, and how much of it is stable.
//!
//! It knows three positions: `end` (what happened), `shipped` (what the protector was sent) and `stable` (what it holds, all
//! its replicas included). Beside the log it counts what makes the next outcome's place: empty outcomes of each thread, and
//! bytes sent. These counters go on counting during replay, so a checkpoint between two outcomes needs nothing special.
//! Empty outcomes that no other follows, and that sends were taken whole that do not wait, are in the log only once something
//! leaves that no peer asks for again (`record_choices`).
//!
//! A thread has a name, which is the same in each incarnation, and a place in the table while it is alive. The log has a number for it, which it gets with its
//! first outcome ([`Determinant::Begins`]) and which another thread gets after its end. So neither the order in which threads make their first calls nor
//! the moment in which they end need be the same in replay.
//!
//! A ship is everything that is not shipped, hence whole determinants: a protector never holds half of one, and a log ends
//! between two.

use radic_wire::bytes::Writer;
use radic_wire::determinant::Determinant;
use radic_wire::limits;
use radic_wire::log::NewCauses;
use radic_wire::span::Span;

use crate::clocks::Clocks;
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
    /// Causes that are new to the protector: in one message with these bytes.
    pub causes: Option<NewCauses<'a>>,
}

/// Bytes beyond a journal's capacity for outcomes of calls that were promised room, and have waited since: this many threads, and
/// as much for each. Only such outcomes are short, what is ready is recorded at once.
pub const RESERVE: usize = 64 * 128;

/// A place in the table of threads.
#[derive(Debug, Clone, Copy, Default)]
struct Thread {
    /// The thread's name: it follows from which thread created it, and as which of its threads; 0: the process's first one.
    name: u64,
    /// Whether the thread has not ended. A place of a thread that has ended is used again.
    alive: bool,
    /// The number by which the log calls the thread, if it had an outcome.
    number: Option<u32>,
    /// Empty outcomes since the thread's last outcome.
    empties: u64,
    /// Bytes that the thread has sent since its last outcome.
    sent: u64,
    /// Bytes that the thread has sent ever.
    all: u64,
    /// What `all` was at the thread's last outcome that came after all that it had sent: in each run the thread has sent this much
    /// when a later outcome of any thread is had.
    at_least: u64,
    /// What [`Journal::all_sent`] was at the last empty outcome, and what `sent` was.
    at: (u64, u64),
    /// A reading of a clock that the rule gave, if nothing else has come of a call since.
    reading: Option<Reading>,
    /// The two sums of `at` when a send of this thread that does not wait was last taken whole, if the log does not say that it was.
    taken: Option<(u64, u64)>,
}

impl Thread {
    /// When a send was last taken whole of which the log says nothing, after an outcome that stood after `own` bytes of this
    /// thread, and after `recorded` bytes of all.
    fn taken_after(&self, own: Option<u64>, recorded: u64) -> Option<(u64, u64)> {
        self.taken.filter(|(all, at)| own.map_or(*all > recorded, |own| *at > own))
    }
}

/// A reading of a clock that is not in the log, because the rule gives it: as it would be recorded.
#[derive(Debug, Clone, Copy)]
struct Reading {
    clock: u32,
    skipped: u64,
    difference: i64,
    /// As for the last empty outcome.
    at: (u64, u64),
}

impl Reading {
    /// What remains of this reading once the reading of `clock` after `skipped` unrecorded ones is recorded. None: this reading
    /// is that one.
    fn after(self, clock: u32, skipped: u64) -> Option<Reading> {
        if self.clock != clock {
            return Some(self);
        }
        let left = self.skipped.checked_sub(skipped.saturating_add(1))?;
        Some(Reading { skipped: left, ..self })
    }
}

/// Where an outcome stood in the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stood {
    /// Of its thread.
    pub(crate) number: u32,
    /// The thread's name, if this is its first outcome.
    pub(crate) begins: Option<u64>,
    /// After this many bytes of all threads.
    pub(crate) sent: u64,
    /// After this many bytes of its own thread, if the log says that.
    pub(crate) own: Option<u64>,
}

/// What remains of the counts of an outcome's thread, once the outcome is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing: a call had it.
    Nothing,
    /// Empty outcomes beyond `passed`; the outcome is itself one of those that are taken off. If the thread had made as many
    /// already, it has gone on, and a reading was made after them.
    Empties { passed: u64 },
    /// Empty outcomes beyond `passed`, and the readings since. The outcome belongs to the clock reading after `passed` empty
    /// outcomes and `skipped` unrecorded readings. The thread has already made that reading.
    Reading { passed: u64, clock: u32, skipped: u64 },
    /// All: it belongs to no call ([`Determinant::Taken`], [`Determinant::Refused`]).
    All,
}

/// What the log calls a thread: the name, and its place in the table if it has begun here.
#[derive(Debug, Clone, Copy)]
struct Number {
    name: u64,
    place: Option<u32>,
}

/// The log of determinants of one process.
#[derive(Debug, Clone)]
pub struct Journal {
    ring: Ring,
    /// Bytes that it keeps as a rule.
    capacity: usize,
    stable: u64,
    shipped: u64,
    /// The threads. Not all of the memory is touched before there are this many.
    threads: Vec<Thread>,
    /// How many of them are alive.
    alive: usize,
    /// By the number that the log has for them. In replay a thread may be at another place than its number.
    numbers: Vec<Option<Number>>,
    /// Threads at once.
    most: usize,
    /// Bytes sent since the last outcome, on all streams.
    sent: u64,
    /// Bytes sent ever.
    all_sent: u64,
    /// The sum of [`Thread::at_least`], of threads that have ended, too.
    at_least: u64,
    /// The number of the last outcome's thread.
    thread: u32,
    /// What the threads were told of clocks.
    pub(crate) clocks: Clocks,
    /// Where an outcome is coded before it enters the ring whole.
    scratch: Box<[u8]>,
}

impl Journal {
    /// An empty journal that keeps `capacity` bytes, and [`RESERVE`] more if it must, for this many threads at once; the
    /// process's first one has begun. No outcome's code may be longer than `longest` bytes ([`limits::DETERMINANT`] unless
    /// readiness sets are kept smaller).
    ///
    /// # Panics
    /// If the ring could not hold two of the longest codes, or more than one message carries.
    pub fn new(capacity: usize, threads: usize, longest: usize) -> Self {
        let scratch = longest + 48;
        let is_shipped_at_once = capacity + RESERVE <= limits::LOG_CHUNK;
        assert!(capacity >= 2 * scratch && is_shipped_at_once && threads > 0, "a journal of {capacity} bytes");
        let scratch = vec![0; scratch].into_boxed_slice();
        let (mut table, mut numbers) = (Vec::with_capacity(threads), Vec::with_capacity(threads));
        table.push(Thread { alive: true, number: Some(0), ..Thread::default() });
        numbers.push(Some(Number { name: 0, place: Some(0) }));
        let (ring, threads, most) = (Ring::new(capacity + RESERVE), table, threads);
        let clocks = Clocks::new(most);
        let (stable, shipped, alive) = (0, 0, 1);
        Journal {
            ring,
            capacity,
            stable,
            shipped,
            threads,
            alive,
            numbers,
            most,
            sent: 0,
            all_sent: 0,
            at_least: 0,
            thread: 0,
            clocks,
            scratch,
        }
    }

    /// The position after the last outcome.
    pub fn end(&self) -> u64 {
        self.ring.end()
    }

    /// What the protector holds, all replicas included.
    pub fn stable(&self) -> u64 {
        self.stable
    }

    /// The bytes from `from` on, in two pieces where the ring wraps.
    ///
    /// # Panics
    /// If they are not all kept.
    pub(crate) fn slices(&self, from: u64) -> (&[u8], &[u8]) {
        self.ring.slices(from, self.end())
    }

    /// What is still here, for a hello.
    pub fn span(&self) -> Span {
        Span { start: self.ring.start(), end: self.ring.end() }
    }

    /// Whether the next outcome can be recorded, whatever it will be. Asked before the system call that has it. Of a call that
    /// waits meanwhile, for a node's answer or for a signal, there is still room ([`RESERVE`]), also if others fill the journal,
    /// or the next log holds less of it.
    #[inline]
    pub fn has_room(&self) -> bool {
        (self.end() - self.stable) as usize + self.scratch.len() <= self.capacity
    }

    // ---- threads

    /// A thread of this name makes its first call, or one that has begun. Its place, by which it is known here until it has ended.
    pub fn begin_thread(&mut self, name: u64) -> Result<u32, Error> {
        if let Some(place) = self.place_named(name) {
            return Ok(place);
        }
        let place = self.threads.iter().position(|thread| !thread.alive).unwrap_or(self.threads.len());
        if place == self.most {
            return Err(Error::Threads(self.most));
        }
        // In replay the log may have had an outcome of it already, one that belongs to no call.
        let number = self.numbers.iter().position(|number| number.is_some_and(|number| number.name == name));
        if let Some(number) = number.and_then(|number| self.numbers[number].as_mut()) {
            number.place = Some(place as u32);
        }
        if place == self.threads.len() {
            self.threads.push(Thread::default());
        }
        self.clocks.begin_thread(place as u32);
        self.alive += 1;
        self.threads[place] = Thread { name, alive: true, number: number.map(|number| number as u32), ..Thread::default() };
        Ok(place as u32)
    }

    /// The thread at this place has ended: another one may have its place, and its number in the log.
    pub fn end_thread(&mut self, place: u32) {
        let Some(thread) = self.threads.get_mut(place as usize) else { return };
        self.alive -= usize::from(std::mem::take(&mut thread.alive));
        if let Some(number) = thread.number.take() {
            self.numbers[number as usize] = None;
        }
    }

    /// Threads that have begun and not ended.
    pub fn threads(&self) -> usize {
        self.alive
    }

    fn thread_at(&self, place: u32) -> Result<Thread, Error> {
        self.threads.get(place as usize).filter(|thread| thread.alive).copied().ok_or(Error::Thread(place))
    }

    /// The thread of this name has this number in the log from here on. Any other that had it has ended then, even if it has not here.
    fn bind(&mut self, number: u32, name: u64) {
        let index = number as usize;
        if index >= self.numbers.len() {
            self.numbers.resize(index + 1, None);
        }
        if let Some(before) = self.numbers[index].and_then(|before| before.place) {
            self.threads[before as usize].number = None;
        }
        let place = self.place_named(name);
        if let Some(place) = place {
            self.threads[place as usize].number = Some(number);
        }
        self.numbers[index] = Some(Number { name, place });
    }

    /// The place of the thread of this name, if it has begun and not ended.
    fn place_named(&self, name: u64) -> Option<u32> {
        self.threads.iter().position(|thread| thread.alive && thread.name == name).map(|place| place as u32)
    }

    /// The lowest number that no thread has.
    fn free_number(&self) -> u32 {
        self.numbers.iter().position(Option::is_none).unwrap_or(self.numbers.len()) as u32
    }

    fn place_of(&self, number: u32) -> Option<u32> {
        self.numbers.get(number as usize).copied().flatten()?.place
    }

    /// Whether the thread at `place` is the one that the log means: by its number, and at its first outcome by its name.
    pub(crate) fn is_thread(&self, place: u32, number: u32, begins: Option<u64>) -> bool {
        match begins {
            Some(name) => self.thread_at(place).is_ok_and(|thread| thread.name == name),
            None => self.place_of(number) == Some(place),
        }
    }

    /// The place of the thread that the log means, if it has begun here.
    pub(crate) fn place_at(&self, number: u32, begins: Option<u64>) -> Option<u32> {
        begins.map_or_else(|| self.place_of(number), |name| self.place_named(name))
    }

    /// Empty outcomes of the thread that the log means.
    pub(crate) fn empties_of(&self, number: u32, begins: Option<u64>) -> u64 {
        self.place_at(number, begins).map_or(0, |place| self.empties(place))
    }

    /// Bytes that the thread that the log means has sent since its last outcome.
    pub(crate) fn sent_of(&self, number: u32, begins: Option<u64>) -> u64 {
        self.place_at(number, begins).map_or(0, |place| self.sent_by(place))
    }

    /// An outcome was served from the log, or recorded; at a thread's first one the thread gets its number.
    pub(crate) fn handle_served(&mut self, stood: Stood, left: Left) {
        let Stood { number, begins, sent, own } = stood;
        if let Some(name) = begins {
            self.bind(number, name);
        }
        let recorded = self.all_sent - self.sent.saturating_sub(sent);
        // Another outcome of one of several threads comes after all that it has sent.
        let is_among = own.is_some() || self.threads() == 1;
        if let Some(thread) = self.place_of(number).map(|place| &mut self.threads[place as usize]) {
            let taken = thread.taken_after(own, recorded);
            match left {
                Left::Nothing => (thread.empties, thread.reading) = (0, None),
                Left::Empties { passed } => {
                    thread.reading = thread.reading.filter(|_| thread.empties >= passed);
                    thread.empties = thread.empties.saturating_sub(passed);
                }
                Left::Reading { passed, clock, skipped } => {
                    thread.reading = thread.reading.and_then(|reading| reading.after(clock, skipped));
                    thread.empties = thread.empties.saturating_sub(passed);
                }
                Left::All => {}
            }
            if left == Left::Nothing && own.is_none() {
                self.at_least += thread.all - thread.at_least;
                thread.at_least = thread.all;
            }
            if left == Left::All {
                thread.taken = taken;
            } else {
                thread.sent = own.map_or(0, |own| thread.sent.saturating_sub(own));
                let of_now = |(all, at): (u64, u64)| (all, at.saturating_sub(own.unwrap_or(0)).min(thread.sent));
                thread.taken = taken.filter(|_| is_among).map(of_now);
            }
        }
        self.sent = self.sent.saturating_sub(sent);
        self.thread = number;
    }

    // ---- outcomes

    /// Records an outcome of `thread`, after the empty ones and the bytes sent since the last.
    pub fn append(&mut self, thread: u32, outcome: &Determinant<'_>) -> Result<(), Error> {
        self.append_before(thread, outcome, 0)
    }

    /// Records an outcome that stands before the last `bytes` sent: a `send` that took a part is told with its part.
    pub(crate) fn append_before(&mut self, thread: u32, outcome: &Determinant<'_>, bytes: u64) -> Result<(), Error> {
        self.append_between(thread, outcome, bytes, bytes)
    }

    /// Records an outcome that stands before the last `bytes` sent, of which `own_bytes` are the thread's own.
    fn append_between(&mut self, thread: u32, outcome: &Determinant<'_>, bytes: u64, own_bytes: u64) -> Result<(), Error> {
        let Thread { name, number, empties, sent: own, .. } = self.thread_at(thread)?;
        let sent = self.sent.saturating_sub(bytes);
        let index = number.unwrap_or_else(|| self.free_number());
        let says_own = outcome.is_among_sends() && self.threads() > 1;
        let mut out = Writer::new(&mut self.scratch);
        match number {
            None => Determinant::Begins { index, name }.write(&mut out),
            Some(_) if index != self.thread => Determinant::Thread { index }.write(&mut out),
            Some(_) => {}
        }
        if empties > 0 {
            Determinant::Empty { count: empties }.write(&mut out);
        }
        if sent > 0 {
            Determinant::Sent { bytes: sent }.write(&mut out);
        }
        let own = says_own.then(|| own.saturating_sub(own_bytes));
        own.into_iter().for_each(|bytes| Determinant::Own { bytes }.write(&mut out));
        outcome.write(&mut out);
        let length = out.finish();
        self.keep(length)?;
        let is_taken = *outcome == Determinant::Taken && number.is_some();
        let stood = Stood { number: index, begins: number.is_none().then_some(name), sent, own };
        self.handle_served(stood, if is_taken { Left::All } else { Left::Nothing });
        Ok(())
    }

    /// Records what belongs to no call and has no place: it stands before the next outcome, whichever thread has that, and no
    /// count begins anew.
    pub(crate) fn append_aside(&mut self, outcome: &Determinant<'_>) -> Result<(), Error> {
        let mut out = Writer::new(&mut self.scratch);
        outcome.write(&mut out);
        let length = out.finish();
        self.keep(length)
    }

    /// What was coded last is in the log. None: it was too long.
    fn keep(&mut self, length: Option<usize>) -> Result<(), Error> {
        let length = length.ok_or(Error::Full("code of one outcome"))?;
        let begin = (self.end() + length as u64).saturating_sub(self.capacity as u64).min(self.stable);
        self.ring.trim(begin.max(self.ring.start()));
        if length > self.ring.room() {
            return Err(Error::Full("journal"));
        }
        self.ring.push(&self.scratch[..length]);
        Ok(())
    }

    /// Something leaves `thread` that no peer asks for again (output, an answer to the launcher). It may depend on what is not in
    /// the log: how often nothing was found, times that the rule gave, and that sends were taken that would have failed with less
    /// room. So these are recorded now, and repeated after a death whether or not a peer waits for what this process sends. What
    /// there is no room for is left for the next call: the gate is shut until there is. If a reading was recorded: of which
    /// clock, and how many that were not came before it.
    pub(crate) fn record_choices(&mut self, thread: u32) -> Result<Option<(u32, u64)>, Error> {
        // The reading comes after the last empty outcome: that would have made it none.
        let reading = self.thread_at(thread)?.reading.map(|reading| (reading, self.since(thread, reading.at)));
        self.record_empties(thread)?;
        let clock = match reading {
            Some((Reading { clock, skipped, difference, .. }, (since, own))) if self.has_room() => {
                self.append_between(thread, &Determinant::Time { clock, skipped, difference }, since, own)?;
                Some((clock, skipped))
            }
            Some((reading, (_, own))) => {
                let at = (reading.at.0, self.sent_by(thread).saturating_sub(own));
                self.threads[thread as usize].reading = Some(Reading { at, ..reading });
                None
            }
            None => None,
        };
        if let Some(taken) = self.threads[thread as usize].taken
            && self.has_room()
        {
            let (since, own) = self.since(thread, taken);
            self.append_between(thread, &Determinant::Taken, since, own)?;
        }
        Ok(clock)
    }

    /// Whether something has happened to `thread` that is not in the log.
    pub(crate) fn has_choices(&self, thread: u32) -> bool {
        let has_choices = |thread: &Thread| thread.empties > 0 || thread.taken.is_some() || thread.reading.is_some();
        self.threads.get(thread as usize).is_some_and(has_choices)
    }

    /// The rule gave `thread` a time: what would be recorded of it.
    pub(crate) fn handle_reading(&mut self, thread: u32, clock: u32, skipped: u64, difference: i64) -> Result<(), Error> {
        let thread = self.threads.get_mut(thread as usize).filter(|thread| thread.alive).ok_or(Error::Thread(thread))?;
        thread.reading = Some(Reading { clock, skipped, difference, at: (self.all_sent, thread.sent) });
        Ok(())
    }

    /// What `thread` has read last is told from the log, which has it further on.
    pub(crate) fn forget_reading(&mut self, thread: u32) {
        self.threads.get_mut(thread as usize).into_iter().for_each(|thread| thread.reading = None);
    }

    /// Bytes sent since a moment with these sums, on all streams and by this thread.
    fn since(&self, thread: u32, at: (u64, u64)) -> (u64, u64) {
        (self.all_sent - at.0, self.sent_by(thread).saturating_sub(at.1))
    }

    /// The last empty outcome becomes one of the log, at its place.
    fn record_empties(&mut self, thread: u32) -> Result<(), Error> {
        let Thread { empties, at, .. } = self.thread_at(thread)?;
        let Some(before) = empties.checked_sub(1) else { return Ok(()) };
        self.threads[thread as usize].empties = before;
        let (since, own) = self.since(thread, at);
        self.append_between(thread, &Determinant::Nothing, since, own)
    }

    /// A number in the log that this process cannot have.
    pub(crate) fn check_thread(&self, number: u32) -> Result<(), Error> {
        if (number as usize) < self.most { Ok(()) } else { Err(Error::Thread(number)) }
    }

    /// A call of `thread` had an empty outcome.
    #[inline]
    pub fn handle_empty(&mut self, thread: u32) -> Result<(), Error> {
        let thread = self.threads.get_mut(thread as usize).filter(|thread| thread.alive).ok_or(Error::Thread(thread))?;
        (thread.empties, thread.at) = (thread.empties + 1, (self.all_sent, thread.sent));
        thread.reading = None;
        Ok(())
    }

    /// This thread has sent this many bytes.
    pub fn handle_sent(&mut self, thread: u32, bytes: u64) {
        if let Some(thread) = self.threads.get_mut(thread as usize) {
            thread.sent += bytes;
            thread.all += bytes;
        }
        self.sent += bytes;
        self.all_sent += bytes;
    }

    /// Whether `thread` has sent at least as much as in a run in which all threads had sent `sent` bytes since the last outcome.
    /// The other threads had sent then at least what they had sent by outcomes of their own.
    pub(crate) fn has_sent_as_much(&self, thread: u32, sent: u64) -> bool {
        let then = self.all_sent - self.sent + sent;
        let of = self.threads.get(thread as usize).copied().unwrap_or_default();
        of.all + (self.at_least - of.at_least) >= then
    }

    /// All that this thread has sent until now was taken, and need not have been.
    pub(crate) fn handle_taken(&mut self, thread: u32) {
        let all = self.all_sent;
        if let Some(thread) = self.threads.get_mut(thread as usize) {
            thread.taken = Some((all, thread.sent));
        }
    }

    /// Empty outcomes of `thread` since its last outcome.
    pub fn empties(&self, thread: u32) -> u64 {
        self.threads.get(thread as usize).map_or(0, |thread| thread.empties)
    }

    /// Bytes that `thread` has sent since its last outcome.
    pub fn sent_by(&self, thread: u32) -> u64 {
        self.threads.get(thread as usize).map_or(0, |thread| thread.sent)
    }

    /// Bytes sent since the last outcome.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// The number of the last outcome's thread.
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// Bytes that are not shipped.
    pub fn unshipped(&self) -> usize {
        (self.end() - self.shipped) as usize
    }

    /// What is to be shipped now, if anything; it counts as shipped.
    pub fn poll_ship(&mut self) -> Option<Ship<'_>> {
        let is_any = self.shipped < self.end();
        is_any.then(|| self.ship())
    }

    /// What is to be shipped now, perhaps without bytes; it counts as shipped.
    pub(crate) fn ship(&mut self) -> Ship<'_> {
        let (position, end) = (self.shipped, self.end());
        self.shipped = end;
        let (head, tail) = self.ring.slices(position, end);
        Ship { position, head, tail, causes: None }
    }

    /// Nothing, after what was shipped.
    pub(crate) fn ship_nothing(&self) -> Ship<'static> {
        Ship { position: self.shipped, head: &[], tail: &[], causes: None }
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

    /// The protector holds the journal up to `held`; the rest is shipped again. Returns true if part of the rest is gone: the log
    /// then begins later and needs an image.
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

    /// Nothing was recorded yet: its first byte has this position.
    pub(crate) fn begin_at(&mut self, position: u64) {
        self.ring.restart(position);
        (self.shipped, self.stable) = (position, position);
    }

    /// Replay is over: the log ends here, and everything before is stable.
    pub(crate) fn handle_replayed(&mut self, end: u64) {
        self.ring.restart(end);
        // Threads of which the log had an outcome, and which have made no call here.
        self.numbers.iter_mut().for_each(|number| _ = number.take_if(|number| number.place.is_none()));
        (self.shipped, self.stable) = (end, end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use radic_wire::bytes::Reader;

    use super::*;

    fn journal() -> Journal {
        let mut journal = Journal::new(256, 2, 32);
        assert_eq!(journal.begin_thread(77), Ok(1));
        journal
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

    /// Calls of all threads were promised room. Then the journal fills, and the next log has nothing of it.
    #[test]
    fn what_was_promised_room_has_it_when_a_log_is_lost() {
        let mut journal = Journal::new(512, 65, 32);
        (1..64).for_each(|name| assert_eq!(journal.begin_thread(name), Ok(name as u32)));
        let outcome = |fd| Determinant::Connected { fd };
        for fd in 0..1_000 {
            while !journal.has_room() {
                journal.poll_ship();
                journal.handle_stable(journal.end()).unwrap();
            }
            journal.append(0, &outcome(fd)).unwrap();
        }
        assert!(journal.has_room(), "the calls begin");
        let start = journal.span().start;
        assert_eq!(journal.handle_welcome(start), Ok(false));
        assert!(!journal.has_room(), "the next log has nothing");
        (0..64).for_each(|thread| journal.append(thread, &outcome(7)).unwrap());
        assert!(!journal.has_room());
        assert_eq!(journal.span().start, start, "nothing is lost");
        let mut more = (0..RESERVE).map(|_| journal.append(0, &outcome(7)));
        assert_eq!(more.find(Result::is_err), Some(Err(Error::Full("journal"))), "it has a limit");
    }

    #[test]
    fn places_stand_before_outcomes() {
        let mut journal = journal();
        journal.handle_empty(1).unwrap();
        journal.handle_sent(0, 7);
        journal.append(1, &Determinant::Eof { fd: 4 }).unwrap();
        journal.append(1, &Determinant::Eof { fd: 5 }).unwrap();
        let ship = journal.poll_ship().unwrap();
        let mut from = Reader::new(ship.head);
        for expected in [
            Determinant::Begins { index: 1, name: 77 },
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
        journal.handle_sent(0, 5);
        journal.handle_empty(0).unwrap();
        journal.handle_sent(0, 7);
        journal.record_empties(0).unwrap();
        journal.record_empties(0).unwrap();
        assert_eq!((journal.empties(0), journal.sent()), (0, 7));
        let ship = journal.poll_ship().unwrap();
        let mut from = Reader::new(ship.head);
        let (sent, own) = (Determinant::Sent { bytes: 5 }, Determinant::Own { bytes: 5 });
        for expected in [Determinant::Empty { count: 2 }, sent, own, Determinant::Nothing] {
            assert_eq!(Determinant::read(&mut from), Ok(expected));
        }
        assert!(from.finish().is_ok());
    }

    /// Sends that do not wait stand after what was not found before them, and before the bytes of sends that wait.
    #[test]
    fn taken_sends_are_recorded_at_their_place() {
        let mut journal = journal();
        journal.handle_empty(0).unwrap();
        journal.handle_sent(0, 5);
        journal.handle_taken(0);
        journal.handle_sent(0, 7);
        assert!(journal.has_choices(0));
        (0..2).for_each(|_| assert_eq!(journal.record_choices(0), Ok(None)));
        assert!(!journal.has_choices(0));
        assert_eq!((journal.empties(0), journal.sent()), (0, 7));
        let ship = journal.poll_ship().unwrap();
        let mut from = Reader::new(ship.head);
        let (nothing, five) = ([Determinant::Own { bytes: 0 }, Determinant::Nothing], 5);
        let taken = [Determinant::Sent { bytes: five }, Determinant::Own { bytes: five }, Determinant::Taken];
        for expected in nothing.into_iter().chain(taken) {
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
        assert_eq!(journal.begin_thread(78), Err(Error::Threads(2)));
    }

    /// A place and a number are used again when a thread has ended, and its empty outcomes are not those of the next one.
    #[test]
    fn the_bound_is_one_on_threads_that_are_alive() {
        let mut journal = journal();
        for name in 77..200 {
            assert_eq!(journal.begin_thread(name), Ok(1));
            assert_eq!((journal.empties(1), journal.threads()), (0, 2));
            journal.handle_empty(1).unwrap();
            if name % 3 > 0 {
                journal.append(1, &Determinant::Eof { fd: 4 }).unwrap();
                journal.handle_empty(1).unwrap();
                let ship = journal.poll_ship().unwrap();
                let (code, end) = ([ship.head, ship.tail].concat(), ship.position + (ship.head.len() + ship.tail.len()) as u64);
                assert_eq!(Determinant::read(&mut Reader::new(&code)), Ok(Determinant::Begins { index: 1, name }));
                journal.handle_stable(end).unwrap();
            }
            journal.end_thread(1);
            assert!(journal.handle_empty(1).is_err(), "it has ended");
        }
    }
}
