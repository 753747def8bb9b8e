//! The `radic` commands that are connected to this node, and the questions to all nodes that some of their requests need.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::PROTOCOL_VERSION;
use radic_wire::determinant::StreamId;
use radic_wire::event::{Event, EventName};
use radic_wire::ids::{Incarnation, JobId, NodeId, NodeName, ProcessId, Rank};
use radic_wire::job::{EndReason, JobInfo, JobSpec, OnLoss, Outcome, OutputStream, Placement, exit_code};
use radic_wire::limits;
use radic_wire::local::{ClusterStatus, Fault, LogSizes, NodeInfo, NodeState, ProcessInfo, RankCheckpoint, Reply, Request};
use radic_wire::membership::{Member, Role, View};
use radic_wire::peer::{Adoption, Answer, PeerMessage, Query, RestartOrder, SessionId, ToHome, ToSession, ToStore, Ward};
use radic_wire::process::{Protect, Protection};
use radic_wire::suspension::Suspension;

use super::events::About;
use super::host::NameRequest;
use super::observers::{Call, ObserverId};
use super::placement::place;
use super::{ClientId, Node, Output, Stop, checkpoints};
use crate::membership::ring::watcher_of;

/// Time that members have to answer a question to all.
const GATHER: Duration = Duration::from_millis(1000);
/// Time that a log service has to answer a command.
const LOG: Duration = Duration::from_secs(10);
/// Time that a terminal waits for the new home of a job.
const NEW_HOME: Duration = Duration::from_secs(40);
/// Events in one message to a command.
const EVENTS_AT_ONCE: usize = 256;
/// Ranks in one message to a command.
const RANKS_AT_ONCE: usize = 1024;

/// How far a command has the events of one node: the number of the daemon's last `start` that it has, if any, and of its last
/// event.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passed {
    start: Option<u64>,
    last: u64,
}

/// What a connected command is doing.
#[derive(Debug)]
pub(super) enum Client {
    /// It has said nothing yet.
    New,
    /// It may make its request.
    Idle,
    /// Its request waits for the answers of all nodes.
    Gathering,
    /// It shows a job, as a terminal.
    Session { job: JobId, home: NodeId, placement: Option<Placement>, shown: Shown },
    /// It writes a job down whose ranks are stopped, or waits for the end of that job.
    Suspending { job: JobId, home: NodeId },
    /// It gives the logs and images of a suspended job to the protectors, one for each node of the placement.
    Resuming { suspension: Box<Suspension>, protectors: Vec<NodeId> },
    /// It waits for the end of a job that it has asked to be killed.
    Killing { job: JobId, home: NodeId },
    /// It follows events: how far it has those of each node, and the new ones that came before the past ones were gathered.
    Following { sent: BTreeMap<NodeName, Passed>, early: Option<Vec<Event>> },
    /// It reads what that node holds of a process. `busy` while a read is under way.
    Reading { holder: NodeId, process: ProcessId, busy: bool },
    /// It has its answer.
    Finished,
}

/// What a terminal was shown, and what it does if the job's home is lost.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// Of each stream: the offset of the next byte. What a new home sends once more is left out.
    next: BTreeMap<(Rank, OutputStream), u64>,
    /// The command knows which job it is.
    attached: bool,
    /// The job goes on without its home.
    protected: bool,
    /// Until when another home may come, while the terminal waits for one.
    waits: Option<Duration>,
    /// What was started here, if it is protected. If no other node knows of the job any more, this is enough to restart it from
    /// the beginning.
    ward: Option<Box<Ward>>,
}

/// What a question to other nodes is for.
#[derive(Debug)]
pub(super) enum Purpose {
    Status(ClientId),
    /// To find the job whose number begins with these digits.
    Find(ClientId, String, Wanted),
    Events(ClientId),
    Name {
        job: JobId,
        rank: Rank,
        request: NameRequest,
    },
    /// A process executes another program: the node that is to forget it, and those that are asked after that.
    Anew {
        observer: ObserverId,
        process: ProcessId,
        node: NodeId,
        then: Vec<NodeId>,
        until: Duration,
    },
    /// A process is about to connect.
    Listener {
        observer: ObserverId,
        process: ProcessId,
        ask: u64,
        call: Call,
    },
    /// A socket of a process has got an address.
    Claim {
        observer: ObserverId,
        process: ProcessId,
        ask: u64,
        address: SocketAddr,
    },
    /// A sender asks what it need not keep.
    Stable {
        observer: ObserverId,
        process: ProcessId,
        stream: StreamId,
        receiver: ProcessId,
        all: bool,
    },
    /// An observer looks for a process.
    Where {
        observer: ObserverId,
        process: ProcessId,
        ask: u64,
        other: ProcessId,
    },
    /// An observer asks where a stream ends.
    Final {
        observer: ObserverId,
        process: ProcessId,
        ask: u64,
    },
    /// A process is to have another protector.
    Release {
        process: ProcessId,
        holder: NodeId,
    },
    /// The stand-in of this node is to let a process go that another node wants to protect.
    Unstand {
        asker: NodeId,
        number: u64,
        process: ProcessId,
        stand_in: NodeId,
    },
    /// The stand-in of this node is to know of an order.
    Stand {
        target: NodeId,
        order: Box<RestartOrder>,
        stand_in: NodeId,
    },
    /// The protector of a process is lost, for which this node stands in: asks the host whether it has the process in this
    /// incarnation.
    Hosts {
        process: ProcessId,
        life: Incarnation,
        host: NodeId,
    },
    /// The checkpoints of a job with this many ranks.
    Checkpoint(ClientId, u32),
    /// How much is held of the processes of this status.
    Sizes(ClientId, Box<ClusterStatus>),
    /// A suspended job is about to go on.
    Revive(ClientId, Box<Suspension>),
    /// What is held of a process.
    Log(ClientId, ProcessId),
    /// Bytes of a log.
    ReadLog(ClientId),
    /// Whether a node can have this fault.
    Fault(ClientId, NodeId, Fault),
    /// Whether any node knows of a lost rank.
    Lost(ProcessId),
    /// Whether any node is left that knows of the job of this terminal.
    Knows(ClientId, JobId),
}

/// What a command wants to do with the job that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Attach,
    Kill,
    Checkpoint,
    Suspend,
    Log(Rank),
    KillRank(Rank),
}

