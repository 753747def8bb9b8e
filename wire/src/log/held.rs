//! What a log service holds for a process, as commands are told.

use serde::{Deserialize, Serialize};

use crate::determinant::StreamId;
use crate::ids::{Incarnation, ProcessId, Rank};
use crate::span::Span;

/// One of the sequences that a log service holds for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LogPart {
    /// The process's journal: determinants, by position.
    Journal,
    /// What it has received on a stream, by offset.
    Stream(StreamId),
    /// The image of this number, as `radic ckpt` reads it, by offset.
    Image(u64),
    /// What its journal depends on of other processes ([`crate::causes`]), by position.
    Causes,
}

/// What a log service holds for one process: for `radic log show`, `radic replay` and `radic status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLog {
    /// The process.
    pub process: ProcessId,
    /// The process's newest incarnation.
    pub incarnation: Incarnation,
    /// Whether a restart would take it: no other protector has had what the process does.
    pub current: bool,
    /// The journal that can be read: with `keep_logs` from its beginning, else what a restart needs.
    pub journal: Span,
    /// Up to where the journal is acknowledged.
    pub stable: u64,
    /// The causes that can be read.
    pub causes: Span,
    /// Causes that were forgotten: up to where the journal depends on that of each of these ranks, at least.
    pub forgotten: Vec<(Rank, u64)>,
    /// What it received, at most [`limits::CUT_STREAMS`](crate::limits::CUT_STREAMS), in the order of their names.
    pub streams: Vec<HeldStream>,
    /// Images, oldest first, the one under way last.
    pub images: Vec<HeldImage>,
}

impl HeldLog {
    /// Finds two ranks whose newest images do not fit: one is of a recovery line and omits what the other received up to that
    /// line; the other's image is older.
    pub fn of_two_lines<'a>(logs: impl IntoIterator<Item = &'a HeldLog>) -> Option<(&'a HeldLog, &'a HeldLog)> {
        let known: Vec<_> = logs.into_iter().filter_map(|log| Some((log, log.committed()?.line))).collect();
        let (first, newest) = known.iter().filter(|(_, line)| line.joins).max_by_key(|(_, line)| line.newest)?;
        known.iter().find(|(_, line)| line.newest < newest.newest).map(|(other, _)| (*first, *other))
    }

    /// The newest committed image.
    fn committed(&self) -> Option<&HeldImage> {
        self.images.iter().rev().find(|image| image.state == ImageState::Committed)
    }
}

/// A stream in a [`HeldLog`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldStream {
    /// Which.
    pub stream: StreamId,
    /// The bytes that can be read.
    pub bytes: Span,
    /// The offset after its last byte, if it has ended.
    pub ended: Option<u64>,
    /// A committed image covers that the process has closed the connection: a restart needs nothing of it.
    pub closed: bool,
}

/// An image in a [`HeldLog`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldImage {
    /// The image's number.
    pub image: u64,
    /// The image that it is an increment of.
    pub parent: Option<u64>,
    /// The journal position that it corresponds to.
    pub cut: u64,
    /// The image's length so far, in bytes.
    pub bytes: u64,
    /// Where the image stands among the recovery lines of its job.
    pub line: LineMark,
    /// What became of it.
    pub state: ImageState,
}

/// The numbers of a process's images, when it comes back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRange {
    /// The oldest image that a later restart may take. The part of the log that only newer ones cover is still needed.
    pub oldest: u64,
    /// The next image has at least this number; lower ones were given.
    pub next: u64,
    /// The newest recovery line of which the image is that it comes back from, or whose number was given before it was suspended; 0: none.
    pub line: u64,
}

/// Where an image stands among the recovery lines of its job (docs/design.md).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineMark {
    /// The newest line for which the process had made its image, this one included; 0: none.
    pub newest: u64,
    /// The image is the process's image of that line: it leaves out what peers have received by theirs, so it counts when all
    /// ranks have one. Other images hold all that is kept for peers, and count by themselves.
    pub joins: bool,
}

/// What became of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageState {
    /// The image is on its way, being verified, or waits for the replica.
    UnderWay,
    /// A restart begins with it, or needs it for that.
    Committed,
    /// A newer one is committed. This one is kept because of `keep_logs`, or in case the newer one cannot be restored.
    Superseded,
}
