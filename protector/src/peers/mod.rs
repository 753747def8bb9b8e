//! Connections between daemons: everything that a daemon decides about them, without sockets, tasks or a clock.
//!
//! The driver says what happens (`handle_*`), carries out what [`Peers::poll_action`] says, and calls [`Peers::handle_timeout`]
//! at [`Peers::poll_timeout`]. There are two drivers: `daemon/peers.rs`, with sockets and the authenticated channel, and the
//! simulation. Heartbeats have a machine of their own, [`Heartbeats`], because they have a thread of their own.
//!
//! # Map
//!
//! | module | what it decides |
//! |---|---|
//! | this one | the table of connections: their stages and deadlines, what a frame is on a connection of its role, why one ends |
//! | `links` | this daemon's messages to one peer: when its link is dialed and tried again, when it is given up, the last words to a former member |
//! | `probes` | whether a member answers: when a probe is tried again, and what its result is |
//! | `errands` | one message over a connection of its own: to join, or to a former member |
//! | `callers` | connections that other daemons open: what a hello is answered, which number was received, when it is acknowledged |
//! | `heartbeats` | the connection of heartbeats, and when a heartbeat that the daemon is late with is repeated |
//!
//! # A connection
//!
//! The machine numbers connections, and never uses a number again. One that it opens begins with [`Action::Dial`]; the driver
//! connects, says [`Peers::handle_connected`], and makes the channel's handshake. One that a peer opens begins with
//! [`Peers::handle_accepted`]. From there on the driver brings each frame to [`Peers::handle_frame`], the first of which is the
//! hello or the welcome. A connection ends by [`Action::Close`], with the [`Reason`], or by [`Peers::handle_closed`].
//!
//! # Bounds
//!
//! [`limits::CONNECTIONS`] callers are served. [`limits::HANDSHAKES`], and one for each member, have not said hello, each for
//! [`limits::HANDSHAKE_MS`]. Both together are at most [`limits::CONNECTIONS`] and [`limits::HANDSHAKES`].
//! A link holds [`limits::LINK_MESSAGES`] messages and [`limits::LINK_BYTES`] bytes. [`PROBES`] probes and [`ERRANDS`] errands
//! are under way; [`limits::DEPARTED`] former members are remembered, and [`STRANGERS`] nodes that have said nothing but that
//! they want to join.

mod callers;
mod errands;
mod heartbeats;
mod links;
mod probes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::PROTOCOL_VERSION;
use radic_wire::codec::{self, CodecError};
use radic_wire::ids::NodeId;
use radic_wire::limits;
use radic_wire::membership::Member;
use radic_wire::peer::{Hello, LinkFrame, Purpose, Welcome};
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::callers::{Caller, Received};
use self::errands::Errand;
pub use self::heartbeats::{Beat, Heartbeats, HeartbeatsAction};
use self::links::Link;
use self::probes::{Probe, ProbeNumber};
use crate::link::LinkError;
use crate::node::Input;

/// Time for the handshake of a connection, from its beginning to the hello or the welcome.
const HANDSHAKE: Duration = Duration::from_millis(limits::HANDSHAKE_MS);
/// Time for the machine of a peer that is believed to live to take a connection.
const CONNECT: Duration = Duration::from_millis(1000);
/// Most probes under way. One more ends the oldest.
pub const PROBES: usize = 1_024;
/// Most errands under way. One more is dropped.
pub const ERRANDS: usize = 2_048;
/// Most nodes of which nothing is known but that they want to join. One more takes the place of the first.
pub const STRANGERS: usize = 1_024;

/// A connection. The driver maps it to its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

/// How a connection has ended, as the driver says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// The peer's machine says that no daemon listens there.
    #[error("there is no listener")]
    NoListener,
    /// The connection did not come about for another reason: there is no way to the machine, or this one lacks the means.
    #[error("no connection: {0}")]
    NoWay(String),
    /// The peer has closed it.
    #[error("closed by the peer")]
    Ended,
    /// The connection broke.
    #[error("{0}")]
    Broke(String),
    /// The peer has sent what no daemon of this cluster and version sends, and the driver has closed the connection.
    #[error("{0}")]
    Fault(String),
}