/// A question to other nodes.
#[derive(Debug)]
pub(super) struct Gather {
    purpose: Purpose,
    waiting: BTreeSet<NodeId>,
    answers: BTreeMap<NodeId, Answer>,
    /// A node that was asked is no member any more, and has not answered.
    lost: bool,
    pub(super) deadline: Duration,
}

impl Node {
    fn reply(&mut self, client: ClientId, reply: Reply) {
        if self.clients.contains_key(&client) {
            self.outputs.push_back(Output::Reply(client, reply));
        }
    }

    /// The last reply of a conversation.
    fn finish(&mut self, client: ClientId, reply: Reply) {
        self.reply(client, reply);
        if let Some(state) = self.clients.get_mut(&client) {
            *state = Client::Finished;
            self.outputs.push_back(Output::CloseClient(client));
        }
    }

    fn fail(&mut self, client: ClientId, error: impl Into<String>) {
        self.finish(client, Reply::Error(error.into()));
    }

    pub(super) fn handle_request(&mut self, now: Duration, client: ClientId, request: Request) {
        match self.clients.entry(client).or_insert(Client::New) {
            Client::New => self.handle_hello(client, &request),
            _ if request == Request::Ping => self.reply(client, Reply::Pong),
            Client::Idle => self.handle_first(now, client, request),
            Client::Session { job, home, .. } => {
                let (job, home) = (*job, home.clone());
                self.handle_in_session(client, job, &home, request);
            }
            Client::Reading { holder, process, busy } if !*busy => {
                let (holder, process) = (holder.clone(), *process);
                self.read_log(now, client, holder, process, request);
            }
            Client::Reading { .. } => self.fail(client, "one read at a time"),
            Client::Suspending { job, home } if request == Request::EndSuspended => {
                let (job, home, session) = (*job, home.clone(), self.session(client));
                self.send(&home, PeerMessage::ToHome(job, ToHome::EndSuspended(session)));
            }
            Client::Resuming { .. } => self.begin_resumed(client, request),
            Client::Suspending { .. } => {}
            Client::Gathering | Client::Killing { .. } | Client::Following { .. } | Client::Finished => {}
        }
    }

    fn handle_hello(&mut self, client: ClientId, request: &Request) {
        match request {
            Request::Hello { version: PROTOCOL_VERSION } => {
                self.clients.insert(client, Client::Idle);
                let node = self.me().name.clone();
                self.reply(client, Reply::Welcome { version: PROTOCOL_VERSION, node });
            }
            Request::Hello { version } => {
                let error =
                    format!("this protector speaks version {PROTOCOL_VERSION}, the command {version}: use those of one build");
                self.fail(client, error);
            }
            _ => self.fail(client, "the first request must be Hello"),
        }
    }

    fn handle_first(&mut self, now: Duration, client: ClientId, request: Request) {
        if !self.ready {
            return self.fail(client, format!("{} is not a member of the cluster yet: it is joining", self.me()));
        }
        match request {
            Request::Run { spec, attach } => self.run(client, *spec, attach),
            Request::Attach { job } => self.find_for(now, client, job, Wanted::Attach),
            Request::Kill { job } => self.find_for(now, client, job, Wanted::Kill),
            Request::Checkpoint { job } => self.find_for(now, client, job, Wanted::Checkpoint),
            Request::Suspend { job } => self.find_for(now, client, job, Wanted::Suspend),
            Request::Resume(suspension) => self.resume(now, client, suspension),
            Request::Log { job, rank } => self.find_for(now, client, job, Wanted::Log(rank)),
            Request::Status => self.gather_for(now, client, Purpose::Status(client), &Query::Report),
            Request::Events { follow } => self.events_for(now, client, follow),
            Request::KillNode { name } => self.kill_node(now, client, &name),
            Request::KillRank { job, rank } => self.find_for(now, client, job, Wanted::KillRank(rank)),
            Request::Fault { name, fault } => self.ask_for_fault(now, client, &name, fault),
            Request::Shutdown => self.shut_down(now, client),
            Request::Hello { .. }
            | Request::Stdin { .. }
            | Request::Signal(_)
            | Request::Printed(_)
            | Request::ReadLog { .. }
            | Request::EndSuspended
            | Request::BeginResumed(_)
            | Request::Ping => {
                self.fail(client, "that request belongs into a session");
            }
        }
    }

    fn handle_in_session(&mut self, client: ClientId, job: JobId, home: &NodeId, request: Request) {
        let session = self.session(client);
        let message = match request {
            Request::Stdin { offset, data } => ToHome::Stdin { session, offset, data },
            Request::Printed(bytes) => ToHome::Printed { session, bytes },
            Request::Signal(signal) if (1..=64).contains(&signal) => ToHome::Signal(signal),
            // In a session the end of the job is the answer.
            Request::Kill { .. } => ToHome::Kill { session: None },
            _ => return self.fail(client, "that request does not belong into a session"),
        };
        self.send(home, PeerMessage::ToHome(job, message));
    }

    fn session(&self, client: ClientId) -> SessionId {
        SessionId { node: self.me().clone(), number: client.0 }
    }

    pub(super) fn handle_client_gone(&mut self, _now: Duration, client: ClientId) {
        let session = self.session(client);
        match self.clients.remove(&client) {
            Some(Client::Session { job, home, .. } | Client::Killing { job, home } | Client::Suspending { job, home }) => {
                self.send(&home, PeerMessage::ToHome(job, ToHome::Detach(session)));
            }
            Some(Client::Following { .. }) => self.unsubscribe_if_last(),
            // The job was not begun: what the protectors were given is of no use.
            Some(Client::Resuming { suspension, .. }) => {
                self.tell_all(&PeerMessage::ToStore(suspension.job, ToStore::Remove(None)))
            }
            _ => {}
        }
    }

