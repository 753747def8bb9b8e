//! Unix sockets in the node's directory, on which programs of this machine talk to their protector in frames of bincode: the
//! `radic` command on one ([`super::commands`]), observers on another ([`super::observers`]).

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::rc::Rc;
use std::time::Duration;

use radic_wire::codec;
use radic_wire::frame::{self, FrameReader};
use radic_wire::ids::ProcessId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{ReadHalf, WriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::spawn_local;

use super::launcher::Gate;
use super::refusals::Refusals;
use super::wire::WireError;
use crate::folder::Folder;
use crate::node::Input;

/// Time that a client has for its first message.
const FIRST: Duration = Duration::from_secs(5);

/// What is served on a socket, and to which clients.
pub trait Service: 'static {
    /// What clients say.
    type Request: DeserializeOwned;
    /// What they are told.
    type Reply: Serialize + 'static;
    /// The socket's name in the node's directory.
    const SOCKET: &'static str;
    /// A client in a message: "a command".
    const CLIENT: &'static str;
    /// Longest frame, in bytes.
    const FRAME: usize;
    /// Replies that may wait for a client before it is taken for dead.
    const QUEUE: usize;
    /// Clients that may be connected at once.
    const CLIENTS: usize;

    /// Client number `client`, process `pid`, has said this.
    fn said(client: u64, pid: u32, request: Self::Request) -> Input;
    /// Client number `client` is gone.
    fn gone(client: u64) -> Input;
    /// For a connection that speaks something else after its first message: the process that this message names.
    fn hands_over(_first: &Self::Request) -> Option<ProcessId> {
        None
    }
    /// Interrupts a client's process, so that it looks at what it was told.
    fn nudge(_pid: u32) {}
}

/// What waits for a client.
enum Queued<S: Service> {
    /// It is told this.
    Reply(S::Reply),
    /// Its process is interrupted.
    Nudge,
}

/// A client has connected: its number, and where its replies go.
pub struct Connected<S: Service>(u64, mpsc::Sender<Queued<S>>);

/// The connected clients of a service.
pub struct Clients<S: Service> {
    /// The channel to the client. None: nothing more is to be said, but what was said may still be on its way.
    queues: HashMap<u64, Option<mpsc::Sender<Queued<S>>>>,
}

impl<S: Service> Default for Clients<S> {
    fn default() -> Self {
        Clients { queues: HashMap::new() }
    }
}

impl<S: Service> Clients<S> {
    /// A client has connected.
    pub fn add(&mut self, Connected(client, queue): Connected<S>) {
        self.queues.insert(client, Some(queue));
    }

    /// Tells a client something. One that does not read has its connection closed: its reader reports that it is gone.
    pub fn send(&mut self, client: u64, reply: S::Reply) {
        self.enqueue(client, Queued::Reply(reply));
    }

    /// Interrupts a client's process, when all that the client was told is on the way: before that it would find nothing, and nothing would interrupt it again.
    pub fn nudge(&mut self, client: u64) {
        self.enqueue(client, Queued::Nudge);
    }

    fn enqueue(&mut self, client: u64, queued: Queued<S>) {
        let Some(Some(queue)) = self.queues.get(&client) else { return };
        if let Err(TrySendError::Full(_)) = queue.try_send(queued) {
            tracing::warn!(client, "{} does not read what it is told: disconnected", S::CLIENT);
            self.close(client);
        }
    }

    /// Closes a connection after what was said.
    pub fn close(&mut self, client: u64) {
        self.queues.entry(client).and_modify(|queue| *queue = None);
    }

    /// Closes all connections after what was said.
    pub fn close_all(&mut self) {
        self.queues.values_mut().for_each(|queue| *queue = None);
    }

    /// A connection is closed.
    pub fn handle_gone(&mut self, client: u64) {
        self.queues.remove(&client);
    }

    /// Whether no client is connected.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
}

/// A service's socket.
pub struct Listener<S>(UnixListener, std::marker::PhantomData<S>);

