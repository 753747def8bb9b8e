//! Keys of jobs, and what is authenticated with them: connections to the log, greetings between observers, images.
//!
//! A job's key is derived from the cluster's (BLAKE3's derive_key), so every protector knows it and a process, which gets only its own
//! job's, cannot speak for the cluster or another job. Processes of one job trust each other: they are one program of one user.

use std::fmt;

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::bytes::Writer;
use crate::determinant::ConnectionId;
use crate::ids::JobId;
use crate::key::ClusterKey;

/// Bytes of a code.
pub const MAC: usize = 16;

/// The secret of one job.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct JobKey([u8; 32]);

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(..)")
    }
}

/// What a code is for: one made for one purpose proves nothing for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A greeting between two observers.
    Greeting,
    /// The observer's proof when it logs in at a protector.
    Observer,
    /// The protector's.
    Protector,
    /// A committed image.
    Image,
    /// A file of a suspended job.
    Suspension,
}

impl JobKey {
    /// The key of `job`.
    pub fn derive(cluster: &ClusterKey, job: JobId) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("radic 2026-11 job key");
        hasher.update(cluster.secret());
        hasher.update(&job.bits().to_le_bytes());
        JobKey(*hasher.finalize().as_bytes())
    }

    /// A key of known bytes: as a protector hands it to its job's processes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        JobKey(bytes)
    }

    /// The secret, for the job's own processes.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0
    }

    /// The key for greetings about `connection`, which a process of this job has accepted: its opener, which may be of another job, gets this key and not
    /// the job's.
    pub fn greeting_key(&self, connection: &ConnectionId) -> JobKey {
        let mut name = [0; 32];
        let mut out = Writer::new(&mut name);
        connection.write(&mut out);
        let length = out.finish().expect("two numbers of at most ten bytes, and a rank of five");
        let mut hasher = blake3::Hasher::new_derive_key("radic 2026-11 greeting key");
        hasher.update(&self.0);
        hasher.update(&name[..length]);
        JobKey(*hasher.finalize().as_bytes())
    }

    /// The code of these parts, one after the other.
    pub fn mac(&self, purpose: Purpose, parts: &[&[u8]]) -> [u8; MAC] {
        let mut code = self.begin(purpose);
        parts.iter().for_each(|part| code.update(part));
        code.finish()
    }

    /// A code over more than fits in memory.
    pub fn begin(&self, purpose: Purpose) -> Code {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[purpose as u8]);
        Code(hasher)
    }

    /// Whether `code` is the code of these parts; takes the same time whichever byte differs.
    pub fn verify(&self, purpose: Purpose, parts: &[&[u8]], code: &[u8]) -> bool {
        equal(&self.mac(purpose, parts), code)
    }
}

/// A code in the making.
pub struct Code(blake3::Hasher);

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Code(..)")
    }
}

impl Code {
    /// More bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The code.
    pub fn finish(self) -> [u8; MAC] {
        let mut code = [0; MAC];
        code.copy_from_slice(&self.0.finalize().as_bytes()[..MAC]);
        code
    }
}

/// Compares without telling by its time where the difference is.
fn equal(a: &[u8; MAC], b: &[u8]) -> bool {
    b.len() == MAC && a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ProcessId, Rank};

    #[test]
    fn a_greeting_key_is_good_for_its_connection_only() {
        let key = JobKey::from_bytes([9; 32]);
        let connection =
            |job, rank, number| ConnectionId { opener: ProcessId { job: JobId::from_bits(job), rank: Rank(rank) }, number };
        let one = key.greeting_key(&connection(1, 2, 3)).to_bytes();
        assert_eq!(one, key.greeting_key(&connection(1, 2, 3)).to_bytes());
        for other in [connection(2, 2, 3), connection(1, 3, 3), connection(1, 2, 4)] {
            assert_ne!(one, key.greeting_key(&other).to_bytes());
        }
        assert_ne!(one, JobKey::from_bytes([8; 32]).greeting_key(&connection(1, 2, 3)).to_bytes());
        assert_ne!(one, key.to_bytes());
        // The longest name that there is.
        key.greeting_key(&connection(u64::MAX, u32::MAX, u64::MAX));
    }

    #[test]
    fn a_code_is_good_for_its_job_its_purpose_and_its_bytes_only() {
        let cluster = ClusterKey::from_bytes([7; 32]);
        let key = JobKey::derive(&cluster, JobId::from_bits(1));
        let code = key.mac(Purpose::Greeting, &[b"ab", b"c"]);
        assert!(key.verify(Purpose::Greeting, &[b"abc"], &code));
        assert!(!key.verify(Purpose::Image, &[b"abc"], &code));
        assert!(!key.verify(Purpose::Greeting, &[b"abd"], &code));
        assert!(!key.verify(Purpose::Greeting, &[b"abc"], &code[..15]));
        assert!(!JobKey::derive(&cluster, JobId::from_bits(2)).verify(Purpose::Greeting, &[b"abc"], &code));
        assert_eq!(JobKey::from_bytes(key.to_bytes()).mac(Purpose::Greeting, &[b"abc"]), code);
    }
}