    fn run(&mut self, client: ClientId, spec: JobSpec, attach: bool) {
        if self.membership.is_frozen() {
            return self.fail(client, "this side of the cluster has no majority: no job can start until the others answer again");
        }
        let Some(view) = self.view() else { return self.fail(client, "no view yet") };
        let placed = spec.validate().map_err(|e| e.to_string()).and_then(|()| place(&spec, view).map_err(|e| e.to_string()));
        let placement = match placed {
            Ok(placement) => placement,
            Err(error) => return self.fail(client, error),
        };
        let (job, home) = (self.next_job(), placement.home().clone());
        let session = attach.then(|| self.session(client));
        let protected = spec.protection.protect == Protect::On;
        let ward =
            || Ward { incarnation: Incarnation(0), spec: spec.clone(), placement: placement.clone(), fence: 0, keys: Vec::new() };
        let shown = Shown { protected, ward: (attach && protected).then(|| Box::new(ward())), ..Shown::default() };
        let start = ToHome::Start { spec: Box::new(spec), placement: placement.clone(), session };
        self.send(&home, PeerMessage::ToHome(job, start));
        if attach {
            self.clients.insert(client, Client::Session { job, home, placement: Some(placement), shown });
        } else {
            self.finish(client, Reply::Attached { job, placement, consumed: 0, dropped: 0 });
        }
    }

    /// A suspended job is to be resumed. Every node must know of it, and have nothing of it.
    fn resume(&mut self, now: Duration, client: ClientId, suspension: Box<Suspension>) {
        if self.membership.is_frozen() {
            return self.fail(client, "this side of the cluster has no majority: no job can start until the others answer again");
        }
        if let Err(error) = suspension.ward.spec.validate() {
            return self.fail(client, error.to_string());
        }
        // The log was held when the job was suspended, so it is taken whatever the bound for new logs is.
        let protection = Protection { log: u64::MAX, ..suspension.ward.spec.protection.clone() };
        let query = Query::Revive(suspension.job, protection);
        self.gather_for(now, client, Purpose::Revive(client, suspension), &query);
    }

    /// Chooses the nodes where a suspended job goes on.
    fn finish_revive(
        &mut self,
        client: ClientId,
        mut suspension: Box<Suspension>,
        answers: BTreeMap<NodeId, Answer>,
        silent: &BTreeSet<NodeId>,
    ) {
        if let Some(node) = silent.first() {
            return self.fail(client, format!("{node} does not answer; `radic nodes` shows how it is"));
        }
        let refused = |answer| if let Answer::Revived(Err(why)) = answer { Some(why) } else { None };
        if let Some(why) = answers.into_values().find_map(refused) {
            return self.fail(client, why);
        }
        let Some(view) = self.view().cloned() else { return self.fail(client, "no view yet") };
        let placement = match place(&suspension.ward.spec, &view) {
            Ok(placement) => placement,
            Err(error) => return self.fail(client, error.to_string()),
        };
        let watcher = |node: &NodeId| watcher_of(&view, node).or_else(|| view.get(node));
        let Some(protectors) = placement.nodes.iter().map(watcher).collect::<Option<Vec<_>>>() else {
            return self.fail(client, "a node is gone: try again");
        };
        let logs = |at: &u32| SocketAddr::new(protectors[*at as usize].address.ip(), protectors[*at as usize].log_port);
        let logs = placement.rank_nodes.iter().map(logs).collect();
        let protectors = protectors.iter().map(|member| member.id.clone()).collect();
        suspension.ward.placement = placement;
        if let Some(state) = self.clients.get_mut(&client) {
            *state = Client::Resuming { suspension, protectors };
        }
        self.reply(client, Reply::Resuming(logs));
    }

    /// The protectors of a resumed job have everything.
    fn begin_resumed(&mut self, client: ClientId, request: Request) {
        let Request::BeginResumed(resumption) = request else {
            return self.fail(client, "that request does not belong there");
        };
        let Some(Client::Resuming { suspension, protectors }) = self.clients.remove(&client) else { return };
        let (job, placement, session) = (suspension.job, suspension.ward.placement.clone(), self.session(client));
        let home = placement.home().clone();
        self.send(&home, PeerMessage::ToHome(job, ToHome::Resume { suspension, resumption, protectors, session }));
        self.clients.insert(client, Client::Session { job, home, placement: Some(placement), shown: Shown::default() });
    }

    pub(super) fn handle_to_session(&mut self, _now: Duration, session: &SessionId, message: ToSession) {
        let client = ClientId(session.number);
        let home = |client: &Client| if let Client::Session { home, .. } = client { Some(home.clone()) } else { None };
        let is_out_of_reach = self.clients.get(&client).and_then(home).is_some_and(|home| self.is_out_of_reach(&home));
        let Some(state) = self.clients.get_mut(&client) else { return };
        match (state, message) {
            (
                Client::Session { placement: known, shown, .. },
                ToSession::Attached { job, placement, consumed, dropped, protected },
            ) => {
                *known = Some(placement.clone());
                // A home may be lost before it has said `Attached` once: then the command must hear of it from the next one.
                let again = shown.waits.is_some() && shown.attached;
                // The word of a home that is out of reach may come late, when that home is dead. It does not prolong the wait for
                // a new one.
                shown.waits = shown.waits.filter(|_| is_out_of_reach);
                shown.attached = true;
                shown.protected = protected;
                shown.ward.iter_mut().for_each(|ward| ward.placement = placement.clone());
                // A command that was told already need not hear that the job has a new home.
                if !again {
                    self.reply(client, Reply::Attached { job, placement, consumed, dropped });
                }
            }
            (Client::Session { job, home, shown, .. }, ToSession::Output { rank, stream, offset, mut data }) => {
                let next = shown.next.entry((rank, stream)).or_insert(offset);
                let known = (next.saturating_sub(offset) as usize).min(data.len());
                *next = (*next).max(offset + data.len() as u64);
                data.drain(..known);
                let (job, home, session) = (*job, home.clone(), session.clone());
                if known > 0 {
                    let printed = ToHome::Printed { session, bytes: known as u64 };
                    self.send(&home, PeerMessage::ToHome(job, printed));
                }
                // An empty piece is the end of a stream, which is always passed on.
                if known == 0 || !data.is_empty() {
                    let offset = offset + known as u64;
                    self.reply(client, Reply::Output { rank, stream, offset, data });
                }
            }
            (Client::Session { .. }, ToSession::StdinFrom(from)) => self.reply(client, Reply::StdinFrom(from)),
            (Client::Session { .. }, ToSession::TakenOver) => self.finish(client, Reply::TakenOver),
            (Client::Session { .. }, ToSession::Ended(outcome)) => self.finish(client, Reply::Ended(outcome)),
            (Client::Killing { .. } | Client::Suspending { .. }, ToSession::Ended(_)) => self.finish(client, Reply::Done),
            (Client::Suspending { .. }, ToSession::Output { rank, stream, offset, data }) => {
                self.reply(client, Reply::Output { rank, stream, offset, data });
            }
            (Client::Suspending { .. }, ToSession::Frozen(Ok(suspension))) => self.reply(client, Reply::Suspending(suspension)),
            (Client::Suspending { .. }, ToSession::Frozen(Err(why))) => self.fail(client, format!("it is not suspended: {why}")),
            (Client::Session { .. } | Client::Killing { .. } | Client::Suspending { .. }, ToSession::NoSuchJob) => {
                self.fail(client, "the job is not there any more");
            }
            _ => {}
        }
    }

