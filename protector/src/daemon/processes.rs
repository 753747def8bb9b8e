//! The processes of ranks: start, output, standard input, PMI connection, end.

use std::cell::Cell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus as StdExitStatus;
use std::rc::Rc;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use radic_ckpt::control::Restorable;
use radic_wire::event::EventName;
use radic_wire::fault::Fault;
use radic_wire::ids::{JobId, NodeName, ProcessId, Rank};
use radic_wire::job::{ExitStatus, OutputStream, exit_code};
use radic_wire::limits;
use serde_bytes::ByteBuf;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdin};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, spawn_blocking, spawn_local};

use super::deaths::Return;
use super::early::{Earlies, Early};
use super::group::{self, Group};
use super::launcher::{Done, Launcher, Order, Started};
use super::local::Handover;
use super::orphans;
use super::restores::{Begun, Prepared, Ready, Restores};
use crate::logs::arrival::Arrival;
use crate::node::Input;
use crate::node::host::{HostOutput, RestoreOrder, SpawnError, SpawnOrder};
use crate::pmi::leftovers;

#[cfg(test)]
#[path = "restore_tests.rs"]
mod restore_tests;

/// Pieces that may wait for a rank's PMI connection: a rank has at most one request under way.
const PMI_QUEUE: usize = 16;
/// Looks at an orphan that does not show of which job it is, from the end of one child on: one that was started without an
/// environment never does.
const LOOKS: u32 = 25;
/// What is said of a signal that the kernel does not let this protector send.
pub const NOT_PERMITTED: &str = "is not permitted (EPERM)";
/// A running or ended process of a rank.
struct Process {
    /// Its process, and its group, which is also its session.
    group: Rc<Group>,
    /// Our child, which ends when the rank does: itself, or the keeper that the engine has put between us.
    child: i32,
    /// Whether signals may still be sent: not after its group was ended, which is before it is waited for.
    alive: Rc<Cell<bool>>,
    stdin: Option<mpsc::Sender<(u64, ByteBuf)>>,
    /// Where its PMI answers go. A process that was brought back has no connection before it says so.
    pmi: Option<mpsc::Sender<Vec<u8>>>,
    readers: HashMap<OutputStream, Reader>,
    /// Waits for its end.
    waiter: AbortHandle,
    /// The key space by which its library names the files it may leave behind.
    kvsname: String,
    /// It was brought back, and does not live yet: its end is to be explained.
    back: Option<Return>,
}

/// A process that is being started.
struct Starting {
    /// The number of the order: another one may take its place.
    number: u64,
    /// Signals that came before it was there, each once.
    missed: Vec<i32>,
    /// The piece of standard input that came before it was there.
    stdin: Option<(u64, ByteBuf)>,
    /// It is brought back.
    back: Option<Return>,
    /// It is restored from an image that was streamed, and runs once this is finished.
    arrival: Option<Arrival>,
}

/// A stream of output.
struct Reader {
    permit: Rc<Notify>,
    /// Its pipe, while its process is being brought back: what comes on it before the process is back is not its own output, but
    /// what the engine has to say.
    held: Option<OwnedFd>,
    task: Option<AbortHandle>,
}

impl Reader {
    fn new(held: OwnedFd) -> Self {
        Reader { permit: Rc::new(Notify::new()), held: Some(held), task: None }
    }

    /// Begins to read, if it does not yet.
    fn begin(&mut self, id: ProcessId, stream: OutputStream, inputs: &mpsc::Sender<Input>) {
        let pipe = self.held.take().and_then(|pipe| {
            pipe::Receiver::from_owned_fd(pipe)
                .inspect_err(|error| tracing::warn!(job = %id.job, rank = %id.rank, %error, "its output cannot be read"))
                .ok()
        });
        let reads = |pipe| spawn_local(read_output(id, stream, pipe, self.permit.clone(), inputs.clone())).abort_handle();
        self.task = pipe.map(reads).or(self.task.take());
    }

