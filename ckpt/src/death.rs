//! What is kept of a restored process that dies before it lives again: registers, memory map and the faulting address, in a file whose
//! path came with the restart ([`DEATH_VARIABLE`](crate::launch::DEATH_VARIABLE)). Without a path nothing here does anything.
//!
//! From the first moment of the restart on, handlers of the engine stand before the program's for the signals by which processes die of
//! themselves. A handler writes the report, puts the program's own disposition back and lets the signal go its way: a fault happens
//! again, any other signal is sent again with all that it carries. So the program's handler, or the default, decides how the process
//! ends. When the process lives, [`settled`] puts back what is left.
//!
//! No image has such a handler for the program's: the engine itself learns of dispositions only by `sigaction::program_action`. A program that
//! asks while it catches up sees ours, and may set it again later: then it does what the program's own would.
//!
//! No libc, no allocation, no lock that is waited for without a bound: the process may have died in any of them. All large buffers are
//! static.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64};

use crate::arena::{KernelAction, Tables, state};
use crate::maps;
use crate::plan::PATH_BYTES;
use crate::sigaction::{self, Kept, SA_RESTORER, WATCHED, action as set_action, is_ours, kept, return_from_signal};
use crate::signals::give;
use crate::sys::{self, Errno, call};

mod report;
mod text;

pub use report::{MOST_READ, Report, signal_name};
use text::Text;

/// Those of them that a thread causes by an instruction: blocked, they end the process without its handler.
const FAULTS: [i32; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
/// A signal's code for advice about memory that no thread has touched yet (BUS_MCEERR_AO).
const ADVICE_ON_MEMORY: i32 = 5;
/// Bytes of a report's copy of the memory map.
const MOST_MAPS: usize = 1 << 20;
/// Bytes of code and of stack in a report.
const CODE: usize = 32;
const STACK: usize = 256;
/// How long a thread that dies waits for the report of another one.
const PATIENCE_NS: u64 = 2_000_000_000;

/// Handles a SIGSEGV, if it is one that it knows.
pub type Trap = fn(*mut libc::siginfo_t, *mut libc::ucontext_t) -> bool;

/// Where a process is on its way back.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It was never restored, or lives, or no report is wanted.
    Settled = 0,
    /// The engine makes it what it was: no thread is in the program.
    Restoring,
    /// The program goes on, and does not live yet.
    CatchingUp,
}

/// The report, which is written once.
#[repr(u32)]
enum Claim {
    Free = 0,
    Writing,
    Written,
}

/// Memory that has one user at a time.
struct Own<T>(UnsafeCell<T>);

// SAFETY: the path is written while there is one thread, and only read later; the buffer belongs to the one that holds the claim.
unsafe impl<T> Sync for Own<T> {}

/// Bytes that are put together before they are written, and of the map that are read at once: more than its longest line.
const BUFFER: usize = 8192;

static PHASE: AtomicU8 = AtomicU8::new(Phase::Settled as u8);
/// The process that is reported when it dies. It must be named, for a child that it forks inherits the handlers.
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// CLOCK_MONOTONIC at the beginning of the restart, in nanoseconds.
static BEGAN: AtomicU64 = AtomicU64::new(0);
static CLAIM: AtomicU32 = AtomicU32::new(Claim::Free as u32);
/// Of the library that embeds the engine, to which a SIGSEGV is offered first; 0: there is none. An address, for the image keeps it.
static TRAPS: AtomicU64 = AtomicU64::new(0);
static PATH: Own<[u8; PATH_BYTES]> = Own(UnsafeCell::new([0; PATH_BYTES]));
static BUFFERS: Own<[[u8; BUFFER]; 2]> = Own(UnsafeCell::new([[0; BUFFER]; 2]));

fn phase() -> Phase {
    match PHASE.load(Acquire) {
        1 => Phase::Restoring,
        2 => Phase::CatchingUp,
        _ => Phase::Settled,
    }
}

/// Has a SIGSEGV of a process on its way back offered to this function first. It says whether the signal was a trap, which it has handled, and no death.
pub fn set_traps(handle: Trap) {
    TRAPS.store(handle as *const () as u64, Relaxed);
}

