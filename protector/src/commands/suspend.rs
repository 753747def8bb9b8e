//! `radic suspend`: has the ranks of a job stopped, has the folder written, and ends the job.
//!
//! The logs are listed before and after they are copied. If they have not changed in between, they are those of one moment. What fails while they are copied is
//! looked at only then: a log that has changed may lack what it had.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::mem;
use std::time::Duration;

use radic_wire::bytes::Malformed;
use radic_wire::causes::{Elsewhere, NotWhole};
use radic_wire::ids::{Incarnation, JobId, Rank};
use radic_wire::limits;
use radic_wire::local::{Reply, Request};
use radic_wire::log::{HeldImage, HeldLog, HeldStream, ImageState, LogPart};
use radic_wire::report::RankCheckpoint;
use radic_wire::span::Span;
use radic_wire::suspension::{Suspension, Unprinted};

use super::file::{File, SavedLog};

#[cfg(test)]
mod tests;

/// Time for all ranks to stop, and for the job's terminal to print what it was sent.
const STOPPED: Duration = Duration::from_secs(30);
/// The node that serves the command gives it up when it has said nothing for so long while the ranks may be stopped.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);
/// So often at most the command says that it gets on.
const PING: Duration = Duration::from_secs(5);
/// Time for the job to end when it is written down.
const ENDED: Duration = Duration::from_secs(60);
/// Time until all protectors know that a recovery line is complete.
const AGREED: Duration = Duration::from_secs(5);
/// Time between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// So often the logs are copied, if they change meanwhile: an image was being committed.
const ATTEMPTS: u32 = 5;

/// What the command does next.
#[derive(Debug)]
pub enum Action<E> {
    /// A checkpoint of each rank of this job, so that little is to be done again. Answered by [`Suspend::handle_checkpoints`].
    Checkpoint(String),
    /// Says this on the connection whose end lets the ranks go on. What comes there goes to [`Suspend::handle_reply`].
    Ask(Request),
    /// The ranks of this job are stopped.
    Stopped(JobId),
    /// Asks what is held of a rank, by a connection of its own. Answered by [`Suspend::handle_log`].
    List(Rank),
    /// The logs are copied from here on, so many bytes.
    Begin(u64),
    /// Reads this of a rank's log. Answered by [`Suspend::handle_read`].
    Read(Rank, LogPart, Span),
    /// Begins a file, in the place of one of the attempt before. Answered by [`Suspend::handle_done`], as all up to [`Action::Finish`] are.
    Create(Rank, File),
    /// Copies this of a rank's log to the file.
    Copy(Rank, LogPart, Span),
    /// Writes these bytes to the file.
    Append(Vec<u8>),
    /// Nothing follows in the file.
    Close,
    /// Writes the list of the files, beside the name that it is to have.
    Finish(Box<Saved>),
    /// Gives the list its name: from here on the folder holds the job. A command that was given up while it wrote the list has heard so before. Answered by
    /// [`Suspend::handle_done`].
    Place,
    /// Leaves the mark in the folder that the job may have gone on, so no command resumes it from there without being told to.
    Mark,
    /// The command is over.
    Over(Over<E>),
}

/// What was written.
#[derive(Debug, Clone)]
pub struct Saved {
    /// What the home knows.
    pub suspension: Suspension,
    /// Output that no terminal has printed.
    pub unprinted: Vec<Unprinted>,
    /// Of each rank.
    pub ranks: Vec<SavedLog>,
}

/// How the command ends.
#[derive(Debug)]
pub enum Over<E> {
    /// The job has ended, and is in the folder.
    Suspended,
    /// Nothing was given up: the ranks go on when the connection ends.
    GoesOn(Failure<E>),
    /// The job is in the folder, and may go on all the same.
    Unsure(Failure<E>),
}

