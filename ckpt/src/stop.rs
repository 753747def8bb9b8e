//! Stopping all threads, from inside: signal 33, whose handler parks. Programs cannot block it; glibc uses it for setuid and the
//! like, and gets what is its own. The handler of a parked thread uses the program's stack, a few hundred bytes of it.

use core::arch::asm;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::arena::{self, KernelAction, MAX_THREADS, Thread, state};
use crate::counter::is_counter_trapped;
use crate::death;
use crate::interrupted::rewind;
use crate::refusal::Refusal;
use crate::sigaction::{SA_RESTORER, SIGNAL, action, return_from_signal};
use crate::signals;
use crate::sys::{self, Answer, Errno, call};

/// Upper half of the signal's value: park, the lower half is the number of the stop.
const PARK: u32 = u32::from_be_bytes(*b"PARK");
/// Upper half of the signal's value: save yourself, the lower half names the socket to connect to. What comes after the value is the request's secret.
pub const REQUEST: u32 = u32::from_be_bytes(*b"SAVE");
/// Upper half of the signal's value: the thread itself has called `save::checkpoint`.
const CALL: u32 = u32::from_be_bytes(*b"CALL");
/// Upper half of the signal's value: ask the library that embeds the engine whether it wants a checkpoint now.
pub const NUDGE: u32 = u32::from_be_bytes(*b"NUDG");

/// Where the secret of a request is in a siginfo, in words: after number and error, code, pid and uid, and value.
pub const SECRET_AT: usize = 4;

/// How long threads may take to park.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Signals of the engine that one thread takes from its queue at a stop. What is beyond is in no image, either.
const MOST_DRAINED: usize = 4096;
/// How long those of the stop before may take to be on their way again.
const LEAVING_NS: u64 = 200_000_000;

/// What the handler does on the engine's stack, in a thread that holds `busy`: with a number, and the context of the thread.
pub type OnOwnStack = extern "C" fn(u64, *mut libc::ucontext_t);

/// All that there is to do so.
#[derive(Debug)]
pub struct Work {
    /// The thread has called `save::checkpoint`.
    pub called: OnOwnStack,
    /// A request has come from outside.
    pub asked: OnOwnStack,
    /// The process was nudged.
    pub nudged: OnOwnStack,
}

static WORK: std::sync::OnceLock<Work> = std::sync::OnceLock::new();

/// Installs the handler. glibc must have installed its own before, which it does at the first pthread_create.
pub fn install(work: Work) -> Result<(), Errno> {
    let _ = WORK.set(work);
    let ours = KernelAction {
        handler: handler as *const () as u64,
        flags: (libc::SA_SIGINFO | libc::SA_RESTART) as u64 | SA_RESTORER,
        restorer: return_from_signal as *const () as u64,
        mask: u64::MAX,
    };
    // SAFETY: the handler is prepared for every value, and calls the old one for what is not ours.
    let old = unsafe { action(SIGNAL, Some(&ours)) }?;
    if old.handler != ours.handler {
        state().previous.store(old.handler, Relaxed);
    }
    Ok(())
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel gives a valid siginfo.
    let (code, sender, value) = unsafe { ((*info).si_code, (*info).si_pid(), (*info).si_value().sival_ptr as u64) };
    let (what, which) = ((value >> 32) as u32, value as u32);
    if code == libc::SI_QUEUE && what == PARK && sender == sys::getpid() {
        let rewound = rewind(context);
        count_in();
        if which == state().round.load(Acquire) && which != state().released.load(Acquire) {
            park(context, which, rewound);
        }
        state().parking.fetch_sub(1, SeqCst);
        signals::settle(context, rewound);
    } else if code == libc::SI_QUEUE && what == REQUEST {
        let rewound = rewind(context);
        // SAFETY: a siginfo has 128 bytes. The kernel copies 48 of a queued signal, and clears the rest.
        note_request(unsafe { &*info.cast::<[u64; 16]>() });
        answer(context, rewound);
        signals::settle(context, rewound);
    } else if code == libc::SI_QUEUE && what == CALL && sender == sys::getpid() {
        if let Some(work) = WORK.get()
            && seize()
        {
            on_own_stack(work.called, 0, context);
            state().busy.store(0, SeqCst);
            answer(context, false);
        }
    } else if code == libc::SI_QUEUE && what == NUDGE {
        let rewound = rewind(context);
        state().nudged.store(sys::getpid() as u32, SeqCst);
        answer(context, rewound);
        signals::settle(context, rewound);
    } else if code != libc::SI_QUEUE {
        let previous = state().previous.load(Relaxed);
        if previous > 1 {
            death::open_faults();
            // SAFETY: glibc's handler, which it installed with SA_SIGINFO.
            let previous: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::ucontext_t) =
                unsafe { core::mem::transmute(previous) };
            previous(signal, info, context);
        }
    }
}

