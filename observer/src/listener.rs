//! Where the program listens, and what the node hears of that. Values without sockets and clocks: the driver asks what is to be
//! done next, does it, tells what came of it (`handle_*`), and asks again.
//!
//! - *A `listen`* ([`Listen`]). A caller that gets a connection, and asks then which process listens there, must find this
//!   process. So the node knows of an address before the system listens there, and hears afterwards what has come of it. The
//!   callers of a process that catches up are told to wait, so it announces nothing. A port that the system is still to choose
//!   no caller can know.
//! - *A process that has come back* ([`Reopening`]). The sockets of its image are dead. Each listener gets a fresh one, with all of
//!   its descriptors, and the node hears for each address where that is.
//! - *A listener that the program closes* ([`Closing`]). With its last descriptor the callers that wait there are refused
//!   ([`Refusal`]), and then the process listens there no more. Some have waited there and come to the door: it is remembered
//!   which addresses were closed ([`Listeners::is_closed`]).

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use radic_wire::address::canonical;
use radic_wire::process::ToNode;

#[cfg(doc)]
use crate::caller::Refusal;

/// Descriptors with addresses for which there is room from the beginning.
const ROOM: usize = 64;

/// The addresses at which a socket listens, as the program sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    told: SocketAddr,
    /// The second one.
    of_v4: Option<SocketAddr>,
}

impl Addresses {
    /// Those of a socket that has got this address, as the program is told it. A socket for all addresses of IPv6 takes those of
    /// IPv4 too, unless it was told not to: only of such a one it is asked whether it `takes_v4`.
    pub fn of(told: SocketAddr, takes_v4: impl FnOnce() -> bool) -> Addresses {
        let takes_both = told.is_ipv6() && told.ip().is_unspecified() && takes_v4();
        Addresses { told, of_v4: takes_both.then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), told.port())) }
    }

    /// One or two, in the way in which nodes know them.
    pub fn iter(self) -> impl Iterator<Item = SocketAddr> {
        std::iter::once(canonical(self.told)).chain(self.of_v4)
    }
}

/// Where a listener really is, if it is not where the program was told. `real`: where the system has it; `here`: the address of
/// this machine that others can reach.
fn elsewhere(told: SocketAddr, real: Option<SocketAddr>, here: Option<IpAddr>) -> Option<SocketAddr> {
    let real = real.filter(|real| *real != told)?;
    let ip = if real.ip().is_unspecified() { here? } else { real.ip() };
    Some(canonical(SocketAddr::new(ip, real.port())))
}

/// A descriptor that listens, and one of its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Open {
    fd: u32,
    /// Its socket: other descriptors that were made of this one have the same.
    socket: u64,
    /// As the program sees it.
    address: SocketAddr,
    /// Where connections go instead.
    at: Option<SocketAddr>,
}

impl Open {
    fn word(&self) -> ToNode {
        let Open { address, at, .. } = *self;
        at.map_or(ToNode::Listening(address), |at| ToNode::ListeningAt { address, at })
    }
}

/// Where the program listens. This is in its images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listeners {
    open: Vec<Open>,
    /// So many sockets have begun to listen.
    sockets: u64,
    /// Addresses where it has listened last, the newest of them at the end.
    closed: VecDeque<SocketAddr>,
}

impl Default for Listeners {
    fn default() -> Self {
        Listeners::new()
    }
}

impl Listeners {
    /// It listens nowhere.
    pub fn new() -> Listeners {
        Listeners { open: Vec::with_capacity(ROOM), sockets: 0, closed: VecDeque::with_capacity(ROOM) }
    }

    /// How many addresses its descriptors have, all together.
    pub fn count(&self) -> usize {
        self.open.len()
    }

    /// The first address of this descriptor.
    pub fn address_of(&self, fd: u32) -> Option<SocketAddr> {
        self.open.iter().find(|open| open.fd == fd).map(|open| open.address)
    }

    /// The descriptors that listen where a caller has called.
    fn at(&self, to: Option<SocketAddr>) -> impl Iterator<Item = u32> {
        let is_there = move |open: &&Open| to.is_some_and(|to| is_named(open.address, to));
        self.open.iter().filter(is_there).map(|open| open.fd)
    }

    /// Whether a connection that has arrived, and has called `to` if its caller has said so, is for this descriptor. Of an address
    /// at which none has listened any will do.
    pub fn takes(&self, fd: u32, to: Option<SocketAddr>) -> bool {
        let mut there = self.at(to).peekable();
        if there.peek().is_none() { !self.is_closed(to) } else { there.any(|of| of == fd) }
    }

    /// Whether the program has closed the listener that such a connection has called: it is for none. A process that catches up
    /// may not have come to its `listen` yet.
    pub fn is_closed(&self, to: Option<SocketAddr>) -> bool {
        self.at(to).next().is_none() && to.is_some_and(|to| self.closed.iter().any(|closed| is_named(*closed, to)))
    }

