//! What this node remembers of what happened: the last [`limits::EVENTS`] events.

use std::collections::VecDeque;

use radic_wire::event::{Event, EventName};
use radic_wire::ids::{JobId, NodeName, Rank};
use radic_wire::limits;

/// What an event is about.
#[derive(Debug, Default, Clone)]
pub struct About {
    /// The node it happened to, where that is not the reporting one.
    pub subject: Option<NodeName>,
    /// The job concerned.
    pub job: Option<JobId>,
    /// The rank concerned.
    pub rank: Option<Rank>,
}

impl About {
    /// About a node.
    pub fn node(name: &NodeName) -> Self {
        About { subject: Some(name.clone()), ..About::default() }
    }

    /// About a job.
    pub fn job(job: JobId) -> Self {
        About { job: Some(job), ..About::default() }
    }

    /// About a rank.
    pub fn rank(job: JobId, rank: Rank) -> Self {
        About { job: Some(job), rank: Some(rank), ..About::default() }
    }
}

/// The node's memory of events.
#[derive(Debug)]
pub struct EventLog {
    node: NodeName,
    next_seq: u64,
    events: VecDeque<Event>,
}

impl EventLog {
    /// An empty log. Numbers start at the wall clock's microseconds: a node that comes back goes on above its old ones.
    pub fn new(node: NodeName, wall_us: u64) -> Self {
        EventLog { node, next_seq: wall_us, events: VecDeque::new() }
    }

    /// Records an event; `at_ms` is milliseconds since 1970.
    pub fn record(&mut self, at_ms: u64, event: EventName, about: About, text: String) -> &Event {
        if self.events.len() == limits::EVENTS {
            self.events.pop_front();
        }
        let About { subject, job, rank } = about;
        let (node, seq) = (self.node.clone(), self.next_seq);
        self.next_seq += 1;
        self.events.push_back(Event { at_ms, node, seq, event, subject, job, rank, text });
        self.events.back().expect("just pushed")
    }

    /// All that is remembered, oldest first.
    pub fn all(&self) -> Vec<Event> {
        self.events.iter().cloned().collect()
    }
}
