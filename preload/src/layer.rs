//! The layer: one process's observer with the sockets that it drives. Everything here happens under one lock, in the program's own threads, inside
//! its own calls: there is no thread of ours.
//!
//! What must be shipped, awaited or answered is done by whatever call comes by ([`Layer::tend`]); a call that has to wait waits for the layer's
//! connections too ([`Layer::awaited`]).
//!
//! Here is what the layer is made of; what it does is in a file for each subject.

mod asking;
pub(crate) mod doubts;
mod framing;
mod giving_way;
mod held;
pub(crate) mod imaging;
mod joining;
mod linking;
mod patience;
mod restart;
mod seldom;
mod sending;
mod session;
mod shipping;
mod swapping;
mod tending;
mod under_way;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use giving_way::Vain;
use radic_observer::connection::Slot;
use radic_observer::haste::Haste;
use radic_observer::links::Links;
use radic_observer::listener::Listeners;
use radic_observer::pressure::Pressure;
use radic_observer::session::Session;
use radic_observer::standstill::Standstill;
use radic_observer::{Context, Observer};
use radic_wire::determinant::{ConnectionId, ReadyFd};
use radic_wire::mac::JobKey;
use rustix::io::Errno;
use seldom::Seldom;

use crate::calls::Calls;
use crate::channel::{Channel, Channels};
use crate::fds::{self, Kind};
use crate::image::Images;
use crate::input::InputPipe;
use crate::links::Sockets;
use crate::lock::Lock;
use crate::node::Node;
use crate::output::Outputs;
use crate::pmi::Pmi;
use crate::replay::Replayer;
use crate::used::Used;
use crate::{sys, threads};

pub use held::{Held, adopt, enter, enter_again, enter_for_connection, enter_if_free, rest, try_enter};
pub use joining::{JoinError, Joined, join, start};
pub use sending::make_room;
pub use tending::{AWAITED, leave, tend_in_passing};

/// A checkpoint is wanted and has not begun.
static DUE: AtomicBool = AtomicBool::new(false);
/// Some connection has bytes that its socket has not taken: calls that pass through look after them too.
static UNSENT: AtomicBool = AtomicBool::new(false);
static LAYER: Lock<Option<Layer>> = Lock::new(None);

thread_local! {
    /// This thread has ended the process, or has waited once for the kernel to do so: it goes on.
    static LEAVES: Cell<bool> = const { Cell::new(false) };
}

/// Where a thread waits that wants the layer while another one has it.
fn lock_address() -> usize {
    LAYER.address()
}

/// A checkpoint is to be made as soon as the layer is free.
pub fn want_checkpoint() {
    DUE.store(true, Ordering::Relaxed);
}

/// What the observer's machines are told with each input: the observer, and the kernel's time.
pub fn context(observer: &mut Observer) -> Context<'_> {
    Context { observer, now: Duration::from_nanos(sys::now()) }
}

/// Takes the wish for a checkpoint.
pub fn take_wish() -> bool {
    DUE.swap(false, Ordering::Relaxed)
}

/// A connection that the program has closed before all of its bytes had left.
#[derive(Debug)]
pub(crate) struct Lingering {
    pub(crate) slot: Slot,
    pub(crate) fd: OwnedFd,
}

/// The addresses of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// This end.
    pub local: Option<SocketAddr>,
    /// The other one.
    pub peer: SocketAddr,
}

