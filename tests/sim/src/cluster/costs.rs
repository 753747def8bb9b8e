//! What the work of a daemon costs in virtual time, if the plan says so: a daemon does one thing after the other, in the order in which they come.
//!
//! Heartbeats leave by a thread of their own, which waits for nothing.

use std::time::Duration;

use super::net::{ConnId, Owner, Packet};
use super::plan::Costs;
use super::world::World;

impl World {
    /// The daemon of a machine has so much to do, after everything else: when it has done it.
    pub(super) fn work(&mut self, at: usize, work: Duration) -> Duration {
        let machine = &mut self.machines[at];
        machine.free = machine.free.max(self.now) + work;
        machine.free
    }

    /// What the daemon of this side spends on a connection; none, if that costs nothing.
    fn costs_of(&self, conn: ConnId, side: usize) -> Option<(usize, Costs)> {
        let costs = self.plan.quiet?;
        let Owner::Daemon(at, _) = self.net.conns[conn].ends[side].owner else { return None };
        (!self.machines[at].peers.is_of_heartbeats(conn)).then_some((at, costs))
    }

    /// When this packet leaves this side.
    pub(super) fn leaves(&mut self, conn: ConnId, side: usize, packet: &Packet) -> Duration {
        match (self.costs_of(conn, side), packet) {
            (Some((at, costs)), Packet::Syn) => self.work(at, costs.handshake),
            (Some((at, costs)), Packet::Word(_)) => self.work(at, costs.message),
            _ => self.now,
        }
    }

    /// When the owner of this side has handled the packet that has arrived there, after all that came before; none: at once.
    pub(super) fn served_at(&mut self, conn: ConnId, side: usize) -> Option<Duration> {
        let (at, costs) = self.costs_of(conn, side)?;
        Some(self.work(at, costs.message))
    }
}