/// Why a job is not suspended.
#[derive(Debug, thiserror::Error)]
pub enum Failure<E> {
    /// A rank has made no checkpoint.
    #[error("rank {0} has no checkpoint: {1}; the job goes on")]
    NoCheckpoint(Rank, String),
    /// The home, or the terminal, is not done with it.
    #[error("its ranks do not stop, or its terminal does not print what it was sent, within {} s; the job goes on", STOPPED.as_secs())]
    NotStopped,
    /// The job does not end.
    #[error("its ranks have not ended within {} s", ENDED.as_secs())]
    NotEnded,
    /// The node says so.
    #[error("{0}")]
    Refused(String),
    /// The node says something else.
    #[error("unexpected: {0:?}")]
    Unexpected(Box<Reply>),
    /// What a rank's image of a line leaves out is in that of the same line of another rank only.
    #[error("the newest images of ranks {0} and {1} are of different recovery lines; the job goes on; try again")]
    TwoLines(Rank, Rank),
    /// The job has restarted.
    #[error("a rank has no log since the job restarted from the beginning")]
    OtherEpoch,
    /// A rank could not be brought back from what is held.
    #[error("{0}")]
    Useless(&'static str),
    /// The logs depend on what none of them has.
    #[error(transparent)]
    NotWhole(#[from] NotWhole),
    /// A log has causes that are none.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// No two lists are the same.
    #[error("what its protectors hold goes on changing though its ranks are stopped; the job goes on")]
    Changing,
    /// An action was not carried out.
    #[error("{0}")]
    Undone(E),
}

/// What a resume needs of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Needed {
    rank: Rank,
    incarnation: Incarnation,
    images: Vec<HeldImage>,
    journal: Span,
    /// Of other ranks' journals.
    causes: Span,
    forgotten: Vec<(Rank, u64)>,
    streams: Vec<HeldStream>,
}

impl Needed {
    fn of<E>(log: &HeldLog) -> Result<Needed, Failure<E>> {
        if !log.current {
            return Err(Failure::Useless("its protector has just changed, and nobody could bring it back"));
        }
        let committed = log.images.iter().filter(|image| image.state == ImageState::Committed);
        let images: Vec<HeldImage> = committed.cloned().collect();
        let Some(HeldImage { cut, .. }) = images.last() else { return Err(Failure::Useless("no image of it is committed")) };
        if log.streams.len() >= limits::CUT_STREAMS {
            return Err(Failure::Useless("it has too many streams"));
        }
        let HeldLog { incarnation, causes, ref forgotten, ref streams, .. } = *log;
        let (rank, journal) = (log.process.rank, Span { start: *cut, end: log.journal.end });
        Ok(Needed { rank, incarnation, images, journal, causes, forgotten: forgotten.clone(), streams: streams.clone() })
    }

    fn all<E>(logs: &[HeldLog]) -> Result<Vec<Needed>, Failure<E>> {
        logs.iter().map(Needed::of).collect()
    }

    /// What of the streams is copied.
    fn received(&self) -> impl Iterator<Item = &HeldStream> {
        self.streams.iter().filter(|stream| !stream.closed)
    }

    fn bytes(&self) -> u64 {
        let length = |span: &Span| span.end.saturating_sub(span.start);
        let received = self.received().map(|stream| length(&stream.bytes));
        self.images.iter().map(|image| image.bytes).chain([length(&self.journal)]).chain(received).sum()
    }

