//! Children. They run unprotected, and must not disturb what their parent has: a forked child has copies of its parent's descriptors, those of the
//! layer included, and of the layer's state. So in the child the layer is off from the first moment, and its connections are closed there.
//!
//! What a child executes finds the library again (LD_PRELOAD), asks the node, and is refused: only the process that the node has launched may join. A
//! rank that executes another program is still that process, and joins again.

use std::ffi::{c_char, c_int};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{FILE, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::counter::{self, Allowed};
use super::wait;
use crate::fds::{self, Kind};
use crate::{children, ending, layer, memory, ops, phase, real, sys, watches};

hooks! {
    // What it has to do besides is done by the handlers of `pthread_atfork`, which are told no pid.
    unsafe fn fork() -> pid_t => on_fork {
        let pid = unsafe { real!(fork)() };
        note_child(pid);
        pid
    }

    // A child that shared its parent's memory would use the layer as if it were its parent, so this is a fork: POSIX allows that.
    unsafe fn vfork() -> pid_t => on_vfork {
        unsafe { libc::fork() }
    }

    unsafe fn posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t,
        words: *const *mut c_char, environment: *const *mut c_char
    ) -> c_int => on_posix_spawn {
        let _allowed = spawning();
        let result = unsafe { real!(posix_spawn)(pid, path, actions, attributes, words, environment) };
        unsafe { note_spawned(result, pid) };
        result
    }

    unsafe fn posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t,
        words: *const *mut c_char, environment: *const *mut c_char
    ) -> c_int => on_posix_spawnp {
        let _allowed = spawning();
        let result = unsafe { real!(posix_spawnp)(pid, file, actions, attributes, words, environment) };
        unsafe { note_spawned(result, pid) };
        result
    }

    unsafe fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE => on_popen {
        let _allowed = spawning();
        unsafe { real!(popen)(command, mode) }
    }

    unsafe fn system(command: *const c_char) -> c_int => on_system {
        let _allowed = (!command.is_null()).then(spawning);
        unsafe { real!(system)(command) }
    }
}

redhook::hook! {
    // `fork` without the handlers of `pthread_atfork`. Not every C library has it, so `real` finds what is behind it.
    unsafe fn _Fork() -> pid_t => on_bare_fork {
        unsafe {
            before();
            let pid = real::_Fork();
            if pid == 0 { in_child() } else { in_parent() }
            note_child(pid);
            pid
        }
    }
}

/// Runs with the library's other constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = register;

/// Whatever forks by the C library's `fork`, also the C library itself (forkpty, daemon), comes by here. `posix_spawn`, `system` and `popen` do not: their
/// children execute at once, and none of our code runs in them.
extern "C" fn register() {
    // It fails without memory only; then a forked child would go on as if it were its parent, and must not be.
    if unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) } != 0 {
        ending::fail("pthread_atfork has no memory");
    }
}

/// The layer is held by the thread that forks.
static HELD: AtomicBool = AtomicBool::new(false);

/// While the process is copied no other thread is in the middle of a change.
unsafe extern "C" fn before() {
    let held = layer::enter();
    let is_held = held.is_some();
    std::mem::forget(held);
    watches::enter();
    memory::enter();
    HELD.store(is_held, Ordering::Relaxed);
}

unsafe extern "C" fn in_parent() {
    let held = HELD.load(Ordering::Relaxed);
    memory::leave();
    watches::leave();
    if held {
        let mut layer = layer::adopt();
        note(&mut layer);
    }
}

/// There is one thread now, and it is no rank's.
unsafe extern "C" fn in_child() {
    phase::switch_off();
    counter::end();
    ops::child::begin();
    children::forget();
    memory::leave();
    memory::forget_secrets();
    watches::leave();
    end_connections();
    // An end that a child keeps open would hide its parent's death from the other side.
    for fd in fds::all(Kind::Own) {
        sys::close_own(sys::own(fd));
    }
}

/// In a child: the numbers of its parent's connections lead to a socket that has ended. What lies in those is in frames, and what
/// a child wrote there would be none.
fn end_connections() {
    let ended = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map(|(one, _)| one);
    for fd in fds::all(Kind::Connection).chain(fds::all(Kind::Alias)) {
        match &ended {
            Ok(ended) => _ = sys::replace(ended.as_fd(), fd),
            // There is no room for a socket more: the number is free then.
            Err(_) => sys::close_own(sys::own(fd)),
        }
    }
    ended.into_iter().for_each(sys::close_own);
}

/// The program has a child of this pid, if it is one. A handler of SIGCHLD may have heard of its end already.
fn note_child(pid: pid_t) {
    if pid > 0 && phase::is_active() {
        let errno = real::errno();
        children::begun(pid);
        if !wait::is_there(pid) {
            children::ended(pid);
        }
        real::set_errno(errno);
    }
}

unsafe fn note_spawned(result: c_int, pid: *const pid_t) {
    if result == 0 && !pid.is_null() {
        note_child(unsafe { *pid });
    }
}

/// Tells the node's log, once.
fn note(layer: &mut layer::Layer) {
    static NOTED: AtomicBool = AtomicBool::new(false);
    if !NOTED.swap(true, Ordering::Relaxed) {
        layer.note("it starts other processes: they run unprotected, and are not restarted with it");
    }
}

/// Before a call that starts another process, and perhaps waits for its end: what other processes wait for is sent first. During
/// the call the thread may read the processor's counter, and so may the process.
fn spawning() -> Allowed {
    if let Some(mut layer) = layer::enter() {
        layer.tend();
        note(&mut layer);
    }
    Allowed::begin()
}
