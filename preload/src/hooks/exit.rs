//! Ends of the program: what is to leave leaves before them, also before those that no destructor sees; and with which code the program ends.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::{ends, layer};

/// What `main` is.
type Main = unsafe extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;

/// Runs with the library's other constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = register;

/// The program's `main`.
static MAIN: OnceLock<Main> = OnceLock::new();

unsafe extern "C" {
    /// What `at_quick_exit` calls; that one is no function of the shared C library.
    fn __cxa_at_quick_exit(function: extern "C" fn(*mut c_void), object: *mut c_void) -> c_int;
    /// As `atexit`, for a function that is told the code.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// The first to be registered runs last. Without memory it is not registered: then `quick_exit` loses what a slow peer has not taken yet.
extern "C" fn register() {
    extern "C" fn leave(_: *mut c_void) {
        layer::leave();
    }
    unsafe { __cxa_at_quick_exit(leave, std::ptr::null_mut()) };
}

/// The program begins here. What is registered before its `main` runs before the destructors of libraries, ours among them, and
/// after all that the program registers. Without memory the code is not known, which costs time at the end.
unsafe extern "C" fn begin(count: c_int, arguments: *mut *mut c_char, variables: *mut *mut c_char) -> c_int {
    extern "C" fn end(code: c_int, _: *mut c_void) {
        ends::keep(code);
    }
    unsafe { on_exit(end, std::ptr::null_mut()) };
    let Some(main) = MAIN.get() else { return 127 };
    unsafe { main(count, arguments, variables) }
}

hooks! {
    unsafe fn __libc_start_main(
        main: Main,
        count: c_int,
        arguments: *mut *mut c_char,
        first: *const c_void,
        last: *const c_void,
        end_of_linker: *const c_void,
        end_of_stack: *mut c_void
    ) -> c_int => on_start {
        let main = if MAIN.set(main).is_ok() { begin } else { main };
        unsafe { real!(__libc_start_main)(main, count, arguments, first, last, end_of_linker, end_of_stack) }
    }

    unsafe fn quick_exit(code: c_int) -> ! => on_quick_exit {
        ends::keep(code);
        unsafe { real!(quick_exit)(code) }
    }

    unsafe fn _exit(code: c_int) -> ! => on_exit_at_once {
        end(code)
    }

    unsafe fn _Exit(code: c_int) -> ! => on_standard_exit {
        end(code)
    }
}

/// Ends the process as the C library does.
fn end(code: c_int) -> ! {
    ends::keep(code);
    layer::leave();
    loop {
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}
