//! The program's listener, and the calls that are made to it: [`radic_observer::bind`] and [`radic_observer::listener`] decide what a node is asked and hears of
//! the listener, [`radic_observer::connect`] what becomes of a `connect`, [`radic_observer::caller`] what becomes of a caller, and the
//! observer which one an `accept` gets; here are their sockets, the simulated network's. What the library asks its node within a
//! call it waits for, and so it does for a caller's greeting: nothing else goes on in the process meanwhile
//! ([`World::is_in_question`]).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use radic_observer::bind::{self, Bind};
use radic_observer::caller::{self, Caller as Called, Heard, Refusal, Refuse};
use radic_observer::connect::{Connect, Dialed, Outcome, Own, PAUSE, Step};
use radic_observer::connection::Slot;
use radic_observer::found::{Found, Peer};
use radic_observer::links::{Ending, Links};
use radic_observer::listener::{self, Addresses, Close, Closing, Listen, Reopen, Reopening};
use radic_observer::{Accept, Context, Error};
use radic_wire::determinant::StreamId;
use radic_wire::ids::{Epoch, ProcessId};
use radic_wire::log::Greeting;
use radic_wire::process::{FromNode, ToNode};

use super::links::read_greeting;
use super::machine::address;
use super::net::{ConnId, Owner, Packet, machine_of};
use super::program::Caller;
use super::world::World;
use crate::app::LISTENER;

/// The port of rank 0's listener, as programs know it.
const PORT: u16 = 20_000;
/// The kernel does not wait for ever for a machine that does not answer.
const KERNEL: Duration = Duration::from_secs(120);
/// Of so many times that a program lets its socket listen the kernel refuses one.
const UNHEARD: usize = 10;

/// Whether a program listens there; doors have other ports.
pub fn is_of_program(to: SocketAddr) -> bool {
    to.port() >= PORT
}

/// Those of a program's listener.
fn addresses(told: SocketAddr) -> Addresses {
    Addresses::of(told, || false)
}

/// What the library waits for in the midst of a call.
#[derive(Debug, Clone, Copy)]
enum Question {
    /// The answer of its node to this question, for a thread's call.
    Node { ask: u64, thread: usize },
    /// The same, for the socket of this end, which was refused while it was under way.
    Refused { ask: u64, end: StreamId },
    /// The greeting of the first caller, which its node has named.
    Greeting { until: Duration, thread: usize },
}

/// The socket of a thread's `connect`.
#[derive(Debug, Default)]
struct Socket {
    /// Its own address.
    from: Option<SocketAddr>,
    /// What it was connected by.
    conn: Option<ConnId>,
    /// When that has taken too long, until the call has been told what came of it.
    until: Option<Duration>,
    /// What has come of it.
    made: Option<bool>,
    /// Its other side has closed it since.
    ended: Option<Ending>,
    /// The call looks after everything until then.
    rests: Duration,
}

/// The socket of a connection that is under way, after its `connect`.
#[derive(Debug)]
struct UnderWay {
    end: StreamId,
    conn: ConnId,
    made: Option<bool>,
    /// What has come on it since.
    rest: VecDeque<Packet>,
}

/// What a process has of listeners and calls.
#[derive(Debug, Default)]
pub struct Calls {
    question: Option<Question>,
    asks: u64,
    /// The socket of its listener.
    listener: Option<SocketAddr>,
    /// The `listen` that is under way.
    listen: Option<Listen>,
    /// Its `close` that is under way, and what becomes of the first caller.
    closing: Option<Closing>,
    refusal: Option<Refusal>,
    /// The first caller, once a thread is about to take it.
    caller: Option<Called>,
    /// Callers that the kernel has let in, the oldest first, and what has come from them.
    backlog: VecDeque<(ConnId, VecDeque<Packet>)>,
    /// By thread.
    sockets: [Socket; 2],
    under_way: Vec<UnderWay>,
}

