//! The library's own heap, so that none of its memory is the program's: whatever the library allocates must move nothing of what the program
//! allocates (facts/replay.md: heap history is what makes Open MPI's bytes differ). It is one mapping at a fixed far address, reserved at
//! the first use, and travels in the image like the rest of the process.
//!
//! Blocks come in size classes, four to a doubling; a freed block waits in its class's list for the next of its size and is never joined with
//! others. Large ones give their pages back meanwhile. So memory is bounded by the sum of the classes' peaks, and after the start the library allocates
//! nearly nothing (`observer/tests/no_allocation.rs`). No call of the C library, no thread-local.
//!
//! A signal's handler may allocate if [`is_held`] says that no thread is in here: it may have interrupted just that one, and would wait for itself. The
//! engine itself needs nothing of this for a checkpoint; what the layer does before and after it does.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use crate::lock::{Guard, Lock};

/// Where it lies: below what `ckpt/src/arena.rs` uses, above the counters (`radic_wire::process::counters`).
pub const BASE: usize = 0x3b10_0000_0000;
/// Bytes that are asked for; where the system allows no such reservation (strict accounting, RLIMIT_AS), the next smaller.
const SPANS: [usize; 3] = [4 << 30, 1 << 30, 256 << 20];
/// Alignment that every block has.
const GRAIN: usize = 16;
/// Largest alignment that a block can have: a page.
const PAGE: usize = 4096;
/// Freed blocks of at least so many bytes give their pages back.
const LARGE: usize = 128 << 10;
/// Sizes of 16, 32, 48, 64, then four to each doubling up to 4 GiB.
const CLASSES: usize = 4 + 4 * 26;

/// The class of blocks of at least `size` bytes (not 0); none: it is too large for this heap.
fn class_of(size: usize) -> Option<usize> {
    let last = size.wrapping_sub(1);
    let class = if last < 64 {
        last / GRAIN
    } else {
        let shift = last.ilog2() as usize;
        4 + (shift - 6) * 4 + (last >> (shift - 2) & 3)
    };
    (class < CLASSES).then_some(class)
}

/// Bytes of a block.
fn size_of_class(class: usize) -> usize {
    match class {
        0..4 => (class + 1) * GRAIN,
        _ => {
            let (shift, quarter) = ((class - 4) / 4 + 6, (class - 4) % 4);
            (1 << shift) + (quarter + 1) * (1 << (shift - 2))
        }
    }
}

/// The smallest class whose blocks suit `layout`: blocks are as aligned as their size is round, up to a page.
fn class_for(layout: Layout) -> Option<usize> {
    if layout.align() > PAGE {
        return None;
    }
    let first = class_of(layout.size())?;
    (first..CLASSES).find(|class| size_of_class(*class).is_multiple_of(layout.align()))
}

/// First word of a free block.
type Link = *mut c_void;

struct Heap {
    /// First byte that no block has had; 0: nothing is reserved yet.
    next: usize,
    /// First byte after the reserved range.
    end: usize,
    /// Free blocks of each class; null: none.
    free: [Link; CLASSES],
}

// SAFETY: the links point into the mapping, which belongs to no thread.
unsafe impl Send for Heap {}

static HEAP: Lock<Heap> = Lock::new(Heap { next: 0, end: 0, free: [ptr::null_mut(); CLASSES] });

