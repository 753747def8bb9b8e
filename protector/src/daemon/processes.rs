//! The processes of ranks: start, output, standard input, PMI connection, end.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus as StdExitStatus, Stdio};
use std::rc::Rc;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use radic_ckpt::control::{self, Ids, Restorable};
use radic_ckpt::launch::DEATH_VARIABLE;
use radic_wire::event::EventName;
use radic_wire::ids::{JobId, NodeName, ProcessId, Rank};
use radic_wire::job::{ExitStatus, OutputStream, exit_code};
use radic_wire::limits;
use serde_bytes::ByteBuf;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, spawn_blocking, spawn_local};

use super::deaths::Return;
use super::keeper::{Keeper, Ward};
use super::local::Handover;
use super::orphans;
use super::restores::{Ready, Restores};
use super::sys::{self, DescriptorLimit};
use crate::node::Input;
use crate::node::host::{HostOutput, RestoreOrder, SpawnError, SpawnOrder};
use crate::pmi::leftovers;

#[cfg(test)]
#[path = "restore_tests.rs"]
mod restore_tests;

/// Pieces that may wait for a rank's PMI connection: a rank has at most one request under way.
const PMI_QUEUE: usize = 16;
/// Looks at an orphan that does not show of which job it is, from the end of one child on: one that was started without an environment
/// never does.
const LOOKS: u32 = 25;
/// What is said of a signal that the kernel does not let this protector send.
pub const NOT_PERMITTED: &str = "is not permitted (EPERM)";
/// ELF's class for 64 bits, and its machine for x86-64, little endian.
const ELF_64: u8 = 2;
const ELF_X86_64: [u8; 2] = [62, 0];

/// A running or ended process of a rank.
struct Process {
    /// Its process id, which is also its group and session.
    pid: i32,
    /// Our child, whose end is its end: itself, or the keeper that the engine has put between us.
    child: i32,
    /// Whether signals may still be sent: not after its group was ended.
    alive: bool,
    stdin: Option<mpsc::Sender<(u64, ByteBuf)>>,
    /// Where its PMI answers go. One that was brought back has nobody there before it says so.
    pmi: Option<mpsc::Sender<Vec<u8>>>,
    readers: HashMap<OutputStream, Reader>,
    /// Waits for its end.
    waiter: AbortHandle,
    /// The key space by which its library names the files it may leave behind.
    kvsname: String,
    /// It was brought back, and does not live yet: its end is to be explained.
    back: Option<Return>,
}

/// A stream of output.
struct Reader {
    permit: Rc<Notify>,
    /// Its pipe, while its process is being brought back: what comes on it before the process is back is not its own output, but what the engine has
    /// to say.
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
    /// Nothing more of this life is wanted, because another one begins.
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
    limit: DescriptorLimit,
    keeper: RefCell<Option<Keeper>>,
    processes: HashMap<ProcessId, Process>,
    restores: Restores,
    /// By this number those that are brought back find us.
    launcher: u64,
    /// Jobs with processes that were brought back here: what these start has the mark of another node.
    guests: BTreeSet<JobId>,
    /// How often orphans that do not show of which job they are will be looked at, and when next.
    looks: u32,
    look_again: Option<Instant>,
}

impl Processes {
    /// None yet. `limit` is what ranks get as their limit on descriptors, `launcher` what is told to those that are brought back.
    pub fn new(inputs: mpsc::Sender<Input>, node: NodeName, limit: DescriptorLimit, restores: Restores, launcher: u64) -> Self {
        let (keeper, processes, guests) = Default::default();
        Processes { inputs, node, limit, keeper, processes, restores, launcher, guests, looks: 0, look_again: None }
    }

    /// Does what a host wants done. The answer to a start comes back at once.
    pub fn handle(&mut self, job: JobId, output: HostOutput) -> Option<Input> {
        let id = |rank| ProcessId { job, rank };
        match output {
            HostOutput::Spawn(rank, order) => {
                let result = self.start(id(rank), &order);
                return Some(Input::Spawned(id(rank), result));
            }
            HostOutput::Restore(_, order) => self.restores.begin(order),
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
                    // A rank that does not read its answers has a broken library; it is not waited for.
                    _ = pmi.try_send(bytes);
                }
            }
            HostOutput::Signal(rank, signal) => {
                let ends = matches!(signal, libc::SIGKILL | libc::SIGTERM);
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
                self.guests.remove(&job);
            }
            HostOutput::ToHome(_)
            | HostOutput::Name(..)
            | HostOutput::Warning(..)
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

