//! Which images are sent, to nodes that bring processes back: few at once, the others in turn.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use radic_wire::ids::ProcessId;

use super::LogServer;
use super::types::{Action, ConnectionNumber, Reason, Role};

/// Images that are sent at once.
const AT_ONCE: usize = 4;
/// Images that may wait for that.
const WAITING: usize = 1_024;

/// An image that a node wants, on a connection that is for that alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    connection: ConnectionNumber,
    process: ProcessId,
    image: u64,
    /// The image's length, if it was held when it was asked for.
    bytes: Option<u64>,
}

/// The images that are wanted.
#[derive(Debug, Clone, Default)]
pub(super) struct Sending {
    running: BTreeSet<ConnectionNumber>,
    waiting: VecDeque<Wish>,
}

impl Sending {
    fn check_invariants(&self) {
        assert!(self.running.len() <= AT_ONCE, "no more images are sent at once than may be");
        assert!(self.waiting.is_empty() || self.running.len() == AT_ONCE, "no image waits without a reason");
        assert!(self.waiting.len() <= WAITING, "the queue is bounded");
    }
}

impl LogServer {
    /// A node wants an image of the process that it brings back. Returns whether it gets an answer: then the driver reads the
    /// connection no more and keeps it until [`Action::SendImage`]. Otherwise the connection is closed.
    #[must_use]
    pub fn handle_wish(&mut self, now: Duration, connection: ConnectionNumber, image: u64) -> bool {
        self.now = now;
        let Some(Role::Fetcher(process)) = self.role(connection) else {
            self.refuse(connection, Reason::Protocol("it wants an image, and has not said so before"));
            return false;
        };
        if self.sending.waiting.len() >= WAITING {
            self.tell_intruder("an image was not sent: too many are wanted at once");
            self.close(connection, Reason::Busy);
            return false;
        }
        self.forget(connection, "an image is sent on it");
        let bytes = self.store.committed_image(process, image);
        self.sending.waiting.push_back(Wish { connection, process, image, bytes });
        self.send_images();
        true
    }

    /// An image was sent, or cannot be: its receiver is gone, or takes nothing.
    pub fn handle_image_sent(&mut self, now: Duration, connection: ConnectionNumber) {
        self.now = now;
        self.sending.running.remove(&connection);
        self.send_images();
    }

    fn send_images(&mut self) {
        while self.sending.running.len() < AT_ONCE
            && let Some(wish) = self.sending.waiting.pop_front()
        {
            let Wish { connection, process, image, bytes } = wish;
            self.sending.running.insert(connection);
            self.actions.push_back(Action::SendImage(connection, process, image, bytes));
        }
        self.sending.check_invariants();
    }
}
