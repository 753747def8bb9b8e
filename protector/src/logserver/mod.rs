//! The log server: everything that the log service decides, without sockets, files, threads or a clock.
//!
//! The driver says what happens (`handle_*`), carries out what [`LogServer::poll_action`] says, and calls
//! [`LogServer::handle_timeout`] at [`LogServer::poll_timeout`]. There are two drivers: [`crate::logs`], with epoll,
//! authenticated records and disk threads, and the simulation.
//!
//! # Map
//!
//! | module | what it decides |
//! |---|---|
//! | this one | connections: which are let in, for what, which are read and which wait, why one is closed |
//! | `messages` | what a frame means on a connection of its role, and where the answers of a process go |
//! | `chain` | which process is forwarded to which replica, when it is dialed again, which log server leads and which follows |
//! | `orders` | what the node orders and asks |
//! | `jobs` | jobs, fences, forgetting |
//! | `sending` | which images are sent to nodes that bring processes back, and which wait |
//! | `effects` | what the store wants done, what the disk and the verifier have done |
//! | `outgoing` | in which order the messages of one connection leave: the driver has one [`Outgoing`] for each |
//!
//! # A connection
//!
//! The driver numbers connections, and never uses a number again. A connection begins with [`LogServer::handle_accepted`] or, to
//! a replica, with [`Action::Dial`] and [`LogServer::handle_dialing`]. The driver proves with the keys of [`radic_wire::login`]
//! that the caller is what it says, and then asks [`LogServer::handle_proven`] whether it is let in. From there on the driver
//! brings frames, as long as [`LogServer::may_read`] says so. It ends by [`Action::Close`], with the [`Reason`], or by
//! [`LogServer::handle_closed`].
//!
//! # Bounds
//!
//! [`Config::connections`], [`limits::HANDSHAKES`] of them unproven, each for [`limits::HANDSHAKE_MS`]; [`Config::processes`];
//! [`Config::writing`] bytes on their way to files; [`Config::answers`] for a connection before it is not read any more;
//! [`Config::forwards`] for a replica before payload and images of its process are not read; 4 images that are sent at once, and 1,024 that wait.

mod chain;
mod effects;
mod jobs;
mod messages;
mod orders;
mod outgoing;
mod sending;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::bytes::Malformed;
use radic_wire::ids::{Incarnation, JobId, ProcessId};
use radic_wire::limits;
use radic_wire::login::Channel;
use radic_wire::process::Protection;

use self::chain::{Link, Replica};
use self::effects::Writing;
pub use self::orders::{Reply, StoreOrder};
pub use self::outgoing::Outgoing;
use self::sending::Sending;
use crate::store::{self, File, NoRestart, Restart, Speaker, Store, StoreError, Usage, Write};

/// Time between two events about connections that were closed.
const INTRUDERS: Duration = Duration::from_secs(1);

/// Number of a connection. The driver gives it, and each once.
pub type ConnectionNumber = u64;

/// Bounds.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Of the store.
    pub store: store::Config,
    /// Most processes. One more cannot log in.
    pub processes: usize,
    /// Most connections.
    pub connections: usize,
    /// Bytes on their way to files.
    pub writing: usize,
    /// Bytes of one write.
    pub write: usize,
    /// Bytes of answers that may wait for a connection, those that are being read from files included, before nothing more is
    /// read that asks for answers.
    pub answers: usize,
    /// Bytes that may wait for a replica before payload and images of its process are not read.
    pub forwards: usize,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The caller has proven nothing yet.
    Unproven,
    /// The journal of a process, and where its answers go; whether its hello has come.
    Journal(Speaker, bool),
    /// Payload of a process.
    Bulk(Speaker),
    /// An image: its number and how much of it has come, once its beginning has.
    Image(Speaker, Option<(u64, u64)>),
    /// The log server before this one in the chain, and as which incarnation it speaks.
    Forwarder(ProcessId, Option<Speaker>),
    /// A node that brings this process back, and is about to say which image it wants.
    Fetcher(ProcessId),
    /// The replica of a process, to which a connection is being made.
    Dialed(ProcessId),
    /// The replica of a process.
    Replica(ProcessId),
}

