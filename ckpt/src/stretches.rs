//! Stretches of dense memory (`dense`).

use crate::table::Table;

/// Most stretches. Beyond them, memory is asked about page by page.
pub const MAX_STRETCHES: usize = 1024;

/// Dense blocks, one after the other.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    /// First address.
    pub start: u64,
    /// First address after them.
    pub end: u64,
}

/// All of them, ascending.
pub type Dense = Table<Stretch, MAX_STRETCHES>;
