//! One connection of the service: how far its login is, what came in pieces, its socket and its records. The log server
//! knows what it is for ([`crate::logserver::Role`]), and [`Outgoing`] in which order messages leave.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use radic_wire::frame::{FrameReader, FrameTooLarge, HEADER};
use radic_wire::limits;
use radic_wire::login::{Channel, LOGIN, Login, NONCE, PROOF, WELCOME};
use radic_wire::mac::JobKey;
use radic_wire::record::{Cover, Opener, RecordError, Sealer};

use crate::logserver::{Next, Outgoing};

/// Longest frame but for the beginning of an image: a chunk and what goes before it.
pub const FRAME: usize = limits::LOG_CHUNK + 128;
/// Bytes that are read at once, at first and at most.
const LEAST_READ: usize = 4 << 10;
const MOST_READ: usize = limits::LOG_CHUNK;

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

/// How far a connection is, and what comes next on it.
#[derive(Debug)]
pub enum Stage {
    /// A login is to come.
    Unproven(Partial<LOGIN>),
    /// The proof of what the login said.
    Challenged(Login, JobKey, [u8; NONCE], Partial<PROOF>),
    /// The kernel connects to a replica.
    Dialed(Login, JobKey),
    /// The replica is to say its nonce.
    Asked(Login, JobKey, Partial<NONCE>),
    /// The replica is to prove what it is.
    Proving(Login, JobKey, [u8; NONCE], Partial<WELCOME>),
    /// Frames, in records.
    Frames,
    /// The beginning of an image: one frame, in records of its own.
    ImageHead,
    /// An image, in records.
    Image,
    /// The number of an image that is wanted, in a record.
    Wish,
}

impl Stage {
    /// What comes on a connection that was let in.
    pub fn of(channel: Channel) -> Stage {
        match channel {
            Channel::Journal | Channel::Bulk | Channel::Replica => Stage::Frames,
            Channel::Image => Stage::ImageHead,
            Channel::Fetch => Stage::Wish,
        }
    }
}

/// The events that a connection is watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interest {
    /// There is something to read.
    pub read: bool,
    /// There is room to write.
    pub write: bool,
}

/// In which set of descriptors a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// Those on which gates depend.
    Urgent(Interest),
    /// Payload and images.
    Bulk(Interest),
    /// Payload or an image for which there is no room. A set reports a peer that is gone whether it was asked or not, again and
    /// again; and what that peer has sent counts.
    Not,
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
    pub stage: Stage,
    pub watch: Watch,
    pub input: FrameReader,
    /// What waits to be sent.
    pub out: Outgoing,
    /// What its records are made and opened with, once both sides have proven what they are.
    records: Option<(Sealer, Opener)>,
    /// Bytes that it has room for at once.
    room_for: usize,
}

/// Nothing more is to be read from a connection: what has come is neither records nor frames.
#[derive(Debug, thiserror::Error)]
pub enum BadInput {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Frame(#[from] FrameTooLarge),
}

impl Connection {
    pub fn new(socket: TcpStream, stage: Stage, interest: Interest, out: Outgoing) -> Self {
        let input = FrameReader::new(FRAME);
        Connection { socket, stage, watch: Watch::Urgent(interest), input, out, records: None, room_for: LEAST_READ }
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

    /// Hands frames that have come to `handle`, one after the other, until it wants something done first ([`Next::Answer`], [`Next::Closed`]). One that lies whole in a record is
    /// handled where it lies.
    pub fn take_frames(&mut self, mut handle: impl FnMut(&[u8]) -> Next) -> Result<Next, BadInput> {
        loop {
            while let Some(frame) = self.input.next_frame()? {
                match handle(frame) {
                    Next::Read => {}
                    other => return Ok(other),
                }
            }
            let Connection { records, input, .. } = self;
            let body = records.as_mut().map(|(_, opener)| opener.next_body()).transpose()?.flatten();
            let Some(mut body) = body else { return Ok(Next::Read) };
            // The rest of a frame that has begun comes first.
            if input.buffered() == 0 {
                while let Some(frame) = input.frame_in(body)? {
                    body = &body[HEADER + frame.len()..];
                    match handle(frame) {
                        Next::Read => {}
                        other => {
                            input.push(body);
                            return Ok(other);
                        }
                    }
                }
            }
            input.push(body);
        }
    }

    /// Whether bytes have come that were not handled.
    pub fn has_more(&self) -> bool {
        self.input.buffered() > 0 || self.records.as_ref().is_some_and(|(_, opener)| opener.buffered() > 0)
    }

    /// The socket, and what is sent on it is sealed with.
    pub fn into_sender(self) -> (TcpStream, Option<Sealer>) {
        (self.socket, self.records.map(|(sealer, _)| sealer))
    }

    /// Sends what can be sent. An error: the connection is lost.
    pub fn flush(&mut self) -> io::Result<()> {
        let Connection { socket, out, records, .. } = self;
        loop {
            let seal = records.as_mut().map(|(sealer, _)| |frames: &[u8], to: &mut Vec<u8>| sealer.seal_into(&[frames], to));
            let Some(bytes) = out.poll_transmit(seal) else { break };
            match socket.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(length) => out.handle_taken(length),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if out.is_given_up() { Err(io::Error::new(ErrorKind::TimedOut, "it takes no answers")) } else { Ok(()) }
    }

    /// Whether it needs to know when there is room to write.
    pub fn wants_to_write(&self) -> bool {
        !self.out.is_empty() || matches!(self.stage, Stage::Dialed(..))
    }

    /// Reads once. Bytes of records are with the opener afterwards.
    pub fn read(&mut self) -> io::Result<Came> {
        match self.read_once() {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(Came::Nothing),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Came::End),
            other => other,
        }
    }

    fn read_once(&mut self) -> io::Result<Came> {
        let Connection { socket, stage, records, room_for, .. } = self;
        let invalid = |error| io::Error::new(ErrorKind::InvalidData, error);
        let came = match stage {
            Stage::Unproven(partial) => match partial.read(socket)? {
                Some(bytes) => Some(Came::Login(Login::decode(bytes).map_err(invalid)?, *bytes)),
                None => None,
            },
            Stage::Challenged(login, key, nonce, partial) => {
                partial.read(socket)?.map(|proof| Came::Proof(login.is_proven(key, nonce, proof)))
            }
            Stage::Dialed(..) => None,
            Stage::Asked(_, _, partial) => partial.read(socket)?.map(|nonce| Came::Nonce(*nonce)),
            Stage::Proving(login, key, nonce, partial) => {
                partial.read(socket)?.map(|welcome| Came::Welcome(login.welcomed(key, nonce, welcome)))
            }
            Stage::Frames | Stage::ImageHead | Stage::Image | Stage::Wish => {
                let Some((_, opener)) = records else { return Ok(Came::End) };
                let room = opener.room(*room_for);
                let (length, offered) = (socket.read(room)?, room.len());
                opener.handle_read(length);
                // A connection on which much comes at once has room for as much. Most never do.
                if length == offered {
                    *room_for = (2 * *room_for).min(MOST_READ);
                }
                if length == 0 { Some(Came::End) } else { Some(Came::Records) }
            }
        };
        Ok(came.unwrap_or(Came::Nothing))
    }
}
