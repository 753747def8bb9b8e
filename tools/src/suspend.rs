//! `radic suspend` and `radic resume`: a whole job into a folder, and back onto whatever nodes there are.
//!
//! | file | what |
//! |---|---|
//! | `manifest` | the job, and the length and code of each other file ([`radic_wire::suspension`]); written last, so a folder without it is none |
//! | `rank-R.image-N` | an image, as its protector had it |
//! | `rank-R.journal` | the journal, from the cut of the last image on |
//! | `rank-R.received` | what the rank had received since, one stream after the other |
//!
//! While the folder is written all ranks are stopped. If that fails, or this command dies, they go on as if nothing had been. The logs are listed before and
//! after they are copied: they have not changed in between, hence they are those of one moment.
//!
//! A resume reads and verifies every file before it asks a node for anything. Then it gives each rank's protector-to-be the images and the log, in the
//! rank's name and over the rank's protocol ([`radic_wire::log`]), so what goes in there is checked as it was the first time.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use radic_ckpt::trusted::{self, Owners};
use radic_protector::folder;
use radic_protector::logs::client::Client;
use radic_protector::store::Speaker;
use radic_wire::determinant::StreamId;
use radic_wire::ids::{Incarnation, JobId, NodeName, ProcessId, Rank};
use radic_wire::job::OutputStream;
use radic_wire::key::ClusterKey;
use radic_wire::limits;
use radic_wire::local::{RankCheckpoint, Reply, Request};
use radic_wire::log::{CutStreams, FromProtector, HeldImage, HeldLog, HeldStream, ImageState, LogPart, Span, ToProtector};
use radic_wire::login::Channel;
use radic_wire::mac::{Code, JobKey};
use radic_wire::suspension::{Manifest, Resumption, SavedFile, SavedImage, SavedRank, Suspension, Unprinted, begin_code};

use crate::client::{ClientError, Cluster, Connection};
use crate::log::Held;
use crate::show::{bytes, report};
use crate::{counters, session};

const MANIFEST: &str = "manifest";
/// Time for all ranks to stop, and for the job's terminal to print what it was sent.
const STOPPED: Duration = Duration::from_secs(30);
/// Time for the job to end when it is written down.
const ENDED: Duration = Duration::from_secs(60);
/// Time for any one step of a protector that takes an image: it verifies all of it.
const STEP: Duration = Duration::from_secs(300);
/// So often the logs are copied once more because they have changed meanwhile: an image was being committed.
const ATTEMPTS: u32 = 5;
/// Bytes that are read from a file at once.
const PIECE: usize = limits::LOG_CHUNK;

/// Flags of `radic suspend`.
#[derive(Args)]
pub(crate) struct SuspendArgs {
    /// The job, or its first digits
    job: String,
    /// A new folder, or an empty one of your own that no other user may write to
    dir: PathBuf,
}

/// Flags of `radic resume`.
#[derive(Args)]
pub(crate) struct ResumeArgs {
    /// The folder that `radic suspend` has written
    dir: PathBuf,
    /// On these nodes only [default: all that are not spares]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    nodes: Vec<NodeName>,
    /// Take files that another user owns or may write: what is in them is what the ranks become, with your rights
    #[arg(long)]
    trust_owner: bool,
}

/// `radic suspend`.
pub(crate) fn suspend(cluster: &Cluster, args: &SuspendArgs) -> Result<()> {
    let key = load_key(cluster)?;
    let mut folder = Folder::create(&args.dir)?;
    checkpoint(cluster, &args.job)?;
    let (mut connection, suspension, unprinted) = stop(cluster, &args.job)?;
    let job = suspension.job;
    report(&format!("radic: all ranks of job {job} are stopped; writing them to {}", args.dir.display()));
    let ranks = folder.write_ranks(cluster, job, suspension.ward.spec.ranks, &JobKey::derive_for_suspension(&key, job))?;
    let size = ranks.iter().flat_map(SavedRank::files).map(|file| file.bytes).sum();
    folder.write_manifest(&Manifest { suspension, unprinted, ranks }.encode(&key)?)?;
    folder.keep();
    match connection.ask(&Request::EndSuspended, ENDED).context("everything is written down, and the job has not ended")? {
        Reply::Done => {}
        other => return Err(connection.unexpected(&other).into()),
    }
    report(&format!("radic: job {job} is suspended ({}); `radic resume {}` goes on with it", bytes(size), args.dir.display()));
    Ok(())
}

