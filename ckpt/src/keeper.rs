//! The same ids and a clock that does not go back: between fork and exec of a restart, a keeper stays behind as the parent of the restored
//! process, which gets its old pid (clone3 with set_tid: as root, or in namespaces of its own, which an ordinary user may
//! make). The keeper passes signals on and ends as the process ends. System calls only.

use crate::maps::numbered;
use crate::sys::{self, Answer, Errno, call, plain};

const NEWTIME: i32 = 0x80;

/// The restored process, as it was when it was saved.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its pid.
    pub pid: i32,
    /// The ids of its threads.
    pub tids: Vec<i32>,
    /// Its CLOCK_MONOTONIC in nanoseconds.
    pub monotonic: u64,
    /// Its CLOCK_BOOTTIME in nanoseconds.
    pub boottime: u64,
}

/// Returns in the process that shall execute the program: with its old pid if that is possible, which is the answer.
pub fn assume(identity: &Identity) -> bool {
    let behind = sys::clock(libc::CLOCK_MONOTONIC) < identity.monotonic || sys::clock(libc::CLOCK_BOOTTIME) < identity.boottime;
    // Threads of the killed process may take a moment to be gone, and ids may have been given to others.
    if !behind && !identity.tids.iter().any(|tid| taken(*tid)) {
        match clone_as(identity.pid) {
            Ok(0) => return true,
            Ok(child) => keep(child as i32, 0),
            Err(_) => {} // No privilege, or the id is taken: then in a namespace of its own.
        }
    }
    namespaces(identity, behind).is_ok()
}

fn taken(tid: i32) -> bool {
    // Signal 0 only asks.
    plain!(libc::SYS_kill, tid, 0) != Err(Errno(libc::ESRCH))
}

/// fork, the child with a given pid.
fn clone_as(pid: i32) -> Answer {
    let args: [u64; 11] = [0, 0, 0, 0, libc::SIGCHLD as u64, 0, 0, 0, &raw const pid as u64, 1, 0];
    // SAFETY: like fork; the memory is copied.
    let result = unsafe { call!(libc::SYS_clone3, args.as_ptr(), size_of_val(&args)) };
    if result == Ok(0) {
        die_with_parent();
    }
    result
}

