//! Watching, suspecting, probing, confirming: what makes one member accuse another.

use std::time::Duration;

use radic_wire::ids::NodeId;
use radic_wire::membership::{Change, Member, MembershipBody, Refusal};

use super::{CHAIN, Membership, MembershipEvent, Output, Peer, Reason, WITNESSES, peer, ring};

/// Members that may wait for the result of one probe.
const ASKERS: usize = 16;

/// A member that I watch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watched {
    /// When it was last heard, or came under my watch.
    heard: Duration,
    /// When a suspicion of it was last withdrawn.
    cleared: Option<Duration>,
}

/// A member that may be dead.
#[derive(Debug)]
pub(super) struct Suspicion {
    reason: Reason,
    /// Until when its answer counts.
    deadline: Duration,
    /// My own probe failed.
    failed: bool,
    /// Witnesses that have not answered.
    awaited: Vec<NodeId>,
}

/// A probe that the driver carries out.
#[derive(Debug)]
pub(super) struct Probing {
    /// When its result is of no use any more.
    expires: Duration,
    /// Who asked for it, besides my own suspicion.
    askers: Vec<NodeId>,
}

impl Membership {
    /// The next time at which [`Membership::watch`] has something to do.
    pub(super) fn next_watch(&self) -> Option<Duration> {
        let watched = self.roster.as_ref().and_then(|roster| roster.watcher.as_ref());
        let heartbeat = watched.map(|_| self.next_heartbeat.min(self.next_gossip));
        let silence = self.watched_in_peace().map(|(_, due)| due);
        let deadlines = self.suspicions.values().map(|suspicion| suspicion.deadline);
        let probes = self.probes.values().map(|probing| probing.expires);
        heartbeat.into_iter().chain(silence).chain(deadlines).chain(probes).min()
    }

    /// Whom I watch and do not suspect, and when its silence will have lasted too long.
    fn watched_in_peace(&self) -> impl Iterator<Item = (&NodeId, Duration)> {
        let calm = self.watched.iter().filter(|(id, _)| !self.suspicions.contains_key(id) && !self.is_accused(id));
        calm.map(|(id, watched)| (id, watched.heard + self.timing.silence()))
    }

