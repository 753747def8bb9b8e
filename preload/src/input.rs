//! Standard input: the pipe from the node.

use crate::fds::{self, Kind};
use crate::output::{Pipe, pipe_of};

/// The pipe from the node.
#[derive(Debug)]
pub(crate) struct InputPipe {
    /// None: there is none, or the program has put something else in its place.
    pub(crate) pipe: Option<Pipe>,
    /// At the last image it was descriptor 0.
    in_place: bool,
    /// A program before this one, in the same process, may have read some of it: how much is not known here.
    pub(crate) inherited: bool,
}

impl InputPipe {
    /// That of this process, as its node has given it. `inherited`: another program ran in this process before (exec).
    pub(crate) fn new(inherited: bool) -> Self {
        let pipe = pipe_of(0).filter(|_| fds::set(0, Kind::Input, true));
        InputPipe { pipe, in_place: true, inherited }
    }

    /// An image begins: the restored process gets a new pipe on descriptor 0, and must know whether that takes the old one's place.
    pub(crate) fn handle_image(&mut self) {
        self.in_place = self.pipe.is_some() && pipe_of(0) == self.pipe;
    }

    /// The process is restored.
    pub(crate) fn handle_restored(&mut self) {
        self.pipe = if self.in_place { pipe_of(0) } else { None };
    }
}
