//! Does a member answer? A probe asks over fresh connections, until it answers or does not listen there any more.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::ids::NodeId;

use super::{Connection, ConnectionId, Due, Gone, HANDSHAKE, PROBES, Peers, Reason, Role};
use crate::membership::Peer;
use crate::node::Input;

/// Time after which a probe is tried again that failed although its target may listen.
const AGAIN: Duration = Duration::from_millis(20);

/// Number of a probe.
pub(super) type ProbeNumber = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// An attempt is under way.
    Asking(ConnectionId),
    /// The next one begins then.
    Pausing { until: Duration },
}

/// A probe under way.
#[derive(Debug)]
pub(super) struct Probe {
    member: NodeId,
    address: SocketAddr,
    /// When it ends without a result. Silence is not told: the membership has its own time for that, which ends before.
    until: Duration,
    stage: Stage,
}

impl Probe {
    /// The connection of its attempt.
    pub(super) fn connection(&self) -> Option<ConnectionId> {
        match self.stage {
            Stage::Asking(id) => Some(id),
            Stage::Pausing { .. } => None,
        }
    }

    /// Panics if the probe contradicts the rest. Whether it has a time of its own.
    pub(super) fn check(
        &self,
        number: ProbeNumber,
        connections: &BTreeMap<ConnectionId, Connection>,
        due: &BTreeSet<(Duration, Due)>,
    ) -> bool {
        match self.stage {
            Stage::Asking(id) => {
                let is_its = |connection: &Connection| matches!(connection.role, Role::Probe(of) if of == number);
                assert!(connections.get(&id).is_some_and(is_its), "the attempt of a probe is there");
                false
            }
            Stage::Pausing { until } => {
                assert!(due.contains(&(until, Due::Probe(number))), "a probe is tried again");
                true
            }
        }
    }
}

impl Peers {
    /// Finds out by fresh connections whether this very member answers.
    pub fn probe(&mut self, now: Duration, member: Peer) {
        let Some(address) = member.address else { return };
        if self.probes.len() >= PROBES
            && let Some(oldest) = self.probes.first_key_value().map(|(number, _)| *number)
        {
            self.end_probe(now, oldest);
        }
        self.next_probe += 1;
        let (number, until) = (self.next_probe, now + HANDSHAKE);
        let id = self.dial(now, address, Role::Probe(number), until);
        self.probes.insert(number, Probe { member: member.id, address, until, stage: Stage::Asking(id) });
        self.check_bounds();
    }

    /// The member that is probed.
    pub(super) fn probed(&self, number: ProbeNumber) -> &NodeId {
        &self.probes.get(&number).expect("a connection of a probe has one").member
    }

    /// The member has answered, or cannot.
    pub(super) fn finish_probe(&mut self, number: ProbeNumber, alive: bool) {
        if let Some(probe) = self.probes.remove(&number) {
            self.tell(Input::ProbeResult(probe.member, alive));
        }
    }

    fn end_probe(&mut self, now: Duration, number: ProbeNumber) {
        match self.probes.remove(&number).map(|probe| probe.stage) {
            Some(Stage::Asking(id)) => self.close(now, id, Reason::Crowd),
            Some(Stage::Pausing { until }) => _ = self.due.remove(&(until, Due::Probe(number))),
            None => {}
        }
    }

    /// An attempt has ended without an answer.
    pub(super) fn handle_probe_down(&mut self, now: Duration, number: ProbeNumber, reason: &Reason) {
        let Some(probe) = self.probes.get_mut(&number) else { return };
        match reason {
            // Taken and then closed: the member has just died, or has too many connections. Or there is no way to it.
            Reason::Gone(Gone::Ended | Gone::Broke(_) | Gone::NoWay(_)) if now + AGAIN < probe.until => {
                let until = now + AGAIN;
                probe.stage = Stage::Pausing { until };
                self.due.insert((until, Due::Probe(number)));
            }
            Reason::Gone(Gone::NoListener | Gone::Fault(_)) | Reason::Malformed(_) => self.finish_probe(number, false),
            _ => _ = self.probes.remove(&number),
        }
    }

    pub(super) fn try_probe_again(&mut self, now: Duration, number: ProbeNumber) {
        let Probe { address, until, stage, .. } = self.probes[&number];
        if let Stage::Pausing { until } = stage {
            self.due.remove(&(until, Due::Probe(number)));
        }
        let id = self.dial(now, address, Role::Probe(number), until);
        self.probes.get_mut(&number).expect("it is there").stage = Stage::Asking(id);
    }
}
