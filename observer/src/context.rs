//! What the machines of a process have in common beside the observer: what they decide about, and why they cannot go on.

use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::determinant::StreamId;
use radic_wire::ids::{Incarnation, ProcessId};

use crate::connection::{Connection, Slot};
use crate::{Error, Observer};

/// Why a process cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Its own observer says so.
    #[error(transparent)]
    Observer(#[from] Error),
    /// A greeting contradicts what is known.
    #[error("{process}, incarnation {incarnation}, greets with what cannot be: {error}")]
    Greeting {
        /// The process that greets.
        process: ProcessId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// What is wrong.
        error: Error,
    },
    /// The sender of a stream has left, and not all of the stream is here (G2).
    #[error(
        "connection {} of {}: its peer has left, and its bytes from {from} to {to} are lost",
        .stream.connection.number, .stream.connection.opener
    )]
    Lost {
        /// The stream.
        stream: StreamId,
        /// The first offset that is missing, in bytes.
        from: u64,
        /// The stream's end, in bytes.
        to: u64,
    },
    /// No protector has taken this process's log for so long.
    #[error("its protector at {protector} is out of reach for {} s", .limit.as_secs())]
    OutOfReach {
        /// Where it was tried last.
        protector: SocketAddr,
        /// For how long.
        limit: Duration,
    },
}

impl Failure {
    /// Whether another incarnation speaks for this process (G4).
    pub fn is_fenced(&self) -> bool {
        matches!(self, Failure::Observer(Error::Fenced(_)) | Failure::Greeting { error: Error::Fenced(_), .. })
    }

    /// Whether re-execution goes another way than the log, or has gone: a peer has bytes that this process has not sent again.
    pub fn is_divergence(&self) -> bool {
        let (Failure::Observer(error) | Failure::Greeting { error, .. }) = self else { return false };
        matches!(error, Error::Diverged { .. } | Error::Orphan { .. })
    }
}

/// What the decisions here are about: the process's connections, and the time.
#[derive(Debug)]
pub struct Context<'a> {
    /// The process.
    pub observer: &'a mut Observer,
    /// A clock that only goes forward.
    pub now: Duration,
}

impl Context<'_> {
    pub(crate) fn is_gate_open(&self) -> bool {
        self.observer.gate().is_none()
    }

    pub(crate) fn slot(&self, end: StreamId) -> Option<Slot> {
        self.observer.table().find_end(end.connection, end.from_opener)
    }

    pub(crate) fn connection(&self, end: StreamId) -> Option<(Slot, &Connection)> {
        let slot = self.slot(end)?;
        Some((slot, self.observer.table().get(slot)?))
    }
}
