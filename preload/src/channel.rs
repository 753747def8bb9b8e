//! A connection to the log of this process's protector: login, frames out, frames in. Blocking where the caller has to wait anyway,
//! never otherwise.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use radic_observer::journal::Ship;
use radic_observer::payload::Piece;
use radic_wire::bytes::Writer;
use radic_wire::frame::{FrameReader, HEADER};
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::limits;
use radic_wire::log::{FromProtector, ToProtector};
use radic_wire::login::{Channel as Purpose, Login, NONCE, WELCOME};
use radic_wire::mac::JobKey;
use radic_wire::record::{Opener, Sealer};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::memory::{discreetly, discreetly_with_records};
use crate::sys;

/// Time for a protector to answer a login, in milliseconds.
pub const LOGIN_MS: u64 = 5_000;
/// Bytes that may wait to be written before the caller waits for the protector.
pub const QUEUE: usize = 1 << 20;
/// Longest code of a message without its bytes.
const HEAD: usize = 256;

/// The process that logs in.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// The process.
    pub process: ProcessId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its job's key.
    pub key: &'a JobKey,
}

/// A connection that has logged in.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
    sealer: Sealer,
    opener: Opener,
    /// Records that the socket has not taken yet.
    out: Vec<u8>,
    taken: usize,
    frames: FrameReader,
    buffer: Box<[u8]>,
}

/// The connections of a session: for the journal, and for what is large.
pub(crate) type Channels = (Channel, Channel);

/// Connects to the log service at `address`, each proves itself to the other: the socket, and what records are made and opened with there.
pub fn login(address: SocketAddr, identity: &Identity<'_>, channel: Purpose) -> Result<(OwnedFd, Sealer, Opener), Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = sys::high(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)?;
    match rustix::net::connect(&fd, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error),
    }
    sys::wait_for(fd.as_fd(), PollFlags::OUT, LOGIN_MS)?;
    sockopt::socket_error(&fd)??;
    sockopt::set_tcp_nodelay(&fd, true)?;
    let mut nonce = [0; NONCE];
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
    let login = Login { process: identity.process, incarnation: identity.incarnation, channel, nonce };
    sys::send_all(fd.as_fd(), &discreetly(|| login.encode(identity.key)), LOGIN_MS)?;
    let (mut nonce, mut welcome) = ([0; NONCE], [0; WELCOME]);
    sys::receive_all(fd.as_fd(), &mut nonce, LOGIN_MS)?;
    sys::send_all(fd.as_fd(), &discreetly(|| login.prove(identity.key, &nonce)), LOGIN_MS)?;
    sys::receive_all(fd.as_fd(), &mut welcome, LOGIN_MS)?;
    let records = discreetly(|| {
        let cover = login.welcomed(identity.key, &nonce, &welcome)?;
        Some(login.records_of_caller(identity.key, &nonce, cover))
    });
    // The other end does not have the key: it is no protector of ours.
    let (sealer, opener) = records.ok_or(Errno::ACCESS)?;
    Ok((fd, sealer, opener))
}

/// Writes a message in a frame, in records of its own, to a new connection, and waits until it is written.
pub fn write(fd: BorrowedFd<'_>, sealer: &mut Sealer, message: &ToProtector<'_>) -> Result<(), Errno> {
    let mut frame = vec![0; 4096];
    loop {
        let mut out = Writer::new(&mut frame[HEADER..]);
        message.write(&mut out);
        if let Some(length) = out.finish() {
            frame[..HEADER].copy_from_slice(&(length as u32).to_le_bytes());
            let mut records = Vec::new();
            discreetly_with_records(|| sealer.seal_into(&[&frame[..HEADER + length]], &mut records));
            return sys::send_all(fd, &records, LOGIN_MS);
        }
        if frame.len() > limits::LOG_FRAME {
            return Err(Errno::MSGSIZE);
        }
        let more = frame.len() * 8;
        frame.resize(more, 0);
    }
}

impl Channel {
    /// Logs in at `address`.
    pub fn connect(address: SocketAddr, identity: &Identity<'_>, channel: Purpose) -> Result<Channel, Errno> {
        let (fd, sealer, opener) = login(address, identity, channel)?;
        let buffer = vec![0; 64 << 10].into_boxed_slice();
        Ok(Channel {
            fd,
            sealer,
            opener,
            out: Vec::with_capacity(64 << 10),
            taken: 0,
            frames: FrameReader::new(limits::LOG_FRAME),
            buffer,
        })
    }

    /// Gives up the connection.
    pub fn close(self) {
        sys::close_own(self.fd);
    }

    /// Its socket.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Its socket, to be moved to another number.
    pub(crate) fn fd_mut(&mut self) -> &mut OwnedFd {
        &mut self.fd
    }

