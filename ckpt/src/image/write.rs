//! Writing an image to any sink, without allocation.

use super::format::{Codec, End, Header, RECORD_BYTES, Record, Run, run_crc};
use crate::crc::crc32c;
use crate::page::PAGE;

/// Where an image goes: a file, a pipe, a socket, a buffer.
pub trait Sink {
    /// Why it could not take the bytes.
    type Error;
    /// Takes all bytes of both parts, in order.
    fn put(&mut self, head: &[u8], tail: &[u8]) -> Result<(), Self::Error>;
}

impl Sink for Vec<u8> {
    type Error = core::convert::Infallible;
    fn put(&mut self, head: &[u8], tail: &[u8]) -> Result<(), Self::Error> {
        self.extend_from_slice(head);
        self.extend_from_slice(tail);
        Ok(())
    }
}

/// Anything that bytes can be written to.
pub struct WriteSink<W>(pub W);

impl<W: std::io::Write> Sink for WriteSink<W> {
    type Error = std::io::Error;
    fn put(&mut self, head: &[u8], tail: &[u8]) -> std::io::Result<()> {
        self.0.write_all(head)?;
        self.0.write_all(tail)
    }
}

/// Writes one image, front to back.
pub struct ImageWriter<S> {
    sink: S,
    runs: u64,
    bytes: u64,
    crc: u32,
    next: u64,
    increment: bool,
}

impl<S: Sink> ImageWriter<S> {
    /// Writes header and metadata. The header's fields about the metadata are filled in here.
    pub fn begin(mut sink: S, mut header: Header, meta: &[u8]) -> Result<Self, S::Error> {
        header.meta_len = u32::try_from(meta.len()).unwrap_or(u32::MAX);
        header.meta_crc = crc32c(0, meta);
        let head = header.encode();
        sink.put(&head, meta)?;
        let (bytes, increment) = ((head.len() + meta.len()) as u64, header.parent != 0);
        Ok(Self { sink, runs: 0, bytes, crc: crc32c(0, &head), next: 0, increment })
    }

    /// Writes pages as they are.
    ///
    /// # Panics
    /// If the runs do not ascend, or are not whole pages, or too long (`Codec::max_bytes`): an error of the caller.
    pub fn raw(&mut self, addr: u64, memory: &[u8]) -> Result<(), S::Error> {
        let crc = run_crc(addr, memory.len() as u32, memory);
        let len = memory.len();
        self.record(Run { codec: Codec::Raw, addr, len: len as u32, stored: len as u32, crc }, memory)
    }

    /// Writes that `len` bytes of pages are zero. Panics like `raw`.
    pub fn zero(&mut self, addr: u64, len: usize) -> Result<(), S::Error> {
        self.without_payload(Codec::Zero, addr, len)
    }

    /// Writes that `len` bytes of pages are as in the parent image. Panics like `raw`, and if the image is no increment.
    pub fn kept(&mut self, addr: u64, len: usize) -> Result<(), S::Error> {
        assert!(self.increment, "a whole image keeps nothing of another");
        self.without_payload(Codec::Kept, addr, len)
    }

    fn without_payload(&mut self, codec: Codec, addr: u64, len: usize) -> Result<(), S::Error> {
        self.record(Run { codec, addr, len: len as u32, stored: 0, crc: run_crc(addr, len as u32, &[]) }, &[])
    }

    /// Writes `memory` as the LZ4 block `packed`. Panics like `raw`.
    pub fn lz4(&mut self, addr: u64, memory: &[u8], packed: &[u8]) -> Result<(), S::Error> {
        let len = memory.len() as u32;
        let crc = run_crc(addr, len, memory);
        self.record(Run { codec: Codec::Lz4, addr, len, stored: packed.len() as u32, crc }, packed)
    }

    fn record(&mut self, run: Run, payload: &[u8]) -> Result<(), S::Error> {
        assert!(run.addr >= self.next, "runs ascend");
        assert!(run.len as usize <= run.codec.max_bytes() && run.len > 0, "runs are bounded");
        assert!(run.addr.is_multiple_of(PAGE) && u64::from(run.len).is_multiple_of(PAGE), "runs are whole pages");
        self.next = run.end();
        let head = Record::Run(run).encode();
        self.crc = crc32c(self.crc, &head);
        self.runs += 1;
        self.bytes += (RECORD_BYTES + payload.len()) as u64;
        self.sink.put(&head, payload)
    }

    /// Writes the end record; gives back the sink and how many bytes were written in all.
    pub fn finish(mut self) -> Result<(S, u64), S::Error> {
        let end = Record::End(End { runs: self.runs, bytes: self.bytes, crc: self.crc }).encode();
        self.sink.put(&end, &[])?;
        Ok((self.sink, self.bytes + RECORD_BYTES as u64))
    }
}
