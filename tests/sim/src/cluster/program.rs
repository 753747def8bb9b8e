//! The program of a process, and what its calls become: they ask the observer, do what it says and report, as the library's operations do.

use std::io::IoSliceMut;

use radic_observer::bind::Bind;
use radic_observer::connect::Connect;
use radic_observer::connection::Slot;
use radic_observer::listener::Listeners;
use radic_observer::output::Output;
use radic_observer::session::Session;
use radic_observer::standstill::{Asked, Standstill};
use radic_observer::{Answer, Context, Error, Input, Reading, Ready, Receive, Send, Source, Unread, Wait};
use radic_wire::determinant::{KernelCall, ReadyFd, StreamId};
use radic_wire::ids::{ProcessId, Rank};
use radic_wire::process::{ProgramEnd, ToNode};

use super::locks::Lock;
use super::plan::Plan;
use super::world::World;
use crate::app::{App, Op, Socket, mix};

/// Calls of a program's first thread after which it is through with its start.
pub const STARTED: u64 = 8;
/// Steps of a program that executes another one.
const STEPS: u32 = 6;
/// Last bytes of its output that a process keeps.
const KEPT: usize = 4_096;

/// A thread of a process: the process, and the number of the thread.
pub type Caller = (u32, usize);

/// Bytes of a send of which a part was taken.
#[derive(Debug, Clone)]
struct Rest {
    socket: usize,
    bytes: Vec<u8>,
    blocking: bool,
    done: usize,
}

/// One thread of a program.
#[derive(Debug, Clone)]
pub struct Thread {
    /// What it does.
    pub app: App,
    /// What it is about to print.
    owed: Option<Vec<u8>>,
    /// Its `bind` that is under way.
    pub bind: Option<Bind>,
    /// Its `connect` that is under way.
    pub connect: Option<Connect>,
    /// Calls that were completed.
    pub calls: u64,
    /// It is in the midst of a send.
    rest: Option<Rest>,
    /// It is in the midst of a replayed `recv`: what has come of it.
    partial: Vec<u8>,
    /// The lock before its next call.
    pub lock: Lock,
    /// On the way back: it waits for its turn.
    pub waits: Option<Asked>,
    /// It has nothing more to do.
    is_over: bool,
}

impl Thread {
    fn new(app: App) -> Thread {
        let (owed, bind, connect, calls, rest, partial, waits, is_over) = Default::default();
        Thread { app, owed, bind, connect, calls, rest, partial, lock: Lock::Before, waits, is_over }
    }

    /// Whether it has nothing more to do.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Not while a call waits for room in the outbox: images are made meanwhile, and may be what makes that room.
    fn is_in_call(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| !rest.blocking) || !self.partial.is_empty()
    }
}

/// A program, with what it has printed.
#[derive(Debug, Clone)]
pub struct Program {
    /// Its threads, the first one first.
    pub threads: Vec<Thread>,
    /// All that it has printed, for the judge.
    pub out: Vec<u8>,
    /// Its standard output.
    pub output: Output,
    /// Its listener has an address.
    pub is_bound: bool,
    /// Where it listens.
    pub listeners: Listeners,
    /// Steps until it executes another program, if it is to.
    executes: Option<u32>,
    /// What the library knows of its threads, on the way back.
    pub standstill: Standstill,
}

impl Program {
    /// The program of a process that has executed so many others before.
    pub fn new(plan: &Plan, id: ProcessId, before: u64) -> Program {
        let executes = plan.executes && id.rank > Rank(0) && before == 0;
        let threads = vec![Thread::new(plan.app_of(id.job, id.rank.0))];
        let (executes, standstill) = (executes.then_some(STEPS), Standstill::default());
        let (out, is_bound, listeners) = Default::default();
        Program { threads, out, output: Output::new(KEPT), is_bound, listeners, executes, standstill }
    }

    /// Whether a thread is in the midst of a call.
    pub fn is_in_call(&self) -> bool {
        self.threads.iter().any(Thread::is_in_call)
    }

    /// Whether all that its first thread has left to do is to read standard input.
    pub fn waits_for_input(&self) -> bool {
        matches!(self.threads[0].app.op(), Op::Input { blocking: true, .. })
    }

    /// Where it stands, for people.
    pub fn standing(&self) -> String {
        let of = |thread: &Thread| {
            let Thread { app, calls, connect, rest, is_over, .. } = thread;
            format!("calls {calls}, op {:?}, {connect:?}, rest {rest:?}, over: {is_over}, {:?}", app.op(), app.sockets)
        };
        self.threads.iter().map(of).collect::<Vec<_>>().join("; ")
    }
}

