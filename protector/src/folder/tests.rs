//! Each attack is what another user could have prepared: root gives folders away to one.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use super::*;

/// Another user than the one of this process.
const STRANGER: u32 = 64_001;

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_is_made_is_for_its_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("a/b/c");
    let folder = Folder::make_all(&deep).unwrap().subfolder("d").unwrap();
    for path in [&deep, &deep.join("d"), &dir.path().join("a")] {
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, 0o700, "{}", path.display());
    }
    folder.create_new("file").unwrap();
    folder.append("log").unwrap();
    for name in ["file", "log"] {
        assert_eq!(fs::metadata(deep.join("d").join(name)).unwrap().mode() & 0o7777, 0o600);
    }
    let (_, is_new) = Folder::make(&deep).unwrap();
    assert!(!is_new && Folder::make(&dir.path().join("new")).unwrap().1);
}

#[test]
fn a_folder_that_others_may_write_to_or_own_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("folder");
    fs::create_dir(&path).unwrap();
    for shared in [0o770, 0o707, 0o1777, 0o720] {
        mode(&path, shared);
        let error = Folder::open(&path).unwrap_err();
        assert!(matches!(error, FolderError::Shared { .. }), "{error}");
        assert!(Folder::make(&path).is_err() && Folder::make_all(&path).is_err());
    }
    mode(&path, 0o755);
    Folder::open(&path).unwrap();
    if nix::unistd::geteuid().is_root() {
        chown(&path, Some(STRANGER), None).unwrap();
        let error = Folder::open(&path).unwrap_err();
        assert!(matches!(error, FolderError::Foreign { owner: STRANGER, .. }), "{error}");
        assert!(error.to_string().contains("64001"), "{error}");
    }
}

#[test]
fn a_link_or_a_file_is_no_folder() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link, file) = (dir.path().join("real"), dir.path().join("link"), dir.path().join("file"));
    fs::create_dir(&real).unwrap();
    mode(&real, 0o700);
    symlink(&real, &link).unwrap();
    fs::write(&file, "x").unwrap();
    for path in [&link, &link.join(""), &link.join("."), &file] {
        let error = Folder::open(path).unwrap_err();
        assert!(matches!(error, FolderError::NoFolder(_)), "{}: {error}", path.display());
        assert!(matches!(Folder::make(path), Err(FolderError::NoFolder(_) | FolderError::Io { .. })));
    }
    symlink(&real, real.join("nodes")).unwrap();
    assert!(matches!(Folder::open(&real).unwrap().subfolder("nodes"), Err(FolderError::NoFolder(_))));
}

#[test]
fn nothing_is_written_or_read_through_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let (victim, there) = (dir.path().join("victim"), dir.path().join("there"));
    fs::write(&victim, "precious").unwrap();
    let (folder, _) = Folder::make(&there).unwrap();
    for name in ["planted", "nowhere"] {
        symlink(if name == "planted" { &victim } else { Path::new("/nonexistent/x") }, there.join(name)).unwrap();
        assert_eq!(folder.create_new(name).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(matches!(folder.append(name), Err(FolderError::NoFile(_))));
        assert!(matches!(folder.read(name), Err(FolderError::NoFile(_))));
        folder.replace(name).unwrap().write_all(b"ours").unwrap();
        assert!(fs::symlink_metadata(there.join(name)).unwrap().is_file());
    }
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    // A second name of a file of ours is as good as a link.
    fs::hard_link(&victim, there.join("log")).unwrap();
    assert!(matches!(folder.append("log"), Err(FolderError::ForeignFile(_))));
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, _) = Folder::make(&dir.path().join("there")).unwrap();
    let at = |name: &str| folder.path().join(name);
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    fs::create_dir(at("folder")).unwrap();
    for name in ["pipe", "socket", "folder"] {
        assert!(matches!(folder.read(name), Err(FolderError::NoFile(_))), "{name}");
        assert!(matches!(folder.append(name), Err(FolderError::NoFile(_))), "{name}");
    }
    let device = Folder::open_foreign(Path::new("/dev")).unwrap();
    assert!(matches!(device.read("zero"), Err(FolderError::NoFile(_))));
    assert_eq!(folder.read("nothing").unwrap_err().kind(), io::ErrorKind::NotFound);
    for name in ["", ".", "..", "../there", "/etc/passwd", "folder/x"] {
        assert!(matches!(folder.read(name), Err(FolderError::Name { .. })), "{name}");
        assert!(matches!(folder.replace(name), Err(FolderError::Name { .. })), "{name}");
        assert!(matches!(folder.subfolder(name), Err(FolderError::Name { .. })), "{name}");
    }
}

#[test]
fn a_folder_stays_the_same_whatever_becomes_of_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (there, away) = (dir.path().join("there"), dir.path().join("away"));
    let (folder, _) = Folder::make(&there).unwrap();
    assert!(folder.is_there() && folder.is_empty().unwrap());
    fs::rename(&there, &away).unwrap();
    assert!(!folder.is_there());
    fs::create_dir(&there).unwrap();
    assert!(!folder.is_there(), "another one has its name");
    folder.create_new("a").unwrap().write_all(b"x").unwrap();
    folder.rename("a", "b").unwrap();
    let mut text = String::new();
    folder.read("b").unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "x");
    assert!(away.join("b").exists() && !there.join("b").exists() && !folder.is_empty().unwrap());
    folder.sync().unwrap();
    folder.remove("b").unwrap();
    folder.remove("b").unwrap();
    fs::remove_dir(&away).unwrap();
    assert!(!folder.is_there());
    assert!(folder.create_new("c").is_err(), "it is removed");
}
