//! Between the node and its log service, which has threads of its own.

use radic_wire::event::EventName;
use radic_wire::ids::NodeName;
use radic_wire::key::ClusterKey;
use radic_wire::peer::Answer;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;

use crate::config::Config;
use crate::logs::{self, Event, Logs, StartError, StoreOrder};
use crate::node::Input;

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

    /// Does what the node orders. A reply becomes an input.
    pub fn handle(&self, order: StoreOrder) {
        let name = self.name.clone();
        match order {
            StoreOrder::Fence(process, incarnation, sets, line) => {
                let answer = self.logs.fence(process, incarnation, sets, line);
                self.pass_on_reply(answer, move |answer| Input::Fenced(process, incarnation, answer));
            }
            StoreOrder::Read(node, number, process, part, position, most) => {
                let read = self.logs.read(process, part, position, most);
                self.pass_on_reply(read, move |read| Input::StoreAnswer(node, number, Answer::LogBytes(read.map(Into::into))));
            }
            order => self.pass_on_reply(self.logs.order(order), move |reply| Input::reply(&name, reply)),
        }
    }

    fn pass_on_reply<T: 'static>(&self, reply: oneshot::Receiver<T>, of: impl FnOnce(T) -> Input + 'static) {
        let inputs = self.inputs.clone();
        spawn_local(async move {
            // Nothing comes for an order that asks for nothing. Nor does a service that has ended reply: then the daemon ends, too.
            if let Ok(reply) = reply.await {
                _ = inputs.send(of(reply)).await;
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
