//! Calls between nodes: a question to some or all members, what it is for, and what is done with the answers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::ids::{Epoch, JobId, NodeId, ProcessId};
use radic_wire::peer::{Answer, PeerMessage, Query};

use super::Node;
use super::call::Call;
use super::client::Client;
use super::numbers::{ClientId, ObserverId};
use super::purpose::Purpose;

/// Time that members have to answer a question to all.
pub(super) const GATHER: Duration = Duration::from_millis(1000);

impl Purpose {
    /// The command that has asked for this.
    fn client(&self) -> Option<ClientId> {
        match self {
            Purpose::Status(client)
            | Purpose::Find(client, ..)
            | Purpose::Events(client)
            | Purpose::Checkpoint(client, _)
            | Purpose::Sizes(client, _)
            | Purpose::Node(client)
            | Purpose::Traffic(client)
            | Purpose::Away(client, ..)
            | Purpose::Revive(client, ..)
            | Purpose::Given(client)
            | Purpose::Log(client, _)
            | Purpose::ReadLog(client)
            | Purpose::Fault(client, ..)
            | Purpose::Knows(client, _) => Some(*client),
            Purpose::Name { .. }
            | Purpose::Anew { .. }
            | Purpose::Listener { .. }
            | Purpose::Claim { .. }
            | Purpose::Stable { .. }
            | Purpose::Where { .. }
            | Purpose::Final { .. }
            | Purpose::Release { .. }
            | Purpose::Unstand { .. }
            | Purpose::Stand { .. }
            | Purpose::Hosts { .. }
            | Purpose::Causes(..)
            | Purpose::Line(..)
            | Purpose::Deaths(..)
            | Purpose::Lost(..)
            | Purpose::GoesOn(_) => None,
        }
    }
}

/// A question to other nodes.
#[derive(Debug)]
pub(super) struct Gather {
    purpose: Purpose,
    pub(super) waiting: BTreeSet<NodeId>,
    answers: BTreeMap<NodeId, Answer>,
    /// Nodes that were lost before they had answered, or that this side, without a majority, could not reach. The latter are
    /// members, and nobody knows what they would have said.
    unreached: BTreeSet<NodeId>,
    /// A node that was asked is no member any more, or was out of reach, and has not answered.
    lost: bool,
    pub(super) deadline: Duration,
}

impl Gather {
    pub(super) fn is_for_causes(&self, job: JobId, epoch: Epoch) -> bool {
        matches!(self.purpose, Purpose::Causes(process, of) if process.job == job && of.epoch == epoch)
    }

    pub(super) fn is_for_lost(&self, job: JobId) -> bool {
        matches!(self.purpose, Purpose::Lost(of, _) if of == job)
    }

    pub(super) fn asks_whether_it_goes_on(&self, job: JobId) -> bool {
        matches!(self.purpose, Purpose::GoesOn(of) if of == job)
    }

    pub(super) fn answers(&self) -> impl Iterator<Item = &Answer> {
        self.answers.values()
    }

    /// This node is lost, or out of reach. Returns whether it was waited for.
    pub(super) fn lose(&mut self, node: &NodeId) -> bool {
        let waited = self.waiting.remove(node);
        if waited {
            self.lost = true;
            self.unreached.insert(node.clone());
        }
        waited
    }
}

impl Node {
    pub(super) fn gather_for(&mut self, now: Duration, client: ClientId, purpose: Purpose, query: &Query) {
        self.clients.insert(client, Client::Gathering);
        self.gather(now, purpose, query);
    }

    /// Asks every member. What has not answered by the deadline is left out.
    pub(super) fn gather(&mut self, now: Duration, purpose: Purpose, query: &Query) {
        let all = self.view().map_or(&[][..], |v| &v.members).iter().map(|m| m.id.clone()).collect();
        self.gather_from(now, purpose, query, all, GATHER);
    }

