//! Memory that two ranks share: what RADIC cannot protect, and must not bring about.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::process;

/// A memory object as the kernel tells them apart: device and inode.
type Object = (String, u64);

/// What a look at the ranks has shown.
#[derive(Debug, Default)]
pub struct Sharing {
    /// Looks at which every expected rank was there, with its MPI library loaded.
    pub complete: usize,
    /// The MPI libraries that were seen, by path.
    pub libraries: BTreeSet<String>,
    users: BTreeMap<Object, (String, BTreeMap<String, u32>)>,
}

impl Sharing {
    /// Looks at every process of every rank of the cluster in `dir` once.
    pub fn look(&mut self, dir: &Path, ranks: usize) {
        let mut with_library = BTreeMap::new();
        for pid in process::marked(dir).iter().map(process::Process::pid) {
            let Some(rank) = rank_of(pid) else { continue };
            let Ok(maps) = fs::read_to_string(format!("/proc/{pid}/maps")) else { continue };
            let libraries: BTreeSet<_> = maps.lines().filter_map(mpi_library).map(str::to_owned).collect();
            *with_library.entry(rank.clone()).or_insert(false) |= !libraries.is_empty();
            self.libraries.extend(libraries);
            for (object, name) in maps.lines().filter_map(shared_writable) {
                self.users.entry(object).or_insert_with(|| (name, BTreeMap::new())).1.insert(rank.clone(), pid);
            }
        }
        self.complete += usize::from(with_library.values().filter(|there| **there).count() == ranks);
    }

    /// Objects that two ranks have mapped for writing, each in words.
    pub fn violations(&self) -> Vec<String> {
        let shared = self.users.iter().filter(|(_, (_, users))| users.len() > 1);
        let words = |((device, inode), (name, users)): (&Object, &(String, BTreeMap<String, u32>))| {
            let users: Vec<_> = users.iter().map(|(rank, pid)| format!("rank {rank} (pid {pid})")).collect();
            format!("{name} (device {device}, inode {inode}) is shared by {}", users.join(" and "))
        };
        shared.map(words).collect()
    }
}

/// Job and rank of a process, if it belongs to one.
fn rank_of(pid: u32) -> Option<String> {
    let text = |name| process::variable(pid, name).map(|value| String::from_utf8_lossy(&value).into_owned());
    Some(format!("{}.{}", text("RADIC_JOB")?, text("RADIC_RANK")?))
}

/// The path in a line of /proc/PID/maps, if it is an MPI library.
fn mpi_library(line: &str) -> Option<&str> {
    let path = &line[line.find('/')?..];
    path.contains("/libmpi.so").then_some(path)
}

/// A line of /proc/PID/maps, if it is a mapping that is shared and can be written: its object and its name. Shared anonymous
/// memory, memfd and System V segments have an inode there, too.
fn shared_writable(line: &str) -> Option<(Object, String)> {
    let mut words = line.split_ascii_whitespace();
    let (_range, permissions, _offset, device, inode) =
        (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?);
    let shared = permissions.as_bytes().get(1) == Some(&b'w') && permissions.as_bytes().get(3) == Some(&b's');
    let inode = inode.parse().ok().filter(|inode| shared && *inode != 0)?;
    Some(((device.to_owned(), inode), words.collect::<Vec<_>>().join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_writable_mappings_count() {
        let line = "7f0000000000-7f0000100000 rw-s 00000000 00:1a 77                /dev/shm/mpich_shm_x_0 (deleted)";
        let expected = (("00:1a".to_owned(), 77), "/dev/shm/mpich_shm_x_0 (deleted)".to_owned());
        assert_eq!(shared_writable(line), Some(expected));
        assert_eq!(shared_writable("7f00-7f10 rw-s 00000000 00:01 98307 /SYSV00000000 (deleted)").unwrap().0.1, 98307);
        for other in ["7f00-7f10 rw-p 0 00:1a 77 /x", "7f00-7f10 r--s 0 00:1a 77 /x", "7f00-7f10 rw-s 0 00:00 0", ""] {
            assert_eq!(shared_writable(other), None, "{other}");
        }
    }

    #[test]
    fn two_ranks_on_one_object_are_a_violation_and_two_processes_of_one_rank_are_none() {
        let mut sharing = Sharing::default();
        let object = ("00:1a".to_owned(), 7);
        sharing.users.insert(object.clone(), ("/dev/shm/x".into(), BTreeMap::from([("j.0".into(), 1)])));
        assert!(sharing.violations().is_empty());
        sharing.users.get_mut(&object).unwrap().1.insert("j.1".into(), 2);
        let violations = sharing.violations();
        assert!(violations.len() == 1 && violations[0].contains("rank j.0 (pid 1) and rank j.1 (pid 2)"), "{violations:?}");
    }
}
