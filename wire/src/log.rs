//! What an observer and its protector say to each other, and what two observers say when they connect.
//!
//! Each message is the body of one frame ([`crate::frame`]) of at most [`limits::LOG_FRAME`] bytes. The codes are written by hand:
//! they are on the data path, inside the user's program, where nothing may be allocated; so messages borrow their bytes. Between
//! observer and protector there are the journal's connection, small and urgent, begun by a [`ToProtector::Hello`], the bulk one, and one
//! for each image ([`crate::login`]). Positions are absolute and outlive connections, protectors and incarnations, but for those of the payload
//! log, which count what one incarnation has received.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::bytes::{Malformed, Reader, Writer};
use crate::determinant::{ConnectionId, StreamId, read_address, read_process, write_address};
use crate::ids::{BootId, Epoch, Incarnation, ProcessId};
use crate::limits;

/// A range of positions, `start` included, `end` not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Span {
    /// The first position.
    pub start: u64,
    /// The position after the last.
    pub end: u64,
}

/// Where each stream stood at a cut: pairs of stream and offset, in a code that is checked when it is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CutStreams<'a>(Repr<'a>);

#[derive(Clone, Copy)]
enum Repr<'a> {
    Plain(&'a [(StreamId, u64)]),
    Coded { count: usize, bytes: &'a [u8] },
}

impl PartialEq for Repr<'_> {
    fn eq(&self, other: &Self) -> bool {
        CutStreams(*self).iter().eq(CutStreams(*other).iter())
    }
}

impl Eq for Repr<'_> {}

impl std::fmt::Debug for CutStreams<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> CutStreams<'a> {
    /// These streams; `None` if there are more than [`limits::CUT_STREAMS`].
    pub fn new(streams: &'a [(StreamId, u64)]) -> Option<Self> {
        (streams.len() <= limits::CUT_STREAMS).then_some(CutStreams(Repr::Plain(streams)))
    }

    /// Each stream and the offset up to which the image covers it.
    pub fn iter(&self) -> impl Iterator<Item = (StreamId, u64)> + 'a {
        let (plain, count, bytes) = match self.0 {
            Repr::Plain(streams) => (streams, 0, &[][..]),
            Repr::Coded { count, bytes } => (&[][..], count, bytes),
        };
        let mut from = Reader::new(bytes);
        // What is coded was checked when it was read.
        let coded = (0..count).map_while(move |_| Some((read_stream(&mut from).ok()?, from.varint().ok()?)));
        plain.iter().copied().chain(coded)
    }

    fn write(&self, out: &mut Writer<'_>) {
        out.varint(self.iter().count() as u64);
        for (stream, offset) in self.iter() {
            write_stream(out, &stream);
            out.varint(offset);
        }
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let count = from.varint()?;
        if count > limits::CUT_STREAMS as u64 {
            return Err(from.malformed("too many streams in a cut"));
        }
        let mut ahead = from.clone();
        for _ in 0..count {
            read_stream(&mut ahead)?;
            ahead.varint()?;
        }
        let bytes = from.raw(ahead.at() - from.at())?;
        Ok(CutStreams(Repr::Coded { count: count as usize, bytes }))
    }
}

fn write_stream(out: &mut Writer<'_>, stream: &StreamId) {
    stream.connection.write(out);
    out.u8(u8::from(stream.from_opener));
}

fn read_stream(from: &mut Reader<'_>) -> Result<StreamId, Malformed> {
    Ok(StreamId { connection: ConnectionId::read(from)?, from_opener: from.bool()? })
}

fn write_option(out: &mut Writer<'_>, value: Option<u64>) {
    out.u8(u8::from(value.is_some()));
    value.into_iter().for_each(|value| out.varint(value));
}

fn read_option(from: &mut Reader<'_>) -> Result<Option<u64>, Malformed> {
    if from.bool()? { from.varint().map(Some) } else { Ok(None) }
}

fn write_process(out: &mut Writer<'_>, process: &ProcessId) {
    out.varint(process.job.bits());
    out.varint(u64::from(process.rank.0));
}

fn write_span(out: &mut Writer<'_>, span: &Span) {
    out.varint(span.start);
    out.varint(span.end);
}

