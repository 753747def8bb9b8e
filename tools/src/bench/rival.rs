//! Other tools that save a running program: CRIU, or gdb's gcore, which at least stops it and writes its memory.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program that saves others from outside.
pub(super) enum Rival {
    Criu(PathBuf),
    Gcore(PathBuf),
}

impl Rival {
    /// The best that works here; and why it is not CRIU, or none at all.
    pub(super) fn find() -> (Option<Self>, Option<String>) {
        Self::find_in(&std::env::var_os("PATH").unwrap_or_default())
    }

    fn find_in(path: &OsStr) -> (Option<Self>, Option<String>) {
        let why = match in_path(path, "criu") {
            None => "CRIU is not in PATH".to_owned(),
            Some(criu) => match Command::new(&criu).arg("check").stdin(Stdio::null()).output() {
                Ok(output) if output.status.success() => return (Some(Self::Criu(criu)), None),
                Ok(output) => {
                    let said = String::from_utf8_lossy(&output.stderr);
                    let said = said.lines().find(|line| line.contains("Error")).unwrap_or("it says no more").trim();
                    format!("CRIU ({}) does not work on this machine: {said}", criu.display())
                }
                Err(error) => format!("CRIU ({}) cannot be executed: {error}", criu.display()),
            },
        };
        match in_path(path, "gcore") {
            Some(gcore) => (Some(Self::Gcore(gcore)), Some(why)),
            None => (None, Some(format!("{why}, nor is gcore (gdb)"))),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Criu(_) => "CRIU",
            Self::Gcore(_) => "gcore",
        }
    }

    /// Saves a process, which goes on, into a folder.
    pub(super) fn save(&self, pid: u32, folder: &Path) -> Command {
        let pid = pid.to_string();
        let (program, args): (&Path, Vec<OsString>) = match self {
            Self::Criu(criu) => {
                let options = ["dump", "--leave-running", "--shell-job", "--tree", &pid, "--images-dir"];
                (criu, options.iter().map(OsString::from).chain([folder.into()]).collect())
            }
            Self::Gcore(gcore) => (gcore, vec!["-o".into(), folder.join("core").into(), pid.into()]),
        };
        let mut command = Command::new(program);
        command.args(args);
        command
    }
}

fn in_path(path: &OsStr, name: &str) -> Option<PathBuf> {
    std::env::split_paths(path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn criu_is_taken_if_it_works_else_gcore_and_the_reason_is_told() {
        let folder = tempfile::tempdir().unwrap();
        // Another process writes them: a descriptor of this one may be in a child that another test has just forked, and the script would be busy.
        let script = |name: &str, text: &str| {
            let write = r##"printf '#!/bin/sh\n%s\n' "$1" >"$0" && chmod 755 "$0""##;
            let written = Command::new("sh").args(["-c", write]).arg(folder.path().join(name)).arg(text).status().unwrap();
            assert!(written.success());
        };
        let find = || Rival::find_in(folder.path().as_os_str());
        assert!(matches!(find(), (None, Some(why)) if why == "CRIU is not in PATH, nor is gcore (gdb)"));
        script("gcore", "exit 0");
        assert!(matches!(find(), (Some(Rival::Gcore(_)), Some(why)) if why == "CRIU is not in PATH"));
        script("criu", "echo 'Error (criu/kerndat.c): kerndat initialization failed' >&2; exit 1");
        assert!(matches!(find(), (Some(Rival::Gcore(_)), Some(why)) if why.ends_with("kerndat initialization failed")));
        script("criu", "[ \"$1\" = check ]");
        assert!(matches!(find(), (Some(Rival::Criu(_)), None)));
    }
}
