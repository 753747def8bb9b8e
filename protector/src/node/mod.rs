//! One protector as a state machine: what happened goes in ([`Node::handle`]), what it wants done comes out
//! ([`Node::poll_output`]), and it says when it wants to be called again ([`Node::poll_timeout`]). It has no socket, clock or
//! process: [`crate::daemon`] has those, or a simulation.
//!
//! It is composed of the membership ([`crate::membership`]), the jobs whose home this node is ([`home`]), the ranks that it hosts
//! ([`host`]), their observers ([`observers`], with [`registry`] and `checkpoints`), the orders to the log service ([`stores`]),
//! the `radic` commands that are connected (`clients`), and the memory of events ([`events`]).
//!
//! A node also talks to itself: a message for this node is put on a queue and handled like one from the network, so one node and
//! many run the same code.

mod away;
mod call;
mod calls;
mod checkpoints;
mod children;
mod client;
mod clients;
mod collection;
mod config;
mod early;
mod endings;
pub mod events;
mod executes;
mod fences;
mod finals;
mod following;
mod here;
pub mod home;
pub mod host;
mod jobs;
mod launches;
mod line;
mod lines;
mod lives;
mod majority;
mod next_home;
mod numbers;
mod observed;
pub mod observers;
mod outlet;
mod phase;
pub mod placement;
mod protecting;
mod purpose;
mod recovery;
pub mod registry;
pub mod replays;
mod sessions;
mod stand_in;
mod stdin;
pub mod stores;
mod suspension;
#[cfg(test)]
pub(crate) mod tests;
mod wards;
mod watching;
mod whereabouts;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use radic_wire::event::{Event, EventName};
use radic_wire::fault::Fault;
use radic_wire::ids::{Epoch, Incarnation, JobId, NodeId, ProcessId, Rank, Seat};
use radic_wire::job::{ExitStatus, OutputStream};
use radic_wire::local::{NodeState, Reply, Request};
use radic_wire::membership::{Departure, Member, MembershipMessage, Refusal, View};
use radic_wire::peer::{Answer, PeerMessage, Query};
use radic_wire::process::{FromNode, ToNode};
use radic_wire::report::ProcessInfo;
use serde_bytes::ByteBuf;

use self::call::Call;
use self::calls::Gather;
use self::client::Client;
use self::collection::Collections;
pub use self::config::NodeConfig;
use self::early::Early;
use self::events::{About, EventLog};
use self::home::Home;
use self::host::{Host, HostOutput, NameRequest, SpawnError};
use self::lines::Lines;
pub use self::numbers::{ClientId, ObserverId};
use self::observers::Observers;
use self::phase::Phase;
use self::recovery::Recovery;
use self::registry::Registry;
use self::replays::Watched;
use self::stores::{Sparse, StoreOrder};
use crate::membership::{self, Loss, Membership, MembershipEvent, Peer, Reason, Views};
use crate::random::Random;
use crate::store::{LineHeld, NoRestart, Restart};

