//! The way back: entered by the restorer when memory is whole again. Runs on the engine's stack in the only thread there is, the future
//! leader; makes everything else as the tables say, and lets all threads return into their signal frames.

use core::arch::asm;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use crate::arena::{self, Fd, Kind, LockKind, MAX_THREADS, Shared, Tables, Thread, state};
use crate::counter::trap_counter;
use crate::describe::object_number;
use crate::files::Fault;
use crate::hooks::hook;
use crate::maps::{ObjectId, numbered};
use crate::page::PAGE;
use crate::plan::{Plan, RESTORER_BASE, RESTORER_SPAN};
use crate::sys::{self, Errno, call, plain};
use crate::{death, files, owners, rseq, sigaction, signals};

/// The command's own descriptors 0 to 2, out of the way, until the process goes on; -1: not open.
static OWN: [AtomicI32; 3] = [const { AtomicI32::new(-1) }; 3];

/// The number of the launcher of this process, as it has given it; 0: it has given none.
static LAUNCHER: AtomicU64 = AtomicU64::new(0);

/// 1: this incarnation of the process is a copy that changes nothing outside of itself.
static ALONE: AtomicU32 = AtomicU32::new(0);

/// Whether this is a copy that changes nothing outside of itself ([`restart_alone`](crate::control::restart_alone)). It is known when the hook after a restore
/// is called.
pub fn is_alone() -> bool {
    ALONE.load(Relaxed) == 1
}

/// The number that the launcher of this restored process has given ([`LAUNCHER_VARIABLE`](crate::launch::LAUNCHER_VARIABLE)). The environment does not have it,
/// for it is that of the first incarnation, and the parent need not be the launcher. 0: none was given, or the process was never restored. It is known when the
/// hook after a restore is called.
pub fn launcher() -> u64 {
    LAUNCHER.load(Relaxed)
}

/// Writes to the command's standard error.
fn say(parts: &[&[u8]]) {
    let error = OWN[2].load(Relaxed);
    for part in parts {
        let _ = sys::write_all(if error < 0 { 2 } else { error }, part);
    }
}

/// Ends the process: it cannot go on as it was, and has not yet.
fn fail(what: &str, error: Errno) -> ! {
    end(what, b": error ", error.0)
}

/// The same, with what says itself what its number is.
fn fail_with(what: &str, number: i32) -> ! {
    end(what, b" ", number)
}

fn end(what: &str, before: &[u8], number: i32) -> ! {
    let mut text = [0u8; 64];
    let number = numbered(&mut text, before, number, b"\n");
    say(&[b"radic: the process cannot be restored: ", what.as_bytes(), &number[..number.len() - 1]]);
    death::note(&["it cannot be restored: ", what, str::from_utf8(&number[..number.len() - 2]).unwrap_or("")]);
    sys::exit_group(125)
}

trait OrFail<T> {
    fn or_fail(self, what: &str) -> T;
}

impl<T> OrFail<T> for Result<T, Errno> {
    fn or_fail(self, what: &str) -> T {
        match self {
            Ok(value) => value,
            Err(error) => fail(what, error),
        }
    }
}

/// The restart entry; its address is in the image's header.
pub extern "C" fn entry(plan: &Plan) -> ! {
    let threads = state().parked.load(Relaxed) as usize;
    LAUNCHER.store(plan.launcher, Relaxed);
    ALONE.store(plan.alone, Relaxed);
    // SAFETY: no other thread runs; the slots are as the saved process left them.
    let (tables, leader) = unsafe { (arena::tables(), *state().slots[0].0.get()) };
    // SAFETY: the leader's own segments.
    unsafe {
        call!(libc::SYS_arch_prctl, 0x1002, leader.fs).or_fail("the thread pointer");
        call!(libc::SYS_arch_prctl, 0x1001, leader.gs).or_fail("the GS base");
    }
    death::begin(&plan.death, tables).or_fail("a signal disposition");
    // What the image says of these is where it was made.
    files::learn_boot();
    tables.owners.clear();
    plan.owners().iter().for_each(|owner| assert!(tables.owners.push(*owner), "there is as much room as in a plan"));
    memory(tables).or_fail("the addresses of heap, arguments and environment (the kernel needs CONFIG_CHECKPOINT_RESTORE)");
    descriptors(tables, plan);
    shared(tables);
    guards(tables);
    arena::drop_content(tables);
    environment(tables);
    for (index, action) in tables.actions.iter().enumerate() {
        let signal = index as i32 + 1;
        if signal != libc::SIGKILL && signal != libc::SIGSTOP && !death::is_before(signal, action) {
            // SAFETY: the program's own handlers.
            unsafe { sigaction::action(signal, Some(action)) }.or_fail("a signal disposition");
        }
    }
    // The restorer is done, and so is its plan.
    // SAFETY: nothing uses the range any more; reserving it again hits only itself.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        sys::mmap(RESTORER_BASE, RESTORER_SPAN, libc::PROT_NONE, flags, -1, 0).or_fail("the restorer's range");
    }
    revive(tables, threads, &leader)
}

