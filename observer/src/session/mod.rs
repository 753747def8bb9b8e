//! The session with the protector: the two connections on which a process ships its journal and what it has received. A value without sockets and clocks:
//! the caller says what its connections do (`handle_*`), and carries out what it is told ([`Session::poll_action`]).
//!
//! - *The protector is lost.* It is logged in to again, or at the one that the node has named since. Meanwhile the program does not go on: nothing that it does
//!   could become stable. A process that still needs the log that it was restarted with stays with the protector that has it: no other one has.
//! - *The node names another protector* while the current one answers: the process moves there as soon as it needs nothing of the
//!   old log. The old connections stay in use until the new ones are there.
//! - *A restarted process catches up* with its log: [`reader`]. *A process that ends* stays until what it has sent is safe: [`leaving`]. When a checkpoint is
//!   made decides [`images`].

use std::collections::{BTreeSet, VecDeque};
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::determinant::StreamId;
use radic_wire::ids::ProcessId;
use radic_wire::log::{FromProtector, ToProtector};
use radic_wire::process::{ProgramEnd, ToNode};

use crate::{Context, Failure};

pub mod images;
pub mod leaving;
pub mod reader;
#[cfg(test)]
mod tests;

use leaving::Leaving;
use reader::LogReader;

/// Time that a lost protector may take to be replaced. The node, which can say why a job ends, gives up before that.
pub const REPLACED: Duration = Duration::from_secs(90);
/// Time for a protector to answer a login, and again for its welcome.
pub const LOGIN: Duration = Duration::from_secs(5);
/// Time between two attempts to reach a protector that is lost.
const RETRY: Duration = Duration::from_millis(100);
/// Time between two attempts to move to a protector that the node has named.
const MOVE_AGAIN: Duration = Duration::from_millis(200);
/// Streams whose receivers' protectors are asked at once how far they are.
const FULLEST: usize = 4;
/// Questions of this kind that may be open.
const OPEN: usize = 64;

/// What the caller has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Say this to the node.
    Tell(ToNode),
    /// Say this to the protector, on the journal's connection; if that fails, [`Session::handle_lost`].
    Say(ToProtector<'static>),
    /// Log in at this address, on two connections of the process's present incarnation; then [`Session::handle_logged_in`] or [`Session::handle_login_failed`].
    /// Connections that are in use stay in use. A login that is still under way is given up.
    LogIn(SocketAddr),
    /// The connections of the last login are in use from now on, and those before are closed. Say hello on both.
    Use {
        /// The login is at another protector than the one that took the log last: the images there, and the one that is under
        /// way, are no longer of use.
        is_another: bool,
    },
    /// A checkpoint is wanted.
    Checkpoint,
    /// The process is live: it has caught up with its log, after this many outcomes. The engine is told first, then the node
    /// ([`ToNode::Live`]).
    Live {
        /// Outcomes that were replayed.
        events: u64,
    },
}

/// What the connections are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Lost; the next attempt is due then.
    Lost { due: Duration },
    /// Logging in.
    LoggingIn { until: Duration },
    /// The hello was said, the welcome has not come.
    Greeting { until: Duration },
    /// The protector takes the log.
    Up,
}

/// See the module's text.
#[derive(Debug, Clone)]
pub struct Session {
    phase: Phase,
    /// Where the log goes, or was to go last.
    protector: SocketAddr,
    /// Another one that the node has named.
    next: Option<SocketAddr>,
    /// The protector at which logging in is under way, while the current one is in use.
    moving: Option<SocketAddr>,
    /// When moving there is tried.
    move_at: Duration,
    /// Since when no protector takes the log.
    lost: Option<Duration>,
    /// The protector that took the log last.
    welcomed: Option<SocketAddr>,
    /// Of a process that was restarted: what it still wants of its log.
    reader: Option<LogReader>,
    /// Since the process is at its end.
    leaving: Option<Leaving>,
    /// Streams whose stable offset was asked for.
    asked: BTreeSet<StreamId>,
    actions: VecDeque<Action>,
}

impl Session {
    /// Of a process that has no connections yet.
    pub fn new(protector: SocketAddr) -> Session {
        Session {
            phase: Phase::Lost { due: Duration::ZERO },
            protector,
            next: None,
            moving: None,
            move_at: Duration::ZERO,
            lost: None,
            welcomed: None,
            reader: None,
            leaving: None,
            asked: BTreeSet::new(),
            actions: VecDeque::new(),
        }
    }