    fn kill_node(&mut self, now: Duration, client: ClientId, name: &NodeName) {
        let Some(id) = self.named(client, name) else { return };
        let text = format!("{name} and every process it hosts are killed, as asked");
        self.record(now, EventName::Inject, About::node(name), text);
        self.finish(client, Reply::Done);
        self.send(&id, PeerMessage::Die);
    }

    /// The member of this name; if there is none, the command is told.
    fn named(&mut self, client: ClientId, name: &NodeName) -> Option<NodeId> {
        let found = self.view().and_then(|v| v.members.iter().find(|m| m.id.name == *name)).map(|m| m.id.clone());
        if found.is_none() {
            self.fail(client, format!("there is no node {name}; `radic nodes` lists them"));
        }
        found
    }

    /// The node is asked first whether it can have the fault, because it cannot answer once it has.
    fn ask_for_fault(&mut self, now: Duration, client: ClientId, name: &NodeName, fault: Fault) {
        let Some(node) = self.named(client, name) else { return };
        self.clients.insert(client, Client::Gathering);
        self.gather_from(now, Purpose::Fault(client, node.clone(), fault), &Query::Fault(fault), vec![node], GATHER);
    }

    fn finish_fault(&mut self, now: Duration, client: ClientId, node: &NodeId, fault: Fault, answers: BTreeMap<NodeId, Answer>) {
        match answers.into_values().next() {
            Some(Answer::Fault(Ok(()))) => {}
            Some(Answer::Fault(Err(why))) => return self.fail(client, format!("{}: {why}", node.name)),
            _ => return self.fail(client, format!("{} does not answer; `radic nodes` shows how it is", node.name)),
        }
        let text = match fault {
            Fault::Pause { ms } => format!("{} and every process it hosts are stopped for {ms} ms, as asked", node.name),
            Fault::Cut { ms } => format!("the links of {} are down for {ms} ms, as asked", node.name),
        };
        self.record(now, EventName::Inject, About::node(&node.name), text);
        self.finish(client, Reply::Done);
        self.send(node, PeerMessage::Fault(fault));
    }

    /// Tells the node of a rank to kill it.
    fn find_rank(&mut self, client: ClientId, process: ProcessId, answers: &BTreeMap<NodeId, Answer>) {
        let ProcessId { job, rank } = process;
        let hosts = |answer: &Answer| match answer {
            Answer::Report(report) => report.ranks.iter().any(|r| r.job == job && r.rank == rank),
            _ => false,
        };
        let Some(node) = answers.iter().find(|(_, answer)| hosts(answer)).map(|(node, _)| node.clone()) else {
            return self.fail(client, format!("rank {rank} of job {job} does not run; `radic status` shows those that do"));
        };
        self.finish(client, Reply::Done);
        self.send(&node, PeerMessage::KillRank(process));
    }

    fn shut_down(&mut self, now: Duration, client: ClientId) {
        let others: Vec<_> = self.view().map_or(&[][..], |v| &v.members).iter().map(|m| m.id.clone()).collect();
        for node in others.into_iter().filter(|id| id != self.me()).collect::<Vec<_>>() {
            self.send(&node, PeerMessage::Shutdown);
        }
        self.finish(client, Reply::Done);
        self.stop(now, Stop::Clean);
    }

    fn events_for(&mut self, now: Duration, client: ClientId, follow: bool) {
        if !follow {
            return self.gather_for(now, client, Purpose::Events(client), &Query::Events);
        }
        let first = !self.clients.values().any(|c| matches!(c, Client::Following { .. }));
        self.clients.insert(client, Client::Following { sent: BTreeMap::new(), early: Some(Vec::new()) });
        if first {
            self.tell_all(&PeerMessage::Subscribe);
        }
        self.gather(now, Purpose::Events(client), &Query::Events);
    }

    pub(super) fn subscribe_to(&mut self, joined: &[NodeId]) {
        if self.clients.values().any(|c| matches!(c, Client::Following { .. })) {
            joined.iter().for_each(|node| self.send(node, PeerMessage::Subscribe));
        }
    }

    fn unsubscribe_if_last(&mut self) {
        if !self.clients.values().any(|c| matches!(c, Client::Following { .. })) {
            self.tell_all(&PeerMessage::Unsubscribe);
        }
    }

    pub(super) fn tell_all(&mut self, message: &PeerMessage) {
        let members: Vec<_> = self.view().map_or(&[][..], |v| &v.members).iter().map(|m| m.id.clone()).collect();
        members.iter().for_each(|node| self.send(node, message.clone()));
    }

    /// Events of a node that were subscribed to.
    pub(super) fn handle_events(&mut self, events: &[Event]) {
        let following = self.clients.iter().filter(|(_, c)| matches!(c, Client::Following { .. })).map(|(id, _)| *id);
        for client in following.collect::<Vec<_>>() {
            self.pass_events(client, events.to_vec());
        }
    }

    /// Passes on the events that the command does not have yet. Until the past ones are there, new ones wait.
    fn pass_events(&mut self, client: ClientId, events: Vec<Event>) {
        let Some(Client::Following { sent, early }) = self.clients.get_mut(&client) else { return };
        if let Some(early) = early {
            return early.extend(events);
        }
        let new: Vec<_> = events.into_iter().filter(|e| is_new(sent, e)).collect();
        for some in new.chunks(EVENTS_AT_ONCE) {
            self.reply(client, Reply::Events(some.to_vec()));
        }
    }

    fn gather_for(&mut self, now: Duration, client: ClientId, purpose: Purpose, query: &Query) {
        self.clients.insert(client, Client::Gathering);
        self.gather(now, purpose, query);
    }

    fn find_for(&mut self, now: Duration, client: ClientId, job: String, wanted: Wanted) {
        self.gather_for(now, client, Purpose::Find(client, job, wanted), &Query::Report);
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
        self.gathers.insert(number, Gather { purpose, waiting, answers: BTreeMap::new(), lost: false, deadline: now + within });
        if none {
            self.finish_gather(now, number);
        }
    }

