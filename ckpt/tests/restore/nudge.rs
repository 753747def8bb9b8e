//! Nudges: a library that embeds the engine decides by itself when and to where the program is saved.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use radic_ckpt::control;

use crate::harness::{self, Process, compile};

fn library() -> PathBuf {
    harness::built("libradic_ckpt_nudge.so")
}

fn lines(place: &Path, name: &str) -> Vec<String> {
    fs::read_to_string(place.join(name)).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn a_nudged_process_saves_itself_if_it_wants_to() {
    let home = tempfile::tempdir().unwrap();
    let (place, library) = (home.path(), library());
    fs::write(place.join("not-now"), "").unwrap();
    let mut command = Command::new(compile("nudged", place));
    command.env("LD_PRELOAD", &library).current_dir(place).stdin(Stdio::null());
    command.stdout(harness::create(&place.join("output"))).stderr(harness::create(&place.join("errors")));
    let mut process = Process::start("nudged", &mut command);
    process.says = vec![place.join("errors"), place.join("output")];
    let greeting = ["asked", "no ring", "itself"];
    process.until("is ready", || lines(place, "output") == greeting);
    let pid = process.pid();

    // Not now: nothing happens.
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
    assert_eq!(lines(place, "output"), [&greeting[..], &["slept"]].concat());
    assert_eq!(
        (status.code(), lines(place, "restored"), lines(place, "saved")),
        (Some(5), vec!["restored".into()], vec!["saved".into()])
    );
    assert_eq!(lines(place, "asked").len(), 3);
}

#[test]
fn a_process_without_the_library_is_not_nudged() {
    let process = Process::start("sleep", Command::new("sleep").arg("60"));
    let error = control::nudge(process.child.id() as i32).unwrap_err();
    assert!(matches!(error, control::ControlError::Silent(_)), "{error}");
}