    /// Of a process whose first connections are there: the hello is said now.
    pub fn logged_in(protector: SocketAddr, now: Duration) -> Session {
        let (phase, lost) = (Phase::Greeting { until: now + LOGIN }, Some(now));
        Session { phase, lost, ..Session::new(protector) }
    }

    /// This process was restarted, and its log, which ends there, is with that protector. What was under way is forgotten.
    pub fn restarted(protector: SocketAddr, log_end: u64) -> Session {
        Session { reader: Some(LogReader::new(log_end)), ..Session::new(protector) }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Session::handle_timeout`] has something to do. None: only events matter.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let phase = match self.phase {
            Phase::Lost { due } => Some(due),
            Phase::LoggingIn { until } | Phase::Greeting { until } => Some(until),
            Phase::Up => self.may_move().then_some(self.move_at),
        };
        phase.into_iter().chain(self.leaving.as_ref().map(Leaving::due)).min()
    }

    /// Where the log goes.
    pub fn protector(&self) -> SocketAddr {
        self.protector
    }

    /// Whether the protector takes the log. If it does not, the program must not go on.
    pub fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Whether the hello was said and the welcome has not come.
    pub fn is_greeting(&self) -> bool {
        matches!(self.phase, Phase::Greeting { .. })
    }

    /// Whether the process still wants something of the log that it was restarted with.
    pub fn is_reading(&self) -> bool {
        self.reader.is_some()
    }

    /// Whether something is to be done that is not due by time: the log may be over, or another protector may be moved to.
    pub fn has_to_settle(&self) -> bool {
        self.reader.is_some() || self.next.is_some()
    }

    /// Whether the program has ended.
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Where the journal ends that the process has to catch up with, until it is live.
    pub fn log_end(&self) -> Option<u64> {
        self.reader.as_ref().and_then(LogReader::log_end)
    }

    fn may_move(&self) -> bool {
        self.next.is_some() && self.moving.is_none() && self.reader.is_none()
    }

    // ---- the connections

    /// The node names a protector. The one that is in use may be dead; if it is not, it is left as soon as the process needs nothing of it.
    pub fn handle_named(&mut self, cx: &mut Context<'_>, address: SocketAddr) {
        let was_to_leave = self.next.is_some() || self.moving.is_some();
        self.moving.take_if(|moving| *moving != address);
        self.next = Some(address).filter(|address| *address != self.protector && self.moving != Some(*address));
        self.move_at = Duration::ZERO;
        // The one that is spoken to may be back under its old address, and welcomes nothing.
        if self.may_move() && matches!(self.phase, Phase::LoggingIn { .. } | Phase::Greeting { .. }) {
            self.phase = Phase::Lost { due: cx.now };
        }
        // The protector that was to be left may have let this process go, and keeps it only after a new hello.
        if was_to_leave && address == self.protector && self.phase == Phase::Up {
            self.lose(cx);
        }
    }

    /// Both connections of the login that was asked for last are there.
    pub fn handle_logged_in(&mut self, cx: &mut Context<'_>) {
        if let Some(moving) = self.moving.take() {
            self.protector = moving;
            self.lost.get_or_insert(cx.now);
        } else if !matches!(self.phase, Phase::LoggingIn { .. }) {
            return;
        }
        self.phase = Phase::Greeting { until: cx.now + LOGIN };
        self.reader.iter_mut().for_each(LogReader::handle_reconnected);
        self.actions.push_back(Action::Use { is_another: self.welcomed != Some(self.protector) });
    }

    /// The login that was asked for last has failed.
    pub fn handle_login_failed(&mut self, cx: &mut Context<'_>) {
        if let Some(moving) = self.moving.take() {
            // It will be there, or the node names another.
            self.next.get_or_insert(moving);
            self.move_at = cx.now + MOVE_AGAIN;
        } else if matches!(self.phase, Phase::LoggingIn { .. }) {
            self.lose(cx);
        }
    }

    /// The connections that are in use are lost.
    pub fn handle_lost(&mut self, cx: &mut Context<'_>) {
        if matches!(self.phase, Phase::Greeting { .. } | Phase::Up) {
            self.lose(cx);
        }
    }

    fn lose(&mut self, cx: &mut Context<'_>) {
        let due = if self.phase == Phase::Up { cx.now } else { cx.now + RETRY };
        self.next = self.next.or(self.moving.take());
        self.phase = Phase::Lost { due };
        self.lost.get_or_insert(cx.now);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        self.leave_log(cx);
        match self.phase {
            Phase::Lost { due } if due <= cx.now => {
                if self.lost.is_some_and(|since| since + REPLACED <= cx.now) {
                    return Err(Failure::OutOfReach { protector: self.protector, limit: REPLACED });
                }
                if let Some(next) = self.next.take_if(|_| self.reader.is_none()) {
                    self.protector = next;
                }
                self.lost.get_or_insert(cx.now);
                self.phase = Phase::LoggingIn { until: cx.now + LOGIN };
                self.actions.push_back(Action::LogIn(self.protector));
            }
            Phase::LoggingIn { until } | Phase::Greeting { until } if until <= cx.now => self.lose(cx),
            Phase::Up if self.may_move() && self.move_at <= cx.now => {
                self.moving = self.next.take();
                self.actions.extend(self.moving.map(Action::LogIn));
            }
            _ => {}
        }
        self.check_invariants();
        Ok(())
    }

    /// What the protector says, on the connection of the journal that is in use.
    pub fn handle_protector(&mut self, cx: &mut Context<'_>, message: &FromProtector<'_>) -> Result<(), Failure> {
        match *message {
            FromProtector::Welcome { .. } if self.is_greeting() => self.handle_welcome(),
            FromProtector::Journal { .. } => self.reader.iter_mut().for_each(LogReader::handle_journal),
            FromProtector::Payload { stream, offset, bytes } => {
                self.reader.iter_mut().for_each(|reader| reader.handle_payload(stream, offset, bytes));
            }
            _ => {}
        }
        cx.observer.handle_protector(message)?;
        Ok(())
    }

    fn handle_welcome(&mut self) {
        (self.phase, self.lost, self.welcomed) = (Phase::Up, None, Some(self.protector));
        if self.leaving.is_some() {
            // The leaving process may have told another protector; say it to this one too.
            self.actions.push_back(Action::Say(ToProtector::Closing));
        }
    }

    // ---- the log of a restarted process

    /// Asks for the journal that is wanted next, and looks whether the process has caught up: its node is told once. Called whenever the journal is shipped.
    pub fn look_at_log(&mut self, cx: &mut Context<'_>) {
        if !self.is_up() {
            return;
        }
        let Some(reader) = &mut self.reader else { return };
        let wanted = cx.observer.wanted_log().and_then(|(position, _)| reader.ask_journal(position));
        self.actions.extend(wanted.map(|position| Action::Say(ToProtector::FetchJournal { position })));
        if !reader.has_told() && cx.observer.settle() {
            reader.handle_told();
            self.actions.push_back(Action::Live { events: cx.observer.replayed() });
            self.actions.push_back(Action::Say(ToProtector::Live));
        }
    }

    /// Received bytes of the log, into these buffers. How many; none are here yet if 0, and are asked for.
    pub fn serve(&mut self, stream: StreamId, offset: u64, room: &mut [IoSliceMut<'_>]) -> usize {
        let Some(reader) = &mut self.reader else { return 0 };
        let (count, more) = reader.serve(stream, offset, room);
        let wanted = more.and_then(|offset| reader.ask_payload(stream, offset));
        self.actions.extend(wanted.map(|offset| Action::Say(ToProtector::FetchPayload { stream, offset })));
        count
    }

    /// A live process that has read what its log had for it needs nothing more of the protector that has that log.
    fn leave_log(&mut self, cx: &mut Context<'_>) {
        if self.reader.as_ref().is_some_and(LogReader::has_told) && !cx.observer.needs_log() {
            self.reader = None;
            self.actions.push_back(Action::Tell(ToNode::LogRead));
            // What was replayed need not be again.
            self.actions.push_back(Action::Checkpoint);
        }
    }

    // ---- what is safe with the receivers' protectors

    /// Asks how much of the fullest streams their receivers' protectors have.
    pub fn ask_stable(&mut self, cx: &Context<'_>) {
        if self.asked.is_empty() {
            let mut kept: Vec<_> = kept(cx).collect();
            kept.sort_by_key(|(bytes, ..)| std::cmp::Reverse(*bytes));
            self.ask_about(kept.into_iter().take(FULLEST).map(|(_, stream, receiver)| (stream, receiver)));
        }
    }

    /// Asks the same of every stream of which bytes are kept, some at a time.
    fn ask_stable_of_all(&mut self, cx: &Context<'_>) {
        let room = OPEN.saturating_sub(self.asked.len());
        let streams: Vec<_> = kept(cx).map(|(_, stream, receiver)| (stream, receiver)).collect();
        let open: Vec<_> = streams.into_iter().filter(|(stream, _)| !self.asked.contains(stream)).take(room).collect();
        self.ask_about(open.into_iter());
    }

    fn ask_about(&mut self, streams: impl Iterator<Item = (StreamId, ProcessId)>) {
        for (stream, receiver) in streams {
            self.asked.insert(stream);
            self.actions.push_back(Action::Tell(ToNode::AskStable { stream, receiver }));
        }
    }

    /// The node answers: the receiver's protector has so much of this stream.
    pub fn handle_stable(&mut self, cx: &mut Context<'_>, stream: StreamId, offset: u64) -> Result<(), Failure> {
        self.asked.remove(&stream);
        cx.observer.handle_protector(&FromProtector::StreamStable { stream, offset })?;
        Ok(())
    }

    // ---- the end of the process

    /// The program has ended in this way, if that is known, and has ended all of its streams. What it has printed is stable.
    pub fn handle_leaving(&mut self, now: Duration, end: Option<ProgramEnd>) {
        if self.leaving.is_none() {
            self.leaving = Some(Leaving::new(now, end));
            if self.is_up() {
                self.actions.push_back(Action::Say(ToProtector::Closing));
            }
        }
    }

    /// All ranks of the job have come to their ends, and every node knows.
    pub fn handle_may_end(&mut self) {
        if let Some(leaving) = &mut self.leaving {
            leaving.is_let_go = true;
        }
    }

    /// Whether no process of the job wants anything of this one any more.
    pub fn is_let_go(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| leaving.is_let_go)
    }

    /// Whether the process may end: its protector has all that it has received, and what it has sent is safe. Asks, if it is time to.
    pub fn may_end(&mut self, cx: &Context<'_>) -> bool {
        let Some(leaving) = &mut self.leaving else { return false };
        // Until then it may crash, and the next incarnation reads it again.
        let is_held = cx.observer.is_received_held();
        if is_held && leaving.tells() {
            self.actions.push_back(Action::Tell(ToNode::Closing));
        }
        let (is_safe_elsewhere, is_safe) = leaving::is_safe(cx.observer);
        let makes_lines = cx.observer.payload().line().is_some();
        if makes_lines
            && is_safe_elsewhere
            && let Some(end) = leaving.take_end()
        {
            self.actions.push_back(Action::Tell(ToNode::AtEnd(end)));
        }
        if leaving.is_let_go && is_safe_elsewhere {
            return true;
        }
        if !(is_held && is_safe) && leaving.is_due(cx.now) {
            if makes_lines && leaving.is_alone(cx.now) {
                // The next recovery line covers what was received, here and at the receivers of what was sent.
                self.actions.push_back(Action::Tell(ToNode::LineWanted));
            }
            if !is_safe {
                self.ask_stable_of_all(cx);
            }
        }
        is_held && is_safe
    }

    fn check_invariants(&self) {
        assert!(self.moving.is_none() || self.phase == Phase::Up && self.moving != Some(self.protector), "{self:?}");
        assert!(self.phase != Phase::Up || self.lost.is_none(), "{self:?}");
        assert!(self.next != Some(self.protector), "{self:?}");
    }
}

/// Streams of which bytes are kept for their receivers: how many, and whose protector says when they are safe.
fn kept<'a>(cx: &'a Context<'_>) -> impl Iterator<Item = (u64, StreamId, ProcessId)> + 'a {
    let streams = cx.observer.table().iter().map(|(_, c)| (c.outgoing().kept(), c.stream_out(), c.peer));
    streams.filter(|(kept, ..)| *kept > 0)
}
