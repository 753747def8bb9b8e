//! Ends of the program that no destructor sees: what is to leave leaves before them, too.

use std::ffi::{c_int, c_void};

use crate::layer;

/// Runs with the library's other constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = register;

unsafe extern "C" {
    /// What `at_quick_exit` calls; that one is no function of the shared C library.
    fn __cxa_at_quick_exit(function: extern "C" fn(*mut c_void), object: *mut c_void) -> c_int;
}

/// The first to be registered runs last. Without memory it is not registered: then `quick_exit` loses what a slow peer has not taken yet.
extern "C" fn register() {
    extern "C" fn leave(_: *mut c_void) {
        layer::leave();
    }
    unsafe { __cxa_at_quick_exit(leave, std::ptr::null_mut()) };
}

hooks! {
    unsafe fn _exit(code: c_int) -> ! => on_exit {
        end(code)
    }

    unsafe fn _Exit(code: c_int) -> ! => on_standard_exit {
        end(code)
    }
}

/// Ends the process as the C library does.
fn end(code: c_int) -> ! {
    layer::leave();
    loop {
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}
