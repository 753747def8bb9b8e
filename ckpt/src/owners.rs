//! Mutexes remember the thread id of their owner. When a restored process could not get its old ids, those that are held say the new
//! ones here; otherwise their owners could never release them (EPERM), and no thread could take over a robust one.
//!
//! Robust mutexes are on a list that each thread has registered with the kernel. The others that check their owner (recursive, error-checking,
//! and those with priority inheritance) are on no list: all memory that was written to is searched for glibc's pthread_mutex_t, whose five
//! first fields have to fit together.

use crate::arena::{self, Thread, state};
use crate::maps;
use crate::pages::{Extent, Scanner};
use crate::sys::{self, Errno};

/// The first fields of pthread_mutex_t (glibc, x86-64).
#[repr(C)]
struct Mutex {
    lock: u32,
    count: u32,
    owner: u32,
    users: u32,
    kind: u32,
}

/// Bits of a futex word that are no thread id: FUTEX_WAITERS and FUTEX_OWNER_DIED.
const FLAGS: u32 = 0xc000_0000;
const RECURSIVE: u32 = 1;
const ERROR_CHECKING: u32 = 2;
const ROBUST: u32 = 16;
const INHERITING: u32 = 32;
const PROTECTING: u32 = 64;
const SHARED: u32 = 128;
/// Longest robust list that the kernel follows.
const ROBUST_LIMIT: usize = 2048;

/// The new id of a thread that had another; none if nothing is to be done.
fn renamed(threads: usize, old: u32) -> Option<u32> {
    let slots = &state().slots[..threads];
    // SAFETY: the threads wait at the gate.
    let thread = slots.iter().map(|slot| unsafe { *slot.0.get() }).find(|thread| thread.tid as u32 == old)?;
    (thread.now != thread.tid).then_some(thread.now as u32)
}

/// Gives held mutexes the new ids. All threads wait at the gate.
pub fn rename(threads: usize) -> Result<(), Errno> {
    let slots = &state().slots[..threads];
    // SAFETY: as above.
    if slots.iter().map(|slot| unsafe { *slot.0.get() }).all(|thread| thread.now == thread.tid) {
        return Ok(());
    }
    for slot in slots {
        // SAFETY: as above.
        robust(unsafe { &*slot.0.get() });
    }
    // SAFETY: the coordinator's buffers are not in use during a restart.
    let (text, extents) = unsafe { (arena::scratch(arena::SCRATCH_MAPS), arena::extents()) };
    let len = sys::slurp(b"/proc/self/maps\0", text)?;
    let mut scanner = Scanner::open()?;
    for line in maps::lines(&text[..len]).filter_map(maps::parse).filter(|line| line.prot & 3 == 3 && !arena::own(line.start)) {
        // Shared memory holds shared mutexes: all of it that is mapped.
        let whole = [Extent { start: line.start, end: line.end, categories: 0 }];
        let found: &[Extent] = if line.shared {
            &whole
        } else {
            let used = scanner.extents(line.start, line.end, line.inode != 0, extents, 0)?;
            &extents[..used]
        };
        found.iter().for_each(|extent| search(threads, extent));
    }
    Ok(())
}

/// The kernel's list: mutexes whose owner the kernel tells when it dies.
fn robust(thread: &Thread) {
    if thread.robust_len == 0 || thread.now == thread.tid {
        return;
    }
    // struct robust_list_head: the first entry, the offset from an entry to its futex word, the entry that is being worked on.
    // SAFETY: the thread has registered it with the kernel, which would follow it in the same way.
    unsafe {
        let [first, offset, pending] = *(thread.robust as *const [u64; 3]);
        let mut entry = first & !1;
        for _ in 0..ROBUST_LIMIT {
            if entry == thread.robust || entry == 0 {
                break;
            }
            claim(entry.wrapping_add(offset), thread);
            entry = *(entry as *const u64) & !1;
        }
        if pending & !1 != 0 {
            claim((pending & !1).wrapping_add(offset), thread);
        }
    }
}

