//! What is forgotten when an image is committed (G6).

use radic_wire::determinant::StreamId;
use radic_wire::ids::ProcessId;
use radic_wire::log::ImageState;
use radic_wire::span::Span;

use super::Store;
use super::images::Image;
use super::process::{Process, save};
use super::role::Elsewhere;
use super::types::{File, Notice, Output, Speaker};

impl Store {
    /// Another image is the newest. What the log holds since the one before stays, if all of it is here and there is room.
    pub(super) fn commit(&mut self, id: ProcessId, image: Image) {
        self.note(Notice::Committed(id, image.described(ImageState::Committed)));
        let bound = self.config.log;
        let Some(process) = self.processes.get_mut(&id) else { return };
        let (number, before) = (image.number, process.images.committed.last().map(|before| before.number));
        // A replica does not know what the protector that leads has let the process forget.
        let leads = process.role.elsewhere == Elsewhere::No;
        let is_kept = leads && !process.images.are_final && process.has_all_before(&image) && !process.keeps_little(bound);
        let before = before.filter(|_| is_kept);
        (process.images.restores, process.images.useless) = (0, None);
        process.images.next = process.images.next.max(number.saturating_add(1));
        process.images.committed.push(image);
        if before.is_some() {
            self.close_streams(id);
        }
        self.forget_before(id, before.unwrap_or(number));
    }

    /// Senders need not keep what they sent on a stream that the newest image has closed. On the way to that image a restarted
    /// process reads again what it had read, which is held here, and closes the stream.
    fn close_streams(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let closed = process
            .images
            .committed
            .last()
            .into_iter()
            .flat_map(|image| &image.streams)
            .filter(|(_, offset)| *offset == u64::MAX);
        for (stream, _) in closed {
            process.payload.streams.get_mut(stream).into_iter().for_each(|held| held.stable = u64::MAX);
        }
    }

    /// Gives up the image before the newest, and the log between the two, when the log has no room for them.
    pub(super) fn make_room(&mut self, id: ProcessId) {
        let bound = self.config.log;
        if self.processes.get(&id).is_some_and(|process| process.keeps_little(bound)) {
            self.drop_fallback(id);
        }
    }

    /// Gives up the image before the newest, and the log between the two: there is no room for them, on the disk for example.
    pub fn drop_fallback(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get(&id) else { return };
        let to = Speaker { process: id, incarnation: process.incarnation };
        if let Some(newest) = self.forget_older(id) {
            self.tell_committed(to, newest);
        }
    }

    /// Keeps only what a restart from the newest image needs. Returns that image's number, if that is news.
    pub(super) fn forget_older(&mut self, id: ProcessId) -> Option<u64> {
        let process = self.processes.get(&id)?;
        let newest = process.images.committed.last()?.number;
        let is_news = process.images.oldest != Some(newest);
        self.forget_before(id, newest);
        is_news.then_some(newest)
    }

    /// A committed image covers a stream up to `offset` ([`u64::MAX`]: the stream is closed), and its end if that is given.
    pub(super) fn commit_stream(&mut self, id: ProcessId, stream: StreamId, offset: u64, ended: Option<u64>) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let file = File::Stream(id, stream);
        let held = process.payload.streams.entry(stream).or_default();
        // The image covers an end that may not have come here, and need not.
        held.ended = held.ended.or(ended);
        let closed = offset == u64::MAX;
        let bytes = if closed { held.log.end() } else { ended.map_or(offset, |ended| ended.min(offset)) };
        if let Some(kept) = &mut process.kept {
            save(&mut held.log, file, bytes, &mut self.saved);
            let entry = kept.streams.entry(stream).or_insert((Span { start: held.log.start(), end: 0 }, None));
            (entry.0.end, entry.1) = (held.log.end().max(entry.0.end), held.ended);
        }
        if closed && held.closed {
            // Two commits cover its close. In the time between them the sender could learn that all of it is stable.
            process.payload.streams.remove(&stream);
            if process.kept.is_none() {
                self.outputs.push_back(Output::Delete(file));
            }
            return;
        }
        held.log.truncate(bytes);
        (held.closed, held.stable) = if closed { (true, u64::MAX) } else { (held.closed, held.stable.max(offset)) };
        if process.kept.is_none() {
            self.outputs.push_back(Output::Truncate(file, bytes));
        }
    }

    pub(super) fn delete_files(&mut self, id: ProcessId, old: &Process) {
        self.saved.retain(|write| write.file.process() != id);
        self.outputs.push_back(Output::Delete(File::Journal(id)));
        let kept = old.kept.iter().flat_map(|kept| kept.streams.keys());
        self.outputs.extend(old.payload.streams.keys().chain(kept).map(|stream| Output::Delete(File::Stream(id, *stream))));
        let kept = old.kept.iter().flat_map(|kept| &kept.images).map(|image| image.image);
        let images = old.images.committed.iter().chain(&old.images.incoming).map(|image| image.number).chain(kept);
        self.outputs.extend(images.map(|number| Output::Delete(File::Image(id, number))));
    }
}
