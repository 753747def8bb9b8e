//! A checkpoint, from the request to the end record. Runs on the engine's stack in the thread that got the signal, all signals
//! blocked. Between the stop and the release: no allocation, no lock, no libc.

use core::arch::asm;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize};

use crate::arena::{self, SNAPSHOT_BASE, SNAPSHOT_SPAN, state};
use crate::hashes::{self, Comparison};
use crate::hooks::{Wanted, hook, hooks};
use crate::image::Header;
use crate::image::meta::advice;
use crate::output::{self, Job};
use crate::refusal::Refusal;
use crate::request::{Advised, Mode, Request, Tracking};
use crate::sink::Target;
use crate::sys::{self, Answer, Errno, call, plain};
use crate::{dense, describe, gather, identity, restart, rseq, signals, stop, track};

/// What became of a checkpoint that the program itself asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The image is written (stop mode), or a child writes it (fork mode): its end record makes it valid.
    Saved {
        /// How long all threads were stopped, in nanoseconds.
        pause: u64,
        /// Names the image, for the request of an increment to it.
        image: u64,
    },
    /// This is the restored process.
    Restored,
}

/// A checkpoint that a thread of the program has asked for; one at a time.
struct Called {
    taken: AtomicU32,
    fd: AtomicI32,
    /// On the stack of the caller, which waits.
    request: AtomicPtr<Request>,
    /// The refusal's text and number; no text: none.
    what: AtomicPtr<u8>,
    what_len: AtomicUsize,
    number: AtomicI32,
    done: AtomicU32,
}

static CALLED: Called = Called {
    taken: AtomicU32::new(0),
    fd: AtomicI32::new(-1),
    request: AtomicPtr::new(core::ptr::null_mut()),
    what: AtomicPtr::new(core::ptr::null_mut()),
    what_len: AtomicUsize::new(0),
    number: AtomicI32::new(0),
    done: AtomicU32::new(0),
};

const BUSY: Refusal = Refusal { what: "a checkpoint is being made already; thread", number: 0 };

/// Saves the process to `fd`, from a thread of its own. Returns twice: in the process that goes on, and in the restored one, where `fd`
/// is not open. The library's constructor must have run.
pub fn checkpoint(fd: i32, request: impl Into<Request>) -> Result<Outcome, Refusal> {
    if CALLED.taken.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
        return Err(Refusal { number: sys::gettid(), ..BUSY });
    }
    CALLED.fd.store(fd, Relaxed);
    let mut request = request.into();
    CALLED.request.store(&raw mut request, Relaxed);
    CALLED.done.store(0, Relaxed);
    let before = state().restored.load(Relaxed);
    let queued = stop::call_self().map_err(Refusal::failed("the checkpoint's signal cannot be queued: error"));
    let result = if state().restored.load(Acquire) != before { Ok(Outcome::Restored) } else { queued.and_then(|()| answer()) };
    CALLED.taken.store(0, Release);
    result
}

fn answer() -> Result<Outcome, Refusal> {
    let what = CALLED.what.load(Acquire);
    if CALLED.done.load(Acquire) == 0 {
        return Err(Refusal { number: sys::gettid(), ..BUSY });
    }
    if what.is_null() {
        return Ok(Outcome::Saved { pause: state().pause.load(Relaxed), image: state().image.load(Relaxed) });
    }
    // SAFETY: `called` has stored pointer and length of a static text.
    let what = unsafe { core::str::from_utf8_unchecked(core::slice::from_raw_parts(what, CALLED.what_len.load(Relaxed))) };
    Err(Refusal { what, number: CALLED.number.load(Relaxed) })
}

/// The part of `checkpoint` that runs in the signal's handler.
pub extern "C" fn called(_: u64, context: *mut libc::ucontext_t) {
    // SAFETY: `stop::on_own_stack` asserts that this thread holds `busy`.
    gather::advice(unsafe { arena::tables() });
    // SAFETY: as above; `checkpoint` has stored the address of its request and waits.
    match unsafe { make(&*CALLED.request.load(Relaxed), CALLED.fd.load(Relaxed).into(), context, false) } {
        Ok(()) => CALLED.what.store(core::ptr::null_mut(), Relaxed),
        Err(refusal) => {
            CALLED.what_len.store(refusal.what.len(), Relaxed);
            CALLED.number.store(refusal.number, Relaxed);
            CALLED.what.store(refusal.what.as_ptr().cast_mut(), Relaxed);
        }
    }
    CALLED.done.store(1, Release);
}

/// Nudges the calling thread: `Hooks::nudged` is asked before this returns, or after the checkpoint that is being made at this moment. For a process
/// that was nudged at a bad one.
pub fn nudge_self() -> Result<(), Refusal> {
    stop::nudge_self().map_err(Refusal::failed("the checkpoint's signal cannot be queued: error"))
}

