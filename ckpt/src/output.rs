//! Writes an image: header, metadata, and the pages that were listed. Runs in the program while all its threads wait, in a forked child,
//! or in a child that shares the program's memory and writes a snapshot of it. No allocation, no lock, no libc.

use core::arch::x86_64;
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::Relaxed;

use lz4_flex::block::{CompressTable, compress_into_with_table};

use crate::arena::{self, SNAPSHOT_BASE, SNAPSHOT_SPAN, state};
use crate::hashes::Comparison;
use crate::image::format::{MAX_KEPT_BYTES, MAX_RUN_BYTES};
use crate::image::{Header, ImageWriter};
use crate::page::{PAGE, PAGE_BYTES};
use crate::pages::Extent;
use crate::sink::Target;
use crate::sys::{self, Errno, call};

/// One image to write.
pub struct Job<'a> {
    /// Where to.
    pub to: Target,
    /// What stands in front.
    pub header: Header,
    /// What the process consists of.
    pub meta: &'a [u8],
    /// Its pages, ascending.
    pub extents: &'a [Extent],
    /// Are the pages in the snapshot, one after the other, instead of at their addresses?
    pub snapshot: bool,
    /// Pack pages where it pays.
    pub compress: bool,
    /// Find out by hashes which pages have changed.
    pub comparison: Option<Comparison>,
}

/// What is to be said about a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Data,
    Zero,
    Kept,
}

struct Output {
    writer: ImageWriter<Target>,
    comparison: Option<Comparison>,
    increment: bool,
    compress: bool,
    /// /proc/self/mem, for pages without PROT_READ.
    memory: i32,
}

/// Writes all of it.
pub fn write(job: Job<'_>) -> Result<(), Errno> {
    let writer = ImageWriter::begin(job.to, job.header, job.meta)?;
    let memory = sys::open(b"/proc/self/mem\0", libc::O_RDONLY, 0)?;
    let increment = job.header.parent != 0;
    let mut output = Output { writer, comparison: job.comparison, increment, compress: job.compress, memory };
    let mut taken = 0;
    let result = job.extents.iter().try_for_each(|extent| {
        if increment && extent.kept() {
            return output.kept(extent);
        }
        let from = if job.snapshot { SNAPSHOT_BASE + taken } else { extent.start };
        taken += extent.end - extent.start;
        output.pages(extent, from)
    });
    sys::close(memory);
    result?;
    output.writer.finish()?.0.end()?;
    if let Some(comparison) = output.comparison {
        comparison.finish(job.header.id);
    }
    Ok(())
}

impl Output {
    fn kept(&mut self, extent: &Extent) -> Result<(), Errno> {
        pieces(extent, MAX_KEPT_BYTES as u64).try_for_each(|(at, len)| self.writer.kept(at, len as usize))
    }

    /// Writes the pages of an extent, which are in memory at `from`.
    fn pages(&mut self, extent: &Extent, from: u64) -> Result<(), Errno> {
        let hidden = extent.hidden() && from == extent.start;
        pieces(extent, MAX_RUN_BYTES as u64).try_for_each(|(at, len)| {
            let here = from + (at - extent.start);
            if hidden {
                // SAFETY: the small files of /proc are not in use while pages are written; a run fits.
                let buffer = unsafe { &mut arena::scratch(arena::SCRATCH_SMALL)[..len as usize] };
                read_memory(self.memory, here, buffer)?;
                return self.run(at, buffer);
            }
            // SAFETY: present pages of the program, readable, and no thread changes them now; or pages of the snapshot.
            self.run(at, unsafe { core::slice::from_raw_parts(here as *const u8, len as usize) })
        })
    }

    /// Writes pages, at most a run, as what they are.
    fn run(&mut self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        let (pages, _) = bytes.as_chunks::<PAGE_BYTES>();
        let (mut first, mut class) = (0, None);
        for (index, page) in pages.iter().enumerate() {
            let this = self.classify(at + index as u64 * PAGE, page);
            if class.is_some_and(|class| class != this) {
                self.group(class, at + first as u64 * PAGE, &bytes[first * PAGE_BYTES..index * PAGE_BYTES])?;
                first = index;
            }
            class = Some(this);
        }
        self.group(class, at + first as u64 * PAGE, &bytes[first * PAGE_BYTES..])
    }