impl Calls {
    /// The socket of this end is under way no more.
    pub fn take_under_way(&mut self, end: StreamId) -> Option<(ConnId, VecDeque<Packet>)> {
        let at = self.under_way.iter().position(|of| of.end == end)?;
        let UnderWay { conn, rest, .. } = self.under_way.swap_remove(at);
        Some((conn, rest))
    }

    /// What the kernel says of those that are under way.
    pub fn fares(&self) -> Vec<(StreamId, bool)> {
        self.under_way.iter().filter_map(|of| Some((of.end, of.made?))).collect()
    }

    fn socket_of(&mut self, conn: ConnId) -> Option<&mut Socket> {
        self.sockets.iter_mut().find(|socket| socket.conn == Some(conn))
    }

    /// What comes on a connection that is no link yet, if it is one of these. Else it is given back.
    pub fn take(&mut self, conn: ConnId, to: SocketAddr, packet: Packet) -> Option<Packet> {
        if let Some((_, packets)) = self.backlog.iter_mut().find(|(of, _)| *of == conn) {
            packets.push_back(packet);
        } else if let Some(socket) = self.socket_of(conn) {
            match packet {
                Packet::Ack => socket.made = Some(true),
                Packet::End => socket.ended = Some(Ending::End),
                _ if socket.made.is_none() => socket.made = Some(false),
                _ => socket.ended = Some(super::links::BROKEN),
            }
        } else if let Some(of) = self.under_way.iter_mut().find(|of| of.conn == conn) {
            match packet {
                Packet::Ack => of.made = Some(true),
                _ if of.made.is_none() => of.made = Some(false),
                packet => of.rest.push_back(packet),
            }
        } else if matches!(packet, Packet::Syn) && self.listener == Some(to) {
            self.backlog.push_back((conn, VecDeque::new()));
        } else {
            return Some(packet);
        }
        None
    }
}

/// What the node answers, by the number of the question.
fn answer_to(message: &FromNode) -> Option<u64> {
    match *message {
        FromNode::Announced { ask }
        | FromNode::Peer { ask, .. }
        | FromNode::Caller { ask, .. }
        | FromNode::Claimed { ask, .. } => Some(ask),
        _ => None,
    }
}

impl World {
    /// A process runs that was launched: this is where its program is going to listen, as the programs of its epoch know it.
    pub fn name_listener(&mut self, pid: u32, epoch: Epoch) {
        let process = &self.processes[pid as usize];
        let there = address(process.machine, PORT + process.id.rank.0 as u16);
        self.addresses.entry((process.id, epoch)).or_insert(there);
    }

    /// Where a process listens, as this one knows it.
    fn listens_at(&mut self, pid: u32, process: ProcessId) -> Option<SocketAddr> {
        let epoch = self.lib(pid).observer.incarnation().epoch;
        self.addresses.get(&(process, epoch)).copied()
    }

    /// Where this one does.
    fn named(&mut self, pid: u32) -> SocketAddr {
        let me = self.processes[pid as usize].id;
        self.listens_at(pid, me).expect("it was named when it was launched")
    }

    /// Whether the process waits within a call, and does nothing else.
    pub fn is_in_question(&mut self, pid: u32) -> bool {
        self.lib(pid).calls.question.is_some()
    }

    /// Looks whether what the process waits for has come.
    pub fn look_for_answer(&mut self, pid: u32) {
        match self.lib(pid).calls.question {
            Some(Question::Node { ask, thread }) => {
                if let Some(message) = self.take_answer(pid, ask) {
                    let calls = self.lib(pid).program.threads[thread].calls;
                    let result = self.hear_answer((pid, thread), &message);
                    self.called((pid, thread), calls, result);
                }
            }
            Some(Question::Refused { ask, end }) => {
                if let Some(FromNode::Peer { peer, at, later, machine, .. }) = self.take_answer(pid, ask) {
                    let peer = peer.map(|process| Peer { process, at });
                    self.handle_refused(pid, end, &Found { peer, later, machine });
                }
            }
            Some(Question::Greeting { until, thread }) => {
                let result = self.hear_caller((pid, thread), until);
                self.sure(pid, result);
            }
            None => {}
        }
    }

