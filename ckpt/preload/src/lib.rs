//! The checkpoint engine as a library to preload: its constructor, and the few functions of the C library that it has to replace. Also as a part of
//! another such library, `libradic.so`, which then has all of that, too.

mod exec;

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use radic_ckpt::{Mode, Outcome};

/// For programs that save themselves: writes an image to `fd`, in a child (`fork` 1) or at once (0). 0: saved, 1: this is the restored process,
/// -1: refused, with the reason on standard error.
#[unsafe(no_mangle)]
pub extern "C" fn radic_ckpt_save(fd: i32, fork: i32) -> i32 {
    match radic_ckpt::checkpoint(fd, if fork == 1 { Mode::Fork } else { Mode::Stop }) {
        Ok(Outcome::Saved { .. }) => 0,
        Ok(Outcome::Restored) => 1,
        Err(refusal) => {
            eprintln!("radic: this program cannot be saved: {refusal}");
            -1
        }
    }
}

/// Whether the program is told that this kernel has no io_uring: then it uses what can be saved, or interposed.
static IO_URING_REFUSED: AtomicBool = AtomicBool::new(false);

/// From now on `syscall(SYS_io_uring_setup)` fails with ENOSYS. (A program that makes the system call itself gets its ring, and is refused a
/// checkpoint.)
pub fn refuse_io_uring() {
    IO_URING_REFUSED.store(true, Relaxed);
}

/// The C library's `syscall`, such that an interrupted call can be made again.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        "cmp rdi, {io_uring_setup}",
        "je {asked}",
        "jmp {to}",
        io_uring_setup = const IO_URING_SETUP,
        asked = sym io_uring_setup,
        to = sym radic_ckpt::indirect_syscall,
    )
}

/// The number of that system call on x86-64.
const IO_URING_SETUP: i64 = 425;

/// `syscall(SYS_io_uring_setup, entries, parameters)`.
unsafe extern "C" fn io_uring_setup(number: i64, entries: u32, parameters: *mut c_void) -> i64 {
    if IO_URING_REFUSED.load(Relaxed) {
        exec::set_errno(exec::ENOSYS);
        return -1;
    }
    type Function = unsafe extern "C" fn(i64, u32, *mut c_void) -> i64;
    // SAFETY: it has no type of its own, because it takes whatever the number asks for: this.
    let function = unsafe { core::mem::transmute::<unsafe extern "C" fn(), Function>(radic_ckpt::indirect_syscall) };
    // SAFETY: the caller's arguments.
    unsafe { function(number, entries, parameters) }
}

/// Runs before `main`, and after the constructors of the libraries the program needs.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

static CONSTRUCTED: AtomicBool = AtomicBool::new(false);

/// What the library does first, once. A library that contains this crate may call it before this crate's own constructor runs, to be sure of
/// the order. In a process that is to be restored it does not return.
pub extern "C" fn construct() {
    if CONSTRUCTED.swap(true, Relaxed) {
        return;
    }
    exec::prepare();
    if let Err(reason) = radic_ckpt::launch::constructor() {
        let restoring = std::env::var_os(radic_ckpt::launch::RESTORE_VARIABLE).is_some();
        let what = if restoring { "the process cannot be restored" } else { "this program cannot be saved" };
        eprintln!("radic: {what}: {reason}");
        if restoring {
            std::process::exit(125);
        }
    }
}
