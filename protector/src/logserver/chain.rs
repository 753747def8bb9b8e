//! Connections to the next log server of the chain, one for each process that is replicated.
//!
//! A log server *leads* the chain of a process that speaks to it, and *follows* if another one forwards what it hears. A follower
//! has no replica, whatever was ordered when it led. The replica of a process that has moved may be the log server that led
//! before: the two would tell each other what each had said.
//!
//! While a replica is not there, nothing is acknowledged: the store counts the process as replicated from the moment it is to be.
//! Each time the connection is made the replica is told everything that is not stable ([`crate::store::Store::set_replica`]).

use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::ids::ProcessId;
use radic_wire::limits;
use radic_wire::log::ToProtector;

use super::LogServer;
use super::types::{Action, ConnectionNumber, Precedence, Reason, Role, What};
use crate::store::Speaker;

/// Time until a replica is dialed again; it doubles.
const AGAIN: Duration = Duration::from_millis(50);
/// Longest such time.
const AGAIN_AT_MOST: Duration = Duration::from_secs(2);

/// How far the connection to a replica is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// There is none, and nothing is done about it: the process does not need it here.
    Idle,
    /// The replica is dialed again at this time.
    Due(Duration),
    /// The driver is to dial.
    Wanted,
    /// The connection is being made.
    Dialed(ConnectionNumber),
    /// The connection is logged in.
    Up(ConnectionNumber),
}

impl Link {
    pub(super) fn connection(self) -> Option<ConnectionNumber> {
        match self {
            Link::Dialed(connection) | Link::Up(connection) => Some(connection),
            Link::Idle | Link::Due(_) | Link::Wanted => None,
        }
    }
}

/// Where a process is replicated.
#[derive(Debug, Clone)]
pub(super) struct Replica {
    pub(super) address: SocketAddr,
    pub(super) link: Link,
    again: Duration,
    /// The node was told that it is out of reach.
    is_told: bool,
}

impl Replica {
    pub(super) fn is_up(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }
}

impl LogServer {
    /// The log of this process is also to be held at this address, or nowhere else: acknowledgements wait for that one. This may
    /// be said before the process is known here. Until it is said the process is not answered.
    pub fn set_replica(&mut self, now: Duration, process: ProcessId, address: Option<SocketAddr>) {
        self.now = now;
        if self.replicas.get(&process).map(|replica| replica.address) != address {
            self.forget_replica(process);
            let leads = !self.followed.contains(&process);
            self.store.set_replica(process, address.is_some() && leads);
            if let Some(address) = address {
                self.replicas.insert(process, Replica { address, link: Link::Idle, again: AGAIN, is_told: false });
                self.dial(process);
            }
        }
        self.listen_to(process);
    }

    /// The address to which what this process says is forwarded from here, if it is.
    pub fn replica(&self, process: ProcessId) -> Option<SocketAddr> {
        self.replicas.get(&process).filter(|_| !self.followed.contains(&process)).map(|replica| replica.address)
    }

    /// The same, while the replica takes it.
    pub fn replica_that_is_up(&self, process: ProcessId) -> Option<SocketAddr> {
        self.replica(process).filter(|_| self.replicas.get(&process).is_some_and(Replica::is_up))
    }

    /// Whether another log server forwards what this process says.
    pub fn is_followed(&self, process: ProcessId) -> bool {
        self.followed.contains(&process)
    }

    /// Whether this process itself, and no log server for it, has said hello here and is still connected.
    fn speaks_here(&self, process: ProcessId) -> bool {
        let is_it = |role: Role| matches!(role, Role::Journal(speaker, true) if speaker.process == process);
        self.connections.values().any(|connection| is_it(connection.role))
    }

    /// Another log server forwards what this process says. Returns false if the process speaks here itself: that log server does
    /// not know yet that it has moved.
    #[must_use]
    pub(super) fn follow(&mut self, process: ProcessId, forwarder: ConnectionNumber) -> bool {
        if self.speaks_here(process) {
            return false;
        }
        if self.followed.insert(process) {
            self.hang_up(process);
            self.store.set_replica(process, false);
        }
        if self.store.has_let_go(process) {
            // What is held is older. A copy begins with nothing, and no other connection goes on with it.
            self.close_all(&Reason::Forgotten, |number, role| number != forwarder && role.process() == Some(process));
            self.forget_process(process);
        }
        true
    }

    /// The process itself speaks here: no other log server forwards it any more, and it needs its replica.
    pub(super) fn lead(&mut self, process: ProcessId) {
        if self.followed.remove(&process) {
            self.close_all(&Reason::Replaced, |_, role| matches!(role, Role::Forwarder(of, _) if of == process));
        }
        if self.replicas.contains_key(&process) {
            if !self.store.is_replicated(process) {
                self.store.set_replica(process, true);
            }
            self.dial(process);
        }
    }

    /// Closes the connection, and makes another only when asked to.
    pub(super) fn hang_up(&mut self, process: ProcessId) {
        let link = self.replicas.get_mut(&process).map(|replica| std::mem::replace(&mut replica.link, Link::Idle));
        if let Some(Link::Due(at)) = link {
            self.dials.remove(&(at, process));
        }
        let connection = link.and_then(Link::connection);
        connection.into_iter().for_each(|connection| self.close(connection, Reason::Replaced));
    }

    /// Closes the connection and makes no other.
    pub(super) fn forget_replica(&mut self, process: ProcessId) {
        self.hang_up(process);
        self.replicas.remove(&process);
        self.freed = true;
    }

