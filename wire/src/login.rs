//! How an observer and the log service of its protector make sure of each other, on a new TCP connection, before anything else is parsed.
//!
//! 1. caller: [`LOGIN`] bytes: its process, the purpose, a nonce, and the code of these. A caller without the right code gets no answer.
//! 2. protector: [`NONCE`] bytes, its own nonce, and no code: nothing in it is made with a key, for the login may be one that was overheard.
//! 3. caller: [`PROOF`] bytes: the code of the login and both nonces. A recorded proof answers no other nonce.
//! 4. protector: [`WELCOME`] bytes: how what follows is protected, and the code of that and of all that was said. It has the key, so it is a protector.
//!
//! Then records ([`crate::record`]), with keys that follow from the same, so they are good for this connection alone. In them are frames ([`crate::frame`]) of
//! [`crate::log::ToProtector`] and [`crate::log::FromProtector`]. On a connection for an image the first frame is `ImageBegin`; raw bytes of the image
//! follow up to the last record. All answers go to the newest journal connection of the process. A protector logs in at the next one, its replica, in the same
//! way.
//!
//! The codes are made with the job's key; on channels of nodes ([`Channel::Replica`], [`Channel::Fetch`]) with one that no process has ([`Channel::key`]).
//!
//! On a connection that fetches an image ([`Channel::Fetch`]) a node that brings the process back says [`WISH`] bytes, the image's number; the
//! answer is [`OFFER`] bytes, its length and its code, or a length of [`NOT_HELD`]; then come its bytes, and the end.

use crate::bytes::{Malformed, Reader, Writer};
use crate::ids::{BootId, Epoch, Incarnation, JobId, ProcessId};
use crate::key::ClusterKey;
use crate::mac::{JobKey, MAC, Purpose};
use crate::record::{self, Cover, Opener, Sealer};

/// First bytes of a login; another one whenever what follows changes.
const MAGIC: [u8; 8] = *b"RADICLG3";
/// Bytes of a nonce.
pub const NONCE: usize = 16;
/// Bytes of what a login says.
const WORDS: usize = 8 + 1 + 8 + 4 + 24 + 3 + NONCE;
/// Bytes of a login.
pub const LOGIN: usize = WORDS + MAC;
/// Bytes of a proof.
pub const PROOF: usize = MAC;
/// Bytes of a welcome.
pub const WELCOME: usize = 1 + MAC;

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
    /// A node that brings the process back, in this incarnation, wants one of its images.
    Fetch,
}

impl Channel {
    /// The key with which both sides prove themselves on it: on those of nodes one that the job's processes do not have.
    pub fn key(self, cluster: &ClusterKey, job: JobId) -> JobKey {
        match self {
            Channel::Journal | Channel::Bulk | Channel::Image => JobKey::derive(cluster, job),
            Channel::Replica | Channel::Fetch => JobKey::derive_for_nodes(cluster, job),
        }
    }
}

/// The caller's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Login {
    /// The caller.
    pub process: ProcessId,
    /// The caller's incarnation.
    pub incarnation: Incarnation,
    /// What for.
    pub channel: Channel,
    /// Never used before.
    pub nonce: [u8; NONCE],
}

impl Login {
    fn words(&self) -> [u8; WORDS] {
        let mut out = [0; WORDS];
        let mut writer = Writer::new(&mut out);
        writer.raw(&MAGIC);
        writer.u8(self.channel as u8);
        writer.u64(self.process.job.bits());
        writer.u32(self.process.rank.0);
        let Incarnation { epoch, restart } = self.incarnation;
        writer.u64(epoch.view);
        writer.u32(epoch.count);
        writer.u64(epoch.home.0);
        writer.u32(restart);
        writer.raw(&[0; 3]);
        writer.raw(&self.nonce);
        out
    }

    /// The message's bytes, with their code.
    pub fn encode(&self, key: &JobKey) -> [u8; LOGIN] {
        let (mut out, words) = ([0; LOGIN], self.words());
        out[..WORDS].copy_from_slice(&words);
        out[WORDS..].copy_from_slice(&key.mac(Purpose::Login, &[&words]));
        out
    }