impl World {
    /// The process makes a call, or its program goes on in the midst of one.
    pub fn call(&mut self, pid: u32) {
        if self.lib(pid).session.is_leaving() {
            return self.leave(pid);
        }
        if self.lib(pid).program.threads.iter().all(|thread| thread.is_over) {
            // It was restored from an image that was made while it was about to end.
            return self.begin_to_leave(pid);
        }
        if let Some(steps) = &mut self.lib(pid).program.executes {
            *steps = steps.saturating_sub(1);
            if *steps == 0 {
                self.execute(pid);
            }
            return;
        }
        let threads = self.lib(pid).program.threads.len();
        let thread = self.dice.below(threads);
        self.wake((pid, thread));
        self.go_on((pid, thread));
    }

    /// The thread prints, or makes a call.
    fn go_on(&mut self, (pid, thread): Caller) {
        if self.lib(pid).program.threads[thread].owed.is_some() {
            return self.print((pid, thread));
        }
        if self.breaks.lots && self.dice.one_in(30) {
            self.lib(pid).program.threads[thread].app.handle_nothing();
        }
        let calls = self.lib(pid).program.threads[thread].calls;
        let result = self.call_of((pid, thread));
        self.called((pid, thread), calls, result);
    }

    /// A thread has come out of the library. It had completed so many calls before.
    pub fn called(&mut self, (pid, thread): Caller, calls: u64, result: Result<(), Error>) {
        if self.is_running(pid) && self.sure(pid, result).is_some() && self.lib(pid).program.threads[thread].calls != calls {
            let lib = self.processes[pid as usize].lib.as_ref().expect("a process that runs has its library");
            self.trace(|| {
                let (app, position) = (&lib.program.threads[thread].app, lib.observer.log_position());
                let (state, next) = (app.state() >> 40, app.op());
                format!("process {pid}, thread {thread}, call {}, at {position}: {state:06x}, then {next:?}", calls + 1)
            });
            self.lib(pid).program.threads[thread].lock = Lock::Before;
            self.after_call((pid, thread));
        }
    }

    fn call_of(&mut self, (pid, thread): Caller) -> Result<(), Error> {
        let caller = (pid, thread);
        let rest = self.lib(pid).program.threads[thread].rest.clone();
        if let Some(Rest { socket, bytes, blocking, done }) = rest {
            return self.send_bytes(caller, socket, &bytes, blocking, done);
        }
        if !self.take_lock(caller)? {
            return Ok(());
        }
        let Thread { app, .. } = &self.lib(pid).program.threads[thread];
        match app.op() {
            Op::Fork => {
                let lib = self.lib(pid);
                let app = lib.program.threads[thread].app.fork();
                lib.program.threads.push(Thread::new(app));
                lib.observer.begin_thread(1).map(|place| assert_eq!(place, 1, "its place is its number here"))
            }
            Op::Input { max, blocking } => self.app_input(caller, max, blocking),
            Op::Clock { clock } => self.app_clock(caller, clock),
            Op::Random { count } => self.app_random(caller, count),
            Op::Listen => self.app_listen(caller),
            Op::Unlisten => {
                self.app_unlisten(caller);
                Ok(())
            }
            Op::Connect { fd, peer, blocking } => self.app_connect(caller, fd, peer, blocking),
            Op::Accept { fd, blocking } => self.app_accept(caller, fd, blocking),
            Op::Poll { blocking } => self.app_poll(caller, blocking),
            Op::Look { socket } => self.app_look(caller, socket),
            Op::Receive { socket, max, blocking } => self.app_receive(caller, socket, max, blocking),
            Op::Send { socket, bytes, blocking } => self.send_bytes(caller, socket, &bytes, blocking, 0),
            Op::Finish { socket } => self.app_finish(caller, socket),
            Op::Close { socket } => self.app_close(caller, socket),
            Op::Rest => Ok(()),
            Op::Done => {
                self.lib(pid).program.threads[thread].is_over = true;
                if self.lib(pid).program.threads.iter().all(|thread| thread.is_over) {
                    self.begin_to_leave(pid);
                }
                Ok(())
            }
        }
    }