    /// Whether frames wait for the socket.
    pub fn is_pressed(&self) -> bool {
        self.out.len() - self.taken > QUEUE
    }

    /// Whether anything waits for the socket.
    pub fn has_unsent(&self) -> bool {
        self.taken < self.out.len()
    }

    /// The events that its listener waits for.
    pub fn awaited(&self) -> PollFlags {
        if self.has_unsent() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    /// Sends a message without bytes of any length.
    pub fn send(&mut self, message: &ToProtector<'_>) -> Result<(), Errno> {
        let mut head = [0; HEAD];
        let mut out = Writer::new(&mut head[HEADER..]);
        message.write(&mut out);
        let length = out.finish().ok_or(Errno::MSGSIZE)?;
        head[..HEADER].copy_from_slice(&(length as u32).to_le_bytes());
        self.push(&[&head[..HEADER + length]])
    }

    /// Sends what the journal has to ship.
    pub fn send_journal(&mut self, ship: &Ship<'_>) -> Result<(), Errno> {
        let Ship { position, head, tail, causes } = *ship;
        match causes {
            None => self.send_with(|out| ToProtector::Journal { position, bytes: &[] }.write(out), &[head, tail]),
            Some(causes) => self.send_with(|out| causes.write_head(out, position), &[causes.bytes, head, tail]),
        }
    }

    /// Sends received bytes, or the end of a stream.
    pub fn send_payload(&mut self, piece: &Piece<'_>) -> Result<(), Errno> {
        let Piece { position, stream, offset, .. } = *piece;
        if piece.is_end {
            return self.send(&ToProtector::PayloadEnd { position, stream, offset });
        }
        let message = ToProtector::Payload { position, stream, offset, bytes: &[] };
        self.send_with(|out| message.write(out), &[piece.head, piece.tail])
    }

    /// A message that ends with these bytes.
    fn send_with(&mut self, begin: impl FnOnce(&mut Writer<'_>), bytes: &[&[u8]]) -> Result<(), Errno> {
        let mut head = [0; HEAD];
        let mut out = Writer::new(&mut head[HEADER..]);
        begin(&mut out);
        let length = out.finish().ok_or(Errno::MSGSIZE)?;
        let body = length + bytes.iter().map(|part| part.len()).sum::<usize>();
        assert!(body <= limits::LOG_FRAME, "a message of {body} bytes");
        head[..HEADER].copy_from_slice(&(body as u32).to_le_bytes());
        let mut parts = [&[][..]; 4];
        parts[0] = &head[..HEADER + length];
        parts[1..=bytes.len()].copy_from_slice(bytes);
        self.push(&parts)
    }

    /// Puts these parts into records, writes as much as the socket takes, and keeps the rest.
    fn push(&mut self, parts: &[&[u8]]) -> Result<(), Errno> {
        let Channel { sealer, out, taken, .. } = self;
        // A socket that always has something left to take must not make what it has taken pile up.
        if *taken >= out.len() / 2 {
            out.drain(..std::mem::take(taken));
        }
        discreetly_with_records(|| sealer.seal_into(parts, out));
        self.flush()
    }

    /// Writes what waits, as far as the socket takes it.
    pub fn flush(&mut self) -> Result<(), Errno> {
        while self.has_unsent() {
            match rustix::net::send(&self.fd, &self.out[self.taken..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => self.taken += count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.taken = 0;
        Ok(())
    }

    /// Reads what has come; with `wait` at least something, or the time is over. The connection's end is an error.
    pub fn read(&mut self, wait: bool) -> Result<(), Errno> {
        if wait {
            return self.read_within(LOGIN_MS);
        }
        self.read_now()
    }

    /// Waits at most so long for something, and reads it.
    pub fn read_within(&mut self, ms: u64) -> Result<(), Errno> {
        sys::wait_for(self.fd.as_fd(), self.awaited(), ms)?;
        self.flush()?;
        self.read_now()
    }

    fn read_now(&mut self) -> Result<(), Errno> {
        match rustix::net::recv(&self.fd, &mut self.buffer[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Err(Errno::CONNRESET),
            Ok((_, count)) => {
                let Channel { opener, frames, buffer, .. } = self;
                opener.push(&buffer[..count]);
                discreetly_with_records(|| {
                    while let Some(body) = opener.next_body().map_err(|_| Errno::PROTO)? {
                        frames.push(body);
                    }
                    Ok(())
                })
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The next message that has come.
    pub fn next_message(&mut self) -> Result<Option<FromProtector<'_>>, Errno> {
        match self.frames.next_frame() {
            Ok(Some(frame)) => FromProtector::read(frame).map(Some).map_err(|_| Errno::PROTO),
            Ok(None) => Ok(None),
            Err(_) => Err(Errno::PROTO),
        }
    }
}
