//! Which pages of a region hold something, and which of them were written to: PAGEMAP_SCAN, or /proc/self/pagemap on kernels before
//! 6.7, which do not know the latter.

use crate::page::PAGE;
use crate::sys::{self, Answer, Errno, call};

/// Consecutive pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First address.
    pub start: u64,
    /// First address after them.
    pub end: u64,
    /// The kernel's categories: WRITTEN, or not; and HIDDEN, TRACKED.
    pub categories: u64,
}

impl Extent {
    /// Is it without PROT_READ?
    #[must_use]
    pub fn hidden(&self) -> bool {
        self.categories & HIDDEN != 0
    }

    /// Will the kernel tell whether it is written to from now on?
    #[must_use]
    pub fn tracked(&self) -> bool {
        self.categories & TRACKED != 0
    }

    /// Is it as it was in the last image?
    #[must_use]
    pub fn kept(&self) -> bool {
        self.categories & WRITTEN == 0
    }
}

/// Entries of /proc/self/pagemap that are read at once: 8 bytes each.
const AT_ONCE: usize = 512;
const PAGEMAP_SCAN: u64 = 0xc060_6610;
/// PM_SCAN_WP_MATCHING.
const PROTECT: u64 = 1;
/// PM_SCAN_CHECK_WPASYNC.
const MUST_BE_TRACKED: u64 = 2;
/// Written to since the page was protected. Pages that are not protected always are.
pub const WRITTEN: u64 = 2;
/// Not the kernel's: pages of a region without PROT_READ.
pub const HIDDEN: u64 = 1 << 63;
/// Not the kernel's: pages that were protected just now.
pub const TRACKED: u64 = 1 << 62;
const FILE: u64 = 4;
const PRESENT: u64 = 8;
const SWAPPED: u64 = 16;
const PFNZERO: u64 = 32;
const GUARD: u64 = 256;

/// How pages are looked for.
pub struct Scanner {
    fd: i32,
    scan: bool,
    /// GUARD, which excludes a page; kernels before 6.15 do not know it.
    guard: u64,
}

/// What PAGEMAP_SCAN shall look for: pages whose categories, those in `inverted` negated, hold all of `mask` and one of `any`; what it reports
/// of each.
struct Query {
    flags: u64,
    inverted: u64,
    mask: u64,
    any: u64,
    report: u64,
}

impl Query {
    /// Pages that hold something, except those of the excluded categories.
    fn content(flags: u64, excluded: u64) -> Self {
        Self { flags, inverted: excluded, mask: excluded, any: PRESENT | SWAPPED, report: WRITTEN }
    }

    /// Pages that were written, and nothing else about them: for exactly this the kernel has a way that takes a seventh of the time. A page that is
    /// not there may count as written, or not.
    fn written() -> Self {
        Self { flags: PROTECT | MUST_BE_TRACKED, inverted: 0, mask: WRITTEN, any: 0, report: WRITTEN }
    }
}

impl Scanner {
    /// Opens /proc/self/pagemap.
    pub fn open() -> Result<Self, Errno> {
        Ok(Self { fd: sys::open(b"/proc/self/pagemap\0", libc::O_RDONLY, 0)?, scan: true, guard: GUARD })
    }

    /// Appends the extents of private pages in `start..end` to `out` from `used` on, all as written; gives how many entries are used then.
    /// `file`: it is a mapping of a file, whose own pages do not count. (Looking for them takes most of the time.)
    pub fn extents(&mut self, start: u64, end: u64, file: bool, out: &mut [Extent], used: usize) -> Answer {
        if self.scan {
            let excluded = PFNZERO | self.guard | if file { FILE } else { 0 };
            match self.scan_ioctl(Query::content(0, excluded), start, end, out, used) {
                Err(Errno(libc::EINVAL)) if self.guard != 0 => {
                    self.guard = 0;
                    return self.extents(start, end, file, out, used);
                }
                Err(Errno(libc::ENOTTY | libc::EINVAL)) => self.scan = false,
                result => return result,
            }
        }
        self.read_pagemap(start, end, out, used)
    }

