//! What the process consists of besides memory and threads: asked of the kernel while all threads are stopped, and kept in
//! `arena::Tables`, which travel with the image. What cannot be saved is refused here, by name.

use core::cmp::Ordering;

use crate::arena::{self, FILE_LIMIT, Fd, Kind, Lock, LockKind, PosixTimer, Tables, Text, Watch, state};
use crate::image::meta::FileId;
use crate::maps::{self, NAME_ROOM, decimal, field, hex, lines, numbered, numbered_wide};
use crate::refusal::Refusal;
use crate::request::{self, Advised};
use crate::sys::{self, Errno, call, plain};
use crate::{files, sigaction, track};

fn small() -> &'static mut [u8] {
    // SAFETY: only the coordinator is here, and it uses one small file at a time.
    unsafe { arena::scratch(arena::SCRATCH_SMALL) }
}

fn proc_file(path: &[u8]) -> Result<&'static [u8], Errno> {
    let buffer = small();
    let len = sys::slurp(path, buffer)?;
    // A full buffer may not hold all of it.
    if len < buffer.len() { Ok(&buffer[..len]) } else { Err(Errno(libc::EFBIG)) }
}

/// What stands in the way of any checkpoint, found before a thread is stopped.
pub fn preflight() -> Result<(), Refusal> {
    let status = proc_file(b"/proc/self/status\0").map_err(Refusal::failed("/proc/self/status cannot be read"))?;
    match field(status, b"TracerPid:").map(decimal) {
        Some((0, _)) | None => Ok(()),
        Some((tracer, _)) => Err(Refusal { what: "the process is being traced (strace, gdb) by process", number: tracer as i32 }),
    }?;
    let mut bad = None;
    let own = track::descriptor();
    each_descriptor(|fd| {
        // Only descriptors of anonymous inodes may be in the way: their inode has no file type.
        let nameless = |stat: libc::stat| stat.st_mode & libc::S_IFMT == 0;
        if Some(fd) == own || !sys::fstat(fd).is_ok_and(nameless) {
            return;
        }
        let mut link = [0u8; 128];
        let mut path = [0u8; 64];
        if let Ok(link) = sys::readlink(numbered(&mut path, b"/proc/self/fd/", fd, b""), &mut link) {
            bad = bad.or(unsupported(link).map(|what| Refusal { what, number: fd }));
        }
    })
    .map_err(Refusal::failed("the descriptors cannot be listed: error"))?;
    bad.map_or(Ok(()), Err)
}

/// To list one open descriptor takes as long as to ask about this many numbers.
const LIST_OR_ASK: usize = 4;

/// Calls a function with each open descriptor, in ascending order: those that the kernel lists, or, where most numbers are in use, those of all numbers
/// that it says are open.
fn each_descriptor(each: impl FnMut(i32)) -> Result<(), Errno> {
    let status = proc_file(b"/proc/self/status\0")?;
    let size = field(status, b"FDSize:").map_or(usize::MAX, |size| decimal(size).0 as usize);
    // How many are open; kernels before 6.2 say 0.
    let open = sys::stat(b"/proc/self/fd\0")?.st_size as usize;
    let few = open != 0 && open.saturating_mul(LIST_OR_ASK) < size;
    if few || size > arena::MAX_FDS {
        return sys::numbers(b"/proc/self/fd\0", each);
    }
    (0..size as i32).filter(|fd| sys::fcntl(*fd, libc::F_GETFD, 0).is_ok()).for_each(each);
    Ok(())
}

fn unsupported(link: &[u8]) -> Option<&'static str> {
    let name = link.strip_prefix(b"anon_inode:")?;
    match name {
        b"[eventfd]" | b"[timerfd]" | b"[signalfd]" | b"[eventpoll]" => None,
        b"[io_uring]" => Some("io_uring cannot be saved: descriptor"),
        b"inotify" => Some("inotify cannot be saved: descriptor"),
        b"[userfaultfd]" => Some("userfaultfd cannot be saved: descriptor"),
        b"[pidfd]" => Some("a pidfd cannot be saved: descriptor"),
        _ => Some("a descriptor of a kind that cannot be saved: descriptor"),
    }
}

