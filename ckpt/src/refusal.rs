//! Why a process is not saved.

use crate::sys::Errno;

/// Why a process cannot be saved: what, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What is in the way, in words.
    pub what: &'static str,
    /// A number that belongs to it (descriptor, errno).
    pub number: i32,
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {}", self.what, self.number)
    }
}

impl core::error::Error for Refusal {}

impl Refusal {
    /// A refusal because a system call failed.
    pub fn failed(what: &'static str) -> impl FnOnce(Errno) -> Self {
        move |error| Self { what, number: error.0 }
    }
}
