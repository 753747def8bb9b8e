//! How protectors agree on the members: numbered views, one consensus instance for each next view.
//!
//! View `v + 1` is agreed by a majority of view `v` (single-decree Paxos; the acceptors are the members of `v`), so two sides of a
//! cut can never both go on. What is agreed is not the view but the [`Change`]s that lead to it: every acceptor holds view `v`, and
//! [`View::next`] is a pure function, so a decision is small however large the ring is.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::ids::{BootId, NodeId, NodeName};
use crate::limits;
/// What a member is for. All have a vote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The member hosts ranks, and stands in the ring.
    #[default]
    Node,
    /// The member hosts nothing until another has died, and stands outside the ring.
    Spare,
    /// The member never hosts anything, and stands outside the ring.
    Witness,
    /// The node asks to be a spare if a member of its name has died, and else a node. Which of them it is, the view says: no
    /// member has this role.
    Newcomer,
}

/// One protector as the others know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Which node, in which boot.
    pub id: NodeId,
    /// Where its protector listens for the others.
    pub address: SocketAddr,
    /// The member's address on the network of the processes: where the processes that it hosts listen, and where it takes logs
    /// and images. Most often that of its daemon.
    pub data: IpAddr,
    /// The port, at that address, where it takes the logs of the processes that it protects.
    pub log_port: u16,
    /// What it is for.
    pub role: Role,
    /// Ranks that `--map-by slot` places here before it goes to the next node.
    pub slots: u32,
}

impl Member {
    /// Where it takes logs and images.
    pub fn log_address(&self) -> SocketAddr {
        SocketAddr::new(self.data, self.log_port)
    }
}

/// How a member ceased to be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Departure {
    /// The member was declared dead.
    Died,
    /// The member left of its own will.
    Left,
}

/// A former member. It never comes back: its node may, as another [`NodeId`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departed {
    /// The former member.
    pub id: NodeId,
    /// Its address on the network of the jobs: [`Member::data`].
    pub data: IpAddr,
    /// How.
    pub how: Departure,
}

/// A numbered membership list. The ring is its members that are neither spares nor witnesses, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The boot of the protector that founded this cluster: numbers of two clusters say nothing about each other.
    pub cluster: BootId,
    /// 1 for the view that the founder makes of itself; every next one is one higher.
    pub number: u64,
    /// The members, in the order in which they joined: 1 to [`limits::MEMBERS`], no name twice.
    pub members: Vec<Member>,
    /// The last [`limits::DEPARTED`] former members, oldest first. Part of the view so that a late duplicate of a dead member's request to
    /// join is refused by all members, also by those that joined after its death.
    pub departed: Vec<Departed>,
}

/// What the next view is to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A protector joins.
    Join(Member),
    /// A protector is dead (detected, confirmed).
    Dead(NodeId),
    /// A protector leaves of its own will.
    Leave(NodeId),
}

impl Change {
    /// The member that it is about.
    pub fn id(&self) -> &NodeId {
        match self {
            Change::Join(member) => &member.id,
            Change::Dead(id) | Change::Leave(id) => id,
        }
    }
}

/// Why something is not a view, or changes do not lead to one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadView {
    /// Views are numbered from 1.
    #[error("view number 0, or one after the last there is")]
    Number,
    /// No member of the view before is left, so none could tell the others.
    #[error("no member of the view before remains")]
    NoSurvivor,
    /// More than [`limits::MEMBERS`].
    #[error("more than {} members", limits::MEMBERS)]
    TooManyMembers,
    /// More than [`limits::DEPARTED`].
    #[error("more than {limit} former members", limit = limits::DEPARTED)]
    TooManyDeparted,
    /// Two members with one name.
    #[error("two members are named {0}")]
    NameTwice(NodeName),
    /// A former member would come back.
    #[error("{0:?} has departed before")]
    Departed(NodeId),
    /// A member without a decided role.
    #[error("{0:?} is neither a node nor a spare")]
    Newcomer(NodeId),
    /// A node is removed that is no member, or one is removed twice.
    #[error("{0:?} is not a member")]
    NotAMember(NodeId),
}

impl View {
    /// View 1 of a new cluster.
    pub fn founded_by(founder: Member) -> View {
        let founder = admitted(founder, &[], &[]);
        View { cluster: founder.id.boot, number: 1, members: vec![founder], departed: Vec::new() }
    }