    /// The process has ended: its group gets its last signal, its files are removed, and if it was the last of its job here,
    /// what has left the group ends, too.
    pub fn handle_exited(&mut self, id: ProcessId, status: ExitStatus) {
        _ = self.signal(id, libc::SIGKILL);
        let said = self.release(id);
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.alive = false;
        // A program may come to its end while it catches up; then it has not died.
        let has_died = matches!(status, ExitStatus::Signal(_) | ExitStatus::Code(exit_code::RADIC));
        if let Some(back) = process.back.take().filter(|_| has_died) {
            let (inputs, after) = (self.inputs.clone(), back.age());
            spawn_blocking(move || {
                let text = back.explain(status, after, &said);
                // Nobody hears it only when the daemon ends.
                _ = inputs.blocking_send(Input::StoreEvent(EventName::Death, Some(id), text));
            });
        }
        process.stdin = None;
        remove_leftovers(&process.kvsname, id.rank);
        if let Some(keeper) = self.keeper.borrow_mut().as_mut() {
            _ = keeper.remove(process.pid);
        }
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
        let alive = || self.processes.iter().filter(|(_, process)| process.alive);
        let keeper = self.keeper.borrow().as_ref().map(Keeper::pid);
        let own: BTreeSet<i32> = alive().map(|(_, process)| process.child).chain(keeper).collect();
        let ours = |mark: &orphans::Mark| mark.node == self.node.as_str() || self.guests.contains(&mark.job);
        let over = |mark: &orphans::Mark| ours(mark) && alive().all(|(id, _)| id.job != mark.job);
        let undecided = orphans::tend(&own, over);
        self.looks -= 1;
        self.look_again = (undecided && self.looks > 0).then(|| Instant::now() + orphans::PAUSE);
    }

    /// Kills every process at once.
    pub fn kill_all(&mut self) {
        let all: Vec<_> = self.processes.keys().copied().collect();
        self.restores.forget(|_| true);
        all.into_iter().for_each(|id| _ = self.signal(id, libc::SIGKILL));
        self.processes.iter().for_each(|(id, p)| remove_leftovers(&p.kvsname, id.rank));
    }

    /// The process groups of all ranks.
    pub fn groups(&self) -> Vec<i32> {
        self.processes.values().filter(|p| p.alive).map(|p| p.pid).collect()
    }

    /// Interrupts a process, so that it looks at what it was told. Only one that has joined may be: the library handles the signal.
    pub fn nudge(&self, id: ProcessId) {
        let Some(process) = self.processes.get(&id).filter(|p| p.alive) else { return };
        // An engine that is saving the process already takes no notice; the next nudge finds it again.
        if let Err(error) = control::nudge(process.pid) {
            tracing::debug!(job = %id.job, rank = %id.rank, %error, "not nudged");
        }
    }

    /// Signals the group of a process. If it has become another user, whose processes this protector may not signal: what to do about that.
    fn signal(&self, id: ProcessId, signal: i32) -> Option<String> {
        let process = self.processes.get(&id).filter(|p| p.alive)?;
        let Ok(signal) = Signal::try_from(signal) else {
            tracing::warn!(signal, "not a signal");
            return None;
        };
        match killpg(Pid::from_raw(process.pid), signal) {
            // ESRCH: it has ended by itself.
            Ok(()) | Err(Errno::ESRCH) => tracing::debug!(job = %id.job, rank = %id.rank, %signal, "sent"),
            Err(error) => tracing::warn!(job = %id.job, rank = %id.rank, %signal, %error, "not sent"),
        }
        // A group takes a signal if any process of it may be signalled: it is the rank itself that is to be.
        (kill(Pid::from_raw(process.pid), None) == Err(Errno::EPERM))
            .then(|| not_permitted(id.rank, &self.node, process.pid, signal))
    }

    fn start(&mut self, id: ProcessId, order: &SpawnOrder) -> Result<u32, SpawnError> {
        let failed = |what: &str, error: io::Error| SpawnError { error: format!("{what}: {error}"), code: exit_code::RADIC };
        let program = OsStr::from_bytes(&order.program);
        let dir = Path::new(OsStr::from_bytes(&order.dir));
        // Asked first, since a failed spawn does not say which of the two it was.
        std::fs::read_dir(dir).map_err(|e| failed(&format!("working directory {}", dir.display()), e))?;
        refuse_foreign(Path::new(program))?;
        order.library.as_deref().map_or(Ok(()), check_library)?;
        let (ours, theirs) = StdUnixStream::pair().map_err(|e| failed("a socket pair for PMI", e))?;
        let ours = ours.set_nonblocking(true).and_then(|()| UnixStream::from_std(ours)).map_err(|e| failed("PMI", e))?;
        let mut command = self.command(order, program, dir, theirs.as_raw_fd());
        let mut child = command.spawn().map_err(|error| exec_error(program, &error))?;
        drop(theirs);
        let pid = pid_of(&child)?;
        self.keep(&Ward { group: pid, job: id.job, rank: id.rank, kvsname: order.kvsname.clone() });
        let mut readers = readers(&mut child);
        readers.iter_mut().for_each(|(stream, reader)| reader.begin(id, *stream, &self.inputs));
        let stdin = child.stdin.take().map(|pipe| self.feeder(id.job, pipe));
        let pmi = Some(self.serve_pmi(id, ours, Vec::new()));
        let (waiter, kvsname) = (self.wait(id, child), order.kvsname.clone());
        self.processes.insert(id, Process { pid, child: pid, alive: true, stdin, pmi, readers, waiter, kvsname, back: None });
        Ok(pid as u32)
    }

