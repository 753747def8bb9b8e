//! The documents are true where that can be looked up: links lead somewhere, files and names that are mentioned exist, pictures are made from their descriptions.

use std::fs;
use std::path::{Path, PathBuf};

/// Most words of ARCHITECTURE.md: what an engineer reads in ten minutes, pictures included.
const WORDS: usize = 3_000;
/// Where a path in a document begins.
const ROOTS: [&str; 16] = [
    "ckpt",
    "contrib",
    "docs",
    "fuzz",
    "observer",
    "pmi",
    "preload",
    "protector",
    "scripts",
    "tests",
    "tools",
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
        "pmi",
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

/// What stands between backticks in a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn is_path(text: &str) -> bool {
    let first = text.split('/').next().unwrap_or_default();
    text.contains('/') && ROOTS.contains(&first) && !text.contains([' ', '*', '{', '<', '#', ':'])
}

/// The code in a file or a folder.
fn code(path: &Path) -> String {
    if path.is_file() {
        return read(path);
    }
    fs::read_dir(path).expect("a folder").map(|file| code(&file.expect("its name").path())).collect()
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

/// A type, or a function of one: `Gate::of`. Not `EAGAIN`.
fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.contains(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == ':' || c == '_')
}

/// What a document says that is not so: of each path, and of each name in a line that says where it is.
fn mistakes(document: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (line, at) in read(&root().join(document)).lines().zip(1..) {
        let paths: Vec<&str> = quoted(line).filter(|text| is_path(text)).collect();
        let missing = paths.iter().filter(|path| !root().join(path).exists());
        found.extend(missing.map(|path| format!("{document}:{at}: there is no {path}: name the file that it has become")));
        let code: String =
            paths.iter().map(|path| root().join(path)).filter(|path| path.exists()).map(|path| code(&path)).collect();
        let names = quoted(line).filter(|text| is_name(text) && !paths.is_empty());
        for name in names {
            if let Some(part) = name.split("::").find(|part| !has_word(&code, part)) {
                found.push(format!("{document}:{at}: no file that this line names has {part} of {name}: say where it is now"));
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
fn files_and_names_of_the_map_and_the_glossary_exist() {
    let found: Vec<String> = ["ARCHITECTURE.md", "docs/glossary.md"].into_iter().flat_map(mistakes).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
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
