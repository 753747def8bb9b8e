//! Which pages of a region hold something: PAGEMAP_SCAN, or /proc/self/pagemap on kernels before 6.7.

use crate::sys::{self, Answer, Errno, call};

/// Consecutive pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First address.
    pub start: u64,
    /// First address after them.
    pub end: u64,
    /// The kernel's categories; not used.
    pub categories: u64,
}

const PAGEMAP_SCAN: u64 = 0xc060_6610;
const FILE: u64 = 4;
const PRESENT: u64 = 8;
const SWAPPED: u64 = 16;
const PFNZERO: u64 = 32;
const GUARD: u64 = 256;

/// How pages are looked for.
pub struct Scanner {
    fd: i32,
    scan: bool,
    /// Categories that exclude a page; kernels before 6.15 do not know GUARD.
    excluded: u64,
}

impl Scanner {
    /// Opens /proc/self/pagemap.
    pub fn open() -> Result<Self, Errno> {
        Ok(Self { fd: sys::open(b"/proc/self/pagemap\0", libc::O_RDONLY, 0)?, scan: true, excluded: FILE | PFNZERO | GUARD })
    }

    /// Appends the extents of private pages in `start..end` to `out` from `used` on; gives how many entries are used then.
    pub fn extents(&mut self, start: u64, end: u64, out: &mut [Extent], used: usize) -> Answer {
        if self.scan {
            match self.scan_ioctl(start, end, out, used) {
                Err(Errno(libc::EINVAL)) if self.excluded & GUARD != 0 => {
                    self.excluded &= !GUARD;
                    return self.extents(start, end, out, used);
                }
                Err(Errno(libc::ENOTTY | libc::EINVAL)) => self.scan = false,
                result => return result,
            }
        }
        self.read_pagemap(start, end, out, used)
    }

    fn scan_ioctl(&self, start: u64, end: u64, out: &mut [Extent], mut used: usize) -> Answer {
        let mut from = start;
        while from < end {
            let room = &mut out[used..];
            if room.is_empty() {
                return Err(Errno(libc::ENOSPC));
            }
            // size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, anyof, return.
            let excluded = self.excluded;
            let mut arg: [u64; 12] = [
                96,
                0,
                from,
                end,
                0,
                room.as_mut_ptr() as u64,
                room.len() as u64,
                0,
                excluded,
                excluded,
                PRESENT | SWAPPED,
                PRESENT,
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
        let mut words = [0u8; 4096];
        let mut at = start;
        while at < end {
            let want = (((end - at) / 4096) as usize).min(512) * 8;
            let have = sys::pread(self.fd, &mut words[..want], at / 4096 * 8)?;
            if have < 8 {
                return Err(Errno(libc::EIO));
            }
            for word in words[..have].as_chunks::<8>().0 {
                let word = u64::from_le_bytes(*word);
                // Bit 63 present, 62 swapped, 61 file page, 58 guard.
                if word >> 62 != 0 && word & (1 << 61 | 1 << 58) == 0 {
                    match out[..used].last_mut() {
                        Some(last) if last.end == at && last.start >= start => last.end += 4096,
                        _ => {
                            *out.get_mut(used).ok_or(Errno(libc::ENOSPC))? = Extent { start: at, end: at + 4096, categories: 0 };
                            used += 1;
                        }
                    }
                }
                at += 4096;
            }
        }
        Ok(used)
    }
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
        let used = scanner.extents(base, base + PAGES * 4096, &mut out, 0).unwrap();
        let found: Vec<_> = out[..used].iter().map(|e| (e.start, e.end)).collect();
        scanner.scan = false;
        let used = scanner.extents(base, base + PAGES * 4096, &mut out, 0).unwrap();
        let read: Vec<_> = out[..used].iter().map(|e| (e.start, e.end)).collect();
        let expected: Vec<_> = (0..PAGES).step_by(2).map(|p| (base + p * 4096, base + p * 4096 + 4096)).collect();
        assert_eq!((&found, &read), (&expected, &expected));
        // SAFETY: nobody uses it any more.
        unsafe { sys::munmap(base, PAGES * 4096) }.unwrap();
    }
}
