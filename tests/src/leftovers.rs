//! What is left of a test that was killed, and of a job that has ended.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use crate::process;

/// The beginning of every cluster directory's name.
const PREFIX: &str = "radic-test-";
/// The file in it that its test holds locked, as long as the test runs.
const OWNER: &str = "owner";
/// Time for the dead to be gone.
const GONE: Duration = Duration::from_secs(10);
/// Time in which a file that another process has just made in shared memory is mapped, or gone.
const TRANSIENT: Duration = Duration::from_secs(1);
/// Where POSIX shared memory is.
const SHM: &str = "/dev/shm";

/// A cluster's directory; removed when it is dropped.
#[derive(Debug)]
pub struct ClusterDir {
    path: PathBuf,
    _owner: Flock<File>,
}

impl ClusterDir {
    /// A new one, after the end of what killed tests have left.
    pub fn new() -> Self {
        static SWEEP: Once = Once::new();
        static NEXT: AtomicU32 = AtomicU32::new(1);
        SWEEP.call_once(|| sweep(&std::env::temp_dir()));
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let (new, path) = (std::env::temp_dir().join(format!("new-{name}")), std::env::temp_dir().join(name));
        DirBuilder::new().mode(0o700).create(&new).unwrap_or_else(|error| panic!("{}: {error}", new.display()));
        let owner = lock(&new).expect("no other process knows the new directory");
        // It has its name when it is locked: the sweep of a test that begins in this moment takes it for no killed test's.
        fs::rename(&new, &path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        ClusterDir { path, _owner: owner }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Default for ClusterDir {
    fn default() -> Self {
        ClusterDir::new()
    }
}

impl Drop for ClusterDir {
    fn drop(&mut self) {
        let gone = end_all(&self.path);
        _ = fs::remove_dir_all(&self.path);
        assert!(gone || std::thread::panicking(), "processes of {} do not end even by SIGKILL", self.path.display());
    }
}

/// The lock that says that the directory's test runs; none if another process has it.
fn lock(dir: &Path) -> Option<Flock<File>> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(dir.join(OWNER)).ok()?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
}

/// Kills what belongs to a cluster, with what it alone has in shared memory: what would clean up is killed, too, and other tests on this machine would find it. Whether all
/// is gone.
fn end_all(dir: &Path) -> bool {
    let shared = mapped_by(process::marked(dir).iter().map(process::Process::pid));
    let gone = process::kill_marked(dir, GONE);
    let used = mapped();
    shared.difference(&used).for_each(|path| _ = fs::remove_file(path));
    gone
}

/// Ends and removes what tests have left that were killed. Their namespaces end with the processes in them.
fn sweep(temp: &Path) {
    for entry in fs::read_dir(temp).into_iter().flatten().flatten() {
        let ours = entry.metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == nix::unistd::geteuid().as_raw());
        if !ours || !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let dir = entry.path();
        if let Some(_owner) = lock(&dir) {
            println!("removing what a killed test has left in {}", dir.display());
            end_all(&dir);
            _ = fs::remove_dir_all(&dir);
        }
    }
}

/// The files in shared memory, to be compared with those of later.
#[derive(Debug)]
pub struct SharedMemory {
    before: BTreeSet<String>,
}

impl SharedMemory {
    /// Those of now.
    pub fn now() -> Self {
        SharedMemory { before: files() }
    }

    /// Fails the test if a file is left behind for longer than it takes others on this machine to make and map one.
    pub fn assert_nothing_left(&self) {
        let mut left = Vec::new();
        let deadline = Instant::now() + TRANSIENT;
        while Instant::now() < deadline {
            left = self.left_behind();
            if left.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("files are left in shared memory: {left:?}");
    }

    /// Files that are new and that no living process has mapped: they were left behind. What other processes on this machine are
    /// using is not counted.
    pub fn left_behind(&self) -> Vec<String> {
        let new: Vec<String> = files().difference(&self.before).cloned().collect();
        if new.is_empty() {
            return new;
        }
        let used = mapped();
        // Looked at again: what was in use may have been removed properly meanwhile.
        let now = files();
        new.into_iter().filter(|name| now.contains(name) && !used.contains(&format!("{SHM}/{name}"))).collect()
    }
}

fn files() -> BTreeSet<String> {
    let entries = fs::read_dir(SHM).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The files in shared memory that some process has mapped.
fn mapped() -> BTreeSet<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    paths_in(processes.map(|entry| entry.path().join("maps")))
}

/// The files in shared memory that these processes have mapped.
pub fn mapped_by(pids: impl Iterator<Item = u32>) -> BTreeSet<String> {
    paths_in(pids.map(|pid| PathBuf::from(format!("/proc/{pid}/maps"))))
}

fn paths_in(maps: impl Iterator<Item = PathBuf>) -> BTreeSet<String> {
    let maps = maps.filter_map(|maps| fs::read_to_string(maps).ok());
    let paths = |maps: String| {
        let of = |line: &str| line.find(SHM).map(|at| line[at..].to_owned());
        maps.lines().filter_map(of).collect::<Vec<_>>()
    };
    maps.flat_map(paths).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_a_dead_owner_left_is_ended_and_what_a_living_one_has_stays() {
        let temp = std::env::temp_dir().join(format!("radic-sweep-{}", std::process::id()));
        let (dead, living) = (temp.join(format!("{PREFIX}1-1")), temp.join(format!("{PREFIX}1-2")));
        for dir in [&dead, &living] {
            fs::create_dir_all(dir).unwrap();
        }
        let owner = lock(&living).unwrap();
        let shared = Path::new(SHM).join(format!("radic-sweep-{}", std::process::id()));
        let script = "import mmap, sys; f = open(sys.argv[1], 'w+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096); print(flush=True); input()";
        let mut python = Command::new("python3");
        python.args(["-c", script]).arg(&shared).env(process::MARK, &dead).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = python.spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 1]).unwrap();
        sweep(&temp);
        assert!(!child.wait().unwrap().success());
        assert!(!shared.exists(), "a file in shared memory that only it has mapped");
        assert!(!dead.exists() && living.exists());
        drop(owner);
        sweep(&temp);
        assert!(!living.exists());
        fs::remove_dir(&temp).unwrap();
    }

    #[test]
    fn files_left_in_shared_memory_are_noticed() {
        let before = SharedMemory::now();
        let path = Path::new(SHM).join(format!("radic-test-{}", std::process::id()));
        fs::write(&path, "x").unwrap();
        let left = before.left_behind();
        fs::remove_file(&path).unwrap();
        assert!(left.iter().any(|name| path.ends_with(name)), "{left:?}");
        assert!(!before.left_behind().iter().any(|name| path.ends_with(name)));
    }
}
