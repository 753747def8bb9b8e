//! State of every kind, refusals, and images that are not restored.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use radic_ckpt::Mode;
use radic_ckpt::control::{self, ControlError, Ids};
use radic_ckpt::trusted::Owners;
use tempfile::TempDir;

use crate::harness::{self, Images, Process, Way, compile, library};

/// A program in a folder of its own, which says "ready" at first.
pub struct Home {
    folder: TempDir,
    program: PathBuf,
}

impl Home {
    pub fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = compile(name, folder.path());
        Self { folder, program }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts it in a new folder, perhaps under another program.
    fn start(&self, place: &str, under: &[&str]) -> Process {
        self.start_with(place, under, &[])
    }

    pub fn start_with(&self, place: &str, under: &[&str], arguments: &[&str]) -> Process {
        let folder = self.path(place);
        fs::create_dir(&folder).unwrap();
        let mut command = Command::new(under.first().unwrap_or(&"/usr/bin/env"));
        let preload = format!("LD_PRELOAD={}", library().display());
        command.args(under.iter().skip(1)).args(["/usr/bin/env", &preload][usize::from(under.is_empty())..].iter());
        command.arg(&self.program).args(arguments).current_dir(folder).stdin(Stdio::null());
        command.stdout(harness::create(&self.output(place))).stderr(harness::create(&self.path("errors")));
        let mut process = Process::start(place, &mut command);
        process.says = vec![self.path("errors"), self.output(place)];
        process
    }

    fn output(&self, place: &str) -> PathBuf {
        self.path(place).with_extension("output")
    }

    pub fn ready(&self, place: &str, process: &mut Process) {
        let output = self.output(place);
        process.until("is ready", || fs::read_to_string(&output).unwrap().starts_with("ready\n"));
    }

    /// What it has said, and how it ended.
    pub fn finish(&self, place: &str, mut process: Process) -> (String, ExitStatus) {
        let status = process.wait();
        (fs::read_to_string(self.output(place)).unwrap(), status)
    }
}

fn restart(image: &Path) -> Process {
    let mut command = control::restart(image, &library()).unwrap_or_else(|e| panic!("{e}"));
    Process::start("the restored one", command.stdin(Stdio::null()).stdout(Stdio::null()))
}

/// Runs a program undisturbed, and then with a checkpoint, SIGKILL and a restart, `generations` times.
fn survives(name: &str, ways: &[Way], generations: u32, under: &[&str]) {
    let home = Home::new(name);
    let expected = home.finish("undisturbed", home.start("undisturbed", &[]));
    for way in ways {
        let place = format!("{way:?}");
        let mut process = home.start(&place, under);
        home.ready(&place, &mut process);
        for _ in 0..generations {
            // Somewhere in the middle: there is nothing to wait for.
            std::thread::sleep(Duration::from_millis(100));
            let mut images = Images::new();
            let image = images.save(process.pid(), *way).unwrap_or_else(|e| panic!("{way:?}: {e}"));
            process.kill();
            process = restart(&image);
        }
        assert_eq!(home.finish(&place, process), expected, "{name} {way:?}");
    }
}

#[test]
fn ids() {
    survives("ids", &[Way::Stop, Way::Incremental], 3, &[]);
}

#[test]
fn descriptors() {
    survives("descriptors", &[Way::Stop, Way::Fork, Way::Incremental], 2, &[]);
}

/// More than any table holds that is looked through for each of them.
#[test]
fn thousands_of_descriptors() {
    let home = Home::new("many_fds");
    for way in [Way::Fork, Way::Incremental] {
        let place = format!("{way:?}");
        let mut process = home.start_with(&place, &[], &["10000"]);
        home.ready(&place, &mut process);
        let mut images = Images::new();
        for _ in 0..2 {
            let image = images.save(process.pid(), way).unwrap_or_else(|e| panic!("{way:?}: {e}"));
            println!("{way:?}: {:.1} ms", control::last_pause(process.pid()).unwrap().as_secs_f64() * 1e3);
            process.kill();
            process = restart(&image);
            images = Images::new();
        }
        fs::write(home.path(&place).join("go"), "").unwrap();
        assert_eq!(home.finish(&place, process).0, "ready\nall there\n", "{way:?}");
    }
}