fn read_span(from: &mut Reader<'_>) -> Result<Span, Malformed> {
    let span = Span { start: from.varint()?, end: from.varint()? };
    if span.start <= span.end { Ok(span) } else { Err(from.malformed("a span that ends before it starts")) }
}

fn read_chunk<'a>(from: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let bytes = from.rest();
    if bytes.len() <= limits::LOG_CHUNK { Ok(bytes) } else { Err(from.malformed("a chunk over the limit")) }
}

/// From an observer to its protector. A protector forwards the same messages to its replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToProtector<'a> {
    /// The first message of the journal's connection, and the first after it was lost.
    Hello {
        /// The sender.
        process: ProcessId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// What the observer still has of its journal.
        journal: Span,
        /// What it still has of its payload log.
        payload: Span,
    },
    /// The journal goes on: whole determinants, of one outcome or several, never a part of one.
    Journal {
        /// Position of the first byte.
        position: u64,
        /// The codes.
        bytes: &'a [u8],
    },
    /// Received bytes; none: to a protector that has no image, from where the stream goes on.
    Payload {
        /// Position in the payload log.
        position: u64,
        /// The stream.
        stream: StreamId,
        /// Offset in it of the first byte.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// A stream has ended; the end is one unit, in the payload log too.
    PayloadEnd {
        /// Position in the payload log.
        position: u64,
        /// The stream.
        stream: StreamId,
        /// The offset after its last byte.
        offset: u64,
    },
    /// An image begins.
    ImageBegin {
        /// Its number, ascending over all incarnations.
        image: u64,
        /// The image that it is an increment of.
        parent: Option<u64>,
        /// The journal position that it corresponds to.
        cut: u64,
        /// Where the payload log stood.
        payload: u64,
        /// Where each stream stood that was being received; [`u64::MAX`]: closed, it is never read again.
        streams: CutStreams<'a>,
        /// Those of them of which the image covers the end, and the offset after the last byte.
        ended: CutStreams<'a>,
    },
    /// A piece of the image.
    ImageChunk {
        /// Which.
        image: u64,
        /// Offset in it.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The image is complete.
    ImageEnd {
        /// Which.
        image: u64,
        /// Its length, in bytes.
        length: u64,
    },
    /// The image will not be completed.
    ImageAbandoned {
        /// Which.
        image: u64,
    },
    /// To a replica: this image, which is committed at both, could not be restored.
    ImageUseless {
        /// Which.
        image: u64,
    },
    /// How much of this stream, which the observer sends, does its receiver's protector hold?
    AskStable {
        /// The stream.
        stream: StreamId,
    },
    /// A restarted process wants its journal from here.
    FetchJournal {
        /// From which position.
        position: u64,
    },
    /// A restarted process wants received bytes from here.
    FetchPayload {
        /// Of which stream.
        stream: StreamId,
        /// From which offset.
        offset: u64,
    },
    /// Replay is over.
    Live,
    /// This process has closed the connection, and a committed image covers that. The peer may forget the connection when the same holds there.
    Forget {
        /// The connection.
        connection: ConnectionId,
        /// No image of the sender has the connection any more.
        for_good: bool,
    },
    /// The program has ended. No image will shorten the log any more, so the log has no bound from now on. The process stays until all that it has received is
    /// acknowledged.
    Closing,
}

impl<'a> ToProtector<'a> {
    /// Writes the message.
    pub fn write(&self, out: &mut Writer<'_>) {
        match *self {
            ToProtector::Hello { process, incarnation, journal, payload } => {
                out.u8(0);
                write_process(out, &process);
                write_incarnation(out, incarnation);
                write_span(out, &journal);
                write_span(out, &payload);
            }
            ToProtector::Journal { position, bytes } => {
                out.u8(1);
                out.varint(position);
                out.raw(bytes);
            }
            ToProtector::Payload { position, stream, offset, bytes } => {
                out.u8(2);
                out.varint(position);
                write_stream(out, &stream);
                out.varint(offset);
                out.raw(bytes);
            }
            ToProtector::PayloadEnd { position, stream, offset } => {
                out.u8(3);
                out.varint(position);
                write_stream(out, &stream);
                out.varint(offset);
            }
            ToProtector::ImageBegin { image, parent, cut, payload, streams, ended } => {
                out.u8(4);
                out.varint(image);
                write_option(out, parent);
                out.varint(cut);
                out.varint(payload);
                streams.write(out);
                ended.write(out);
            }
            ToProtector::ImageChunk { image, offset, bytes } => {
                out.u8(5);
                out.varint(image);
                out.varint(offset);
                out.raw(bytes);
            }
            ToProtector::ImageEnd { image, length } => {
                out.u8(6);
                out.varint(image);
                out.varint(length);
            }
            ToProtector::ImageAbandoned { image } => {
                out.u8(7);
                out.varint(image);
            }
            ToProtector::ImageUseless { image } => {
                out.u8(14);
                out.varint(image);
            }
            ToProtector::AskStable { stream } => {
                out.u8(8);
                write_stream(out, &stream);
            }
            ToProtector::FetchJournal { position } => {
                out.u8(9);
                out.varint(position);
            }
            ToProtector::FetchPayload { stream, offset } => {
                out.u8(10);
                write_stream(out, &stream);
                out.varint(offset);
            }
            ToProtector::Live => out.u8(11),
            ToProtector::Closing => out.u8(13),
            ToProtector::Forget { connection, for_good } => {
                out.u8(12);
                connection.write(out);
                out.u8(u8::from(for_good));
            }
        }
    }

    /// Reads a message from all of `bytes`.
    pub fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let from = &mut Reader::new(bytes);
        let message = match from.u8()? {
            0 => ToProtector::Hello {
                process: read_process(from)?,
                incarnation: read_incarnation(from)?,
                journal: read_span(from)?,
                payload: read_span(from)?,
            },
            1 => ToProtector::Journal { position: from.varint()?, bytes: read_chunk(from)? },
            2 => ToProtector::Payload {
                position: from.varint()?,
                stream: read_stream(from)?,
                offset: from.varint()?,
                bytes: read_chunk(from)?,
            },
            3 => ToProtector::PayloadEnd { position: from.varint()?, stream: read_stream(from)?, offset: from.varint()? },
            4 => {
                let (image, parent) = (from.varint()?, read_option(from)?);
                let (cut, payload) = (from.varint()?, from.varint()?);
                let (streams, ended) = (CutStreams::read(from)?, CutStreams::read(from)?);
                ToProtector::ImageBegin { image, parent, cut, payload, streams, ended }
            }
            5 => ToProtector::ImageChunk { image: from.varint()?, offset: from.varint()?, bytes: read_chunk(from)? },
            6 => ToProtector::ImageEnd { image: from.varint()?, length: from.varint()? },
            7 => ToProtector::ImageAbandoned { image: from.varint()? },
            8 => ToProtector::AskStable { stream: read_stream(from)? },
            9 => ToProtector::FetchJournal { position: from.varint()? },
            10 => ToProtector::FetchPayload { stream: read_stream(from)?, offset: from.varint()? },
            11 => ToProtector::Live,
            12 => ToProtector::Forget { connection: ConnectionId::read(from)?, for_good: from.bool()? },
            13 => ToProtector::Closing,
            14 => ToProtector::ImageUseless { image: from.varint()? },
            _ => return Err(from.malformed("no such message")),
        };
        from.clone().finish()?;
        Ok(message)
    }
}

