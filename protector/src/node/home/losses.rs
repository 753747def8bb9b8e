//! Losses: of nodes, of ranks that cannot be brought back, and of the majority.

use std::time::Duration;

use radic_wire::ids::{NodeId, NodeName, Rank};
use radic_wire::job::{EndReason, ExitStatus, Outcome, Placement, exit_code};
use radic_wire::peer::MpiPhase;

use super::{Home, HomeOutput, HostState, RankState};

impl Home {
    /// A node is lost that was to bring back ranks of a resumed job. Only that node had their logs.
    pub fn handle_protector_lost(&mut self, node: &NodeId) {
        let Some(rank) = self.protectors.iter().find(|(_, protector)| *protector == node).map(|(rank, _)| *rank) else { return };
        let why = "it was to bring back ranks of a job that was suspended; it can be resumed again".to_owned();
        self.ranks[rank.0 as usize] = RankState::Ended;
        let reason = EndReason::NodeLost { node: node.name.clone(), ranks: vec![rank], why };
        self.end(Outcome { code: exit_code::NODE_LOST, reason });
    }

    /// Whether the job has gone on from a folder, which has what it had done before that.
    pub(super) fn was_resumed(&self) -> bool {
        self.spec.life > 0
    }

    /// The job restarts from its beginning. The terminal of one that was resumed is told so: its user expects it to have gone on.
    pub(super) fn tell_of_restart(&mut self, mut why: String) {
        if self.was_resumed() {
            why += &format!("; `radic kill {}` ends it, and then its folder can be resumed again", self.job);
            self.tell_terminal(format!("the job restarts from its beginning: {why}"));
        }
        self.outputs.push_back(HomeOutput::Anew(why));
    }

    /// A rank cannot be brought back at this node.
    pub(super) fn lose(&mut self, rank: Rank, from: &NodeId, why: String) {
        if !self.is_restarting() {
            self.lose_with(rank, from.name.clone(), why);
        }
    }

    /// The job ends with a rank that cannot go on.
    pub(super) fn lose_with(&mut self, rank: Rank, node: NodeName, why: String) {
        self.ranks[rank.0 as usize] = RankState::Ended;
        let reason = EndReason::RankLost { rank, node, why };
        self.end(Outcome { code: exit_code::NODE_LOST, reason });
    }

    /// A rank was killed with the job, has not ended, and counts as ended all the same. A job that was to restart ends.
    pub(super) fn handle_not_ended(&mut self, rank: Rank, from: &NodeId, why: String) {
        if self.is_restarting() {
            self.lose_with(rank, from.name.clone(), format!("the job was to restart from its beginning, but {why}"));
        } else {
            self.tell_terminal(format!("rank {rank} on {from}: {why}"));
        }
    }

    /// A rank had ended at this node before the node was lost, and this home may not have heard of it.
    pub(super) fn handle_left(&mut self, rank: Rank, node: NodeName, status: ExitStatus, phase: MpiPhase) {
        if std::mem::replace(&mut self.ranks[rank.0 as usize], RankState::Ended) != RankState::Ended {
            let goes_on = self.placement.node_of(rank).expect("it knows the rank").clone();
            if self.placement.ranks_on(&goes_on).all(|rank| self.ranks[rank.0 as usize] == RankState::Ended) {
                // No rank comes back to that node, so it has nothing to report.
                self.unreported.remove(&goes_on);
            }
            self.end_output(rank);
            self.handle_exit(rank, node, status, phase);
        }
    }

