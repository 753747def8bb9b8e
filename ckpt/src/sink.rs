//! Where an image goes.

use crate::image::Sink;
use crate::sys::{self, Errno};

/// Takes the next bytes of an image, two pieces, for this descriptor. The number is [`Through::context`]; an error is one of the system's.
pub type WritePieces = fn(u64, i32, &[u8], &[u8]) -> Result<(), i32>;

/// Functions of a library that embeds the engine, which write an image in another form than its own. They run where it is written, perhaps in a child that
/// shares the program's memory while the program goes on: no allocation, no lock, no libc.
#[derive(Clone, Copy, Debug)]
pub struct Through {
    /// Given to both: where they have what they need.
    pub context: u64,
    /// Writes the next bytes.
    pub write: WritePieces,
    /// All bytes were given: the descriptor. An error is one of the system's numbers.
    pub end: fn(u64, i32) -> Result<(), i32>,
}

/// Where an image goes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The descriptor.
    pub fd: i32,
    /// See [`crate::hooks::Wanted::through`].
    pub through: Option<Through>,
}

impl From<i32> for Target {
    fn from(fd: i32) -> Self {
        Target { fd, through: None }
    }
}

impl Sink for Target {
    type Error = Errno;
    fn put(&mut self, head: &[u8], tail: &[u8]) -> Result<(), Errno> {
        match self.through {
            None => sys::write_both(self.fd, head, tail),
            Some(Through { context, write, .. }) => write(context, self.fd, head, tail).map_err(Errno),
        }
    }
}

impl Target {
    /// All of it was written.
    pub fn end(self) -> Result<(), Errno> {
        self.through.map_or(Ok(()), |Through { context, end, .. }| end(context, self.fd).map_err(Errno))
    }
}
