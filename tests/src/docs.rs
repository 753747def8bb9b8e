//! The documents are true where that can be looked up: links lead somewhere, files exist, names are defined where a document says they are,
//! constants have the values that it gives, pictures are made from their descriptions.

use std::fs;
use std::path::{Path, PathBuf};

/// Most words of ARCHITECTURE.md: what an engineer reads in ten minutes, pictures included.
const WORDS: usize = 3_000;
/// Where a path in a document begins.
const ROOTS: [&str; 20] = [
    "ckpt",
    "contrib",
    "docs",
    "fuzz",
    "observer",
    "packaging",
    "pmi",
    "pmix",
    "preload",
    "protector",
    "radicd",
    "scripts",
    "tests",
    "tools",
    "version",
    "web",
    "wire",
    "Makefile",
    "Cargo.toml",
    ".ci",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the repository").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every document of the repository.
fn documents() -> Vec<PathBuf> {
    let folders = [
        "",
        "docs",
        "ckpt",
        "fuzz",
        "observer",
        "packaging",
        "pmi",
        "pmix",
        "preload",
        "protector",
        "tests",
        "tests/sim",
        "tools",
        "web",
        "wire",
        "contrib",
    ];
    let files = folders.iter().flat_map(|folder| fs::read_dir(root().join(folder)).expect("a folder of documents"));
    let paths = files.map(|file| file.expect("its name").path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "md")).collect()
}

/// What stands between backticks in a line, each with the text up to the next one.
fn quoted(line: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = line.split('`').collect();
    parts[1..].chunks(2).map(|pair| (pair[0], pair.get(1).copied().unwrap_or_default())).collect()
}

fn is_path(text: &str) -> bool {
    let first = text.split('/').next().unwrap_or_default();
    text.contains('/') && ROOTS.contains(&first) && !text.contains([' ', '*', '{', '<', '#', ':'])
}

/// The code in a file or a folder, which may have pictures, too.
fn code(path: &Path) -> String {
    if path.is_file() {
        return String::from_utf8_lossy(&fs::read(path).expect("a file")).into_owned();
    }
    fs::read_dir(path).expect("a folder").map(|file| code(&file.expect("its name").path())).collect()
}

fn is_part_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The text before and after each place where a line has a word.
fn around<'a>(line: &'a str, word: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let places = line.match_indices(word).map(|(at, _)| (&line[..at], &line[at + word.len()..]));
    places.filter(|(before, after)| !before.ends_with(is_part_of_name) && !after.starts_with(is_part_of_name))
}

/// Whether code defines something of this name: in Rust, or a function of Python.
fn defines(code: &str, name: &str) -> bool {
    const KINDS: [&str; 10] =
        ["fn ", "struct ", "enum ", "trait ", "const ", "static ", "mod ", "type ", "macro_rules! ", "def "];
    let is_here = |(before, _): (&str, &str)| KINDS.iter().any(|kind| before.ends_with(kind));
    code.lines().any(|line| around(line, name).any(is_here))
}

/// Whether code has this variant of this enum, formatted as rustfmt does.
fn has_variant(code: &str, of: &str, variant: &str) -> bool {
    let mut lines = code.lines().skip_while(|line| !around(line, of).any(|(before, _)| before.ends_with("enum ")));
    let indent = lines.next().map_or(0, |line| line.len() - line.trim_start().len());
    let end = " ".repeat(indent) + "}";
    let starts = |line: &str| {
        line.len() - line.trim_start().len() == indent + 4 && around(line, variant).any(|(before, _)| before.trim().is_empty())
    };
    lines.take_while(|line| *line != end).any(starts)
}

/// Whether code has what this name names: `Gate`, `Gate::of`, `Role::Spare`, `recv`, `hooks!`.
fn has(code: &str, name: &str) -> bool {
    let name = name.trim_end_matches('!');
    let Some((of, last)) = name.rsplit_once("::") else { return defines(code, name) };
    let of = of.rsplit("::").next().unwrap_or(of);
    let is_implemented = |line: &str| line.trim_start().starts_with("impl") && around(line, of).next().is_some();
    // `NAME = "text",` is a variant of an enum that a macro makes of it.
    let is_named = |line: &str| around(line, last).any(|(before, after)| before.trim().is_empty() && after.starts_with(" = \""));
    let is_of = defines(code, of) || code.lines().any(is_implemented);
    has_variant(code, of, last) || is_of && (defines(code, last) || code.lines().any(is_named))
}

/// A type, or a function of one: `Gate::of`. Not `EAGAIN`, nor `MPI_Init`.
fn is_type(text: &str) -> bool {
    !text.split("::").next().is_some_and(|first| first.contains('_'))
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.contains(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| is_part_of_name(c) || c == ':')
}

/// Any name of code, if what follows it says where it is. Many words in lower case are names of other things.
fn is_said_to_be_in(text: &str, after: &str) -> bool {
    let is_name = text.starts_with(is_part_of_name) && text.trim_end_matches('!').chars().all(|c| is_part_of_name(c) || c == ':');
    is_name && matches!(after, " in " | " of ")
}

/// The value that a document gives for a constant: `NAME`, 32 bytes.
fn value<'a>(text: &str, after: &'a str) -> Option<&'a str> {
    let is_constant = text.len() > 1 && text.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let value = after.strip_prefix(", ").filter(|_| is_constant)?;
    let end = value.find(|c: char| !c.is_ascii_digit() && c != ',').unwrap_or(value.len());
    Some(value[..end].trim_end_matches(',')).filter(|value| !value.is_empty())
}

