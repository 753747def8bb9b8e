//! SIGSEGV, of which this library has a handler while the processor's counter traps (`hooks::counter`). What the program has done
//! with that signal is kept here, and done for all that is no such trap. Without the trap every call passes through.
//!
//! The signal is never blocked meanwhile: the kernel ends a process that traps while it is. So it is taken out of the sets of
//! signals that the program has blocked, also while one of its handlers runs.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use libc::{SIGSEGV, sigaction as Action, sighandler_t, siginfo_t, sigset_t, ucontext_t};

use crate::pointers;

/// Flag of the kernel: a disposition says what the handler returns to.
const SA_RESTORER: u64 = 0x0400_0000;
/// The signal in a mask.
const BIT: u64 = 1 << (SIGSEGV - 1);

type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut ucontext_t);

/// A handler of this library stands before the program's.
static STANDS_BEFORE: AtomicBool = AtomicBool::new(false);
/// What the program has the signal do: handler, flags, mask.
static PROGRAM: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// A disposition as the kernel has it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Kernel {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

impl Kernel {
    fn new(handler: u64, flags: u64, mask: u64) -> Kernel {
        let restorer = radic_ckpt::return_from_signal as *const () as u64;
        Kernel { handler, flags: flags | SA_RESTORER, restorer, mask }
    }

    fn of_program() -> Kernel {
        let [handler, flags, mask] = [0, 1, 2].map(|at: usize| PROGRAM[at].load(Relaxed));
        Kernel::new(handler, flags, mask)
    }

    /// Keeps it as the program's.
    fn keep(&self) {
        let words = [self.handler, self.flags & !SA_RESTORER, self.mask];
        PROGRAM.iter().zip(words).for_each(|(kept, word)| kept.store(word, Relaxed));
    }

    /// Sets it. What it was; none: the kernel has refused it.
    fn set(&self) -> Option<Kernel> {
        let mut before = Kernel::default();
        // SAFETY: the kernel reads one and writes one, of which the size of the mask is given.
        let result =
            unsafe { libc::syscall(libc::SYS_rt_sigaction, SIGSEGV, &raw const *self, &raw mut before, size_of::<u64>()) };
        (result == 0).then_some(before)
    }
}

hooks! {
    unsafe fn sigaction(number: c_int, new: *const Action, old: *mut Action) -> c_int => on_sigaction {
        if !STANDS_BEFORE.load(Relaxed) {
            return unsafe { real!(sigaction)(number, new, old) };
        }
        let action = unsafe { new.as_ref() }.copied();
        if number == SIGSEGV {
            let before = Kernel::of_program();
            if let Some(action) = action {
                let flags = u64::from(action.sa_flags as u32);
                Kernel::new(action.sa_sigaction as u64, flags, word(&action.sa_mask)).keep();
            }
            unsafe { tell(before, old) };
            return 0;
        }
        let action = action.map(|action| Action { sa_mask: without(&action.sa_mask), ..action });
        unsafe { real!(sigaction)(number, action.as_ref().map_or(std::ptr::null(), |action| &raw const *action), old) }
    }

    // Of other signals it blocks no other ones.
    unsafe fn signal(number: c_int, handler: sighandler_t) -> sighandler_t => on_signal {
        if number != SIGSEGV || !STANDS_BEFORE.load(Relaxed) {
            return unsafe { real!(signal)(number, handler) };
        }
        let before = Kernel::of_program();
        Kernel::new(handler as u64, libc::SA_RESTART as u64, 0).keep();
        before.handler as sighandler_t
    }

    unsafe fn sigprocmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int => on_sigprocmask {
        let open = opened(how, new);
        unsafe { real!(sigprocmask)(how, open.as_ref().map_or(new, |set| &raw const *set), old) }
    }

    unsafe fn pthread_sigmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int => on_pthread_sigmask {
        let open = opened(how, new);
        unsafe { real!(pthread_sigmask)(how, open.as_ref().map_or(new, |set| &raw const *set), old) }
    }
}

/// Tells the program what it has the signal do.
unsafe fn tell(kept: Kernel, to: *mut Action) {
    if let Some(to) = unsafe { to.as_mut() } {
        unsafe { libc::sigemptyset(&raw mut to.sa_mask) };
        unsafe { (&raw mut to.sa_mask).cast::<u64>().write(kept.mask) };
        (to.sa_sigaction, to.sa_flags) = (kept.handler as usize, (kept.flags & !SA_RESTORER) as c_int);
    }
}

/// The first word of a set of signals, which is all that the kernel knows of.
fn word(set: &sigset_t) -> u64 {
    unsafe { (&raw const *set).cast::<u64>().read() }
}

/// The set without SIGSEGV.
fn without(set: &sigset_t) -> sigset_t {
    let mut set = *set;
    unsafe { (&raw mut set).cast::<u64>().write(word(&set) & !BIT) };
    set
}

/// The set that the program is to have blocked instead of this one, if SIGSEGV is in it and must not be.
fn opened(how: c_int, set: *const sigset_t) -> Option<sigset_t> {
    let blocks = how != libc::SIG_UNBLOCK && STANDS_BEFORE.load(Relaxed);
    // Of a pointer that leads nowhere the kernel says so.
    let set = if blocks { pointers::read(set) } else { None };
    set.filter(|set| word(set) & BIT != 0).map(|set| without(&set))
}

/// Sets the calling thread's mask.
fn set_mask(how: c_int, mask: u64) {
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const mask, std::ptr::null_mut::<u64>(), size_of::<u64>()) };
}

/// From now on this handler gets SIGSEGV, with all signals blocked. An error: why not.
pub(super) fn stand_before(handler: Handler) -> Result<(), &'static str> {
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    let ours = Kernel::new(handler as *const () as u64, flags as u64, u64::MAX);
    let before = ours.set().ok_or("the kernel takes no handler of SIGSEGV")?;
    before.keep();
    STANDS_BEFORE.store(true, Relaxed);
    set_mask(libc::SIG_UNBLOCK, BIT);
    Ok(())
}

/// The program's disposition is the kernel's again.
pub(super) fn step_back() {
    if STANDS_BEFORE.swap(false, Relaxed) {
        Kernel::of_program().set();
    }
}

/// Does what the program has a SIGSEGV do, in the handler that stands before its own.
pub(super) fn pass_on(number: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    let action = Kernel::of_program();
    let was_sent = unsafe { (*info).si_code } <= 0;
    match action.handler as sighandler_t {
        libc::SIG_IGN if was_sent => {}
        // The instruction causes it again, or it is sent again; then the kernel ends the process where it was.
        libc::SIG_DFL | libc::SIG_IGN => {
            Kernel::default().set();
            if was_sent {
                unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), libc::gettid(), number, info) };
            }
        }
        _ => {
            if action.flags & u64::from(libc::SA_RESETHAND as u32) != 0 {
                Kernel::default().keep();
            }
            let before = unsafe { (&raw const (*context).uc_sigmask).cast::<u64>().read() };
            set_mask(libc::SIG_SETMASK, (before | action.mask) & !BIT);
            let handler = unsafe { std::mem::transmute::<u64, Handler>(action.handler) };
            handler(number, info, context);
        }
    }
}