/// Notes what a request's siginfo says: which socket, for which process, and its secret, which the request itself must show.
fn note_request(info: &[u64; 16]) {
    state().secret.iter().zip(&info[SECRET_AT..]).for_each(|(kept, word)| kept.store(*word, SeqCst));
    state().asked.store(u64::from(info[3] as u32) | (sys::getpid() as u64) << 32, SeqCst);
}

/// Becomes the thread that saves the process; false: another thread is that.
fn seize() -> bool {
    // A child that was forked in the middle of a checkpoint finds its parent's id there.
    let (before, me) = (state().busy.load(SeqCst), sys::getpid() as u32);
    before != me && state().busy.compare_exchange(before, me, SeqCst, SeqCst).is_ok()
}

/// Does what the process is asked from outside. If another thread saves it at this moment, that thread does it as soon as it is free: a requester that asks
/// again when an image is whole may be faster than the thread that has made it. This thread writes the request down, then looks whether the other one is free.
/// The other one says that it is free, then looks what is written down. So one of the two finds the request.
///
/// A request that the library puts off (`Hooks::asked`) stays written down, for the next nudge.
fn answer(context: *mut libc::ucontext_t, rewound: bool) {
    let Some(work) = WORK.get() else { return };
    let mut put_off = 0;
    let is_asked = |put_off: u64| ![0, put_off].contains(&state().asked.load(SeqCst));
    while (is_asked(put_off) || state().nudged.load(SeqCst) != 0) && seize() {
        // What a child has inherited was asked of its parent.
        let me = sys::getpid() as u32;
        let nudged = state().nudged.swap(0, SeqCst);
        // Before the request: what the library notes about a nudge that it puts off is gone after one that it does not.
        if nudged == me {
            on_own_stack(work.nudged, rewound.into(), context);
            put_off = 0;
        }
        let asked = state().asked.load(SeqCst);
        if (asked >> 32) as u32 != me {
            let _ = state().asked.compare_exchange(asked, 0, SeqCst, SeqCst);
        } else if is_asked(put_off) {
            on_own_stack(work.asked, rewound.into(), context);
            put_off = asked;
        }
        state().busy.store(0, SeqCst);
    }
}

/// Calls a function on the engine's stack. The caller holds `busy`.
fn on_own_stack(function: OnOwnStack, argument: u64, context: *mut libc::ucontext_t) {
    assert_eq!(state().busy.load(Relaxed), sys::getpid() as u32, "the stack belongs to the thread that saves the process");
    // SAFETY: the stack is mapped and, since we hold `busy`, no other thread's.
    unsafe {
        asm!("mov r12, rsp", "mov rsp, {stack}", "call {function}", "mov rsp, r12", stack = in(reg) arena::coordinator_stack(),
            function = in(reg) function, in("rdi") argument, in("rsi") context, out("r12") _, clobber_abi("C"));
    }
}

