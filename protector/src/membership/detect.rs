//! Watching, suspecting, probing, confirming: what makes one member accuse another.

use std::time::Duration;

use radic_wire::ids::NodeId;
use radic_wire::membership::{Change, Member, MembershipBody, Refusal};

use super::evidence::Evidence;
use super::{CHAIN, Membership, MembershipEvent, Output, Peer, Reason, WITNESSES, peer, ring};

/// Members that may wait for the result of one probe.
const ASKERS: usize = 16;

/// A member that this one watches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watched {
    /// When it was last heard, or this member began to watch it.
    heard: Duration,
    /// When a suspicion of it was last withdrawn.
    cleared: Option<Duration>,
}

/// A member that may be dead.
#[derive(Debug)]
pub(super) struct Suspicion {
    reason: Reason,
    since: Duration,
    /// When it is confirmed dead, whether witnesses have answered or not. The own probe is over by then.
    deadline: Duration,
    /// When the members that it watches are looked at, if it has not answered by then: perhaps no live member watches them any
    /// more.
    bereaves: Option<Duration>,
    /// The own probe is over, without an answer.
    failed: bool,
    /// Witnesses that have not answered.
    awaited: Vec<NodeId>,
    evidence: Evidence,
}

/// A probe that the driver carries out.
#[derive(Debug)]
pub(super) struct Probing {
    /// When it is over without an answer.
    expires: Duration,
    /// The machine of the probed member has taken the connection.
    reached: bool,
    /// The members that asked for it, besides the own suspicion.
    askers: Vec<NodeId>,
}

impl Membership {
    /// The next time at which [`Membership::watch`] has something to do.
    pub(super) fn next_watch(&self) -> Option<Duration> {
        let watched = self.roster.as_ref().and_then(|roster| roster.watcher.as_ref());
        let heartbeat = watched.map(|_| self.next_heartbeat.min(self.next_gossip));
        let silence = self.watched_in_peace().map(|(_, due)| due).min();
        let deadlines = self.suspicions.values().map(|suspicion| suspicion.bereaves.unwrap_or(suspicion.deadline)).min();
        let probes = self.probes.values().map(|probing| probing.expires).min();
        let verdict = [silence, deadlines, probes].into_iter().flatten().min().map(|due| due.max(self.judge_at));
        // This shows whether the member was running all the time while others had to answer.
        let probing = !self.suspicions.is_empty() || !self.probes.is_empty();
        let tick = probing.then(|| self.now + self.timing.tick());
        [heartbeat, verdict, tick].into_iter().flatten().min()
    }

