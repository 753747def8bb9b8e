//! A terminal that suspends its job when it gets a signal: for batch systems, which send one some time before they end a job.
//!
//! The job is suspended by a thread of its own, with connections of its own, as `radic suspend` would: the ranks stop only when the terminal has printed what it was sent, so it
//! goes on meanwhile.

use std::fs;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use nix::sys::signal::Signal;
use radic_wire::event::{Event, EventName};
use radic_wire::ids::JobId;
use radic_wire::local::{Reply, Request};

use crate::client::{ClientError, Cluster};
use crate::launch::slurm::{self, BatchSignal};
use crate::outcome::Usage;
use crate::progress::Progress;

use super::content::now_ms;
use super::folder::Folder;
use super::write::{Failure, write_down};

/// Signals that can suspend a job. SIGINT ends it when it comes three times, and SIGHUP means that the terminal is gone.
const SIGNALS: [Signal; 4] = [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGTERM, Signal::SIGQUIT];
/// So often it is tried, if what is in the way may pass.
const TRIES: u32 = 60;
/// The longest pause between two attempts: something may have changed of which no event tells.
const PAUSE: Duration = Duration::from_secs(5);
/// Time to clear up for an attempt that is under way when the job ends.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Flags of the commands that show a job from its beginning.
#[derive(Args)]
#[command(next_help_heading = "Suspension")]
pub(crate) struct OnSignalArgs {
    /// Suspend the job when this command gets this signal: USR1, USR2, TERM or QUIT [default: the one of `#SBATCH --signal=B:USR1@300` in the script of this job of Slurm]
    #[arg(long, value_name = "SIGNAL", requires = "suspend_to", value_parser = parse_signal)]
    suspend_on: Option<Signal>,
    /// Where to suspend it to, as `radic suspend` does: a folder that is new, empty, or holds the suspension that the job goes on from, which stays there until
    /// the new one is whole. The exit code is 114 then
    #[arg(long, value_name = "DIR")]
    suspend_to: Option<PathBuf>,
}

impl OnSignalArgs {
    /// What the flags, or else the batch system, say. A folder that could not be written to is refused now, not hours later; it may be the one that the job is resumed from.
    pub(crate) fn decide(&self, cluster: &Cluster, resumed_from: Option<&Path>) -> Result<Option<OnSignal>> {
        let Some(dir) = &self.suspend_to else { return Ok(None) };
        let signal = match self.suspend_on {
            Some(signal) => signal,
            None => of_slurm()?,
        };
        let dir = std::path::absolute(dir).with_context(|| format!("--suspend-to {}", dir.display()))?;
        let key = cluster.load_key()?;
        if !resumed_from.is_some_and(|from| is_same(from, &dir)) {
            Folder::check(&dir, &key).context("--suspend-to")?;
        }
        Ok(Some(OnSignal { signal, dir }))
    }

    pub(crate) fn is_given(&self) -> bool {
        self.suspend_to.is_some()
    }
}

/// Whether two names lead to one folder.
fn is_same(one: &Path, other: &Path) -> bool {
    matches!((fs::canonicalize(one), fs::canonicalize(other)), (Ok(one), Ok(other)) if one == other)
}

/// `USR1`, `SIGUSR1`, `usr1` or `10`.
pub(crate) fn parse_signal(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    let name = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    let number = text.parse::<i32>().ok().and_then(|number| Signal::try_from(number).ok());
    let signal = name.parse::<Signal>().ok().or(number).ok_or_else(|| format!("{text} is no signal"));
    match signal? {
        signal if SIGNALS.contains(&signal) => Ok(signal),
        Signal::SIGINT => {
            Err("SIGINT goes to the ranks, and ends the job when it comes three times: choose USR1, USR2, TERM or QUIT".into())
        }
        Signal::SIGHUP => Err("SIGHUP means that the terminal is gone: choose USR1, USR2, TERM or QUIT".into()),
        signal => Err(format!("{signal} cannot suspend a job: choose USR1, USR2, TERM or QUIT")),
    }
}

fn of_slurm() -> Result<Signal> {
    match slurm::batch_signal() {
        BatchSignal::ToScript(name) => parse_signal(&name).map_err(anyhow::Error::msg).context("--signal of this job of Slurm"),
        BatchSignal::ToSteps(given) => bail!(
            "--suspend-to: `--signal={given}` of this job of Slurm has no `B:`, so Slurm sends the signal to its steps: these are the nodes of the cluster, and \
             they end by it; write `--signal=B:{given}`, and let the script pass the signal on (docs/clusters.md has one that does)"
        ),
        BatchSignal::Unknown => Err(Usage(
            "--suspend-to: which signal suspends the job? Say --suspend-on USR1. In a script of sbatch `#SBATCH --signal=B:USR1@300` says it, too; given to \
             sbatch itself it is not seen, because Slurm tells of it nowhere",
        )
        .into()),
    }
}

/// That a signal suspends the job.
#[derive(Debug, Clone)]
pub(crate) struct OnSignal {
    pub(crate) signal: Signal,
    pub(crate) dir: PathBuf,
}