    /// A rank has ended at this node: whether the job ends with it. The placement does not say where that was, for the node may
    /// have been lost since: then it names the node where the rank would have gone on.
    pub(super) fn handle_exit(&mut self, rank: Rank, node: NodeName, status: ExitStatus, phase: MpiPhase) {
        let failed = || EndReason::RankFailed { rank, node: node.clone(), status };
        match (status, phase) {
            (ExitStatus::Code(0), MpiPhase::Before) => self.keep_out_of_fences(rank, node),
            (ExitStatus::Code(0), MpiPhase::After) => self.leave_fences(rank),
            (ExitStatus::Code(0), MpiPhase::Within) => {
                self.end(Outcome { code: 1, reason: EndReason::NotFinalized { rank, node } });
            }
            // After MPI_Finalize no other rank waits for this one: the others finish, and the job fails with this code.
            (ExitStatus::Code(code), MpiPhase::After) => {
                self.outcome.get_or_insert(Outcome { code, reason: failed() });
                self.leave_fences(rank);
            }
            // A home that was lost had ended it, with the job.
            (ExitStatus::Ended(_), _) => {
                let why = "its job was ended by a home that was lost before it had said why".to_owned();
                self.end(Outcome { code: exit_code::NODE_LOST, reason: EndReason::RankLost { rank, node, why } });
            }
            _ => self.end(Outcome { code: status.shell_code(), reason: failed() }),
        }
    }

    /// A node is lost, and its ranks go on elsewhere: `placement`.
    pub fn handle_moved(&mut self, now: Duration, node: &NodeId, placement: Placement) {
        if self.is_over() {
            return;
        }
        self.thaw(&format!("{node} was lost meanwhile"));
        let ending = self.is_ending();
        let running: Vec<Rank> = self.placement.ranks_on(node).filter(|r| self.ranks[r.0 as usize] != RankState::Ended).collect();
        self.lost.extend(self.placement.ranks_on(node));
        for rank in self.placement.ranks_on(node).filter(|_| ending) {
            self.ranks[rank.0 as usize] = RankState::Ended; // Nothing brings back what is being ended.
        }
        self.hosts.remove(node);
        self.unreported.remove(node);
        self.placement = placement;
        if !ending {
            let gone = self.is_restarting();
            for node in running.iter().filter_map(|rank| self.placement.node_of(*rank)) {
                self.hosts.entry(node.clone()).or_insert(HostState { gone });
            }
        }
        self.fences.lose(node);
        self.lose_terminal(node);
        self.launch_next_epoch();
        for (from, epoch, said) in std::mem::take(&mut self.early) {
            self.handle_host(now, &from, epoch, said);
        }
        self.check_end(now);
    }

    /// A node is lost, and the terminals on it with it. A job without protection ends if it had ranks there.
    pub fn handle_node_lost(&mut self, now: Duration, node: &NodeId, why: &str) {
        if self.hosts.contains_key(node) {
            self.lose_host(node, why);
        }
        self.lose_terminal(node);
        self.check_end(now);
    }

    pub(super) fn lose_host(&mut self, node: &NodeId, why: &str) {
        if let Some(host) = self.hosts.get_mut(node) {
            host.gone = true;
        }
        self.unreported.remove(node);
        let ranks: Vec<_> = self.placement.ranks_on(node).collect();
        let running = ranks.iter().any(|r| self.ranks[r.0 as usize] != RankState::Ended);
        for rank in &ranks {
            self.ranks[rank.0 as usize] = RankState::Ended;
        }
        // A job that is being restarted has no running rank, but cannot begin without that node.
        if running || self.is_restarting() {
            let reason = EndReason::NodeLost { node: node.name.clone(), ranks, why: why.to_owned() };
            self.end(Outcome { code: exit_code::NODE_LOST, reason });
        }
    }

    /// This side cannot decide anything about the job any more, wherever its ranks are.
    pub fn give_up(&mut self, now: Duration, why: &str) {
        if !self.is_over() {
            let have_ended = self.waits_for_majority() && self.ranks.iter().all(|rank| *rank == RankState::Ended);
            let but = "; every rank has finished here, but a side with a majority may have begun the job anew";
            let why = format!("{why}{}", if have_ended { but } else { "" });
            let reason = EndReason::NodeLost { node: self.placement.home().name.clone(), ranks: Vec::new(), why };
            self.end(Outcome { code: exit_code::NODE_LOST, reason });
            self.check_end(now);
        }
    }
}