fn read_incarnation(from: &mut Reader<'_>) -> Result<Incarnation, Malformed> {
    let view = from.varint()?;
    let count = u32::try_from(from.varint()?).map_err(|_| from.malformed("more epochs than 32 bits count"))?;
    let home = BootId(from.varint()?);
    let restart = u32::try_from(from.varint()?).map_err(|_| from.malformed("more restarts than 32 bits count"))?;
    Ok(Incarnation { epoch: Epoch { view, count, home }, restart })
}

fn write_incarnation(out: &mut Writer<'_>, incarnation: Incarnation) {
    let Incarnation { epoch, restart } = incarnation;
    out.varint(epoch.view);
    out.varint(u64::from(epoch.count));
    out.varint(epoch.home.0);
    out.varint(u64::from(restart));
}

/// From a protector to an observer it protects; from a replica to the protector before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromProtector<'a> {
    /// The answer to a hello: go on from here. A position before what the observer still has means that the log begins anew
    /// with what it has, and that an image is wanted at once.
    Welcome {
        /// The journal is stable up to this position.
        journal: u64,
        /// The payload log is stable up to this position.
        payload: u64,
    },
    /// The sender is an older incarnation, which may not speak for this process any more (G4). It must end.
    Fenced {
        /// The one that may, or one before it.
        newest: Incarnation,
    },
    /// The journal is stable up to this position.
    JournalStable {
        /// The position.
        position: u64,
    },
    /// The payload log is stable up to this position.
    PayloadStable {
        /// The position.
        position: u64,
    },
    /// An image is whole, verified and replicated. It is sent again when the oldest image has changed.
    Committed {
        /// Which.
        image: u64,
        /// The oldest image that a restart may take. The part of the log that it covers was dropped.
        oldest: u64,
    },
    /// An image was refused.
    ImageRefused {
        /// Which.
        image: u64,
    },
    /// A bound of the log is near: please make an image soon.
    ImageWanted,
    /// The increments on the last whole image are longer than that: please make the next image a whole one.
    WholeWanted,
    /// The receiver's protector holds this stream, which the observer sends, up to this offset.
    StreamStable {
        /// The stream.
        stream: StreamId,
        /// The offset.
        offset: u64,
    },
    /// A piece of the journal, for a restart.
    Journal {
        /// Position of the first byte.
        position: u64,
        /// The codes.
        bytes: &'a [u8],
    },
    /// What is held of each stream that the process receives, for a restart; several of these if there are many streams.
    Held {
        /// Each stream and the offset up to which it is held; its end counts as one unit.
        streams: CutStreams<'a>,
        /// Those of them that have ended, and the offset after the last byte.
        ended: CutStreams<'a>,
    },
    /// The peer of this connection will never need it again.
    Forget {
        /// The connection.
        connection: ConnectionId,
        /// No image of the sender has the connection any more.
        for_good: bool,
    },
    /// Received bytes, for a restart.
    Payload {
        /// The stream.
        stream: StreamId,
        /// Offset of the first byte.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
}

