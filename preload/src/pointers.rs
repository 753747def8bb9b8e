//! Whether the program's pointers lead anywhere. The kernel answers EFAULT to one that does not. The layer reads and writes the program's memory itself, so
//! it must say the same before it touches that.
//!
//! The kernel is asked about the first and the last page, by a call that reads (or writes) there and does nothing else; what lies between has only to be
//! mapped. A program sends and receives with the same few buffers again and again. So the pages that were there lately are remembered, and nothing is asked
//! of a buffer that begins and ends in such pages: no message costs a system call for this. A page that was unmapped since is taken for one that is there.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::real;

const PAGE: usize = 4096;
/// Nothing is mapped below.
const LOWEST: usize = PAGE;
/// Nor from here on, for a program.
const HIGHEST: usize = 1 << 47;
/// Most bytes that the kernel moves in one call; of what is more than that only so much counts.
pub const MOST: usize = 0x7fff_f000;

/// What is to be done with the memory.
#[derive(Debug, Clone, Copy)]
enum Access {
    Read,
    Write,
}

/// How many places for them there are.
const LATELY_BITS: u32 = 9;
/// Pages that were there lately, by access and a hash of their number: buffers often lie a power of two apart.
static LATELY: [[AtomicUsize; 1 << LATELY_BITS]; 2] = [const { [const { AtomicUsize::new(0) }; 1 << LATELY_BITS] }; 2];

/// Whether this many bytes can be read there. A length of 0 always can.
#[inline]
pub fn is_readable<T>(start: *const T, length: usize) -> bool {
    is_there(start as usize, length, Access::Read)
}

/// Whether this many bytes can be written there. A length of 0 always can.
#[inline]
pub fn is_writable<T>(start: *const T, length: usize) -> bool {
    is_there(start as usize, length, Access::Write)
}

/// Whether bytes can be received there. There may be room for fewer than `length`: the kernel looks at that when as many have
/// come.
#[inline]
pub fn can_take<T>(start: *const T, length: usize) -> bool {
    let ends = || (start as usize).checked_add(length).is_some_and(|end| end <= HIGHEST);
    is_writable(start, length.min(1)) && (length == 0 || ends())
}

/// What lies there; none: nothing does.
pub fn read<T: Copy>(from: *const T) -> Option<T> {
    // SAFETY: it can be read, and every caller's type is plain numbers, of which any bytes are valid ones.
    is_readable(from, size_of::<T>()).then(|| unsafe { from.read_unaligned() })
}

#[inline]
fn is_there(start: usize, length: usize, access: Access) -> bool {
    let Some(more) = length.checked_sub(1) else { return true };
    let Some(last) = start.checked_add(more).filter(|last| start >= LOWEST && *last < HIGHEST) else { return false };
    let (first, last) = (start / PAGE, last / PAGE);
    let first_known = is_known(first, access);
    let last_known = if first == last { first_known } else { is_known(last, access) };
    first_known && last_known || look((first, first_known), (last, last_known), access)
}

fn entry(page: usize, access: Access) -> &'static AtomicUsize {
    &LATELY[access as usize][(page ^ page >> LATELY_BITS) % (1 << LATELY_BITS)]
}

fn is_known(page: usize, access: Access) -> bool {
    entry(page, access).load(Ordering::Relaxed) == page
}

/// Asks about what is not known.
#[cold]
fn look((first, first_known): (usize, bool), (last, last_known): (usize, bool), access: Access) -> bool {
    let errno = real::errno();
    let has_all = last - first < 2 || is_mapped(first, last);
    let there = has_all && (first_known || touch(first, access)) && (last_known || touch(last, access));
    real::set_errno(errno);
    if there {
        [first, last].iter().for_each(|page| entry(*page, access).store(*page, Ordering::Relaxed));
    }
    there
}

fn is_mapped(first: usize, last: usize) -> bool {
    // SAFETY: MS_ASYNC has no effect on memory; the kernel checks the addresses.
    unsafe { libc::syscall(libc::SYS_msync, first * PAGE, (last - first + 1) * PAGE, libc::MS_ASYNC) == 0 }
}

fn touch(page: usize, access: Access) -> bool {
    let refused = match access {
        // SAFETY: the kernel reads a mask of 8 bytes there, and does nothing with it, for there is no such operation.
        Access::Read => unsafe { libc::syscall(libc::SYS_rt_sigprocmask, i32::MAX, page * PAGE, ptr::null::<u8>(), 8) },
        Access::Write => add_nothing(page * PAGE),
    };
    refused == 0 || real::errno() != libc::EFAULT
}

/// Has the kernel add 0, atomically, to the number at `address`.
fn add_nothing(address: usize) -> i64 {
    /// FUTEX_OP_ADD of 0. A thread that waits there is woken if the number was -2048: it has to expect to be woken for nothing.
    const ADD_0: u32 = 1 << 28 | 0x800;
    static NOBODY: AtomicU32 = AtomicU32::new(0);
    let operation = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel checks the address, and leaves there what is there. No thread waits at `NOBODY`.
    unsafe { libc::syscall(libc::SYS_futex, NOBODY.as_ptr(), operation, 0, 0usize, address, ADD_0) }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    use super::*;

    #[test]
    fn what_is_there_and_what_is_not() {
        // SAFETY: the mapping is this test's own, and given back page by page.
        unsafe {
            let flags = ProtFlags::READ | ProtFlags::WRITE;
            let pages = mmap_anonymous(ptr::null_mut(), 5 * PAGE, flags, MapFlags::PRIVATE).unwrap().cast::<u8>();
            pages.write(7);
            let page = |number: usize| pages.add(number * PAGE);
            mprotect(page(1).cast(), PAGE, MprotectFlags::READ).unwrap();
            mprotect(page(2).cast(), PAGE, MprotectFlags::empty()).unwrap();
            munmap(page(3).cast(), PAGE).unwrap();
            real::set_errno(99);
            let seen = |start, length| (is_readable(start, length), is_writable(start, length));
            for _ in 0..2 {
                assert_eq!(seen(pages, PAGE), (true, true));
                assert_eq!(seen(pages.cast_const().add(1), PAGE), (true, false), "to the first byte of the next one");
                assert_eq!(
                    (seen(page(1), 1), seen(page(2), 1), seen(page(3), 1)),
                    ((true, false), (false, false), (false, false))
                );
                assert_eq!(seen(page(3), 2 * PAGE), (false, false), "a hole");
            }
            assert_eq!(seen(page(0), 5 * PAGE), (false, false), "a hole between");
            assert_eq!(seen(page(4), PAGE), (true, true));
            assert_eq!((pages.read(), real::errno()), (7, 99), "nothing has changed");
            for nowhere in [0usize, 1, HIGHEST, usize::MAX] {
                assert_eq!(seen(nowhere as *const u8, 1), (false, false));
                assert_eq!(seen(nowhere as *const u8, 0), (true, true));
            }
            assert_eq!(seen(pages, usize::MAX), (false, false));
            let takes =
                [(0, PAGE), (0, 1 << 30), (0, usize::MAX), (1, 1), (3, 1), (3, 0)].map(|(at, length)| can_take(page(at), length));
            assert_eq!(takes, [true, true, false, false, false, true]);
            assert_eq!((read(pages.cast::<u64>()), read(page(3).cast::<u64>())), (Some(7), None));
            munmap(pages.cast(), 3 * PAGE).unwrap();
            munmap(page(4).cast(), PAGE).unwrap();
        }
    }
}
