//! Folders that no other user can write to, and the files in them.
//!
//! All that `radic` and `radicd` write goes through here. A folder that another user owns or may write to can hold links to this
//! user's files, and a file that is written there can be exchanged. So a folder is opened once and judged by its descriptor, and
//! what is in it is opened by that descriptor and never through a link: what becomes of the folder's name meanwhile does not
//! matter.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Files that only their owner may read and write.
const FILE: Mode = Mode::from_raw_mode(0o600);
/// Folders that only their owner may enter.
const FOLDER: Mode = Mode::from_raw_mode(0o700);
/// Never through a link, and without waiting for the other end of a pipe.
const SAFELY: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);
/// A new file, or none.
const NEW: OFlags = SAFELY.union(OFlags::CREATE).union(OFlags::EXCL);

/// Why a folder, or a file in it, is not used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The system says no.
    #[error("cannot {what} {path}: {error}{}", way_out(.error))]
    Io {
        /// What was to be done.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The last part of the path is a link, or a file.
    #[error("{0} is no folder but a link or a file: name the folder itself")]
    NoFolder(PathBuf),
    /// The folder is another user's.
    #[error(
        "{path} belongs to uid {owner}, and this process runs as uid {me}: choose a folder of your own, or run this as its owner"
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        me: u32,
    },
    /// Others may write to the folder.
    #[error(
        "others may write to {path} (mode {mode:03o}): choose another folder, or run `chmod go-w` on it and see what is in it"
    )]
    Shared {
        /// The folder.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// What is there under the name of a file is something else.
    #[error(
        "{0} is no regular file but a link, a pipe, a socket, a device or a folder: it is not opened; remove it if it is not yours"
    )]
    NoFile(PathBuf),
    /// A name that leads out of the folder.
    #[error("{name:?} is no name of a file in {path}")]
    Name {
        /// The folder.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// What is there under the name of a file is another user's, or has another name, too.
    #[error("{0} is a file of another user, or has a second name elsewhere: it is not written to; remove it")]
    ForeignFile(PathBuf),
}

impl FolderError {
    /// What kind of error this is, where the system has said it.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            FolderError::Io { error, .. } => error.kind(),
            _ => io::ErrorKind::Other,
        }
    }
}

impl From<FolderError> for io::Error {
    fn from(error: FolderError) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}

/// What to do about what the system has said, where that follows from it.
fn way_out(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; see whether its path is right",
        io::ErrorKind::PermissionDenied => "; choose another folder, or run this as its owner",
        io::ErrorKind::NotADirectory => "; name a folder",
        io::ErrorKind::ReadOnlyFilesystem => "; choose another folder",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; make room there, or choose another folder",
        _ => "",
    }
}

fn failed(what: &'static str, path: PathBuf, error: impl Into<io::Error>) -> FolderError {
    FolderError::Io { what, path, error: error.into() }
}

/// An open folder.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    fd: OwnedFd,
}

impl Folder {
    /// Opens a folder that belongs to this user or to root, and that no other user may write to.
    pub fn open(path: &Path) -> Result<Folder, FolderError> {
        Folder::open_at(CWD, path, path.to_owned())?.private()
    }

