//! Whether processes that are catching up make progress. A process that was brought back executes again what it did, and what it
//! waits for is in its log. But a program may take another path the second time, and wait for something that never comes. Its job
//! waits with it, so after a while the process is given up and the job restarts from the beginning, as the last resort.
//!
//! Progress is what it does towards the next outcome of its log: where it stands there, and how much it has sent again and received
//! for that outcome, or, where the log is over, of what its peers have. All of that is bounded by the log. What else a process
//! sends and receives is no progress: one that goes another way may go on with that forever.
//!
//! A long computation between two outcomes is no standstill. So two other things are looked at: how much of a processor it uses
//! without a call that finds nothing, and whether it is stopped. A process that only waits, or asks again and again, has `limit`. A
//! process that computes, or waits for peers that it does not reach at the end of its log, has `PATIENCE` times that. One that
//! waits for a peer that catches up itself has no limit of its own: the peer has one, at its node.
//!
//! A process that does not get on, or says itself that it goes another way, is ended and brought back once more: what its threads
//! do may come in another order. If it does so again its job restarts from the beginning.

use std::time::Duration;

use radic_wire::determinant::CALLS;
use radic_wire::event::EventName;
use radic_wire::ids::ProcessId;
use radic_wire::process::Counters;

use super::Node;
use super::checkpoints::LONGEST;
use super::events::About;

/// The least time that a process has that only waits.
const LEAST: Duration = Duration::from_secs(60);
/// A process has this many times as long as its program takes from one checkpoint to the next: as a rule, no pause that it must
/// go through again was longer.
const INTERVALS: u32 = 3;
/// A process that computes, or is at the end of its log, has this many times the limit.
const PATIENCE: u32 = 10;
/// Looks within a limit.
const LOOKS: u32 = 8;
/// The share of a processor above which a process counts as computing: a hundredth, or half of one while it asks again and again, which is some work.
const BUSY: u32 = 100;
const BUSY_ASKING: u32 = 2;

/// [`Counters::waits`]: the process waits for peers that it does not reach.
const OUT_OF_REACH: u64 = 1;
/// [`Counters::waits`]: the process waits for a peer that catches up itself.
const CATCHES_UP: u64 = 2;

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
    /// The process's journal: the position of its image, and the end.
    from: u64,
    to: u64,
    /// When it was last seen to make progress, and when to do that or to compute.
    progress: Duration,
    sign: Duration,
    /// What it had counted at the last look, if that could be read.
    counted: Option<Counters>,
    /// The last look.
    looked: Duration,
    activity: Option<Activity>,
    next: Duration,
    /// The terminal was told that it is stopped.
    told: bool,
    /// How long it may stand still, for whatever reason: it is of a kind that seldom comes back by its log.
    patience: Option<Duration>,
}

impl Watched {
    fn new(now: Duration, (from, to): (u64, u64), limit: Duration) -> Watched {
        let (counted, activity, told, patience) = (None, None, false, None);
        Watched { from, to, progress: now, sign: now, counted, looked: now, activity, next: now + limit / LOOKS, told, patience }
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
        let gets_on = counted.is_some() && counted.map(progress_in) != self.counted.map(progress_in);
        if gets_on || counted.is_some_and(|c| c.waits == CATCHES_UP) {
            (self.progress, self.sign) = (now, now);
        }
        let used = activity.zip(self.activity).map(|(after, before)| after.cpu.saturating_sub(before.cpu));
        let asked = |counted: Counters| counted.empty + counted.looks;
        let asks = counted.zip(self.counted).is_some_and(|(after, before)| asked(after) > asked(before));
        let share = if asks { BUSY_ASKING } else { BUSY };
        // A process that cannot be looked at is not known to wait.
        let may_compute = counted.is_none() || used.is_none_or(|used| used * share >= past && !used.is_zero());
        if may_compute || counted.is_some_and(|c| c.waits == OUT_OF_REACH) {
            self.sign = now;
        }
        (self.looked, self.activity, self.counted) = (now, activity, counted.or(self.counted));
        self.next = now + self.patience.unwrap_or(limit) / LOOKS;
        if let Some(patience) = self.patience {
            return now.saturating_sub(self.progress) >= patience;
        }
        now.saturating_sub(self.sign) >= limit || now.saturating_sub(self.progress) >= limit * PATIENCE
    }

