//! What the page and the metrics ask: the state of this node alone, and how much each rank of a job has sent to each.

use std::collections::BTreeMap;
use std::time::Duration;

use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::ids::{JobId, NodeId, ProcessId, Rank};
use radic_wire::limits;
use radic_wire::local::{NodeStatus, Reply, Traffic};
use radic_wire::membership::Role;
use radic_wire::peer::{Answer, Flow, Query};

use super::Node;
use super::calls::GATHER;
use super::client::Client;
use super::numbers::ClientId;
use super::purpose::Purpose;

impl Node {
    pub(super) fn node_status_for(&mut self, now: Duration, client: ClientId) {
        self.clients.insert(client, Client::Gathering);
        let me = vec![self.me().clone()];
        self.gather_from(now, Purpose::Node(client), &Query::Sizes, me, GATHER);
    }

    pub(super) fn finish_node(&mut self, now: Duration, client: ClientId, answers: BTreeMap<NodeId, Answer>) {
        let held = answers.into_values().find_map(|answer| if let Answer::Sizes(sizes) = answer { Some(sizes) } else { None });
        let of_view = self.view().map_or(&[][..], |view| &view.members);
        let count = |role| (role, of_view.iter().filter(|member| member.role == role).count() as u32);
        let members = [Role::Node, Role::Spare, Role::Witness].map(count).to_vec();
        let mut report = self.report(now);
        // If there are too many for one answer, those that run are told of.
        report.processes.sort_by_key(|process| (!process.running, process.job, process.rank));
        report.processes.truncate(limits::PROCESSES_SHOWN);
        let intervals = self.intervals();
        let me = &self.config.me;
        let status = NodeStatus {
            node: me.id.name.clone(),
            role: self.view().and_then(|view| view.get(&me.id)).map_or(me.role, |member| member.role),
            slots: me.slots,
            http: self.config.http,
            view: self.view_number(),
            frozen: self.membership.is_frozen(),
            members,
            report,
            held: held.unwrap_or_default(),
            intervals,
        };
        self.finish(client, Reply::Node(Box::new(status)));
    }

    /// The longest interval of each job with ranks here, in milliseconds.
    fn intervals(&self) -> Vec<(JobId, u64)> {
        let longest = |job: JobId, ranks: &mut dyn Iterator<Item = Rank>| {
            let intervals = ranks.filter_map(|rank| self.interval_of(ProcessId { job, rank }));
            intervals.max().map(|interval| (job, interval.as_millis() as u64))
        };
        self.hosts.values().filter_map(|host| longest(host.job(), &mut host.ranks())).collect()
    }

    pub(super) fn finish_traffic(&mut self, client: ClientId, answers: BTreeMap<NodeId, Answer>, silent: bool) {
        let mut partial = silent;
        let mut flows = Vec::new();
        for answer in answers.into_values() {
            if let Answer::Flows(some) = answer {
                partial |= some.len() >= limits::FLOWS_SHOWN;
                flows.extend(some);
            }
        }
        let mut traffic = traffic(&flows);
        traffic.partial |= partial;
        self.finish(client, Reply::Traffic(traffic));
    }
}

/// Adds up what each rank has received from each. The sender of a stream from the opener is in its name; that of the other direction is
/// the process that receives from the opener. A replica tells of the same streams as a protector: the one that is further counts.
fn traffic(flows: &[Flow]) -> Traffic {
    let mut acceptors: BTreeMap<ConnectionId, ProcessId> = BTreeMap::new();
    let mut received: BTreeMap<(ProcessId, StreamId), u64> = BTreeMap::new();
    for Flow { receiver, stream, bytes } in flows {
        let most = received.entry((*receiver, *stream)).or_default();
        *most = (*most).max(*bytes);
        if stream.from_opener {
            acceptors.insert(stream.connection, *receiver);
        }
    }
    let mut traffic = Traffic::default();
    let mut pairs: BTreeMap<(Rank, Rank), u64> = BTreeMap::new();
    for ((receiver, stream), bytes) in received {
        let opener = stream.connection.opener;
        let sender = if stream.from_opener { Some(opener) } else { acceptors.get(&stream.connection).copied() };
        // A connection from an unprotected peer is named after the process that has accepted it.
        match sender.filter(|sender| sender.job == receiver.job && *sender != receiver) {
            Some(sender) => *pairs.entry((sender.rank, receiver.rank)).or_default() += bytes,
            None => traffic.others = traffic.others.saturating_add(bytes),
        }
    }
    traffic.partial = pairs.len() > limits::PAIRS_SHOWN;
    let largest_first = |pair: &((Rank, Rank), u64)| std::cmp::Reverse(pair.1);
    let mut pairs: Vec<_> = pairs.into_iter().collect();
    if traffic.partial {
        pairs.sort_by_key(largest_first);
        pairs.truncate(limits::PAIRS_SHOWN);
        pairs.sort_by_key(|(pair, _)| *pair);
    }
    traffic.pairs = pairs.into_iter().map(|((sender, receiver), bytes)| (sender, receiver, bytes)).collect();
    traffic
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(job: u64, rank: u32) -> ProcessId {
        ProcessId { job: JobId::from_bits(job), rank: Rank(rank) }
    }

    fn flow(opener: ProcessId, number: u64, from_opener: bool, receiver: ProcessId, bytes: u64) -> Flow {
        Flow { receiver, stream: StreamId { connection: ConnectionId { opener, number }, from_opener }, bytes }
    }

    #[test]
    fn both_directions_of_a_connection_have_their_sender() {
        let (a, b, c) = (process(1, 0), process(1, 1), process(1, 2));
        let flows = [
            flow(a, 1, true, b, 10),
            flow(a, 1, false, a, 3),
            flow(a, 2, true, b, 5),
            flow(c, 1, true, a, 7),
            // The replica is behind.
            flow(a, 1, true, b, 8),
        ];
        let pairs = [(Rank(0), Rank(1), 15), (Rank(1), Rank(0), 3), (Rank(2), Rank(0), 7)];
        assert_eq!(traffic(&flows), Traffic { pairs: pairs.to_vec(), others: 0, partial: false });
    }

    #[test]
    fn what_comes_from_elsewhere_is_in_no_pair() {
        let (a, other) = (process(1, 0), process(2, 0));
        // An unprotected peer, another job, and a connection of which the other end is not known.
        let flows = [flow(a, 1, true, a, 4), flow(other, 1, true, a, 2), flow(a, 2, false, a, 1)];
        assert_eq!(traffic(&flows), Traffic { pairs: Vec::new(), others: 7, partial: false });
    }
}
