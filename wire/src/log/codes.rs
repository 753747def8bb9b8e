//! What several messages have in their codes.

use crate::bytes::{Malformed, Reader, Writer};
use crate::determinant::{ConnectionId, StreamId};
use crate::ids::{BootId, Epoch, Incarnation, ProcessId};
use crate::limits;

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

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        out.varint(self.iter().count() as u64);
        for (stream, offset) in self.iter() {
            write_stream(out, &stream);
            out.varint(offset);
        }
    }

    pub(super) fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
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

pub(super) fn write_stream(out: &mut Writer<'_>, stream: &StreamId) {
    stream.connection.write(out);
    out.u8(u8::from(stream.from_opener));
}

pub(super) fn read_stream(from: &mut Reader<'_>) -> Result<StreamId, Malformed> {
    Ok(StreamId { connection: ConnectionId::read(from)?, from_opener: from.bool()? })
}

pub(super) fn write_option(out: &mut Writer<'_>, value: Option<u64>) {
    out.u8(u8::from(value.is_some()));
    value.into_iter().for_each(|value| out.varint(value));
}

pub(super) fn read_option(from: &mut Reader<'_>) -> Result<Option<u64>, Malformed> {
    if from.bool()? { from.varint().map(Some) } else { Ok(None) }
}

pub(super) fn write_process(out: &mut Writer<'_>, process: &ProcessId) {
    out.varint(process.job.bits());
    out.varint(u64::from(process.rank.0));
}

pub(super) fn read_chunk<'a>(from: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let bytes = from.rest();
    if bytes.len() <= limits::LOG_CHUNK { Ok(bytes) } else { Err(from.malformed("a chunk over the limit")) }
}

pub(super) fn read_incarnation(from: &mut Reader<'_>) -> Result<Incarnation, Malformed> {
    let view = from.varint()?;
    let count = u32::try_from(from.varint()?).map_err(|_| from.malformed("more epochs than 32 bits count"))?;
    let home = BootId(from.varint()?);
    let restart = u32::try_from(from.varint()?).map_err(|_| from.malformed("more restarts than 32 bits count"))?;
    Ok(Incarnation { epoch: Epoch { view, count, home }, restart })
}

pub(super) fn write_incarnation(out: &mut Writer<'_>, incarnation: Incarnation) {
    let Incarnation { epoch, restart } = incarnation;
    out.varint(epoch.view);
    out.varint(u64::from(epoch.count));
    out.varint(epoch.home.0);
    out.varint(u64::from(restart));
}
