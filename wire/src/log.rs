//! What an observer and its protector say to each other, and what two observers say when they connect.
//!
//! Each message is the body of one frame ([`crate::frame`]) of at most [`limits::LOG_FRAME`] bytes. The codes are written by hand:
//! they are on the data path, inside the user's program, where nothing may be allocated; so messages borrow their bytes. Between
//! observer and protector there are the journal's connection, small and urgent, begun by a [`ToProtector::Hello`], the bulk one, and one
//! for each image ([`crate::login`]). Positions are absolute and outlive connections, protectors and incarnations, but for those of the payload
//! log, which count what one incarnation has received.

mod from_protector;
mod greeting;
mod held;
#[cfg(test)]
mod tests;
mod to_protector;

use serde::{Deserialize, Serialize};

use crate::bytes::{Malformed, Reader, Writer};
use crate::determinant::{ConnectionId, StreamId};
use crate::ids::{BootId, Epoch, Incarnation, ProcessId};
use crate::limits;

pub use from_protector::FromProtector;
pub use greeting::{Ends, GREETING, Greeting};
pub use held::{HeldImage, HeldLog, HeldStream, ImageRange, ImageState, LineMark, LogPart};
pub use to_protector::{NewCauses, ToProtector};

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
