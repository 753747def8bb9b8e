//! Whether processes that are catching up make progress. A process that was brought back executes again what it did, and what it
//! waits for is in its log. But a program may take another path the second time, and wait for something that never comes. Its job
//! waits with it, so after a while the process is given up and the job restarts from the beginning, as the last resort.
//!
//! A long computation between two outcomes is no standstill. Three things are looked at: where the process stands in its log and
//! what it has counted, which only grow while it makes progress; how much of a processor it uses; and whether it is stopped. A
//! process that does none of these waits, and has `limit`. A process that computes, or waits for its peers at the end of its log
//! (one of them may be on its way back, and large), has `PATIENCE` times that.

use std::time::Duration;

use radic_wire::ids::ProcessId;
use radic_wire::process::Counters;

use super::Node;
use super::checkpoints::LONGEST;

/// The least time that a process has that only waits.
const LEAST: Duration = Duration::from_secs(60);
/// A process has this many times as long as its program takes from one checkpoint to the next: as a rule, no pause that it must
/// go through again was longer.
const INTERVALS: u32 = 3;
/// A process that computes, or is at the end of its log, has this many times the limit.
const PATIENCE: u32 = 10;
/// Looks within a limit.
const LOOKS: u32 = 8;
/// The share of a processor above which a process counts as computing. Waiting for peers and looking again costs less.
const BUSY: u32 = 100;

/// What the kernel says of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Activity {
    /// Processor time that all its threads have used.
    pub cpu: Duration,
    /// The process is stopped, by SIGSTOP or a debugger.
    pub stopped: bool,
}

/// What was seen of a process that is catching up.
#[derive(Debug)]
pub(super) struct Watched {
    /// Its journal: the position of its image, and the end.
    from: u64,
    to: u64,
    /// When it was last seen to make progress, and when to do that or to compute.
    progress: Duration,
    sign: Duration,
    /// What it had counted at its last progress, if that could be read.
    counted: Option<Counters>,
    /// The last look.
    looked: Duration,
    activity: Option<Activity>,
    next: Duration,
}

impl Watched {
    fn new(now: Duration, (from, to): (u64, u64), limit: Duration) -> Watched {
        let (counted, activity) = (None, None);
        Watched { from, to, progress: now, sign: now, counted, looked: now, activity, next: now + limit / LOOKS }
    }

    /// The position in its journal.
    fn stands(&self) -> u64 {
        self.counted.map_or(self.from, |counted| counted.replayed.clamp(self.from, self.to))
    }

    /// One look. Returns true if the process is to be given up.
    fn look(&mut self, now: Duration, limit: Duration, counted: Option<Counters>, activity: Option<Activity>) -> bool {
        let past = now.saturating_sub(self.looked);
        if activity.is_some_and(|activity| activity.stopped) {
            // Its time stands still.
            (self.progress, self.sign) = (self.progress + past, self.sign + past);
        }
        if counted.map(progress_in) != self.counted.map(progress_in) {
            (self.progress, self.sign, self.counted) = (now, now, counted);
        }
        let used = activity.zip(self.activity).map(|(after, before)| after.cpu.saturating_sub(before.cpu));
        // A process that cannot be looked at is not known to wait.
        let may_compute = counted.is_none() || used.is_none_or(|used| used * BUSY >= past && !used.is_zero());
        if may_compute || self.stands() == self.to {
            self.sign = now;
        }
        (self.looked, self.activity, self.next) = (now, activity, now + limit / LOOKS);
        now.saturating_sub(self.sign) >= limit || now.saturating_sub(self.progress) >= limit * PATIENCE
    }

    fn why(&self, now: Duration, limit: Duration) -> String {
        let Watched { from, to, .. } = *self;
        let (stands, still) = (self.stands(), now.saturating_sub(self.progress).as_secs_f64());
        let (what, limit) = match now.saturating_sub(self.sign) >= limit {
            true => ("waits for something that is not in it", limit),
            false if stands == to => ("waits for its peers", limit * PATIENCE),
            false => ("computes, or cannot be looked at", limit * PATIENCE),
        };
        format!(
            "it does not catch up: it stands at {stands} of its journal (from {from} to {to}), where it {what}, without progress for {still:.1} s; the limit is {:.1} s",
            limit.as_secs_f64()
        )
    }
}