    /// The answer to this question, once it has come. What its node said before is heard first, as the library does.
    fn take_answer(&mut self, pid: u32, ask: u64) -> Option<FromNode> {
        let said = &mut self.lib(pid).from_node;
        let at = said.iter().position(|message| answer_to(message) == Some(ask))?;
        let answer = said.remove(at)?;
        let earlier: Vec<FromNode> = said.drain(..at).collect();
        for message in earlier {
            if self.is_running(pid) {
                self.handle_node(pid, message);
            }
        }
        if !self.is_running(pid) {
            return None;
        }
        self.lib(pid).calls.question = None;
        Some(answer)
    }

    fn ask_node(&mut self, (pid, thread): Caller, question: impl FnOnce(u64) -> ToNode) {
        let calls = &mut self.lib(pid).calls;
        calls.asks += 1;
        let ask = calls.asks;
        calls.question = Some(Question::Node { ask, thread });
        let question = question(ask);
        self.trace(|| format!("process {pid}, thread {thread} asks: {question:?}"));
        self.tell_node(pid, question);
    }

    /// The socket of this end was refused while it was under way: whether the process that was called is there the nodes know.
    pub fn ask_who_refused(&mut self, pid: u32, end: StreamId) {
        let lib = self.lib(pid);
        let of = lib.calls.under_way.iter().find(|of| of.end == end).map(|of| of.conn);
        let slot = lib.observer.table().find_end(end.connection, true);
        let peer = slot.and_then(|slot| lib.observer.table().get(slot)).map(|connection| connection.peer);
        let to = peer.and_then(|peer| self.listens_at(pid, peer));
        let (Some(conn), Some(to)) = (of, to) else { return };
        let (from, connection) = (self.net.conns[conn].from, end.connection);
        let calls = &mut self.lib(pid).calls;
        calls.asks += 1;
        let ask = calls.asks;
        calls.question = Some(Question::Refused { ask, end });
        self.tell_node(pid, ToNode::Connecting { ask, connection, from, to });
    }

    fn hear_answer(&mut self, (pid, thread): Caller, message: &FromNode) -> Result<(), Error> {
        self.trace(|| format!("process {pid}, thread {thread} is answered: {message:?}"));
        match *message {
            FromNode::Announced { .. } => {
                self.lib(pid).calls.listen.as_mut().expect("it is in listen").handle_announced();
                self.go_on_listening((pid, thread));
            }
            FromNode::Claimed { holder, later, .. } => {
                assert!(holder.is_none(), "G3: an address is that of one process, and {holder:?} is called by it");
                self.tell_bind((pid, thread), |bind, cx| bind.handle_claimed(cx, holder.is_some(), later))?;
                return self.app_listen((pid, thread));
            }
            FromNode::Peer { peer, at, later, machine, .. } => {
                let found = Found { peer: peer.map(|process| Peer { process, at }), later, machine };
                return self.tell_call((pid, thread), |call, cx, links| call.handle_found(cx, links, found));
            }
            FromNode::Caller { caller, .. } if self.lib(pid).calls.refusal.is_some() => {
                self.lib(pid).calls.refusal.iter_mut().for_each(|refusal| refusal.handle_named(caller));
                if self.refuse_waiting((pid, thread)) {
                    self.go_on_closing((pid, thread));
                }
            }
            FromNode::Caller { caller, .. } => {
                let is_reset = self.is_first_reset(pid);
                let called = self.lib(pid).calls.caller.as_mut().expect("a caller was asked about");
                called.handle_named(caller, || is_reset);
                return self.meet((pid, thread), None);
            }
            ref other => unreachable!("{other:?} answers nothing"),
        }
        Ok(())
    }

    // ---- the listener

