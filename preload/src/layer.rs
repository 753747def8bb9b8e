//! The layer: one process's observer with the sockets that it drives. Everything here happens under one lock, in the program's own threads, inside
//! its own calls: there is no thread of ours.
//!
//! What must be shipped, awaited or answered is done by whatever call comes by ([`Layer::tend`]); a call that has to wait waits for the layer's
//! connections too ([`Layer::awaited`]).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use radic_observer::connection::Slot;
use radic_observer::links::Links;
use radic_observer::session::{REPLACED, Session};
use radic_observer::{Config, Failure, Observer, Transmit, Wait};
use radic_wire::PROTOCOL_VERSION;
use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::log::FromProtector;
use radic_wire::login;
use radic_wire::mac::JobKey;
use radic_wire::process::{FromNode, Protection, TEXT, ToNode};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::channel::{Channel, Identity};
use crate::counters::{self, Counter};
use crate::fds::{self, Kind};
use crate::image::{self, Images};
use crate::input::InputPipe;
use crate::links::{Sockets, reset};
use crate::lock::{Guard, Lock};
use crate::memory::discreetly;
use crate::node::Node;
use crate::output::Outputs;
use crate::pmi::Pmi;
use crate::replay::Replayer;
use crate::restart;
use crate::session::Channels;
use crate::signals::{self, Hold};
use crate::sys;

/// Bytes of the payload log in the process.
const PAYLOAD: usize = 4 << 20;
/// Bytes of an outbox block.
const BLOCK: usize = 4 << 10;
/// Empty outcomes in a row after which the process idles as far as shipping goes.
const IDLE: u32 = 512;
/// The same while a link is down.
const IDLE_DOWN: u32 = 8;
/// Time for the node to let a process in, in milliseconds: it may have to wait as long for a protector.
const JOIN_MS: u64 = REPLACED.as_millis() as u64 + 10_000;
/// Descriptors that a waiting call listens to besides its own.
pub const AWAITED: usize = 192;

static ACTIVE: AtomicBool = AtomicBool::new(false);
/// A checkpoint is wanted and has not begun.
static DUE: AtomicBool = AtomicBool::new(false);
/// Some connection has bytes that its socket has not taken: calls that pass through look after them too.
static UNSENT: AtomicBool = AtomicBool::new(false);
static LAYER: Lock<Option<Layer>> = Lock::new(None);
static THREADS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(u32::MAX) };
    /// This thread is inside the layer: a signal's handler that calls a hook finds it so.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether calls are watched at all.
pub fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// Lets every call pass through from now on: this is a child, or the process ends.
pub fn switch_off() {
    ACTIVE.store(false, Ordering::Relaxed);
}

/// Whether the calling thread is inside the layer.
pub fn is_inside() -> bool {
    INSIDE.get()
}

/// A checkpoint is to be made as soon as the layer is free.
pub fn want_checkpoint() {
    DUE.store(true, Ordering::Relaxed);
}

/// Takes the wish for a checkpoint.
pub fn take_wish() -> bool {
    DUE.swap(false, Ordering::Relaxed)
}

/// The layer, held.
pub struct Held {
    guard: Option<Guard<'static, Option<Layer>>>,
    /// Of a call that waits: let go after the layer.
    signals: Option<Hold>,
}

impl Deref for Held {
    type Target = Layer;

