//! Everything that is held of one process.

use std::collections::{BTreeMap, VecDeque};

use radic_wire::determinant::StreamId;
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::limits;
use radic_wire::log::HeldImage;
use radic_wire::span::Span;

use super::causes::Causes;
use super::images::{Image, Images};
use super::log::Log;
use super::payload::Payload;
use super::role::{Elsewhere, Role};
use super::types::{File, Write};

/// What is not needed any more and stays in files all the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept {
    /// Where the journal begins.
    pub(super) journal: u64,
    /// Of each stream that a commit has shortened: what was there, and its end.
    pub(super) streams: BTreeMap<StreamId, (Span, Option<u64>)>,
    pub(super) images: Vec<HeldImage>,
}

/// One process: its log, its images, and what this log server is for it.
#[derive(Debug, Clone)]
pub(super) struct Process {
    /// The incarnation that is heard.
    pub(super) incarnation: Incarnation,
    pub(super) journal: Log,
    /// The journal is acknowledged up to here.
    pub(super) journal_stable: u64,
    /// What the journal depends on of other processes, and up to where the process was told that it is held.
    pub(super) causes: Causes,
    pub(super) causes_told: u64,
    pub(super) payload: Payload,
    pub(super) images: Images,
    pub(super) role: Role,
    /// Bound of its log, if it is not [`Config::log`](super::Config::log).
    pub(super) bound: Option<u64>,
    /// The process's program has ended. No image will shorten the log, so what it received is acknowledged over the bound.
    pub(super) closing: bool,
    pub(super) kept: Option<Kept>,
    /// Nothing more will come, so everything goes to files.
    pub(super) ended: bool,
    /// Bytes of journal and payload. This sum and the next are needed with every message.
    pub(super) log_bytes: u64,
    /// Bytes of journal, payload and images in memory.
    pub(super) in_memory: usize,
    /// The process is among those that may have something to write.
    pub(super) queued: bool,
}

impl Process {
    /// A process of which nothing is held: its journal and its payload go on at these positions.
    pub(super) fn new(incarnation: Incarnation, journal: u64, payload: u64) -> Self {
        Process {
            incarnation,
            journal: Log::at(journal),
            journal_stable: journal,
            causes: Causes::default(),
            causes_told: 0,
            payload: Payload::at(incarnation, payload),
            images: Images::default(),
            role: Role::default(),
            bound: None,
            closing: false,
            kept: None,
            ended: false,
            log_bytes: 0,
            in_memory: 0,
            queued: false,
        }
    }

    /// Whether nothing was acknowledged elsewhere that is not here.
    pub(super) fn is_current(&self) -> bool {
        self.role.is_current(self.journal.end(), self.payload.end)
    }

    /// Whether what is held lacks something of what the process has said elsewhere: [`Store::is_behind`](super::Store::is_behind).
    pub(super) fn is_behind(&self, journal: u64, payload: u64, committed: Option<u64>) -> bool {
        self.journal.end() < journal || self.payload.end < payload || self.images.are_behind(committed)
    }

    /// Whether another protector has had what the process does, without telling all of it here.
    pub(super) fn is_let_go(&self) -> bool {
        match self.role.elsewhere {
            Elsewhere::Since => true,
            Elsewhere::Until(..) => !self.is_current(),
            Elsewhere::No | Elsewhere::Forwards => false,
        }
    }

    /// A new incarnation begins. It counts its payload from 0, and what it finds here is stable.
    pub(super) fn renew(&mut self) {
        self.payload.renew(self.incarnation);
        self.closing = false;
        (self.role.told.1, self.role.covered.1) = (0, 0);
        // Positions in the payload log belong to an incarnation: what an image of an earlier one covers was before this one's
        // first.
        self.images.committed.iter_mut().for_each(|image| image.payload = 0);
    }

