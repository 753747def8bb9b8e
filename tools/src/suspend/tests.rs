use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use anyhow::Result;
use radic_wire::ids::{Incarnation, JobId, ProcessId, Rank};
use radic_wire::key::ClusterKey;
use radic_wire::log::{HeldImage, HeldLog, ImageState, LineMark};
use radic_wire::span::Span;

use super::content::{self, MANIFEST, Source};
use super::folder::Folder;

fn create(dir: &Path) -> Result<Folder> {
    Folder::create(dir, &ClusterKey::generate().unwrap(), "abc")
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
    assert!(folder.write_manifest(b"x").is_err());
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    if nix::unistd::geteuid().is_root() {
        let _ = (fs::remove_file(shared.join("rank-0.journal")), fs::remove_file(shared.join("manifest.new")));
        chown(&shared, Some(64_001), None).unwrap();
        refused("64001");
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
    folder.write_manifest(b"x").unwrap();
    folder.place_manifest().unwrap();
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
