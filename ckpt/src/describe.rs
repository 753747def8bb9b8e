//! What an image says about the process besides its pages, and which pages there are: regions, threads, descriptors, in the form of
//! `image::meta`. All threads are stopped.

use crate::arena::{self, Guard, Kind, MAX_GUARDS, MAX_SHARED, Shared, Tables, state};
use crate::crc::crc32c;
use crate::dense;
use crate::gather;
use crate::image::MetaWriter;
use crate::image::meta::{Backing, FileId, RegionRef};
use crate::maps::{self, Line, NAME_ROOM, ObjectId};
use crate::page::{PAGE, PAGE_BYTES};
use crate::pages::{Extent, HIDDEN, Scanner, TRACKED, WRITTEN};
use crate::plan::{RESTORER_BASE, RESTORER_SPAN};
use crate::refusal::Refusal;
use crate::request::Advised;
use crate::stretches::Stretch;
use crate::sys::{self, Answer, Errno, call, plain};
use crate::{files, track};

/// The leader's record comes first: it is the one that restarts the others.
pub fn leader_first(threads: usize) {
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

/// Is it a region of the program, or of the engine's that a restored process needs?
fn shown(line: &Line<'_>) -> bool {
    let restorer = line.start >= RESTORER_BASE && line.end <= RESTORER_BASE + RESTORER_SPAN;
    !restorer && !arena::hashes(line.start) && line.path != b"[vsyscall]"
}

/// Does the file of a mapping still exist under its name? Which one it is, and its size.
fn file_exists(line: &Line<'_>) -> Option<(FileId, u64)> {
    let mut path = [0u8; NAME_ROOM];
    if line.path.first() != Some(&b'/') || line.path.len() >= path.len() {
        return None;
    }
    path[..line.path.len()].copy_from_slice(line.path);
    files::named(&path[..line.path.len() + 1]).ok().filter(|(file, _)| file.inode == line.inode)
}

/// Refuses mappings that cannot be saved; before a thread is stopped, and again when none can make another one.
pub fn preflight() -> Result<(), Refusal> {
    maps::lines(maps_text()?).filter_map(maps::parse).filter(|line| line.shared).try_for_each(|line| unsavable(&line))
}

fn unsavable(line: &Line<'_>) -> Result<(), Refusal> {
    let begins = |names: &[&[u8]]| names.iter().any(|name| line.path.starts_with(name));
    let what = if begins(&[b"/[aio]", b"anon_inode:"]) {
        "kernel AIO, io_uring or perf events cannot be saved: a mapping with inode"
    } else if begins(&[b"/dev/"]) && !begins(&[b"/dev/shm/", b"/dev/zero"]) {
        "a device is mapped; inode"
    } else {
        return Ok(());
    };
    Err(Refusal { what, number: line.inode as i32 })
}

/// Copies what shared mappings hold: it is not copy-on-write, and a child would see nothing of it.
pub fn shared(tables: &mut Tables) -> Result<(), Refusal> {
    let text = maps_text()?;
    let memory = sys::open(b"/proc/self/mem\0", libc::O_RDONLY, 0).map_err(Refusal::failed("/proc/self/mem cannot be opened"))?;
    let result = maps::lines(text).filter_map(maps::parse).filter(|l| l.shared && !arena::hashes(l.start)).try_for_each(|line| {
        unsavable(&line)?;
        let writable_file = line.prot & 2 != 0;
        if file_exists(&line).is_some() && !writable_file {
            return Ok(()); // It is mapped again as it is.
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
    let (prot, object) = (u32::from(line.prot), line.object());
    let is_segment = is_segment(tables, line);
    let entry = Shared { start: line.start, len: len as u64, span, prot, content: at, object, is_segment };
    if tables.shared.push(entry) { Ok(()) } else { Err(Errno(libc::EFBIG)) }
}

/// Is the mapping a whole segment of System V? Its inode is the segment's id.
fn is_segment(tables: &mut Tables, line: &Line<'_>) -> bool {
    if !line.object().is_segment || line.offset != 0 {
        return false;
    }
    let mut about = core::mem::MaybeUninit::<libc::shmid_ds>::zeroed();
    // SAFETY: the kernel writes one shmid_ds, for which all zeroes is valid, too.
    let about = unsafe { call!(libc::SYS_shmctl, line.inode, libc::IPC_STAT, about.as_mut_ptr()).map(|_| about.assume_init()) };
    let Ok(about) = about else { return false };
    if about.shm_nattch > 1 {
        tables.note(&[b"memory is shared with other processes, or attached twice, and will not be any more: ", line.path]);
    }
    (about.shm_segsz as u64).next_multiple_of(PAGE) == line.end - line.start
}

/// Number of a shared object: that of its first mapping.
pub fn object_number(shared: &[Shared], object: ObjectId) -> u32 {
    shared.iter().position(|s| s.object == object).unwrap_or(MAX_SHARED) as u32
}

/// Writes the metadata and lists the pages; gives the metadata's length and the number of extents. `tracked`: ask the kernel which
/// of them have changed since the last time, and to note it from now on.
pub fn describe(
    tables: &Tables,
    meta: &mut [u8],
    extents: &mut [Extent],
    threads: usize,
    tracked: bool,
) -> Result<(usize, usize), Refusal> {
    let mut out = MetaWriter::new(meta);
    describe_process(tables, &mut out);
    let mut scanner = Scanner::open().map_err(Refusal::failed("/proc/self/pagemap cannot be opened: error"))?;
    let mut used = 0;
    let text = maps_text()?;
    let mut last = (&b""[..], 0u64, 0u32);
    // SAFETY: only the coordinator is here.
    let advised = unsafe { gather::advised(tables) };
    for line in maps::lines(text).filter_map(maps::parse).filter(shown) {
        let file = file_exists(&line);
        let backing = backing(tables, &line, file.is_some());
        let before = used;
        let failed = Refusal::failed("the pages of a region cannot be listed: error");
        used = match backing {
            Backing::Vdso | Backing::Vvar | Backing::VvarClock | Backing::SharedFile | Backing::SharedObject => used,
            _ if arena::transient(line.start, line.end) || arena::secret(line.start, line.end) => used,
            // The file is gone: all of it that can be read.
            Backing::Anonymous if line.inode != 0 => readable(&line, extents, used).map_err(failed)?,
            // A page of a private file mapping that the program gives up leaves a mark that looks like a kept page: never tracked.
            _ if tracked && trackable(&line) => changes(&mut scanner, &line, &tables.dense, extents, used).map_err(failed)?,
            _ => scanner.extents(line.start, line.end, line.inode != 0, extents, used).map_err(failed)?,
        };
        if line.prot & 1 == 0 {
            extents[before..used].iter_mut().for_each(|extent| extent.categories |= HIDDEN);
        }
        if let (Some((file, _)), true) = (&file, (last.0, last.1) != (line.path, line.inode)) {
            last = (line.path, line.inode, mapped_head(tables, &line, file));
        }
        let object = if backing == Backing::SharedObject { object_number(&tables.shared, line.object()) } else { 0 };
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
            size: file.map_or(0, |(_, size)| size),
            head_crc: if known { last.2 } else { 0 },
            file: file.filter(|_| known).map_or(FileId::default(), |(file, _)| files::with_owner(file, &tables.owners)),
            path: line.path,
        });
    }
    describe_rest(tables, &mut out, threads);
    let len = out.finish().map_err(|_| Refusal { what: "the metadata is above its bound; regions:", number: used as i32 })?;
    Ok((len, used))
}

/// Can the kernel track this mapping, and are all its pages the process's own?
fn trackable(line: &Line<'_>) -> bool {
    line.inode == 0 && !line.shared && !arena::own(line.start) && !arena::secret(line.start, line.end)
}

/// Lists guard pages, which only the kernel's page tables know. In dense memory, which was confirmed, there are none.
pub fn guards(tables: &mut Tables, extents: &mut [Extent]) -> Result<(), Refusal> {
    let mut scanner = Scanner::open().map_err(Refusal::failed("/proc/self/pagemap cannot be opened: error"))?;
    for line in maps::lines(maps_text()?).filter_map(maps::parse).filter(|l| shown(l) && !arena::own(l.start) && l.prot & 2 != 0)
    {
        let dense: &[Stretch] = if trackable(&line) { &tables.dense } else { &[] };
        for (start, end, _) in dense::pieces(dense, line.start, line.end).filter(|(_, _, dense)| !dense) {
            let found = scanner.guards(start, end, extents).map_err(Refusal::failed("guard pages cannot be listed: error"))?;
            for extent in &extents[..found] {
                if !tables.guards.push(Guard { start: extent.start, end: extent.end }) {
                    return Err(Refusal { what: "more ranges of guard pages than can be saved:", number: MAX_GUARDS as i32 });
                }
            }
        }
    }
    Ok(())
}

/// The pages of a region that is tracked, or is from now on: then all its pages are new. `dense` was confirmed.
pub fn changes(scanner: &mut Scanner, line: &Line<'_>, dense: &[Stretch], extents: &mut [Extent], used: usize) -> Answer {
    let known = dense::pieces(dense, line.start, line.end).try_fold(used, |used, (start, end, dense)| {
        if dense { scanner.changes_of_dense(start, end, extents, used) } else { scanner.changes(start, end, extents, used) }
    });
    let end = match known {
        Err(Errno(libc::EPERM)) => {
            match track::register(line.start, line.end).and_then(|()| scanner.changes(line.start, line.end, extents, used)) {
                // This mapping cannot be tracked: it never is, so it is always new.
                Err(_) => return scanner.extents(line.start, line.end, false, extents, used),
                Ok(end) => {
                    extents[used..end].iter_mut().for_each(|extent| extent.categories = WRITTEN);
                    end
                }
            }
        }
        result => result?,
    };
    extents[used..end].iter_mut().for_each(|extent| extent.categories |= TRACKED);
    Ok(end)
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
            debug_assert!(tables.shared.iter().any(|s| s.object == line.object()));
            Backing::SharedObject
        }
        _ if line.inode != 0 && exists => Backing::PrivateFile,
        _ => Backing::Anonymous,
    }
}

