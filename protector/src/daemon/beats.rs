//! Heartbeats, from a thread of their own.
//!
//! They say that the daemon lives, so they must not wait for anything else that it does: not for a view of thousands of members,
//! nor for a hundred handshakes. The daemon's loop gives each heartbeat here. To which connection it goes, and
//! when it is repeated, decides [`Heartbeats`].

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use radic_wire::ids::NodeId;
use radic_wire::key::ClusterKey;
use radic_wire::membership::Member;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, LocalSet, spawn_local};

use super::sockets::{self, End, Order};
use crate::membership::Timing;
use crate::node::Input;
use crate::peers::{Beat, Gone, Heartbeats, HeartbeatsAction};

/// The thread, as the loop sees it; it ends when this is dropped.
pub struct Beats {
    newest: watch::Sender<Option<Beat>>,
    started: Instant,
}

impl Beats {
    /// Starts the thread. A connection to the watcher that breaks becomes an input.
    pub fn start(me: Member, key: ClusterKey, timing: &Timing, inputs: mpsc::Sender<Input>) -> io::Result<Beats> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (newest, beats) = watch::channel(None);
        let (machine, started) = (Heartbeats::new(me, timing), Instant::now());
        let run = move || LocalSet::new().block_on(&runtime, send_all(Sender::new(machine, started, key, inputs), beats));
        thread::Builder::new().name("heartbeats".into()).spawn(run)?;
        Ok(Beats { newest, started })
    }

    /// Sends a heartbeat to this node's watcher, which may be another one than before.
    pub fn send(&self, peer: &NodeId, address: SocketAddr, view: u64) {
        self.newest.send_replace(Some(Beat { peer: peer.clone(), address, view, given: self.started.elapsed() }));
    }
}

/// What the thread's tasks share.
struct Sender {
    machine: RefCell<Heartbeats>,
    started: Instant,
    key: ClusterKey,
    inputs: mpsc::Sender<Input>,
    /// The task of the connection of now.
    task: RefCell<Option<Task>>,
    /// The machine's next time may be another one.
    changed: Notify,
}

struct Task {
    /// The driver's number of the connection: what a task says whose connection has been replaced is dropped.
    number: u64,
    orders: mpsc::UnboundedSender<Order>,
    abort: AbortHandle,
}

impl Sender {
    fn new(machine: Heartbeats, started: Instant, key: ClusterKey, inputs: mpsc::Sender<Input>) -> Rc<Sender> {
        let (machine, task, changed) = (RefCell::new(machine), RefCell::default(), Notify::new());
        Rc::new(Sender { machine, started, key, inputs, task, changed })
    }

    /// Something happens to the machine; what it wants then is done.
    fn drive(self: &Rc<Self>, input: impl FnOnce(&mut Heartbeats, Duration)) {
        input(&mut self.machine.borrow_mut(), self.started.elapsed());
        loop {
            let action = self.machine.borrow_mut().poll_action();
            let Some(action) = action else { break };
            self.carry_out(action);
        }
        self.changed.notify_one();
    }

    fn carry_out(self: &Rc<Self>, action: HeartbeatsAction) {
        match action {
            HeartbeatsAction::Dial(address) => {
                let (orders, receiver) = mpsc::unbounded_channel();
                let number = self.task.borrow().as_ref().map_or(0, |task| task.number) + 1;
                let end = WatcherEnd { sender: self.clone(), number };
                let abort = spawn_local(sockets::dial(address, self.key.clone(), receiver, end)).abort_handle();
                *self.task.borrow_mut() = Some(Task { number, orders, abort });
            }
            HeartbeatsAction::Send(frame) => self.order(Order::Send(frame)),
            HeartbeatsAction::Write => self.order(Order::Write),
            HeartbeatsAction::Close => self.task.borrow().iter().for_each(|task| task.abort.abort()),
            // The input is a hint, and the thread does not wait to give it: a loop with so much to do hears of it by its other
            // connections.
            HeartbeatsAction::Tell(input) => _ = self.inputs.try_send(input),
        }
    }

    fn order(&self, order: Order) {
        // A task that has just ended says so.
        if let Some(task) = self.task.borrow().as_ref() {
            _ = task.orders.send(order);
        }
    }
}

/// What the task of a connection has of the machine.
struct WatcherEnd {
    sender: Rc<Sender>,
    number: u64,
}

