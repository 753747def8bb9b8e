//! What a lost process did that only others know: its protector collects it before it brings the process back.
//!
//! Where no process waits before it sends ([`LogMode::Causal`]), outcomes of a lost process may be with those alone that have
//! received something that depends on them. So, after its log refuses the lost incarnation:
//!
//! 1. Every node is asked which deaths it knows of, and which ranks are lost ([`Query::Deaths`]).
//! 2. Every node has its processes of the job refuse all lost incarnations, and say what they keep ([`Query::Causes`]); its log
//!    service says what it has for processes of the job.
//! 3. Each rank must have said so, or be lost, or have ended, or not have begun; and no node may know of a death that it did not
//!    know of before: what has died may have passed something on to a process that had answered already. Else it begins again.
//!
//! Then no process can come to know anything of the lost incarnation that is not in the answers, and its log learns them
//! ([`StoreOrder::Fence`]). Until it has, they are told to every protector that collects for another process: the answer of a
//! process that dies now may be needed to bring that one back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use radic_wire::event::EventName;
use radic_wire::ids::{Epoch, Incarnation, JobId, NodeId, ProcessId, Rank};
use radic_wire::peer::{Answer, Deaths, HeldCauses, PeerMessage, Query};
use radic_wire::process::{FromNode, LogMode};
use serde_bytes::ByteBuf;

use super::events::About;
use super::observed::Observed;
use super::purpose::Purpose;
use super::stores::StoreOrder;
use super::wards::Protected;
use super::{Node, Output};

/// Time until all are asked again; it doubles.
const AGAIN: Duration = Duration::from_millis(10);
/// Longest such time: a process that keeps all others waiting is noticed as late as that when it goes on.
const AGAIN_AT_MOST: Duration = Duration::from_millis(250);
/// Questions that wait for answers of processes at once. The oldest is given up: its asker asks again.
const ASKED: usize = 1_024;
/// Time after which it is told which ranks have not said what they keep.
const LONG: Duration = Duration::from_secs(5);
/// Time after which the process is given up: a rank that a user has stopped says nothing for as long as the user likes, and all
/// others wait.
const GIVEN_UP: Duration = Duration::from_secs(120);

/// How far a collection is.
#[derive(Debug)]
enum Stage {
    /// All nodes are asked for deaths.
    Counting,
    /// All nodes are asked what they have. Before, they knew of these deaths.
    Asking(BTreeMap<NodeId, Deaths>),
    /// All nodes are asked again then.
    Resting(Duration),
}

/// What is collected for a process that this node brings back.
#[derive(Debug)]
struct Collection {
    incarnation: Incarnation,
    began: Duration,
    is_told: bool,
    stage: Stage,
    /// Time until all are asked again, if something is missing.
    again: Duration,
}

/// A question of another protector, until all here have said what they keep.
#[derive(Debug)]
struct Asked {
    asker: NodeId,
    number: u64,
    waiting: BTreeSet<ProcessId>,
    waits_for_store: bool,
    epoch: (JobId, Epoch),
    said: Vec<Rank>,
    /// Each once. What is collected for several processes at a time is part of what is answered to each of them: it would double with
    /// every round.
    sets: BTreeSet<ByteBuf>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Collections {
    running: BTreeMap<ProcessId, Collection>,
    asked: BTreeMap<u64, Asked>,
    next: u64,
    /// Processes of a job that have ended here.
    deaths: BTreeMap<JobId, u64>,
}

impl Collections {
    /// When all are asked again, at the earliest.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        let due = |collection: &Collection| if let Stage::Resting(until) = collection.stage { Some(until) } else { None };
        self.running.values().filter_map(due).min()
    }

    /// Nothing of the job is left here.
    pub(super) fn forget(&mut self, job: JobId) {
        self.deaths.remove(&job);
    }
}

impl Node {
    /// The log of a lost process refuses it from now on. What others know of it is collected, if they may know something; then
    /// [`Node::handle_fenced`] is answered.
    pub(super) fn collect(&mut self, now: Duration, process: ProcessId, incarnation: Incarnation) {
        let wards = self.recovery.wards.get(&process.job);
        if wards.is_none_or(|wards| wards.ward.spec.protection.log_mode == LogMode::Waiting) {
            return self.outputs.push_back(Output::Store(StoreOrder::Fence(process, incarnation, Vec::new(), 0)));
        }
        self.outputs.push_back(Output::Store(StoreOrder::Silence(process, incarnation)));
        let collection = Collection { incarnation, began: now, is_told: false, stage: Stage::Counting, again: AGAIN };
        self.collections.running.insert(process, collection);
        self.count_deaths(now, process);
    }

