use std::os::unix::fs::symlink;
use std::process::{Command as Process, Stdio};

use super::*;

/// Every command that is not hidden, by the name of its page.
fn names(command: &Command, prefix: &str, all: &mut Vec<String>) {
    let name = if prefix.is_empty() { command.get_name().to_owned() } else { format!("{prefix}-{}", command.get_name()) };
    all.push(name.clone());
    for sub in shown(command).filter(|sub| sub.get_name() != "help") {
        names(sub, &name, all);
    }
}

/// The lines between a section's heading and the next.
fn section<'a>(page: &'a Page, heading: &str) -> Vec<&'a str> {
    let begin = |line: &&str| *line == format!(".SH {heading}") || *line == format!(".SH \"{heading}\"");
    page.text.lines().skip_while(|line| !begin(line)).skip(1).take_while(|line| !line.starts_with(".SH")).collect()
}

#[test]
fn every_command_has_a_page_with_an_example_and_exit_codes() {
    let mut expected = Vec::new();
    names(&crate::Cli::command(), "", &mut expected);
    let mut expected: Vec<String> = expected.iter().map(|name| format!("{name}.1")).collect();
    expected.push("radicd.8".to_owned());
    let pages = pages().unwrap();
    assert_eq!(pages.iter().map(|page| page.file.clone()).collect::<Vec<_>>(), expected);
    for page in &pages {
        let examples = section(page, "EXAMPLES").join("\n").replace("\\-", "-");
        assert!(examples.contains("radic"), "{} has no example: {examples:?}", page.file);
        let codes = section(page, "EXIT STATUS");
        assert!(codes.contains(&"\\fB2\\fR"), "{} has no exit codes: {codes:?}", page.file);
        let name = section(page, "NAME");
        assert!(name.iter().any(|line| line.contains(" \\- ")), "{} has no name that `whatis` could find: {name:?}", page.file);
        assert!(!section(page, "SEE ALSO").is_empty(), "{} stands alone", page.file);
    }
}

#[test]
fn pages_of_commands_that_show_progress_say_how_it_looks() {
    let pages = pages().unwrap();
    for name in sections::PROGRESS {
        let page = pages.iter().find(|page| page.file == format!("{name}.1")).unwrap_or_else(|| panic!("{name} has no page"));
        let environment = section(page, "ENVIRONMENT").join("\n").replace("\\_", "_");
        assert!(environment.contains("NO_COLOR"), "{environment}");
    }
}

#[test]
fn the_daemon_s_page_has_every_variable() {
    let pages = pages().unwrap();
    let page = pages.iter().find(|page| page.file == "radicd.8").unwrap();
    let text = section(page, "ENVIRONMENT").join("\n");
    let settings = Program::Radicd.command();
    let variables: Vec<_> = settings.get_arguments().filter_map(|argument| argument.get_env()?.to_str()).collect();
    assert!(variables.len() > 10, "{variables:?}");
    for variable in variables {
        assert!(text.contains(&format!("\\fB{variable}\\fR")), "{variable} is missing in {text}");
    }
}

#[test]
fn no_page_is_of_a_hidden_command() {
    let pages = pages().unwrap();
    for hidden in ["radic-man.1", "radic-bench-subject.1", "radic-help.1"] {
        assert!(pages.iter().all(|page| page.file != hidden), "{hidden}");
    }
}

/// Runs a shell that only looks whether it understands `text`; `None`: there is no such shell on this machine.
fn understands(shell: &str, text: &str) -> Option<bool> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("completions");
    fs::write(&file, text).unwrap();
    match Process::new(shell).arg("-n").arg(&file).stderr(Stdio::inherit()).status() {
        Ok(status) => Some(status.success()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => panic!("{shell}: {error}"),
    }
}

#[test]
fn each_shell_understands_its_completions() {
    for program in [Program::Radic, Program::Radicd] {
        for (shell, name) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
            let text = completions(shell, program);
            assert!(text.contains("check-config") || text.contains("cluster"), "{name} is told nothing of {program:?}: {text}");
            let understood = understands(name, &text);
            assert_ne!(understood, Some(false), "{name} does not understand the completions of {program:?}");
            assert!(understood.is_some() || name != "bash", "bash is not installed: nothing was tried");
        }
    }
    assert_eq!(understands("bash", "if true; then\n"), Some(false), "the check finds nothing");
}

#[test]
fn pages_are_written_to_a_folder_that_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let man = dir.path().join("a/man");
    write(&man).unwrap();
    let page = fs::read_to_string(man.join("radic-run.1")).unwrap();
    assert!(page.contains(".TH RADIC-RUN 1") || page.contains(".TH \"RADIC-RUN\" \"1\""), "{}", &page[..page.len().min(500)]);
    fs::write(dir.path().join("file"), "").unwrap();
    let error = write(&dir.path().join("file")).unwrap_err();
    assert!(format!("{error:#}").contains("file"), "{error:#}");
}

/// In a folder that others may write to, as those of /usr/local are for a group.
#[test]
fn no_page_is_written_through_a_link() {
    let place = tempfile::tempdir().unwrap();
    let (dir, victim) = (place.path().join("man"), place.path().join("victim"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::write(&victim, "precious").unwrap();
    symlink(&victim, dir.join("radic.1")).unwrap();
    for _ in 0..2 {
        write(&dir).unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        let page = std::fs::symlink_metadata(dir.join("radic.1")).unwrap();
        assert_eq!((page.is_file(), page.permissions().mode() & 0o777), (true, 0o644));
    }
}
