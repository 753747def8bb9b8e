//! Restored processes that die, and what they leave: the report of their registers, and an end as if none had been written.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use radic_ckpt::Mode;
use radic_ckpt::control::{self, Ids};
use radic_ckpt::death::Report;
use radic_ckpt::launch::DEATH_VARIABLE;
use radic_ckpt::trusted::Owners;

use crate::harness::{Process, library};
use crate::single::Home;

/// Signals in a mask of /proc that a report is written for.
const WATCHED: [i32; 7] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS];

/// The program, saved where it waits, and killed. Its image, and which of the watched signals it handles.
fn saved(home: &Home, way: &str) -> (PathBuf, u64) {
    let mut process = home.start_with(way, &[], &[way]);
    home.ready(way, &mut process);
    let (image, pid) = (home.path("image"), process.pid());
    control::save(pid, Mode::Stop, &image).unwrap();
    let handled = handled(pid);
    process.kill();
    (image, handled)
}

fn handled(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    let watched = WATCHED.iter().fold(0, |mask, signal| mask | 1 << (signal - 1));
    u64::from_str_radix(caught.trim(), 16).unwrap() & watched
}

/// Restores an image, with a path for a report if there is one.
fn restored(image: &Path, report: Option<&Path>, ids: Ids) -> Process {
    let mut command = control::restart_as(ids, Owners::Trusted, image, &library(), &mut |_, _| {}).unwrap();
    command.envs(report.map(|path| (DEATH_VARIABLE, path)));
    let mut process = Process::start("the restored one", command.stdin(Stdio::null()).stdout(Stdio::null()));
    process.pid();
    process
}

/// How the program ends when it is restored with a path for a report, its output, and the report.
fn dies(way: &str, ids: Ids) -> (ExitStatus, String, Option<String>) {
    let home = Home::new("dies");
    let (image, _) = saved(&home, way);
    let report = home.path("report");
    let process = restored(&image, Some(&report), ids);
    fs::write(home.path(way).join("go"), "").unwrap();
    let (output, status) = home.finish(way, process);
    if let Ok(data) = fs::symlink_metadata(&report) {
        assert_eq!(data.permissions().mode() & 0o7777, 0o600);
    }
    (status, output.strip_prefix("ready\n").unwrap().to_owned(), fs::read_to_string(&report).ok())
}

fn value<'a>(report: &'a str, name: &str) -> &'a str {
    let line = report.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no {name} in {report}"))
}

#[test]
fn a_restored_process_that_faults_leaves_its_registers_and_dies_of_its_signal() {
    for ids in [Ids::Old, Ids::New] {
        let (status, output, report) = dies("null", ids);
        assert_eq!((status.signal(), output.as_str()), (Some(libc::SIGSEGV), ""));
        let report = report.expect("a report");
        assert_eq!((value(&report, "signal"), value(&report, "address")), ("11", "0x0000000000000010"));
        for name in ["rax", "r15", "rsp", "eflags", "fs-base", "pid", "ns-since-restore", "image", "code", "stack"] {
            assert!(!value(&report, name).is_empty(), "{name}: {report}");
        }
        assert_eq!((value(&report, "generation"), value(&report, "phase")), ("1", "catching-up"));
        // The faulting instruction writes to 0x10 by an absolute address: it is in the program, as is said.
        assert!(value(&report, "mapping-of-rip").ends_with("/dies") && report.contains("\nmaps:\n"), "{report}");
        assert!(report.lines().filter(|line| line.ends_with("[stack]")).count() >= 2, "{report}");
        let read = Report::parse(report.as_bytes()).unwrap();
        assert!(read.to_string().starts_with("SIGSEGV at address 0x10, in /") && read.to_string().contains("/dies+0x"), "{read}");
    }
}

#[test]
fn the_program_s_own_handler_decides_how_it_ends() {
    let (status, output, report) = dies("handler", Ids::Old);
    assert_eq!((status.code(), output.as_str()), (Some(7), "own handler: signal 11 at 0x10\n"));
    assert!(Report::parse(report.expect("a report").as_bytes()).unwrap().handled);
    // A trap does not come again by itself: the program goes on after it, having handled it once.
    let (status, output, report) = dies("trap", Ids::Old);
    assert_eq!((status.code(), output.as_str()), (Some(0), "traps 1\n"));
    assert_eq!(value(&report.expect("a report"), "signal"), "5");
}

