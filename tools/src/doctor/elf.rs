//! What an ELF file says about how it will be loaded and what it will call, read with bounds: the file may be anything.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;
use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader, Sym};
use object::read::{ReadCache, ReadRef};
use object::{Endianness, FileKind};

use crate::mpi::elf::Bounded;

/// Largest piece of a file that is read at once, in bytes: the symbols of the largest libraries are a few MiB.
const PIECE: u64 = 64 << 20;
/// Longest name that is looked at, in bytes.
const NAME: usize = 4096;
/// Longest name of a function that matters here, in bytes: the cost of a file whose names never end stays small.
const SYMBOL: usize = 64;
/// Most libraries that a file may need.
const NEEDED: usize = 1024;
/// How much of the beginning of a file the kernel looks at, in bytes.
const START: u64 = 256;

/// What the kernel would take a file for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Executable {
    /// `#!` and the rest of that line.
    Script(String),
    /// A 64-bit x86-64 ELF file.
    Elf(Elf),
    /// An ELF file for another kind of processor: class and machine number.
    Foreign(FileKind, u16),
    /// No file that can be executed.
    Other,
}

/// What the loader goes by.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Elf {
    /// Whether it is a program or a shared library, not an object file or a core dump.
    pub(super) is_loadable: bool,
    /// PT_INTERP: the loader.
    pub(super) interpreter: Option<String>,
    /// DT_NEEDED, in order.
    pub(super) needed: Vec<String>,
    /// DT_RPATH, which counts unless there is a DT_RUNPATH.
    pub(super) rpath: Option<String>,
    /// DT_RUNPATH.
    pub(super) runpath: Option<String>,
    /// The functions of [`read`]'s `watched` that it imports; none if it has no section headers that tell.
    pub(super) imports: Option<Vec<String>>,
}

/// Reads what `path` is, and which imports `watched` holds for. Fails if it cannot be read, or is a broken ELF file.
pub(super) fn read(path: &Path, watched: impl Fn(&str) -> bool) -> io::Result<Executable> {
    if !fs::metadata(path)?.is_file() {
        return Ok(Executable::Other);
    }
    // Should a pipe have taken its place by now, it does not keep us waiting.
    let mut file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let mut start = Vec::new();
    file.by_ref().take(START).read_to_end(&mut start)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = line.split(|&c| c == b'\n').next().unwrap_or_default();
        return Ok(Executable::Script(String::from_utf8_lossy(line).trim_matches([' ', '\t']).to_owned()));
    }
    let kind = match FileKind::parse(start.as_slice()) {
        Ok(kind @ (FileKind::Elf64 | FileKind::Elf32)) if start.len() >= 20 => kind,
        _ if start.starts_with(&elf::ELFMAG) => return Err(malformed("its header is cut off or of an unknown kind")),
        _ => return Ok(Executable::Other),
    };
    let machine = [start[18], start[19]];
    let little = start[5] == elf::ELFDATA2LSB.0;
    let machine = if little { u16::from_le_bytes(machine) } else { u16::from_be_bytes(machine) };
    if kind != FileKind::Elf64 || machine != elf::EM_X86_64.0 || !little {
        return Ok(Executable::Foreign(kind, machine));
    }
    let cache = ReadCache::new(file);
    read_elf(Bounded { file: &cache, limit: PIECE }, watched).map(Executable::Elf).map_err(|what| malformed(&what))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a proper ELF file: {what}"))
}

fn text(error: object::Error) -> String {
    error.to_string()
}

