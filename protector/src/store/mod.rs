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

mod log;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};

use radic_wire::bytes::Writer;
use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::ids::{Incarnation, JobId, ProcessId};
use radic_wire::limits;
use radic_wire::log::{FromProtector, HeldImage, HeldLog, HeldStream, ImageRange, ImageState, LogPart, Span, ToProtector};

use self::log::Log;

/// Bytes of logs and images in memory, of all processes together. Each has its share: with many, less than [`Config::memory`].
const MEMORY: usize = 1 << 30;
/// Least share of it.
const LEAST_MEMORY: usize = 64 << 10;
/// Pieces of payload that may be unacknowledged before no more are read.
const UNSTABLE: usize = 1 << 18;
/// Superseded images that are remembered of a process whose logs are kept.
const KEPT_IMAGES: usize = 1 << 16;
/// Notices that wait to be fetched. The oldest one is dropped.
const NOTICES: usize = 1_024;

/// How often a process is restarted from its newest image without becoming live, before the image before that is taken.
pub const RESTORES: u32 = 2;

/// Bounds and how firmly things are held.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Bytes of one process's logs and images in memory before they are written to files.
    pub memory: usize,
    /// Bytes of one process's journal and payload log; an image is asked for at three quarters of it, and payload over it is
    /// not acknowledged.
    pub log: u64,
    /// Bytes of one image.
    pub image: u64,
    /// Acknowledge only what is in the file.
    pub durable: bool,
}

/// The process and incarnation that speak on a connection, as its hello said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Speaker {
    /// The process.
    pub process: ProcessId,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

/// A file of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum File {
    /// The journal of a process.
    Journal(ProcessId),
    /// Received bytes of a stream of a process.
    Stream(ProcessId, StreamId),
    /// An image of a process.
    Image(ProcessId, u64),
}

impl File {
    /// The process whose file it is.
    pub fn process(&self) -> ProcessId {
        let (File::Journal(process) | File::Stream(process, _) | File::Image(process, _)) = self;
        *process
    }
}

/// Bytes that are to be written to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Which file.
    pub file: File,
    /// Their position in the sequence. Where the file begins is the driver's affair.
    pub position: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Something for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this message ([`FromProtector`]) to the observer.
    Send(Speaker, Vec<u8>),
    /// Send this message ([`ToProtector`]) to the replica.
    Forward(ProcessId, Vec<u8>),
    /// Verify this image (checksums, MAC), then tell [`Store::handle_verified`].
    Verify(ProcessId, u64),
    /// Read so many bytes from the file and send them to the observer, as journal or payload.
    Read(Speaker, File, u64, usize),
    /// Ask the receiver's protector for [`Store::stable_of`] and send the answer to the observer.
    AskStable(Speaker, StreamId),
    /// Tell the peer of this process at the connection. True: no image of this process has the connection any more.
    Forget(Speaker, ConnectionId, bool),
    /// Nothing before the position is needed any more.
    Truncate(File, u64),
    /// The file is not needed any more.
    Delete(File),
}

/// Something for the event log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// An image is committed.
    Committed(ProcessId, HeldImage),
    /// An image was refused.
    Refused(ProcessId, u64),
    /// A committed image did not restore: the one before it is taken.
    Useless(ProcessId, u64),
    /// The log of a process nears its bound.
    LogBound(ProcessId),
}

/// Where bytes of a log are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Here.
    Memory(Vec<u8>),
    /// In this file, so many bytes from the position.
    File(File, usize),
}

/// Bytes that one process has here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Of its journal.
    pub journal: u64,
    /// Of received payload.
    pub payload: u64,
    /// Of images.
    pub images: u64,
    /// Of all these, in memory.
    pub memory: u64,
    /// The journal is acknowledged up to here.
    pub journal_stable: u64,
    /// The payload log is acknowledged up to here.
    pub payload_stable: u64,
    /// The newest committed image.
    pub committed: Option<u64>,
}

/// What a restart needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restart {
    /// The images, a full one first, then its increments: numbers and sizes.
    pub images: Vec<(u64, u64)>,
    /// Their numbers.
    pub range: ImageRange,
    /// The journal position of the last.
    pub cut: u64,
    /// Where the journal ends.
    pub log_end: u64,
    /// Of each received stream: units held, and where it has ended.
    pub held: Vec<(StreamId, u64, Option<u64>)>,
}

/// Why a process cannot be restarted from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRestart {
    /// No image of it is committed here, or another protector has led since, so its job restarts from the beginning. Or a later
    /// incarnation was fenced since, and the answer for this one is not needed.
    #[error("no image of it is committed")]
    NoImage,
    /// The replica, or the file, does not have all of the log yet.
    #[error("its log is not stable yet")]
    Unstable,
}

/// Why a message was not taken. The connection it came on is to be closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A message before the hello, or about another process.
    #[error("{0} has said no hello")]
    Stranger(ProcessId),
    /// The message is of an older incarnation, which was told so.
    #[error("incarnation {} of {process} is fenced: {} speaks for it", .old.0, .newest.0)]
    Fenced {
        /// The process.
        process: ProcessId,
        /// The incarnation that spoke.
        old: Incarnation,
        /// The incarnation that may speak.
        newest: Incarnation,
    },
    /// It contradicts what came before.
    #[error("{process}: {what}")]
    Contradiction {
        /// The process.
        process: ProcessId,
        /// What is wrong.
        what: &'static str,
    },
}

#[derive(Debug, Clone, Default)]
struct Stream {
    log: Log,
    ended: Option<u64>,
    /// Units that are acknowledged, or covered by a committed image.
    stable: u64,
    /// The last committed cut covers the close of the stream.
    closed: bool,
    /// The stream is among those of its process that may have something to write.
    listed: bool,
}

impl Stream {
    /// A stream of which another protector has held what is before this offset.
    fn at(offset: u64) -> Self {
        Stream { log: Log::at(offset), stable: offset, ..Stream::default() }
    }

    /// Units held. The end of the stream is one.
    fn held(&self) -> u64 {
        self.log.end().saturating_add(u64::from(self.ended == Some(self.log.end())))
    }

    /// Frees memory of what a file has. Payload that is not stable stays, because a new replica is given it from here.
    fn release(&mut self) -> usize {
        self.log.release(self.stable)
    }
}

/// Payload that is not acknowledged: up to this position in the payload log, and these offsets of the stream.
#[derive(Debug, Clone, Copy)]
struct Unstable {
    position: u64,
    stream: StreamId,
    from: u64,
    to: u64,
    is_end: bool,
}

/// What is not needed any more and stays in files all the same.
#[derive(Debug, Clone, Default)]
struct Kept {
    /// Where the journal begins.
    journal: u64,
    /// Of each stream that a commit has shortened: what was there, and its end.
    streams: BTreeMap<StreamId, (Span, Option<u64>)>,
    images: Vec<HeldImage>,
}

#[derive(Debug, Clone)]
struct Image {
    number: u64,
    parent: Option<u64>,
    cut: u64,
    payload: u64,
    streams: Vec<(StreamId, u64)>,
    ended: Vec<(StreamId, u64)>,
    content: Log,
    /// Whole and verified here.
    verified: bool,
    length: Option<u64>,
    /// Committed by the replica.
    replicated: bool,
}

