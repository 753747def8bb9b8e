//! What the driver of a membership machine is to do, and what goes into the event log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use radic_wire::ids::NodeId;
use radic_wire::membership::{Departure, Member, MembershipMessage, Refusal, View};

use super::evidence::Evidence;

/// A node to send to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// The node.
    pub id: NodeId,
    /// Where it listens. None if it is no member of a view that is known here: the answer may only take a link that it has opened
    /// to this node, or be dropped.
    pub address: Option<SocketAddr>,
}

/// Why a member is suspected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The member's heartbeats have stopped.
    Silent,
    /// A link to it broke.
    LinkBroken,
    /// Another protector wants to join under its name.
    NameClaimed,
    /// The member did not answer when it was asked, or leads and did not do what it was asked to.
    Unanswered,
    /// The member's watcher is dead.
    WatcherDied,
    /// The member was confirmed dead before, and is checked again because no view has removed it since.
    StillThere,
}

impl Reason {
    /// Whether the suspicion is only a precaution, as the last two are, which is no news unless it is confirmed.
    pub(super) fn is_news(self) -> bool {
        !matches!(self, Reason::WatcherDied | Reason::StillThere)
    }
}

/// Something for the event log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipEvent {
    /// A member does not answer.
    Suspected {
        /// The member.
        node: NodeId,
        /// The reason.
        reason: Reason,
        /// Time since it was last heard.
        silent: Duration,
    },
    /// The suspected member does answer.
    Withdrawn {
        /// The member.
        node: NodeId,
    },
    /// The suspected member is dead as far as this member and those that it asked can tell. The next view decides.
    Confirmed {
        /// The member.
        node: NodeId,
        /// Why it was suspected.
        reason: Reason,
        /// What is known of it.
        evidence: Evidence,
    },
    /// This machine was called late, so it accuses no member.
    Descheduled {
        /// How late.
        late: Duration,
    },
    /// A message that no correct member of this cluster sends; it was ignored.
    BadMessage {
        /// The sender.
        from: NodeId,
        /// What is wrong.
        what: String,
    },
}

/// A member that is gone. Where its ranks go depends on both views, so all members are told of each loss with the same two.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// The last view with it.
    pub before: Arc<View>,
    /// The view that follows.
    pub after: Arc<View>,
    /// The member.
    pub member: Member,
    /// How it ceased to be one.
    pub how: Departure,
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Send this message to each of these.
    Send {
        /// The receivers.
        to: Vec<Peer>,
        /// The message.
        message: MembershipMessage,
    },
    /// Send this message to the protectors that listen at these addresses.
    SendTo {
        /// Where.
        seeds: Vec<SocketAddr>,
        /// The message.
        message: MembershipMessage,
    },
    /// Send a heartbeat with this view number.
    Heartbeat {
        /// The receiver: the watcher of this node.
        to: Peer,
        /// The number of this node's view.
        view: u64,
    },
    /// Find out over a fresh connection whether this very member answers. Tell
    /// [`Membership::handle_probe_reached`](super::Membership::handle_probe_reached) when its machine has taken the connection,
    /// and [`Membership::handle_probe_result`](super::Membership::handle_probe_result) when it has answered, or when the
    /// connection is refused or another boot answers. A probe without any result need not be told: this machine knows its own
    /// time.
    Probe {
        /// The member.
        member: Peer,
    },
    /// For the event log.
    Event(MembershipEvent),
    /// A view was adopted. `new` holds this member.
    ViewChanged {
        /// The view before; none if this is the first.
        old: Option<Arc<View>>,
        /// The view.
        new: Arc<View>,
        /// The members that have joined since the view before, also those that are gone again. If this is the first view: all members.
        joined: Vec<NodeId>,
        /// The members that are gone since, also those that this member never knew, in the order in which the views lost them.
        losses: Vec<Loss>,
    },
    /// A joiner cannot join now, and keeps asking.
    Refused(Refusal),
    /// The other members have declared this one dead: the driver must kill its ranks and end. The machine does nothing any more.
    Excluded {
        /// The view that says so.
        view: Arc<View>,
    },
    /// This member has missed more views than any other member remembers: the driver must kill its ranks and end. The machine does
    /// nothing any more.
    Outrun {
        /// The newest view that it knows of.
        number: u64,
    },
    /// This member has left as it asked. The machine does nothing any more.
    Left,
    /// This side has no majority. Repeated when the set changes.
    Frozen {
        /// Members that a proposer on this side does not reach.
        unreachable: Vec<NodeId>,
        /// How many it reaches, itself included.
        reachable: usize,
        /// The majority.
        needed: usize,
    },
    /// This side has a majority again.
    Thawed,
}
