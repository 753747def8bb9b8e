//! The C side: pointers become slices and values, failures become PMIx's numbers. All unsafe code of the crate is here.
//!
//! Nothing here panics, and if it did, an `extern "C"` function ends the process rather than unwind into C. One lock serves the calls one by one, as the conversation
//! demands; callbacks are called without it.

mod calls;
mod convert;
mod fences;
mod forward;
mod pack;
mod types;

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use radic_pmi_client::{Client, Socket};

use crate::job::Job;
use crate::status::Status;

static JOB: Mutex<Option<Job<Socket>>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Job<Socket>>> {
    JOB.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `call` with the job of an initialized process.
fn with_job<T>(call: impl FnOnce(&mut Job<Socket>) -> Result<T, Status>) -> Result<T, Status> {
    let mut guard = lock();
    let job = guard.as_mut().filter(|job| job.is_initialized()).ok_or(Status::INIT)?;
    let result = call(job);
    if let Err(status @ (Status::LOST_CONNECTION | Status::COMM_FAILURE)) = &result {
        complain(if *status == Status::LOST_CONNECTION {
            "the connection to the protector is lost"
        } else {
            "the protector does not answer as it should"
        });
    }
    result
}

fn complain(what: &str) {
    // Without a stderr nothing can be told.
    let _ = writeln!(io::stderr(), "radic_pmix: {what}");
}

/// Whether the host that has started this process speaks PMI-1 with it. A process that another launcher of PMIx has started is that one's.
fn is_rank() -> bool {
    std::env::var_os("PMI_FD").is_some() && std::env::var_os("PMIX_NAMESPACE").is_none()
}

fn from_environment() -> Result<Job<Socket>, String> {
    let number = |name: &str| -> Result<i32, String> {
        let text = std::env::var(name).map_err(|_| format!("{name} is not set: was this process started by radic run?"))?;
        text.parse().ok().filter(|n| *n >= 0).ok_or_else(|| format!("{name}={text:?} is not a number from 0"))
    };
    let (fd, rank, size) = (number("PMI_FD")?, number("PMI_RANK")?, number("PMI_SIZE")?);
    let client = Client::init(Socket(fd), rank, size).map_err(|e| format!("PMI_FD={fd}: {e}"))?;
    let hostname = nix::unistd::gethostname().map_or_else(|_| "localhost".to_owned(), |name| name.to_string_lossy().into_owned());
    let folder = std::env::current_dir().map_or_else(|_| "/".to_owned(), |folder| folder.to_string_lossy().into_owned());
    Ok(Job::new(client, hostname, folder, nap))
}

fn nap(time: Duration) {
    std::thread::sleep(time);
}
