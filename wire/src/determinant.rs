//! Determinants: the outcomes that a program cannot compute from its own past, in the code in which the journal keeps them.
//!
//! docs/design.md has the table. A journal is the codes of determinants, one after the other, without lengths between them. The first
//! byte holds the kind in its low four bits and the argument in its high four; 15 there means that a varint of (argument - 15)
//! follows. So a plain recv is 2 to 4 bytes, and a readiness set of one descriptor 4.
//!
//! Five kinds are no outcomes but say where the next one belongs: [`Determinant::Begins`] or [`Determinant::Thread`], [`Determinant::Empty`],
//! [`Determinant::Sent`] and [`Determinant::Own`]. They stand before it, in this order, each only when it says something.
//!
//! The decoder is strict: bytes that it accepts are exactly those that the encoder writes for what it returns.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use serde::{Deserialize, Serialize};

use crate::bytes::{Malformed, Reader, Writer};
use crate::ids::{JobId, ProcessId, Rank};
use crate::limits;

#[cfg(test)]
mod tests;

/// A connection: numbered by the process that opened it, so that re-executing `connect` gives the same identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConnectionId {
    /// The process that opened it. Of a connection from an unprotected peer: the process that accepted it.
    pub opener: ProcessId,
    /// The connection's number at that process.
    pub number: u64,
}

impl ConnectionId {
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        write_process(out, &self.opener);
        out.varint(self.number);
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let opener = read_process(from)?;
        Ok(ConnectionId { opener, number: from.varint()? })
    }
}

fn write_process(out: &mut Writer<'_>, process: &ProcessId) {
    out.varint(process.job.bits());
    out.varint(u64::from(process.rank.0));
}

pub(crate) fn read_process(from: &mut Reader<'_>) -> Result<ProcessId, Malformed> {
    let bits = from.varint()?;
    if JobId::from_bits(bits).bits() != bits {
        return Err(from.malformed("a job has 48 bits"));
    }
    Ok(ProcessId { job: JobId::from_bits(bits), rank: Rank(narrow(from)?) })
}

fn narrow(from: &mut Reader<'_>) -> Result<u32, Malformed> {
    let value = from.varint()?;
    u32::try_from(value).map_err(|_| from.malformed("a number over 32 bits"))
}

/// One direction of a connection: docs/design.md's stream. Offsets count its bytes; its end counts as one unit after the last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StreamId {
    /// The connection.
    pub connection: ConnectionId,
    /// The direction: from the process that opened the connection, or to it.
    pub from_opener: bool,
}

/// A descriptor that was reported ready, as the program saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadyFd {
    /// The descriptor, never epoll's user data: that holds addresses.
    pub fd: u32,
    /// The kernel's bits (`EPOLLIN` ..., which are `POLLIN` ... too).
    pub events: u32,
}

/// A readiness set in the order in which the program got it. Neighbours that ask for the next descriptor with the same bits
/// are coded as one run.
#[derive(Clone, Copy)]
pub struct ReadySet<'a>(Repr<'a>);

#[derive(Clone, Copy)]
enum Repr<'a> {
    Plain(&'a [ReadyFd]),
    /// Checked when it was decoded.
    Coded {
        runs: u64,
        bytes: &'a [u8],
    },
}

impl<'a> ReadySet<'a> {
    /// The set with these members; `None` if there are more than [`limits::READY_FDS`].
    pub fn new(members: &'a [ReadyFd]) -> Option<Self> {
        (members.len() <= limits::READY_FDS).then_some(ReadySet(Repr::Plain(members)))
    }

