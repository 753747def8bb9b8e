//! The engine's own memory: at fixed far addresses, mapped once by the constructor, never from the program's allocator. It is part
//! of the program's memory and travels in the image like the rest of it; so what a restored process needs to know about
//! itself, it finds here.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use crate::handed::{Handed, MAX_HANDED};
use crate::image::meta::FileId;
use crate::maps::ObjectId;
use crate::page::PAGE;
use crate::pages::Extent;
use crate::plan::{MAX_OWNERS, Owner, RESTORER_BASE, RESTORER_SPAN};
use crate::stretches::Dense;
use crate::sys::{self, Errno};
use crate::table::Table;
use crate::waits::{WAITS, Wait};

/// Where `State` lies.
pub const STATE_BASE: u64 = 0x3e00_0000_0000;
/// Stacks for threads until they return to the program, one page each and one for the coordinator behind them.
pub const STACKS_BASE: u64 = 0x3e40_0000_0000;
/// Buffers for the time of a checkpoint; not saved.
pub const SCRATCH_BASE: u64 = 0x3e80_0000_0000;
/// Contents that are not memory of the program (pipes, deleted files, shared memory), for the time of a checkpoint; saved.
pub const CONTENT_BASE: u64 = 0x3d00_0000_0000;
/// Bound on these contents in bytes.
pub const CONTENT_LIMIT: u64 = 4 << 30;
/// Largest file, open for reading and writing, whose content is saved: it may be changed in place after the checkpoint.
pub const FILE_LIMIT: u64 = 64 << 20;
/// Changed pages, copied so that the program can go on while they are written; not saved.
pub const SNAPSHOT_BASE: u64 = 0x3ec0_0000_0000;
/// Bound on them in bytes: more changed pages are written by a forked child: then the pause depends on all memory, not on these. A hundredth of a GiB
/// fits, with what the engine and the stacks change.
pub const SNAPSHOT_SPAN: u64 = 11 << 20;
/// Hashes of pages, where the kernel cannot track changes; shared with the child that writes the image, not saved.
pub const HASHES_BASE: u64 = 0x3c00_0000_0000;
/// Bytes for them, most of which are never touched.
pub const HASHES_SPAN: u64 = 1 << 30;

/// Most threads.
pub const MAX_THREADS: usize = 4096;
/// Most descriptors. Memory for them is touched as they are met.
pub const MAX_FDS: usize = 65_536;
/// Most POSIX timers.
pub const MAX_TIMERS: usize = 128;
/// Most ranges of guard pages: two for each thread, and some.
pub const MAX_GUARDS: usize = 2 * MAX_THREADS + 1024;
/// Most locks on files.
pub const MAX_LOCKS: usize = 1024;
/// Most shared mappings.
pub const MAX_SHARED: usize = 512;

const THREAD_STACK: u64 = 8192;
const COORDINATOR_STACK: u64 = 256 << 10;
const WRITER_STACK: u64 = 256 << 10;
/// Bytes of all stacks.
pub const STACKS_SPAN: u64 = THREAD_STACK * MAX_THREADS as u64 + WRITER_STACK + COORDINATOR_STACK;

/// Parts of the scratch memory: offset and length in bytes.
pub const SCRATCH_MAPS: (u64, usize) = (0, 16 << 20);
/// Metadata being written.
pub const SCRATCH_META: (u64, usize) = (16 << 20, 32 << 20);
/// Extents of pages to write.
pub const SCRATCH_EXTENTS: (u64, usize) = (48 << 20, 64 << 20);
/// Advice by region.
pub const SCRATCH_ADVICE: (u64, usize) = (112 << 20, 2 << 20);
/// One run, packed.
pub const SCRATCH_PACKED: (u64, usize) = (114 << 20, 2 << 20);
/// One run, before it is packed.
pub const SCRATCH_COPY: (u64, usize) = (116 << 20, 1 << 20);
/// Small files of /proc; the longest tells of an epoll that watches `MAX_FDS` descriptors, with fewer than 128 bytes for each.
pub const SCRATCH_SMALL: (u64, usize) = (117 << 20, 8 << 20);
/// All parts.
pub const SCRATCH: [(u64, usize); 7] =
    [SCRATCH_MAPS, SCRATCH_META, SCRATCH_EXTENTS, SCRATCH_ADVICE, SCRATCH_PACKED, SCRATCH_COPY, SCRATCH_SMALL];
/// Bytes of all of it.
pub const SCRATCH_SPAN: u64 = 128 << 20;

