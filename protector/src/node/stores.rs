//! Which node holds the logs and images of which processes: what hosts tell protectors, and what protectors order of their log
//! service.

use std::collections::BTreeMap;
use std::time::Duration;

use radic_wire::event::EventName;
use radic_wire::ids::{JobId, NodeId, NodeName, ProcessId, Rank};
use radic_wire::limits;
use radic_wire::peer::{Answer, Left, PeerMessage, Query, ToStore};
use radic_wire::process::{FromNode, Protect};
use radic_wire::report::LogSizes;

use super::events::About;
use super::host::Host;
use super::{Input, Node, Output};
pub use crate::logserver::StoreOrder;
use crate::logserver::{Event, Reply, Status, What};
use crate::membership::ring::watcher_of;

impl Input {
    /// What the log service of the node with this name replies.
    pub fn reply(name: &NodeName, reply: Reply) -> Input {
        match reply {
            Reply::Answer(node, number, answer) => Input::StoreAnswer(node, number, answer),
            Reply::LineHeld(node, number, job, held) => Input::LineHeld(node, number, job, held),
            Reply::Causes(ask, sets) => Input::StoreCauses(ask, sets),
            Reply::Sizes(node, number, sizes) => {
                let of = |(process, status)| (process, sizes_of(name, status));
                Input::StoreAnswer(node, number, Answer::Sizes(sizes.into_iter().map(of).collect()))
            }
        }
    }
}

fn sizes_of(name: &NodeName, status: Status) -> LogSizes {
    LogSizes {
        node: name.clone(),
        journal: status.usage.journal,
        payload: status.usage.payload,
        images: status.usage.images,
        committed: status.usage.committed,
        committed_ms: status.committed_ms,
        waits: status.waits,
    }
}

impl From<Event> for Input {
    /// What the log service tells the node.
    fn from(Event { what, process, text }: Event) -> Input {
        let name = match (what, process) {
            (What::Unreadable, Some(process)) => return Input::Unreadable(process, text),
            (What::LineReady(line), Some(process)) => return Input::LineReady(process, line),
            (What::Committed(_), _) => EventName::Checkpoint,
            (What::Refused | What::Useless, _) => EventName::CheckpointFailed,
            (What::LogBound | What::LineReady(_), _) => EventName::Limit,
            (What::Disk | What::DiskWell | What::Unreadable | What::Replica, _) => EventName::Store,
            (What::Intruder, _) => EventName::Refused,
        };
        Input::StoreEvent(name, process, text)
    }
}

/// Time between two events of one kind about one process, if there may be many: the event log is for what is rare.
const SPARSE: Duration = Duration::from_secs(10);

/// How many events about one process were left out, and since when.
#[derive(Debug, Default)]
pub(super) struct Sparse(BTreeMap<(ProcessId, EventName), (Duration, u32)>);

impl Sparse {
    /// Returns None if the event is not to be recorded, else how many of its kind were left out since the last one.
    fn admit(&mut self, now: Duration, process: ProcessId, event: EventName) -> Option<u32> {
        match self.0.get_mut(&(process, event)) {
            Some((last, left_out)) if *last + SPARSE > now => {
                *left_out += 1;
                None
            }
            _ => Some(self.0.insert((process, event), (now, 0)).map_or(0, |(_, left_out)| left_out)),
        }
    }

    fn forget(&mut self, job: JobId) {
        self.0.retain(|(process, _), _| process.job != job);
    }
}

impl Node {
    /// Tells the protector of this node's processes about those of `job`. With None: about all, if the protector or the replica
    /// behind it has changed. Then the observers are told as well.
    pub(super) fn seek_protection(&mut self, now: Duration, job: Option<JobId>) {
        self.leave_idle_protector(job);
        let protector = self.protector().id.clone();
        let replica = self.view().and_then(|view| watcher_of(view, &protector)).map(|member| member.id.clone());
        let both = [Some(protector.clone()), replica];
        let before = std::mem::replace(&mut self.protectors, both);
        if job.is_none() && before == self.protectors {
            return;
        }
        let hosts = self.hosts.values().filter(|h| h.protection().protect == Protect::On && job.is_none_or(|job| h.job() == job));
        let ranks: Vec<(JobId, Vec<Rank>)> = hosts.map(|host| (host.job(), host.ranks().collect())).collect();
        for (job, ranks) in ranks {
            self.protect_ranks(job, ranks);
        }
        if job.is_none() && before[0] != self.protectors[0] {
            let address = self.log_address();
            let observers = self.observers.processes.iter().filter(|(process, _)| !self.is_elsewhere(**process));
            let observers = observers.filter_map(|(_, p)| p.observer());
            let told = observers.map(|observer| Output::Observer(observer, FromNode::Protector(address)));
            self.outputs.extend(told.collect::<Vec<_>>());
            if let Some(before) = &before[0] {
                self.degrade_all(now, before);
            }
        }
    }

