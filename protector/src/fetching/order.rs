//! The order to bring a process back.

use std::net::SocketAddr;

use radic_wire::ids::{Incarnation, ProcessId};

/// A process to be brought back from its images, as a new incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreOrder {
    /// The process.
    pub process: ProcessId,
    /// Its new incarnation.
    pub incarnation: Incarnation,
    /// The log service that has its images.
    pub log: SocketAddr,
    /// Whether that log service is this node's own.
    pub local: bool,
    /// Another log service that has copies of the images, if there is one: for an image that is damaged.
    pub replica: Option<SocketAddr>,
    /// Its images, a full one first, then its increments: numbers and sizes.
    pub images: Vec<(u64, u64)>,
    /// The name of its key space.
    pub kvsname: String,
    /// Whether its standard input is a pipe from the daemon. Otherwise it is empty.
    pub stdin: bool,
    /// The library that it runs under.
    pub library: String,
}

impl RestoreOrder {
    /// Whether this signal for the process gives an order up whose images are not here yet. There is no process that could take
    /// it: the order is answered by an error. Any other signal is not for a process that is not there.
    pub fn is_given_up_by(signal: i32) -> bool {
        matches!(signal, libc::SIGKILL | libc::SIGTERM)
    }
}
