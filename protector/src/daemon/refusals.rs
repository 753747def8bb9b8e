//! Peers that were refused, for the event log. A flood is counted, not logged, so that it cannot push out what matters.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use radic_wire::event::EventName;
use tokio::sync::mpsc;

use crate::node::Input;

/// Refusals that are logged in one period; the rest is counted.
const LOGGED: u32 = 10;
const PERIOD: Duration = Duration::from_secs(1);

/// Reports refusals to the node.
pub struct Refusals {
    inputs: mpsc::Sender<Input>,
    state: RefCell<State>,
}

struct State {
    since: Instant,
    logged: u32,
    suppressed: u64,
}

impl Refusals {
    /// None yet.
    pub fn new(inputs: mpsc::Sender<Input>) -> Self {
        Refusals { inputs, state: RefCell::new(State { since: Instant::now(), logged: 0, suppressed: 0 }) }
    }

    /// A peer was refused.
    pub async fn note(&self, text: String) {
        let suppressed = {
            let mut state = self.state.borrow_mut();
            if state.since.elapsed() >= PERIOD {
                state.since = Instant::now();
                state.logged = 0;
            }
            if state.logged == LOGGED {
                state.suppressed += 1;
                return;
            }
            state.logged += 1;
            std::mem::take(&mut state.suppressed)
        };
        let text = if suppressed > 0 { format!("{text} ({suppressed} more were refused before)") } else { text };
        _ = self.inputs.send(Input::Note(EventName::Refused, text)).await;
    }
}
