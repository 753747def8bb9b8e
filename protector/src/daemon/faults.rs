//! Faults that `radic inject` causes: the daemon and its ranks are stopped for a while, or the node's links are down for a while.
//!
//! Neither can be undone by the daemon: it is stopped, or may end meanwhile. So a *causer*, a process of its own, does both, and
//! ends with the daemon if that comes first.

use std::io;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::net::if_::InterfaceFlags;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use radic_wire::fault::Fault;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

/// The hidden argument by which `radicd` becomes a causer.
pub const ARGUMENT: &str = "fault";
/// The program that sets links up and down.
const IP: &str = "ip";
/// So far back the daemon's ancestors are looked at.
const GENERATIONS: usize = 64;

/// Why a fault cannot be caused at the node with this address, if it cannot.
pub fn refuse(fault: Fault, address: IpAddr) -> Result<(), String> {
    match fault {
        Fault::Pause { .. } => Ok(()),
        Fault::Cut { .. } => refuse_cut(address),
    }
}

fn refuse_cut(address: IpAddr) -> Result<(), String> {
    let only = "only a node in a network namespace of its own can be cut off";
    if address.is_loopback() {
        return Err(format!(
            "{only}: this one has the loopback address {address}, as its neighbours have; `pause-node` silences it, too"
        ));
    }
    if !nix::unistd::geteuid().is_root() {
        return Err(format!("{only}, by root: its protector runs as uid {}", nix::unistd::geteuid()));
    }
    if !has_own_network().map_err(|error| format!("the network namespace cannot be told: {error}"))? {
        return Err(format!("{only}: this one has the machine's own network"));
    }
    if links().is_empty() {
        return Err("it has no link that is up".to_owned());
    }
    let found = Command::new(IP).arg("-V").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) { Ok(()) } else { Err(format!("no `{IP}` command on that node")) }
}

/// Whether the network here is another one than where the first process of the machine is, or where the daemon was started from:
/// in a container not even root may look at the first process.
fn has_own_network() -> io::Result<bool> {
    let namespace = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/net"));
    let ours = namespace(std::process::id())?;
    let (mut pid, mut outside, mut seen) = (std::os::unix::process::parent_id(), namespace(1), 0);
    while pid > 1 && seen < GENERATIONS {
        outside = namespace(pid).ok().filter(|theirs| *theirs != ours).map(Ok).unwrap_or(outside);
        (pid, seen) = (parent_of(pid).unwrap_or(0), seen + 1);
    }
    Ok(outside? != ours)
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// The links of this node's namespace that are up.
fn links() -> Vec<String> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let up = interfaces
        .filter(|i| i.flags.contains(InterfaceFlags::IFF_UP) && !i.flags.contains(InterfaceFlags::IFF_LOOPBACK))
        .map(|i| i.interface_name);
    let mut names: Vec<_> = up.collect();
    names.sort();
    names.dedup();
    names
}

/// Starts a causer. `groups` are the process groups of this node's ranks. It is waited for like an orphan.
pub fn cause(fault: Fault, groups: &[i32]) -> io::Result<()> {
    let (what, ms) = match fault {
        Fault::Pause { ms } => ("pause", ms),
        Fault::Cut { ms } => ("cut", ms),
    };
    let mut command = Command::new("/proc/self/exe");
    command.args([ARGUMENT, what, &ms.to_string(), &std::process::id().to_string()]);
    if let Fault::Pause { .. } = fault {
        command.args(groups.iter().map(ToString::to_string));
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map(drop)
}

/// What a causer does, as its command line says.
pub fn run(words: &[String]) -> Result<(), String> {
    // Out of the daemon's session: what is sent to that group must not reach the causer.
    _ = nix::unistd::setsid();
    let [what, ms, daemon, groups @ ..] = words else { return Err("this is no command for people".to_owned()) };
    let (Ok(ms), Ok(daemon)) = (ms.parse(), daemon.parse()) else { return Err(format!("{words:?}: no numbers")) };
    let daemon = Daemon::open(daemon).map_err(|error| format!("the daemon cannot be watched: {error}"))?;
    let time = Duration::from_millis(ms);
    match what.as_str() {
        "pause" => pause(&daemon, groups, time),
        "cut" => cut(&daemon, time),
        other => return Err(format!("{other}: no such fault")),
    }
    Ok(())
}

/// The daemon, identified for certain even if its number is used again.
struct Daemon(OwnedFd);

impl Daemon {
    fn open(pid: i32) -> io::Result<Self> {
        let number = rustix::process::Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        let daemon = Daemon(pidfd_open(number, PidfdFlags::empty())?);
        // The daemon is the causer's parent, so what was opened is not another process with its number.
        if nix::unistd::getppid().as_raw() == pid { Ok(daemon) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        // It may have ended, which is an end of the fault as well.
        _ = pidfd_send_signal(&self.0, signal);
    }

    /// Waits this long. Returns whether the daemon still lives.
    fn lives_for(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) | Err(_) => return false,
            }
        }
    }
}

/// The ranks first, both times: when they go on the daemon does not know yet what has become of it, which is what a fence is for.
fn pause(daemon: &Daemon, groups: &[String], time: Duration) {
    let groups: Vec<Pid> = groups.iter().filter_map(|g| g.parse().ok()).filter(|g| *g > 1).map(Pid::from_raw).collect();
    let all = |signal| groups.iter().for_each(|group| _ = killpg(*group, signal));
    all(Signal::SIGSTOP);
    daemon.signal(rustix::process::Signal::STOP);
    // The ranks of a dead daemon are dead, and their numbers may belong to other processes.
    if daemon.lives_for(time) {
        all(Signal::SIGCONT);
        daemon.signal(rustix::process::Signal::CONT);
    }
}

fn cut(daemon: &Daemon, time: Duration) {
    let links = links();
    let set = |state: &str| {
        for link in &links {
            let status = Command::new(IP).args(["link", "set", "dev", link, state]).status();
            if !status.is_ok_and(|status| status.success()) {
                eprintln!("radicd: the link {link} cannot be set {state}");
            }
        }
    };
    set("down");
    daemon.lives_for(time);
    // Also if the daemon has ended: the namespace may go on to be used.
    set("up");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_shares_its_network_cannot_be_cut_off() {
        let refused = |address: &str| refuse(Fault::Cut { ms: 1 }, address.parse().unwrap());
        assert!(refused("127.0.3.2").unwrap_err().contains("loopback"));
        assert!(refuse(Fault::Pause { ms: 1 }, "127.0.3.2".parse().unwrap()).is_ok());
    }

    #[test]
    fn nonsense_causes_nothing() {
        for words in [&["pause"][..], &["pause", "x", "1"], &["pause", "10", "0"], &["pause", "10", "1"], &["burn", "10", "1"]] {
            assert!(run(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>()).is_err(), "{words:?}");
        }
    }
}
