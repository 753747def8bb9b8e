//! How protectors agree on who is a member: numbered views, one consensus instance for each next view.
//!
//! View `v + 1` is agreed by a majority of view `v` (single-decree Paxos whose acceptors are the members of `v`), so two sides of a
//! cut can never both go on.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::ids::NodeId;

/// One protector as the others know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Which node, in which life.
    pub id: NodeId,
    /// Where its protector listens for the others.
    pub address: SocketAddr,
    /// A spare hosts nothing and stands outside the ring until it is used.
    pub spare: bool,
    /// Ranks that `--map-by slot` places here before it goes to the next node.
    pub slots: u32,
}

/// A numbered membership list. The ring is its members that are not spares, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// 1 for the view that the first protector makes of itself; every next one is one higher.
    pub number: u64,
    /// The members, in the order in which they joined.
    pub members: Vec<Member>,
}

/// What somebody wants the next view to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A protector joins.
    Join(Member),
    /// A protector is dead (detected, confirmed).
    Dead(NodeId),
    /// A protector leaves of its own will.
    Leave(NodeId),
}

/// A ballot of one consensus instance. Round 0 belongs to the first member of the view, who needs no promise for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ballot {
    /// The round.
    pub round: u32,
    /// Who proposes.
    pub proposer: NodeId,
}

/// What membership machines send each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembershipMessage {
    /// To whoever is believed to lead: put these changes in the next view.
    Request {
        /// The sender's view number.
        view: u64,
        /// The wanted changes.
        changes: Vec<Change>,
    },
    /// Phase 1 of view `number`.
    Prepare {
        /// The view to be decided.
        number: u64,
        /// The proposer's ballot.
        ballot: Ballot,
    },
    /// The answer to a `Prepare`: no lower ballot will be accepted.
    Promise {
        /// The view to be decided.
        number: u64,
        /// The ballot promised to.
        ballot: Ballot,
        /// What this acceptor has accepted already.
        accepted: Option<(Ballot, View)>,
    },
    /// Phase 2.
    Accept {
        /// The proposer's ballot.
        ballot: Ballot,
        /// The proposed view; its number says which instance.
        view: View,
    },
    /// The answer to an `Accept`.
    Accepted {
        /// The view to be decided.
        number: u64,
        /// The ballot accepted.
        ballot: Ballot,
    },
    /// A ballot came too late.
    Rejected {
        /// The view to be decided.
        number: u64,
        /// The higher ballot that was promised.
        promised: Ballot,
    },
    /// A view that was decided.
    Decided {
        /// The view.
        view: View,
        /// From which member's position it spreads, and how it reached us: see the dissemination tree.
        origin: Option<NodeId>,
    },
    /// The sender's newest view: whoever has a newer one answers with it.
    Newest {
        /// The view's number.
        number: u64,
    },
    /// Please find out whether this member answers.
    ProbeRequest {
        /// The suspected member.
        target: NodeId,
    },
    /// The answer to a `ProbeRequest`.
    ProbeResult {
        /// The suspected member.
        target: NodeId,
        /// It answered, in that life.
        alive: bool,
    },
}
