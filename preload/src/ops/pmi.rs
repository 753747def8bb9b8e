//! The program's words with the process manager ([`crate::pmi`]): what it reads and writes on that connection.

use std::io::{IoSlice, IoSliceMut};

use radic_observer::connection::Phase;
use radic_observer::{Input, Wait};
use radic_wire::determinant::KernelCall;
use radic_wire::limits;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::waiting::{await_turn_of_output, take_turns, takes_turns, wait};
use crate::ending::sure;
use crate::layer::{self, Held, Layer};
use crate::pmi::says;
use crate::{fds, sys};

/// Longest question that is kept: a line of PMI-1 is shorter, spawning included.
const QUESTION: usize = 64 << 10;

/// `read` and its kin on the connection. None: it is not there.
pub(crate) fn receive(fd: i32, parts: &mut [IoSliceMut<'_>], dont_wait: bool) -> Option<Result<usize, Errno>> {
    let layer = layer::enter()?;
    layer.pmi.fd().filter(|known| *known == fd)?;
    Some(read(layer, fd, parts, dont_wait || !fds::is_blocking(fd)))
}

fn read(mut layer: Held, fd: i32, parts: &mut [IoSliceMut<'_>], dont_wait: bool) -> Result<usize, Errno> {
    let Some(part) = parts.iter_mut().find(|part| !part.is_empty()) else { return Ok(0) };
    let most = part.len().min(limits::ANSWER);
    let (part, thread) = (&mut part[..most], layer.thread());
    loop {
        match sure(layer.observer.launcher(thread, part, !dont_wait)) {
            Input::Again(count) => {
                layer.pmi.conversation.handle_answer(&part[..count], true);
                layer.tend_pmi();
                layer.ship();
                return Ok(count);
            }
            Input::Live => {
                // When a process is replayed alone, nothing answers what its log does not hold.
                layer.tend_pmi();
                let count = if layer.replayer.is_some() { None } else { take(&mut layer, fd, part)? };
                match count {
                    Some(count) => return Ok(count),
                    None if dont_wait => {
                        sure(layer.observer.handle_nothing(thread));
                        layer.note_nothing();
                        return Err(Errno::AGAIN);
                    }
                    None => {
                        layer.end_replay_that_waits();
                        layer = wait(layer, &[(fd, PollFlags::IN)], None)?;
                    }
                }
            }
            Input::Nothing => {
                layer.note_nothing();
                return Err(Errno::AGAIN);
            }
            Input::Wait(Wait::Event) if !takes_turns(&layer) => layer = wait(layer, &[(fd, PollFlags::IN)], None)?,
            Input::Wait(other) => layer = take_turns(layer, other)?,
        }
    }
}

/// Bytes of the answer to the program's question, as an outcome; 0: the connection has ended. None: there are none yet.
fn take(layer: &mut Layer, fd: i32, part: &mut [u8]) -> Result<Option<usize>, Errno> {
    // What comes first is not for the program.
    if layer.pmi.conversation.telling || layer.pmi.conversation.held {
        return Ok(None);
    }
    loop {
        let count = match rustix::net::recv(sys::borrow(fd), &mut *part, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Ok(Some(0)),
            Ok((_, count)) => count,
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        };
        let skipped = layer.pmi.conversation.handle_read(&part[..count]);
        part.copy_within(skipped..count, 0);
        let count = count - skipped;
        if count > 0 {
            let thread = layer.thread();
            sure(layer.observer.handle_kernel(thread, KernelCall::Launcher, &part[..count]));
            layer.ship();
            return Ok(Some(count));
        }
    }
}

/// `write` and its kin on the connection. None: it is not there.
pub(crate) fn send(fd: i32, parts: &[IoSlice<'_>]) -> Option<Result<usize, Errno>> {
    let mut layer = layer::enter()?;
    layer.pmi.fd().filter(|known| *known == fd)?;
    // It leaves the process, too (G1).
    layer = match await_turn_of_output(layer) {
        Ok(layer) => layer,
        Err(error) => return Some(Err(error)),
    };
    layer.pass_gate_of_output();
    let Some(part) = parts.iter().find(|part| !part.is_empty()) else { return Some(Ok(0)) };
    if layer.pmi.conversation.question.len() + part.len() > QUESTION {
        layer.note("it asks its process manager something very long: that may be lost in a restart");
        layer.pmi.conversation.question.clear();
    }
    // What the log may answer is not asked again. In `radic replay` there is no process manager, and nothing leaves.
    let is_replayed = layer.replayer.is_some() || layer.observer.phase() == Phase::Replaying;
    // An abort has no answer.
    let waits = (is_replayed || layer.pmi.conversation.is_behind()) && !says(part, "abort");
    let sent = if waits || layer.replayer.is_some() {
        layer.pmi.conversation.held = true;
        Ok(part.len())
    } else {
        rustix::net::send(sys::borrow(fd), part, SendFlags::NOSIGNAL)
    };
    if let Ok(count) = sent {
        layer.pmi.conversation.handle_written(&part[..count]);
    }
    Some(sent)
}
