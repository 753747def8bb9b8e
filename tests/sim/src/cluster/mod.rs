//! A simulated cluster: every machine has a real protector (membership, node, store) and hosts real observers with a small program; time, network, disks and
//! processes are pretended, and dice of one seed decide about all of it.
//!
//! | module | what |
//! |---|---|
//! | [`plan`] | what a seed decides beforehand: sizes, and what fails when |
//! | [`world`], [`queue`] | what there is, and what is going to happen |
//! | [`machine`] | machines: how they are switched on, and what goes wrong with them |
//! | [`net`] | ordered connections with delays, cuts, and what is lost when they break |
//! | [`terminal`] | the terminal, which starts the job and looks for it |
//! | [`judge`] | whether the job has ended as it may |
//! | `formed` | clusters that are measured: their machines have been members of one view for some time |
//! | `costs`, `measured` | what the work of a daemon costs, and what a measurement is told ([`crate::scale`]) |
//! | [`anew`] | whether the job has restarted from its beginning only where nothing else was left |
//! | [`daemon`] | drives the node: timers, and the ranks' processes |
//! | [`peers`] | drives what decides about connections between daemons |
//! | [`logs`] | drives the log server, with a disk and a verifier that take their time |
//! | `outgoing` | drives what decides in which order the messages of a log server leave, with sockets that take little at once |
//! | [`process`], [`links`] | drive the observer of a process, its session, and what decides about its links |
//! | `leaving` | what leaves a process between two calls: its journal, what it received, and frames |
//! | [`calls`] | the program's listener and its calls: their sockets, and what the node is asked about them |
//! | [`program`] | the program, and what its calls become: questions to the observer, and what was found |
//! | [`stdio`] | pipes between a process and its host; the terminal's standard input |
//! | [`images`] | what the engine makes of a process, and the way to the protector |
//! | [`restores`] | drives what decides how images come back |
//! | [`suspension`], [`resumption`] | the commands that suspend the job and resume it |
//! | [`past`] | what each state depends on, and whether that is held |
//! | [`late`] | processes that are killed at their very end |
//! | [`check`] | what must hold at every step, and at the end (docs/design.md's guarantees) |
//!
//! A violation is a panic, as an assertion of the state machines is: [`crate::seeds`] reports both with their seed.

use std::time::Duration;

pub mod anew;
pub mod calls;
pub mod check;
mod costs;
pub mod counts;
pub mod daemon;
mod formed;
pub mod images;
pub mod judge;
pub mod late;
mod leaving;
pub mod links;
mod locks;
pub mod logs;
pub mod machine;
mod measured;
pub mod net;
mod outgoing;
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
