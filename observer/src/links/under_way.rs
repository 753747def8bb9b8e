//! The first link of a connection whose `connect` has not waited for it (EINPROGRESS): the program's own socket, until the kernel
//! says that it is connected or that it will not be.
//!
//! - *It is connected.* The greeting is written before the program is told: what it sends comes after that.
//! - *It was refused.* The peer may have died: then it comes back, and the link is made like one that has broken. A peer that
//!   listens nowhere any more has refused it, and the program is told so.
//! - *The program gives it up.* The peer has never heard of it, and never does.
//!
//! What the program finds out of this, it does by calls that have outcomes of their own (what is ready, SO_ERROR, a second
//! `connect`). That the link was refused is recorded besides: a process that is brought back makes no link that leads nowhere.

use radic_wire::determinant::StreamId;

use super::{Action, Ending, GIVEN_UP, Links, Reconnection, Stage};
use crate::connection::{Connection, Link, Slot};
use crate::found::Found;
use crate::{Context, Failure};

impl Links {
    /// The socket of `slot`, a new connection, is under way.
    pub fn handle_under_way(&mut self, cx: &Context<'_>, slot: Slot) {
        let Some(connection) = cx.observer.table().get(slot) else { return };
        let (end, peer) = (connection.stream_out(), connection.peer);
        assert!(connection.opened_here && connection.attempt().is_none(), "its peer has heard nothing of it");
        self.reconnections.insert(end, Reconnection::new(peer, GIVEN_UP, Stage::UnderWay));
    }

    /// Whether the socket of this end is under way.
    pub fn is_under_way(&self, end: StreamId) -> bool {
        matches!(self.reconnections.get(&end), Some(of) if matches!(of.stage, Stage::UnderWay))
    }

    /// All of them.
    pub fn under_way(&self) -> impl Iterator<Item = StreamId> {
        self.reconnections.iter().filter(|(_, of)| matches!(of.stage, Stage::UnderWay)).map(|(end, _)| *end)
    }

    /// The socket of this end is connected. While the gate is shut (G1) that is to be said again.
    pub fn handle_made(&mut self, cx: &mut Context<'_>, end: StreamId) {
        let Some(slot) = cx.slot(end).filter(|_| self.is_under_way(end) && cx.is_gate_open()) else { return };
        let greeting = cx.observer.dial(slot);
        // The first greeting of all is not answered.
        match greeting.filter(|_| cx.observer.table().get(slot).is_some_and(|connection| connection.link() == Link::Up)) {
            Some(greeting) => {
                self.reconnections.remove(&end);
                self.actions.push_back(Action::Hail(end, Box::new(greeting)));
            }
            None => self.break_link(cx, slot, GIVEN_UP),
        }
        self.changed = true;
        self.check_invariants();
    }

    /// The link will not be connected, by this `errno`. `found` is what the node knows of the address that was called. A peer that
    /// is there has refused nothing for good: the link is made like one that has broken. While the log has no room this is to be
    /// said again.
    pub fn handle_refused(&mut self, cx: &mut Context<'_>, end: StreamId, errno: i32, found: &Found) -> Result<(), Failure> {
        let Some((slot, connection)) = cx.connection(end).filter(|_| self.is_under_way(end)) else { return Ok(()) };
        if found.is_there(connection.peer, errno) {
            self.break_link(cx, slot, Ending::Reset(errno));
        } else if cx.observer.handle_call_refused(slot, errno)? {
            self.set_stage(end, Stage::Over);
            self.actions.push_back(Action::RefuseSends(end));
        } else {
            return Ok(());
        }
        self.changed = true;
        self.check_invariants();
        Ok(())
    }

    /// The connection of `slot` was refused, and this incarnation has no socket for it, or dials its peer in vain: no link is
    /// wanted. For the program the stream ends where it begins, as it did; where streams end a restart forgets.
    pub(super) fn refuse_again(&mut self, cx: &mut Context<'_>, slot: Slot) {
        let Some(connection) = cx.observer.table().get(slot) else { return };
        let (end, peer, incoming) = (connection.stream_out(), connection.peer, connection.incoming());
        self.set_stage(end, Stage::Over);
        if connection.is_closed() {
            return;
        }
        let finish = incoming.finish().unwrap_or(incoming.wanted());
        // It is where it was known to be, or where nothing was known.
        _ = cx.observer.handle_finish(slot, finish);
        self.reconnections.insert(end, Reconnection::new(peer, GIVEN_UP, Stage::Over));
        self.actions.push_back(Action::Unplug(end));
        self.changed = true;
    }

    /// Connections of which replay has found that they were refused.
    pub(super) fn look_for_refused(&mut self, cx: &mut Context<'_>) {
        let is_over = |end| matches!(self.reconnections.get(&end), Some(of) if matches!(of.stage, Stage::Over));
        let is_meant = |c: &Connection| c.opened_here && c.is_unheard_of() && !is_over(c.stream_out());
        let slots: Vec<Slot> = cx.observer.table().iter().filter(|(_, c)| is_meant(c)).map(|(slot, _)| slot).collect();
        slots.into_iter().for_each(|slot| self.refuse_again(cx, slot));
    }

    /// The program closes the connection of `slot`. If it is under way and has no bytes, the peer is never to hear of it.
    pub fn handle_closing(&mut self, cx: &mut Context<'_>, slot: Slot) {
        let Some(connection) = cx.observer.table().get(slot) else { return };
        let (end, unsent) = (connection.stream_out(), connection.outgoing().unsent());
        if !self.is_under_way(end) {
            return;
        }
        if unsent > 0 {
            self.break_link(cx, slot, GIVEN_UP);
        } else {
            self.reconnections.remove(&end);
            cx.observer.handle_left(end.connection, 0);
        }
    }
}
