//! From events to deaths, and to what was done about each rank that was lost. No connection, no clock.

use std::collections::BTreeMap;

use radic_wire::event::{Event, EventName};
use radic_wire::ids::{JobId, NodeName, Rank};
use serde::Serialize;

/// Milliseconds by which the clocks of two nodes may differ: an effect may be told so much before its cause.
const SKEW: u64 = 2_000;
/// Milliseconds from the death of a node within which its ranks are fenced.
const FOLLOWS: u64 = 120_000;
/// Milliseconds within which two words of a node's end are about one end.
const SAME: u64 = 10_000;

/// What is done about a rank that was lost, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Step {
    /// From the death until it is certain.
    Detect,
    /// From there until older incarnations are refused.
    Fence,
    /// From there until it is decided where the rank goes on.
    Place,
    /// From there until its images are there.
    Fetch,
    /// From there until its process is there.
    Restore,
    /// From there until it lives.
    CatchUp,
    /// From there until a checkpoint is committed at its new protector.
    Protect,
}

impl Step {
    pub(crate) const ALL: [Step; 7] =
        [Step::Detect, Step::Fence, Step::Place, Step::Fetch, Step::Restore, Step::CatchUp, Step::Protect];

    /// What people read.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Step::Detect => "detect",
            Step::Fence => "fence",
            Step::Place => "place",
            Step::Fetch => "fetch",
            Step::Restore => "restore",
            Step::CatchUp => "catch up",
            Step::Protect => "until re-protected",
        }
    }

    /// The event that ends it.
    pub(super) fn end(self) -> EventName {
        match self {
            Step::Detect => EventName::Confirm,
            Step::Fence => EventName::Fence,
            Step::Place => EventName::Place,
            Step::Fetch => EventName::Image,
            Step::Restore => EventName::Replay,
            Step::CatchUp => EventName::Live,
            Step::Protect => EventName::Reprotected,
        }
    }
}

/// How the moment of a death is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum KnownBy {
    /// It was caused by `radic inject`.
    Injected,
    /// The last sign of life is taken for it.
    LastHeard,
    /// The end of the process was seen by its node.
    Seen,
    /// Nothing tells when it was: the first event that follows from it is taken for it.
    Consequence,
}

/// The end of a node, as far as the job may have felt it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Death {
    pub(crate) node: NodeName,
    /// Milliseconds since 1970.
    pub(crate) at_ms: u64,
    pub(crate) known_by: KnownBy,
    /// When it was certain.
    pub(crate) confirmed_ms: u64,
    /// The node that told so first: as a rule the one that watched it, and protected its ranks.
    told_by: NodeName,
    /// The ranks of the job that were lost with it.
    pub(crate) ranks: Vec<Rank>,
}

/// Why a rank was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub(crate) enum Cause {
    /// Its node died.
    Node {
        /// The node.
        node: NodeName,
    },
    /// A signal ended its process.
    Crash,
    /// It died once more on its way back.
    Again,
    /// No event tells.
    Unknown,
}

/// How far it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum End {
    /// It lives and has a checkpoint at its new protector.
    Protected,
    /// It lives.
    Live,
    /// It is on its way.
    UnderWay,
    /// It was lost once more before it lived.
    DiedAgain,
    /// The job restarted from the beginning meanwhile.
    Restarted,
    /// The job ended meanwhile.
    JobOver,
}

/// A step, and how long it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Taken {
    pub(crate) step: Step,
    /// Milliseconds since 1970.
    pub(crate) from_ms: u64,
    /// Absent while it lasts.
    pub(crate) to_ms: Option<u64>,
}

/// One attempt to bring a rank back.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Recovery {
    pub(crate) rank: Rank,
    pub(crate) cause: Cause,
    /// Milliseconds since 1970.
    pub(crate) lost_ms: u64,
    pub(crate) known_by: KnownBy,
    /// Where it goes on.
    pub(crate) to: Option<NodeName>,
    pub(crate) steps: Vec<Taken>,
    pub(crate) end: End,
    /// Of the images that it goes on from.
    pub(crate) image_mib: Option<f64>,
    /// Outcomes that were executed again.
    pub(crate) outcomes: Option<u64>,
}

impl Recovery {
    /// Milliseconds that a step has taken.
    pub(crate) fn took(&self, step: Step) -> Option<u64> {
        let taken = self.steps.iter().find(|taken| taken.step == step)?;
        Some(taken.to_ms?.saturating_sub(taken.from_ms))
    }

    /// Milliseconds from the loss until it lived.
    pub(crate) fn to_life(&self) -> Option<u64> {
        let live = self.steps.iter().find(|taken| taken.step == Step::CatchUp)?;
        Some(live.to_ms?.saturating_sub(self.lost_ms))
    }

