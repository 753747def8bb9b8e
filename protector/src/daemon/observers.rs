//! The socket on which the observers of this node's processes talk to their protector. The kernel says which process is at the
//! other end, and the node knows which ones it has launched: no other process is heard.

use radic_ckpt::control;
use radic_wire::ids::ProcessId;
use radic_wire::process::{FRAME, FromNode, SOCKET_NAME, ToNode};

use super::local::Service;
use crate::node::{Input, ObserverId};

/// Serves observers.
pub struct ForObservers;

impl Service for ForObservers {
    type Request = ToNode;
    type Reply = FromNode;
    const SOCKET: &'static str = SOCKET_NAME;
    const CLIENT: &'static str = "a process";
    const FRAME: usize = FRAME;
    // A process that computes for long does not read, and each of its connections (16 Ki) may be forgotten meanwhile.
    const QUEUE: usize = 32_768;
    const CLIENTS: usize = 16_384;

    fn said(client: u64, pid: u32, message: ToNode) -> Input {
        Input::Observer(ObserverId(client), pid, message)
    }

    fn gone(client: u64) -> Input {
        Input::ObserverGone(ObserverId(client))
    }

    fn hands_over(first: &ToNode) -> Option<ProcessId> {
        match first {
            ToNode::Pmi { process } => Some(*process),
            _ => None,
        }
    }

    /// A process has its library's signal handler before it connects.
    fn nudge(pid: u32) {
        // An engine that is saving the process does it afterwards.
        if let Err(error) = control::nudge(pid as i32) {
            tracing::debug!(pid, %error, "not nudged");
        }
    }
}
