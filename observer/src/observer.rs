//! One process's observer: the machines composed, one method for each kind of call of the program.
//!
//! A call of the program asks first ([`Observer::receive`], [`Observer::send`] ...), does what the answer says, and reports what came
//! of it ([`Observer::handle_received`] ...). Answers are the same in replay: the caller does not know which it is. Where the answer
//! is a [`Wait`], the caller ships, reads from its protector and its sockets until something changed, and asks again.
//!
//! Here are what the observer is made of, and what all calls share: what the log says to a question, and how it ends. Each family of calls
//! has a file of its own.

mod answers;
mod connecting;
mod images;
mod protector;
mod readiness;
mod receiving;
mod room;
mod sending;
#[cfg(test)]
mod tests;
mod timing;

use radic_wire::determinant::{Call, Determinant, StreamId};
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::limits;

use crate::causes::{self, Causes};
use crate::checkpoint::Checkpoints;
use crate::connection::{Connection, Phase, Slot, Table, Waits};
use crate::error::Error;
use crate::journal::{Journal, RESERVE};
use crate::outbox::Outbox;
use crate::packed::Packed;
use crate::payload::PayloadLog;
use crate::replay::{Ask, Overdue, Replay, Served};

pub use answers::{Accept, Address, Answer, Front, Input, Reading, Ready, Receive, Send, Source, Transmit, Unread, Wait};
pub use images::Cut;
pub use room::RoomBy;

/// How much of everything; all of it is allocated at once.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Blocks of the outbox.
    pub outbox_blocks: usize,
    /// Bytes of a block.
    pub outbox_block: usize,
    /// Bytes of journal that may be unstable.
    pub journal: usize,
    /// Longest code of one outcome, in bytes.
    pub determinant: usize,
    /// Bytes of received payload that the protector does not hold yet.
    pub payload: usize,
    /// Pieces of it.
    pub payload_pieces: usize,
    /// Connections at once.
    pub connections: usize,
    /// Descriptors are below this.
    pub descriptors: usize,
    /// Threads that may use protected sockets at once.
    pub threads: usize,
    /// What bytes depend on goes with them, and this much of that is kept. None: nothing leaves before all of it is stable.
    pub causes: Option<causes::Bounds>,
    /// What is received from processes of the job stays with its senders, until an image covers it.
    pub payload_stays: bool,
    /// Bytes of a connection that no socket has taken yet, at most, where sends do not wait: a part of a longer one is taken.
    /// Programs go slower by that, as kernels have them do.
    pub unsent: u64,
}

impl Default for Config {
    /// docs/design.md's 64 MiB of outbox; 8 MiB of payload.
    fn default() -> Self {
        Config {
            outbox_blocks: 16 << 10,
            outbox_block: 4 << 10,
            journal: limits::LOG_CHUNK - RESERVE,
            determinant: limits::DETERMINANT,
            payload: 8 << 20,
            payload_pieces: 16 << 10,
            connections: 16 << 10,
            descriptors: 64 << 10,
            threads: 4 << 10,
            causes: None,
            payload_stays: false,
            unsent: limits::OUTBOX,
        }
    }
}

/// What the log says to a question.
enum Verdict {
    Live,
    Outcome,
    Nothing,
    Wait(Wait),
}

/// What the protector held of `stream` when this incarnation began, and where it has ended. It is taken once, by its connection.
fn take_held(held: &mut [(StreamId, u64, Option<u64>)], stream: StreamId) -> (u64, Option<u64>) {
    match held.binary_search_by_key(&stream, |held| held.0) {
        Ok(index) => (std::mem::take(&mut held[index].1), held[index].2.take()),
        Err(_) => (0, None),
    }
}

/// One process's observer.
#[derive(Debug, Clone)]
pub struct Observer {
    me: ProcessId,
    incarnation: Incarnation,
    journal: Journal,
    /// What this process depends on of others (`--log causal` only).
    causes: Option<Causes>,
    payload: PayloadLog,
    outbox: Outbox,
    table: Table,
    checkpoints: Checkpoints,
    /// While this incarnation catches up.
    replay: Option<Replay>,
    /// The process has printed something after its log was over and before it was live: from there on its journal is its own.
    resumed: bool,
    /// Outcomes that this incarnation was served from its log.
    replayed: u64,
    /// What the protector held of each stream when this incarnation began, and where it has ended; sorted.
    held: Vec<(StreamId, u64, Option<u64>)>,
    fenced: Option<Incarnation>,
    /// Bytes of standard input that the program has read.
    input: u64,
    /// What of the outbox the image under way has.
    packed: Option<Packed>,
    /// [`Config::unsent`].
    most_unsent: u64,
    /// From this connection on, a protector that has just answered is to be told where its incoming stream goes on.
    untold: Option<Slot>,
}

