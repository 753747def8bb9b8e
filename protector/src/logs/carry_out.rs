//! What the store wants done, and what the other threads have done.

use std::io;
use std::time::Instant;

use radic_wire::bytes::Writer;
use radic_wire::ids::ProcessId;
use radic_wire::limits;
use radic_wire::log::{FromProtector, HeldImage};

use super::What;
use super::connection::Role;
use super::disk::{Done, Order};
use super::service::Service;
use super::verify::{BadImage, Task, Verdict};
use crate::store::{File, Notice, Output, Speaker};

impl Service {
    /// Does what the store wants, and sends what that makes: acknowledgements leave here, in the round of their message.
    pub fn carry_out(&mut self) {
        while let Some(output) = self.store.poll_output() {
            match output {
                Output::Send(to, message) => self.send(to, &message),
                Output::Forward(process, message) => self.forward(process, &message),
                Output::Verify(process, image) => _ = self.verifying.insert((process, image), None),
                Output::Read(to, file, position, length) => {
                    let Some(token) = self.voices.get(&to).copied() else { continue };
                    self.connections.get_mut(&token).into_iter().for_each(|connection| connection.fetches += 1);
                    self.ask_disk(Order::Fetch(token, file, position, length));
                }
                Output::Truncate(file, position) => self.ask_disk(Order::Truncate(file, position)),
                Output::Delete(file) => {
                    self.cancel_writes(|of| *of == file);
                    if let File::Image(process, image) = file {
                        self.verifying.remove(&(process, image));
                    }
                    self.ask_disk(Order::Delete(file));
                }
                // Observers ask the protector of their own node, which knows where the other end is.
                Output::AskStable(..) | Output::Forget(..) => {}
            }
        }
        while let Some(notice) = self.store.poll_notice() {
            self.handle_notice(notice);
        }
        self.pump_writes();
        self.verify_what_is_written();
        while let Some(token) = self.touched.pop() {
            self.flush(token);
        }
    }

    fn send(&mut self, to: Speaker, message: &[u8]) {
        let Some(token) = self.voices.get(&to).copied() else { return };
        let Some(connection) = self.connections.get_mut(&token) else { return };
        // Before its hello, a connection knows nothing that an answer could refer to; the welcome says where things are.
        if !matches!(connection.role, Role::Journal(_, false)) {
            connection.queue(message);
            if self.touched.last() != Some(&token) {
                self.touched.push(token);
            }
        }
    }

    fn handle_notice(&mut self, notice: Notice) {
        self.freed = true;
        match notice {
            Notice::Committed(process, HeldImage { image, parent, bytes, cut, .. }) => {
                self.commits.insert(process, Instant::now());
                let kind = parent.map_or("full".to_owned(), |parent| format!("on image {parent}"));
                let text = format!("image {image} of {process} is committed: {bytes} bytes, {kind}, journal cut at {cut}");
                self.tell(What::Committed, Some(process), text);
            }
            Notice::Refused(process, image) => {
                let why = self.reason.take().unwrap_or("it is not whole, too large, or not what came before".into());
                self.tell(What::Refused, Some(process), format!("image {image} of {process} was refused: {why}"));
            }
            Notice::Useless(process, image) => {
                let text = format!("image {image} of {process} did not restore: the one before it is taken, with the log since");
                self.tell(What::Useless, Some(process), text);
            }
            Notice::LogBound(process) => {
                let text = format!("the log of {process} nears its bound: an image was asked for");
                self.tell(What::LogBound, Some(process), text);
            }
        }
    }

    fn verify_what_is_written(&mut self) {
        let waiting = self.verifying.iter().filter(|(_, ticket)| ticket.is_none()).map(|(of, _)| *of);
        let written: Vec<_> = waiting.filter(|(process, image)| self.store.image_is_written(*process, *image)).collect();
        for (process, image) in written {
            let ticket = self.ticket();
            self.verifying.insert((process, image), Some(ticket));
            let parent = self.store.image_parent(process, image);
            self.ask_verifier(Task { ticket, process, image, parent });
        }
    }

    /// An image was verified. A verdict on one that was given up meanwhile means nothing.
    pub fn handle_verdict(&mut self, verdict: Verdict) {
        let Verdict { ticket, process, image, result } = verdict;
        if self.verifying.get(&(process, image)) == Some(&Some(ticket)) {
            self.verifying.remove(&(process, image));
            self.reason = result.as_ref().err().map(|error| match error {
                // Its code is written beside it.
                BadImage::Io(error) => {
                    format!("it cannot be read back, or its code written: {}; the one before stays", self.remedy(error))
                }
                error => error.to_string(),
            });
            self.store.handle_verified(process, image, result.is_ok());
        }
    }

    /// The disk's thread has done something.
    pub fn handle_done(&mut self, done: Done) {
        match done {
            Done::Written(ticket) => {
                let Some(write) = self.writes.remove(&ticket) else { return };
                self.writing -= if write.counted { write.bytes } else { 0 };
                self.store.handle_written(write.file, write.end);
                self.freed = true;
            }
            Done::Failed(ticket, process, error) => self.handle_failed(ticket, process, &error),
            Done::Well(process) => {
                if self.unwell.remove(&process).is_some() {
                    self.tell(What::DiskWell, Some(process), format!("the log of {process} can be written again"));
                }
            }
            Done::Sent(number) => self.fetches.handle_sent(number),
            Done::Fetched(token, file, position, bytes) => self.handle_fetched(token, file, position, bytes),
        }
    }

    fn handle_failed(&mut self, ticket: u64, process: ProcessId, error: &io::Error) {
        let Some(write) = self.writes.get_mut(&ticket) else { return };
        self.writing -= if write.counted { write.bytes } else { 0 };
        write.counted = false;
        self.store.drop_fallback(process);
        if let File::Image(_, image) = write.file {
            self.writes.remove(&ticket);
            self.reason = Some(format!("it cannot be written: {}; the one before stays", self.remedy(error)));
            self.store.refuse_image(process, image);
        } else {
            let why = format!("its log cannot be written: {}", self.remedy(error));
            if self.unwell.insert(process, why.clone()).is_none() {
                let text = format!("{process}: {why}; what memory does not hold waits, and it is tried again");
                self.tell(What::Disk, Some(process), text);
            }
        }
    }

    /// What is wrong with the store, and what to do.
    fn remedy(&self, error: &io::Error) -> String {
        let dir = self.config.dir.display();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!("{error}: make room in {dir}"),
            _ => format!("{error}: see to {dir}"),
        }
    }

    /// The answer to a question, for the connection on which it was asked and no later one.
    fn handle_fetched(&mut self, token: u64, file: File, position: u64, bytes: io::Result<Vec<u8>>) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        connection.fetches = connection.fetches.saturating_sub(1);
        match bytes {
            Ok(bytes) => {
                let bytes = &bytes[..];
                let message = match file {
                    File::Stream(_, stream) => FromProtector::Payload { stream, offset: position, bytes },
                    File::Journal(_) | File::Image(..) => FromProtector::Journal { position, bytes },
                };
                let mut body = vec![0; limits::LOG_CHUNK + 128];
                let mut writer = Writer::new(&mut body);
                message.write(&mut writer);
                let length = writer.finish().expect("a chunk and what goes before it fit");
                connection.queue(&body[..length]);
                self.touched.push(token);
            }
            Err(error) => {
                // Whoever asks is on its way back, and would ask again for ever.
                let text = format!("its log cannot be read from {position}: {} ({file:?})", self.remedy(&error));
                self.tell(What::Unreadable, Some(file.process()), text);
                self.close(token);
            }
        }
    }
}