fn has_value(code: &str, name: &str, value: &str) -> bool {
    let values = code.lines().flat_map(|line| around(line, name)).filter(|(before, _)| before.ends_with("const "));
    let mut values = values.filter_map(|(_, after)| Some(after.split_once("= ")?.1.trim_end_matches(';').replace('_', "")));
    values.any(|found| found == value.replace(',', ""))
}

/// What a document says that is not so: of each path, and of each name that is said to be in a file. In a map each line says where its types are.
fn mistakes(document: &str) -> Vec<String> {
    let is_map = !document.starts_with("docs/") || document == "docs/glossary.md";
    let mut found = Vec::new();
    for (line, at) in read(&root().join(document)).lines().zip(1..) {
        let quoted = quoted(line);
        let paths: Vec<&str> = quoted.iter().map(|(text, _)| *text).filter(|text| is_path(text)).collect();
        let missing = paths.iter().filter(|path| !root().join(path).exists());
        found.extend(missing.map(|path| format!("{document}:{at}: there is no {path}: name the file that it has become")));
        let of = |path: &str| Some(root().join(path)).filter(|path| path.exists()).map(|path| code(&path)).unwrap_or_default();
        let all: String = paths.iter().map(|path| of(path)).collect();
        for (n, (text, after)) in quoted.iter().enumerate().filter(|_| !paths.is_empty()) {
            // What is said to be in a file is in that one.
            let path = quoted.get(n + 1).map(|(path, _)| *path).filter(|path| is_path(path) && is_said_to_be_in(text, after));
            if (path.is_some() || is_map && is_type(text)) && !has(&path.map_or_else(|| all.clone(), of), text) {
                found.push(format!("{document}:{at}: no file that this line names defines {text}: say where it is now"));
            }
            if let Some(value) = value(text, after).filter(|value| !has_value(&all, text, value)) {
                found.push(format!("{document}:{at}: {text} is not {value} in a file that this line names"));
            }
        }
    }
    found
}

#[test]
fn architecture_is_short() {
    let words = read(&root().join("ARCHITECTURE.md")).split_whitespace().count();
    assert!(words <= WORDS, "ARCHITECTURE.md has {words} words, and may have {WORDS}: move what is not a map into docs/");
}

#[test]
fn files_and_names_that_documents_mention_exist() {
    let named = |path: &Path| {
        let name = path.strip_prefix(root()).expect("a path of the repository").to_str().expect("a name of letters").to_owned();
        let is_of_all = !name.contains('/') || name.starts_with("docs/");
        // Paths in a crate's README begin at the crate; a change log names what there was.
        (is_of_all && name != "CHANGELOG.md").then_some(name)
    };
    let found: Vec<String> = documents().iter().filter_map(|path| named(path)).flat_map(|name| mistakes(&name)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn what_is_only_mentioned_is_not_defined() {
    let code = [
        "/// See Gate::shut, and Lock.",
        "pub enum Gate {",
        "    Open,",
        "    Shut(u64),",
        "}",
        "impl Gate {",
        "    pub fn of() -> Lock {",
        "        Open",
        "    }",
        "}",
        "pub const MANY: usize = 1_024;",
    ];
    let code = &code.join("\n");
    for name in ["Gate", "Gate::Shut", "Gate::of", "gate::Gate::of", "of", "MANY"] {
        assert!(has(code, name), "{name}");
    }
    for name in ["Lock", "Gate::shut", "Gate::MAN", "Lock::of", "Open", "Gat", "Door::Open"] {
        assert!(!has(code, name), "{name}");
    }
    assert_eq!(value("MANY", ", 1,024 at once"), Some("1,024"));
    assert!(has_value(code, "MANY", "1,024") && !has_value(code, "MANY", "24"));
    assert!(value("MANY", ", or none").is_none() && value("Gate", ", 32").is_none());
}

/// `make` takes one without a rule for done.
#[test]
fn what_the_makefile_lists_is_there() {
    let text = read(&root().join("Makefile"));
    let listed: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix(".PHONY:")).flat_map(str::split_whitespace).collect();
    assert!(listed.len() > 10, "{listed:?}");
    let has_rule = |name: &str| text.lines().any(|line| line.split_once(':').is_some_and(|(target, _)| target == name));
    let missing: Vec<&str> = listed.into_iter().filter(|name| !has_rule(name)).collect();
    assert!(missing.is_empty(), "the Makefile has no rule for {}", missing.join(", "));
}

#[test]
fn every_link_within_the_repository_leads_somewhere() {
    let mut broken = Vec::new();
    for document in documents() {
        let text = read(&document);
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { document.clone() } else { document.with_file_name("").join(file) };
            let anchors = |text: &str| text.lines().filter(|line| line.starts_with('#')).map(slug).any(|slug| slug == anchor);
            if !path.exists() || !anchor.is_empty() && !anchors(&read(&path)) {
                broken.push(format!("{}: {target} leads nowhere", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The anchor of a heading.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn pictures_are_made_from_their_descriptions() {
    let folder = root().join("docs/pictures");
    let files = fs::read_dir(&folder).expect("docs/pictures").map(|file| file.expect("its name").path());
    let descriptions: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "txt")).collect();
    assert!(!descriptions.is_empty(), "{} has no description of a picture", folder.display());
    for description in descriptions {
        let picture = description.with_extension("svg");
        assert!(read(&picture).contains(&read(&description)), "{}: run `make pictures`", picture.display());
    }
}
