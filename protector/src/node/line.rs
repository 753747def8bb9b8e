//! The recovery lines of one job, at its home: when the next one is made, and whether it counts. A value without clocks and messages.
//!
//! A recovery line is one image of each rank (Chandy's and Lamport's snapshots, see docs/design.md). Such an image leaves out of
//! the outbox what the receivers' images of the line cover. So it is of use only if no rank ever goes back behind the line; a
//! rank may do so until the line is *complete*:
//!
//! 1. Each rank is told to make its image ([`Step::Make`]). Its log keeps that apart until the line is complete.
//! 2. When all logs have theirs, every node is asked whether that is so, and promises to remember it ([`LineStep::Promise`]). A
//!    node that answers a protector which collects what is known of a lost process takes its promise back; and one that brings a
//!    process back itself is busy.
//! 3. When all nodes have promised, they are told to remember that the line is complete ([`LineStep::Record`]).
//! 4. When all remember it, the images count, and senders need not keep what these cover ([`Step::Complete`]).
//!
//! *The end of the job* goes the same way, without images. A process that has come to its end waits, for others may need again
//! what it has sent. When all ranks of the job wait there, no line is made any more: every node promises to remember that, and
//! then does ([`LineStep::PromiseEnd`], [`LineStep::RecordEnd`]). From then on no rank is brought back, and the processes may end
//! ([`Step::LetGo`]).
//!
//! A protector that brings a process back tells all nodes the new incarnation, asks them, and takes the newest line that one of
//! them remembers. Assume that it finds none with this line. Then each node has answered it, and taken its promise back. A node
//! that promises after that names the new incarnation in its promise, and the home sees that the image it heard of is of an
//! earlier one: that round ends there, even if all others had promised before they answered. No later round comes to its end,
//! because the protector has no image of the line any more. So no node ever remembers the line, and nothing was released. Now
//! assume that a node remembers it: then all logs have their images, and the process begins with its own. Of the end the same is
//! true: if no node remembers it, no process was let go; if one does, the lost process counts as ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use radic_wire::ids::{Incarnation, NodeName, Rank};
use radic_wire::peer::{JobEnd, LineAnswer, LineStep};

/// Time that the images of a line may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// Time until all ranks are told again to make their images: one that was not there yet has not heard it.
const REMIND: Duration = Duration::from_secs(2);
/// Time until the nodes are asked once more.
const AGAIN: Duration = Duration::from_millis(50);
/// Time after a line was given up until the next one is made. It doubles with each one in a row that is given up, this many times at most.
const AFTER_FAILURE: Duration = Duration::from_millis(50);
const DOUBLINGS: u32 = 6;
/// Lines follow each other after this time, at least, however fast the outboxes fill.
const LEAST: Duration = Duration::from_millis(10);

/// What the home is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Tell all ranks to make their images of this line.
    Make(u64),
    /// Ask all nodes.
    Ask(LineStep),
    /// Tell all nodes that this line counts from now on.
    Complete(u64),
    /// Tell all nodes that the lines after the first, up to the second, never count.
    GiveUp(u64, u64),
    /// Tell all hosts that their processes may end.
    LetGo,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// The home has just begun: with its job, after another home, or with a job that was suspended. The nodes are to be asked then which lines there are.
    Seeking(Duration),
    /// No line is under way.
    Idle,
    /// The ranks make their images.
    Making { since: Duration, asked: Duration, ready: BTreeSet<Rank> },
    /// The nodes are asked.
    Asking(LineStep),
    /// The nodes are asked again then.
    Resting(Duration),
    /// The nodes are asked again then whether the ranks have come to their ends.
    Ending(Duration),
    /// All know that the ranks have come to their ends.
    Over,
}

/// See the module's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JobLines {
    phase: Phase,
    /// The line that is under way, or the last one that was.
    line: u64,
    /// The highest number that was given.
    given: u64,
    round: u64,
    /// When the next line is due; none: when it is wanted.
    next: Option<Duration>,
    /// Not before.
    earliest: Duration,
    is_wanted: bool,
    /// Lines in a row that were given up.
    failed: u32,
    /// The ranks that have come to their ends: where, with which code, and as which of those that have said so.
    at_end: BTreeMap<Rank, (NodeName, i32, u64)>,
    /// How many had said so when the nodes were asked.
    asked: u64,
    said: u64,
    /// How the job ends, once it is decided that no rank is brought back: a node remembers it.
    end: Option<JobEnd>,
}

