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

/// What comes next for ranks of an ended host that have not ended themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The ranks are killed then.
    Kill(Duration),
    /// The ranks were killed. The terminal is told then which have not ended.
    Notice(Duration),
    /// The ranks count as ended then: the kernel lets a process that was killed do nothing more, but it may keep it for as long
    /// as a disk or a file server does not answer.
    GiveUp(Duration),
    /// All count as ended.
    Nothing,
}

impl Next {
    /// When it comes.
    fn at(self) -> Option<Duration> {
        match self {
            Next::Kill(at) | Next::Notice(at) | Next::GiveUp(at) => Some(at),
            Next::Nothing => None,
        }
    }
}

/// See the module's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostPhase {
    /// The host's ranks run, or are to be started or brought back.
    Open,
    /// The host was ended, all its ranks had ended by themselves, and then the home was lost. The next home says when the job is
    /// over.
    Reopened(Cause),
    /// The host's ranks are being ended.
    Ending { cause: Cause, next: Next },
    /// All ranks have ended and all that they have printed is taken. The host has nothing more to do.
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

    /// Whether the job begins anew, or has begun anew elsewhere: how ranks have ended here is of no account.
    pub(super) fn is_left_behind(self) -> bool {
        self.cause().is_some_and(|cause| cause >= Cause::Restart)
    }

    /// Whether the host's own home has ended it for a restart.
    pub(super) fn restarts(self) -> bool {
        matches!(self.cause(), Some(Cause::Restart | Cause::Superseded { told: true }))
    }

    /// What comes next for ranks that have not ended, if they are being ended.
    pub(super) fn next(self) -> Option<Next> {
        if let HostPhase::Ending { next, .. } = self { Some(next) } else { None }
    }

    /// When that comes.
    pub(super) fn next_at(self) -> Option<Duration> {
        self.next().and_then(Next::at)
    }

    /// Takes what has come, if it has; `then` follows.
    pub(super) fn take_due(&mut self, now: Duration, then: impl FnOnce(Next) -> Next) -> Option<Next> {
        let HostPhase::Ending { next, .. } = self else { return None };
        let due = *next;
        due.at().filter(|at| *at <= now)?;
        *next = then(due);
        Some(due)
    }

    /// The host is ended for this, perhaps once more. What was decided before stays, but ranks that were to be killed later may
    /// have been killed now.
    pub(super) fn end(&mut self, cause: Cause, asked: Next) {
        let next = match (self.next(), asked) {
            (Some(Next::Kill(_)), Next::Notice(_)) | (None, _) => asked,
            (Some(before), _) => before,
        };
        let cause = match (cause, self.restarts()) {
            (Cause::Superseded { .. }, told) => Cause::Superseded { told },
            (cause, _) => self.cause().map_or(cause, |before| before.max(cause)),
        };
        *self = match *self {
            HostPhase::Over(_) => HostPhase::Over(cause),
            _ => HostPhase::Ending { cause, next },
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

    const KILL: Next = Next::Kill(Duration::from_secs(2));
    const NOTICE: Next = Next::Notice(Duration::from_secs(10));

    #[test]
    fn a_host_is_ended_for_the_gravest_cause_and_reopened_with_it() {
        let mut phase = HostPhase::Open;
        phase.reopen();
        phase.finish();
        assert_eq!(phase, HostPhase::Open, "only what is ended is over or reopened");
        phase.end(Cause::JobEnds, KILL);
        assert!(phase.is_ending() && !phase.is_left_behind() && phase.next() == Some(KILL));
        phase.end(Cause::Force, NOTICE);
        assert!(!phase.is_left_behind(), "its ranks have ended with their job");
        phase.end(Cause::Restart, Next::Notice(Duration::from_secs(15)));
        phase.end(Cause::Force, Next::Notice(Duration::from_secs(20)));
        assert_eq!(phase, HostPhase::Ending { cause: Cause::Restart, next: NOTICE });
        phase.reopen();
        assert!(!phase.is_ending() && phase.is_left_behind() && phase.restarts() && !phase.is_superseded());
        phase.end(Cause::JobEnds, KILL);
        phase.finish();
        assert_eq!(phase, HostPhase::Over(Cause::Restart));
        phase.reopen();
        assert_eq!(phase, HostPhase::Over(Cause::Restart), "what is over stays so");
    }

    #[test]
    fn ranks_are_killed_told_of_and_given_up() {
        let second = Duration::from_secs;
        let mut phase = HostPhase::Open;
        assert_eq!(phase.take_due(second(100), |_| Next::Nothing), None);
        phase.end(Cause::JobEnds, KILL);
        assert_eq!(phase.take_due(second(1), |_| NOTICE), None);
        assert_eq!(phase.take_due(second(2), |_| NOTICE), Some(KILL));
        phase.end(Cause::JobEnds, KILL);
        assert_eq!(phase.next(), Some(NOTICE), "they were killed");
        assert_eq!(phase.take_due(second(10), |_| Next::Nothing), Some(NOTICE));
        assert_eq!((phase.next_at(), phase.take_due(second(100), |_| KILL)), (None, None));
    }

    #[test]
    fn a_superseded_host_knows_whether_its_own_home_had_restarted_the_job() {
        for told in [false, true] {
            let mut phase = HostPhase::Open;
            phase.end(if told { Cause::Restart } else { Cause::JobEnds }, NOTICE);
            phase.end(Cause::Superseded { told: false }, NOTICE);
            phase.end(Cause::Force, NOTICE);
            assert_eq!(phase.cause(), Some(Cause::Superseded { told }));
            assert!(phase.is_superseded() && phase.is_left_behind() && phase.restarts() == told);
        }
    }
}
