//! Programs that are started, saved, killed and restored. Every wait has a bound, and says what hung.

use std::fs::{self, File};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use radic_ckpt::control::{self, ControlError};
use radic_ckpt::{Mode, Request, Tracking};
use tempfile::TempDir;

/// How long anything may take: far more than it does, so that only a hang takes longer.
const PATIENCE: Duration = Duration::from_secs(90);

/// Is the whole matrix wanted, and not a sample?
pub fn long() -> bool {
    std::env::var_os("RADIC_LONG").is_some_and(|value| value == "1")
}

/// A library that Cargo builds as a dependency of these tests, beside them.
pub fn built(name: &str) -> PathBuf {
    let library = std::env::current_exe().unwrap().parent().unwrap().join(name);
    assert!(library.exists(), "{}", library.display());
    library
}

/// The checkpoint library.
pub fn library() -> PathBuf {
    built("libradic_ckpt_preload.so")
}

/// Path of a source file of tests/programs.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// Compiles `tests/programs/SOURCE` to a program of the same name in the folder `to`.
pub fn compile_with(compiler: &Path, flags: &[&str], name: &str, to: &Path) -> PathBuf {
    let program = to.join(name).with_extension("");
    let mut command = Command::new(compiler);
    command.args(["-O1", "-pthread", "-Wall", "-Werror"]).args(flags).arg("-o").arg(&program).arg(source(name));
    let status = command.status().unwrap_or_else(|e| panic!("{}: {e}: run scripts/deps.sh", compiler.display()));
    assert!(status.success(), "{command:?}");
    program
}

/// Compiles the C program `NAME.c`.
pub fn compile(name: &str, to: &Path) -> PathBuf {
    compile_with(Path::new("gcc"), &[], &format!("{name}.c"), to)
}

/// Numbers that look random, from a seed that is printed: RADIC_SEED, or the time.
pub struct Random(u64);