    /// Asks these members, and waits at most `within` for them.
    pub(super) fn gather_from(&mut self, now: Duration, purpose: Purpose, query: &Query, nodes: Vec<NodeId>, within: Duration) {
        let number = self.next_query;
        self.next_query += 1;
        // A node that is no member would never answer.
        let waiting: BTreeSet<_> = nodes.into_iter().filter(|node| self.is_member(node)).collect();
        for node in &waiting {
            self.send(node, PeerMessage::Query(number, query.clone()));
        }
        let none = waiting.is_empty();
        let (answers, unreached, lost, deadline) = (BTreeMap::new(), BTreeSet::new(), false, now + within);
        self.gathers.insert(number, Gather { purpose, waiting, answers, unreached, lost, deadline });
        if none {
            self.finish_gather(now, number);
        }
    }

    pub(super) fn handle_answer(&mut self, now: Duration, from: &NodeId, number: u64, answer: Answer) {
        // A listener that is named too late goes on to expect the caller: an earlier connection of it may lie in the backlog, or it asks again.
        let Some(gather) = self.gathers.get_mut(&number) else { return };
        if !gather.waiting.remove(from) && !gather.unreached.remove(from) {
            return;
        }
        // One listener is enough.
        let found = matches!(answer, Answer::Listener { process: Some(_), .. });
        gather.answers.insert(from.clone(), answer);
        if found || gather.waiting.is_empty() {
            self.finish_gather(now, number);
        }
    }

    /// A command is gone. What it has asked for is void: a terminal that shows nothing would take the job's input and output.
    pub(super) fn forget_questions_of(&mut self, client: ClientId) {
        self.gathers.retain(|_, gather| gather.purpose.client() != Some(client));
    }

    pub(super) fn finish_gather(&mut self, now: Duration, number: u64) {
        let Some(Gather { purpose, answers, mut waiting, unreached, lost, .. }) = self.gathers.remove(&number) else { return };
        // A member that was out of reach is silent: it may have what was asked for.
        waiting.extend(unreached.into_iter().filter(|node| self.is_member(node)));
        match purpose {
            Purpose::Status(client) => self.finish_status(now, client, answers),
            Purpose::Sizes(client, status) => self.finish_sizes(client, *status, answers),
            Purpose::Node(client) => self.finish_node(now, client, answers),
            Purpose::Traffic(client) => self.finish_traffic(client, answers, !waiting.is_empty()),
            Purpose::Find(client, prefix, wanted) => self.find_job(now, client, &prefix, (&answers, &waiting), wanted),
            Purpose::Events(client) => self.finish_events(client, answers),
            Purpose::Name { job, rank, request } => self.finish_name(now, job, rank, &request, answers),
            Purpose::Anew { observer, process, node, then, until, journal } => {
                let of = |answer: &Answer| if let Answer::Forgotten(end) = answer { *end } else { 0 };
                let journal = answers.values().map(of).max().unwrap_or(0).max(journal);
                // A node that is no member any more holds nothing that will be asked for.
                let silent = Some(node).filter(|node| answers.is_empty() && self.is_member(node));
                self.finish_from_nothing(now, (until, journal), (observer, process), silent, then);
            }
            Purpose::Where { observer, process, ask, other } => {
                self.finish_where((observer, process, ask), other, answers.values());
            }
            Purpose::Lost(job, ranks) => {
                let known = answers.values().flat_map(|answer| if let Answer::Lost(known) = answer { &known[..] } else { &[] });
                let unknown = ranks.into_iter().filter(|rank| !known.clone().any(|known| known == rank)).collect();
                self.finish_lost(now, job, unknown, lost || !waiting.is_empty());
            }
            Purpose::Knows(client, job) => {
                self.finish_knows(now, client, job, answers.values(), lost || !waiting.is_empty());
            }
            Purpose::GoesOn(job) => {
                let goes_on = answers.values().any(|answer| *answer == Answer::Knows(true));
                self.finish_goes_on(now, job, goes_on, lost || !waiting.is_empty());
            }
            Purpose::Final { observer, process, ask } => {
                let of = |answer: &Answer| if let Answer::Final(found) = answer { *found } else { None };
                self.finish_final(observer, process, ask, answers.values().find_map(of));
            }
            Purpose::Release { process, holder } => self.finish_release(now, process, &holder, !answers.is_empty()),
            Purpose::Unstand { asker, number, process, stand_in, stood } => {
                let is_done = !answers.is_empty() || !self.is_member(&stand_in);
                self.finish_unstand(now, &asker, number, process, is_done.then_some(stood));
            }
            Purpose::Stand { target, order, stand_in } => {
                let known = !answers.is_empty() || !self.is_member(&stand_in);
                self.finish_stand(now, &target, order, known);
            }
            Purpose::Hosts { process, incarnation, host } => {
                let of = |answer: &Answer| if let Answer::Hosts(has) = answer { Some(has.clone()) } else { None };
                self.finish_hosts(now, process, incarnation, &host, answers.values().find_map(of));
            }
            Purpose::Listener { observer, process, ask, call } => {
                self.finish_look_up(now, (observer, process, ask, call), &answers, waiting, lost);
            }
            Purpose::Claim { observer, process, ask, address } => {
                self.finish_claims(now, (observer, process, ask, address), &answers, &waiting, lost);
            }
            Purpose::Stable { observer, process, stream, receiver, all } => {
                self.finish_stable((observer, process), (stream, receiver, all), &answers);
            }
            Purpose::Causes(process, incarnation) => {
                self.finish_causes(now, (process, incarnation), answers, lost || !waiting.is_empty());
            }
            Purpose::Deaths(process, incarnation) => {
                self.finish_deaths(now, (process, incarnation), answers, lost || !waiting.is_empty());
            }
            Purpose::Line(job, epoch, step) => {
                self.finish_line(now, (job, epoch), step, answers, lost || !waiting.is_empty());
            }
            Purpose::Checkpoint(client, ranks) => self.finish_checkpoint(client, ranks, answers),
            Purpose::Away(client, suspension, resumption) => {
                self.finish_away(now, client, (suspension, resumption), &answers, &waiting);
            }
            Purpose::Revive(client, suspension, resumption) => {
                self.finish_revive(client, (suspension, resumption), answers, &waiting);
            }
            Purpose::Given(client) => self.finish_given(client, answers, &waiting),
            Purpose::Log(client, process) => self.finish_log(client, process, answers),
            Purpose::ReadLog(client) => self.finish_read(client, answers),
            Purpose::Fault(client, node, fault) => self.finish_fault(now, client, &node, fault, answers),
        }
    }

