//! Clusters that are measured: all machines have been members of one view for some time, and others may join.

use std::sync::Arc;
use std::time::Duration;

use radic_protector::membership::Views;
use radic_protector::node::{Node, NodeConfig};
use radic_wire::membership::View;

use super::world::World;

/// When the first things happen in a cluster that was there before.
const BEGINNING: Duration = Duration::from_secs(1);

/// What all nodes of a cluster that is measured share.
#[derive(Debug, Default)]
pub struct Formed {
    /// The view that its first machines have, and what nodes work out of views: ten thousand of them would have no room for ten thousand views of ten
    /// thousand members each. Each node still decides for itself which view it has.
    shared: Option<(Arc<View>, Views)>,
}

impl Formed {
    /// The node of a machine that is switched on.
    pub fn node(&self, now: Duration, at: usize, boot: u32, config: NodeConfig) -> Node {
        let Some((view, views)) = &self.shared else { return Node::new(now, config) };
        if boot == 0 && at < view.members.len() {
            return Node::member_of(now, config, view, views);
        }
        let mut node = Node::new(now, config);
        node.share(views);
        node
    }
}

impl World {
    /// The machines that are there have been one cluster for some time.
    pub(super) fn form(&mut self) {
        let members: Vec<_> = self.machines.iter().map(|machine| machine.member.clone()).collect();
        let view = View { cluster: members[0].id.boot, number: members.len() as u64, members, departed: Vec::new() };
        view.check().expect("no larger than a view may be");
        self.formed.shared = Some((Arc::new(view), Views::default()));
        (self.now, self.net.quiet) = (BEGINNING, true);
    }

    /// One more machine, which joins.
    pub fn add_machine(&mut self) {
        let at = self.machines.len();
        self.plan.machines += 1;
        let machine = self.machine(at, 0);
        self.machines.push(machine);
        self.switch_on(at);
    }

    /// Whether something goes wrong that does once in so many times, where things go wrong by themselves.
    pub(super) fn goes_wrong(&mut self, times: usize) -> bool {
        self.plan.quiet.is_none() && self.dice.one_in(times)
    }
}
