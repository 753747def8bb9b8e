//! Consensus on the next view: the changes that are wanted, the acceptor, the proposer, and what happens without a majority.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use radic_wire::ids::{NodeId, NodeName};
use radic_wire::limits;
use radic_wire::membership::{Ballot, Change, Member, MembershipBody, Proposal, Refusal, View};

use super::views::Known;
use super::{Course, Membership, Output, Peer, Reason, Timing, majority};

/// Longest time between two proposals, in units of [`Timing::retry`].
const BACKOFF: u32 = 8;
/// A member that was told that its side is frozen looks for itself after this many times [`Timing::freeze`].
const FROZEN_DOUBT: u32 = 4;

/// A change that is wanted and in no view yet.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) change: Change,
    /// This member wants the change, and sees to it that it is decided.
    mine: bool,
    /// When the change is forgotten (one that others want) or checked again (one of this member). A leave of this member is never
    /// forgotten.
    expires: Duration,
    /// When this member stops waiting for the leader, and proposes the change itself.
    impatient: Duration,
    /// The leader that was last asked for it.
    asked: Option<NodeId>,
}

/// The acceptor of the instance that decides the next view.
#[derive(Debug, Default)]
pub(super) struct Acceptor {
    promised: Option<Ballot>,
    accepted: Option<Proposal>,
}

impl Acceptor {
    /// Phase 1: promises `ballot` and tells what was accepted, or tells the higher ballot that was promised.
    fn prepare(&mut self, ballot: &Ballot) -> Result<Option<Proposal>, Ballot> {
        match &self.promised {
            Some(promised) if promised > ballot => Err(promised.clone()),
            _ => {
                self.promised = Some(ballot.clone());
                Ok(self.accepted.clone())
            }
        }
    }

    /// Phase 2: accepts `proposal`, or tells the higher ballot that was promised.
    fn accept(&mut self, proposal: &Proposal) -> Result<(), Ballot> {
        if let Some(promised) = self.promised.as_ref().filter(|promised| **promised > proposal.ballot) {
            return Err(promised.clone());
        }
        if let Some(accepted) = &self.accepted {
            assert!(accepted.ballot <= proposal.ballot, "accepted {accepted:?} above the promise {:?}", self.promised);
            assert!(
                accepted.ballot != proposal.ballot || accepted == proposal,
                "one ballot, two values: {accepted:?}, {proposal:?}"
            );
        }
        self.promised = Some(proposal.ballot.clone());
        self.accepted = Some(proposal.clone());
        Ok(())
    }
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Idle,
    /// Waiting for promises.
    Preparing { ballot: Ballot, promises: BTreeMap<NodeId, Option<Proposal>> },
    /// Waiting for acceptances.
    Accepting { proposal: Proposal, accepted: BTreeSet<NodeId> },
    /// Another proposer had a higher ballot: this one gives way.
    Backoff,
}

/// The proposer of the instance that decides the next view.
#[derive(Debug, Default)]
pub(super) struct Proposer {
    phase: Phase,
    /// The lowest round that this member has not used.
    next_round: u64,
    attempts: u32,
    /// When the present phase is given up.
    retry_at: Duration,
    /// When this side is frozen, unless a majority has answered.
    freeze_at: Option<Duration>,
    /// The members that answered since the clock of `freeze_at` started. While frozen: since the present attempt started.
    heard: BTreeSet<NodeId>,
}

impl Proposer {
    fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    /// Stops proposing. Rounds that were used stay used.
    pub(super) fn rest(&mut self) {
        *self = Proposer { next_round: self.next_round, ..Proposer::default() };
    }

    /// This member was not running: starts the clocks again.
    pub(super) fn excuse(&mut self, now: Duration, timing: &Timing) {
        self.retry_at = self.retry_at.max(now + timing.retry);
        self.freeze_at = self.freeze_at.map(|at| at.max(now + timing.freeze));
    }
}

/// This side has no majority.
#[derive(Debug)]
pub(super) struct Cut {
    unreachable: Vec<NodeId>,
    /// This member has found out itself, and goes on looking.
    by_me: bool,
    /// When a member that was only told looks for itself.
    doubt_at: Duration,
}

