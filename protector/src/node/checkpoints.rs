//! When this node's processes make checkpoints: first when `MPI_Init` has returned, then at every interval, and when `radic
//! checkpoint` asks. The processes make them; the node tells them when.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use radic_wire::event::EventName;
use radic_wire::ids::{JobId, NodeId, ProcessId, Rank};
use radic_wire::peer::{Answer, PeerMessage, Unprotected};
use radic_wire::process::{Counters, FromNode, Interval, Protect};
use radic_wire::report::RankCheckpoint;

use super::events::About;
use super::host::Host;
use super::{Node, Output};

/// Time that a checkpoint on request may take. A large image on a slow disk takes minutes.
const PATIENCE: Duration = Duration::from_secs(600);
/// The bounds of the interval that the node computes.
pub(super) const SHORTEST: Duration = Duration::from_secs(10);
pub(super) const LONGEST: Duration = Duration::from_secs(3600);
/// Time after which a process that has not said what became of a checkpoint is asked for another one.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Time after which a process that was asked for a checkpoint is nudged again: it may wait in a call of the kernel, or compute,
/// and hears only then that its image is committed. The time doubles with each nudge, up to the second one.
const NUDGE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Time after which a process is asked for another checkpoint, if one failed and it has no other. The time doubles with each
/// failure, up to `DOUBLINGS` times.
const UNPROTECTED: Duration = Duration::from_secs(2);
const DOUBLINGS: u32 = 5;
/// Time for which all checkpoints of a process fail until its terminal is told: one that catches up, or whose disk is full for a moment, is saved before.
const UNSAVED: Duration = Duration::from_secs(30);
/// The assumed cost of a checkpoint, until one has been made.
const COST: Duration = Duration::from_millis(100);
/// The longest reason that is passed on for one rank, in characters: many ranks may have one.
const REASON: usize = 200;

/// A checkpoint that a process was asked for, and whose end it has not reported.
#[derive(Debug, Clone, Copy)]
struct Asked {
    at: Duration,
    /// When it is nudged again.
    nudge: Duration,
    pause: Duration,
}

impl Asked {
    fn new(now: Duration) -> Asked {
        Asked { at: now, nudge: now + NUDGE.0, pause: NUDGE.0 }
    }

    /// Whether it is time to nudge the process; then it is less often.
    fn takes_nudge(&mut self, now: Duration) -> bool {
        let is_due = self.nudge <= now;
        if is_due {
            self.pause = (self.pause * 2).min(NUDGE.1);
            self.nudge = now + self.pause;
        }
        is_due
    }
}

/// When one process makes its next checkpoint.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    next: Option<Duration>,
    asked: Option<Asked>,
    /// A checkpoint was committed since the process runs here.
    committed: bool,
    /// How many checkpoints have failed in a row.
    failed: u32,
    /// Since when all have failed, until that is told.
    failing: Option<Duration>,
    is_told: bool,
}

impl Schedule {
    /// When [`Node::handle_schedules`] has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        [self.next, self.asked.map(|asked| asked.nudge)].into_iter().flatten().min()
    }
}

/// A `radic checkpoint` that waits for ranks of this node.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The node that asked, and the number of its question there.
    asker: (NodeId, u64),
    job: JobId,
    /// The ranks that have not answered, each with the number of its request: an answer to an earlier request may be on its way.
    left: BTreeMap<Rank, u64>,
    done: Vec<RankCheckpoint>,
    pub(super) deadline: Duration,
}

/// What the node chooses for `--ckpt-interval auto`, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) interval: Duration,
    /// The mean pause of the process's checkpoints, or what is assumed of it.
    cost: Duration,
    measured: bool,
    /// `--mtbf`, of one node.
    mtbf: Duration,
    nodes: u32,
}

/// From what a process has counted, the mean time between two failures of one node, and the number of nodes of which each hits the job.
fn choose(counters: Option<Counters>, mtbf: Duration, nodes: u32) -> Choice {
    let measured = counters.is_some_and(|counters| counters.checkpoints > 0);
    let (cost, nodes) = (cost(counters), nodes.max(1));
    Choice { interval: young_daly(cost, mtbf / nodes), cost, measured, mtbf, nodes }
}

