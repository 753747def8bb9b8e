//! What an observer says to its protector.

use super::codes::{
    CutStreams, read_chunk, read_incarnation, read_option, read_stream, write_incarnation, write_option, write_process,
    write_stream,
};
use super::held::LineMark;
use crate::bytes::{Malformed, Reader, Writer};
use crate::causes;
use crate::determinant::{ConnectionId, StreamId, read_process};
use crate::ids::{Incarnation, ProcessId};
use crate::span::Span;

/// From an observer to its protector. A protector forwards the same messages to its replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToProtector<'a> {
    /// The first message of the journal's connection, and the first after it was lost.
    Hello {
        /// The sender.
        process: ProcessId,
        /// The process's incarnation.
        incarnation: Incarnation,
        /// What the observer still has of its journal.
        journal: Span,
        /// What it still has of its payload log.
        payload: Span,
        /// The image that is under way on a connection of its own.
        image: Option<u64>,
        /// The newest image of which a protector has said that it is committed. Where received bytes stay with their senders,
        /// these may have forgotten what an older one needs.
        committed: Option<u64>,
    },
    /// The journal goes on: whole determinants, of one outcome or several, never a part of one.
    Journal {
        /// Position of the first byte.
        position: u64,
        /// The codes.
        bytes: &'a [u8],
    },
    /// The journal goes on, with causes that are new to the protector: what the journal depends on from here on. None of the two
    /// is held without the other, so neither a log nor what is brought back from it depends on what the log cannot produce.
    JournalAfter {
        /// Position of the first byte.
        position: u64,
        /// The causes.
        causes: NewCauses<'a>,
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
        /// The image's number, ascending over all incarnations.
        image: u64,
        /// The image that it is an increment of.
        parent: Option<u64>,
        /// The journal position that it corresponds to.
        cut: u64,
        /// Where the payload log stood.
        payload: u64,
        /// Up to where the process depends on the causes that it keeps.
        causes: u64,
        /// Where the image stands among the recovery lines of its job.
        line: LineMark,
        /// Where each stream stood that was being received; [`u64::MAX`]: closed, it is never read again.
        streams: CutStreams<'a>,
        /// The streams of these of which the image covers the end, and the offset after the last byte.
        ended: CutStreams<'a>,
    },
    /// This image is under way: its connection was admitted. If that breaks before the image has begun on it, its number is known here.
    ImageUnderWay {
        /// Which.
        image: u64,
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
        /// The image's length, in bytes.
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

/// A part of the causes that a process keeps, which are one sequence of bytes ([`crate::causes`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewCauses<'a> {
    /// What the process keeps begins here: what is before need not be held any more.
    pub start: u64,
    /// Position of the first byte.
    pub position: u64,
    /// Whole causes.
    pub bytes: &'a [u8],
}

impl NewCauses<'_> {
    /// Writes what of a [`ToProtector::JournalAfter`] precedes the bytes of the causes.
    pub fn write_head(&self, out: &mut Writer<'_>, position: u64) {
        numbers(out, 16, [position, self.start, self.position, self.bytes.len() as u64]);
    }
}

/// A message's kind, and its numbers.
fn numbers<const COUNT: usize>(out: &mut Writer<'_>, kind: u8, numbers: [u64; COUNT]) {
    out.u8(kind);
    numbers.into_iter().for_each(|number| out.varint(number));
}

/// A message's kind, a position in the payload, and what stands there.
fn place_in_payload(out: &mut Writer<'_>, kind: u8, position: u64, stream: &StreamId, offset: u64) {
    numbers(out, kind, [position]);
    write_stream(out, stream);
    out.varint(offset);
}

impl<'a> ToProtector<'a> {
    /// The hello of a process that has no image under way, and was told of none that is committed.
    pub const fn hello(process: ProcessId, incarnation: Incarnation, journal: Span, payload: Span) -> Self {
        ToProtector::Hello { process, incarnation, journal, payload, image: None, committed: None }
    }

    /// The beginning of an image by itself, whose process depends on no causes, and had made its images of the lines up to
    /// `line`. `cut` and `payload` are where its logs stood.
    pub fn image_by_itself(
        image: u64,
        parent: Option<u64>,
        (cut, payload): (u64, u64),
        line: u64,
        streams: CutStreams<'a>,
        ended: CutStreams<'a>,
    ) -> Self {
        let line = LineMark { newest: line, joins: false };
        ToProtector::ImageBegin { image, parent, cut, payload, causes: 0, line, streams, ended }
    }

    /// Writes the message.
    pub fn write(&self, out: &mut Writer<'_>) {
        match *self {
            ToProtector::Hello { process, incarnation, journal, payload, image, committed } => {
                out.u8(0);
                write_process(out, &process);
                write_incarnation(out, incarnation);
                journal.write(out);
                payload.write(out);
                write_option(out, image);
                write_option(out, committed);
            }
            ToProtector::Journal { position, bytes } => {
                numbers(out, 1, [position]);
                out.raw(bytes);
            }
            ToProtector::JournalAfter { position, causes, bytes } => {
                causes.write_head(out, position);
                out.raw(causes.bytes);
                out.raw(bytes);
            }
            ToProtector::Payload { position, stream, offset, bytes } => {
                place_in_payload(out, 2, position, &stream, offset);
                out.raw(bytes);
            }
            ToProtector::PayloadEnd { position, stream, offset } => place_in_payload(out, 3, position, &stream, offset),
            ToProtector::ImageBegin { image, parent, cut, payload, causes, line, streams, ended } => {
                out.u8(4);
                out.varint(image);
                write_option(out, parent);
                out.varint(cut);
                out.varint(payload);
                out.varint(causes);
                out.varint(line.newest);
                out.u8(u8::from(line.joins));
                streams.write(out);
                ended.write(out);
            }
            ToProtector::ImageChunk { image, offset, bytes } => {
                numbers(out, 5, [image, offset]);
                out.raw(bytes);
            }
            ToProtector::ImageEnd { image, length } => numbers(out, 6, [image, length]),
            ToProtector::ImageAbandoned { image } => numbers(out, 7, [image]),
            ToProtector::ImageUnderWay { image } => numbers(out, 15, [image]),
            ToProtector::ImageUseless { image } => numbers(out, 14, [image]),
            ToProtector::AskStable { stream } => {
                out.u8(8);
                write_stream(out, &stream);
            }
            ToProtector::FetchJournal { position } => numbers(out, 9, [position]),
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
                journal: Span::read(from)?,
                payload: Span::read(from)?,
                image: read_option(from)?,
                committed: read_option(from)?,
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
                let (cut, payload, causes) = (from.varint()?, from.varint()?, from.varint()?);
                let line = LineMark { newest: from.varint()?, joins: from.bool()? };
                let (streams, ended) = (CutStreams::read(from)?, CutStreams::read(from)?);
                ToProtector::ImageBegin { image, parent, cut, payload, causes, line, streams, ended }
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
            15 => ToProtector::ImageUnderWay { image: from.varint()? },
            16 => {
                let (position, start, at) = (from.varint()?, from.varint()?, from.varint()?);
                let length = usize::try_from(from.varint()?).map_err(|_| from.malformed("too many causes"))?;
                let causes = NewCauses { start, position: at, bytes: from.raw(length)? };
                if start > at || causes::read(causes.bytes).any(|cause| cause.is_err()) {
                    return Err(from.malformed("causes that are none"));
                }
                ToProtector::JournalAfter { position, causes, bytes: read_chunk(from)? }
            }
            _ => return Err(from.malformed("no such message")),
        };
        from.clone().finish()?;
        Ok(message)
    }
}
