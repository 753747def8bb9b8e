//! A job that is suspended: what is known of it beside the logs and images of its ranks, and the list of the files in which all of it is.
//!
//! The list, `manifest`, is [`MAGIC`], the version, the job, the length of the rest, the rest, and a code over all of that. The
//! key ([`JobKey::derive_for_suspension`]) is made of the cluster's and no process has it, so what a cluster has not written it
//! does not read: a list that is damaged, or comes from elsewhere, is refused as a whole, before anything in it is parsed. It
//! holds the length and the code of each other file.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::codec;
use crate::ids::{Incarnation, JobId, Rank};
use crate::job::{OutputStream, Ward};
use crate::key::ClusterKey;
use crate::limits;
use crate::log::HeldStream;
use crate::mac::{JobKey, MAC, Purpose};
use crate::span::Span;

/// The first bytes of a list.
pub const MAGIC: [u8; 8] = *b"RADICSUS";
/// Raised whenever the format changes.
pub const VERSION: u32 = 7;
/// Up to this version lists were signed with the key that the job's processes have, and that is in the images beside them.
const SIGNED_BY_PROCESSES: u32 = 2;
/// Bytes before the body: magic, version, job, length.
pub const HEAD: usize = 8 + 4 + 8 + 8;

/// What the job's home and hosts know of a job that is suspended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspension {
    /// The job. It keeps its number: its processes know it, and its key is made of it.
    pub job: JobId,
    /// What runs, where, and the key space.
    pub ward: Ward,
    /// When it was started, in milliseconds since 1970.
    pub started_ms: u64,
    /// Of each rank, the address of the node where it was first launched: by it others know where it listens.
    pub origins: Vec<IpAddr>,
    /// Of each rank, the offsets in standard output and standard error of the first byte that the job's home did not have.
    pub output: Vec<[u64; 2]>,
    /// The newest recovery line of which it has heard: those that it makes later have higher numbers.
    pub line: u64,
}

/// What is further needed for going on with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumption {
    /// Of each rank, the first incarnation in the life that begins: the next one after that which was suspended. No process is
    /// this incarnation; the command that gives the rank's log to its protector speaks as it. So whatever still runs of the last
    /// life is refused.
    pub incarnations: Vec<Incarnation>,
}

/// A piece of output that no terminal has printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unprinted {
    /// The rank that wrote it.
    pub rank: Rank,
    /// Which stream.
    pub stream: OutputStream,
    /// Offset of its first byte.
    pub offset: u64,
    /// The bytes.
    pub data: ByteBuf,
}

/// A file: its length and its code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFile {
    /// The file's name in the folder.
    pub name: String,
    /// The file's length, in bytes.
    pub bytes: u64,
    /// The code of the file's name and bytes.
    pub code: [u8; MAC],
}

/// An image, in a file of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedImage {
    /// The image's number.
    pub image: u64,
    /// The image that it is an increment of.
    pub parent: Option<u64>,
    /// The journal position that it corresponds to.
    pub cut: u64,
    /// Where it is.
    pub file: SavedFile,
}

/// What is saved of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRank {
    /// The incarnation that was suspended.
    pub incarnation: Incarnation,
    /// The rank's images, a full one first, then its increments.
    pub images: Vec<SavedImage>,
    /// The rank's journal, from the cut of the last image on.
    pub journal: Span,
    /// Where that is.
    pub journal_file: SavedFile,
    /// What it has received.
    pub streams: Vec<HeldStream>,
    /// Where that is, one stream after the other; those that are closed have nothing there.
    pub streams_file: SavedFile,
}

impl SavedRank {
    /// All files.
    pub fn files(&self) -> impl Iterator<Item = &SavedFile> {
        self.images.iter().map(|image| &image.file).chain([&self.journal_file, &self.streams_file])
    }

    /// Bytes of received streams: those that are closed need none.
    pub fn received(&self) -> u64 {
        let open = self.streams.iter().filter(|stream| !stream.closed);
        open.fold(0, |sum, stream| sum.saturating_add(stream.bytes.end - stream.bytes.start))
    }

