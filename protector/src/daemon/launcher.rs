//! The threads that start processes.
//!
//! A start takes milliseconds: the fork copies the daemon's page tables, and the daemon hears of the exec only when the new
//! process has had a processor. On a machine that is busy with the ranks just started, or where the program lies on a file
//! server, it takes far longer, and without an end if that server is away. So the thread that answers probes and judges other
//! nodes waits for no start, and no job waits for a start of another one.
//!
//! One thread, the launcher's, gives starts to others, which live as long as the daemon: the kernel ties the parent-death signal
//! to the thread that has forked. A job has one of them at a time, and at most [`STARTERS`] jobs have one. A start that has no
//! answer within [`PATIENCE`] has failed, as has what the same job wants to be started before that thread is free again; what it
//! starts all the same is killed at once.
//!
//! The launcher's thread itself waits for no path of a user. It knows every child of the daemon before any other part does, so it
//! is also the one that looks at orphans and removes dead ones: any other thread could take the end of a child that is just being
//! started from the code that waits for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self as std_mpsc, RecvTimeoutError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use radic_ckpt::control::Restorable;
use radic_wire::fault::Fault;
use radic_wire::ids::{JobId, NodeName, ProcessId};
use radic_wire::job::exit_code;
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use super::faults;
use super::keeper::{Keeper, Ward};
use super::orphans;
pub use super::starts::Started;
use super::starts::{How, Start, Starter};
use super::sys::DescriptorLimit;
use crate::node::host::{RestoreOrder, SpawnError, SpawnOrder};
use crate::watched::{Thread, end_all};

/// Time in which a start must be done. A file server that stumbles is back by then.
const PATIENCE: Duration = Duration::from_secs(30);
/// Threads that start processes, at most: jobs that start some at once. Those that hang stay.
const STARTERS: usize = 32;
/// Time that the launcher's thread has at the daemon's end, and of that what starts have that are under way. Its keeper has the rest to clean up.
const END: Duration = Duration::from_secs(5);
const END_OF_STARTS: Duration = Duration::from_secs(3);
/// Time that a connection waits for the starts that are under way when it comes, from the beginning of each. A start that hangs
/// must not keep others waiting for ever.
const GATE: Duration = Duration::from_secs(3);

/// What is to be done. The starts of a job are carried out one after the other. At most so many wait as ranks may be started at once
/// (for each job), are ready to be brought back, and have just ended.
pub enum Order {
    /// Start a process.
    Start(ProcessId, Box<SpawnOrder>),
    /// Bring a process back: its images are here. The path is where it is to report its death, if that is possible.
    Restore(Box<RestoreOrder>, Box<Restorable>, Option<PathBuf>),
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
    /// A process whose start had failed for want of an answer is there all the same. It was killed, and is to be cleaned up after.
    Late(ProcessId, Started),
    /// The answer to [`Order::Look`]: whether another look is worth while.
    Looked { undecided: bool },
    /// The fault of [`Order::Cause`] is not caused, and why.
    NotCaused(String),
}

/// The starts that have begun and were not told, and when each has begun.
#[derive(Debug, Clone, Default)]
struct Progress(BTreeMap<u64, Instant>);

impl Progress {
    /// Until when connections wait for those up to this one. None: they do not.
    fn waits_until(&self, last: u64) -> Option<Instant> {
        self.0.range(..=last).map(|(_, begun)| *begun + GATE).max().filter(|until| *until > Instant::now())
    }
}

/// Where connections of processes wait until the daemon can know their processes: a process may connect before its start is told.
#[derive(Clone)]
pub struct Gate(watch::Receiver<Progress>);

impl Gate {
    /// Waits for the starts that are under way: every process that runs by now was started by those or before.
    pub async fn pass(mut self) {
        let last = self.0.borrow().0.keys().next_back().copied().unwrap_or(0);
        let until = self.0.borrow().waits_until(last);
        let Some(until) = until else { return };
        // A launcher that has ended tells nothing more. The daemon ends, too.
        _ = tokio::time::timeout_at(until.into(), self.0.wait_for(|progress| progress.waits_until(last).is_none())).await;
    }
}

/// What the launcher's thread hears.
enum Message {
    /// Something is ordered.
    Order(u64, Order),
    /// The starter of this number has done what it was given.
    Finished(usize, Box<Result<Started, SpawnError>>),
    /// The daemon ends.
    End,
}

