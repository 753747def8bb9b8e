//! Which node founds the cluster, and when each other joins it. No I/O: what happens goes in, what is to be said comes out.

use std::net::{IpAddr, SocketAddr};

use radic_wire::membership::Role;

use super::hosts::Host;
use super::protocol::{Assignment, Go, What};

/// A host, and what it is to be.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    pub(crate) host: Host,
    pub(crate) role: Role,
    pub(crate) slots: Option<u32>,
    /// Its address or a name for it, if it is known before.
    pub(crate) address: Option<String>,
}

impl Planned {
    pub(crate) fn assignment(&self) -> Assignment {
        Assignment { name: self.host.name.clone(), role: self.role, slots: self.slots, address: self.address.clone() }
    }
}

/// A node that is a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) address: SocketAddr,
    pub(crate) pid: u32,
}

/// How far a host has come.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// It has not answered yet.
    Called,
    /// Its agent waits.
    Here(IpAddr),
    /// It was told to start.
    Starting,
    /// Its node is a member, or is not going to be one.
    Done(Result<Ready, String>),
}

/// What is to be done about a host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Say this to the agent of this host.
    Tell(usize, Go),
    /// This host is done.
    Done(usize, Result<Ready, String>),
}

/// The start of a cluster.
///
/// The first host of the list that can be reached founds it, so a host that does not answer holds up the others only if it stands before all
/// that do. Spares and witnesses never found.
pub(crate) struct Plan {
    hosts: Vec<(Planned, Phase)>,
    founder: Option<usize>,
    actions: Vec<Action>,
}

impl Plan {
    pub(crate) fn new(hosts: Vec<Planned>) -> Plan {
        Plan { hosts: hosts.into_iter().map(|host| (host, Phase::Called)).collect(), founder: None, actions: Vec::new() }
    }

    pub(crate) fn hosts(&self) -> impl Iterator<Item = &Planned> {
        self.hosts.iter().map(|(host, _)| host)
    }

    /// What an agent has said.
    pub(crate) fn handle(&mut self, host: usize, said: What) {
        match (&self.hosts[host].1, said) {
            (Phase::Called, What::Here(address)) => self.hosts[host].1 = Phase::Here(address),
            (Phase::Starting, What::Ready { address, pid }) => self.finish(host, Ok(Ready { address, pid })),
            (_, What::Failed(why)) => self.fail(host, why),
            _ => return,
        }
        self.go_on();
    }

    /// A host is given up, unless it is done.
    pub(crate) fn fail(&mut self, host: usize, why: String) {
        self.finish(host, Err(why));
        if self.founder == Some(host) {
            self.founder = None;
        }
        self.go_on();
    }

    /// What is to be done now.
    pub(crate) fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Whether the host has answered.
    pub(crate) fn is_called(&self, host: usize) -> bool {
        self.hosts[host].1 == Phase::Called
    }

    pub(crate) fn is_done(&self) -> bool {
        self.hosts.iter().all(|(_, phase)| matches!(phase, Phase::Done(_)))
    }

    /// All hosts with what came of them.
    pub(crate) fn finished(self) -> Vec<(Planned, Result<Ready, String>)> {
        let result = |phase| match phase {
            Phase::Done(result) => result,
            _ => Err("it was not waited for".to_owned()),
        };
        self.hosts.into_iter().map(|(host, phase)| (host, result(phase))).collect()
    }

    fn finish(&mut self, host: usize, result: Result<Ready, String>) {
        if matches!(self.hosts[host].1, Phase::Done(_)) {
            return;
        }
        self.actions.push(Action::Done(host, result.clone()));
        self.hosts[host].1 = Phase::Done(result);
    }

    fn go_on(&mut self) {
        let Some(founder) = self.founder else { return self.choose() };
        let Phase::Done(Ok(ready)) = &self.hosts[founder].1 else { return };
        let address = ready.address;
        for at in 0..self.hosts.len() {
            let (planned, Phase::Here(own)) = &self.hosts[at] else { continue };
            if own.is_loopback() != address.ip().is_loopback() {
                let why = format!(
                    "its address would be {own}, and that of the cluster's first node is {}: an address of the loopback network is \
                     reached on its own host only; name hosts as the others know them",
                    address.ip()
                );
                self.finish(at, Err(why));
                continue;
            }
            self.actions.push(Action::Tell(at, Go::Join(vec![planned.host.name.clone()], address)));
            self.hosts[at].1 = Phase::Starting;
        }
    }