    /// Does what is due: heartbeats, suspicions of the silent, the end of suspicions and probes.
    pub(super) fn watch(&mut self) {
        if self.next_heartbeat <= self.now
            && let Some(roster) = &self.roster
            && let Some(to) = roster.watcher.clone()
        {
            self.next_heartbeat = self.now + self.timing.heartbeat;
            self.outputs.push_back(Output::Heartbeat { to, view: roster.view.number });
        }
        self.gossip();
        let silent: Vec<NodeId> = self.watched_in_peace().filter(|(_, due)| *due <= self.now).map(|(id, _)| id.clone()).collect();
        for id in silent {
            self.suspect(&id, Reason::Silent);
        }
        let now = self.now;
        self.probes.retain(|_, probing| probing.expires > now);
        let expired = self.suspicions.iter().filter(|(_, suspicion)| suspicion.deadline <= now);
        for id in expired.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.confirm(&id);
        }
    }

    /// Asks anybody whether it is there. The answer carries its view number, as the question carries mine. Heartbeats do as much, but
    /// who has missed that its watcher is gone sends them to nobody, and a spare may watch nobody.
    fn gossip(&mut self) {
        let Some(view) = self.view().filter(|view| view.members.len() > 1 && self.next_gossip <= self.now).cloned() else {
            return;
        };
        self.next_gossip = self.now + self.timing.silence() * 3 + self.random.duration(self.timing.silence() * 2);
        if let Some(mute) = self.gossip.take().filter(|mute| !self.is_accused(mute)) {
            self.suspect(&mute, Reason::Unanswered);
        }
        let others: Vec<&Member> = view.members.iter().filter(|member| member.id != self.me.id).collect();
        let chosen = others[self.random.below(others.len() as u64) as usize];
        self.gossip = Some(chosen.id.clone());
        self.say(vec![peer(chosen)], MembershipBody::ProbeRequest(chosen.id.clone()));
    }

    /// A new view: who watches whom has changed.
    pub(super) fn renew_watch(&mut self) {
        let Some(roster) = &self.roster else { return };
        let watched = ring::watched_by(&roster.view, &self.me.id).into_iter().map(|member| member.id.clone());
        let fresh = Watched { heard: self.now, cleared: None };
        self.watched = watched.map(|id| (id.clone(), self.watched.get(&id).copied().unwrap_or(fresh))).collect();
        self.suspicions.retain(|id, _| roster.index.contains_key(id));
        self.probes.retain(|id, _| roster.index.contains_key(id));
        // At once, so that a new watcher, or one that has missed the decision, hears of it.
        self.next_heartbeat = self.now;
        self.next_gossip = self.next_gossip.max(self.now);
    }

    /// We were not running: silence is our own fault, and so are answers that did not come.
    pub(super) fn was_descheduled(&mut self, late: Duration) {
        self.event(MembershipEvent::Descheduled { late });
        for watched in self.watched.values_mut() {
            watched.heard = self.now;
        }
        for (node, suspicion) in std::mem::take(&mut self.suspicions) {
            if suspicion.reason.is_news() {
                self.event(MembershipEvent::Withdrawn { node });
            }
        }
        for probing in self.probes.values_mut() {
            probing.expires = self.now + self.timing.probe;
        }
        self.gossip = None;
        self.proposer.excuse(self.now, &self.timing);
    }

    /// `id` has been heard.
    pub(super) fn alive(&mut self, id: &NodeId) {
        self.gossip.take_if(|asked| asked == id);
        if let Some(watched) = self.watched.get_mut(id) {
            watched.heard = self.now;
        }
        self.pending.retain(|pending| !matches!(&pending.change, Change::Dead(dead) if dead == id));
        let Some(suspicion) = self.suspicions.remove(id) else { return };
        if let Some(watched) = self.watched.get_mut(id) {
            watched.cleared = Some(self.now);
        }
        if suspicion.reason.is_news() {
            self.event(MembershipEvent::Withdrawn { node: id.clone() });
        }
        if let Some(holder) = self.roster.as_ref().and_then(|roster| roster.get(id)).cloned() {
            self.refuse_name(&holder);
        }
    }

    /// Tells those who wait for the name of `holder` that it lives.
    fn refuse_name(&mut self, holder: &Member) {
        let claims = |change: &Change| matches!(change, Change::Join(joiner) if joiner.id.name == holder.id.name);
        let claimants: Vec<_> = self.pending.extract_if(.., |pending| claims(&pending.change)).collect();
        for pending in claimants {
            if let Change::Join(joiner) = pending.change {
                self.refuse(&joiner, Refusal::NameInUse { name: holder.id.name.clone(), address: holder.address });
            }
        }
    }

    pub(super) fn link_broken(&mut self, id: &NodeId) {
        let waiting = self.suspicions.iter_mut().filter(|(_, suspicion)| suspicion.awaited.contains(id));
        let waiting = waiting.map(|(suspect, suspicion)| {
            suspicion.awaited.retain(|witness| witness != id);
            suspect.clone()
        });
        for suspect in waiting.collect::<Vec<_>>() {
            self.settle(&suspect);
        }
        // Only its watcher need act. A link that breaks again and again is worth one round of probes in the time of the watchdog.
        let Some(watched) = self.watched.get(id) else { return };
        let spared = watched.cleared.is_some_and(|cleared| cleared + self.timing.silence() > self.now);
        if !spared && !self.is_accused(id) {
            self.suspect(&id.clone(), Reason::LinkBroken);
        }
    }

    /// Begins to find out whether member `id` is dead.
    pub(super) fn suspect(&mut self, id: &NodeId, reason: Reason) {
        let Some(roster) = &self.roster else { return };
        if *id == self.me.id || self.suspicions.contains_key(id) || !roster.index.contains_key(id) {
            return;
        }
        let silent = self.watched.get(id).map_or(Duration::ZERO, |watched| self.now.saturating_sub(watched.heard));
        let witnesses = self.choose_witnesses(id);
        let awaited = witnesses.iter().map(|witness| witness.id.clone()).collect();
        let suspicion = Suspicion { reason, deadline: self.now + self.timing.probe, failed: false, awaited };
        self.suspicions.insert(id.clone(), suspicion);
        if reason.is_news() {
            self.event(MembershipEvent::Suspected { node: id.clone(), reason, silent });
        }
        self.say(witnesses, MembershipBody::ProbeRequest(id.clone()));
        if reason == Reason::Silent {
            // It may have missed the view that made me its watcher. From this it learns that there is one.
            let suspect = self.peer_of(id);
            self.say(vec![suspect], MembershipBody::Ask);
        }
        self.probe(id, None);
    }

    /// Some members that are as far as I know alive: as many from anywhere as random trials find.
    fn choose_witnesses(&mut self, suspect: &NodeId) -> Vec<Peer> {
        let mut chosen: Vec<Peer> = Vec::with_capacity(WITNESSES);
        let Some(view) = self.view().cloned() else { return chosen };
        let count = view.members.len();
        let start = self.random.below(count as u64) as usize;
        // A stride that spreads the witnesses over the view; after that, whoever comes next.
        let stride = (count / WITNESSES).max(1);
        let spread = (0..WITNESSES).map(|k| start + k * stride).chain((0..count).map(|k| start + k));
        for member in spread.map(|place| &view.members[place % count]) {
            let fit = member.id != *suspect && member.id != self.me.id && !self.is_doubtful(&member.id);
            if chosen.len() < WITNESSES && fit && chosen.iter().all(|peer| peer.id != member.id) {
                chosen.push(peer(member));
            }
        }
        chosen
    }

    /// Suspected, or accused.
    pub(super) fn is_doubtful(&self, id: &NodeId) -> bool {
        self.suspicions.contains_key(id) || self.is_accused(id)
    }

    fn probe(&mut self, id: &NodeId, asker: Option<NodeId>) {
        let expires = self.now + self.timing.probe;
        if let Some(probing) = self.probes.get_mut(id) {
            let new = asker.filter(|asker| !probing.askers.contains(asker) && probing.askers.len() < ASKERS);
            probing.askers.extend(new);
            return;
        }
        self.probes.insert(id.clone(), Probing { expires, askers: asker.into_iter().collect() });
        let member = self.peer_of(id);
        self.outputs.push_back(Output::Probe { member });
    }

    pub(super) fn probe_result(&mut self, id: &NodeId, alive: bool) {
        let probing = self.probes.remove(id);
        let late = probing.is_none();
        let askers = probing.into_iter().flat_map(|probing| probing.askers);
        let askers = askers.map(|asker| self.peer_of(&asker)).collect();
        self.say(askers, MembershipBody::ProbeResult { target: id.clone(), alive });
        if alive {
            self.alive(id);
        } else if !late && let Some(suspicion) = self.suspicions.get_mut(id) {
            suspicion.failed = true;
            self.settle(id);
        }
    }

    pub(super) fn on_probe_request(&mut self, from: &NodeId, target: NodeId) {
        if target == self.me.id {
            let to = self.peer_of(from);
            self.say(vec![to], MembershipBody::ProbeResult { target, alive: true });
        } else if self.roster.as_ref().is_some_and(|roster| roster.index.contains_key(&target)) {
            self.probe(&target, Some(from.clone()));
        }
    }

    /// The witness `from` has probed `target`.
    pub(super) fn on_witness(&mut self, from: &NodeId, target: &NodeId, alive: bool) {
        if self.roster.as_ref().is_none_or(|roster| !roster.index.contains_key(from)) {
            return;
        }
        if alive {
            self.alive(target);
        } else if let Some(suspicion) = self.suspicions.get_mut(target) {
            suspicion.awaited.retain(|witness| witness != from);
            self.settle(target);
        }
    }

    /// Confirms the suspicion of `id` if no answer is missing.
    fn settle(&mut self, id: &NodeId) {
        if self.suspicions.get(id).is_some_and(|suspicion| suspicion.failed && suspicion.awaited.is_empty()) {
            self.confirm(id);
        }
    }

    /// Nobody has reached `id`.
    fn confirm(&mut self, id: &NodeId) {
        let Some(suspicion) = self.suspicions.remove(id) else { return };
        if suspicion.reason != Reason::StillThere {
            self.event(MembershipEvent::Confirmed { node: id.clone(), reason: suspicion.reason });
        }
        self.want(Change::Dead(id.clone()), true);
        let Some(view) = self.view().cloned() else { return };
        for member in ring::before(&view, id, CHAIN) {
            if !self.is_accused(&member.id) {
                self.suspect(&member.id, Reason::WatcherDied);
            }
        }
    }
}
