//! Dense memory: whole blocks of which the last image named every page. Two quick questions say everything about a dense block: which pages were written
//! (PAGEMAP_SCAN for that alone), and whether all are still present (mincore). About other memory the kernel must be asked page by page, which
//! takes several times as long.
//!
//! A page of such a block that is present and was not written is the one that the last image named: what came in its place after it was given up
//! would count as written. So it is kept. A block of which any page is missing (given up, swapped out, a guard) is dense no more.

use crate::page::PAGE;
use crate::pages::Extent;
use crate::stretches::{Dense, MAX_STRETCHES, Stretch};
use crate::sys;

/// Bytes of a block: those of a huge page, so that no question ends in the middle of one, which would split it.
pub const BLOCK: u64 = 2 << 20;
const PAGES: usize = (BLOCK / PAGE) as usize;
/// Blocks that one mincore tells about.
const BLOCKS: usize = 32;

/// Leaves only the blocks of which every page is present. (Of a mapping of a file mincore says nothing about the process's own pages: there the list does
/// not count.)
pub fn confirm(dense: &mut Dense) {
    let mut before = [Stretch::default(); MAX_STRETCHES];
    let before = &mut before[..dense.len()];
    before.copy_from_slice(dense);
    dense.clear();
    for stretch in before {
        for at in (stretch.start..stretch.end).step_by(BLOCKS * BLOCK as usize) {
            confirm_blocks(dense, at, stretch.end.min(at + BLOCKS as u64 * BLOCK));
        }
    }
}

fn confirm_blocks(dense: &mut Dense, start: u64, end: u64) {
    let mut pages = [0u8; BLOCKS * PAGES];
    let pages = &mut pages[..((end - start) / PAGE) as usize];
    let blocks = (start..end).step_by(BLOCK as usize).map(|at| (at, at + BLOCK));
    if sys::present(start, pages).is_ok() {
        let (present, _) = pages.as_chunks::<PAGES>();
        let whole = |pages: &[u8; PAGES]| pages.iter().fold(1, |all, page| all & page) == 1;
        blocks.zip(present).filter(|(_, pages)| whole(pages)).for_each(|((from, to), _)| add(dense, from, to));
    } else if end - start > BLOCK {
        // Some of it is not mapped any more.
        blocks.for_each(|(from, to)| confirm_blocks(dense, from, to));
    }
}

fn add(dense: &mut Dense, start: u64, end: u64) {
    match dense.last_mut() {
        Some(last) if last.end == start => last.end = end,
        // What does not fit is not known to be dense.
        _ => drop(dense.push(Stretch { start, end })),
    }
}

/// Finds the dense memory among the pages that an image names: of those that the kernel tracks since.
pub fn note(dense: &mut Dense, extents: &[Extent]) {
    dense.clear();
    let mut add_blocks = |start: u64, end: u64| {
        let (start, end) = (start.next_multiple_of(BLOCK), end / BLOCK * BLOCK);
        if start < end {
            add(dense, start, end);
        }
    };
    let (mut start, mut end) = (0, 0);
    for extent in extents.iter().filter(|extent| extent.tracked()) {
        if extent.start != end {
            add_blocks(start, end);
            start = extent.start;
        }
        end = extent.end;
    }
    add_blocks(start, end);
}

/// `start..end`, cut where dense memory begins and ends: each piece, and whether it is dense.
pub fn pieces(dense: &[Stretch], start: u64, end: u64) -> impl Iterator<Item = (u64, u64, bool)> {
    let first = dense.partition_point(|stretch| stretch.end <= start);
    let within = dense[first..].iter().take_while(move |stretch| stretch.start < end);
    let clipped = within.map(move |stretch| (stretch.start.max(start), stretch.end.min(end)));
    let mut at = start;
    let with_gaps = clipped.chain([(end, end)]).flat_map(move |(from, to)| {
        let gap = (at, from, false);
        at = to;
        [gap, (from, to, true)]
    });
    with_gaps.filter(|(from, to, _)| from < to)
}
