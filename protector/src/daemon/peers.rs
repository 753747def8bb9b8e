//! Connections with other protectors: the links and heartbeats that this node opens, and whatever the others open to it.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use radic_wire::PROTOCOL_VERSION;
use radic_wire::event::EventName;
use radic_wire::ids::NodeId;
use radic_wire::key::ClusterKey;
use radic_wire::limits;
use radic_wire::membership::{Member, MembershipMessage};
use radic_wire::peer::{Heartbeat, Hello, LinkFrame, PeerMessage, Purpose, Welcome};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, spawn_local};

use super::beats::Beats;
use super::refusals::Refusals;
use super::wire::{Connection, WireError};
use crate::link::{LinkReceiver, LinkSender};
use crate::membership::{Peer, Timing};
use crate::node::Input;

/// Time for a connection and its handshake to a peer that is believed to live.
const HANDSHAKE: Duration = Duration::from_millis(limits::HANDSHAKE_MS);
/// Time after which a probe is tried again that failed although its target may listen.
const PROBE_AGAIN: Duration = Duration::from_millis(20);
/// Time before a broken link is tried again, doubled up to the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// Time out of reach after which a link is given up. The death of a member, or the loss of the majority, is noticed long before.
const PATIENCE: Duration = Duration::from_secs(90);
/// The same for a node that is no member any more, and may hear of that as a last message.
const LAST_WORD: Duration = Duration::from_secs(2);
/// Acknowledge at the latest after so many messages.
const ACK_EVERY: u64 = 64;

/// The stream of messages to one protector.
struct Link {
    peer: NodeId,
    address: SocketAddr,
    sender: RefCell<LinkSender>,
    /// Something is queued.
    wake: Notify,
    /// Nothing is queued any more.
    empty: Notify,
    /// It is no member any more: what is queued are its last words, and then the link ends.
    departed: Cell<bool>,
}

impl Link {
    /// How long the peer may be out of reach before what waits for it is dropped.
    fn patience(&self) -> Duration {
        if self.departed.get() { LAST_WORD } else { PATIENCE }
    }

    fn is_over(&self) -> bool {
        self.departed.get() && self.sender.borrow().is_empty()
    }
}

/// What all connections share.
struct Shared {
    me: Member,
    key: ClusterKey,
    inputs: mpsc::Sender<Input>,
    /// Signs of life: they are not to wait for what else has come.
    urgent: mpsc::Sender<Input>,
    /// What was received from each protector, and where it said it listens.
    received: RefCell<HashMap<NodeId, (LinkReceiver, SocketAddr)>>,
    /// Former members to which a message is under way.
    telling: RefCell<HashSet<NodeId>>,
    connections: Cell<usize>,
    refusals: Rc<Refusals>,
}

/// All connections with other protectors.
pub struct Peers {
    shared: Rc<Shared>,
    links: HashMap<NodeId, (Rc<Link>, AbortHandle)>,
    beats: Beats,
    departed: VecDeque<NodeId>,
}

