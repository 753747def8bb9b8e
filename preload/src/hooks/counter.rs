//! `rdtsc` and `rdtscp` of the program (`--record-tsc`): each thread has the kernel make a SIGSEGV of them (PR_SET_TSC), new
//! threads by themselves, and the handler here has the program told what `ops::counter` says.
//!
//! The handler only looks at the instruction. Where a reading is to be recorded it has the thread go on in `call`, which is to
//! the program as if the instruction took longer: there the thread is in no handler, so it may wait for the layer and for other
//! threads, and be saved, as in a call of the C library.
//!
//! The kernel's page (vDSO) computes the time from the counter, so its code traps, too. The library asks the kernel itself
//! ([`sys::ask_kernel`]); for other code that uses the page (the C library within its own functions, a runtime without one) the
//! instruction is executed, because only the counter itself gives the right time there.
//!
//! Over exec the kernel would leave the next program with the trap and without a handler. The engine takes the trap away before
//! ([`radic_ckpt::launch::before_exec`]), and [`Allowed`] where the C library executes a program.

use std::arch::{naked_asm, x86_64};
use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use libc::{siginfo_t, ucontext_t};
use radic_ckpt::launch::trap_counter;

use super::signal;
use crate::ops::counter::{self, Instruction, Moment, Scale};
use crate::{callers, here, phase, real, sys};

/// The code of a SIGSEGV that is about no address (SI_KERNEL).
const OF_KERNEL: c_int = 0x80;
/// Bytes of the stack below its pointer that belong to the function that uses it (System V ABI for x86-64).
const RED_ZONE: usize = 128;
/// The registers of the processor that [`call`] keeps beside the general ones, as `xsave` numbers them: x87, SSE, AVX, AVX-512.
const KEPT: u32 = 0xe7;
/// Bytes for them: the end of those of AVX-512.
const ROOM: usize = 2_688;
/// Readings of which the best one counts.
const READINGS: usize = 16;
/// Time between the two readings that give the rate of the counter, in nanoseconds. It is then right to about a millionth.
const MEASURED_NS: u64 = 20_000_000;

/// The instruction traps, in this process.
static TRAPS: AtomicBool = AtomicBool::new(false);
/// Where the kernel's page of code is; 0: nowhere.
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// From now on the program's readings of the counter are recorded: those of the calling thread, and of all that it creates. An error: why not.
pub fn begin() -> Result<(), &'static str> {
    if !keeps_registers() {
        return Err("this processor cannot save its registers (xsave)");
    }
    let first = moment();
    _ = sys::poll(&mut [], Some(sys::span(MEASURED_NS)));
    let scale = Scale::new(first, moment()).ok_or("the counter of this machine does not count as a clock does")?;
    counter::begin(scale);
    // SAFETY: reads the auxiliary vector.
    PAGE.store(unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize, Relaxed);
    sys::ask_kernel(true);
    radic_ckpt::death::set_traps(handle);
    signal::stand_before(handler)?;
    TRAPS.store(true, Relaxed);
    if !trap_counter(true) {
        end();
        return Err("the kernel has no PR_SET_TSC");
    }
    Ok(())
}

/// Nothing traps any more in the calling thread, the only one of a child.
pub fn end() {
    if TRAPS.swap(false, Relaxed) {
        trap_counter(false);
        signal::step_back();
        sys::ask_kernel(false);
    }
}

/// The calling thread may read the counter as long as this exists: it starts a program that has no handler.
#[derive(Debug)]
pub struct Allowed(bool);

impl Allowed {
    pub fn begin() -> Self {
        Allowed(TRAPS.load(Relaxed) && trap_counter(false))
    }
}

impl Drop for Allowed {
    fn drop(&mut self) {
        // A child that shares its parent's memory never comes here.
        if self.0 {
            trap_counter(true);
        }
    }
}