/// Whether the nodes are to be asked once more: one brings a process back, or one knows of a newer incarnation of a rank than the
/// one of which another node speaks.
fn is_void(answers: &[LineAnswer]) -> bool {
    let mut newest: BTreeMap<Rank, Incarnation> = BTreeMap::new();
    for (rank, incarnation) in answers.iter().flat_map(|answer| &answer.has) {
        newest.entry(*rank).and_modify(|known| *known = (*known).max(*incarnation)).or_insert(*incarnation);
    }
    let mut restarted = answers.iter().flat_map(|answer| &answer.restarted);
    answers.iter().any(|answer| answer.is_busy)
        || restarted.any(|(rank, incarnation)| newest.get(rank).is_some_and(|known| known < incarnation))
}

/// The ranks of which the nodes have what they were asked for.
fn ranks_of(answers: &[LineAnswer]) -> BTreeSet<Rank> {
    answers.iter().flat_map(|answer| &answer.has).map(|(rank, _)| *rank).collect()
}

/// The highest of such numbers in the answers.
fn most(answers: &[LineAnswer], of: fn(&LineAnswer) -> u64) -> u64 {
    answers.iter().map(of).max().unwrap_or(0)
}

impl JobLines {
    /// Of a job whose home begins, with the first line then.
    pub(super) fn new(next: Option<Duration>) -> Self {
        let phase = Phase::Seeking(Duration::ZERO);
        let (at_end, asked, said, end) = Default::default();
        JobLines {
            phase,
            line: 0,
            given: 0,
            round: 0,
            next,
            earliest: Duration::ZERO,
            is_wanted: false,
            failed: 0,
            at_end,
            asked,
            said,
            end,
        }
    }

    /// Whether it is not known yet which lines there are.
    pub(super) fn is_seeking(&self) -> bool {
        matches!(self.phase, Phase::Seeking(_) | Phase::Asking(LineStep::Seek))
    }

    /// Whether a line is under way, or the end of the job.
    pub(super) fn is_under_way(&self) -> bool {
        self.phase != Phase::Idle
    }

    /// The highest number that was given.
    pub(super) fn newest(&self) -> u64 {
        self.given
    }

    /// Whether the last line that this home made was given up.
    pub(super) fn has_failed(&self) -> bool {
        self.failed > 0
    }

    /// A line is to be made soon. One that is under way is that line: a rank that it does not help asks again.
    pub(super) fn want(&mut self) {
        self.is_wanted |= self.phase == Phase::Idle || self.is_seeking();
    }

