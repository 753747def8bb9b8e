//! What the driver and the log server say to each other, and what connections are for. Methods that are named here are those of
//! [`LogServer`].

use std::net::SocketAddr;

use radic_wire::bytes::Malformed;
use radic_wire::ids::{Incarnation, JobId, ProcessId};
#[cfg(doc)]
use radic_wire::limits;

#[cfg(doc)]
use super::LogServer;
use crate::store::{self, File, NoRestart, Restart, Speaker, StoreError, Usage, Write};

/// Number of a connection. The driver gives it, and each once.
pub type ConnectionNumber = u64;

/// Bounds.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Of the store.
    pub store: store::Config,
    /// Most processes. One more cannot log in.
    pub processes: usize,
    /// Most connections.
    pub connections: usize,
    /// Bytes on their way to files.
    pub writing: usize,
    /// Bytes of one write.
    pub write: usize,
    /// Bytes of answers that may wait for a connection, those that are being read from files included, before nothing more is
    /// read that asks for answers.
    pub answers: usize,
    /// Bytes that may wait for a replica before payload and images of its process are not read.
    pub forwards: usize,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The caller has proven nothing yet.
    Unproven,
    /// The journal of a process, and where its answers go; whether its hello has come.
    Journal(Speaker, bool),
    /// Payload of a process.
    Bulk(Speaker),
    /// An image: its number and how much of it has come, once its beginning has.
    Image(Speaker, Option<(u64, u64)>),
    /// The log server before this one in the chain, and as which incarnation it speaks.
    Forwarder(ProcessId, Option<Speaker>),
    /// A node that brings this process back, and is about to say which image it wants.
    Fetcher(ProcessId),
    /// The replica of a process, to which a connection is being made.
    Dialed(ProcessId),
    /// The replica of a process.
    Replica(ProcessId),
}

impl Role {
    /// The process that the connection is about, as far as that is proven.
    pub fn process(self) -> Option<ProcessId> {
        match self {
            Role::Unproven => None,
            Role::Journal(speaker, _) | Role::Bulk(speaker) | Role::Image(speaker, _) => Some(speaker.process),
            Role::Forwarder(process, _) | Role::Fetcher(process) | Role::Dialed(process) | Role::Replica(process) => {
                Some(process)
            }
        }
    }

    /// The incarnation that speaks on it, if one does.
    pub fn speaker(self) -> Option<Speaker> {
        match self {
            Role::Journal(speaker, _) | Role::Bulk(speaker) | Role::Image(speaker, _) => Some(speaker),
            Role::Forwarder(_, speaker) => speaker,
            Role::Unproven | Role::Fetcher(_) | Role::Dialed(_) | Role::Replica(_) => None,
        }
    }

    /// Whether it is served after those on which gates depend.
    pub fn is_bulk(self) -> bool {
        matches!(self, Role::Bulk(_) | Role::Image(..))
    }

    /// Whether the beginnings of images come on it, which are longer than other frames.
    pub fn takes_images(self) -> bool {
        matches!(self, Role::Image(..) | Role::Forwarder(..))
    }
}

/// Whether a connection is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// The connection is read.
    Open,
    /// Not until the store has room for what it brings.
    NoRoom,
    /// Not until it has taken answers.
    Clogged,
}

/// Why the server closes a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The other side proved nothing in [`limits::HANDSHAKE_MS`].
    #[error("it proved nothing in time")]
    Late,
    /// [`limits::HANDSHAKES`] others are unproven, and it is the oldest.
    #[error("too many connections have proven nothing")]
    Crowd,
    /// A newer connection speaks for the same incarnation, or the connection is not needed any more.
    #[error("another connection has its place")]
    Replaced,
    /// A newer incarnation of its process is listened to.
    #[error("a newer incarnation of its process is listened to")]
    Fenced,
    /// What is held of its process was forgotten.
    #[error("what was held of its process was forgotten")]
    Forgotten,
    /// The other side forwards for a process that speaks here itself, or this node is no member yet.
    #[error("its process speaks here itself, or this node is no member yet")]
    Early,
    /// Too many images are wanted at once.
    #[error("too many images are wanted at once")]
    Busy,
    /// An image is complete, or is not wanted any more.
    #[error("it has ended")]
    Ended,
    /// The store has refused what it said.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The other side said what its role does not allow.
    #[error("{0}")]
    Protocol(&'static str),
    /// What it said is no message.
    #[error("{0}")]
    Malformed(#[from] Malformed),
    /// The answer to its question cannot be read from its file.
    #[error("what it asked for cannot be read")]
    Unreadable,
}

impl Reason {
    /// Whether the caller is at fault, so that the event log should tell.
    pub(super) fn is_fault(&self) -> bool {
        match self {
            Reason::Store(error) => !matches!(error, StoreError::Fenced { .. }),
            Reason::Late | Reason::Protocol(_) | Reason::Malformed(_) => true,
            _ => false,
        }
    }
}

/// Why a connection is gone, as the driver says.
#[derive(Debug, Clone, Copy)]
pub enum Gone<'a> {
    /// The other side has ended it.
    Ended,
    /// The connection broke.
    Broke(&'a str),
    /// The other side has sent what no honest one sends, and the driver has closed the connection.
    Fault(&'a str),
}

/// What the driver does next with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The driver brings the next frame.
    Read,
    /// The answer may be long: the driver carries out what is to be done, and asks [`LogServer::may_go_on`] before it brings the
    /// next frame.
    Answer,
    /// Nothing: the connection is closed.
    Closed,
}

/// When a forwarded message leaves, among those that wait for the replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precedence {
    /// After all that wait, and before all that come later: what follows belongs to another incarnation.
    Barrier,
    /// First: a gate waits for it, and for no payload or image before it.
    Urgent,
    /// When nothing else waits.
    Later,
}

