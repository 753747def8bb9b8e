//! Signals of the program that arrive while all threads are stopped. They wait, because all signals are blocked. But a call that waits for
//! just that signal (`pause`, or `read` with an alarm) must end with EINTR, as it would without the checkpoint. If the call were made again after the
//! program's handler has run, it would wait for ever.
//!
//! So each thread looks for such a signal before it goes on (`settle`) and, if there is one, does not make its call again. Of signals for the
//! whole process only one thread may do that: the coordinator hands them out (`hand_out`) as the kernel would, to the leader if
//! it does not block them.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::arena::{Thread, state};
use crate::interrupted;
use crate::maps::{field, hex};
use crate::sigaction::{self, SIGNAL};
use crate::sys::{self, call};

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Signals in a mask, ours left out.
fn each(mask: u64) -> impl Iterator<Item = i32> {
    (1..=64).filter(move |signal| *signal != SIGNAL && mask & bit(*signal) != 0)
}

/// The program's handler of a signal: its flags; none if it has no handler.
fn handled(signal: i32) -> Option<u64> {
    let action = sigaction::program_action(signal).ok()?;
    (action.handler > 1).then_some(action.flags)
}

/// Signals that are pending for the calling thread or the process.
fn pending() -> u64 {
    let mut mask = 0u64;
    // SAFETY: the kernel writes one mask.
    let _ = unsafe { call!(libc::SYS_rt_sigpending, &raw mut mask, 8) };
    mask
}

/// Those pending for the calling thread alone.
fn own() -> u64 {
    let mut text = [0u8; 2048];
    let len = sys::slurp(b"/proc/thread-self/status\0", &mut text).unwrap_or(0);
    field(&text[..len], b"SigPnd:").map_or(0, |mask| hex(mask).0)
}

/// Takes a pending signal, all being blocked.
fn take(signal: i32) -> Option<[u64; 16]> {
    sys::take_signal(bit(signal), true).map(|(_, info)| info)
}

/// Sends the calling thread a signal, with all that it carries.
pub fn give(info: &[u64; 16]) {
    let signal = info[0] as i32;
    // SAFETY: the kernel reads one siginfo; a thread may send itself anything.
    let _ = unsafe { call!(libc::SYS_rt_tgsigqueueinfo, sys::getpid(), sys::gettid(), signal, info.as_ptr()) };
}

/// Gives each signal that waits for the whole process to one thread. All other threads are stopped, the caller is the coordinator.
pub fn hand_out(threads: usize) {
    let waiting = pending();
    if each(waiting).next().is_none() {
        return;
    }
    let mine = own();
    let slots = &state().slots[..threads];
    // SAFETY: all threads are parked; the coordinator alone looks at the slots.
    let thread = |index: usize| unsafe { *slots[index].0.get() };
    let leader = (0..threads).find(|index| thread(*index).tid == sys::getpid());
    for signal in each(waiting & !mine).filter(|signal| handled(*signal).is_some()) {
        let open = |index: &usize| thread(*index).mask & bit(signal) == 0;
        let Some(target) = leader.filter(open).or_else(|| (0..threads).find(open)) else { continue };
        for handed in state().handed.iter().filter(|handed| handed.tid.load(Relaxed) == 0) {
            let Some(info) = take(signal) else { break };
            // SAFETY: free, and only the coordinator fills it in.
            unsafe { *handed.info.get() = info };
            handed.tid.store(thread(target).tid, Release);
        }
    }
}

/// The last thing a thread does before it goes on at `context`: takes the signals that are for it and, if the program handles one of them, lets
/// an interrupted call end instead of making it again. `rewound`: the call was interrupted by us.
pub fn settle(context: *mut libc::ucontext_t, rewound: bool) {
    let me = sys::gettid();
    for handed in state().handed.iter().filter(|handed| handed.tid.load(Acquire) == me) {
        // SAFETY: it is for this thread.
        give(unsafe { &*handed.info.get() });
        handed.tid.store(0, Release);
    }
    // SAFETY: the frame is the calling thread's own.
    let blocked = unsafe { (&raw const (*context).uc_sigmask).cast::<u64>().read() };
    let waiting = pending() & !blocked;
    if each(waiting).next().is_none() {
        return;
    }
    for signal in each(waiting & !own()).filter(|signal| handled(*signal).is_some()) {
        // For the process, and come just now: the thread that takes it first has it.
        if let Some(info) = take(signal) {
            give(&info);
        }
    }
    let due = own() & !blocked;
    let restarts = |flags: u64| flags & libc::SA_RESTART as u64 != 0;
    let handlers = || each(due).filter_map(handled);
    if rewound && handlers().next().is_some() || handlers().any(|flags| !restarts(flags)) && interrupted::at_slow_call(context) {
        interrupted::end(context);
    }
}

/// A restored thread has another id: what was handed to it still is.
pub fn renamed(old: i32, new: i32) {
    for handed in state().handed.iter().filter(|handed| old != new && handed.tid.load(Relaxed) == old) {
        handed.tid.store(new, Relaxed);
    }
}

/// What a thread blocks, and whether a restored one has to make a call again.
pub fn note(thread: &mut Thread, context: *mut libc::ucontext_t, rewound: bool) {
    // SAFETY: the frame is the calling thread's own.
    thread.mask = unsafe { (&raw const (*context).uc_sigmask).cast::<u64>().read() };
    thread.rewound = u32::from(rewound);
}
