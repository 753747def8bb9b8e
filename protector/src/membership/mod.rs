//! Which nodes are members: numbered views, which member watches which, and what it takes to declare a node dead. A state machine
//! without sockets, clocks or tasks: the driver calls `handle_*` with the time, then takes every [`Output`] from
//! [`Membership::poll_output`], and calls [`Membership::handle_timeout`] at [`Membership::poll_timeout`].
//!
//! # Views
//! View `v + 1` is decided by single-decree Paxos among the members of view `v` (a majority of them). A daemon that restarts has
//! another boot and is another member, so acceptors may live in memory. What is agreed on are the [`Change`]s, and every acceptor
//! computes the view from them ([`View::next`]). All consensus messages carry the sender's view number and are about the view
//! after it. A member that is behind is told how the newest view came about instead of being answered, so an instance is never
//! entered twice. It passes every view between, because what it does about a loss depends on the view that has it.
//!
//! *Leader*: the first member that this one does not suspect and that is not leaving. The others send it their changes, and again
//! by a timer until a view holds them. It puts all changes that it knows into one view. This is only for liveness: ballots keep
//! it safe if several lead. A member proposes its own accusation itself if that is not decided in time.
//!
//! *Round 0* belongs to the first member of the view and needs no phase 1, but is only used for joins and leaves. A death is
//! proposed in phase 2 only after a majority has answered phase 1. So a side of a cut that has no majority accepts no death, and
//! when the cut heals before a view is decided, no member is removed for having been cut off. A suspect that answers phase 1 is
//! also not dead.
//!
//! *Spreading*: a decision goes down a tree of fan-out [`Timing::fan_out`] over the members that stay, rooted at the decider. Each of
//! them also sends the whole view to its share of the joiners, and the decider tells the departed. Anti-entropy makes good what
//! is lost on the way: heartbeats carry the view number, and every member compares it with a random member every few seconds,
//! which it suspects if there is no answer.
//!
//! *Departed* members are remembered in the view, so no late message brings one back. A member that finds itself removed gets
//! [`Output::Excluded`]: the driver kills its ranks and ends the daemon.
//!
//! # Deaths
//! Each ring member is watched by the next one, its protector ([`ring`]). Silence for `heartbeat * missed`, or a broken link,
//! makes it a suspect: the watcher probes it over a fresh connection and asks up to [`WITNESSES`] others to do the same. It is
//! dead if the watcher's own probe failed and none of the others got an answer in the time for a probe. One positive answer, or
//! any message from it, withdraws the suspicion. The members that the dead one watched have no watcher until the next view, so up
//! to [`CHAIN`] members before it in the ring are probed, too. An accusation is only as good as its evidence is fresh: after
//! [`Timing::evidence`] it is checked again, and one that came from others is forgotten unless they repeat it.
//!
//! *Dead or slow*: a connection is taken by the kernel of the probed machine, whether the daemon runs or not. A machine that does
//! not take it within [`Timing::probe`] is off or cut off. If there is no listener any more (the kernel refuses, or another boot
//! answers), the daemon is dead: that is a no at once. A machine that takes it while the daemon says nothing may merely not run
//! the daemon (it is busy, stopped or migrating), and has [`Timing::answer`] from then on. The members that it watches are looked
//! at long before that time is over, so that neighbours that hang are found side by side, not one after the other.
//!
//! *The watcher's own lateness*: while another member has to answer, the machine wants to be called every [`Timing::tick`], so
//! that it knows whether it was running. If it is called late by more than that, it judges no member for another tick: what has
//! come meanwhile has to be read first. If it is called late by more than two heartbeats, it drops its suspicions and gives all
//! members a full new timeout.
//!
//! # No majority
//! A proposer that hears no majority within [`Timing::freeze`] is frozen, and tells the members that it does reach. It goes on
//! asking for promises. When a majority answers or a view is decided it is thawed, and tells all members.

mod agree;
mod detect;
mod evidence;
mod found;
mod output;
pub mod ring;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod sim_tests;
mod steps;
mod timing;
mod views;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use agree::{Acceptor, Cut, Pending, Proposer};
use detect::{Probing, Suspicion, Watched};
use found::Founding;
use radic_wire::ids::NodeId;
use radic_wire::membership::{Change, Departure, Member, MembershipBody, MembershipMessage, View};
use steps::Steps;
use views::Known;

use crate::random::Random;

pub use evidence::Evidence;
pub use output::{Loss, MembershipEvent, Output, Peer, Reason};
pub use timing::Timing;
pub use views::Views;