    /// The members of the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = ReadyFd> + 'a {
        let (plain, coded) = match self.0 {
            Repr::Plain(members) => (members, None),
            Repr::Coded { runs, bytes } => (&[][..], Some(Runs { left: runs, next: 0, from: Reader::new(bytes) })),
        };
        // A decoded set was checked whole, so no run of it is an error here.
        let runs = coded.into_iter().flatten().map_while(Result::ok).flat_map(Run::members);
        plain.iter().copied().chain(runs)
    }

    fn runs(&self) -> impl Iterator<Item = Run> + 'a {
        let mut members = self.iter().peekable();
        std::iter::from_fn(move || {
            let first = members.next()?;
            let mut run = Run { first: first.fd, length: 1, events: first.events };
            while members.next_if(|next| run.continues(next)).is_some() {
                run.length += 1;
            }
            Some(run)
        })
    }

    /// How many runs there are. One descriptor is what most sets have.
    fn count(&self) -> u64 {
        match self.0 {
            Repr::Plain([_]) => 1,
            Repr::Coded { runs, .. } => runs,
            Repr::Plain(_) => self.runs().count() as u64,
        }
    }

    fn write(&self, out: &mut Writer<'_>) {
        let mut next = 0i64;
        let mut write_run = |run: Run| {
            let gap = i64::from(run.first) - next;
            out.varint((zigzag(gap) << 1) | u64::from(run.length > 1));
            if run.length > 1 {
                out.varint(u64::from(run.length) - 2);
            }
            out.varint(u64::from(run.events));
            next = i64::from(run.first) + i64::from(run.length);
        };
        match self.0 {
            Repr::Plain([one]) => write_run(Run { first: one.fd, length: 1, events: one.events }),
            _ => self.runs().for_each(write_run),
        }
    }

    fn read(from: &mut Reader<'a>, runs: u64) -> Result<Self, Malformed> {
        let start = from.clone();
        let mut reading = Runs { left: runs, next: 0, from: from.clone() };
        let mut members = 0u64;
        let mut previous: Option<Run> = None;
        while let Some(run) = reading.next() {
            let run = run?;
            members += u64::from(run.length);
            if members > limits::READY_FDS as u64 {
                return Err(reading.from.malformed("too many descriptors"));
            }
            if previous.is_some_and(|p| p.continues(&ReadyFd { fd: run.first, events: run.events })) {
                return Err(reading.from.malformed("two runs that are one"));
            }
            previous = Some(run);
        }
        let bytes = from.raw(reading.from.at() - start.at())?;
        Ok(ReadySet(Repr::Coded { runs, bytes }))
    }
}

impl PartialEq for ReadySet<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for ReadySet<'_> {}

impl std::fmt::Debug for ReadySet<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[derive(Clone, Copy)]
struct Run {
    first: u32,
    length: u32,
    events: u32,
}

impl Run {
    fn continues(&self, next: &ReadyFd) -> bool {
        self.events == next.events && self.first.checked_add(self.length) == Some(next.fd)
    }

    fn members(self) -> impl Iterator<Item = ReadyFd> {
        (self.first..=self.first + (self.length - 1)).map(move |fd| ReadyFd { fd, events: self.events })
    }
}

struct Runs<'a> {
    left: u64,
    next: i64,
    from: Reader<'a>,
}

impl Runs<'_> {
    fn read(&mut self) -> Result<Run, Malformed> {
        let head = self.from.varint()?;
        let length = if head & 1 == 1 { narrow(&mut self.from)?.saturating_add(2) } else { 1 };
        let events = narrow(&mut self.from)?;
        let first = self.next.checked_add(unzigzag(head >> 1)).and_then(|fd| u32::try_from(fd).ok());
        let first = first.ok_or(self.from.malformed("a descriptor out of range"))?;
        if length as usize > limits::READY_FDS || first.checked_add(length - 1).is_none() {
            return Err(self.from.malformed("a run out of range"));
        }
        self.next = i64::from(first) + i64::from(length);
        Ok(Run { first, length, events })
    }
}

impl Iterator for Runs<'_> {
    type Item = Result<Run, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        Some(self.read())
    }
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Which call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// `recv` and its kin.
    Recv,
    /// `send` and its kin; its `EAGAIN` is an outcome, for it changes what the program has on its heap.
    Send,
    /// `accept`.
    Accept,
    /// `connect`.
    Connect,
    /// `poll`, `select` and `epoll_wait`, on no descriptor (0) or the epoll's.
    Ready,
    /// `bind`.
    Bind,
}

impl Call {
    const ALL: [Call; 6] = [Call::Recv, Call::Send, Call::Accept, Call::Connect, Call::Ready, Call::Bind];
}

/// Calls of which the kernel's answer, or that of a process that is not observed, is recorded as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelCall {
    /// `getrandom` and its kin, and reads of `/dev/urandom`: random bytes.
    Random,
    /// `getrusage`: what was used.
    Usage,
    /// `times`: processor times.
    Times,
    /// `read` on the connection to the process manager: bytes of its answer, as they came.
    Launcher,
}

