//! What the process consists of besides memory and threads: asked of the kernel while everybody is stopped, and kept in
//! `arena::Tables`, which travel with the image. What cannot be saved is refused here, by name.

use crate::arena::{self, Fd, KernelAction, Kind, PosixTimer, Tables, Text, Watch, state};
use crate::maps::{self, decimal, field, hex, lines};
use crate::stop;
use crate::sys::{self, Errno, call};

/// Why a process cannot be saved: what, and which.
#[derive(Clone, Copy, Debug)]
pub struct Refusal {
    /// What is in the way, in words.
    pub what: &'static str,
    /// A number that belongs to it (descriptor, errno).
    pub number: i32,
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {}", self.what, self.number)
    }
}

impl core::error::Error for Refusal {}

impl Refusal {
    /// A refusal because a system call failed.
    pub fn failed(what: &'static str) -> impl FnOnce(Errno) -> Self {
        move |error| Self { what, number: error.0 }
    }
}

/// Writes `before`, a number, `after` and a zero byte into a buffer.
pub fn numbered<'a>(buffer: &'a mut [u8; 64], before: &[u8], number: i32, after: &[u8]) -> &'a [u8] {
    let mut digits = [0u8; 10];
    let mut at = digits.len();
    let mut left = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    let mut len = 0;
    for part in [before, &digits[at..], after, &[0]] {
        buffer[len..len + part.len()].copy_from_slice(part);
        len += part.len();
    }
    &buffer[..len]
}

fn small() -> &'static mut [u8] {
    // SAFETY: only the coordinator is here, and it uses one small file at a time.
    unsafe { arena::scratch(arena::SCRATCH_SMALL) }
}

fn proc_file(path: &[u8]) -> Result<&'static [u8], Errno> {
    let buffer = small();
    let len = sys::slurp(path, buffer)?;
    Ok(&buffer[..len])
}

/// What stands in the way of any checkpoint, found before anybody is stopped.
pub fn preflight() -> Result<(), Refusal> {
    let status = proc_file(b"/proc/self/status\0").map_err(Refusal::failed("/proc/self/status cannot be read"))?;
    match field(status, b"TracerPid:").map(decimal) {
        Some((0, _)) | None => Ok(()),
        Some((tracer, _)) => Err(Refusal { what: "the process is being traced (strace, gdb) by process", number: tracer as i32 }),
    }?;
    let mut bad = None;
    sys::numbers(b"/proc/self/fd\0", |fd| {
        let mut link = [0u8; 128];
        let mut path = [0u8; 64];
        if let Ok(link) = sys::readlink(numbered(&mut path, b"/proc/self/fd/", fd, b""), &mut link) {
            bad = bad.or(unsupported(link).map(|what| Refusal { what, number: fd }));
        }
    })
    .map_err(Refusal::failed("/proc/self/fd cannot be read"))?;
    bad.map_or(Ok(()), Err)
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

/// Advice in force for a region of memory.
#[derive(Clone, Copy, Debug)]
pub struct Advised {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Bits of `image::meta::advice`.
    pub bits: u8,
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

/// The regions with advice. Read from smaps, which takes long: before anybody is stopped. A region that comes or goes between is one
/// without advice.
pub fn advice(tables: &mut Tables) {
    // SAFETY: only the coordinator is here; the metadata is written later.
    let (text, room) = unsafe { (arena::scratch(arena::SCRATCH_META), advice_room()) };
    tables.advised = 0;
    let Ok(len) = sys::slurp(b"/proc/self/smaps\0", text) else { return };
    let mut last = (0, 0);
    for line in lines(&text[..len]) {
        if let Some(flags) = line.strip_prefix(b"VmFlags: ") {
            let bits = maps::advice_of(flags);
            if let (true, Some(free)) = (bits != 0, room.get_mut(tables.advised)) {
                *free = Advised { start: last.0, end: last.1, bits };
                tables.advised += 1;
            }
        } else if let Some(region) = maps::parse(line) {
            last = (region.start, region.end);
        }
    }
}

/// What `advice` has found.
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
    tables.watches.clear();
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
        // SAFETY: only reads.
        tables.actions[signal as usize - 1] = unsafe { stop::action(signal, None) }.unwrap_or(KernelAction::default());
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
        // SAFETY: the kernel writes one limit.
        unsafe { call!(libc::SYS_prlimit64, 0, number, 0, limit.as_mut_ptr()) }?;
    }
    for (number, timer) in tables.itimers.iter_mut().enumerate() {
        // SAFETY: the kernel writes one itimerval.
        unsafe { call!(libc::SYS_getitimer, number, timer.as_mut_ptr()) }?;
    }
    // SAFETY: no memory is involved; everybody is stopped, so nobody creates a file meanwhile.
    unsafe {
        tables.umask = call!(libc::SYS_umask, 0)? as u32;
        call!(libc::SYS_umask, tables.umask)?;
        tables.dumpable = call!(libc::SYS_prctl, libc::PR_GET_DUMPABLE)? as u32;
    }
    let mut buffer = [0u8; 4096];
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
    let ours = 1u64 << (stop::SIGNAL - 1);
    let mask = |text: &[u8], name: &[u8]| field(text, name).map_or(0, |value| hex(value).0) & !ours;
    let status = proc_file(b"/proc/self/status\0")?;
    tables.pending = mask(status, b"ShdPnd:");
    for slot in &state().slots[..threads] {
        // SAFETY: all threads are parked; we alone look at the slots.
        let thread = unsafe { &mut *slot.0.get() };
        let mut path = [0u8; 64];
        let status = proc_file(numbered(&mut path, b"/proc/self/task/", thread.tid, b"/status"))?;
        thread.pending = mask(status, b"SigPnd:");
    }
    Ok(())
}