impl Heap {
    fn reserve(&mut self) -> rustix::io::Result<()> {
        if self.next != 0 {
            return Ok(());
        }
        let mut result = Ok(());
        for span in SPANS {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
            let at = ptr::without_provenance_mut(BASE);
            // SAFETY: NOREPLACE: it hits nothing that is in use.
            let mapped = unsafe { mmap_anonymous(at, span, ProtFlags::READ | ProtFlags::WRITE, flags) };
            match mapped {
                Ok(at) => {
                    (self.next, self.end) = (at.addr(), at.addr() + span);
                    return Ok(());
                }
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// A block, and whether all of it but its first word is zero.
    fn take(&mut self, class: usize) -> Option<(*mut u8, bool)> {
        let (size, block) = (size_of_class(class), self.free[class]);
        if !block.is_null() {
            // SAFETY: a free block of ours, whose first word is the link.
            self.free[class] = unsafe { block.cast::<Link>().read() };
            return Some((block.cast(), size >= LARGE));
        }
        self.reserve().ok()?;
        let align = PAGE.min(1 << size.trailing_zeros());
        let start = self.next.next_multiple_of(align);
        self.next = start.checked_add(size).filter(|end| *end <= self.end)?;
        Some((ptr::with_exposed_provenance_mut(start), true))
    }

    /// # Safety
    /// The block is of this class, and nobody uses it any more.
    unsafe fn give(&mut self, block: *mut u8, class: usize) {
        let size = size_of_class(class);
        if size >= LARGE {
            // SAFETY: whole pages of one block, which nobody uses. If it fails they are merely kept.
            let forgotten = unsafe { madvise(block.cast(), size, Advice::LinuxDontNeed) };
            if forgotten.is_err() {
                // SAFETY: the same bytes. Whoever takes the block counts on zeroes.
                unsafe { block.write_bytes(0, size) };
            }
        }
        // SAFETY: every block is large enough for a link, and aligned for it.
        unsafe { block.cast::<Link>().write(self.free[class]) };
        self.free[class] = block.cast();
    }
}

/// Reserves the mapping, for a constructor that wants to say why there is no memory: later, allocation just fails.
pub fn reserve() -> std::io::Result<()> {
    HEAP.lock().reserve().map_err(Into::into)
}

/// Whether a thread, perhaps the calling one, is in the middle of an allocation: then a signal's handler must not make one.
pub fn is_held() -> bool {
    HEAP.is_held()
}

/// Bytes of the mapping that some block has had: a bound on the memory in use.
pub fn used() -> usize {
    HEAP.lock().next.saturating_sub(BASE)
}

/// Keeps everybody out until [`leave`]: around a fork, or a child might inherit a heap in the middle of something.
pub fn enter() {
    let guard: Guard<'_, Heap> = HEAP.lock();
    std::mem::forget(guard);
}

/// Ends what [`enter`] began, in the parent and in the child.
pub fn leave() {
    HEAP.unlock_forgotten();
}

/// The allocator of all Rust code in the library.
#[derive(Debug)]
pub struct Far;

// SAFETY: a block is taken from the list, or from memory that no block has had, under the lock, so it is nobody else's; its class's size is at
// least the layout's, and it is as aligned as its size is round.
unsafe impl GlobalAlloc for Far {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let taken = class_for(layout).and_then(|class| HEAP.lock().take(class));
        taken.map_or(ptr::null_mut(), |(block, _)| block)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let taken = class_for(layout).and_then(|class| HEAP.lock().take(class));
        let Some((block, zero)) = taken else { return ptr::null_mut() };
        let dirty = if zero { layout.size().min(size_of::<Link>()) } else { layout.size() };
        // SAFETY: the block has at least this size.
        unsafe { block.write_bytes(0, dirty) };
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if let Some(class) = class_for(layout) {
            // SAFETY: the caller's promise: it was allocated with this layout, hence of this class.
            unsafe { HEAP.lock().give(block, class) };
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise: `size` is not 0 and does not overflow when it is rounded up to the alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if class_for(wanted) == class_for(layout) {
            return block;
        }
        // SAFETY: both blocks are at least as large as what is copied, and the old one is given up by the caller.
        unsafe {
            let moved = self.alloc(wanted);
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

#[global_allocator]
static ALLOCATOR: Far = Far;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn classes_are_tight_and_in_order() {
        for class in 0..CLASSES {
            let size = size_of_class(class);
            assert_eq!((class_of(size), class_of(size + 1)), (Some(class), (class + 1 < CLASSES).then_some(class + 1)));
            assert!(class == 0 || size <= size_of_class(class - 1) * 2 && size.is_multiple_of(GRAIN));
        }
        assert_eq!(
            (class_of(1), class_of(4 << 30), class_of((4 << 30) + 1), class_of(0)),
            (Some(0), Some(CLASSES - 1), None, None)
        );
        assert_eq!(class_for(Layout::from_size_align(1, 8192).unwrap()), None);
    }

    #[test]
    fn this_test_itself_allocates_there() {
        let block = Box::new([1u8; 100]);
        assert!((BASE..BASE + used()).contains(&block.as_ptr().addr()));
        reserve().unwrap();
    }

    #[test]
    fn large_blocks_come_back_and_are_zero() {
        let layout = Layout::from_size_align(1 << 20, 64).unwrap();
        // SAFETY: each block is used within its size and freed once.
        unsafe {
            let first = ALLOCATOR.alloc(layout);
            first.write_bytes(7, 1 << 20);
            ALLOCATOR.dealloc(first, layout);
            let again = ALLOCATOR.alloc_zeroed(layout);
            assert!(std::slice::from_raw_parts(again, 1 << 20).iter().all(|byte| *byte == 0));
            ALLOCATOR.dealloc(again, layout);
        }
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        let layout = Layout::from_size_align(5 << 30, 16).unwrap();
        // SAFETY: the size is not 0.
        assert!(unsafe { ALLOCATOR.alloc(layout) }.is_null());
    }

    #[test]
    fn threads_get_blocks_of_their_own() {
        std::thread::scope(|scope| {
            for id in 0..4u8 {
                scope.spawn(move || {
                    for round in 0..2_000usize {
                        let mut block = vec![id; 1 + round * 37 % 5_000];
                        block.extend_from_slice(&[id; 100]);
                        assert!(block.iter().all(|byte| *byte == id));
                    }
                });
            }
        });
    }

    proptest! {
        /// Random allocations: aligned, within the mapping, apart from each other, with their contents kept.
        #[test]
        fn blocks_do_not_overlap(steps in prop::collection::vec((0u8..4, 1usize..300_000, 0u32..13, any::<usize>()), 1..80)) {
            let mut live: BTreeMap<usize, (Layout, u8)> = BTreeMap::new();
            for (index, (what, size, align, pick)) in steps.into_iter().enumerate() {
                let mark = index as u8 | 1;
                let layout = Layout::from_size_align(size, 1 << align).unwrap();
                let chosen = live.keys().nth(pick % live.len().max(1)).copied();
                // SAFETY: blocks are used within their sizes; each is freed with the layout that it was allocated with.
                unsafe {
                    match (what, chosen) {
                        (0 | 1, _) | (_, None) => {
                            let zeroed = what == 1;
                            let block = if zeroed { ALLOCATOR.alloc_zeroed(layout) } else { ALLOCATOR.alloc(layout) };
                            prop_assert!(block.addr() >= BASE && block.addr().is_multiple_of(layout.align()));
                            prop_assert!(!zeroed || std::slice::from_raw_parts(block, size).iter().all(|byte| *byte == 0));
                            block.write_bytes(mark, size);
                            live.insert(block.expose_provenance(), (layout, mark));
                        }
                        (2, Some(at)) => {
                            let (old, mark) = live.remove(&at).unwrap();
                            let block = ALLOCATOR.realloc(ptr::with_exposed_provenance_mut(at), old, size);
                            let kept = std::slice::from_raw_parts(block, old.size().min(size));
                            prop_assert!(kept.iter().all(|byte| *byte == mark));
                            block.write_bytes(mark, size);
                            live.insert(block.expose_provenance(), (Layout::from_size_align(size, old.align()).unwrap(), mark));
                        }
                        (_, Some(at)) => {
                            let (old, mark) = live.remove(&at).unwrap();
                            let block: *mut u8 = ptr::with_exposed_provenance_mut(at);
                            prop_assert!(std::slice::from_raw_parts(block, old.size()).iter().all(|byte| *byte == mark));
                            ALLOCATOR.dealloc(block, old);
                        }
                    }
                }
                let mut end = 0;
                for (at, (layout, _)) in &live {
                    prop_assert!(*at >= end, "two blocks overlap");
                    end = at + layout.size();
                }
            }
            for (at, (layout, _)) in live {
                // SAFETY: as above.
                unsafe { ALLOCATOR.dealloc(ptr::with_exposed_provenance_mut(at), layout) };
            }
        }
    }
}