    /// A call has had an outcome: the program may print now.
    fn after_call(&mut self, (pid, at): Caller) {
        let lib = self.lib(pid);
        let thread = &mut lib.program.threads[at];
        let dice = mix(thread.app.state(), 9);
        // The order of what two threads print is not that of the outcomes of their calls.
        if at == 0 && thread.app.rests.is_none() && dice.is_multiple_of(12) {
            thread.owed = Some(dice.to_le_bytes()[..4].to_vec());
        }
        if at == 0 && thread.calls == STARTED && !std::mem::replace(&mut lib.initialized, true) {
            self.tell_node(pid, ToNode::Initialized);
        }
    }

    fn print(&mut self, (pid, thread): Caller) {
        let awaits_log = self.lib(pid).observer.output_awaits_log(thread as u32);
        match self.sure(pid, awaits_log) {
            Some(false) => {}
            Some(true) => return self.await_turn((pid, thread), Wait::Turn),
            None => return,
        }
        let gate = self.lib(pid).observer.gate_of_output(thread as u32);
        let Some(gate) = self.sure(pid, gate) else { return };
        if gate.is_some() && !self.breaks.gate {
            return;
        }
        self.print_again(pid);
        let position = self.lib(pid).observer.journal().end();
        let room = self.processes[pid as usize].pipes.room();
        let program = &mut self.lib(pid).program;
        let mut owed = program.threads[thread].owed.take().unwrap_or_default();
        let rest = owed.split_off(if program.output.is_owing() { 0 } else { room.min(owed.len()) });
        program.threads[thread].owed = Some(rest).filter(|rest| !rest.is_empty());
        if !owed.is_empty() {
            program.output.handle_written(&owed);
            program.out.extend(&owed);
            self.check_departure(pid, position);
            self.put(pid, &owed);
        }
    }

    /// Writes once more what may not have arrived, as far as the pipe takes it.
    pub fn print_again(&mut self, pid: u32) {
        loop {
            let room = self.processes[pid as usize].pipes.room();
            let output = &mut self.lib(pid).program.output;
            let Some(owed) = output.owed(room).map(<[u8]>::to_vec) else { return };
            output.handle_written_again(owed.len());
            self.put(pid, &owed);
        }
    }

    /// Reads standard input. What was read before is safe by then, so no more than one piece is ever in doubt.
    fn app_input(&mut self, (pid, thread): Caller, max: usize, blocking: bool) -> Result<(), Error> {
        let lib = self.lib(pid);
        let (offset, mut room) = (lib.observer.input_read(), vec![0; max]);
        let bytes = match lib.observer.input(thread as u32, &mut room, blocking)? {
            Input::Again(count) => room[..count].to_vec(),
            Input::Live if lib.observer.gate().is_some() => return Ok(()),
            Input::Live => match self.take_input(pid, max) {
                Some(bytes) => {
                    self.lib(pid).observer.handle_input(thread as u32, &bytes)?;
                    bytes
                }
                None if blocking => return Ok(()),
                None => {
                    self.lib(pid).observer.handle_nothing(thread as u32)?;
                    return self.found_nothing((pid, thread));
                }
            },
            Input::Nothing => return self.found_nothing((pid, thread)),
            Input::Wait(what) => return self.note_wait((pid, thread), what),
        };
        self.check_input(offset, &bytes);
        let thread = &mut self.lib(pid).program.threads[thread];
        thread.app.handle_input(&bytes);
        thread.calls += 1;
        Ok(())
    }

    /// A call that did not wait has found nothing.
    pub fn found_nothing(&mut self, (pid, thread): Caller) -> Result<(), Error> {
        let thread = &mut self.lib(pid).program.threads[thread];
        thread.app.handle_nothing();
        thread.calls += 1;
        let overdue = self.lib(pid).observer.check_way()?;
        assert!(overdue.is_none(), "G5: process {pid} goes another way: {overdue:?}");
        Ok(())
    }

    fn app_clock(&mut self, (pid, thread): Caller, clock: u32) -> Result<(), Error> {
        let real = self.clock_of(self.processes[pid as usize].machine);
        let is_broken = self.breaks.time;
        let lib = self.lib(pid);
        let told = match lib.observer.clock(thread as u32, clock)? {
            Reading::Live => lib.observer.handle_clock(thread as u32, clock, real)?,
            Reading::Again(_) if is_broken => real,
            Reading::Again(told) => told,
            Reading::Wait(what) => return self.note_wait((pid, thread), what),
        };
        let of_thread = &mut lib.program.threads[thread];
        of_thread.app.handle_clock(told);
        of_thread.calls += 1;
        let (calls, position) = (of_thread.calls, lib.observer.log_position());
        self.trace(|| format!("process {pid}, thread {thread}, call {calls}: clock {clock} says {told} at {position}"));
        Ok(())
    }