    /// The member `id`, in exactly that boot.
    pub fn get(&self, id: &NodeId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == *id)
    }

    /// The member with this name, in any boot.
    pub fn named(&self, name: &NodeName) -> Option<&Member> {
        self.members.iter().find(|member| member.id.name == *name)
    }

    /// How `id` departed, if it did (and not too long ago).
    pub fn departure(&self, id: &NodeId) -> Option<Departure> {
        self.departed(id).map(|departed| departed.how)
    }

    /// The former member `id`, if it is one (and did not depart too long ago).
    pub fn departed(&self, id: &NodeId) -> Option<&Departed> {
        self.departed.iter().find(|departed| departed.id == *id)
    }

    /// Whether `ip` is the address of a machine that was declared dead, and of no member.
    pub fn is_dead(&self, ip: IpAddr) -> bool {
        let died = |departed: &Departed| departed.data == ip && departed.how == Departure::Died;
        self.departed.iter().any(died) && !self.members.iter().any(|member| member.data == ip)
    }

    /// The members that host ranks from the start: each is protected by the next, the last by the first.
    pub fn ring(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.role == Role::Node)
    }

    /// The view that follows when `changes` are made: removals first, then joins in their order, so that a dead member's successor of
    /// the same name may enter at once.
    ///
    /// # Errors
    /// The changes do not fit this view.
    pub fn next(&self, changes: &[Change]) -> Result<View, BadView> {
        let mut gone = BTreeSet::new();
        let mut departed = self.departed.clone();
        for change in changes {
            let how = match change {
                Change::Join(_) => continue,
                Change::Dead(_) => Departure::Died,
                Change::Leave(_) => Departure::Left,
            };
            if !gone.insert(change.id()) {
                return Err(BadView::NotAMember(change.id().clone()));
            }
            let Some(member) = self.get(change.id()) else { return Err(BadView::NotAMember(change.id().clone())) };
            departed.push(Departed { id: member.id.clone(), data: member.data, how });
        }
        let survivors = self.members.iter().filter(|member| !gone.contains(&member.id));
        let mut members: Vec<Member> = survivors.cloned().collect();
        if members.is_empty() {
            return Err(BadView::NoSurvivor);
        }
        for change in changes {
            if let Change::Join(member) = change {
                members.push(admitted(member.clone(), &members, &departed));
            }
        }
        let departed = departed.split_off(departed.len().saturating_sub(limits::DEPARTED));
        let number = self.number.checked_add(1).ok_or(BadView::Number)?;
        let next = View { cluster: self.cluster, number, members, departed };
        next.check()?;
        Ok(next)
    }

    /// Checks what the fields promise; for views that come from others.
    ///
    /// # Errors
    /// Says which promise is broken.
    pub fn check(&self) -> Result<(), BadView> {
        if self.number == 0 {
            return Err(BadView::Number);
        }
        if self.members.is_empty() {
            return Err(BadView::NoSurvivor);
        }
        if self.members.len() > limits::MEMBERS {
            return Err(BadView::TooManyMembers);
        }
        if self.departed.len() > limits::DEPARTED {
            return Err(BadView::TooManyDeparted);
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = self.members.iter().find(|member| !names.insert(&member.id.name)) {
            return Err(BadView::NameTwice(twice.id.name.clone()));
        }
        if let Some(undecided) = self.members.iter().find(|member| member.role == Role::Newcomer) {
            return Err(BadView::Newcomer(undecided.id.clone()));
        }
        let departed: BTreeSet<&NodeId> = self.departed.iter().map(|departed| &departed.id).collect();
        match self.members.iter().find(|member| departed.contains(&member.id)) {
            Some(back) => Err(BadView::Departed(back.id.clone())),
            None => Ok(()),
        }
    }
}

/// The member as it joins these: a newcomer gets its role. It is a spare only while more than half of the members are nodes: else
/// a cluster whose machines die and come back, one after the other, would end with spares alone.
fn admitted(mut member: Member, members: &[Member], departed: &[Departed]) -> Member {
    if member.role == Role::Newcomer {
        let has_died = departed.iter().any(|gone| gone.id.name == member.id.name && gone.how == Departure::Died);
        let nodes = members.iter().filter(|member| member.role == Role::Node).count();
        member.role = if has_died && 2 * nodes > members.len() { Role::Spare } else { Role::Node };
    }
    member
}

/// A ballot of one consensus instance. Round 0 belongs to the first member of the view, which needs no promise for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ballot {
    /// The round.
    pub round: u64,
    /// The member that proposes.
    pub proposer: NodeId,
}

