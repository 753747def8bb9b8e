//! One life of a rank: the real observer with a small program, driven as `preload/` drives it, but for the system calls: its beginning and its end,
//! what its node says, and the order in
//! which it looks after everything between two calls of its program. Links are in [`super::links`], images in [`super::images`].

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use radic_observer::causes::Bounds;
use radic_observer::connection::{Connection, Link, Slot};
use radic_observer::haste::Haste;
use radic_observer::links::Links;
use radic_observer::pressure::Pressure;
use radic_observer::session::Session;
use radic_observer::session::images::Images;
use radic_observer::{Error, Failure, Front, Observer};
use radic_protector::node::{Input, ObserverId};
use radic_wire::determinant::StreamId;
use radic_wire::ids::{Incarnation, ProcessId, Rank};
use radic_wire::job::ExitStatus;
use radic_wire::log::FromProtector;
use radic_wire::process::{FromNode, Point, Restart, ToNode};

use super::calls::Calls;
use super::images::{Saved, Shipping};
use super::links::Sockets;
use super::net::{ConnId, Owner, Packet};
use super::program::Program;
use super::queue::Event;
use super::session::Conns;
use super::stdio::Pipes;
use super::world::World;

/// The code of a process that cannot go on.
const FAILED: i32 = 125;
/// Microseconds within which a node hears all of the end of a process.
const ENDED: usize = 300;
/// Where the number of the program begins in the name of an observer, above that of the process.
const PROGRAM: u32 = 32;
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
    threads: 2,
    causes: None,
    payload_stays: false,
    unsent: 96,
};

/// The same, where no process waits before it sends.
pub const CAUSAL: radic_observer::Config = radic_observer::Config { causes: Some(Bounds { kept: 4_096, passed: 80 }), ..CONFIG };

/// The same, where what is received stays with its senders: these have room for what recovery lines have not freed yet.
pub const STAYS: radic_observer::Config = radic_observer::Config { outbox_blocks: 48, payload_stays: true, ..CAUSAL };

/// The library in a process.
pub struct Lib {
    /// The observer.
    pub observer: Observer,
    /// The program, and what it has printed.
    pub program: Program,
    /// What decides about the connections to the protector.
    pub session: Session,
    /// These connections.
    pub conns: Conns,
    /// What the protector has said and nobody has read.
    pub from_protector: VecDeque<Vec<u8>>,
    /// What the node has said and nobody has read.
    pub from_node: VecDeque<FromNode>,
    /// What decides about links that are not up.
    pub links: Links,
    /// The sockets of links, and of those that are to be some.
    pub sockets: Sockets,
    /// The listener, and calls that are under way.
    pub calls: Calls,
    /// What decides about images.
    pub images: Images,
    /// The connection of the image under way.
    pub image: Option<Shipping>,
    /// A checkpoint is wanted.
    pub due: bool,
    /// When the node is told that the outbox fills.
    pub pressure: Pressure,
    /// The program is through with its start.
    pub initialized: bool,
    /// Its peers can call it.
    pub has_door: bool,
    /// It computes until then, and looks at nothing.
    pub busy: Duration,
    /// When outcomes are shipped.
    pub haste: Haste,
    /// Its last calls have received bytes, and when that is shipped [`Haste`] decides.
    pub has_received: bool,
}

/// What has come for a process that is stopped.
#[derive(Debug, Default)]
struct Held {
    /// Packets, by connection and side.
    packets: Vec<(ConnId, usize)>,
    /// What its node has said.
    words: Vec<Option<FromNode>>,
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
    /// It is stopped (SIGSTOP), and that is what has come meanwhile.
    stopped: Option<Held>,
    /// The pipes between it and its host.
    pub pipes: Pipes,
    /// How often its program was replaced by another one (exec).
    programs: u64,
}

impl Process {
    /// The name of its connection to the node: each program of the process has one of its own.
    pub fn observer_id(&self, pid: u32) -> ObserverId {
        ObserverId(u64::from(pid) | self.programs << PROGRAM)
    }

    /// Whether it has executed another program.
    pub fn has_executed(&self) -> bool {
        self.programs > 0
    }

    /// Its life, once it knows.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.lib.as_ref().map(|lib| lib.observer.incarnation())
    }
}

