//! Jobs that are suspended and resumed. `radic suspend` has all ranks stopped, writes down what their protectors hold and what
//! their home knows, and ends the job. `radic resume` gives the log and images of each rank to its new protector, as the rank
//! itself would have done. Then the ordinary way back begins: a home is made, and the protectors fence the ranks and bring them
//! back.
//!
//! That is enough because of G1 to G3: whatever left a rank depends on determinants that its protector had before. So the logs of
//! all ranks at one moment are a state to which every rank can be brought, whatever it was doing then. What was under way between
//! the ranks is in the outboxes of images and of re-execution. The ranks are stopped only to have such a moment while logs are
//! read one after the other.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use radic_wire::event::EventName;
use radic_wire::ids::{Epoch, Incarnation, JobId, NodeId, ProcessId, Rank};
use radic_wire::job::Ward;
use radic_wire::limits;
use radic_wire::peer::{FromHost, Gift, PeerMessage, Revival, SessionId, ToHome, ToSession, ToStore};
use radic_wire::suspension::{Resumption, Suspension};

use super::client::Client;
use super::events::About;
use super::home::Home;
use super::numbers::ClientId;
use super::stores::StoreOrder;
use super::{Node, Output};
use crate::commands::suspend::SILENCE;

impl Node {
    /// The ranks of a job here are stopped.
    pub(super) fn tell_home_frozen(&mut self, job: JobId) {
        let Some(host) = self.hosts.get(&job) else { return };
        let here = self.config.me.data;
        let origin = |rank| (rank, self.origin_of(ProcessId { job, rank }).unwrap_or(here));
        let (origins, home, epoch) = (host.ranks().map(origin).collect(), host.home().clone(), host.epoch());
        let said = FromHost::Frozen(Ok(origins));
        self.send(&home, PeerMessage::ToHome(job, ToHome::Host { epoch, said }));
    }

    /// All ranks of a job whose home is here are stopped. The command that writes the job down gets what is known of it, with the
    /// key space.
    pub(super) fn tell_frozen(&mut self, now: Duration, session: SessionId, mut suspension: Box<Suspension>) {
        let job = suspension.job;
        let ward = self.hosts.get(&job).map(|host| host.ward()).filter(|ward| ward.fence == suspension.ward.fence);
        let result = match ward {
            Some(ward) => {
                suspension.ward.keys = ward.keys;
                suspension.line = self.lines.newest(job);
                self.record(now, EventName::Note, About::job(job), "its ranks are stopped, to be suspended".to_owned());
                Ok(suspension)
            }
            None => Err("its home is in the middle of a fence".to_owned()),
        };
        let node = session.node.clone();
        self.send(&node, PeerMessage::ToSession(session, ToSession::Frozen(result)));
    }

    /// A command says something here. While it suspends a job that shows that it gets on.
    pub(super) fn hear_suspender(&mut self, now: Duration, client: ClientId) {
        if let Some(Client::Suspending { until: Some(until), .. }) = self.clients.get_mut(&client) {
            *until = now + SILENCE;
        }
    }

    /// When a command that suspends a job will have said nothing for too long.
    pub(super) fn next_silent_suspender(&self) -> Option<Duration> {
        self.clients.values().filter_map(|c| if let Client::Suspending { until, .. } = c { *until } else { None }).min()
    }

    /// Gives up the commands that have said nothing for too long while they suspend a job: they were stopped, or their disk does not answer. The
    /// ranks would stay stopped for as long as that lasts.
    pub(super) fn end_silent_suspenders(&mut self, now: Duration) {
        let late = |(client, state): (&ClientId, &Client)| match state {
            Client::Suspending { job, home, until: Some(until) } if *until <= now => Some((*client, *job, home.clone())),
            _ => None,
        };
        let late: Vec<_> = self.clients.iter().filter_map(late).collect();
        let seconds = SILENCE.as_secs();
        for (client, job, home) in late {
            let text =
                format!("the command that suspends it has said nothing for {seconds} s: it is given up, and the ranks go on");
            self.record(now, EventName::Note, About::job(job), text);
            let (session, me) = (self.session(client), self.me().name.clone());
            self.send(&home, PeerMessage::ToHome(job, ToHome::SuspenderHangs(session)));
            self.fail(
                client,
                format!(
                    "job {job} is not suspended and goes on: {me} heard nothing of this command for {seconds} s, so the command was stopped, or the \
                     disk of its folder did not answer; see to that, and suspend the job again"
                ),
            );
        }
    }

    /// A job that was suspended is to be resumed somewhere. Nothing of it may be here, and what it left is forgotten.
    pub(super) fn revive(&mut self, from: &NodeId, revival: &Revival) -> Result<(), String> {
        let job = revival.job;
        if self.knows(job) {
            return Err(not_away(job, self.me()));
        }
        if !self.begin_life(job, revival.life) {
            return Err(format!("another command has tried to resume job {job}; try again"));
        }
        self.await_giver(from, job);
        self.registry.handle_resumed(job);
        self.homes.remove(&job);
        self.over.retain(|over| *over != job);
        self.ended.retain(|process| process.job != job);
        self.forget_end(job);
        self.lines.forget(job);
        self.outputs.push_back(Output::Store(StoreOrder::Revive(Box::new(revival.clone()))));
        Ok(())
    }

