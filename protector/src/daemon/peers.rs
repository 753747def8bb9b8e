//! Connections with other protectors: sockets, tasks and timers under the machine that decides about them ([`crate::peers`]).
//!
//! Each connection has a task ([`super::sockets`]). What it brings goes into the machine, and what the machine wants done then is
//! done at once, except that the node may have no room for what it is told: then that waits here, in order, and the task that
//! brought it reads nothing more until there is room.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use radic_wire::ids::NodeId;
use radic_wire::key::ClusterKey;
use radic_wire::membership::{Member, MembershipBody, MembershipMessage};
use radic_wire::peer::PeerMessage;
use tokio::net::TcpListener;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, spawn_local};

use super::beats::Beats;
use super::refusals::Refusals;
use super::sockets::{self, End, Order};
use crate::membership::{Peer, Timing};
use crate::node::Input;
use crate::peers::{Action, ConnectionId, Gone, Peers};

/// A queue of the node.
struct Ear {
    queue: mpsc::Sender<Input>,
    /// What the queue has no room for, in order. A task that has brought some of it brings nothing more, so this is bounded by
    /// the number of connections.
    waiting: RefCell<VecDeque<Input>>,
    /// Something waits.
    filled: Notify,
    /// Nothing does any more.
    emptied: Notify,
}

impl Ear {
    fn new(queue: mpsc::Sender<Input>) -> Rc<Ear> {
        let ear = Rc::new(Ear { queue, waiting: RefCell::default(), filled: Notify::new(), emptied: Notify::new() });
        spawn_local(ear.clone().pass_on());
        ear
    }

    fn tell(&self, input: Input) {
        let mut waiting = self.waiting.borrow_mut();
        let refused = if waiting.is_empty() { self.queue.try_send(input) } else { Err(TrySendError::Full(input)) };
        // The receiver is gone only when the daemon ends.
        if let Err(TrySendError::Full(input)) = refused {
            waiting.push_back(input);
            self.filled.notify_one();
        }
    }

    async fn pass_on(self: Rc<Self>) {
        loop {
            self.filled.notified().await;
            while !self.waiting.borrow().is_empty() {
                let Ok(permit) = self.queue.reserve().await else { return };
                permit.send(self.waiting.borrow_mut().pop_front().expect("only this takes from it"));
            }
            self.emptied.notify_waiters();
        }
    }

    async fn room(&self) {
        while !self.waiting.borrow().is_empty() {
            self.emptied.notified().await;
        }
    }
}

/// The task of a connection, which ends when it has done its orders and no more are to come.
struct Task {
    orders: mpsc::UnboundedSender<Order>,
    abort: AbortHandle,
}

/// What all connections share.
struct Shared {
    machine: RefCell<Peers>,
    started: Instant,
    key: ClusterKey,
    inputs: Rc<Ear>,
    /// For signs of life, which are not to wait for what else has come.
    urgent: Rc<Ear>,
    tasks: RefCell<HashMap<ConnectionId, Task>>,
    /// When the machine is called, as far as its timer knows.
    due: Cell<Option<Duration>>,
    sooner: Notify,
    /// Something was done.
    changed: Notify,
    refusals: Rc<Refusals>,
}

/// All connections with other protectors.
pub struct PeerSockets {
    shared: Rc<Shared>,
    beats: Beats,
}

impl PeerSockets {
    /// Starts to accept connections, and the thread that sends heartbeats. What comes goes to the first of the two queues, signs
    /// of life to the second. Must be called within a `LocalSet`.
    pub fn start(
        me: Member,
        key: ClusterKey,
        listener: TcpListener,
        timing: &Timing,
        (inputs, urgent): (mpsc::Sender<Input>, mpsc::Sender<Input>),
        refusals: Rc<Refusals>,
    ) -> io::Result<Self> {
        let beats = Beats::start(me.clone(), key.clone(), timing, inputs.clone())?;
        let shared = Rc::new(Shared {
            machine: RefCell::new(Peers::new(me)),
            started: Instant::now(),
            key,
            inputs: Ear::new(inputs),
            urgent: Ear::new(urgent),
            tasks: RefCell::default(),
            due: Cell::new(None),
            sooner: Notify::new(),
            changed: Notify::new(),
            refusals,
        });
        spawn_local(accept(shared.clone(), listener));
        spawn_local(keep_time(shared.clone()));
        Ok(PeerSockets { shared, beats })
    }

