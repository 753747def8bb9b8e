//! The judge: whether the job has ended as it may, and has left nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use radic_wire::ids::{Epoch, NodeName, ProcessId, Rank};
use radic_wire::job::{EndReason, ExitStatus, Outcome};

use super::machine::name;
use super::queue::Event;
use super::world::World;

/// Time until nothing is left of a job, when every node can be reached.
const SETTLED: Duration = Duration::from_secs(8);
/// The same, if it was given up somewhere: a side without a majority keeps what it has for a minute.
const GIVEN_UP: Duration = Duration::from_secs(105);

/// So often within so long a rank may crash where it is and be brought back, as in `node/host.rs`.
const CRASHES: usize = 3;
const CRASH_TIME: Duration = Duration::from_secs(60);
/// So often in a row it may die between its restore and living again.
const RESTORES: u32 = 4;

/// Crashes of ranks, by faults.
#[derive(Default)]
pub struct Crashes {
    /// When each rank has crashed, where, and in which epoch of the job.
    times: BTreeMap<(Rank, usize, Epoch), Vec<Duration>>,
    /// How often in a row each rank has crashed on its way back.
    returning: BTreeMap<Rank, u32>,
    /// How often each rank has crashed so that nothing brings it back: no node has an image of it, or it has died too often on its way back.
    early: BTreeMap<Rank, u32>,
}

impl Crashes {
    /// A rank crashes at this machine, in this epoch and now.
    pub fn handle_crash(&mut self, rank: Rank, times: (usize, Epoch, Duration), can_restart: bool, is_live: bool) {
        let (machine, epoch, now) = times;
        self.times.entry((rank, machine, epoch)).or_default().push(now);
        let returning = self.returning.entry(rank).or_default();
        *returning = if is_live { 0 } else { *returning + 1 };
        if !can_restart || *returning == RESTORES {
            *returning = 0;
            *self.early.entry(rank).or_default() += 1;
        }
    }

    /// Documented: a rank that crashes twice so that nothing brings it back, or once more at a node than [`CRASHES`] times within a minute, will do so again.
    fn goes_on(&self, rank: Rank, node: &NodeName, epoch: Epoch) -> bool {
        let last = self.times.iter().find(|((of, at, in_epoch), _)| *of == rank && name(*at) == *node && *in_epoch == epoch);
        let last = last.map_or(&[][..], |(_, times)| times);
        let often = last.len() > CRASHES && last[last.len() - 1] - last[last.len() - 1 - CRASHES] < CRASH_TIME;
        often || self.early.get(&rank).is_some_and(|crashes| *crashes > 1)
    }
}

impl World {
    /// How the job may end: well; without a majority also with an error that says so.
    pub fn check_outcome(&mut self) {
        let outcome = self.terminal.outcome.clone().expect("it has ended");
        self.check_place(&outcome.reason);
        self.check_late(&outcome.reason);
        if outcome == (Outcome { code: 0, reason: EndReason::Finished }) {
            return self.check_end();
        }
        if self.terminal.gave_up && (matches!(self.over, Some((_, true))) || self.terminal.job.is_none()) {
            // Documented: the job has ended without a terminal, and its home was lost before the next one came; or the terminal never heard which job it is, for its node was lost
            // before that: `radic run` says so then. The job runs, or nothing was begun.
            return self.counts.limits += 1;
        }
        if (self.command.unsure.is_some() || self.command.is_away())
            && (self.terminal.gave_up || outcome.reason == EndReason::Suspended)
        {
            // Documented: a command was lost while the job ended, or while it began again. The folder says that it may have gone on, and nobody goes on from there by accident. Or
            // it is still in the folder, for there is no majority any more.
            return self.counts.limits += 1;
        }
        if let EndReason::RankLost { why, .. } = &outcome.reason
            && why.contains("by a home that was lost before it had said why")
            && (self.command.unsure.is_some() || self.command.is_ending())
        {
            // The home was lost when it had the ranks ended. The next one finds them ended and does not know why; the folder is whole, and its command has said that it may be.
            return self.counts.limits += 1;
        }
        if let EndReason::NodeLost { why, .. } = &outcome.reason
            && why.contains("it can be resumed again")
        {
            // Documented: a protector was lost with what it was given before it had brought its ranks back, or the home before any node had heard of it.
            return self.counts.limits += 1;
        }
        if let EndReason::RankFailed { rank, node, status: ExitStatus::Signal(libc::SIGSEGV) } = &outcome.reason
            && self.crashes.goes_on(*rank, node, self.checks.launched())
        {
            return self.counts.limits += 1;
        }
        self.counts.failed += 1;
        if self.has_lost_all() && matches!(outcome.reason, EndReason::NodeLost { .. }) {
            // Documented: the nodes of the job and their protectors are lost at once, and with them all that was known of it.
            return;
        }
        assert!(!self.plan.is_gentle(), "end: the job was to survive this: {outcome:?}\n{}", self.standing());
        let told = matches!(outcome.reason, EndReason::NodeLost { .. } | EndReason::RankLost { .. });
        assert!(told, "end: a job that cannot go on says so: {outcome:?}\n{}", self.standing());
    }