    /// Whether too much waits for the replica of this process.
    pub(super) fn replica_is_behind(&self, process: ProcessId) -> bool {
        let connection = self.replicas.get(&process).and_then(|replica| replica.link.connection());
        connection
            .and_then(|number| self.connections.get(&number))
            .is_some_and(|connection| connection.waiting > self.config.forwards)
    }

    /// Asks for a connection to the replica of a process. Not if another protector has the process and it does not speak here any
    /// more: that protector may have the same replica by now, and the two would take the connection from each other forever. If
    /// the process comes back, its hello leads here ([`LogServer::lead`]).
    pub(super) fn dial(&mut self, process: ProcessId) {
        let has_left = self.store.has_let_go(process) && !self.speaks_here(process);
        let speaker = Speaker { process, incarnation: self.incarnation(process) };
        let is_followed = self.followed.contains(&process);
        let Some(replica) = self.replicas.get_mut(&process) else { return };
        match replica.link {
            Link::Wanted | Link::Dialed(_) | Link::Up(_) => return,
            Link::Due(at) => _ = self.dials.remove(&(at, process)),
            Link::Idle => {}
        }
        replica.link = if is_followed || has_left { Link::Idle } else { Link::Wanted };
        if replica.link == Link::Wanted {
            self.actions.push_back(Action::Dial(speaker, replica.address));
        }
    }

    /// The driver connects to an address for a process, as [`Action::Dial`] said. Returns false if that is not wanted any more:
    /// then the driver closes the connection.
    #[must_use]
    pub fn handle_dialing(
        &mut self,
        now: Duration,
        process: ProcessId,
        address: SocketAddr,
        connection: ConnectionNumber,
    ) -> bool {
        self.now = now;
        let wanted = self.replicas.get_mut(&process).filter(|r| (r.link, r.address) == (Link::Wanted, address));
        let Some(replica) = wanted else { return false };
        replica.link = Link::Dialed(connection);
        self.dialed.push_back((now + Duration::from_millis(limits::HANDSHAKE_MS), connection));
        self.add(connection, Role::Dialed(process));
        true
    }

    /// The driver could not begin to connect.
    pub fn handle_dial_failed(&mut self, now: Duration, process: ProcessId, why: &str) {
        self.now = now;
        if self.replicas.get(&process).is_some_and(|replica| replica.link == Link::Wanted) {
            self.dial_again(process, why);
        }
    }

    /// The replica has proven what it is: it gets what it must know.
    pub fn handle_welcome(&mut self, now: Duration, connection: ConnectionNumber) {
        self.now = now;
        let Some(caller) = self.connections.get_mut(&connection) else { return };
        let Role::Dialed(process) = caller.role else { return };
        caller.role = Role::Replica(process);
        self.dialed.retain(|(_, dialed)| *dialed != connection);
        if let Some(replica) = self.replicas.get_mut(&process) {
            (replica.link, replica.again) = (Link::Up(connection), AGAIN);
            if std::mem::take(&mut replica.is_told) {
                self.tell(What::Replica, Some(process), "the replica of its log is there again".into());
            }
        }
        self.store.set_replica(process, true);
    }

    fn dial_again(&mut self, process: ProcessId, why: &str) {
        let Some(replica) = self.replicas.get_mut(&process) else { return };
        let at = self.now + replica.again;
        replica.link = Link::Due(at);
        self.dials.insert((at, process));
        replica.again = (replica.again * 2).min(AGAIN_AT_MOST);
        if !std::mem::replace(&mut replica.is_told, true) {
            let text = format!("the replica of its log at {} is out of reach ({why}): its gate waits", replica.address);
            self.tell(What::Replica, Some(process), text);
        }
    }

    /// The connection to a replica is lost.
    pub(super) fn handle_replica_lost(&mut self, process: ProcessId, connection: ConnectionNumber, why: &str) {
        self.dialed.retain(|(_, dialed)| *dialed != connection);
        if self.replicas.get(&process).is_some_and(|replica| replica.link.connection() == Some(connection)) {
            self.dial_again(process, why);
        }
    }

    /// Sends a message on to the replica, if it is there. Otherwise the replica is told when it is.
    pub(super) fn forward(&mut self, process: ProcessId, message: Vec<u8>) {
        let Some(Link::Up(connection)) = self.replicas.get(&process).map(|replica| replica.link) else { return };
        let precedence = match ToProtector::read(&message) {
            Ok(ToProtector::Hello { .. }) => Precedence::Barrier,
            Ok(ToProtector::Journal { .. } | ToProtector::JournalAfter { .. }) => Precedence::Urgent,
            _ => Precedence::Later,
        };
        self.actions.push_back(Action::Forward(connection, precedence, message));
    }

    pub(super) fn check_replica(&self, process: ProcessId, replica: &Replica) {
        let role = replica.link.connection().and_then(|connection| self.role(connection));
        match replica.link {
            Link::Dialed(_) => assert_eq!(role, Some(Role::Dialed(process)), "a connection to a replica"),
            Link::Up(_) => assert_eq!(role, Some(Role::Replica(process)), "a connection to a replica"),
            Link::Due(at) => assert!(self.dials.contains(&(at, process)), "a replica that is due is dialed"),
            Link::Idle | Link::Wanted => {}
        }
        let is_idle = replica.link == Link::Idle;
        assert!(
            is_idle || !self.followed.contains(&process),
            "{process} is forwarded by another log server, and forwarded from here"
        );
    }
}
