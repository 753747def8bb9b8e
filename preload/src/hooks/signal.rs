//! SIGSEGV, of which this library has a handler while the processor's counter traps (`hooks::counter`). What the program has done with that signal is kept here, and done for
//! all that is no such trap. Without the trap every call passes through.
//!
//! The signal is never blocked meanwhile: the kernel ends a process that traps while it is. So it is taken out of the sets of signals that the program has blocked, also while
//! one of its handlers runs.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use libc::{SIGSEGV, sigaction as Action, sighandler_t, siginfo_t, sigset_t, ucontext_t};

/// Flag of the kernel: [`return_from_signal`] is there.
const SA_RESTORER: u64 = 0x0400_0000;
/// The signal in a mask.
const BIT: u64 = 1 << (SIGSEGV - 1);

type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut ucontext_t);

/// A handler of this library stands before the program's.
static STANDS_BEFORE: AtomicBool = AtomicBool::new(false);
/// What the program has the signal do, as the kernel has it: handler, flags, restorer, mask.
static PROGRAM: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

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
    fn of_program() -> Kernel {
        let [handler, flags, restorer, mask] = [0, 1, 2, 3].map(|at: usize| PROGRAM[at].load(Relaxed));
        Kernel { handler, flags, restorer, mask }
    }

    fn keep(&self) {
        let words = [self.handler, self.flags, self.restorer, self.mask];
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
                let (handler, flags) = (action.sa_sigaction as u64, action.sa_flags as u32);
                Kernel { handler, flags: flags.into(), restorer: before.restorer, mask: word(&action.sa_mask) }.keep();
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
        Kernel { handler: handler as u64, flags: libc::SA_RESTART as u64, restorer: before.restorer, mask: 0 }.keep();
        before.handler as sighandler_t
    }

    unsafe fn sigprocmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int => on_sigprocmask {
        let open = unsafe { opened(how, new) };
        unsafe { real!(sigprocmask)(how, open.as_ref().map_or(new, |set| &raw const *set), old) }
    }

    unsafe fn pthread_sigmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int => on_pthread_sigmask {
        let open = unsafe { opened(how, new) };
        unsafe { real!(pthread_sigmask)(how, open.as_ref().map_or(new, |set| &raw const *set), old) }
    }
}

/// Tells the program what it has the signal do.
unsafe fn tell(kept: Kernel, to: *mut Action) {
    if let Some(to) = unsafe { to.as_mut() } {
        let mut mask = to.sa_mask;
        unsafe { libc::sigemptyset(&raw mut mask) };
        unsafe { (&raw mut mask).cast::<u64>().write(kept.mask) };
        *to = Action { sa_sigaction: kept.handler as usize, sa_mask: mask, sa_flags: kept.flags as c_int, sa_restorer: None };
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
unsafe fn opened(how: c_int, set: *const sigset_t) -> Option<sigset_t> {
    let set = if how != libc::SIG_UNBLOCK && STANDS_BEFORE.load(Relaxed) { unsafe { set.as_ref() } } else { None };
    set.filter(|set| word(set) & BIT != 0).map(without)
}

/// Sets the calling thread's mask.
fn set_mask(how: c_int, mask: u64) {
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const mask, std::ptr::null_mut::<u64>(), size_of::<u64>()) };
}

/// From now on this handler gets SIGSEGV, with all signals blocked. An error: why not.
pub(super) fn stand_before(handler: Handler) -> Result<(), &'static str> {
    let flags = (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART) as u64 | SA_RESTORER;
    let restorer = radic_ckpt::return_from_signal as *const () as u64;
    let ours = Kernel { handler: handler as *const () as u64, flags, restorer, mask: u64::MAX };
    let before = ours.set().ok_or("the kernel takes no handler of SIGSEGV")?;
    before.keep();
    STANDS_BEFORE.store(true, Relaxed);
    set_mask(libc::SIG_UNBLOCK, BIT);
    Ok(())
}

/// The program's disposition is the kernel's again.
pub(super) fn step_back() {
    if STANDS_BEFORE.swap(false, Relaxed) {
        set_again(Kernel::of_program());
    }
}

/// Sets a disposition of the program, which may have come by `sigaction`, where the C library adds what handlers return to.
fn set_again(action: Kernel) {
    let restorer = radic_ckpt::return_from_signal as *const () as u64;
    Kernel { flags: action.flags | SA_RESTORER, restorer, ..action }.set();
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
            if action.flags & libc::SA_RESETHAND as u32 as u64 != 0 {
                Kernel::default().keep();
            }
            let before = unsafe { (&raw const (*context).uc_sigmask).cast::<u64>().read() };
            set_mask(libc::SIG_SETMASK, (before | action.mask) & !BIT);
            let handler = unsafe { std::mem::transmute::<u64, Handler>(action.handler) };
            handler(number, info, context);
        }
    }
}
