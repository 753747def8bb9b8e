//! Standard output and standard error: exactly once as far as the process goes (G3), and not before the gate (G1).
//!
//! Every write on one of these pipes comes by [`write()`]: through the gate, counted, and kept in an [`Output`], which decides what a restored process writes
//! once more. In replay the program's writes are done again, after that.
//!
//! How every write gets here: `write` and its kin are hooks, and that is what Fortran, Python and C++ without `sync_with_stdio`
//! use. The C library's own streams (`printf`, `puts`, `perror`, `std::cout`) write by an internal name that cannot be
//! interposed. They do it through a slot of its table of stream operations, the exported `_IO_file_jumps`, and there is our
//! function instead (`hooks::stdio::watch_streams`; only if the slot holds the exported `_IO_file_write`, so another C library is
//! noticed, and told: G7). What else was thought of: a stream of our own as `stdout` (`fopencookie`) is too late for `std::cout`,
//! which keeps the C library's stream since before our constructor runs, and breaks `freopen` and the descriptor in the stream; a
//! pipe of our own with a reader needs a thread; counting by the node needs a conversation at every checkpoint, and cannot close
//! the gate before a byte is in the pipe. With the slot nothing is different for the program: same stream, same buffer, same
//! buffering (a pipe: full), same descriptor.
//!
//! Not covered: `syscall(SYS_write, ..)`, and children. A child's bytes are in the pipe uncounted. If the process is restarted,
//! its home has that many bytes more than the process knows of, and drops as many of what comes next: output of a program with
//! children that print may lack bytes after a restart (the node's log tells of each program that starts children anyway).

use std::io::IoSlice;

use radic_observer::output::Output;
use radic_wire::limits;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::fds::{self, Kind};
use crate::layer::{self, Held, Layer};
use crate::ops::{await_turn_of_output, wait};
use crate::sys;

/// What a pipe takes at once or not at all, and always takes if there is room: the kernel's PIPE_BUF.
const PIECE: usize = 4096;
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
pub struct Outputs {
    streams: [Stream; 2],
    /// At the last image, which of them descriptors 1 and 2 were.
    places: [Option<usize>; 2],
}

impl Outputs {
    /// Those of this process, as its node has given them to it.
    pub fn new() -> Self {
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
    fn which(&self, fd: i32) -> Option<usize> {
        let pipe = pipe_of(fd)?;
        self.streams.iter().position(|stream| stream.pipe == Some(pipe))
    }

    /// An image begins: the restored process gets new pipes on descriptors 1 and 2, and must know what they were.
    pub fn handle_image(&mut self) {
        self.places = [1, 2].map(|fd| self.which(fd));
    }

    /// The process is restored. False: the program has exchanged the two, and what it prints cannot be put together with what it has printed.
    #[must_use]
    pub fn handle_restored(&mut self) -> bool {
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
    pub fn offsets(&self) -> [u64; 2] {
        [0, 1].map(|at| self.streams[at].output.offset())
    }

    /// Offsets after the last bytes that were written.
    pub fn ends(&self) -> [u64; 2] {
        [0, 1].map(|at| self.streams[at].output.end())
    }

    /// Whether anything is to be written once more.
    pub fn is_owing(&self) -> bool {
        self.streams.iter().any(|stream| stream.output.is_owing())
    }

    /// Writes once more what is to be, as far as the pipes take it.
    pub fn write_again(&mut self) {
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

/// `write` and its kin. None: the descriptor is none of these pipes; it passes through.
pub fn write(fd: i32, parts: &[IoSlice<'_>]) -> Option<Result<usize, Errno>> {
    let layer = layer::enter()?;
    let which = layer.outputs.which(fd)?;
    let total = parts.iter().map(|part| part.len()).sum();
    Some(Writing { fd, which, total, done: 0 }.run(layer, parts))
}

struct Writing {
    fd: i32,
    which: usize,
    total: usize,
    done: usize,
}

impl Writing {
    /// The layer is held around each piece, so that an image has counted it or has not written it; but not while the pipe is full.
    fn run(mut self, mut layer: Held, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let mut piece = [0; PIECE];
        while self.done < self.total {
            layer.ship();
            layer = await_turn_of_output(layer)?;
            layer.pass_gate_of_output();
            layer.outputs.write_again();
            let length = copy(parts, self.done, &mut piece);
            let output = &mut layer.outputs.streams[self.which].output;
            let written = if output.is_owing() { Ok(0) } else { sys::write_now(sys::borrow(self.fd), &piece[..length]) };
            let count = written.or_else(|error| self.over(error))?;
            if count > 0 {
                output.handle_written(&piece[..count]);
                self.done += count;
            } else {
                if self.done == self.total {
                    break;
                }
                layer = self.wait(layer)?;
            }
        }
        Ok(self.done)
    }

    /// An error after some bytes is for the next call.
    fn over(&mut self, error: Errno) -> Result<usize, Errno> {
        if self.done == 0 {
            return Err(error);
        }
        self.total = self.done;
        Ok(0)
    }

    fn wait(&mut self, layer: Held) -> Result<Held, Errno> {
        let flags = rustix::fs::fcntl_getfl(sys::borrow(self.fd))?;
        let error = if flags.contains(rustix::fs::OFlags::NONBLOCK) {
            Errno::AGAIN
        } else {
            match wait(layer, &[(self.fd, PollFlags::OUT)], None) {
                Err(error) => error,
                held => return held,
            }
        };
        self.over(error)?;
        layer::enter_again()
    }
}

/// The bytes of `parts` from `skip` on, as many as there is room for.
fn copy(parts: &[IoSlice<'_>], mut skip: usize, room: &mut [u8]) -> usize {
    let mut filled = 0;
    for part in parts {
        let from = part.len().min(skip);
        skip -= from;
        let take = (part.len() - from).min(room.len() - filled);
        room[filled..filled + take].copy_from_slice(&part[from..from + take]);
        filled += take;
    }
    filled
}

impl Layer {
    /// The process ends: what is to be written once more is, however slow the reader is, as if the program wrote it.
    pub fn write_owed_output(&mut self) {
        while self.outputs.is_owing() {
            self.outputs.write_again();
            self.tend();
            let waiting: Vec<_> = self.outputs.streams.iter().zip([1, 2]).filter(|(s, _)| s.output.is_owing()).collect();
            let fds = waiting.iter().map(|(_, fd)| PollFd::from_borrowed_fd(sys::borrow(*fd), PollFlags::OUT));
            _ = sys::poll(&mut fds.collect::<Vec<_>>(), Some(sys::span(100_000_000)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_copied_from_any_place() {
        let parts = [IoSlice::new(b"abc"), IoSlice::new(b""), IoSlice::new(b"defgh")];
        let mut room = [0; 4];
        assert_eq!((copy(&parts, 2, &mut room), &room), (4, b"cdef"));
        assert_eq!((copy(&parts, 6, &mut room), &room[..2]), (2, &b"gh"[..]));
        assert_eq!(copy(&parts, 8, &mut room), 0);
    }
}