/// What a thread says about itself when it parks. All that is not here is in its signal frame.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Thread {
    /// Its id when it was saved.
    pub tid: i32,
    /// Its id since it was restored: the same, where the kernel allows it.
    pub now: i32,
    /// Bytes of its affinity mask.
    pub affinity_len: u32,
    /// 1: it makes a call again that was interrupted.
    pub rewound: u32,
    /// 1: it gets a SIGSEGV when it reads the processor's time stamp counter.
    pub counter_traps: u32,
    /// Its frame: address of the ucontext, from which rt_sigreturn goes on.
    pub context: u64,
    /// Base of the FS segment: its thread-local storage.
    pub fs: u64,
    /// Base of the GS segment.
    pub gs: u64,
    /// set_tid_address: where the kernel clears its id at exit.
    pub tid_address: u64,
    /// set_robust_list.
    pub robust: u64,
    /// Its length argument.
    pub robust_len: u64,
    /// Signals that are pending for it alone, as a mask.
    pub pending: u64,
    /// Signals that it blocks.
    pub mask: u64,
    /// Its name.
    pub name: [u8; 16],
    /// CPUs it may run on.
    pub affinity: [u64; 16],
}

/// A thread's place.
#[repr(C)]
pub struct Slot(pub UnsafeCell<Thread>);

/// A text in the pool.
#[derive(Clone, Copy, Default)]
pub struct Text {
    /// Offset.
    pub at: u32,
    /// Length with the zero byte at its end; 0: none.
    pub len: u32,
}

/// What a descriptor is.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whatever the restarted process inherits at this number, else /dev/null.
    Inherited = 0,
    /// A file, directory or device with a name.
    File,
    /// A file without a name: its content is in the image.
    Content,
    /// A memfd, or a file that is gone and still mapped: an object of shared memory.
    Object,
    /// The reading end of a pipe both of whose ends are in the process.
    PipeRead,
    /// The writing end.
    PipeWrite,
    /// eventfd.
    Event,
    /// timerfd.
    Timer,
    /// signalfd.
    Signal,
    /// epoll.
    Epoll,
    /// A socket with a peer: comes back without one.
    Socket,
    /// A socket that has no peer: comes back as it was, listening if it did.
    LooseSocket,
    /// A pipe to another process: comes back without another end.
    ForeignPipe,
    /// One end of a pair of unix sockets both of whose ends are in the process.
    SocketPair,
}

impl Kind {
    /// In a word, for `inspect`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Inherited => "inherited",
            Self::File => "file",
            Self::Content => "deleted-file",
            Self::Object => "memfd",
            Self::PipeRead | Self::PipeWrite => "pipe",
            Self::Event => "eventfd",
            Self::Timer => "timerfd",
            Self::Signal => "signalfd",
            Self::Epoll => "epoll",
            Self::Socket | Self::LooseSocket => "socket",
            Self::SocketPair => "socket-pair",
            Self::ForeignPipe => "foreign-pipe",
        }
    }
}

/// A descriptor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Fd {
    /// Its number.
    pub fd: i32,
    /// What it is.
    pub kind: Kind,
    /// FD_CLOEXEC or 0.
    pub fd_flags: i32,
    /// fcntl(F_GETFL).
    pub status: i32,
    /// An earlier descriptor of the same open file; -1: none.
    pub same_as: i32,
    /// Which file it is of.
    pub file: FileId,
    /// Position in bytes.
    pub position: u64,
    /// Size in bytes.
    pub size: u64,
    /// Name.
    pub path: Text,
    /// By kind: counter, clock and times, mask.
    pub values: [u64; 4],
    /// Where its content is in memory, and how long that is.
    pub content: (u64, u64),
}

impl Fd {
    /// The earlier descriptor of the same open file.
    #[must_use]
    pub fn same_as(&self) -> Option<i32> {
        (self.same_as >= 0).then_some(self.same_as)
    }
}

/// One watched descriptor of an epoll.
#[derive(Clone, Copy)]
pub struct Watch {
    /// The epoll.
    pub epoll: i32,
    /// The watched descriptor.
    pub fd: i32,
    /// Events.
    pub events: u32,
    /// The program's word.
    pub data: u64,
}

/// What kind of lock on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// flock.
    Flock,
    /// fcntl, held by the process.
    Process,
    /// fcntl, held by the open file.
    OpenFile,
}

/// A lock on a file.
#[derive(Clone, Copy)]
pub struct Lock {
    /// A descriptor of the file.
    pub fd: i32,
    /// Its kind.
    pub kind: LockKind,
    /// Exclusive?
    pub exclusive: bool,
    /// First byte.
    pub start: u64,
    /// Bytes; 0: up to the end, wherever that is.
    pub len: u64,
}