/// Whether the signal was a trap of the library that embeds the engine.
fn is_trap(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) -> bool {
    let handle = if signal == libc::SIGSEGV { TRAPS.load(Relaxed) } else { 0 };
    // SAFETY: nothing but a function of this type is ever stored there.
    handle != 0 && unsafe { core::mem::transmute::<u64, Trap>(handle) }(info, context)
}

/// The first thing of a restart, with the path of the report, which ends with a zero byte; an empty one: no report is wanted. Only the calling
/// thread is there.
pub(crate) fn begin(path: &[u8; PATH_BYTES], tables: &Tables) -> Result<(), Errno> {
    // What the image says of these is of an earlier incarnation.
    let phase = if path[0] == 0 { Phase::Settled } else { Phase::Restoring };
    PHASE.store(phase as u8, Relaxed);
    CLAIM.store(Claim::Free as u32, Relaxed);
    PROCESS.store(sys::getpid(), Relaxed);
    BEGAN.store(sys::clock(libc::CLOCK_MONOTONIC), Relaxed);
    if phase == Phase::Settled {
        return Ok(());
    }
    // SAFETY: no other thread runs.
    unsafe { *PATH.0.get() = *path };
    for signal in WATCHED {
        let action = &tables.actions[signal as usize - 1];
        if let (true, Some(kept)) = (stands_before(action), kept(signal)) {
            kept.set(action);
            // SAFETY: the handler is prepared for every moment from now on.
            unsafe { set_action(signal, Some(&before(action))) }?;
        }
    }
    open_faults();
    Ok(())
}

/// Whether a handler of ours stands before this disposition: what the program ignores must not even interrupt a call.
fn stands_before(action: &KernelAction) -> bool {
    action.handler != libc::SIG_IGN as u64
}

/// The disposition that stands before one of the program. Calls go on, or end, as by that one.
fn before(action: &KernelAction) -> KernelAction {
    sigaction::set_ours(handler as *const () as u64);
    let restarts =
        if action.handler == libc::SIG_DFL as u64 { libc::SA_RESTART as u64 } else { action.flags & libc::SA_RESTART as u64 };
    KernelAction {
        handler: handler as *const () as u64,
        flags: (libc::SA_SIGINFO | libc::SA_ONSTACK) as u64 | restarts | SA_RESTORER,
        restorer: return_from_signal as *const () as u64,
        mask: u64::MAX,
    }
}

/// Whether the program's disposition of a signal waits behind ours: the restart leaves it so.
pub(crate) fn is_before(signal: i32, action: &KernelAction) -> bool {
    phase() != Phase::Settled && stands_before(action) && kept(signal).is_some()
}

fn mask_of(signals: &[i32]) -> u64 {
    signals.iter().fold(0, |mask, signal| mask | 1 << (signal - 1))
}

/// Lets a fault of the calling thread reach its handler, where all signals are blocked for the engine's sake.
pub(crate) fn open_faults() {
    if phase() != Phase::Settled {
        sys::mask_signals(libc::SIG_UNBLOCK, mask_of(&FAULTS));
    }
}

/// The threads are about to go on in the program.
pub(crate) fn handle_restored() {
    let _ = PHASE.compare_exchange(Phase::Restoring as u8, Phase::CatchingUp as u8, Release, Relaxed);
}

/// The process lives: its end is its own from now on, and no report is written.
pub fn settled() {
    if PHASE.swap(Phase::Settled as u8, SeqCst) != Phase::Settled as u8 {
        WATCHED.iter().for_each(|signal| put_back(*signal));
    }
}

/// Puts the program's own disposition in the place of ours, unless the program has set another one since.
fn put_back(signal: i32) {
    let Some(kept) = kept(signal) else { return };
    // SAFETY: the first only reads; the others set what the program had set itself.
    unsafe {
        if set_action(signal, None).is_ok_and(|action| is_ours(&action)) {
            // Between the two the program may have set its own.
            if let Ok(found) = set_action(signal, Some(&kept.get()))
                && !is_ours(&found)
            {
                let _ = set_action(signal, Some(&found));
            }
        }
    }
}