    /// Reads what it says. Whether its code is right is another question ([`Login::is_coded`]): its key follows from what it says.
    pub fn decode(bytes: &[u8; LOGIN]) -> Result<Self, Malformed> {
        let mut from = Reader::new(&bytes[..WORDS]);
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
        let (job, rank) = (from.u64()?, from.u32()?);
        let epoch = Epoch { view: from.u64()?, count: from.u32()?, home: BootId(from.u64()?) };
        let incarnation = Incarnation { epoch, restart: from.u32()? };
        if from.raw(3)? != [0; 3] {
            return Err(from.malformed("bytes that mean nothing yet"));
        }
        let process = ProcessId { job: JobId::from_bits(job), rank: crate::ids::Rank(rank) };
        if process.job.bits() != job {
            return Err(from.malformed("a job has 48 bits"));
        }
        let mut nonce = [0; NONCE];
        nonce.copy_from_slice(from.raw(NONCE)?);
        Ok(Login { process, incarnation, channel, nonce })
    }

    /// Whether the code of these bytes, of which this is the login, was made with the key. It may be an overheard one that is sent again.
    pub fn is_coded(&self, key: &JobKey, bytes: &[u8; LOGIN]) -> bool {
        key.verify(Purpose::Login, &[&self.words()], &bytes[WORDS..])
    }

    /// The caller's proof, for the protector's nonce.
    pub fn prove(&self, key: &JobKey, nonce: &[u8; NONCE]) -> [u8; PROOF] {
        key.mac(Purpose::Observer, &[&self.words(), nonce])
    }

    /// Checks the proof that came for this nonce.
    pub fn is_proven(&self, key: &JobKey, nonce: &[u8; NONCE], proof: &[u8; PROOF]) -> bool {
        key.verify(Purpose::Observer, &[&self.words(), nonce], proof)
    }

    /// The protector's answer to a proof.
    pub fn welcome(&self, key: &JobKey, nonce: &[u8; NONCE], cover: Cover) -> [u8; WELCOME] {
        let mut out = [cover as u8; WELCOME];
        out[1..].copy_from_slice(&key.mac(Purpose::Protector, &[&self.words(), nonce, &[cover as u8]]));
        out
    }

    /// Checks the protector's answer: how what follows is protected. None: it is no protector of this cluster, or its answer was changed on the way.
    pub fn welcomed(&self, key: &JobKey, nonce: &[u8; NONCE], welcome: &[u8; WELCOME]) -> Option<Cover> {
        let cover = Cover::from_byte(welcome[0])?;
        key.verify(Purpose::Protector, &[&self.words(), nonce, &welcome[..1]], &welcome[1..]).then_some(cover)
    }

    /// What the caller seals its records with, and opens the protector's.
    pub fn records_of_caller(&self, key: &JobKey, nonce: &[u8; NONCE], cover: Cover) -> (Sealer, Opener) {
        self.records(key, nonce, cover, true)
    }

    /// What the protector seals its records with, and opens the caller's.
    pub fn records_of_protector(&self, key: &JobKey, nonce: &[u8; NONCE], cover: Cover) -> (Sealer, Opener) {
        self.records(key, nonce, cover, false)
    }

