//! `radic resume`: gives the images and the log of each rank of a suspended job to the rank's protector-to-be, and has the job go on.
//!
//! The ranks are given one after the other, over the rank's own protocol ([`radic_wire::log`]): hello, images one by one, journal, payload. Nothing has begun
//! before the folder says that the job goes on from there.

use std::collections::VecDeque;
use std::mem;
use std::net::SocketAddr;

use radic_wire::determinant::StreamId;
use radic_wire::ids::{Incarnation, NodeName, ProcessId, Rank};
use radic_wire::limits;
use radic_wire::local::{Reply, Request};
use radic_wire::log::{CutStreams, FromProtector, HeldStream, ToProtector};
use radic_wire::span::Span;
use radic_wire::suspension::{Manifest, Resumption, SavedImage, SavedRank, Unprinted};

use super::file::File;
use crate::store::Speaker;

#[cfg(test)]
mod tests;

/// What the command does next.
#[derive(Debug)]
pub enum Action<E> {
    /// Compares every file with the list. Answered by [`Resume::handle_done`].
    Verify,
    /// Says this on the connection by which the command becomes the job's terminal. What comes there goes to [`Resume::handle_reply`].
    Ask(Request),
    /// Connects to a log service on the channel of journals, and says hello there. What comes there goes to [`Resume::handle_heard`].
    Open(Speaker, SocketAddr, ToProtector<'static>),
    /// Sends an image, whole, on a connection of its own.
    GiveImage(ImageHead),
    /// Sends this part of the journal on the connection of the journal, out of its file. Answered by [`Resume::handle_done`].
    GiveJournal(Span),
    /// Sends what the rank has received on the channel of payload, out of its file. Answered by [`Resume::handle_done`].
    GiveReceived(Vec<Piece>),
    /// Ends the connections to the log service.
    Close,
    /// Leaves the mark in the folder that the job goes on from there. Answered by [`Resume::handle_done`].
    Mark,
    /// The job does not go on after all: takes the mark away.
    Unmark,
    /// Prints what no terminal has printed.
    Print(Vec<Unprinted>),
    /// The command is over.
    Over(Over<E>),
}

/// The beginning of an image, and its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageHead {
    /// The image's number.
    pub image: u64,
    parent: Option<u64>,
    cut: u64,
    line: u64,
    begins: Vec<(StreamId, u64)>,
    ended: Vec<(StreamId, u64)>,
}

impl ImageHead {
    /// Where it is.
    pub fn file(&self) -> File {
        File::Image(self.image)
    }

    /// What precedes its bytes.
    pub fn message(&self) -> ToProtector<'_> {
        let streams = CutStreams::new(&self.begins).zip(CutStreams::new(&self.ended));
        let (streams, ended) = streams.expect("it has no more than an image may have");
        ToProtector::image_by_itself(self.image, self.parent, (self.cut, 0), self.line, streams, ended)
    }
}

/// What a rank has received of a stream: where it begins in the file and in the payload log, and which part of the stream it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Position in the payload log.
    pub position: u64,
    /// The stream.
    pub stream: StreamId,
    /// Which bytes of it.
    pub bytes: Span,
}

/// How the command ends.
#[derive(Debug)]
pub enum Over<E> {
    /// The job goes on, and the command is its terminal: the node's answer.
    GoesOn(Box<Reply>),
    /// The job does not go on, and the folder does not say that it does.
    NotBegun(Failure<E>),
    /// The job may go on, and the folder says that it does.
    Unsure(Failure<E>),
}

/// Why a job does not go on.
#[derive(Debug, thiserror::Error)]
pub enum Failure<E> {
    /// The node says so.
    #[error("{0}")]
    Refused(String),
    /// The node says something else.
    #[error("unexpected: {0:?}")]
    Unexpected(Box<Reply>),
    /// The log service does not take an image.
    #[error("image {0} was refused")]
    ImageRefused(u64),
    /// The log service takes nothing of this life any more.
    #[error("the rank has a later incarnation already, {0}")]
    Fenced(Incarnation),
    /// The list is not of ranks that can be brought back.
    #[error("{0}")]
    Useless(&'static str),
    /// An action was not carried out.
    #[error("{0}")]
    Undone(E),
}

/// What is waited for of the log service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The log is to be begun.
    Greeting,
    /// The image of this place is to be committed.
    Image(usize),
    /// Journal and payload are held up to there. Perhaps not all is sent.
    Log { journal: u64, payload: u64, is_sent: bool },
}

/// How far the command is.
#[derive(Debug)]
enum Phase {
    Verifying,
    /// The node is to say where each rank's log service listens.
    Asking,
    /// The rank of this number is given to its log service.
    Giving {
        logs: Vec<SocketAddr>,
        rank: usize,
        step: Step,
    },
    /// All are given: the folder is to say that the job goes on.
    Marking,
    /// The ranks are to begin.
    Beginning,
    Over,
}

/// The first incarnation of a rank in the life that begins.
fn begins_as(saved: &SavedRank) -> Incarnation {
    saved.incarnation.next()
}

