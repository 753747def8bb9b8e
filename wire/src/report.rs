//! What a node reports of itself: the ranks, processes and jobs that it knows, and what it holds of their logs. A command sees it, and so do other nodes.

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, NodeName, Rank};
use crate::job::JobInfo;
use crate::process::{Counters, Protect};

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The ranks that the node hosts.
    pub ranks: Vec<RankInfo>,
    /// The node's protected processes, running ones and some that have ended.
    pub processes: Vec<ProcessInfo>,
    /// The jobs whose home is the node, ended ones too.
    pub jobs: Vec<JobInfo>,
    /// The resident memory of the daemon, in bytes.
    pub memory: u64,
    /// The process id of the daemon.
    pub pid: u32,
}

/// A rank on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankInfo {
    /// The rank's job.
    pub job: JobId,
    /// The rank's number in the job.
    pub rank: Rank,
    /// The process id of the rank on its node.
    pub pid: u32,
}

/// A protected process, as `radic status --json` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// The process's job.
    pub job: JobId,
    /// The process's rank in the job.
    pub rank: Rank,
    /// Where it runs, or ran.
    pub node: NodeName,
    /// The process id there.
    pub pid: u32,
    /// Whether it has not ended.
    pub running: bool,
    /// How it is protected.
    pub protect: Protect,
    /// Whether its library has reported to the protector of its node: what does not run under it is not protected.
    pub joined: bool,
    /// Whether it is being brought back, or waits for its first checkpoint at another protector than before.
    pub degraded: bool,
    /// What it has counted, if that is known.
    pub counters: Option<Counters>,
    /// Processor time that it has used, in milliseconds, if it runs.
    pub cpu_ms: Option<u64>,
    /// Whether it is stopped, by SIGSTOP or a debugger.
    pub stopped: bool,
    /// What its protector holds of it, and its replica.
    pub logs: Vec<LogSizes>,
}

/// How much a node holds of a protected process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSizes {
    /// The node.
    pub node: NodeName,
    /// Bytes of journal that a restart needs.
    pub journal: u64,
    /// Bytes of received payload that a restart needs.
    pub payload: u64,
    /// Bytes of its images.
    pub images: u64,
    /// The newest committed image.
    pub committed: Option<u64>,
    /// Time since it was committed, in milliseconds.
    pub committed_ms: Option<u64>,
    /// Why what the process logs is not taken, or not acknowledged, for now: it waits as soon as its senders' memory is full.
    pub waits: Option<String>,
}

/// What became of a checkpoint of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankCheckpoint {
    /// The rank.
    pub rank: Rank,
    /// Where it runs.
    pub node: NodeName,
    /// The number of the committed image, or why there is none.
    pub result: Result<u64, String>,
}