/// The counters that grow when a process makes progress. Calls that find nothing are left out, and so is what its peers have
/// taken.
fn progress_in(counted: Counters) -> [u64; 6] {
    let Counters { replayed, events, messages_in, bytes_in, messages_out, bytes_out, .. } = counted;
    [replayed, events, messages_in, bytes_in, messages_out, bytes_out]
}

impl Node {
    /// A process begins to catch up with its journal, from the position of its image to the end.
    pub(super) fn watch_replay(&mut self, now: Duration, process: ProcessId, journal: (u64, u64)) {
        let watched = Watched::new(now, journal, self.replay_limit(process));
        self.replays.insert(process, watched);
    }

    /// Time that a process may wait without progress.
    fn replay_limit(&self, process: ProcessId) -> Duration {
        let interval = || self.interval_of(process).unwrap_or(LONGEST);
        self.config.replay_limit.unwrap_or_else(|| LEAST.max(interval() * INTERVALS))
    }

    /// When [`Node::look_at_replays`] is to be called.
    pub(super) fn next_replay(&self) -> Option<Duration> {
        self.replays.values().map(|watched| watched.next).min()
    }

    /// Looks at the processes that are catching up, and gives up those that make no progress.
    pub(super) fn look_at_replays(&mut self, now: Duration) {
        let due: Vec<ProcessId> =
            self.replays.iter().filter(|(_, watched)| watched.next <= now).map(|(process, _)| *process).collect();
        for process in due {
            let host = self.hosts.get(&process.job).filter(|host| host.catches_up(process.rank));
            let Some(pid) = host.and_then(|host| host.pid(process.rank)) else {
                self.replays.remove(&process);
                continue;
            };
            let (limit, counted, activity) =
                (self.replay_limit(process), (self.config.counters)(pid), (self.config.activity)(pid));
            let watched = self.replays.get_mut(&process).expect("it is among those that are watched");
            if watched.look(now, limit, counted, activity) {
                let why = watched.why(now, limit);
                self.replays.remove(&process);
                self.handle_unrestorable(now, process, why, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// What `look` is told after so many seconds: position, processor seconds, whether it is stopped. None: it cannot be looked
    /// at.
    type Seen = Option<(u64, u64, bool)>;

    /// The second in which a process is given up that catches up from 0 to 100, if it is within two thousand.
    fn given_up(seen: impl Fn(u64) -> Seen) -> Option<u64> {
        let mut watched = Watched::new(Duration::ZERO, (0, 100), LIMIT);
        (1..2000).find(|second| {
            let seen = seen(*second);
            let counted = seen.map(|(replayed, ..)| Counters { replayed, ..Counters::default() });
            let activity = seen.map(|(_, cpu, stopped)| Activity { cpu: Duration::from_secs(cpu), stopped });
            watched.look(Duration::from_secs(*second), LIMIT, counted, activity)
        })
    }

    #[test]
    fn who_waits_is_given_up_and_who_computes_has_longer() {
        assert_eq!(given_up(|_| Some((40, 7, false))), Some(61), "it came to 40, and waits");
        assert_eq!(given_up(|second| Some((40, second, false))), Some(601), "it computes all the time");
        assert_eq!(given_up(|second| Some((40, second / 50, false))), Some(601), "it computes now and then");
        assert_eq!(given_up(|second| Some((second / 100, 7, false))), Some(61), "the next outcome comes too late");
        assert_eq!(given_up(|second| Some((second / 50, 7, false))), None, "it gets on slowly");
        assert_eq!(given_up(|_| Some((100, 7, false))), Some(601), "its log is over, and its peers are not there");
        assert_eq!(given_up(|_| None), Some(600), "it cannot be looked at");
        assert_eq!(given_up(|_| Some((40, 7, true))), None, "it is stopped");
        assert_eq!(given_up(|second| Some((40, 7, second < 1000))), Some(1059), "it was stopped");
    }

    #[test]
    fn what_is_said_of_it() {
        let mut watched = Watched::new(Duration::ZERO, (10, 100), LIMIT);
        let (counted, activity) = (Counters { replayed: 40, ..Counters::default() }, Activity { cpu: LIMIT, stopped: false });
        for second in [1, 2, 61] {
            watched.look(Duration::from_secs(second), LIMIT, Some(counted), Some(activity));
        }
        let expected = "it does not catch up: it stands at 40 of its journal (from 10 to 100), where it waits for something that is not in it, without progress for 60.0 s; the limit is 60.0 s";
        assert_eq!(watched.why(Duration::from_secs(61), LIMIT), expected);
    }
}