/// Binds the socket in a folder of this user. The path may be longer than a socket address holds, so the name is given relative
/// to the open folder.
pub fn bind<S: Service>(folder: &Folder) -> io::Result<Listener<S>> {
    folder.remove(S::SOCKET).map_err(io::Error::other)?;
    let path = format!("/proc/self/fd/{}/{}", folder.as_fd().as_raw_fd(), S::SOCKET);
    Ok(Listener(UnixListener::bind(path)?, std::marker::PhantomData))
}

/// Binds an abstract socket of this name, for processes that know no path of this machine.
pub fn bind_abstract<S: Service>(name: &str) -> io::Result<Listener<S>> {
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    let listener = std::os::unix::net::UnixListener::bind_addr(&address)?;
    listener.set_nonblocking(true)?;
    Ok(Listener(UnixListener::from_std(listener)?, std::marker::PhantomData))
}

/// A connection that speaks something else after its first message: its peer, the process that it names, and the bytes that have
/// come already.
pub struct Handover {
    pub pid: u32,
    pub process: ProcessId,
    pub socket: UnixStream,
    pub rest: Vec<u8>,
}

/// What all sockets of a service have in common.
pub struct Reception<S: Service> {
    inputs: mpsc::Sender<Input>,
    connected: mpsc::Sender<Connected<S>>,
    handovers: mpsc::Sender<Handover>,
    refusals: Rc<Refusals>,
    /// Where clients wait whose processes may have been started so recently that the daemon does not know them yet.
    gate: Option<Gate>,
    /// The number of the last client.
    last: Cell<u64>,
    /// Each client has a clone.
    counter: Rc<()>,
}

impl<S: Service> Reception<S> {
    /// Clients go to `connected`, what they say to `inputs`, those that speak something else to `handovers`. With a `gate`
    /// nothing that a client says is read before the client has passed it.
    pub fn new(
        inputs: mpsc::Sender<Input>,
        connected: mpsc::Sender<Connected<S>>,
        handovers: mpsc::Sender<Handover>,
        refusals: Rc<Refusals>,
        gate: Option<Gate>,
    ) -> Rc<Self> {
        Rc::new(Reception { inputs, connected, handovers, refusals, gate, last: Cell::new(0), counter: Rc::new(()) })
    }

    /// The process id of a client that may come in, or why it may not.
    fn admit(&self, socket: &UnixStream) -> Result<u32, String> {
        let (me, what) = (nix::unistd::geteuid().as_raw(), S::CLIENT);
        let cred = socket.peer_cred().map_err(|error| format!("refused {what} whose user the kernel does not tell: {error}"))?;
        if cred.uid() != me && cred.uid() != 0 {
            return Err(format!("refused {what} of uid {}: this protector belongs to uid {me}", cred.uid()));
        }
        if Rc::strong_count(&self.counter) > S::CLIENTS {
            return Err(format!("refused {what}: {} are connected", S::CLIENTS));
        }
        Ok(cred.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0))
    }
}

/// Accepts clients of this user and of root.
pub async fn accept<S: Service>(listener: Listener<S>, reception: Rc<Reception<S>>) {
    loop {
        let (socket, _) = super::accept(S::CLIENT, || listener.0.accept()).await;
        let pid = match reception.admit(&socket) {
            Ok(pid) => pid,
            Err(text) => {
                reception.refusals.note(text).await;
                continue;
            }
        };
        let (client, alive) = (reception.last.get() + 1, reception.counter.clone());
        reception.last.set(client);
        let (queue, replies) = mpsc::channel(S::QUEUE);
        if reception.connected.send(Connected(client, queue)).await.is_err() {
            return;
        }
        let reception = reception.clone();
        spawn_local(async move {
            serve::<S>(client, pid, socket, replies, &reception).await;
            _ = reception.inputs.send(S::gone(client)).await;
            drop(alive);
        });
    }
}

async fn serve<S: Service>(
    client: u64,
    pid: u32,
    mut socket: UnixStream,
    replies: mpsc::Receiver<Queued<S>>,
    reception: &Reception<S>,
) {
    if let Some(gate) = reception.gate.clone() {
        gate.pass().await;
    }
    let (reader, writer) = socket.split();
    let result = tokio::select! {
        result = write::<S>(pid, writer, replies) => result.map(|()| None),
        result = read::<S>(client, pid, reader, &reception.inputs) => result.map(Some),
    };
    match result {
        Ok(Some((process, rest))) => _ = reception.handovers.send(Handover { pid, process, socket, rest }).await,
        Ok(None) | Err(WireError::Closed | WireError::Io(_)) => {}
        Err(error) => reception.refusals.note(format!("{} was disconnected: {error}", S::CLIENT)).await,
    }
}

