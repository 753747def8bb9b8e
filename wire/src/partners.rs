//! With which ranks each rank of a job has to do: to which it sends, from which it receives, for which it waits.
//!
//! It is derived from two answers to `Traffic`. A process that waits asks for the data of all its peers at once, so it names
//! none: it waits for those that do something else than to wait, and where a peer waits itself, for those that this one waits
//! for.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::ids::Rank;
use crate::local::Traffic;
use crate::report::ProcessInfo;
use crate::since::Does;

/// Ranks that are named, at most.
const NAMED: usize = 3;
/// Time after which the share of a process's time is counted from zero again.
const WINDOW: Duration = Duration::from_secs(10);

/// Which ranks of a job have connections with each other, and how much they have sent on them lately.
#[derive(Debug, Default)]
pub struct Peers {
    of: BTreeMap<Rank, BTreeSet<Rank>>,
    /// Sender, receiver, bytes since the answer before.
    sent: Vec<(Rank, Rank, u64)>,
}

impl Peers {
    /// From one answer to the next.
    pub fn new(before: Option<&Traffic>, now: &Traffic) -> Peers {
        let mut of: BTreeMap<Rank, BTreeSet<Rank>> = BTreeMap::new();
        for (sender, receiver, _) in &now.pairs {
            of.entry(*sender).or_default().insert(*receiver);
            of.entry(*receiver).or_default().insert(*sender);
        }
        let Some(before) = before else { return Peers { of, sent: Vec::new() } };
        let known: HashMap<(Rank, Rank), u64> = before.pairs.iter().map(|(from, to, bytes)| ((*from, *to), *bytes)).collect();
        let grown = |(from, to, bytes): &(Rank, Rank, u64)| {
            let more = bytes.saturating_sub(known.get(&(*from, *to)).copied().unwrap_or(0));
            (more > 0).then_some((*from, *to, more))
        };
        let mut sent: Vec<_> = now.pairs.iter().filter_map(grown).collect();
        sent.sort_by_key(|(from, to, more)| (Reverse(*more), *from, *to));
        Peers { of, sent }
    }

    /// The ranks that each rank which sends, receives or waits has to do with, of what all ranks of the job do: those first with
    /// which it has most to do, and a few only.
    pub fn partners(&self, does: &BTreeMap<Rank, Does>) -> BTreeMap<Rank, Vec<Rank>> {
        let mut partners: BTreeMap<Rank, Vec<Rank>> = BTreeMap::new();
        for (from, to, _) in &self.sent {
            for (rank, partner, wanted) in [(from, to, Does::Sends), (to, from, Does::Receives)] {
                if does.get(rank) == Some(&wanted) {
                    let of_rank = partners.entry(*rank).or_default();
                    if of_rank.len() < NAMED {
                        of_rank.push(*partner);
                    }
                }
            }
        }
        partners.extend(self.awaited(does));
        partners
    }

    /// From those that do not wait outwards, one step of the connections after the other.
    fn awaited(&self, does: &BTreeMap<Rank, Does>) -> BTreeMap<Rank, Vec<Rank>> {
        let waits = |rank: &Rank| does.get(rank) == Some(&Does::Waits);
        let at_work = does.iter().filter(|(rank, does)| !waits(rank) && **does != Does::HasEnded);
        let mut step: BTreeMap<Rank, BTreeSet<Rank>> = at_work.map(|(rank, _)| (*rank, BTreeSet::from([*rank]))).collect();
        let mut found: BTreeMap<Rank, Vec<Rank>> = BTreeMap::new();
        while !step.is_empty() {
            let mut next: BTreeMap<Rank, BTreeSet<Rank>> = BTreeMap::new();
            for (rank, causes) in &step {
                for peer in self.of.get(rank).into_iter().flatten().filter(|peer| waits(peer) && !found.contains_key(peer)) {
                    next.entry(*peer).or_default().extend(causes);
                }
            }
            found.extend(next.iter().map(|(rank, causes)| (*rank, causes.iter().take(NAMED).copied().collect())));
            step = next;
        }
        found
    }
}

/// Which part of its time a process has spent at the gate and in pauses for checkpoints, of the last ten to twenty seconds.
#[derive(Debug, Default, Clone, Copy)]
pub struct Overhead {
    pid: u32,
    /// When it was looked at, and the nanoseconds that it had spent.
    older: Option<(Duration, u64)>,
    newer: Option<(Duration, u64)>,
}

impl Overhead {
    /// Takes what is known of the process, look after look. The part, from 0 to 1; none: it is not known yet.
    pub fn handle(&mut self, at: Duration, process: &ProcessInfo) -> Option<f64> {
        let spent = spent(process)?;
        if self.pid != process.pid {
            // Another process spends its own time.
            *self = Overhead { pid: process.pid, older: None, newer: None };
        }
        let part = self.older.or(self.newer).and_then(|(from, before)| {
            let (time, more) = (at.checked_sub(from)?, spent.checked_sub(before)?);
            (!time.is_zero()).then(|| (more as f64 / time.as_nanos() as f64).min(1.0))
        });
        if self.newer.is_none_or(|(from, _)| at.saturating_sub(from) >= WINDOW) {
            self.older = self.newer.replace((at, spent));
        }
        part
    }
}

