//! What RADIC knows about MPI libraries before a program runs: which one it uses, and the environment that makes it suit.
//!
//! [`plan`] reads the executable ([`recognise`]), chooses the settings of its library ([`settings`]) and lists the variables of another
//! launcher that must not reach the ranks. `radic run --explain` prints the [`Plan`].
//!
//! What it aims at: the ranks talk over TCP only and share no memory, one thread does so, and more ranks than cores get on. Where each
//! setting comes from is in the setting's `why`.

pub(crate) mod elf;
mod explain;
pub(crate) mod loader;
mod recognise;
mod settings;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use serde::Serialize;

pub(crate) use recognise::{MpiError, Recognition};
pub(crate) use settings::{Removed, Setting};

/// `--mpi`: what the user says about the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Choice {
    /// Read it from the executable
    #[default]
    Auto,
    /// MPICH, or a library with its ABI
    Mpich,
    /// Intel MPI
    Intel,
    /// Open MPI 4
    Openmpi,
    /// Open MPI 5
    Openmpi5,
    /// No MPI: leave the environment alone
    None,
}

/// The kinds of libraries that need different settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Flavour {
    /// MPICH and what is derived from it.
    Mpich,
    /// Intel MPI.
    Intel,
    /// Open MPI 4.
    OpenMpi,
    /// Open MPI 5.
    OpenMpi5,
    /// No MPI, says the user.
    None,
    /// Cannot be told from the executable: a script, an interpreter, a static library. It gets the settings of all: they do no harm.
    Unknown,
}

/// The environment that the ranks would get from the user.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Environment<'a> {
    /// That of the `radic` command.
    pub(crate) inherited: &'a [(OsString, OsString)],
    /// `--env`, which wins.
    pub(crate) explicit: &'a [(String, String)],
}

impl<'a> Environment<'a> {
    /// The value of a variable.
    pub(crate) fn get(&self, name: &str) -> Option<&'a OsStr> {
        let explicit = self.explicit.iter().rev().find(|(known, _)| known == name).map(|(_, value)| OsStr::new(value));
        explicit.or_else(|| self.inherited.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_os_str()))
    }

    /// Whether the variable was given by `--env`.
    fn is_explicit(&self, name: &str) -> bool {
        self.explicit.iter().any(|(known, _)| known == name)
    }
}

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
