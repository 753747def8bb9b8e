//! One connection of the service: what it has proven, what came in pieces, what waits to be sent.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use radic_wire::bytes::Writer;
use radic_wire::frame::{self, FrameReader, HEADER};
use radic_wire::ids::ProcessId;
use radic_wire::limits;
use radic_wire::log::FromProtector;
use radic_wire::login::{CHALLENGE, LOGIN, Login, NONCE, PROOF, WISH};
use radic_wire::mac::JobKey;

use crate::store::Speaker;

/// Longest frame but for the beginning of an image: a chunk and what goes before it.
pub const FRAME: usize = limits::LOG_CHUNK + 128;
/// Bytes that may wait to be sent before nothing more is read that asks for answers.
const CLOGGED: usize = 1 << 20;
/// Bytes that may wait to be sent at all: whoever takes nothing is not there.
const LOST: usize = 64 << 20;

/// Something of known length that comes in pieces.
#[derive(Debug)]
pub struct Partial<const N: usize> {
    bytes: [u8; N],
    have: usize,
}

impl<const N: usize> Partial<N> {
    pub fn new() -> Self {
        Partial { bytes: [0; N], have: 0 }
    }

    /// Reads what there is, and never more than belongs to it. All of it, once it is whole.
    fn read(&mut self, from: &mut impl Read) -> io::Result<Option<&[u8; N]>> {
        match from.read(&mut self.bytes[self.have..])? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            length => {
                self.have += length;
                Ok((self.have == N).then_some(&self.bytes))
            }
        }
    }
}

/// The first frame on a connection for an image; what follows it is no frame.
#[derive(Debug, Default)]
pub struct Head(Vec<u8>);

impl Head {
    /// Reads what there is of it; its body, once it is whole.
    fn read(&mut self, from: &mut impl Read, scratch: &mut [u8]) -> io::Result<Option<&[u8]>> {
        let missing = match self.0.first_chunk::<HEADER>() {
            None => HEADER - self.0.len(),
            Some(header) => {
                let claimed = u32::from_le_bytes(*header) as usize;
                if claimed == 0 || claimed > limits::LOG_FRAME {
                    return Err(io::Error::new(ErrorKind::InvalidData, "the first frame has no possible length"));
                }
                HEADER + claimed - self.0.len()
            }
        };
        let most = missing.min(scratch.len());
        let length = from.read(&mut scratch[..most])?;
        if length == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.0.extend_from_slice(&scratch[..length]);
        Ok((self.0.len() > HEADER && length == missing).then(|| &self.0[HEADER..]))
    }
}

/// What a connection is, and how far it has come.
#[derive(Debug)]
pub enum Role {
    /// Somebody who may become one of the others.
    Unproven(Partial<LOGIN>),
    /// Somebody who was asked for a proof.
    Challenged(Login, JobKey, [u8; NONCE], Partial<PROOF>),
    /// An observer's journal, and where its answers go; whether it has said hello.
    Journal(Speaker, bool),
    /// An observer's payload.
    Bulk(Speaker),
    /// An image that begins.
    ImageHead(Speaker, Head),
    /// An image: its number and how much of it came.
    Image(Speaker, u64, u64),
    /// A protector before this one in the chain, and as whom it speaks.
    Forwarder(ProcessId, Option<Speaker>),
    /// A node that brings this process back, and is about to say which image it wants.
    Fetcher(ProcessId, Partial<WISH>),
    /// The replica, to which a connection is being made.
    Dialed(ProcessId, Login, JobKey),
    /// The replica, which is to prove what it is.
    Asked(ProcessId, Login, JobKey, Partial<CHALLENGE>),
    /// The replica.
    Replica(ProcessId),
}

impl Role {
    /// For whose process it is there, as far as that is proven.
    pub fn process(&self) -> Option<ProcessId> {
        match self {
            Role::Unproven(_) | Role::Challenged(..) => None,
            Role::Journal(speaker, _) | Role::Bulk(speaker) | Role::ImageHead(speaker, _) | Role::Image(speaker, ..) => {
                Some(speaker.process)
            }
            Role::Forwarder(process, _)
            | Role::Fetcher(process, _)
            | Role::Dialed(process, ..)
            | Role::Asked(process, ..)
            | Role::Replica(process) => Some(*process),
        }
    }