    fn app_random(&mut self, (pid, thread): Caller, count: usize) -> Result<(), Error> {
        let drawn: Vec<u8> = (0..count).map(|_| self.dice.below(256) as u8).collect();
        let is_broken = self.breaks.random;
        let lib = self.lib(pid);
        let mut bytes = drawn.clone();
        match lib.observer.kernel(thread as u32, KernelCall::Random, &mut bytes)? {
            Answer::Live => lib.observer.handle_kernel(thread as u32, KernelCall::Random, &drawn)?,
            Answer::Again(_) if is_broken => bytes = drawn,
            Answer::Again(told) => assert_eq!(told, count, "as many as then"),
            Answer::Wait(what) => return self.note_wait((pid, thread), what),
        }
        let of_thread = &mut lib.program.threads[thread];
        of_thread.app.handle_random(&bytes);
        of_thread.calls += 1;
        Ok(())
    }

    /// What the clocks of a machine say, in nanoseconds. Machines have booted at different times.
    pub fn clock_of(&mut self, at: usize) -> i64 {
        let since = self.now.as_nanos() as i64 + self.dice.below(40) as i64;
        since + 1_000_000_000 * (1 + at as i64 * 7 % 5)
    }

    fn app_poll(&mut self, (pid, thread): Caller, blocking: bool) -> Result<(), Error> {
        let lib = self.lib(pid);
        let mut ready = [ReadyFd { fd: 0, events: 0 }; 8];
        match lib.observer.ready(thread as u32, None, blocking, &mut ready)? {
            Ready::Live => {
                let mut count = 0;
                let open = lib.program.threads[thread].app.sockets.iter().filter(|socket| !socket.closed);
                for fd in open.map(|socket| socket.fd).collect::<Vec<_>>() {
                    let slot = lib.observer.table().slot_of(fd)?;
                    if lib.observer.is_readable(slot) || lib.look_for_bytes(slot)? {
                        ready[count] = ReadyFd { fd, events: 1 };
                        count += 1;
                    }
                }
                if count == 0 && blocking {
                    return Ok(());
                }
                lib.observer.handle_ready(thread as u32, None, &ready[..count])?;
                for ready in &ready[..count] {
                    let slot = self.lib(pid).observer.table().slot_of(ready.fd)?;
                    let connection = self.lib(pid).observer.table().get(slot).expect("it is ready");
                    let (stream, next) = (connection.stream_in(), connection.incoming().wanted() + 1);
                    self.note_past(pid, slot, stream, next);
                }
                let lib = self.lib(pid);
                if count == 0 {
                    lib.program.threads[thread].app.handle_nothing()
                } else {
                    lib.program.threads[thread].app.handle_ready(&ready[..count])
                }
            }
            Ready::Set(count) => lib.program.threads[thread].app.handle_ready(&ready[..count]),
            Ready::Nothing => lib.program.threads[thread].app.handle_nothing(),
            Ready::Outcome(errno) => panic!("no poll failed then: {errno}"),
            Ready::Wait(what) => return self.note_wait((pid, thread), what),
        }
        self.lib(pid).program.threads[thread].calls += 1;
        Ok(())
    }

    /// Looks how much it could receive.
    fn app_look(&mut self, (pid, thread): Caller, socket: usize) -> Result<(), Error> {
        let lib = self.lib(pid);
        let Socket { fd, received, .. } = lib.program.threads[thread].app.sockets[socket];
        let slot = lib.observer.table().slot_of(fd)?;
        let connection = lib.observer.table().get(slot).expect("it is open");
        let (stream, end, wanted) = (connection.stream_in(), connection.stream_out(), connection.incoming().wanted());
        let (there, causes) = lib.look_at_unread(end);
        match lib.observer.unread(thread as u32, fd, (there, &causes))? {
            Unread::Told(0) => return self.found_nothing((pid, thread)),
            Unread::Told(count) => {
                lib.program.threads[thread].app.handle_look(socket, count);
                lib.program.threads[thread].calls += 1;
                // What is on its way on a new link was there before on another one, and what it depends on is known since.
                let seen = received + there.min(count as u64);
                if seen > wanted {
                    self.note_past(pid, slot, stream, seen);
                }
            }
            Unread::Wait(what) => return self.note_wait((pid, thread), what),
        }
        Ok(())
    }

