//! The keeper: a small process that ends the ranks' process groups when the daemon is killed.
//!
//! A rank dies with its daemon by the kernel's parent-death signal, but what the rank has started does not: a shell script that
//! runs an MPI program would leave it behind. So the daemon tells the keeper each process group over a pipe; when the pipe ends,
//! however the daemon died, the keeper kills the groups that are left and what has left them, removes the files that their
//! libraries leave in shared memory, and exits.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, Read, Write};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use radic_wire::ids::{JobId, Rank};

use super::orphans::{self, Mark};
use crate::pmi::leftovers;

/// The hidden argument by which `radicd` becomes a keeper.
pub const ARGUMENT: &str = "keeper";
/// Longest line on the pipe: a key space's name and three numbers. Short enough for one write to be whole or not at all.
const LINE: u64 = 512;

/// What a keeper has to clean up after: a rank's process group, and the files of its library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ward {
    /// The process group.
    pub group: i32,
    /// The job.
    pub job: JobId,
    /// The rank.
    pub rank: Rank,
    /// The name of its key space.
    pub kvsname: String,
}

/// The daemon's end.
#[derive(Debug)]
pub struct Keeper {
    child: Child,
}

impl Keeper {
    /// Starts the keeper of this node.
    pub fn start(node: &str) -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.args([ARGUMENT, node]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Keeper { child: command.spawn()? })
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The keeper is to clean up after this rank if the daemon cannot.
    pub fn add(&mut self, ward: &Ward) -> io::Result<()> {
        self.tell(&format!("+{} {} {} {}\n", ward.group, ward.job, ward.rank, ward.kvsname))
    }

    /// The rank is gone, and its files are.
    pub fn remove(&mut self, group: i32) -> io::Result<()> {
        self.tell(&format!("-{group}\n"))
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        self.child.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write_all(line.as_bytes())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // The end of the pipe ends it; waiting leaves nothing behind.
        drop(self.child.stdin.take());
        _ = self.child.wait();
    }
}

/// What a node's keeper does.
pub fn run(node: &str) {
    let daemon = std::os::unix::process::parent_id() as i32;
    // Not in the daemon's group: what is sent to that group must not reach the keeper.
    _ = nix::unistd::setsid();
    let mut wards = BTreeMap::new();
    let mut input = io::stdin().lock();
    let mut line = String::new();
    while let Ok(1..) = input.by_ref().take(LINE).read_line(&mut line) {
        if !note(&mut wards, &line) {
            break;
        }
        line.clear();
    }
    let mut marks: BTreeSet<Mark> = wards.values().map(|ward| Mark { job: ward.job, node: node.to_owned() }).collect();
    // A process that was brought back has the mark of the node where it was first launched, and so has what it starts.
    marks.extend(wards.values().filter_map(|ward| orphans::mark(ward.group).filter(|mark| mark.job == ward.job)));
    for ward in wards.values() {
        _ = killpg(Pid::from_raw(ward.group), Signal::SIGKILL);
    }
    orphans::kill_marked(&marks, daemon);
    for ward in wards.values() {
        _ = leftovers::remove(&ward.kvsname, ward.rank);
    }
}

fn note(wards: &mut BTreeMap<i32, Ward>, line: &str) -> bool {
    let Some((sign, rest)) = line.trim_end().split_at_checked(1) else { return false };
    let mut words = rest.splitn(4, ' ');
    let Some(group) = words.next().and_then(|n| n.parse().ok()).filter(|n: &i32| *n > 1) else { return false };
    let (job, rank) = (words.next().map(str::parse), words.next().map(str::parse));
    match (sign, job, rank, words.next()) {
        ("+", Some(Ok(job)), Some(Ok(rank)), Some(name)) => {
            wards.insert(group, Ward { group, job, rank: Rank(rank), kvsname: name.to_owned() });
        }
        ("-", None, None, None) => _ = wards.remove(&group),
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wards_come_and_go_and_nonsense_ends_the_conversation() {
        let mut wards = BTreeMap::new();
        let job = JobId::from_bits(0xabc);
        assert!(note(&mut wards, "+77 000000000abc 3 radic_k_0\n") && note(&mut wards, "+78 000000000abc 4 radic_k_0\n"));
        assert!(note(&mut wards, "-77\n"));
        assert_eq!(wards[&78], Ward { group: 78, job, rank: Rank(4), kvsname: "radic_k_0".into() });
        assert_eq!(wards.len(), 1);
        // Group 1 is init's and group 0 our own: a keeper never signals them.
        for bad in ["", "\n", "+", "+1 J 0 k", "+0 J 0 k", "+-5 J 0 k", "+77 J x k", "+77 7 0 k", "+77 J 3", "-77 J", "*77", "é"]
        {
            assert!(!note(&mut wards, &bad.replace('J', "000000000abc")), "{bad:?}");
        }
    }
}