    /// Milliseconds for which the job would have restarted from the beginning if what held the rank's log had been lost, too.
    pub(crate) fn exposed(&self) -> Option<u64> {
        let protect = self.steps.iter().find(|taken| taken.step == Step::Protect)?;
        Some(protect.to_ms?.saturating_sub(self.lost_ms))
    }
}

/// What became of a job's ranks.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct History {
    pub(crate) deaths: Vec<Death>,
    pub(crate) recoveries: Vec<Recovery>,
    /// When the job restarted from the beginning, in milliseconds since 1970.
    pub(crate) restarts: Vec<u64>,
    /// Ranks that were not lost and have a checkpoint at another protector than before, and since when.
    pub(crate) moved: Vec<(Rank, u64)>,
}

/// Reads the history of `job` out of events. Those before `from_ms` are of another one.
pub(crate) fn history(job: JobId, from_ms: u64, events: &[Event]) -> History {
    let mut reader = Reader { job: Some(job), ..Reader::default() };
    let from_ms = from_ms.saturating_sub(SKEW);
    let mut ordered: Vec<&Event> = events.iter().filter(|event| event.at_ms >= from_ms).collect();
    // Of one millisecond the cause comes first, whatever the names of the nodes.
    ordered.sort_by_key(|event| (event.at_ms, order(event.event), event.seq));
    ordered.into_iter().for_each(|event| reader.read(event));
    reader.finish()
}

fn order(event: EventName) -> usize {
    match event {
        EventName::Start | EventName::JobStart | EventName::RankStart => 0,
        EventName::Inject => 1,
        EventName::RankExit => 2,
        EventName::Suspect => 3,
        EventName::Confirm | EventName::View | EventName::Death => 4,
        name => 5 + Step::ALL.iter().position(|step| step.end() == name).unwrap_or(Step::ALL.len()),
    }
}

/// When each event of an attempt was.
#[derive(Debug)]
struct Attempt {
    rank: Rank,
    /// By the steps that they end.
    at: [Option<u64>; Step::ALL.len()],
    /// When its process was seen to end.
    crashed: Option<u64>,
    injected: bool,
    again: bool,
    end: End,
    over_ms: Option<u64>,
    to: Option<NodeName>,
    /// The node that has its log.
    fenced_by: Option<NodeName>,
    image_mib: Option<f64>,
    outcomes: Option<u64>,
}

impl Attempt {
    fn new(rank: Rank) -> Attempt {
        Attempt {
            rank,
            at: [None; Step::ALL.len()],
            crashed: None,
            injected: false,
            again: false,
            end: End::UnderWay,
            over_ms: None,
            to: None,
            fenced_by: None,
            image_mib: None,
            outcomes: None,
        }
    }

    fn has(&self, step: Step) -> bool {
        self.at[step as usize].is_some()
    }

    /// When it was fenced, or whatever is the first that is known of it.
    fn first(&self) -> Option<u64> {
        self.at.iter().flatten().copied().min().or(self.crashed)
    }
}

#[derive(Debug, Default)]
struct Reader {
    job: Option<JobId>,
    history: History,
    /// Of each rank that is not safe again.
    open: BTreeMap<Rank, Attempt>,
    over: Vec<Attempt>,
    /// Where ranks were seen to begin or to go on.
    hosts: BTreeMap<Rank, NodeName>,
    /// Nodes on which a failure was caused.
    injected: BTreeMap<NodeName, u64>,
    killed: BTreeMap<Rank, u64>,
    /// When a process was ended by a signal.
    exited: BTreeMap<Rank, u64>,
    /// The last sign of life of nodes that are suspected.
    heard: BTreeMap<NodeName, u64>,
    died: BTreeMap<Rank, u64>,
    /// The job has ended once: if anything follows it was resumed.
    has_ended: bool,
    /// How far each rank has come since then.
    resumed: BTreeMap<Rank, Step>,
}

impl Reader {
    fn read(&mut self, event: &Event) {
        let of_job = event.job.is_some() && event.job == self.job;
        match (event.event, event.rank, &event.subject) {
            (EventName::Inject, None, Some(node)) => _ = self.injected.insert(node.clone(), event.at_ms),
            (EventName::Suspect, None, Some(node)) => {
                let silent = number_before(&event.text, "ms").unwrap_or(0.0) as u64;
                self.heard.entry(node.clone()).or_insert(event.at_ms.saturating_sub(silent));
            }
            (EventName::Withdrawn, None, Some(node)) => {
                self.heard.remove(node);
                self.injected.remove(node);
            }
            (EventName::Confirm, None, Some(node)) => self.node_died(node.clone(), event),
            (EventName::View, None, _) => gone(&event.text).for_each(|node| self.node_died(node, event)),
            (EventName::Restart, _, _) if of_job => {
                self.history.restarts.push(event.at_ms);
                self.end_all(End::Restarted, event.at_ms);
            }
            (EventName::JobEnd, _, _) if of_job => {
                self.has_ended = true;
                self.resumed.clear();
                self.end_all(End::JobOver, event.at_ms);
            }
            (_, Some(rank), _) if of_job => self.read_rank(rank, event),
            _ => {}
        }
    }

