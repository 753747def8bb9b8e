//! The socket on which the `radic` command talks to its protector.

use radic_wire::limits;
use radic_wire::local::{Reply, Request, SOCKET_NAME};

use super::local::Service;
use crate::node::{ClientId, Input};

/// Serves commands.
pub struct ForCommands;

impl Service for ForCommands {
    type Request = Request;
    type Reply = Reply;
    const SOCKET: &'static str = SOCKET_NAME;
    const CLIENT: &'static str = "a command";
    const FRAME: usize = limits::LOCAL_FRAME;
    const QUEUE: usize = 4096;
    const CLIENTS: usize = 512;

    fn said(client: u64, _pid: u32, request: Request) -> Input {
        Input::Client(ClientId(client), request)
    }

    fn gone(client: u64) -> Input {
        Input::ClientGone(ClientId(client))
    }
}
