//! A plan as text, for `radic run --explain`. Its JSON form is the plan itself.

use std::fmt;

use super::{Flavour, Plan};

/// Width of the column of settings; longer ones stand alone on their line.
const COLUMN: usize = 52;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recognition = &self.recognition;
        writeln!(f, "program    {}", recognition.program)?;
        writeln!(f, "library    {} ({})", name(recognition.flavour), recognition.because)?;
        if let Some(library) = &recognition.library {
            writeln!(f, "           {library}")?;
        }
        let (kept, ours): (Vec<_>, Vec<_>) = self.settings.iter().partition(|setting| setting.overridden.is_some());
        section(
            f,
            "RADIC sets (each node fills in what is in braces):",
            ours.iter().map(|s| (format!("{}={}", s.name, s.value), s.why)),
        )?;
        let yours = kept.iter().filter_map(|s| {
            let by = s.overridden.as_ref()?;
            let how = if by.by_flag { "by --env" } else { "in the environment" };
            Some((format!("{}={}", by.name, by.value), format!("{how}, instead of {}={}: {}", s.name, s.value, s.why)))
        });
        section(f, "You set, and it wins:", yours)?;
        section(f, "Not passed on (--env brings them back):", self.removed.iter().map(|r| (r.name.clone(), r.why)))
    }
}

fn section<W: fmt::Display>(f: &mut fmt::Formatter<'_>, title: &str, lines: impl Iterator<Item = (String, W)>) -> fmt::Result {
    let mut lines = lines.peekable();
    if lines.peek().is_some() {
        writeln!(f, "\n{title}")?;
    }
    for (what, why) in lines {
        if what.len() > COLUMN {
            writeln!(f, "  {what}\n  {:COLUMN$}  {why}", "")?;
        } else {
            writeln!(f, "  {what:COLUMN$}  {why}")?;
        }
    }
    Ok(())
}

fn name(flavour: Flavour) -> &'static str {
    match flavour {
        Flavour::Mpich => "MPICH",
        Flavour::Intel => "Intel MPI",
        Flavour::OpenMpi => "Open MPI 4",
        Flavour::OpenMpi5 => "Open MPI 5",
        Flavour::None => "none",
        Flavour::Unknown => "unknown, so the settings of all",
    }
}
