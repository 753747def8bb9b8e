//! The service's thread: one round after the other, each of what is ready, the urgent first.
//!
//! Two sets of descriptors. In the urgent one are the listener, the waker, the connections on which gates depend, and the set of the others:
//! observers' payload and images. Of those one is served a round, with at most a quarter of a MiB, so that a stream of payload delays a gate by
//! no more than that; the kernel gives them in turn.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::Flock;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, socket};
use radic_wire::ids::{JobId, ProcessId};
use radic_wire::limits;
use radic_wire::process::Protection;
use tokio::sync::{mpsc as tokio_mpsc, oneshot};

use super::connection::{Connection, Role};
use super::disk::{self, Done, Order, Waker};
use super::fetch::Fetches;
use super::files::{self, Files};
use super::replicas::Replica;
use super::verify::{self, Task, Verdict};
use super::{Answer, Config, Event, Logs, Request, StartError, What};
use crate::store::{self, File, Speaker, Store};

/// Requests that may wait; who asks more waits.
const REQUESTS: usize = 4_096;
/// Events that may wait; more are lost.
const EVENTS: usize = 1_024;
/// Connections that may wait to be accepted; the kernel cuts it to net.core.somaxconn.
const BACKLOG: i32 = 4_096;
/// What is ready and handled in one round.
const READY: usize = 256;
/// Most that is read at once: a chunk.
const SCRATCH: usize = limits::LOG_CHUNK;
/// Bytes on their way to files.
const WRITING: usize = 32 << 20;
/// Bytes of one write.
const WRITE: usize = limits::LOG_CHUNK;
/// Time between two events about connections that were closed.
const INTRUDERS: Duration = Duration::from_secs(1);

const LISTENER: u64 = 0;
const WAKER: u64 = 1;
const BULK: u64 = 2;
const FIRST: u64 = 16;