    fn read_rank(&mut self, rank: Rank, event: &Event) {
        match event.event {
            EventName::RankStart => _ = self.hosts.insert(rank, event.node.clone()),
            EventName::Inject => _ = self.killed.insert(rank, event.at_ms),
            EventName::RankExit if event.text.contains("signal") => _ = self.exited.insert(rank, event.at_ms),
            EventName::Suspect => {
                self.end_one(rank, End::DiedAgain, event.at_ms);
                let killed = self.killed.remove(&rank);
                let seen = self.exited.remove(&rank).unwrap_or(event.at_ms);
                let mut attempt = Attempt::new(rank);
                attempt.at[Step::Detect as usize] = Some(event.at_ms);
                (attempt.crashed, attempt.injected) = (Some(killed.unwrap_or(seen)), killed.is_some());
                self.open.insert(rank, attempt);
            }
            EventName::Death => {
                self.end_one(rank, End::DiedAgain, event.at_ms);
                self.died.insert(rank, event.at_ms);
            }
            name => {
                if let Some(step) = Step::ALL.into_iter().find(|step| step.end() == name) {
                    self.advance(rank, step, event);
                }
            }
        }
    }

    fn advance(&mut self, rank: Rank, step: Step, event: &Event) {
        if step == Step::Fence && self.open.get(&rank).is_some_and(|open| open.has(Step::Fence)) {
            self.end_one(rank, End::DiedAgain, event.at_ms);
        }
        let is_open = self.open.contains_key(&rank);
        if !is_open && self.is_resumed(rank, step) {
            return;
        }
        if step == Step::Protect && !is_open {
            return self.history.moved.push((rank, event.at_ms));
        }
        let again = self.died.remove(&rank);
        let attempt = self.open.entry(rank).or_insert_with(|| Attempt::new(rank));
        if let Some(died) = again {
            (attempt.again, attempt.crashed) = (true, Some(died));
        }
        attempt.at[step as usize].get_or_insert(event.at_ms);
        match step {
            Step::Place => attempt.image_mib = number_before(&event.text, "MiB"),
            Step::Fetch | Step::Restore => {
                attempt.to = Some(event.node.clone());
                self.hosts.insert(rank, event.node.clone());
            }
            Step::CatchUp => {
                attempt.end = End::Live;
                attempt.outcomes = number_before(&event.text, "outcomes").map(|number| number as u64);
            }
            Step::Protect => self.end_one(rank, End::Protected, event.at_ms),
            Step::Fence => attempt.fenced_by = Some(event.node.clone()),
            Step::Detect => {}
        }
    }

    /// Whether this is how a rank goes on from the folder of a suspended job: by the same steps as one that was lost.
    fn is_resumed(&mut self, rank: Rank, step: Step) -> bool {
        if !self.has_ended {
            return false;
        }
        let known = self.resumed.get(&rank).copied();
        match (known, step) {
            // Once each is fenced for that. A second time it is lost, even if a node that died has taken along the event by which it lived.
            (Some(Step::Fence), Step::Fence) => {
                self.resumed.insert(rank, Step::Protect);
                false
            }
            (None, Step::Fence) | (None | Some(Step::Fence), Step::CatchUp | Step::Protect) => {
                self.resumed.insert(rank, step);
                true
            }
            (None | Some(Step::Fence), _) => true,
            // Its first checkpoint is still a part of it.
            (Some(Step::CatchUp), Step::Protect) => self.resumed.insert(rank, step).is_some(),
            (Some(_), _) => false,
        }
    }

    fn node_died(&mut self, node: NodeName, told: &Event) {
        let at_ms = told.at_ms;
        let known = self.history.deaths.iter().rev().find(|death| death.node == node);
        if known.is_some_and(|death| at_ms.saturating_sub(death.confirmed_ms) < SAME) {
            return;
        }
        let heard = self.heard.remove(&node);
        let (from, known_by) = match (self.injected.remove(&node), heard) {
            (Some(injected), _) => (injected, KnownBy::Injected),
            (None, Some(heard)) => (heard, KnownBy::LastHeard),
            (None, None) => (at_ms, KnownBy::Consequence),
        };
        let told_by = told.node.clone();
        self.history.deaths.push(Death { node, at_ms: from, known_by, confirmed_ms: at_ms, told_by, ranks: Vec::new() });
    }