impl Image {
    fn described(&self, state: ImageState) -> HeldImage {
        let Image { number, parent, cut, ref content, .. } = *self;
        HeldImage { image: number, parent, cut, bytes: content.end(), state }
    }
}

/// How far the replica has acknowledged.
#[derive(Debug, Clone, Copy)]
struct Replica {
    journal: u64,
    payload: u64,
}

#[derive(Debug, Clone)]
struct Process {
    incarnation: Incarnation,
    journal: Log,
    /// What was acknowledged last.
    journal_stable: u64,
    streams: BTreeMap<StreamId, Stream>,
    /// The incarnation whose payload is counted. From the fence until the log is settled it is the one before, then the next one
    /// begins.
    counted: Incarnation,
    /// Position of its payload log, and where that begins here.
    payload: u64,
    payload_start: u64,
    payload_stable: u64,
    /// Up to where its observer was told that the payload is stable.
    payload_told: u64,
    unstable: VecDeque<Unstable>,
    /// Committed images, oldest first. A restart from the newest one reads the last of them; one from the image before it reads
    /// the others.
    images: Vec<Image>,
    /// The log begins at the cut of this image or before. It is the newest image, or the one before it.
    oldest: Option<u64>,
    /// Image numbers below this one were used.
    next_image: u64,
    /// The newest image that did not restore, if none was committed since. From the image before it the process may take another
    /// path.
    useless: Option<u64>,
    /// Restarts from the newest image since it was committed, or since the process was live last.
    restores: u32,
    incoming: Option<Image>,
    replica: Option<Replica>,
    /// An image was asked for, and none came since.
    wanted: bool,
    /// Whether another protector has what the process does.
    elsewhere: Elsewhere,
    /// Where its journal and its payload ended when it last said hello. No more than that can have been acknowledged elsewhere.
    told: (u64, u64),
    /// Bound of its log, if it is not [`Config::log`].
    bound: Option<u64>,
    /// Its program has ended. No image will shorten the log, so what it received is acknowledged over the bound.
    closing: bool,
    kept: Option<Kept>,
    /// Nothing more will come, so everything goes to files.
    ended: bool,
    /// Sums over the logs. They are needed with every message.
    log_bytes: u64,
    in_memory: usize,
    /// Streams that may have something to write.
    dirty: VecDeque<StreamId>,
    /// The process is among those that may have something to write.
    queued: bool,
}

/// Whether another protector has what a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Elsewhere {
    /// The process speaks here, or did so last.
    No,
    /// Another protector forwards all of it, and acknowledges nothing that is not here.
    Forwards,
    /// Another protector has it since. What is held here may be less than that one has acknowledged.
    Since,
    /// The process speaks here again. What it had said to another protector before is on the way, up to these ends of its journal
    /// and its payload.
    Until(u64, u64),
}

impl Process {
    /// Whether nothing was acknowledged elsewhere that is not here.
    fn is_current(&self) -> bool {
        match self.elsewhere {
            Elsewhere::No => true,
            Elsewhere::Until(journal, payload) => self.journal.end() >= journal && self.payload >= payload,
            Elsewhere::Forwards | Elsewhere::Since => false,
        }
    }

    fn new(incarnation: Incarnation, journal: u64, payload: u64) -> Self {
        Process {
            incarnation,
            counted: incarnation,
            journal: Log::at(journal),
            journal_stable: journal,
            streams: BTreeMap::new(),
            payload,
            payload_start: payload,
            payload_stable: payload,
            payload_told: payload,
            unstable: VecDeque::new(),
            images: Vec::new(),
            oldest: None,
            next_image: 0,
            useless: None,
            restores: 0,
            incoming: None,
            replica: None,
            wanted: false,
            elsewhere: Elsewhere::No,
            told: (0, 0),
            bound: None,
            closing: false,
            kept: None,
            ended: false,
            log_bytes: 0,
            in_memory: 0,
            dirty: VecDeque::new(),
            queued: false,
        }
    }

    /// A new incarnation begins. It counts its payload from 0, and what it finds here is stable.
    fn renew(&mut self) {
        self.counted = self.incarnation;
        self.closing = false;
        self.unstable.clear();
        (self.payload, self.payload_start, self.payload_stable, self.payload_told) = (0, 0, 0, 0);
        self.told.1 = 0;
        // Positions in the payload log belong to an incarnation: what an image of an earlier one covers was before this one's
        // first.
        self.images.iter_mut().for_each(|image| image.payload = 0);
        self.streams.values_mut().for_each(|stream| stream.stable = stream.stable.max(stream.held()));
    }

    /// Bytes of log over which payload is not acknowledged. `common` is the bound of processes without one of their own.
    fn log_bound(&self, common: u64) -> u64 {
        if self.closing { u64::MAX } else { self.bound.unwrap_or(common) }
    }

    /// Bytes in memory that writing frees, or has freed: all except payload that is not stable.
    fn movable(&self) -> usize {
        let stays = usize::try_from(self.payload.saturating_sub(self.payload_stable)).unwrap_or(usize::MAX);
        self.in_memory.saturating_sub(stays)
    }

    /// Computes the sums again, after something was dropped.
    fn recount(&mut self) {
        let streams: usize = self.streams.values().map(|stream| stream.log.in_memory()).sum();
        let images: usize = self.images.iter().chain(&self.incoming).map(|image| image.content.in_memory()).sum();
        self.in_memory = self.journal.in_memory() + streams + images;
        self.log_bytes = self.journal.len() + self.streams.values().map(|stream| stream.log.len()).sum::<u64>();
    }

    /// Whether there may be something to write. Images always go to files: they are verified there, and a restart reads them
    /// there.
    fn wants_write(&self, durable: bool, memory: usize) -> bool {
        let image = self.incoming.as_ref().is_some_and(|image| image.content.is_unwritten());
        image || durable || self.ended || self.in_memory > memory
    }

    /// The images that a restart reads.
    fn chain(&self) -> &[Image] {
        let whole = self.images.iter().rposition(|image| image.parent.is_none());
        &self.images[whole.unwrap_or(0)..]
    }

    /// Whether all that was logged up to this image is here. Payload comes by another connection than the image, and may be
    /// slower.
    fn has_all_before(&self, image: &Image) -> bool {
        let held = |(stream, offset): &(StreamId, u64)| {
            matches!(offset, 0 | &u64::MAX) || self.streams.get(stream).is_some_and(|held| held.held() >= *offset)
        };
        self.journal.end() >= image.cut && self.payload >= image.payload && image.streams.iter().all(held)
    }

    /// Whether the log is so near its bound that it has room only for what the newest image needs.
    fn keeps_little(&self, common: u64) -> bool {
        self.log_bytes > self.log_bound(common) / 2
    }

    /// Whether the next image should be a whole one, because the increments are longer than what they are upon.
    fn wants_whole(&self) -> bool {
        let mut lengths = self.chain().iter().map(|image| image.content.end());
        let whole = lengths.next().unwrap_or(0);
        let increments: u64 = lengths.sum();
        increments > whole && whole + increments > limits::CHAIN
    }

