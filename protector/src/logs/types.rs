//! What the service is told at its start, and what is asked of it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use radic_wire::ids::{Incarnation, JobId, ProcessId};
use radic_wire::key::ClusterKey;
use radic_wire::log::{HeldLog, LogPart};
use radic_wire::record::Cover;
use tokio::sync::oneshot;

use crate::logserver::{Reply, Status, StoreOrder};
use crate::store::{NoRestart, Restart};

/// A disk that takes longer for one thing is told: a busy one takes seconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the service needs to know at its start.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address to listen on, at any free port.
    pub address: IpAddr,
    /// Where the files go. The directory belongs to this service alone. Logs and images of an earlier daemon are removed from it.
    pub dir: PathBuf,
    /// The cluster's key.
    pub key: ClusterKey,
    /// Acknowledge only what is in a file and on the disk (`--durable`).
    pub durable: bool,
    /// Bytes of log and images of one process in memory before they are written to files.
    pub memory: usize,
    /// Most bytes of one image.
    pub image: u64,
    /// Most processes. One more cannot log in.
    pub processes: usize,
    /// Most connections.
    pub connections: usize,
    /// Time after which it is told that the disk has not answered.
    pub patience: Duration,
    /// How what is said on connections is protected. What this service asks of another one is protected as that one wants.
    pub cover: Cover,
}

/// Why the service could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another daemon uses the directory.
    #[error("the store {0} is in use by another protector: give each its own (--store)")]
    InUse(PathBuf),
    /// The system refused something.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        error: std::io::Error,
    },
}

impl Config {
    /// The usual bounds.
    pub fn new(address: IpAddr, dir: PathBuf, key: ClusterKey) -> Self {
        Config {
            address,
            dir,
            key,
            durable: false,
            memory: 32 << 20,
            image: 1 << 40,
            processes: 16_384,
            connections: 65_536,
            patience: PATIENCE,
            cover: Cover::Encrypted,
        }
    }
}

/// Where the answer to a question goes.
pub type Answer<T> = oneshot::Sender<T>;

/// What the protector asks of the service.
#[derive(Debug)]
pub enum Request {
    Join,
    Order(Box<StoreOrder>, Answer<Reply>),
    List(ProcessId, Answer<Option<HeldLog>>),
    Read(ProcessId, LogPart, u64, usize, Answer<Result<Vec<u8>, String>>),
    Status(JobId, Answer<Vec<(ProcessId, Status)>>),
    Fence(ProcessId, Incarnation, Vec<Vec<u8>>, u64, Answer<Result<Restart, NoRestart>>),
    End,
    /// As if the disk did not answer until the other end is dropped.
    #[cfg(test)]
    Hang(std::sync::mpsc::Receiver<()>),
}