    fn records(&self, key: &JobKey, nonce: &[u8; NONCE], cover: Cover, is_caller: bool) -> (Sealer, Opener) {
        let mut keys = [0; 64];
        key.fill_record_keys(&[&self.words(), nonce, &[cover as u8]], &mut keys);
        record::both(&mut keys, cover, is_caller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Rank;

    const CHANNELS: [Channel; 5] = [Channel::Journal, Channel::Bulk, Channel::Image, Channel::Replica, Channel::Fetch];

    fn login() -> Login {
        let process = ProcessId { job: JobId::from_bits(5), rank: Rank(3) };
        Login { process, incarnation: Incarnation::restarted(1), channel: Channel::Bulk, nonce: [9; NONCE] }
    }

    fn key(cluster: u8) -> JobKey {
        JobKey::derive(&ClusterKey::from_bytes([cluster; 32]), JobId::from_bits(5))
    }

    #[test]
    fn both_sides_prove_that_they_have_the_key_and_a_recording_proves_nothing() {
        let (key, login, nonce) = (key(1), login(), [4; NONCE]);
        assert_eq!(Login::decode(&login.encode(&key)), Ok(login));
        assert!(login.is_coded(&key, &login.encode(&key)));
        let proof = login.prove(&key, &nonce);
        assert!(login.is_proven(&key, &nonce, &proof));
        assert!(!login.is_proven(&key, &[5; NONCE], &proof), "another nonce");
        assert!(
            !Login { incarnation: Incarnation::restarted(2), ..login }.is_proven(&key, &nonce, &proof),
            "another incarnation"
        );
        let welcome = login.welcome(&key, &nonce, Cover::Encrypted);
        assert_eq!(login.welcomed(&key, &nonce, &welcome), Some(Cover::Encrypted));
        assert_eq!(login.welcomed(&self::key(2), &nonce, &welcome), None);
        assert_eq!(login.welcomed(&key, &[5; NONCE], &welcome), None, "another nonce");
        assert_eq!(Login { channel: Channel::Journal, ..login }.welcomed(&key, &nonce, &welcome), None, "another channel");
    }

    /// The protector speaks of keys only after the caller has proven that it has this one.
    #[test]
    fn a_login_without_the_key_is_told_from_one_with_it() {
        let login = login();
        assert!(!login.is_coded(&key(1), &login.encode(&key(2))));
        let mut bytes = login.encode(&key(1));
        bytes[LOGIN - 1] ^= 1;
        assert!(!login.is_coded(&key(1), &bytes));
    }

    /// What a process can prove opens no channel of nodes.
    #[test]
    fn processes_have_no_key_for_the_channels_of_nodes() {
        let cluster = ClusterKey::from_bytes([1; 32]);
        for channel in CHANNELS {
            let of_nodes = matches!(channel, Channel::Replica | Channel::Fetch);
            let login = Login { channel, ..login() };
            let there = channel.key(&cluster, login.process.job);
            assert_eq!(login.is_coded(&there, &login.encode(&key(1))), !of_nodes, "{channel:?}");
            assert_eq!(login.is_proven(&there, &[4; NONCE], &login.prove(&key(1), &[4; NONCE])), !of_nodes, "{channel:?}");
        }
    }

    /// An attacker in the middle lets the caller believe that less is wanted.
    #[test]
    fn how_records_are_protected_cannot_be_changed_on_the_way() {
        let (key, login, nonce) = (key(1), login(), [4; NONCE]);
        let mut welcome = login.welcome(&key, &nonce, Cover::Encrypted);
        welcome[0] = Cover::Authenticated as u8;
        assert_eq!(login.welcomed(&key, &nonce, &welcome), None);
        welcome[0] = 7;
        assert_eq!(login.welcomed(&key, &nonce, &welcome), None);
    }

    /// Each connection has keys of its own: of its process, incarnation, channel, nonces and cover.
    #[test]
    fn records_of_one_connection_are_none_of_another() {
        let (key, login, nonce) = (key(1), login(), [4; NONCE]);
        let cover = Cover::Encrypted;
        let mut said = Vec::new();
        login.records_of_caller(&key, &nonce, cover).0.seal_into(&[b"said"], &mut said);
        let is_heard = |login: Login, key: &JobKey, nonce, cover| {
            let mut opener = login.records_of_protector(key, &nonce, cover).1;
            opener.push(&said);
            opener.next_body().is_ok_and(|body| body == Some(b"said"))
        };
        assert!(is_heard(login, &key, nonce, cover));
        assert!(!is_heard(login, &self::key(2), nonce, cover));
        assert!(!is_heard(login, &key, [5; NONCE], cover));
        assert!(!is_heard(login, &key, nonce, Cover::Authenticated));
        for other in [
            Login { incarnation: Incarnation::restarted(2), ..login },
            Login { channel: Channel::Journal, ..login },
            Login { nonce: [8; NONCE], ..login },
        ] {
            assert!(!is_heard(other, &key, nonce, cover), "{other:?}");
        }
    }

    #[test]
    fn what_is_no_login_is_refused() {
        for at in [0, 8, 15, 45] {
            let mut bytes = login().encode(&key(1));
            bytes[at] ^= 0x80;
            assert!(Login::decode(&bytes).is_err(), "byte {at}");
        }
    }
}
