//! The `radic` commands that are connected to this node, and the questions to all nodes that some of their requests need.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use radic_wire::PROTOCOL_VERSION;
use radic_wire::event::EventName;
use radic_wire::fault::Fault;
use radic_wire::ids::{Epoch, JobId, NodeId, NodeName, ProcessId, Rank};
use radic_wire::job::{JobInfo, JobSpec, Ward};
use radic_wire::limits;
use radic_wire::local::{ClusterStatus, NodeInfo, NodeState, Reply, Request};
use radic_wire::log::HeldLog;
use radic_wire::membership::{Member, Role};
use radic_wire::peer::{Answer, PeerMessage, Query, Revival, ToHome};
use radic_wire::process::{Protect, Protection};
use radic_wire::report::{LogSizes, ProcessInfo, RankCheckpoint};
use radic_wire::suspension::{Resumption, Suspension};

use super::calls::GATHER;
use super::client::{Client, Shown, Wanted};
use super::events::About;
use super::host::NameRequest;
use super::numbers::ClientId;
use super::phase::Phase;
use super::placement::place;
use super::purpose::Purpose;
use super::suspension::{gift, not_away};
use super::{Node, Output, Stop, checkpoints};
use crate::commands::suspend::SILENCE;
use crate::membership::ring::watcher_of;

/// Time that a log service has to answer a command.
const LOG: Duration = Duration::from_secs(10);

/// Ranks in one message to a command.
const RANKS_AT_ONCE: usize = 1024;

impl Node {
    pub(super) fn reply(&mut self, client: ClientId, reply: Reply) {
        if self.clients.contains_key(&client) {
            self.outputs.push_back(Output::Reply(client, reply));
        }
    }

    /// The last reply of a conversation.
    pub(super) fn finish(&mut self, client: ClientId, reply: Reply) {
        self.reply(client, reply);
        if let Some(state) = self.clients.get_mut(&client) {
            *state = Client::Finished;
            self.outputs.push_back(Output::CloseClient(client));
        }
    }

    pub(super) fn fail(&mut self, client: ClientId, error: impl Into<String>) {
        self.finish(client, Reply::Error(error.into()));
    }