    fn deref(&self) -> &Layer {
        self.guard.as_deref().and_then(Option::as_ref).expect("a layer that is held is there")
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Layer {
        self.guard.as_deref_mut().and_then(Option::as_mut).expect("a layer that is held is there")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.guard.take().is_some() {
            INSIDE.set(false);
            if DUE.load(Ordering::Relaxed) {
                // The handler of the nudge finds the lock free, unless another thread is in: then that one comes by here.
                // Where the signal cannot be queued, the next call tries again.
                _ = radic_ckpt::nudge_self();
            } else {
                image::make_up();
            }
        }
    }
}

/// The layer, for one call of the program. None: it is not active, or this is a signal's handler that has interrupted the layer in its own thread.
pub fn enter() -> Option<Held> {
    if !is_active() || INSIDE.get() {
        return None;
    }
    // Before the lock: a signal's handler that comes between the two would wait for its own thread.
    INSIDE.set(true);
    let mut guard = LAYER.lock();
    if guard.is_none() {
        INSIDE.set(false);
        return None;
    }
    come_back(&mut guard);
    Some(Held { guard: Some(guard), signals: None })
}

/// The layer, for a call on a protected connection. A signal's handler that has interrupted the layer in its own thread can neither wait for it nor go by it: what it
/// sent would be in no outbox, what it received in no log.
pub fn enter_for_connection() -> Option<Held> {
    if is_active() && INSIDE.get() {
        fail("a signal's handler uses a protected connection while the program is in the middle of a call about one");
    }
    enter()
}

/// The first to get the layer after a restore finds out what there is to do.
fn come_back(guard: &mut Guard<'static, Option<Layer>>) {
    if image::take_restored()
        && let Some(layer) = guard.as_mut()
    {
        restart::come_back(layer);
    }
}

/// The layer if no thread holds it, in a process that has come back: for the handler of a signal.
pub fn enter_if_free() -> Option<Held> {
    if !is_active() || INSIDE.get() {
        return None;
    }
    let mut guard = LAYER.try_lock().filter(|guard| guard.is_some())?;
    INSIDE.set(true);
    come_back(&mut guard);
    Some(Held { guard: Some(guard), signals: None })
}

/// The layer if no thread holds it: for the handler of the checkpoint's signal.
pub fn try_enter() -> Option<Held> {
    if !is_active() || INSIDE.get() || image::is_restored() {
        return None;
    }
    let guard = LAYER.try_lock().filter(|guard| guard.is_some())?;
    INSIDE.set(true);
    Some(Held { guard: Some(guard), signals: None })
}

impl Held {
    /// The program's signals wait for this call's waits in the kernel, from now on.
    pub fn take_signals(&mut self) -> Hold {
        self.signals.take().unwrap_or_else(Hold::begin)
    }

    /// The call goes on.
    pub fn give_signals(&mut self, signals: Hold) {
        self.signals = Some(signals);
    }

    /// Keeps the layer locked after this value is gone; [`adopt`] goes on.
    pub fn keep_locked(mut self) {
        // Another thread may adopt it.
        INSIDE.set(false);
        std::mem::forget(self.guard.take());
    }
}

/// The layer that [`Held::keep_locked`] has left locked.
pub fn adopt() -> Held {
    Held { guard: Some(LAYER.adopt_forgotten()), signals: None }
}

/// Something that the layer should look after was left over: called by hooks that pass through.
pub fn tend_in_passing() {
    if UNSENT.load(Ordering::Relaxed)
        && let Some(mut layer) = try_enter()
    {
        layer.drain();
    }
}

/// The number of the calling thread.
pub fn thread() -> u32 {
    let number = THREAD.get();
    if number != u32::MAX {
        return number;
    }
    let number = THREADS.fetch_add(1, Ordering::Relaxed);
    THREAD.set(number);
    number
}

/// A connection that the program has closed before all of its bytes had left.
#[derive(Debug)]
pub(crate) struct Lingering {
    pub(crate) slot: Slot,
    pub(crate) fd: OwnedFd,
}

/// The addresses of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// This end.
    pub local: Option<SocketAddr>,
    /// The other one.
    pub peer: SocketAddr,
}

/// A connection that was accepted and identified and that the program has not got yet.
#[derive(Debug)]
pub struct Arrived {
    /// Which.
    pub connection: ConnectionId,
    /// Its socket: one of the layer's own if it came to the door, else already the program's number.
    pub fd: i32,
    /// The address that `accept` tells.
    pub peer: SocketAddr,
    /// This end, if the socket has another address than the program is told.
    pub local: Option<SocketAddr>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Layer {
    /// The state machines.
    pub observer: Observer,
    /// The protector of this process's own node.
    pub node: Node,
    /// Of a process that is replayed offline: the connection to the command, which stands in for its peers and its protector.
    pub(crate) replayer: Option<Replayer>,
    /// Standard output and standard error.
    pub outputs: Outputs,
    /// Standard input.
    pub input: InputPipe,
    /// The connection to the process manager.
    pub pmi: Pmi,
    /// Links that are not up, and how they come up again.
    pub links: Links,
    /// Their sockets.
    pub sockets: Sockets,
    /// Checkpoints.
    pub images: Images,
    /// What was accepted and not given to the program yet.
    pub arrived: Vec<Arrived>,
    /// By descriptor, both ends' addresses, as the program saw them in its first incarnation.
    pub names: BTreeMap<i32, Names>,
    /// By descriptor, the address of a socket that has one and no peer, as the program saw it in its first incarnation.
    pub bound: BTreeMap<i32, SocketAddr>,
    /// Where the program listens.
    pub listeners: Vec<(i32, SocketAddr)>,
    /// Further descriptors of connections, and the one that the observer knows.
    pub aliases: Vec<(i32, i32)>,
    /// Connections with a peer that is gone, and the error that the program gets.
    pub broken: Vec<(Slot, Errno)>,
    /// The job's key.
    pub key: JobKey,
    /// Keys for greetings to processes of other jobs.
    foreign: Vec<(ConnectionId, JobKey)>,
    /// The session with the protector, and its connections.
    pub(crate) session: Session,
    pub(crate) journal: Channel,
    pub(crate) bulk: Channel,
    /// Those of a login that has just succeeded.
    pub(crate) fresh: Option<Channels>,
    /// What the last attempt to reach the protector has come to.
    pub(crate) session_error: Errno,
    pub(crate) lingering: Vec<Lingering>,
    pub(crate) unsent: Vec<Slot>,
    idle: u32,
}

/// Why this process is not protected.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The node says no.
    #[error("{0}")]
    Refused(String),
    /// The node or the protector cannot be reached.
    #[error("{what}: {error}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        error: Errno,
    },
}

