//! A checkpoint, from the request to the end record. Runs on the engine's stack in the thread that got the signal, all signals
//! blocked. Between the stop and the release: no allocation, no lock, no libc.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize};

use crate::arena::{self, MAX_SHARED, Shared, Tables, state};
use crate::gather::{self, Advised, Refusal, numbered};
use crate::image::meta::{Backing, RegionRef, advice};
use crate::image::{Header, ImageWriter, MetaWriter, Sink};
use crate::maps::{self, Line};
use crate::pages::{Extent, Scanner};
use crate::plan::{RESTORER_BASE, RESTORER_SPAN};
use crate::sys::{self, Errno, call};
use crate::{crc::crc32c, identity, restart, stop};

/// How a checkpoint is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everybody waits until the image is written.
    Stop,
    /// A child writes it from its copy of the memory.
    Fork,
}

/// First bytes of a request: what is asked.
pub const REQUEST_MAGIC: [u8; 8] = *b"RADICSAV";
/// Bytes of a request: magic, mode, seven zeroes.
pub const REQUEST_BYTES: usize = 16;
/// First bytes of the answer when there is no image: a text follows.
pub const REFUSAL_MAGIC: [u8; 8] = *b"RADICERR";
/// Name of the abstract socket where the requester waits, before the request's number in eight hexadecimal digits.
pub const SOCKET_NAME: &[u8; 12] = b"\0radic-ckpt-";

/// Functions that whoever embeds the engine has called at certain moments. They run in a signal handler, while everybody is
/// stopped: no allocation, no lock, no libc.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hooks {
    /// Everybody is stopped, nothing is read yet.
    pub before_save: Option<fn()>,
    /// In the child that writes the image, first thing; it owns copies of all descriptors.
    pub in_child: Option<fn()>,
    /// In a restored process, before any thread goes on.
    pub after_restore: Option<fn()>,
}

static HOOKS: std::sync::OnceLock<Hooks> = std::sync::OnceLock::new();

/// Registers hooks; once, before the first checkpoint. False: there are some already.
pub fn set_hooks(hooks: Hooks) -> bool {
    HOOKS.set(hooks).is_ok()
}

/// Calls a hook, if there is one.
pub fn hook(which: fn(&Hooks) -> Option<fn()>) {
    if let Some(function) = HOOKS.get().and_then(which) {
        function();
    }
}

/// What became of a checkpoint that the program itself asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The image is written (stop mode), or a child writes it (fork mode): its end record makes it valid.
    Saved {
        /// How long everybody was stopped, in nanoseconds.
        pause: u64,
    },
    /// This is the restored process.
    Restored,
}

/// A checkpoint that a thread of the program has asked for; one at a time.
struct Called {
    taken: AtomicU32,
    fd: AtomicI32,
    fork: AtomicU32,
    /// The refusal's text and number; no text: none.
    what: AtomicPtr<u8>,
    what_len: AtomicUsize,
    number: AtomicI32,
    done: AtomicU32,
}

static CALLED: Called = Called {
    taken: AtomicU32::new(0),
    fd: AtomicI32::new(-1),
    fork: AtomicU32::new(0),
    what: AtomicPtr::new(core::ptr::null_mut()),
    what_len: AtomicUsize::new(0),
    number: AtomicI32::new(0),
    done: AtomicU32::new(0),
};

const BUSY: Refusal = Refusal { what: "a checkpoint is being made already; thread", number: 0 };

/// Saves the process to `fd`, from a thread of its own. Returns twice: in the process that goes on, and in the restored one, where `fd`
/// is not open. The library's constructor must have run.
pub fn checkpoint(fd: i32, mode: Mode) -> Result<Outcome, Refusal> {
    if CALLED.taken.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
        return Err(Refusal { number: sys::gettid(), ..BUSY });
    }
    CALLED.fd.store(fd, Relaxed);
    CALLED.fork.store(u32::from(mode == Mode::Fork), Relaxed);
    CALLED.done.store(0, Relaxed);
    let before = state().restored.load(Relaxed);
    let queued = stop::call_self().map_err(Refusal::failed("the checkpoint's signal cannot be queued: error"));
    let result = if state().restored.load(Acquire) != before { Ok(Outcome::Restored) } else { queued.and_then(|()| answer()) };
    CALLED.taken.store(0, Release);
    result
}

