//! The watches of the program's epolls, and what is known of the numbers that they watch. Here the kernel is told what it has to know when another socket
//! comes under a number.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use rustix::io::Errno;

use crate::epolls::{Epoll, Epolls, Operation, Watch};
use crate::fds::{self, Kind};
use crate::lock::Lock;
use crate::{phase, polling};

/// What the program's epolls watch.
pub(crate) static EPOLLS: Lock<Epolls> = Lock::new(Epolls::new());
/// By descriptor, 1: this epoll watches something protected, so what it reports is logged. Once so, always so.
static LOGGED: [AtomicU8; fds::DESCRIPTORS] = [const { AtomicU8::new(0) }; fds::DESCRIPTORS];
/// Times that something was watched which may make an epoll a logged one.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// Depth of epolls within epolls: the kernel allows this many steps.
pub(crate) const NESTED: u32 = 5;

/// The program has made an epoll.
pub(crate) fn created(epoll: i32) {
    if phase::is_active() && fds::set(epoll, Kind::Epoll, true) {
        EPOLLS.lock().created(epoll);
        set_logged(epoll, false);
    }
}

/// `new` is another descriptor of the epoll `old`.
pub(crate) fn duplicated(old: i32, new: i32) {
    if fds::set(new, Kind::Epoll, true) {
        EPOLLS.lock().duplicated(old, new);
        set_logged(new, is_known_logged(old));
    }
}

/// What is known of a number, as long as it is the same file's.
static NUMBERS: [AtomicU8; fds::DESCRIPTORS] = [const { AtomicU8::new(0) }; fds::DESCRIPTORS];
/// In [`NUMBERS`]: an epoll has watched it.
const WATCHED: u8 = 1;
/// In [`NUMBERS`]: a descriptor of the program's own that was not ready as the log has it for long (`ops::ready`): nothing makes it so any more.
const GIVEN_UP: u8 = 2;

/// In [`NUMBERS`]: it was closed while a thread was in the middle of a look at the epolls, perhaps the one whose signal handler
/// closes it: what watched it ends later.
const ENDED: u8 = 4;

/// In [`NUMBERS`]: the program asks about it in a way that the kernel alone can serve: for edges, for one event, or by two numbers.
const INTRICATE: u8 = 8;

/// The program has two numbers for the file `fd`, or none of its events can be told without the kernel.
pub(crate) fn note_intricate(fd: i32) {
    note_number(fd, INTRICATE);
}

/// Whether each of the program's questions about `fd` can be answered without the kernel.
pub(crate) fn is_plain(fd: i32) -> bool {
    number(fd).is_some_and(|entry| entry.load(Ordering::Relaxed) & INTRICATE == 0)
}

fn number(fd: i32) -> Option<&'static AtomicU8> {
    usize::try_from(fd).ok().and_then(|at| NUMBERS.get(at))
}

fn note_number(fd: i32, what: u8) {
    if let Some(entry) = number(fd) {
        entry.fetch_or(what, Ordering::Relaxed);
    }
}

/// Nothing makes the number `fd` ready any more as the log has it.
pub(crate) fn give_up(fd: i32) {
    note_number(fd, GIVEN_UP);
}

/// Whether that is so.
pub(crate) fn is_given_up(fd: i32) -> bool {
    number(fd).is_none_or(|entry| entry.load(Ordering::Relaxed) & GIVEN_UP != 0)
}

/// Times that something was watched which may make an epoll a logged one.
pub(crate) fn changes() -> u32 {
    CHANGES.load(Ordering::Relaxed)
}

/// The number `fd` is closed, or another file's since now: nothing that was known of it holds.
pub(crate) fn number_closed(fd: i32) {
    let Some(entry) = number(fd).filter(|entry| entry.load(Ordering::Relaxed) != 0) else { return };
    if entry.swap(0, Ordering::Relaxed) & (WATCHED | ENDED) != 0 {
        match EPOLLS.try_lock() {
            Some(mut epolls) => epolls.number_closed(fd),
            None => note_number(fd, ENDED),
        }
    }
}

/// Ends what watched the number `fd` before it was closed, if that was not done then.
fn end_watches(epolls: &mut Epolls, fd: i32) {
    if number(fd).is_some_and(|entry| entry.fetch_and(!ENDED, Ordering::Relaxed) & ENDED != 0) {
        epolls.number_closed(fd);
    }
}

/// The program closes an epoll.
pub(crate) fn closed(epoll: i32) {
    EPOLLS.lock().closed(epoll);
    set_logged(epoll, false);
    fds::clear(epoll);
}

/// Around a fork: keeps all other threads out, until [`leave`] in the parent and in the child.
pub(crate) fn enter() {
    std::mem::forget(EPOLLS.lock());
}

