//! The environment that the ranks would get from the user.

use std::ffi::{OsStr, OsString};

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
    pub(super) fn is_explicit(&self, name: &str) -> bool {
        self.explicit.iter().any(|(known, _)| known == name)
    }
}