    /// The next bytes to write: images, then payload, then the journal, so that the journal stays in memory longest. With
    /// `durable` the journal goes first, because a gate waits for it.
    fn take_write(&mut self, id: ProcessId, durable: bool, memory: usize, most: usize) -> Option<Write> {
        let spill = durable || self.ended || self.in_memory > memory;
        let write = |file, (position, bytes)| Write { file, position, bytes };
        if durable && let Some(piece) = self.journal.unwritten(most) {
            return Some(write(File::Journal(id), piece));
        }
        for image in self.images.iter_mut().filter(|_| spill).chain(&mut self.incoming) {
            if let Some(piece) = image.content.unwritten(most) {
                return Some(write(File::Image(id, image.number), piece));
            }
        }
        if !spill {
            return None;
        }
        while let Some(stream) = self.dirty.front().copied() {
            let held = self.streams.get_mut(&stream);
            if let Some(piece) = held.and_then(|held| held.log.unwritten(most)) {
                return Some(write(File::Stream(id, stream), piece));
            }
            self.dirty.pop_front();
            self.streams.get_mut(&stream).into_iter().for_each(|held| held.listed = false);
        }
        self.journal.unwritten(most).map(|piece| write(File::Journal(id), piece))
    }

    /// Queues what the file lacks of a log that is about to forget everything before `position`.
    fn save(log: &mut Log, file: File, position: u64, writes: &mut VecDeque<Write>) {
        while let Some((position, bytes)) = log.unwritten_before(position, limits::LOG_CHUNK) {
            writes.push_back(Write { file, position, bytes });
        }
    }
}

/// Everything that one protector holds.
#[derive(Debug, Clone)]
pub struct Store {
    config: Config,
    processes: BTreeMap<ProcessId, Process>,
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
        let (outputs, notices, saved, to_write) = Default::default();
        Store { config, processes: BTreeMap::new(), outputs, notices, saved, to_write }
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

    /// A process's share of memory.
    fn memory(&self) -> usize {
        self.config.memory.min((MEMORY / self.processes.len().max(1)).max(LEAST_MEMORY))
    }

    fn send(&mut self, to: Speaker, message: &FromProtector<'_>) {
        self.outputs.push_back(Output::Send(to, encoded(|out| message.write(out))));
    }

    /// The incarnation that is heard.
    pub fn incarnation(&self, process: ProcessId) -> Option<Incarnation> {
        self.processes.get(&process).map(|process| process.incarnation)
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
            room && process.log_bytes <= bound.saturating_mul(2) && process.unstable.len() < UNSTABLE
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

    /// Bounds the log of a process in bytes, and says whether what no restart needs stays in files.
    pub fn configure(&mut self, id: ProcessId, log: u64, keep: bool) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.bound = Some(log);
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
        let incoming = self.processes.get(&id).and_then(|process| process.incoming.as_ref()).map(|image| image.number);
        incoming.into_iter().for_each(|number| self.abandon(id, number));
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.ended = true;
        process.replica = None;
        self.queue_write(id);
    }