    /// Sends a message, reliably and in order.
    pub fn send(&self, to: &Peer, message: PeerMessage) {
        self.shared.drive(|machine, now| machine.send(now, to, message));
    }

    /// Sends one message to the protector that listens there.
    pub fn send_to_seed(&self, seed: SocketAddr, message: &MembershipMessage) {
        self.shared.drive(|machine, now| machine.send_to_seed(now, seed, message));
    }

    /// Sends a heartbeat to this node's watcher.
    pub fn heartbeat(&self, to: &Peer, view: u64) {
        if let Some(address) = to.address {
            self.beats.send(&to.id, address, view);
        }
    }

    /// Finds out by a fresh connection whether this very member answers.
    pub fn probe(&self, member: Peer) {
        self.shared.drive(|machine, now| machine.probe(now, member));
    }

    /// The view has so many members.
    pub fn set_members(&self, count: usize) {
        self.shared.drive(|machine, now| machine.handle_members(now, count));
    }

    /// A node is no member any more.
    pub fn forget(&self, node: &NodeId) {
        self.shared.drive(|machine, now| machine.forget(now, node));
    }

    /// Waits until everything sent to members was taken, or was given up. The caller bounds the time.
    pub async fn drain(&self) {
        while self.shared.machine.borrow().has_unsent() {
            self.shared.changed.notified().await;
        }
    }
}

impl Shared {
    /// Something happens to the machine; what it wants then is done.
    fn drive<T>(self: &Rc<Self>, input: impl FnOnce(&mut Peers, Duration) -> T) -> T {
        let result = input(&mut self.machine.borrow_mut(), self.started.elapsed());
        loop {
            let action = self.machine.borrow_mut().poll_action();
            let Some(action) = action else { break };
            self.carry_out(action);
        }
        let due = self.machine.borrow().poll_timeout();
        if due.is_some_and(|due| self.due.get().is_none_or(|known| due < known)) {
            self.sooner.notify_one();
        }
        self.changed.notify_waiters();
        result
    }

    fn carry_out(self: &Rc<Self>, action: Action) {
        match action {
            Action::Dial(id, address) => {
                let key = self.key.clone();
                self.begin(id, |orders, end| sockets::dial(address, key, orders, end));
            }
            Action::Send(id, frame) => self.order(id, Order::Send(frame)),
            Action::Write(id) => self.order(id, Order::Write),
            Action::Close(id, reason) => {
                tracing::debug!(?id, %reason, "connection closed");
                let task = self.tasks.borrow_mut().remove(&id);
                // A task that has no more orders to come ends in order when it has done those that it has.
                task.into_iter().filter(|_| !reason.is_orderly()).for_each(|task| task.abort.abort());
            }
            Action::Tell(input) if is_sign_of_life(&input) => self.urgent.tell(input),
            Action::Tell(input) => self.inputs.tell(input),
            Action::Refused(from, reason) => {
                let (refusals, text) = (self.refusals.clone(), format!("refused a connection from {from}: {reason}"));
                spawn_local(async move { refusals.note(text).await });
            }
            Action::Dropped(None, address, reason) => tracing::warn!(?address, %reason, "could not ask to join"),
            Action::Dropped(Some(to), address, reason) => tracing::debug!(%to, ?address, %reason, "dropped what was for it"),
        }
    }

    fn order(&self, id: ConnectionId, order: Order) {
        if let Some(task) = self.tasks.borrow().get(&id) {
            // A task that has just ended says so.
            _ = task.orders.send(order);
        }
    }

    /// Begins the task of a connection.
    fn begin<F: Future<Output = ()> + 'static>(
        self: &Rc<Self>,
        id: ConnectionId,
        run: impl FnOnce(mpsc::UnboundedReceiver<Order>, SocketEnd) -> F,
    ) {
        let (orders, receiver) = mpsc::unbounded_channel();
        let abort = spawn_local(run(receiver, SocketEnd { shared: self.clone(), id })).abort_handle();
        self.tasks.borrow_mut().insert(id, Task { orders, abort });
    }
}

/// Whether a member lives, or asks whether another one does. That is not to wait behind what else has come: a thousand inputs of a
/// job that starts take longer than the time after which an asked member is suspected. None of it has to stay in order with the rest.
fn is_sign_of_life(input: &Input) -> bool {
    match input {
        Input::Heartbeat(..) | Input::ProbeReached(_) | Input::ProbeResult(..) => true,
        Input::Message(_, PeerMessage::Membership(message)) => {
            matches!(message.body, MembershipBody::ProbeRequest(_) | MembershipBody::ProbeResult { .. })
        }
        _ => false,
    }
}

