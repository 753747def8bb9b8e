//! What a process that was restored for `radic replay` and the command that watches it say to each other, over an abstract unix socket: frames of bincode.
//! The command stands for its protector, its node and all its peers at once.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::determinant::StreamId;
use crate::ids::{Incarnation, ProcessId};
use crate::limits;

/// Longest frame, in bytes.
pub const FRAME: usize = 4 * limits::LOG_CHUNK;

/// Name of the abstract socket where the command waits for the process that it restores, without the zero byte before it. The
/// engine hands the process the number, which no other process can guess. Once the socket is there, every user may see its name:
/// so both ask the kernel for process and user at the other end.
pub fn socket_name(launcher: u64) -> String {
    format!("radic-replay-{launcher:016x}")
}

/// From the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToReplayer {
    /// The process is back. The answer is `Setup`.
    Restored {
        /// The process.
        process: ProcessId,
        /// The process's incarnation when it was saved.
        incarnation: Incarnation,
        /// Where its journal stood.
        cut: u64,
    },
    /// Journal from here, at most this many bytes. The answer is `Journal`.
    FetchJournal {
        /// Position.
        position: u64,
        /// Bytes.
        room: u32,
    },
    /// Received bytes, at most this many. The answer is `Payload`.
    FetchPayload {
        /// The stream.
        stream: StreamId,
        /// Offset of the first.
        offset: u64,
        /// Bytes.
        room: u32,
    },
    /// The process sends these bytes again.
    Sent {
        /// The stream.
        stream: StreamId,
        /// Offset of the first.
        offset: u64,
        /// The bytes.
        bytes: ByteBuf,
    },
    /// Every outcome of the log has been served.
    Settled,
    /// The process goes no further, and why.
    Ended(String),
}

/// To the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromReplayer {
    /// What there is to replay.
    Setup {
        /// The process's incarnation now.
        incarnation: Incarnation,
        /// Where its journal ends.
        log_end: u64,
        /// What is held of each stream that it receives: units, and where it has ended.
        held: Vec<(StreamId, u64, Option<u64>)>,
    },
    /// A piece of the journal, from the position that was asked for.
    Journal(ByteBuf),
    /// Received bytes, from the offset that was asked for; none: they are not held.
    Payload(ByteBuf),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;
    use crate::determinant::ConnectionId;
    use crate::ids::{JobId, Rank};

    #[test]
    fn the_largest_messages_fit() {
        let opener = ProcessId { job: JobId::from_bits(u64::MAX), rank: Rank(u32::MAX) };
        let stream = StreamId { connection: ConnectionId { opener, number: u64::MAX }, from_opener: true };
        let sent = ToReplayer::Sent { stream, offset: u64::MAX, bytes: ByteBuf::from(vec![0; limits::LOG_CHUNK]) };
        assert!(codec::encode(&sent, FRAME).is_ok());
        let held = vec![(stream, u64::MAX, Some(u64::MAX)); 16 << 10];
        assert!(codec::encode(&FromReplayer::Setup { incarnation: Incarnation::restarted(1), log_end: 1, held }, FRAME).is_ok());
    }
}
