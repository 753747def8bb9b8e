//! The only module that knows bincode.
//!
//! bincode is unmaintained (deny.toml); it is pinned, and every use has a size limit, so that replacing it is a change of this
//! file. A message is decoded whole: bytes left over are an error, as a message of another version would leave them.

use bincode::Options;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why bytes are not a message, or a message does not become bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The encoded message would be longer than the channel's limit.
    #[error("a message of {size} bytes is over the limit of {limit}")]
    TooLarge {
        /// Bytes of the encoded message.
        size: u64,
        /// The channel's limit.
        limit: usize,
    },
    /// The bytes are not a message of this version.
    #[error("not a message of this version: {0}")]
    Malformed(String),
}

fn options(limit: usize) -> impl Options {
    bincode::DefaultOptions::new().with_varint_encoding().with_limit(limit as u64).reject_trailing_bytes()
}

/// Encodes `message` into at most `limit` bytes.
pub fn encode<T: Serialize>(message: &T, limit: usize) -> Result<Vec<u8>, CodecError> {
    let malformed = |e: bincode::Error| CodecError::Malformed(e.to_string());
    let size = options(usize::MAX).serialized_size(message).map_err(malformed)?;
    if size > limit as u64 {
        return Err(CodecError::TooLarge { size, limit });
    }
    // Without the limit, which is kept by now: else all is counted once more.
    let mut bytes = Vec::with_capacity(size as usize);
    options(usize::MAX).with_no_limit().serialize_into(&mut bytes, message).map_err(malformed)?;
    assert_eq!(bytes.len() as u64, size, "what was measured is what is written");
    Ok(bytes)
}

/// Decodes one message from all of `bytes`. Lengths inside the message are bounded by `limit` before anything is allocated.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<T, CodecError> {
    if bytes.len() > limit {
        return Err(CodecError::TooLarge { size: bytes.len() as u64, limit });
    }
    options(limit).deserialize(bytes).map_err(|e| CodecError::Malformed(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_in_both_directions() {
        let text = "x".repeat(100);
        assert!(matches!(encode(&text, 100), Err(CodecError::TooLarge { limit: 100, .. })));
        let bytes = encode(&text, 101).unwrap();
        assert_eq!(decode::<String>(&bytes, 101).unwrap(), text);
        assert!(matches!(decode::<String>(&bytes, 100), Err(CodecError::TooLarge { .. })));
    }

    #[test]
    fn a_lying_length_allocates_nothing() {
        // A varint that claims 2^60 bytes follow.
        let mut lie = vec![253];
        lie.extend_from_slice(&(1u64 << 60).to_le_bytes());
        assert!(matches!(decode::<String>(&lie, 1 << 20), Err(CodecError::Malformed(_))));
        assert!(matches!(decode::<Vec<u64>>(&lie, 1 << 20), Err(CodecError::Malformed(_))));
    }

    #[test]
    fn trailing_bytes_are_refused() {
        let mut bytes = encode(&7u32, 16).unwrap();
        bytes.push(0);
        assert!(matches!(decode::<u32>(&bytes, 16), Err(CodecError::Malformed(_))));
    }
}
