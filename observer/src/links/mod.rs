//! Links: what is done when the socket of a connection is no more. A value without sockets and clocks: the caller says what its sockets do
//! (`handle_*`), and carries out what it is told ([`Links::poll_action`]). The program's descriptor stays; the caller replaces what is behind it.
//!
//! - *A socket ends.* Is it the end of the stream, or has the link broken? The sender's node knows: a process tells its own node where it ends a
//!   stream before that end leaves. The answer is [`FromNode::Final`]; until it comes the program sees a connection on which nothing happens.
//! - *A link is broken.* The opener of the connection asks its node where the peer is and dials the peer's door, a listening socket of the library's
//!   own. The acceptor dials the opener's door only to say that the link is broken, by a greeting with a sender that is not the opener.
//! - *Greetings* say how far either side is; what they mean for the streams is decided in [`crate::connection`]. G1 holds for them, too: a greeting
//!   says what was received, so it waits until the gate is open.
//!
//! `dial` has the way from a broken link to a new one, `door` the connections that come in, `ends` what a socket's end means,
//! `under_way` the first link of a connection whose `connect` has not waited for it, `vain` what is told of links that cannot be made.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::determinant::StreamId;
use radic_wire::ids::{Incarnation, ProcessId, Rank};
use radic_wire::log::{Ends, Greeting};
use radic_wire::process::{FromNode, StreamEnd, ToNode};

use self::vain::Vain;
use crate::connection::{Connection, Forgettable, Slot};
use crate::{Context, Error, Failure};

mod dial;
mod door;
mod ends;
#[cfg(test)]
mod tests;
mod under_way;
mod vain;

/// Time between two attempts to dial.
const RETRY: Duration = Duration::from_millis(100);
/// Time after which a process that is away is looked for again, and the longest after which an opener that was called is called again.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two looks for connections that replay has made and that have no link.
const LOOK: Duration = Duration::from_millis(10);

/// A socket that is no link: one that came to the door, or that was dialed. The caller maps it to its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(u64);

/// How a socket has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// In order: the other side has shut it down.
    End,
    /// By this error, a number of `errno`.
    Reset(i32),
}

/// ECONNRESET.
const RESET: i32 = 104;
/// A link that was given up because of something else than its socket: what the program would be told.
const GIVEN_UP: Ending = Ending::Reset(RESET);

/// A link that is there: what the caller makes of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Install {
    /// The connection's end here: the stream that goes out.
    pub end: StreamId,
    /// The connection's new socket. The driver closes the old one, after copying its options.
    pub socket: SocketId,
    /// What is written to it first.
    pub answer: Option<Greeting>,
    /// The incarnation of the peer that is spoken to.
    pub peer: Incarnation,
    /// The addresses of both ends, as their programs see them, if the opener has said them.
    pub ends: Option<Ends>,
}

/// What the caller has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Say this to the node.
    Tell(ToNode),
    /// Connect a socket to this door; then [`Links::handle_connected`].
    Dial(SocketId, SocketAddr),
    /// Write this greeting to a socket that was dialed. It is for this incarnation of the peer alone.
    Greet {
        /// Where.
        socket: SocketId,
        /// The incarnation that was dialed.
        peer: (ProcessId, Incarnation),
        /// What.
        greeting: Box<Greeting>,
    },
    /// Close a socket that is no link.
    Close(SocketId),
    /// A socket is the link of a connection from now on.
    Install(Box<Install>),
    /// The link is no more: nothing more is read from its socket or written to it. Behind the program's descriptor is a placeholder that is never
    /// readable and always writable. The socket is kept aside, dead, for its options.
    Unplug(StreamId),
    /// The socket that is aside, or is still the link, was the right one.
    Restore(StreamId),
    /// The socket that is aside is wanted no more.
    Discard(StreamId),
    /// What the program sends is refused from now on, and what waits for a socket leaves no more.
    RefuseSends(StreamId),
    /// This connection was refused, and the node knows that it has ended: that leaves on its link, if there is one.
    Finish(StreamId),
    /// Write this greeting to the program's socket, which is the first link of this connection.
    Hail(StreamId, Box<Greeting>),
    /// A visitor with a connection that is not known here was refused: say so in the node's log.
    Refused(Error),
}

