//! Processes that seldom come back by their log, because threads of a library in them hand each other work by memory alone. That is said when the first
//! such thread is created. It is part of the image, and a process that is brought back says it again, to its node: so its job need not wait for it until a
//! limit that is made for programs that do come back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use radic_wire::process::{TEXT, ToNode};

use super::Layer;
use super::held::enter;
use crate::callers::BY_MEMORY;

/// The library's place in [`BY_MEMORY`], plus one. 0: none.
static LIBRARY: AtomicUsize = AtomicUsize::new(0);

/// Whether such a library is known.
pub fn are_there() -> bool {
    LIBRARY.load(Ordering::Relaxed) != 0
}

/// The process has threads of this library.
pub fn begin(library: usize) {
    if LIBRARY.swap(library + 1, Ordering::Relaxed) == 0
        && let Some(mut layer) = enter()
    {
        let text = format!(
            "{}: when it is brought back it may do something else than its log says; its job restarts from its beginning then (docs/programs.md)",
            what(library)
        );
        layer.note(&text);
        // A thread that is created once more after the image, and of which the image does not know.
        if layer.observer.is_replaying() {
            layer.tell_doubts();
        }
    }
}

fn what(library: usize) -> String {
    format!("it has threads of {}, which hand each other work by memory alone", BY_MEMORY[library].0)
}

impl Layer {
    /// A process that catches up tells its node whether its kind seldom does.
    pub(crate) fn tell_doubts(&mut self) {
        let Some(library) = LIBRARY.load(Ordering::Relaxed).checked_sub(1).filter(|_| self.replayer.is_none()) else { return };
        let why = what(library).chars().take(TEXT / 4).collect();
        _ = self.node.send(&ToNode::Doubts { why, patience: Duration::from_millis(BY_MEMORY[library].1) });
    }
}
