//! Blocks that are too large for the heap: the outbox, and what an image has of it. Each block is its own mapping at a fixed far
//! address. Freeing unmaps it, and a later block may reuse the address.
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::lock::Lock;

/// Largest alignment that a block can have: a page.
pub(super) const PAGE: usize = 4096;
/// Where they lie: above the heap, below what `ckpt/src/arena.rs` uses.
pub(super) const BASE: usize = 0x3b20_0000_0000;
const END: usize = 0x3c00_0000_0000;
/// What is larger lies here.
const LARGEST_IN_HEAP: usize = 128 << 20;
/// Of addresses: that of a huge page.
const ALIGN: usize = 2 << 20;
/// Gaps between blocks that are remembered. There are few blocks, so more of them would have to be freed before others that came later.
const GAPS: usize = 16;

/// Which addresses have no block.
pub(super) struct Free {
    /// All from here on.
    next: usize,
    /// Start and length of gaps before that; a length of 0: none.
    gaps: [(usize, usize); GAPS],
}

pub(super) static FREE: Lock<Free> = Lock::new(Free { next: BASE, gaps: [(0, 0); GAPS] });

impl Free {
    /// Addresses for this many bytes, the first of a gap if there is one. None: there are no more.
    fn take(&mut self, length: usize) -> Option<usize> {
        if let Some((start, left)) = self.gaps.iter_mut().find(|(_, left)| *left >= length) {
            (*start, *left) = (*start + length, *left - length);
            return Some(*start - length);
        }
        let end = self.next.checked_add(length).filter(|end| *end <= END)?;
        Some(std::mem::replace(&mut self.next, end))
    }

    /// Takes them back. Gaps that meet become one.
    fn give(&mut self, (mut start, mut length): (usize, usize)) {
        while let Some(gap) = self.gaps.iter_mut().find(|gap| gap.1 > 0 && (gap.0 + gap.1 == start || start + length == gap.0)) {
            (start, length) = (start.min(gap.0), length + gap.1);
            gap.1 = 0;
        }
        if start + length == self.next {
            self.next = start;
        } else if let Some(none) = self.gaps.iter_mut().find(|(_, left)| *left == 0) {
            *none = (start, length);
        }
    }
}

/// Whether such a block lies here.
pub(super) fn is_apart(layout: Layout) -> bool {
    layout.size() > LARGEST_IN_HEAP && layout.align() <= PAGE
}

/// A block of zeroes. Null: there is no such memory.
pub(super) fn take(layout: Layout) -> *mut u8 {
    let Some(length) = layout.size().checked_next_multiple_of(ALIGN) else { return ptr::null_mut() };
    let mut free = FREE.lock();
    let Some(start) = free.take(length) else { return ptr::null_mut() };
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: NOREPLACE: it hits nothing that is in use.
    let mapped = unsafe { mmap_anonymous(ptr::without_provenance_mut(start), length, ProtFlags::READ | ProtFlags::WRITE, flags) };
    mapped.map_or_else(
        |_| {
            free.give((start, length));
            ptr::null_mut()
        },
        |block| block.cast(),
    )
}

/// # Safety
/// The block is one of [`take`] of the same layout, and not in use any more.
pub(super) unsafe fn give(block: *mut u8, layout: Layout) {
    let length = layout.size().next_multiple_of(ALIGN);
    let mut free = FREE.lock();
    // SAFETY: a mapping of its own, which the caller gives up. If it fails it is merely kept.
    if unsafe { munmap(block.cast(), length) }.is_ok() {
        free.give((block.addr(), length));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_are_used_again() {
        let mut free = Free { next: BASE, gaps: [(0, 0); GAPS] };
        let blocks = [1, 2, 3, 4].map(|length| (free.take(length * ALIGN).unwrap(), length * ALIGN));
        free.give(blocks[1]);
        assert_eq!(free.take(ALIGN), Some(blocks[1].0), "in the gap");
        free.give((blocks[1].0, ALIGN));
        free.give(blocks[2]);
        assert_eq!(free.take(5 * ALIGN), Some(blocks[1].0), "gaps that meet are one");
        free.give((blocks[1].0, 5 * ALIGN));
        [blocks[3], blocks[0]].into_iter().for_each(|block| free.give(block));
        assert_eq!(free.next, BASE);
        assert_eq!(free.take(END - BASE + 1), None);
    }

    proptest! {
        /// Whatever is taken and given back, blocks have no address in common, and when all are given back all is free.
        #[test]
        fn no_two_blocks_have_an_address_in_common(steps in prop::collection::vec((any::<bool>(), 1usize..9, any::<usize>()), 0..60)) {
            let mut free = Free { next: BASE, gaps: [(0, 0); GAPS] };
            let mut blocks: Vec<(usize, usize)> = Vec::new();
            for (takes, length, pick) in steps {
                if takes || blocks.is_empty() {
                    // Of as many blocks all gaps are remembered.
                    if blocks.len() < GAPS {
                        let start = free.take(length * ALIGN).unwrap();
                        prop_assert!(blocks.iter().all(|(other, long)| start + length * ALIGN <= *other || *other + long <= start));
                        blocks.push((start, length * ALIGN));
                    }
                } else {
                    let block = blocks.swap_remove(pick % blocks.len());
                    free.give(block);
                }
            }
            blocks.into_iter().for_each(|block| free.give(block));
            prop_assert_eq!(free.next, BASE);
        }
    }
}