impl<'a> FromProtector<'a> {
    /// Writes the message.
    pub fn write(&self, out: &mut Writer<'_>) {
        match *self {
            FromProtector::Welcome { journal, payload } => {
                out.u8(0);
                out.varint(journal);
                out.varint(payload);
            }
            FromProtector::Fenced { newest } => {
                out.u8(1);
                write_incarnation(out, newest);
            }
            FromProtector::JournalStable { position } => {
                out.u8(2);
                out.varint(position);
            }
            FromProtector::PayloadStable { position } => {
                out.u8(3);
                out.varint(position);
            }
            FromProtector::Committed { image, oldest } => {
                out.u8(4);
                out.varint(image);
                out.varint(oldest);
            }
            FromProtector::ImageRefused { image } => {
                out.u8(5);
                out.varint(image);
            }
            FromProtector::ImageWanted => out.u8(6),
            FromProtector::StreamStable { stream, offset } => {
                out.u8(7);
                write_stream(out, &stream);
                out.varint(offset);
            }
            FromProtector::Journal { position, bytes } => {
                out.u8(8);
                out.varint(position);
                out.raw(bytes);
            }
            FromProtector::WholeWanted => out.u8(12),
            FromProtector::Held { streams, ended } => {
                out.u8(10);
                streams.write(out);
                ended.write(out);
            }
            FromProtector::Forget { connection, for_good } => {
                out.u8(11);
                connection.write(out);
                out.u8(u8::from(for_good));
            }
            FromProtector::Payload { stream, offset, bytes } => {
                out.u8(9);
                write_stream(out, &stream);
                out.varint(offset);
                out.raw(bytes);
            }
        }
    }