    fn check(&self) -> Result<(), &'static str> {
        let (Some(first), Some(last)) = (self.images.first(), self.images.last()) else { return Err("a rank has no image") };
        let chain = self
            .images
            .windows(2)
            .all(|pair| pair[1].parent == Some(pair[0].image) && pair[0].image < pair[1].image && pair[0].cut <= pair[1].cut);
        if first.parent.is_some() || !chain {
            return Err("the images of a rank are no chain");
        }
        if self.journal.start != last.cut || self.journal.end.checked_sub(last.cut) != Some(self.journal_file.bytes) {
            return Err("the journal of a rank does not begin at the cut of its last image, or is not as long as its file");
        }
        let good = |stream: &HeldStream| {
            stream.bytes.start <= stream.bytes.end && stream.ended.is_none_or(|ended| ended >= stream.bytes.end)
        };
        if self.streams.len() > limits::CUT_STREAMS
            || !self.streams.iter().all(good)
            || self.received() != self.streams_file.bytes
        {
            return Err("what a rank has received is not as long as its file");
        }
        if self.files().any(|file| !is_name(&file.name)) {
            return Err("a file has no name that could be in the folder");
        }
        Ok(())
    }
}

/// A list leads nowhere else.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    !name.is_empty() && name.len() <= 64 && name.chars().all(plain) && !name.starts_with('.')
}

/// The list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// What is known of the job.
    pub suspension: Suspension,
    /// The job's output that no terminal has printed, in its order.
    pub unprinted: Vec<Unprinted>,
    /// What is saved of each rank.
    pub ranks: Vec<SavedRank>,
}

/// Why bytes are no list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The bytes end too early, or too late.
    #[error("it has {got} bytes instead of {expected}: it is truncated, or something was added; copy the folder again")]
    Length {
        /// How long it must be, at least.
        expected: u64,
        /// How long it is.
        got: u64,
    },
    /// The bytes are something else.
    #[error("it does not begin as the list of a suspended job does; name a folder that `radic suspend` has written")]
    Magic,
    /// The list is of another build.
    #[error("it is of version {0}, this build reads version {VERSION}; resume it with the release that has written it")]
    Version(u32),
    /// A user that could read the folder could sign it again.
    #[error(
        "it is of version {0}, which was signed with a key that its own images hold: any user that could read it may have changed it. This build reads version \
         {VERSION} only: resume it with the build that has written it, and suspend it anew with this one"
    )]
    Forgeable(u32),
    /// Some of its bytes were not written so, or not by this cluster.
    #[error(
        "it is damaged, or was written by a cluster with another key; start this cluster with that key (`radic key` has made it), or copy the folder again"
    )]
    Code,
    /// The list contradicts itself.
    #[error("{0}")]
    Invalid(String),
    /// Too long.
    #[error("{0}")]
    TooLong(String),
}

impl Manifest {
    /// The list's bytes.
    pub fn encode(&self, cluster: &ClusterKey) -> Result<Vec<u8>, ManifestError> {
        self.check()?;
        let body = codec::encode(self, limits::SUSPENSION).map_err(|error| ManifestError::TooLong(error.to_string()))?;
        let mut out = Vec::with_capacity(HEAD + body.len() + MAC);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.suspension.job.bits().to_le_bytes());
        out.extend_from_slice(&(body.len() as u64).to_le_bytes());
        out.extend_from_slice(&body);
        let code = JobKey::derive_for_suspension(cluster, self.suspension.job).mac(Purpose::Suspension, &[&out]);
        out.extend_from_slice(&code);
        Ok(out)
    }

    /// Reads it.
    pub fn decode(bytes: &[u8], cluster: &ClusterKey) -> Result<Self, ManifestError> {
        let got = bytes.len() as u64;
        let too_short = || ManifestError::Length { expected: (HEAD + MAC) as u64, got };
        let magic = bytes.first_chunk::<8>().ok_or_else(too_short)?;
        if *magic != MAGIC {
            return Err(ManifestError::Magic);
        }
        let number = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()).map(|b| u64::from_le_bytes(*b));
        let version = bytes.get(8..).and_then(|rest| rest.first_chunk::<4>()).map(|b| u32::from_le_bytes(*b));
        let version = version.ok_or_else(too_short)?;
        match version {
            VERSION => {}
            1..=SIGNED_BY_PROCESSES => return Err(ManifestError::Forgeable(version)),
            other => return Err(ManifestError::Version(other)),
        }
        let (job, length) = number(12).zip(number(20)).ok_or_else(too_short)?;
        let expected = length.saturating_add((HEAD + MAC) as u64);
        if got != expected {
            return Err(ManifestError::Length { expected, got });
        }
        let (coded, code) = bytes.split_at(bytes.len() - MAC);
        let named = JobId::from_bits(job);
        if !JobKey::derive_for_suspension(cluster, named).verify(Purpose::Suspension, &[coded], code) {
            return Err(ManifestError::Code);
        }
        let invalid = |error: codec::CodecError| ManifestError::Invalid(error.to_string());
        let manifest: Manifest = codec::decode(&coded[HEAD..], limits::SUSPENSION).map_err(invalid)?;
        if manifest.suspension.job != named {
            return Err(ManifestError::Invalid("it is of one job outside and of another inside".to_owned()));
        }
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), ManifestError> {
        let invalid = |what: &str| Err(ManifestError::Invalid(what.to_owned()));
        let Suspension { ward, origins, output, .. } = &self.suspension;
        if let Err(error) = ward.spec.validate() {
            return invalid(&error.to_string());
        }
        let ranks = ward.spec.ranks as usize;
        if [origins.len(), output.len(), self.ranks.len()] != [ranks; 3] {
            return invalid("it is not about each rank of the job");
        }
        if self.unprinted.iter().any(|piece| piece.rank.0 as usize >= ranks || piece.data.len() > limits::CHUNK) {
            return invalid("a piece of output is of no rank, or too long");
        }
        let wrong = self.ranks.iter().zip(0..).find_map(|(rank, number): (_, u32)| Some((number, rank.check().err()?)));
        wrong.map_or(Ok(()), |(rank, what)| invalid(&format!("rank {rank}: {what}")))
    }
}