/// Why this daemon does not let a caller in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The caller speaks another version.
    #[error("{from} speaks version {version}, this protector {PROTOCOL_VERSION}")]
    Version {
        /// The caller.
        from: NodeId,
        /// The caller's version.
        version: u16,
    },
    /// The caller means another daemon, which may have listened here before.
    #[error("meant for {meant:?}, this is {me:?}")]
    Another {
        /// The node that it means.
        meant: NodeId,
        /// This one.
        me: NodeId,
    },
    /// The caller has the name and the boot of this daemon.
    #[error("it says that it is me")]
    Myself,
}

/// Why a connection ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The driver says so.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// The peer's machine did not take the connection in a second.
    #[error("its machine has not taken the connection within {CONNECT:?}")]
    Unreached,
    /// The handshake, the probe or the errand was not over in [`limits::HANDSHAKE_MS`].
    #[error("no answer within {HANDSHAKE:?}")]
    Late,
    /// Too many others have not said hello, or are probes or errands, and this is the oldest.
    #[error("too many connections that are not served yet")]
    Crowd,
    /// [`limits::CONNECTIONS`] others are served.
    #[error("too many connections")]
    Full,
    /// The peer does not let this daemon in.
    #[error("refused by the peer: {0}")]
    Refused(String),
    /// This daemon does not let the caller in.
    #[error("refused: {0}")]
    Unwelcome(#[from] Refusal),
    /// The welcome is the answer to a probe.
    #[error("the probe was answered")]
    Answered,
    /// An errand has brought its message.
    #[error("its message was taken")]
    Taken,
    /// The peer is no member any more, and the last words to it are spoken.
    #[error("the peer is no member any more")]
    Over,
    /// Too much waits for the peer, or one message is too long.
    #[error("{0}")]
    Overfull(LinkError),
    /// The peer was out of reach for this time.
    #[error("it was out of reach for {} s", .0.as_secs())]
    Unreachable(Duration),
    /// The numbers of a link contradict each other.
    #[error("{0}")]
    Numbers(LinkError),
    /// What has come is no message.
    #[error(transparent)]
    Malformed(#[from] CodecError),
    /// What has come has no place on a connection of its role.
    #[error("{0}")]
    Misplaced(&'static str),
}

impl Reason {
    /// Whether the driver sends what is to be sent before it closes the connection.
    pub fn is_orderly(&self) -> bool {
        matches!(self, Reason::Unwelcome(_) | Reason::Answered | Reason::Taken | Reason::Over)
    }

    /// Whether the caller is at fault, so that the event log should tell.
    fn is_fault(&self) -> bool {
        match self {
            Reason::Gone(gone) => matches!(gone, Gone::Fault(_)),
            Reason::Full | Reason::Unwelcome(_) | Reason::Numbers(_) | Reason::Malformed(_) | Reason::Misplaced(_) => true,
            _ => false,
        }
    }
}

/// Something for the driver to do, in this order.
#[derive(Debug)]
pub enum Action {
    /// Connect to this address; then [`Peers::handle_connected`] or [`Peers::handle_closed`].
    Dial(ConnectionId, SocketAddr),
    /// Send this frame.
    Send(ConnectionId, Vec<u8>),
    /// Frames of a link wait: send what [`Peers::poll_frame`] gives, until it gives nothing.
    Write(ConnectionId),
    /// Close the connection; if the reason is orderly ([`Reason::is_orderly`]), after what was to be sent.
    Close(ConnectionId, Reason),
    /// Tell the node.
    Tell(Input),
    /// A caller at this address was refused, or has said what no daemon says: for the node's event log.
    Refused(SocketAddr, Reason),
    /// A message was dropped: it was for this node, if that is known, at this address, if that is known.
    Dropped(Option<NodeId>, Option<SocketAddr>, Reason),
}

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The peer's machine has not taken it.
    Connecting,
    /// The connection is there. Its first frame has not come, which is the hello or the welcome.
    Greeting,
    /// Both sides know each other.
    Open,
}

/// What a connection is for.
#[derive(Debug)]
enum Role {
    /// This daemon's link to a peer.
    Link(NodeId),
    /// One attempt of a probe.
    Probe(ProbeNumber),
    /// One message to a peer.
    Errand(Box<Errand>),
    /// A peer has opened it.
    Caller(Caller),
}

#[derive(Debug)]
struct Connection {
    role: Role,
    stage: Stage,
    /// When it was begun.
    begun: Duration,
    /// When it ends, if it does not get on.
    until: Option<Duration>,
}

/// What has a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Connection(ConnectionId),
    /// A link is tried again.
    Link(NodeId),
    /// A probe is tried again.
    Probe(ProbeNumber),
}