    /// When [`JobLines::poll`] has something to do, at the latest.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Seeking(until) => Some(*until),
            Phase::Idle if self.is_wanted => Some(self.earliest),
            Phase::Idle => self.next.map(|next| next.max(self.earliest)),
            Phase::Making { asked, .. } => Some(*asked + REMIND),
            Phase::Asking(_) | Phase::Over => None,
            Phase::Resting(until) | Phase::Ending(until) => Some(*until),
        }
    }

    /// How the job ends, if it is decided, or if all these ranks have come to their ends.
    fn end_of(&self, ranks: &BTreeSet<Rank>) -> Option<JobEnd> {
        let failed = || {
            let (rank, (node, code, _)) = self.at_end.iter().find(|(_, (_, code, _))| *code != 0)?;
            Some((*rank, node.clone(), *code))
        };
        self.end.clone().or_else(|| ranks.iter().all(|rank| self.at_end.contains_key(rank)).then(|| JobEnd { failed: failed() }))
    }

    /// This rank has come to its end at this node, and is about to exit with this code.
    pub(super) fn handle_at_end(&mut self, rank: Rank, node: NodeName, code: i32) {
        self.said += 1;
        self.at_end.insert(rank, (node, code, self.said));
    }

    /// What is to be done now. `ranks`: those that have not ended; none: the job ends, or is being suspended.
    pub(super) fn poll(&mut self, now: Duration, ranks: &BTreeSet<Rank>) -> Option<Step> {
        if ranks.is_empty() {
            self.postpone(now);
            return None;
        }
        let is_due = self.poll_timeout().is_some_and(|at| at <= now);
        let is_end = self.end_of(ranks).is_some();
        match &mut self.phase {
            Phase::Seeking(_) if is_due => Some(self.ask(LineStep::Seek)),
            Phase::Idle if is_end => Some(self.ask_for_end()),
            Phase::Ending(_) if is_due && is_end => Some(self.ask_for_end()),
            Phase::Ending(_) if is_due => {
                self.rest(now, LEAST);
                None
            }
            Phase::Making { .. } if is_end => {
                self.failed = 0;
                self.rest(now, LEAST);
                Some(Step::GiveUp(self.line - 1, self.line))
            }
            Phase::Idle if is_due => {
                (self.given, self.is_wanted) = (self.given + 1, false);
                self.line = self.given;
                self.phase = Phase::Making { since: now, asked: now, ready: BTreeSet::new() };
                Some(Step::Make(self.line))
            }
            Phase::Making { ready, .. } if ready.is_superset(ranks) => Some(self.ask_for_promises()),
            Phase::Making { since, .. } if now >= *since + PATIENCE => Some(self.give_up(now)),
            Phase::Making { asked, .. } if is_due => {
                *asked = now;
                Some(Step::Make(self.line))
            }
            Phase::Resting(_) if is_due => Some(self.ask_for_promises()),
            _ => None,
        }
    }

    /// Nothing is to be done for a while.
    fn postpone(&mut self, now: Duration) {
        match &mut self.phase {
            Phase::Idle => self.earliest = self.earliest.max(now + AGAIN),
            Phase::Seeking(until) | Phase::Resting(until) | Phase::Ending(until) => *until = (*until).max(now + AGAIN),
            Phase::Making { asked, .. } => *asked = now,
            Phase::Asking(_) | Phase::Over => {}
        }
    }

    fn ask(&mut self, step: LineStep) -> Step {
        self.phase = Phase::Asking(step.clone());
        Step::Ask(step)
    }

    fn ask_for_promises(&mut self) -> Step {
        self.round += 1;
        self.ask(LineStep::Promise { line: self.line, round: self.round })
    }

    fn ask_for_end(&mut self) -> Step {
        (self.round, self.asked) = (self.round + 1, self.said);
        self.ask(LineStep::PromiseEnd { round: self.round })
    }

    /// A log has this rank's image of this line.
    pub(super) fn handle_ready(&mut self, rank: Rank, line: u64) {
        if let Phase::Making { ready, .. } = &mut self.phase
            && line == self.line
        {
            ready.insert(rank);
        }
    }

    /// A rank makes no image of this line, or, with 0, of any that is under way, because it is lost. While images are made no
    /// node was asked, so none remembers the line.
    pub(super) fn handle_failed(&mut self, now: Duration, line: u64) -> Option<Step> {
        ((line == self.line || line == 0) && matches!(self.phase, Phase::Making { .. })).then(|| self.give_up(now))
    }

    fn give_up(&mut self, now: Duration) -> Step {
        self.rest(now, AFTER_FAILURE * 2u32.pow(self.failed.min(DOUBLINGS)));
        self.failed = self.failed.saturating_add(1);
        Step::GiveUp(self.line - 1, self.line)
    }

    fn rest(&mut self, now: Duration, least: Duration) {
        self.phase = Phase::Idle;
        self.earliest = now + least;
    }

    /// The next line is due then.
    pub(super) fn schedule(&mut self, next: Option<Duration>) {
        self.next = next;
    }

    /// What the nodes have answered to this step; none: some have not. `ranks`: those that have not ended.
    pub(super) fn handle_answers(
        &mut self,
        now: Duration,
        step: &LineStep,
        answers: Option<&[LineAnswer]>,
        ranks: &BTreeSet<Rank>,
    ) -> Option<Step> {
        if !matches!(&self.phase, Phase::Asking(asked) if asked == step) {
            return None;
        }
        let Some(answers) = answers else {
            self.phase = match *step {
                LineStep::Seek => Phase::Seeking(now + AGAIN),
                LineStep::Promise { .. } | LineStep::Record { .. } => Phase::Resting(now + AGAIN),
                LineStep::PromiseEnd { .. } | LineStep::RecordEnd { .. } => Phase::Ending(now + AGAIN),
            };
            return None;
        };
        self.end = self.end.take().or_else(|| answers.iter().find_map(|answer| answer.end.clone()));
        match *step {
            LineStep::PromiseEnd { round } => self.handle_end_promises(now, round, answers, ranks),
            LineStep::RecordEnd { .. } if answers.iter().any(|answer| answer.is_busy) => {
                self.phase = Phase::Ending(now + AGAIN);
                None
            }
            LineStep::RecordEnd { .. } => {
                self.phase = Phase::Over;
                Some(Step::LetGo)
            }
            LineStep::Seek => self.handle_lines(now, answers),
            LineStep::Promise { round, .. } => self.handle_promises(now, round, answers, ranks),
            LineStep::Record { .. } if answers.iter().any(|answer| answer.is_busy) => {
                self.phase = Phase::Resting(now + AGAIN);
                None
            }
            LineStep::Record { .. } => {
                self.failed = 0;
                self.rest(now, LEAST);
                Some(Step::Complete(self.line))
            }
        }
    }

    /// A line that some node remembers has all its images: it is brought to its end. If none does the home before cannot have released anything.
    fn handle_lines(&mut self, now: Duration, answers: &[LineAnswer]) -> Option<Step> {
        let recorded = most(answers, |answer| answer.recorded);
        self.given = most(answers, |answer| answer.newest).max(recorded);
        if recorded > 0 {
            self.line = recorded;
            self.phase = Phase::Resting(now);
            return (self.given > recorded).then_some(Step::GiveUp(recorded, self.given));
        }
        self.line = self.given;
        self.rest(now, LEAST);
        (self.given > 0).then_some(Step::GiveUp(0, self.given))
    }

    fn handle_promises(&mut self, now: Duration, round: u64, answers: &[LineAnswer], ranks: &BTreeSet<Rank>) -> Option<Step> {
        let newest = most(answers, |answer| answer.newest);
        if newest > self.given {
            // A home before has begun a line, and the first image of it came to its log after the nodes were asked which lines there are.
            self.given = newest;
            self.phase = Phase::Resting(now);
            return Some(Step::GiveUp(self.line, newest));
        }
        let has = ranks_of(answers);
        let lacks = answers.iter().flat_map(|answer| &answer.lacks).any(|rank| ranks.contains(rank) && !has.contains(rank));
        if ranks.is_empty() || is_void(answers) {
            self.phase = Phase::Resting(now + AGAIN);
            None
        } else if lacks {
            Some(self.give_up(now))
        } else if has.is_superset(ranks) {
            Some(self.ask(LineStep::Record { line: self.line, round }))
        } else {
            self.phase = Phase::Resting(now + AGAIN);
            None
        }
    }

    /// Whether all ranks have come to their ends, as their hosts say now. One that has been lost since will say so again.
    fn handle_end_promises(&mut self, now: Duration, round: u64, answers: &[LineAnswer], ranks: &BTreeSet<Rank>) -> Option<Step> {
        if ranks.is_empty() || is_void(answers) {
            self.phase = Phase::Ending(now + AGAIN);
            return None;
        }
        let has = ranks_of(answers);
        if self.end.is_none() {
            let asked = self.asked;
            self.at_end.retain(|rank, (.., said)| *said > asked || has.contains(rank) || !ranks.contains(rank));
        }
        match self.end_of(ranks).filter(|_| self.end.is_some() || has.is_superset(ranks)) {
            Some(end) => Some(self.ask(LineStep::RecordEnd { round, end })),
            None => {
                self.rest(now, LEAST);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    fn ranks(count: u32) -> BTreeSet<Rank> {
        (0..count).map(Rank).collect()
    }

    fn has(ranks: impl IntoIterator<Item = u32>) -> LineAnswer {
        let has = ranks.into_iter().map(|rank| (Rank(rank), Incarnation::FIRST)).collect();
        LineAnswer { has, ..LineAnswer::default() }
    }

    /// Of a home that knows that there is no line yet.
    fn begun(interval: Duration) -> JobLines {
        let mut lines = JobLines::new(Some(interval));
        assert_eq!(lines.poll(Duration::ZERO, &ranks(1)), Some(Step::Ask(LineStep::Seek)));
        assert_eq!(lines.handle_answers(Duration::ZERO, &LineStep::Seek, Some(&[has([])]), &ranks(1)), None);
        lines
    }

    /// Both ranks have made their images of line 1, and the nodes are asked.
    fn asking(lines: &mut JobLines) -> LineStep {
        assert_eq!(lines.poll(INTERVAL, &ranks(2)), Some(Step::Make(1)));
        lines.handle_ready(Rank(0), 1);
        assert_eq!(lines.poll(INTERVAL, &ranks(2)), None, "one image is missing");
        lines.handle_ready(Rank(1), 1);
        match lines.poll(INTERVAL, &ranks(2)) {
            Some(Step::Ask(step @ LineStep::Promise { line: 1, .. })) => step,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_line_is_complete_when_all_nodes_remember_it() {
        let mut lines = begun(INTERVAL);
        assert_eq!(lines.poll(INTERVAL / 2, &ranks(2)), None, "it is not due");
        let promise = asking(&mut lines);
        let record = match lines.handle_answers(INTERVAL, &promise, Some(&[has([0]), has([1])]), &ranks(2)) {
            Some(Step::Ask(step @ LineStep::Record { line: 1, .. })) => step,
            other => panic!("{other:?}"),
        };
        let (kept, broken) = (LineAnswer::default(), LineAnswer { is_busy: true, ..LineAnswer::default() });
        let mut other = lines.clone();
        assert_eq!(other.handle_answers(INTERVAL, &record, Some(&[kept.clone(), broken]), &ranks(2)), None);
        assert!(matches!(other.poll(INTERVAL + AGAIN, &ranks(2)), Some(Step::Ask(LineStep::Promise { line: 1, round: 2 }))));
        assert_eq!(lines.handle_answers(INTERVAL, &record, Some(&[kept.clone(), kept]), &ranks(2)), Some(Step::Complete(1)));
        assert!(!lines.is_under_way());
    }

    #[test]
    fn a_line_is_given_up_that_a_log_has_no_image_of_and_asked_for_again_while_a_node_is_busy() {
        let mut lines = begun(INTERVAL);
        let promise = asking(&mut lines);
        let (mut busy, mut lacks) = (lines.clone(), has([0]));
        lacks.lacks = vec![Rank(1)];
        assert_eq!(lines.handle_answers(INTERVAL, &promise, Some(&[lacks.clone()]), &ranks(2)), Some(Step::GiveUp(0, 1)));
        lacks.is_busy = true;
        assert_eq!(busy.handle_answers(INTERVAL, &promise, Some(&[lacks]), &ranks(2)), None, "it may have one still");
        assert!(busy.is_under_way());
        assert_eq!(busy.handle_failed(INTERVAL, 1), None, "nodes were asked: one may remember it");
    }

    #[test]
    fn no_line_is_complete_if_a_node_was_asked_for_a_lost_process_before_it_promised() {
        let mut lines = begun(INTERVAL);
        let promise = asking(&mut lines);
        let asked = LineAnswer { restarted: vec![(Rank(1), Incarnation::restarted(1))], ..has([0]) };
        let mut later = lines.clone();
        assert_eq!(lines.handle_answers(INTERVAL, &promise, Some(&[asked.clone(), has([1])]), &ranks(2)), None);
        assert!(matches!(lines.poll(INTERVAL + AGAIN, &ranks(2)), Some(Step::Ask(LineStep::Promise { line: 1, round: 2 }))));
        let back = LineAnswer { has: vec![(Rank(1), Incarnation::restarted(1))], ..LineAnswer::default() };
        let next = later.handle_answers(INTERVAL, &promise, Some(&[asked, back]), &ranks(2));
        assert!(matches!(next, Some(Step::Ask(LineStep::Record { line: 1, .. }))), "the image is of the new incarnation");
    }

    #[test]
    fn nothing_is_complete_while_the_ranks_are_not_known_or_a_node_is_silent() {
        let mut lines = begun(INTERVAL);
        let promise = asking(&mut lines);
        let mut silent = lines.clone();
        assert_eq!(silent.handle_answers(INTERVAL, &promise, None, &ranks(2)), None);
        assert!(silent.is_under_way());
        assert_eq!(lines.handle_answers(INTERVAL, &promise, Some(&[has([0, 1])]), &ranks(0)), None);
        assert_eq!(lines.poll(INTERVAL * 9, &ranks(0)), None);
        assert!(
            lines.is_under_way() && lines.poll_timeout().is_some_and(|at| at > INTERVAL * 9),
            "it is not asked at once again"
        );
    }

    #[test]
    fn a_line_of_the_home_before_that_comes_to_a_log_late_is_given_up() {
        let mut lines = begun(INTERVAL);
        let promise = asking(&mut lines);
        let late = LineAnswer { newest: 4, ..has([0]) };
        assert_eq!(lines.handle_answers(INTERVAL, &promise, Some(&[late, has([1])]), &ranks(2)), Some(Step::GiveUp(1, 4)));
        assert!(matches!(lines.poll(INTERVAL, &ranks(2)), Some(Step::Ask(LineStep::Promise { line: 1, round: 2 }))));
        assert_eq!(lines.newest(), 4, "no later line has its number");
    }

    #[test]
    fn a_rank_that_makes_no_image_ends_a_line_and_the_next_ones_come_ever_later() {
        let mut lines = begun(Duration::ZERO);
        let (mut now, mut before) = (LEAST, Duration::ZERO);
        for line in 1..=DOUBLINGS as u64 {
            assert_eq!(lines.poll(now, &ranks(1)), Some(Step::Make(line)));
            assert_eq!(lines.handle_failed(now, line + 1), None, "another line");
            assert_eq!(lines.handle_failed(now, line), Some(Step::GiveUp(line - 1, line)));
            let pause = lines.poll_timeout().expect("there is a next one") - now;
            assert!(pause > before);
            (now, before) = (now + pause, pause);
        }
    }

    #[test]
    fn a_home_brings_to_an_end_what_a_node_remembers_and_gives_up_the_rest() {
        let answer = |recorded, newest| LineAnswer { recorded, newest, ..LineAnswer::default() };
        let mut lines = JobLines::new(Some(INTERVAL));
        assert_eq!(lines.poll(Duration::ZERO, &ranks(2)), Some(Step::Ask(LineStep::Seek)));
        let mut other = lines.clone();
        let step = lines.handle_answers(Duration::ZERO, &LineStep::Seek, Some(&[answer(3, 4), answer(2, 3)]), &ranks(2));
        assert_eq!(step, Some(Step::GiveUp(3, 4)));
        assert!(matches!(lines.poll(Duration::ZERO, &ranks(2)), Some(Step::Ask(LineStep::Promise { line: 3, .. }))));
        let step = other.handle_answers(Duration::ZERO, &LineStep::Seek, Some(&[answer(0, 4)]), &ranks(2));
        assert_eq!(step, Some(Step::GiveUp(0, 4)));
        assert_eq!(other.poll(INTERVAL, &ranks(2)), Some(Step::Make(5)), "no number is given twice");
    }

    /// Rank `rank` has come to its end at a node of its own.
    fn at_end(lines: &mut JobLines, rank: u32, code: i32) {
        lines.handle_at_end(Rank(rank), node_of(rank), code);
    }

    fn node_of(rank: u32) -> NodeName {
        format!("n{rank}").parse().expect("a name")
    }

    /// Both ranks of two have come to their ends, and the nodes are asked.
    fn asking_for_end(lines: &mut JobLines, codes: [i32; 2]) -> LineStep {
        at_end(lines, 0, codes[0]);
        assert_eq!(lines.poll(Duration::ZERO, &ranks(2)), None, "one goes on");
        at_end(lines, 1, codes[1]);
        match lines.poll(Duration::ZERO, &ranks(2)) {
            Some(Step::Ask(step @ LineStep::PromiseEnd { .. })) => step,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_processes_may_end_when_all_nodes_remember_that_all_ranks_have_come_to_their_ends() {
        let mut lines = begun(INTERVAL);
        let promise = asking_for_end(&mut lines, [0, 3]);
        let end = JobEnd { failed: Some((Rank(1), node_of(1), 3)) };
        let record = match lines.handle_answers(INTERVAL, &promise, Some(&[has([0]), has([1])]), &ranks(2)) {
            Some(Step::Ask(step @ LineStep::RecordEnd { .. })) => step,
            other => panic!("{other:?}"),
        };
        assert!(matches!(record, LineStep::RecordEnd { end: ref of, .. } if *of == end && end.code_of(Rank(0)) == 0));
        let mut lost = lines.clone();
        lost.phase = Phase::Asking(promise.clone());
        let asked = LineAnswer { restarted: vec![(Rank(1), Incarnation::restarted(1))], ..has([0]) };
        assert_eq!(lost.handle_answers(INTERVAL, &promise, Some(&[asked, has([1])]), &ranks(2)), None, "rank 1 was lost since");
        let busy = LineAnswer { is_busy: true, ..LineAnswer::default() };
        let mut other = lines.clone();
        assert_eq!(other.handle_answers(INTERVAL, &record, Some(&[busy]), &ranks(2)), None, "one has not kept its promise");
        assert!(matches!(other.poll(INTERVAL + AGAIN, &ranks(2)), Some(Step::Ask(LineStep::PromiseEnd { .. }))));
        assert_eq!(lines.handle_answers(INTERVAL, &record, Some(&[LineAnswer::default()]), &ranks(2)), Some(Step::LetGo));
        assert_eq!((lines.poll(INTERVAL * 9, &ranks(2)), lines.poll_timeout()), (None, None), "no line is made any more");
    }

    #[test]
    fn a_rank_that_is_lost_on_its_way_to_the_end_has_lines_made_again_until_it_says_so_once_more() {
        let mut lines = begun(Duration::ZERO);
        let promise = asking_for_end(&mut lines, [0, 0]);
        assert_eq!(lines.handle_answers(Duration::ZERO, &promise, Some(&[has([0])]), &ranks(2)), None);
        assert_eq!(lines.poll(LEAST, &ranks(2)), Some(Step::Make(1)));
        at_end(&mut lines, 1, 0);
        assert_eq!(lines.poll(LEAST, &ranks(2)), Some(Step::GiveUp(0, 1)));
        let Some(Step::Ask(promise)) = lines.poll(LEAST, &ranks(2)) else { panic!("{lines:?}") };
        // It is lost, and says so once more before the nodes have answered.
        at_end(&mut lines, 1, 0);
        assert_eq!(lines.handle_answers(LEAST, &promise, Some(&[has([0])]), &ranks(2)), None);
        assert!(matches!(lines.poll(LEAST, &ranks(2)), Some(Step::Ask(LineStep::PromiseEnd { .. }))));
    }

    #[test]
    fn what_one_node_remembers_is_decided_though_a_rank_is_lost_since() {
        let (end, mut lines) = (JobEnd { failed: None }, JobLines::new(Some(INTERVAL)));
        assert_eq!(lines.poll(Duration::ZERO, &ranks(2)), Some(Step::Ask(LineStep::Seek)));
        let answer = LineAnswer { end: Some(end.clone()), ..LineAnswer::default() };
        assert_eq!(lines.handle_answers(Duration::ZERO, &LineStep::Seek, Some(&[has([]), answer.clone()]), &ranks(2)), None);
        let Some(Step::Ask(promise)) = lines.poll(LEAST, &ranks(2)) else { panic!("{lines:?}") };
        let record = lines.handle_answers(LEAST, &promise, Some(&[has([0]), answer]), &ranks(2));
        assert!(matches!(record, Some(Step::Ask(LineStep::RecordEnd { end: of, .. })) if of == end), "rank 1 is lost");
    }
}