/// The handle's side of a running service.
#[derive(Debug)]
pub struct Running {
    pub address: SocketAddr,
    pub dir: PathBuf,
    requests: SyncSender<Request>,
    waker: Waker,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Running {
    /// Asks. If the service has ended there is nobody to answer, which a question's receiver notices.
    pub fn ask(&self, request: Request) {
        _ = self.requests.send(request);
        self.waker.wake();
    }

    /// Asks, for an answer.
    pub fn question<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> oneshot::Receiver<T> {
        let (answer, receiver) = oneshot::channel();
        self.ask(request(answer));
        receiver
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ask(Request::End);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic of the thread has been printed; there is nothing to add.
        _ = thread.map(JoinHandle::join);
    }
}

/// Starts the threads.
pub fn start(config: Config) -> Result<(Logs, tokio_mpsc::Receiver<Event>), StartError> {
    let system = |what: &str| {
        let what = what.to_owned();
        move |error| StartError::System { what, error }
    };
    let lock = files::take(&config.dir)?;
    let listener = bound(SocketAddr::new(config.address, 0)).map_err(system("the log service cannot listen"))?;
    let address = listener.local_addr().map_err(system("the log service has no address"))?;
    let waker = Waker::new().map_err(system("the log service gets no event descriptor"))?;
    let (requests, receiver) = mpsc::sync_channel(REQUESTS);
    let (events, events_receiver) = tokio_mpsc::channel(EVENTS);
    let dir = config.dir.clone();
    let service = Service::new(config, lock, listener, waker.clone(), receiver, events);
    let service = service.map_err(system("the log service cannot start"))?;
    let thread = thread::Builder::new().name("logs".into()).spawn(|| service.run());
    let thread = Mutex::new(Some(thread.map_err(system("the log service gets no thread"))?));
    Ok((Logs(std::sync::Arc::new(Running { address, dir, requests, waker, thread })), events_receiver))
}

/// A listener whose queue is long enough for a job that begins everywhere at once.
fn bound(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener: OwnedFd = socket(family, SockType::Stream, flags, None)?;
    bind(listener.as_raw_fd(), &SockaddrStorage::from(address))?;
    listen(&listener, Backlog::new(BACKLOG)?)?;
    Ok(listener.into())
}

/// A write that was handed to the disk's thread.
#[derive(Debug)]
pub struct Writing {
    pub file: File,
    pub end: u64,
    pub bytes: usize,
    /// It counts for [`WRITING`]: not any more when it is stuck, so that others go on.
    pub counted: bool,
}

/// Everything that the thread has.
pub struct Service {
    pub config: Config,
    pub store: Store,
    /// The directory is this service's while it lives.
    _lock: Flock<fs::File>,
    urgent: Epoll,
    bulk: Epoll,
    waker: Waker,
    pub listener: TcpListener,
    /// When to accept again, after the system had no room for one more.
    pub accept_again: Option<Instant>,
    pub connections: HashMap<u64, Connection>,
    next_token: u64,
    /// Where the answers for whom go.
    pub voices: HashMap<Speaker, u64>,
    /// Accepted and not proven, with the time until they must be, oldest first.
    pub unproven: VecDeque<(Instant, u64)>,
    /// The same of those that were dialed.
    pub dialed: VecDeque<(Instant, u64)>,
    /// Connections, by process, that are not read because the store has no room.
    pub paused: HashMap<ProcessId, Vec<u64>>,
    /// There may be room again.
    pub freed: bool,
    /// Connections on which something may be done without an event.
    pub again: Vec<u64>,
    /// Connections on which something was queued.
    pub touched: Vec<u64>,
    pub replicas: HashMap<ProcessId, Replica>,
    /// Processes whose words another log service forwards.
    pub followed: HashSet<ProcessId>,
    /// When to connect to a replica.
    pub dials: BTreeSet<(Instant, ProcessId)>,
    /// The node is a member.
    pub is_member: bool,
    pub jobs: HashMap<JobId, Protection>,
    /// Processes of which the node has said who else holds what they say, or that they come back from here; and jobs that go on from a folder. Nobody else is
    /// listened to: what a process is told is stable must be so along the whole chain.
    pub told: HashSet<ProcessId>,
    pub revived: HashSet<JobId>,
    /// Jobs that have ended, oldest first, and whether they keep their logs.
    pub ended: VecDeque<(JobId, bool)>,
    /// Complete images: those that are not in their file yet, and those being verified, with their ticket.
    pub verifying: HashMap<(ProcessId, u64), Option<u64>>,
    pub commits: HashMap<ProcessId, Instant>,
    /// Why the image is refused that the store refuses next.
    pub reason: Option<String>,
    pub orders: Option<Sender<Order>>,
    tasks: Option<Sender<Task>>,
    workers: Vec<JoinHandle<()>>,
    done: Receiver<Done>,
    verdicts: Receiver<Verdict>,
    requests: Receiver<Request>,
    /// Images on their way to nodes that bring processes back.
    pub fetches: Fetches,
    pub writes: HashMap<u64, Writing>,
    pub writing: usize,
    /// Processes whose files cannot be written, and why.
    pub unwell: HashMap<ProcessId, String>,
    events: tokio_mpsc::Sender<Event>,
    next_intruder: Instant,
    pub scratch: Vec<u8>,
}

impl Service {
    fn new(
        config: Config,
        lock: Flock<fs::File>,
        listener: TcpListener,
        waker: Waker,
        requests: Receiver<Request>,
        events: tokio_mpsc::Sender<Event>,
    ) -> io::Result<Self> {
        let (urgent, bulk) = (Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?, Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        urgent.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        urgent.add(waker.fd(), EpollEvent::new(EpollFlags::EPOLLIN, WAKER))?;
        urgent.add(&bulk.0, EpollEvent::new(EpollFlags::EPOLLIN, BULK))?;
        let (orders, order_receiver) = mpsc::channel();
        let (done_sender, done) = mpsc::channel();
        let fetches = Fetches::new(config.dir.clone(), done_sender.clone(), waker.clone());
        let files = Files::new(config.dir.clone(), config.durable);
        let wake = waker.clone();
        let disk =
            thread::Builder::new().name("logs disk".into()).spawn(|| disk::run(files, order_receiver, done_sender, wake))?;
        let (tasks, task_receiver) = mpsc::channel();
        let (verdict_sender, verdicts) = mpsc::channel();
        let (dir, key, durable, wake) = (config.dir.clone(), config.key.clone(), config.durable, waker.clone());
        let verifier = thread::Builder::new().name("logs verify".into());
        let verifier = verifier.spawn(move || verify::run(&dir, &key, durable, task_receiver, verdict_sender, wake))?;
        let log = Protection::default().log;
        let store = store::Config { memory: config.memory, log, image: config.image, durable: config.durable };
        Ok(Service {
            store: Store::new(store),
            config,
            _lock: lock,
            urgent,
            bulk,
            waker,
            listener,
            accept_again: None,
            connections: HashMap::new(),
            next_token: FIRST,
            voices: HashMap::new(),
            unproven: VecDeque::new(),
            dialed: VecDeque::new(),
            paused: HashMap::new(),
            freed: false,
            again: Vec::new(),
            touched: Vec::new(),
            replicas: HashMap::new(),
            followed: HashSet::new(),
            dials: BTreeSet::new(),
            is_member: false,
            jobs: HashMap::new(),
            told: HashSet::new(),
            revived: HashSet::new(),
            ended: VecDeque::new(),
            verifying: HashMap::new(),
            commits: HashMap::new(),
            reason: None,
            orders: Some(orders),
            tasks: Some(tasks),
            workers: vec![disk, verifier],
            done,
            verdicts,
            requests,
            fetches,
            writes: HashMap::new(),
            writing: 0,
            unwell: HashMap::new(),
            events,
            next_intruder: Instant::now(),
            scratch: vec![0; SCRATCH],
        })
    }

    fn run(mut self) {
        let mut ready = vec![EpollEvent::empty(); READY];
        while self.round(&mut ready) {}
        // The workers end when nobody can ask them any more.
        (self.orders, self.tasks) = (None, None);
        self.fetches.end();
        self.workers.drain(..).for_each(|worker| _ = worker.join());
    }

    /// One round; false: the service is to end.
    fn round(&mut self, ready: &mut [EpollEvent]) -> bool {
        let timeout = self.timeout();
        let count = match self.urgent.wait(ready, timeout) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(error) => {
                self.tell(What::Disk, None, format!("the log service ends: it cannot wait for events: {error}"));
                return false;
            }
        };
        let (mut accept, mut woken, mut bulk) = (false, false, false);
        for event in &ready[..count] {
            match event.data() {
                LISTENER => accept = true,
                WAKER => woken = true,
                BULK => bulk = true,
                token => self.serve(token, event.events()),
            }
        }
        if woken {
            self.waker.reset();
            self.take_done();
            if !self.take_requests() {
                return false;
            }
        }
        for token in std::mem::take(&mut self.again) {
            self.serve(token, EpollFlags::EPOLLIN);
        }
        if bulk {
            let mut one = [EpollEvent::empty()];
            if let Ok(1) = self.bulk.wait(&mut one, EpollTimeout::ZERO) {
                self.serve(one[0].data(), one[0].events());
            }
        }
        if accept {
            self.accept();
        }
        self.handle_timeouts();
        self.resume();
        true
    }

