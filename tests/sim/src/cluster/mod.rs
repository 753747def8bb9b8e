//! A simulated cluster: every machine has a real protector (membership, node, store) and hosts real observers with a small program; time, network, disks and
//! processes are pretended, and dice of one seed decide about all of it.
//!
//! | module | what | written after |
//! |---|---|---|
//! | [`plan`] | what a seed decides beforehand: sizes, and what fails when | |
//! | [`world`] | the queue of events, machines, faults, the terminal, the end | |
//! | [`net`] | ordered connections with delays, cuts, and what is lost when they break | |
//! | [`daemon`] | the node's driver: links, heartbeats, probes, launching, fetching images | `protector/src/daemon` |
//! | [`logs`] | the store's driver, with a disk | `protector/src/logs` |
//! | [`process`], [`links`] | the observer's driver, and the program | `preload/` |
//! | [`images`] | what the engine makes of a process, and the way to the protector and back | `preload/src/image.rs`, `protector/src/logs/fetch.rs` |
//! | [`check`] | what must hold at every step, and at the end | docs/design.md's guarantees |
//!
//! A violation is a panic, as an assertion of the state machines is: [`crate::seeds`] reports both with their seed.

use std::time::Duration;

pub mod check;
pub mod daemon;
pub mod images;
pub mod links;
pub mod logs;
pub mod net;
pub mod plan;
pub mod process;
mod session;
#[cfg(test)]
mod tests;
pub mod world;

/// Time for a message on one machine.
pub(crate) const LOCAL: Duration = Duration::from_micros(15);
