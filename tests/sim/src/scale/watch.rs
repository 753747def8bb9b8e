//! What a run waits for, and when it came to pass.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use radic_wire::event::{Event, EventName};
use radic_wire::ids::{NodeName, ProcessId};
use radic_wire::membership::{MembershipBody, MembershipMessage};
use radic_wire::peer::PeerMessage;

/// What one machine has said and heard. Heartbeats are no messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Messages sent, and probes.
    pub sent: u64,
    /// Bytes of all frames that were sent to other daemons: of messages, heartbeats, hellos, and what acknowledges them.
    pub sent_bytes: u64,
    /// Messages that have arrived.
    pub heard: u64,
    /// Bytes of all frames that were sent to this daemon.
    pub heard_bytes: u64,
    /// Heartbeats given and heard.
    pub beats: u64,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Watch {
    /// The machine of each process.
    pub(super) hosts: BTreeMap<ProcessId, usize>,
    /// Processes that have joined.
    pub(crate) joined: u64,
    /// Processes of which there is an image.
    pub(crate) images: BTreeSet<ProcessId>,
    /// Those that are about to die.
    victims: BTreeSet<NodeName>,
    lost: BTreeSet<ProcessId>,
    /// Machines and processes that stay, and are to hear of it.
    survivors: usize,
    /// Views of so many members have no victim, or every joiner.
    members: usize,
    /// When each node was first suspected, and when it was first confirmed dead.
    pub(super) suspected: BTreeMap<NodeName, Duration>,
    pub(super) confirmed: BTreeMap<NodeName, Duration>,
    /// Members that were suspected, or confirmed dead, and are alive.
    pub(super) wronged: BTreeSet<NodeName>,
    pub(super) slandered: BTreeSet<NodeName>,
    /// Machines that said that they had no majority, and those that were declared dead while they were alive.
    pub(super) frozen: BTreeSet<usize>,
    pub(crate) excluded: BTreeSet<usize>,
    /// What should not have happened to the job: the first such thing.
    pub(super) missed: Option<String>,
    /// Machines that have the view that is waited for; when the first and the last had it.
    adopted: BTreeSet<usize>,
    pub(super) first_view: Option<Duration>,
    pub(super) last_view: Option<Duration>,
    /// When each lost process was first said to be back; which machine has heard of which, and when the last had heard of all.
    pub(super) told: BTreeMap<ProcessId, Duration>,
    heard: BTreeSet<(usize, ProcessId)>,
    pub(super) last_heard: Option<Duration>,
    /// What each machine has said and heard.
    loads: Vec<Counts>,
    /// Messages sent, by kind.
    pub(super) kinds: BTreeMap<&'static str, u64>,
    /// Callers that daemons have turned away.
    pub(super) turned_away: u64,
}

impl Watch {
    /// From now on these are waited for: the deaths of `victims`, a view of `members` at each of `survivors` machines, and that all these know where the victims'
    /// processes are.
    pub(super) fn begin(&mut self, victims: BTreeSet<NodeName>, places: &[usize], survivors: usize, members: usize) {
        let lost = self.hosts.iter().filter(|(_, host)| places.contains(host)).map(|(process, _)| *process).collect();
        let (hosts, joined) = (std::mem::take(&mut self.hosts), self.joined);
        *self = Watch { hosts, joined, victims, lost, survivors, members, ..Watch::default() };
    }

    /// What is counted is counted from now on.
    pub(super) fn reset_counts(&mut self) {
        (self.loads, self.kinds, self.turned_away) = Default::default();
    }

    /// What a machine has said and heard.
    pub(super) fn load(&self, at: usize) -> Counts {
        self.loads.get(at).copied().unwrap_or_default()
    }

    fn load_of(&mut self, at: usize) -> &mut Counts {
        if self.loads.len() <= at {
            self.loads.resize(at + 1, Counts::default());
        }
        &mut self.loads[at]
    }

    /// A machine has a message of this kind for another one.
    pub(crate) fn handle_sent(&mut self, at: usize, kind: &'static str) {
        *self.kinds.entry(kind).or_default() += 1;
        self.load_of(at).sent += 1;
    }

    /// A machine hears a message.
    pub(crate) fn handle_heard(&mut self, at: usize) {
        self.load_of(at).heard += 1;
    }

    /// A machine has a heartbeat for another one, or hears one.
    pub(crate) fn handle_beat(&mut self, at: usize) {
        self.load_of(at).beats += 1;
    }

    /// A frame leaves a machine for another one.
    pub(crate) fn handle_bytes(&mut self, from: usize, to: usize, bytes: u64) {
        self.load_of(from).sent_bytes += bytes;
        self.load_of(to).heard_bytes += bytes;
    }

    /// A daemon has turned a caller away.
    pub(crate) fn handle_turned_away(&mut self) {
        self.turned_away += 1;
    }