impl Membership {
    /// Whether a pending change says that `id` is dead.
    pub(super) fn is_accused(&self, id: &NodeId) -> bool {
        self.pending.iter().any(|pending| matches!(&pending.change, Change::Dead(dead) if dead == id))
    }

    /// Notes a change for the next view. `mine`: this member sees to it that it is decided.
    pub(super) fn want(&mut self, change: Change, mine: bool) {
        let Some(roster) = &self.roster else { return };
        let is_member = roster.index.contains_key(change.id());
        let fits = match &change {
            Change::Join(joiner) => !is_member && roster.view.departure(&joiner.id).is_none(),
            Change::Dead(_) | Change::Leave(_) => is_member,
        };
        if !fits {
            return;
        }
        let leave = matches!(change, Change::Leave(_));
        let expires = if mine && leave { Duration::MAX } else { self.now + self.timing.evidence() };
        if let Some(pending) = self.pending.iter_mut().find(|pending| pending.change == change) {
            pending.expires = pending.expires.max(expires);
            pending.mine |= mine;
        } else if self.pending.len() < 2 * limits::MEMBERS {
            let impatient = self.patience();
            self.pending.push(Pending { change, mine, expires, impatient, asked: None });
        }
    }

    /// When a wait for the leader that starts now will have been long enough.
    fn patience(&mut self) -> Duration {
        self.now + self.timing.retry * 2 + self.random.duration(self.timing.retry)
    }