    fn classify(&mut self, at: u64, page: &[u8; PAGE_BYTES]) -> Class {
        if self.comparison.as_mut().is_some_and(|comparison| comparison.same(at, page)) && self.increment {
            Class::Kept
        } else if is_zero(page) {
            Class::Zero
        } else {
            Class::Data
        }
    }

    fn group(&mut self, class: Option<Class>, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        match class {
            None => Ok(()),
            Some(Class::Kept) => self.writer.kept(at, bytes.len()),
            Some(Class::Zero) => self.writer.zero(at, bytes.len()),
            Some(Class::Data) => match if self.compress { pack(bytes) } else { None } {
                Some((copy, packed)) => self.writer.lz4(at, copy, packed),
                None => self.writer.raw(at, bytes),
            },
        }
    }
}

/// The parts of an extent that are at most `limit` bytes long: address and length.
fn pieces(extent: &Extent, limit: u64) -> impl Iterator<Item = (u64, u64)> {
    let (start, end) = (extent.start, extent.end);
    (start..end).step_by(limit as usize).map(move |at| (at, (end - at).min(limit)))
}

fn read_memory(memory: i32, at: u64, buffer: &mut [u8]) -> Result<(), Errno> {
    let mut have = 0;
    while have < buffer.len() {
        match sys::pread(memory, &mut buffer[have..], at + have as u64)? {
            0 => return Err(Errno(libc::EIO)),
            more => have += more,
        }
    }
    Ok(())
}

fn is_zero(page: &[u8; PAGE_BYTES]) -> bool {
    let (words, _) = page.as_chunks::<32>();
    words.iter().all(|word| *word == [0; 32])
}

/// To copy a page takes this many times as long as a fork takes for each page of the process.
const COPY_OR_FORK: u64 = 16;
/// Changed pages of at most this many bytes are copied in any case, for a fork also has a fixed cost.
const FEW: u64 = 1 << 20;

/// The bytes of the changed pages, if it is worth it to copy them, so that they can be written while the program goes on. Else a forked child writes
/// them.
fn worth_copying(extents: &[Extent]) -> Option<u64> {
    let bytes = |extents: &mut dyn Iterator<Item = &Extent>| extents.map(|extent| extent.end - extent.start).sum::<u64>();
    let (changed, all) = (bytes(&mut extents.iter().filter(|extent| !extent.kept())), bytes(&mut extents.iter()));
    (changed <= SNAPSHOT_SPAN && changed <= (all / COPY_OR_FORK).max(FEW)).then_some(changed)
}

/// A page is fetched this many pages before its turn: changed pages are scattered, and the processor's prefetcher stops at the end of a page.
const AHEAD: usize = 4;

/// Copies the changed pages, if that is worth it.
pub fn snapshot(extents: &[Extent]) -> Result<bool, Errno> {
    let Some(bytes) = worth_copying(extents) else { return Ok(false) };
    populate(bytes);
    let memory = sys::open(b"/proc/self/mem\0", libc::O_RDONLY, 0)?;
    let changed = extents.iter().filter(|extent| !extent.kept());
    let mut ahead = changed.clone().flat_map(|extent| (extent.start..extent.end).step_by(PAGE_BYTES)).skip(AHEAD);
    let mut to = SNAPSHOT_BASE;
    let result = changed.clone().try_for_each(|extent| {
        let len = extent.end - extent.start;
        if extent.hidden() {
            // SAFETY: the snapshot's memory has room for all of it, and nothing else uses it.
            read_memory(memory, extent.start, unsafe { core::slice::from_raw_parts_mut(to as *mut u8, len as usize) })?;
            ahead.nth((len / PAGE) as usize - 1);
        } else {
            for page in (0..len).step_by(PAGE_BYTES) {
                ahead.next().iter().for_each(|page| fetch(*page));
                // SAFETY: as above; the page is one of the program, present and readable, and all threads are stopped.
                unsafe { copy_page(to + page, extent.start + page) };
            }
        }
        to += len;
        Ok(())
    });
    copies_are_whole();
    sys::close(memory);
    result.map(|()| true)
}

/// Makes the snapshot's first `bytes` present, unless earlier copies have. To do this at once takes half the time of a fault for each page.
fn populate(bytes: u64) {
    let present = state().snapshot.load(Relaxed);
    if bytes > present {
        // SAFETY: changes no content. A kernel that does not know it leaves it to the faults.
        let _ = unsafe { call!(libc::SYS_madvise, SNAPSHOT_BASE + present, bytes - present, libc::MADV_POPULATE_WRITE) };
        state().snapshot.store(bytes, Relaxed);
    }
}

