//! The lock of a program with two threads. One that finds it taken reads a clock, to wait for a limited time, before it makes a call that waits. Which threads meet there is in no
//! log, so on the way back the reading may not be made any more, and another one may be. When no thread can go on for that, [`radic_observer::standstill`] notices.

use radic_observer::{Error, Reading};

use super::program::{Caller, Thread};
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

/// All that changes when a thread goes on, in the order of threads.
#[derive(Debug, PartialEq, Eq)]
pub struct Standing(u64, u64, Vec<(u64, Lock, usize)>);

impl World {
    /// The thread wants the lock before its next call, if that waits. False: it still reads the clock.
    pub fn take_lock(&mut self, (pid, at): Caller) -> Result<bool, Error> {
        let meets = self.plan.meets;
        let program = &self.lib(pid).program;
        let waits = match program.threads[at].app.op() {
            Op::Accept { blocking, .. } | Op::Poll { blocking } | Op::Receive { blocking, .. } => blocking,
            Op::Done => true,
            _ => false,
        };
        if !meets || program.threads.len() == 1 || !waits {
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
                Reading::Wait(_) => return Ok(false),
            }
            lib.program.threads[at].lock = Lock::Has;
            let position = lib.observer.log_position();
            self.trace(|| format!("process {pid}, thread {at} has found the lock taken at {position}"));
        }
        Ok(true)
    }

    /// Where the process stands before a call of one of its threads.
    pub fn stands(&mut self, pid: u32) -> Standing {
        let lib = self.lib(pid);
        let of = |thread: &Thread| (thread.calls, thread.lock, thread.left_of_call());
        let threads = lib.program.threads.iter().map(of).collect();
        Standing(lib.observer.log_position(), lib.observer.journal().sent(), threads)
    }

    /// The thread makes a call, and waits for its turn no more.
    pub fn wake(&mut self, (pid, at): Caller) {
        let program = &mut self.lib(pid).program;
        if let Some(asked) = program.threads[at].waits.take() {
            program.standstill.handle_wait_over(asked);
        }
    }

    /// A call of this thread is over, or came to nothing: then it waits for its turn, unless it waits for something else. None of them can go on if all do.
    pub fn note_standing(&mut self, (pid, at): Caller, before: &Standing) {
        let has_moved = self.stands(pid) != *before;
        let now = self.now;
        let lib = self.lib(pid);
        let program = &mut lib.program;
        if has_moved || program.threads[at].is_over() || program.threads[at].is_elsewhere() {
            return;
        }
        program.threads[at].waits = Some(program.standstill.handle_wait(&lib.observer, now));
        let others = program.threads.iter().filter(|thread| !thread.is_over()).count();
        let result = program.standstill.handle_look(&mut lib.observer, now, |asked| asked == others);
        if self.sure(pid, result) == Some(true) {
            self.counts.missed_readings += 1;
            self.trace(|| format!("process {pid}: no thread makes the reading that is next"));
        }
    }
}
