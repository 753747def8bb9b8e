//! One connection of the service: what it has proven, what came in pieces, what waits to be sent.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use radic_wire::bytes::Writer;
use radic_wire::frame::{self, FrameReader, HEADER};
use radic_wire::ids::ProcessId;
use radic_wire::limits;
use radic_wire::log::FromProtector;
use radic_wire::login::{LOGIN, Login, NONCE, PROOF, WELCOME};
use radic_wire::mac::JobKey;
use radic_wire::record::{Cover, Opener, RecordError, Sealer};

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
    /// An image that begins: its first frame is about to come, in records of its own.
    ImageHead(Speaker),
    /// An image: its number and how much of it came.
    Image(Speaker, u64, u64),
    /// A protector before this one in the chain, and as whom it speaks.
    Forwarder(ProcessId, Option<Speaker>),
    /// A node that brings this process back, and is about to say which image it wants.
    Fetcher(ProcessId),
    /// The replica, to which a connection is being made.
    Dialed(ProcessId, Login, JobKey),
    /// The replica, which is to say its nonce.
    Asked(ProcessId, Login, JobKey, Partial<NONCE>),
    /// The replica, which is to prove what it is.
    Proving(ProcessId, Login, JobKey, [u8; NONCE], Partial<WELCOME>),
    /// The replica.
    Replica(ProcessId),
}

impl Role {
    /// For whose process it is there, as far as that is proven.
    pub fn process(&self) -> Option<ProcessId> {
        match self {
            Role::Unproven(_) | Role::Challenged(..) => None,
            Role::Journal(speaker, _) | Role::Bulk(speaker) | Role::ImageHead(speaker) | Role::Image(speaker, ..) => {
                Some(speaker.process)
            }
            Role::Forwarder(process, _)
            | Role::Fetcher(process)
            | Role::Dialed(process, ..)
            | Role::Asked(process, ..)
            | Role::Proving(process, ..)
            | Role::Replica(process) => Some(*process),
        }
    }

    /// The observer that speaks, if it is one.
    pub fn speaker(&self) -> Option<Speaker> {
        match self {
            Role::Journal(speaker, _) | Role::Bulk(speaker) | Role::ImageHead(speaker) | Role::Image(speaker, ..) => {
                Some(*speaker)
            }
            Role::Forwarder(_, speaker) => *speaker,
            _ => None,
        }
    }

    /// Whether it waits behind those on which gates depend.
    pub fn is_bulk(&self) -> bool {
        matches!(self, Role::Bulk(_) | Role::ImageHead(_) | Role::Image(..))
    }
}

/// What waits to be sent.
#[derive(Debug, Default)]
struct Outgoing {
    /// Being sent, up to `sent` gone: as it goes to the socket.
    current: Vec<u8>,
    sent: usize,
    /// Words of the login, which go before all else and in no record.
    words: Vec<u8>,
    /// Frames that go first.
    urgent: Vec<u8>,
    /// Frames that are being put into records.
    frames: Vec<u8>,
    /// Frames that go when nothing else does.
    later: VecDeque<Vec<u8>>,
    later_bytes: usize,
    /// Of acknowledgements only the newest says something.
    journal_stable: Option<u64>,
    payload_stable: Option<u64>,
}

impl Outgoing {
    fn len(&self) -> usize {
        self.current.len() - self.sent + self.words.len() + self.urgent.len() + self.later_bytes
    }

    fn is_empty(&self) -> bool {
        self.len() == 0 && self.journal_stable.is_none() && self.payload_stable.is_none()
    }

    /// Something to send in `current`, if there is anything.
    fn refill(&mut self, sealer: Option<&mut Sealer>) -> bool {
        if self.sent < self.current.len() {
            return true;
        }
        self.current.clear();
        self.sent = 0;
        std::mem::swap(&mut self.current, &mut self.words);
        if let (true, Some(sealer)) = (self.current.is_empty(), sealer) {
            self.take_frames();
            sealer.seal_into(&[&self.frames], &mut self.current);
        }
        !self.current.is_empty()
    }