fn answer() -> Result<Outcome, Refusal> {
    let what = CALLED.what.load(Acquire);
    if CALLED.done.load(Acquire) == 0 {
        return Err(Refusal { number: sys::gettid(), ..BUSY });
    }
    if what.is_null() {
        return Ok(Outcome::Saved { pause: state().pause.load(Relaxed) });
    }
    // SAFETY: `called` has stored pointer and length of a static text.
    let what = unsafe { core::str::from_utf8_unchecked(core::slice::from_raw_parts(what, CALLED.what_len.load(Relaxed))) };
    Err(Refusal { what, number: CALLED.number.load(Relaxed) })
}

/// The part of `checkpoint` that runs in the signal's handler.
pub extern "C" fn called(_: u64, context: *mut libc::ucontext_t) {
    let mode = if CALLED.fork.load(Relaxed) == 1 { Mode::Fork } else { Mode::Stop };
    // SAFETY: stop::coordinate holds `busy`.
    match unsafe { make(mode, CALLED.fd.load(Relaxed), context) } {
        Ok(()) => CALLED.what.store(core::ptr::null_mut(), Relaxed),
        Err(refusal) => {
            CALLED.what_len.store(refusal.what.len(), Relaxed);
            CALLED.number.store(refusal.number, Relaxed);
            CALLED.what.store(refusal.what.as_ptr().cast_mut(), Relaxed);
        }
    }
    CALLED.done.store(1, Release);
}

struct FdSink(i32);

impl Sink for FdSink {
    type Error = Errno;
    fn put(&mut self, head: &[u8], tail: &[u8]) -> Result<(), Errno> {
        sys::write_both(self.0, head, tail)
    }
}

/// Answers a request: `which` names the socket, `context` is where the thread was.
pub extern "C" fn serve(which: u64, context: *mut libc::ucontext_t) {
    let Ok(fd) = connect(which as u32) else { return };
    if let Some(mode) = request(fd) {
        // SAFETY: stop::coordinate holds `busy`.
        if let Err(refusal) = unsafe { make(mode, fd, context) } {
            let mut text = [0u8; 64];
            let number = numbered(&mut text, b" ", refusal.number, b"");
            for part in [&REFUSAL_MAGIC[..], refusal.what.as_bytes(), &number[..number.len() - 1]] {
                let _ = sys::write_all(fd, part);
            }
        }
    }
    sys::close(fd);
}

/// Connects to the requester's socket, and makes sure that it belongs to the same user. The descriptor is a high one: those the
/// program expects to get next stay free.
fn connect(which: u32) -> Result<i32, Errno> {
    let mut address = [0u8; 2 + SOCKET_NAME.len() + 8];
    address[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    address[2..14].copy_from_slice(SOCKET_NAME);
    for (i, digit) in address[14..].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(which >> (28 - 4 * i) & 15) as usize];
    }
    // SAFETY: no memory is involved.
    let low = unsafe { call!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) }? as i32;
    let fd = sys::fcntl(low, libc::F_DUPFD_CLOEXEC, identity::HIGH_FD as usize).map_or(low, |fd| fd as i32);
    if fd != low {
        sys::close(low);
    }
    let mut peer = [0u32; 3];
    let mut len = 12u32;
    // SAFETY: the kernel reads the address, and writes one ucred.
    let connected = unsafe {
        call!(libc::SYS_connect, fd, address.as_ptr(), address.len())
            .and_then(|_| call!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_PEERCRED, peer.as_mut_ptr(), &raw mut len))
            .and_then(|_| call!(libc::SYS_geteuid))
    };
    match connected {
        Ok(uid) if uid as u32 == peer[1] || peer[1] == 0 => Ok(fd),
        Ok(_) => {
            sys::close(fd);
            Err(Errno(libc::EPERM))
        }
        Err(error) => {
            sys::close(fd);
            Err(error)
        }
    }
}

