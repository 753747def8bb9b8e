//! The messages of this daemon to one peer, over as many connections as it takes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::event::EventName;
use radic_wire::ids::NodeId;
use radic_wire::limits;
use radic_wire::peer::PeerMessage;

use super::{Action, CONNECT, Connection, ConnectionId, Due, Gone, Peers, Reason, Role};
use crate::link::LinkSender;
use crate::membership::Peer;
use crate::node::Input;

/// Time before a broken link is tried again, doubled up to the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// Time out of reach after which a link is lost. The death of a member, or the loss of the majority, is noticed long before.
const PATIENCE: Duration = Duration::from_secs(90);
/// The same for a node that is no member any more, and may hear of that as a last message.
const LAST_WORD: Duration = Duration::from_secs(2);

/// What is done about a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing waits, and there is no connection.
    Idle,
    /// The link is broken, and is tried again then.
    Pausing { until: Duration },
    /// A connection is being made.
    Dialing(ConnectionId),
    /// All that waits was written to the connection.
    Up(ConnectionId),
    /// The driver was told that there is something to write, and has not taken all of it.
    Writing(ConnectionId),
}

/// This daemon's link to a peer.
#[derive(Debug)]
pub(super) struct Link {
    address: SocketAddr,
    sender: LinkSender,
    stage: Stage,
    /// The next pause.
    backoff: Duration,
    /// When the peer was last reached, or something began to wait for it.
    reached: Duration,
    /// The peer is no member any more: what waits are the last words to it, and then the link ends.
    departed: bool,
    /// At the last try nothing listened there, so queued messages have no receiver unless a daemon returns.
    refused: bool,
}

impl Link {
    fn new(address: SocketAddr, now: Duration) -> Link {
        let sender = LinkSender::default();
        Link { address, sender, stage: Stage::Idle, backoff: BACKOFF.0, reached: now, departed: false, refused: false }
    }

    /// The link's connection.
    pub(super) fn connection(&self) -> Option<ConnectionId> {
        match self.stage {
            Stage::Dialing(id) | Stage::Up(id) | Stage::Writing(id) => Some(id),
            Stage::Idle | Stage::Pausing { .. } => None,
        }
    }

    fn is_over(&self) -> bool {
        self.departed && self.sender.is_empty()
    }

    /// How long the peer may be out of reach before what waits for it is dropped.
    fn patience(&self) -> Duration {
        if self.departed { LAST_WORD } else { PATIENCE }
    }

    /// Panics if the link contradicts the rest. Whether it has a time of its own.
    pub(super) fn check(
        &self,
        to: &NodeId,
        connections: &BTreeMap<ConnectionId, Connection>,
        due: &BTreeSet<(Duration, Due)>,
    ) -> bool {
        assert!(!self.is_over(), "the link to {to} has ended");
        if let Some(id) = self.connection() {
            let is_its = connections.get(&id).is_some_and(|connection| matches!(&connection.role, Role::Link(of) if of == to));
            assert!(is_its, "the connection of the link to {to} is there");
        }
        match self.stage {
            Stage::Idle => assert!(self.sender.is_empty(), "something waits for {to}, and nothing is done"),
            Stage::Up(_) => assert!(self.sender.is_written(), "something waits for {to}, and the driver does not know"),
            Stage::Pausing { until } => {
                assert!(due.contains(&(until, Due::Link(to.clone()))), "the link to {to} is tried again");
                return true;
            }
            Stage::Dialing(_) | Stage::Writing(_) => {}
        }
        false
    }
}

impl Peers {
    /// Sends a message, reliably and in order. To a former member it is an errand, if it is about the membership: the link has
    /// ended with its last words, and another one would begin with numbers that the peer has seen.
    pub fn send(&mut self, now: Duration, to: &Peer, message: PeerMessage) {
        let known = || self.received.get(&to.id).map(|received| received.address);
        let Some(address) = to.address.or_else(known) else {
            let no_way = Reason::Gone(Gone::NoWay("its address is not known".to_owned()));
            return self.actions.push_back(Action::Dropped(Some(to.id.clone()), None, no_way));
        };
        if self.has_departed.contains(&to.id) {
            return self.send_to_departed(now, &to.id, address, message);
        }
        let link = self.links.entry(to.id.clone()).or_insert_with(|| Link::new(address, now));
        match link.sender.push(message) {
            Ok(()) => self.go_on(now, &to.id),
            Err(error) => self.lose_link(now, &to.id, Reason::Overfull(error)),
        }
        self.check_bounds();
    }

    /// The next frame to write to the connection of a link. None: there is none until [`Action::Write`] comes again.
    pub fn poll_frame(&mut self, id: ConnectionId) -> Option<Vec<u8>> {
        let Role::Link(to) = &self.connections.get(&id)?.role else { return None };
        let link = self.links.get_mut(to).filter(|link| link.stage == Stage::Writing(id))?;
        let frame = link.sender.poll_frame().map(<[u8]>::to_vec);
        if frame.is_none() {
            link.stage = Stage::Up(id);
        }
        frame
    }

    /// A node is no member any more. What waits for it is still sent, because it may tell the node so.
    pub fn forget(&mut self, now: Duration, node: &NodeId) {
        if let Some(link) = self.links.get_mut(node) {
            link.departed = true;
            self.end_if_over(now, node);
        }
        if self.has_departed.insert(node.clone()) {
            self.departed.push_back(node.clone());
        }
        // What it still says has the old numbers, so they are remembered for a while.
        if self.departed.len() > limits::DEPARTED
            && let Some(oldest) = self.departed.pop_front()
        {
            self.has_departed.remove(&oldest);
            self.received.remove(&oldest);
        }
        self.check_bounds();
    }

