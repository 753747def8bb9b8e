//! The checkpoint engine, usable alone: saves and restores a running process from inside, without root.
//!
//! - `image`: the format. No unsafe, no I/O but through `std::io::Read`.
//! - `arena`, `sys`, `stop`, `gather`, `pages`, `save`: inside a program, while it is stopped. No allocation, no lock, no libc.
//! - `launch`: the library's constructor. `restart`: the way back after the restorer (`restorer/`, a program of its own).
//! - `control`: from outside, for the command line and the daemon.
//! - `trusted`: the users that images may belong to. `files`: the same for the files that a restored process opens again.
//!
//! Unsafe code is denied except in the modules marked so here: those that talk to the kernel or handle the program's memory as it is.
#![warn(missing_docs)]
#![deny(unsafe_code)]
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("radic-ckpt saves registers, page tables and system calls of x86-64 Linux: no other platform is supported");

#[allow(unsafe_code)]
mod arena;
#[allow(unsafe_code)]
mod build;
#[allow(unsafe_code)]
pub mod control;
#[allow(unsafe_code)]
mod counter;
#[allow(unsafe_code)]
mod crc;
#[allow(unsafe_code)]
pub mod death;
mod dense;
#[allow(unsafe_code)]
mod describe;
#[allow(unsafe_code)]
mod files;
#[allow(unsafe_code)]
mod gather;
#[allow(unsafe_code)]
mod handed;
#[allow(unsafe_code)]
mod hashes;
mod hooks;
#[allow(unsafe_code)]
mod identity;
pub mod image;
#[cfg(test)]
#[allow(unsafe_code)]
mod increments;
#[allow(unsafe_code)]
mod interrupted;
#[allow(unsafe_code)]
mod keeper;
#[allow(unsafe_code)]
pub mod launch;
mod maps;
#[allow(unsafe_code)]
mod output;
#[allow(unsafe_code)]
mod owners;
mod page;
#[allow(unsafe_code)]
mod pages;
#[allow(dead_code, reason = "the restorer, which is built from the same file, needs more of it")]
mod plan;
mod refusal;
mod request;
#[allow(unsafe_code)]
mod restart;
#[allow(unsafe_code)]
mod rseq;
#[allow(unsafe_code)]
mod save;
#[allow(unsafe_code)]
mod serve;
#[allow(unsafe_code)]
mod sigaction;
#[allow(unsafe_code)]
mod signals;
mod sink;
#[allow(unsafe_code)]
mod stop;
mod stretches;
#[allow(unsafe_code)]
mod sys;
mod table;
#[allow(unsafe_code)]
mod track;
pub mod trusted;
#[allow(unsafe_code)]
mod waits;

pub use arena::leave_out;
pub use death::settled;
pub use hooks::{Hooks, Nudged, Told, Wanted, set_hooks};
pub use interrupted::indirect_syscall;
pub use refusal::Refusal;
pub use request::{Mode, Request, Tracking};
pub use restart::{is_alone, launcher};
pub use save::{Outcome, checkpoint, nudge_self};
pub use sigaction::return_from_signal;
pub use sink::Through;
