//! Records: what is said on a connection of the log after its login ([`crate::login`]), in pieces that cannot be changed, left out, repeated or put into
//! another order unnoticed.
//!
//! A record is [`HEAD`] bytes, the length of its body and a bit that says whether it is the last one; its body of at most [`RECORD`] bytes; [`TAG`] bytes.
//! AES-256-GCM, a key for each direction of each connection, the record's number as nonce. With [`Cover::Authenticated`] the body is not encrypted, and the
//! tag is over it all the same.
//!
//! AES-256-GCM because records are small: where the processor has instructions for it (found out at run time) a record of 64 bytes takes a tenth of the
//! time of ChaCha20-Poly1305.
//!
//! A sender or a receiver has its key in a block aligned to [`SECRET_ALIGN`](crate::mac::SECRET_ALIGN). Sealing and opening allocate nothing.

use std::fmt;

use aes_gcm::aead::{AeadInPlace, KeyInit};
use aes_gcm::{Aes256Gcm, Nonce, Tag};
use zeroize::Zeroize;

use crate::mac::SECRET_ALIGN;

/// Most bytes of a record's body.
pub const RECORD: usize = 64 << 10;
/// Bytes before the body.
pub const HEAD: usize = 4;
/// Bytes after it.
pub const TAG: usize = 16;
/// Bytes of a record that are not its body.
pub const OVERHEAD: usize = HEAD + TAG;
/// In the head: nothing follows.
const LAST: u32 = 1 << 31;

/// How bodies are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Cover {
    /// Nobody else can read or change them.
    #[default]
    Encrypted = 0,
    /// Nobody else can change them.
    Authenticated = 1,
}

impl Cover {
    /// From the byte that stands for it.
    pub fn from_byte(byte: u8) -> Option<Self> {
        [Cover::Encrypted, Cover::Authenticated].into_iter().find(|cover| *cover as u8 == byte)
    }
}

/// Why a connection cannot be used any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Its head says that it is longer than a record may be, or empty and not the last.
    #[error("a record of {0} bytes, which none can have")]
    Length(usize),
    /// It was changed, repeated or made up, or one before it is missing.
    #[error("a record was damaged, replayed, left out or forged")]
    Forged,
    /// Something follows the last one.
    #[error("something follows the last record")]
    AfterLast,
}

/// All of a sender or receiver that changes with a record, beside what it has buffered: whoever makes an image of itself and seals that on its way must not change
/// what is in the image meanwhile.
#[repr(align(1024))]
struct Cipher {
    aes: Aes256Gcm,
    /// The number of the next record.
    next: u64,
}

const _: () = assert!(align_of::<Cipher>() == SECRET_ALIGN);

impl Cipher {
    fn new(key: &[u8]) -> Box<Self> {
        Box::new(Cipher { aes: Aes256Gcm::new(key.into()), next: 0 })
    }

    /// The tag of the record whose head and body these bytes are. The body is encrypted, if it is to be.
    fn seal(&mut self, cover: Cover, record: &mut [u8]) -> Option<Tag> {
        let nonce = nonce(self.next);
        self.next += 1;
        match cover {
            Cover::Encrypted => {
                let (head, body) = record.split_at_mut(HEAD);
                self.aes.encrypt_in_place_detached(&nonce, head, body).ok()
            }
            Cover::Authenticated => self.aes.encrypt_in_place_detached(&nonce, record, &mut []).ok(),
        }
    }

    /// Whether the tag is that of the record whose head and body these bytes are. The body is decrypted then, if it was encrypted.
    fn open(&mut self, cover: Cover, record: &mut [u8], tag: &Tag) -> bool {
        let nonce = nonce(self.next);
        self.next += 1;
        match cover {
            Cover::Encrypted => {
                let (head, body) = record.split_at_mut(HEAD);
                self.aes.decrypt_in_place_detached(&nonce, head, body, tag).is_ok()
            }
            Cover::Authenticated => self.aes.decrypt_in_place_detached(&nonce, record, &mut [], tag).is_ok(),
        }
    }
}

fn nonce(number: u64) -> Nonce<aes_gcm::aead::consts::U12> {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_le_bytes());
    nonce.into()
}

/// The sending end of one direction.
pub struct Sealer {
    cipher: Box<Cipher>,
    cover: Cover,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealer({:?})", self.cover)
    }
}

impl Sealer {
    fn new(key: &[u8], cover: Cover) -> Self {
        Sealer { cipher: Cipher::new(key), cover }
    }

