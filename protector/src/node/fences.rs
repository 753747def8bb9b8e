//! The PMI fences of a job at its home. All ranks enter a fence, with what they have put into the key space, and are let out
//! together.
//!
//! Ranks are counted, not nodes: a rank that is lost in a fence enters it again when it is brought back, at a node whose other
//! ranks may have entered long before. Every message may be repeated, to this home or the next one. A host that has missed a
//! release gets it when it asks once more. So no message and no answer can be lost with a node.

use std::collections::{BTreeMap, BTreeSet};

use radic_wire::ids::{NodeId, NodeName, Rank};
use radic_wire::limits;

type Entries = Vec<(String, String)>;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Fences {
    /// The last fence that was released.
    released: u64,
    /// All entries that ranks have put.
    keys: BTreeMap<String, String>,
    /// The keys of entries that hosts may not know before the next release.
    fresh: BTreeSet<String>,
    /// The ranks in the next fence, each with the node that has said so.
    inside: BTreeMap<Rank, NodeId>,
    /// Ranks that have ended after MPI_Finalize. They have passed all their fences, so no other rank waits for them, even if the
    /// home that let them out of the last one is lost, and has told no other node of it.
    finalized: BTreeSet<Rank>,
    /// Ranks that have ended without MPI, and where. They enter no fence.
    absent: BTreeMap<Rank, NodeName>,
}

/// A fence that cannot be released: a rank has ended that never enters it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stuck {
    /// The rank that has ended.
    pub(super) ended: Rank,
    /// The node where it has ended.
    pub(super) node: NodeName,
    /// The ranks that wait for it.
    pub(super) waiting: Vec<Rank>,
}

/// What becomes of ranks that have entered a fence.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// The ranks wait for others, or have said so before.
    Waits,
    /// All ranks are in: they go on, with these entries.
    Released(Entries),
    /// That fence was released before: the node's ranks go on, with these entries.
    Before(Entries),
}

/// What a home learns from a host: these nodes wait in a fence that was released.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Behind {
    pub(super) number: u64,
    pub(super) nodes: Vec<NodeId>,
    pub(super) entries: Entries,
}

impl Fences {
    /// The fences of a job that goes on after `released` fences, with these keys.
    pub(super) fn new(released: u64, keys: Entries) -> Self {
        Fences { released, keys: keys.into_iter().collect(), ..Fences::default() }
    }

    /// The last fence that was released.
    pub(super) fn released(&self) -> u64 {
        self.released
    }

    /// All ranks of a node that have not ended are in fence `number`. `all`: how many ranks the job has.
    pub(super) fn enter(&mut self, from: &NodeId, number: u64, ranks: Vec<Rank>, entries: Entries, all: u32) -> Entered {
        self.keep(entries);
        if number <= self.released {
            return Entered::Before(self.all());
        }
        if number > self.released + 1 {
            // This home is new, and what the host knows of the fence before is on its way, in its report.
            return Entered::Waits;
        }
        self.inside.extend(ranks.into_iter().filter(|rank| rank.0 < all).map(|rank| (rank, from.clone())));
        self.release(all).map_or(Entered::Waits, |(_, entries)| Entered::Released(entries))
    }

    /// A rank has ended after MPI_Finalize. Returns the fence that is released by that, and its entries.
    pub(super) fn leave(&mut self, rank: Rank, all: u32) -> Option<(u64, Entries)> {
        self.finalized.insert(rank);
        self.release(all)
    }

    /// A rank has ended at this node with code 0, before MPI_Init.
    pub(super) fn keep_out(&mut self, rank: Rank, node: NodeName) {
        self.absent.insert(rank, node);
    }

    /// The fence in which ranks wait for one that never comes, if there is one.
    pub(super) fn stuck(&self) -> Option<Stuck> {
        let (ended, node) = self.absent.first_key_value()?;
        let waiting: Vec<_> = self.inside.keys().copied().collect();
        (!waiting.is_empty()).then(|| Stuck { ended: *ended, node: node.clone(), waiting })
    }

    /// Releases the next fence if ranks are in it, and all of those that ever come.
    fn release(&mut self, all: u32) -> Option<(u64, Entries)> {
        let passed = self.finalized.iter().filter(|rank| !self.inside.contains_key(rank)).count();
        if self.inside.is_empty() || self.inside.len() + passed < all as usize {
            return None;
        }
        self.released += 1;
        self.inside.clear();
        let fresh = std::mem::take(&mut self.fresh).into_iter();
        Some((self.released, fresh.map(|key| (key.clone(), self.keys[&key].clone())).collect()))
    }

