//! The log's messages: what is shipped to the protector, and what it says.

use radic_wire::determinant::StreamId;
use radic_wire::ids::{Incarnation, ProcessId, Rank};
use radic_wire::limits;
use radic_wire::log::{FromProtector, ToProtector};
use radic_wire::span::Span;

use super::Observer;
use crate::causes::Causes;
use crate::error::Error;
use crate::journal::Ship;
use crate::payload::Piece;

impl Observer {
    /// The hello for a connection to the protector.
    pub fn hello(&self) -> ToProtector<'static> {
        let payload = self.payload.span();
        // What is replayed counts as written: the protector holds it.
        let journal = match &self.replay {
            Some(replay) if !self.resumed => Span { start: self.journal.end(), end: replay.end() },
            _ => self.journal.span(),
        };
        let image = self.image_under_way();
        let committed = self.checkpoints.committed();
        ToProtector::Hello { process: self.me, incarnation: self.incarnation, journal, payload, image, committed }
    }

    /// Journal to be shipped, at once; perhaps in two messages.
    pub fn poll_journal(&mut self) -> Option<Ship<'_>> {
        if !self.writes_journal() {
            return None;
        }
        let Some(causes) = self.causes.as_mut().and_then(Causes::poll_ship) else { return self.journal.poll_ship() };
        // One message takes a chunk. Where that is too little the causes go by themselves, before what depends on them.
        let fits = causes.bytes.len() + self.journal.unshipped() <= limits::LOG_CHUNK;
        let journal = if fits { self.journal.ship() } else { self.journal.ship_nothing() };
        Some(Ship { causes: Some(causes), ..journal })
    }

    /// Bytes of the journal, and of its causes, that were not shipped.
    pub fn unshipped(&self) -> usize {
        self.journal.unshipped() + self.causes.as_ref().map_or(0, Causes::unshipped)
    }

    /// Whether there is nothing to be shipped ([`Observer::poll_payload`]).
    pub fn is_payload_shipped(&self) -> bool {
        self.untold.is_none() && self.payload.is_shipped()
    }

    /// Payload to be shipped, at most this many bytes: when the process idles, when a call has found nothing, or when
    /// [`PayloadLog::is_due`](crate::payload::PayloadLog::is_due).
    pub fn poll_payload(&mut self, most: usize) -> Option<Piece<'_>> {
        if let Some(beginning) = self.poll_beginning() {
            return Some(beginning);
        }
        self.payload.poll_ship(most)
    }

    /// From where a stream goes on, as a piece without bytes. The protector that answered may be a new one, and the sender of the
    /// stream is to learn that it need not keep what is before that: no image that this protector commits lacks it, and without
    /// an image it brings no process back. Else a peer that catches up could wait with a full outbox until that image, which may
    /// find no room: no log server would know what the lost protector had held. Not of what stays with its sender: of that no log
    /// has anything, and a process that comes back would look for it there.
    fn poll_beginning(&mut self) -> Option<Piece<'static>> {
        let position = self.payload.span().start;
        while let Some((slot, connection)) = self.table.first_from(self.untold?) {
            self.untold = Some(slot + 1);
            let (stream, incoming) = (connection.stream_in(), &connection.incoming);
            let received = incoming.finish.map_or(incoming.wanted(), |finish| finish.min(incoming.wanted()));
            let offset = self.payload.first_of(stream).unwrap_or(received);
            let stays = connection.stays_with_senders(&self.payload, self.me.job);
            if offset > 0 && !connection.is_closed() && !stays {
                return Some(Piece { position, stream, offset, is_end: false, head: &[], tail: &[] });
            }
        }
        self.untold = None;
        None
    }

    /// Where the log is wanted from, during replay.
    pub fn wanted_log(&self) -> Option<(u64, usize)> {
        self.replay.as_ref()?.wanted()
    }

    /// A message of the protector; payload fetched for a restart goes to [`Observer::handle_received`] instead.
    pub fn handle_protector(&mut self, message: &FromProtector<'_>) -> Result<(), Error> {
        match *message {
            // During replay its hello was not about the journal that is being replayed.
            FromProtector::Welcome { journal, payload, .. } => {
                if self.writes_journal() {
                    self.journal.handle_welcome(journal)?;
                }
                self.causes.iter_mut().for_each(Causes::handle_welcome);
                self.handle_closed();
                self.untold = self.replay.is_none().then_some(0);
                self.payload.handle_welcome(payload)
            }
            FromProtector::Fenced { newest } if newest > self.incarnation => {
                self.fenced = Some(newest);
                Err(Error::Fenced(newest))
            }
            FromProtector::Fenced { .. } => Err(Error::Protector("it fences the newest incarnation")),
            FromProtector::JournalStable { .. } if !self.writes_journal() => Ok(()),
            FromProtector::JournalStable { position } => {
                self.journal.handle_stable(position)?;
                self.handle_closed();
                Ok(())
            }
            FromProtector::CausesHeld { position } => {
                self.causes.iter_mut().for_each(|causes| causes.handle_held(position));
                self.handle_closed();
                Ok(())
            }
            FromProtector::PayloadStable { position } => self.payload.handle_stable(position),
            FromProtector::Committed { image, oldest } => self.handle_committed(image, oldest),
            FromProtector::ImageRefused { image } => {
                if self.image_under_way() == Some(image) {
                    self.handle_abandoned();
                }
                Ok(())
            }
            FromProtector::StreamStable { stream, offset } => {
                self.handle_stream_stable(stream, offset);
                Ok(())
            }
            FromProtector::Journal { position, bytes } => match &mut self.replay {
                Some(replay) => replay.handle_log(position, bytes),
                None => Ok(()),
            },
            FromProtector::Forget { connection, for_good } => {
                self.table.handle_forget(connection, for_good, &mut self.outbox);
                Ok(())
            }
            FromProtector::ImageWanted
            | FromProtector::WholeWanted
            | FromProtector::Held { .. }
            | FromProtector::Payload { .. } => Ok(()),
        }
    }

    /// Where the journal is stable and the protector has its causes, what was received before that depends on nothing else.
    pub(super) fn handle_closed(&mut self) {
        let stable = self.journal.stable();
        if self.causes.as_ref().is_none_or(|causes| causes.are_held(self.journal.end())) {
            self.payload.handle_journal_stable(stable);
        }
    }

    /// Ranks of the job are lost, and what others keep of their journals is collected: this is all that this process keeps, its
    /// own journal included. What the lost incarnations have sent, and this process has not received, it never receives.
    pub fn handle_collect(&mut self, lost: &[(Rank, Incarnation)]) -> Vec<u8> {
        for (rank, incarnation) in lost {
            self.causes.iter_mut().for_each(|causes| causes.handle_collected(*rank, *incarnation));
            self.table.handle_restarted(ProcessId { rank: *rank, ..self.me }, *incarnation);
        }
        let Some(causes) = &self.causes else { return Vec::new() };
        let mut set = causes.set();
        if self.writes_journal() {
            causes.add_own(&self.journal, &mut set);
        }
        set
    }

    /// A rank was brought back with a journal that ends at `log_end`. If this process depends on a later position, the job must
    /// restart from the beginning. What counts is what it depended on when it reported what it keeps of that journal.
    pub fn check_collected(&self, process: ProcessId, incarnation: Incarnation, log_end: u64) -> Result<(), Error> {
        let causes = self.causes.as_ref().filter(|_| process.job == self.me.job);
        let depends = causes.map_or(0, |causes| causes.depended_on(process.rank, incarnation));
        if depends <= log_end { Ok(()) } else { Err(Error::Uncollected { process, depends, log_end }) }
    }

    fn handle_stream_stable(&mut self, stream: StreamId, offset: u64) {
        let Some(slot) = self.table.find_end(stream.connection, stream.from_opener) else { return };
        if let Some(connection) = self.table.get_mut(slot).filter(|connection| connection.stream_out() == stream) {
            // The receiver may be said to have left. If that is wrong, it asks on another link, and ends with an error: it gets
            // no other bytes for those that are not kept.
            if connection.handle_stable(&mut self.outbox, offset) {
                connection.drop_link();
            }
        }
    }
}
