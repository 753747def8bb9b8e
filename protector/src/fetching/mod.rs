//! Images on their way to a node that brings a process back: everything that is decided about them on that node, without sockets,
//! files, threads or a clock. What the log server decides that sends them is in [`crate::logserver`].
//!
//! | type | what it decides |
//! |---|---|
//! | [`Fetch`] | one process: its images one by one, from which log service, how long each is waited for, what is taken from the replica, why it fails |
//! | [`Orders`] | all orders of a node: how many are carried out at once, which wait, which are replaced or given up |
//! | [`Offer`] | what a log service answers that is asked for an image |
//!
//! There are two drivers: `logs/fetch.rs` and `daemon/restores.rs`, with sockets, files and threads, and the simulation.

mod fetch;
mod order;
mod orders;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use radic_wire::login::{NOT_HELD, OFFER};
use radic_wire::mac::MAC;

pub use self::fetch::{Fetch, FetchAction, LOGIN, SILENCE, Source};
pub use self::order::RestoreOrder;
pub use self::orders::{OrderNumber, Orders, OrdersAction, Use};

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

/// What a log service answers that is asked for an image: its length, and its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The length of the image in bytes.
    pub bytes: u64,
    /// The code over all of them.
    pub code: [u8; MAC],
}

impl Offer {
    /// What is offered of an image that the log server holds with a length, where a file of this length with this code is found.
    /// A commit may have replaced the file since the log server was asked, so both must agree.
    pub fn of(held: Option<u64>, found: Option<Offer>) -> Option<Offer> {
        found.filter(|offer| held == Some(offer.bytes) && offer.bytes != NOT_HELD)
    }

    /// As it is sent. None: the image is not held.
    pub fn encode(offer: Option<Offer>) -> [u8; OFFER] {
        let mut out = [0; OFFER];
        let (length, code) = out.split_at_mut(8);
        length.copy_from_slice(&offer.map_or(NOT_HELD, |offer| offer.bytes).to_le_bytes());
        code.copy_from_slice(&offer.map_or([0; MAC], |offer| offer.code));
        out
    }

    /// As it has come. None: the image is not held, or this is no answer.
    pub fn read(bytes: &[u8]) -> Option<Offer> {
        let (length, code) = bytes.split_first_chunk()?;
        let (bytes, code) = (u64::from_le_bytes(*length), code.try_into().ok()?);
        (bytes != NOT_HELD).then_some(Offer { bytes, code })
    }
}