/// `radic resume`. The result is the exit code of the job.
pub(crate) fn resume(cluster: &Cluster, args: &ResumeArgs) -> Result<u8> {
    let key = load_key(cluster)?;
    let folder = Source::open(&args.dir, if args.trust_owner { Owners::Any } else { Owners::Trusted })?;
    let Manifest { mut suspension, unprinted, ranks } = read_manifest(&folder, &key)?;
    let job = suspension.job;
    let (signed, key) = (JobKey::derive_for_suspension(&key, job), JobKey::derive(&key, job));
    for file in ranks.iter().flat_map(SavedRank::files) {
        verify(&folder, file, &signed)?;
    }
    suspension.ward.spec.nodes = args.nodes.clone();
    let mut connection = cluster.connect(None)?;
    let logs = match connection.ask(&Request::Resume(Box::new(suspension)), crate::client::ANSWER)? {
        Reply::Resuming(logs) if logs.len() == ranks.len() => logs,
        other => return Err(connection.unexpected(&other).into()),
    };
    for ((rank, saved), log) in (0..).map(Rank).zip(&ranks).zip(logs) {
        report(&format!("radic: rank {rank} goes to its protector at {log}"));
        let upload = Upload { dir: &folder, signed: &signed, key: &key, process: ProcessId { job, rank }, saved };
        upload.give(log).with_context(|| format!("rank {rank} cannot be given to its protector at {log}"))?;
    }
    let lives = ranks.iter().map(|rank| rank.incarnation).collect();
    match connection.ask(&Request::BeginResumed(Box::new(Resumption { lives })), session::START)? {
        attached @ Reply::Attached { .. } => {
            print_unprinted(&unprinted)?;
            session::attached(cluster, connection, attached)
        }
        other => Err(connection.unexpected(&other).into()),
    }
}

/// The key that the files' codes follow from.
fn load_key(cluster: &Cluster) -> Result<ClusterKey> {
    let path = cluster.key_in_force()?;
    ClusterKey::load(&path, nix::unistd::geteuid().as_raw()).with_context(|| format!("the cluster's key, {}", path.display()))
}

/// A new image of each rank, so that little is to be done again.
fn checkpoint(cluster: &Cluster, job: &str) -> Result<()> {
    let ranks = counters::make_checkpoints(cluster, job.to_owned())?;
    let failed = ranks.iter().find_map(|RankCheckpoint { rank, result, .. }| Some((rank, result.as_ref().err()?)));
    if let Some((rank, why)) = failed {
        bail!("rank {rank} has no checkpoint: {why}; the job goes on");
    }
    Ok(())
}

/// Has all ranks stopped. They go on when the connection ends.
fn stop(cluster: &Cluster, job: &str) -> Result<(Connection, Suspension, Vec<Unprinted>)> {
    let mut connection = cluster.connect(None)?;
    connection.send(&Request::Suspend { job: job.to_owned() })?;
    let (deadline, mut unprinted) = (Instant::now() + STOPPED, Vec::new());
    loop {
        match connection.wait(Some(deadline))? {
            Some(Reply::Output { rank, stream, offset, data }) => unprinted.push(Unprinted { rank, stream, offset, data }),
            Some(Reply::Suspending(suspension)) => return Ok((connection, *suspension, unprinted)),
            Some(Reply::Error(text)) => return Err(ClientError::Refused(text).into()),
            Some(other) => return Err(connection.unexpected(&other).into()),
            None => bail!(
                "its ranks do not stop, or its terminal does not print what it was sent, within {} s; the job goes on",
                STOPPED.as_secs()
            ),
        }
    }
}

/// What a resume needs of a log.
fn needed(log: &HeldLog) -> Result<(Incarnation, Vec<HeldImage>, Span, Vec<HeldStream>)> {
    let committed = log.images.iter().filter(|image| image.state == ImageState::Committed);
    let images: Vec<HeldImage> = committed.cloned().collect();
    let cut = images.last().context("no image of it is committed")?.cut;
    ensure!(log.streams.len() < limits::CUT_STREAMS, "it has too many streams");
    Ok((log.incarnation, images, Span { start: cut, end: log.journal.end }, log.streams.clone()))
}

/// A folder that is being written; what is in it goes again unless it is kept.
struct Folder {
    files: folder::Folder,
    /// It was not there before.
    is_new: bool,
    written: Vec<String>,
}