/// A connection that was accepted and identified and that the program has not got yet.
#[derive(Debug)]
pub struct Arrived {
    /// Which.
    pub connection: ConnectionId,
    /// Its socket: one of the layer's own if it came to the door, else already the program's number.
    pub fd: i32,
    /// The address that `accept` tells.
    pub peer: SocketAddr,
    /// This end, if the socket has another address than the program is told.
    pub local: Option<SocketAddr>,
    /// The address that was called, if the caller has said so.
    pub to: Option<SocketAddr>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Layer {
    /// The state machines.
    pub(crate) observer: Observer,
    /// The protector of this process's own node.
    pub(crate) node: Node,
    /// Of a process that is replayed offline: the connection to the command, which stands in for its peers and its protector.
    pub(crate) replayer: Option<Replayer>,
    /// Standard output and standard error.
    pub(crate) outputs: Outputs,
    /// Standard input.
    pub(crate) input: InputPipe,
    /// What it was told of the processor's time.
    pub(crate) used: Used,
    /// The connection to the process manager.
    pub(crate) pmi: Pmi,
    /// Links that are not up, and how they come up again.
    pub(crate) links: Links,
    /// Their sockets.
    pub(crate) sockets: Sockets,
    /// Checkpoints.
    pub(crate) images: Images,
    /// What was accepted and not given to the program yet.
    pub(crate) arrived: Vec<Arrived>,
    /// By descriptor, both ends' addresses, as the program saw them in its first incarnation.
    pub(crate) names: BTreeMap<i32, Names>,
    /// By descriptor, the address of a socket that has one and no peer, as the program saw it in its first incarnation.
    pub(crate) bound: BTreeMap<i32, SocketAddr>,
    /// Calls that reach no protected process.
    pub(crate) calls: Calls,
    /// Where the program listens.
    pub(crate) listeners: Listeners,
    /// Further descriptors of connections, and the one that the observer knows.
    pub(crate) aliases: Vec<(i32, i32)>,
    /// The job's key.
    pub(crate) key: JobKey,
    /// Keys for greetings to processes of other jobs.
    foreign: Vec<(ConnectionId, JobKey)>,
    /// A short frame, as it leaves; kept for its room.
    packed: Vec<u8>,
    /// Short frames, as they come; kept for its room.
    short: Box<[u8]>,
    /// What a poll has found, at most `READY_FDS`; kept for its room.
    pub(crate) found: Vec<ReadyFd>,
    /// When outcomes are shipped.
    pub(crate) haste: Haste,
    /// The session with the protector, and its connections.
    pub(crate) session: Session,
    pub(crate) journal: Channel,
    pub(crate) bulk: Channel,
    /// Those of a login that has just succeeded.
    pub(crate) fresh: Option<Channels>,
    /// What the last attempt to reach the protector has come to.
    pub(crate) session_error: Errno,
    pub(crate) lingering: Vec<Lingering>,
    pub(crate) unsent: Vec<Slot>,
    /// Connections of which bytes were read ahead, and perhaps not taken.
    pub(crate) ahead: Vec<Slot>,
    pub(crate) pressure: Pressure,
    /// When it may ask next what is stable, because its outbox fills.
    pub(crate) ask_at: u64,
    /// The connection whose bytes the outbox has no room for, and since when.
    pub(crate) full: Option<(Slot, u64)>,
    /// Threads that sleep in the kernel, in a call that waits.
    pub(crate) sleepers: u32,
    /// Of a process that catches up: whether any of its threads can go on.
    pub(crate) standstill: Standstill,
    idle: u32,
    /// When calls that find nothing look at the clock.
    seldom: Seldom,
    pub(crate) vain: Vain,
}

impl Layer {
    /// The calling thread's place in the observer's table of threads.
    pub fn thread(&mut self) -> u32 {
        threads::place(&mut self.observer)
    }

    /// Whether this process catches up with a log: sockets that its program makes meanwhile have no peer yet.
    pub fn is_replayed(&self) -> bool {
        self.replayer.is_some() || self.observer.is_replaying()
    }

    /// How much of standard input the program has read, in all its incarnations; none: that is not known.
    fn input_read(&self) -> Option<u64> {
        (!self.input.inherited).then(|| self.observer.input_read())
    }

    /// The socket of the journal: its address is the one that peers can reach.
    pub(crate) fn journal_fd(&self) -> BorrowedFd<'_> {
        self.journal.fd()
    }

    /// Whether one of those that have arrived is for this listener.
    pub fn has_arrived(&self, listener: i32) -> bool {
        self.arrived.iter().any(|arrived| self.listeners.takes(listener as u32, arrived.to))
    }

    /// The descriptor by which the observer knows the connection on `fd`.
    pub fn primary(&self, fd: i32) -> i32 {
        if fds::kind(fd) != Kind::Alias {
            return fd;
        }
        self.aliases.iter().find(|(alias, _)| *alias == fd).map_or(fd, |(_, primary)| *primary)
    }
}