impl KernelCall {
    const ALL: [KernelCall; 4] = [KernelCall::Random, KernelCall::Usage, KernelCall::Times, KernelCall::Launcher];
}

/// One outcome, or where the next one belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Determinant<'a> {
    /// `recv` gave this many bytes.
    Recv {
        /// The program's descriptor.
        fd: u32,
        /// Bytes.
        len: u32,
    },
    /// `recv` with `MSG_PEEK` gave this many bytes; the stream stands where it stood.
    Peek {
        /// The program's descriptor.
        fd: u32,
        /// Bytes.
        len: u32,
    },
    /// `ioctl(FIONREAD)` said that this many bytes can be received, never 0; the stream stands where it stood.
    Unread {
        /// The program's descriptor.
        fd: u32,
        /// Bytes.
        len: u32,
    },
    /// `recv` gave the end of the stream.
    Eof {
        /// The program's descriptor.
        fd: u32,
    },
    /// A call failed, with another error than that there is nothing yet.
    Errno {
        /// The program's descriptor.
        fd: u32,
        /// Which call.
        call: Call,
        /// The system's number.
        errno: u32,
    },
    /// `accept` gave a connection.
    Accept {
        /// The listening descriptor.
        listener: u32,
        /// The new descriptor.
        fd: u32,
        /// The connection.
        connection: ConnectionId,
        /// The peer's address, as the program sees it forever.
        peer: SocketAddr,
    },
    /// A socket got an address of this machine, by `bind`, or by `listen` without it.
    Bound {
        /// The program's descriptor.
        fd: u32,
        /// The address, as the program sees it forever.
        address: SocketAddr,
    },
    /// `connect` begins.
    Target {
        /// The program's descriptor.
        fd: u32,
        /// The socket's own address, as the program sees it forever.
        local: SocketAddr,
        /// The process that listens there, if it is protected.
        peer: Option<ProcessId>,
    },
    /// A `connect` to a protected process has made a connection.
    Connected {
        /// The program's descriptor.
        fd: u32,
    },
    /// What `SO_ERROR` said; 0 is an outcome too, that of a `connect` begun before.
    SoError {
        /// The program's descriptor.
        fd: u32,
        /// The system's number.
        errno: u32,
    },
    /// What was ready, never the empty set.
    Ready {
        /// The epoll's descriptor; `None` for `poll` and `select`.
        epoll: Option<u32>,
        /// The set.
        set: ReadySet<'a>,
    },
    /// `send` took only this many bytes.
    SendPart {
        /// The program's descriptor.
        fd: u32,
        /// Bytes.
        len: u32,
    },
    /// `read` of standard input gave these bytes; none: its end. They are in the journal itself, for the terminal keeps them only for a while.
    Input {
        /// The bytes, at most [`limits::INPUT`].
        bytes: &'a [u8],
    },
    /// A call found nothing, and then the process printed something, which no peer asks it for again. Other empty outcomes are only counted.
    Nothing,
    /// Something left the process in the same way after sends of this thread that do not wait had been taken whole: so they are
    /// again, whatever room there is. It answers no question.
    Taken,
    /// A clock was read, and the time is not what the rule of readings gives.
    Time {
        /// Which clock: its place in [`CLOCK_NAMES`].
        clock: u32,
        /// Readings of this clock by this thread since its last record, which the rule gives.
        skipped: u64,
        /// The time less the thread's last reading of this clock, in nanoseconds.
        difference: i64,
    },
    /// The kernel's answer to a call.
    Kernel {
        /// Which call.
        call: KernelCall,
        /// The answer, at most [`limits::ANSWER`].
        bytes: &'a [u8],
    },
    /// A connection has come to nothing. An accepted one has called a listener that the program has closed before it has accepted
    /// it: it was made, and closed at once. An opened one was under way when its peer had stopped listening: the peer has never
    /// heard of it, and for the program it ends where it begins. What the program sees of that it sees by outcomes that follow.
    /// So this belongs to no call, says nothing of where it stands, and stands before the outcome that follows.
    Refused {
        /// The connection.
        connection: ConnectionId,
        /// Which end of it: the one that this process has opened, or the one that it has accepted.
        opened_here: bool,
    },
    /// This many calls had an empty outcome before the next outcome of this thread.
    Empty {
        /// How many.
        count: u64,
    },
    /// This many bytes were sent, on all streams, between the last outcome and the next (Gate A).
    Sent {
        /// How many.
        bytes: u64,
    },
    /// This many of these bytes were sent by the outcome's own thread since its last outcome. Only before an outcome that stands
    /// between two sends ([`Determinant::is_among_sends`]), and only if the process has several threads: another thread may send
    /// at any time, so the sum does not say between which two sends of this thread it stands.
    Own {
        /// How many.
        bytes: u64,
    },
    /// What follows happened on this thread; at the beginning it is 0.
    Thread {
        /// The thread's number: the one that it was given by `Begins`, or 0 for the process's first thread.
        index: u32,
    },
    /// The first outcome of a thread follows. The thread has this number from here on; a thread that had it before has ended.
    Begins {
        /// The number.
        index: u32,
        /// The thread's name. It follows from which thread created it, and as which of its threads, so it is the same in each incarnation.
        name: u64,
    },
}

