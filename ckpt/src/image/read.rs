//! Reading an image, front to back, checking everything. Memory is bounded: the metadata (32 MiB at most), one run (1 MiB) and
//! its packed form.

use std::io::{self, Read, Seek};

use serde::Serialize;

use super::format::{Codec, FormatError, HEADER_BYTES, Header, MAGIC, MAX_RUN_BYTES, RECORD_BYTES, Record, Run, run_crc};
use super::meta::{Backing, Meta};
use crate::crc::crc32c;

/// Why an image could not be read.
#[derive(Debug)]
pub enum ImageError {
    /// It is not a sound image.
    Format(FormatError),
    /// It could not be read.
    Io(io::Error),
    /// The image made of it could not be written.
    Write(io::Error),
}

impl std::fmt::Display for ImageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Format(error) => error.fmt(f),
            Self::Io(error) => write!(f, "the image cannot be read: {error}"),
            Self::Write(error) => write!(f, "the merged image cannot be written: {error}"),
        }
    }
}

impl std::error::Error for ImageError {}

impl From<FormatError> for ImageError {
    fn from(error: FormatError) -> Self {
        Self::Format(error)
    }
}

impl From<io::Error> for ImageError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::Format(FormatError::Truncated) } else { Self::Io(error) }
    }
}

/// An image being read. Header and metadata have been checked; the runs are checked as they come. After its end record nothing may come.
pub struct Reader<R> {
    input: R,
    /// The header.
    pub header: Header,
    /// The metadata.
    pub meta: Meta,
    meta_bytes: Vec<u8>,
    runs: u64,
    bytes: u64,
    crc: u32,
    next: u64,
    packed: Vec<u8>,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// Reads and checks header and metadata, and not one byte more.
    pub fn begin(mut input: R) -> Result<Self, ImageError> {
        let head = read_head(&mut input)?;
        let header = Header::decode(&head)?;
        let mut bytes = Vec::new();
        // Grows as bytes come: a header that promises much costs nothing.
        input.by_ref().take(u64::from(header.meta_len)).read_to_end(&mut bytes)?;
        if bytes.len() != header.meta_len as usize {
            return Err(FormatError::Truncated.into());
        }
        if crc32c(0, &bytes) != header.meta_crc {
            return Err(FormatError::Checksum("the metadata").into());
        }
        let meta = Meta::decode(&bytes)?;
        Ok(Self {
            input,
            header,
            meta,
            runs: 0,
            bytes: (HEADER_BYTES + bytes.len()) as u64,
            meta_bytes: bytes,
            crc: crc32c(0, &head),
            next: 0,
            packed: Vec::new(),
            ended: false,
        })
    }

    /// The metadata's bytes, given away: later there are none.
    pub(super) fn take_metadata(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.meta_bytes)
    }

    /// The next run, unpacked into `memory` and checked; none at the (checked) end. Of a kept run `memory` is empty: the parent has it.
    pub fn next_run(&mut self, memory: &mut Vec<u8>) -> Result<Option<Run>, ImageError> {
        let Some(run) = self.next_record()? else { return Ok(None) };
        self.payload(&run, memory)?;
        let covered: &[u8] = if run.stored == 0 { &[] } else { memory };
        if run_crc(run.addr, run.len, covered) != run.crc {
            return Err(FormatError::Checksum("a run").into());
        }
        Ok(Some(run))
    }

    /// What the next run is, checked; none at the (checked) end. What is stored of it comes next.
    fn next_record(&mut self) -> Result<Option<Run>, ImageError> {
        if self.ended {
            return Ok(None);
        }
        let mut head = [0; RECORD_BYTES];
        self.input.read_exact(&mut head)?;
        let run = match Record::decode(&head)? {
            Record::Run(run) => run,
            Record::End(end) => {
                if end.runs != self.runs || end.bytes != self.bytes || end.crc != self.crc {
                    return Err(FormatError::Invalid("the end record does not match what came before it").into());
                }
                if !is_at_end(&mut self.input)? {
                    return Err(FormatError::Invalid("something follows its end record").into());
                }
                self.ended = true;
                return Ok(None);
            }
        };
        self.place(&run)?;
        self.crc = crc32c(self.crc, &head);
        self.runs += 1;
        self.bytes += RECORD_BYTES as u64 + u64::from(run.stored);
        Ok(Some(run))
    }

    /// A run must ascend, and belong to a region that has runs; only an increment keeps pages.
    fn place(&mut self, run: &Run) -> Result<(), FormatError> {
        if run.codec == Codec::Kept && self.header.parent == 0 {
            return Err(FormatError::Invalid("it keeps pages of a parent, and has none"));
        }
        if run.addr < self.next {
            return Err(FormatError::Invalid("runs overlap or are out of order"));
        }
        self.next = run.end();
        let region = self.meta.region_of(run.addr, u64::from(run.len));
        let private = |backing| matches!(backing, Backing::Anonymous | Backing::Stack | Backing::PrivateFile);
        if region.is_some_and(|r| r.has_runs && private(r.backing)) {
            Ok(())
        } else {
            Err(FormatError::Invalid("a run belongs to no region that may have runs"))
        }
    }

    fn payload(&mut self, run: &Run, memory: &mut Vec<u8>) -> Result<(), ImageError> {
        let len = if run.codec == Codec::Kept { 0 } else { run.len as usize };
        assert!(len <= MAX_RUN_BYTES && run.stored as usize <= MAX_RUN_BYTES, "Record::decode checks the bounds");
        memory.resize(len, 0);
        match run.codec {
            Codec::Zero | Codec::Kept => memory.fill(0),
            Codec::Raw => self.input.read_exact(memory)?,
            Codec::Lz4 => {
                self.packed.resize(run.stored as usize, 0);
                self.input.read_exact(&mut self.packed)?;
                let got = lz4_flex::block::decompress_into(&self.packed, memory)
                    .map_err(|_| FormatError::Invalid("a run cannot be unpacked"))?;
                if got != len {
                    return Err(FormatError::Invalid("a run unpacks to another length").into());
                }
            }
        }
        Ok(())
    }
}

