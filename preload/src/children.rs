//! The children of the program, and what becomes of them for it when it is brought back.
//!
//! Children are not protected: a death of the node takes them along, and a restart brings back their parent alone. To the parent
//! they have ended, each by SIGKILL, as a parent learns it of any child: by SIGCHLD, and by what `wait` and its kin say. A server
//! that looks after its workers starts new ones then; without that it would wait forever for children that are not there, and its
//! callers would wait with it.
//!
//! A process that catches up is told only when it is live: its recorded run still had those children. Only a `wait` that waits is
//! told at once, because in the recorded run it returned. Atomics alone, because a handler of SIGCHLD may come at any moment.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

/// Most children that are known at once; of more a restart says nothing.
const CHILDREN: usize = 1024;

/// The pid of a child; negative, if it was lost with an earlier incarnation; 0: none.
static KNOWN: [AtomicI32; CHILDREN] = [const { AtomicI32::new(0) }; CHILDREN];
/// The process was brought back, and catches up.
static CATCHES_UP: AtomicBool = AtomicBool::new(false);
/// It has lost children, and was not told by a signal.
static TO_TELL: AtomicBool = AtomicBool::new(false);

/// The children that a wait is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The one with this pid.
    One(i32),
    /// Any.
    Any,
}

impl Which {
    /// What the first argument of `waitpid` means. None: a group of processes that is not the caller's own, of which nothing is known here.
    pub fn of(pid: i32) -> Option<Which> {
        match pid {
            1.. => Some(Which::One(pid)),
            -1 | 0 => Some(Which::Any),
            _ => None,
        }
    }

    fn has(self, pid: i32) -> bool {
        self == Which::Any || self == Which::One(pid)
    }
}

fn replace(known: &AtomicI32, before: i32, after: i32) -> bool {
    known.compare_exchange(before, after, Relaxed, Relaxed).is_ok()
}

/// The program has this child from now on.
pub fn begun(pid: i32) {
    // The pid is reused: forget the lost child that had it.
    let again = KNOWN.iter().any(|known| replace(known, -pid, pid));
    _ = again || KNOWN.iter().any(|known| replace(known, 0, pid));
}

/// Whether the program has a child.
pub fn are_there() -> bool {
    KNOWN.iter().any(|known| known.load(Relaxed) > 0)
}

/// The program has heard of the end of this child.
pub fn ended(pid: i32) {
    _ = KNOWN.iter().any(|known| replace(known, pid, 0));
}

/// A process that was forked has none of its parent's.
pub fn forget() {
    KNOWN.iter().for_each(|known| known.store(0, Relaxed));
    CATCHES_UP.store(false, Relaxed);
}

/// The process was brought back, without its children.
pub fn handle_restored() {
    CATCHES_UP.store(true, Relaxed);
    for known in &KNOWN {
        let pid = known.load(Relaxed);
        known.store(-pid.abs(), Relaxed);
    }
}

/// The process is live, and is to be told of the children that it has lost.
pub fn handle_live() {
    CATCHES_UP.store(false, Relaxed);
    TO_TELL.store(KNOWN.iter().any(|known| known.load(Relaxed) < 0), Relaxed);
}

/// Whether the process is to be told now, by SIGCHLD: asked when no thread is in the layer, which the handler of that signal may need.
#[inline]
pub fn take_to_tell() -> bool {
    TO_TELL.load(Relaxed) && TO_TELL.swap(false, Relaxed)
}

/// What a wait for these is told of children that were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The one with this pid has ended by SIGKILL.
    Ended(i32),
    /// There is one, and its end is not known yet.
    Later,
    /// Nothing.
    None,
}

/// Looks for a lost child; `waits`: the call waits until there is one. `takes`: the program hears of the end, and then the child
/// is forgotten.
pub fn look(which: Which, waits: bool, takes: bool) -> Lost {
    let lost = KNOWN.iter().find_map(|known| {
        let pid = known.load(Relaxed);
        (pid < 0 && which.has(-pid)).then_some((known, pid))
    });
    match lost {
        None => Lost::None,
        Some(_) if CATCHES_UP.load(Relaxed) && !waits => Lost::Later,
        Some((known, pid)) if !takes || replace(known, pid, 0) => Lost::Ended(-pid),
        Some(_) => look(which, waits, takes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, for there is one table.
    #[test]
    fn children_that_are_lost_have_ended_once() {
        [11, 12, 13].into_iter().for_each(begun);
        ended(12);
        assert_eq!(look(Which::Any, true, true), Lost::None, "they live");
        handle_restored();
        begun(14);
        assert_eq!(look(Which::One(11), false, true), Lost::Later, "then it had not ended");
        assert_eq!(look(Which::One(12), true, true), Lost::None, "it had ended");
        assert_eq!(look(Which::One(13), true, true), Lost::Ended(13), "then it ended here");
        assert_eq!(look(Which::One(13), true, true), Lost::None, "that is told once");
        handle_live();
        assert!(take_to_tell() && !take_to_tell());
        assert_eq!(look(Which::Any, false, false), Lost::Ended(11));
        assert_eq!(look(Which::Any, false, true), Lost::Ended(11));
        assert_eq!(look(Which::Any, false, true), Lost::None, "the new one lives");
        handle_live();
        assert!(!take_to_tell());
        begun(11);
        handle_restored();
        begun(11);
        assert_eq!(look(Which::One(11), true, true), Lost::None, "a new one has that pid");
        forget();
        handle_restored();
        handle_live();
        assert!(!take_to_tell(), "a forked process has none");
    }

    #[test]
    fn which_children_a_wait_is_for() {
        assert_eq!([7, -1, 0, -7].map(Which::of), [Some(Which::One(7)), Some(Which::Any), Some(Which::Any), None]);
    }
}
