//! `radic explain`: what an exit code of `radic run`, or the name of an event, means, and what can be done about it.

use anyhow::{Result, bail};
use clap::Args;
use radic_wire::event::EventName;
use serde::Serialize;

use crate::format::{Table, print, print_json};

pub(crate) mod codes;
mod events;

/// Names that an error suggests, at most.
const SUGGESTIONS: usize = 3;
/// How much alike two names must be to be suggested, from 0 to 1.
const ALIKE: f64 = 0.7;

/// Flags of `radic explain`.
#[derive(Args)]
#[command(after_help = "Examples:\n  radic explain 113\n  radic explain re-protected\n  radic explain --json\n\n\
    Exit codes are those of `radic run`, `radic attach` and `radic resume`; events are those of `radic events`. No cluster is needed.")]
pub(crate) struct ExplainArgs {
    /// An exit code (0 to 255), or the name of an event; without it, all are listed
    #[arg(value_name = "CODE|EVENT")]
    what: Option<String>,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

/// What is explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    ExitCode,
    Event,
}

/// The answer.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Explanation {
    kind: Kind,
    name: String,
    means: String,
    next: String,
}

/// `radic explain`.
pub(crate) fn run(args: &ExplainArgs) -> Result<()> {
    match (&args.what, args.json) {
        (None, true) => print_json(&all()),
        (None, false) => Ok(print(&table(&all()))?),
        (Some(what), json) => {
            let found = find(what)?;
            if json { print_json(&found) } else { Ok(print(&in_words(&found))?) }
        }
    }
}

fn find(what: &str) -> Result<Explanation> {
    if let Ok(number) = what.parse::<i64>() {
        let Ok(code) = u8::try_from(number) else {
            bail!("{what} is no exit code: they are 0 to 255; `radic explain` lists those of `radic run`")
        };
        return Ok(explain_code(code));
    }
    match EventName::ALL.iter().find(|event| event.as_str() == what.to_lowercase()) {
        Some(event) => Ok(explain_event(*event)),
        None => bail!("{what:?} is neither an exit code (0 to 255) nor an event{}; `radic explain` lists all", hint(what)),
    }
}

/// ": did you mean ...?", if any name of an event is like this one; else nothing.
pub(crate) fn hint(name: &str) -> String {
    let name = name.to_lowercase();
    let mut near: Vec<(f64, &str)> = EventName::ALL
        .iter()
        .map(|event| event.as_str())
        .map(|known| if known.contains(&name) { (1.0, known) } else { (strsim::jaro_winkler(known, &name), known) })
        .filter(|(likeness, _)| *likeness >= ALIKE && !name.is_empty())
        .collect();
    near.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let names: Vec<&str> = near.iter().take(SUGGESTIONS).map(|(_, known)| *known).collect();
    if names.is_empty() { String::new() } else { format!(": did you mean {}?", names.join(" or ")) }
}

fn explain_event(event: EventName) -> Explanation {
    let text = events::of(event);
    let (means, next) = text.map_or(("", ""), |text| (text.means, text.next));
    Explanation { kind: Kind::Event, name: event.as_str().to_owned(), means: means.to_owned(), next: next.to_owned() }
}

fn explain_code(code: u8) -> Explanation {
    let explanation = |means: String, next: String| Explanation { kind: Kind::ExitCode, name: code.to_string(), means, next };
    if let Some(text) = codes::CODES.iter().find(|text| text.code == i32::from(code)) {
        return explanation(text.means.to_owned(), text.next.to_owned());
    }
    let own = "the program has exited with this code, or has given it to MPI_Abort".to_owned();
    match codes::signal(code) {
        Some(signal) => explanation(
            format!("Signal {} ({signal}) ended a rank; or {own}.", signal as i32),
            if codes::is_fault(signal) {
                "The last line on standard error names the rank. A protected rank is brought back after a signal, and the job ends when it dies of it again \
                 and again: the program has a bug. Run it with a debugger, or with `ulimit -c unlimited` for a core file."
            } else {
                "The last line on standard error names the rank. A person, a batch system or a limit of the machine has sent the signal."
            }
            .to_owned(),
        ),
        None => explanation(
            format!("{}.", own.replacen("the", "The", 1)),
            "What it means the program's own documentation tells; the last line on standard error names the rank.".to_owned(),
        ),
    }
}

