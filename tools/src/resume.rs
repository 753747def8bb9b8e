//! From a folder back to running ranks. What is done next says [`resume::Resume`]; here are the connections and the files.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use radic_ckpt::trusted::Owners;
use radic_protector::commands::resume::{self, Action, Failure, ImageHead, Over, Piece};
use radic_protector::logs::client::Client;
use radic_protector::store::Speaker;
use radic_wire::ids::{NodeName, Rank};
use radic_wire::job::{EndReason, Outcome, OutputStream};
use radic_wire::key::ClusterKey;
use radic_wire::limits;
use radic_wire::local::{Reply, Request};
use radic_wire::log::{FromProtector, ToProtector};
use radic_wire::login::Channel;
use radic_wire::mac::{Code, JobKey};
use radic_wire::span::Span;
use radic_wire::suspension::{SavedFile, SavedImage, SavedRank, Unprinted, begin_code};

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
        saved: Saved,
        on_signal: Option<OnSignal>,
    ) -> Result<u8> {
        let job = saved.job();
        let outside = Outside {
            how: self,
            cluster,
            source,
            saved: &saved,
            signed: JobKey::derive_for_suspension(key, job),
            proof: JobKey::derive(key, job),
            progress: Progress::new(false),
            connection: None,
            limit: client::ANSWER,
            speaker: None,
            voice: None,
            image: None,
        };
        let (connection, attached) = outside.run()?;
        let Shown { code, outcome } = session::attached(cluster, connection, attached, self.label, on_signal)?;
        if let Some(outcome) = outcome.as_ref().filter(|outcome| outcome.reason != EndReason::Suspended)
            && let Err(error) = saved.mark_ended(self.dir, outcome)
            && self.must_mark
        {
            report(&format!("radic: warning: {} does not say that the job has ended: {error:#}", self.dir.display()));
        }
        if let Some(text) = outcome.as_ref().and_then(|outcome| way_back(self.dir, outcome)) {
            report(&text);
        }
        Ok(code)
    }
}

/// What is left of a job that was lost with nodes after it had gone on.
fn way_back(dir: &Path, outcome: &Outcome) -> Option<String> {
    let is_lost = matches!(outcome.reason, EndReason::NodeLost { .. } | EndReason::RankLost { .. });
    let dir = dir.display();
    is_lost.then(|| format!("radic: or go on again from where it was suspended: `radic resume {dir}`"))
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

/// What the decisions are carried out with.
struct Outside<'a> {
    how: &'a Resume<'a>,
    cluster: &'a Cluster,
    source: &'a Source,
    saved: &'a Saved,
    /// What the files' codes are made with.
    signed: JobKey,
    /// What the ranks prove themselves with to their protectors.
    proof: JobKey,
    progress: Progress,
    connection: Option<Connection>,
    /// Time for the answer of the node.
    limit: Duration,
    /// As which rank the command speaks, and to which log service.
    speaker: Option<(Speaker, SocketAddr)>,
    voice: Option<Client>,
    /// The connection of an image that is being verified.
    image: Option<Client>,
}