/// Brings the threads back, starts the timers, opens the gate.
fn revive(tables: &Tables, threads: usize, leader: &Thread) -> ! {
    state().arrived.store(0, Relaxed);
    state().gate.store(0, Relaxed);
    adopt(0, leader);
    for index in 1..threads.min(MAX_THREADS) {
        spawn(index).or_fail("a thread");
    }
    loop {
        let arrived = state().arrived.load(Acquire);
        if arrived as usize == threads - 1 {
            break;
        }
        sys::futex_wait(&state().arrived, arrived, None);
    }
    owners::rename(threads).or_fail("the owners of mutexes");
    timers(tables, threads);
    pending(tables);
    for own in &OWN {
        sys::close(own.swap(-1, Relaxed));
    }
    state().child.store(0, Relaxed);
    // A request that came while the image was made was answered by the process that was saved.
    state().asked.store(0, Relaxed);
    state().nudged.store(0, Relaxed);
    // The new process's memory is not tracked.
    state().userfaultfd.store(0, Relaxed);
    state().tracked.store(0, Relaxed);
    state().hashes.store(0, Relaxed);
    // Nor is there a snapshot.
    state().snapshot.store(0, Relaxed);
    state().restored.fetch_add(1, Relaxed);
    hook(|h| h.after_restore);
    state().released.store(state().round.load(Relaxed), Relaxed);
    death::handle_restored();
    // They go on from where they were, not from where they have parked.
    state().parking.store(0, Relaxed);
    state().busy.store(0, Release);
    state().gate.store(1, Release);
    sys::futex_wake(&state().gate);
    resume(leader)
}

fn memory(tables: &Tables) -> Result<(), Errno> {
    const PR_SET_MM: i32 = 35;
    const PR_SET_MM_MAP: i32 = 14;
    let mut map = [0u64; 13];
    map[..11].copy_from_slice(&tables.mm);
    map[11] = tables.auxv.as_ptr() as u64;
    // auxv_size, and no other executable (exe_fd = -1).
    map[12] = tables.auxv_bytes as u64 | 0xffff_ffff << 32;
    // SAFETY: the kernel reads the map and the vector.
    unsafe { call!(libc::SYS_prctl, PR_SET_MM, PR_SET_MM_MAP, map.as_ptr(), size_of_val(&map), 0) }.map(drop)
}

/// What belongs to the restart, not to the program.
fn kept(plan: &Plan, fd: i32) -> bool {
    plan.objects[..plan.objects_used as usize].iter().any(|o| o.fd == fd) || OWN.iter().any(|own| own.load(Relaxed) == fd)
}

/// Allows as many descriptors as may be allowed, until the program's own limits are back.
fn allow_descriptors() {
    let number = libc::RLIMIT_NOFILE as usize;
    let _ = sys::limit(number).and_then(|[_, hard]| sys::set_limit(number, &[hard, hard]));
}