/// Clocks whose readings are outcomes.
pub const CLOCKS: usize = 9;
/// The clock of `MPI_Wtime`, which `clock_gettime` has not.
pub const MPI_CLOCK: u32 = 8;
/// The names of the clocks, as `clock_gettime` has them. The number of a clock is its place here, and for Linux, too; the last
/// one is that of `MPI_Wtime`.
pub const CLOCK_NAMES: [&str; CLOCKS] = [
    "realtime",
    "monotonic",
    "process-cputime",
    "thread-cputime",
    "monotonic-raw",
    "realtime-coarse",
    "monotonic-coarse",
    "boottime",
    "mpi-wtime",
];

/// The calls of the program that have outcomes, as a message names them.
pub const CALLS: [&str; 23] = [
    "no call",
    "recv",
    "recv with MSG_PEEK",
    "accept",
    "bind",
    "connect",
    "getsockopt of SO_ERROR",
    "poll, select or epoll_wait",
    "send",
    "read of standard input",
    "call that found nothing",
    "recv that failed",
    "send that failed",
    "accept that failed",
    "connect that failed",
    "poll, select or epoll_wait that failed",
    "bind that failed",
    "reading of a clock",
    "call for random bytes",
    "getrusage",
    "times",
    "read of the process manager's answer",
    "ioctl of FIONREAD",
];

impl<'a> Determinant<'a> {
    /// Whether it says where the next outcome belongs, instead of being one.
    pub fn is_position(&self) -> bool {
        matches!(
            self,
            Determinant::Empty { .. }
                | Determinant::Sent { .. }
                | Determinant::Own { .. }
                | Determinant::Thread { .. }
                | Determinant::Begins { .. }
        )
    }

    /// Whether its place is between two sends of its thread, and the thread's other calls do not say where.
    pub fn is_among_sends(&self) -> bool {
        self.sends_on().is_some() || matches!(self, Determinant::Nothing | Determinant::Time { .. } | Determinant::Taken)
    }

    /// The descriptor, and how many bytes were taken, if it is the outcome of a send.
    pub fn sends_on(&self) -> Option<(u32, u32)> {
        match *self {
            Determinant::SendPart { fd, len } => Some((fd, len)),
            Determinant::Errno { fd, call: Call::Send, .. } => Some((fd, 0)),
            _ => None,
        }
    }

    /// Which call of the program has such an outcome: its place in [`CALLS`], for a message.
    pub fn call(&self) -> usize {
        match self {
            Determinant::Recv { .. } | Determinant::Eof { .. } => 1,
            Determinant::Peek { .. } => 2,
            Determinant::Accept { .. } => 3,
            Determinant::Bound { .. } => 4,
            Determinant::Target { .. } | Determinant::Connected { .. } => 5,
            Determinant::SoError { .. } => 6,
            Determinant::Ready { .. } => 7,
            Determinant::SendPart { .. } | Determinant::Taken => 8,
            Determinant::Input { .. } => 9,
            Determinant::Nothing => 10,
            Determinant::Errno { call, .. } => 11 + *call as usize,
            Determinant::Time { .. } => 17,
            Determinant::Kernel { call, .. } => 18 + *call as usize,
            Determinant::Unread { .. } => 22,
            Determinant::Refused { .. }
            | Determinant::Empty { .. }
            | Determinant::Sent { .. }
            | Determinant::Own { .. }
            | Determinant::Thread { .. }
            | Determinant::Begins { .. } => 0,
        }
    }