    /// Its images are here, or not: the answers to the order.
    pub fn handle_ready(&mut self, ready: Ready) -> Vec<Input> {
        let Some(ready) = self.restores.handle_ready(ready) else { return Vec::new() };
        let order = ready.order().clone();
        let damage = ready.damage.into_iter().map(|text| Input::StoreEvent(EventName::Store, Some(order.process), text));
        let mut inputs: Vec<Input> = damage.collect();
        match ready.result {
            Err(error) => inputs.push(Input::Fetched(order.process, Err(error))),
            Ok(image) => {
                let result = self.restore(&order, image, ready.report);
                inputs.extend([Input::Fetched(order.process, Ok(())), Input::Spawned(order.process, result)]);
            }
        }
        inputs
    }

    fn restore(&mut self, order: &RestoreOrder, image: Restorable, report: Result<PathBuf, String>) -> Result<u32, SpawnError> {
        let id = order.process;
        let program = OsStr::from_bytes(&image.process().exe).to_owned();
        check_surroundings(Path::new(&program), Path::new(OsStr::from_bytes(&image.process().cwd)))?;
        check_library(&order.library)?;
        // A life that was not heard to end: nothing of it is to be mistaken for something of the next.
        _ = self.signal(id, libc::SIGKILL);
        self.processes.remove(&id).into_iter().for_each(Process::abandon);
        let preparation = sys::Preparation { pmi_fd: None, limit: self.limit, umask: 0o077, fixed_addresses: false };
        let prepare = |command: &mut std::process::Command| {
            sys::prepare_rank(command, preparation);
            command.envs(report.as_ref().ok().map(|path| (DEATH_VARIABLE, path)));
        };
        let mut command = image.command(Ids::Old, Path::new(&order.library), Some(self.launcher), prepare);
        sys::lead_session(&mut command);
        let mut command = Command::from(command);
        set_pipes(&mut command, order.stdin);
        let mut child = command.spawn().map_err(|error| exec_error(&program, &error))?;
        let keeper = pid_of(&child)?;
        let pid = control::kept_by(keeper).unwrap_or(keeper);
        self.keep(&Ward { group: pid, job: id.job, rank: id.rank, kvsname: order.kvsname.clone() });
        self.guests.insert(id.job);
        let stdin = child.stdin.take().map(|pipe| self.feeder(id.job, pipe));
        let readers = readers(&mut child);
        let (waiter, kvsname) = (self.wait(id, child), order.kvsname.clone());
        let back = Some(Return::new(id, order.incarnation, report));
        self.processes.insert(id, Process { pid, child: keeper, alive: true, stdin, pmi: None, readers, waiter, kvsname, back });
        Ok(pid as u32)
    }

    /// A process says that it is back: what comes on its pipes from now on is its own.
    pub fn handle_restored(&mut self, id: ProcessId, pid: u32) {
        if self.processes.get(&id).is_some_and(|process| process.alive && process.pid as u32 == pid) {
            self.release(id);
        }
    }

