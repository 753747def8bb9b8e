//! What each event means, and what its reader can do.

use radic_wire::event::EventName;

/// An event in words.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventText {
    pub(super) event: EventName,
    /// What has happened, in one sentence.
    pub(super) means: &'static str,
    /// What is so now, and what may be done.
    pub(super) next: &'static str,
}

const fn text(event: EventName, means: &'static str, next: &'static str) -> EventText {
    EventText { event, means, next }
}

/// Every event, in the order in which [`EventName`] has them. A test compares the two.
pub(super) const EVENTS: &[EventText] = &[
    text(
        EventName::Start,
        "A daemon has started.",
        "Nothing is to be done. A second `start` of the same node says that its daemon died and was started again: the node's log tells why.",
    ),
    text(
        EventName::View,
        "The members have agreed on a new list of members: a node has joined, has left, or was declared dead.",
        "The text names the nodes that joined and that are gone. If two members are left, no death can be told from a broken network: add a node or a \
         witness (`radicd --witness`).",
    ),
    text(
        EventName::Suspect,
        "A member does not answer, or a rank has been ended by a signal.",
        "Nothing is to be done. `confirm` or `withdrawn` follows for a member. A rank is brought back on its own node. Suspicions that are \
         withdrawn again and again say that the network drops packets or that the machine is overloaded: look at it, or raise --heartbeat-ms.",
    ),
    text(EventName::Withdrawn, "A suspected member has answered after all.", "Nothing is to be done: nothing was moved."),
    text(
        EventName::Confirm,
        "A majority has found that a member is dead.",
        "Its ranks are fenced and go on elsewhere, if they are protected: `place`, `image`, `replay` and `live` follow for each. Repair the machine \
         and start radicd on it again, best with --spare.",
    ),
    text(
        EventName::Descheduled,
        "This daemon did not run for longer than its watchdog allows, so it accuses no other node for two heartbeats.",
        "If it comes often the machine is overloaded or was suspended: run fewer ranks on it, or raise --heartbeat-ms.",
    ),
    text(
        EventName::Frozen,
        "This side of the cluster has no majority, so it decides nothing.",
        "Unprotected jobs with ranks out of reach end. Protected ones wait 60 s for the majority and then end with code 113. Repair the network, or \
         start the nodes that the text names; a witness keeps two nodes able to decide.",
    ),
    text(EventName::Thawed, "This side has a majority again.", "Nothing is to be done: protected jobs go on."),
    text(
        EventName::JobStart,
        "A job was started or resumed.",
        "The text has its command and its nodes; `radic jobs` shows how it is.",
    ),
    text(
        EventName::JobEnd,
        "A job has ended.",
        "The text has its exit code and the reason; `radic explain CODE` tells what the code means.",
    ),
    text(EventName::RankStart, "The process of a rank was started.", "Nothing is to be done; the text has its process id."),
    text(
        EventName::RankExit,
        "The process of a rank has ended.",
        "The text has its code or signal. After a signal a protected rank is brought back; see the events that follow.",
    ),
    text(
        EventName::Refused,
        "A connection was refused: without the key, of another user, of another wire protocol, or with a message that makes no sense.",
        "The text names the address or the node, and the reason. Two wire protocols: install the same release on all nodes (`radicd --version`). \
         Another key: give all nodes the same key file. An address that is none of yours: a stranger tries the port; nothing was told to it.",
    ),
    text(
        EventName::Inject,
        "A failure was caused by `radic inject`.",
        "The events that follow are its consequences; it is no failure of the machine.",
    ),
    text(
        EventName::Limit,
        "A limit was reached, or something could not be done with what there is.",
        "The text names the limit. A log near its bound: checkpoint more often (`radic run --ckpt-interval`) or raise `--log-limit`. No third node for a \
         replica: add one. A folder that was removed: the node leaves the cluster; start it again.",
    ),
    text(
        EventName::Checkpoint,
        "A checkpoint of a rank was committed at its protector.",
        "Nothing is to be done: if the rank dies it goes on from here. Of many within a short time only some are told, and the others are counted.",
    ),
    text(
        EventName::CheckpointFailed,
        "A checkpoint could not be made, was refused, or did not restore.",
        "The rank goes on, and its last committed checkpoint stays. The text has the reason; for what a program does that cannot be saved, \
         `radic doctor -- PROGRAM` has more. No room: see `radic status` for what is stored, and the file system of --store.",
    ),
    text(
        EventName::Unprotected,
        "Something that belongs to a protected job is not protected itself: a child of a rank, or a peer outside of the job.",
        "It runs, but a restart does not bring it back, and what passes to it is not logged. If the result depends on it, start the job again when a node is lost.",
    ),
    text(EventName::Note, "A protected rank, or its job, has something to say.", "The text says it."),
    text(
        EventName::Store,
        "The store of logs and checkpoints has something to say: of its disk, or of a copy.",
        "A file that cannot be written: free space where --store is; the ranks wait until it can be written again, which is told, too. A replica out \
         of reach: its ranks wait for it, or for its death to be confirmed.",
    ),
    text(
        EventName::Fence,
        "Logs refuse older incarnations of a lost rank from now on.",
        "Nothing is to be done: even if the lost node still runs, only one incarnation of the rank can have an effect.",
    ),
    text(
        EventName::Place,
        "It is decided where a lost rank, or the home of a job, goes on.",
        "Nothing is to be done. `radic run --restart-on` chooses which kind of node is taken; `radic spare list` shows which node would be next.",
    ),
    text(
        EventName::Image,
        "The checkpoint of a lost rank has arrived at its new node and is being restored.",
        "Nothing is to be done; `replay` follows.",
    ),
    text(
        EventName::Replay,
        "A lost rank is back and catches up with its log.",
        "Nothing is to be done; `live` follows. The others wait only where they need something new of it.",
    ),
    text(
        EventName::Live,
        "A rank that was brought back has caught up.",
        "The loss is over for the program; `re-protected` follows.",
    ),
    text(
        EventName::Reprotected,
        "A fresh checkpoint of a rank is committed at its new protector.",
        "The rank is as safe as before the loss.",
    ),
    text(
        EventName::Restart,
        "A job restarts from the beginning.",
        "The text says what was lost. `--replicas 2` lets a job survive the loss of a node and of its protector at once; `--on-loss fail` ends it with \
         code 113 instead.",
    ),
    text(
        EventName::Lost,
        "A rank is lost, and there is nothing that it could go on from.",
        "The job restarts from the beginning (`restart`), or ends with code 113 if it was started with `--on-loss fail`.",
    ),
    text(
        EventName::Death,
        "A rank that was brought back has died again before it lived.",
        "It is tried again: after two deaths from the checkpoint before, after four the job restarts from the beginning. The text names the signal, the address and \
         the report with all registers, in deaths/ of that node's store. The same address each time is likely to be a bug: of the program, or of RADIC.",
    ),
    text(
        EventName::Interval,
        "A node has chosen the time between two checkpoints of a job that was started with --ckpt-interval auto, the default.",
        "It follows from what a checkpoint costs and from --mtbf, by Young's and Daly's formula, and is told for the job's first rank on each node, again when it \
         changes by more than a quarter. If nodes fail more often or more seldom than --mtbf says (24 h), give the right time; a number for --ckpt-interval is taken as it is.",
    ),
];

/// The text of an event.
pub(super) fn of(event: EventName) -> Option<&'static EventText> {
    EVENTS.iter().find(|text| text.event == event)
}
