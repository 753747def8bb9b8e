//! `radic suspend` and `radic resume`: a whole job into a folder, and back onto whatever nodes there are.
//!
//! | file | what |
//! |---|---|
//! | `manifest` | the job, and the length and code of each other file ([`radic_wire::suspension`]); written last, so a folder without it is none |
//! | `rank-R.image-N` | an image, as its protector had it |
//! | `rank-R.journal` | the journal, from the cut of the last image on, with what only other ranks' logs had of it (`--log causal`) |
//! | `rank-R.received` | what the rank had received since, one stream after the other |
//! | `resumed-ID` | the job of the manifest with this code has gone on, and how it has ended ([`content::Mark`]) |
//! | `unfinished` | locked by the command that writes here ([`folder`]) |
//!
//! While the folder is written all ranks are stopped. If that fails, or this command dies, they go on as if nothing had been. The logs are listed before and
//! after they are copied: they have not changed in between, hence they are those of one moment. Where no process waits before it sends, a log may lack outcomes that the logs of
//! others keep as causes. All logs of one moment together lack nothing: each journal is written with what the others have of it ([`radic_wire::causes::Elsewhere`]). The logs
//! themselves do not learn it, for the ranks may go on.
//!
//! A resume reads and verifies every file before it asks a node for anything. Then it gives each rank's protector-to-be the images and the log, in the
//! rank's name and over the rank's protocol ([`radic_wire::log`]), so what goes in there is checked as it was the first time.

pub(crate) mod content;
mod folder;
pub(crate) mod on_signal;
pub(crate) mod resume;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use radic_wire::ids::{Incarnation, JobId, Rank};
use radic_wire::key::ClusterKey;
use radic_wire::limits;
use radic_wire::local::{Reply, Request};
use radic_wire::log::{HeldImage, HeldLog, HeldStream, ImageState};
use radic_wire::mac::JobKey;
use radic_wire::report::RankCheckpoint;
use radic_wire::span::Span;
use radic_wire::suspension::{Manifest, SavedRank, Suspension, Unprinted};

use crate::client::{ClientError, Cluster, Connection};
use crate::counters;
use crate::format::bytes;
use crate::progress::Progress;

use self::content::Mark;
use self::folder::Folder;

const MANIFEST: &str = "manifest";
/// Time for all ranks to stop, and for the job's terminal to print what it was sent.
const STOPPED: Duration = Duration::from_secs(30);
/// Time for the job to end when it is written down.
const ENDED: Duration = Duration::from_secs(60);
/// So often the logs are copied once more because they have changed meanwhile: an image was being committed.
const ATTEMPTS: u32 = 5;

/// Flags of `radic suspend`.
#[derive(Args)]
pub(crate) struct SuspendArgs {
    /// The job, or its first digits
    job: String,
    /// A folder of your own that no other user may write to: a new one, an empty one, or the one that the job was resumed from
    dir: PathBuf,
}

/// Why a job was not suspended. It goes on.
#[derive(Debug)]
enum Failure {
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

/// `radic suspend`.
pub(crate) fn suspend(cluster: &Cluster, args: &SuspendArgs) -> Result<()> {
    let progress = Progress::new(false);
    Ok(write_down(cluster, &args.job, &args.dir, &progress, &|line| progress.report(line))?)
}

/// Writes a job to a folder, and ends it. `say` is told what has been done.
fn write_down(cluster: &Cluster, job: &str, dir: &Path, progress: &Progress, say: &dyn Fn(&str)) -> Result<(), Failure> {
    let key = cluster.load_key().map_err(|error| Failure::Lasting(error.into()))?;
    let mut folder = Folder::create(dir, &key, job).map_err(Failure::Lasting)?;
    let (mut connection, job, size) = fill(cluster, job, &mut folder, &key, progress, say).map_err(Failure::Passing)?;
    let ended = match connection.ask(&Request::EndSuspended, ENDED) {
        Ok(Reply::Done) => Ok(()),
        Ok(other) => Err(connection.unexpected(&other)),
        Err(error) => Err(error),
    };
    if let Err(error) = ended {
        // It may have gone on, so no command may resume it from here without being told to.
        let marked = folder.mark(&Mark::now());
        let unmarked = marked.err().map_or_else(String::new, |error| format!(" ({error:#})"));
        let why = format!("everything is written to {}, and job {job} has not ended{unmarked}", dir.display());
        return Err(Failure::Lasting(anyhow!(error).context(why)));
    }
    say(&format!("radic: job {job} is suspended ({}); `radic resume {}` goes on with it", bytes(size), dir.display()));
    Ok(())
}

/// Everything up to the end of the job, which ends by the connection that is returned. Before the manifest is written nothing is given up.
fn fill(
    cluster: &Cluster,
    job: &str,
    folder: &mut Folder,
    key: &ClusterKey,
    progress: &Progress,
    say: &dyn Fn(&str),
) -> Result<(Connection, JobId, u64)> {
    checkpoint(cluster, job, progress)?;
    let (connection, suspension, unprinted) = stop(cluster, job)?;
    let job = suspension.job;
    say(&format!("radic: all ranks of job {job} are stopped; writing them to {}", folder.path().display()));
    let key_of_job = JobKey::derive_for_suspension(key, job);
    let ranks = folder.write_ranks(cluster, &suspension, &key_of_job, progress)?;
    let size = ranks.iter().flat_map(SavedRank::files).map(|file| file.bytes).sum();
    folder.finish(&Manifest { suspension, unprinted, ranks }.encode(key)?)?;
    Ok((connection, job, size))
}

/// A new image of each rank, so that little is to be done again.
fn checkpoint(cluster: &Cluster, job: &str, progress: &Progress) -> Result<()> {
    let ranks = counters::make_checkpoints(cluster, job.to_owned(), progress)?;
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
#[derive(Debug, PartialEq, Eq)]
struct Needed {
    incarnation: Incarnation,
    images: Vec<HeldImage>,
    journal: Span,
    /// Of other ranks' journals.
    causes: Span,
    forgotten: Vec<(Rank, u64)>,
    streams: Vec<HeldStream>,
}

impl Needed {
    fn of(log: &HeldLog) -> Result<Needed> {
        ensure!(log.current, "its protector has just changed, and nobody could bring it back");
        let committed = log.images.iter().filter(|image| image.state == ImageState::Committed);
        let images: Vec<HeldImage> = committed.cloned().collect();
        let cut = images.last().context("no image of it is committed")?.cut;
        ensure!(log.streams.len() < limits::CUT_STREAMS, "it has too many streams");
        let HeldLog { incarnation, causes, ref forgotten, ref streams, .. } = *log;
        let journal = Span { start: cut, end: log.journal.end };
        Ok(Needed { incarnation, images, journal, causes, forgotten: forgotten.clone(), streams: streams.clone() })
    }
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_millis() as u64)
}
