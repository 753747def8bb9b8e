//! From outside: asks a process for a checkpoint, and starts a process from an image. Ordinary code, for the command line, the
//! daemon and tests.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::files::{self, Fault};
use crate::image::Meta;
use crate::image::meta::Backing;
use crate::keeper::{self, Identity};
use crate::launch::{ALONE_VARIABLE, LAUNCHER_VARIABLE, OWNERS_VARIABLE, RESTORE_VARIABLE, owners_of};
use crate::maps::numbered;
use crate::request::Request;
use crate::sys;
use crate::trusted::Owners;

mod error;
mod saved;
mod target;
mod whole;

pub use error::ControlError;
pub use saved::Saved;
pub use target::Target;
pub use whole::{Progress, Restorable, folder, merge_files};

/// Asks a process for a checkpoint. The image comes out of the stream that is given back, to be read up to its end; only its end record
/// makes it valid.
pub fn request(pid: i32, what: impl Into<Request>) -> Result<impl Read, ControlError> {
    Target::open(pid)?.request(&what.into())
}

/// Nudges a process with a library that was given `Hooks::nudged`: it makes a checkpoint to wherever that says, if it wants one now; if it is saving itself at
/// this moment, afterwards.
pub fn nudge(pid: i32) -> Result<(), ControlError> {
    Target::open(pid)?.nudge()
}

/// Saves a process to a file, which appears under its name only when it is whole, verified and on disk.
pub fn save(pid: i32, what: impl Into<Request>, path: &Path) -> Result<Saved, ControlError> {
    save_watched(pid, what, path, &mut |_, _| {})
}

/// The same, telling how far it has come.
pub fn save_watched(pid: i32, what: impl Into<Request>, path: &Path, progress: Progress<'_>) -> Result<Saved, ControlError> {
    Target::open(pid)?.save(&what.into(), path, progress)
}

/// How long all threads were stopped for the last checkpoint of a process, as the engine has measured it.
pub fn last_pause(pid: i32) -> io::Result<Duration> {
    let at = crate::arena::STATE_BASE + std::mem::offset_of!(crate::arena::State, pause) as u64;
    let mut bytes = [0; 8];
    File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut bytes, at)?;
    Ok(Duration::from_nanos(u64::from_ne_bytes(bytes)))
}

/// The process that a keeper keeps: the one under `pid`, itself or a descendant, that can be asked for a checkpoint.
#[must_use]
pub fn restored_pid(pid: i32) -> Option<i32> {
    if target::has_library(pid).unwrap_or(false) {
        return Some(pid);
    }
    let children = std::fs::read(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split(|b| *b == b' ').filter(|c| !c.is_empty()).find_map(|child| restored_pid(crate::maps::decimal(child).0 as i32))
}

/// A command that becomes the saved process: it runs what the image holds, with the caller's rights, so only images of root and of the caller are taken
/// ([`trusted`](crate::trusted)). `library` is the checkpoint library, the same build that made the image. The image is
/// verified as a whole first; the ancestors of an increment are looked for beside it. The command's process is a keeper that ends as the
/// saved process ends and passes signals on to it; the saved process itself is its child, under its old pid (`restored_pid`). Descriptors 0
/// to 2 of the command replace what was inherited there (terminals, other processes' pipes).
pub fn restart(image: &Path, library: &Path) -> Result<Command, ControlError> {
    restart_as(Ids::Old, Owners::Trusted, image, library, &mut |_, _| {})
}

/// Which process and thread ids a restored process gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// Those it had; where they are taken, in namespaces of its own.
    Old,
    /// Whatever the system gives: for a copy beside the running program, or where namespaces are forbidden.
    New,
}

/// A copy that changes nothing outside of itself: with new ids, and copies of the files that it could write to. The image's ancestors are among
/// `parents`, if it has any. The caller answers for these files, whatever user owns them. No file is needed any more when this returns. `launcher` is what
/// [`launcher`](crate::launcher) tells the copy, which learns from [`is_alone`](crate::is_alone) that it is one.
pub fn restart_alone(image: &Path, parents: &[PathBuf], library: &Path, launcher: u64) -> Result<Command, ControlError> {
    let image = whole::restorable(image, parents, Owners::Any, &mut |_, _| {})?;
    let mut command = image.command(Ids::New, library, Some(launcher), |_| {});
    command.env(ALONE_VARIABLE, "1");
    Ok(command)
}

/// As [`restart`], with a choice of ids and of the users that images may belong to, and telling how far it has come where an image must be merged or unpacked
/// first.
pub fn restart_as(
    ids: Ids,
    owners: Owners,
    image: &Path,
    library: &Path,
    progress: Progress<'_>,
) -> Result<Command, ControlError> {
    Ok(whole::restorable(image, &[], owners, progress)?.command(ids, library, None, |_| {}))
}

