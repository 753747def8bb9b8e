//! The service's thread: one round after the other, each of what is ready, the urgent first.
//!
//! Two sets of descriptors. In the urgent one are the listener, the waker, the connections on which gates depend, and the set of
//! the others: observers' payload and images. Of those one is served a round, with at most a quarter of a MiB, so that a stream
//! of payload delays a gate by no more than that; the kernel gives them in turn.

use std::collections::HashMap;
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
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::limits;
use radic_wire::process::Protection;
use tokio::sync::{mpsc as tokio_mpsc, oneshot};

use super::connection::{Connection, Interest, Watch};
use super::disk::{self, Done, Order, Waker};
use super::files::{self, Files};
use super::send::Sending;
use super::verify::{self, Task, Verdict};
use super::{Answer, Config, Event, Logs, Request, StartError};
use crate::logserver::{self, ConnectionNumber, Gone, LogServer, Reading, What};
use crate::store::{self, NoRestart, Restart};

/// Requests that may wait; then asking blocks.
const REQUESTS: usize = 4_096;
/// Events that may wait; more are lost.
const EVENTS: usize = 1_024;
/// Connections that may wait to be accepted; the kernel cuts it to net.core.somaxconn.
const BACKLOG: i32 = 4_096;
/// What is ready and handled in one round.
const READY: usize = 256;
/// Bytes on their way to files.
const WRITING: usize = 32 << 20;
/// Bytes of one write.
const WRITE: usize = limits::LOG_CHUNK;
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
    /// Asks. If the service has ended, the receiver of a question notices.
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

/// A question what a restart as this incarnation needs.
pub type Fencing = (ProcessId, Incarnation, Answer<Result<Restart, NoRestart>>);

