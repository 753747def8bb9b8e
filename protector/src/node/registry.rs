//! Who listens where, and who is about to call: what observers ask before they connect, and after they have accepted.
//!
//! Each node knows the listeners of its own processes. A process that is about to connect has its node ask those nodes that may have
//! the address; the one that has a listener there answers who it is and remembers the caller, so that the accepting process learns
//! from its own node which connection it has accepted. The caller connects only after that answer, so the caller is always known
//! before it can be accepted.
//!
//! A caller is remembered until it is accepted, withdrawn, or its listener ends; not for a time: it may lie in a backlog for as long
//! as the listening process computes, and would be taken for an unprotected peer then. What never comes about is bounded by
//! [`limits::CALLERS`], the oldest going first.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use radic_wire::determinant::ConnectionId;
use radic_wire::ids::{NodeId, ProcessId};
use radic_wire::limits;
use radic_wire::membership::{Member, View};

/// A process listens on more addresses than [`limits::LISTENERS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it listens on more than {} addresses", limits::LISTENERS)]
pub struct TooManyListeners;

/// The listeners of this node's processes, and who is going to call them.
#[derive(Debug, Default)]
pub struct Registry {
    listeners: BTreeMap<SocketAddr, ProcessId>,
    /// Of those that have moved: where connections go instead.
    moved: BTreeMap<SocketAddr, SocketAddr>,
    callers: BTreeMap<ProcessId, Callers>,
}

/// Those that one process has not accepted yet, by their own address.
#[derive(Debug, Default)]
struct Callers {
    connections: BTreeMap<SocketAddr, ConnectionId>,
    /// The same in the order in which they came; some are gone already.
    order: VecDeque<(SocketAddr, ConnectionId)>,
}

impl Registry {
    /// The process listens there. Another one that did before does not any more: the kernel would not have let it.
    pub fn listen(&mut self, process: ProcessId, address: SocketAddr) -> Result<(), TooManyListeners> {
        if self.listeners.values().filter(|p| **p == process).count() >= limits::LISTENERS {
            return Err(TooManyListeners);
        }
        self.moved.remove(&canonical(address));
        self.listeners.insert(canonical(address), process);
        Ok(())
    }

    /// A process that has moved listens at what was its `address` elsewhere; connections are to go to `at`.
    pub fn listen_at(&mut self, process: ProcessId, address: SocketAddr, at: SocketAddr) -> Result<(), TooManyListeners> {
        self.listen(process, address)?;
        self.moved.insert(canonical(address), at);
        Ok(())
    }

    /// Where connections to `to` go instead, if its listener has moved.
    pub fn moved_to(&self, to: SocketAddr) -> Option<SocketAddr> {
        self.moved.get(&canonical(to)).copied()
    }

    /// The process does not listen there any more.
    pub fn unlisten(&mut self, process: ProcessId, address: SocketAddr) {
        let address = canonical(address);
        if self.listeners.get(&address) == Some(&process) {
            self.listeners.remove(&address);
            self.moved.remove(&address);
        }
    }

    /// Which process listens at `to`, which may be one of this node's own addresses (`mine`): then a listener on all addresses has it.
    pub fn find(&self, to: SocketAddr, mine: bool) -> Option<ProcessId> {
        let to = canonical(to);
        // Of its own family: an observer whose listener on all v6 addresses takes v4 too says so, by naming both.
        let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let wildcard = mine.then_some(SocketAddr::new(any, to.port()));
        std::iter::once(to).chain(wildcard).find_map(|address| self.listeners.get(&address).copied())
    }

    /// `process` is going to be called from there.
    pub fn expect(&mut self, process: ProcessId, from: SocketAddr, connection: ConnectionId) {
        let callers = self.callers.entry(process).or_default();
        callers.connections.insert(canonical(from), connection);
        callers.order.push_back((canonical(from), connection));
        while callers.order.len() > limits::CALLERS {
            let (from, connection) = callers.order.pop_front().expect("more than the limit");
            callers.remove(from, connection);
        }
        assert!(callers.connections.len() <= callers.order.len(), "every caller has its place in the order");
    }

    /// The caller does not come.
    pub fn withdraw(&mut self, process: ProcessId, from: SocketAddr, connection: ConnectionId) {
        if let Some(callers) = self.callers.get_mut(&process) {
            callers.remove(canonical(from), connection);
        }
    }