    /// Like `extents`, for a mapping of no file that is tracked: tells written pages from kept ones, and protects them all anew. EPERM: it is not
    /// tracked.
    pub fn changes(&mut self, start: u64, end: u64, out: &mut [Extent], used: usize) -> Answer {
        match self.scan_ioctl(Query::content(PROTECT | MUST_BE_TRACKED, PFNZERO | self.guard), start, end, out, used) {
            Err(Errno(libc::EINVAL)) if self.guard != 0 => {
                self.guard = 0;
                self.changes(start, end, out, used)
            }
            result => result,
        }
    }

    /// Like `changes`, for dense memory that was confirmed: every page of it is there, and those that are not written are kept.
    pub fn changes_of_dense(&mut self, start: u64, end: u64, out: &mut [Extent], used: usize) -> Answer {
        let found = self.scan_ioctl(Query::written(), start, end, out, used)?;
        name_kept(start, end, out, used, found)
    }

    /// The guard pages in `start..end`, into the front of `out`; how many extents these are.
    pub fn guards(&mut self, start: u64, end: u64, out: &mut [Extent]) -> Answer {
        if !self.scan || self.guard == 0 {
            return Ok(0); // This kernel has none.
        }
        let query = Query { flags: 0, inverted: 0, mask: GUARD, any: GUARD, report: GUARD };
        match self.scan_ioctl(query, start, end, out, 0) {
            Err(Errno(libc::EINVAL | libc::ENOTTY)) => Ok(0),
            result => result,
        }
    }

    fn scan_ioctl(&self, query: Query, start: u64, end: u64, out: &mut [Extent], mut used: usize) -> Answer {
        let mut from = start;
        while from < end {
            let room = &mut out[used..];
            if room.is_empty() {
                return Err(Errno(libc::ENOSPC));
            }
            // size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, anyof, return.
            let mut arg: [u64; 12] = [
                96,
                query.flags,
                from,
                end,
                0,
                room.as_mut_ptr() as u64,
                room.len() as u64,
                0,
                query.inverted,
                query.mask,
                query.any,
                query.report,
            ];
            // SAFETY: the kernel writes extents into the room, and walk_end into the argument.
            let got = unsafe { call!(libc::SYS_ioctl, self.fd, PAGEMAP_SCAN, arg.as_mut_ptr()) }?;
            used += got;
            // walk_end cannot be trusted: after more than 512 extents the kernel (6.18) leaves it at some earlier address although it
            // has gone on to the end. Room left over says that it has.
            if got < room.len() {
                return Ok(used);
            }
            from = room[got - 1].end;
        }
        Ok(used)
    }

    fn read_pagemap(&self, start: u64, end: u64, out: &mut [Extent], mut used: usize) -> Answer {
        let mut words = [0u8; AT_ONCE * 8];
        let mut at = start;
        while at < end {
            let want = (((end - at) / PAGE) as usize).min(AT_ONCE) * 8;
            let have = sys::pread(self.fd, &mut words[..want], at / PAGE * 8)?;
            if have < 8 {
                return Err(Errno(libc::EIO));
            }
            for word in words[..have].as_chunks::<8>().0 {
                let word = u64::from_le_bytes(*word);
                // Bit 63 present, 62 swapped, 61 file page, 58 guard.
                if word >> 62 != 0 && word & (1 << 61 | 1 << 58) == 0 {
                    match out[..used].last_mut() {
                        Some(last) if last.end == at && last.start >= start => last.end += PAGE,
                        _ => {
                            *out.get_mut(used).ok_or(Errno(libc::ENOSPC))? =
                                Extent { start: at, end: at + PAGE, categories: WRITTEN };
                            used += 1;
                        }
                    }
                }
                at += PAGE;
            }
        }
        Ok(used)
    }
}