/// What the task of a connection has of the machine.
struct SocketEnd {
    shared: Rc<Shared>,
    id: ConnectionId,
}

impl End for SocketEnd {
    fn connected(&self) {
        self.shared.drive(|machine, _| machine.handle_connected(self.id));
    }

    async fn frame(&self, frame: &[u8]) {
        let (inputs, urgent) = (&self.shared.inputs, &self.shared.urgent);
        let waited = |ear: &Ear| ear.waiting.borrow().len();
        let before = (waited(inputs), waited(urgent));
        self.shared.drive(|machine, now| machine.handle_frame(now, self.id, frame));
        // A heartbeat does not wait until there is room for what other connections have brought.
        if waited(inputs) > before.0 {
            inputs.room().await;
        }
        if waited(urgent) > before.1 {
            urgent.room().await;
        }
    }

    fn quiet(&self) {
        self.shared.drive(|machine, _| machine.handle_quiet(self.id));
    }

    fn poll_frame(&self) -> Option<Vec<u8>> {
        self.shared.machine.borrow_mut().poll_frame(self.id)
    }

    fn closed(&self, gone: Gone) {
        tracing::debug!(id = ?self.id, %gone, "connection ended");
        self.shared.tasks.borrow_mut().remove(&self.id);
        self.shared.drive(|machine, now| machine.handle_closed(now, self.id, gone));
    }
}

/// Calls the machine when it is due.
async fn keep_time(shared: Rc<Shared>) {
    loop {
        let due = shared.machine.borrow().poll_timeout();
        shared.due.set(due);
        let timer = async {
            match due {
                Some(due) => tokio::time::sleep_until((shared.started + due).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = timer => shared.drive(Peers::handle_timeout),
            () = shared.sooner.notified() => {}
        }
    }
}

async fn accept(shared: Rc<Shared>, listener: TcpListener) {
    loop {
        let (socket, from) = super::accept("connections", || listener.accept()).await;
        if let Some(id) = shared.drive(|machine, now| machine.handle_accepted(now, from)) {
            let key = shared.key.clone();
            shared.begin(id, |orders, end| sockets::accept(socket, key, orders, end));
        }
    }
}

#[cfg(test)]
mod tests {
    use radic_wire::membership::Role;
    use radic_wire::peer::Query;
    use tokio::task::LocalSet;

    use super::*;

    /// A daemon's connections, and the two queues of its node.
    async fn connections(name: &str) -> (PeerSockets, Peer, mpsc::Receiver<Input>, mpsc::Receiver<Input>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let id = NodeId { name: name.parse().unwrap(), boot: radic_wire::ids::BootId(1) };
        let me = Member { id: id.clone(), address, data: address.ip(), log_port: 1, role: Role::Node, slots: 1 };
        let ((inputs, ordinary), (signs, urgent)) = (mpsc::channel(1), mpsc::channel(4));
        let key = ClusterKey::from_bytes([3; 32]);
        let refusals = Rc::new(Refusals::new(inputs.clone()));
        let sockets = PeerSockets::start(me, key, listener, &Timing::default(), (inputs, signs), refusals).unwrap();
        (sockets, Peer { id, address: Some(address) }, ordinary, urgent)
    }

    /// The node has not taken what came before: whether it lives is asked all the same.
    #[tokio::test]
    async fn a_question_for_life_does_not_wait_behind_the_rest() {
        LocalSet::new()
            .run_until(async {
                let (asker, me, ..) = connections("n1").await;
                let (_asked, peer, mut ordinary, mut urgent) = connections("n2").await;
                asker.send(&peer, PeerMessage::Query(1, Query::Report));
                let body = MembershipBody::ProbeRequest(peer.id.clone());
                let question = MembershipMessage { cluster: None, view: 1, body };
                asker.send(&peer, PeerMessage::Membership(question.clone()));
                let asked = tokio::time::timeout(Duration::from_secs(10), urgent.recv()).await.expect("it waits").unwrap();
                assert!(
                    matches!(&asked, Input::Message(from, PeerMessage::Membership(said)) if *from == me.id && *said == question)
                );
                assert!(matches!(ordinary.recv().await, Some(Input::Message(_, PeerMessage::Query(1, _)))));
            })
            .await;
    }
}
