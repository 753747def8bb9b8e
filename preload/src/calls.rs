//! Connect attempts that do not wait and reach no protected process. The socket holds the result until the program reads it
//! (`SO_ERROR`). A restarted process has new sockets, so the program is told ECONNREFUSED, as when it uses a connection that it
//! had with an unprotected program.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags};

use crate::fds::{self, Kind};
use crate::sys;

/// Some call is lost.
static LOST: AtomicBool = AtomicBool::new(false);

/// The calls, by their descriptors.
#[derive(Debug, Default)]
pub struct Calls {
    /// The program was told that they are under way.
    open: BTreeSet<i32>,
    /// Those of an incarnation before.
    lost: BTreeSet<i32>,
}

/// Whether `fd` may be that of a lost call.
pub fn may_be_lost(fd: i32) -> bool {
    LOST.load(Ordering::Relaxed) && fds::kind(fd) == Kind::Other
}

impl Calls {
    /// The program has called on `fd`. `is_open`: it was told that the call is under way; `is_again`: that is what it was told
    /// then, in replay, and nothing is under way now.
    pub fn handle_called(&mut self, fd: i32, is_open: bool, is_again: bool) {
        self.open.remove(&fd);
        self.lost.remove(&fd);
        if is_open {
            if is_again { &mut self.lost } else { &mut self.open }.insert(fd);
        }
        self.tell();
    }

    /// An image is made. Of most calls the program has read what came of them.
    pub fn handle_image(&mut self) {
        self.open.retain(|fd| is_unread(*fd));
    }

    /// The process has come back from an image.
    pub fn handle_restored(&mut self) {
        self.lost.append(&mut self.open);
        self.tell();
    }

    /// Whether `fd` is that of a lost call. It is told once.
    pub fn take_lost(&mut self, fd: i32) -> bool {
        let is_lost = self.lost.remove(&fd);
        self.tell();
        is_lost
    }

    fn tell(&self) {
        LOST.store(!self.lost.is_empty(), Ordering::Relaxed);
    }
}

/// Whether the attempt is under way or its error unread. As a rule a socket that the program has closed, or used for something
/// else, has neither; if it has, the next attempt on it counts as another one.
fn is_unread(fd: i32) -> bool {
    let mut looked = [PollFd::from_borrowed_fd(sys::borrow(fd), PollFlags::OUT)];
    let told = sys::poll(&mut looked, Some(sys::span(0)));
    told == Ok(0) || looked[0].revents().contains(PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_was_under_way_was_refused_after_a_restart_and_is_told_so_once() {
        let mut calls = Calls::default();
        calls.handle_called(3, true, false);
        calls.handle_called(4, true, false);
        calls.handle_called(4, false, false);
        assert!(!calls.take_lost(3), "its socket knows");
        calls.handle_restored();
        calls.handle_called(5, true, true);
        assert_eq!([3, 4, 5, 3, 5].map(|fd| calls.take_lost(fd)), [true, false, true, false, false]);
        assert!(!may_be_lost(5));
    }
}
