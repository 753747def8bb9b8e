//! What a protector holds for the processes it protects: journal, payload log and images of each (docs/design.md's data path).
//!
//! A state machine without files or sockets. Messages of observers go in by [`Store::handle_message`]. Answers, messages for the
//! next replica and wishes come out by [`Store::poll_output`]. What is to go to a file comes out by [`Store::poll_write`], and
//! [`Store::handle_written`] says that it is there.
//!
//! - G4: of each process one incarnation is heard. A message of an older one is answered with that, and changes nothing.
//! - *Stable* is what is acknowledged: in memory, with [`Config::durable`] in the file, and with a replica after it has
//!   acknowledged it (so the last of the chain decides).
//! - G6: an image is committed when it is whole, verified, stored as configured, and committed by the replica. The image before it
//!   and the log since that one stay until the next commit, as long as the log has room for both: an image that does not restore
//!   leaves something to go back to. Then the log before the older cut is dropped, and images that no image left builds upon.

mod causes;
mod forgetting;
mod images;
mod learning;
mod lines;
mod log;
mod payload;
mod process;
mod reading;
mod receiving;
mod replication;
mod role;
mod spill;
#[cfg(test)]
mod tests;
mod types;

use std::collections::{BTreeMap, HashMap, VecDeque};

use radic_wire::bytes::Writer;
use radic_wire::determinant::StreamId;
use radic_wire::ids::{Epoch, Incarnation, JobId, ProcessId};
use radic_wire::log::{FromProtector, ImageRange, ImageState, ToProtector};
use radic_wire::process::PayloadMode;
use radic_wire::span::Span;

use self::images::Image;
pub use self::lines::LineHeld;
use self::log::Log;
use self::process::{Kept, Process};
use self::role::{Elsewhere, Replica};
pub use self::types::{Config, File, NoRestart, Notice, Output, Place, RESTORES, Restart, Speaker, StoreError, Usage, Write};

/// Superseded images that are remembered of a process that keeps its logs.
const KEPT_IMAGES: usize = 1 << 16;
/// Notices that wait to be fetched. The oldest one is dropped.
const NOTICES: usize = 1_024;

/// Everything that one protector holds.
#[derive(Debug, Clone)]
pub struct Store {
    config: Config,
    processes: BTreeMap<ProcessId, Process>,
    /// What is known of the recovery lines of each job.
    lines: BTreeMap<JobId, lines::Lines>,
    /// Of ranks of jobs that were resumed: no incarnation before this one is heard, also where nothing is held of the rank.
    first: BTreeMap<ProcessId, Incarnation>,
    outputs: VecDeque<Output>,
    notices: VecDeque<Notice>,
    /// What is forgotten here and kept in files.
    saved: VecDeque<Write>,
    /// Processes that may have something to write, each once.
    to_write: VecDeque<ProcessId>,
}

impl Store {
    /// An empty store.
    pub fn new(config: Config) -> Self {
        let (processes, lines, first, outputs, notices, saved, to_write) = Default::default();
        Store { config, processes, lines, first, outputs, notices, saved, to_write }
    }