fn request(fd: i32) -> Option<Mode> {
    let mut bytes = [0u8; REQUEST_BYTES];
    let mut have = 0;
    while have < bytes.len() {
        match sys::read(fd, &mut bytes[have..]) {
            Ok(0) | Err(_) => return None,
            Ok(more) => have += more,
        }
    }
    match (bytes.strip_prefix(&REQUEST_MAGIC)?, bytes[8]) {
        (_, 0) => Some(Mode::Stop),
        (_, 1) => Some(Mode::Fork),
        _ => None,
    }
}

/// Makes a checkpoint of the process to `fd`.
///
/// # Safety
/// The caller is in the signal's handler, on the engine's stack, and holds `state().busy`.
unsafe fn make(mode: Mode, fd: i32, context: *mut libc::ucontext_t) -> Result<(), Refusal> {
    reap(true)?;
    gather::preflight()?;
    // SAFETY: the caller holds `busy`.
    gather::advice(unsafe { arena::tables() });
    stop::begin();
    let began = sys::clock(libc::CLOCK_MONOTONIC);
    // SAFETY: we hold `busy` and enter first.
    let stopped = unsafe { if stop::enter(context) { stop::stop_others() } else { Err(Errno(libc::ENOSPC)) } };
    let result = match stopped {
        Ok(threads) => {
            hook(|h| h.before_save);
            // SAFETY: everybody is stopped and we hold `busy`.
            unsafe { stopped_part(mode, fd, threads, context) }
        }
        Err(error) => Err(Refusal { what: "not all threads could be stopped in time: error", number: error.0 }),
    };
    // SAFETY: we hold `busy`.
    arena::drop_content(unsafe { arena::tables() });
    stop::release();
    state().pause.store(sys::clock(libc::CLOCK_MONOTONIC) - began, Relaxed);
    forget_scratch();
    result
}

/// Gives the scratch memory back to the kernel.
fn forget_scratch() {
    // SAFETY: nothing in it is in use between checkpoints.
    let _ = unsafe { call!(libc::SYS_madvise, arena::SCRATCH_BASE, arena::SCRATCH_SPAN, libc::MADV_DONTNEED) };
}

/// Collects the child of an earlier checkpoint; if it is still writing, that is a refusal.
fn reap(refuse: bool) -> Result<(), Refusal> {
    const WCLONE: u32 = 0x8000_0000;
    let child = state().child.load(Acquire) as i32;
    // SAFETY: no memory is involved.
    let waited = if child == 0 { Ok(1) } else { unsafe { call!(libc::SYS_wait4, child, 0, WCLONE | libc::WNOHANG as u32, 0) } };
    if waited == Ok(0) && refuse {
        return Err(Refusal { what: "the image before this one is still being written by process", number: child });
    }
    state().child.store(0, Relaxed);
    Ok(())
}

unsafe fn stopped_part(mode: Mode, fd: i32, threads: usize, context: *mut libc::ucontext_t) -> Result<(), Refusal> {
    // SAFETY: the caller's promise; the parts of the scratch memory are distinct.
    let (tables, meta, extents) = unsafe { (arena::tables(), arena::scratch(arena::SCRATCH_META), extents_buffer()) };
    leader_first(threads);
    gather::process(tables, fd, threads)?;
    shared(tables)?;
    let generation = state().generation.fetch_add(1, Relaxed) + 1;
    let id = identity::new_id();
    state().image.store(id, Relaxed);
    let (meta_len, used) = describe(tables, meta, extents, threads)?;
    let header = Header {
        entry: restart::entry as *const () as u64,
        stack: arena::coordinator_stack(),
        id,
        generation,
        ..identity::header()
    };
    let (meta, extents) = (&meta[..meta_len], &extents[..used]);
    if mode == Mode::Stop {
        let broken = |error: Errno| Refusal { what: "the image cannot be written: error", number: error.0 };
        let written = write(fd, header, meta, extents).map_err(broken);
        swallow_sigpipe(context);
        return written;
    }
    // SAFETY: only the coordinator is here.
    let advised = unsafe { gather::advised(tables) };
    forkable(advised, true);
    // SAFETY: like fork, without anybody's handlers: the child makes system calls only, from this function on.
    let forked = unsafe { call!(libc::SYS_clone, 0, 0, 0, 0, 0) };
    if forked != Ok(0) {
        forkable(advised, false);
    }
    match forked {
        Ok(0) => child(fd, header, meta, extents),
        Ok(pid) => {
            state().child.store(pid as u32, Relaxed);
            Ok(())
        }
        Err(error) => Err(Refusal { what: "the child that writes the image cannot be made: error", number: error.0 }),
    }
}