    pub(super) fn handle_answer(&mut self, now: Duration, from: &NodeId, number: u64, answer: Answer) {
        let Some(gather) = self.gathers.get_mut(&number) else { return self.handle_late_listener(from, &answer) };
        if !gather.waiting.contains(from) {
            return;
        }
        gather.waiting.remove(from);
        // One listener is enough. Any other node with a listener is told later that the call does not come.
        let found = matches!(answer, Answer::Listener { process: Some(_), .. });
        gather.answers.insert(from.clone(), answer);
        if found || gather.waiting.is_empty() {
            self.finish_gather(now, number);
        }
    }

    pub(super) fn finish_gather(&mut self, now: Duration, number: u64) {
        let Some(Gather { purpose, answers, waiting, lost, .. }) = self.gathers.remove(&number) else { return };
        match purpose {
            Purpose::Status(client) => {
                let status = self.status(answers);
                if status.processes.is_empty() {
                    return self.finish(client, Reply::Status(status));
                }
                self.gather(now, Purpose::Sizes(client, Box::new(status)), &Query::Sizes);
            }
            Purpose::Sizes(client, status) => self.finish_sizes(client, *status, answers),
            Purpose::Find(client, prefix, wanted) => self.find_job(now, client, &prefix, (&answers, &waiting), wanted),
            Purpose::Events(client) => self.finish_events(client, answers),
            Purpose::Name { job, rank, request } => self.finish_name(now, job, rank, &request, answers),
            Purpose::Anew { observer, process, node, then, until } => {
                // A node that is no member any more holds nothing that will be asked for.
                let silent = Some(node).filter(|node| answers.is_empty() && self.is_member(node));
                self.finish_anew(now, until, (observer, process), silent, then);
            }
            Purpose::Where { observer, process, ask, other } => {
                let of = |answer: &Answer| if let Answer::Where { place, .. } = answer { *place } else { None };
                let places: Vec<_> = answers.values().filter_map(of).collect();
                let ended = answers.values().any(|answer| matches!(answer, Answer::Where { ended: true, .. }));
                self.finish_where((observer, process, ask), other, &places, ended);
            }
            Purpose::Lost(process) => {
                let known = answers.values().any(|answer| matches!(answer, Answer::Where { place: Some(_), .. }));
                self.finish_lost(now, process, known, !waiting.is_empty());
            }
            Purpose::Knows(client, job) => {
                let known = answers.values().any(|answer| *answer == Answer::Knows(true));
                self.finish_knows(now, client, job, known, !waiting.is_empty());
            }
            Purpose::Final { observer, process, ask } => {
                let of = |answer: &Answer| if let Answer::Final(found) = answer { *found } else { None };
                self.finish_final(observer, process, ask, answers.values().find_map(of));
            }
            Purpose::Release { process, holder } => self.finish_release(now, process, &holder, !answers.is_empty()),
            Purpose::Unstand { asker, number, process, stand_in } => {
                let done = !answers.is_empty() || !self.is_member(&stand_in);
                self.finish_unstand(&asker, number, process, done);
            }
            Purpose::Stand { target, order, stand_in } => {
                let known = !answers.is_empty() || !self.is_member(&stand_in);
                self.finish_stand(now, &target, order, known);
            }
            Purpose::Hosts { process, life, host } => {
                let of = |answer: &Answer| if let Answer::Hosts(has) = answer { Some(has.clone()) } else { None };
                self.finish_hosts(now, process, life, &host, answers.values().find_map(of));
            }
            Purpose::Listener { observer, process, ask, call } => {
                let of = |answer: &Answer| {
                    if let Answer::Listener { process, at, .. } = answer { process.map(|process| (process, *at)) } else { None }
                };
                let (found, silent) = (answers.values().find_map(of), waiting.into_iter().collect::<Vec<_>>());
                let later = found.is_none()
                    && silent.is_empty()
                    && (lost || self.is_announced(call.to) || self.may_listen_later(now, process, call.to, answers.values()));
                self.finish_listener(now, (observer, process, ask, call), found, later, &silent);
            }
            Purpose::Claim { observer, process, ask, address } => {
                let of = |answer: &Answer| if let Answer::Claim { holder, .. } = answer { *holder } else { None };
                let holder = answers.values().find_map(of);
                let later = holder.is_none()
                    && waiting.is_empty()
                    && (lost || self.may_listen_later(now, process, address, answers.values()));
                self.finish_claim((observer, process, ask), holder, later);
            }
            Purpose::Stable { observer, process, stream, receiver, all } => {
                self.finish_stable((observer, process), (stream, receiver, all), &answers);
            }
            Purpose::Checkpoint(client, ranks) => self.finish_checkpoint(client, ranks, answers),
            Purpose::Revive(client, suspension) => self.finish_revive(client, suspension, answers, &waiting),
            Purpose::Log(client, process) => self.finish_log(client, process, answers),
            Purpose::ReadLog(client) => self.finish_read(client, answers),
            Purpose::Fault(client, node, fault) => self.finish_fault(now, client, &node, fault, answers),
        }
    }

    fn finish_sizes(&mut self, client: ClientId, mut status: ClusterStatus, answers: BTreeMap<NodeId, Answer>) {
        let of = |answer| if let Answer::Sizes(sizes) = answer { sizes } else { Vec::new() };
        let mut held: BTreeMap<ProcessId, Vec<LogSizes>> = BTreeMap::new();
        for (process, sizes) in answers.into_values().flat_map(of) {
            held.entry(process).or_default().push(sizes);
        }
        for process in &mut status.processes {
            process.logs = held.remove(&ProcessId { job: process.job, rank: process.rank }).unwrap_or_default();
        }
        self.finish(client, Reply::Status(status));
    }

    /// The protector of a process and its replica both hold its log. The one that holds more is shown.
    fn finish_log(&mut self, client: ClientId, process: ProcessId, answers: BTreeMap<NodeId, Answer>) {
        let of = |(node, answer)| if let Answer::Log(Some(held)) = answer { Some((node, held)) } else { None };
        let found = answers.into_iter().filter_map(of).max_by_key(|(_, held)| (held.stable, held.images.len()));
        let Some((holder, held)) = found else {
            let ProcessId { job, rank } = process;
            let error = format!(
                "nothing is held of rank {rank} of job {job}: it is not protected, or the job has ended and was not started with --keep-logs"
            );
            return self.fail(client, error);
        };
        let name = holder.name.clone();
        if let Some(state) = self.clients.get_mut(&client) {
            *state = Client::Reading { holder, process, busy: false };
        }
        self.reply(client, Reply::Log(name, held));
    }

