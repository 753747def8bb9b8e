//! What the library's constructor does: prepares a program for checkpoints, or turns the process into a restored one. Ordinary
//! code, before `main`: the only thread, libc and allocation allowed.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use crate::arena;
use crate::build;
use crate::counter::is_counter_trapped;
use crate::files::Fault;
use crate::image::format::HEADER_BYTES;
use crate::image::meta::{Backing, Region};
use crate::image::{Reader, meta};
use crate::maps::{self, Line};
use crate::page::PAGE;
use crate::plan::{
    self, MAX_OBJECTS, MAX_OWNERS, MAX_REGIONS, Object, Owner, PATH_BYTES, PLAN_BASE, PLAN_SPAN, Plan, PlanRegion, RESTORER_BASE,
    RESTORER_SPAN, Special,
};
use crate::sys::{self, Errno, call};
use crate::{crc::crc32c, describe, files, identity, output, rseq, save, serve, sigaction, stop};

pub use crate::counter::trap_counter;

/// Names the descriptor of an image, already verified, in the environment of a process that is to become what it holds.
pub const RESTORE_VARIABLE: &str = "RADIC_CKPT_RESTORE";

/// Set in the environment of a restored process that is to change no file: it gets copies, without a name, of those it could write to.
pub const ALONE_VARIABLE: &str = "RADIC_CKPT_ALONE";

/// Names the launcher of a process that is to be restored: 16 hexadecimal digits, which [`launcher`](crate::launcher) gives the restored process.
pub const LAUNCHER_VARIABLE: &str = "RADIC_CKPT_LAUNCHER";

/// Names the file for the report of a restored process that dies before it lives again ([`settled`](crate::settled)). It must not be there yet.
pub const DEATH_VARIABLE: &str = "RADIC_CKPT_DEATH";

/// Says whom the files belong to that the process had open, as its launcher sees it: device, inode, user and group of each, hexadecimal. The process itself may
/// see them from a user namespace of its own, in which other users have no number.
pub const OWNERS_VARIABLE: &str = "RADIC_CKPT_OWNERS";

static RESTORER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/restorer"));

/// To be called once, by the library's constructor: reserves the engine's memory and installs the signal's handler. In a process
/// that is to be restored it does not return.
pub fn constructor() -> Result<(), String> {
    if !std::arch::is_x86_feature_detected!("sse4.2") {
        return Err("this processor has no SSE 4.2".into());
    }
    let image = std::env::var_os(RESTORE_VARIABLE);
    // Requesters take a process with a handler and with the engine's memory for one that can be asked (control::has_library). While the handler
    // is glibc's, the signal waits; and in a process that becomes another one, glibc's never comes.
    if image.is_none() {
        settle_glibc();
        mask(libc::SIG_BLOCK);
    }
    arena::reserve().map_err(|e| format!("the engine's memory cannot be reserved: error {}", e.0))?;
    let maps = std::fs::read("/proc/self/maps").map_err(|e| format!("/proc/self/maps: {e}"))?;
    let lines: Vec<_> = maps::lines(&maps).filter_map(maps::parse).collect();
    identity::learn(build::build(constructor as *const (), &lines)?, vdso(&lines));
    rseq::learn();
    files::learn_boot();
    if let Some(fd) = image {
        let fd = fd.to_str().and_then(|fd| fd.parse().ok()).ok_or(format!("{RESTORE_VARIABLE} is not a descriptor"))?;
        return restore(fd, &lines);
    }
    output::prepare();
    stop::install(stop::Work { called: save::called, asked: serve::serve, nudged: save::nudged })
        .map_err(|e| format!("the signal's handler cannot be installed: error {}", e.0))?;
    mask(libc::SIG_UNBLOCK);
    // A thread's first descriptor above the present table makes the kernel copy it while all threads wait: do it now.
    if let Ok(high) = sys::fcntl(2, libc::F_DUPFD_CLOEXEC, identity::HIGH_FD as usize) {
        sys::close(high as i32);
    }
    Ok(())
}