/// Our child needs what other children must not get, or must get empty.
fn forkable(advised: &[Advised], yes: bool) {
    for (bit, on, off) in [
        (advice::DONT_FORK, libc::MADV_DOFORK, libc::MADV_DONTFORK),
        (advice::WIPE_ON_FORK, libc::MADV_KEEPONFORK, libc::MADV_WIPEONFORK),
    ] {
        for region in advised.iter().filter(|a| a.bits & bit != 0) {
            // SAFETY: changes no content.
            let _ = unsafe { call!(libc::SYS_madvise, region.start, region.end - region.start, if yes { on } else { off }) };
        }
    }
}

unsafe fn extents_buffer() -> &'static mut [Extent] {
    let (_, len) = arena::SCRATCH_EXTENTS;
    // SAFETY: the caller holds `busy`; the part is aligned to pages and any bytes are valid extents.
    unsafe {
        let bytes = arena::scratch(arena::SCRATCH_EXTENTS);
        core::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), len / size_of::<Extent>())
    }
}

/// A broken pipe must not become the program's signal when it goes on.
fn swallow_sigpipe(context: *mut libc::ucontext_t) {
    let set = 1u64 << (libc::SIGPIPE - 1);
    let zero = [0i64; 2];
    // SAFETY: the context is the thread's own frame. A SIGPIPE that was pending before, because the program blocks it, stays.
    let blocked = unsafe { libc::sigismember(&raw const (*context).uc_sigmask, libc::SIGPIPE) } == 1;
    if !blocked {
        // SAFETY: the kernel reads one mask and one timespec.
        let _ = unsafe { call!(libc::SYS_rt_sigtimedwait, &raw const set, 0, zero.as_ptr(), 8) };
    }
}

fn child(fd: i32, header: Header, meta: &[u8], extents: &[Extent]) -> ! {
    hook(|h| h.in_child);
    // Nothing inherited stays open, or a peer would not learn when the program ends.
    // SAFETY: no memory is involved.
    unsafe {
        if fd > 0 {
            let _ = call!(libc::SYS_close_range, 0, fd - 1, 0);
        }
        let _ = call!(libc::SYS_close_range, fd + 1, u32::MAX, 0);
    }
    let code = if write(fd, header, meta, extents).is_ok() { 0 } else { 1 };
    sys::exit_group(code)
}

/// The leader's record comes first: it is the one that restarts the others.
fn leader_first(threads: usize) {
    let pid = sys::getpid();
    let slots = &state().slots[..threads];
    // SAFETY: all are parked; we alone look at the slots.
    unsafe {
        if let Some(leader) = slots.iter().position(|slot| (*slot.0.get()).tid == pid) {
            core::ptr::swap(slots[0].0.get(), slots[leader].0.get());
        }
    }
}

fn maps_text() -> Result<&'static [u8], Refusal> {
    // SAFETY: only the coordinator is here, and the text is read again only after it is done with the last one.
    let buffer = unsafe { arena::scratch(arena::SCRATCH_MAPS) };
    let len = sys::slurp(b"/proc/self/maps\0", buffer).map_err(Refusal::failed("/proc/self/maps cannot be read: error"))?;
    if len == buffer.len() {
        return Err(Refusal { what: "too many mappings; bytes of /proc/self/maps:", number: len as i32 });
    }
    Ok(&buffer[..len])
}

fn restorer_range(line: &Line<'_>) -> bool {
    line.start >= RESTORER_BASE && line.end <= RESTORER_BASE + RESTORER_SPAN
}

/// Does the file of a mapping still exist under its name?
fn file_exists(line: &Line<'_>) -> Option<libc::stat> {
    let mut path = [0u8; 4200];
    if line.path.first() != Some(&b'/') || line.path.len() >= path.len() {
        return None;
    }
    path[..line.path.len()].copy_from_slice(line.path);
    sys::stat(&path[..line.path.len() + 1]).ok().filter(|stat| stat.st_ino == line.inode)
}

