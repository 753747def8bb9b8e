//! A program as replay needs it: a deterministic function of the outcomes of its calls, and of nothing else. Everything that it
//! is told changes its state, and its state decides what it does and sends; so one wrong outcome in replay shows as wrong bytes.

#![expect(missing_docs, reason = "calls and sockets are those of the system")]

use radic_wire::determinant::ReadyFd;
use radic_wire::ids::ProcessId;

pub const LISTENER: u32 = 1;
/// Of so many calls on a connection one ends its stream.
const EARLY: u64 = 32;
/// Of so many calls one reads a clock.
const CLOCK: u64 = 8;
/// Of so many calls one draws random bytes.
const RANDOM: u64 = 32;
/// Of so many calls one looks how much it could receive, in a program that does.
const LOOK: u64 = 4;
/// Of so many calls one reads standard input.
const INPUT: u64 = 16;
/// Of so many calls one closes the listener.
const UNLISTEN: u64 = 8;

#[derive(Debug, Clone, PartialEq)]
pub struct Socket {
    pub fd: u32,
    pub sent: u64,
    pub received: u64,
    /// The offset up to which it was told that there are bytes.
    pub shown: u64,
    pub finished: bool,
    pub ended: bool,
    pub closed: bool,
    /// Of a call that nobody is to accept: nothing is sent on it.
    pub is_late: bool,
}

/// The listener of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listening {
    Never,
    Now,
    NoMore,
}

#[derive(Debug, Clone, PartialEq)]
pub struct App {
    /// The processes that it connects to, in this order, before anything else.
    pub connects: Vec<ProcessId>,
    /// How many connections it accepts.
    pub accepts: usize,
    /// Its listener, for those.
    listening: Listening,
    /// Whether it closes its listener once it has accepted all of them.
    pub closes: bool,
    /// Whether it calls the first of the processes once more, which has accepted it and is going to close its listener.
    pub calls_again: bool,
    /// Bytes that it sends on every connection, at most: as it happens, it ends a stream before.
    pub quota: u64,
    /// Whether its sends may wait. Only one process's may: two that both wait for the other to read would wait for ever.
    pub patient: bool,
    pub sockets: Vec<Socket>,
    /// Connections that were made and accepted; another thread may have them.
    opened: usize,
    /// Whether another thread is to take every second connection.
    pub forks: bool,
    /// Whether it looks how much it could receive.
    pub looks: bool,
    /// Whether it reads standard input, up to its end.
    pub reads_input: bool,
    /// Bytes of standard input that it has read.
    pub input: u64,
    /// If it reads a clock so many times more, and then waits for ever: nothing else.
    pub rests: Option<u64>,
    state: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Begins a thread, which takes every second connection.
    Fork,
    /// Reads a clock.
    Clock {
        clock: u32,
    },
    /// Draws random bytes.
    Random {
        count: usize,
    },
    /// Reads standard input.
    Input {
        max: usize,
        blocking: bool,
    },
    /// Opens its listener.
    Listen,
    /// Closes it.
    Unlisten,
    Connect {
        fd: u32,
        peer: ProcessId,
        blocking: bool,
    },
    Accept {
        fd: u32,
        blocking: bool,
    },
    Poll {
        blocking: bool,
    },
    /// Looks how much it could receive.
    Look {
        socket: usize,
    },
    Receive {
        socket: usize,
        max: usize,
        blocking: bool,
    },
    Send {
        socket: usize,
        bytes: Vec<u8>,
        blocking: bool,
    },
    Finish {
        socket: usize,
    },
    Close {
        socket: usize,
    },
    /// Waits for ever.
    Rest,
    Done,
}

