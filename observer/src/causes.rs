//! The causes of a process: determinants of other processes that it depends on, and that are not known to be stable.
//!
//! Where no process waits before it sends ([`LogMode::Causal`](radic_wire::process::LogMode)), bytes may depend on determinants
//! that only their sender has. So these travel in front of the bytes, and the receiver keeps them until it hears that they are
//! stable. When a process is lost, its protector collects from all others what they keep of its journal. So whatever depends on a
//! determinant holds it, or knows that it is stable (docs/design.md, G1).
//!
//! What is kept is one sequence of bytes, in the order in which it came: new parts go on links and to the process's own protector
//! by position, as the journal does. It is forgotten from its beginning: what is stable, and over [`Bounds::kept`] what the own
//! protector has, which answers for it then.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::FixedState;
use radic_wire::bytes::{Malformed, Writer};
use radic_wire::causes::{self, Cause};
use radic_wire::ids::{Incarnation, Rank};
use radic_wire::log::NewCauses;

use crate::journal::Journal;

/// Journals that have become stable, of which links are told: the last this many.
const NEWS: usize = 64;
/// Longest code of a cause without its bytes.
const HEAD: usize = 32;

/// How much there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes that are kept although the own protector has them, and bytes that it may lack before nothing more is received.
    pub kept: usize,
    /// Bytes that go in front of one frame. A process that would have to pass on more waits for its own protector first.
    pub passed: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { kept: 64 << 10, passed: 8 << 10 }
    }
}

/// What one link has carried; it begins with nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Passed {
    /// The sender's journal, up to here.
    journal: u64,
    /// The causes that it keeps, up to here.
    causes: u64,
    /// The news, up to here.
    news: u64,
    /// Up to where the sender's journal is stable.
    stable: u64,
}

/// A part that is kept.
#[derive(Debug, Clone, Copy)]
struct Kept {
    /// Position after it.
    end: u64,
    origin: Rank,
    /// Where it ends in the journal of its origin.
    to: u64,
}

/// What is known of another process.
#[derive(Debug, Clone, Copy, Default)]
struct Origin {
    /// The newest run of its journal that is kept without a gap.
    run: (u64, u64),
    /// The process's journal is stable up to here.
    stable: u64,
    /// The farthest part of the journal that ever came.
    depends: u64,
    /// Set when this process reported what it keeps of a lost process's journal: the next incarnation, and `depends` at that
    /// moment.
    collected: Option<(Incarnation, u64)>,
}

/// See the module's text.
#[derive(Debug, Clone)]
pub struct Causes {
    me: Rank,
    bounds: Bounds,
    bytes: VecDeque<u8>,
    start: u64,
    kept: VecDeque<Kept>,
    /// The protector was sent what is before this.
    shipped: u64,
    /// The protector has what is before this.
    held: u64,
    /// Where the journal ended when something was kept last, and the causes before that: what of them the journal depends on.
    recorded: (u64, u64),
    origins: HashMap<Rank, Origin, FixedState>,
    /// Journals that have become stable, the newest last.
    news: VecDeque<Rank>,
    /// Number of the first of them.
    first_news: u64,
}

impl Causes {
    /// Of the process with this rank, which depends on nothing.
    pub fn new(me: Rank, bounds: Bounds) -> Causes {
        let (bytes, kept, recorded, origins, news) = Default::default();
        let (start, shipped, held, first_news) = (0, 0, 0, 0);
        Causes { me, bounds, bytes, start, kept, shipped, held, recorded, origins, news, first_news }
    }

    /// Position of the oldest byte that is kept.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Position after the newest.
    pub fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Bytes that the own protector is not known to have.
    #[inline]
    pub fn unheld(&self) -> usize {
        (self.end() - self.held) as usize
    }

