//! What is said on connections.

use std::time::Duration;

use radic_wire::ids::ProcessId;
use radic_wire::log::{FromProtector, ToProtector};

use super::LogServer;
use super::types::{ConnectionNumber, Next, Reason, Role};
use crate::store::Speaker;

impl LogServer {
    /// A frame has come on a connection: a message, or the beginning of an image.
    #[must_use]
    pub fn handle_frame(&mut self, now: Duration, connection: ConnectionNumber, body: &[u8]) -> Next {
        self.now = now;
        let result = self.take_frame(connection, body);
        self.or_refuse(connection, result)
    }

    fn take_frame(&mut self, connection: ConnectionNumber, body: &[u8]) -> Result<Next, Reason> {
        let Some(caller) = self.connections.get_mut(&connection) else { return Ok(Next::Closed) };
        if let Role::Replica(process) = caller.role {
            return self.take_replica(process, body);
        }
        let message = ToProtector::read(body)?;
        let speaker = match (&mut caller.role, &message) {
            (Role::Journal(speaker, greeted), ToProtector::Hello { .. }) => {
                *greeted = true;
                *speaker
            }
            (Role::Journal(speaker, true), _) => *speaker,
            // Its journal connection said it.
            (Role::Bulk(_), ToProtector::Hello { .. }) => return Ok(Next::Read),
            (Role::Bulk(speaker), ToProtector::Payload { .. } | ToProtector::PayloadEnd { .. }) => *speaker,
            (Role::Forwarder(process, speaker), ToProtector::Hello { process: named, incarnation, .. }) if named == process => {
                *speaker.insert(Speaker { process: *process, incarnation: *incarnation })
            }
            (Role::Forwarder(_, Some(speaker)), _) => *speaker,
            (Role::Image(speaker, None), ToProtector::ImageBegin { image, .. }) => {
                let (speaker, image) = (*speaker, *image);
                return self.begin_image(connection, speaker, image, &message);
            }
            _ => return Err(Reason::Protocol("a message that does not belong there, or before the hello")),
        };
        let result = self.store.handle_message(speaker, &message);
        match message {
            // Also where it was refused: a fenced incarnation is told so on this connection.
            ToProtector::Hello { .. } => {
                self.greet(connection, speaker);
                self.look_for_image(speaker.process);
            }
            ToProtector::ImageUnderWay { .. } => self.look_for_image(speaker.process),
            // Payload may have waited for a commit that does not come.
            ToProtector::Closing => self.freed = true,
            _ => {}
        }
        result?;
        let is_question =
            matches!(message, ToProtector::FetchJournal { .. } | ToProtector::FetchPayload { .. } | ToProtector::Hello { .. });
        Ok(if is_question { Next::Answer } else { Next::Read })
    }

    fn take_replica(&mut self, process: ProcessId, body: &[u8]) -> Result<Next, Reason> {
        let message = FromProtector::read(body)?;
        if let FromProtector::Fenced { .. } = message {
            return Err(Reason::Protocol("the replica listens to a newer incarnation"));
        }
        self.store.handle_replica(process, &message);
        // What waited for its acknowledgement need not stay in memory.
        self.freed = true;
        Ok(Next::Read)
    }

    /// A hello was heard: the answers go to its connection, and the process gets what is configured for it.
    fn greet(&mut self, connection: ConnectionNumber, speaker: Speaker) {
        self.give_voice(connection, speaker);
        let process = speaker.process;
        let protection = self.jobs.get(&process.job).cloned().unwrap_or_default();
        // The bound is kept by the protector before this one in the chain, which asks for images. If it were also waited for
        // here, the death of the process would leave the log without its last acknowledgements, and it could not be restarted.
        let is_forwarded = matches!(self.role(connection), Some(Role::Forwarder(..)));
        let log = if is_forwarded { u64::MAX } else { protection.log };
        self.store.configure(process, log, protection.keep_logs, protection.payload);
        if is_forwarded {
            self.store.follow(process);
        } else if self.store.incarnation(process) == Some(speaker.incarnation) {
            self.store.take_up(process);
            self.lead(process);
        }
    }

    /// Answers for this incarnation go here from now on. The connection before is closed: it was lost, or was not the process's
    /// own.
    pub(super) fn give_voice(&mut self, connection: ConnectionNumber, speaker: Speaker) {
        let before = self.voices.insert(speaker, connection);
        before.filter(|before| *before != connection).into_iter().for_each(|before| self.close(before, Reason::Replaced));
    }

    /// Answers for this incarnation go to this connection no more, if they did.
    pub(super) fn take_voice(&mut self, connection: ConnectionNumber, speaker: Speaker) {
        if self.voices.get(&speaker) == Some(&connection) {
            self.voices.remove(&speaker);
        }
    }

    // ---- images

    /// An image that a process has under way, and that can begin on no connection any more, is refused: the process would wait for it forever.
    pub(super) fn look_for_image(&mut self, process: ProcessId) {
        let may_begin = |role: Role| matches!(role, Role::Image(speaker, None) if speaker.process == process);
        if self.store.awaits_image(process) && !self.connections.values().any(|connection| may_begin(connection.role)) {
            self.store.refuse_announced(process);
        }
    }

    fn begin_image(
        &mut self,
        connection: ConnectionNumber,
        speaker: Speaker,
        image: u64,
        message: &ToProtector<'_>,
    ) -> Result<Next, Reason> {
        self.store.handle_message(speaker, message)?;
        self.expect_image(speaker, image)?;
        self.set_image(connection, speaker, image, 0);
        Ok(Next::Read)
    }

    /// The next bytes of an image have come.
    #[must_use]
    pub fn handle_image_bytes(&mut self, now: Duration, connection: ConnectionNumber, bytes: &[u8]) -> Next {
        self.now = now;
        let result = self.take_image_bytes(connection, bytes);
        self.or_refuse(connection, result)
    }

    fn take_image_bytes(&mut self, connection: ConnectionNumber, bytes: &[u8]) -> Result<Next, Reason> {
        let Some(Role::Image(speaker, Some((image, offset)))) = self.role(connection) else {
            return Err(Reason::Protocol("bytes of an image before its beginning"));
        };
        if !bytes.is_empty() {
            self.store.handle_message(speaker, &ToProtector::ImageChunk { image, offset, bytes })?;
            self.set_image(connection, speaker, image, offset + bytes.len() as u64);
        }
        self.expect_image(speaker, image)?;
        Ok(Next::Read)
    }

    /// The last byte of an image has come: the verification will say whether it is sound.
    pub fn handle_image_end(&mut self, now: Duration, connection: ConnectionNumber) {
        self.now = now;
        let result = match self.role(connection) {
            Some(Role::Image(speaker, Some((image, length)))) => {
                let result = self.store.handle_message(speaker, &ToProtector::ImageEnd { image, length });
                result.map_err(Reason::from).and(Err(Reason::Ended))
            }
            _ => Err(Reason::Protocol("an image that ends before its beginning")),
        };
        _ = self.or_refuse(connection, result);
    }

    /// Fails if the image was refused, or another has begun: the sender need not go on.
    fn expect_image(&self, speaker: Speaker, image: u64) -> Result<(), Reason> {
        if self.store.takes_image(speaker.process, image) { Ok(()) } else { Err(Reason::Ended) }
    }

    fn set_image(&mut self, connection: ConnectionNumber, speaker: Speaker, image: u64, offset: u64) {
        let caller = self.connections.get_mut(&connection);
        caller.into_iter().for_each(|caller| caller.role = Role::Image(speaker, Some((image, offset))));
    }
}