    fn close(self) {
        self.task.into_iter().for_each(|task| task.abort());
    }
}

impl Process {
    fn pid(&self) -> i32 {
        self.group.pid()
    }

    fn is_alive(&self) -> bool {
        self.alive.get()
    }

    /// Nothing more of this incarnation is needed, because another one begins.
    fn abandon(mut self) {
        self.waiter.abort();
        self.readers.drain().for_each(|(_, reader)| reader.close());
    }

    /// Its end needs no explanation any more.
    fn forget_return(&mut self) {
        if let Some(back) = self.back.take() {
            // The disk is not waited for.
            spawn_blocking(move || back.forget());
        }
    }
}

/// All processes of this node's ranks.
pub struct Processes {
    inputs: mpsc::Sender<Input>,
    /// This node's name.
    node: NodeName,
    launcher: Launcher,
    starting: HashMap<ProcessId, Starting>,
    earlies: Earlies,
    processes: HashMap<ProcessId, Process>,
    restores: Restores,
    /// Jobs with processes that were brought back here: what these start has the mark of another node.
    guests: BTreeSet<JobId>,
    /// How often orphans that do not show of which job they are will be looked at, and when next.
    looks: u32,
    look_again: Option<Instant>,
    looking: Looking,
}

/// Whether orphans are being looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looking {
    No,
    Yes,
    /// And once more after that: another child has ended meanwhile.
    Again,
}

impl Processes {
    /// None yet.
    pub fn new(inputs: mpsc::Sender<Input>, node: NodeName, restores: Restores, launcher: Launcher) -> Self {
        let (starting, earlies, processes, guests) = Default::default();
        let (looks, look_again, looking) = (0, None, Looking::No);
        Processes { inputs, node, launcher, starting, earlies, processes, restores, guests, looks, look_again, looking }
    }

    /// Does what a host wants done. The answer to a start is that of [`Processes::handle_done`].
    pub fn handle(&mut self, job: JobId, output: HostOutput) -> Option<Input> {
        let id = |rank| ProcessId { job, rank };
        match output {
            HostOutput::Spawn(rank, order) => self.start(id(rank), order),
            HostOutput::Restore(_, order) => {
                // A start that is still under way is of an incarnation that is over: what comes of it is ended, and the host does not hear of it.
                self.starting.remove(&order.process);
                self.restores.begin(order);
            }
            HostOutput::Stdin { number, data } => return self.write_stdin(job, number, data),
            HostOutput::Read(rank, stream) => {
                if let Some(reader) = self.processes.get(&id(rank)).and_then(|p| p.readers.get(&stream)) {
                    reader.permit.notify_one();
                }
            }
            HostOutput::Close(rank, stream) => {
                if let Some(reader) = self.processes.get_mut(&id(rank)).and_then(|p| p.readers.remove(&stream)) {
                    reader.close();
                }
            }
            HostOutput::Pmi(rank, bytes) => {
                if let Some(pmi) = self.processes.get(&id(rank)).and_then(|process| process.pmi.as_ref()) {
                    // A rank that does not read its answers has a broken library, and is not waited for.
                    _ = pmi.try_send(bytes);
                }
            }
            HostOutput::Signal(rank, signal) => {
                let ends = RestoreOrder::is_given_up_by(signal);
                if let Some(process) = self.processes.get_mut(&id(rank)).filter(|_| ends) {
                    process.forget_return();
                }
                if !(ends && self.restores.give_up(id(rank))) {
                    let refused = self.signal(id(rank), signal);
                    return refused.map(|why| Input::StoreEvent(EventName::Refused, Some(id(rank)), why));
                }
            }
            HostOutput::Over => {
                self.restores.forget(|process| process.job == job);
                self.processes.retain(|process, _| process.job != job);
                self.starting.retain(|process, _| process.job != job);
                self.guests.remove(&job);
            }
            HostOutput::ToHome(_)
            | HostOutput::Name(..)
            | HostOutput::Warning(..)
            | HostOutput::Note(..)
            | HostOutput::Lost(..)
            | HostOutput::Unrestorable(..)
            | HostOutput::Left(_)
            | HostOutput::Fenced
            | HostOutput::Frozen => {
                unreachable!("the node keeps these to itself")
            }
        }
        None
    }