    /// Whether the protector lacks so much that nothing more is to be received before it has it.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.unheld() > self.bounds.kept
    }

    /// Where it stands, for people.
    pub fn standing(&self) -> String {
        let Causes { start, shipped, held, recorded, .. } = *self;
        format!("causes {start} to {}, shipped {shipped}, held {held}, recorded {recorded:?}", self.end())
    }

    /// This process reports what it keeps of the journal of a lost process, which comes back as `incarnation`. Later dependencies
    /// were also reported by others, or belong to the new incarnation.
    pub fn handle_collected(&mut self, origin: Rank, incarnation: Incarnation) {
        let of = self.origins.entry(origin).or_default();
        of.collected = Some((incarnation, of.depends));
    }

    /// Up to where this process depended on the journal of another one before this incarnation of it, when it said what it keeps of that; 0: it was not asked.
    pub fn depended_on(&self, origin: Rank, incarnation: Incarnation) -> u64 {
        let collected = self.origins.get(&origin).and_then(|of| of.collected);
        collected.filter(|(of, _)| *of <= incarnation).map_or(0, |(_, depends)| depends)
    }

    /// All that is kept: a set.
    pub fn set(&self) -> Vec<u8> {
        self.bytes.iter().copied().collect()
    }

    // ---- what comes

    /// A set that precedes bytes on a link, which have not been given to the program, whose journal ends there.
    pub fn handle_set(&mut self, journal: u64, set: &[u8]) -> Result<(), Malformed> {
        self.recorded = (journal, self.recorded(journal));
        for cause in causes::read(set) {
            let cause = cause?;
            if cause.origin() == self.me {
                continue;
            }
            match cause {
                Cause::Part { from, bytes, .. } => self.keep(cause.origin(), from, bytes),
                Cause::Stable { origin, to } => self.handle_origin_stable(origin, to),
            }
        }
        self.make_room();
        Ok(())
    }

    /// What the program depends on, if its journal ends there. It has not been told of what came after the last outcome.
    pub fn recorded(&self, journal: u64) -> u64 {
        if journal == self.recorded.0 { self.recorded.1.max(self.start) } else { self.end() }
    }

    /// Keeps what of a part is new.
    fn keep(&mut self, origin: Rank, from: u64, bytes: &[u8]) {
        let of = self.origins.entry(origin).or_default();
        let to = from + bytes.len() as u64;
        of.depends = of.depends.max(to);
        if to <= of.stable || of.run.0 <= from && to <= of.run.1 {
            return;
        }
        // Parts are cut between outcomes, and so are runs: what is new of one that overlaps the run begins where that ends.
        let new = if of.run.0 <= from && from <= of.run.1 { of.run.1 } else { from };
        of.run = if new == of.run.1 && of.run.1 > 0 { (of.run.0, to) } else { (from, to) };
        let bytes = &bytes[(new - from) as usize..];
        put(&mut self.bytes, |out| Cause::write_head(out, origin, new, bytes.len()));
        self.bytes.extend(bytes);
        self.kept.push_back(Kept { end: self.end(), origin, to });
    }

    /// The journal of another process is stable up to there.
    fn handle_origin_stable(&mut self, origin: Rank, to: u64) {
        let of = self.origins.entry(origin).or_default();
        if to <= of.stable {
            return;
        }
        let kept_some = of.run.1 > of.stable;
        of.stable = to;
        if kept_some {
            self.news.push_back(origin);
            if self.news.len() > NEWS {
                self.news.pop_front();
                self.first_news += 1;
            }
        }
    }

    fn make_room(&mut self) {
        while let Some(front) = self.kept.front() {
            let is_stable = self.origins.get(&front.origin).is_some_and(|of| front.to <= of.stable);
            let is_over = self.bytes.len() > self.bounds.kept && front.end <= self.held;
            if !is_stable && !is_over {
                break;
            }
            let count = (front.end - self.start) as usize;
            self.bytes.drain(..count);
            self.start = front.end;
            self.kept.pop_front();
        }
        self.held = self.held.max(self.start);
    }

    // ---- to the protector

    /// Causes that the protector was not sent, as one piece; they count as sent, and go in one message with the journal that is new.
    pub fn poll_ship(&mut self) -> Option<NewCauses<'_>> {
        let (position, end) = (self.shipped.max(self.start), self.end());
        if self.shipped == end {
            return None;
        }
        self.shipped = end;
        let from = (position - self.start) as usize;
        Some(NewCauses { start: self.start, position, bytes: &self.bytes.make_contiguous()[from..] })
    }

    /// Bytes that the protector was not sent.
    pub fn unshipped(&self) -> usize {
        (self.end() - self.shipped) as usize
    }

    /// Whether the protector has all that the program depends on, whose journal ends there.
    pub fn are_held(&self, journal: u64) -> bool {
        self.recorded(journal) <= self.held
    }

    /// The protector, and its replica, have what is before this.
    pub fn handle_held(&mut self, position: u64) {
        self.held = self.held.max(position.min(self.end()));
        self.make_room();
    }

    /// A protector has answered the hello. It may be another one: all that is kept is sent again, with the journal that follows.
    /// If nothing is kept it is told that: it commits no image before it has the causes of that.
    pub fn handle_welcome(&mut self) {
        (self.shipped, self.held) = (self.start.saturating_sub(1), self.start);
    }

    /// This process was restored. The log that it goes on with has these causes of it, from that position on.
    pub fn restart(&mut self, position: u64, set: &[u8]) -> Result<(), Malformed> {
        *self = Causes { start: position, ..Causes::new(self.me, self.bounds) };
        for cause in causes::read_with_ends(set) {
            let (cause, end) = cause?;
            self.kept.push_back(Kept { end: position + end as u64, origin: cause.origin(), to: cause.to() });
        }
        self.bytes.extend(set);
        let end = self.end();
        (self.shipped, self.held) = (end, end);
        Ok(())
    }

    // ---- on links

    /// Whether more would have to be passed on now on a link that has carried this than one frame takes.
    pub fn is_too_much(&self, passed: &Passed, journal: &Journal) -> bool {
        let own = journal.end() - journal.stable().max(passed.journal).min(journal.end());
        own + self.recorded(journal.end()).saturating_sub(self.held.max(passed.causes)) > self.bounds.passed as u64
    }

    /// The set that goes in front of a frame, after what is in `out`, on a link to `to` that has carried `passed`.
    pub fn pass_on(&self, passed: &mut Passed, to: Rank, journal: &Journal, out: &mut Vec<u8>) {
        self.pass_own(passed, journal, out);
        let from = self.held.max(passed.causes).max(self.start);
        let first = self.kept.partition_point(|kept| kept.end <= from);
        let mut at = if first == 0 { self.start } else { self.kept[first - 1].end };
        let recorded = self.recorded(journal.end());
        for kept in self.kept.range(first..).take_while(|kept| kept.end <= recorded) {
            if kept.origin != to {
                out.extend(self.bytes.range((at - self.start) as usize..(kept.end - self.start) as usize));
            }
            at = kept.end;
        }
        passed.causes = passed.causes.max(recorded);
        self.pass_news(passed, to, out);
    }

    /// Adds what of the journal of this process is not stable.
    pub fn add_own(&self, journal: &Journal, out: &mut Vec<u8>) {
        self.pass_own(&mut Passed::default(), journal, out);
    }

    fn pass_own(&self, passed: &mut Passed, journal: &Journal, out: &mut Vec<u8>) {
        let (stable, end) = (journal.stable(), journal.end());
        if stable > passed.stable && passed.journal > passed.stable {
            put(out, |out| Cause::Stable { origin: self.me, to: stable }.write(out));
            passed.stable = stable;
        }
        let from = stable.max(passed.journal);
        if from < end {
            let (head, tail) = journal.slices(from);
            put(out, |out| Cause::write_head(out, self.me, from, head.len() + tail.len()));
            out.extend(head);
            out.extend(tail);
        }
        passed.journal = passed.journal.max(end);
    }

    fn pass_news(&self, passed: &mut Passed, to: Rank, out: &mut Vec<u8>) {
        let end = self.first_news + self.news.len() as u64;
        let skip = passed.news.saturating_sub(self.first_news) as usize;
        for origin in self.news.iter().skip(skip).filter(|origin| **origin != to) {
            if let Some(of) = self.origins.get(origin) {
                put(out, |out| Cause::Stable { origin: *origin, to: of.stable }.write(out));
            }
        }
        passed.news = end;
    }
}

