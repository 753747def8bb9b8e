//! The numbers that govern membership.

use std::time::Duration;

/// The numbers that govern membership: all but the last are times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// Heartbeats in a row that may be missed.
    pub missed: u32,
    /// Time for the machine of a suspect to take a connection: without an answer by then, it is off or cut off.
    pub probe: Duration,
    /// Time for a suspect whose machine has taken the connection to answer on it. A daemon that does not run for less than this
    /// is taken for dead by no member, and not by its watcher for `heartbeat * missed` longer. A daemon that hangs for longer is
    /// taken for dead.
    pub answer: Duration,
    /// Time before a request or a proposal is repeated. Repeated proposals take longer and longer, up to eight times this.
    pub retry: Duration,
    /// Time within which a proposer must hear a majority.
    pub freeze: Duration,
    /// Children of a node in the tree by which a decision spreads. All members must have the same.
    pub fan_out: usize,
}

impl Default for Timing {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Timing { heartbeat: ms(100), missed: 5, probe: ms(250), answer: ms(1000), retry: ms(250), freeze: ms(500), fan_out: 8 }
    }
}

impl Timing {
    /// Silence after which a watched member is suspected.
    pub fn silence(&self) -> Duration {
        self.heartbeat * self.missed
    }

    /// Time for which a confirmed suspicion stands without being checked again.
    pub fn evidence(&self) -> Duration {
        self.retry * 8
    }

    /// A machine called later than this after its timeout was not running.
    pub(super) fn lateness(&self) -> Duration {
        self.heartbeat * 2
    }

    /// Time between two looks while another member has to answer.
    pub fn tick(&self) -> Duration {
        self.heartbeat / 10
    }

    /// Time without an answer after which the members that a suspect watches are looked at: many times what an answer takes.
    pub(super) fn bereaves(&self) -> Duration {
        self.probe / 4
    }

    /// Time for what a witness has found to come: it was asked when the own probe began.
    pub(super) fn hearing(&self) -> Duration {
        self.heartbeat / 5
    }

    /// How long a member that is behind waits for the view to come by itself before it asks for it.
    pub(super) fn ask(&self) -> Duration {
        self.heartbeat / 5
    }
}
