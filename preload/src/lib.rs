//! `libradic.so`: what `radic run` puts under a program.
//!
//! From top to bottom; nothing uses what is above it (`tests/src/circles.rs`):
//!
//! - `start`: the constructor. `hooks`: the C library's names, a line or two each, declared by redhook, which finds the functions behind them; `real`:
//!   those that redhook cannot find.
//! - `ops`: what the program's calls do when they are about something of ours. No unsafe code.
//! - `layer`: one process's [`radic_observer::Observer`] and the connections that it drives: it carries out what the state machines decide.
//! - Values, which know nothing of the layer: `channel`, `node`: connections to the protector's log and to its own node; `greeting`, `links`, `sockets`:
//!   between processes; `image`: what images need, which [`radic_ckpt`] makes; `replay`: a restored process that is replayed alone; `output`, `input`,
//!   `pmi`: what else leaves or enters the process; `epolls`, `watches`, `starved`, `polling`: readiness.
//! - What all stand on: `phase`: whether calls are watched; `ending`: the end of a process that cannot go on; `here`: what is kept of the calling thread;
//!   `nudge`, `lock`, `memory`: a heap at a far address; `fds`: what each descriptor is; `sys`: system calls that no hook sees; `signals`; `threads`;
//!   `counters`.
//!
//! Rules inside a user's program: no thread of ours, not its heap, `errno` as the C library leaves it, no panic across the boundary (the library is
//! built with panic = abort), every function behind us found by the constructor. Children run unprotected.
#![deny(unsafe_code)]
#![warn(missing_docs)]

// execve and its kin, syscall, radic_ckpt_save.
extern crate radic_ckpt_preload as _;

mod buffers;
mod callers;
mod calls;
pub mod channel;
mod children;
pub mod counters;
mod ending;
mod ends;
mod epolls;
pub mod fds;
mod greeting;
mod here;
#[allow(unsafe_code)]
pub mod hooks;
mod image;
mod input;
pub mod layer;
mod links;
pub mod lock;
pub mod memory;
pub mod node;
mod nudge;
pub mod ops;
mod output;
mod phase;
mod pmi;
mod pointers;
#[allow(unsafe_code)]
mod polling;
pub mod real;
mod replay;
mod signals;
mod sockets;
mod standstill;
#[allow(unsafe_code)]
mod start;
mod starved;
pub mod sys;
#[allow(unsafe_code)]
mod threads;
mod used;
mod watches;
mod yielding;