    /// The process has ended, and its group got its last signal: its files are removed, and if it was the last of its job here,
    /// what has left the group ends, too.
    pub fn handle_exited(&mut self, id: ProcessId, status: ExitStatus) {
        let said = self.release(id);
        let Some(process) = self.processes.get_mut(&id) else { return };
        // A program may come to its end while it is catching up: that is no death.
        let has_died = matches!(status, ExitStatus::Signal(_) | ExitStatus::Code(exit_code::RADIC));
        if let Some(back) = process.back.take().filter(|_| has_died) {
            let (inputs, after) = (self.inputs.clone(), back.age());
            spawn_blocking(move || {
                let text = back.explain(status, after, &said);
                // The receiver is gone only when the daemon ends.
                _ = inputs.blocking_send(Input::StoreEvent(EventName::Death, Some(id), text));
            });
        }
        process.stdin = None;
        remove_leftovers(&process.kvsname, id.rank);
        self.launcher.order(Order::Forget { child: process.child, group: process.pid() });
        self.tend_orphans();
    }

    /// A child of ours has ended, a rank or what one has left.
    pub fn tend_orphans(&mut self) {
        self.looks = LOOKS;
        self.look_at_orphans();
    }

    /// When [`Processes::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.look_again
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.look_again.is_some_and(|at| at <= now) {
            self.look_at_orphans();
        }
    }

    fn look_at_orphans(&mut self) {
        self.look_again = None;
        if self.looking != Looking::No {
            self.looking = Looking::Again;
            return;
        }
        self.looking = Looking::Yes;
        let alive = self.processes.iter().filter(|(_, process)| process.is_alive()).map(|(id, _)| id);
        let running = alive.chain(self.starting.keys()).chain(self.earlies.ids()).map(|id| id.job).collect();
        self.launcher.order(Order::Look { running, guests: self.guests.clone() });
    }

    fn handle_looked(&mut self, undecided: bool) {
        self.looks = self.looks.saturating_sub(1);
        if std::mem::replace(&mut self.looking, Looking::No) == Looking::Again {
            return self.look_at_orphans();
        }
        self.look_again = (undecided && self.looks > 0).then(|| Instant::now() + orphans::PAUSE);
    }

    /// Kills every process at once.
    pub fn kill_all(&mut self) {
        let all: Vec<_> = self.processes.keys().copied().collect();
        self.restores.forget(|_| true);
        self.earlies.drain().into_iter().for_each(|(id, early)| self.end_early(id, early));
        all.into_iter().for_each(|id| _ = self.signal(id, libc::SIGKILL));
        self.processes.iter().for_each(|(id, p)| remove_leftovers(&p.kvsname, id.rank));
    }

    /// Causes a fault of this node.
    pub fn cause(&mut self, fault: Fault) {
        let groups = self.processes.values().filter(|p| p.is_alive()).map(Process::pid).collect();
        self.launcher.order(Order::Cause(fault, groups));
    }

    /// Signals the group of a process, or of one that is being started when it is there. If the process has become another user,
    /// whose processes this protector may not signal, says what to do about it.
    fn signal(&mut self, id: ProcessId, signal: i32) -> Option<String> {
        if let Some(starting) = self.starting.get_mut(&id) {
            starting.missed.retain(|missed| *missed != signal);
            starting.missed.push(signal);
            return None;
        }
        let process = self.processes.get(&id).filter(|p| p.is_alive())?;
        let Ok(signal) = Signal::try_from(signal) else {
            tracing::warn!(signal, "not a signal");
            return None;
        };
        match process.group.signal(signal) {
            // ESRCH: it has ended by itself.
            Ok(()) | Err(Errno::ESRCH) => tracing::debug!(job = %id.job, rank = %id.rank, %signal, "sent"),
            Err(error) => tracing::warn!(job = %id.job, rank = %id.rank, %signal, %error, "not sent"),
        }
        // A group takes a signal if any process of it may be signalled: it is the rank itself that is to be.
        (kill(Pid::from_raw(process.pid()), None) == Err(Errno::EPERM))
            .then(|| not_permitted(id.rank, &self.node, process.pid(), signal))
    }

    /// The images of a process are here, or on their way, or not to be had: the answers to its order so far.
    pub fn handle_prepared(&mut self, prepared: Prepared) -> Vec<Input> {
        match prepared {
            Prepared::Begun(begun) => {
                self.begin_early(begun);
                Vec::new()
            }
            Prepared::Ready(ready) => self.handle_ready(ready),
        }
    }

    fn begin_early(&mut self, begun: Begun) {
        if !self.restores.is_wanted(&begun) {
            return;
        }
        let Begun { number: of, order, image, report } = begun;
        let id = order.process;
        let (number, back) = self.order_restore(*order, image, report);
        if let Some(before) = self.earlies.add(id, Early { of, number, back, result: None }) {
            self.end_early(id, before);
        }
    }

    fn end_early(&mut self, id: ProcessId, early: Early) {
        // If it has not been started yet, it is ended when it is: nothing knows the number of its order any more.
        early.result.into_iter().for_each(|result| _ = self.end_unwanted(id, result));
    }

    fn handle_ready(&mut self, ready: Ready) -> Vec<Input> {
        let id = ready.order.process;
        let early = self.earlies.take(id, ready.number);
        let Some(Ready { damage, result, .. }) = self.restores.handle_ready(ready) else {
            early.into_iter().for_each(|early| self.end_early(id, early));
            return Vec::new();
        };
        let damage = damage.into_iter().map(|text| Input::StoreEvent(EventName::Store, Some(id), text));
        let mut inputs: Vec<Input> = damage.collect();
        match (result, early) {
            (Ok(arrival), Some(early)) => {
                inputs.push(Input::Fetched(id, Ok(())));
                inputs.extend(self.adopt(id, early, arrival));
            }
            (Ok(_), None) => unreachable!("what was fetched was begun"),
            (Err(error), early) => {
                early.into_iter().for_each(|early| self.end_early(id, early));
                inputs.push(Input::Fetched(id, Err(error.to_string())));
            }
        }
        inputs
    }

    /// The image of a process that was begun early is sound: it is one that is being started, as the node knows from now on.
    fn adopt(&mut self, id: ProcessId, early: Early, arrival: Arrival) -> Vec<Input> {
        let Early { number, back, result, .. } = early;
        let (missed, stdin, back, arrival) = (Vec::new(), None, Some(back), Some(arrival));
        self.starting.insert(id, Starting { number, missed, stdin, back, arrival });
        result.map_or_else(Vec::new, |result| self.handle_started(id, number, result))
    }

    fn start(&mut self, id: ProcessId, order: SpawnOrder) {
        let number = self.launcher.order(Order::Start(id, Box::new(order)));
        self.starting.insert(id, Starting { number, missed: Vec::new(), stdin: None, back: None, arrival: None });
    }

    /// Has a process started that is restored. The number of the order to the launcher, and what its death says.
    fn order_restore(&mut self, order: RestoreOrder, image: Box<Restorable>, report: Result<PathBuf, String>) -> (u64, Return) {
        let id = order.process;
        // An incarnation that was not heard to end: nothing of it is to be mistaken for something of the next one.
        _ = self.signal(id, libc::SIGKILL);
        if let Some(process) = self.processes.remove(&id) {
            self.launcher.order(Order::Forget { child: process.child, group: process.pid() });
            process.abandon();
        }
        self.guests.insert(id.job);
        let back = Return::new(id, order.incarnation, report.clone());
        (self.launcher.order(Order::Restore(Box::new(order), image, report.ok())), back)
    }

    /// The thread that starts processes has done something. The answer to an order to start one comes with it.
    pub fn handle_done(&mut self, done: Done) -> Vec<Input> {
        match done {
            Done::Started(id, number, result) => self.handle_started(id, number, result),
            Done::Late(id, started) => self.end_unwanted(id, Ok(started)),
            Done::Looked { undecided } => {
                self.handle_looked(undecided);
                Vec::new()
            }
            Done::NotCaused(why) => vec![Input::Note(EventName::Limit, why)],
        }
    }

    fn handle_started(&mut self, id: ProcessId, number: u64, result: Result<Started, SpawnError>) -> Vec<Input> {
        let Some(result) = self.earlies.handle_started(id, number, result) else { return Vec::new() };
        let starting = self.starting.entry(id);
        let Entry::Occupied(starting) = starting else { return self.end_unwanted(id, result) };
        if starting.get().number != number {
            return self.end_unwanted(id, result);
        }
        let mut starting = starting.remove();
        let (missed, stdin) = (std::mem::take(&mut starting.missed), starting.stdin.take());
        let arrival = starting.arrival.take();
        let result = result.map(|started| self.register(id, starting, started));
        arrival.into_iter().for_each(Arrival::finish);
        let mut inputs = vec![Input::Spawned(id, result)];
        let refused = missed.into_iter().filter_map(|signal| self.signal(id, signal));
        inputs.extend(refused.map(|why| Input::StoreEvent(EventName::Refused, Some(id), why)));
        inputs.extend(stdin.and_then(|(number, data)| self.write_stdin(id.job, number, data)));
        inputs
    }

    /// A process was started that is not wanted any more: its job is over, or another incarnation of it begins. Its files are removed
    /// at once, and when it is gone: it may be in the middle of making one. Restored, it makes those that its image has.
    fn end_unwanted(&mut self, id: ProcessId, result: Result<Started, SpawnError>) -> Vec<Input> {
        if let Ok(Started { mut child, child_pid, group, kvsname, .. }) = result {
            _ = group.signal(Signal::SIGKILL);
            self.launcher.order(Order::Forget { child: child_pid, group: group.pid() });
            remove_leftovers(&kvsname, id.rank);
            spawn_local(async move {
                _ = child.wait().await;
                remove_leftovers(&kvsname, id.rank);
            });
        }
        Vec::new()
    }

    /// The process is there. Its process id.
    fn register(&mut self, id: ProcessId, starting: Starting, started: Started) -> u32 {
        let Started { mut child, child_pid, group, pmi, kvsname } = started;
        let (pid, group, alive) = (group.pid() as u32, Rc::new(group), Rc::new(Cell::new(true)));
        let back = starting.back;
        let mut readers = readers(&mut child);
        if back.is_none() {
            readers.iter_mut().for_each(|(stream, reader)| reader.begin(id, *stream, &self.inputs));
        }
        let stdin = child.stdin.take().map(|pipe| self.feeder(id.job, pipe));
        let pmi = pmi.map(UnixStream::from_std).and_then(|socket| {
            let what = |error: &io::Error| tracing::warn!(job = %id.job, rank = %id.rank, %error, "no PMI connection");
            socket.inspect_err(what).ok()
        });
        let pmi = pmi.map(|socket| self.serve_pmi(id, socket, Vec::new()));
        let waiter = self.wait(id, child, child_pid, group.clone(), alive.clone());
        let process = Process { group, child: child_pid, alive, stdin, pmi, readers, waiter, kvsname, back };
        self.processes.insert(id, process);
        pid
    }

    /// A process says that it is back: what comes on its pipes from now on is its own.
    pub fn handle_restored(&mut self, id: ProcessId, pid: u32) {
        if self.processes.get(&id).is_some_and(|process| process.is_alive() && process.pid() as u32 == pid) {
            self.release(id);
        }
    }

    /// A process says that it is live. Only a process that was brought back does.
    pub fn handle_live(&mut self, pid: u32) {
        if let Some(process) = self.processes.values_mut().find(|process| process.is_alive() && process.pid() as u32 == pid) {
            process.forget_return();
        }
    }

    /// Reads what the engine has said on its pipes, for the log, and lets its output pass. What it has said.
    fn release(&mut self, id: ProcessId) -> String {
        let mut all = String::new();
        let Some(process) = self.processes.get_mut(&id) else { return all };
        for (stream, reader) in &mut process.readers {
            let said = reader.held.as_ref().map(read_now).unwrap_or_default();
            if !said.is_empty() {
                let said = String::from_utf8_lossy(&said);
                tracing::warn!(job = %id.job, rank = %id.rank, "on its way back: {}", said.trim_end());
                all += &said;
            }
            reader.begin(id, *stream, &self.inputs);
        }
        all
    }

    /// A connection of a process that was brought back carries its PMI from now on. Only the process that was launched may say
    /// so.
    pub fn handle_handover(&mut self, handover: Handover) -> Result<(), String> {
        let Handover { pid, process: id, socket, rest } = handover;
        let ours = self.processes.get(&id).is_some_and(|process| process.is_alive() && process.pid() as u32 == pid);
        if !ours {
            return Err(format!("refused pid {pid}, which is not rank {} of job {}, for its PMI", id.rank, id.job));
        }
        let pmi = self.serve_pmi(id, socket, rest);
        self.processes.entry(id).and_modify(|process| process.pmi = Some(pmi));
        Ok(())
    }

    /// Reports its end. Before it is waited for, its group gets the last signal: after that its number may be another one's.
    fn wait(&self, id: ProcessId, mut child: Child, pid: i32, group: Rc<Group>, alive: Rc<Cell<bool>>) -> AbortHandle {
        let inputs = self.inputs.clone();
        let task = spawn_local(async move {
            let end = || {
                // ESRCH: nothing of it is left.
                _ = group.signal(Signal::SIGKILL);
                alive.set(false);
            };
            let is_known = group::ended(pid).await;
            if is_known {
                end();
            }
            let status = child.wait().await.map_or(ExitStatus::Code(exit_code::RADIC), exit_status);
            if !is_known {
                end();
            }
            _ = inputs.send(Input::Exited(id, status)).await;
        });
        task.abort_handle()
    }

    fn feeder(&self, job: JobId, pipe: ChildStdin) -> mpsc::Sender<(u64, ByteBuf)> {
        let (sender, pieces) = mpsc::channel(1);
        spawn_local(feed(job, pipe, pieces, self.inputs.clone()));
        sender
    }

    /// Serves PMI on this socket, from which these bytes have come already. Where the answers go.
    fn serve_pmi(&self, id: ProcessId, socket: UnixStream, rest: Vec<u8>) -> mpsc::Sender<Vec<u8>> {
        let (sender, answers) = mpsc::channel(PMI_QUEUE);
        spawn_local(serve_pmi(id, socket, rest, answers, self.inputs.clone()));
        sender
    }

    /// Standard input of rank 0. If the rank does not read any more, everything counts as taken, so that the home does not wait.
    fn write_stdin(&mut self, job: JobId, number: u64, data: ByteBuf) -> Option<Input> {
        let id = ProcessId { job, rank: Rank(0) };
        if let Some(starting) = self.starting.get_mut(&id).filter(|starting| starting.back.is_none()) {
            // The job's home passes one piece at a time.
            starting.stdin = Some((number, data));
            return None;
        }
        let process = self.processes.get_mut(&id)?;
        if data.is_empty() {
            process.stdin = None;
            return Some(Input::StdinTaken(job, number));
        }
        match &process.stdin {
            Some(stdin) if stdin.try_send((number, data)).is_ok() => None,
            _ => Some(Input::StdinTaken(job, number)),
        }
    }
}