fn die_with_parent() {
    // SAFETY: no memory is involved.
    let _ = unsafe { call!(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Returns in a process with the old pid, in a pid namespace with an init of ours.
fn namespaces(identity: &Identity, behind: bool) -> Result<(), Errno> {
    let (uid, gid) = (plain!(libc::SYS_geteuid)? as i32, plain!(libc::SYS_getegid)? as i32);
    let user = if uid == 0 { 0 } else { libc::CLONE_NEWUSER };
    plain!(libc::SYS_unshare, user | libc::CLONE_NEWPID | libc::CLONE_NEWNS | if behind { NEWTIME } else { 0 })?;
    if user != 0 {
        map_ids(uid, gid)?;
    }
    if behind {
        set_clocks(identity)?;
    }
    // SAFETY: like fork.
    let init = unsafe { call!(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }?;
    if init == 0 {
        die_with_parent();
        close_all();
        wait_for_ever();
    }
    match clone_as(identity.pid) {
        Ok(0) => fresh_proc(),
        Ok(child) => keep(child as i32, init as i32),
        Err(error) => {
            // The program must not find a child that it has not made.
            let _ = plain!(libc::SYS_kill, init, libc::SIGKILL);
            let _ = plain!(libc::SYS_wait4, init, 0, 0, 0);
            Err(error)
        }
    }
}

/// The user keeps its ids in the new user namespace, and may set thread ids in the restored process.
fn map_ids(uid: i32, gid: i32) -> Result<(), Errno> {
    write_file(b"/proc/self/setgroups\0", b"deny")?;
    for (path, id) in [(&b"/proc/self/uid_map\0"[..], uid), (b"/proc/self/gid_map\0", gid)] {
        let (mut inside, mut both) = ([0u8; 64], [0u8; 64]);
        let inside = numbered(&mut inside, b"", id, b" ");
        let line = numbered(&mut both, &inside[..inside.len() - 1], id, b" 1");
        write_file(path, &line[..line.len() - 1])?;
    }
    const CHECKPOINT_RESTORE: u32 = 40;
    // capset: version and pid; effective, permitted and inheritable, low and high words.
    let header = [0x2008_0522u32, 0];
    let mut sets = [0u32; 6];
    // SAFETY: the kernel reads or writes the header and the sets.
    unsafe {
        call!(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr())?;
        sets[5] |= 1 << (CHECKPOINT_RESTORE - 32);
        call!(libc::SYS_capset, header.as_ptr(), sets.as_ptr())?;
        call!(libc::SYS_prctl, libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, CHECKPOINT_RESTORE, 0, 0)?;
    }
    Ok(())
}

fn write_file(path: &[u8], text: &[u8]) -> Result<(), Errno> {
    let fd = sys::open(path, libc::O_WRONLY, 0)?;
    let result = sys::write_all(fd, text);
    sys::close(fd);
    result
}

/// The children's clocks go on from where the process's were, if this machine's are behind.
fn set_clocks(identity: &Identity) -> Result<(), Errno> {
    for (name, id, then) in
        [(&b"monotonic "[..], libc::CLOCK_MONOTONIC, identity.monotonic), (b"boottime ", libc::CLOCK_BOOTTIME, identity.boottime)]
    {
        let ahead = then.saturating_sub(sys::clock(id));
        let (mut seconds, mut line) = ([0u8; 64], [0u8; 64]);
        let seconds = numbered(&mut seconds, name, (ahead / 1_000_000_000) as i32, b" ");
        let line = numbered(&mut line, &seconds[..seconds.len() - 1], (ahead % 1_000_000_000) as i32, b"");
        write_file(b"/proc/self/timens_offsets\0", &line[..line.len() - 1])?;
    }
    Ok(())
}

/// /proc must show the new namespace: the engine reads it.
fn fresh_proc() -> Result<(), Errno> {
    let (none, root, proc_) = (c"none".as_ptr(), c"/".as_ptr(), c"/proc".as_ptr());
    // SAFETY: the kernel reads the names.
    unsafe {
        call!(libc::SYS_mount, none, root, 0, libc::MS_REC | libc::MS_PRIVATE, 0)?;
        call!(libc::SYS_mount, c"proc".as_ptr(), proc_, c"proc".as_ptr(), 0, 0).map(drop)
    }
}

fn close_all() {
    let _ = plain!(libc::SYS_close_range, 0, u32::MAX, 0);
}

/// Before children are looked at for the first time: a signal that comes after that look waits. One that is not blocked is lost, SIGCHLD of a child that ends
/// at once as much as any other.
fn hold_signals() {
    sys::mask_signals(libc::SIG_BLOCK, u64::MAX);
}

/// Waits for any signal, all being held; its number and 0 for an error.
fn next_signal() -> i32 {
    sys::take_signal(u64::MAX, false).map_or(0, |(signal, _)| signal)
}

/// The init of the namespace: collects orphans until it is killed.
fn wait_for_ever() -> ! {
    hold_signals();
    loop {
        while sys::ended(-1, 0).is_ok_and(|child| child.is_some()) {}
        next_signal();
    }
}

/// Stays behind: passes signals on to the child, and ends as it ends.
fn keep(child: i32, init: i32) -> ! {
    hold_signals();
    close_all();
    loop {
        if let Ok(Some((_, status))) = sys::ended(child, 0) {
            if init > 0 {
                let _ = plain!(libc::SYS_kill, init, libc::SIGKILL);
            }
            end_like(status);
        }
        let signal = next_signal();
        if signal != 0 && signal != libc::SIGCHLD {
            let _ = plain!(libc::SYS_kill, child, signal);
        }
    }
}

fn end_like(status: i32) -> ! {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        // The process that ended has left its core already.
        let _ = sys::set_limit(libc::RLIMIT_CORE as usize, &[0, 0]);
        // SAFETY: the default needs no handler.
        let _ = unsafe { crate::sigaction::action(signal, Some(&crate::arena::KernelAction::default())) };
        let _ = plain!(libc::SYS_kill, sys::getpid(), signal);
        sys::mask_signals(libc::SIG_SETMASK, 0);
    }
    sys::exit_group(libc::WEXITSTATUS(status))
}
