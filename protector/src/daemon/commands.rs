//! The unix socket on which the `radic` command talks to its protector.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;

use radic_wire::codec;
use radic_wire::frame::{self, FrameReader};
use radic_wire::limits;
use radic_wire::local::{Reply, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::spawn_local;

use super::refusals::Refusals;
use super::wire::WireError;
use crate::node::{ClientId, Input};

/// Replies that may wait for a command before it is taken for dead.
const QUEUE: usize = 4096;
/// Commands that may be connected at once.
const COMMANDS: usize = 512;

/// A command has connected: its number, and where its replies go.
pub struct Connected(pub ClientId, pub mpsc::Sender<Reply>);

/// The connected commands.
#[derive(Default)]
pub struct Commands {
    /// None: nothing more is to be said, and what was may still be on its way.
    queues: HashMap<ClientId, Option<mpsc::Sender<Reply>>>,
}

impl Commands {
    /// A command has connected.
    pub fn add(&mut self, Connected(id, queue): Connected) {
        self.queues.insert(id, Some(queue));
    }

    /// Sends a reply. A command that does not read has its connection closed: its reader reports that it is gone.
    pub fn reply(&mut self, id: ClientId, reply: Reply) {
        let Some(Some(queue)) = self.queues.get(&id) else { return };
        if let Err(TrySendError::Full(_)) = queue.try_send(reply) {
            tracing::warn!(client = id.0, "a command does not read its replies: disconnected");
            self.close(id);
        }
    }

    /// Closes a connection after what was replied.
    pub fn close(&mut self, id: ClientId) {
        self.queues.entry(id).and_modify(|queue| *queue = None);
    }

    /// Closes all connections after what was replied.
    pub fn close_all(&mut self) {
        self.queues.values_mut().for_each(|queue| *queue = None);
    }

    /// A connection is closed.
    pub fn handle_gone(&mut self, id: ClientId) {
        self.queues.remove(&id);
    }

    /// Whether no command is connected.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
}

/// Binds the socket in `dir`, which only its owner may enter. The path may be longer than a socket address holds, so the name is
/// given relative to the open directory.
pub fn bind(dir: &Path) -> io::Result<UnixListener> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let open = fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(dir)?;
    let path = format!("/proc/self/fd/{}/{}", open.as_raw_fd(), radic_wire::local::SOCKET_NAME);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(path)
}

/// Accepts commands of this user and of root.
pub async fn accept(
    listener: UnixListener,
    inputs: mpsc::Sender<Input>,
    connected: mpsc::Sender<Connected>,
    refusals: Rc<Refusals>,
) {
    let me = nix::unistd::geteuid().as_raw();
    let mut next = 1;
    let counter = Rc::new(());
    loop {
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::warn!(%error, "cannot accept commands");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        let uid = socket.peer_cred().map(|cred| cred.uid());
        let refusal = match uid {
            Ok(uid) if uid != me && uid != 0 => {
                Some(format!("refused a command of uid {uid}: this protector belongs to uid {me}"))
            }
            Err(error) => Some(format!("refused a command whose user the kernel does not tell: {error}")),
            Ok(_) if Rc::strong_count(&counter) > COMMANDS => Some(format!("refused a command: {COMMANDS} are connected")),
            Ok(_) => None,
        };
        if let Some(text) = refusal {
            refusals.note(text).await;
            continue;
        }
        let (id, alive) = (ClientId(next), counter.clone());
        next += 1;
        let (queue, replies) = mpsc::channel(QUEUE);
        if connected.send(Connected(id, queue)).await.is_err() {
            return;
        }
        let (inputs, refusals) = (inputs.clone(), refusals.clone());
        spawn_local(async move {
            serve(id, socket, replies, &inputs, &refusals).await;
            _ = inputs.send(Input::ClientGone(id)).await;
            drop(alive);
        });
    }
}

async fn serve(
    id: ClientId,
    socket: UnixStream,
    replies: mpsc::Receiver<Reply>,
    inputs: &mpsc::Sender<Input>,
    refusals: &Refusals,
) {
    let (reader, writer) = socket.into_split();
    let result = tokio::select! {
        result = write(writer, replies) => result,
        result = read(id, reader, inputs) => result,
    };
    match result {
        Ok(()) | Err(WireError::Closed | WireError::Io(_)) => {}
        Err(error) => refusals.note(format!("a command was disconnected: {error}")).await,
    }
}

async fn write(mut writer: OwnedWriteHalf, mut replies: mpsc::Receiver<Reply>) -> Result<(), WireError> {
    let mut bytes = Vec::new();
    while let Some(reply) = replies.recv().await {
        bytes.clear();
        let body = codec::encode(&reply, limits::LOCAL_FRAME)?;
        frame::encode_into(&mut bytes, &body, limits::LOCAL_FRAME);
        writer.write_all(&bytes).await?;
    }
    Ok(writer.shutdown().await?)
}

async fn read(id: ClientId, mut reader: OwnedReadHalf, inputs: &mpsc::Sender<Input>) -> Result<(), WireError> {
    let mut frames = FrameReader::new(limits::LOCAL_FRAME);
    let mut buffer = vec![0; 16 << 10];
    loop {
        while let Some(body) = frames.next_frame().map_err(|e| WireError::Protocol(e.to_string()))? {
            let request: Request = codec::decode(body, limits::LOCAL_FRAME)?;
            _ = inputs.send(Input::Client(id, request)).await;
        }
        let count = reader.read(&mut buffer).await?;
        if count == 0 {
            return Err(WireError::Closed);
        }
        frames.push(&buffer[..count]);
    }
}
