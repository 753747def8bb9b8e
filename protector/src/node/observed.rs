//! What a node knows of a process of its own that runs, or ran, under the library.

use std::time::Duration;

use radic_wire::process::Counters;

use super::checkpoints::Schedule;
use super::numbers::ObserverId;

/// The connection of a process's newest observer: after an exec, that of the new program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Contact {
    /// The process has not joined.
    #[default]
    Never,
    /// The process has joined, and was not told its incarnation: it hears nothing else yet.
    Joined(ObserverId),
    /// The process was told its incarnation.
    Welcome(ObserverId),
    /// The connection has ended.
    Gone {
        /// Whether the process had been told its incarnation.
        was_welcome: bool,
        /// Since when the process runs without one, as far as was noticed.
        since: Option<Duration>,
    },
}

/// A process of this node that runs, or ran, under the library.
#[derive(Debug, Default)]
pub(super) struct Observed {
    contact: Contact,
    /// The process id of the program that has joined last.
    pub(super) pid: Option<u32>,
    /// The program that joined last has the process id of the one before: the process has called exec.
    pub(super) inherited: bool,
    pub(super) notes: u32,
    /// The process ends, and reads nothing more.
    pub(super) closing: bool,
    /// What was recorded already, once for each process.
    pub(super) child_told: bool,
    pub(super) serving_child_told: bool,
    pub(super) peer_told: bool,
    pub(super) dead_told: bool,
    pub(super) schedule: Schedule,
    /// Checkpoints that were asked for, over all programs of the process.
    pub(super) requests: u64,
    /// The request for its image of a recovery line, and that line.
    pub(super) line: Option<(u64, u64)>,
    /// The last counters of a process, which it has sent at its end.
    pub(super) counters: Option<Counters>,
}

impl Observed {
    pub(super) fn observer(&self) -> Option<ObserverId> {
        match self.contact {
            Contact::Joined(observer) | Contact::Welcome(observer) => Some(observer),
            Contact::Never | Contact::Gone { .. } => None,
        }
    }

    /// Whether the process has joined, now or before: its protector may hold something of it.
    pub(super) fn has_joined(&self) -> bool {
        self.contact != Contact::Never
    }

    /// The observer of a process that was told its incarnation: it hears what else it is told.
    pub(super) fn welcome_observer(&self) -> Option<ObserverId> {
        if let Contact::Welcome(observer) = self.contact { Some(observer) } else { None }
    }

    /// Whether the process was told its incarnation, also if its connection has ended since.
    pub(super) fn is_welcome(&self) -> bool {
        matches!(self.contact, Contact::Welcome(_) | Contact::Gone { was_welcome: true, .. })
    }

    /// A program of the process has joined.
    pub(super) fn handle_joined(&mut self, observer: ObserverId, pid: u32) {
        self.contact = Contact::Joined(observer);
        self.inherited = self.pid.replace(pid) == Some(pid);
    }

    /// The connection of its observer has ended.
    pub(super) fn handle_gone(&mut self) {
        self.contact = Contact::Gone { was_welcome: self.is_welcome(), since: None };
    }

    /// The process is told its incarnation.
    pub(super) fn handle_welcome(&mut self, observer: ObserverId) {
        self.contact = Contact::Welcome(observer);
    }

    /// Since when the process has no observer though it has joined; it is noticed now, at the latest.
    pub(super) fn gone_since(&mut self, now: Duration) -> Option<Duration> {
        if let Contact::Gone { since, .. } = &mut self.contact { Some(*since.get_or_insert(now)) } else { None }
    }
}