impl Lib {
    /// Bytes of the program from the socket of this end, at most so many: as the kernel gives them, in frames, one read or two.
    pub fn read_link(&mut self, slot: Slot, end: StreamId, most: usize, forgetful: bool) -> Vec<u8> {
        let Some(deframer) = self.observer.deframer(slot) else { return Vec::new() };
        let mut bytes = vec![0; most];
        let mut taken = deframer.take_ahead(&mut bytes).expect("G3: what arrives on a link is in frames");
        if taken == 0 {
            let room = deframer.header_room().len();
            let asked = if deframer.left() > 0 { most.min(deframer.left() as usize) } else { room + most };
            bytes = self.sockets.take_bytes(end, asked);
            taken = deframer.unframe(&mut bytes).expect("G3: what arrives on a link is in frames");
        }
        bytes.truncate(taken);
        if forgetful {
            deframer.handle_kept();
        }
        bytes
    }

    /// Bytes of the program that lie in the socket of this end.
    pub fn unread(&self, end: StreamId) -> u64 {
        self.look_at_unread(end).0
    }

    /// The same, with what they depend on.
    pub fn look_at_unread(&self, end: StreamId) -> (u64, Vec<u8>) {
        let incoming = self.observer.table().find_end(end.connection, end.from_opener);
        let incoming = incoming.and_then(|slot| self.observer.table().get(slot)).map(Connection::incoming);
        incoming.map_or((0, Vec::new()), |incoming| {
            let mut deframer = incoming.deframer().clone();
            let mut bytes = [deframer.give_back_ahead(), self.sockets.unread(end)].concat();
            let unread = deframer.unframe(&mut bytes).unwrap_or(0) as u64;
            (unread, deframer.causes().to_vec())
        })
    }

    /// Whether the socket of a connection has bytes that were not taken.
    pub fn has_bytes(&self, slot: Slot) -> bool {
        self.observer.table().get(slot).is_some_and(|connection| self.sockets.has_bytes(connection.stream_out()))
    }

    /// The same, as a program is told it: the header before the bytes is read, and what they depend on is kept.
    pub fn look_for_bytes(&mut self, slot: Slot) -> Result<bool, Error> {
        let Some(connection) = self.observer.table().get(slot) else { return Ok(false) };
        let (end, is_up) = (connection.stream_out(), connection.link() == Link::Up);
        if self.observer.causes().is_some() {
            if !is_up {
                // It comes again on the next link, with what it depends on.
                return Ok(false);
            }
            let sockets = &mut self.sockets;
            let read = |room: &mut [u8]| {
                let bytes = sockets.take_bytes(end, room.len());
                room[..bytes.len()].copy_from_slice(&bytes);
                Some(bytes.len()).filter(|count| *count > 0)
            };
            let front = self.observer.look_past_header(slot, true, read)?;
            if front != Front::Socket {
                return Ok(front == Front::Bytes);
            }
        }
        Ok(self.has_bytes(slot))
    }

    /// What an image of the process has, made now.
    pub fn saved(&self) -> Saved {
        Saved {
            observer: self.observer.clone(),
            program: self.program.clone(),
            links: self.links.clone(),
            images: self.images.clone(),
            pressure: self.pressure.clone(),
            haste: self.haste.clone(),
            has_received: self.has_received,
            initialized: self.initialized,
            due: self.due,
        }
    }

    /// Where its log goes.
    pub fn protector(&self) -> SocketAddr {
        self.session.protector()
    }

