//! Random bytes. The program is given the same ones again after a restart, or it would go another way: for what it asks the C
//! library, and for what it reads of `/dev/urandom`.
//!
//! As with clocks, it depends on the code that makes the call: what MPI libraries draw is not recorded.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::slice;

use libc::{FILE, mode_t, size_t, ssize_t};
use rustix::io::Errno;

use super::result::finish;
use crate::fds::{self, Kind};
use crate::ops::kernel;
use crate::{callers, phase, pointers, real};

with_caller!(getrandom => on_getrandom, "rcx");
with_caller!(getentropy => on_getentropy, "rdx");
with_caller!(arc4random => on_arc4random, "rdi");
with_caller!(arc4random_buf => on_arc4random_buf, "rdx");
with_caller!(arc4random_uniform => on_arc4random_uniform, "rsi");
// Variadic in C. The one argument that they may have is passed in the next register.
with_caller!(open => on_open, "rcx");
with_caller!(open64 => on_open64, "rcx");
with_caller!(openat => on_openat, "r8");
with_caller!(openat64 => on_openat64, "r8");
// With the checks that distributions build with.
with_caller!(__open_2 => on_open_2, "rdx");
with_caller!(__open64_2 => on_open64_2, "rdx");
with_caller!(__openat_2 => on_openat_2, "rcx");
with_caller!(__openat64_2 => on_openat64_2, "rcx");
with_caller!(fopen => on_fopen, "rdx");
with_caller!(fopen64 => on_fopen64, "rdx");

/// Random bytes for the program, from `read`. None: the call passes through.
fn draw(
    to: *mut c_void,
    length: size_t,
    caller: usize,
    read: impl Fn(&mut [u8]) -> Result<usize, Errno>,
) -> Option<Result<usize, Errno>> {
    let is_recorded = length > 0 && phase::is_active() && callers::is_program(caller) && pointers::is_writable(to, length);
    let room = is_recorded.then(|| unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), length) })?;
    kernel::random(room, read)
}

fn get(room: &mut [u8], flags: c_uint) -> Result<usize, Errno> {
    let count = unsafe { real::getrandom(room.as_mut_ptr().cast(), room.len(), flags) };
    usize::try_from(count).map_err(|_| Errno::from_raw_os_error(real::errno()))
}

fn get_all(room: &mut [u8]) -> Result<usize, Errno> {
    unsafe { real::arc4random_buf(room.as_mut_ptr().cast(), room.len()) };
    Ok(room.len())
}

unsafe extern "C" fn on_getrandom(to: *mut c_void, length: size_t, flags: c_uint, caller: usize) -> ssize_t {
    let ours = draw(to, length, caller, |room| get(room, flags));
    ours.map_or_else(|| unsafe { real::getrandom(to, length, flags) }, finish)
}

unsafe extern "C" fn on_getentropy(to: *mut c_void, length: size_t, caller: usize) -> c_int {
    /// More is refused.
    const MOST: size_t = 256;
    match if length <= MOST { draw(to, length, caller, |room| get(room, 0)) } else { None } {
        Some(Ok(count)) if count == length => 0,
        _ => unsafe { real::getentropy(to, length) },
    }
}

unsafe extern "C" fn on_arc4random(caller: usize) -> c_uint {
    let mut number = [0; size_of::<c_uint>()];
    match draw(number.as_mut_ptr().cast(), number.len(), caller, get_all) {
        Some(_) => c_uint::from_ne_bytes(number),
        None => unsafe { real::arc4random() },
    }
}

unsafe extern "C" fn on_arc4random_buf(to: *mut c_void, length: size_t, caller: usize) {
    if draw(to, length, caller, get_all).is_none() {
        unsafe { real::arc4random_buf(to, length) };
    }
}

unsafe extern "C" fn on_arc4random_uniform(bound: c_uint, caller: usize) -> c_uint {
    let get_one = |room: &mut [u8]| {
        room.copy_from_slice(&unsafe { real::arc4random_uniform(bound) }.to_ne_bytes());
        Ok(room.len())
    };
    let mut number = [0; size_of::<c_uint>()];
    match draw(number.as_mut_ptr().cast(), number.len(), caller, get_one) {
        Some(_) => c_uint::from_ne_bytes(number),
        None => unsafe { real::arc4random_uniform(bound) },
    }
}

/// What is read of this descriptor is recorded, if `path`, which was opened, is the kernel's source of random bytes.
unsafe fn opened(fd: c_int, path: *const c_char, caller: usize) -> c_int {
    const SOURCES: [&CStr; 2] = [c"/dev/urandom", c"/dev/random"];
    if fd >= 0 && phase::is_active() && SOURCES.contains(&unsafe { CStr::from_ptr(path) }) && callers::is_program(caller) {
        // One of a number that is too high is read as it is.
        _ = fds::set(fd, Kind::Random, true);
    }
    fd
}

unsafe extern "C" fn on_open(path: *const c_char, flags: c_int, mode: mode_t, caller: usize) -> c_int {
    unsafe { opened(real::open(path, flags, mode), path, caller) }
}

unsafe extern "C" fn on_open64(path: *const c_char, flags: c_int, mode: mode_t, caller: usize) -> c_int {
    unsafe { opened(real::open64(path, flags, mode), path, caller) }
}

unsafe extern "C" fn on_openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t, caller: usize) -> c_int {
    unsafe { opened(real::openat(at, path, flags, mode), path, caller) }
}

unsafe extern "C" fn on_openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t, caller: usize) -> c_int {
    unsafe { opened(real::openat64(at, path, flags, mode), path, caller) }
}

unsafe extern "C" fn on_open_2(path: *const c_char, flags: c_int, caller: usize) -> c_int {
    unsafe { opened(real::__open_2(path, flags), path, caller) }
}

unsafe extern "C" fn on_open64_2(path: *const c_char, flags: c_int, caller: usize) -> c_int {
    unsafe { opened(real::__open64_2(path, flags), path, caller) }
}

unsafe extern "C" fn on_openat_2(at: c_int, path: *const c_char, flags: c_int, caller: usize) -> c_int {
    unsafe { opened(real::__openat_2(at, path, flags), path, caller) }
}

unsafe extern "C" fn on_openat64_2(at: c_int, path: *const c_char, flags: c_int, caller: usize) -> c_int {
    unsafe { opened(real::__openat64_2(at, path, flags), path, caller) }
}

unsafe extern "C" fn on_fopen(path: *const c_char, how: *const c_char, caller: usize) -> *mut FILE {
    unsafe { opened_stream(real::fopen(path, how), path, caller) }
}

unsafe extern "C" fn on_fopen64(path: *const c_char, how: *const c_char, caller: usize) -> *mut FILE {
    unsafe { opened_stream(real::fopen64(path, how), path, caller) }
}

unsafe fn opened_stream(stream: *mut FILE, path: *const c_char, caller: usize) -> *mut FILE {
    if !stream.is_null() {
        unsafe { opened(libc::fileno(stream), path, caller) };
    }
    stream
}