    /// Whether the terminal is to be told that the process is stopped.
    fn take_stop_to_tell(&mut self) -> bool {
        let stopped = self.activity.is_some_and(|activity| activity.stopped);
        stopped && !std::mem::replace(&mut self.told, stopped)
    }

    /// What a process does that does not get on, and its limit for that.
    fn what_it_does(&self, now: Duration, limit: Duration) -> (&'static str, Duration) {
        let (stands, to) = (self.stands(), self.to);
        match now.saturating_sub(self.sign) >= limit {
            true if stands == to => ("has not sent again what its peers have, and does not", limit),
            true => ("waits for something that is not in it", limit),
            false if stands == to => ("waits for peers that it does not reach", limit * PATIENCE),
            false => ("computes, or cannot be looked at", limit * PATIENCE),
        }
    }

    fn why(&self, now: Duration, limit: Duration) -> String {
        let Watched { from, to, .. } = *self;
        let (stands, still) = (self.stands(), now.saturating_sub(self.progress).as_secs_f64());
        let (what, limit) = match self.patience {
            Some(patience) => ("goes another way, as processes of its kind do", patience),
            None => self.what_it_does(now, limit),
        };
        let next = self.counted.map(|counted| counted.awaited).filter(|awaited| *awaited > 0 && stands < to);
        let next = next.map_or(String::new(), |awaited| {
            let call = CALLS.get((awaited as u8).wrapping_sub(1) as usize).unwrap_or(&CALLS[0]);
            format!(", where thread {} had the outcome of a {call}", awaited >> 8)
        });
        format!(
            "it does not catch up: it stands at {stands} of its journal (from {from} to {to}){next}; now it {what}, without progress for {still:.1} s; the limit is {:.1} s",
            limit.as_secs_f64()
        )
    }
}