impl Folder {
    fn create(dir: &Path) -> Result<Self> {
        let (files, is_new) = folder::Folder::make(dir)?;
        ensure!(files.is_empty()?, "the folder {} is not empty", dir.display());
        Ok(Folder { files, is_new, written: Vec::new() })
    }

    fn keep(&mut self) {
        self.written.clear();
        self.is_new = false;
    }

    fn create_file(&mut self, name: &str) -> Result<File> {
        if self.written.iter().any(|written| written == name) {
            // What it held was copied a moment too early.
            return Ok(self.files.replace(name)?);
        }
        let file = self.files.create_new(name)?;
        self.written.push(name.to_owned());
        Ok(file)
    }

    /// Copies what the protectors hold. It must be what they held before and hold afterwards.
    fn write_ranks(&mut self, cluster: &Cluster, job: JobId, ranks: u32, key: &JobKey) -> Result<Vec<SavedRank>> {
        let list = |rank| Ok(Held::open(cluster, job.to_string(), rank)?.log);
        let list = || (0..ranks).map(|rank| list(Rank(rank))).collect::<Result<Vec<HeldLog>>>();
        let all = |logs: &[HeldLog]| logs.iter().map(needed).collect::<Result<Vec<_>>>();
        for _ in 0..ATTEMPTS {
            let before = list()?;
            let saved: Result<Vec<_>> = before.iter().map(|log| self.write_rank(cluster, log, key)).collect();
            if all(&list()?)? == all(&before)? {
                return saved;
            }
        }
        bail!("what its protectors hold goes on changing though its ranks are stopped; the job goes on");
    }

    fn write_rank(&mut self, cluster: &Cluster, log: &HeldLog, key: &JobKey) -> Result<SavedRank> {
        let (process, (incarnation, images, journal, streams)) = (log.process, needed(log)?);
        let rank = process.rank;
        let mut held = Held::open(cluster, process.job.to_string(), rank)?;
        let mut saved_images = Vec::new();
        for HeldImage { image, parent, cut, bytes, .. } in images {
            let mut file = Saving::create(self, format!("rank-{rank}.image-{image}"), key)?;
            file.copy(&mut held, LogPart::Image(image), Span { start: 0, end: bytes })?;
            saved_images.push(SavedImage { image, parent, cut, file: file.finish()? });
        }
        let mut file = Saving::create(self, format!("rank-{rank}.journal"), key)?;
        file.copy(&mut held, LogPart::Journal, journal)?;
        let journal_file = file.finish()?;
        let mut file = Saving::create(self, format!("rank-{rank}.received"), key)?;
        for HeldStream { stream, bytes, .. } in streams.iter().filter(|stream| !stream.closed) {
            file.copy(&mut held, LogPart::Stream(*stream), *bytes)?;
        }
        let streams_file = file.finish()?;
        Ok(SavedRank { incarnation, images: saved_images, journal, journal_file, streams, streams_file })
    }

    /// The last file: from here on the folder is one. All of it is on the disk then.
    fn write_manifest(&mut self, bytes: &[u8]) -> Result<()> {
        let unfinished = format!("{MANIFEST}.new");
        let mut file = self.create_file(&unfinished)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        written.with_context(|| self.files.path().join(MANIFEST).display().to_string())?;
        self.files.rename(&unfinished, MANIFEST)?;
        Ok(self.files.sync()?)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for name in &self.written {
            // The one that was renamed is not there any more.
            let _ = self.files.remove(name);
        }
        if self.is_new {
            let _ = fs::remove_dir(self.files.path());
        }
    }
}

/// A file that is being written.
struct Saving {
    name: String,
    path: PathBuf,
    file: File,
    code: Code,
    bytes: u64,
}

impl Saving {
    fn create(folder: &mut Folder, name: String, key: &JobKey) -> Result<Self> {
        let (file, path) = (folder.create_file(&name)?, folder.files.path().join(&name));
        let code = begin_code(key, &name);
        Ok(Saving { name, path, file, code, bytes: 0 })
    }

    /// Exactly this part of what is held.
    fn copy(&mut self, held: &mut Held, part: LogPart, Span { start, end }: Span) -> Result<()> {
        let mut position = start;
        while position < end {
            let mut piece = held.read(part, position)?;
            ensure!(!piece.is_empty(), "{part:?} is not held from {position} on, it should be up to {end}");
            piece.truncate(usize::try_from(end - position).unwrap_or(usize::MAX));
            self.file.write_all(&piece).with_context(|| self.path.display().to_string())?;
            self.code.update(&piece);
            self.bytes += piece.len() as u64;
            position += piece.len() as u64;
        }
        Ok(())
    }