    fn tell_bind<T>(
        &mut self,
        (pid, thread): Caller,
        input: impl FnOnce(&mut Bind, &mut Context<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let now = self.now;
        let lib = self.lib(pid);
        let bind = lib.program.threads[thread].bind.as_mut().expect("it is in bind");
        input(bind, &mut Context { observer: &mut lib.observer, now })
    }

    /// Gives the listener its address, as [`Bind`] says, and lets it listen.
    pub fn app_listen(&mut self, (pid, thread): Caller) -> Result<(), Error> {
        let (told, now) = (self.named(pid), self.now);
        let lib = self.lib(pid);
        if now < lib.calls.sockets[thread].rests {
            return Ok(());
        }
        while !self.lib(pid).program.is_bound {
            let bind = &mut self.lib(pid).program.threads[thread].bind;
            bind.get_or_insert_with(|| Bind::new(thread as u32, LISTENER));
            match self.tell_bind((pid, thread), Bind::next)? {
                bind::Step::Wait(what) => return self.note_wait((pid, thread), what),
                bind::Step::Pause => {
                    self.lib(pid).calls.sockets[thread].rests = now + PAUSE;
                    return Ok(());
                }
                bind::Step::Claim(address) => {
                    self.ask_node((pid, thread), |ask| ToNode::Claim { ask, address });
                    return Ok(());
                }
                bind::Step::Bind => self.tell_bind((pid, thread), |bind, cx| bind.handle_bound(cx, Ok(told)))?,
                bind::Step::Again(then) => assert_eq!(then, told, "a listener has the address that it had then"),
                bind::Step::GiveBack => unreachable!("no other process is called by it"),
                bind::Step::Over(result) => {
                    assert_eq!(result, Ok(told), "no bind fails");
                    let program = &mut self.lib(pid).program;
                    (program.is_bound, program.threads[thread].bind) = (true, None);
                }
            }
        }
        self.begin_to_listen((pid, thread));
        Ok(())
    }

    /// The listener has its address.
    fn begin_to_listen(&mut self, (pid, thread): Caller) {
        let told = self.named(pid);
        let lib = self.lib(pid);
        lib.calls.listen = Some(Listen::new(LISTENER, Some(addresses(told)), lib.observer.is_replaying()));
        self.go_on_listening((pid, thread));
    }

    /// Does what [`Listen`] says, until its node is to answer or the call is over.
    fn go_on_listening(&mut self, (pid, thread): Caller) {
        let is_mute = self.breaks.mute;
        loop {
            let lib = self.lib(pid);
            let listen = lib.calls.listen.as_mut().expect("it is in listen");
            match listen.next(&lib.program.listeners) {
                listener::Step::Announce(_) if is_mute => listen.handle_announced(),
                listener::Step::Announce(address) => {
                    return self.ask_node((pid, thread), |ask| ToNode::WillListen { ask, address });
                }
                listener::Step::Listen => self.listen(pid),
                listener::Step::Tell(_, message) => self.tell_of_listener(pid, message),
                listener::Step::Over => break,
            }
        }
        let lib = self.lib(pid);
        lib.calls.listen = None;
        // What the kernel has refused the program tries again.
        if lib.calls.listener.is_some() {
            let thread = &mut lib.program.threads[thread];
            thread.app.handle_listening();
            thread.calls += 1;
        }
    }

    fn tell_of_listener(&mut self, pid: u32, message: ToNode) {
        if !self.breaks.mute {
            self.tell_node(pid, message);
        }
    }

    /// The kernel listens, or does not: at the address that the program knows, if that is of this machine and free, else anywhere.
    fn listen(&mut self, pid: u32) {
        let told = self.named(pid);
        let is_refused = !self.lib(pid).observer.is_replaying() && self.dice.one_in(UNHEARD);
        let is_free = machine_of(told) == self.processes[pid as usize].machine && !self.net.listeners.contains_key(&told);
        let at = (!is_refused).then(|| self.open_listener(pid, is_free.then_some(told)));
        let lib = self.lib(pid);
        let listen = lib.calls.listen.as_mut().expect("it is in listen");
        match at {
            Some(at) => listen.handle_listening(&mut lib.program.listeners, addresses(told), Some(at), Some(at.ip())),
            None => listen.handle_failed(),
        }
    }

    /// Opens the socket of the program's listener, at `there` or anywhere: where.
    fn open_listener(&mut self, pid: u32, there: Option<SocketAddr>) -> SocketAddr {
        let machine = self.processes[pid as usize].machine;
        let at = there.unwrap_or_else(|| self.net.free_address(machine));
        self.net.listeners.insert(at, Owner::Process(pid));
        self.lib(pid).calls.listener = Some(at);
        at
    }

    /// `close` of the listener.
    pub fn app_unlisten(&mut self, (pid, thread): Caller) {
        let lib = self.lib(pid);
        lib.calls.closing = Some(Closing::new(LISTENER, lib.observer.is_replaying()));
        self.go_on_closing((pid, thread));
    }

    /// Does what [`Closing`] says, until its node is to answer or the listener is closed.
    fn go_on_closing(&mut self, (pid, thread): Caller) {
        loop {
            let lib = self.lib(pid);
            let closing = lib.calls.closing.as_mut().expect("it is in close");
            match closing.next(&mut lib.program.listeners) {
                Close::Refuse if !self.refuse_waiting((pid, thread)) => return,
                Close::Refuse => {}
                Close::Tell(message) => self.tell_of_listener(pid, message),
                Close::Over => break,
            }
        }
        let calls = &mut self.lib(pid).calls;
        calls.closing = None;
        let (there, backlog) = (calls.listener.take(), std::mem::take(&mut calls.backlog));
        there.into_iter().for_each(|there| _ = self.net.listeners.remove(&there));
        backlog.into_iter().for_each(|(conn, _)| self.reset(conn, 1));
        let thread = &mut self.lib(pid).program.threads[thread];
        thread.app.handle_unlistened();
        thread.calls += 1;
    }

    /// Refuses all callers that wait, as [`Refusal`] says. False: its node is to answer first.
    fn refuse_waiting(&mut self, (pid, thread): Caller) -> bool {
        while let Some((conn, _)) = self.lib(pid).calls.backlog.front() {
            let (conn, is_reset) = (*conn, self.is_first_reset(pid));
            let from = self.net.conns[conn].from;
            match self.lib(pid).calls.refusal.get_or_insert_with(|| Refusal::new(is_reset)).next_step() {
                Refuse::Ask => {
                    self.ask_node((pid, thread), |ask| ToNode::Accepted { ask, from });
                    return false;
                }
                Refuse::SendOff => self.tell_node(pid, ToNode::Greeted(from)),
                Refuse::Reset => {
                    let calls = &mut self.lib(pid).calls;
                    (_, _) = (calls.refusal.take(), calls.backlog.pop_front());
                    self.reset(conn, 1);
                }
            }
        }
        true
    }

    /// Connections that have come to the door, and whose listener is closed, are refused. All call the one that the programs know.
    pub fn refuse_callers(&mut self, pid: u32) {
        let there = self.named(pid);
        let lib = self.lib(pid);
        let is_closed = lib.program.listeners.is_closed(Some(there));
        let result = lib.observer.refuse_callers(|_| is_closed);
        self.sure(pid, result);
    }

    /// The listener of a program that has come back: that of its image is dead.
    pub fn listen_again(&mut self, pid: u32) {
        let mut reopening = Reopening::new();
        loop {
            match reopening.next(&self.lib(pid).program.listeners) {
                Reopen::Open(_) => {
                    let at = self.open_listener(pid, None);
                    reopening.handle_opened(&mut self.lib(pid).program.listeners, at);
                }
                Reopen::Share { .. } => unreachable!("a program duplicates no descriptor"),
                Reopen::Tell(message) => self.tell_of_listener(pid, message),
                Reopen::Over => return,
            }
        }
    }

    /// `accept`: asks about the first caller, if there is one, and else does what the observer says.
    pub fn app_accept(&mut self, (pid, thread): Caller, fd: u32, blocking: bool) -> Result<(), Error> {
        let told = self.named(pid);
        let lib = self.lib(pid);
        // All have called the one listener that a program has.
        let takes = lib.program.listeners.takes(LISTENER, Some(told));
        let is_offered = takes && lib.observer.table().iter().any(|(_, connection)| connection.is_offered());
        if Called::is_wanted(&lib.observer, is_offered) && !lib.calls.backlog.is_empty() {
            lib.calls.caller = Some(Called::new());
            return self.meet((pid, thread), None);
        }
        let (connection, peer) = match lib.observer.accept(thread as u32, LISTENER, blocking, |_| takes)? {
            Accept::Offered(connection) => {
                let peer = ([127, 0, 0, 1], connection.number as u16).into();
                lib.observer.handle_accepted(thread as u32, LISTENER, fd, connection, peer)?;
                (connection, peer)
            }
            Accept::Again { fd: then, connection, peer } => {
                assert_eq!(then, fd, "accept tells what it told then");
                (connection, peer)
            }
            Accept::Nothing => return self.found_nothing((pid, thread)),
            Accept::Failed(errno) => panic!("no accept failed then: {errno}"),
            Accept::Wait(what) => return self.note_wait((pid, thread), what),
        };
        assert_eq!(peer.port(), connection.number as u16, "accept tells what it told then");
        let thread = &mut lib.program.threads[thread];
        thread.app.handle_accepted(fd, u64::from(connection.opener.rank.0) * 100 + connection.number);
        thread.calls += 1;
        Ok(())
    }

    /// Does what [`Called`] says about the first caller, of which this greeting was heard.
    fn meet(&mut self, (pid, thread): Caller, greeting: Option<&Greeting>) -> Result<(), Error> {
        let calls = &mut self.lib(pid).calls;
        let (Some(called), Some((conn, _))) = (&calls.caller, calls.backlog.front()) else { return Ok(()) };
        let (step, conn) = (called.next(), *conn);
        match step {
            caller::Step::Ask => {
                let from = self.net.conns[conn].from;
                self.ask_node((pid, thread), |ask| ToNode::Accepted { ask, from });
                return Ok(());
            }
            caller::Step::Hear(_, within) => {
                let until = self.now + within;
                self.lib(pid).calls.question = Some(Question::Greeting { until, thread });
                return self.hear_caller((pid, thread), until);
            }
            _ => {}
        }
        self.lib(pid).calls.caller = None;
        let rest = self.lib(pid).calls.backlog.pop_front().map(|(_, packets)| packets).unwrap_or_default();
        match step {
            caller::Step::Offer => {
                let greeting = greeting.expect("what is offered has greeted");
                let from = self.net.conns[conn].from;
                self.tell_node(pid, ToNode::Greeted(from));
                let slot = self.lib(pid).observer.table().find_end(greeting.connection, false).expect("it was let in");
                self.plug(pid, slot, (conn, 1), rest);
            }
            caller::Step::GiveAway => {
                let me = self.processes[pid as usize].id;
                panic!("G7: {me} is told that its caller is not protected\n{}", self.standing());
            }
            caller::Step::Expect => self.expect_greeting(pid, conn),
            _ => self.close(conn, 1),
        }
        Ok(())
    }

    /// The first caller was named; its greeting has come, or it does not come.
    fn hear_caller(&mut self, (pid, thread): Caller, until: Duration) -> Result<(), Error> {
        let now = self.now;
        let lib = self.lib(pid);
        let Some((_, packets)) = lib.calls.backlog.front_mut() else { return Ok(()) };
        let first = packets.pop_front();
        if first.is_none() && now < until {
            return Ok(());
        }
        lib.calls.question = None;
        let is_silent = first.is_none();
        let greeting = first.filter(|packet| matches!(packet, Packet::Word(_))).map(read_greeting);
        let heard = match &greeting {
            Some(greeting) => Heard::Greeting(greeting),
            None if is_silent => Heard::Nothing,
            None => Heard::Reset,
        };
        let called = lib.calls.caller.as_mut().expect("a caller was asked about");
        called.handle_heard(&mut lib.observer, heard)?;
        self.meet((pid, thread), greeting.as_ref())
    }

    /// The first caller has given its connection up.
    fn is_first_reset(&mut self, pid: u32) -> bool {
        let first = self.processes[pid as usize].lib.as_ref().and_then(|lib| lib.calls.backlog.front());
        first.is_some_and(|(conn, packets)| {
            packets.iter().any(|packet| matches!(packet, Packet::Reset)) || self.net.conns[*conn].broken
        })
    }

    // ---- calls

    fn tell_call<T>(
        &mut self,
        (pid, thread): Caller,
        input: impl FnOnce(&mut Connect, &mut Context<'_>, &Links) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let now = self.now;
        let lib = self.lib(pid);
        let call = lib.program.threads[thread].connect.as_mut().expect("it is in connect");
        input(call, &mut Context { observer: &mut lib.observer, now }, &lib.links)
    }

    /// `connect` to the listener of a process. One that was never launched has no address yet.
    pub fn app_connect(&mut self, (pid, thread): Caller, fd: u32, peer: ProcessId, blocking: bool) -> Result<(), Error> {
        let caller = (pid, thread);
        let Some(to) = self.listens_at(pid, peer) else { return Ok(()) };
        let connect = &mut self.lib(pid).program.threads[thread].connect;
        connect.get_or_insert_with(|| Connect::new(thread as u32, fd, to, blocking));
        let now = self.now;
        let socket = &self.lib(pid).calls.sockets[thread];
        if now < socket.rests || socket.until.is_some() && !self.look_at_dialed(caller)? {
            return Ok(());
        }
        while self.is_running(pid) && !self.is_in_question(pid) {
            let step = self.tell_call(caller, |call, cx, links| call.next(cx, links))?;
            if !self.take_step(caller, (fd, peer), step)? {
                break;
            }
        }
        Ok(())
    }

    /// False: the call waits for something, or is over.
    fn take_step(&mut self, caller: Caller, callee: (u32, ProcessId), step: Step) -> Result<bool, Error> {
        let (pid, thread) = caller;
        match step {
            Step::Bind => self.bind(caller)?,
            Step::Ask { from, to } => {
                let connection = self.lib(pid).observer.next_connection();
                self.ask_node(caller, |ask| ToNode::Connecting { ask, connection, from, to });
            }
            Step::GiveUp => self.give_up(caller),
            Step::Report { from, to, made } => {
                let connection = self.lib(pid).observer.next_connection();
                self.tell_node(pid, ToNode::CallsNobody { connection, from, to, made });
            }
            Step::Take(slot, greeting) => self.take_connection(caller, slot, greeting.as_ref()),
            Step::Leave(slot) => self.leave_under_way(caller, slot),
            Step::Wait(what) => return self.note_wait(caller, what).map(|()| false),
            Step::Pause => {
                let until = self.now + PAUSE;
                self.lib(pid).calls.sockets[thread].rests = until;
                return Ok(false);
            }
            Step::Dial { at, until } => {
                self.dial(caller, at, until);
                return Ok(false);
            }
            Step::Call { to, until } => {
                self.dial(caller, to, until.unwrap_or(self.now + KERNEL));
                return Ok(false);
            }
            Step::Over(outcome) => {
                self.end_call(caller, callee, outcome);
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn bind(&mut self, (pid, thread): Caller) -> Result<(), Error> {
        let machine = self.processes[pid as usize].machine;
        let known = self.lib(pid).calls.sockets[thread].from;
        let from = known.unwrap_or_else(|| self.net.free_address(machine));
        self.lib(pid).calls.sockets[thread].from = Some(from);
        self.tell_call((pid, thread), |call, cx, _| call.handle_bound(cx, Ok(Own { local: from, from })))
    }

    /// A call leaves: what was recorded must be stable (G1).
    fn dial(&mut self, (pid, thread): Caller, to: SocketAddr, until: Duration) {
        let position = self.lib(pid).observer.journal().end();
        self.check_departure(pid, position);
        let from = self.lib(pid).calls.sockets[thread].from.expect("it was bound");
        let conn = self.connect_from(Owner::Process(pid), from, to);
        let socket = &mut self.lib(pid).calls.sockets[thread];
        (socket.conn, socket.until, socket.made, socket.ended) = (Some(conn), Some(until), None, None);
    }

    /// False: it is under way still.
    fn look_at_dialed(&mut self, caller: Caller) -> Result<bool, Error> {
        /// ECONNREFUSED.
        const REFUSED: u32 = 111;
        let ((pid, thread), now) = (caller, self.now);
        let socket = &mut self.lib(pid).calls.sockets[thread];
        let dialed = match socket.made {
            Some(true) => Dialed::Made,
            Some(false) => Dialed::Failed(REFUSED),
            None if socket.until.is_some_and(|until| until <= now) => Dialed::Open(None),
            None => return Ok(false),
        };
        socket.until = None;
        self.tell_call(caller, |call, cx, links| call.handle_dialed(cx, links, dialed))?;
        Ok(true)
    }

    fn give_up(&mut self, (pid, thread): Caller) {
        let socket = &mut self.lib(pid).calls.sockets[thread];
        socket.until = None;
        if let Some(conn) = socket.conn.take() {
            self.close(conn, 0);
        }
    }

    /// The connection is the program's.
    fn take_connection(&mut self, (pid, thread): Caller, slot: Slot, greeting: Option<&Greeting>) {
        let Some(greeting) = greeting else { return self.handle_taken(pid, slot) };
        let socket = &mut self.lib(pid).calls.sockets[thread];
        let conn = socket.conn.take().expect("it was dialed");
        let ended = socket.ended.take();
        let rest = ended.map(|why| if why == Ending::End { Packet::End } else { Packet::Reset });
        self.greet(pid, Some((conn, 0)), greeting);
        self.plug(pid, slot, (conn, 0), rest.into_iter().collect());
    }

    /// The connection is the program's, and its socket is under way.
    fn leave_under_way(&mut self, (pid, thread): Caller, slot: Slot) {
        let end = self.end_of(pid, slot).expect("it was opened");
        let socket = &mut self.lib(pid).calls.sockets[thread];
        let conn = socket.conn.take().expect("it was dialed");
        let (made, ended) = (socket.made.take(), socket.ended.take());
        let rest = ended.map(|why| if why == Ending::End { Packet::End } else { Packet::Reset }).into_iter().collect();
        self.lib(pid).calls.under_way.push(UnderWay { end, conn, made, rest });
        self.handle_under_way(pid, slot);
        self.counts.under_way += 1;
    }

    fn end_call(&mut self, (pid, thread): Caller, (fd, peer): (u32, ProcessId), outcome: Outcome) {
        self.give_up((pid, thread));
        let me = self.processes[pid as usize].id;
        let lib = self.lib(pid);
        lib.calls.sockets[thread] = Socket::default();
        let of = &mut lib.program.threads[thread];
        let call = of.connect.take().expect("it is in connect");
        of.calls += 1;
        match outcome {
            Outcome::Connected | Outcome::UnderWay => {
                assert_eq!(call.target().map(|(_, process)| process), Some(peer), "{me} has called {peer}");
                of.app.handle_connected(fd);
            }
            // To the program it is the same whether it is told so by the call or by the socket.
            Outcome::Failed(_) | Outcome::Refused => of.app.handle_refused(),
            Outcome::Unprotected(_) => panic!("G7: {me} takes {peer} for a process that is not protected\n{}", self.standing()),
        }
    }
}
