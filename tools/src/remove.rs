//! Removes a folder with all that is in it, by descriptors and through no link: whoever may write into a folder above can exchange a name, but nothing
//! else is deleted for it.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use radic_protector::folder::{Folder, remove_tree};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

/// A folder that is opened to be emptied; a link in its place is an error.
const OPEN: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes what is at `path` below the folder, one name after the other, a link as such. That there is nothing is no error.
pub(crate) fn below(folder: &Folder, path: &[&str]) -> Result<()> {
    let (last, above) = path.split_last().context("a name is missing")?;
    let plain = |name: &&str| !name.is_empty() && *name != "." && *name != ".." && !name.contains('/');
    ensure!(path.iter().all(plain), "{path:?} leads out of {}", folder.path().display());
    let shown = || folder.path().join(path.iter().collect::<PathBuf>());
    let removed = || -> rustix::io::Result<()> {
        let mut at = folder.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        for name in above {
            at = openat(&at, *name, OPEN, Mode::empty())?;
        }
        remove_tree(at.as_fd(), Path::new(last))
    };
    match removed() {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::LOOP | Errno::NOTDIR) => {
            bail!(
                "cannot remove {}: a link or a file is where a folder should be, and is not followed; remove it",
                shown().display()
            )
        }
        Err(error) => Err(error).with_context(|| format!("cannot remove {}", shown().display())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_tree_goes_and_what_its_links_lead_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, victim) = (dir.path().join("folder"), dir.path().join("victim"));
        fs::create_dir_all(folder.join("nodes/n1/store/job")).unwrap();
        fs::create_dir_all(victim.join("n1")).unwrap();
        fs::write(victim.join("n1/precious"), "").unwrap();
        fs::write(folder.join("nodes/n1/store/job/image"), "").unwrap();
        symlink(&victim, folder.join("nodes/n1/store/link")).unwrap();
        symlink(&victim, folder.join("nodes/n2")).unwrap();
        symlink(&victim, folder.join("linked")).unwrap();
        let opened = Folder::open(&folder).unwrap();
        below(&opened, &["nodes", "n1"]).unwrap();
        below(&opened, &["nodes", "n2"]).unwrap();
        below(&opened, &["nodes", "n3"]).unwrap();
        below(&opened, &["absent", "n1"]).unwrap();
        assert_eq!(fs::read_dir(folder.join("nodes")).unwrap().count(), 0);
        let error = below(&opened, &["linked", "n1"]).unwrap_err().to_string();
        assert!(error.contains("linked/n1") && error.contains("is not followed"), "{error}");
        assert!(below(&opened, &["..", "victim"]).is_err() && below(&opened, &["nodes", "../../victim"]).is_err());
        assert!(victim.join("n1/precious").exists());
    }
}
