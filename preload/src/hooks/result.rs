//! Results as C has them.

use std::ffi::c_int;

use libc::ssize_t;
use rustix::io::Errno;

use crate::real;

/// What C makes of a result.
pub(super) fn finish(result: Result<usize, Errno>) -> ssize_t {
    match result {
        Ok(count) => count as ssize_t,
        Err(error) => {
            real::set_errno(error.raw_os_error());
            -1
        }
    }
}

/// The same for calls that return nothing but success.
pub(super) fn finish_int<T>(result: Result<T, Errno>, value: impl FnOnce(T) -> c_int) -> c_int {
    match result {
        Ok(it) => value(it),
        Err(error) => {
            real::set_errno(error.raw_os_error());
            -1
        }
    }
}
