//! Where the ranks of a new job go.

use radic_wire::ids::NodeName;
use radic_wire::job::{JobSpec, MapBy, Placement};
use radic_wire::membership::{Member, View};

/// Why a job cannot be placed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// A node that was named is not there.
    #[error("there is no node {name}; the nodes are {known}")]
    Unknown {
        /// The name.
        name: NodeName,
        /// Those that are there.
        known: String,
    },
    /// A node that was named is a spare.
    #[error("{0} is a spare: it hosts ranks only when a node has died")]
    Spare(NodeName),
    /// A node was named twice.
    #[error("{0} was named twice")]
    Twice(NodeName),
    /// There is nothing but spares.
    #[error("the cluster has no node that hosts ranks: every member is a spare")]
    Empty,
}

/// Places the ranks of `spec` on the members of `view`.
///
/// By node: round robin. By slot: each node's slots in turn, and again from the first node when all are taken, so that more ranks
/// than slots work.
pub fn place(spec: &JobSpec, view: &View) -> Result<Placement, PlacementError> {
    let nodes = chosen(spec, view)?;
    let count = nodes.len() as u32;
    let mut order: Vec<u32> = match spec.map_by {
        MapBy::Node => (0..count).collect(),
        MapBy::Slot => (0..).zip(&nodes).flat_map(|(i, node)| std::iter::repeat_n(i, node.slots.max(1) as usize)).collect(),
    };
    // Ranks go round this order; only the nodes that get one are part of the job.
    order.truncate(spec.ranks as usize);
    let rank_nodes: Vec<u32> = order.iter().copied().cycle().take(spec.ranks as usize).collect();
    let used = order.iter().max().map_or(0, |last| *last as usize + 1);
    let nodes = nodes[..used].iter().map(|m| m.id.clone()).collect();
    let placement = Placement { nodes, rank_nodes };
    assert!(placement.is_valid(spec.ranks), "every rank is on a node, and every node has a rank");
    Ok(placement)
}

fn chosen<'a>(spec: &JobSpec, view: &'a View) -> Result<Vec<&'a Member>, PlacementError> {
    if spec.nodes.is_empty() {
        let nodes: Vec<_> = view.members.iter().filter(|m| !m.spare).collect();
        return if nodes.is_empty() { Err(PlacementError::Empty) } else { Ok(nodes) };
    }
    let mut nodes: Vec<&Member> = Vec::new();
    for name in &spec.nodes {
        let found = view.members.iter().find(|m| m.id.name == *name);
        let node = found.ok_or_else(|| {
            let known: Vec<_> = view.members.iter().filter(|m| !m.spare).take(20).map(|m| m.id.name.as_str()).collect();
            PlacementError::Unknown { name: name.clone(), known: known.join(", ") }
        })?;
        if node.spare {
            return Err(PlacementError::Spare(name.clone()));
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
            log_port: 1,
            spare: i >= nodes,
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
}
