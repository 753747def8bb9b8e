//! The restorer: clears the address space it runs in, rebuilds that of the saved process from the image's runs, and jumps to the
//! library's restart entry, which does everything else. It uses nothing but its own range (plan::RESTORER_BASE).
//!
//! Everything that can be checked has been checked before it starts; what fails here (no memory, the image ends early) ends
//! the process with code 125 and a line on standard error, before the program has run again.
#![no_std]
#![no_main]
#![allow(dead_code, reason = "the shared files hold more than the restorer needs")]

use core::arch::{asm, naked_asm};

#[path = "../src/crc.rs"]
mod crc;
#[path = "../src/image/format.rs"]
mod format;
#[path = "../src/page.rs"]
mod page;
#[path = "../src/plan.rs"]
mod plan;

use crc::crc32c;
use format::{ADDRESS_END, Codec, RECORD_BYTES, Record, Run, run_crc};
use plan::{ASIDE_BASE, ASIDE_SPAN, Plan, PlanRegion, RESTORER_BASE, RESTORER_SPAN};

const READ: i64 = 0;
const WRITE: i64 = 1;
const MMAP: i64 = 9;
const MPROTECT: i64 = 10;
const MUNMAP: i64 = 11;
const READV: i64 = 19;
const MREMAP: i64 = 25;
const MADVISE: i64 = 28;
const EXIT_GROUP: i64 = 231;
const EINTR: isize = -4;
const PROT_READ_WRITE: u32 = 3;
const MAP_FIXED_NOREPLACE: u32 = 0x10_0000;
const MREMAP_MAYMOVE_FIXED: u64 = 3;
const MADV_POPULATE_WRITE: u64 = 23;
const MLOCK: i64 = 149;
/// Advice bits, and how they are given: DONTDUMP, DONTFORK, HUGEPAGE, NOHUGEPAGE, WIPEONFORK.
const ADVICE: [(u16, u64); 5] = [(1, 16), (2, 10), (4, 14), (8, 15), (16, 18)];
const LOCKED: u16 = 32;
const FAILED: u64 = 125;

/// Entered by the constructor, on the restorer's own stack, with the plan's address in rdi.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text._start")]
extern "C" fn _start() -> ! {
    naked_asm!("and rsp, -16", "call {main}", "ud2", main = sym restore)
}

