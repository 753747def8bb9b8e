//! Bounds of memory, and what goes to files.

use radic_wire::ids::ProcessId;
use radic_wire::limits;

use super::Store;
use super::process::Process;
use super::types::{File, Write};

/// Bytes of logs and images in memory, of all processes together. Each has its share: with many, less than
/// [`Config::memory`](super::Config::memory).
const MEMORY: usize = 1 << 30;
/// Least share of it.
const LEAST_MEMORY: usize = 64 << 10;
/// Pieces of payload that may be unacknowledged before no more are read.
const UNSTABLE: usize = 1 << 18;

impl Store {
    /// A process's share of memory.
    pub(super) fn memory(&self) -> usize {
        self.config.memory.min((MEMORY / self.processes.len().max(1)).max(LEAST_MEMORY))
    }

    /// Whether more may be read of an image of `process`. If not, [`Store::poll_write`] has something to write, or had it.
    /// Payload that waits for an image before it is acknowledged does not keep that image out.
    pub fn has_room(&self, process: ProcessId) -> bool {
        self.processes.get(&process).is_none_or(|process| process.movable() < self.memory() * 2)
    }

    /// Whether more of its payload may be read. An observer that waits for acknowledgements never sends more.
    pub fn has_room_for_payload(&self, process: ProcessId) -> bool {
        let within = |process: &Process| {
            let bound = process.log_bound(self.config.log);
            let room = process.in_memory < self.memory() * 2;
            room && process.log_bytes <= bound.saturating_mul(2) && process.payload.unstable.len() < UNSTABLE
        };
        self.processes.get(&process).is_none_or(within)
    }

    /// Whether its log is over its bound: payload is not acknowledged until a checkpoint is committed.
    pub fn is_over_bound(&self, process: ProcessId) -> bool {
        let bound = |process: &Process| process.log_bytes > process.log_bound(self.config.log);
        self.processes.get(&process).is_some_and(bound)
    }

    /// Whether more of its journal may be read. It is false only while a disk takes nothing, and not before memory holds a
    /// journal of some size besides what was read of an image until that was stopped.
    pub fn has_room_for_journal(&self, process: ProcessId) -> bool {
        let bound = self.memory() * 4 + 2 * limits::LOG_CHUNK;
        self.processes.get(&process).is_none_or(|process| process.movable() < bound)
    }

    pub(super) fn queue_write(&mut self, id: ProcessId) {
        let (durable, memory) = (self.config.durable, self.memory());
        let Some(process) = self.processes.get_mut(&id) else { return };
        if !process.queued && process.wants_write(durable, memory) {
            process.queued = true;
            self.to_write.push_back(id);
        }
    }

    /// The next bytes for a file, at most `most`: those of images; everything with [`Config::durable`](super::Config::durable);
    /// what is over the bound on memory; what is to be kept and will be forgotten here. Each byte is given once: the driver tries
    /// until it is written, unless its file is deleted or truncated meanwhile.
    pub fn poll_write(&mut self, most: usize) -> Option<Write> {
        if let Some(write) = self.saved.pop_front() {
            return Some(write);
        }
        let (durable, memory) = (self.config.durable, self.memory());
        while let Some(id) = self.to_write.pop_front() {
            let Some(process) = self.processes.get_mut(&id) else { continue };
            if let Some(write) = process.take_write(id, durable, memory, most) {
                // The other processes have their turn.
                self.to_write.push_back(id);
                return Some(write);
            }
            process.queued = false;
        }
        None
    }

    /// The file has everything up to `position` (with `--durable`: after fsync).
    pub fn handle_written(&mut self, file: File, position: u64) {
        let id = file.process();
        let replicated = |process: &Process| process.role.replica.map_or(u64::MAX, |replica| replica.journal);
        let Some(process) = self.processes.get_mut(&id) else { return };
        let freed = match file {
            File::Journal(_) => {
                let keep = replicated(process);
                process.journal.handle_written(position);
                process.journal.release(keep)
            }
            File::Stream(_, stream) => process.payload.streams.get_mut(&stream).map_or(0, |stream| {
                stream.log.handle_written(position);
                stream.release()
            }),
            File::Image(_, number) => {
                let image =
                    process.images.committed.iter_mut().chain(&mut process.images.incoming).find(|image| image.number == number);
                image.map_or(0, |image| {
                    image.content.handle_written(position);
                    image.content.release(u64::MAX)
                })
            }
        };
        process.in_memory -= freed;
        self.settle(id);
    }
}
