//! A process that has come back from an image, in a later life: it finds its node, catches up with its log, and goes on with everybody else.
//!
//! The first call that gets the layer after a restore finds its memory as it was in the middle of a checkpoint, and everything outside of it gone. What becomes of
//! what the layer and the library's statics hold:
//!
//! | what | after a restore |
//! |---|---|
//! | `Layer::observer` | `Observer::restart`; then it is told of every process that was restarted |
//! | `node`, `journal`, `bulk` | sockets of an earlier life, dead: closed, made anew |
//! | `images` | the connection is closed; no image is under way, and the first one is a whole one |
//! | `replayer` | none: that is for `radic replay`, which restores a copy that is alone |
//! | `arrived`, `links`, the program's sockets and listeners | [`Layer::break_all`] and [`Layer::relisten`]: placeholders, to be linked anew |
//! | `lingering`, `unsent` | their sockets are dead: bytes are in the outbox and leave when a link is up |
//! | `names`, `listeners`, `aliases`, `broken` | hold: the program sees what it saw |
//! | `process` | holds |
//! | `key`, `foreign`, all that is secret | zeroes: the node says them again |
//! | `protector` | as the node says |
//! | `asked` | questions to a node that is gone: forgotten |
//! | `idle` | begins anew |
//! | `outputs` | new pipes: what may not have arrived is written once more ([`crate::output`]) |
//! | `input` | a new pipe, into which nothing comes before the process lives again ([`crate::input`]) |
//! | `pmi` | a new connection under the old number ([`crate::pmi`]) |
//! | `LAYER`'s lock | held by the checkpoint's handler; adopted and freed by `image::restored` |
//! | `HEAP`, `EPOLLS`, `FULL`, `STREAMS` locks | as they were: the thread that holds one is restored, too, in the middle of holding it |
//! | `INSIDE`, `THREAD`, `THREADS` | hold: threads are the same |
//! | `ACTIVE`, `UNSENT`, `DUE` | `ACTIVE` holds; `UNSENT` off; a checkpoint that is wanted still is |
//! | `fds::KINDS` | hold for the program's; the layer's own are set anew |
//! | epolls | the engine restores them, with what they watch; for placeholders they are told again (`ready::replaced`) |
//! | `LOGGED`, `CHANGES`, `looked` | hold: they follow from the program's calls |
//! | `FULL`, `STARVED` | hold: the next look at the outbox decides |
//! | counters | their page is in the image: they go on from there |
//! | `real::ADDRESSES`, tables of stream operations, `identity::FIRST` | hold: same libraries, same addresses, same answers |
//! | time | deadlines of calls are by CLOCK_MONOTONIC, which the engine does not let go back |

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use radic_observer::Wait;
use radic_wire::PROTOCOL_VERSION;
use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::log::ToProtector;
use radic_wire::login;
use radic_wire::process::{FromNode, Point, Restart, ToNode};
use rustix::event::PollFd;
use rustix::io::Errno;

use crate::channel::{Channel, Identity};
use crate::counters::{self, Counter};
use crate::fds::{self, Kind};
use crate::layer::{self, Layer, fail, sure};
use crate::node::Node;
use crate::replay::Replayer;
use crate::sys;

/// Bytes of journal that are here at once.
const BUFFER: usize = 1 << 20;
/// Time for the protector to answer with a piece of the log, lost connections included, in nanoseconds.
const PIECE_NS: u64 = 90_000_000_000;
/// Streams of which bytes are here ahead of the program.
const STREAMS_AHEAD: usize = 16;
/// Time that a call waits for peers before it looks again, in nanoseconds: they also come by what only the layer listens to.
const LOOK_NS: u64 = 100_000_000;
/// Empty outcomes more than then before it is clear that re-execution goes another way.
const PATIENCE: u64 = 1_000_000;
/// Time between two attempts to reach a protector that the node has named, in nanoseconds.
const AGAIN_NS: u64 = 200_000_000;

/// Received bytes from the protector's log, ahead of the program.
#[derive(Debug)]
struct Ahead {
    stream: StreamId,
    /// Offset of the first byte that was not served.
    offset: u64,
    bytes: Vec<u8>,
    served: usize,
    /// The log has no more of it.
    is_over: bool,
}

impl Ahead {
    fn new(stream: StreamId, offset: u64, bytes: &[u8]) -> Self {
        Ahead { stream, offset, bytes: bytes.to_vec(), served: 0, is_over: bytes.is_empty() }
    }

    fn left(&self) -> &[u8] {
        &self.bytes[self.served..]
    }

    fn end(&self) -> u64 {
        self.offset + self.left().len() as u64
    }
}