/// A nudge, in the signal's handler: asks, and makes the checkpoint that is wanted. `rewound`, not 0: the thread makes an interrupted call again.
pub extern "C" fn nudged(rewound: u64, context: *mut libc::ucontext_t) {
    let Some(hooks) = hooks() else { return };
    let Some(Wanted { fd, request, through }) = hooks.nudged.and_then(|ask| ask()) else { return };
    // SAFETY: `stop::on_own_stack` asserts that this thread holds `busy`.
    gather::advice(unsafe { arena::tables() });
    // SAFETY: as above.
    let made = unsafe { make(&request, Target { fd, through }, context, rewound != 0) };
    if let Some(tell) = hooks.saved {
        tell(made.map(|()| (state().pause.load(Relaxed), state().image.load(Relaxed))));
    }
}

/// Makes a checkpoint of the process to `to`.
///
/// # Safety
/// The caller is in the signal's handler, on the engine's stack, and holds `state().busy`. `rewound`: it makes an interrupted call again.
pub unsafe fn make(request: &Request, to: Target, context: *mut libc::ucontext_t, rewound: bool) -> Result<(), Refusal> {
    reap()?;
    gather::preflight()?;
    describe::preflight()?;
    let tracker = Tracker::begin(request)?;
    stop::begin()?;
    let began = sys::clock(libc::CLOCK_MONOTONIC);
    // SAFETY: we hold `busy` and enter first.
    let stopped = unsafe { if stop::enter(context, rewound) { stop::stop_others() } else { Err(Errno(libc::ENOSPC)) } };
    let result = match stopped {
        Ok(threads) => {
            signals::hand_out(threads);
            hook(|h| h.before_save);
            // SAFETY: all threads are stopped and we hold `busy`.
            let written = unsafe { stopped_part(request, tracker, to, threads, context) };
            signals::hand_out(threads);
            written
        }
        Err(error) => Err(Refusal { what: "not all threads could be stopped in time: error", number: error.0 }),
    };
    // SAFETY: we hold `busy`.
    arena::drop_content(unsafe { arena::tables() });
    stop::release();
    state().pause.store(sys::clock(libc::CLOCK_MONOTONIC) - began, Relaxed);
    if result != Ok(Writer::Sharing) {
        forget_buffers(!matches!(tracker, Tracker::Kernel { .. }));
    }
    result.map(drop)
}

/// What tells which pages have changed, and whether that is known since the image that was asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tracker {
    Nobody,
    Kernel { increment: bool },
    Hashes { increment: bool },
}

impl Tracker {
    /// Before a thread is stopped.
    fn begin(request: &Request) -> Result<Self, Refusal> {
        let known = |image: u64| request.parent != 0 && image == request.parent;
        let tracker = match request.tracking {
            Tracking::Off => Self::Nobody,
            Tracking::Best if track::begin().is_ok() => Self::Kernel { increment: known(state().tracked.load(Relaxed)) },
            Tracking::Best | Tracking::Hashes => {
                hashes::begin().map_err(Refusal::failed("there is no memory for the hashes of pages: error"))?;
                Self::Hashes { increment: known(hashes::image()) }
            }
        };
        if !matches!(tracker, Self::Kernel { .. }) {
            track::end();
        }
        if !matches!(tracker, Self::Hashes { .. }) {
            hashes::end();
        }
        Ok(tracker)
    }

    fn increment(self) -> bool {
        matches!(self, Self::Kernel { increment: true } | Self::Hashes { increment: true })
    }

    fn comparison(self) -> Option<Comparison> {
        match self {
            // SAFETY: `begin` has mapped the banks, and there is one writer at a time.
            Self::Hashes { increment } => Some(unsafe { hashes::compare(!increment) }),
            Self::Nobody | Self::Kernel { .. } => None,
        }
    }
}

/// Gives the buffers of a checkpoint back to the kernel. The beginning of each stays, because new memory costs a fault for each page while all threads
/// wait. For the same reason the snapshot's memory stays if there may be another increment: it is at most a sixteenth of the program's.
fn forget_buffers(snapshot: bool) {
    for (offset, len) in arena::SCRATCH {
        if len as u64 > SCRATCH_KEPT {
            // SAFETY: nothing in it is in use between checkpoints.
            unsafe { sys::forget(arena::SCRATCH_BASE + offset + SCRATCH_KEPT, len as u64 - SCRATCH_KEPT) };
        }
    }
    if snapshot && state().snapshot.swap(0, Relaxed) != 0 {
        // SAFETY: as above.
        unsafe { sys::forget(SNAPSHOT_BASE, SNAPSHOT_SPAN) };
    }
}

