//! Why a process is not saved, or does not come back.

use std::io;

use crate::image::ImageError;
use crate::image::chain::AncestorError;
use crate::trusted::TrustError;

/// Why there is no checkpoint, or no restored process.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The process cannot be asked.
    #[error("process {0} cannot be asked for a checkpoint: {1}")]
    Unreachable(i32, io::Error),
    /// The process does not answer.
    #[error(
        "process {0} does not answer: it does not run under the checkpoint library, is saving itself already, or is in the middle of what no image may have"
    )]
    Silent(i32),
    /// The process has ended before it has answered.
    #[error("process {0} has ended")]
    Ended(i32),
    /// The process says why it cannot be saved.
    #[error("process {0} cannot be saved: {1}")]
    Refused(i32, String),
    /// The image is not sound.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Another user decides what is in the image.
    #[error(transparent)]
    Untrusted(#[from] TrustError),
    /// Images that it needs are missing, or another user decides what is in them.
    #[error(transparent)]
    Ancestor(#[from] AncestorError),
    /// An increment, or an image with packed runs, becomes a whole one before it is restored.
    #[error("there is no room for the unpacked image of {needed} bytes; set TMPDIR to a folder that has room ({reasons})")]
    NoRoom {
        /// How many bytes it has.
        needed: u64,
        /// The folders without room.
        reasons: String,
    },
    /// There is nowhere to put it.
    #[error(
        "the image must be unpacked, and no temporary file can be made for that; set TMPDIR to a folder where that is possible ({0})"
    )]
    NoTemporary(String),
    /// Anything else.
    #[error("{0}: {1}")]
    Io(String, io::Error),
}

pub(super) fn failed(what: &str) -> impl Fn(io::Error) -> ControlError {
    move |error| ControlError::Io(what.to_owned(), error)
}