/// Appends a code without the bytes of a part to what is there.
fn put(into: &mut impl for<'a> Extend<&'a u8>, write: impl FnOnce(&mut Writer<'_>)) {
    let mut code = [0; HEAD];
    let mut writer = Writer::new(&mut code);
    write(&mut writer);
    let length = writer.finish().expect("three numbers have room");
    into.extend(&code[..length]);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use radic_wire::determinant::Determinant;

    use super::*;

    /// A process with its journal, as its observer has them.
    struct Side {
        causes: Causes,
        journal: Journal,
    }

    impl Side {
        fn new(rank: u32, bounds: Bounds) -> Side {
            Side { causes: Causes::new(Rank(rank), bounds), journal: Journal::new(1 << 10, 1, 32) }
        }

        /// The process has an outcome.
        fn record(&mut self) {
            if self.journal.has_room() {
                self.journal.append(0, &Determinant::Recv { fd: 3, len: 5 }).unwrap();
            }
        }

        /// A message to another process, on a link that has carried `passed`: its causes, which that process keeps before its outcome.
        fn send(&self, passed: &mut Passed, to: &mut Side) {
            let mut set = Vec::new();
            self.causes.pass_on(passed, to.causes.me, &self.journal, &mut set);
            to.causes.handle_set(to.journal.end(), &set).unwrap();
            to.record();
        }

        /// The process's protector has all that it was sent.
        fn flush(&mut self) {
            self.causes.poll_ship();
            self.journal.poll_ship();
            let (journal, causes) = (self.journal.end(), self.causes.end());
            self.journal.handle_stable(journal).unwrap();
            self.causes.handle_held(causes);
        }
    }

    /// The parts of each journal in a set.
    fn parts(set: &[u8]) -> BTreeMap<Rank, Vec<(u64, u64)>> {
        let mut parts: BTreeMap<Rank, Vec<(u64, u64)>> = BTreeMap::new();
        for cause in causes::read(set).map(Result::unwrap) {
            if let Cause::Part { origin, from, .. } = cause {
                parts.entry(origin).or_default().push((from, cause.to()));
            }
        }
        parts
    }

    const NEVER_FULL: Bounds = Bounds { kept: 1 << 20, passed: 1 << 16 };

    proptest! {
        /// Three processes send to each other, record and flush as they like, and links break. All that a process depends on is
        /// kept by it, or by the log of one, or is stable.
        #[test]
        fn what_a_process_depends_on_is_held(steps in prop::collection::vec((0u8..8, 0usize..3, 1usize..3), 0..120)) {
            let mut sides: Vec<Side> = (0..3).map(|rank| Side::new(rank, NEVER_FULL)).collect();
            let mut links = [[Passed::default(); 3]; 3];
            let (mut past, mut logs) = ([[0u64; 3]; 3], Vec::<u8>::new());
            for (step, one, other) in steps {
                let other = (one + other) % 3;
                match step {
                    0..=3 => {
                        let [from, to] = sides.get_disjoint_mut([one, other]).unwrap();
                        from.send(&mut links[one][other], to);
                        past[one][one] = from.journal.end();
                        for rank in (0..3).filter(|rank| *rank != other) {
                            past[other][rank] = past[other][rank].max(past[one][rank]);
                        }
                    }
                    4 | 5 => sides[one].record(),
                    6 => {
                        logs.extend(sides[one].causes.set());
                        sides[one].flush();
                    }
                    _ => links[one][other] = Passed::default(),
                }
                for (side, past) in sides.iter().zip(past) {
                    let mut set = logs.clone();
                    sides.iter().for_each(|side| set.extend(side.causes.set()));
                    let held = parts(&set);
                    for (rank, depends) in past.into_iter().enumerate().filter(|(rank, _)| Rank(*rank as u32) != side.causes.me) {
                        let mut at = sides[rank].journal.stable();
                        let mut of = held.get(&Rank(rank as u32)).cloned().unwrap_or_default();
                        of.sort_unstable();
                        of.into_iter().for_each(|(from, to)| at = if from <= at { at.max(to) } else { at });
                        prop_assert!(at >= depends, "{:?} depends on {depends} of rank {rank}, held up to {at}", side.causes.me);
                    }
                }
            }
        }
    }

    #[test]
    fn what_has_become_stable_is_forgotten_and_told_to_others() {
        let (mut one, mut two, mut three) = (Side::new(1, NEVER_FULL), Side::new(2, NEVER_FULL), Side::new(3, NEVER_FULL));
        let (mut to_two, mut to_three) = (Passed::default(), Passed::default());
        one.record();
        one.send(&mut to_two, &mut two);
        two.send(&mut to_three, &mut three);
        assert_eq!(parts(&three.causes.set()).len(), 2, "what the sender depends on goes on");
        one.flush();
        two.flush();
        one.record();
        one.send(&mut to_two, &mut two);
        assert_eq!(parts(&two.causes.set())[&Rank(1)].len(), 1, "the first part is stable");
        two.send(&mut to_three, &mut three);
        assert_eq!(parts(&three.causes.set())[&Rank(1)].len(), 1, "and this one has heard so from another");
        let next = Incarnation::restarted(1);
        assert_eq!(three.causes.depended_on(Rank(1), next), 0, "nobody has asked");
        three.causes.handle_collected(Rank(1), next);
        let then = one.journal.end();
        one.record();
        one.send(&mut to_two, &mut two);
        two.send(&mut to_three, &mut three);
        assert_eq!(three.causes.depended_on(Rank(1), next), then, "what came since is of the next incarnation");
        assert_eq!(three.causes.depended_on(Rank(1), Incarnation::FIRST), 0);
    }

    #[test]
    fn what_the_own_log_has_is_not_passed_on_and_may_go_where_it_is_much() {
        let (mut one, mut two) = (Side::new(1, NEVER_FULL), Side::new(2, Bounds { kept: 40, passed: 1 << 10 }));
        let mut link = Passed::default();
        (0..20).for_each(|_| one.record());
        one.send(&mut link, &mut two);
        assert!(two.causes.is_full() && !two.causes.are_held(two.journal.end()), "nothing more is received now");
        two.flush();
        assert!(!two.causes.is_full() && two.causes.set().is_empty(), "its log answers for it");
        let mut set = Vec::new();
        two.causes.pass_on(&mut Passed::default(), Rank(3), &two.journal, &mut set);
        assert!(parts(&set).is_empty());
        // Another protector gets what there is still.
        one.record();
        one.send(&mut link, &mut two);
        two.causes.handle_welcome();
        assert_eq!(two.causes.poll_ship().map(|new| new.bytes.to_vec()), Some(two.causes.set()));
    }

    #[test]
    fn a_process_that_comes_back_keeps_what_its_log_had() {
        let (mut one, mut two) = (Side::new(1, NEVER_FULL), Side::new(2, NEVER_FULL));
        one.record();
        one.send(&mut Passed::default(), &mut two);
        let (position, set) = (two.causes.start(), two.causes.set());
        let mut again = Causes::new(Rank(2), NEVER_FULL);
        again.restart(position, &set).unwrap();
        assert_eq!((again.set(), again.unshipped(), again.unheld()), (set, 0, 0));
        assert!(again.restart(0, &[1, 2, 3, 0x80]).is_err());
    }
}
