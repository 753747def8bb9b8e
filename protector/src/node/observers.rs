//! The observers of this node's processes: how they join, what they ask, when they make checkpoints.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use radic_wire::PROTOCOL_VERSION;
use radic_wire::address::canonical;
use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::event::EventName;
use radic_wire::ids::{Epoch, Incarnation, JobId, NodeId, ProcessId, Rank};
use radic_wire::limits;
use radic_wire::mac::JobKey;
use radic_wire::membership::Member;
use radic_wire::peer::{Answer, PeerMessage, Query, Unprotected};
use radic_wire::process::{FromNode, Machine, PayloadMode, Place, Point, Protect, Protection, StreamEnd, TEXT, ToNode};
use radic_wire::report::ProcessInfo;

use super::away::Vacancy;
use super::call::Call;
use super::checkpoints::Schedule;
use super::events::About;
use super::host::Host;
use super::numbers::ObserverId;
use super::observed::Observed;
use super::purpose::Purpose;
use super::{Node, Output, registry};
use crate::membership::ring::watcher_of;

/// Time that nodes have to say whether a process of theirs listens at an address. A node that is silent for longer is dead, and
/// will be declared so.
const LOOK_UP: Duration = Duration::from_secs(5);
/// Time that a protector has to forget a process that executes another program, or to say what it holds.
pub(super) const STORE: Duration = Duration::from_secs(5);

/// How often in a row only the node with the most of a stream and the receiver's host are asked how much is stable. Then all
/// nodes are.
const ALONE: u32 = 15;
/// What has become of a program that was to answer a request.
const REPLACED: &str = "it has ended, or runs another program";

/// The observers of this node.
#[derive(Debug, Default)]
pub(super) struct Observers {
    /// Observers that have joined, or wait for the answer to their `Join`.
    joined: BTreeMap<ObserverId, ProcessId>,
    /// How many questions of each observer wait for other nodes. They are counted by connection: a process that is brought back
    /// has asked nothing yet, whatever is still answered to its incarnation before.
    asks: BTreeMap<ObserverId, usize>,
    /// The node that holds most of what a process receives, as it was when all nodes were asked, and how often that node was
    /// asked since.
    stable_at: BTreeMap<ProcessId, (NodeId, u32)>,
    pub(super) processes: BTreeMap<ProcessId, Observed>,
}

impl Node {
    /// Has a process look at what it was told, if its observer is connected: it may be computing.
    pub(super) fn nudge(&mut self, process: ProcessId) {
        self.outputs.extend(self.observers.processes.get(&process).and_then(Observed::observer).map(Output::Nudge));
    }

    /// A message of an observer; `pid` is the process at the other end of its connection, as the kernel says.
    pub(super) fn handle_observer(&mut self, now: Duration, observer: ObserverId, pid: u32, message: ToNode) {
        match (self.observers.joined.get(&observer).copied(), message) {
            (None, ToNode::Join { version, process }) => self.join(now, observer, pid, version, process),
            (None, ToNode::Restored { version, process, point }) => self.rejoin(now, observer, (pid, version), process, point),
            (None, ToNode::ChildListens { version, process, address }) => {
                self.child_listens(now, observer, (pid, version), process, address);
            }
            (None, ToNode::ChildAccepted { version, process, from }) => {
                self.tell_child_of_caller(observer, version, process, from)
            }
            (None, ToNode::ChildRefuses { version, process, from }) => self.child_refuses(observer, version, process, from),
            (Some(process), message) if self.is_newest(observer, process) => {
                self.handle_joined(now, observer, process, message);
            }
            // The observer has not joined, or belongs to a program that another one has replaced since (exec). It is
            // disconnected, because it would wait for an answer.
            _ => self.outputs.push_back(Output::CloseObserver(observer)),
        }
    }

    pub(super) fn is_newest(&self, observer: ObserverId, process: ProcessId) -> bool {
        self.observers.processes.get(&process).is_some_and(|p| p.observer() == Some(observer))
    }