/// Blocks (SIG_BLOCK) or unblocks (SIG_UNBLOCK) our signal for the calling thread. Blocked, it waits, and goes on waiting over exec: a
/// program has no handler of it until its library's constructor has run, and would be ended by it.
pub fn mask(how: i32) {
    sys::mask_signals(how, 1 << (sigaction::SIGNAL - 1));
}

/// Before the calling thread executes another program: our signal waits, and the counter may be read. The kernel would keep its trap over exec, and the other
/// program has no handler of it; already its linker reads the time. What is to be handed to [`after_exec`].
pub fn before_exec() -> bool {
    mask(libc::SIG_BLOCK);
    let trapped = is_counter_trapped();
    if trapped {
        trap_counter(false);
    }
    trapped
}

/// There was no exec.
pub fn after_exec(trapped: bool) {
    if trapped {
        trap_counter(true);
    }
    mask(libc::SIG_UNBLOCK);
}

/// glibc installs its own handler of our signal at the first pthread_create: let it do that before us.
fn settle_glibc() {
    extern "C" fn nothing(argument: *mut libc::c_void) -> *mut libc::c_void {
        argument
    }
    let mut thread = 0;
    // SAFETY: the function is sound, the thread is joined.
    unsafe {
        if libc::pthread_create(&raw mut thread, std::ptr::null(), nothing, std::ptr::null_mut()) == 0 {
            libc::pthread_join(thread, std::ptr::null_mut());
        }
    }
}

fn vdso(lines: &[Line<'_>]) -> &'static [u8] {
    lines.iter().find(|l| l.path == b"[vdso]").map_or(&[], |l| {
        // SAFETY: the kernel's mapping is there for the life of the process.
        unsafe { std::slice::from_raw_parts(l.start as *const u8, (l.end - l.start) as usize) }
    })
}

fn restore(fd: i32, lines: &[Line<'_>]) -> Result<(), String> {
    // SAFETY: the descriptor was made for us; whether it is one, reading will tell.
    let image = unsafe { File::from_raw_fd(fd) };
    let reader = Reader::begin(&image).map_err(|e| e.to_string())?;
    let (header, image_meta) = (reader.header, reader.meta);
    if let Some(reason) = identity::misfit(&header, &identity::header()) {
        return Err(format!("the image does not fit here: {reason}"));
    }
    raise_descriptor_limit();
    let above = image_meta.descriptors.iter().map(|d| d.fd).max().unwrap_or(0).max(2) as i32 + 1;
    let alone = std::env::var_os(ALONE_VARIABLE).is_some();
    let mut files = Files { above, alone, owners: owners()?, by_path: HashMap::new(), objects: Vec::new() };
    let regions = regions(&image_meta, &mut files)?;
    let specials = specials(&image_meta, lines)?;
    let mut owners = [Owner::default(); MAX_OWNERS];
    owners.get_mut(..files.owners.len()).ok_or(format!("{OWNERS_VARIABLE} names too many files"))?.copy_from_slice(&files.owners);
    let mut objects = [Object::default(); MAX_OBJECTS];
    objects.get_mut(..files.objects.len()).ok_or("too many shared objects")?.copy_from_slice(&files.objects);
    let plan = Plan {
        image_fd: lift(image.as_raw_fd(), above)?,
        regions: regions.len() as u32,
        bytes_before: HEADER_BYTES as u64 + u64::from(header.meta_len),
        crc_before: crc32c(0, &header.encode()),
        objects_used: files.objects.len() as u32,
        alone: u32::from(alone),
        launcher: launcher()?,
        death: death()?,
        entry: header.entry,
        stack: header.stack,
        specials,
        objects,
        owners_used: files.owners.len() as u32,
        owners,
    };
    leave(plan, &regions)
}

fn owners() -> Result<Vec<Owner>, String> {
    let Some(text) = std::env::var_os(OWNERS_VARIABLE) else { return Ok(Vec::new()) };
    let words = text.as_bytes().split(|byte| *byte == b',').filter(|word| !word.is_empty());
    let owners = words.map(|word| {
        let mut numbers =
            word.split(|byte| *byte == b':').map(|number| u64::from_str_radix(str::from_utf8(number).ok()?, 16).ok());
        let mut next = || numbers.next().flatten();
        Some(Owner { device: next()?, inode: next()?, owner: next()? as u32, group: next()? as u32 })
    });
    owners.collect::<Option<_>>().ok_or(format!("{OWNERS_VARIABLE} is no list of files and their owners"))
}

/// What [`OWNERS_VARIABLE`] says of these files: whom they belong to. Those that are not there, and those for which there is no room, are left out.
pub(crate) fn owners_of<'a>(paths: impl Iterator<Item = &'a [u8]>) -> String {
    let mut seen = HashSet::new();
    let files =
        paths.filter(|path| seen.insert(*path)).filter_map(|path| std::fs::symlink_metadata(OsStr::from_bytes(path)).ok());
    let word = |file: Metadata| format!("{:x}:{:x}:{:x}:{:x},", file.dev(), file.ino(), file.uid(), file.gid());
    files.map(word).take(MAX_OWNERS).collect()
}

fn launcher() -> Result<u64, String> {
    let Some(digits) = std::env::var_os(LAUNCHER_VARIABLE) else { return Ok(0) };
    let number = digits.to_str().and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.ok_or(format!("{LAUNCHER_VARIABLE} is not a hexadecimal number"))
}

fn death() -> Result<[u8; PATH_BYTES], String> {
    let mut path = [0; PATH_BYTES];
    if let Some(given) = std::env::var_os(DEATH_VARIABLE) {
        let given = given.as_bytes();
        let room = path[..PATH_BYTES - 1].get_mut(..given.len()).filter(|_| given.starts_with(b"/"));
        // The process has another working directory when it needs it.
        room.ok_or(format!("{DEATH_VARIABLE} is no absolute path of fewer than {PATH_BYTES} bytes"))?.copy_from_slice(given);
    }
    Ok(path)
}

/// The descriptors of a restart come behind those of the program, which may reach up to its limit.
fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one limit is read and written.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
}

fn lift(fd: i32, above: i32) -> Result<i32, String> {
    sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, above as usize)
        .map(|fd| fd as i32)
        .map_err(|e| format!("no free descriptor: error {}", e.0))
}