    /// What is saved of the log, and how its files are written: with what the others have behind the end of its journal.
    fn copy<E>(self, rest: Vec<u8>, actions: &mut VecDeque<Action<E>>) -> SavedLog {
        let (rank, received): (_, Vec<_>) = (self.rank, self.received().map(|of| (of.stream, of.bytes)).collect());
        for HeldImage { image, bytes, .. } in &self.images {
            let whole = Span { start: 0, end: *bytes };
            actions.extend([
                Action::Create(rank, File::Image(*image)),
                Action::Copy(rank, LogPart::Image(*image), whole),
                Action::Close,
            ]);
        }
        let Needed { incarnation, images, mut journal, streams, .. } = self;
        actions.extend([Action::Create(rank, File::Journal), Action::Copy(rank, LogPart::Journal, journal)]);
        journal.end += rest.len() as u64;
        actions.extend([Action::Append(rest), Action::Close, Action::Create(rank, File::Received)]);
        actions.extend(received.into_iter().map(|(stream, bytes)| Action::Copy(rank, LogPart::Stream(stream), bytes)));
        actions.push_back(Action::Close);
        SavedLog { incarnation, images, journal, streams }
    }
}

/// How far the command is.
#[derive(Debug)]
enum Phase<E> {
    Checkpointing,
    /// The ranks are to stop, until then at the latest. This output has come, which no terminal has printed.
    Stopping {
        until: Duration,
        unprinted: Vec<Unprinted>,
    },
    /// The logs are listed. That their newest images go together is waited for until then.
    Listing {
        until: Duration,
        logs: Vec<HeldLog>,
    },
    /// They did not, and are listed again then.
    Waiting {
        until: Duration,
        look: Duration,
    },
    /// What the logs keep of other ranks' journals is read, of the first ranks so far.
    Learning {
        before: Vec<Needed>,
        sets: Vec<Vec<u8>>,
    },
    /// What of each rank's own journal the others keep too is read, of the first ranks so far.
    Comparing {
        before: Vec<Needed>,
        sets: Vec<Vec<u8>>,
        own: Vec<(Span, Vec<u8>)>,
    },
    /// The files are written.
    Copying {
        before: Vec<Needed>,
        saved: Vec<SavedLog>,
    },
    /// The logs are listed again.
    Checking {
        before: Vec<Needed>,
        saved: Result<Vec<SavedLog>, Failure<E>>,
        logs: Vec<HeldLog>,
    },
    /// The list of the files is written.
    Finishing,
    /// The list gets its name.
    Placing,
    /// The job is to end, until then.
    Ending {
        until: Duration,
    },
    Over,
}

/// See the module's text.
#[derive(Debug)]
pub struct Suspend<E> {
    job: String,
    phase: Phase<E>,
    /// Of the home, since the ranks are stopped.
    stopped: Option<(Box<Suspension>, Vec<Unprinted>)>,
    /// Attempts at copying that are left.
    attempts: u32,
    actions: VecDeque<Action<E>>,
    /// The action that was handed out last is to be answered.
    awaits: bool,
    /// When the node is told next that the command gets on, since it was asked to stop the ranks.
    ping: Option<Duration>,
}

impl<E: Debug> Suspend<E> {
    /// For a job, or the first digits of one.
    pub fn new(job: String) -> Self {
        let actions = VecDeque::from([Action::Checkpoint(job.clone())]);
        Suspend { job, phase: Phase::Checkpointing, stopped: None, attempts: ATTEMPTS, actions, awaits: false, ping: None }
    }

    /// The next action; none before the last one is answered.
    pub fn poll_action(&mut self) -> Option<Action<E>> {
        if self.awaits {
            return None;
        }
        let action = self.actions.pop_front()?;
        self.awaits = !matches!(action, Action::Ask(_) | Action::Stopped(_) | Action::Begin(_) | Action::Mark | Action::Over(_));
        Some(action)
    }

