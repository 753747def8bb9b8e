//! The end of a host: its ranks are told to end, then killed, and counted as ended if the kernel does not let them go.

use std::time::Duration;

use radic_wire::ids::Rank;
use radic_wire::job::ExitStatus;
use radic_wire::peer::FromHost;

use super::phase::{Cause, Next};
use super::rank::{Phase, STREAMS};
use super::{Host, HostOutput};
use crate::node::outlet::Outlet;

/// Time between SIGTERM and SIGKILL for a rank that is to end.
const GRACE: Duration = Duration::from_secs(2);

/// A process that was killed has ended after this, however much memory the kernel has to free. If it has not, the terminal is told.
const KILLED: Duration = Duration::from_secs(10);

/// After this much more it counts as ended. It waits in the kernel, for a disk or a file server that does not answer.
const GIVEN_UP: Duration = Duration::from_secs(50);

impl Host {
    /// Kills ranks that have not ended in time, says which of them do not end then, and at last counts those as ended.
    pub(super) fn look_at_ending(&mut self, now: Duration) {
        let then = |due| match due {
            Next::Kill(_) => Next::Notice(now + KILLED),
            Next::Notice(_) => Next::GiveUp(now + GIVEN_UP),
            Next::GiveUp(_) | Next::Nothing => Next::Nothing,
        };
        match self.phase.take_due(now, then) {
            Some(Next::Kill(_)) => self.signal(libc::SIGKILL),
            Some(Next::Notice(_)) => {
                for (rank, what) in self.unended() {
                    let limit = GIVEN_UP.as_secs();
                    self.tell_what_keeps(rank, format!("{what}; in {limit} s it counts as ended"));
                }
            }
            Some(Next::GiveUp(_)) => {
                for (rank, what) in self.unended() {
                    let why = format!("{what}; it counts as ended");
                    self.outputs.push_back(HostOutput::Note(rank, why.clone()));
                    self.outputs.push_back(HostOutput::ToHome(FromHost::NotEnded { rank, why }));
                    self.ranks.entry(rank).and_modify(|state| state.exit_with(ExitStatus::Ended(libc::SIGKILL), now));
                }
                self.report_ended();
            }
            Some(Next::Nothing) | None => {}
        }
    }

    /// The ranks that have not ended although they were killed, each with what keeps it.
    fn unended(&self) -> Vec<(Rank, String)> {
        let running = self.ranks.iter().filter(|(_, state)| !state.has_exited());
        let said = running.map(|(rank, state)| {
            let what = match state.pid() {
                Some(pid) => format!(
                    "process {pid} has not ended, although it was killed: it waits in the kernel, perhaps for a disk or a file \
                     server that does not answer (/proc/{pid}/stack says where)"
                ),
                None => "its start has not ended: perhaps a disk or a file server does not answer".to_owned(),
            };
            (*rank, what)
        });
        said.collect()
    }

    /// Records what keeps a rank, and has it said at the terminal.
    pub fn tell_what_keeps(&mut self, rank: Rank, what: String) {
        self.outputs.push_back(HostOutput::Note(rank, what.clone()));
        self.outputs.push_back(HostOutput::ToHome(FromHost::Kept { rank, what }));
    }

    /// The job is ended by force here: everything that still runs is killed.
    pub fn end_by_force(&mut self, now: Duration) {
        self.end(now, Cause::Force);
    }

    /// The job ends here: everything that still runs is ended.
    pub(super) fn end(&mut self, now: Duration, cause: Cause) {
        let (before, kill) = (self.phase.next(), cause > Cause::JobEnds);
        self.phase.end(cause, if kill { Next::Notice(now + KILLED) } else { Next::Kill(now + GRACE) });
        // A rank whose start is given up counts as killed, as a rank does that has just been started.
        for rank in self.launches.give_up() {
            self.ranks.entry(rank).and_modify(|state| state.exit_with(ExitStatus::Ended(libc::SIGKILL), now));
        }
        // A rank that is lost will not come back: the job ends.
        for state in self.ranks.values_mut() {
            if let Phase::Lost(crash) = state.phase {
                state.exit_with(ExitStatus::Ended(crash.signal), now);
            }
        }
        // A rank whose images are on their way has no process that could end: they are given up.
        let awaited = self.ranks.iter().filter(|(_, state)| state.awaits_process()).map(|(rank, _)| *rank);
        self.outputs.extend(awaited.map(|rank| HostOutput::Signal(rank, libc::SIGKILL)));
        if kill {
            self.signal(libc::SIGKILL);
        } else if before.is_none() {
            self.signal(libc::SIGTERM);
            // A stopped process takes SIGTERM only when it goes on.
            self.signal(libc::SIGCONT);
        }
        self.report_ended();
    }

    /// The images of a rank cannot be had, or were given up. Returns whether the rank is still wanted. If the job ends here it is not, and counts as
    /// killed with the others.
    pub fn handle_no_images(&mut self, now: Duration, rank: Rank) -> bool {
        let is_wanted = !self.phase.is_ending();
        if let Some(state) = self.ranks.get_mut(&rank).filter(|state| !is_wanted && state.awaits_process()) {
            state.outlets.iter_mut().for_each(Outlet::close);
            state.exit_with(ExitStatus::Ended(libc::SIGKILL), now);
            self.report_ended();
        }
        is_wanted
    }

    /// The job has restarted elsewhere. The ranks that came back here since are ended, and the home, which takes this host for
    /// gone, hears nothing of it.
    pub fn supersede(&mut self, now: Duration) {
        self.drop_output();
        self.end(now, Cause::Superseded { told: false });
    }

    /// Whether this host is of an epoch that the job has left behind.
    pub fn is_superseded(&self) -> bool {
        self.phase.is_superseded()
    }

    /// This side of the cluster could not decide anything for too long, which is treated like the loss of the home. If the home
    /// is within reach after all, it hears the reason first, so that it does not take the killed ranks for failed ones.
    pub fn give_up(&mut self, now: Duration, why: &str) {
        let first = self.running().next().map(|(rank, _)| rank).or(self.launches.any());
        let first = first.map(|rank| FromHost::Lost { rank, why: why.to_owned() });
        self.outputs.extend(first.map(HostOutput::ToHome));
        self.abandon(now);
    }

    /// The home is lost: the output is not taken any more, and every running rank is killed.
    pub fn abandon(&mut self, now: Duration) {
        self.drop_output();
        self.end(now, Cause::Force);
    }

    /// The job is written down with its output: nothing of that is kept here, nor is what may still come.
    pub(super) fn give_up_output(&mut self) {
        for (rank, state) in &mut self.ranks {
            state.outlets.iter_mut().for_each(Outlet::give_up);
            state.read(*rank, &mut self.outputs);
        }
    }

    fn drop_output(&mut self) {
        for (rank, state) in &mut self.ranks {
            for (outlet, stream) in state.outlets.iter_mut().zip(STREAMS) {
                if outlet.is_open() {
                    self.outputs.push_back(HostOutput::Close(*rank, stream));
                }
                *outlet = Outlet::default();
            }
        }
    }

    pub(super) fn signal(&mut self, signal: i32) {
        let running: Vec<_> = self.running().collect();
        self.outputs.extend(running.into_iter().map(|(rank, _)| HostOutput::Signal(rank, signal)));
    }
}
