//! Deterministic simulation (ARCHITECTURE.md: state machines take events and time as arguments and return actions, so one seed repeats a whole cluster).
//!
//! ```text
//! cargo run --release -p radic-sim -- --seeds 1..10000       # or: make sim SEEDS=1..10000
//! cargo run --release -p radic-sim -- --seed 4711 --trace    # one of them, with its plan and everything that happens
//! ```
//!
//! Each seed is two clusters ([`cluster`]). There are real protectors (membership, node, store, log server), real observers and links with a small program in each rank, and a
//! terminal; pretended are time, network, disks and processes. In the first cluster machines are switched off, stand still, are cut off and come back, daemons die or hang,
//! ranks crash, connections break with any part of what was on the way delivered, links and disks are slow, images are damaged: at times that the seed says, or after events.
//! The second one is small, and its ranks crash and its connections break again and again.
//!
//! Beside these, [`scale`] measures clusters of thousands of protectors, without faults of the network and without checkers.
//!
//! Jobs are suspended and resumed, too.
//!
//! Not simulated: the daemon's sockets and the library's system calls (here are other drivers of the same machines), and PMI. Scenarios on the real
//! thing are in `tests/tests`.
#![forbid(unsafe_code)]

pub mod app;
pub mod cluster;
pub mod dice;
pub mod node;
pub mod scale;
pub mod seeds;
