use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use radic_ckpt::trusted::Owners;
use radic_wire::suspension::{SavedFile, begin_code};

use super::content::Source;
use super::resume::{PIECE, verify};
use super::*;

fn key() -> JobKey {
    JobKey::from_bytes([3; 32])
}

fn create(dir: &Path) -> Result<Folder> {
    Folder::create(dir, &ClusterKey::generate().unwrap(), "abc")
}

fn saved(dir: &Path, content: &[u8]) -> SavedFile {
    fs::write(dir.join("rank-0.journal"), content).unwrap();
    let mut code = begin_code(&key(), "rank-0.journal");
    code.update(content);
    SavedFile { name: "rank-0.journal".into(), bytes: content.len() as u64, code: code.finish() }
}

#[test]
fn what_is_missing_truncated_or_damaged_is_said() {
    let dir = tempfile::tempdir().unwrap();
    for length in [0, 1, PIECE, PIECE + 1] {
        let content = vec![7; length];
        let file = saved(dir.path(), &content);
        let folder = Source::open(dir.path(), Owners::Trusted).unwrap();
        verify(&folder, &file, &key(), &Progress::hidden()).unwrap();
        let path = dir.path().join("rank-0.journal");
        let fails = |how: &str| {
            let error = format!("{:#}", verify(&folder, &file, &key(), &Progress::hidden()).unwrap_err());
            assert!(error.contains(how) && error.contains("rank-0.journal"), "{length}: {error}");
        };
        fs::write(&path, [&content[..], b"x"].concat()).unwrap();
        fails("something was added");
        if length > 0 {
            fs::write(&path, &content[1..]).unwrap();
            fails("truncated");
            let mut other = content.clone();
            other[length - 1] ^= 1;
            fs::write(&path, other).unwrap();
            fails("damaged");
        }
        fs::remove_file(&path).unwrap();
        fails("missing");
    }
}

#[test]
fn a_folder_of_others_is_not_written_to_and_no_link_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let (shared, victim) = (dir.path().join("shared"), dir.path().join("victim"));
    fs::create_dir(&shared).unwrap();
    mode(&shared, 0o777);
    let refused = |parts: &str| {
        let error = create(&shared).map(drop).unwrap_err().to_string();
        assert!(error.contains(parts) && error.contains("shared"), "{error}");
    };
    refused("others may write");
    mode(&shared, 0o700);
    let mut folder = create(&shared).unwrap();
    fs::write(&victim, "precious").unwrap();
    for name in ["rank-0.journal", "manifest.new"] {
        symlink(&victim, shared.join(name)).unwrap();
    }
    assert!(folder.create_file("rank-0.journal").is_err());
    assert!(folder.finish(b"x").is_err());
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    if nix::unistd::geteuid().is_root() {
        let _ = (fs::remove_file(shared.join("rank-0.journal")), fs::remove_file(shared.join("manifest.new")));
        chown(&shared, Some(64_001), None).unwrap();
        refused("64001");
    }
}

#[test]
fn what_another_user_owns_or_may_write_is_refused_unless_that_user_is_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let file = saved(dir.path(), b"content");
    let path = dir.path().join(&file.name);
    let verify = |owners| Source::open(dir.path(), owners).and_then(|source| verify(&source, &file, &key(), &Progress::hidden()));
    verify(Owners::Trusted).unwrap();
    let refused = |how: &str| {
        let error = format!("{:#}", verify(Owners::Trusted).unwrap_err());
        assert!(error.contains(how) && error.contains("--trust-owner"), "{error}");
        verify(Owners::Any).unwrap();
    };
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&path, 0o666);
    refused("may be written by other users");
    mode(&path, 0o600);
    mode(dir.path(), 0o777);
    refused("may be written by other users");
    mode(dir.path(), 0o700);
    if nix::unistd::geteuid().is_root() {
        chown(&path, Some(64_001), None).unwrap();
        refused("belongs to user 64001");
        chown(&path, Some(0), None).unwrap();
        chown(dir.path(), Some(64_001), None).unwrap();
        refused("belongs to user 64001");
    }
}

