//! Increments against the memory itself, at random: pages are written, read, given up, guarded, hidden, moved and replaced, in blocks and one by one, in huge
//! pages and small ones; after each checkpoint the images together must say what there is. What there is is asked of the kernel page by page.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use crate::dense::{self, BLOCK};
use crate::maps::{self, Line};
use crate::pages::{Extent, Scanner};
use crate::stretches::Dense;
use crate::sys::{self, Errno, call};
use crate::{arena, describe, track};

const PAGE: u64 = 4096;
/// Nothing else is mapped there.
const BASE: u64 = 0x2000_0000_0000;
/// In its second half there may be huge pages.
const SPAN: u64 = 8 * BLOCK;
/// Where memory is moved to, and from there back.
const ASIDE: u64 = BASE + (64 << 30);
const STEPS: usize = 40;
const SEEDS: u64 = 4;
const GUARD_INSTALL: i32 = 102;
const GUARD_REMOVE: i32 = 103;
const COLLAPSE: i32 = 25;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }

    /// Some pages, or a few blocks.
    fn range(&mut self) -> Range<u64> {
        let (unit, most) = if self.below(2) == 0 { (PAGE, 40) } else { (BLOCK, 3) };
        let start = self.below(SPAN / unit) * unit;
        BASE + start..BASE + (start + (1 + self.below(most)) * unit).min(SPAN)
    }
}

fn map(range: &Range<u64>) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: memory of this test only.
    unsafe { sys::mmap(range.start, range.end - range.start, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) }.unwrap();
}

fn advise(range: &Range<u64>, advice: i32) -> Result<(), Errno> {
    // SAFETY: memory of this test only.
    unsafe { call!(libc::SYS_madvise, range.start, range.end - range.start, advice) }.map(drop)
}

fn protect(range: &Range<u64>, prot: i32) {
    // SAFETY: memory of this test only.
    unsafe { call!(libc::SYS_mprotect, range.start, range.end - range.start, prot) }.unwrap();
}

fn move_to(from: u64, to: u64, len: u64) {
    // SAFETY: memory of this test only.
    unsafe { call!(libc::SYS_mremap, from, len, len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, to) }.unwrap();
}

