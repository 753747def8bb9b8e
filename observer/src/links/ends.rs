//! What it means that a socket has ended: the sender's node knows where its stream ends.

use radic_wire::determinant::StreamId;
use radic_wire::process::{StreamEnd, ToNode};

use super::{Action, Ending, GIVEN_UP, Links, RESET, RETRY, Reconnection, Stage};
use crate::connection::{Connection, Phase, Slot};
use crate::{Context, Failure};

impl Links {
    /// The socket of `slot` has ended. `unread`: bytes that it has received and the program has not taken. True: the node is
    /// asked what that means.
    pub fn handle_ended(&mut self, cx: &mut Context<'_>, slot: Slot, why: Ending, unread: u64) -> bool {
        let Some(connection) = cx.observer.table().get(slot) else { return false };
        let (end, peer, stream) = (connection.stream_out(), connection.peer, connection.stream_in());
        if self.is_down(end) {
            return false;
        }
        let there = connection.incoming().wanted() + unread;
        let is_whole = connection.incoming().finish().is_some_and(|finish| finish <= there);
        if is_whole && (why == Ending::End || connection.outgoing().is_refused()) {
            self.await_word(cx, (slot, end));
            return false;
        }
        let ask = self.ask(|ask| ToNode::Ended { ask, stream, sender: peer });
        self.reconnections.insert(end, Reconnection::new(peer, why, Stage::Asked { ask }));
        self.check_invariants();
        true
    }

    /// The connection of the stream that was asked about with this number, by the stream that goes out.
    pub fn asks_about(&self, ask: u64) -> Option<StreamId> {
        let is_this = |stage: &Stage| matches!(*stage, Stage::Asked { ask: of } | Stage::Parting { ask: of } if of == ask);
        self.reconnections.iter().find(|(_, of)| is_this(&of.stage)).map(|(end, _)| *end)
    }

    /// The node says where a stream ends. None: its sender has not ended it.
    pub(super) fn handle_final(
        &mut self,
        cx: &mut Context<'_>,
        ask: u64,
        last: Option<StreamEnd>,
        unread: u64,
    ) -> Result<(), Failure> {
        let Some(end) = self.asks_about(ask) else { return Ok(()) };
        let Some(Reconnection { why, stage, .. }) = self.reconnections.get(&end).copied() else { return Ok(()) };
        let parting = matches!(stage, Stage::Parting { .. });
        if parting {
            cx.observer.handle_left(end.connection, last.map_or(0, |last| last.received));
        }
        let Some((slot, connection)) = cx.connection(end) else {
            self.give_up(end);
            return Ok(());
        };
        let (wanted, finish, stream) = (connection.incoming().wanted(), connection.incoming().finish(), connection.stream_in());
        self.changed = true;
        match last {
            Some(last) if parting => {
                cx.observer.handle_finish(slot, last.offset)?;
                if last.offset > wanted {
                    return Err(Failure::Lost { stream, from: wanted, to: last.offset });
                }
                self.set_stage(end, Stage::Over);
            }
            // The peer has left and had not ended the stream. For the program it ends here, and what it sends is refused, as on any network.
            None if parting => {
                cx.observer.handle_finish(slot, finish.unwrap_or(wanted))?;
                self.set_stage(end, Stage::Over);
                self.refuse_sends(cx, (slot, end), RESET);
            }
            Some(last) => {
                cx.observer.handle_finish(slot, last.offset)?;
                self.judge(cx, (slot, end), why, last, wanted + unread);
            }
            None => self.break_link(cx, slot, why),
        }
        Ok(())
    }

    /// The sender has ended the stream. Is all of it here, and may the socket stay?
    fn judge(&mut self, cx: &mut Context<'_>, (slot, end): (Slot, StreamId), why: Ending, last: StreamEnd, there: u64) {
        match why {
            _ if last.offset > there => self.break_link(cx, slot, why),
            Ending::End => self.restore(end),
            Ending::Reset(errno) if last.closed => {
                // Before anything is sent on it again. It is read to its end; the peer may still call, to say how far it has come.
                self.refuse_sends(cx, (slot, end), errno);
                self.restore(end);
            }
            Ending::Reset(_) => self.break_link(cx, slot, why),
        }
        self.await_word(cx, (slot, end));
    }

    /// All has come on this link, and its peer may still owe this process a word. It says so on another link when it has caught
    /// up, or it leaves without a word. So the link is made again after a pause, and again. Not at once: what was read of it has
    /// to be sent once more, by a process that has better things to do.
    fn await_word(&mut self, cx: &Context<'_>, (slot, end): (Slot, StreamId)) {
        if owes_word(cx, slot) && !self.is_down(end) {
            self.owing.entry(end).or_insert(cx.now + RETRY);
        }
    }

    /// Links on which a word was awaited for long enough.
    pub(super) fn look_for_words(&mut self, cx: &mut Context<'_>) {
        let due: Vec<StreamId> = self.owing.iter().filter(|(_, due)| **due <= cx.now).map(|(end, _)| *end).collect();
        for end in due {
            self.owing.remove(&end);
            if let Some(slot) = cx.slot(end).filter(|slot| owes_word(cx, *slot) && !self.is_down(end)) {
                self.break_link(cx, slot, GIVEN_UP);
            }
        }
    }

    pub(super) fn refuse_sends(&mut self, cx: &mut Context<'_>, (slot, end): (Slot, StreamId), errno: i32) {
        cx.observer.refuse_sends(slot, errno);
        self.actions.push_back(Action::RefuseSends(end));
    }

    /// The program's socket was the right one.
    fn restore(&mut self, end: StreamId) {
        self.reconnections.remove(&end);
        self.actions.push_back(Action::Restore(end));
    }

    /// The peer has ended. It wants nothing more; what it had sent, and how much it had received, its node knows.
    pub(super) fn handle_left(&mut self, cx: &mut Context<'_>, end: StreamId) {
        let connection = cx.connection(end).map(|(_, connection)| connection).filter(|connection| !connection.is_closed());
        let Some((stream, sender)) = connection.map(|connection: &Connection| (connection.stream_in(), connection.peer)) else {
            cx.observer.handle_left(end.connection, 0);
            return self.give_up(end);
        };
        let ask = self.ask(|ask| ToNode::Ended { ask, stream, sender });
        self.set_stage(end, Stage::Parting { ask });
    }
}

/// Whether this process waits for its peer to say what it has (Gate B): the peer was catching up when it greeted. It says so on
/// another link, or it has left, which its node knows.
fn owes_word(cx: &Context<'_>, slot: Slot) -> bool {
    let is_settled = cx.observer.table().get(slot).is_none_or(|connection| connection.outgoing().peer_settled);
    cx.observer.phase() != Phase::Live && !is_settled
}
