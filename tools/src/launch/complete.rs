//! `radic cluster complete-slurm`: ends a job of Slurm whose script is lost as the end of the script would have, with the code of its program.
//!
//! No command of Slurm does that; its library does. It is loaded in a process of its own (`--library`), for a limited time: whatever it does there, this
//! process goes on, and cancels the job.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use radic_slurm::Library;
use tokio::process::Command;
use tokio::time::timeout;

use crate::format::report;
use crate::local_node::quoted;
use crate::mpi::loader;

use super::ssh::{Complaints, block_on};

/// The variable with the exit code.
pub(crate) const CODE: &str = "RADIC_EXIT_CODE";
/// Time for the library, and for scancel after it. A controller has 10 s to answer unless the site says otherwise.
const LIMIT: Duration = Duration::from_secs(10);
/// Time for what a process that has ended has complained about.
const LAST_WORDS: Duration = Duration::from_millis(300);
/// Exit code of the process of its own if the controller was not reached: that of sysexits.h for what is to be tried again.
const NOT_REACHED: u8 = 75;
/// Commands of Slurm that load its library.
const COMMANDS: [&str; 3] = ["scancel", "srun", "scontrol"];
/// Where a library is, from the folder above that of the commands, if they have it compiled in or are scripts.
const BESIDE: [&str; 5] = [
    "lib64/slurm/libslurmfull.so",
    "lib/slurm/libslurmfull.so",
    "lib64/libslurm.so",
    "lib/libslurm.so",
    "lib/x86_64-linux-gnu/libslurm.so",
];

/// Flags of `radic cluster complete-slurm`.
#[derive(Args)]
pub(crate) struct CompleteArgs {
    /// The job's number
    job: NonZeroU32,
    /// The exit code of its program; if it is not known, the job is cancelled
    #[arg(env = CODE)]
    code: Option<u8>,
    /// Load this library here, and do nothing else
    #[arg(long, value_name = "FILE", hide = true, requires = "code")]
    library: Option<PathBuf>,
}

/// The command for a node of job `job`, on which RADIC is in the folder `prefix`.
pub(super) fn command(prefix: &Path, job: &str) -> String {
    format!("{} cluster complete-slurm {}", quoted(&prefix.join("radic").to_string_lossy()), quoted(job))
}

/// Ends a job of Slurm. The result is the exit code.
///
/// # Errors
/// If neither the library nor scancel does so, or the controller is not reached.
pub(crate) fn run(args: &CompleteArgs) -> Result<u8> {
    let job = args.job.get();
    if let (Some(library), Some(code)) = (&args.library, args.code) {
        return call(library, job, code);
    }
    block_on(async {
        let Err(why) = complete(job, args.code).await else { return Ok(0) };
        if why.is::<NotReached>() {
            return Err(why.context(format!("job {job} has not been ended")));
        }
        report(&format!("radic: job {job} cannot be ended with the code of its program, so it is cancelled: {why:#}"));
        cancel(job).await.map(|()| 0)
    })
}

/// What the process of its own does. The result is the exit code.
fn call(library: &Path, job: u32, code: u8) -> Result<u8> {
    match Library::open(library)?.complete_job(job, code) {
        Err(error @ radic_slurm::Error::Unreached(..)) => {
            report(&error.to_string());
            Ok(NOT_REACHED)
        }
        ended => Ok(ended.map(|()| 0)?),
    }
}

/// The controller was not reached: scancel would not reach it either, or would cancel a job that may still be ended well.
#[derive(Debug, thiserror::Error)]
#[error("{0}; give the command again")]
struct NotReached(String);

async fn complete(job: u32, code: Option<u8>) -> Result<()> {
    let code = code.context("the code is not known")?;
    let library = find()?;
    let radic = std::env::current_exe().context("cannot find radic's own path")?;
    let mut call = Command::new(radic);
    call.args(["cluster", "complete-slurm", "--library"]).arg(&library).args([job.to_string(), code.to_string()]);
    let (status, complaint) = bounded(call).await.with_context(|| format!("{} is asked", library.display()))?;
    let complaint = if complaint.is_empty() { status.to_string() } else { complaint };
    ensure!(status.code() != Some(i32::from(NOT_REACHED)), NotReached(complaint));
    ensure!(status.success(), "{}: {}", library.display(), complaint.trim_start_matches("radic: "));
    Ok(())
}

async fn cancel(job: u32) -> Result<()> {
    let mut scancel = Command::new("scancel");
    scancel.arg(job.to_string());
    let (status, complaint) = bounded(scancel).await.with_context(|| format!("scancel {job}"))?;
    ensure!(status.success(), "scancel {job}: {status}: {complaint}");
    Ok(())
}

/// How a command ends, and its last complaint. It is killed if it takes too long.
async fn bounded(mut command: Command) -> Result<(ExitStatus, String)> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().context("it cannot be started")?;
    let complaints = Complaints::default();
    let gathering = child.stderr.take().map(|stderr| tokio::spawn(complaints.clone().gather(stderr)));
    let Ok(status) = timeout(LIMIT, child.wait()).await else { bail!("no answer within {} s", LIMIT.as_secs()) };
    if let Some(gathering) = gathering {
        // A process that it has left behind may hold the other end: what has come by now is enough.
        let _ = timeout(LAST_WORDS, gathering).await;
    }
    Ok((status?, complaints.last()))
}

/// The library that the commands of the installed Slurm load, else one beside them.
fn find() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = |name: &&str| std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    let commands: Vec<PathBuf> = COMMANDS.iter().filter_map(in_path).collect();
    ensure!(!commands.is_empty(), "none of {} is in PATH", COMMANDS.join(", "));
    let is_slurm = |name: &str| name.starts_with("libslurm.so") || name.starts_with("libslurmfull.so");
    let loaded = commands.iter().find_map(|command| loader::library_of(command, is_slurm));
    let found = loaded.or_else(|| commands.iter().find_map(|command| beside(command)));
    found.with_context(|| format!("{} loads no libslurm, and there is none beside it", commands[0].display()))
}

fn beside(command: &Path) -> Option<PathBuf> {
    let command = command.canonicalize().ok()?;
    let above = command.parent()?.parent()?;
    BESIDE.iter().map(|name| above.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_finds_the_command_where_radic_is_there() {
        assert_eq!(command(Path::new("/opt/radic"), "7"), "/opt/radic/radic cluster complete-slurm 7");
        assert_eq!(command(Path::new("/my programs"), "7"), "'/my programs/radic' cluster complete-slurm 7");
    }
}
