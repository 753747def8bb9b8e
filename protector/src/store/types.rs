//! What goes into a store and what comes out of it.

use bytes::Bytes;
use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::log::{HeldImage, ImageRange};

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
    /// The process's incarnation.
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
    /// The process that the file belongs to.
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
    /// The bytes' position in the sequence. Where the file begins is the driver's affair.
    pub position: u64,
    /// The bytes.
    pub bytes: Bytes,
}

/// Something for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this message ([`FromProtector`](radic_wire::log::FromProtector)) to the observer.
    Send(Speaker, Vec<u8>),
    /// Send this message ([`ToProtector`](radic_wire::log::ToProtector)) to the replica.
    Forward(ProcessId, Vec<u8>),
    /// Verify this image (checksums, MAC), then tell [`Store::handle_verified`](super::Store::handle_verified).
    Verify(ProcessId, u64),
    /// Read this many bytes from the file and send them to the observer, as journal or payload.
    Read(Speaker, File, u64, usize),
    /// Ask the receiver's protector for [`Store::stable_of`](super::Store::stable_of) and send the answer to the observer.
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
    /// An image went with its recovery line, which was given up.
    GivenUp(ProcessId, u64),
    /// A committed image did not restore: the one before it is taken.
    Useless(ProcessId, u64),
    /// The image of this recovery line lacks nothing but that the line is complete.
    LineReady(ProcessId, u64),
    /// The log of a process nears its bound.
    LogBound(ProcessId),
}

/// Where bytes of a log are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Here.
    Memory(Vec<u8>),
    /// In this file, this many bytes from the position.
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
    /// The numbers of the images.
    pub range: ImageRange,
    /// The journal position of the last.
    pub cut: u64,
    /// Where the journal ends.
    pub log_end: u64,
    /// Of each received stream: units held, and where it has ended.
    pub held: Vec<(StreamId, u64, Option<u64>)>,
    /// The causes that are held for it: a set, and the position of its first byte.
    pub causes: (u64, Vec<u8>),
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
    /// It was brought back from its newest image, and lost before it was live, [`RESTORES`] times. What the image
    /// before needs is with no sender any more.
    #[error("it was lost on its way back from its last checkpoint {} times", RESTORES)]
    NotRestored,
}

/// Why a message was not taken. The connection it came on is to be closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A message before the hello, or about another process.
    #[error("{0} has said no hello")]
    Stranger(ProcessId),
    /// The message is of an older incarnation, which was told so.
    #[error("incarnation {old} of {process} is fenced: {newest} speaks for it")]
    Fenced {
        /// The process.
        process: ProcessId,
        /// The incarnation that spoke.
        old: Incarnation,
        /// The incarnation that may speak.
        newest: Incarnation,
    },
    /// The message contradicts what came before.
    #[error("{process}: {what}")]
    Contradiction {
        /// The process.
        process: ProcessId,
        /// What is wrong.
        what: &'static str,
    },
}
