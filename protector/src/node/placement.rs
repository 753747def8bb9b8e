//! Where the ranks of a job go, at the start and after the loss of a node.

use std::collections::BTreeMap;

use radic_wire::ids::{NodeId, NodeName};
use radic_wire::job::{JobSpec, MapBy, Placement, RestartOn};
use radic_wire::membership::{Member, Role, View};

/// Why a job cannot be placed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// There is no node of that name.
    #[error("there is no node {name}; the nodes are {known}")]
    Unknown {
        /// The name.
        name: NodeName,
        /// The nodes that there are.
        known: String,
    },
    /// A node that was named is a spare.
    #[error("{0} is a spare: it hosts ranks only when a node has died")]
    Spare(NodeName),
    /// A node that was named is a witness.
    #[error("{0} is a witness: it votes, and never hosts ranks")]
    Witness(NodeName),
    /// A node was named twice.
    #[error("{0} was named twice")]
    Twice(NodeName),
    /// All members are spares and witnesses.
    #[error("the cluster has no node that hosts ranks: every member is a spare or a witness")]
    Empty,
}

/// Places the ranks of `spec` on the members of `view`.
///
/// By node: round robin. By slot: each node's slots in turn, and again from the first node when all are taken, so more ranks than
/// slots are possible.
pub fn place(spec: &JobSpec, view: &View) -> Result<Placement, PlacementError> {
    let nodes = chosen(spec, view)?;
    let count = nodes.len() as u32;
    let mut order: Vec<u32> = match spec.map_by {
        MapBy::Node => (0..count).collect(),
        MapBy::Slot => (0..).zip(&nodes).flat_map(|(i, node)| std::iter::repeat_n(i, node.slots.max(1) as usize)).collect(),
    };
    // The ranks go round this order. Only the nodes that get one are part of the job.
    order.truncate(spec.ranks as usize);
    let rank_nodes: Vec<u32> = order.iter().copied().cycle().take(spec.ranks as usize).collect();
    let used = order.iter().max().map_or(0, |last| *last as usize + 1);
    let nodes = nodes[..used].iter().map(|m| m.id.clone()).collect();
    let placement = Placement { nodes, rank_nodes };
    assert!(placement.is_valid(spec.ranks), "every rank is on a node, and every node has a rank");
    Ok(placement)
}

/// Where the ranks of `lost` go on, which is no member of `view` any more and had `protector` for its protector (docs/design.md:
/// placement). This is a pure function, so that every node that has something of the job computes the same placement without a
/// message. None if there is no node to go on.
///
/// All of them go to one node, unless `how` is [`RestartOn::Any`]. Among equals the first in the view is taken.
pub fn replace(view: &View, old: &Placement, lost: &NodeId, protector: &NodeId, how: RestartOn) -> Option<Placement> {
    let node_of = |rank: usize| &old.nodes[old.rank_nodes[rank] as usize];
    let mut counts: BTreeMap<&NodeId, u32> = BTreeMap::new();
    (0..old.rank_nodes.len()).for_each(|rank| *counts.entry(node_of(rank)).or_default() += 1);
    let hosts = view.members.iter().filter(|m| m.role != Role::Witness);
    let mut hosts: Vec<(&Member, u32)> = hosts.map(|m| (m, counts.get(&m.id).copied().unwrap_or(0))).collect();
    let mut next = || {
        let by = |wanted: &dyn Fn(&Member) -> bool| {
            let fitting = hosts.iter().enumerate().filter(|(_, (member, _))| wanted(member));
            fitting.min_by_key(|(_, (_, count))| *count).map(|(at, _)| at)
        };
        let spare = || by(&|member| member.role == Role::Spare);
        let own = || by(&|member| member.id == *protector);
        let any = || by(&|member| member.role == Role::Node).or_else(spare);
        let at = match how {
            RestartOn::Spare => spare().or_else(own).or_else(any),
            RestartOn::Protector => own().or_else(any),
            RestartOn::Any => any(),
        }?;
        hosts[at].1 += 1;
        Some(hosts[at].0.id.clone())
    };
    let target = next()?;
    let mut first = Some(target.clone());
    let mut nodes: Vec<NodeId> = Vec::new();
    let mut places: BTreeMap<NodeId, u32> = BTreeMap::new();
    let mut rank_nodes = Vec::with_capacity(old.rank_nodes.len());
    for rank in 0..old.rank_nodes.len() {
        let node = match node_of(rank) {
            node if node != lost => node.clone(),
            _ if how == RestartOn::Any => first.take().or_else(&mut next)?,
            _ => target.clone(),
        };
        let at = places.get(&node).copied().unwrap_or_else(|| {
            let at = nodes.len() as u32;
            places.insert(node.clone(), at);
            nodes.push(node);
            at
        });
        rank_nodes.push(at);
    }
    let placement = Placement { nodes, rank_nodes };
    assert!(placement.is_valid(old.rank_nodes.len() as u32), "every rank is on a node, and every node has a rank");
    Some(placement)
}

