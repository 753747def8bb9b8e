//! The exec family, with the engine's signal blocked: a program that becomes another one has no handler for a moment, and a request for a
//! checkpoint (or another thread's stop) that comes then would kill it. Blocked signals stay blocked, and pending, over exec; the next program's
//! constructor unblocks it, or glibc's first pthread_create in a program that runs without the library.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

type Words = *const *const c_char;

unsafe extern "C" {
    static environ: Words;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn __errno_location() -> *mut c_int;
}

const RTLD_NEXT: *mut c_void = -1isize as *mut c_void;
pub const ENOSYS: c_int = 38;

pub fn set_errno(value: c_int) {
    // SAFETY: the thread's own.
    unsafe { *__errno_location() = value };
}

/// A function of the C library, looked up before it is needed: a child between fork and exec must not wait for the linker's lock.
struct Next(&'static CStr, AtomicPtr<c_void>);

static EXECVE: Next = Next(c"execve", AtomicPtr::new(core::ptr::null_mut()));
static EXECVPE: Next = Next(c"execvpe", AtomicPtr::new(core::ptr::null_mut()));
static FEXECVE: Next = Next(c"fexecve", AtomicPtr::new(core::ptr::null_mut()));
static EXECVEAT: Next = Next(c"execveat", AtomicPtr::new(core::ptr::null_mut()));

impl Next {
    fn find(&self) -> *mut c_void {
        if self.1.load(Relaxed).is_null() {
            // SAFETY: looks up a name.
            self.1.store(unsafe { dlsym(RTLD_NEXT, self.0.as_ptr()) }, Relaxed);
        }
        self.1.load(Relaxed)
    }

    /// Calls `how` with the function while the signal is blocked, and the processor's counter may be read. It returns only if there was no exec.
    fn call(&self, how: impl FnOnce(*mut c_void) -> c_int) -> c_int {
        let function = self.find();
        if function.is_null() {
            set_errno(ENOSYS);
            return -1;
        }
        let trapped = radic_ckpt::launch::before_exec();
        let result = how(function);
        radic_ckpt::launch::after_exec(trapped);
        result
    }
}

/// Called by the constructor.
pub fn prepare() {
    for next in [&EXECVE, &EXECVPE, &FEXECVE, &EXECVEAT] {
        next.find();
    }
}

/// # Safety
/// As for the C library's; likewise for all that follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, words: Words, environment: Words) -> c_int {
    // SAFETY: the function has this type, the arguments are the caller's.
    EXECVE.call(|next| unsafe {
        core::mem::transmute::<*mut c_void, extern "C" fn(*const c_char, Words, Words) -> c_int>(next)(path, words, environment)
    })
}

/// # Safety
/// See `execve`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, words: Words, environment: Words) -> c_int {
    // SAFETY: the function has this type, the arguments are the caller's.
    EXECVPE.call(|next| unsafe {
        core::mem::transmute::<*mut c_void, extern "C" fn(*const c_char, Words, Words) -> c_int>(next)(file, words, environment)
    })
}

/// # Safety
/// See `execve`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: c_int, words: Words, environment: Words) -> c_int {
    // SAFETY: the function has this type, the arguments are the caller's.
    FEXECVE.call(|next| unsafe {
        core::mem::transmute::<*mut c_void, extern "C" fn(c_int, Words, Words) -> c_int>(next)(fd, words, environment)
    })
}

/// # Safety
/// See `execve`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(folder: c_int, path: *const c_char, words: Words, environment: Words, flags: c_int) -> c_int {
    type Function = extern "C" fn(c_int, *const c_char, Words, Words, c_int) -> c_int;
    // SAFETY: the function has this type, the arguments are the caller's.
    EXECVEAT.call(|next| unsafe { core::mem::transmute::<*mut c_void, Function>(next)(folder, path, words, environment, flags) })
}

/// # Safety
/// See `execve`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, words: Words) -> c_int {
    // SAFETY: the caller's arguments, and the program's environment.
    unsafe { execve(path, words, environ) }
}

/// # Safety
/// See `execve`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, words: Words) -> c_int {
    // SAFETY: the caller's arguments, and the program's environment.
    unsafe { execvpe(file, words, environ) }
}

/// Defines a function whose arguments are a list: collects them, the first five from the registers, the others from the stack.
macro_rules! list {
    ($($name:ident as $how:literal),*) => {$(
        /// # Safety
        /// See `execve`.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "lea r10, [rsp + 8]",
                "push r9", "push r8", "push rcx", "push rdx", "push rsi",
                "mov rsi, rsp",
                "mov rdx, r10",
                "mov ecx, {how}",
                "call {listed}",
                "add rsp, 40",
                "ret",
                how = const $how,
                listed = sym listed,
            )
        }
    )*};
}

list!(execl as 0, execlp as 1, execle as 2);

/// Words of a list that need no memory from the allocator, which a child of a program with threads should not use.
const FEW: usize = 256;

unsafe extern "C" fn listed(path: *const c_char, registers: Words, stack: Words, how: u32) -> c_int {
    // SAFETY: the caller ends its list with a null pointer; behind it, execle's environment.
    let at = |index: usize| unsafe { if index < 5 { *registers.add(index) } else { *stack.add(index - 5) } };
    let count = (0..).position(|index| at(index).is_null()).unwrap_or(0);
    let (mut few, mut many) = ([core::ptr::null(); FEW], Vec::new());
    let words = if count < FEW {
        &mut few[..]
    } else {
        many.resize(count + 1, core::ptr::null());
        &mut many[..]
    };
    words[..count].iter_mut().enumerate().for_each(|(index, word)| *word = at(index));
    // SAFETY: the caller's arguments, as the C library would pass them on.
    unsafe {
        match how {
            0 => execv(path, words.as_ptr()),
            1 => execvp(path, words.as_ptr()),
            _ => execve(path, words.as_ptr(), at(count + 1).cast()),
        }
    }
}
