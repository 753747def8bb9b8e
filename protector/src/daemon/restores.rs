//! Processes on their way back: their images are fetched, verified and put together on threads of their own, a few at once, as
//! [`Orders`] and [`Fetch`] say. What is ready is started by the launcher's thread, to which the parent-death signal is tied.

use std::collections::HashMap;
use std::fs::File;
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
use crate::logs::fetch;
use crate::node::host::RestoreOrder;

/// Threads that prepare processes, for each processor: one that waits for the network leaves its processor to another.
const THREADS_PER_CPU: usize = 2;
/// Most of them.
const THREADS: usize = 16;
/// Prepared processes that may wait for the daemon's thread. A thread that has one more waits.
const READY: usize = 16;

/// A process with its images, or why they are not here.
pub struct Ready {
    number: OrderNumber,
    order: Box<RestoreOrder>,
    /// What was wrong with images for which others were found.
    pub damage: Vec<String>,
    pub result: Result<Restorable, FetchError>,
    /// Where the process reports its death, or why it cannot.
    pub report: Result<PathBuf, String>,
}

impl Ready {
    /// What was ordered.
    pub fn order(&self) -> &RestoreOrder {
        &self.order
    }
}

/// The processes that are being prepared.
pub struct Restores {
    key: ClusterKey,
    /// The directory of this node's log service, which has room for images.
    store: PathBuf,
    orders: Orders,
    /// By which each thread is told that its process is not wanted any more.
    given_up: HashMap<OrderNumber, Arc<AtomicBool>>,
    ready: mpsc::Sender<Ready>,
}

impl Restores {
    /// None yet. What is ready comes out of the receiver, and is to be given to [`Restores::handle_ready`].
    pub fn new(key: ClusterKey, store: PathBuf) -> (Self, mpsc::Receiver<Ready>) {
        let (ready, receiver) = mpsc::channel(READY);
        let threads = thread::available_parallelism().map_or(1, usize::from).saturating_mul(THREADS_PER_CPU).min(THREADS);
        (Restores { key, store, orders: Orders::new(threads), given_up: HashMap::new(), ready }, receiver)
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
        let (store, ready, known) = (self.store.clone(), self.ready.clone(), order.clone());
        let work = move || {
            let begun = Instant::now();
            let mut wanted = Fetch::of(Duration::ZERO, &order);
            let process = order.process;
            let assemble = |files: Vec<File>| {
                let failed = move |error: &ImageError| tracing::warn!(%error, %process, "an image could not be read while it was restored");
                Restorable::of_verified(files, failed).map_err(|error| error.to_string())
            };
            let result = fetch(&mut wanted, begun, &key, &store, &given_up, assemble);
            let report = deaths::make_room(&store, order.process, order.incarnation);
            // The receiver is gone only when the daemon ends.
            _ = ready.blocking_send(Ready { number, order: Box::new(order), damage: wanted.take_damage(), result, report });
        };
        if let Err(error) = thread::Builder::new().name("restore".into()).spawn(work) {
            self.answer(number, known, FetchError::NoThread(error.to_string()));
        }
    }

    /// The answer to an order that no thread works at.
    fn answer(&self, number: OrderNumber, order: RestoreOrder, error: FetchError) {
        let report = Err("it was not begun".to_owned());
        let ready = Ready { number, order: Box::new(order), damage: Vec::new(), result: Err(error), report };
        let sender = self.ready.clone();
        tokio::task::spawn_local(async move { _ = sender.send(ready).await });
    }
}
