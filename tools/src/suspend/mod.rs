//! `radic suspend`: a whole job into a folder. `radic resume` (`tools/src/resume.rs`) brings it back onto whatever nodes there are.
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
#[cfg(test)]
mod tests;
mod write;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::client::Cluster;
use crate::progress::Progress;

use self::write::write_down;

/// Flags of `radic suspend`.
#[derive(Args)]
pub(crate) struct SuspendArgs {
    /// The job, or its first digits
    job: String,
    /// A folder of your own that no other user may write to: a new one, an empty one, or the one that the job was resumed from
    dir: PathBuf,
}

/// `radic suspend`.
pub(crate) fn suspend(cluster: &Cluster, args: &SuspendArgs) -> Result<()> {
    let progress = Progress::new(false);
    Ok(write_down(cluster, &args.job, &args.dir, &progress, &|line| progress.report(line))?)
}
