//! The thread that starts processes.
//!
//! A start takes milliseconds: the fork copies the daemon's page tables, and the daemon hears of the exec only when the new
//! process has had a processor. On a machine that is busy with the ranks just started, or where the program lies on a file
//! server, it takes far longer. So the thread that answers probes and judges other nodes waits for no start.
//!
//! One thread does all starts, and lives as long as the daemon: the kernel ties the parent-death signal to the thread that has
//! forked. It knows every child of the daemon before any other part does, so it is also the one that looks at orphans and removes
//! dead ones: any other thread could take the end of a child that is just being started from the code that waits for it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc as std_mpsc;
use std::thread;
use std::time::Duration;

use radic_ckpt::control::{self, Ids, Restorable};
use radic_ckpt::launch::DEATH_VARIABLE;
use radic_wire::ids::{JobId, NodeName, ProcessId};
use radic_wire::job::exit_code;
use radic_wire::local::Fault;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use super::faults;
use super::keeper::{Keeper, Ward};
use super::orphans;
use super::sys::{self, DescriptorLimit};
use crate::node::host::{RestoreOrder, SpawnError, SpawnOrder};

/// ELF's class for 64 bits, and its machine for x86-64, little endian.
const ELF_64: u8 = 2;
const ELF_X86_64: [u8; 2] = [62, 0];
/// Time that the thread has at the daemon's end for what it is at, and its keeper to clean up.
const END: Duration = Duration::from_secs(5);
/// Time that a connection waits for the start that is under way when it comes. A start that hangs must not keep others waiting
/// for ever.
const GATE: Duration = Duration::from_secs(3);

/// What is to be done. Orders are carried out one after the other. At most so many wait as ranks may be started at once (for each
/// job), are ready to be brought back, and have just ended.
pub enum Order {
    /// Start a process.
    Start(ProcessId, SpawnOrder),
    /// Bring a process back: its images are here. The path is where it is to report its death, if that is possible.
    Restore(RestoreOrder, Box<Restorable>, Option<PathBuf>),
    /// A child has ended and was waited for, or is not of interest any more. Its process group is not that of a rank any more.
    Forget { child: i32, group: i32 },
    /// Cause a fault here; the groups are those of ranks.
    Cause(Fault, Vec<i32>),
    /// Look at orphans: which jobs have processes here, and which of those came from other nodes.
    Look { running: BTreeSet<JobId>, guests: BTreeSet<JobId> },
}

/// What was done.
pub enum Done {
    /// The answer to [`Order::Start`] and [`Order::Restore`], with the number of the order.
    Started(ProcessId, u64, Result<Started, SpawnError>),
    /// The answer to [`Order::Look`]: whether another look is worth while.
    Looked { undecided: bool },
    /// The fault of [`Order::Cause`] is not caused, and why.
    NotCaused(String),
}

/// A process that was started.
pub struct Started {
    /// Our child: itself, or the keeper that the engine has put between us.
    pub child: Child,
    /// The child's process id.
    pub child_pid: i32,
    /// The process itself.
    pub pid: i32,
    /// Our end of its PMI connection. A process that is brought back connects itself.
    pub pmi: Option<UnixStream>,
    /// The key space by whose name it may leave files.
    pub kvsname: String,
}

/// How many starts have begun, and how many of them are over and told.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    begun: u64,
    told: u64,
}

/// Where connections of processes wait until the daemon can know their processes: a process may connect before its start is told.
#[derive(Clone)]
pub struct Gate(watch::Receiver<Progress>);

impl Gate {
    /// Waits for the start that is under way, if one is: every process that runs by now was started by that or before.
    pub async fn pass(mut self) {
        let begun = self.0.borrow().begun;
        // A launcher that has ended tells nothing more. The daemon ends, too.
        _ = tokio::time::timeout(GATE, self.0.wait_for(|progress| progress.told >= begun)).await;
    }
}

/// The thread, as the daemon sees it. When this is dropped the thread ends, and with it everything that it has started.
pub struct Launcher {
    orders: Option<std_mpsc::Sender<(u64, Order)>>,
    ended: std_mpsc::Receiver<()>,
    progress: watch::Receiver<Progress>,
    last: u64,
}

