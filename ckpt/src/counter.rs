//! Reading the processor's time stamp counter, which may be trapped: of each thread.

use crate::sys::call;

/// From now on the calling thread gets a SIGSEGV (true), or the time (false), when it reads the processor's time stamp counter. So does what it creates. False:
/// the kernel cannot do it.
pub fn trap_counter(traps: bool) -> bool {
    let how = if traps { libc::PR_TSC_SIGSEGV } else { libc::PR_TSC_ENABLE };
    // SAFETY: no memory is involved.
    unsafe { call!(libc::SYS_prctl, libc::PR_SET_TSC, how).is_ok() }
}

/// Whether the calling thread gets a SIGSEGV when it reads the processor's time stamp counter.
pub fn is_counter_trapped() -> bool {
    let mut how = 0i32;
    // SAFETY: the kernel writes one int.
    let told = unsafe { call!(libc::SYS_prctl, libc::PR_GET_TSC, &raw mut how) };
    told.is_ok() && how == libc::PR_TSC_SIGSEGV
}
