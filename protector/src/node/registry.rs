//! The listeners of a node's processes and the calls under way to them: what observers ask before they connect, and after they
//! have accepted.
//!
//! Each node knows the listeners of its own processes. A process that is about to connect has its node ask the nodes that may
//! have the address. The node with a listener there answers which process it is and remembers the caller, so that the accepting
//! process learns from its own node which connection it has accepted. The caller connects only after that answer, so it is always
//! known before it can be accepted.
//!
//! A caller is remembered until it has been greeted, is withdrawn, or its job is over. It is not forgotten after a time: it may
//! lie in a backlog for as long as the listening process computes, and would then be taken for an unprotected peer. Callers that
//! never come are bounded by [`limits::CALLERS`], the oldest being forgotten first.
//!
//! A program may also call until a process listens. A caller that was told that none does may get a connection all the same, a
//! moment later, and asks again then. So that the listener does not take it for an unprotected peer meanwhile, callers that found
//! no listener are remembered as well, until they say what came of the call ([`Registry::miss`]). And a process announces that it
//! is about to listen before it does ([`Registry::announce`]): from then on no caller is told for good that there is no listener.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use radic_wire::address::canonical;
use radic_wire::determinant::ConnectionId;
use radic_wire::ids::{JobId, NodeId, ProcessId};
use radic_wire::limits;
use radic_wire::membership::{Member, View};

/// A process listens on more addresses than [`limits::LISTENERS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it listens on more than {} addresses", limits::LISTENERS)]
pub struct TooManyListeners;

/// The listeners of this node's processes, and the calls that are expected.
#[derive(Debug, Default)]
pub struct Registry {
    listeners: BTreeMap<SocketAddr, ProcessId>,
    /// For listeners of processes that have moved: where connections go instead.
    moved: BTreeMap<SocketAddr, SocketAddr>,
    /// Listeners that processes have left to their children, by the addresses of the sockets.
    handed: BTreeSet<(SocketAddr, ProcessId)>,
    /// Addresses on which processes are about to listen.
    announced: BTreeSet<(SocketAddr, ProcessId)>,
    callers: BTreeMap<ProcessId, Callers>,
    /// In the order in which they came.
    early: VecDeque<Early>,
    /// Processes that have ended here, or come back here, and where they listened.
    left: BTreeMap<ProcessId, Left>,
    /// Jobs that were suspended and go on: their processes listen where they were launched once, and the node of that address may be a member.
    resumed: BTreeSet<JobId>,
}

/// Where a process listened, or was about to, when it ended.
#[derive(Debug, Default)]
struct Left {
    /// By address: whether the process had moved away from there.
    addresses: BTreeMap<SocketAddr, bool>,
    /// All addresses of the process are among these. False for a process that comes from another node, or that has left more than
    /// [`limits::LISTENERS`].
    whole: bool,
}

/// A caller that has found no listener, and has not said yet what came of its call.
#[derive(Debug)]
struct Early {
    from: SocketAddr,
    to: SocketAddr,
    /// `to` is one of this node's own addresses.
    mine: bool,
    connection: ConnectionId,
    asked: u64,
}

/// The callers that one process has not accepted yet, by their own address.
#[derive(Debug, Default)]
struct Callers {
    connections: BTreeMap<SocketAddr, Expected>,
    /// The same callers in the order in which they came. Some may be gone already.
    order: VecDeque<(SocketAddr, ConnectionId)>,
}

/// A call that is expected.
#[derive(Debug, Clone, Copy)]
struct Expected {
    connection: ConnectionId,
    /// The number of the question that announced it, as its node counts them.
    asked: u64,
}

impl Registry {
    /// A job that was suspended goes on somewhere.
    pub fn handle_resumed(&mut self, job: JobId) {
        self.resumed.insert(job);
    }

    /// The job is over.
    pub fn handle_over(&mut self, job: JobId) {
        self.resumed.remove(&job);
        self.forget_callers(job);
    }