    /// Makes a record of these bytes: room for the head, the body, room for the tag.
    ///
    /// # Panics
    /// If the body is longer than [`RECORD`], or empty and the record not the last: the sender's half of what the receiver checks.
    pub fn seal(&mut self, record: &mut [u8], is_last: bool) {
        let body = record.len().checked_sub(OVERHEAD).expect("a record has room for its head and its tag");
        assert!(body <= RECORD && (body > 0 || is_last), "a record of {body} bytes");
        let head = body as u32 | if is_last { LAST } else { 0 };
        let (text, tag) = record.split_at_mut(HEAD + body);
        text[..HEAD].copy_from_slice(&head.to_le_bytes());
        let sealed = self.cipher.seal(self.cover, text).expect("a record is far shorter than the cipher's bound");
        tag.copy_from_slice(&sealed);
    }

    /// Appends the records of these parts, one after the other, to `out`.
    pub fn seal_into(&mut self, parts: &[&[u8]], out: &mut Vec<u8>) {
        let mut start = None;
        for part in parts {
            let mut rest = *part;
            while !rest.is_empty() {
                let begun = *start.get_or_insert_with(|| {
                    out.extend_from_slice(&[0; HEAD]);
                    out.len() - HEAD
                });
                let room = RECORD - (out.len() - begun - HEAD);
                let (now, later) = rest.split_at(rest.len().min(room));
                out.extend_from_slice(now);
                rest = later;
                if now.len() == room {
                    self.seal_from(out, begun, false);
                    start = None;
                }
            }
        }
        start.into_iter().for_each(|begun| self.seal_from(out, begun, false));
    }

    /// Appends the last record to `out`: nothing follows.
    pub fn seal_end(&mut self, out: &mut Vec<u8>) {
        let begun = out.len();
        out.extend_from_slice(&[0; HEAD]);
        self.seal_from(out, begun, true);
    }

    fn seal_from(&mut self, out: &mut Vec<u8>, begun: usize, is_last: bool) {
        out.extend_from_slice(&[0; TAG]);
        self.seal(&mut out[begun..], is_last);
    }
}

/// The receiving end of one direction: cuts what comes from the socket into records and opens them.
pub struct Opener {
    cipher: Box<Cipher>,
    cover: Cover,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were handed out already.
    taken: usize,
    ended: bool,
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opener({:?}, {} bytes)", self.cover, self.buffered())
    }
}

impl Opener {
    fn new(key: &[u8], cover: Cover) -> Self {
        Opener { cipher: Cipher::new(key), cover, buffer: Vec::new(), taken: 0, ended: false }
    }

    /// Takes bytes as they came from the socket.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes that are buffered and not opened.
    pub fn buffered(&self) -> usize {
        self.buffer.len() - self.taken
    }

    /// The body of the next whole record, if there is one. After an error there is none any more.
    pub fn next_body(&mut self) -> Result<Option<&[u8]>, RecordError> {
        let rest = &mut self.buffer[self.taken..];
        let Some(head) = rest.first_chunk::<HEAD>() else { return Ok(None) };
        if self.ended {
            return Err(RecordError::AfterLast);
        }
        let head = u32::from_le_bytes(*head);
        let (body, is_last) = ((head & !LAST) as usize, head & LAST != 0);
        if body > RECORD || body == 0 && !is_last {
            return Err(RecordError::Length(body));
        }
        let Some(record) = rest.get_mut(..OVERHEAD + body) else { return Ok(None) };
        let (text, tag) = record.split_at_mut(HEAD + body);
        if !self.cipher.open(self.cover, text, Tag::from_slice(tag)) {
            return Err(RecordError::Forged);
        }
        let start = self.taken + HEAD;
        (self.taken, self.ended) = (self.taken + OVERHEAD + body, is_last);
        Ok(Some(&self.buffer[start..start + body]))
    }