/// What the calling thread says about itself.
fn describe(context: *mut libc::ucontext_t, rewound: bool) -> Thread {
    const PR_GET_TID_ADDRESS: i32 = 40;
    let mut thread = Thread {
        tid: sys::gettid(),
        now: 0,
        affinity_len: 0,
        context: context as u64,
        fs: 0,
        gs: 0,
        tid_address: 0,
        robust: 0,
        robust_len: 0,
        pending: 0,
        mask: 0,
        rewound: 0,
        counter_traps: u32::from(is_counter_trapped()),
        name: [0; 16],
        affinity: [0; 16],
    };
    // SAFETY: each call writes one field of the right size.
    unsafe {
        let _ = call!(libc::SYS_arch_prctl, 0x1003, &raw mut thread.fs);
        let _ = call!(libc::SYS_arch_prctl, 0x1004, &raw mut thread.gs);
        let _ = call!(libc::SYS_prctl, PR_GET_TID_ADDRESS, &raw mut thread.tid_address);
        let _ = call!(libc::SYS_get_robust_list, 0, &raw mut thread.robust, &raw mut thread.robust_len);
        let _ = call!(libc::SYS_prctl, libc::PR_GET_NAME, &raw mut thread.name);
        let len = call!(libc::SYS_sched_getaffinity, 0, size_of_val(&thread.affinity), &raw mut thread.affinity);
        thread.affinity_len = len.unwrap_or(0) as u32;
    }
    signals::note(&mut thread, context, rewound);
    thread
}

/// Takes the engine's own signals that wait for the calling thread beside the one that it handles. Each is a request, which is noted as its handler would
/// note it; none is part of an image. A signal that a restored process raises again comes without its value: glibc would take it for its own, and read
/// through a pointer that it has not set. True: one of glibc's waits as well (setuid waits for every thread to handle it); it stays pending.
fn drain() -> bool {
    let me = sys::getpid() as u32;
    let mut foreign = None;
    for _ in 0..MOST_DRAINED {
        let Some((_, info)) = sys::take_signal(1 << (SIGNAL - 1), true) else { break };
        let (code, value) = (info[1] as i32, info[3]);
        match (value >> 32) as u32 {
            _ if code != libc::SI_QUEUE => foreign = Some(info),
            NUDGE => state().nudged.store(me, SeqCst),
            REQUEST => note_request(&info),
            // A late word to park, of a stop that is over.
            _ => {}
        }
    }
    foreign.inspect(signals::give).is_some()
}

/// Takes a slot and fills it in; false: there are too many threads. The coordinator does what `drain` has noted when the checkpoint is made (`answer`).
pub fn enter(context: *mut libc::ucontext_t, rewound: bool) -> bool {
    let index = state().claimed.fetch_add(1, Relaxed) as usize;
    let Some(slot) = state().slots.get(index) else { return false };
    let mut thread = describe(context, rewound);
    thread.pending = u64::from(drain()) << (SIGNAL - 1);
    // SAFETY: the index is ours alone, and the coordinator reads the slot only after `parked` says that it is filled in.
    unsafe { *slot.0.get() = thread };
    state().parked.fetch_add(1, Release);
    true
}

fn park(context: *mut libc::ucontext_t, round: u32, rewound: bool) {
    if enter(context, rewound) {
        sys::futex_wake(&state().parked);
    }
    loop {
        let released = state().released.load(Acquire);
        if released == round {
            return;
        }
        sys::futex_wait(&state().released, released, None);
    }
}

fn queue(tid: i32, value: u64) -> Answer {
    let mut info = [0u64; 16];
    // siginfo: signo, errno; code; pid, uid; value.
    info[0] = SIGNAL as u64;
    info[1] = u64::from(libc::SI_QUEUE as u32);
    info[2] = sys::getpid() as u64;
    info[3] = value;
    // SAFETY: the kernel reads one siginfo.
    unsafe { call!(libc::SYS_rt_tgsigqueueinfo, sys::getpid(), tid, SIGNAL, info.as_ptr()) }
}

/// Sends the calling thread the signal for a checkpoint that it wants itself: handled when this returns.
pub fn call_self() -> Result<(), Errno> {
    queue(sys::gettid(), u64::from(CALL) << 32).map(drop)
}

/// Nudges the calling thread: handled when this returns, or after the checkpoint that is being made.
pub fn nudge_self() -> Result<(), Errno> {
    queue(sys::gettid(), u64::from(NUDGE) << 32).map(drop)
}

/// Counts the threads of the process, and gives the id of each to `newcomer`.
fn census(mut newcomer: impl FnMut(i32)) -> Result<usize, Errno> {
    let mut present = 0;
    sys::numbers(b"/proc/self/task\0", |tid| {
        present += 1;
        newcomer(tid);
    })?;
    Ok(present)
}

