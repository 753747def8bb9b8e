//! What a protector says to an observer.

use super::codes::{
    CutStreams, read_chunk, read_incarnation, read_option, read_stream, write_incarnation, write_option, write_stream,
};
use crate::bytes::{Malformed, Reader, Writer};
use crate::determinant::{ConnectionId, StreamId};
use crate::ids::Incarnation;

/// From a protector to an observer it protects; from a replica to the protector before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromProtector<'a> {
    /// The answer to a hello: go on from here. A position before the oldest that the observer still has means that a new log begins
    /// with what it has, and that an image is wanted at once.
    Welcome {
        /// The journal is stable up to this position.
        journal: u64,
        /// The payload log is stable up to this position.
        payload: u64,
        /// The newest image that is committed.
        image: Option<u64>,
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
    /// The causes that the process keeps are held up to this position.
    CausesHeld {
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
        /// The streams of these that have ended, and the offset after the last byte.
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
            FromProtector::Welcome { journal, payload, image } => {
                out.u8(0);
                out.varint(journal);
                out.varint(payload);
                write_option(out, image);
            }
            FromProtector::Fenced { newest } => {
                out.u8(1);
                write_incarnation(out, newest);
            }
            FromProtector::JournalStable { position } => {
                out.u8(2);
                out.varint(position);
            }
            FromProtector::CausesHeld { position } => {
                out.u8(13);
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
            0 => FromProtector::Welcome { journal: from.varint()?, payload: from.varint()?, image: read_option(from)? },
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
            13 => FromProtector::CausesHeld { position: from.varint()? },
            _ => return Err(from.malformed("no such message")),
        };
        from.clone().finish()?;
        Ok(message)
    }
}