fn descriptors(tables: &Tables, plan: &Plan) {
    allow_descriptors();
    let above = tables.fds.iter().map(|fd| fd.fd).max().unwrap_or(2) + 1;
    for (fd, own) in OWN.iter().enumerate() {
        let copy = sys::fcntl(fd as i32, libc::F_DUPFD_CLOEXEC, above as usize).map_or(-1, |copy| copy as i32);
        own.store(copy, Relaxed);
    }
    // Close what this host process had open: everything but what the program inherits.
    let mut open = [0u64; 1 << 10];
    sys::numbers(b"/proc/self/fd\0", |fd| {
        if let Some(word) = open.get_mut(fd as usize / 64) {
            *word |= 1 << (fd % 64);
        }
    })
    .or_fail("/proc/self/fd");
    for fd in (0..open.len() as i32 * 64).filter(|fd| open[*fd as usize / 64] >> (fd % 64) & 1 == 1) {
        let inherited = fd <= 2 && tables.fds.iter().any(|f| f.fd == fd && (f.kind == Kind::Inherited || f.same_as >= 0));
        if !inherited && !kept(plan, fd) {
            sys::close(fd);
        }
    }
    // Epolls last: they watch the others.
    for epolls in [false, true] {
        for fd in tables.fds.iter().filter(|fd| (fd.kind == Kind::Epoll) == epolls && fd.same_as < 0) {
            descriptor(tables, plan, fd);
            settle(fd);
        }
        for fd in tables.fds.iter().filter(|fd| (fd.kind == Kind::Epoll) == epolls && fd.same_as >= 0) {
            sys::dup3(fd.same_as, fd.fd, cloexec(fd)).or_fail("a duplicated descriptor");
        }
    }
    for watch in tables.watches.iter() {
        let event = libc::epoll_event { events: watch.events, u64: watch.data };
        // SAFETY: the kernel reads one event. A watched file whose descriptor was closed or replaced since is lost: it cannot be named.
        let _ = unsafe { call!(libc::SYS_epoll_ctl, watch.epoll, libc::EPOLL_CTL_ADD, watch.fd, &raw const event) };
    }
    locks(tables);
    for object in &plan.objects[..plan.objects_used as usize] {
        if !tables.fds.iter().any(|fd| fd.fd == object.fd) {
            sys::close(object.fd);
        }
    }
}

/// A lock that another process has taken meanwhile is the end: the program relies on it.
fn locks(tables: &Tables) {
    for lock in tables.locks.iter() {
        let (flock, record) = if lock.exclusive { (libc::LOCK_EX, libc::F_WRLCK) } else { (libc::LOCK_SH, libc::F_RDLCK) };
        let range = libc::flock {
            l_type: record as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: lock.start as i64,
            l_len: lock.len as i64,
            l_pid: 0,
        };
        // SAFETY: the kernel reads one struct flock.
        unsafe {
            match lock.kind {
                LockKind::Flock => plain!(libc::SYS_flock, lock.fd, flock | libc::LOCK_NB),
                LockKind::Process => call!(libc::SYS_fcntl, lock.fd, libc::F_SETLK, &raw const range),
                LockKind::OpenFile => call!(libc::SYS_fcntl, lock.fd, libc::F_OFD_SETLK, &raw const range),
            }
        }
        .or_fail("a lock that the program held on a file is another process's now");
    }
}

fn cloexec(fd: &Fd) -> i32 {
    if fd.fd_flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 }
}

/// Moves a new descriptor to its number.
fn place(fd: &Fd, new: i32) {
    if new == fd.fd {
        sys::fcntl(new, libc::F_SETFD, fd.fd_flags as usize).or_fail("a descriptor's flags");
    } else {
        sys::dup3(new, fd.fd, cloexec(fd)).or_fail("a descriptor's number");
        sys::close(new);
    }
}

/// Status flags that only fcntl sets.
fn settle(fd: &Fd) {
    const SETTABLE: i32 = libc::O_APPEND | libc::O_NONBLOCK | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME;
    if fd.kind != Kind::Inherited {
        let _ = sys::fcntl(fd.fd, libc::F_SETFL, (fd.status & SETTABLE) as usize);
    }
}

fn descriptor(tables: &Tables, plan: &Plan, fd: &Fd) {
    match fd.kind {
        Kind::Inherited => inherited(fd),
        Kind::File
            if plan.alone == 1
                && fd.file.mode & libc::S_IFMT == libc::S_IFREG
                && fd.status & libc::O_ACCMODE != libc::O_RDONLY =>
        {
            copy(fd);
        }
        Kind::File => file(tables, plan, fd),
        Kind::Content | Kind::Object => object(tables, plan, fd),
        Kind::PipeRead => pipe(tables, fd),
        Kind::PipeWrite => {} // Comes with the reading end.
        Kind::Event | Kind::Timer | Kind::Signal => counter(fd),
        Kind::Epoll => {
            place(fd, plain!(libc::SYS_epoll_create1, libc::O_CLOEXEC).or_fail("an epoll") as i32);
        }
        Kind::SocketPair => pair(tables, fd),
        Kind::Socket => lost_socket(fd),
        Kind::LooseSocket => loose_socket(tables, fd),
        Kind::ForeignPipe => lost_pipe(fd),
    }
}