/// Members that are gone and still shown by `radic nodes`.
const GONE_SHOWN: usize = 64;
/// Nodes that one event names.
const NAMED: usize = 64;
/// Time that a leaving node waits for the view without it.
const LEAVE: Duration = Duration::from_secs(2);
/// Time that a joining node tries to get into a view.
const JOIN: Duration = Duration::from_secs(30);

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// A message of an authenticated protector, in order, once.
    Message(NodeId, PeerMessage),
    /// A heartbeat, with the sender's view number.
    Heartbeat(NodeId, u64),
    /// A connection with that protector broke.
    LinkBroken(NodeId),
    /// What was sent to that member will not all arrive: one of the two has to leave.
    LinkLost(NodeId),
    /// The machine of [`Output::Probe`] has taken the connection. Its protector has not answered yet.
    ProbeReached(NodeId),
    /// The answer to [`Output::Probe`].
    ProbeResult(NodeId, bool),
    /// A request of a command.
    Client(ClientId, Request),
    /// A command is gone.
    ClientGone(ClientId),
    /// The answer to [`HostOutput::Spawn`], and the second one to [`HostOutput::Restore`].
    Spawned(ProcessId, Result<u32, SpawnError>),
    /// The first answer to [`HostOutput::Restore`].
    Fetched(ProcessId, Result<(), String>),
    /// The answer to [`HostOutput::Read`]. Empty at the end of the stream.
    ProcessOutput(ProcessId, OutputStream, ByteBuf),
    /// A process has ended.
    Exited(ProcessId, ExitStatus),
    /// Bytes of a rank's PMI connection.
    Pmi(ProcessId, Vec<u8>),
    /// The answer to [`HostOutput::Stdin`].
    StdinTaken(JobId, u64),
    /// A message of an observer, and the process id at the other end of its connection.
    Observer(ObserverId, u32, ToNode),
    /// An observer's connection is gone.
    ObserverGone(ObserverId),
    /// The answer of this node's store to a question of a node, with the question's number there.
    StoreAnswer(NodeId, u64, Answer),
    /// The answer to [`StoreOrder::HeldOfLine`].
    LineHeld(NodeId, u64, (JobId, Epoch), LineHeld),
    /// The image of this recovery line lacks nothing but that the line is complete.
    LineReady(ProcessId, u64),
    /// The answer to [`StoreOrder::Fence`].
    Fenced(ProcessId, Incarnation, Result<Restart, NoRestart>),
    /// The answer to [`StoreOrder::Causes`].
    StoreCauses(u64, Vec<Vec<u8>>),
    /// Something that the store has for the event log, perhaps about a process.
    StoreEvent(EventName, Option<ProcessId>, String),
    /// The log of a process that is catching up cannot be read here.
    Unreadable(ProcessId, String),
    /// Something for the event log: a peer was refused, or a limit was reached.
    Note(EventName, String),
    /// SIGTERM: leave the cluster.
    Leave,
}

/// Why the daemon is to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The node left, or the whole cluster was shut down.
    Clean,
    /// The other nodes declared this one dead: whatever it would say is no longer wanted.
    Excluded(String),
    /// The node cannot join.
    Refused(String),
}

/// What the node wants done.
#[derive(Debug)]
pub enum Output {
    /// Send a message, reliably.
    Send(Peer, PeerMessage),
    /// Send a message to the protector that listens there: a joining node does not know more of it.
    SendToSeed(SocketAddr, MembershipMessage),
    /// Send a heartbeat with this node's view number. A late one is worth nothing.
    Heartbeat(Peer, u64),
    /// Find out by a fresh connection whether this very member answers.
    Probe(Peer),
    /// Answer a command.
    Reply(ClientId, Reply),
    /// Close the connection of a command, after what was replied.
    CloseClient(ClientId),
    /// Do something with a process of a job.
    Process(JobId, HostOutput),
    /// Tell an observer.
    Observer(ObserverId, FromNode),
    /// Close the connection of an observer, after what it was told.
    CloseObserver(ObserverId),
    /// Nudge an observer's process, so that it looks at what it was told: it may be computing.
    Nudge(ObserverId),
    /// Tell this node's store of logs and images.
    Store(StoreOrder),
    /// The view has so many members now, each of which may call at once.
    Members(usize),
    /// Forget the links and numbers of a node: it is gone forever.
    Forget(NodeId),
    /// Log an event.
    Log(Event),
    /// This node is a member now.
    Ready(u64),
    /// End the daemon, after what was sent.
    Stop(Stop),
    /// Kill every rank and this process with SIGKILL, now.
    Die,
    /// Cause this fault here.
    Fault(Fault),
}