unsafe fn call(number: i64, args: [u64; 6]) -> isize {
    let mut result = number as isize;
    // SAFETY: the kernel's calling convention. Nothing of the old address space is in use any more, except what the plan names.
    unsafe {
        asm!("syscall", inlateout("rax") result, in("rdi") args[0], in("rsi") args[1], in("rdx") args[2], in("r10") args[3],
            in("r8") args[4], in("r9") args[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

fn fail(what: &str) -> ! {
    for part in ["radic: the process cannot be restored: ", what, "\n"] {
        // SAFETY: reads the text.
        unsafe { call(WRITE, [2, part.as_ptr() as u64, part.len() as u64, 0, 0, 0]) };
    }
    loop {
        // SAFETY: does not return.
        unsafe { call(EXIT_GROUP, [FAILED, 0, 0, 0, 0, 0]) };
    }
}

extern "C" fn restore(plan: &Plan) -> ! {
    // SAFETY: the constructor has put that many regions behind the plan.
    let regions = unsafe { core::slice::from_raw_parts((&raw const *plan).add(1).cast::<PlanRegion>(), plan.regions as usize) };
    clear(plan);
    for region in regions {
        map(region);
    }
    fill(plan);
    for region in regions.iter().filter(|r| r.filled != 0 && r.prot != PROT_READ_WRITE) {
        // SAFETY: changes what was mapped above.
        if unsafe { call(MPROTECT, [region.start, region.len, u64::from(region.prot), 0, 0, 0]) } < 0 {
            fail("mprotect failed");
        }
    }
    for (i, special) in plan.specials.iter().enumerate().filter(|(_, s)| s.len > 0) {
        move_special(aside(i), special.to, special.len);
    }
    // SAFETY: the entry is in the library, which is mapped and filled; it expects rsp to be 8 below a multiple of 16.
    unsafe {
        asm!("mov rsp, {stack}", "xor ebp, ebp", "push 0", "jmp {entry}", stack = in(reg) plan.stack, entry = in(reg) plan.entry,
            in("rdi") &raw const *plan, options(noreturn));
    }
}

fn aside(index: usize) -> u64 {
    ASIDE_BASE + ASIDE_SPAN * index as u64
}

fn move_special(from: u64, to: u64, len: u64) {
    // SAFETY: both ranges are the plan's to decide.
    if unsafe { call(MREMAP, [from, len, len, MREMAP_MAYMOVE_FIXED, to, 0]) } < 0 {
        fail("this kernel does not let the vdso be moved");
    }
}

/// Moves the kernel's own mappings aside and unmaps everything outside the restorer's range.
fn clear(plan: &Plan) {
    for (i, special) in plan.specials.iter().enumerate().filter(|(_, s)| s.len > 0) {
        move_special(special.from, aside(i), special.len);
    }
    let end = RESTORER_BASE + RESTORER_SPAN;
    // SAFETY: nothing out there is in use any more.
    let cleared =
        unsafe { call(MUNMAP, [0, RESTORER_BASE, 0, 0, 0, 0]) >= 0 && call(MUNMAP, [end, ADDRESS_END - end, 0, 0, 0, 0]) >= 0 };
    if !cleared {
        fail("munmap failed");
    }
}

fn map(region: &PlanRegion) {
    let prot = if region.filled != 0 { region.prot | PROT_READ_WRITE } else { region.prot };
    let flags = u64::from(region.flags | MAP_FIXED_NOREPLACE);
    // SAFETY: NOREPLACE: it hits nothing that is in use.
    let got = unsafe { call(MMAP, [region.start, region.len, u64::from(prot), flags, region.fd as u64, region.offset]) };
    if got as u64 != region.start {
        fail("a region could not be mapped (out of memory, or a limit on address space)");
    }
    for (_, how) in ADVICE.iter().filter(|(bit, _)| region.advice & bit != 0) {
        // SAFETY: a fresh mapping. Advice that this kernel does not know is no loss.
        unsafe { call(MADVISE, [region.start, region.len, *how, 0, 0, 0]) };
    }
    if region.advice & LOCKED != 0 {
        // SAFETY: as above; the limit on locked memory may be lower here.
        unsafe { call(MLOCK, [region.start, region.len, 0, 0, 0, 0]) };
    }
}

fn read_all(fd: i32, mut at: u64, mut len: u64) {
    while len > 0 {
        // SAFETY: the range lies in a region that was mapped for it (checked by the constructor), or in the restorer's own.
        match unsafe { call(READ, [fd as u64, at, len, 0, 0, 0]) } {
            0 => fail("the image ends early"),
            EINTR => {}
            done if done < 0 => fail("the image cannot be read"),
            done => {
                at += done as u64;
                len -= done as u64;
            }
        }
    }
}

/// Reads a run's memory and the record after it with one call, where the kernel gives both at once.
fn read_run(fd: i32, run: &Run, next: &mut [u8; RECORD_BYTES]) {
    let len = u64::from(run.len);
    let parts: [u64; 4] = [run.addr, len, next.as_mut_ptr() as u64, RECORD_BYTES as u64];
    // SAFETY: as in read_all.
    let done = match unsafe { call(READV, [fd as u64, parts.as_ptr() as u64, 2, 0, 0, 0]) } {
        0 => fail("the image ends early"),
        EINTR => 0,
        done if done < 0 => fail("the image cannot be read"),
        done => done as u64,
    };
    if done < len {
        read_all(fd, run.addr + done, len - done);
    }
    let of_next = done.saturating_sub(len);
    read_all(fd, next.as_mut_ptr() as u64 + of_next, RECORD_BYTES as u64 - of_next);
}

/// Reads the runs into their regions, up to the end record.
fn fill(plan: &Plan) {
    let (mut runs, mut bytes, mut crc) = (0u64, plan.bytes_before, plan.crc_before);
    let mut head = [0u8; RECORD_BYTES];
    read_all(plan.image_fd, head.as_mut_ptr() as u64, RECORD_BYTES as u64);
    loop {
        match Record::decode(&head) {
            Err(_) => fail("the image is damaged: a record makes no sense"),
            Ok(Record::End(end)) if end.runs == runs && end.bytes == bytes && end.crc == crc => return,
            Ok(Record::End(_)) => fail("the image is damaged: the end record does not match"),
            Ok(Record::Run(run)) => {
                crc = crc32c(crc, &head);
                runs += 1;
                bytes += RECORD_BYTES as u64 + u64::from(run.stored);
                fill_run(plan.image_fd, &run, &mut head);
            }
        }
    }
}

fn fill_run(fd: i32, run: &Run, next: &mut [u8; RECORD_BYTES]) {
    if run.addr < RESTORER_BASE + RESTORER_SPAN && run.addr + u64::from(run.len) > RESTORER_BASE {
        fail("the image is hostile: a run lies in the restorer");
    }
    // Fewer faults; where the kernel does not know the advice, the faults come one by one.
    // SAFETY: only makes pages present.
    unsafe { call(MADVISE, [run.addr, u64::from(run.len), MADV_POPULATE_WRITE, 0, 0, 0]) };
    match run.codec {
        Codec::Lz4 | Codec::Kept => fail("the image was not unpacked for the restorer"),
        Codec::Raw => {
            read_run(fd, run, next);
            // SAFETY: the run was just read into a mapped region.
            let memory = unsafe { core::slice::from_raw_parts(run.addr as *const u8, run.len as usize) };
            if run_crc(run.addr, run.len, memory) != run.crc {
                fail("the image is damaged: the checksum of a run does not match");
            }
        }
        Codec::Zero => {
            // SAFETY: a mapped region, as for the read.
            unsafe { memset(run.addr as *mut u8, 0, run.len as usize) };
            read_all(fd, next.as_mut_ptr() as u64, RECORD_BYTES as u64);
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    fail("the restorer has a bug")
}

/// The compiler calls this to copy memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: the caller's ranges.
    unsafe { asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack)) };
    to
}

/// The compiler calls this to fill memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, len: usize) -> *mut u8 {
    // SAFETY: the caller's range.
    unsafe { asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") value as u8, options(nostack)) };
    to
}

/// The compiler calls this to compare memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    for i in 0..len {
        // SAFETY: the caller's ranges. Volatile, or the compiler would make a call to bcmp of it.
        if unsafe { a.add(i).read_volatile() != b.add(i).read_volatile() } {
            return 1;
        }
    }
    0
}

/// The compiler calls this to compare memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    for i in 0..len {
        // SAFETY: the caller's ranges.
        let (x, y) = unsafe { (a.add(i).read_volatile(), b.add(i).read_volatile()) };
        if x != y {
            return i32::from(x) - i32::from(y);
        }
    }
    0
}