    fn timeout(&self) -> EpollTimeout {
        let unproven = self.unproven.front().into_iter().chain(self.dialed.front()).map(|(at, _)| *at);
        let next = unproven.chain(self.dials.first().map(|(at, _)| *at)).chain(self.accept_again).min();
        if !self.again.is_empty() || (self.freed && !self.paused.is_empty()) {
            return EpollTimeout::ZERO;
        }
        // Rounded up: a round before its time would find nothing to do.
        next.map_or(EpollTimeout::NONE, |at| {
            let wait = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::MAX)
        })
    }

    fn handle_timeouts(&mut self) {
        if self.unproven.is_empty() && self.dialed.is_empty() && self.dials.is_empty() && self.accept_again.is_none() {
            return;
        }
        let now = Instant::now();
        while let Some((_, token)) = pop_due(&mut self.unproven, now) {
            if self.connections.get(&token).is_some_and(|connection| connection.role.process().is_none()) {
                self.intruder("a connection proved nothing in time");
                self.close(token);
            }
        }
        while let Some((_, token)) = pop_due(&mut self.dialed, now) {
            let waits =
                |connection: &Connection| matches!(connection.role, Role::Dialed(..) | Role::Asked(..) | Role::Proving(..));
            if self.connections.get(&token).is_some_and(waits) {
                self.close(token);
            }
        }
        while let Some((_, process)) = self.dials.first().copied().filter(|(at, _)| *at <= now) {
            self.dials.pop_first();
            self.dial(process);
        }
        if self.accept_again.take_if(|at| *at <= now).is_some() {
            self.accept();
        }
    }

    fn take_done(&mut self) {
        while let Ok(done) = self.done.try_recv() {
            self.handle_done(done);
        }
        while let Ok(verdict) = self.verdicts.try_recv() {
            self.handle_verdict(verdict);
        }
        self.carry_out();
    }

    fn take_requests(&mut self) -> bool {
        while let Ok(request) = self.requests.try_recv() {
            if matches!(request, Request::End) {
                return false;
            }
            self.answer(request);
            self.carry_out();
        }
        true
    }

