//! What happened: the record that `radic events` prints and the benchmarks read.

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, NodeName, Rank};

/// What kind of thing happened. The names are what `radic events --json` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventName {
    /// A protector started.
    Start,
    /// A view was adopted.
    View,
    /// A member does not answer (docs/design.md: detection).
    Suspect,
    /// A suspected member answered after all.
    Withdrawn,
    /// A member's death was confirmed (docs/design.md: confirmation).
    Confirm,
    /// This protector was not scheduled for longer than its watchdog allows; it accuses nobody.
    Descheduled,
    /// This side has no majority: nothing is decided here.
    Frozen,
    /// This side has a majority again.
    Thawed,
    /// A job was started.
    JobStart,
    /// A job ended.
    JobEnd,
    /// A rank was started.
    RankStart,
    /// A rank ended.
    RankExit,
    /// Somebody was refused: wrong key, wrong user, wrong version, malformed or too slow.
    Refused,
    /// A fault was injected by `radic inject`.
    Inject,
    /// A limit was reached.
    Limit,
    /// A checkpoint was committed.
    Checkpoint,
    /// A checkpoint was refused, or could not be made.
    CheckpointFailed,
    /// Something that belongs to a protected job is not protected itself: a child, a peer (G7).
    Unprotected,
    /// A protected process has something to say.
    Note,
    /// The store of logs and images has something to say.
    Store,
    /// Older lives of a process are not listened to any more (docs/design.md: fencing).
    Fence,
    /// Where a lost process goes on (docs/design.md: placement).
    Place,
    /// Its image has arrived and is being restored.
    Image,
    /// It is back and catches up with its log.
    Replay,
    /// It has caught up, with its log and with its peers.
    Live,
    /// A fresh checkpoint of a restarted process, or of one whose protector died, is committed at its new protector.
    #[serde(rename = "re-protected")]
    Reprotected,
    /// A job begins anew, from the beginning.
    Restart,
    /// A process is lost and cannot be brought back.
    Lost,
    /// A process that was brought back has ended before it lived again.
    Death,
}

impl EventName {
    /// The name that `radic events` prints.
    pub fn as_str(self) -> &'static str {
        match self {
            EventName::Start => "start",
            EventName::View => "view",
            EventName::Suspect => "suspect",
            EventName::Withdrawn => "withdrawn",
            EventName::Confirm => "confirm",
            EventName::Descheduled => "descheduled",
            EventName::Frozen => "frozen",
            EventName::Thawed => "thawed",
            EventName::JobStart => "job-start",
            EventName::JobEnd => "job-end",
            EventName::RankStart => "rank-start",
            EventName::RankExit => "rank-exit",
            EventName::Refused => "refused",
            EventName::Inject => "inject",
            EventName::Limit => "limit",
            EventName::Checkpoint => "checkpoint",
            EventName::CheckpointFailed => "checkpoint-failed",
            EventName::Unprotected => "unprotected",
            EventName::Note => "note",
            EventName::Store => "store",
            EventName::Fence => "fence",
            EventName::Place => "place",
            EventName::Image => "image",
            EventName::Replay => "replay",
            EventName::Live => "live",
            EventName::Reprotected => "re-protected",
            EventName::Restart => "restart",
            EventName::Lost => "lost",
            EventName::Death => "death",
        }
    }
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, in milliseconds since 1970 by the reporting node's clock.
    pub at_ms: u64,
    /// The reporting node.
    pub node: NodeName,
    /// The reporting node's counter; with `node` it orders and identifies the event.
    pub seq: u64,
    /// What happened.
    pub event: EventName,
    /// The node it happened to, where that is not the reporting one.
    pub subject: Option<NodeName>,
    /// The job concerned.
    pub job: Option<JobId>,
    /// The rank concerned.
    pub rank: Option<Rank>,
    /// The whole story in one line.
    pub text: String,
}
