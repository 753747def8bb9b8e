//! What a host wants done, and what it orders.

use radic_wire::ids::Rank;
use radic_wire::job::OutputStream;
use radic_wire::peer::FromHost;
use serde_bytes::ByteBuf;

pub use crate::fetching::RestoreOrder;

/// The end of a rank by a signal, after which it is brought back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crash {
    /// The signal.
    pub signal: i32,
    /// Whether the rank was live. If not, its restore has failed, not its program: that is none of the crashes that end a job.
    pub live: bool,
}

/// A process to be started.
#[derive(Debug)]
pub struct SpawnOrder {
    /// The program.
    pub program: ByteBuf,
    /// The program's arguments, the first being its name.
    pub args: Vec<ByteBuf>,
    /// The process's whole environment except `PMI_FD`.
    pub env: Vec<(ByteBuf, ByteBuf)>,
    /// The process's working directory.
    pub dir: ByteBuf,
    /// The name of the process's key space.
    pub kvsname: String,
    /// Whether the process's standard input is a pipe from the daemon. Otherwise it is empty.
    pub stdin: bool,
    /// The process's file mode creation mask.
    pub umask: u32,
    /// The library that it runs under, if any. The library must be there, and addresses are not randomised, because a restart
    /// puts everything back where it was.
    pub library: Option<String>,
    /// The process's messages are protected: it waits for its log service again and again.
    pub is_protected: bool,
}

/// A process that could not be started.
#[derive(Debug)]
pub struct SpawnError {
    /// What the system said, and of what.
    pub error: String,
    /// The exit code for this error.
    pub code: i32,
}

/// A request about names that ports are published under: any node of the cluster may know the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameRequest {
    /// Remember `port` under `name`.
    Publish {
        /// The name.
        name: String,
        /// The port.
        port: String,
    },
    /// Which port is published under this name?
    Lookup(String),
    /// Forget this name.
    Unpublish(String),
}

/// What a host wants done.
#[derive(Debug)]
pub enum HostOutput {
    /// Tell the job's home.
    ToHome(FromHost),
    /// Start a process; the answer is [`Host::handle_spawned`](super::Host::handle_spawned). Signals and standard input that come
    /// before the process is there are to reach it then.
    Spawn(Rank, SpawnOrder),
    /// Bring a process back. The first answer is [`Input::Fetched`](super::super::Input::Fetched): the images are here and
    /// verified, or why not, and then nothing follows. The second answer is the same as to a start. A later order for the same
    /// process replaces one that is under way, and the replaced one is not answered any more. A signal
    /// ([`RestoreOrder::is_given_up_by`]) or `Over` gives an order up.
    Restore(Rank, RestoreOrder),
    /// Write to rank 0's standard input (empty: close it); the answer is
    /// [`Host::handle_stdin_taken`](super::Host::handle_stdin_taken).
    Stdin {
        /// Repeated in the answer.
        number: u64,
        /// The bytes.
        data: ByteBuf,
    },
    /// Read the next piece of a rank's output; the answer is [`Host::handle_output`](super::Host::handle_output).
    Read(Rank, OutputStream),
    /// Give up a stream of a rank that has ended.
    Close(Rank, OutputStream),
    /// Write to a rank's PMI connection.
    Pmi(Rank, Vec<u8>),
    /// Send a signal to a rank's process group.
    Signal(Rank, i32),
    /// Answer a request about names by [`Host::handle_name`](super::Host::handle_name).
    Name(Rank, NameRequest),
    /// To record in the event log: the rank's PMI connection is refused.
    Warning(Rank, String),
    /// To record in the event log: what keeps the rank.
    Note(Rank, String),
    /// A protected rank has crashed and all that it had written was read: it is to be brought back.
    Lost(Rank, Crash),
    /// A rank died at every attempt to bring it back, before it was live. The signal is set if the same signal had ended the rank
    /// while it was live. The answer is [`Host::handle_not_restored`](super::Host::handle_not_restored).
    Unrestorable(Rank, String, Option<i32>),
    /// A rank has ended by itself, and its home has all that it printed: its protector is to know.
    Left(Rank),
    /// A fence was released: the protector of the ranks is to know the keys.
    Fenced,
    /// Tell the job's home that the ranks are stopped, and where each was first launched.
    Frozen,
    /// Nothing of the job is left here.
    Over,
}