    fn app_receive(&mut self, (pid, thread): Caller, socket: usize, max: usize, blocking: bool) -> Result<(), Error> {
        let lib = self.lib(pid);
        let fd = lib.program.threads[thread].app.sockets[socket].fd;
        match lib.observer.receive(thread as u32, fd, max, blocking)? {
            Receive::Take { source, stream, offset, len, owed } => {
                let got =
                    lib.program.threads[thread].app.sockets[socket].received + lib.program.threads[thread].partial.len() as u64;
                assert_eq!(offset, got, "G3: the program has {got}, and is given {offset} of {stream:?}");
                return self.take_bytes((pid, thread), (socket, blocking), (source, stream, offset, len, owed));
            }
            Receive::End => {
                let slot = lib.observer.table().slot_of(fd)?;
                let stream = lib.observer.table().get(slot).expect("it was read").stream_in();
                let got = lib.program.threads[thread].app.sockets[socket].received;
                lib.program.threads[thread].app.handle_end(socket);
                self.check_stream_end(pid, stream, got);
            }
            Receive::Nothing => {
                lib.program.threads[thread].app.handle_nothing();
                self.check_shown((pid, thread), socket);
            }
            Receive::Failed(errno) => panic!("no recv failed then: {errno}"),
            Receive::Wait(what) => return self.note_wait((pid, thread), what),
        }
        self.lib(pid).program.threads[thread].calls += 1;
        Ok(())
    }

    fn take_bytes(
        &mut self,
        (pid, thread): Caller,
        (socket, blocking): (usize, bool),
        (source, stream, offset, len, owed): (Source, StreamId, u64, usize, bool),
    ) -> Result<(), Error> {
        let fd = self.lib(pid).program.threads[thread].app.sockets[socket].fd;
        let slot = self.lib(pid).observer.table().slot_of(fd)?;
        let most = 1 + self.dice.below(len);
        let bytes = match source {
            Source::Log => match self.bytes_of_log(pid, stream, offset, most) {
                Some(bytes) => bytes,
                None => return Ok(()),
            },
            Source::Link => {
                let end = self.end_of(pid, slot);
                let forgetful = self.breaks.forgetful;
                end.map_or_else(Vec::new, |end| self.lib(pid).read_link(slot, end, most, forgetful))
            }
        };
        if bytes.is_empty() {
            let lib = self.lib(pid);
            if !owed && !blocking && !lib.observer.is_readable(slot) {
                lib.observer.handle_nothing(thread as u32)?;
                lib.program.threads[thread].app.handle_nothing();
                lib.program.threads[thread].calls += 1;
                self.check_shown((pid, thread), socket);
            }
            return Ok(());
        }
        self.counts.delivered += bytes.len() as u64;
        self.check_bytes(pid, stream, offset, &bytes);
        let lib = self.lib(pid);
        lib.program.threads[thread].partial.extend_from_slice(&bytes);
        if let Some(len) = lib.observer.handle_received(thread as u32, fd, source, &bytes)? {
            assert_eq!(len, lib.program.threads[thread].partial.len());
            let taken = std::mem::take(&mut lib.program.threads[thread].partial);
            lib.program.threads[thread].app.handle_received(socket, &taken);
            lib.program.threads[thread].calls += 1;
            lib.has_received = true;
            self.note_dependence(pid, stream, offset + bytes.len() as u64);
            if source == Source::Link {
                self.note_past(pid, slot, stream, offset + bytes.len() as u64);
            }
        }
        Ok(())
    }

