//! From a folder back to running ranks.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use radic_ckpt::trusted::Owners;
use radic_protector::logs::client::Client;
use radic_protector::store::Speaker;
use radic_wire::determinant::StreamId;
use radic_wire::ids::{Incarnation, NodeName, ProcessId, Rank};
use radic_wire::job::{EndReason, OutputStream};
use radic_wire::key::ClusterKey;
use radic_wire::limits;
use radic_wire::local::{Reply, Request};
use radic_wire::log::{CutStreams, FromProtector, HeldStream, ToProtector};
use radic_wire::login::Channel;
use radic_wire::mac::{Code, JobKey};
use radic_wire::span::Span;
use radic_wire::suspension::{Resumption, SavedFile, SavedImage, SavedRank, Unprinted, begin_code};

use crate::client::{self, ClientError, Cluster, Connection};
use crate::format::report;
use crate::progress::{Progress, Unit};
use crate::session::{self, Shown};
use crate::suspend::content::{Saved, Source};
use crate::suspend::on_signal::{OnSignal, OnSignalArgs};

#[cfg(test)]
mod tests;

/// Time for any one step of a protector that takes an image: it verifies all of it.
const STEP: Duration = Duration::from_secs(300);
/// Bytes that are read from a file at once.
const PIECE: usize = limits::LOG_CHUNK;

/// What to do about a folder that is not as it was written.
const COPY_AGAIN: &str = "copy the folder again from where it was written";

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
    #[command(flatten)]
    on_signal: OnSignalArgs,
}

/// `radic resume`. The result is the exit code of the job.
pub(crate) fn resume(cluster: &Cluster, args: &ResumeArgs) -> Result<u8> {
    let key = cluster.load_key()?;
    let source = Source::open(&args.dir, if args.trust_owner { Owners::Any } else { Owners::Trusted })?;
    let saved = source.saved(&key)?;
    let on_signal = args.on_signal.decide(cluster, Some(&args.dir))?;
    let resume = Resume { dir: &args.dir, nodes: &args.nodes, label: false, again: true, must_mark: false };
    resume.go_on(cluster, &key, &source, saved, on_signal)
}

/// How a job is to go on.
pub(crate) struct Resume<'a> {
    pub(crate) dir: &'a Path,
    /// On these nodes; none: on all that are no spares.
    pub(crate) nodes: &'a [NodeName],
    pub(crate) label: bool,
    /// Whether it may be that it has gone on from there before.
    pub(crate) again: bool,
    /// Whether it is not to go on if the folder cannot say that it has: one of another user, for example.
    pub(crate) must_mark: bool,
}

impl Resume<'_> {
    /// Goes on with a job, and shows it. The result is its exit code.
    pub(crate) fn go_on(
        &self,
        cluster: &Cluster,
        key: &ClusterKey,
        source: &Source,
        mut saved: Saved,
        on_signal: Option<OnSignal>,
    ) -> Result<u8> {
        let job = saved.job();
        let (signed, proof) = (JobKey::derive_for_suspension(key, job), JobKey::derive(key, job));
        let progress = Progress::new(false);
        let size = Some(saved.manifest.ranks.iter().flat_map(SavedRank::files).map(|file| file.bytes).sum());
        progress.begin("verifying the files", Unit::Bytes, size);
        for file in saved.manifest.ranks.iter().flat_map(SavedRank::files) {
            verify(source, file, &signed, &progress)?;
        }
        saved.manifest.suspension.ward.spec.nodes = self.nodes.to_vec();
        let (connection, logs) = ask_where(cluster, &saved)?;
        progress.begin("giving the ranks to their protectors", Unit::Bytes, size);
        for ((rank, of_rank), log) in (0..).map(Rank).zip(&saved.manifest.ranks).zip(logs) {
            progress.report(&format!("radic: rank {rank} goes to its protector at {log}"));
            let process = ProcessId { job, rank };
            let line = saved.manifest.suspension.line;
            let upload = Upload { dir: source, signed: &signed, key: &proof, process, saved: of_rank, line, progress: &progress };
            upload.give(log).with_context(|| format!("rank {rank} cannot be given to its protector at {log}"))?;
        }
        // From here on the terminal is the job's.
        drop(progress);
        let Shown { code, outcome } = self.begin(cluster, connection, &saved, on_signal)?;
        if let Some(outcome) = outcome.filter(|outcome| outcome.reason != EndReason::Suspended)
            && let Err(error) = saved.mark_ended(self.dir, &outcome)
            && self.must_mark
        {
            report(&format!("radic: warning: {} does not say that the job has ended: {error:#}", self.dir.display()));
        }
        Ok(code)
    }

    /// The logs and images are where they belong: the ranks begin. Before that the folder says so.
    fn begin(&self, cluster: &Cluster, mut connection: Connection, saved: &Saved, on_signal: Option<OnSignal>) -> Result<Shown> {
        if let Err(error) = saved.set_mark(self.dir, self.again) {
            ensure!(!self.must_mark, "{error:#}");
            let dir = self.dir.display();
            report(&format!(
                "radic: warning: {dir} does not say that the job goes on from there, so it could be resumed twice: {error:#}"
            ));
        }
        let answer = connection.ask(&Request::BeginResumed, session::START);
        if let Err(ClientError::Refused(_)) = answer {
            // If it stays the job is taken for one that has gone on, which is the safe error.
            let _ = saved.remove_mark(self.dir);
        }
        match answer? {
            attached @ Reply::Attached { .. } => {
                print_unprinted(&saved.manifest.unprinted)?;
                session::attached(cluster, connection, attached, self.label, on_signal)
            }
            other => Err(connection.unexpected(&other).into()),
        }
    }
}

