//! What two answers to `Status` say together: rates, and what each rank does. For the screen of `radic top` and the daemon's page.

use std::collections::HashMap;
use std::time::Duration;

use crate::ids::{JobId, Rank};
use crate::local::{ClusterStatus, ProcessInfo};
use crate::process::{Counters, Protect};

/// The state of the cluster, and when it was asked for.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The time, since some beginning.
    pub at: Duration,
    /// The state.
    pub status: ClusterStatus,
}

/// How something looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// As it should be.
    Good,
    /// Something is being made good.
    Troubled,
    /// It is gone.
    Gone,
}

/// What processes have counted since the sample before, and in how many seconds.
#[derive(Debug)]
pub struct Since<'a> {
    before: HashMap<(JobId, Rank), &'a ProcessInfo>,
    seconds: f64,
}

impl<'a> Since<'a> {
    /// From one sample to the next.
    pub fn new(before: Option<&'a Sample>, now: &Sample) -> Since<'a> {
        let known = before.iter().flat_map(|sample| &sample.status.processes);
        let before_of = known.map(|process| ((process.job, process.rank), process)).collect();
        let seconds = before.map_or(0.0, |before| now.at.saturating_sub(before.at).as_secs_f64());
        Since { before: before_of, seconds }
    }

    /// What this process has counted.
    pub fn of<'b>(&'b self, process: &'b ProcessInfo) -> Growth<'b> {
        // Another process has counted for itself.
        let before = self.before.get(&(process.job, process.rank)).filter(|before| before.pid == process.pid);
        Growth { process, before: before.and_then(|before| before.counters.as_ref()), seconds: self.seconds }
    }

    /// A counter's growth in a second, of several processes together.
    pub fn sum<'b>(&self, of: impl Iterator<Item = &'b ProcessInfo>, counter: impl Fn(&Counters) -> u64) -> Option<f64> {
        of.filter_map(|process| self.of(process).rate(&counter)).reduce(|a, b| a + b)
    }
}

/// What one process has counted since the sample before.
#[derive(Debug, Clone, Copy)]
pub struct Growth<'a> {
    process: &'a ProcessInfo,
    before: Option<&'a Counters>,
    seconds: f64,
}

impl Growth<'_> {
    /// A counter's growth in a second; none: it is not known, or the process is another one since.
    pub fn rate(&self, counter: impl Fn(&Counters) -> u64) -> Option<f64> {
        let grown = counter(self.process.counters.as_ref()?).checked_sub(counter(self.before?))?;
        (self.seconds > 0.0).then(|| grown as f64 / self.seconds)
    }

    /// What the process has done, in a word or two.
    pub fn activity(&self) -> (&'static str, Health) {
        let process = self.process;
        match () {
            () if !process.running => ("has ended", Health::Gone),
            () if process.protect == Protect::None => ("not protected", Health::Good),
            () if process.degraded => (self.way_back(), Health::Troubled),
            () if !process.joined => ("starting", Health::Troubled),
            () if process.logs.iter().any(|log| log.waits.is_some()) => ("log is full", Health::Troubled),
            // Half of the time at the gate.
            () if self.rate(|counters| counters.gate_ns).is_some_and(|ns| ns > 5e8) => ("at the gate", Health::Good),
            () if self.rate(|counters| counters.checkpoints).is_some_and(|n| n > 0.0) => ("checkpointing", Health::Good),
            () if self.rate(|counters| counters.messages_in + counters.messages_out).is_some_and(|n| n > 0.0) => {
                ("communicates", Health::Good)
            }
            () if self.rate(|counters| counters.empty).is_some_and(|n| n > 0.0) => ("waits for data", Health::Good),
            () if self.rate(|counters| counters.events).is_some() => ("computes", Health::Good),
            () => ("runs", Health::Good),
        }
    }

    /// How far a process is that was lost, or that has no checkpoint at its protector.
    fn way_back(&self) -> &'static str {
        let Some(counters) = self.process.counters.filter(|_| self.process.joined) else { return "coming back" };
        let grows = |counter: fn(&Counters) -> u64| self.rate(counter).is_some_and(|n| n > 0.0);
        match () {
            () if counters.waits > 0 => "waits for peers",
            () if counters.awaited > 0 || grows(|c| c.replayed + c.again) => "catching up",
            // It lives, and has its checkpoint to make.
            () if grows(|c| c.messages_in + c.messages_out + c.events) => "unprotected",
            () => "coming back",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: u64, process: ProcessInfo) -> Sample {
        let status = ClusterStatus {
            answered_by: "n1".parse().unwrap(),
            view: 1,
            frozen: false,
            nodes: Vec::new(),
            jobs: Vec::new(),
            processes: vec![process],
        };
        Sample { at: Duration::from_secs(at), status }
    }

    fn process(joined: bool, counters: Counters) -> ProcessInfo {
        ProcessInfo {
            job: JobId::from_bits(1),
            rank: Rank(0),
            node: "n1".parse().unwrap(),
            pid: 7,
            running: true,
            protect: Protect::On,
            joined,
            degraded: true,
            counters: Some(counters),
            logs: Vec::new(),
        }
    }

    #[test]
    fn a_rank_that_has_made_a_checkpoint_since_says_so() {
        let safe = |counters| ProcessInfo { degraded: false, ..process(true, counters) };
        let does = |after: Counters| {
            let (before, now) = (sample(1, safe(Counters::default())), sample(2, safe(after)));
            Since::new(Some(&before), &now).of(&now.status.processes[0]).activity().0
        };
        let counters = Counters { messages_in: 1, ..Counters::default() };
        assert_eq!(does(counters), "communicates");
        assert_eq!(does(Counters { checkpoints: 1, ..counters }), "checkpointing");
        assert_eq!(does(Counters { checkpoints: 1, gate_ns: 600_000_000, ..counters }), "at the gate");
    }

    #[test]
    fn what_was_lost_says_how_far_it_is() {
        let does = |joined, after: Counters| {
            let (before, now) = (sample(1, process(joined, Counters::default())), sample(2, process(joined, after)));
            Since::new(Some(&before), &now).of(&now.status.processes[0]).activity()
        };
        let counters = Counters::default();
        assert_eq!(does(false, Counters { messages_in: 1, ..counters }), ("coming back", Health::Troubled));
        assert_eq!(does(true, counters).0, "coming back");
        assert_eq!(does(true, Counters { waits: 1, awaited: 257, ..counters }).0, "waits for peers");
        assert_eq!(does(true, Counters { awaited: 257, ..counters }).0, "catching up");
        assert_eq!(does(true, Counters { replayed: 9, messages_in: 1, ..counters }).0, "catching up");
        assert_eq!(does(true, Counters { messages_in: 1, ..counters }), ("unprotected", Health::Troubled));
    }
}