/// # Safety
/// There is a mutex at the address.
unsafe fn claim(at: u64, thread: &Thread) {
    // SAFETY: the caller's promise; no other thread runs.
    let mutex = unsafe { &mut *(at as *mut Mutex) };
    if mutex.lock & !FLAGS == thread.tid as u32 {
        mutex.lock = mutex.lock & FLAGS | thread.now as u32;
    }
    if mutex.owner == thread.tid as u32 {
        mutex.owner = thread.now as u32;
    }
}

fn search(threads: usize, extent: &Extent) {
    let last = extent.end - size_of::<Mutex>() as u64;
    for at in (extent.start..=last).step_by(8) {
        // SAFETY: memory of the program that is readable and writable, and no other thread runs.
        let mutex = unsafe { &mut *(at as *mut Mutex) };
        if mutex.owner != 0
            && mutex.held()
            && let Some(now) = renamed(threads, mutex.owner)
        {
            if mutex.lock & !FLAGS == mutex.owner {
                mutex.lock = mutex.lock & FLAGS | now;
            }
            mutex.owner = now;
        }
    }
}

impl Mutex {
    /// Is this a held mutex that checks its owner?
    fn held(&self) -> bool {
        let (kind, kept) = (self.kind & 3, self.kind & !(3 | ROBUST | INHERITING | PROTECTING | SHARED) == 0);
        let by_id = self.kind & (ROBUST | INHERITING) != 0;
        let lock = if by_id { self.lock & !FLAGS == self.owner } else { matches!(self.lock, 1 | 2) };
        let count = match kind {
            RECURSIVE => self.count >= 1,
            // With priority inheritance glibc counts these, too.
            ERROR_CHECKING => self.count == 0 || by_id && self.count == 1,
            _ => by_id && self.count <= 1,
        };
        kept && lock && count && self.users >= 1 && self.users < 1 << 20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(lock: u32, count: u32, owner: u32, users: u32, kind: u32) -> bool {
        Mutex { lock, count, owner, users, kind }.held()
    }

    #[test]
    fn held_mutexes_are_told_from_other_memory() {
        assert!(held(1, 1, 77, 1, RECURSIVE) && held(2, 5, 77, 1, RECURSIVE | SHARED) && held(1, 0, 77, 1, ERROR_CHECKING));
        assert!(held(77 | 0x8000_0000, 1, 77, 1, INHERITING) && held(77, 2, 77, 1, ROBUST | RECURSIVE));
        // Free; a plain one, which checks nothing; no user; something else.
        assert!(!held(0, 0, 77, 0, RECURSIVE) && !held(1, 0, 77, 1, 0) && !held(1, 1, 77, 0, RECURSIVE));
        assert!(!held(1, 1, 77, 1, 4096 | RECURSIVE) && !held(9, 0, 77, 1, INHERITING));
    }

    /// A recursive mutex as this machine's C library makes it.
    #[test]
    fn the_layout_is_that_of_the_c_library() {
        // SAFETY: a mutex on the stack, initialised and used as documented.
        unsafe {
            let mut attributes = core::mem::zeroed();
            libc::pthread_mutexattr_init(&raw mut attributes);
            libc::pthread_mutexattr_settype(&raw mut attributes, libc::PTHREAD_MUTEX_RECURSIVE);
            let mut mutex = core::mem::zeroed();
            libc::pthread_mutex_init(&raw mut mutex, &raw const attributes);
            let seen = &raw const mutex as *const Mutex;
            assert!(!(*seen).held());
            libc::pthread_mutex_lock(&raw mut mutex);
            assert!((*seen).held() && (*seen).owner == sys::gettid() as u32);
            libc::pthread_mutex_unlock(&raw mut mutex);
            assert!(!(*seen).held());
        }
    }
}