    /// A job that was suspended goes on with this node as its home. Its protectors have what they need.
    pub(super) fn resume_job(
        &mut self,
        now: Duration,
        suspension: &Suspension,
        resumption: &Resumption,
        protectors: &[NodeId],
        session: SessionId,
    ) {
        let Suspension { job, ref ward, ref origins, ref output, .. } = *suspension;
        let (placement, ranks) = (&ward.placement, ward.spec.ranks);
        let whole = [origins.len(), output.len(), resumption.incarnations.len()] == [ranks as usize; 3];
        let good = ward.spec.validate().is_ok() && placement.is_valid(ranks) && placement.home() == self.me();
        let alive = placement.nodes.iter().chain(protectors).all(|node| self.is_member(node));
        let room = self.homes.len() - self.over.len() < limits::JOBS;
        if !(whole && good && alive && room && protectors.len() == placement.nodes.len()) {
            let node = session.node.clone();
            return self.send(&node, PeerMessage::ToSession(session, ToSession::NoSuchJob));
        }
        let nodes: Vec<_> = placement.nodes.iter().map(|node| node.name.as_str()).collect();
        let text = format!("{ranks} ranks of {} go on, on {}", ward.spec.command_line(), nodes.join(", "));
        self.record(now, EventName::JobStart, About::job(job), text);
        let orders = gift(suspension, resumption, protectors).by_protector();
        let by_rank = orders.iter().flat_map(|(node, ranks)| ranks.iter().map(|(rank, ..)| (*rank, node.clone()))).collect();
        self.add_home(job, Home::resume(now, self.seat(), suspension, by_rank, session));
        self.with_home(now, job, |_| ());
        for (node, ranks) in orders {
            let ward = Box::new(ward.clone());
            self.send(&node, PeerMessage::ToStore(job, ToStore::Resume { ranks, ward }));
        }
    }

    /// Nothing is kept here of what the home of a resumed job says that this node was given.
    pub(super) fn refuse_to_resume(&mut self, now: Duration, home: &NodeId, job: JobId, ranks: &[(Rank, Incarnation, IpAddr)]) {
        let why = "what a command had given for it is forgotten; it can be resumed again";
        for (rank, incarnation, _) in ranks {
            let (rank, incarnation, why) = (*rank, *incarnation, why.to_owned());
            self.record(now, EventName::Lost, About::rank(job, rank), format!("rank {rank}: {why}"));
            self.send(home, PeerMessage::ToHome(job, ToHome::Lost { rank, incarnation, why }));
        }
    }

    /// This node has the logs and images of these ranks of a resumed job, and brings them back.
    pub(super) fn handle_resume(
        &mut self,
        now: Duration,
        home: &NodeId,
        job: JobId,
        ranks: &[(Rank, Incarnation, IpAddr)],
        mut ward: Ward,
    ) {
        if self.protects_later_epoch(job, ward.epoch) {
            return;
        }
        self.update(&mut ward);
        let replicas = ward.spec.protection.replicas;
        self.stored.insert(job);
        self.outputs.push_back(Output::Store(StoreOrder::Configure(job, ward.spec.protection.clone())));
        let mut hosts: BTreeMap<NodeId, Vec<Rank>> = BTreeMap::new();
        for (rank, ..) in ranks {
            hosts.entry(ward.placement.node_of(*rank).unwrap_or(home).clone()).or_default().push(*rank);
        }
        for (host, ranks) in &hosts {
            self.replicate(now, host, job, replicas, ranks);
        }
        self.forget_giver(job);
        self.guard(job, ranks, ward);
        for (rank, ..) in ranks {
            self.recover(now, ProcessId { job, rank: *rank });
        }
        hosts.into_keys().for_each(|host| self.tell_stand_in(job, &host));
    }

    /// A home misses ranks of a job that was resumed. If a command has given logs of some of them here, and the home that was to
    /// say that the job goes on was lost before, this node brings back all ranks of which it was given the logs. No other node
    /// has a later log of one: none was brought back. What was given for an epoch that is over brings nothing back.
    pub(super) fn go_on_with_gift(&mut self, now: Duration, home: &NodeId, job: JobId, epoch: Epoch, missed: &[Rank]) {
        let me = self.me().clone();
        let Some(gift) = self.gift_of(job).filter(|gift| gift.ward.epoch == epoch) else { return };
        let (ward, given) = (gift.ward.clone(), gift.by_protector().remove(&me).unwrap_or_default());
        if given.iter().any(|(rank, ..)| missed.contains(rank)) {
            self.handle_resume(now, home, job, &given, ward);
        }
    }
}

/// What a command has given to the log services of these protectors, one for each node of the placement.
pub(super) fn gift(suspension: &Suspension, resumption: &Resumption, protectors: &[NodeId]) -> Gift {
    let ranks = resumption.incarnations.iter().copied().zip(suspension.origins.iter().copied()).collect();
    Gift { job: suspension.job, ward: suspension.ward.clone(), protectors: protectors.to_vec(), ranks }
}

/// Why a job cannot be resumed of which this node has something.
pub(super) fn not_away(job: JobId, node: &NodeId) -> String {
    format!("job {job} runs, or is not gone yet; {} has some of it", node.name)
}