    /// Reads a message from all of `bytes`.
    pub fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let from = &mut Reader::new(bytes);
        let message = match from.u8()? {
            0 => FromProtector::Welcome { journal: from.varint()?, payload: from.varint()? },
            1 => FromProtector::Fenced { newest: read_incarnation(from)? },
            2 => FromProtector::JournalStable { position: from.varint()? },
            3 => FromProtector::PayloadStable { position: from.varint()? },
            4 => FromProtector::Committed { image: from.varint()?, oldest: from.varint()? },
            5 => FromProtector::ImageRefused { image: from.varint()? },
            6 => FromProtector::ImageWanted,
            7 => FromProtector::StreamStable { stream: read_stream(from)?, offset: from.varint()? },
            8 => FromProtector::Journal { position: from.varint()?, bytes: read_chunk(from)? },
            9 => FromProtector::Payload { stream: read_stream(from)?, offset: from.varint()?, bytes: read_chunk(from)? },
            10 => FromProtector::Held { streams: CutStreams::read(from)?, ended: CutStreams::read(from)? },
            11 => FromProtector::Forget { connection: ConnectionId::read(from)?, for_good: from.bool()? },
            12 => FromProtector::WholeWanted,
            _ => return Err(from.malformed("no such message")),
        };
        from.clone().finish()?;
        Ok(message)
    }
}

/// Both ends of a connection, as the program that has opened it sees them: where processes have moved, the sockets have others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// Its own.
    pub from: SocketAddr,
    /// The other one's.
    pub to: SocketAddr,
}

/// The hello of docs/design.md's data path: what the connecting observer writes on a new socket, and what the accepting one answers
/// when the connection was there before (`attempt` above 0). A MAC goes around it: the caller's affair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// The sender.
    pub process: ProcessId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// About which connection.
    pub connection: ConnectionId,
    /// Which attempt of this incarnation of its opener to connect it, from 0; an answer repeats it.
    pub attempt: u32,
    /// The offset up to which the sender has received the other direction: go on there.
    pub received: u64,
    /// The offset up to which the sender's protector holds that direction: bytes before it need not be kept any longer.
    pub stable: u64,
    /// The offset of the oldest byte that the sender keeps of its own direction. It is above what the receiver wants only if the receiver wanted nothing more in an
    /// earlier incarnation.
    pub kept: u64,
    /// The offset after the last byte of the sender's own direction, if it has ended that.
    pub finish: Option<u64>,
    /// Whether the sender has replayed its log. If not, it will still take more than `received` says, and a receiver that replays, too,
    /// must send that again before it goes live (Gate B).
    pub settled: bool,
    /// What the opener sees, in a greeting of the opener. The acceptor's greetings (an answer, or a call) have none.
    pub ends: Option<Ends>,
}

/// Longest greeting, in bytes.
pub const GREETING: usize = 184;

impl Greeting {
    /// Whether the connection's acceptor has sent it. As the first message on a link it is then a call, which says only that the link is broken.
    pub fn is_call(&self) -> bool {
        self.process != self.connection.opener
    }

    /// Writes it: at most [`GREETING`] bytes.
    pub fn write(&self, out: &mut Writer<'_>) {
        write_process(out, &self.process);
        write_incarnation(out, self.incarnation);
        self.connection.write(out);
        out.varint(u64::from(self.attempt));
        out.varint(self.received);
        out.varint(self.stable);
        out.varint(self.kept);
        write_option(out, self.finish);
        out.u8(u8::from(self.settled));
        out.u8(u8::from(self.ends.is_some()));
        if let Some(Ends { from, to }) = &self.ends {
            write_address(out, from);
            write_address(out, to);
        }
    }

    /// Reads it from all of `bytes`.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let from = &mut Reader::new(bytes);
        let (process, incarnation, connection) = (read_process(from)?, read_incarnation(from)?, ConnectionId::read(from)?);
        let attempt = from.varint()?;
        let attempt = u32::try_from(attempt).map_err(|_| from.malformed("an attempt over 32 bits"))?;
        let (received, stable, kept) = (from.varint()?, from.varint()?, from.varint()?);
        let finish = read_option(from)?;
        let settled = from.bool()?;
        let ends = if from.bool()? { Some(Ends { from: read_address(from)?, to: read_address(from)? }) } else { None };
        let greeting = Greeting { process, incarnation, connection, attempt, received, stable, kept, finish, settled, ends };
        from.clone().finish()?;
        Ok(greeting)
    }
}

