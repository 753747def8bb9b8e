//! A simulated cluster: every machine has a real protector (membership, node, store) and hosts real observers with a small program; time, network, disks and
//! processes are pretended, and dice of one seed decide about all of it.
//!
//! | module | what | written after |
//! |---|---|---|
//! | [`plan`] | what a seed decides beforehand: sizes, and what fails when | |
//! | [`world`], [`queue`] | what there is, and what is going to happen | |
//! | [`machine`] | machines: how they are switched on, and what goes wrong with them | |
//! | [`net`] | ordered connections with delays, cuts, and what is lost when they break | |
//! | [`terminal`] | the terminal, which starts the job and looks for it | |
//! | [`judge`] | whether the job has ended as it may | |
//! | [`daemon`] | the node's driver: timers, and the ranks' processes | `protector/src/daemon` |
//! | [`peers`] | the driver of what decides about connections between daemons | `protector/src/daemon/peers.rs` |
//! | [`logs`] | the store's driver, with a disk | `protector/src/logs` |
//! | [`process`], [`links`] | the observer's driver | `preload/` |
//! | [`calls`] | the program's listener and its calls: their sockets | `preload/src/ops/connect.rs`, `preload/src/ops/accept.rs` |
//! | [`program`] | the program, and what its calls become | `preload/src/ops` |
//! | [`stdio`] | pipes between a process and its host; the terminal's standard input | |
//! | [`images`] | what the engine makes of a process, and the way to the protector | `preload/src/image.rs` |
//! | [`restores`] | the driver of what decides how images come back | `protector/src/daemon/restores.rs`, `protector/src/logs/fetch.rs` |
//! | [`suspension`], [`resumption`] | the commands that suspend the job and resume it | `tools/src/suspend` |
//! | [`past`] | what each state depends on, and whether that is held | |
//! | [`check`] | what must hold at every step, and at the end | docs/design.md's guarantees |
//!
//! A violation is a panic, as an assertion of the state machines is: [`crate::seeds`] reports both with their seed.

use std::time::Duration;

pub mod anew;
pub mod calls;
pub mod check;
pub mod counts;
pub mod daemon;
pub mod images;
pub mod judge;
pub mod links;
mod locks;
pub mod logs;
pub mod machine;
pub mod net;
pub mod past;
pub mod peers;
pub mod plan;
pub mod process;
pub mod program;
pub mod queue;
pub mod restores;
pub mod resumption;
mod session;
pub mod stdio;
pub mod suspension;
pub mod terminal;
#[cfg(test)]
mod tests;
pub mod world;

/// Time for a message on one machine.
pub(crate) const LOCAL: Duration = Duration::from_micros(15);