/// A shared mapping whose content is in the image.
#[derive(Clone, Copy)]
pub struct Shared {
    /// First address.
    pub start: u64,
    /// Bytes of content.
    pub len: u64,
    /// Bytes of the mapping.
    pub span: u64,
    /// Protection.
    pub prot: u32,
    /// Where the content is.
    pub content: u64,
    /// The object.
    pub object: ObjectId,
    /// Is it a whole segment of System V?
    pub is_segment: bool,
}

/// Pages that must not be touched (MADV_GUARD_INSTALL).
#[derive(Clone, Copy)]
pub struct Guard {
    /// First address.
    pub start: u64,
    /// First address after them.
    pub end: u64,
}

/// A POSIX timer.
#[derive(Clone, Copy)]
pub struct PosixTimer {
    /// Its id.
    pub id: i32,
    /// Signal.
    pub signal: i32,
    /// The program's word.
    pub value: u64,
    /// SIGEV_*.
    pub notify: i32,
    /// Thread it is for, with SIGEV_THREAD_ID.
    pub tid: i32,
    /// Clock.
    pub clock: i32,
    /// itimerspec: interval and value, each seconds and nanoseconds.
    pub times: [i64; 4],
}

/// sigaction as the kernel knows it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct KernelAction {
    /// Handler, SIG_DFL or SIG_IGN.
    pub handler: u64,
    /// SA_* flags.
    pub flags: u64,
    /// The function that calls rt_sigreturn.
    pub restorer: u64,
    /// Signals blocked while it runs.
    pub mask: u64,
}

/// What the coordinator finds out about the process while it is stopped.
#[repr(C)]
pub struct Tables {
    /// Signal dispositions, by number - 1.
    pub actions: [KernelAction; 64],
    /// getrlimit, by number.
    pub limits: [[u64; 2]; 16],
    /// setitimer: REAL, VIRTUAL, PROF: interval and value, each seconds and microseconds.
    pub itimers: [[i64; 4]; 3],
    /// struct prctl_mm_map: eleven addresses.
    pub mm: [u64; 11],
    /// The auxiliary vector.
    pub auxv: [u64; 64],
    /// Bytes of it.
    pub auxv_bytes: usize,
    /// umask.
    pub umask: u32,
    /// PR_SET_DUMPABLE.
    pub dumpable: u32,
    /// Signals pending for the process, as a mask.
    pub pending: u64,
    /// Working directory.
    pub cwd: Text,
    /// Descriptors, ascending.
    pub fds: Table<Fd, MAX_FDS>,
    /// The places of descriptors in `fds`: by inode, and those of one open file beside each other.
    pub by_file: Table<u32, MAX_FDS>,
    /// What epolls watch.
    pub watches: Table<Watch, MAX_FDS>,
    /// Locks on files.
    pub locks: Table<Lock, MAX_LOCKS>,
    /// POSIX timers.
    pub timers: Table<PosixTimer, MAX_TIMERS>,
    /// Guard pages.
    pub guards: Table<Guard, MAX_GUARDS>,
    /// Whom files belong to, as the launcher of a restored process has seen it.
    pub owners: Table<Owner, MAX_OWNERS>,
    /// Shared mappings.
    pub shared: Table<Shared, MAX_SHARED>,
    /// Dense memory, as of the last image.
    pub dense: Dense,
    /// Bytes of contents so far.
    pub content_used: u64,
    /// Texts.
    pub pool: Table<u8, { 8 << 20 }>,
    /// Notes, each ended by a zero byte.
    pub notes: Table<u8, 16384>,
    /// Entries in the scratch memory's list of advice.
    pub advised: usize,
}

impl Tables {
    /// Keeps a text, and a zero byte behind it.
    pub fn keep(&mut self, text: &[u8]) -> Result<Text, Errno> {
        let at = self.pool.len;
        let room = self.pool.items.get_mut(at..at + text.len() + 1).ok_or(Errno(libc::ENOSPC))?;
        room[..text.len()].copy_from_slice(text);
        room[text.len()] = 0;
        self.pool.len += text.len() + 1;
        Ok(Text { at: at as u32, len: text.len() as u32 + 1 })
    }

    /// A kept text with its zero byte.
    #[must_use]
    pub fn text(&self, text: Text) -> &[u8] {
        &self.pool[text.at as usize..(text.at + text.len) as usize]
    }

