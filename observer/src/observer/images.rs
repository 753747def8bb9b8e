//! Checkpoints and restarts: where an image stands in the log, what a committed one covers, and how a process begins again from one.

use radic_wire::determinant::StreamId;
use radic_wire::ids::Incarnation;
use radic_wire::log::{CutStreams, ImageRange, LineMark, ToProtector};

use super::{Observer, take_held};
use crate::checkpoint::Mark;
use crate::connection::Connection;
use crate::error::Error;
use crate::packed::Packed;
use crate::replay::Replay;

/// Where the logs stood at an image, and the message that begins it.
#[derive(Debug, Clone, Copy)]
pub struct Cut<'a> {
    /// The positions.
    pub mark: Mark,
    /// Where each stream stood.
    pub streams: CutStreams<'a>,
    /// The streams of which the end was received, and where that is.
    pub ended: CutStreams<'a>,
    /// Up to where the process depends on the causes that it keeps.
    pub causes: u64,
    /// Where the image stands among recovery lines.
    pub line: LineMark,
}

impl<'a> Cut<'a> {
    /// The message that begins the image.
    pub fn message(&self, parent: Option<u64>) -> ToProtector<'a> {
        let Mark { image, journal: cut, payload } = self.mark;
        ToProtector::ImageBegin {
            image,
            parent,
            cut,
            payload,
            causes: self.causes,
            line: self.line,
            streams: self.streams,
            ended: self.ended,
        }
    }
}

impl Observer {
    /// An image begins here, that of recovery line `line` or one by itself; `streams` is filled with where each stream stands,
    /// and `ended` with where those end that did. `None` while this incarnation catches up: its journal would not be its own. The
    /// process is copied after this.
    pub fn checkpoint<'a>(
        &mut self,
        line: Option<u64>,
        streams: &'a mut Vec<(StreamId, u64)>,
        ended: &'a mut Vec<(StreamId, u64)>,
    ) -> Result<Option<Cut<'a>>, Error> {
        self.check_voice()?;
        if self.replay.is_some() {
            return Ok(None);
        }
        let mark = self.checkpoints.begin(self.journal.end(), self.payload.span().end)?;
        streams.clear();
        ended.clear();
        for connection in self.table.iter_mut() {
            let (stream, closed, incoming) = (connection.stream_in(), connection.is_closed(), &mut connection.incoming);
            incoming.cuts.handle_checkpoint(mark.image, incoming.consumed);
            // A closed one is never read again: all of it may go.
            streams.push((stream, if closed { u64::MAX } else { incoming.consumed }));
            ended.extend(incoming.finish.filter(|_| incoming.has_told_end()).map(|finish| (stream, finish)));
        }
        self.table.handle_checkpoint(mark.image);
        if let Some(line) = line {
            self.payload.handle_line(u32::try_from(line).map_err(|_| Error::Full("recovery lines"))?);
        }
        let newest = self.payload.line().map_or(0, u64::from);
        let line = LineMark { newest, joins: line.is_some() };
        let full = Error::Full("cut");
        let (streams, ended) = (CutStreams::new(streams).ok_or(full)?, CutStreams::new(ended).ok_or(full)?);
        let causes = self.causes.as_ref().map_or(0, |causes| causes.recorded(self.journal.end()));
        Ok(Some(Cut { mark, streams, ended, causes, line }))
    }

    /// What `image` covers need not be shipped. Only what `oldest` covers as closed is closed forever: a restart may begin there.
    pub(super) fn handle_committed(&mut self, image: u64, oldest: u64) -> Result<(), Error> {
        if let Some(mark) = self.checkpoints.handle_committed(image) {
            self.journal.handle_stable(mark.journal)?;
            self.handle_closed();
            self.payload.handle_stable(mark.payload)?;
        }
        self.table.handle_committed(oldest, &mut self.outbox);
        self.table.iter_mut().for_each(|connection| connection.incoming.cuts.handle_committed(oldest));
        Ok(())
    }

    /// Whether nothing that was received is wanted again by a later incarnation: the log has it, or, where it stays with its
    /// senders, each image covers it from which that could begin.
    pub fn is_received_held(&self) -> bool {
        let stays = |connection: &Connection| connection.stays_with_senders(&self.payload, self.me.job);
        let is_covered = self.table.iter().all(|(_, of)| !stays(of) || of.is_covered());
        let span = self.payload.span();
        is_covered && span.start == span.end
    }

    /// The image for which the process was cut, until it is committed, or will not be.
    pub fn image_under_way(&self) -> Option<u64> {
        self.checkpoints.under_way().map(|mark| mark.image)
    }

    /// The image under way will not be.
    pub fn handle_abandoned(&mut self) {
        if let Some(mark) = self.checkpoints.under_way() {
            self.table.iter_mut().for_each(|connection| connection.incoming.cuts.handle_abandoned(mark.image));
        }
        self.checkpoints.handle_abandoned();
    }

    /// Before the process is saved, where received bytes stay with their senders: what of the outbox the image has. The outbox
    /// itself is not in it, as memory that changes while the image is written. With `line` only what the peer may want that comes
    /// back by its own image of that line.
    pub fn pack_outbox(&mut self, line: Option<u64>) {
        if self.payload.line().is_some() {
            self.packed = Some(Packed::new(&self.outbox, &self.table, line));
        }
    }

    /// The process is saved.
    pub fn handle_saved(&mut self) {
        self.packed = None;
    }

    /// This process was restored from an image as `incarnation`. Its protector holds the journal up to `log_end`, and of its
    /// incoming streams what `held` says (stream, units, where it has ended), and the images that `images` says, and keeps the
    /// set of causes, which begins at that position. `buffer` bytes of log are here at once.
    pub fn restart(
        &mut self,
        incarnation: Incarnation,
        log_end: u64,
        held: Vec<(StreamId, u64, Option<u64>)>,
        images: ImageRange,
        (position, causes): (u64, &[u8]),
        buffer: usize,
    ) -> Result<(), Error> {
        if incarnation <= self.incarnation {
            return Err(Error::Protector("a restart needs a newer incarnation"));
        }
        let cut = self.journal.end();
        if log_end < cut {
            return Err(Error::Protector("the log ends before the cut"));
        }
        // The outbox is what the image has of it.
        if let Some(packed) = self.packed.take() {
            packed.unpack(&mut self.outbox, &mut self.table);
        }
        self.outbox.handle_restart();
        self.held = held;
        self.held.sort_unstable_by_key(|held| held.0);
        self.table.handle_restart(|stream| take_held(&mut self.held, stream));
        self.payload.handle_restart();
        let line = u32::try_from(images.line).map_err(|_| Error::Full("recovery lines"))?;
        self.payload.handle_line(line);
        let own = self.causes.iter_mut().try_for_each(|of| of.restart(position, causes));
        own.map_err(|_| Error::Protector("the causes that it has are none"))?;
        self.untold = None;
        self.checkpoints.handle_restart(images.next);
        self.table.handle_committed(images.oldest, &mut self.outbox);
        self.table.iter_mut().for_each(|connection| connection.incoming.cuts.handle_committed(images.oldest));
        self.replay = Some(Replay::new(cut, log_end, self.journal.thread(), buffer));
        (self.incarnation, self.replayed, self.resumed) = (incarnation, 0, false);
        Ok(())
    }
}
