//! `radic spare`: the nodes that stand aside until another has died.

use anyhow::Result;
use clap::Subcommand;
use radic_wire::local::{NodeInfo, NodeState};
use radic_wire::membership::Role;

use crate::client::{Cluster, ask_status};
use crate::format::{Format, Table, print, print_json};

#[derive(Subcommand)]
pub(crate) enum SpareCommand {
    /// List the spares, and say which of them are free
    #[command(after_help = "Example:\n  radic spare list --json\n\n\
        A spare hosts nothing until a node dies; then it takes that node's ranks. A node joins as a spare by `radicd --spare`, also one that \
        was another kind of node before it died.")]
    List {
        #[command(flatten)]
        format: Format,
    },
}

/// `radic spare`.
pub(crate) fn dispatch(cluster: &Cluster, command: SpareCommand) -> Result<()> {
    let SpareCommand::List { format } = command;
    let mut nodes = ask_status(cluster)?.nodes;
    nodes.retain(is_there);
    if format.json { print_json(&nodes) } else { Ok(print(&table(&nodes))?) }
}

/// Whether it is a spare that may still be one.
fn is_there(node: &NodeInfo) -> bool {
    node.role == Role::Spare && !matches!(node.state, NodeState::Dead | NodeState::Left)
}

/// What a spare is at.
pub(crate) fn use_of(node: &NodeInfo) -> &'static str {
    match (node.state, node.ranks.is_empty()) {
        (NodeState::Silent, _) => "silent",
        (_, true) => "free",
        (_, false) => "in use",
    }
}

fn table(nodes: &[NodeInfo]) -> String {
    if nodes.is_empty() {
        return "no spares: a node joins as one by `radicd --spare`\n".to_owned();
    }
    let mut table = Table::new(&["SPARE", "STATE", "ADDRESS", ">RANKS", "PROTECTOR"]);
    for node in nodes {
        table.row(vec![
            node.name.to_string(),
            use_of(node).to_owned(),
            node.address.to_string(),
            node.ranks.len().to_string(),
            node.protector.as_ref().map_or("-".to_owned(), ToString::to_string),
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use radic_wire::ids::{JobId, Rank};
    use radic_wire::report::RankInfo;

    use super::*;
    use crate::show;

    fn node(name: &str, state: NodeState, role: Role, ranks: usize) -> NodeInfo {
        let rank = RankInfo { job: JobId::from_bits(7), rank: Rank(0), pid: 77 };
        NodeInfo { ranks: vec![rank; ranks], protector: None, ..show::tests::node(name, state, role) }
    }

    #[test]
    fn spares_are_free_or_in_use_and_dead_ones_are_none() {
        let mut nodes = vec![
            node("n1", NodeState::Alive, Role::Node, 1),
            node("s1", NodeState::Alive, Role::Spare, 0),
            node("s2", NodeState::Alive, Role::Spare, 2),
            node("w1", NodeState::Alive, Role::Witness, 0),
            node("s3", NodeState::Dead, Role::Spare, 0),
        ];
        nodes.retain(is_there);
        assert_eq!(
            table(&nodes),
            "SPARE  STATE   ADDRESS          RANKS  PROTECTOR\n\
             s1     free    127.0.0.1:40001      0  -\n\
             s2     in use  127.0.0.1:40001      2  -\n"
        );
        assert!(table(&[]).starts_with("no spares"));
    }
}
