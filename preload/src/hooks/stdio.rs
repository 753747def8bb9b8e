//! The C library's buffers. Around a connection: its own `read` and `write` cannot be interposed, so such a stream gets ours, as a cookie stream. Around
//! standard input, standard output and standard error: [`watch_streams`].

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{ptr, slice};

use libc::{FILE, off_t, size_t, ssize_t};
use rustix::io::Errno;
use rustix::mm::{MprotectFlags, mprotect};

use super::io::{on_read, on_write, read_random};
use super::result::finish;
use crate::fds::{self, Kind, is_connection};
use crate::lock::Lock;
use crate::{ops, phase};

hooks! {
    unsafe fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE => on_fdopen {
        unsafe { if is_connection(fd) { open_stream(fd, mode) } else { real!(fdopen)(fd, mode) } }
    }

    unsafe fn fileno(stream: *mut FILE) -> c_int => on_fileno {
        known(stream).unwrap_or_else(|| unsafe { real!(fileno)(stream) })
    }

    unsafe fn fileno_unlocked(stream: *mut FILE) -> c_int => on_fileno_unlocked {
        known(stream).unwrap_or_else(|| unsafe { real!(fileno_unlocked)(stream) })
    }

    unsafe fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int => on_vdprintf {
        unsafe { if prints(fd) { print(fd, format, arguments) } else { real!(vdprintf)(fd, format, arguments) } }
    }

    unsafe fn __vdprintf_chk(
        fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void
    ) -> c_int => on_vdprintf_chk {
        unsafe { if prints(fd) { print(fd, format, arguments) } else { real!(__vdprintf_chk)(fd, flag, format, arguments) } }
    }
}

/// What `fopencookie` takes.
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

/// A place in the C library's list of streams.
type Place = *mut c_void;

unsafe extern "C" {
    fn _IO_iter_begin() -> Place;
    fn _IO_iter_end() -> Place;
    fn _IO_iter_next(at: Place) -> Place;
    fn _IO_iter_file(at: Place) -> *mut FILE;
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn funlockfile(stream: *mut FILE);
    fn fflush_unlocked(stream: *mut FILE) -> c_int;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
}

/// Our streams, by address, and their descriptors: `fileno` does not know them.
static STREAMS: Lock<Vec<(usize, c_int)>> = Lock::new(Vec::new());

fn descriptor(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

unsafe extern "C" fn read_some(cookie: *mut c_void, bytes: *mut c_char, length: size_t) -> ssize_t {
    unsafe { on_read(descriptor(cookie), bytes.cast(), length) }
}

/// 0 says that it failed.
unsafe extern "C" fn write_some(cookie: *mut c_void, bytes: *const c_char, length: size_t) -> ssize_t {
    unsafe { on_write(descriptor(cookie), bytes.cast(), length) }.max(0)
}

/// As sockets do.
unsafe extern "C" fn seek(_: *mut c_void, _: *mut off_t, _: c_int) -> c_int {
    finish(Err(Errno::SPIPE)) as c_int
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    STREAMS.lock().retain(|(_, fd)| *fd != descriptor(cookie));
    unsafe { super::descriptor::on_close(descriptor(cookie)) }
}

/// A stream of ours around a connection.
unsafe fn open_stream(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions = Functions { read: read_some, write: write_some, seek, close };
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !stream.is_null() {
        STREAMS.lock().push((stream as usize, fd));
    }
    stream
}

/// Writes what the program has left in its streams, before all later calls pass through: the C library does so too late. What
/// another thread holds it passes over, as the C library does: that thread may wait for input. False: that stream may have
/// something left.
pub fn flush() -> bool {
    let mut is_all = true;
    unsafe {
        let mut at = _IO_iter_begin();
        while at != _IO_iter_end() {
            let stream = _IO_iter_file(at);
            if ftrylockfile(stream) == 0 {
                fflush_unlocked(stream);
                funlockfile(stream);
            } else {
                is_all = false;
            }
            at = _IO_iter_next(at);
        }
    }
    is_all
}

fn known(stream: *mut FILE) -> Option<c_int> {
    if !phase::is_active() {
        // A child: another thread may have had the lock when it was forked.
        return None;
    }
    STREAMS.lock().iter().find(|(known, _)| *known == stream as usize).map(|(_, fd)| *fd)
}

/// What the C library's streams write with, before [`watch_streams`].
static NEXT_WRITE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// What they read with.
static NEXT_READ: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

type StreamWrite = unsafe extern "C" fn(*mut FILE, *const c_void, ssize_t) -> ssize_t;
type StreamRead = unsafe extern "C" fn(*mut FILE, *mut c_void, ssize_t) -> ssize_t;

/// Has the C library's streams read and write by way of us (`output` says why): puts our functions into the tables of their operations. An error: this
/// C library is another one.
pub fn watch_streams() -> Result<(), &'static str> {
    /// The places of "read" and "write" in such a table.
    const READ: usize = 14;
    const WRITE: usize = 15;
    let look_up = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    let (next_read, next_write) = (look_up(c"_IO_file_read"), look_up(c"_IO_file_write"));
    let tables = [c"_IO_file_jumps", c"_IO_wfile_jumps"].map(|name| look_up(name).cast::<*mut c_void>());
    let holds =
        |table: *mut *mut c_void, place, function: *mut c_void| !function.is_null() && unsafe { *table.add(place) } == function;
    if tables.iter().any(|table| table.is_null() || !holds(*table, READ, next_read) || !holds(*table, WRITE, next_write)) {
        return Err("the C library keeps its streams' functions elsewhere");
    }
    NEXT_READ.store(next_read, Ordering::Relaxed);
    NEXT_WRITE.store(next_write, Ordering::Relaxed);
    let (read, write) = (read_stream as StreamRead as *mut c_void, write_stream as StreamWrite as *mut c_void);
    tables.into_iter().try_for_each(|table| unsafe {
        replace(table.add(READ), read)?;
        replace(table.add(WRITE), write)
    })
}