/// One of the sequences that a log service holds for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LogPart {
    /// Its journal: determinants, by position.
    Journal,
    /// What it has received on a stream, by offset.
    Stream(StreamId),
    /// The image of this number, as `radic ckpt` reads it, by offset.
    Image(u64),
}

/// What a log service holds for one process: for `radic log show`, `radic replay` and `radic status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLog {
    /// The process.
    pub process: ProcessId,
    /// Its newest incarnation.
    pub incarnation: Incarnation,
    /// The journal that can be read: with `keep_logs` from its beginning, else what a restart needs.
    pub journal: Span,
    /// Up to where the journal is acknowledged.
    pub stable: u64,
    /// What it received, at most [`limits::CUT_STREAMS`], in the order of their names.
    pub streams: Vec<HeldStream>,
    /// Images, oldest first, the one under way last.
    pub images: Vec<HeldImage>,
}

/// A stream in a [`HeldLog`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldStream {
    /// Which.
    pub stream: StreamId,
    /// The bytes that can be read.
    pub bytes: Span,
    /// The offset after its last byte, if it has ended.
    pub ended: Option<u64>,
    /// A committed image covers that the process has closed the connection: a restart needs nothing of it.
    pub closed: bool,
}

/// An image in a [`HeldLog`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldImage {
    /// Its number.
    pub image: u64,
    /// The image that it is an increment of.
    pub parent: Option<u64>,
    /// The journal position that it corresponds to.
    pub cut: u64,
    /// Its length so far, in bytes.
    pub bytes: u64,
    /// What became of it.
    pub state: ImageState,
}

/// The numbers of a process's images, when it comes back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRange {
    /// The oldest image that a later restart may take. The part of the log that only newer ones cover is still needed.
    pub oldest: u64,
    /// The next image has at least this number; lower ones were given.
    pub next: u64,
}

