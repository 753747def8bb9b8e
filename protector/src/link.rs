//! A reliable, ordered, one-way stream of messages to one protector, across any number of broken connections.
//!
//! The sender numbers messages from 1 and keeps each until it is acknowledged; on a new connection the receiver says what it has,
//! and the sender goes on from there. So a message is handled exactly once while both ends live, whatever happens to the
//! connections between them. No sockets here: [`crate::peers`] decides when there is
//! a connection.

use std::collections::VecDeque;

use radic_wire::codec::{self, CodecError};
use radic_wire::limits;
use radic_wire::peer::{LinkFrame, PeerMessage};

/// Why a link cannot go on. Either way the peer is treated as lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// Too much waits for the peer.
    #[error("{messages} messages and {bytes} bytes wait for it: over the limit")]
    Full {
        /// Messages that wait.
        messages: usize,
        /// Their bytes.
        bytes: usize,
    },
    /// The message itself is over the limit of a frame.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The peer acknowledges what was never sent, or skips a number.
    #[error("sequence broken: expected {expected}, got {got}")]
    Sequence {
        /// The number that should have come.
        expected: u64,
        /// The number that came.
        got: u64,
    },
}

/// The sending end.
#[derive(Debug, Default)]
pub struct LinkSender {
    /// Encoded frames that are not acknowledged; the first has number `acked + 1`.
    queue: VecDeque<Vec<u8>>,
    bytes: usize,
    acked: u64,
    /// How many frames of `queue` were written to the connection of now.
    written: usize,
}

impl LinkSender {
    /// Queues a message.
    pub fn push(&mut self, message: PeerMessage) -> Result<(), LinkError> {
        let seq = self.acked + self.queue.len() as u64 + 1;
        let frame = codec::encode(&LinkFrame::Data { seq, message }, limits::PEER_FRAME)?;
        if self.queue.len() >= limits::LINK_MESSAGES || self.bytes + frame.len() > limits::LINK_BYTES {
            return Err(LinkError::Full { messages: self.queue.len(), bytes: self.bytes });
        }
        self.bytes += frame.len();
        self.queue.push_back(frame);
        Ok(())
    }

    /// A new connection is there, and the receiver has everything up to `received`.
    pub fn handle_connected(&mut self, received: u64) -> Result<(), LinkError> {
        self.written = 0;
        self.handle_ack(received)
    }

    /// The receiver has everything up to `received`.
    pub fn handle_ack(&mut self, received: u64) -> Result<(), LinkError> {
        let newest = self.acked + self.queue.len() as u64;
        if received > newest {
            return Err(LinkError::Sequence { expected: newest, got: received });
        }
        while self.acked < received {
            let frame = self.queue.pop_front().expect("everything between acked and newest is queued");
            self.bytes -= frame.len();
            self.acked += 1;
            self.written = self.written.saturating_sub(1);
        }
        Ok(())
    }

    /// The next frame to write to the connection of now.
    pub fn poll_frame(&mut self) -> Option<&[u8]> {
        let frame = self.queue.get(self.written)?;
        self.written += 1;
        Some(frame)
    }

    /// Whether every frame that waits was written to the connection of now.
    pub fn is_written(&self) -> bool {
        self.written == self.queue.len()
    }

    /// Whether nothing waits for the receiver.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// The receiving end: which number comes next. It outlives connections.
#[derive(Debug, Default, Clone, Copy)]
pub struct LinkReceiver {
    received: u64,
}

impl LinkReceiver {
    /// Everything up to this number was received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether the message with this number is new (else it is a repetition, to be dropped).
    pub fn handle_seq(&mut self, seq: u64) -> Result<bool, LinkError> {
        if seq > self.received + 1 {
            return Err(LinkError::Sequence { expected: self.received + 1, got: seq });
        }
        let new = seq == self.received + 1;
        self.received += u64::from(new);
        Ok(new)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use radic_wire::peer::Query;

    use super::*;

    /// A message that carries a number of its own.
    fn number(n: u64) -> PeerMessage {
        PeerMessage::Query(n, Query::Report)
    }

    fn seq_of(frame: &[u8]) -> (u64, PeerMessage) {
        match codec::decode(frame, limits::PEER_FRAME).unwrap() {
            LinkFrame::Data { seq, message } => (seq, message),
            LinkFrame::Ack { .. } => panic!("a sender writes no acks"),
        }
    }

    proptest! {
        /// Any interleaving of sends, deliveries, lost acknowledgements and broken connections: each message once, in order.
        #[test]
        fn exactly_once_in_order(steps in prop::collection::vec(0u8..5, 0..200)) {
            let (mut sender, mut receiver) = (LinkSender::default(), LinkReceiver::default());
            let (mut pushed, mut handled) = (0u64, Vec::new());
            let mut wire: VecDeque<Vec<u8>> = VecDeque::new();
            for step in steps.into_iter().chain([3]).chain(std::iter::repeat_n(1, 200)).chain(std::iter::repeat_n(2, 200)) {
                match step {
                    0 => {
                        pushed += 1;
                        sender.push(number(pushed)).unwrap();
                    }
                    1 => wire.extend(sender.poll_frame().map(<[u8]>::to_vec)),
                    2 => if let Some(frame) = wire.pop_front() {
                        let (seq, message) = seq_of(&frame);
                        if receiver.handle_seq(seq).unwrap() {
                            prop_assert_eq!(message, number(seq));
                            handled.push(seq);
                        }
                    },
                    3 => {
                        wire.clear();
                        sender.handle_connected(receiver.received()).unwrap();
                    }
                    _ => sender.handle_ack(receiver.received()).unwrap(),
                }
            }
            prop_assert_eq!(handled, (1..=pushed).collect::<Vec<_>>());
            sender.handle_ack(receiver.received()).unwrap();
            prop_assert!(sender.is_empty() && sender.bytes == 0);
        }
    }

    #[test]
    fn gaps_and_false_acks_are_errors() {
        let mut sender = LinkSender::default();
        sender.push(PeerMessage::Unsubscribe).unwrap();
        assert!(matches!(sender.handle_ack(2), Err(LinkError::Sequence { expected: 1, got: 2 })));
        let mut receiver = LinkReceiver::default();
        assert!(matches!(receiver.handle_seq(2), Err(LinkError::Sequence { expected: 1, got: 2 })));
    }

    #[test]
    fn a_full_link_says_so_and_keeps_what_it_has() {
        let mut sender = LinkSender::default();
        for _ in 0..limits::LINK_MESSAGES {
            sender.push(PeerMessage::Unsubscribe).unwrap();
        }
        assert!(matches!(sender.push(PeerMessage::Unsubscribe), Err(LinkError::Full { .. })));
        sender.handle_ack(1).unwrap();
        sender.push(PeerMessage::Unsubscribe).unwrap();
    }
}
