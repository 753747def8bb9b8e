//! The processes of ranks: start, output, standard input, PMI connection, end.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus as StdExitStatus, Stdio};
use std::rc::Rc;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use radic_ckpt::control;
use radic_wire::ids::{JobId, NodeName, ProcessId, Rank};
use radic_wire::job::{ExitStatus, OutputStream, exit_code};
use radic_wire::limits;
use serde_bytes::ByteBuf;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, spawn_local};

use super::keeper::{Keeper, Ward};
use super::orphans;
use super::sys::{self, DescriptorLimit};
use crate::node::Input;
use crate::node::host::{HostOutput, SpawnError, SpawnOrder};
use crate::pmi::leftovers;

/// Pieces that may wait for a rank's PMI connection: a rank has at most one request under way.
const PMI_QUEUE: usize = 16;
/// Looks at an orphan that does not show of which job it is, from the end of one child on: one that was started without an environment
/// never does.
const LOOKS: u32 = 25;
/// ELF's class for 64 bits, and its machine for x86-64, little endian.
const ELF_64: u8 = 2;
const ELF_X86_64: [u8; 2] = [62, 0];

/// A running or ended process of a rank.
struct Process {
    /// Its process id, which is also its group and session.
    pid: i32,
    /// Whether signals may still be sent: not after its group was ended.
    alive: bool,
    stdin: Option<mpsc::Sender<ByteBuf>>,
    pmi: mpsc::Sender<Vec<u8>>,
    readers: HashMap<OutputStream, (Rc<Notify>, AbortHandle)>,
    /// The key space by which its library names the files it may leave behind.
    kvsname: String,
}

/// All processes of this node's ranks.
pub struct Processes {
    inputs: mpsc::Sender<Input>,
    /// This node's name.
    node: NodeName,
    limit: DescriptorLimit,
    keeper: RefCell<Option<Keeper>>,
    processes: HashMap<ProcessId, Process>,
    /// How often orphans that do not show of which job they are will be looked at, and when next.
    looks: u32,
    look_again: Option<Instant>,
}

impl Processes {
    /// None yet. `limit` is what ranks get as their limit on descriptors.
    pub fn new(inputs: mpsc::Sender<Input>, node: NodeName, limit: DescriptorLimit) -> Self {
        Processes { inputs, node, limit, keeper: RefCell::default(), processes: HashMap::new(), looks: 0, look_again: None }
    }

    /// Does what a host wants done. The answer to a start comes back at once.
    pub fn handle(&mut self, job: JobId, output: HostOutput) -> Option<Input> {
        let id = |rank| ProcessId { job, rank };
        match output {
            HostOutput::Spawn(rank, order) => {
                let result = self.start(id(rank), &order);
                return Some(Input::Spawned(id(rank), result));
            }
            HostOutput::Restore(rank, _) => {
                let error = "no process can be brought back yet".to_owned();
                return Some(Input::Spawned(id(rank), Err(SpawnError { error, code: exit_code::RADIC })));
            }
            HostOutput::Stdin(data) => return self.write_stdin(job, data),
            HostOutput::Read(rank, stream) => {
                if let Some((permit, _)) = self.processes.get(&id(rank)).and_then(|p| p.readers.get(&stream)) {
                    permit.notify_one();
                }
            }
            HostOutput::Close(rank, stream) => {
                if let Some((_, task)) = self.processes.get_mut(&id(rank)).and_then(|p| p.readers.remove(&stream)) {
                    task.abort();
                }
            }
            HostOutput::Pmi(rank, bytes) => {
                if let Some(process) = self.processes.get(&id(rank)) {
                    // A rank that does not read its answers has a broken library; it is not waited for.
                    _ = process.pmi.try_send(bytes);
                }
            }
            HostOutput::Signal(rank, signal) => self.signal(id(rank), signal),
            HostOutput::Over => self.processes.retain(|process, _| process.job != job),
            HostOutput::ToHome(_) | HostOutput::Name(..) | HostOutput::Warning(..) => {
                unreachable!("the node keeps these to itself")
            }
        }
        None
    }

    /// The process has ended: its group gets its last signal, its files are removed, and if it was the last of its job here,
    /// what has left the group ends, too.
    pub fn handle_exited(&mut self, id: ProcessId) {
        self.signal(id, libc::SIGKILL);
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.alive = false;
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
        let own: BTreeSet<i32> = alive().map(|(_, process)| process.pid).chain(keeper).collect();
        let over = |mark: &orphans::Mark| mark.node == self.node.as_str() && alive().all(|(id, _)| id.job != mark.job);
        let undecided = orphans::tend(&own, over);
        self.looks -= 1;
        self.look_again = (undecided && self.looks > 0).then(|| Instant::now() + orphans::PAUSE);
    }

    /// Kills every process at once.
    pub fn kill_all(&mut self) {
        let all: Vec<_> = self.processes.keys().copied().collect();
        all.into_iter().for_each(|id| self.signal(id, libc::SIGKILL));
        self.processes.iter().for_each(|(id, p)| remove_leftovers(&p.kvsname, id.rank));
    }

