//! Files that a user has named for what a command has to say.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};

/// A new file for this user only, which is removed again unless it is finished. It is made before any work begins, so no work is in vain.
#[derive(Debug)]
pub(crate) struct NewFile {
    path: PathBuf,
    file: File,
    is_finished: bool,
}

impl NewFile {
    /// What has this name already stays as it is: a file, and a link wherever it leads.
    pub(crate) fn create(path: &Path) -> Result<NewFile> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                anyhow!("{} is there already, and stays as it is: name another file, or remove it", path.display())
            }
            _ => anyhow!(
                "{} cannot be written: {error}; name a file in a folder that is there and that you may write to",
                path.display()
            ),
        })?;
        Ok(NewFile { path: path.to_owned(), file, is_finished: false })
    }

    /// Writes all of it.
    pub(crate) fn finish(mut self, text: &str) -> Result<()> {
        self.file.write_all(text.as_bytes()).with_context(|| format!("{} cannot be written", self.path.display()))?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_finished {
            // It holds nothing. If it cannot be removed it is empty.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_file_is_new_whole_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.svg");
        NewFile::create(&path).unwrap().finish("<svg/>").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "<svg/>");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_is_there_stays_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link, target) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("c"));
        fs::write(&path, "mine").unwrap();
        symlink(&target, &link).unwrap();
        for taken in [&path, &link] {
            let error = NewFile::create(taken).unwrap_err().to_string();
            assert!(error.contains("is there already"), "{error}");
        }
        assert!(fs::read_to_string(&path).unwrap() == "mine" && !target.exists());
        let error = NewFile::create(&dir.path().join("no/such")).unwrap_err().to_string();
        assert!(error.contains("no/such cannot be written") && error.contains("a folder that is there"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_finished_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        drop(NewFile::create(&path).unwrap());
        assert!(!path.exists());
    }
}