async fn write<S: Service>(pid: u32, mut writer: WriteHalf<'_>, mut replies: mpsc::Receiver<Queued<S>>) -> Result<(), WireError> {
    let mut bytes = Vec::new();
    while let Some(queued) = replies.recv().await {
        let Queued::Reply(reply) = queued else {
            S::nudge(pid);
            continue;
        };
        bytes.clear();
        let body = codec::encode(&reply, S::FRAME)?;
        frame::encode_into(&mut bytes, &body, S::FRAME);
        writer.write_all(&bytes).await?;
    }
    Ok(writer.shutdown().await?)
}

/// Reads until the connection ends, or speaks something else. Then returns for which process, and the bytes that have come
/// already.
async fn read<S: Service>(
    client: u64,
    pid: u32,
    mut reader: ReadHalf<'_>,
    inputs: &mpsc::Sender<Input>,
) -> Result<(ProcessId, Vec<u8>), WireError> {
    let mut frames = FrameReader::new(S::FRAME);
    let mut buffer = vec![0; 16 << 10];
    let deadline = tokio::time::Instant::now() + FIRST;
    let mut silent = true;
    loop {
        while let Some(body) = frames.next_frame().map_err(|e| WireError::Protocol(e.to_string()))? {
            let request = codec::decode(body, S::FRAME)?;
            let first = std::mem::replace(&mut silent, false);
            if let Some(process) = S::hands_over(&request).filter(|_| first) {
                return Ok((process, frames.into_rest()));
            }
            _ = inputs.send(S::said(client, pid, request)).await;
        }
        let read = reader.read(&mut buffer);
        let count = if silent {
            tokio::time::timeout_at(deadline, read).await.map_err(|_| WireError::Slow(FIRST))??
        } else {
            read.await?
        };
        if count == 0 {
            return Err(WireError::Closed);
        }
        frames.push(&buffer[..count]);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::Read;
    use std::os::unix::net::UnixStream as Socket;

    use super::*;

    thread_local! {
        /// The client's end, and what it had received when it was nudged, in bytes.
        static CLIENT: RefCell<Option<(Socket, Vec<usize>)>> = const { RefCell::new(None) };
    }

    struct Nudging;

    impl Service for Nudging {
        type Request = u64;
        type Reply = u64;
        const SOCKET: &'static str = "nudging";
        const CLIENT: &'static str = "a client";
        const FRAME: usize = 64;
        const QUEUE: usize = 4;
        const CLIENTS: usize = 1;

        fn said(_: u64, _: u32, _: u64) -> Input {
            unreachable!("it says nothing")
        }

        fn gone(_: u64) -> Input {
            unreachable!("it stays")
        }

        fn nudge(_: u32) {
            CLIENT.with_borrow_mut(|client| {
                let (socket, received) = client.as_mut().expect("a client");
                received.push(socket.read(&mut [0; 256]).unwrap_or(0));
            });
        }
    }

    /// A process that is nudged before it can read what it was told looks, finds nothing, and computes on.
    #[tokio::test]
    async fn a_client_is_nudged_when_it_can_read_what_it_was_told() {
        let (mut near, far) = UnixStream::pair().expect("a pair of sockets");
        let far = far.into_std().expect("a socket");
        CLIENT.set(Some((far, Vec::new())));
        let (queue, replies) = mpsc::channel(Nudging::QUEUE);
        let mut clients = Clients::<Nudging>::default();
        clients.add(Connected(1, queue));
        clients.send(1, 7);
        clients.nudge(1);
        clients.nudge(1);
        clients.close(1);
        let (_, writer) = near.split();
        write::<Nudging>(1, writer, replies).await.expect("written");
        let (_, received) = CLIENT.take().expect("a client");
        assert_eq!(received, [5, 0], "a frame of four bytes of length and one of content, once");
    }
}