/// The process ends itself, for this reason. If it is on its way back, its report begins with the reason.
pub fn note(parts: &[&str]) {
    if phase() == Phase::Settled || PROCESS.load(Relaxed) != sys::getpid() {
        return;
    }
    if let Some(mut text) = claim() {
        text.reason(parts);
        about(&mut text);
        copy_maps(&mut text);
        return finish(text);
    }
    await_report();
    // There is a report already, of a signal that the program has handled: the reason goes behind it. The thread that writes that report may still use the
    // buffers, so this one has a buffer of its own.
    if let Ok(fd) = sys::open(path(), libc::O_WRONLY | libc::O_APPEND | libc::O_NOFOLLOW, 0) {
        let mut own = [0; 512];
        let mut text = Text::new(&mut own, fd);
        text.reason(parts);
        text.flush();
        sys::close(fd);
    }
}

fn path() -> &'static [u8] {
    // SAFETY: written while there was one thread.
    let path = unsafe { &*PATH.0.get() };
    let end = path.iter().position(|byte| *byte == 0).unwrap_or(PATH_BYTES - 1);
    &path[..=end]
}

/// The beginning of the report, for the thread that is to write it. None: another thread writes it or has written it, or no file can be made.
fn claim() -> Option<Text<'static>> {
    CLAIM.compare_exchange(Claim::Free as u32, Claim::Writing as u32, SeqCst, Relaxed).ok()?;
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    let Ok(fd) = sys::open(path(), flags, 0o600) else {
        give_way();
        return None;
    };
    // The program's umask may leave nothing of the mode.
    // SAFETY: no memory is involved.
    let _ = unsafe { call!(libc::SYS_fchmod, fd, 0o600) };
    // SAFETY: the claim is ours.
    let [room, _] = unsafe { &mut *BUFFERS.0.get() };
    Some(Text::new(room, fd))
}

fn finish(mut text: Text<'_>) {
    text.flush();
    sys::close(text.fd);
    give_way();
}

/// The report is written: a thread that waits for it may go on to its end.
fn give_way() {
    CLAIM.store(Claim::Written as u32, Release);
    sys::futex_wake(&CLAIM);
}

/// Waits for the report of another thread: else this thread's death would end it in the middle.
fn await_report() {
    let deadline = sys::clock(libc::CLOCK_MONOTONIC) + PATIENCE_NS;
    while CLAIM.load(Acquire) == Claim::Writing as u32 && sys::clock(libc::CLOCK_MONOTONIC) < deadline {
        sys::futex_wait(&CLAIM, Claim::Writing as u32, Some(PATIENCE_NS / 100));
    }
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    if is_trap(signal, info, context) {
        return;
    }
    // SAFETY: the kernel gives a valid siginfo.
    let code = unsafe { (*info).si_code };
    let phase = if PROCESS.load(Relaxed) == sys::getpid() { phase() } else { Phase::Settled };
    if phase == Phase::Restoring && code <= 0 {
        return put_off(signal, info, context);
    }
    if phase != Phase::Settled {
        match claim() {
            Some(text) => write(text, signal, info, context, phase),
            None => await_report(),
        }
    }
    if phase == Phase::Restoring {
        // No handler of the program may run before the program does.
        // SAFETY: the default needs no handler.
        let _ = unsafe { set_action(signal, Some(&KernelAction::default())) };
    } else {
        put_back(signal);
    }
    if !comes_again(signal, code) {
        // SAFETY: the kernel's, of that size.
        give(unsafe { &*info.cast::<[u64; 16]>() });
    }
}

/// Whether the instruction that was interrupted causes the signal again: not after a trap, which comes when it is done, nor when the signal
/// was sent.
fn comes_again(signal: i32, code: i32) -> bool {
    match signal {
        libc::SIGSEGV | libc::SIGILL | libc::SIGFPE => code > 0,
        libc::SIGBUS => code > 0 && code != ADVICE_ON_MEMORY,
        _ => false,
    }
}

/// A signal that was sent while the engine is at work waits until threads go on, as it would if faults were not let through.
fn put_off(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the frame is the calling thread's own; the kernel reads one siginfo, and a process may send itself anything.
    unsafe {
        let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
        mask.write(mask.read() | mask_of(&WATCHED));
        let _ = call!(libc::SYS_rt_sigqueueinfo, sys::getpid(), signal, info);
    }
}

/// Names of `gregs`, in the kernel's order.
const REGISTERS: [&str; 23] = [
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx", "rsp", "rip",
    "eflags", "csgsfs", "error", "trap", "oldmask", "cr2",
];

