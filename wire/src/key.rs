//! The cluster key: 32 random bytes in a file that only its owner may read.

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zeroize::{Zeroize, ZeroizeOnDrop};

const FIRST_LINE: &str = "radic cluster key v1";
/// A key file has two short lines; anything longer is not one.
const FILE_LIMIT: u64 = 256;

/// What to do about a key file that could not be read or written.
fn way_out(said: &io::Error) -> &'static str {
    match said.kind() {
        io::ErrorKind::NotFound => "; `radic key FILE` makes a key in a folder that exists",
        io::ErrorKind::AlreadyExists => "; it was left as it is: use this key, or name another file",
        io::ErrorKind::PermissionDenied => "; run this as the owner of the file and its folder",
        _ => "",
    }
}

/// The secret that makes a process a member of the cluster.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct ClusterKey([u8; 32]);

/// Why a key could not be had.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file could not be read or written.
    #[error("cluster key {path}: {said}{}", way_out(.said))]
    Io {
        /// The key file.
        path: PathBuf,
        /// What the system said. It is part of the message, so it is no `source`: a chain of errors would show it twice.
        said: io::Error,
    },
    /// Others could read the key.
    #[error(
        "cluster key {path} has mode {mode:04o}: others could read it; run `chmod 600` on it (and make a new one if they may have)"
    )]
    Mode {
        /// The key file.
        path: PathBuf,
        /// The file's permission bits.
        mode: u32,
    },
    /// Another user could have put it there.
    #[error("cluster key {path} belongs to uid {owner}, and this process runs as uid {uid}")]
    Owner {
        /// The key file.
        path: PathBuf,
        /// The file's owner.
        owner: u32,
        /// The user that wants to read it.
        uid: u32,
    },
    /// Not a key file.
    #[error("{path} is not a cluster key; make one with `radic key PATH`")]
    Format {
        /// The file.
        path: PathBuf,
    },
    /// The system gave no random bytes.
    #[error("no random bytes from the system: {0}")]
    Random(String),
}

impl ClusterKey {
    /// A new random key.
    pub fn generate() -> Result<Self, KeyError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|e| KeyError::Random(e.to_string()))?;
        Ok(ClusterKey(bytes))
    }

    /// A key of known bytes, for tests and simulations.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        ClusterKey(bytes)
    }

    /// The secret.
    pub(crate) fn secret(&self) -> &[u8; 32] {
        &self.0
    }

    /// Reads a key that `uid` owns and no other user may read.
    pub fn load(path: &Path, uid: u32) -> Result<Self, KeyError> {
        let io_error = |said| KeyError::Io { path: path.to_owned(), said };
        let file = fs::File::open(path).map_err(io_error)?;
        // The open file is asked, not the path: no other file can take its place in between.
        let meta = file.metadata().map_err(io_error)?;
        let mode = meta.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Mode { path: path.to_owned(), mode });
        }
        if meta.uid() != uid {
            return Err(KeyError::Owner { path: path.to_owned(), owner: meta.uid(), uid });
        }
        let mut text = String::new();
        let read = file.take(FILE_LIMIT).read_to_string(&mut text);
        let key = read.ok().and_then(|_| parse(&text)).ok_or_else(|| KeyError::Format { path: path.to_owned() });
        text.zeroize();
        key
    }

    /// Writes the key to a new file of mode 0600. An existing file is never overwritten: it may be in use.
    pub fn create(&self, path: &Path) -> Result<(), KeyError> {
        let io_error = |said| KeyError::Io { path: path.to_owned(), said };
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(io_error)?;
        let mut text = format!("{FIRST_LINE}\n{}\n", self.0.iter().map(|b| format!("{b:02x}")).collect::<String>());
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        text.zeroize();
        written.map_err(io_error)
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

fn parse(text: &str) -> Option<ClusterKey> {
    let mut lines = text.lines();
    let (first, hex) = (lines.next()?, lines.next()?);
    if first != FIRST_LINE || hex.len() != 64 || !hex.is_ascii() || lines.next().is_some() {
        return None;
    }
    let mut key = ClusterKey([0; 32]);
    for (byte, digits) in key.0.iter_mut().zip(hex.as_bytes().chunks(2)) {
        let value = |c: u8| (c as char).to_digit(16);
        *byte = (value(digits[0])? * 16 + value(digits[1])?) as u8;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn my_uid(dir: &Path) -> u32 {
        fs::metadata(dir).unwrap().uid()
    }

    #[test]
    fn a_key_survives_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let key = ClusterKey::generate().unwrap();
        key.create(&path).unwrap();
        assert_eq!(ClusterKey::load(&path, my_uid(dir.path())).unwrap().0, key.0);
        let error = key.create(&path).unwrap_err();
        assert!(error.to_string().contains("was left as it is") && std::error::Error::source(&error).is_none(), "{error}");
        let error = ClusterKey::load(&dir.path().join("none"), 0).err().unwrap();
        assert!(error.to_string().contains("`radic key FILE` makes"), "{error}");
        assert!(matches!(key.create(&path), Err(KeyError::Io { .. })), "an existing key was overwritten");
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        ClusterKey::generate().unwrap().create(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(ClusterKey::load(&path, my_uid(dir.path())), Err(KeyError::Mode { mode: 0o640, .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(ClusterKey::load(&path, my_uid(dir.path()) + 1), Err(KeyError::Owner { .. })));
    }

    #[test]
    fn damaged_key_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let good = format!("{FIRST_LINE}\n{}\n", "ab".repeat(32));
        let path = dir.path().join("key");
        let texts = [
            "".into(),
            good.replace("v1", "v2"),
            good.replacen("ab", "ag", 1),
            good[..40].into(),
            format!("{good}x\n"),
            "é".repeat(99),
        ];
        for text in texts {
            fs::write(&path, &text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(matches!(ClusterKey::load(&path, my_uid(dir.path())), Err(KeyError::Format { .. })), "{text:?}");
        }
    }
}