/// Whether there is room for all that `xsave` writes of what is kept.
fn keeps_registers() -> bool {
    const LEAF: u32 = 0xd;
    std::is_x86_feature_detected!("xsave")
        && (2..8).filter(|part| KEPT >> part & 1 == 1).all(|part| {
            let about = x86_64::__cpuid_count(LEAF, part);
            (about.eax + about.ebx) as usize <= ROOM
        })
}

/// Counter and clock, before anything traps: of some readings the one that took the least time.
fn moment() -> Moment {
    let reading = || {
        let (before, ns, after) = (ticks(), raw(), ticks());
        (after.wrapping_sub(before), Moment { ticks: before.wrapping_add(after.wrapping_sub(before) / 2), ns })
    };
    let first = reading();
    (1..READINGS).map(|_| reading()).fold(first, |best, next| if next.0 < best.0 { next } else { best }).1
}

fn ticks() -> u64 {
    // SAFETY: the instruction is allowed where this is called.
    unsafe { x86_64::_rdtsc() }
}

/// CLOCK_MONOTONIC_RAW in nanoseconds.
fn raw() -> i64 {
    sys::clock(libc::CLOCK_MONOTONIC_RAW).unwrap_or(0)
}

extern "C" fn handler(signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    if !handle(info, context) {
        signal::pass_on(signal, info, context);
    }
}

/// Does what an instruction that reads the counter is to do, if that is why the signal came. All signals are blocked.
fn handle(info: *mut siginfo_t, context: *mut ucontext_t) -> bool {
    // SAFETY: the kernel's, both the calling thread's own.
    let (code, registers) = unsafe { ((*info).si_code, &mut (*context).uc_mcontext.gregs) };
    let at = registers[libc::REG_RIP as usize] as usize;
    let instruction = if code == OF_KERNEL && TRAPS.load(Relaxed) { decode(at) } else { None };
    let Some(instruction) = instruction else { return false };
    if !is_of_kernel(at) && phase::is_active() && !here::is_inside() {
        // SAFETY: the stack of the thread that is interrupted, where it may be written.
        unsafe { lead_to_call(registers, at) };
        return true;
    }
    let (told, processor) = if is_of_kernel(at) { execute(instruction) } else { (counter::tell(raw()), 0) };
    registers[libc::REG_RAX as usize] = i64::from(told as u32);
    registers[libc::REG_RDX as usize] = (told >> 32) as i64;
    if instruction == Instruction::CounterAndProcessor {
        registers[libc::REG_RCX as usize] = i64::from(processor);
    }
    registers[libc::REG_RIP as usize] += instruction.length() as i64;
    true
}

fn decode(at: usize) -> Option<Instruction> {
    // SAFETY: the processor has just read these bytes there, to execute them.
    Instruction::decode(|byte| unsafe { ((at + byte) as *const u8).read() })
}

/// Whether this address is in the kernel's page of code.
fn is_of_kernel(at: usize) -> bool {
    let start = PAGE.load(Relaxed);
    if start == 0 || at < start || at - start > 1 << 20 {
        return false;
    }
    // SAFETY: an ELF file that the kernel has mapped, with its program headers.
    let length = unsafe {
        let header = start as *const libc::Elf64_Ehdr;
        let programs = (start + (*header).e_phoff as usize) as *const libc::Elf64_Phdr;
        (0..usize::from((*header).e_phnum))
            .map(|place| &*programs.add(place))
            .filter(|program| program.p_type == libc::PT_LOAD)
            .map(|program| program.p_vaddr + program.p_memsz)
            .max()
    };
    at - start < length.unwrap_or(0) as usize
}

/// What the instruction itself says: the counter, and the number of the processor.
fn execute(instruction: Instruction) -> (u64, u32) {
    let mut processor = 0;
    trap_counter(false);
    let ticks = match instruction {
        Instruction::Counter => ticks(),
        // SAFETY: it writes the number; the processor has the instruction, which traps.
        Instruction::CounterAndProcessor => unsafe { x86_64::__rdtscp(&raw mut processor) },
    };
    trap_counter(true);
    (ticks, processor)
}