/// What a [`Suspender`] says.
pub(crate) enum Said {
    /// A line for the terminal.
    Line(String),
    /// The job was suspended, or will not be.
    Over,
}

/// The suspension of a job, under way. When its file polls readable it has said something.
pub(crate) struct Suspender {
    said: Receiver<Said>,
    pending: Vec<Said>,
    wake: PipeReader,
    /// An attempt is under way: there are files that are written, or removed again.
    busy: Arc<AtomicBool>,
    /// When the attempt is not waited for any longer, after the end of the job.
    told_by: Option<Instant>,
}

impl Suspender {
    pub(crate) fn begin(cluster: &Cluster, job: JobId, on: &OnSignal) -> std::io::Result<Suspender> {
        let ((wake, waker), (sender, said), busy) = (std::io::pipe()?, channel(), Arc::new(AtomicBool::new(true)));
        let voice = Voice { sender, waker, busy: busy.clone() };
        let (cluster, dir) = (cluster.clone(), on.dir.clone());
        thread::Builder::new().name("suspend".into()).spawn(move || {
            attempt(&cluster, job, &dir, &voice);
            voice.say(Said::Over);
        })?;
        Ok(Suspender { said, pending: Vec::new(), wake, busy, told_by: None })
    }

    /// What it has said since.
    pub(crate) fn said(&mut self) -> Vec<Said> {
        // It has polled readable.
        let _ = self.wake.read(&mut [0; 64]);
        let mut said = std::mem::take(&mut self.pending);
        said.extend(self.said.try_iter());
        said
    }

    /// Whether the terminal may go, as the job has ended: no attempt is under way, and all that was said has been shown.
    pub(crate) fn is_told(&mut self, now: Instant) -> bool {
        let busy = self.busy.load(Ordering::Acquire);
        self.pending.extend(self.said.try_iter());
        let told_by = *self.told_by.get_or_insert(now + LAST_WORDS);
        !busy && self.pending.is_empty() || told_by <= now
    }

    /// When it is to be asked again whether all is told.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.told_by
    }
}

impl AsFd for Suspender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// How the thread speaks. A terminal that is gone does not hear it, and that does not matter.
struct Voice {
    sender: Sender<Said>,
    waker: PipeWriter,
    busy: Arc<AtomicBool>,
}

impl Voice {
    fn say(&self, said: Said) {
        let _ = self.sender.send(said);
        let _ = (&self.waker).write(&[0]);
    }

    fn line(&self, text: impl Into<String>) {
        self.say(Said::Line(text.into()));
    }
}

/// Suspends the job. No user is there who could try again, so what is in the way is waited for.
fn attempt(cluster: &Cluster, job: JobId, dir: &Path, voice: &Voice) {
    let mut last = String::new();
    for left in (0..TRIES).rev() {
        let since = now_ms();
        voice.busy.store(true, Ordering::Release);
        let result = write_down(cluster, &job.to_string(), dir, &Progress::hidden(), &|line| voice.line(line));
        voice.busy.store(false, Ordering::Release);
        match result {
            Ok(()) => return,
            Err(Failure::Passing(error)) if left > 0 => {
                let why = format!("{error:#}");
                if why != last {
                    voice.line(format!("radic: job {job} is not suspended yet, it is tried again: {why}"));
                }
                last = why;
                await_change(cluster, job, since);
            }
            Err(failure) => {
                let error = anyhow::Error::from(failure);
                return voice.line(format!("radic: job {job} is not suspended: {error:#}"));
            }
        }
    }
}

/// Waits until something has happened to the job since then, or for a pause: without a daemon that tells, too.
fn await_change(cluster: &Cluster, job: JobId, since_ms: u64) {
    let deadline = Instant::now() + PAUSE;
    let is_change = |event: &Event| {
        let matters = [EventName::Live, EventName::Reprotected, EventName::RankStart, EventName::Checkpoint];
        event.job == Some(job) && event.at_ms >= since_ms && matters.contains(&event.event)
    };
    let wait = || -> Result<(), ClientError> {
        let mut connection = cluster.connect(None)?;
        connection.send(&Request::Events { follow: true })?;
        while let Some(reply) = connection.wait(Some(deadline))? {
            if matches!(reply, Reply::Events(events) if events.iter().any(is_change)) {
                return Ok(());
            }
        }
        Ok(())
    };
    if wait().is_err() {
        thread::sleep(deadline.saturating_duration_since(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_known_by_their_names() {
        for text in ["USR1", "SIGUSR1", "usr1", "sigusr1", "10"] {
            assert_eq!(parse_signal(text), Ok(Signal::SIGUSR1), "{text}");
        }
        assert_eq!(parse_signal("TERM"), Ok(Signal::SIGTERM));
        for (text, part) in
            [("INT", "three times"), ("HUP", "terminal"), ("KILL", "USR1"), ("9", "USR1"), ("X", "no signal"), ("", "no signal")]
        {
            let error = parse_signal(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