fn descriptors(tables: &mut Tables, own: i32) -> Result<(), Refusal> {
    let mut full = false;
    sys::numbers(b"/proc/self/fd\0", |fd| {
        if fd != own {
            full |= !tables.fds.push(blank(fd));
        }
    })
    .map_err(Refusal::failed("/proc/self/fd cannot be read"))?;
    if full {
        return Err(Refusal { what: "more descriptors are open than can be saved:", number: arena::MAX_FDS as i32 });
    }
    for index in 0..tables.fds.len() {
        let mut fd = tables.fds[index];
        describe(tables, &mut fd)?;
        fd.same_as = tables.fds[..index].iter().find(|other| same_file(other, &fd)).map_or(-1, |other| other.fd);
        tables.fds[index] = fd;
    }
    for index in 0..tables.fds.len() {
        let mut fd = tables.fds[index];
        if let Some(first) = tables.fds[..index].iter().find(|other| other.fd == fd.same_as) {
            fd.kind = first.kind;
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
    if error.0 == libc::EFBIG {
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
        dev: 0,
        ino: 0,
        position: 0,
        size: 0,
        mode: 0,
        path: Text::default(),
        values: [0; 4],
        content: (0, 0),
    }
}

fn same_file(a: &Fd, b: &Fd) -> bool {
    const KCMP_FILE: i32 = 0;
    if (a.dev, a.ino, a.status, a.position) != (b.dev, b.ino, b.status, b.position) {
        return false;
    }
    let pid = sys::getpid();
    // SAFETY: no memory is involved. A kernel without kcmp leaves them apart.
    a.same_as < 0 && unsafe { call!(libc::SYS_kcmp, pid, pid, KCMP_FILE, a.fd, b.fd) } == Ok(0)
}

fn describe(tables: &mut Tables, fd: &mut Fd) -> Result<(), Refusal> {
    let failed = |_| Refusal { what: "nothing can be learnt about descriptor", number: fd.fd };
    let stat = sys::fstat(fd.fd).map_err(failed)?;
    fd.status = sys::fcntl(fd.fd, libc::F_GETFL, 0).map_err(failed)? as i32;
    fd.fd_flags = sys::fcntl(fd.fd, libc::F_GETFD, 0).map_err(failed)? as i32;
    fd.position = sys::lseek(fd.fd, 0, libc::SEEK_CUR).unwrap_or(0) as u64;
    (fd.dev, fd.ino, fd.size, fd.mode) = (stat.st_dev, stat.st_ino, stat.st_size as u64, stat.st_mode);
    let (mut path, mut link) = ([0u8; 64], [0u8; 4200]);
    let link = sys::readlink(numbered(&mut path, b"/proc/self/fd/", fd.fd, b""), &mut link).map_err(failed)?;
    fd.path = tables.keep(link).map_err(failed)?;
    fd.kind = match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => regular(tables, fd, link),
        libc::S_IFSOCK if fd.fd > 2 => Kind::Socket,
        libc::S_IFIFO if link.first() != Some(&b'/') => Kind::PipeRead, // Which end, and whose: see pipe().
        libc::S_IFIFO if fd.fd > 2 => Kind::ForeignPipe,
        libc::S_IFSOCK | libc::S_IFIFO => Kind::Inherited,
        libc::S_IFCHR if fd.fd <= 2 && terminal(stat.st_rdev) => Kind::Inherited,
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
    match sys::stat(tables.text(fd.path)) {
        Ok(stat) if stat.st_ino == fd.ino && stat.st_dev == fd.dev => Kind::File,
        _ => Kind::Content,
    }
}

/// What is behind a descriptor and in no memory of the program.
fn contents(tables: &mut Tables, fd: &mut Fd) -> Result<(), Errno> {
    match fd.kind {
        Kind::Content | Kind::Object => {
            fd.content = copy_file(tables, fd.fd, fd.size)?;
        }
        Kind::PipeRead => pipe(tables, fd)?,
        Kind::Event | Kind::Timer | Kind::Signal | Kind::Epoll => special(tables, fd)?,
        Kind::Socket => tables.note(&[b"a socket comes back connected to nobody: ", tables_text(fd.fd).as_slice()]),
        Kind::ForeignPipe => {
            tables.note(&[b"a pipe to another process comes back connected to nobody: ", tables_text(fd.fd).as_slice()]);
        }
        Kind::Inherited | Kind::File | Kind::PipeWrite => {}
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

fn copy_file(tables: &mut Tables, fd: i32, size: u64) -> Result<(u64, u64), Errno> {
    let content = (arena::content(tables, size)?, size);
    // A descriptor that is open for writing only is read through a second one.
    let mut path = [0u8; 64];
    let reader = sys::open(numbered(&mut path, b"/proc/self/fd/", fd, b""), libc::O_RDONLY, 0)?;
    // SAFETY: just made.
    let bytes = unsafe { arena::content_bytes(content) };
    let mut at = 0;
    let result = loop {
        match sys::pread(reader, &mut bytes[at..], at as u64) {
            Ok(0) => break Ok(content),
            Ok(more) => at += more,
            Err(error) => break Err(error),
        }
    };
    sys::close(reader);
    result
}

/// A pipe is the program's own if both ends are among its descriptors. Its content is looked at without being consumed (tee).
fn pipe(tables: &mut Tables, fd: &mut Fd) -> Result<(), Errno> {
    let writing = |f: &Fd| f.status & libc::O_ACCMODE != libc::O_RDONLY;
    let is_writer = writing(fd);
    let peer = tables.fds.iter().any(|other| (other.dev, other.ino) == (fd.dev, fd.ino) && writing(other) != is_writer);
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
    let mut ends = [0i32; 2];
    // SAFETY: the kernel writes two ints.
    unsafe { call!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) }?;
    let result = tee(tables, fd, ends, available as u64);
    sys::close(ends[0]);
    sys::close(ends[1]);
    fd.content = result?;
    Ok(())
}

fn tee(tables: &mut Tables, fd: &Fd, ends: [i32; 2], len: u64) -> Result<(u64, u64), Errno> {
    sys::fcntl(ends[1], libc::F_SETPIPE_SZ, fd.values[0] as usize)?;
    // SAFETY: no memory is involved.
    let copied = unsafe { call!(libc::SYS_tee, fd.fd, ends[1], len, libc::SPLICE_F_NONBLOCK) }?;
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
            // Expirations that nobody has read yet: see restart.
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