/// Has the thread go on in [`call`], which finds the address of the instruction on the stack.
///
/// # Safety
/// The registers are those of the interrupted thread, whose stack is a stack.
unsafe fn lead_to_call(registers: &mut [i64; 23], at: usize) {
    let stack = registers[libc::REG_RSP as usize] as usize - RED_ZONE - size_of::<usize>();
    // SAFETY: below all that the thread uses of its stack.
    unsafe { (stack as *mut usize).write(at) };
    registers[libc::REG_RSP as usize] = stack as i64;
    registers[libc::REG_RIP as usize] = call as *const () as i64;
}

/// What [`call`] has saved, and puts back.
#[repr(C)]
struct Frame {
    kept: [u64; 7],
    rdx: u64,
    rcx: u64,
    rax: u64,
    flags: u64,
    /// Where the thread goes on: at first the address of the instruction.
    next: u64,
}

const _: () = assert!(offset_of!(Frame, next) == 88, "as many words as `call` saves");

/// What the thread executes instead of the instruction. All registers but those that the instruction writes are as before, those of vectors, too.
#[unsafe(naked)]
extern "C" fn call() {
    naked_asm!(
        "pushfq",
        "cld",
        "push rax", "push rcx", "push rdx", "push rsi", "push rdi", "push r8", "push r9", "push r10", "push r11", "push rbx",
        "mov rbx, rsp",
        "sub rsp, {room}",
        "and rsp, -64",
        // The head of what is saved has to be zero where xsave writes nothing.
        "xor eax, eax",
        "mov [rsp + 512], rax", "mov [rsp + 520], rax", "mov [rsp + 528], rax", "mov [rsp + 536], rax",
        "mov [rsp + 544], rax", "mov [rsp + 552], rax", "mov [rsp + 560], rax", "mov [rsp + 568], rax",
        "mov eax, {kept}",
        "xor edx, edx",
        "xsave64 [rsp]",
        "mov rdi, rbx",
        "call {answer}",
        "mov eax, {kept}",
        "xor edx, edx",
        "xrstor64 [rsp]",
        "mov rsp, rbx",
        "pop rbx", "pop r11", "pop r10", "pop r9", "pop r8", "pop rdi", "pop rsi", "pop rdx", "pop rcx", "pop rax",
        "popfq",
        "ret {red_zone}",
        room = const ROOM,
        kept = const KEPT,
        red_zone = const RED_ZONE,
        answer = sym answer,
    )
}

/// What the instruction does. The number of the processor is always 0: one that does not change need not be recorded, and a thread may be moved at any time.
extern "C" fn answer(frame: &mut Frame) {
    let errno = real::errno();
    let at = frame.next as usize;
    let told = if callers::is_program(at) { counter::read(raw) } else { counter::tell(raw()) };
    (frame.rax, frame.rdx) = (told & u64::from(u32::MAX), told >> 32);
    let instruction = decode(at);
    if instruction == Some(Instruction::CounterAndProcessor) {
        frame.rcx = 0;
    }
    frame.next += instruction.map_or(0, Instruction::length) as u64;
    real::set_errno(errno);
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    /// Of this thread, in a process without a layer.
    #[test]
    fn the_counter_is_told_where_it_traps() {
        begin().unwrap();
        let (first, mut processor) = (ticks(), 77);
        // SAFETY: it writes the number.
        let second = unsafe { x86_64::__rdtscp(&raw mut processor) };
        // The standard library's clock is read by our hook; this one by the kernel's page, in the C library.
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: it writes the time.
        let base = unsafe { timespec_get(&raw mut now, 1) };
        end();
        let third = ticks();
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert!(first <= second && processor == 0, "{first} {second} {processor}");
        // What was told is near the counter itself.
        assert!(third.abs_diff(second) < 10_000_000_000, "{second} {third}");
        assert!(base == 1 && (since_1970.as_secs() as i64).abs_diff(now.tv_sec) < 60);
    }

    unsafe extern "C" {
        fn timespec_get(to: *mut libc::timespec, base: c_int) -> c_int;
    }
}
