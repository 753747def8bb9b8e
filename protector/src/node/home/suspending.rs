//! Suspending a job: its ranks are stopped until a command has written the job down, and then end. If it is not written down they
//! go on where they were.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use radic_wire::ids::{NodeId, NodeName, Rank};
use radic_wire::job::{EndReason, Outcome, OutputStream, Ward, exit_code};
use radic_wire::peer::{SessionId, ToHost, ToSession};
use radic_wire::suspension::Suspension;

use super::relay::Piece;
use super::{Home, HomeOutput, Phase, RankState};
use crate::commands::suspend::SILENCE;

/// Why a job is not suspended.
const NOT_NOW: &str = "it is starting or ending, a rank has ended, or a node was just lost";

/// How far the suspension of a job is.
#[derive(Debug)]
pub(super) enum Stage {
    /// A recovery line may be under way. The logs of one moment are to agree which lines are complete, so the ranks run until it has come to its end.
    Waiting,
    /// These hosts have not said that their ranks are stopped, or the terminal has not printed all that it was sent.
    Stopping { waiting: BTreeSet<NodeId> },
    /// The command knows how far the output has come. Output that comes later waits here; when the job ends, the resumed job
    /// writes it once more.
    Stopped { held: VecDeque<(NodeName, Piece)> },
    /// The job is written down.
    Written,
}

/// A job that is being suspended.
#[derive(Debug)]
pub(super) struct Suspending {
    /// The command that writes the job down.
    pub(super) session: SessionId,
    origins: BTreeMap<Rank, IpAddr>,
    pub(super) stage: Stage,
}

impl Home {
    /// Stops all ranks, so that a command can write the job down.
    pub(super) fn suspend(&mut self, session: SessionId) {
        let why = match () {
            () if self.suspending.is_some() => "it is being suspended already",
            () if !self.is_protected() => "it is not protected: there is no log of it",
            () if !self.can_freeze() => NOT_NOW,
            () => {
                self.suspending = Some(Suspending { session, origins: BTreeMap::new(), stage: Stage::Waiting });
                if !self.has_lines() {
                    self.freeze();
                }
                return;
            }
        };
        self.tell_session(session, ToSession::Frozen(Err(why.to_owned())));
    }

    fn can_freeze(&self) -> bool {
        let running = self.ranks.iter().all(|rank| *rank == RankState::Running);
        self.phase == Phase::Running && self.unreported.is_empty() && running
    }

    /// Whether the ranks are to be stopped as soon as no recovery line is under way.
    pub fn waits_for_line(&self) -> bool {
        self.suspending.as_ref().is_some_and(|suspending| matches!(suspending.stage, Stage::Waiting))
    }

    /// No recovery line is under way: the ranks are stopped.
    pub fn freeze(&mut self) {
        if !self.can_freeze() {
            return self.thaw(NOT_NOW);
        }
        let waiting = self.placement.nodes.iter().cloned().collect();
        if let Some(suspending) = &mut self.suspending {
            suspending.stage = Stage::Stopping { waiting };
            self.tell_hosts(&ToHost::Freeze);
        }
    }

    pub(super) fn handle_frozen(&mut self, from: &NodeId, result: Result<Vec<(Rank, IpAddr)>, String>) {
        let Some(suspending) = &mut self.suspending else { return };
        match result {
            Ok(origins) => {
                if let Stage::Stopping { waiting } = &mut suspending.stage {
                    waiting.remove(from);
                }
                let theirs = origins.into_iter().filter(|(rank, _)| self.placement.node_of(*rank) == Some(from));
                suspending.origins.extend(theirs);
                self.check_frozen();
            }
            Err(why) => self.thaw(&format!("{from}: {why}")),
        }
    }