fn inherited(fd: &Fd) {
    if sys::fcntl(fd.fd, libc::F_GETFD, 0).is_err() {
        place(fd, sys::open(b"/dev/null\0", fd.status & libc::O_ACCMODE, 0).or_fail("/dev/null"));
    }
}

fn file(tables: &Tables, plan: &Plan, fd: &Fd) {
    const ONCE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;
    let path = tables.text(fd.path);
    let name = &path[..path.len() - 1];
    let is_regular = fd.file.mode & libc::S_IFMT == libc::S_IFREG;
    let saved = fd.values[0] == 1 && is_regular;
    let again = || sys::open(path, fd.status & !ONCE | libc::O_CREAT | libc::O_EXCL, fd.file.mode & 0o7777).map_err(Fault::Error);
    let opened = match files::open_again(path, &fd.file, fd.status, plan.owners()) {
        Err(Fault::Error(Errno(libc::ENOENT))) if saved => again(),
        opened => opened,
    };
    let new = match opened {
        Ok(new) => new,
        // Where output went is no reason to lose the program: logs are deleted and rotated.
        Err(Fault::Error(Errno(libc::ENOENT))) if fd.fd <= 2 && OWN[fd.fd as usize].load(Relaxed) >= 0 => {
            say(&[b"radic: this file was open and is gone; the command's own descriptor takes its place: ", name, b"\n"]);
            return sys::dup3(OWN[fd.fd as usize].load(Relaxed), fd.fd, cloexec(fd)).or_fail("a standard descriptor");
        }
        Err(fault) => {
            let (what, number) = fault.words();
            say(&[b"radic: the program had this file open: ", name, b"\n"]);
            fail_with(what, number)
        }
    };
    if saved {
        // SAFETY: the content travelled with the image.
        sys::pwrite_all(new, unsafe { arena::content_bytes(fd.content) }, 0).or_fail("a file's content");
    }
    if is_regular {
        // What was written after the checkpoint will be written again.
        let longer = sys::fstat(new).is_ok_and(|stat| stat.st_size as u64 > fd.size);
        if longer && fd.status & libc::O_ACCMODE != libc::O_RDONLY {
            plain!(libc::SYS_ftruncate, new, fd.size).or_fail("a file that grew cannot be cut");
        }
    }
    let _ = sys::lseek(new, fd.position as i64, libc::SEEK_SET);
    place(fd, new);
}

/// In the place of a file that the program had open for writing, in a process that is to change none: memory of its length, with its content if that is
/// in the image. What was only written before reads as zeroes.
fn copy(fd: &Fd) {
    let memfd = sys::memory_file().or_fail("a memfd");
    plain!(libc::SYS_ftruncate, memfd, fd.size).or_fail("the length of a memfd");
    let new = reopen(memfd, fd);
    if fd.values[0] == 1 {
        // SAFETY: the content travelled with the image.
        sys::pwrite_all(memfd, unsafe { arena::content_bytes(fd.content) }, 0).or_fail("a file's content");
    }
    sys::close(memfd);
    let _ = sys::lseek(new, fd.position as i64, libc::SEEK_SET);
    place(fd, new);
}

/// A file without a name: the object that the constructor made for its mappings, or a new memfd with its content.
fn object(tables: &Tables, plan: &Plan, fd: &Fd) {
    let number = object_number(&tables.shared, ObjectId::new(tables.text(fd.path), fd.file.device, fd.file.inode));
    let made = plan.objects[..plan.objects_used as usize].iter().find(|o| o.number == number);
    let new = match made {
        Some(made) => reopen(made.fd, fd),
        None => {
            let memfd = sys::memory_file().or_fail("a memfd");
            let new = reopen(memfd, fd);
            fill(memfd, fd);
            sys::close(memfd);
            new
        }
    };
    let _ = sys::lseek(new, fd.position as i64, libc::SEEK_SET);
    place(fd, new);
}

