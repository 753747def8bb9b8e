//! The metadata between header and runs: what the process consisted of. Written while the program is stopped, hence into a
//! buffer that exists already; read back into owned values, bounded by the metadata's own (bounded) length.
//!
//! A sequence of records `kind: u8, len: u32, payload`; unknown kinds are refused.

use serde::Serialize;

use super::format::{ADDRESS_END, FormatError};
use crate::page::PAGE;

/// What a region of memory is backed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backing {
    /// Private memory without a file.
    #[default]
    Anonymous,
    /// The same, growing downwards (the main thread's stack).
    Stack,
    /// A private mapping of a file that still exists: pages the program changed are in the image, the others in the file.
    PrivateFile,
    /// A shared mapping of a file that still exists.
    SharedFile,
    /// Shared memory of the process with itself (anonymous, memfd, deleted file): one object per `object` number.
    SharedObject,
    /// The kernel's vdso code.
    Vdso,
    /// The kernel's data for the vdso, first part.
    Vvar,
    /// The kernel's data for the vdso, virtual clocks.
    VvarClock,
}

const BACKINGS: [Backing; 8] = [
    Backing::Anonymous,
    Backing::Stack,
    Backing::PrivateFile,
    Backing::SharedFile,
    Backing::SharedObject,
    Backing::Vdso,
    Backing::Vvar,
    Backing::VvarClock,
];

/// Advice in force for a region (`madvise`), as bits.
pub mod advice {
    /// MADV_DONTDUMP.
    pub const DONT_DUMP: u8 = 1;
    /// MADV_DONTFORK.
    pub const DONT_FORK: u8 = 2;
    /// MADV_HUGEPAGE.
    pub const HUGE: u8 = 4;
    /// MADV_NOHUGEPAGE.
    pub const NO_HUGE: u8 = 8;
    /// MADV_WIPEONFORK.
    pub const WIPE_ON_FORK: u8 = 16;
    /// mlock.
    pub const LOCKED: u8 = 32;
    /// MAP_NORESERVE.
    pub const NO_RESERVE: u8 = 64;
}

/// Which file something was of, as the kernel has told it to the saved process: whether a file that has its name later may stand for it. All zero: it is not
/// known, or no file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileId {
    /// A number of the boot of the machine that this was on; 0: not known. The next two mean nothing on another one.
    pub boot: u64,
    /// Device.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// When it was made, in nanoseconds; 0: the file system does not say.
    pub born: u64,
    /// The device that the file names, if it is a device's.
    pub names: u64,
    /// The user that it belongs to.
    pub owner: u32,
    /// Its group.
    pub group: u32,
    /// Its kind and permissions (st_mode).
    pub mode: u32,
    /// How many names it has.
    pub links: u32,
}

impl FileId {
    /// Whether both are the very same file. An inode's number may be given anew: then the file is younger, or, where its age is not known, another user's
    /// perhaps.
    #[must_use]
    pub fn is(&self, other: &FileId) -> bool {
        let key = |file: &FileId| (file.boot, file.device, file.inode, file.born);
        self.boot != 0 && key(self) == key(other) && (self.born != 0 || self.owner == other.owner)
    }

    fn write(&self, out: &mut MetaWriter<'_>) {
        [self.boot, self.device, self.inode, self.born, self.names].iter().for_each(|word| out.put(&word.to_le_bytes()));
        [self.owner, self.group, self.mode, self.links].iter().for_each(|word| out.put(&word.to_le_bytes()));
    }

    fn read(input: &mut Input<'_>) -> Result<FileId, FormatError> {
        Ok(FileId {
            boot: input.u64()?,
            device: input.u64()?,
            inode: input.u64()?,
            born: input.u64()?,
            names: input.u64()?,
            owner: input.u32()?,
            group: input.u32()?,
            mode: input.u32()?,
            links: input.u32()?,
        })
    }
}

