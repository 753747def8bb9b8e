//! An address without a listener may soon have one: a process that is lost, or has not caught up, listens again when it is back.
//! A process that wants its address meanwhile waits. A process that wants another one does not wait, however long the first one
//! stays away.
//!
//! Each node knows where its own processes listened ([`registry`]). Where a process listened that comes from a node that is gone
//! is not known, but it was on a node where it ran.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::ids::{NodeId, ProcessId};

use super::host::Host;
use super::{Node, registry};

/// Time within which a process is seen to end after its connection has ended.
const ENDING: Duration = Duration::from_secs(1);

/// An address where no listener was found.
#[derive(Debug)]
pub(super) struct Vacancy {
    /// The address as the process that wants it sees it.
    pub(super) at: SocketAddr,
    pub(super) wanted_by: ProcessId,
    /// The node of that process.
    pub(super) asker: NodeId,
}

impl Node {
    /// Whether a process that may have listened there will soon be back: one of this node, or one of a job whose home is here, or
    /// will be.
    pub(super) fn is_any_away(&mut self, now: Duration, vacancy: &Vacancy) -> bool {
        let away = |host: &Host, rank| host.is_away(rank) && self.may_have_listened(ProcessId { job: host.job(), rank }, vacancy);
        let is_any_here = self.hosts.values().any(|host| host.ranks().any(|rank| away(host, rank)));
        is_any_here || self.is_any_lost(vacancy) || self.is_any_ending(now, vacancy)
    }

    /// The process has ended. Its listeners are remembered, because it may be brought back.
    pub(super) fn leave_listeners(&mut self, process: ProcessId) {
        let again = self.hosts.get(&process.job).is_some_and(|host| host.is_away(process.rank));
        self.registry.leave(process, again);
    }

    /// Whether the node is on the same machine as this one.
    pub(super) fn is_on_this_machine(&self, node: &NodeId) -> bool {
        node == self.me() || self.member(node).is_some_and(|member| member.data == self.config.me.data)
    }

    /// Whether a process that has ended here, or comes back here, may have listened there.
    fn may_have_listened(&self, process: ProcessId, vacancy: &Vacancy) -> bool {
        let ip = vacancy.at.ip();
        if ip.is_loopback() && !self.is_on_this_machine(&vacancy.asker) {
            return false;
        }
        if let Some(known) = self.registry.has_listened(process, vacancy.at, self.is_mine(ip)) {
            return known;
        }
        let (here, origin) = (self.config.me.data, self.origin_of(process));
        if ip.is_loopback() {
            // Only a process that was on the same machine then uses this address. So it has run here before, or both have moved.
            let stayed = vacancy.asker == *self.me() && self.origin_of(vacancy.wanted_by).is_none_or(|origin| origin == here);
            return origin == Some(here) || !stayed;
        }
        self.view().is_none_or(|view| registry::may_have_been_at(view, origin, ip))
    }

    /// Whether a rank that is lost with its node and not back may have listened there, as far as the homes on this node know.
    fn is_any_lost(&self, vacancy: &Vacancy) -> bool {
        let (ip, job) = (vacancy.at.ip(), vacancy.wanted_by.job);
        let Some(view) = self.view() else { return true };
        let of_asker = |node: &NodeId| self.address_of(node) == self.address_of(&vacancy.asker);
        let held = |home: &super::Home, rank| {
            if ip.is_loopback() {
                return home.placement().node_of(rank).is_some_and(of_asker);
            }
            // A home that was adopted does not know where its ranks were first launched.
            home.is_adopted() && home.job() == job || registry::may_have_been_at(view, home.origin_of(rank), ip)
        };
        if self.homes.values().any(|home| home.lost().any(|rank| held(home, rank))) {
            return true;
        }
        // The home of the job is lost, and this node is the next one: it does not know yet which ranks are lost.
        !self.homes.contains_key(&job) && self.hosts.get(&job).is_some_and(|host| host.home() == self.me())
    }

    /// Whether a process here that may have listened there has lost its observer, and was not seen to end: it may have crashed.
    /// This is assumed for a short time only, because the process may have executed a program without protection.
    fn is_any_ending(&mut self, now: Duration, vacancy: &Vacancy) -> bool {
        let runs = |process: &ProcessId| self.hosts.get(&process.job).is_some_and(|host| host.pid(process.rank).is_some());
        let gone =
            self.observers.processes.iter().filter(|(process, o)| o.has_joined() && o.observer().is_none() && runs(process));
        let gone: BTreeSet<ProcessId> =
            gone.map(|(process, _)| *process).filter(|process| self.may_have_listened(*process, vacancy)).collect();
        let observed = self.observers.processes.iter_mut().filter(|(process, _)| gone.contains(process));
        observed.filter_map(|(_, observed)| observed.gone_since(now)).any(|since| now < since + ENDING)
    }
}