impl Launcher {
    /// Starts the thread, for the node of this name. `limit` is what ranks get as their limit on descriptors, `number` what is
    /// told to those that are brought back: by it they find us. What is done comes out of the receiver: as much as was ordered.
    /// Must be called within the daemon's runtime.
    pub fn start(node: NodeName, limit: DescriptorLimit, number: u64) -> io::Result<(Launcher, mpsc::UnboundedReceiver<Done>)> {
        let (orders, receiver) = std_mpsc::channel();
        let (done, results) = mpsc::unbounded_channel();
        let (progress_sender, progress) = watch::channel(Progress::default());
        let (end, ended) = std_mpsc::channel();
        let runtime = Handle::current();
        let (keeper, children) = (None, BTreeSet::new());
        let worker = Worker { node, limit, number, runtime, keeper, children, done, progress: progress_sender };
        thread::Builder::new().name("launcher".into()).spawn(move || {
            worker.run(&receiver);
            // Only the daemon's end waits for it.
            _ = end.send(());
        })?;
        Ok((Launcher { orders: Some(orders), ended, progress, last: 0 }, results))
    }

    /// Orders something. The number of the order, which its answer has.
    pub fn order(&mut self, order: Order) -> u64 {
        self.last += 1;
        if let Some(orders) = &self.orders {
            // The thread ends only after this.
            _ = orders.send((self.last, order));
        }
        self.last
    }

    /// Where connections of processes are to wait.
    pub fn gate(&self) -> Gate {
        Gate(self.progress.clone())
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        drop(self.orders.take());
        if self.ended.recv_timeout(END).is_err() {
            tracing::warn!("a start hangs at this protector's end: what it would have started ends with it");
        }
    }
}

/// The thread's own.
struct Worker {
    node: NodeName,
    limit: DescriptorLimit,
    number: u64,
    runtime: Handle,
    keeper: Option<Keeper>,
    /// Children that it has started and that were not waited for yet, as far as it was told.
    children: BTreeSet<i32>,
    done: mpsc::UnboundedSender<Done>,
    progress: watch::Sender<Progress>,
}

impl Worker {
    fn run(mut self, orders: &std_mpsc::Receiver<(u64, Order)>) {
        for (number, order) in orders {
            match order {
                Order::Start(id, order) => self.tell(id, number, |worker| worker.launch(id, &order)),
                Order::Restore(order, image, report) => {
                    self.tell(order.process, number, |worker| worker.restore(&order, *image, report.as_deref()));
                }
                Order::Forget { child, group } => {
                    self.children.remove(&child);
                    if let Some(Err(error)) = self.keeper.as_mut().map(|keeper| keeper.remove(group)) {
                        tracing::warn!(%error, "the keeper is gone");
                        self.keeper = None;
                    }
                }
                Order::Cause(fault, groups) => {
                    if let Err(error) = faults::cause(fault, &groups) {
                        let why = format!("the fault that was asked for is not caused: {error}");
                        _ = self.done.send(Done::NotCaused(why));
                    }
                }
                Order::Look { running, guests } => {
                    let undecided = self.look_at_orphans(&running, &guests);
                    _ = self.done.send(Done::Looked { undecided });
                }
            }
        }
    }

    /// Starts something and tells what has come of it. What waits at the gate goes on after that.
    fn tell(&mut self, id: ProcessId, number: u64, start: impl FnOnce(&mut Self) -> Result<Started, SpawnError>) {
        self.progress.send_modify(|progress| progress.begun += 1);
        let result = start(self);
        // A daemon at its end does not hear it; what was started ends with it.
        _ = self.done.send(Done::Started(id, number, result));
        self.progress.send_modify(|progress| progress.told = progress.begun);
    }

    fn launch(&mut self, id: ProcessId, order: &SpawnOrder) -> Result<Started, SpawnError> {
        let program = OsStr::from_bytes(&order.program);
        let dir = Path::new(OsStr::from_bytes(&order.dir));
        // Asked first, since a failed spawn does not say which of the two it was.
        std::fs::read_dir(dir).map_err(|e| failed(&format!("working directory {}", dir.display()), &e))?;
        refuse_foreign(Path::new(program))?;
        order.library.as_deref().map_or(Ok(()), check_library)?;
        let (ours, theirs) = UnixStream::pair().map_err(|e| failed("a socket pair for PMI", &e))?;
        ours.set_nonblocking(true).map_err(|e| failed("PMI", &e))?;
        let command = self.command(order, program, dir, theirs.as_raw_fd());
        let (child, child_pid) = self.spawn(command, program)?;
        self.keep(&Ward { group: child_pid, job: id.job, rank: id.rank, kvsname: order.kvsname.clone() });
        Ok(Started { child, child_pid, pid: child_pid, pmi: Some(ours), kvsname: order.kvsname.clone() })
    }