    /// When the ranks are stopped and the terminal has printed what it was sent, tells the command that writes the job down how
    /// far the job has come.
    pub(super) fn check_frozen(&mut self) {
        let Some(suspending) = &mut self.suspending else { return };
        let are_stopped = matches!(&suspending.stage, Stage::Stopping { waiting } if waiting.is_empty());
        if !are_stopped || !self.relay.is_idle() {
            return;
        }
        let origins: Vec<IpAddr> = suspending.origins.values().copied().collect();
        if origins.len() != self.ranks.len() {
            return self.thaw("a host has not told of all its ranks");
        }
        suspending.stage = Stage::Stopped { held: VecDeque::new() };
        let (session, relay) = (suspending.session.clone(), &self.relay);
        let output = |rank| [OutputStream::Stdout, OutputStream::Stderr].map(|stream| relay.next(rank, stream));
        let (spec, placement) = (self.spec.clone(), self.placement.clone());
        let ward = Ward { epoch: self.epoch, spec, placement, fence: self.fences.released(), keys: Vec::new() };
        let output = (0..self.spec.ranks).map(|rank| output(Rank(rank))).collect();
        let suspension = Suspension { job: self.job, ward, started_ms: self.started_ms, origins, output, line: 0 };
        let unprinted = relay.unprinted().map(|output| HomeOutput::ToSession(session.clone(), output));
        self.outputs.extend(unprinted);
        self.outputs.push_back(HomeOutput::Frozen(session, Box::new(suspension)));
    }

    /// The job is not suspended: it goes on where it was.
    pub(super) fn thaw(&mut self, why: &str) {
        let Some(suspending) = self.suspending.take_if(|suspending| !matches!(suspending.stage, Stage::Written)) else { return };
        self.tell_session(suspending.session, ToSession::Frozen(Err(why.to_owned())));
        self.tell_hosts(&ToHost::Thaw);
        if let Stage::Stopped { held } = suspending.stage {
            held.into_iter().for_each(|(node, piece)| self.handle_output(node, piece));
        }
        self.pump();
    }

    /// The node of the command that suspends the job has given it up.
    pub(super) fn handle_suspender_hangs(&mut self, session: &SessionId) {
        if self.suspending.as_ref().is_none_or(|suspending| suspending.session != *session) {
            return;
        }
        let (node, seconds) = (&session.node.name, SILENCE.as_secs());
        let why = format!(
            "{node} heard nothing of the command that suspends it for {seconds} s: that was stopped, or its disk does not answer"
        );
        self.thaw(&why);
        if self.suspending.is_none() {
            self.tell_terminal(format!("job {} is not suspended: {why}; its ranks go on", self.job));
        }
    }

    /// The command has written the job down.
    pub(super) fn end_suspended(&mut self, session: &SessionId) {
        if let Some(outcome) = self.outcome.clone().filter(|_| self.is_over()) {
            let said = match outcome.reason {
                EndReason::Suspended => ToSession::Ended(outcome),
                // It went on meanwhile, and what is written down would do again what it has done since.
                _ => ToSession::Frozen(Err(format!("it has ended meanwhile, with code {}", outcome.code))),
            };
            return self.tell_session(session.clone(), said);
        }
        let Some(suspending) = self.suspending.as_mut().filter(|suspending| suspending.session == *session) else {
            return self
                .tell_session(session.clone(), ToSession::Frozen(Err("this command does not suspend it any more".to_owned())));
        };
        if matches!(suspending.stage, Stage::Waiting | Stage::Stopping { .. }) {
            // Its node does not watch over it any more.
            return self.thaw("its command says that all is written down before the ranks are stopped");
        }
        suspending.stage = Stage::Written;
        self.waiters.insert(session.clone());
        // The command has the waiting output now.
        self.relay.clear();
        if !self.is_over() {
            self.phase = Phase::Ending;
        }
        self.outcome = Some(Outcome { code: exit_code::SUSPENDED, reason: EndReason::Suspended });
        // Hosts keep output until they hear this, and none of it from then on: if this home is lost before all have heard it, no rank
        // goes on of whose output only the command has a part.
        self.tell_hosts(&ToHost::End { epoch: self.epoch, kill: true, restarts: false, written: true });
    }
}
