//! Says which commit this is, and of which day. In this order:
//!
//! 1. `RADIC_COMMIT` in the environment, for packagers who know better;
//! 2. the file `commit` beside this one, if `git archive` has filled it in: a tarball;
//! 3. git, if this is the top of a work tree of it;
//! 4. `unknown`.
//!
//! The day is that of `SOURCE_DATE_EPOCH` if it is set (seconds since 1970), else that of the commit. Nothing else that may differ from one
//! build to the next is recorded.

use std::path::Path;
use std::process::Command;

const UNKNOWN: &str = "unknown";
/// Digits of a commit that are printed.
const DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=commit");
    println!("cargo::rerun-if-env-changed=RADIC_COMMIT");
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let (commit, seconds) = from_environment().or_else(from_tarball).or_else(from_git).unwrap_or((UNKNOWN.into(), None));
    let epoch = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.trim().parse().ok());
    let date = epoch.or(seconds).map_or(UNKNOWN.into(), day);
    let commit: String = commit.chars().take(DIGITS).collect();
    let both = match (commit.as_str(), date.as_str()) {
        (UNKNOWN, UNKNOWN) => "commit unknown".to_owned(),
        (UNKNOWN, date) => format!("commit unknown, {date}"),
        (commit, UNKNOWN) => commit.to_owned(),
        (commit, date) => format!("{commit} {date}"),
    };
    println!("cargo::rustc-env=RADIC_BUILD={both}");
    println!("cargo::rustc-env=RADIC_BUILD_COMMIT={commit}");
    println!("cargo::rustc-env=RADIC_BUILD_DATE={date}");
}

pub(crate) type Commit = (String, Option<u64>);

fn is_commit(text: &str) -> bool {
    text.len() >= DIGITS && text.chars().all(|c| c.is_ascii_hexdigit())
}

/// "HASH SECONDS", as git writes them.
pub(crate) fn parse(text: &str) -> Option<Commit> {
    let mut words = text.split_whitespace();
    let commit = words.next().filter(|word| is_commit(word))?;
    Some((commit.to_owned(), words.next().and_then(|word| word.parse().ok())))
}

fn from_environment() -> Option<Commit> {
    parse(&std::env::var("RADIC_COMMIT").ok()?)
}

fn from_tarball() -> Option<Commit> {
    parse(&std::fs::read_to_string("commit").ok()?)
}

fn from_git() -> Option<Commit> {
    // A tarball that was unpacked within another project's work tree is of another commit than that.
    let (top, here) = (Path::new("..").canonicalize().ok()?, git(&["rev-parse", "--show-toplevel"])?);
    if Path::new(&here).canonicalize().ok()? != top {
        return None;
    }
    // What changes with each commit: HEAD, the branch that it names, and the file that branches are packed into. Git writes the log of HEAD last.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) =
            git(&["rev-parse", "--path-format=absolute", "--git-path", name]).filter(|path| Path::new(path).exists())
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    parse(&git(&["log", "-1", "--format=%H %ct"])?)
}

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// The day of so many seconds after 1970, like 2026-11-25.
pub(crate) fn day(seconds: u64) -> String {
    let (mut left, mut year) = (seconds / 86_400, 1970);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = |year| if leap(year) { 366 } else { 365 };
    // Bounded: a build script of the year 10,000 may ask for more.
    while left >= days(year) && year < 9999 {
        left -= days(year);
        year += 1;
    }
    let lengths = [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths.into_iter().take(11) {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    format!("{year:04}-{month:02}-{:02}", (left + 1).min(31))
}