impl Choice {
    /// Whether it differs from what was told last by more than a quarter: costs differ a little with each checkpoint.
    fn is_news(&self, told: Option<Duration>) -> bool {
        told.is_none_or(|told| self.interval.abs_diff(told) > told / 4)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { interval, cost, measured, mtbf, nodes } = self;
        let how = if *measured { "as measured" } else { "as is assumed until one was made" };
        write!(
            f,
            "a checkpoint every {:.0} s: one stops the rank for {:.1} ms, {how}, and by --mtbf one of {nodes} nodes fails every {} s",
            interval.as_secs_f64(),
            cost.as_secs_f64() * 1e3,
            mtbf.as_secs() / u64::from(*nodes),
        )
    }
}

/// The interval for `job_mtbf`, the mean time between two failures that hit the job: Young's and Daly's square root.
fn young_daly(cost: Duration, job_mtbf: Duration) -> Duration {
    let seconds = (2.0 * cost.as_secs_f64() * job_mtbf.as_secs_f64()).sqrt();
    Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).clamp(SHORTEST, LONGEST)
}

/// The mean pause of the process's checkpoints.
fn cost(counters: Option<Counters>) -> Duration {
    let made = counters.filter(|counters| counters.checkpoints > 0);
    made.map_or(COST, |counters| Duration::from_nanos(counters.pause_ns / counters.checkpoints))
}

impl Node {
    fn counters_of(&self, process: ProcessId) -> Option<Counters> {
        (self.config.counters)(self.hosts.get(&process.job)?.pid(process.rank)?)
    }

    /// The time between two checkpoints of this process. None if it makes none by itself.
    pub(super) fn interval_of(&self, process: ProcessId) -> Option<Duration> {
        let host = self.hosts.get(&process.job)?;
        match host.protection() {
            protection if protection.protect != Protect::On => None,
            protection => match protection.interval {
                Interval::Never => None,
                Interval::Every(ms) => Some(Duration::from_millis(ms)),
                Interval::Auto => Some(self.choice(host, process).interval),
            },
        }
    }

    fn choice(&self, host: &Host, process: ProcessId) -> Choice {
        choose(self.counters_of(process), host.mtbf(), host.placement().nodes.len() as u32)
    }

    /// The time between two checkpoints that the process makes for itself.
    fn own_interval_of(&self, process: ProcessId) -> Option<Duration> {
        if self.makes_lines(process.job) { None } else { self.interval_of(process) }
    }

    /// Tells what was chosen for a job that leaves it to the node, if that is news: of the first rank here, for all that are like it.
    fn tell_interval(&mut self, now: Duration, process: ProcessId) {
        let is_auto = |host: &&Host| host.protection().interval == Interval::Auto && host.protection().protect == Protect::On;
        let Some(host) = self.hosts.get(&process.job).filter(is_auto) else { return };
        if host.ranks().min() != Some(process.rank) {
            return;
        }
        let choice = self.choice(host, process);
        if choice.is_news(self.told_intervals.get(&process.job).copied()) {
            self.told_intervals.retain(|job, _| self.hosts.contains_key(job));
            self.told_intervals.insert(process.job, choice.interval);
            self.record(now, EventName::Interval, About::rank(process.job, process.rank), choice.to_string());
        }
    }

    /// The first checkpoint is one interval away, unless the process says earlier that `MPI_Init` has returned.
    pub(super) fn start_schedule(&mut self, now: Duration, process: ProcessId) {
        let next = self.own_interval_of(process).map(|interval| now + interval);
        if let Some(observed) = self.observers.processes.get_mut(&process) {
            observed.schedule = Schedule { next, ..Schedule::default() };
        }
    }