    /// The process has accepted a connection from there: which one, if its caller is protected. It is forgotten.
    pub fn accepted(&mut self, process: ProcessId, from: SocketAddr) -> Option<ConnectionId> {
        self.callers.get_mut(&process)?.connections.remove(&canonical(from))
    }

    /// The process has ended, or begins anew.
    pub fn forget(&mut self, process: ProcessId) {
        self.listeners.retain(|_, p| *p != process);
        self.moved.retain(|address, _| self.listeners.contains_key(address));
        self.callers.remove(&process);
    }
}

impl Callers {
    fn remove(&mut self, from: SocketAddr, connection: ConnectionId) {
        if self.connections.get(&from) == Some(&connection) {
            self.connections.remove(&from);
        }
    }
}

/// The same address for the same place: IPv4 within IPv6 is IPv4, and neither flow nor scope tells listeners apart.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Where a connection to `to` really goes: the unspecified address means this machine.
pub fn target(to: SocketAddr) -> SocketAddr {
    let to = canonical(to);
    match to.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), to.port()),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), to.port()),
        _ => to,
    }
}

/// What `me`'s peers see of a caller that is bound to no address yet.
pub fn source(from: SocketAddr, to: SocketAddr, me: IpAddr) -> SocketAddr {
    let from = canonical(from);
    match (from.ip().is_unspecified(), to.ip()) {
        (false, _) => from,
        (true, IpAddr::V4(ip)) if ip.is_loopback() => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), from.port()),
        (true, IpAddr::V6(ip)) if ip.is_loopback() => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), from.port()),
        (true, _) => SocketAddr::new(me, from.port()),
    }
}

/// The other nodes that may have a listener at `to`: those that share this machine's address if it is this machine's (`mine`), else
/// those that are known by that address, else all: it may be a second address of any. All, too, if a node of that address has died and come back: what listened
/// there goes on elsewhere, under the address that it had.
pub fn candidates(view: &View, me: &Member, to: SocketAddr, mine: bool) -> Vec<NodeId> {
    let others = || view.members.iter().filter(|member| member.id != me.id);
    let ip = if mine { me.address.ip() } else { to.ip() };
    let there = || view.members.iter().filter(|member| member.address.ip() == ip);
    let came_back = |member: &Member| view.departed.iter().any(|departed| departed.id.name == member.id.name);
    if there().any(came_back) || (!mine && there().next().is_none()) {
        return others().map(|member| member.id.clone()).collect();
    }
    others().filter(|member| member.address.ip() == ip).map(|member| member.id.clone()).collect()
}

#[cfg(test)]
mod tests {
    use radic_wire::ids::{BootId, JobId, Rank};
    use radic_wire::membership::{Departed, Departure};

    use super::*;

