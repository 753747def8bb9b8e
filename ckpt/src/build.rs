//! Which build of the library this is.

use std::ffi::{OsStr, c_int, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;

use crate::identity::hash;
use crate::maps::Line;

const NT_GNU_BUILD_ID: u32 = 3;
const GNU: &[u8] = b"GNU\0";

/// The build of the library that `here` is a function of: what its linker has noted of all that it linked, or, where a linker notes nothing, a hash of
/// its file. To read and to hash the file costs each start of a process 8 ms.
pub fn build(here: *const (), lines: &[Line<'_>]) -> Result<u64, String> {
    let here = here as u64;
    let mut search = Search { here, found: None };
    // SAFETY: `look_in` is called while this waits, with `search`.
    unsafe { libc::dl_iterate_phdr(Some(look_in), (&raw mut search).cast()) };
    search.found.map_or_else(|| of_file(here, lines), Ok)
}

fn of_file(here: u64, lines: &[Line<'_>]) -> Result<u64, String> {
    let line = lines.iter().find(|l| l.start <= here && here < l.end).ok_or("the library is not in /proc/self/maps")?;
    let path = OsStr::from_bytes(line.path);
    let bytes = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(hash(&bytes))
}

struct Search {
    here: u64,
    found: Option<u64>,
}

/// Looks in one loaded object. Not 0: it was the one.
unsafe extern "C" fn look_in(info: *mut libc::dl_phdr_info, _: libc::size_t, search: *mut c_void) -> c_int {
    // SAFETY: the linker gives an object that stays loaded meanwhile, and `build` its own search.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    // SAFETY: so many headers are there.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let at = |header: &libc::Elf64_Phdr| info.dlpi_addr + header.p_vaddr;
    let holds = |header: &libc::Elf64_Phdr| (at(header)..at(header) + header.p_memsz).contains(&search.here);
    if !headers.iter().any(|header| header.p_type == libc::PT_LOAD && holds(header)) {
        return 0;
    }
    let notes = headers.iter().filter(|header| header.p_type == libc::PT_NOTE);
    search.found = notes
        // SAFETY: notes are in what is loaded and only read.
        .map(|header| unsafe { std::slice::from_raw_parts(at(header) as *const u8, header.p_memsz as usize) })
        .find_map(noted);
    1
}

/// The beginning of the build id among these notes.
fn noted(mut notes: &[u8]) -> Option<u64> {
    while let Some((head, rest)) = notes.split_first_chunk::<12>() {
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (name, rest) = padded(rest, word(0))?;
        let (id, rest) = padded(rest, word(4))?;
        if (word(8), name) == (NT_GNU_BUILD_ID, GNU) {
            return id.first_chunk().map(|first| u64::from_le_bytes(*first));
        }
        notes = rest;
    }
    None
}

/// The first `bytes`, and what is behind them and what fills them up to a multiple of four.
fn padded(from: &[u8], bytes: u32) -> Option<(&[u8], &[u8])> {
    let bytes = bytes as usize;
    Some((from.get(..bytes)?, from.get(bytes.next_multiple_of(4)..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, id: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        [name.len() as u32, id.len() as u32, kind].iter().for_each(|word| note.extend(word.to_le_bytes()));
        for bytes in [name, id] {
            note.extend(bytes);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn the_build_id_is_found_among_notes() {
        let id: Vec<u8> = (1..=20).collect();
        let expected = Some(u64::from_le_bytes([1, 2, 3, 4, 5, 6, 7, 8]));
        let property = note(GNU, 5, b"property");
        let other = note(b"stapsdt\0", NT_GNU_BUILD_ID, b"another one's");
        assert_eq!(noted(&note(GNU, NT_GNU_BUILD_ID, &id)), expected);
        assert_eq!(noted(&[property.clone(), other.clone(), note(GNU, NT_GNU_BUILD_ID, &id)].concat()), expected);
        assert_eq!(noted(&[property, other].concat()), None);
    }

    #[test]
    fn notes_that_are_none_have_no_build_id() {
        let whole = note(GNU, NT_GNU_BUILD_ID, &[7; 20]);
        (0..whole.len()).for_each(|bytes| assert_eq!(noted(&whole[..bytes]), None, "{bytes} bytes"));
        assert_eq!(noted(&note(GNU, NT_GNU_BUILD_ID, b"short")), None);
        assert_eq!(noted(&[0xff; 64]), None);
    }

    /// Of this very program, as the linker has noted it. The file's hash is as long as the file in its lower half.
    #[test]
    fn a_build_is_of_the_object_that_has_the_function() {
        let maps = fs::read("/proc/self/maps").unwrap();
        let lines: Vec<_> = crate::maps::lines(&maps).filter_map(crate::maps::parse).collect();
        let mine = build(note as *const (), &lines).unwrap();
        let of_libc = build(libc::getpid as *const (), &lines).unwrap();
        assert_ne!(mine, of_libc);
        let file = fs::read("/proc/self/exe").unwrap();
        assert_eq!(of_file(note as *const () as u64, &lines), Ok(hash(&file)));
        assert!(file.windows(8).any(|bytes| bytes == mine.to_le_bytes()), "not in this program's file");
    }
}