/// Something for the driver to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send an answer ([`radic_wire::log::FromProtector`]) to the incarnation that speaks on this connection.
    Answer(ConnectionNumber, Speaker, Vec<u8>),
    /// Send a message ([`radic_wire::log::ToProtector`]) to a replica.
    Forward(ConnectionNumber, Precedence, Vec<u8>),
    /// Send what can be sent at once, and close the connection.
    Close(ConnectionNumber, Reason),
    /// Read the connection again: what has come already, and what will.
    Resume(ConnectionNumber),
    /// Connect to the replica of a process, to log in as this incarnation; then [`LogServer::handle_dialing`] or
    /// [`LogServer::handle_dial_failed`].
    Dial(Speaker, SocketAddr),
    /// Write; then [`LogServer::handle_written`] or [`LogServer::handle_write_failed`] with this ticket.
    Write(u64, Write),
    /// Read this many bytes of a file from a position, for a connection; then [`LogServer::handle_read`].
    Read(ConnectionNumber, File, u64, usize),
    /// Nothing of the file before the position is needed any more.
    Truncate(File, u64),
    /// The file is not needed any more.
    Delete(File),
    /// No file of the process is needed any more.
    RemoveProcess(ProcessId),
    /// No file of the job is needed any more.
    RemoveJob(JobId),
    /// Verify an image; then [`LogServer::handle_verdict`].
    Verify(Verification),
    /// Answer the node that waits on this connection by an [`Offer`](crate::fetching::Offer) of this image, which is held with this
    /// length, if it is; send the image, and close the connection. Then [`LogServer::handle_image_sent`].
    SendImage(ConnectionNumber, ProcessId, u64, Option<u64>),
    /// Tell the node.
    Tell(Event),
    /// Tell the node the result of [`LogServer::fence`]: what a restart as this incarnation needs.
    Fenced(ProcessId, Incarnation, Result<Restart, NoRestart>),
}

/// An image that is to be verified: whole, undamaged, and upon the image that it is said to build upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verification {
    /// Given back with the verdict: an image of the same number may be another one by then.
    pub ticket: u64,
    /// The process.
    pub process: ProcessId,
    /// The image's number.
    pub image: u64,
    /// The number of the image that it builds upon.
    pub parent: Option<u64>,
    /// The image's length.
    pub bytes: u64,
}

/// Something for the node's event log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub what: What,
    /// About which process.
    pub process: Option<ProcessId>,
    /// The text for the event log.
    pub text: String,
}

/// What an [`Event`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// The image of this number was committed.
    Committed(u64),
    /// An image was refused: not whole, damaged, too large, or no room for it.
    Refused,
    /// A process did not live again from its newest image: the one before it is the newest now.
    Useless,
    /// The image of this recovery line lacks nothing but that the line is complete.
    LineReady(u64),
    /// The log of a process nears its bound; an image was asked for.
    LogBound,
    /// A file could not be written; the process waits until it can, or its image is given up.
    Disk,
    /// Files can be written again.
    DiskWell,
    /// The log of a process that is catching up cannot be read, or is not what was written: the process cannot be brought back
    /// from here.
    Unreadable,
    /// A connection that proved nothing, or said something that contradicts what came before, was closed. At most one a second is
    /// told.
    Intruder,
    /// The replica of a process is out of reach (its gate waits), or there again.
    Replica,
}

/// How the logs of one process are, in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// What it has here.
    pub usage: Usage,
    /// Time since it was committed, in milliseconds.
    pub committed_ms: Option<u64>,
    /// The process's journal connection is there.
    pub connected: bool,
    /// Whether the connection to the process's replica is there, if the process is replicated.
    pub replica: Option<bool>,
    /// Why what it logs is not taken, or not acknowledged, for now.
    pub waits: Option<String>,
}
