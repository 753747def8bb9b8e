//! Bytes on their way into the sockets of connections, sockets that linger until all of them have left, and connections whose peer is gone.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use radic_observer::Transmit;
use radic_observer::connection::Slot;
use rustix::io::Errno;

use super::held::enter;
use super::{Layer, Lingering, UNSENT};
use crate::counters::{self, Counter};
use crate::ending::{fail, sure};
use crate::fds::{self, Kind};
use crate::links::reset;
use crate::sys;

/// The program wants the number of one of the layer's own descriptors: that moves.
pub fn make_room(fd: i32) {
    let Some(mut layer) = enter() else { return };
    if let Err(error) = layer.move_own(fd) {
        fail(&format!("the program wants descriptor {fd}, which is RADIC's own and cannot be moved: {error}"));
    }
}

impl Layer {
    /// Sockets that are kept for connections which are forgotten: their places will be others'.
    pub fn close_forgotten(&mut self) {
        let table = self.observer.table();
        self.unsent.retain(|slot| table.get(*slot).is_some());
        _ = self.full.take_if(|(slot, _)| table.get(*slot).is_none());
        let forgotten = |lingering: &mut Lingering| table.get(lingering.slot).is_none();
        self.lingering.extract_if(.., forgotten).for_each(|lingering| sys::close_own(lingering.fd));
    }

    /// The layer's own sockets are those of an earlier incarnation: they are closed, and what waited for them is forgotten.
    pub(crate) fn forget_sockets(&mut self) {
        self.lingering.drain(..).for_each(|lingering| sys::close_own(lingering.fd));
        self.unsent.clear();
        self.full = None;
        self.idle = 0;
        UNSENT.store(false, Ordering::Relaxed);
    }

    pub(super) fn fd_of(&self, slot: Slot) -> Option<i32> {
        let lingering = || self.lingering.iter().find(|lingering| lingering.slot == slot).map(|l| l.fd.as_raw_fd());
        self.observer.table().get(slot)?.fd().map(|fd| fd as i32).or_else(lingering)
    }

    /// Lets bytes leave on the link of `slot`; what the socket does not take waits.
    pub fn transmit(&mut self, slot: Slot) {
        if let Some(replayer) = &mut self.replayer {
            return sure(replayer.transmit(&mut self.observer, slot));
        }
        let Some(fd) = self.fd_of(slot) else { return };
        match self.try_transmit(slot, sys::borrow(fd)) {
            Ok(true) => self.unsent.retain(|waiting| *waiting != slot),
            Ok(false) => {
                if !self.unsent.contains(&slot) {
                    self.unsent.push(slot);
                }
            }
            Err(error) => self.link_ended(slot, reset(error)),
        }
        UNSENT.store(!self.unsent.is_empty(), Ordering::Relaxed);
    }

    fn try_transmit(&mut self, slot: Slot, fd: BorrowedFd<'_>) -> Result<bool, Errno> {
        loop {
            let has_left = match self.observer.poll_transmit(slot) {
                None if self.observer.is_held_back(slot) => {
                    self.ship();
                    return Ok(false);
                }
                None => return Ok(true),
                Some(Transmit::End) => {
                    rustix::net::shutdown(fd, rustix::net::Shutdown::Write)?;
                    self.observer.handle_passed(slot, 1);
                    true
                }
                Some(Transmit::Bytes(offset)) => self.transmit_frame(slot, fd, offset, u64::MAX)?,
            };
            if !has_left {
                return Ok(false);
            }
        }
    }

    /// The link of `slot` is gone for good, and its peer wants nothing more.
    pub fn handle_broken(&mut self, slot: Slot, error: Errno) {
        self.observer.handle_broken(slot);
        self.unsent.retain(|waiting| *waiting != slot);
        self.observer.refuse_sends(slot, error.raw_os_error());
    }

    /// Lets everything leave that waits, as far as sockets take it.
    pub fn drain(&mut self) {
        for at in (0..self.unsent.len()).rev() {
            let Some(slot) = self.unsent.get(at).copied() else { continue };
            self.transmit(slot);
            self.end_lingering(slot);
        }
    }

    /// The outbox has no room for what the program sends on this connection.
    pub fn note_full(&mut self, slot: Slot) {
        if self.full.is_none() && !self.is_replayed() {
            self.full = Some((slot, sys::now()));
            counters::add(Counter::FullWaits, 1);
        }
    }

    /// It has taken bytes of this connection.
    pub fn note_room(&mut self, slot: Slot) {
        let Some((_, since)) = self.full.take_if(|(full, _)| *full == slot) else { return };
        let waited = sys::now() - since;
        self.pressure.handle_waited(Duration::from_nanos(waited));
        counters::add(Counter::FullNs, waited);
        counters::set(Counter::LongestFullNs, counters::get(Counter::LongestFullNs).max(waited));
    }

    /// Whether bytes wait for the socket of `slot`.
    pub fn is_unsent(&self, slot: Slot) -> bool {
        self.unsent.contains(&slot)
    }

    /// The program has closed `fd` before all of its bytes have left: the socket stays open, out of its way, until they have.
    pub fn linger(&mut self, slot: Slot, fd: i32) {
        // Its last close is the layer's, which neither waits nor throws away.
        _ = rustix::net::sockopt::set_socket_linger(sys::borrow(fd), None);
        match rustix::io::fcntl_dupfd_cloexec(sys::borrow(fd), 1_000)
            .or_else(|_| rustix::io::fcntl_dupfd_cloexec(sys::borrow(fd), 3))
        {
            Ok(copy) => {
                _ = fds::set(copy.as_raw_fd(), Kind::Own, false);
                self.lingering.push(Lingering { slot, fd: copy });
            }
            Err(error) => self.handle_broken(slot, error),
        }
    }

    /// One of the layer's own descriptors gets another number. The old one stays open, for `dup2` to replace: no other call may get it in between.
    fn move_own(&mut self, number: i32) -> Result<(), Errno> {
        let lingering = self.lingering.iter_mut().map(|lingering| &mut lingering.fd);
        let own = [self.journal.fd_mut(), self.bulk.fd_mut(), self.node.fd_mut()];
        let fd =
            own.into_iter().chain(lingering).chain(self.sockets.own()).find(|fd| fd.as_raw_fd() == number).ok_or(Errno::BADF)?;
        let dup = |from: i32| rustix::io::fcntl_dupfd_cloexec(&*fd, from);
        let moved = dup(number + 1).or_else(|_| dup(3))?;
        _ = fds::set(moved.as_raw_fd(), Kind::Own, true);
        fds::clear(number);
        _ = sys::give(std::mem::replace(fd, moved));
        self.node.appoint();
        Ok(())
    }

    pub(crate) fn end_lingering(&mut self, slot: Slot) {
        // What was refused has not ended before its node knows.
        let is_open = self.observer.table().get(slot).is_some_and(|connection| connection.outgoing().finish().is_none());
        if is_open || self.unsent.contains(&slot) {
            return;
        }
        if let Some(at) = self.lingering.iter().position(|lingering| lingering.slot == slot) {
            let Lingering { fd, .. } = self.lingering.swap_remove(at);
            sys::close_own(fd);
        }
    }
}
