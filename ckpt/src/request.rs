//! What is asked of a process, and how a request and a refusal look on the socket between requester and process.
//!
//! Each must know which process it talks to. The socket's name is no secret (/proc/net/unix), and the users of both may have no number for each other (user
//! namespaces).
//! - The requester hears only the process that it means: the kernel gives it the id of the caller (SO_PEERCRED), and a pidfd from before the signal says that
//!   the id has meant that process all the time.
//! - The process serves only the sender of the signal, which the kernel has allowed to send it: the signal carries a secret that no other process sees, and the
//!   request begins with it.

use crate::maps;

/// The process that writes the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The process itself: all its threads wait until the image is written.
    Stop,
    /// A child, from its copy of the memory.
    #[default]
    Fork,
}

/// Whether the process remembers which pages it changes after this checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tracking {
    /// No: the next image is whole.
    #[default]
    Off,
    /// Yes, by the kernel (userfaultfd with asynchronous write protection, Linux 6.7), or by hashes where that is missing.
    Best,
    /// Yes, by a hash of each page: works everywhere, and costs 24 bytes a page and the time to hash all pages.
    Hashes,
}

/// A request for a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The process that writes the image.
    pub mode: Mode,
    /// Whether changes are tracked from now on.
    pub tracking: Tracking,
    /// Pack pages (LZ4) where a sample says that it pays.
    pub compress: bool,
    /// The last image the requester has whole; the new one is an increment to it, if the process has tracked changes since. 0: a whole
    /// image is wanted.
    pub parent: u64,
}

/// First bytes of a request; another one whenever what follows changes.
const MAGIC: [u8; 8] = *b"RADICRQ3";
/// What the signal and the request have in common, and no other process knows.
pub type Secret = [u64; 2];
/// Bytes of it, which come between the request and the regions with advice.
pub const SECRET_BYTES: usize = size_of::<Secret>();
/// Bytes of a request: magic, mode, tracking, compress, five zeroes, parent.
pub const REQUEST_BYTES: usize = 24;
/// First bytes of the answer when there is no image: a text follows.
pub const REFUSAL_MAGIC: [u8; 8] = *b"RADICERR";
/// Name of the abstract socket where the requester waits, before the request's number in eight hexadecimal digits.
pub const SOCKET_NAME: &[u8; 12] = b"\0radic-ckpt-";

/// Advice in force for a region of memory (`madvise`, `mlock`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advised {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Bits of `image::meta::advice`.
    pub bits: u8,
}

/// Most regions with advice that a request may name.
pub const MAX_ADVISED: usize = 65_536;
/// Bytes of each.
pub const ADVISED_BYTES: usize = 17;

impl Advised {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; ADVISED_BYTES] {
        let mut out = [0; ADVISED_BYTES];
        out[..8].copy_from_slice(&self.start.to_le_bytes());
        out[8..16].copy_from_slice(&self.end.to_le_bytes());
        out[16] = self.bits;
        out
    }

    /// Reads it back.
    #[must_use]
    pub fn decode(bytes: &[u8; ADVISED_BYTES]) -> Self {
        let (words, bits) = bytes.as_chunks::<8>();
        Self { start: u64::from_le_bytes(words[0]), end: u64::from_le_bytes(words[1]), bits: bits[0] }
    }
}

/// The regions with advice, from the text of /proc/PID/smaps.
pub fn advised(smaps: &[u8]) -> impl Iterator<Item = Advised> {
    let mut last = (0, 0);
    maps::lines(smaps).filter_map(move |line| {
        if let Some(region) = maps::parse(line) {
            last = (region.start, region.end);
        }
        let bits = maps::advice_of(line.strip_prefix(b"VmFlags: ")?);
        (bits != 0).then_some(Advised { start: last.0, end: last.1, bits })
    })
}

/// The rest of a request: a count, then the regions with advice, at most `MAX_ADVISED`. The requester reads them, because the kernel takes milliseconds
/// for each GiB to list them, and the process can run meanwhile.
#[must_use]
pub fn advice_message(smaps: &[u8]) -> Vec<u8> {
    let regions: Vec<_> = advised(smaps).take(MAX_ADVISED).flat_map(|region| region.encode()).collect();
    let mut message = ((regions.len() / ADVISED_BYTES) as u32).to_le_bytes().to_vec();
    message.extend_from_slice(&regions);
    message
}

/// A whole image, nothing tracked, nothing packed.
impl From<Mode> for Request {
    fn from(mode: Mode) -> Self {
        Self { mode, ..Self::default() }
    }
}

impl Request {
    /// The request's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut out = [0; REQUEST_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8] = self.mode as u8;
        out[9] = self.tracking as u8;
        out[10] = u8::from(self.compress);
        out[16..].copy_from_slice(&self.parent.to_le_bytes());
        out
    }

    /// Reads a request back; none if the bytes are not one.
    #[must_use]
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let request = Self {
            mode: if bytes[8] == Mode::Stop as u8 { Mode::Stop } else { Mode::Fork },
            tracking: match bytes[9] {
                0 => Tracking::Off,
                1 => Tracking::Best,
                _ => Tracking::Hashes,
            },
            compress: bytes[10] == 1,
            parent: u64::from_le_bytes(*bytes.last_chunk()?),
        };
        (request.encode() == *bytes).then_some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_of_regions() {
        let smaps = b"1000-3000 rw-p 00000000 00:00 0 \nRss: 8 kB\nVmFlags: rd wr dd \n3000-4000 r--p 00000000 00:00 0 \nVmFlags: rd mr \n";
        let message = advice_message(smaps);
        assert_eq!(message[..4], 1u32.to_le_bytes());
        let bytes = message[4..].first_chunk().unwrap();
        let expected = Advised { start: 0x1000, end: 0x3000, bits: crate::image::meta::advice::DONT_DUMP };
        assert_eq!((Advised::decode(bytes), message.len()), (expected, 4 + ADVISED_BYTES));
    }

    #[test]
    fn a_request_is_read_back_and_nothing_else_is() {
        for (mode, tracking) in [(Mode::Stop, Tracking::Off), (Mode::Fork, Tracking::Best), (Mode::Fork, Tracking::Hashes)] {
            let request = Request { mode, tracking, compress: mode == Mode::Fork, parent: 0x0123_4567_89ab_cdef };
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        let good = Request::default().encode();
        for at in (0..16).filter(|at| ![8, 9, 10].contains(at)) {
            let mut bad = good;
            bad[at] ^= 0x80;
            assert_eq!(Request::decode(&bad), None, "byte {at}");
        }
        for at in [8, 9, 10] {
            let mut bad = good;
            bad[at] = 9;
            assert_eq!(Request::decode(&bad), None, "byte {at}");
        }
    }
}
