//! Processes by their mark: found in /proc, held by a pidfd, so that no signal ever reaches a stranger.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The variable that names the cluster's directory in the environment of everything that belongs to it.
pub const MARK: &str = "RADIC_TEST_CLUSTER";
/// Time that an exec may take on a loaded machine.
const EXEC: Duration = Duration::from_secs(30);

/// A process that is held: its number means no other process until this is dropped.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    fd: OwnedFd,
}

impl Process {
    /// The process with this number, if there is one.
    pub fn open(pid: u32) -> Option<Process> {
        let fd = pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()?;
        Some(Process { pid, fd })
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal; one that has ended needs none.
    pub fn signal(&self, signal: Signal) {
        _ = pidfd_send_signal(&self.fd, signal);
    }

    /// Waits for its end; whether it came in time.
    pub fn wait(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match poll(&mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)], poll_timeout(left)) {
                Ok(1..) => return true,
                _ if left.is_zero() => return false,
                _ => {}
            }
        }
    }
}

/// Rounded up: a wait that ends before its time would only begin again.
pub(crate) fn poll_timeout(limit: Duration) -> PollTimeout {
    PollTimeout::try_from(limit + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX)
}

/// All processes of this machine.
pub fn all() -> impl Iterator<Item = Process> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(Process::open)
}

/// All processes that carry the mark of the cluster in `dir`. A dead process that its parent has not waited for has no environment any more.
pub fn marked(dir: &Path) -> Vec<Process> {
    // Asked after the process is held, so it is about this process.
    all().filter(|process| is_marked(process.pid, dir)).collect()
}

fn is_marked(pid: u32, dir: &Path) -> bool {
    variable(pid, MARK).is_some_and(|value| value == dir.as_os_str().as_bytes())
}

/// A variable in the environment that a process was started with.
pub fn variable(pid: u32, name: &str) -> Option<Vec<u8>> {
    let environment = environment(pid)?;
    let value = |entry: &[u8]| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
    environment.split(|byte| *byte == 0).find_map(value)
}

/// The environment that a process was started with. A parent's spawn returns before the kernel has given the child its environment (the vfork is over
/// once the child has left its parent's memory): such a child is looked at again, since it may be the very process that is looked for.
fn environment(pid: u32) -> Option<Vec<u8>> {
    let deadline = Instant::now() + EXEC;
    loop {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        if !environment.is_empty() || has_none(pid) {
            return Some(environment);
        }
        assert!(Instant::now() < deadline, "{pid} has been within exec for {EXEC:?}");
        // No event tells that an exec is over.
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Whether this process was started without an environment, or has no memory any more. During exec the kernel shows a program and no end of an
/// environment.
fn has_none(pid: u32) -> bool {
    // Neither the dead nor the kernel's threads have a program.
    let has_program = fs::read_link(format!("/proc/{pid}/exe")).is_ok();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // After the name, which may hold anything, comes field 3; the environment begins at field 50 and ends at field 51.
    let mut ends = stat.rsplit_once(')').into_iter().flat_map(|(_, fields)| fields.split_whitespace().skip(50 - 3).take(2));
    let (start, end) = (ends.next(), ends.next());
    !has_program || (start == end && end != Some("0"))
}

/// A process's command line, for people.
pub fn command_line(pid: u32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&words).replace('\0', " ").trim_end().to_owned()
}

/// What a process, and whatever carries the same mark, blocks, ignores, handles and has pending, for people.
pub fn signals_of_cluster(pid: u32) -> String {
    let dir = variable(pid, MARK);
    let others = dir.map(|dir| marked(Path::new(OsStr::from_bytes(&dir)))).unwrap_or_default();
    let mut pids: Vec<u32> = others.iter().map(Process::pid).filter(|other| *other != pid).collect();
    pids.insert(0, pid);
    pids.iter().map(|pid| format!("{pid} {}: {}\n", command_line(*pid), signals_of(*pid))).collect()
}

fn signals_of(pid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let lines = status.lines().filter(|line| line.starts_with("Sig") || line.starts_with("ShdPnd"));
    lines.map(|line| line.replace('\t', "")).collect::<Vec<_>>().join(" ")
}

/// Whether a process is of a Slurm whose files are in `dir`. What starts its tasks has an environment without the mark, and outlives a Slurm that is killed.
fn is_of_slurm(pid: u32, dir: &Path) -> bool {
    variable(pid, "SLURM_CONF").is_some_and(|value| Path::new(OsStr::from_bytes(&value)).starts_with(dir))
}

/// Kills every marked process, and those of a Slurm in this folder, and waits until all are gone; whether that worked in time.
pub fn kill_marked(dir: &Path, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        // Those found may have started others meanwhile: look until there are none.
        let ours = |process: &Process| is_marked(process.pid, dir) || is_of_slurm(process.pid, dir);
        let processes: Vec<Process> = all().filter(ours).collect();
        if processes.is_empty() {
            return true;
        }
        processes.iter().for_each(|process| process.signal(Signal::KILL));
        let left = || deadline.saturating_duration_since(Instant::now());
        if !processes.iter().all(|process| process.wait(left())) {
            return false;
        }
    }
}

