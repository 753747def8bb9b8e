//! Processes that are restored while their last image is still on its way. The node does not know of them before that image is here and sound: then such a process takes its place among those
//! that are being started. If it comes to nothing, it is ended.

use std::collections::HashMap;

use radic_wire::ids::ProcessId;

use super::deaths::Return;
use super::launcher::Started;
use crate::fetching::OrderNumber;
use crate::node::host::SpawnError;

/// A process of which the node does not know yet.
pub struct Early {
    /// The order to bring it back.
    pub of: OrderNumber,
    /// The order to start it.
    pub number: u64,
    pub back: Return,
    /// What came of starting it, once that is known.
    pub result: Option<Result<Started, SpawnError>>,
}

/// All of them: at most one of each process.
#[derive(Default)]
pub struct Earlies(HashMap<ProcessId, Early>);

impl Earlies {
    /// Adds a process. The one in whose place it is, if there is one, is to be ended.
    pub fn add(&mut self, id: ProcessId, early: Early) -> Option<Early> {
        self.0.insert(id, early)
    }

    /// The thread that starts processes has carried out this order. Gives the result back if it is of none of these.
    pub fn handle_started(
        &mut self,
        id: ProcessId,
        number: u64,
        result: Result<Started, SpawnError>,
    ) -> Option<Result<Started, SpawnError>> {
        match self.0.get_mut(&id).filter(|early| early.number == number) {
            Some(early) => {
                early.result = Some(result);
                None
            }
            None => Some(result),
        }
    }

    /// Takes the process that was begun for this order, if there is one.
    pub fn take(&mut self, id: ProcessId, of: OrderNumber) -> Option<Early> {
        self.0.get(&id).is_some_and(|early| early.of == of).then(|| self.0.remove(&id)).flatten()
    }

    /// Takes all.
    pub fn drain(&mut self) -> Vec<(ProcessId, Early)> {
        self.0.drain().collect()
    }

    /// Which processes they are.
    pub fn ids(&self) -> impl Iterator<Item = &ProcessId> {
        self.0.keys()
    }
}
