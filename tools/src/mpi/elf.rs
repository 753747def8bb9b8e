//! The few facts about an ELF file that the dynamic loader goes by, read with bounds: the file may be anything.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;
use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};
use object::{Endianness, FileKind};

/// Largest piece of a file that is read at once, in bytes. Program headers and dynamic sections are a few KiB.
const PIECE: u64 = 1 << 20;
/// Largest string table that is searched, in bytes.
const STRINGS: u64 = 64 << 20;
/// Most libraries that a file may need.
const NEEDED: usize = 4096;

/// What kind of file a path leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// `#!` and the interpreter.
    Script(String),
    /// An ELF file.
    Elf(Elf),
    /// Something else.
    Other,
}

/// What the loader goes by.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Elf {
    /// Class and machine: a library of another kind is passed over.
    pub(super) kind: (FileKind, u16),
    /// Whether it asks for a loader: an executable that does not is static.
    pub(super) has_interpreter: bool,
    /// DT_NEEDED, in order.
    pub(super) needed: Vec<String>,
    /// DT_RPATH, unless there is a DT_RUNPATH, as the loader sees it.
    pub(super) rpath: Option<String>,
    /// DT_RUNPATH.
    pub(super) runpath: Option<String>,
    /// Where the string table is in the file.
    strings: Range<u64>,
}

/// A file that cannot be read for what it is.
fn malformed(path: &Path, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: not a proper ELF file: {what}", path.display()))
}

/// Reads what kind of program `path` is. Fails if it cannot be read, or is a broken ELF file.
pub(super) fn read(path: &Path) -> io::Result<Program> {
    // Without O_NONBLOCK, opening a named pipe waits for a process that writes to it.
    let mut file = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(Program::Other); // A pipe or a device would keep us waiting, too.
    }
    let mut start = Vec::new();
    file.by_ref().take(256).read_to_end(&mut start)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = line.split(|&c| c == b'\n').next().unwrap_or_default();
        return Ok(Program::Script(String::from_utf8_lossy(line).trim().to_owned()));
    }
    let cache = ReadCache::new(file);
    let data = Bounded { file: &cache, limit: PIECE };
    match FileKind::parse(start.as_slice()) {
        Ok(FileKind::Elf64) => read_elf::<elf::FileHeader64<Endianness>, _>(data, FileKind::Elf64),
        Ok(FileKind::Elf32) => read_elf::<elf::FileHeader32<Endianness>, _>(data, FileKind::Elf32),
        _ => return Ok(Program::Other),
    }
    .map(Program::Elf)
    .map_err(|what| malformed(path, &what))
}

/// Whether the dynamic string table of the ELF file `path` has a name that starts with `prefix`.
pub(super) fn has_name(path: &Path, elf: &Elf, prefix: &str) -> io::Result<bool> {
    let file = File::open(path)?;
    let cache = ReadCache::new(file);
    let size = elf.strings.end - elf.strings.start;
    if size > STRINGS {
        return Err(malformed(path, "its string table is too long"));
    }
    let table = (&cache).read_bytes_at(elf.strings.start, size).map_err(|()| malformed(path, "its string table is cut off"))?;
    Ok(table.split(|&c| c == 0).any(|name| name.starts_with(prefix.as_bytes())))
}

/// A file of which no piece over a limit is read, whatever its headers claim.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounded<'a> {
    /// The file.
    pub(crate) file: &'a ReadCache<File>,
    /// Largest piece that is read at once, in bytes.
    pub(crate) limit: u64,
}

impl<'a> ReadRef<'a> for Bounded<'a> {
    fn len(self) -> Result<u64, ()> {
        self.file.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        if size > self.limit { Err(()) } else { self.file.read_bytes_at(offset, size) }
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        self.file.read_bytes_at_until(range, delimiter) // It stops after 4 KiB.
    }
}

fn read_elf<'a, H, R>(data: R, kind: FileKind) -> Result<Elf, String>
where
    H: FileHeader<Endian = Endianness>,
    R: ReadRef<'a>,
{
    let text = |e: object::Error| e.to_string();
    let header = H::parse(data).map_err(text)?;
    let endian = header.endian().map_err(text)?;
    let segments = header.program_headers(endian, data).map_err(text)?;
    let mut elf = Elf {
        kind: (kind, header.e_machine(endian).0),
        has_interpreter: segments.iter().any(|s| s.p_type(endian) == elf::PT_INTERP),
        needed: Vec::new(),
        rpath: None,
        runpath: None,
        strings: 0..0,
    };
    let dynamic = segments.iter().find_map(|s| s.dynamic(endian, data).transpose()).transpose().map_err(text)?;
    let Some(dynamic) = dynamic else { return Ok(elf) };
    let entries: Vec<_> =
        dynamic.iter().map(|d| (d.tag(endian), d.val(endian))).take_while(|(tag, _)| *tag != elf::DT_NULL).collect();
    let value = |wanted| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
    let (Some(address), Some(size)) = (value(elf::DT_STRTAB), value(elf::DT_STRSZ)) else { return Ok(elf) };
    let place = segments.iter().filter(|s| s.p_type(endian) == elf::PT_LOAD).find_map(|s| {
        let (start, length): (u64, u64) = (s.p_vaddr(endian).into(), s.p_filesz(endian).into());
        let within = address.checked_sub(start).filter(|within| *within < length)?;
        let offset: u64 = s.p_offset(endian).into();
        offset.checked_add(within)
    });
    let start = place.ok_or("its string table is nowhere in the file")?;
    elf.strings = start..start.checked_add(size).ok_or("its string table has no end")?;
    let string = |at: u64| -> Result<String, String> {
        let from =
            elf.strings.start.checked_add(at).filter(|from| *from < elf.strings.end).ok_or("a name beyond its string table")?;
        let bytes = data.read_bytes_at_until(from..elf.strings.end, 0).map_err(|()| "a name without an end")?;
        String::from_utf8(bytes.to_vec()).map_err(|_| "a name that is not text".to_owned())
    };
    for (_, value) in entries.iter().filter(|(tag, _)| *tag == elf::DT_NEEDED) {
        if elf.needed.len() == NEEDED {
            return Err("it needs too many libraries".to_owned());
        }
        elf.needed.push(string(*value)?);
    }
    elf.runpath = value(elf::DT_RUNPATH).map(&string).transpose()?;
    elf.rpath = value(elf::DT_RPATH).filter(|_| elf.runpath.is_none()).map(&string).transpose()?;
    Ok(elf)
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;

    use super::*;

    /// A named pipe is no program, and asking what it is does not wait for a writer.
    #[test]
    fn a_named_pipe_keeps_nobody_waiting() {
        let home = tempfile::tempdir().unwrap();
        let pipe = home.path().join("libmpi.so.12");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        assert_eq!(read(&pipe).unwrap(), Program::Other);
    }
}