    /// A new view. What it holds or rules out is not pending any more, and the rest is asked for at once.
    pub(super) fn renew_pending(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            self.want(pending.change, pending.mine);
        }
        self.next_request = self.now;
    }

    pub(super) fn on_request(&mut self, from: &NodeId, is_member: bool, view: u64, changes: Vec<Change>) {
        let behind = self.view().is_some_and(|mine| view < mine.number);
        let joins = changes.iter().any(|change| matches!(change, Change::Join(joiner) if joiner.id == *from));
        if behind && !joins {
            self.tell_newest(from, view);
        }
        for change in changes {
            match change {
                Change::Join(joiner) if is_member || joiner.id == *from => self.on_join(joiner),
                Change::Dead(id) if is_member && id == self.me.id => {
                    let to = self.peer_of(from);
                    self.say(vec![to], MembershipBody::ProbeResult { target: id, alive: true });
                }
                // A member that accuses so soon after a cut has healed may not know that it has. It will repeat what still holds.
                Change::Dead(_) if self.now < self.deaf_until => {}
                Change::Dead(_) | Change::Leave(_) if is_member => self.want(change, false),
                _ => {}
            }
        }
    }

    fn on_join(&mut self, joiner: Member) {
        let Some(view) = self.view().cloned() else { return };
        let known = view.get(&joiner.id).is_some() || view.departure(&joiner.id).is_some();
        if known {
            let to = Peer { id: joiner.id, address: Some(joiner.address) };
            return self.say(vec![to], MembershipBody::Newest(View::clone(&view)));
        }
        if let Some(cut) = &self.cut {
            let members = view.members.len();
            let reachable = members.saturating_sub(cut.unreachable.len()) as u32;
            self.refuse(&joiner, Refusal::Frozen { reachable, needed: majority(members) as u32 });
        }
        let holder = view.named(&joiner.id.name);
        if view.members.len() >= limits::MEMBERS && holder.is_none() {
            return self.refuse(&joiner, Refusal::Full);
        }
        match holder {
            Some(holder) if holder.id == self.me.id => {
                let refusal = Refusal::NameInUse { name: holder.id.name.clone(), address: holder.address };
                return self.refuse(&joiner, refusal);
            }
            Some(holder) if !self.is_accused(&holder.id) => self.suspect(&holder.id, Reason::NameClaimed),
            _ => {}
        }
        self.want(Change::Join(joiner), false);
    }

    pub(super) fn refuse(&mut self, joiner: &Member, refusal: Refusal) {
        let to = Peer { id: joiner.id.clone(), address: Some(joiner.address) };
        self.say(vec![to], MembershipBody::Refused(refusal));
    }

    /// The pending changes that fit the view together: one removal of each, and joins whose name is then free.
    fn ripe(&self) -> Vec<Change> {
        let Some(roster) = &self.roster else { return Vec::new() };
        let mut gone = BTreeSet::new();
        let removals = self.pending.iter().filter(|pending| !matches!(pending.change, Change::Join(_)));
        let mut ripe: Vec<Change> =
            removals.filter(|pending| gone.insert(pending.change.id())).map(|pending| pending.change.clone()).collect();
        if ripe.len() == self.pending.len() {
            return ripe;
        }
        let staying = roster.view.members.iter().map(|member| &member.id).filter(|id| !gone.contains(id));
        let mut names: BTreeSet<&NodeName> = staying.map(|id| &id.name).collect();
        for pending in &self.pending {
            let Change::Join(joiner) = &pending.change else { continue };
            if names.len() < limits::MEMBERS && names.insert(&joiner.id.name) {
                ripe.push(pending.change.clone());
            }
        }
        ripe
    }

    /// The first member that neither is doubtful nor leaves.
    fn leader(&self) -> Option<&NodeId> {
        let leaving =
            |id: &NodeId| self.pending.iter().any(|pending| matches!(&pending.change, Change::Leave(leaver) if leaver == id));
        let members = &self.roster.as_ref()?.view.members;
        members.iter().map(|member| &member.id).find(|id| !self.is_doubtful(id) && !leaving(id))
    }

    /// Sees to it that what is pending gets decided: proposes it, or asks the leader to. Called after every input.
    pub(super) fn pursue(&mut self) {
        if self.course == Course::Ended || (self.pending.is_empty() && self.cut.is_none() && self.proposer.is_idle()) {
            return;
        }
        let Some(roster) = &self.roster else { return };
        if self.course == Course::Leaving && roster.view.members.len() == 1 {
            return self.end(Output::Left);
        }
        if !self.proposer.is_idle() {
            return;
        }
        if self.doubts_cut() || (self.leads() && !self.proposable().is_empty()) {
            return self.attempt();
        }
        self.proposer.rest();
        if !self.pending.is_empty() {
            self.request();
        }
    }

    /// Whether this member is to propose.
    fn leads(&self) -> bool {
        let impatient =
            |pending: &Pending| pending.mine && matches!(pending.change, Change::Dead(_)) && pending.impatient <= self.now;
        // A member that leaves lets others decide, unless it knows of none.
        let waited_enough = self.course != Course::Leaving && self.pending.iter().any(impatient);
        waited_enough || self.leader().is_none_or(|leader| *leader == self.me.id)
    }

    /// What this member may propose: all that is ripe except its own leave. The member that decides the leave must still be there
    /// to tell the others.
    fn proposable(&self) -> Vec<Change> {
        let mut changes = self.ripe();
        changes.retain(|change| !matches!(change, Change::Leave(leaver) if *leaver == self.me.id));
        changes
    }

    /// Whether it is time to look whether this side still has no majority.
    fn doubts_cut(&self) -> bool {
        self.cut.as_ref().is_some_and(|cut| cut.by_me || cut.doubt_at <= self.now)
    }

    /// When [`Membership::pursue`] or [`Membership::expire`] has something to do, but for pending changes that expire.
    pub(super) fn next_pursuit(&self) -> Option<Duration> {
        if !self.proposer.is_idle() {
            return Some(self.proposer.freeze_at.map_or(self.proposer.retry_at, |at| at.min(self.proposer.retry_at)));
        }
        let request = (!self.pending.is_empty()).then_some(self.next_request);
        let doubt = self.cut.as_ref().map(|cut| cut.doubt_at);
        request.into_iter().chain(doubt).min()
    }

    /// When the next pending change expires.
    pub(super) fn next_expiry(&self) -> Option<Duration> {
        self.pending.iter().map(|pending| pending.expires).min()
    }

    /// Ends what has lasted too long: pending changes, the wait for a majority, the present attempt.
    pub(super) fn expire(&mut self) {
        let now = self.now;
        for pending in self.pending.extract_if(.., |pending| pending.expires <= now).collect::<Vec<_>>() {
            if pending.mine {
                self.suspect(pending.change.id(), Reason::StillThere);
            }
        }
        if self.proposer.freeze_at.is_some_and(|at| at <= now) {
            self.proposer.freeze_at = None;
            self.freeze();
        }
        if !self.proposer.is_idle() && self.proposer.retry_at <= now {
            // An attempt that gave way was too short to tell which members answer.
            let full = !matches!(self.proposer.phase, Phase::Backoff);
            if self.cut.is_some() && full && self.proposer.heard.len() < self.quorum() {
                self.freeze();
            }
            self.proposer.phase = Phase::Idle;
        }
    }

    /// Asks the leader for what is ripe: for what is new at once, and for everything when the timer says so.
    fn request(&mut self) {
        let mut ripe = self.ripe();
        let leader = self.leader().cloned();
        if self.next_request <= self.now {
            self.next_request = self.now + self.timing.retry + self.random.duration(self.timing.retry / 4);
        } else {
            let asked = |change: &Change| self.pending.iter().any(|p| p.change == *change && p.asked == leader);
            ripe.retain(|change| !asked(change));
        }
        let Some(leader) = leader.filter(|_| !ripe.is_empty()) else { return };
        assert!(leader != self.me.id, "a request to myself");
        for pending in self.pending.iter_mut().filter(|pending| ripe.contains(&pending.change)) {
            pending.asked = Some(leader.clone());
        }
        let to = self.peer_of(&leader);
        self.say(vec![to], MembershipBody::Request(ripe));
        self.lose_patience(&leader);
    }

    /// A member that leaves cannot propose its own leave. If the leader does not see to it, perhaps the leader is dead.
    fn lose_patience(&mut self, leader: &NodeId) {
        let patience = self.patience();
        let waiting = self.pending.iter_mut().find(|pending| pending.mine && pending.impatient <= self.now);
        if let Some(pending) = waiting {
            pending.impatient = patience;
            self.suspect(leader, Reason::Unanswered);
        }
    }

    /// Starts a ballot: round 0 with what is wanted, or a higher one with phase 1.
    fn attempt(&mut self) {
        let changes = self.proposable();
        let Some(roster) = &self.roster else { return };
        let first = roster.mine == 0;
        let me = self.me.id.clone();
        let proposer = &mut self.proposer;
        proposer.attempts += 1;
        let wait = self.timing.retry * proposer.attempts.min(BACKOFF);
        proposer.retry_at = self.now + wait + self.random.duration(self.timing.retry);
        if self.cut.is_some() || proposer.freeze_at.is_none() {
            proposer.heard = BTreeSet::from([me.clone()]);
        }
        if self.cut.is_none() && proposer.freeze_at.is_none() {
            proposer.freeze_at = Some(self.now + self.timing.freeze);
        }
        let untouched = proposer.next_round == 0 && self.acceptor.promised.is_none();
        let deaths = changes.iter().any(|change| matches!(change, Change::Dead(_)));
        if first && untouched && !deaths && !changes.is_empty() {
            proposer.next_round = 1;
            return self.propose(Proposal { ballot: Ballot { round: 0, proposer: me }, changes });
        }
        let promised = self.acceptor.promised.as_ref().map_or(0, |promised| promised.round);
        let round = proposer.next_round.max(promised.saturating_add(1));
        proposer.next_round = round.saturating_add(1);
        let ballot = Ballot { round, proposer: me.clone() };
        match self.acceptor.prepare(&ballot) {
            Ok(accepted) => {
                proposer.phase = Phase::Preparing { ballot: ballot.clone(), promises: BTreeMap::from([(me, accepted)]) };
                let others = self.others();
                self.say(others, MembershipBody::Prepare(ballot));
                self.count_promises();
            }
            Err(promised) => self.give_way(&promised),
        }
    }

    /// Phase 2 of a ballot of this member.
    fn propose(&mut self, proposal: Proposal) {
        if let Err(promised) = self.acceptor.accept(&proposal) {
            return self.give_way(&promised);
        }
        self.proposer.phase = Phase::Accepting { proposal: proposal.clone(), accepted: BTreeSet::from([self.me.id.clone()]) };
        let others = self.others();
        self.say(others, MembershipBody::Accept(proposal));
        self.count_acceptances();
    }

    /// Another proposer has a higher ballot: gives way to it first.
    fn give_way(&mut self, promised: &Ballot) {
        let wait = self.timing.retry / 8 + self.random.duration(self.timing.retry);
        self.proposer.next_round = self.proposer.next_round.max(promised.round.saturating_add(1));
        self.proposer.retry_at = self.now + wait;
        self.proposer.phase = Phase::Backoff;
    }

    fn quorum(&self) -> usize {
        self.roster.as_ref().map_or(usize::MAX, |roster| (self.quorum)(roster.view.members.len()))
    }

    fn count_promises(&mut self) {
        let quorum = self.quorum();
        let Phase::Preparing { ballot, promises } = &self.proposer.phase else { return };
        if promises.len() < quorum {
            return;
        }
        let ballot = ballot.clone();
        let earlier = promises.values().flatten().max_by(|a, b| a.ballot.cmp(&b.ballot)).cloned();
        if let Some(earlier) = &earlier {
            assert!(earlier.ballot < ballot, "accepted {earlier:?} before {ballot:?} was proposed");
        }
        let changes = earlier.map_or_else(|| self.proposable(), |earlier| earlier.changes);
        if changes.is_empty() {
            // Whatever it was has resolved itself: the majority that answered has thawed this side.
            return self.proposer.rest();
        }
        self.propose(Proposal { ballot, changes });
    }

    fn count_acceptances(&mut self) {
        let quorum = self.quorum();
        let (Phase::Accepting { proposal, accepted }, Some(roster)) = (&self.proposer.phase, &self.roster) else { return };
        if accepted.len() < quorum {
            return;
        }
        let changes = proposal.changes.clone();
        let next = self.views.next(&roster.view, &changes).expect("changes are checked before they are accepted");
        assert!(next.view.number == roster.view.number + 1, "a view that does not follow: {next:?}");
        self.decide(next, &changes);
    }

    /// A majority has accepted `changes`, which make the view `next`: tells all members.
    fn decide(&mut self, next: Known, changes: &[Change]) {
        let Some(roster) = &self.roster else { return };
        let place = next.index.get(&self.me.id).copied();
        let told = |member: &&Member| {
            // This member is gone if it has decided its own removal, which another member had proposed. Then all members hear it
            // from this one.
            let stays = next.index.contains_key(&member.id);
            member.id != self.me.id && (!stays || place.is_none())
        };
        let direct: Vec<Peer> = roster.view.members.iter().filter(told).map(super::peer).collect();
        self.say_as(&next.view, direct, MembershipBody::Decided { changes: changes.to_vec(), root: place.unwrap_or(0) as u32 });
        self.adopt_and_spread(next, changes, place.unwrap_or(0));
    }

    /// A message about the view after the present one, from a member that has the same view.
    pub(super) fn on_consensus(&mut self, from: &NodeId, body: MembershipBody) {
        match body {
            MembershipBody::Prepare(ballot) => self.on_prepare(from, ballot),
            MembershipBody::Accept(proposal) => self.on_accept(from, proposal),
            MembershipBody::Promise { ballot, accepted } => self.on_promise(from, &ballot, accepted),
            MembershipBody::Accepted(ballot) => {
                self.hear(from);
                if let Phase::Accepting { proposal, accepted } = &mut self.proposer.phase
                    && proposal.ballot == ballot
                {
                    accepted.insert(from.clone());
                    self.count_acceptances();
                }
            }
            MembershipBody::Rejected { ballot, promised } => {
                self.hear(from);
                let current = match &self.proposer.phase {
                    Phase::Preparing { ballot, .. } => Some(ballot),
                    Phase::Accepting { proposal, .. } => Some(&proposal.ballot),
                    Phase::Idle | Phase::Backoff => None,
                };
                if current == Some(&ballot) && promised > ballot {
                    self.give_way(&promised);
                }
            }
            MembershipBody::Frozen(reachable) => self.on_frozen(&reachable),
            MembershipBody::Thawed => self.thaw(),
            _ => {}
        }
    }

    fn on_prepare(&mut self, from: &NodeId, ballot: Ballot) {
        if ballot.proposer != *from || ballot.round == 0 {
            return self.bad_message(from.clone(), format!("it may not prepare {ballot:?}"));
        }
        let answer = match self.acceptor.prepare(&ballot) {
            Ok(accepted) => MembershipBody::Promise { ballot, accepted },
            Err(promised) => MembershipBody::Rejected { ballot, promised },
        };
        let to = self.peer_of(from);
        self.say(vec![to], answer);
    }

    fn on_accept(&mut self, from: &NodeId, proposal: Proposal) {
        let Some(roster) = &self.roster else { return };
        let entitled = proposal.ballot.round > 0 || roster.index.get(from) == Some(&0);
        if proposal.ballot.proposer != *from || !entitled {
            return self.bad_message(from.clone(), format!("it may not propose {:?}", proposal.ballot));
        }
        if let Err(e) = self.views.next(&roster.view, &proposal.changes) {
            return self.bad_message(from.clone(), format!("proposed changes do not fit: {e}"));
        }
        let answer = match self.acceptor.accept(&proposal) {
            Ok(()) => MembershipBody::Accepted(proposal.ballot),
            Err(promised) => MembershipBody::Rejected { ballot: proposal.ballot, promised },
        };
        let to = self.peer_of(from);
        self.say(vec![to], answer);
    }

    fn on_promise(&mut self, from: &NodeId, ballot: &Ballot, earlier: Option<Proposal>) {
        let Some(roster) = &self.roster else { return };
        if let Some(Err(e)) = earlier.as_ref().map(|earlier| self.views.next(&roster.view, &earlier.changes)) {
            return self.bad_message(from.clone(), format!("accepted changes do not fit: {e}"));
        }
        self.hear(from);
        if let Phase::Preparing { ballot: current, promises } = &mut self.proposer.phase
            && current == ballot
            && earlier.as_ref().is_none_or(|earlier| earlier.ballot < *ballot)
        {
            promises.insert(from.clone(), earlier);
            self.count_promises();
        }
    }

    /// `from` answers this member as an acceptor.
    fn hear(&mut self, from: &NodeId) {
        self.proposer.heard.insert(from.clone());
        if self.proposer.heard.len() < self.quorum() {
            return;
        }
        self.proposer.freeze_at = None;
        if self.cut.is_some() {
            self.thaw();
            let others = self.others();
            self.say(others, MembershipBody::Thawed);
        }
    }

    /// No majority has answered this member: says so to those that have.
    fn freeze(&mut self) {
        let heard = std::mem::take(&mut self.proposer.heard);
        let told = heard.iter().filter(|id| **id != self.me.id).map(|id| self.peer_of(id)).collect();
        self.note_cut(&heard, true);
        let reachable = heard.iter().cloned().collect();
        self.say(told, MembershipBody::Frozen(reachable));
        self.proposer.heard = heard;
    }

    /// A member on this side has found no majority.
    fn on_frozen(&mut self, reachable: &[NodeId]) {
        if self.cut.as_ref().is_none_or(|cut| !cut.by_me) {
            self.note_cut(&reachable.iter().cloned().collect(), false);
        }
    }

    fn note_cut(&mut self, reachable: &BTreeSet<NodeId>, by_me: bool) {
        let Some(roster) = &self.roster else { return };
        let members = roster.view.members.iter().map(|member| &member.id);
        let unreachable: Vec<NodeId> = members.filter(|id| !reachable.contains(id)).cloned().collect();
        let (count, needed) = (roster.view.members.len(), majority(roster.view.members.len()));
        let news = self.cut.as_ref().is_none_or(|cut| cut.unreachable != unreachable);
        let doubt_at = self.now + self.timing.freeze * FROZEN_DOUBT;
        if news {
            let reachable = count - unreachable.len();
            self.outputs.push_back(Output::Frozen { unreachable: unreachable.clone(), reachable, needed });
        }
        self.cut = Some(Cut { unreachable, by_me, doubt_at });
    }

    /// There is a majority again. What was found out about members while there was none is worth nothing, and is checked again.
    pub(super) fn thaw(&mut self) {
        if self.cut.take().is_none() {
            return;
        }
        self.outputs.push_back(Output::Thawed);
        self.deaf_until = self.now + self.timing.probe;
        self.probes.clear();
        let mut doubtful: Vec<NodeId> = std::mem::take(&mut self.suspicions).into_keys().collect();
        let accuses = |pending: &mut Pending| matches!(pending.change, Change::Dead(_));
        let accusations: Vec<Pending> = self.pending.extract_if(.., accuses).collect();
        doubtful.extend(accusations.into_iter().filter(|pending| pending.mine).map(|pending| pending.change.id().clone()));
        for id in doubtful {
            self.suspect(&id, Reason::StillThere);
        }
    }
}