    fn join(&mut self, now: Duration, observer: ObserverId, pid: u32, version: u16, process: ProcessId) {
        if !self.speaks(observer, version) {
            return;
        }
        let Some(host) = self.hosts.get(&process.job) else {
            return self.refuse(observer, format!("job {} does not run on this node", process.job));
        };
        let (ours, protect) = (host.pid(process.rank), host.protection().protect);
        let later_epoch = host.epoch() > Epoch::FIRST;
        if ours.is_none() || protect == Protect::None {
            return self.refuse(observer, format!("rank {} of job {} is not protected here", process.rank, process.job));
        }
        let observed = self.observers.processes.entry(process).or_default();
        if ours != Some(pid) {
            let first = !std::mem::replace(&mut observed.child_told, true);
            let text = format!("a child of rank {} is not protected", process.rank);
            if first {
                let more =
                    format!("{text} (pid {pid}, the first of perhaps several): it runs, but a restart does not bring it back");
                self.record_unprotected(now, process, Unprotected::Child, more);
            }
            return self.refuse(observer, text);
        }
        let (before, again) = (observed.observer(), observed.has_joined() || later_epoch);
        observed.handle_joined(observer, pid);
        self.observers.joined.insert(observer, process);
        if before.is_some() {
            self.fail_checkpoints(process, REPLACED);
        }
        if again && protect == Protect::On {
            self.begin_from_nothing(now, observer, process);
        } else {
            self.welcome(now, observer, process, 0);
        }
    }

    /// Whether the library is of this version. Otherwise it is refused.
    pub(super) fn speaks(&mut self, observer: ObserverId, version: u16) -> bool {
        if version != PROTOCOL_VERSION {
            let text = format!("radicd speaks version {PROTOCOL_VERSION}, libradic.so {version}: use those of one build");
            self.refuse(observer, text);
        }
        version == PROTOCOL_VERSION
    }

    /// A restored process is there.
    fn rejoin(&mut self, now: Duration, observer: ObserverId, (pid, version): (u32, u16), process: ProcessId, point: Point) {
        let ours = self.hosts.get(&process.job).and_then(|host| host.pid(process.rank));
        if version != PROTOCOL_VERSION || ours != Some(pid) {
            let text = format!("rank {} of job {} is not brought back here as process {pid}", process.rank, process.job);
            return self.refuse(observer, text);
        }
        let observed = self.observers.processes.entry(process).or_default();
        observed.handle_joined(observer, pid);
        self.observers.joined.insert(observer, process);
        self.handle_restored(now, observer, process, point);
    }

    pub(super) fn refuse(&mut self, observer: ObserverId, why: String) {
        self.outputs.push_back(Output::Observer(observer, FromNode::Refused(why)));
        self.outputs.push_back(Output::CloseObserver(observer));
    }

    /// Bytes of the outbox of each process of a job here. Where the user names none and received bytes stay with their senders,
    /// the processes share an eighth of the memory: the more there is, the fewer recovery lines are made because an outbox fills.
    fn outbox_of(&self, host: &Host) -> u64 {
        const MOST: u64 = 2 << 30;
        let Protection { outbox, payload, .. } = host.protection();
        let share = || self.config.machine_memory / 8 / (host.ranks().count() as u64).max(1);
        outbox
            .unwrap_or_else(|| if *payload == PayloadMode::Sender { share().clamp(limits::OUTBOX, MOST) } else { limits::OUTBOX })
    }

    /// The process may begin, with a journal from this position on.
    pub(super) fn welcome(&mut self, now: Duration, observer: ObserverId, process: ProcessId, journal: u64) {
        let Some(host) = self.hosts.get(&process.job) else { return };
        let joined = FromNode::Joined {
            // A program that is executed in a later incarnation of the process has that incarnation.
            incarnation: Incarnation::launched_in(host.epoch()).max(self.incarnation_of(process)),
            key: JobKey::derive(&self.config.key, process.job),
            protector: self.log_address(),
            protection: Protection { outbox: Some(self.outbox_of(host)), ..host.protection().clone() },
            journal,
            inherited: self.observers.processes.get(&process).is_some_and(|observed| observed.inherited),
        };
        self.outputs.push_back(Output::Observer(observer, joined));
        self.observed(process, |observed| observed.handle_welcome(observer));
        self.start_schedule(now, process);
    }

    /// The node that protects this node's processes: the one that watched this node when the protector before was lost. A node
    /// that is alone protects its own.
    pub(super) fn protector(&self) -> &Member {
        if let Some(member) = self.protectors[0].as_ref().and_then(|protector| self.member(protector))
            && member.id != *self.me()
        {
            return member;
        }
        self.view().and_then(|view| watcher_of(view, self.me())).unwrap_or(&self.config.me)
    }

    pub(super) fn log_address(&self) -> SocketAddr {
        let protector = self.protector();
        protector.log_address()
    }