/// The mean of the parts that are known.
pub fn mean(parts: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let (sum, count) = parts.flatten().fold((0.0, 0u32), |(sum, count), part| (sum + part, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

fn spent(process: &ProcessInfo) -> Option<u64> {
    process.counters.map(|counters| counters.gate_ns.saturating_add(counters.pause_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::JobId;
    use crate::process::{Counters, Protect};

    fn traffic(pairs: &[(u32, u32, u64)]) -> Traffic {
        let pairs = pairs.iter().map(|(from, to, bytes)| (Rank(*from), Rank(*to), *bytes)).collect();
        Traffic { pairs, others: 0, partial: false }
    }

    fn partners(peers: &Peers, does: &[Does]) -> Vec<Vec<u32>> {
        let does: BTreeMap<Rank, Does> = (0..).map(Rank).zip(does.iter().copied()).collect();
        let found = peers.partners(&does);
        does.keys().map(|rank| found.get(rank).into_iter().flatten().map(|rank| rank.0).collect()).collect()
    }

    #[test]
    fn what_waits_waits_for_what_works() {
        use Does::{CatchesUp, Computes, HasEnded, Waits};
        // A line, 0 to 4.
        let line = Peers::new(None, &traffic(&[(0, 1, 9), (1, 2, 9), (2, 3, 9), (4, 3, 9)]));
        assert_eq!(partners(&line, &[Computes, Waits, Waits, Waits, Waits]), [vec![], vec![0], vec![0], vec![0], vec![0]]);
        // The nearest; of two that are as near, both.
        assert_eq!(partners(&line, &[Computes, Waits, Waits, Waits, CatchesUp])[1..4], [vec![0], vec![0, 4], vec![4]]);
        // Where all wait none is named, nor one that is over.
        assert_eq!(partners(&line, &[Waits; 5]), [const { Vec::new() }; 5]);
        assert_eq!(partners(&line, &[HasEnded, Waits, Waits, Waits, Waits]), [const { Vec::new() }; 5]);
        // A rank without connections.
        assert_eq!(partners(&Peers::default(), &[Computes, Waits]), [const { Vec::new() }; 2]);
    }

    #[test]
    fn what_sends_names_where_most_goes() {
        let (before, now) = (traffic(&[(0, 1, 100), (0, 2, 100)]), traffic(&[(0, 1, 110), (0, 2, 150), (0, 3, 7), (1, 0, 9)]));
        let peers = Peers::new(Some(&before), &now);
        assert_eq!(partners(&peers, &[Does::Sends, Does::Receives])[..2], [vec![2, 1, 3], vec![0]]);
        assert_eq!(partners(&peers, &[Does::Communicates])[0], [0; 0], "it would be all of them");
        let at_first = Peers::new(None, &now);
        assert_eq!(partners(&at_first, &[Does::Sends])[0], [0; 0], "what was sent lately is not known");
    }

    fn process(pid: u32, spent_ms: u64) -> ProcessInfo {
        ProcessInfo {
            job: JobId::from_bits(1),
            rank: Rank(0),
            node: "n1".parse().unwrap(),
            pid,
            running: true,
            protect: Protect::On,
            joined: true,
            degraded: false,
            counters: Some(Counters { gate_ns: spent_ms * 500_000, pause_ns: spent_ms * 500_000, ..Counters::default() }),
            cpu_ms: None,
            stopped: false,
            logs: Vec::new(),
        }
    }

    #[test]
    fn the_gate_and_pauses_are_a_share_of_the_last_seconds() {
        let mut overhead = Overhead::default();
        let mut of = |at, pid, spent_ms| overhead.handle(Duration::from_secs(at), &process(pid, spent_ms));
        assert_eq!(of(0, 7, 1_000), None, "what was before is not known");
        assert_eq!(of(2, 7, 1_200), Some(0.1));
        assert_eq!(of(10, 7, 2_000), Some(0.1));
        // Nothing more: it passes, and is gone when the window is over.
        assert_eq!(of(16, 7, 2_000), Some(1.0 / 16.0));
        assert_eq!(of(20, 7, 2_000), Some(0.05));
        assert_eq!(of(25, 7, 2_000), Some(0.0));
        assert_eq!(of(26, 8, 0), None, "another process");
        assert_eq!(of(28, 8, 500), Some(0.25));
        assert_eq!(of(30, 8, 90_000), Some(1.0), "threads have waited at once");
        assert_eq!(mean([None, Some(0.5), Some(0.0)].into_iter()), Some(0.25));
        assert_eq!(mean([None].into_iter()), None);
    }
}