/// CRC of the first 4 KiB of a file that is mapped privately; 0: not known. A file that the program has open is read through its own descriptor: opening
/// and closing another one would give up the process's locks on it.
fn mapped_head(tables: &Tables, line: &Line<'_>, file: &FileId) -> u32 {
    if line.shared || file.mode & libc::S_IFMT != libc::S_IFREG {
        return 0;
    }
    match tables.fds.iter().find(|fd| (fd.file.inode, fd.file.device) == (file.inode, file.device)) {
        Some(open) => read_head(open.fd),
        None => head_crc(line.path),
    }
}

/// CRC of a file's first 4 KiB, 0 if it cannot be read. Its name may mean a pipe by now: that is not waited for.
fn head_crc(path: &[u8]) -> u32 {
    let mut name = [0u8; NAME_ROOM];
    name[..path.len()].copy_from_slice(path);
    let Ok(fd) = sys::open(&name[..path.len() + 1], libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOFOLLOW, 0) else { return 0 };
    let crc = read_head(fd);
    sys::close(fd);
    crc
}

/// CRC of an open file's first 4 KiB, 0 if it cannot be read.
pub fn read_head(fd: i32) -> u32 {
    let mut head = [0u8; PAGE_BYTES];
    sys::pread(fd, &mut head, 0).map_or(0, |len| crc32c(0, &head[..len]))
}