fn write(mut text: Text<'_>, signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t, phase: Phase) {
    // SAFETY: the kernel's, both the calling thread's own.
    let (info, registers) = unsafe { (&*info, &(*context).uc_mcontext.gregs) };
    text.number("signal", signal as u64);
    text.signed("code", info.si_code);
    if info.si_code > 0 {
        // SAFETY: a fault's; of a system call that was trapped it is the call's address.
        text.hex("address", unsafe { info.si_addr() } as u64);
    } else {
        // SAFETY: a signal's that was sent.
        let (pid, uid) = unsafe { (info.si_pid(), info.si_uid()) };
        text.signed("sender-pid", pid);
        text.number("sender-uid", uid.into());
    }
    let action = kept(signal).map(Kept::get).unwrap_or_default();
    text.hex("program-handler", action.handler);
    text.word("phase", if phase == Phase::Restoring { "restoring" } else { "catching-up" });
    about(&mut text);
    for (name, value) in REGISTERS.iter().zip(registers) {
        text.hex(name, *value as u64);
    }
    let (mut fs, mut gs) = (0u64, 0u64);
    // SAFETY: the kernel writes one word each.
    unsafe {
        let _ = call!(libc::SYS_arch_prctl, 0x1003, &raw mut fs);
        let _ = call!(libc::SYS_arch_prctl, 0x1004, &raw mut gs);
    }
    text.hex("fs-base", fs);
    text.hex("gs-base", gs);
    let (rip, rsp) = (registers[libc::REG_RIP as usize] as u64, registers[libc::REG_RSP as usize] as u64);
    // SAFETY: as above.
    let address = if info.si_code > 0 { unsafe { info.si_addr() as u64 } } else { rip };
    for (name, at) in [("mapping-of-rip", rip), ("mapping-of-rsp", rsp), ("mapping-of-address", address)] {
        each_mapping(|line| {
            if maps::parse(line).is_some_and(|line| (line.start..line.end).contains(&at)) {
                text.line(name, line);
            }
            true
        });
    }
    peeked::<CODE>(&mut text, "code", rip);
    peeked::<STACK>(&mut text, "stack", rsp);
    copy_maps(&mut text);
    finish(text);
}

/// Memory of the process, as far as it can be read.
fn peeked<const N: usize>(text: &mut Text<'_>, name: &str, at: u64) {
    let mut bytes = [0; N];
    let have = sys::peek(at, &mut bytes).unwrap_or(0);
    text.bytes(name, &bytes[..have.min(N)]);
}

/// The part of the report that is the same for every death.
fn about(text: &mut Text<'_>) {
    text.signed("pid", sys::getpid());
    text.signed("tid", sys::gettid());
    text.hex("image", state().image.load(Relaxed));
    text.number("generation", state().generation.load(Relaxed).into());
    text.number("restored", state().restored.load(Relaxed).into());
    text.number("ns-since-restore", sys::clock(libc::CLOCK_MONOTONIC).saturating_sub(BEGAN.load(Relaxed)));
}

/// The memory map, at the end of the report, because it is long.
fn copy_maps(text: &mut Text<'_>) {
    let mut left = MOST_MAPS;
    text.put(b"maps:\n");
    each_mapping(|line| {
        let Some(after) = left.checked_sub(line.len() + 1) else {
            text.put(b"(cut here)\n");
            return false;
        };
        left = after;
        text.put(line);
        text.put(b"\n");
        true
    });
}

/// Calls `each` with every line of the memory map, until it says that it has enough. The claim is the caller's.
fn each_mapping(mut each: impl FnMut(&[u8]) -> bool) {
    let Ok(fd) = sys::open(b"/proc/self/maps\0", libc::O_RDONLY, 0) else { return };
    // SAFETY: the claim is the caller's, and the other buffer is that of its text.
    let room = unsafe { &mut (*BUFFERS.0.get())[1] };
    let mut have = 0;
    'read: while let Ok(more @ 1..) = sys::read(fd, &mut room[have..]) {
        have += more;
        let mut rest = &room[..have];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            if !each(&rest[..end]) {
                break 'read;
            }
            rest = &rest[end + 1..];
        }
        // A line that is longer than the buffer is none of the kernel's.
        let used = have - rest.len();
        room.copy_within(used..have, 0);
        have -= used;
    }
    sys::close(fd);
}

#[cfg(test)]
mod tests;
