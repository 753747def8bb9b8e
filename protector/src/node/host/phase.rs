//! How far a host is, from its first rank to its end.
//!
//! ```text
//! Open ──▶ Ending ──▶ Over
//!  ▲          │
//!  └ Reopened ┘      the home that ended the host is lost, and ranks may have to come back here to print
//! ```

use std::time::Duration;

/// Why a host is ended. A later one in this list goes before an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// The job ends: its ranks may end by themselves.
    JobEnds,
    /// The job is ended by force, or nothing can be decided about it here any more.
    Force,
    /// The job restarts from its beginning.
    Restart,
    /// The job has restarted elsewhere, and this host is of an earlier epoch. `told`: its own home had ended it for a restart.
    Superseded { told: bool },
}

/// See the module's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostPhase {
    /// Its ranks run, or are to be started or brought back.
    Open,
    /// It was ended, all its ranks had ended by themselves, and then the home was lost. The next home says when the job is over.
    Reopened(Cause),
    /// Its ranks are being ended: those that have not ended at `kill_at` are killed.
    Ending { cause: Cause, kill_at: Option<Duration> },
    /// All ranks have ended and all that they have printed is taken. The host is nothing any more.
    Over(Cause),
}

impl HostPhase {
    /// Why it is ended, or was before it was reopened.
    pub(super) fn cause(self) -> Option<Cause> {
        match self {
            HostPhase::Open => None,
            HostPhase::Reopened(cause) | HostPhase::Ending { cause, .. } | HostPhase::Over(cause) => Some(cause),
        }
    }

    /// Whether no rank is started or brought back here any more.
    pub(super) fn is_ending(self) -> bool {
        matches!(self, HostPhase::Ending { .. } | HostPhase::Over(_))
    }

    /// Whether the job has left the host's epoch behind.
    pub(super) fn is_superseded(self) -> bool {
        matches!(self.cause(), Some(Cause::Superseded { .. }))
    }

    /// Whether the ranks are not left to end by themselves.
    pub(super) fn is_by_force(self) -> bool {
        self.cause().is_some_and(|cause| cause >= Cause::Force)
    }

    /// Whether the host's own home has ended it for a restart.
    pub(super) fn restarts(self) -> bool {
        matches!(self.cause(), Some(Cause::Restart | Cause::Superseded { told: true }))
    }

    /// When the ranks that still run are killed.
    pub(super) fn kill_at(self) -> Option<Duration> {
        if let HostPhase::Ending { kill_at, .. } = self { kill_at } else { None }
    }

    /// The host is ended for this, perhaps once more.
    pub(super) fn end(&mut self, cause: Cause, kill_at: Option<Duration>) {
        let cause = match (cause, self.restarts()) {
            (Cause::Superseded { .. }, told) => Cause::Superseded { told },
            (cause, _) => self.cause().map_or(cause, |before| before.max(cause)),
        };
        *self = match *self {
            HostPhase::Over(_) => HostPhase::Over(cause),
            _ => HostPhase::Ending { cause, kill_at },
        };
    }

    /// The home is lost, and all ranks here have ended by themselves.
    pub(super) fn reopen(&mut self) {
        if let HostPhase::Ending { cause, .. } = *self {
            *self = HostPhase::Reopened(cause);
        }
    }

    /// Nothing is left here.
    pub(super) fn finish(&mut self) {
        if let HostPhase::Ending { cause, .. } = *self {
            *self = HostPhase::Over(cause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Option<Duration> = Some(Duration::from_secs(2));

    #[test]
    fn a_host_is_ended_for_the_gravest_cause_and_reopened_with_it() {
        let mut phase = HostPhase::Open;
        phase.reopen();
        phase.finish();
        assert_eq!(phase, HostPhase::Open, "only what is ended is over or reopened");
        phase.end(Cause::JobEnds, AT);
        assert!(phase.is_ending() && !phase.is_by_force() && phase.kill_at() == AT);
        phase.end(Cause::Restart, None);
        phase.end(Cause::Force, None);
        assert_eq!(phase, HostPhase::Ending { cause: Cause::Restart, kill_at: None });
        phase.reopen();
        assert!(!phase.is_ending() && phase.is_by_force() && phase.restarts() && !phase.is_superseded());
        phase.end(Cause::JobEnds, AT);
        phase.finish();
        assert_eq!(phase, HostPhase::Over(Cause::Restart));
        phase.reopen();
        assert_eq!(phase, HostPhase::Over(Cause::Restart), "what is over stays so");
    }

    #[test]
    fn a_superseded_host_knows_whether_its_own_home_had_restarted_the_job() {
        for told in [false, true] {
            let mut phase = HostPhase::Open;
            phase.end(if told { Cause::Restart } else { Cause::JobEnds }, None);
            phase.end(Cause::Superseded { told: false }, None);
            phase.end(Cause::Force, None);
            assert_eq!(phase.cause(), Some(Cause::Superseded { told }));
            assert!(phase.is_superseded() && phase.is_by_force() && phase.restarts() == told);
        }
    }
}
