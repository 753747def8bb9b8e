//! Files that a restored process opens again by the names they had. Such a name may mean another file by now: on another machine, or because another user has
//! put one there, whose content the process would take for its own, or who would get what the process has in memory. So the file is looked at first, and opened
//! only then: [`open_again`] is the one way to it, and its rule stands at [`fault`]. System calls only: there may be no heap yet.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::image::meta::FileId;
use crate::maps::{hex, numbered};
use crate::plan::Owner;
use crate::sys::{self, Errno, call, plain};

/// Which boot of which machine this is; 0: not known.
static BOOT: AtomicU64 = AtomicU64::new(0);

/// Finds out which boot this is: at the start of a process, and when it is restored, perhaps elsewhere.
pub fn learn_boot() {
    let mut text = [0u8; 64];
    let len = sys::slurp(b"/proc/sys/kernel/random/boot_id\0", &mut text).unwrap_or(0);
    // A random number of 128 bits, in groups of digits.
    let mut groups = text[..len].trim_ascii().split(|byte| *byte == b'-').map(|group| hex(group).0);
    BOOT.store(groups.try_fold(0u64, |all, group| Some(all.rotate_left(24) ^ group)).unwrap_or(0), Relaxed);
}

/// Which boot this is, as far as it is known.
pub fn boot() -> u64 {
    BOOT.load(Relaxed)
}

/// What an open file is, and its size.
pub fn of(fd: i32) -> Result<(FileId, u64), Errno> {
    ask(fd, b"\0", libc::AT_EMPTY_PATH)
}

/// What the file of this name is, which ends with a zero byte, and its size. A link is not followed: the kernel names files by their own names.
pub fn named(path: &[u8]) -> Result<(FileId, u64), Errno> {
    ask(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW)
}

fn ask(fd: i32, path: &[u8], flags: i32) -> Result<(FileId, u64), Errno> {
    assert_eq!(path.last(), Some(&0), "a path for the kernel ends with a zero byte");
    let mut out = core::mem::MaybeUninit::<libc::statx>::zeroed();
    let wanted = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    // SAFETY: the kernel reads up to the zero byte and writes one statx, for which all zeroes is valid, too.
    let out = unsafe {
        call!(libc::SYS_statx, fd, path.as_ptr(), flags, wanted, out.as_mut_ptr())?;
        out.assume_init()
    };
    // What the file system does not know is zero.
    let born = out.stx_btime.tv_sec as u64 * 1_000_000_000 + u64::from(out.stx_btime.tv_nsec);
    let id = FileId {
        boot: boot(),
        device: libc::makedev(out.stx_dev_major, out.stx_dev_minor),
        inode: out.stx_ino,
        born: if out.stx_mask & libc::STATX_BTIME == 0 { 0 } else { born },
        owner: out.stx_uid,
        group: out.stx_gid,
        mode: out.stx_mode.into(),
        links: out.stx_nlink,
        names: libc::makedev(out.stx_rdev_major, out.stx_rdev_minor),
    };
    Ok((id, out.stx_size))
}

/// Why a file is not opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The kernel's error.
    Error(Errno),
    /// A link, a pipe, another device: not what it was.
    Kind,
    /// It is this user's.
    Owner(u32),
    /// Its mode lets users write it who could not before.
    Mode(u32),
    /// It has this many names: another name may be why it is here.
    Links(u32),
}

impl Fault {
    /// The reason in words, and a number that belongs to it.
    pub fn words(self) -> (&'static str, i32) {
        match self {
            Self::Error(error) => ("this file was open and cannot be opened any more: error", error.0),
            Self::Kind => ("another kind of file (or a link) is in its place; remove that: error", libc::EINVAL),
            Self::Owner(user) => (
                "a file of another user is in its place; remove that, or give it to the program's user. It is of user",
                user as i32,
            ),
            Self::Mode(_) => (
                "a file that more users may write is in its place; remove that, or take their right away (chmod go-w): error",
                libc::EPERM,
            ),
            Self::Links(links) => {
                ("the file in its place has other names, too, and would be written under all; remove that. Names:", links as i32)
            }
        }
    }
}

impl core::fmt::Display for Fault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (what, number) = self.words();
        match self {
            Self::Error(_) => write!(f, "{}", std::io::Error::from_raw_os_error(number)),
            _ => write!(f, "{what} {number}"),
        }
    }
}

/// Files in the memory of a machine: what is there on another boot is not what was there.
const MEMORY: &[u8] = b"/dev/shm/";
/// Permission of the group to write.
const GROUP_WRITES: u32 = 0o020;
/// Permission of the group or of all others to write. Of an access list the mask stands in the place of the group's bits.
const OTHERS_WRITE: u32 = 0o022;
/// The user, and the group, as which a process sees all those that have no number in its user namespace.
pub const UNMAPPED: u32 = 65_534;