impl Observer {
    /// The observer of the first incarnation of `me`.
    pub fn new(me: ProcessId, config: &Config) -> Self {
        Observer::as_incarnation(me, Incarnation::FIRST, config)
    }

    /// The observer of a process that begins as this incarnation: in a later epoch of its job that is not the first one.
    pub fn as_incarnation(me: ProcessId, incarnation: Incarnation, config: &Config) -> Self {
        Observer::begins_at(me, incarnation, 0, config)
    }

    /// The observer of a process that begins as this incarnation, with a journal from this position on.
    pub fn begins_at(me: ProcessId, incarnation: Incarnation, journal: u64, config: &Config) -> Self {
        let mut table = Table::new(config.connections, config.descriptors);
        table.begin(me.job, incarnation.epoch);
        let mut begun = Journal::new(config.journal, config.threads, config.determinant);
        begun.begin_at(journal);
        let mut payload = PayloadLog::new(config.payload, config.payload_pieces);
        if config.causes.is_some() {
            payload.has_causes();
        }
        let mut outbox = Outbox::new(config.outbox_blocks, config.outbox_block);
        if config.payload_stays {
            payload.stays_with_senders();
            outbox.expect_lines();
        }
        Observer {
            me,
            incarnation,
            journal: begun,
            causes: config.causes.map(|bounds| Causes::new(me.rank, bounds)),
            payload,
            outbox,
            table,
            checkpoints: Checkpoints::default(),
            replay: None,
            resumed: false,
            replayed: 0,
            held: Vec::new(),
            fenced: None,
            input: 0,
            packed: None,
            most_unsent: config.unsent,
            untold: None,
        }
    }

    /// The process that is observed.
    pub fn process(&self) -> ProcessId {
        self.me
    }

    /// The incarnation of the process.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The journal, to be looked at.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The payload log, to be looked at.
    pub fn payload(&self) -> &PayloadLog {
        &self.payload
    }

    /// What it depends on of others, to be looked at.
    pub fn causes(&self) -> Option<&Causes> {
        self.causes.as_ref()
    }

    /// The outbox, to be looked at.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// The connections, to be looked at.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The images, to be looked at.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Whether this incarnation still catches up.
    pub fn is_replaying(&self) -> bool {
        self.replay.is_some()
    }

    /// Outcomes that this incarnation was served from its log.
    pub fn replayed(&self) -> u64 {
        self.replayed
    }

    /// Whether re-execution goes another way, without a call that shows it: [`Replay::overdue`].
    pub fn overdue(&self, patience: u64) -> Option<Overdue> {
        self.replay.as_ref()?.overdue(&self.journal, patience)
    }

    /// Where the next outcome stands in the recorded journal; in a live process, where the journal ends.
    pub fn log_position(&self) -> u64 {
        self.replay.as_ref().map_or(self.journal.end(), Replay::position)
    }

    /// Bytes of the recorded journal that were not served yet.
    pub fn left_of_log(&self) -> u64 {
        self.replay.as_ref().map_or(0, |replay| replay.end() - replay.position())
    }

    /// How far this incarnation has come.
    pub fn phase(&self) -> Phase {
        match &self.replay {
            None => Phase::Live,
            Some(replay) if replay.position() == replay.end() => Phase::Settled,
            Some(_) => Phase::Replaying,
        }
    }

    /// Whether this incarnation still needs the log that it was restarted with: while it replays, and until the program has taken the
    /// bytes that only the protector has (their senders need not keep them). If the protector dies before, these bytes are lost.
    pub fn needs_log(&self) -> bool {
        let untouched = self.held.iter().any(|held| held.1 > 0);
        self.replay.is_some()
            || untouched
            || self.table.iter().any(|(_, connection)| !connection.is_closed() && connection.incoming.in_log() > 0)
    }

    /// A thread makes its first call: its place in the table of threads, by which all calls name it. [`Journal::begin_thread`].
    pub fn begin_thread(&mut self, name: u64) -> Result<u32, Error> {
        self.journal.begin_thread(name)
    }

