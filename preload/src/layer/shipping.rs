//! What the protector gets, and the gate: waiting until it has that.

use std::time::Duration;

use radic_wire::record::RECORD;
use rustix::event::{PollFd, PollFlags};

use super::Layer;
use super::patience::Patience;
use crate::counters::{self, Counter};
use crate::ending::sure;
use crate::{sys, threads};

/// Bytes of payload that are shipped at once: with what says what they are they fill a record, which the log service handles where it lies.
const PIECE: usize = RECORD - 128;

pub(super) fn clock() -> Duration {
    Duration::from_nanos(sys::now())
}

fn ticks() -> Duration {
    Duration::from_nanos(sys::tick())
}

impl Layer {
    /// Ships the journal at once.
    pub fn ship(&mut self) {
        if let Some(replayer) = &mut self.replayer {
            return replayer.look(&self.observer);
        }
        if self.session.is_reading() {
            self.look_at_log();
        }
        self.haste.handle_shipped();
        while let Some(ship) = self.observer.poll_journal() {
            counters::add(Counter::Journal, (ship.head.len() + ship.tail.len()) as u64);
            if let Err(error) = self.journal.send_journal(&ship) {
                return self.reconnect(error);
            }
        }
    }

    /// The same after the outcome of a receiving call, at once or later: [`Haste`](radic_observer::haste::Haste).
    pub fn ship_received(&mut self) {
        if self.haste.handle_outcome(self.clock_of_haste(), self.observer.unshipped()) {
            self.ship();
        }
    }

    /// The same when calls have found nothing for a while.
    pub(super) fn ship_while_waiting(&mut self) {
        let is_due = self.haste.handle_nothing(self.clock_of_haste(), self.observer.unshipped());
        // What lies in the log is looked at by shipping, too.
        if is_due || self.session.is_reading() {
            self.ship();
        }
    }

    /// Where nothing waits for the journal a tick of the kernel is fine enough.
    fn clock_of_haste(&self) -> fn() -> Duration {
        if self.observer.causes().is_some() { ticks } else { clock }
    }

    /// The same after bytes were sent: at once, unless nothing waits for it.
    pub fn ship_sent(&mut self) {
        match self.observer.causes() {
            Some(_) if self.observer.unshipped() > 0 => self.ship_received(),
            Some(_) => {}
            None => self.ship(),
        }
    }

    /// Ships received payload, as far as the connection takes it without much waiting in memory.
    pub fn ship_payload(&mut self) {
        if self.replayer.is_some() {
            return;
        }
        while !self.bulk.is_pressed() && self.ship_piece() {}
        if let Err(error) = self.bulk.flush() {
            self.reconnect(error);
        }
    }

    /// A call has found nothing: a moment for what would be shipped later, in the way of a message. Shorter pieces wake the log
    /// service up too often, and longer ones keep the program from what has come meanwhile (docs/performance.md).
    #[inline]
    pub fn ship_payload_in_passing(&mut self) {
        if self.replayer.is_none() && self.observer.payload().shippable() >= PIECE as u64 && !self.bulk.has_unsent() {
            self.ship_piece();
        }
    }

    /// False: there was nothing, or the connection is gone.
    fn ship_piece(&mut self) -> bool {
        let Some(piece) = self.observer.poll_payload(PIECE) else { return false };
        counters::add(Counter::Payload, (piece.head.len() + piece.tail.len()) as u64);
        let sent = self.bulk.send_payload(&piece);
        sent.map_err(|error| self.reconnect(error)).is_ok()
    }

    /// G1: waits until nothing that precedes is unstable.
    pub fn pass_gate(&mut self) {
        let is_shut = self.observer.gate().is_some();
        self.haste.handle_gate(clock, is_shut, self.observer.journal().unshipped() > 0);
        if is_shut {
            self.wait_at_gate();
        }
    }

    /// The same for what leaves and is never asked for again: output, and what the launcher is told.
    pub fn pass_gate_of_output(&mut self) {
        // A thread that has made no call has not found nothing yet.
        let Some(thread) = threads::known() else { return self.pass_gate() };
        while sure(self.observer.gate_of_output(thread)).is_some() {
            self.wait_at_gate();
        }
    }

    /// Whether what leaves and is never asked for again has to wait until this process has caught up: other threads come first.
    pub fn output_awaits_log(&mut self) -> bool {
        threads::known().is_some_and(|thread| sure(self.observer.output_awaits_log(thread)))
    }

    fn wait_at_gate(&mut self) {
        let mut patience = Patience::begin();
        counters::add(Counter::GateWaits, 1);
        while self.observer.gate().is_some() {
            self.ship();
            if self.await_protector() {
                self.hear_node();
            }
            // The session moves to the next protector here: the present one may hang, and a protector that hangs breaks no connection.
            self.settle_down();
            self.hear_protector(false);
            self.tell_if_long(&mut patience, "the protector of its node does not say that it keeps the journal");
        }
        counters::add(Counter::GateNs, patience.lasts());
    }

    /// Waits for a word of the protector, a moment at most. True: the node has something to say, perhaps that there is another protector: a protector that is
    /// cut off says nothing, and breaks no connection.
    fn await_protector(&mut self) -> bool {
        const MOMENT: u64 = 100_000_000;
        let journal = self.journal.awaited();
        let mut fds =
            [PollFd::from_borrowed_fd(self.journal.fd(), journal), PollFd::from_borrowed_fd(self.node.fd(), PollFlags::IN)];
        _ = sys::poll(&mut fds, Some(sys::span(MOMENT)));
        let told = !fds[1].revents().is_empty();
        if self.journal.has_unsent()
            && let Err(error) = self.journal.flush()
        {
            self.reconnect(error);
        }
        told
    }

    /// Waits until there is room for what is received.
    pub fn wait_for_payload(&mut self) {
        let mut patience = Patience::begin();
        while self.observer.payload().room() == 0 {
            self.ship();
            self.ship_payload();
            let events = if self.bulk.has_unsent() { PollFlags::OUT } else { PollFlags::empty() };
            let mut fds =
                [PollFd::from_borrowed_fd(self.bulk.fd(), events), PollFd::from_borrowed_fd(self.journal.fd(), PollFlags::IN)];
            _ = sys::poll(&mut fds, Some(sys::span(100_000_000)));
            self.hear_protector(false);
            self.hear_node();
            self.settle_down();
            self.tell_if_long(&mut patience, "the protector of its node does not take what it has received");
        }
    }
}