    fn process(rank: u32) -> ProcessId {
        ProcessId { job: JobId::from_bits(7), rank: Rank(rank) }
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn connection(number: u64) -> ConnectionId {
        ConnectionId { opener: process(9), number }
    }

    #[test]
    fn the_exact_address_goes_before_a_wildcard_and_a_wildcard_only_has_its_own_node_s() {
        let mut registry = Registry::default();
        registry.listen(process(0), at("10.0.0.1:80")).unwrap();
        registry.listen(process(1), at("0.0.0.0:80")).unwrap();
        registry.listen(process(2), at("[::]:81")).unwrap();
        assert_eq!(registry.find(at("10.0.0.1:80"), true), Some(process(0)));
        assert_eq!(registry.find(at("10.0.0.2:80"), true), Some(process(1)));
        assert_eq!(registry.find(at("10.0.0.2:80"), false), None, "somebody else's address");
        assert_eq!(registry.find(at("[fd00::1]:81"), true), Some(process(2)));
        assert_eq!(registry.find(at("127.0.0.1:81"), true), None, "a v6 wildcard does not take v4 unless it is named, too");
        assert_eq!(registry.find(at("[::ffff:10.0.0.1]:80"), true), Some(process(0)), "v4 written as v6");
        assert_eq!(registry.find(at("[fd00::1]:80"), true), None, "a v4 wildcard does not take v6");
        registry.unlisten(process(0), at("0.0.0.0:80"));
        assert_eq!(registry.find(at("10.0.0.2:80"), true), Some(process(1)), "not its own to end");
        registry.forget(process(1));
        assert_eq!(registry.find(at("10.0.0.2:80"), true), None);
    }

    #[test]
    fn a_caller_is_told_once_and_only_to_whom_it_calls() {
        let mut registry = Registry::default();
        registry.expect(process(0), at("10.0.0.2:5000"), connection(1));
        assert_eq!(registry.accepted(process(1), at("10.0.0.2:5000")), None);
        assert_eq!(registry.accepted(process(0), at("[::ffff:10.0.0.2]:5000")), Some(connection(1)));
        assert_eq!(registry.accepted(process(0), at("10.0.0.2:5000")), None);
        registry.expect(process(0), at("10.0.0.2:5000"), connection(2));
        registry.expect(process(0), at("10.0.0.2:5000"), connection(3));
        registry.withdraw(process(0), at("10.0.0.2:5000"), connection(2));
        assert_eq!(registry.accepted(process(0), at("10.0.0.2:5000")), Some(connection(3)), "the newer one stays");
    }

    #[test]
    fn everything_is_bounded() {
        let mut registry = Registry::default();
        for port in 0..limits::LISTENERS as u16 {
            registry.listen(process(0), SocketAddr::from(([1, 2, 3, 4], port))).unwrap();
        }
        assert_eq!(registry.listen(process(0), at("1.2.3.5:1")), Err(TooManyListeners));
        let from = |i: usize| SocketAddr::from((Ipv4Addr::from_bits(0x0a00_0000 + i as u32), 1));
        for i in 0..limits::CALLERS + 10 {
            registry.expect(process(0), from(i), connection(i as u64));
        }
        assert_eq!(registry.accepted(process(0), from(9)), None, "the oldest is gone");
        assert_eq!(registry.accepted(process(0), from(10)), Some(connection(10)));
        assert!(registry.callers[&process(0)].order.len() <= limits::CALLERS);
    }

    #[test]
    fn only_those_are_asked_that_may_have_the_address() {
        let member = |i: u8, ip: &str| Member {
            id: NodeId { name: format!("n{i}").parse().unwrap(), boot: BootId(i.into()) },
            address: SocketAddr::new(ip.parse().unwrap(), 7117),
            log_port: 1,
            spare: false,
            slots: 1,
        };
        let members = vec![member(1, "10.0.0.1"), member(2, "10.0.0.1"), member(3, "10.0.0.3")];
        let mut view = View { cluster: BootId(1), number: 1, members, departed: vec![] };
        let asked = |view: &View, to: &str, mine| {
            let nodes = candidates(view, &view.members[0], target(at(to)), mine);
            nodes.iter().map(|n| n.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(asked(&view, "127.0.0.1:1", true), ["n2"], "loopback does not leave the machine");
        assert_eq!(asked(&view, "10.0.0.1:1", true), ["n2"]);
        assert_eq!(asked(&view, "10.0.0.3:1", false), ["n3"]);
        assert_eq!(asked(&view, "192.168.7.3:1", false), ["n2", "n3"], "perhaps a second address");
        let before = NodeId { boot: BootId(77), ..view.members[2].id.clone() };
        view.departed.push(Departed { id: before, how: Departure::Died });
        assert_eq!(asked(&view, "10.0.0.3:1", false), ["n2", "n3"], "it died, came back, and what listened there is elsewhere");
        assert_eq!(asked(&view, "10.0.0.1:1", true), ["n2"], "nobody of that address has died");
    }

    #[test]
    fn an_unbound_caller_is_what_the_kernel_will_make_of_it() {
        let me = "10.0.0.1".parse().unwrap();
        let source = |from: &str, to: &str| source(at(from), target(at(to)), me).to_string();
        assert_eq!(source("0.0.0.0:9", "10.0.0.3:1"), "10.0.0.1:9");
        assert_eq!(source("0.0.0.0:9", "0.0.0.0:1"), "127.0.0.1:9");
        assert_eq!(source("[::]:9", "[::1]:1"), "[::1]:9");
        assert_eq!(source("10.0.0.7:9", "127.0.0.1:1"), "10.0.0.7:9");
    }
}
