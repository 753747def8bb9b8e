//! What a daemon that was told to end does before it leaves, if `--grace` gives it the time: it has every job with ranks here make a checkpoint. The ranks go on at other nodes
//! from the moment of the end, and not from a checkpoint that may be an hour old.
//!
//! It asks for them as `radic checkpoint` does, over its own socket: so the node learns nothing new by it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use radic_wire::ids::{JobId, NodeName};
use radic_wire::local::{Reply, Request};
use radic_wire::process::Protect;

use super::asking::{AskError, Connection};
use crate::folder::Folder;

/// Has the jobs with ranks on this node make checkpoints, for so long. The result says what became of that.
pub async fn checkpoint(folder: Arc<Folder>, me: NodeName, limit: Duration) -> String {
    match tokio::time::timeout(limit, checkpoint_jobs(&folder, &me)).await {
        Ok(Ok(0)) => "no protected rank runs here".to_owned(),
        Ok(Ok(ranks)) => format!("{ranks} ranks of the jobs here have made a checkpoint"),
        Ok(Err(error)) => format!("not every rank of the jobs here has made a checkpoint: {error}"),
        Err(_) => format!("the checkpoints of the jobs here are not done within the grace of {} s", limit.as_secs()),
    }
}

async fn checkpoint_jobs(folder: &Folder, me: &NodeName) -> Result<usize> {
    let mut ranks = 0;
    for job in jobs_here(folder, me).await? {
        let mut connection = Connection::open(folder).await?;
        connection.send(&Request::Checkpoint { job: job.to_string() }).await?;
        loop {
            match connection.reply().await? {
                Reply::Checkpoints(some) => {
                    let failed = some.iter().find_map(|rank| Some((rank.rank, rank.result.as_ref().err()?)));
                    if let Some((rank, why)) = failed {
                        bail!("rank {rank} of job {job}: {why}");
                    }
                    ranks += some.len();
                }
                Reply::Done => break,
                Reply::Error(why) => bail!(why),
                _ => bail!(AskError::Unexpected),
            }
        }
    }
    Ok(ranks)
}

/// The jobs of which a protected rank runs here.
async fn jobs_here(folder: &Folder, me: &NodeName) -> Result<BTreeSet<JobId>> {
    match Connection::open(folder).await?.ask(&Request::Status).await? {
        Reply::Status(status) => {
            let here = |process: &&radic_wire::report::ProcessInfo| {
                process.node == *me && process.running && process.protect == Protect::On
            };
            Ok(status.processes.iter().filter(here).map(|process| process.job).collect())
        }
        _ => bail!(AskError::Unexpected),
    }
}