    /// Whether an address of a member may be that of a listener on any other node.
    pub fn has_resumed(&self) -> bool {
        !self.resumed.is_empty()
    }

    /// The process listens there. If another one did before, it does not any more: the kernel would have refused this one.
    pub fn listen(&mut self, process: ProcessId, address: SocketAddr) -> Result<(), TooManyListeners> {
        if self.listeners.values().filter(|p| **p == process).count() >= limits::LISTENERS {
            return Err(TooManyListeners);
        }
        let address = canonical(address);
        self.announced.remove(&(address, process));
        self.handed.remove(&(address, process));
        self.moved.remove(&address);
        self.listeners.insert(address, process);
        let (met, early) = std::mem::take(&mut self.early).into_iter().partition(|early: &Early| {
            let mut names = names_of(early.to, early.mine);
            names.any(|name| name == address)
        });
        self.early = early;
        met.into_iter().for_each(|Early { from, connection, asked, .. }| self.expect(process, from, (connection, asked)));
        Ok(())
    }

    /// The process is about to listen there.
    pub fn announce(&mut self, process: ProcessId, address: SocketAddr) -> Result<(), TooManyListeners> {
        if self.announced.iter().filter(|(_, p)| *p == process).count() >= limits::LISTENERS {
            return Err(TooManyListeners);
        }
        self.announced.insert((canonical(address), process));
        Ok(())
    }

    /// Whether a process is about to listen at `to`.
    pub fn is_announced(&self, to: SocketAddr, mine: bool) -> bool {
        names_of(to, mine).any(|name| self.announced.iter().any(|(address, _)| *address == name))
    }

    /// A process that has moved listens here as it did at `address` on its node before; connections are to go to `at`. All
    /// addresses means those of that node. On this node it means loopback only, and not if another process of this node has that
    /// port of its own.
    pub fn listen_at(&mut self, process: ProcessId, address: SocketAddr, at: SocketAddr) -> Result<(), TooManyListeners> {
        let name = canonical(address);
        let is_native = |holder: &ProcessId| *holder != process && !self.moved.contains_key(&name);
        if address.ip().is_unspecified() && self.listeners.get(&name).is_some_and(is_native) {
            return Ok(());
        }
        self.listen(process, address)?;
        self.moved.insert(name, at);
        Ok(())
    }

    /// Where connections to `to` go instead, if its listener has moved.
    pub fn moved_to(&self, to: SocketAddr, mine: bool) -> Option<SocketAddr> {
        self.moved.get(&self.name_of(to, mine)?).copied()
    }

    /// The process does not listen there any more.
    pub fn unlisten(&mut self, process: ProcessId, address: SocketAddr) {
        let address = canonical(address);
        self.announced.remove(&(address, process));
        if self.listeners.get(&address) == Some(&process) {
            self.listeners.remove(&address);
            self.moved.remove(&address);
        }
    }

    /// A child of the process takes connections at `at`, an address of a socket. Whether the process listened there, before a child did; it does not any more.
    pub fn hand_to_child(&mut self, process: ProcessId, at: SocketAddr) -> bool {
        let at = canonical(at);
        let moved = self.moved.iter().filter(|(_, there)| canonical(**there) == at).map(|(name, _)| *name);
        let names: Vec<SocketAddr> = moved.chain([at]).filter(|name| self.listeners.get(name) == Some(&process)).collect();
        names.iter().for_each(|name| self.unlisten(process, *name));
        // Of a process that has left more of them than can be known, each child asks about each caller.
        let is_full = self.handed.iter().filter(|(_, of)| *of == process).count() >= limits::LISTENERS;
        if !names.is_empty() && !is_full {
            self.handed.insert((at, process));
        }
        is_full || self.handed.contains(&(at, process))
    }

