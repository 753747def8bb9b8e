//! Processes on their way back: their images are fetched, verified and put together on threads of their own, a few at once, as
//! [`Orders`] and [`Fetch`] say. What is ready is started by the launcher's thread, to which the parent-death signal is tied.
//!
//! A process is started when its last image begins to come ([`Begun`]), from another node or a disk, and restored meanwhile. It does not run before the image is known to be
//! sound and its node expects it: until then the engine waits for the image's end. If the image is not sound, or its sender is lost, the process is ended, and nobody has heard of it.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use radic_ckpt::control::Restorable;
use radic_ckpt::image::ImageError;
use radic_wire::ids::ProcessId;
use radic_wire::key::ClusterKey;
use radic_wire::mac::JobKey;
use tokio::sync::mpsc;

use super::deaths;
use crate::fetching::{Fetch, FetchError, OrderNumber, Orders, OrdersAction, Use};
use crate::folder::Folder;
use crate::logs::arrival::Arrival;
use crate::logs::{Assembling, Layer, fetch};
use crate::node::host::RestoreOrder;

/// Threads that prepare processes, for each processor: one that waits for the network leaves its processor to another.
const THREADS_PER_CPU: usize = 2;
/// Most of them.
const THREADS: usize = 16;
/// Prepared processes that may wait for the daemon's thread. A thread that has one more waits.
const READY: usize = 16;

/// What the threads say of a process that is brought back.
pub enum Prepared {
    /// It can be started: its last image is on its way. Said once more if that image comes from elsewhere after all.
    Begun(Begun),
    /// Its images are here, or are not to be had. This is the last that is said.
    Ready(Ready),
}

/// A process that is to be started, and is restored while its last image comes.
pub struct Begun {
    /// The number of its order.
    pub number: OrderNumber,
    /// What was ordered.
    pub order: Box<RestoreOrder>,
    /// Its images.
    pub image: Box<Restorable>,
    /// Where the process reports its death, or why it cannot.
    pub report: Result<PathBuf, String>,
}

/// A process with its images, or why they are not here.
pub struct Ready {
    /// The number of its order.
    pub number: OrderNumber,
    /// What was ordered.
    pub order: Box<RestoreOrder>,
    /// What was wrong with images for which others were found.
    pub damage: Vec<String>,
    /// The process of the last [`Begun`] is restored from sound images, and runs when this is finished.
    pub result: Result<Arrival, FetchError>,
}

/// The processes that are being prepared.
pub struct Restores {
    key: ClusterKey,
    /// The folder of this node's log service, which has room for images.
    store: Arc<Folder>,
    orders: Orders,
    /// By which each thread is told that its process is not wanted any more.
    given_up: HashMap<OrderNumber, Arc<AtomicBool>>,
    prepared: mpsc::Sender<Prepared>,
}

impl Restores {
    /// None yet. What is prepared comes out of the receiver, and is to be given to [`Restores::is_wanted`] or [`Restores::handle_ready`].
    pub fn new(key: ClusterKey, store: Arc<Folder>) -> (Self, mpsc::Receiver<Prepared>) {
        let (prepared, receiver) = mpsc::channel(READY);
        let threads = thread::available_parallelism().map_or(1, usize::from).saturating_mul(THREADS_PER_CPU).min(THREADS);
        (Restores { key, store, orders: Orders::new(threads), given_up: HashMap::new(), prepared }, receiver)
    }

    /// Prepares a process. An order for the same one that is under way is forgotten.
    pub fn begin(&mut self, order: RestoreOrder) {
        self.orders.handle_order(order);
        self.carry_out();
    }

    /// The process is not wanted any more: it is ready soon, with an error. Returns false if it is not under way.
    pub fn give_up(&mut self, process: ProcessId) -> bool {
        let known = self.orders.give_up(process);
        self.carry_out();
        known
    }

    /// The results of these orders are not wanted any more.
    pub fn forget(&mut self, is_gone: impl Fn(ProcessId) -> bool) {
        self.orders.forget(is_gone);
        self.carry_out();
    }

    /// Whether the process of this order is still wanted.
    pub fn is_wanted(&self, begun: &Begun) -> bool {
        self.given_up.get(&begun.number).is_some_and(|given_up| !given_up.load(Ordering::Relaxed))
    }

    /// A thread has done its work. None if its result is not wanted any more.
    pub fn handle_ready(&mut self, mut ready: Ready) -> Option<Ready> {
        self.given_up.remove(&ready.number);
        let of = self.orders.handle_ready(ready.number);
        self.carry_out();
        match of {
            Use::Answer => {}
            Use::GivenUp => ready.result = Err(FetchError::GivenUp),
            Use::Nothing => return None,
        }
        Some(ready)
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.orders.poll_action() {
            match action {
                OrdersAction::Begin(number, order) => self.start(number, order),
                OrdersAction::Stop(number) => {
                    self.given_up.get(&number).into_iter().for_each(|given_up| given_up.store(true, Ordering::Relaxed));
                }
                OrdersAction::Refuse(number, order, error) => self.answer(number, order, error),
            }
        }
    }

    fn start(&mut self, number: OrderNumber, order: RestoreOrder) {
        let given_up = Arc::new(AtomicBool::new(false));
        self.given_up.insert(number, given_up.clone());
        let key = JobKey::derive_for_nodes(&self.key, order.process.job);
        let (store, prepared, known) = (self.store.clone(), self.prepared.clone(), order.clone());
        let work = move || {
            let mut wanted = Fetch::of(Duration::ZERO, &order);
            let work = Work { number, order: Box::new(order), store: store.clone(), prepared: prepared.clone() };
            let assemble = |layers| work.clone().begin(layers);
            let result = fetch(&mut wanted, Instant::now(), &key, &store, &given_up, &assemble);
            let Work { order, .. } = work;
            // The receiver is gone only when the daemon ends.
            _ = prepared.blocking_send(Prepared::Ready(Ready { number, order, damage: wanted.take_damage(), result }));
        };
        if let Err(error) = thread::Builder::new().name("restore".into()).spawn(work) {
            self.answer(number, known, FetchError::NoThread(error.to_string()));
        }
    }

    /// The answer to an order that no thread works at.
    fn answer(&self, number: OrderNumber, order: RestoreOrder, error: FetchError) {
        let ready = Prepared::Ready(Ready { number, order: Box::new(order), damage: Vec::new(), result: Err(error) });
        let sender = self.prepared.clone();
        tokio::task::spawn_local(async move { _ = sender.send(ready).await });
    }
}

/// What a thread works at.
#[derive(Clone)]
struct Work {
    number: OrderNumber,
    order: Box<RestoreOrder>,
    store: Arc<Folder>,
    prepared: mpsc::Sender<Prepared>,
}

impl Work {
    /// Puts images together of which the last one is on its way, on a thread: it waits for the beginning of that one.
    fn begin(self, layers: Vec<Layer>) -> io::Result<Assembling> {
        Assembling::begin(move |watched| {
            let Work { number, order, store, prepared } = self;
            let process = order.process;
            let failed =
                move |error: &ImageError| tracing::warn!(%error, %process, "an image could not be read while it was restored");
            let images = || Restorable::of_verified(layers, failed);
            let image = watched.during("images in", store.path(), images).map_err(|error| error.to_string())?;
            let room = || deaths::make_room(&store, process, order.incarnation);
            let report = watched.during("room for a report in", store.path(), room);
            let image = Box::new(image);
            _ = prepared.blocking_send(Prepared::Begun(Begun { number, order, image, report }));
            Ok(())
        })
    }
}
