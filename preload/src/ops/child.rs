//! Children of a rank that take connections. A child is not protected, and its calls pass through; but a listener that it has
//! from the rank is known as the rank's, and a protected caller greets there before it says what its program says. So a child
//! tells the node before it takes connections at a listener: from then on callers find no protected process there. A caller that
//! was told of the rank before is sent away; its program sees a connection that is over, as if the server had closed it.
//!
//! Each question has a connection of its own: a child may fork as well, and then nothing is shared.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use radic_wire::PROTOCOL_VERSION;
use radic_wire::address::canonical;
use radic_wire::ids::ProcessId;
use radic_wire::process::{FromNode, ToNode};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, sockopt};

use super::accept::{Accepted, addresses_of};
use super::address;
use crate::fds::{self, DESCRIPTORS};
use crate::node::Node;
use crate::{sockets, sys};

/// Time for the node to answer, in milliseconds. Then it is asked once more, over another connection.
const ANSWER_MS: u64 = 5_000;

/// How often the node is asked.
const ASKS: u32 = 12;

/// Time for a caller that has made a connection to greet on it, in milliseconds.
const GREETING_MS: u64 = 5_000;

/// The node's socket, and the rank's process.
static HOME: OnceLock<(Vec<u8>, ProcessId)> = OnceLock::new();
/// This process is a child, and no rank.
static IS_CHILD: AtomicBool = AtomicBool::new(false);
/// What the node has said of the listener with this number: its port, and [`INHERITED`] or [`OWN`]. 0: nothing.
static LISTENERS: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];
/// The rank listened there.
const INHERITED: u32 = 1 << 16;
/// The rank did not listen there.
const OWN: u32 = 2 << 16;

/// The node that this process, or its parent, asks.
pub(crate) fn set_home(socket: &[u8], process: ProcessId) {
    _ = HOME.set((socket.to_vec(), process));
}

/// This process is a child from now on.
pub(crate) fn begin() {
    IS_CHILD.store(true, Ordering::Relaxed);
}

/// Whether this process is a child.
pub(crate) fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// The child waits for callers at this listener, if it is one that the rank had: the node is told before the first one is taken.
pub(crate) fn wait_for_callers(fd: i32) {
    if fds::kind(fd) == fds::Kind::Listener {
        is_inherited(fd);
    }
}

/// `accept` in a child. None: the listener is none of the rank's, and the call passes through.
pub(crate) fn accept(listener: i32, flags: SocketFlags) -> Option<Result<Accepted, Errno>> {
    if !is_inherited(listener) {
        return None;
    }
    loop {
        let (socket, peer) = match rustix::net::acceptfrom_with(sys::borrow(listener), flags) {
            Ok((socket, Some(peer))) => (socket, peer),
            Ok((_, None)) => continue,
            Err(error) => return Some(Err(error)),
        };
        let Ok(peer) = SocketAddr::try_from(peer) else { continue };
        if is_for_the_rank(peer) {
            send_away(&socket, peer);
        } else {
            return Some(Ok(Accepted { fd: sys::give(socket), peer }));
        }
    }
}

/// Whether the rank listened there: the node knows, and is asked once for each listener.
fn is_inherited(fd: i32) -> bool {
    let Some(known) = usize::try_from(fd).ok().and_then(|fd| LISTENERS.get(fd)) else { return false };
    let Some(local) = sockets::local(fd).filter(|_| address::is_tcp(fd)) else { return false };
    let (before, port) = (known.load(Ordering::Relaxed), u32::from(local.port()));
    if before & 0xffff == port {
        return before & INHERITED != 0;
    }
    let mut inherited = false;
    for address in addresses_of(fd, local).iter() {
        match ask(|process| ToNode::ChildListens { version: PROTOCOL_VERSION, process, address }) {
            Some(FromNode::Inherited(is)) => inherited |= is,
            // The node is gone, and so is the rank.
            _ => return false,
        }
    }
    known.store(port | if inherited { INHERITED } else { OWN }, Ordering::Relaxed);
    inherited
}

/// Whether the caller from there is protected, and was told to call the rank.
fn is_for_the_rank(from: SocketAddr) -> bool {
    let from = canonical(from);
    let answer = ask(|process| ToNode::ChildAccepted { version: PROTOCOL_VERSION, process, from });
    matches!(answer, Some(FromNode::Caller { caller: Some(_), .. }))
}

/// The connection is to end by a reset, as the kernel does it with those that no process has accepted. The caller may have given
/// it up already, and come once more from the same address: that call is another connection, on which it greets. So the node
/// forgets the caller only when it has greeted here.
fn send_away(socket: &OwnedFd, from: SocketAddr) {
    let there = match sys::wait_for(socket.as_fd(), PollFlags::IN, GREETING_MS) {
        Ok(()) => rustix::net::recv(socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok_and(|(_, count)| count > 0),
        Err(_) => true,
    };
    if there {
        let from = canonical(from);
        _ = ask(|process| ToNode::ChildRefuses { version: PROTOCOL_VERSION, process, from });
    }
    _ = sockopt::set_socket_linger(socket.as_fd(), Some(Duration::ZERO));
}

/// None: the node is gone. It is the one that has brought the rank back, if it was. One that is there and is late is asked again:
/// without its answer a caller would wait forever for a rank that accepts no caller, or what it says to the library would be
/// given to the program.
fn ask(question: impl Fn(ProcessId) -> ToNode) -> Option<FromNode> {
    let (socket, process) = HOME.get()?;
    let question = question(*process);
    for _ in 0..ASKS {
        match ask_once(socket, &question) {
            Err(Errno::TIMEDOUT) => {}
            answer => return answer.ok(),
        }
    }
    None
}

fn ask_once(socket: &[u8], question: &ToNode) -> Result<FromNode, Errno> {
    let launcher = radic_ckpt::launcher();
    let node = if launcher == 0 { Node::connect(socket) } else { Node::of_launcher(launcher) };
    let mut node = node?;
    let answer = node.ask_within(ANSWER_MS, question, |_| true);
    node.close();
    answer
}