/// The list of advice, room included.
///
/// # Safety
/// As for `arena::scratch`.
unsafe fn advice_room() -> &'static mut [Advised] {
    // SAFETY: the caller's promise; the part is aligned to pages and zeroes are valid.
    unsafe {
        let part = arena::scratch(arena::SCRATCH_ADVICE);
        core::slice::from_raw_parts_mut(part.as_mut_ptr().cast(), part.len() / size_of::<Advised>())
    }
}

/// Keeps regions with advice; those beyond the room are regions without.
pub fn keep_advice(tables: &mut Tables, regions: impl Iterator<Item = Advised>) {
    // SAFETY: only the coordinator is here.
    let room = unsafe { advice_room() };
    tables.advised = 0;
    for (free, region) in room.iter_mut().zip(regions) {
        *free = region;
        tables.advised += 1;
    }
}

/// The regions with advice, for a program that saves itself. Read from smaps, which takes long: before a thread is stopped. A region that
/// comes or goes between is one without advice.
pub fn advice(tables: &mut Tables) {
    // SAFETY: only the coordinator is here; the metadata is written later.
    let text = unsafe { arena::scratch(arena::SCRATCH_META) };
    if let Ok(len) = sys::slurp(b"/proc/self/smaps\0", text) {
        keep_advice(tables, request::advised(&text[..len]));
    }
}

/// What `keep_advice` has kept.
///
/// # Safety
/// As for `arena::scratch`.
pub unsafe fn advised(tables: &Tables) -> &'static [Advised] {
    // SAFETY: the caller's promise.
    unsafe { &advice_room()[..tables.advised] }
}

/// Fills in everything but shared memory; `own` is the descriptor the image goes to, which is not the program's.
pub fn process(tables: &mut Tables, own: i32, threads: usize) -> Result<(), Refusal> {
    tables.fds.clear();
    tables.by_file.clear();
    tables.watches.clear();
    tables.guards.clear();
    tables.locks.clear();
    tables.timers.clear();
    tables.shared.clear();
    tables.pool.clear();
    tables.notes.clear();
    signals(tables).map_err(Refusal::failed("signal dispositions cannot be read"))?;
    memory(tables).map_err(Refusal::failed("/proc/self/stat or auxv cannot be read"))?;
    environment(tables).map_err(Refusal::failed("limits or the working directory cannot be read"))?;
    timers(tables).map_err(Refusal::failed("timers cannot be read"))?;
    pending(tables, threads).map_err(Refusal::failed("pending signals cannot be read"))?;
    children(tables, threads);
    descriptors(tables, own)
}

/// Children are not in the image.
fn children(tables: &mut Tables, threads: usize) {
    for slot in &state().slots[..threads] {
        // SAFETY: all threads are parked; we alone look at the slots.
        let tid = unsafe { (*slot.0.get()).tid };
        let mut path = [0u8; 64];
        let children = proc_file(numbered(&mut path, b"/proc/self/task/", tid, b"/children")).unwrap_or(b"");
        for child in children.split(|b| *b == b' ').filter(|child| !child.is_empty()) {
            tables.note(&[b"a child process is not saved and will be missing: ", child]);
        }
    }
}

fn signals(tables: &mut Tables) -> Result<(), Errno> {
    for signal in 1..=64 {
        tables.actions[signal as usize - 1] = sigaction::program_action(signal).unwrap_or_default();
    }
    Ok(())
}