    /// A message of an observer. `speaker` is what the hello on that connection said, or says if this is the hello.
    pub fn handle_message(&mut self, speaker: Speaker, message: &ToProtector<'_>) -> Result<(), StoreError> {
        if let ToProtector::Hello { process, incarnation, journal, payload } = *message {
            if (Speaker { process, incarnation }) != speaker {
                return Err(StoreError::Stranger(process));
            }
            return self.handle_hello(speaker, journal.start..journal.end, payload.start..payload.end);
        }
        self.check_voice(speaker)?;
        let process = speaker.process;
        match *message {
            ToProtector::Hello { .. } => {}
            ToProtector::Journal { position, bytes } => self.handle_journal(process, position, bytes)?,
            ToProtector::Payload { position, stream, offset, bytes } => {
                self.handle_payload(process, position, stream, offset, Some(bytes))?;
            }
            ToProtector::PayloadEnd { position, stream, offset } => {
                self.handle_payload(process, position, stream, offset, None)?
            }
            ToProtector::ImageBegin { image, parent, cut, payload, streams, ended } => {
                let (streams, ended) = (streams.iter().collect(), ended.iter().collect());
                let content = Log::at(0);
                let (verified, length, replicated) = (false, None, false);
                self.begin_image(
                    process,
                    Image { number: image, parent, cut, payload, streams, ended, content, verified, length, replicated },
                );
            }
            ToProtector::ImageChunk { image, offset, bytes } => self.handle_chunk(process, image, offset, bytes)?,
            ToProtector::ImageEnd { image, length } => self.handle_image_end(process, image, length),
            ToProtector::ImageAbandoned { image } => self.abandon(process, image),
            ToProtector::AskStable { stream } => self.outputs.push_back(Output::AskStable(speaker, stream)),
            ToProtector::Forget { connection, for_good } => self.outputs.push_back(Output::Forget(speaker, connection, for_good)),
            ToProtector::FetchJournal { position } => self.fetch(speaker, File::Journal(process), position)?,
            ToProtector::FetchPayload { stream, offset } => self.fetch(speaker, File::Stream(process, stream), offset)?,
            ToProtector::Live => self.process(process)?.restores = 0,
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
        let newest = self.processes.get(&process).ok_or(StoreError::Stranger(process))?.incarnation;
        if incarnation < newest {
            self.send(speaker, &FromProtector::Fenced { newest });
            return Err(StoreError::Fenced { process, old: incarnation, newest });
        }
        if incarnation > newest { Err(StoreError::Stranger(process)) } else { Ok(()) }
    }

    fn handle_hello(
        &mut self,
        speaker: Speaker,
        journal: std::ops::Range<u64>,
        payload: std::ops::Range<u64>,
    ) -> Result<(), StoreError> {
        let Speaker { process: id, incarnation } = speaker;
        if self.processes.get(&id).is_some_and(|process| process.incarnation > incarnation) {
            return self.check_voice(speaker);
        }
        let before = self.processes.get(&id).map(|process| process.incarnation).filter(|before| *before < incarnation);
        // The job has restarted, so nothing comes back from what is held of the earlier epoch. Or the process's next incarnation
        // began with another protector: positions in the payload belong to an incarnation, so it is not known what of the one
        // before never came here.
        let begins = before.is_some_and(|before| before.first_of_job() < incarnation.first_of_job() || self.has_let_go(id));
        if before.is_some() {
            self.silence(id, incarnation);
            self.processes.get_mut(&id).into_iter().for_each(Process::renew);
        }
        let process = self.processes.entry(id).or_insert_with(|| Process::new(incarnation, journal.start, payload.start));
        if !begins && (process.journal.end() > journal.end || process.payload > payload.end) {
            return Err(StoreError::Contradiction { process: id, what: "its hello knows less than it has written" });
        }
        let mut anew = None;
        if begins || process.journal.end() < journal.start || process.payload < payload.start {
            // Or what lies between is lost: this log, and the images before it, can restart nothing.
            let new = Process { queued: process.queued, ..Process::new(incarnation, journal.start, payload.start) };
            anew = Some(std::mem::replace(process, new));
        }
        process.told = (journal.end, payload.end);
        // Not up to what is held here: what a replica or the file lacks is not stable, and must not open a gate.
        let (journal, payload) = (process.journal_stable, process.payload_stable);
        let newest = process.images.last().map(|image| image.number);
        let wanted = newest.is_none();
        process.wanted = wanted;
        let replicated = anew.as_ref().is_some_and(|old| old.replica.is_some());
        if let Some(old) = anew {
            self.delete_files(id, &old);
        }
        self.send(speaker, &FromProtector::Welcome { journal, payload });
        match newest {
            // The message that it is committed may have been lost with the connection before.
            Some(image) => self.tell_committed(speaker, image),
            None => self.send(speaker, &FromProtector::ImageWanted),
        }
        if replicated {
            // The replica has what there was before, and gets what there is now.
            self.set_replica(id, true);
        }
        self.settle(id);
        Ok(())
    }

    fn delete_files(&mut self, id: ProcessId, old: &Process) {
        self.saved.retain(|write| write.file.process() != id);
        self.outputs.push_back(Output::Delete(File::Journal(id)));
        let kept = old.kept.iter().flat_map(|kept| kept.streams.keys());
        self.outputs.extend(old.streams.keys().chain(kept).map(|stream| Output::Delete(File::Stream(id, *stream))));
        let kept = old.kept.iter().flat_map(|kept| &kept.images).map(|image| image.image);
        let images = old.images.iter().chain(&old.incoming).map(|image| image.number).chain(kept);
        self.outputs.extend(images.map(|number| Output::Delete(File::Image(id, number))));
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
        let contradiction = |what| StoreError::Contradiction { process: id, what };
        let process = self.process(id)?;
        if bytes.is_some_and(<[u8]>::is_empty) {
            // The message says where a stream goes on. It is news only while there is no image here: the first image covers what
            // is before that.
            if process.images.is_empty() && process.streams.len() < limits::CUT_STREAMS {
                process.streams.entry(stream).or_insert_with(|| Stream::at(offset));
            }
            return Ok(());
        }
        if position > process.payload {
            return Err(contradiction("its payload log has a gap"));
        }
        let units = bytes.map_or(1, |bytes| bytes.len() as u64);
        let end = offset.checked_add(units).ok_or(contradiction("an offset over 64 bits"))?;
        let after = position.checked_add(units).ok_or(contradiction("a position over 64 bits"))?;
        if after <= process.payload_stable {
            // It is held, or a committed image covers it. That image came by another connection, and was faster. The stream may
            // be closed since.
            return Ok(());
        }
        let known = process.streams.len() < limits::CUT_STREAMS || process.streams.contains_key(&stream);
        if !known {
            return Err(contradiction("too many streams"));
        }
        // The first that a new protector hears of a stream may be its middle. What came before was held by another protector.
        let held = process.streams.entry(stream).or_insert_with(|| Stream::at(offset));
        let from = held.held();
        match bytes {
            Some(bytes) if held.ended.is_none_or(|ended| end <= ended) => {
                let new = held.log.append(offset, bytes).map_err(|_| contradiction("a stream has a gap"))?;
                process.log_bytes += new as u64;
                process.in_memory += new;
                if new > 0 && !std::mem::replace(&mut held.listed, true) {
                    process.dirty.push_back(stream);
                }
            }
            None if held.log.end() == offset || held.ended == Some(offset) => held.ended = Some(offset),
            _ => return Err(contradiction("a stream does not end where it did")),
        }
        let to = held.held();
        process.payload = process.payload.max(after);
        if after > process.payload_stable && units > 0 {
            process.unstable.push_back(Unstable { position: after, stream, from, to, is_end: bytes.is_none() });
        }
        Ok(())
    }

    fn begin_image(&mut self, id: ProcessId, image: Image) {
        if let Some(old) = self.processes.get(&id).and_then(|process| process.incoming.as_ref()).map(|old| old.number) {
            self.abandon(id, old);
        }
        let Some(process) = self.processes.get_mut(&id) else { return };
        let newest = process.images.last().map(|newest| newest.number);
        let layers = process.chain().len();
        let fits = match image.parent {
            None => image.number >= process.next_image,
            // An increment builds upon the newest image, because the observer's tracker compares with that one only. An increment
            // that no restart could read would be worse than none.
            Some(parent) => newest == Some(parent) && parent < image.number && layers < limits::LAYERS,
        };
        // An image that was begun before the log here, by another connection, needs what is not held here.
        let has_log = image.cut >= process.journal.start() && image.payload >= process.payload_start;
        if fits && process.incoming.is_none() && has_log {
            process.incoming = Some(image);
            process.wanted = false;
        } else {
            let to = Speaker { process: id, incarnation: process.incarnation };
            self.send(to, &FromProtector::ImageRefused { image: image.number });
        }
    }

    fn handle_chunk(&mut self, id: ProcessId, number: u64, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let most = self.config.image;
        let process = self.process(id)?;
        let Some(image) = process.incoming.as_mut().filter(|image| image.number == number && image.length.is_none()) else {
            return Ok(());
        };
        let gap = |_| StoreError::Contradiction { process: id, what: "its image has a gap" };
        process.in_memory += image.content.append(offset, bytes).map_err(gap)?;
        if image.content.end() > most {
            self.refuse(id, number);
        }
        Ok(())
    }

    fn handle_image_end(&mut self, id: ProcessId, number: u64, length: u64) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let Some(image) = process.incoming.as_mut().filter(|image| image.number == number) else { return };
        if image.content.end() == length {
            image.length = Some(length);
            self.outputs.push_back(Output::Verify(id, number));
        } else {
            self.refuse(id, number);
        }
    }

    fn refuse(&mut self, id: ProcessId, number: u64) {
        if let Some(process) = self.processes.get_mut(&id) {
            if let Some(image) = process.incoming.take_if(|image| image.number == number) {
                process.in_memory -= image.content.in_memory();
                self.outputs.push_back(Output::Delete(File::Image(id, number)));
            }
            let to = Speaker { process: id, incarnation: process.incarnation };
            self.send(to, &FromProtector::ImageRefused { image: number });
            self.note(Notice::Refused(id, number));
        }
    }

    /// The driver cannot go on with an image that is under way: its connection broke, or its file cannot be written.
    pub fn refuse_image(&mut self, id: ProcessId, number: u64) {
        let process = self.processes.get(&id);
        let incoming = process.and_then(|process| process.incoming.as_ref());
        // The replica may have committed a verified image already, so it will be committed here.
        if incoming.is_some_and(|image| image.number == number && !image.verified) {
            self.refuse(id, number);
            self.forward_always(id, &ToProtector::ImageAbandoned { image: number });
        }
    }

    /// Whether this image is under way and not complete.
    pub fn takes_image(&self, id: ProcessId, number: u64) -> bool {
        let incoming = self.processes.get(&id).and_then(|process| process.incoming.as_ref());
        incoming.is_some_and(|image| image.number == number && image.length.is_none())
    }

    /// Whether the file has all of an image that is complete and not verified.
    pub fn image_is_written(&self, id: ProcessId, number: u64) -> bool {
        let incoming = self.processes.get(&id).and_then(|process| process.incoming.as_ref());
        incoming.is_some_and(|image| image.number == number && image.length == Some(image.content.written()))
    }

    /// The parent of this image, against which it is verified.
    pub fn image_parent(&self, id: ProcessId, number: u64) -> Option<u64> {
        self.processes.get(&id)?.incoming.as_ref().filter(|image| image.number == number)?.parent
    }

