//! What was started on other machines: kept in the cluster's folder, so that `radic cluster stop` can end it.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use radic_protector::folder::Folder;
use radic_wire::ids::NodeName;
use serde::{Deserialize, Serialize};

/// The file.
const FILE: &str = "hosts.json";
/// Longest file, in bytes.
const LIMIT: u64 = 4 << 20;

/// Nodes that are named in messages.
const NAMED: usize = 8;

/// A node on another machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Remote {
    /// What the remote shell is given.
    pub(crate) target: String,
    pub(crate) name: NodeName,
}

/// What was started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The words of the remote shell.
    pub(crate) shell: Vec<String>,
    /// Whether a batch system runs them, and ends them with its job.
    pub(crate) batch: bool,
    /// Where RADIC is on the hosts.
    pub(crate) prefix: PathBuf,
    pub(crate) nodes: Vec<Remote>,
}

impl Record {
    /// The names of the nodes; of very many only the first.
    pub(crate) fn names(&self) -> String {
        let mut names: Vec<&str> = self.nodes.iter().take(NAMED).map(|node| node.name.as_str()).collect();
        if self.nodes.len() > NAMED {
            names.push("...");
        }
        names.join(", ")
    }

    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        let what = || format!("cannot write {}", dir.join(FILE).display());
        let bytes = serde_json::to_vec(self).with_context(what)?;
        Folder::open(dir)?.replace(FILE)?.write_all(&bytes).with_context(what)
    }

    /// What was started from this folder; none if that is nothing.
    pub(crate) fn read(dir: &Path) -> Result<Option<Record>> {
        let what = || format!("cannot read {}; remove it if no node of this cluster runs any more", dir.join(FILE).display());
        if !dir.exists() {
            return Ok(None);
        }
        let file = match Folder::open(dir).and_then(|folder| folder.read(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.with_context(what)?,
        };
        let mut bytes = Vec::new();
        file.take(LIMIT).read_to_end(&mut bytes).with_context(what)?;
        serde_json::from_slice(&bytes).map(Some).with_context(what)
    }

    pub(crate) fn remove(dir: &Path) -> Result<()> {
        Ok(Folder::open(dir)?.remove(FILE)?)
    }
}
