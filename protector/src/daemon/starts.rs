//! What one start does. It touches paths of its user, which may lie on a file server that does not answer: so each runs on one
//! of a few threads of their own ([`super::launcher`]), and says before what it is about to touch ([`Watched`]).

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use radic_ckpt::control::{self, Ids, Restorable};
use radic_ckpt::launch::DEATH_VARIABLE;
use radic_wire::ids::{ProcessId, Rank};
use radic_wire::job::exit_code;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;

use super::group::Group;
use super::sys::{self, DescriptorLimit};
use crate::node::host::{RestoreOrder, SpawnError, SpawnOrder};
use crate::pmi::leftovers;
use crate::watched::Watched;

/// ELF's class for 64 bits, and its machine for x86-64, little endian.
const ELF_64: u8 = 2;
const ELF_X86_64: [u8; 2] = [62, 0];

/// How a process begins.
pub enum How {
    /// As a program.
    Start(Box<SpawnOrder>),
    /// From images, which are here. The path is where it is to report its death, if that is possible.
    Restore(Box<RestoreOrder>, Box<Restorable>, Option<PathBuf>),
}

/// A process that is to be started.
pub struct Start {
    /// Which one.
    pub id: ProcessId,
    /// How.
    pub how: How,
    /// It was waited for too long: nothing is to be started any more.
    pub given_up: Arc<AtomicBool>,
}

/// A process that was started.
pub struct Started {
    /// Our child: itself, or the keeper that the engine has put between us.
    pub child: Child,
    /// The child's process id.
    pub child_pid: i32,
    /// The group of the process itself, which has its process id.
    pub group: Group,
    /// Our end of its PMI connection. A process that is brought back connects itself.
    pub pmi: Option<UnixStream>,
    /// The key space by whose name it may leave files.
    pub kvsname: String,
}

/// What starts have in common.
#[derive(Clone)]
pub struct Starter {
    /// What ranks get as their limit on descriptors.
    pub limit: DescriptorLimit,
    /// What is told to those that are brought back: by it they find us.
    pub number: u64,
    /// The daemon's.
    pub runtime: Handle,
}

impl Starter {
    /// Starts a process. To be called on a thread that lives as long as the daemon: the kernel ties the parent-death signal to it.
    pub fn start(&self, start: Start, watched: &Watched) -> Result<Started, SpawnError> {
        let (rank, given_up) = (start.id.rank, &start.given_up);
        match start.how {
            How::Start(order) => self.launch(rank, &order, watched, given_up),
            How::Restore(order, image, report) => self.restore(&order, *image, report.as_deref(), watched, given_up),
        }
    }

