//! CRC-32C, without tables in the heap, thread-local state or a dependency: it runs while the program is stopped, in the forked
//! child, and in the restorer. `crc32fast` is no replacement, not even for code that only reads images: it has another polynomial (IEEE), which no
//! instruction has, and it decides at run time which code to use. The `crc32` instruction (SSE 4.2, every x86-64 machine since 2008) is of this one.
//!
//! The instruction takes 8 bytes and one cycle, but its result comes after three. So three lanes of a page are summed side by side,
//! and put together: checksums are polynomials over two elements modulo P, and what follows a part of the message by n bytes
//! multiplies that part's checksum by x^8n.

/// Bytes of a lane: three of them and two words make a page, 257 times three and two words make a MiB.
const LANE: usize = 1360;
/// P without x^32, as all polynomials here: bit 31 is the coefficient of x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// `BEHIND_LANE[k][b]`: the polynomial with byte b as its k-th byte, times x^8n with n of `LANE`.
static BEHIND_LANE: [[u32; 256]; 4] = multiples(power(8 * LANE as u32));

/// a * b modulo P.
const fn multiply(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    while a != 0 {
        if a >> 31 == 1 {
            product ^= b;
        }
        a <<= 1;
        // b * x.
        b = if b & 1 == 1 { b >> 1 ^ POLYNOMIAL } else { b >> 1 };
    }
    product
}

/// x^n modulo P.
const fn power(mut n: u32) -> u32 {
    let (mut square, mut product) = (1 << 30, 1 << 31);
    while n > 0 {
        if n & 1 == 1 {
            product = multiply(product, square);
        }
        square = multiply(square, square);
        n >>= 1;
    }
    product
}

const fn multiples(factor: u32) -> [[u32; 256]; 4] {
    let mut table = [[0; 256]; 4];
    let mut at = 0;
    while at < 4 * 256 {
        let (byte, value) = (at / 256, at % 256);
        table[byte][value] = multiply((value as u32) << (8 * byte), factor);
        at += 1;
    }
    table
}

/// The checksum of a message that a lane of zeroes is added to.
fn behind_lane(crc: u64) -> u64 {
    let [a, b, c, d] = (crc as u32).to_le_bytes().map(usize::from);
    u64::from(BEHIND_LANE[0][a] ^ BEHIND_LANE[1][b] ^ BEHIND_LANE[2][c] ^ BEHIND_LANE[3][d])
}

/// Continues the checksum `crc` (0 to begin with) over `bytes`.
#[must_use]
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: every machine this engine supports has SSE 4.2: the constructor checks it (cpu::check) before anything else, and
    // the restorer runs in a process that has checked it in its constructor.
    unsafe { three_lanes(!crc, bytes) ^ u32::MAX }
}

#[target_feature(enable = "sse4.2")]
fn three_lanes(crc: u32, bytes: &[u8]) -> u32 {
    use core::arch::x86_64::_mm_crc32_u64;
    let mut crc = u64::from(crc);
    let (blocks, rest) = bytes.as_chunks::<{ 3 * LANE }>();
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        let (first, others) = words.split_at(LANE / 8);
        let (second, third) = others.split_at(LANE / 8);
        let (mut of_second, mut of_third) = (0, 0);
        for ((a, b), c) in first.iter().zip(second).zip(third) {
            crc = _mm_crc32_u64(crc, u64::from_le_bytes(*a));
            of_second = _mm_crc32_u64(of_second, u64::from_le_bytes(*b));
            of_third = _mm_crc32_u64(of_third, u64::from_le_bytes(*c));
        }
        crc = behind_lane(behind_lane(crc) ^ of_second) ^ of_third;
    }
    // The instruction leaves the upper half zero.
    one_lane(crc as u32, rest)
}

#[target_feature(enable = "sse4.2")]
fn one_lane(crc: u32, bytes: &[u8]) -> u32 {
    use core::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    let mut wide = u64::from(crc);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
    }
    let mut narrow = wide as u32;
    for &byte in rest {
        narrow = _mm_crc32_u8(narrow, byte);
    }
    narrow
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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

    #[test]
    fn multiplication_obeys_the_laws() {
        let (one, x) = (1 << 31, 1 << 30);
        assert_eq!(multiply(one, 0x1234_5678), 0x1234_5678);
        assert_eq!(multiply(multiply(x, 77), 0x9abc), multiply(x, multiply(77, 0x9abc)));
        assert_eq!(power(77), multiply(power(70), power(7)));
        // x^32 = P - x^32.
        assert_eq!(power(32), POLYNOMIAL);
    }

    proptest! {
        /// As one lane sums it, at any length and alignment; and that as the definition has it, bit by bit.
        #[test]
        fn three_lanes_make_one(
            bytes in prop::collection::vec(any::<u8>(), 0..40_000),
            skipped in 0..9usize,
            begin in any::<u32>(),
        ) {
            let bytes = &bytes[skipped.min(bytes.len())..];
            // SAFETY: a test runs on a machine that the engine supports.
            let (lanes, single) = unsafe { (three_lanes(begin, bytes), one_lane(begin, bytes)) };
            prop_assert_eq!(lanes, single);
            let by_bit = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * POLYNOMIAL));
            prop_assert_eq!(single, bytes.iter().fold(begin, by_bit));
        }
    }
}