/// The counters that change when a process makes progress.
fn progress_in(counted: Counters) -> [u64; 2] {
    [counted.replayed, counted.again]
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
                self.handle_diverged(now, process, why);
            } else if watched.take_stop_to_tell() {
                let what =
                    format!("process {pid} is stopped by a signal while it catches up, so its job waits: `kill -CONT {pid}`");
                self.with_host(now, process.job, |host| host.tell_what_keeps(process.rank, what));
            }
        }
    }

    /// A process that catches up says that its kind seldom does, and how long it may stand still. It is not tried twice.
    pub(super) fn handle_doubts(&mut self, now: Duration, process: ProcessId, why: &str, patience: Duration) {
        let limit = self.replay_limit(process);
        let catches_up = self.hosts.get(&process.job).is_some_and(|host| host.catches_up(process.rank));
        let Some(watched) = self.replays.get_mut(&process).filter(|_| catches_up) else { return };
        let patience = patience.min(limit);
        watched.patience = Some(patience);
        watched.next = watched.next.min(now + patience / LOOKS);
        if patience.is_zero() {
            self.handle_diverged(now, process, format!("it is not brought back by its log: {why}"));
        }
    }

    /// A process that was brought back diverges from its log, or makes no progress in it: why. One that is live already finds out
    /// so late that it has no log to try again with.
    pub(super) fn handle_diverged(&mut self, now: Duration, process: ProcessId, why: String) {
        let ProcessId { job, rank } = process;
        let is_doubted = self.replays.remove(&process).is_some_and(|watched| watched.patience.is_some());
        let Some(host) = self.hosts.get(&job).filter(|host| host.pid(rank).is_some() && !host.is_hopeless(rank)) else { return };
        let mut again = host.catches_up(rank) && !is_doubted;
        if again {
            self.with_host(now, job, |host| again = host.handle_diverged(rank));
        }
        if again {
            let text = format!("rank {rank}: {why}; it is ended, and brought back once more");
            self.record(now, EventName::Death, About::rank(job, rank), text);
        } else {
            self.handle_unrestorable(now, process, why, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// What `look` is told after this many seconds: counters, milliseconds of a processor, whether it is stopped. None: it cannot be looked at.
    type Seen = Option<(Counters, u64, bool)>;

    /// The second in which a process is given up that catches up from 0 to 100, if it is within two thousand.
    fn given_up(seen: impl Fn(u64) -> Seen) -> Option<u64> {
        let mut watched = Watched::new(Duration::ZERO, (0, 100), LIMIT);
        (1..2000).find(|second| {
            let seen = seen(*second);
            let counted = seen.map(|(counted, ..)| counted);
            let activity = seen.map(|(_, cpu, stopped)| Activity { cpu: Duration::from_millis(cpu), stopped });
            watched.look(Duration::from_secs(*second), LIMIT, counted, activity)
        })
    }

    /// It stands there in its log.
    fn at(replayed: u64) -> Counters {
        Counters { replayed, ..Counters::default() }
    }

    #[test]
    fn a_process_that_waits_is_given_up_and_one_that_computes_has_longer() {
        assert_eq!(given_up(|_| Some((at(40), 7000, false))), Some(61), "it came to 40, and waits");
        assert_eq!(given_up(|second| Some((at(40), second * 1000, false))), Some(601), "it computes all the time");
        assert_eq!(given_up(|second| Some((at(40), second / 50 * 1000, false))), Some(601), "it computes now and then");
        assert_eq!(given_up(|second| Some((at(second / 100), 7000, false))), Some(61), "the next outcome comes too late");
        assert_eq!(given_up(|second| Some((at(second / 50), 7000, false))), None, "it gets on slowly");
        assert_eq!(given_up(|_| None), Some(600), "it cannot be looked at");
        assert_eq!(given_up(|_| Some((at(40), 7000, true))), None, "it is stopped");
        assert_eq!(given_up(|second| Some((at(40), 7000, second < 1000))), Some(1059), "it was stopped");
    }

    #[test]
    fn only_what_the_log_wants_is_progress() {
        let asks = |empty| Counters { empty, ..at(40) };
        assert_eq!(given_up(|second| Some((asks(second), second * 250, false))), Some(61), "it asks, and finds nothing");
        assert_eq!(
            given_up(|second| Some((asks(second), second * 1000, false))),
            Some(601),
            "one thread asks, and another may compute"
        );
        let looks = |looks| Counters { looks, ..at(40) };
        assert_eq!(given_up(|second| Some((looks(second), second * 250, false))), Some(61), "it waits for its turn");
        let talks = |n| Counters { messages_out: n, bytes_out: n, messages_in: n, bytes_in: n, events: n, ..asks(n) };
        assert_eq!(given_up(|second| Some((talks(second), second * 250, false))), Some(61), "it sends what it did not send then");
        let sends = |again| Counters { again, ..at(40) };
        assert_eq!(given_up(|second| Some((sends(second / 50), 7000, false))), None, "it sends again what it sent then");
        assert_eq!(given_up(|second| Some((sends(second.min(500) / 50), 7000, false))), Some(560), "and then does not");
    }

    #[test]
    fn a_process_at_the_end_of_its_log_waits_for_its_peers() {
        let waits = |waits| Counters { waits, ..at(100) };
        assert_eq!(given_up(|_| Some((waits(0), 7000, false))), Some(61), "it is the one that does not send");
        assert_eq!(given_up(|_| Some((waits(OUT_OF_REACH), 7000, false))), Some(601), "they are not there");
        assert_eq!(given_up(|_| Some((waits(CATCHES_UP), 7000, false))), None, "they catch up, and have limits of their own");
    }

    #[test]
    fn a_process_that_is_doubted_has_its_own_limit_whatever_it_does() {
        let mut watched = Watched::new(Duration::ZERO, (0, 100), LIMIT);
        watched.patience = Some(Duration::from_secs(2));
        let mut look = |second: u64, replayed| {
            let activity = Activity { cpu: Duration::from_secs(second), stopped: false };
            watched.look(Duration::from_secs(second), LIMIT, Some(at(replayed)), Some(activity))
        };
        assert!(!look(1, 40) && !look(2, 41) && !look(3, 41), "it gets on");
        assert!(look(4, 41), "it computes, and does not get on");
        assert!(watched.why(Duration::from_secs(4), LIMIT).contains("as processes of its kind do"));
    }

    #[test]
    fn what_is_said_of_it() {
        let mut watched = Watched::new(Duration::ZERO, (10, 100), LIMIT);
        let counted = Counters { awaited: 3 << 8 | 2, ..at(40) };
        let activity = Activity { cpu: LIMIT, stopped: false };
        for second in [1, 2, 61] {
            watched.look(Duration::from_secs(second), LIMIT, Some(counted), Some(activity));
        }
        let expected = "it does not catch up: it stands at 40 of its journal (from 10 to 100), where thread 3 had the outcome of a recv; now it waits for something that is not in it, without progress for 60.0 s; the limit is 60.0 s";
        assert_eq!(watched.why(Duration::from_secs(61), LIMIT), expected);
    }
}