/// What keeps user `me` from opening this file again, in the place of the one that the saved process had.
///
/// **The rule.** It is the very file: the same boot, device, inode and time of birth. Or nobody has a say in it who had none in that one: it is the restoring
/// user's, root's, or still its owner's; and group and others may write it only where they could, the group being the same one. A file that is to be written
/// has no other names then, and one in /dev/shm is the restoring user's own. In any case it is of the same kind, and no link.
fn fault(now: &FileId, saved: &FileId, me: u32, writes: bool, path: &[u8]) -> Option<Fault> {
    let is_regular = now.mode & libc::S_IFMT == libc::S_IFREG;
    if now.mode & libc::S_IFMT != saved.mode & libc::S_IFMT || now.names != saved.names {
        return Some(Fault::Kind);
    }
    if now.is(saved) {
        return None;
    }
    let is_known = !path.starts_with(MEMORY) && [0, saved.owner].contains(&now.owner);
    let wider = now.mode & OTHERS_WRITE & !saved.mode != 0 || now.mode & GROUP_WRITES != 0 && now.group != saved.group;
    if now.owner != me && !is_known {
        Some(Fault::Owner(now.owner))
    } else if is_regular && wider {
        Some(Fault::Mode(now.mode))
    } else if is_regular && writes && now.links > saved.links.max(1) {
        Some(Fault::Links(now.links))
    } else {
        None
    }
}

/// Whom a file belongs to. Where this process has no numbers for users and groups, its launcher has seen that: also for the images of a restored process, for
/// its next launcher has numbers.
pub fn with_owner(mut file: FileId, owners: &[Owner]) -> FileId {
    let known = owners.iter().find(|known| (known.device, known.inode) == (file.device, file.inode));
    if let Some(known) = known {
        for (id, real) in [(&mut file.owner, known.owner), (&mut file.group, known.group)] {
            if *id == UNMAPPED {
                *id = real;
            }
        }
    }
    file
}

