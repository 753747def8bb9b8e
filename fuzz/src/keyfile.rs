//! Key files ([`radic_wire::key`]).

use std::fs;
use std::os::unix::fs::MetadataExt;

use radic_wire::key::ClusterKey;

use crate::Inputs;

/// A file that is accepted is the one that its key is written to, but for the case of its digits and its line ends.
pub fn check(data: &[u8]) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let (given, written) = (folder.path().join("given"), folder.path().join("written"));
    ClusterKey::from_bytes([7; 32]).create(&given).expect("a file that only its owner can read");
    let owner = fs::metadata(&given).expect("it is there").uid();
    fs::write(&given, data).expect("space for it");
    let Ok(key) = ClusterKey::load(&given, owner) else { return false };
    key.create(&written).expect("a file");
    let lines = |text: String| text.lines().map(str::to_lowercase).collect::<Vec<_>>();
    let [given, written] = [given, written].map(|path| lines(fs::read_to_string(path).expect("a key file is text")));
    assert_eq!(given, written);
    true
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("key");
    ClusterKey::from_bytes([0xa5; 32]).create(&path).expect("a file");
    vec![("key", fs::read(path).expect("it was written"))]
}