    /// A process says that it lives. Others than those that were brought back do not.
    pub fn handle_live(&mut self, pid: u32) {
        if let Some(process) = self.processes.values_mut().find(|process| process.alive && process.pid as u32 == pid) {
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

    /// A connection of a process that was brought back carries its PMI from now on. Only the process that was launched may say so.
    pub fn handle_handover(&mut self, handover: Handover) -> Result<(), String> {
        let Handover { pid, process: id, socket, rest } = handover;
        let ours = self.processes.get(&id).is_some_and(|process| process.alive && process.pid as u32 == pid);
        if !ours {
            return Err(format!("refused pid {pid}, which is not rank {} of job {}, for its PMI", id.rank, id.job));
        }
        let pmi = self.serve_pmi(id, socket, rest);
        self.processes.entry(id).and_modify(|process| process.pmi = Some(pmi));
        Ok(())
    }

    /// Reports its end.
    fn wait(&self, id: ProcessId, mut child: Child) -> AbortHandle {
        let inputs = self.inputs.clone();
        let task = spawn_local(async move {
            let status = child.wait().await.map_or(ExitStatus::Code(exit_code::RADIC), exit_status);
            _ = inputs.send(Input::Exited(id, status)).await;
        });
        task.abort_handle()
    }

    fn command(&self, order: &SpawnOrder, program: &OsStr, dir: &Path, pmi_fd: i32) -> Command {
        let mut command = Command::new(program);
        let name = order.args.first().map_or(program, |name| OsStr::from_bytes(name));
        command.as_std_mut().arg0_bytes(name);
        command.args(order.args.iter().skip(1).map(|a| OsStr::from_bytes(a))).current_dir(dir).env_clear();
        command.envs(order.env.iter().map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value))));
        command.env("PMI_FD", pmi_fd.to_string());
        set_pipes(&mut command, order.stdin);
        let (limit, umask, fixed_addresses) = (self.limit, order.umask, order.library.is_some());
        let preparation = sys::Preparation { pmi_fd: Some(pmi_fd), limit, umask, fixed_addresses };
        sys::prepare_rank(command.as_std_mut(), preparation);
        command
    }

    fn keep(&self, ward: &Ward) {
        let mut keeper = self.keeper.borrow_mut();
        if keeper.is_none() {
            *keeper = Keeper::start(self.node.as_str()).inspect_err(|error| tracing::warn!(%error, "no keeper")).ok();
        }
        if let Some(Err(error)) = keeper.as_mut().map(|k| k.add(ward)) {
            tracing::warn!(%error, "the keeper is gone");
            *keeper = None;
        }
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

    /// Standard input of rank 0. A rank that does not read any more takes everything: nobody waits for it.
    fn write_stdin(&mut self, job: JobId, number: u64, data: ByteBuf) -> Option<Input> {
        let process = self.processes.get_mut(&ProcessId { job, rank: Rank(0) })?;
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

fn set_pipes(command: &mut Command, stdin: bool) {
    command.stdin(if stdin { Stdio::piped() } else { Stdio::null() }).stdout(Stdio::piped()).stderr(Stdio::piped());
}

fn pid_of(child: &Child) -> Result<i32, SpawnError> {
    let ended = || SpawnError { error: "it ended at once".to_owned(), code: exit_code::RADIC };
    child.id().map(|pid| pid as i32).ok_or_else(ended)
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

/// A program for another machine would be given to a shell, as one without a first line is, which would call it a script.
fn refuse_foreign(program: &Path) -> Result<(), SpawnError> {
    let mut header = [0; 20];
    let read = std::fs::File::open(program).and_then(|mut file| file.read_exact(&mut header));
    let foreign = read.is_ok() && header.starts_with(b"\x7fELF") && (header[4] != ELF_64 || header[18..] != ELF_X86_64);
    if !foreign {
        return Ok(()); // Whatever else is wrong with it, the kernel says better.
    }
    let error = format!("{}: a program for another machine than x86-64", program.display());
    Err(SpawnError { error, code: exit_code::CANNOT_EXECUTE })
}

/// A process that is brought back opens its program and its working directory by their names.
fn check_surroundings(program: &Path, dir: &Path) -> Result<(), SpawnError> {
    let missing = |what: &str, path: &Path, why: &dyn std::fmt::Display| SpawnError {
        error: format!("it cannot go on here: its {what} {} is not on this node as it was: {why}", path.display()),
        code: exit_code::RADIC,
    };
    std::fs::File::open(program).map_err(|error| missing("program", program, &error))?;
    match std::fs::metadata(dir) {
        Ok(data) if data.is_dir() => Ok(()),
        Ok(_) => Err(missing("working directory", dir, &"it is no directory")),
        Err(error) => Err(missing("working directory", dir, &error)),
    }
}

/// The loader would only warn of a library that is not there, and the rank would run without protection.
fn check_library(path: &str) -> Result<(), SpawnError> {
    let refused = |why: String| {
        let error = format!("it cannot be protected: {path}: {why}; `radic run --protect none` runs it without");
        Err(SpawnError { error, code: exit_code::RADIC })
    };
    match std::fs::File::open(path) {
        Err(error) => refused(format!("{error} (radicd looks for its library beside itself)")),
        Ok(_) if path.contains([' ', ':']) => refused("the loader takes no path with a space or a colon".to_owned()),
        Ok(_) => Ok(()),
    }
}

fn exec_error(program: &OsStr, error: &io::Error) -> SpawnError {
    let code = match error.kind() {
        io::ErrorKind::NotFound => exit_code::NOT_FOUND,
        io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock => exit_code::RADIC,
        _ => exit_code::CANNOT_EXECUTE,
    };
    SpawnError { error: format!("{}: {error}", program.display()), code }
}

/// `CommandExt::arg0` under a name that does not clash with tokio's.
trait Arg0 {
    fn arg0_bytes(&mut self, name: &OsStr);
}

impl Arg0 for std::process::Command {
    fn arg0_bytes(&mut self, name: &OsStr) {
        std::os::unix::process::CommandExt::arg0(self, name);
    }
}