/// The pages of a private mapping of a file that is gone, up to the file's end.
fn readable(line: &Line<'_>, extents: &mut [Extent], used: usize) -> Result<usize, Errno> {
    let memory = sys::open(b"/proc/self/mem\0", libc::O_RDONLY, 0)?;
    let present = |page: u64| sys::pread(memory, &mut [0u8; 1], line.start + page * PAGE) == Ok(1);
    let (mut low, mut high) = (0, (line.end - line.start) / PAGE);
    while low < high {
        let middle = low.midpoint(high);
        if present(middle) { low = middle + 1 } else { high = middle }
    }
    sys::close(memory);
    if low == 0 {
        return Ok(used);
    }
    *extents.get_mut(used).ok_or(Errno(libc::ENOSPC))? =
        Extent { start: line.start, end: line.start + low * PAGE, categories: WRITTEN };
    Ok(used + 1)
}

/// Bytes of the command line that an image's metadata have; of a longer one the memory has the rest.
const CMDLINE_ROOM: usize = 4096;

fn describe_process(tables: &Tables, out: &mut MetaWriter<'_>) {
    let (mut exe, mut cmdline) = ([0u8; NAME_ROOM], [0u8; CMDLINE_ROOM]);
    let exe = sys::readlink(b"/proc/self/exe\0", &mut exe).unwrap_or(b"");
    let len = sys::slurp(b"/proc/self/cmdline\0", &mut cmdline).unwrap_or(0);
    let personality = plain!(libc::SYS_personality, 0xffff_ffffu32).unwrap_or(0) as u32;
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
        let path =
            if fd.kind == Kind::LooseSocket { b"without a peer" } else { tables.text(fd.path).strip_suffix(&[0]).unwrap_or(b"") };
        out.descriptor(fd.fd as u32, fd.kind.name().as_bytes(), path, fd.position);
    }
    for note in tables.notes.split(|b| *b == 0).filter(|note| !note.is_empty()) {
        out.note(note);
    }
}