    /// Writes its code: at most [`limits::DETERMINANT`] bytes.
    pub fn write(&self, out: &mut Writer<'_>) {
        match *self {
            Determinant::Recv { fd, len } => of_descriptor(out, 0, fd, len),
            Determinant::Peek { fd, len } => of_descriptor(out, 1, fd, len),
            Determinant::Eof { fd } => head(out, 2, u64::from(fd)),
            Determinant::Errno { fd, call, errno } => {
                head(out, 3, u64::from(fd));
                out.u8(call as u8);
                out.varint(u64::from(errno));
            }
            Determinant::Accept { listener, fd, connection, peer } => {
                head(out, 4, u64::from(listener));
                out.varint(u64::from(fd));
                connection.write(out);
                write_address(out, &peer);
            }
            Determinant::Connected { fd } => head(out, 5, u64::from(fd)),
            Determinant::SoError { fd, errno } => of_descriptor(out, 6, fd, errno),
            Determinant::Ready { epoll, set } => {
                head(out, 7, set.count());
                out.varint(epoll.map_or(0, |fd| u64::from(fd) + 1));
                set.write(out);
            }
            Determinant::SendPart { fd, len } => of_descriptor(out, 8, fd, len),
            Determinant::Empty { count } => head(out, 9, count),
            Determinant::Sent { bytes } => head(out, 10, bytes),
            Determinant::Thread { index } => head(out, 11, u64::from(index)),
            Determinant::Input { bytes } => {
                head(out, 12, bytes.len() as u64);
                out.raw(bytes);
            }
            Determinant::Bound { fd, address } => {
                head(out, 13, u64::from(fd));
                write_address(out, &address);
            }
            Determinant::Target { fd, local, peer } => {
                head(out, 14, u64::from(fd));
                write_address(out, &local);
                out.u8(u8::from(peer.is_some()));
                peer.iter().for_each(|peer| write_process(out, peer));
            }
            Determinant::Nothing => head(out, 15, 0),
            Determinant::Taken => head(out, 15, 1),
            Determinant::Begins { index, name } => {
                head(out, 15, 2);
                out.varint(u64::from(index));
                out.varint(name);
            }
            Determinant::Own { bytes } => {
                head(out, 15, 3);
                out.varint(bytes);
            }
            Determinant::Time { clock, skipped, difference } => {
                head(out, 15, TIME + u64::from(clock));
                out.varint(skipped);
                out.varint(zigzag(difference));
            }
            Determinant::Kernel { call, bytes } => {
                head(out, 15, KERNEL + call as u64);
                out.varint(bytes.len() as u64);
                out.raw(bytes);
            }
            Determinant::Refused { connection, opened_here } => {
                head(out, 15, REFUSED + u64::from(opened_here));
                connection.write(out);
            }
            Determinant::Unread { fd, len } => {
                head(out, 15, UNREAD);
                out.varint(u64::from(fd));
                out.varint(u64::from(len));
            }
        }
    }