/// Ends what [`enter`] began.
pub(crate) fn leave() {
    EPOLLS.unlock_forgotten();
}

/// Whether no thread, the calling one included, is in the middle of a look at the epolls.
pub(crate) fn is_free() -> bool {
    !EPOLLS.is_held()
}

/// Another socket will be under the number `fd`. The one before may stay open under another number, and no epoll is to watch it there.
pub(crate) fn leaving(fd: i32) {
    for (epoll, table) in EPOLLS.lock().all() {
        if table.of(fd).is_some() {
            _ = polling::control(epoll, Operation::Delete, fd, 0, 0);
        }
    }
}

/// Another socket is under the number `fd` since now: the epolls that watch it watch the new one.
pub(crate) fn replaced(fd: i32) {
    let mut epolls = EPOLLS.lock();
    end_watches(&mut epolls, fd);
    for (epoll, table) in epolls.all() {
        let Some((key, watch)) = table.of(fd) else { continue };
        let events = if watch.disarmed { (libc::EPOLLONESHOT | libc::EPOLLET) as u32 } else { watch.events };
        // The old file may be open still, under another number; then the number is watched twice, for a while.
        let added = polling::control(epoll, Operation::Add, fd, events, key);
        if added == Err(Errno::EXIST) {
            _ = polling::control(epoll, Operation::Modify, fd, events, key);
        }
    }
}

/// `epoll_ctl`. None: the epoll is none that we know; it passes through.
pub(crate) fn control(epoll: i32, operation: Operation, fd: i32, events: u32, word: u64) -> Option<Result<(), Errno>> {
    if fds::kind(epoll) != Kind::Epoll {
        return None;
    }
    if operation == Operation::Add && fds::kind(fd) == Kind::Own {
        return Some(Err(Errno::BADF));
    }
    let mut epolls = EPOLLS.lock();
    end_watches(&mut epolls, fd);
    let table = epolls.get_mut(epoll)?;
    note_number(fd, WATCHED);
    if operation != Operation::Delete && events & (libc::EPOLLET | libc::EPOLLONESHOT) as u32 != 0 {
        note_intricate(fd);
    }
    let result = table.control(operation, fd, events, word, |operation, key| polling::control(epoll, operation, fd, events, key));
    if operation == Operation::Add && result.is_ok() && fds::kind(fd) != Kind::Other {
        CHANGES.fetch_add(1, Ordering::Relaxed);
    }
    Some(result)
}

pub(crate) fn set_logged(epoll: i32, logged: bool) {
    if let Some(entry) = usize::try_from(epoll).ok().and_then(|at| LOGGED.get(at)) {
        entry.store(u8::from(logged), Ordering::Relaxed);
    }
}

pub(crate) fn is_known_logged(epoll: i32) -> bool {
    usize::try_from(epoll).ok().and_then(|at| LOGGED.get(at)).is_some_and(|entry| entry.load(Ordering::Relaxed) == 1)
}

/// Whether what is watched here makes the epoll a logged one.
pub(crate) fn watches_protected(epolls: &Epolls, epoll: i32, depth: u32) -> bool {
    let inner = |fd| depth < NESTED && (is_known_logged(fd) || watches_protected(epolls, fd, depth + 1));
    let protected = |fd| match fds::kind(fd) {
        Kind::Connection | Kind::Listener | Kind::Alias | Kind::Input => true,
        Kind::Epoll => inner(fd),
        Kind::Other | Kind::Own | Kind::Output | Kind::Pmi | Kind::Bound | Kind::Random => false,
    };
    epolls.get(epoll).is_some_and(|table| table.watched().any(|watch| protected(watch.fd)))
}

/// The program was told of `fd` without the kernel. If its watch is to be reported once only, the program must not hear of it from the kernel, too.
pub(crate) fn disarm(table: &mut Epoll, epoll: i32, fd: i32) {
    if let Some(key) = table.disarm(fd) {
        // Errors are always reported, but once only, and then not to the program.
        _ = polling::control(epoll, Operation::Modify, fd, (libc::EPOLLONESHOT | libc::EPOLLET) as u32, key);
    }
}

pub(crate) fn report_restart(epolls: &Epolls, fd: i32) {
    let edge = |watch: &Watch| watch.events & (libc::EPOLLET | libc::EPOLLONESHOT) as u32 == libc::EPOLLET as u32;
    for (epoll, table) in epolls.all() {
        if let Some((key, watch)) = table.of(fd).filter(|(_, watch)| edge(watch)) {
            _ = polling::control(epoll, Operation::Modify, fd, watch.events, key);
        }
    }
}