    fn finish(self) -> Result<SavedFile> {
        self.file.sync_all().with_context(|| self.path.display().to_string())?;
        Ok(SavedFile { name: self.name, bytes: self.bytes, code: self.code.finish() })
    }
}

/// A folder that a job is resumed from.
struct Source {
    files: folder::Folder,
    owners: Owners,
}

impl Source {
    fn open(dir: &Path, owners: Owners) -> Result<Self> {
        let files = folder::Folder::open_foreign(dir)?;
        if owners == Owners::Trusted {
            trusted::check(&File::from(files.as_fd().try_clone_to_owned()?), dir)?;
        }
        Ok(Source { files, owners })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// A file of the folder. It is no link, and nothing that would keep us waiting.
    fn read(&self, name: &str, if_missing: &str) -> Result<File> {
        let file = match self.files.read(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error).context(if_missing.to_owned()),
            opened => opened?,
        };
        if self.owners == Owners::Trusted {
            trusted::check(&file, &self.path(name))?;
        }
        Ok(file)
    }
}

fn read_manifest(dir: &Source, key: &ClusterKey) -> Result<Manifest> {
    let path = dir.path(MANIFEST);
    let what = || path.display().to_string();
    let mut bytes = Vec::new();
    let file = dir.read(MANIFEST, &format!("{}: no job is suspended there, or its list is missing", path.display()))?;
    file.take(limits::SUSPENSION as u64 + 1024).read_to_end(&mut bytes).with_context(what)?;
    Manifest::decode(&bytes, key).with_context(what)
}

/// A file is there, whole, and what was written.
fn verify(dir: &Source, saved: &SavedFile, key: &JobKey) -> Result<()> {
    let mut pieces = Pieces::open(dir, saved, key)?;
    while !pieces.next()?.is_empty() {}
    Ok(())
}

/// A file of the folder, piece after piece, verified at its end.
struct Pieces<'a> {
    path: PathBuf,
    saved: &'a SavedFile,
    file: File,
    code: Option<Code>,
    left: u64,
    buffer: Vec<u8>,
}

impl<'a> Pieces<'a> {
    fn open(dir: &Source, saved: &'a SavedFile, key: &JobKey) -> Result<Self> {
        let path = dir.path(&saved.name);
        let file = dir.read(&saved.name, &format!("{} is missing", path.display()))?;
        let length = file.metadata().with_context(|| path.display().to_string())?.len();
        ensure!(
            length == saved.bytes,
            "{} has {length} bytes instead of {}: it is truncated, or something was added",
            path.display(),
            saved.bytes
        );
        let code = Some(begin_code(key, &saved.name));
        Ok(Pieces { path, saved, file, code, left: saved.bytes, buffer: vec![0; PIECE] })
    }

    /// At most so many of the next bytes.
    fn take(&mut self, most: u64) -> Result<&[u8]> {
        let length = self.left.min(most).min(PIECE as u64) as usize;
        let piece = &mut self.buffer[..length];
        self.file.read_exact(piece).with_context(|| self.path.display().to_string())?;
        self.left -= length as u64;
        let code = self.code.as_mut().context("nothing is read behind the end")?;
        code.update(piece);
        if self.left == 0 {
            let good = self.code.take().is_some_and(|code| code.finish() == self.saved.code);
            ensure!(good, "{} is damaged: its bytes are not those that were written", self.path.display());
        }
        Ok(&self.buffer[..length])
    }

    /// The next bytes; none at the end.
    fn next(&mut self) -> Result<&[u8]> {
        if self.code.is_none() { Ok(&[]) } else { self.take(u64::MAX) }
    }
}

/// What was saved of a rank, on its way to the rank's protector-to-be.
struct Upload<'a> {
    dir: &'a Source,
    /// What the files' codes are made with.
    signed: &'a JobKey,
    /// What the rank proves itself with to its protector.
    key: &'a JobKey,
    process: ProcessId,
    saved: &'a SavedRank,
}

