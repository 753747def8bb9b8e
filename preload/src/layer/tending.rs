//! Looking after everything that waits: in passing, when a call has found nothing, when it has to wait, and when the process ends.

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use radic_observer::Wait;
use radic_observer::connection::{Phase, Slot};
use radic_observer::standstill::Asked;
use radic_wire::determinant::StreamId;
use radic_wire::process::ToNode;
use rustix::event::{PollFd, PollFlags};

use super::held::{self, enter, try_enter};
use super::shipping;
use super::{Layer, UNSENT, lock_address};
use crate::counters::{self, Counter};
use crate::ending::sure;
use crate::pmi::TAKEN_MS;
use crate::standstill::all_but;
use crate::{signals, sys};

/// Empty outcomes in a row after which the process idles as far as shipping goes.
const IDLE: u32 = 512;
/// The same while a link is down.
const IDLE_DOWN: u32 = 8;
/// Time between two questions what is stable while the outbox fills, in nanoseconds: less than it takes to fill what is left. A
/// call that waits for room asks by itself.
const ASK_NS: u64 = 2_000_000;
/// The same where recovery lines free the outbox: a line takes longer than that, and each question goes from node to node.
const ASK_WITH_LINES_NS: u64 = 50_000_000;

/// Descriptors that a waiting call listens to besides its own.
pub const AWAITED: usize = 192;

/// Something that the layer should look after was left over: called by hooks that pass through.
pub fn tend_in_passing() {
    if UNSENT.load(Ordering::Relaxed)
        && let Some(mut layer) = try_enter()
    {
        layer.drain();
    }
}