    /// `MPI_Init` has returned: the process is asked for its first checkpoint. The second one comes after a part of the interval
    /// that differs by rank, so that not all ranks write at once.
    pub(super) fn handle_initialized(&mut self, now: Duration, process: ProcessId) {
        let Some(host) = self.hosts.get(&process.job).filter(|host| host.protection().protect == Protect::On) else { return };
        let (ranks, makes_lines) = (host.placement().rank_nodes.len() as u32, self.makes_lines(process.job));
        // This does not depend on the interval: without a first checkpoint the loss of the process restarts its job from the
        // beginning.
        self.ask_checkpoint(now, process);
        let Some(interval) = self.interval_of(process) else { return };
        self.tell_interval(now, process);
        if let Some(observed) = self.observers.processes.get_mut(&process) {
            observed.schedule.next = (!makes_lines).then(|| now + interval * (process.rank.0 + 1) / ranks);
        }
    }

    /// Time has passed.
    pub(super) fn handle_schedules(&mut self, now: Duration) {
        let due = |next: Option<Duration>| next.is_some_and(|at| at <= now);
        let processes = self.observers.processes.iter().filter(|(_, p)| due(p.schedule.next)).map(|(id, _)| *id);
        for process in processes.collect::<Vec<_>>() {
            self.ask_checkpoint(now, process);
            self.tell_interval(now, process);
            let next = self.own_interval_of(process).map(|interval| now + interval);
            if let Some(observed) = self.observers.processes.get_mut(&process) {
                observed.schedule.next = next;
            }
        }
        let nudged = self.observers.processes.iter_mut().filter_map(|(_, observed)| {
            let is_due = observed.schedule.asked.as_mut().is_some_and(|asked| asked.takes_nudge(now));
            observed.observer().filter(|_| is_due).map(Output::Nudge)
        });
        self.outputs.extend(nudged);
        let late = |w: &Waiting| w.deadline <= now;
        for index in (0..self.checkpoints.len()).rev().filter(|i| late(&self.checkpoints[*i])).collect::<Vec<_>>() {
            let why = format!("it has not come to an end within {} s", PATIENCE.as_secs());
            for (rank, _) in self.checkpoints[index].left.clone() {
                self.settle_rank(index, rank, u64::MAX, Err(why.clone()));
            }
        }
        self.answer_checkpoints();
    }

    /// Asks a process for a checkpoint. A process that was asked already is only nudged: it may be computing, or its image is on
    /// its way.
    pub(super) fn ask_checkpoint(&mut self, now: Duration, process: ProcessId) {
        let Some(observed) = self.observers.processes.get(&process) else { return };
        if observed.schedule.asked.is_none_or(|asked| asked.at + FORGOTTEN <= now) {
            _ = self.request_checkpoint(now, process);
        }
        self.nudge(process);
    }

    /// Asks a process for a checkpoint that begins after this, even if another one was asked for already. Returns the number of
    /// the request, or None if the process is not connected.
    pub(super) fn ask_checkpoint_again(&mut self, now: Duration, process: ProcessId) -> Option<u64> {
        let request = self.request_checkpoint(now, process)?;
        self.nudge(process);
        Some(request)
    }

    /// Asks a process for a checkpoint that begins after this. Returns the number of the request, or None if the process is not
    /// connected.
    fn request_checkpoint(&mut self, now: Duration, process: ProcessId) -> Option<u64> {
        self.request(now, process, None)
    }

    /// Asks a process for its image of a recovery line. False: it is not connected.
    pub(super) fn request_line(&mut self, now: Duration, process: ProcessId, line: u64) -> bool {
        self.request(now, process, Some(line)).is_some()
    }

    fn request(&mut self, now: Duration, process: ProcessId, line: Option<u64>) -> Option<u64> {
        let observed = self.observers.processes.get_mut(&process)?;
        let observer = observed.observer()?;
        observed.schedule.asked = Some(Asked::new(now));
        observed.requests += 1;
        let request = observed.requests;
        if let Some(line) = line {
            observed.line = Some((request, line));
        }
        self.outputs.push_back(Output::Observer(observer, FromNode::Checkpoint { request, line }));
        Some(request)
    }

