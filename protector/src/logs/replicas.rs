//! Connections to the next protector of the chain, one for each process that is replicated.
//!
//! A log service *leads* the chain of a process that speaks to it, and *follows* if another one forwards what it hears: who follows has no replica, whatever was
//! ordered when it led. A process that has moved may have for its replica who led before, and the two would tell each other what each had said.
//!
//! While one is not there, nothing is acknowledged: the store counts the process as replicated from the moment it is to be. Each time the
//! connection is made the replica is told everything that is not stable ([`crate::store::Store::set_replica`]).

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::limits;
use radic_wire::log::ToProtector;
use radic_wire::login::{Channel, Login, NONCE};
use radic_wire::record::Cover;

use super::What;
use super::connection::{Connection, Partial, Role};
use super::service::Service;

/// Time until a replica is tried again; it doubles.
const AGAIN: Duration = Duration::from_millis(50);
/// Longest such time.
const AGAIN_AT_MOST: Duration = Duration::from_secs(2);
/// Bytes that may wait for a replica before payload and images of its process are not read.
const BEHIND: usize = 4 << 20;

/// Where a process is replicated.
#[derive(Debug)]
pub struct Replica {
    pub address: SocketAddr,
    /// The connection, or the attempt at one.
    token: Option<u64>,
    /// It is logged in.
    pub connected: bool,
    again: Duration,
    /// It was told that it is out of reach.
    told: bool,
}

impl Service {
    /// From now on this process is replicated there, or nowhere.
    pub fn set_replica(&mut self, process: ProcessId, address: Option<SocketAddr>) {
        if self.replicas.get(&process).map(|replica| replica.address) == address {
            return;
        }
        self.forget_replica(process);
        let leads = !self.followed.contains(&process);
        self.store.set_replica(process, address.is_some() && leads);
        if let Some(address) = address {
            self.replicas.insert(process, Replica { address, token: None, connected: false, again: AGAIN, told: false });
            self.dial(process);
        }
    }

    /// Whether this process itself, and nobody for it, has said hello here and is still connected.
    fn speaks_here(&self, process: ProcessId) -> bool {
        let is_it = |role: &Role| matches!(role, Role::Journal(speaker, true) if speaker.process == process);
        self.connections.values().any(|connection| is_it(&connection.role))
    }

    /// Somebody forwards what this process says. False: it speaks here itself, so that one does not know yet that it has moved.
    #[must_use]
    pub fn follow(&mut self, process: ProcessId, token: u64) -> bool {
        if self.speaks_here(process) {
            return false;
        }
        if self.followed.insert(process) {
            self.dials.retain(|(_, of)| *of != process);
            let replica = self.replicas.get_mut(&process);
            let token = replica.and_then(|replica| replica.token.take());
            token.into_iter().for_each(|token| self.close(token));
            self.store.set_replica(process, false);
        }
        if self.store.has_let_go(process) {
            // It is of another time: a copy begins with nothing, and nobody else goes on with it.
            let theirs = self.connections.iter().filter(|(of, c)| **of != token && c.role.process() == Some(process));
            let tokens: Vec<u64> = theirs.map(|(token, _)| *token).collect();
            tokens.into_iter().for_each(|token| self.close(token));
            self.remove_process(process);
        }
        true
    }

    /// The process itself speaks here: nobody forwards it any more, and its replica is to be there.
    pub fn lead(&mut self, process: ProcessId) {
        if self.followed.remove(&process) {
            let forwards = |role: &Role| matches!(role, Role::Forwarder(of, _) if *of == process);
            let theirs = self.connections.iter().filter(|(_, connection)| forwards(&connection.role));
            let theirs: Vec<u64> = theirs.map(|(token, _)| *token).collect();
            theirs.into_iter().for_each(|token| self.close(token));
        }
        if self.replicas.contains_key(&process) {
            if !self.store.is_replicated(process) {
                self.store.set_replica(process, true);
            }
            self.dials.retain(|(_, of)| *of != process);
            self.dial(process);
        }
    }

    /// Closes the connection and makes no other.
    pub fn forget_replica(&mut self, process: ProcessId) {
        let replica = self.replicas.remove(&process);
        self.dials.retain(|(_, of)| *of != process);
        replica.and_then(|replica| replica.token).into_iter().for_each(|token| self.close(token));
        self.freed = true;
    }

    /// Whether too much waits for the replica of this process.
    pub fn replica_is_behind(&self, process: ProcessId) -> bool {
        let token = self.replicas.get(&process).and_then(|replica| replica.token);
        let connection = token.and_then(|token| self.connections.get(&token));
        connection.is_some_and(|connection| connection.waiting() > BEHIND)
    }