/// Waits until no marked process but those in `except` is left. The error lists those that are.
pub fn wait_none(dir: &Path, except: &[u32], limit: Duration) -> Result<(), String> {
    let deadline = Instant::now() + limit;
    loop {
        let mut left = marked(dir);
        left.retain(|process| !except.contains(&process.pid));
        let Some(first) = left.first() else { return Ok(()) };
        if !first.wait(deadline.saturating_duration_since(Instant::now())) {
            let lines = left.iter().map(|process| format!("  {} {}", process.pid, command_line(process.pid)));
            return Err(lines.collect::<Vec<_>>().join("\n"));
        }
    }
}

/// Waits until something holds that no event tells.
///
/// # Panics
/// If it does not hold in time.
pub fn eventually(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < deadline, "waited for {limit:.1?} for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until `said` has this text. The result is all that was said; `story` is told if it does not come in time.
///
/// # Panics
/// If it does not.
pub fn until_said(limit: Duration, text: &str, said: impl Fn() -> String, story: impl Fn() -> String) -> String {
    let deadline = Instant::now() + limit;
    while !said().contains(text) {
        assert!(Instant::now() < deadline, "{text:?} was not said within {limit:?}, but:\n{}{}", said(), story());
        std::thread::sleep(Duration::from_millis(20));
    }
    said()
}

/// Resident memory of a process, in KiB.
pub fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("no VmRSS of process {pid}: has it ended?"))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn marked_processes_and_their_children_are_found_and_killed() {
        let dir = std::env::temp_dir().join(format!("radic-mark-{}", std::process::id()));
        let script = "sleep 1000 & echo there; wait";
        let mut child = Command::new("sh").args(["-c", script]).env(MARK, &dir).stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
        let found: Vec<_> = marked(&dir).iter().map(Process::pid).collect();
        assert!(found.len() >= 2 && found.contains(&child.id()), "{found:?}");
        assert!(wait_none(&dir, &[], Duration::ZERO).unwrap_err().contains("sleep 1000"));
        let signals = signals_of_cluster(child.id());
        assert!(signals.lines().count() >= 2 && signals.lines().all(|line| line.contains("SigIgn:")), "{signals}");
        assert!(kill_marked(&dir, Duration::from_secs(5)));
        assert!(!child.wait().unwrap().success());
        assert!(marked(&dir).is_empty());
    }

    #[test]
    fn what_a_slurm_in_the_folder_has_started_is_killed_without_the_mark() {
        let dir = std::env::temp_dir().join(format!("radic-slurm-{}", std::process::id()));
        let sleep =
            |folder: &Path| Command::new("sleep").arg("1000").env("SLURM_CONF", folder.join("slurm.conf")).spawn().unwrap();
        let (mut ours, mut other) = (sleep(&dir.join("slurm")), sleep(&std::env::temp_dir()));
        assert!(kill_marked(&dir, Duration::from_secs(5)));
        assert!(!ours.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none(), "it is of another Slurm");
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn what_is_still_within_exec_is_found() {
        // Nothing lies between the return of spawn and the search: at that moment most children have no environment yet.
        let seen = |mut command: Command| {
            let mut child = command.arg("1000").stdout(Stdio::null()).spawn().unwrap();
            let seen = environment(child.id());
            child.kill().unwrap();
            child.wait().unwrap();
            seen
        };
        for _ in 0..200 {
            let mut command = Command::new("sleep");
            command.env_clear().env(MARK, "here");
            assert_eq!(seen(command), Some(format!("{MARK}=here\0").into_bytes()));
        }
        let mut bare = Command::new("sleep");
        bare.env_clear();
        assert_eq!(seen(bare), Some(Vec::new()));
    }

    #[test]
    fn waiting_has_a_limit() {
        let myself = Process::open(std::process::id()).unwrap();
        assert!(!myself.wait(Duration::from_millis(10)));
        assert!(resident_kib(std::process::id()) > 100);
    }
}