    /// A call has found nothing: the program was told of no bytes there that it has not taken.
    fn check_shown(&mut self, (pid, thread): Caller, socket: usize) {
        let socket = &self.lib(pid).program.threads[thread].app.sockets[socket];
        assert!(
            socket.shown <= socket.received,
            "G3: the program was told of {} bytes, and finds nothing after {}",
            socket.shown,
            socket.received
        );
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

    fn send_bytes(
        &mut self,
        (pid, thread): Caller,
        socket: usize,
        bytes: &[u8],
        blocking: bool,
        done: usize,
    ) -> Result<(), Error> {
        let (now, lib) = (self.now, self.lib(pid));
        let fd = lib.program.threads[thread].app.sockets[socket].fd;
        let (again, position) = (lib.observer.is_replaying(), lib.observer.journal().end());
        let (is_shut, is_behind) = (lib.observer.gate().is_some(), lib.observer.journal().unshipped() > 0);
        lib.haste.handle_gate(|| now, is_shut, is_behind);
        lib.has_received &= !is_shut;
        let offset = lib.program.threads[thread].app.sockets[socket].sent as usize + done;
        let first = if offset.is_multiple_of(3) { bytes } else { &bytes[..bytes.len().div_ceil(2)] };
        // A large message leaves before it is kept.
        let is_large = done == 0 && offset.is_multiple_of(2);
        let place = if is_large { lib.observer.send_whole(thread as u32, fd, bytes.len(), blocking)? } else { None };
        let sent = match place {
            Some(mut place) => {
                lib.observer.fill(&mut place, bytes, <[u8]>::copy_from_slice);
                Send::Taken { len: bytes.len(), whole: true }
            }
            None => lib.observer.send(thread as u32, fd, first, done, blocking)?,
        };
        match sent {
            Send::Taken { len, whole } => {
                let whole = whole && (len == bytes.len() || len < first.len());
                let slot = lib.observer.table().slot_of(fd)?;
                let stream = lib.observer.table().get(slot).expect("it took bytes").stream_out();
                let rest = || Rest { socket, bytes: bytes[len..].to_vec(), blocking, done: done + len };
                lib.program.threads[thread].rest = (!whole).then(rest);
                if whole {
                    lib.program.threads[thread].app.handle_sent(socket, done + len);
                    lib.program.threads[thread].calls += 1;
                }
                // Where nothing waits before it is sent, what it depends on is looked at when it arrives.
                if !again && !self.plan.causal {
                    self.check_departure(pid, position);
                }
                self.check_sent(pid, stream, offset as u64, &bytes[..len]);
            }
            // The peer is gone, as on any network: the program goes on as if these had been sent.
            Send::Failed(errno) if errno != 11 => {
                lib.program.threads[thread].app.handle_sent(socket, done + bytes.len());
                lib.program.threads[thread].calls += 1;
            }
            Send::Failed(_) => {
                lib.program.threads[thread].app.handle_nothing();
                lib.program.threads[thread].calls += 1;
            }
            Send::Wait(what) => return self.note_wait((pid, thread), what),
        }
        Ok(())
    }

    fn app_finish(&mut self, (pid, thread): Caller, socket: usize) -> Result<(), Error> {
        let lib = self.lib(pid);
        let fd = lib.program.threads[thread].app.sockets[socket].fd;
        let slot = lib.observer.table().slot_of(fd)?;
        if lib.observer.finish(fd)?.is_none() {
            lib.program.threads[thread].app.handle_finished(socket);
            lib.program.threads[thread].calls += 1;
            self.tell_finished(pid, slot, false);
            self.let_end_leave(pid, slot);
        }
        Ok(())
    }

    fn app_close(&mut self, (pid, thread): Caller, socket: usize) -> Result<(), Error> {
        let lib = self.lib(pid);
        let fd = lib.program.threads[thread].app.sockets[socket].fd;
        let slot = lib.observer.table().slot_of(fd)?;
        self.handle_closing(pid, slot);
        if !self.is_running(pid) {
            return Ok(());
        }
        let lib = self.lib(pid);
        if lib.observer.close(fd)?.is_none() {
            lib.program.threads[thread].app.handle_closed(socket);
            lib.program.threads[thread].calls += 1;
            self.tell_finished(pid, slot, true);
            self.let_end_leave(pid, slot);
        }
        Ok(())
    }

    /// The end of a stream leaves, and what waits before it, also where what is sent is refused.
    fn let_end_leave(&mut self, pid: u32, slot: Slot) {
        if let Some(end) = self.end_of(pid, slot) {
            self.lib(pid).sockets.speak(end);
        }
    }

    fn begin_to_leave(&mut self, pid: u32) {
        let left = self.lib(pid).observer.handle_leaving().and_then(|()| self.lib(pid).observer.gate_of_output(0));
        let Some(gate) = self.sure(pid, left) else { return };
        let output = &self.lib(pid).program.output;
        let end = ProgramEnd { code: 0, output: [output.end(), 0] };
        if !output.is_owing() && self.lib(pid).observer.settle() && gate.is_none() {
            self.drive_session(pid, |session, cx| {
                session.handle_leaving(cx.now, Some(end));
                Ok(())
            });
        }
    }

    /// It stays until all that it has sent is safe, and its protector has all that it has received.
    fn leave(&mut self, pid: u32) {
        if self.lib(pid).program.output.is_owing() {
            return;
        }
        if self.drive_session(pid, |session, cx| Ok(session.may_end(cx))) == Some(true) {
            self.exit(pid);
        }
    }
}
