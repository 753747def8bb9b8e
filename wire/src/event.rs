//! What happened: the record that `radic events` prints and the benchmarks read.

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, NodeName, Rank};

/// Defines [`EventName`] with the names that are printed: each is said once, so none can be missing in a list of all.
macro_rules! event_names {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// What kind of thing happened. The names are what `radic events --json` prints.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum EventName {
            $($(#[doc = $doc])+ #[serde(rename = $name)] $variant,)+
        }

        impl EventName {
            /// Every event that there is.
            pub const ALL: &[EventName] = &[$(EventName::$variant),+];

            /// The name that `radic events` prints.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(EventName::$variant => $name,)+
                }
            }
        }
    };
}

event_names! {
    /// A protector started.
    Start = "start",
    /// A view was adopted.
    View = "view",
    /// A member does not answer (docs/design.md: detection).
    Suspect = "suspect",
    /// A suspected member answered after all.
    Withdrawn = "withdrawn",
    /// A member's death was confirmed (docs/design.md: confirmation).
    Confirm = "confirm",
    /// This protector was not scheduled for longer than its watchdog allows; it accuses no member meanwhile.
    Descheduled = "descheduled",
    /// This side has no majority: nothing is decided here.
    Frozen = "frozen",
    /// This side has a majority again.
    Thawed = "thawed",
    /// A job was started.
    JobStart = "job-start",
    /// A job ended.
    JobEnd = "job-end",
    /// A rank was started.
    RankStart = "rank-start",
    /// A rank ended.
    RankExit = "rank-exit",
    /// A connection was refused: wrong key, wrong user, wrong version, malformed or too slow.
    Refused = "refused",
    /// A fault was injected by `radic inject`.
    Inject = "inject",
    /// A limit was reached.
    Limit = "limit",
    /// A checkpoint was committed.
    Checkpoint = "checkpoint",
    /// A checkpoint was refused, or could not be made.
    CheckpointFailed = "checkpoint-failed",
    /// Something that belongs to a protected job is not protected itself: a child, a peer (G7).
    Unprotected = "unprotected",
    /// A protected process has something to say.
    Note = "note",
    /// The store of logs and images has something to say.
    Store = "store",
    /// A log server refuses older incarnations of a process from now on (docs/design.md: fencing).
    Fence = "fence",
    /// Where a lost process goes on (docs/design.md: placement).
    Place = "place",
    /// The rank's image has arrived and is being restored.
    Image = "image",
    /// The rank is back and catches up with its log.
    Replay = "replay",
    /// The rank has caught up, with its log and with its peers.
    Live = "live",
    /// A fresh checkpoint of a restarted process, or of a process that has lost its protector, is committed at its new protector.
    Reprotected = "re-protected",
    /// A job restarts from the beginning.
    Restart = "restart",
    /// A process is lost and cannot be brought back.
    Lost = "lost",
    /// A process that was brought back has ended before it lived again.
    Death = "death",
    /// The node has chosen the time between checkpoints of a job that leaves it to the node.
    Interval = "interval",
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