/// Opens the file of this name, which ends with a zero byte, if it may stand for the one that the saved process had. Nothing is opened before that is known,
/// for to open a pipe or a device may wait, or do something. What `flags` say of creation, of links and of directories is left out: the file is there, and
/// known. Opened without waiting (O_NONBLOCK) is all but files and folders; the caller takes that away.
pub fn open_again(path: &[u8], saved: &FileId, flags: i32, owners: &[Owner]) -> Result<i32, Fault> {
    const DONE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW | libc::O_TMPFILE;
    let handle = sys::open(path, libc::O_PATH | libc::O_NOFOLLOW, 0).map_err(Fault::Error)?;
    let mut name = [0u8; 64];
    let result = of(handle).map_err(Fault::Error).and_then(|(now, _)| {
        let me = plain!(libc::SYS_geteuid).map_err(Fault::Error)? as u32;
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let wait =
            if matches!(now.mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFDIR) { 0 } else { libc::O_NONBLOCK | libc::O_NOCTTY };
        match fault(&with_owner(now, owners), saved, me, writes, path) {
            Some(fault) => Err(fault),
            // The handle is the file, whatever its name has come to mean.
            None => sys::open(numbered(&mut name, b"/proc/self/fd/", handle, b""), flags & !DONE | wait, 0).map_err(Fault::Error),
        }
    });
    sys::close(handle);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: u32 = 1000;
    const OTHER: u32 = 1001;
    const FOREIGN: u32 = 1002;

    fn saved() -> FileId {
        FileId { boot: 1, device: 2, inode: 3, born: 4, owner: ME, group: 100, mode: libc::S_IFREG | 0o640, links: 1, names: 0 }
    }

    /// The file that is found on another boot, which differs by this from the saved one.
    fn verdict(saved: &FileId, change: impl FnOnce(&mut FileId)) -> Option<Fault> {
        let mut now = FileId { boot: 9, ..*saved };
        change(&mut now);
        fault(&now, saved, ME, true, b"/home/file\0")
    }

    #[test]
    fn a_file_is_of_the_user_of_root_or_of_its_owner() {
        for (owner, fault) in [(ME, None), (0, None), (OTHER, Some(Fault::Owner(OTHER)))] {
            assert_eq!(verdict(&saved(), |now| now.owner = owner), fault);
        }
        let others = FileId { owner: OTHER, ..saved() };
        assert_eq!(verdict(&others, |_| {}), None);
        assert_eq!(verdict(&others, |now| now.owner = FOREIGN), Some(Fault::Owner(FOREIGN)));
    }

    #[test]
    fn nobody_may_write_it_who_could_not() {
        for (was, is, taken) in
            [(0o640, 0o600, true), (0o640, 0o660, false), (0o640, 0o642, false), (0o660, 0o660, true), (0o666, 0o666, true)]
        {
            let saved = FileId { mode: libc::S_IFREG | was, ..saved() };
            assert_eq!(verdict(&saved, |now| now.mode = libc::S_IFREG | is).is_none(), taken, "{was:o} {is:o}");
        }
        let shared = FileId { mode: libc::S_IFREG | 0o660, ..saved() };
        assert_eq!(verdict(&shared, |now| now.group = 101), Some(Fault::Mode(shared.mode)));
    }

    #[test]
    fn a_file_that_is_written_has_no_new_names() {
        assert_eq!(verdict(&saved(), |now| now.links = 2), Some(Fault::Links(2)));
        assert_eq!(verdict(&FileId { links: 2, ..saved() }, |_| {}), None);
        let now = FileId { boot: 9, links: 2, ..saved() };
        assert_eq!(fault(&now, &saved(), ME, false, b"/home/file\0"), None, "it is only read");
    }

    #[test]
    fn it_is_of_the_same_kind() {
        for kind in [libc::S_IFLNK, libc::S_IFIFO, libc::S_IFDIR, libc::S_IFSOCK, libc::S_IFCHR] {
            assert_eq!(verdict(&saved(), |now| now.mode = kind | 0o640), Some(Fault::Kind), "{kind:o}");
        }
        let device = FileId { mode: libc::S_IFCHR | 0o600, names: 7, ..saved() };
        assert_eq!(verdict(&device, |now| now.names = 8), Some(Fault::Kind));
        assert_eq!(verdict(&device, |now| now.mode |= 0o066), None, "what is in a device is not in its mode");
    }

    #[test]
    fn memory_is_the_very_file_or_the_users_own() {
        let saved = FileId { owner: OTHER, mode: libc::S_IFREG | 0o666, ..saved() };
        let judge = |now: FileId| fault(&now, &saved, ME, true, b"/dev/shm/file\0");
        assert_eq!(judge(saved), None);
        assert_eq!(judge(FileId { boot: 9, ..saved }), Some(Fault::Owner(OTHER)));
        assert_eq!(judge(FileId { boot: 9, owner: 0, ..saved }), Some(Fault::Owner(0)));
        assert_eq!(judge(FileId { boot: 9, owner: ME, ..saved }), None);
    }

    /// An inode's number is given anew when its file is gone.
    #[test]
    fn the_very_file_is_known_by_its_birth_or_its_owner() {
        let changed = FileId { mode: libc::S_IFREG | 0o666, links: 3, ..saved() };
        assert!(changed.is(&saved()));
        assert_eq!(fault(&changed, &saved(), ME, true, b"/home/file\0"), None);
        assert!(!FileId { born: 5, ..saved() }.is(&saved()));
        let unborn = FileId { born: 0, ..saved() };
        assert!(unborn.is(&unborn) && !FileId { owner: OTHER, ..unborn }.is(&unborn));
        let nowhere = FileId { boot: 0, ..saved() };
        assert!(!nowhere.is(&nowhere), "a boot that is not known is none");
    }

    #[test]
    fn a_launcher_knows_whom_files_belong_to() {
        let unknown = FileId { owner: UNMAPPED, group: UNMAPPED, ..saved() };
        let known = [Owner { device: 2, inode: 3, owner: 0, group: 5 }];
        let told = with_owner(unknown, &known);
        assert_eq!((told.owner, told.group), (0, 5));
        let own = with_owner(saved(), &known);
        assert_eq!((own.owner, own.group), (ME, 100), "what this process knows itself");
        assert_eq!(with_owner(FileId { inode: 4, ..unknown }, &known).owner, UNMAPPED);
    }

    #[test]
    fn what_the_kernel_says_of_a_file() {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::MetadataExt;
        learn_boot();
        assert_ne!(boot(), 0);
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(5).unwrap();
        let path = [file.path().to_str().unwrap().as_bytes(), b"\0"].concat();
        let data = file.as_file().metadata().unwrap();
        let (id, size) = of(file.as_file().as_raw_fd()).unwrap();
        assert_eq!((id.device, id.inode, id.owner, id.mode, size), (data.dev(), data.ino(), data.uid(), data.mode(), 5));
        assert_eq!(named(&path), Ok((id, 5)));
        let again = open_again(&path, &id, libc::O_RDWR, &[]).unwrap();
        assert_eq!(of(again), Ok((id, 5)));
        sys::close(again);
        assert_eq!(open_again(b"/\0", &id, libc::O_RDONLY, &[]), Err(Fault::Kind));
    }
}
