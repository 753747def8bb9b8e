//! The image format: written by the engine, checked and read by everybody else. No unsafe; `read` alone does I/O, through
//! `std::io::Read`.

// The restorer includes `format` by path and has its own crate root; both find the checksum through their parent.
use crate::crc::crc32c;

pub mod format;
pub mod meta;
mod read;
mod write;

pub use format::{CpuFeatures, FormatError, Header, Run};
pub use meta::{Meta, MetaWriter};
pub use read::{ImageError, Reader, Report, inspect, verify};
pub use write::{ImageWriter, Sink};
