//! The image format: written by the engine, checked and read by all else. No unsafe; `read` and `chain` alone do I/O, through
//! `std::io::Read`, and `chain` looks for files.

// `format` is also part of the restorer, which has the checksum and pages by the same names.
pub mod chain;
pub mod format;
pub mod meta;
mod read;
mod write;

pub use format::{CpuFeatures, FormatError, Header, Run};
pub use meta::{Meta, MetaWriter};
pub use read::{ImageError, Reader, Report, as_hexadecimal, hexadecimal, inspect, verify};
pub use write::{ImageWriter, Sink, WriteSink};