fn not_permitted(rank: Rank, node: &NodeName, pid: i32, signal: Signal) -> String {
    let user = std::os::unix::fs::MetadataExt::uid;
    let user = std::fs::metadata(format!("/proc/{pid}")).map_or("another user".to_owned(), |meta| format!("uid {}", user(&meta)));
    format!(
        "{signal} for rank {rank} on {node}, pid {pid}, {NOT_PERMITTED}: it has become {user}, and this protector runs as uid {}; \
         end it on {node} as that user or as root (`kill -KILL -- -{pid}`)",
        nix::unistd::geteuid()
    )
}

/// Readers of a child's output that do not read yet.
fn readers(child: &mut Child) -> HashMap<OutputStream, Reader> {
    let stdout = child.stdout.take().and_then(|pipe| pipe.into_owned_fd().ok());
    let stderr = child.stderr.take().and_then(|pipe| pipe.into_owned_fd().ok());
    let pipes = [(OutputStream::Stdout, stdout), (OutputStream::Stderr, stderr)];
    pipes.into_iter().filter_map(|(stream, pipe)| Some((stream, Reader::new(pipe?)))).collect()
}

/// What lies in a pipe, which is never waited for.
fn read_now(pipe: &OwnedFd) -> Vec<u8> {
    let (mut said, mut piece) = (Vec::new(), [0; 4096]);
    let holds_something = || poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1);
    while said.len() < limits::CHUNK
        && holds_something()
        && let Ok(count @ 1..) = nix::unistd::read(pipe, &mut piece)
    {
        said.extend_from_slice(&piece[..count]);
    }
    said
}

