//! The names that the program calls. Each converts C to Rust and back in a line or two; what happens is in [`crate::ops`]. A call passes through to
//! the next library when it is about nothing of ours: `real!(recv)` is what the program's `recv` would be without us.
//!
//! The crate redhook declares the hooks, and finds the functions behind them. What it does not do is done here:
//!
//! - It looks a function up at its first call. The constructor has it look up all ([`resolve`]): later the linker's lock may be taken, and a child between
//!   fork and exec must not wait for it. One that is called before (by another library's constructor) is looked up then
//!   (`preload/tests/constructors.rs`), under a `Once`: a child that another thread forks in this moment would wait for it forever if it calls the same one.
//! - It panics if there is none behind, and that ends the program. So [`crate::real`] finds those that not every C library has, and `mpi` those of an MPI
//!   library; redhook declares them all the same. [`crate::real`] also finds those that the library itself calls, below its hooks.
//! - After a panic of the hook it calls the function behind, as if nothing had been done. Release builds have panic = abort, so this never happens there.
//! - It cannot declare a function with a variable number of arguments. Those that have at most one more (`fcntl`, `ioctl`) are declared with it, for it is
//!   passed in the same register; `stdio` has the others in assembler.
//!
//! ```no_run
//! redhook::hook! { unsafe fn dprintf(fd: i32, format: *const u8, first: u64) -> i32 => on_dprintf { 0 } }
//! ```
//!
//! ```compile_fail
//! redhook::hook! { unsafe fn dprintf(fd: i32, format: *const u8, ...) -> i32 => on_dprintf { 0 } }
//! ```
//!
//! Safety, for all of them: as for the C library's functions. The program's pointers are trusted as the C library trusts them.
#![allow(clippy::missing_safety_doc, reason = "the module's text says it for all")]
#![allow(missing_docs, reason = "each is the C library's function of the same name")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "in hooks the reason is always the caller's, as the module's text says")]

/// Declares hooks, each as `redhook::hook!` has it, and makes of them the module's `resolve`: has redhook look up the function behind each one now, and
/// tells its name and address. What is behind is `real!(NAME)`.
macro_rules! hooks {
    ($(
        unsafe fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty => $hook:ident $body:block
    )*) => {
        $(redhook::hook! { unsafe fn $name($($argument: $type),*) -> $result => $hook $body })*

        pub(super) fn resolve(mut found: impl FnMut(&'static str, *const ())) {
            $(found(stringify!($name), next::$name() as *const ());)*
        }

        /// The functions behind the hooks, as redhook has found them. Not inlined: redhook's first look-up needs a place on the stack, and a hook that has it
        /// cannot end with a jump to the function behind. The return that this would add costs more than the call here, for the processor predicts none
        /// after a system call.
        mod next {
            use super::*;

            $(
                #[allow(non_snake_case)]
                #[inline(never)]
                pub fn $name() -> unsafe extern "C" fn($($type),*) -> $result {
                    use super::$name;
                    redhook::real!($name)
                }
            )*
        }
    };
}

/// A function of the C library of which the hook gets the return address, too, in the register after those of the function's
/// arguments. Only assembler knows that address, so these are not declared by redhook, and [`crate::real`] finds what is behind
/// them.
macro_rules! with_caller {
    ($name:ident => $hook:path, $register:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(concat!("mov ", $register, ", [rsp]"), "jmp {hook}", hook = sym $hook)
        }
    };
}

/// The function behind a hook.
macro_rules! real {
    ($name:ident) => {
        next::$name()
    };
}

pub mod counter;
pub mod descriptor;
pub mod exit;
pub mod identity;
pub mod io;
pub mod mpi;
pub mod poll;
pub mod process;
pub mod random;
mod result;
pub mod signal;
pub mod socket;
pub mod stdio;
pub mod thread;
pub mod time;
pub mod wait;

use crate::real;

/// Looks up the function behind each hook, and tells its name and address; of some there is none, which is null. Again is harmless.
pub fn resolve(mut found: impl FnMut(&'static str, *const ())) {
    descriptor::resolve(&mut found);
    exit::resolve(&mut found);
    identity::resolve(&mut found);
    io::resolve(&mut found);
    poll::resolve(&mut found);
    process::resolve(&mut found);
    signal::resolve(&mut found);
    socket::resolve(&mut found);
    stdio::resolve(&mut found);
    thread::resolve(&mut found);
    wait::resolve(&mut found);
    real::resolve(&mut found);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::{CString, c_int};

    use super::*;

    const SOURCES: [&str; 14] = [
        include_str!("descriptor.rs"),
        include_str!("exit.rs"),
        include_str!("identity.rs"),
        include_str!("io.rs"),
        include_str!("mpi.rs"),
        include_str!("poll.rs"),
        include_str!("process.rs"),
        include_str!("random.rs"),
        include_str!("signal.rs"),
        include_str!("socket.rs"),
        include_str!("stdio.rs"),
        include_str!("thread.rs"),
        include_str!("time.rs"),
        include_str!("wait.rs"),
    ];

    fn resolved() -> Vec<(&'static str, *const ())> {
        let mut all = Vec::new();
        resolve(|name, address| all.push((name, address)));
        all
    }

    #[test]
    fn the_constructor_finds_all_and_none_is_ours() {
        for (name, address) in resolved() {
            let symbol = CString::new(name).unwrap();
            // SAFETY: looks up a name in the C library, which is loaded already.
            let there =
                unsafe { libc::dlsym(libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD), symbol.as_ptr()) };
            assert_eq!(address, there.cast_const().cast(), "{name}");
            assert!(!there.is_null(), "{name}: this C library has no such function");
        }
    }

    #[test]
    fn the_constructor_knows_each_hook() {
        let declared: BTreeSet<_> = SOURCES
            .iter()
            .flat_map(|source| source.split("\n    unsafe fn ").skip(1))
            .filter_map(|rest| rest.split_once('('))
            .filter(|(_, rest)| !rest.starts_with('&'))
            .map(|(name, _)| name)
            .collect();
        let known = resolved().into_iter().map(|(name, _)| name).collect();
        // closefrom is done by close_range. MPI's are looked up when they are called.
        let others: Vec<_> = declared.difference(&known).copied().collect();
        assert_eq!(
            others,
            ["MPI_Init", "MPI_Init_thread", "MPI_Wtime", "closefrom", "mpi_init_", "mpi_init_thread_", "mpi_wtime_"]
        );
        // Those that are not declared by redhook, because they need their caller. clock and time are done by clock_gettime.
        let with_caller: BTreeSet<_> = SOURCES
            .iter()
            .flat_map(|source| source.split("\nwith_caller!(").skip(1))
            .filter_map(|rest| rest.split_once(" =>"))
            .map(|(name, _)| name)
            .collect();
        assert_eq!(with_caller.difference(&known).copied().collect::<Vec<_>>(), ["clock", "time"]);
        assert_eq!(
            known.difference(&declared).copied().collect::<BTreeSet<_>>(),
            &with_caller - &BTreeSet::from(["clock", "time"])
        );
    }

    /// Why `real` has functions of its own.
    #[test]
    #[should_panic = "Unable to find underlying function"]
    fn redhook_panics_where_there_is_nothing_behind() {
        redhook::hook! {
            unsafe fn radic_test_absent(value: c_int) -> c_int => on_absent { value }
        }
        _ = redhook::real!(radic_test_absent);
    }
}
