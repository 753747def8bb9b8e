//! Blocks that are too large for the heap: the outbox, and what an image has of it. Each is a mapping of its own, at a fixed far address that no block had before, and is unmapped when it
//! is freed.
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::PAGE;
use crate::lock::Lock;

/// Where they lie: above the heap, below what `ckpt/src/arena.rs` uses.
pub(super) const BASE: usize = 0x3b20_0000_0000;
const END: usize = 0x3c00_0000_0000;
/// What is larger lies here.
const LARGEST_IN_HEAP: usize = 128 << 20;
/// Of addresses: that of a huge page.
const ALIGN: usize = 2 << 20;

/// The address of the next block.
pub(super) static NEXT: Lock<usize> = Lock::new(BASE);

/// Whether such a block lies here.
pub(super) fn is_apart(layout: Layout) -> bool {
    layout.size() > LARGEST_IN_HEAP && layout.align() <= PAGE
}

/// A block of zeroes. Null: there is no such memory.
pub(super) fn take(layout: Layout) -> *mut u8 {
    let mut next = NEXT.lock();
    let Some(end) = next.checked_add(layout.size()).and_then(|end| end.checked_next_multiple_of(ALIGN)) else {
        return ptr::null_mut();
    };
    if end > END {
        return ptr::null_mut();
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: NOREPLACE: it hits nothing that is in use.
    let mapped =
        unsafe { mmap_anonymous(ptr::without_provenance_mut(*next), layout.size(), ProtFlags::READ | ProtFlags::WRITE, flags) };
    mapped.map_or(ptr::null_mut(), |block| {
        *next = end;
        block.cast()
    })
}

/// # Safety
/// The block is one of [`take`] of the same layout, and not in use any more.
pub(super) unsafe fn give(block: *mut u8, layout: Layout) {
    // SAFETY: a mapping of its own, which the caller gives up. If it fails it is merely kept.
    _ = unsafe { munmap(block.cast(), layout.size()) };
}
