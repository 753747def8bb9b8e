//! What a node sees of the processes of its machine, and of its log service: they start, and say where they are dialed; each has an image that is committed.
//! Bringing one back takes no time.

use radic_protector::node::host::HostOutput;
use radic_protector::node::stores::StoreOrder;
use radic_protector::node::{Input, ObserverId};
use radic_protector::store::Restart;
use radic_wire::PROTOCOL_VERSION;
use radic_wire::ids::{Incarnation, JobId, ProcessId, Rank};
use radic_wire::job::{JobSpec, MapBy, RestartOn};
use radic_wire::local::Request;
use radic_wire::log::ImageRange;
use radic_wire::peer::Answer;
use radic_wire::process::{FromNode, Interval, Point, Protection, ToNode};
use serde_bytes::ByteBuf;

use super::world::World;

/// Numbers of observers: rank and incarnation in one.
const INCARNATION: u64 = 1 << 32;

fn observer_of(rank: Rank, incarnation: Incarnation) -> ObserverId {
    ObserverId(u64::from(rank.0) + INCARNATION * u64::from(incarnation.restart))
}

fn pid_of(rank: Rank) -> u32 {
    1_000 + rank.0
}

/// A job of so many ranks, one on each of the first nodes.
fn spec(ranks: u32) -> JobSpec {
    JobSpec {
        program: ByteBuf::from("/bin/x"),
        args: vec![ByteBuf::from("x")],
        env: Vec::new(),
        templates: Vec::new(),
        dir: ByteBuf::from("/"),
        ranks,
        nodes: Vec::new(),
        map_by: MapBy::Node,
        umask: 0o022,
        protection: Protection { interval: Interval::Never, ..Protection::default() },
        mtbf_s: 86_400,
        restart_on: RestartOn::Protector,
        on_loss: radic_wire::job::OnLoss::Restart,
        life: 0,
    }
}

impl World {
    /// Starts a job of so many ranks from the first node.
    pub fn start_job(&mut self, ranks: u32) {
        self.ask(0, Request::Hello { version: PROTOCOL_VERSION });
        self.ask(0, Request::Run { spec: Box::new(spec(ranks)), attach: false });
    }

    /// A node wants something done with a process.
    pub(super) fn process(&mut self, at: usize, job: JobId, output: HostOutput) {
        match output {
            HostOutput::Spawn(rank, _) => {
                let process = ProcessId { job, rank };
                self.watch.hosts.insert(process, at);
                self.soon(at, Input::Spawned(process, Ok(pid_of(rank))));
                self.say(at, rank, Incarnation::FIRST, ToNode::Join { version: PROTOCOL_VERSION, process });
            }
            HostOutput::Restore(rank, order) => {
                let (process, incarnation) = (ProcessId { job, rank }, order.incarnation);
                let point = Point { incarnation, cut: 0, output: [0; 2], fences: 0, pmi: (false, false) };
                self.watch.hosts.insert(process, at);
                self.soon(at, Input::Fetched(process, Ok(())));
                self.soon(at, Input::Spawned(process, Ok(pid_of(rank))));
                self.say(at, rank, incarnation, ToNode::Restored { version: PROTOCOL_VERSION, process, point });
            }
            HostOutput::Signal(rank, signal) => self.watch.misses(format!("rank {} is sent signal {signal}", rank.0)),
            HostOutput::Over => self.watch.misses(format!("the job is over on node {at}")),
            _ => {}
        }
    }

    fn say(&mut self, at: usize, rank: Rank, incarnation: Incarnation, message: ToNode) {
        self.soon(at, Input::Observer(observer_of(rank, incarnation), pid_of(rank), message));
    }

    /// A node tells a process something.
    pub(super) fn tell_process(&mut self, at: usize, observer: ObserverId, message: FromNode) {
        let (rank, incarnation) =
            (Rank((observer.0 % INCARNATION) as u32), Incarnation::restarted((observer.0 / INCARNATION) as u32));
        let door = || ToNode::Door(([10, 0, 0, 0], 9_000 + incarnation.restart as u16).into());
        match message {
            FromNode::Joined { .. } => {
                self.watch.joined += 1;
                self.say(at, rank, incarnation, door());
            }
            FromNode::Restart(_) => {
                self.watch.returned += 1;
                self.say(at, rank, incarnation, door());
                self.say(at, rank, incarnation, ToNode::Live { events: 0, input: Some(0) });
                self.say(at, rank, incarnation, ToNode::LogRead);
            }
            FromNode::Restarted { process, .. } => self.watch.process_hears(self.now, rank, process),
            FromNode::Refused(why) => self.watch.misses(format!("rank {} is refused: {why}", rank.0)),
            _ => {}
        }
    }

    /// A node tells its log service something.
    pub(super) fn order_store(&mut self, at: usize, order: StoreOrder) {
        let answer = match order {
            StoreOrder::Fence(process, incarnation, ..) => {
                let (images, range) = (vec![(1, 1)], ImageRange::default());
                let restart = Restart { images, range, cut: 0, log_end: 0, held: Vec::new(), causes: (0, Vec::new()) };
                return self.soon(at, Input::Fenced(process, incarnation, Ok(restart)));
            }
            StoreOrder::ForgetProcess(node, number, _) => (node, number, Answer::Forgotten(0)),
            StoreOrder::StableOf(node, number, ..) => (node, number, Answer::Stable(0)),
            _ => return,
        };
        let (node, number, answer) = answer;
        self.soon(at, Input::StoreAnswer(node, number, answer));
    }
}
