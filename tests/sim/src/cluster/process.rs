//! One life of a rank: the real observer with a small program, driven as `preload/` drives it, but for the system calls. What is ours here is written after
//! `preload/src/layer.rs`, `layer/`, `restart.rs` and `image.rs`; links are in [`super::links`].

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::time::Duration;

use radic_observer::connection::Slot;
use radic_observer::links::Links;
use radic_observer::replay::Ask;
use radic_observer::session::Session;
use radic_observer::session::images::Images;
use radic_observer::{Accept, Address, Context, Error, Observer, Ready, Receive, Send, Source, Transmit};
use radic_protector::node::Input;
use radic_protector::node::observers::ObserverId;
use radic_wire::determinant::{Determinant, ReadyFd, StreamId};
use radic_wire::ids::{Incarnation, ProcessId};
use radic_wire::job::{ExitStatus, OutputStream};
use radic_wire::log::{FromProtector, ToProtector};
use radic_wire::process::{FromNode, Point, Restart, ToNode};
use serde_bytes::ByteBuf;

use super::images::Saved;
use super::links::Sockets;
use super::net::{ConnId, Owner, Packet, Word};
use super::session::Conns;
use super::world::{Event, World, code, framed};
use crate::app::{App, LISTENER, Op, mix};

/// The code of a process that cannot go on.
const FAILED: i32 = 125;
/// Calls of the program after which it is through with its start.
const STARTED: u64 = 8;

/// How much of everything an observer has here: little, so that bounds are met.
pub const CONFIG: radic_observer::Config = radic_observer::Config {
    outbox_blocks: 16,
    outbox_block: 8,
    journal: 256,
    determinant: 64,
    payload: 64,
    payload_pieces: 8,
    connections: 8,
    descriptors: 12,
    threads: 1,
};

/// The program, with what it prints.
#[expect(missing_docs, reason = "the program")]
#[derive(Debug, Clone)]
pub struct Program {
    pub app: App,
    /// All that it has printed.
    pub out: Vec<u8>,
    /// What it is about to print.
    owed: Option<Vec<u8>>,
    /// It is in `connect`, and knows whom it calls.
    calling: bool,
    /// Calls that were completed.
    calls: u64,
}

/// The library in a process.
#[expect(missing_docs, reason = "written after the library's layer, where each is explained")]
pub struct Lib {
    pub observer: Observer,
    pub program: Program,
    pub rest: Option<(usize, Vec<u8>, bool, usize)>,
    pub partial: Vec<u8>,
    pub session: Session,
    pub conns: Conns,
    pub from_protector: VecDeque<Vec<u8>>,
    pub from_node: VecDeque<FromNode>,
    pub links: Links,
    pub sockets: Sockets,
    pub images: Images,
    /// The connection of the image under way, and what is to be said there.
    pub image: Option<(ConnId, VecDeque<Packet>)>,
    pub due: bool,
    pub initialized: bool,
    /// It computes until then, and looks at nothing.
    pub busy: Duration,
}

/// A process, of whatever life.
#[expect(missing_docs, reason = "the names say it")]
pub struct Process {
    pub id: ProcessId,
    pub machine: usize,
    pub lib: Option<Box<Lib>>,
    restored: Option<(Incarnation, usize)>,
    pub ended: Option<ExitStatus>,
    /// When it is to go on.
    step: Option<Duration>,
    /// Whether its host wants the next piece of each stream; how far it was read; whether its end was.
    pub wanted: [bool; 2],
    read: usize,
}

impl Process {
    /// Its life, once it knows.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.lib.as_ref().map(|lib| lib.observer.incarnation())
    }
}

impl Lib {
    fn has_bytes(&self, slot: Slot) -> bool {
        self.observer.table().get(slot).is_some_and(|connection| self.sockets.has_bytes(connection.stream_out()))
    }

    /// Where its log goes.
    pub fn protector(&self) -> SocketAddr {
        self.session.protector()
    }