    /// Begins a connection to the replica of a process. Not if another protector has it and it speaks here no more: that one may have the same replica by now, and
    /// the two would take the connection from each other for ever. If it comes back, its hello leads here ([`Service::lead`]).
    pub fn dial(&mut self, process: ProcessId) {
        let Some(replica) = self.replicas.get(&process) else { return };
        let has_left = self.store.has_let_go(process) && !self.speaks_here(process);
        if replica.token.is_some() || self.followed.contains(&process) || has_left {
            return;
        }
        match self.begin_dial(process, replica.address) {
            Ok(token) => {
                let deadline = Instant::now() + Duration::from_millis(limits::HANDSHAKE_MS);
                self.dialed.push_back((deadline, token));
                self.replicas.get_mut(&process).into_iter().for_each(|replica| replica.token = Some(token));
            }
            Err(error) => self.dial_again(process, &error.to_string()),
        }
    }

    fn begin_dial(&mut self, process: ProcessId, address: SocketAddr) -> io::Result<u64> {
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
        let incarnation = self.store.incarnation(process).unwrap_or(Incarnation(0));
        let login = Login { process, incarnation, channel: Channel::Replica, nonce };
        let key = login.channel.key(&self.config.key, process.job);
        let mut connection = Connection::new(begin_connect(address)?, Role::Dialed(process, login, key));
        connection.interest = connection.wanted_interest();
        self.add(connection, EpollFlags::EPOLLOUT | EpollFlags::EPOLLIN)
    }

    fn dial_again(&mut self, process: ProcessId, why: &str) {
        let Some(replica) = self.replicas.get_mut(&process) else { return };
        (replica.token, replica.connected) = (None, false);
        self.dials.insert((Instant::now() + replica.again, process));
        replica.again = (replica.again * 2).min(AGAIN_AT_MOST);
        if !std::mem::replace(&mut replica.told, true) {
            let text = format!("the replica of its log at {} is out of reach ({why}): its gate waits", replica.address);
            self.tell(What::Replica, Some(process), text);
        }
    }

    /// The kernel has connected, or failed to.
    pub fn handle_dialed(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let Role::Dialed(process, login, ref key) = connection.role else { return };
        let key = key.clone();
        if let Some(error) = connection.socket.take_error().unwrap_or_else(Some) {
            self.close_because(token, process, &error.to_string());
            return;
        }
        connection.queue_words(&login.encode(&key));
        connection.role = Role::Asked(process, login, key, Partial::new());
        self.flush(token);
    }

    fn close_because(&mut self, token: u64, process: ProcessId, why: &str) {
        self.replicas.get_mut(&process).into_iter().for_each(|replica| replica.token = None);
        self.close(token);
        self.dial_again(process, why);
    }

    /// The replica has said its nonce: it gets the proof.
    pub fn handle_nonce(&mut self, token: u64, nonce: [u8; NONCE]) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let Role::Asked(process, login, ref key, _) = connection.role else { return };
        let key = key.clone();
        connection.queue_words(&login.prove(&key, &nonce));
        connection.role = Role::Proving(process, login, key, nonce, Partial::new());
        self.touched.push(token);
    }

    /// The replica is one: it gets what it must know.
    pub fn handle_welcome(&mut self, token: u64, cover: Cover) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let Role::Proving(process, login, ref key, nonce, _) = connection.role else { return };
        let records = login.records_of_caller(key, &nonce, cover);
        connection.begin_records(records);
        connection.role = Role::Replica(process);
        self.touched.push(token);
        if let Some(replica) = self.replicas.get_mut(&process) {
            (replica.connected, replica.again) = (true, AGAIN);
            if std::mem::take(&mut replica.told) {
                self.tell(What::Replica, Some(process), "the replica of its log is there again".into());
            }
        }
        self.store.set_replica(process, true);
    }

    /// The connection to a replica is lost.
    pub fn handle_replica_lost(&mut self, process: ProcessId, token: u64) {
        if self.replicas.get(&process).is_some_and(|replica| replica.token == Some(token)) {
            self.dial_again(process, "the connection was lost");
        }
    }

    /// Sends a message on to the replica, if it is there: else it will be told.
    pub fn forward(&mut self, process: ProcessId, message: &[u8]) {
        let replica = self.replicas.get(&process).filter(|replica| replica.connected);
        let Some(token) = replica.and_then(|replica| replica.token) else { return };
        let Some(connection) = self.connections.get_mut(&token) else { return };
        match ToProtector::read(message) {
            // What follows belongs to another life.
            Ok(ToProtector::Hello { .. }) => {
                connection.fence();
                connection.queue_urgent(message);
            }
            // A gate waits for it, and for no payload or image before it.
            Ok(ToProtector::Journal { .. }) => connection.queue_urgent(message),
            _ => connection.queue_later(message),
        }
        self.touched.push(token);
    }
}

/// Begins to connect; the socket is writable when that has succeeded or failed.
fn begin_connect(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket: OwnedFd = socket(family, SockType::Stream, flags, None)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let socket = TcpStream::from(socket);
    socket.set_nodelay(true)?;
    Ok(socket)
}
