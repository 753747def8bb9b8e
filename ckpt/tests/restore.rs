//! Programs that are saved, killed with SIGKILL, restored, and must end as if nothing had happened.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use radic_ckpt::Mode;
use radic_ckpt::control::{self, ControlError};

fn library() -> PathBuf {
    // Cargo builds it as a dependency of these tests.
    let library = std::env::current_exe().unwrap().parent().unwrap().join("libradic_ckpt_preload.so");
    assert!(library.exists(), "{}", library.display());
    library
}

fn compile(name: &str, to: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name).with_extension("c");
    let program = to.join(name);
    let status = Command::new("gcc").args(["-O1", "-pthread", "-w", "-o"]).arg(&program).arg(&source).status().unwrap();
    assert!(status.success(), "gcc {}", source.display());
    program
}

struct Running {
    child: Child,
    output: Option<BufReader<ChildStdout>>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().map(BufReader::new);
        Self { child, output }
    }

    fn ready(&mut self) {
        let mut line = String::new();
        self.output.as_mut().unwrap().read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
    }

    /// The process itself, as soon as it can be saved (again).
    fn pid(&mut self) -> i32 {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(pid) = control::restored_pid(self.child.id() as i32) {
                return pid;
            }
            assert!(self.child.try_wait().unwrap().is_none(), "it has ended");
            assert!(Instant::now() < deadline, "it was not restored in time");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn finish(&mut self) -> (String, ExitStatus) {
        let mut text = String::new();
        self.output.as_mut().unwrap().read_to_string(&mut text).unwrap();
        (text, self.child.wait().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program undisturbed, and then with a checkpoint, SIGKILL and a restart, `generations` times.
fn survives(name: &str, mode: Mode, generations: u32) {
    let home = tempfile::tempdir().unwrap();
    let program = compile(name, home.path());
    let launch = |place: &str| {
        let place = home.path().join(place);
        std::fs::create_dir(&place).unwrap();
        let mut command = Command::new(&program);
        command.env("LD_PRELOAD", library()).current_dir(place);
        let mut running = Running::start(command);
        running.ready();
        running
    };
    let expected = launch("undisturbed").finish();
    let mut running = launch("disturbed");
    for generation in 0..generations {
        let pid = running.pid();
        // Somewhere in the middle: there is nothing to wait for.
        std::thread::sleep(Duration::from_millis(100));
        let image = home.path().join(format!("image{generation}"));
        control::save(pid, mode, &image).unwrap();
        running.kill();
        running = Running::start(control::restart(&image, &library()).unwrap());
    }
    assert_eq!(running.finish(), expected, "{name} {mode:?}, at home in {}", home.path().display());
}

#[test]
fn counter() {
    survives("counter", Mode::Stop, 3);
    survives("counter", Mode::Fork, 3);
}

#[test]
fn threads() {
    survives("threads", Mode::Stop, 3);
    survives("threads", Mode::Fork, 3);
}

#[test]
fn ids() {
    survives("ids", Mode::Stop, 3);
}

#[test]
fn descriptors() {
    survives("descriptors", Mode::Stop, 2);
    survives("descriptors", Mode::Fork, 2);
}

#[test]
fn blocking_calls_see_no_interruption() {
    survives("calls", Mode::Fork, 1);
}

/// Programs as they are installed. Their results are in files, because a pipe of the first command is not one of the second.
#[test]
fn programs_of_the_system() {
    let home = tempfile::tempdir().unwrap();
    // Not compressible by a glance: a linear congruence.
    let mut state = 1u64;
    let data: Vec<u8> = (0..6_000_000)
        .map(|i: u32| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if i.is_multiple_of(3) { (state >> 60) as u8 } else { (i >> 8) as u8 }
        })
        .collect();
    std::fs::write(home.path().join("data"), data).unwrap();
    let perl =
        "$s = 1; for $i (1..6000000) { $s = ($s * 31 + $i) % 1000003; $h{$s % 1000} .= 'x' } print $s, scalar(keys %h), \"\\n\"";
    for (program, arguments) in
        [("perl", &["-e", perl][..]), ("xz", &["-9", "-T1", "-c", "data"]), ("gzip", &["-9", "-c", "data"])]
    {
        for mode in [Mode::Stop, Mode::Fork] {
            let launch = |output: &str| {
                let file = std::fs::File::create(home.path().join(output)).unwrap();
                let mut command = Command::new(program);
                command.args(arguments).env("LD_PRELOAD", library()).current_dir(home.path());
                command.stdin(Stdio::null()).stdout(file).spawn().unwrap()
            };
            assert!(launch("expected").wait().unwrap().success(), "{program}");
            let mut running = Running { child: launch("output"), output: None };
            let pid = running.pid();
            std::thread::sleep(Duration::from_millis(100));
            let image = home.path().join("image");
            control::save(pid, mode, &image).unwrap();
            running.kill();
            assert!(control::restart(&image, &library()).unwrap().status().unwrap().success(), "{program}");
            let read = |name: &str| std::fs::read(home.path().join(name)).unwrap();
            assert!(read("output") == read("expected"), "{program} {mode:?}: another result");
        }
    }
}

/// A program that saves itself, and goes on from there with what it got for it.
#[test]
fn a_program_may_save_itself() {
    let home = tempfile::tempdir().unwrap();
    let program = compile("itself", home.path());
    let mut command = Command::new(&program);
    command.env("LD_PRELOAD", library()).current_dir(home.path());
    let (text, status) = Running::start(command).finish();
    assert_eq!((text.as_str(), status.code()), ("saved\n", Some(0)));
    let image = home.path().join("image");
    let (text, status) = Running::start(control::restart(&image, &library()).unwrap()).finish();
    assert_eq!((text.as_str(), status.code()), ("restored\n", Some(5)));
}

/// What cannot be saved is refused by name, and the program goes on.
#[test]
fn refusals() {
    let home = tempfile::tempdir().unwrap();
    let program = compile("refused", home.path());
    let mut command = Command::new(&program);
    command.env("LD_PRELOAD", library());
    let mut running = Running::start(command);
    running.ready();
    let error = control::save(running.pid(), Mode::Fork, &home.path().join("image")).unwrap_err().to_string();
    assert!(error.contains("inotify"), "{error}");
    assert!(!home.path().join("image").exists() && !home.path().join("image.partial").exists());
    assert_eq!(running.finish().1.code(), Some(0));
}

/// A damaged, truncated or foreign image is refused before anything is executed.
#[test]
fn bad_images_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let program = compile("itself", home.path());
    let mut command = Command::new(&program);
    command.env("LD_PRELOAD", library()).current_dir(home.path());
    Running::start(command).finish();
    let good = std::fs::read(home.path().join("image")).unwrap();
    let bad = home.path().join("bad");
    let mut damaged = good.clone();
    damaged[good.len() / 2] ^= 1;
    for (bytes, reason) in [
        (&damaged[..], "damaged"),
        (&good[..good.len() - 1], "truncated"),
        (b"#!/bin/sh\n", "truncated"),
        (&[0; 500], "not a checkpoint"),
    ] {
        std::fs::write(&bad, bytes).unwrap();
        let error = control::restart(&bad, &library()).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    // Another build of the library: a copy with one byte more.
    let other = home.path().join("other.so");
    let mut bytes = std::fs::read(library()).unwrap();
    bytes.push(0);
    std::fs::write(&other, bytes).unwrap();
    let output = control::restart(&home.path().join("image"), &other).unwrap().output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("another build"), "{output:?}");
}

#[test]
fn a_program_without_the_library_is_left_alone() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let error = control::request(child.id() as i32, Mode::Stop).err().unwrap();
    assert!(matches!(error, ControlError::Silent(_)), "{error}");
    assert!(child.try_wait().unwrap().is_none(), "it was not killed by a signal it does not handle");
    child.kill().unwrap();
    child.wait().unwrap();
}