/// Stops all other threads. Gives the number of threads; an error, and no thread stopped, if they do not come in time.
///
/// # Safety
/// The caller holds `state().busy` and has entered `context`'s thread by `enter`.
pub unsafe fn stop_others() -> Result<usize, Errno> {
    let round = state().round.load(Relaxed);
    let deadline = sys::clock(libc::CLOCK_MONOTONIC) + PATIENCE_NS;
    // SAFETY: the caller holds `busy`; nothing else uses this part before the extents are listed.
    let called = unsafe { arena::scratch(arena::SCRATCH_EXTENTS) };
    let mut calls = 0usize;
    let me = sys::gettid();
    loop {
        let mut fresh = 0;
        let present = census(|tid| {
            let bytes = tid.to_ne_bytes();
            let known = tid == me || called[..calls * 4].as_chunks::<4>().0.contains(&bytes);
            // EAGAIN: the queue of signals is full; ESRCH: gone. The next census tells.
            if !known && calls < MAX_THREADS && queue(tid, u64::from(PARK) << 32 | u64::from(round)).is_ok() {
                called[calls * 4..calls * 4 + 4].copy_from_slice(&bytes);
                calls += 1;
                fresh += 1;
            }
        })?;
        let parked = state().parked.load(Acquire);
        if fresh == 0 && parked as usize == present {
            return Ok(present);
        }
        if sys::clock(libc::CLOCK_MONOTONIC) > deadline || present > MAX_THREADS {
            return Err(Errno(libc::ETIMEDOUT));
        }
        if (parked as usize) < calls + 1 {
            sys::futex_wait(&state().parked, parked, Some(1_000_000));
        }
    }
}

/// One more thread was told to park.
fn count_in() {
    let me = (sys::getpid() as u64) << 32;
    let more = |before: u64| Some(if before & !u64::from(u32::MAX) == me { before + 1 } else { me | 1 });
    let _ = state().parking.fetch_update(SeqCst, SeqCst, more);
}

/// Threads that have not left the last stop, or have come too late for it and do not know yet.
fn left() -> u32 {
    // A write that changes nothing: a thread that counts itself in later sees all that was done before it, the release above all.
    let parking = state().parking.fetch_add(0, SeqCst);
    if (parking >> 32) as i32 == sys::getpid() { parking as u32 } else { 0 }
}

/// Begins a stop: clears the slots. It is an error if threads of the stop before do not leave that in time. A thread that was about to park then would be
/// counted in this stop, though it runs; and one that has not yet seen that it may go on would never see it.
pub fn begin() -> Result<(), Refusal> {
    let deadline = sys::clock(libc::CLOCK_MONOTONIC) + LEAVING_NS;
    while left() != 0 {
        if sys::clock(libc::CLOCK_MONOTONIC) > deadline {
            return Err(Refusal { what: "threads have not gone on since the last stop; so many:", number: left() as i32 });
        }
        // No thread wakes us: they have been let go, and only need a processor.
        sys::futex_wait(&state().parked, state().parked.load(Relaxed), Some(1_000_000));
    }
    state().claimed.store(0, Relaxed);
    state().parked.store(0, Relaxed);
    state().round.fetch_add(1, Release);
    Ok(())
}

/// Lets all threads go on.
pub fn release() {
    state().released.store(state().round.load(Relaxed), Release);
    sys::futex_wake(&state().released);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_stop_begins_while_a_thread_is_in_the_last_one() {
        arena::reserve_for_tests();
        assert_eq!(begin(), Ok(()));
        let round = state().round.load(Relaxed);
        count_in();
        count_in();
        assert_eq!(begin().map_err(|refusal| refusal.number), Err(2));
        assert_eq!(state().round.load(Relaxed), round);
        state().parking.fetch_sub(1, SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| state().parking.fetch_sub(1, SeqCst));
            assert_eq!(begin(), Ok(()));
        });
        // What a child has inherited is no thread of its own.
        state().parking.store(((sys::getpid() + 1) as u64) << 32 | 7, SeqCst);
        assert_eq!(begin(), Ok(()));
        count_in();
        assert_eq!(left(), 1);
        state().parking.store(0, SeqCst);
    }
}
