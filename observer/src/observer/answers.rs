//! What the observer answers to the program's calls, and what a call has to wait for.

use radic_wire::determinant::{ConnectionId, StreamId};
use radic_wire::ids::ProcessId;

/// What must be awaited before the same call is made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The gate: the journal must be stable up to this position (G1).
    Stable(u64),
    /// The payload log is full: ship it, and wait until the protector holds it.
    Payload,
    /// The outbox is full: ask what is stable.
    Outbox,
    /// Bytes of the stream, an event on the descriptors, a new link: what the program itself waits for.
    Event,
    /// The calls of other threads come first: let them make theirs, without the layer, and ask again after at most half a
    /// millisecond. A call that does not wait waits for this, too.
    Turn,
    /// More of the log: [`Observer::wanted_log`](super::Observer::wanted_log).
    Log,
    /// The log is over, but not every connection has sent again what its peer has: dial, and let peers dial.
    Peers,
}

impl Wait {
    /// Whether a call of a process that catches up waits for what other threads do first, and asks again after at most half a millisecond.
    pub fn is_for_turn(self) -> bool {
        matches!(self, Wait::Event | Wait::Turn | Wait::Peers)
    }
}

/// Where bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The protector's payload log.
    Log,
    /// The connection's link.
    Link,
}

/// The answer to a `recv`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receive {
    /// Take bytes and tell [`Observer::handle_received`](super::Observer::handle_received).
    Take {
        /// From where.
        source: Source,
        /// Of which stream.
        stream: StreamId,
        /// The offset of the first.
        offset: u64,
        /// At most how many.
        len: usize,
        /// The program is owed these bytes: the caller waits for them even if the call would not. Nothing else may come of it.
        owed: bool,
    },
    /// The stream has ended.
    End,
    /// The call failed with this error.
    Failed(u32),
    /// There is nothing now (`EAGAIN`).
    Nothing,
    /// Not yet.
    Wait(Wait),
}

/// The answer to the question how many bytes can be received (FIONREAD).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// This many; 0: the call has found nothing.
    Told(usize),
    /// Not yet.
    Wait(Wait),
}

/// The answer to a `send`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Send {
    /// This many bytes are in the outbox: let them leave ([`Observer::poll_transmit`](super::Observer::poll_transmit)).
    Taken {
        /// Bytes.
        len: usize,
        /// The program is told of all that the call has had taken; else the caller waits for room and offers the rest.
        whole: bool,
    },
    /// The call failed with this error.
    Failed(u32),
    /// Not yet.
    Wait(Wait),
}

/// The answer to a reading of a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Read it, and tell [`Observer::handle_clock`](super::Observer::handle_clock).
    Live,
    /// What the program was told in the recorded run, in nanoseconds.
    Again(i64),
    /// Not yet.
    Wait(Wait),
}

/// The answer to an `accept`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accept {
    /// This connection waits: tell [`Observer::handle_accepted`](super::Observer::handle_accepted) on which descriptor the program gets it.
    Offered(ConnectionId),
    /// The program gets this descriptor, with this address of the peer, as in the recorded run.
    Again {
        /// The descriptor.
        fd: u32,
        /// The connection.
        connection: ConnectionId,
        /// The address that `accept` tells.
        peer: std::net::SocketAddr,
    },
    /// The call failed with this error.
    Failed(u32),
    /// There is nothing now (`EAGAIN`).
    Nothing,
    /// Not yet.
    Wait(Wait),
}

/// The answer to `poll` and its kin, and to the calls that have an outcome but no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// Ask the system and tell what came of it.
    Live,
    /// This many entries of the caller's array are ready.
    Set(usize),
    /// The recorded outcome: this error, or 0.
    Outcome(u32),
    /// There is nothing now.
    Nothing,
    /// Not yet.
    Wait(Wait),
}

/// The answer to the calls that give a socket an address, or look for the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// Find out, and tell what came of it ([`Observer::handle_outcome`](super::Observer::handle_outcome),
    /// [`Observer::handle_failed`](super::Observer::handle_failed)).
    Live,
    /// As in the recorded run: the socket's own address; the process that listens at the target, if that is a protected one.
    Again(std::net::SocketAddr, Option<ProcessId>),
    /// The call failed with this error.
    Failed(u32),
    /// Not yet.
    Wait(Wait),
}

/// The answer to a `read` of standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Read from the system, at most [`limits::INPUT`](radic_wire::limits::INPUT) bytes, and tell
    /// [`Observer::handle_input`](super::Observer::handle_input); while the gate is shut the caller waits first.
    Live,
    /// This many recorded bytes are in the caller's room; 0: the end.
    Again(usize),
    /// There is nothing now.
    Nothing,
    /// Not yet.
    Wait(Wait),
}

/// The answer to a call that the kernel answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Ask the kernel for at most [`limits::ANSWER`](radic_wire::limits::ANSWER) bytes, and tell [`Observer::handle_kernel`](super::Observer::handle_kernel).
    Live,
    /// This many recorded bytes are in the caller's room.
    Again(usize),
    /// Not yet.
    Wait(Wait),
}

/// What is first on the socket of a link that the kernel calls readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    /// Bytes of the program: they were taken with the header in front of them.
    Bytes,
    /// Nothing but a header, or a part of one.
    Header,
    /// What the kernel says: bytes of the program, an end, or an error, which the program's own call finds.
    Socket,
}

/// What may leave on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transmit {
    /// Bytes from this offset: [`Observer::outgoing`](super::Observer::outgoing).
    Bytes(u64),
    /// The end of the stream, after the last byte.
    End,
}