impl Restorable {
    /// A command that becomes the saved process, as [`restart`] says. What `first` adds to it is done by the keeper, before it lets go of the process.
    /// `launcher` is what [`launcher`](crate::launcher) tells the restored process; then it does not say if it could not have its old ids.
    #[must_use]
    pub fn command(self, ids: Ids, library: &Path, launcher: Option<u64>, first: impl FnOnce(&mut Command)) -> Command {
        let Restorable { file, meta } = self;
        let (image, process) = (OwnedFd::from(file), &meta.process);
        let mut words = process.cmdline.split(|b| *b == 0).map(OsStr::from_bytes);
        let program = program(&meta);
        let mut command = match &program {
            // The open file, whatever its name has come to mean when it is executed.
            Ok(Some(file)) => Command::new(format!("/proc/self/fd/{}", file.as_raw_fd())),
            _ => Command::new(OsStr::from_bytes(&process.exe)),
        };
        command.arg0(words.next().unwrap_or_default());
        let words: Vec<_> = words.collect();
        // Behind the zero byte of the last argument there is nothing.
        command.args(&words[..words.len().saturating_sub(1)]);
        command.env_clear().env("LD_PRELOAD", library).env(RESTORE_VARIABLE, image.as_raw_fd().to_string());
        let mapped = meta.regions.iter().map(|region| &region.path[..]);
        let named =
            mapped.chain(meta.descriptors.iter().map(|descriptor| &descriptor.path[..])).filter(|path| path.starts_with(b"/"));
        command.env(OWNERS_VARIABLE, owners_of(named));
        command.envs(launcher.map(|number| (LAUNCHER_VARIABLE, format!("{number:016x}"))));
        first(&mut command);
        let (personality, aloud) = (process.personality, launcher.is_none());
        let tids = meta.threads.iter().map(|thread| thread.tid as i32).collect();
        let exe = process.exe.clone();
        let identity = Identity { pid: process.pid as i32, tids, monotonic: process.monotonic, boottime: process.boottime };
        // SAFETY: system calls only.
        unsafe {
            command.pre_exec(move || {
                if let Err(fault) = &program {
                    let (what, number) = fault.words();
                    let mut text = [0; 64];
                    let number = numbered(&mut text, b" ", number, b"\n");
                    for part in
                        [b"radic: ", &exe[..], b": the program is this file: ", what.as_bytes(), &number[..number.len() - 1]]
                    {
                        let _ = sys::write_all(2, part);
                    }
                    return Err(io::ErrorKind::PermissionDenied.into());
                }
                // The image stays open over exec.
                libc::fcntl(image.as_fd().as_raw_fd(), libc::F_SETFD, 0);
                libc::personality(libc::c_ulong::from(personality));
                if ids == Ids::Old && !keeper::assume(&identity) && aloud {
                    let text = b"radic: the process is restored under another pid: its own is taken, or may not be chosen here\n";
                    let _ = sys::write_all(2, text);
                }
                Ok(())
            });
        }
        command
    }
}