/// Files changed in place, temporary files, locks, guard pages, a listening socket.
#[test]
fn what_the_kernel_keeps() {
    survives("state", &[Way::Stop, Way::Fork, Way::Incremental], 2, &[]);
}

/// Segments of System V are numbered apart from files: the same number is another object.
#[test]
fn a_segment_and_a_file_with_one_number_stay_two_objects() {
    let home = Home::new("numbers");
    let (said, _) = home.finish("undisturbed", home.start("undisturbed", &[]));
    if said.contains("far") {
        return println!("this machine's numbers of files and segments are too far apart to meet");
    }
    survives("numbers", &[Way::Stop, Way::Fork, Way::Incremental], 2, &[]);
}

/// Mutexes that check their owner know it by its new id, if it could not get its old one.
#[test]
fn held_mutexes_find_their_owners() {
    let home = Home::new("owners");
    for ids in [Ids::Old, Ids::New] {
        let place = format!("{ids:?}");
        let mut process = home.start(&place, &[]);
        home.ready(&place, &mut process);
        let image = home.path("image");
        control::save(process.pid(), Mode::Stop, &image).unwrap();
        process.kill();
        let mut command = control::restart_as(ids, Owners::Trusted, &image, &library(), &mut |_, _| {}).unwrap();
        let process = Process::start(&place, command.stdin(Stdio::null()).stdout(Stdio::null()));
        let (text, status) = home.finish(&place, process);
        assert_eq!((text.as_str(), status.code()), ("ready\nreleased\n", Some(0)), "{ids:?}");
    }
}

/// A program of a machine that has been running for longer than this one: its clock does not go back.
#[test]
fn clocks() {
    let user: &[&str] = if harness::root() { &[] } else { &["--user", "--map-current-user"] };
    let ahead = ["/usr/bin/unshare", "--time", "--monotonic", "100000", "--boottime", "100000", "--fork"];
    survives("ids", &[Way::Fork], 2, &[&ahead, user].concat());
}

/// Memory that is given up, refilled, moved and guarded between increments is what it was at the last one. After each number of steps a process is
/// restored: what one increment misses, the next might make up for.
#[test]
fn increments_follow_what_becomes_of_memory() {
    let home = Home::new("dense");
    for steps in 0..=3 {
        let place = format!("after{steps}");
        let mut process = home.start(&place, &[]);
        home.ready(&place, &mut process);
        let mut images = Images::new();
        let mut save =
            |process: &mut Process| images.save(process.pid(), Way::Incremental).unwrap_or_else(|e| panic!("{place}: {e}"));
        save(&mut process);
        let mut said = "ready\n".to_owned();
        for step in 1..=steps {
            harness::signal(process.pid(), libc::SIGUSR1).unwrap();
            said += &format!("step {step}\n");
            let output = home.output(&place);
            process.until("makes its step", || fs::read_to_string(&output).unwrap() == said);
            save(&mut process);
        }
        // Nothing has changed.
        let image = save(&mut process);
        assert_eq!(images.layers(), steps + 2, "images that should be increments are whole");
        process.kill();
        let mut process = restart(&image);
        harness::signal(process.pid(), libc::SIGUSR2).unwrap();
        let (text, status) = home.finish(&place, process);
        assert_eq!((text, status.code()), (said + "done\n", Some(0)), "{place}");
    }
}

/// A program that saves itself, and goes on from there with what it got for it.
#[test]
fn a_program_may_save_itself() {
    let home = Home::new("itself");
    let (text, status) = home.finish("place", home.start("place", &[]));
    assert_eq!((text.as_str(), status.code()), ("saved\n", Some(0)));
    let restored = restart(&home.path("place/image"));
    let (text, status) = home.finish("place", restored);
    assert_eq!((text.as_str(), status.code()), ("restored\n", Some(5)));
}