    /// When [`Suspend::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let due = match self.phase {
            Phase::Stopping { until, .. } | Phase::Ending { until } => Some(until),
            Phase::Waiting { look, .. } => Some(look),
            _ => None,
        };
        due.into_iter().chain(self.ping).min()
    }

    /// Whether the command is to say `Ping` now, on the connection whose end lets the ranks go on. It is asked this whenever the command has got on with an
    /// action, and when it is time ([`Suspend::poll_timeout`]): a command that is stopped, or whose disk does not answer, falls silent, and is given up.
    pub fn take_ping(&mut self, now: Duration) -> bool {
        let is_due = self.ping.is_some_and(|due| due <= now);
        if is_due {
            self.ping = Some(now + PING);
        }
        is_due
    }

    /// It is time.
    pub fn handle_timeout(&mut self, now: Duration) {
        match self.phase {
            Phase::Stopping { until, .. } if until <= now => self.end(Failure::NotStopped),
            Phase::Ending { until } if until <= now => self.end(Failure::NotEnded),
            Phase::Waiting { until, look } if look <= now => {
                self.phase = Phase::Listing { until, logs: Vec::new() };
                self.list();
            }
            _ => {}
        }
        self.check();
    }

    /// What became of the checkpoint of each rank.
    pub fn handle_checkpoints(&mut self, now: Duration, all: &[RankCheckpoint]) {
        self.answered();
        assert!(matches!(self.phase, Phase::Checkpointing), "checkpoints were asked for");
        let failed = all.iter().find_map(|RankCheckpoint { rank, result, .. }| Some((*rank, result.as_ref().err()?.clone())));
        match failed {
            Some((rank, why)) => self.end(Failure::NoCheckpoint(rank, why)),
            None => {
                self.phase = Phase::Stopping { until: now + STOPPED, unprinted: Vec::new() };
                self.ping = Some(now + PING);
                self.actions.push_back(Action::Ask(Request::Suspend { job: self.job.clone() }));
            }
        }
        self.check();
    }

    /// The home says something, by the command's node.
    pub fn handle_reply(&mut self, now: Duration, reply: Reply) {
        match (&mut self.phase, reply) {
            (Phase::Over, _) | (_, Reply::Pong) => {}
            (Phase::Stopping { unprinted, .. }, Reply::Output { rank, stream, offset, data }) => {
                unprinted.push(Unprinted { rank, stream, offset, data });
            }
            (Phase::Stopping { unprinted, .. }, Reply::Suspending(suspension)) => {
                self.actions.push_back(Action::Stopped(suspension.job));
                self.stopped = Some((suspension, mem::take(unprinted)));
                self.begin_attempt(now);
            }
            (Phase::Ending { .. }, Reply::Done) => {
                (self.phase, self.ping) = (Phase::Over, None);
                self.actions.push_back(Action::Over(Over::Suspended));
            }
            // The ranks go on, whatever is being copied.
            (_, Reply::Error(text)) => self.end(Failure::Refused(text)),
            (_, other) => self.end(Failure::Unexpected(Box::new(other))),
        }
        self.check();
    }

    /// What is held of the rank that was asked about.
    pub fn handle_log(&mut self, now: Duration, log: HeldLog) {
        self.answered();
        let ranks = self.ranks();
        match &mut self.phase {
            Phase::Listing { logs, .. } | Phase::Checking { logs, .. } => {
                assert_eq!(log.process.rank.0 as usize, logs.len(), "they are listed in order");
                logs.push(log);
                if logs.len() == ranks {
                    self.handle_listed(now);
                }
            }
            phase => unreachable!("no log is listed: {phase:?}"),
        }
        self.check();
    }

    /// The bytes that were to be read.
    pub fn handle_read(&mut self, bytes: Vec<u8>) {
        self.answered();
        match &mut self.phase {
            Phase::Learning { sets, .. } => sets.push(bytes),
            Phase::Comparing { own, .. } => {
                let (_, read) =
                    own.iter_mut().find(|(span, read)| span.start < span.end && read.is_empty()).expect("it was asked for");
                *read = bytes;
            }
            phase => unreachable!("nothing is read: {phase:?}"),
        }
        self.go_on();
        self.check();
    }

    /// The last action was carried out.
    pub fn handle_done(&mut self, now: Duration) {
        self.answered();
        match &mut self.phase {
            Phase::Copying { before, saved } if self.actions.is_empty() => {
                let (before, saved) = (mem::take(before), mem::take(saved));
                self.look_again(before, Ok(saved));
            }
            Phase::Copying { .. } => {}
            Phase::Finishing => {
                self.phase = Phase::Placing;
                self.actions.push_back(Action::Place);
            }
            Phase::Placing => {
                self.phase = Phase::Ending { until: now + ENDED };
                self.actions.push_back(Action::Ask(Request::EndSuspended));
            }
            phase => unreachable!("nothing is done: {phase:?}"),
        }
        self.check();
    }

    /// The last action was not carried out.
    pub fn handle_failed(&mut self, why: E) {
        self.awaits = false;
        match &mut self.phase {
            Phase::Learning { before, .. } | Phase::Comparing { before, .. } | Phase::Copying { before, .. } => {
                let before = mem::take(before);
                self.look_again(before, Err(Failure::Undone(why)));
            }
            _ => self.end(Failure::Undone(why)),
        }
        self.check();
    }

    /// The connection whose end lets the ranks go on has ended, or does not answer in time.
    pub fn handle_lost(&mut self, why: E) {
        self.end(Failure::Undone(why));
        self.check();
    }
}