    /// Drops an image that is under way, unless it is verified. Then the replica may have committed it already, so it will be
    /// committed here.
    fn abandon(&mut self, id: ProcessId, number: u64) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        if let Some(image) = process.incoming.take_if(|image| image.number == number && !image.verified) {
            process.in_memory -= image.content.in_memory();
            self.outputs.push_back(Output::Delete(File::Image(id, number)));
            self.forward_always(id, &ToProtector::ImageAbandoned { image: number });
        }
    }

    /// The driver has verified an image.
    pub fn handle_verified(&mut self, id: ProcessId, number: u64, good: bool) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let Some(image) = process.incoming.as_mut().filter(|image| image.number == number && image.length.is_some()) else {
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

    /// Acknowledges what has become stable, commits an image that may be, and asks for an image when a bound is near.
    fn settle(&mut self, id: ProcessId) {
        self.commit_if_ready(id);
        self.queue_write(id);
        self.make_room(id);
        let Config { durable, log: bound, .. } = self.config;
        let Some(process) = self.processes.get_mut(&id) else { return };
        let to = Speaker { process: id, incarnation: process.incarnation };
        let held = if durable { process.journal.written() } else { process.journal.end() };
        let journal = process.replica.map_or(held, |replica| held.min(replica.journal));
        let (log, bound) = (process.log_bytes, process.log_bound(bound));
        while let Some(next) = process.unstable.front().copied() {
            let Some(stream) = process.streams.get_mut(&next.stream) else { break };
            let written = !durable || stream.log.written() >= next.to.min(stream.log.end());
            if !written || process.replica.is_some_and(|replica| replica.payload < next.position) || log > bound {
                break;
            }
            stream.stable = stream.stable.max(next.to);
            process.in_memory -= stream.release();
            process.payload_stable = process.payload_stable.max(next.position);
            process.unstable.pop_front();
        }
        if let Some(replica) = process.replica {
            process.in_memory -= process.journal.release(replica.journal);
        }
        let payload = process.payload_stable;
        let news = (journal > process.journal_stable, payload > process.payload_told);
        (process.journal_stable, process.payload_told) = (process.journal_stable.max(journal), payload);
        let wanted = log > bound / 4 * 3 && !process.wanted && process.incoming.is_none();
        process.wanted |= wanted;
        if news.0 {
            self.send(to, &FromProtector::JournalStable { position: journal });
        }
        if news.1 {
            self.send(to, &FromProtector::PayloadStable { position: payload });
        }
        if wanted {
            self.send(to, &FromProtector::ImageWanted);
            self.note(Notice::LogBound(id));
        }
    }

    /// Gives up the image before the newest, and the log between the two, when the log has no room for them.
    fn make_room(&mut self, id: ProcessId) {
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
    fn forget_older(&mut self, id: ProcessId) -> Option<u64> {
        let process = self.processes.get(&id)?;
        let newest = process.images.last()?.number;
        let is_news = process.oldest != Some(newest);
        self.forget_before(id, newest);
        is_news.then_some(newest)
    }

    fn queue_write(&mut self, id: ProcessId) {
        let (durable, memory) = (self.config.durable, self.memory());
        let Some(process) = self.processes.get_mut(&id) else { return };
        if !process.queued && process.wants_write(durable, memory) {
            process.queued = true;
            self.to_write.push_back(id);
        }
    }

    fn commit_if_ready(&mut self, id: ProcessId) {
        let durable = self.config.durable;
        let Some(process) = self.processes.get_mut(&id) else { return };
        let replica = process.replica.is_some();
        let ready = |image: &mut Image| {
            let written = !durable || image.content.written() == image.content.end();
            image.verified && written && (!replica || image.replicated)
        };
        let Some(image) = process.incoming.take_if(ready) else { return };
        let to = Speaker { process: id, incarnation: process.incarnation };
        let number = image.number;
        self.commit(id, image);
        self.tell_committed(to, number);
    }

    /// Tells the process that its newest image is committed, and also if a restart would read too much.
    fn tell_committed(&mut self, to: Speaker, image: u64) {
        let oldest = self.processes.get(&to.process).and_then(|process| process.oldest).unwrap_or(image);
        self.send(to, &FromProtector::Committed { image, oldest });
        if self.processes.get(&to.process).is_some_and(Process::wants_whole) {
            self.send(to, &FromProtector::WholeWanted);
        }
    }

    /// Another image is the newest. What the log holds since the one before stays, if all of it is here and there is room.
    fn commit(&mut self, id: ProcessId, image: Image) {
        self.note(Notice::Committed(id, image.described(ImageState::Committed)));
        let bound = self.config.log;
        let Some(process) = self.processes.get_mut(&id) else { return };
        let (number, before) = (image.number, process.images.last().map(|before| before.number));
        // A replica does not know what the protector that leads has let the process forget.
        let leads = process.elsewhere == Elsewhere::No;
        let before = before.filter(|_| leads && process.has_all_before(&image) && !process.keeps_little(bound));
        (process.restores, process.useless) = (0, None);
        process.next_image = process.next_image.max(number.saturating_add(1));
        process.images.push(image);
        if before.is_some() {
            self.close_streams(id);
        }
        self.forget_before(id, before.unwrap_or(number));
    }

    /// Senders need not keep what they sent on a stream that the newest image has closed. On the way to that image a restarted
    /// process reads again what it had read, which is held here, and closes the stream.
    fn close_streams(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let closed = process.images.last().into_iter().flat_map(|image| &image.streams).filter(|(_, offset)| *offset == u64::MAX);
        for (stream, _) in closed {
            process.streams.get_mut(stream).into_iter().for_each(|held| held.stable = u64::MAX);
        }
    }

    /// G6: only here anything is forgotten: what restarts from this image, or from a newer one, do not need.
    fn forget_before(&mut self, id: ProcessId, number: u64) {
        let Some(process) = self.processes.get_mut(&id).filter(|process| process.oldest != Some(number)) else { return };
        let Some(at) = process.images.iter().position(|image| image.number == number) else { return };
        process.oldest = Some(number);
        let Image { cut, payload, ref streams, ref ended, .. } = process.images[at];
        let (streams, ends) = (streams.clone(), ended.iter().copied().collect::<HashMap<_, _>>());
        if process.kept.is_some() {
            Process::save(&mut process.journal, File::Journal(id), cut, &mut self.saved);
        } else {
            self.outputs.push_back(Output::Truncate(File::Journal(id), cut));
        }
        process.journal.truncate(cut);
        for (stream, offset) in streams {
            self.commit_stream(id, stream, offset, ends.get(&stream).copied());
        }
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.payload = process.payload.max(payload);
        process.payload_stable = process.payload_stable.max(payload);
        let covered = process.payload_stable;
        process.unstable.retain(|unstable| unstable.position > covered);
        let first = process.images[..=at].iter().rposition(|image| image.parent.is_none()).unwrap_or(0);
        let old: Vec<Image> = process.images.drain(..first).collect();
        match &mut process.kept {
            Some(kept) if kept.images.len() + old.len() <= KEPT_IMAGES => {
                kept.images.extend(old.iter().map(|old| old.described(ImageState::Superseded)));
            }
            _ => self.outputs.extend(old.iter().map(|old| Output::Delete(File::Image(id, old.number)))),
        }
        process.recount();
    }

    /// The protector that leads has gone back to before this image. The log here begins at the image, so nothing here restarts
    /// the process before its next image is committed.
    fn drop_useless(&mut self, id: ProcessId, number: u64) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        if process.images.last().is_none_or(|newest| newest.number < number) {
            return;
        }
        let gone = std::mem::take(&mut process.images);
        process.oldest = None;
        process.recount();
        self.outputs.extend(gone.iter().map(|image| Output::Delete(File::Image(id, image.number))));
    }

    /// The newest image does not restore. The one before it is the newest again, with the log since. A replica hears of it before
    /// anything of the next incarnation. What left the process between the two images depends on nothing but the log. But empty
    /// outcomes after the last determinant are in no log, so the next incarnation may be in another state where the newest image
    /// was made.
    fn go_back(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let Some(oldest) = process.oldest else { return };
        let Some(at) = process.images.iter().position(|image| image.number == oldest) else { return };
        let gone: Vec<u64> = process.images.drain(at + 1..).map(|image| image.number).collect();
        process.restores = 0;
        process.useless = gone.first().copied();
        process.recount();
        for number in gone {
            self.forward_always(id, &ToProtector::ImageUseless { image: number });
            self.outputs.push_back(Output::Delete(File::Image(id, number)));
            self.note(Notice::Useless(id, number));
        }
    }

    /// A committed image covers a stream up to `offset` ([`u64::MAX`]: the stream is closed), and its end if that is given.
    fn commit_stream(&mut self, id: ProcessId, stream: StreamId, offset: u64, ended: Option<u64>) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let file = File::Stream(id, stream);
        let held = process.streams.entry(stream).or_default();
        // The image covers an end that may not have come here, and need not.
        held.ended = held.ended.or(ended);
        let closed = offset == u64::MAX;
        let bytes = if closed { held.log.end() } else { ended.map_or(offset, |ended| ended.min(offset)) };
        if let Some(kept) = &mut process.kept {
            Process::save(&mut held.log, file, bytes, &mut self.saved);
            let entry = kept.streams.entry(stream).or_insert((Span { start: held.log.start(), end: 0 }, None));
            (entry.0.end, entry.1) = (held.log.end().max(entry.0.end), held.ended);
        }
        if closed && held.closed {
            // Two commits cover its close. In the time between them the sender could learn that all of it is stable.
            process.streams.remove(&stream);
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

    fn fetch(&mut self, to: Speaker, file: File, position: u64) -> Result<(), StoreError> {
        let process = self.process(to.process)?;
        let log = match file {
            File::Stream(_, stream) => process.streams.get(&stream).map(|stream| &stream.log),
            File::Journal(_) | File::Image(..) => Some(&process.journal),
        };
        let empty = Log::at(position);
        let log = log.unwrap_or(&empty);
        if position < log.start() || position > log.end() {
            return Err(StoreError::Contradiction { process: to.process, what: "it wants log that is not held" });
        }
        match log.read(position, limits::LOG_CHUNK) {
            Ok(bytes) => {
                let bytes = bytes.as_slice();
                let message = match file {
                    File::Stream(_, stream) => FromProtector::Payload { stream, offset: position, bytes },
                    File::Journal(_) | File::Image(..) => FromProtector::Journal { position, bytes },
                };
                self.outputs.push_back(Output::Send(to, encoded(|out| message.write(out))));
            }
            Err(length) => self.outputs.push_back(Output::Read(to, file, position, length.min(limits::LOG_CHUNK))),
        }
        Ok(())
    }

    /// From now on only `incarnation` of this process is heard (G4). What is held of an earlier epoch of the job is dropped: a
    /// process that came back from it would have another past than all others.
    pub fn fence(&mut self, id: ProcessId, incarnation: Incarnation) {
        self.silence(id, incarnation);
        let process = self.processes.get_mut(&id).filter(|process| process.counted.first_of_job() < incarnation.first_of_job());
        if let Some(process) = process {
            let new = Process { queued: process.queued, bound: process.bound, ..Process::new(incarnation, 0, 0) };
            let old = std::mem::replace(process, new);
            self.delete_files(id, &old);
        }
    }

    /// Refuses older incarnations. An image that one of them had under way is dropped.
    fn silence(&mut self, id: ProcessId, incarnation: Incarnation) {
        let Some(process) = self.processes.get_mut(&id).filter(|process| process.incarnation < incarnation) else { return };
        process.incarnation = incarnation;
        if let Some(number) = process.incoming.as_ref().map(|image| image.number) {
            self.abandon(id, number);
        }
    }

    /// Another protector has what this process does from now on. What is held here restarts nothing until the process speaks here
    /// itself: this log may be older, and a process restarted from it would do otherwise than was acknowledged and seen (G1).
    pub fn let_go(&mut self, id: ProcessId) {
        self.forget_older(id);
        self.processes.get_mut(&id).into_iter().for_each(|process| process.elsewhere = Elsewhere::Since);
    }

    /// Whether another protector has had what this process does, without telling all of it here.
    pub fn has_let_go(&self, id: ProcessId) -> bool {
        let has = |process: &Process| match process.elsewhere {
            Elsewhere::Since => true,
            Elsewhere::Until(..) => !process.is_current(),
            Elsewhere::No | Elsewhere::Forwards => false,
        };
        self.processes.get(&id).is_some_and(has)
    }

    /// Another protector forwards what this process says, and acknowledges nothing without this one. Until that protector is
    /// lost, it is the one that brings the process back. A log that was let go stays so: a log server that is to follow once more
    /// begins with nothing ([`Store::remove`]).
    pub fn follow(&mut self, id: ProcessId) {
        if !self.has_let_go(id) {
            self.forget_older(id);
            self.processes.get_mut(&id).into_iter().for_each(|process| process.elsewhere = Elsewhere::Forwards);
        }
    }

    /// The protector that has forwarded what this process says is lost. This one has all that was acknowledged, and may bring the
    /// process back.
    pub fn take_over(&mut self, id: ProcessId) {
        let process = self.processes.get_mut(&id).filter(|process| process.elsewhere == Elsewhere::Forwards);
        process.into_iter().for_each(|process| process.elsewhere = Elsewhere::No);
    }

    /// The process itself has said what it knows, and goes on where this log ends. What another protector has acknowledged
    /// meanwhile comes only now. Until it is here, the process is not brought back from this log.
    pub fn take_up(&mut self, id: ProcessId) {
        let process = self.processes.get_mut(&id).filter(|process| process.elsewhere != Elsewhere::No);
        process.into_iter().for_each(|process| process.elsewhere = Elsewhere::Until(process.told.0, process.told.1));
    }

    /// Fences the older incarnations of this process and says what a restart as `incarnation` needs. It is called again while the
    /// answer is [`NoRestart::Unstable`], perhaps for two incarnations of which the later one may speak already.
    pub fn restart(&mut self, id: ProcessId, incarnation: Incarnation) -> Result<Restart, NoRestart> {
        if self.incarnation(id).is_some_and(|newest| newest > incarnation) {
            return Err(NoRestart::NoImage);
        }
        self.fence(id, incarnation);
        self.settle(id);
        let process = self.processes.get_mut(&id).filter(|process| process.is_current()).ok_or(NoRestart::NoImage)?;
        process.images.last().ok_or(NoRestart::NoImage)?;
        let replicated = process.replica.is_none_or(|replica| replica.payload >= process.payload);
        // A verified image will be committed, and a log that is not stable will be stable.
        let committing = process.incoming.is_some();
        if committing || !replicated || process.journal_stable < process.journal.end() {
            return Err(NoRestart::Unstable);
        }
        if process.restores >= RESTORES {
            self.go_back(id);
        }
        let process = self.processes.get_mut(&id).ok_or(NoRestart::NoImage)?;
        process.restores += 1;
        process.renew();
        let newest = process.images.last().ok_or(NoRestart::NoImage)?;
        let cut = newest.cut;
        let range = ImageRange { oldest: process.oldest.unwrap_or(newest.number), next: process.next_image };
        let open = process.streams.iter().filter(|(_, held)| !held.closed);
        let held = open.map(|(stream, held)| (*stream, held.held(), held.ended)).collect();
        let images = process.chain().iter().map(|image| (image.number, image.content.end())).collect();
        let log_end = process.journal.end();
        if let Some(replica) = &mut process.replica {
            replica.payload = 0;
            let journal = Span { start: log_end, end: log_end };
            let hello = ToProtector::Hello { process: id, incarnation, journal, payload: Span::default() };
            self.outputs.push_back(Output::Forward(id, encoded(|out| hello.write(out))));
        }
        Ok(Restart { images, range, cut, log_end, held })
    }

    /// Bytes of a committed image from `offset`, at most `most`; `Err(length)` if the file has them.
    pub fn read_image(&self, id: ProcessId, number: u64, offset: u64, most: usize) -> Option<Result<Vec<u8>, usize>> {
        let process = self.processes.get(&id)?;
        let image = process.images.iter().chain(&process.incoming).find(|image| image.number == number)?;
        Some(image.content.read(offset, most))
    }

    /// The length of a committed image that a restart may need.
    pub fn committed_image(&self, id: ProcessId, number: u64) -> Option<u64> {
        let image = self.processes.get(&id)?.images.iter().find(|image| image.number == number)?;
        Some(image.content.end())
    }

    /// Whether the process is replicated.
    pub fn is_replicated(&self, id: ProcessId) -> bool {
        self.processes.get(&id).is_some_and(|process| process.replica.is_some())
    }

    /// Everything that can be read of a process.
    pub fn list(&self, id: ProcessId) -> Option<HeldLog> {
        let process = self.processes.get(&id)?;
        let kept = process.kept.as_ref();
        let start = kept.map_or(process.journal.start(), |kept| kept.journal);
        let mut streams: BTreeMap<StreamId, HeldStream> = BTreeMap::new();
        for (stream, (bytes, ended)) in kept.iter().flat_map(|kept| &kept.streams) {
            streams.insert(*stream, HeldStream { stream: *stream, bytes: *bytes, ended: *ended, closed: true });
        }
        for (stream, held) in &process.streams {
            let bytes = Span { start: held.log.start(), end: held.log.end() };
            let closed = held.closed;
            let entry = streams.entry(*stream).or_insert(HeldStream { stream: *stream, bytes, ended: held.ended, closed });
            (entry.bytes.end, entry.ended, entry.closed) = (bytes.end, held.ended, closed);
        }
        let superseded = kept.iter().flat_map(|kept| kept.images.iter().cloned());
        let older = process.images.len() - process.chain().len();
        let state = |at: usize| if at < older { ImageState::Superseded } else { ImageState::Committed };
        let committed = process.images.iter().enumerate().map(|(at, image)| image.described(state(at)));
        let incoming = process.incoming.iter().map(|image| image.described(ImageState::UnderWay));
        Some(HeldLog {
            process: id,
            incarnation: process.incarnation,
            journal: Span { start, end: process.journal.end() },
            stable: process.journal_stable,
            streams: streams.into_values().take(limits::CUT_STREAMS).collect(),
            images: superseded.chain(committed).chain(incoming).collect(),
        })
    }

    /// Where bytes of a part are, at most `most` from `position`, if they can be read.
    pub fn find(&self, id: ProcessId, part: LogPart, position: u64, most: usize) -> Option<Place> {
        let process = self.processes.get(&id)?;
        let kept = process.kept.as_ref();
        let (file, log, oldest) = match part {
            LogPart::Journal => (File::Journal(id), Some(&process.journal), kept.map(|kept| kept.journal)),
            LogPart::Stream(stream) => {
                let oldest = kept.and_then(|kept| kept.streams.get(&stream)).map(|(bytes, _)| bytes.start);
                (File::Stream(id, stream), process.streams.get(&stream).map(|held| &held.log), oldest)
            }
            LogPart::Image(number) => {
                let image = process.images.iter().chain(&process.incoming).find(|image| image.number == number);
                let superseded = kept.and_then(|kept| kept.images.iter().find(|image| image.image == number));
                if image.is_none()
                    && let Some(image) = superseded
                {
                    let length = image.bytes.checked_sub(position)?.min(most as u64) as usize;
                    return Some(Place::File(File::Image(id, number), length));
                }
                (File::Image(id, number), image.map(|image| &image.content), None)
            }
        };
        let gone = match part {
            LogPart::Stream(stream) => kept.and_then(|kept| kept.streams.get(&stream)).map(|(bytes, _)| Log::at(bytes.end)),
            _ => None,
        };
        let log = log.or(gone.as_ref())?;
        if position > log.end() || position < oldest.unwrap_or(log.start()) {
            return None;
        }
        Some(match log.read(position, most) {
            Ok(bytes) => Place::Memory(bytes),
            Err(length) => Place::File(file, length),
        })
    }

    /// Bytes that a process has here.
    pub fn usage(&self, id: ProcessId) -> Option<Usage> {
        let process = self.processes.get(&id)?;
        let journal = process.journal.len();
        Some(Usage {
            journal,
            payload: process.log_bytes - journal,
            images: process.images.iter().chain(&process.incoming).map(|image| image.content.len()).sum(),
            memory: process.in_memory as u64,
            journal_stable: process.journal_stable,
            payload_stable: process.payload_stable,
            committed: process.images.last().map(|image| image.number),
        })
    }

    /// [`Store::stable_of`], if the receiver could be brought back from here, in this epoch of its job or a later one: after a
    /// restart of the job streams have the same names. A replica commits an image before its leader does, so it answers 0: if it
    /// were lost with the receiver, the leader would need bytes that the sender has dropped.
    pub fn stable_in(&self, receiver: ProcessId, life: Incarnation, stream: StreamId) -> u64 {
        let answers = |process: &Process| process.incarnation >= life && process.is_current();
        if self.processes.get(&receiver).is_some_and(answers) { self.stable_of(receiver, stream) } else { 0 }
    }

    /// How many units of a stream to `receiver` are stable: the sender need not keep them.
    pub fn stable_of(&self, receiver: ProcessId, stream: StreamId) -> u64 {
        let held = self.processes.get(&receiver).and_then(|process| process.streams.get(&stream));
        held.map_or(0, |stream| stream.stable)
    }

    /// Whether what is held of a process lacks something of what it has said elsewhere, if its log goes on from these positions.
    pub fn is_behind(&self, process: ProcessId, journal: u64, payload: u64) -> bool {
        self.processes.get(&process).is_some_and(|process| process.journal.end() < journal || process.payload < payload)
    }

    /// Where the journal of a process ends.
    pub fn journal_end(&self, process: ProcessId) -> u64 {
        self.processes.get(&process).map_or(0, |process| process.journal.end())
    }

    /// Whether the process could be restarted from what is held here.
    pub fn can_restart(&self, process: ProcessId) -> bool {
        self.processes.get(&process).is_some_and(|process| process.is_current() && !process.images.is_empty())
    }

    /// Whether an image of the process is committed.
    pub fn has_image(&self, process: ProcessId) -> bool {
        self.processes.get(&process).is_some_and(|process| !process.images.is_empty())
    }

    /// Whether unit `offset` of a stream is held, or covered by a committed image (for tests of G2, and `radic log show`).
    pub fn holds(&self, receiver: ProcessId, stream: StreamId, offset: u64) -> bool {
        let held = self.processes.get(&receiver).and_then(|process| process.streams.get(&stream));
        held.is_some_and(|stream| stream.closed || offset < stream.held())
    }

    /// The next bytes for a file, at most `most`: those of images; everything with [`Config::durable`]; what is over the bound on
    /// memory; what is to be kept and will be forgotten here. Each byte is given once: the driver tries until it is written,
    /// unless its file is deleted or truncated meanwhile.
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
        let replicated = |process: &Process| process.replica.map_or(u64::MAX, |replica| replica.journal);
        let Some(process) = self.processes.get_mut(&id) else { return };
        let freed = match file {
            File::Journal(_) => {
                let keep = replicated(process);
                process.journal.handle_written(position);
                process.journal.release(keep)
            }
            File::Stream(_, stream) => process.streams.get_mut(&stream).map_or(0, |stream| {
                stream.log.handle_written(position);
                stream.release()
            }),
            File::Image(_, number) => {
                let image = process.images.iter_mut().chain(&mut process.incoming).find(|image| image.number == number);
                image.map_or(0, |image| {
                    image.content.handle_written(position);
                    image.content.release(u64::MAX)
                })
            }
        };
        process.in_memory -= freed;
        self.settle(id);
    }

    /// From now on this process is replicated by a protector that holds nothing of it yet, or is not replicated. A new replica
    /// gets what is not stable, and an image is asked for. Until that image is committed, this protector alone can restart the
    /// process.
    pub fn set_replica(&mut self, id: ProcessId, replicated: bool) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let to = Speaker { process: id, incarnation: process.incarnation };
        process.replica = None;
        if !replicated {
            process.journal.release(u64::MAX);
            process.streams.values_mut().for_each(|stream| _ = stream.release());
            process.recount();
        } else {
            let (journal, payload) = (process.journal_stable, process.payload_stable);
            process.replica = Some(Replica { journal, payload });
            process.wanted = true;
            if let Some(number) = process.incoming.as_ref().map(|image| image.number) {
                self.refuse(id, number);
            }
            self.send(to, &FromProtector::ImageWanted);
            self.bring_up(id);
        }
        self.settle(id);
    }

    /// Tells a new replica what this protector has and has not acknowledged.
    fn bring_up(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get(&id) else { return };
        // The hello also covers what the process has announced to this protector. The replica may have that from the protector
        // before, and would refuse a hello that claims less. This protector might have no room for that payload before the
        // replica has acknowledged the journal.
        let journal = Span { start: process.journal_stable, end: process.journal.end().max(process.told.0) };
        let payload = Span { start: process.payload_stable, end: process.payload.max(process.told.1) };
        let mut messages = Vec::new();
        let hello = ToProtector::Hello { process: id, incarnation: process.counted, journal, payload };
        messages.push(encoded(|out| hello.write(out)));
        if let Some(image) = process.useless {
            messages.push(encoded(|out| ToProtector::ImageUseless { image }.write(out)));
        }
        let mut position = journal.start;
        while let Some(bytes) = process.journal.read(position, limits::LOG_CHUNK).ok().filter(|bytes| !bytes.is_empty()) {
            messages.push(encoded(|out| ToProtector::Journal { position, bytes: &bytes }.write(out)));
            position += bytes.len() as u64;
        }
        // Where streams go on, as a process says it to a new protector. An image may cover less than was acknowledged, and itself
        // holds what is between. Without this the first piece after it would leave a gap.
        let mut firsts: HashMap<StreamId, u64> = HashMap::new();
        process.unstable.iter().for_each(|unstable| _ = firsts.entry(unstable.stream).or_insert(unstable.from));
        for (stream, held) in process.streams.iter().filter(|(_, held)| !held.closed) {
            let (position, offset) = (payload.start, firsts.get(stream).copied().unwrap_or(held.log.end()));
            if offset > 0 {
                messages.push(encoded(|out| ToProtector::Payload { position, stream: *stream, offset, bytes: &[] }.write(out)));
            }
        }
        for Unstable { position, stream, from, to, is_end } in process.unstable.iter().copied() {
            let position = position - (to - from);
            if is_end {
                messages.push(encoded(|out| ToProtector::PayloadEnd { position, stream, offset: from }.write(out)));
            } else if let Some(Ok(bytes)) = process.streams.get(&stream).map(|held| held.log.read(from, (to - from) as usize)) {
                messages.push(encoded(|out| ToProtector::Payload { position, stream, offset: from, bytes: &bytes }.write(out)));
            }
        }
        self.outputs.extend(messages.into_iter().map(|message| Output::Forward(id, message)));
    }

    fn forward(&mut self, id: ProcessId, message: &ToProtector<'_>) {
        let incoming = self.processes.get(&id).and_then(|process| process.incoming.as_ref()).map(|image| image.number);
        // An image is forwarded only while it is accepted here, and its end only when it is verified here: the replica must never
        // commit what this protector refuses.
        let passes = match *message {
            ToProtector::Journal { .. } | ToProtector::Payload { .. } | ToProtector::PayloadEnd { .. } => true,
            ToProtector::ImageBegin { image, .. } | ToProtector::ImageChunk { image, .. } => incoming == Some(image),
            _ => false,
        };
        if passes {
            self.forward_always(id, message);
        }
    }

    fn forward_always(&mut self, id: ProcessId, message: &ToProtector<'_>) {
        if self.processes.get(&id).is_some_and(|process| process.replica.is_some()) {
            self.outputs.push_back(Output::Forward(id, encoded(|out| message.write(out))));
        }
    }

    /// An answer of the replica of this process.
    pub fn handle_replica(&mut self, id: ProcessId, message: &FromProtector<'_>) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let Some(replica) = &mut process.replica else { return };
        match *message {
            // The replica may have had all of it before it was told, and says so only once.
            FromProtector::Welcome { journal, payload } => {
                (replica.journal, replica.payload) = (replica.journal.max(journal), replica.payload.max(payload));
            }
            FromProtector::JournalStable { position } => replica.journal = replica.journal.max(position),
            FromProtector::PayloadStable { position } => replica.payload = replica.payload.max(position),
            FromProtector::Committed { image, .. } => {
                let incoming = process.incoming.as_mut().filter(|incoming| incoming.number == image);
                incoming.into_iter().for_each(|incoming| incoming.replicated = true);
            }
            FromProtector::ImageRefused { image } => self.refuse(id, image),
            _ => {}
        }
        self.settle(id);
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
