//! The library's constructor, and what it does at the end of the program.

use std::os::unix::ffi::OsStrExt;

use radic_wire::ids::{JobId, ProcessId, Rank};
use radic_wire::process::{Protect, variable};

use crate::{ending, ends, hooks, layer, memory, ops, sys};

/// Runs before `main`, and after the constructors of the libraries that the program needs.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

/// Runs at `exit`, after what the program has registered there.
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destruct;

extern "C" fn construct() {
    hooks::resolve(|_, _| ());
    let Some(socket) = std::env::var_os(variable::SOCKET) else { return };
    radic_ckpt::leave_out(0, memory::secrets());
    radic_ckpt_preload::construct();
    let Some(process) = process() else { return say("RADIC_JOB or RADIC_RANK is missing or malformed") };
    ops::child::set_home(socket.as_bytes(), process);
    match layer::join(socket.as_bytes(), process) {
        Ok(joined) if joined.protection.protect == Protect::On => {
            layer::imaging::register();
            hooks::identity::learn();
            radic_ckpt_preload::refuse_io_uring();
            // Before calls are watched.
            ops::time::record(joined.protection.record_time);
            // Before the first image, which has the scale.
            let counter = if joined.protection.record_tsc { hooks::counter::begin() } else { Ok(()) };
            if let Err(error) = layer::start(joined, hooks::mpi::is_linked()) {
                ending::fail(&error.to_string());
            }
            if let Err(why) = counter
                && let Some(mut layer) = layer::enter()
            {
                layer.note(&format!("what it reads of the processor's counter is not recorded: {why}"));
            }
            if let (Err(why), Some(mut layer)) = (hooks::stdio::watch_streams(), layer::enter()) {
                layer.note(&format!(
                    "what it reads of standard input, and what it prints, may be lost or come twice if it is restarted: {why}"
                ));
            }
        }
        Ok(_) => {}
        // The node has told its log why; a child says nothing here, in the middle of its parent's output.
        Err(layer::JoinError::Refused(_)) => ops::child::begin(),
        Err(error) => ending::fail(&error.to_string()),
    }
}

fn process() -> Option<ProcessId> {
    let job: JobId = std::env::var(variable::JOB).ok()?.parse().ok()?;
    let rank = std::env::var(variable::RANK).ok()?.parse().ok()?;
    Some(ProcessId { job, rank: Rank(rank) })
}

fn say(what: &str) {
    _ = rustix::io::write(sys::borrow(2), format!("radic: this process is not protected: {what}\n").as_bytes());
}

extern "C" fn destruct() {
    // With something left to be written it has not come to its end: what is lost now would not be written again.
    if !hooks::stdio::flush() {
        ends::forget();
    }
    layer::leave();
}
