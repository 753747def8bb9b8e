//! Which pages have changed since the last image, where the kernel cannot tell: a hash of every page, kept in shared memory
//! because the child that writes the image is the one that computes them. Two banks: the last image's, and the one being filled.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

use xxhash_rust::xxh3::xxh3_128;

use crate::arena::{HASHES_BASE, HASHES_SPAN, state};
use crate::page::{PAGE, PAGE_BYTES};
use crate::sys::{self, Errno};

/// A page's address and hash. 128 bits: two contents with the same hash are not to be met.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    page: u64,
    hash: [u64; 2],
}

/// What stands before the banks.
#[repr(C)]
struct Head {
    /// The image each bank belongs to; 0: none.
    image: [AtomicU64; 2],
    /// Entries in it.
    used: [AtomicU64; 2],
    /// The bank that was filled last.
    last: AtomicU32,
}

const HEAD_SPAN: u64 = PAGE;
/// Most pages of a process for which hashes are kept: 64 GiB of memory. With more, every image is whole.
const MAX_PAGES: u64 = 16 << 20;
const BANK_SPAN: u64 = MAX_PAGES * size_of::<Entry>() as u64;
const _: () = assert!(HEAD_SPAN + 2 * BANK_SPAN <= HASHES_SPAN && size_of::<Head>() as u64 <= HEAD_SPAN);

fn head() -> &'static Head {
    // SAFETY: callers have called `begin`; zeroes are valid.
    unsafe { &*(HASHES_BASE as *const Head) }
}

/// Maps the banks unless they are there.
pub fn begin() -> Result<(), Errno> {
    if state().tracker.load(Relaxed) != sys::getpid() {
        end(); // Of the process that this one was forked from.
    }
    if state().hashes.load(Relaxed) == 0 {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: NOREPLACE: it hits nothing that is in use.
        unsafe { sys::mmap(HASHES_BASE, HASHES_SPAN, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) }?;
        state().hashes.store(1, Relaxed);
        state().tracker.store(sys::getpid(), Relaxed);
    }
    Ok(())
}

/// Gives the banks back.
pub fn end() {
    if state().hashes.swap(0, Relaxed) == 1 {
        // SAFETY: no writer is at work between checkpoints.
        let _ = unsafe { sys::munmap(HASHES_BASE, HASHES_SPAN) };
    }
}

/// The image that the last complete bank belongs to; 0: there is none.
#[must_use]
pub fn image() -> u64 {
    if state().tracker.load(Relaxed) != sys::getpid() {
        end(); // Of the process that this one was forked from.
    }
    if state().hashes.load(Relaxed) == 0 {
        return 0;
    }
    head().image[head().last.load(Acquire) as usize & 1].load(Acquire)
}

/// Compares the pages of one image with those of the last, in ascending order.
pub struct Comparison {
    old: &'static [Entry],
    new: &'static mut [Entry],
    bank: usize,
    used: usize,
    full: bool,
}

/// Begins a comparison. With `fresh`, no page has been seen before.
///
/// # Safety
/// `begin` was called, and no other comparison is going on.
pub unsafe fn compare(fresh: bool) -> Comparison {
    let last = head().last.load(Acquire) as usize & 1;
    let bank = 1 - last;
    head().image[bank].store(0, Release);
    let at = |bank: usize| (HASHES_BASE + HEAD_SPAN + bank as u64 * BANK_SPAN) as *mut Entry;
    let known = if fresh { 0 } else { head().used[last].load(Acquire).min(MAX_PAGES) as usize };
    // SAFETY: the banks are mapped and apart; the caller promises to be the only one.
    let (old, new) =
        unsafe { (core::slice::from_raw_parts(at(last), known), core::slice::from_raw_parts_mut(at(bank), MAX_PAGES as usize)) };
    Comparison { old, new, bank, used: 0, full: false }
}

impl Comparison {
    /// Notes the content of a page; true: it was the same in the last image.
    pub fn same(&mut self, page: u64, content: &[u8; PAGE_BYTES]) -> bool {
        let hash = xxh3_128(content);
        let entry = Entry { page, hash: [hash as u64, (hash >> 64) as u64] };
        match self.new.get_mut(self.used) {
            Some(free) => {
                *free = entry;
                self.used += 1;
            }
            None => self.full = true,
        }
        let passed = self.old.iter().take_while(|old| old.page < page).count();
        self.old = &self.old[passed..];
        self.old.first().is_some_and(|old| old.page == page && old.hash == entry.hash)
    }

    /// The image is whole: the next one may build on it.
    pub fn finish(self, image: u64) {
        if !self.full {
            head().used[self.bank].store(self.used as u64, Relaxed);
            head().image[self.bank].store(image, Release);
            head().last.store(self.bank as u32, Release);
        }
    }
}