/// What a process still wants of the log that it was restarted with.
#[derive(Debug, Default)]
pub struct Catching {
    /// The position from which journal was asked for and has not come.
    journal: Option<u64>,
    /// The same for received bytes.
    payload: Option<(StreamId, u64)>,
    /// The most recently used last.
    ahead: Vec<Ahead>,
    /// Where the journal ends that it has to catch up with.
    log_end: u64,
    /// Its node knows that it lives.
    told: bool,
}

impl Catching {
    /// Bytes of the log came.
    fn handle_payload(&mut self, stream: StreamId, offset: u64, bytes: &[u8]) {
        if self.payload == Some((stream, offset)) {
            self.payload = None;
        }
        match self.ahead.iter_mut().find(|ahead| ahead.stream == stream) {
            Some(ahead) if ahead.end() == offset => {
                ahead.bytes.drain(..ahead.served);
                ahead.served = 0;
                ahead.bytes.extend_from_slice(bytes);
                ahead.is_over = bytes.is_empty();
            }
            Some(ahead) if ahead.left().is_empty() => *ahead = Ahead::new(stream, offset, bytes),
            Some(_) => {} // Twice the same, after a connection was lost.
            None => {
                if self.ahead.len() == STREAMS_AHEAD {
                    self.ahead.remove(0);
                }
                self.ahead.push(Ahead::new(stream, offset, bytes));
            }
        }
    }

    /// Serves bytes of `stream` from `offset` on. Returns how many, and from where on more are to be asked for.
    fn serve(&mut self, stream: StreamId, offset: u64, room: &mut [IoSliceMut<'_>]) -> (usize, Option<u64>) {
        let Some(at) = self.ahead.iter().position(|ahead| ahead.stream == stream) else { return (0, Some(offset)) };
        let mut ahead = self.ahead.remove(at);
        if ahead.offset != offset {
            return (0, Some(offset)); // A peek went before, or another place: what is here is of no use.
        }
        let mut rest = ahead.left();
        let all = rest.len();
        for part in room {
            let (now, later) = rest.split_at(rest.len().min(part.len()));
            part[..now.len()].copy_from_slice(now);
            rest = later;
        }
        let count = all - rest.len();
        ahead.served += count;
        ahead.offset += count as u64;
        let low = ahead.left().len() < ahead.bytes.len() / 2 && !ahead.is_over || count == 0;
        let more = (low && self.payload.is_none()).then(|| ahead.end());
        self.ahead.push(ahead);
        (count, more)
    }

    /// The connection to the protector is another one: what was asked on the old one does not come.
    fn handle_reconnected(&mut self) {
        (self.journal, self.payload) = (None, None);
    }
}

/// This process has just come back. `layer`: as it was in the image.
pub fn come_back(layer: &mut Layer) {
    let launcher = radic_ckpt::launcher();
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

/// The layer's own descriptors of the image are closed one after the other, when what had them gets new ones. Those that the engine has not restored are
/// taken till then: a new one under such a number would be closed as the old one.
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
        self.begin_again(*restart).map_err(failed("its protector is out of reach"))?;
        self.ask_foreign_keys();
        self.connect_pmi(launcher).map_err(failed("it has no connection to its process manager"))?;
        self.break_all();
        self.relisten().map_err(failed("its program cannot listen"))?;
        if !whole {
            self.note("its standard output and error were exchanged: what it prints after a restart cannot be put together with what it has printed");
        }
        self.outputs.write_again();
        self.look_at_log();
        Ok(())
    }

    /// The observer in its new life, with the connections to its log.
    fn begin_again(&mut self, restart: Restart) -> Result<(), Errno> {
        self.key = restart.key;
        self.protector = restart.protector;
        self.images.handle_restored();
        self.forget_sockets();
        sure(self.observer.restart(restart.incarnation, restart.log_end, restart.held, restart.images, BUFFER));
        for (process, incarnation) in &restart.restarted {
            self.observer.handle_restarted(*process, *incarnation);
        }
        let (journal, bulk) = self.log_in(restart.protector)?;
        self.use_channels(journal, bulk);
        self.catching = Some(Catching { log_end: restart.log_end, ..Catching::default() });
        self.greet_protector()
    }

    /// A connection to the process manager of this life, where the program has its own.
    fn connect_pmi(&mut self, launcher: u64) -> Result<(), Errno> {
        let Some(fd) = self.pmi.fd() else { return Ok(()) };
        let mut new = Node::of_launcher(launcher)?;
        new.send(&ToNode::Pmi { process: self.observer.process() })?;
        sys::replace(new.fd(), fd)?;
        new.close();
        rustix::io::ioctl_fionbio(sys::borrow(fd), !fds::is_blocking(fd))?;
        self.pmi.handle_restored()
    }