    /// Where it stands, for people.
    pub fn standing(&self) -> String {
        let observer = &self.observer;
        let table: Vec<_> = observer.table().iter().map(|(_, c)| format!("{c:?}")).collect();
        format!(
            "{} life {}, {:?}, at {} with {} to come, next {:?}, {:?} {:?}, {}, gate {:?}, outbox {}, {:?}\n    {}",
            observer.causes().map(|causes| causes.standing()).unwrap_or_default(),
            observer.incarnation(),
            observer.phase(),
            observer.log_position(),
            observer.left_of_log(),
            observer.overdue(0),
            self.session,
            self.conns,
            self.program.standing(),
            observer.gate(),
            observer.outbox().used(),
            (&self.images, &self.links, &self.sockets, &self.calls),
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

    /// Whether the process runs, and its program has joined.
    pub(super) fn has_library(&self, pid: u32) -> bool {
        self.is_running(pid) && self.processes[pid as usize].lib.is_some()
    }

    pub(super) fn is_running(&self, pid: u32) -> bool {
        self.processes[pid as usize].ended.is_none()
    }

    // ---- SIGSTOP and SIGCONT

    /// The process does nothing until it is continued.
    pub fn stop(&mut self, pid: u32) {
        if self.is_running(pid) {
            self.processes[pid as usize].stopped.get_or_insert_default();
        }
    }

    /// It goes on, and what has come meanwhile comes now.
    pub fn continue_after_stop(&mut self, pid: u32) {
        let Some(Held { packets, words }) = self.processes[pid as usize].stopped.take() else { return };
        let soon = self.now + super::LOCAL;
        for (conn, side) in packets {
            self.schedule(soon, Event::Arrive(conn, side));
        }
        self.step_at(pid, soon);
        // Before all that the node has said since.
        words.into_iter().for_each(|word| self.hear(pid, word));
    }

    /// Whether it runs, and is stopped.
    pub fn is_stopped(&self, pid: u32) -> bool {
        let process = &self.processes[pid as usize];
        process.ended.is_none() && process.stopped.is_some()
    }

    /// A packet waits until it goes on.
    pub fn hold_arrival(&mut self, pid: u32, conn: ConnId, side: usize) {
        if let Some(held) = &mut self.processes[pid as usize].stopped {
            held.packets.push((conn, side));
        }
    }

    // ---- beginning and end

    /// The node starts a rank.
    pub fn spawn(&mut self, at: usize, id: ProcessId) {
        self.begin_process(at, id, None);
    }

    /// The node brings one back.
    pub fn restore(&mut self, at: usize, id: ProcessId, incarnation: Incarnation, saved: usize) {
        self.counts.restarts += 1;
        self.begin_process(at, id, Some((incarnation, saved)));
    }

    fn begin_process(&mut self, at: usize, id: ProcessId, restored: Option<(Incarnation, usize)>) {
        let pid = self.processes.len() as u32;
        let (lib, ended, step, stopped, pipes, programs) = Default::default();
        self.processes.push(Process { id, machine: at, lib, restored, ended, step, stopped, pipes, programs });
        self.machines[at].ranks.insert(id, pid);
        self.measure_place(at, id);
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
        let message = match process.restored.filter(|_| process.programs == 0) {
            None => ToNode::Join { version, process: id },
            Some((_, saved)) => {
                let Saved { observer, program, .. } = &self.saved[saved];
                let (incarnation, cut) = (observer.incarnation(), observer.journal().end());
                let output = [program.output.offset(), 0];
                let point = Point { incarnation, cut, output, fences: 0, pmi: (false, false) };
                ToNode::Restored { version, process: id, point }
            }
        };
        self.tell_node(pid, message);
    }

    /// Says something to its node.
    pub fn tell_node(&mut self, pid: u32, message: ToNode) {
        let process = &self.processes[pid as usize];
        let (at, observer) = (process.machine, process.observer_id(pid));
        self.input_soon(at, Input::Observer(observer, pid, message));
    }

    /// The program executes another one: nothing is left of the library, and the new one joins.
    pub fn execute(&mut self, pid: u32) {
        let process = &mut self.processes[pid as usize];
        let (at, before) = (process.machine, process.observer_id(pid));
        process.lib = None;
        process.programs += 1;
        self.trace(|| format!("n{}: process {pid} executes another program", at + 1));
        self.net.listeners.retain(|_, owner| *owner != Owner::Process(pid));
        self.abort_all(Owner::Process(pid));
        self.input_soon(at, Input::ObserverGone(before));
        self.begin(pid);
    }

    /// It ends, for whatever reason.
    pub fn end_process(&mut self, pid: u32, status: ExitStatus) {
        let process = &mut self.processes[pid as usize];
        if process.ended.is_some() {
            return;
        }
        process.ended = Some(status);
        for (conn, side) in process.stopped.take().into_iter().flat_map(|held| held.packets) {
            self.schedule(self.now + super::LOCAL, Event::Arrive(conn, side));
        }
        let process = &self.processes[pid as usize];
        let (id, at, observer) = (process.id, process.machine, process.observer_id(pid));
        let is_live = process.lib.as_ref().is_some_and(|lib| !lib.observer.is_replaying());
        if process.restored.is_some() && !is_live {
            self.checks.trouble_of(id).deaths += 1;
        }
        self.trace(|| format!("n{}: process {pid} of {id} ends: {status:?}", at + 1));
        self.net.listeners.retain(|_, owner| *owner != Owner::Process(pid));
        self.abort_all(Owner::Process(pid));
        // The node hears these from a socket, from the kernel, and from pipes: in any order, but after all that the process has said.
        let boot = self.machines[at].boot;
        let gone = Event::Input(at, boot, Box::new(Input::ObserverGone(observer)));
        let exited = Event::Input(at, boot, Box::new(Input::Exited(id, status)));
        for event in [gone, exited, Event::OutputEnds(pid)] {
            let after = Duration::from_micros(self.dice.below(ENDED) as u64);
            self.schedule(self.now + super::LOCAL + after, event);
        }
    }

    /// It cannot go on without breaking a guarantee.
    pub fn fail(&mut self, pid: u32, why: &str) {
        self.trace(|| format!("process {pid} cannot go on: {why}"));
        self.end_process(pid, ExitStatus::Code(FAILED));
    }

    /// The value; else the end of the process. That never happens in the incarnation that speaks for its process, unless its job is about to end.
    pub fn sure<T>(&mut self, pid: u32, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let process = &self.processes[pid as usize];
                let incarnation = process.incarnation().expect("it has an observer");
                let is_excused = !self.is_voice(pid) || self.is_ended_by_its_home();
                assert!(is_excused, "observer of {}, life {incarnation}: {error}\n{}", process.id, self.standing());
                self.end_by(pid, &error);
                None
            }
        }
    }

