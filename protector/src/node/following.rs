//! Commands that read or follow the events of all nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use radic_wire::event::{Event, EventName};
use radic_wire::ids::{NodeId, NodeName};
use radic_wire::local::Reply;
use radic_wire::peer::{Answer, PeerMessage, Query};

use super::Node;
use super::client::{Client, Passed};
use super::numbers::ClientId;
use super::purpose::Purpose;

/// Events in one message to a command.
const EVENTS_AT_ONCE: usize = 256;

impl Node {
    pub(super) fn events_for(&mut self, now: Duration, client: ClientId, follow: bool) {
        if !follow {
            return self.gather_for(now, client, Purpose::Events(client), &Query::Events);
        }
        let first = !self.clients.values().any(|c| matches!(c, Client::Following { .. }));
        self.clients.insert(client, Client::Following { sent: BTreeMap::new(), early: Some(Vec::new()) });
        if first {
            self.tell_all(&PeerMessage::Subscribe);
        }
        self.gather(now, Purpose::Events(client), &Query::Events);
    }

    pub(super) fn subscribe_to(&mut self, joined: &[NodeId]) {
        if self.clients.values().any(|c| matches!(c, Client::Following { .. })) {
            joined.iter().for_each(|node| self.send(node, PeerMessage::Subscribe));
        }
    }

    pub(super) fn unsubscribe_if_last(&mut self) {
        if !self.clients.values().any(|c| matches!(c, Client::Following { .. })) {
            self.tell_all(&PeerMessage::Unsubscribe);
        }
    }

    /// Events of a node that were subscribed to.
    pub(super) fn handle_events(&mut self, events: &[Event]) {
        let following = self.clients.iter().filter(|(_, c)| matches!(c, Client::Following { .. })).map(|(id, _)| *id);
        for client in following.collect::<Vec<_>>() {
            self.pass_events(client, events.to_vec());
        }
    }

    /// Passes on the events that the command does not have yet. Until the past ones are there, new ones wait.
    fn pass_events(&mut self, client: ClientId, events: Vec<Event>) {
        let Some(Client::Following { sent, early }) = self.clients.get_mut(&client) else { return };
        if let Some(early) = early {
            return early.extend(events);
        }
        let new: Vec<_> = events.into_iter().filter(|e| is_new(sent, e)).collect();
        for some in new.chunks(EVENTS_AT_ONCE) {
            self.reply(client, Reply::Events(some.to_vec()));
        }
    }

    pub(super) fn finish_events(&mut self, client: ClientId, answers: BTreeMap<NodeId, Answer>) {
        let of = |answer| if let Answer::Events(events) = answer { events } else { Vec::new() };
        let mut events: Vec<_> = answers.into_values().flat_map(of).collect();
        events.sort_by(|a, b| (a.at_ms, &a.node, a.seq).cmp(&(b.at_ms, &b.node, b.seq)));
        if let Some(Client::Following { early, .. }) = self.clients.get_mut(&client) {
            let early = early.take().unwrap_or_default();
            // After sorting by time, the events of one node are still in their order: its clock does not go back.
            self.pass_events(client, events);
            return self.pass_events(client, early);
        }
        for some in events.chunks(EVENTS_AT_ONCE) {
            self.reply(client, Reply::Events(some.to_vec()));
        }
        self.finish(client, Reply::Done);
    }
}

/// Whether the command does not have this event yet. Notes that it has it now.
fn is_new(sent: &mut BTreeMap<NodeName, Passed>, event: &Event) -> bool {
    let passed = sent.get(&event.node);
    // A daemon numbers its events from the clock of its machine, which may have been set back since the daemon ran last.
    let is_start = event.event == EventName::Start && passed.is_none_or(|passed| passed.start != Some(event.seq));
    let is_new = is_start || passed.is_none_or(|passed| passed.last < event.seq);
    if is_new {
        let start = if is_start { Some(event.seq) } else { passed.and_then(|passed| passed.start) };
        sent.insert(event.node.clone(), Passed { start, last: event.seq });
    }
    is_new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_passed_once_whatever_the_clocks_of_daemons_that_come_back() {
        let mut sent = BTreeMap::new();
        let mut pass = |seq, event| {
            let (at_ms, node, text) = (0, "n1".parse().unwrap(), String::new());
            is_new(&mut sent, &Event { at_ms, node, seq, event, subject: None, job: None, rank: None, text })
        };
        assert!(pass(1_000, EventName::Start) && pass(1_001, EventName::View) && !pass(1_001, EventName::View));
        assert!(!pass(1_000, EventName::Start), "the same once more");
        assert!(pass(400, EventName::Start), "the clock was set back before it came again");
        assert!(pass(401, EventName::View) && !pass(400, EventName::Start) && !pass(401, EventName::View));
        assert!(pass(5_000, EventName::Start) && !pass(4_000, EventName::View) && pass(5_001, EventName::View));
    }
}