fn memory(tables: &mut Tables) -> Result<(), Errno> {
    let text = proc_file(b"/proc/self/stat\0")?;
    let numbers = [26, 27, 45, 46, 47, 0, 28, 48, 49, 50, 51];
    for (value, number) in tables.mm.iter_mut().zip(numbers) {
        // SAFETY: brk(0) only tells where it is.
        *value = if number == 0 { unsafe { call!(libc::SYS_brk, 0) }? as u64 } else { maps::stat_field(text, number) };
    }
    let auxv = proc_file(b"/proc/self/auxv\0")?;
    tables.auxv_bytes = auxv.len().min(size_of_val(&tables.auxv));
    for (word, bytes) in tables.auxv.iter_mut().zip(auxv.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    Ok(())
}

fn environment(tables: &mut Tables) -> Result<(), Errno> {
    for (number, limit) in tables.limits.iter_mut().enumerate() {
        *limit = sys::limit(number)?;
    }
    for (number, timer) in tables.itimers.iter_mut().enumerate() {
        // SAFETY: the kernel writes one itimerval.
        unsafe { call!(libc::SYS_getitimer, number, timer.as_mut_ptr()) }?;
    }
    // All threads are stopped, so none creates a file meanwhile.
    tables.umask = plain!(libc::SYS_umask, 0)? as u32;
    plain!(libc::SYS_umask, tables.umask)?;
    // SAFETY: only tells.
    tables.dumpable = unsafe { call!(libc::SYS_prctl, libc::PR_GET_DUMPABLE) }? as u32;
    let mut buffer = [0u8; NAME_ROOM];
    tables.cwd = match sys::readlink(b"/proc/self/cwd\0", &mut buffer) {
        Ok(cwd) => tables.keep(cwd)?,
        Err(_) => Text::default(),
    };
    Ok(())
}

fn timers(tables: &mut Tables) -> Result<(), Errno> {
    // A kernel without this file has no way to make a timer with a given id either.
    let text = proc_file(b"/proc/self/timers\0").unwrap_or(b"");
    let mut timer = PosixTimer { id: 0, signal: 0, value: 0, notify: 0, tid: 0, clock: 0, times: [0; 4] };
    for line in lines(text) {
        if let Some(id) = line.strip_prefix(b"ID: ") {
            timer.id = decimal(id).0 as i32;
        } else if let Some(signal) = line.strip_prefix(b"signal: ") {
            let (signal, value) = decimal(signal);
            timer.signal = signal as i32;
            timer.value = hex(value.strip_prefix(b"/").unwrap_or(b"")).0;
        } else if let Some(notify) = line.strip_prefix(b"notify: ") {
            let how = |name: &[u8]| notify.starts_with(name);
            let target = notify.iter().position(|b| *b == b'.').map_or(0, |dot| decimal(&notify[dot + 1..]).0);
            let to_thread = notify.windows(4).any(|w| w == b"/tid");
            timer.notify = if how(b"none") { libc::SIGEV_NONE } else { libc::SIGEV_SIGNAL };
            timer.tid = if to_thread { target as i32 } else { 0 };
            if to_thread {
                timer.notify = libc::SIGEV_THREAD_ID;
            }
        } else if let Some(clock) = line.strip_prefix(b"ClockID: ") {
            timer.clock = match clock.strip_prefix(b"-") {
                Some(negative) => -(decimal(negative).0 as i32),
                None => decimal(clock).0 as i32,
            };
            // SAFETY: the kernel writes one itimerspec.
            unsafe { call!(libc::SYS_timer_gettime, timer.id, timer.times.as_mut_ptr()) }?;
            if !tables.timers.push(timer) {
                return Err(Errno(libc::ENOSPC));
            }
        }
    }
    Ok(())
}

fn pending(tables: &mut Tables, threads: usize) -> Result<(), Errno> {
    let ours = 1u64 << (sigaction::SIGNAL - 1);
    let mask = |text: &[u8], name: &[u8]| field(text, name).map_or(0, |value| hex(value).0);
    let status = proc_file(b"/proc/self/status\0")?;
    tables.pending = mask(status, b"ShdPnd:") & !ours;
    for slot in &state().slots[..threads] {
        // SAFETY: all threads are parked; we alone look at the slots.
        let thread = unsafe { &mut *slot.0.get() };
        let mut path = [0u8; 64];
        let status = proc_file(numbered(&mut path, b"/proc/self/task/", thread.tid, b"/status"))?;
        // Whether a signal 33 of glibc's waits, the thread itself has noted (`stop::enter`). The engine's own are no part of the image.
        thread.pending = mask(status, b"SigPnd:") & !ours | thread.pending & ours;
    }
    Ok(())
}

fn descriptors(tables: &mut Tables, own: i32) -> Result<(), Refusal> {
    let mut full = false;
    let tracking = track::descriptor();
    each_descriptor(|fd| {
        if fd != own && Some(fd) != tracking {
            full |= !tables.fds.push(blank(fd));
        }
    })
    .map_err(Refusal::failed("the descriptors cannot be listed: error"))?;
    if full {
        return Err(Refusal { what: "more descriptors are open than can be saved:", number: arena::MAX_FDS as i32 });
    }
    for index in 0..tables.fds.len() {
        let mut fd = tables.fds[index];
        describe(tables, &mut fd)?;
        tables.fds[index] = fd;
    }
    find_duplicates(tables);
    for index in 0..tables.fds.len() {
        let mut fd = tables.fds[index];
        if let Some(first) = fd.same_as() {
            // They are in ascending order.
            let first = tables.fds[..index].binary_search_by_key(&first, |other| other.fd).expect("an earlier descriptor");
            fd.kind = tables.fds[first].kind;
            // Each of 0 to 2 comes from the restart command's own.
            if fd.kind == Kind::Inherited && fd.fd <= 2 {
                fd.same_as = -1;
            }
        } else {
            contents(tables, &mut fd).map_err(|error| Refusal { what: refused_content(error), number: fd.fd })?;
        }
        tables.fds[index] = fd;
    }
    Ok(())
}

fn refused_content(error: Errno) -> &'static str {
    if error.0 == libc::ENOLCK {
        "too many locks on files; the last straw was descriptor"
    } else if error.0 == libc::EFBIG {
        "too much data in deleted files, memfds and pipes; the last straw was descriptor"
    } else {
        "the content cannot be read of descriptor"
    }
}