/// The code of a file in the making: its name goes first, so that no file passes for another.
pub fn begin_code(key: &JobKey, name: &str) -> crate::mac::Code {
    let mut code = key.begin(Purpose::Suspension);
    code.update(name.as_bytes());
    code.update(&[0]);
    code
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::determinant::{ConnectionId, StreamId};
    use crate::ids::{BootId, NodeId, ProcessId};
    use crate::job::{JobSpec, MapBy, OnLoss, Placement, RestartOn};
    use crate::process::Protection;

    fn key() -> ClusterKey {
        ClusterKey::from_bytes([7; 32])
    }

    fn file(name: &str, bytes: u64) -> SavedFile {
        SavedFile { name: name.to_owned(), bytes, code: [1; MAC] }
    }

    fn manifest() -> Manifest {
        let job = JobId::from_bits(0xabc);
        let spec = JobSpec {
            program: ByteBuf::from("/bin/true"),
            args: vec![ByteBuf::from("true")],
            env: vec![],
            templates: vec![],
            dir: ByteBuf::from("/"),
            ranks: 1,
            nodes: vec![],
            map_by: MapBy::Node,
            umask: 0o22,
            protection: Protection::default(),
            mtbf_s: 86_400,
            restart_on: RestartOn::Spare,
            on_loss: OnLoss::Fail,
            life: 0,
        };
        let node = NodeId { name: "n1".parse().unwrap(), boot: BootId(1) };
        let placement = Placement { nodes: vec![node], rank_nodes: vec![0] };
        let ward = Ward { epoch: crate::ids::Epoch::FIRST, spec, placement, fence: 2, keys: vec![("a".into(), "b".into())] };
        let suspension =
            Suspension { job, ward, started_ms: 5, origins: vec![IpAddr::from([127, 0, 0, 1])], output: vec![[10, 0]], line: 2 };
        let data = ByteBuf::from("a line\n");
        let unprinted = vec![Unprinted { rank: Rank(0), stream: OutputStream::Stdout, offset: 3, data }];
        let connection = ConnectionId { opener: ProcessId { job, rank: Rank(0) }, number: 1 };
        let stream = |from_opener, end, closed| HeldStream {
            stream: StreamId { connection, from_opener },
            bytes: Span { start: 100, end },
            ended: None,
            closed,
        };
        let image = |image, parent, cut| SavedImage { image, parent, cut, file: file(&format!("rank-0.image-{image}"), 9) };
        let rank = SavedRank {
            incarnation: Incarnation::restarted(3),
            images: vec![image(4, None, 50), image(5, Some(4), 60)],
            journal: Span { start: 60, end: 80 },
            journal_file: file("rank-0.journal", 20),
            streams: vec![stream(true, 130, false), stream(false, 500, true)],
            streams_file: file("rank-0.received", 30),
        };
        Manifest { suspension, unprinted, ranks: vec![rank] }
    }

    #[test]
    fn it_comes_back_and_nobody_else_s_is_read() {
        let bytes = manifest().encode(&key()).unwrap();
        assert_eq!(Manifest::decode(&bytes, &key()), Ok(manifest()));
        assert_eq!(Manifest::decode(&bytes, &ClusterKey::from_bytes([8; 32])), Err(ManifestError::Code));
    }

    /// The key of the job's processes signs no list.
    #[test]
    fn what_a_process_has_signed_is_refused() {
        let mut bytes = manifest().encode(&key()).unwrap();
        let signed = bytes.len() - MAC;
        for derive in [JobKey::derive, JobKey::derive_for_nodes] {
            let code = derive(&key(), manifest().suspension.job).mac(Purpose::Suspension, &[&bytes[..signed]]);
            bytes[signed..].copy_from_slice(&code);
            assert_eq!(Manifest::decode(&bytes, &key()), Err(ManifestError::Code));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let bytes = manifest().encode(&key()).unwrap();
        let longer = [&bytes[..], b"x"].concat();
        let expected = bytes.len() as u64;
        assert_eq!(Manifest::decode(&longer, &key()), Err(ManifestError::Length { expected, got: expected + 1 }));
        let mut other = bytes.clone();
        other[8] = VERSION as u8 + 1;
        assert_eq!(Manifest::decode(&other, &key()), Err(ManifestError::Version(VERSION + 1)));
        other[8] = SIGNED_BY_PROCESSES as u8;
        assert_eq!(Manifest::decode(&other, &key()), Err(ManifestError::Forgeable(SIGNED_BY_PROCESSES)));
        other[0] = 0;
        assert_eq!(Manifest::decode(&other, &key()), Err(ManifestError::Magic));
        assert!(matches!(Manifest::decode(&[], &key()), Err(ManifestError::Length { got: 0, .. })));
    }

    #[test]
    fn what_contradicts_itself_is_neither_written_nor_read() {
        let wrong: [fn(&mut Manifest); 11] = [
            |m| m.suspension.origins.clear(),
            |m| m.suspension.ward.spec.ranks = 2,
            |m| m.ranks[0].images.clear(),
            |m| m.ranks[0].images[0].parent = Some(1),
            |m| m.ranks[0].images[1].parent = Some(3),
            |m| m.ranks[0].journal.end = 81,
            |m| m.ranks[0].journal = Span { start: 61, end: 81 },
            |m| m.ranks[0].streams[0].bytes = Span { start: 130, end: 100 },
            |m| m.ranks[0].streams[1].closed = false,
            |m| m.ranks[0].journal_file.name = "../etc/passwd".to_owned(),
            |m| m.unprinted[0].rank = Rank(1),
        ];
        for (number, spoil) in wrong.iter().enumerate() {
            let mut manifest = manifest();
            spoil(&mut manifest);
            assert!(matches!(manifest.encode(&key()), Err(ManifestError::Invalid(_))), "{number}");
            // As another build might write it, with its code.
            let body = codec::encode(&manifest, limits::SUSPENSION).unwrap();
            let length = (body.len() as u64).to_le_bytes();
            let job = manifest.suspension.job.bits().to_le_bytes();
            let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &job, &length, &body].concat();
            let code = JobKey::derive_for_suspension(&key(), manifest.suspension.job).mac(Purpose::Suspension, &[&bytes]);
            bytes.extend_from_slice(&code);
            assert!(matches!(Manifest::decode(&bytes, &key()), Err(ManifestError::Invalid(_))), "{number}");
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), magic: bool) {
            let bytes = if magic { [&MAGIC[..], &VERSION.to_le_bytes(), &bytes].concat() } else { bytes };
            prop_assert!(Manifest::decode(&bytes, &key()).is_err());
        }

        /// One byte is another one, or the end is missing.
        #[test]
        fn damage_is_noticed(at: prop::sample::Index, by in 1u8..=255, cut: prop::sample::Index) {
            let bytes = manifest().encode(&key()).unwrap();
            let mut damaged = bytes.clone();
            damaged[at.index(bytes.len())] ^= by;
            prop_assert!(Manifest::decode(&damaged, &key()).is_err());
            prop_assert!(Manifest::decode(&bytes[..cut.index(bytes.len())], &key()).is_err());
        }

        /// The parser that runs after the check of the code holds, too, whatever a holder of the key writes.
        #[test]
        fn a_body_of_garbage_is_refused(body in prop::collection::vec(any::<u8>(), 0..300), from_good: bool, at: prop::sample::Index, by: u8) {
            let good = codec::encode(&manifest(), limits::SUSPENSION).unwrap();
            let mut body = if from_good { good.clone() } else { body };
            if from_good {
                let at = at.index(body.len());
                body[at] ^= by;
            }
            let job = JobId::from_bits(0xabc);
            let length = (body.len() as u64).to_le_bytes();
            let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &job.bits().to_le_bytes(), &length, &body].concat();
            let code = JobKey::derive_for_suspension(&key(), job).mac(Purpose::Suspension, &[&bytes]);
            bytes.extend_from_slice(&code);
            if let Ok(read) = Manifest::decode(&bytes, &key()) {
                prop_assert!(from_good && read.encode(&key()).is_ok());
            }
        }
    }
}
