//! Why images could not be had.

use std::net::SocketAddr;

/// What is said of an image whose code is not the one that its log service has for it.
pub const WRONG_CODE: &str = "its code is not that of this cluster, process and content: it is not restored";

/// Why the images of a process could not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The connection to the log service did not come about, broke, or was closed by the log service.
    #[error("the log service at {0}: {1}")]
    Service(SocketAddr, String),
    /// The image was replaced, or was never there.
    #[error("the log service at {0} does not hold image {1}, or not with the length that was said")]
    NotHeld(SocketAddr, u64),
    /// The image is not what was stored.
    #[error("image {0}: {1}")]
    Bad(u64, String),
    /// There is nowhere to put the image.
    #[error("there is no room for image {image} of {bytes} bytes {why}")]
    Room {
        /// Its number.
        image: u64,
        /// Its length.
        bytes: u64,
        /// Where there is none, and what the system said.
        why: String,
    },
    /// The order names no image.
    #[error("there is no image of it")]
    NoImage,
    /// The process is not wanted any more.
    #[error("given up")]
    GivenUp,
    /// The system has no thread that could fetch the images.
    #[error("there is no thread to prepare it: {0}")]
    NoThread(String),
    /// As many orders wait as may.
    #[error("too many processes are to be brought back at once")]
    Crowd,
    /// The images are here, and are not one process.
    #[error("its images: {0}")]
    Apart(String),
    /// An image could not be had, and there is no copy of it.
    #[error("{0}; there is no replica of it (--replicas 2)")]
    Unreplicated(Box<FetchError>),
    /// An image could not be had, nor the replica's copy.
    #[error("{0}; and its replica: {1}")]
    Neither(Box<FetchError>, Box<FetchError>),
}

impl FetchError {
    /// What was wrong first.
    pub fn cause(&self) -> &FetchError {
        match self {
            FetchError::Unreplicated(first) | FetchError::Neither(first, _) => first.cause(),
            other => other,
        }
    }
}
