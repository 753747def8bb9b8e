//! The daemon's heap. Logs fill and empty again all the time, and each page that the kernel gives anew costs a fault: more than what is done with it. So what is freed stays with the
//! daemon until a job has ended (docs/performance.md).
#![allow(unsafe_code)]

/// Memory that is freed is kept for what comes next, until [`give_back`]. Called before there are other threads.
pub fn keep() {
    /// Longest block that is no mapping of its own: the most that glibc takes.
    #[cfg(target_env = "gnu")]
    const SINGLE: libc::c_int = 32 << 20;
    // SAFETY: two numbers of the allocator are set, and no other thread reads them yet. Where it fails all is as before.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, SINGLE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
    }
}

/// The kernel gets the memory that is free now.
pub fn give_back() {
    // SAFETY: it takes no pointer, and touches free memory only.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