/// See the module's text.
#[derive(Debug)]
pub struct Peers {
    me: Member,
    connections: BTreeMap<ConnectionId, Connection>,
    next_connection: u64,
    links: BTreeMap<NodeId, Link>,
    probes: BTreeMap<ProbeNumber, Probe>,
    next_probe: u64,
    errands: usize,
    /// Former members to which an errand is under way.
    telling: BTreeSet<NodeId>,
    /// What was received from each peer, and where it said that it listens.
    received: BTreeMap<NodeId, Received>,
    /// Those of them that have said only that they want to join, when they did, oldest first.
    strangers: VecDeque<NodeId>,
    /// Callers that have not said hello.
    unknown: BTreeSet<ConnectionId>,
    /// Callers that have.
    served: usize,
    /// Members of the view that this daemon has.
    members: usize,
    /// Nodes that are members no more, oldest first, and the same for looking them up.
    departed: VecDeque<NodeId>,
    has_departed: BTreeSet<NodeId>,
    due: BTreeSet<(Duration, Due)>,
    actions: VecDeque<Action>,
}

impl Peers {
    /// There are no connections yet.
    pub fn new(me: Member) -> Peers {
        Peers {
            me,
            connections: BTreeMap::new(),
            next_connection: 0,
            links: BTreeMap::new(),
            probes: BTreeMap::new(),
            next_probe: 0,
            errands: 0,
            telling: BTreeSet::new(),
            received: BTreeMap::new(),
            strangers: VecDeque::new(),
            unknown: BTreeSet::new(),
            served: 0,
            members: 0,
            departed: VecDeque::new(),
            has_departed: BTreeSet::new(),
            due: BTreeSet::new(),
            actions: VecDeque::new(),
        }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Peers::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        while let Some((_, due)) = self.due.first().filter(|(at, _)| *at <= now).cloned() {
            match due {
                Due::Connection(id) => self.expire(now, id),
                Due::Link(to) => self.try_link_again(now, &to),
                Due::Probe(number) => self.try_probe_again(now, number),
            }
        }
        self.check_bounds();
    }

    fn expire(&mut self, now: Duration, id: ConnectionId) {
        let connection = self.connections.get(&id).expect("a deadline is that of a connection that is there");
        let reason = if connection.stage == Stage::Connecting { Reason::Unreached } else { Reason::Late };
        self.close(now, id, reason);
    }

    // ---- what happens to a connection

    /// The peer's machine has taken a connection that was dialed.
    pub fn handle_connected(&mut self, id: ConnectionId) {
        let Some(Connection { role, begun, until, .. }) = self.connections.get(&id) else { return };
        let (to, purpose, until) = match role {
            Role::Link(to) => (Some(to.clone()), Purpose::Link, Some(*begun + HANDSHAKE)),
            Role::Errand(errand) => (errand.to.clone(), Purpose::Join, Some(*begun + HANDSHAKE)),
            Role::Probe(number) => (Some(self.probed(*number).clone()), Purpose::Probe, *until),
            Role::Caller(_) => unreachable!("a caller's connection is not dialed"),
        };
        self.set_stage(id, Stage::Greeting, until);
        let hello = Hello { version: PROTOCOL_VERSION, from: self.me.clone(), to, purpose };
        self.say(id, &hello);
        if let Some(Connection { role: Role::Probe(number), .. }) = self.connections.get(&id) {
            self.tell(Input::ProbeReached(self.probed(*number).clone()));
        }
        self.check_bounds();
    }