    /// Interrupts a process, so that it looks at what it was told. Only one that has joined may be: the library handles the signal.
    pub fn nudge(&self, id: ProcessId) {
        let Some(process) = self.processes.get(&id).filter(|p| p.alive) else { return };
        // An engine that is saving the process already takes no notice; the next nudge finds it again.
        if let Err(error) = control::nudge(process.pid) {
            tracing::debug!(job = %id.job, rank = %id.rank, %error, "not nudged");
        }
    }

    fn signal(&self, id: ProcessId, signal: i32) {
        let Some(process) = self.processes.get(&id).filter(|p| p.alive) else { return };
        match Signal::try_from(signal) {
            Ok(signal) => match killpg(Pid::from_raw(process.pid), signal) {
                // ESRCH: it has ended by itself.
                Ok(()) | Err(Errno::ESRCH) => tracing::debug!(job = %id.job, rank = %id.rank, %signal, "sent"),
                Err(error) => tracing::warn!(job = %id.job, rank = %id.rank, %signal, %error, "not sent"),
            },
            Err(_) => tracing::warn!(signal, "not a signal"),
        }
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
        let pid = child.id().ok_or_else(|| SpawnError { error: "it ended at once".to_owned(), code: exit_code::RADIC })?;
        self.keep(&Ward { group: pid as i32, job: id.job, rank: id.rank, kvsname: order.kvsname.clone() });
        let process = self.attach(id, &mut child, order.kvsname.clone(), ours);
        self.processes.insert(id, process);
        let inputs = self.inputs.clone();
        spawn_local(async move {
            let status = child.wait().await.map_or(ExitStatus::Code(exit_code::RADIC), exit_status);
            _ = inputs.send(Input::Exited(id, status)).await;
        });
        Ok(pid)
    }

    fn command(&self, order: &SpawnOrder, program: &OsStr, dir: &Path, pmi_fd: i32) -> Command {
        let mut command = Command::new(program);
        let name = order.args.first().map_or(program, |name| OsStr::from_bytes(name));
        command.as_std_mut().arg0_bytes(name);
        command.args(order.args.iter().skip(1).map(|a| OsStr::from_bytes(a))).current_dir(dir).env_clear();
        command.envs(order.env.iter().map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value))));
        command.env("PMI_FD", pmi_fd.to_string());
        command.stdin(if order.stdin { Stdio::piped() } else { Stdio::null() }).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (limit, umask, fixed_addresses) = (self.limit, order.umask, order.library.is_some());
        sys::prepare_rank(&mut command, sys::Preparation { pmi_fd, limit, umask, fixed_addresses });
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

    fn attach(&self, id: ProcessId, child: &mut Child, kvsname: String, pmi: UnixStream) -> Process {
        let pid = child.id().unwrap_or_default() as i32;
        let stdin = child.stdin.take().map(|pipe| {
            let (sender, pieces) = mpsc::channel(1);
            spawn_local(feed(id.job, pipe, pieces, self.inputs.clone()));
            sender
        });
        let mut readers = HashMap::new();
        if let Some(pipe) = child.stdout.take() {
            readers.insert(OutputStream::Stdout, self.reader(id, OutputStream::Stdout, pipe));
        }
        if let Some(pipe) = child.stderr.take() {
            readers.insert(OutputStream::Stderr, self.reader(id, OutputStream::Stderr, pipe));
        }
        let (sender, answers) = mpsc::channel(PMI_QUEUE);
        spawn_local(serve_pmi(id, pmi, answers, self.inputs.clone()));
        Process { pid, alive: true, stdin, pmi: sender, readers, kvsname }
    }

    fn reader(&self, id: ProcessId, stream: OutputStream, pipe: impl AsyncRead + Unpin + 'static) -> (Rc<Notify>, AbortHandle) {
        let permit = Rc::new(Notify::new());
        let task = spawn_local(read_output(id, stream, pipe, permit.clone(), self.inputs.clone()));
        (permit, task.abort_handle())
    }

    /// Standard input of rank 0. A rank that does not read any more takes everything: nobody waits for it.
    fn write_stdin(&mut self, job: JobId, data: ByteBuf) -> Option<Input> {
        let process = self.processes.get_mut(&ProcessId { job, rank: Rank(0) })?;
        if data.is_empty() {
            process.stdin = None;
            return Some(Input::StdinTaken(job));
        }
        match &process.stdin {
            Some(stdin) if stdin.try_send(data).is_ok() => None,
            _ => Some(Input::StdinTaken(job)),
        }
    }
}

async fn feed(job: JobId, mut pipe: ChildStdin, mut pieces: mpsc::Receiver<ByteBuf>, inputs: mpsc::Sender<Input>) {
    while let Some(piece) = pieces.recv().await {
        let written = pipe.write_all(&piece).await;
        if written.is_err() {
            pieces.close();
        }
        _ = inputs.send(Input::StdinTaken(job)).await;
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

async fn serve_pmi(id: ProcessId, socket: UnixStream, mut answers: mpsc::Receiver<Vec<u8>>, inputs: mpsc::Sender<Input>) {
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