    /// Reads one from where `from` stands. An error says what is wrong, and where; of bytes that merely end too early it is
    /// that they do.
    pub fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let first = from.u8()?;
        let arg = match first >> 4 {
            15 => from.varint()?.checked_add(15).ok_or(from.malformed("a number over 64 bits"))?,
            small => u64::from(small),
        };
        let kind = first & 15;
        let fd = || u32::try_from(arg).map_err(|_| Malformed { at: 0, what: "a descriptor over 32 bits" });
        Ok(match kind {
            0 => Determinant::Recv { fd: fd()?, len: narrow(from)? },
            1 => Determinant::Peek { fd: fd()?, len: narrow(from)? },
            2 => Determinant::Eof { fd: fd()? },
            3 => {
                let call = *Call::ALL.get(usize::from(from.u8()?)).ok_or(from.malformed("no such call"))?;
                Determinant::Errno { fd: fd()?, call, errno: narrow(from)? }
            }
            4 => {
                let (listener, fd) = (fd()?, narrow(from)?);
                let connection = ConnectionId::read(from)?;
                Determinant::Accept { listener, fd, connection, peer: read_address(from)? }
            }
            5 => Determinant::Connected { fd: fd()? },
            6 => Determinant::SoError { fd: fd()?, errno: narrow(from)? },
            7 => {
                let source = from.varint()?;
                let epoll = source.checked_sub(1).map(u32::try_from).transpose();
                let epoll = epoll.map_err(|_| from.malformed("a descriptor over 32 bits"))?;
                Determinant::Ready { epoll, set: ReadySet::read(from, arg)? }
            }
            8 => Determinant::SendPart { fd: fd()?, len: narrow(from)? },
            9 => Determinant::Empty { count: arg },
            10 => Determinant::Sent { bytes: arg },
            11 => Determinant::Thread { index: fd()? },
            12 => match usize::try_from(arg) {
                Ok(length @ 0..=limits::INPUT) => Determinant::Input { bytes: from.raw(length)? },
                _ => return Err(from.malformed("more input than one outcome holds")),
            },
            13 => Determinant::Bound { fd: fd()?, address: read_address(from)? },
            14 => {
                let (fd, local) = (fd()?, read_address(from)?);
                let peer = match from.u8()? {
                    0 => None,
                    1 => Some(read_process(from)?),
                    _ => return Err(from.malformed("neither a peer nor none")),
                };
                Determinant::Target { fd, local, peer }
            }
            _ if arg == 0 => Determinant::Nothing,
            _ if arg == 1 => Determinant::Taken,
            _ if arg == 2 => Determinant::Begins { index: narrow(from)?, name: from.varint()? },
            _ if arg == 3 => Determinant::Own { bytes: from.varint()? },
            _ if arg < KERNEL => {
                Determinant::Time { clock: (arg - TIME) as u32, skipped: from.varint()?, difference: unzigzag(from.varint()?) }
            }
            _ if arg == REFUSED || arg == REFUSED + 1 => {
                Determinant::Refused { connection: ConnectionId::read(from)?, opened_here: arg > REFUSED }
            }
            _ if arg == UNREAD => Determinant::Unread { fd: narrow(from)?, len: narrow(from)? },
            _ => {
                let call = arg.checked_sub(KERNEL).and_then(|place| KernelCall::ALL.get(usize::try_from(place).ok()?));
                let call = *call.ok_or(from.malformed("no such determinant"))?;
                match usize::try_from(from.varint()?) {
                    Ok(length @ 0..=limits::ANSWER) => Determinant::Kernel { call, bytes: from.raw(length)? },
                    _ => return Err(from.malformed("a longer answer than one outcome holds")),
                }
            }
        })
    }
}

/// The first clock's argument, beside those of what has no descriptor.
const TIME: u64 = 4;
/// The first of [`KernelCall`], after the clocks.
const KERNEL: u64 = TIME + CLOCKS as u64;
/// After the calls that the kernel answers: of an end that was accepted, then of one that was opened.
const REFUSED: u64 = KERNEL + KernelCall::ALL.len() as u64;
/// What FIONREAD said.
const UNREAD: u64 = REFUSED + 2;

fn head(out: &mut Writer<'_>, kind: u8, arg: u64) {
    match arg {
        0..15 => out.u8(kind | (arg as u8) << 4),
        _ => {
            out.u8(kind | 15 << 4);
            out.varint(arg - 15);
        }
    }
}

/// What came of a call on a descriptor, in one number.
fn of_descriptor(out: &mut Writer<'_>, kind: u8, fd: u32, number: u32) {
    head(out, kind, u64::from(fd));
    out.varint(u64::from(number));
}

pub(crate) fn write_address(out: &mut Writer<'_>, address: &SocketAddr) {
    match address {
        SocketAddr::V4(v4) => {
            out.u8(4);
            out.raw(&v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            out.u8(6);
            out.raw(&v6.ip().octets());
            out.u32(v6.flowinfo());
            out.u32(v6.scope_id());
        }
    }
    out.raw(&address.port().to_le_bytes());
}

pub(crate) fn read_address(from: &mut Reader<'_>) -> Result<SocketAddr, Malformed> {
    let family = from.u8()?;
    let mut octets = [0; 16];
    match family {
        4 => octets[..4].copy_from_slice(from.raw(4)?),
        6 => octets.copy_from_slice(from.raw(16)?),
        _ => return Err(from.malformed("no such address family")),
    }
    let (flow, scope) = if family == 6 { (from.u32()?, from.u32()?) } else { (0, 0) };
    let port = u16::from_le_bytes([from.u8()?, from.u8()?]);
    Ok(match family {
        4 => SocketAddr::new(IpAddr::V4(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3])), port),
        _ => SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(octets), port, flow, scope)),
    })
}
