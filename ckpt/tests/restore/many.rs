//! Checkpoints at random moments, one after the other, of a program that goes on; each tenth image is restored while it does.

use std::collections::VecDeque;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use radic_ckpt::control;

use crate::harness::{self, Images, Process, Random, WAYS};

/// Restored copies at a time: they compete with the program for the processors.
const COPIES: usize = 2;
/// Increments to increments at most.
const LAYERS: usize = 12;

fn output(process: &mut Process) -> String {
    let status = process.wait();
    let mut text = String::new();
    process.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(status.success(), "{status}: {text}");
    // A restored copy does not say again what it had said before.
    text.lines().last().unwrap_or_default().to_owned()
}

/// One program from its start to its end, with checkpoints all the time. Gives how many there were and how many copies were restored.
fn one(program: &Path, place: &Path, expected: &str, most: u32, random: &mut Random) -> (u32, u32) {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", harness::library()).current_dir(place).stdin(Stdio::null()).stdout(Stdio::piped());
    // Not the tests' own: a restored process cuts the files it had open to what they were.
    command.stderr(harness::create(&place.join("errors")));
    let mut original = Process::start("threads", &mut command);
    let mut copies = VecDeque::new();
    let (mut saved, mut restored) = (0, 0);
    let (pid, mut images) = (original.pid(), Images::new());
    while saved < most {
        std::thread::sleep(Duration::from_micros(random.below(30_000)));
        let way = WAYS[random.below(WAYS.len() as u64) as usize];
        if images.layers() == LAYERS {
            images.restart_job();
        }
        let image = match images.save(pid, way) {
            Ok(image) => image,
            Err(error) => {
                // It may end at any moment, but for no other reason than that it is done.
                assert!(original.ended_within(Duration::from_secs(10)).is_some(), "{way:?}, after {saved}: {error}");
                break;
            }
        };
        saved += 1;
        if saved % 10 == 5 {
            if copies.len() == COPIES {
                let oldest = copies.pop_front();
                assert_eq!(oldest.map(|mut copy| output(&mut copy)).as_deref(), Some(expected), "a restored copy");
            }
            let mut command = control::restart(&image, &harness::library()).unwrap_or_else(|e| panic!("{way:?}: {e}"));
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            copies.push_back(Process::start(&format!("copy {saved}, {way:?}"), &mut command));
            restored += 1;
        }
    }
    assert_eq!(output(&mut original), expected, "the program that goes on, after {saved} checkpoints");
    copies.iter_mut().for_each(|copy| assert_eq!(output(copy), expected, "a restored copy"));
    (saved, restored)
}

#[test]
fn checkpoints_at_random_moments() {
    let wanted = if harness::long() { 1000 } else { 40 };
    let mut random = Random::new("checkpoints at random moments");
    let place = tempfile::tempdir().unwrap();
    let program = harness::compile("threads", place.path());
    let mut undisturbed = Command::new(&program);
    let expected = output(&mut Process::start("threads, undisturbed", undisturbed.stdin(Stdio::null()).stdout(Stdio::piped())));
    let (mut saved, mut restored) = (0, 0);
    while saved < wanted {
        let (more, copies) = one(&program, place.path(), &expected, wanted - saved, &mut random);
        assert!(more > 0, "the program ends before it can be saved");
        saved += more;
        restored += copies;
    }
    println!("{saved} checkpoints, {restored} restored copies, all with the right result");
}
