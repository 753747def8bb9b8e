//! What two answers to `Status` say together: rates, and what each rank does. For the screen of `radic top` and the daemon's page.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::time::Duration;

use crate::ids::{JobId, Rank};
use crate::local::ClusterStatus;
use crate::process::{Counters, Protect};
use crate::report::ProcessInfo;

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
    /// What is looked at is gone.
    Gone,
}

/// What processes have counted since the sample before, and in how many seconds.
#[derive(Debug)]
pub struct Since<'a> {
    before: &'a [ProcessInfo],
    /// The processes by their names, once one was looked for.
    by_name: OnceCell<HashMap<(JobId, Rank), &'a ProcessInfo>>,
    seconds: f64,
}

impl<'a> Since<'a> {
    /// From one sample to the next.
    pub fn new(before: Option<&'a Sample>, now: &Sample) -> Since<'a> {
        let seconds = before.map_or(0.0, |before| now.at.saturating_sub(before.at).as_secs_f64());
        let before = before.map_or(&[][..], |sample| &sample.status.processes);
        Since { before, by_name: OnceCell::new(), seconds }
    }

    /// What this process has counted.
    pub fn of<'b>(&'b self, process: &'b ProcessInfo) -> Growth<'b> {
        let name = |process: &ProcessInfo| (process.job, process.rank);
        let by_name = || self.before.iter().map(|process| (name(process), process)).collect();
        self.growth(process, self.by_name.get_or_init(by_name).get(&name(process)).copied())
    }

    /// What each of these has counted. Nearly always they come in the order of the sample before.
    pub fn of_all<'b>(&'b self, processes: &'b [ProcessInfo]) -> impl Iterator<Item = Growth<'b>> {
        processes.iter().enumerate().map(|(at, process)| {
            let is_it = |before: &&ProcessInfo| before.job == process.job && before.rank == process.rank;
            match self.before.get(at).filter(is_it) {
                Some(before) => self.growth(process, Some(before)),
                None => self.of(process),
            }
        })
    }

    fn growth<'b>(&'b self, process: &'b ProcessInfo, before: Option<&'b ProcessInfo>) -> Growth<'b> {
        // Another process has counted for itself.
        let before = before.filter(|before| before.pid == process.pid);
        let (counters, cpu_before) =
            (before.and_then(|before| before.counters.as_ref()), before.and_then(|before| before.cpu_ms));
        Growth { process, before: counters, cpu_before, seconds: self.seconds }
    }
}

/// The sum of what is known.
pub fn sum(rates: impl Iterator<Item = f64>) -> Option<f64> {
    rates.reduce(|a, b| a + b)
}

/// What one process has counted since the sample before.
#[derive(Debug, Clone, Copy)]
pub struct Growth<'a> {
    process: &'a ProcessInfo,
    before: Option<&'a Counters>,
    cpu_before: Option<u64>,
    seconds: f64,
}

