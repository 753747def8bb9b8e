//! The checkpoint engine, usable alone: saves and restores a running process from inside, without root.
//!
//! `image` is the format.
#![warn(missing_docs)]
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("radic-ckpt saves registers, page tables and system calls of x86-64 Linux: no other platform is supported");

mod crc;
pub mod image;
