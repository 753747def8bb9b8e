//! The fence in which ranks wait for each other: what hosts say of it, and ranks that end.

use radic_wire::ids::{NodeId, Rank};
use radic_wire::job::{EndReason, Outcome};
use radic_wire::peer::{MpiPhase, ToHost};

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

    /// A rank has ended without leaving others within MPI: it enters no fence any more.
    pub(super) fn leave_fences(&mut self, rank: Rank, phase: MpiPhase) {
        let has_finalized = phase == MpiPhase::After;
        if let Some((number, entries)) = self.fences.leave(rank, has_finalized, self.spec.ranks) {
            self.tell_hosts(&ToHost::Release { number, entries });
        }
        self.look_at_fence();
    }

    /// Ends the job if ranks wait in a fence for one that never comes.
    fn look_at_fence(&mut self) {
        if self.phase == Phase::Running
            && let Some(Stuck { ended, waiting }) = self.fences.stuck()
        {
            let node = self.placement.node_of(ended).expect("a rank of the job").name.clone();
            self.end(Outcome { code: 1, reason: EndReason::FenceMissed { rank: ended, node, waiting } });
        }
    }
}
