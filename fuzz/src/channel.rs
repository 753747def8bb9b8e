//! The authenticated channel ([`radic_wire::channel`]). A byte says which:
//!
//! - 0: a byte of how they come, then bytes of a peer without the key. Nothing comes back, nothing is confirmed.
//! - else: a byte of how the bytes come, then a number of messages and changes (five bytes: where, how much is xored in, a length that is taken out) of what
//!   one end sends to the other. What arrives is what was sent, up to the first change.

use radic_wire::channel::{Channel, ChannelError};
use radic_wire::key::ClusterKey;

use crate::Inputs;
use crate::input::{Input, pieces};

const LIMIT: usize = 64 << 10;

fn key() -> ClusterKey {
    ClusterKey::from_bytes([1; 32])
}

/// A peer without the key gets no byte, and no change arrives.
pub fn check(data: &[u8]) -> bool {
    let mut input = Input(data);
    match input.u8() {
        0 => stranger(input),
        _ => changed(input),
    }
}

fn stranger(mut input: Input<'_>) -> bool {
    let seed = input.u8();
    let mut channel = Channel::responder(&key(), LIMIT);
    let result = pieces(input.0, seed).try_for_each(|piece| channel.handle_input(piece));
    assert!(!channel.has_output() && !channel.is_confirmed(), "a stranger was answered");
    assert!(matches!(channel.poll_message(), Ok(None)), "a stranger was heard");
    let mut whole = Channel::responder(&key(), LIMIT);
    assert_eq!(whole.handle_input(input.0).is_ok(), result.is_ok(), "in pieces it is another thing");
    result.is_ok()
}

/// Both ends after a handshake.
fn opened() -> (Channel, Channel) {
    let (mut a, mut b) = (Channel::initiator(&key(), LIMIT), Channel::responder(&key(), LIMIT));
    b.handle_input(&a.take_output()).expect("an opening of a peer with the key");
    a.handle_input(&b.take_output()).expect("an answer of a peer with the key");
    (a, b)
}

fn changed(mut input: Input<'_>) -> bool {
    let seed = input.u8();
    let (mut a, mut b) = opened();
    let messages: Vec<Vec<u8>> = (0..input.u8() % 8).map(|number| vec![number; usize::from(input.u16()) % 2_000]).collect();
    messages.iter().for_each(|message| a.send(message));
    let sent = a.take_output();
    let mut bytes = sent.clone();
    while !input.is_empty() && !bytes.is_empty() {
        let (at, change, cut) = (usize::from(input.u16()) % bytes.len(), input.u8(), usize::from(input.u16()) % 300);
        bytes[at] ^= change;
        bytes.drain(at..(at + cut.saturating_sub(1)).min(bytes.len()));
    }
    let result = pieces(&bytes, seed).try_for_each(|piece| b.handle_input(piece));
    let mut arrived = Vec::new();
    while let Ok(Some(message)) = b.poll_message() {
        arrived.push(message);
    }
    assert!(messages.starts_with(&arrived), "what arrived was not sent");
    assert!(b.is_confirmed() || arrived.is_empty());
    if bytes == sent {
        assert!(result.is_ok() && arrived.len() == messages.len(), "what was sent did not arrive");
        return true;
    }
    assert!(!matches!(result, Err(ChannelError::Handshake)), "the handshake was over");
    false
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    let opening = Channel::initiator(&ClusterKey::from_bytes([2; 32]), LIMIT).take_output();
    // Of an opening under another key all but the last byte: there is nothing wrong with it yet.
    let opening = [&[0, 1], &opening[..opening.len() - 1]].concat();
    vec![("opening", opening), ("one", vec![1, 1, 1, 5, 0]), ("some", vec![1, 200, 3, 0, 1, 0, 0, 200, 3])]
}