    fn count_deaths(&mut self, now: Duration, process: ProcessId) {
        if let Some(collection) = self.still_collected(process) {
            collection.stage = Stage::Counting;
            let (purpose, epoch) = (Purpose::Deaths(process, collection.incarnation), collection.incarnation.epoch);
            self.gather(now, purpose, &Query::Deaths(process.job, epoch));
        }
    }

    /// Asks all again, of which something was missing.
    pub(super) fn look_at_collections(&mut self, now: Duration) {
        let is_due = |collection: &Collection| matches!(collection.stage, Stage::Resting(until) if until <= now);
        let due = self.collections.running.iter().filter(|(_, of)| is_due(of)).map(|(process, _)| *process);
        due.collect::<Vec<_>>().into_iter().for_each(|process| self.count_deaths(now, process));
    }

    /// The collection for a process, which ends if that is no more to be brought back from here as the incarnation for which it is.
    fn still_collected(&mut self, process: ProcessId) -> Option<&mut Collection> {
        let collection = self.collections.running.get(&process)?;
        let protected = self.recovery.wards.get(&process.job).and_then(|wards| wards.ranks.get(&process.rank));
        if !protected.is_some_and(|protected| protected.recovering && protected.incarnation == collection.incarnation) {
            self.collections.running.remove(&process);
        }
        self.collections.running.get_mut(&process)
    }

    fn rest(&mut self, now: Duration, process: ProcessId, missing: &[Rank]) {
        let Some(collection) = self.collections.running.get_mut(&process) else { return };
        collection.stage = Stage::Resting(now + collection.again);
        collection.again = (collection.again * 2).min(AGAIN_AT_MOST);
        let waited = now.saturating_sub(collection.began);
        if waited < LONG {
            return;
        }
        let ranks: Vec<String> = missing.iter().take(20).map(Rank::to_string).collect();
        let silent =
            if ranks.is_empty() { "not all nodes have".to_owned() } else { format!("ranks {} have not", ranks.join(", ")) };
        if waited >= GIVEN_UP && !ranks.is_empty() {
            self.collections.running.remove(&process);
            let why = format!("{silent} said within {} s what they know of it: is one stopped?", GIVEN_UP.as_secs());
            self.handle_unreadable(now, process, why);
        } else if !std::mem::replace(&mut collection.is_told, true) {
            let text = format!("rank {}: {silent} said yet what is known of it", process.rank);
            self.record(now, EventName::Limit, About::rank(process.job, process.rank), text);
        }
    }

    /// The answers of all nodes to the question for deaths. `silent`: some have not answered.
    pub(super) fn finish_deaths(
        &mut self,
        now: Duration,
        (process, incarnation): (ProcessId, Incarnation),
        answers: BTreeMap<NodeId, Answer>,
        silent: bool,
    ) {
        let Some(collection) = self.still_collected(process).filter(|of| of.incarnation == incarnation) else { return };
        if !matches!(collection.stage, Stage::Counting) {
            return;
        }
        if silent {
            return self.rest(now, process, &[]);
        }
        let of = |(node, answer)| if let Answer::Deaths(deaths) = answer { Some((node, *deaths)) } else { None };
        let deaths: BTreeMap<NodeId, Deaths> = answers.into_iter().filter_map(of).collect();
        let mut lost: BTreeMap<Rank, Incarnation> = BTreeMap::from([(process.rank, incarnation)]);
        let epoch = incarnation.epoch;
        for (rank, next) in deaths.values().flat_map(|deaths| &deaths.lost) {
            let known = lost.entry(*rank).or_default();
            *known = (*known).max(*next);
        }
        collection.stage = Stage::Asking(deaths);
        let query = Query::Causes { job: process.job, epoch, lost: lost.into_iter().collect() };
        self.gather(now, Purpose::Causes(process, incarnation), &query);
    }

