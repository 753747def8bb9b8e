//! What the store wants done, and what the disk and the verifier have done.

use std::time::Duration;

use radic_wire::bytes::Writer;
use radic_wire::ids::ProcessId;
use radic_wire::limits;
use radic_wire::log::{FromProtector, HeldImage};

use super::LogServer;
use super::types::{Action, ConnectionNumber, Reason, Role, Verification, What};
use crate::store::{File, Notice, Output, Speaker};

/// A write that the driver was told to do.
#[derive(Debug, Clone)]
pub(super) struct Writing {
    pub(super) file: File,
    end: u64,
    pub(super) bytes: usize,
    /// The write counts for [`super::Config::writing`]: no longer when it is stuck, so that others go on.
    pub(super) is_counted: bool,
}

impl LogServer {
    /// Turns what the store wants into actions.
    pub(super) fn settle(&mut self) {
        while let Some(output) = self.store.poll_output() {
            self.handle_output(output);
        }
        while let Some(notice) = self.store.poll_notice() {
            self.handle_notice(notice);
        }
        self.pump_writes();
        self.verify_what_is_written();
    }

    fn handle_output(&mut self, output: Output) {
        match output {
            Output::Send(to, message) => self.answer(to, message),
            Output::Forward(process, message) => self.forward(process, message),
            Output::Verify(process, image) => _ = self.verifying.insert((process, image), None),
            Output::Read(to, file, position, length) => {
                let Some(number) = self.voices.get(&to).copied() else { return };
                self.connections.get_mut(&number).into_iter().for_each(|connection| connection.reads += 1);
                self.actions.push_back(Action::Read(number, file, position, length));
            }
            Output::Truncate(file, position) => self.actions.push_back(Action::Truncate(file, position)),
            Output::Delete(file) => {
                self.cancel_writes(|of| *of == file);
                if let File::Image(process, image) = file {
                    self.verifying.remove(&(process, image));
                }
                self.actions.push_back(Action::Delete(file));
            }
            // Observers ask the protector of their own node, which knows where the other end is.
            Output::AskStable(..) | Output::Forget(..) => {}
        }
    }

    fn answer(&mut self, to: Speaker, message: Vec<u8>) {
        let Some(connection) = self.voices.get(&to).copied() else { return };
        // Before its hello, a connection knows nothing that an answer could refer to; the welcome says where things are.
        if !matches!(self.role(connection), Some(Role::Journal(_, false)) | None) {
            self.actions.push_back(Action::Answer(connection, to, message));
        }
    }

    fn handle_notice(&mut self, notice: Notice) {
        self.freed = true;
        match notice {
            Notice::Committed(process, HeldImage { image, parent, bytes, cut, .. }) => {
                self.commits.insert(process, self.now);
                let kind = parent.map_or("full".to_owned(), |parent| format!("on image {parent}"));
                let text = format!("image {image} of {process} is committed: {bytes} bytes, {kind}, journal cut at {cut}");
                self.tell(What::Committed(image), Some(process), text);
            }
            Notice::Refused(process, image) => {
                let why = self.refusal.take().unwrap_or("it is not whole, too large, or not what came before".into());
                self.tell(What::Refused, Some(process), format!("image {image} of {process} was refused: {why}"));
            }
            // That its line was given up is told for all ranks at once.
            Notice::GivenUp(..) => {}
            Notice::Useless(process, image) => {
                let text = format!("image {image} of {process} did not restore: the one before it is taken, with the log since");
                self.tell(What::Useless, Some(process), text);
            }
            Notice::LineReady(process, line) => {
                let text = format!("its image of recovery line {line} is whole and verified");
                self.tell(What::LineReady(line), Some(process), text);
            }
            Notice::LogBound(process) => {
                let text = format!("the log of {process} nears its bound: an image was asked for");
                self.tell(What::LogBound, Some(process), text);
            }
        }
    }

    // ---- files

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    fn pump_writes(&mut self) {
        while self.writing < self.config.writing
            && let Some(write) = self.store.poll_write(self.config.write)
        {
            let ticket = self.ticket();
            let (bytes, end) = (write.bytes.len(), write.position + write.bytes.len() as u64);
            self.writing += bytes;
            self.writes.insert(ticket, Writing { file: write.file, end, bytes, is_counted: true });
            self.actions.push_back(Action::Write(ticket, write));
        }
    }

