//! What is shown while something takes its time: on standard error, if that is a terminal, and never on standard output.

use std::cell::RefCell;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::format::report;

/// Time between two pictures of something that only waits.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Things that are done one after the other.
    Steps,
    Bytes,
}

/// A line that says how far something is; it is gone when this is dropped. No thread draws it: the work tells how far it is, so the line stands still when the work does.
#[derive(Debug)]
pub(crate) struct Progress {
    is_shown: bool,
    /// Of what was begun last.
    bar: RefCell<ProgressBar>,
}

impl Progress {
    /// Shown only if standard error is a terminal that can take lines back, and nobody has asked for JSON.
    pub(crate) fn new(json: bool) -> Progress {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let is_shown = !json && !is_dumb && !ProgressDrawTarget::stderr().is_hidden();
        Progress { is_shown, bar: RefCell::new(ProgressBar::hidden()) }
    }

    /// Never shown.
    pub(crate) fn hidden() -> Progress {
        Progress::new(true)
    }

    /// Whether anybody sees it: what only it needs need not be asked for.
    pub(crate) fn is_shown(&self) -> bool {
        self.is_shown
    }

    /// Begins with something. None: nobody knows how much it is.
    pub(crate) fn begin(&self, what: &str, unit: Unit, total: Option<u64>) {
        self.end();
        let target = if self.is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar =
            ProgressBar::with_draw_target(total, target).with_style(style(unit, total.is_some())).with_message(what.to_owned());
        bar.tick();
        *self.bar.borrow_mut() = bar;
    }

    /// What is being done now.
    pub(crate) fn say(&self, what: &str) {
        self.bar.borrow().set_message(what.to_owned());
    }

    /// So much more is done.
    pub(crate) fn advance(&self, by: u64) {
        self.bar.borrow().inc(by);
    }

    /// So much is done.
    pub(crate) fn reach(&self, position: u64) {
        self.bar.borrow().set_position(position);
    }

    /// It still waits.
    pub(crate) fn tick(&self) {
        self.bar.borrow().tick();
    }

    /// A line of text that stays, above the line that does not.
    pub(crate) fn report(&self, text: &str) {
        self.bar.borrow().suspend(|| report(text));
    }

    /// The line is taken back: what follows is for good.
    pub(crate) fn end(&self) {
        self.bar.borrow().finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

/// Colours are left out where NO_COLOR asks for that, or the terminal has none.
fn style(unit: Unit, is_known: bool) -> ProgressStyle {
    // A test sees that each of them is one.
    let style = ProgressStyle::with_template(template(unit, is_known)).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.progress_chars("=> ")
}

fn template(unit: Unit, is_known: bool) -> &'static str {
    match (unit, is_known) {
        (Unit::Steps, true) => "radic: {wide_msg} [{bar:20.green}] {pos}/{len}  {elapsed}",
        (Unit::Steps, false) => "radic: {wide_msg} {pos} done  {elapsed}",
        (Unit::Bytes, true) => {
            "radic: {wide_msg} [{bar:10.green}] {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {elapsed}"
        }
        (Unit::Bytes, false) => "radic: {wide_msg} {binary_bytes}  {elapsed}",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_style_is_one() {
        for unit in [Unit::Steps, Unit::Bytes] {
            for is_known in [true, false] {
                ProgressStyle::with_template(template(unit, is_known)).unwrap();
            }
        }
    }

    /// Tests have no terminal at standard error, or not one that they may write to.
    #[test]
    fn what_is_hidden_counts_and_shows_nothing() {
        let progress = Progress::hidden();
        assert!(!progress.is_shown());
        progress.begin("something", Unit::Bytes, Some(10));
        progress.advance(4);
        let counted = |progress: &Progress| (progress.bar.borrow().position(), progress.bar.borrow().length());
        assert_eq!(counted(&progress), (4, Some(10)));
        progress.begin("something else", Unit::Steps, None);
        assert_eq!(counted(&progress), (0, None));
    }
}
