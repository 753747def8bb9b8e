//! Terminals: what a command is shown of a job, and what becomes of it when the job's home is lost.

use std::time::Duration;

use radic_wire::ids::{Epoch, JobId, NodeId};
use radic_wire::job::{EndReason, OnLoss, Outcome, exit_code};
use radic_wire::local::{Reply, Request};
use radic_wire::membership::View;
use radic_wire::peer::{Adoption, Answer, PeerMessage, Query, SessionId, ToHome, ToSession};

use super::Node;
use super::client::{Client, Shown};
use super::numbers::ClientId;
use super::purpose::Purpose;

/// Time that a terminal waits for the new home of a job.
const NEW_HOME: Duration = Duration::from_secs(40);

impl Node {
    pub(super) fn handle_in_session(&mut self, client: ClientId, job: JobId, home: &NodeId, request: Request) {
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

    pub(super) fn session(&self, client: ClientId) -> SessionId {
        SessionId { node: self.me().clone(), number: client.0 }
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
            (Client::Session { .. }, ToSession::Notice(text)) => self.reply(client, Reply::Notice(text)),
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
        waiting.into_iter().for_each(|(client, job)| self.ask_for_home(now, client, job));
    }

    fn ask_for_home(&mut self, now: Duration, client: ClientId, job: JobId) {
        let view = self.view_number();
        self.gather(now, Purpose::Knows(client, job), &Query::Knows { job, view });
    }

    /// The answers about the job of a terminal that waits for a home. A home that was lost just when its job was over may have
    /// told some node how that ended, and others nothing.
    pub(super) fn finish_knows<'a>(
        &mut self,
        now: Duration,
        client: ClientId,
        job: JobId,
        mut answers: impl Iterator<Item = &'a Answer> + Clone,
        silent: bool,
    ) {
        let ended = answers.clone().find_map(|answer| if let Answer::Ended(outcome) = answer { Some(outcome) } else { None });
        if let Some(outcome) = ended {
            return self.clients_hear_of_end(job, outcome);
        }
        let waits = matches!(self.clients.get(&client), Some(Client::Session { shown: Shown { waits: Some(_), .. }, .. }));
        match (answers.any(|answer| *answer == Answer::Knows(true)), silent) {
            _ if !waits => {}
            (true, _) => {}
            // They will answer, or be declared dead.
            (false, true) => self.ask_for_home(now, client, job),
            (false, false) if self.want_home(now, client) => {}
            (false, false) => {
                // A job that was to be resumed, and has not begun: its protectors have logs that are no longer needed.
                self.tell_all_removed(job);
                let is_resumed = !self.is_newest_life(job, 0);
                let again = if is_resumed { "it can be resumed again from its folder" } else { "it can only be started again" };
                self.end_orphan(client, format!("with it everything is lost that was known of the job: {again}"));
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
        self.send(&home, PeerMessage::Adopt(Box::new(Adoption { job, ward, started_ms, view: self.seat().view })));
        true
    }

    /// A job is over, and how. Terminals whose home is a member hear it from that home.
    pub(super) fn clients_hear_of_end(&mut self, job: JobId, outcome: &Outcome) {
        let waits = |c: &Client| matches!(c, Client::Session { job: of, shown: Shown { waits: Some(_), .. }, .. } if *of == job);
        let waiting: Vec<_> = self.clients.iter().filter(|(_, client)| waits(client)).map(|(id, _)| *id).collect();
        waiting.into_iter().for_each(|client| self.finish(client, Reply::Ended(outcome.clone())));
    }

    /// A job has restarted with this epoch.
    pub(super) fn clients_hear_of_epoch(&mut self, job: JobId, epoch: Epoch) {
        for client in self.clients.values_mut() {
            if let Client::Session { job: of, shown: Shown { ward: Some(ward), .. }, .. } = client
                && *of == job
            {
                ward.epoch = ward.epoch.max(epoch);
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
        let waiting: Vec<_> = self.gathers.iter_mut().filter_map(|(n, g)| g.lose(node).then_some(*n)).collect();
        for number in waiting {
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
                state => {
                    // The home may be there, and out of reach. It hears so late, but its ranks do not stay stopped forever.
                    if let Some(Client::Suspending { job, .. }) = state {
                        let (job, session) = (*job, self.session(client));
                        self.send(node, PeerMessage::ToHome(job, ToHome::Detach(session)));
                    }
                    self.fail(client, format!("{node}, the job's home, is gone: {why}"));
                }
            }
        }
    }
}