/// Copies what shared mappings hold: it is not copy-on-write, and a child would see nothing of it.
fn shared(tables: &mut Tables) -> Result<(), Refusal> {
    let text = maps_text()?;
    let memory = sys::open(b"/proc/self/mem\0", libc::O_RDONLY, 0).map_err(Refusal::failed("/proc/self/mem cannot be opened"))?;
    let result = maps::lines(text).filter_map(maps::parse).filter(|line| line.shared).try_for_each(|line| {
        let kernel = [&b"/[aio]"[..], b"anon_inode:"].iter().any(|name| line.path.starts_with(name));
        if kernel {
            let what = "kernel AIO, io_uring or perf events cannot be saved: a mapping with inode";
            return Err(Refusal { what, number: line.inode as i32 });
        }
        let writable_file = line.prot & 2 != 0;
        if file_exists(&line).is_some() && !writable_file {
            return Ok(()); // It is mapped again as it is.
        }
        if line.path.starts_with(b"/dev/") && !line.path.starts_with(b"/dev/shm/") && !line.path.starts_with(b"/dev/zero") {
            return Err(Refusal { what: "a device is mapped; inode", number: line.inode as i32 });
        }
        copy_shared(tables, &line, memory).map_err(|error| {
            let full = "too much shared memory, or too many shared mappings: error";
            Refusal { what: if error.0 == libc::EFBIG { full } else { "shared memory cannot be read: error" }, number: error.0 }
        })
    });
    sys::close(memory);
    result
}

fn copy_shared(tables: &mut Tables, line: &Line<'_>, memory: i32) -> Result<(), Errno> {
    let span = line.end - line.start;
    let at = arena::content(tables, span)?;
    // SAFETY: just made.
    let bytes = unsafe { arena::content_bytes((at, span)) };
    let mut len = 0usize;
    while len < bytes.len() {
        match sys::pread(memory, &mut bytes[len..], line.start + len as u64) {
            Ok(0) | Err(Errno(libc::EIO)) => break, // Beyond the end of the file.
            Ok(more) => len += more,
            Err(error) => return Err(error),
        }
    }
    let (prot, ino) = (u32::from(line.prot), line.inode);
    let entry = Shared { start: line.start, len: len as u64, span, prot, content: at, ino };
    if tables.shared.push(entry) { Ok(()) } else { Err(Errno(libc::EFBIG)) }
}

/// Number of the shared object with an inode: that of its first mapping.
pub fn object_number(shared: &[Shared], ino: u64) -> u32 {
    shared.iter().position(|s| s.ino == ino).unwrap_or(MAX_SHARED) as u32
}

/// Writes the metadata and lists the pages; gives the metadata's length and the number of extents.
fn describe(tables: &Tables, meta: &mut [u8], extents: &mut [Extent], threads: usize) -> Result<(usize, usize), Refusal> {
    let mut out = MetaWriter::new(meta);
    describe_process(tables, &mut out);
    let mut scanner = Scanner::open().map_err(Refusal::failed("/proc/self/pagemap cannot be opened: error"))?;
    let mut used = 0;
    let text = maps_text()?;
    let mut last = (&b""[..], 0u64, 0u32);
    // SAFETY: only the coordinator is here.
    let advised = unsafe { gather::advised(tables) };
    for line in maps::lines(text).filter_map(maps::parse).filter(|l| !restorer_range(l) && l.path != b"[vsyscall]") {
        let file = file_exists(&line);
        let backing = backing(tables, &line, file.is_some());
        let before = used;
        let failed = Refusal::failed("the pages of a region cannot be listed: error");
        used = match backing {
            Backing::Vdso | Backing::Vvar | Backing::VvarClock | Backing::SharedFile | Backing::SharedObject => used,
            _ if arena::transient(line.start, line.end) => used,
            // The file is gone: all of it that can be read.
            Backing::Anonymous if line.inode != 0 => readable(&line, extents, used).map_err(failed)?,
            _ => scanner.extents(line.start, line.end, extents, used).map_err(failed)?,
        };
        if let (Some(stat), true) = (&file, (last.0, last.1) != (line.path, line.inode)) {
            last = (line.path, line.inode, if stat.st_mode & libc::S_IFMT == libc::S_IFREG { head_crc(line.path) } else { 0 });
        }
        let object = if backing == Backing::SharedObject { object_number(&tables.shared, line.inode) } else { 0 };
        let known = file.is_some() && matches!(backing, Backing::PrivateFile | Backing::SharedFile);
        out.region(&RegionRef {
            start: line.start,
            end: line.end,
            prot: line.prot,
            backing,
            advice: advice_at(advised, line.start),
            has_runs: used > before,
            offset: line.offset,
            object,
            size: file.map_or(0, |stat| stat.st_size as u64),
            head_crc: if known { last.2 } else { 0 },
            path: line.path,
        });
    }
    describe_rest(tables, &mut out, threads);
    let len = out.finish().map_err(|_| Refusal { what: "the metadata is above its bound; regions:", number: used as i32 })?;
    Ok((len, used))
}

