//! The session with the protector: the driver of [`radic_observer::session`], which decides where the log goes and what is asked
//! of it. Here are the connections.
//!
//! While the session is not up the program does not go on (`Layer::await_session`): whatever call is in the layer waits, bounded, and hears the node meanwhile.

use std::io::IoSliceMut;
use std::net::SocketAddr;

use radic_observer::connection::Phase;
use radic_observer::session::{Action, Session};
use radic_observer::{Context, Failure};
use radic_wire::determinant::StreamId;
use radic_wire::log::{FromProtector, ToProtector};
use radic_wire::login;
use radic_wire::process::ToNode;
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::{Layer, context, want_checkpoint};
use crate::channel::{Channel, Channels, Identity};
use crate::counters::{self, Counter};
use crate::ending::{fail, sure};
use crate::{children, sys, yielding};

/// Time between two looks at what the node has said, in milliseconds.
const LOOK_MS: u64 = 100;
/// Time for the protector to answer with a piece of the log, lost connections included, in nanoseconds.
const PIECE_NS: u64 = 90_000_000_000;

impl Layer {
    /// Tells the session something, and does what it says. It may not be up afterwards.
    pub(crate) fn drive_session<T>(&mut self, input: impl FnOnce(&mut Session, &mut Context<'_>) -> Result<T, Failure>) -> T {
        let mut cx = context(&mut self.observer);
        let value = match input(&mut self.session, &mut cx) {
            Err(failure @ Failure::OutOfReach { .. }) => fail(&format!("{failure}: {}", self.session_error)),
            result => sure(result),
        };
        self.carry_out_session();
        value
    }

    fn carry_out_session(&mut self) {
        while let Some(action) = self.session.poll_action() {
            match action {
                Action::Tell(message) => self.tell_node(&message),
                Action::Say(message) => {
                    let said = self.journal.send(&message);
                    self.note_lost(said);
                }
                Action::LogIn(address) => self.begin_login(address),
                Action::Use { is_another } => self.use_channels(is_another),
                Action::Checkpoint => want_checkpoint(),
                Action::Live { events } => {
                    // Before the node hears that the process is live: from then on the node awaits no report.
                    radic_ckpt::settled();
                    self.tend_pmi();
                    let input = self.input_read();
                    self.tell_node(&ToNode::Live { events, input });
                    children::handle_live();
                }
            }
        }
    }

    fn begin_login(&mut self, address: SocketAddr) {
        match self.log_in(address) {
            Ok(channels) => {
                self.fresh = Some(channels);
                self.drive_session(|session, cx| {
                    session.handle_logged_in(cx);
                    Ok(())
                });
            }
            Err(error) => {
                self.session_error = error;
                self.drive_session(|session, cx| {
                    session.handle_login_failed(cx);
                    Ok(())
                });
            }
        }
    }

    /// Both connections to the log service at `address`.
    fn log_in(&self, address: SocketAddr) -> Result<Channels, Errno> {
        let (_, identity) = self.login();
        let journal = Channel::connect(address, &identity, login::Channel::Journal)?;
        Ok((journal, Channel::connect(address, &identity, login::Channel::Bulk)?))
    }

    /// The log's connections are others now: what came on the old ones counts no more.
    fn use_channels(&mut self, is_another: bool) {
        let Some((journal, bulk)) = self.fresh.take() else { return };
        std::mem::replace(&mut self.journal, journal).close();
        std::mem::replace(&mut self.bulk, bulk).close();
        if is_another {
            self.drive_images(|images, cx| images.handle_another_protector(cx.observer));
        }
        self.say_hello();
    }

    /// The first word on both connections.
    pub(crate) fn say_hello(&mut self) {
        let hello = self.observer.hello();
        let said = self.journal.send(&hello).and_then(|()| self.bulk.send(&hello));
        self.note_lost(said);
    }

    fn note_lost(&mut self, result: Result<(), Errno>) {
        if let Err(error) = result {
            self.session_error = error;
            self.drive_session(|session, cx| {
                session.handle_lost(cx);
                Ok(())
            });
        }
    }

    /// The protector's connections are lost: waits until it, or the next one, is there.
    #[cold]
    pub(crate) fn reconnect(&mut self, error: Errno) {
        self.note_lost(Err(error));
        self.await_session();
    }

    /// Waits until the protector takes the log. Bounded by the session.
    pub(crate) fn await_session(&mut self) {
        while !self.session.is_up() && self.replayer.is_none() {
            if self.session.is_greeting() {
                let heard = match self.journal.read_within(LOOK_MS) {
                    Err(Errno::TIMEDOUT) => {
                        self.hear_node();
                        Ok(())
                    }
                    other => other.and_then(|()| self.take_messages(Session::is_up)),
                };
                self.note_lost(heard);
            } else {
                self.hear_node();
                // The node tells where the next one is; the one that is known is tried ten times a second.
                let due = self.session.poll_timeout().map_or(LOOK_MS, |due| due.as_millis() as u64 + 1);
                let left = due.saturating_sub(sys::now() / 1_000_000).min(LOOK_MS);
                _ = sys::wait_for(self.node.fd(), PollFlags::IN, left);
            }
            self.drive_session(Session::handle_timeout);
        }
    }

    /// Looks after the session: the log that the process was restarted with may be needed no more, or another protector is to have it.
    pub(crate) fn settle_down(&mut self) {
        // A copy that is replayed alone has no protector.
        if self.replayer.is_none() {
            self.drive_session(Session::handle_timeout);
            self.await_session();
        }
    }

    /// Reads what the protector has said; with `wait` until it says something.
    pub fn hear_protector(&mut self, wait: bool) {
        if self.replayer.is_some() {
            return;
        }
        let read = match self.journal.read(wait) {
            Err(Errno::TIMEDOUT) => Ok(()), // It is slow. Perhaps the node knows why: the caller looks there.
            other => other,
        };
        if let Err(error) = read.and_then(|()| self.take_messages(|_| false)) {
            self.reconnect(error);
        }
    }

    /// Handles what was read, until `is_enough`. What follows a welcome, and what the node says meanwhile, is left to the
    /// program's next call: a wish for an image would be met before the program has begun.
    fn take_messages(&mut self, is_enough: impl Fn(&Session) -> bool) -> Result<(), Errno> {
        let (mut is_committed, mut may_forget) = (false, false);
        while !is_enough(&self.session) {
            let Some(message) = self.journal.next_message()? else { break };
            is_committed |= self.images.machine.handle_protector(&mut self.observer, &message);
            may_forget |= matches!(message, FromProtector::Committed { .. });
            let mut cx = context(&mut self.observer);
            sure(self.session.handle_protector(&mut cx, &message));
        }
        self.carry_out_session();
        // What a commit or a refusal leads to.
        self.drive_images(|_, _| ());
        counters::add(Counter::Committed, u64::from(is_committed));
        if may_forget {
            self.forget_closed();
        }
        Ok(())
    }

    /// Tells the protector something that is no log.
    pub fn tell_protector(&mut self, message: &ToProtector<'_>) {
        if let Err(error) = self.journal.send(message) {
            self.reconnect(error);
        }
    }

    /// Has the process caught up? Its node is told once. Called whenever the journal is shipped, and when everything is looked after.
    pub(crate) fn look_at_log(&mut self) {
        if let Some(log_end) = self.session.log_end() {
            // Its node looks whether it gets on.
            counters::set(Counter::Replayed, log_end.saturating_sub(self.observer.left_of_log()));
            counters::set(Counter::Again, self.observer.done_again());
            counters::set(Counter::Waits, self.observer.waits() as u64);
            let awaited = self.observer.awaited().map_or(0, |(thread, call)| u64::from(thread) << 8 | (call as u64 + 1));
            counters::set(Counter::Awaited, awaited);
        }
        let catches_up = self.observer.phase() == Phase::Replaying;
        yielding::set_catching_up(catches_up.then(|| self.observer.journal().threads()));
        self.drive_session(|session, cx| {
            session.look_at_log(cx);
            Ok(())
        });
    }

    /// Waits for the piece of journal that replay wants next.
    pub(crate) fn wait_for_journal(&mut self) {
        let wanted = self.observer.wanted_log();
        if wanted.is_none() {
            fail("replay wants log, and no piece of it");
        }
        let deadline = sys::now() + PIECE_NS;
        while self.observer.wanted_log() == wanted {
            self.look_at_log();
            self.hear_protector(true);
            if sys::now() > deadline {
                fail(&format!("its protector at {} does not give it its log", self.session.protector()));
            }
            self.hear_node();
        }
    }

    /// Received bytes of the log, into the program's buffers; at least one.
    pub(crate) fn fetch_again(&mut self, stream: StreamId, offset: u64, room: &mut [IoSliceMut<'_>]) -> usize {
        let deadline = sys::now() + PIECE_NS;
        loop {
            if !self.session.is_reading() {
                fail(&format!("it wants bytes of {stream:?} of a log that it has left"));
            }
            let count = self.drive_session(|session, _| Ok(session.serve(stream, offset, room)));
            if count > 0 {
                return count;
            }
            if sys::now() > deadline {
                let protector = self.session.protector();
                fail(&format!("its protector at {protector} has no bytes of {stream:?} from {offset} on"));
            }
            self.hear_protector(true);
            self.hear_node();
        }
    }

    /// Asks how much of the fullest streams their receivers' protectors have.
    pub fn ask_stable(&mut self) {
        self.drive_session(|session, cx| {
            session.ask_stable(cx);
            Ok(())
        });
    }

    /// Where this process logs in, and as what.
    pub fn login(&self) -> (SocketAddr, Identity<'_>) {
        let identity = Identity { process: self.observer.process(), incarnation: self.observer.incarnation(), key: &self.key };
        (self.session.protector(), identity)
    }
}