impl Peers {
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
        let (received, telling, connections) = (RefCell::default(), RefCell::default(), Cell::new(0));
        let shared = Rc::new(Shared { me, key, inputs, urgent, received, telling, connections, refusals });
        spawn_local(accept(shared.clone(), listener));
        Ok(Peers { shared, links: HashMap::new(), beats, departed: VecDeque::new() })
    }

    /// Sends a message, reliably and in order.
    pub fn send(&mut self, to: &Peer, message: PeerMessage) {
        let known = || self.shared.received.borrow().get(&to.id).map(|(_, address)| *address);
        let Some(address) = to.address.or_else(known) else {
            return tracing::debug!(to = %to.id, "dropped a message to a node without a known address");
        };
        if self.departed.contains(&to.id) {
            return self.send_to_departed(&to.id, address, message);
        }
        self.links.retain(|_, (_, task)| !task.is_finished());
        let departed = Cell::new(false);
        let (link, _) = self.links.entry(to.id.clone()).or_insert_with(|| {
            let (wake, empty) = (Notify::new(), Notify::new());
            let link = Rc::new(Link { peer: to.id.clone(), address, sender: RefCell::default(), wake, empty, departed });
            let task = spawn_local(run_link(self.shared.clone(), link.clone()));
            (link, task.abort_handle())
        });
        let pushed = link.sender.borrow_mut().push(message);
        link.wake.notify_one();
        if let Err(error) = pushed {
            let text = format!("the link to {} is given up: {error}", to.id);
            if let Some((_, task)) = self.links.remove(&to.id) {
                task.abort();
            }
            let (inputs, node) = (self.shared.inputs.clone(), to.id.clone());
            spawn_local(async move {
                _ = inputs.send(Input::Note(EventName::Limit, text)).await;
                _ = inputs.send(Input::LinkBroken(node)).await;
            });
        }
    }

    /// Tells a node that is no member any more, and does not know it, what the members have decided. Not over the link: that has
    /// ended with its last messages, and another one would begin with numbers that the peer has seen. What gets lost is asked for
    /// again.
    fn send_to_departed(&self, to: &NodeId, address: SocketAddr, message: PeerMessage) {
        let PeerMessage::Membership(message) = message else { return };
        if !self.shared.telling.borrow_mut().insert(to.clone()) {
            return tracing::debug!(%to, "dropped a message: the last one to this former member is still under way");
        }
        let (shared, to) = (self.shared.clone(), to.clone());
        spawn_local(async move {
            if let Err(error) = send_once(&shared, address, Some(to.clone()), &message).await {
                tracing::debug!(%to, %error, "a former member could not be told");
            }
            shared.telling.borrow_mut().remove(&to);
        });
    }

    /// Sends one message to the protector that listens there.
    pub fn send_to_seed(&self, seed: SocketAddr, message: MembershipMessage) {
        let shared = self.shared.clone();
        spawn_local(async move {
            if let Err(error) = send_once(&shared, seed, None, &message).await {
                tracing::warn!(%seed, %error, "could not ask to join");
            }
        });
    }

    /// Sends a heartbeat to this node's watcher.
    pub fn heartbeat(&self, to: &Peer, view: u64) {
        if let Some(address) = to.address {
            self.beats.send(&to.id, address, view);
        }
    }

    /// Finds out by a fresh connection whether this very member answers. Silence is not told: the membership has its own time for
    /// that, which ends before [`HANDSHAKE`].
    pub fn probe(&self, member: Peer) {
        let Some(address) = member.address else { return };
        let shared = self.shared.clone();
        spawn_local(async move {
            if let Ok(alive) = tokio::time::timeout(HANDSHAKE, probe(&shared, &member.id, address)).await {
                _ = shared.urgent.send(Input::ProbeResult(member.id, alive)).await;
            }
        });
    }

    /// A node is no member any more. What waits for it is still sent, because it may tell the node so.
    pub fn forget(&mut self, node: &NodeId) {
        if let Some((link, _)) = self.links.get(node) {
            link.departed.set(true);
            link.wake.notify_one();
        }
        self.departed.push_back(node.clone());
        // What it still says has the old numbers, so they are remembered as long as its connection lives.
        if self.departed.len() > limits::DEPARTED
            && let Some(oldest) = self.departed.pop_front()
        {
            self.shared.received.borrow_mut().remove(&oldest);
        }
    }

    /// Waits until everything sent to members was taken, or was given up. The caller bounds the time.
    pub async fn drain(&self) {
        for (link, task) in self.links.iter().filter(|(node, _)| !self.departed.contains(node)).map(|(_, link)| link) {
            while !link.sender.borrow().is_empty() && !task.is_finished() {
                link.empty.notified().await;
            }
        }
    }
}

impl Shared {
    fn hello(&self, to: Option<NodeId>, purpose: Purpose) -> Hello {
        Hello { version: PROTOCOL_VERSION, from: self.me.clone(), to, purpose }
    }

    async fn refuse(&self, from: SocketAddr, error: &WireError) {
        self.refusals.note(format!("refused a connection from {from}: {error}")).await;
    }
}

/// Sends one message over a connection of its own: at most once, in no order with others.
async fn send_once(
    shared: &Shared,
    address: SocketAddr,
    to: Option<NodeId>,
    message: &MembershipMessage,
) -> Result<(), WireError> {
    let hello = shared.hello(to, Purpose::Join);
    let sent = async {
        let (mut connection, _) = Connection::connect(address, &shared.key, &hello, HANDSHAKE).await?;
        connection.send(message).await?;
        // The other side closes when it has taken it.
        match connection.receive::<()>().await {
            Err(WireError::Closed) => Ok(()),
            other => other,
        }
    };
    tokio::time::timeout(HANDSHAKE, sent).await.unwrap_or(Err(WireError::Slow(HANDSHAKE)))
}