impl Role {
    /// The process that the connection is about, as far as that is proven.
    pub fn process(self) -> Option<ProcessId> {
        match self {
            Role::Unproven => None,
            Role::Journal(speaker, _) | Role::Bulk(speaker) | Role::Image(speaker, _) => Some(speaker.process),
            Role::Forwarder(process, _) | Role::Fetcher(process) | Role::Dialed(process) | Role::Replica(process) => {
                Some(process)
            }
        }
    }

    /// The incarnation that speaks on it, if one does.
    pub fn speaker(self) -> Option<Speaker> {
        match self {
            Role::Journal(speaker, _) | Role::Bulk(speaker) | Role::Image(speaker, _) => Some(speaker),
            Role::Forwarder(_, speaker) => speaker,
            Role::Unproven | Role::Fetcher(_) | Role::Dialed(_) | Role::Replica(_) => None,
        }
    }

    /// Whether it is served after those on which gates depend.
    pub fn is_bulk(self) -> bool {
        matches!(self, Role::Bulk(_) | Role::Image(..))
    }

    /// Whether the beginnings of images come on it, which are longer than other frames.
    pub fn takes_images(self) -> bool {
        matches!(self, Role::Image(..) | Role::Forwarder(..))
    }
}

/// Whether a connection is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// The connection is read.
    Open,
    /// Not until the store has room for what it brings.
    NoRoom,
    /// Not until it has taken answers.
    Clogged,
}

/// Why the server closes a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The other side proved nothing in [`limits::HANDSHAKE_MS`].
    #[error("it proved nothing in time")]
    Late,
    /// [`limits::HANDSHAKES`] others are unproven, and it is the oldest.
    #[error("too many connections have proven nothing")]
    Crowd,
    /// A newer connection speaks for the same incarnation, or the connection is not needed any more.
    #[error("another connection has its place")]
    Replaced,
    /// A newer incarnation of its process is listened to.
    #[error("a newer incarnation of its process is listened to")]
    Fenced,
    /// What is held of its process was forgotten.
    #[error("what was held of its process was forgotten")]
    Forgotten,
    /// The other side forwards for a process that speaks here itself, or this node is no member yet.
    #[error("its process speaks here itself, or this node is no member yet")]
    Early,
    /// Too many images are wanted at once.
    #[error("too many images are wanted at once")]
    Busy,
    /// An image is complete, or is not wanted any more.
    #[error("it has ended")]
    Ended,
    /// The store has refused what it said.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The other side said what its role does not allow.
    #[error("{0}")]
    Protocol(&'static str),
    /// What it said is no message.
    #[error("{0}")]
    Malformed(#[from] Malformed),
    /// The answer to its question cannot be read from its file.
    #[error("what it asked for cannot be read")]
    Unreadable,
}

impl Reason {
    /// Whether the caller is at fault, so that the event log should tell.
    fn is_fault(&self) -> bool {
        match self {
            Reason::Store(error) => !matches!(error, StoreError::Fenced { .. }),
            Reason::Late | Reason::Protocol(_) | Reason::Malformed(_) => true,
            _ => false,
        }
    }
}

/// Why a connection is gone, as the driver says.
#[derive(Debug, Clone, Copy)]
pub enum Gone<'a> {
    /// The other side has ended it.
    Ended,
    /// The connection broke.
    Broke(&'a str),
    /// The other side has sent what no honest one sends, and the driver has closed the connection.
    Fault(&'a str),
}

/// What the driver does next with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The driver brings the next frame.
    Read,
    /// The answer may be long: the driver carries out what is to be done, and asks [`LogServer::may_go_on`] before it brings the
    /// next frame.
    Answer,
    /// Nothing: the connection is closed.
    Closed,
}

/// When a forwarded message leaves, among those that wait for the replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precedence {
    /// After all that wait, and before all that come later: what follows belongs to another incarnation.
    Barrier,
    /// First: a gate waits for it, and for no payload or image before it.
    Urgent,
    /// When nothing else waits.
    Later,
}