    /// Where it stands, for people.
    pub fn standing(&self) -> String {
        let (app, observer) = (&self.program.app, &self.observer);
        let table: Vec<_> = observer.table().iter().map(|(_, c)| format!("{c:?}")).collect();
        format!(
            "life {}, {:?}, {:?} {:?}, calls {}, op {:?}, rest {:?}, gate {:?}, outbox {}, {:?}\n    {:?}\n    {}",
            observer.incarnation(),
            observer.phase(),
            self.session,
            self.conns,
            self.program.calls,
            app.op(),
            self.rest,
            observer.gate(),
            observer.outbox().used(),
            (&self.links, &self.sockets),
            app.sockets,
            table.join("\n    ")
        )
    }

    /// Whether its protector listens.
    pub fn is_log_up(&self) -> bool {
        self.session.is_up()
    }
}

impl World {
    /// The library of a process that runs.
    pub fn lib(&mut self, pid: u32) -> &mut Lib {
        self.processes[pid as usize].lib.as_mut().expect("a process that goes on has its library")
    }

    pub(super) fn is_running(&self, pid: u32) -> bool {
        self.processes[pid as usize].ended.is_none()
    }

    // ---- beginning and end

    /// The node starts a rank.
    pub fn spawn(&mut self, at: usize, id: ProcessId) {
        self.begin_process(at, id, None);
    }

    /// The node brings one back.
    pub fn restore(&mut self, at: usize, id: ProcessId, life: Incarnation, saved: usize) {
        self.counts.restarts += 1;
        self.begin_process(at, id, Some((life, saved)));
    }

    fn begin_process(&mut self, at: usize, id: ProcessId, restored: Option<(Incarnation, usize)>) {
        let pid = self.processes.len() as u32;
        let (lib, ended, step, wanted) = Default::default();
        self.processes.push(Process { id, machine: at, lib, restored, ended, step, wanted, read: 0 });
        self.machines[at].ranks.insert(id, pid);
        self.trace(|| {
            format!("n{}: {id} is process {pid}, {}", at + 1, if restored.is_some() { "from an image" } else { "new" })
        });
        self.input_soon(at, Input::Spawned(id, Ok(pid)));
        let after = Duration::from_micros(500 + self.dice.below(5_000) as u64);
        self.schedule(self.now + after, Event::Begin(pid));
    }

    /// Its program begins, or goes on.
    pub fn begin(&mut self, pid: u32) {
        if !self.is_running(pid) {
            return;
        }
        let process = &self.processes[pid as usize];
        let (id, version) = (process.id, radic_wire::PROTOCOL_VERSION);
        let message = match process.restored {
            None => ToNode::Join { version, process: id },
            Some((_, saved)) => {
                let observer = &self.saved[saved].observer;
                let (incarnation, cut) = (observer.incarnation(), observer.journal().end());
                let point = Point { incarnation, cut, output: [0; 2], fences: 0, pmi: (false, false) };
                ToNode::Restored { version, process: id, point }
            }
        };
        self.tell_node(pid, message);
    }

    /// Says something to its node.
    pub fn tell_node(&mut self, pid: u32, message: ToNode) {
        let at = self.processes[pid as usize].machine;
        self.input_soon(at, Input::Observer(ObserverId(pid.into()), pid, message));
    }

    /// It ends, for whatever reason.
    pub fn end_process(&mut self, pid: u32, status: ExitStatus) {
        let process = &mut self.processes[pid as usize];
        if process.ended.is_some() {
            return;
        }
        process.ended = Some(status);
        let (id, at) = (process.id, process.machine);
        self.trace(|| format!("n{}: process {pid} of {id} ends: {status:?}", at + 1));
        self.net.listeners.retain(|_, owner| *owner != Owner::Process(pid));
        self.abort_all(Owner::Process(pid));
        self.input_soon(at, Input::ObserverGone(ObserverId(pid.into())));
        self.input_soon(at, Input::Exited(id, status));
        self.pump_output(pid);
    }

    /// It cannot go on without breaking a guarantee.
    pub fn fail(&mut self, pid: u32, why: &str) {
        self.trace(|| format!("process {pid} cannot go on: {why}"));
        self.end_process(pid, ExitStatus::Code(FAILED));
    }