/// Asks `id` for a sign of life, until there is one or it does not listen there any more.
async fn probe(shared: &Shared, id: &NodeId, address: SocketAddr) -> bool {
    let hello = shared.hello(Some(id.clone()), Purpose::Probe);
    loop {
        let error = match TcpStream::connect(address).await {
            Ok(socket) => {
                _ = shared.urgent.send(Input::ProbeReached(id.clone())).await;
                match Connection::greet(socket, &shared.key, &hello).await {
                    Ok((_, welcome)) => return welcome.id == *id,
                    // Taken and then closed: it has just died, or has too many connections.
                    Err(error @ (WireError::Closed | WireError::Io(_))) => error,
                    Err(_) => return false,
                }
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return false,
            // There is no way there, or this machine lacks the means.
            Err(error) => error.into(),
        };
        tracing::debug!(to = %id, %error, "probe failed");
        tokio::time::sleep(PROBE_AGAIN).await;
    }
}

/// Writes what is queued for one protector, over as many connections as it takes.
async fn run_link(shared: Rc<Shared>, link: Rc<Link>) {
    let mut backoff = BACKOFF.0;
    let mut reached = Instant::now();
    while !link.is_over() {
        if link.sender.borrow().is_empty() {
            link.wake.notified().await;
            reached = Instant::now();
            continue;
        }
        let hello = shared.hello(Some(link.peer.clone()), Purpose::Link);
        let error = match Connection::connect(link.address, &shared.key, &hello, HANDSHAKE).await {
            Ok((connection, welcome)) => {
                let Err(error) = write_link(&link, connection, &welcome).await;
                (backoff, reached) = (BACKOFF.0, Instant::now());
                error
            }
            Err(error) => error,
        };
        tracing::debug!(to = %link.peer, %error, "link broken");
        _ = shared.inputs.send(Input::LinkBroken(link.peer.clone())).await;
        if reached.elapsed() > link.patience() {
            tracing::debug!(to = %link.peer, "link given up");
            return link.empty.notify_one();
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF.1);
    }
}

async fn write_link(link: &Link, mut connection: Connection, welcome: &Welcome) -> Result<std::convert::Infallible, WireError> {
    let broken = |e: crate::link::LinkError| WireError::Protocol(e.to_string());
    link.sender.borrow_mut().handle_connected(welcome.received).map_err(broken)?;
    loop {
        if link.is_over() {
            return Err(WireError::Closed);
        }
        loop {
            // Taken out first: the queue must not be borrowed while the socket is awaited.
            let frame = link.sender.borrow_mut().poll_frame().map(<[u8]>::to_vec);
            let Some(frame) = frame else { break };
            connection.send_encoded(&frame).await?;
        }
        let frame = tokio::select! {
            frame = connection.receive::<LinkFrame>() => frame?,
            () = link.wake.notified() => continue,
        };
        match frame {
            LinkFrame::Ack { received } => {
                link.sender.borrow_mut().handle_ack(received).map_err(broken)?;
                if link.sender.borrow().is_empty() {
                    link.empty.notify_one();
                }
            }
            LinkFrame::Data { .. } => return Err(WireError::Protocol("data on the way back of a link".to_owned())),
        }
    }
}

async fn accept(shared: Rc<Shared>, listener: TcpListener) {
    let mut handshakes: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let (socket, from) = super::accept("connections", || listener.accept()).await;
        if shared.connections.get() >= limits::CONNECTIONS {
            shared.refuse(from, &WireError::Protocol("too many connections".to_owned())).await;
            continue;
        }
        handshakes.retain(|task| !task.is_finished());
        if handshakes.len() >= limits::HANDSHAKES {
            // The oldest one is the likeliest to be a slow-loris. Its end is not logged, and costs nothing more.
            if let Some(oldest) = handshakes.pop_front() {
                oldest.abort();
            }
        }
        handshakes.push_back(spawn_local(greet(shared.clone(), socket, from)).abort_handle());
    }
}

/// The time between accept and the hello; then the connection gets a task of its own, which no flood of handshakes can abort.
async fn greet(shared: Rc<Shared>, socket: TcpStream, from: SocketAddr) {
    let greeting = tokio::time::timeout(HANDSHAKE, Connection::accept(socket, &shared.key)).await;
    match greeting.unwrap_or(Err(WireError::Slow(HANDSHAKE))) {
        Ok((connection, hello)) => _ = spawn_local(serve(shared, connection, hello, from)),
        // The peer closed the connection, as it does when its neighbour in the ring has just changed.
        Err(error @ (WireError::Closed | WireError::Io(_))) => tracing::debug!(%from, %error, "gone before its hello"),
        Err(error) => shared.refuse(from, &error).await,
    }
}

