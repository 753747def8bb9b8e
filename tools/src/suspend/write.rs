//! How a job is written to a folder, and ended. What is done next says [`Suspend`]; here are the connections and the files.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use radic_protector::commands::file::{File, SavedLog};
use radic_protector::commands::suspend::{self, Action, Over, Saved, Suspend};
use radic_wire::ids::{JobId, Rank};
use radic_wire::key::ClusterKey;
use radic_wire::local::Request;
use radic_wire::mac::JobKey;
use radic_wire::span::Span;
use radic_wire::suspension::{Manifest, SavedFile, SavedRank};

use crate::client::{ClientError, Cluster, Connection};
use crate::counters;
use crate::format::bytes;
use crate::log::Held;
use crate::progress::{Progress, Unit};

use super::content::Mark;
use super::folder::{Folder, Saving};

/// A fault of this command.
const NOT_STOPPED: &str = "no job is stopped";

/// Why a job was not suspended. It goes on.
#[derive(Debug)]
pub(super) enum Failure {
    /// It will not be suspended into this folder, whenever that is tried.
    Lasting(anyhow::Error),
    /// What was in the way may pass: a rank was on its way back, for example.
    Passing(anyhow::Error),
}

impl From<Failure> for anyhow::Error {
    fn from(failure: Failure) -> anyhow::Error {
        let (Failure::Lasting(error) | Failure::Passing(error)) = failure;
        error
    }
}

/// Writes a job to a folder, and ends it. `say` is told what has been done.
pub(super) fn write_down(
    cluster: &Cluster,
    job: &str,
    dir: &Path,
    progress: &Progress,
    say: &dyn Fn(&str),
) -> Result<(), Failure> {
    let key = cluster.load_key().map_err(|error| Failure::Lasting(error.into()))?;
    let folder = Folder::create(dir, &key, job).map_err(Failure::Lasting)?;
    let outside = Outside {
        cluster,
        key: &key,
        progress,
        say,
        connection: None,
        folder,
        job: None,
        held: None,
        file: None,
        files: BTreeMap::new(),
        size: 0,
        marked: Ok(()),
    };
    outside.run(job)
}

/// What the decisions are carried out with.
struct Outside<'a> {
    cluster: &'a Cluster,
    key: &'a ClusterKey,
    progress: &'a Progress,
    say: &'a dyn Fn(&str),
    /// The ranks go on when it ends. What was written goes only then.
    connection: Option<Connection>,
    folder: Folder,
    /// The job, once its ranks are stopped, and what the codes of its files are made with.
    job: Option<(JobId, JobKey)>,
    /// The log that is read.
    held: Option<(Rank, Held)>,
    /// The file that is written.
    file: Option<(Rank, File, Saving)>,
    files: BTreeMap<(Rank, File), SavedFile>,
    /// Bytes of all files.
    size: u64,
    /// Whether the folder says that the job may have gone on.
    marked: Result<()>,
}

/// What tells the node that serves the command that it gets on.
struct Alive<'a> {
    begun: Instant,
    connection: &'a mut Option<Connection>,
    suspend: &'a mut Suspend<anyhow::Error>,
}

impl Alive<'_> {
    /// The command has got on: the node is told so if it is time. What the node has said is kept for [`Outside::hear`]; that it has ended the connection is an
    /// error, for the ranks go on then and nothing more needs to be copied.
    fn handle_progress(&mut self) -> Result<()> {
        if let Some(connection) = self.connection
            && self.suspend.take_ping(self.begun.elapsed())
        {
            connection.send(&Request::Ping)?;
            connection.read()?;
        }
        Ok(())
    }
}