    /// The thread at this place has ended, and makes no call any more.
    pub fn end_thread(&mut self, thread: u32) {
        self.journal.end_thread(thread);
    }

    /// What this incarnation has done towards the next outcome of its log, or, where that is over, towards Gate B: bytes sent
    /// again, and received. It grows only as long as re-execution gets on, and is bounded: what a process sends that goes another
    /// way does not count.
    pub fn done_again(&self) -> u64 {
        let Some(replay) = &self.replay else { return 0 };
        let taken: u64 = self.table.iter().map(|(_, c)| c.incoming.taken - c.incoming.consumed).sum();
        taken + replay.sent_again(&self.journal) + self.table.sent_again()
    }

    /// The next outcome of the log, if it is here: the number of its thread, and the call that had it, in [`CALLS`](radic_wire::determinant::CALLS).
    pub fn awaited(&self) -> Option<(u32, usize)> {
        self.replay.as_ref()?.awaited()
    }

    /// Which peers this incarnation waits for where its log is over.
    pub fn waits(&self) -> Waits {
        if self.phase() == Phase::Settled { self.table.waits() } else { Waits::Not }
    }

    fn check_voice(&self) -> Result<(), Error> {
        self.fenced.map_or(Ok(()), |newest| Err(Error::Fenced(newest)))
    }

    /// Consults the log for `ask`. Live, checks that the journal has room for the outcome.
    #[inline]
    fn consult(&mut self, thread: u32, ask: Ask, blocking: bool) -> Result<Verdict, Error> {
        if self.replay.is_none() && self.fenced.is_none() {
            return Ok(if self.journal.has_room() { Verdict::Live } else { Verdict::Wait(Wait::Stable(self.journal.end())) });
        }
        self.consult_log(thread, ask, blocking)
    }

    #[cold]
    fn consult_log(&mut self, thread: u32, ask: Ask, blocking: bool) -> Result<Verdict, Error> {
        self.check_voice()?;
        let sends = matches!(ask, Ask::Send { .. });
        if !sends && !blocking && self.is_in_vain(thread) {
            self.journal.handle_empty(thread)?;
            return Ok(Verdict::Nothing);
        }
        let served = loop {
            self.pass_readings()?;
            let Some(replay) = &mut self.replay else { return self.consult(thread, ask, blocking) };
            let served = replay.offer(&self.journal, thread, ask, blocking)?;
            if served == Served::Missed {
                self.handle_missed_reading()?;
                continue;
            }
            match replay.outcome().filter(|_| served == Served::Outcome) {
                Some(Determinant::Taken) => {
                    self.handle_served();
                    continue;
                }
                Some(Determinant::Nothing) => {}
                _ => break served,
            }
            let is_before_image = replay.is_before_image(&self.journal);
            self.handle_served();
            // A call that cannot find nothing comes after it: this time nothing was found less often.
            if !blocking && !sends && !is_before_image {
                return Ok(Verdict::Nothing);
            }
        };
        let wait = match served {
            Served::Outcome => return Ok(Verdict::Outcome),
            Served::Over if self.settle() => return Ok(Verdict::Live),
            // Sends do not wait at Gate B: they are what it waits for.
            Served::Nothing | Served::Over if sends => return Ok(Verdict::Live),
            Served::Fetch => return Ok(Verdict::Wait(Wait::Log)),
            Served::Turn => return Ok(Verdict::Wait(Wait::Turn)),
            Served::Nothing | Served::Early(..) | Served::Missed => Wait::Event,
            Served::Over => Wait::Peers,
        };
        if blocking {
            return Ok(Verdict::Wait(wait));
        }
        self.journal.handle_empty(thread)?;
        Ok(Verdict::Nothing)
    }

    /// In replay: whether a call of this thread that does not wait, and sends nothing, is sure to find nothing.
    pub fn is_in_vain(&self, thread: u32) -> bool {
        self.replay.as_ref().is_some_and(|replay| replay.is_in_vain(&self.journal, thread))
    }

    /// Whether a call of `thread` that waits for this, in a process that catches up, waits for what other threads do first. Beside
    /// [`Wait::is_for_turn`] one that waits for room in the outbox does, if the thread had sent no more in the recorded run before the
    /// outcome that is next, which is another thread's.
    pub fn waits_for_turn(&self, thread: u32, wait: Wait) -> bool {
        let is_ahead = || self.replay.as_ref().is_some_and(|replay| replay.is_ahead(&self.journal, thread));
        wait.is_for_turn() || wait == Wait::Outbox && is_ahead()
    }