fn failed(what: &'static str) -> impl Fn(Errno) -> JoinError {
    move |error| JoinError::System { what, error }
}

/// What the node says to a process that joins.
pub struct Joined {
    node: Node,
    process: ProcessId,
    incarnation: Incarnation,
    key: JobKey,
    protector: SocketAddr,
    /// How it is protected.
    pub protection: Protection,
    /// Another program ran in this process before.
    inherited: bool,
}

/// Joins the node at this socket.
pub fn join(socket: &[u8], process: ProcessId) -> Result<Joined, JoinError> {
    let mut node = Node::connect(socket).map_err(failed("the node's socket"))?;
    let join = ToNode::Join { version: PROTOCOL_VERSION, process };
    let answer = node.ask_within(JOIN_MS, &join, |_| true).map_err(failed("joining the node"));
    match answer? {
        FromNode::Joined { incarnation, key, protector, protection, inherited } => {
            Ok(Joined { node, process, incarnation, key, protector, protection, inherited })
        }
        FromNode::Refused(why) => {
            node.close();
            Err(JoinError::Refused(why))
        }
        _ => Err(failed("joining the node")(Errno::PROTO)),
    }
}

/// The connections to the protector. It may die just now: the node tells where the next one is. Bounded, as [`Layer::await_session`] is.
fn first_channels(node: &mut Node, protector: &mut SocketAddr, who: &Identity<'_>) -> Result<(Channel, Channel), Errno> {
    let deadline = sys::now() + REPLACED.as_nanos() as u64;
    loop {
        let journal = Channel::connect(*protector, who, login::Channel::Journal);
        match journal.and_then(|journal| Ok((journal, Channel::connect(*protector, who, login::Channel::Bulk)?))) {
            Ok(channels) => return Ok(channels),
            Err(error) if sys::now() >= deadline => return Err(error),
            Err(_) => _ = sys::wait_for(node.fd(), PollFlags::IN, 100),
        }
        if let Some(next) = node.next_protector()? {
            *protector = next;
        }
    }
}

/// Starts the layer: from now on every call is watched.
pub fn start(joined: Joined) -> Result<(), JoinError> {
    let Joined { mut node, process, incarnation, key, mut protector, protection, inherited } = joined;
    let blocks = usize::try_from(protection.outbox).unwrap_or(usize::MAX).div_ceil(BLOCK).clamp(64, 1 << 22);
    let config = Config { outbox_blocks: blocks, outbox_block: BLOCK, payload: PAYLOAD, ..Config::default() };
    let observer = Observer::in_life(process, incarnation, &config);
    counters::map().map_err(failed("memory for the counters"))?;
    let who = Identity { process, incarnation: observer.incarnation(), key: &key };
    let (journal, bulk) = first_channels(&mut node, &mut protector, &who).map_err(failed("the protector's log"))?;
    let mut layer = Layer {
        replayer: None,
        links: Links::default(),
        sockets: Sockets::default(),
        outputs: Outputs::new(),
        input: InputPipe::new(inherited),
        pmi: Pmi::find(),
        images: Images::new(config.connections),
        observer,
        node,
        arrived: Vec::with_capacity(64),
        names: BTreeMap::new(),
        bound: BTreeMap::new(),
        listeners: Vec::with_capacity(64),
        aliases: Vec::with_capacity(16),
        broken: Vec::with_capacity(64),
        key,
        foreign: Vec::new(),
        session: Session::logged_in(protector, Duration::from_nanos(sys::now())),
        journal,
        bulk,
        fresh: None,
        session_error: Errno::TIMEDOUT,
        lingering: Vec::with_capacity(64),
        unsent: Vec::with_capacity(64),
        idle: 0,
    };
    layer.say_hello();
    layer.await_session();
    layer.open_door().map_err(failed("a door for its peers"))?;
    *LAYER.lock() = Some(layer);
    ACTIVE.store(true, Ordering::Release);
    Ok(())
}