/// See the module's text.
#[derive(Debug)]
pub struct Resume<E> {
    manifest: Manifest,
    phase: Phase,
    actions: VecDeque<Action<E>>,
    /// The action that was handed out last is to be answered by [`Resume::handle_done`].
    awaits: bool,
}

impl<E> Resume<E> {
    /// With what a folder holds, on these nodes; none: on all that are no spares.
    pub fn new(mut manifest: Manifest, nodes: Vec<NodeName>) -> Self {
        manifest.suspension.ward.spec.nodes = nodes;
        Resume { manifest, phase: Phase::Verifying, actions: VecDeque::from([Action::Verify]), awaits: false }
    }

    /// The next action; none before the last one is answered.
    pub fn poll_action(&mut self) -> Option<Action<E>> {
        if self.awaits {
            return None;
        }
        let action = self.actions.pop_front()?;
        self.awaits = matches!(action, Action::Verify | Action::GiveJournal(_) | Action::GiveReceived(_) | Action::Mark);
        Some(action)
    }

    /// The rank that is being given, and to which log service.
    pub fn giving(&self) -> Option<(Rank, SocketAddr)> {
        match &self.phase {
            Phase::Giving { logs, rank, .. } => Some((Rank(*rank as u32), logs[*rank])),
            _ => None,
        }
    }

    /// What of the log service is waited for, if anything is: for people.
    pub fn waits_until(&self) -> Option<String> {
        let Phase::Giving { rank, step, .. } = self.phase else { return None };
        match step {
            Step::Greeting => Some("its log is begun".to_owned()),
            Step::Image(at) => Some(format!("image {} is verified", self.manifest.ranks[rank].images[at].image)),
            Step::Log { is_sent: false, .. } => None,
            Step::Log { .. } => Some("its log is held".to_owned()),
        }
    }

    /// The node says something.
    pub fn handle_reply(&mut self, reply: Reply) {
        match (&self.phase, reply) {
            (Phase::Over, _) => {}
            (Phase::Asking, Reply::Resuming(logs)) if logs.len() == self.manifest.ranks.len() => self.give(logs, 0),
            (Phase::Beginning, attached @ Reply::Attached { .. }) => {
                let unprinted = mem::take(&mut self.manifest.unprinted);
                self.phase = Phase::Over;
                self.actions.extend([Action::Print(unprinted), Action::Over(Over::GoesOn(Box::new(attached)))]);
            }
            (Phase::Beginning, Reply::Error(text)) => {
                // Nothing has begun. If the mark stays the job is taken for one that has gone on, which is the safe error.
                self.phase = Phase::Over;
                self.actions.extend([Action::Unmark, Action::Over(Over::NotBegun(Failure::Refused(text)))]);
            }
            (_, Reply::Error(text)) => self.end(Failure::Refused(text)),
            (_, other) => self.end(Failure::Unexpected(Box::new(other))),
        }
        self.check();
    }

    /// The log service says something.
    pub fn handle_heard(&mut self, message: &FromProtector<'_>) {
        let Phase::Giving { rank, step, .. } = &mut self.phase else { return };
        match (message, step) {
            (FromProtector::ImageRefused { image }, _) => self.end(Failure::ImageRefused(*image)),
            (FromProtector::Fenced { newest }, _) => self.end(Failure::Fenced(*newest)),
            (FromProtector::Welcome { .. }, step @ Step::Greeting) => {
                *step = Step::Image(0);
                self.give_next();
            }
            (FromProtector::Committed { image, .. }, Step::Image(at))
                if self.manifest.ranks[*rank].images[*at].image == *image =>
            {
                *at += 1;
                self.give_next();
            }
            (FromProtector::JournalStable { position }, Step::Log { journal, .. }) => {
                *journal = *position;
                self.look_whether_held();
            }
            (FromProtector::PayloadStable { position }, Step::Log { payload, .. }) => {
                *payload = *position;
                self.look_whether_held();
            }
            _ => {}
        }
        self.check();
    }

    /// The last action was carried out.
    pub fn handle_done(&mut self) {
        assert!(mem::take(&mut self.awaits), "an action is answered once");
        match &mut self.phase {
            Phase::Verifying => {
                let suspension = Box::new(self.manifest.suspension.clone());
                let resumption = Box::new(Resumption { incarnations: self.manifest.ranks.iter().map(begins_as).collect() });
                self.phase = Phase::Asking;
                self.actions.push_back(Action::Ask(Request::Resume(suspension, resumption)));
            }
            Phase::Giving { step, .. } if self.actions.is_empty() => {
                if let Step::Log { is_sent, .. } = step {
                    *is_sent = true;
                }
                self.look_whether_held();
            }
            Phase::Giving { .. } => {}
            Phase::Marking => {
                self.phase = Phase::Beginning;
                self.actions.push_back(Action::Ask(Request::BeginResumed));
            }
            phase => unreachable!("nothing is done: {phase:?}"),
        }
        self.check();
    }