    /// The end of a process, as the library does it: its protector judges of a crash, its home of an exit.
    pub fn end_by(&mut self, pid: u32, error: &Error) {
        let failure = Failure::from(*error);
        if failure.is_fenced() {
            return self.end_process(pid, ExitStatus::Signal(libc::SIGKILL));
        }
        if failure.is_divergence() {
            self.tell_node(pid, ToNode::Diverged(failure.to_string()));
        }
        self.fail(pid, &failure.to_string());
    }

    // ---- its node

    /// The node says something; none: it has closed the connection.
    pub fn hear(&mut self, pid: u32, message: Option<FromNode>) {
        if !self.is_running(pid)
            || self.breaks.deaf && matches!(message, Some(FromNode::Restarted { .. } | FromNode::Place { .. }))
        {
            return;
        }
        if let Some(held) = &mut self.processes[pid as usize].stopped {
            return held.words.push(message);
        }
        match message {
            None => self.fail(pid, "its node has closed the connection"),
            Some(FromNode::Joined { incarnation, protector, journal, .. }) => self.joined(pid, (incarnation, journal), protector),
            Some(FromNode::Restart(restart)) => self.come_back(pid, *restart),
            Some(FromNode::Refused(why)) => {
                self.measure_miss(|| format!("process {pid} is refused: {why}"));
                self.fail(pid, &why);
            }
            Some(message) => {
                if let Some(lib) = &mut self.processes[pid as usize].lib {
                    lib.from_node.push_back(message);
                    if self.is_in_question(pid) {
                        self.step_soon(pid);
                    }
                }
            }
        }
    }

    fn joined(&mut self, pid: u32, (incarnation, journal): (Incarnation, u64), protector: SocketAddr) {
        self.measure_joined();
        let id = self.processes[pid as usize].id;
        if incarnation.epoch > self.checks.epoch {
            self.pasts.clear();
        }
        self.checks.handle_incarnation(id, incarnation);
        self.name_listener(pid, incarnation.epoch);
        self.pasts.forget(id);
        let programs = self.processes[pid as usize].programs;
        let program = Program::new(&self.plan, id, programs);
        let config = match (self.plan.causal, self.plan.stays) {
            (true, true) => &STAYS,
            (true, false) => &CAUSAL,
            (false, _) => &CONFIG,
        };
        let observer = Observer::begins_at(id, incarnation, journal, config);
        let haste = if self.plan.causal { Haste::lazy() } else { Haste::default() };
        let (links, images, pressure, has_received, initialized, due) = Default::default();
        let new = Saved { observer, program, links, images, pressure, haste, has_received, initialized, due };
        self.add_lib(pid, new, Session::new(protector));
    }

