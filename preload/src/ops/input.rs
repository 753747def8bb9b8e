//! Standard input: what the program reads of it is an outcome like any other, and its bytes are in the journal ([`Determinant::Input`]).
//!
//! Only rank 0 has a standard input, a pipe from its node. A restored process has a new pipe on descriptor 0, into which nothing comes before it is live: then
//! its node is told how much the program has read in all its incarnations, and the terminal goes on from there, and says again what was lost in the old pipe.
//!
//! `read` and `readv` are hooks; the C library's own streams (`fgets`, `scanf`, `std::cin`) read through a slot of its table of
//! stream operations, where our function is ([`super::output`] says why). Whether the pipe is readable is logged as for a
//! connection (`ops::ready`).
//!
//! [`Determinant::Input`]: radic_wire::determinant::Determinant::Input

use std::io::IoSliceMut;

use radic_observer::{Input, Wait};
use radic_wire::limits;
use rustix::event::PollFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::waiting::{take_turns, takes_turns, wait};
use crate::buffers::clip_mut;
use crate::counters::{self, Counter};
use crate::ending::sure;
use crate::layer::{self, Held};
use crate::output::pipe_of;
use crate::sys;

/// `read` and its kin. None: the descriptor is not this pipe; the call passes through.
pub(crate) fn read(fd: i32, parts: &mut [IoSliceMut<'_>]) -> Option<Result<usize, Errno>> {
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
