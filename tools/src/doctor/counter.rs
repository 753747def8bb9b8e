//! Whether code reads the processor's time stamp counter by itself (`rdtsc`, `rdtscp`): a clock that no library sees, so what it says is in no log.
//!
//! The code is not disassembled: the two bytes of `rdtsc` may stand in the middle of another instruction. So they count only if the two halves of the counter are put together
//! behind them, by a shift of a register by 32 bits, as compilers do it. That is a hint, no proof: a program that takes one half alone is not found.

use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};

use super::finding::{Finding, Level, listed};

/// Bytes of a file that are read at once.
const PIECE: usize = 1 << 20;
/// Most code of one file that is looked at, in bytes: the largest libraries have less.
const MOST: u64 = 256 << 20;
/// So soon behind the instruction the halves of the counter are put together, in bytes.
const SOON: usize = 40;

/// What is said of these files, if any of them reads the counter.
pub(super) fn examine(files: &[PathBuf]) -> Option<Finding> {
    let users = files.iter().filter(|file| reads(file).unwrap_or(false)).map(|file| file.display().to_string());
    let users: Vec<String> = users.collect();
    let users: Vec<&str> = users.iter().map(String::as_str).collect();
    let about = format!(
        "{} may read the processor's own counter (rdtsc; a hint, by the bytes of the code): what it says is in no log, so a rank that decides something by it may go another way \
         after a restart, and its job then restarts from the beginning",
        listed(&users)
    );
    let remedy = "only if it decides something by it: radic run --record-tsc records it; or use clock_gettime or MPI_Wtime, which are recorded anyway and cost less, if the program leaves the choice";
    (!users.is_empty()).then(|| Finding::new(Level::Note, "rdtsc", about, remedy))
}

/// Whether the file's code reads the counter.
fn reads(path: &Path) -> io::Result<bool> {
    let open = || OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    let file = open()?;
    let mut piece = vec![0; PIECE];
    for Range { start, end } in code(ReadCache::new(open()?)).unwrap_or_default() {
        let end = end.min(start.saturating_add(MOST));
        let mut at = start;
        while at < end {
            let count = file.read_at(&mut piece[..PIECE.min((end - at) as usize)], at)?;
            if is_in(&piece[..count]) {
                return Ok(true);
            }
            // What lies across the end of a piece is seen at the beginning of the next one.
            at = if count > 2 * SOON { at + (count - SOON) as u64 } else { end };
        }
    }
    Ok(false)
}

/// Where the code is in the file.
fn code(file: ReadCache<std::fs::File>) -> Option<Vec<Range<u64>>> {
    let header = FileHeader64::<Endianness>::parse(&file).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, &file).ok()?;
    let is_code = |segment: &&elf::ProgramHeader64<Endianness>| {
        segment.p_type(endian) == elf::PT_LOAD && segment.p_flags(endian) & elf::PF_X == elf::PF_X
    };
    let place = |segment: &elf::ProgramHeader64<Endianness>| {
        let start = segment.p_offset(endian);
        start..start.saturating_add(segment.p_filesz(endian))
    };
    Some(segments.iter().filter(is_code).map(place).collect())
}

/// Whether these bytes have the instruction, and soon behind it the shift of a register by 32 bits to the left.
fn is_in(code: &[u8]) -> bool {
    let is_shift = |bytes: &[u8]| matches!(*bytes, [0x48 | 0x49, 0xc1, 0xe0..=0xe7, 32]);
    code.windows(3).enumerate().filter(|(_, bytes)| matches!(**bytes, [0x0f, 0x31, _] | [0x0f, 0x01, 0xf9])).any(|(at, _)| {
        let behind = &code[at + 2..code.len().min(at + 2 + SOON)];
        behind.windows(4).any(is_shift)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_alone_are_no_hint() {
        // rdtsc; shl $32,%rdx; or %rdx,%rax
        assert!(is_in(&[0x90, 0x0f, 0x31, 0x48, 0xc1, 0xe2, 32, 0x48, 0x09, 0xd0]));
        // rdtscp; mov %rdx,%r8; shl $32,%r8
        assert!(is_in(&[0x0f, 0x01, 0xf9, 0x49, 0x89, 0xd0, 0x49, 0xc1, 0xe0, 32]));
        assert!(!is_in(&[0x0f, 0x31, 0x48, 0xc1, 0xe2, 3, 0x48, 0x09, 0xd0]), "another shift");
        assert!(!is_in(&[0x0f, 0x31]) && !is_in(&[]) && !is_in(&[0x48, 0xc1, 0xe2, 32, 0x0f, 0x31, 0x90]));
        let mut far = vec![0x90; 100];
        far[..2].copy_from_slice(&[0x0f, 0x31]);
        far[60..64].copy_from_slice(&[0x48, 0xc1, 0xe2, 32]);
        assert!(!is_in(&far));
    }
}
