//! Where a node stands with its cluster: it joins, is a member, leaves, stops.

use std::net::SocketAddr;
use std::time::Duration;

use super::{JOIN, LEAVE, Node, Output, Stop};

/// Where a node stands with its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has no view yet. A node that founds its cluster has no limit: its first view is there at once.
    Joining { until: Option<Duration> },
    /// It is in the view, or was when it was cut off.
    Member,
    /// It was told to leave, which takes the others' agreement if it is a member.
    Leaving { until: Duration },
    /// The daemon is to end.
    Stopped,
}

impl Phase {
    pub(super) fn joining(now: Duration, seeds: &[SocketAddr]) -> Phase {
        Phase::Joining { until: (!seeds.is_empty()).then_some(now + JOIN) }
    }

    /// When it is over whatever the others say.
    pub(super) fn until(self) -> Option<Duration> {
        match self {
            Phase::Joining { until } => until,
            Phase::Leaving { until } => Some(until),
            Phase::Member | Phase::Stopped => None,
        }
    }
}

impl Node {
    /// There is a view. Whether it is the first one.
    pub(super) fn become_member(&mut self) -> bool {
        let first = matches!(self.phase, Phase::Joining { .. });
        if first {
            self.phase = Phase::Member;
        }
        first
    }

    /// Ends a phase whose limit is reached.
    pub(super) fn end_phase(&mut self, now: Duration) {
        match self.phase {
            Phase::Joining { until: Some(until) } if until <= now => self.give_up_joining(now),
            Phase::Leaving { until } if until <= now => self.stop(now, Stop::Clean),
            _ => {}
        }
    }

    fn give_up_joining(&mut self, now: Duration) {
        let silent = || match self.config.found {
            None => "no member answers at the addresses given with --join".to_owned(),
            Some(others) => format!(
                "no member answers at the addresses given with --join, and not {others} others that are in no cluster, with which this \
                 node, the first of the list, would found one"
            ),
        };
        let reason = self.refusal.clone().unwrap_or_else(silent);
        self.stop(now, Stop::Refused(format!("could not join for {} s: {reason}", JOIN.as_secs())));
    }

    /// Begins to leave the cluster. A node that is no member yet has left as soon as its membership says so.
    pub(super) fn leave(&mut self, now: Duration) {
        if matches!(self.phase, Phase::Joining { .. } | Phase::Member) {
            self.phase = Phase::Leaving { until: now + LEAVE };
            self.membership.leave(now);
        }
    }

    /// Ends all ranks of this node by force, and the daemon then.
    pub(super) fn stop(&mut self, now: Duration, why: Stop) {
        if std::mem::replace(&mut self.phase, Phase::Stopped) == Phase::Stopped {
            return;
        }
        let jobs: Vec<_> = self.hosts.keys().copied().collect();
        jobs.into_iter().for_each(|job| self.with_host(now, job, |host| host.end_by_force(now)));
        self.outputs.push_back(Output::Stop(why));
    }
}
