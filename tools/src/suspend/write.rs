//! How a job is written to a folder, and ended.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use radic_wire::ids::JobId;
use radic_wire::key::ClusterKey;
use radic_wire::local::{Reply, Request};
use radic_wire::mac::JobKey;
use radic_wire::report::RankCheckpoint;
use radic_wire::suspension::{Manifest, SavedRank, Suspension, Unprinted};

use crate::client::{ClientError, Cluster, Connection};
use crate::counters;
use crate::format::bytes;
use crate::progress::Progress;

use super::content::Mark;
use super::folder::Folder;

/// Time for all ranks to stop, and for the job's terminal to print what it was sent.
const STOPPED: Duration = Duration::from_secs(30);
/// Time for the job to end when it is written down.
const ENDED: Duration = Duration::from_secs(60);
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