    /// A process begins on a machine.
    pub(crate) fn handle_place(&mut self, at: usize, process: ProcessId) {
        self.hosts.insert(process, at);
    }

    /// Whether every node has the view.
    pub(super) fn all_agree(&self) -> bool {
        self.last_view.is_some()
    }

    /// Whether every node has the view, and knows where every process is.
    pub(super) fn all_know(&self) -> bool {
        self.all_agree() && (self.lost.is_empty() || self.last_heard.is_some())
    }

    /// A machine has this view.
    pub(crate) fn has_view(&mut self, now: Duration, at: usize, members: usize) {
        // The view of so many members is the last one: no node joins while others die.
        if members != self.members || self.last_view.is_some() || !self.adopted.insert(at) {
            return;
        }
        self.first_view.get_or_insert(now);
        if self.adopted.len() == self.survivors {
            self.last_view = Some(now);
        }
    }

    /// A machine hears that a process is back.
    pub(crate) fn hears(&mut self, now: Duration, at: usize, process: ProcessId) {
        if !self.lost.contains(&process) {
            return;
        }
        self.told.entry(process).or_insert(now);
        if self.heard.insert((at, process)) && self.heard.len() == self.survivors * self.lost.len() {
            self.last_heard = Some(now);
        }
    }

    /// A machine logs an event.
    pub(crate) fn event(&mut self, now: Duration, at: usize, event: &Event) {
        let Some(subject) = &event.subject else {
            match event.event {
                EventName::Frozen => _ = self.frozen.insert(at),
                EventName::Lost | EventName::Restart => self.misses(format!("node {at}: {}", event.text)),
                _ => {}
            }
            return;
        };
        let is_victim = self.victims.contains(subject);
        match (event.event, is_victim) {
            (EventName::Suspect, true) => _ = self.suspected.entry(subject.clone()).or_insert(now),
            (EventName::Confirm, true) => _ = self.confirmed.entry(subject.clone()).or_insert(now),
            (EventName::Suspect, false) => _ = self.slandered.insert(subject.clone()),
            (EventName::Confirm, false) => _ = self.wronged.insert(subject.clone()),
            _ => {}
        }
    }

    /// Something has happened that should not have.
    pub(crate) fn misses(&mut self, what: String) {
        self.missed.get_or_insert(what);
    }

    /// Whether no node was declared dead that is alive, and the job goes on.
    pub(super) fn is_well(&self) -> bool {
        self.excluded.is_empty() && self.missed.is_none()
    }

    /// What has come to pass, in a few words.
    pub(super) fn describe(&self) -> String {
        let Watch { survivors, adopted, heard, lost, frozen, excluded, .. } = self;
        let missed = self.missed.as_deref().unwrap_or("nothing");
        format!(
            "{} of {survivors} have the view, {} of {} know of the processes, {} were frozen, {} declared dead while they were alive; went wrong: {missed}",
            adopted.len(),
            heard.len(),
            survivors * lost.len(),
            frozen.len(),
            excluded.len()
        )
    }

    /// The time at which the last of the victims was confirmed dead.
    pub(super) fn all_confirmed(&self) -> Option<Duration> {
        self.confirmed.values().copied().max().filter(|_| self.confirmed.len() == self.victims.len())
    }
}

/// What a message is about, in a word.
pub(crate) fn kind(message: &PeerMessage) -> &'static str {
    match message {
        PeerMessage::Membership(message) => kind_of_membership(message),
        PeerMessage::Restarted { .. } => "restarted",
        PeerMessage::Query(..) => "query",
        PeerMessage::Answer(..) => "answer",
        PeerMessage::NewHome(_) => "new home",
        PeerMessage::Adopt(_) => "adopt",
        PeerMessage::ToStore(..) => "to protector",
        PeerMessage::ToHome(..) => "to home",
        PeerMessage::ToHost(..) => "to host",
        PeerMessage::OfLife(..) => "of a later life",
        _ => "other",
    }
}

/// The same of one about the membership.
pub(crate) fn kind_of_membership(message: &MembershipMessage) -> &'static str {
    match &message.body {
        MembershipBody::Prepare(_) => "prepare",
        MembershipBody::Promise { .. } => "promise",
        MembershipBody::Accept(_) => "accept",
        MembershipBody::Accepted(_) => "accepted",
        MembershipBody::Rejected { .. } => "rejected",
        MembershipBody::Decided { .. } => "decided",
        MembershipBody::Newest(_) | MembershipBody::Steps(_) | MembershipBody::Forgotten => "view",
        MembershipBody::Request(_) => "request",
        MembershipBody::ProbeRequest(_) | MembershipBody::ProbeResult { .. } => "probe",
        MembershipBody::Refused(_) => "refused",
        MembershipBody::Ask => "ask",
        MembershipBody::Frozen(_) | MembershipBody::Thawed => "cut",
    }
}
