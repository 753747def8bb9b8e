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
use std::sync::{Arc, Mutex, PoisonError};
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
use super::disk::{self, Done, Order};
use super::files::{self, Files};
use super::send::Sending;
use super::types::{Answer, Config, Request, StartError};
use super::verify::{self, Task, Verdict};
use super::waker::Waker;
use crate::folder::Folder;
use crate::logserver::{self, ConnectionNumber, Event, Gone, LogServer, Reading, Status, What};
use crate::store::{self, NoRestart, Restart};
use crate::watched::{Change, Looks, Thread, end_all};

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
/// Bytes of answers that may wait for a connection, and bytes that may wait for a replica.
const ANSWERS: usize = 1 << 20;
const FORWARDS: usize = 4 << 20;
/// Of the time that a disk has to answer, the part after which the threads that ask it are looked at again.
const LOOKS: u32 = 4;
/// Time that the service's thread has at the daemon's end, and of that what those have that are at a disk.
const END: Duration = Duration::from_secs(5);
const END_OF_DISK: Duration = Duration::from_secs(3);
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
    thread: Mutex<Option<Thread>>,
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
        thread.into_iter().for_each(|thread| _ = thread.end(Instant::now() + END));
    }
}

/// Starts the threads.
pub fn start(config: Config) -> Result<(Running, tokio_mpsc::Receiver<Event>), StartError> {
    let system = |what: &str| {
        let what = what.to_owned();
        move |error| StartError::System { what, error }
    };
    let store = Folder::make_all(&config.dir).map_err(|error| system("the store")(error.into()))?;
    let lock = files::take(&store)?;
    let listener = bound(SocketAddr::new(config.address, 0)).map_err(system("the log service cannot listen"))?;
    let address = listener.local_addr().map_err(system("the log service has no address"))?;
    let waker = Waker::new().map_err(system("the log service gets no event descriptor"))?;
    let (requests, receiver) = mpsc::sync_channel(REQUESTS);
    let (events, events_receiver) = tokio_mpsc::channel(EVENTS);
    let dir = config.dir.clone();
    let service = Service::new(config, Arc::new(store), lock, listener, waker.clone(), receiver, events);
    let service = service.map_err(system("the log service cannot start"))?;
    let thread = Thread::start("logs", |_| service.run());
    let thread = Mutex::new(Some(thread.map_err(system("the log service gets no thread"))?));
    Ok((Running { address, dir, requests, waker, thread }, events_receiver))
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
    /// The threads that are at the disk, and whether each is known to hang.
    workers: Vec<(Thread, Looks)>,
    look_at: Instant,
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
        store: Arc<Folder>,
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
        let sending = Sending::new(store.clone(), done_sender.clone(), waker.clone());
        let files = Files::new(store.clone(), config.durable);
        let wake = waker.clone();
        let disk = Thread::start("logs disk", |watched| disk::run(files, order_receiver, done_sender, wake, watched))?;
        let (tasks, task_receiver) = mpsc::channel();
        let (verdict_sender, verdicts) = mpsc::channel();
        let (key, durable, wake) = (config.key.clone(), config.durable, waker.clone());
        let verifier = Thread::start("logs verify", move |watched| {
            verify::run(&store, &key, durable, task_receiver, verdict_sender, (wake, watched));
        })?;
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
            workers: [disk, verifier].map(|thread| (thread, Looks::default())).into(),
            look_at: Instant::now(),
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
        end_all(self.workers.drain(..).map(|(thread, _)| thread), END_OF_DISK);
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
        let next = self.server.poll_timeout().map(|at| self.begun + at);
        let next = next.into_iter().chain(self.accept_again).fold(self.look_at, Instant::min);
        // Rounded up: a round before its time would find nothing to do.
        let wait = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::MAX)
    }

    /// A disk that hangs says nothing: the threads that ask it are looked at.
    fn look_at_disk(&mut self, now: Instant) {
        let patience = self.config.patience;
        self.look_at = now + patience / LOOKS;
        let changes = self.workers.iter_mut().filter_map(|(thread, looks)| looks.look(thread.watched(), now, patience));
        let dir = self.config.dir.display();
        let told = |change| match change {
            Change::Hangs(begun, since) => {
                let text = format!(
                    "no answer since {} s: {begun}; what is logged here waits for it: see to the disk of {dir}",
                    since.as_secs()
                );
                Event { what: What::Disk, process: None, text }
            }
            Change::GoesOn(begun) => {
                let since = now.saturating_duration_since(begun.since).as_secs();
                Event {
                    what: What::DiskWell,
                    process: None,
                    text: format!("the disk of {dir} answers again, within {since} s: {begun}"),
                }
            }
        };
        let events: Vec<Event> = changes.map(told).collect();
        events.into_iter().for_each(|event| self.tell(event));
    }

    /// What is said of processes, with the disk as their reason to wait if it hangs.
    pub fn with_disk<'a>(&self, processes: impl IntoIterator<Item = &'a mut (ProcessId, Status)>) {
        let Some(begun) = self.workers.iter().find_map(|(_, looks)| looks.told()) else { return };
        let why = format!("the disk does not answer since {} s: {begun}", begun.since.elapsed().as_secs());
        processes.into_iter().for_each(|(_, status)| _ = status.waits.get_or_insert_with(|| why.clone()));
    }

    fn handle_timeouts(&mut self, mut accept: bool) {
        let now = Instant::now();
        if self.look_at <= now {
            self.look_at_disk(now);
        }
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
    logserver::Config { store, processes, connections, writing: WRITING, write: WRITE, answers: ANSWERS, forwards: FORWARDS }
}

fn flags(interest: Interest) -> EpollFlags {
    let read = if interest.read { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
    let write = if interest.write { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
    read | write
}

#[cfg(test)]
mod tests {
    use radic_wire::key::ClusterKey;

    use super::*;

    /// Far more than anything takes.
    const LIMIT: Duration = Duration::from_secs(60);

    fn next(events: &mut tokio_mpsc::Receiver<Event>) -> Event {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let event = runtime.block_on(async { tokio::time::timeout(LIMIT, events.recv()).await });
        event.expect("it is not told").expect("the service lives")
    }

    #[test]
    fn a_disk_that_hangs_is_told_so_is_that_it_goes_on_and_the_end_does_not_wait_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::new([127, 0, 0, 1].into(), dir.path().into(), ClusterKey::from_bytes([3; 32]));
        let (service, mut events) = start(Config { patience: Duration::from_millis(100), ..config }).unwrap();
        let (goes_on, until) = mpsc::channel();
        service.ask(Request::Hang(until));
        let Event { what, process, text } = next(&mut events);
        assert_eq!((what, process), (What::Disk, None));
        assert!(
            text.starts_with("no answer since ") && text.contains(" s: write of ") && text.contains(dir.path().to_str().unwrap()),
            "{text}"
        );
        drop(goes_on);
        let Event { what, text, .. } = next(&mut events);
        assert_eq!(what, What::DiskWell, "{text}");
        let (_goes_on, until) = mpsc::channel();
        service.ask(Request::Hang(until));
        assert_eq!(next(&mut events).what, What::Disk);
        let (ends, ended) = mpsc::channel();
        std::thread::spawn(move || {
            drop(service);
            _ = ends.send(());
        });
        assert!(ended.recv_timeout(END * 4).is_ok(), "the end waits for the disk");
    }
}