/// The thread, as the daemon sees it. When this is dropped the thread ends, and with it everything that it has started.
pub struct Launcher {
    messages: std_mpsc::Sender<Message>,
    thread: Option<Thread>,
    progress: watch::Receiver<Progress>,
    last: u64,
}

impl Launcher {
    /// Starts the thread, for the node of this name. `limit` is what ranks get as their limit on descriptors, `number` what is
    /// told to those that are brought back: by it they find us. What is done comes out of the receiver: as much as was ordered.
    /// Must be called within the daemon's runtime.
    pub fn start(node: NodeName, limit: DescriptorLimit, number: u64) -> io::Result<(Launcher, mpsc::UnboundedReceiver<Done>)> {
        Launcher::patient(node, limit, number, PATIENCE)
    }

    /// The same. A start has so much time.
    fn patient(
        node: NodeName,
        limit: DescriptorLimit,
        number: u64,
        patience: Duration,
    ) -> io::Result<(Launcher, mpsc::UnboundedReceiver<Done>)> {
        let (messages, receiver) = std_mpsc::channel();
        let (done, results) = mpsc::unbounded_channel();
        let (progress_sender, progress) = watch::channel(Progress::default());
        let supervisor = Supervisor {
            node,
            starter: Starter { limit, number, runtime: Handle::current() },
            patience,
            keeper: None,
            children: BTreeSet::new(),
            done,
            progress: progress_sender,
            messages: messages.clone(),
            starters: Vec::new(),
            waiting: VecDeque::new(),
        };
        let thread = Thread::start("launcher", move |_| supervisor.run(&receiver))?;
        Ok((Launcher { messages, thread: Some(thread), progress, last: 0 }, results))
    }

    /// Orders something. The number of the order, which its answer has.
    pub fn order(&mut self, order: Order) -> u64 {
        self.last += 1;
        // The thread ends only after this.
        _ = self.messages.send(Message::Order(self.last, order));
        self.last
    }

    /// Where connections of processes are to wait.
    pub fn gate(&self) -> Gate {
        Gate(self.progress.clone())
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        _ = self.messages.send(Message::End);
        self.thread.take().into_iter().for_each(|thread| _ = thread.end(Instant::now() + END));
    }
}

/// A thread that starts processes.
struct StartThread {
    starts: std_mpsc::Sender<Start>,
    thread: Thread,
    /// Its number at the kernel.
    tid: i32,
    /// What it is at.
    at: Option<UnderWay>,
}

/// A start that is under way.
struct UnderWay {
    id: ProcessId,
    /// The number of the order.
    number: u64,
    begun: Instant,
    /// It had no answer in time, and that was told.
    given_up: Arc<AtomicBool>,
}

impl UnderWay {
    fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }
}

impl StartThread {
    fn begin(index: usize, starter: Starter, messages: std_mpsc::Sender<Message>) -> io::Result<StartThread> {
        let (starts, receiver) = std_mpsc::channel();
        let (tell_tid, tid) = std_mpsc::channel();
        let thread = Thread::start("start", move |watched| {
            _ = tell_tid.send(nix::unistd::gettid().as_raw());
            for start in receiver {
                // The launcher's thread waits for this one, and ends after it.
                _ = messages.send(Message::Finished(index, Box::new(starter.start(start, watched))));
            }
        })?;
        let tid = tid.recv().map_err(io::Error::other)?;
        Ok(StartThread { starts, thread, tid, at: None })
    }

    /// Why a start fails for which this thread is waited for.
    fn why(&self, patience: Duration) -> SpawnError {
        let at = self.thread.watched().at().map_or_else(|| "its start".to_owned(), |begun| begun.to_string());
        let error =
            format!("{at}: no answer within {} s: see whether the file server that has it answers", patience.as_secs_f64());
        SpawnError { error, code: exit_code::RADIC }
    }
}

/// What there is for a start.
enum Room {
    /// This thread.
    At(usize),
    /// Nothing yet.
    Later,
    /// Nothing soon.
    Never(SpawnError),
}

