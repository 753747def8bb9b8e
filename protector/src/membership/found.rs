//! Which joiner may found a cluster, and when: the first of a list that all have, if enough of the list are there and in no cluster.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::ids::NodeId;
use radic_wire::membership::{Change, MembershipBody, View};

use super::{JOIN_RETRY, Membership, SEEDS};

/// What a joiner that may found the cluster knows of the others.
#[derive(Debug)]
pub(super) struct Founding {
    /// How many others must be there, and in no cluster.
    needed: usize,
    /// When each of them has last asked this node to be let in, by its address: only a node that is in no cluster asks.
    asked: BTreeMap<SocketAddr, Duration>,
    /// Until when a member that has spoken rules it out: there is a cluster.
    ruled_out: Duration,
}

impl Membership {
    /// This joiner founds the cluster itself when this many of its seeds ask it to be let in, and no member speaks. There must be one such node at
    /// most, and with it they must be a majority of the list: where a cluster has most of the list, too few of it are outside.
    pub fn may_found(mut self, others: usize) -> Membership {
        // Members have that time to speak first.
        self.founding = Some(Founding { needed: others, asked: BTreeMap::new(), ruled_out: self.now + JOIN_RETRY });
        self
    }

    /// How long a word counts that its sender repeats to each seed in turn.
    fn memory(&self) -> Duration {
        JOIN_RETRY * (self.seeds.len() / SEEDS + 3) as u32
    }

    pub(super) fn rule_out_founding(&mut self) {
        let until = self.now + self.memory();
        if let Some(founding) = &mut self.founding {
            founding.ruled_out = until;
        }
    }

    /// What another node says tells whether there is a cluster.
    pub(super) fn hear_of_founding(&mut self, from: &NodeId, is_member: bool, body: &MembershipBody) {
        let MembershipBody::Request(changes) = body else { return self.rule_out_founding() };
        if is_member {
            return self.rule_out_founding();
        }
        for change in changes {
            if let Change::Join(joiner) = change
                && joiner.id == *from
            {
                self.hear_joiner(joiner.address);
            }
        }
    }

    /// Another joiner asks this one to be let in.
    fn hear_joiner(&mut self, joiner: SocketAddr) {
        let (now, memory) = (self.now, self.memory());
        let Some(founding) = self.founding.as_mut().filter(|_| self.seeds.contains(&joiner)) else { return };
        founding.asked.retain(|_, asked| now - *asked < memory);
        founding.asked.insert(joiner, now);
        if founding.asked.len() >= founding.needed && founding.ruled_out <= now {
            self.founding = None;
            let view = View::founded_by(self.me.clone());
            self.adopt_first(self.views.whole(view));
        }
    }
}
