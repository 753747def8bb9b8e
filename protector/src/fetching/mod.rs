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

mod error;
mod fetch;
mod offer;
mod order;
mod orders;
#[cfg(test)]
mod tests;

pub use self::error::{FetchError, WRONG_CODE};
pub use self::fetch::{Fetch, FetchAction, LOGIN, SILENCE, Source};
pub use self::offer::Offer;
pub use self::order::RestoreOrder;
pub use self::orders::{OrderNumber, Orders, OrdersAction, Use};