/// Bytes of each buffer that stay.
const SCRATCH_KEPT: u64 = 256 << 10;

/// How long to wait for the child of the last checkpoint. The reader of its image has got that already.
const CHILD_PATIENCE_NS: i64 = 200_000_000;

/// Collects the child of an earlier checkpoint; if it is still writing, that is a refusal.
fn reap() -> Result<(), Refusal> {
    const WCLONE: u32 = 0x8000_0000;
    let child = state().child.load(Acquire) as i32;
    let gone = || sys::ended(child, WCLONE) != Ok(None);
    if child != 0 && !gone() {
        await_end(child);
        if !gone() {
            return Err(Refusal { what: "the image before this one is still being written by process", number: child });
        }
    }
    state().child.store(0, Relaxed);
    Ok(())
}

/// Waits until a child ends, a little.
fn await_end(child: i32) {
    let Ok(fd) = plain!(libc::SYS_pidfd_open, child, 0) else { return };
    let mut poll = libc::pollfd { fd: fd as i32, events: libc::POLLIN, revents: 0 };
    let patience = [0i64, CHILD_PATIENCE_NS];
    // SAFETY: the kernel reads one time, and reads and writes one pollfd.
    let _ = unsafe { call!(libc::SYS_ppoll, &raw mut poll, 1, patience.as_ptr(), 0, 0) };
    sys::close(fd as i32);
}

/// What has written or is writing the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// Nothing any more: the program itself has written it.
    Done,
    /// A child with a copy of the memory.
    Forked,
    /// A child that shares it, and writes the snapshot.
    Sharing,
}

unsafe fn stopped_part(
    request: &Request,
    tracker: Tracker,
    to: Target,
    threads: usize,
    context: *mut libc::ucontext_t,
) -> Result<Writer, Refusal> {
    // SAFETY: the caller's promise; the parts of the scratch memory are distinct.
    let (tables, meta, extents) = unsafe { (arena::tables(), arena::scratch(arena::SCRATCH_META), arena::extents()) };
    describe::leader_first(threads);
    gather::process(tables, to.fd, threads)?;
    describe::shared(tables)?;
    dense::confirm(&mut tables.dense);
    describe::guards(tables, extents)?;
    let generation = state().generation.fetch_add(1, Relaxed) + 1;
    let id = identity::new_id();
    state().image.store(id, Relaxed);
    // From here on the kernel's notes are about the new image; should it fail, about none.
    state().tracked.store(0, Relaxed);
    let by_kernel = matches!(tracker, Tracker::Kernel { .. });
    let (meta_len, used) = describe::describe(tables, meta, extents, threads, by_kernel)?;
    dense::note(&mut tables.dense, &extents[..used]);
    let header = Header {
        entry: restart::entry as *const () as u64,
        stack: arena::coordinator_stack(),
        id,
        parent: if tracker.increment() { request.parent } else { 0 },
        generation,
        ..identity::header()
    };
    let mut job = Job {
        to,
        header,
        meta: &meta[..meta_len],
        extents: &extents[..used],
        snapshot: false,
        compress: request.compress,
        comparison: tracker.comparison(),
    };
    let written = if request.mode == Mode::Stop {
        let left = rseq::leave();
        let written = output::write(job).map_err(Refusal::failed("the image cannot be written: error"));
        if left.is_ok() {
            let _ = rseq::enter_again();
        }
        swallow_sigpipe(context);
        written.map(|()| Writer::Done)
    } else if tracker == (Tracker::Kernel { increment: true }) && snapshot(&mut job)? {
        share(job)
    } else {
        // SAFETY: only the coordinator is here.
        fork(job, unsafe { gather::advised(tables) })
    }?;
    state().tracked.store(if by_kernel { id } else { 0 }, Relaxed);
    Ok(written)
}

/// Takes the snapshot, if it is worth it.
fn snapshot(job: &mut Job<'_>) -> Result<bool, Refusal> {
    job.snapshot = output::snapshot(job.extents).map_err(Refusal::failed("the changed pages cannot be copied: error"))?;
    Ok(job.snapshot)
}

const NO_CHILD: &str = "the child that writes the image cannot be made: error";