/// Something for the driver to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send an answer ([`radic_wire::log::FromProtector`]) to the incarnation that speaks on this connection.
    Answer(ConnectionNumber, Speaker, Vec<u8>),
    /// Send a message ([`radic_wire::log::ToProtector`]) to a replica.
    Forward(ConnectionNumber, Precedence, Vec<u8>),
    /// Send what can be sent at once, and close the connection.
    Close(ConnectionNumber, Reason),
    /// Read the connection again: what has come already, and what will.
    Resume(ConnectionNumber),
    /// Connect to the replica of a process, to log in as this incarnation; then [`LogServer::handle_dialing`] or
    /// [`LogServer::handle_dial_failed`].
    Dial(Speaker, SocketAddr),
    /// Write; then [`LogServer::handle_written`] or [`LogServer::handle_write_failed`] with this ticket.
    Write(u64, Write),
    /// Read this many bytes of a file from a position, for a connection; then [`LogServer::handle_read`].
    Read(ConnectionNumber, File, u64, usize),
    /// Nothing of the file before the position is needed any more.
    Truncate(File, u64),
    /// The file is not needed any more.
    Delete(File),
    /// No file of the process is needed any more.
    RemoveProcess(ProcessId),
    /// No file of the job is needed any more.
    RemoveJob(JobId),
    /// Verify an image; then [`LogServer::handle_verdict`].
    Verify(Verification),
    /// Answer the node that waits on this connection by an [`Offer`](crate::fetching::Offer) of this image, which is held with this
    /// length, if it is; send the image, and close the connection. Then [`LogServer::handle_image_sent`].
    SendImage(ConnectionNumber, ProcessId, u64, Option<u64>),
    /// Tell the node.
    Tell(Event),
    /// Tell the node the result of [`LogServer::fence`]: what a restart as this incarnation needs.
    Fenced(ProcessId, Incarnation, Result<Restart, NoRestart>),
}

/// An image that is to be verified: whole, undamaged, and upon the image that it is said to build upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verification {
    /// Given back with the verdict: an image of the same number may be another one by then.
    pub ticket: u64,
    /// The process.
    pub process: ProcessId,
    /// The image's number.
    pub image: u64,
    /// The number of the image that it builds upon.
    pub parent: Option<u64>,
    /// The image's length.
    pub bytes: u64,
}

/// Something for the node's event log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub what: What,
    /// About which process.
    pub process: Option<ProcessId>,
    /// The text for the event log.
    pub text: String,
}

/// What an [`Event`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// The image of this number was committed.
    Committed(u64),
    /// An image was refused: not whole, damaged, too large, or no room for it.
    Refused,
    /// A process did not live again from its newest image: the one before it is the newest now.
    Useless,
    /// The image of this recovery line lacks nothing but that the line is complete.
    LineReady(u64),
    /// The log of a process nears its bound; an image was asked for.
    LogBound,
    /// A file could not be written; the process waits until it can, or its image is given up.
    Disk,
    /// Files can be written again.
    DiskWell,
    /// The log of a process that is catching up cannot be read, or is not what was written: the process cannot be brought back
    /// from here.
    Unreadable,
    /// A connection that proved nothing, or said something that contradicts what came before, was closed. At most one a second is
    /// told.
    Intruder,
    /// The replica of a process is out of reach (its gate waits), or there again.
    Replica,
}

/// How the logs of one process are, in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// What it has here.
    pub usage: Usage,
    /// Time since it was committed, in milliseconds.
    pub committed_ms: Option<u64>,
    /// The process's journal connection is there.
    pub connected: bool,
    /// Whether the connection to the process's replica is there, if the process is replicated.
    pub replica: Option<bool>,
    /// Why what it logs is not taken, or not acknowledged, for now.
    pub waits: Option<String>,
}

/// A connection, as the server knows it.
#[derive(Debug, Clone)]
struct Connection {
    role: Role,
    reading: Reading,
    /// Answers that are being read from files.
    reads: usize,
    /// Bytes that wait to be sent, as the driver said last.
    waiting: usize,
}

impl Connection {
    fn new(role: Role) -> Self {
        Connection { role, reading: Reading::Open, reads: 0, waiting: 0 }
    }

    fn is_clogged(&self, most: usize) -> bool {
        self.waiting + self.reads * limits::LOG_CHUNK > most
    }
}

