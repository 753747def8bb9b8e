//! The sockets of links that are not up: the door, those that came to it or were dialed, and those that the program's descriptors had.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use radic_observer::links::{Ending, SocketId};
use radic_wire::determinant::StreamId;
use rustix::io::Errno;

use crate::greeting::Incoming;
use crate::sockets::{Aside, discard};
use crate::sys;

/// A socket on which a greeting is to come.
#[derive(Debug)]
pub(crate) struct Greeter {
    pub(crate) fd: OwnedFd,
    pub(crate) incoming: Incoming,
    /// It has come to the program's listener, and not to the door.
    pub(crate) called: bool,
}

/// A socket that was dialed.
#[derive(Debug)]
pub(crate) struct Dialed {
    pub(crate) greeter: Greeter,
    pub(crate) is_connected: bool,
}

/// The sockets of links that are not up.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    pub(crate) door: Option<(OwnedFd, SocketAddr)>,
    pub(crate) visitors: BTreeMap<SocketId, Greeter>,
    pub(crate) dialed: BTreeMap<SocketId, Dialed>,
    pub(crate) aside: Vec<Aside>,
    /// When everything was looked after last, in the time of [`sys::now`].
    pub(crate) tended: u64,
}

impl Sockets {
    /// All of them, to be moved to other numbers.
    pub(crate) fn own(&mut self) -> impl Iterator<Item = &mut OwnedFd> {
        let door = self.door.iter_mut().map(|(fd, _)| fd);
        let visitors = self.visitors.values_mut().map(|visitor| &mut visitor.fd);
        let dialed = self.dialed.values_mut().map(|dialed| &mut dialed.greeter.fd);
        door.chain(visitors).chain(dialed).chain(self.aside.iter_mut().filter_map(|aside| aside.socket.as_mut()))
    }

    pub(crate) fn close_all(&mut self) {
        std::mem::take(&mut self.visitors).into_values().for_each(|visitor| sys::close_own(visitor.fd));
        std::mem::take(&mut self.dialed).into_values().for_each(|dialed| sys::close_own(dialed.greeter.fd));
        self.aside.drain(..).filter_map(|aside| aside.socket).for_each(discard);
    }

    pub(crate) fn take(&mut self, socket: SocketId) -> Option<OwnedFd> {
        let visitor = self.visitors.remove(&socket);
        visitor.or_else(|| self.dialed.remove(&socket).map(|dialed| dialed.greeter)).map(|greeter| greeter.fd)
    }

    pub(crate) fn take_aside(&mut self, end: StreamId) -> Option<Aside> {
        let at = self.aside.iter().position(|aside| aside.end == end)?;
        Some(self.aside.swap_remove(at))
    }
}

/// As the state machine names an error of the kernel.
pub(crate) fn reset(error: Errno) -> Ending {
    Ending::Reset(error.raw_os_error())
}
