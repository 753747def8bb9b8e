//! The fixed parts of an image: the header in front, and the 32-byte records that follow the metadata. Plain arithmetic on
//! byte arrays: no I/O, no allocation, no unsafe. The restorer is built from this very file.
//!
//! An image is one forward-only stream: header, metadata (`meta`), run records each followed by its payload, the end record.
//! Numbers are little-endian. Runs come in ascending address order and do not overlap. A page in no run is not there: it reads as zero,
//! or as the file it belongs to, whatever an image before this one had there.

use crate::crc::crc32c;
use crate::page::PAGE;

/// The first eight bytes of every image.
pub const MAGIC: [u8; 8] = *b"RADICKPT";
/// Version of the format: another version is refused.
pub const VERSION: u32 = 3;
/// Size of the header in bytes.
pub const HEADER_BYTES: usize = 144;
/// Size of a run or end record in bytes, without the run's payload.
pub const RECORD_BYTES: usize = 32;
/// Upper bound of the metadata in bytes.
pub const MAX_META_BYTES: usize = 32 << 20;
/// Upper bound of a run's memory in bytes.
pub const MAX_RUN_BYTES: usize = 1 << 20;
/// Upper bound of the memory of a run that is as in the parent, in bytes.
pub const MAX_KEPT_BYTES: usize = 1 << 30;
/// First address that no program can use (47-bit user space).
pub const ADDRESS_END: u64 = 0x7fff_ffff_f000;

const RUN_TAG: u32 = u32::from_le_bytes(*b"RUN ");
const END_TAG: u32 = u32::from_le_bytes(*b"END ");

/// Why bytes are not an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatError {
    /// It does not begin with the magic bytes.
    NotAnImage,
    /// Another version of the format.
    Version(u32),
    /// The named part does not match its checksum.
    Checksum(&'static str),
    /// A length in the named part is above its bound.
    TooLong(&'static str),
    /// The named part says what no image may say.
    Invalid(&'static str),
    /// The stream ends before its end record.
    Truncated,
}

impl core::fmt::Display for FormatError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NotAnImage => write!(f, "this is not a checkpoint image"),
            Self::Version(found) => write!(f, "the image has format version {found}, this program reads version {VERSION}"),
            Self::Checksum(part) => write!(f, "the image is damaged: the checksum of {part} does not match"),
            Self::TooLong(part) => write!(f, "the image is damaged or hostile: {part} is longer than its bound"),
            Self::Invalid(part) => write!(f, "the image is damaged or hostile: {part}"),
            Self::Truncated => write!(f, "the image is truncated: it has no end record"),
        }
    }
}

impl core::error::Error for FormatError {}

/// What the processor offers, as far as programs choose code by it or keep it in their frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuFeatures {
    /// CPUID leaf 1 (ecx, edx), leaf 7.0 (ebx, ecx, edx), leaf 7.1 eax, XCR0.
    pub words: [u32; 7],
    /// Bytes of the XSAVE area for the enabled features: the size of a signal frame.
    pub xsave_bytes: u32,
}

/// The fixed part in front of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Which build of the library wrote it; only the same build can restore it.
    pub build: u64,
    /// The processor it ran on.
    pub cpu: CpuFeatures,
    /// A hash of the kernel's release and version.
    pub kernel: u64,
    /// A hash of the vdso.
    pub vdso: u64,
    /// Address of the library's restart entry.
    pub entry: u64,
    /// Stack pointer for the restart entry.
    pub stack: u64,
    /// Names this image.
    pub id: u64,
    /// The image this one is an increment to; 0: none, it is whole.
    pub parent: u64,
    /// How many checkpoints came before it.
    pub generation: u32,
    /// Bytes of metadata after the header.
    pub meta_len: u32,
    /// CRC-32C of the metadata.
    pub meta_crc: u32,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

impl Header {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        put32(&mut out, 8, VERSION);
        put32(&mut out, 12, self.generation);
        for (i, value) in
            [self.build, self.kernel, self.vdso, self.entry, self.stack, self.id, self.parent].into_iter().enumerate()
        {
            put64(&mut out, 16 + 8 * i, value);
        }
        for (i, word) in self.cpu.words.into_iter().enumerate() {
            put32(&mut out, 72 + 4 * i, word);
        }
        put32(&mut out, 100, self.cpu.xsave_bytes);
        put32(&mut out, 104, self.meta_len);
        put32(&mut out, 108, self.meta_crc);
        let crc = crc32c(0, &out[..HEADER_BYTES - 4]);
        put32(&mut out, HEADER_BYTES - 4, crc);
        out
    }

    /// Reads a header back; checks magic, version, checksum and bounds.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FormatError> {
        if bytes[..8] != MAGIC {
            return Err(FormatError::NotAnImage);
        }
        if u32_at(bytes, 8) != VERSION {
            return Err(FormatError::Version(u32_at(bytes, 8)));
        }
        if crc32c(0, &bytes[..HEADER_BYTES - 4]) != u32_at(bytes, HEADER_BYTES - 4) {
            return Err(FormatError::Checksum("the header"));
        }
        let mut cpu = CpuFeatures { words: [0; 7], xsave_bytes: u32_at(bytes, 100) };
        for (i, word) in cpu.words.iter_mut().enumerate() {
            *word = u32_at(bytes, 72 + 4 * i);
        }
        let header = Self {
            build: u64_at(bytes, 16),
            cpu,
            kernel: u64_at(bytes, 24),
            vdso: u64_at(bytes, 32),
            entry: u64_at(bytes, 40),
            stack: u64_at(bytes, 48),
            id: u64_at(bytes, 56),
            parent: u64_at(bytes, 64),
            generation: u32_at(bytes, 12),
            meta_len: u32_at(bytes, 104),
            meta_crc: u32_at(bytes, 108),
        };
        if header.meta_len as usize > MAX_META_BYTES {
            return Err(FormatError::TooLong("the metadata"));
        }
        if header.parent != 0 && header.parent == header.id {
            return Err(FormatError::Invalid("it is an increment to itself"));
        }
        if header.encode() != *bytes {
            return Err(FormatError::Invalid("the header has bits that mean nothing"));
        }
        Ok(header)
    }
}