    /// Both connections to the log service at `address`.
    pub(crate) fn log_in(&self, address: SocketAddr) -> Result<(Channel, Channel), Errno> {
        let who = Identity { process: self.observer.process(), incarnation: self.observer.incarnation(), key: &self.key };
        let journal = Channel::connect(address, &who, login::Channel::Journal)?;
        let bulk = Channel::connect(address, &who, login::Channel::Bulk)?;
        Ok((journal, bulk))
    }

    /// The log's connections are others now: what came on the old ones counts no more.
    pub(crate) fn use_channels(&mut self, journal: Channel, bulk: Channel) {
        std::mem::replace(&mut self.journal, journal).close();
        std::mem::replace(&mut self.bulk, bulk).close();
        if let Some(catching) = &mut self.catching {
            catching.handle_reconnected();
        }
    }

    /// What the protector says to what a restarted process asks.
    pub(crate) fn handle_fetched(catching: &mut Option<Catching>, stream: StreamId, offset: u64, bytes: &[u8]) {
        if let Some(catching) = catching {
            catching.handle_payload(stream, offset, bytes);
        }
    }

    /// A piece of journal came.
    pub(crate) fn handle_fetched_journal(catching: &mut Option<Catching>) {
        if let Some(catching) = catching {
            catching.journal = None;
        }
    }

