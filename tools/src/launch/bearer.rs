//! How hosts that do not have the cluster's key get it.

use std::io::Write;

use anyhow::{Context, Result};
use radic_protector::folder::Folder;

use crate::format::report;

use super::key::{KeyText, Proof, home_folder};
use super::protocol::Go;

/// How a host that has no key gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// By its session, which is encrypted or of a trusted network.
    Session,
    /// By the home folder, if the host has the same one.
    Home,
}

/// Gives the key to hosts that have none.
pub(crate) struct Bearer {
    key: KeyText,
    delivery: Delivery,
    /// The name of the copy in the home folder.
    file: String,
    /// The copy, from the first question until this goes.
    copy: Option<AtHome>,
}

impl Bearer {
    pub(crate) fn new(key: KeyText, proof: &Proof, delivery: Delivery) -> Bearer {
        Bearer { key, delivery, file: proof.file(), copy: None }
    }

    /// What a host is told that asks for the key.
    pub(crate) fn answer(&mut self) -> Go {
        match self.delivery {
            Delivery::Session => Go::Key(self.key.clone()),
            Delivery::Home => {
                if self.copy.is_none() {
                    match AtHome::lay(&self.file, &self.key) {
                        Ok(copy) => self.copy = Some(copy),
                        // The host says what can be done.
                        Err(error) => report(&format!("radic: the key cannot be laid into the home folder: {error:#}")),
                    }
                }
                Go::KeyAtHome
            }
        }
    }
}

/// A copy of the key in the home folder. It goes with this.
struct AtHome {
    folder: Folder,
    file: String,
}

impl AtHome {
    fn lay(file: &str, key: &KeyText) -> Result<AtHome> {
        let copy = AtHome { folder: Folder::make_all(&home_folder()?)?, file: file.to_owned() };
        let mut written = copy.folder.create_new(file)?;
        written.write_all(key.as_bytes()).and_then(|()| written.sync_all()).context("it cannot be written")?;
        Ok(copy)
    }
}

impl Drop for AtHome {
    fn drop(&mut self) {
        if let Err(error) = self.folder.remove(&self.file) {
            report(&format!("radic: a copy of the key stays: {error}"));
        }
    }
}
