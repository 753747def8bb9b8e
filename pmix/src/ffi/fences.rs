//! Fences that do not block. A rank that waits in one turns Open MPI's wheel (`opal_progress`), which moves its messages, too: so nothing may wait in there. The end of the fence
//! is looked for by a function of ours that the wheel calls in each turn.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::{mem, ptr};

use super::types::OnDone;
use super::{JOB, complain, lock};
use crate::status::Status;

/// What is told of the end of a fence: the function and its argument, which is only handed back.
struct Waiting {
    ticket: u64,
    tell: OnDone,
    argument: usize,
}

static WAITING: Mutex<Vec<Waiting>> = Mutex::new(Vec::new());
/// There is something to look for: what a turn of the wheel costs otherwise is the reading of this.
static LOOKS: AtomicBool = AtomicBool::new(false);
/// Open MPI's function that has another function called in each turn of its wheel.
static REGISTER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

type Turn = extern "C" fn() -> c_int;
type Register = unsafe extern "C" fn(Turn) -> c_int;

/// Has `tell` be told of the end of the fence of this number, which has just begun. The caller holds the job: else another thread's turn could find the end before.
pub(super) fn expect(ticket: u64, tell: OnDone, argument: *mut c_void) {
    let waiting = Waiting { ticket, tell, argument: argument.expose_provenance() };
    WAITING.lock().unwrap_or_else(PoisonError::into_inner).push(waiting);
    LOOKS.store(true, Ordering::Release);
}

/// Has the wheel look for the ends of fences, one of which `tell` is to be told of.
pub(super) fn watch(tell: OnDone) {
    match find_register(tell) {
        Some(register) => {
            // SAFETY: the function's type is this one in all versions that have it. To register twice changes nothing.
            unsafe { register(turn) };
        }
        // Not called by Open MPI: then nothing stands still if this waits.
        None => {
            while LOOKS.load(Ordering::Acquire) {
                turn();
                std::thread::yield_now();
            }
        }
    }
}

/// In a program that has loaded Open MPI later (mpi4py) the function may be visible to that library alone: the function that is told belongs to it.
fn find_register(tell: OnDone) -> Option<Register> {
    const NAME: &CStr = c"opal_progress_register";
    let mut found = REGISTER.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: looks up a name.
        found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, NAME.as_ptr()) };
    }
    if found.is_null() {
        let mut library = mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: it only looks at the table of what is loaded, and writes into `library`.
        let there = unsafe { libc::dladdr(tell as *const c_void, library.as_mut_ptr()) } != 0;
        // SAFETY: zeroes are a value of it, whether or not it was written.
        let path = unsafe { library.assume_init() }.dli_fname;
        if !there || path.is_null() {
            return None;
        }
        // SAFETY: the path is the linker's own text. The library is loaded, and stays: the handle is one more reference to it.
        let library = unsafe { libc::dlopen(path, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if !library.is_null() {
            // SAFETY: looks up a name in a library that is loaded.
            found = unsafe { libc::dlsym(library, NAME.as_ptr()) };
        }
    }
    REGISTER.store(found, Ordering::Relaxed);
    // SAFETY: the function's type is this one in all versions that have it.
    (!found.is_null()).then(|| unsafe { mem::transmute::<*mut c_void, Register>(found) })
}

/// A turn of the wheel. How many fences have ended.
extern "C" fn turn() -> c_int {
    let mut ended = 0;
    while LOOKS.load(Ordering::Acquire) {
        // Another thread's call may hold the job, and wait: the wheel does not wait for it.
        let mut guard = match JOB.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => break,
        };
        let Some(job) = guard.as_mut() else { break };
        let Some((ticket, status)) = job.poll() else { break };
        LOOKS.store(job.has_fences(), Ordering::Release);
        drop(guard);
        end(ticket, status);
        ended += 1;
    }
    ended
}

/// Tells the end of a fence. Open MPI does not look at what became of it, and would go on as if all ranks were there: where the fence was not passed, the process ends instead.
fn end(ticket: u64, status: Status) {
    if status != Status::SUCCESS {
        complain(&format!("a fence was left without its end (PMIx error {}): this process ends", status.0));
        // SAFETY: takes a number, and does not return.
        unsafe { libc::_exit(1) };
    }
    let waiting = {
        let mut all = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().position(|waiting| waiting.ticket == ticket).map(|at| all.swap_remove(at))
    };
    if let Some(Waiting { tell, argument, .. }) = waiting {
        // SAFETY: the function and its argument are those that the caller of PMIx_Fence_nb has handed over for this.
        unsafe { tell(status, ptr::with_exposed_provenance_mut(argument)) };
    }
}

/// Fences may have ended while another call waited: they are told in the next turn.
pub(super) fn look_again() {
    if lock().as_ref().is_some_and(|job| job.has_fences()) {
        LOOKS.store(true, Ordering::Release);
    }
}
