//! Processes on their way back: their images are fetched, verified and put together on threads of their own, a few at once. What
//! is ready is started by the daemon's own thread, to which the parent-death signal is tied.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use radic_ckpt::control::Restorable;
use radic_wire::ids::ProcessId;
use radic_wire::key::ClusterKey;
use radic_wire::mac::JobKey;
use tokio::sync::mpsc;

use super::deaths;
use crate::logs::{FetchError, Images, MEMORY, fetch};
use crate::node::host::RestoreOrder;
use crate::store::Speaker;

/// Threads that prepare processes, for each processor: one that waits for the network leaves its processor to another.
const THREADS_PER_CPU: usize = 2;
/// Most of them.
const THREADS: usize = 16;
/// Time that a replica has to hear of the incarnation that is about to begin. Before that it gives it nothing.
const HEARD: Duration = Duration::from_secs(3);
/// Time until it is asked again.
const AGAIN: Duration = Duration::from_millis(50);
/// Prepared processes that may wait for the daemon's thread. A thread that has one more waits.
const READY: usize = 16;

/// A process with its images, or why they are not here.
pub struct Ready {
    task: Arc<Task>,
    /// What was wrong with images for which others were found.
    pub damage: Vec<String>,
    pub result: Result<Restorable, String>,
    /// Where the process reports its death, or why it cannot.
    pub report: Result<PathBuf, String>,
}

impl Ready {
    /// What was ordered.
    pub fn order(&self) -> &RestoreOrder {
        &self.task.order
    }
}

struct Task {
    order: RestoreOrder,
    given_up: AtomicBool,
}

impl Task {
    /// The incarnation that is about to begin.
    fn speaker(&self) -> Speaker {
        Speaker { process: self.order.process, incarnation: self.order.incarnation }
    }
}

/// The processes that are being prepared.
pub struct Restores {
    key: ClusterKey,
    /// The directory of this node's log service, which has room for images.
    store: PathBuf,
    under_way: HashMap<ProcessId, Arc<Task>>,
    waiting: VecDeque<Arc<Task>>,
    running: usize,
    threads: usize,
    ready: mpsc::Sender<Ready>,
}

impl Restores {
    /// None yet. What is ready comes out of the receiver, and is to be given to [`Restores::handle_ready`].
    pub fn new(key: ClusterKey, store: PathBuf) -> (Self, mpsc::Receiver<Ready>) {
        let (ready, receiver) = mpsc::channel(READY);
        let threads = thread::available_parallelism().map_or(1, usize::from).saturating_mul(THREADS_PER_CPU).min(THREADS);
        let (under_way, waiting) = Default::default();
        (Restores { key, store, under_way, waiting, running: 0, threads, ready }, receiver)
    }

    /// Prepares a process. An order for the same one that is under way is forgotten.
    pub fn begin(&mut self, order: RestoreOrder) {
        let task = Arc::new(Task { order, given_up: AtomicBool::new(false) });
        self.forget(|process| process == task.order.process);
        self.under_way.insert(task.order.process, task.clone());
        self.waiting.push_back(task);
        self.start();
    }

    /// The process is not wanted any more: it is ready at once, with an error. Returns false if it is not under way.
    pub fn give_up(&mut self, process: ProcessId) -> bool {
        let task = self.under_way.get(&process);
        task.inspect(|task| task.given_up.store(true, Ordering::Relaxed)).is_some()
    }

    /// The results of these orders are not wanted any more.
    pub fn forget(&mut self, is_gone: impl Fn(ProcessId) -> bool) {
        self.under_way.retain(|process, task| {
            let gone = is_gone(*process);
            task.given_up.fetch_or(gone, Ordering::Relaxed);
            !gone
        });
    }

    /// A thread has done its work. None if its result is not wanted any more.
    pub fn handle_ready(&mut self, mut ready: Ready) -> Option<Ready> {
        self.running -= 1;
        self.start();
        let process = ready.order().process;
        if !self.under_way.get(&process).is_some_and(|task| Arc::ptr_eq(task, &ready.task)) {
            return None;
        }
        self.under_way.remove(&process);
        if ready.task.given_up.load(Ordering::Relaxed) {
            ready.result = Err("given up".to_owned());
        }
        Some(ready)
    }

    fn start(&mut self) {
        while self.running < self.threads
            && let Some(task) = self.waiting.pop_front()
        {
            self.running += 1;
            let key = JobKey::derive_for_nodes(&self.key, task.order.process.job);
            let (store, ready) = (self.store.clone(), self.ready.clone());
            let (begun, sender) = (task.clone(), self.ready.clone());
            let work = move || {
                let mut damage = Vec::new();
                let result = prepare(&task, &key, store.clone(), &mut damage);
                let report = deaths::make_room(&store, task.order.process, task.order.incarnation);
                // The receiver is gone only when the daemon ends.
                _ = ready.blocking_send(Ready { task, damage, result, report });
            };
            if let Err(error) = thread::Builder::new().name("restore".into()).spawn(work) {
                let result = Err(format!("there is no thread to prepare it: {error}"));
                let ready = Ready { task: begun, damage: Vec::new(), result, report: Err("it was not begun".to_owned()) };
                tokio::task::spawn_local(async move { _ = sender.send(ready).await });
            }
        }
    }
}

/// Its images, in order, as one that the restorer can read. What is wrong with those for which the replica's copy stands in is
/// added to `damage`.
fn prepare(task: &Task, key: &JobKey, store: PathBuf, damage: &mut Vec<String>) -> Result<Restorable, String> {
    let RestoreOrder { log, local, ref images, .. } = task.order;
    let dir = store.clone();
    let source = if local { Images::Here(store) } else { Images::At(log, store) };
    let mut files: Vec<File> = Vec::new();
    for image in images {
        files.push(match source.open(key, task.speaker(), *image, &task.given_up) {
            Ok(file) => file,
            Err(error) => {
                let file = copy_of(task, key, *image, &dir).map_err(|why| format!("{error}{why}"))?;
                damage.push(format!("{error}; its replica's copy is taken"));
                file
            }
        });
    }
    if files.is_empty() {
        return Err("there is no image of it".to_owned());
    }
    Restorable::of_verified(files, &[dir, MEMORY.into()], &mut |_, _| {}).map_err(|error| format!("its images: {error}"))
}

/// An image as the replica has it; an error says why not, as what follows another one.
fn copy_of(task: &Task, key: &JobKey, image: (u64, u64), dir: &Path) -> Result<File, String> {
    let replica = task.order.replica.ok_or("; there is no replica of it (--replicas 2)")?;
    let deadline = Instant::now() + HEARD;
    loop {
        match fetch(replica, key, task.speaker(), image, dir, &task.given_up) {
            // The replica closes the connection of an incarnation that it has not heard of yet.
            Err(FetchError::Service(..)) if Instant::now() < deadline => thread::sleep(AGAIN),
            other => return other.map_err(|error| format!("; and its replica: {error}")),
        }
    }
}