impl Random {
    pub fn new(what: &str) -> Self {
        let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let seed = std::env::var("RADIC_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(now);
        println!("{what}: RADIC_SEED={seed}");
        Self(seed | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }
}

/// A started or restored program; killed when dropped.
pub struct Process {
    pub child: Child,
    name: String,
    /// Files that may say why it ended.
    pub says: Vec<PathBuf>,
}

impl Process {
    pub fn start(name: &str, command: &mut Command) -> Self {
        let child = command.spawn().unwrap_or_else(|e| panic!("{name}: {command:?}: {e}"));
        Self { child, name: name.into(), says: Vec::new() }
    }

    /// The process itself (a restored one is the child of its keeper), as soon as it can be saved; none if it has ended.
    pub fn try_pid(&mut self) -> Option<i32> {
        let keeper = self.child.id() as i32;
        self.try_until("can be saved", || control::restored_pid(keeper))
    }

    /// The same, and it must not have ended.
    pub fn pid(&mut self) -> i32 {
        self.try_pid().unwrap_or_else(|| panic!("{}: ended before it can be saved: {}", self.name, self.said()))
    }

    /// Waits until there is something; none if the process has ended.
    pub fn try_until<T>(&mut self, what: &str, mut there: impl FnMut() -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let thing = there();
            if thing.is_some() || self.child.try_wait().unwrap().is_some() {
                return thing;
            }
            assert!(Instant::now() < deadline, "{}: hangs before it {what}: {}", self.name, self.describe());
            // Others' files and /proc: there is no event to wait for.
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// SIGKILL, to the process itself and not to its keeper. It may have ended.
    pub fn kill(&mut self) -> ExitStatus {
        if let Some(pid) = self.try_pid() {
            let _ = signal(pid, libc::SIGKILL);
        }
        self.wait()
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.ended_within(PATIENCE).unwrap_or_else(|| panic!("{}: hangs: {}", self.name, self.describe()))
    }

    pub fn ended_within(&mut self, bound: Duration) -> Option<ExitStatus> {
        // Once waited for, its pid may be another's.
        if self.child.try_wait().unwrap().is_none() {
            wait_for_end(self.child.id() as i32, bound).unwrap();
        }
        self.child.try_wait().unwrap()
    }

    /// Waits until something has happened; the process must not end before.
    pub fn until(&mut self, what: &str, mut happened: impl FnMut() -> bool) {
        let there = self.try_until(what, || happened().then_some(()));
        assert!(there.is_some(), "{}: ended before it {what}: {}", self.name, self.said());
    }

    fn said(&self) -> String {
        self.says.iter().map(|file| fs::read_to_string(file).unwrap_or_default()).collect()
    }

    /// What its threads are doing.
    fn describe(&self) -> String {
        let pid = control::restored_pid(self.child.id() as i32).unwrap_or(self.child.id() as i32);
        let mut text = format!("process {pid}");
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return text };
        for task in tasks.flatten() {
            let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let state = read("stat");
            let state = state.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).unwrap_or("?").to_owned();
            text += &format!("\n  {:?} {state} wchan {} syscall {}", task.file_name(), read("wchan"), read("syscall").trim_end());
        }
        text
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn signal(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    if unsafe { libc::kill(pid, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits until a child has ended, or the time is over.
fn wait_for_end(pid: i32, bound: Duration) -> io::Result<()> {
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and owned by nothing else.
    let _closed_later = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&raw mut poll, 1, bound.as_millis() as i32) };
    Ok(())
}

/// Are we root?
pub fn root() -> bool {
    // SAFETY: no memory is involved.
    unsafe { libc::geteuid() == 0 }
}

/// Gives the calling thread, and what it starts, a network of its own.
pub fn own_names() -> io::Result<()> {
    // SAFETY: no memory is involved.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Switches address randomisation off for a command.
pub fn without_aslr(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: one system call.
    unsafe {
        command.pre_exec(|| match libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
}

/// A new file.
pub fn create(path: &Path) -> File {
    File::create(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// How a program is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// All threads wait.
    Stop,
    /// A child writes.
    Fork,
    /// Increments, by the kernel's tracking of changes.
    Incremental,
    /// Increments, by hashes, as on kernels that do not track; packed.
    Hashed,
}

pub const WAYS: [Way; 4] = [Way::Stop, Way::Fork, Way::Incremental, Way::Hashed];

impl Way {
    fn request(self, parent: u64) -> Request {
        let (mode, tracking) = match self {
            Self::Stop => (Mode::Stop, Tracking::Off),
            Self::Fork => (Mode::Fork, Tracking::Off),
            Self::Incremental => (Mode::Fork, Tracking::Best),
            Self::Hashed => (Mode::Fork, Tracking::Hashes),
        };
        Request { mode, tracking, compress: self == Self::Hashed, parent }
    }

    /// Are its images increments?
    pub fn incremental(self) -> bool {
        matches!(self, Self::Incremental | Self::Hashed)
    }
}

/// The images of one process, in a folder of their own: increments find their ancestors there.
pub struct Images {
    folder: TempDir,
    /// The id of the last one, to which the next may be an increment.
    last: u64,
    kept: Vec<PathBuf>,
    made: usize,
}

impl Images {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), last: 0, kept: Vec::new(), made: 0 }
    }

    /// How many images the last one needs, itself included.
    pub fn layers(&self) -> usize {
        self.kept.len()
    }

    /// The next image is a whole one.
    pub fn restart_job(&mut self) {
        self.last = 0;
    }

    /// Makes an image that can be restored.
    pub fn save(&mut self, pid: i32, way: Way) -> Result<PathBuf, ControlError> {
        let image = self.folder.path().join(format!("image{}", self.made));
        let saved = control::save(pid, way.request(self.last), &image)?;
        if saved.parent == 0 {
            self.kept.drain(..).for_each(|old| fs::remove_file(old).unwrap());
        }
        assert!(saved.parent == 0 || saved.parent == self.last, "{way:?}: an increment to an image that nobody asked for");
        self.made += 1;
        self.last = saved.id;
        self.kept.push(image.clone());
        Ok(image)
    }
}