#[test]
fn a_folder_is_taken_only_if_it_is_empty_and_goes_again() {
    let dir = tempfile::tempdir().unwrap();
    let new = dir.path().join("new");
    let mut folder = create(&new).unwrap();
    folder.create_file("rank-0.journal").unwrap();
    let error = create(&new).map(drop).unwrap_err().to_string();
    assert!(error.contains("another command is writing"), "{error}");
    drop(folder);
    assert!(!new.exists());
    let mut folder = create(&new).unwrap();
    folder.finish(b"x").unwrap();
    drop(folder);
    assert_eq!(fs::read(new.join(MANIFEST)).unwrap(), b"x");
    assert!(create(&new).is_err(), "what is there is no manifest of this cluster");
    assert_eq!(fs::read(new.join(MANIFEST)).unwrap(), b"x");
    assert_eq!(fs::read_dir(&new).unwrap().count(), 1);
    fs::remove_file(new.join(MANIFEST)).unwrap();
    drop(create(&new).unwrap());
    assert!(new.exists(), "it was there before");
}

#[test]
fn what_a_command_that_was_killed_has_left_goes_and_nothing_else_does() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str| fs::write(dir.path().join(name), "x").unwrap();
    let look = || Source::look(dir.path(), || Ok(ClusterKey::generate().unwrap()));
    assert!(look().unwrap().is_none(), "it is empty");
    for name in ["rank-0.journal", "rank-12.image-3.2", "manifest.new", "resumed-00ff.new"] {
        put(name);
    }
    let error = look().map(drop).unwrap_err().to_string();
    assert!(error.contains("its list is missing"), "{error}");
    assert!(create(dir.path()).is_err(), "there may have been a manifest");
    put("unfinished");
    assert!(look().unwrap().is_none(), "there never was one");
    put("thesis");
    let error = create(dir.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains("not empty") && error.contains("thesis"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 6);
    fs::remove_file(dir.path().join("thesis")).unwrap();
    drop(create(dir.path()).unwrap());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn only_names_of_a_suspension_are_its_own() {
    for name in ["manifest", "rank-0.journal", "rank-0.received.2", "rank-10.image-7", "resumed-12ab"] {
        assert!(content::is_ours(name), "{name}");
    }
    for name in ["rank-0.image-", "rank-x.journal", "rank-0.journal.3", "rank-0", "image-1", "manifest.old", ".x"] {
        assert!(!content::is_ours(name), "{name}");
    }
}

/// What a rank's image of a line leaves out is in that of the same line of another rank only.
#[test]
fn images_of_two_recovery_lines_are_no_suspension() {
    use radic_wire::ids::ProcessId;
    use radic_wire::log::{HeldImage, LineMark};
    let log = |rank, joins: bool, lines: &[(u64, ImageState)]| {
        let image = |(at, (newest, state)): (usize, &(u64, ImageState))| {
            let line = LineMark { newest: *newest, joins };
            HeldImage { image: at as u64, parent: None, cut: 0, bytes: 1, line, state: *state }
        };
        HeldLog {
            process: ProcessId { job: JobId::from_bits(7), rank: Rank(rank) },
            incarnation: Incarnation::FIRST,
            current: true,
            journal: Span { start: 0, end: 0 },
            stable: 0,
            causes: Span { start: 0, end: 0 },
            forgotten: Vec::new(),
            streams: Vec::new(),
            images: lines.iter().enumerate().map(image).collect(),
        }
    };
    use ImageState::{Committed, Superseded, UnderWay};
    let differ = |logs: &[HeldLog]| HeldLog::of_two_lines(logs).map(|(one, other)| (one.process.rank.0, other.process.rank.0));
    let (of_line, by_itself) = (true, false);
    let in_time = log(1, of_line, &[(2, Superseded), (3, Committed), (4, UnderWay)]);
    assert_eq!(differ(&[log(0, of_line, &[(3, Committed)]), in_time.clone()]), None);
    assert_eq!(differ(&[in_time.clone(), log(2, of_line, &[(3, Superseded), (4, Committed)])]), Some((2, 1)));
    assert_eq!(differ(&[in_time.clone(), log(2, by_itself, &[(4, Committed)])]), None, "it has all that is kept");
    assert_eq!(differ(&[in_time.clone(), log(2, by_itself, &[(2, Committed)])]), Some((1, 2)));
    assert_eq!(differ(&[in_time, log(1, of_line, &[])]), None, "that there is no image is said elsewhere");
}