    /// The next thing to do for the driver.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The next notice for the event log.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    fn note(&mut self, notice: Notice) {
        self.notices.push_back(notice);
        if self.notices.len() > NOTICES {
            self.notices.pop_front();
        }
    }

    fn send(&mut self, to: Speaker, message: &FromProtector<'_>) {
        self.outputs.push_back(Output::Send(to, encoded(|out| message.write(out))));
    }

    /// The incarnation that is heard.
    pub fn incarnation(&self, process: ProcessId) -> Option<Incarnation> {
        self.processes.get(&process).map(|process| process.incarnation)
    }

    /// How many processes it knows.
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Whether it knows none.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// The processes of a job that it knows.
    pub fn of_job(&self, job: JobId) -> Vec<ProcessId> {
        self.processes.keys().copied().filter(|process| process.job == job).collect()
    }

    /// Bounds the log of a process in bytes, and says whether what no restart needs stays in files, and where what the process receives is kept.
    pub fn configure(&mut self, id: ProcessId, log: u64, keep: bool, payload: PayloadMode) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.bound = Some(log);
        process.images.are_final = payload == PayloadMode::Sender;
        if !keep {
            process.kept = None;
        } else if process.kept.is_none() {
            process.kept = Some(Kept { journal: process.journal.start(), ..Kept::default() });
        }
    }

    /// Forgets a process. Its files are the driver's affair.
    pub fn remove(&mut self, id: ProcessId) {
        self.processes.remove(&id);
        self.to_write.retain(|process| *process != id);
        self.saved.retain(|write| write.file.process() != id);
    }

    /// Nothing more comes from this process: all of it goes to files, where it can be read.
    pub fn end(&mut self, id: ProcessId) {
        let incoming = self.processes.get(&id).and_then(|process| process.images.incoming.as_ref()).map(|image| image.number);
        incoming.into_iter().for_each(|number| self.abandon(id, number));
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.ended = true;
        process.role.replica = None;
        self.queue_write(id);
    }

    /// A message of an observer. `speaker` is what the hello on that connection said, or says if this is the hello.
    pub fn handle_message(&mut self, speaker: Speaker, message: &ToProtector<'_>) -> Result<(), StoreError> {
        if let ToProtector::Hello { process, incarnation, journal, payload, image, committed } = *message {
            if (Speaker { process, incarnation }) != speaker {
                return Err(StoreError::Stranger(process));
            }
            self.handle_hello(speaker, journal.start..journal.end, payload.start..payload.end, committed)?;
            self.handle_under_way(process, image);
            self.settle(process);
            return Ok(());
        }
        self.check_voice(speaker)?;
        let process = speaker.process;
        match *message {
            ToProtector::Hello { .. } => {}
            ToProtector::Journal { position, bytes } => self.handle_journal(process, position, bytes)?,
            ToProtector::JournalAfter { position, causes, bytes } => {
                self.handle_journal_after(process, position, &causes, bytes)?;
            }
            ToProtector::Payload { position, stream, offset, bytes } => {
                self.handle_payload(process, position, stream, offset, Some(bytes))?;
            }
            ToProtector::PayloadEnd { position, stream, offset } => {
                self.handle_payload(process, position, stream, offset, None)?
            }
            ToProtector::ImageBegin { image, parent, cut, payload, causes, line, streams, ended } => {
                let (streams, ended) = (streams.iter().collect(), ended.iter().collect());
                let content = Log::at(0);
                let (verified, length, replicated, is_told) = (false, None, false, false);
                self.begin_image(
                    process,
                    Image {
                        number: image,
                        parent,
                        cut,
                        payload,
                        causes,
                        line,
                        is_told,
                        streams,
                        ended,
                        content,
                        verified,
                        length,
                        replicated,
                    },
                );
            }
            ToProtector::ImageUnderWay { image } => self.handle_under_way(process, Some(image)),
            ToProtector::ImageChunk { image, offset, bytes } => self.handle_chunk(process, image, offset, bytes)?,
            ToProtector::ImageEnd { image, length } => self.handle_image_end(process, image, length),
            ToProtector::ImageAbandoned { image } => self.abandon(process, image),
            ToProtector::AskStable { stream } => self.outputs.push_back(Output::AskStable(speaker, stream)),
            ToProtector::Forget { connection, for_good } => self.outputs.push_back(Output::Forget(speaker, connection, for_good)),
            ToProtector::FetchJournal { position } => self.fetch(speaker, File::Journal(process), position)?,
            ToProtector::FetchPayload { stream, offset } => self.fetch(speaker, File::Stream(process, stream), offset)?,
            ToProtector::Live => self.handle_live(process),
            ToProtector::ImageUseless { image } => self.drop_useless(process, image),
            ToProtector::Closing => self.process(process)?.closing = true,
        }
        self.forward(process, message);
        self.settle(process);
        Ok(())
    }

    /// G4: one voice for each process.
    fn check_voice(&mut self, speaker: Speaker) -> Result<(), StoreError> {
        let Speaker { process, incarnation } = speaker;
        let known = self.incarnation(process);
        let newest = known.max(self.first.get(&process).copied()).ok_or(StoreError::Stranger(process))?;
        if incarnation < newest {
            self.send(speaker, &FromProtector::Fenced { newest });
            return Err(StoreError::Fenced { process, old: incarnation, newest });
        }
        if known == Some(incarnation) { Ok(()) } else { Err(StoreError::Stranger(process)) }
    }

    fn handle_hello(
        &mut self,
        speaker: Speaker,
        journal: std::ops::Range<u64>,
        payload: std::ops::Range<u64>,
        committed: Option<u64>,
    ) -> Result<(), StoreError> {
        let Speaker { process: id, incarnation } = speaker;
        if self.incarnation(id).max(self.first.get(&id).copied()) > Some(incarnation) {
            return self.check_voice(speaker);
        }
        let before = self.processes.get(&id).map(|process| process.incarnation).filter(|before| *before < incarnation);
        // The job has restarted, so nothing comes back from what is held of the earlier epoch. Or the process's next incarnation
        // began with another protector: positions in the payload belong to an incarnation, so it is not known what of the one
        // before never came here.
        let begins = before.is_some_and(|before| before.epoch < incarnation.epoch || self.has_let_go(id));
        if before.is_some() {
            self.silence(id, incarnation);
            self.processes.get_mut(&id).into_iter().for_each(Process::renew);
        }
        let process = self.processes.entry(id).or_insert_with(|| Process::new(incarnation, journal.start, payload.start));
        if !begins && (process.journal.end() > journal.end || process.payload.end > payload.end) {
            return Err(StoreError::Contradiction { process: id, what: "its hello knows less than it has written" });
        }
        let mut renewed = None;
        if begins || process.is_behind(journal.start, payload.start, committed) {
            // Or what lies between is lost: this log, and the images before it, can restart nothing.
            let new = Process { queued: process.queued, ..Process::new(incarnation, journal.start, payload.start) };
            renewed = Some(std::mem::replace(process, new));
        }
        process.role.told = (journal.end, payload.end);
        process.causes_told = 0;
        // Not up to what is held here: what a replica or the file lacks is not stable, and must not open a gate.
        let (journal, payload) = (process.journal_stable, process.payload.stable);
        let newest = process.images.committed.last().map(|image| image.number);
        let wanted = newest.is_none();
        process.images.wanted = wanted;
        let replicated = renewed.as_ref().is_some_and(|old| old.role.replica.is_some());
        if let Some(old) = renewed {
            self.delete_files(id, &old);
        }
        self.send(speaker, &FromProtector::Welcome { journal, payload, image: newest });
        match newest {
            // The message that it is committed may have been lost with the connection before.
            Some(image) => self.tell_committed(speaker, image),
            None => self.send(speaker, &FromProtector::ImageWanted),
        }
        if replicated {
            // The replica has what there was before, and gets what there is now.
            self.set_replica(id, true);
        }
        Ok(())
    }

    fn process(&mut self, id: ProcessId) -> Result<&mut Process, StoreError> {
        self.processes.get_mut(&id).ok_or(StoreError::Stranger(id))
    }

    fn handle_journal(&mut self, id: ProcessId, position: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let gap = |_| StoreError::Contradiction { process: id, what: "its journal has a gap" };
        let process = self.process(id)?;
        let new = process.journal.append(position, bytes).map_err(gap)?;
        process.log_bytes += new as u64;
        process.in_memory += new;
        Ok(())
    }

    /// Units of a stream: bytes, or its end.
    fn handle_payload(
        &mut self,
        id: ProcessId,
        position: u64,
        stream: StreamId,
        offset: u64,
        bytes: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        let process = self.process(id)?;
        if bytes.is_some_and(<[u8]>::is_empty) {
            // The message says where a stream goes on. It is news only while there is no image here: the first image covers what
            // is before that.
            if process.images.committed.is_empty() {
                process.payload.begin_stream(stream, offset);
            }
            return Ok(());
        }
        let contradiction = |what| StoreError::Contradiction { process: id, what };
        let new = process.payload.append(position, stream, offset, bytes).map_err(contradiction)?;
        process.log_bytes += new as u64;
        process.in_memory += new;
        Ok(())
    }

    /// Acknowledges what has become stable, commits an image that may be, and asks for an image when a bound is near.
    fn settle(&mut self, id: ProcessId) {
        self.commit_if_ready(id);
        self.queue_write(id);
        self.make_room(id);
        let Config { durable, log: bound, .. } = self.config;
        let Some(process) = self.processes.get_mut(&id) else { return };
        let to = Speaker { process: id, incarnation: process.incarnation };
        let held = if durable { process.journal.written() } else { process.journal.end() };
        let held = process.role.replica.map_or(held, |replica| held.min(replica.journal));
        // What lies before the oldest image that a restart may use is covered by it, here and at the replica, even where the journal itself has not come.
        let journal = held.max(process.journal.start());
        let (log, bound) = (process.log_bytes, process.log_bound(bound));
        if log <= bound {
            let replica = process.role.replica.map(|replica| replica.payload);
            process.in_memory -= process.payload.acknowledge(durable, replica);
        }
        if let Some(replica) = process.role.replica {
            process.in_memory -= process.journal.release(replica.journal);
        }
        let payload = process.payload.stable;
        let news = (journal > process.journal_stable, payload > process.payload.told);
        let causes = process.role.replica.map_or(u64::MAX, |replica| replica.causes).min(process.causes.end());
        let held = causes > process.causes_told;
        process.causes_told = process.causes_told.max(causes);
        (process.journal_stable, process.payload.told) = (process.journal_stable.max(journal), payload);
        let wanted = log > bound / 4 * 3 && !process.images.wanted && process.images.incoming.is_none();
        process.images.wanted |= wanted;
        process.check_invariants();
        if news.0 {
            self.send(to, &FromProtector::JournalStable { position: journal });
        }
        if held {
            self.send(to, &FromProtector::CausesHeld { position: causes });
        }
        if news.1 {
            self.send(to, &FromProtector::PayloadStable { position: payload });
        }
        if wanted {
            self.send(to, &FromProtector::ImageWanted);
            self.note(Notice::LogBound(id));
        }
    }

    fn commit_if_ready(&mut self, id: ProcessId) {
        let durable = self.config.durable;
        let complete = self.complete_line(id);
        let Some(process) = self.processes.get_mut(&id) else { return };
        let (replica, causes) = (process.role.replica.is_some(), process.causes.end());
        let ready = |image: &Image| {
            let written = !durable || image.content.written() == image.content.end();
            // What it depends on of other processes is here, as for the journal.
            image.verified && written && causes >= image.causes && (!replica || image.replicated)
        };
        let Some(image) = process.images.incoming.as_mut().filter(|image| ready(image)) else { return };
        if image.line.joins && image.line.newest > complete {
            if !std::mem::replace(&mut image.is_told, true) {
                let line = image.line.newest;
                self.note(Notice::LineReady(id, line));
            }
            return;
        }
        let Some(image) = process.images.incoming.take() else { return };
        if image.line.newest > complete {
            // It counts by itself, and in the place of the process's image of that line.
            self.note(Notice::LineReady(id, image.line.newest));
        }
        let Some(process) = self.processes.get(&id) else { return };
        let to = Speaker { process: id, incarnation: process.incarnation };
        let number = image.number;
        self.commit(id, image);
        self.tell_committed(to, number);
    }

    /// Tells the process that its newest image is committed, and also if a restart would read too much.
    fn tell_committed(&mut self, to: Speaker, image: u64) {
        let oldest = self.processes.get(&to.process).and_then(|process| process.images.oldest).unwrap_or(image);
        self.send(to, &FromProtector::Committed { image, oldest });
        if self.processes.get(&to.process).is_some_and(|process| process.images.wants_whole()) {
            self.send(to, &FromProtector::WholeWanted);
        }
    }

    /// G6: only here anything is forgotten: what restarts from this image, or from a newer one, do not need.
    fn forget_before(&mut self, id: ProcessId, number: u64) {
        let Some(process) = self.processes.get_mut(&id).filter(|process| process.images.oldest != Some(number)) else { return };
        let Some(at) = process.images.committed.iter().position(|image| image.number == number) else { return };
        process.images.oldest = Some(number);
        let Image { cut, payload, ref streams, ref ended, .. } = process.images.committed[at];
        let (streams, ends) = (streams.clone(), ended.iter().copied().collect::<HashMap<_, _>>());
        if process.kept.is_some() {
            process::save(&mut process.journal, File::Journal(id), cut, &mut self.saved);
        } else {
            self.outputs.push_back(Output::Truncate(File::Journal(id), cut));
        }
        process.journal.truncate(cut);
        for (stream, offset) in streams {
            self.commit_stream(id, stream, offset, ends.get(&stream).copied());
        }
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.payload.cover(payload);
        let first = process.images.committed[..=at].iter().rposition(|image| image.parent.is_none()).unwrap_or(0);
        let old: Vec<Image> = process.images.committed.drain(..first).collect();
        match &mut process.kept {
            Some(kept) if kept.images.len() + old.len() <= KEPT_IMAGES => {
                kept.images.extend(old.iter().map(|old| old.described(ImageState::Superseded)));
            }
            _ => self.outputs.extend(old.iter().map(|old| Output::Delete(File::Image(id, old.number)))),
        }
        process.recount();
    }

    /// From now on only `incarnation` of this process is heard (G4). What is held of an earlier epoch of the job is dropped: a
    /// process that came back from it would have another past than all others.
    pub fn fence(&mut self, id: ProcessId, incarnation: Incarnation) {
        self.silence(id, incarnation);
        let process = self.processes.get_mut(&id).filter(|process| process.payload.counted.epoch < incarnation.epoch);
        if let Some(process) = process {
            let new = Process { queued: process.queued, bound: process.bound, ..Process::new(incarnation, 0, 0) };
            let old = std::mem::replace(process, new);
            self.delete_files(id, &old);
        }
    }

    /// A new life of the job begins with this incarnation of this rank: what is left of the last life is not heard, though
    /// nothing is held of it here (G4).
    pub fn refuse_before(&mut self, id: ProcessId, first: Incarnation) {
        self.first.insert(id, first);
    }

    /// The job is over.
    pub fn refuse_none(&mut self, job: JobId) {
        self.first.retain(|process, _| process.job != job);
    }

    /// The process is live again: its newest image restores.
    pub fn handle_live(&mut self, id: ProcessId) {
        self.processes.get_mut(&id).into_iter().for_each(|process| process.images.restores = 0);
    }

    /// Refuses older incarnations. An image that one of them had under way is dropped.
    fn silence(&mut self, id: ProcessId, incarnation: Incarnation) {
        let Some(process) = self.processes.get_mut(&id).filter(|process| process.incarnation < incarnation) else { return };
        process.incarnation = incarnation;
        process.images.announced = None;
        if let Some(number) = process.images.incoming.as_ref().map(|image| image.number) {
            self.abandon(id, number);
        }
    }

    /// Another protector has what this process does from now on. What is held here restarts nothing until the process speaks here
    /// itself: this log may be older, and a process restarted from it would do otherwise than was acknowledged and seen (G1).
    pub fn let_go(&mut self, id: ProcessId) {
        self.forget_older(id);
        self.processes.get_mut(&id).into_iter().for_each(|process| process.role.elsewhere = Elsewhere::Since);
    }

    /// Whether another protector has had what this process does, without telling all of it here.
    pub fn has_let_go(&self, id: ProcessId) -> bool {
        self.processes.get(&id).is_some_and(Process::is_let_go)
    }

    /// Another protector forwards what this process says, and acknowledges nothing without this one. Until that protector is
    /// lost, it is the one that brings the process back. A log that was let go stays so: a log server that is to follow once more
    /// begins with nothing ([`Store::remove`]).
    pub fn follow(&mut self, id: ProcessId) {
        if !self.has_let_go(id) {
            self.forget_older(id);
            self.processes.get_mut(&id).into_iter().for_each(|process| process.role.elsewhere = Elsewhere::Forwards);
        }
    }

    /// The protector that has forwarded what this process says is lost. This one has all that was acknowledged, and may bring the
    /// process back.
    pub fn take_over(&mut self, id: ProcessId) {
        let process = self.processes.get_mut(&id).filter(|process| process.role.elsewhere == Elsewhere::Forwards);
        process.into_iter().for_each(|process| process.role.elsewhere = Elsewhere::No);
    }

    /// The process itself has said what it knows, and goes on where this log ends. What another protector has acknowledged
    /// meanwhile comes only now. Until it is here, the process is not brought back from this log.
    pub fn take_up(&mut self, id: ProcessId) {
        let process = self.processes.get_mut(&id).filter(|process| process.role.elsewhere != Elsewhere::No);
        process.into_iter().for_each(|process| process.role.take_up());
    }

    /// Fences the older incarnations of this process and says what a restart as `incarnation` needs. It is called again while the
    /// answer is [`NoRestart::Unstable`], perhaps for two incarnations of which the later one may speak already.
    pub fn restart(&mut self, id: ProcessId, incarnation: Incarnation) -> Result<Restart, NoRestart> {
        if self.incarnation(id).is_some_and(|newest| newest > incarnation) {
            return Err(NoRestart::NoImage);
        }
        self.fence(id, incarnation);
        self.settle(id);
        self.drop_incomplete(id);
        let process = self.processes.get_mut(&id).filter(|process| process.is_current()).ok_or(NoRestart::NoImage)?;
        // A verified image will be committed, and a log that is not stable will be stable.
        let committing = process.images.incoming.is_some();
        if process.images.committed.is_empty() && !committing {
            return Err(NoRestart::NoImage);
        }
        let has_all = |replica: Replica| replica.payload >= process.payload.end && replica.causes >= process.causes.end();
        let replicated = process.role.replica.is_none_or(has_all);
        if committing || !replicated || process.journal_stable < process.journal.end() {
            return Err(NoRestart::Unstable);
        }
        if process.images.restores >= RESTORES {
            if process.images.are_final {
                return Err(NoRestart::NotRestored);
            }
            self.go_back(id);
        }
        let process = self.processes.get_mut(&id).ok_or(NoRestart::NoImage)?;
        process.images.restores += 1;
        process.renew();
        let newest = process.images.committed.last().ok_or(NoRestart::NoImage)?;
        let cut = newest.cut;
        let oldest = process.images.oldest.unwrap_or(newest.number);
        let range = ImageRange { oldest, next: process.images.next, line: newest.line.newest };
        let open = process.payload.streams.iter().filter(|(_, held)| !held.closed);
        let held = open.map(|(stream, held)| (*stream, held.held(), held.ended)).collect();
        let images = process.images.chain().iter().map(|image| (image.number, image.content.end())).collect();
        let log_end = process.journal.end();
        let causes = (process.causes.start(), process.causes.set());
        if let Some(replica) = &mut process.role.replica {
            replica.renew();
            let journal = Span { start: log_end, end: log_end };
            let hello = ToProtector::hello(id, incarnation, journal, Span::default());
            self.outputs.push_back(Output::Forward(id, encoded(|out| hello.write(out))));
        }
        Ok(Restart { images, range, cut, log_end, held, causes })
    }

    /// [`Store::stable_of`], if the receiver could be brought back from here, in this epoch of its job or a later one: after a
    /// restart of the job streams have the same names. A replica commits an image before its leader does, so it answers 0: if it
    /// were lost with the receiver, the leader would need bytes that the sender has dropped.
    pub fn stable_in(&self, receiver: ProcessId, epoch: Epoch, stream: StreamId) -> u64 {
        let answers = |process: &Process| process.incarnation.epoch >= epoch && process.is_current();
        if self.processes.get(&receiver).is_some_and(answers) { self.stable_of(receiver, stream) } else { 0 }
    }

    /// How many units of a stream to `receiver` are stable: the sender need not keep them.
    pub fn stable_of(&self, receiver: ProcessId, stream: StreamId) -> u64 {
        let held = self.processes.get(&receiver).and_then(|process| process.payload.streams.get(&stream));
        held.map_or(0, |stream| stream.stable)
    }

    /// Whether this log misses something that the process shipped to another protector, judged by its positions and by the newest
    /// image that a protector committed.
    pub fn is_behind(&self, process: ProcessId, journal: u64, payload: u64, committed: Option<u64>) -> bool {
        self.processes.get(&process).is_some_and(|process| process.is_behind(journal, payload, committed))
    }

    /// Where the journal of a process ends.
    pub fn journal_end(&self, process: ProcessId) -> u64 {
        self.processes.get(&process).map_or(0, |process| process.journal.end())
    }

    /// Whether the process could be restarted from what is held here.
    pub fn can_restart(&self, process: ProcessId) -> bool {
        self.processes.get(&process).is_some_and(|process| process.is_current() && !process.images.committed.is_empty())
    }

    /// Whether an image of the process is committed.
    pub fn has_image(&self, process: ProcessId) -> bool {
        self.processes.get(&process).is_some_and(|process| !process.images.committed.is_empty())
    }
}

fn encoded(write: impl Fn(&mut Writer<'_>)) -> Vec<u8> {
    let mut out = vec![0; 128];
    loop {
        let mut writer = Writer::new(&mut out);
        write(&mut writer);
        if let Some(length) = writer.finish() {
            out.truncate(length);
            return out;
        }
        let more = out.len() * 4;
        out.resize(more, 0);
    }
}