async fn serve(shared: Rc<Shared>, mut connection: Connection, hello: Hello, from: SocketAddr) {
    shared.connections.set(shared.connections.get() + 1);
    let (peer, purpose) = (hello.from.id.clone(), hello.purpose);
    let Err(error) = serve_peer(&shared, &mut connection, hello).await;
    shared.connections.set(shared.connections.get() - 1);
    match (purpose, &error) {
        (Purpose::Probe | Purpose::Join, WireError::Closed) => {}
        (_, WireError::Refused(_) | WireError::Codec(_) | WireError::Channel(_) | WireError::Protocol(_)) => {
            shared.refuse(from, &error).await;
        }
        _ => tracing::debug!(from = %peer, ?purpose, %error, "connection ended"),
    }
    if matches!(purpose, Purpose::Link | Purpose::Heartbeat) {
        _ = shared.inputs.send(Input::LinkBroken(peer)).await;
    }
}

async fn serve_peer(shared: &Shared, connection: &mut Connection, hello: Hello) -> Result<std::convert::Infallible, WireError> {
    let refused = match &hello {
        Hello { version, .. } if *version != PROTOCOL_VERSION => {
            Some(format!("{} speaks version {version}, this protector {PROTOCOL_VERSION}", hello.from.id))
        }
        Hello { to: Some(to), .. } if *to != shared.me.id => Some(format!("meant for {to:?}, this is {:?}", shared.me.id)),
        Hello { from, .. } if from.id == shared.me.id => Some("it says that it is me".to_owned()),
        _ => None,
    };
    let id = hello.from.id.clone();
    let received = shared.received.borrow().get(&id).map_or(0, |(receiver, _)| receiver.received());
    connection.send(&Welcome { id: shared.me.id.clone(), received, refused: refused.clone() }).await?;
    if let Some(reason) = refused {
        return Err(WireError::Refused(reason));
    }
    match hello.purpose {
        Purpose::Link => read_link(shared, connection, &id, hello.from.address).await,
        Purpose::Heartbeat => loop {
            let Heartbeat { view } = connection.receive().await?;
            _ = shared.urgent.send(Input::Heartbeat(id.clone(), view)).await;
        },
        Purpose::Join => {
            let message: MembershipMessage = connection.receive().await?;
            shared.received.borrow_mut().entry(id.clone()).or_insert((LinkReceiver::default(), hello.from.address));
            _ = shared.inputs.send(Input::Message(id, PeerMessage::Membership(message))).await;
            Err(WireError::Closed)
        }
        // The welcome was the answer.
        Purpose::Probe => Err(WireError::Closed),
    }
}

async fn read_link(
    shared: &Shared,
    connection: &mut Connection,
    from: &NodeId,
    address: SocketAddr,
) -> Result<std::convert::Infallible, WireError> {
    let mut unacknowledged = 0;
    loop {
        let frame = match connection.poll_message()? {
            Some(frame) => frame,
            None => {
                // Nothing more has come: a good moment to acknowledge.
                if std::mem::take(&mut unacknowledged) > 0 {
                    acknowledge(shared, connection, from).await?;
                }
                connection.receive().await?
            }
        };
        let LinkFrame::Data { seq, message } = frame else {
            return Err(WireError::Protocol("an acknowledgement on the way forth of a link".to_owned()));
        };
        let new = {
            let mut received = shared.received.borrow_mut();
            let (receiver, _) = received.entry(from.clone()).or_insert((LinkReceiver::default(), address));
            receiver.handle_seq(seq).map_err(|e| WireError::Protocol(e.to_string()))?
        };
        if new {
            _ = shared.inputs.send(Input::Message(from.clone(), message)).await;
        }
        unacknowledged += 1;
        if unacknowledged >= ACK_EVERY {
            unacknowledged = 0;
            acknowledge(shared, connection, from).await?;
        }
    }
}

async fn acknowledge(shared: &Shared, connection: &mut Connection, from: &NodeId) -> Result<(), WireError> {
    let received = shared.received.borrow().get(from).map_or(0, |(receiver, _)| receiver.received());
    connection.send(&LinkFrame::Ack { received }).await
}