    /// Whether the last record has come: an end of the connection before that is none of what was said.
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

/// Both ends of one side: what the caller sends is opened with the first half of `keys`, what it receives with the second.
pub(crate) fn both(keys: &mut [u8; 64], cover: Cover, is_caller: bool) -> (Sealer, Opener) {
    let (by_caller, to_caller) = keys.split_at(32);
    let (send, receive) = if is_caller { (by_caller, to_caller) } else { (to_caller, by_caller) };
    let both = (Sealer::new(send, cover), Opener::new(receive, cover));
    keys.zeroize();
    both
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COVERS: [Cover; 2] = [Cover::Encrypted, Cover::Authenticated];

    fn keys() -> [u8; 64] {
        std::array::from_fn(|at| at as u8)
    }

    fn pair(cover: Cover) -> (Sealer, Opener) {
        (both(&mut keys(), cover, true).0, both(&mut keys(), cover, false).1)
    }

    /// All that comes of these bytes: the bodies, whether the end came, what is wrong.
    fn opened(opener: &mut Opener, bytes: &[u8], step: usize) -> (Vec<u8>, bool, Option<RecordError>) {
        let mut said = Vec::new();
        for piece in bytes.chunks(step) {
            opener.push(piece);
            loop {
                match opener.next_body() {
                    Ok(Some(body)) => said.extend_from_slice(body),
                    Ok(None) => break,
                    Err(error) => return (said, opener.has_ended(), Some(error)),
                }
            }
        }
        (said, opener.has_ended(), None)
    }

    fn sealed(sealer: &mut Sealer, said: &[&[u8]]) -> Vec<Vec<u8>> {
        let one = |part: &&[u8]| {
            let mut out = Vec::new();
            sealer.seal_into(&[part], &mut out);
            out
        };
        said.iter().map(one).collect()
    }

    #[test]
    fn what_is_said_is_heard_and_only_encrypted_bodies_cannot_be_read() {
        for cover in COVERS {
            let (mut sealer, mut opener) = pair(cover);
            let (said, mut out) = (vec![b'x'; 3 * RECORD + 5], Vec::new());
            sealer.seal_into(&[&said[..10], &[], &said[10..]], &mut out);
            sealer.seal_end(&mut out);
            assert_eq!(out.len(), said.len() + 5 * OVERHEAD);
            assert_eq!(out.windows(64).any(|window| window == &said[..64]), cover == Cover::Authenticated);
            assert_eq!(opened(&mut opener, &out, 1000), (said, true, None));
        }
    }

    #[test]
    fn records_that_are_left_out_repeated_exchanged_or_another_direction_s_are_refused() {
        for cover in COVERS {
            let records = sealed(&mut pair(cover).0, &[b"one", b"two", b"three"]);
            for order in [&[1][..], &[0, 0], &[0, 2], &[1, 0, 2], &[0, 1, 1]] {
                let bytes = order.iter().map(|at| records[*at].as_slice()).collect::<Vec<_>>().concat();
                let (_, _, error) = opened(&mut pair(cover).1, &bytes, 1000);
                assert_eq!(error, Some(RecordError::Forged), "{order:?}");
            }
            let mut back = both(&mut keys(), cover, true).1;
            assert_eq!(opened(&mut back, &records[0], 1000).2, Some(RecordError::Forged), "what it said itself");
            let other = if cover == Cover::Encrypted { Cover::Authenticated } else { Cover::Encrypted };
            assert_eq!(opened(&mut pair(other).1, &records[0], 1000).2, Some(RecordError::Forged), "another cover");
        }
    }

    #[test]
    fn an_end_that_was_cut_off_is_none_and_nothing_follows_one() {
        for cover in COVERS {
            let (mut sealer, mut out) = (pair(cover).0, Vec::new());
            sealer.seal_into(&[b"an image"], &mut out);
            let whole = out.len();
            sealer.seal_end(&mut out);
            assert_eq!(opened(&mut pair(cover).1, &out[..whole], 7), (b"an image".to_vec(), false, None));
            // Whoever is in the middle makes a last record of one that is not.
            let mut forged = out[..whole].to_vec();
            forged[HEAD - 1] |= (LAST >> 24) as u8;
            assert_eq!(opened(&mut pair(cover).1, &forged, 1000), (vec![], false, Some(RecordError::Forged)));
            sealer.seal_into(&[b"more"], &mut out);
            assert_eq!(opened(&mut pair(cover).1, &out, 1000), (b"an image".to_vec(), true, Some(RecordError::AfterLast)));
        }
    }

    #[test]
    fn a_length_that_none_can_have_is_refused_before_the_body_comes() {
        for head in [RECORD as u32 + 1, 0, LAST | (RECORD as u32 + 1), u32::MAX] {
            let error = opened(&mut pair(Cover::Encrypted).1, &head.to_le_bytes(), 4).2;
            assert_eq!(error, Some(RecordError::Length((head & !LAST) as usize)));
        }
    }

    proptest! {
        #[test]
        fn any_change_is_noticed(at: prop::sample::Index, by in 1u8..=255, encrypted: bool, step in 1usize..300) {
            let cover = COVERS[usize::from(!encrypted)];
            let mut bytes = sealed(&mut pair(cover).0, &[&[1; 100], &[2; 100]]).concat();
            let at = at.index(bytes.len());
            bytes[at] ^= by;
            let (said, ended, error) = opened(&mut pair(cover).1, &bytes, step);
            prop_assert!(!ended && (said.is_empty() || said == [1; 100]));
            // A length that has grown waits for more that does not come.
            prop_assert!(error.is_some() || at % (100 + OVERHEAD) < HEAD);
        }
    }
}