/// Begins to fetch a page, which need not be there.
fn fetch(page: u64) {
    // SAFETY: reads nothing that is seen.
    unsafe { x86_64::_mm_prefetch::<{ x86_64::_MM_HINT_T0 }>(page as *const i8) };
}

/// Copies a page past the caches: the program's data stays in them, and the copy is read only later. `copies_are_whole` ends it.
///
/// # Safety
/// Two whole pages, readable and writable, that nothing changes meanwhile.
unsafe fn copy_page(to: u64, from: u64) {
    assert!(to.is_multiple_of(PAGE) && from.is_multiple_of(PAGE), "whole pages");
    // SAFETY: the caller's pages; vectors of 16 bytes fill them.
    unsafe {
        let (to, from) = (&mut *(to as *mut [x86_64::__m128i; 256]), &*(from as *const [x86_64::__m128i; 256]));
        for (to, from) in to.as_chunks_mut::<4>().0.iter_mut().zip(from.as_chunks::<4>().0) {
            let [a, b, c, d] = *from;
            let to = to.as_mut_ptr();
            x86_64::_mm_stream_si128(to, a);
            x86_64::_mm_stream_si128(to.add(1), b);
            x86_64::_mm_stream_si128(to.add(2), c);
            x86_64::_mm_stream_si128(to.add(3), d);
        }
    }
}

/// Makes what `copy_page` has copied visible, to others as well.
fn copies_are_whole() {
    // SAFETY: only waits.
    unsafe { x86_64::_mm_sfence() };
}

/// The packer's table, made by the constructor: 16 KiB from the program's allocator, the only piece the engine keeps there.
struct Table(UnsafeCell<Option<CompressTable>>);

// SAFETY: used by the constructor, and by the one writer there is at a time.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new(None));

/// Makes what `write` must not allocate. Called by the constructor.
pub fn prepare() {
    // SAFETY: the constructor is alone.
    unsafe { *TABLE.0.get() = Some(CompressTable::large()) };
}

/// A page of each so many is packed to see whether it pays.
const SAMPLE_STEP: usize = 64;

/// A copy of the pages, and the same packed, if that makes them smaller by a tenth at least; judged by samples first. A copy, because the packer's
/// table is in the program's memory: packing the pages it is in would change them on the way.
fn pack(bytes: &[u8]) -> Option<(&'static [u8], &'static [u8])> {
    // SAFETY: one writer at a time.
    let (table, room, copy) =
        unsafe { ((*TABLE.0.get()).as_mut()?, arena::scratch(arena::SCRATCH_PACKED), arena::scratch(arena::SCRATCH_COPY)) };
    let pays = |packed: usize, of: usize| packed * 10 < of * 9;
    let (pages, _) = bytes.as_chunks::<PAGE_BYTES>();
    let (mut sampled, mut became) = (0, 0);
    for page in pages.iter().step_by(SAMPLE_STEP) {
        sampled += page.len();
        became += compress_into_with_table(page, room, table).ok()?;
    }
    if !pays(became, sampled) {
        return None;
    }
    let copy = &mut copy[..bytes.len()];
    copy.copy_from_slice(bytes);
    let len = compress_into_with_table(copy, room, table).ok()?;
    pays(len, bytes.len()).then_some((copy, &room[..len]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_pays_or_is_left_out() {
        arena::reserve_for_tests();
        prepare();
        let text: Vec<u8> = b"all work and no play ".iter().copied().cycle().take(MAX_RUN_BYTES).collect();
        let (copy, small) = pack(&text).unwrap();
        assert_eq!(copy, text);
        assert!(small.len() < text.len() / 10);
        assert_eq!(lz4_flex::block::decompress(small, text.len()).unwrap(), text);
        let mut state = 1u64;
        let noise: Vec<u8> = (0..MAX_RUN_BYTES)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        assert!(pack(&noise).is_none());
    }

    #[test]
    fn pieces_cover_an_extent() {
        let extent = Extent { start: 4096, end: 4096 * 6, categories: 0 };
        assert_eq!(pieces(&extent, 8192).collect::<Vec<_>>(), [(4096, 8192), (12288, 8192), (20480, 4096)]);
    }
}