    /// Where the reason says that a rank has ended, a process of it has.
    fn check_place(&self, reason: &EndReason) {
        let (EndReason::RankFailed { rank, node, .. }
        | EndReason::NotFinalized { rank, node }
        | EndReason::FenceMissed { rank, node, .. }) = reason
        else {
            return;
        };
        let mut processes = self.processes.iter().filter(|process| process.id.rank == *rank && process.ended.is_some());
        assert!(processes.any(|process| name(process.machine) == *node), "end: no process has ended there: {reason:?}");
    }

    /// Whether a process has crashed so often that it is not brought back: its job ends.
    pub(super) fn has_failed(&self, process: ProcessId) -> bool {
        let last = self.processes.iter().rev().find(|of| of.id == process);
        let last = last.filter(|of| of.ended == Some(ExitStatus::Signal(libc::SIGSEGV)));
        last.is_some_and(|of| self.crashes.goes_on(process.rank, &name(of.machine), self.checks.launched()))
    }

    /// Nothing is left of the job on any node that can be reached.
    pub fn settle(&mut self) {
        self.pending.clear();
        self.queue.retain(|event| !matches!(event, Event::Fault(_)));
        let machines = self.machines.iter().map(|machine| machine.paused.max(machine.hung));
        let until = machines.chain(self.net.cuts.values().copied()).max().unwrap_or_default().max(self.now);
        let until = until + if self.counts.failed > 0 { GIVEN_UP } else { SETTLED };
        // If every machine is lost nothing happens any more, and nothing needs to: no fault is left that would switch one on.
        while self.now < until && (0..self.machines.len()).any(|at| self.is_up(at)) {
            self.next();
        }
        if self.waits_for_input() {
            return self.counts.limits += 1;
        }
        let Some(job) = self.terminal.job else { return };
        for at in (0..self.machines.len()).filter(|at| self.is_up(*at)).collect::<Vec<_>>() {
            let (node, logs) = (self.machines[at].node.as_ref().expect("it is up"), &self.machines[at].logs);
            // A side that never has a majority again decides nothing, not even that it may forget: of two members the home may be lost before it has told the other that all is over.
            if self.counts.failed > 0 || node.is_frozen() {
                continue;
            }
            assert!(!node.knows(job), "end: n{} still has something of the job", at + 1);
            assert!(logs.server.store().of_job(job).is_empty(), "end: n{} still has logs of the job", at + 1);
        }
        let alive: Vec<_> = self.processes.iter().filter(|p| p.ended.is_none() && self.is_up(p.machine)).map(|p| p.id).collect();
        assert!(alive.is_empty(), "end: {alive:?} still run");
    }

    /// Whether rank 0 waits for standard input that no terminal has: the terminal was told by one side of a broken network how the job has ended, and the other side has
    /// begun it anew. It goes on as a job without a terminal does.
    fn waits_for_input(&self) -> bool {
        let runs = self.processes.iter().filter(|process| process.ended.is_none() && self.is_up(process.machine));
        runs.filter_map(|process| process.lib.as_ref())
            .any(|lib| lib.program.waits_for_input() && lib.observer.incarnation().epoch > Epoch::FIRST)
    }

    /// Where each machine and process stands, for an engineer who looks for a mistake.
    pub fn standing(&self) -> String {
        let mut text = self.plan.to_string();
        for (at, machine) in self.machines.iter().enumerate() {
            let view = machine.node.as_ref().and_then(|node| node.view()).map(|view| (view.number, view.members.len()));
            let lines = machine.node.as_ref().map(|node| node.standing_of_lines());
            text += &format!("n{}: on: {}, view and members: {view:?}, {lines:?}\n", at + 1, machine.power);
        }
        for (pid, process) in self.processes.iter().enumerate() {
            let lib = process.lib.as_ref().map(|lib| lib.standing());
            text += &format!("process {pid}: {} at n{}, ended: {:?}, {lib:?}\n", process.id, process.machine + 1, process.ended);
        }
        text
    }
}
