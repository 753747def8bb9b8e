//! Between the node and its log service, which has threads of its own.

use radic_wire::event::EventName;
use radic_wire::ids::{Epoch, Incarnation, JobId, NodeId, NodeName, ProcessId};
use radic_wire::key::ClusterKey;
use radic_wire::limits;
use radic_wire::local::LogSizes;
use radic_wire::peer::{Answer, Flow};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;

use crate::config::Config;
use crate::logs::{self, Event, Logs, StartError, Status};
use crate::node::Input;
use crate::node::stores::StoreOrder;

/// This node's log service.
pub struct Stores {
    logs: Logs,
    inputs: mpsc::Sender<Input>,
    name: NodeName,
}

impl Stores {
    /// Starts the service; what it has to say becomes inputs.
    pub fn start(config: &Config, key: ClusterKey, inputs: mpsc::Sender<Input>) -> Result<Stores, StartError> {
        let (durable, memory, store) = (config.durable, config.log_memory, config.store.clone());
        let cover = config.encrypt.cover();
        let service = logs::Config { durable, memory, cover, ..logs::Config::new(config.log_listen, store, key) };
        let (logs, events) = logs::start(service)?;
        spawn_local(pass_on(events, inputs.clone()));
        Ok(Stores { logs, inputs, name: config.name.clone() })
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.logs.address().port()
    }

    /// The node is a member.
    pub fn join(&self) {
        self.logs.join();
    }

    /// Does what the node orders. An answer becomes an input.
    pub fn handle(&self, order: StoreOrder) {
        match order {
            StoreOrder::Configure(job, protection) => self.logs.configure(job, protection),
            StoreOrder::SetReplica(process, replica) => self.logs.set_replica(process, replica),
            StoreOrder::LetGo(process) => self.logs.let_go(process),
            StoreOrder::TakeOver(process) => self.logs.take_over(process),
            StoreOrder::RemoveJob(job) => self.logs.remove_job(job),
            StoreOrder::Revive(revival) => self.logs.revive_job(*revival),
            StoreOrder::RefuseBefore(job, incarnations) => self.logs.refuse_before(job, incarnations),
            StoreOrder::ForgetProcess(node, number, process) => {
                let before = self.logs.list(process);
                self.logs.remove_process(process);
                // The service does one thing after the other: an answer to this comes after that.
                let removed = self.logs.list(process);
                let inputs = self.inputs.clone();
                spawn_local(async move {
                    if let (Ok(held), Ok(_)) = (before.await, removed.await) {
                        let end = held.map_or(0, |held| held.journal.end);
                        _ = inputs.send(Input::StoreAnswer(node, number, Answer::Forgotten(end))).await;
                    }
                });
            }
            StoreOrder::Fence(process, incarnation, sets, line) => self.fence(process, incarnation, sets, line),
            StoreOrder::LineComplete(job, epoch, line) => self.logs.line_complete((job, epoch), line),
            StoreOrder::LinesGivenUp(job, epoch, after, to) => self.logs.lines_given_up((job, epoch), (after, to)),
            StoreOrder::HeldOfLine(node, number, job, line) => self.answer_line(node, number, job, line),
            StoreOrder::Silence(process, incarnation) => self.logs.silence(process, incarnation),
            StoreOrder::Causes(ask, job, epoch) => self.tell_causes(ask, job, epoch),
            StoreOrder::StableOf(node, number, process, epoch, stream) => {
                self.answer(node, number, self.logs.stable_of(process, epoch, stream), Answer::Stable);
            }
            StoreOrder::Sizes(node, number, jobs) => self.answer_sizes(node, number, jobs),
            StoreOrder::Flows(node, number, job) => self.answer_flows(node, number, job),
            StoreOrder::List(node, number, process) => self.answer(node, number, self.logs.list(process), Answer::Log),
            StoreOrder::Read(node, number, process, part, position, most) => {
                let read = self.logs.read(process, part, position, most);
                self.answer(node, number, read, |read| Answer::LogBytes(read.map(Into::into)));
            }
        }
    }

