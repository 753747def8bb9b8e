//! What can go wrong. None of it comes from the program: its own mistakes get the system's errors.

use radic_wire::bytes::Malformed;
use radic_wire::determinant::{CALLS, ConnectionId};
use radic_wire::ids::{Incarnation, ProcessId};

/// Why the observer cannot go on, or not with this call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A bound was reached that the caller should have asked about before.
    #[error("the {0} is full")]
    Full(&'static str),
    /// A thread that has not begun, or a number of one that cannot be.
    #[error("there is no thread {0}")]
    Thread(u32),
    /// More threads at once than are watched.
    #[error("more than {0} threads use protected sockets at once")]
    Threads(usize),
    /// The descriptor is none of a protected connection.
    #[error("descriptor {0} is no protected connection")]
    Descriptor(u32),
    /// The descriptor has a connection already.
    #[error("descriptor {0} has a connection already")]
    DescriptorTaken(u32),
    /// The protector said what cannot be.
    #[error("the protector contradicts what is known: {0}")]
    Protector(&'static str),
    /// A peer said what cannot be.
    #[error("the peer of connection {} of {} contradicts what is known: {what}", .connection.number, .connection.opener)]
    Peer {
        /// Its connection.
        connection: ConnectionId,
        /// What is wrong.
        what: &'static str,
    },
    /// A peer ends its stream elsewhere than it had said before, or before what was received of it.
    #[error(
        "connection {} of {}: its peer ends the stream after {says} bytes, and {received} units of it were received{}",
        .connection.number, .connection.opener, .known.map_or(String::new(), |known| format!("; it had ended after {known}"))
    )]
    End {
        /// The connection.
        connection: ConnectionId,
        /// The end that was known, in bytes.
        known: Option<u64>,
        /// The end that is said now, in bytes.
        says: u64,
        /// Units that were received; the end is one.
        received: u64,
    },
    /// Bytes that a peer wants were trimmed: G2 is broken.
    #[error("connection {} of {}: bytes from {wanted} are wanted, but kept only from {kept}", .connection.number, .connection.opener)]
    Lost {
        /// The connection.
        connection: ConnectionId,
        /// The offset that is wanted.
        wanted: u64,
        /// The oldest that there is.
        kept: u64,
    },
    /// A peer has received bytes that were never sent: G1 is broken, or replay went another way.
    #[error("connection {} of {}: the peer has {received}, but only {sent} was sent", .connection.number, .connection.opener)]
    Orphan {
        /// The connection.
        connection: ConnectionId,
        /// What the peer has.
        received: u64,
        /// What was sent.
        sent: u64,
    },
    /// A process was brought back with less than this one depends on: of what was lost with several nodes at once nothing was left elsewhere.
    #[error(
        "this process depends on the journal of {process} up to {depends}, and that goes on from {log_end}: what was between is lost"
    )]
    Uncollected {
        /// The process that was brought back.
        process: ProcessId,
        /// Up to where.
        depends: u64,
        /// Where its journal ends.
        log_end: u64,
    },
    /// Re-execution made another call than the log has.
    #[error("replay diverged at journal position {position}, where thread {thread} had the outcome of a {}: {what}", CALLS[*.call])]
    Diverged {
        /// Position of the outcome that does not fit.
        position: u64,
        /// The number of its thread.
        thread: u32,
        /// The call that had it, in [`CALLS`].
        call: usize,
        /// What does not fit.
        what: &'static str,
    },
    /// The journal's bytes are no determinants.
    #[error("the journal cannot be read at position {position}: {source}")]
    Journal {
        /// Where the determinant begins.
        position: u64,
        /// What is wrong there.
        source: Malformed,
    },
    /// Another incarnation speaks for this process now (G4): this one must end.
    #[error("incarnation {0} or a later one speaks for this process now")]
    Fenced(Incarnation),
}
