//! The checkpoint engine, usable alone: saves and restores a running process from inside, without root.
//!
//! - `image`: the format. No unsafe, no I/O but through `std::io::Read`.
//! - `arena`, `sys`, `stop`, `gather`, `pages`, `save`: inside a program, while it is stopped. No allocation, no lock, no libc.
//! - `launch`: the library's constructor. `restart`: the way back after the restorer (`restorer/`, a program of its own).
//! - `control`: from outside, for the command line and the daemon.
#![warn(missing_docs)]
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("radic-ckpt saves registers, page tables and system calls of x86-64 Linux: no other platform is supported");

mod arena;
pub mod control;
mod crc;
mod gather;
mod identity;
pub mod image;
mod keeper;
pub mod launch;
mod maps;
mod pages;
#[allow(dead_code, reason = "the restorer, which is built from the same file, needs more of it")]
mod plan;
mod restart;
mod save;
mod stop;
mod sys;

pub use gather::Refusal;
pub use save::{Hooks, Mode, Outcome, checkpoint, set_hooks};