fn blank(fd: i32) -> Fd {
    Fd {
        fd,
        kind: Kind::Inherited,
        fd_flags: 0,
        status: 0,
        same_as: -1,
        file: FileId::default(),
        position: 0,
        size: 0,
        path: Text::default(),
        values: [0; 4],
        content: (0, 0),
    }
}

/// Finds out which descriptors are of one open file. They are sorted for that, by the kernel's own order of open files where nothing else tells them
/// apart: asking about each pair would take seconds if there are thousands.
fn find_duplicates(tables: &mut Tables) {
    let Tables { fds, by_file, .. } = tables;
    for index in 0..fds.len() {
        assert!(by_file.push(index as u32), "there is as much room as for descriptors");
    }
    let pid = sys::getpid();
    by_file.sort_unstable_by(|a, b| by_open_file(pid, &fds[*a as usize], &fds[*b as usize]).then(a.cmp(b)));
    let mut first: Option<usize> = None;
    for index in by_file.iter().map(|index| *index as usize) {
        match first.filter(|first| by_open_file(pid, &fds[*first], &fds[index]).is_eq()) {
            Some(first) => fds[index].same_as = fds[first].fd,
            None => first = Some(index),
        }
    }
}

/// An order of open files: by inode first.
fn by_open_file(pid: i32, a: &Fd, b: &Fd) -> Ordering {
    const KCMP_FILE: i32 = 0;
    let known = |fd: &Fd| (fd.file.device, fd.file.inode, fd.status, fd.position);
    known(a).cmp(&known(b)).then_with(|| match plain!(libc::SYS_kcmp, pid, pid, KCMP_FILE, a.fd, b.fd) {
        Ok(0) => Ordering::Equal,
        Ok(1) => Ordering::Less,
        Ok(2) => Ordering::Greater,
        // A kernel without kcmp leaves them apart.
        _ => a.fd.cmp(&b.fd),
    })
}

/// The descriptors of an inode.
fn of_inode<'a>(tables: &'a Tables, fd: &Fd) -> impl Iterator<Item = &'a Fd> {
    let (inode, fds) = ((fd.file.device, fd.file.inode), &tables.fds);
    let key = move |index: &u32| (fds[*index as usize].file.device, fds[*index as usize].file.inode);
    let from = tables.by_file.partition_point(|index| key(index) < inode);
    tables.by_file[from..].iter().take_while(move |index| key(index) == inode).map(|index| &fds[*index as usize])
}

