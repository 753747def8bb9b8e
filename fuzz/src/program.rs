//! Files that may be programs, as `radic run` and `radic doctor` read them.

use std::io::Write;
use std::path::Path;

use crate::{Inputs, doctor_elf, mpi_elf};

/// What the loader goes by: whether the file asks for a loader, what it needs, its paths. Of two paths only the newer kind counts.
type Facts = (bool, Vec<String>, Option<String>, Option<String>);

fn read_by_run(path: &Path) -> Option<Facts> {
    let Ok(mpi_elf::Program::Elf(elf)) = mpi_elf::read(path) else { return None };
    // A table of strings that is cut off or too long is an error.
    _ = mpi_elf::has_name(path, &elf, "MPI_");
    Some((elf.has_interpreter, elf.needed, elf.rpath, elf.runpath))
}

fn read_by_doctor(path: &Path) -> Option<Facts> {
    let Ok(doctor_elf::Executable::Elf(elf)) = doctor_elf::read(path, |name| name.starts_with("MPI_")) else { return None };
    let rpath = elf.rpath.filter(|_| elf.runpath.is_none());
    Some((elf.interpreter.is_some(), elf.needed, rpath, elf.runpath))
}

/// Two readers that both take a file for a program see the same in it.
pub fn check(data: &[u8]) -> bool {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(data).expect("space for it");
    let (one, other) = (read_by_run(file.path()), read_by_doctor(file.path()));
    if let (Some(one), Some(other)) = (&one, &other) {
        assert_eq!(one, other);
    }
    one.is_some() || other.is_some()
}

/// A program with a loader, a library and a path to it.
fn elf() -> Vec<u8> {
    const SEGMENTS: u64 = 64;
    const LOADER: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
    const STRINGS: &[u8] = b"\0libmpi.so.12\0/opt/mpi/lib\0";
    let loader = SEGMENTS + 3 * 56;
    let strings = loader + LOADER.len() as u64;
    let dynamic = (strings + STRINGS.len() as u64).next_multiple_of(8);
    // DT_NEEDED, DT_RUNPATH, DT_STRTAB, DT_STRSZ, and the end.
    let entries = [1, 1, 29, 14, 5, strings, 10, STRINGS.len() as u64, 0, 0];
    let end = dynamic + 8 * entries.len() as u64;
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let words = |bytes: &mut Vec<u8>, words: &[u64]| words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    let halves = |bytes: &mut Vec<u8>, halves: &[u16]| halves.iter().for_each(|half| bytes.extend(half.to_le_bytes()));
    // ET_DYN for x86-64; no entry point, where the segments are, no sections.
    halves(&mut bytes, &[3, 62, 1, 0]);
    words(&mut bytes, &[0, SEGMENTS, 0]);
    halves(&mut bytes, &[0, 0, 64, 56, 3, 64, 0, 0]);
    // PT_INTERP, PT_LOAD, PT_DYNAMIC: kind, flags, offset, address twice, length twice, alignment.
    for (kind, at, length) in [(3, loader, LOADER.len() as u64), (1, 0, end), (2, dynamic, end - dynamic)] {
        words(&mut bytes, &[4 << 32 | kind, at, at, at, length, length, 8]);
    }
    bytes.extend(LOADER);
    bytes.extend(STRINGS);
    bytes.resize(dynamic as usize, 0);
    words(&mut bytes, &entries);
    bytes
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    vec![("elf", elf())]
}
