//! How much memory there is for programs.

use std::fs;
use std::path::Path;

/// The memory that the programs of this node may have together, in bytes: the machine's, or less if a control group of this process bounds it. 0 if the kernel does not tell.
pub fn memory() -> u64 {
    least("MemTotal:", |_, bound| Some(bound))
}

/// The memory that could be used now without taking any from another program, in bytes. 0 if the kernel does not tell.
pub fn free() -> u64 {
    least("MemAvailable:", |group, bound| {
        let used = fs::read_to_string(group.join("memory.current")).ok()?;
        Some(bound.saturating_sub(used.trim().parse().ok()?))
    })
}

/// The least of what the machine says under this name, and of what `of_group` makes of each bound of a control group, and its folder.
fn least(name: &str, of_group: impl Fn(&Path, u64) -> Option<u64>) -> u64 {
    let all = fs::read_to_string("/proc/meminfo").ok().and_then(|text| value_of(&text, name)).unwrap_or(0);
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| group_of(&text).map(str::to_owned));
    let bounds = group.iter().flat_map(|group| Path::new(group).ancestors()).filter_map(|group| {
        let folder = Path::new("/sys/fs/cgroup").join(group.strip_prefix("/").unwrap_or(group));
        of_group(&folder, bound_of(&fs::read_to_string(folder.join("memory.max")).ok()?)?)
    });
    bounds.chain([all]).min().unwrap_or(all)
}

/// A value of `/proc/meminfo`, in bytes.
fn value_of(meminfo: &str, name: &str) -> Option<u64> {
    let kib = meminfo.lines().find_map(|line| line.strip_prefix(name))?.trim().strip_suffix(" kB")?;
    kib.parse::<u64>().ok()?.checked_mul(1024)
}

/// The group of the one hierarchy of version 2 in `/proc/self/cgroup`.
fn group_of(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::"))
}

/// What `memory.max` says; none if there is no bound.
fn bound_of(max: &str) -> Option<u64> {
    max.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert_eq!(value_of("MemTotal:       24000 kB\nMemFree: 1 kB\n", "MemTotal:"), Some(24_576_000));
        assert_eq!(value_of("MemTotal: lots\n", "MemTotal:"), None);
        assert_eq!(group_of("1:memory:/old\n0::/user.slice/job\n"), Some("/user.slice/job"));
        assert_eq!(group_of("1:memory:/old\n"), None);
        assert_eq!((bound_of("max\n"), bound_of("1048576\n")), (None, Some(1 << 20)));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(memory() > 1 << 20 && free() <= memory());
    }
}
