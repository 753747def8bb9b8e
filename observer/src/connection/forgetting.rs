//! When a connection is closed, and when both processes may forget it: once committed images of both cover its close.

use std::collections::VecDeque;

use radic_wire::determinant::ConnectionId;
use radic_wire::ids::ProcessId;

use super::table::{Gone, NO_SLOT, Table};
use super::{Hold, Link, NO_MORE, Phase, Slot};
use crate::error::Error;
use crate::outbox::Outbox;

/// A word to a peer: its end of a connection may be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgettable {
    /// The connection.
    pub connection: ConnectionId,
    /// The process to tell.
    pub peer: ProcessId,
    /// False: a committed image covers that it was closed here. True: no image of this process has it any more, so it will never dial again.
    pub for_good: bool,
}

impl Table {
    /// The program has closed the descriptor. The connection stays until its peer needs it no more.
    pub(crate) fn close(&mut self, fd: u32, outbox: &mut Outbox) -> Result<(), Error> {
        let slot = self.slot_of(fd)?;
        self.by_fd[fd as usize] = NO_SLOT;
        let connection = self.get_mut(slot).ok_or(Error::Descriptor(fd))?;
        connection.hold = Hold::Closed;
        let end = connection.outgoing.queue.end();
        connection.outgoing.finish.get_or_insert(end);
        self.forget_if_done(slot, outbox);
        Ok(())
    }

    /// The stream of a connection that was refused ends where it begins.
    pub(crate) fn poll_refused(&mut self, outbox: &mut Outbox) -> Option<Slot> {
        let slot = self.refused.pop()? as Slot;
        if let Some(connection) = self.get_mut(slot) {
            connection.outgoing.finish = Some(0);
        }
        self.forget_if_done(slot, outbox);
        Some(slot)
    }

    fn forget_if_done(&mut self, slot: Slot, outbox: &mut Outbox) {
        let has_room = self.gone.len().max(self.forgotten.len()) < self.most;
        let Some(connection) = self.get_mut(slot) else { return };
        // A peer that was told too little while this process was replaying is told again, on a new link, before the connection is forgotten.
        let to_renew = connection.unsettled || connection.link == Link::GivenUp;
        let is_ended = connection.outgoing.finish.is_some();
        if connection.forgettable != (true, true) || !is_ended || connection.to_tell || to_renew || !has_room {
            return;
        }
        let (id, peer, opened_here, gone_there) = (connection.id, connection.peer, connection.opened_here, connection.gone_there);
        outbox.trim(&mut connection.outgoing.queue, u64::MAX);
        self.slots[slot] = None;
        self.by_id.remove(&(id, opened_here));
        self.free.push(slot as u32);
        match (opened_here, gone_there) {
            // Of a connection of the process with itself both ends are in the same images.
            (true, _) if peer == id.opener => self.end(id),
            (true, _) => self.gone.push_back(Gone { id, peer, absent_from: None }),
            (false, true) => self.bury(id),
            (false, false) => _ = self.forgotten.insert(id),
        }
    }

    /// The opener never asks for this connection again. But it may have done so just before, on a socket that this process has
    /// not looked at yet.
    fn bury(&mut self, id: ConnectionId) {
        push_newest(&mut self.buried, self.most, id);
        self.end(id);
    }

    /// Committed images of both processes cover that they have closed this connection, and its opener does not dial it any more.
    pub(super) fn end(&mut self, id: ConnectionId) {
        push_newest(&mut self.over, self.most, id);
    }

    /// A connection of which the node need know nothing any more.
    pub(crate) fn poll_over(&mut self) -> Option<ConnectionId> {
        self.over.pop_front()
    }

    /// An image begins: what it covers as closed, and what it is without.
    pub(crate) fn handle_checkpoint(&mut self, image: u64) {
        for connection in self.iter_mut().filter(|connection| connection.is_closed()) {
            connection.covered_by.get_or_insert(image);
        }
        for gone in &mut self.gone {
            gone.absent_from.get_or_insert(image);
        }
    }

