//! How an observer and the log service of its protector make sure of each other, on a new TCP connection, before anything else is parsed.
//!
//! 1. observer: [`Login`], 44 bytes: who, what for, a nonce.
//! 2. protector: [`CHALLENGE`] bytes: its nonce, and the code of both nonces and the login. It has the job's key, so it is a protector.
//! 3. observer: [`PROOF`] bytes: the code of the same. A recorded proof answers no other nonce.
//!
//! Then frames ([`crate::frame`]) of [`crate::log::ToProtector`] and [`crate::log::FromProtector`], not encrypted, as the application's own bytes
//! are not. On a connection for an image the first frame is `ImageBegin`; raw bytes of the image follow up to the end of the connection.
//! All answers go to the newest journal connection of the process. A protector logs in at the next one, its replica, in the same way.
//!
//! On a connection that fetches an image ([`Channel::Fetch`]) a node that brings the process back says [`WISH`] bytes, the image's number; the
//! answer is [`OFFER`] bytes, its length and its code, or a length of [`NOT_HELD`]; then come its bytes, and the end.

use crate::bytes::{Malformed, Reader, Writer};
use crate::ids::{Incarnation, ProcessId};
use crate::mac::{JobKey, MAC, Purpose};

/// First bytes of a login; another one whenever what follows changes.
const MAGIC: [u8; 8] = *b"RADICLG1";
/// Bytes of a nonce.
pub const NONCE: usize = 16;
/// Bytes of a login.
pub const LOGIN: usize = 8 + 1 + 8 + 4 + 4 + 3 + NONCE;
/// Bytes of a challenge.
pub const CHALLENGE: usize = NONCE + MAC;
/// Bytes of a proof.
pub const PROOF: usize = MAC;

/// Bytes that say which image is wanted.
pub const WISH: usize = 8;
/// Bytes before those of an image: its length, its code.
pub const OFFER: usize = 8 + MAC;
/// The length of an image that is not there.
pub const NOT_HELD: u64 = u64::MAX;

/// What a connection to the log is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Determinants and all answers: small, urgent.
    Journal,
    /// Received payload.
    Bulk,
    /// One image.
    Image,
    /// A protector forwards what it holds of the process to the next one: frames in both directions, as on all channels of an observer together.
    Replica,
    /// A node that brings the process back, in this life, wants one of its images.
    Fetch,
}

/// The observer's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Login {
    /// Who speaks.
    pub process: ProcessId,
    /// In which life.
    pub incarnation: Incarnation,
    /// What for.
    pub channel: Channel,
    /// Never used before.
    pub nonce: [u8; NONCE],
}

impl Login {
    /// Its bytes.
    pub fn encode(&self) -> [u8; LOGIN] {
        let mut out = [0; LOGIN];
        let mut writer = Writer::new(&mut out);
        writer.raw(&MAGIC);
        writer.u8(self.channel as u8);
        writer.u64(self.process.job.bits());
        writer.u32(self.process.rank.0);
        writer.u32(self.incarnation.0);
        writer.raw(&[0; 3]);
        writer.raw(&self.nonce);
        out
    }

    /// Reads it.
    pub fn decode(bytes: &[u8; LOGIN]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        if from.raw(MAGIC.len())? != MAGIC {
            return Err(from.malformed("no login of this version"));
        }
        let channel = match from.u8()? {
            0 => Channel::Journal,
            1 => Channel::Bulk,
            2 => Channel::Image,
            3 => Channel::Replica,
            4 => Channel::Fetch,
            _ => return Err(from.malformed("no such channel")),
        };
        let (job, rank, incarnation) = (from.u64()?, from.u32()?, from.u32()?);
        if from.raw(3)? != [0; 3] {
            return Err(from.malformed("bytes that mean nothing yet"));
        }
        let process = ProcessId { job: crate::ids::JobId::from_bits(job), rank: crate::ids::Rank(rank) };
        if process.job.bits() != job {
            return Err(from.malformed("a job has 48 bits"));
        }
        let mut nonce = [0; NONCE];
        nonce.copy_from_slice(from.raw(NONCE)?);
        Ok(Login { process, incarnation: Incarnation(incarnation), channel, nonce })
    }

    /// The protector's answer: its nonce and its code.
    pub fn challenge(&self, key: &JobKey, nonce: [u8; NONCE]) -> [u8; CHALLENGE] {
        let mut out = [0; CHALLENGE];
        out[..NONCE].copy_from_slice(&nonce);
        out[NONCE..].copy_from_slice(&key.mac(Purpose::Protector, &[&self.encode(), &nonce]));
        out
    }

    /// Checks the protector's answer; the proof to answer it with, or none: it is no protector of this cluster.
    pub fn prove(&self, key: &JobKey, challenge: &[u8; CHALLENGE]) -> Option<[u8; PROOF]> {
        let (nonce, code) = challenge.split_at(NONCE);
        let login = self.encode();
        key.verify(Purpose::Protector, &[&login, nonce], code).then(|| key.mac(Purpose::Observer, &[&login, nonce]))
    }

    /// Checks the proof that came to the challenge with this nonce.
    pub fn is_proven(&self, key: &JobKey, nonce: &[u8; NONCE], proof: &[u8; PROOF]) -> bool {
        key.verify(Purpose::Observer, &[&self.encode(), nonce], proof)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{JobId, Rank};
    use crate::key::ClusterKey;

    fn login() -> Login {
        let process = ProcessId { job: JobId::from_bits(5), rank: Rank(3) };
        Login { process, incarnation: Incarnation(1), channel: Channel::Bulk, nonce: [9; NONCE] }
    }

    #[test]
    fn both_sides_prove_that_they_have_the_key_and_a_recording_proves_nothing() {
        let key = JobKey::derive(&ClusterKey::from_bytes([1; 32]), JobId::from_bits(5));
        let login = login();
        assert_eq!(Login::decode(&login.encode()), Ok(login));
        let challenge = login.challenge(&key, [4; NONCE]);
        let proof = login.prove(&key, &challenge).unwrap();
        assert!(login.is_proven(&key, &[4; NONCE], &proof));
        assert!(!login.is_proven(&key, &[5; NONCE], &proof), "another nonce");
        assert!(!Login { incarnation: Incarnation(2), ..login }.is_proven(&key, &[4; NONCE], &proof), "another life");
        let other = JobKey::derive(&ClusterKey::from_bytes([2; 32]), JobId::from_bits(5));
        assert_eq!(login.prove(&other, &challenge), None);
        assert_eq!(login.prove(&key, &Login { channel: Channel::Journal, ..login }.challenge(&key, [4; NONCE])), None);
    }

    #[test]
    fn what_is_no_login_is_refused() {
        for at in [0, 8, 15, 25] {
            let mut bytes = login().encode();
            bytes[at] ^= 0x80;
            assert!(Login::decode(&bytes).is_err(), "byte {at}");
        }
    }
}