    /// The answers of all nodes to the question for causes. `silent`: some have not answered.
    pub(super) fn finish_causes(
        &mut self,
        now: Duration,
        (process, incarnation): (ProcessId, Incarnation),
        answers: BTreeMap<NodeId, Answer>,
        silent: bool,
    ) {
        let view = self.view_number();
        let ranks = self.recovery.wards.get(&process.job).map_or(0, |wards| wards.ward.placement.rank_nodes.len()) as u32;
        let Some(collection) = self.still_collected(process).filter(|of| of.incarnation == incarnation) else { return };
        let Stage::Asking(before) = &collection.stage else { return };
        let of = |(node, answer)| if let Answer::Causes(held) = answer { Some((node, *held)) } else { None };
        let held: BTreeMap<NodeId, HeldCauses> = answers.into_iter().filter_map(of).collect();
        let is_same = held.len() == before.len() && held.iter().all(|(node, held)| before.get(node) == Some(&held.deaths));
        let mut known: BTreeSet<Rank> =
            held.values().flat_map(|held| held.said.iter().chain(&held.deaths.over)).copied().collect();
        known.extend(held.values().flat_map(|held| &held.deaths.lost).map(|(rank, _)| *rank));
        let missing: Vec<Rank> = (0..ranks).map(Rank).filter(|rank| *rank != process.rank && !known.contains(rank)).collect();
        if let Some(end) = held.values().find_map(|held| held.end.clone()) {
            self.collections.running.remove(&process);
            self.lines.handle_end(process.job, incarnation.epoch, end);
            self.count_as_ended(now, process);
            return;
        }
        if silent || !is_same || !missing.is_empty() || held.values().any(|held| held.deaths.view != view) {
            return self.rest(now, process, &missing);
        }
        self.collections.running.remove(&process);
        let line = held.values().map(|held| held.line).max().unwrap_or(0);
        self.lines.handle_complete(process.job, incarnation.epoch, line);
        let sets: BTreeSet<ByteBuf> = held.into_values().flat_map(|held| held.sets).collect();
        let sets = sets.into_iter().map(ByteBuf::into_vec).collect();
        self.outputs.push_back(Output::Store(StoreOrder::Fence(process, incarnation, sets, line)));
    }

    // ---- what is held here

    /// The deaths that this node knows of which concern this epoch of the job.
    pub(super) fn deaths(&self, job: JobId, epoch: Epoch) -> Deaths {
        let view = self.view_number();
        let lost =
            self.protected_here(job, epoch).filter(|(_, of)| of.recovering).map(|(rank, of)| (rank, of.incarnation)).collect();
        let processes = self.collections.deaths.get(&job).copied().unwrap_or(0);
        Deaths { view, processes, lost, over: self.over_here(job, epoch) }
    }

    /// Ranks of this epoch of the job whose protector this node is.
    fn protected_here(&self, job: JobId, epoch: Epoch) -> impl Iterator<Item = (Rank, &Protected)> {
        let all = self.recovery.wards.get(&job).into_iter().flat_map(|wards| &wards.ranks);
        all.filter(move |(_, of)| of.protector.is_none() && of.incarnation.epoch == epoch).map(|(rank, of)| (*rank, of))
    }

