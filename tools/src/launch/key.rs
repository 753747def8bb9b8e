//! The cluster's key, and hosts that do not have it yet.
//!
//! What a launcher says goes through whatever has started its agents, and not all of that is encrypted. So an order carries a proof that the launcher
//! has the key ([`Proof`]), and never the key. A host that has the key checks the proof. A host that has none asks for the key, and
//! [`Bearer`](super::bearer::Bearer) decides: over ssh, or if the user trusts the network, the key is sent. Otherwise it lies in the user's home folder
//! while the cluster starts, for hosts that share that folder.

use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use radic_protector::folder::Folder;
use radic_wire::key::ClusterKey;
use serde::{Deserialize, Serialize};

/// What the key of proofs is derived for: nothing else that is made of the cluster's key has these bytes.
const CONTEXT: &str = "radic 2026-11 proof of a launcher";
/// Random bytes of a proof.
const NONCE: usize = 16;
/// Longest key file that is read, in bytes.
const KEY_FILE: u64 = 256;

/// The contents of a key file.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct KeyText(String);

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyText(..)")
    }
}

impl KeyText {
    /// Reads a key file that is this user's, and no other's to read.
    pub(crate) fn read(path: &Path) -> Result<KeyText> {
        ClusterKey::load(path, nix::unistd::geteuid().as_raw())?;
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(KeyText(text))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// A new proof, for an order of this version.
    pub(crate) fn prove(&self, version: &str) -> Result<Proof> {
        let mut bytes = [0; NONCE];
        getrandom::fill(&mut bytes).context("no random bytes from the system")?;
        let nonce: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let code = self.code(&nonce, version).to_hex().to_string();
        Ok(Proof { nonce, code })
    }

    /// Whether the proof was made with this key, for this version. The comparison takes the same time whichever byte differs.
    pub(crate) fn fits(&self, proof: &Proof, version: &str) -> bool {
        blake3::Hash::from_hex(&proof.code).is_ok_and(|code| code == self.code(&proof.nonce, version))
    }

    fn code(&self, nonce: &str, version: &str) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&blake3::derive_key(CONTEXT, self.as_bytes()));
        // With the length before it no other pair gives the same bytes.
        hasher.update(&(nonce.len() as u64).to_le_bytes());
        hasher.update(nonce.as_bytes());
        hasher.update(version.as_bytes());
        hasher.finalize()
    }
}

/// Shows that the launcher that gives an order has the key, and tells nothing of the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Proof {
    nonce: String,
    code: String,
}

impl Proof {
    /// The name of the key's copy in the home folder.
    pub(super) fn file(&self) -> String {
        format!("key-for-{}", self.nonce)
    }

    /// The key that the launcher has laid into the home folder, where this host sees the same one. The key file `missing` is the one that is not there.
    pub(crate) fn key_at_home(&self, missing: &Path) -> Result<KeyText> {
        let read = || -> Result<KeyText> {
            let mut text = String::new();
            let file = Folder::open(&home_folder()?)?.read(&self.file())?;
            file.take(KEY_FILE).read_to_string(&mut text)?;
            Ok(KeyText(text))
        };
        read().with_context(|| {
            format!(
                "the cluster's key is not in {} on this host, and is not sent, because what starts the nodes does not encrypt: put the key there \
                 (mode 600), have the hosts share the home folder, or give --send-key if the network is trusted",
                missing.display()
            )
        })
    }
}

/// The folder of the user for what is of no cluster.
pub(super) fn home_folder() -> Result<PathBuf> {
    Ok(std::env::home_dir().context("HOME is not set")?.join(".radic"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_good_for_its_key_and_version_only_and_shows_nothing_of_the_key() {
        let key = KeyText("radic cluster key v1\nabcdef\n".to_owned());
        let proof = key.prove("1").unwrap();
        assert!(key.fits(&proof, "1"));
        assert!(!key.fits(&proof, "2"));
        assert!(!KeyText("radic cluster key v1\nabcdee\n".to_owned()).fits(&proof, "1"));
        assert!(!key.fits(&Proof { nonce: "00".to_owned(), ..proof.clone() }, "1"));
        assert!(!key.fits(&Proof { code: String::new(), ..proof.clone() }, "1"));
        assert_ne!(key.prove("1").unwrap(), proof, "each has a number of its own");
        let shown = format!("{key:?} {}", serde_json::to_string(&proof).unwrap());
        assert!(!shown.contains("abcdef"), "{shown}");
    }
}
