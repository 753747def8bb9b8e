//! Keys of jobs, and what is authenticated with them: connections to the log, greetings between observers, images, suspended jobs.
//!
//! All are derived from the cluster's key (BLAKE3's derive_key), so every node knows them. A process gets only its own job's key
//! ([`JobKey::derive`]), and cannot speak for the cluster, another job, or a node: nodes prove themselves to each other with a
//! key that no process has ([`JobKey::derive_for_nodes`]), and a suspended job is signed with another one
//! ([`JobKey::derive_for_suspension`]). Processes of one job trust each other: they are one program of one user.
//!
//! A key lies in a block of its own, aligned to [`SECRET_ALIGN`]. By that an allocator knows it for a secret: the library in a protected process keeps such
//! blocks in memory that no image has.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::bytes::Writer;
use crate::determinant::ConnectionId;
use crate::ids::{Epoch, JobId};
use crate::key::ClusterKey;

/// Bytes of a code.
pub const MAC: usize = 16;

/// The alignment, in bytes, of every block of memory in which a secret lies, and of no other.
pub const SECRET_ALIGN: usize = 1024;

/// A secret of one job.
#[derive(Clone)]
pub struct JobKey(Box<Held>);

#[derive(Clone, Zeroize, ZeroizeOnDrop)]
#[repr(align(1024))]
struct Held([u8; 32]);

const _: () = assert!(align_of::<Held>() == SECRET_ALIGN);

impl PartialEq for JobKey {
    fn eq(&self, other: &Self) -> bool {
        equal(&self.0.0, &other.0.0)
    }
}

impl Eq for JobKey {}

impl Serialize for JobKey {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.0.serialize(to)
    }
}

impl<'de> Deserialize<'de> for JobKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        <[u8; 32]>::deserialize(from).map(JobKey::from_bytes)
    }
}

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
    /// The first message of a login: its sender has the key, or has overheard a process that has it.
    Login,
    /// A token for the daemon's page and metrics.
    Token,
}

/// 64 bits in the name of the key space of an epoch of `job`. MPI libraries name files in a folder of all users by a hash of that name,
/// and none but the nodes can tell which those will be.
pub fn key_space(cluster: &ClusterKey, job: JobId, epoch: Epoch) -> u64 {
    let of = [&job.bits().to_le_bytes()[..], epoch.to_string().as_bytes()].concat();
    let key = JobKey::derived("radic 2026-11 name of a key space", cluster.secret(), &of);
    u64::from_le_bytes(key.0.0[..8].try_into().expect("eight of 32 bytes"))
}

impl JobKey {
    /// The key of `job`, which its processes get.
    pub fn derive(cluster: &ClusterKey, job: JobId) -> Self {
        JobKey::derived("radic 2026-11 job key", cluster.secret(), &job.bits().to_le_bytes())
    }

    /// The key with which nodes speak to each other about `job`, and with which its images are coded: no process has it.
    pub fn derive_for_nodes(cluster: &ClusterKey, job: JobId) -> Self {
        JobKey::derived("radic 2026-11 job key of nodes", cluster.secret(), &job.bits().to_le_bytes())
    }

    /// The key with which `job` is signed when it is suspended: no process has it.
    pub fn derive_for_suspension(cluster: &ClusterKey, job: JobId) -> Self {
        JobKey::derived("radic 2026-11 job key of suspensions", cluster.secret(), &job.bits().to_le_bytes())
    }

    /// The key of the tokens with which the daemon's page and metrics are read: of no job, and no process has it.
    pub(crate) fn derive_for_tokens(cluster: &ClusterKey) -> Self {
        JobKey::derived("radic 2026-11 key of tokens", cluster.secret(), &[])
    }

    fn derived(context: &'static str, secret: &[u8; 32], of: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(secret);
        hasher.update(of);
        JobKey::from_bytes(*hasher.finalize().as_bytes())
    }

    /// A key of known bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        // It goes to its place without being moved through the stack with all that the place is aligned to.
        let mut held = Box::new(Held([0; 32]));
        held.0 = bytes;
        JobKey(held)
    }

    /// The secret, for tests.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0.0
    }

    /// The key for greetings about `connection`, which a process of this job has accepted: its opener, which may be of another job, gets this key and not
    /// the job's.
    pub fn greeting_key(&self, connection: &ConnectionId) -> JobKey {
        let mut name = [0; 32];
        let mut out = Writer::new(&mut name);
        connection.write(&mut out);
        let length = out.finish().expect("two numbers of at most ten bytes, and a rank of five");
        JobKey::derived("radic 2026-11 greeting key", &self.0.0, &name[..length])
    }

    /// 64 bytes that follow from the key and these parts, which have a known length each, for the keys of a connection's records.
    pub(crate) fn fill_record_keys(&self, parts: &[&[u8]], keys: &mut [u8; 64]) {
        let mut hasher = blake3::Hasher::new_derive_key("radic 2026-11 keys of log records");
        hasher.update(&self.0.0);
        parts.iter().for_each(|part| _ = hasher.update(part));
        hasher.finalize_xof().fill(keys);
    }

    /// The code of these parts, one after the other.
    pub fn mac(&self, purpose: Purpose, parts: &[&[u8]]) -> [u8; MAC] {
        let mut code = self.begin(purpose);
        parts.iter().for_each(|part| code.update(part));
        code.finish()
    }

    /// A code over more than fits in memory.
    pub fn begin(&self, purpose: Purpose) -> Code {
        let mut hasher = blake3::Hasher::new_keyed(&self.0.0);
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
pub(crate) fn equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
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

    /// Processes have one of them. From it nothing follows about the others.
    #[test]
    fn processes_nodes_and_suspensions_have_keys_of_their_own() {
        let (cluster, job) = (ClusterKey::from_bytes([7; 32]), JobId::from_bits(1));
        let all = [JobKey::derive, JobKey::derive_for_nodes, JobKey::derive_for_suspension];
        for (at, one) in all.iter().enumerate() {
            for (other_at, other) in all.iter().enumerate() {
                assert_eq!(one(&cluster, job) == other(&cluster, job), at == other_at);
                assert_ne!(one(&cluster, job), other(&cluster, JobId::from_bits(2)));
            }
        }
    }

    #[test]
    fn a_key_space_s_name_follows_from_the_cluster_s_key_the_job_and_its_epoch() {
        let (cluster, job) = (ClusterKey::from_bytes([7; 32]), JobId::from_bits(1));
        let later = Epoch::FIRST.next(crate::ids::Seat { view: 3, home: crate::ids::BootId(5) });
        let all = [
            key_space(&cluster, job, Epoch::FIRST),
            key_space(&cluster, job, later),
            key_space(&cluster, JobId::from_bits(2), Epoch::FIRST),
            key_space(&ClusterKey::from_bytes([8; 32]), job, Epoch::FIRST),
        ];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), all.len());
        assert_eq!(all[0], key_space(&cluster, job, Epoch::FIRST));
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
