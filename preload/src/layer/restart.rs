//! A process that has come back from an image, in a later incarnation: it finds its node, catches up with its log, and goes on with its peers.
//!
//! The first call that gets the layer after a restore finds its memory as it was in the middle of a checkpoint, and everything
//! outside of it gone. What becomes of what the layer and the library's statics hold:
//!
//! | what | after a restore |
//! |---|---|
//! | `Layer::observer` | `Observer::restart`; then it is told of every process that was restarted |
//! | `node`, `journal`, `bulk` | sockets of an earlier incarnation, dead: closed, made again |
//! | `images` | the connection is closed; no image is under way, and the first one is a whole one |
//! | `replayer` | none: that is for `radic replay`, which restores a copy that is alone |
//! | `arrived`, `links`, the program's sockets and listeners | [`Layer::break_all`] and [`Layer::relisten`]: placeholders, to be linked again |
//! | `lingering`, `unsent` | their sockets are dead: bytes are in the outbox and leave when a link is up |
//! | `calls` | those that were under way were refused |
//! | `names`, `listeners`, `aliases` | hold: the program sees what it saw |
//! | `key`, `foreign`, all that is secret | zeroes: the node says them again |
//! | `session` | a new one, with the protector that the node says: it has the log |
//! | `idle` | counts from 0 |
//! | `seldom` | holds: it is soon as the clock has it |
//! | `outputs` | new pipes: what may not have arrived is written once more ([`crate::output`]) |
//! | `input` | a new pipe, into which nothing comes before the process is live ([`crate::input`]) |
//! | `pmi` | a new connection under the old number ([`crate::pmi`]) |
//! | `LAYER`'s lock | held by the checkpoint's handler; adopted and freed by `imaging::restored` |
//! | `HEAP`, `EPOLLS`, `FULL`, `STREAMS` locks | as they were: the thread that holds one is restored, too, in the middle of holding it |
//! | `LEAVES`, all of [`crate::here`] and [`crate::threads`] | hold: threads are the same |
//! | `PHASE`, `UNSENT`, `DUE` | `PHASE` holds; `UNSENT` off; a checkpoint that is wanted still is |
//! | `fds::KINDS` | hold for the program's; the layer's own are set again |
//! | epolls | the engine restores them, with what they watch; for placeholders they are told again (`watches::replaced`) |
//! | `LOGGED`, `CHANGES`, `looked` | hold: they follow from the program's calls |
//! | `NUMBERS`, `doubts` | hold: they follow from the program's calls |
//! | `FULL`, `STARVED` | hold: the next look at the outbox decides |
//! | counters | their page is in the image: they go on from there |
//! | functions behind the hooks, tables of stream operations, `identity::FIRST` | hold: same libraries, same addresses, same answers |
//! | children | lost: to the program SIGKILL has ended each ([`crate::children`]) |
//! | time | deadlines of calls are by CLOCK_MONOTONIC, which the engine does not let go back |

use std::os::fd::AsFd;

use radic_observer::Wait;
use radic_observer::session::Session;
use radic_wire::PROTOCOL_VERSION;
use radic_wire::determinant::ConnectionId;
use radic_wire::process::{FromNode, Point, Restart, ToNode};
use rustix::event::PollFd;
use rustix::io::Errno;

use super::Layer;
use crate::ending::{diverged, fail, sure};
use crate::fds::{self, Kind};
use crate::node::Node;
use crate::replay::Replayer;
use crate::{children, memory, sys};

/// Bytes of journal that are here at once.
const BUFFER: usize = 1 << 20;
/// Time that a call waits for peers before it looks again, in nanoseconds: they also come by what only the layer listens to.
const LOOK_NS: u64 = 100_000_000;
/// This process has just come back. `layer`: as it was in the image.
pub fn come_back(layer: &mut Layer) {
    let launcher = radic_ckpt::launcher();
    children::handle_restored();
    if launcher == 0 || radic_ckpt::is_alone() {
        layer.node.fall_silent();
        layer.replayer = Some(Replayer::begin(&mut layer.observer, launcher));
    } else if let Err((what, error)) = layer.come_back(launcher) {
        fail(&format!("it was restored, and {what}: {error}"));
    }
}

fn failed(what: &'static str) -> impl Fn(Errno) -> (&'static str, Errno) {
    move |error| (what, error)
}

/// The layer's own descriptors of the image are closed one after the other, when their owners get new ones. The numbers that the engine has not restored are
/// held until then: a new descriptor under such a number would be closed in place of the old one.
fn hold_numbers() -> Result<(), Errno> {
    let dead = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?.0;
    let is_free = |fd: &i32| rustix::io::fcntl_getfd(sys::borrow(*fd)) == Err(Errno::BADF);
    fds::all(Kind::Own).filter(is_free).try_for_each(|fd| sys::replace(dead.as_fd(), fd))
}

impl Layer {
    /// Where the process stands at an image that is made now, or that it has just come back from.
    fn point(&self) -> Point {
        let (fences, pmi) = self.pmi.point();
        let (incarnation, cut) = (self.observer.incarnation(), self.observer.journal().end());
        Point { incarnation, cut, output: self.outputs.offsets(), fences, pmi }
    }

