//! Manual pages and completions of `radic` and `radicd`, made from the very definitions by which their command lines are parsed.
//!
//! `radic man DIR` (hidden: packages call it) writes a page for each command that a user may call; `radic completions SHELL` prints what a
//! shell is to be told. Both are the same for the same build, wherever and whenever they run.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory, ValueEnum};
use clap_mangen::Man;
use radic_protector::folder::Folder;
use roff::{Roff, bold, roman};

use crate::format::{print, report};

mod sections;

use sections::shown;

/// Of which program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Program {
    /// The command
    Radic,
    /// The daemon
    Radicd,
}

/// For which shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// GNU Bash
    Bash,
    /// Z shell
    Zsh,
    /// fish
    Fish,
}

/// A manual page.
#[derive(Debug)]
struct Page {
    /// Like `radic-run.1`.
    file: String,
    /// What troff makes a page of.
    text: String,
}

impl Program {
    /// The definition of its command line, with the version that the program itself shows.
    fn command(self) -> Command {
        match self {
            Program::Radic => crate::Cli::command(),
            Program::Radicd => {
                radic_protector::config::Settings::command().version(radic_version::SHORT).long_version(radic_version::long())
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Program::Radic => "radic",
            Program::Radicd => "radicd",
        }
    }

    /// Commands are in section 1 of the manual, daemons in section 8.
    fn section(self) -> &'static str {
        match self {
            Program::Radic => "1",
            Program::Radicd => "8",
        }
    }
}

/// All may read a page.
const READABLE: u32 = 0o644;

/// `radic man`: writes every page to a folder, which is made if need be.
pub(crate) fn write(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("{} cannot be made", dir.display()))?;
    let pages = pages().context("a manual page cannot be made")?;
    // It may be another user's, or of a group: each page is a new file, and no link that is in its place is followed.
    let folder = Folder::open_foreign(dir)?;
    for Page { file, text } in &pages {
        let written = || -> Result<()> {
            let mut page = folder.replace(file)?;
            page.write_all(text.as_bytes())?;
            Ok(page.set_permissions(Permissions::from_mode(READABLE))?)
        };
        written().with_context(|| format!("{} cannot be written", dir.join(file).display()))?;
    }
    report(&format!("radic: {} manual pages are in {}", pages.len(), dir.display()));
    Ok(())
}

/// `radic completions`: prints what the shell is to be told.
pub(crate) fn complete(shell: Shell, program: Program) -> io::Result<()> {
    print(&completions(shell, program))
}

fn completions(shell: Shell, program: Program) -> String {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut program.command(), program.name(), &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn pages() -> io::Result<Vec<Page>> {
    let mut pages = Vec::new();
    for program in [Program::Radic, Program::Radicd] {
        let mut command = program.command().disable_help_subcommand(true);
        command.build();
        add_pages(&command, program, None, &mut pages)?;
    }
    Ok(pages)
}

/// The page of a command, and then those of its subcommands.
fn add_pages(command: &Command, program: Program, parent: Option<&str>, pages: &mut Vec<Page>) -> io::Result<()> {
    let name = full_name(command);
    let text = page(command, program, parent)?;
    pages.push(Page { file: format!("{name}.{}", program.section()), text });
    shown(command).try_for_each(|sub| add_pages(sub, program, Some(&name), pages))
}

/// The name under which a command has a page: `radic-cluster-start`.
fn full_name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn page(command: &Command, program: Program, parent: Option<&str>) -> io::Result<String> {
    let (name, section) = (full_name(command), program.section());
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .section(section)
        .date(radic_version::DATE)
        .source(concat!("RADIC ", env!("CARGO_PKG_VERSION")))
        .manual("RADIC Manual");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if shown(command).next().is_some() {
        man.render_subcommands_section(&mut text)?;
    }
    let help = Help::of(command);
    let mut roff = Roff::new();
    render_examples(&mut roff, &examples(command, &help));
    if !help.notes.is_empty() {
        roff.control("SH", ["NOTES"]);
        render_paragraphs(&mut roff, &help.notes);
    }
    let (codes, more) = sections::exit_status(&name);
    roff.control("SH", ["EXIT STATUS"]);
    render_paragraphs(&mut roff, &[help.codes, more].concat());
    render_list(&mut roff, &codes);
    render_section(&mut roff, "ENVIRONMENT", &sections::environment(command, &name));
    render_section(&mut roff, "FILES", &sections::files(&name));
    roff.control("SH", ["SEE ALSO"]);
    roff.text(vec![roman(sections::see_also(command, &name, parent))]);
    roff.to_writer(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// What `--help` says behind the options, in its parts.
#[derive(Debug, Default)]
struct Help {
    /// Lines of commands.
    examples: Vec<String>,
    /// Paragraphs about exit codes.
    codes: Vec<String>,
    /// All other paragraphs.
    notes: Vec<String>,
}

impl Help {
    fn of(command: &Command) -> Help {
        let mut help = Help::default();
        let text =
            command.get_after_long_help().or_else(|| command.get_after_help()).map(ToString::to_string).unwrap_or_default();
        for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
            let (first, rest) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
            let first = first.trim();
            if matches!(first, "Example:" | "Examples:") {
                // The lines are indented by two.
                help.examples.extend(rest.lines().map(|line| line.strip_prefix("  ").unwrap_or(line).to_owned()));
            } else if first.starts_with("The exit code") || first.starts_with("Exit code and") {
                help.codes.push(paragraph.to_owned());
            } else if !first.starts_with("Exit codes:") {
                // Those are a list, and the page has its own.
                help.notes.push(paragraph.to_owned());
            }
        }
        help
    }
}

/// A command's own examples; of one that has none, as it only has subcommands, the first of each of these.
fn examples(command: &Command, help: &Help) -> Vec<String> {
    if !help.examples.is_empty() {
        return help.examples.clone();
    }
    shown(command).filter_map(|sub| examples(sub, &Help::of(sub)).into_iter().next()).collect()
}

fn render_examples(roff: &mut Roff, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    roff.control("SH", ["EXAMPLES"]);
    roff.control("RS", ["4"]);
    roff.control("nf", []);
    for line in lines {
        roff.text(vec![roman(line.clone())]);
    }
    roff.control("fi", []);
    roff.control("RE", []);
}

fn render_paragraphs(roff: &mut Roff, paragraphs: &[String]) {
    for paragraph in paragraphs {
        roff.control("PP", []);
        for line in paragraph.lines() {
            roff.text(vec![roman(line.trim())]);
        }
    }
}

fn render_section(roff: &mut Roff, heading: &str, entries: &[(String, String)]) {
    if !entries.is_empty() {
        roff.control("SH", [heading]);
        render_list(roff, entries);
    }
}

fn render_list(roff: &mut Roff, entries: &[(String, String)]) {
    for (name, text) in entries {
        roff.control("TP", []);
        roff.text(vec![bold(name.clone())]);
        roff.text(vec![roman(text.lines().map(str::trim).collect::<Vec<_>>().join(" "))]);
    }
}

#[cfg(test)]
mod tests;
