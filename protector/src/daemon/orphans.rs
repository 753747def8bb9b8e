//! What ranks have started and left behind, beyond the reach of signals to their process groups.
//!
//! A process that makes a session or group of its own (setsid, a shell's job control) gets none of the signals that end a rank
//! and its group. The daemon is a *child subreaper*: such a process becomes the daemon's own child when its parent ends, not
//! init's. Its ancestry no longer tells of which job it is; what [`Host`](crate::node::host::Host) puts into a rank's environment
//! does, and that passes through any number of forks, sessions and programs. A process without that mark is never touched: a
//! protector that is the first process of a container is given all orphans there. So what leaves its group *and* clears its
//! environment gets away.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use radic_wire::ids::JobId;

/// Searches of [`kill_marked`]: each finds what was started during the one before, or was within exec.
const SEARCHES: usize = 16;
/// Generations that are looked at. Real programs nest less.
const ANCESTORS: usize = 4096;
/// So many in a row that find nothing are the last.
const IN_VAIN: usize = 3;
/// Time between two searches: an exec takes less.
pub const PAUSE: Duration = Duration::from_millis(20);

/// The job and the node that a process belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// The job.
    pub job: JobId,
    /// The node's name: several nodes of a job may share a machine.
    pub node: String,
}

/// From now on orphans come to this process.
pub fn adopt() -> nix::Result<()> {
    prctl::set_child_subreaper(true)
}

/// Kills the orphans for which `over` says so, and clears away dead children. `own` are the children that other code waits for,
/// `busy` the threads that are starting children just now, which may have some that nobody else knows. It is to be called
/// whenever a child has ended, because what the child leaves becomes a child of the daemon at that moment. Returns whether some
/// orphan did not show its mark, so that another look after a [`PAUSE`] is worth while.
pub fn tend(own: &BTreeSet<i32>, busy: &BTreeSet<i32>, over: impl Fn(&Mark) -> bool) -> bool {
    let mut undecided = false;
    for pid in children(busy).into_iter().filter(|pid| !own.contains(pid)).map(Pid::from_raw) {
        // A child stays one until it is waited for, so its number cannot be given to another process meanwhile.
        if waitpid(pid, Some(WaitPidFlag::WNOHANG)) != Ok(WaitStatus::StillAlive) {
            continue;
        }
        match look(pid.as_raw()) {
            Look::Marked(mark) if over(&mark) => {
                tracing::debug!(%pid, "killed: it has outlived its job");
                _ = kill(pid, Signal::SIGKILL);
            }
            Look::Marked(_) | Look::Stranger => {}
            Look::Nothing => undecided = true,
        }
    }
    undecided
}

/// Kills every process that has one of these marks, but not what another protector of this machine has brought back, which also
/// has the mark of the node where it was first launched. For the keeper, which adopts no orphans, of the daemon `daemon` that is
/// dead, or is at its end and waits for the keeper.
pub fn kill_marked(marks: &BTreeSet<Mark>, daemon: i32) {
    if marks.is_empty() {
        return;
    }
    let (mut killed, mut in_vain) = (BTreeSet::new(), 0);
    for _ in 0..SEARCHES {
        let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let ours = |pid: &i32| matches!(look(*pid), Look::Marked(mark) if marks.contains(&mark)) && !is_protected(*pid, daemon);
        let found: Vec<i32> = numbers.filter(|pid| !killed.contains(pid)).filter(ours).collect();
        in_vain = if found.is_empty() { in_vain + 1 } else { 0 };
        if in_vain == IN_VAIN {
            return;
        }
        for pid in found {
            _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            killed.insert(pid);
        }
        // No event tells that an exec is over.
        std::thread::sleep(PAUSE);
    }
}

/// Whether a protector other than `daemon` is among the ancestors of this process: it is not left behind, then.
fn is_protected(pid: i32, daemon: i32) -> bool {
    let Ok(radicd) = fs::read_link("/proc/self/exe") else { return false };
    let mut ancestor = parent(pid);
    // A chain that changes while it is followed might have no end.
    for _ in 0..ANCESTORS {
        match ancestor {
            Some(pid) if pid > 1 => {
                // A dead process that was not waited for has no program any more.
                if pid != daemon && fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == radicd) {
                    return true;
                }
                ancestor = parent(pid);
            }
            _ => return false,
        }
    }
    false
}

fn parent(pid: i32) -> Option<i32> {
    // The name of the program, in brackets, may hold anything; the state and the parent follow.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The children of all threads of this process but for these.
fn children(but: &BTreeSet<i32>) -> Vec<i32> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let threads = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
    threads.filter(|thread| !but.contains(thread)).flat_map(children_of).collect()
}

/// The children of one thread of this process.
pub fn children_of(thread: i32) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/self/task/{thread}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// What a look at a process shows.
enum Look {
    Marked(Mark),
    /// It has no mark, or belongs to another user.
    Stranger,
    /// No environment: it was started without, it has just ended, or it is within exec, where the kernel has none to show.
    Nothing,
}

fn look(pid: i32) -> Look {
    match fs::read(format!("/proc/{pid}/environ")) {
        Ok(environment) if environment.is_empty() => Look::Nothing,
        Ok(environment) => mark_in(&environment).map_or(Look::Stranger, Look::Marked),
        Err(_) => Look::Stranger,
    }
}

/// The mark of a process, if it shows one.
pub fn mark(pid: i32) -> Option<Mark> {
    match look(pid) {
        Look::Marked(mark) => Some(mark),
        Look::Stranger | Look::Nothing => None,
    }
}

fn mark_in(environment: &[u8]) -> Option<Mark> {
    let value = |name: &str| {
        let mut entries = environment.split(|byte| *byte == 0);
        let value = entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        str::from_utf8(value).ok()
    };
    Some(Mark { job: value("RADIC_JOB")?.parse().ok()?, node: value("RADIC_NODE")?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_from_an_environment() {
        let mark = Mark { job: JobId::from_bits(0xabc), node: "n1".into() };
        assert_eq!(mark_in(b"RADIC_JOBS=7\0RADIC_NODE=n1\0A=b\0RADIC_JOB=000000000abc\0"), Some(mark));
        for none in ["", "RADIC_JOB=000000000abc", "RADIC_NODE=n1\0RADIC_JOB=abc", "A=RADIC_JOB=000000000abc\0RADIC_NODE=n1"] {
            assert_eq!(mark_in(none.as_bytes()), None, "{none:?}");
        }
    }

    #[test]
    fn what_runs_under_this_very_program_is_not_left_behind() {
        // Here this test stands for the protector. The shell's child has it as its grandparent.
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 1000 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
        let grandchild: i32 = line.trim().parse().unwrap();
        assert!(is_protected(child.id() as i32, 1) && is_protected(grandchild, 1));
        let this = std::process::id() as i32;
        assert!(!is_protected(grandchild, this), "the keeper's own daemon, at its end, keeps nothing");
        assert!(!is_protected(1, 0));
        kill(Pid::from_raw(grandchild), Signal::SIGKILL).unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn children_are_listed() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let (none, this) = (BTreeSet::new(), nix::unistd::gettid().as_raw());
        assert!(children(&none).contains(&(child.id() as i32)));
        assert!(!children(&[this].into()).contains(&(child.id() as i32)), "that of a thread that is busy");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!children(&none).contains(&(child.id() as i32)));
    }
}
