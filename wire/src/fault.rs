//! Faults of a node that pass. Tests ask for them.

use serde::{Deserialize, Serialize};

/// A fault of a node that passes, for tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The node's daemon and every process it hosts are stopped.
    Pause {
        /// For how long, in milliseconds.
        ms: u64,
    },
    /// The node's links are down.
    Cut {
        /// For how long, in milliseconds.
        ms: u64,
    },
}