/// What follows.
impl<E: Debug> Suspend<E> {
    fn answered(&mut self) {
        assert!(mem::take(&mut self.awaits), "an action is answered once");
    }

    fn suspension(&self) -> &Suspension {
        &self.stopped.as_ref().expect("the ranks are stopped").0
    }

    fn ranks(&self) -> usize {
        self.suspension().ward.spec.ranks as usize
    }

    fn list(&mut self) {
        let ranks = self.ranks() as u32;
        self.actions.extend((0..ranks).map(|rank| Action::List(Rank(rank))));
    }

    fn begin_attempt(&mut self, now: Duration) {
        self.attempts -= 1;
        self.phase = Phase::Listing { until: now + AGREED, logs: Vec::new() };
        self.list();
    }

    /// The logs are listed once more, whatever came of the copies.
    fn look_again(&mut self, before: Vec<Needed>, saved: Result<Vec<SavedLog>, Failure<E>>) {
        self.actions.clear();
        self.phase = Phase::Checking { before, saved, logs: Vec::new() };
        self.list();
    }

    fn handle_listed(&mut self, now: Duration) {
        match mem::replace(&mut self.phase, Phase::Over) {
            Phase::Listing { until, logs } => match HeldLog::of_two_lines(&logs) {
                Some(_) if now < until => self.phase = Phase::Waiting { until, look: now + LOOK_AGAIN },
                Some((one, other)) => self.end_with(Failure::TwoLines(one.process.rank, other.process.rank)),
                None => match self.look_at(&logs) {
                    Ok(before) => {
                        self.actions.push_back(Action::Begin(before.iter().map(Needed::bytes).sum()));
                        self.phase = Phase::Learning { before, sets: Vec::new() };
                        self.go_on();
                    }
                    Err(failure) => self.end_with(failure),
                },
            },
            Phase::Checking { before, saved, logs } => match (Needed::all(&logs), saved) {
                (Err(failure), _) => self.end_with(failure),
                (Ok(after), _) if after != before && self.attempts == 0 => self.end_with(Failure::Changing),
                (Ok(after), _) if after != before => self.begin_attempt(now),
                (Ok(_), Err(failure)) => self.end_with(failure),
                (Ok(_), Ok(ranks)) => {
                    let (suspension, unprinted) = self.stopped.take().expect("the ranks are stopped");
                    self.phase = Phase::Finishing;
                    self.actions.push_back(Action::Finish(Box::new(Saved { suspension: *suspension, unprinted, ranks })));
                }
            },
            phase => unreachable!("no log is listed: {phase:?}"),
        }
    }

    fn look_at(&self, logs: &[HeldLog]) -> Result<Vec<Needed>, Failure<E>> {
        let epoch = self.suspension().ward.epoch;
        if logs.iter().any(|log| log.incarnation.epoch != epoch) {
            return Err(Failure::OtherEpoch);
        }
        Needed::all(logs)
    }

    /// The next bytes are read, or the copies begin.
    fn go_on(&mut self) {
        match mem::replace(&mut self.phase, Phase::Over) {
            Phase::Learning { before, mut sets } => {
                let is_empty = |log: &&Needed| log.causes.start == log.causes.end;
                sets.extend(before[sets.len()..].iter().take_while(is_empty).map(|_| Vec::new()));
                if let Some(Needed { rank, causes, .. }) = before.get(sets.len()) {
                    self.actions.push_back(Action::Read(*rank, LogPart::Causes, *causes));
                    self.phase = Phase::Learning { before, sets };
                    return;
                }
                match elsewhere(&before, &sets) {
                    Ok(elsewhere) => {
                        let own = before.iter().map(|log| (elsewhere.compared(log.rank, log.journal), Vec::new())).collect();
                        self.phase = Phase::Comparing { before, sets, own };
                        self.go_on();
                    }
                    Err(failure) => self.look_again(before, Err(failure)),
                }
            }
            Phase::Comparing { before, sets, own } => {
                if let Some((at, (span, _))) =
                    own.iter().enumerate().find(|(_, (span, read))| span.start < span.end && read.is_empty())
                {
                    self.actions.push_back(Action::Read(before[at].rank, LogPart::Journal, *span));
                    self.phase = Phase::Comparing { before, sets, own };
                    return;
                }
                match rests(&before, &sets, &own) {
                    Ok(rests) => {
                        let files = before.iter().cloned().zip(rests);
                        let saved = files.map(|(log, rest)| log.copy(rest, &mut self.actions)).collect();
                        self.phase = Phase::Copying { before, saved };
                    }
                    Err(failure) => self.look_again(before, Err(failure)),
                }
            }
            phase => unreachable!("nothing is read: {phase:?}"),
        }
    }