    /// The process that listens at `to`. If `to` is one of this node's own addresses (`mine`), a listener on all addresses
    /// counts.
    pub fn find(&self, to: SocketAddr, mine: bool) -> Option<ProcessId> {
        self.listeners.get(&self.name_of(to, mine)?).copied()
    }

    /// The address by which the listener at `to` is known.
    fn name_of(&self, to: SocketAddr, mine: bool) -> Option<SocketAddr> {
        let counts = |name: &SocketAddr| *name == canonical(to) || to.ip().is_loopback() || !self.moved.contains_key(name);
        names_of(to, mine).filter(counts).find(|name| self.listeners.contains_key(name))
    }

    /// The process other than `process` that has moved away from `address` and is still called by it. The kernel here does not
    /// know of it, and may give the address to another process.
    pub fn held_by_moved(&self, address: SocketAddr, mine: bool, process: ProcessId) -> Option<ProcessId> {
        let name = self.name_of(address, mine).filter(|name| self.moved.contains_key(name))?;
        self.listeners.get(&name).copied().filter(|holder| *holder != process)
    }

    /// `process` is going to be called from there, by the question with this number.
    pub fn expect(&mut self, process: ProcessId, from: SocketAddr, (connection, asked): (ConnectionId, u64)) {
        let callers = self.callers.entry(process).or_default();
        let expected = callers.connections.entry(canonical(from)).or_insert(Expected { connection, asked });
        let is_same = expected.connection == connection;
        *expected = Expected { connection, asked: if is_same { asked.max(expected.asked) } else { asked } };
        callers.order.push_back((canonical(from), connection));
        while callers.order.len() > limits::CALLERS {
            let (from, connection) = callers.order.pop_front().expect("more than the limit");
            callers.remove(from, connection, u64::MAX);
        }
        assert!(callers.connections.len() <= callers.order.len(), "every caller has its place in the order");
    }

    /// A caller has found no listener at `to`, by the question with this number.
    pub fn miss(&mut self, from: SocketAddr, to: SocketAddr, mine: bool, (connection, asked): (ConnectionId, u64)) {
        if self.early.len() == limits::CALLERS {
            self.early.pop_front();
        }
        self.early.push_back(Early { from: canonical(from), to, mine, connection, asked });
    }

    /// The caller does not come by the questions up to this number. It may have asked again since.
    pub fn withdraw(&mut self, from: SocketAddr, connection: ConnectionId, until: u64) {
        let from = canonical(from);
        self.early.retain(|early| (early.from, early.connection) != (from, connection) || early.asked > until);
        self.callers.values_mut().for_each(|callers| callers.remove(from, connection, until));
    }

    /// The process has accepted a connection from there. Returns which one, if its caller is protected. The caller stays known
    /// until it is greeted: an earlier call from the same address may have come to nothing.
    pub fn caller(&self, process: ProcessId, from: SocketAddr) -> Option<ConnectionId> {
        self.callers.get(&process)?.connections.get(&canonical(from)).map(|expected| expected.connection)
    }

    /// The process has greeted the caller from there, or refused it.
    pub fn greeted(&mut self, process: ProcessId, from: SocketAddr) {
        if let Some(callers) = self.callers.get_mut(&process) {
            callers.connections.remove(&canonical(from));
        }
    }

    /// The process executes another program: its old listeners mean nothing any more. Its callers stay known, here and below: one
    /// may be under way, and get a connection with a listener that comes in the place of the one that it has called.
    pub fn forget(&mut self, process: ProcessId) {
        self.forget_listeners(process);
        self.left.remove(&process);
    }

    /// Nothing of the job is left here. If it is not over (`goes_on`) its callers stay known: a call to a process that has ended
    /// for a restart from the beginning may be under way, and meet the listener of the next epoch, which refuses it by its
    /// greeting.
    pub fn forget_job(&mut self, job: JobId, goes_on: bool) {
        self.left.retain(|process, _| process.job != job);
        if !goes_on {
            self.forget_callers(job);
        }
    }

