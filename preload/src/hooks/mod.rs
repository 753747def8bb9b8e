//! The names that the program calls. Each converts C to Rust and back in a line or two; what happens is in [`crate::ops`]. A call passes through to
//! the next library ([`crate::real`]) when it is about nothing of ours.
//!
//! Safety, for all of them: as for the C library's functions. The program's pointers are trusted as the C library trusts them.
#![allow(clippy::missing_safety_doc, reason = "the module's text says it for all")]
#![allow(missing_docs, reason = "each is the C library's function of the same name")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "in hooks the reason is always the caller's, as the module's text says")]

pub mod descriptor;
pub mod exit;
pub mod identity;
pub mod io;
pub mod mpi;
pub mod poll;
pub mod process;
pub mod socket;
pub mod stdio;

use std::ffi::c_int;

use libc::ssize_t;
use rustix::io::Errno;

use crate::fds::{self, Kind};
use crate::real;

/// Whether calls on `fd` are the observer's business.
fn is_connection(fd: c_int) -> bool {
    matches!(fds::kind(fd), Kind::Connection | Kind::Alias)
}

/// What C makes of a result.
fn finish(result: Result<usize, Errno>) -> ssize_t {
    match result {
        Ok(count) => count as ssize_t,
        Err(error) => {
            real::set_errno(error.raw_os_error());
            -1
        }
    }
}

/// The same for calls that return nothing but success.
fn finish_int<T>(result: Result<T, Errno>, value: impl FnOnce(T) -> c_int) -> c_int {
    match result {
        Ok(it) => value(it),
        Err(error) => {
            real::set_errno(error.raw_os_error());
            -1
        }
    }
}