/// The program ends: what is to leave leaves. Afterwards every call passes through.
pub fn leave() {
    if let Some(mut layer) = enter() {
        layer.leave();
        switch_off();
    }
}

/// The program wants the number of one of the layer's own descriptors: that moves.
pub fn make_room(fd: i32) {
    let Some(mut layer) = enter() else { return };
    if let Err(error) = layer.move_own(fd) {
        fail(&format!("the program wants descriptor {fd}, which is RADIC's own and cannot be moved: {error}"));
    }
}

/// Ends the process at once.
pub fn end_process(code: i32) -> ! {
    switch_off();
    #[allow(unsafe_code)]
    // SAFETY: takes a number, and does not return.
    unsafe {
        libc::syscall(libc::SYS_exit_group, code)
    };
    std::process::abort()
}

/// Ends the process: it cannot go on without breaking a guarantee. A wrong answer is worse than a crash.
pub fn fail(what: &str) -> ! {
    // Without an allocation: this may be a signal's handler in the middle of one.
    let parts = ["radic: this process cannot go on: ", what, "\n"].map(|part| IoSlice::new(part.as_bytes()));
    _ = rustix::io::writev(sys::borrow(2), &parts);
    radic_ckpt::death::note(&[what]);
    end_process(125)
}

/// Ends the process for an error of the observer. If another incarnation speaks for it, its end must not look like an exit: a home that does not know yet that this node was taken
/// for lost would end the job. A crash is judged by the protector, which knows. The process prints nothing then: that would stand in the place of what the other incarnation prints.
fn fail_with(failure: &Failure) -> ! {
    if failure.is_fenced() {
        switch_off();
        // The kernel's word for it: the program may have another one.
        _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
    fail(&failure.to_string())
}

/// The value, or the end of the process.
pub fn sure<T>(result: Result<T, impl Into<Failure>>) -> T {
    match result {
        Ok(value) => value,
        Err(failure) => fail_with(&failure.into()),
    }
}

impl Layer {
    /// Ships the journal at once.
    pub fn ship(&mut self) {
        if let Some(replayer) = &mut self.replayer {
            return replayer.look(&self.observer);
        }
        if self.session.is_reading() {
            self.look_at_log();
        }
        let Some(ship) = self.observer.poll_journal() else { return };
        counters::add(Counter::Journal, (ship.head.len() + ship.tail.len()) as u64);
        if let Err(error) = self.journal.send_journal(&ship) {
            self.reconnect(error);
        }
    }

    /// Ships received payload, as far as the connection takes it without much waiting in memory.
    pub fn ship_payload(&mut self) {
        if self.replayer.is_some() {
            return;
        }
        while !self.bulk.is_pressed() {
            let Some(piece) = self.observer.poll_payload() else { break };
            counters::add(Counter::Payload, (piece.head.len() + piece.tail.len()) as u64);
            if let Err(error) = self.bulk.send_payload(&piece) {
                return self.reconnect(error);
            }
        }
        if let Err(error) = self.bulk.flush() {
            self.reconnect(error);
        }
    }

    /// Tells peers that they need not keep connections of which an image covers the close. Some at a time: nodes keep what others do not read only up to
    /// a bound.
    pub(crate) fn forget_closed(&mut self) {
        const AT_ONCE: usize = 256;
        for _ in 0..AT_ONCE {
            let Some(word) = self.observer.poll_forget() else { break };
            self.say_forgettable(word);
        }
        for _ in 0..AT_ONCE {
            let Some(connection) = self.observer.poll_over() else { break };
            _ = self.node.send(&ToNode::Over { connection });
        }
        let table = self.observer.table();
        self.foreign.retain(|(connection, _)| table.find_end(*connection, true).is_some());
        self.close_forgotten();
    }

    /// Sockets that are kept for connections which are forgotten: their places will be others'.
    pub fn close_forgotten(&mut self) {
        let table = self.observer.table();
        self.unsent.retain(|slot| table.get(*slot).is_some());
        let forgotten = |lingering: &mut Lingering| table.get(lingering.slot).is_none();
        self.lingering.extract_if(.., forgotten).for_each(|lingering| sys::close_own(lingering.fd));
    }

    /// The key for greetings about `connection`.
    pub fn greeting_key(&self, connection: &ConnectionId) -> JobKey {
        let foreign = self.foreign.iter().find(|(known, _)| known == connection);
        discreetly(|| foreign.map_or_else(|| self.key.greeting_key(connection), |(_, key)| key.clone()))
    }

    /// The key for greetings about `connection`, which leads to `peer`, a process of another job. Keys are in no log and in no image: the node knows it.
    pub fn ask_greeting_key(&mut self, connection: ConnectionId, peer: ProcessId) -> JobKey {
        self.inquire(
            |ask| ToNode::GreetingKey { ask, connection, job: peer.job },
            |answer| {
                if let FromNode::GreetingKey { ask, key } = answer { Some((*ask, discreetly(|| key.clone()))) } else { None }
            },
            || format!("the key for {peer}"),
        )
    }

    /// After a restore: keys of connections with processes of other jobs, which are in no image.
    pub(crate) fn ask_foreign_keys(&mut self) {
        for (connection, _) in std::mem::take(&mut self.foreign) {
            let table = self.observer.table();
            let peer = table.find_end(connection, true).and_then(|slot| table.get(slot)).map(|connection| connection.peer);
            if let Some(peer) = peer {
                let key = self.ask_greeting_key(connection, peer);
                self.foreign.push((connection, key));
            }
        }
    }

    /// `connection` leads to a process of another job, where this key is known.
    pub fn set_greeting_key(&mut self, connection: ConnectionId, key: JobKey) {
        self.foreign.retain(|(known, _)| *known != connection);
        self.foreign.push((connection, key));
    }

    /// Reads what the node has said.
    pub fn hear_node(&mut self) {
        if self.replayer.is_some() {
            return;
        }
        loop {
            match self.node.poll() {
                Ok(Some(message)) => self.handle_node(message),
                Ok(None) => return,
                Err(error) => fail(&format!("the protector of its own node is gone: {error}")),
            }
        }
    }

    fn handle_node(&mut self, message: FromNode) {
        match message {
            FromNode::Protector(address) => self.drive_session(|session, cx| {
                session.handle_named(cx, address);
                Ok(())
            }),
            FromNode::Stable { stream, offset } => {
                self.drive_session(|session, cx| session.handle_stable(cx, stream, offset));
            }
            FromNode::Forget { connection, for_good } => {
                sure(self.observer.handle_protector(&FromProtector::Forget { connection, for_good }));
                self.close_forgotten();
            }
            FromNode::Checkpoint { request } => self.drive_images(|images, _| images.handle_request(request)),
            // A thread that asks does nothing else until it is answered, with the layer locked. If the answer comes here, another thread was in it at the same time.
            FromNode::Peer { .. }
            | FromNode::Announced { .. }
            | FromNode::Claimed { .. }
            | FromNode::GreetingKey { .. }
            | FromNode::Caller { .. } => fail("its node answers what no call has asked"),
            FromNode::Joined { .. } | FromNode::Refused(_) | FromNode::Restart(_) => {}
            message @ (FromNode::Place { .. } | FromNode::Final { .. } | FromNode::Restarted { .. }) => {
                self.handle_link_message(&message)
            }
        }
    }

    /// Asks the node a question, which is told its number, and waits for the message in which `take` finds that number; `what` it is to say.
    pub fn inquire<T>(
        &mut self,
        question: impl FnOnce(u64) -> ToNode,
        take: impl Fn(&FromNode) -> Option<(u64, T)>,
        what: impl FnOnce() -> String,
    ) -> T {
        let number = self.node.number();
        let answer = |message: &FromNode| take(message).filter(|(of, _)| *of == number).map(|(_, answer)| answer);
        let message = self.node.ask(&question(number), |message| answer(message).is_some());
        match message.and_then(|message| answer(&message).ok_or(Errno::PROTO)) {
            Ok(answer) => answer,
            Err(error) => fail(&format!("its node does not say {}: {error}", what())),
        }
    }

    /// G1: waits until nothing that precedes is unstable.
    pub fn pass_gate(&mut self) {
        if self.observer.gate().is_some() {
            self.wait_at_gate();
        }
    }

    /// The same for what leaves and is never asked for again: output, and what the launcher is told.
    pub fn pass_gate_of_output(&mut self) {
        let thread = THREAD.get();
        // A thread without a number has not found nothing yet.
        if thread == u32::MAX {
            return self.pass_gate();
        }
        while sure(self.observer.gate_of_output(thread)).is_some() {
            self.wait_at_gate();
        }
    }

    fn wait_at_gate(&mut self) {
        let since = sys::now();
        counters::add(Counter::GateWaits, 1);
        while self.observer.gate().is_some() {
            self.ship();
            if self.await_protector() {
                self.hear_node();
            }
            // The session moves to the next protector here: the present one may hang, and a protector that hangs breaks no connection.
            self.settle_down();
            self.hear_protector(false);
        }
        counters::add(Counter::GateNs, sys::now() - since);
    }

    /// Waits for a word of the protector, a moment at most. True: the node has something to say, perhaps that there is another protector: a protector that is
    /// cut off says nothing, and breaks no connection.
    fn await_protector(&mut self) -> bool {
        const MOMENT: u64 = 100_000_000;
        let journal = self.journal.awaited();
        let mut fds =
            [PollFd::from_borrowed_fd(self.journal.fd(), journal), PollFd::from_borrowed_fd(self.node.fd(), PollFlags::IN)];
        _ = sys::poll(&mut fds, Some(sys::span(MOMENT)));
        let told = !fds[1].revents().is_empty();
        if self.journal.has_unsent()
            && let Err(error) = self.journal.flush()
        {
            self.reconnect(error);
        }
        told
    }

    /// Waits until there is room for what is received.
    pub fn wait_for_payload(&mut self) {
        while self.observer.payload().room() == 0 {
            self.ship_payload();
            let events = if self.bulk.has_unsent() { PollFlags::OUT } else { PollFlags::empty() };
            let mut fds =
                [PollFd::from_borrowed_fd(self.bulk.fd(), events), PollFd::from_borrowed_fd(self.journal.fd(), PollFlags::IN)];
            _ = sys::poll(&mut fds, Some(sys::span(100_000_000)));
            self.hear_protector(false);
            self.hear_node();
            self.settle_down();
        }
    }

    /// Whether this process catches up with a log: sockets that its program makes meanwhile have no peer yet.
    pub fn is_replayed(&self) -> bool {
        self.replayer.is_some() || self.observer.is_replaying()
    }

    /// The layer's own sockets are those of an earlier incarnation: they are closed, and what waited for them is forgotten.
    pub(crate) fn forget_sockets(&mut self) {
        self.lingering.drain(..).for_each(|lingering| sys::close_own(lingering.fd));
        self.unsent.clear();
        self.idle = 0;
        UNSENT.store(false, Ordering::Relaxed);
    }

    /// Something was received: payload waits to be shipped.
    pub fn note_received(&mut self) {
        self.idle = 0;
        self.tend_links_in_passing();
        if self.observer.payload().is_due() {
            self.ship_payload();
            self.hear_protector(false);
        }
    }

    /// A call found nothing. Many in a row mean that the process waits for a peer: time to look after everything.
    pub fn note_nothing(&mut self) {
        if let Some(replayer) = &mut self.replayer {
            return replayer.handle_nothing(&self.observer);
        }
        counters::add(Counter::Empty, 1);
        self.idle += 1;
        // While a link is down the process looks after everything sooner: what it looks for may come only if it does.
        if self.idle >= IDLE || self.links.is_any_down() && self.idle >= IDLE_DOWN || self.is_time_to_tend() {
            self.idle = 0;
            self.check_way();
            self.tend();
        }
    }

    /// Looks after everything that waits.
    pub fn tend(&mut self) {
        self.ship();
        if !self.observer.is_payload_shipped() || self.bulk.has_unsent() {
            self.ship_payload();
        }
        self.hear_protector(false);
        self.hear_node();
        self.tend_links();
        self.forget_closed();
        self.drain();
        if self.outputs.is_owing() {
            self.outputs.write_again();
        }
        if self.session.has_to_settle() {
            self.settle_down();
        }
        counters::set(Counter::Outbox, self.observer.outbox().used() as u64);
    }

    /// The socket of the journal: its address is the one that peers can reach.
    pub(crate) fn journal_fd(&self) -> BorrowedFd<'_> {
        self.journal.fd()
    }

    /// The outbox fills: asks before it is full.
    pub fn note_sent(&mut self) {
        self.idle = 0;
        self.tend_links_in_passing();
        if self.observer.outbox().is_pressed() {
            self.hear_node();
            self.ask_stable();
        }
    }

    /// What a waiting call listens to besides its own: the protector, the node, sockets that bytes wait for. Nothing must be left to do
    /// when it waits: [`Layer::tend`] comes before.
    pub fn awaited(&self) -> impl Iterator<Item = (i32, PollFlags)> {
        let bulk = self.bulk.has_unsent().then(|| (self.bulk.fd().as_raw_fd(), PollFlags::OUT));
        let unsent = self.unsent.iter().filter_map(|slot| Some((self.fd_of(*slot)?, PollFlags::OUT)));
        let own = [(self.journal.fd().as_raw_fd(), self.journal.awaited()), (self.node.fd().as_raw_fd(), PollFlags::IN)];
        own.into_iter().chain(bulk).chain(self.awaited_of_links()).chain(unsent).take(AWAITED)
    }

    fn fd_of(&self, slot: Slot) -> Option<i32> {
        let lingering = || self.lingering.iter().find(|lingering| lingering.slot == slot).map(|l| l.fd.as_raw_fd());
        self.observer.table().get(slot)?.fd().map(|fd| fd as i32).or_else(lingering)
    }

    /// Lets bytes leave on the link of `slot`; what the socket does not take waits.
    pub fn transmit(&mut self, slot: Slot) {
        if let Some(replayer) = &mut self.replayer {
            return sure(replayer.transmit(&mut self.observer, slot));
        }
        let Some(fd) = self.fd_of(slot) else { return };
        match self.try_transmit(slot, sys::borrow(fd)) {
            Ok(true) => self.unsent.retain(|waiting| *waiting != slot),
            Ok(false) => {
                if !self.unsent.contains(&slot) {
                    self.unsent.push(slot);
                }
            }
            Err(error) => self.link_ended(slot, reset(error)),
        }
        UNSENT.store(!self.unsent.is_empty(), Ordering::Relaxed);
    }

    fn try_transmit(&mut self, slot: Slot, fd: BorrowedFd<'_>) -> Result<bool, Errno> {
        loop {
            let sent = match self.observer.poll_transmit(slot) {
                None => return Ok(true),
                Some(Transmit::End) => {
                    rustix::net::shutdown(fd, rustix::net::Shutdown::Write)?;
                    1
                }
                Some(Transmit::Bytes(offset)) => {
                    let mut parts = [&[][..]; sys::PARTS];
                    let pieces = self.observer.outgoing(slot, offset);
                    let count = parts.iter_mut().zip(pieces).map(|(part, piece)| *part = piece).count();
                    sys::send_parts(fd, &parts[..count])? as u64
                }
            };
            if sent == 0 {
                return Ok(false);
            }
            self.observer.handle_transmitted(slot, sent);
        }
    }

    /// The link of `slot` is gone for good, and its peer wants nothing more.
    pub fn handle_broken(&mut self, slot: Slot, error: Errno) {
        self.observer.handle_broken(slot);
        self.unsent.retain(|waiting| *waiting != slot);
        if self.broken.iter().all(|(known, _)| *known != slot) {
            self.broken.push((slot, error));
        }
    }

    /// Why nothing more can be sent on `slot`.
    pub fn broken(&self, slot: Slot) -> Option<Errno> {
        self.broken.iter().find(|(known, _)| *known == slot).map(|(_, error)| *error)
    }

    /// From now on this is why.
    pub fn set_broken(&mut self, slot: Slot, error: Errno) {
        self.broken.iter_mut().filter(|(known, _)| *known == slot).for_each(|(_, known)| *known = error);
    }

    /// The program was told that nothing more can be sent on `slot`.
    pub fn note_refused(&mut self, slot: Slot) {
        match self.broken(slot) {
            Some(_) => self.set_broken(slot, Errno::PIPE),
            None => self.broken.push((slot, Errno::PIPE)),
        }
    }

    /// The error that the program has not been told yet, as SO_ERROR tells it; 0: none.
    pub fn take_broken(&mut self, slot: Slot) -> i32 {
        let error = self.broken(slot).filter(|error| *error != Errno::PIPE).map_or(0, Errno::raw_os_error);
        self.set_broken(slot, Errno::PIPE);
        error
    }

    /// The descriptor by which the observer knows the connection on `fd`.
    pub fn primary(&self, fd: i32) -> i32 {
        if fds::kind(fd) != Kind::Alias {
            return fd;
        }
        self.aliases.iter().find(|(alias, _)| *alias == fd).map_or(fd, |(_, primary)| *primary)
    }

    /// A connection with a program that is not protected: what is said there is not logged (G7: it is told).
    pub fn note_unprotected(&mut self, address: &SocketAddr) {
        counters::add(Counter::Unprotected, 1);
        if counters::get(Counter::Unprotected) == 1 {
            self.note(&format!("a connection with {address}, where no process is protected: it will not survive a death"));
        }
    }

    /// What a call that replays, or one that must not go on yet, waits for.
    pub fn wait_for(&mut self, what: Wait) {
        if let Some(replayer) = &mut self.replayer {
            return replayer.wait_for(&mut self.observer, what);
        }
        match what {
            Wait::Stable(_) => self.pass_gate(),
            Wait::Payload => self.wait_for_payload(),
            other => self.wait_to_catch_up(other),
        }
    }

    /// Bytes of the protector's log, into the program's buffers.
    pub fn fetch_payload(&mut self, stream: StreamId, offset: u64, room: &mut [IoSliceMut<'_>]) -> usize {
        if let Some(replayer) = &mut self.replayer {
            return replayer.fetch(stream, offset, room);
        }
        self.fetch_again(stream, offset, room)
    }

    /// Lets everything leave that waits, as far as sockets take it.
    pub fn drain(&mut self) {
        for at in (0..self.unsent.len()).rev() {
            let Some(slot) = self.unsent.get(at).copied() else { continue };
            self.transmit(slot);
            self.end_lingering(slot);
        }
    }

    /// Whether bytes wait for the socket of `slot`.
    pub fn is_unsent(&self, slot: Slot) -> bool {
        self.unsent.contains(&slot)
    }

    /// The program has closed `fd` before all of its bytes have left: the socket stays open, out of its way, until they have.
    pub fn linger(&mut self, slot: Slot, fd: i32) {
        // Its last close is the layer's, which neither waits nor throws away.
        _ = rustix::net::sockopt::set_socket_linger(sys::borrow(fd), None);
        match rustix::io::fcntl_dupfd_cloexec(sys::borrow(fd), 1_000)
            .or_else(|_| rustix::io::fcntl_dupfd_cloexec(sys::borrow(fd), 3))
        {
            Ok(copy) => {
                _ = fds::set(copy.as_raw_fd(), Kind::Own, false);
                self.lingering.push(Lingering { slot, fd: copy });
            }
            Err(error) => self.handle_broken(slot, error),
        }
    }

    /// One of the layer's own descriptors gets another number. The old one stays open, for `dup2` to replace: no other call may get it in between.
    fn move_own(&mut self, number: i32) -> Result<(), Errno> {
        let lingering = self.lingering.iter_mut().map(|lingering| &mut lingering.fd);
        let own = [self.journal.fd_mut(), self.bulk.fd_mut(), self.node.fd_mut()];
        let fd =
            own.into_iter().chain(lingering).chain(self.sockets.own()).find(|fd| fd.as_raw_fd() == number).ok_or(Errno::BADF)?;
        let dup = |from: i32| rustix::io::fcntl_dupfd_cloexec(&*fd, from);
        let moved = dup(number + 1).or_else(|_| dup(3))?;
        _ = fds::set(moved.as_raw_fd(), Kind::Own, true);
        fds::clear(number);
        _ = sys::give(std::mem::replace(fd, moved));
        Ok(())
    }

    pub(crate) fn end_lingering(&mut self, slot: Slot) {
        if self.unsent.contains(&slot) {
            return;
        }
        if let Some(at) = self.lingering.iter().position(|lingering| lingering.slot == slot) {
            let Lingering { fd, .. } = self.lingering.swap_remove(at);
            sys::close_own(fd);
        }
    }

    /// A connection is closed for the program: what was remembered of it for its calls goes.
    pub fn handle_closed(&mut self, slot: Slot) {
        self.broken.retain(|(known, _)| *known != slot);
        counters::add(Counter::Connections, 1u64.wrapping_neg());
    }

    /// Says something in the node's log.
    pub fn note(&mut self, text: &str) {
        if self.replayer.is_some() {
            return;
        }
        let text = text.chars().take(TEXT / 4).collect();
        _ = self.node.send(&ToNode::Note(text));
    }

    /// The process ends. Everything leaves that is to leave, and the process stays until the protectors of its receivers have all of it, or the receivers want no
    /// more: a receiver that is restarted later finds it there. It also stays until its own protector has what it has received, for it may still be brought back.
    /// Links are made again meanwhile, and signals end it as if it were gone already. At last the node gets the counters.
    pub fn leave(&mut self) {
        if let Some(replayer) = &mut self.replayer {
            // The last outcome may have been a readiness set, after which nothing was received or sent.
            replayer.look(&self.observer);
            match self.observer.left_of_log() {
                0 => replayer.end("the program has ended"),
                left => replayer.end(&format!("the program has ended, {left} bytes before the end of its journal")),
            }
        }
        self.write_owed_output();
        self.pass_gate_of_output();
        signals::end_at_once();
        self.finish_all();
        loop {
            sure(self.observer.handle_leaving());
            self.tend();
            let may_end = self.drive_session(|session, cx| Ok(session.may_end(cx)));
            if may_end && self.unsent.is_empty() && !self.bulk.has_unsent() {
                break;
            }
            let awaited: Vec<_> = self.awaited().collect();
            let mut fds: Vec<_> =
                awaited.iter().map(|(fd, events)| PollFd::from_borrowed_fd(sys::borrow(*fd), *events)).collect();
            let limit = self.due().map_or(1_000_000_000, |due| due.saturating_sub(sys::now()));
            _ = sys::poll(&mut fds, Some(sys::span(limit)));
        }
        _ = self.node.send(&ToNode::Leaving(Box::new(counters::all())));
        self.node.part();
    }
}