async fn feed(job: JobId, mut pipe: ChildStdin, mut pieces: mpsc::Receiver<(u64, ByteBuf)>, inputs: mpsc::Sender<Input>) {
    while let Some((number, piece)) = pieces.recv().await {
        let written = pipe.write_all(&piece).await;
        if written.is_err() {
            pieces.close();
        }
        _ = inputs.send(Input::StdinTaken(job, number)).await;
    }
}

/// Reads a piece for each permit; an empty one is the end.
async fn read_output(
    id: ProcessId,
    stream: OutputStream,
    mut pipe: impl AsyncRead + Unpin,
    permit: Rc<Notify>,
    inputs: mpsc::Sender<Input>,
) {
    let mut buffer = Vec::new();
    loop {
        permit.notified().await;
        buffer.resize(limits::CHUNK, 0);
        let count = pipe.read(&mut buffer).await.unwrap_or(0);
        let piece = ByteBuf::from(&buffer[..count]);
        _ = inputs.send(Input::ProcessOutput(id, stream, piece)).await;
        if count == 0 {
            return;
        }
    }
}

async fn serve_pmi(
    id: ProcessId,
    socket: UnixStream,
    rest: Vec<u8>,
    mut answers: mpsc::Receiver<Vec<u8>>,
    inputs: mpsc::Sender<Input>,
) {
    if !rest.is_empty() {
        _ = inputs.send(Input::Pmi(id, rest)).await;
    }
    let (mut reader, mut writer) = socket.into_split();
    let mut buffer = [0; 4096];
    loop {
        tokio::select! {
            answer = answers.recv() => match answer {
                Some(bytes) => if writer.write_all(&bytes).await.is_err() { return },
                None => return,
            },
            count = reader.read(&mut buffer) => match count {
                Ok(1..) => _ = inputs.send(Input::Pmi(id, buffer[..count.unwrap_or(0)].to_vec())).await,
                // The rank's end is reported by its exit status.
                _ => return,
            },
        }
    }
}

fn remove_leftovers(kvsname: &str, rank: Rank) {
    if let Err(error) = leftovers::remove(kvsname, rank) {
        tracing::warn!(%rank, %error, "a file of a dead rank stays");
    }
}

fn exit_status(status: StdExitStatus) -> ExitStatus {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitStatus::Code(code),
        (None, Some(signal)) => ExitStatus::Signal(signal),
        (None, None) => ExitStatus::Code(exit_code::RADIC),
    }
}