    /// Forgets writes of files that are not needed any more: what is said of them later means nothing.
    pub(super) fn cancel_writes(&mut self, is_gone: impl Fn(&File) -> bool) {
        let writing = &mut self.writing;
        self.writes.retain(|_, write| {
            let gone = is_gone(&write.file);
            *writing -= if gone && write.is_counted { write.bytes } else { 0 };
            !gone
        });
    }

    /// The write with this ticket, and those of its file before it, are done.
    pub fn handle_written(&mut self, now: Duration, ticket: u64) {
        self.now = now;
        let Some(write) = self.writes.remove(&ticket) else { return };
        self.writing -= if write.is_counted { write.bytes } else { 0 };
        self.store.handle_written(write.file, write.end);
        self.freed = true;
    }

    /// The write with this ticket could not be done. An image is given up, anything else is tried until it can be.
    pub fn handle_write_failed(&mut self, now: Duration, ticket: u64, process: ProcessId, why: &str) {
        self.now = now;
        let Some(write) = self.writes.get_mut(&ticket) else { return };
        self.writing -= if write.is_counted { write.bytes } else { 0 };
        write.is_counted = false;
        self.store.drop_fallback(process);
        if let File::Image(_, image) = write.file {
            self.writes.remove(&ticket);
            self.refusal = Some(format!("it cannot be written: {why}; the one before stays"));
            self.store.refuse_image(process, image);
            return;
        }
        let why = format!("its log cannot be written: {why}");
        if self.unwell.insert(process, why.clone()).is_none() {
            let text = format!("{process}: {why}; what memory does not hold waits, and it is tried again");
            self.tell(What::Disk, Some(process), text);
        }
    }

    /// What could not be written of this process is written.
    pub fn handle_well(&mut self, process: ProcessId) {
        if self.unwell.remove(&process).is_some() {
            self.tell(What::DiskWell, Some(process), format!("the log of {process} can be written again"));
        }
    }

    /// The answer to a question, for the connection on which it was asked and no later one: bytes of a file, or why they cannot
    /// be read.
    pub fn handle_read(
        &mut self,
        now: Duration,
        connection: ConnectionNumber,
        file: File,
        position: u64,
        bytes: Result<&[u8], &str>,
    ) {
        self.now = now;
        let Some(caller) = self.connections.get_mut(&connection) else { return };
        caller.reads = caller.reads.saturating_sub(1);
        let speaker = caller.role.speaker();
        match (bytes, speaker) {
            (Ok(bytes), Some(speaker)) => {
                let message = match file {
                    File::Stream(_, stream) => FromProtector::Payload { stream, offset: position, bytes },
                    File::Journal(_) | File::Image(..) => FromProtector::Journal { position, bytes },
                };
                let mut body = vec![0; limits::LOG_CHUNK + 128];
                let mut writer = Writer::new(&mut body);
                message.write(&mut writer);
                let length = writer.finish().expect("a chunk and what goes before it fit");
                body.truncate(length);
                self.actions.push_back(Action::Answer(connection, speaker, body));
            }
            // A process that is catching up would ask again forever.
            (Err(why), _) => {
                self.tell(What::Unreadable, Some(file.process()), format!("its log cannot be read from {position}: {why}"));
                self.close(connection, Reason::Unreadable);
            }
            (Ok(_), None) => {}
        }
    }

    // ---- images

    fn verify_what_is_written(&mut self) {
        let waiting = self.verifying.iter().filter(|(_, ticket)| ticket.is_none()).map(|(of, _)| *of);
        let mut written: Vec<_> = waiting.filter(|(process, image)| self.store.image_is_written(*process, *image)).collect();
        written.sort_unstable();
        for (process, image) in written {
            let Some((parent, bytes)) = self.store.image_to_verify(process, image) else {
                self.verifying.remove(&(process, image));
                continue;
            };
            let ticket = self.ticket();
            self.verifying.insert((process, image), Some(ticket));
            self.actions.push_back(Action::Verify(Verification { ticket, process, image, parent, bytes }));
        }
    }

    /// An image was verified. A verdict on an image that was given up meanwhile means nothing.
    pub fn handle_verdict(&mut self, now: Duration, of: Verification, result: Result<(), String>) {
        self.now = now;
        let Verification { ticket, process, image, .. } = of;
        if self.verifying.get(&(process, image)) == Some(&Some(ticket)) {
            self.verifying.remove(&(process, image));
            let good = result.is_ok();
            self.refusal = result.err();
            self.store.handle_verified(process, image, good);
        }
    }
}