/// Everything that the thread has.
pub struct Service {
    pub config: Config,
    /// What decides.
    pub server: LogServer,
    /// The server's time is that since then.
    begun: Instant,
    /// The directory is this service's while it lives.
    _lock: Flock<fs::File>,
    urgent: Epoll,
    bulk: Epoll,
    waker: Waker,
    pub listener: TcpListener,
    /// When to accept again, after the system had no room for one more.
    pub accept_again: Option<Instant>,
    pub connections: HashMap<ConnectionNumber, Connection>,
    next_number: ConnectionNumber,
    /// Connections of which more is to be handled than the kernel knows of.
    pub again: Vec<ConnectionNumber>,
    /// Connections for which something was queued.
    pub touched: Vec<ConnectionNumber>,
    pub orders: Option<Sender<Order>>,
    tasks: Option<Sender<Task>>,
    workers: Vec<JoinHandle<()>>,
    done: Receiver<Done>,
    verdicts: Receiver<Verdict>,
    requests: Receiver<Request>,
    /// The node's questions what a restart needs, until the log is stable.
    pub fences: Vec<Fencing>,
    /// Images on their way to nodes that bring processes back.
    pub sending: Sending,
    events: tokio_mpsc::Sender<Event>,
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
        let sending = Sending::new(config.dir.clone(), done_sender.clone(), waker.clone());
        let files = Files::new(config.dir.clone(), config.durable);
        let wake = waker.clone();
        let disk =
            thread::Builder::new().name("logs disk".into()).spawn(|| disk::run(files, order_receiver, done_sender, wake))?;
        let (tasks, task_receiver) = mpsc::channel();
        let (verdict_sender, verdicts) = mpsc::channel();
        let (dir, key, durable, wake) = (config.dir.clone(), config.key.clone(), config.durable, waker.clone());
        let verifier = thread::Builder::new().name("logs verify".into());
        let verifier = verifier.spawn(move || verify::run(&dir, &key, durable, task_receiver, verdict_sender, wake))?;
        Ok(Service {
            server: LogServer::new(bounds(&config)),
            config,
            begun: Instant::now(),
            _lock: lock,
            urgent,
            bulk,
            waker,
            listener,
            accept_again: None,
            connections: HashMap::new(),
            next_number: FIRST,
            again: Vec::new(),
            touched: Vec::new(),
            orders: Some(orders),
            tasks: Some(tasks),
            workers: vec![disk, verifier],
            done,
            verdicts,
            requests,
            fences: Vec::new(),
            sending,
            events,
        })
    }

    fn run(mut self) {
        let mut ready = vec![EpollEvent::empty(); READY];
        while self.round(&mut ready) {}
        // The workers end when no more orders can come.
        (self.orders, self.tasks) = (None, None);
        self.sending.end();
        self.workers.drain(..).for_each(|worker| _ = worker.join());
    }

    /// One round; false: the service is to end.
    fn round(&mut self, ready: &mut [EpollEvent]) -> bool {
        let timeout = self.timeout();
        let count = match self.urgent.wait(ready, timeout) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(error) => {
                let text = format!("the log service ends: it cannot wait for events: {error}");
                self.tell(Event { what: What::Disk, process: None, text });
                return false;
            }
        };
        let (mut accept, mut woken, mut bulk) = (false, false, false);
        for event in &ready[..count] {
            match event.data() {
                LISTENER => accept = true,
                WAKER => woken = true,
                BULK => bulk = true,
                number => self.serve(number, event.events()),
            }
        }
        if woken {
            self.waker.reset();
            self.take_done();
            if !self.take_requests() {
                return false;
            }
        }
        for number in std::mem::take(&mut self.again) {
            self.serve(number, EpollFlags::EPOLLIN);
        }
        if bulk {
            let mut one = [EpollEvent::empty()];
            if let Ok(1) = self.bulk.wait(&mut one, EpollTimeout::ZERO) {
                self.serve(one[0].data(), one[0].events());
            }
        }
        self.handle_timeouts(accept);
        self.server.handle_round();
        self.carry_out();
        true
    }

    fn timeout(&self) -> EpollTimeout {
        if !self.again.is_empty() {
            return EpollTimeout::ZERO;
        }
        let next = self.server.poll_timeout().map(|at| self.begun + at).into_iter().chain(self.accept_again).min();
        // Rounded up: a round before its time would find nothing to do.
        next.map_or(EpollTimeout::NONE, |at| {
            let wait = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::MAX)
        })
    }

    fn handle_timeouts(&mut self, mut accept: bool) {
        if let Some(at) = self.server.poll_timeout() {
            let now = self.now();
            if at <= now {
                self.server.handle_timeout(now);
            }
        }
        accept |= self.accept_again.take_if(|at| *at <= Instant::now()).is_some();
        if accept {
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

    /// The server's time.
    pub fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// A number that no connection had before.
    pub fn number(&mut self) -> ConnectionNumber {
        self.next_number += 1;
        self.next_number
    }

    /// Watches a new connection, which becomes one of the urgent.
    pub fn add(&mut self, number: ConnectionNumber, connection: Connection) -> io::Result<()> {
        let Watch::Urgent(interest) = connection.watch else { return Ok(()) };
        self.urgent.add(&connection.socket, EpollEvent::new(flags(interest), number))?;
        self.connections.insert(number, connection);
        Ok(())
    }

    /// Watches a connection for what it needs now.
    pub fn watch(&mut self, number: ConnectionNumber) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let Some(reading) = self.server.reading(number) else { return };
        let interest = Interest { read: reading == Reading::Open, write: connection.wants_to_write() };
        let mut event = EpollEvent::new(flags(interest), number);
        let (now, result) = match connection.watch {
            Watch::Urgent(before) | Watch::Bulk(before) if before == interest => return,
            Watch::Urgent(_) => (Watch::Urgent(interest), self.urgent.modify(&connection.socket, &mut event)),
            Watch::Bulk(_) if reading == Reading::NoRoom => (Watch::Not, self.bulk.delete(&connection.socket)),
            Watch::Bulk(_) => (Watch::Bulk(interest), self.bulk.modify(&connection.socket, &mut event)),
            Watch::Not if reading == Reading::NoRoom => return,
            Watch::Not => (Watch::Bulk(interest), self.bulk.add(&connection.socket, event)),
        };
        connection.watch = now;
        if let Err(error) = result {
            self.lose(number, Gone::Broke(&error.to_string()));
        }
    }

    /// Does not watch a connection any more that is given away.
    pub fn stop_watching(&self, connection: &Connection) {
        // The kernel takes it out of a set of itself when the last copy of the socket is closed: this fails only if it is in
        // none.
        _ = match connection.watch {
            Watch::Urgent(_) => self.urgent.delete(&connection.socket),
            Watch::Bulk(_) => self.bulk.delete(&connection.socket),
            Watch::Not => Ok(()),
        };
    }

    /// Moves a connection that has become a bulk one to the others of its kind.
    pub fn make_bulk(&mut self, number: ConnectionNumber) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
        self.urgent.delete(&connection.socket)?;
        let interest = Interest { read: true, write: connection.wants_to_write() };
        self.bulk.add(&connection.socket, EpollEvent::new(flags(interest), number))?;
        connection.watch = Watch::Bulk(interest);
        Ok(())
    }

    /// A connection is gone, or is closed for what came on it.
    pub fn lose(&mut self, number: ConnectionNumber, why: Gone<'_>) {
        self.server.handle_closed(self.now(), number, why);
        self.connections.remove(&number);
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

    /// Tells the node something.
    pub fn tell(&mut self, event: Event) {
        // If the receiver is gone, the events are not needed.
        _ = self.events.try_send(event);
    }
}

fn bounds(config: &Config) -> logserver::Config {
    let log = Protection::default().log;
    let store = store::Config { memory: config.memory, log, image: config.image, durable: config.durable };
    let Config { processes, connections, .. } = *config;
    logserver::Config { store, processes, connections, writing: WRITING, write: WRITE }
}

fn flags(interest: Interest) -> EpollFlags {
    let read = if interest.read { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
    let write = if interest.write { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
    read | write
}
