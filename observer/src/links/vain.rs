//! Links that cannot be made for long though both processes live: the node is told, for the terminal and the event log. They are dialed all the
//! same, for ever: a network may be down for as long as it likes.

use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::determinant::StreamId;
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::process::ToNode;

use super::Links;
use crate::Context;
use crate::connection::Connection;

/// A door that is dialed in vain for so long is told of. The nodes know by then that a process is lost, and a process that computes has a kernel that takes the
/// connection.
const LONG: Duration = Duration::from_secs(10);
/// Peers of which that is told until one of them is reached: all those of a node may be out of reach.
const TOLD: usize = 4;

/// Which door of a link's peer, in which incarnation of it, is dialed in vain, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Vain(Option<(SocketAddr, Incarnation, Duration)>);

impl Vain {
    /// The door is dialed.
    pub(super) fn handle_dial(&mut self, now: Duration, door: SocketAddr, peer: Incarnation) {
        if self.0.is_none_or(|(at, of, _)| (at, of) != (door, peer)) {
            self.0 = Some((door, peer, now));
        }
    }

    /// The door, if that has lasted for long.
    fn long(&self, now: Duration) -> Option<SocketAddr> {
        self.0.filter(|(.., since)| now - *since >= LONG).map(|(door, ..)| door)
    }
}

impl Links {
    /// A door was dialed in vain: it is dialed again after a pause. What the program has closed need not be reached.
    pub(super) fn dial_again(&mut self, cx: &mut Context<'_>, end: StreamId, pause: Duration) {
        if let Some(reconnection) = self.reconnections.get(&end)
            && let Some(door) = reconnection.vain.long(cx.now)
            && cx.connection(end).is_some_and(|(_, connection): (_, &Connection)| !connection.is_closed())
        {
            let peer = reconnection.peer;
            self.tell_of_vain(cx, peer, door);
        }
        self.try_again(cx, end, pause);
    }

    /// The peer of this link was reached, or is not there.
    pub(super) fn end_vain(&mut self, end: StreamId) {
        self.reconnections.entry(end).and_modify(|of| of.vain = Vain::default());
    }

    fn tell_of_vain(&mut self, cx: &Context<'_>, peer: ProcessId, door: SocketAddr) {
        if self.told.contains(&peer) || self.told.len() >= TOLD {
            return;
        }
        self.told.insert(peer);
        let (peer, seconds) = (name(cx, peer), LONG.as_secs());
        self.tell(ToNode::Kept(format!(
            "its link to {peer} has not come about for {seconds} s: {peer} is called at {door} in vain, and is called on; does a firewall \
             or a broken network lie between their nodes?"
        )));
    }

    /// A link to this peer is there.
    pub(super) fn handle_reached(&mut self, cx: &Context<'_>, peer: ProcessId) {
        if self.told.remove(&peer) {
            self.tell(ToNode::Kept(format!("its link to {}, which was called in vain, has come about", name(cx, peer))));
        }
    }
}

/// A peer, as its job's terminal knows it.
fn name(cx: &Context<'_>, peer: ProcessId) -> String {
    if peer.job == cx.observer.process().job {
        format!("rank {}", peer.rank)
    } else {
        format!("rank {} of job {}", peer.rank, peer.job)
    }
}