    /// What a call of a process that catches up waits for.
    pub(crate) fn wait_to_catch_up(&mut self, what: Wait) {
        match what {
            Wait::Log => {
                let wanted = self.observer.wanted_log();
                if wanted.is_none() {
                    fail("replay wants log, and no piece of it");
                }
                self.wait_for_piece(|layer| layer.fetch_journal(), |layer| layer.observer.wanted_log() != wanted);
            }
            Wait::Peers | Wait::Event => self.wait_for_peers(),
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

    /// Asks for a piece of the log until it is there.
    fn wait_for_piece(&mut self, ask: impl Fn(&mut Layer), is_here: impl Fn(&mut Layer) -> bool) {
        let deadline = sys::now() + PIECE_NS;
        loop {
            ask(self);
            self.hear_protector(true);
            if is_here(self) {
                return;
            }
            if sys::now() > deadline {
                fail(&format!("its protector at {} does not give it its log", self.protector));
            }
            self.hear_node();
        }
    }

    /// Asks for the journal that is wanted next, if that was not asked for.
    fn fetch_journal(&mut self) {
        let (Some((position, _)), Some(catching)) = (self.observer.wanted_log(), &mut self.catching) else { return };
        if catching.journal.is_none() {
            catching.journal = Some(position);
            self.tell_protector(&ToProtector::FetchJournal { position });
        }
    }

    fn ask_payload(&mut self, stream: StreamId, offset: u64) {
        let Some(catching) = &mut self.catching else { return };
        if catching.payload != Some((stream, offset)) {
            catching.payload = Some((stream, offset));
            self.tell_protector(&ToProtector::FetchPayload { stream, offset });
        }
    }

    /// Received bytes of the log, into the program's buffers; at least one.
    pub(crate) fn fetch_again(&mut self, stream: StreamId, offset: u64, room: &mut [IoSliceMut<'_>]) -> usize {
        let deadline = sys::now() + PIECE_NS;
        loop {
            let Some(catching) = &mut self.catching else {
                fail(&format!("it wants bytes of {stream:?} of a log that it has left"))
            };
            let (count, more) = catching.serve(stream, offset, room);
            if let Some(from) = more {
                self.ask_payload(stream, from);
            }
            if count > 0 {
                return count;
            }
            if sys::now() > deadline {
                fail(&format!("its protector at {} has no bytes of {stream:?} from {offset} on", self.protector));
            }
            self.hear_protector(true);
            self.hear_node();
        }
    }

    /// Has the process caught up? Its node is told once. Called whenever the journal is shipped, and when everything is looked after.
    pub(crate) fn look_at_log(&mut self) {
        self.fetch_journal();
        let Some(catching) = self.catching.as_mut().filter(|catching| !catching.told) else { return };
        // Its node looks whether it gets on.
        counters::set(Counter::Replayed, catching.log_end.saturating_sub(self.observer.left_of_log()));
        if self.observer.settle() {
            catching.told = true;
            // Before the node hears that it lives: from then on it awaits no report.
            radic_ckpt::settled();
            let (events, different) = (self.observer.replayed(), counters::get(Counter::Different));
            _ = self.node.send(&ToNode::Live { events, different, input: self.input_read() });
            self.tell_protector(&ToProtector::Live);
        }
    }

    /// The rest: the log that the process was restarted with is needed no more, or another protector is to have it.
    pub(crate) fn settle_down(&mut self) {
        self.leave_log();
        if self.next_protector.is_some() && self.catching.is_none() && sys::now() >= self.switch_again {
            self.switch_protector();
        }
    }

    /// A process that lives, and has read what its log had for it, needs nothing more of the protector that has it.
    pub(crate) fn leave_log(&mut self) {
        if self.catching.as_ref().is_some_and(|catching| catching.told) && !self.observer.needs_log() {
            self.catching = None;
            _ = self.node.send(&ToNode::LogRead);
            // What was replayed need not be again.
            layer::want_checkpoint();
        }
    }

    /// The program finds nothing. In replay: does it go another way?
    pub(crate) fn check_way(&self) {
        if let Some(overdue) = self.observer.overdue(PATIENCE) {
            fail(&format!("replay diverged, it goes another way: {overdue:?}"));
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
            fail(&format!("replay diverged: descriptor {fd}, which was free for an accept then, is open"));
        }
        let Some(arrived) = arrived else { return crate::ops::descriptor::place(fd) };
        let socket = sys::own(arrived.fd);
        let placed = sys::replace(socket.as_fd(), fd);
        sys::close_own(socket);
        placed
    }

    /// The node names a protector. The one that is in use may be dead; if it is not, it is left as soon as the process needs nothing of it.
    pub(crate) fn handle_next_protector(&mut self, address: SocketAddr) {
        self.next_protector = Some(address).filter(|address| *address != self.protector);
        self.switch_again = 0;
    }

    /// Leaves a protector that answers, for the one that the node has named: the log goes on there with what is left here, and an image is made at once.
    fn switch_protector(&mut self) {
        let Some(address) = self.next_protector else { return };
        match self.log_in(address) {
            Ok((journal, bulk)) => {
                (self.protector, self.next_protector) = (address, None);
                self.use_channels(journal, bulk);
                self.images.handle_protector_lost(&mut self.observer);
                if let Err(error) = self.greet_protector() {
                    return self.reconnect(error);
                }
                layer::want_checkpoint();
            }
            // It will be there, or the node names another.
            Err(_) => self.switch_again = sys::now() + AGAIN_NS,
        }
    }
}

#[cfg(test)]
mod tests {
    use radic_wire::ids::{JobId, ProcessId, Rank};

    use super::*;

    fn stream(number: u64) -> StreamId {
        let opener = ProcessId { job: JobId::from_bits(1), rank: Rank(0) };
        StreamId { connection: ConnectionId { opener, number }, from_opener: true }
    }

    fn take(catching: &mut Catching, stream: StreamId, offset: u64, most: usize) -> (Vec<u8>, Option<u64>) {
        let mut room = vec![0; most];
        let (count, more) = catching.serve(stream, offset, &mut [IoSliceMut::new(&mut room)]);
        room.truncate(count);
        (room, more)
    }

    #[test]
    fn bytes_are_asked_for_ahead_and_served_once() {
        let mut catching = Catching::default();
        let one = stream(1);
        assert_eq!(take(&mut catching, one, 10, 4), (vec![], Some(10)));
        catching.payload = Some((one, 10));
        catching.handle_payload(one, 10, b"abcdefgh");
        assert_eq!(take(&mut catching, one, 10, 3), (b"abc".to_vec(), None));
        // Less than half is left.
        assert_eq!(take(&mut catching, one, 13, 2), (b"de".to_vec(), Some(18)));
        catching.payload = Some((one, 18));
        assert_eq!(take(&mut catching, one, 15, 1), (b"f".to_vec(), None), "it is asked for already");
        catching.handle_payload(one, 18, b"ij");
        assert_eq!(take(&mut catching, one, 16, 9).0, b"ghij");
        assert_eq!(take(&mut catching, one, 20, 9), (vec![], Some(20)));
    }

    #[test]
    fn what_comes_twice_or_for_another_place_is_not_served() {
        let mut catching = Catching::default();
        let one = stream(1);
        catching.handle_payload(one, 0, b"abcd");
        catching.handle_payload(one, 0, b"abcd");
        assert_eq!(take(&mut catching, one, 0, 9).0, b"abcd");
        catching.handle_payload(one, 4, b"efgh");
        assert_eq!(take(&mut catching, one, 6, 9), (vec![], Some(6)));
    }

    #[test]
    fn memory_is_bounded() {
        let mut catching = Catching::default();
        for number in 0..100 {
            catching.handle_payload(stream(number), 0, b"x");
        }
        assert_eq!(catching.ahead.len(), STREAMS_AHEAD);
        assert_eq!(take(&mut catching, stream(99), 0, 9).0, b"x");
    }
}