/// What is done about a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The link's socket has ended. The node was asked whether the stream has.
    Asked { ask: u64 },
    /// The link is broken; the next step is due then.
    Down { due: Duration },
    /// The node was asked where the peer is.
    Placing { ask: u64, since: Duration },
    /// A socket connects to the peer's door, in that incarnation of it.
    Connecting { socket: SocketId, door: SocketAddr, peer: Incarnation, deadline: Duration },
    /// The socket is connected; the greeting waits for the gate.
    Connected { socket: SocketId, door: SocketAddr, peer: Incarnation },
    /// The greeting was written, the answer has not come. After the deadline the node is asked whether the peer is still there.
    Greeted { socket: SocketId, door: SocketAddr, deadline: Duration, ask: Option<u64> },
    /// The peer has left. Its node was asked whether it had ended the stream.
    Parting { ask: u64 },
    /// The peer has left, and nothing more will come. Or the first link was refused.
    Over,
    /// The program's own socket is to be the first link, and is not connected yet.
    UnderWay,
}

impl Stage {
    /// The socket that was dialed.
    fn socket(&self) -> Option<SocketId> {
        match *self {
            Stage::Connecting { socket, .. } | Stage::Connected { socket, .. } | Stage::Greeted { socket, .. } => Some(socket),
            _ => None,
        }
    }

    fn due(&self) -> Option<Duration> {
        match *self {
            Stage::Down { due } => Some(due),
            Stage::Placing { since, .. } => Some(since + dial::CONNECT),
            Stage::Connecting { deadline, .. } | Stage::Greeted { deadline, ask: None, .. } => Some(deadline),
            Stage::Greeted { .. } | Stage::Connected { .. } | Stage::Asked { .. } => None,
            Stage::Parting { .. } | Stage::Over | Stage::UnderWay => None,
        }
    }
}

/// A link that is not up, or in question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reconnection {
    peer: ProcessId,
    why: Ending,
    stage: Stage,
    /// How often a door was dialed.
    attempts: u32,
    vain: Vain,
}

impl Reconnection {
    /// No door was dialed.
    fn new(peer: ProcessId, why: Ending, stage: Stage) -> Reconnection {
        Reconnection { peer, why, stage, attempts: 0, vain: Vain::default() }
    }
}

/// See the module's text.
#[derive(Debug, Clone, Default)]
pub struct Links {
    /// By the stream that goes out.
    reconnections: BTreeMap<StreamId, Reconnection>,
    /// Links that have brought all that will come on them but a word of the peer's, by the stream that goes out, and when they are made again for that.
    owing: BTreeMap<StreamId, Duration>,
    /// Sockets that were dialed.
    dialed: BTreeMap<SocketId, StreamId>,
    /// Connections at the door, the oldest first.
    visitors: VecDeque<door::Visitor>,
    actions: VecDeque<Action>,
    next_socket: u64,
    next_ask: u64,
    /// Something is as a waiting call of the program does not know yet.
    changed: bool,
    /// This incarnation began with a restart: connections that replay makes, and those that it gives up, have no link.
    catching_up: bool,
    /// When it was looked for those last.
    looked: Duration,
    /// How often it was said that a process has come back.
    returned: u64,
    /// Peers of which the node was told that they are dialed in vain.
    told: BTreeSet<ProcessId>,
}