/// Members that a watcher asks about a suspect.
pub const WITNESSES: usize = 3;
/// Ring members before a dead one that are probed at once.
pub const CHAIN: usize = 4;
/// Seeds that a joiner asks in one go; the next ones are asked the next time.
pub const SEEDS: usize = 3;
/// Members that may have forgotten how a newer view came about before this one gives up following.
pub const FORGOTTEN: usize = 64;
/// Time between a joiner's requests.
pub const JOIN_RETRY: Duration = Duration::from_millis(500);

/// The view, with what is often asked of it.
#[derive(Debug)]
struct Roster {
    view: Arc<View>,
    index: Arc<BTreeMap<NodeId, usize>>,
    /// The place of this member.
    mine: usize,
    /// The watcher of this member.
    watcher: Option<Peer>,
    /// When this view was adopted.
    since: Duration,
}

impl Roster {
    fn new(Known { view, index, .. }: Known, me: &NodeId, since: Duration) -> Option<Roster> {
        let mine = *index.get(me)?;
        let watcher = ring::watcher_of(&view, me).map(peer);
        Some(Roster { view, index, mine, watcher, since })
    }

    fn get(&self, id: &NodeId) -> Option<&Member> {
        self.index.get(id).map(|i| &self.view.members[*i])
    }
}

fn peer(member: &Member) -> Peer {
    Peer { id: member.id.clone(), address: Some(member.address) }
}

/// What this protector wants of the membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    /// To become a member, or to stay one.
    Staying,
    /// To leave, which the others have to decide.
    Leaving,
    /// Nothing any more: it is excluded, refused, or has left.
    Ended,
}

/// The membership machine of one protector. See the module's text.
#[derive(Debug)]
pub struct Membership {
    me: Member,
    timing: Timing,
    random: Random,
    /// How many of this many members are a quorum. It is always the majority, except in the test which shows that the tests would
    /// notice.
    quorum: fn(usize) -> usize,
    now: Duration,
    course: Course,
    outputs: VecDeque<Output>,
    views: Views,
    /// How the views came about that this member has passed.
    steps: Steps,
    /// None until this protector has joined.
    roster: Option<Roster>,
    seeds: Vec<SocketAddr>,
    next_join: Duration,
    founding: Option<Founding>,
    /// A member that is known to have a newer view, and when to ask it for that.
    behind: Option<(NodeId, Duration)>,
    /// How often the question how a newer view came about was in vain.
    forgotten: usize,
    /// The last proposal that came before the view it is about, with that view's number.
    early: Option<(NodeId, u64, MembershipBody)>,

    next_heartbeat: Duration,
    /// When to ask a random member, and which one was asked last and has not been heard since.
    next_gossip: Duration,
    gossip: Option<NodeId>,
    /// The members that this one watches.
    watched: BTreeMap<NodeId, Watched>,
    suspicions: BTreeMap<NodeId, Suspicion>,
    probes: BTreeMap<NodeId, Probing>,
    /// Before this time no member is judged, because this one was called late.
    judge_at: Duration,

    pending: Vec<Pending>,
    next_request: Duration,
    acceptor: Acceptor,
    proposer: Proposer,
    cut: Option<Cut>,
    /// Until when accusations by others are ignored, because a cut has just healed.
    deaf_until: Duration,
}

fn majority(members: usize) -> usize {
    members / 2 + 1
}

impl Membership {
    /// The first protector of a new cluster: its only member. `seed` makes its random choices.
    pub fn bootstrap(now: Duration, me: Member, timing: Timing, seed: u64) -> Membership {
        let view = View::founded_by(me.clone());
        let mut machine = Membership::new(now, me, Vec::new(), timing, seed);
        machine.adopt_first(machine.views.whole(view));
        machine
    }

    /// A protector that has been a member of `view` for some time, and shares what it computes with others that have these
    /// `views`. For simulations of many.
    pub fn member_of(now: Duration, me: Member, view: &Arc<View>, views: &Views, timing: Timing, seed: u64) -> Membership {
        let mut machine = Membership::new(now, me, Vec::new(), timing, seed);
        machine.views = views.clone();
        machine.adopt_first(views.shared(view));
        // They did not all begin in one moment.
        machine.next_heartbeat = now + machine.random.duration(machine.timing.heartbeat);
        machine.next_gossip = now + machine.random.duration(machine.timing.silence() * 5);
        machine
    }