    /// A checkpoint that was begun after this request has come to its end.
    pub(super) fn handle_checkpointed(&mut self, now: Duration, process: ProcessId, request: u64, result: Result<u64, String>) {
        if let Some(observed) = self.observers.processes.get_mut(&process)
            && request >= observed.requests
        {
            observed.schedule.asked = None;
        }
        let line =
            self.observers.processes.get_mut(&process).and_then(|observed| observed.line.take_if(|line| request >= line.0));
        if let (Some((_, line)), Err(_)) = (line, &result) {
            self.tell_line_failed(process, line);
        }
        let cut = |why: String| why.chars().map(|c| if c.is_control() { '?' } else { c }).take(REASON).collect::<String>();
        let result = result.map_err(cut);
        if result.is_ok() {
            self.handle_protected(now, process, request);
        }
        if let Err(why) = &result {
            let text = format!("rank {}: {why}", process.rank);
            self.handle_store_event(now, EventName::CheckpointFailed, Some(process), text);
        }
        self.tell_if_unsaved(now, process, &result);
        self.schedule_another(now, process, result.is_ok());
        self.settle_process(process, request, &result);
    }

    /// Records, once for each process that runs here, that no checkpoint can be made of it, and what that means.
    fn tell_if_unsaved(&mut self, now: Duration, process: ProcessId, result: &Result<u64, String>) {
        let Some(observed) = self.observers.processes.get_mut(&process) else { return };
        let schedule = &mut observed.schedule;
        let since = *schedule.failing.get_or_insert(now);
        let Err(why) = result else { return schedule.failing = None };
        if now < since + UNSAVED || std::mem::replace(&mut schedule.is_told, true) {
            return;
        }
        let means = if self.makes_lines(process.job) {
            "no rank has a newer one until it has, and ranks wait when their outboxes are full (--payload log needs no common one)"
        } else {
            "if it is lost it goes back to its last one, and the job restarts from its beginning if it has none"
        };
        let text =
            format!("rank {} makes no checkpoint, for {} s already: {why}; {means}", process.rank, (now - since).as_secs());
        self.record_unprotected(now, process, Unprotected::Work, text);
    }

    /// A process that could not be brought back now makes another checkpoint soon, whatever its interval is.
    fn schedule_another(&mut self, now: Duration, process: ProcessId, well: bool) {
        let is_degraded = self.is_degraded(process);
        let Some(observed) = self.observers.processes.get_mut(&process) else { return };
        let schedule = &mut observed.schedule;
        schedule.committed |= well;
        if well || schedule.committed && !is_degraded {
            schedule.failed = 0;
            return;
        }
        let soon = now + UNPROTECTED * 2u32.pow(schedule.failed.min(DOUBLINGS));
        schedule.failed = schedule.failed.saturating_add(1);
        schedule.next = Some(schedule.next.map_or(soon, |next| next.min(soon)));
    }

    /// The program that was asked for checkpoints is gone, and its requests with it: the commands and the recovery line that wait
    /// for them are told that there will be none.
    pub(super) fn fail_checkpoints(&mut self, process: ProcessId, why: &str) {
        if let Some(observed) = self.observers.processes.get_mut(&process) {
            observed.schedule.asked = None;
            let line = observed.line.take().filter(|_| !observed.closing);
            if let Some((_, line)) = line {
                self.tell_line_failed(process, line);
            }
        }
        self.settle_process(process, u64::MAX, &Err(why.to_owned()));
    }

    fn settle_process(&mut self, process: ProcessId, answered: u64, result: &Result<u64, String>) {
        for index in 0..self.checkpoints.len() {
            if self.checkpoints[index].job == process.job {
                self.settle_rank(index, process.rank, answered, result.clone());
            }
        }
        self.answer_checkpoints();
    }

    /// All requests up to `answered` have come to their end.
    fn settle_rank(&mut self, index: usize, rank: Rank, answered: u64, result: Result<u64, String>) {
        let node = self.me().name.clone();
        let waiting = &mut self.checkpoints[index];
        if waiting.left.get(&rank).is_some_and(|request| *request <= answered) {
            waiting.left.remove(&rank);
            waiting.done.push(RankCheckpoint { rank, node, result });
        }
    }