    /// Whether messages wait for a node that may still take them. A former member counts too: if it learns late that it has left,
    /// it waits for them in vain.
    pub fn has_unsent(&self) -> bool {
        self.errands > 0 || self.links.values().any(|link| !link.refused && !link.sender.is_empty())
    }

    /// Has written what waits, or begins a connection for it.
    fn go_on(&mut self, now: Duration, to: &NodeId) {
        let Some(link) = self.links.get_mut(to) else { return };
        match link.stage {
            Stage::Idle if !link.sender.is_empty() => {
                link.reached = now;
                self.dial_link(now, to);
            }
            Stage::Up(id) if !link.sender.is_written() => {
                link.stage = Stage::Writing(id);
                self.actions.push_back(Action::Write(id));
            }
            _ => {}
        }
    }

    fn dial_link(&mut self, now: Duration, to: &NodeId) {
        let address = self.links[to].address;
        let id = self.dial(now, address, Role::Link(to.clone()), now + CONNECT);
        self.set_link_stage(to, Stage::Dialing(id));
    }

    fn set_link_stage(&mut self, to: &NodeId, stage: Stage) {
        let link = self.links.get_mut(to).expect("the link is there");
        let before = std::mem::replace(&mut link.stage, stage);
        if let Stage::Pausing { until } = before {
            self.due.remove(&(until, Due::Link(to.clone())));
        }
        if let Stage::Pausing { until } = stage {
            self.due.insert((until, Due::Link(to.clone())));
        }
    }

    /// The peer has welcomed the link, and has received this many messages of it.
    pub(super) fn handle_link_up(&mut self, now: Duration, id: ConnectionId, to: &NodeId, received: u64) -> Result<(), Reason> {
        let link = self.links.get_mut(to).expect("a connection of a link has one");
        link.sender.handle_connected(received).map_err(Reason::Numbers)?;
        (link.stage, link.backoff, link.reached, link.refused) = (Stage::Up(id), BACKOFF.0, now, false);
        self.go_on(now, to);
        self.end_if_over(now, to);
        Ok(())
    }

    /// The peer has received this many messages.
    pub(super) fn handle_ack(&mut self, now: Duration, id: ConnectionId, to: &NodeId, received: u64) -> Result<(), Reason> {
        let link = self.links.get_mut(to).filter(|link| link.connection() == Some(id)).expect("an open connection is its link's");
        link.sender.handle_ack(received).map_err(Reason::Numbers)?;
        self.end_if_over(now, to);
        Ok(())
    }

    fn end_if_over(&mut self, now: Duration, to: &NodeId) {
        if self.links.get(to).is_some_and(Link::is_over) {
            self.give_up_link(now, to, Reason::Over);
        }
    }

    /// The link ends, and what waits is dropped.
    fn give_up_link(&mut self, now: Duration, to: &NodeId, reason: Reason) {
        let Some(link) = self.links.remove(to) else { return };
        if let Stage::Pausing { until } = link.stage {
            self.due.remove(&(until, Due::Link(to.clone())));
        }
        if let Some(id) = link.connection() {
            self.close(now, id, reason);
        }
    }

    /// What was said on the link to a member will not all arrive, and a link that begins again would contradict the numbers that
    /// the peer has seen. So the link is given up: the node hears of it, and takes the member for dead.
    fn lose_link(&mut self, now: Duration, to: &NodeId, reason: Reason) {
        let text = format!("the link to {to} is lost, and so the node is taken for dead: {reason}");
        self.tell(Input::Note(EventName::Limit, text));
        self.give_up_link(now, to, reason);
        self.forget(now, to);
        self.tell(Input::LinkLost(to.clone()));
    }

    /// The connection of a link has ended, or did not come about: the link is tried again after a pause, for some time.
    pub(super) fn handle_link_down(&mut self, now: Duration, id: ConnectionId, to: &NodeId, reason: &Reason) {
        let Some(link) = self.links.get_mut(to).filter(|link| link.connection() == Some(id)) else { return };
        if matches!(link.stage, Stage::Up(_) | Stage::Writing(_)) {
            (link.backoff, link.reached) = (BACKOFF.0, now);
        }
        link.refused = *reason == Reason::Gone(Gone::NoListener);
        let (is_late, pause) = (now.saturating_sub(link.reached) > link.patience(), link.backoff);
        link.backoff = (pause * 2).min(BACKOFF.1);
        let lost = match reason {
            Reason::Numbers(_) => Some(reason.clone()),
            _ => is_late.then_some(Reason::Unreachable(PATIENCE)),
        };
        match lost {
            None => {
                self.set_link_stage(to, Stage::Pausing { until: now + pause });
                self.tell(Input::LinkBroken(to.clone()));
            }
            Some(_) if link.departed => {
                let address = self.links.remove(to).map(|link| link.address);
                self.actions.push_back(Action::Dropped(Some(to.clone()), address, reason.clone()));
            }
            Some(lost) => self.lose_link(now, to, lost),
        }
    }

    pub(super) fn try_link_again(&mut self, now: Duration, to: &NodeId) {
        self.set_link_stage(to, Stage::Idle);
        if !self.links[to].sender.is_empty() {
            self.dial_link(now, to);
        }
    }
}