    fn come_back(&mut self, pid: u32, restart: Restart) {
        let id = self.processes[pid as usize].id;
        let (_, saved) = self.processes[pid as usize].restored.expect("it was ordered");
        if self.plan.is_useless(saved) {
            return self.end_process(pid, ExitStatus::Signal(libc::SIGBUS));
        }
        let mut saved = self.saved[saved].clone();
        saved.program.output.handle_restored(true);
        saved.images.handle_restored();
        let voice = self.checks.is_voice(id, restart.incarnation);
        self.add_lib(pid, saved, Session::restarted(restart.protector, restart.log_end));
        self.undo_past(pid, restart.incarnation, restart.log_end);
        if voice {
            self.checks.undo(id, restart.log_end, &restart.held);
        }
        // With two threads the log is read ahead: as far as it is here.
        let ahead = if self.plan.threads { 8_192 } else { 128 };
        let result = self.lib(pid).observer.restart(
            restart.incarnation,
            restart.log_end,
            restart.held,
            restart.images,
            (restart.causes.0, &restart.causes.1),
            ahead,
        );
        if self.sure(pid, result).is_none() {
            return;
        }
        for (process, incarnation) in restart.restarted {
            self.lib(pid).observer.handle_restarted(process, incarnation);
        }
        self.break_all(pid);
    }

    fn add_lib(&mut self, pid: u32, memory: Saved, session: Session) {
        let Saved { observer, program, links, images, pressure, haste, has_received, initialized, due } = memory;
        let (conns, from_protector, from_node, sockets, calls, image) = Default::default();
        let lib = Lib {
            observer,
            program,
            session,
            conns,
            from_protector,
            from_node,
            links,
            sockets,
            calls,
            images,
            image,
            due,
            pressure,
            initialized,
            has_door: false,
            busy: Duration::ZERO,
            haste,
            has_received,
        };
        self.processes[pid as usize].lib = Some(Box::new(lib));
        self.step_at(pid, self.now);
    }

    /// Its node collects what lost processes did. A process that computes is nudged, and answers all the same; one that waits for an answer of its
    /// node, or for the login of an image,
    /// answers after that.
    fn say_causes(&mut self, pid: u32, ask: u64, lost: &[(Rank, Incarnation)]) {
        if let Some(causes) = self.collect(pid, lost) {
            let is_silent = self.breaks.silent && self.processes[pid as usize].id.rank == Rank(0);
            let causes = if is_silent { Vec::new() } else { causes }.into();
            self.tell_node(pid, ToNode::Holds { ask, causes });
        }
    }

    fn hear_node(&mut self, pid: u32) {
        while self.is_running(pid)
            && let Some(message) = self.lib(pid).from_node.pop_front()
        {
            self.handle_node(pid, message);
        }
    }