/// One protector.
pub struct Node {
    config: NodeConfig,
    membership: Membership,
    early: Early,
    phase: Phase,
    /// The last reason why the cluster does not let this node in.
    refusal: Option<String>,
    homes: BTreeMap<JobId, Home>,
    /// Homes whose job is over, oldest first.
    over: VecDeque<JobId>,
    hosts: BTreeMap<JobId, Host>,
    observers: Observers,
    registry: Registry,
    recovery: Recovery,
    /// Processes of this node that are catching up.
    replays: BTreeMap<ProcessId, Watched>,
    collections: Collections,
    lines: Lines,
    /// Commands that wait for checkpoints.
    checkpoints: Vec<checkpoints::Waiting>,
    /// The time between checkpoints that this node has chosen for its jobs, as it was told last.
    told_intervals: BTreeMap<JobId, Duration>,
    /// Protected processes that have ended, oldest first.
    ended: VecDeque<ProcessInfo>,
    /// The nodes with the log services that protect this node's processes: the protector, and its replica.
    protectors: [Option<NodeId>; 2],
    sparse: Sparse,
    /// Jobs of which this node's log service may hold something.
    stored: BTreeSet<JobId>,
    clients: BTreeMap<ClientId, Client>,
    gathers: BTreeMap<u64, Gather>,
    next_query: u64,
    random: Random,
    lives: lives::Lives,
    /// Names that ranks of this node have published: their job and port.
    names: BTreeMap<String, (JobId, String)>,
    events: EventLog,
    subscribers: BTreeSet<NodeId>,
    gone: VecDeque<(Member, NodeState)>,
    /// Messages from this node to itself.
    to_self: VecDeque<PeerMessage>,
    outputs: VecDeque<Output>,
}

impl Node {
    /// A node that starts now.
    pub fn new(now: Duration, config: NodeConfig) -> Self {
        let (me, timing, seed) = (config.me.clone(), config.timing.clone(), config.seed);
        let membership = if config.join.is_empty() {
            Membership::bootstrap(now, me, timing, seed)
        } else {
            let membership = Membership::joining(now, me, config.join.clone(), timing, seed);
            match config.found {
                Some(others) => membership.may_found(others),
                None => membership,
            }
        };
        Node::with(now, config, membership)
    }

    /// A node that has been a member of `view` for some time and shares what it computes from views with other nodes. For
    /// simulations of many nodes.
    pub fn member_of(now: Duration, config: NodeConfig, view: &Arc<View>, views: &Views) -> Self {
        let (me, timing, seed) = (config.me.clone(), config.timing.clone(), config.seed);
        let membership = Membership::member_of(now, me, view, views, timing, seed);
        Node::with(now, config, membership)
    }

    /// From now on this node shares what it computes from views with other nodes. For simulations of many nodes.
    pub fn share(&mut self, views: &Views) {
        self.membership.share(views);
    }

    fn with(now: Duration, config: NodeConfig, membership: Membership) -> Self {
        let seed = config.seed;
        let mut node = Node {
            membership,
            early: Early::default(),
            phase: Phase::joining(now, &config.join),
            refusal: None,
            homes: BTreeMap::new(),
            over: VecDeque::new(),
            hosts: BTreeMap::new(),
            observers: Observers::default(),
            registry: Registry::default(),
            recovery: Recovery::default(),
            replays: BTreeMap::new(),
            collections: Collections::default(),
            lines: Lines::default(),
            checkpoints: Vec::new(),
            told_intervals: BTreeMap::new(),
            ended: VecDeque::new(),
            protectors: [None, None],
            sparse: Sparse::default(),
            stored: BTreeSet::new(),
            clients: BTreeMap::new(),
            gathers: BTreeMap::new(),
            next_query: 1,
            random: Random::new(seed),
            lives: lives::Lives::default(),
            names: BTreeMap::new(),
            events: EventLog::new(config.me.id.name.clone(), config.wall_us),
            subscribers: BTreeSet::new(),
            gone: VecDeque::new(),
            to_self: VecDeque::new(),
            outputs: VecDeque::new(),
            config,
        };
        let text = format!("protector of {} at {}", node.config.me.id.name, node.config.me.address);
        node.record(now, EventName::Start, About::default(), text);
        node.settle(now);
        node
    }

