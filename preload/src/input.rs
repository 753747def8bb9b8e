//! Standard input: what the program reads of it is an outcome like any other, and its bytes are in the journal ([`Determinant::Input`]).
//!
//! Only rank 0 has a standard input, a pipe from its node. A restored process has a new pipe on descriptor 0, into which nothing comes before it is live: then
//! its node is told how much the program has read in all its incarnations, and the terminal goes on from there, and says again what was lost in the old pipe.
//!
//! `read` and `readv` are hooks; the C library's own streams (`fgets`, `scanf`, `std::cin`) read through a slot of its table of
//! stream operations, where our function is ([`crate::output`] says why). Whether the pipe is readable is logged as for a
//! connection (`ops::ready`).
//!
//! [`Determinant::Input`]: radic_wire::determinant::Determinant::Input

use std::io::IoSliceMut;

use radic_observer::{Input, Wait};
use radic_wire::limits;
use rustix::event::PollFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::counters::{self, Counter};
use crate::ending::sure;
use crate::fds::{self, Kind};
use crate::layer::{self, Held, Layer};
use crate::ops::{clip_mut, take_turns, takes_turns, wait};
use crate::output::{Pipe, pipe_of};
use crate::sys;

/// The pipe from the node.
#[derive(Debug)]
pub struct InputPipe {
    /// None: there is none, or the program has put something else in its place.
    pipe: Option<Pipe>,
    /// At the last image it was descriptor 0.
    in_place: bool,
    /// A program before this one, in the same process, may have read some of it: how much is not known here.
    inherited: bool,
}

impl InputPipe {
    /// That of this process, as its node has given it. `inherited`: another program ran in this process before (exec).
    pub fn new(inherited: bool) -> Self {
        let pipe = pipe_of(0).filter(|_| fds::set(0, Kind::Input, true));
        InputPipe { pipe, in_place: true, inherited }
    }

    /// An image begins: the restored process gets a new pipe on descriptor 0, and must know whether that takes the old one's place.
    pub fn handle_image(&mut self) {
        self.in_place = self.pipe.is_some() && pipe_of(0) == self.pipe;
    }

    /// The process is restored.
    pub fn handle_restored(&mut self) {
        self.pipe = if self.in_place { pipe_of(0) } else { None };
    }
}

impl Layer {
    /// How much of standard input the program has read, in all its incarnations; none: that is not known.
    pub(crate) fn input_read(&self) -> Option<u64> {
        (!self.input.inherited).then(|| self.observer.input_read())
    }
}

/// `read` and its kin. None: the descriptor is not this pipe; the call passes through.
pub fn read(fd: i32, parts: &mut [IoSliceMut<'_>]) -> Option<Result<usize, Errno>> {
    let mut layer = layer::enter()?;
    layer.input.pipe.filter(|pipe| pipe_of(fd) == Some(*pipe))?;
    let total: usize = parts.iter().map(|part| part.len()).sum();
    if total == 0 {
        return Some(Ok(0));
    }
    Some(Reading { fd, thread: layer.thread(), most: total.min(limits::INPUT) }.run(layer, parts))
}

struct Reading {
    fd: i32,
    thread: u32,
    most: usize,
}

impl Reading {
    fn run(self, mut layer: Held, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        let mut piece = [0; limits::INPUT];
        let piece = &mut piece[..self.most];
        let flags = rustix::fs::fcntl_getfl(sys::borrow(self.fd))?;
        let waits = !flags.contains(OFlags::NONBLOCK);
        loop {
            match sure(layer.observer.input(self.thread, piece, waits)) {
                Input::Again(count) => {
                    layer.ship();
                    return Ok(give(parts, &piece[..count]));
                }
                Input::Live => {
                    // What was read before is safe; what is read now can be said again.
                    layer.pass_gate();
                    if let Some(count) = sys::read_now(sys::borrow(self.fd), piece)? {
                        sure(layer.observer.handle_input(self.thread, &piece[..count]));
                        counters::add(Counter::Events, 1);
                        layer.ship();
                        return Ok(give(parts, &piece[..count]));
                    }
                    if !waits {
                        sure(layer.observer.handle_nothing(self.thread));
                        return Err(Errno::AGAIN);
                    }
                    layer = self.wait(layer)?;
                }
                Input::Nothing => return Err(Errno::AGAIN),
                Input::Wait(Wait::Event) if !takes_turns(&layer) => layer = self.wait(layer)?,
                Input::Wait(other) => layer = take_turns(layer, other)?,
            }
        }
    }

    fn wait(&self, layer: Held) -> Result<Held, Errno> {
        wait(layer, &[(self.fd, PollFlags::IN)], None)
    }
}

/// Into the program's buffers, which have room for it.
fn give(parts: &mut [IoSliceMut<'_>], bytes: &[u8]) -> usize {
    let mut rest = bytes;
    for part in clip_mut(parts, 0, bytes.len()).iter_mut() {
        let (now, later) = rest.split_at(part.len());
        part.copy_from_slice(now);
        rest = later;
    }
    bytes.len()
}