fn describe(tables: &mut Tables, fd: &mut Fd) -> Result<(), Refusal> {
    let number = fd.fd;
    let failed = |_| Refusal { what: "nothing can be learnt about descriptor", number };
    let (file, size) = files::of(fd.fd).map_err(failed)?;
    (fd.file, fd.size) = (files::with_owner(file, &tables.owners), size);
    fd.status = sys::fcntl(fd.fd, libc::F_GETFL, 0).map_err(failed)? as i32;
    fd.fd_flags = sys::fcntl(fd.fd, libc::F_GETFD, 0).map_err(failed)? as i32;
    let kind = fd.file.mode & libc::S_IFMT;
    let (mut path, mut link) = ([0u8; 64], [0u8; NAME_ROOM]);
    if kind == libc::S_IFSOCK {
        // There may be very many of them, and /proc takes long: it says the same.
        let name = numbered_wide(&mut path, b"socket:[", fd.file.inode, b"]");
        fd.path = tables.keep(&name[..name.len() - 1]).map_err(failed)?;
        fd.kind = if fd.fd > 2 { socket(tables, fd).map_err(failed)? } else { Kind::Inherited };
        return Ok(());
    }
    fd.position = sys::lseek(fd.fd, 0, libc::SEEK_CUR).unwrap_or(0) as u64;
    let link = sys::readlink(numbered(&mut path, b"/proc/self/fd/", fd.fd, b""), &mut link).map_err(failed)?;
    fd.path = tables.keep(link).map_err(failed)?;
    fd.kind = match kind {
        libc::S_IFREG => regular(tables, fd, link),
        libc::S_IFIFO if link.first() != Some(&b'/') => Kind::PipeRead, // Which end, and of which process: see pipe().
        libc::S_IFIFO if fd.fd > 2 => Kind::ForeignPipe,
        libc::S_IFIFO => Kind::Inherited,
        libc::S_IFCHR if fd.fd <= 2 && terminal(fd.file.names) => Kind::Inherited,
        libc::S_IFCHR | libc::S_IFDIR | libc::S_IFBLK => Kind::File,
        _ => match link.strip_prefix(b"anon_inode:").unwrap_or(b"") {
            b"[eventfd]" => Kind::Event,
            b"[timerfd]" => Kind::Timer,
            b"[signalfd]" => Kind::Signal,
            b"[eventpoll]" => Kind::Epoll,
            _ => return Err(Refusal { what: unsupported(link).unwrap_or("an unknown kind of descriptor:"), number: fd.fd }),
        },
    };
    Ok(())
}

fn terminal(device: u64) -> bool {
    matches!(libc::major(device), 4 | 5 | 136..=143 | 229)
}

fn regular(tables: &Tables, fd: &Fd, link: &[u8]) -> Kind {
    if link.starts_with(b"/memfd:") || link.starts_with(b"/dev/zero") || link.starts_with(b"/SYSV") {
        return Kind::Object;
    }
    match files::named(tables.text(fd.path)) {
        Ok((found, _)) if (found.device, found.inode) == (fd.file.device, fd.file.inode) => Kind::File,
        _ => Kind::Content,
    }
}

/// What is behind a descriptor and in no memory of the program.
fn contents(tables: &mut Tables, fd: &mut Fd) -> Result<(), Errno> {
    match fd.kind {
        Kind::Content | Kind::Object => {
            fd.content = copy_file(tables, fd)?;
        }
        Kind::PipeRead => pipe(tables, fd)?,
        Kind::Event | Kind::Timer | Kind::Signal | Kind::Epoll => special(tables, fd)?,
        Kind::SocketPair => pair(tables, fd)?,
        Kind::Socket => tables.note(&[b"a socket comes back without its peer: ", tables_text(fd.fd).as_slice()]),
        Kind::ForeignPipe => {
            tables.note(&[b"a pipe to another process comes back without its other end: ", tables_text(fd.fd).as_slice()]);
        }
        Kind::File if fd.file.mode & libc::S_IFMT == libc::S_IFREG => {
            locks(tables, fd.fd)?;
            changeable(tables, fd)?;
        }
        Kind::Inherited | Kind::File | Kind::PipeWrite | Kind::LooseSocket => {}
    }
    Ok(())
}