impl Upload<'_> {
    fn open(&self, log: SocketAddr, channel: Channel) -> Result<Client> {
        let speaker = Speaker { process: self.process, incarnation: self.saved.incarnation };
        Ok(Client::open(log, self.key, speaker, channel, STEP)?)
    }

    fn give(&self, log: SocketAddr) -> Result<()> {
        let SavedRank { incarnation, ref images, journal, ref journal_file, .. } = *self.saved;
        let first = images.first().context("it has no image")?.cut;
        let received = self.saved.received();
        let mut voice = self.open(log, Channel::Journal)?;
        let (begin, payload) = (Span { start: first, end: journal.end }, Span { start: 0, end: received });
        voice.send(&ToProtector::Hello { process: self.process, incarnation, journal: begin, payload })?;
        for (at, image) in images.iter().enumerate() {
            self.give_image(log, &mut voice, image, at + 1 == images.len())?;
        }
        let mut pieces = Pieces::open(self.dir, journal_file, self.signed)?;
        let mut position = journal.start;
        loop {
            let bytes = pieces.next()?;
            if bytes.is_empty() {
                break;
            }
            voice.send(&ToProtector::Journal { position, bytes })?;
            position += bytes.len() as u64;
        }
        self.give_received(log)?;
        let (mut journal_held, mut payload_held) = (journal.start, 0);
        while journal_held < journal.end || payload_held < received {
            let answer = voice.receive().context("waiting until its log is held")?;
            match FromProtector::read(&answer)? {
                FromProtector::JournalStable { position } => journal_held = position,
                FromProtector::PayloadStable { position } => payload_held = position,
                other => refused(&other)?,
            }
        }
        Ok(())
    }

    /// One image, up to its commit. The last one says where each stream stands.
    fn give_image(&self, log: SocketAddr, voice: &mut Client, image: &SavedImage, last: bool) -> Result<()> {
        let streams: &[HeldStream] = if last { &self.saved.streams } else { &[] };
        let at = |stream: &HeldStream| (stream.stream, if stream.closed { u64::MAX } else { stream.bytes.start });
        let begins: Vec<(StreamId, u64)> = streams.iter().map(at).collect();
        let ended: Vec<(StreamId, u64)> = streams.iter().filter_map(|stream| Some((stream.stream, stream.ended?))).collect();
        let (streams, ended) = CutStreams::new(&begins).zip(CutStreams::new(&ended)).context("too many streams")?;
        let SavedImage { image, parent, cut, ref file } = *image;
        let mut client = self.open(log, Channel::Image)?;
        client.send(&ToProtector::ImageBegin { image, parent, cut, payload: 0, streams, ended })?;
        let mut pieces = Pieces::open(self.dir, file, self.signed)?;
        loop {
            let bytes = pieces.next()?;
            if bytes.is_empty() {
                break;
            }
            client.send_bytes(bytes).with_context(|| format!("image {image}"))?;
        }
        client.end()?;
        loop {
            let answer = voice.receive().with_context(|| format!("waiting until image {image} is verified"))?;
            match FromProtector::read(&answer)? {
                FromProtector::Committed { image: committed, .. } if committed == image => return Ok(()),
                other => refused(&other)?,
            }
        }
    }

    fn give_received(&self, log: SocketAddr) -> Result<()> {
        let SavedRank { ref streams, ref streams_file, .. } = *self.saved;
        let mut bulk = self.open(log, Channel::Bulk)?;
        let mut pieces = Pieces::open(self.dir, streams_file, self.signed)?;
        let mut position = 0;
        for HeldStream { stream, bytes: Span { start, end }, .. } in streams.iter().filter(|stream| !stream.closed) {
            let mut offset = *start;
            while offset < *end {
                let bytes = pieces.take(end - offset)?;
                bulk.send(&ToProtector::Payload { position, stream: *stream, offset, bytes })?;
                offset += bytes.len() as u64;
                position += bytes.len() as u64;
            }
        }
        Ok(())
    }
}

/// Whether what the protector says means that it does not want what it is given.
fn refused(message: &FromProtector<'_>) -> Result<()> {
    match message {
        FromProtector::ImageRefused { image } => bail!("image {image} was refused"),
        FromProtector::Fenced { newest } => bail!("the rank has a later incarnation already, {newest}"),
        _ => Ok(()),
    }
}

