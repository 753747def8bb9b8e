//! The authenticated, encrypted channel between two holders of the cluster key, as a state machine over bytes.
//!
//! Noise `NNpsk0` (the Noise Protocol Framework, revision 34, section 9) with the cluster key as pre-shared key: two handshake
//! messages, then records of at most 65,535 bytes. Every message of the peers is a frame ([`crate::frame`]) inside the records.
//!
//! A peer without the key fails at the first handshake message, gets no byte in answer, and has cost one small record. A
//! captured first message can be replayed, but its sender cannot write a record: the responder is *confirmed* only when the
//! first record opens, and the caller's handshake time limit runs until then.
//!
//! Both handshake messages carry, encrypted under the key, the [`PROTOCOL_VERSION`] of their sender. Everything before that (prologue,
//! pattern, frames of the handshake, a version in two bytes) stays as it is forever: so two releases that understand nothing else of each other
//! can still say which versions they speak. The responder answers a first message of another version, and both ends then
//! fail with [`ChannelError::Version`].

use snow::{Builder, HandshakeState, TransportState};

use crate::PROTOCOL_VERSION;
use crate::frame::{self, FrameReader, FrameTooLarge};
use crate::key::ClusterKey;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Longest Noise message.
const RECORD: usize = 65_535;
/// Bytes of a record's authentication tag.
const TAG: usize = 16;
/// A handshake message is an ephemeral key, a version and a tag; a longer claim is not one.
const HANDSHAKE: usize = 96;
/// What both ends must agree on before they say anything. Never changes: see the module.
const PROLOGUE: &[u8] = b"RADIC handshake 1";

/// Why a channel cannot be used any further.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// A record or message claims more than the limit.
    #[error(transparent)]
    TooLarge(#[from] FrameTooLarge),
    /// The handshake failed: the peer has another key, or is no RADIC.
    #[error("handshake failed: the peer does not hold this cluster's key, or is no RADIC of wire protocol 17 or later")]
    Handshake,
    /// The peer holds the key and is of another release.
    #[error("the peer speaks wire protocol {theirs}, this program {ours}: install the same release of RADIC on all nodes")]
    Version {
        /// What this end speaks.
        ours: u16,
        /// What the peer speaks.
        theirs: u16,
    },
    /// A record did not open: damaged, replayed or forged.
    #[error("a record was damaged, replayed or forged")]
    Record,
}

enum State {
    Handshake(Box<HandshakeState>),
    Open(Box<TransportState>),
    Failed,
}

/// One end of a channel. Bytes from the socket go in by [`Channel::handle_input`], messages come out by
/// [`Channel::poll_message`]; messages go in by [`Channel::send`], bytes for the socket come out by [`Channel::take_output`].
pub struct Channel {
    state: State,
    initiator: bool,
    /// The version of this end: [`PROTOCOL_VERSION`], but in tests.
    version: u16,
    /// The peer has opened or written a record, hence holds the key now (not only when its first message was captured).
    confirmed: bool,
    records: FrameReader,
    messages: FrameReader,
    message_limit: usize,
    /// Plaintext frames that wait for the handshake to end.
    waiting: Vec<u8>,
    output: Vec<u8>,
}

impl Channel {
    /// The connecting end. Its first handshake message is in the output at once.
    pub fn initiator(key: &ClusterKey, message_limit: usize) -> Self {
        Channel::initiator_of(PROTOCOL_VERSION, key, message_limit)
    }

    /// The connecting end of a release that speaks `version`: for tests of what becomes of it.
    pub fn initiator_of(version: u16, key: &ClusterKey, message_limit: usize) -> Self {
        let mut channel = Channel::new(version, key, message_limit, true);
        channel.write_handshake();
        channel
    }

    /// The accepting end.
    pub fn responder(key: &ClusterKey, message_limit: usize) -> Self {
        Channel::new(PROTOCOL_VERSION, key, message_limit, false)
    }

    fn new(version: u16, key: &ClusterKey, message_limit: usize, initiator: bool) -> Self {
        let builder = Builder::new(PATTERN.parse().expect("the pattern is a constant that snow knows"));
        let builder = builder.prologue(PROLOGUE).and_then(|b| b.psk(0, key.secret()));
        let built = builder.and_then(|b| if initiator { b.build_initiator() } else { b.build_responder() });
        let handshake = built.expect("NNpsk0 needs nothing but the prologue and the key");
        Channel {
            state: State::Handshake(Box::new(handshake)),
            initiator,
            version,
            confirmed: false,
            records: FrameReader::new(HANDSHAKE),
            messages: FrameReader::new(message_limit),
            message_limit,
            waiting: Vec::new(),
            output: Vec::new(),
        }
    }

