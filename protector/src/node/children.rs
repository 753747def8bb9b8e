//! Children of ranks that take connections at listeners of their rank's (`preload/src/ops/child.rs`).

use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::determinant::StreamId;
use radic_wire::ids::ProcessId;
use radic_wire::peer::Unprotected;
use radic_wire::process::{FromNode, StreamEnd};

use super::numbers::ObserverId;
use super::{Node, Output};

impl Node {
    /// A child of a process of this node is about to take connections. A caller that finds no protected process there sends the
    /// child what its program says, and nothing else.
    pub(super) fn child_listens(
        &mut self,
        now: Duration,
        observer: ObserverId,
        (pid, version): (u32, u16),
        process: ProcessId,
        address: SocketAddr,
    ) {
        if !self.speaks(observer, version) {
            return;
        }
        let inherited = self.registry.hand_to_child(process, address);
        self.outputs.push_back(Output::Observer(observer, FromNode::Inherited(inherited)));
        let observed = self.observers.processes.get_mut(&process);
        if inherited && observed.is_some_and(|observed| !std::mem::replace(&mut observed.serving_child_told, true)) {
            let text = format!(
                "a child of rank {} (pid {pid}) takes connections at {address}: what passes there is not logged, and a restart does not \
                 bring the child back (said once for each rank)",
                process.rank
            );
            self.record_unprotected(now, process, Unprotected::ServingChild, text);
        }
    }

    /// A child has accepted a connection: which caller is that of?
    pub(super) fn tell_child_of_caller(&mut self, observer: ObserverId, version: u16, process: ProcessId, from: SocketAddr) {
        if self.speaks(observer, version) {
            let caller = self.registry.caller(process, from);
            self.outputs.push_back(Output::Observer(observer, FromNode::Caller { ask: 0, caller }));
        }
    }

    /// A child sends a protected caller away, which meant the rank: its connection is over. Not before it has greeted: a caller
    /// may give a call up, and come once more from the same address.
    pub(super) fn child_refuses(&mut self, observer: ObserverId, version: u16, process: ProcessId, from: SocketAddr) {
        if !self.speaks(observer, version) {
            return;
        }
        let caller = self.registry.caller(process, from);
        if let Some(connection) = caller {
            self.registry.greeted(process, from);
            let stream = StreamId { connection, from_opener: false };
            self.handle_finished(process, stream, StreamEnd { offset: 0, closed: true, received: 0 });
        }
        self.outputs.push_back(Output::Observer(observer, FromNode::Caller { ask: 0, caller }));
    }
}
