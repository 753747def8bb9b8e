//! A client of the log service that blocks: for tests, tools and measurements. Observers have their own, which allocates nothing.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use radic_wire::bytes::Writer;
use radic_wire::frame::{self, FrameReader};
use radic_wire::limits;
use radic_wire::log::ToProtector;
use radic_wire::login::{Channel, Login, NONCE, WELCOME};
use radic_wire::mac::JobKey;
use radic_wire::record::{Opener, Sealer};

use crate::store::Speaker;

/// A connection that is logged in.
#[derive(Debug)]
pub struct Client {
    socket: TcpStream,
    sealer: Sealer,
    opener: Opener,
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
        socket.write_all(&login.encode(key))?;
        let (mut nonce, mut welcome) = ([0; NONCE], [0; WELCOME]);
        socket.read_exact(&mut nonce)?;
        socket.write_all(&login.prove(key, &nonce))?;
        socket.read_exact(&mut welcome)?;
        let refused = || io::Error::new(io::ErrorKind::PermissionDenied, "the log service has another key than this process");
        let cover = login.welcomed(key, &nonce, &welcome).ok_or_else(refused)?;
        let (sealer, opener) = login.records_of_caller(key, &nonce, cover);
        let (input, scratch) = (FrameReader::new(limits::LOG_FRAME), vec![0; 64 << 10]);
        Ok(Client { socket, sealer, opener, input, output: Vec::new(), scratch })
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
        let mut framed = Vec::with_capacity(length + frame::HEADER);
        frame::encode_into(&mut framed, &body[..length], limits::LOG_FRAME);
        self.send_bytes(&framed)
    }

    /// Sends bytes that are no frame, in records of their own: those of an image.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.clear();
        self.sealer.seal_into(&[bytes], &mut self.output);
        self.socket.write_all(&self.output)
    }

    /// Says that nothing follows, and ends this direction of the connection: an image is whole then.
    pub fn end(&mut self) -> io::Result<()> {
        self.output.clear();
        self.sealer.seal_end(&mut self.output);
        self.socket.write_all(&self.output)?;
        self.socket.shutdown(Shutdown::Write)
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
                length => self.opener.push(&self.scratch[..length]),
            }
            while let Some(body) = self.opener.next_body().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
                self.input.push(body);
            }
        }
    }

    /// The socket, for its options and its end: what is written to it is no record.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The socket, and what comes on it is opened with.
    pub fn into_receiver(self) -> (TcpStream, Opener) {
        (self.socket, self.opener)
    }
}