/// Another open file of the same object, with the program's access mode.
fn reopen(from: i32, fd: &Fd) -> i32 {
    let mut path = [0u8; 64];
    let path = numbered(&mut path, b"/proc/self/fd/", from, b"");
    sys::open(path, fd.status & (libc::O_ACCMODE | libc::O_APPEND), 0).or_fail("a file without a name")
}

fn fill(to: i32, fd: &Fd) {
    // SAFETY: the content travelled with the image; contents are dropped after the descriptors are made.
    let content = unsafe { arena::content_bytes(fd.content) };
    sys::write_all(to, content).or_fail("a file's content");
}

fn pipe(tables: &Tables, fd: &Fd) {
    let ends = sys::pipe().or_fail("a pipe");
    let writer =
        tables.fds.iter().find(|other| other.kind == Kind::PipeWrite && other.file.inode == fd.file.inode && other.same_as < 0);
    let Some(writer) = writer else { fail("a pipe without its other end", Errno(libc::EPIPE)) };
    // Out of the way of the numbers the ends belong at.
    let far = [high(ends[0]), high(ends[1])];
    let _ = sys::fcntl(far[1], libc::F_SETPIPE_SZ, fd.values[0] as usize);
    if fd.content.1 > 0 {
        fill(far[1], fd);
    }
    place(fd, far[0]);
    place(writer, far[1]);
}

/// Both ends at once, when the first is met.
fn pair(tables: &Tables, fd: &Fd) {
    let other =
        tables.fds.iter().find(|other| other.kind == Kind::SocketPair && other.file.inode == fd.position && other.same_as < 0);
    let Some(other) = other else { return lost_socket(fd) };
    if other.fd < fd.fd {
        return; // It came with that one.
    }
    let ends = sys::socket_pair_of(fd.values[0] as i32).or_fail("a pair of sockets");
    let far = [high(ends[0]), high(ends[1])];
    for (from, to) in [(fd, far[1]), (other, far[0])] {
        if from.content.1 > 0 {
            fill(to, from);
        }
    }
    place(fd, far[0]);
    place(other, far[1]);
}

/// Moves a descriptor of ours behind all those of the program.
fn high(fd: i32) -> i32 {
    // SAFETY: this thread alone uses the tables.
    let last = unsafe { arena::tables() }.fds.iter().map(|fd| fd.fd).max().unwrap_or(2);
    let far = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, last as usize + 1).or_fail("no free descriptor") as i32;
    sys::close(fd);
    far
}

fn counter(fd: &Fd) {
    // SAFETY: the kernel reads a mask, or a time.
    let new = unsafe {
        match fd.kind {
            Kind::Event => {
                let flags = libc::O_CLOEXEC | if fd.values[1] == 1 { libc::EFD_SEMAPHORE } else { 0 };
                let new = call!(libc::SYS_eventfd2, 0, flags).or_fail("an eventfd") as i32;
                // The initial value of eventfd2 has 32 bits.
                if fd.values[0] > 0 {
                    sys::write_all(new, &fd.values[0].to_ne_bytes()).or_fail("an eventfd's count");
                }
                new
            }
            Kind::Timer => {
                let new = call!(libc::SYS_timerfd_create, fd.content.0, libc::O_CLOEXEC).or_fail("a timerfd") as i32;
                let mut times = fd.values;
                if fd.content.1 > 0 && (times[2], times[3]) == (0, 0) {
                    times[3] = 1; // It has expired and the program has not read that: it expires at once.
                }
                call!(libc::SYS_timerfd_settime, new, 0, times.as_ptr(), 0).or_fail("a timerfd's time");
                new
            }
            _ => call!(libc::SYS_signalfd4, -1isize, fd.values.as_ptr(), 8, libc::O_CLOEXEC).or_fail("a signalfd") as i32,
        }
    };
    place(fd, new);
}

/// A socket without a peer: reads give end of file.
fn lost_socket(fd: &Fd) {
    let ends = sys::socket_pair().or_fail("a socket");
    sys::close(ends[1]);
    place(fd, ends[0]);
}

