//! Connections whose `connect` has not waited for them: the driver of what [`radic_observer::links`] decides about their first link, the program's own socket.

use std::net::{Ipv4Addr, SocketAddr};

use radic_observer::connection::Slot;
use radic_observer::found::{Found, Peer};
use radic_wire::address::canonical;
use radic_wire::determinant::StreamId;
use radic_wire::log::Greeting;
use radic_wire::process::{FromNode, ToNode};
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::Layer;
use crate::greeting::{self, To};
use crate::links::reset;
use crate::sockets::{is_given_up, refuse_again, settled};
use crate::{fds, sys};

/// As many of them a waiting call listens to; the others are looked at by turns, as long as any link is not up.
const AT_ONCE: usize = 64;

impl Layer {
    /// Looks what has become of them. `waits`: also at the gate, before the program is told.
    pub fn look_at_under_way(&mut self, waits: bool) {
        let ends: Vec<StreamId> = self.links.under_way().collect();
        for end in ends {
            let Some((slot, fd)) = self.socket_of(end) else { continue };
            if sys::wait_for(sys::borrow(fd), PollFlags::OUT, 0).is_err() {
                continue;
            }
            if waits {
                self.pass_gate();
            }
            // At the gate it may have become another socket.
            if !self.is_under_way(slot) {
                continue;
            }
            let peer = rustix::net::getpeername(sys::borrow(fd));
            match settled(fd).and_then(|()| peer.map_err(|_| Errno::CONNREFUSED)) {
                // Its greeting came too late: this program has made no call for long.
                Ok(_) if is_given_up(sys::borrow(fd)) => self.handle_refused(end, slot, fd, Errno::CONNRESET),
                Ok(_) => self.drive(|links, cx| {
                    links.handle_made(cx, end);
                    Ok(())
                }),
                Err(error) => self.handle_refused(end, slot, fd, error),
            }
        }
    }

    /// Whether the `connect` of this connection is under way.
    pub fn is_under_way(&self, slot: Slot) -> bool {
        self.links.is_any_down() && self.end_of(slot).is_some_and(|end| self.links.is_under_way(end))
    }

    /// What waiting calls listen to. While the gate is shut nothing is done about them, and the protector is listened to.
    pub(crate) fn awaited_of_under_way(&self) -> impl Iterator<Item = (i32, PollFlags)> {
        let ends = self.links.under_way().filter(|_| self.observer.gate().is_none());
        ends.filter_map(|end| Some((self.socket_of(end)?.1, PollFlags::OUT))).take(AT_ONCE)
    }

    fn socket_of(&self, end: StreamId) -> Option<(Slot, i32)> {
        let slot = self.slot_of_end(end)?;
        Some((slot, self.descriptor(slot)?))
    }

    /// The first link was refused. Whether the process that was called is there the nodes know.
    fn handle_refused(&mut self, end: StreamId, slot: Slot, fd: i32, error: Errno) {
        if !self.observer.records_refusals() {
            return;
        }
        let Some(peer) = self.observer.table().get(slot).map(|connection| connection.peer) else { return };
        let Some(names) = self.names.get(&fd).copied() else { return };
        let (to, connection) = (names.peer, end.connection);
        let from = canonical(names.local.unwrap_or(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0)));
        let found = self.inquire(
            |ask| ToNode::Connecting { ask, connection, from, to: canonical(to) },
            |answer| {
                let FromNode::Peer { ask, peer, at, later, machine, .. } = *answer else { return None };
                Some((ask, Found { peer: peer.map(|process| Peer { process, at }), later, machine }))
            },
            || format!("which process listens at {to}"),
        );
        // What the node has said before that may have given the socket up.
        if !self.is_under_way(slot) || self.socket_of(end) != Some((slot, fd)) {
            return;
        }
        if !found.is_there(peer, error.raw_os_error()) && error == Errno::CONNREFUSED {
            // Make `poll` report the refusal too.
            let socket = sys::borrow(fd);
            _ = rustix::io::ioctl_fionbio(socket, true);
            refuse_again(fd, &to);
            _ = rustix::io::ioctl_fionbio(socket, !fds::is_blocking(fd));
        }
        self.drive(|links, cx| links.handle_refused(cx, end, error.raw_os_error(), &found));
    }

    /// Greets the peer of a connection on the program's socket.
    pub(crate) fn hail(&mut self, end: StreamId, greeting: Greeting) {
        let Some((slot, fd)) = self.socket_of(end) else { return };
        let Some(process) = self.observer.table().get(slot).map(|connection| connection.peer) else { return };
        let hello = Greeting { ends: self.ends(slot), ..greeting };
        let (to, key) = (To { process, incarnation: None }, self.greeting_key(&end.connection));
        match greeting::write(sys::borrow(fd), &key, to, &hello) {
            Ok(()) => self.transmit(slot),
            Err(error) => self.link_ended(slot, reset(error)),
        }
    }

    /// The program is about to close a connection.
    pub(crate) fn handle_closing(&mut self, slot: Slot) {
        self.drive(|links, cx| {
            links.handle_closing(cx, slot);
            Ok(())
        });
    }
}