fn read_elf(data: Bounded<'_>, watched: impl Fn(&str) -> bool) -> Result<Elf, String> {
    let header = FileHeader64::<Endianness>::parse(data).map_err(text)?;
    let endian = header.endian().map_err(text)?;
    let segments = header.program_headers(endian, data).map_err(text)?;
    let kind = header.e_type(endian);
    let mut found = Elf { is_loadable: kind == elf::ET_EXEC || kind == elf::ET_DYN, ..Elf::default() };
    if let Some(segment) = segments.iter().find(|s| s.p_type(endian) == elf::PT_INTERP) {
        if segment.p_filesz(endian) > NAME as u64 {
            return Err("the name of its loader is too long".into());
        }
        let name = segment.interpreter(endian, data).map_err(text)?.unwrap_or_default();
        found.interpreter = Some(owned(name)?);
    }
    found.imports = imports(header, endian, data, watched)?;
    let Some(dynamic) = segments.iter().find_map(|s| s.dynamic(endian, data).transpose()).transpose().map_err(text)? else {
        return Ok(found);
    };
    let entries: Vec<_> =
        dynamic.iter().map(|d| (d.tag(endian), d.val(endian))).take_while(|(tag, _)| *tag != elf::DT_NULL).collect();
    let value = |wanted| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
    let (Some(address), Some(size)) = (value(elf::DT_STRTAB), value(elf::DT_STRSZ)) else { return Ok(found) };
    let place = segments.iter().filter(|s| s.p_type(endian) == elf::PT_LOAD).find_map(|s| {
        let within = address.checked_sub(s.p_vaddr(endian)).filter(|within| *within < s.p_filesz(endian))?;
        s.p_offset(endian).checked_add(within)
    });
    let start = place.ok_or("its string table is nowhere in the file")?;
    let end = start.checked_add(size).ok_or("its string table has no end")?;
    let string = |at: u64| -> Result<String, String> {
        let from = start.checked_add(at).filter(|from| *from < end).ok_or("a name beyond its string table")?;
        owned(data.read_bytes_at_until(from..end, 0).map_err(|()| "a name without an end")?)
    };
    let needed = entries.iter().filter(|(tag, _)| *tag == elf::DT_NEEDED);
    if needed.clone().count() > NEEDED {
        return Err("it needs too many libraries".into());
    }
    found.needed = needed.map(|(_, value)| string(*value)).collect::<Result<_, _>>()?;
    found.runpath = value(elf::DT_RUNPATH).map(&string).transpose()?;
    found.rpath = value(elf::DT_RPATH).map(&string).transpose()?;
    Ok(found)
}

fn owned(name: &[u8]) -> Result<String, String> {
    String::from_utf8(name.to_vec()).map_err(|_| "a name that is not text".to_owned())
}

/// The watched functions among the undefined dynamic symbols. Names may share their ends in the string table, so it alone does not tell.
fn imports(
    header: &FileHeader64<Endianness>,
    endian: Endianness,
    data: Bounded<'_>,
    watched: impl Fn(&str) -> bool,
) -> Result<Option<Vec<String>>, String> {
    let sections = header.sections(endian, data).map_err(text)?;
    let Some(at) = sections.iter().position(|s| s.sh_type(endian) == elf::SHT_DYNSYM) else { return Ok(None) };
    let table = sections.iter().nth(at).ok_or("no symbols")?;
    let symbols: &[elf::Sym64<Endianness>] =
        table.data_as_array(endian, data).map_err(|_| "its symbols are cut off or too many")?;
    let strings = sections.section(table.link(endian)).map_err(text)?;
    let strings = strings.data(endian, data).map_err(|_| "the names of its symbols are cut off or too many")?;
    let name = |symbol: &elf::Sym64<Endianness>| {
        let rest = strings.get(symbol.st_name(endian) as usize..)?;
        let rest = &rest[..rest.len().min(SYMBOL)];
        std::str::from_utf8(&rest[..rest.iter().position(|&c| c == 0)?]).ok()
    };
    let undefined = symbols.iter().filter(|s| s.st_shndx(endian) == elf::SHN_UNDEF);
    let mut names: Vec<String> = Vec::new();
    for name in undefined.filter_map(name).filter(|name| watched(name)) {
        // The watched names are few, a file's symbols may be many and all alike.
        if !names.iter().any(|known| known == name) && names.len() < NEEDED {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(Some(names))
}
