//! The files that an MPI library leaves behind when its process is killed or aborts.
//!
//! MPICH 5 maps a file of its own in /dev/shm during MPI_Init, before its first barrier, even for a rank that is alone on its
//! node, and removes it when the process ends by exit, but not when a signal or MPI_Abort ends it. A process that finds such a
//! file silently uses what is in it, whoever has made it. Its name is `mpich_shm_<h>_<node>` (`mpich_vci_<h>_<node>` with several interfaces): `h` is
//! the FNV-1a hash of the key space name, and `node` the number of the node in `PMI_process_mapping`, here the rank. So the
//! daemon knows the name without asking the process. Source: seen with MPICH 5.0.2.
//!
//! Intel MPI unlinks its files as soon as they are open. Open MPI would leave a directory in /tmp; RADIC tells it to make none
//! (`OMPI_MCA_orte_create_session_dirs=0`).

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use radic_wire::ids::Rank;

/// Where the files are.
const SHARED_MEMORY: &str = "/dev/shm";

/// Why a process is not started.
#[derive(Debug, thiserror::Error)]
pub enum Planted {
    /// The file is another user's.
    #[error(
        "{path} belongs to uid {owner}, and this protector runs as uid {me}: an MPI library would use what is in it as its own; remove it as that \
         user or as root (`rm -r {path}`), and find out why it is there"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        me: u32,
    },
    /// The file is ours, and stays.
    #[error("{0}: an MPI library would use what is in it as its own; remove it")]
    Stays(#[from] io::Error),
}

/// Sees to it that a process of `rank` which is about to be started finds none of its files, and uses nothing that another user
/// has put there. What is this user's is removed. The name of a key space has bits that only nodes know
/// ([`key_space`](radic_wire::mac::key_space)), so nobody knows the files of an epoch before its first processes have made them.
/// What is put there later, before a process is brought back, the engine does not take.
pub fn prepare(kvsname: &str, rank: Rank) -> Result<(), Planted> {
    prepare_below(Path::new(SHARED_MEMORY), kvsname, rank)
}

fn prepare_below(folder: &Path, kvsname: &str, rank: Rank) -> Result<(), Planted> {
    let me = nix::unistd::geteuid().as_raw();
    for path in paths(folder, kvsname, rank) {
        // What cannot be looked at cannot be removed either, which says why.
        if let Ok(data) = path.symlink_metadata()
            && data.uid() != me
        {
            return Err(Planted::Foreign { path, owner: data.uid(), me });
        }
    }
    Ok(remove_below(folder, kvsname, rank)?)
}

/// Removes what a dead process of `rank` may have left of the key space `kvsname`. Nothing to remove is no error.
///
/// To be called after the process is gone (waited for), at every kind of end, before another one uses the same names.
pub fn remove(kvsname: &str, rank: Rank) -> io::Result<()> {
    remove_below(Path::new(SHARED_MEMORY), kvsname, rank)
}

fn remove_below(folder: &Path, kvsname: &str, rank: Rank) -> io::Result<()> {
    for path in paths(folder, kvsname, rank) {
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(io::Error::new(e.kind(), format!("cannot remove {}: {e}", path.display())));
            }
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn paths(folder: &Path, kvsname: &str, rank: Rank) -> [PathBuf; 2] {
    let hash = fnv1a(kvsname.as_bytes());
    ["mpich_shm", "mpich_vci"].map(|kind| folder.join(format!("{kind}_{hash:x}_{rank}")))
}

/// The 32-bit FNV-1a hash.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(2_166_136_261, |hash: u32, &byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that MPICH 5.0.2 was seen to use.
    #[test]
    fn the_names_are_those_of_mpich() {
        for (kvsname, hash) in [("radic_9836", "a96bf2f1"), ("radic_9780", "22b4c3d1")] {
            let [shm, vci] = paths(Path::new("/x"), kvsname, Rank(3));
            assert_eq!(shm.to_str().unwrap(), format!("/x/mpich_shm_{hash}_3"));
            assert_eq!(vci.to_str().unwrap(), format!("/x/mpich_vci_{hash}_3"));
        }
    }

    #[test]
    fn only_the_files_of_the_rank_go() {
        let folder = tempfile::tempdir().unwrap();
        let mine = paths(folder.path(), "k", Rank(1));
        let [other, _] = paths(folder.path(), "k", Rank(2));
        for path in [&mine[0], &other] {
            std::fs::write(path, b"x").unwrap();
        }
        remove_below(folder.path(), "k", Rank(1)).unwrap();
        remove_below(folder.path(), "k", Rank(1)).unwrap();
        assert!(!mine[0].exists() && other.exists());
        std::fs::create_dir(&mine[0]).unwrap();
        assert!(remove_below(folder.path(), "k", Rank(1)).unwrap_err().to_string().contains("mpich_shm"));
    }
    /// A file of another user would be used, and one of our own may be of a process that was killed while nobody could clean up.
    #[test]
    fn a_start_finds_no_file_and_is_refused_where_one_is_another_user_s() {
        let folder = tempfile::tempdir().unwrap();
        let [shm, vci] = paths(folder.path(), "k", Rank(1));
        let victim = folder.path().join("victim");
        std::fs::write(&shm, b"old").unwrap();
        std::fs::write(&victim, b"x").unwrap();
        std::os::unix::fs::symlink(&victim, &vci).unwrap();
        prepare_below(folder.path(), "k", Rank(1)).unwrap();
        assert!(!shm.exists() && vci.symlink_metadata().is_err() && victim.exists());
        std::fs::create_dir(&shm).unwrap();
        assert!(prepare_below(folder.path(), "k", Rank(1)).unwrap_err().to_string().contains(shm.to_str().unwrap()));
        std::fs::remove_dir(&shm).unwrap();
        if nix::unistd::geteuid().is_root() {
            std::fs::write(&vci, b"planted").unwrap();
            std::os::unix::fs::chown(&vci, Some(64_001), None).unwrap();
            std::fs::write(&shm, b"ours").unwrap();
            let error = prepare_below(folder.path(), "k", Rank(1)).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{} belongs to uid 64001", vci.display())) && error.contains("remove it"),
                "{error}"
            );
            assert!(vci.exists(), "root, too, leaves another user's file to be looked at");
        }
    }
}