/// A socket that has no peer cannot lose it: what it is, its address, and whether it listens. Of a name in the file system, the inode too.
fn socket(tables: &mut Tables, fd: &mut Fd) -> Result<Kind, Errno> {
    let mut address = [0u8; sys::ADDRESS_BYTES];
    if let Ok(len) = sys::socket_address(libc::SYS_getpeername, fd.fd, &mut address) {
        // Only sockets of a pair, and those that a listener has accepted, have a peer without a name.
        let family = address.first_chunk().map_or(0, |family| i32::from(u16::from_ne_bytes(*family)));
        let peer = if family == libc::AF_UNIX && len == 2 { peer_inode(fd) } else { None };
        let Some(peer) = peer else { return Ok(Kind::Socket) };
        fd.position = peer;
        fd.values[0] = sys::socket_option(fd.fd, libc::SO_TYPE)? as u64;
        return Ok(Kind::SocketPair);
    }
    for (value, option) in fd.values.iter_mut().zip([libc::SO_DOMAIN, libc::SO_TYPE, libc::SO_PROTOCOL, libc::SO_ACCEPTCONN]) {
        *value = sys::socket_option(fd.fd, option)? as u64;
    }
    let len = sys::socket_address(libc::SYS_getsockname, fd.fd, &mut address)?;
    let name = &address[..len];
    if let [_, _, path @ ..] = name
        && fd.values[0] as i32 == libc::AF_UNIX
        && path.first().is_some_and(|first| *first != 0)
        && path.ends_with(&[0])
    {
        fd.position = sys::stat(path).map_or(0, |stat| stat.st_ino);
    }
    fd.path = tables.keep(name)?;
    Ok(Kind::LooseSocket)
}