/// One region of memory. `path` is what the kernel calls it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionRef<'a> {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// PROT_READ (1), PROT_WRITE (2), PROT_EXEC (4).
    pub prot: u8,
    /// What it is backed by.
    pub backing: Backing,
    /// Bits of `advice`.
    pub advice: u8,
    /// Does the image hold pages of it?
    pub has_runs: bool,
    /// Offset in the file or object in bytes.
    pub offset: u64,
    /// For shared objects: which.
    pub object: u32,
    /// Size of the file or object in bytes.
    pub size: u64,
    /// CRC-32C of the file's first 4 KiB (which hold an ELF file's build id): tells another build of a library.
    pub head_crc: u32,
    /// Which file it is of.
    pub file: FileId,
    /// The file's name.
    pub path: &'a [u8],
}

/// The same, owned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// PROT_READ (1), PROT_WRITE (2), PROT_EXEC (4).
    pub prot: u8,
    /// What it is backed by.
    pub backing: Backing,
    /// Bits of `advice`.
    pub advice: u8,
    /// Does the image hold pages of it?
    pub has_runs: bool,
    /// Offset in the file or object in bytes.
    pub offset: u64,
    /// For shared objects: which.
    pub object: u32,
    /// Size of the file or object in bytes.
    pub size: u64,
    /// CRC-32C of the file's first 4 KiB.
    pub head_crc: u32,
    /// Which file it is of.
    pub file: FileId,
    /// The file's name; not UTF-8 of necessity.
    #[serde(serialize_with = "lossy")]
    pub path: Vec<u8>,
}

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Thread {
    /// Its id.
    pub tid: u32,
    /// Where it was.
    pub instruction: u64,
    /// Its stack pointer.
    pub stack: u64,
    /// Its name.
    #[serde(serialize_with = "lossy")]
    pub name: Vec<u8>,
}

/// One descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Descriptor {
    /// Its number.
    pub fd: u32,
    /// What it is, in a word.
    #[serde(serialize_with = "lossy")]
    pub kind: Vec<u8>,
    /// What the kernel calls it.
    #[serde(serialize_with = "lossy")]
    pub path: Vec<u8>,
    /// Position in bytes, where there is one.
    pub position: u64,
}

/// The process as a whole. Texts are arbitrary bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Its id in its own namespace.
    pub pid: u32,
    /// personality(2).
    pub personality: u32,
    /// CLOCK_MONOTONIC at the checkpoint, in nanoseconds.
    pub monotonic: u64,
    /// CLOCK_BOOTTIME at the checkpoint, in nanoseconds.
    pub boottime: u64,
    /// The program's file.
    #[serde(serialize_with = "lossy")]
    pub exe: Vec<u8>,
    /// Its arguments, each ended by a zero byte.
    #[serde(serialize_with = "lossy")]
    pub cmdline: Vec<u8>,
    /// The working directory.
    #[serde(serialize_with = "lossy")]
    pub cwd: Vec<u8>,
}

/// All metadata of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Meta {
    /// The process as a whole.
    pub process: Process,
    /// Its memory, ascending.
    pub regions: Vec<Region>,
    /// Its threads, the leader first.
    pub threads: Vec<Thread>,
    /// Its descriptors, ascending.
    pub descriptors: Vec<Descriptor>,
    /// What will not be as it was, in words.
    pub notes: Vec<String>,
}

fn lossy<S: serde::Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(bytes))
}

/// Upper bound of a name in bytes: PATH_MAX, and what " (deleted)" adds.
pub const MAX_NAME_BYTES: usize = 4096 + 16;
/// Upper bound of the saved command line in bytes; a longer one is cut (memory holds the whole).
pub const MAX_CMDLINE_BYTES: usize = 128 << 10;

const PROCESS: u8 = 1;
const REGION: u8 = 2;
const THREAD: u8 = 3;
const DESCRIPTOR: u8 = 4;
const NOTE: u8 = 5;

