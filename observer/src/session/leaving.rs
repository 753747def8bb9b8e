//! The end of a process: it stays until all that it has sent is safe, and its protector has all that it has received. Where
//! received bytes stay with their senders only a recovery line brings that about. So the process says that it has come to its
//! end, and may also end when all ranks of its job have said so.

use std::time::Duration;

use radic_wire::process::ProgramEnd;

use crate::Observer;
use crate::connection::Connection;

/// The first pause before it is asked again what is safe, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(50));

/// Time until a process at its end wants a recovery line. Ranks of one program end together; the line is for those that go on without it.
const ALONE: Duration = Duration::from_secs(2);

/// Since the program has ended.
#[derive(Debug, Clone)]
pub struct Leaving {
    began: Duration,
    pause: Duration,
    next: Duration,
    /// The node knows that nothing more is wanted.
    told: bool,
    /// How the program ends, until the node was told; none, too, if it is not known.
    end: Option<ProgramEnd>,
    /// All ranks of the job have come to their ends.
    pub(super) is_let_go: bool,
}

impl Leaving {
    pub(super) fn new(now: Duration, end: Option<ProgramEnd>) -> Leaving {
        Leaving { began: now, pause: PAUSES.0, next: now, told: false, end, is_let_go: false }
    }

    pub(super) fn due(&self) -> Duration {
        self.next
    }

    /// Whether the node is to be told now, once.
    pub(super) fn tells(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true)
    }

    /// What the node is to be told of the program's end, once.
    pub(super) fn take_end(&mut self) -> Option<ProgramEnd> {
        self.end.take()
    }

    /// Whether others go on, as far as the time says that.
    pub(super) fn is_alone(&self, now: Duration) -> bool {
        now >= self.began + ALONE
    }

    /// Whether it is time to ask; then it is less often.
    pub(super) fn is_due(&mut self, now: Duration) -> bool {
        let is_due = self.next <= now;
        if is_due {
            self.pause = (self.pause * 2).min(PAUSES.1);
            self.next = now + self.pause;
        }
        is_due
    }
}

/// Whether everything that was sent is safe: its receivers' protectors have it, or want nothing more. First of what other jobs receive, then of all.
pub(super) fn is_safe(observer: &Observer) -> (bool, bool) {
    let is_kept = |(_, connection): (_, &Connection)| connection.outgoing().kept() > 0;
    let is_foreign =
        |(slot, connection): (_, &Connection)| connection.peer.job != observer.process().job && is_kept((slot, connection));
    (!observer.table().iter().any(is_foreign), !observer.table().iter().any(is_kept))
}
