//! Whose code makes a call.
//!
//! MPI libraries and what they communicate with read clocks all the time, and nothing that the program sees depends on it: their
//! readings are not recorded. The code that calls is known by the return address, and the library that this is in by its name.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Beginnings of the names of libraries that communicate, and of what runs the program. Open MPI's components are `mca_*`, those of libfabric `lib*-fi`.
const COMMUNICATE: [&str; 19] = [
    "ld-linux",
    "libc.so",
    "libc-",
    "libevent",
    "libfabric",
    "libhwloc",
    "libmca",
    "libmpi",
    "libopen-",
    "libpmi",
    "libprrte",
    "libprte",
    "libpsm",
    "libpthread",
    "libradic",
    "librt",
    "libuc",
    "mca_",
    "libmunge",
];

const PAGE: u32 = 12;
const PAGES: usize = 256;
/// What was found out, by page: the page's number, and whether the program's code is there; 0: nothing. A page of code keeps its
/// meaning as long as its library is loaded.
static KNOWN: [AtomicU64; PAGES] = [const { AtomicU64::new(0) }; PAGES];

/// Whether the code at this address is the program's, and not of a library that communicates for it.
pub fn is_program(address: usize) -> bool {
    let page = (address >> PAGE) as u64;
    let known = &KNOWN[page as usize % PAGES];
    let entry = known.load(Relaxed);
    if entry >> 1 == page {
        return entry & 1 == 1;
    }
    let is_program = find(address).is_some_and(belongs_to_program);
    known.store(page << 1 | u64::from(is_program), Relaxed);
    is_program
}

/// Whether a library of this path belongs to the program.
fn belongs_to_program(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let is_provider = name.ends_with(b"-fi.so");
    !is_provider && !COMMUNICATE.iter().any(|begin| name.starts_with(begin.as_bytes()))
}

/// Beginnings of the names of libraries that were seen to go another way when they are executed again, because their threads hand
/// each other work by memory alone (docs/programs.md), and how long such a process may stand still when it is executed again, in
/// milliseconds. Zero: none was seen to come back, so none is tried.
pub const BY_MEMORY: [(&str, u64); 3] = [("cygrpc", 0), ("libgrpc", 0), ("libzmq", 1_500)];

/// The library that has the code at this address, if it is one of [`BY_MEMORY`]: its place there.
pub fn hands_over_by_memory(address: usize) -> Option<usize> {
    let name = find(address)?.rsplit(|byte| *byte == b'/').next()?;
    BY_MEMORY.iter().position(|(begin, _)| name.starts_with(begin.as_bytes()))
}

/// The path of the loaded file that has this address.
fn find(address: usize) -> Option<&'static [u8]> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: it only looks at the table of what is loaded, and writes into `found`.
    let there = unsafe { libc::dladdr(address as *const _, found.as_mut_ptr()) } != 0;
    // SAFETY: zeroes are a value of it, whether or not it was written.
    let name = unsafe { found.assume_init() }.dli_fname;
    if !there || name.is_null() {
        return None;
    }
    // SAFETY: the linker's own text, there as long as the library is; the caller looks at it at once, and its return address is within that library.
    Some(unsafe { CStr::from_ptr(name) }.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_told_from_programs_by_their_names() {
        for path in [
            "/usr/lib/libmpi.so.40",
            "libmpich.so.12",
            "/x/mca_btl_tcp.so",
            "/x/prov/libtcp-fi.so",
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/x/libradic.so",
        ] {
            assert!(!belongs_to_program(path.as_bytes()), "{path}");
        }
        for path in [
            "./a.out",
            "./n-fib",
            "/usr/bin/python3",
            "/x/libpython3.11.so.1.0",
            "/lib/libstdc++.so.6",
            "/x/libgfortran.so.5",
            "/x/numpy/core/_multiarray.so",
        ] {
            assert!(belongs_to_program(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn code_is_found_by_its_address() {
        let here = code_is_found_by_its_address as *const () as usize;
        assert!(is_program(here) && is_program(here), "asked for, and known");
        assert!(!is_program(libc::getpid as *const () as usize));
        assert!(!is_program(8), "no code");
    }
}