pub fn mix(state: u64, value: u64) -> u64 {
    let mut x = state.wrapping_add(value).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl App {
    pub fn new(seed: u64, connects: Vec<ProcessId>, accepts: usize, quota: u64, patient: bool) -> App {
        let (closes, calls_again, sockets, opened, forks, looks, reads_input, input, rests) = Default::default();
        let (listening, state) = (Listening::Never, mix(seed, 0));
        App {
            connects,
            accepts,
            listening,
            closes,
            calls_again,
            quota,
            patient,
            sockets,
            opened,
            forks,
            looks,
            reads_input,
            input,
            rests,
            state,
        }
    }

    /// The thread that takes every second connection.
    pub fn fork(&mut self) -> App {
        self.forks = false;
        let sockets = std::mem::take(&mut self.sockets);
        let (mine, others): (Vec<_>, Vec<_>) = sockets.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
        let of = |sockets: Vec<(usize, Socket)>| sockets.into_iter().map(|(_, socket)| socket).collect();
        self.sockets = of(mine);
        App { sockets: of(others), reads_input: false, state: mix(self.state, 11), ..self.clone() }
    }

    /// All that has happened to it, in one number.
    pub fn state(&self) -> u64 {
        self.state
    }

    fn fold(&mut self, value: u64) {
        self.state = mix(self.state, value);
    }

    fn next_fd(&self) -> u32 {
        2 + self.opened as u32
    }

    /// What it does next.
    pub fn op(&self) -> Op {
        if let Some(left) = self.rests {
            return if left == 0 { Op::Rest } else { Op::Clock { clock: 0 } };
        }
        let dice = mix(self.state, 1);
        if self.accepts > 0 && self.listening == Listening::Never {
            return Op::Listen;
        }
        if self.opened < self.connects.len() {
            return Op::Connect { fd: self.next_fd(), peer: self.connects[self.opened], blocking: self.connect_waits() };
        }
        if self.opened < self.connects.len() + self.accepts {
            return Op::Accept { fd: self.next_fd(), blocking: dice.is_multiple_of(2) };
        }
        if self.forks && self.sockets.len() > 1 {
            return Op::Fork;
        }
        if self.calls_again && self.sockets[0].received > 0 {
            return Op::Connect { fd: self.next_fd(), peer: self.connects[0], blocking: self.connect_waits() };
        }
        if (dice >> 52).is_multiple_of(UNLISTEN) && self.may_unlisten() {
            return Op::Unlisten;
        }
        if (dice >> 44).is_multiple_of(CLOCK) {
            return Op::Clock { clock: (dice >> 60) as u32 % 2 };
        }
        if (dice >> 36).is_multiple_of(RANDOM) {
            return Op::Random { count: 1 + (dice >> 60) as usize };
        }
        if self.reads_input && (dice >> 48).is_multiple_of(INPUT) {
            return Op::Input { max: 1 + (dice >> 52) as usize % 12, blocking: false };
        }
        let socket = (dice >> 8) as usize % self.sockets.len();
        let this = &self.sockets[socket];
        if self.looks && !this.ended && (dice >> 32).is_multiple_of(LOOK) {
            return Op::Look { socket };
        }
        let early = this.sent > 0 && (dice >> 40).is_multiple_of(EARLY);
        if !this.finished && (this.sent == self.quota || this.is_late || early) {
            return Op::Finish { socket };
        }
        if this.finished && this.ended && !this.closed {
            return Op::Close { socket };
        }
        // It waits only when it owes nothing to any peer: else two of them could wait for each other.
        let idle = self.sockets.iter().all(|socket| socket.finished);
        let only = idle && self.sockets.iter().filter(|socket| !socket.ended).count() == 1;
        match dice % 4 {
            0 | 1 if self.owes(this) => {
                let len = 1 + (dice >> 16) % 24.min(self.quota - this.sent);
                let bytes = (0..len).map(|i| mix(self.state, i + 2) as u8).collect();
                Op::Send { socket, bytes, blocking: self.patient && dice & 0x80 == 0 }
            }
            2 if self.sockets.iter().any(|socket| !socket.ended) => Op::Poll { blocking: idle && dice & 0x80 == 0 },
            _ => match self.sockets.iter().position(|socket| !socket.ended) {
                _ if !this.ended => {
                    Op::Receive { socket, max: 1 + (dice >> 16) as usize % 20, blocking: only && dice & 0x80 == 0 }
                }
                Some(open) => Op::Receive { socket: open, max: 9, blocking: only },
                None => self.last_op(),
            },
        }
    }

    /// What it has accepted has sent something: that it was called is known, whatever dies.
    fn may_unlisten(&self) -> bool {
        self.closes && self.listening == Listening::Now && self.sockets.iter().skip(self.connects.len()).all(|of| of.received > 0)
    }

    fn last_op(&self) -> Op {
        if self.may_unlisten() {
            return Op::Unlisten;
        }
        if let Some(socket) = self.sockets.iter().position(|socket| self.owes(socket)) {
            let bytes = vec![self.state as u8; 1];
            return Op::Send { socket, bytes, blocking: self.patient };
        }
        if let Some(socket) = self.sockets.iter().position(|socket| !socket.finished) {
            return Op::Finish { socket };
        }
        if let Some(socket) = self.sockets.iter().position(|socket| !socket.closed) {
            return Op::Close { socket };
        }
        if self.reads_input { Op::Input { max: 9, blocking: true } } else { Op::Done }
    }

    fn connect_waits(&self) -> bool {
        mix(self.state, 12).is_multiple_of(2)
    }

    fn owes(&self, socket: &Socket) -> bool {
        !socket.finished && !socket.is_late && socket.sent < self.quota
    }

    fn open(&mut self, fd: u32) {
        let (finished, ended, closed) = (false, false, false);
        let is_late = self.opened >= self.connects.len() + self.accepts;
        self.opened += 1;
        self.sockets.push(Socket { fd, sent: 0, received: 0, shown: 0, finished, ended, closed, is_late });
        self.calls_again &= !is_late;
    }

    pub fn handle_listening(&mut self) {
        self.listening = Listening::Now;
        self.fold(13);
    }

    pub fn handle_unlistened(&mut self) {
        self.listening = Listening::NoMore;
        self.fold(15);
    }

    /// `connect` was refused: it calls again, if that process is to accept it.
    pub fn handle_refused(&mut self) {
        self.calls_again &= self.opened < self.connects.len();
        self.fold(14);
    }

    pub fn handle_connected(&mut self, fd: u32) {
        self.open(fd);
        self.fold(3);
    }

    pub fn handle_accepted(&mut self, fd: u32, number: u64) {
        self.open(fd);
        self.fold(number + 100);
    }

    /// So many bytes are there, and not none.
    pub fn handle_look(&mut self, socket: usize, count: usize) {
        let socket = &mut self.sockets[socket];
        socket.shown = socket.shown.max(socket.received + count as u64);
        self.fold(count as u64 + 200);
    }

    pub fn handle_received(&mut self, socket: usize, bytes: &[u8]) {
        self.sockets[socket].received += bytes.len() as u64;
        bytes.iter().for_each(|byte| self.fold(u64::from(*byte)));
        self.fold(bytes.len() as u64);
    }

    pub fn handle_end(&mut self, socket: usize) {
        self.sockets[socket].ended = true;
        self.fold(4);
    }

    pub fn handle_sent(&mut self, socket: usize, len: usize) {
        self.sockets[socket].sent += len as u64;
        self.fold(len as u64);
    }

    pub fn handle_finished(&mut self, socket: usize) {
        self.sockets[socket].finished = true;
        self.fold(5);
    }

    pub fn handle_closed(&mut self, socket: usize) {
        self.sockets[socket].closed = true;
        self.fold(6);
    }

    pub fn handle_ready(&mut self, ready: &[ReadyFd]) {
        ready.iter().for_each(|ready| self.fold(u64::from(ready.fd) << 32 | u64::from(ready.events)));
        self.fold(7);
    }

    /// Standard input; none: its end.
    pub fn handle_input(&mut self, bytes: &[u8]) {
        self.input += bytes.len() as u64;
        self.reads_input = !bytes.is_empty();
        bytes.iter().for_each(|byte| self.fold(u64::from(*byte)));
        self.fold(9);
    }

    /// A clock says so many nanoseconds.
    pub fn handle_clock(&mut self, time: i64) {
        self.fold(time as u64);
        self.rests = self.rests.map(|left| left.saturating_sub(1));
    }

    /// Random bytes.
    pub fn handle_random(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.fold(u64::from(*byte)));
    }

    /// `EAGAIN`, or a `poll` that returned 0: this program's logic counts them.
    pub fn handle_nothing(&mut self) {
        self.fold(8);
    }
}