#[test]
fn an_abort_is_reported_and_still_one() {
    let (status, output, report) = dies("abort", Ids::Old);
    assert_eq!((status.signal(), output.as_str()), (Some(libc::SIGABRT), ""));
    let report = report.expect("a report");
    assert_eq!((value(&report, "signal"), value(&report, "code")), ("6", "-6"));
}

/// The C library's handler of the engine's signal runs while all signals are blocked. A fault in it is reported all the same.
#[test]
fn a_fault_in_the_c_library_s_own_handler_is_reported() {
    let (status, _, report) = dies("setxid", Ids::Old);
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{report:?}");
    let report = report.expect("a report");
    assert_eq!(value(&report, "signal"), "11");
    assert!(value(&report, "mapping-of-rip").contains("libc"), "{report}");
}

/// A signal of the watched ones that waits in the image goes on waiting, and comes once.
#[test]
fn a_pending_signal_waits_for_its_program() {
    let (status, output, report) = dies("pending", Ids::Old);
    assert_eq!((status.code(), output.as_str()), (Some(0), "traps 1\n"));
    assert_eq!(value(&report.expect("a report"), "phase"), "catching-up");
}

/// Also one that was there before is no path for a report.
#[test]
fn nothing_is_written_through_a_link_or_into_what_is_there() {
    let home = Home::new("dies");
    let (image, _) = saved(&home, "null");
    let (report, victim) = (home.path("report"), home.path("victim"));
    fs::write(&victim, "as before").unwrap();
    std::os::unix::fs::symlink(&victim, &report).unwrap();
    let process = restored(&image, Some(&report), Ids::Old);
    fs::write(home.path("null").join("go"), "").unwrap();
    let (_, status) = home.finish("null", process);
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
    assert_eq!(fs::read(&victim).unwrap(), b"as before");
}

/// What ends itself says why in the same place.
#[test]
fn a_process_that_cannot_be_restored_leaves_its_reason() {
    let home = Home::new("dies");
    let (image, _) = saved(&home, "missing");
    fs::remove_file(home.path("missing").join("read")).unwrap();
    let report = home.path("report");
    let mut command = control::restart(&image, &library()).unwrap();
    command.env(DEATH_VARIABLE, &report).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    assert_eq!(Process::start("the restored one", &mut command).wait().code(), Some(125));
    let text = fs::read_to_string(report).unwrap();
    assert!(text.starts_with("reason: ") && text.contains("\nmaps:\n"), "{text}");
    let said = Report::parse(text.as_bytes()).unwrap().to_string();
    assert_eq!(said, "it cannot be restored: this file was open and cannot be opened any more: error 2");
}

#[test]
fn an_image_of_a_watched_process_has_the_program_s_own_dispositions() {
    let home = Home::new("dies");
    let (image, own) = saved(&home, "handler");
    assert_eq!(own, 1 << (libc::SIGSEGV - 1));
    let report = home.path("report");
    let mut process = restored(&image, Some(&report), Ids::Old);
    assert_eq!(handled(process.pid()).count_ones() as usize, WATCHED.len(), "the engine's handlers are not installed");
    let second = home.path("second");
    control::save(process.pid(), Mode::Stop, &second).unwrap();
    process.kill();
    // Without a path nothing of the engine's is left; with one the dispositions behind its own are the program's again.
    let mut process = restored(&second, None, Ids::Old);
    assert_eq!(handled(process.pid()), own);
    process.kill();
    let process = restored(&second, Some(&report), Ids::Old);
    fs::write(home.path("handler").join("go"), "").unwrap();
    let (output, status) = home.finish("handler", process);
    assert_eq!((status.code(), output.as_str()), (Some(7), "ready\nown handler: signal 11 at 0x10\n"));
    assert_eq!(value(&fs::read_to_string(report).unwrap(), "generation"), "2");
}
