//! Wrong calls of `radic`: each error says what is wrong, where, and what to do next. No cluster is needed; `tests/tests/wrong.rs` has those that want one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The command line, the exit code, what must be said. `text` is a file of text, `empty` an empty file, `short` an image that was cut off, `dir` an empty folder;
/// nothing is in `none`.
type Wrong = (&'static [&'static str], i32, &'static [&'static str]);

/// What is said where there is no cluster.
const NO_CLUSTER: &[&str] = &["no cluster in", "/none", "radic cluster start", "--cluster DIR or RADIC_CLUSTER"];

const WRONG: &[Wrong] = &[
    (&["nodes"], 125, NO_CLUSTER),
    (&["jobs"], 125, NO_CLUSTER),
    (&["status"], 125, NO_CLUSTER),
    (&["events"], 125, NO_CLUSTER),
    (&["top"], 125, NO_CLUSTER),
    (&["spare", "list"], 125, NO_CLUSTER),
    (&["run", "-n", "1", "--", "true"], 125, NO_CLUSTER),
    (&["attach", "4f3c"], 125, NO_CLUSTER),
    (&["kill", "4f3c"], 125, NO_CLUSTER),
    (&["checkpoint", "4f3c"], 125, NO_CLUSTER),
    (&["report", "4f3c"], 125, NO_CLUSTER),
    (&["replay", "4f3c", "0"], 125, NO_CLUSTER),
    (&["log", "show", "4f3c", "0"], 125, NO_CLUSTER),
    (&["inject", "kill-node", "n1"], 125, NO_CLUSTER),
    // They need the cluster's key, too; that it is not there follows from there being no cluster.
    (&["suspend", "4f3c", "new"], 125, NO_CLUSTER),
    (&["resume", "dir"], 125, NO_CLUSTER),
    (&["web"], 125, NO_CLUSTER),
    (&["web", "--token"], 125, &["no cluster in", "RADIC_KEY to a copy of its key"]),
    (&["run", "-n", "1", "--suspend-to", "new", "--suspend-on", "USR1", "--", "true"], 125, NO_CLUSTER),
    (&["cluster", "stop"], 125, &["no cluster in", "/none", "--dir DIR"]),
    (&["ckpt", "inspect", "none"], 125, &["none: No such file", "name an image"]),
    (&["ckpt", "inspect", "text"], 125, &["text: this is not a checkpoint image", "radic ckpt save"]),
    (&["ckpt", "inspect", "empty"], 125, &["empty: the image is truncated", "another copy"]),
    (&["ckpt", "inspect", "dir"], 125, &["dir: this is not a checkpoint image", "radic ckpt save"]),
    (&["ckpt", "restart", "none"], 125, &["none: No such file", "name an image"]),
    (&["ckpt", "restart", "text"], 125, &["text: this is not a checkpoint image", "radic ckpt save"]),
    (&["ckpt", "restart", "short"], 125, &["short: the image is truncated", "another copy"]),
    (&["ckpt", "restart", "dir"], 125, &["dir: ", "directory", "name an image"]),
    (&["ckpt", "merge", "text"], 125, &["text: this is not a checkpoint image", "radic ckpt save"]),
    (&["ckpt", "save", "0"], 125, &["there is no process 0", "radic ckpt run"]),
    (&["ckpt", "save", "1"], 125, &["process 1 does not run under the checkpoint library", "radic ckpt run -- PROGRAM"]),
    (&["ckpt", "save", "1", "--parent", "text"], 125, &["--parent needs --mode incremental"]),
    (&["ckpt", "run", "--", "./none"], 127, &["./none cannot be executed: No such file", "radic doctor -- ./none"]),
    (&["ckpt", "run", "--", "./text"], 126, &["./text cannot be executed: Permission denied", "radic doctor -- ./text"]),
    (&["ckpt", "run", "--interval", "0", "--", "true"], 2, &["'0' for '--interval <S>'", "like 30 or 0.2", "--help"]),
    (&["key", "text"], 125, &["cluster key text: File exists", "name another file"]),
    (&["key", "none/key"], 125, &["cluster key none/key: No such file", "in a folder that exists"]),
    (&["doctor", "--", "./none"], 1, &["./none: No such file", "check the path"]),
    (&["doctor", "--", "./text"], 1, &["text may not be executed", "chmod +x"]),
    (&["doctor", "--", "./dir"], 1, &["dir is a folder", "give the program itself"]),
    (&["explain", "999"], 125, &["999 is no exit code", "radic explain"]),
    (&["explain", "reprotected"], 125, &["\"reprotected\"", "did you mean re-protected or", "`radic explain` lists all"]),
    (&["web", "--for", "1x"], 2, &["'1x' for '--for <TIME>'", "90s, 30m, 24h or 30d", "--help"]),
    (&["top", "--interval", "0"], 2, &["'0' for '--interval <S>'", "0.1 to 3600 seconds", "--help"]),
    (&["replay", "4f3c", "one"], 2, &["'one' for '<RANK>'", "--help"]),
    (
        &["inject", "kill-node", "n1", "--at-event", "lvie"],
        2,
        &["'lvie' for '--at-event <EVENT>'", "did you mean live", "radic explain"],
    ),
    (&["completions", "tcsh"], 2, &["'tcsh' for '<SHELL>'", "bash, zsh, fish"]),
    (&["cluster", "start"], 2, &["not provided", "--nodes <N>", "--help"]),
    (&["cluster", "start", "--nodes", "0"], 2, &["'0' for '--nodes <N>'", "1..=1024", "--help"]),
    (&["cluster", "start", "--hosts", "dir/none"], 125, &["--hosts: cannot read dir/none", "names with commas"]),
    (&["cluster", "start", "--hosts", ","], 125, &["--hosts names no host", "names with commas"]),
    (&["cluster", "start", "--scheduler", "pbs"], 125, &["no job of PBS", "PBS_JOBID is not set", "qsub"]),
    (
        &["cluster", "start", "--nodes", "2", "--http", "192.0.2.1"],
        125,
        &["--http 192.0.2.1:7118", "cannot share a port", "leave the address out"],
    ),
    (&["bench", "launch", "--program", "none"], 125, &["--program none", "No such file", "make deps"]),
    (&["bench", "ckpt", "--svg", "none/plot.svg"], 125, &["none/plot.svg cannot be written", "a folder that is there"]),
    (&["spare", "add"], 2, &["unrecognized subcommand 'add'", "--help"]),
    (&["no-such-command"], 2, &["unrecognized subcommand 'no-such-command'", "--help"]),
];

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
    write("text", b"neither an image nor a key\n");
    write("empty", b"");
    write("short", b"RADICKPT");
    fs::set_permissions(dir.path().join("text"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::create_dir(dir.path().join("dir")).unwrap();
    // The command, and the library that `radic ckpt` looks for beside it. Another process writes them: see `Home::copy` in ckpt.rs.
    let library = std::env::current_exe().unwrap().with_file_name("libradic_ckpt_preload.so");
    let copied = Command::new("cp").arg(library).arg(env!("CARGO_BIN_EXE_radic")).arg(dir.path()).status().unwrap();
    assert!(copied.success());
    dir
}

/// What it says, on either stream, and its exit code.
fn call(dir: &Path, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(dir.join("radic"));
    command.args(args).current_dir(dir).env("RADIC_CLUSTER", dir.join("none")).stdin(Stdio::null());
    for name in ["RADIC_KEY", "PBS_JOBID", "SLURM_JOB_ID"] {
        command.env_remove(name);
    }
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn each_error_says_what_where_and_what_next() {
    let dir = folder();
    assert!(WRONG.len() >= 40);
    let mut wrong = Vec::new();
    for (args, code, parts) in WRONG {
        let (ended, said) = call(dir.path(), args);
        let missing: Vec<_> = parts.iter().filter(|part| !said.contains(**part)).collect();
        if ended != Some(*code) || !missing.is_empty() {
            wrong.push(format!("radic {}: code {ended:?}, not {code}; {missing:?} is not in: {said}", args.join(" ")));
        }
        // One line, but where the parser shows the usage or the doctor its findings.
        if *code >= 100 && said.lines().count() != 1 {
            wrong.push(format!("radic {}: more than one line: {said}", args.join(" ")));
        }
        // What to call instead may name the folder once more.
        if said.matches(&*dir.path().join("none").to_string_lossy()).count() > 2 {
            wrong.push(format!("radic {}: a path again and again: {said}", args.join(" ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(!dir.path().join("none").exists() && !dir.path().join("new").exists(), "a wrong call has made something");
}
