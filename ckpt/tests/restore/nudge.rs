//! Nudges: a library that embeds the engine decides by itself when and to where the program is saved.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use radic_ckpt::{Mode, control};

use crate::harness::{self, Process, compile};

fn library() -> PathBuf {
    harness::built("libradic_ckpt_nudge.so")
}

fn lines(place: &Path, name: &str) -> Vec<String> {
    fs::read_to_string(place.join(name)).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// The program, when it has answered a nudge of its own.
fn start(place: &Path) -> Process {
    fs::write(place.join("not-now"), "").unwrap();
    let mut command = Command::new(compile("nudged", place));
    command.env("LD_PRELOAD", library()).current_dir(place).stdin(Stdio::null());
    command.stdout(harness::create(&place.join("output"))).stderr(harness::create(&place.join("errors")));
    let mut process = Process::start("nudged", &mut command);
    process.says = vec![place.join("errors"), place.join("output")];
    process.until("is ready", || lines(place, "output") == GREETING);
    fs::remove_file(place.join("not-now")).unwrap();
    process
}

/// What the program says first.
const GREETING: [&str; 3] = ["asked", "no ring", "itself"];

#[test]
fn a_nudged_process_saves_itself_if_it_wants_to() {
    let home = tempfile::tempdir().unwrap();
    let (place, library) = (home.path(), library());
    let mut process = start(place);
    let pid = process.pid();

    // Not now: nothing happens.
    fs::write(place.join("not-now"), "").unwrap();
    control::nudge(pid).unwrap();
    process.until("is asked", || lines(place, "asked").len() == 2);
    assert!(!place.join("image").exists() && !place.join("saved").exists());

    fs::remove_file(place.join("not-now")).unwrap();
    control::nudge(pid).unwrap();
    process.until("is saved", || lines(place, "saved") == ["saved"]);
    // The child that writes the image may still be at it.
    process.until("is saved as a whole", || control::restart(&place.join("image"), &library).is_ok());
    process.kill();

    let mut command = control::restart(&place.join("image"), &library).unwrap();
    let mut process = Process::start("the restored one", command.stdin(Stdio::null()).stdout(Stdio::null()));
    let status = process.wait();
    assert_eq!(lines(place, "output"), [&GREETING[..], &["slept"]].concat());
    assert_eq!(
        (status.code(), lines(place, "restored"), lines(place, "saved")),
        (Some(5), vec!["restored".into()], vec!["saved".into()])
    );
    assert_eq!(lines(place, "asked").len(), 3);
}

/// The signal of a nudge may wait for the very thread that saves the process. It is no part of the image: raised in the restored process it would be taken
/// for glibc's own, which then reads where nothing is.
#[test]
fn a_nudge_that_waits_while_the_process_is_saved_is_not_in_the_image() {
    let home = tempfile::tempdir().unwrap();
    let (place, library) = (home.path(), library());
    let mut process = start(place);
    fs::write(place.join("again"), "").unwrap();
    control::nudge(process.pid()).unwrap();
    process.until("is asked by the second nudge", || lines(place, "asked").len() == 3);
    process.until("is saved as a whole", || control::restart(&place.join("image"), &library).is_ok());
    process.kill();
    let mut command = control::restart(&place.join("image"), &library).unwrap();
    let status = Process::start("the restored one", command.stdin(Stdio::null()).stdout(Stdio::null())).wait();
    assert_eq!(status.code(), Some(5), "{status:?}");
}

/// How often a thread that is in `pause` again has been interrupted; none: it is not.
fn interruptions(pid: i32, tid: i32) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{name}")).unwrap_or_default();
    let status = read("status");
    let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()?;
    read("syscall").starts_with(&format!("{} ", libc::SYS_pause)).then_some(switches)
}