/// The bytes of a header. What is short and begins otherwise is no image, rather than a truncated one.
pub(super) fn read_head(input: &mut impl Read) -> Result<[u8; HEADER_BYTES], ImageError> {
    let mut head = Vec::with_capacity(HEADER_BYTES);
    input.take(HEADER_BYTES as u64).read_to_end(&mut head)?;
    if !MAGIC.starts_with(&head[..head.len().min(MAGIC.len())]) {
        return Err(FormatError::NotAnImage.into());
    }
    Ok(head.try_into().map_err(|_| FormatError::Truncated)?)
}

/// Nothing comes any more. Of a stream, its writer says so by closing it.
fn is_at_end(input: &mut impl Read) -> io::Result<bool> {
    loop {
        match input.read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map(|count| count == 0),
        }
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Goes past the next run, without a look at what is stored of it; none at the (checked) end.
    pub fn skip_run(&mut self) -> Result<Option<Run>, ImageError> {
        let run = self.next_record()?;
        self.input.seek_relative(run.map_or(0, |run| i64::from(run.stored)))?;
        Ok(run)
    }
}

/// The name of an image or a build as people and JSON see it: 16 digits. (JSON's own numbers end at 53 bits for many.)
#[must_use]
pub fn hexadecimal(id: u64) -> String {
    format!("{id:016x}")
}

/// Serializes an id as `hexadecimal` shows it.
pub fn as_hexadecimal<S: serde::Serializer>(id: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{id:016x}"))
}

/// What an image holds, for people and for `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Names the image.
    #[serde(serialize_with = "as_hexadecimal")]
    pub id: u64,
    /// The image it is an increment to, 0 for none.
    #[serde(serialize_with = "as_hexadecimal")]
    pub parent: u64,
    /// How many checkpoints came before it.
    pub generation: u32,
    /// The build of the library that wrote it.
    #[serde(serialize_with = "as_hexadecimal")]
    pub build: u64,
    /// Bytes of the whole stream.
    pub bytes: u64,
    /// Runs in it.
    pub runs: u64,
    /// Bytes of memory stored as they are.
    pub raw_bytes: u64,
    /// Bytes of memory stored packed.
    pub packed_memory_bytes: u64,
    /// Bytes these take.
    pub packed_bytes: u64,
    /// Bytes of memory that are zero, not stored.
    pub zero_bytes: u64,
    /// Bytes of memory that are as in the parent.
    pub kept_bytes: u64,
    /// The metadata.
    #[serde(flatten)]
    pub meta: Meta,
}

/// Reads a whole image, checks all of it and says what it holds.
pub fn inspect(input: impl Read) -> Result<Report, ImageError> {
    let mut reader = Reader::begin(input)?;
    let mut memory = Vec::new();
    let (mut raw, mut packed_memory, mut packed, mut zero, mut kept) = (0, 0, 0, 0, 0);
    while let Some(run) = reader.next_run(&mut memory)? {
        let len = u64::from(run.len);
        match run.codec {
            Codec::Raw => raw += len,
            Codec::Zero => zero += len,
            Codec::Kept => kept += len,
            Codec::Lz4 => {
                packed_memory += len;
                packed += u64::from(run.stored);
            }
        }
    }
    Ok(Report {
        id: reader.header.id,
        parent: reader.header.parent,
        generation: reader.header.generation,
        build: reader.header.build,
        bytes: reader.bytes + RECORD_BYTES as u64,
        runs: reader.runs,
        raw_bytes: raw,
        packed_memory_bytes: packed_memory,
        packed_bytes: packed,
        zero_bytes: zero,
        kept_bytes: kept,
        meta: reader.meta,
    })
}

/// Reads a whole image and checks all of it; gives its header and metadata.
pub fn verify(input: impl Read) -> Result<(Header, Meta), ImageError> {
    let mut reader = Reader::begin(input)?;
    let mut memory = Vec::with_capacity(MAX_RUN_BYTES);
    while reader.next_run(&mut memory)?.is_some() {}
    Ok((reader.header, reader.meta))
}
