//! Ranks that are being brought back here, and do not say where they stand.

use std::time::Duration;

use super::rank::Limit;
use super::{Host, HostOutput};

/// A process says where it stands this long after its start at the latest, and this much later for each byte of its images.
const BASE: Duration = Duration::from_secs(60);
const BYTES_PER_SECOND: u64 = 10_000_000;

/// A process that was killed has ended after this.
const KILLED: Duration = Duration::from_secs(30);

/// How long a process with images of this many bytes may take from its start until it says where it stands.
pub(super) fn limit(bytes: u64) -> Duration {
    BASE + Duration::from_secs(bytes / BYTES_PER_SECOND)
}

impl Host {
    /// Kills processes that have taken too long to say where they stand, and gives up those that do not end then.
    pub(super) fn look_at_returning(&mut self, now: Duration) {
        let late = self.ranks.iter_mut().filter_map(|(rank, state)| Some((*rank, state.pid()?, state.take_limit(now, KILLED)?)));
        for (rank, pid, limit) in late.collect::<Vec<_>>() {
            let what = format!(
                "process {pid} was brought back and has not said where it stands: it is stopped, or waits in the kernel for a file of \
                 its program (/proc/{pid}/stack says where)"
            );
            match limit {
                Limit::Takes(_) | Limit::Kill(_) => {
                    self.outputs.push_back(HostOutput::Note(rank, format!("{what}; it is killed, and brought back once more")));
                    self.outputs.push_back(HostOutput::Signal(rank, libc::SIGKILL));
                }
                Limit::GiveUp(_) => {
                    self.handle_not_restored(now, rank, format!("{what}, and does not end, although it was killed"))
                }
            }
        }
    }
}