    /// The observer that speaks, if it is one.
    pub fn speaker(&self) -> Option<Speaker> {
        match self {
            Role::Journal(speaker, _) | Role::Bulk(speaker) | Role::ImageHead(speaker, _) | Role::Image(speaker, ..) => {
                Some(*speaker)
            }
            Role::Forwarder(_, speaker) => *speaker,
            _ => None,
        }
    }

    /// Whether it waits behind those on which gates depend.
    pub fn is_bulk(&self) -> bool {
        matches!(self, Role::Bulk(_) | Role::ImageHead(..) | Role::Image(..))
    }
}

/// What waits to be sent.
#[derive(Debug, Default)]
struct Outgoing {
    /// Being sent, up to `sent` gone.
    current: Vec<u8>,
    sent: usize,
    /// Frames that go first.
    urgent: Vec<u8>,
    /// Frames that go when nothing else does.
    later: VecDeque<Vec<u8>>,
    later_bytes: usize,
    /// Of acknowledgements only the newest says something.
    journal_stable: Option<u64>,
    payload_stable: Option<u64>,
}

impl Outgoing {
    fn len(&self) -> usize {
        self.current.len() - self.sent + self.urgent.len() + self.later_bytes
    }

    fn is_empty(&self) -> bool {
        self.len() == 0 && self.journal_stable.is_none() && self.payload_stable.is_none()
    }

    /// Something to send in `current`, if there is anything.
    fn refill(&mut self) -> bool {
        if self.sent < self.current.len() {
            return true;
        }
        self.current.clear();
        self.sent = 0;
        std::mem::swap(&mut self.current, &mut self.urgent);
        let journal = self.journal_stable.take().map(|position| FromProtector::JournalStable { position });
        let payload = self.payload_stable.take().map(|position| FromProtector::PayloadStable { position });
        for message in journal.iter().chain(&payload) {
            let mut body = [0; 16];
            let mut writer = Writer::new(&mut body);
            message.write(&mut writer);
            let length = writer.finish().expect("a tag and a number have at most 11 bytes");
            frame::encode_into(&mut self.current, &body[..length], FRAME);
        }
        if self.current.is_empty()
            && let Some(next) = self.later.pop_front()
        {
            self.later_bytes -= next.len();
            self.current = next;
        }
        !self.current.is_empty()
    }
}

/// What reading has brought.
#[derive(Debug)]
pub enum Came<'a> {
    /// Nothing more for now.
    Nothing,
    /// The other side has ended.
    End,
    /// Bytes of an image.
    Bytes(usize),
    /// Bytes were added to the frames.
    Frames,
    /// The body of an image's first frame.
    Head(&'a [u8]),
    /// A login.
    Login(Login),
    /// A proof that was right or not.
    Proof(Login, bool),
    /// Which image is wanted.
    Wish(u64),
    /// A challenge: the proof that answers it, unless it was wrong.
    Challenge(ProcessId, Option<[u8; PROOF]>),
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    pub socket: TcpStream,
    pub role: Role,
    pub input: FrameReader,
    out: Outgoing,
    /// Answers that are being read from files.
    pub fetches: usize,
    /// It is not read because it takes no answers.
    pub stalled: bool,
    /// It is not read because the store has no room.
    pub paused: bool,
    /// The events that are asked for: those of reading, those of writing.
    pub interest: (bool, bool),
}

impl Connection {
    pub fn new(socket: TcpStream, role: Role) -> Self {
        let (input, out) = (FrameReader::new(FRAME), Outgoing::default());
        Connection { socket, role, input, out, fetches: 0, stalled: false, paused: false, interest: (true, false) }
    }

    /// Queues a message.
    pub fn queue(&mut self, body: &[u8]) {
        match FromProtector::read(body) {
            Ok(FromProtector::JournalStable { position }) => self.out.journal_stable = Some(position),
            Ok(FromProtector::PayloadStable { position }) => self.out.payload_stable = Some(position),
            _ => frame::encode_into(&mut self.out.urgent, body, limits::LOG_FRAME),
        }
    }

