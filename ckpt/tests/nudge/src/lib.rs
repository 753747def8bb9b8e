//! A library that embeds the engine as `libradic.so` does: with hooks, and with the preloaded library's constructor and functions in it. When it is
//! nudged it saves the program to the file "image", unless there is a file "not-now". If there is a file "again" it nudges
//! its own thread before it saves the program, and renames that file to "not-now": the second nudge saves nothing. What its hooks are told goes to files, too. If there is a pipe
//! "hold", the thread that has saved the program waits there until the test has opened it for writing.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use radic_ckpt::{Hooks, Mode, Refusal, Wanted, set_hooks};

static IMAGE: AtomicI32 = AtomicI32::new(-1);

/// Adds a line to a file. None of this allocates: a thread of the program may be in the middle of that.
fn note(name: &str, line: &str) {
    let file = OpenOptions::new().create(true).append(true).open(name);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    assert!(written.is_ok());
}

fn nudged() -> Option<Wanted> {
    note("asked", "asked\n");
    if Path::new("not-now").exists() {
        return None;
    }
    if std::fs::rename("again", "not-now").is_ok() && radic_ckpt::nudge_self().is_err() {
        return None;
    }
    let fd = File::create("image").map(File::into_raw_fd).ok()?;
    IMAGE.store(fd, Relaxed);
    Some(Wanted { fd, request: Mode::Fork.into(), through: None })
}

fn saved(result: Result<(u64, u64), Refusal>) {
    // SAFETY: opened by `nudged`, and owned by nothing else.
    drop(unsafe { File::from_raw_fd(IMAGE.swap(-1, Relaxed)) });
    match result {
        Ok((pause, image)) => note("saved", if pause > 0 && image != 0 { "saved\n" } else { "without a figure\n" }),
        Err(_) => note("saved", "refused\n"),
    }
    _ = File::open("hold");
}

fn may_be_saved() -> bool {
    let may = !Path::new("busy").exists();
    note("requests", if may { "served\n" } else { "put off\n" });
    may
}

fn answered() {
    note("requests", "answered\n");
}

fn restored() {
    note("restored", "restored\n");
}

/// For the program: nudges itself.
#[unsafe(no_mangle)]
pub extern "C" fn nudge_self() -> i32 {
    i32::from(radic_ckpt::nudge_self().is_err())
}

extern "C" fn constructor() {
    let (asked, answered) = (Some(may_be_saved as fn() -> bool), Some(answered as fn()));
    set_hooks(Hooks {
        after_restore: Some(restored),
        nudged: Some(nudged),
        saved: Some(saved),
        asked,
        answered,
        ..Hooks::default()
    });
    radic_ckpt_preload::construct();
    radic_ckpt_preload::refuse_io_uring();
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
