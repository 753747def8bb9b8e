//! The lock of a program with two threads. One that finds it taken reads a clock, to wait for a limited time, before it makes a call that waits. Which threads meet there is in no
//! log, so on the way back the reading may not be made any more, and another one may be. When no thread can go on for that,
//! [`radic_observer::standstill`] notices.

use radic_observer::{Error, Reading, Wait};

use super::program::Caller;
use super::world::World;
use crate::app::Op;

/// The clock that is read for the lock, and for nothing else: what such a reading is told changes nothing that the program does.
const CLOCK: u32 = 2;
/// One in so many calls that wait finds the lock taken.
const TAKEN: usize = 6;

/// A thread before the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// It has not come to the lock.
    Before,
    /// It has found the lock taken, and reads the clock.
    Reads,
    /// It has the lock.
    Has,
}

impl World {
    /// The thread wants the lock before its next call, if that waits. False: it still reads the clock.
    pub fn take_lock(&mut self, (pid, at): Caller) -> Result<bool, Error> {
        let meets = self.plan.meets;
        let program = &self.lib(pid).program;
        if !meets || program.threads.len() == 1 {
            return Ok(true);
        }
        let waits = match program.threads[at].app.op() {
            Op::Accept { blocking, .. } | Op::Poll { blocking } | Op::Receive { blocking, .. } => blocking,
            Op::Done => true,
            _ => false,
        };
        if !waits {
            return Ok(true);
        }
        if self.lib(pid).program.threads[at].lock == Lock::Before {
            let is_taken = self.dice.one_in(TAKEN);
            self.lib(pid).program.threads[at].lock = if is_taken { Lock::Reads } else { Lock::Has };
        }
        if self.lib(pid).program.threads[at].lock == Lock::Reads {
            let real = self.clock_of(self.processes[pid as usize].machine);
            let lib = self.lib(pid);
            match lib.observer.clock(at as u32, CLOCK)? {
                Reading::Live => _ = lib.observer.handle_clock(at as u32, CLOCK, real)?,
                Reading::Again(_) => {}
                Reading::Wait(what) => return self.note_wait((pid, at), what).map(|()| false),
            }
            lib.program.threads[at].lock = Lock::Has;
            let position = lib.observer.log_position();
            self.trace(|| format!("process {pid}, thread {at} has found the lock taken at {position}"));
        }
        Ok(true)
    }

    /// The thread makes a call, and waits for its turn no more.
    pub fn wake(&mut self, (pid, at): Caller) {
        let program = &mut self.lib(pid).program;
        if let Some(asked) = program.threads[at].waits.take() {
            program.standstill.handle_wait_over(asked);
        }
    }

    /// A call of this thread waits.
    pub fn note_wait(&mut self, caller: Caller, what: Wait) -> Result<(), Error> {
        self.await_turn(caller, what);
        Ok(())
    }

    /// A thread waits. If it waits for its turn, and so do all others, none can go on.
    pub fn await_turn(&mut self, (pid, at): Caller, what: Wait) {
        let now = self.now;
        let lib = self.lib(pid);
        if !lib.observer.is_replaying() || !lib.observer.waits_for_turn(at as u32, what) {
            return;
        }
        let program = &mut lib.program;
        assert!(program.threads[at].waits.is_none(), "a thread waits for one thing");
        program.threads[at].waits = Some(program.standstill.handle_wait(&lib.observer, now));
        let others = program.threads.iter().filter(|thread| !thread.is_over()).count();
        let result = program.standstill.handle_look(&mut lib.observer, now, |asked| asked == others);
        if self.sure(pid, result) == Some(true) {
            self.counts.missed_readings += 1;
            self.trace(|| format!("process {pid}: no thread makes the reading that is next"));
        }
    }
}