    /// Whether the peer has proved that it holds the key now.
    pub fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Takes bytes as they came from the socket.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
        self.records.push(bytes);
        let result = self.open_records();
        if let Err(error) = &result {
            self.state = State::Failed;
            // The peer of another version holds the key, and hears which version this end speaks. No other peer hears anything.
            if !matches!(error, ChannelError::Version { .. }) {
                self.output.clear();
            }
        }
        result
    }

    fn open_records(&mut self) -> Result<(), ChannelError> {
        loop {
            let Some(record) = self.records.next_frame()? else { return Ok(()) };
            match &mut self.state {
                State::Handshake(handshake) => {
                    let mut payload = [0; HANDSHAKE];
                    let length = handshake.read_message(record, &mut payload).map_err(|_| ChannelError::Handshake)?;
                    // A later release may say more than its version.
                    let (2.., [low, high, ..]) = (length, payload) else { return Err(ChannelError::Handshake) };
                    if !self.initiator {
                        self.write_handshake();
                    }
                    let (ours, theirs) = (self.version, u16::from_le_bytes([low, high]));
                    if ours != theirs {
                        return Err(ChannelError::Version { ours, theirs });
                    }
                    // Message 2 is bound to our fresh ephemeral key: the responder is there and holds the key.
                    self.confirmed = self.initiator;
                    self.open();
                }
                State::Open(transport) => {
                    let mut plain = vec![0; record.len().saturating_sub(TAG)];
                    let length = transport.read_message(record, &mut plain).map_err(|_| ChannelError::Record)?;
                    self.confirmed = true;
                    self.messages.push(&plain[..length]);
                }
                State::Failed => return Err(ChannelError::Record),
            }
        }
    }

    fn write_handshake(&mut self) {
        let State::Handshake(handshake) = &mut self.state else { unreachable!("only called while the handshake is under way") };
        let mut message = [0; HANDSHAKE];
        let length = handshake.write_message(&self.version.to_le_bytes(), &mut message);
        let length = length.expect("it is our turn, and the buffer holds a key, a version and a tag");
        frame::encode_into(&mut self.output, &message[..length], HANDSHAKE);
    }

    fn open(&mut self) {
        let State::Handshake(handshake) = std::mem::replace(&mut self.state, State::Failed) else {
            unreachable!("only called while the handshake is under way")
        };
        let transport = handshake.into_transport_mode().expect("both messages of NNpsk0 have passed");
        self.state = State::Open(Box::new(transport));
        self.records.set_limit(RECORD);
        let waiting = std::mem::take(&mut self.waiting);
        self.seal(&waiting);
    }

    /// The next whole message of the peer, if there is one.
    pub fn poll_message(&mut self) -> Result<Option<Vec<u8>>, ChannelError> {
        Ok(self.messages.next_frame()?.map(<[u8]>::to_vec))
    }

    /// Sends a message, after the handshake if that is still under way. A failed channel drops it: its owner is about to learn.
    ///
    /// # Panics
    /// If the message is longer than the channel's limit.
    pub fn send(&mut self, message: &[u8]) {
        let mut plain = Vec::with_capacity(frame::HEADER + message.len());
        frame::encode_into(&mut plain, message, self.message_limit);
        match self.state {
            State::Handshake(_) => self.waiting.append(&mut plain),
            State::Open(_) => self.seal(&plain),
            State::Failed => {}
        }
    }

    fn seal(&mut self, plain: &[u8]) {
        let State::Open(transport) = &mut self.state else { unreachable!("only called when open") };
        let mut record = [0; RECORD];
        for piece in plain.chunks(RECORD - TAG) {
            let length = transport.write_message(piece, &mut record).expect("a piece and its tag fit a record");
            frame::encode_into(&mut self.output, &record[..length], RECORD);
        }
    }

    /// The bytes to write to the socket.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Whether there are bytes to write to the socket.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(byte: u8) -> ClusterKey {
        ClusterKey::from_bytes([byte; 32])
    }

    /// Moves bytes both ways, in pieces of `step` bytes, until nothing moves.
    fn settle(a: &mut Channel, b: &mut Channel, step: usize) -> Result<(), ChannelError> {
        while a.has_output() || b.has_output() {
            let (from_a, from_b) = (a.take_output(), b.take_output());
            from_a.chunks(step).try_for_each(|piece| b.handle_input(piece))?;
            from_b.chunks(step).try_for_each(|piece| a.handle_input(piece))?;
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn messages_arrive_whole_and_in_order(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200_000), 0..4), step in 1000usize..70_000,
        ) {
            let (mut a, mut b) = (Channel::initiator(&key(1), 1 << 20), Channel::responder(&key(1), 1 << 20));
            messages.iter().for_each(|m| a.send(m));
            settle(&mut a, &mut b, step).unwrap();
            let mut seen = Vec::new();
            while let Some(message) = b.poll_message().unwrap() {
                seen.push(message);
            }
            prop_assert_eq!(&seen, &messages);
            prop_assert!(a.is_confirmed());
            prop_assert_eq!(b.is_confirmed(), !messages.is_empty());
        }

        #[test]
        fn garbage_is_an_error_and_gets_no_answer(garbage in prop::collection::vec(any::<u8>(), 0..500)) {
            let mut b = Channel::responder(&key(1), 1 << 20);
            let _ = b.handle_input(&garbage);
            prop_assert!(!b.has_output() && !b.is_confirmed());
            prop_assert!(b.poll_message().unwrap().is_none());
        }

        #[test]
        fn a_flipped_bit_is_noticed(bit in 32usize..800) {
            let (mut a, mut b) = (Channel::initiator(&key(1), 1 << 20), Channel::responder(&key(1), 1 << 20));
            settle(&mut a, &mut b, 1000).unwrap();
            a.send(&[7; 100]);
            let mut record = a.take_output();
            record[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(matches!(b.handle_input(&record), Err(ChannelError::Record)));
            prop_assert!(b.poll_message().unwrap().is_none());
        }
    }

    #[test]
    fn another_key_fails_and_learns_nothing() {
        let (mut a, mut b) = (Channel::initiator(&key(1), 1 << 20), Channel::responder(&key(2), 1 << 20));
        assert!(matches!(b.handle_input(&a.take_output()), Err(ChannelError::Handshake)));
        assert!(!b.has_output());
    }

    #[test]
    fn two_versions_refuse_each_other_and_both_name_both() {
        let newer = PROTOCOL_VERSION + 1;
        let (mut a, mut b) = (Channel::initiator_of(newer, &key(1), 1 << 20), Channel::responder(&key(1), 1 << 20));
        a.send(b"what a newer release says");
        let error = b.handle_input(&a.take_output()).unwrap_err();
        assert!(matches!(error, ChannelError::Version { ours: PROTOCOL_VERSION, theirs } if theirs == newer), "{error}");
        let answer = b.take_output();
        let error = a.handle_input(&answer).unwrap_err().to_string();
        for number in [newer, PROTOCOL_VERSION] {
            assert!(error.contains(&number.to_string()), "{error} does not name {number}");
        }
        assert!(!a.has_output() && !a.is_confirmed() && !b.is_confirmed(), "something was said to a peer of another version");
        assert!(b.handle_input(&[0; 64]).is_err() && !b.has_output(), "a channel that has failed goes on");
    }

    #[test]
    fn a_version_is_said_to_holders_of_the_key_only() {
        let mut b = Channel::responder(&key(2), 1 << 20);
        let opening = Channel::initiator_of(PROTOCOL_VERSION + 1, &key(1), 1 << 20).take_output();
        assert!(matches!(b.handle_input(&opening), Err(ChannelError::Handshake)));
        assert!(!b.has_output());
    }

    #[test]
    fn a_replayed_opening_confirms_nobody_and_a_replayed_record_fails() {
        let (mut a, mut b) = (Channel::initiator(&key(1), 1 << 20), Channel::responder(&key(1), 1 << 20));
        let opening = a.take_output();
        b.handle_input(&opening).unwrap();
        a.handle_input(&b.take_output()).unwrap();
        a.send(b"speak");
        let record = a.take_output();
        b.handle_input(&record).unwrap();
        assert!(b.is_confirmed());
        let mut victim = Channel::responder(&key(1), 1 << 20);
        victim.handle_input(&opening).unwrap();
        assert!(!victim.is_confirmed());
        assert!(matches!(victim.handle_input(&record), Err(ChannelError::Record)), "another session's record opened");
        assert!(matches!(b.handle_input(&record), Err(ChannelError::Record)), "a record opened twice");
    }

    #[test]
    fn an_over_long_message_is_refused_at_its_length() {
        let (mut a, mut b) = (Channel::initiator(&key(1), 1 << 20), Channel::responder(&key(1), 1000));
        a.send(&[0; 1001]);
        settle(&mut a, &mut b, 1 << 20).unwrap();
        assert!(matches!(b.poll_message(), Err(ChannelError::TooLarge(_))));
    }
}