/// What cannot be saved is refused by name, and the program goes on.
#[test]
fn refusals() {
    let home = Home::new("refused");
    let image = home.path("image");
    // Not io_uring: many containers forbid it. It is refused by the same look at the descriptors as pidfd and inotify.
    for what in ["inotify", "aio", "pidfd"] {
        let mut process = home.start_with(what, &[], &[what]);
        home.ready(what, &mut process);
        let error = control::save(process.pid(), Mode::Fork, &image).unwrap_err().to_string();
        assert!(error.to_lowercase().contains(what), "{what}: {error}");
        let left = fs::read_dir(home.path("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert!(!left.into_iter().any(|name| name.starts_with("image")));
        assert_eq!(process.wait().code(), Some(0));
    }
}

/// A damaged, truncated or foreign image is refused before anything is executed.
#[test]
fn bad_images_are_refused() {
    let home = Home::new("itself");
    home.start("place", &[]).wait();
    let good = fs::read(home.path("place/image")).unwrap();
    let bad = home.path("bad");
    let mut damaged = good.clone();
    damaged[good.len() / 2] ^= 1;
    for (bytes, reason) in [
        (&damaged[..], "damaged"),
        (&good[..good.len() - 1], "truncated"),
        (b"#!/bin/sh\n", "not a checkpoint"),
        (&[0; 500], "not a checkpoint"),
    ] {
        fs::write(&bad, bytes).unwrap();
        let error = control::restart(&bad, &library()).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let output = control::restart(&home.path("place/image"), &another_build(&home)).unwrap().output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("another build"), "{output:?}");
}

/// Another build of the library: a copy with another build id in its first note.
fn another_build(home: &Home) -> PathBuf {
    const NOTE: &[u8] = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
    let other = home.path("other.so");
    let mut bytes = fs::read(library()).unwrap();
    let note = bytes.windows(NOTE.len()).position(|bytes| bytes == NOTE).expect("the linker has noted no build id of 20 bytes");
    bytes[note + NOTE.len()] ^= 1;
    fs::write(&other, bytes).unwrap();
    other
}

/// The keeper once missed the end of a process that was gone before the keeper looked, and waited for ever: one restart in a hundred, with more to do than processors.
#[test]
fn what_ends_at_once_is_noticed() {
    let home = Home::new("itself");
    home.start("place", &[]).wait();
    let (image, other) = (home.path("place/image"), another_build(&home));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..60 {
                    let mut command = control::restart(&image, &other).unwrap();
                    let status = Process::start("refused", command.stderr(Stdio::null())).wait();
                    assert_eq!(status.code(), Some(125));
                }
            });
        }
    });
}

/// A request that comes while the program becomes another one is answered by that one, late or not at all; it does not kill it.
#[test]
fn a_program_that_becomes_another_is_not_killed() {
    let home = tempfile::tempdir().unwrap();
    let program = compile("execs", home.path());
    // How many requests come while it is one program long enough to be saved depends on how busy the machine is: it runs as often as it takes, and is not killed each time.
    let mut saved = 0;
    for _ in 0..10 {
        saved += saves_of_what_becomes_another(&program);
        if saved > 0 {
            return;
        }
    }
    panic!("never saved");
}

/// Asks a program that becomes another one a thousand times for one checkpoint after the other, until it ends as it should. How many there were.
fn saves_of_what_becomes_another(program: &Path) -> u32 {
    let mut command = Command::new(program);
    let mut process = Process::start("execs", command.arg("1000").env("LD_PRELOAD", library()).stdin(Stdio::null()));
    let (mut images, mut saved) = (Images::new(), 0);
    while process.ended_within(Duration::ZERO).is_none() {
        images.restart_job();
        saved += u32::from(images.save(process.child.id() as i32, Way::Stop).is_ok());
    }
    let status = process.wait();
    assert_eq!(status.code(), Some(5), "{status}, after {saved} checkpoints");
    saved
}

#[test]
fn a_program_without_the_library_is_left_alone() {
    let mut process = Process::start("sleep", Command::new("sleep").arg("60"));
    let error = control::request(process.child.id() as i32, Mode::Stop).err().unwrap();
    assert!(matches!(error, ControlError::Silent(_)), "{error}");
    assert!(process.ended_within(Duration::ZERO).is_none(), "it was not killed by a signal it does not handle");
}