    /// A frame has come.
    pub fn handle_frame(&mut self, now: Duration, id: ConnectionId, frame: &[u8]) {
        if let Err(reason) = self.read(now, id, frame) {
            self.close(now, id, reason);
        }
        self.check_bounds();
    }

    /// What a frame means depends on the role of its connection, and on the stage.
    fn read(&mut self, now: Duration, id: ConnectionId, frame: &[u8]) -> Result<(), Reason> {
        let Some(Connection { role, stage, .. }) = self.connections.get(&id) else { return Ok(()) };
        match (role, stage) {
            (Role::Caller(_), Stage::Greeting) => self.greet(id, decoded(frame)?),
            (Role::Caller(_), _) => self.hear(id, frame),
            (_, Stage::Greeting) => self.handle_welcome(now, id, decoded(frame)?),
            (Role::Link(to), Stage::Open) => {
                let to = to.clone();
                let LinkFrame::Ack { received } = decoded(frame)? else {
                    return Err(Reason::Misplaced("data on the way back of a link"));
                };
                self.handle_ack(now, id, &to, received)
            }
            (Role::Errand(_), Stage::Open) => Err(Reason::Misplaced("an answer to an errand")),
            (Role::Probe(_), Stage::Open) => unreachable!("a probe ends with its welcome"),
            (_, Stage::Connecting) => unreachable!("nothing comes on a connection that is not there"),
        }
    }

    fn handle_welcome(&mut self, now: Duration, id: ConnectionId, welcome: Welcome) -> Result<(), Reason> {
        let Some(Connection { role, until, .. }) = self.connections.get(&id) else { return Ok(()) };
        let until = *until;
        if let Role::Probe(number) = *role {
            self.finish_probe(number, welcome.refused.is_none() && welcome.id == *self.probed(number));
            self.close(now, id, Reason::Answered);
            return Ok(());
        }
        if let Some(reason) = welcome.refused {
            return Err(Reason::Refused(reason));
        }
        match role {
            Role::Link(to) => {
                let to = to.clone();
                self.set_stage(id, Stage::Open, None);
                self.handle_link_up(now, id, &to, welcome.received)
            }
            Role::Errand(errand) => {
                let message = errand.frame.clone();
                self.set_stage(id, Stage::Open, until);
                self.actions.push_back(Action::Send(id, message));
                Ok(())
            }
            Role::Probe(_) | Role::Caller(_) => unreachable!("handled above, or never welcomed"),
        }
    }

    /// A connection has ended, or did not come about.
    pub fn handle_closed(&mut self, now: Duration, id: ConnectionId, gone: Gone) {
        self.forget_connection(now, id, &Reason::Gone(gone));
        self.check_bounds();
    }

    // ---- the table

    fn dial(&mut self, now: Duration, address: SocketAddr, role: Role, until: Duration) -> ConnectionId {
        let id = self.add(now, role, Stage::Connecting, until);
        self.actions.push_back(Action::Dial(id, address));
        id
    }

    fn add(&mut self, now: Duration, role: Role, stage: Stage, until: Duration) -> ConnectionId {
        self.next_connection += 1;
        let id = ConnectionId(self.next_connection);
        self.connections.insert(id, Connection { role, stage, begun: now, until: Some(until) });
        self.due.insert((until, Due::Connection(id)));
        id
    }

    fn set_stage(&mut self, id: ConnectionId, stage: Stage, until: Option<Duration>) {
        let connection = self.connections.get_mut(&id).expect("the connection is there");
        connection.stage = stage;
        let before = std::mem::replace(&mut connection.until, until);
        before.into_iter().for_each(|at| _ = self.due.remove(&(at, Due::Connection(id))));
        until.into_iter().for_each(|at| _ = self.due.insert((at, Due::Connection(id))));
    }

    /// The machine ends a connection.
    fn close(&mut self, now: Duration, id: ConnectionId, reason: Reason) {
        if self.forget_connection(now, id, &reason) {
            self.actions.push_back(Action::Close(id, reason));
        }
    }

