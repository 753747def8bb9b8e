//! What a process under the library has counted, and what the kernel says of it. Both are read from outside: to ask the process
//! would interrupt it.

use std::fs;
use std::io::IoSliceMut;
use std::time::Duration;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::{Pid, SysconfVar, sysconf};
use radic_wire::process::{Counters, counters};

use crate::node::replays::Activity;

/// The counters of process `pid`. None if it is gone, not readable for this daemon, or not under the library.
pub fn read(pid: u32) -> Option<Counters> {
    let mut bytes = [0; 8 * (1 + counters::WORDS)];
    let remote = RemoteIoVec { base: usize::try_from(counters::ADDRESS).ok()?, len: bytes.len() };
    let pid = Pid::from_raw(i32::try_from(pid).ok()?);
    let count = process_vm_readv(pid, &mut [IoSliceMut::new(&mut bytes)], &[remote]).ok()?;
    if count != bytes.len() {
        return None;
    }
    let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    if words.next() != Some(counters::MAGIC) {
        return None;
    }
    let words: Vec<u64> = words.collect();
    Some(Counters::from_words(words.as_slice().try_into().expect("as many words as bytes were read")))
}

/// What the kernel says of process `pid`. None if it is gone.
pub fn activity(pid: u32) -> Option<Activity> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let per_second = u64::try_from(sysconf(SysconfVar::CLK_TCK).ok()??).ok().filter(|per_second| *per_second > 0)?;
    let (state, ticks) = state_and_ticks(&stat)?;
    Some(Activity { cpu: Duration::from_millis(ticks.saturating_mul(1000) / per_second), stopped: matches!(state, 'T' | 't') })
}

/// The state of a process, and the processor time that it has used, of the line that the kernel has of it (proc_pid_stat(5)).
fn state_and_ticks(stat: &str) -> Option<(char, u64)> {
    // The second field, its name, may hold anything, also spaces and brackets.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // utime and stime are the fields 14 and 15.
    let mut times = fields.skip(10).map(|time| time.parse::<u64>().ok());
    Some((state, times.next()??.saturating_add(times.next()??)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_process_with_any_name() {
        let rest = "1 2 3 0 -1 4194560 97 0 0 0 250 17 8 9 20 0 1 0 100 0 0";
        for name in ["sleep", "a b", "x) R 1 (y", ")))"] {
            assert_eq!(state_and_ticks(&format!("77 ({name}) S {rest}")), Some(('S', 267)), "{name}");
        }
        assert_eq!(state_and_ticks("77 (sleep) S 1 2"), None);
        assert!(activity(std::process::id()).is_some_and(|activity| !activity.stopped));
        assert_eq!(activity(u32::MAX), None);
    }
}