/// Reads for a stream.
unsafe extern "C" fn read_stream(stream: *mut FILE, bytes: *mut c_void, length: ssize_t) -> ssize_t {
    let fd = unsafe { real!(fileno_unlocked)(stream) };
    if phase::is_active() && fd >= 0 && length > 0 {
        let room = || unsafe { slice::from_raw_parts_mut(bytes.cast::<u8>(), length as usize) };
        let ours = match fds::kind(fd) {
            Kind::Input => ops::input::read(fd, &mut [IoSliceMut::new(room())]).map(finish),
            Kind::Random => unsafe { read_random(fd, room()) },
            _ => None,
        };
        if let Some(result) = ours {
            return result;
        }
    }
    let next = unsafe { std::mem::transmute::<*mut c_void, StreamRead>(NEXT_READ.load(Ordering::Relaxed)) };
    unsafe { next(stream, bytes, length) }
}

/// Changes a word that the linker has made read-only.
unsafe fn replace(word: *mut *mut c_void, value: *mut c_void) -> Result<(), &'static str> {
    const PAGE: usize = 4096;
    const REFUSED: &str = "the C library's streams cannot be changed";
    let page = ptr::with_exposed_provenance_mut(word.expose_provenance() & !(PAGE - 1));
    let set = |flags| unsafe { mprotect(page, PAGE, flags) }.map_err(|_| REFUSED);
    set(MprotectFlags::READ | MprotectFlags::WRITE)?;
    unsafe { word.write(value) };
    // What is among the relocated constants was read-only before.
    set(MprotectFlags::READ)
}

/// Writes for a stream; less than everything: an error.
unsafe extern "C" fn write_stream(stream: *mut FILE, bytes: *const c_void, length: ssize_t) -> ssize_t {
    let mut done = 0;
    let fd = unsafe { real!(fileno_unlocked)(stream) };
    if phase::is_active() && fd >= 0 && length > 0 {
        let bytes = unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length as usize) };
        while done < bytes.len()
            && let Some(Ok(count @ 1..)) = ops::output::write(fd, &[IoSlice::new(&bytes[done..])])
        {
            done += count;
        }
    }
    let (next, done) = (NEXT_WRITE.load(Ordering::Relaxed), done as ssize_t);
    if done == length || next.is_null() {
        return done;
    }
    // No pipe of ours; or an error, which the C library meets again and marks the stream with.
    let next = unsafe { std::mem::transmute::<*mut c_void, StreamWrite>(next) };
    done + unsafe { next(stream, bytes.byte_add(done as usize), length - done) }
}

/// Whether what is printed to `fd` must come by here.
fn prints(fd: c_int) -> bool {
    is_connection(fd) || fds::kind(fd) == Kind::Output
}

/// Prints to a connection, or to one of the pipes to the node.
unsafe fn print(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    let mut text = ptr::null_mut();
    let length = unsafe { vasprintf(&raw mut text, format, arguments) };
    let mut done = 0;
    while done < length {
        let written = unsafe { on_write(fd, text.add(done as usize).cast(), (length - done) as size_t) };
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

/// A function with a variable number of arguments, which redhook cannot declare (the module [`super`] shows it): makes the list
/// of them (System V ABI for x86-64: how many bytes of integer and of vector registers are used, where the others lie on the
/// stack, where the registers were saved) and calls the function that takes the list.
macro_rules! variadic {
    ($name:ident => $function:path, $named:literal, $register:literal) => {
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

variadic!(dprintf => vdprintf::vdprintf, 2, "rdx");
variadic!(__dprintf_chk => __vdprintf_chk::__vdprintf_chk, 3, "rcx");