/// Connections that wait at a listening socket: as many as the kernel allows by itself: it does not tell how many the program had asked for.
const BACKLOG: u32 = 4096;

/// A socket that had no peer, as it was.
fn loose_socket(tables: &Tables, fd: &Fd) {
    let [domain, kind, protocol, listening] = fd.values.map(|value| value as i32);
    let name = tables.text(fd.path).strip_suffix(&[0]).unwrap_or(b"");
    let new = plain!(libc::SYS_socket, domain, kind | libc::SOCK_CLOEXEC, protocol).or_fail("a socket") as i32;
    let _ = sys::set_socket_option(new, libc::SO_REUSEADDR, &1i32.to_ne_bytes());
    if named(domain, name) {
        bind(new, domain, name, fd);
    }
    if listening != 0 {
        plain!(libc::SYS_listen, new, BACKLOG).or_fail("a listening socket");
    }
    place(fd, new);
}

/// Was the socket bound to an address? Of the internet, a port; of this machine, a name.
fn named(domain: i32, name: &[u8]) -> bool {
    match domain {
        libc::AF_INET | libc::AF_INET6 => name.get(2..4).is_some_and(|port| port != [0, 0]),
        _ => name.len() > 2,
    }
}

/// Binds a socket to its old address, or, if that is taken, to any.
fn bind(socket: i32, domain: i32, name: &[u8], fd: &Fd) {
    let mut any = [0u8; size_of::<libc::sockaddr_storage>()];
    any[..name.len()].copy_from_slice(name);
    let bind = |name: &[u8]| sys::to_address(libc::SYS_bind, socket, name);
    let mut done = bind(name);
    if done == Err(Errno(libc::EADDRINUSE)) && domain == libc::AF_UNIX && fd.position != 0 {
        // The socket's own file, which no process serves any more.
        let path = &name[2..];
        if path.ends_with(&[0]) && sys::stat(path).is_ok_and(|stat| stat.st_ino == fd.position) {
            // SAFETY: the kernel reads the path.
            let _ = unsafe { call!(libc::SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0) };
            done = bind(name);
        }
    }
    if done.is_err() {
        say(&[b"radic: the address of a socket is taken: it gets another one\n"]);
        let len = if domain == libc::AF_UNIX { 2 } else { name.len() };
        if matches!(domain, libc::AF_INET | libc::AF_INET6) {
            any[2..4].fill(0);
        }
        let mut done = bind(&any[..len]);
        if done.is_err() && matches!(domain, libc::AF_INET | libc::AF_INET6) {
            // The address is another machine's: all of this one's.
            any[4..].fill(0);
            done = bind(&any[..len]);
        }
        done.or_fail("the address of a socket");
    }
}

/// A pipe without another end.
fn lost_pipe(fd: &Fd) {
    let ends = sys::pipe().or_fail("a pipe");
    let far = [high(ends[0]), high(ends[1])];
    let ours = usize::from(fd.status & libc::O_ACCMODE == libc::O_WRONLY);
    sys::close(far[1 - ours]);
    place(fd, far[ours]);
}

/// Puts back what shared mappings held. The objects behind them are new, or files that may have changed since.
fn shared(tables: &Tables) {
    for (index, mapping) in tables.shared.iter().enumerate() {
        if mapping.is_segment && !tables.shared[..index].iter().any(|earlier| earlier.object == mapping.object) {
            segment(&tables.shared[index..], mapping);
        }
        // SAFETY: the restorer has mapped it; no other thread runs.
        unsafe {
            let whole = mapping.prot | libc::PROT_READ as u32 | libc::PROT_WRITE as u32;
            call!(libc::SYS_mprotect, mapping.start, mapping.span, whole).or_fail("shared memory");
            core::ptr::copy_nonoverlapping(mapping.content as *const u8, mapping.start as *mut u8, mapping.len as usize);
            call!(libc::SYS_mprotect, mapping.start, mapping.span, mapping.prot).or_fail("shared memory");
        }
    }
}