    /// Processes keep their protector when other nodes join the ring. A protector that has the log of no process of this node is
    /// not kept: otherwise nodes that join one after the other would all keep the first one that was next to them. `new` is a job
    /// that is not protected yet.
    pub(super) fn leave_idle_protector(&mut self, new: Option<JobId>) {
        let protected = |host: &Host| host.protection().protect == Protect::On && Some(host.job()) != new;
        if !self.hosts.values().any(protected) {
            self.protectors = [None, None];
        }
    }

    /// Tells the protector of this node's processes about these ranks, except those with a log that another node still has.
    pub(super) fn protect_ranks(&mut self, job: JobId, ranks: Vec<Rank>) {
        let Some(host) = self.hosts.get(&job) else { return };
        let ward = Box::new(host.ward());
        let ranks: Vec<_> = ranks.into_iter().filter(|rank| !self.is_elsewhere(ProcessId { job, rank: *rank })).collect();
        let origin = |rank: &Rank| Some((*rank, self.origin_of(ProcessId { job, rank: *rank })?));
        let origins = ranks.iter().filter_map(origin).collect();
        let incarnation = |rank: &Rank| (*rank, self.incarnation_here(ProcessId { job, rank: *rank }));
        let incarnations = ranks.iter().map(incarnation).collect();
        let protector = self.protector().id.clone();
        if !ranks.is_empty() {
            self.send(&protector, PeerMessage::ToStore(job, ToStore::Protect { ranks: incarnations, origins, ward }));
            // A rank that has ended is not to be brought back.
            ranks.into_iter().for_each(|rank| self.tell_end(&protector, ProcessId { job, rank }));
        }
    }

    /// A node speaks about what this node's log service holds for it.
    pub(super) fn handle_to_store(&mut self, now: Duration, from: &NodeId, job: JobId, message: ToStore) {
        match message {
            // The sender has not heard that the job is over: that news has overtaken its message.
            ToStore::Protect { .. } | ToStore::Stand(_) if self.has_ended(job) => {}
            // The sender has not heard that the job has restarted. What is protected of the next epoch would be taken for the
            // earlier one.
            ToStore::Protect { ref ward, .. } if self.protects_later_epoch(job, ward.epoch) => {}
            ToStore::Protect { ranks, origins, ward } => {
                let protection = ward.spec.protection.clone();
                let replicas = protection.replicas;
                let copies = self.handle_protect(now, from, job, &ranks, &origins, *ward);
                let ranks: Vec<_> = ranks.into_iter().map(|(rank, _)| rank).collect();
                self.stored.insert(job);
                self.outputs.push_back(Output::Store(StoreOrder::Configure(job, protection)));
                self.replicate(now, from, job, replicas, &ranks);
                // A process that crashes before it has spoken here is brought back from the copy. The replica is named before the
                // processes are let in, because from then on they are heard.
                self.outputs.extend(copies.into_iter().map(|process| Output::Store(StoreOrder::TakeOver(process))));
            }
            ToStore::Stand(standing) => self.handle_stand(now, from, job, *standing),
            ToStore::Keys { fence, entries } => self.handle_keys(from, job, fence, entries),
            ToStore::Restart { rank, signal } => self.handle_crashed(now, from, job, rank, signal),
            ToStore::Left { rank, status, phase, finals } => self.handle_left(from, job, rank, Left { status, phase, finals }),
            ToStore::Anew(epoch) => {
                self.forget_ends(job);
                self.forget_epochs_before(job, epoch);
                self.forget_gift_before(job, epoch);
                self.clients_hear_of_epoch(job, epoch);
            }
            ToStore::Resume { ranks, .. } if self.gift_of(job).is_none() => self.refuse_to_resume(now, from, job, &ranks),
            ToStore::Resume { ranks, ward } => self.handle_resume(now, from, job, &ranks, *ward),
            ToStore::LineComplete { epoch, line } => self.handle_line_complete(job, epoch, line),
            ToStore::LinesGivenUp { epoch, after, to } => {
                self.outputs.push_back(Output::Store(StoreOrder::LinesGivenUp(job, epoch, after, to)));
            }
            ToStore::Remove(outcome) => {
                self.sparse.forget(job);
                self.registry.handle_over(job);
                self.stored.remove(&job);
                self.forget_wards(job, outcome.clone());
                self.outputs.push_back(Output::Store(StoreOrder::RemoveJob(job)));
                self.with_home(now, job, |home| home.handle_removed(now, outcome.clone()));
                outcome.into_iter().for_each(|outcome| self.clients_hear_of_end(job, &outcome));
                // An order that was long under way may have brought a process back since.
                self.with_host(now, job, |host| host.supersede(now));
            }
        }
    }