    /// What its node has said.
    pub fn handle_node(&mut self, pid: u32, message: FromNode) {
        match message {
            FromNode::Protector(address) => {
                self.drive_session(pid, |session, cx| {
                    session.handle_named(cx, address);
                    Ok(())
                });
            }
            FromNode::MayEnd => {
                self.drive_session(pid, |session, _| {
                    session.handle_may_end();
                    Ok(())
                });
            }
            FromNode::Stable { stream, offset } => {
                self.drive_session(pid, |session, cx| session.handle_stable(cx, stream, offset));
                self.break_dropped(pid);
            }
            FromNode::Forget { connection, for_good } => {
                let result = self.lib(pid).observer.handle_protector(&FromProtector::Forget { connection, for_good });
                self.sure(pid, result);
                self.close_forgotten(pid);
            }
            FromNode::Collect { ask, lost } => self.say_causes(pid, ask, &lost),
            FromNode::Checkpoint { request, line } => {
                self.drive_images(pid, |images, cx| images.handle_request(cx, request, line));
            }
            FromNode::MakeRoom { connection, from } => {
                self.drive_images(pid, |images, cx| images.handle_make_room(cx, connection, from));
            }
            message => self.handle_link_message(pid, &message),
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
        if process.stopped.is_some() {
            process.step = None;
            return;
        }
        if process.step.take_if(|at| *at <= self.now).is_none() || process.ended.is_some() || process.lib.is_none() {
            return;
        }
        if self.is_in_question(pid) || self.is_logging_in(pid) {
            self.look_for_answer(pid);
            if self.is_running(pid) {
                let pause = self.pause(pid, false);
                self.step_at(pid, self.now + pause);
            }
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
            // A process that has no log yet lets nobody in.
            if !std::mem::replace(&mut self.lib(pid).has_door, true) {
                self.open_door(pid);
            }
            self.tend(pid);
            self.print_again(pid);
            let (now, busy) = (self.now, self.lib(pid).busy);
            let calls = if now < busy { 0 } else { 1 + self.dice.below(3) };
            for _ in 0..calls {
                if self.has_library(pid) && !self.waits_inside(pid) {
                    self.call(pid);
                }
            }
        }
        if self.has_library(pid) {
            if !self.waits_inside(pid) {
                self.tend_after(pid);
            }
            let pause = self.pause(pid, blocked);
            self.step_at(pid, self.now + pause);
        }
    }

    /// Whether the process waits inside the library for one thing, and does nothing else.
    fn waits_inside(&mut self, pid: u32) -> bool {
        self.is_in_question(pid) || self.is_logging_in(pid)
    }

    fn pause(&mut self, pid: u32, blocked: bool) -> Duration {
        let us = |us: usize| Duration::from_micros(us as u64);
        if blocked {
            return us(2_000 + self.dice.below(8_000));
        }
        if self.goes_wrong(60) {
            let busy = self.now + us(self.dice.below(40_000));
            self.lib(pid).busy = busy;
        }
        let pace = self.plan.pace.as_micros() as usize;
        us(pace / 2 + self.dice.below(pace)).max(self.lib(pid).busy.saturating_sub(self.now))
    }

    fn tend(&mut self, pid: u32) {
        self.look_at_log(pid);
        if !self.plan.causal {
            self.ship_journal(pid);
        }
        self.ship_payload(pid);
        self.tend_links(pid);
        if !self.is_running(pid) || self.is_in_question(pid) {
            return;
        }
        self.forget_closed(pid);
        self.drive_session(pid, Session::handle_timeout);
        if !self.is_running(pid) {
            return;
        }
        self.drive_images(pid, |images, cx| images.handle_timeout(cx.now));
        if self.lib(pid).due && self.dice.below(4) > 0 {
            self.checkpoint(pid);
        }
        if !self.waits_inside(pid) {
            self.tell_pressed(pid);
        }
    }

    /// As the library does: the outbox fills, and an image makes room.
    fn tell_pressed(&mut self, pid: u32) {
        let now = self.now;
        let lib = self.lib(pid);
        let fullest =
            lib.observer.table().iter().filter_map(|(slot, _)| lib.observer.level_for(slot)).min_by_key(|level| level.left);
        if fullest.is_some_and(|level| lib.pressure.handle_sent(|| now, level)) {
            let room = self.lib(pid).observer.most_kept();
            self.tell_node(pid, ToNode::Pressed(room));
        }
    }

    fn tend_after(&mut self, pid: u32) {
        if !self.lib(pid).is_log_up() {
            return;
        }
        // Where nothing waits for it, the journal is also shipped before the process sleeps; one that computes does not.
        let (now, sleeps) = (self.now, !self.plan.causal || self.dice.one_in(4));
        let lib = self.lib(pid);
        let received = std::mem::take(&mut lib.has_received);
        let is_due = received && lib.haste.handle_outcome(|| now, lib.observer.unshipped());
        if is_due || sleeps && (self.plan.causal || !received) {
            self.ship_journal(pid);
        }
        self.transmit_all(pid);
        // The library asks once for all of its sends while an answer is on its way.
        let asks = self.dice.below(40);
        if asks == 0 || asks < 8 && self.lib(pid).observer.outbox().is_pressed() {
            self.ask_stable(pid);
        }
        self.check_kept(pid);
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
}