    /// The value; else the end of the process. It never comes to that in who speaks for its process.
    pub fn sure<T>(&mut self, pid: u32, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let process = &self.processes[pid as usize];
                let life = process.incarnation().expect("it has an observer");
                assert!(!self.is_voice(pid), "observer of {}, life {life}: {error}\n{}", process.id, self.standing());
                self.end_by(pid, &error);
                None
            }
        }
    }

    /// The end of a process, as the library does it: its protector judges of a crash, its home of an exit.
    pub fn end_by(&mut self, pid: u32, error: &Error) {
        match error {
            Error::Fenced(_) => self.end_process(pid, ExitStatus::Signal(libc::SIGKILL)),
            error => self.fail(pid, &error.to_string()),
        }
    }

    /// Hands over what its host wants of its output and is there.
    pub fn pump_output(&mut self, pid: u32) {
        let process = &mut self.processes[pid as usize];
        let (id, at) = (process.id, process.machine);
        let ended = process.ended.is_some();
        let out = process.lib.as_ref().map_or(&[][..], |lib| &lib.program.out);
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            if !process.wanted[stream as usize] {
                continue;
            }
            let piece = match stream {
                OutputStream::Stdout => out[process.read.min(out.len())..].iter().copied().take(64).collect(),
                OutputStream::Stderr => Vec::new(),
            };
            if !piece.is_empty() || ended {
                process.wanted[stream as usize] = false;
                process.read += piece.len();
                let boot = self.machines[at].boot;
                let input = Input::ProcessOutput(id, stream, ByteBuf::from(piece));
                self.queue.push(self.now + super::LOCAL, Event::OfProcess(at, boot, pid, Box::new(input)));
            }
        }
    }

    // ---- its node

    /// The node says something; none: it has closed the connection.
    pub fn hear(&mut self, pid: u32, message: Option<FromNode>) {
        if !self.is_running(pid)
            || self.breaks.deaf && matches!(message, Some(FromNode::Restarted { .. } | FromNode::Place { .. }))
        {
            return;
        }
        match message {
            None => self.fail(pid, "its node has closed the connection"),
            Some(FromNode::Joined { incarnation, protector, .. }) => self.joined(pid, incarnation, protector),
            Some(FromNode::Restart(restart)) => self.come_back(pid, *restart),
            Some(FromNode::Refused(why)) => self.fail(pid, &why),
            Some(message) => {
                if let Some(lib) = &mut self.processes[pid as usize].lib {
                    lib.from_node.push_back(message);
                }
            }
        }
    }

    fn joined(&mut self, pid: u32, incarnation: Incarnation, protector: SocketAddr) {
        let id = self.processes[pid as usize].id;
        self.checks.handle_life(id, incarnation);
        let program = Program { app: self.plan.app_of(id.job, id.rank.0), out: Vec::new(), owed: None, calling: false, calls: 0 };
        let observer = Observer::in_life(id, incarnation, &CONFIG);
        self.add_lib(pid, observer, program, Session::new(protector));
        self.open_door(pid);
    }

    fn come_back(&mut self, pid: u32, restart: Restart) {
        let id = self.processes[pid as usize].id;
        let (_, saved) = self.processes[pid as usize].restored.expect("it was ordered");
        if self.plan.is_useless(saved) {
            return self.end_process(pid, ExitStatus::Signal(libc::SIGBUS));
        }
        let Saved { observer, program, initialized } = self.saved[saved].clone();
        let voice = self.checks.is_voice(id, restart.incarnation);
        self.add_lib(pid, observer, program, Session::restarted(restart.protector, restart.log_end));
        if voice {
            self.checks.undo(id, restart.log_end, &restart.held);
        }
        self.lib(pid).initialized = initialized;
        let result = self.lib(pid).observer.restart(restart.incarnation, restart.log_end, restart.held, restart.images, 128);
        if self.sure(pid, result).is_none() {
            return;
        }
        for (process, life) in restart.restarted {
            self.lib(pid).observer.handle_restarted(process, life);
        }
        self.break_all(pid);
    }

    fn add_lib(&mut self, pid: u32, observer: Observer, program: Program, session: Session) {
        let (rest, partial, conns, from_protector, from_node) = Default::default();
        let (links, sockets, images, image) = Default::default();
        let (due, initialized, busy) = (false, false, Duration::ZERO);
        let lib = Lib {
            observer,
            program,
            rest,
            partial,
            session,
            conns,
            from_protector,
            from_node,
            links,
            sockets,
            images,
            image,
            due,
            initialized,
            busy,
        };
        self.processes[pid as usize].lib = Some(Box::new(lib));
        self.step_at(pid, self.now);
    }

    fn hear_node(&mut self, pid: u32) {
        while self.is_running(pid)
            && let Some(message) = self.lib(pid).from_node.pop_front()
        {
            match message {
                FromNode::Protector(address) => {
                    self.drive_session(pid, |session, cx| {
                        session.handle_named(cx, address);
                        Ok(())
                    });
                }
                FromNode::Stable { stream, offset } => {
                    self.drive_session(pid, |session, cx| session.handle_stable(cx, stream, offset));
                }
                FromNode::Forget { connection, for_good } => {
                    let result = self.lib(pid).observer.handle_protector(&FromProtector::Forget { connection, for_good });
                    self.sure(pid, result);
                    self.close_forgotten(pid);
                }
                FromNode::Checkpoint { request } => {
                    self.drive_images(pid, |images, _| images.handle_request(request));
                }
                message => self.handle_link_message(pid, &message),
            }
        }
    }

    // ---- what has come

    /// Something came on one of its connections.
    pub fn process_arrive(&mut self, pid: u32, conn: ConnId, side: usize, packet: Packet) {
        if !self.is_running(pid) || self.processes[pid as usize].lib.is_none() {
            return;
        }
        if let Some(packet) = self.arrive_for_log(pid, conn, packet)
            && !self.arrive_for_image(pid, conn, &packet)
        {
            self.link_arrive(pid, conn, side, packet);
        }
        self.step_soon(pid);
    }

    // ---- its steps

    /// It goes on at this time, or earlier.
    pub fn step_at(&mut self, pid: u32, at: Duration) {
        if self.processes[pid as usize].step.is_none_or(|known| at < known) {
            self.processes[pid as usize].step = Some(at);
            self.schedule(at, Event::Step(pid));
        }
    }

    fn step_soon(&mut self, pid: u32) {
        let lib = self.lib(pid);
        let at = lib.busy.max(self.now + Duration::from_micros(20));
        self.step_at(pid, at);
    }

    /// It looks after everything, and its program makes some calls.
    pub fn step(&mut self, pid: u32) {
        let process = &mut self.processes[pid as usize];
        if process.step.take_if(|at| *at <= self.now).is_none() || process.ended.is_some() || process.lib.is_none() {
            return;
        }
        self.hear_node(pid);
        if !self.is_running(pid) {
            return;
        }
        self.hear_protector(pid);
        if !self.is_running(pid) {
            return;
        }
        let blocked = self.is_running(pid) && !self.is_session_up(pid);
        if self.is_running(pid) && !blocked {
            self.tend(pid);
            let (now, busy) = (self.now, self.lib(pid).busy);
            let calls = if now < busy { 0 } else { 1 + self.dice.below(3) };
            for _ in 0..calls {
                if self.is_running(pid) {
                    self.call(pid);
                }
            }
        }
        if self.is_running(pid) {
            self.tend_after(pid);
            let pause = self.pause(pid, blocked);
            self.step_at(pid, self.now + pause);
        }
    }

    fn pause(&mut self, pid: u32, blocked: bool) -> Duration {
        let us = |us: usize| Duration::from_micros(us as u64);
        if blocked {
            return us(2_000 + self.dice.below(8_000));
        }
        if self.dice.one_in(60) {
            let busy = self.now + us(self.dice.below(40_000));
            self.lib(pid).busy = busy;
        }
        let pace = self.plan.pace.as_micros() as usize;
        us(pace / 2 + self.dice.below(pace)).max(self.lib(pid).busy.saturating_sub(self.now))
    }

    fn tend(&mut self, pid: u32) {
        self.ship_journal(pid);
        self.ship_payload(pid);
        self.tend_links(pid);
        if !self.is_running(pid) {
            return;
        }
        self.forget_closed(pid);
        self.drive_session(pid, Session::handle_timeout);
        if !self.is_running(pid) {
            return;
        }
        if self.lib(pid).due && self.dice.below(4) > 0 {
            self.checkpoint(pid);
        }
    }

    fn tend_after(&mut self, pid: u32) {
        if !self.lib(pid).is_log_up() {
            return;
        }
        self.ship_journal(pid);
        self.transmit_all(pid);
        // The library asks once for all of its sends while an answer is on its way.
        let asks = self.dice.below(40);
        if asks == 0 || asks < 8 && self.lib(pid).observer.outbox().is_pressed() {
            self.ask_stable(pid);
        }
        self.check_kept(pid);
    }

    /// Ships what waits of the journal, and asks for what it wants of its log.
    fn ship_journal(&mut self, pid: u32) {
        self.look_at_log(pid);
        let lib = self.lib(pid);
        let Some([conn, _]) = lib.conns.used else { return };
        if let Some(ship) = lib.observer.poll_journal() {
            let message = ToProtector::Journal { position: ship.position, bytes: &[] };
            let bytes = framed(ship.head, ship.tail, |out| message.write(out));
            self.send(conn, 0, Packet::Word(Word::Log(bytes)));
        }
    }

    fn ship_payload(&mut self, pid: u32) {
        let Some(conns) = self.lib(pid).conns.used.filter(|_| self.lib(pid).is_log_up()) else { return };
        while let Some(piece) = self.lib(pid).observer.poll_payload() {
            let (position, stream, offset) = (piece.position, piece.stream, piece.offset);
            let bytes = if piece.is_end {
                code(|out| ToProtector::PayloadEnd { position, stream, offset }.write(out))
            } else {
                framed(piece.head, piece.tail, |out| ToProtector::Payload { position, stream, offset, bytes: &[] }.write(out))
            };
            self.send(conns[1], 0, Packet::Word(Word::Log(bytes)));
        }
    }

    fn forget_closed(&mut self, pid: u32) {
        while let Some(word) = self.lib(pid).observer.poll_forget() {
            self.say_forgettable(pid, word);
        }
        while let Some(connection) = self.lib(pid).observer.poll_over() {
            self.tell_node(pid, ToNode::Over { connection });
        }
        self.close_forgotten(pid);
    }

    // ---- calls of the program

    fn call(&mut self, pid: u32) {
        if self.lib(pid).session.is_leaving() {
            return self.leave(pid);
        }
        if self.lib(pid).program.owed.is_some() {
            return self.print(pid);
        }
        if self.breaks.lots && self.dice.one_in(30) {
            self.lib(pid).program.app.handle_nothing();
        }
        let calls = self.lib(pid).program.calls;
        let lib = self.lib(pid);
        let result = match (lib.rest.clone(), lib.program.app.op()) {
            (Some((socket, bytes, blocking, done)), _) => self.send_bytes(pid, socket, &bytes, blocking, done),
            (None, Op::Connect { fd, peer }) => self.app_connect(pid, fd, peer),
            (None, Op::Accept { fd, blocking }) => self.app_accept(pid, fd, blocking),
            (None, Op::Poll { blocking }) => self.app_poll(pid, blocking),
            (None, Op::Receive { socket, max, blocking }) => self.app_receive(pid, socket, max, blocking),
            (None, Op::Send { socket, bytes, blocking }) => self.send_bytes(pid, socket, &bytes, blocking, 0),
            (None, Op::Finish { socket }) => self.app_finish(pid, socket),
            (None, Op::Close { socket }) => self.app_close(pid, socket),
            (None, Op::Done) => {
                self.begin_to_leave(pid);
                Ok(())
            }
        };
        if self.is_running(pid) && self.sure(pid, result).is_some() && self.lib(pid).program.calls != calls {
            self.after_call(pid);
        }
    }

    /// A call has had an outcome: the program may print now.
    fn after_call(&mut self, pid: u32) {
        let lib = self.lib(pid);
        let dice = mix(lib.program.app.state(), 9);
        if dice.is_multiple_of(12) {
            lib.program.owed = Some(dice.to_le_bytes()[..4].to_vec());
        }
        if lib.program.calls == STARTED && !std::mem::replace(&mut lib.initialized, true) {
            self.tell_node(pid, ToNode::Initialized);
        }
    }

    fn print(&mut self, pid: u32) {
        let gate = self.lib(pid).observer.gate_of_output(0);
        let Some(gate) = self.sure(pid, gate) else { return };
        if gate.is_some() && !self.breaks.gate {
            return;
        }
        let position = self.lib(pid).observer.journal().end();
        self.check_departure(pid, position);
        let program = &mut self.lib(pid).program;
        program.out.extend(program.owed.take().unwrap_or_default());
        self.pump_output(pid);
    }

    fn app_connect(&mut self, pid: u32, fd: u32, peer: ProcessId) -> Result<(), Error> {
        let lib = self.lib(pid);
        if !lib.program.calling {
            match lib.observer.address(0, Ask::Target { fd })? {
                Address::Live => {
                    let local = ([127, 0, 0, 1], fd as u16).into();
                    lib.observer.handle_outcome(0, &Determinant::Target { fd, local, peer: Some(peer) })?;
                }
                Address::Again(_, then) => assert_eq!(then, Some(peer), "connect calls whom it called then"),
                Address::Failed(errno) => panic!("no connect failed then: {errno}"),
                Address::Wait(_) => return Ok(()),
            }
            lib.program.calling = true;
        }
        let again = match lib.observer.ask(0, Ask::Connect { fd }, true)? {
            Ready::Live => false,
            Ready::Outcome(0) => true,
            Ready::Wait(_) => return Ok(()),
            other => panic!("a connect that waits, and succeeded then: {other:?}"),
        };
        let Ok(slot) = lib.observer.connect(fd, peer)? else { return Ok(()) };
        lib.program.calling = false;
        lib.program.app.handle_connected(fd);
        lib.program.calls += 1;
        if !again {
            self.begin_link(pid, slot);
            self.lib(pid).observer.handle_outcome(0, &Determinant::Connected { fd })?;
        }
        Ok(())
    }

    fn app_accept(&mut self, pid: u32, fd: u32, blocking: bool) -> Result<(), Error> {
        let lib = self.lib(pid);
        match lib.observer.accept(0, LISTENER, blocking)? {
            Accept::Offered(connection) => {
                let address = ([127, 0, 0, 1], connection.number as u16).into();
                lib.observer.handle_accepted(0, LISTENER, fd, connection, address)?;
                lib.program.app.handle_accepted(fd, u64::from(connection.opener.rank.0) * 100 + connection.number);
            }
            Accept::Again { fd: then, connection, peer } => {
                assert_eq!((then, peer.port()), (fd, connection.number as u16), "accept tells what it told then");
                lib.program.app.handle_accepted(fd, u64::from(connection.opener.rank.0) * 100 + connection.number);
            }
            Accept::Nothing => lib.program.app.handle_nothing(),
            Accept::Failed(errno) => panic!("no accept failed then: {errno}"),
            Accept::Wait(_) => return Ok(()),
        }
        lib.program.calls += 1;
        Ok(())
    }

    fn app_poll(&mut self, pid: u32, blocking: bool) -> Result<(), Error> {
        let lib = self.lib(pid);
        let mut ready = [ReadyFd { fd: 0, events: 0 }; 8];
        match lib.observer.ready(0, None, blocking, &mut ready)? {
            Ready::Live => {
                let mut count = 0;
                for socket in lib.program.app.sockets.iter().filter(|socket| !socket.closed) {
                    let slot = lib.observer.table().slot_of(socket.fd)?;
                    if lib.observer.is_readable(slot) || lib.has_bytes(slot) {
                        ready[count] = ReadyFd { fd: socket.fd, events: 1 };
                        count += 1;
                    }
                }
                if count == 0 && blocking {
                    return Ok(());
                }
                lib.observer.handle_ready(0, None, &ready[..count])?;
                if count == 0 { lib.program.app.handle_nothing() } else { lib.program.app.handle_ready(&ready[..count]) }
            }
            Ready::Set(count) => lib.program.app.handle_ready(&ready[..count]),
            Ready::Nothing => lib.program.app.handle_nothing(),
            Ready::Outcome(errno) => panic!("no poll failed then: {errno}"),
            Ready::Wait(_) => return Ok(()),
        }
        self.lib(pid).program.calls += 1;
        Ok(())
    }

    fn app_receive(&mut self, pid: u32, socket: usize, max: usize, blocking: bool) -> Result<(), Error> {
        let lib = self.lib(pid);
        let fd = lib.program.app.sockets[socket].fd;
        match lib.observer.receive(0, fd, max, blocking)? {
            Receive::Take { source, stream, offset, len, owed } => {
                let got = lib.program.app.sockets[socket].received + lib.partial.len() as u64;
                assert_eq!(offset, got, "G3: the program has {got}, and is given {offset} of {stream:?}");
                return self.take_bytes(pid, (socket, blocking), (source, stream, offset, len, owed));
            }
            Receive::End => {
                let slot = lib.observer.table().slot_of(fd)?;
                let stream = lib.observer.table().get(slot).expect("it was read").stream_in();
                let got = lib.program.app.sockets[socket].received;
                lib.program.app.handle_end(socket);
                self.check_stream_end(pid, stream, got);
            }
            Receive::Nothing => lib.program.app.handle_nothing(),
            Receive::Failed(errno) => panic!("no recv failed then: {errno}"),
            Receive::Wait(_) => return Ok(()),
        }
        self.lib(pid).program.calls += 1;
        Ok(())
    }

    fn take_bytes(
        &mut self,
        pid: u32,
        (socket, blocking): (usize, bool),
        (source, stream, offset, len, owed): (Source, StreamId, u64, usize, bool),
    ) -> Result<(), Error> {
        let fd = self.lib(pid).program.app.sockets[socket].fd;
        let slot = self.lib(pid).observer.table().slot_of(fd)?;
        let most = 1 + self.dice.below(len);
        let bytes = match source {
            Source::Log => match self.bytes_of_log(pid, stream, offset, most) {
                Some(bytes) => bytes,
                None => return Ok(()),
            },
            Source::Link => {
                let end = self.end_of(pid, slot);
                end.map_or_else(Vec::new, |end| self.lib(pid).sockets.take_bytes(end, most))
            }
        };
        if bytes.is_empty() {
            let lib = self.lib(pid);
            if !owed && !blocking && !lib.observer.is_readable(slot) {
                lib.observer.handle_nothing(0)?;
                lib.program.app.handle_nothing();
                lib.program.calls += 1;
            }
            return Ok(());
        }
        self.counts.delivered += bytes.len() as u64;
        self.check_bytes(pid, stream, offset, &bytes);
        let lib = self.lib(pid);
        lib.partial.extend_from_slice(&bytes);
        if let Some(len) = lib.observer.handle_received(0, fd, source, &bytes)? {
            assert_eq!(len, lib.partial.len());
            let taken = std::mem::take(&mut lib.partial);
            lib.program.app.handle_received(socket, &taken);
            lib.program.calls += 1;
            self.note_dependence(pid, stream, offset + bytes.len() as u64);
        }
        Ok(())
    }

    /// Bytes of the protector's log, if they are here; else they are asked for.
    fn bytes_of_log(&mut self, pid: u32, stream: StreamId, offset: u64, most: usize) -> Option<Vec<u8>> {
        let mut room = vec![0; most];
        let is_up = self.lib(pid).is_log_up();
        let serve =
            |session: &mut Session, _: &mut Context<'_>| Ok(session.serve(stream, offset, &mut [IoSliceMut::new(&mut room)]));
        let count = if is_up { self.drive_session(pid, serve)? } else { 0 };
        room.truncate(count);
        (count > 0).then_some(room)
    }

    fn send_bytes(&mut self, pid: u32, socket: usize, bytes: &[u8], blocking: bool, done: usize) -> Result<(), Error> {
        let lib = self.lib(pid);
        let fd = lib.program.app.sockets[socket].fd;
        let (again, position) = (lib.observer.is_replaying(), lib.observer.journal().end());
        let offset = lib.program.app.sockets[socket].sent as usize + done;
        let first = if offset.is_multiple_of(3) { bytes } else { &bytes[..bytes.len().div_ceil(2)] };
        match lib.observer.send(0, fd, first, done, blocking)? {
            Send::Taken { len, whole } => {
                let whole = whole && (len == bytes.len() || len < first.len());
                let slot = lib.observer.table().slot_of(fd)?;
                let stream = lib.observer.table().get(slot).expect("it took bytes").stream_out();
                lib.rest = (!whole).then(|| (socket, bytes[len..].to_vec(), blocking, done + len));
                if whole {
                    lib.program.app.handle_sent(socket, done + len);
                    lib.program.calls += 1;
                }
                if !again {
                    self.check_departure(pid, position);
                }
                self.check_sent(pid, stream, offset as u64, &bytes[..len]);
            }
            Send::Failed(errno) => {
                assert_eq!(errno, 11);
                lib.program.app.handle_nothing();
                lib.program.calls += 1;
            }
            Send::Wait(_) => {}
        }
        Ok(())
    }

    fn app_finish(&mut self, pid: u32, socket: usize) -> Result<(), Error> {
        let lib = self.lib(pid);
        let fd = lib.program.app.sockets[socket].fd;
        let slot = lib.observer.table().slot_of(fd)?;
        if lib.observer.finish(fd)?.is_none() {
            lib.program.app.handle_finished(socket);
            lib.program.calls += 1;
            self.tell_finished(pid, slot, false);
        }
        Ok(())
    }

    fn app_close(&mut self, pid: u32, socket: usize) -> Result<(), Error> {
        let lib = self.lib(pid);
        let fd = lib.program.app.sockets[socket].fd;
        let slot = lib.observer.table().slot_of(fd)?;
        if lib.observer.close(fd)?.is_none() {
            lib.program.app.handle_closed(socket);
            lib.program.calls += 1;
            self.tell_finished(pid, slot, true);
        }
        Ok(())
    }

    fn begin_to_leave(&mut self, pid: u32) {
        let left = self.lib(pid).observer.handle_leaving().and_then(|()| self.lib(pid).observer.gate_of_output(0));
        let Some(gate) = self.sure(pid, left) else { return };
        if self.lib(pid).observer.settle() && gate.is_none() {
            self.drive_session(pid, |session, cx| {
                session.handle_leaving(cx.now);
                Ok(())
            });
        }
    }

    /// It stays until all that it has sent is safe, and its protector has all that it has received.
    fn leave(&mut self, pid: u32) {
        if self.drive_session(pid, |session, cx| Ok(session.may_end(cx))) == Some(true) {
            self.tell_node(pid, ToNode::Leaving(Box::default()));
            self.end_process(pid, ExitStatus::Code(0));
        }
    }

    // ---- bytes that leave

    fn transmit_all(&mut self, pid: u32) {
        let slots: Vec<Slot> = self.lib(pid).observer.table().iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            // A socket takes some, not always all.
            let most = 1 + self.dice.below(3);
            _ = (0..most).all(|_| self.transmit(pid, slot));
        }
    }

    /// False: there is nothing to send, or no link.
    fn transmit(&mut self, pid: u32, slot: Slot) -> bool {
        let link = self.end_of(pid, slot).and_then(|end| self.lib(pid).sockets.conn(end));
        let Some((conn, side)) = link else { return false };
        match self.lib(pid).observer.poll_transmit(slot) {
            Some(Transmit::Bytes(offset)) => {
                let bytes: Vec<u8> = self.lib(pid).observer.outgoing(slot, offset).flatten().copied().collect();
                let bytes = bytes[..1 + self.dice.below(bytes.len())].to_vec();
                self.lib(pid).observer.handle_transmitted(slot, bytes.len() as u64);
                self.send(conn, side, Packet::Bytes(bytes));
            }
            Some(Transmit::End) => {
                self.lib(pid).observer.handle_transmitted(slot, 1);
                self.send(conn, side, Packet::End);
            }
            None => return false,
        }
        true
    }
}