    /// The members that this one watches and does not suspect, and when their silence will have lasted too long.
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
        if self.judge_at <= self.now {
            self.judge();
        }
    }

    /// Draws the consequences of what has not come in time.
    fn judge(&mut self) {
        let silent: Vec<NodeId> = self.watched_in_peace().filter(|(_, due)| *due <= self.now).map(|(id, _)| id.clone()).collect();
        for id in silent {
            self.suspect(&id, Reason::Silent);
        }
        let now = self.now;
        let unanswered = self.probes.iter().filter(|(_, probing)| probing.expires <= now);
        for id in unanswered.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.probe_over(&id, false);
        }
        let mute = self.suspicions.iter().filter(|(_, suspicion)| suspicion.bereaves.is_some_and(|at| at <= now));
        for id in mute.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.suspicions.entry(id.clone()).and_modify(|suspicion| suspicion.bereaves = None);
            self.suspect_before(&id);
        }
        let over = self.suspicions.iter().filter(|(_, suspicion)| suspicion.deadline <= now);
        for id in over.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.confirm(&id);
        }
    }

    /// Asks a random member whether it is there. The question and the answer carry view numbers. Heartbeats carry them as well,
    /// but a member that has not heard of its watcher's removal sends them to no live member, and a spare may watch none.
    fn gossip(&mut self) {
        let Some(view) = self.view().filter(|view| view.members.len() > 1 && self.next_gossip <= self.now).cloned() else {
            return;
        };
        self.next_gossip = self.now + self.timing.silence() * 3 + self.random.duration(self.timing.silence() * 2);
        if let Some(mute) = self.gossip.take().filter(|mute| !self.is_accused(mute)) {
            self.suspect(&mute, Reason::Unanswered);
        }
        let mine = self.roster.as_ref().map_or(0, |roster| roster.mine);
        let other = self.random.below(view.members.len() as u64 - 1) as usize;
        let chosen = &view.members[if other < mine { other } else { other + 1 }];
        self.gossip = Some(chosen.id.clone());
        self.say(vec![peer(chosen)], MembershipBody::ProbeRequest(chosen.id.clone()));
    }

    /// A new view: the watchers have changed.
    pub(super) fn renew_watch(&mut self) {
        let Some(roster) = &self.roster else { return };
        let watched = ring::watched_by(&roster.view, &self.me.id).into_iter().map(|member| member.id.clone());
        let fresh = Watched { heard: self.now, cleared: None };
        self.watched = watched.map(|id| (id.clone(), self.watched.get(&id).copied().unwrap_or(fresh))).collect();
        self.suspicions.retain(|id, _| roster.index.contains_key(id));
        self.probes.retain(|id, _| roster.index.contains_key(id));
        // This heartbeat goes at once, so that a new watcher, or one that has missed the decision, hears of it.
        self.next_heartbeat = self.now;
        self.next_gossip = self.next_gossip.max(self.now);
    }

    /// This member was not running: the silence may be its own fault, and so may missing answers.
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
            probing.expires = self.now + if probing.reached { self.timing.answer } else { self.timing.probe };
        }
        self.gossip = None;
        self.proposer.excuse(self.now, &self.timing);
    }

    /// This member was called late, but not so late as to drop its suspicions. What has come meanwhile is read before any member
    /// is judged. It is not granted twice in a row, because a member that is always late must judge as well.
    pub(super) fn was_late(&mut self, late: Duration) {
        for suspicion in self.suspicions.values_mut() {
            suspicion.evidence.late = suspicion.evidence.late.max(late);
        }
        if self.judge_at + self.timing.heartbeat <= self.now {
            self.judge_at = self.now + self.timing.tick();
        }
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

    /// Tells the members that wait for the name of `holder` that it lives.
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
        let awaited: Vec<NodeId> = witnesses.iter().map(|witness| witness.id.clone()).collect();
        let evidence = Evidence { silent, asked: awaited.len(), ..Evidence::default() };
        let suspicion = Suspicion {
            reason,
            since: self.now,
            deadline: self.now + self.timing.probe + self.timing.hearing(),
            bereaves: Some(self.now + self.timing.bereaves()),
            failed: false,
            awaited,
            evidence,
        };
        self.suspicions.insert(id.clone(), suspicion);
        if reason.is_news() {
            self.event(MembershipEvent::Suspected { node: id.clone(), reason, silent });
        }
        self.say(witnesses, MembershipBody::ProbeRequest(id.clone()));
        if reason == Reason::Silent {
            // The suspect may have missed the view that made this member its watcher. This message tells the suspect that it has
            // a watcher.
            let suspect = self.peer_of(id);
            self.say(vec![suspect], MembershipBody::Ask);
        }
        self.probe(id, None);
    }

    /// Some members that this one takes for alive, from anywhere in the view, as many as random trials find.
    fn choose_witnesses(&mut self, suspect: &NodeId) -> Vec<Peer> {
        let mut chosen: Vec<Peer> = Vec::with_capacity(WITNESSES);
        let Some(view) = self.view().cloned() else { return chosen };
        let count = view.members.len();
        let start = self.random.below(count as u64) as usize;
        // A stride that spreads the witnesses over the view. After that, the next ones in order.
        let stride = (count / WITNESSES).max(1);
        let spread = (0..WITNESSES).map(|k| start + k * stride).chain((0..count).map(|k| start + k));
        for member in spread.map(|place| &view.members[place % count]) {
            let fit = member.id != *suspect && member.id != self.me.id && !self.is_unlikely(&member.id);
            if chosen.len() < WITNESSES && fit && chosen.iter().all(|peer| peer.id != member.id) {
                chosen.push(peer(member));
            }
        }
        chosen
    }

    /// Whether the member is accused, or suspected for more than being watched by a suspect.
    fn is_unlikely(&self, id: &NodeId) -> bool {
        self.is_accused(id) || self.suspicions.get(id).is_some_and(|suspicion| suspicion.reason != Reason::WatcherDied)
    }

    /// Whether the member is suspected or accused.
    pub(super) fn is_doubtful(&self, id: &NodeId) -> bool {
        self.suspicions.contains_key(id) || self.is_accused(id)
    }

    fn probe(&mut self, id: &NodeId, asker: Option<NodeId>) {
        if let Some(probing) = self.probes.get_mut(id) {
            let new = asker.filter(|asker| !probing.askers.contains(asker) && probing.askers.len() < ASKERS);
            probing.askers.extend(new);
        } else {
            let probing = Probing { expires: self.now + self.timing.probe, reached: false, askers: asker.into_iter().collect() };
            self.probes.insert(id.clone(), probing);
            let member = self.peer_of(id);
            self.outputs.push_back(Output::Probe { member });
        }
        self.await_probe(id);
    }

    /// The machine of `id` has taken the connection. It is there, so its daemon has more time to answer, once.
    pub(super) fn probe_reached(&mut self, id: &NodeId) {
        let Some(probing) = self.probes.get_mut(id).filter(|probing| !probing.reached) else { return };
        probing.reached = true;
        probing.expires = self.now + self.timing.answer;
        self.await_probe(id);
    }

    /// The suspicion of `id` lasts as long as the probe, and until what the witnesses have found in the same time has come.
    fn await_probe(&mut self, id: &NodeId) {
        let (Some(probing), Some(suspicion)) = (self.probes.get(id), self.suspicions.get_mut(id)) else { return };
        suspicion.evidence.reached |= probing.reached;
        suspicion.deadline = suspicion.deadline.max(probing.expires + self.timing.hearing());
    }

    /// The driver has found out that `id` answers, or that it does not listen there any more.
    pub(super) fn probe_result(&mut self, id: &NodeId, alive: bool) {
        if let Some(suspicion) = self.suspicions.get_mut(id) {
            suspicion.evidence.refused |= !alive;
        }
        self.probe_over(id, alive);
    }

    fn probe_over(&mut self, id: &NodeId, alive: bool) {
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
            let asked = suspicion.awaited.len();
            suspicion.awaited.retain(|witness| witness != from);
            suspicion.evidence.denied += asked - suspicion.awaited.len();
            self.settle(target);
        }
    }

    /// Confirms the suspicion of `id` if no answer is missing.
    fn settle(&mut self, id: &NodeId) {
        if self.suspicions.get(id).is_some_and(|suspicion| suspicion.failed && suspicion.awaited.is_empty()) {
            self.confirm(id);
        }
    }

    /// No probe has reached `id`.
    fn confirm(&mut self, id: &NodeId) {
        let Some(suspicion) = self.suspicions.remove(id) else { return };
        if suspicion.reason != Reason::StillThere {
            let evidence = Evidence { took: self.now - suspicion.since, ..suspicion.evidence };
            self.event(MembershipEvent::Confirmed { node: id.clone(), reason: suspicion.reason, evidence });
        }
        self.want(Change::Dead(id.clone()), true);
        self.suspect_before(id);
    }

    /// The members that `id` watches have perhaps lost their watcher: some of them are looked at.
    fn suspect_before(&mut self, id: &NodeId) {
        let Some(view) = self.view().cloned() else { return };
        for member in ring::before(&view, id, CHAIN) {
            if !self.is_accused(&member.id) {
                self.suspect(&member.id, Reason::WatcherDied);
            }
        }
    }
}
