//! The fence in which ranks wait for each other: what hosts say of it, and ranks that end.

use radic_wire::ids::{NodeId, NodeName, Rank};
use radic_wire::job::{EndReason, Outcome};
use radic_wire::peer::ToHost;

use super::{Home, HomeOutput, Phase};
use crate::node::fences::{Behind, Entered, Stuck};

impl Home {
    /// All ranks of a host that have not ended are in this fence.
    pub(super) fn handle_fence(&mut self, from: &NodeId, number: u64, ranks: Vec<Rank>, entries: Vec<(String, String)>) {
        match self.fences.enter(from, number, ranks, entries, self.spec.ranks) {
            Entered::Waits => self.look_at_fence(),
            Entered::Released(entries) => self.tell_hosts(&ToHost::Release { number, entries }),
            Entered::Before(entries) => {
                self.outputs.push_back(HomeOutput::ToHost(from.clone(), ToHost::Release { number, entries }));
            }
        }
    }

    /// A host was let out of this fence. Hosts that wait in a fence which the home before had released are told again.
    pub(super) fn learn_fence(&mut self, fence: u64, keys: Vec<(String, String)>) {
        let Some(Behind { number, nodes, entries }) = self.fences.learn(fence, keys) else { return };
        for node in nodes {
            self.tell_host(node, ToHost::Release { number, entries: entries.clone() });
        }
    }

    /// A rank has ended after MPI_Finalize: no fence waits for it any more.
    pub(super) fn leave_fences(&mut self, rank: Rank) {
        if let Some((number, entries)) = self.fences.leave(rank, self.spec.ranks) {
            self.tell_hosts(&ToHost::Release { number, entries });
        }
        self.look_at_fence();
    }

    /// A rank has ended well at this node, without MPI: it enters no fence.
    pub(super) fn keep_out_of_fences(&mut self, rank: Rank, node: NodeName) {
        self.fences.keep_out(rank, node);
        self.look_at_fence();
    }

    /// Ends the job if ranks wait in a fence for one that never comes.
    fn look_at_fence(&mut self) {
        if self.phase == Phase::Running
            && let Some(Stuck { ended, node, waiting }) = self.fences.stuck()
        {
            self.end(Outcome { code: 1, reason: EndReason::FenceMissed { rank: ended, node, waiting } });
        }
    }
}