    fn read_log(&mut self, now: Duration, client: ClientId, holder: NodeId, process: ProcessId, request: Request) {
        let Request::ReadLog { part, position } = request else { return self.fail(client, "only the log can be read here") };
        if let Some(Client::Reading { busy, .. }) = self.clients.get_mut(&client) {
            *busy = true;
        }
        let query = Query::ReadLog { process, part, position };
        self.gather_from(now, Purpose::ReadLog(client), &query, vec![holder], LOG);
    }

    fn finish_read(&mut self, client: ClientId, answers: BTreeMap<NodeId, Answer>) {
        match answers.into_values().next() {
            Some(Answer::LogBytes(Ok(bytes))) => {
                if let Some(Client::Reading { busy, .. }) = self.clients.get_mut(&client) {
                    *busy = false;
                }
                self.reply(client, Reply::LogBytes(bytes));
            }
            Some(Answer::LogBytes(Err(error))) => self.fail(client, error),
            _ => self.fail(client, "the node that holds the log does not answer; `radic nodes` shows how it is"),
        }
    }

    fn finish_checkpoint(&mut self, client: ClientId, ranks: u32, answers: BTreeMap<NodeId, Answer>) {
        let of = |answer| if let Answer::Checkpoints(ranks) = answer { ranks } else { Vec::new() };
        let mut done: Vec<RankCheckpoint> = answers.into_values().flat_map(of).collect();
        done.sort_by_key(|done| done.rank);
        for some in done.chunks(RANKS_AT_ONCE) {
            self.reply(client, Reply::Checkpoints(some.to_vec()));
        }
        match (ranks as usize).saturating_sub(done.len()) {
            0 => self.finish(client, Reply::Done),
            silent => {
                self.fail(client, format!("the nodes of {silent} more ranks did not answer; `radic nodes` shows how they are"))
            }
        }
    }

    fn finish_events(&mut self, client: ClientId, answers: BTreeMap<NodeId, Answer>) {
        let of = |answer| if let Answer::Events(events) = answer { events } else { Vec::new() };
        let mut events: Vec<_> = answers.into_values().flat_map(of).collect();
        events.sort_by(|a, b| (a.at_ms, &a.node, a.seq).cmp(&(b.at_ms, &b.node, b.seq)));
        if let Some(Client::Following { early, .. }) = self.clients.get_mut(&client) {
            let early = early.take().unwrap_or_default();
            // After sorting by time, the events of one node are still in their order: its clock does not go back.
            self.pass_events(client, events);
            return self.pass_events(client, early);
        }
        for some in events.chunks(EVENTS_AT_ONCE) {
            self.reply(client, Reply::Events(some.to_vec()));
        }
        self.finish(client, Reply::Done);
    }