    fn tell_causes(&self, ask: u64, job: JobId, epoch: Epoch) {
        let (inputs, answer) = (self.inputs.clone(), self.logs.causes(job, epoch));
        spawn_local(async move {
            if let Ok(sets) = answer.await {
                _ = inputs.send(Input::StoreCauses(ask, sets)).await;
            }
        });
    }

    fn answer_line(&self, node: NodeId, number: u64, job: (JobId, Epoch), line: u64) {
        let (inputs, answer) = (self.inputs.clone(), self.logs.held_of_line(job, line));
        spawn_local(async move {
            if let Ok(held) = answer.await {
                _ = inputs.send(Input::LineHeld(node, number, job, held)).await;
            }
        });
    }

    /// Fences a process.
    fn fence(&self, process: ProcessId, incarnation: Incarnation, sets: Vec<Vec<u8>>, line: u64) {
        let (inputs, answer) = (self.inputs.clone(), self.logs.fence(process, incarnation, sets, line));
        spawn_local(async move {
            // A service that has ended answers nothing. The daemon ends, too.
            if let Ok(answer) = answer.await {
                _ = inputs.send(Input::Fenced(process, incarnation, answer)).await;
            }
        });
    }

    fn answer_sizes(&self, node: NodeId, number: u64, jobs: Vec<JobId>) {
        let (inputs, logs, name) = (self.inputs.clone(), self.logs.clone(), self.name.clone());
        spawn_local(async move {
            let mut sizes = Vec::new();
            for job in jobs {
                sizes.extend(logs.status(job).await.unwrap_or_default());
            }
            sizes.truncate(limits::PROCESSES_SHOWN);
            let sizes_of = |status: Status| LogSizes {
                node: name.clone(),
                journal: status.usage.journal,
                payload: status.usage.payload,
                images: status.usage.images,
                committed: status.usage.committed,
                committed_ms: status.committed_ms,
                waits: status.waits,
            };
            let sizes = sizes.into_iter().map(|(process, status)| (process, sizes_of(status))).collect();
            _ = inputs.send(Input::StoreAnswer(node, number, Answer::Sizes(sizes))).await;
        });
    }

    /// One process after the other, so that logs that arrive meanwhile do not wait for all of them.
    fn answer_flows(&self, node: NodeId, number: u64, job: JobId) {
        let (inputs, logs) = (self.inputs.clone(), self.logs.clone());
        spawn_local(async move {
            let mut flows = Vec::new();
            for (receiver, _) in logs.status(job).await.unwrap_or_default() {
                let held = logs.list(receiver).await.ok().flatten();
                let streams = held.into_iter().flat_map(|held| held.streams);
                flows.extend(streams.map(|held| Flow { receiver, stream: held.stream, bytes: held.bytes.end }));
                if flows.len() > limits::FLOWS_SHOWN {
                    // The node that asks sees by the number that some are missing.
                    flows.truncate(limits::FLOWS_SHOWN);
                    break;
                }
            }
            _ = inputs.send(Input::StoreAnswer(node, number, Answer::Flows(flows))).await;
        });
    }

    fn answer<T: 'static>(
        &self,
        node: NodeId,
        number: u64,
        answer: oneshot::Receiver<T>,
        of: impl FnOnce(T) -> Answer + 'static,
    ) {
        let inputs = self.inputs.clone();
        spawn_local(async move {
            // A service that has ended gives no answer. The daemon ends, too.
            if let Ok(answer) = answer.await {
                _ = inputs.send(Input::StoreAnswer(node, number, of(answer))).await;
            }
        });
    }
}

async fn pass_on(mut events: mpsc::Receiver<Event>, inputs: mpsc::Sender<Input>) {
    while let Some(event) = events.recv().await {
        _ = inputs.send(event.into()).await;
    }
    // The processes that are protected here would wait for ever. So the daemon ends, because a protector's death is its node's.
    let text = "the log service has ended: this node leaves the cluster".to_owned();
    _ = inputs.send(Input::StoreEvent(EventName::Store, None, text)).await;
    _ = inputs.send(Input::Leave).await;
}