/// Output that was not printed when the job was suspended goes before everything else.
fn print_unprinted(unprinted: &[Unprinted]) -> Result<()> {
    for Unprinted { stream, data, .. } in unprinted {
        match stream {
            OutputStream::Stdout => io::stdout().write_all(data).and_then(|()| io::stdout().flush())?,
            OutputStream::Stderr => io::stderr().write_all(data)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn key() -> JobKey {
        JobKey::from_bytes([3; 32])
    }

    fn saved(dir: &Path, content: &[u8]) -> SavedFile {
        fs::write(dir.join("rank-0.journal"), content).unwrap();
        let mut code = begin_code(&key(), "rank-0.journal");
        code.update(content);
        SavedFile { name: "rank-0.journal".into(), bytes: content.len() as u64, code: code.finish() }
    }

    #[test]
    fn what_is_missing_truncated_or_damaged_is_said() {
        let dir = tempfile::tempdir().unwrap();
        for length in [0, 1, PIECE, PIECE + 1] {
            let content = vec![7; length];
            let file = saved(dir.path(), &content);
            let folder = Source::open(dir.path(), Owners::Trusted).unwrap();
            verify(&folder, &file, &key()).unwrap();
            let path = dir.path().join("rank-0.journal");
            let fails = |how: &str| {
                let error = format!("{:#}", verify(&folder, &file, &key()).unwrap_err());
                assert!(error.contains(how) && error.contains("rank-0.journal"), "{length}: {error}");
            };
            fs::write(&path, [&content[..], b"x"].concat()).unwrap();
            fails("something was added");
            if length > 0 {
                fs::write(&path, &content[1..]).unwrap();
                fails("truncated");
                let mut other = content.clone();
                other[length - 1] ^= 1;
                fs::write(&path, other).unwrap();
                fails("damaged");
            }
            fs::remove_file(&path).unwrap();
            fails("missing");
        }
    }

    #[test]
    fn a_folder_of_others_is_not_written_to_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let (shared, victim) = (dir.path().join("shared"), dir.path().join("victim"));
        fs::create_dir(&shared).unwrap();
        mode(&shared, 0o777);
        let refused = |parts: &str| {
            let error = Folder::create(&shared).map(drop).unwrap_err().to_string();
            assert!(error.contains(parts) && error.contains("shared"), "{error}");
        };
        refused("others may write");
        mode(&shared, 0o700);
        let mut folder = Folder::create(&shared).unwrap();
        fs::write(&victim, "precious").unwrap();
        for name in ["rank-0.journal", "manifest.new"] {
            symlink(&victim, shared.join(name)).unwrap();
        }
        assert!(folder.create_file("rank-0.journal").is_err());
        assert!(folder.write_manifest(b"x").is_err());
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        if nix::unistd::geteuid().is_root() {
            let _ = (fs::remove_file(shared.join("rank-0.journal")), fs::remove_file(shared.join("manifest.new")));
            chown(&shared, Some(64_001), None).unwrap();
            refused("64001");
        }
    }

    #[test]
    fn what_another_user_owns_or_may_write_is_refused_unless_that_user_is_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let file = saved(dir.path(), b"content");
        let path = dir.path().join(&file.name);
        let verify = |owners| Source::open(dir.path(), owners).and_then(|source| verify(&source, &file, &key()));
        verify(Owners::Trusted).unwrap();
        let refused = |how: &str| {
            let error = format!("{:#}", verify(Owners::Trusted).unwrap_err());
            assert!(error.contains(how) && error.contains("--trust-owner"), "{error}");
            verify(Owners::Any).unwrap();
        };
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        mode(&path, 0o666);
        refused("may be written by other users");
        mode(&path, 0o600);
        mode(dir.path(), 0o777);
        refused("may be written by other users");
        mode(dir.path(), 0o700);
        if nix::unistd::geteuid().is_root() {
            chown(&path, Some(64_001), None).unwrap();
            refused("belongs to user 64001");
            chown(&path, Some(0), None).unwrap();
            chown(dir.path(), Some(64_001), None).unwrap();
            refused("belongs to user 64001");
        }
    }

    #[test]
    fn a_folder_is_taken_only_if_it_is_empty_and_goes_again() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("new");
        let mut folder = Folder::create(&new).unwrap();
        folder.create_file("a").unwrap();
        assert!(Folder::create(&new).is_err(), "it is not empty");
        drop(folder);
        assert!(!new.exists());
        let mut folder = Folder::create(&new).unwrap();
        folder.write_manifest(b"x").unwrap();
        folder.keep();
        drop(folder);
        assert_eq!(fs::read(new.join(MANIFEST)).unwrap(), b"x");
        fs::remove_file(new.join(MANIFEST)).unwrap();
        drop(Folder::create(&new).unwrap());
        assert!(new.exists(), "it was there before");
    }
}
