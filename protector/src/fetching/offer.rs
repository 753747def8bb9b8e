//! What a log service answers that is asked for an image.

use radic_wire::login::{NOT_HELD, OFFER};
use radic_wire::mac::MAC;

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
