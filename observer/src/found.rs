//! What the nodes say of an address that the program calls.

use std::net::SocketAddr;

use radic_wire::ids::ProcessId;
use radic_wire::process::Machine;

/// The protected process that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Which.
    pub process: ProcessId,
    /// Where the process is now, if it has moved.
    pub at: Option<SocketAddr>,
}

/// What the nodes say of an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    /// The protected process that listens there.
    pub peer: Option<Peer>,
    /// No process listens there, but one that may have listened there is lost, and on its way back.
    pub later: bool,
    /// The machine of the address.
    pub machine: Machine,
}

impl Found {
    /// Whether `process`, which was called at the address and has not let the caller in (this `errno`), is there, or is on its way back. One that
    /// listens there as before, and lets nobody in for
    /// so long that the kernel gives up, has refused the call.
    pub fn is_there(&self, process: ProcessId, errno: i32) -> bool {
        /// ETIMEDOUT.
        const TIMED_OUT: i32 = 110;
        let is_same = |peer: Peer| peer.process == process && (errno != TIMED_OUT || peer.at.is_some());
        self.later || self.peer.is_some_and(is_same)
    }
}