/// The launcher's thread's own.
struct Supervisor {
    node: NodeName,
    starter: Starter,
    /// Time that a start has.
    patience: Duration,
    keeper: Option<Keeper>,
    /// Children that were started and not waited for yet, as far as it was told.
    children: BTreeSet<i32>,
    done: mpsc::UnboundedSender<Done>,
    progress: watch::Sender<Progress>,
    /// To itself.
    messages: std_mpsc::Sender<Message>,
    starters: Vec<StartThread>,
    /// Starts that were not begun.
    waiting: VecDeque<(u64, ProcessId, How)>,
}

impl Supervisor {
    fn run(mut self, messages: &std_mpsc::Receiver<Message>) {
        loop {
            let next = match self.next_limit() {
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => messages.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match next {
                Ok(Message::Order(number, order)) => self.handle_order(number, order),
                Ok(Message::Finished(starter, result)) => self.handle_finished(starter, *result),
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => break,
            }
            self.give_up_late();
            self.begin_starts();
        }
        let Supervisor { starters, keeper, .. } = self;
        // A thread ends when nothing more can be ordered of it, and with it the processes that it has started.
        end_all(starters.into_iter().map(|starter| starter.thread), END_OF_STARTS);
        drop(keeper);
    }

    fn handle_order(&mut self, number: u64, order: Order) {
        match order {
            Order::Start(id, order) => self.waiting.push_back((number, id, How::Start(order))),
            Order::Restore(order, image, report) => {
                self.waiting.push_back((number, order.process, How::Restore(order, image, report)));
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

    // ---- starts

    fn begin_starts(&mut self) {
        for (number, id, how) in std::mem::take(&mut self.waiting) {
            match self.room_for(id.job) {
                Room::At(starter) => self.begin(starter, number, id, how),
                Room::Later => self.waiting.push_back((number, id, how)),
                Room::Never(why) => self.tell(id, number, Err(why)),
            }
        }
    }

    /// A job has one thread at a time: one whose paths hang takes no other job's.
    fn room_for(&mut self, job: JobId) -> Room {
        let is_its = |starter: &&StartThread| starter.at.as_ref().is_some_and(|at| at.id.job == job);
        if let Some(its) = self.starters.iter().find(is_its) {
            let hangs = its.at.as_ref().is_some_and(UnderWay::is_given_up);
            return if hangs { Room::Never(its.why(self.patience)) } else { Room::Later };
        }
        if let Some(idle) = self.starters.iter().position(|starter| starter.at.is_none()) {
            return Room::At(idle);
        }
        if self.starters.len() < STARTERS {
            match StartThread::begin(self.starters.len(), self.starter.clone(), self.messages.clone()) {
                Ok(starter) => {
                    self.starters.push(starter);
                    return Room::At(self.starters.len() - 1);
                }
                Err(error) if self.starters.is_empty() => {
                    let error = format!("there is no thread to start it: {error}");
                    return Room::Never(SpawnError { error, code: exit_code::RADIC });
                }
                Err(error) => tracing::warn!(%error, "there is no thread for one more start: it waits for another one"),
            }
        }
        let all_hang = self.starters.iter().all(|starter| starter.at.as_ref().is_some_and(UnderWay::is_given_up));
        match self.starters.first().filter(|_| all_hang) {
            Some(first) => {
                let SpawnError { error, code } = first.why(self.patience);
                let error = format!("all {} threads that start processes hang here, the first at {error}", self.starters.len());
                Room::Never(SpawnError { error, code })
            }
            None => Room::Later,
        }
    }

    fn begin(&mut self, starter: usize, number: u64, id: ProcessId, how: How) {
        let (begun, given_up) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        self.progress.send_modify(|progress| _ = progress.0.insert(number, begun));
        let starter = &mut self.starters[starter];
        starter.at = Some(UnderWay { id, number, begun, given_up: given_up.clone() });
        // Its thread ends only after this one.
        _ = starter.starts.send(Start { id, how, given_up });
    }

    fn handle_finished(&mut self, starter: usize, result: Result<Started, SpawnError>) {
        let Some(at) = self.starters.get_mut(starter).and_then(|starter| starter.at.take()) else { return };
        let (id, is_given_up) = (at.id, at.is_given_up());
        match result {
            Ok(started) => {
                self.children.insert(started.child_pid);
                if is_given_up {
                    _ = started.group.signal(Signal::SIGKILL);
                    _ = self.done.send(Done::Late(id, started));
                } else {
                    let (group, kvsname) = (started.group.pid(), started.kvsname.clone());
                    self.keep(&Ward { group, job: id.job, rank: id.rank, kvsname });
                    self.tell(id, at.number, Ok(started));
                }
            }
            Err(_) if is_given_up => {}
            Err(error) => self.tell(id, at.number, Err(error)),
        }
    }

    /// Tells what has come of a start. What waits at the gate goes on after that.
    fn tell(&self, id: ProcessId, number: u64, result: Result<Started, SpawnError>) {
        // A daemon at its end does not hear it; what was started ends with it.
        _ = self.done.send(Done::Started(id, number, result));
        self.progress.send_modify(|progress| _ = progress.0.remove(&number));
    }

    /// When the next start has had its time.
    fn next_limit(&self) -> Option<Instant> {
        let under_way = self.starters.iter().filter_map(|starter| starter.at.as_ref());
        under_way.filter(|at| !at.is_given_up()).map(|at| at.begun + self.patience).min()
    }

    fn give_up_late(&mut self) {
        let now = Instant::now();
        for starter in &self.starters {
            let Some(at) = starter.at.as_ref().filter(|at| !at.is_given_up() && at.begun + self.patience <= now) else {
                continue;
            };
            at.given_up.store(true, Ordering::Release);
            self.tell(at.id, at.number, Err(starter.why(self.patience)));
            self.kill_unknown(starter.tid);
        }
    }

    /// Kills the child that a thread is just starting: it hangs on its way to its program, or would be killed when it is there.
    fn kill_unknown(&self, thread: i32) {
        let is_unknown = |pid: &i32| !self.children.contains(pid);
        for pid in orphans::children_of(thread).into_iter().filter(is_unknown) {
            let Some(Ok(child)) = rustix::process::Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
                continue;
            };
            // It is that child still: its number was not given to another process before it was opened.
            if orphans::children_of(thread).contains(&pid) {
                _ = pidfd_send_signal(child, rustix::process::Signal::KILL);
            }
        }
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
        // What these have started is not known here before they say so.
        let busy = self.starters.iter().filter(|starter| starter.at.is_some()).map(|starter| starter.tid).collect();
        orphans::tend(&own, &busy, |mark| ours(mark) && !running.contains(&mark.job))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::path::{Path, PathBuf};

    use nix::sys::stat::Mode;
    use radic_wire::ids::Rank;
    use serde_bytes::ByteBuf;

    use super::super::sys::{self, Lease};
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
            Done::Late(..) | Done::Looked { .. } | Done::NotCaused(_) => panic!("that was not ordered"),
        }
    }

    /// A pipe without a writer stands for a file on a file server that does not answer.
    fn pipe(dir: &Path) -> PathBuf {
        let path = dir.join("library.so");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        path
    }

    /// Nobody opens the other end of a pipe: so hangs a file server that is away.
    #[test]
    fn a_start_that_hangs_holds_up_no_other_job_and_fails_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = pipe(dir.path());
        let library = pipe.to_str().unwrap().to_owned();
        run(async move {
            let patience = Duration::from_secs(2);
            let (mut launcher, mut done) = Launcher::patient("n1".parse().unwrap(), (1024, 4096), 7, patience).unwrap();
            launcher.gate().pass().await;
            let begun = Instant::now();
            let hangs = SpawnOrder { library: Some(library), ..order(Path::new("/bin/true")) };
            let first = launcher.order(Order::Start(id(0), Box::new(hangs)));
            let second = launcher.order(Order::Start(id(1), Box::new(order(Path::new("/bin/true")))));
            launcher.progress.wait_for(|progress| progress.0.contains_key(&first)).await.unwrap();
            let passed = tokio::spawn(launcher.gate().pass());
            let other = ProcessId { job: JobId::from_bits(0xdef), rank: Rank(0) };
            let third = launcher.order(Order::Start(other, Box::new(order(Path::new("/bin/true")))));
            let (of, number, result) = started(&mut done).await;
            assert_eq!((of, number), (other, third), "another job's is not held up");
            assert!(result.unwrap().child.wait().await.unwrap().success());
            let why = format!("library {}: no answer within 2 s", pipe.display());
            for (of, number) in [(id(0), first), (id(1), second)] {
                let (told, told_number, result) = started(&mut done).await;
                let error = result.err().unwrap();
                assert_eq!((told, told_number, error.code), (of, number, exit_code::RADIC));
                assert!(error.error.starts_with(&why), "{}", error.error);
            }
            assert!(begun.elapsed() >= patience);
            passed.await.unwrap();
            let late = launcher.order(Order::Start(id(2), Box::new(order(Path::new("/bin/true")))));
            let (_, number, result) = started(&mut done).await;
            assert_eq!((number, result.is_err()), (late, true), "its job's thread still hangs");
            // Now the file server answers: what was given up is not started, and the job's next one is.
            drop(std::fs::OpenOptions::new().write(true).open(&pipe).unwrap());
            loop {
                launcher.order(Order::Start(id(3), Box::new(order(Path::new("/bin/true")))));
                let (of, _, result) = started(&mut done).await;
                assert_eq!(of, id(3));
                if let Ok(mut process) = result {
                    assert!(process.child.wait().await.unwrap().success());
                    break;
                }
            }
        });
    }

    /// A lease on a file has the kernel make an exec wait for the process that holds the lease, as an exec waits for a file server.
    #[test]
    fn what_starts_after_it_was_given_up_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        std::fs::copy("/bin/sleep", &program).unwrap();
        let mut held = Lease::take(&program);
        run(async move {
            let patience = Duration::from_secs(1);
            let (mut launcher, mut done) = Launcher::patient("n1".parse().unwrap(), (1024, 4096), 7, patience).unwrap();
            let sleeps = SpawnOrder { args: vec![ByteBuf::from("sleep"), ByteBuf::from("1000")], ..order(&program) };
            launcher.order(Order::Start(id(0), Box::new(sleeps)));
            let (_, _, result) = started(&mut done).await;
            let error = result.err().unwrap().error;
            assert!(error.starts_with(&format!("start of program {}: no answer within", program.display())), "{error}");
            let Done::Late(of, mut process) = done.recv().await.unwrap() else {
                panic!("its thread goes on when its child is killed")
            };
            let status = process.child.wait().await.unwrap();
            assert_eq!((of, std::os::unix::process::ExitStatusExt::signal(&status)), (id(0), Some(libc::SIGKILL)));
            held.end();
        });
    }