    /// The answers to the question for the listener that a call wants. `lost`: a node that was asked is no member any more.
    fn finish_look_up(
        &mut self,
        now: Duration,
        (observer, process, ask, call): (ObserverId, ProcessId, u64, Call),
        answers: &BTreeMap<NodeId, Answer>,
        silent: BTreeSet<NodeId>,
        lost: bool,
    ) {
        let of = |answer: &Answer| {
            if let Answer::Listener { process, at, .. } = answer { process.map(|process| (process, *at)) } else { None }
        };
        let (found, silent) = (answers.values().find_map(of), silent.into_iter().collect::<Vec<_>>());
        // A member that says nothing may have the listener. It answers later, or is no member any more.
        let is_open = lost || !silent.is_empty() || self.is_announced(call.to);
        let later = found.is_none() && (is_open || self.may_listen_later(now, process, call.to, answers.values()));
        self.finish_listener(now, (observer, process, ask, call), found, later, &silent);
    }

    /// The answers to the question for a process that has moved and holds an address.
    fn finish_claims(
        &mut self,
        now: Duration,
        (observer, process, ask, address): (ObserverId, ProcessId, u64, SocketAddr),
        answers: &BTreeMap<NodeId, Answer>,
        silent: &BTreeSet<NodeId>,
        lost: bool,
    ) {
        let of = |answer: &Answer| if let Answer::Claim { holder, .. } = answer { *holder } else { None };
        let holder = answers.values().find_map(of);
        let is_open = lost || !silent.is_empty();
        let later = holder.is_none() && (is_open || self.may_listen_later(now, process, address, answers.values()));
        self.finish_claim((observer, process, ask), holder, later);
    }
}