/// Writes metadata into a buffer. Running out of room is remembered, and found by `finish`.
pub struct MetaWriter<'a> {
    buffer: &'a mut [u8],
    at: usize,
    full: bool,
}

impl<'a> MetaWriter<'a> {
    /// Begins at the front of `buffer`.
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, at: 0, full: false }
    }

    fn put(&mut self, bytes: &[u8]) {
        match self.buffer.get_mut(self.at..self.at + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.at += bytes.len();
            }
            None => self.full = true,
        }
    }

    fn text(&mut self, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.put(&len.to_le_bytes());
        self.put(bytes);
    }

    fn record(&mut self, kind: u8, body: impl FnOnce(&mut Self)) {
        self.put(&[kind]);
        let length_at = self.at;
        self.put(&[0; 4]);
        body(self);
        if self.full {
            return;
        }
        let len = (self.at - length_at - 4) as u32;
        self.buffer[length_at..length_at + 4].copy_from_slice(&len.to_le_bytes());
    }

    /// Adds the process; exactly once, first.
    pub fn process(&mut self, pid: u32, personality: u32, clocks: (u64, u64), exe: &[u8], cmdline: &[u8], cwd: &[u8]) {
        self.record(PROCESS, |w| {
            w.put(&pid.to_le_bytes());
            w.put(&personality.to_le_bytes());
            w.put(&clocks.0.to_le_bytes());
            w.put(&clocks.1.to_le_bytes());
            w.text(exe);
            w.text(cmdline);
            w.text(cwd);
        });
    }

    /// Adds a region; ascending.
    pub fn region(&mut self, region: &RegionRef<'_>) {
        self.record(REGION, |w| {
            w.put(&region.start.to_le_bytes());
            w.put(&region.end.to_le_bytes());
            let backing = BACKINGS.iter().position(|b| *b == region.backing).unwrap_or(0) as u8;
            w.put(&[region.prot, backing, region.advice, u8::from(region.has_runs)]);
            w.put(&region.offset.to_le_bytes());
            w.put(&region.object.to_le_bytes());
            w.put(&region.size.to_le_bytes());
            w.put(&region.head_crc.to_le_bytes());
            region.file.write(w);
            w.text(region.path);
        });
    }

    /// Adds a thread.
    pub fn thread(&mut self, tid: u32, instruction: u64, stack: u64, name: &[u8]) {
        self.record(THREAD, |w| {
            w.put(&tid.to_le_bytes());
            w.put(&instruction.to_le_bytes());
            w.put(&stack.to_le_bytes());
            w.text(name);
        });
    }

    /// Adds a descriptor; ascending.
    pub fn descriptor(&mut self, fd: u32, kind: &[u8], path: &[u8], position: u64) {
        self.record(DESCRIPTOR, |w| {
            w.put(&fd.to_le_bytes());
            w.put(&position.to_le_bytes());
            w.text(kind);
            w.text(path);
        });
    }

    /// Adds a note.
    pub fn note(&mut self, text: &[u8]) {
        self.record(NOTE, |w| w.put(text));
    }

    /// How many bytes were written; an error if the buffer was too small.
    pub fn finish(self) -> Result<usize, FormatError> {
        if self.full { Err(FormatError::TooLong("the metadata")) } else { Ok(self.at) }
    }
}

struct Input<'a>(&'a [u8]);

const SHORT: FormatError = FormatError::Invalid("the metadata ends within a record");

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(SHORT)?;
        self.0 = tail;
        Ok(head)
    }

    fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.take(1)?[0])
    }

    fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().map_err(|_| SHORT)?))
    }

    fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| SHORT)?))
    }

    fn text(&mut self, limit: usize) -> Result<Vec<u8>, FormatError> {
        let len = self.u32()? as usize;
        if len > limit {
            return Err(FormatError::TooLong("a name"));
        }
        Ok(self.take(len)?.to_vec())
    }
}