/// The thread that has made a checkpoint is not done with it when others run again, and a requester may have its image already and want the next one. Such a
/// request comes to another thread.
#[test]
fn what_is_asked_during_a_checkpoint_is_done_after_it() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path();
    let mut process = start(place);
    let pid = process.pid();
    let made = Command::new("mkfifo").arg(place.join("hold")).status().unwrap();
    assert!(made.success());
    let let_go = || drop(fs::File::options().write(true).open(place.join("hold")).unwrap());
    control::nudge(pid).unwrap();
    process.until("is saved", || lines(place, "saved").len() == 1);

    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let tids = threads.map(|thread| thread.unwrap().file_name().to_str().unwrap().parse::<i32>().unwrap());
    let second = tids.filter(|tid| *tid != pid).max().unwrap();
    let mut before = 0;
    process.until("has a thread that waits", || interruptions(pid, second).inspect(|count| before = *count).is_some());
    control::nudge(pid).unwrap();
    process.until("is nudged again", || interruptions(pid, second).is_some_and(|count| count > before));
    let image = place.join("asked-for");
    std::thread::scope(|scope| {
        let saving = scope.spawn(|| control::save(pid, Mode::Fork, &image));
        process.until("is asked", || interruptions(pid, second).is_some_and(|count| count > before + 1));
        assert_eq!(lines(place, "saved").len(), 1);
        let_go();
        saving.join().unwrap().unwrap();
    });
    process.until("has answered the nudge", || lines(place, "saved").len() == 2);
    let_go();
    assert_eq!(process.wait().code(), Some(5));
    assert_eq!(lines(place, "saved"), ["saved", "saved"]);
}

/// A library that has something in its hands that no image may have puts a request off, and nudges a thread when that is over.
#[test]
fn a_request_waits_until_the_library_lets_it_in() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path();
    let mut process = start(place);
    let (pid, image) = (process.pid(), place.join("asked-for"));
    fs::write(place.join("not-now"), "").unwrap();
    fs::write(place.join("busy"), "").unwrap();
    std::thread::scope(|scope| {
        let saving = scope.spawn(|| control::save(pid, Mode::Fork, &image));
        process.until("is asked", || !lines(place, "requests").is_empty());
        // Still busy: the request is put off again, and is not lost.
        control::nudge(pid).unwrap();
        process.until("is nudged", || lines(place, "requests").len() == 2);
        assert_eq!(lines(place, "requests"), ["put off", "put off"]);
        assert!(!saving.is_finished());
        fs::remove_file(place.join("busy")).unwrap();
        control::nudge(pid).unwrap();
        saving.join().unwrap().unwrap();
    });
    process.until("has answered", || lines(place, "requests").len() == 4);
    assert_eq!(lines(place, "requests")[2..], ["served", "answered"]);
    // One that need not wait.
    control::save(pid, Mode::Fork, &image).unwrap();
    process.kill();
    let library = library();
    let mut command = control::restart(&image, &library).unwrap();
    let status = Process::start("the restored one", command.stdin(Stdio::null()).stdout(Stdio::null())).wait();
    assert_eq!(status.code(), Some(5), "{status:?}");
}

/// A process that is stopped for a day is nudged often. What is queued is counted for all processes of its user.
#[test]
fn a_stopped_process_has_one_nudge_at_most() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path();
    let mut process = start(place);
    let pid = process.pid();
    fs::write(place.join("not-now"), "").unwrap();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
    let status = || fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let queued =
        || status().lines().find_map(|line| line.strip_prefix("SigQ:")?.trim().split('/').next()?.parse::<u64>().ok()).unwrap();
    signal("-STOP");
    process.until("is stopped", || status().contains("State:\tT"));
    let before = queued();
    (0..1000).for_each(|_| control::nudge(pid).unwrap());
    // Other tests of this user have signals, too.
    assert!(queued() < before + 500, "{} signals are queued, {before} before", queued());
    signal("-CONT");
    process.until("is asked", || lines(place, "asked").len() == 2);
}

#[test]
fn a_process_without_the_library_is_not_nudged() {
    let process = Process::start("sleep", Command::new("sleep").arg("60"));
    let error = control::nudge(process.child.id() as i32).unwrap_err();
    assert!(matches!(error, control::ControlError::Silent(_)), "{error}");
}
