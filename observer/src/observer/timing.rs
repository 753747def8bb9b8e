//! What the kernel says without having been told anything: clocks, processor times, random bytes.

use radic_wire::determinant::{Determinant, KernelCall};

use super::{Answer, Input, Observer, Reading, Verdict, Wait};
use crate::connection::Waits;
use crate::error::Error;
use crate::replay::{Ask, NextReading, Replay, Served};

impl Observer {
    /// The program reads a clock: its place in [`CLOCK_NAMES`](radic_wire::determinant::CLOCK_NAMES).
    #[inline]
    pub fn clock(&mut self, thread: u32, clock: u32) -> Result<Reading, Error> {
        if self.replay.is_none() && self.fenced.is_none() {
            return Ok(if self.journal.has_room() { Reading::Live } else { Reading::Wait(Wait::Stable(self.journal.end())) });
        }
        self.clock_of_log(thread, clock)
    }

    #[cold]
    fn clock_of_log(&mut self, thread: u32, clock: u32) -> Result<Reading, Error> {
        self.check_voice()?;
        loop {
            self.pass_readings()?;
            let (skipped, step) = self.journal.clocks.rule(thread, clock)?;
            let Some(replay) = &mut self.replay else { return self.clock(thread, clock) };
            let wait = match replay.offer_time(&self.journal, thread, (clock, skipped, step))? {
                Served::Outcome => match replay.outcome() {
                    Some(Determinant::Time { difference, .. }) => {
                        let told = self.journal.clocks.by_record(thread, clock, difference)?;
                        self.handle_served();
                        return Ok(Reading::Again(told));
                    }
                    // It belongs to no call, or to one that is over.
                    _ => {
                        self.handle_served();
                        continue;
                    }
                },
                Served::Over if self.settle() => return Ok(Reading::Live),
                Served::Over if self.may_be_new() => Wait::Peers,
                Served::Nothing | Served::Over | Served::Missed => {
                    let told = self.journal.clocks.by_rule(thread, clock)?;
                    self.note_reading(thread, clock)?;
                    return Ok(Reading::Again(told));
                }
                Served::Early(difference, readings) => {
                    let told = self.journal.clocks.by_early_record(thread, clock, difference, readings)?;
                    self.journal.forget_reading(thread);
                    return Ok(Reading::Again(told));
                }
                Served::Fetch => Wait::Log,
                Served::Turn => Wait::Turn,
            };
            return Ok(Reading::Wait(wait));
        }
    }

    /// A call that the kernel answers, into `room` (not empty).
    pub fn kernel(&mut self, thread: u32, call: KernelCall, room: &mut [u8]) -> Result<Answer, Error> {
        match self.consult(thread, Ask::Kernel { call }, true)? {
            Verdict::Live => return Ok(Answer::Live),
            Verdict::Nothing => return Err(self.diverged("no call that the kernel answers finds nothing")),
            Verdict::Wait(wait) => return Ok(Answer::Wait(wait)),
            Verdict::Outcome => {}
        }
        let another = "a call that the kernel answers had another kind of outcome then";
        self.serve_bytes(Ask::Kernel { call }, room, another, "the kernel is asked for less than it answered then")
            .map(Answer::Again)
    }

    /// What came of [`Answer::Live`]: at most [`limits::ANSWER`](radic_wire::limits::ANSWER) bytes. A failure is no outcome: it follows from the arguments.
    pub fn handle_kernel(&mut self, thread: u32, call: KernelCall, bytes: &[u8]) -> Result<(), Error> {
        self.journal.append(thread, &Determinant::Kernel { call, bytes })
    }

