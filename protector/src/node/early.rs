//! Messages that came before the view that makes their sender a member, and questions that are to be answered in a view that is
//! not here yet. A decision goes down a tree, so a node that has just joined, or that has heard of a death, may speak to a node
//! that has not heard of it yet. The link has acknowledged the message, so it would not be sent again.

use radic_wire::ids::NodeId;
use radic_wire::peer::PeerMessage;
use radic_wire::{codec, limits};

/// Messages that are kept: many times what one node says within the milliseconds that a view takes.
const MESSAGES: usize = 1024;
/// Bytes that are kept: one message of the greatest length fits.
const BYTES: usize = limits::PEER_FRAME;

/// What waits for the next view, in the order in which it came.
#[derive(Debug, Default)]
pub struct Early {
    held: Vec<(NodeId, PeerMessage)>,
    bytes: usize,
    /// Something was dropped since the last view: said once.
    overflowed: bool,
}

impl Early {
    /// Keeps a message. If there is no room it is dropped; the text says so, unless that was said since the last view.
    pub fn hold(&mut self, from: &NodeId, message: PeerMessage) -> Result<(), Option<String>> {
        // What cannot be encoded cannot have come.
        let size = codec::encode(&message, limits::PEER_FRAME).map_or(BYTES + 1, |bytes| bytes.len());
        if self.held.len() >= MESSAGES || self.bytes + size > BYTES {
            let told = std::mem::replace(&mut self.overflowed, true);
            let (count, bytes) = (self.held.len(), self.bytes);
            let text = || {
                format!(
                    "messages of {from}, which knows a later view, are dropped: {count} with {bytes} bytes wait for it already"
                )
            };
            return Err((!told).then(text));
        }
        self.bytes += size;
        self.held.push((from.clone(), message));
        assert!(self.held.len() <= MESSAGES && self.bytes <= BYTES, "{} messages, {} bytes", self.held.len(), self.bytes);
        Ok(())
    }

    /// There is a new view: everything that was kept. What is still early is to be kept again.
    pub fn take(&mut self) -> Vec<(NodeId, PeerMessage)> {
        std::mem::take(self).held
    }
}
