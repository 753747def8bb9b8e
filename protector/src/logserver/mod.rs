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
//! | `types` | nothing: what the driver and the log server say to each other |
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
mod types;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use radic_wire::ids::{Incarnation, JobId, ProcessId};
use radic_wire::limits;
use radic_wire::login::Channel;
use radic_wire::process::Protection;

use self::chain::{Link, Replica};
use self::effects::Writing;
use self::jobs::Given;
pub use self::orders::{Reply, StoreOrder};
pub use self::outgoing::Outgoing;
use self::sending::Sending;
pub use self::types::{
    Action, Config, ConnectionNumber, Event, Gone, Next, Precedence, Reading, Reason, Role, Status, Verification, What,
};
use crate::store::{Speaker, Store};

/// Time between two events about connections that were closed.
const INTRUDERS: Duration = Duration::from_secs(1);

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
    revived: HashMap<JobId, Given>,
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
            revived: HashMap::new(),
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
        if channel != Channel::Replica && self.is_lost_command(speaker) {
            return Err(Reason::Fenced);
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
