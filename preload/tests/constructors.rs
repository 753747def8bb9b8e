//! The library under a program, when hooks are called before its constructor has run, and after that.
//!
//! redhook finds a function at its first call. So a call of another library's constructor finds it, and after ours nothing is looked up any more.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Called before our constructor: a call fails as it does without us, in a forked child, too.
const EARLY: &str = r#"
    #include <errno.h>
    #include <sys/socket.h>
    #include <sys/wait.h>
    #include <unistd.h>
    __attribute__((constructor)) static void early(void) {
        char byte;
        int status = 1;
        if (recv(-1, &byte, 1, 0) != -1 || errno != EBADF) _exit(10);
        pid_t child = fork();
        if (child == 0) _exit(write(-1, &byte, 1) == -1 && errno == EBADF ? 0 : 11);
        if (waitpid(child, &status, 0) != child || status != 0) _exit(12);
    }
"#;

/// What the program calls, a child between fork and its end included.
const PROGRAM: &str = r#"
    #include <errno.h>
    #include <poll.h>
    #include <sys/socket.h>
    #include <sys/uio.h>
    #include <sys/wait.h>
    #include <unistd.h>
    int main(void) {
        char byte;
        int status = 1;
        pid_t child = fork();
        if (child == 0) _exit(poll(0, 0, 0) == 0 && close(-1) == -1 ? 0 : 13);
        if (waitpid(child, &status, 0) != child || status != 0) return 14;
        return send(-1, &byte, 1, 0) == -1 && readv(-1, 0, 0) == -1 && errno == EBADF ? 0 : 15;
    }
"#;

/// The library that Cargo has built for these tests: beside the directory of this test.
fn library() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    here.ancestors().map(|dir| dir.join("libradic.so")).find(|path| path.exists()).expect("libradic.so is built with its tests")
}

fn compile(source: &str, to: &Path, flags: &[&str]) {
    let text = to.with_extension("c");
    fs::write(&text, source).unwrap();
    let status = Command::new("cc").args(flags).arg("-o").arg(to).arg(&text).status().unwrap();
    assert!(status.success(), "{source}");
}

/// Runs the program; the linker tells on standard error what it does.
fn run(dir: &Path) -> Output {
    let (early, program) = (dir.join("early.so"), dir.join("program"));
    compile(EARLY, &early, &["-shared", "-fPIC"]);
    compile(PROGRAM, &program, &[]);
    // Of the libraries that are loaded the last one runs its constructor first.
    let preload = format!("{}:{}", library().display(), early.display());
    let output = Command::new(program).env("LD_PRELOAD", preload).env("LD_DEBUG", "files,symbols").output().unwrap();
    assert!(output.status.success(), "{:?}: 10 to 12 are of the early library, 13 to 15 of the program", output.status);
    output
}

#[test]
fn calls_before_our_constructor_work_and_after_it_nothing_is_looked_up() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path());
    let told = String::from_utf8_lossy(&output.stderr);
    let init = |library: &str| {
        let line = told.lines().position(|line| line.contains("calling init:") && line.ends_with(library));
        line.unwrap_or_else(|| panic!("the linker does not tell of {library}"))
    };
    assert!(init("early.so") < init("libradic.so"), "the other constructor is to run first");

    // A hook's name is found in our library. Only our own look-up of what is behind it comes to the C library.
    let control = told.lines().position(|line| line.contains("transferring control")).unwrap();
    let asked = |name: &str, line: &str| line.contains(&format!("symbol={name};")) && line.contains("libc.so.6");
    let mut names = 0;
    radic::hooks::resolve(|name, _| {
        let lines: Vec<_> = told.lines().enumerate().filter(|(_, line)| asked(name, line)).map(|(number, _)| number).collect();
        assert!(lines.iter().any(|line| *line < control), "{name} is not looked up by the constructor");
        assert!(lines.iter().all(|line| *line < control), "{name} is looked up after it");
        names += 1;
    });
    assert!(names > 60, "all hooks: {names}");
}
