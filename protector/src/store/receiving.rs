//! Images on their way in, and images that did not restore.

use radic_wire::ids::ProcessId;
use radic_wire::log::{FromProtector, ToProtector};

use super::Store;
use super::images::Image;
use super::types::{File, Notice, Output, Speaker, StoreError};

impl Store {
    pub(super) fn begin_image(&mut self, id: ProcessId, image: Image) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        if process.images.newest_under_way().is_some_and(|newest| newest > image.number) {
            // The connections of two images are not in order: one that its process has given up may come here after the next one.
            return self.tell_refused(id, image.number);
        }
        process.images.announced = None;
        if let Some(old) = process.images.incoming.as_ref().map(|old| old.number) {
            self.abandon(id, old);
        }
        let is_given_up = self.is_given_up(id, image.line);
        let Some(process) = self.processes.get_mut(&id) else { return };
        // An image that was begun before the log here, by another connection, needs what is not held here.
        let has_log = image.cut >= process.journal.start() && image.payload >= process.payload.start;
        if process.images.fits(&image) && process.images.incoming.is_none() && has_log && !is_given_up {
            let covered = &mut process.role.covered;
            *covered = (covered.0.max(image.cut), covered.1.max(image.payload));
            process.images.incoming = Some(image);
            process.images.wanted = false;
        } else {
            self.tell_refused(id, image.number);
        }
    }

    /// Tells a process that this image of it is not taken, or not kept.
    fn tell_refused(&mut self, id: ProcessId, image: u64) {
        let Some(process) = self.processes.get(&id) else { return };
        let to = Speaker { process: id, incarnation: process.incarnation };
        self.send(to, &FromProtector::ImageRefused { image });
    }

    /// The process has this image under way. If it is not here, it is about to begin, or its connection broke. If it is whole,
    /// and waits for its recovery line, that is told once more: the node may not have known the process when it was told.
    pub(super) fn handle_under_way(&mut self, id: ProcessId, image: Option<u64>) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let images = &process.images;
        let is_here =
            |image: u64| images.incoming(image).is_some() || images.newest().is_some_and(|newest| newest.number >= image);
        process.images.announced = image.filter(|image| !is_here(*image));
        let waits = process.images.incoming.as_mut().filter(|incoming| Some(incoming.number) == image);
        waits.into_iter().for_each(|incoming| incoming.is_told = false);
    }

    /// Whether this process has an image under way that has not begun here.
    pub fn awaits_image(&self, id: ProcessId) -> bool {
        self.processes.get(&id).is_some_and(|process| process.images.announced.is_some())
    }

    /// The image that this process has under way will not begin here: it has no connection.
    pub fn refuse_announced(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        if let Some(image) = process.images.announced.take() {
            self.tell_refused(id, image);
        }
    }

    pub(super) fn handle_chunk(&mut self, id: ProcessId, number: u64, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let most = self.config.image;
        let process = self.process(id)?;
        let Some(image) = process.images.incoming_mut(number).filter(|image| image.length.is_none()) else {
            return Ok(());
        };
        let gap = |_| StoreError::Contradiction { process: id, what: "its image has a gap" };
        process.in_memory += image.content.append(offset, bytes).map_err(gap)?;
        if image.content.end() > most {
            self.refuse(id, number);
        }
        Ok(())
    }

    pub(super) fn handle_image_end(&mut self, id: ProcessId, number: u64, length: u64) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let Some(image) = process.images.incoming_mut(number) else { return };
        if image.content.end() == length {
            image.length = Some(length);
            self.outputs.push_back(Output::Verify(id, number));
        } else {
            self.refuse(id, number);
        }
    }

    pub(super) fn refuse(&mut self, id: ProcessId, number: u64) {
        self.drop_image(id, number, Notice::Refused(id, number));
    }

    /// An image that is under way is kept no longer, which is told with this notice.
    pub(super) fn drop_image(&mut self, id: ProcessId, number: u64, notice: Notice) {
        if let Some(process) = self.processes.get_mut(&id) {
            if let Some(image) = process.images.incoming.take_if(|image| image.number == number) {
                process.in_memory -= image.content.in_memory();
                self.outputs.push_back(Output::Delete(File::Image(id, number)));
            }
            self.tell_refused(id, number);
            self.note(notice);
        }
    }

    /// The driver cannot go on with an image that is under way: its connection broke, or its file cannot be written.
    pub fn refuse_image(&mut self, id: ProcessId, number: u64) {
        // The replica may have committed a verified image already, so it will be committed here.
        if self.incoming(id, number).is_some_and(|image| !image.verified) {
            self.refuse(id, number);
            self.forward_always(id, &ToProtector::ImageAbandoned { image: number });
        }
    }

    fn incoming(&self, id: ProcessId, number: u64) -> Option<&Image> {
        self.processes.get(&id)?.images.incoming(number)
    }

    /// Whether this image is under way and not complete.
    pub fn takes_image(&self, id: ProcessId, number: u64) -> bool {
        self.incoming(id, number).is_some_and(|image| image.length.is_none())
    }

    /// Whether the file has all of an image that is complete and not verified.
    pub fn image_is_written(&self, id: ProcessId, number: u64) -> bool {
        self.incoming(id, number).is_some_and(|image| image.length == Some(image.content.written()))
    }

    /// The parent of this image, against which it is verified, and its length; none: it is not under way.
    pub fn image_to_verify(&self, id: ProcessId, number: u64) -> Option<(Option<u64>, u64)> {
        self.incoming(id, number).map(|image| (image.parent, image.content.end()))
    }

    /// Drops an image that is under way, unless it is verified. Then the replica may have committed it already, so it will be
    /// committed here. One that depends on what is not held is committed nowhere.
    pub(super) fn abandon(&mut self, id: ProcessId, number: u64) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let causes = process.causes.end();
        let drops = |image: &mut Image| image.number == number && (!image.verified || causes < image.causes);
        if let Some(image) = process.images.incoming.take_if(drops) {
            process.in_memory -= image.content.in_memory();
            self.outputs.push_back(Output::Delete(File::Image(id, number)));
            self.forward_always(id, &ToProtector::ImageAbandoned { image: number });
        }
    }

    /// The driver has verified an image.
    pub fn handle_verified(&mut self, id: ProcessId, number: u64, good: bool) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let Some(image) = process.images.incoming_mut(number).filter(|image| image.length.is_some()) else {
            return;
        };
        if good {
            image.verified = true;
            let length = image.length.unwrap_or_default();
            self.forward_always(id, &ToProtector::ImageEnd { image: number, length });
            self.settle(id);
        } else {
            self.refuse(id, number);
        }
    }

    /// The protector that leads has gone back to before this image. The log here begins at the image, so nothing here restarts
    /// the process before its next image is committed.
    pub(super) fn drop_useless(&mut self, id: ProcessId, number: u64) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        if process.images.committed.last().is_none_or(|newest| newest.number < number) {
            return;
        }
        let gone = std::mem::take(&mut process.images.committed);
        process.images.oldest = None;
        process.recount();
        self.outputs.extend(gone.iter().map(|image| Output::Delete(File::Image(id, image.number))));
    }

    /// The newest image does not restore. The one before it is the newest again, with the log since. A replica hears of it before
    /// anything of the next incarnation. What left the process between the two images depends on nothing but the log. But empty
    /// outcomes after the last determinant are in no log, so the next incarnation may be in another state where the newest image
    /// was made.
    pub(super) fn go_back(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let Some(oldest) = process.images.oldest else { return };
        let Some(at) = process.images.committed.iter().position(|image| image.number == oldest) else { return };
        let gone: Vec<u64> = process.images.committed.drain(at + 1..).map(|image| image.number).collect();
        process.images.restores = 0;
        process.images.useless = gone.first().copied();
        process.recount();
        for number in gone {
            self.forward_always(id, &ToProtector::ImageUseless { image: number });
            self.outputs.push_back(Output::Delete(File::Image(id, number)));
            self.note(Notice::Useless(id, number));
        }
    }
}
