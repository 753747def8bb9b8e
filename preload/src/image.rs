//! Checkpoints of this process: when one is wanted it is made by the engine, in the handler of its signal, while the layer is locked; the image goes
//! to the protector on a connection of its own, written by a forked child.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use radic_ckpt::{Hooks, Mode, Refusal, Request, Through, Tracking, Wanted};
use radic_observer::Observer;
use radic_observer::session::requests::Requests;
use radic_wire::determinant::StreamId;
use radic_wire::limits;
use radic_wire::log::ToProtector;
use radic_wire::login;
use radic_wire::mac::SECRET_ALIGN;
use radic_wire::record::{HEAD, OVERHEAD, RECORD, Sealer};
use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};

use crate::channel;
use crate::counters::{self, Counter};
use crate::layer::{self, Held, Layer};
use crate::node::Node;
use crate::ops::ready;
use crate::{memory, sys};

/// How long the protector may take nothing of an image: then the child that writes it gives up, and the next image can be made.
const TAKING: Duration = Duration::from_secs(20);

/// This process has come back from an image and the layer does not know yet.
static RESTORED: AtomicBool = AtomicBool::new(false);

/// A nudge has found something held that it needs: whoever lets go makes up for it.
static MISSED: AtomicBool = AtomicBool::new(false);

/// A record in the making. It lies where secrets do: no image has it, for it changes while one is written.
#[repr(align(1024))]
struct Record {
    bytes: [u8; OVERHEAD + RECORD],
    /// Of them, in the body.
    filled: usize,
}

const _: () = assert!(align_of::<Record>() == SECRET_ALIGN);

/// What an image is sealed with on its way, by whoever writes it, which changes nothing here: this is in the image.
struct Sealing {
    sealer: Option<Sealer>,
    record: Box<Record>,
}

impl std::fmt::Debug for Sealing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sealing({:?}, {} bytes)", self.sealer, self.record.filled)
    }
}

impl Sealing {
    fn new() -> Box<Self> {
        Box::new(Sealing { sealer: None, record: Box::new(Record { bytes: [0; OVERHEAD + RECORD], filled: 0 }) })
    }