    pub(super) fn handle_request(&mut self, now: Duration, client: ClientId, request: Request) {
        self.hear_suspender(now, client);
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
            Client::Suspending { job, home, until } if request == Request::EndSuspended => {
                *until = None;
                let (job, home, session) = (*job, home.clone(), self.session(client));
                self.send(&home, PeerMessage::ToHome(job, ToHome::EndSuspended(session)));
            }
            Client::Resuming { .. } => self.begin_resumed(now, client, request),
            Client::Suspending { .. } => {}
            Client::Beginning { .. }
            | Client::Gathering
            | Client::Killing { .. }
            | Client::Following { .. }
            | Client::Finished => {}
        }
    }

    pub(super) fn handle_hello(&mut self, client: ClientId, request: &Request) {
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
        match self.phase {
            Phase::Joining { .. } => {
                return self.fail(client, format!("{} is not a member of the cluster yet: it is joining", self.me()));
            }
            Phase::Stopped => return self.fail(client, format!("{} is ending", self.me())),
            Phase::Member | Phase::Leaving { .. } => {}
        }
        match request {
            Request::Run { spec, attach } => self.run(client, *spec, attach),
            Request::Attach { job } => self.find_for(now, client, job, Wanted::Attach),
            Request::Kill { job } => self.find_for(now, client, job, Wanted::Kill),
            Request::Checkpoint { job } => self.find_for(now, client, job, Wanted::Checkpoint),
            Request::Suspend { job } => self.find_for(now, client, job, Wanted::Suspend),
            Request::Resume(suspension, resumption) => self.resume(now, client, suspension, resumption),
            Request::Log { job, rank } => self.find_for(now, client, job, Wanted::Log(rank)),
            Request::Status => self.gather_for(now, client, Purpose::Status(client), &Query::Report),
            Request::Node => self.node_status_for(now, client),
            Request::Traffic(job) => self.gather_for(now, client, Purpose::Traffic(client), &Query::Flows(job)),
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
            | Request::BeginResumed
            | Request::Ping => {
                self.fail(client, "that request belongs into a session");
            }
        }
    }

    pub(super) fn handle_client_gone(&mut self, _now: Duration, client: ClientId) {
        let session = self.session(client);
        self.forget_questions_of(client);
        match self.clients.remove(&client) {
            Some(Client::Session { job, home, .. } | Client::Killing { job, home } | Client::Suspending { job, home, .. }) => {
                self.send(&home, PeerMessage::ToHome(job, ToHome::Detach(session)));
            }
            Some(Client::Following { .. }) => self.unsubscribe_if_last(),
            // The job was not begun: what the protectors were given is of no use. Another command may be about to begin a later life.
            Some(Client::Resuming { suspension, .. } | Client::Beginning { suspension, .. })
                if self.is_newest_life(suspension.job, suspension.ward.spec.life) =>
            {
                self.tell_all_removed(suspension.job);
            }
            _ => {}
        }
    }

    pub(super) fn run(&mut self, client: ClientId, spec: JobSpec, attach: bool) {
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
        let ward = || Ward { epoch: Epoch::FIRST, spec: spec.clone(), placement: placement.clone(), fence: 0, keys: Vec::new() };
        let shown = Shown { protected, ward: (attach && protected).then(|| Box::new(ward())), ..Shown::default() };
        let start = ToHome::Start { spec: Box::new(spec), placement: placement.clone(), session };
        self.send(&home, PeerMessage::ToHome(job, start));
        if attach {
            self.clients.insert(client, Client::Session { job, home, placement: Some(placement), shown });
        } else {
            self.finish(client, Reply::Attached { job, placement, consumed: 0, dropped: 0 });
        }
    }

    /// Resuming needs every node to have nothing of the job. This is asked before the next life begins: afterwards nodes that
    /// remember the last life's end could no longer tell a node that missed it.
    pub(super) fn resume(&mut self, now: Duration, client: ClientId, suspension: Box<Suspension>, resumption: Box<Resumption>) {
        if self.membership.is_frozen() {
            return self.fail(client, "this side of the cluster has no majority: no job can start until the others answer again");
        }
        if let Err(error) = suspension.ward.spec.validate() {
            return self.fail(client, error.to_string());
        }
        let query = Query::Knows { job: suspension.job, view: self.view_number() };
        self.gather_for(now, client, Purpose::Away(client, suspension, resumption), &query);
    }

    /// A node does not answer without which a request cannot be carried out.
    fn fail_for_silence(&mut self, client: ClientId, node: &NodeId) {
        self.fail(client, format!("{} does not answer; `radic nodes` shows how it is", node.name));
    }

    /// No node has anything of a suspended job. Every node must begin its next life, and forget what it remembers of the one before.
    pub(super) fn finish_away(
        &mut self,
        now: Duration,
        client: ClientId,
        (mut suspension, resumption): (Box<Suspension>, Box<Resumption>),
        answers: &BTreeMap<NodeId, Answer>,
        silent: &BTreeSet<NodeId>,
    ) {
        if let Some(node) = silent.first() {
            return self.fail_for_silence(client, node);
        }
        if let Some((node, _)) = answers.iter().find(|(_, answer)| **answer == Answer::Knows(true)) {
            return self.fail(client, not_away(suspension.job, node));
        }
        suspension.ward.spec.life = self.next_life(suspension.job, suspension.ward.spec.life);
        // The log was held when the job was suspended, so it is taken whatever the bound for new logs is.
        let protection = Protection { log: u64::MAX, ..suspension.ward.spec.protection.clone() };
        let (job, life, incarnations) = (suspension.job, suspension.ward.spec.life, resumption.incarnations.clone());
        let query = Query::Revive(Box::new(Revival { job, protection, life, incarnations }));
        self.gather_for(now, client, Purpose::Revive(client, suspension, resumption), &query);
    }

    /// Chooses the nodes where a suspended job goes on.
    pub(super) fn finish_revive(
        &mut self,
        client: ClientId,
        (mut suspension, resumption): (Box<Suspension>, Box<Resumption>),
        answers: BTreeMap<NodeId, Answer>,
        silent: &BTreeSet<NodeId>,
    ) {
        if let Some(node) = silent.first() {
            return self.fail_for_silence(client, node);
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
        let logs = |at: &u32| protectors[*at as usize].log_address();
        let logs = placement.rank_nodes.iter().map(logs).collect();
        let protectors = protectors.iter().map(|member| member.id.clone()).collect();
        suspension.ward.placement = placement;
        self.clients.insert(client, Client::Resuming { suspension, resumption, protectors });
        self.reply(client, Reply::Resuming(logs));
    }

    /// The log services of a resumed job's protectors have everything. The protectors hear what that is before the home hears
    /// that the job goes on: a home that is lost when it has told some of them leaves no log of which no node knows.
    fn begin_resumed(&mut self, now: Duration, client: ClientId, request: Request) {
        if request != Request::BeginResumed {
            return self.fail(client, "that request does not belong there");
        }
        let Some(Client::Resuming { suspension, resumption, protectors }) = self.clients.remove(&client) else { return };
        let (query, nodes) = (Query::Given(Box::new(gift(&suspension, &resumption, &protectors))), protectors.clone());
        self.clients.insert(client, Client::Beginning { suspension, resumption, protectors });
        self.gather_from(now, Purpose::Given(client), &query, nodes, LOG);
    }

    /// The protectors of a resumed job know what they were given.
    pub(super) fn finish_given(&mut self, client: ClientId, answers: BTreeMap<NodeId, Answer>, silent: &BTreeSet<NodeId>) {
        let Some(Client::Beginning { suspension, resumption, protectors }) = self.clients.remove(&client) else { return };
        let (job, placement, session) = (suspension.job, suspension.ward.placement.clone(), self.session(client));
        let home = placement.home().clone();
        // Of a home that is lost already nothing would ever be heard.
        let lost = placement.nodes.iter().chain(&protectors).find(|node| !self.is_member(node));
        let lost = lost.map(|lost| format!("{} was lost meanwhile; it can be resumed again", lost.name));
        let silent = || silent.first().map(|node| format!("{} does not answer; it can be resumed again", node.name));
        let refused =
            || answers.into_values().find_map(|answer| if let Answer::Given(Err(why)) = answer { Some(why) } else { None });
        if let Some(why) = lost.or_else(silent).or_else(refused) {
            // Another command may be about to begin a later life.
            if self.is_newest_life(job, suspension.ward.spec.life) {
                self.tell_all_removed(job);
            }
            self.clients.insert(client, Client::Idle);
            return self.fail(client, why);
        }
        self.send(&home, PeerMessage::ToHome(job, ToHome::Resume { suspension, resumption, protectors, session }));
        let shown = Shown { protected: true, ..Shown::default() };
        self.clients.insert(client, Client::Session { job, home, placement: Some(placement), shown });
    }

    fn kill_node(&mut self, now: Duration, client: ClientId, name: &NodeName) {
        let Some(id) = self.named(client, name) else { return };
        let text = format!("{name} and every process it hosts are killed, as asked");
        self.record(now, EventName::Inject, About::node(name), text);
        self.finish(client, Reply::Done);
        self.send(&id, PeerMessage::Die);
    }

    /// The member of this name; if there is none, the command is told.
    pub(super) fn named(&mut self, client: ClientId, name: &NodeName) -> Option<NodeId> {
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

    pub(super) fn finish_fault(
        &mut self,
        now: Duration,
        client: ClientId,
        node: &NodeId,
        fault: Fault,
        answers: BTreeMap<NodeId, Answer>,
    ) {
        match answers.into_values().next() {
            Some(Answer::Fault(Ok(()))) => {}
            Some(Answer::Fault(Err(why))) => return self.fail(client, format!("{}: {why}", node.name)),
            _ => return self.fail_for_silence(client, node),
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

    pub(super) fn tell_all(&mut self, message: &PeerMessage) {
        let members: Vec<_> = self.view().map_or(&[][..], |v| &v.members).iter().map(|m| m.id.clone()).collect();
        members.iter().for_each(|node| self.send(node, message.clone()));
    }

    fn find_for(&mut self, now: Duration, client: ClientId, job: String, wanted: Wanted) {
        self.gather_for(now, client, Purpose::Find(client, job, wanted), &Query::Report);
    }

    /// What the nodes report. Their log services are asked for sizes, if there are processes to show them with.
    pub(super) fn finish_status(&mut self, now: Duration, client: ClientId, answers: BTreeMap<NodeId, Answer>) {
        let status = self.status(answers);
        if status.processes.is_empty() {
            return self.finish(client, Reply::Status(status));
        }
        self.gather(now, Purpose::Sizes(client, Box::new(status)), &Query::Sizes);
    }

    pub(super) fn finish_sizes(&mut self, client: ClientId, mut status: ClusterStatus, answers: BTreeMap<NodeId, Answer>) {
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
    pub(super) fn finish_log(&mut self, client: ClientId, process: ProcessId, answers: BTreeMap<NodeId, Answer>) {
        let of = |(node, answer)| if let Answer::Log(Some(held)) = answer { Some((node, held)) } else { None };
        // A node may still hold what a process did before its job restarted from the beginning, or while that node was its
        // protector.
        let order = |held: &HeldLog| (held.current, held.incarnation, held.stable, held.images.len());
        let found = answers.into_iter().filter_map(of).max_by_key(|(_, held)| order(held));
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

    pub(super) fn read_log(&mut self, now: Duration, client: ClientId, holder: NodeId, process: ProcessId, request: Request) {
        let Request::ReadLog { part, position } = request else { return self.fail(client, "only the log can be read here") };
        if let Some(Client::Reading { busy, .. }) = self.clients.get_mut(&client) {
            *busy = true;
        }
        let query = Query::ReadLog { process, part, position };
        self.gather_from(now, Purpose::ReadLog(client), &query, vec![holder], LOG);
    }

    pub(super) fn finish_read(&mut self, client: ClientId, answers: BTreeMap<NodeId, Answer>) {
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

    pub(super) fn finish_checkpoint(&mut self, client: ClientId, ranks: u32, answers: BTreeMap<NodeId, Answer>) {
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

    pub(super) fn find_job(
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
            // would wait forever for the one that is gone.
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
            Wanted::Suspend => {
                let until = Some(now + SILENCE);
                (Client::Suspending { job, home: home.clone(), until }, ToHome::Suspend(session))
            }
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

    pub(super) fn finish_name(
        &mut self,
        now: Duration,
        job: JobId,
        rank: Rank,
        request: &NameRequest,
        answers: BTreeMap<NodeId, Answer>,
    ) {
        let of = |answer| if let Answer::Name(name) = answer { name } else { None };
        let found = answers.into_values().find_map(of);
        let answer = match (request, found) {
            // Said again, by a process that was brought back.
            (NameRequest::Publish { port, .. }, Some(found)) if *port == found => Ok(found),
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

    pub(super) fn status(&self, mut answers: BTreeMap<NodeId, Answer>) -> ClusterStatus {
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
