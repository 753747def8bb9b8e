//! What an observer and its protector say to each other, and what two observers say when they connect.
//!
//! Each message is the body of one frame ([`crate::frame`]) of at most [`LOG_FRAME`](crate::limits::LOG_FRAME) bytes. The codes are written by hand:
//! they are on the data path, inside the user's program, where nothing may be allocated; so messages borrow their bytes. Between
//! observer and protector there are the journal's connection, small and urgent, begun by a [`ToProtector::Hello`], the bulk one, and one
//! for each image ([`crate::login`]). Positions are absolute and outlive connections, protectors and incarnations, but for those of the payload
//! log, which count what one incarnation has received.

mod codes;
mod from_protector;
mod greeting;
mod held;
#[cfg(test)]
mod tests;
mod to_protector;

pub use codes::CutStreams;
pub use from_protector::FromProtector;
pub use greeting::{Ends, GREETING, Greeting};
pub use held::{HeldImage, HeldLog, HeldStream, ImageRange, ImageState, LineMark, LogPart};
pub use to_protector::{NewCauses, ToProtector};