impl Meta {
    /// Reads metadata back. Allocates at most a small multiple of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut input = Input(bytes);
        let mut meta = Self::default();
        let mut processes = 0;
        while !input.0.is_empty() {
            let kind = input.u8()?;
            let len = input.u32()? as usize;
            let mut body = Input(input.take(len)?);
            match kind {
                PROCESS => {
                    processes += 1;
                    meta.process = process(&mut body)?;
                }
                REGION => meta.regions.push(region(&mut body)?),
                THREAD => meta.threads.push(thread(&mut body)?),
                DESCRIPTOR => meta.descriptors.push(descriptor(&mut body)?),
                NOTE => meta.notes.push(String::from_utf8_lossy(body.take(len)?).into_owned()),
                _ => return Err(FormatError::Invalid("the metadata has a record of an unknown kind")),
            }
            if !body.0.is_empty() {
                return Err(FormatError::Invalid("a record of the metadata is too long"));
            }
        }
        if processes != 1 || meta.threads.is_empty() || meta.regions.is_empty() {
            return Err(FormatError::Invalid("the metadata does not describe one process with threads and memory"));
        }
        if meta.regions.windows(2).any(|pair| pair[0].end > pair[1].start) {
            return Err(FormatError::Invalid("regions overlap or are out of order"));
        }
        Ok(meta)
    }

    /// The region that holds all of `addr..addr + len`, if one does.
    #[must_use]
    pub fn region_of(&self, addr: u64, len: u64) -> Option<&Region> {
        let after = self.regions.partition_point(|r| r.start <= addr);
        let region = &self.regions[after.checked_sub(1)?];
        (addr.checked_add(len)? <= region.end).then_some(region)
    }
}

fn process(body: &mut Input<'_>) -> Result<Process, FormatError> {
    Ok(Process {
        pid: body.u32()?,
        personality: body.u32()?,
        monotonic: body.u64()?,
        boottime: body.u64()?,
        exe: body.text(MAX_NAME_BYTES)?,
        cmdline: body.text(MAX_CMDLINE_BYTES)?,
        cwd: body.text(MAX_NAME_BYTES)?,
    })
}

fn region(body: &mut Input<'_>) -> Result<Region, FormatError> {
    let (start, end) = (body.u64()?, body.u64()?);
    let (prot, backing, advice, has_runs) = (body.u8()?, body.u8()?, body.u8()?, body.u8()?);
    let region = Region {
        start,
        end,
        prot,
        backing: *BACKINGS.get(backing as usize).ok_or(FormatError::Invalid("a region is backed by something unknown"))?,
        advice,
        has_runs: has_runs == 1,
        offset: body.u64()?,
        object: body.u32()?,
        size: body.u64()?,
        head_crc: body.u32()?,
        file: FileId::read(body)?,
        path: body.text(MAX_NAME_BYTES)?,
    };
    if start >= end || end > ADDRESS_END || !start.is_multiple_of(PAGE) || !end.is_multiple_of(PAGE) {
        return Err(FormatError::Invalid("a region is empty or lies outside the address space"));
    }
    if prot > 7 || has_runs > 1 || !region.offset.is_multiple_of(PAGE) || region.path.contains(&0) {
        return Err(FormatError::Invalid("a region has properties that no region can have"));
    }
    Ok(region)
}

fn thread(body: &mut Input<'_>) -> Result<Thread, FormatError> {
    Ok(Thread { tid: body.u32()?, instruction: body.u64()?, stack: body.u64()?, name: body.text(MAX_NAME_BYTES)? })
}

fn descriptor(body: &mut Input<'_>) -> Result<Descriptor, FormatError> {
    let (fd, position) = (body.u32()?, body.u64()?);
    Ok(Descriptor { fd, position, kind: body.text(MAX_NAME_BYTES)?, path: body.text(MAX_NAME_BYTES)? })
}
