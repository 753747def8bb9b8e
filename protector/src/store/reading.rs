//! Reading what is held: by the process that catches up, by a node that brings it back, and for people.

use std::collections::BTreeMap;

use radic_wire::determinant::StreamId;
use radic_wire::ids::ProcessId;
use radic_wire::limits;
use radic_wire::log::{FromProtector, HeldLog, HeldStream, ImageState, LogPart};
use radic_wire::span::Span;

use super::log::Log;
use super::types::{File, Output, Place, Speaker, StoreError, Usage};
use super::{Store, encoded};

impl Store {
    pub(super) fn fetch(&mut self, to: Speaker, file: File, position: u64) -> Result<(), StoreError> {
        let process = self.process(to.process)?;
        let log = match file {
            File::Stream(_, stream) => process.payload.streams.get(&stream).map(|stream| &stream.log),
            File::Journal(_) | File::Image(..) => Some(&process.journal),
        };
        let empty = Log::at(position);
        let log = log.unwrap_or(&empty);
        if position < log.start() || position > log.end() {
            return Err(StoreError::Contradiction { process: to.process, what: "it wants log that is not held" });
        }
        match log.read(position, limits::LOG_CHUNK) {
            Ok(bytes) => {
                let bytes = bytes.as_slice();
                let message = match file {
                    File::Stream(_, stream) => FromProtector::Payload { stream, offset: position, bytes },
                    File::Journal(_) | File::Image(..) => FromProtector::Journal { position, bytes },
                };
                self.outputs.push_back(Output::Send(to, encoded(|out| message.write(out))));
            }
            Err(length) => self.outputs.push_back(Output::Read(to, file, position, length.min(limits::LOG_CHUNK))),
        }
        Ok(())
    }

    /// The length of a committed image that a restart may need.
    pub fn committed_image(&self, id: ProcessId, number: u64) -> Option<u64> {
        let image = self.processes.get(&id)?.images.committed.iter().find(|image| image.number == number)?;
        Some(image.content.end())
    }

    /// Everything that can be read of a process.
    pub fn list(&self, id: ProcessId) -> Option<HeldLog> {
        let process = self.processes.get(&id)?;
        let kept = process.kept.as_ref();
        let start = kept.map_or(process.journal.start(), |kept| kept.journal);
        let mut streams: BTreeMap<StreamId, HeldStream> = BTreeMap::new();
        for (stream, (bytes, ended)) in kept.iter().flat_map(|kept| &kept.streams) {
            streams.insert(*stream, HeldStream { stream: *stream, bytes: *bytes, ended: *ended, closed: true });
        }
        for (stream, held) in &process.payload.streams {
            let bytes = Span { start: held.log.start(), end: held.log.end() };
            let closed = held.closed;
            let entry = streams.entry(*stream).or_insert(HeldStream { stream: *stream, bytes, ended: held.ended, closed });
            (entry.bytes.end, entry.ended, entry.closed) = (bytes.end, held.ended, closed);
        }
        let superseded = kept.iter().flat_map(|kept| kept.images.iter().cloned());
        let older = process.images.committed.len() - process.images.chain().len();
        let state = |at: usize| if at < older { ImageState::Superseded } else { ImageState::Committed };
        let committed = process.images.committed.iter().enumerate().map(|(at, image)| image.described(state(at)));
        let incoming = process.images.incoming.iter().map(|image| image.described(ImageState::UnderWay));
        Some(HeldLog {
            process: id,
            incarnation: process.incarnation,
            current: process.is_current(),
            journal: Span { start, end: process.journal.end() },
            stable: process.journal_stable,
            causes: Span { start: process.causes.start(), end: process.causes.end() },
            forgotten: process.causes.forgotten(),
            streams: streams.into_values().take(limits::CUT_STREAMS).collect(),
            images: superseded.chain(committed).chain(incoming).collect(),
        })
    }

    /// Where bytes of a part are, at most `most` from `position`, if they can be read.
    pub fn find(&self, id: ProcessId, part: LogPart, position: u64, most: usize) -> Option<Place> {
        let process = self.processes.get(&id)?;
        let kept = process.kept.as_ref();
        let (file, log, oldest) = match part {
            LogPart::Causes => return process.causes.read(position, most).map(Place::Memory),
            LogPart::Journal => (File::Journal(id), Some(&process.journal), kept.map(|kept| kept.journal)),
            LogPart::Stream(stream) => {
                let oldest = kept.and_then(|kept| kept.streams.get(&stream)).map(|(bytes, _)| bytes.start);
                (File::Stream(id, stream), process.payload.streams.get(&stream).map(|held| &held.log), oldest)
            }
            LogPart::Image(number) => {
                let image = process.images.committed.iter().chain(&process.images.incoming).find(|image| image.number == number);
                let superseded = kept.and_then(|kept| kept.images.iter().find(|image| image.image == number));
                if image.is_none()
                    && let Some(image) = superseded
                {
                    let length = image.bytes.checked_sub(position)?.min(most as u64) as usize;
                    return Some(Place::File(File::Image(id, number), length));
                }
                (File::Image(id, number), image.map(|image| &image.content), None)
            }
        };
        let gone = match part {
            LogPart::Stream(stream) => kept.and_then(|kept| kept.streams.get(&stream)).map(|(bytes, _)| Log::at(bytes.end)),
            _ => None,
        };
        let log = log.or(gone.as_ref())?;
        if position > log.end() || position < oldest.unwrap_or(log.start()) {
            return None;
        }
        Some(match log.read(position, most) {
            Ok(bytes) => Place::Memory(bytes),
            Err(length) => Place::File(file, length),
        })
    }

    /// Bytes that a process has here.
    pub fn usage(&self, id: ProcessId) -> Option<Usage> {
        let process = self.processes.get(&id)?;
        let journal = process.journal.len();
        Some(Usage {
            journal,
            payload: process.log_bytes - journal,
            images: process.images.committed.iter().chain(&process.images.incoming).map(|image| image.content.len()).sum(),
            memory: process.in_memory as u64,
            journal_stable: process.journal_stable,
            payload_stable: process.payload.stable,
            committed: process.images.committed.last().map(|image| image.number),
        })
    }

    /// Whether unit `offset` of a stream is held, or covered by a committed image (for tests of G2, and `radic log show`).
    pub fn holds(&self, receiver: ProcessId, stream: StreamId, offset: u64) -> bool {
        let held = self.processes.get(&receiver).and_then(|process| process.payload.streams.get(&stream));
        held.is_some_and(|stream| stream.closed || offset < stream.held())
    }

    /// Whether unit `offset` of a stream is covered by the receiver's image of a recovery line that counts as soon as this log
    /// hears that lines up to this one are complete (for tests of G2).
    pub fn holds_by_line(&self, receiver: ProcessId, stream: StreamId, offset: u64, line: u64) -> bool {
        let image = self.processes.get(&receiver).and_then(|process| process.images.incoming.as_ref());
        let image = image.filter(|image| image.is_told && image.line.newest <= line);
        image.is_some_and(|image| image.streams.iter().any(|(of, covered)| *of == stream && offset < *covered))
    }
}