impl Links {
    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Links::handle_timeout`] has something to do. None: only events matter.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let visitors = self.visitors.iter().filter_map(door::Visitor::due);
        let look = self.catching_up.then(|| self.looked + LOOK);
        let words = self.owing.values().copied();
        visitors.chain(words).chain(self.reconnections.values().filter_map(|of| of.stage.due())).chain(look).min()
    }

    /// Whether a greeting waits only for the gate to open.
    pub fn waits_at_gate(&self) -> bool {
        let connected =
            |end: &StreamId| matches!(self.reconnections.get(end), Some(of) if matches!(of.stage, Stage::Connected { .. }));
        self.visitors.iter().any(door::Visitor::has_greeted) || self.dialed.values().any(connected)
    }

    /// Whether something has changed since this was asked last.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// How often it was said that a process has come back.
    pub fn returned(&self) -> u64 {
        self.returned
    }

    /// Whether any link is not up, or in question.
    pub fn is_any_down(&self) -> bool {
        !self.reconnections.is_empty()
    }

    /// Whether the node was asked whether this end's stream has ended, and has not answered.
    pub fn is_in_question(&self, end: StreamId) -> bool {
        matches!(self.reconnections.get(&end), Some(of) if matches!(of.stage, Stage::Asked { .. }))
    }

    /// How many ends are in question.
    pub fn questions(&self) -> usize {
        self.reconnections.values().filter(|of| matches!(of.stage, Stage::Asked { .. })).count()
    }

    /// Whether something is being done about the link of this end.
    pub fn is_down(&self, end: StreamId) -> bool {
        self.reconnections.contains_key(&end)
    }

    /// Time has passed, or the gate has opened.
    pub fn handle_timeout(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        self.finish_refused(cx);
        self.look_for_broken(cx);
        self.look_for_words(cx);
        self.receive_visitors(cx)?;
        self.go_on(cx);
        self.check_invariants();
        Ok(())
    }

    /// What the node says. `unread`: how many bytes the socket that this is about has received and the program has not taken ([`Links::asks_about`]).
    pub fn handle_node(&mut self, cx: &mut Context<'_>, message: &FromNode, unread: u64) -> Result<(), Failure> {
        match *message {
            FromNode::Final { ask, end } => self.handle_final(cx, ask, end, unread)?,
            FromNode::Place { ask, place } => self.handle_place(cx, ask, place),
            FromNode::Restarted { process, incarnation, log_end, door } => {
                cx.observer.check_collected(process, incarnation, log_end)?;
                self.handle_restarted(cx, process, incarnation, door);
            }
            _ => {}
        }
        self.check_invariants();
        Ok(())
    }

    /// Ranks of the job are lost, and what others know of them is collected: what is answered. Nothing more is received of what
    /// the lost incarnations have sent, and no program is told that there is something: it would depend on what may not be known
    /// any more.
    pub fn handle_collect(&mut self, cx: &mut Context<'_>, lost: &[(Rank, Incarnation)]) -> Vec<u8> {
        let held = cx.observer.handle_collect(lost);
        self.break_dropped(cx);
        held
    }

    /// The link of `slot` is no more: its opener is to make another one.
    pub fn break_link(&mut self, cx: &mut Context<'_>, slot: Slot, why: Ending) {
        cx.observer.handle_broken(slot);
        let Some(connection) = cx.observer.table().get(slot) else { return };
        let (end, peer) = (connection.stream_out(), connection.peer);
        let (attempts, vain) = self.reconnections.get(&end).map_or_else(Default::default, |of| (of.attempts, of.vain));
        self.owing.remove(&end);
        self.set_stage(end, Stage::Over);
        let stage = Stage::Down { due: Duration::ZERO };
        self.reconnections.insert(end, Reconnection { peer, why, stage, attempts, vain });
        self.actions.push_back(Action::Unplug(end));
        self.changed = true;
    }

    /// This process was restarted, and has opened a door: no socket of its image is one any more. What was under way is forgotten, without a word to
    /// the caller, which closes all its sockets. The node hears again where streams end, and all links are made again.
    pub fn handle_restart(&mut self, cx: &mut Context<'_>) {
        *self = Links { catching_up: true, next_ask: self.next_ask, next_socket: self.next_socket, ..Links::default() };
        let all = cx.observer.table().iter();
        let slots: Vec<(Slot, bool, bool)> = all.map(|(slot, c)| (slot, c.is_closed(), c.is_unheard_of())).collect();
        for (slot, closed, unheard_of) in slots {
            self.tell_finished(cx, slot, closed);
            if unheard_of {
                self.refuse_again(cx, slot);
            } else {
                self.break_link(cx, slot, GIVEN_UP);
            }
        }
    }

    /// Tells the node where the outgoing stream of `slot` ends, before that end can leave.
    pub fn tell_finished(&mut self, cx: &Context<'_>, slot: Slot, closed: bool) {
        let Some(connection) = cx.observer.table().get(slot) else { return };
        let (stream, Some(offset)) = (connection.stream_out(), connection.outgoing().finish()) else { return };
        let end = StreamEnd { offset, closed, received: connection.incoming().wanted() };
        self.tell(ToNode::Finished { stream, end });
    }

    /// The program has got the connection of `slot`, which has no link yet. In replay such ones are looked for.
    pub fn handle_taken(&mut self, cx: &mut Context<'_>, slot: Slot) {
        if !cx.observer.is_replaying() {
            self.break_link(cx, slot, GIVEN_UP);
        }
    }

    /// Connections that were refused have ended. The node is told so before that end can leave.
    fn finish_refused(&mut self, cx: &mut Context<'_>) {
        while let Some(slot) = cx.observer.poll_refused() {
            self.tell_finished(cx, slot, true);
            let end = cx.observer.table().get(slot).map(Connection::stream_out);
            self.actions.extend(end.map(Action::Finish));
        }
    }

    /// Tells a peer, by the nodes, that it may forget a connection.
    pub fn say_forgettable(&mut self, word: Forgettable) {
        let Forgettable { connection, peer, for_good } = word;
        self.tell(ToNode::Forget { connection, peer, for_good });
    }

    /// The observer may have given links up: their openers make others.
    pub fn break_dropped(&mut self, cx: &mut Context<'_>) {
        while let Some(slot) = cx.observer.poll_dropped() {
            self.break_link(cx, slot, GIVEN_UP);
        }
    }

    /// Links that are down and of which nothing has told: those of connections that replay has made, and those that the observer has given up.
    fn look_for_broken(&mut self, cx: &mut Context<'_>) {
        if !self.catching_up || cx.now < self.looked + LOOK {
            return;
        }
        self.looked = cx.now;
        self.catching_up = cx.observer.is_replaying();
        self.break_dropped(cx);
        self.look_for_refused(cx);
        let is_lost =
            |c: &Connection| c.link().is_down() && !c.is_offered() && !c.is_unheard_of() && !self.is_down(c.stream_out());
        let slots: Vec<Slot> = cx.observer.table().iter().filter(|(_, c)| is_lost(c)).map(|(slot, _)| slot).collect();
        slots.into_iter().for_each(|slot| self.break_link(cx, slot, GIVEN_UP));
    }

    fn tell(&mut self, message: ToNode) {
        self.actions.push_back(Action::Tell(message));
    }

    /// Asks the node a question that has a number.
    fn ask(&mut self, question: impl FnOnce(u64) -> ToNode) -> u64 {
        self.next_ask += 1;
        let ask = self.next_ask;
        self.tell(question(ask));
        ask
    }

    fn new_socket(&mut self) -> SocketId {
        self.next_socket += 1;
        SocketId(self.next_socket)
    }

    /// The next stage. A socket that was dialed for the one before and is not in this one is closed.
    fn set_stage(&mut self, end: StreamId, stage: Stage) {
        let Some(reconnection) = self.reconnections.get_mut(&end) else { return };
        let before = std::mem::replace(&mut reconnection.stage, stage);
        if let Some(socket) = before.socket().filter(|socket| stage.socket() != Some(*socket)) {
            self.dialed.remove(&socket);
            self.actions.push_back(Action::Close(socket));
        }
        if let Some(socket) = stage.socket() {
            self.dialed.insert(socket, end);
        }
    }

    /// Nothing is to be done about this link any more.
    fn give_up(&mut self, end: StreamId) {
        self.set_stage(end, Stage::Over);
        self.reconnections.remove(&end);
        self.actions.push_back(Action::Discard(end));
    }

    /// Each socket that was dialed belongs to one link, which knows it; bounds hold.
    fn check_invariants(&self) {
        for (socket, end) in &self.dialed {
            let known = self.reconnections.get(end).and_then(|of| of.stage.socket());
            assert!(known == Some(*socket), "{socket:?} was dialed for {end:?}, which has {known:?}");
        }
        assert!(self.visitors.len() <= door::VISITORS, "{} visitors", self.visitors.len());
        debug_assert_eq!(self.reconnections.values().filter(|of| of.stage.socket().is_some()).count(), self.dialed.len());
        debug_assert_eq!(self.visitors.iter().map(|of| of.socket).collect::<BTreeSet<_>>().len(), self.visitors.len());
    }
}