/// Puts the kept pages of `start..end` between the written ones, which are `out[used..found]`; gives how many entries are used then.
fn name_kept(start: u64, end: u64, out: &mut [Extent], used: usize, found: usize) -> Answer {
    let mut at = start;
    let mut gap_before = |extent: &Extent| {
        assert!(
            extent.start >= at && extent.start < extent.end && extent.end <= end,
            "the kernel names pages that it was asked for, in order"
        );
        core::mem::replace(&mut at, extent.end) < extent.start
    };
    let gaps = out[used..found].iter().filter(|extent| gap_before(extent)).count();
    let all = found + gaps + usize::from(at < end);
    if all > out.len() {
        return Err(Errno(libc::ENOSPC));
    }
    // From the end on: each moves to a place that is free.
    let (mut to, mut above) = (all, end);
    let mut put = |out: &mut [Extent], extent: Extent| {
        to -= 1;
        out[to] = extent;
    };
    for from in (used..found).rev() {
        let written = out[from];
        if written.end < above {
            put(out, Extent { start: written.end, end: above, categories: 0 });
        }
        put(out, written);
        above = written.start;
    }
    if start < above {
        put(out, Extent { start, end: above, categories: 0 });
    }
    assert_eq!(to, used, "as many gaps were filled as were counted");
    Ok(all)
}

impl Drop for Scanner {
    fn drop(&mut self) {
        sys::close(self.fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More extents than the kernel hands over at once.
    const PAGES: u64 = 5000;

    /// Both ways find the same pages: every second page of a mapping written, one read only (the zero page).
    #[test]
    fn both_ways_agree() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let base = unsafe { sys::mmap(0, PAGES * 4096, 3, flags, -1, 0) }.unwrap();
        for page in (0..PAGES).step_by(2) {
            // SAFETY: within the mapping.
            unsafe { ((base + page * 4096) as *mut u8).write_volatile(1) };
        }
        let mut out = [Extent { start: 0, end: 0, categories: 0 }; PAGES as usize];
        let mut scanner = Scanner::open().unwrap();
        let used = scanner.extents(base, base + PAGES * 4096, false, &mut out, 0).unwrap();
        let found: Vec<_> = out[..used].iter().map(|e| (e.start, e.end)).collect();
        scanner.scan = false;
        let used = scanner.extents(base, base + PAGES * 4096, false, &mut out, 0).unwrap();
        let read: Vec<_> = out[..used].iter().map(|e| (e.start, e.end)).collect();
        let expected: Vec<_> = (0..PAGES).step_by(2).map(|p| (base + p * 4096, base + p * 4096 + 4096)).collect();
        assert_eq!((&found, &read), (&expected, &expected));
        // SAFETY: nothing uses it any more.
        unsafe { sys::munmap(base, PAGES * 4096) }.unwrap();
    }

    /// Guard pages are found, and do not count as content. A kernel without them lists none.
    #[test]
    fn guard_pages() {
        // SAFETY: a new mapping.
        let base = unsafe { sys::mmap(0, 8 * 4096, 3, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) }.unwrap();
        // SAFETY: within the mapping; 102 is MADV_GUARD_INSTALL.
        let installed = unsafe {
            ((base + 5 * 4096) as *mut u8).write_volatile(1);
            call!(libc::SYS_madvise, base + 4096, 2 * 4096, 102).is_ok()
        };
        let mut out = [Extent { start: 0, end: 0, categories: 0 }; 8];
        let mut scanner = Scanner::open().unwrap();
        let used = scanner.guards(base, base + 8 * 4096, &mut out).unwrap();
        let found: Vec<_> = out[..used].iter().map(|e| (e.start, e.end)).collect();
        assert_eq!(found, if installed { vec![(base + 4096, base + 3 * 4096)] } else { vec![] });
        let used = scanner.extents(base, base + 8 * 4096, false, &mut out, 0).unwrap();
        assert_eq!(out[..used].iter().map(|e| (e.start, e.end)).collect::<Vec<_>>(), [(base + 5 * 4096, base + 6 * 4096)]);
        // SAFETY: nothing uses it any more.
        unsafe { sys::munmap(base, 8 * 4096) }.unwrap();
    }
}