    /// Handles one thing that happened.
    pub fn handle(&mut self, now: Duration, input: Input) {
        match input {
            Input::Message(from, message) => self.hear(now, &from, message),
            Input::Heartbeat(from, view) => self.membership.handle_heartbeat(now, from, view),
            Input::LinkBroken(node) => self.membership.handle_link_broken(now, node),
            Input::LinkLost(node) => self.membership.handle_link_lost(now, node),
            Input::ProbeReached(node) => self.membership.handle_probe_reached(now, node),
            Input::ProbeResult(node, alive) => self.membership.handle_probe_result(now, node, alive),
            Input::Client(client, request) => self.handle_request(now, client, request),
            Input::ClientGone(client) => self.handle_client_gone(now, client),
            Input::Spawned(process, result) => self.handle_spawned(now, process, result),
            Input::ProcessOutput(process, stream, data) => {
                self.with_host(now, process.job, |host| host.handle_output(process.rank, stream, data));
            }
            Input::Exited(process, status) => self.handle_exited(now, process, status),
            Input::Pmi(process, bytes) => self.with_host(now, process.job, |host| host.handle_pmi(process.rank, &bytes)),
            Input::StdinTaken(job, number) => self.with_host(now, job, |host| host.handle_stdin_taken(number)),
            Input::Observer(observer, pid, message) => self.handle_observer(now, observer, pid, message),
            Input::ObserverGone(observer) => self.forget_observer(observer),
            Input::LineHeld(to, number, job, held) => self.handle_line_held(&to, number, job, held),
            Input::LineReady(process, line) => self.handle_line_ready(process, line),
            Input::StoreAnswer(to, number, answer) => self.send(&to, PeerMessage::Answer(number, answer)),
            Input::Fenced(process, incarnation, result) => self.handle_fenced(now, process, incarnation, result),
            Input::StoreCauses(ask, sets) => self.handle_store_causes(ask, sets),
            Input::Fetched(process, result) => self.handle_fetched(now, process, result),
            Input::Unreadable(process, why) => self.handle_unreadable(now, process, why),
            Input::StoreEvent(event, process, text) => self.handle_store_event(now, event, process, text),
            Input::Note(event, text) => self.record(now, event, About::default(), text),
            Input::Leave => self.leave(now),
        }
        self.settle(now);
    }

