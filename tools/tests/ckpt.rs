//! `radic ckpt` on a real program: increments, restarts, merging, and what is said when something is missing.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The command and the library that it preloads, side by side, and images.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Home(tempfile::tempdir().unwrap());
        let library = "libradic_ckpt_preload.so";
        let built = std::env::current_exe().unwrap().with_file_name(library);
        home.copy(&built, library);
        home.copy(Path::new(env!("CARGO_BIN_EXE_radic")), "radic");
        home
    }

    /// Another process writes the copy: a program that this process has open for writing could not be executed ("Text file busy") while a child that another test's
    /// thread has just forked still has that descriptor, too.
    fn copy(&self, from: &Path, name: &str) {
        assert!(Command::new("cp").arg(from).arg(self.path(name)).status().unwrap().success());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `radic ckpt`. A hang ends the test: `timeout` is a part of every Debian.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.arg("60").arg(self.path("radic")).arg("ckpt").args(args).current_dir(self.0.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.output(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Runs something that must fail, with code 125; what it says.
    fn error(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert_eq!(output.status.code(), Some(125), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// A program that waits for a line, works a little, and prints how long that took.
    fn program(&self) -> Program {
        let radic = self.path("radic");
        let subject = [radic.to_str().unwrap(), "bench", "subject", "--mib", "32", "--dirty-percent", "1", "--passes", "3"];
        let mut program = Program::start(self.command(&[&["run", "--"][..], &subject].concat()));
        assert_eq!(program.line(), "ready");
        program
    }

    /// Restarts an image, and lets the program come to its end.
    fn restart(&self, image: &str) {
        let mut program = Program::start(self.command(&["restart", image]));
        program.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let line = program.line();
        assert!(line.parse::<u64>().is_ok(), "{image}: {line:?}");
        assert!(program.child.wait().unwrap().success(), "{image}");
    }
}

struct Program {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "it ended: {}", self.complaints());
        line.trim_end().to_owned()
    }

    fn complaints(&mut self) -> String {
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// The process of `radic ckpt run` or of the saved program: `timeout`'s child.
    fn pid(&self) -> String {
        let pid = self.child.id();
        fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap().trim().to_owned()
    }

    fn end(mut self) {
        self.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        self.line();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // `timeout` passes it on to its group, in which `radic ckpt run` and the program are.
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

#[test]
fn a_chain_is_saved_inspected_merged_and_restarted() {
    let home = Home::new();
    let program = home.program();
    let pid = program.pid();
    let first = home.json(&["save", &pid, "-o", "first", "--mode", "incremental", "--json"]);
    let second = home.json(&["save", &pid, "-o", "second", "--mode", "incremental", "--parent", "first", "--json"]);
    let packed = home.json(&["save", &pid, "-o", "packed", "--mode", "stop", "--compress", "auto", "--json"]);
    assert_eq!((&second["parent"], &packed["parent"]), (&first["id"], &Value::from("0000000000000000")));
    assert_eq!(second["bytes"], size(&home.path("second")));
    assert!(size(&home.path("first")) > 32 << 20, "all memory is in the first image");
    assert!(size(&home.path("second")) < 4 << 20, "the second holds only what has changed");
    program.end();

    let inspected = home.json(&["inspect", "second", "--json"]);
    assert_eq!(inspected["ancestors"][0]["id"], first["id"]);
    assert_eq!(inspected["missing"], Value::Null);
    assert!(inspected["kept_bytes"].as_u64().unwrap() >= 32 << 20);
    for image in ["first", "second", "packed"] {
        home.restart(image);
    }

    fs::create_dir(home.path("away")).unwrap();
    fs::rename(home.path("first"), home.path("away/first")).unwrap();
    let missing = home.error(&["restart", "second"]);
    let id = first["id"].as_str().unwrap();
    assert!(missing.contains(id) && missing.contains("images in"), "{missing}");
    assert!(home.error(&["merge", "second"]).contains(id));
    assert!(!home.path("second.whole").exists() && !home.path("second.whole.partial").exists());
    assert!(home.json(&["inspect", "second", "--json"])["missing"].as_str().unwrap().contains(id));

    let merged = home.json(&["merge", "second", "--parent", "away/first", "--json"]);
    assert_eq!((&merged["id"], &merged["parent"]), (&second["id"], &Value::from("0000000000000000")));
    assert_eq!(merged["bytes"], size(&home.path("second.whole")));
    home.restart("second.whole");
    // In the place of the increment, whole as it is.
    assert!(home.output(&["merge", "second", "-o", "second", "--parent", "away/first"]).status.success());
    home.restart("second");
}

/// Images come twice a second, each third is whole; two stay, and what they need.
#[test]
fn regular_images_keep_whole_chains() {
    let home = Home::new();
    let radic = home.path("radic");
    let run = ["run", "--interval", "0.5", "--mode", "incremental", "--full-every", "3", "--dir", "images", "--"];
    let subject = [radic.to_str().unwrap(), "bench", "subject", "--mib", "8", "--dirty-percent", "1", "--passes", "3"];
    let mut program = Program::start(home.command(&[&run[..], &subject].concat()));
    assert_eq!(program.line(), "ready");
    let deadline = Instant::now() + Duration::from_secs(30);
    while !home.path("images/image.6").exists() {
        assert!(Instant::now() < deadline, "the sixth image does not come");
        std::thread::sleep(Duration::from_millis(20)); // A file: there is no event to wait for.
    }
    program.end();
    let mut names: Vec<_> =
        fs::read_dir(home.path("images")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    // 1 to 3 went with the fifth: then 4 and 5 were the last two.
    assert_eq!(names[..3], ["image.4", "image.5", "image.6"], "{names:?}");
    for name in &names {
        home.restart(&format!("images/{name}"));
    }
}

/// Restarting an image is running its program. What another user has written, or could exchange, is not taken unless that is said; nor is it as an ancestor.
#[test]
fn images_of_other_users_are_refused() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let home = Home::new();
    let program = home.program();
    home.json(&["save", &program.pid(), "-o", "first", "--mode", "incremental", "--json"]);
    home.json(&["save", &program.pid(), "-o", "second", "--mode", "incremental", "--parent", "first", "--json"]);
    program.end();
    // As /tmp is.
    let shared = tempfile::tempdir().unwrap();
    let place = |name: &str| shared.path().join(name);
    let set_mode = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    set_mode(shared.path(), 0o1777);
    let mut intruder = Command::new("/bin/sh");
    intruder.args(["-c", "cat > forged"]).current_dir(shared.path()).uid(64_002).gid(64_002);
    let mut intruder = intruder.stdin(Stdio::piped()).spawn().unwrap();
    intruder.stdin.take().unwrap().write_all(&fs::read(home.path("first")).unwrap()).unwrap();
    assert!(intruder.wait().unwrap().success());

    let forged = place("forged").to_str().unwrap().to_owned();
    for command in ["restart", "inspect", "merge"] {
        let error = home.error(&[command, &forged]);
        assert!(error.contains("belongs to user 64002") && error.contains("--trust-owner"), "{command}: {error}");
    }
    // An increment of the caller's own, beside an ancestor of the other's.
    fs::copy(home.path("second"), place("second")).unwrap();
    set_mode(&place("second"), 0o600);
    let second = place("second").to_str().unwrap().to_owned();
    for args in [&["restart", &second][..], &["merge", &second], &["merge", &second, "--parent", &forged]] {
        let error = home.error(args);
        assert!(error.contains("belongs to user 64002"), "{args:?}: {error}");
    }
    assert!(home.json(&["inspect", &second, "--json"])["missing"].as_str().unwrap().contains("belongs to user 64002"));

    // The own one, where others may write it or exchange it.
    fs::copy(home.path("first"), place("own")).unwrap();
    let own = place("own").to_str().unwrap().to_owned();
    for (mode, folder, refused) in [(0o600, 0o1777, false), (0o622, 0o755, true), (0o600, 0o777, true)] {
        set_mode(&place("own"), mode);
        set_mode(shared.path(), folder);
        let output = home.output(&["inspect", &own]);
        assert_eq!(!output.status.success(), refused, "{mode:o} in {folder:o}: {output:?}");
    }
    home.json(&["merge", &second, "--trust-owner", "--parent", &forged, "-o", "whole", "--json"]);
    home.restart("whole");
}

#[test]
fn wrong_requests_are_refused_in_words() {
    let home = Home::new();
    fs::write(home.path("text"), "no image").unwrap();
    fs::write(home.path("short"), b"RADICKPT").unwrap();
    for (args, text) in [
        (&["inspect", "text"][..], "text: this is not a checkpoint image"),
        (&["inspect", "short"], "truncated"),
        (&["restart", "nothing"], "No such file"),
        (&["merge", "text"], "text: this is not a checkpoint image"),
        (&["merge", "."], "this is not a checkpoint image"),
        (&["save", "1", "--parent", "text"], "--parent needs --mode incremental"),
        (&["save", "1", "--parent", "text", "--mode", "incremental"], "text: this is not a checkpoint image"),
        (&["save", "999999999"], "there is no process 999999999"),
        (&["save", "1"], "does not run under the checkpoint library"),
        (&["restart", "text"], "text: this is not a checkpoint image"),
    ] {
        let error = home.error(args);
        assert!(error.contains(text), "{args:?}: {error}");
    }
    let output = home.output(&["run", "--interval", "0.001", "--", "true"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("a number of seconds like 30 or 0.2, 0.01 to 30 days"), "{error}");
}

#[test]
fn a_stranger_s_parent_makes_a_whole_image() {
    let home = Home::new();
    let (one, other) = (home.program(), home.program());
    home.json(&["save", &one.pid(), "-o", "one", "--mode", "incremental", "--json"]);
    let output = home.output(&["save", &other.pid(), "-o", "other", "--mode", "incremental", "--parent", "one"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("the new image is whole"), "{said}");
    one.end();
    other.end();
    home.restart("other");
}