    /// A process that asks nothing goes live, too, as soon as its log is over and every connection has sent again what its peer has. True: it is live.
    pub fn settle(&mut self) -> bool {
        // What is wrong with the log the next call says.
        _ = self.pass_refused();
        if self.phase() == Phase::Settled && self.table.all_sent_again() {
            self.resume_journal();
            self.replay = None;
        }
        self.replay.is_none()
    }

    /// The log is over: what follows in the journal is this incarnation's own.
    fn resume_journal(&mut self) {
        if let Some(replay) = self.replay.as_ref().filter(|_| !self.resumed) {
            self.journal.handle_replayed(replay.end());
            self.payload.handle_journal_stable(replay.end());
            self.resumed = true;
        }
    }

    /// Whether what is in the journal is this incarnation's own.
    fn writes_journal(&self) -> bool {
        self.replay.is_none() || self.resumed
    }

    /// The program ends, and asks nothing any more. If it goes by the clock, it may have been told more often then than now that
    /// there is nothing, and one of its threads may have read the clock more often. The log is over all the same.
    pub fn handle_leaving(&mut self) -> Result<(), Error> {
        loop {
            self.pass_readings()?;
            if self.handle_missed_reading()? {
                continue;
            }
            let Some(replay) = &mut self.replay else { return Ok(()) };
            if !replay.is_choice_next()? {
                return Ok(());
            }
            self.handle_served();
        }
    }

    /// The outcome that the log has; only after [`Verdict::Outcome`].
    fn outcome(&self) -> Result<Determinant<'_>, Error> {
        self.replay.as_ref().and_then(Replay::outcome).ok_or(Error::Protector("the log changed under replay"))
    }

    /// The bytes of the outcome that is next, which answers `ask`, into `room`. Returns how many. `another` and `less`: what is
    /// said of an outcome without such bytes, and of too little room.
    fn serve_bytes(&mut self, ask: Ask, room: &mut [u8], another: &'static str, less: &'static str) -> Result<usize, Error> {
        let bytes = match self.outcome()? {
            outcome @ (Determinant::Input { bytes } | Determinant::Kernel { bytes, .. }) if ask.fits(&outcome) => bytes,
            _ => return Err(self.diverged(another)),
        };
        let count = bytes.len();
        let Some(room) = room.get_mut(..count) else { return Err(self.diverged(less)) };
        room.copy_from_slice(bytes);
        self.handle_served();
        Ok(count)
    }

    fn diverged(&self, what: &'static str) -> Error {
        match &self.replay {
            Some(replay) => replay.diverged(what),
            None => Error::Diverged { position: self.journal.end(), thread: self.journal.thread(), call: 0, what },
        }
    }

    fn handle_served(&mut self) {
        self.go_on(Replay::handle_served);
    }

    /// The next outcome of the log counts as had, in one way or another.
    fn go_on(&mut self, pass: fn(&mut Replay, &mut Journal)) {
        if let Some(replay) = &mut self.replay {
            pass(replay, &mut self.journal);
            self.replayed += 1;
        }
        if self.phase() == Phase::Settled {
            self.table.handle_settled();
        }
    }

    #[inline]
    fn connection(&self, slot: Slot) -> Result<&Connection, Error> {
        self.table.get(slot).ok_or(Error::Full("table of connections"))
    }

    /// A call found nothing (`EAGAIN`, a `poll` that returned 0).
    #[inline]
    pub fn handle_nothing(&mut self, thread: u32) -> Result<(), Error> {
        self.journal.handle_empty(thread)
    }

    /// A call failed, with another error than that there is nothing yet.
    pub fn handle_failed(&mut self, thread: u32, fd: u32, call: Call, errno: u32) -> Result<(), Error> {
        self.journal.append(thread, &Determinant::Errno { fd, call, errno })
    }

    /// What came of [`Ready::Live`] for `Connect` (complete) or `SoError`, or of [`Address::Live`].
    pub fn handle_outcome(&mut self, thread: u32, outcome: &Determinant<'_>) -> Result<(), Error> {
        self.journal.append(thread, outcome)
    }
}