    fn launch(&self, rank: Rank, order: &SpawnOrder, watched: &Watched, given_up: &AtomicBool) -> Result<Started, SpawnError> {
        let program = OsStr::from_bytes(&order.program);
        let dir = Path::new(OsStr::from_bytes(&order.dir));
        // Asked first, since a failed spawn does not say which of the two it was.
        let read = watched.during("working directory", dir, || std::fs::read_dir(dir).map(drop));
        read.map_err(|e| failed(&format!("working directory {}", dir.display()), &e))?;
        watched.during("program", Path::new(program), || refuse_foreign(Path::new(program)))?;
        order.library.as_deref().map_or(Ok(()), |library| check_library(library, watched))?;
        leftovers::prepare(&order.kvsname, rank).map_err(refused)?;
        let (ours, theirs) = UnixStream::pair().map_err(|e| failed("a socket pair for PMI", &e))?;
        ours.set_nonblocking(true).map_err(|e| failed("PMI", &e))?;
        let command = self.command(order, program, dir, theirs.as_raw_fd());
        let (child, child_pid) = self.spawn(command, program, watched, given_up)?;
        Ok(Started { child, child_pid, group: Group::of(child_pid), pmi: Some(ours), kvsname: order.kvsname.clone() })
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

    fn restore(
        &self,
        order: &RestoreOrder,
        image: Restorable,
        report: Option<&Path>,
        watched: &Watched,
        given_up: &AtomicBool,
    ) -> Result<Started, SpawnError> {
        let program = OsStr::from_bytes(&image.process().exe).to_owned();
        check_surroundings(Path::new(&program), Path::new(OsStr::from_bytes(&image.process().cwd)), watched)?;
        check_library(&order.library, watched)?;
        leftovers::prepare(&order.kvsname, order.process.rank).map_err(refused)?;
        let preparation =
            sys::Preparation { pmi_fd: None, limit: self.limit, umask: 0o077, fixed_addresses: false, is_prompt: true };
        let prepare = |command: &mut std::process::Command| {
            sys::prepare_rank(command, preparation);
            command.envs(report.map(|path| (DEATH_VARIABLE, path)));
        };
        let mut command = image.command(Ids::Old, Path::new(&order.library), Some(self.number), prepare);
        sys::lead_session(&mut command);
        let (child, child_pid) = self.spawn(with_pipes(command, order.stdin), &program, watched, given_up)?;
        Ok(Started { child, child_pid, group: group_kept_by(child_pid), pmi: None, kvsname: order.kvsname.clone() })
    }

    fn spawn(
        &self,
        mut command: Command,
        program: &OsStr,
        watched: &Watched,
        given_up: &AtomicBool,
    ) -> Result<(Child, i32), SpawnError> {
        if given_up.load(Ordering::Acquire) {
            return Err(SpawnError { error: "it was given up".to_owned(), code: exit_code::RADIC });
        }
        // The daemon's runtime waits for its end and its pipes.
        let _entered = self.runtime.enter();
        // The new process changes its directory and executes the program before this returns.
        let spawned = watched.during("start of program", Path::new(program), || command.spawn());
        let child = spawned.map_err(|error| exec_error(program, &error))?;
        let ended = || SpawnError { error: "it ended at once".to_owned(), code: exit_code::RADIC };
        let pid = child.id().map(|pid| pid as i32).ok_or_else(ended)?;
        Ok((child, pid))
    }
}

/// The group of the process that this child keeps, or is.
fn group_kept_by(child: i32) -> Group {
    let kept = || control::kept_by(child);
    match kept() {
        // Between two answers that are the same its number was not given to another process.
        Some(pid) => Some(Group::of(pid)).filter(|_| kept() == Some(pid)).unwrap_or(Group::by_number(pid)),
        None => Group::of(child),
    }
}

fn refused(planted: leftovers::Planted) -> SpawnError {
    SpawnError { error: format!("it is not started: {planted}"), code: exit_code::RADIC }
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
    // A pipe would wait for its other end.
    let opened = std::fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(program);
    let read = opened.and_then(|mut file| file.read_exact(&mut header));
    let foreign = read.is_ok() && header.starts_with(b"\x7fELF") && (header[4] != ELF_64 || header[18..] != ELF_X86_64);
    if !foreign {
        return Ok(()); // Whatever else is wrong with it, the kernel says better.
    }
    let error = format!("{}: a program for another machine than x86-64", program.display());
    Err(SpawnError { error, code: exit_code::CANNOT_EXECUTE })
}

/// A process that is brought back opens its program and its working directory by their names.
fn check_surroundings(program: &Path, dir: &Path, watched: &Watched) -> Result<(), SpawnError> {
    let missing = |what: &str, path: &Path, why: &dyn std::fmt::Display| SpawnError {
        error: format!("it cannot go on here: its {what} {} is not on this node as it was: {why}", path.display()),
        code: exit_code::RADIC,
    };
    let opened = watched.during("program", program, || std::fs::File::open(program).map(drop));
    opened.map_err(|error| missing("program", program, &error))?;
    match watched.during("working directory", dir, || std::fs::metadata(dir)) {
        Ok(data) if data.is_dir() => Ok(()),
        Ok(_) => Err(missing("working directory", dir, &"it is no directory")),
        Err(error) => Err(missing("working directory", dir, &error)),
    }
}

/// The loader would only warn of a library that is not there, and the rank would run without protection.
fn check_library(path: &str, watched: &Watched) -> Result<(), SpawnError> {
    let refused = |why: String| {
        let error = format!("it cannot be protected: {path}: {why}; `radic run --protect none` runs it without");
        Err(SpawnError { error, code: exit_code::RADIC })
    };
    match watched.during("library", Path::new(path), || std::fs::File::open(path)) {
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