/// A value under a ballot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The ballot.
    pub ballot: Ballot,
    /// What the next view changes: at most [`limits::MEMBERS`] joins and as many removals.
    pub changes: Vec<Change>,
}

/// Why a protector cannot join now. It may keep asking.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// A live member has that name.
    #[error("the name {name} is in use by the protector at {address}: choose another with --name, or stop that one")]
    NameInUse {
        /// The name.
        name: NodeName,
        /// The address of the node that has it.
        address: SocketAddr,
    },
    /// The view is as large as a view may be.
    #[error("the cluster has {} members, the most that it may have", limits::MEMBERS)]
    Full,
    /// The cluster has lost its majority and can decide nothing.
    #[error("the cluster is frozen: only {reachable} of its members answer, and {needed} are needed to decide anything")]
    Frozen {
        /// Members that answer.
        reachable: u32,
        /// The majority.
        needed: u32,
    },
}

/// What membership machines send each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipMessage {
    /// The sender's cluster; none while it joins.
    pub cluster: Option<BootId>,
    /// The sender's view number, 0 while it joins. All that is said about consensus is said about the view after this one.
    pub view: u64,
    /// What it says.
    pub body: MembershipBody,
}

/// The content of a [`MembershipMessage`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembershipBody {
    /// To the member that is believed to lead, or from a joiner to any member: put these changes in the next view. Repeated until they are.
    Request(Vec<Change>),
    /// To a joiner.
    Refused(Refusal),
    /// Phase 1.
    Prepare(Ballot),
    /// The answer to a `Prepare`: no lower ballot will be accepted.
    Promise {
        /// The ballot promised to.
        ballot: Ballot,
        /// What this acceptor has accepted already.
        accepted: Option<Proposal>,
    },
    /// Phase 2.
    Accept(Proposal),
    /// The answer to an `Accept`.
    Accepted(Ballot),
    /// The answer to a `Prepare` or `Accept` that comes too late.
    Rejected {
        /// The ballot refused.
        ballot: Ballot,
        /// The higher one that was promised.
        promised: Ballot,
    },
    /// The sender's view, as the changes that led to it from the view before.
    Decided {
        /// The changes.
        changes: Vec<Change>,
        /// The root of the tree by which this spreads: an index into the members of the new view.
        root: u32,
    },
    /// The sender's view, whole: to joiners, and to nodes that are no members of it any more.
    Newest(View),
    /// How the sender's view came about: the changes that led to it and to each of the views before it, oldest first. To members that
    /// have fallen behind. At most [`limits::REMEMBERED_CHANGES`], and more only if they are those of one view.
    Steps(Vec<Vec<Change>>),
    /// The sender cannot say how its view came of the receiver's, which is older.
    Forgotten,
    /// If the receiver's view is newer than the sender's: please say how it came about. If it is older, the receiver asks in turn.
    Ask,
    /// Please find out whether this member answers.
    ProbeRequest(NodeId),
    /// The answer to a `ProbeRequest`.
    ProbeResult {
        /// The suspected member.
        target: NodeId,
        /// The suspect answered, in that boot.
        alive: bool,
    },
    /// The sender could reach only these members (itself included), which are no majority.
    Frozen(Vec<NodeId>),
    /// The sender reaches a majority again.
    Thawed,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, boot: u64) -> Member {
        let id = NodeId { name: name.parse().unwrap(), boot: BootId(boot) };
        Member {
            id,
            address: "127.0.0.1:1".parse().unwrap(),
            data: [127, 0, 0, 1].into(),
            log_port: 1,
            role: Role::Node,
            slots: 1,
        }
    }

    #[test]
    fn removals_come_before_joins() {
        let one = View::founded_by(member("a", 1)).next(&[Change::Join(member("b", 1))]).unwrap();
        let two = one.next(&[Change::Join(member("b", 2)), Change::Dead(member("b", 1).id)]).unwrap();
        assert_eq!(two.number, 3);
        assert_eq!(two.members, [member("a", 1), member("b", 2)]);
        assert_eq!(two.departure(&member("b", 1).id), Some(Departure::Died));
    }

    #[test]
    fn a_machine_is_dead_until_a_member_is_there_again() {
        let there = |boot, data: [u8; 4]| Member { data: data.into(), ..member("b", boot) };
        let (data, id) = ([10, 0, 0, 2], member("b", 1).id);
        let one = View::founded_by(member("a", 1)).next(&[Change::Join(there(1, data))]).unwrap();
        assert!(!one.is_dead(data.into()));
        let dead = one.next(&[Change::Dead(id.clone())]).unwrap();
        assert!(dead.is_dead(data.into()) && !dead.is_dead([10, 0, 0, 3].into()));
        assert!(!dead.next(&[Change::Join(there(2, data))]).unwrap().is_dead(data.into()));
        assert!(!one.next(&[Change::Leave(id)]).unwrap().is_dead(data.into()), "it left in order");
    }

    #[test]
    fn changes_that_do_not_fit_are_refused() {
        let view = View::founded_by(member("a", 1)).next(&[Change::Join(member("b", 1))]).unwrap();
        let (a, b) = (member("a", 1).id, member("b", 1).id);
        let dead = |id: &NodeId| Change::Dead(id.clone());
        assert_eq!(view.next(&[dead(&a), dead(&b)]), Err(BadView::NoSurvivor));
        assert_eq!(view.next(&[dead(&a), dead(&b), Change::Join(member("c", 1))]), Err(BadView::NoSurvivor));
        assert_eq!(view.next(&[dead(&a), Change::Leave(a.clone())]), Err(BadView::NotAMember(a.clone())));
        let stranger = member("a", 2).id;
        assert_eq!(view.next(&[dead(&stranger)]), Err(BadView::NotAMember(stranger)));
        assert_eq!(view.next(&[Change::Join(member("a", 2))]), Err(BadView::NameTwice(a.name.clone())));
        let without_b = view.next(&[dead(&b)]).unwrap();
        assert_eq!(without_b.next(&[Change::Join(member("b", 1))]), Err(BadView::Departed(b)));
    }

    #[test]
    fn there_is_no_view_after_the_last_number() {
        let last = View { number: u64::MAX, ..View::founded_by(member("a", 1)) };
        assert_eq!(last.check(), Ok(()));
        assert_eq!(last.next(&[Change::Join(member("b", 1))]), Err(BadView::Number));
    }

    #[test]
    fn a_newcomer_is_a_node_and_after_its_death_a_spare() {
        let newcomer = |name: &str, boot| Member { role: Role::Newcomer, ..member(name, boot) };
        let founded = View::founded_by(newcomer("a", 1));
        assert_eq!(founded.members[0].role, Role::Node);
        let joined = founded.next(&[Change::Join(newcomer("b", 1))]).unwrap();
        assert_eq!(joined.members[1].role, Role::Node);
        let roles = |view: &View| view.members.iter().map(|member| member.role).collect::<Vec<_>>();
        // Its death and its return may be in one change, or far from each other.
        let b = joined.members[1].id.clone();
        let at_once = joined.next(&[Change::Dead(b.clone()), Change::Join(newcomer("b", 2))]).unwrap();
        assert_eq!(roles(&at_once), [Role::Node, Role::Spare]);
        let dead = joined.next(&[Change::Dead(b.clone())]).unwrap();
        let later = dead.next(&[Change::Join(newcomer("b", 2)), Change::Join(newcomer("c", 1))]).unwrap();
        assert_eq!(roles(&later), [Role::Node, Role::Spare, Role::Node]);
        // It has left in order: nothing has taken its place.
        let left = joined.next(&[Change::Leave(b), Change::Join(newcomer("b", 2))]).unwrap();
        assert_eq!(roles(&left), [Role::Node, Role::Node]);
        // No more spares than nodes.
        let a = at_once.members[0].id.clone();
        assert_eq!(roles(&at_once.next(&[Change::Dead(a), Change::Join(newcomer("a", 2))]).unwrap()), [Role::Spare, Role::Node]);
        let mut bad = joined;
        bad.members[1].role = Role::Newcomer;
        assert_eq!(bad.check(), Err(BadView::Newcomer(bad.members[1].id.clone())));
    }

    #[test]
    fn the_list_of_departed_is_bounded() {
        let mut view = View::founded_by(member("a", 1));
        for boot in 0..2_000 {
            view = view.next(&[Change::Join(member("b", boot))]).unwrap().next(&[Change::Leave(member("b", boot).id)]).unwrap();
        }
        assert_eq!(view.departed.len(), limits::DEPARTED);
        assert_eq!(view.departure(&member("b", 1_999).id), Some(Departure::Left));
        assert_eq!(view.departure(&member("b", 0).id), None);
    }
}