    fn come_back(&mut self, launcher: u64) -> Result<(), (&'static str, Errno)> {
        hold_numbers().map_err(failed("it has no descriptors"))?;
        let point = self.point();
        let whole = self.outputs.handle_restored();
        self.input.handle_restored();
        self.calls.handle_restored();
        let mut node = Node::of_launcher(launcher).map_err(failed("its node is not there"))?;
        let process = self.observer.process();
        let restored = ToNode::Restored { version: PROTOCOL_VERSION, process, point };
        let is_answer = |message: &FromNode| matches!(message, FromNode::Restart(_) | FromNode::Refused(_));
        let restart = match node.ask(&restored, is_answer).map_err(failed("its node does not answer"))? {
            FromNode::Restart(restart) => restart,
            FromNode::Refused(why) => fail(&format!("it was restored, and its node does not want it: {why}")),
            _ => return Err(("its node says something else", Errno::PROTO)),
        };
        std::mem::replace(&mut self.node, node).close();
        self.node.appoint();
        self.begin_again(*restart);
        self.tell_doubts();
        self.open_door().map_err(failed("it has no door for its peers"))?;
        self.ask_foreign_keys();
        self.connect_pmi(launcher).map_err(failed("it has no connection to its process manager"))?;
        self.relisten().map_err(failed("its program cannot listen"))?;
        if !whole {
            self.note("its standard output and error were exchanged: what it prints after a restart cannot be put together with what it has printed");
        }
        self.outputs.write_again();
        self.look_at_log();
        Ok(())
    }

    /// The observer in its new incarnation, with the connections to its log.
    fn begin_again(&mut self, restart: Restart) {
        self.key = restart.key;
        self.images.handle_restored();
        self.forget_sockets();
        let Restart { incarnation, log_end, held, images, causes, .. } = restart;
        if self.observer.payload().line().is_some() {
            // Else images would have it, and be larger than they need.
            _ = memory::keep_to_itself(self.observer.outbox().memory());
        }
        sure(self.observer.restart(incarnation, log_end, held, images, (causes.0, &causes.1), BUFFER));
        for (process, incarnation) in &restart.restarted {
            self.observer.handle_restarted(*process, *incarnation);
        }
        self.break_all();
        self.session = Session::restarted(restart.protector, restart.log_end);
        self.drive_session(Session::handle_timeout);
        self.await_session();
    }

    /// A connection to the process manager of this incarnation, where the program has its own.
    fn connect_pmi(&mut self, launcher: u64) -> Result<(), Errno> {
        let Some(fd) = self.pmi.fd() else { return Ok(()) };
        let mut new = Node::of_launcher(launcher)?;
        new.send(&ToNode::Pmi { process: self.observer.process() })?;
        sys::replace(new.fd(), fd)?;
        new.close();
        rustix::io::ioctl_fionbio(sys::borrow(fd), !fds::is_blocking(fd))?;
        self.pmi.handle_restored();
        self.tend_pmi();
        Ok(())
    }

    /// What a call of a process that catches up waits for.
    pub(crate) fn wait_to_catch_up(&mut self, what: Wait) {
        match what {
            Wait::Log => self.wait_for_journal(),
            Wait::Peers | Wait::Event | Wait::Turn => self.wait_for_peers(),
            other => fail(&format!("replay waits for {other:?}")),
        }
    }

    /// Looks after everything, and listens for a while to whatever may change something.
    fn wait_for_peers(&mut self) {
        self.tend();
        let awaited: Vec<_> = self.awaited().collect();
        let mut fds: Vec<_> = awaited.iter().map(|(fd, events)| PollFd::from_borrowed_fd(sys::borrow(*fd), *events)).collect();
        _ = sys::poll(&mut fds, Some(sys::span(LOOK_NS)));
        self.tend();
    }

    /// The program finds nothing. In replay: does it go another way?
    pub(crate) fn check_way(&mut self) {
        if let Some(overdue) = sure(self.observer.check_way()) {
            diverged(&overdue.to_string());
        }
    }

    /// In replay: the program accepts a connection, on `fd`, as it did then. Its link may be here already.
    pub(crate) fn place(&mut self, connection: ConnectionId, fd: i32) -> Result<(), Errno> {
        let at = self.arrived.iter().position(|arrived| arrived.connection == connection);
        let arrived = at.map(|at| self.arrived.swap_remove(at));
        if arrived.as_ref().is_some_and(|arrived| arrived.fd == fd) {
            return Ok(());
        }
        if rustix::io::fcntl_getfd(sys::borrow(fd)).is_ok() {
            let (thread, position) = (self.observer.awaited().map_or(0, |(thread, _)| thread), self.observer.log_position());
            diverged(&format!(
                "replay diverged at journal position {position}, where thread {thread} had the outcome of an accept: descriptor {fd}, which was free then, is open"
            ));
        }
        let Some(arrived) = arrived else { return sys::place(fd) };
        let socket = sys::own(arrived.fd);
        let placed = sys::replace(socket.as_fd(), fd);
        sys::close_own(socket);
        placed
    }
}
