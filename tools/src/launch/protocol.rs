//! What is said between `radic cluster start` and its agents: one line of JSON each, after a word that no login script prints.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result};
use radic_protector::address::Network;
use radic_wire::ids::NodeName;
use radic_wire::membership::Role;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::key::{KeyText, Proof};

/// The form of what is said here. It rises with every change of it.
pub(crate) const FORM: u32 = 2;
/// Longest line, in bytes: an order for thousands of nodes.
pub(crate) const LINE: usize = 1 << 20;
/// The first word of every line.
const WORD: &str = "radic-agent ";

/// The first line that an agent reads.
#[derive(Serialize, Deserialize)]
pub(crate) struct Order {
    /// The release that gives it.
    pub(crate) version: String,
    /// The cluster's folder, on every host.
    pub(crate) dir: PathBuf,
    /// Shows that the launcher has the key, which is not in an order: not everything that an order goes through is encrypted.
    pub(crate) proof: Proof,
    /// The port to listen on; 0: any.
    pub(crate) port: u16,
    /// The network of the daemons.
    pub(crate) control: Option<Network>,
    /// The network of the processes.
    pub(crate) data: Option<Network>,
    pub(crate) heartbeat_ms: Option<u64>,
    pub(crate) grace: Option<u64>,
    /// Where each node serves its page.
    pub(crate) http: Option<SocketAddr>,
    /// What each node is to be; an agent looks for its own.
    pub(crate) nodes: Vec<Assignment>,
    /// What nodes are to look for.
    pub(crate) watch: Option<Watch>,
}

/// When one node is lost and no job runs any more, one of the others is to run a command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Watch {
    /// The node that is to be lost.
    pub(crate) node: NodeName,
    /// For a shell.
    pub(crate) command: String,
}

/// What a node is to be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Assignment {
    pub(crate) name: NodeName,
    pub(crate) role: Role,
    pub(crate) slots: Option<u32>,
    /// Its address, or a name for it, where the launcher knows a better one than the host does itself.
    pub(crate) address: Option<String>,
}

/// What an agent is told after its order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Go {
    /// The key, for an agent that has none.
    Key(KeyText),
    /// The key is not sent: it is in the home folder, if that is the same one there.
    KeyAtHome,
    /// This node is to found the cluster.
    Found(NodeName),
    /// All others of these are to join it, through the node at this address.
    Join(Vec<NodeName>, SocketAddr),
    /// Whatever has been started is to stay when the launcher has ended.
    Keep,
}

/// What an agent says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Said {
    pub(crate) name: NodeName,
    pub(crate) what: What,
}

/// What an agent has to say of its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum What {
    /// It has no key.
    NeedsKey,
    /// It waits for its start. Others would reach it by this address.
    Here(IpAddr),
    /// It is a member.
    Ready { address: SocketAddr, pid: u32 },
    /// It is not going to be one.
    Failed(String),
    /// It has taken `Keep`.
    Kept,
}

/// A line, with its end.
pub(crate) fn line<T: Serialize>(message: &T) -> Result<String> {
    Ok(format!("{WORD}{}\n", serde_json::to_string(message).context("a message for an agent")?))
}

/// What a line says; none if another program has printed it.
///
/// # Errors
/// If the line is an agent's, and says something that is not known here.
pub(crate) fn parse<T: DeserializeOwned>(line: &str) -> Result<Option<T>> {
    let Some(text) = line.trim_end().strip_prefix(WORD) else { return Ok(None) };
    serde_json::from_str(text).map(Some).with_context(|| format!("not understood ({text:.80}): are both sides of one release?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard_and_noise_is_not() {
        let said = Said { name: "n1".parse().unwrap(), what: What::Here("10.0.0.1".parse().unwrap()) };
        assert_eq!(parse(&line(&said).unwrap()).unwrap(), Some(said));
        let join = Go::Join(vec!["n2".parse().unwrap()], "10.0.0.1:5".parse().unwrap());
        assert_eq!(parse(&line(&join).unwrap()).unwrap(), Some(join));
        assert_eq!(parse::<Said>("Welcome to n1\n").unwrap(), None);
        assert!(parse::<Said>("radic-agent {\"name\":\"n1\",\"what\":\"gone\"}").is_err());
    }
}
