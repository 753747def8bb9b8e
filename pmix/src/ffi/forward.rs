//! The real libpmix behind these calls, for a process that is no rank of ours, or has not begun to be one.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

/// This process has begun as a rank: from there on all calls are answered here.
static OURS: AtomicBool = AtomicBool::new(false);

pub(super) fn is_ours() -> bool {
    OURS.load(Ordering::Acquire)
}

pub(super) fn become_ours() {
    OURS.store(true, Ordering::Release);
}

/// The next function of this name behind this library, if there is one.
pub(super) fn next(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: looks up a name.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Declares functions of PMIx that answer a rank, and let every other process through to the real ones.
macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As pmix.h says. Pointers may also be null.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> crate::status::Status {
            if !$crate::ffi::forward::is_ours() {
                // SAFETY: the arguments are the caller's, and the function behind is the same.
                return unsafe { $crate::ffi::forward::behind!($name($($argument: $type),*)) };
            }
            $body
        }
    )*};
}

/// Calls the function of this name behind this library. Without one PMIx is not initialized.
macro_rules! behind {
    ($name:ident($($argument:ident: $type:ty),*)) => {{
        type Next = unsafe extern "C" fn($($type),*) -> $crate::status::Status;
        const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!("a name without a zero inside"),
        };
        match $crate::ffi::forward::next(NAME) {
            Some(next) => std::mem::transmute::<*mut std::ffi::c_void, Next>(next)($($argument),*),
            None => $crate::status::Status::INIT,
        }
    }};
}

pub(super) use {behind, calls};