impl Outside<'_> {
    fn run(mut self) -> Result<(Connection, Reply)> {
        let mut resume = resume::Resume::new(self.saved.manifest.clone(), self.how.nodes.to_vec());
        loop {
            match resume.poll_action() {
                Some(Action::Over(over)) => return self.end(over),
                Some(Action::Print(unprinted)) => print_unprinted(&unprinted)?,
                Some(action) => self.carry_out(action, &mut resume).unwrap_or_else(|error| resume.handle_failed(error)),
                None => self.wait(&mut resume).unwrap_or_else(|error| resume.handle_failed(error)),
            }
        }
    }

    /// What a log service or the node says next.
    fn wait(&mut self, resume: &mut resume::Resume<anyhow::Error>) -> Result<()> {
        if let (Some(voice), Some(until)) = (&mut self.voice, resume.waits_until()) {
            let answer = voice.receive().with_context(|| format!("waiting until {until}"))?;
            resume.handle_heard(&FromProtector::read(&answer)?);
            return Ok(());
        }
        let (connection, limit) = (self.connection.as_mut().context("nothing is asked")?, self.limit);
        match connection.wait(Some(Instant::now() + limit))? {
            Some(reply) => resume.handle_reply(reply),
            None => return Err(ClientError::Late { node: connection.node().to_owned(), limit }.into()),
        }
        Ok(())
    }

    fn carry_out(&mut self, action: Action<anyhow::Error>, resume: &mut resume::Resume<anyhow::Error>) -> Result<()> {
        match action {
            Action::Verify => {
                self.progress.begin("verifying the files", Unit::Bytes, self.size());
                for file in self.saved.manifest.ranks.iter().flat_map(SavedRank::files) {
                    verify(self.source, file, &self.signed, &self.progress)?;
                }
                resume.handle_done();
            }
            Action::Ask(request) => self.ask(&request)?,
            Action::Open(speaker, log, hello) => self.open(speaker, log, &hello)?,
            Action::GiveImage(head) => self.give_image(&head)?,
            Action::GiveJournal(span) => {
                self.give_journal(span)?;
                resume.handle_done();
            }
            Action::GiveReceived(pieces) => {
                self.give_received(&pieces)?;
                resume.handle_done();
            }
            Action::Close => (self.speaker, self.voice, self.image) = (None, None, None),
            Action::Mark => {
                self.mark()?;
                resume.handle_done();
            }
            Action::Unmark => _ = self.saved.remove_mark(self.how.dir),
            Action::Print(_) | Action::Over(_) => unreachable!("these are done when the job goes on"),
        }
        Ok(())
    }

    fn size(&self) -> Option<u64> {
        Some(self.saved.manifest.ranks.iter().flat_map(SavedRank::files).map(|file| file.bytes).sum())
    }

    fn ask(&mut self, request: &Request) -> Result<()> {
        self.limit = if matches!(request, Request::BeginResumed) { session::START } else { client::ANSWER };
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.cluster.connect(None)?,
        };
        Ok(self.connection.insert(connection).send(request)?)
    }

    /// The first connection to the log service of a rank's protector-to-be.
    fn open(&mut self, speaker: Speaker, log: SocketAddr, hello: &ToProtector<'_>) -> Result<()> {
        let rank = speaker.process.rank;
        if rank == Rank(0) {
            self.progress.begin("giving the ranks to their protectors", Unit::Bytes, self.size());
        }
        self.progress.report(&format!("radic: rank {rank} goes to its protector at {log}"));
        self.speaker = Some((speaker, log));
        let voice = self.connect(Channel::Journal)?;
        Ok(self.voice.insert(voice).send(hello)?)
    }

    fn connect(&self, channel: Channel) -> Result<Client> {
        let (speaker, log) = self.speaker.context("no rank is given")?;
        Ok(Client::open(log, &self.proof, speaker, channel, STEP)?)
    }

    /// What is saved of the rank that is given.
    fn rank(&self) -> Result<&SavedRank> {
        let (speaker, _) = self.speaker.context("no rank is given")?;
        self.saved.manifest.ranks.get(speaker.process.rank.0 as usize).context("there is no such rank")
    }

    fn pieces<'a>(&'a self, file: &'a SavedFile) -> Result<Pieces<'a>> {
        Pieces::open(self.source, file, &self.signed, &self.progress)
    }

    /// Images go by another connection, which may be faster.
    fn give_image(&mut self, head: &ImageHead) -> Result<()> {
        let mut client = self.connect(Channel::Image)?;
        client.send(&head.message())?;
        let SavedImage { file, .. } =
            self.rank()?.images.iter().find(|of| of.image == head.image).context("there is no such image")?;
        let mut pieces = self.pieces(file)?;
        loop {
            let bytes = pieces.next()?;
            if bytes.is_empty() {
                break;
            }
            client.send_bytes(bytes).with_context(|| format!("image {}", head.image))?;
        }
        client.end()?;
        self.image = Some(client);
        Ok(())
    }

    fn give_journal(&mut self, Span { start, .. }: Span) -> Result<()> {
        self.image = None;
        let mut voice = self.voice.take().context("no rank is given")?;
        let (mut pieces, mut position) = (self.pieces(&self.rank()?.journal_file)?, start);
        loop {
            let bytes = pieces.next()?;
            if bytes.is_empty() {
                break;
            }
            voice.send(&ToProtector::Journal { position, bytes })?;
            position += bytes.len() as u64;
        }
        self.voice = Some(voice);
        Ok(())
    }

    fn give_received(&self, received: &[Piece]) -> Result<()> {
        let mut bulk = self.connect(Channel::Bulk)?;
        let mut pieces = self.pieces(&self.rank()?.streams_file)?;
        for Piece { mut position, stream, bytes: Span { start: mut offset, end } } in received.iter().copied() {
            while offset < end {
                let bytes = pieces.take(end - offset)?;
                bulk.send(&ToProtector::Payload { position, stream, offset, bytes })?;
                offset += bytes.len() as u64;
                position += bytes.len() as u64;
            }
        }
        Ok(())
    }

    /// From here on the terminal is the job's.
    fn mark(&mut self) -> Result<()> {
        self.progress = Progress::hidden();
        let dir = self.how.dir;
        if let Err(error) = self.saved.set_mark(dir, self.how.again) {
            ensure!(!self.how.must_mark, "{error:#}");
            let dir = dir.display();
            report(&format!(
                "radic: warning: {dir} does not say that the job goes on from there, so it could be resumed twice: {error:#}"
            ));
        }
        Ok(())
    }

    fn end(self, over: Over<anyhow::Error>) -> Result<(Connection, Reply)> {
        let failure = match over {
            Over::GoesOn(attached) => return Ok((self.connection.context("nothing was asked")?, *attached)),
            Over::NotBegun(failure) | Over::Unsure(failure) => failure,
        };
        let error = match (failure, &self.connection) {
            (Failure::Undone(error), _) => error,
            (Failure::Refused(text), _) => ClientError::Refused(text).into(),
            (Failure::Unexpected(reply), Some(connection)) => connection.unexpected(&reply).into(),
            (other, _) => anyhow!("{other}"),
        };
        Err(match self.speaker {
            Some((Speaker { process, .. }, log)) => {
                error.context(format!("rank {} cannot be given to its protector at {log}", process.rank))
            }
            None => error,
        })
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
