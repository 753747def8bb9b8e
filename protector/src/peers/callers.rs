//! Connections that other daemons open to this one.

use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::PROTOCOL_VERSION;
use radic_wire::ids::NodeId;
use radic_wire::limits;
use radic_wire::membership::MembershipMessage;
use radic_wire::peer::{Heartbeat, Hello, LinkFrame, PeerMessage, Purpose, Welcome};

use super::{Action, ConnectionId, HANDSHAKE, Peers, Reason, Refusal, Role, STRANGERS, Stage, decoded};
use crate::link::LinkReceiver;
use crate::node::Input;

/// Acknowledge at the latest after this many messages.
const ACK_EVERY: u64 = 64;

/// A daemon that has said hello.
#[derive(Debug, Clone)]
pub(super) struct Speaker {
    node: NodeId,
    /// Where it says that it listens.
    address: SocketAddr,
    purpose: Purpose,
}

/// The caller on a connection.
#[derive(Debug)]
pub(super) struct Caller {
    /// Where the connection comes from.
    from: SocketAddr,
    /// None: it has not said hello.
    pub(super) speaker: Option<Speaker>,
    /// Messages that were not acknowledged.
    unacknowledged: u64,
}

/// What is known of a peer that has spoken to this daemon.
#[derive(Debug)]
pub(super) struct Received {
    receiver: LinkReceiver,
    /// Where it says that it listens.
    pub(super) address: SocketAddr,
}

impl Peers {
    /// A caller has come from this address. None: there are as many as there may be, and the driver closes the connection.
    #[must_use]
    pub fn handle_accepted(&mut self, now: Duration, from: SocketAddr) -> Option<ConnectionId> {
        if self.served >= limits::CONNECTIONS {
            self.actions.push_back(Action::Refused(from, Reason::Full));
            return None;
        }
        self.turn_away(now, self.handshakes() - 1);
        let caller = Caller { from, speaker: None, unacknowledged: 0 };
        let id = self.add(now, Role::Caller(caller), Stage::Greeting, now + HANDSHAKE);
        self.unknown.insert(id);
        self.check_bounds();
        Some(id)
    }

    /// The view that this daemon has now has so many members, itself among them.
    ///
    /// All of them may answer it in one moment, each over a new connection. If it had room for fewer, those that are turned away would
    /// come again in one moment, too, and most of them would be turned away again.
    pub fn handle_members(&mut self, now: Duration, members: usize) {
        self.members = members;
        self.turn_away(now, self.handshakes());
        self.check_bounds();
    }

    /// Most callers that may not have said hello: one for each member, and as many strangers as ever. With those that are served there are
    /// never more connections than [`limits::CONNECTIONS`] and [`limits::HANDSHAKES`] together, whatever the cluster's size.
    pub(super) fn handshakes(&self) -> usize {
        (limits::HANDSHAKES + self.members).min((limits::CONNECTIONS + limits::HANDSHAKES).saturating_sub(self.served))
    }

    /// Closes the oldest callers that have not said hello, until there are at most so many.
    fn turn_away(&mut self, now: Duration, most: usize) {
        while self.unknown.len() > most
            && let Some(oldest) = self.unknown.first().copied()
        {
            // The oldest one is the likeliest to be a slow-loris. Its end is not told, and costs nothing more.
            self.close(now, oldest, Reason::Crowd);
        }
    }

    /// All that has come on a connection was handled: a good moment to acknowledge.
    pub fn handle_quiet(&mut self, id: ConnectionId) {
        self.acknowledge(id);
    }

    /// A caller says hello.
    pub(super) fn greet(&mut self, id: ConnectionId, hello: Hello) -> Result<(), Reason> {
        let refusal = self.refusal_of(&hello);
        let received = self.received.get(&hello.from.id).map_or(0, |received| received.receiver.received());
        let refused = refusal.as_ref().map(Refusal::to_string);
        self.say(id, &Welcome { id: self.me.id.clone(), received, refused });
        if let Some(refusal) = refusal {
            return Err(refusal.into());
        }
        if hello.purpose == Purpose::Probe {
            return Err(Reason::Answered);
        }
        let speaker = Speaker { node: hello.from.id, address: hello.from.address, purpose: hello.purpose };
        self.unknown.remove(&id);
        self.served += 1;
        self.set_stage(id, Stage::Open, None);
        self.caller(id).speaker = Some(speaker);
        Ok(())
    }