    /// More of the image, which goes to `fd`.
    fn put(&mut self, fd: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            let record = &mut *self.record;
            let (now, later) = bytes.split_at(bytes.len().min(RECORD - record.filled));
            record.bytes[HEAD + record.filled..][..now.len()].copy_from_slice(now);
            record.filled += now.len();
            bytes = later;
            if record.filled == RECORD {
                self.write(fd, false)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, fd: BorrowedFd<'_>, is_last: bool) -> Result<(), Errno> {
        let filled = std::mem::take(&mut self.record.filled);
        let record = &mut self.record.bytes[..OVERHEAD + filled];
        self.sealer.as_mut().ok_or(Errno::PROTO)?.seal(record, is_last);
        let mut left = &*record;
        while !left.is_empty() {
            match rustix::net::send(fd, left, SendFlags::NOSIGNAL) {
                Ok(count) => left = &left[count..],
                Err(Errno::INTR) => {}
                // Also if the protector takes nothing for so long as the socket allows.
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What the engine is to call for each piece of the image.
    fn through(&mut self) -> Through {
        let context = (&raw mut *self).expose_provenance() as u64;
        Through { context, write: put_sealed, end: end_sealed }
    }
}

/// Runs where the image is written: no allocation, no libc.
fn put_sealed(context: u64, fd: i32, head: &[u8], tail: &[u8]) -> Result<(), i32> {
    let sealing = sealing(context);
    let fd = sys::borrow(fd);
    sealing.put(fd, head).and_then(|()| sealing.put(fd, tail)).map_err(Errno::raw_os_error)
}

/// The same at its end.
fn end_sealed(context: u64, fd: i32) -> Result<(), i32> {
    sealing(context).write(sys::borrow(fd), true).map_err(Errno::raw_os_error)
}

#[allow(unsafe_code)]
fn sealing(context: u64) -> &'static mut Sealing {
    // SAFETY: `Images` has it as long as the process lives, and gives it to no other image before the engine has said that nobody writes this one any more.
    unsafe { &mut *std::ptr::with_exposed_provenance_mut(context as usize) }
}

/// What is known of the images of this process.
#[derive(Debug)]
pub struct Images {
    /// What the next image is sealed with, and the last one, which a child may write still.
    sealings: [Box<Sealing>; 2],
    /// The streams of a cut, to be filled without allocating.
    streams: Vec<(StreamId, u64)>,
    ended: Vec<(StreamId, u64)>,
    /// The connection on which the image is written.
    connection: Option<OwnedFd>,
    /// The image that is under way, and what is to be said of it.
    requests: Requests,
    /// The engine's name for it, once the engine says.
    engine: u64,
    /// The last that was committed.
    committed: Option<(u64, u64)>,
    /// How many images a restart from that one reads, and from the one that is under way.
    layers: (usize, usize),
    /// The protector wants a whole one, and none was committed since.
    whole: bool,
    refusals: Refusals,
}

/// What the engine has refused costs a pause each time: it rests, twice as long after each refusal in a row.
#[derive(Debug, Default)]
struct Refusals {
    in_a_row: u32,
    /// Until when it rests, and why.
    rest: Option<(u64, String)>,
}

impl Refusals {
    /// The first rest, in nanoseconds; none is longer than 2^`DOUBLINGS` of them.
    const FIRST_NS: u64 = 500_000_000;
    const DOUBLINGS: u32 = 7;

    fn handle_refused(&mut self, now: u64, why: &str) {
        self.rest = Some((now + (Self::FIRST_NS << self.in_a_row.min(Self::DOUBLINGS)), why.to_owned()));
        self.in_a_row = self.in_a_row.saturating_add(1);
    }

    fn handle_saved(&mut self) {
        *self = Refusals::default();
    }

    /// Why there is no checkpoint now.
    fn rests(&self, now: u64) -> Option<&str> {
        self.rest.as_ref().filter(|(until, _)| now < *until).map(|(_, why)| why.as_str())
    }
}

impl Images {
    /// No image yet; at most so many connections.
    pub fn new(connections: usize) -> Self {
        let most = connections.min(limits::CUT_STREAMS);
        let (streams, ended) = (Vec::with_capacity(most), Vec::with_capacity(most));
        Images {
            sealings: [Sealing::new(), Sealing::new()],
            streams,
            ended,
            connection: None,
            requests: Requests::default(),
            engine: 0,
            committed: None,
            layers: (0, 0),
            whole: false,
            refusals: Refusals::default(),
        }
    }

    /// The node wants a checkpoint.
    pub fn request(&mut self, number: u64) {
        self.requests.handle_request(number);
        layer::want_checkpoint();
    }

    /// `MPI_Init` has returned: what was asked for in its midst is begun now.
    pub fn handle_initialized(&mut self) {
        if self.requests.is_asked() {
            layer::want_checkpoint();
        }
    }

    /// No image could be made.
    fn handle_failed(&mut self, node: &mut Node, why: String) {
        if let Some(answer) = self.requests.handle_failed(why) {
            _ = node.send(&answer);
        }
    }

    fn handle_done(&mut self, image: u64, node: &mut Node, result: Result<u64, String>) -> bool {
        let done = self.requests.handle_done(image, result);
        if done.again {
            layer::want_checkpoint();
        }
        if let Some(answer) = done.answer {
            _ = node.send(&answer);
        }
        done.was_under_way
    }

    /// The protector has committed `image`.
    pub fn handle_committed(&mut self, image: u64, node: &mut Node) {
        if self.handle_done(image, node, Ok(image)) {
            counters::add(Counter::Committed, 1);
            self.commit(image);
        }
    }

    /// The next images are upon this one.
    fn commit(&mut self, image: u64) {
        self.committed = Some((image, self.engine));
        self.layers.0 = self.layers.1;
        self.whole &= self.layers.0 > 1;
    }

    /// The protector has refused it: the next one is a whole one.
    pub fn handle_refused(&mut self, image: u64, node: &mut Node) {
        if self.handle_done(image, node, Err("the protector has refused the image".to_owned())) {
            self.committed = None;
        }
    }

    /// The increments have become longer than what they are upon.
    pub fn handle_whole_wanted(&mut self) {
        self.whole = true;
    }

    /// What the next image builds upon, by its number and by the engine's name for it; none: it is a whole one, as it must be every [`limits::LAYERS`] images.
    fn next_parent(&mut self) -> Option<(u64, u64)> {
        let parent = self.committed.filter(|(_, engine)| *engine != 0 && self.layers.0 < limits::LAYERS && !self.whole);
        self.layers.1 = parent.map_or(1, |_| self.layers.0 + 1);
        parent
    }

    /// The process has come back from an image: whatever was under way was another life's.
    pub fn handle_restored(&mut self) {
        if let Some(connection) = self.connection.take() {
            sys::close_own(connection);
        }
        (self.requests, self.committed) = (Requests::default(), None);
    }

    /// The protector is gone, and its images with it.
    pub fn handle_protector_lost(&mut self, observer: &mut Observer) {
        if self.requests.handle_lost() {
            observer.handle_abandoned();
        }
        self.committed = None;
        self.refusals = Refusals::default();
    }
}

/// Registers with the engine. Once, at the start.
pub fn register() {
    let hooks = Hooks { nudged: Some(begin), saved: Some(end), after_restore: Some(restored), ..Hooks::default() };
    _ = radic_ckpt::set_hooks(hooks);
}

/// The layer, in the signal's handler: only if nobody holds anything that is needed with it. It may be the thread below the handler that does, and the
/// handler would wait for itself, with every signal blocked, for ever.
fn enter() -> Option<Held> {
    // Before the look: of one who finds something held and one who lets go of it, at least one notices the other.
    MISSED.store(true, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    if is_anything_held() {
        return None;
    }
    let layer = if is_restored() { layer::enter_if_free() } else { layer::try_enter() }?;
    MISSED.store(false, Ordering::SeqCst);
    Some(layer)
}

/// Whether some thread is in the middle of something, other than the layer, that the layer may need.
fn is_anything_held() -> bool {
    memory::is_held() || !ready::is_free()
}

/// Somebody has let go of a lock: the nudge that has found it held comes again. Inside the layer that waits until it is left.
pub fn make_up() {
    let missed = MISSED.load(Ordering::SeqCst) && !layer::is_inside() && MISSED.swap(false, Ordering::SeqCst);
    if missed && radic_ckpt::nudge_self().is_err() {
        MISSED.store(true, Ordering::SeqCst);
    }
}

/// In the signal's handler: begins an image if one is wanted and the layer is free. If it is not, whoever holds it comes by here again.
fn begin() -> Option<Wanted> {
    if !layer::is_active() {
        return None;
    }
    let comes_back = is_restored();
    let mut layer = enter()?;
    if comes_back {
        return None;
    }
    layer.hear_node();
    layer.look_at_log();
    layer.settle_down();
    // A program that talks to nobody hears here only that its last image is committed.
    layer.hear_protector(false);
    if !layer::take_wish() {
        return None;
    }
    // The node asks again when MPI_Init has returned; after a commit it is begun from there.
    if !layer.images.requests.may_begin() || layer.pmi.is_starting() {
        return None;
    }
    match prepare(&mut layer) {
        Ok(begun) => {
            layer.keep_locked();
            Some(begun)
        }
        Err(why) => {
            let Layer { images, node, .. } = &mut *layer;
            images.handle_failed(node, why);
            None
        }
    }
}

/// The connection to write to, with the beginning of the image on it.
fn prepare(layer: &mut Layer) -> Result<Wanted, String> {
    if let Some(why) = layer.images.refusals.rests(sys::now()) {
        return Err(format!("not tried again so soon: {why}"));
    }
    layer.ship();
    if layer.observer.is_replaying() {
        return Err("the process is catching up with its log".to_owned());
    }
    let (address, who) = layer.login();
    let (connection, mut sealer, _) = channel::login(address, &who, login::Channel::Image).map_err(|error| {
        let why = format!("the protector's log: {error}");
        // The program waits as long as that has taken: not at every wish.
        layer.images.refusals.handle_refused(sys::now(), &why);
        why
    })?;
    layer.outputs.handle_image();
    layer.input.handle_image();
    let Layer { observer, images, .. } = layer;
    let parent = images.next_parent();
    let cut = observer.checkpoint(&mut images.streams, &mut images.ended).map_err(|error| error.to_string())?;
    let cut = cut.ok_or("the process is catching up with its log")?;
    let number = cut.mark.image;
    let written = channel::write(connection.as_fd(), &mut sealer, &cut.message(parent.map(|(number, _)| number)));
    if let Err(error) = written {
        observer.handle_abandoned();
        return Err(format!("the protector's log: {error}"));
    }
    // The child that writes it has the time that the protector needs, as long as that takes some.
    let bounded = sockopt::set_socket_timeout(&connection, sockopt::Timeout::Send, Some(TAKING));
    if let Err(error) = bounded.and_then(|()| rustix::io::ioctl_fionbio(&connection, false)) {
        observer.handle_abandoned();
        return Err(format!("the connection for the image: {error}"));
    }
    images.requests.handle_begun(number);
    images.engine = 0;
    let fd = connection.as_raw_fd();
    images.connection = Some(connection);
    let parent = parent.map_or(0, |(_, engine)| engine);
    let sealing = &mut images.sealings[0];
    (sealing.sealer, sealing.record.filled) = (Some(sealer), 0);
    let request = Request { mode: Mode::Fork, tracking: Tracking::Best, compress: false, parent };
    Ok(Wanted { fd, request, through: Some(sealing.through()) })
}

/// In the process that goes on.
fn end(result: Result<(u64, u64), Refusal>) {
    let mut layer: Held = layer::adopt();
    let Layer { observer, images, .. } = &mut *layer;
    if let Some(connection) = images.connection.take() {
        sys::close_own(connection);
    }
    match result {
        Ok((pause, engine)) => {
            images.refusals.handle_saved();
            // The engine makes no image while a child writes the one before: that one's is free.
            images.sealings.swap(0, 1);
            images.engine = engine;
            counters::add(Counter::Checkpoints, 1);
            counters::add(Counter::PauseNs, pause);
            counters::set(Counter::LongestPauseNs, counters::get(Counter::LongestPauseNs).max(pause));
        }
        Err(refusal) => {
            let abandoned = images.requests.under_way();
            images.requests.handle_lost();
            observer.handle_abandoned();
            if let Some(image) = abandoned {
                layer.abandon_image(image);
            }
            let why = refusal.to_string();
            layer.images.refusals.handle_refused(sys::now(), &why);
            layer.note(&format!("no checkpoint: {why}"));
            let Layer { images, node, .. } = &mut *layer;
            images.handle_failed(node, why);
        }
    }
}

/// In a restored process, while everybody is still stopped.
fn restored() {
    RESTORED.store(true, Ordering::Relaxed);
    drop(layer::adopt());
    // A program that computes for an hour comes back all the same. Where the signal cannot be queued, its next call does it.
    _ = radic_ckpt::nudge_self();
}

/// Whether this process has come back from an image and the layer does not know yet.
pub fn is_restored() -> bool {
    RESTORED.load(Ordering::Relaxed)
}

/// Whether this process has come back from an image, once.
pub fn take_restored() -> bool {
    RESTORED.load(Ordering::Relaxed) && RESTORED.swap(false, Ordering::Relaxed)
}

impl Layer {
    /// The protector need not wait for this image.
    fn abandon_image(&mut self, image: u64) {
        self.tell_protector(&ToProtector::ImageAbandoned { image });
    }
}

const _: () = assert!(limits::LAYERS <= radic_ckpt::image::chain::MAX_LAYERS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_image_comes_often_enough() {
        let mut images = Images::new(1);
        let mut layers = 0;
        for number in 0..5 * limits::LAYERS as u64 {
            let parent = images.next_parent();
            layers = if parent.is_some() { layers + 1 } else { 1 };
            assert!(layers <= limits::LAYERS && parent.is_none_or(|(parent, _)| parent + 1 == number));
            // Each third one is not committed: the next is on the same one.
            if number % 3 == 2 && layers > 1 {
                layers -= 1;
                images.committed = images.committed.map(|(_, engine)| (number, engine));
            } else {
                (images.committed, images.layers.0) = (Some((number, 7)), images.layers.1);
            }
        }
        assert!(images.layers.0 > 1);
    }

    #[test]
    fn a_whole_image_that_is_wanted_is_made_until_it_is_committed() {
        let mut images = Images::new(1);
        (images.committed, images.layers.0) = (Some((3, 7)), 4);
        images.handle_whole_wanted();
        assert_eq!(images.next_parent(), None);
        // It was abandoned: the one before it is still the newest.
        assert_eq!(images.next_parent(), None);
        images.engine = 8;
        images.commit(5);
        assert_eq!(images.next_parent(), Some((5, 8)));
    }

    /// No handler is installed here, where the signal would end the tests: it is ignored.
    #[allow(unsafe_code)]
    fn ignore_nudges() {
        /// The engine's.
        const SIGNAL: i32 = 33;
        let ignored = [libc::SIG_IGN as u64, 0, 0, 0];
        let none = std::ptr::null::<u64>();
        // SAFETY: the kernel reads one action of its own kind, with a mask of eight bytes.
        let done = unsafe { libc::syscall(libc::SYS_rt_sigaction, SIGNAL, ignored.as_ptr(), none, 8) };
        assert_eq!(done, 0);
    }

    /// As in a handler that has interrupted its own thread in the middle of an allocation: to wait would be for ever.
    #[test]
    fn a_nudge_does_not_wait_for_the_heap_and_is_made_up_for() {
        ignore_nudges();
        memory::enter();
        let (held, layer) = (is_anything_held(), enter());
        memory::leave();
        assert!(held && layer.is_none());
        assert!(!MISSED.load(Ordering::SeqCst), "who lets go of the heap nudges again");
    }

    #[test]
    fn after_refusals_the_engine_rests_longer_and_longer_but_not_for_ever() {
        let (mut refusals, mut now, mut last) = (Refusals::default(), 1_000, 0);
        assert_eq!(refusals.rests(now), None);
        for _ in 0..40 {
            refusals.handle_refused(now, "too many sockets");
            let rest = (0..).map(|i| Refusals::FIRST_NS << i).find(|rest| refusals.rests(now + rest).is_none()).unwrap();
            assert_eq!(refusals.rests(now + rest - 1), Some("too many sockets"));
            assert!(rest == last * 2 || last == 0 || rest == last && rest == Refusals::FIRST_NS << Refusals::DOUBLINGS);
            (last, now) = (rest, now + rest);
        }
        refusals.handle_saved();
        refusals.handle_refused(now, "an inotify");
        assert_eq!(refusals.rests(now + Refusals::FIRST_NS), None);
    }
}