    /// A connection is over, and so may be what it was for. False if it was over before.
    fn forget_connection(&mut self, now: Duration, id: ConnectionId, reason: &Reason) -> bool {
        let Some(Connection { role, stage, until, .. }) = self.connections.remove(&id) else { return false };
        until.into_iter().for_each(|at| _ = self.due.remove(&(at, Due::Connection(id))));
        match role {
            Role::Link(to) => self.handle_link_down(now, id, &to, reason),
            Role::Probe(number) => self.handle_probe_down(now, number, reason),
            Role::Errand(errand) => self.handle_errand_over(*errand, stage, reason),
            Role::Caller(caller) => self.handle_caller_gone(id, caller, reason),
        }
        true
    }

    fn say<T: Serialize>(&mut self, id: ConnectionId, message: &T) {
        self.actions.push_back(Action::Send(id, encoded(message)));
    }

    fn tell(&mut self, input: Input) {
        self.actions.push_back(Action::Tell(input));
    }

    // ---- invariants

    /// Bounds that cost nothing to look at, after each input.
    fn check_bounds(&self) {
        let (unknown, served) = (self.unknown.len(), self.served);
        assert!(unknown <= limits::HANDSHAKES + self.members, "{unknown} callers have not said hello");
        assert!(unknown + served <= limits::CONNECTIONS + limits::HANDSHAKES, "{served} callers are served, {unknown} are not");
        assert!(self.probes.len() <= PROBES && self.errands <= ERRANDS && self.telling.len() <= self.errands);
        assert!(self.departed.len() <= limits::DEPARTED && self.departed.len() == self.has_departed.len());
        assert!(self.strangers.len() <= STRANGERS, "{} nodes that may join are remembered", self.strangers.len());
    }

    /// Panics if the parts of the machine contradict each other. It looks at all connections, once: for tests and the simulation.
    pub fn check_invariants(&self) {
        self.check_bounds();
        let (mut due, mut of_links, mut of_probes, mut errands, mut unknown, mut served) = (0, 0, 0, 0, 0, 0);
        for (id, connection) in &self.connections {
            if let Some(at) = connection.until {
                due += 1;
                assert!(self.due.contains(&(at, Due::Connection(*id))), "{id:?} ends in time");
            }
            match &connection.role {
                Role::Link(_) => of_links += 1,
                Role::Probe(_) => of_probes += 1,
                Role::Errand(errand) => {
                    errands += 1;
                    let is_told = errand.to.as_ref().is_none_or(|to| self.telling.contains(to));
                    assert!(is_told, "the errand to {:?} is known", errand.to);
                }
                Role::Caller(Caller { speaker: Some(_), .. }) => served += 1,
                Role::Caller(_) => {
                    unknown += 1;
                    assert!(self.unknown.contains(id), "{id:?} has not said hello");
                }
            }
        }
        assert_eq!(unknown, self.unknown.len(), "each that has not said hello is a caller");
        assert_eq!(served, self.served, "each caller that has said hello is counted");
        assert_eq!(errands, self.errands, "each errand has a connection");
        // The connection of each link names it, and that of each probe: if there are as many of either kind, each of these
        // connections is the one that its link or its probe has.
        let (mut links, mut probes) = (0, 0);
        for (to, link) in &self.links {
            links += usize::from(link.connection().is_some());
            due += usize::from(link.check(to, &self.connections, &self.due));
        }
        for (number, probe) in &self.probes {
            probes += usize::from(probe.connection().is_some());
            due += usize::from(probe.check(*number, &self.connections, &self.due));
        }
        assert_eq!(of_links, links, "a link has one connection");
        assert_eq!(of_probes, probes, "a probe has one attempt");
        assert_eq!(due, self.due.len(), "each time is that of something");
    }
}

/// What is sent to a peer is made by this program, and is within the limits.
fn encoded<T: Serialize>(message: &T) -> Vec<u8> {
    codec::encode(message, limits::PEER_FRAME).expect("it is no longer than a frame may be")
}

fn decoded<T: DeserializeOwned>(frame: &[u8]) -> Result<T, Reason> {
    Ok(codec::decode(frame, limits::PEER_FRAME)?)
}