    /// Adds a note for people; what does not fit is left out.
    pub fn note(&mut self, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        if self.notes.len + len < self.notes.items.len() {
            for byte in parts.iter().flat_map(|p| p.iter()).copied().chain([0]) {
                let _ = self.notes.push(byte);
            }
        }
    }
}

/// The engine's state. All zero is its beginning.
#[repr(C)]
pub struct State {
    /// The process's id while one of its threads saves it, else 0.
    pub busy: AtomicU32,
    /// 1 or more: the process of this id was nudged, and no thread has looked after it yet.
    pub nudged: AtomicU32,
    /// A request that no thread has looked after yet: which socket, and in the upper half the id of the process that was asked; 0: none.
    pub asked: AtomicU64,
    /// The secret by which a requester shows that it has sent the signal. (Of two requests at once one is lost. Both are lost if the secret of one is here with
    /// the socket of the other, for then neither requester can show it.)
    pub secret: [AtomicU64; 2],
    /// Number of the last stop.
    pub round: AtomicU32,
    /// Number of the last stop that is over: parked threads wait for it.
    pub released: AtomicU32,
    /// Slots taken in this stop.
    pub claimed: AtomicU32,
    /// Slots filled in.
    pub parked: AtomicU32,
    /// Threads that have been told to park and are not on their way again, and in the upper half the id of their process: a child inherits the number,
    /// not the threads.
    pub parking: AtomicU64,
    /// Threads of a restored process that are ready to go on.
    pub arrived: AtomicU32,
    /// 1: they may.
    pub gate: AtomicU32,
    /// How many times it was restored.
    pub restored: AtomicU32,
    /// Checkpoints so far.
    pub generation: AtomicU32,
    /// Nanoseconds all threads were held at the last checkpoint.
    pub pause: AtomicU64,
    /// The library's build.
    pub build: AtomicU64,
    /// The last image.
    pub image: AtomicU64,
    /// Where glibc keeps a thread's rseq area, relative to FS; `rseq_size` 0: it does not.
    pub rseq_offset: AtomicU64,
    /// Bytes of it.
    pub rseq_size: AtomicU32,
    /// A child that writes an image; 0: none.
    pub child: AtomicU32,
    /// The handler of our signal before ours: glibc's.
    pub previous: AtomicU64,
    /// The userfaultfd; 0: none.
    pub userfaultfd: AtomicI32,
    /// The process that has its memory tracked, by that or by hashes: a child that is forked inherits descriptor and banks, not the tracking.
    pub tracker: AtomicI32,
    /// 1: the banks of hashes are mapped.
    pub hashes: AtomicU32,
    /// The image since which userfaultfd has noted every change; 0: none.
    pub tracked: AtomicU64,
    /// Bytes of the snapshot's memory that are present.
    pub snapshot: AtomicU64,
    /// Signals on their way to threads.
    pub handed: [Handed; MAX_HANDED],
    /// Times of interrupted calls.
    pub waits: [Wait; WAITS],
    /// Threads, in the order they parked.
    pub slots: [Slot; MAX_THREADS],
    tables: UnsafeCell<Tables>,
}

/// The engine's state.
#[must_use]
pub fn state() -> &'static State {
    // SAFETY: the constructor has mapped it before anything can call this; it is never unmapped; zeroes are valid.
    unsafe { &*(STATE_BASE as *const State) }
}

/// What is known about the process.
///
/// # Safety
/// Only the thread that holds `state().busy` may call it, and use one reference at a time.
pub unsafe fn tables() -> &'static mut Tables {
    // SAFETY: the caller's promise; mapped and zeroed like the state.
    unsafe { &mut *state().tables.get() }
}

/// A part of the scratch memory.
///
/// # Safety
/// Only the thread that holds `state().busy` may call it, and use one reference to a part at a time.
pub unsafe fn scratch(part: (u64, usize)) -> &'static mut [u8] {
    // SAFETY: mapped by the constructor; the caller's promise.
    unsafe { core::slice::from_raw_parts_mut((SCRATCH_BASE + part.0) as *mut u8, part.1) }
}

/// The part of the scratch memory for extents.
///
/// # Safety
/// As for `scratch`.
pub unsafe fn extents() -> &'static mut [Extent] {
    let (_, len) = SCRATCH_EXTENTS;
    // SAFETY: the caller's promise; the part is aligned to pages and any bytes are valid extents.
    unsafe { core::slice::from_raw_parts_mut(scratch(SCRATCH_EXTENTS).as_mut_ptr().cast(), len / size_of::<Extent>()) }
}

/// Top of the stack for the restored thread in a slot.
#[must_use]
pub fn thread_stack(slot: usize) -> u64 {
    assert!(slot < MAX_THREADS);
    STACKS_BASE + THREAD_STACK * (slot as u64 + 1)
}

