//! The daemon's unix socket, asked as the `radic` command does, by what runs beside the daemon's own loop: so the node learns nothing new by it.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use radic_wire::frame::{self, FrameReader};
use radic_wire::local::{Reply, Request, SOCKET_NAME};
use radic_wire::{PROTOCOL_VERSION, codec, limits};
use rustix::fs::OFlags;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Time that the daemon has for an answer: it asks other nodes, twice, and gives each a second.
const ANSWER: Duration = Duration::from_secs(5);
/// Bytes that are read at once.
const READ: usize = 64 << 10;

/// Why the daemon's answer is not there.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It is not reached, or is gone.
    #[error("the daemon cannot be asked: {0}")]
    Lost(#[from] io::Error),
    /// It takes too long.
    #[error("the daemon does not answer within {} s", ANSWER.as_secs())]
    Late,
    /// It says why not.
    #[error("{0}")]
    Refused(String),
    /// It answers something else.
    #[error("the daemon's answer is not understood")]
    Unexpected,
}

/// A connection that has said hello.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    frames: FrameReader,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects to the daemon that has its socket in this open folder, the path of which may be longer than a socket address.
    pub async fn open(node_dir: impl AsFd) -> Result<Connection, AskError> {
        let path = format!("/proc/self/fd/{}/{SOCKET_NAME}", node_dir.as_fd().as_raw_fd());
        let stream = UnixStream::connect(path).await?;
        let mut connection = Connection { stream, frames: FrameReader::new(limits::LOCAL_FRAME), buffer: vec![0; READ] };
        match connection.ask(&Request::Hello { version: PROTOCOL_VERSION }).await? {
            Reply::Welcome { version: PROTOCOL_VERSION, .. } => Ok(connection),
            _ => Err(AskError::Unexpected),
        }
    }

    /// Sends a request.
    pub async fn send(&mut self, request: &Request) -> Result<(), AskError> {
        let body = codec::encode(request, limits::LOCAL_FRAME).map_err(io::Error::other)?;
        let mut bytes = Vec::new();
        frame::encode_into(&mut bytes, &body, limits::LOCAL_FRAME);
        Ok(self.stream.write_all(&bytes).await?)
    }

    /// The next reply.
    pub async fn reply(&mut self) -> Result<Reply, AskError> {
        loop {
            if let Some(body) = self.frames.next_frame().map_err(io::Error::other)? {
                return codec::decode(body, limits::LOCAL_FRAME).map_err(|_| AskError::Unexpected);
            }
            let count = self.stream.read(&mut self.buffer).await?;
            match self.buffer.get(..count) {
                None | Some([]) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Some(bytes) => self.frames.push(bytes),
            }
        }
    }

    /// Sends a request and waits for its reply.
    pub async fn ask(&mut self, request: &Request) -> Result<Reply, AskError> {
        let asked = async {
            self.send(request).await?;
            self.reply().await
        };
        match tokio::time::timeout(ANSWER, asked).await {
            Err(_) => Err(AskError::Late),
            Ok(Ok(Reply::Error(why))) => Err(AskError::Refused(why)),
            Ok(reply) => reply,
        }
    }
}

/// A connection to the daemon that has its socket in the folder of this name.
pub async fn connect(node_dir: &Path) -> Result<Connection, AskError> {
    let flags = (OFlags::PATH | OFlags::DIRECTORY).bits();
    Connection::open(OpenOptions::new().read(true).custom_flags(flags as i32).open(node_dir)?).await
}

/// One question on a connection of its own.
pub async fn ask(node_dir: &Path, request: &Request) -> Result<Reply, AskError> {
    connect(node_dir).await?.ask(request).await
}
