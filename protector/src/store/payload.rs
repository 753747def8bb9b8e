//! The payload log of one process: the bytes that it has received, by stream.
//!
//! The log has a position, which counts the units of all streams together and belongs to one incarnation. What is acknowledged
//! goes up to a position; what a sender need not keep goes up to an offset of each stream.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use radic_wire::determinant::StreamId;
use radic_wire::ids::Incarnation;
use radic_wire::limits;

use super::log::Log;

/// One stream that the process receives.
#[derive(Debug, Clone, Default)]
pub(super) struct Stream {
    pub(super) log: Log,
    pub(super) ended: Option<u64>,
    /// Units that are acknowledged, or covered by a committed image.
    pub(super) stable: u64,
    /// The last committed cut covers the close of the stream.
    pub(super) closed: bool,
    /// The stream is among those of its process that may have something to write.
    pub(super) listed: bool,
}

impl Stream {
    /// A stream of which another protector has held what is before this offset.
    fn at(offset: u64) -> Self {
        Stream { log: Log::at(offset), stable: offset, ..Stream::default() }
    }

    /// Units held. The end of the stream is one.
    pub(super) fn held(&self) -> u64 {
        self.log.end().saturating_add(u64::from(self.ended == Some(self.log.end())))
    }

    /// Frees memory of what a file has. Payload that is not stable stays, because a new replica is given it from here.
    pub(super) fn release(&mut self) -> usize {
        self.log.release(self.stable)
    }
}

/// Payload that is not acknowledged: up to this position in the payload log, and these offsets of the stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unstable {
    pub(super) position: u64,
    pub(super) stream: StreamId,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) is_end: bool,
}

/// See the module's text.
#[derive(Debug, Clone)]
pub(super) struct Payload {
    pub(super) streams: BTreeMap<StreamId, Stream>,
    /// The incarnation whose positions these are. From the fence until the log is settled it is the one before, then the next one
    /// begins.
    pub(super) counted: Incarnation,
    /// The position where the log begins here.
    pub(super) start: u64,
    /// The position after its newest unit.
    pub(super) end: u64,
    /// What is before this position is acknowledged.
    pub(super) stable: u64,
    /// The observer was told that what is before this position is stable.
    pub(super) told: u64,
    /// What is not acknowledged, in order.
    pub(super) unstable: VecDeque<Unstable>,
    /// Streams that may have something to write.
    pub(super) dirty: VecDeque<StreamId>,
}

impl Payload {
    /// An empty log of this incarnation at `position`.
    pub(super) fn at(incarnation: Incarnation, position: u64) -> Self {
        let (streams, unstable, dirty) = Default::default();
        Payload {
            streams,
            counted: incarnation,
            start: position,
            end: position,
            stable: position,
            told: position,
            unstable,
            dirty,
        }
    }

    /// A new incarnation begins. It counts from 0, and what it finds here is stable.
    pub(super) fn renew(&mut self, incarnation: Incarnation) {
        self.counted = incarnation;
        self.unstable.clear();
        (self.end, self.start, self.stable, self.told) = (0, 0, 0, 0);
        self.streams.values_mut().for_each(|stream| stream.stable = stream.stable.max(stream.held()));
    }

    /// Bytes held.
    pub(super) fn len(&self) -> u64 {
        self.streams.values().map(|stream| stream.log.len()).sum()
    }

    /// Bytes held in memory.
    pub(super) fn in_memory(&self) -> usize {
        self.streams.values().map(|stream| stream.log.in_memory()).sum()
    }

    /// Bytes that are not acknowledged: they stay in memory.
    pub(super) fn waiting(&self) -> u64 {
        self.end.saturating_sub(self.stable)
    }

    /// The process says where a stream goes on of which another protector has held what came before.
    pub(super) fn begin_stream(&mut self, stream: StreamId, offset: u64) {
        if self.streams.len() < limits::CUT_STREAMS {
            self.streams.entry(stream).or_insert_with(|| Stream::at(offset));
        }
    }

    /// Appends units of a stream: bytes, or its end. Returns how many bytes were new, or what is wrong.
    pub(super) fn append(
        &mut self,
        position: u64,
        stream: StreamId,
        offset: u64,
        bytes: Option<&[u8]>,
    ) -> Result<usize, &'static str> {
        if position > self.end {
            return Err("its payload log has a gap");
        }
        let units = bytes.map_or(1, |bytes| bytes.len() as u64);
        let end = offset.checked_add(units).ok_or("an offset over 64 bits")?;
        let after = position.checked_add(units).ok_or("a position over 64 bits")?;
        if after <= self.stable {
            // It is held, or a committed image covers it. That image came by another connection, and was faster. The stream may
            // be closed since.
            return Ok(0);
        }
        let known = self.streams.len() < limits::CUT_STREAMS || self.streams.contains_key(&stream);
        if !known {
            return Err("too many streams");
        }
        // The first that a new protector hears of a stream may be its middle. What came before was held by another protector.
        let held = self.streams.entry(stream).or_insert_with(|| Stream::at(offset));
        let from = held.held();
        let new = match bytes {
            Some(bytes) if held.ended.is_none_or(|ended| end <= ended) => {
                let new = held.log.append(offset, bytes).map_err(|_| "a stream has a gap")?;
                if new > 0 && !std::mem::replace(&mut held.listed, true) {
                    self.dirty.push_back(stream);
                }
                new
            }
            None if held.log.end() == offset || held.ended == Some(offset) => {
                held.ended = Some(offset);
                0
            }
            _ => return Err("a stream does not end where it did"),
        };
        let to = held.held();
        self.end = self.end.max(after);
        if after > self.stable && units > 0 {
            self.unstable.push_back(Unstable { position: after, stream, from, to, is_end: bytes.is_none() });
        }
        Ok(new)
    }

    /// Acknowledges what the file has, if it must (`durable`), and the replica, if there is one. Returns how much memory that
    /// frees.
    pub(super) fn acknowledge(&mut self, durable: bool, replica: Option<u64>) -> usize {
        let mut freed = 0;
        while let Some(next) = self.unstable.front().copied() {
            let Some(stream) = self.streams.get_mut(&next.stream) else { break };
            let written = !durable || stream.log.written() >= next.to.min(stream.log.end());
            if !written || replica.is_some_and(|replica| replica < next.position) {
                break;
            }
            stream.stable = stream.stable.max(next.to);
            freed += stream.release();
            self.stable = self.stable.max(next.position);
            self.unstable.pop_front();
        }
        freed
    }

    /// A committed image covers everything before this position.
    pub(super) fn cover(&mut self, position: u64) {
        self.end = self.end.max(position);
        self.stable = self.stable.max(position);
        let covered = self.stable;
        self.unstable.retain(|unstable| unstable.position > covered);
    }

    /// The next bytes of a stream to write, at most `most`: their stream, position and the bytes.
    pub(super) fn unwritten(&mut self, most: usize) -> Option<(StreamId, (u64, Bytes))> {
        while let Some(stream) = self.dirty.front().copied() {
            let held = self.streams.get_mut(&stream);
            if let Some(piece) = held.and_then(|held| held.log.unwritten(most)) {
                return Some((stream, piece));
            }
            self.dirty.pop_front();
            self.streams.get_mut(&stream).into_iter().for_each(|held| held.listed = false);
        }
        None
    }
}
