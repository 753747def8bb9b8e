//! Standard output and standard error: what was written to their pipes, and is written once more after a restart.

use radic_observer::output::Output;
use radic_wire::limits;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::fds::{self, Kind};
use crate::sys;

/// What a pipe takes at once or not at all, and always takes if there is room: the kernel's PIPE_BUF.
pub(crate) const PIECE: usize = 4096;
/// What a pipe holds.
const PIPE: usize = 64 << 10;
/// What may be on its way from the process to the job's home when the process's node dies: in the pipe, in the node's hands, in a message.
const KEPT: usize = PIPE + limits::OUTPUT_UNPRINTED + limits::CHUNK;

/// A pipe, whatever descriptors it has.
pub(crate) type Pipe = (u64, u64);

/// The pipe behind a descriptor, if there is one.
pub(crate) fn pipe_of(fd: i32) -> Option<Pipe> {
    let stat = rustix::fs::fstat(sys::borrow(fd)).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::Fifo).then_some((stat.st_dev, stat.st_ino))
}

/// One of the two streams.
#[derive(Debug)]
struct Stream {
    /// Where it is written to; none: nowhere that is counted.
    pipe: Option<Pipe>,
    output: Output,
}

impl Stream {
    fn new() -> Self {
        Stream { pipe: None, output: Output::new(KEPT) }
    }
}

/// Both streams.
#[derive(Debug)]
pub(crate) struct Outputs {
    streams: [Stream; 2],
    /// At the last image, which of them descriptors 1 and 2 were.
    places: [Option<usize>; 2],
}

impl Outputs {
    /// Those of this process, as its node has given them to it.
    pub(crate) fn new() -> Self {
        let mut outputs = Outputs { streams: [Stream::new(), Stream::new()], places: [None; 2] };
        for fd in [1, 2] {
            let pipe = pipe_of(fd);
            if pipe.is_some() {
                _ = fds::set(fd, Kind::Output, true);
            }
            // One pipe for both is standard output.
            if outputs.streams[0].pipe != pipe {
                outputs.streams[fd as usize - 1].pipe = pipe;
            }
        }
        outputs
    }

    /// Which of them is behind `fd`.
    pub(crate) fn which(&self, fd: i32) -> Option<usize> {
        let pipe = pipe_of(fd)?;
        self.streams.iter().position(|stream| stream.pipe == Some(pipe))
    }

    /// One of them.
    pub(crate) fn of(&mut self, which: usize) -> &mut Output {
        &mut self.streams[which].output
    }

    /// The descriptors of those of which something is to be written once more.
    pub(crate) fn owing(&self) -> impl Iterator<Item = i32> {
        self.streams.iter().zip([1, 2]).filter(|(stream, _)| stream.output.is_owing()).map(|(_, fd)| fd)
    }

    /// An image begins: the restored process gets new pipes on descriptors 1 and 2, and must know what they were.
    pub(crate) fn handle_image(&mut self) {
        self.places = [1, 2].map(|fd| self.which(fd));
    }

    /// The process is restored. False: the program has exchanged the two, and what it prints cannot be put together with what it has printed.
    #[must_use]
    pub(crate) fn handle_restored(&mut self) -> bool {
        let mut all = self.join_again().is_ok();
        for (at, stream) in self.streams.iter_mut().enumerate() {
            let there = self.places[at] == Some(at);
            all &= there || self.places[1 - at] != Some(at);
            stream.pipe = if there { pipe_of(at as i32 + 1) } else { None };
            stream.output.handle_restored(stream.pipe.is_some());
        }
        all
    }

    /// The node has given the process two pipes. If both descriptors were one stream (`2>&1`), they are so again.
    fn join_again(&self) -> Result<(), Errno> {
        for (at, other) in [(0, 1), (1, 0)] {
            if self.places[at] == Some(other) && self.places[other] == Some(other) {
                sys::replace(sys::borrow(other as i32 + 1), at as i32 + 1)?;
            }
        }
        Ok(())
    }

    /// Offsets at which begins what a process that is restored from an image made now will write to its new pipes.
    pub(crate) fn offsets(&self) -> [u64; 2] {
        [0, 1].map(|at| self.streams[at].output.offset())
    }

    /// Offsets after the last bytes that were written.
    pub(crate) fn ends(&self) -> [u64; 2] {
        [0, 1].map(|at| self.streams[at].output.end())
    }

    /// Whether anything is to be written once more.
    pub(crate) fn is_owing(&self) -> bool {
        self.streams.iter().any(|stream| stream.output.is_owing())
    }

    /// Writes once more what is to be, as far as the pipes take it.
    pub(crate) fn write_again(&mut self) {
        for (fd, stream) in (1..).zip(&mut self.streams) {
            while let Some(owed) = stream.output.owed(PIECE) {
                match sys::write_now(sys::borrow(fd), owed) {
                    Ok(0) => break,
                    Ok(count) => stream.output.handle_written_again(count),
                    Err(_) => stream.output.handle_no_reader(),
                }
            }
        }
    }
}

impl Default for Outputs {
    fn default() -> Self {
        Outputs::new()
    }
}
