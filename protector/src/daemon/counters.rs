//! What a process under the library has counted, read from its memory: asking it would interrupt it.

use std::io::IoSliceMut;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use radic_wire::process::{Counters, counters};

/// The counters of process `pid`; none if it is gone, not ours to read, or does not run under the library.
pub fn read(pid: u32) -> Option<Counters> {
    let mut bytes = [0; 8 * (1 + counters::WORDS)];
    let remote = RemoteIoVec { base: usize::try_from(counters::ADDRESS).ok()?, len: bytes.len() };
    let pid = Pid::from_raw(i32::try_from(pid).ok()?);
    let count = process_vm_readv(pid, &mut [IoSliceMut::new(&mut bytes)], &[remote]).ok()?;
    if count != bytes.len() {
        return None;
    }
    let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    if words.next() != Some(counters::MAGIC) {
        return None;
    }
    let words: Vec<u64> = words.collect();
    Some(Counters::from_words(words.as_slice().try_into().expect("as many words as bytes were read")))
}