    /// The last action was not carried out, or what it needs is lost: the connection to the node, or one to the log service.
    pub fn handle_failed(&mut self, why: E) {
        self.end(Failure::Undone(why));
        self.check();
    }
}

/// What follows.
impl<E> Resume<E> {
    fn end(&mut self, why: Failure<E>) {
        (self.awaits, self.actions) = (false, VecDeque::new());
        match mem::replace(&mut self.phase, Phase::Over) {
            Phase::Over => {}
            Phase::Beginning => self.actions.push_back(Action::Over(Over::Unsure(why))),
            _ => self.actions.push_back(Action::Over(Over::NotBegun(why))),
        }
    }

    /// The rank of this number is given, or all are.
    fn give(&mut self, logs: Vec<SocketAddr>, rank: usize) {
        let Some(saved) = self.manifest.ranks.get(rank) else {
            self.phase = Phase::Marking;
            return self.actions.push_back(Action::Mark);
        };
        let Some(SavedImage { cut, .. }) = saved.images.first() else { return self.end(Failure::Useless("it has no image")) };
        let process = ProcessId { job: self.manifest.suspension.job, rank: Rank(rank as u32) };
        let speaker = Speaker { process, incarnation: begins_as(saved) };
        let (journal, payload) = (Span { start: *cut, end: saved.journal.end }, Span { start: 0, end: saved.received() });
        let hello = ToProtector::hello(process, speaker.incarnation, journal, payload);
        self.actions.push_back(Action::Open(speaker, logs[rank], hello));
        self.phase = Phase::Giving { logs, rank, step: Step::Greeting };
    }

    /// The next image of the rank, or its log.
    fn give_next(&mut self) {
        let Phase::Giving { rank, ref mut step, .. } = self.phase else { return };
        let saved = &self.manifest.ranks[rank];
        match *step {
            Step::Image(at) if at < saved.images.len() => match head(saved, at, self.manifest.suspension.line) {
                Some(head) => self.actions.push_back(Action::GiveImage(head)),
                None => self.end(Failure::Useless("too many streams")),
            },
            _ => {
                *step = Step::Log { journal: saved.journal.start, payload: 0, is_sent: false };
                self.actions.extend([Action::GiveJournal(saved.journal), Action::GiveReceived(pieces(&saved.streams))]);
            }
        }
    }

    fn look_whether_held(&mut self) {
        let Phase::Giving { logs, rank, step: Step::Log { journal, payload, is_sent: true } } = &mut self.phase else { return };
        let (saved, next) = (&self.manifest.ranks[*rank], *rank + 1);
        if *journal >= saved.journal.end && *payload >= saved.received() {
            self.actions.push_back(Action::Close);
            let logs = mem::take(logs);
            self.give(logs, next);
        }
    }

    /// What is so in each phase.
    fn check(&self) {
        let begins = |action: &Action<E>| matches!(action, Action::Ask(Request::BeginResumed));
        let is_beginning = matches!(self.phase, Phase::Beginning);
        assert!(is_beginning || !self.actions.iter().any(begins), "the ranks begin when all is given, and the folder says so");
        match &self.phase {
            Phase::Giving { logs, rank, step } => {
                assert!(logs.len() == self.manifest.ranks.len() && *rank < logs.len(), "each rank has a log service");
                let is_sent = !self.awaits && !self.actions.iter().any(|action| matches!(action, Action::GiveReceived(_)));
                assert!(
                    matches!(step, Step::Log { is_sent: false, .. }) != is_sent,
                    "what is held is looked at when all is sent"
                );
            }
            Phase::Verifying | Phase::Marking => {}
            Phase::Asking | Phase::Beginning | Phase::Over => assert!(!self.awaits, "nothing is carried out"),
        }
    }
}

/// The beginning of the image of this place. The last one says where each stream stands. None: there are too many.
fn head(saved: &SavedRank, at: usize, line: u64) -> Option<ImageHead> {
    let SavedImage { image, parent, cut, .. } = saved.images[at];
    let streams: &[HeldStream] = if at + 1 == saved.images.len() { &saved.streams } else { &[] };
    let start = |of: &HeldStream| (of.stream, if of.closed { u64::MAX } else { of.bytes.start });
    let begins: Vec<_> = streams.iter().map(start).collect();
    let ended: Vec<_> = streams.iter().filter_map(|of| Some((of.stream, of.ended?))).collect();
    (begins.len() <= limits::CUT_STREAMS).then_some(ImageHead { image, parent, cut, line, begins, ended })
}

/// What was received, one stream after the other, as the file has it. Those that are closed have nothing there.
fn pieces(streams: &[HeldStream]) -> Vec<Piece> {
    let mut position = 0;
    let piece = |HeldStream { stream, bytes, .. }: &HeldStream| {
        let piece = Piece { position, stream: *stream, bytes: *bytes };
        position += bytes.end - bytes.start;
        piece
    };
    streams.iter().filter(|stream| !stream.closed).map(piece).collect()
}