    fn handle_joined(&mut self, now: Duration, observer: ObserverId, process: ProcessId, message: ToNode) {
        match message {
            ToNode::Join { .. }
            | ToNode::Restored { .. }
            | ToNode::Pmi { .. }
            | ToNode::ChildListens { .. }
            | ToNode::ChildAccepted { .. }
            | ToNode::ChildRefuses { .. } => {
                self.dismiss(now, observer, process, "it joins twice on one connection");
            }
            ToNode::Door(door) => self.handle_door(process, door),
            ToNode::ListeningAt { address, at } => self.listen_at(now, observer, process, address, at),
            ToNode::Where { ask, process: other } => {
                self.ask_all(now, observer, process, Purpose::Where { observer, process, ask, other }, &Query::Where(other));
            }
            ToNode::Ended { ask, stream, sender } => {
                let purpose = Purpose::Final { observer, process, ask };
                self.ask_all(now, observer, process, purpose, &Query::Final { stream, sender });
            }
            ToNode::Finished { stream, end } => self.handle_finished(process, stream, end),
            ToNode::Over { connection } => self.handle_over(process, connection),
            ToNode::Closing => self.observed(process, |observed| observed.closing = true),
            ToNode::Live { events, input } => {
                self.handle_live(now, process, events);
                if process.rank == Rank(0) {
                    self.with_host(now, process.job, |host| host.handle_input_read(input));
                }
            }
            ToNode::LogRead => self.handle_log_read(now, process),
            ToNode::WillListen { ask, address } => match self.registry.announce(process, address) {
                Ok(()) => self.outputs.push_back(Output::Observer(observer, FromNode::Announced { ask })),
                Err(error) => self.dismiss(now, observer, process, &error.to_string()),
            },
            ToNode::Listening(address) => self.listen(now, observer, process, address),
            ToNode::NotListening(address) => self.registry.unlisten(process, address),
            ToNode::Claim { ask, address } => self.handle_claim(now, observer, process, ask, address),
            ToNode::Connecting { ask, connection, from, to } if connection.opener == process => {
                self.look_up(now, observer, process, ask, Call { connection, from, to, asked: self.next_query });
            }
            ToNode::GreetingKey { ask, connection, job } if connection.opener == process => {
                let key = self.greeting_key(job, connection);
                self.outputs.push_back(Output::Observer(observer, FromNode::GreetingKey { ask, key }));
            }
            ToNode::CallsNobody { connection, from, to, made } if connection.opener == process => {
                self.handle_call_of_none(now, process, Call { connection, from, to, asked: self.next_query }, made);
            }
            ToNode::Connecting { .. } | ToNode::CallsNobody { .. } | ToNode::GreetingKey { .. } => {
                self.dismiss(now, observer, process, "it speaks for another process's connection");
            }
            ToNode::Accepted { ask, from } => self.tell_caller(now, observer, process, ask, from),
            ToNode::Greeted(from) => self.registry.greeted(process, from),
            ToNode::Pressed(room) => self.handle_pressed(now, process, room),
            ToNode::LineWanted => self.want_line(process.job),
            ToNode::AskStable { stream, receiver } => self.ask_stable(now, observer, process, stream, receiver),
            ToNode::Forget { connection, peer, for_good } => {
                let epoch = self.running_epoch(process.job);
                self.send_to_host(peer, &PeerMessage::Forget { connection, process: peer, for_good, epoch });
            }
            ToNode::Initialized => self.handle_initialized(now, process),
            ToNode::Checkpointed { request, result } => self.handle_checkpointed(now, process, request, result),
            ToNode::Diverged(why) => self.handle_diverged(now, process, why),
            ToNode::Holds { ask, causes } => self.handle_holds(process, ask, causes),
            ToNode::Doubts { why, patience } => self.handle_doubts(now, process, &why, patience),
            ToNode::Note(text) => self.handle_note(now, process, &text),
            ToNode::Kept(what) => self.handle_kept(now, process, &what),
            ToNode::AtEnd(end) => self.handle_at_end(now, process, end),
            ToNode::Leaving(counters) => {
                self.with_host(now, process.job, |host| host.handle_leaving(process.rank));
                self.observed(process, |observed| observed.counters = Some(*counters));
            }
        }
    }

    fn observed(&mut self, process: ProcessId, change: impl FnOnce(&mut Observed)) {
        if let Some(observed) = self.observers.processes.get_mut(&process) {
            change(observed);
        }
    }

    /// The call of a process did not reach a protected one. `made`: there is a connection all the same.
    fn handle_call_of_none(&mut self, now: Duration, process: ProcessId, call: Call, made: bool) {
        self.tell_if_unprotected(now, process, !made, || format!("connects to {}", call.to));
        let call = self.seen(call);
        self.withdraw(call);
    }

    /// Tells a process that has accepted a connection which caller that is of.
    fn tell_caller(&mut self, now: Duration, observer: ObserverId, process: ProcessId, ask: u64, from: SocketAddr) {
        let caller = self.registry.caller(process, from);
        self.tell_if_unprotected(now, process, caller.is_some(), || format!("is called from {from}"));
        self.outputs.push_back(Output::Observer(observer, FromNode::Caller { ask, caller }));
    }