    /// From now on this machine shares what it computes with others that have these `views`. For simulations of many.
    pub fn share(&mut self, views: &Views) {
        self.views = views.clone();
    }

    /// A protector that joins through the protectors that listen at `seeds`.
    pub fn joining(now: Duration, me: Member, seeds: Vec<SocketAddr>, timing: Timing, seed: u64) -> Membership {
        Membership::new(now, me, seeds, timing, seed)
    }

    fn new(now: Duration, me: Member, seeds: Vec<SocketAddr>, timing: Timing, seed: u64) -> Membership {
        assert!(!timing.heartbeat.is_zero() && timing.missed > 0 && !timing.retry.is_zero(), "times of zero: {timing:?}");
        Membership {
            me,
            timing,
            random: Random::new(seed),
            quorum: majority,
            now,
            course: Course::Staying,
            outputs: VecDeque::new(),
            views: Views::default(),
            steps: Steps::default(),
            roster: None,
            seeds,
            next_join: now,
            founding: None,
            behind: None,
            forgotten: 0,
            early: None,
            next_heartbeat: now,
            next_gossip: now,
            gossip: None,
            watched: BTreeMap::new(),
            suspicions: BTreeMap::new(),
            probes: BTreeMap::new(),
            judge_at: Duration::ZERO,
            pending: Vec::new(),
            next_request: now,
            acceptor: Acceptor::default(),
            proposer: Proposer::default(),
            cut: None,
            deaf_until: Duration::ZERO,
        }
    }

    /// This protector.
    pub fn me(&self) -> &Member {
        &self.me
    }

    /// The view; none while joining.
    pub fn view(&self) -> Option<&Arc<View>> {
        self.roster.as_ref().map(|roster| &roster.view)
    }

    /// The member `id` of the view, with exactly that boot.
    pub fn member(&self, id: &NodeId) -> Option<&Member> {
        self.roster.as_ref()?.get(id)
    }

    /// Whether this side is known to have no majority.
    pub fn is_frozen(&self) -> bool {
        self.cut.is_some()
    }

    /// Asks to leave. [`Output::Left`] says when that is decided. On a side without a majority it never is.
    pub fn leave(&mut self, now: Duration) {
        if !self.enter(now) || self.course == Course::Leaving {
            return;
        }
        self.course = Course::Leaving;
        if self.roster.is_none() {
            self.end(Output::Left);
            return;
        }
        self.proposer.rest();
        let me = self.me.id.clone();
        self.want(Change::Leave(me), true);
        self.pursue();
    }

    /// A message from `from`, which the channel has authenticated as a holder of the cluster's key.
    pub fn handle_message(&mut self, now: Duration, from: NodeId, message: MembershipMessage) {
        if !self.enter(now) {
            return;
        }
        if let Some(roster) = &self.roster
            && message.cluster.is_some_and(|cluster| cluster != roster.view.cluster)
        {
            return self.bad_message(from, "it is of another cluster".to_owned());
        }
        self.alive(&from);
        self.dispatch(&from, message);
        self.replay_early();
        self.pursue();
    }

    /// A heartbeat from `from`, whose view has this number.
    pub fn handle_heartbeat(&mut self, now: Duration, from: NodeId, view: u64) {
        if !self.enter(now) {
            return;
        }
        self.alive(&from);
        if let Some(roster) = &self.roster {
            // A view on its way down the tree need not be sent twice.
            let settled = self.now.saturating_sub(roster.since) >= self.timing.heartbeat / 2;
            if view < roster.view.number && settled {
                self.tell_newest(&from, view);
            } else if view > roster.view.number {
                self.fall_behind(from);
            }
        }
        self.pursue();
    }

    /// A connection to or from `id` broke, or could not be made.
    pub fn handle_link_broken(&mut self, now: Duration, id: NodeId) {
        if !self.enter(now) {
            return;
        }
        self.link_broken(&id);
        self.pursue();
    }

    /// What was sent to `id` will not all arrive. Whatever else is known of it, this member cannot be one beside it any more, and says that it is dead.
    pub fn handle_link_lost(&mut self, now: Duration, id: NodeId) {
        if !self.enter(now) {
            return;
        }
        self.link_broken(&id);
        if id != self.me.id {
            self.want(Change::Dead(id), true);
        }
        self.pursue();
    }

    /// The machine of `id` has taken the connection of an [`Output::Probe`]; its protector has not answered yet.
    pub fn handle_probe_reached(&mut self, now: Duration, id: NodeId) {
        if !self.enter(now) {
            return;
        }
        self.probe_reached(&id);
        self.pursue();
    }