/// Makes mappings a segment of System V again, so that they can be detached: a new one of this process. A segment that has the old number now may be anybody's.
fn segment(mappings: &[Shared], first: &Shared) {
    const SHM_REMAP: i32 = 0o40000;
    let new = plain!(libc::SYS_shmget, libc::IPC_PRIVATE, first.span, 0o600).or_fail("a segment of shared memory");
    for mapping in mappings.iter().filter(|mapping| mapping.object == first.object && mapping.is_segment) {
        let flags = SHM_REMAP | if mapping.prot & libc::PROT_WRITE as u32 == 0 { libc::SHM_RDONLY } else { 0 };
        // SAFETY: replaces what the restorer has mapped there for it.
        unsafe { call!(libc::SYS_shmat, new, mapping.start, flags) }.or_fail("a segment of shared memory");
    }
    // SAFETY: no memory is involved; it goes when the last process has detached it.
    let _ = unsafe { call!(libc::SYS_shmctl, new, libc::IPC_RMID, 0) };
}

fn guards(tables: &Tables) {
    const MADV_GUARD_INSTALL: i32 = 102;
    for guard in tables.guards.iter() {
        // SAFETY: these pages had no content when the process was saved.
        unsafe { call!(libc::SYS_madvise, guard.start, guard.end - guard.start, MADV_GUARD_INSTALL) }.or_fail("guard pages");
    }
}

fn environment(tables: &Tables) {
    for (number, limit) in tables.limits.iter().enumerate() {
        // A hard limit that is lower here stays so: only root could raise it.
        let _ = sys::set_limit(number, limit);
    }
    // SAFETY: no memory but the path is involved.
    unsafe {
        let _ = plain!(libc::SYS_umask, tables.umask);
        if tables.dumpable <= 1 {
            let _ = call!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, tables.dumpable);
        }
        if tables.cwd.len > 1 {
            call!(libc::SYS_chdir, tables.text(tables.cwd).as_ptr()).or_fail("the working directory cannot be entered");
        }
    }
}

/// Makes the calling thread the one that is described. Its FS and GS are set already.
fn adopt(index: usize, thread: &Thread) {
    let now = sys::gettid();
    // SAFETY: the slot is this thread's own.
    unsafe { (*state().slots[index].0.get()).now = now };
    signals::renamed(thread.tid, now);
    // SAFETY: addresses within the thread's own memory, as it had registered them.
    unsafe {
        if thread.tid_address != 0 {
            call!(libc::SYS_set_tid_address, thread.tid_address).or_fail("a thread's id address");
            // glibc keeps a thread's id there; it is another one now, unless ids could be kept.
            (thread.tid_address as *mut i32).write_volatile(now);
        }
        if thread.robust_len != 0 {
            let _ = call!(libc::SYS_set_robust_list, thread.robust, thread.robust_len);
        }
        rseq::enter(thread.fs).or_fail("rseq");
        let _ = call!(libc::SYS_prctl, libc::PR_SET_NAME, thread.name.as_ptr());
        if thread.affinity_len > 0 {
            // Another machine may not have these processors: then it runs anywhere.
            let _ = call!(libc::SYS_sched_setaffinity, 0, thread.affinity_len, thread.affinity.as_ptr());
        }
    }
    if thread.counter_traps == 1 && !trap_counter(true) {
        fail("its reading of the processor's counter cannot be trapped", Errno(libc::EINVAL));
    }
}

/// Makes a thread, with its old id if the kernel allows it.
fn spawn(index: usize) -> Result<(), Errno> {
    const FLAGS: u64 = (libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_SETTLS) as u64;
    // SAFETY: the thread does not exist yet, so no other one uses the slot.
    let (tid, fs) = unsafe { ((*state().slots[index].0.get()).tid, (*state().slots[index].0.get()).fs) };
    let top = arena::thread_stack(index);
    let mut result = -i64::from(libc::EPERM);
    for set_tid in [&raw const tid as u64, 0] {
        // clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup.
        let args: [u64; 11] = [FLAGS, 0, 0, 0, 0, top - PAGE, PAGE, fs, set_tid, u64::from(set_tid != 0), 0];
        // SAFETY: the new thread has a stack and thread-local storage of its own, and never returns from `begin_thread`.
        unsafe {
            asm!("syscall", "test rax, rax", "jnz 2f", "xor ebp, ebp", "mov rdi, r12", "call {begin}", "ud2", "2:",
                begin = sym begin_thread, inlateout("rax") libc::SYS_clone3 => result, in("rdi") args.as_ptr(), in("rsi") 88,
                in("r12") index, lateout("rcx") _, lateout("r11") _);
        }
        if result >= 0 {
            return Ok(());
        }
        say(&[b"radic: a thread is restored under another id\n"]);
    }
    Err(Errno(-result as i32))
}