/// What became of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageState {
    /// It is on its way, being verified, or waits for the replica.
    UnderWay,
    /// A restart begins with it, or needs it for that.
    Committed,
    /// A newer one is committed. This one is kept because of `keep_logs`, or in case the newer one cannot be restored.
    Superseded,
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV6;

    use proptest::prelude::*;

    use super::*;
    use crate::ids::{JobId, Rank};

    fn written(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut out = vec![0; 4096];
        let mut writer = Writer::new(&mut out);
        write(&mut writer);
        let length = writer.finish().unwrap();
        out.truncate(length);
        out
    }

    /// Refused, or written back bit for bit.
    fn strict(bytes: &[u8]) -> Result<(), TestCaseError> {
        if let Ok(message) = ToProtector::read(bytes) {
            prop_assert_eq!(written(|out| message.write(out)), bytes);
        }
        if let Ok(message) = FromProtector::read(bytes) {
            prop_assert_eq!(written(|out| message.write(out)), bytes);
        }
        if let Ok(greeting) = Greeting::read(bytes) {
            prop_assert_eq!(written(|out| greeting.write(out)), bytes);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn messages_come_back(a: u64, b: u64, c: u32, bytes in prop::collection::vec(any::<u8>(), 0..100), number: u64, from_opener: bool) {
            let process = ProcessId { job: JobId::from_bits(a), rank: Rank(c) };
            let stream = StreamId { connection: ConnectionId { opener: process, number }, from_opener };
            let span = Span { start: a.min(b), end: a.max(b) };
            let epoch = Epoch { view: b, count: c, home: BootId(a) };
            let (incarnation, bytes, pair) = (Incarnation { epoch, restart: c }, bytes.as_slice(), [(stream, a), (stream, b)]);
            let streams = CutStreams::new(&pair).unwrap();
            for message in [
                ToProtector::Hello { process, incarnation, journal: span, payload: span },
                ToProtector::Journal { position: a, bytes },
                ToProtector::Payload { position: a, stream, offset: b, bytes },
                ToProtector::PayloadEnd { position: a, stream, offset: b },
                ToProtector::ImageBegin { image: a, parent: None, cut: b, payload: number, streams, ended: streams },
                ToProtector::ImageBegin { image: a, parent: Some(b), cut: b, payload: number, streams, ended: streams },
                ToProtector::ImageChunk { image: a, offset: b, bytes },
                ToProtector::ImageEnd { image: a, length: b },
                ToProtector::ImageAbandoned { image: a },
                ToProtector::ImageUseless { image: a },
                ToProtector::AskStable { stream },
                ToProtector::FetchJournal { position: a },
                ToProtector::FetchPayload { stream, offset: a },
                ToProtector::Live,
                ToProtector::Closing,
                ToProtector::Forget { connection: stream.connection, for_good: from_opener },
            ] {
                let code = written(|out| message.write(out));
                prop_assert_eq!(ToProtector::read(&code), Ok(message));
            }
            for message in [
                FromProtector::Welcome { journal: a, payload: b },
                FromProtector::Fenced { newest: incarnation },
                FromProtector::JournalStable { position: a },
                FromProtector::PayloadStable { position: a },
                FromProtector::Committed { image: a, oldest: b },
                FromProtector::ImageRefused { image: a },
                FromProtector::ImageWanted,
                FromProtector::WholeWanted,
                FromProtector::StreamStable { stream, offset: a },
                FromProtector::Journal { position: a, bytes },
                FromProtector::Payload { stream, offset: b, bytes },
                FromProtector::Held { streams, ended: streams },
                FromProtector::Forget { connection: stream.connection, for_good: from_opener },
            ] {
                let code = written(|out| message.write(out));
                prop_assert_eq!(FromProtector::read(&code), Ok(message));
            }
            let (from, to) = (SocketAddr::from(([10, 0, 0, 1], c as u16)), SocketAddr::from((a.to_le_bytes().map(u16::from), 1)));
            let ends = (!from_opener).then_some(Ends { from, to });
            let greeting = Greeting { process, incarnation, connection: stream.connection, attempt: c, received: a, stable: b, kept: a, finish: from_opener.then_some(a), settled: from_opener, ends };
            let code = written(|out| greeting.write(out));
            prop_assert!(code.len() <= GREETING);
            prop_assert_eq!(Greeting::read(&code), Ok(greeting));
        }

        #[test]
        fn bytes_are_refused_or_written_back(
            first in 0u8..13, tail in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(2), any::<u8>()], 0..40),
        ) {
            strict(&[&[first], tail.as_slice()].concat())?;
            strict(&tail)?;
        }
    }

    #[test]
    fn a_greeting_is_never_longer_than_its_limit() {
        let process = ProcessId { job: JobId::from_bits(u64::MAX), rank: Rank(u32::MAX) };
        let connection = ConnectionId { opener: process, number: u64::MAX };
        let epoch = Epoch { view: u64::MAX, count: u32::MAX, home: BootId(u64::MAX) };
        let incarnation = Incarnation { epoch, restart: u32::MAX };
        let (attempt, received, stable, kept, finish) = (u32::MAX, u64::MAX, u64::MAX, u64::MAX, Some(u64::MAX));
        let address = SocketAddr::V6(SocketAddrV6::new([0xff; 16].into(), u16::MAX, u32::MAX, u32::MAX));
        let ends = Some(Ends { from: address, to: address });
        let greeting =
            Greeting { process, incarnation, connection, attempt, received, stable, kept, finish, settled: true, ends };
        assert!(written(|out| greeting.write(out)).len() <= GREETING);
    }

    #[test]
    fn lengths_are_bounded() {
        let long = vec![0; limits::LOG_CHUNK + 1];
        let mut code = vec![1, 0];
        code.extend_from_slice(&long);
        assert!(ToProtector::read(&code).is_err());
        assert!(ToProtector::read(&code[..code.len() - 1]).is_ok());
        // A cut that claims 2^32 streams.
        assert!(ToProtector::read(&[4, 1, 0, 0, 0, 0x80, 0x80, 0x80, 0x80, 0x10]).is_err());
    }
}
