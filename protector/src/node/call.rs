//! An attempt of a process to connect.

use std::net::SocketAddr;

use radic_wire::determinant::ConnectionId;

/// A connection that is about to be made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) connection: ConnectionId,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    /// The number of the question about it, as the caller's node counts its questions.
    pub(super) asked: u64,
}
