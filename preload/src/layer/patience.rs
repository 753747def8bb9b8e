//! Waits of the program for what RADIC needs: the terminal hears of those that are long.

use radic_wire::process::ToNode;

use super::Layer;
use crate::sys;

/// A wait is long after this, in nanoseconds. A protector that is lost is replaced in a fraction of it.
const LONG: u64 = 10_000_000_000;

/// One wait.
pub struct Patience {
    since: u64,
    is_told: bool,
}

impl Patience {
    /// It begins.
    pub fn begin() -> Self {
        Patience { since: sys::now(), is_told: false }
    }

    /// How long it lasts already, in nanoseconds.
    pub fn lasts(&self) -> u64 {
        sys::now() - self.since
    }

    /// Whether it has become long: true once.
    fn take_long(&mut self) -> bool {
        let is_long = !self.is_told && self.lasts() >= LONG;
        self.is_told |= is_long;
        is_long
    }
}

impl Layer {
    /// Tells the node, once, what a call of the program waits for if the wait is long.
    pub fn tell_if_long(&mut self, patience: &mut Patience, what: &str) {
        if patience.take_long() {
            let seconds = LONG / 1_000_000_000;
            _ = self.node.send(&ToNode::Kept(format!("a call of its program has waited for {seconds} s, because {what}")));
        }
    }
}
