//! Sockets under the authenticated channel. What is said over it decides [`crate::peers`].

use std::io;
use std::time::Duration;

use radic_wire::channel::{Channel, ChannelError};
use radic_wire::codec::CodecError;
use radic_wire::key::ClusterKey;
use radic_wire::limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::peers::Gone;

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
    /// The peer does what no protector does.
    #[error("{0}")]
    Protocol(String),
}

impl WireError {
    /// How a connection that this has ended is gone, for [`crate::peers`].
    pub fn gone(&self) -> Gone {
        match self {
            WireError::Closed => Gone::Ended,
            WireError::Io(error) => Gone::Broke(error.to_string()),
            WireError::Channel(_) | WireError::Codec(_) | WireError::Slow(_) | WireError::Protocol(_) => {
                Gone::Fault(self.to_string())
            }
        }
    }
}

/// An authenticated connection. The channel's two directions share their state, so one task owns both halves.
pub struct Connection {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    channel: Channel,
    /// Records, and how many of their bytes were written.
    unsent: (Vec<u8>, usize),
    /// What is read at once: little before the peer has proved itself.
    buffer: Vec<u8>,
}

impl Connection {
    /// The connecting side, when the peer's machine has taken the connection.
    pub fn initiator(socket: TcpStream, key: &ClusterKey) -> Result<Connection, WireError> {
        Connection::new(socket, Channel::initiator(key, limits::PEER_FRAME))
    }

    /// The accepting side.
    pub fn responder(socket: TcpStream, key: &ClusterKey) -> Result<Connection, WireError> {
        Connection::new(socket, Channel::responder(key, limits::PEER_FRAME))
    }

    fn new(socket: TcpStream, channel: Channel) -> Result<Connection, WireError> {
        socket.set_nodelay(true)?;
        let (reader, writer) = socket.into_split();
        Ok(Connection { reader, writer, channel, unsent: (Vec::new(), 0), buffer: vec![0; UNPROVEN] })
    }

    /// Sends a frame.
    pub async fn send(&mut self, frame: &[u8]) -> Result<(), WireError> {
        self.channel.send(frame);
        self.flush().await
    }

    /// Cancelling it loses nothing: what was not written is written by the next call.
    async fn flush(&mut self) -> Result<(), WireError> {
        loop {
            let (records, written) = &mut self.unsent;
            if *written == records.len() {
                (*records, *written) = (self.channel.take_output(), 0);
            }
            if records.is_empty() {
                return Ok(());
            }
            match self.writer.write(&records[*written..]).await? {
                0 => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                count => *written += count,
            }
        }
    }

    /// The next frame. Cancelling it loses nothing.
    pub async fn receive(&mut self) -> Result<Vec<u8>, WireError> {
        loop {
            if let Some(frame) = self.poll_frame()? {
                return Ok(frame);
            }
            // The handshake's own answer has to go out before the peer can go on.
            self.flush().await?;
            self.fill().await?;
        }
    }

    /// A frame that has come already.
    pub fn poll_frame(&mut self) -> Result<Option<Vec<u8>>, WireError> {
        let frame = self.channel.poll_message()?;
        let is_proved = frame.is_none() || self.channel.is_confirmed();
        assert!(is_proved, "a message came out of a channel whose peer has not proved itself");
        Ok(frame)
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
    use radic_wire::codec;
    use radic_wire::ids::{BootId, NodeId};
    use radic_wire::membership::{Member, Role};
    use radic_wire::peer::{Hello, Purpose};
    use tokio::net::TcpListener;

    use super::*;

    fn hello() -> Hello {
        let id = NodeId { name: "newer".parse().unwrap(), boot: BootId(1) };
        let address = "127.0.0.1:1".parse().unwrap();
        let from = Member { id, address, data: address.ip(), log_port: 1, role: Role::Node, slots: 1 };
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
            connection.send(&codec::encode(&hello(), limits::PEER_FRAME).unwrap()).await?;
            connection.receive().await
        };
        let take = async { Connection::responder(listener.accept().await.unwrap().0, &key)?.receive().await };
        let (dialed, taken) = tokio::join!(dial, take);
        for error in [dialed.unwrap_err(), taken.unwrap_err()] {
            let text = error.to_string();
            assert!(matches!(error, WireError::Channel(ChannelError::Version { .. })), "{text}");
            assert!([PROTOCOL_VERSION, PROTOCOL_VERSION + 1].iter().all(|n| text.contains(&n.to_string())), "{text}");
        }
    }
}