    /// The process manager's answer to a question, or a piece of it, into `room` (not empty). It is recorded like what the kernel
    /// answers ([`Observer::handle_kernel`]); unlike that it may have to be waited for.
    pub fn launcher(&mut self, thread: u32, room: &mut [u8], blocking: bool) -> Result<Input, Error> {
        let ask = Ask::Kernel { call: KernelCall::Launcher };
        match self.consult(thread, ask, blocking)? {
            Verdict::Live => return Ok(Input::Live),
            Verdict::Nothing => return Ok(Input::Nothing),
            Verdict::Wait(wait) => return Ok(Input::Wait(wait)),
            Verdict::Outcome => {}
        }
        let another = "a read of the process manager's answer had another kind of outcome then";
        self.serve_bytes(ask, room, another, "less is read of the process manager's answer than then").map(Input::Again)
    }

    /// Readings that are next in the log, and that were made already: the image has them, or they were by the rule and have a
    /// record only for what left later. And callers that were refused.
    pub(super) fn pass_readings(&mut self) -> Result<(), Error> {
        self.pass_refused()?;
        while let Some(NextReading { number, begins, empties, clock, skipped, .. }) = self.reading_next()?
            && let Some(thread) = self.journal.place_at(number, begins)
            // One of several threads may have made another reading, which was not made then, before it came there.
            && (self.journal.threads() == 1 || self.journal.empties(thread) >= empties)
            && self.journal.clocks.handle_recorded(thread, clock, skipped)?
        {
            self.go_on(Replay::pass_reading);
            self.pass_refused()?;
        }
        Ok(())
    }

    fn reading_next(&mut self) -> Result<Option<NextReading>, Error> {
        self.replay.as_mut().map_or(Ok(None), |replay| replay.reading_next(&self.journal))
    }

    /// Whether a reading of a clock is next in the log: until its thread makes it, no thread has another outcome.
    pub fn awaits_reading(&mut self) -> Result<bool, Error> {
        self.pass_readings()?;
        Ok(self.reading_next()?.is_some())
    }

    /// The reading that is next in the log is not made any more: no thread of the process can go on, or its own one has gone on
    /// without it. A thread that waits for a lock reads the clock only if the lock is taken, and which threads meet there is in
    /// no log. False: the log goes on with something else.
    pub fn handle_missed_reading(&mut self) -> Result<bool, Error> {
        let Some(NextReading { number, begins, clock, skipped, difference, .. }) = self.reading_next()? else { return Ok(false) };
        // A thread that has made no call yet goes on from this reading; one that has ended makes none.
        let thread = match begins {
            Some(name) => Some(self.journal.begin_thread(name)?),
            None => self.journal.place_at(number, None),
        };
        if let Some(thread) = thread {
            self.journal.clocks.by_missed_record(thread, clock, skipped, difference)?;
        }
        self.go_on(Replay::pass_missed);
        Ok(true)
    }

    /// Whether a reading after the end of the log may be a new one. It was by the rule if a peer has bytes that this process is
    /// still to send again: before those left then, a record would have been stable. A peer that is not here yet has to say what
    /// it has. One that catches up may need bytes of this process for that, so it is not waited for without a limit.
    fn may_be_new(&mut self) -> bool {
        match self.table.waits() {
            _ if self.table.owes() => false,
            Waits::Not => false,
            Waits::OutOfReach => true,
            Waits::CatchesUp => self.replay.as_mut().is_some_and(Replay::has_turns),
        }
    }

    /// What came of [`Reading::Live`]: the clock says this many nanoseconds. What the program is told.
    pub fn handle_clock(&mut self, thread: u32, clock: u32, real: i64) -> Result<i64, Error> {
        let (told, record) = self.journal.clocks.read(thread, clock, real)?;
        match record {
            Some(record) => self.journal.append(thread, &record)?,
            None => self.note_reading(thread, clock)?,
        }
        Ok(told)
    }

    /// The rule gave a time: that is a choice, if something leaves that depends on it.
    fn note_reading(&mut self, thread: u32, clock: u32) -> Result<(), Error> {
        let (skipped, difference) = self.journal.clocks.as_record(thread, clock)?;
        self.journal.handle_reading(thread, clock, skipped, difference)
    }
}
