//! Unix sockets in the node's directory, on which programs of this machine talk to their protector in frames of bincode: the `radic`
//! command on one ([`super::commands`]), observers on another ([`super::observers`]).

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use radic_wire::codec;
use radic_wire::frame::{self, FrameReader};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::spawn_local;

use super::refusals::Refusals;
use super::wire::WireError;
use crate::node::Input;

/// Time that a client has for its first message.
const FIRST: Duration = Duration::from_secs(5);

/// What is served on a socket, and to whom.
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
}

/// A client has connected: its number, and where its replies go.
pub struct Connected<S: Service>(u64, mpsc::Sender<S::Reply>);

/// The connected clients of a service.
pub struct Clients<S: Service> {
    /// None: nothing more is to be said, and what was may still be on its way.
    queues: HashMap<u64, Option<mpsc::Sender<S::Reply>>>,
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
        let Some(Some(queue)) = self.queues.get(&client) else { return };
        if let Err(TrySendError::Full(_)) = queue.try_send(reply) {
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

    /// Whether nobody is connected.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
}

/// A service's socket.
pub struct Listener<S>(UnixListener, std::marker::PhantomData<S>);

/// Binds the socket in `dir`, which only its owner may enter. The path may be longer than a socket address holds, so the name is
/// given relative to the open directory.
pub fn bind<S: Service>(dir: &Path) -> io::Result<Listener<S>> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let open = fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(dir)?;
    let path = format!("/proc/self/fd/{}/{}", open.as_raw_fd(), S::SOCKET);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    Ok(Listener(UnixListener::bind(path)?, std::marker::PhantomData))
}

/// Accepts clients of this user and of root.
pub async fn accept<S: Service>(
    listener: Listener<S>,
    inputs: mpsc::Sender<Input>,
    connected: mpsc::Sender<Connected<S>>,
    refusals: Rc<Refusals>,
) {
    let (me, what) = (nix::unistd::geteuid().as_raw(), S::CLIENT);
    let mut next = 1;
    let counter = Rc::new(());
    loop {
        let (socket, _) = super::accept(what, || listener.0.accept()).await;
        let cred = socket.peer_cred().map(|cred| (cred.uid(), cred.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0)));
        let admitted = match cred {
            Ok((uid, _)) if uid != me && uid != 0 => {
                Err(format!("refused {what} of uid {uid}: this protector belongs to uid {me}"))
            }
            Err(error) => Err(format!("refused {what} whose user the kernel does not tell: {error}")),
            Ok(_) if Rc::strong_count(&counter) > S::CLIENTS => Err(format!("refused {what}: {} are connected", S::CLIENTS)),
            Ok((_, pid)) => Ok(pid),
        };
        let pid = match admitted {
            Ok(pid) => pid,
            Err(text) => {
                refusals.note(text).await;
                continue;
            }
        };
        let (client, alive) = (next, counter.clone());
        next += 1;
        let (queue, replies) = mpsc::channel(S::QUEUE);
        if connected.send(Connected(client, queue)).await.is_err() {
            return;
        }
        let (inputs, refusals) = (inputs.clone(), refusals.clone());
        spawn_local(async move {
            serve::<S>(client, pid, socket, replies, &inputs, &refusals).await;
            _ = inputs.send(S::gone(client)).await;
            drop(alive);
        });
    }
}

async fn serve<S: Service>(
    client: u64,
    pid: u32,
    socket: UnixStream,
    replies: mpsc::Receiver<S::Reply>,
    inputs: &mpsc::Sender<Input>,
    refusals: &Refusals,
) {
    let (reader, writer) = socket.into_split();
    let result = tokio::select! {
        result = write::<S>(writer, replies) => result,
        result = read::<S>(client, pid, reader, inputs) => result,
    };
    match result {
        Ok(()) | Err(WireError::Closed | WireError::Io(_)) => {}
        Err(error) => refusals.note(format!("{} was disconnected: {error}", S::CLIENT)).await,
    }
}

async fn write<S: Service>(mut writer: OwnedWriteHalf, mut replies: mpsc::Receiver<S::Reply>) -> Result<(), WireError> {
    let mut bytes = Vec::new();
    while let Some(reply) = replies.recv().await {
        bytes.clear();
        let body = codec::encode(&reply, S::FRAME)?;
        frame::encode_into(&mut bytes, &body, S::FRAME);
        writer.write_all(&bytes).await?;
    }
    Ok(writer.shutdown().await?)
}

async fn read<S: Service>(
    client: u64,
    pid: u32,
    mut reader: OwnedReadHalf,
    inputs: &mpsc::Sender<Input>,
) -> Result<(), WireError> {
    let mut frames = FrameReader::new(S::FRAME);
    let mut buffer = vec![0; 16 << 10];
    let deadline = tokio::time::Instant::now() + FIRST;
    let mut silent = true;
    loop {
        while let Some(body) = frames.next_frame().map_err(|e| WireError::Protocol(e.to_string()))? {
            silent = false;
            let request = codec::decode(body, S::FRAME)?;
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
