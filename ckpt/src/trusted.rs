//! Files whose content is acted upon: a process restored from an image runs what the image holds, with the rights of the user that restores it. So such
//! a file must be of a user that could do the same anyway: root, or the caller itself. What is asked is the open file, not its name: between a look at a
//! name and the opening, the name may come to mean another file.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::sys::plain;

/// The users that files may belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Owners {
    /// Root and the caller; no other user may write the files.
    #[default]
    Trusted,
    /// Any user: the caller has been told so (`--trust-owner`).
    Any,
}

/// Why a file is not taken.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// It cannot be opened, or its owner is not to be learnt.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file, or the folder that it is in, belongs to another user.
    #[error("{} belongs to user {owner}, who decides what is in it: if you trust that user, say so with --trust-owner", .path.display())]
    Foreign {
        /// The file or folder.
        path: PathBuf,
        /// Its owner, a user id.
        owner: u32,
    },
    /// Other users may write the file, or exchange what is in the folder that it is in.
    #[error(
        "{} may be written by other users (mode {mode:04o}): take that away (chmod go-w), or say that you trust them with --trust-owner",
        .path.display()
    )]
    Writable {
        /// The file or folder.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
}

/// Permission of the group or of all others to write. An access list shows here, too: its mask stands in the place of the group's bits.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Opens a file for reading. With [`Owners::Trusted`] it is refused unless root or the caller owns both the file and its folder, and no other user may
/// write the file, nor (but in a sticky folder like /tmp) exchange it. A symbolic link counts as the file and folder that it leads to. A pipe is opened, too,
/// without waiting for its other end: what kind of file it is the caller must look.
pub fn open(path: &Path, owners: Owners) -> Result<File, TrustError> {
    let failed = |error| TrustError::Io { path: path.to_owned(), error };
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    if owners == Owners::Any {
        return options.open(path).map_err(failed);
    }
    let real = path.canonicalize().map_err(failed)?;
    let (Some(parent), Some(name)) = (real.parent(), real.file_name()) else {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    };
    let folder = File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(parent).map_err(failed)?;
    check(&folder, parent)?;
    // In that very folder, and no link that has come there meanwhile.
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    let file = options.open(Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name)).map_err(failed)?;
    check(&file, path)?;
    Ok(file)
}

/// Whether an open file or folder is root's or the caller's, and no other user may write it; `path` is for the error. For a caller that opens files in its own
/// way: the file's folder must be checked, too.
pub fn check(file: &File, path: &Path) -> Result<(), TrustError> {
    let path = || path.to_owned();
    let data = file.metadata().map_err(|error| TrustError::Io { path: path(), error })?;
    let me = plain!(libc::SYS_geteuid).map_or(0, |uid| uid as u32);
    match fault(&data, me) {
        None => Ok(()),
        Some(Fault::Owner) => Err(TrustError::Foreign { path: path(), owner: data.uid() }),
        Some(Fault::Mode) => Err(TrustError::Writable { path: path(), mode: data.mode() & 0o7777 }),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Owner,
    Mode,
}

/// What keeps user `me` from trusting it.
fn fault(data: &Metadata, me: u32) -> Option<Fault> {
    // In a sticky folder only the owner of a file, or the folder's, may remove it or give it another name.
    let is_sticky = data.is_dir() && data.mode() & libc::S_ISVTX != 0;
    if data.uid() != 0 && data.uid() != me {
        Some(Fault::Owner)
    } else {
        (data.mode() & WRITABLE_BY_OTHERS != 0 && !is_sticky).then_some(Fault::Mode)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    const ONE: u32 = 64_001;
    const OTHER: u32 = 64_002;

    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn file(&self, mode: u32) -> PathBuf {
            let path = self.0.path().join("image");
            std::fs::write(&path, "an image").unwrap();
            set_mode(&path, mode);
            path
        }
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn is_foreign(path: &Path) -> bool {
        matches!(open(path, Owners::Trusted), Err(TrustError::Foreign { owner: ONE, .. }))
    }

    fn is_writable(path: &Path) -> bool {
        matches!(open(path, Owners::Trusted), Err(TrustError::Writable { .. }))
    }

    #[test]
    fn own_files_are_taken_and_no_others() {
        let place = Place::new();
        let path = place.file(0o644);
        assert!(open(&path, Owners::Trusted).is_ok());
        for mode in [0o664, 0o646, 0o666] {
            set_mode(&path, mode);
            assert!(is_writable(&path), "{mode:o}");
            assert!(open(&path, Owners::Any).is_ok(), "{mode:o}");
        }
        set_mode(&path, 0o600);
        if plain!(libc::SYS_geteuid) == Ok(0) {
            chown(&path, Some(ONE), None).unwrap();
            assert!(is_foreign(&path));
            assert!(open(&path, Owners::Any).is_ok());
        }
    }

    #[test]
    fn a_folder_in_which_others_may_exchange_files_is_not_trusted() {
        let place = Place::new();
        let path = place.file(0o600);
        for mode in [0o770, 0o707, 0o777] {
            set_mode(place.0.path(), mode);
            assert!(is_writable(&path), "{mode:o}");
            set_mode(place.0.path(), mode | 0o1000);
            assert!(open(&path, Owners::Trusted).is_ok(), "{mode:o}, sticky");
        }
        if plain!(libc::SYS_geteuid) == Ok(0) {
            // Its owner may exchange everything in it, sticky or not.
            chown(place.0.path(), Some(ONE), None).unwrap();
            assert!(is_foreign(&path));
        }
    }

    #[test]
    fn a_link_is_what_it_leads_to() {
        let (place, links) = (Place::new(), Place::new());
        let (path, link) = (place.file(0o600), links.0.path().join("link"));
        symlink(&path, &link).unwrap();
        assert!(open(&link, Owners::Trusted).is_ok());
        set_mode(place.0.path(), 0o777);
        assert!(is_writable(&link));
        assert!(matches!(open(&links.0.path().join("none"), Owners::Trusted), Err(TrustError::Io { .. })));
        assert!(matches!(open(Path::new("/"), Owners::Trusted), Err(TrustError::Io { .. })));
    }

    /// What each of two ordinary users trusts: its own and root's files.
    #[test]
    fn users_trust_themselves_and_root() {
        if plain!(libc::SYS_geteuid) != Ok(0) {
            return;
        }
        let place = Place::new();
        let path = place.file(0o600);
        for (owner, trusted_by_one) in [(0, true), (ONE, true), (OTHER, false)] {
            chown(&path, Some(owner), None).unwrap();
            assert_eq!(fault(&path.metadata().unwrap(), ONE).is_none(), trusted_by_one, "{owner}");
        }
    }
}