    /// A process listens at an address of this node.
    fn listen(&mut self, now: Duration, observer: ObserverId, process: ProcessId, address: SocketAddr) {
        if address.ip().is_unspecified() && self.origin_of(process).is_some() {
            // The process has the port that it had, but is called by the address that it had then.
            let at = SocketAddr::new(self.config.me.data, address.port());
            return self.listen_at(now, observer, process, address, at);
        }
        if let Err(error) = self.registry.listen(process, address) {
            self.dismiss(now, observer, process, &error.to_string());
        }
    }

    /// A process that has moved listens where it listened before. All addresses means those of the node where it was first
    /// launched, and of the listener's family: a listener for IPv6 that also takes IPv4 is named twice.
    fn listen_at(&mut self, now: Duration, observer: ObserverId, process: ProcessId, address: SocketAddr, at: SocketAddr) {
        let is_meant = |ip: &IpAddr| address.ip().is_unspecified() && ip.is_ipv4() == address.is_ipv4();
        let origin = self.origin_of(process).filter(is_meant);
        let seen = origin.map(|ip| SocketAddr::new(ip, address.port()));
        for address in seen.into_iter().chain([address]) {
            if let Err(error) = self.registry.listen_at(process, address, at) {
                return self.dismiss(now, observer, process, &error.to_string());
            }
        }
    }

    /// Asks every member on behalf of an observer.
    fn ask_all(&mut self, now: Duration, observer: ObserverId, process: ProcessId, purpose: Purpose, query: &Query) {
        if self.begin_ask(now, observer, process) {
            let all = self.view().map_or_else(Vec::new, |view| view.members.iter().map(|m| m.id.clone()).collect());
            self.gather_from(now, purpose, query, all, LOOK_UP);
        }
    }