/// Every code that means something by itself, and every event.
fn all() -> Vec<Explanation> {
    let codes = codes::CODES.iter().filter_map(|text| Some(explain_code(u8::try_from(text.code).ok()?)));
    let others = Explanation {
        kind: Kind::ExitCode,
        name: "128+n".to_owned(),
        means: "Signal n ended a rank.".to_owned(),
        next: "`radic explain` with the number names the signal.".to_owned(),
    };
    codes.chain([others]).chain(EventName::ALL.iter().map(|event| explain_event(*event))).collect()
}

fn table(all: &[Explanation]) -> String {
    let section = |kind, heading: &str| {
        let mut table = Table::new(&[heading, "MEANING"]);
        for explanation in all.iter().filter(|explanation| explanation.kind == kind) {
            table.row(vec![explanation.name.clone(), explanation.means.clone()]);
        }
        table.text()
    };
    format!(
        "{}\nAny other code is the program's own.\n\n{}\n`radic explain CODE` and `radic explain EVENT` say what to do.\n",
        section(Kind::ExitCode, "EXIT CODE"),
        section(Kind::Event, "EVENT")
    )
}

fn in_words(explanation: &Explanation) -> String {
    let what = match explanation.kind {
        Kind::ExitCode => "exit code",
        Kind::Event => "event",
    };
    format!("{what} {}: {}\n{}\n", explanation.name, explanation.means, explanation.next)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use radic_wire::job::exit_code;

    use super::*;

    /// An event that is in `EventName` and has no explanation fails here.
    #[test]
    fn every_event_is_explained_once() {
        let explained: Vec<&str> = events::EVENTS.iter().map(|text| text.event.as_str()).collect();
        let known: Vec<&str> = EventName::ALL.iter().map(|event| event.as_str()).collect();
        assert_eq!(explained, known);
        for event in EventName::ALL {
            let Explanation { means, next, .. } = explain_event(*event);
            assert!(means.ends_with('.') && next.ends_with('.'), "{event:?} is explained by {means:?}, {next:?}");
        }
    }

    #[test]
    fn every_exit_code_of_radic_is_explained_in_order() {
        let explained: Vec<i32> = codes::CODES.iter().map(|text| text.code).collect();
        assert!(explained.is_sorted_by(|a, b| a < b), "{explained:?}");
        for code in exit_code::ALL.into_iter().chain([0, 1, codes::USAGE, 128 + 9]) {
            assert!(explained.contains(&code), "{code} is not explained");
        }
        for code in 0..=u8::MAX {
            let Explanation { means, next, .. } = explain_code(code);
            assert!(means.ends_with('.') && next.ends_with('.'), "{code} is explained by {means:?}, {next:?}");
        }
    }

    #[test]
    fn codes_of_signals_name_them() {
        assert!(explain_code(139).means.contains("SIGSEGV"));
        assert!(explain_code(143).next.contains("sent the signal"));
        assert!(explain_code(42).means.starts_with("The program"));
        assert!(explain_code(255).means.starts_with("The program"), "there is no signal 127");
    }

    #[test]
    fn what_is_unknown_is_an_error_that_names_near_ones() {
        let error = |what| find(what).unwrap_err().to_string();
        assert!(error("reprotected").contains("did you mean re-protected"), "{}", error("reprotected"));
        assert!(error("suspct").contains("did you mean suspect"), "{}", error("suspct"));
        assert!(!error("xyzzy").contains("did you mean") && error("xyzzy").contains("lists all"), "{}", error("xyzzy"));
        assert!(error("256").contains("0 to 255") && error("-1").contains("0 to 255") && error("").contains("neither"));
        assert_eq!(find("Checkpoint-Failed").unwrap(), explain_event(EventName::CheckpointFailed));
    }

    #[test]
    fn the_list_has_each_once_and_the_json_all_of_it() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|explanation| explanation.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        assert_eq!(all.len(), codes::CODES.len() + 1 + EventName::ALL.len());
        let text = table(&all);
        assert!(names.iter().all(|name| text.lines().any(|line| line.starts_with(name))), "{text}");
        let json = serde_json::to_value(&all).unwrap();
        assert_eq!(json[0]["kind"], "exit-code");
        assert!(json.as_array().unwrap().iter().all(|entry| ["name", "means", "next"].iter().all(|key| entry[key].is_string())));
    }
}
