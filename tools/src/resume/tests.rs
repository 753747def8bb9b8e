use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use radic_wire::suspension::{SavedFile, begin_code};

use super::*;

fn key() -> JobKey {
    JobKey::from_bytes([3; 32])
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

/// A job that is lost with nodes after it had gone on is still in its folder; one that failed by itself would fail again.
#[test]
fn a_job_that_is_lost_after_it_had_gone_on_can_be_resumed_again() {
    let (node, dir) = ("n1".parse::<NodeName>().unwrap(), Path::new("/saved/job"));
    let way_back = |reason| way_back(dir, &Outcome { code: 113, reason });
    let lost = EndReason::NodeLost { node: node.clone(), ranks: Vec::new(), why: "it is off".to_owned() };
    assert!(way_back(lost).is_some_and(|text| text.contains("`radic resume /saved/job`")));
    let lost = EndReason::RankLost { rank: Rank(0), node, why: "it is gone".to_owned() };
    assert!(way_back(lost).is_some());
    assert_eq!(way_back(EndReason::Killed), None);
    assert_eq!(way_back(EndReason::Suspended), None);
}
