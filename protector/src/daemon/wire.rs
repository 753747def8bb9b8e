//! Sockets under the authenticated channel, and the first two messages on it.

use std::io;
use std::time::Duration;

use radic_wire::channel::{Channel, ChannelError};
use radic_wire::codec::{self, CodecError};
use radic_wire::key::ClusterKey;
use radic_wire::limits;
use radic_wire::peer::{Hello, Welcome};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Time to establish a TCP connection.
const CONNECT: Duration = Duration::from_millis(1000);
/// Bytes read at once from a peer that has not proved that it holds the key, and from one that has.
const UNPROVEN: usize = 512;
const PROVEN: usize = 16 << 10;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The channel failed.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// What came is no message, or what was to go is too long.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The peer closed the connection.
    #[error("closed by the peer")]
    Closed,
    /// The peer took too long.
    #[error("no answer within {0:?}")]
    Slow(Duration),
    /// The peer said no.
    #[error("refused by the peer: {0}")]
    Refused(String),
    /// The peer does what no protector does.
    #[error("{0}")]
    Protocol(String),
}

/// An authenticated connection. The channel's two directions share their state, so one task owns both halves.
pub struct Connection {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    channel: Channel,
    /// What is read at once: little before the peer has proved itself.
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects and says hello; the answer is the peer's welcome. `within` bounds the whole.
    pub async fn connect(
        address: std::net::SocketAddr,
        key: &ClusterKey,
        hello: &Hello,
        within: Duration,
    ) -> Result<(Connection, Welcome), WireError> {
        let connect = async {
            let socket =
                tokio::time::timeout(CONNECT, TcpStream::connect(address)).await.map_err(|_| WireError::Slow(CONNECT))??;
            Connection::greet(socket, key, hello).await
        };
        tokio::time::timeout(within, connect).await.unwrap_or(Err(WireError::Slow(within)))
    }

    /// The connecting side, when the peer's machine has taken the connection: says hello; the answer is the peer's welcome. The
    /// caller bounds the time.
    pub async fn greet(socket: TcpStream, key: &ClusterKey, hello: &Hello) -> Result<(Connection, Welcome), WireError> {
        let mut connection = Connection::new(socket, Channel::initiator(key, limits::PEER_FRAME))?;
        connection.send(hello).await?;
        let welcome: Welcome = connection.receive().await?;
        match welcome.refused {
            Some(reason) => Err(WireError::Refused(reason)),
            None => Ok((connection, welcome)),
        }
    }

    /// The accepting side: waits for the hello. The caller bounds the time.
    pub async fn accept(socket: TcpStream, key: &ClusterKey) -> Result<(Connection, Hello), WireError> {
        let mut connection = Connection::new(socket, Channel::responder(key, limits::PEER_FRAME))?;
        let hello = connection.receive().await?;
        assert!(connection.channel.is_confirmed(), "a message came out of a channel whose peer has not proved itself");
        Ok((connection, hello))
    }

    fn new(socket: TcpStream, channel: Channel) -> Result<Connection, WireError> {
        socket.set_nodelay(true)?;
        let (reader, writer) = socket.into_split();
        Ok(Connection { reader, writer, channel, buffer: vec![0; UNPROVEN] })
    }

    /// Sends a message.
    pub async fn send<T: Serialize>(&mut self, message: &T) -> Result<(), WireError> {
        let frame = codec::encode(message, limits::PEER_FRAME)?;
        self.send_encoded(&frame).await
    }

    /// Sends a message that is encoded already.
    pub async fn send_encoded(&mut self, frame: &[u8]) -> Result<(), WireError> {
        self.channel.send(frame);
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), WireError> {
        let output = self.channel.take_output();
        Ok(self.writer.write_all(&output).await?)
    }

    /// The next message. Cancelling it loses nothing.
    pub async fn receive<T: DeserializeOwned>(&mut self) -> Result<T, WireError> {
        loop {
            if let Some(message) = self.poll_message()? {
                return Ok(message);
            }
            // The handshake's own answer has to go out before the peer can go on.
            if self.channel.has_output() {
                self.flush().await?;
            }
            self.fill().await?;
        }
    }

    /// A message that has come already.
    pub fn poll_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WireError> {
        match self.channel.poll_message()? {
            Some(frame) => Ok(Some(codec::decode(&frame, limits::PEER_FRAME)?)),
            None => Ok(None),
        }
    }

    /// Waits for bytes and takes them in.
    async fn fill(&mut self) -> Result<(), WireError> {
        let count = self.reader.read(&mut self.buffer).await?;
        if count == 0 {
            return Err(WireError::Closed);
        }
        if let Err(error) = self.channel.handle_input(&self.buffer[..count]) {
            // A peer of another version is told this one's. It does not matter here whether it hears that.
            _ = self.flush().await;
            return Err(error.into());
        }
        if self.channel.is_confirmed() && self.buffer.len() < PROVEN {
            self.buffer.resize(PROVEN, 0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use radic_wire::PROTOCOL_VERSION;
    use radic_wire::ids::{BootId, NodeId};
    use radic_wire::membership::{Member, Role};
    use radic_wire::peer::Purpose;
    use tokio::net::TcpListener;

    use super::*;

    fn hello() -> Hello {
        let id = NodeId { name: "newer".parse().unwrap(), boot: BootId(1) };
        let address = "127.0.0.1:1".parse().unwrap();
        let from = Member { id, address, log_port: 1, role: Role::Node, slots: 1 };
        Hello { version: PROTOCOL_VERSION + 1, from, to: None, purpose: Purpose::Probe }
    }

    /// A newer daemon connects to this one: on both sides the error names both versions.
    #[tokio::test(flavor = "current_thread")]
    async fn another_version_is_refused_by_number_on_both_sides() {
        let key = ClusterKey::generate().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dial = async {
            let socket = TcpStream::connect(listener.local_addr().unwrap()).await?;
            let channel = Channel::initiator_of(PROTOCOL_VERSION + 1, &key, limits::PEER_FRAME);
            let mut connection = Connection::new(socket, channel)?;
            connection.send(&hello()).await?;
            connection.receive::<Welcome>().await
        };
        let take = async { Connection::accept(listener.accept().await.unwrap().0, &key).await.map(|(_, hello)| hello) };
        let (dialed, taken) = tokio::join!(dial, take);
        for error in [dialed.unwrap_err(), taken.unwrap_err()] {
            let text = error.to_string();
            assert!(matches!(error, WireError::Channel(ChannelError::Version { .. })), "{text}");
            assert!([PROTOCOL_VERSION, PROTOCOL_VERSION + 1].iter().all(|n| text.contains(&n.to_string())), "{text}");
        }
    }
}