/// Where the log service of each rank's protector-to-be listens.
fn ask_where(cluster: &Cluster, saved: &Saved) -> Result<(Connection, Vec<SocketAddr>)> {
    let mut connection = cluster.connect(None)?;
    let resumption = Resumption { incarnations: saved.manifest.ranks.iter().map(begins_as).collect() };
    match connection.ask(&Request::Resume(Box::new(saved.manifest.suspension.clone()), Box::new(resumption)), client::ANSWER)? {
        Reply::Resuming(logs) if logs.len() == saved.manifest.ranks.len() => Ok((connection, logs)),
        other => Err(connection.unexpected(&other).into()),
    }
}

/// A file is there, whole, and what was written.
fn verify(dir: &Source, saved: &SavedFile, key: &JobKey, progress: &Progress) -> Result<()> {
    let mut pieces = Pieces::open(dir, saved, key, progress)?;
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
    progress: &'a Progress,
}

impl<'a> Pieces<'a> {
    fn open(dir: &Source, saved: &'a SavedFile, key: &JobKey, progress: &'a Progress) -> Result<Self> {
        let path = dir.path(&saved.name);
        let file = dir.read(&saved.name, &format!("{} is missing; {COPY_AGAIN}", path.display()))?;
        let length = file.metadata().with_context(|| path.display().to_string())?.len();
        ensure!(
            length == saved.bytes,
            "{} has {length} bytes instead of {}: it is truncated, or something was added; {COPY_AGAIN}",
            path.display(),
            saved.bytes
        );
        let code = Some(begin_code(key, &saved.name));
        Ok(Pieces { path, saved, file, code, left: saved.bytes, buffer: vec![0; PIECE], progress })
    }

    /// At most so many of the next bytes.
    fn take(&mut self, most: u64) -> Result<&[u8]> {
        let length = self.left.min(most).min(PIECE as u64) as usize;
        let piece = &mut self.buffer[..length];
        self.file.read_exact(piece).with_context(|| self.path.display().to_string())?;
        self.left -= length as u64;
        self.progress.advance(length as u64);
        let code = self.code.as_mut().context("nothing is read behind the end")?;
        code.update(piece);
        if self.left == 0 {
            let good = self.code.take().is_some_and(|code| code.finish() == self.saved.code);
            ensure!(good, "{} is damaged: its bytes are not those that were written; {COPY_AGAIN}", self.path.display());
        }
        Ok(&self.buffer[..length])
    }

    /// The next bytes; none at the end.
    fn next(&mut self) -> Result<&[u8]> {
        if self.code.is_none() { Ok(&[]) } else { self.take(u64::MAX) }
    }
}

/// The first incarnation of a rank in the life that begins.
fn begins_as(saved: &SavedRank) -> Incarnation {
    saved.incarnation.next()
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
    /// The newest recovery line of which the job had heard.
    line: u64,
    progress: &'a Progress,
}

impl Upload<'_> {
    fn open(&self, log: SocketAddr, channel: Channel) -> Result<Client> {
        let speaker = Speaker { process: self.process, incarnation: begins_as(self.saved) };
        Ok(Client::open(log, self.key, speaker, channel, STEP)?)
    }

    fn give(&self, log: SocketAddr) -> Result<()> {
        let SavedRank { ref images, journal, ref journal_file, .. } = *self.saved;
        let first = images.first().context("it has no image")?.cut;
        let received = self.saved.received();
        let mut voice = self.open(log, Channel::Journal)?;
        let (begin, payload) = (Span { start: first, end: journal.end }, Span { start: 0, end: received });
        voice.send(&ToProtector::hello(self.process, begins_as(self.saved), begin, payload))?;
        // Images go by another connection, which may be faster.
        loop {
            let answer = voice.receive().context("waiting until its log is begun")?;
            match FromProtector::read(&answer)? {
                FromProtector::Welcome { .. } => break,
                other => refused(&other)?,
            }
        }
        for (at, image) in images.iter().enumerate() {
            self.give_image(log, &mut voice, image, at + 1 == images.len())?;
        }
        let mut pieces = Pieces::open(self.dir, journal_file, self.signed, self.progress)?;
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
        client.send(&ToProtector::image_by_itself(image, parent, (cut, 0), self.line, streams, ended))?;
        let mut pieces = Pieces::open(self.dir, file, self.signed, self.progress)?;
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
        let mut pieces = Pieces::open(self.dir, streams_file, self.signed, self.progress)?;
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
