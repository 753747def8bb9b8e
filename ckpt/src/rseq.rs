//! The area of a thread that the kernel writes whenever the thread gets on another processor (rseq(2)), as glibc has registered it. It lies in the thread's own
//! memory: in a process that writes an image of itself it would change between the checksum of its page and the page.

use core::sync::atomic::Ordering::Relaxed;

use crate::arena::state;
use crate::sys::{Answer, Errno, call};

/// What glibc has registered it with (x86-64).
const SIGNATURE: u32 = 0x5305_3053;
/// The size that the first version of the interface asks for, at least.
const SMALLEST: u32 = 32;
/// For arch_prctl(2), ARCH_GET_FS.
const GET_FS: i32 = 0x1003;
/// For rseq(2), RSEQ_FLAG_UNREGISTER.
const UNREGISTER: i32 = 1;

/// Where glibc has registered areas: offset from FS, and size; 0: not at all.
fn registered() -> (isize, u32) {
    // SAFETY: looks up two symbols of glibc, which are an isize and an unsigned int.
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr());
        let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr());
        if offset.is_null() || size.is_null() { (0, 0) } else { (*offset.cast::<isize>(), *size.cast::<u32>()) }
    }
}

/// Finds out where areas are. Called by the constructor.
pub fn learn() {
    let (offset, size) = registered();
    state().rseq_offset.store(offset as u64, Relaxed);
    state().rseq_size.store(size, Relaxed);
}

/// The kernel writes to the calling thread's area no more.
pub fn leave() -> Answer {
    ask(area(own_fs()?), UNREGISTER)
}

/// It does again.
pub fn enter_again() -> Answer {
    enter(own_fs()?)
}

/// The kernel writes to the area of the calling thread, whose FS is this.
pub fn enter(fs: u64) -> Answer {
    ask(area(fs), 0)
}

fn own_fs() -> Result<u64, Errno> {
    let mut fs = 0u64;
    // SAFETY: the kernel writes one address.
    unsafe { call!(libc::SYS_arch_prctl, GET_FS, &raw mut fs) }.map(|_| fs)
}

/// Where the area of the thread with this FS is, and how large; size 0: glibc has registered none.
fn area(fs: u64) -> (u64, u32) {
    (fs.wrapping_add(state().rseq_offset.load(Relaxed)), state().rseq_size.load(Relaxed))
}

fn ask((area, size): (u64, u32), flags: i32) -> Answer {
    if size == 0 {
        return Ok(0);
    }
    // SAFETY: memory of the calling thread, which glibc keeps for this.
    unsafe { call!(libc::SYS_rseq, area, size.max(SMALLEST), flags, SIGNATURE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another thread of the test than that of other tests: glibc looks at the area, too.
    #[test]
    fn the_kernel_leaves_the_area_alone() {
        let (offset, size) = registered();
        assert!(size > 0, "glibc has registered areas");
        std::thread::spawn(move || {
            let area = own_fs().unwrap().wrapping_add(offset as u64);
            // SAFETY: the thread's own memory, which the kernel may change.
            let look = || unsafe { (area as *const [u32; 4]).read_volatile() };
            let on = |cpu: usize| {
                // SAFETY: a set of processors in which one is.
                let set: libc::cpu_set_t = unsafe {
                    let mut set = std::mem::zeroed();
                    libc::CPU_SET(cpu, &mut set);
                    set
                };
                // SAFETY: the calling thread; the kernel reads the set.
                (unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } == 0).then(look)
            };
            let seen: Vec<_> = (0..64).filter_map(on).collect();
            assert!(seen.iter().zip(seen.iter().skip(1)).all(|(one, next)| one != next), "it is written: {seen:?}");
            ask((area, size), UNREGISTER).unwrap();
            let left = look();
            assert!((0..64).filter_map(on).all(|area| area == left), "it is not written any more");
            ask((area, size), 0).unwrap();
            let again: Vec<_> = (0..64).filter_map(on).collect();
            assert_eq!(again, seen);
        })
        .join()
        .unwrap();
    }
}