impl<'a> Growth<'a> {
    /// The process, as it is now.
    pub fn process(&self) -> &'a ProcessInfo {
        self.process
    }

    /// A counter's growth in a second; none: it is not known, or the process is another one since.
    pub fn rate(&self, counter: impl Fn(&Counters) -> u64) -> Option<f64> {
        let grown = counter(self.process.counters.as_ref()?).checked_sub(counter(self.before?))?;
        (self.seconds > 0.0).then(|| grown as f64 / self.seconds)
    }

    /// What the process has done.
    pub fn does(&self) -> Does {
        let process = self.process;
        let grows = |counter: fn(&Counters) -> u64| self.rate(counter).is_some_and(|n| n > 0.0);
        match () {
            () if !process.running => Does::HasEnded,
            () if process.protect == Protect::None => Does::NotProtected,
            () if process.stopped => Does::Stopped,
            () if process.degraded => self.way_back(),
            () if !process.joined => Does::Starts,
            () if process.logs.iter().any(|log| log.waits.is_some()) => Does::LogIsFull,
            // Half of the time at the gate.
            () if self.rate(|counters| counters.gate_ns).is_some_and(|ns| ns > 5e8) => Does::AtTheGate,
            () if grows(|counters| counters.checkpoints) => Does::Checkpoints,
            () => match (grows(|counters| counters.messages_out), grows(|counters| counters.messages_in)) {
                (true, true) => Does::Communicates,
                (true, false) => Does::Sends,
                (false, true) => Does::Receives,
                // It asks again and again, and finds nothing; or it does nothing at all.
                (false, false) if grows(|counters| counters.empty) || self.is_idle() => Does::Waits,
                (false, false) if self.rate(|counters| counters.events).is_some() => Does::Computes,
                (false, false) => Does::Runs,
            },
        }
    }

    /// Whether it has hardly used a processor.
    fn is_idle(&self) -> bool {
        let used = self.process.cpu_ms.zip(self.cpu_before).and_then(|(now, before)| now.checked_sub(before));
        used.is_some_and(|ms| self.seconds > 0.0 && (ms as f64) < IDLE * 1e3 * self.seconds)
    }

    /// How far a process is that was lost, or that has no checkpoint at its protector.
    fn way_back(&self) -> Does {
        let Some(counters) = self.process.counters.filter(|_| self.process.joined) else { return Does::ComesBack };
        let grows = |counter: fn(&Counters) -> u64| self.rate(counter).is_some_and(|n| n > 0.0);
        match () {
            () if counters.waits > 0 => Does::WaitsForPeers,
            () if counters.awaited > 0 || grows(|c| c.replayed + c.again) => Does::CatchesUp,
            // It is live, and has its checkpoint to make.
            () if grows(|c| c.messages_in + c.messages_out + c.events) => Does::IsUnprotected,
            () => Does::ComesBack,
        }
    }
}

/// Part of a processor below which a process does nothing.
const IDLE: f64 = 0.05;

/// What a process has done from one sample to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Does {
    /// The process is over.
    HasEnded,
    /// The process's job is not protected, so nothing is known.
    NotProtected,
    /// The process is stopped, by SIGSTOP or a debugger.
    Stopped,
    /// The process is being brought back, and does not say how far it is.
    ComesBack,
    /// The process was brought back, and waits for peers that it does not reach, or that catch up themselves.
    WaitsForPeers,
    /// The process catches up with its log.
    CatchesUp,
    /// The process is live, and has no checkpoint at its protector yet.
    IsUnprotected,
    /// The process has not reported to its protector yet.
    Starts,
    /// The process's log is not taken for now.
    LogIsFull,
    /// The process's sends wait for its log.
    AtTheGate,
    /// The process has made a checkpoint.
    Checkpoints,
    /// The process has sent, and received nothing.
    Sends,
    /// The process has received, and sent nothing.
    Receives,
    /// The process has sent and received.
    Communicates,
    /// The process has sent and received nothing, and has asked for data, or done nothing.
    Waits,
    /// The process has sent and received nothing, and has asked for nothing.
    Computes,
    /// There is no sample before, or it is another process since.
    Runs,
}

