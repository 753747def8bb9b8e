//! The ranks of a job that a node has still to start: a few at a time.
//!
//! A start takes milliseconds, most of them until the new process gets a processor, and its order holds the whole environment of
//! the rank. If all were ordered at once, a thousand starts could be under way before the node can end the job, for example.

use std::collections::{BTreeSet, VecDeque};

use radic_wire::ids::Rank;

/// Ranks of one job that a node starts at a time. The next one is ordered as soon as one has been started, so the starter never
/// waits.
pub const AT_ONCE: usize = 16;

/// Ranks to be started, in order, and the ranks whose start is under way.
#[derive(Debug, Default)]
pub struct Launches {
    waiting: VecDeque<Rank>,
    under_way: BTreeSet<Rank>,
}

impl Launches {
    /// Puts a rank after those that wait already.
    pub fn add(&mut self, rank: Rank) {
        self.waiting.push_back(rank);
    }

    /// The rank to be started now, if one waits and not too many are under way. It counts as under way.
    pub fn begin(&mut self) -> Option<Rank> {
        let rank = if self.under_way.len() < AT_ONCE { self.waiting.pop_front() } else { None };
        self.under_way.extend(rank);
        rank
    }

    /// The rank was started, or could not be. Nothing changes if its start was not under way.
    pub fn end(&mut self, rank: Rank) {
        self.under_way.remove(&rank);
    }

    /// Gives up the ranks that wait: they will not be started.
    pub fn give_up(&mut self) -> impl Iterator<Item = Rank> + use<> {
        std::mem::take(&mut self.waiting).into_iter()
    }

    /// Whether a rank waits.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The rank is brought back instead: it need not be started, if it waits.
    pub fn forget(&mut self, rank: Rank) {
        self.waiting.retain(|waiting| *waiting != rank);
    }

    /// Whether the rank waits, or is under way.
    pub fn includes(&self, rank: Rank) -> bool {
        self.under_way.contains(&rank) || self.waiting.contains(&rank)
    }

    /// A rank that waits or is under way, if there is one.
    pub fn any(&self) -> Option<Rank> {
        self.under_way.first().or(self.waiting.front()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_under_way_at_once_and_each_that_ends_makes_room_for_the_next() {
        let mut launches = Launches::default();
        (0..100).map(Rank).for_each(|rank| launches.add(rank));
        let begin = |launches: &mut Launches| std::iter::from_fn(|| launches.begin()).map(|rank| rank.0).collect::<Vec<_>>();
        let first = AT_ONCE as u32;
        assert_eq!(begin(&mut launches), (0..first).collect::<Vec<_>>());
        launches.end(Rank(99)); // It waits.
        assert_eq!(begin(&mut launches), [0; 0]);
        launches.end(Rank(3));
        launches.end(Rank(3));
        launches.end(Rank(0));
        assert_eq!(begin(&mut launches), [first, first + 1]);
        assert!(launches.includes(Rank(first)) && launches.includes(Rank(99)) && !launches.includes(Rank(3)));
        launches.forget(Rank(99));
        assert!(!launches.includes(Rank(99)));
        assert_eq!(launches.give_up().map(|rank| rank.0).collect::<Vec<_>>(), (first + 2..99).collect::<Vec<_>>());
        assert_eq!(launches.any(), Some(Rank(1)));
        (0..first + 2).map(Rank).for_each(|rank| launches.end(rank));
        assert_eq!((launches.begin(), launches.any()), (None, None));
    }
}
