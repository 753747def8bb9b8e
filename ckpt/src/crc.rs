//! CRC-32C, without tables in the heap, thread-local state or a dependency: it runs while the program is stopped, in the forked
//! child, and in the restorer. `crc32fast` decides at run time which code to use and keeps the answer in a static of its own;
//! the `crc32` instruction (SSE 4.2, every x86-64 machine since 2008) needs none of that.

/// Continues the checksum `crc` (0 to begin with) over `bytes`.
#[must_use]
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: every machine this engine supports has SSE 4.2: the constructor checks it (cpu::check) before anything else, and
    // the restorer runs in a process whose constructor has checked it.
    unsafe { hardware(!crc, bytes) ^ u32::MAX }
}

#[target_feature(enable = "sse4.2")]
fn hardware(crc: u32, bytes: &[u8]) -> u32 {
    use core::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    let mut wide = u64::from(crc);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
    }
    // The instruction leaves the upper half zero.
    let mut narrow = wide as u32;
    for &byte in rest {
        narrow = _mm_crc32_u8(narrow, byte);
    }
    narrow
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn known_answers() {
        // RFC 3720, appendix B.4.
        assert_eq!(crc32c(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(0, &[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_checksum_can_be_continued() {
        let text = b"forward-only stream of records";
        for split in 0..text.len() {
            assert_eq!(crc32c(crc32c(0, &text[..split]), &text[split..]), crc32c(0, text));
        }
    }
}
