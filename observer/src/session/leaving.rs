//! The end of a process: it stays until all that it has sent is safe, and its protector has all that it has received.

use std::time::Duration;

use crate::Observer;

/// The first pause before it is asked again what is safe, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(50));

/// Since the program has ended.
#[derive(Debug, Clone)]
pub struct Leaving {
    pause: Duration,
    next: Duration,
    /// The node knows that nothing more is wanted.
    told: bool,
}

impl Leaving {
    pub(super) fn new(now: Duration) -> Leaving {
        Leaving { pause: PAUSES.0, next: now, told: false }
    }

    pub(super) fn due(&self) -> Duration {
        self.next
    }

    /// Whether the node is to be told now, once.
    pub(super) fn tells(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true)
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

/// Whether everything that was sent is safe: its receivers' protectors have it, or want nothing more.
pub(super) fn is_safe(observer: &Observer) -> bool {
    observer.table().iter().all(|(_, connection)| connection.outgoing().kept() == 0)
}
