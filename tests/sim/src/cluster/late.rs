//! Processes that are killed at their very end: all ranks have come to their ends, the process was let go, and has not exited. Its job ends as the programs
//! have said all the same, and nothing of it is brought back.

use std::time::Duration;

use radic_wire::ids::ProcessId;
use radic_wire::job::{EndReason, ExitStatus};
use radic_wire::process::ToNode;

use super::queue::Event;
use super::world::World;
use crate::dice::Dice;

/// When a process is killed that was let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// Before it has said its last word.
    Silent,
    /// When it has said it.
    AtOnce,
    /// So long after that: what is left of its program runs.
    After(Duration),
}

impl World {
    /// The process has nothing more to wait for, and exits, or is killed before it does.
    pub(super) fn exit(&mut self, pid: u32) {
        let moment = self.moment_of_death(pid);
        if moment != Some(Moment::Silent) {
            self.tell_node(pid, ToNode::Leaving(Box::default()));
        }
        match moment {
            None => self.end_process(pid, ExitStatus::Code(0)),
            Some(Moment::Silent | Moment::AtOnce) => self.kill_late(pid),
            Some(Moment::After(time)) => {
                self.stop(pid);
                self.schedule(self.now + time, Event::Late(pid));
            }
        }
    }

    /// When the process is killed, if it is, and was let go. One that leaves by itself may be brought back, as after any crash.
    fn moment_of_death(&mut self, pid: u32) -> Option<Moment> {
        if self.plan.killed_late == 0 || !self.lib(pid).session.is_let_go() {
            return None;
        }
        let mut dice = Dice::new(self.plan.seed ^ 0x1a7e ^ u64::from(pid) << 20);
        let after = Moment::After(Duration::from_micros(dice.below(20_000) as u64));
        let moment = [Moment::Silent, Moment::AtOnce, after][dice.below(3)];
        dice.one_in(self.plan.killed_late).then_some(moment)
    }

    /// The process is killed now.
    pub(super) fn kill_late(&mut self, pid: u32) {
        if self.is_running(pid) {
            self.counts.killed_late += 1;
            self.killed_late.insert(pid);
            let signal = if self.breaks.faulty { libc::SIGSEGV } else { libc::SIGKILL };
            self.end_process(pid, ExitStatus::Signal(signal));
        }
    }

    /// No process that was killed so decides how its job ends, and none is brought back.
    pub(super) fn check_late(&self, reason: &EndReason) {
        let late = || self.killed_late.iter().map(|pid| (*pid, &self.processes[*pid as usize]));
        if let EndReason::RankFailed { rank, status: status @ ExitStatus::Signal(_), .. } = reason {
            let is_said = late().all(|(_, process)| process.id.rank != *rank);
            assert!(is_said, "end: rank {rank} has come to its end with code 0, and was let go; now it {status}");
        }
        let epoch = |process: &super::process::Process| process.incarnation().map(|incarnation| incarnation.epoch);
        let is_next = |process: ProcessId, after: u32, of| {
            let mut later = self.processes.iter().skip(after as usize + 1);
            later.any(|other| other.id == process && epoch(other) == of)
        };
        let back = late().find(|(pid, process)| is_next(process.id, *pid, epoch(process)));
        assert!(back.is_none(), "end: {:?} was let go, and is brought back", back.map(|(pid, process)| (pid, process.id)));
    }
}