/// Top of the stack of the child that writes changed pages while it shares the program's memory.
#[must_use]
pub fn writer_stack() -> u64 {
    STACKS_BASE + THREAD_STACK * MAX_THREADS as u64 + WRITER_STACK
}

/// Top of the stack on which checkpoints are made and processes restarted.
#[must_use]
pub fn coordinator_stack() -> u64 {
    STACKS_BASE + STACKS_SPAN
}

/// Is this memory of no use to a restored process? Buffers, and the stacks: that of the coordinator changes even while it is
/// written.
#[must_use]
pub fn transient(start: u64, end: u64) -> bool {
    [(SCRATCH_BASE, SCRATCH_SPAN), (STACKS_BASE, STACKS_SPAN), (SNAPSHOT_BASE, SNAPSHOT_SPAN)]
        .iter()
        .any(|(base, span)| start >= *base && end <= base + span)
}

/// Ranges of memory that no image has: the first address of each, and the first after it.
static LEFT_OUT: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(0) }; 2] }; 2];

/// Leaves this memory out of all images from now on: a restored process finds zeroes there. The range must consist of whole mappings. There are two such
/// ranges: `which` is 0 or 1.
///
/// # Panics
/// If `which` is another.
pub fn leave_out(which: usize, memory: core::ops::Range<u64>) {
    LEFT_OUT[which][0].store(memory.start, Relaxed);
    LEFT_OUT[which][1].store(memory.end, Relaxed);
}

/// Is this memory that no image has?
#[must_use]
pub fn secret(start: u64, end: u64) -> bool {
    LEFT_OUT.iter().any(|[from, to]| start >= from.load(Relaxed) && end <= to.load(Relaxed))
}

/// Is this memory the engine's own? It changes while it is saved, so it is never tracked.
#[must_use]
pub fn own(start: u64) -> bool {
    (HASHES_BASE..RESTORER_BASE + RESTORER_SPAN).contains(&start)
}

/// Is this the mapping of the hashes, which a restored process does not get?
#[must_use]
pub fn hashes(start: u64) -> bool {
    start == HASHES_BASE
}

/// Maps all of it, and reserves the restorer's range.
pub fn reserve() -> Result<(), Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let read_write = libc::PROT_READ | libc::PROT_WRITE;
    let spans = [
        (STATE_BASE, (size_of::<State>() as u64).next_multiple_of(PAGE), read_write),
        (STACKS_BASE, STACKS_SPAN, read_write),
        (SCRATCH_BASE, SCRATCH_SPAN, read_write),
        (SNAPSHOT_BASE, SNAPSHOT_SPAN, read_write),
        (RESTORER_BASE, RESTORER_SPAN, libc::PROT_NONE),
    ];
    for (base, span, prot) in spans {
        // SAFETY: NOREPLACE: it hits nothing that is in use.
        let got = unsafe { sys::mmap(base, span, prot, flags, -1, 0) }?;
        assert_eq!(got, base, "MAP_FIXED_NOREPLACE gives the address or an error");
    }
    Ok(())
}

/// The same, for tests, which share a process.
#[cfg(test)]
pub fn reserve_for_tests() {
    static RESERVED: std::sync::OnceLock<Result<(), Errno>> = std::sync::OnceLock::new();
    assert_eq!(*RESERVED.get_or_init(reserve), Ok(()));
}

/// Room for `len` bytes of content, mapped and zero.
pub fn content(tables: &mut Tables, len: u64) -> Result<u64, Errno> {
    let span = len.next_multiple_of(PAGE).max(PAGE);
    if tables.content_used + span > CONTENT_LIMIT {
        return Err(Errno(libc::EFBIG));
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: NOREPLACE: it hits nothing that is in use.
    let at = unsafe { sys::mmap(CONTENT_BASE + tables.content_used, span, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) }?;
    tables.content_used += span;
    Ok(at)
}

/// Gives all contents back.
pub fn drop_content(tables: &mut Tables) {
    if tables.content_used > 0 {
        // SAFETY: nothing refers to contents once a checkpoint or a restart is over.
        let _ = unsafe { sys::munmap(CONTENT_BASE, tables.content_used) };
    }
    tables.content_used = 0;
}

/// A content as bytes.
///
/// # Safety
/// `content` came from `content()`, is not dropped yet, and nothing else uses it.
pub unsafe fn content_bytes(content: (u64, u64)) -> &'static mut [u8] {
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts_mut(content.0 as *mut u8, content.1 as usize) }
}
