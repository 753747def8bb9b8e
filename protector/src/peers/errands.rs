//! One message over a connection of its own: at most once, in no order with others.

use std::net::SocketAddr;
use std::time::Duration;

use radic_wire::ids::NodeId;
use radic_wire::membership::MembershipMessage;
use radic_wire::peer::PeerMessage;

use super::{Action, CONNECT, ERRANDS, Gone, Peers, Reason, Role, Stage, encoded};
use crate::node::Input;

/// An errand under way.
#[derive(Debug)]
pub(super) struct Errand {
    address: SocketAddr,
    /// The former member that it is for; None while this daemon joins, and knows only an address.
    pub(super) to: Option<NodeId>,
    /// The errand's message, as it is sent.
    pub(super) frame: Vec<u8>,
}

impl Peers {
    /// Sends one message to the daemon that listens there.
    pub fn send_to_seed(&mut self, now: Duration, seed: SocketAddr, message: &MembershipMessage) {
        self.begin_errand(now, Errand { address: seed, to: None, frame: encoded(message) });
        self.check_bounds();
    }

    /// Tells a node that is no member any more, and does not know it, what the members have decided. What gets lost is asked for
    /// again. Other messages are for a member with a link that was lost: the node hears of that until no view holds the member any more.
    pub(super) fn send_to_departed(&mut self, now: Duration, to: &NodeId, address: SocketAddr, message: PeerMessage) {
        let PeerMessage::Membership(message) = message else {
            self.tell(Input::LinkLost(to.clone()));
            return self.actions.push_back(Action::Dropped(Some(to.clone()), Some(address), Reason::Over));
        };
        self.begin_errand(now, Errand { address, to: Some(to.clone()), frame: encoded(&message) });
        self.check_bounds();
    }

    fn begin_errand(&mut self, now: Duration, errand: Errand) {
        let is_told = errand.to.as_ref().is_some_and(|to| self.telling.contains(to));
        if is_told || self.errands >= ERRANDS {
            return self.drop_errand(errand, Reason::Crowd);
        }
        self.telling.extend(errand.to.clone());
        self.errands += 1;
        let address = errand.address;
        self.dial(now, address, Role::Errand(Box::new(errand)), now + CONNECT);
    }

    fn drop_errand(&mut self, errand: Errand, reason: Reason) {
        self.actions.push_back(Action::Dropped(errand.to, Some(errand.address), reason));
    }

    /// The connection of an errand is over. The peer closes it when it has taken the message.
    pub(super) fn handle_errand_over(&mut self, errand: Errand, stage: Stage, reason: &Reason) {
        self.errands -= 1;
        errand.to.iter().for_each(|to| _ = self.telling.remove(to));
        let is_taken = stage == Stage::Open && matches!(reason, Reason::Gone(Gone::Ended));
        if !is_taken {
            self.drop_errand(errand, reason.clone());
        }
    }
}