    /// Ranks of a job that keep nothing, and of which nothing more can come.
    fn over_here(&self, job: JobId, epoch: Epoch) -> Vec<Rank> {
        let is_welcome = |rank: Rank| self.observers.processes.get(&ProcessId { job, rank }).is_some_and(Observed::is_welcome);
        let of_host = self.hosts.get(&job).filter(|host| host.epoch() == epoch).into_iter().flat_map(|host| {
            host.ranks().filter(move |rank| host.keeps_nothing(*rank) || host.pid(*rank).is_some() && !is_welcome(*rank))
        });
        let is_over = |of: &Protected| of.hopeless.is_some() || of.left.is_some();
        let of_protector = self.protected_here(job, epoch).filter(|(_, of)| is_over(of)).map(|(rank, _)| rank);
        let of_home = self.homes.get(&job).filter(|home| home.epoch() == epoch).into_iter().flat_map(|home| {
            let ranks = home.placement().rank_nodes.len() as u32;
            (0..ranks).map(Rank).filter(|rank| home.has_ended(*rank) || home.has_left(*rank))
        });
        of_host.chain(of_protector).chain(of_home).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// A protector collects: this node's processes are told and asked, and its log service.
    pub(super) fn handle_causes_query(
        &mut self,
        asker: &NodeId,
        number: u64,
        (job, epoch): (JobId, Epoch),
        lost: &[(Rank, Incarnation)],
    ) {
        for (rank, incarnation) in lost {
            let known = self.recovery.restarted.entry(ProcessId { job, rank: *rank }).or_default();
            *known = (*known).max(*incarnation);
        }
        _ = self.lines.complete_for_recovery(job, epoch);
        let id = self.collections.next;
        self.collections.next += 1;
        let sets = self.collected_here(job, epoch);
        let is_lost = |process: &ProcessId| lost.iter().any(|(rank, _)| *rank == process.rank);
        let mut waiting = BTreeSet::new();
        let runs = self.hosts.get(&job).is_some_and(|host| host.epoch() == epoch);
        for (process, observed) in self.observers.processes.iter().filter(|(of, _)| runs && of.job == job && !is_lost(of)) {
            if let Some(observer) = observed.welcome_observer() {
                let question = FromNode::Collect { ask: id, lost: lost.to_vec() };
                self.outputs.push_back(Output::Observer(observer, question));
                self.outputs.push_back(Output::Nudge(observer));
                waiting.insert(*process);
            }
        }
        self.outputs.push_back(Output::Store(StoreOrder::Causes(id, job, epoch)));
        let asked =
            Asked { asker: asker.clone(), number, waiting, waits_for_store: true, epoch: (job, epoch), said: Vec::new(), sets };
        self.collections.asked.insert(id, asked);
        if self.collections.asked.len() > ASKED {
            self.collections.asked.pop_first();
        }
    }

    /// What this node is collecting for processes of a job, as far as it has been answered.
    fn collected_here(&self, job: JobId, epoch: Epoch) -> BTreeSet<ByteBuf> {
        let answers = self.gathers.values().filter(|gather| gather.is_for_causes(job, epoch)).flat_map(|gather| gather.answers());
        let sets = answers.flat_map(|answer| if let Answer::Causes(held) = answer { held.sets.as_slice() } else { &[] });
        sets.cloned().collect()
    }

    /// A process says what it keeps.
    pub(super) fn handle_holds(&mut self, process: ProcessId, ask: u64, causes: ByteBuf) {
        let Some(asked) = self.collections.asked.get_mut(&ask) else { return };
        if asked.waiting.remove(&process) {
            asked.said.push(process.rank);
            asked.sets.insert(causes);
        }
        self.answer_if_complete(ask);
    }

    /// The log service says what it has for the processes of the job.
    pub(super) fn handle_store_causes(&mut self, ask: u64, sets: Vec<Vec<u8>>) {
        let Some(asked) = self.collections.asked.get_mut(&ask) else { return };
        asked.waits_for_store = false;
        asked.sets.extend(sets.into_iter().map(Into::into));
        self.answer_if_complete(ask);
    }

    /// A process of this node has ended, or runs another program: it says nothing any more.
    pub(super) fn note_death(&mut self, process: ProcessId) {
        *self.collections.deaths.entry(process.job).or_default() += 1;
        let asked = self.collections.asked.iter_mut().filter_map(|(id, of)| of.waiting.remove(&process).then_some(*id));
        asked.collect::<Vec<_>>().into_iter().for_each(|id| self.answer_if_complete(id));
    }

    fn answer_if_complete(&mut self, ask: u64) {
        let is_complete = |asked: &Asked| asked.waiting.is_empty() && !asked.waits_for_store;
        if self.collections.asked.get(&ask).is_none_or(|asked| !is_complete(asked)) {
            return;
        }
        let Some(Asked { asker, number, epoch: (job, epoch), said, sets, .. }) = self.collections.asked.remove(&ask) else {
            return;
        };
        let line = self.lines.complete_for_recovery(job, epoch);
        let sets = sets.into_iter().collect();
        let held = HeldCauses { deaths: self.deaths(job, epoch), said, sets, line, end: self.lines.end_of(job, epoch) };
        self.send(&asker, PeerMessage::Answer(number, Answer::Causes(Box::new(held))));
    }
}
