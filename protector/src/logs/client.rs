//! A client of the log service that blocks: for tests, tools and measurements. Observers have their own, which allocates nothing.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use radic_wire::bytes::Writer;
use radic_wire::frame::{self, FrameReader};
use radic_wire::limits;
use radic_wire::log::ToProtector;
use radic_wire::login::{CHALLENGE, Channel, Login, NONCE};
use radic_wire::mac::JobKey;

use crate::store::Speaker;

/// A connection that is logged in.
#[derive(Debug)]
pub struct Client {
    socket: TcpStream,
    input: FrameReader,
    output: Vec<u8>,
    scratch: Vec<u8>,
}

impl Client {
    /// Connects and logs in; everything it waits for takes at most `limit`, also later.
    pub fn open(address: SocketAddr, key: &JobKey, speaker: Speaker, channel: Channel, limit: Duration) -> io::Result<Client> {
        let mut socket = TcpStream::connect_timeout(&address, limit)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(limit))?;
        socket.set_write_timeout(Some(limit))?;
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
        let login = Login { process: speaker.process, incarnation: speaker.incarnation, channel, nonce };
        socket.write_all(&login.encode())?;
        let mut challenge = [0; CHALLENGE];
        socket.read_exact(&mut challenge)?;
        let refused = || io::Error::new(io::ErrorKind::PermissionDenied, "the log service has another key than this process");
        socket.write_all(&login.prove(key, &challenge).ok_or_else(refused)?)?;
        let (input, scratch) = (FrameReader::new(limits::LOG_FRAME), vec![0; 64 << 10]);
        Ok(Client { socket, input, output: Vec::new(), scratch })
    }

    /// Sends a message.
    pub fn send(&mut self, message: &ToProtector<'_>) -> io::Result<()> {
        let mut body = vec![0; 1 << 10];
        let length = loop {
            let mut writer = Writer::new(&mut body);
            message.write(&mut writer);
            match writer.finish() {
                Some(length) => break length,
                None => body.resize(body.len() * 4, 0),
            }
        };
        self.output.clear();
        frame::encode_into(&mut self.output, &body[..length], limits::LOG_FRAME);
        self.socket.write_all(&self.output)
    }

    /// The next message, as [`radic_wire::log::FromProtector::read`] takes it. An end of the connection is an error.
    pub fn receive(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let frame = self.input.next_frame().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if let Some(body) = frame {
                return Ok(body.to_vec());
            }
            match self.socket.read(&mut self.scratch)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => self.input.push(&self.scratch[..length]),
            }
        }
    }

    /// The socket: for an image's bytes.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }
}
