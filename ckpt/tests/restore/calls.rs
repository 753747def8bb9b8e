//! Blocking calls: none is interrupted by a checkpoint, returns early or misses what it waits for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use radic_ckpt::control;

use crate::harness::{self, Images, Process, Random, WAYS};

/// System V objects outlive their process: removed here if it could not.
struct Objects(PathBuf);

impl Drop for Objects {
    fn drop(&mut self) {
        let text = fs::read_to_string(self.0.join("ipc")).unwrap_or_default();
        let ids: Vec<i32> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        if let [semaphores, others, queue, full] = ids[..] {
            // SAFETY: no memory is involved. Ids that are gone already are not given again soon.
            unsafe {
                libc::semctl(semaphores, 0, libc::IPC_RMID);
                libc::semctl(others, 0, libc::IPC_RMID);
                libc::msgctl(queue, libc::IPC_RMID, std::ptr::null_mut());
                libc::msgctl(full, libc::IPC_RMID, std::ptr::null_mut());
            }
        }
    }
}

/// Starts the program, which has begun all its calls then.
fn start(which: &str, home: &Path) -> (Process, Objects) {
    let program = harness::compile("calls", home);
    let place = home.join("place");
    fs::create_dir(&place).unwrap();
    let output = harness::create(&home.join("output"));
    let mut command = Command::new(program);
    command.arg(which).env("LD_PRELOAD", harness::library()).current_dir(&place).stdin(Stdio::null()).stdout(output);
    command.stderr(harness::create(&home.join("errors")));
    let objects = Objects(place);
    let mut process = Process::start("calls", &mut command);
    process.says.push(home.join("output"));
    process.until("begins", || fs::read_to_string(home.join("output")).unwrap().starts_with("ready\n"));
    (process, objects)
}

/// Every line but those that are as they should be.
fn finish(mut process: Process, home: &Path, at_least: usize) {
    let status = process.wait();
    let output = fs::read_to_string(home.join("output")).unwrap();
    let wrong: Vec<_> = output.lines().skip(1).filter(|line| !line.ends_with(": ok")).collect();
    assert!(status.success() && wrong.is_empty(), "{status}: {wrong:#?}");
    assert!(output.lines().count() > at_least, "calls are missing: {output}");
}

#[test]
fn checkpoints_interrupt_no_blocking_call() {
    let mut random = Random::new("blocking calls");
    let home = tempfile::tempdir().unwrap();
    let (mut process, _objects) = start("all", home.path());
    let mut images = Images::new();
    for number in 0..8 {
        std::thread::sleep(Duration::from_millis(10 + random.below(100)));
        let way = WAYS[number % WAYS.len()];
        images.save(process.pid(), way).unwrap_or_else(|e| panic!("{way:?}: {e}"));
    }
    finish(process, home.path(), 65);
}

#[test]
fn blocking_calls_go_on_after_a_restore() {
    for way in WAYS {
        let mut random = Random::new("blocking calls, restored");
        let home = tempfile::tempdir().unwrap();
        let (mut process, _objects) = start("kept", home.path());
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(50 + random.below(100)));
            let mut images = Images::new();
            let image = images.save(process.pid(), way).unwrap_or_else(|e| panic!("{way:?}: {e}"));
            process.kill();
            let mut command = control::restart(&image, &harness::library()).unwrap_or_else(|e| panic!("{way:?}: {e}"));
            process = Process::start("calls, restored", command.stdin(Stdio::null()));
            process.says.push(home.path().join("output"));
        }
        finish(process, home.path(), 45);
    }
}