fn chosen<'a>(spec: &JobSpec, view: &'a View) -> Result<Vec<&'a Member>, PlacementError> {
    if spec.nodes.is_empty() {
        let nodes: Vec<_> = view.members.iter().filter(|m| m.role == Role::Node).collect();
        return if nodes.is_empty() { Err(PlacementError::Empty) } else { Ok(nodes) };
    }
    let mut nodes: Vec<&Member> = Vec::new();
    for name in &spec.nodes {
        let found = view.members.iter().find(|m| m.id.name == *name);
        let node = found.ok_or_else(|| {
            let known: Vec<_> =
                view.members.iter().filter(|m| m.role == Role::Node).take(20).map(|m| m.id.name.as_str()).collect();
            PlacementError::Unknown { name: name.clone(), known: known.join(", ") }
        })?;
        match node.role {
            Role::Node | Role::Newcomer => {}
            Role::Spare => return Err(PlacementError::Spare(name.clone())),
            Role::Witness => return Err(PlacementError::Witness(name.clone())),
        }
        if nodes.iter().any(|n| n.id == node.id) {
            return Err(PlacementError::Twice(name.clone()));
        }
        nodes.push(node);
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use radic_wire::ids::{BootId, NodeId};
    use serde_bytes::ByteBuf;

    use super::*;
    use radic_wire::process::Protection;

    fn view(nodes: u32, spares: u32, slots: u32) -> View {
        let member = |i: u32| Member {
            id: NodeId { name: format!("n{i}").parse().unwrap(), boot: BootId(u64::from(i)) },
            address: ([127, 0, 0, 1], 1000 + i as u16).into(),
            data: [127, 0, 0, 1].into(),
            log_port: 1,
            role: if i < nodes { Role::Node } else { Role::Spare },
            slots,
        };
        View { cluster: BootId(1), number: 1, members: (0..nodes + spares).map(member).collect(), departed: vec![] }
    }

    fn spec(ranks: u32, map_by: MapBy, nodes: &[&str]) -> JobSpec {
        let nodes = nodes.iter().map(|n| n.parse().unwrap()).collect();
        let (program, args, dir) = (ByteBuf::from("/bin/true"), vec![ByteBuf::from("true")], ByteBuf::from("/"));
        let protection = Protection::default();
        JobSpec {
            program,
            args,
            env: vec![],
            templates: vec![],
            dir,
            ranks,
            nodes,
            map_by,
            umask: 0o022,
            protection,
            mtbf_s: 1,
            restart_on: radic_wire::job::RestartOn::default(),
            on_loss: radic_wire::job::OnLoss::default(),
            life: 0,
        }
    }

    fn names(placement: &Placement) -> Vec<&str> {
        placement.rank_nodes.iter().map(|&n| placement.nodes[n as usize].name.as_str()).collect()
    }

    #[test]
    fn by_node_goes_round_and_by_slot_fills() {
        let view = view(3, 1, 2);
        assert_eq!(names(&place(&spec(5, MapBy::Node, &[]), &view).unwrap()), ["n0", "n1", "n2", "n0", "n1"]);
        assert_eq!(names(&place(&spec(5, MapBy::Slot, &[]), &view).unwrap()), ["n0", "n0", "n1", "n1", "n2"]);
        assert_eq!(
            names(&place(&spec(7, MapBy::Slot, &["n2", "n0"]), &view).unwrap()),
            ["n2", "n2", "n0", "n0", "n2", "n2", "n0"]
        );
        assert_eq!(place(&spec(1, MapBy::Node, &[]), &view).unwrap().nodes.len(), 1);
    }

    #[test]
    fn what_cannot_be_placed_is_named() {
        let view = view(2, 1, 1);
        assert!(matches!(place(&spec(1, MapBy::Node, &["x"]), &view), Err(PlacementError::Unknown { .. })));
        assert!(matches!(place(&spec(1, MapBy::Node, &["n2"]), &view), Err(PlacementError::Spare(_))));
        assert!(matches!(place(&spec(1, MapBy::Node, &["n1", "n1"]), &view), Err(PlacementError::Twice(_))));
        assert_eq!(place(&spec(1, MapBy::Node, &[]), &self::view(0, 2, 1)), Err(PlacementError::Empty));
    }

    proptest! {
        #[test]
        fn every_placement_is_valid_and_even(nodes in 1u32..20, slots in 0u32..5, ranks in 1u32..100, by_slot: bool) {
            let map_by = if by_slot { MapBy::Slot } else { MapBy::Node };
            let placement = place(&spec(ranks, map_by, &[]), &view(nodes, 0, slots)).unwrap();
            prop_assert!(placement.is_valid(ranks));
            let counts: Vec<_> = placement.nodes.iter().map(|n| placement.ranks_on(n).count()).collect();
            let spread = counts.iter().max().unwrap() - counts.iter().min().unwrap();
            let most = if by_slot { slots.max(1) as usize } else { 1 };
            prop_assert!(spread <= most, "{:?}", counts);
        }
    }

    #[test]
    fn lost_ranks_go_to_a_spare_to_the_protector_or_to_whoever_has_few() {
        let view = view(4, 1, 1);
        let placed = place(&spec(6, MapBy::Node, &[]), &view).unwrap();
        let lost = view.members[1].id.clone();
        let protector = view.members[2].id.clone();
        let without = |spares| {
            let mut view = view.clone();
            view.members.retain(|m| m.id != lost && (spares || m.role == Role::Node));
            view
        };
        let names = |placement: Placement| -> Vec<String> {
            (0..6).map(|rank| placement.node_of(radic_wire::ids::Rank(rank)).unwrap().name.to_string()).collect()
        };
        let replaced = |spares, how| names(replace(&without(spares), &placed, &lost, &protector, how).unwrap());
        let before = names(placed.clone());
        let changed = |after: Vec<String>| -> Vec<String> {
            let pairs = before.iter().zip(after);
            pairs.filter(|(before, _)| **before == lost.name.to_string()).map(|(_, after)| after).collect()
        };
        let name = |i: usize| view.members[i].id.name.to_string();
        assert_eq!(changed(replaced(true, RestartOn::Spare)), [name(4), name(4)], "both to the spare");
        assert_eq!(changed(replaced(false, RestartOn::Spare)), [name(2), name(2)], "no spare: both to the protector");
        assert_eq!(changed(replaced(true, RestartOn::Protector)), [name(2), name(2)]);
        assert_eq!(changed(replaced(true, RestartOn::Any)), [name(2), name(3)], "those that have one");
        let empty = View { members: vec![], ..view.clone() };
        assert_eq!(replace(&empty, &placed, &lost, &protector, RestartOn::Spare), None);
        let mut alone = without(false);
        alone.members.retain(|m| m.id == protector);
        alone.members[0].role = Role::Witness;
        assert_eq!(
            replace(&alone, &placed, &lost, &protector, RestartOn::Protector),
            None,
            "a witness hosts nothing, though it has the log"
        );
    }
}
