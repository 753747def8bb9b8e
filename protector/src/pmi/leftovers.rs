//! The files that an MPI library leaves behind when its process is killed or aborts.
//!
//! MPICH 5 maps a file of its own in /dev/shm during MPI_Init, before its first barrier, even for a rank that is alone on its
//! node, and removes it when the process ends by exit, but not when a signal or MPI_Abort ends it. A process that finds such a
//! file silently uses what is in it. Its name is `mpich_shm_<h>_<node>` (`mpich_vci_<h>_<node>` with several interfaces): `h` is
//! the FNV-1a hash of the key space name, and `node` the number of the node in `PMI_process_mapping`, here the rank. So the
//! daemon knows the name without asking the process. Source: seen with MPICH 5.0.2.
//!
//! Intel MPI unlinks its files as soon as they are open. Open MPI would leave a directory in /tmp; RADIC tells it to make none
//! (`OMPI_MCA_orte_create_session_dirs=0`).

use std::io;
use std::path::{Path, PathBuf};

use radic_wire::ids::Rank;

/// Removes what a dead process of `rank` may have left of the key space `kvsname`. Nothing to remove is no error.
///
/// To be called after the process is gone (waited for), at every kind of end, before another one uses the same names.
pub fn remove(kvsname: &str, rank: Rank) -> io::Result<()> {
    remove_below(Path::new("/dev/shm"), kvsname, rank)
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

fn paths(folder: &Path, kvsname: &str, rank: Rank) -> [PathBuf; 2] {
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
}