    /// An image was committed: what it covers as closed stays closed here.
    pub(crate) fn handle_committed(&mut self, image: u64, outbox: &mut Outbox) {
        self.committed = Some(image);
        for slot in 0..self.slots.len() {
            let Some(connection) = self.get_mut(slot) else { continue };
            if connection.covered_by.is_some_and(|covering| covering <= image) && !connection.forgettable.0 {
                connection.forgettable.0 = true;
                connection.to_tell = true;
                self.to_tell.push(slot as u32);
            }
            // There may be room now.
            self.forget_if_done(slot, outbox);
        }
    }

    /// What a peer is to be told.
    pub(crate) fn poll_forget(&mut self, outbox: &mut Outbox) -> Option<Forgettable> {
        while let Some(slot) = self.to_tell.pop() {
            let slot = slot as usize;
            let connection = self.get_mut(slot)?;
            connection.to_tell = false;
            let (id, peer, opened_here) = (connection.id, connection.peer, connection.opened_here);
            let other = self.find_end(id, !opened_here);
            self.forget_if_done(slot, outbox);
            match other {
                // A connection of the process with itself: its other end is told here.
                Some(other) => self.forget_end(other, true, outbox),
                None => return Some(Forgettable { connection: id, peer, for_good: false }),
            }
        }
        let is_in_no_image =
            |gone: &Gone| gone.absent_from.is_some_and(|image| self.committed.is_some_and(|newest| image <= newest));
        let gone = *self.gone.front().filter(|gone| is_in_no_image(gone))?;
        self.gone.pop_front();
        self.end(gone.id);
        Some(Forgettable { connection: gone.id, peer: gone.peer, for_good: true })
    }

    /// The acceptor of a connection says that its link is broken: if this process has opened and forgotten it, what the peer is to be told once more.
    pub(crate) fn forgotten(&self, id: ConnectionId, peer: ProcessId, phase: Phase) -> Option<Forgettable> {
        let is_forgotten = phase == Phase::Live && id.number < self.next_number && self.find_end(id, true).is_none();
        let for_good = !self.gone.iter().any(|gone| gone.id == id);
        is_forgotten.then_some(Forgettable { connection: id, peer, for_good })
    }

    /// The peer will never need this connection again; if it is for good, it will not even ask for it.
    pub(crate) fn handle_forget(&mut self, id: ConnectionId, for_good: bool, outbox: &mut Outbox) {
        if for_good && self.forgotten.remove(&id) {
            self.bury(id);
        }
        if let Some(slot) = self.find(id) {
            self.forget_end(slot, for_good, outbox);
        }
    }

    /// The peer has ended, after it had received so much.
    pub(crate) fn handle_left(&mut self, id: ConnectionId, received: u64, outbox: &mut Outbox) {
        if let Some(connection) = self.find(id).and_then(|slot| self.get_mut(slot)) {
            connection.outgoing.peer_has = connection.outgoing.peer_has.max(received);
        }
        self.handle_forget(id, true, outbox);
    }

    /// The connection of `slot`, which was opened here, comes to nothing: its first link was refused by this `errno`. Its peer has
    /// never heard of it, and is never to. For the program it ends where it begins. In replay the peer may have been dialed in
    /// vain already.
    pub(crate) fn refuse_call(&mut self, slot: Slot, errno: i32, outbox: &mut Outbox) -> Result<(), Error> {
        let Some(connection) = self.get_mut(slot) else { return Ok(()) };
        // The log may have had the end.
        let finish = connection.incoming.finish.unwrap_or(connection.incoming.wanted());
        connection.handle_finish(finish)?;
        connection.outgoing.refuse(errno);
        (connection.link, connection.attempt) = (Link::Down, None);
        self.forget_end(slot, true, outbox);
        Ok(())
    }

    fn forget_end(&mut self, slot: Slot, for_good: bool, outbox: &mut Outbox) {
        if let Some(connection) = self.get_mut(slot) {
            connection.gone_there |= for_good;
            connection.forgettable.1 = true;
            connection.handle_stable(outbox, NO_MORE);
        }
        self.forget_if_done(slot, outbox);
    }
}

/// Keeps the newest `most`.
fn push_newest(ids: &mut VecDeque<ConnectionId>, most: usize, id: ConnectionId) {
    if ids.len() >= most {
        ids.pop_front();
    }
    ids.push_back(id);
}