    /// A host has been let out of fence `number`, and knows these keys. Returns the nodes that wait in a fence which the home
    /// before had released.
    pub(super) fn learn(&mut self, number: u64, keys: Entries) -> Option<Behind> {
        self.keep(keys);
        if number <= self.released {
            return None;
        }
        let waits_in = self.released + 1;
        self.released = number;
        let mut nodes: Vec<_> = std::mem::take(&mut self.inside).into_values().collect();
        nodes.sort();
        nodes.dedup();
        Some(Behind { number: waits_in, nodes, entries: self.all() })
    }

    /// A node is lost, and with it the ranks there: they enter again, elsewhere.
    pub(super) fn lose(&mut self, node: &NodeId) {
        self.inside.retain(|_, of| of != node);
    }

    /// Keeps at most one entry more than a key space holds: a host refuses so many, and the fence fails there.
    fn keep(&mut self, entries: Entries) {
        for (key, value) in entries {
            let room = self.keys.len() <= limits::PMI_KEYS || self.keys.contains_key(&key);
            if room && self.keys.get(&key) != Some(&value) {
                self.fresh.insert(key.clone());
                self.keys.insert(key, value);
            }
        }
    }

    fn all(&self) -> Entries {
        self.keys.clone().into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use radic_wire::ids::BootId;

    use super::*;

    fn node(number: u64) -> NodeId {
        NodeId { name: format!("n{number}").parse().expect("a name"), boot: BootId(number) }
    }

    fn ranks(ranks: &[u32]) -> Vec<Rank> {
        ranks.iter().copied().map(Rank).collect()
    }

    fn put(key: &str) -> Entries {
        vec![(key.to_owned(), "1".to_owned())]
    }

    #[test]
    fn a_repetition_changes_nothing_and_is_answered() {
        let mut fences = Fences::default();
        assert_eq!(fences.enter(&node(1), 1, ranks(&[0]), put("a"), 2), Entered::Waits);
        assert_eq!(fences.enter(&node(1), 1, ranks(&[0]), vec![], 2), Entered::Waits);
        let both = [put("a"), put("b")].concat();
        assert_eq!(fences.enter(&node(2), 1, ranks(&[1]), put("b"), 2), Entered::Released(both.clone()));
        assert_eq!(fences.enter(&node(2), 1, ranks(&[1]), put("b"), 2), Entered::Before(both));
        assert_eq!(fences.released(), 1);
    }

    #[test]
    fn a_rank_that_is_lost_in_a_fence_enters_it_again_before_it_is_released() {
        let mut fences = Fences::default();
        assert_eq!(fences.enter(&node(1), 1, ranks(&[0]), vec![], 3), Entered::Waits);
        assert_eq!(fences.enter(&node(2), 1, ranks(&[1]), vec![], 3), Entered::Waits);
        fences.lose(&node(1));
        // It goes on at node 2, and is not in the fence yet.
        assert_eq!(fences.enter(&node(3), 1, ranks(&[2]), vec![], 3), Entered::Waits);
        assert_eq!(fences.enter(&node(2), 1, ranks(&[0, 1]), vec![], 3), Entered::Released(vec![]));
    }

    #[test]
    fn a_fence_is_stuck_if_a_rank_ended_that_was_in_none() {
        let mut fences = Fences::default();
        fences.keep_out(Rank(2), node(3).name);
        assert_eq!(fences.stuck(), None, "no rank waits");
        assert_eq!(fences.enter(&node(1), 1, ranks(&[0]), vec![], 3), Entered::Waits);
        assert_eq!(fences.stuck(), Some(Stuck { ended: Rank(2), node: node(3).name, waiting: ranks(&[0]) }));
    }

    #[test]
    fn a_rank_that_has_finalized_is_waited_for_no_more() {
        let mut fences = Fences::new(4, vec![]);
        assert_eq!(fences.enter(&node(1), 5, ranks(&[0]), put("a"), 2), Entered::Waits);
        assert_eq!(fences.leave(Rank(1), 2), Some((5, put("a"))));
        assert_eq!((fences.stuck(), fences.released()), (None, 5));
        assert_eq!(fences.leave(Rank(0), 2), None, "no rank waits any more");
    }

    #[test]
    fn what_the_home_before_has_released_is_released_for_all() {
        let mut fences = Fences::default();
        assert_eq!(fences.learn(1, put("a")), Some(Behind { number: 1, nodes: vec![], entries: put("a") }));
        assert_eq!(fences.enter(&node(1), 2, ranks(&[0]), put("b"), 3), Entered::Waits);
        let both = [put("a"), put("b")].concat();
        assert_eq!(fences.learn(2, both.clone()), Some(Behind { number: 2, nodes: vec![node(1)], entries: both.clone() }));
        assert_eq!(fences.learn(1, put("a")), None, "a host that is behind");
        assert_eq!(fences.enter(&node(3), 2, ranks(&[2]), vec![], 3), Entered::Before(both));
        assert_eq!(
            fences.enter(&node(3), 4, ranks(&[2]), vec![], 3),
            Entered::Waits,
            "the fence before it is not known to be over"
        );
    }
}