fn advice_at(advised: &[Advised], start: u64) -> u8 {
    let after = advised.partition_point(|a| a.start <= start);
    after.checked_sub(1).map(|at| advised[at]).filter(|a| start < a.end).map_or(0, |a| a.bits)
}

fn backing(tables: &Tables, line: &Line<'_>, exists: bool) -> Backing {
    match line.path {
        b"[vdso]" => Backing::Vdso,
        b"[vvar]" => Backing::Vvar,
        b"[vvar_vclock]" => Backing::VvarClock,
        b"[stack]" => Backing::Stack,
        _ if line.shared && exists => Backing::SharedFile,
        _ if line.shared => {
            debug_assert!(tables.shared.iter().any(|s| s.ino == line.inode));
            Backing::SharedObject
        }
        _ if line.inode != 0 && exists => Backing::PrivateFile,
        _ => Backing::Anonymous,
    }
}

/// CRC of a file's first 4 KiB, 0 if it cannot be read.
pub fn head_crc(path: &[u8]) -> u32 {
    let (mut name, mut head) = ([0u8; 4200], [0u8; 4096]);
    name[..path.len()].copy_from_slice(path);
    let Ok(fd) = sys::open(&name[..path.len() + 1], libc::O_RDONLY, 0) else { return 0 };
    let len = sys::pread(fd, &mut head, 0).unwrap_or(0);
    sys::close(fd);
    crc32c(0, &head[..len])
}

/// The pages of a private mapping of a file that is gone, up to the file's end.
fn readable(line: &Line<'_>, extents: &mut [Extent], used: usize) -> Result<usize, Errno> {
    let memory = sys::open(b"/proc/self/mem\0", libc::O_RDONLY, 0)?;
    let present = |page: u64| sys::pread(memory, &mut [0u8; 1], line.start + page * 4096) == Ok(1);
    let (mut low, mut high) = (0, (line.end - line.start) / 4096);
    while low < high {
        let middle = low.midpoint(high);
        if present(middle) { low = middle + 1 } else { high = middle }
    }
    sys::close(memory);
    if low == 0 {
        return Ok(used);
    }
    *extents.get_mut(used).ok_or(Errno(libc::ENOSPC))? =
        Extent { start: line.start, end: line.start + low * 4096, categories: 0 };
    Ok(used + 1)
}

fn describe_process(tables: &Tables, out: &mut MetaWriter<'_>) {
    let (mut exe, mut cmdline) = ([0u8; 4200], [0u8; 4096]);
    let exe = sys::readlink(b"/proc/self/exe\0", &mut exe).unwrap_or(b"");
    let len = sys::slurp(b"/proc/self/cmdline\0", &mut cmdline).unwrap_or(0);
    // SAFETY: no memory is involved.
    let personality = unsafe { call!(libc::SYS_personality, 0xffff_ffffu32) }.unwrap_or(0) as u32;
    let clocks = (sys::clock(libc::CLOCK_MONOTONIC), sys::clock(libc::CLOCK_BOOTTIME));
    let cwd = tables.text(tables.cwd).strip_suffix(&[0]).unwrap_or(b"");
    out.process(sys::getpid() as u32, personality, clocks, exe, &cmdline[..len], cwd);
}

