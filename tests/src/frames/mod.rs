//! A bad network below TCP: a switch of the harness's own between the nodes' namespaces, which delays, doubles and loses frames, and resets connections.
//!
//! What is between two ranks is not behind a proxy, for a proxy has other ports, and calls are known by them. So here nothing stands between the two ends: each
//! node's interface is a TAP device, and a thread of the test reads and writes these ([`switch`]). What is done to a frame is drawn by seed ([`faults`]), and
//! a connection is reset by a segment that it takes for its peer's ([`segment`]).

pub mod faults;
pub mod segment;
pub mod switch;

pub use faults::{Done, Faults};
pub use switch::{Switch, is_possible};
