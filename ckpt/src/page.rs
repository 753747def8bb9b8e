//! Pages of memory.

/// Size of a page in bytes: the only one x86-64 programs see.
pub(crate) const PAGE: u64 = 4096;
/// The same as a length of what is in memory.
pub(crate) const PAGE_BYTES: usize = PAGE as usize;
