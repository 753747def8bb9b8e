//! What is found about a program or the machine.

use serde::Serialize;

/// Names that are listed before "and others".
const LISTED: usize = 6;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Level {
    /// The program cannot be protected.
    Stop,
    /// It can, but for what the finding says.
    Limit,
    /// Good to know.
    Note,
}

/// Something about the program or the machine.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// A short name, the same in every version.
    pub(super) name: &'static str,
    pub(super) about: String,
    /// The way out.
    pub(super) remedy: String,
}

impl Finding {
    pub(super) fn new(level: Level, name: &'static str, about: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { level, name, about: about.into(), remedy: remedy.into() }
    }
}

/// The first few of many names.
pub(super) fn listed(names: &[&str]) -> String {
    let more = if names.len() > LISTED { ", and others" } else { "" };
    names[..names.len().min(LISTED)].join(", ") + more
}