    fn forget_callers(&mut self, job: JobId) {
        self.callers.retain(|process, _| process.job != job);
    }

    /// The process has ended. It may be brought back, and listen there again. `again`: since it was last brought back it had not
    /// opened all of its listeners again, so the earlier ones count as well.
    pub fn leave(&mut self, process: ProcessId, again: bool) {
        let before = self.left.remove(&process).filter(|_| again);
        let mut left = before.unwrap_or(Left { addresses: BTreeMap::new(), whole: true });
        let listeners = self.listeners.iter().filter(|(_, p)| **p == process).map(|(address, _)| *address);
        let announced = self.announced.iter().filter(|(_, p)| *p == process).map(|(address, _)| *address);
        for address in listeners.chain(announced) {
            left.addresses.insert(address, self.moved.contains_key(&address));
        }
        // A process has fewer listeners at once, but may be brought back again and again.
        while left.addresses.len() > 2 * limits::LISTENERS {
            left.addresses.pop_first();
            left.whole = false;
        }
        self.forget_listeners(process);
        self.left.insert(process, left);
    }

    /// The process is brought back here. If it comes from another node, it is not known where it listened.
    pub fn come_back(&mut self, process: ProcessId) {
        self.forget_listeners(process);
        self.left.entry(process).or_default();
    }

    /// Whether a process that has ended here, or comes back here, listened at `to`, which may be one of this node's own addresses
    /// (`mine`). None if that is not known.
    pub fn has_listened(&self, process: ProcessId, to: SocketAddr, mine: bool) -> Option<bool> {
        let left = self.left.get(&process)?;
        // The same rule as for listeners that are here (`Registry::name_of`).
        let counts = |name: &SocketAddr, moved: bool| *name == canonical(to) || to.ip().is_loopback() || !moved;
        let mut names = names_of(to, mine);
        let held = names.any(|name| left.addresses.get(&name).is_some_and(|moved| counts(&name, *moved)));
        (held || left.whole).then_some(held)
    }

    fn forget_listeners(&mut self, process: ProcessId) {
        self.listeners.retain(|_, p| *p != process);
        self.moved.retain(|address, _| self.listeners.contains_key(address));
        self.announced.retain(|(_, p)| *p != process);
        self.handed.retain(|(_, p)| *p != process);
    }
}

impl Callers {
    fn remove(&mut self, from: SocketAddr, connection: ConnectionId, until: u64) {
        if self.connections.get(&from).is_some_and(|expected| expected.connection == connection && expected.asked <= until) {
            self.connections.remove(&from);
        }
    }
}

/// The addresses by which a listener that is called at `to` may be known: `to` itself, and if that is this node's (`mine`) the
/// address that means all.
fn names_of(to: SocketAddr, mine: bool) -> impl Iterator<Item = SocketAddr> {
    let to = canonical(to);
    // The unspecified address of the same family. An observer with an IPv6 listener that also takes IPv4 names both.
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    std::iter::once(to).chain(mine.then_some(SocketAddr::new(any, to.port())))
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

/// The address that peers of `me` see of a caller that is bound to no address yet.
pub fn source(from: SocketAddr, to: SocketAddr, me: IpAddr) -> SocketAddr {
    let from = canonical(from);
    match (from.ip().is_unspecified(), to.ip()) {
        (false, _) => from,
        (true, IpAddr::V4(ip)) if ip.is_loopback() => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), from.port()),
        (true, IpAddr::V6(ip)) if ip.is_loopback() => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), from.port()),
        (true, _) => SocketAddr::new(me, from.port()),
    }
}