/// See the module's text.
#[derive(Debug, Clone)]
pub struct LogServer {
    config: Config,
    store: Store,
    /// The time of the last input.
    now: Duration,
    actions: VecDeque<Action>,
    connections: HashMap<ConnectionNumber, Connection>,
    /// The connection on which each incarnation is answered.
    voices: HashMap<Speaker, ConnectionNumber>,
    /// Unproven connections, with the time until they must have proven something, oldest first.
    unproven: VecDeque<(Duration, ConnectionNumber)>,
    /// The same of those that were dialed.
    dialed: VecDeque<(Duration, ConnectionNumber)>,
    /// Connections that are [`Reading::NoRoom`].
    paused: Vec<ConnectionNumber>,
    /// There may be room for them now.
    freed: bool,
    replicas: HashMap<ProcessId, Replica>,
    /// Processes with messages that another log server forwards.
    followed: HashSet<ProcessId>,
    /// Fences whose logs are not stable yet, and until when they are waited for.
    fences: BTreeMap<(ProcessId, Incarnation), Duration>,
    /// When to connect to a replica.
    dials: BTreeSet<(Duration, ProcessId)>,
    /// The node is a member.
    is_member: bool,
    jobs: HashMap<JobId, Protection>,
    /// Processes whose replica, or restart from here, the node has named, and jobs that are resumed. No others are heard, because
    /// what is acknowledged must be stable on the whole chain.
    told: HashSet<ProcessId>,
    revived: HashSet<JobId>,
    /// Jobs that have ended, oldest first, and whether they keep their logs.
    ended: VecDeque<(JobId, bool)>,
    /// Complete images: those that are not in their file yet, and those being verified, with their ticket.
    verifying: HashMap<(ProcessId, u64), Option<u64>>,
    /// When the newest image of each process was committed.
    commits: HashMap<ProcessId, Duration>,
    /// Why the image is refused that the store refuses next.
    refusal: Option<String>,
    next_ticket: u64,
    writes: HashMap<u64, Writing>,
    /// Bytes of those that count for [`Config::writing`].
    writing: usize,
    /// Processes with files that cannot be written, and why.
    unwell: HashMap<ProcessId, String>,
    next_intruder: Duration,
    sending: Sending,
}

impl LogServer {
    /// Nothing is held, and there are no connections.
    pub fn new(config: Config) -> Self {
        LogServer {
            store: Store::new(config.store),
            config,
            now: Duration::ZERO,
            actions: VecDeque::new(),
            connections: HashMap::new(),
            voices: HashMap::new(),
            unproven: VecDeque::new(),
            dialed: VecDeque::new(),
            paused: Vec::new(),
            freed: false,
            replicas: HashMap::new(),
            fences: BTreeMap::new(),
            followed: HashSet::new(),
            dials: BTreeSet::new(),
            is_member: false,
            jobs: HashMap::new(),
            told: HashSet::new(),
            revived: HashSet::new(),
            ended: VecDeque::new(),
            verifying: HashMap::new(),
            commits: HashMap::new(),
            refusal: None,
            next_ticket: 0,
            writes: HashMap::new(),
            writing: 0,
            unwell: HashMap::new(),
            next_intruder: Duration::ZERO,
            sending: Sending::default(),
        }
    }

    /// What is held.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What a connection is for. None if it is closed.
    pub fn role(&self, connection: ConnectionNumber) -> Option<Role> {
        self.connections.get(&connection).map(|connection| connection.role)
    }

    /// Whether a connection is read. None if it is closed.
    pub fn reading(&self, connection: ConnectionNumber) -> Option<Reading> {
        self.connections.get(&connection).map(|connection| connection.reading)
    }

    /// What the driver is to do next. What the messages of one round have made of the store is put together here, so the driver
    /// asks when it has handled them all.
    pub fn poll_action(&mut self) -> Option<Action> {
        if self.actions.is_empty() {
            self.settle();
        }
        self.actions.pop_front()
    }