/// Has the snapshot written by a child that shares the memory: no page table is copied.
fn share(job: Job<'_>) -> Result<Writer, Refusal> {
    let at = (arena::writer_stack() - size_of::<Job<'_>>() as u64) & !63;
    let departure = Departure::prepare();
    // SAFETY: the writer's stack is mapped, and there is no writer now: the last one was reaped. What the job refers to lies in the scratch
    // memory, which the writer itself gives back.
    unsafe {
        (at as *mut Job<'_>).write(job);
        beside(writer, at, at)
    }
    .map(|pid| {
        departure.wait();
        state().child.store(pid as u32, Relaxed);
        Writer::Sharing
    })
    .map_err(Refusal::failed(NO_CHILD))
}

/// Makes a process that shares the memory and runs a function on a stack of its own.
///
/// # Safety
/// `stack` is the top of unused memory; the function never returns and uses no libc.
unsafe fn beside(function: extern "C" fn(u64) -> !, argument: u64, stack: u64) -> Answer {
    let mut result = libc::SYS_clone;
    // SAFETY: the caller's promise. Not a thread: it has descriptors, signal handlers and an end of its own.
    unsafe {
        asm!("syscall", "test rax, rax", "jnz 2f", "xor ebp, ebp", "mov rdi, r12", "call r13", "ud2", "2:",
            inlateout("rax") result, in("rdi") libc::CLONE_VM, in("rsi") stack, in("rdx") 0, in("r10") 0, in("r8") 0,
            in("r12") argument, in("r13") function, lateout("rcx") _, lateout("r11") _);
    }
    if result < 0 { Err(Errno(-result as i32)) } else { Ok(result as usize) }
}

extern "C" fn writer(job: u64) -> ! {
    // SAFETY: `share` has put it there, and nothing else uses it.
    let job = unsafe { (job as *const Job<'_>).read() };
    leave_program(job.to.fd);
    let code = i32::from(output::write(job).is_err());
    forget_buffers(false);
    sys::exit_group(code)
}

/// Has the image written by a child with a copy of the memory.
fn fork(job: Job<'_>, advised: &[Advised]) -> Result<Writer, Refusal> {
    forkable(advised, true);
    let departure = Departure::prepare();
    // SAFETY: like fork, without the handlers of pthread_atfork: the child makes system calls only, from this function on.
    let forked = unsafe { call!(libc::SYS_clone, 0, 0, 0, 0, 0) };
    if forked == Ok(0) {
        leave_program(job.to.fd);
        let _ = rseq::leave();
        let code = i32::from(output::write(job).is_err());
        sys::exit_group(code)
    }
    departure.wait();
    forkable(advised, false);
    let pid = forked.map_err(Refusal::failed(NO_CHILD))?;
    state().child.store(pid as u32, Relaxed);
    Ok(Writer::Forked)
}

/// The program goes on only when the child has closed its copies of the descriptors. Else the program could close a listener, and find its address in use when
/// it opens it again; and a caller that connects meanwhile would wait at a listener that only the child has. A pipe tells when: its end is open in the
/// child as long as the program's descriptors are.
struct Departure(Option<[i32; 2]>);

impl Departure {
    fn prepare() -> Departure {
        // If the program has used all numbers it goes on a moment too early: that is no reason to have no image.
        Departure(sys::pipe().ok())
    }

    fn wait(self) {
        let Some([reader, writer]) = self.0 else { return };
        sys::close(writer);
        while sys::read(reader, &mut [0]) == Err(Errno(libc::EINTR)) {}
        sys::close(reader);
    }
}

/// In a child: nothing inherited stays open, or a peer would not learn when the program ends.
fn leave_program(fd: i32) {
    hook(|h| h.in_child);
    if fd > 0 {
        let _ = plain!(libc::SYS_close_range, 0, fd - 1, 0);
    }
    let _ = plain!(libc::SYS_close_range, fd + 1, u32::MAX, 0);
}

/// Lets the engine's child have the memory that the program's children do not get, or get empty; or (`yes` is false) no longer.
fn forkable(advised: &[Advised], yes: bool) {
    for (bit, on, off) in [
        (advice::DONT_FORK, libc::MADV_DOFORK, libc::MADV_DONTFORK),
        (advice::WIPE_ON_FORK, libc::MADV_KEEPONFORK, libc::MADV_WIPEONFORK),
    ] {
        for region in advised.iter().filter(|a| a.bits & bit != 0) {
            // SAFETY: changes no content.
            let _ = unsafe { call!(libc::SYS_madvise, region.start, region.end - region.start, if yes { on } else { off }) };
        }
    }
}

/// A broken pipe must not become the program's signal when it goes on.
pub fn swallow_sigpipe(context: *mut libc::ucontext_t) {
    // SAFETY: the context is the thread's own frame. A SIGPIPE that was pending before, because the program blocks it, stays.
    let blocked = unsafe { libc::sigismember(&raw const (*context).uc_sigmask, libc::SIGPIPE) } == 1;
    if !blocked {
        let _ = sys::take_signal(1 << (libc::SIGPIPE - 1), true);
    }
}