/// The other nodes that may have a listener at `to`: those that share this machine's address if `to` is this machine's (`mine`),
/// else the members with that address, else all nodes, because it may be a second address of any of them. Also all nodes if a
/// node of that address has died and come back: what listened there goes on elsewhere under the address that it had.
pub fn candidates(view: &View, me: &Member, to: SocketAddr, mine: bool) -> Vec<NodeId> {
    let others = || view.members.iter().filter(|member| member.id != me.id);
    let ip = if mine { me.data } else { to.ip() };
    if has_died(view, ip) || (!mine && !has_member(view, ip)) {
        return others().map(|member| member.id.clone()).collect();
    }
    others().filter(|member| member.data == ip).map(|member| member.id.clone()).collect()
}

/// Whether a process that was first launched at `origin`, and later ran on nodes that are gone, may have listened at `ip`. A node
/// that is there and was never gone is none of those. An address that no member has may have been one of theirs.
pub fn may_have_been_at(view: &View, origin: Option<IpAddr>, ip: IpAddr) -> bool {
    origin == Some(ip) || !has_member(view, ip) || has_died(view, ip)
}

/// Whether a member has this address.
pub fn has_member(view: &View, ip: IpAddr) -> bool {
    view.members.iter().any(|member| member.data == ip)
}

/// Whether a member of that address has been gone, and has come back.
fn has_died(view: &View, ip: IpAddr) -> bool {
    let came_back = |member: &Member| view.departed.iter().any(|departed| departed.id.name == member.id.name);
    view.members.iter().filter(|member| member.data == ip).any(came_back)
}

#[cfg(test)]
mod tests {
    use radic_wire::ids::{BootId, JobId, Rank};
    use radic_wire::membership::{Departed, Departure, Role};

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
        assert_eq!(registry.find(at("10.0.0.2:80"), false), None, "the address of another node");
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
    fn a_listener_of_which_a_child_takes_connections_is_no_process_s() {
        let mut registry = Registry::default();
        registry.listen(process(0), at("10.0.0.1:80")).unwrap();
        assert!(!registry.hand_to_child(process(1), at("10.0.0.1:80")), "another process's child");
        assert!(!registry.hand_to_child(process(0), at("10.0.0.1:81")), "the child's own");
        assert!(registry.hand_to_child(process(0), at("[::ffff:10.0.0.1]:80")));
        assert_eq!(registry.find(at("10.0.0.1:80"), true), None);
        assert!(registry.hand_to_child(process(0), at("10.0.0.1:80")), "its other children have it, too");
        registry.listen(process(0), at("10.0.0.1:80")).unwrap();
        registry.unlisten(process(0), at("10.0.0.1:80"));
        assert!(!registry.hand_to_child(process(0), at("10.0.0.1:80")), "it has listened there once more, and does not now");
        // By all names, of one that has moved.
        for name in ["10.0.0.1:80", "0.0.0.0:80"] {
            registry.listen_at(process(2), at(name), at("10.0.0.2:1234")).unwrap();
        }
        assert!(registry.hand_to_child(process(2), at("10.0.0.2:1234")));
        assert_eq!((registry.find(at("10.0.0.1:80"), false), registry.find(at("127.0.0.1:80"), true)), (None, None));
    }

    #[test]
    fn a_process_that_has_moved_keeps_its_address_and_no_other_one_holds_one() {
        let mut registry = Registry::default();
        registry.listen(process(0), at("10.0.0.1:80")).unwrap();
        assert_eq!(registry.held_by_moved(at("10.0.0.1:80"), true, process(1)), None, "the kernel has it, and knows");
        registry.listen_at(process(0), at("10.0.0.1:80"), at("10.0.0.1:1234")).unwrap();
        assert_eq!(registry.held_by_moved(at("10.0.0.1:80"), true, process(1)), Some(process(0)));
        assert_eq!(registry.held_by_moved(at("10.0.0.1:80"), true, process(0)), None, "its own");
        assert_eq!(registry.held_by_moved(at("10.0.0.2:80"), false, process(1)), None, "of another machine");
    }