    fn end_one(&mut self, rank: Rank, end: End, at_ms: u64) {
        let Some(mut attempt) = self.open.remove(&rank) else { return };
        // One that lived was lost for another reason, which is another attempt.
        attempt.end = if end == End::DiedAgain && attempt.has(Step::CatchUp) { End::Live } else { end };
        attempt.over_ms = Some(at_ms);
        self.over.push(attempt);
    }

    fn end_all(&mut self, end: End, at_ms: u64) {
        self.open.keys().copied().collect::<Vec<_>>().into_iter().for_each(|rank| {
            let lives = self.open.get(&rank).is_some_and(|open| open.has(Step::CatchUp));
            self.end_one(rank, if lives { End::Live } else { end }, at_ms);
        });
    }

    fn finish(mut self) -> History {
        let attempts = std::mem::take(&mut self.over).into_iter().chain(std::mem::take(&mut self.open).into_values());
        for attempt in attempts.collect::<Vec<_>>() {
            let Some(first) = attempt.first() else { continue };
            let recovery = self.recovery(&attempt, first);
            if let Cause::Node { node } = &recovery.cause
                && let Some(death) = self.history.deaths.iter_mut().rev().find(|death| death.node == *node)
                && !death.ranks.contains(&recovery.rank)
            {
                death.ranks.push(recovery.rank);
            }
            self.history.recoveries.push(recovery);
        }
        self.history.deaths.iter_mut().for_each(|death| death.ranks.sort_unstable());
        self.history.recoveries.sort_by_key(|recovery| (recovery.lost_ms, recovery.rank));
        self.history
    }

    fn recovery(&self, attempt: &Attempt, first: u64) -> Recovery {
        // What follows from a node's death comes soon. Of several at once it is that of the node which the rank's protector has watched, else the last one.
        let is_before = |death: &&Death| death.confirmed_ms <= first + SKEW && death.at_ms + FOLLOWS >= first;
        let deaths = || self.history.deaths.iter().rev().filter(is_before).filter(|_| attempt.crashed.is_none());
        let is_watched =
            |death: &&Death| attempt.fenced_by.as_ref() == Some(&death.told_by) && death.confirmed_ms + SAME >= first;
        let death = deaths().find(is_watched).or_else(|| deaths().next());
        let (cause, lost, known_by, certain) = match (death, attempt.crashed) {
            (_, Some(at)) if attempt.again => (Cause::Again, at, KnownBy::Seen, Some(at)),
            (_, Some(at)) if attempt.injected => (Cause::Crash, at, KnownBy::Injected, attempt.at[Step::Detect as usize]),
            (_, Some(at)) => (Cause::Crash, at, KnownBy::Seen, attempt.at[Step::Detect as usize]),
            (Some(death), None) => {
                (Cause::Node { node: death.node.clone() }, death.at_ms, death.known_by, Some(death.confirmed_ms))
            }
            (None, None) => (Cause::Unknown, first, KnownBy::Consequence, None),
        };
        let mut at = attempt.at;
        at[Step::Detect as usize] = certain;
        Recovery {
            rank: attempt.rank,
            cause,
            lost_ms: lost,
            known_by,
            to: attempt.to.clone(),
            steps: steps(lost, &at, attempt.over_ms),
            end: attempt.end,
            image_mib: attempt.image_mib,
            outcomes: attempt.outcomes,
        }
    }
}

/// From the loss to the end of each step. A step whose end no event tells is a part of the next one.
fn steps(lost: u64, at: &[Option<u64>; Step::ALL.len()], over_ms: Option<u64>) -> Vec<Taken> {
    let mut steps = Vec::new();
    let mut from = lost;
    for step in Step::ALL {
        if let Some(to) = at[step as usize] {
            // Clocks differ: nothing takes less than no time.
            let to = to.max(from);
            steps.push(Taken { step, from_ms: from, to_ms: Some(to) });
            from = to;
        }
    }
    let last = steps.last().map(|taken| taken.step);
    let next = Step::ALL.into_iter().find(|step| last.is_none_or(|last| *step > last));
    // What was under way when it was given up has an end, too, and is no step that was done.
    if let Some(step) = next.filter(|_| over_ms.is_none()) {
        steps.push(Taken { step, from_ms: from, to_ms: None });
    }
    steps
}

/// The nodes that a view has lost, as its event says it.
fn gone(text: &str) -> impl Iterator<Item = NodeName> {
    let list = text.split("; ").find_map(|part| part.strip_prefix("gone: ")).unwrap_or_default();
    let names = list.split(", ").map(|name| name.split(" and ").next().unwrap_or_default());
    names.filter_map(|name| name.parse().ok()).collect::<Vec<_>>().into_iter()
}

/// The number before this word in what an event says.
pub(crate) fn number_before(text: &str, word: &str) -> Option<f64> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |text: &str| text.trim_start_matches('(').parse::<f64>().ok();
    words.windows(2).find_map(|pair| number(pair[0]).filter(|_| pair[1].starts_with(word)))
}
