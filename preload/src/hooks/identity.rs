//! The host name as the program first saw it, wherever the process runs now. A host's name decides paths, and which ranks share
//! memory. The answers are learned at the start, and travel in the image.

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;

use libc::{size_t, utsname};
use rustix::io::Errno;

use super::result::finish_int;
use crate::lock::Lock;
use crate::{phase, pointers};

static FIRST: Lock<Option<utsname>> = Lock::new(None);

/// Learns the answers.
pub fn learn() {
    let mut names = MaybeUninit::zeroed();
    if unsafe { real!(uname)(names.as_mut_ptr()) } == 0 {
        *FIRST.lock() = Some(unsafe { names.assume_init() });
    }
}

fn first() -> Option<utsname> {
    // In a child another thread may have had the lock when it was forked.
    if phase::is_active() { *FIRST.lock() } else { None }
}

hooks! {
    unsafe fn uname(names: *mut utsname) -> c_int => on_uname {
        // The kernel says whether they can be written there.
        let result = unsafe { real!(uname)(names) };
        if let (0, Some(first)) = (result, first()) {
            unsafe { names.write_unaligned(first) };
        }
        result
    }

    unsafe fn gethostname(name: *mut c_char, room: size_t) -> c_int => on_gethostname {
        unsafe { first().and_then(|first| tell(&first, name, room)).unwrap_or_else(|| real!(gethostname)(name, room)) }
    }

    unsafe fn __gethostname_chk(name: *mut c_char, room: size_t, size: size_t) -> c_int => on_gethostname_chk {
        // Too little room: the next one ends the program, as it does without us.
        unsafe { if room > size { real!(__gethostname_chk)(name, room, size) } else { on_gethostname(name, room) } }
    }
}

/// Writes the host's name, if it can be written there.
unsafe fn tell(first: &utsname, name: *mut c_char, room: size_t) -> Option<c_int> {
    let host = unsafe { CStr::from_ptr(first.nodename.as_ptr()) }.to_bytes_with_nul();
    if !pointers::is_writable(name, host.len().min(room)) {
        return None;
    }
    // As the C library does: what fits is written, perhaps without an end, and then it is an error.
    unsafe { std::ptr::copy_nonoverlapping(host.as_ptr().cast(), name, host.len().min(room)) };
    Some(finish_int(if host.len() <= room { Ok(()) } else { Err(Errno::NAMETOOLONG) }, |()| 0))
}