    fn choose(&mut self) {
        let open = |(host, phase): &(Planned, Phase)| host.role == Role::Node && !matches!(phase, Phase::Done(_));
        match self.hosts.iter().position(open) {
            Some(first) if matches!(self.hosts[first].1, Phase::Here(_)) => {
                self.founder = Some(first);
                self.actions.push(Action::Tell(first, Go::Found(self.hosts[first].0.host.name.clone())));
                self.hosts[first].1 = Phase::Starting;
            }
            Some(_) => {}
            None => {
                let rest = (0..self.hosts.len()).filter(|at| !matches!(self.hosts[*at].1, Phase::Done(_)));
                for at in rest.collect::<Vec<_>>() {
                    self.finish(at, Err("no node that could run programs was started".to_owned()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(roles: &[Role]) -> Plan {
        let host = |(at, role): (usize, &Role)| {
            let name = format!("n{at}");
            let host = Host { target: name.clone(), name: name.parse().unwrap(), slots: None };
            Planned { host, role: *role, slots: None, address: None }
        };
        Plan::new(roles.iter().enumerate().map(host).collect())
    }

    fn here(last: u8) -> What {
        What::Here([10, 0, 0, last].into())
    }

    fn ready(last: u8) -> What {
        What::Ready { address: ([10, 0, 0, last], 7).into(), pid: 1 }
    }

    fn told(plan: &mut Plan) -> Vec<(usize, bool)> {
        let tell = |action| match action {
            Action::Tell(at, Go::Found(_)) => Some((at, true)),
            Action::Tell(at, Go::Join(_, address)) => {
                assert_eq!(address.port(), 7);
                Some((at, false))
            }
            _ => None,
        };
        plan.actions().into_iter().filter_map(tell).collect()
    }

    #[test]
    fn the_first_that_answers_founds_and_the_others_join_it() {
        let mut plan = plan(&[Role::Node; 4]);
        plan.handle(2, here(2));
        assert_eq!(told(&mut plan), [], "the first may still come");
        plan.handle(1, here(1));
        plan.fail(0, "down".into());
        assert_eq!(told(&mut plan), [(1, true)]);
        plan.handle(1, ready(1));
        assert_eq!(told(&mut plan), [(2, false)]);
        plan.handle(3, here(3));
        assert_eq!(told(&mut plan), [(3, false)], "a late one joins, too");
        plan.handle(2, ready(2));
        plan.handle(3, What::Failed("no room".into()));
        assert!(plan.is_done());
        let ok: Vec<_> = plan.finished().into_iter().map(|(_, result)| result.is_ok()).collect();
        assert_eq!(ok, [false, true, true, false]);
    }

    #[test]
    fn a_founder_that_fails_is_replaced_before_anybody_joins_it() {
        let mut plan = plan(&[Role::Node; 3]);
        (0..3).for_each(|at| plan.handle(at, here(at as u8)));
        assert_eq!(told(&mut plan), [(0, true)]);
        plan.handle(0, What::Failed("no room".into()));
        assert_eq!(told(&mut plan), [(1, true)]);
        plan.handle(1, ready(1));
        assert_eq!(told(&mut plan), [(2, false)]);
    }

    #[test]
    fn spares_and_witnesses_found_nothing() {
        let mut plan = plan(&[Role::Node, Role::Spare, Role::Witness]);
        plan.handle(1, here(1));
        plan.handle(2, here(2));
        plan.fail(0, "down".into());
        assert_eq!(told(&mut plan), []);
        assert!(plan.is_done() && plan.finished().into_iter().all(|(_, result)| result.is_err()));
    }

    #[test]
    fn what_is_out_of_turn_changes_nothing() {
        let mut plan = plan(&[Role::Node; 2]);
        plan.handle(1, ready(1));
        plan.handle(0, What::Kept);
        assert!(plan.is_called(1) && plan.actions().is_empty());
        plan.handle(0, here(0));
        plan.handle(0, ready(0));
        plan.fail(0, "too late".into());
        assert!(matches!(&plan.actions()[..], [Action::Tell(0, _), Action::Done(0, Ok(_))]));
    }

    #[test]
    fn a_loopback_address_is_no_member_of_a_real_network() {
        let mut plan = plan(&[Role::Node; 2]);
        plan.handle(0, here(1));
        plan.handle(1, What::Here([127, 0, 0, 1].into()));
        plan.handle(0, ready(1));
        let last = plan.actions().pop();
        assert!(matches!(&last, Some(Action::Done(1, Err(why))) if why.contains("loopback")), "{last:?}");
    }
}