/// The inode of the socket at the other end of this unix socket, as the kernel's socket diagnosis tells it; none: it does not.
fn peer_inode(fd: &Fd) -> Option<u64> {
    const BY_FAMILY: u16 = 20;
    const SHOW_PEER: u32 = 4;
    const PEER: u16 = 2;
    let ask =
        plain!(libc::SYS_socket, libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG).ok()? as i32;
    // A header of 16 bytes (length, type, flags, number, sender), then family, protocol, states, inode, what to show, a cookie that fits all.
    let mut request = [0u8; 40];
    let inode = u32::try_from(fd.file.inode).ok()?;
    let words: [(usize, u32); 8] = [
        (0, 40),
        (4, u32::from(BY_FAMILY) | 1 << 16),
        (8, 1),
        (20, u32::MAX),
        (24, inode),
        (28, SHOW_PEER),
        (32, u32::MAX),
        (36, u32::MAX),
    ];
    words.iter().for_each(|(at, word)| request[*at..*at + 4].copy_from_slice(&word.to_ne_bytes()));
    request[16] = libc::AF_UNIX as u8;
    let mut answer = [0u8; 512];
    let got = sys::write_all(ask, &request).and_then(|()| sys::read(ask, &mut answer));
    sys::close(ask);
    let answer = answer.get(..got.ok()?)?;
    let half = |at: usize| Some(u16::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    if half(4)? != BY_FAMILY {
        return None;
    }
    // Behind the header and 16 bytes that describe the socket: attributes, each with its length and type.
    let mut at = 32;
    loop {
        let (length, kind) = (usize::from(half(at)?), half(at + 2)?);
        if kind == PEER {
            return Some(u32::from_ne_bytes(*answer.get(at + 4..)?.first_chunk()?).into());
        }
        at += length.max(4).next_multiple_of(4);
    }
}

/// An end of a pair whose other end may be here, too: then what waits to be read comes with it.
fn pair(tables: &mut Tables, fd: &mut Fd) -> Result<(), Errno> {
    let is_end =
        |other: &Fd| other.kind == Kind::SocketPair && other.file.inode == fd.position && other.position == fd.file.inode;
    if !tables.fds.iter().any(is_end) {
        fd.kind = Kind::Socket;
        return contents(tables, fd);
    }
    let mut waiting = 0i32;
    // SAFETY: the kernel writes one int.
    unsafe { call!(libc::SYS_ioctl, fd.fd, libc::FIONREAD, &raw mut waiting) }?;
    if waiting <= 0 {
        return Ok(());
    }
    if fd.values[0] as i32 != libc::SOCK_STREAM {
        tables.note(&[b"messages that wait in a pair of sockets are lost: ", tables_text(fd.fd).as_slice()]);
        return Ok(());
    }
    let content = (arena::content(tables, waiting as u64)?, waiting as u64);
    // SAFETY: just made; the kernel writes at most its length.
    let got = unsafe {
        let bytes = arena::content_bytes(content);
        call!(libc::SYS_recvfrom, fd.fd, bytes.as_mut_ptr(), bytes.len(), libc::MSG_PEEK | libc::MSG_DONTWAIT, 0, 0)
    }?;
    fd.content = (content.0, got as u64);
    Ok(())
}

/// A file that is open for reading and writing may be changed in place after the checkpoint, or be a temporary one that is deleted: small ones
/// are saved as they are. (One that is only written grows; cutting it is enough.)
fn changeable(tables: &mut Tables, fd: &mut Fd) -> Result<(), Errno> {
    if fd.status & libc::O_ACCMODE != libc::O_RDWR {
        return Ok(());
    }
    if fd.size <= FILE_LIMIT {
        fd.content = read_file(tables, fd.fd, fd.size)?;
        fd.values[0] = 1;
    } else {
        let path = fd.path;
        let mut name = [0u8; 256];
        let text = tables.text(path);
        let len = text.len().saturating_sub(1).min(name.len());
        name[..len].copy_from_slice(&text[..len]);
        tables.note(&[
            b"what is changed in place in this file after the checkpoint stays changed, it is larger than 64 MiB: ",
            &name[..len],
        ]);
    }
    Ok(())
}

/// Locks on a file: lines like `lock: 1: POSIX  ADVISORY  WRITE 4711 fe:00:1234 0 EOF`.
fn locks(tables: &mut Tables, fd: i32) -> Result<(), Errno> {
    let mut path = [0u8; 64];
    let info = proc_file(numbered(&mut path, b"/proc/self/fdinfo/", fd, b""))?;
    for line in lines(info).filter_map(|line| line.strip_prefix(b"lock:")) {
        let mut words = line.split(|b| b.is_ascii_whitespace()).filter(|word| !word.is_empty()).skip(1);
        let kind = match words.next() {
            Some(b"FLOCK") => LockKind::Flock,
            Some(b"POSIX") => LockKind::Process,
            Some(b"OFDLCK") => LockKind::OpenFile,
            _ => continue, // A lease: the file's server breaks it when it must.
        };
        let exclusive = words.nth(1) == Some(b"WRITE");
        let (start, end) = (words.nth(2).map_or(0, |word| decimal(word).0), words.next().unwrap_or(b"EOF"));
        let len = if end == b"EOF" { 0 } else { decimal(end).0.saturating_sub(start) + 1 };
        if !tables.locks.push(Lock { fd, kind, exclusive, start, len }) {
            return Err(Errno(libc::ENOLCK));
        }
    }
    Ok(())
}

fn tables_text(fd: i32) -> [u8; 16] {
    let mut buffer = [0u8; 64];
    let text = numbered(&mut buffer, b"descriptor ", fd, b"");
    let mut out = [b' '; 16];
    let len = (text.len() - 1).min(16);
    out[..len].copy_from_slice(&text[..len]);
    out
}

fn copy_file(tables: &mut Tables, fd: &Fd) -> Result<(u64, u64), Errno> {
    if fd.status & libc::O_ACCMODE != libc::O_WRONLY {
        return read_file(tables, fd.fd, fd.size);
    }
    // Read through a second descriptor. Closing that gives up the process's locks, but no other process can lock a file without a name.
    let mut path = [0u8; 64];
    let reader = sys::open(numbered(&mut path, b"/proc/self/fd/", fd.fd, b""), libc::O_RDONLY, 0)?;
    let content = read_file(tables, reader, fd.size);
    sys::close(reader);
    content
}

/// A file's content, up to `size` bytes; a file that is shorter by now gives less.
fn read_file(tables: &mut Tables, fd: i32, size: u64) -> Result<(u64, u64), Errno> {
    let at = arena::content(tables, size)?;
    // SAFETY: just made.
    let bytes = unsafe { arena::content_bytes((at, size)) };
    let mut have = 0;
    loop {
        match sys::pread(fd, &mut bytes[have..], have as u64)? {
            0 => return Ok((at, have as u64)),
            more => have += more,
        }
    }
}

/// A pipe is the program's own if both ends are among its descriptors. Its content is looked at without being consumed (tee).
fn pipe(tables: &mut Tables, fd: &mut Fd) -> Result<(), Errno> {
    let writing = |f: &Fd| f.status & libc::O_ACCMODE != libc::O_RDONLY;
    let is_writer = writing(fd);
    let peer = of_inode(tables, fd).any(|other| writing(other) != is_writer);
    if !peer {
        fd.kind = if fd.fd <= 2 { Kind::Inherited } else { Kind::ForeignPipe };
        return if fd.fd > 2 { contents(tables, fd) } else { Ok(()) };
    }
    if is_writer {
        fd.kind = Kind::PipeWrite;
        return Ok(());
    }
    let mut available = 0i32;
    // SAFETY: the kernel writes one int.
    unsafe { call!(libc::SYS_ioctl, fd.fd, libc::FIONREAD, &raw mut available) }?;
    fd.values[0] = sys::fcntl(fd.fd, libc::F_GETPIPE_SZ, 0)? as u64;
    if available <= 0 {
        return Ok(());
    }
    let ends = sys::pipe()?;
    let result = tee(tables, fd, ends, available as u64);
    sys::close(ends[0]);
    sys::close(ends[1]);
    fd.content = result?;
    Ok(())
}

fn tee(tables: &mut Tables, fd: &Fd, ends: [i32; 2], len: u64) -> Result<(u64, u64), Errno> {
    sys::fcntl(ends[1], libc::F_SETPIPE_SZ, fd.values[0] as usize)?;
    let copied = plain!(libc::SYS_tee, fd.fd, ends[1], len, libc::SPLICE_F_NONBLOCK)?;
    if copied as u64 != len {
        return Err(Errno(libc::EIO));
    }
    let content = (arena::content(tables, len)?, len);
    // SAFETY: just made.
    let bytes = unsafe { arena::content_bytes(content) };
    let mut at = 0;
    while at < bytes.len() {
        at += sys::read(ends[0], &mut bytes[at..])?;
    }
    Ok(content)
}

fn special(tables: &mut Tables, fd: &mut Fd) -> Result<(), Errno> {
    let mut path = [0u8; 64];
    let info = proc_file(numbered(&mut path, b"/proc/self/fdinfo/", fd.fd, b""))?;
    let number = |name: &[u8]| field(info, name).map_or(0, |v| decimal(v).0);
    let pair = |name: &[u8]| {
        let text = field(info, name).and_then(|v| v.strip_prefix(b"(")).unwrap_or(b"");
        let (first, rest) = decimal(text);
        (first, decimal(rest.strip_prefix(b", ").unwrap_or(b"")).0)
    };
    match fd.kind {
        Kind::Event => {
            fd.values[0] = field(info, b"eventfd-count:").map_or(0, |v| hex(v).0);
            fd.values[1] = number(b"eventfd-semaphore:");
        }
        Kind::Signal => fd.values[0] = field(info, b"sigmask:").map_or(0, |v| hex(v).0),
        Kind::Timer => {
            let (interval, value) = (pair(b"it_interval:"), pair(b"it_value:"));
            fd.values = [interval.0, interval.1, value.0, value.1];
            // Expirations that the program has not read yet: see restart.
            fd.content = (number(b"clockid:"), number(b"ticks:"));
        }
        Kind::Epoll => {
            for line in lines(info).filter_map(|line| line.strip_prefix(b"tfd:")) {
                let after = |name: &[u8]| line.windows(name.len()).position(|w| w == name).map(|at| &line[at + name.len()..]);
                let watch = Watch {
                    epoll: fd.fd,
                    fd: decimal(line.trim_ascii_start()).0 as i32,
                    events: after(b"events:").map_or(0, |v| hex(v.trim_ascii_start()).0) as u32,
                    data: after(b"data:").map_or(0, |v| hex(v.trim_ascii_start()).0),
                };
                if !tables.watches.push(watch) {
                    return Err(Errno(libc::ENOSPC));
                }
            }
        }
        _ => {}
    }
    Ok(())
}
