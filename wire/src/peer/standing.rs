//! What one node knows of processes that another one hosts, so that it can stand in for it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::determinant::StreamId;
use crate::ids::{Incarnation, NodeId, NodeName, Rank};
use crate::job::{ExitStatus, Ward};
use crate::process::StreamEnd;

/// What a protector tells the node that has the copies of logs, and stands in for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The host of these ranks.
    pub host: NodeId,
    /// What the protector knows of each.
    pub ranks: Vec<Stood>,
    /// The job of these ranks.
    pub ward: Ward,
}

/// What a protector knows of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stood {
    /// Which.
    pub rank: Rank,
    /// The process's incarnation.
    pub incarnation: Incarnation,
    /// The address of the node where the process was first launched, if that is not its host.
    pub origin: Option<IpAddr>,
    /// How the process has ended, if it has ended by itself.
    pub left: Option<Left>,
}

/// How a process has ended by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// How.
    pub status: ExitStatus,
    /// How far it had come with MPI.
    pub phase: MpiPhase,
    /// The ends of what it has sent.
    pub finals: Vec<(StreamId, StreamEnd)>,
}

/// How a process that was live has crashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crashed {
    /// The node where it ran.
    pub node: NodeName,
    /// The signal that has ended it.
    pub signal: i32,
}

/// How far a process has come with MPI, as its PMI connection shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MpiPhase {
    /// The process has not called `MPI_Init`: perhaps it is no MPI program.
    Before,
    /// The process is between `MPI_Init` and `MPI_Finalize`: others may wait for it.
    Within,
    /// The process has called `MPI_Finalize`: no rank waits for it from then on.
    After,
}