impl Does {
    /// In a word or two.
    pub fn in_words(self) -> &'static str {
        match self {
            Does::HasEnded => "has ended",
            Does::NotProtected => "not protected",
            Does::Stopped => "stopped",
            Does::ComesBack => "coming back",
            Does::WaitsForPeers => "waits for peers",
            Does::CatchesUp => "catching up",
            Does::IsUnprotected => "unprotected",
            Does::Starts => "starting",
            Does::LogIsFull => "log is full",
            Does::AtTheGate => "at the gate",
            Does::Checkpoints => "checkpointing",
            Does::Sends => "sends",
            Does::Receives => "receives",
            Does::Communicates => "communicates",
            Does::Waits => "waits",
            Does::Computes => "computes",
            Does::Runs => "runs",
        }
    }

    /// How that looks.
    pub fn health(self) -> Health {
        match self {
            Does::HasEnded => Health::Gone,
            Does::Stopped | Does::ComesBack | Does::WaitsForPeers | Does::CatchesUp | Does::IsUnprotected => Health::Troubled,
            Does::Starts | Does::LogIsFull => Health::Troubled,
            _ => Health::Good,
        }
    }

    /// What the process has done, with the ranks that it is about: "sends to 3", "waits for 1,2".
    pub fn with(self, partners: &[Rank]) -> Cow<'static, str> {
        let word = match self {
            Does::Sends => "to",
            Does::Receives => "from",
            Does::Waits => "for",
            _ => return self.in_words().into(),
        };
        match partners {
            [] => self.in_words().into(),
            [one] => format!("{} {word} {one}", self.in_words()).into(),
            [one, other] => format!("{} {word} {one},{other}", self.in_words()).into(),
            [one, other, ..] => format!("{} {word} {one},{other},..", self.in_words()).into(),
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
            cpu_ms: None,
            stopped: false,
            logs: Vec::new(),
        }
    }

    #[test]
    fn a_rank_that_has_made_a_checkpoint_since_says_so() {
        let safe = |counters| ProcessInfo { degraded: false, ..process(true, counters) };
        let does = |after: Counters| {
            let (before, now) = (sample(1, safe(Counters::default())), sample(2, safe(after)));
            Since::new(Some(&before), &now).of(&now.status.processes[0]).does()
        };
        let counters = Counters { messages_in: 1, messages_out: 1, ..Counters::default() };
        assert_eq!(does(counters), Does::Communicates);
        assert_eq!(does(Counters { messages_in: 0, ..counters }), Does::Sends);
        assert_eq!(does(Counters { messages_out: 0, ..counters }), Does::Receives);
        assert_eq!(does(Counters { checkpoints: 1, ..counters }), Does::Checkpoints);
        assert_eq!(does(Counters { checkpoints: 1, gate_ns: 600_000_000, ..counters }), Does::AtTheGate);
    }

    #[test]
    fn waiting_is_told_from_computing() {
        let does = |cpu_ms: Option<u64>, empty| {
            let of = |cpu_ms, empty| {
                let counters = Counters { empty, ..Counters::default() };
                ProcessInfo { degraded: false, cpu_ms, ..process(true, counters) }
            };
            let (before, now) = (sample(1, of(Some(5), 0)), sample(2, of(cpu_ms, empty)));
            Since::new(Some(&before), &now).of(&now.status.processes[0]).does()
        };
        // By turns it asks without waiting, or the kernel lets it sleep.
        assert_eq!(does(Some(995), 7), Does::Waits);
        assert_eq!(does(Some(6), 0), Does::Waits);
        assert_eq!(does(Some(995), 0), Does::Computes);
        assert_eq!(does(None, 0), Does::Computes, "its processor time is not known");
    }

    #[test]
    fn a_stopped_process_says_so_whatever_else_it_is() {
        let now = sample(1, ProcessInfo { stopped: true, ..process(true, Counters::default()) });
        let does = Since::new(None, &now).of(&now.status.processes[0]).does();
        assert_eq!((does, does.health()), (Does::Stopped, Health::Troubled));
    }

    #[test]
    fn those_that_it_is_about_are_named_where_that_says_something() {
        let ranks = [Rank(3), Rank(1), Rank(7)];
        let all = [Does::Sends.with(&ranks[..1]), Does::Receives.with(&ranks[..2]), Does::Waits.with(&ranks)];
        assert_eq!(all, ["sends to 3", "receives from 3,1", "waits for 3,1,.."]);
        assert_eq!([Does::Waits.with(&[]), Does::Computes.with(&ranks)], ["waits", "computes"]);
    }

    #[test]
    fn what_was_lost_says_how_far_it_is() {
        let does = |joined, after: Counters| {
            let (before, now) = (sample(1, process(joined, Counters::default())), sample(2, process(joined, after)));
            Since::new(Some(&before), &now).of(&now.status.processes[0]).does()
        };
        let counters = Counters::default();
        assert_eq!(does(false, Counters { messages_in: 1, ..counters }), Does::ComesBack);
        assert_eq!(does(true, counters), Does::ComesBack);
        assert_eq!(does(true, Counters { waits: 1, awaited: 257, ..counters }), Does::WaitsForPeers);
        assert_eq!(does(true, Counters { awaited: 257, ..counters }), Does::CatchesUp);
        assert_eq!(does(true, Counters { replayed: 9, messages_in: 1, ..counters }), Does::CatchesUp);
        assert_eq!(does(true, Counters { messages_in: 1, ..counters }), Does::IsUnprotected);
        assert_eq!(Does::IsUnprotected.health(), Health::Troubled);
    }
}
