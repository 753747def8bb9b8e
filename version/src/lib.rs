//! Which release of RADIC a program is of, which commit it was built from, and which wire protocol it speaks.
//!
//! A crate of its own, on which only the programs depend: a new commit compiles `radic` and `radicd` again, and nothing else.
#![forbid(unsafe_code)]

use std::sync::LazyLock;

/// The release, like `0.1.0`.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// The commit, abbreviated to 12 digits, that was checked out when this was built; `unknown` if nothing said so (`build.rs` tells what is asked).
pub const COMMIT: &str = env!("RADIC_BUILD_COMMIT");
/// The day of SOURCE_DATE_EPOCH, else that of the commit, like `2026-11-25`; `unknown` if there is neither.
pub const DATE: &str = env!("RADIC_BUILD_DATE");

/// What `-V` prints behind the program's name: release, commit and day.
pub const SHORT: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("RADIC_BUILD"), ")");

/// What `--version` prints behind the program's name: the same, and the wire protocol, which must be the same on all nodes.
pub fn long() -> &'static str {
    static LONG: LazyLock<String> = LazyLock::new(|| format!("{SHORT}\nwire protocol {}", radic_wire::PROTOCOL_VERSION));
    LONG.as_str()
}

/// What decides about commit and day: compiled once more, to be asked by tests.
#[cfg(test)]
#[allow(dead_code)]
#[path = "../build.rs"]
mod script;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        let cases = [(0, "1970-01-01"), (951_782_400, "2000-02-29"), (951_868_800, "2000-03-01"), (1_000_000_000, "2001-09-09")];
        let more = [
            (1_795_219_199, "2026-11-20"),
            (1_735_689_599, "2024-12-31"),
            (4_107_542_399, "2100-02-28"),
            (4_107_542_400, "2100-03-01"),
        ];
        for (seconds, expected) in cases.into_iter().chain(more) {
            assert_eq!(script::day(seconds), expected, "{seconds}");
        }
        assert_eq!(script::day(u64::MAX), "9999-12-31");
    }

    #[test]
    fn a_commit_is_a_hash_and_perhaps_a_time() {
        let hash = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(script::parse(&format!("{hash} 17\n")), Some((hash.to_owned(), Some(17))));
        assert_eq!(script::parse(hash), Some((hash.to_owned(), None)));
        // What git archive has not filled in, and what is none.
        for none in ["$Format:%H %ct$", "", "master", "0123"] {
            assert_eq!(script::parse(none), None, "{none:?}");
        }
    }

    #[test]
    fn the_long_version_names_all() {
        let protocol = format!("wire protocol {}", radic_wire::PROTOCOL_VERSION);
        let date = if DATE == "unknown" { "" } else { DATE };
        for part in [RELEASE, COMMIT, date, &protocol] {
            assert!(long().contains(part), "{:?} lacks {part:?}", long());
        }
    }

    #[test]
    fn commit_and_day_look_like_it() {
        let digits = |text: &str, count| text.len() == count && text.chars().all(|c| c.is_ascii_hexdigit());
        assert!(COMMIT == "unknown" || digits(COMMIT, 12), "{COMMIT}");
        let day: Vec<&str> = DATE.split('-').collect();
        assert!(DATE == "unknown" || matches!(day[..], [y, m, d] if digits(y, 4) && digits(m, 2) && digits(d, 2)), "{DATE}");
    }
}