    /// The outcome of an [`Output::Probe`].
    pub fn handle_probe_result(&mut self, now: Duration, id: NodeId, alive: bool) {
        if !self.enter(now) {
            return;
        }
        self.probe_result(&id, alive);
        self.pursue();
    }

    /// The time of [`Membership::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Duration) {
        if !self.enter(now) {
            return;
        }
        if self.roster.is_none() {
            self.ask_seeds();
            return;
        }
        if self.behind.as_ref().is_some_and(|(_, at)| *at <= now) {
            self.ask();
        }
        self.expire();
        self.watch();
        self.pursue();
    }

    /// When to call [`Membership::handle_timeout`]; none if time changes nothing.
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.course == Course::Ended {
            return None;
        }
        if self.roster.is_none() {
            return Some(self.next_join);
        }
        let ask = self.behind.as_ref().map(|(_, at)| *at);
        [ask, self.next_watch(), self.next_expiry(), self.next_pursuit()].into_iter().flatten().min()
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The beginning of every call: whether there is anything left to do, and whether this machine was running at all.
    fn enter(&mut self, now: Duration) -> bool {
        if self.course == Course::Ended {
            return false;
        }
        assert!(now >= self.now, "time runs backwards: {now:?} after {:?}", self.now);
        let late = self.poll_timeout().map_or(Duration::ZERO, |due| now.saturating_sub(due));
        self.now = now;
        if late > self.timing.lateness() && self.roster.is_some() {
            self.was_descheduled(late);
        } else if late > self.timing.tick() {
            self.was_late(late);
        }
        true
    }

    fn dispatch(&mut self, from: &NodeId, message: MembershipMessage) {
        let MembershipMessage { cluster, view, body } = message;
        match body {
            MembershipBody::Newest(newest) => return self.on_newest(from, newest),
            MembershipBody::Steps(steps) => return self.on_steps(from, view, &steps),
            MembershipBody::Forgotten => return self.on_forgotten(view),
            MembershipBody::Decided { changes, root } => return self.on_decided(from, view, &changes, root as usize),
            MembershipBody::Refused(refusal) if self.roster.is_none() => {
                self.rule_out_founding();
                return self.outputs.push_back(Output::Refused(refusal));
            }
            _ => {}
        }
        let Some(roster) = &self.roster else {
            if self.founding.is_some() {
                self.hear_of_founding(from, cluster.is_some(), &body);
            }
            if self.roster.is_some() {
                return;
            }
            // A member speaks to this joiner as to a member: it is one, and does not know yet.
            self.keep_early(from, view, &body);
            return self.fall_behind(from.clone());
        };
        let (mine, is_member) = (roster.view.number, roster.index.contains_key(from));
        if view > mine {
            self.fall_behind(from.clone());
            self.keep_early(from, view, &body);
        }
        match body {
            MembershipBody::Request(changes) => self.on_request(from, is_member, view, changes),
            MembershipBody::ProbeResult { target, alive } => self.on_witness(from, &target, alive),
            MembershipBody::ProbeRequest(target) if is_member => self.on_probe_request(from, target),
            MembershipBody::Ask | MembershipBody::Prepare(_) | MembershipBody::Accept(_) | MembershipBody::ProbeRequest(_)
                if view < mine =>
            {
                self.tell_newest(from, view)
            }
            body if is_member && view == mine => self.on_consensus(from, body),
            // An answer that comes after the decision, or a message of a node that only a newer view makes a member.
            _ => {}
        }
    }

    /// A proposal may overtake the decision that it builds on, which comes down the tree. The last one is kept until then.
    fn keep_early(&mut self, from: &NodeId, view: u64, body: &MembershipBody) {
        if matches!(body, MembershipBody::Prepare(_) | MembershipBody::Accept(_)) {
            self.early = Some((from.clone(), view, body.clone()));
        }
    }

    fn replay_early(&mut self) {
        let Some(number) = self.view().map(|view| view.number) else { return };
        let Some((from, view, body)) = self.early.take_if(|(_, view, _)| *view <= number) else { return };
        let is_member = self.roster.as_ref().is_some_and(|roster| roster.index.contains_key(&from));
        if view == number && is_member && self.course != Course::Ended {
            self.on_consensus(&from, body);
        }
    }

    /// The whole view of a member. A joiner adopts it. A member does only if it is in it no more: it passes every view else.
    fn on_newest(&mut self, from: &NodeId, view: View) {
        if let Err(e) = view.check() {
            return self.bad_message(from.clone(), e.to_string());
        }
        let is_mine = view.get(&self.me.id).is_some();
        let Some(roster) = &self.roster else {
            if is_mine || view.departure(&self.me.id).is_some() {
                self.adopt_first(self.views.whole(view));
            }
            return;
        };
        if view.cluster != roster.view.cluster {
            return self.bad_message(from.clone(), "a view of another cluster".to_owned());
        }
        let mine = roster.view.number;
        assert!(view.number != mine || view == *roster.view, "two views are numbered {mine}: {view:?} and {:?}", roster.view);
        match (view.number > mine, is_mine) {
            (true, true) => self.fall_behind(from.clone()),
            (true, false) => self.adopt_first(self.views.whole(view)),
            (false, _) => {}
        }
    }

    /// The steps that led to view `number`.
    fn on_steps(&mut self, from: &NodeId, number: u64, steps: &[Vec<Change>]) {
        let Some(roster) = &self.roster else { return self.fall_behind(from.clone()) };
        let mine = roster.view.number;
        // Another member may have told of some of them meanwhile.
        let missed = usize::try_from(number.saturating_sub(mine)).unwrap_or(usize::MAX);
        let Some(known) = steps.len().checked_sub(missed) else { return self.fall_behind(from.clone()) };
        let mut way: Vec<Known> = Vec::new();
        for changes in &steps[known..] {
            let before = way.last().map_or(&roster.view, |known| &known.view);
            match self.views.next(before, changes) {
                Ok(known) => way.push(known),
                Err(e) => return self.bad_message(from.clone(), format!("decided changes do not fit: {e}")),
            }
        }
        self.adopt(way);
    }

    /// A member does not remember how its view, which is newer, came of the one here. Others may: the first ones of the view have
    /// been members for longest.
    fn on_forgotten(&mut self, number: u64) {
        let Some(roster) = self.roster.as_ref().filter(|roster| roster.view.number < number) else { return };
        let mut others = roster.view.members.iter().map(|member| &member.id).filter(|id| **id != self.me.id).cycle();
        let oldest = others.nth(self.forgotten).cloned();
        self.forgotten += 1;
        match oldest.filter(|_| self.forgotten <= FORGOTTEN) {
            Some(oldest) => self.fall_behind(oldest),
            None => self.end(Output::Outrun { number }),
        }
    }

    fn on_decided(&mut self, from: &NodeId, number: u64, changes: &[Change], root: usize) {
        let Some(roster) = &self.roster else { return self.fall_behind(from.clone()) };
        let mine = roster.view.number;
        if number > mine + 1 {
            return self.fall_behind(from.clone());
        }
        if number <= mine {
            return;
        }
        match self.views.next(&roster.view, changes) {
            Ok(known) => self.adopt_and_spread(known, changes, root),
            Err(e) => self.bad_message(from.clone(), format!("decided changes do not fit: {e}")),
        }
    }

    /// Adopts the decided `view`, which `changes` made of the present one, and passes it on as the tree rooted at `root` says.
    fn adopt_and_spread(&mut self, known: Known, changes: &[Change], root: usize) {
        let view = &known.view;
        let survivors = view.members.len() - changes.iter().filter(|change| matches!(change, Change::Join(_))).count();
        let place = known.index.get(&self.me.id).copied();
        let to_next = MembershipBody::Decided { changes: changes.to_vec(), root: root as u32 };
        let (children, joiners) = match place {
            Some(place) if root < survivors => (
                ring::children(place, root, survivors, self.timing.fan_out).map(|i| peer(&view.members[i])).collect(),
                (survivors + place..view.members.len()).step_by(survivors).map(|i| peer(&view.members[i])).collect(),
            ),
            _ => (Vec::new(), Vec::new()),
        };
        let whole = (!joiners.is_empty()).then(|| View::clone(view));
        self.say_as(view, children, to_next);
        if let Some(whole) = whole {
            self.say_as(view, joiners, MembershipBody::Newest(whole));
        }
        self.adopt(vec![known]);
    }

    /// Makes the last of these the view. Each comes of the one before, and the first of the present view.
    fn adopt(&mut self, way: Vec<Known>) {
        let Some(Roster { view, index, .. }) = self.roster.as_ref() else { return };
        let mut before = Known { view: view.clone(), index: index.clone(), why: Arc::new([]) };
        let (old, mut joined, mut losses) = (view.clone(), Vec::new(), Vec::new());
        for after in way {
            assert!(after.view.number == before.view.number + 1, "{:?} after {:?}", after.view, before.view);
            joined.extend(after.why.iter().filter(|change| matches!(change, Change::Join(_))).map(|change| change.id().clone()));
            losses.extend(steps::losses(&before, &after));
            self.steps.push(after.why.clone());
            before = after;
        }
        if before.view.number > old.number {
            self.take_seat(Some(old), before, joined, losses);
        }
    }

    /// Makes this the view without any before it: this member joins, or it is a member no more.
    fn adopt_first(&mut self, known: Known) {
        let members = known.view.members.iter().map(|member| member.id.clone()).collect();
        self.take_seat(None, known, members, Vec::new());
    }

    fn take_seat(&mut self, old: Option<Arc<View>>, known: Known, joined: Vec<NodeId>, losses: Vec<Loss>) {
        let new = known.view.clone();
        self.roster = Roster::new(known, &self.me.id, self.now);
        if self.roster.is_none() {
            let left = new.departure(&self.me.id) == Some(Departure::Left);
            return self.end(if left { Output::Left } else { Output::Excluded { view: new } });
        }
        self.outputs.push_back(Output::ViewChanged { old, new, joined, losses });
        (self.behind, self.forgotten) = (None, 0);
        self.thaw();
        self.acceptor = Acceptor::default();
        self.proposer = Proposer::default();
        self.renew_pending();
        self.renew_watch();
    }

    fn end(&mut self, how: Output) {
        self.course = Course::Ended;
        self.outputs.push_back(how);
    }

    fn ask_seeds(&mut self) {
        if self.next_join > self.now {
            return;
        }
        self.next_join = self.now + JOIN_RETRY;
        let count = self.seeds.len().min(SEEDS);
        let seeds = self.seeds[..count].to_vec();
        self.seeds.rotate_left(count);
        let body = MembershipBody::Request(vec![Change::Join(self.me.clone())]);
        let message = MembershipMessage { cluster: None, view: 0, body };
        if !seeds.is_empty() {
            self.outputs.push_back(Output::SendTo { seeds, message });
        }
    }

    fn fall_behind(&mut self, ahead: NodeId) {
        if self.roster.is_none() {
            // The next request to join is answered with the view.
            self.next_join = self.next_join.min(self.now + self.timing.ask());
        } else if self.behind.is_none() {
            self.behind = Some((ahead, self.now + self.timing.ask()));
        }
    }

    fn ask(&mut self) {
        if let Some((ahead, _)) = self.behind.take() {
            let to = self.peer_of(&ahead);
            self.say(vec![to], MembershipBody::Ask);
        }
    }

    /// Tells a node whose view has the number `theirs` of the view here, which is newer.
    fn tell_newest(&mut self, to: &NodeId, theirs: u64) {
        let Some(roster) = &self.roster else { return };
        let body = if theirs == 0 || !roster.index.contains_key(to) {
            MembershipBody::Newest(View::clone(&roster.view))
        } else {
            self.steps.since(theirs, roster.view.number).map_or(MembershipBody::Forgotten, MembershipBody::Steps)
        };
        let to = self.peer_of(to);
        self.say(vec![to], body);
    }

    fn peer_of(&self, id: &NodeId) -> Peer {
        let member = self.roster.as_ref().and_then(|roster| roster.get(id));
        Peer { id: id.clone(), address: member.map(|member| member.address) }
    }

    /// Every member except this one.
    fn others(&self) -> Vec<Peer> {
        let members = self.roster.iter().flat_map(|roster| &roster.view.members);
        members.filter(|member| member.id != self.me.id).map(peer).collect()
    }

    fn say(&mut self, to: Vec<Peer>, body: MembershipBody) {
        if let Some(roster) = &self.roster {
            let view = roster.view.clone();
            self.say_as(&view, to, body);
        }
    }

    fn say_as(&mut self, view: &View, to: Vec<Peer>, body: MembershipBody) {
        if !to.is_empty() {
            let message = MembershipMessage { cluster: Some(view.cluster), view: view.number, body };
            self.outputs.push_back(Output::Send { to, message });
        }
    }

    fn event(&mut self, event: MembershipEvent) {
        self.outputs.push_back(Output::Event(event));
    }

    fn bad_message(&mut self, from: NodeId, what: String) {
        self.event(MembershipEvent::BadMessage { from, what });
    }
}
