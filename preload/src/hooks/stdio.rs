//! The C library's buffers around a connection: its own `read` and `write` cannot be interposed, so such a stream gets ours, as a cookie stream.

use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use libc::{FILE, off_t, size_t, ssize_t};
use rustix::io::Errno;

use super::io::{read, write};
use super::{finish, is_connection};
use crate::layer;
use crate::lock::Lock;
use crate::real;

/// What `fopencookie` takes.
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
}

/// Our streams, by address, and their descriptors: `fileno` does not know them.
static STREAMS: Lock<Vec<(usize, c_int)>> = Lock::new(Vec::new());

fn descriptor(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

unsafe extern "C" fn read_some(cookie: *mut c_void, bytes: *mut c_char, length: size_t) -> ssize_t {
    unsafe { read(descriptor(cookie), bytes.cast(), length) }
}

/// 0 says that it failed.
unsafe extern "C" fn write_some(cookie: *mut c_void, bytes: *const c_char, length: size_t) -> ssize_t {
    unsafe { write(descriptor(cookie), bytes.cast(), length) }.max(0)
}

/// As sockets do.
unsafe extern "C" fn seek(_: *mut c_void, _: *mut off_t, _: c_int) -> c_int {
    finish(Err(Errno::SPIPE)) as c_int
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    STREAMS.lock().retain(|(_, fd)| *fd != descriptor(cookie));
    unsafe { super::descriptor::close(descriptor(cookie)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if !is_connection(fd) {
        return unsafe { real::fdopen(fd, mode) };
    }
    let functions = Functions { read: read_some, write: write_some, seek, close };
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !stream.is_null() {
        STREAMS.lock().push((stream as usize, fd));
    }
    stream
}

/// Writes what the program has left in its streams, before calls pass through for ever: the C library does so too late.
pub fn flush() {
    let streams: Vec<_> = STREAMS.lock().iter().map(|(stream, _)| *stream as *mut FILE).collect();
    for stream in streams {
        unsafe { libc::fflush(stream) };
    }
}

fn known(stream: *mut FILE) -> Option<c_int> {
    if !layer::is_active() {
        // A child: another thread may have had the lock when it was forked.
        return None;
    }
    STREAMS.lock().iter().find(|(known, _)| *known == stream as usize).map(|(_, fd)| *fd)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fileno(stream: *mut FILE) -> c_int {
    known(stream).unwrap_or_else(|| unsafe { real::fileno(stream) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fileno_unlocked(stream: *mut FILE) -> c_int {
    known(stream).unwrap_or_else(|| unsafe { real::fileno_unlocked(stream) })
}

/// Prints to a connection.
unsafe fn print(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    let mut text = ptr::null_mut();
    let length = unsafe { vasprintf(&raw mut text, format, arguments) };
    let mut done = 0;
    while done < length {
        let written = unsafe { write(fd, text.add(done as usize).cast(), (length - done) as size_t) };
        if written < 0 {
            break;
        }
        done += written as c_int;
    }
    if length >= 0 {
        unsafe { libc::free(text.cast()) };
    }
    if done < length { -1 } else { length }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    if is_connection(fd) {
        return unsafe { print(fd, format, arguments) };
    }
    unsafe { real::vdprintf(fd, format, arguments) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    if is_connection(fd) {
        return unsafe { print(fd, format, arguments) };
    }
    unsafe { real::__vdprintf_chk(fd, flag, format, arguments) }
}

/// A function with a variable number of arguments: makes the list of them (System V ABI for x86-64: how many bytes of integer and of vector registers are
/// used, where the others lie on the stack, where the registers were saved) and calls the function that takes the list.
macro_rules! variadic {
    ($name:ident => $function:ident, $named:literal, $register:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> c_int {
            naked_asm!(
                "sub rsp, 0xd8",
                "mov [rsp + 0x20], rdi",
                "mov [rsp + 0x28], rsi",
                "mov [rsp + 0x30], rdx",
                "mov [rsp + 0x38], rcx",
                "mov [rsp + 0x40], r8",
                "mov [rsp + 0x48], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 0x50], xmm0",
                "movaps [rsp + 0x60], xmm1",
                "movaps [rsp + 0x70], xmm2",
                "movaps [rsp + 0x80], xmm3",
                "movaps [rsp + 0x90], xmm4",
                "movaps [rsp + 0xa0], xmm5",
                "movaps [rsp + 0xb0], xmm6",
                "movaps [rsp + 0xc0], xmm7",
                "2:",
                "mov dword ptr [rsp], {named}",
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rsp + 0xe0]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 0x20]",
                "mov [rsp + 16], rax",
                concat!("mov ", $register, ", rsp"),
                "call {function}",
                "add rsp, 0xd8",
                "ret",
                named = const $named * 8,
                function = sym $function,
            )
        }
    };
}

variadic!(dprintf => vdprintf, 2, "rdx");
variadic!(__dprintf_chk => __vdprintf_chk, 3, "rcx");