extern "C" fn begin_thread(index: usize) -> ! {
    // SAFETY: the slot is this thread's own; no other one changes it meanwhile.
    let thread = unsafe { *state().slots[index].0.get() };
    // SAFETY: the thread's own segment.
    unsafe { call!(libc::SYS_arch_prctl, 0x1001, thread.gs) }.or_fail("the GS base");
    adopt(index, &thread);
    state().arrived.fetch_add(1, Release);
    sys::futex_wake(&state().arrived);
    while state().gate.load(Acquire) == 0 {
        sys::futex_wait(&state().gate, 0, None);
    }
    resume(&thread)
}

/// Goes on where the signal had interrupted the thread.
fn resume(thread: &Thread) -> ! {
    // Faults were let through so far.
    sys::mask_signals(libc::SIG_BLOCK, u64::MAX);
    raise(thread.pending);
    // A signal that the program has taken care of ends a call that waited for it.
    signals::settle(thread.context as *mut libc::ucontext_t, thread.rewound == 1);
    // SAFETY: the frame is the one the kernel made when the thread was stopped.
    unsafe {
        asm!("mov rsp, {frame}", "mov eax, 15", "syscall", "ud2", frame = in(reg) thread.context, options(noreturn));
    }
}

fn timers(tables: &Tables, threads: usize) {
    for (number, timer) in tables.itimers.iter().enumerate() {
        // SAFETY: the kernel reads one itimerval.
        unsafe { call!(libc::SYS_setitimer, number, timer.as_ptr(), 0) }.or_fail("an interval timer");
    }
    for timer in tables.timers.iter() {
        // sigevent: value, signal, notify, tid.
        let mut event = [0u64; 8];
        event[0] = timer.value;
        event[1] = timer.signal as u64 | (timer.notify as u64) << 32;
        // SAFETY: the threads wait at the gate.
        let target = state().slots[..threads].iter().map(|slot| unsafe { *slot.0.get() }).find(|t| t.tid == timer.tid);
        event[2] = target.map_or(0, |thread| thread.now) as u64;
        make_timer(timer.id, timer.clock, &event);
        // SAFETY: the kernel reads one itimerspec.
        unsafe { call!(libc::SYS_timer_settime, timer.id, 0, timer.times.as_ptr(), 0) }.or_fail("a POSIX timer");
    }
}

/// The kernel numbers timers upwards: make and delete until the number is right. Newer kernels take the number.
fn make_timer(id: i32, clock: i32, event: &[u64; 8]) {
    const PR_TIMER_CREATE_RESTORE_IDS: i32 = 77;
    let mut got = id;
    // SAFETY: the kernel reads one sigevent, and reads or writes one int.
    unsafe {
        let given = call!(libc::SYS_prctl, PR_TIMER_CREATE_RESTORE_IDS, 1, 0, 0, 0).is_ok();
        for _ in 0..=id.unsigned_abs() {
            call!(libc::SYS_timer_create, clock, event.as_ptr(), &raw mut got).or_fail("a POSIX timer");
            if got == id {
                break;
            }
            let _ = call!(libc::SYS_timer_delete, got);
        }
        if given {
            let _ = call!(libc::SYS_prctl, PR_TIMER_CREATE_RESTORE_IDS, 0, 0, 0, 0);
        }
    }
    if got != id {
        fail("a POSIX timer does not get its number", Errno(libc::EBUSY));
    }
}

/// Raises again what was pending for the process. All threads still block all signals.
fn pending(tables: &Tables) {
    for signal in (1..=64).filter(|signal| tables.pending >> (signal - 1) & 1 == 1) {
        let _ = plain!(libc::SYS_kill, sys::getpid(), signal);
    }
}

/// Raises again what was pending for the calling thread.
fn raise(mask: u64) {
    for signal in (1..=64).filter(|signal| mask >> (signal - 1) & 1 == 1) {
        let _ = plain!(libc::SYS_tgkill, sys::getpid(), sys::gettid(), signal);
    }
}