    fn answer_checkpoints(&mut self) {
        for waiting in self.checkpoints.extract_if(.., |w| w.left.is_empty()).collect::<Vec<_>>() {
            let (asker, number) = waiting.asker;
            self.send(&asker, PeerMessage::Answer(number, Answer::Checkpoints(waiting.done)));
        }
    }

    /// A node asks for checkpoints of this node's ranks of the job.
    pub(super) fn handle_checkpoint_query(&mut self, now: Duration, asker: &NodeId, number: u64, job: JobId) {
        let ranks: Vec<_> = self.hosts.get(&job).map_or_else(Vec::new, |host| host.ranks().collect());
        let asker = (asker.clone(), number);
        self.checkpoints.push(Waiting {
            asker,
            job,
            left: ranks.iter().map(|rank| (*rank, 0)).collect(),
            done: Vec::new(),
            deadline: now + PATIENCE,
        });
        let index = self.checkpoints.len() - 1;
        for rank in ranks {
            let process = ProcessId { job, rank };
            match self.why_no_checkpoint(process) {
                Some(why) => self.settle_rank(index, rank, u64::MAX, Err(why.to_owned())),
                None => {
                    let request = self.ask_checkpoint_again(now, process).unwrap_or(0);
                    self.checkpoints[index].left.insert(rank, request);
                }
            }
        }
        self.answer_checkpoints();
    }

    fn why_no_checkpoint(&self, process: ProcessId) -> Option<&'static str> {
        let host = self.hosts.get(&process.job)?;
        let joined = self.observers.processes.get(&process).is_some_and(|p| p.observer().is_some());
        match host.protection().protect {
            Protect::None | Protect::Off => Some("the job is not protected"),
            Protect::On if host.pid(process.rank).is_none() => Some("it has ended"),
            Protect::On if !joined => Some("it does not run under libradic.so (yet)"),
            Protect::On => None,
        }
    }
}

/// Time that the whole question of `radic checkpoint` may take.
pub(super) const WHOLE: Duration = Duration::from_secs(PATIENCE.as_secs() + 5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_follows_young_and_daly_within_its_bounds() {
        let day = Duration::from_secs(86_400);
        let seconds = |cost_ms, mtbf| young_daly(Duration::from_millis(cost_ms), mtbf).as_secs();
        assert_eq!(seconds(100, day / 4), 65);
        assert_eq!(seconds(1, day / 64), 10);
        assert_eq!(seconds(600_000, day * 365), 3600);
        assert_eq!(young_daly(Duration::MAX, Duration::MAX), LONGEST);
    }

    #[test]
    fn what_is_chosen_is_told_when_it_is_another() {
        let day = Duration::from_secs(86_400);
        let of = |pause_ms: u64| Counters { checkpoints: 2, pause_ns: 2_000_000 * pause_ms, ..Counters::default() };
        let assumed = choose(None, day, 4);
        assert_eq!((assumed.interval.as_secs(), assumed.measured), (65, false));
        assert_eq!(choose(Some(Counters::default()), day, 4), assumed, "nothing was made yet");
        let measured = choose(Some(of(25)), day, 4);
        assert_eq!((measured.interval.as_secs(), measured.measured), (32, true));
        assert!(assumed.is_news(None) && measured.is_news(Some(assumed.interval)));
        assert!(!choose(Some(of(30)), day, 4).is_news(Some(measured.interval)), "about the same");
        let text = measured.to_string();
        assert!(
            text.contains("every 33 s: one stops the rank for 25.0 ms, as measured")
                && text.contains("one of 4 nodes fails every 21600 s"),
            "{text}"
        );
        assert!(assumed.to_string().contains("100.0 ms, as is assumed until one was made"), "{assumed}");
        assert_eq!(choose(None, day, 0).nodes, 1);
    }

    #[test]
    fn the_cost_is_the_mean_pause() {
        assert_eq!(cost(None), COST);
        let counters = Counters { checkpoints: 4, pause_ns: 8_000_000, ..Counters::default() };
        assert_eq!(cost(Some(counters)), Duration::from_millis(2));
    }
}
