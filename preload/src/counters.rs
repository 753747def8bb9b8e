//! What the layer counts, at the address where its node's protector reads it ([`radic_wire::process::counters`]).
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use radic_wire::process::{Counters, counters};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// The page.
#[derive(Debug)]
#[repr(C)]
pub struct Page {
    magic: AtomicU64,
    words: [AtomicU64; counters::WORDS],
}

static MAPPED: AtomicBool = AtomicBool::new(false);
/// What is counted before there is a page.
static NOWHERE: Page = Page { magic: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; counters::WORDS] };

/// One of the counters, by its place in [`Counters`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs, reason = "each is the field of Counters with the same name")]
pub enum Counter {
    BytesIn,
    MessagesIn,
    BytesOut,
    MessagesOut,
    Events,
    Empty,
    GateWaits,
    GateNs,
    Outbox,
    Journal,
    Payload,
    Checkpoints,
    Committed,
    PauseNs,
    LongestPauseNs,
    Connections,
    Unprotected,
    Replayed,
    Again,
    Waits,
    Awaited,
    Looks,
    FullWaits,
    FullNs,
    LongestFullNs,
}

/// Maps the page.
pub fn map() -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: the address is far from everything, and NOREPLACE hits nothing that is there.
    unsafe { mmap_anonymous(counters::ADDRESS as *mut _, size_of::<Page>(), ProtFlags::READ | ProtFlags::WRITE, flags) }?;
    MAPPED.store(true, Ordering::Release);
    page().magic.store(counters::MAGIC, Ordering::Release);
    Ok(())
}

fn page() -> &'static Page {
    if !MAPPED.load(Ordering::Relaxed) {
        return &NOWHERE;
    }
    // SAFETY: it stays mapped until the process ends, and its words are atomics, valid in any state.
    unsafe { &*(counters::ADDRESS as *const Page) }
}

/// Adds to a counter. Only under the layer's lock, so that a plain load and store do.
pub fn add(which: Counter, more: u64) {
    let word = &page().words[which as usize];
    word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// Sets a counter.
pub fn set(which: Counter, value: u64) {
    page().words[which as usize].store(value, Ordering::Relaxed);
}

/// A counter's value.
pub fn get(which: Counter) -> u64 {
    page().words[which as usize].load(Ordering::Relaxed)
}

/// All of them.
pub fn all() -> Counters {
    let words = std::array::from_fn(|word| page().words[word].load(Ordering::Relaxed));
    Counters::from_words(&words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_where_the_node_reads_it() {
        map().unwrap();
        (0..counters::WORDS).for_each(|word| page().words[word].store(word as u64, Ordering::Relaxed));
        let Counters { bytes_in, gate_ns, journal, longest_pause_ns, unprotected, .. } = all();
        assert_eq!([bytes_in, gate_ns, journal, longest_pause_ns, unprotected], [0, 7, 9, 14, 16]);
        let named = [get(Counter::GateNs), get(Counter::Journal), get(Counter::LongestPauseNs), get(Counter::Unprotected)];
        assert_eq!(named, [gate_ns, journal, longest_pause_ns, unprotected]);
    }
}