    /// When [`LogServer::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let first = |queue: &VecDeque<(Duration, ConnectionNumber)>| queue.front().map(|(at, _)| *at);
        let dial = self.dials.first().map(|(at, _)| *at);
        let fences = self.fences.values().copied();
        first(&self.unproven).into_iter().chain(first(&self.dialed)).chain(dial).chain(fences).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.now = now;
        while let Some(connection) = pop_due(&mut self.unproven, now) {
            if self.role(connection) == Some(Role::Unproven) {
                self.refuse(connection, Reason::Late);
            }
        }
        while let Some(connection) = pop_due(&mut self.dialed, now) {
            if matches!(self.role(connection), Some(Role::Dialed(_))) {
                self.close(connection, Reason::Late);
            }
        }
        while let Some((_, process)) = self.dials.first().copied().filter(|(at, _)| *at <= now) {
            self.dials.pop_first();
            self.dial(process);
        }
        self.look_at_fences();
    }

    // ---- connections

    /// A caller has come. Returns false if there are as many connections as there may be: then the driver closes this one.
    #[must_use]
    pub fn handle_accepted(&mut self, now: Duration, connection: ConnectionNumber) -> bool {
        self.now = now;
        if self.unproven.len() >= limits::HANDSHAKES {
            self.close_oldest_unproven();
        }
        if self.connections.len() >= self.config.connections {
            self.tell_intruder("a connection was closed: there are as many as there may be");
            return false;
        }
        self.unproven.push_back((now + Duration::from_millis(limits::HANDSHAKE_MS), connection));
        self.add(connection, Role::Unproven);
        true
    }

    /// The system has no room for one more connection.
    pub fn handle_crowded(&mut self, now: Duration, why: &str) {
        self.now = now;
        self.tell_intruder(&format!("cannot accept a connection: {why}"));
        self.close_oldest_unproven();
    }

    fn close_oldest_unproven(&mut self) {
        while let Some((_, connection)) = self.unproven.pop_front() {
            if self.role(connection) == Some(Role::Unproven) {
                return self.close(connection, Reason::Crowd);
            }
        }
    }

    /// A caller has said for which job it comes, and its login has the right code. [`Next::Closed`]: it is not asked for a proof.
    #[must_use]
    pub fn handle_login(&mut self, now: Duration, connection: ConnectionNumber, job: JobId) -> Next {
        self.now = now;
        let result = self.check_job(job).map(|()| Next::Read);
        self.or_refuse(connection, result)
    }

    /// A caller has proven that it has the channel's key. [`Next::Closed`]: it is not let in all the same.
    #[must_use]
    pub fn handle_proven(&mut self, now: Duration, connection: ConnectionNumber, speaker: Speaker, channel: Channel) -> Next {
        self.now = now;
        let result = self.admit(connection, speaker, channel).map(|()| Next::Read);
        self.or_refuse(connection, result)
    }

    fn check_job(&self, job: JobId) -> Result<(), Reason> {
        if self.has_ended(job) { Err(Reason::Protocol("its job has ended")) } else { Ok(()) }
    }

    fn admit(&mut self, connection: ConnectionNumber, speaker: Speaker, channel: Channel) -> Result<(), Reason> {
        let Speaker { process, incarnation } = speaker;
        self.unproven.retain(|(_, unproven)| *unproven != connection);
        self.check_job(process.job)?;
        let known = self.store.incarnation(process);
        if channel == Channel::Fetch && known != Some(incarnation) {
            return Err(Reason::Protocol("it wants an image for an incarnation that is not the process's newest"));
        }
        if known.is_none() && self.store.len() >= self.config.processes {
            return Err(Reason::Protocol("there are as many processes here as there may be"));
        }
        if channel == Channel::Replica && !(self.is_member && self.follow(process, connection)) {
            return Err(Reason::Early);
        }
        let Some(caller) = self.connections.get_mut(&connection) else { return Ok(()) };
        caller.role = match channel {
            Channel::Journal => Role::Journal(speaker, false),
            Channel::Bulk => Role::Bulk(speaker),
            Channel::Image => Role::Image(speaker, None),
            Channel::Replica => Role::Forwarder(process, None),
            Channel::Fetch => Role::Fetcher(process),
        };
        if channel == Channel::Journal {
            self.give_voice(connection, speaker);
        }
        Ok(())
    }

    /// Whether the driver may read the connection. If not, [`Action::Resume`] says when.
    pub fn may_read(&mut self, connection: ConnectionNumber) -> bool {
        let Some(Connection { role, reading, .. }) = self.connections.get(&connection) else { return false };
        if *reading != Reading::Open {
            return false;
        }
        let has_room = self.has_room(*role);
        if !has_room {
            self.set_reading(connection, Reading::NoRoom);
            self.paused.push(connection);
        }
        has_room
    }

    /// Whether frames that follow one that was answered by [`Next::Answer`] are handled now, or wait until answers are taken.
    pub fn may_go_on(&mut self, connection: ConnectionNumber) -> bool {
        let Some(caller) = self.connections.get_mut(&connection) else { return false };
        if caller.reading == Reading::Open && caller.is_clogged(self.config.answers) {
            caller.reading = Reading::Clogged;
        }
        caller.reading == Reading::Open
    }

    /// Where the messages of a new connection wait.
    pub fn outgoing(&self) -> Outgoing {
        Outgoing::new(outgoing::most(self.config.store.memory))
    }

    /// Something was sent, or waits to be: this many bytes wait now.
    pub fn handle_sent(&mut self, connection: ConnectionNumber, waiting: usize) {
        let Some(caller) = self.connections.get_mut(&connection) else { return };
        caller.waiting = waiting;
        if caller.reading == Reading::Clogged && !caller.is_clogged(self.config.answers) {
            caller.reading = Reading::Open;
            self.actions.push_back(Action::Resume(connection));
        }
        if let Role::Replica(_) = caller.role {
            self.freed = true;
        }
    }

    /// The driver has handled all that was ready. Connections for whose bytes there is room now are read again, and a fenced log
    /// may have become stable.
    pub fn handle_round(&mut self) {
        self.look_at_fences();
        if !std::mem::take(&mut self.freed) || self.paused.is_empty() {
            return;
        }
        for connection in std::mem::take(&mut self.paused) {
            match self.role(connection) {
                None => {}
                Some(role) if self.has_room(role) => {
                    self.set_reading(connection, Reading::Open);
                    self.actions.push_back(Action::Resume(connection));
                }
                Some(_) => self.paused.push(connection),
            }
        }
    }

    fn set_reading(&mut self, connection: ConnectionNumber, reading: Reading) {
        self.connections.get_mut(&connection).into_iter().for_each(|connection| connection.reading = reading);
    }

    /// Whether there is room for what a connection brings. A hello waits until the node names the replica: processes can find a
    /// restarted daemon before it is a member, and a new protector before it has heard that it is one.
    fn has_room(&self, role: Role) -> bool {
        match role {
            Role::Journal(speaker, false) if !self.listens_to(speaker.process) => false,
            Role::Journal(speaker, _) => self.store.has_room_for_journal(speaker.process),
            Role::Bulk(speaker) => self.store.has_room_for_payload(speaker.process) && !self.replica_is_behind(speaker.process),
            Role::Image(speaker, _) => self.store.has_room(speaker.process) && !self.replica_is_behind(speaker.process),
            Role::Forwarder(process, _) => self.store.has_room(process),
            Role::Unproven | Role::Fetcher(_) | Role::Dialed(_) | Role::Replica(_) => true,
        }
    }

    /// A connection is gone.
    pub fn handle_closed(&mut self, now: Duration, connection: ConnectionNumber, why: Gone<'_>) {
        self.now = now;
        let Some(role) = self.role(connection) else { return };
        match (why, role.process()) {
            (Gone::Fault(text), _) | (Gone::Broke(text), None) => self.tell_closed(role, text),
            (Gone::Ended, _) | (Gone::Broke(_), Some(_)) => {}
        }
        let why = match why {
            Gone::Ended => "the connection was lost",
            Gone::Broke(text) | Gone::Fault(text) => text,
        };
        self.forget(connection, why);
    }

    fn add(&mut self, connection: ConnectionNumber, role: Role) {
        let before = self.connections.insert(connection, Connection::new(role));
        assert!(before.is_none(), "connection {connection} is not new");
    }

    fn or_refuse(&mut self, connection: ConnectionNumber, result: Result<Next, Reason>) -> Next {
        result.unwrap_or_else(|reason| {
            self.refuse(connection, reason);
            Next::Closed
        })
    }

    /// Closes a connection for what it said, or did not say.
    fn refuse(&mut self, connection: ConnectionNumber, reason: Reason) {
        let Some(role) = self.role(connection) else { return };
        // A fenced speaker is told so before that.
        self.settle();
        if reason.is_fault() {
            self.tell_closed(role, &reason.to_string());
        }
        self.close(connection, reason);
    }

    fn close(&mut self, connection: ConnectionNumber, reason: Reason) {
        if self.forget(connection, &reason.to_string()) {
            self.actions.push_back(Action::Close(connection, reason));
        }
    }

    /// Closes all connections with such a role.
    fn close_all(&mut self, reason: &Reason, of: impl Fn(ConnectionNumber, Role) -> bool) {
        self.connections_with(of).into_iter().for_each(|connection| self.close(connection, reason.clone()));
    }

    /// In the order in which they came: the same inputs give the same actions.
    fn connections_with(&self, of: impl Fn(ConnectionNumber, Role) -> bool) -> Vec<ConnectionNumber> {
        let theirs = self.connections.iter().filter(|(number, connection)| of(**number, connection.role));
        let mut theirs: Vec<ConnectionNumber> = theirs.map(|(number, _)| *number).collect();
        theirs.sort_unstable();
        theirs
    }

    /// A connection is over. An image that was under way on it will not come. Returns false if it was over before.
    fn forget(&mut self, connection: ConnectionNumber, why: &str) -> bool {
        let Some(Connection { role, reading, .. }) = self.connections.remove(&connection) else { return false };
        if reading == Reading::NoRoom {
            self.paused.retain(|paused| *paused != connection);
        }
        match role {
            Role::Unproven => self.unproven.retain(|(_, unproven)| *unproven != connection),
            Role::Journal(speaker, _) => self.take_voice(connection, speaker),
            // It may have spoken for several incarnations.
            Role::Forwarder(..) => self.voices.retain(|_, of| *of != connection),
            Role::Image(speaker, Some((image, _))) if self.store.takes_image(speaker.process, image) => {
                self.refusal = Some("its connection broke".into());
                self.store.refuse_image(speaker.process, image);
            }
            Role::Dialed(process) | Role::Replica(process) => self.handle_replica_lost(process, connection, why),
            Role::Image(speaker, None) => self.look_for_image(speaker.process),
            Role::Bulk(_) | Role::Image(..) | Role::Fetcher(_) => {}
        }
        true
    }

    /// Records the close of a connection, but not each one in a flood.
    fn tell_closed(&mut self, role: Role, why: &str) {
        match role.process() {
            Some(process) => self.tell_intruder(&format!("a connection of {process} was closed: {why}")),
            None => self.tell_intruder(&format!("a connection that proved nothing was closed: {why}")),
        }
    }

    fn tell_intruder(&mut self, text: &str) {
        if self.now >= self.next_intruder {
            self.next_intruder = self.now + INTRUDERS;
            self.tell(What::Intruder, None, text.to_owned());
        }
    }

    fn tell(&mut self, what: What, process: Option<ProcessId>, text: String) {
        self.actions.push_back(Action::Tell(Event { what, process, text }));
    }

    // ---- invariants

    /// Panics if the parts of the server contradict each other.
    pub fn check_invariants(&self) {
        for (speaker, connection) in &self.voices {
            let role = self.role(*connection).expect("an incarnation is answered on a connection that is there");
            assert_eq!(role.process(), Some(speaker.process), "{speaker:?} is answered on a connection of its own");
        }
        for connection in &self.paused {
            assert_eq!(self.reading(*connection), Some(Reading::NoRoom), "only what waits for room is paused");
        }
        let waiting = self.connections.values().filter(|connection| connection.reading == Reading::NoRoom).count();
        assert_eq!(waiting, self.paused.len(), "what waits for room is read again");
        for (process, replica) in &self.replicas {
            self.check_replica(*process, replica);
        }
        let due = self.replicas.values().filter(|replica| matches!(replica.link, Link::Due(_))).count();
        assert_eq!(self.dials.len(), due, "each time at which a replica is dialed is that of a replica that is due");
        let links = self.connections.values().filter(|c| matches!(c.role, Role::Dialed(_) | Role::Replica(_))).count();
        let known = self.replicas.values().filter(|replica| replica.link.connection().is_some()).count();
        assert_eq!(links, known, "each connection to a replica is that of a process");
        let counted: usize = self.writes.values().filter(|write| write.is_counted).map(|write| write.bytes).sum();
        assert_eq!(counted, self.writing, "bytes on their way to files");
    }

    /// Whether an incarnation of this process is heard here, or was.
    fn incarnation(&self, process: ProcessId) -> Incarnation {
        self.store.incarnation(process).unwrap_or(Incarnation::FIRST)
    }
}

/// The first of a queue in the order of time, if its time has come.
fn pop_due(queue: &mut VecDeque<(Duration, ConnectionNumber)>, now: Duration) -> Option<ConnectionNumber> {
    let is_due = queue.front().is_some_and(|(at, _)| *at <= now);
    if is_due { queue.pop_front().map(|(_, connection)| connection) } else { None }
}