    fn command(&self, order: &SpawnOrder, program: &OsStr, dir: &Path, pmi_fd: i32) -> Command {
        let mut command = std::process::Command::new(program);
        let name = order.args.first().map_or(program, |name| OsStr::from_bytes(name));
        std::os::unix::process::CommandExt::arg0(&mut command, name);
        command.args(order.args.iter().skip(1).map(|a| OsStr::from_bytes(a))).current_dir(dir).env_clear();
        command.envs(order.env.iter().map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value))));
        command.env("PMI_FD", pmi_fd.to_string());
        let (limit, umask) = (self.limit, order.umask);
        let (fixed_addresses, is_prompt) = (order.library.is_some(), order.is_protected);
        let preparation = sys::Preparation { pmi_fd: Some(pmi_fd), limit, umask, fixed_addresses, is_prompt };
        sys::prepare_rank(&mut command, preparation);
        with_pipes(command, order.stdin)
    }

    fn restore(&mut self, order: &RestoreOrder, image: Restorable, report: Option<&Path>) -> Result<Started, SpawnError> {
        let (id, program) = (order.process, OsStr::from_bytes(&image.process().exe).to_owned());
        check_surroundings(Path::new(&program), Path::new(OsStr::from_bytes(&image.process().cwd)))?;
        check_library(&order.library)?;
        let preparation =
            sys::Preparation { pmi_fd: None, limit: self.limit, umask: 0o077, fixed_addresses: false, is_prompt: true };
        let prepare = |command: &mut std::process::Command| {
            sys::prepare_rank(command, preparation);
            command.envs(report.map(|path| (DEATH_VARIABLE, path)));
        };
        let mut command = image.command(Ids::Old, Path::new(&order.library), Some(self.number), prepare);
        sys::lead_session(&mut command);
        let (child, child_pid) = self.spawn(with_pipes(command, order.stdin), &program)?;
        let pid = control::kept_by(child_pid).unwrap_or(child_pid);
        self.keep(&Ward { group: pid, job: id.job, rank: id.rank, kvsname: order.kvsname.clone() });
        Ok(Started { child, child_pid, pid, pmi: None, kvsname: order.kvsname.clone() })
    }

    fn spawn(&mut self, mut command: Command, program: &OsStr) -> Result<(Child, i32), SpawnError> {
        // The daemon's runtime waits for its end and its pipes.
        let _entered = self.runtime.enter();
        let child = command.spawn().map_err(|error| exec_error(program, &error))?;
        let ended = || SpawnError { error: "it ended at once".to_owned(), code: exit_code::RADIC };
        let pid = child.id().map(|pid| pid as i32).ok_or_else(ended)?;
        self.children.insert(pid);
        Ok((child, pid))
    }

    fn keep(&mut self, ward: &Ward) {
        if self.keeper.is_none() {
            let keeper = Keeper::start(self.node.as_str());
            self.keeper = keeper.inspect_err(|error| tracing::warn!(%error, "no keeper")).ok();
        }
        if let Some(Err(error)) = self.keeper.as_mut().map(|keeper| keeper.add(ward)) {
            tracing::warn!(%error, "the keeper is gone");
            self.keeper = None;
        }
    }

    fn look_at_orphans(&self, running: &BTreeSet<JobId>, guests: &BTreeSet<JobId>) -> bool {
        let own: BTreeSet<i32> = self.children.iter().copied().chain(self.keeper.as_ref().map(Keeper::pid)).collect();
        let ours = |mark: &orphans::Mark| mark.node == self.node.as_str() || guests.contains(&mark.job);
        orphans::tend(&own, |mark| ours(mark) && !running.contains(&mark.job))
    }
}

fn failed(what: &str, error: &io::Error) -> SpawnError {
    SpawnError { error: format!("{what}: {error}"), code: exit_code::RADIC }
}