    /// The job is not suspended, as far as the command knows.
    fn end(&mut self, why: Failure<E>) {
        self.ping = None;
        match mem::replace(&mut self.phase, Phase::Over) {
            Phase::Over => {}
            Phase::Ending { .. } => self.actions = VecDeque::from([Action::Mark, Action::Over(Over::Unsure(why))]),
            _ => self.end_with(why),
        }
    }

    /// The job goes on.
    fn end_with(&mut self, why: Failure<E>) {
        self.phase = Phase::Over;
        (self.awaits, self.stopped, self.ping) = (false, None, None);
        self.actions.clear();
        self.actions.push_back(Action::Over(Over::GoesOn(why)));
    }

    /// What is so in each phase.
    fn check(&self) {
        let ranks = self.stopped.as_ref().map(|(suspension, _)| suspension.ward.spec.ranks as usize);
        let is_pending = |wanted: fn(&Action<E>) -> bool| self.actions.iter().any(wanted);
        match &self.phase {
            Phase::Checkpointing | Phase::Stopping { .. } => {
                assert_eq!(ranks, None, "nothing is known before the ranks are stopped")
            }
            Phase::Waiting { .. } => assert!(ranks.is_some() && !self.awaits, "a list that waits asks nothing"),
            Phase::Listing { logs, .. } | Phase::Checking { logs, .. } => {
                let (asked, listed) = (usize::from(self.awaits), logs.len());
                let to_ask = self.actions.iter().filter(|action| matches!(action, Action::List(_))).count();
                assert_eq!(Some(listed + asked + to_ask), ranks, "each log is asked for once");
            }
            Phase::Learning { before, .. } | Phase::Comparing { before, .. } => assert_eq!(Some(before.len()), ranks),
            Phase::Copying { before, saved } => assert!(before.len() == saved.len() && Some(saved.len()) == ranks),
            Phase::Finishing | Phase::Placing => {
                assert!(ranks.is_none() && !is_pending(|action| matches!(action, Action::Ask(_))))
            }
            Phase::Ending { .. } => assert!(ranks.is_none() && !self.awaits, "the list is written before the job ends"),
            Phase::Over => assert!(!self.awaits && self.ping.is_none(), "nothing is asked any more"),
        }
    }
}

/// What the logs keep of each other's journals.
fn elsewhere<'a, E>(logs: &[Needed], sets: &'a [Vec<u8>]) -> Result<Elsewhere<'a>, Failure<E>> {
    let mut elsewhere = Elsewhere::default();
    for (log, set) in logs.iter().zip(sets) {
        elsewhere.add(log.rank, set, &log.forgotten)?;
    }
    Ok(elsewhere)
}

/// What the others have behind the end of each journal. `own` is what of each is compared.
fn rests<E>(logs: &[Needed], sets: &[Vec<u8>], own: &[(Span, Vec<u8>)]) -> Result<Vec<Vec<u8>>, Failure<E>> {
    let elsewhere = elsewhere(logs, sets)?;
    let rest = |(log, (span, bytes)): (&Needed, &(Span, Vec<u8>))| {
        let part = |from: u64, length: usize| Ok::<_, Failure<E>>(bytes[(from - span.start) as usize..][..length].to_vec());
        elsewhere.rest(log.rank, log.journal, part)
    };
    logs.iter().zip(own).map(rest).collect()
}
