//! A side of the cluster without a majority: protected jobs wait for one, and are given up after a while.

use std::collections::BTreeSet;
use std::time::Duration;

use radic_wire::event::EventName;
use radic_wire::ids::{JobId, NodeId};

use super::Node;
use super::events::About;
use super::home::Home;

/// Time that a side without a majority keeps protected jobs waiting for one. Nothing can be decided there, and an error is better
/// than a hang.
const FROZEN: Duration = Duration::from_secs(60);
/// Time that hosts have after that to hear from a job's home why the job ends. A process that finds no protector waits longer
/// than both.
const HOMELESS: Duration = Duration::from_secs(5);

/// A majority that is not there.
#[derive(Debug, Default)]
pub(super) struct Majority {
    /// Since when this side has no majority.
    pub(super) frozen: Option<Duration>,
    /// The members that did not answer when the majority was lost.
    pub(super) unreachable: BTreeSet<NodeId>,
    /// When the hosts of this node give up waiting for their homes to end them, on a side without a majority.
    pub(super) abandoned: Option<Duration>,
}

impl Node {
    /// This side has no majority. What depends on members out of reach ends, protected jobs wait, and everything else goes on.
    pub(super) fn handle_frozen(&mut self, now: Duration, unreachable: &[NodeId], reachable: usize, needed: usize) {
        let names: Vec<_> = unreachable.iter().map(|n| n.name.as_str()).take(20).collect();
        let text =
            format!("{reachable} members answer, {needed} are needed to decide anything; no answer from {}", names.join(", "));
        self.record(now, EventName::Frozen, About::default(), text);
        self.recovery.majority.frozen.get_or_insert(now);
        self.recovery.majority.unreachable = unreachable.iter().cloned().collect();
        self.homes.values_mut().for_each(Home::handle_majority_lost);
        for node in unreachable {
            self.handle_node_lost(now, node, "it does not answer, and this side of the cluster has no majority to go on");
        }
    }

    /// This side has a majority again.
    pub(super) fn handle_thawed(&mut self, now: Duration) {
        (self.recovery.majority.frozen, self.recovery.majority.abandoned) = (None, None);
        let homes: Vec<JobId> = self.homes.keys().copied().collect();
        homes.into_iter().for_each(|job| self.with_home(now, job, |home| home.handle_majority_back(now)));
        self.clients_thaw();
        self.record(now, EventName::Thawed, About::default(), "a majority of the view answers again".into());
    }

    /// A job begins, or goes on, with its home here.
    pub(super) fn add_home(&mut self, job: JobId, mut home: Home) {
        if self.membership.is_frozen() {
            home.handle_majority_lost();
        }
        self.homes.insert(job, home);
    }

    /// Whether this side has no majority, and that node is not on it.
    pub(super) fn is_out_of_reach(&self, node: &NodeId) -> bool {
        self.membership.is_frozen() && self.recovery.majority.unreachable.contains(node)
    }

    /// When this node gives up protected jobs that wait for a majority.
    pub(super) fn next_frozen(&self) -> Option<Duration> {
        self.recovery.majority.frozen.map(|since| since + FROZEN).into_iter().chain(self.recovery.majority.abandoned).min()
    }

    /// Ends protected jobs that have waited too long for a majority.
    pub(super) fn end_frozen(&mut self, now: Duration) {
        // This is called with every timeout; a text is wanted hardly ever.
        let why = || format!("this side of the cluster has had no majority for {} s", FROZEN.as_secs());
        if self.recovery.majority.abandoned.take_if(|due| *due <= now).is_some() {
            let (why, hosts) = (why(), self.hosts.keys().copied().collect::<Vec<_>>());
            hosts.into_iter().for_each(|job| self.with_host(now, job, |host| host.give_up(now, &why)));
            // Every host within reach has had its time to say that nothing is left there.
            self.end_homes(now, &why, |_, _| true);
        }
        if self.recovery.majority.frozen.take_if(|since| *since + FROZEN <= now).is_some() {
            self.recovery.majority.abandoned = Some(now + HOMELESS);
            self.end_homes(now, &why(), |node, unreachable| unreachable.contains(node));
        }
    }

    /// Ends all jobs of which this node is the home. Nothing is expected of hosts that are lost.
    fn end_homes(&mut self, now: Duration, why: &str, is_lost: impl Fn(&NodeId, &BTreeSet<NodeId>) -> bool) {
        let (me, unreachable) = (self.me().clone(), self.recovery.majority.unreachable.clone());
        let homes: Vec<(JobId, Vec<NodeId>)> =
            self.homes.iter().map(|(job, home)| (*job, home.placement().nodes.clone())).collect();
        for (job, nodes) in homes {
            for node in nodes.into_iter().filter(|node| *node != me && is_lost(node, &unreachable)) {
                self.with_home(now, job, |home| home.handle_node_lost(now, &node, why));
            }
            self.with_home(now, job, |home| home.give_up(now, why));
        }
    }
}