impl Outside<'_> {
    fn run(mut self, job: &str) -> Result<(), Failure> {
        let (begun, mut suspend) = (Instant::now(), Suspend::new(job.to_owned()));
        loop {
            // Where the connection is gone, whatever waits for it says so.
            _ = self.alive(begun, &mut suspend).handle_progress();
            let Some(action) = suspend.poll_action() else {
                self.wait(begun, &mut suspend);
                continue;
            };
            match action {
                Action::Over(over) => return self.end(over),
                Action::Ask(request) => {
                    let asked = self.ask(&request);
                    asked.unwrap_or_else(|error| suspend.handle_lost(error));
                }
                action => {
                    let carried_out = self.carry_out(begun, action, &mut suspend);
                    carried_out.unwrap_or_else(|error| suspend.handle_failed(error));
                    self.hear(begun, &mut suspend);
                }
            }
        }
    }

    /// The connection that holds the suspension begins with its first request.
    fn ask(&mut self, request: &Request) -> Result<()> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.cluster.connect(None)?,
        };
        Ok(self.connection.insert(connection).send(request)?)
    }

    /// Nothing is to be done before the home says something, or it is time.
    fn wait(&mut self, begun: Instant, suspend: &mut Suspend<anyhow::Error>) {
        let Some(connection) = &mut self.connection else { unreachable!("only the home is waited for") };
        let Some(due) = suspend.poll_timeout() else { unreachable!("whatever is waited for has a limit") };
        match connection.wait(Some(begun + due)) {
            Ok(Some(reply)) => suspend.handle_reply(begun.elapsed(), reply),
            Ok(None) => suspend.handle_timeout(begun.elapsed()),
            Err(error) => suspend.handle_lost(error.into()),
        }
    }

    fn alive<'b>(&'b mut self, begun: Instant, suspend: &'b mut Suspend<anyhow::Error>) -> Alive<'b> {
        Alive { begun, connection: &mut self.connection, suspend }
    }

    /// What the home has said meanwhile: that the ranks go on, perhaps.
    fn hear(&mut self, begun: Instant, suspend: &mut Suspend<anyhow::Error>) {
        let Some(connection) = &mut self.connection else { return };
        let read = connection.read();
        loop {
            match connection.next_reply() {
                Ok(Some(reply)) => suspend.handle_reply(begun.elapsed(), reply),
                Ok(None) => break,
                Err(error) => return suspend.handle_lost(error.into()),
            }
        }
        read.unwrap_or_else(|error| suspend.handle_lost(error.into()));
    }

    fn carry_out(&mut self, begun: Instant, action: Action<anyhow::Error>, suspend: &mut Suspend<anyhow::Error>) -> Result<()> {
        match action {
            Action::Checkpoint(job) => {
                let ranks = counters::make_checkpoints(self.cluster, job, self.progress)?;
                suspend.handle_checkpoints(begun.elapsed(), &ranks);
            }
            Action::Stopped(job) => {
                self.job = Some((job, JobKey::derive_for_suspension(self.key, job)));
                let dir = self.folder.path().display();
                (self.say)(&format!("radic: all ranks of job {job} are stopped; writing them to {dir}"));
            }
            Action::List(rank) => {
                self.held = None;
                let log = Held::open(self.cluster, self.job()?.0.to_string(), rank)?.log;
                suspend.handle_log(begun.elapsed(), log);
            }
            Action::Begin(size) => {
                self.files.clear();
                self.progress.begin("writing the ranks", Unit::Bytes, Some(size));
            }
            Action::Read(rank, part, Span { start, end }) => {
                self.held(rank)?;
                let Outside { held: Some((_, held)), connection, .. } = self else { unreachable!("it is open") };
                let mut alive = Alive { begun, connection, suspend };
                let bytes = held.read_all(part, start, usize::try_from(end - start)?, &mut || alive.handle_progress())?;
                suspend.handle_read(bytes);
            }
            Action::Create(rank, file) => {
                let (_, key) = self.job.as_ref().context(NOT_STOPPED)?;
                self.file = Some((rank, file, Saving::create(&mut self.folder, rank, file, key)?));
                suspend.handle_done(begun.elapsed());
            }
            Action::Copy(rank, part, span) => {
                self.held(rank)?;
                let Outside { held: Some((_, held)), file: Some((.., file)), connection, progress, .. } = self else {
                    unreachable!("both are open")
                };
                let mut alive = Alive { begun, connection, suspend };
                let mut copied = |bytes| {
                    progress.advance(bytes);
                    alive.handle_progress()
                };
                file.copy(held, part, span, &mut copied)?;
                suspend.handle_done(begun.elapsed());
            }
            Action::Append(bytes) => {
                self.file.as_mut().context("no file is open")?.2.write(&bytes)?;
                suspend.handle_done(begun.elapsed());
            }
            Action::Close => {
                let (rank, file, saving) = self.file.take().context("no file is open")?;
                self.files.insert((rank, file), saving.finish()?);
                suspend.handle_done(begun.elapsed());
            }
            Action::Finish(saved) => {
                self.finish(*saved)?;
                suspend.handle_done(begun.elapsed());
            }
            Action::Place => {
                self.folder.place_manifest()?;
                suspend.handle_done(begun.elapsed());
            }
            Action::Mark => self.marked = self.folder.mark(&Mark::now()),
            Action::Ask(_) | Action::Over(_) => unreachable!("these are no files"),
        }
        Ok(())
    }

    fn job(&self) -> Result<&(JobId, JobKey)> {
        self.job.as_ref().context(NOT_STOPPED)
    }

    /// The log of a rank, open for reading.
    fn held(&mut self, rank: Rank) -> Result<&mut Held> {
        let held = match self.held.take() {
            Some(held) if held.0 == rank => held,
            _ => (rank, Held::open(self.cluster, self.job()?.0.to_string(), rank)?),
        };
        Ok(&mut self.held.insert(held).1)
    }

    fn finish(&mut self, Saved { suspension, unprinted, ranks }: Saved) -> Result<()> {
        let mut files = std::mem::take(&mut self.files);
        let of_rank =
            |(rank, log): (u32, SavedLog)| log.with_files(|file| files.remove(&(Rank(rank), file)).expect("it was written"));
        let ranks: Vec<SavedRank> = (0..).zip(ranks).map(of_rank).collect();
        self.size = ranks.iter().flat_map(SavedRank::files).map(|file| file.bytes).sum();
        self.folder.write_manifest(&Manifest { suspension, unprinted, ranks }.encode(self.key)?)
    }

    fn end(mut self, over: Over<anyhow::Error>) -> Result<(), Failure> {
        match over {
            Over::Suspended => {
                let (dir, size) = (self.folder.path().display(), bytes(self.size));
                let Some((job, _)) = self.job else { unreachable!("its ranks were stopped") };
                (self.say)(&format!("radic: job {job} is suspended ({size}); `radic resume {dir}` goes on with it"));
                Ok(())
            }
            Over::GoesOn(failure) => {
                let error = self.told(failure);
                self.connection = None;
                Err(Failure::Passing(error))
            }
            Over::Unsure(failure) => {
                let error = self.told(failure);
                let unmarked = self.marked.err().map_or_else(String::new, |error| format!(" ({error:#})"));
                let (dir, job) =
                    (self.folder.path().display(), self.job.map_or_else(String::new, |(job, _)| format!("job {job}")));
                Err(Failure::Lasting(error.context(format!("everything is written to {dir}, and {job} has not ended{unmarked}"))))
            }
        }
    }

    fn told(&self, failure: suspend::Failure<anyhow::Error>) -> anyhow::Error {
        match (failure, &self.connection) {
            (suspend::Failure::Undone(error), _) => error,
            (suspend::Failure::Refused(text), _) => ClientError::Refused(text).into(),
            (suspend::Failure::Unexpected(reply), Some(connection)) => connection.unexpected(&reply).into(),
            (other, _) => anyhow!("{other}"),
        }
    }
}