    /// Bytes of log over which payload is not acknowledged. `common` is the bound of processes without one of their own.
    pub(super) fn log_bound(&self, common: u64) -> u64 {
        if self.closing { u64::MAX } else { self.bound.unwrap_or(common) }
    }

    /// Bytes in memory that writing frees, or has freed: all except payload that is not stable.
    pub(super) fn movable(&self) -> usize {
        self.in_memory.saturating_sub(usize::try_from(self.payload.waiting()).unwrap_or(usize::MAX))
    }

    /// Computes the sums again, after something was dropped.
    pub(super) fn recount(&mut self) {
        let images: usize = self.images.all().map(|image| image.content.in_memory()).sum();
        self.in_memory = self.journal.in_memory() + self.payload.in_memory() + images;
        self.log_bytes = self.journal.len() + self.payload.len();
    }

    /// Whether there may be something to write. Images always go to files: they are verified there, and a restart reads them
    /// there.
    pub(super) fn wants_write(&self, durable: bool, memory: usize) -> bool {
        let image = self.images.incoming.as_ref().is_some_and(|image| image.content.is_unwritten());
        image || durable || self.ended || self.in_memory > memory
    }

    /// Whether all that was logged up to this image is here. Payload comes by another connection than the image, and may be
    /// slower.
    pub(super) fn has_all_before(&self, image: &Image) -> bool {
        let held = |(stream, offset): &(StreamId, u64)| {
            matches!(offset, 0 | &u64::MAX) || self.payload.streams.get(stream).is_some_and(|held| held.held() >= *offset)
        };
        self.journal.end() >= image.cut
            && self.causes.end() >= image.causes
            && self.payload.end >= image.payload
            && image.streams.iter().all(held)
    }

    /// Whether the log is so near its bound that it has room only for what the newest image needs.
    pub(super) fn keeps_little(&self, common: u64) -> bool {
        self.log_bytes > self.log_bound(common) / 2
    }

    /// The next bytes to write: images, then payload, then the journal, so that the journal stays in memory longest. With
    /// `durable` the journal goes first, because a gate waits for it.
    pub(super) fn take_write(&mut self, id: ProcessId, durable: bool, memory: usize, most: usize) -> Option<Write> {
        let spill = durable || self.ended || self.in_memory > memory;
        let write = |file, (position, bytes)| Write { file, position, bytes };
        if durable && let Some(piece) = self.journal.unwritten(most) {
            return Some(write(File::Journal(id), piece));
        }
        for image in self.images.committed.iter_mut().filter(|_| spill).chain(&mut self.images.incoming) {
            if let Some(piece) = image.content.unwritten(most) {
                return Some(write(File::Image(id, image.number), piece));
            }
        }
        if !spill {
            return None;
        }
        if let Some((stream, piece)) = self.payload.unwritten(most) {
            return Some(write(File::Stream(id, stream), piece));
        }
        self.journal.unwritten(most).map(|piece| write(File::Journal(id), piece))
    }

    /// Panics if what is held contradicts itself.
    pub(super) fn check_invariants(&self) {
        let Payload { start, end, stable, told, .. } = self.payload;
        assert!(start <= end && told <= stable && stable <= end, "payload {start} to {end}, stable {stable}, told {told}");
        let (start, stable, end) = (self.journal.start(), self.journal_stable, self.journal.end());
        assert!(start <= stable && stable <= end, "journal {start} to {end}, acknowledged up to {stable}");
        let newest = self.images.newest().map(|image| image.number);
        assert!(newest <= Some(self.images.next), "image {newest:?} has a number that was not used");
        assert!(newest.is_some() || self.images.oldest.is_none(), "its log begins at an image that is not there");
    }
}

/// Queues what the file lacks of a log that is about to forget everything before `position`.
pub(super) fn save(log: &mut Log, file: File, position: u64, writes: &mut VecDeque<Write>) {
    while let Some((position, bytes)) = log.unwritten_before(position, limits::LOG_CHUNK) {
        writes.push_back(Write { file, position, bytes });
    }
}