    /// The frames that go next.
    fn take_frames(&mut self) {
        self.frames.clear();
        std::mem::swap(&mut self.frames, &mut self.urgent);
        let journal = self.journal_stable.take().map(|position| FromProtector::JournalStable { position });
        let payload = self.payload_stable.take().map(|position| FromProtector::PayloadStable { position });
        for message in journal.iter().chain(&payload) {
            let mut body = [0; 16];
            let mut writer = Writer::new(&mut body);
            message.write(&mut writer);
            let length = writer.finish().expect("a tag and a number have at most 11 bytes");
            frame::encode_into(&mut self.frames, &body[..length], FRAME);
        }
        if self.frames.is_empty()
            && let Some(next) = self.later.pop_front()
        {
            self.later_bytes -= next.len();
            self.frames = next;
        }
    }
}

/// What reading has brought.
#[derive(Debug)]
pub enum Came {
    /// Nothing more for now.
    Nothing,
    /// The other side has ended.
    End,
    /// Bytes of records.
    Records,
    /// A login, and its bytes.
    Login(Login, [u8; LOGIN]),
    /// A proof that was right or not.
    Proof(bool),
    /// The nonce of the replica.
    Nonce([u8; NONCE]),
    /// The welcome of the replica: how records are protected, unless it was wrong.
    Welcome(Option<Cover>),
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    pub socket: TcpStream,
    pub role: Role,
    pub input: FrameReader,
    out: Outgoing,
    /// What its records are made and opened with, once both sides have proven what they are.
    records: Option<(Sealer, Opener)>,
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
        Connection { socket, role, input, out, records: None, fetches: 0, stalled: false, paused: false, interest: (true, false) }
    }

    /// Both sides have proven what they are: from here on there are records.
    pub fn begin_records(&mut self, records: (Sealer, Opener)) {
        self.records = Some(records);
    }

    /// What its records are opened with. None: there are none yet.
    pub fn opener(&mut self) -> Option<&mut Opener> {
        self.records.as_mut().map(|(_, opener)| opener)
    }

    /// Puts the body of the next record to the frames. False: no whole one has come.
    pub fn open_one(&mut self) -> Result<bool, RecordError> {
        let Connection { records, input, .. } = self;
        let body = records.as_mut().map(|(_, opener)| opener.next_body()).transpose()?.flatten();
        body.into_iter().for_each(|body| input.push(body));
        Ok(body.is_some())
    }

    /// The same for all records that have come. False: there were none.
    pub fn open_all(&mut self) -> Result<bool, RecordError> {
        let came = self.open_one()?;
        while self.open_one()? {}
        Ok(came)
    }

    /// The socket, and what is sent on it is sealed with.
    pub fn into_sender(self) -> (TcpStream, Option<Sealer>) {
        (self.socket, self.records.map(|(sealer, _)| sealer))
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

    /// Queues words of the login.
    pub fn queue_words(&mut self, bytes: &[u8]) {
        self.out.words.extend_from_slice(bytes);
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
        while self.out.refill(self.records.as_mut().map(|(sealer, _)| sealer)) {
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

    /// Reads once. Bytes of records are with the opener afterwards.
    pub fn read(&mut self, scratch: &mut [u8]) -> io::Result<Came> {
        match self.read_once(scratch) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(Came::Nothing),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Came::End),
            other => other,
        }
    }

    fn read_once(&mut self, scratch: &mut [u8]) -> io::Result<Came> {
        let Connection { socket, role, records, .. } = self;
        let invalid = |error| io::Error::new(ErrorKind::InvalidData, error);
        let came = match role {
            Role::Unproven(partial) => match partial.read(socket)? {
                Some(bytes) => Some(Came::Login(Login::decode(bytes).map_err(invalid)?, *bytes)),
                None => None,
            },
            Role::Challenged(login, key, nonce, partial) => {
                partial.read(socket)?.map(|proof| Came::Proof(login.is_proven(key, nonce, proof)))
            }
            Role::Asked(_, _, _, partial) => partial.read(socket)?.map(|nonce| Came::Nonce(*nonce)),
            Role::Proving(_, login, key, nonce, partial) => {
                partial.read(socket)?.map(|welcome| Came::Welcome(login.welcomed(key, nonce, welcome)))
            }
            Role::Dialed(..) => None,
            Role::Journal(..)
            | Role::Bulk(_)
            | Role::ImageHead(_)
            | Role::Image(..)
            | Role::Forwarder(..)
            | Role::Fetcher(_)
            | Role::Replica(_) => match (socket.read(scratch)?, records) {
                (0, _) | (_, None) => Some(Came::End),
                (length, Some((_, opener))) => {
                    opener.push(&scratch[..length]);
                    Some(Came::Records)
                }
            },
        };
        Ok(came.unwrap_or(Came::Nothing))
    }
}