    /// Ranks on different machines have chosen the same port for all addresses. Then one of them goes on where the other one is.
    #[test]
    fn a_process_that_has_moved_takes_no_port_from_a_process_of_its_new_node() {
        for moved_first in [false, true] {
            let mut registry = Registry::default();
            let native = |registry: &mut Registry| registry.listen(process(0), at("0.0.0.0:80")).unwrap();
            if !moved_first {
                native(&mut registry);
            }
            for address in ["10.0.0.1:80", "0.0.0.0:80"] {
                registry.listen_at(process(1), at(address), at("10.0.0.2:1234")).unwrap();
            }
            if moved_first {
                let found = |to| (registry.find(at(to), true), registry.moved_to(at(to), true));
                assert_eq!(found("10.0.0.2:80"), (None, None), "that is this node's");
                assert_eq!(found("127.0.0.1:80"), (Some(process(1)), Some(at("10.0.0.2:1234"))), "it may call itself");
                assert_eq!(registry.held_by_moved(at("10.0.0.2:80"), true, process(0)), None);
                native(&mut registry);
            }
            let found = |to, mine| (registry.find(at(to), mine), registry.moved_to(at(to), mine));
            assert_eq!(found("10.0.0.1:80", false), (Some(process(1)), Some(at("10.0.0.2:1234"))));
            assert_eq!(found("10.0.0.2:80", true), (Some(process(0)), None));
            assert_eq!(found("127.0.0.1:80", true), (Some(process(0)), None));
        }
    }

    #[test]
    fn a_caller_is_told_until_it_is_greeted_and_only_to_the_process_that_it_calls() {
        let mut registry = Registry::default();
        registry.expect(process(0), at("10.0.0.2:5000"), (connection(1), 1));
        assert_eq!(registry.caller(process(1), at("10.0.0.2:5000")), None);
        assert_eq!(registry.caller(process(0), at("[::ffff:10.0.0.2]:5000")), Some(connection(1)));
        assert_eq!(
            registry.caller(process(0), at("10.0.0.2:5000")),
            Some(connection(1)),
            "that one was given up, and made again"
        );
        registry.greeted(process(0), at("[::ffff:10.0.0.2]:5000"));
        assert_eq!(registry.caller(process(0), at("10.0.0.2:5000")), None);
        registry.expect(process(0), at("10.0.0.2:5000"), (connection(2), 1));
        registry.expect(process(0), at("10.0.0.2:5000"), (connection(3), 1));
        registry.withdraw(at("10.0.0.2:5000"), connection(2), 1);
        assert_eq!(registry.caller(process(0), at("10.0.0.2:5000")), Some(connection(3)), "the newer one stays");
        // An answer that came too late takes back its own question, and no later one.
        registry.expect(process(0), at("10.0.0.2:5000"), (connection(3), 7));
        registry.withdraw(at("10.0.0.2:5000"), connection(3), 6);
        assert_eq!(registry.caller(process(0), at("10.0.0.2:5000")), Some(connection(3)), "it has asked again");
        registry.withdraw(at("10.0.0.2:5000"), connection(3), 7);
        assert_eq!(registry.caller(process(0), at("10.0.0.2:5000")), None);
    }

    #[test]
    fn a_caller_stays_known_while_the_process_that_it_calls_is_away() {
        let mut registry = Registry::default();
        let known = |registry: &Registry| registry.caller(process(0), at("10.0.0.2:5000"));
        registry.listen(process(0), at("10.0.0.1:80")).unwrap();
        registry.expect(process(0), at("10.0.0.2:5000"), (connection(1), 1));
        registry.leave(process(0), false);
        registry.come_back(process(0));
        assert_eq!(known(&registry), Some(connection(1)), "its call may be under way, and meet the next listener");
        registry.forget(process(0));
        assert_eq!(known(&registry), Some(connection(1)), "so it may when another program is executed");
        registry.forget_job(JobId::from_bits(7), true);
        assert_eq!(known(&registry), Some(connection(1)), "and when the job restarts from its beginning");
        registry.handle_over(JobId::from_bits(7));
        assert_eq!(known(&registry), None);
        registry.expect(process(0), at("10.0.0.2:5000"), (connection(1), 1));
        registry.forget_job(JobId::from_bits(7), false);
        assert_eq!(known(&registry), None);
    }