fn with_pipes(mut command: std::process::Command, stdin: bool) -> Command {
    command.stdin(if stdin { Stdio::piped() } else { Stdio::null() }).stdout(Stdio::piped()).stderr(Stdio::piped());
    Command::from(command)
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use nix::sys::stat::Mode;
    use radic_wire::ids::Rank;
    use serde_bytes::ByteBuf;

    use super::*;

    /// Far more than anything takes.
    const LIMIT: Duration = Duration::from_secs(60);

    fn order(program: &Path) -> SpawnOrder {
        let (program, dir) = (ByteBuf::from(program.as_os_str().as_bytes()), ByteBuf::from("/"));
        let (args, env, kvsname) = (Vec::new(), Vec::new(), "k".to_owned());
        SpawnOrder { program, args, env, dir, kvsname, stdin: false, umask: 0o022, library: None, is_protected: false }
    }

    fn id(rank: u32) -> ProcessId {
        ProcessId { job: JobId::from_bits(0xabc), rank: Rank(rank) }
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(LIMIT, test).await.expect("it hangs") });
    }

    async fn started(done: &mut mpsc::UnboundedReceiver<Done>) -> (ProcessId, u64, Result<Started, SpawnError>) {
        match done.recv().await.unwrap() {
            Done::Started(id, number, result) => (id, number, result),
            Done::Looked { .. } | Done::NotCaused(_) => panic!("that was not ordered"),
        }
    }

    /// A pipe without a writer stands for a program on a file server that does not answer.
    fn pipe(dir: &Path) -> PathBuf {
        let path = dir.join("program");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        path
    }

    #[test]
    fn a_start_that_hangs_holds_up_only_connections_that_may_be_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let program = pipe(dir.path());
        run(async move {
            let (mut launcher, mut done) = Launcher::start("n1".parse().unwrap(), (1024, 4096), 7).unwrap();
            launcher.gate().pass().await;
            let first = launcher.order(Order::Start(id(0), order(&program)));
            let second = launcher.order(Order::Start(id(1), order(Path::new("/bin/true"))));
            launcher.progress.wait_for(|progress| progress.begun == 1).await.unwrap();
            let passed = tokio::spawn(launcher.gate().pass());
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(!passed.is_finished() && done.try_recv().is_err());
            // Now the file server answers.
            drop(std::fs::OpenOptions::new().write(true).open(&program).unwrap());
            let (of, number, result) = started(&mut done).await;
            assert_eq!((of, number), (id(0), first));
            assert_eq!(result.err().unwrap().code, exit_code::CANNOT_EXECUTE);
            passed.await.unwrap();
            let (of, number, result) = started(&mut done).await;
            assert_eq!((of, number), (id(1), second));
            assert!(result.unwrap().child.wait().await.unwrap().success());
        });
    }

    /// A protected rank goes on as soon as its log service has answered, whatever else computes there; another program is scheduled as ever.
    #[test]
    fn a_protected_rank_has_a_short_slice() {
        run(async {
            let (mut launcher, mut done) = Launcher::start("n1".parse().unwrap(), (1024, 4096), 7).unwrap();
            let mut slices = Vec::new();
            for is_protected in [false, true] {
                // It waits for standard input, which ends when this is dropped.
                let waits = SpawnOrder { stdin: true, is_protected, ..order(Path::new("/bin/cat")) };
                launcher.order(Order::Start(id(0), waits));
                let process = started(&mut done).await.2.unwrap();
                slices.push(sys::slice_of(process.pid));
            }
            // Kernels before 6.12 have no slices of their own for processes.
            let [usual, protected] = slices[..] else { panic!("two were started") };
            assert_eq!(protected, usual.map(|usual| usual.min(sys::SLICE)));
            assert!(usual.is_none_or(|usual| usual > sys::SLICE), "{usual:?}");
        });
    }

    /// A look at orphans between the end of a rank and the moment at which the daemon hears of it leaves the rank's status alone.
    #[test]
    fn a_look_at_orphans_takes_no_end_of_a_child_that_is_waited_for() {
        run(async {
            let (mut launcher, mut done) = Launcher::start("n1".parse().unwrap(), (1024, 4096), 7).unwrap();
            launcher.order(Order::Start(id(0), order(Path::new("/bin/false"))));
            let mut process = started(&mut done).await.2.unwrap();
            // Until it has ended: its line stays, because it was not waited for.
            let stat = format!("/proc/{}/stat", process.pid);
            while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            launcher.order(Order::Look { running: BTreeSet::new(), guests: BTreeSet::new() });
            assert!(matches!(done.recv().await.unwrap(), Done::Looked { .. }));
            assert_eq!(process.child.wait().await.unwrap().code(), Some(1));
        });
    }
}
