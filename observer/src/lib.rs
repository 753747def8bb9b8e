//! The observer: the runtime inside each protected process, as state machines without sockets, clocks, threads or `unsafe`.
//!
//! [`Observer`] composes them for a caller that has intercepted a call of the program; README.md has the map and the invariants,
//! DRIVER.md what the caller must do. Each machine stands alone too:
//!
//! - [`journal`]: the log of determinants, what of it is stable, where the next outcome stands; [`gate`]: G1;
//! - [`outbox`]: what was sent and the receiver's protector does not hold yet (G2);
//! - [`pressure`]: when the outbox needs a recovery line;
//! - [`payload`]: what was received, on its way to the protector;
//! - [`bind`]: a `bind` of the program, and which process has an address;
//! - [`connect`]: a `connect` of the program, from the question which process listens to the greeting;
//! - [`caller`]: a caller that a listener of the program has got, until the program gets it from `accept` or closes the listener;
//! - [`listener`]: where the program listens, and what the node hears of that;
//! - [`connection`]: streams, and connections that outlive their sockets (G3);
//! - [`replay`]: the log, served again (G5);
//! - [`output`]: what was printed, and is printed once more after a restart (G3);
//! - [`checkpoint`]: what may be forgotten, and when (G6);
//! - [`links`]: what is done when the socket of a connection is no more;
//! - [`standstill`]: when a reading of a clock that is next in the log is given up as missed;
//! - [`session`]: the connections to the protector, the log that a restarted process reads, and the end of the process.
//!
//! Memory: everything is allocated by the constructors, with the capacities of [`Config`]; afterwards nothing is, but when a process
//! is restarted. A library that runs this inside a user's program has an allocator of its own, at far addresses.
#![forbid(unsafe_code)]

pub mod bind;
pub mod caller;
pub mod causes;
pub mod checkpoint;
mod clocks;
pub mod connect;
pub mod connection;
mod context;
mod error;
pub mod found;
pub mod frames;
pub mod gate;
pub mod haste;
pub mod journal;
pub mod links;
pub mod listener;
mod observer;
pub mod outbox;
pub mod output;
mod packed;
pub mod payload;
pub mod pressure;
pub mod replay;
pub mod ring;
pub mod session;
pub mod standstill;

pub use context::{Context, Failure};
pub use error::Error;
pub use observer::{
    Accept, Address, Answer, Config, Cut, Front, Input, Observer, Reading, Ready, Receive, Send, Source, Transmit, Unread, Wait,
};