    /// A node asks something of this node's log service. The answer comes as [`Input::StoreAnswer`].
    pub(super) fn handle_store_query(&mut self, from: &NodeId, number: u64, query: &Query) {
        if let Query::Stable { receiver, epoch, .. } = *query
            && !self.is_behind(receiver.job, epoch)
            && self.wants_nothing(receiver)
        {
            // The receiver will read nothing more, so no sender need keep anything for it.
            return self.send(from, PeerMessage::Answer(number, Answer::Stable(u64::MAX)));
        }
        let from = from.clone();
        let order = match *query {
            Query::Stable { stream, receiver, epoch } => StoreOrder::StableOf(from, number, receiver, epoch, stream),
            Query::ForgetProcess(process) => StoreOrder::ForgetProcess(from, number, process),
            Query::Sizes => StoreOrder::Sizes(from, number, self.stored.iter().copied().collect()),
            Query::Flows(job) => StoreOrder::Flows(from, number, job),
            Query::Log(process) => StoreOrder::List(from, number, process),
            Query::ReadLog { process, part, position } => {
                StoreOrder::Read(from, number, process, part, position, limits::LOG_CHUNK)
            }
            _ => return,
        };
        self.outputs.push_back(Output::Store(order));
    }

    /// The log service has something for the event log.
    pub(super) fn handle_store_event(&mut self, now: Duration, event: EventName, process: Option<ProcessId>, text: String) {
        let Some(process) = process else { return self.record(now, event, About::default(), text) };
        let left_out = match event {
            EventName::Checkpoint | EventName::CheckpointFailed | EventName::Limit => self.sparse.admit(now, process, event),
            _ => Some(0),
        };
        let text = match left_out {
            None => return,
            Some(0) => text,
            Some(more) => format!("{text} ({more} more since the last one that is shown)"),
        };
        self.record(now, event, About::rank(process.job, process.rank), text);
    }

    /// The ring has changed: what is protected here is replicated at the next node of it. The hosts say so as well, but perhaps
    /// before this node has the view.
    pub(super) fn replicate_all(&mut self, now: Duration) {
        for (job, host, ranks) in self.replicated_wards() {
            self.replicate(now, &host, job, 2, &ranks);
        }
    }

    /// With two replicas, the next node in the ring holds everything as well, if it is a third one.
    pub(super) fn replicate(&mut self, now: Duration, host: &NodeId, job: JobId, replicas: u8, ranks: &[Rank]) {
        let next = self.view().and_then(|view| watcher_of(view, self.me())).filter(|next| next.id != *host);
        let replica = next.filter(|_| replicas == 2).map(|next| next.log_address());
        if replicas == 2 && replica.is_none() {
            let text = format!("{host} and this node have no third one for a replica: there is one copy of each log and image");
            self.record(now, EventName::Limit, About::job(job), text);
        }
        let orders = ranks.iter().map(|rank| Output::Store(StoreOrder::SetReplica(ProcessId { job, rank: *rank }, replica)));
        self.outputs.extend(orders);
        self.tell_stand_in(job, host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_events_of_a_kind_become_few_and_none_is_uncounted() {
        let mut sparse = Sparse::default();
        let process = |rank| ProcessId { job: JobId::from_bits(1), rank: Rank(rank) };
        let at = |seconds: u64| Duration::from_secs(seconds);
        let told: Vec<_> = (0..25).filter_map(|s| sparse.admit(at(s), process(0), EventName::Checkpoint)).collect();
        assert_eq!(told, [0, 9, 9]);
        assert_eq!(sparse.admit(at(24), process(1), EventName::Checkpoint), Some(0), "each process has its own");
        assert_eq!(sparse.admit(at(24), process(0), EventName::Limit), Some(0), "and each kind");
        sparse.forget(JobId::from_bits(1));
        assert!(sparse.0.is_empty());
    }
}