impl WatcherEnd {
    /// Something has happened to the connection, unless another one has its place.
    fn drive(&self, input: impl FnOnce(&mut Heartbeats, Duration)) {
        if self.is_of_now() {
            self.sender.drive(input);
        }
    }

    fn is_of_now(&self) -> bool {
        self.sender.task.borrow().as_ref().is_some_and(|task| task.number == self.number)
    }
}

impl End for WatcherEnd {
    fn connected(&self) {
        self.drive(|machine, _| machine.handle_connected());
    }

    async fn frame(&self, frame: &[u8]) {
        self.drive(|machine, now| machine.handle_frame(now, frame));
    }

    fn quiet(&self) {}

    fn poll_frame(&self) -> Option<Vec<u8>> {
        let frame = self.is_of_now().then(|| self.sender.machine.borrow_mut().poll_frame(self.sender.started.elapsed()));
        // The heartbeat has a time now at which it is repeated.
        self.sender.changed.notify_one();
        frame.flatten()
    }

    fn closed(&self, _: Gone) {
        self.drive(Heartbeats::handle_closed);
    }
}

/// Sends heartbeats until the loop has ended.
async fn send_all(sender: Rc<Sender>, mut beats: watch::Receiver<Option<Beat>>) {
    loop {
        let due = sender.machine.borrow().poll_timeout();
        let timer = async {
            match due {
                Some(due) => tokio::time::sleep_until((sender.started + due).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = beats.changed() => {
                if changed.is_err() {
                    return;
                }
                let beat = beats.borrow_and_update().clone();
                beat.into_iter().for_each(|beat| sender.drive(|machine, now| machine.handle_beat(now, beat)));
            }
            () = timer => sender.drive(Heartbeats::handle_timeout),
            () = sender.changed.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use radic_wire::codec;
    use radic_wire::limits;
    use radic_wire::peer::{Heartbeat, Hello, Welcome};

    use super::*;
    use crate::daemon::wire::Connection;

    fn decoded<T: serde::de::DeserializeOwned>(frame: &[u8]) -> T {
        codec::decode(frame, limits::PEER_FRAME).unwrap()
    }

    /// The loop gives one heartbeat and is busy then: the watcher hears it for a while, and of another watcher at once.
    #[tokio::test]
    async fn a_busy_loop_is_heard_and_one_that_hangs_is_not() {
        let timing = Timing { heartbeat: Duration::from_millis(20), answer: Duration::from_millis(400), ..Timing::default() };
        let key = ClusterKey::from_bytes([3; 32]);
        let member = |name: &str, address| {
            let id = NodeId { name: name.parse().unwrap(), boot: radic_wire::ids::BootId(1) };
            Member { id, address, data: address.ip(), log_port: 1, role: radic_wire::membership::Role::Node, slots: 1 }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (inputs, mut broken) = mpsc::channel(4);
        let beats = Beats::start(member("n1", address), key.clone(), &timing, inputs).unwrap();
        for name in ["n2", "n3"] {
            let watcher = member(name, address).id;
            beats.send(&watcher, address, 5);
            let given = Instant::now();
            let mut connection = Connection::responder(listener.accept().await.unwrap().0, &key).unwrap();
            let hello: Hello = decoded(&connection.receive().await.unwrap());
            assert_eq!(hello.to, Some(watcher.clone()));
            let welcome = Welcome { id: watcher.clone(), received: 0, refused: None };
            connection.send(&codec::encode(&welcome, limits::PEER_FRAME).unwrap()).await.unwrap();
            let mut heard = 0;
            let silence = Duration::from_millis(1000);
            while let Ok(heartbeat) = tokio::time::timeout(silence, connection.receive()).await {
                assert_eq!(decoded::<Heartbeat>(&heartbeat.unwrap()).view, 5);
                heard += 1;
            }
            assert!(heard >= 5, "{heard} heartbeats of a busy loop");
            assert!(given.elapsed() < timing.answer + silence + Duration::from_secs(5), "it never fell silent");
            assert!(heard <= 1 + 400 / 20, "{heard} heartbeats of a loop that hangs");
            // The loop is back.
            beats.send(&watcher, address, 6);
            assert_eq!(decoded::<Heartbeat>(&connection.receive().await.unwrap()).view, 6);
            if name == "n3" {
                drop(connection);
                // That of the watcher before may have been told first.
                let is_this = |input: Input| matches!(input, Input::LinkBroken(of) if of == watcher);
                while !is_this(broken.recv().await.expect("the thread lives")) {}
            }
        }
    }
}