    fn find_job(
        &mut self,
        now: Duration,
        client: ClientId,
        prefix: &str,
        (answers, silent): (&BTreeMap<NodeId, Answer>, &BTreeSet<NodeId>),
        wanted: Wanted,
    ) {
        let prefix = prefix.to_ascii_lowercase();
        let jobs = answers.iter().flat_map(|(node, answer)| match answer {
            Answer::Report(report) => report.jobs.iter().map(move |j| (node.clone(), j.job, j.ranks)).collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let named = jobs.filter(|(_, job, _)| job.to_string().starts_with(&prefix));
        let is_lost = |home: &NodeId| !self.is_member(home) || self.is_out_of_reach(home);
        let (lost, found): (Vec<_>, Vec<_>) = named.partition(|(home, ..)| is_lost(home));
        if found.is_empty() && !lost.is_empty() {
            // The home was lost after it had reported. Another home comes, or no node knows of the job any more. The command
            // would wait for ever for the one that is gone.
            return self.find_for(now, client, prefix, wanted);
        }
        let [(home, job, ranks)] = found.as_slice() else {
            let error = match found.as_slice() {
                [] if self.membership.is_frozen() || !silent.is_empty() => {
                    let frozen = if self.membership.is_frozen() { ", and have no majority" } else { "" };
                    format!("the nodes that answer know of no job {prefix}{frozen}; others may, which do not answer")
                }
                [] => format!("there is no job {prefix}; `radic jobs --all` lists them"),
                several => format!("{} jobs begin with {prefix:?}: give more digits", several.len()),
            };
            return self.fail(client, error);
        };
        let (home, job, ranks, session) = (home.clone(), *job, *ranks, self.session(client));
        let all = || self.view().map_or(&[][..], |v| &v.members).iter().map(|m| m.id.clone()).collect();
        let (state, message) = match wanted {
            Wanted::Kill => (Client::Killing { job, home: home.clone() }, ToHome::Kill { session: Some(session) }),
            Wanted::Attach => {
                (Client::Session { job, home: home.clone(), placement: None, shown: Shown::default() }, ToHome::Attach(session))
            }
            Wanted::Suspend => (Client::Suspending { job, home: home.clone() }, ToHome::Suspend(session)),
            Wanted::Checkpoint => {
                let purpose = Purpose::Checkpoint(client, ranks);
                return self.gather_from(now, purpose, &Query::Checkpoint(job), all(), checkpoints::WHOLE);
            }
            Wanted::Log(rank) | Wanted::KillRank(rank) if rank.0 >= ranks => {
                return self.fail(client, format!("job {job} has ranks 0 to {}, not {rank}", ranks - 1));
            }
            Wanted::KillRank(rank) => return self.find_rank(client, ProcessId { job, rank }, answers),
            Wanted::Log(rank) => {
                let process = ProcessId { job, rank };
                return self.gather_from(now, Purpose::Log(client, process), &Query::Log(process), all(), LOG);
            }
        };
        self.clients.insert(client, state);
        self.send(&home, PeerMessage::ToHome(job, message));
    }

    fn finish_name(&mut self, now: Duration, job: JobId, rank: Rank, request: &NameRequest, answers: BTreeMap<NodeId, Answer>) {
        let of = |answer| if let Answer::Name(name) = answer { name } else { None };
        let found = answers.into_values().find_map(of);
        let answer = match (request, found) {
            (NameRequest::Publish { name, .. }, Some(_)) => Err(format!("{name:?} is published already")),
            (NameRequest::Publish { name, port }, None) => self.publish(job, name, port),
            (NameRequest::Lookup(_) | NameRequest::Unpublish(_), Some(port)) => Ok(port),
            (NameRequest::Lookup(name) | NameRequest::Unpublish(name), None) => Err(format!("{name:?} is not published")),
        };
        self.with_host(now, job, |host| host.handle_name(rank, request, answer));
    }

    fn publish(&mut self, job: JobId, name: &str, port: &str) -> Result<String, String> {
        let theirs = self.names.values().filter(|(owner, _)| *owner == job).count();
        if theirs >= limits::PMI_NAMES {
            return Err(format!("a job may publish {} names", limits::PMI_NAMES));
        }
        if self.names.contains_key(name) {
            return Err(format!("{name:?} is published already"));
        }
        self.names.insert(name.to_owned(), (job, port.to_owned()));
        Ok(port.to_owned())
    }

    fn status(&self, mut answers: BTreeMap<NodeId, Answer>) -> ClusterStatus {
        let (mut jobs, mut processes) = (Vec::new(), Vec::new());
        let view = self.view();
        let members: Vec<Member> = view.map_or_else(Vec::new, |v| v.members.clone());
        let (ring, spares): (Vec<_>, Vec<_>) = members.into_iter().partition(|m| m.role == Role::Node);
        let mut nodes = Vec::new();
        for member in ring.into_iter().chain(spares) {
            let protector = view.and_then(|v| watcher_of(v, &member.id)).map(|m| m.id.name.clone());
            let report = match answers.remove(&member.id) {
                Some(Answer::Report(report)) => Some(report),
                _ => None,
            };
            let state = if report.is_some() { NodeState::Alive } else { NodeState::Silent };
            let (ranks, memory, pid) = report.map_or_else(Default::default, |report| {
                jobs.extend(report.jobs);
                processes.extend(report.processes);
                (report.ranks, report.memory, report.pid)
            });
            let Member { id, address, role, slots, .. } = member;
            nodes.push(NodeInfo { name: id.name, address, state, role, slots, ranks, protector, memory, pid });
        }
        for (member, state) in &self.gone {
            let Member { id, address, role, slots, .. } = member.clone();
            let (name, ranks, state) = (id.name, Vec::new(), *state);
            nodes.push(NodeInfo { name, address, state, role, slots, ranks, protector: None, memory: 0, pid: 0 });
        }
        add_degraded(&mut jobs, &processes);
        jobs.sort_by_key(|j| (j.started_ms, j.job));
        // If there are too many for one answer, those that run are shown.
        processes.sort_by_key(|p| (!p.running, p.job, p.rank));
        processes.truncate(limits::PROCESSES_SHOWN);
        ClusterStatus {
            answered_by: self.me().name.clone(),
            view: view.map_or(0, |v| v.number),
            frozen: self.membership.is_frozen(),
            nodes,
            jobs,
            processes,
        }
    }

    /// Terminals of a job turn to its new home.
    pub(super) fn attach_again(&mut self, job: JobId, new: &NodeId) {
        let mut again = Vec::new();
        for (client, state) in &mut self.clients {
            let killing = matches!(state, Client::Killing { .. });
            if let Client::Session { job: shown, home, .. } | Client::Killing { job: shown, home } = state
                && *shown == job
                && home != new
            {
                *home = new.clone();
                again.push((*client, killing));
            }
        }
        for (client, killing) in again {
            let session = self.session(client);
            let message = if killing { ToHome::Kill { session: Some(session) } } else { ToHome::Attach(session) };
            self.send(new, PeerMessage::ToHome(job, message));
        }
    }

    /// Asks all nodes whether they know of the jobs whose terminals wait for a new home. If none does, there is nothing to wait
    /// for.
    pub(super) fn seek_homes(&mut self, now: Duration) {
        let waits = |(client, state): (&ClientId, &Client)| match state {
            Client::Session { job, shown: Shown { waits: Some(_), .. }, .. } => Some((*client, *job)),
            _ => None,
        };
        let waiting: Vec<_> = self.clients.iter().filter_map(waits).collect();
        for (client, job) in waiting {
            self.gather(now, Purpose::Knows(client, job), &Query::Knows(job));
        }
    }

    fn finish_knows(&mut self, now: Duration, client: ClientId, job: JobId, known: bool, silent: bool) {
        let waits = matches!(self.clients.get(&client), Some(Client::Session { shown: Shown { waits: Some(_), .. }, .. }));
        match (known, silent) {
            _ if !waits => {}
            (true, _) => {}
            // They will answer, or be declared dead.
            (false, true) => self.gather(now, Purpose::Knows(client, job), &Query::Knows(job)),
            (false, false) if self.want_home(now, client) => {}
            (false, false) => {
                let why = "with it everything is lost that was known of the job: it can only be started again";
                self.end_orphan(client, why.to_owned());
            }
        }
    }

    /// Only this node, where the job was started, knows of it any more. Asks the first node of its placement to be its home and
    /// to restart it. Returns false if that is not allowed or not possible.
    fn want_home(&mut self, now: Duration, client: ClientId) -> bool {
        let Some(Client::Session { job, shown: Shown { ward: Some(ward), .. }, .. }) = self.clients.get(&client) else {
            return false;
        };
        let (job, mut ward) = (*job, (**ward).clone());
        self.update(&mut ward);
        let gone = |node: &NodeId| !self.is_member(node);
        if ward.spec.on_loss == OnLoss::Fail || self.membership.is_frozen() || ward.placement.nodes.iter().any(gone) {
            return false;
        }
        let started_ms = self.config.wall_us / 1000 + now.as_millis() as u64;
        let home = ward.placement.home().clone();
        self.send(&home, PeerMessage::Adopt(Box::new(Adoption { job, ward, started_ms })));
        true
    }

    /// A job is over, and how. Terminals whose home is a member hear it from that home.
    pub(super) fn clients_hear_of_end(&mut self, job: JobId, outcome: &Outcome) {
        let waits = |c: &Client| matches!(c, Client::Session { job: of, shown: Shown { waits: Some(_), .. }, .. } if *of == job);
        let waiting: Vec<_> = self.clients.iter().filter(|(_, client)| waits(client)).map(|(id, _)| *id).collect();
        waiting.into_iter().for_each(|client| self.finish(client, Reply::Ended(outcome.clone())));
    }

    /// A job has restarted with this epoch.
    pub(super) fn clients_hear_of_life(&mut self, job: JobId, life: Incarnation) {
        for client in self.clients.values_mut() {
            if let Client::Session { job: of, shown: Shown { ward: Some(ward), .. }, .. } = client
                && *of == job
            {
                ward.incarnation = ward.incarnation.max(life);
            }
        }
    }

    /// This side has a majority again. Homes that are members were out of reach, and are not lost.
    pub(super) fn clients_thaw(&mut self) {
        let back = |home: &NodeId, view: Option<&View>| view.is_some_and(|view| view.get(home).is_some());
        let view = self.membership.view().cloned();
        for client in self.clients.values_mut() {
            if let Client::Session { home, shown, .. } = client
                && back(home, view.as_deref())
            {
                shown.waits = None;
            }
        }
    }

    /// Ends a terminal that will not hear what becomes of its job.
    fn end_orphan(&mut self, client: ClientId, why: String) {
        let Some(Client::Session { home, placement, .. }) = self.clients.get(&client) else { return };
        let node = home.clone();
        let ranks = placement.iter().flat_map(|placement| placement.ranks_on(&node)).collect();
        let reason = EndReason::NodeLost { node: node.name, ranks, why };
        self.finish(client, Reply::Ended(Outcome { code: exit_code::NODE_LOST, reason }));
    }

    /// When the first terminal gives up waiting for a new home.
    pub(super) fn next_orphan(&self) -> Option<Duration> {
        self.clients.values().filter_map(|c| if let Client::Session { shown, .. } = c { shown.waits } else { None }).min()
    }

    /// Ends the terminals that have waited too long for a new home.
    pub(super) fn end_orphans(&mut self, now: Duration) {
        let late = |c: &Client| matches!(c, Client::Session { shown: Shown { waits: Some(at), .. }, .. } if *at <= now);
        let late: Vec<_> = self.clients.iter().filter(|(_, c)| late(c)).map(|(id, _)| *id).collect();
        for client in late {
            let why = format!("the job's home is gone, and no other one has come within {} s", NEW_HOME.as_secs());
            self.end_orphan(client, why);
        }
    }

    pub(super) fn clients_lose_node(&mut self, now: Duration, node: &NodeId, why: &str) {
        let waiting: Vec<_> = self.gathers.iter_mut().filter_map(|(n, g)| g.waiting.remove(node).then_some(*n)).collect();
        for number in waiting {
            self.gathers.get_mut(&number).into_iter().for_each(|gather| gather.lost = true);
            if self.gathers.get(&number).is_some_and(|g| g.waiting.is_empty()) {
                self.finish_gather(now, number);
            }
        }
        for client in self.clients.values_mut() {
            if let Client::Session { home, shown, .. } = client
                && home == node
                && shown.protected
            {
                shown.waits.get_or_insert(now + NEW_HOME);
            }
        }
        for (job, outcome) in self.known_ends() {
            self.clients_hear_of_end(job, &outcome);
        }
        let of = |c: &Client| match c {
            Client::Session { home, shown, .. } => home == node && shown.waits.is_none(),
            Client::Killing { home, .. } | Client::Suspending { home, .. } => home == node,
            _ => false,
        };
        let cut: Vec<_> = self.clients.iter().filter(|(_, c)| of(c)).map(|(id, _)| *id).collect();
        for client in cut {
            match self.clients.get(&client) {
                Some(Client::Session { placement: Some(placement), .. }) => {
                    let ranks = placement.ranks_on(node).collect();
                    let reason = EndReason::NodeLost { node: node.name.clone(), ranks, why: why.to_owned() };
                    self.finish(client, Reply::Ended(Outcome { code: exit_code::NODE_LOST, reason }));
                }
                Some(Client::Killing { .. }) => self.finish(client, Reply::Done),
                _ => self.fail(client, format!("{node}, the job's home, is gone: {why}")),
            }
        }
    }
}

/// Whether the command does not have this event yet. Notes that it has it now.
fn is_new(sent: &mut BTreeMap<NodeName, Passed>, event: &Event) -> bool {
    let passed = sent.get(&event.node);
    // A daemon numbers its events from the clock of its machine, which may have been set back since the daemon ran last.
    let is_start = event.event == EventName::Start && passed.is_none_or(|passed| passed.start != Some(event.seq));
    let is_new = is_start || passed.is_none_or(|passed| passed.last < event.seq);
    if is_new {
        let start = if is_start { Some(event.seq) } else { passed.and_then(|passed| passed.start) };
        sent.insert(event.node.clone(), Passed { start, last: event.seq });
    }
    is_new
}

/// The home of a job knows which of its ranks are lost. The hosts know which ones are on their way back, or have no checkpoint at
/// their protector yet.
fn add_degraded(jobs: &mut [JobInfo], processes: &[ProcessInfo]) {
    let mut hosted: BTreeMap<JobId, BTreeSet<Rank>> = BTreeMap::new();
    for process in processes.iter().filter(|process| process.degraded) {
        hosted.entry(process.job).or_default().insert(process.rank);
    }
    for job in jobs.iter_mut().filter(|job| job.outcome.is_none()) {
        let mut ranks = hosted.remove(&job.job).unwrap_or_default();
        ranks.extend(job.degraded.iter().copied());
        job.degraded = ranks.into_iter().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_passed_once_whatever_the_clocks_of_daemons_that_come_back() {
        let mut sent = BTreeMap::new();
        let mut pass = |seq, event| {
            let (at_ms, node, text) = (0, "n1".parse().unwrap(), String::new());
            is_new(&mut sent, &Event { at_ms, node, seq, event, subject: None, job: None, rank: None, text })
        };
        assert!(pass(1_000, EventName::Start) && pass(1_001, EventName::View) && !pass(1_001, EventName::View));
        assert!(!pass(1_000, EventName::Start), "the same once more");
        assert!(pass(400, EventName::Start), "the clock was set back before it came again");
        assert!(pass(401, EventName::View) && !pass(400, EventName::Start) && !pass(401, EventName::View));
        assert!(pass(5_000, EventName::Start) && !pass(4_000, EventName::View) && pass(5_001, EventName::View));
    }
}