    /// Queues a message that goes first among what was not begun.
    pub fn queue_urgent(&mut self, body: &[u8]) {
        frame::encode_into(&mut self.out.urgent, body, limits::LOG_FRAME);
    }

    /// Queues a message behind all others.
    pub fn queue_later(&mut self, body: &[u8]) {
        let mut framed = Vec::with_capacity(body.len() + HEADER);
        frame::encode_into(&mut framed, body, limits::LOG_FRAME);
        self.out.later_bytes += framed.len();
        self.out.later.push_back(framed);
    }

    /// What is queued goes before what will be.
    pub fn fence(&mut self) {
        let later = std::mem::take(&mut self.out.later);
        self.out.later_bytes = 0;
        later.iter().for_each(|framed| self.out.urgent.extend_from_slice(framed));
    }

    /// Queues bytes that are no frame.
    pub fn queue_raw(&mut self, bytes: &[u8]) {
        self.out.urgent.extend_from_slice(bytes);
    }

    /// Bytes that wait.
    pub fn waiting(&self) -> usize {
        self.out.len()
    }

    /// Too many answers wait for it.
    pub fn is_clogged(&self) -> bool {
        self.out.len() + self.fetches * limits::LOG_CHUNK > CLOGGED
    }

    /// Sends what can be sent. An error: the connection is lost.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.out.refill() {
            match self.socket.write(&self.out.current[self.out.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(length) => self.out.sent += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.out.len() > LOST { Err(io::Error::new(ErrorKind::TimedOut, "it takes no answers")) } else { Ok(()) }
    }

    /// The events that it needs: those of reading, those of writing.
    pub fn wanted_interest(&self) -> (bool, bool) {
        (!self.stalled && !self.paused, !self.out.is_empty() || matches!(self.role, Role::Dialed(..)))
    }

    /// Reads once. Bytes of an image lie in `scratch` afterwards.
    pub fn read<'a>(&'a mut self, scratch: &mut [u8]) -> io::Result<Came<'a>> {
        match self.read_once(scratch) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(Came::Nothing),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Came::End),
            other => other,
        }
    }

    fn read_once<'a>(&'a mut self, scratch: &mut [u8]) -> io::Result<Came<'a>> {
        let Connection { socket, role, input, .. } = self;
        let invalid = |error| io::Error::new(ErrorKind::InvalidData, error);
        match role {
            Role::Unproven(partial) => match partial.read(socket)? {
                Some(bytes) => Ok(Came::Login(Login::decode(bytes).map_err(invalid)?)),
                None => Ok(Came::Nothing),
            },
            Role::Challenged(login, key, nonce, partial) => match partial.read(socket)? {
                Some(bytes) => Ok(Came::Proof(*login, login.is_proven(key, nonce, bytes))),
                None => Ok(Came::Nothing),
            },
            Role::Asked(process, login, key, partial) => match partial.read(socket)? {
                Some(bytes) => Ok(Came::Challenge(*process, login.prove(key, bytes))),
                None => Ok(Came::Nothing),
            },
            Role::Fetcher(_, partial) => {
                Ok(partial.read(socket)?.map_or(Came::Nothing, |wish| Came::Wish(u64::from_le_bytes(*wish))))
            }
            Role::Dialed(..) => Ok(Came::Nothing),
            Role::ImageHead(_, head) => Ok(head.read(socket, scratch)?.map_or(Came::Nothing, Came::Head)),
            Role::Image(..) => match socket.read(scratch)? {
                0 => Ok(Came::End),
                length => Ok(Came::Bytes(length)),
            },
            Role::Journal(..) | Role::Bulk(_) | Role::Forwarder(..) | Role::Replica(_) => match socket.read(scratch)? {
                0 => Ok(Came::End),
                length => {
                    input.push(&scratch[..length]);
                    Ok(Came::Frames)
                }
            },
        }
    }
}