    /// The other descriptors of this one's socket.
    pub fn others(&self, fd: u32) -> impl Iterator<Item = u32> {
        let socket = self.open.iter().find(|open| open.fd == fd).map(|open| open.socket);
        self.open.iter().filter(move |open| open.fd != fd && Some(open.socket) == socket).map(|open| open.fd)
    }

    /// The program has made `new` from `old`, a listener.
    pub fn handle_duplicated(&mut self, old: u32, new: u32) {
        for at in 0..self.open.len() {
            let open = self.open[at];
            self.open.extend((open.fd == old).then_some(Open { fd: new, ..open }));
        }
    }

    /// What the node is to know of this address, after a `listen` of this descriptor. If that has failed, another listener of this
    /// process may have the address: it may be why.
    fn word_of(&self, fd: u32, address: SocketAddr) -> ToNode {
        let mut there = self.open.iter().filter(|open| open.address == address);
        let first = there.clone().next();
        there.find(|open| open.fd == fd).or(first).map_or(ToNode::NotListening(address), Open::word)
    }

    /// Whether another descriptor than this one listens at the address.
    fn is_kept(&self, fd: u32, address: SocketAddr) -> bool {
        self.open.iter().any(|open| open.fd != fd && open.address == address)
    }

    /// Takes one address of this descriptor away.
    fn take(&mut self, fd: u32) -> Option<SocketAddr> {
        let at = self.open.iter().position(|open| open.fd == fd)?;
        Some(self.open.swap_remove(at).address)
    }

    /// No descriptor listens at the address any more.
    fn handle_closed(&mut self, address: SocketAddr) {
        self.closed.retain(|closed| *closed != address);
        if self.closed.len() >= ROOM {
            self.closed.pop_front();
        }
        self.closed.push_back(address);
    }
}

/// Whether a caller that has called `to` means a listener with this address.
fn is_named(address: SocketAddr, to: SocketAddr) -> bool {
    let to = canonical(to);
    address.port() == to.port() && (address.ip() == to.ip() || address.ip().is_unspecified() || to.ip().is_unspecified())
}

/// What is to be done next for a `listen`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Ask the node by [`ToNode::WillListen`], and wait for its answer: [`Listen::handle_announced`].
    Announce(SocketAddr),
    /// Have the system listen: [`Listen::handle_listening`] or [`Listen::handle_failed`].
    Listen,
    /// Say this to the node, about this address.
    Tell(SocketAddr, ToNode),
    /// The call is over.
    Over,
}

/// How far a `listen` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// So many of its addresses were announced.
    Announcing(usize),
    /// The system is to listen.
    Ready,
    /// It is known what has come of it; the node was told so for so many of these addresses.
    Telling(Addresses, usize),
    Over,
}

/// A `listen` of the program. See the module's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    fd: u32,
    /// What is announced before.
    announced: Option<Addresses>,
    stage: Stage,
}

impl Listen {
    /// The program lets `fd` listen, which has these addresses if it was bound. `catches_up`: the process catches up with its log.
    pub fn new(fd: u32, addresses: Option<Addresses>, catches_up: bool) -> Listen {
        let announced = addresses.filter(|addresses| addresses.told.port() != 0 && !catches_up);
        Listen { fd, announced, stage: Stage::Announcing(0) }
    }

    /// What is to be done next. Before the system has listened it is said again and again; what is to be told is said once.
    pub fn next(&mut self, listeners: &Listeners) -> Step {
        match self.stage {
            Stage::Announcing(done) => match self.announced.and_then(|addresses| addresses.iter().nth(done)) {
                Some(address) => Step::Announce(address),
                None => {
                    self.stage = Stage::Ready;
                    Step::Listen
                }
            },
            Stage::Ready => Step::Listen,
            Stage::Telling(addresses, done) => match addresses.iter().nth(done) {
                Some(address) => {
                    self.stage = Stage::Telling(addresses, done + 1);
                    Step::Tell(address, listeners.word_of(self.fd, address))
                }
                None => {
                    self.stage = Stage::Over;
                    Step::Over
                }
            },
            Stage::Over => Step::Over,
        }
    }

    /// The node knows that the process is about to listen at the address that [`Step::Announce`] has named.
    ///
    /// # Panics
    /// If nothing was to be announced.
    pub fn handle_announced(&mut self) {
        let Stage::Announcing(done) = self.stage else { panic!("nothing is announced in {:?}", self.stage) };
        self.stage = Stage::Announcing(done + 1);
    }

    /// The system listens. The socket has these addresses, as the program sees it; `real` is where the system has it, and `here`
    /// the address of this machine that others can reach.
    ///
    /// # Panics
    /// If the system was not to listen yet.
    pub fn handle_listening(
        &mut self,
        listeners: &mut Listeners,
        addresses: Addresses,
        real: Option<SocketAddr>,
        here: Option<IpAddr>,
    ) {
        assert_eq!(self.stage, Stage::Ready, "the system listens after all is announced, and once");
        let at = elsewhere(addresses.told, real, here);
        let socket = listeners.sockets;
        listeners.sockets += 1;
        listeners.open.extend(addresses.iter().map(|address| Open { fd: self.fd, socket, address, at }));
        listeners.closed.retain(|closed| addresses.iter().all(|address| address != *closed));
        self.stage = Stage::Telling(addresses, 0);
    }

