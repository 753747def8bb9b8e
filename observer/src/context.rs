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
    /// The process's own observer says so.
    #[error(transparent)]
    Observer(#[from] Error),
    /// A greeting contradicts what is known.
    #[error("{process}, incarnation {incarnation}, greets with what cannot be: {error}")]
    Greeting {
        /// The process that greets.
        process: ProcessId,
        /// The incarnation of the process that greets.
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

    /// Whether re-execution diverges from the log, or has diverged: a peer has bytes that this process has not sent again, or has
    /// itself done otherwise than before and greets with what contradicts that. Which of the two it was cannot be told here.
    pub fn is_divergence(&self) -> bool {
        match self {
            Failure::Observer(error) => {
                matches!(error, Error::Diverged { .. } | Error::Orphan { .. } | Error::Uncollected { .. })
            }
            Failure::Greeting { error, .. } => {
                matches!(error, Error::Diverged { .. } | Error::Orphan { .. } | Error::End { .. } | Error::Peer { .. })
            }
            Failure::Lost { .. } | Failure::OutOfReach { .. } => false,
        }
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

#[cfg(test)]
mod tests {
    use radic_wire::determinant::ConnectionId;
    use radic_wire::ids::{JobId, Rank};

    use super::*;

    /// The process that is greeted has done nothing wrong: its job restarts from its beginning, and the process does not end by itself.
    #[test]
    fn a_greeting_that_contradicts_what_is_known_is_a_divergence() {
        let process = ProcessId { job: JobId::from_bits(1), rank: Rank(1) };
        let connection = ConnectionId { opener: ProcessId { rank: Rank(0), ..process }, number: 334 };
        let greeting = |error| Failure::Greeting { process, incarnation: Incarnation::restarted(1), error };
        let end = Error::End { connection, known: None, says: 0, received: 8146 };
        assert!(
            greeting(end).is_divergence() && greeting(Error::Peer { connection, what: "only its opener dials" }).is_divergence()
        );
        let said = greeting(end).to_string();
        assert!(
            said.contains(&process.to_string()) && said.contains(&format!("connection 334 of {}", connection.opener)),
            "{said}"
        );
        assert!(!greeting(Error::Fenced(Incarnation::restarted(2))).is_divergence());
        assert!(!Failure::from(end).is_divergence(), "nobody greets");
    }
}
