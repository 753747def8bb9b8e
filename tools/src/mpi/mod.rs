//! What RADIC knows about MPI libraries before a program runs: which one it uses, and the environment that makes it suit.
//!
//! [`plan`] reads the executable ([`recognise`]), chooses the settings of its library ([`settings`]) and lists the variables of another
//! launcher that must not reach the ranks. `radic run --explain` prints the [`Plan`].
//!
//! What it aims at: the ranks talk over TCP only and share no memory, one thread does so, and more ranks than cores get on. Where each
//! setting comes from is in the setting's `why`.

pub(crate) mod elf;
mod environment;
mod explain;
mod flavour;
pub(crate) mod loader;
mod recognise;
mod settings;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::path::Path;

use serde::Serialize;

pub(crate) use environment::Environment;
pub(crate) use flavour::{Choice, Flavour};
pub(crate) use recognise::{MpiError, Recognition};
pub(crate) use settings::{Removed, Setting};

/// What was recognised, and what follows from it for the ranks' environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Plan {
    /// The library.
    pub(crate) recognition: Recognition,
    /// What RADIC sets, and what it would set if the user had not decided otherwise.
    pub(crate) settings: Vec<Setting>,
    /// Inherited variables that the ranks do not get.
    pub(crate) removed: Vec<Removed>,
}

impl Plan {
    /// The variables to set, with placeholders ([`radic_wire::job::placeholder`]) for the node to replace.
    pub(crate) fn templates(&self) -> Vec<(String, String)> {
        let ours = self.settings.iter().filter(|setting| setting.overridden.is_none());
        ours.map(|setting| (setting.name.to_owned(), setting.value.clone().into_owned())).collect()
    }

    /// Whether the ranks must not inherit the variable `name`.
    pub(crate) fn removes(&self, name: &OsStr) -> bool {
        self.removed.iter().any(|removed| name == removed.name.as_str())
    }
}

/// Decides about `program` (a path) in `environment`.
pub(crate) fn plan(choice: Choice, program: &Path, environment: &Environment<'_>) -> Result<Plan, MpiError> {
    let recognition = recognise::recognise(choice, program, environment)?;
    let library = recognition.library.as_deref().map(Path::new);
    let settings = settings::settings(recognition.flavour, library, environment);
    let removed = settings::removed(recognition.flavour, environment);
    Ok(Plan { recognition, settings, removed })
}