    /// Handles the passing of time.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.membership.handle_timeout(now);
        let due: Vec<_> =
            self.hosts.iter().filter(|(_, h)| h.poll_timeout().is_some_and(|at| at <= now)).map(|(j, _)| *j).collect();
        due.into_iter().for_each(|job| self.with_host(now, job, |host| host.handle_timeout(now)));
        self.handle_schedules(now);
        self.look_at_replays(now);
        self.look_at_collections(now);
        self.look_at_lines(now);
        self.end_orphans(now);
        self.end_silent_suspenders(now);
        self.end_frozen(now);
        let late: Vec<_> = self.gathers.iter().filter(|(_, g)| g.deadline <= now).map(|(query, _)| *query).collect();
        late.into_iter().for_each(|query| self.finish_gather(now, query));
        self.end_phase(now);
        self.settle(now);
    }

    /// When [`Node::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Duration> {
        // This is called after every input. Each group has its own minimum, because one chain of so many parts costs more than
        // all of them.
        let hosts = self.hosts.values().filter_map(Host::poll_timeout).min();
        let gathers = self.gathers.values().map(|g| g.deadline).min();
        let schedules = self.observers.processes.values().filter_map(|p| p.schedule.poll_timeout()).min();
        let checkpoints = self.checkpoints.iter().map(|w| w.deadline).min();
        let ends = [
            self.collections.poll_timeout(),
            self.lines.poll_timeout(),
            self.next_orphan(),
            self.next_silent_suspender(),
            self.next_frozen(),
            self.next_replay(),
            self.phase.until(),
        ];
        let groups = [hosts, gathers, schedules, checkpoints, self.membership.poll_timeout()];
        ends.into_iter().chain(groups).flatten().min()
    }

    /// What the node wants done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The number of this node's view; 0: it has none.
    fn view_number(&self) -> u64 {
        self.view().map_or(0, |view| view.number)
    }

    /// Where a home sits that takes over a job now.
    fn seat(&self) -> Seat {
        Seat { view: self.view_number(), home: self.me().boot }
    }

    /// The newest view, if there is one.
    pub fn view(&self) -> Option<&View> {
        self.membership.view().map(|view| &**view)
    }

    fn me(&self) -> &NodeId {
        &self.config.me.id
    }

    fn record(&mut self, now: Duration, event: EventName, about: About, text: String) {
        let at_ms = self.config.wall_us / 1000 + now.as_millis() as u64;
        let event = self.events.record(at_ms, event, about, text).clone();
        for subscriber in self.subscribers.clone() {
            self.send(&subscriber, PeerMessage::Events(vec![event.clone()]));
        }
        self.outputs.push_back(Output::Log(event));
    }

    /// Sends to a member of the newest view. A message to any other node is dropped: there is nothing to deliver it to.
    fn send(&mut self, to: &NodeId, message: PeerMessage) {
        if to == self.me() {
            self.to_self.push_back(message);
        } else if let Some(member) = self.member(to) {
            let peer = Peer { id: member.id.clone(), address: Some(member.address) };
            self.outputs.push_back(Output::Send(peer, self.with_life(message)));
        }
    }

    fn member(&self, id: &NodeId) -> Option<&Member> {
        self.membership.member(id)
    }

    fn is_member(&self, id: &NodeId) -> bool {
        id == self.me() || self.member(id).is_some()
    }

    /// Carries out what the parts want of each other until only outputs are left.
    fn settle(&mut self, now: Duration) {
        loop {
            while let Some(output) = self.membership.poll_output() {
                self.handle_membership(now, output);
            }
            let Some(message) = self.to_self.pop_front() else { return };
            let me = self.me().clone();
            self.handle_message(now, &me, message);
        }
    }

    pub(super) fn handle_message(&mut self, now: Duration, from: &NodeId, message: PeerMessage) {
        if let PeerMessage::Membership(message) = message {
            return self.membership.handle_message(now, from.clone(), message);
        }
        if !self.is_member(from) {
            return self.handle_stranger(now, from, message);
        }
        match message {
            PeerMessage::Membership(_) | PeerMessage::OfLife(..) => {} // Handled before.
            PeerMessage::ToHome(job, message) => self.handle_to_home(now, from, job, message),
            PeerMessage::ToHost(job, message) => self.handle_to_host(now, from, job, message),
            PeerMessage::ToSession(session, message) => self.handle_to_session(now, &session, message),
            PeerMessage::Query(number, query) => self.handle_query(now, from, number, &query),
            PeerMessage::ToStore(job, message) => self.handle_to_store(now, from, job, message),
            PeerMessage::Forget { connection, process, for_good, epoch } => {
                self.handle_forget(connection, process, for_good, epoch)
            }
            PeerMessage::Withdraw { connection, from, until } => self.registry.withdraw(from, connection, until),
            PeerMessage::Answer(number, answer) => self.handle_answer(now, from, number, answer),
            PeerMessage::Subscribe => _ = self.subscribers.insert(from.clone()),
            PeerMessage::Unsubscribe => _ = self.subscribers.remove(from),
            PeerMessage::Events(events) => self.handle_events(&events),
            PeerMessage::Restart(order) => self.handle_restart(now, from, *order),
            PeerMessage::Restarted { process, incarnation, log_end, door } => {
                self.handle_returned(process, incarnation, log_end, door);
            }
            PeerMessage::Adopt(adoption) => self.handle_adopt(now, from, *adoption),
            PeerMessage::NewHome(job) => self.handle_new_home(now, from, job),
            PeerMessage::KillRank(process) => self.kill_rank(now, process),
            PeerMessage::Fault(fault) => self.outputs.push_back(Output::Fault(fault)),
            PeerMessage::Die => self.outputs.push_back(Output::Die),
            PeerMessage::Shutdown => self.stop(now, Stop::Clean),
        }
    }

    /// A message of a node that is not in the view. A node that is no member any more has nothing to say about jobs. A node that
    /// is not a member yet is heard when its view has come.
    fn handle_stranger(&mut self, now: Duration, from: &NodeId, message: PeerMessage) {
        if self.has_departed(from) {
            return;
        }
        self.hold(now, from, message);
    }

    /// Keeps a message until the next view.
    fn hold(&mut self, now: Duration, from: &NodeId, message: PeerMessage) {
        if let Err(Some(text)) = self.early.hold(from, message) {
            self.record(now, EventName::Limit, About::node(&from.name), text);
        }
    }

    fn has_departed(&self, id: &NodeId) -> bool {
        self.view().is_some_and(|view| view.departure(id).is_some())
    }

    /// There is a new view: handles messages that came before it.
    fn handle_early(&mut self, now: Duration) {
        let mut departed = BTreeMap::<NodeId, usize>::new();
        for (from, message) in self.early.take() {
            if self.has_departed(&from) {
                *departed.entry(from).or_default() += 1;
            } else {
                self.hear(now, &from, message);
            }
        }
        for (from, count) in departed {
            let text = format!("{count} messages that it sent before this node knew it are dropped: it is gone already");
            self.record(now, EventName::Refused, About::node(&from.name), text);
        }
    }

    fn handle_query(&mut self, now: Duration, from: &NodeId, number: u64, query: &Query) {
        if query.view().is_some_and(|view| view > self.view_number()) {
            let message = self.with_life(PeerMessage::Query(number, query.clone()));
            return self.hold(now, from, message);
        }
        let answer = match query {
            Query::Report => Answer::Report(self.report(now)),
            Query::Events => Answer::Events(self.events.all()),
            Query::LookupName(name) => Answer::Name(self.names.get(name).map(|(_, port)| port.clone())),
            Query::UnpublishName { job, name } => {
                let theirs = self.names.get(name).is_some_and(|(owner, _)| owner == job);
                Answer::Name(if theirs { self.names.remove(name).map(|(_, port)| port) } else { None })
            }
            Query::Listener { connection, from: caller, to } => {
                let call = Call { connection: *connection, from: *caller, to: *to, asked: number };
                self.answer_listener(now, from, call)
            }
            Query::Claim { process, address } => self.answer_claim(now, from, *process, *address),
            Query::Knows { job, .. } => self.answer_knows(*job),
            Query::Lost { job, epoch, ranks, .. } => self.answer_lost(now, from, *job, *epoch, ranks),
            Query::Given(gift) => Answer::Given(self.handle_given(from, gift)),
            Query::Where(process) => {
                let ended = self.homes.get(&process.job).is_some_and(|home| home.has_ended(process.rank));
                Answer::Where { place: self.place_of(*process), ended }
            }
            Query::Final { stream, sender } => Answer::Final(self.final_of(*stream, *sender)),
            Query::Release(process) => return self.handle_release_query(now, from, number, *process),
            Query::Stand(job, standing) => {
                self.handle_stand(now, from, *job, (**standing).clone());
                Answer::Stood
            }
            Query::Hosts(process, incarnation) => {
                let has = self.has_or_refuses(*process, *incarnation);
                Answer::Hosts(has.then(|| self.protector().id.clone()))
            }
            Query::Causes { job, epoch, lost } => return self.handle_causes_query(from, number, (*job, *epoch), lost),
            Query::Line { job, epoch, step } => return self.handle_line_query(now, from, number, (*job, *epoch), step.clone()),
            Query::Deaths(job, epoch) => Answer::Deaths(Box::new(self.deaths(*job, *epoch))),
            Query::Revive(revival) => Answer::Revived(self.revive(from, revival)),
            Query::Fault(fault) => Answer::Fault((self.config.refuse_fault)(*fault, self.config.me.address.ip())),
            Query::Checkpoint(job) => return self.handle_checkpoint_query(now, from, number, *job),
            Query::Stable { .. }
            | Query::ForgetProcess(_)
            | Query::Sizes
            | Query::Flows(_)
            | Query::Log(_)
            | Query::ReadLog { .. } => {
                return self.handle_store_query(from, number, query);
            }
        };
        self.send(from, PeerMessage::Answer(number, answer));
    }

    fn handle_membership(&mut self, now: Duration, output: membership::Output) {
        use membership::Output as M;
        match output {
            M::Send { to, message } => {
                for peer in to {
                    self.outputs.push_back(Output::Send(peer, PeerMessage::Membership(message.clone())));
                }
            }
            M::SendTo { seeds, message } => {
                for seed in seeds {
                    self.outputs.push_back(Output::SendToSeed(seed, message.clone()));
                }
            }
            M::Heartbeat { to, view } => self.outputs.push_back(Output::Heartbeat(to, view)),
            M::Probe { member } => self.outputs.push_back(Output::Probe(member)),
            M::Event(event) => self.record_membership(now, &event),
            M::ViewChanged { old, new, joined, losses } => self.handle_view(now, old.as_ref(), &new, &joined, losses),
            M::Excluded { view } => {
                let text = format!("view {} was agreed without this node: the others take it for dead", view.number);
                self.stop(now, Stop::Excluded(text));
            }
            M::Outrun { number } => {
                let mine = self.view_number();
                let text = format!(
                    "view {number} is the newest, this node has view {mine}, and no node remembers how one led to the other"
                );
                self.stop(now, Stop::Excluded(text));
            }
            M::Left => self.stop(now, Stop::Clean),
            M::Refused(refusal) => self.handle_refusal(now, &refusal),
            M::Frozen { unreachable, reachable, needed } => self.handle_frozen(now, &unreachable, reachable, needed),
            M::Thawed => self.handle_thawed(now),
        }
    }

    fn handle_refusal(&mut self, now: Duration, refusal: &Refusal) {
        let reason = refusal.to_string();
        if self.refusal.as_ref() != Some(&reason) {
            self.record(now, EventName::Refused, About::default(), format!("cannot join yet: {reason}"));
            self.refusal = Some(reason);
        }
    }

    fn record_membership(&mut self, now: Duration, event: &MembershipEvent) {
        let (name, about, text) = match event {
            MembershipEvent::Suspected { node, reason, silent } => {
                let why = match reason {
                    Reason::Silent => "its heartbeats have stopped",
                    Reason::LinkBroken => "a connection to it broke",
                    Reason::Unanswered => "it does not answer what it was sent",
                    Reason::NameClaimed => "another protector wants to join under its name",
                    Reason::WatcherDied => "the node that watches it does not answer",
                    Reason::StillThere => "it was confirmed dead before, and no view has removed it yet",
                };
                (EventName::Suspect, About::node(&node.name), format!("{why}; last heard {} ms ago", silent.as_millis()))
            }
            MembershipEvent::Withdrawn { node } => (EventName::Withdrawn, About::node(&node.name), "it does answer".into()),
            MembershipEvent::Confirmed { node, evidence, .. } => {
                (EventName::Confirm, About::node(&node.name), format!("no node that was asked got an answer: {evidence}"))
            }
            MembershipEvent::Descheduled { late } => {
                let text = format!("this protector was called {} ms late: it suspects no other", late.as_millis());
                (EventName::Descheduled, About::default(), text)
            }
            MembershipEvent::BadMessage { from, what } => (EventName::Refused, About::node(&from.name), what.clone()),
        };
        self.record(now, name, about, text);
    }

    fn handle_view(&mut self, now: Duration, old: Option<&Arc<View>>, new: &Arc<View>, joined: &[NodeId], losses: Vec<Loss>) {
        let mut text = format!("view {} has {} members", new.number, new.members.len());
        text += &listed("joined", joined.iter());
        text += &listed("gone", losses.iter().map(|loss| &loss.member.id));
        if new.members.len() == 2 {
            text += "; two cannot tell a death from a broken network: add a node, or a witness (radicd --witness)";
        }
        self.record(now, EventName::View, About::default(), text);
        self.outputs.push_back(Output::Members(new.members.len()));
        if self.become_member() {
            self.outputs.push_back(Output::Ready(new.number));
        }
        self.handle_losses(now, &losses);
        self.review_standing(now, old.unwrap_or(new), new);
        losses.into_iter().for_each(|loss| self.handle_departure(now, loss));
        self.gone.retain(|(gone, _)| new.named(&gone.id.name).is_none());
        self.subscribe_to(joined);
        self.tell_ends(joined);
        self.forget_stable();
        self.seek_protection(now, None);
        self.replicate_all(now);
        self.seek_homes(now);
        self.handle_early(now);
    }

    fn handle_departure(&mut self, now: Duration, Loss { member, how, .. }: Loss) {
        let (text, state) = match how {
            Departure::Left => ("it left the cluster", NodeState::Left),
            Departure::Died => ("it stopped answering and was declared dead", NodeState::Dead),
        };
        self.handle_node_lost(now, &member.id, text);
        self.subscribers.remove(&member.id);
        self.outputs.push_back(Output::Forget(member.id.clone()));
        self.gone.retain(|(gone, _)| gone.id.name != member.id.name);
        self.gone.push_back((member, state));
        if self.gone.len() > GONE_SHOWN {
            self.gone.pop_front();
        }
    }

    /// A node is dead, gone, or out of reach of a side without a majority: what depended on it ends.
    fn handle_node_lost(&mut self, now: Duration, node: &NodeId, why: &str) {
        self.jobs_lose_node(now, node, why);
        self.clients_lose_node(now, node, why);
    }

    fn next_job(&mut self) -> JobId {
        // The seed is random, so no other node draws the same 48 bits.
        JobId::from_bits(self.random.next())
    }

    fn handle_spawned(&mut self, now: Duration, process: ProcessId, result: Result<u32, SpawnError>) {
        if let Ok(pid) = &result {
            self.record(now, EventName::RankStart, About::rank(process.job, process.rank), format!("pid {pid}"));
        }
        let environment = self.config.environment.clone();
        self.with_host(now, process.job, |host| host.handle_spawned(now, &environment, process.rank, result));
    }

    fn handle_exited(&mut self, now: Duration, process: ProcessId, status: ExitStatus) {
        let text = format!("rank {} {status}", process.rank);
        self.record(now, EventName::RankExit, About::rank(process.job, process.rank), text);
        self.handle_process_ended(process);
        self.with_host(now, process.job, |host| host.handle_exited(now, process.rank, status));
    }

    /// A rank's request about names. Every node is asked, because any of them may know.
    fn handle_name(&mut self, now: Duration, job: JobId, rank: Rank, request: NameRequest) {
        let query = match &request {
            NameRequest::Publish { name, .. } | NameRequest::Lookup(name) => Query::LookupName(name.clone()),
            NameRequest::Unpublish(name) => Query::UnpublishName { job, name: name.clone() },
        };
        self.gather(now, purpose::Purpose::Name { job, rank, request }, &query);
    }
}

/// Names some of these nodes, if there are any.
fn listed<'a>(what: &str, nodes: impl ExactSizeIterator<Item = &'a NodeId>) -> String {
    let more = nodes.len().saturating_sub(NAMED);
    let names: Vec<&str> = nodes.take(NAMED).map(|node| node.name.as_str()).collect();
    match (names.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!("; {what}: {}", names.join(", ")),
        (false, more) => format!("; {what}: {} and {more} more", names.join(", ")),
    }
}