    fn refusal_of(&self, hello: &Hello) -> Option<Refusal> {
        match hello {
            Hello { version, from, .. } if *version != PROTOCOL_VERSION => {
                Some(Refusal::Version { from: from.id.clone(), version: *version })
            }
            Hello { to: Some(to), .. } if *to != self.me.id => {
                Some(Refusal::Another { meant: to.clone(), me: self.me.id.clone() })
            }
            Hello { from, .. } if from.id == self.me.id => Some(Refusal::Myself),
            _ => None,
        }
    }

    fn caller(&mut self, id: ConnectionId) -> &mut Caller {
        match self.connections.get_mut(&id).map(|connection| &mut connection.role) {
            Some(Role::Caller(caller)) => caller,
            other => unreachable!("{other:?} is no caller"),
        }
    }

    /// A caller that has said hello says something.
    pub(super) fn hear(&mut self, id: ConnectionId, frame: &[u8]) -> Result<(), Reason> {
        let speaker = self.caller(id).speaker.clone().expect("it has said hello");
        match speaker.purpose {
            Purpose::Link => self.hear_on_link(id, &speaker, decoded(frame)?),
            Purpose::Heartbeat => {
                let Heartbeat { view } = decoded(frame)?;
                self.tell(Input::Heartbeat(speaker.node, view));
                Ok(())
            }
            Purpose::Join => {
                let message: MembershipMessage = decoded(frame)?;
                self.remember_stranger(&speaker);
                self.tell(Input::Message(speaker.node, PeerMessage::Membership(message)));
                Err(Reason::Taken)
            }
            Purpose::Probe => unreachable!("the welcome was the answer"),
        }
    }

    fn hear_on_link(&mut self, id: ConnectionId, speaker: &Speaker, frame: LinkFrame) -> Result<(), Reason> {
        let LinkFrame::Data { seq, message } = frame else {
            return Err(Reason::Misplaced("an acknowledgement on the way forth of a link"));
        };
        let fresh = || Received { receiver: LinkReceiver::default(), address: speaker.address };
        let received = self.received.entry(speaker.node.clone()).or_insert_with(fresh);
        if received.receiver.handle_seq(seq).map_err(Reason::Numbers)? {
            self.tell(Input::Message(speaker.node.clone(), message));
        }
        let caller = self.caller(id);
        caller.unacknowledged += 1;
        if caller.unacknowledged >= ACK_EVERY {
            self.acknowledge(id);
        }
        Ok(())
    }

    fn acknowledge(&mut self, id: ConnectionId) {
        let Some(Role::Caller(caller)) = self.connections.get_mut(&id).map(|connection| &mut connection.role) else { return };
        let Some(speaker) = caller.speaker.as_ref().filter(|_| caller.unacknowledged > 0) else { return };
        let received = self.received.get(&speaker.node).map_or(0, |received| received.receiver.received());
        caller.unacknowledged = 0;
        self.say(id, &LinkFrame::Ack { received });
    }

    /// A node that is no member may be answered where it says that it listens.
    fn remember_stranger(&mut self, speaker: &Speaker) {
        let Entry::Vacant(entry) = self.received.entry(speaker.node.clone()) else { return };
        entry.insert(Received { receiver: LinkReceiver::default(), address: speaker.address });
        self.strangers.push_back(speaker.node.clone());
        if self.strangers.len() > STRANGERS
            && let Some(oldest) = self.strangers.pop_front()
            && self.received.get(&oldest).is_some_and(|received| received.receiver.received() == 0)
        {
            // Of a node that has sent messages over a link the number must not be forgotten.
            self.received.remove(&oldest);
        }
    }

    /// The connection of a caller is over.
    pub(super) fn handle_caller_gone(&mut self, id: ConnectionId, caller: Caller, reason: &Reason) {
        let Caller { from, speaker, .. } = caller;
        let is_late = speaker.is_none() && matches!(reason, Reason::Late);
        if reason.is_fault() || is_late {
            self.actions.push_back(Action::Refused(from, reason.clone()));
        }
        match speaker {
            None => _ = self.unknown.remove(&id),
            Some(speaker) => {
                self.served -= 1;
                if matches!(speaker.purpose, Purpose::Link | Purpose::Heartbeat) {
                    self.tell(Input::LinkBroken(speaker.node));
                }
            }
        }
    }
}