/// How a run's payload is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// As it is.
    Raw,
    /// One LZ4 block.
    Lz4,
    /// All bytes are zero; no payload.
    Zero,
    /// As in the parent image, which has all of these pages; no payload. In increments only.
    Kept,
}

impl Codec {
    /// Upper bound of the memory of a run stored like this, in bytes.
    #[must_use]
    pub fn max_bytes(self) -> usize {
        if self == Self::Kept { MAX_KEPT_BYTES } else { MAX_RUN_BYTES }
    }
}

/// A run: consecutive pages with saved content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// How the payload is stored.
    pub codec: Codec,
    /// Where the pages belong.
    pub addr: u64,
    /// Bytes of memory, a multiple of the page size.
    pub len: u32,
    /// Bytes of payload after the record.
    pub stored: u32,
    /// `run_crc` of the memory.
    pub crc: u32,
}

/// The last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// How many runs came before.
    pub runs: u64,
    /// How many bytes of stream came before this record.
    pub bytes: u64,
    /// CRC-32C of the header and all run records.
    pub crc: u32,
}

/// What follows the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Pages.
    Run(Run),
    /// Nothing more.
    End(End),
}

/// The checksum of a run: over its address, its length and the memory itself, so that a payload in the wrong place is noticed. A
/// run without a payload has no memory to look at: `memory` is empty.
#[must_use]
pub fn run_crc(addr: u64, len: u32, memory: &[u8]) -> u32 {
    crc32c(crc32c(crc32c(0, &addr.to_le_bytes()), &len.to_le_bytes()), memory)
}

impl Record {
    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        match self {
            Self::Run(run) => {
                put32(&mut out, 0, RUN_TAG);
                out[4] = match run.codec {
                    Codec::Raw => 0,
                    Codec::Lz4 => 1,
                    Codec::Zero => 2,
                    Codec::Kept => 3,
                };
                put64(&mut out, 8, run.addr);
                put32(&mut out, 16, run.len);
                put32(&mut out, 20, run.stored);
                put32(&mut out, 24, run.crc);
            }
            Self::End(end) => {
                put32(&mut out, 0, END_TAG);
                put64(&mut out, 8, end.runs);
                put64(&mut out, 16, end.bytes);
                put32(&mut out, 24, end.crc);
            }
        }
        let crc = crc32c(0, &out[..28]);
        put32(&mut out, 28, crc);
        out
    }

    /// Reads a record back; checks its checksum and all bounds that need no context.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Result<Self, FormatError> {
        if crc32c(0, &bytes[..28]) != u32_at(bytes, 28) {
            return Err(FormatError::Checksum("a record"));
        }
        let record = match u32_at(bytes, 0) {
            RUN_TAG => {
                let codec = match bytes[4] {
                    0 => Codec::Raw,
                    1 => Codec::Lz4,
                    2 => Codec::Zero,
                    3 => Codec::Kept,
                    _ => return Err(FormatError::Invalid("a run is stored in an unknown way")),
                };
                let run = Run {
                    codec,
                    addr: u64_at(bytes, 8),
                    len: u32_at(bytes, 16),
                    stored: u32_at(bytes, 20),
                    crc: u32_at(bytes, 24),
                };
                run.check()?;
                Self::Run(run)
            }
            END_TAG => Self::End(End { runs: u64_at(bytes, 8), bytes: u64_at(bytes, 16), crc: u32_at(bytes, 24) }),
            _ => return Err(FormatError::Invalid("a record is neither a run nor the end")),
        };
        if record.encode() != *bytes {
            return Err(FormatError::Invalid("a record has bits that mean nothing"));
        }
        Ok(record)
    }
}

impl Run {
    /// The first address after its memory.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.addr + u64::from(self.len)
    }

    fn check(&self) -> Result<(), FormatError> {
        let len = u64::from(self.len);
        if self.len as usize > self.codec.max_bytes() {
            return Err(FormatError::TooLong("a run"));
        }
        if len == 0 || !len.is_multiple_of(PAGE) || !self.addr.is_multiple_of(PAGE) {
            return Err(FormatError::Invalid("a run does not consist of pages"));
        }
        if self.addr > ADDRESS_END - len {
            return Err(FormatError::Invalid("a run lies outside the address space"));
        }
        let stored_ok = match self.codec {
            Codec::Raw => self.stored == self.len,
            Codec::Lz4 => self.stored > 0 && self.stored < self.len,
            Codec::Zero | Codec::Kept => self.stored == 0,
        };
        if stored_ok { Ok(()) } else { Err(FormatError::Invalid("a run's payload does not fit its memory")) }
    }
}
