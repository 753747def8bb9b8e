//! What a watcher knows of a death.

use std::fmt;
use std::time::Duration;

/// What a watcher knew when it confirmed a death. It shows afterwards whether the watcher was right.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// How long the suspect had not been heard when it became one. Zero if this member did not watch it.
    pub silent: Duration,
    /// Time from suspicion to confirmation.
    pub took: Duration,
    /// The suspect's machine took the connection of the own probe.
    pub reached: bool,
    /// There is no listener at its address any more, or one of another boot.
    pub refused: bool,
    /// Witnesses that were asked.
    pub asked: usize,
    /// Witnesses that say that they get no answer either.
    pub denied: usize,
    /// How late this member itself was called at worst in that time.
    pub late: Duration,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Evidence { silent, took, asked, denied, late, .. } = self;
        let probe = match (self.refused, self.reached) {
            (true, _) => "there is no listener any more",
            (false, true) => "its machine took the connection, it does not answer",
            (false, false) => "its machine does not answer",
        };
        write!(f, "{probe}; silent for {} ms before, probed for {} ms; ", silent.as_millis(), took.as_millis())?;
        write!(
            f,
            "{denied} of {asked} witnesses say so, too, the others nothing; we were late by at most {} ms",
            late.as_millis()
        )
    }
}