fn describe_rest(tables: &Tables, out: &mut MetaWriter<'_>, threads: usize) {
    for slot in &state().slots[..threads] {
        // SAFETY: all threads are parked; their frames are as the kernel made them.
        unsafe {
            let thread = &*slot.0.get();
            let registers = &(*(thread.context as *const libc::ucontext_t)).uc_mcontext.gregs;
            let name = &thread.name[..thread.name.iter().position(|b| *b == 0).unwrap_or(16)];
            let (rip, rsp) = (registers[libc::REG_RIP as usize], registers[libc::REG_RSP as usize]);
            out.thread(thread.tid as u32, rip as u64, rsp as u64, name);
        }
    }
    for fd in tables.fds.iter() {
        let path = tables.text(fd.path).strip_suffix(&[0]).unwrap_or(b"");
        out.descriptor(fd.fd as u32, fd.kind.name().as_bytes(), path, fd.position);
    }
    for note in tables.notes.split(|b| *b == 0).filter(|note| !note.is_empty()) {
        out.note(note);
    }
}

/// Makes pages readable that are not, for as long as it lives.
fn unprotected(extent: &Extent) -> Option<u64> {
    // Only a region without PROT_READ makes this read fail.
    let mut byte = 0u8;
    let to = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let from = libc::iovec { iov_base: extent.start as *mut _, iov_len: 1 };
    // SAFETY: the kernel writes one byte, or reports that it cannot read the page.
    let got = unsafe { call!(libc::SYS_process_vm_readv, sys::getpid(), &raw const to, 1, &raw const from, 1, 0) };
    if got == Ok(1) { None } else { Some(extent.start) }
}

fn write(fd: i32, header: Header, meta: &[u8], extents: &[Extent]) -> Result<(), Errno> {
    let mut writer = ImageWriter::begin(FdSink(fd), header, meta)?;
    let memory = sys::open(b"/proc/self/mem\0", libc::O_RDONLY, 0)?;
    let result = extents.iter().try_for_each(|extent| {
        let hidden = unprotected(extent).is_some();
        let mut at = extent.start;
        while at < extent.end {
            let len = (extent.end - at).min(crate::image::format::MAX_RUN_BYTES as u64);
            write_pages(&mut writer, at, len as usize, hidden.then_some(memory))?;
            at += len;
        }
        Ok(())
    });
    sys::close(memory);
    result?;
    writer.finish().map(drop)
}

/// Writes pages: raw those that hold something, zero runs for the others. Pages without PROT_READ are copied by way of
/// /proc/self/mem.
fn write_pages(writer: &mut ImageWriter<FdSink>, at: u64, len: usize, memory: Option<i32>) -> Result<(), Errno> {
    let bytes: &[u8] = match memory {
        // SAFETY: present pages of the program, readable, and nobody else runs.
        None => unsafe { core::slice::from_raw_parts(at as *const u8, len) },
        Some(memory) => {
            // SAFETY: the small files of /proc are not in use while pages are written; a run fits.
            let buffer = unsafe { arena::scratch(arena::SCRATCH_SMALL) };
            let mut have = 0;
            while have < len {
                match sys::pread(memory, &mut buffer[have..len], at + have as u64)? {
                    0 => return Err(Errno(libc::EIO)),
                    more => have += more,
                }
            }
            &buffer[..len]
        }
    };
    let (pages, _) = bytes.as_chunks::<4096>();
    let mut first = 0;
    while first < pages.len() {
        let zero = is_zero(&pages[first]);
        let more = pages[first + 1..].iter().take_while(|page| is_zero(page) == zero).count();
        let (from, to) = (first * 4096, (first + 1 + more) * 4096);
        if zero {
            writer.zero(at + from as u64, to - from)?;
        } else {
            writer.raw(at + from as u64, &bytes[from..to])?;
        }
        first += 1 + more;
    }
    Ok(())
}

fn is_zero(page: &[u8; 4096]) -> bool {
    let (words, _) = page.as_chunks::<32>();
    words.iter().all(|word| *word == [0; 32])
}