/// The mappings within the test's memory.
fn with_lines(mut each: impl FnMut(&Line<'_>)) {
    let text = std::fs::read("/proc/self/maps").unwrap();
    let within = |line: &Line<'_>| line.start >= BASE && line.end <= BASE + SPAN;
    maps::lines(&text).filter_map(maps::parse).filter(within).for_each(|line| each(&line));
}

/// Pages and the hashes of their contents: what a chain of images says.
type Image = BTreeMap<u64, u64>;

struct Program {
    scanner: Scanner,
    memory: i32,
    dense: Box<Dense>,
    room: Vec<Extent>,
    image: Image,
    /// Pages that increments have kept from dense memory.
    kept_dense: u64,
}

impl Program {
    fn begin() -> Self {
        map(&(BASE..BASE + SPAN));
        advise(&(BASE..BASE + SPAN / 2), libc::MADV_NOHUGEPAGE).unwrap();
        advise(&(BASE + SPAN / 2..BASE + SPAN), libc::MADV_HUGEPAGE).unwrap();
        // SAFETY: zeroes are an empty list.
        let dense = unsafe { Box::<Dense>::new_zeroed().assume_init() };
        Self {
            scanner: Scanner::open().unwrap(),
            memory: sys::open(b"/proc/self/mem\0", libc::O_RDONLY, 0).unwrap(),
            dense,
            room: vec![Extent { start: 0, end: 0, categories: 0 }; 2 * (SPAN / PAGE) as usize],
            image: Image::new(),
            kept_dense: 0,
        }
    }

    fn guards(&mut self) -> BTreeSet<u64> {
        let found = self.scanner.guards(BASE, BASE + SPAN, &mut self.room).unwrap();
        self.room[..found].iter().flat_map(|extent| (extent.start..extent.end).step_by(PAGE as usize)).collect()
    }

    /// The pages of a range that may be touched.
    fn open(&mut self, range: &Range<u64>) -> Vec<u64> {
        let (guards, mut open) = (self.guards(), Vec::new());
        with_lines(|line| {
            if line.prot & 3 == 3 {
                open.extend((line.start.max(range.start)..line.end.min(range.end)).step_by(PAGE as usize));
            }
        });
        open.retain(|page| !guards.contains(page));
        open
    }

    fn write(&mut self, range: &Range<u64>, every: usize, value: u64) {
        for page in self.open(range).into_iter().step_by(every) {
            // SAFETY: memory of this test only, readable and writable.
            unsafe { ((page + 8 * (value % 512)) as *mut u64).write_volatile(value) };
        }
    }

    fn act(&mut self, random: &mut Random) {
        let range = random.range();
        let len = range.end - range.start;
        match random.below(16) {
            0..=3 => self.write(&range, 1 + random.below(30) as usize, random.0),
            4 | 5 => self.write(&(BASE..BASE + SPAN), 1 + random.below(100) as usize, random.0),
            6 => self.write(&range, 1, 0),
            7 | 8 => advise(&range, libc::MADV_DONTNEED).unwrap(),
            9 => self.open(&range).into_iter().for_each(|page| {
                // SAFETY: memory of this test only, readable.
                std::hint::black_box(unsafe { (page as *const u64).read_volatile() });
            }),
            // Kernels before 6.13 have no guards.
            10 => drop(advise(&range, GUARD_INSTALL)),
            11 => drop(advise(&(BASE..BASE + SPAN), GUARD_REMOVE)),
            12 => protect(&range, random.below(4) as i32 & 3),
            13 => protect(&(BASE..BASE + SPAN), libc::PROT_READ | libc::PROT_WRITE),
            14 if random.below(2) == 0 => map(&range),
            14 => drop(advise(&range, COLLAPSE)),
            _ if random.below(3) > 0 => self.forked(&range),
            _ => {
                // Only a whole mapping can be moved.
                let mut whole = true;
                with_lines(|line| {
                    whole &=
                        line.end <= range.start || line.start >= range.end || (line.start <= range.start && line.end >= range.end)
                });
                if whole {
                    move_to(range.start, ASIDE, len);
                    move_to(ASIDE, range.start, len);
                }
            }
        }
    }

    /// A child writes to its copy.
    fn forked(&mut self, range: &Range<u64>) {
        let pages = self.open(range);
        // SAFETY: the child touches memory and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                pages.iter().for_each(|page| (*page as *mut u64).write_volatile(1));
                libc::_exit(0);
            }
            assert_eq!(libc::waitpid(child, core::ptr::null_mut(), 0), child);
        }
    }

    fn hash(&self, page: u64) -> u64 {
        let mut bytes = [0; PAGE as usize];
        assert_eq!(sys::pread(self.memory, &mut bytes, page), Ok(bytes.len()));
        xxh3_64(&bytes)
    }

    /// A checkpoint as `save` makes it; `image` is what the images say then.
    fn checkpoint(&mut self) {
        dense::confirm(&mut self.dense);
        let guards = self.guards();
        let is_dense = |dense: &Dense, page: u64| dense::pieces(dense, page, page + PAGE).any(|(_, _, dense)| dense);
        assert!(guards.iter().all(|guard| !is_dense(&self.dense, *guard)), "a guard in dense memory");
        let (mut named, mut used) = (Vec::new(), 0);
        with_lines(|line| {
            let end = describe::changes(&mut self.scanner, line, &self.dense, &mut self.room, used).unwrap();
            assert!(self.room[used..end].iter().all(|extent| extent.start >= line.start && extent.end <= line.end));
            used = end;
        });
        named.extend_from_slice(&self.room[..used]);
        assert!(named.is_sorted_by(|a, b| a.end <= b.start) && named.iter().all(|extent| extent.start < extent.end), "ascending");
        let mut image = Image::new();
        for extent in &named {
            for page in (extent.start..extent.end).step_by(PAGE as usize) {
                let kept = || *self.image.get(&page).unwrap_or_else(|| panic!("page {page:x} is kept, and was not there"));
                self.kept_dense += u64::from(extent.kept() && is_dense(&self.dense, page));
                image.insert(page, if extent.kept() { kept() } else { self.hash(page) });
            }
        }
        self.image = image;
        dense::note(&mut self.dense, &named);
    }

    /// Do the images say what there is? Each page that holds something is in them, as it is; what else is in them holds zeroes.
    fn check(&mut self, what: &str) {
        let mut left = self.image.clone();
        let found = self.scanner.extents(BASE, BASE + SPAN, false, &mut self.room, 0).unwrap();
        for page in self.room[..found].iter().flat_map(|extent| (extent.start..extent.end).step_by(PAGE as usize)) {
            let hash = self.hash(page);
            assert_eq!(left.remove(&page), Some(hash), "{what}: page {page:x}");
        }
        let zero = xxh3_64(&[0; PAGE as usize]);
        let guards = self.guards();
        for (page, hash) in left {
            assert!(hash == zero && !guards.contains(&page), "{what}: page {page:x} is in the image, and not there any more");
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        sys::close(self.memory);
        // SAFETY: memory of this test only.
        unsafe { sys::munmap(BASE, SPAN) }.unwrap();
    }
}

#[test]
fn images_say_what_there_is() {
    arena::reserve_for_tests();
    if track::begin().is_err() {
        println!("this kernel does not track changes");
        return;
    }
    let mut kept_dense = 0;
    for seed in 1..=SEEDS {
        let (mut random, mut program) = (Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)), Program::begin());
        program.write(&(BASE..BASE + SPAN), 1, seed);
        for step in 0..STEPS {
            (0..random.below(4)).for_each(|_| program.act(&mut random));
            program.checkpoint();
            program.check(&format!("seed {seed}, step {step}"));
            // Dense again, now and then.
            if random.below(6) == 0 {
                program.write(&(BASE..BASE + SPAN), 1, random.0);
            }
        }
        kept_dense += program.kept_dense;
    }
    track::end();
    assert!(kept_dense > SEEDS * SPAN / PAGE, "hardly any memory was dense");
}