/// The program's file, which is executed before any other is looked at: it must be the one that it was, or of users who could do the same. None: the image does
/// not say which one that was.
fn program(meta: &Meta) -> Result<Option<OwnedFd>, Fault> {
    let exe = &meta.process.exe;
    let Some(region) = meta.regions.iter().find(|region| region.path == *exe && region.backing == Backing::PrivateFile) else {
        return Ok(None);
    };
    let fd = files::open_again(&[&exe[..], b"\0"].concat(), &region.file, libc::O_PATH, &[])?;
    // SAFETY: just opened, and owned by nothing else.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// The process that the command of [`Restorable::command`] has become, when it runs: `child` itself, or the one that it keeps. None: it has ended already.
#[must_use]
pub fn kept_by(child: i32) -> Option<i32> {
    let children = std::fs::read(format!("/proc/{child}/task/{child}/children")).ok()?;
    // An init of its namespace comes before it. The process itself has no child yet: it has no thread that could make one.
    let newest = children.split(|b| *b == b' ').rfind(|pid| !pid.is_empty());
    newest.map(|pid| crate::maps::decimal(pid).0 as i32)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::saved::receive;
    use super::*;
    use crate::image::meta::RegionRef;
    use crate::image::{Header, ImageWriter, MetaWriter};

    /// One page, at 0x1000.
    pub(super) fn image(packed: bool) -> Vec<u8> {
        let mut buffer = [0; 1024];
        let mut meta = MetaWriter::new(&mut buffer);
        meta.process(77, 0, (1, 2), b"/bin/true", b"true\0", b"/tmp");
        let (start, end) = (0x1000, 0x2000);
        meta.region(&RegionRef { start, end, prot: 3, has_runs: true, path: b"[heap]", ..RegionRef::default() });
        meta.thread(77, 0, 0, b"true");
        meta.note(b"nothing of note");
        let len = meta.finish().unwrap();
        let mut writer = ImageWriter::begin(Vec::new(), Header { id: 7, ..Header::default() }, &buffer[..len]).unwrap();
        let page = [5; 4096];
        if packed {
            writer.lz4(start, &page, &lz4_flex::block::compress(&page)).unwrap();
        } else {
            writer.raw(start, &page).unwrap();
        }
        writer.finish().unwrap().0
    }

    #[test]
    fn what_is_received_is_in_the_file_and_told() {
        let (home, stream, mut told) = (tempfile::tempdir().unwrap(), image(false), 0);
        let path = home.path().join("image");
        let saved = whole::appear(&path, |file| receive(&stream[..], file, &mut |done, _| told = done)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), stream);
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!((saved.bytes, saved.id, saved.parent), (stream.len() as u64, 7, 0));
        assert_eq!((saved.notes, told), (vec!["nothing of note".to_owned()], saved.bytes));
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let home = tempfile::tempdir().unwrap();
        let elsewhere = home.path().join("elsewhere");
        std::fs::write(&elsewhere, "as before").unwrap();
        for name in ["image", "image.partial"] {
            std::os::unix::fs::symlink(&elsewhere, home.path().join(name)).unwrap();
        }
        let stream = image(false);
        whole::appear(&home.path().join("image"), |file| receive(&stream[..], file, &mut |_, _| {})).unwrap();
        assert_eq!(std::fs::read(&elsewhere).unwrap(), b"as before");
        assert!(home.path().join("image").symlink_metadata().unwrap().is_file());
    }

    /// A caller that is killed while it writes has no say any more.
    #[test]
    fn an_unfinished_file_has_no_name() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("image");
        let count = || std::fs::read_dir(home.path()).unwrap().count();
        std::fs::write(&path, "the one before").unwrap();
        whole::appear(&path, |mut file| {
            std::io::Write::write_all(&mut file, b"the new one").unwrap();
            assert_eq!((count(), std::fs::read(&path).unwrap()), (1, b"the one before".to_vec()));
            Ok(())
        })
        .unwrap();
        assert_eq!((count(), std::fs::read(&path).unwrap()), (1, b"the new one".to_vec()));
    }

    /// In a folder like /tmp another user may put files beforehand, with any name. What is written there would be that user's.
    #[test]
    fn a_planted_file_gets_nothing() {
        if sys::plain!(libc::SYS_geteuid) != Ok(0) {
            return;
        }
        let home = tempfile::tempdir().unwrap();
        std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o1777)).unwrap();
        let mut intruder = Command::new("/bin/sh");
        intruder.args(["-c", "umask 0; for name in image image.partial; do echo planted > $name; done"]).current_dir(home.path());
        assert!(intruder.uid(64_002).gid(64_002).status().unwrap().success());
        let (path, stream) = (home.path().join("image"), image(false));
        whole::appear(&path, |file| receive(&stream[..], file, &mut |_, _| {})).unwrap();
        assert_eq!(std::fs::read(home.path().join("image.partial")).unwrap(), b"planted\n");
        let data = path.metadata().unwrap();
        assert_eq!((data.uid(), data.mode() & 0o777, data.len()), (0, 0o600, stream.len() as u64));
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 2);
    }

    /// The folder is the one that was there at first, whatever its name comes to mean.
    #[test]
    fn an_exchanged_folder_gets_nothing() {
        let (home, stream) = (tempfile::tempdir().unwrap(), image(false));
        let (folder, moved) = (home.path().join("folder"), home.path().join("moved"));
        std::fs::create_dir(&folder).unwrap();
        whole::appear(&folder.join("image"), |file| {
            std::fs::rename(&folder, &moved).unwrap();
            std::fs::create_dir(&folder).unwrap();
            receive(&stream[..], file, &mut |_, _| {})
        })
        .unwrap();
        assert_eq!(std::fs::read(moved.join("image")).unwrap(), stream);
        assert_eq!(std::fs::read_dir(&moved).unwrap().count() + std::fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn nothing_appears_that_is_no_image() {
        let home = tempfile::tempdir().unwrap();
        let mut longer = image(false);
        longer.push(0);
        let shorter = &longer[..longer.len() - 2];
        for (stream, why) in [(&longer[..], "something follows"), (shorter, "truncated"), (b"", "truncated")] {
            let error = whole::appear(&home.path().join("image"), |file| receive(stream, file, &mut |_, _| {})).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "{why}");
        }
        let full = File::options().write(true).open("/dev/full").unwrap();
        let error = receive(&image(false)[..], &full, &mut |_, _| {}).unwrap_err().to_string();
        assert!(error.contains("No space left"), "{error}");
    }
}