    /// The answer to a `Where` of an observer. A rank of this job that no node knows of is on its way, unless the home knows that
    /// it has ended: the node that brings it back will say so.
    pub(super) fn finish_where<'a>(
        &mut self,
        (observer, process, ask): (ObserverId, ProcessId, u64),
        other: ProcessId,
        answers: impl Iterator<Item = &'a Answer>,
    ) {
        self.end_ask(observer);
        let (mut places, mut ended) = (Vec::new(), false);
        for answer in answers {
            if let Answer::Where { place, ended: has_ended } = answer {
                places.extend(*place);
                ended |= *has_ended;
            }
        }
        let find = |wanted: fn(&Place) -> bool| places.iter().copied().find(wanted);
        let known = find(|place| matches!(place, Place::Here { .. })).or(find(|place| *place == Place::Left)).or(find(|_| true));
        let default = if self.hosts.contains_key(&other.job) && !ended { Place::Away } else { Place::Left };
        if self.is_newest(observer, process) {
            let place = known.unwrap_or(default);
            self.outputs.push_back(Output::Observer(observer, FromNode::Place { ask, place }));
        }
    }

    /// The answer to an `Ended` of an observer.
    pub(super) fn finish_final(&mut self, observer: ObserverId, process: ProcessId, ask: u64, end: Option<StreamEnd>) {
        self.end_ask(observer);
        if self.is_newest(observer, process) {
            self.outputs.push_back(Output::Observer(observer, FromNode::Final { ask, end }));
        }
    }

    /// Disconnects an observer that says what no library of this build says: whatever comes next could be as wrong.
    fn dismiss(&mut self, now: Duration, observer: ObserverId, process: ProcessId, why: &str) {
        let text = format!("the library in rank {} was disconnected: {why}", process.rank);
        self.record(now, EventName::Refused, About::rank(process.job, process.rank), text);
        self.outputs.push_back(Output::CloseObserver(observer));
        self.forget_observer(observer);
    }

    /// Counts a question that waits for other nodes. Returns false if the observer has too many of them.
    fn begin_ask(&mut self, now: Duration, observer: ObserverId, process: ProcessId) -> bool {
        let asks = self.observers.asks.entry(observer).or_default();
        if *asks == limits::ASKS {
            self.dismiss(now, observer, process, &format!("{} of its questions wait already", limits::ASKS));
            return false;
        }
        *asks += 1;
        true
    }

    fn end_ask(&mut self, observer: ObserverId) {
        let asks = self.observers.asks.get_mut(&observer).expect("a question ends that was begun");
        *asks -= 1;
        if *asks == 0 {
            self.observers.asks.remove(&observer);
        }
    }

    fn look_up(&mut self, now: Duration, observer: ObserverId, process: ProcessId, ask: u64, call: Call) {
        let call = self.seen(call);
        if let Some((peer, at)) = self.meet(&call) {
            return self.tell_peer(now, observer, process, (ask, call), Some((peer, at)), false);
        }
        if !self.begin_ask(now, observer, process) {
            return;
        }
        let query = Query::Listener { connection: call.connection, from: call.from, to: call.to };
        let nodes = self.called(&call);
        self.gather_from(now, Purpose::Listener { observer, process, ask, call }, &query, nodes, LOOK_UP);
    }

    /// The call with the addresses that other nodes see.
    fn seen(&self, call: Call) -> Call {
        let to = registry::target(call.to);
        Call { from: registry::source(call.from, to, self.config.me.data), to, ..call }
    }

    /// The process here that listens for this call, and where if it has moved. The call is expected from now on, even if a
    /// process begins to listen only later.
    fn meet(&mut self, call: &Call) -> Option<(ProcessId, Option<SocketAddr>)> {
        let mine = self.is_mine(call.to.ip());
        let Some(process) = self.registry.find(call.to, mine) else {
            self.registry.miss(call.from, call.to, mine, (call.connection, call.asked));
            return None;
        };
        self.registry.expect(process, call.from, (call.connection, call.asked));
        Some((process, self.registry.moved_to(call.to, mine)))
    }

    /// The nodes that are asked for a listener where this call goes.
    fn called(&self, call: &Call) -> Vec<NodeId> {
        let nodes = self.candidates(call.to, self.is_mine(call.to.ip()));
        self.and_home(nodes, call.connection.opener.job)
    }

    fn candidates(&self, to: SocketAddr, mine: bool) -> Vec<NodeId> {
        let Some(view) = self.view() else { return Vec::new() };
        if self.registry.has_resumed() {
            let others = view.members.iter().filter(|member| member.id != *self.me());
            return others.map(|member| member.id.clone()).collect();
        }
        registry::candidates(view, &self.config.me, to, mine)
    }

    /// These nodes, and the job's home. The home knows which ranks are lost, and a lost rank may have listened anywhere.
    fn and_home(&self, mut nodes: Vec<NodeId>, job: JobId) -> Vec<NodeId> {
        let home = self.hosts.get(&job).map(Host::home).filter(|home| !nodes.contains(home) && *home != self.me());
        nodes.extend(home.cloned());
        nodes
    }

    /// The kernel has given a process an address. A process that has moved or is lost may still be called by the same address:
    /// then there would be two.
    fn handle_claim(&mut self, now: Duration, observer: ObserverId, process: ProcessId, ask: u64, address: SocketAddr) {
        let here = || self.origin_of(process).unwrap_or(self.config.me.data);
        let ip = if address.ip().is_unspecified() { here() } else { address.ip() };
        let address = canonical(SocketAddr::new(ip, address.port()));
        let mine = self.is_mine(address.ip());
        if !self.begin_ask(now, observer, process) {
            return;
        }
        if let Some(holder) = self.registry.held_by_moved(address, mine, process) {
            return self.finish_claim((observer, process, ask), Some(holder), false);
        }
        // There are nearly always none: each node has an address of its own.
        let mut nodes = self.candidates(address, mine);
        if !nodes.is_empty() {
            nodes = self.and_home(nodes, process.job);
        }
        let purpose = Purpose::Claim { observer, process, ask, address };
        self.gather_from(now, purpose, &Query::Claim { process, address }, nodes, LOOK_UP);
    }

    pub(super) fn answer_claim(&mut self, now: Duration, from: &NodeId, process: ProcessId, address: SocketAddr) -> Answer {
        let holder = self.registry.held_by_moved(address, self.is_mine(address.ip()), process);
        let view = self.view_number();
        let vacancy = Vacancy { at: address, wanted_by: process, asker: from.clone() };
        Answer::Claim { holder, away: self.is_any_away(now, &vacancy), view }
    }

    pub(super) fn finish_claim(
        &mut self,
        (observer, process, ask): (ObserverId, ProcessId, u64),
        holder: Option<ProcessId>,
        later: bool,
    ) {
        self.end_ask(observer);
        if self.is_newest(observer, process) {
            self.outputs.push_back(Output::Observer(observer, FromNode::Claimed { ask, holder, later }));
        }
    }

    /// Whether a process here is about to listen at `to`.
    pub(super) fn is_announced(&self, to: SocketAddr) -> bool {
        self.registry.is_announced(to, self.is_mine(to.ip()))
    }

    /// Whether the address is one of this machine's.
    pub(super) fn is_mine(&self, ip: IpAddr) -> bool {
        ip.is_loopback()
            || ip == self.config.me.data
            || ip == self.config.me.address.ip()
            || (self.config.addresses)().contains(&ip)
    }

    /// The machine of this address, as the members know each other.
    fn machine_of(&self, ip: IpAddr) -> Machine {
        let Some(view) = self.view() else { return Machine::Foreign };
        // In this order: most calls go to members, and this machine's addresses are asked of the kernel.
        if registry::has_member(view, ip) || self.is_mine(ip) {
            Machine::Member
        } else if view.is_dead(ip) {
            Machine::Dead
        } else {
            Machine::Foreign
        }
    }

    /// Another node's process is about to connect.
    pub(super) fn answer_listener(&mut self, now: Duration, asker: &NodeId, call: Call) -> Answer {
        let Call { connection, to, .. } = call;
        // A listener on a machine's loopback is known to the nodes of that machine only. The home of the caller's job is asked
        // all the same, because it knows which ranks are lost.
        let is_here = !to.ip().is_loopback() || self.is_on_this_machine(asker);
        let found = if is_here { self.meet(&call) } else { None };
        let (process, at) = found.unzip();
        let view = self.view_number();
        let vacancy = Vacancy { at: to, wanted_by: connection.opener, asker: asker.clone() };
        let away = is_here && self.is_announced(to) || self.is_any_away(now, &vacancy);
        Answer::Listener { process, at: at.flatten(), away, view }
    }

    /// Whether a process may listen later where none was found: a process that may have listened there is lost and not back yet,
    /// or a node that answered has not heard of the last death.
    pub(super) fn may_listen_later<'a>(
        &mut self,
        now: Duration,
        wanted_by: ProcessId,
        at: SocketAddr,
        answers: impl IntoIterator<Item = &'a Answer>,
    ) -> bool {
        let newest = self.view_number();
        let later = |answer: &Answer| matches!(answer, Answer::Listener { away, view, .. } | Answer::Claim { away, view, .. } if *away || *view < newest);
        answers.into_iter().any(later) || self.is_any_away(now, &Vacancy { at, wanted_by, asker: self.me().clone() })
    }

    /// All nodes have answered, or one has a listener there, or the time is over and `silent` have said nothing.
    pub(super) fn finish_listener(
        &mut self,
        now: Duration,
        (observer, process, ask, call): (ObserverId, ProcessId, u64, Call),
        found: Option<(ProcessId, Option<SocketAddr>)>,
        later: bool,
        silent: &[NodeId],
    ) {
        self.end_ask(observer);
        if found.is_none() && !silent.is_empty() {
            let names: Vec<_> = silent.iter().map(|n| n.name.as_str()).take(20).collect();
            let names = names.join(", ");
            let text = format!("{names} did not say within {} s whether a process listens at {}", LOOK_UP.as_secs(), call.to);
            self.record(now, EventName::Limit, About::rank(process.job, process.rank), text);
        }
        // Of a caller that is gone an earlier connection may lie in the backlog still: it stays expected, so that this is not
        // taken for one of an unprotected process.
        if self.is_newest(observer, process) {
            self.tell_peer(now, observer, process, (ask, call), found, later);
        }
    }

    /// The key with which the opener of a connection proves itself to a process of this job.
    fn greeting_key(&self, job: JobId, connection: ConnectionId) -> JobKey {
        JobKey::derive(&self.config.key, job).greeting_key(&connection)
    }

    fn tell_peer(
        &mut self,
        now: Duration,
        observer: ObserverId,
        process: ProcessId,
        (ask, call): (u64, Call),
        found: Option<(ProcessId, Option<SocketAddr>)>,
        later: bool,
    ) {
        let (peer, at) = found.unzip();
        let at = at.flatten();
        let other = peer.filter(|peer| peer.job != process.job);
        let key = other.map(|peer| self.greeting_key(peer.job, call.connection));
        let machine = self.machine_of(call.to.ip());
        if peer.is_none() && !later && machine == Machine::Dead {
            self.tell_of_dead(now, process, call.to);
        }
        self.outputs.push_back(Output::Observer(observer, FromNode::Peer { ask, peer, key, at, later, machine }));
    }

    /// Records, once for each process, that its call to a dead machine is refused.
    fn tell_of_dead(&mut self, now: Duration, process: ProcessId, to: SocketAddr) {
        let Some(observed) = self.observers.processes.get_mut(&process).filter(|observed| !observed.dead_told) else { return };
        observed.dead_told = true;
        let text = format!(
            "rank {} calls {to}, on a machine that was declared dead: it is refused, because what was lost there may run on \
            (said once for each rank)",
            process.rank
        );
        self.record(now, EventName::Limit, About::rank(process.job, process.rank), text);
    }

    /// Records, once for each process, that it talks to a peer without protection.
    fn tell_if_unprotected(&mut self, now: Duration, process: ProcessId, protected: bool, what: impl FnOnce() -> String) {
        let Some(observed) = self.observers.processes.get_mut(&process).filter(|p| !protected && !p.peer_told) else { return };
        observed.peer_told = true;
        let text = format!(
            "rank {} {}, where no process is protected: what passes there is not logged (said once for each rank)",
            process.rank,
            what()
        );
        self.record_unprotected(now, process, Unprotected::Peer, text);
    }

    /// G7: what is not protected is an event, and is told at the terminal.
    pub(super) fn record_unprotected(&mut self, now: Duration, process: ProcessId, kind: Unprotected, text: String) {
        self.record(now, EventName::Unprotected, About::rank(process.job, process.rank), text.clone());
        self.with_host(now, process.job, |host| host.tell_unprotected(kind, text));
    }

    /// The call does not come, or its target is not protected: every node that was asked is told.
    fn withdraw(&mut self, call: Call) {
        // Its next question has a greater number.
        let until = self.next_query;
        self.next_query += 1;
        self.registry.withdraw(call.from, call.connection, until);
        let message = PeerMessage::Withdraw { connection: call.connection, from: call.from, until };
        self.called(&call).iter().for_each(|node| self.send(node, message.clone()));
    }

    /// Sends to the node that hosts the process, or to all nodes if nothing of its job is here.
    pub(super) fn send_to_host(&mut self, process: ProcessId, message: &PeerMessage) {
        match self.hosts.get(&process.job).map(|host| host.placement().node_of(process.rank).cloned()) {
            Some(Some(node)) => self.send(&node, message.clone()),
            Some(None) => {}
            None => self.tell_all(message),
        }
    }

    /// The epoch of a job that runs on this node.
    pub(super) fn running_epoch(&self, job: JobId) -> Epoch {
        self.hosts.get(&job).map_or(Epoch::FIRST, Host::epoch)
    }

    /// The peer of a connection has closed it, and will never ask for it again. If the job has restarted since, the connection
    /// belongs to an earlier epoch.
    pub(super) fn handle_forget(&mut self, connection: ConnectionId, process: ProcessId, for_good: bool, epoch: Epoch) {
        if epoch != self.running_epoch(process.job) {
            return;
        }
        if let Some(observer) = self.observers.processes.get(&process).and_then(Observed::observer) {
            self.outputs.push_back(Output::Observer(observer, FromNode::Forget { connection, for_good }));
        }
    }

    fn ask_stable(&mut self, now: Duration, observer: ObserverId, process: ProcessId, stream: StreamId, receiver: ProcessId) {
        if self.begin_ask(now, observer, process) {
            let (nodes, all) = self.asked_for_stable(receiver);
            let purpose = Purpose::Stable { observer, process, stream, receiver, all };
            let same = self.hosts.get(&process.job).filter(|_| receiver.job == process.job);
            let epoch = same.map_or(Epoch::FIRST, Host::epoch);
            self.gather_from(now, purpose, &Query::Stable { stream, receiver, epoch }, nodes, STORE);
        }
    }

    /// The nodes to ask how much of a receiver's streams is stable. The log may be with the watcher of its node or with an
    /// earlier protector, so all nodes are asked. Next time only the node that had it is asked, and the host, which knows whether
    /// the receiver has left. What a node does not hold is not stable there, so asking too few costs time and nothing else.
    fn asked_for_stable(&mut self, receiver: ProcessId) -> (Vec<NodeId>, bool) {
        let host = self.hosts.get(&receiver.job).and_then(|host| host.placement().node_of(receiver.rank)).cloned();
        let known = self.observers.stable_at.get_mut(&receiver).filter(|(_, asked)| *asked < ALONE);
        match known.zip(host) {
            Some(((holder, asked), host)) => {
                *asked += 1;
                (vec![holder.clone(), host], false)
            }
            None => (self.view().map_or_else(Vec::new, |view| view.members.iter().map(|m| m.id.clone()).collect()), true),
        }
    }

    /// There is another view: any node may hold something else.
    pub(super) fn forget_stable(&mut self) {
        self.observers.stable_at.clear();
    }

    pub(super) fn finish_stable(
        &mut self,
        (observer, process): (ObserverId, ProcessId),
        (stream, receiver, all): (StreamId, ProcessId, bool),
        answers: &BTreeMap<NodeId, Answer>,
    ) {
        self.end_ask(observer);
        let of = |answer: &Answer| if let Answer::Stable(offset) = answer { *offset } else { 0 };
        let most = answers.iter().map(|(node, answer)| (of(answer), node)).max().filter(|(offset, _)| *offset > 0);
        let offset = most.map_or(0, |(offset, _)| offset);
        match most {
            None => _ = self.observers.stable_at.remove(&receiver),
            Some((_, node)) if all => _ = self.observers.stable_at.insert(receiver, (node.clone(), 0)),
            Some(_) => {}
        }
        if self.is_newest(observer, process) {
            self.outputs.push_back(Output::Observer(observer, FromNode::Stable { stream, offset }));
        }
    }

    fn handle_note(&mut self, now: Duration, process: ProcessId, text: &str) {
        if let Some(text) = self.take_note(process, text) {
            self.record(now, EventName::Note, About::rank(process.job, process.rank), format!("rank {}: {text}", process.rank));
        }
    }

    /// A call of its program has waited for long.
    fn handle_kept(&mut self, now: Duration, process: ProcessId, what: &str) {
        if let Some(what) = self.take_note(process, what) {
            self.with_host(now, process.job, |host| host.tell_what_keeps(process.rank, what));
        }
    }

    /// What a process says, for people. None: it has said too much already.
    fn take_note(&mut self, process: ProcessId, text: &str) -> Option<String> {
        let observed = self.observers.processes.get_mut(&process)?;
        observed.notes = observed.notes.saturating_add(1);
        let rest = match observed.notes.cmp(&limits::NOTES) {
            std::cmp::Ordering::Less => "",
            std::cmp::Ordering::Equal => " (what else it has to say is not kept)",
            std::cmp::Ordering::Greater => return None,
        };
        let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).take(TEXT).collect();
        Some(format!("{text}{rest}"))
    }

    /// The connection of an observer is gone.
    pub(super) fn forget_observer(&mut self, observer: ObserverId) {
        let Some(process) = self.observers.joined.remove(&observer) else { return };
        if let Some(observed) = self.observers.processes.get_mut(&process).filter(|p| p.observer() == Some(observer)) {
            observed.handle_gone();
            self.note_death(process);
            self.leave_listeners(process);
            self.forget_door(process);
            self.fail_checkpoints(process, REPLACED);
        }
    }

    /// A process of this node has ended.
    pub(super) fn handle_process_ended(&mut self, process: ProcessId) {
        let Some(observed) = self.observers.processes.get_mut(&process) else { return };
        observed.schedule = Schedule::default();
        // If its connection ended before, its listeners were dropped then.
        if observed.observer().is_some() {
            self.leave_listeners(process);
        }
        self.fail_checkpoints(process, "it has ended");
    }

    /// Nothing of the job is left here. What its processes counted is kept for a while.
    pub(super) fn forget_processes(&mut self, job: JobId) {
        let ended: Vec<_> = self.hosts.get(&job).into_iter().flat_map(|host| self.infos_of(host)).collect();
        self.ended.extend(ended);
        let excess = self.ended.len().saturating_sub(limits::PROCESSES_ENDED);
        self.ended.drain(..excess);
        self.observers.processes.retain(|process, _| process.job != job);
        self.observers.stable_at.retain(|process, _| process.job != job);
        self.observers.joined.retain(|_, process| process.job != job);
        let is_protected = self.hosts.get(&job).is_some_and(|host| host.protection().protect == Protect::On);
        self.registry.forget_job(job, is_protected && !self.has_ended(job));
    }

    /// All protected processes that run here or ran lately.
    pub(super) fn process_infos(&self) -> Vec<ProcessInfo> {
        self.ended.iter().cloned().chain(self.hosts.values().flat_map(|host| self.infos_of(host))).collect()
    }

    fn infos_of(&self, host: &Host) -> Vec<ProcessInfo> {
        let (job, protect, node) = (host.job(), host.protection().protect, self.me().name.clone());
        if protect == Protect::None {
            return Vec::new();
        }
        let info = |rank| {
            let observed = self.observers.processes.get(&ProcessId { job, rank });
            let (pid, joined) = (host.pid(rank), observed.is_some_and(Observed::has_joined));
            let live = || pid.filter(|_| joined).and_then(self.config.counters);
            let counters = observed.and_then(|o| o.counters).or_else(live);
            let (running, pid, node) = (pid.is_some(), host.last_pid(rank), node.clone());
            let degraded = self.is_degraded(ProcessId { job, rank });
            let activity = if running { (self.config.activity)(pid) } else { None };
            let (cpu_ms, stopped) = activity.map_or((None, false), |a| (Some(a.cpu.as_millis() as u64), a.stopped));
            let logs = Vec::new();
            ProcessInfo { job, rank, node, pid, running, protect, joined, degraded, counters, cpu_ms, stopped, logs }
        };
        host.ranks().map(info).collect()
    }
}
