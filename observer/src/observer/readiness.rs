//! `poll` and its kin, and calls that have an outcome but no bytes.

use radic_wire::determinant::{Determinant, ReadyFd, ReadySet};

use super::answers::{Ready, Wait};
use super::{Observer, Verdict};
use crate::error::Error;
use crate::replay::Ask;

impl Observer {
    /// Is there a recorded outcome for a question that has no bytes: `Connect` or `SoError`?
    pub fn ask(&mut self, thread: u32, ask: Ask, blocking: bool) -> Result<Ready, Error> {
        Ok(match self.consult(thread, ask, blocking)? {
            Verdict::Live => Ready::Live,
            Verdict::Nothing => Ready::Nothing,
            Verdict::Wait(wait) => Ready::Wait(wait),
            Verdict::Outcome => {
                let errno = match self.outcome()? {
                    Determinant::Errno { errno, .. } | Determinant::SoError { errno, .. } => errno,
                    _ => 0,
                };
                self.handle_served();
                self.handle_told(ask, errno);
                Ready::Outcome(errno)
            }
        })
    }

    /// In the recorded run this told the program, perhaps, that its peer is gone for good. It is not told so once more.
    fn handle_told(&mut self, ask: Ask, errno: u32) {
        /// EINTR, EISCONN, EALREADY, EINPROGRESS: no peer is gone.
        const OTHERS: [u32; 5] = [0, 4, 106, 114, 115];
        if let Ask::Connect { fd } | Ask::SoError { fd } = ask
            && !OTHERS.contains(&errno)
            && let Ok(slot) = self.table.slot_of(fd)
        {
            self.take_refusal(slot);
        }
    }

    /// `poll`, `select` or `epoll_wait` into `ready`.
    pub fn ready(&mut self, thread: u32, epoll: Option<u32>, blocking: bool, ready: &mut [ReadyFd]) -> Result<Ready, Error> {
        self.ready_when(thread, epoll, blocking, ready, |_| true)
    }

    /// Like [`Observer::ready`], but a recorded outcome is served only when `is_so` says that it is true now. If something else
    /// than a connection was ready, another thread may have to make it ready first.
    #[inline]
    pub fn ready_when(
        &mut self,
        thread: u32,
        epoll: Option<u32>,
        blocking: bool,
        ready: &mut [ReadyFd],
        is_so: impl FnMut(&[ReadyFd]) -> bool,
    ) -> Result<Ready, Error> {
        match self.consult(thread, Ask::Ready { epoll }, blocking)? {
            Verdict::Live => Ok(Ready::Live),
            Verdict::Nothing => Ok(Ready::Nothing),
            Verdict::Wait(wait) => Ok(Ready::Wait(wait)),
            Verdict::Outcome => self.ready_again(ready, is_so),
        }
    }

    #[cold]
    fn ready_again(&mut self, ready: &mut [ReadyFd], mut is_so: impl FnMut(&[ReadyFd]) -> bool) -> Result<Ready, Error> {
        let answer = match self.outcome()? {
            Determinant::Ready { set, .. } => {
                let count = set.iter().count();
                let room = ready.get_mut(..count).ok_or(self.diverged("fewer descriptors are asked for than were ready"))?;
                room.iter_mut().zip(set.iter()).for_each(|(to, from)| *to = from);
                if !is_so(room) {
                    return Ok(Ready::Wait(Wait::Turn));
                }
                Ready::Set(count)
            }
            Determinant::Errno { errno, .. } => Ready::Outcome(errno),
            _ => return Err(self.diverged("poll had another kind of outcome then")),
        };
        self.handle_served();
        Ok(answer)
    }

    /// What the system said to [`Ready::Live`]; at most [`limits::READY_FDS`](radic_wire::limits::READY_FDS) are told to the program at once.
    pub fn handle_ready(&mut self, thread: u32, epoll: Option<u32>, ready: &[ReadyFd]) -> Result<(), Error> {
        if ready.is_empty() {
            return self.handle_nothing(thread);
        }
        let set = ReadySet::new(ready).ok_or(Error::Full("readiness set"))?;
        self.journal.append(thread, &Determinant::Ready { epoll, set })
    }
}
