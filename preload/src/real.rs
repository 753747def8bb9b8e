//! The C library's functions that redhook cannot find for `hooks`, because not every C library has them; those that the library itself calls, too; and
//! `errno`.
//!
//! redhook panics about a function that is not there, so with one of these no program would start where it is missing. Here its call fails with ENOSYS. The
//! oldest C library that Rust supports is glibc 2.17: what came later is in this table.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{FILE, clock_t, epoll_event, mode_t, nfds_t, pollfd, rusage, sigset_t, size_t, ssize_t, timespec, timeval, tms};

/// The C library's `errno` of the calling thread.
pub fn errno() -> c_int {
    // SAFETY: the thread's own, always valid.
    unsafe { *libc::__errno_location() }
}

/// Sets the C library's `errno` of the calling thread.
pub fn set_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
}

/// A function of the libraries behind this one.
struct Function {
    name: &'static CStr,
    /// Null: not looked up, or not there.
    address: AtomicPtr<c_void>,
}

impl Function {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address; null: there is none.
    fn address(&self) -> *mut c_void {
        let known = self.address.load(Relaxed);
        if known.is_null() { self.find() } else { known }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        let errno = errno();
        // SAFETY: looks up a name.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Relaxed);
        set_errno(errno);
        found
    }
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $none:expr;)*) => {
        #[allow(non_upper_case_globals)]
        mod table {
            $(pub static $name: super::Function = {
                match ::std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => super::Function::new(name),
                    Err(_) => panic!(),
                }
            };)*
        }

        $(
            #[doc = concat!("The next library's `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As for the C library's.
            #[allow(non_snake_case)]
            pub unsafe fn $name($($argument: $type),*) -> $result {
                let function = table::$name.address();
                if function.is_null() {
                    set_errno(libc::ENOSYS);
                    return $none;
                }
                // SAFETY: the function of this name has this type; the arguments are the caller's.
                unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(function)($($argument),*)
                }
            }
        )*

        /// Looks up all of them, and tells names and addresses.
        pub fn resolve(mut found: impl FnMut(&'static str, *const ())) {
            $(found(stringify!($name), table::$name.address().cast_const().cast());)*
        }
    };
}

functions! {
    fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int = -1;
    // A pid_t.
    _Fork() -> c_int = -1;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = -1;
    epoll_pwait2(epoll: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int = -1;
    // All C libraries have these, and the library calls them itself, also below its hooks.
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int = -1;
    epoll_pwait(epoll: c_int, events: *mut epoll_event, room: c_int, timeout: c_int, mask: *const sigset_t) -> c_int = -1;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int = -1;
    getrandom(to: *mut c_void, length: size_t, flags: c_uint) -> ssize_t = -1;
    getentropy(to: *mut c_void, length: size_t) -> c_int = -1;
    arc4random() -> c_uint = 0;
    arc4random_buf(to: *mut c_void, length: size_t) -> () = Default::default();
    arc4random_uniform(bound: c_uint) -> c_uint = 0;
    // All C libraries have these, and redhook does not declare them, because their hooks need their caller.
    clock_gettime(clock: c_int, to: *mut timespec) -> c_int = -1;
    gettimeofday(to: *mut timeval, zone: *mut c_void) -> c_int = -1;
    times(to: *mut tms) -> clock_t = -1;
    getrusage(whose: c_int, to: *mut rusage) -> c_int = -1;
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = -1;
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = -1;
    openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = -1;
    openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = -1;
    __open_2(path: *const c_char, flags: c_int) -> c_int = -1;
    __open64_2(path: *const c_char, flags: c_int) -> c_int = -1;
    __openat_2(at: c_int, path: *const c_char, flags: c_int) -> c_int = -1;
    __openat64_2(at: c_int, path: *const c_char, flags: c_int) -> c_int = -1;
    fopen(path: *const c_char, how: *const c_char) -> *mut FILE = ptr::null_mut();
    fopen64(path: *const c_char, how: *const c_char) -> *mut FILE = ptr::null_mut();
}

#[cfg(test)]
mod tests {
    use super::*;

    functions! {
        radic_no_such_function(value: c_int) -> c_int = -1;
    }

    #[test]
    fn what_is_not_there_fails() {
        set_errno(0);
        // SAFETY: there is no such function.
        assert_eq!((unsafe { radic_no_such_function(1) }, errno()), (-1, libc::ENOSYS));
        resolve(|name, address| assert_eq!((name, address), ("radic_no_such_function", ptr::null())));
    }

    #[test]
    fn what_is_there_is_called() {
        // SAFETY: reads the flags of a descriptor, and of one that is not open.
        unsafe {
            assert!(super::fcntl64(2, libc::F_GETFD, 0) >= 0);
            assert_eq!((super::fcntl64(-1, libc::F_GETFD, 0), errno()), (-1, libc::EBADF));
        }
    }
}