struct Files {
    above: i32,
    /// Files that are mapped shared become copies without a name.
    alone: bool,
    /// Whom files belong to, as the launcher has seen it.
    owners: Vec<Owner>,
    by_path: HashMap<(Vec<u8>, bool), i32>,
    objects: Vec<Object>,
}

impl Files {
    /// Opens a mapped file, after making sure that it is the one that was mapped.
    fn open(&mut self, region: &Region) -> Result<i32, String> {
        let writable = region.backing == Backing::SharedFile && region.prot & 2 != 0;
        let key = (region.path.clone(), writable);
        if let Some(fd) = self.by_path.get(&key) {
            return Ok(*fd);
        }
        if self.alone && region.backing == Backing::SharedFile {
            let copy = self.copy(region)?;
            self.by_path.insert(key, copy);
            return Ok(copy);
        }
        let path = OsStr::from_bytes(&region.path);
        let file = match self.open_again(region, writable) {
            // What was mapped of it comes with the image: memory in a file under /dev/shm died with the machine, or was cleared away.
            Err(Fault::Error(Errno(libc::ENOENT))) if writable => {
                File::options().read(true).write(true).create_new(true).mode(0o600).open(path).map_err(|error| error.to_string())
            }
            opened => opened.map_err(|fault| fault.to_string()),
        };
        let file = file.map_err(|why| format!("{}: the program maps this file: {why}", path.display()))?;
        let size = file.metadata().map_err(|e| e.to_string())?.len();
        let known = region.head_crc != 0 && region.backing == Backing::PrivateFile;
        if known && describe::read_head(file.as_raw_fd()) != region.head_crc {
            return Err(format!("{}: the program maps this file, and it is another one now", path.display()));
        }
        if known && size != region.size {
            return Err(format!("{}: the program maps this file, and its size has changed", path.display()));
        }
        if writable && size < region.size {
            file.set_len(region.size).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        let fd = lift(file.as_raw_fd(), self.above)?;
        self.by_path.insert(key, fd);
        Ok(fd)
    }

    fn open_again(&self, region: &Region, writable: bool) -> Result<File, Fault> {
        let path = [&region.path[..], b"\0"].concat();
        let flags = if writable { libc::O_RDWR } else { libc::O_RDONLY };
        let fd = files::open_again(&path, &region.file, flags, &self.owners)?;
        // SAFETY: just opened, and owned by nothing else.
        Ok(unsafe { File::from_raw_fd(fd) })
    }

    /// Memory in the place of a file that is mapped shared. What the program had of it comes with the image.
    fn copy(&self, region: &Region) -> Result<i32, String> {
        let memfd = sys::memory_file().map_err(|e| format!("memfd_create: error {}", e.0))?;
        // SAFETY: just made.
        let memfd = unsafe { File::from_raw_fd(memfd) };
        memfd.set_len(region.size).map_err(|e| format!("a copy of {}: {e}", OsStr::from_bytes(&region.path).display()))?;
        lift(memfd.as_raw_fd(), self.above)
    }

    /// The new object for a shared mapping, large enough for it.
    fn object(&mut self, region: &Region) -> Result<i32, String> {
        let size = region.offset.saturating_add(region.end - region.start);
        let known = self.objects.iter().find(|o| o.number == region.object).map(|o| o.fd);
        let fd = match known {
            Some(fd) => fd,
            None => {
                let memfd = sys::memory_file().map_err(|e| format!("memfd_create: error {}", e.0))?;
                // SAFETY: just made.
                let memfd = unsafe { File::from_raw_fd(memfd) };
                let fd = lift(memfd.as_raw_fd(), self.above)?;
                self.objects.push(Object { number: region.object, fd });
                fd
            }
        };
        // SAFETY: only borrowed: into_raw_fd gives it back.
        let file = unsafe { File::from_raw_fd(fd) };
        let grown = match file.metadata() {
            Ok(data) if data.len() < size => file.set_len(size),
            other => other.map(drop),
        };
        let _ = file.into_raw_fd();
        grown.map_err(|e| format!("shared memory: {e}"))?;
        Ok(fd)
    }
}

/// What to map; checked so that no region touches the restorer.
fn regions(image: &meta::Meta, files: &mut Files) -> Result<Vec<PlanRegion>, String> {
    let mut out = Vec::new();
    for region in &image.regions {
        if region.start < RESTORER_BASE + RESTORER_SPAN && region.end > RESTORER_BASE {
            return Err("the image is hostile: a region lies in the restorer".into());
        }
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let (flags, fd) = match region.backing {
            Backing::Vdso | Backing::Vvar | Backing::VvarClock => continue,
            Backing::Stack => (private | libc::MAP_GROWSDOWN, -1),
            Backing::Anonymous if region.advice & meta::advice::NO_RESERVE != 0 => (private | libc::MAP_NORESERVE, -1),
            Backing::Anonymous => (private, -1),
            Backing::PrivateFile => (libc::MAP_PRIVATE, files.open(region)?),
            Backing::SharedFile => (libc::MAP_SHARED, files.open(region)?),
            Backing::SharedObject => (libc::MAP_SHARED, files.object(region)?),
        };
        out.push(PlanRegion {
            start: region.start,
            len: region.end - region.start,
            prot: u32::from(region.prot),
            flags: flags as u32,
            fd,
            filled: u16::from(region.has_runs),
            advice: u16::from(region.advice),
            offset: if fd < 0 { 0 } else { region.offset },
        });
    }
    if out.len() > MAX_REGIONS {
        return Err("the image has more regions than a process may have".into());
    }
    Ok(out)
}

/// The kernel's mappings, where they are and where they have to go.
fn specials(image: &meta::Meta, lines: &[Line<'_>]) -> Result<[Special; 3], String> {
    let mut out = [Special::default(); 3];
    let kinds: [(Backing, &[u8]); 3] =
        [(Backing::Vvar, b"[vvar]"), (Backing::VvarClock, b"[vvar_vclock]"), (Backing::Vdso, b"[vdso]")];
    for (special, (backing, name)) in out.iter_mut().zip(kinds) {
        let then = image.regions.iter().find(|r| r.backing == backing).map(|r| (r.start, r.end - r.start));
        let now = lines.iter().find(|l| l.path == name).map(|l| (l.start, l.end - l.start));
        *special = match (then, now) {
            (Some((to, len)), Some((from, same))) if len == same && len <= plan::ASIDE_SPAN => Special { from, to, len },
            (None, None) => Special::default(),
            _ => return Err("the image was made under a kernel with another vdso".into()),
        };
    }
    Ok(out)
}

/// Loads the restorer and jumps to it: the point of no return.
fn leave(plan: Plan, regions: &[PlanRegion]) -> Result<(), String> {
    assert!(size_of::<Plan>() + size_of_val(regions) <= PLAN_SPAN as usize, "the number of regions is bounded");
    let entry = load_restorer()?;
    let spans = [(PLAN_BASE, PLAN_SPAN), (plan::STACK_TOP - plan::STACK_SPAN, plan::STACK_SPAN)];
    for (base, span) in spans {
        map_own(base, span, libc::PROT_READ | libc::PROT_WRITE)?;
    }
    sys::mask_signals(libc::SIG_BLOCK, u64::MAX);
    // SAFETY: the plan's memory was just mapped, and nothing else is in it. This process is given up: the restorer uses nothing of it.
    unsafe {
        let to = PLAN_BASE as *mut Plan;
        to.write(plan);
        std::ptr::copy_nonoverlapping(regions.as_ptr(), to.add(1).cast(), regions.len());
        // The kernel would go on writing to this process's area, where other memory will be.
        let _ = rseq::leave();
        let _ = call!(libc::SYS_set_robust_list, 0, 24);
        let _ = call!(libc::SYS_set_tid_address, 0);
        std::arch::asm!("mov rsp, {stack}", "jmp {entry}", stack = in(reg) plan::STACK_TOP, entry = in(reg) entry,
            in("rdi") to, options(noreturn));
    }
}

fn map_own(base: u64, span: u64, prot: i32) -> Result<(), String> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the constructor reserved the range for this.
    unsafe { sys::mmap(base, span, prot, flags, -1, 0) }.map(drop).map_err(|e| format!("the restorer's memory: error {}", e.0))
}

/// Maps the restorer's segments; gives its entry. The bytes are our own build's: what does not fit is a bug.
fn load_restorer() -> Result<u64, String> {
    let word = |at: usize| u64::from_le_bytes(*RESTORER[at..].first_chunk().expect("build.rs makes a whole ELF file"));
    let (entry, table, count) = (word(24), word(32) as usize, usize::from(RESTORER[56]));
    for header in (0..count).map(|i| table + 56 * i).filter(|at| RESTORER[*at] == 1) {
        let flags = RESTORER[header + 4];
        let (offset, addr, in_file, in_memory) =
            (word(header + 8) as usize, word(header + 16), word(header + 32) as usize, word(header + 40));
        assert!(addr >= RESTORER_BASE && addr + in_memory < PLAN_BASE, "layout.ld puts it below the plan");
        map_own(addr & !(PAGE - 1), in_memory.next_multiple_of(PAGE), libc::PROT_READ | libc::PROT_WRITE)?;
        // SAFETY: just mapped, large enough.
        unsafe {
            std::ptr::copy_nonoverlapping(RESTORER[offset..].as_ptr(), addr as *mut u8, in_file);
            let prot = if flags & 1 != 0 { libc::PROT_READ | libc::PROT_EXEC } else { libc::PROT_READ | libc::PROT_WRITE };
            call!(libc::SYS_mprotect, addr & !(PAGE - 1), in_memory.next_multiple_of(PAGE), prot)
                .map_err(|e| format!("the restorer's memory: error {}", e.0))?;
        }
    }
    Ok(entry)
}