    /// A number that no connection, write or verification had before.
    pub fn ticket(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// A new connection, watched.
    pub fn add(&mut self, connection: Connection, interest: EpollFlags) -> io::Result<u64> {
        let token = self.ticket();
        self.urgent.add(&connection.socket, EpollEvent::new(interest, token))?;
        self.connections.insert(token, connection);
        Ok(token)
    }

    /// Watches a connection for what it needs now.
    pub fn watch(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let interest = connection.wanted_interest();
        if interest == connection.interest || connection.paused && connection.role.is_bulk() {
            return;
        }
        connection.interest = interest;
        let mut event = EpollEvent::new(flags(interest), token);
        let set = if connection.role.is_bulk() { &self.bulk } else { &self.urgent };
        // It is in the set: nothing else takes it out while it is not paused.
        _ = set.modify(&connection.socket, &mut event);
    }

    /// Does not watch a connection any more that is given away.
    pub fn stop_watching(&self, connection: &Connection) -> io::Result<()> {
        let set = if connection.role.is_bulk() { &self.bulk } else { &self.urgent };
        Ok(set.delete(&connection.socket)?)
    }

    /// Moves a connection that has become a bulk one to the others of its kind.
    pub fn make_bulk(&mut self, token: u64) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        self.urgent.delete(&connection.socket)?;
        connection.interest = connection.wanted_interest();
        self.bulk.add(&connection.socket, EpollEvent::new(flags(connection.interest), token))?;
        Ok(())
    }

    /// Does not read a connection until [`Service::resume`].
    pub fn pause(&mut self, token: u64, process: ProcessId) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if std::mem::replace(&mut connection.paused, true) {
            return;
        }
        self.paused.entry(process).or_default().push(token);
        if connection.role.is_bulk() {
            // Not watched at all: a set reports a peer that is gone whether it was asked or not, again and again. What it sent counts.
            _ = self.bulk.delete(&connection.socket);
        } else {
            self.watch(token);
        }
    }

    /// Watches the connections again for whose bytes there is room now.
    fn resume(&mut self) {
        if !std::mem::take(&mut self.freed) || self.paused.is_empty() {
            return;
        }
        let paused = std::mem::take(&mut self.paused);
        for (process, tokens) in paused {
            for token in tokens {
                let Some(connection) = self.connections.get(&token) else { continue };
                if self.has_room(process, &connection.role) {
                    self.unpause(token);
                } else {
                    self.paused.entry(process).or_default().push(token);
                }
            }
        }
    }

    fn unpause(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        connection.paused = false;
        if connection.input.buffered() > 0 {
            self.again.push(token);
        }
        if !connection.role.is_bulk() {
            return self.watch(token);
        }
        connection.interest = connection.wanted_interest();
        let event = EpollEvent::new(flags(connection.interest), token);
        if self.bulk.add(&connection.socket, event).is_err() {
            self.close(token);
        }
    }

    /// Asks the disk's thread.
    pub fn ask_disk(&mut self, order: Order) {
        if let Some(orders) = &self.orders {
            // It ends after this thread.
            _ = orders.send(order);
        }
    }

    /// Asks for a verification.
    pub fn ask_verifier(&mut self, task: Task) {
        if let Some(tasks) = &self.tasks {
            _ = tasks.send(task);
        }
    }

    /// Hands what the store wants written to the disk's thread.
    pub fn pump_writes(&mut self) {
        while self.writing < WRITING
            && let Some(write) = self.store.poll_write(WRITE)
        {
            let ticket = self.ticket();
            let (bytes, end) = (write.bytes.len(), write.position + write.bytes.len() as u64);
            self.writing += bytes;
            self.writes.insert(ticket, Writing { file: write.file, end, bytes, counted: true });
            self.ask_disk(Order::Write(ticket, write));
        }
    }

    /// Forgets writes of files that are not needed any more: what is said of them later means nothing.
    pub fn cancel_writes(&mut self, is_gone: impl Fn(&File) -> bool) {
        let writing = &mut self.writing;
        self.writes.retain(|_, write| {
            let gone = is_gone(&write.file);
            *writing -= if gone && write.counted { write.bytes } else { 0 };
            !gone
        });
    }

    /// Tells the node something.
    pub fn tell(&mut self, what: What, process: Option<ProcessId>, text: String) {
        // Nobody reads: then nobody misses it.
        _ = self.events.try_send(Event { what, process, text });
    }

    /// Tells of a connection that was closed, but not of each in a flood.
    pub fn intruder(&mut self, text: &str) {
        let now = Instant::now();
        if now >= self.next_intruder {
            self.next_intruder = now + INTRUDERS;
            self.tell(What::Intruder, None, text.to_owned());
        }
    }
}

/// The first of a queue in the order of time, if its time has come.
fn pop_due(queue: &mut VecDeque<(Instant, u64)>, now: Instant) -> Option<(Instant, u64)> {
    if queue.front()?.0 <= now { queue.pop_front() } else { None }
}

fn flags((read, write): (bool, bool)) -> EpollFlags {
    let read = if read { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
    let write = if write { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
    read | write
}