    #[test]
    fn a_caller_that_comes_before_a_listener_is_known_to_that_listener() {
        let mut registry = Registry::default();
        registry.miss(at("10.0.0.2:5000"), at("10.0.0.1:80"), true, (connection(1), 1));
        registry.miss(at("10.0.0.2:5001"), at("10.0.0.1:81"), true, (connection(2), 1));
        registry.miss(at("10.0.0.2:5002"), at("10.0.0.1:80"), true, (connection(3), 1));
        registry.withdraw(at("10.0.0.2:5002"), connection(3), 1);
        assert!(!registry.is_announced(at("10.0.0.1:80"), true));
        registry.announce(process(0), at("0.0.0.0:80")).unwrap();
        assert!(registry.is_announced(at("10.0.0.1:80"), true) && !registry.is_announced(at("10.0.0.1:80"), false));
        assert_eq!(registry.find(at("10.0.0.1:80"), true), None, "it may fail to");
        registry.listen(process(0), at("0.0.0.0:80")).unwrap();
        assert!(!registry.is_announced(at("10.0.0.1:80"), true));
        let callers = [5000, 5001, 5002].map(|port| registry.caller(process(0), SocketAddr::from(([10, 0, 0, 2], port))));
        assert_eq!(callers, [Some(connection(1)), None, None], "for it; for another port; withdrawn");
        registry.announce(process(1), at("10.0.0.1:82")).unwrap();
        registry.unlisten(process(1), at("10.0.0.1:82"));
        assert!(!registry.is_announced(at("10.0.0.1:82"), true), "it has failed");
        registry.announce(process(1), at("10.0.0.1:82")).unwrap();
        registry.forget(process(1));
        assert!(!registry.is_announced(at("10.0.0.1:82"), true), "it has ended");
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
            registry.expect(process(0), from(i), (connection(i as u64), 1));
        }
        assert_eq!(registry.caller(process(0), from(9)), None, "the oldest is gone");
        assert_eq!(registry.caller(process(0), from(10)), Some(connection(10)));
        for i in 0..limits::CALLERS + 10 {
            registry.miss(from(i), at("1.2.3.4:5000"), false, (connection(i as u64), 1));
        }
        assert_eq!(registry.early.len(), limits::CALLERS);
        assert_eq!(registry.early.front().unwrap().from, from(10), "the oldest are gone");
        for port in 0..limits::LISTENERS as u16 {
            registry.announce(process(1), SocketAddr::from(([1, 2, 3, 4], port))).unwrap();
        }
        assert_eq!(registry.announce(process(1), at("1.2.3.5:1")), Err(TooManyListeners));
        assert!(registry.callers[&process(0)].order.len() <= limits::CALLERS);
    }

    #[test]
    fn only_those_are_asked_that_may_have_the_address() {
        let member = |i: u8, ip: &str| Member {
            id: NodeId { name: format!("n{i}").parse().unwrap(), boot: BootId(i.into()) },
            address: SocketAddr::new([192, 0, 2, i].into(), 7117),
            data: ip.parse().unwrap(),
            log_port: 1,
            role: Role::Node,
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
        view.departed.push(Departed { id: before, data: "10.0.0.3".parse().unwrap(), how: Departure::Died });
        assert_eq!(asked(&view, "10.0.0.3:1", false), ["n2", "n3"], "it died, came back, and what listened there is elsewhere");
        assert_eq!(asked(&view, "10.0.0.1:1", true), ["n2"], "no node of that address has died");
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
