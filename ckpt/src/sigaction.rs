//! Dispositions of signals, as the kernel knows them: the engine's signal, and those of the program before which a handler of the engine may stand.

use core::arch::naked_asm;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::arena::KernelAction;
use crate::sys::{Errno, call};

/// The engine's signal: SIGSETXID of glibc.
pub const SIGNAL: i32 = 33;
/// The disposition names the function that returns from its handler.
pub const SA_RESTORER: u64 = 0x0400_0000;
/// The signals by which a process dies of itself.
pub const WATCHED: [i32; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS];

/// A disposition, for handlers in any thread.
pub struct Kept([AtomicU64; 4]);

impl Kept {
    const fn new() -> Self {
        Kept([const { AtomicU64::new(0) }; 4])
    }

    /// Keeps it.
    pub fn set(&self, action: &KernelAction) {
        let words = [action.handler, action.flags, action.restorer, action.mask];
        self.0.iter().zip(words).for_each(|(kept, word)| kept.store(word, Relaxed));
    }

    /// What was kept.
    pub fn get(&self) -> KernelAction {
        let [handler, flags, restorer, mask] = [0, 1, 2, 3].map(|at: usize| self.0[at].load(Relaxed));
        KernelAction { handler, flags, restorer, mask }
    }
}

/// The program's dispositions, in the order of `WATCHED`, where ours stand before them.
static KEPT: [Kept; WATCHED.len()] = [const { Kept::new() }; WATCHED.len()];
/// The handler of the engine (`death`) that stands before the program's; 0: none does. An address, for the image keeps it.
static OURS: AtomicU64 = AtomicU64::new(0);

/// What handlers of the engine return to.
#[unsafe(naked)]
pub extern "C" fn return_from_signal() {
    naked_asm!("mov eax, 15", "syscall")
}

/// Reads (with none) or sets a signal's disposition.
///
/// # Safety
/// The handler must be able to handle it.
pub unsafe fn action(signal: i32, new: Option<&KernelAction>) -> Result<KernelAction, Errno> {
    let mut old = KernelAction::default();
    let new = new.map_or(core::ptr::null(), |new| &raw const *new);
    // SAFETY: the kernel reads one action and writes one.
    unsafe { call!(libc::SYS_rt_sigaction, signal, new, &raw mut old, 8) }?;
    Ok(old)
}

/// What is kept of the program's disposition of a signal, if the engine's handler may stand before it.
pub fn kept(signal: i32) -> Option<&'static Kept> {
    WATCHED.iter().position(|watched| *watched == signal).map(|at| &KEPT[at])
}

/// Says which handler of the engine stands before the program's.
pub fn set_ours(handler: u64) {
    OURS.store(handler, Relaxed);
}

/// Whether this is the disposition that stands before one of the program.
pub fn is_ours(action: &KernelAction) -> bool {
    action.handler != libc::SIG_DFL as u64 && action.handler == OURS.load(Relaxed)
}

/// The program's disposition of a signal, whether ours stands before it or not.
pub fn program_action(signal: i32) -> Result<KernelAction, Errno> {
    // SAFETY: only reads.
    let action = unsafe { action(signal, None) }?;
    Ok(if is_ours(&action) { kept(signal).map(Kept::get).unwrap_or_default() } else { action })
}