/// The program ends: what is to leave leaves. Afterwards every call passes through.
///
/// The process stays until the protectors of its receivers have all that it has sent, or the receivers want no more: a receiver
/// that is restarted later finds it there. It also stays until nothing that it has received is wanted again, for it may still be
/// brought back. Links are made again meanwhile, images are made while the layer is free, and signals end it as if it were gone
/// already. At last the node gets the counters.
pub fn leave() {
    let Some(mut layer) = enter() else { return };
    layer.begin_to_leave();
    while !layer.may_leave() {
        let mut set = [(0, PollFlags::empty()); AWAITED];
        let count = set.iter_mut().zip(layer.awaited()).map(|(to, awaited)| *to = awaited).count();
        let limit = layer.due().map_or(1_000_000_000, |due| due.saturating_sub(sys::now()));
        drop(layer);
        let mut fds: [PollFd<'_>; AWAITED] =
            std::array::from_fn(|at| PollFd::from_borrowed_fd(sys::borrow(set[at].0), set[at].1));
        _ = sys::poll(&mut fds[..count], Some(sys::span(limit)));
        layer = match enter() {
            Some(again) => again,
            None => return,
        };
    }
    _ = layer.node.send(&ToNode::Leaving(Box::new(counters::all())));
    layer.node.part();
    held::end(layer);
}

impl Layer {
    /// Tells peers that they need not keep connections of which an image covers the close. Some at a time: nodes keep what others do not read only up to
    /// a bound.
    pub(crate) fn forget_closed(&mut self) {
        const AT_ONCE: usize = 256;
        for _ in 0..AT_ONCE {
            let Some(word) = self.observer.poll_forget() else { break };
            self.say_forgettable(word);
        }
        for _ in 0..AT_ONCE {
            let Some(connection) = self.observer.poll_over() else { break };
            _ = self.node.send(&ToNode::Over { connection });
        }
        let table = self.observer.table();
        self.foreign.retain(|(connection, _)| table.find_end(*connection, true).is_some());
        self.close_forgotten();
    }

    /// Something was received: payload waits to be shipped.
    pub fn note_received(&mut self) {
        self.idle = 0;
        self.vain.handle_something();
        self.tend_links_in_passing();
        if self.observer.payload().is_due() {
            // Payload follows the journal that it depends on.
            self.ship();
            self.hear_protector(false);
            self.ship_payload();
        }
    }

    /// A call found nothing. Many in a row mean that the process waits for a peer: time to look after everything.
    #[inline]
    pub fn note_nothing(&mut self) {
        if let Some(replayer) = &mut self.replayer {
            return replayer.handle_nothing(&self.observer);
        }
        counters::add(Counter::Empty, 1);
        self.tend_while_waiting();
    }

    /// A call has found something, and is perhaps made again and again until there is more.
    pub fn note_waiting(&mut self) {
        if self.replayer.is_none() {
            self.tend_while_waiting();
        }
    }

    #[inline]
    fn tend_while_waiting(&mut self) {
        self.idle += 1;
        self.ship_payload_in_passing();
        // While a link is down the process looks after everything sooner: what it looks for may come only if it does.
        let is_idle = self.idle >= IDLE || self.links.is_any_down() && self.idle >= IDLE_DOWN;
        if is_idle || self.seldom.look(sys::tick).is_some_and(|tick| self.is_time_to_tend_at(tick)) {
            self.tend_idle();
        }
    }

    #[cold]
    fn tend_idle(&mut self) {
        self.idle = 0;
        self.check_way();
        self.ship_while_waiting();
        self.tend_rest();
    }

    /// Looks after everything that waits.
    pub fn tend(&mut self) {
        self.ship();
        self.tend_rest();
    }

    /// The same but for the journal.
    fn tend_rest(&mut self) {
        if !self.observer.is_payload_shipped() || self.bulk.has_unsent() {
            self.ship_payload();
        }
        self.hear_protector(false);
        self.hear_node();
        self.tend_links();
        self.forget_closed();
        self.drain();
        if self.outputs.is_owing() {
            self.outputs.write_again();
        }
        if self.session.has_to_settle() {
            self.settle_down();
        }
        if self.images.machine.is_wanted() {
            self.drive_images(|images, cx| images.handle_timeout(cx.now));
        }
        self.tend_pmi();
        counters::set(Counter::Outbox, self.observer.outbox().used() as u64);
    }

    /// Bytes were offered on `slot`. If the outbox fills it is asked what is stable, before it is full.
    pub fn note_sent(&mut self, slot: Slot) {
        self.idle = 0;
        self.vain.handle_something();
        // If it has waited at the gate, that was told before.
        self.haste.handle_gate(shipping::clock, false, false);
        self.tend_links_in_passing();
        if self.observer.outbox().is_filling() {
            self.note_filling(slot);
        }
    }

    fn note_filling(&mut self, slot: Slot) {
        if self.observer.outbox().is_pressed() {
            let now = sys::now();
            if now >= self.ask_at {
                let has_lines = self.observer.payload().line().is_some();
                self.ask_at = now + if has_lines { ASK_WITH_LINES_NS } else { ASK_NS };
                self.hear_node();
                self.ask_stable();
            }
        }
        self.tell_pressed(slot);
    }

    /// Where received bytes stay with their senders an image of their receiver makes room in the outbox, or the next recovery
    /// line does. It is wanted before that is full.
    pub fn tell_pressed(&mut self, slot: Slot) {
        if let Some(level) = self.observer.level_for(slot)
            && self.pressure.handle_sent(shipping::clock, level)
        {
            // A node that is gone ends this process elsewhere.
            _ = self.node.send(&ToNode::Pressed(self.observer.most_kept()));
        }
    }

    /// What a waiting call listens to besides its own: the protector, the node, sockets that bytes wait for. Nothing must be left to do
    /// when it waits: [`Layer::tend`] comes before.
    pub fn awaited(&self) -> impl Iterator<Item = (i32, PollFlags)> {
        let bulk = self.bulk.has_unsent().then(|| (self.bulk.fd().as_raw_fd(), PollFlags::OUT));
        let unsent = self.unsent.iter().filter(|slot| !self.observer.is_held_back(**slot));
        let unsent = unsent.filter_map(|slot| Some((self.fd_of(*slot)?, PollFlags::OUT)));
        let own = [(self.journal.fd().as_raw_fd(), self.journal.awaited()), (self.node.fd().as_raw_fd(), PollFlags::IN)];
        own.into_iter().chain(bulk).chain(self.pmi.awaited()).chain(self.awaited_of_links()).chain(unsent).take(AWAITED)
    }

    /// A connection with a program that is not protected: what is said there is not logged (G7: it is told).
    pub fn note_unprotected(&mut self, address: &SocketAddr) {
        counters::add(Counter::Unprotected, 1);
        if counters::get(Counter::Unprotected) == 1 {
            self.note(&format!("a connection with {address}, where no process is protected: it will not survive a death"));
        }
    }

    /// A call of a process that is replayed offline waits.
    pub fn handle_wait_in_replay(&mut self) {
        if let Some(replayer) = &mut self.replayer {
            replayer.handle_wait(&mut self.observer);
        }
    }

    /// Ends a process that is replayed offline, and waits for something that does not come.
    pub fn end_replay_that_waits(&mut self) {
        if let Some(replayer) = &mut self.replayer {
            replayer.wait_for(&mut self.observer, Wait::Event);
        }
    }

    /// Waits for `what`, for a call in replay or one that may not continue.
    pub fn wait_for(&mut self, what: Wait) {
        if let Some(replayer) = &mut self.replayer {
            return replayer.wait_for(&mut self.observer, what);
        }
        match what {
            Wait::Stable(_) => self.pass_gate(),
            Wait::Payload => self.wait_for_payload(),
            other => self.wait_to_catch_up(other),
        }
    }

    /// Bytes of the protector's log, into the program's buffers.
    pub fn fetch_payload(&mut self, stream: StreamId, offset: u64, room: &mut [IoSliceMut<'_>]) -> usize {
        if let Some(replayer) = &mut self.replayer {
            return replayer.fetch(stream, offset, room);
        }
        self.fetch_again(stream, offset, room)
    }

    /// Everything leaves that is to leave.
    fn begin_to_leave(&mut self) {
        if let Some(replayer) = &mut self.replayer {
            // The last outcome may have been a readiness set, after which nothing was received or sent.
            replayer.look(&self.observer);
            match self.observer.left_of_log() {
                0 => replayer.end("the program has ended"),
                left => replayer.end(&format!("the program has ended, {left} bytes before the end of its journal")),
            }
        }
        self.write_owed_output();
        self.pass_gate_of_output();
        self.finish_pmi();
        signals::end_at_once();
    }

    /// Whether nothing is left to be waited for.
    fn may_leave(&mut self) -> bool {
        // Again after a restart from an image that was made meanwhile.
        self.finish_all();
        sure(self.observer.handle_leaving());
        self.tend();
        let may_end = self.drive_session(|session, cx| Ok(session.may_end(cx)));
        may_end && (self.session.is_let_go() || self.unsent.is_empty() && !self.bulk.has_unsent())
    }

    /// Lets leave what the process manager is to be told or asked.
    pub fn tend_pmi(&mut self) {
        if self.replayer.is_none() && self.pmi.conversation.is_behind() {
            let is_over = self.observer.phase() != Phase::Replaying;
            if is_over {
                self.pmi.conversation.handle_log_over();
            }
            if self.pmi.drive(is_over).is_err() {
                self.pmi.conversation.handle_broken();
            }
        }
    }

    /// The program closes the connection, or ends: its node hears first what it is to be told again.
    pub fn finish_pmi(&mut self) {
        let until = sys::now() + TAKEN_MS * 1_000_000;
        while self.replayer.is_none() && !self.pmi.conversation.again.is_empty() && sys::now() < until {
            self.tend_pmi();
            match self.pmi.awaited() {
                Some((fd, events)) => _ = sys::wait_for(sys::borrow(fd), events, TAKEN_MS / 100),
                None => return,
            }
        }
    }

    /// The process ends: what is to be written once more is, however slow the reader is, as if the program wrote it.
    pub fn write_owed_output(&mut self) {
        while self.outputs.is_owing() {
            self.outputs.write_again();
            self.tend();
            let fds = self.outputs.owing().map(|fd| PollFd::from_borrowed_fd(sys::borrow(fd), PollFlags::OUT));
            _ = sys::poll(&mut fds.collect::<Vec<_>>(), Some(sys::span(100_000_000)));
        }
    }

    /// The calling thread is about to wait until its turn comes. If no thread can go on, the reading of a clock that is next in the log is not made any more.
    pub(crate) fn look_at_standstill(&mut self) -> Asked {
        let (now, lock) = (Duration::from_nanos(sys::now()), lock_address());
        let Layer { standstill, observer, replayer, .. } = self;
        let asked = standstill.handle_wait(observer, now);
        let is_still = |waiting| all_but(waiting, lock).is_ok_and(|still| still);
        if sure(standstill.handle_look(observer, now, is_still)) {
            replayer.iter_mut().for_each(|replayer| replayer.look(observer));
        }
        asked
    }
}
