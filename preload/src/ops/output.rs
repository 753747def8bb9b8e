//! Standard output and standard error: exactly once as far as the process goes (G3), and not before the gate (G1).
//!
//! Every write on one of these pipes comes by [`write()`]: through the gate, counted, and kept in an [`Output`](radic_observer::output::Output), which
//! decides what a restored process writes once more. In replay the program's writes are done again, after that.
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

use rustix::event::PollFlags;
use rustix::io::Errno;

use super::waiting::{await_turn_of_output, wait};
use crate::layer::{self, Held};
use crate::output::PIECE;
use crate::sys;

/// `write` and its kin. None: the descriptor is none of these pipes; it passes through.
pub(crate) fn write(fd: i32, parts: &[IoSlice<'_>]) -> Option<Result<usize, Errno>> {
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
            let output = layer.outputs.of(self.which);
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