    /// What an MPI library would find and use.
    #[test]
    fn a_start_finds_no_file_of_its_library() {
        let kvsname = format!("radic_launcher_test_{}", std::process::id());
        let [file, _] = crate::pmi::leftovers::paths(Path::new("/dev/shm"), &kvsname, Rank(0));
        std::fs::write(&file, "old").unwrap();
        run(async {
            let (mut launcher, mut done) = Launcher::start("n1".parse().unwrap(), (1024, 4096), 7).unwrap();
            let ours = || Box::new(SpawnOrder { kvsname: kvsname.clone(), ..order(Path::new("/bin/true")) });
            launcher.order(Order::Start(id(0), ours()));
            let result = started(&mut done).await.2;
            let is_there = file.exists();
            _ = std::fs::remove_file(&file);
            assert!(result.is_ok() && !is_there, "it is gone before the process begins");
            if nix::unistd::geteuid().is_root() {
                std::fs::write(&file, "planted").unwrap();
                std::os::unix::fs::chown(&file, Some(64_001), None).unwrap();
                launcher.order(Order::Start(id(0), ours()));
                let result = started(&mut done).await.2;
                std::fs::remove_file(&file).unwrap();
                let error = result.err().unwrap().error;
                assert!(error.contains("uid 64001") && error.contains(file.to_str().unwrap()), "{error}");
            }
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
                launcher.order(Order::Start(id(0), Box::new(waits)));
                let process = started(&mut done).await.2.unwrap();
                slices.push(sys::slice_of(process.group.pid()));
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
            launcher.order(Order::Start(id(0), Box::new(order(Path::new("/bin/false")))));
            let mut process = started(&mut done).await.2.unwrap();
            // Until it has ended: its line stays, because it was not waited for.
            let stat = format!("/proc/{}/stat", process.group.pid());
            while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            launcher.order(Order::Look { running: BTreeSet::new(), guests: BTreeSet::new() });
            assert!(matches!(done.recv().await.unwrap(), Done::Looked { .. }));
            assert_eq!(process.child.wait().await.unwrap().code(), Some(1));
        });
    }
}