    /// Opens a folder of any user, to read what is in it. Its name may be a link.
    pub fn open_foreign(path: &Path) -> Result<Folder, FolderError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed("open the folder", path.to_owned(), error))?;
        Ok(Folder { path: path.to_owned(), fd })
    }

    /// The same, or a new one for this user only. Whether it is new.
    pub fn make(path: &Path) -> Result<(Folder, bool), FolderError> {
        Folder::make_at(CWD, path, path.to_owned())
    }

    /// The same, with all folders above it.
    pub fn make_all(path: &Path) -> Result<Folder, FolderError> {
        if let Some(above) = path.parent() {
            let made = DirBuilder::new().recursive(true).mode(FOLDER.bits()).create(above);
            made.map_err(|error| failed("make the folder", above.to_owned(), error))?;
        }
        Ok(Folder::make(path)?.0)
    }

    /// The folder of this name in this one, made if need be.
    pub fn subfolder(&self, name: &str) -> Result<Folder, FolderError> {
        Ok(Folder::make_at(self.fd.as_fd(), Path::new(self.plain(name)?), self.path.join(name))?.0)
    }

    /// The folder of this name in this one, which must be there.
    pub fn subfolder_there(&self, name: &str) -> Result<Folder, FolderError> {
        Folder::open_at(self.fd.as_fd(), Path::new(self.plain(name)?), self.path.join(name))?.private()
    }

    fn make_at(at: BorrowedFd<'_>, name: &Path, path: PathBuf) -> Result<(Folder, bool), FolderError> {
        let is_new = match rustix::fs::mkdirat(at, name, FOLDER) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(failed("make the folder", path, error)),
        };
        Ok((Folder::open_at(at, name, path)?.private()?, is_new))
    }

    fn open_at(at: BorrowedFd<'_>, name: &Path, path: PathBuf) -> Result<Folder, FolderError> {
        // A slash at the end would have the system follow a link after all.
        let name: PathBuf = name.components().collect();
        match rustix::fs::openat(at, &name, SAFELY | OFlags::DIRECTORY, Mode::empty()) {
            Ok(fd) => Ok(Folder { path, fd }),
            Err(Errno::LOOP | Errno::NOTDIR) => Err(FolderError::NoFolder(path)),
            Err(error) => Err(failed("open the folder", path, error)),
        }
    }

    /// Whether no other user can write to it.
    fn private(self) -> Result<Folder, FolderError> {
        let stat = self.stat()?;
        let (owner, mode, me) = (stat.st_uid, stat.st_mode & 0o7777, rustix::process::geteuid().as_raw());
        if owner != me && owner != 0 {
            return Err(FolderError::Foreign { path: self.path, owner, me });
        }
        if mode & 0o022 != 0 {
            return Err(FolderError::Shared { path: self.path, mode });
        }
        Ok(self)
    }

    fn stat(&self) -> Result<Stat, FolderError> {
        rustix::fs::fstat(&self.fd).map_err(|error| failed("look at", self.path.clone(), error))
    }

    /// The name by which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its name still leads to it: not after it was removed, renamed or replaced, nor after something was mounted over
    /// it.
    pub fn is_there(&self) -> bool {
        let there = rustix::fs::statat(CWD, &self.path, AtFlags::empty());
        // A server of files that does not answer has removed nothing.
        let gone = matches!(there, Err(Errno::NOENT | Errno::NOTDIR));
        let same = |there: Stat| self.stat().is_ok_and(|here| (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino));
        !gone && there.map_or(true, same)
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> Result<bool, FolderError> {
        Ok(self.names()?.is_empty())
    }

    /// The names of what is in it; what is no text stands there with other characters in its place.
    pub fn names(&self) -> Result<Vec<String>, FolderError> {
        let failed = |error| failed("read the folder", self.path.clone(), error);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// A new file for this user only. There must be nothing of this name, not even a link.
    pub fn create_new(&self, name: &str) -> Result<File, FolderError> {
        let opened = rustix::fs::openat(&self.fd, self.plain(name)?, NEW | OFlags::RDWR, FILE);
        opened.map(File::from).map_err(|error| failed("create", self.path.join(name), error))
    }

    /// The same, in the place of whatever file or link has this name.
    pub fn replace(&self, name: &str) -> Result<File, FolderError> {
        self.remove(name)?;
        self.create_new(name)
    }

    /// A file of this user that is written to at its end, a new one if there is none.
    pub fn append(&self, name: &str) -> Result<File, FolderError> {
        let flags = SAFELY | OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND;
        let file = self.regular(name, rustix::fs::openat(&self.fd, self.plain(name)?, flags, FILE))?;
        let stat = rustix::fs::fstat(&file).map_err(|error| failed("look at", self.path.join(name), error))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_nlink > 1 {
            return Err(FolderError::ForeignFile(self.path.join(name)));
        }
        Ok(file)
    }

    /// Opens a regular file of this folder to write to it at any place.
    pub fn update(&self, name: &str) -> Result<File, FolderError> {
        self.regular(name, rustix::fs::openat(&self.fd, self.plain(name)?, SAFELY | OFlags::RDWR, Mode::empty()))
    }

    /// A file without a name, which is gone as soon as it is closed. A file system that cannot make such gets a file that loses its
    /// name at once.
    pub fn nameless(&self) -> Result<File, FolderError> {
        match rustix::fs::openat(&self.fd, ".", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, FILE) {
            Ok(fd) => Ok(fd.into()),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {
                let failed =
                    |error: getrandom::Error| failed("name a file in", self.path.clone(), io::Error::other(error.to_string()));
                let name = format!("nameless.{:016x}", getrandom::u64().map_err(failed)?);
                let file = self.create_new(&name)?;
                self.remove(&name).map(|()| file)
            }
            Err(error) => Err(failed("create a file in", self.path.clone(), error)),
        }
    }

    /// Whether this open file has this name here.
    pub fn is_named(&self, name: &str, file: &File) -> bool {
        let named = self.plain(name).ok().and_then(|name| rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok());
        let is_it =
            |named: Stat| rustix::fs::fstat(file).is_ok_and(|file| (file.st_dev, file.st_ino) == (named.st_dev, named.st_ino));
        named.is_some_and(is_it)
    }

    /// Whether the folder belongs to this user and nobody else may enter it.
    pub fn is_only_ours(&self) -> bool {
        let only_ours = |stat: Stat| stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o077 == 0;
        self.stat().is_ok_and(only_ours)
    }

    /// Opens a regular file for reading; anything else is refused at once.
    pub fn read(&self, name: &str) -> Result<File, FolderError> {
        self.regular(name, rustix::fs::openat(&self.fd, self.plain(name)?, SAFELY | OFlags::RDONLY, Mode::empty()))
    }

    fn plain<'a>(&self, name: &'a str) -> Result<&'a str, FolderError> {
        let leads_out = name.is_empty() || name.contains('/') || name == "." || name == "..";
        if leads_out { Err(FolderError::Name { path: self.path.clone(), name: name.to_owned() }) } else { Ok(name) }
    }

    fn regular(&self, name: &str, opened: rustix::io::Result<OwnedFd>) -> Result<File, FolderError> {
        let path = self.path.join(name);
        let fd = match opened {
            Ok(fd) => fd,
            // A link; a socket, or a pipe without a reader; a folder.
            Err(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => return Err(FolderError::NoFile(path)),
            Err(error) => return Err(failed("open", path, error)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|error| failed("look at", path.clone(), error))?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            Ok(fd.into())
        } else {
            Err(FolderError::NoFile(path))
        }
    }

    /// Renames a file within the folder.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), FolderError> {
        rustix::fs::renameat(&self.fd, self.plain(from)?, &self.fd, self.plain(to)?)
            .map_err(|error| failed("rename to", self.path.join(to), error))
    }

    /// Removes a file. That there is none is no error.
    pub fn remove(&self, name: &str) -> Result<(), FolderError> {
        match rustix::fs::unlinkat(&self.fd, self.plain(name)?, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failed("remove", self.path.join(name), error)),
        }
    }

    /// Removes a file, or a folder with all that is in it. No link is followed, and that there is nothing is no error.
    pub fn remove_all(&self, name: &str) -> Result<(), FolderError> {
        match remove_tree(self.fd.as_fd(), Path::new(self.plain(name)?)) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failed("remove", self.path.join(name), error)),
        }
    }

    /// The names in it are on the disk.
    pub fn sync(&self) -> Result<(), FolderError> {
        rustix::fs::fsync(&self.fd).map_err(|error| failed("bring to the disk", self.path.clone(), error))
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Removes what has this name in the folder `at`: a file, a link as such, or a folder with all that is in it. No link is followed.
/// What goes meanwhile is no error, but that there is nothing at first is one (ENOENT).
pub fn remove_tree(at: BorrowedFd<'_>, name: &Path) -> rustix::io::Result<()> {
    let failed = match rustix::fs::unlinkat(at, name, AtFlags::empty()) {
        // What is said of a folder differs between file systems.
        Err(error @ (Errno::ISDIR | Errno::PERM)) => error,
        done => return done,
    };
    // It may be a file that cannot be removed.
    let opened = rustix::fs::openat(at, name, SAFELY | OFlags::DIRECTORY, Mode::empty());
    let folder = opened.map_err(|error| if error == Errno::NOTDIR { failed } else { error })?;
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = Path::new(OsStr::from_bytes(entry.file_name().to_bytes()));
        if name == Path::new(".") || name == Path::new("..") {
            continue;
        }
        match remove_tree(folder.as_fd(), name) {
            // A socket may go with its daemon.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR)
}

#[cfg(test)]
#[path = "folder/tests.rs"]
mod tests;