    /// The system does not listen. The node hears so of what was announced.
    ///
    /// # Panics
    /// If the system was not to listen yet.
    pub fn handle_failed(&mut self) {
        assert_eq!(self.stage, Stage::Ready, "the system listens after all is announced, and once");
        self.stage = self.announced.map_or(Stage::Over, |addresses| Stage::Telling(addresses, 0));
    }
}

/// What is to be done next for the listeners of a process that has come back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reopen {
    /// Put a fresh socket, which listens at any port of this machine, in the place of this descriptor: [`Reopening::handle_opened`].
    Open(u32),
    /// Put the fresh socket of the descriptor `of` in the place of `fd`, too.
    Share {
        /// One that has it.
        of: u32,
        /// One that was made of it.
        fd: u32,
    },
    /// Say this to the node.
    Tell(ToNode),
    /// All listen again.
    Over,
}

/// How far that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reopened {
    /// So many were dealt with.
    Next(usize),
    /// The same, and the descriptor of the next one has a fresh socket.
    Fresh(usize),
}

/// The listeners of a process that has come back. See the module's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reopening {
    stage: Reopened,
}

impl Default for Reopening {
    fn default() -> Self {
        Reopening::new()
    }
}

impl Reopening {
    /// The process has come back.
    pub fn new() -> Reopening {
        Reopening { stage: Reopened::Next(0) }
    }

    /// What is to be done next. A socket is asked for again and again; the rest is said once, and for each socket.
    pub fn next(&mut self, listeners: &Listeners) -> Reopen {
        loop {
            let (Reopened::Next(at) | Reopened::Fresh(at)) = self.stage;
            let Some(open) = listeners.open.get(at) else { return Reopen::Over };
            let same = || listeners.open[..at].iter().filter(|before| before.socket == open.socket);
            let is_fresh = self.stage == Reopened::Fresh(at) || same().any(|before| before.fd == open.fd);
            match same().next() {
                None if !is_fresh => return Reopen::Open(open.fd),
                Some(first) if !is_fresh => {
                    self.stage = Reopened::Fresh(at);
                    return Reopen::Share { of: first.fd, fd: open.fd };
                }
                _ => self.stage = Reopened::Next(at + 1),
            }
            if same().all(|before| before.address != open.address) {
                return Reopen::Tell(open.word());
            }
        }
    }

    /// The descriptor that [`Reopen::Open`] has named has a socket that listens there.
    ///
    /// # Panics
    /// If none was asked for.
    pub fn handle_opened(&mut self, listeners: &mut Listeners, there: SocketAddr) {
        let Reopened::Next(at) = self.stage else { panic!("no socket was asked for: {:?}", self.stage) };
        let socket = listeners.open.get(at).expect("no socket was asked for: all listen").socket;
        listeners.open.iter_mut().filter(|open| open.socket == socket).for_each(|open| open.at = Some(there));
        self.stage = Reopened::Fresh(at);
    }
}

/// What is to be done next for a listener that the program closes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Close {
    /// Take all callers that wait there from the system, and refuse each: [`Refusal`].
    Refuse,
    /// Say this to the node.
    Tell(ToNode),
    /// The descriptor is none that listens any more.
    Over,
}

/// How far that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closed {
    Begun {
        catches_up: bool,
    },
    /// Its addresses are given up.
    Leaving,
}

/// A descriptor of a listener that the program closes. See the module's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closing {
    fd: u32,
    stage: Closed,
}

impl Closing {
    /// The program closes `fd`. `catches_up`: the process catches up with its log. Then its callers are not refused for good: the
    /// system resets their connections, and they call again.
    pub fn new(fd: u32, catches_up: bool) -> Closing {
        Closing { fd, stage: Closed::Begun { catches_up } }
    }

    /// What is to be done next. Each step is said once.
    pub fn next(&mut self, listeners: &mut Listeners) -> Close {
        if let Closed::Begun { catches_up } = self.stage {
            self.stage = Closed::Leaving;
            let mut mine = listeners.open.iter().filter(|open| open.fd == self.fd);
            let is_last = mine.all(|open| !listeners.is_kept(self.fd, open.address));
            if is_last && !catches_up {
                return Close::Refuse;
            }
        }
        while let Some(address) = listeners.take(self.fd) {
            // Another descriptor of it may still listen.
            if !listeners.is_kept(self.fd, address) {
                listeners.handle_closed(address);
                return Close::Tell(ToNode::NotListening(address));
            }
        }
        Close::Over
    }
}

#[cfg(test)]
mod tests;
